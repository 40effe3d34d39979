"""What a run trains, and on what: a `Task`. Here is the one of fine-tuning."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import DType, Source, pair
from keras_vit.data import ImageStream
from keras_vit.models import BiT, VisionTransformer
from keras_vit.preprocessing import preprocess_input
from keras_vit.training.recipes import Recipe, build_loss
from keras_vit.training.sharing import Batch
from keras_vit.zoo import load

MOST_PATCHES = 4096  # Three times as many as any of the papers' models has: H/14 at 518 pixels, 1,369.

Model = VisionTransformer | BiT


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and on what: where fine-tuning, pre-training and masked patches differ.

    Attributes:
        title: Its name, beside the progress bar and in `run.json`.
        model: From what the user gave (a model, or what names one), the recipe, the training images and the dtype
            policy to the model that the user gets.
        learner: From that model to the one that computes the loss, with the same weights.
        batches: From that model, images and a seed to inputs and targets.
        loss: Of a recipe, for a mean over the images of a batch.
        metric: The class of the metric that is logged as `accuracy`.
    """

    title: str
    model: Callable[[Model | Source, Recipe, ImageStream, DType], Model]
    learner: Callable[[Model], keras.Model]
    batches: Callable[[Model, ImageStream, int], Batch]
    loss: Callable[[Recipe], keras.losses.Loss]
    metric: type[keras.metrics.Metric]


def logits_model(model: Model) -> keras.Model:
    """The model up to its logits, with the same weights: losses want them before the softmax."""
    if model.config.classifier_activation is None:
        return model
    logits = "logits" if getattr(model.config, "distillation_head", False) else "head"
    return keras.Model(model.input, model.get_layer(logits).output, name=model.name)


def as_input(model: Model, pixels: np.ndarray) -> np.ndarray:
    """Pixels of 0..255 as the model takes them."""
    pipeline = model.config.pipeline
    return pixels if model.config.include_preprocessing else preprocess_input(pixels, pipeline.mean, pipeline.std)


def labelled_batches(model: Model, images: ImageStream, seed: int) -> Batch:
    """From the number of a batch to images as the model takes them, and labels."""

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = images.batch(number)
        return as_input(model, pixels), labels

    return batch


def load_model(source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
    """The model to fine-tune: with the recipe's image size and rates, and a head for the classes of the data.

    Args:
        source: A model, or what `load` takes.
        recipe: Image size, rates of dropout, biases of a new head.
        images: The training images.
        dtype: Dtype policy of a model that is loaded; None for its own.
    """
    if isinstance(source, (VisionTransformer, BiT)):
        return adapted(source, recipe, images)
    options: dict[str, Any] = {"image_size": recipe.image_size, "classes": images.classes, "dtype": dtype}
    options |= {name: getattr(recipe, name) for name in ("dropout", "drop_path") if getattr(recipe, name)}
    model = load(source, **options)
    # A head that fits by chance goes as well: the original always starts from zeros.
    model = adapted(model, recipe, images, new_head=bool(np.any(model.get_layer("head").get_weights()[0])))
    _warn_of_many_patches(model, recipe)
    return model


def adapted(model: Model, recipe: Recipe, images: ImageStream | None = None, new_head: bool = False) -> Model:
    """A model as a recipe and the classes of the data want it: the one given, or a copy where something differs.

    Args:
        model: The model.
        recipe: Image size, rates of dropout, biases of a new head.
        images: The training images; None where the head does not matter.
        new_head: Whether the head starts anew though it has the classes of the data.

    Raises:
        ValueError: if the recipe asks for what the model cannot have, or nothing would train.
    """
    config, changes = model.config, {}
    if not config.dynamic and config.image_size != pair("image_size", recipe.image_size):
        changes["image_size"] = recipe.image_size
    for rate in ("dropout", "drop_path"):
        value = getattr(recipe, rate)
        if value and isinstance(model, BiT):
            raise ValueError(f"{recipe.name} has {rate}={value:g}, but a BiT has no {rate}: recipe.replace({rate}=0).")
        if value and getattr(config, rate) != value:
            changes[rate] = value
    if changes:
        model = model.with_config(**changes)
    return model if images is None else _with_head(model, recipe, images, new_head)


def _with_head(model: Model, recipe: Recipe, images: ImageStream, new_head: bool) -> Model:
    names = tuple(images.class_names or ())
    known = model.config.class_names
    if model.config.classes == images.classes and not new_head and (not names or known in (None, names)):
        if names:
            model.name_classes(names)
        return model
    model = model.with_classes(images.classes, class_names=names or None)  # zeros, as the original has it
    head = model.get_layer("head")
    if not head.trainable:
        raise ValueError(
            f"All of {model.name} is frozen, also the new head, which starts from zeros: nothing would be learned. "
            "Call keras_vit.training.unfreeze(model, 'head') before, or freeze layers by their names."
        )
    head.bias.assign(np.full(images.classes, recipe.head_bias, "float32"))
    return model


def _warn_of_many_patches(model: Model, recipe: Recipe) -> None:
    """The papers' sizes are for patches of 14 to 32 pixels; with small ones the same pixels are far more work."""
    if not isinstance(model, VisionTransformer) or model.config.dynamic:
        return
    rows, columns = model.config.grid_size
    if rows * columns > MOST_PATCHES:
        warnings.warn(
            f"The recipe {recipe.name} has images of {recipe.image_size} pixels, and this model cuts them into "
            f"{rows} x {columns} patches of {model.config.patch_size}: that is slow and takes much memory. Give "
            "image_size= a smaller one, such as that of the checkpoint.",
            stacklevel=3,
        )


FINE_TUNING = Task(
    "fine-tuning", load_model, logits_model, labelled_batches, build_loss, keras.metrics.CategoricalAccuracy
)
