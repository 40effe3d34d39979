"""What a run trains, and on what: images to batches, the model to fine-tune, its head."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import DType, Source, warn_caller
from keras_vit._processes import Processes
from keras_vit.data import ImageStream
from keras_vit.models import BiT, ImageModel, VisionTransformer
from keras_vit.training.options import RECIPE, refuse_unused
from keras_vit.training.recipes import Recipe
from keras_vit.training.sharing import Batch
from keras_vit.training.targets import loss_and_metric
from keras_vit.zoo import load

MOST_PATCHES = 4096  # Three times as many as any of the papers' models has: H/14 at 518 pixels, 1,369.

Model = VisionTransformer | BiT


def labelled_batches(model: Model, images: ImageStream, seed: int) -> Batch:
    """From the number of a batch to images as the model takes them, and labels."""

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = images.batch(number)
        return as_input(model, pixels), labels

    return batch


def as_input(model: Model, pixels: np.ndarray) -> np.ndarray:
    """Pixels of 0..255 as the model takes them."""
    return pixels if model.config.include_preprocessing else model.config.pipeline.normalized(pixels)


def logits_model(model: Model) -> keras.Model:
    """The model up to its logits, with the same weights: losses want them before the softmax."""
    if model.config.classifier_activation is None:
        return model
    logits = "logits" if getattr(model.config, "distillation_head", False) else "head"
    return keras.Model(model.input, model.get_layer(logits).output, name=model.name)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and on what: where fine-tuning, pre-training and masked patches differ."""

    title: str  # beside the progress bar and in `run.json`
    objective: str  # in `options.py`, which says what applies to it
    # From what the user gave, the recipe, the training images and a dtype policy to the model that the user gets.
    model: Callable[[Model | Source, Recipe, ImageStream, DType], Model]
    learner: Callable[[Model], keras.Model] = logits_model  # computes the loss, with the weights of that model
    batches: Callable[[Model, ImageStream, int], Batch] = labelled_batches  # inputs and targets, of a model and a seed
    # The loss is the mean over the images of a batch; the metric is logged, None for none.
    loss_and_metric: Callable[[Recipe, ImageStream], tuple[keras.losses.Loss, keras.metrics.Metric | None]] = (
        loss_and_metric
    )
    # From the model, images to evaluate on and the processes to what measures; None: loss and metric, batch by batch.
    validation: Callable[[Model, ImageStream, Processes], Any] | None = None


def model_to_finetune(source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
    """The model to fine-tune: with the recipe's image size and rates, and a head for the classes of the data."""
    if isinstance(source, ImageModel):
        if not isinstance(source, (VisionTransformer, BiT)):
            words = f"A {type(source).__name__} answers for each place, and images of one class have no such labels"
            raise TypeError(f"{words}. Masks train a linear head: training.finetune_segmentation.")
        return with_head(with_size_and_rates(source, recipe, dtype), recipe, images)
    model = with_size_and_rates(source, recipe, dtype, classes=images.classes)
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        rows, columns = model.config.grid_size
        if rows * columns > MOST_PATCHES:
            found = f"has images of {recipe.image_size} pixels, which this model cuts into {rows} x {columns} patches"
            warn_caller(f"The recipe {recipe.name} {found}: slow, and much memory. Give a smaller image_size=.")
    # A head that fits by chance goes as well: the original always starts from zeros.
    return with_head(model, recipe, images, new_head=bool(np.any(model.get_layer("head").get_weights()[0])))


RATES = ("dropout", "patch_drop", "drop_path")  # of recipes and of configs


def with_size_and_rates(source: Model | Source, recipe: Recipe, dtype: DType, **options: Any) -> Model:
    """A copy of a model, or what `load` takes, with the image size and the dropout of a recipe."""
    rates = {name: getattr(recipe, name) for name in RATES if getattr(recipe, name)}
    if not isinstance(source, ImageModel):
        return load(source, image_size=recipe.image_size, dtype=dtype, **rates, **options)
    refuse_unused(recipe, Recipe(), RECIPE, kind=type(source).__name__)
    size = {} if source.config.dynamic else {"image_size": recipe.image_size}
    return source.with_config(**rates, **size)


def with_head(model: Model, recipe: Recipe, images: ImageStream, new_head: bool = False) -> Model:
    """The model, or a copy with a head of zeros where its classes are not those of the data (or `new_head`).

    Raises ValueError where a head that stays has been trained, and the recipe says what its biases begin with.
    """
    names = tuple(images.class_names or ())
    activation = {"multilabel": "sigmoid", "number": None}.get(images.target, model.config.classifier_activation)
    if model.config.classifier_activation != activation:
        model = model.with_config(classifier_activation=activation)
    known = model.config.class_names
    if model.config.classes == images.classes and not new_head and (not names or known in (None, names)):
        if names:
            model.name_classes(names)
        if recipe.head_bias:
            if any(np.any(weight) for weight in model.get_layer("head").get_weights()):
                raise ValueError(
                    f"head_bias={recipe.head_bias!r} is for heads that begin, but that of {model.name} has been "
                    "trained: give head_bias=0.0, or model.with_classes(None) for a new head."
                )
            model.get_layer("head").bias.assign(np.full(images.classes, recipe.head_bias, "float32"))
        return model
    model = model.with_classes(images.classes, class_names=names or None)
    head = model.get_layer("head")
    if not head.trainable:
        raise ValueError(f"All of {model.name} is frozen, also the new head of zeros: unfreeze(model, 'head') first.")
    bias = np.mean(images.labels) if images.target == "number" and images.labels is not None else recipe.head_bias
    head.bias.assign(np.full(images.classes, bias, "float32"))
    return model


FINE_TUNING = Task("fine-tuning", "labels", model_to_finetune)
