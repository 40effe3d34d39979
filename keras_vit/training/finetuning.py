"""`finetune`: a pre-trained model, images in classes, a recipe of the paper."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._types import DType, ImageSize, Source, pair
from keras_vit.data import ImageStream
from keras_vit.models import BiT, VisionTransformer
from keras_vit.preprocessing import preprocess_input
from keras_vit.training.recipes import Recipe, loss
from keras_vit.training.run import Model, RunOptions, Task, Trained, run
from keras_vit.training.sharing import Batch, Distribution
from keras_vit.zoo import load

MOST_PATCHES = 4096  # Three times as many as any of the papers' models has: H/14 at 518 pixels, 1,369.


def finetune(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | float | None = None,
    image_size: ImageSize | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    every: int | None = None,
    seed: int = 0,
    on_bad_image: str = "stop",
    resume: bool = True,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    dtype: DType = None,
    distribution: Distribution = None,
    verbose: bool = True,
) -> Trained:
    """Fine-tunes a model as the paper does (section 4.1, Table 4): new head of zeros, SGD, cosine decay, clipping.

    The run is counted in updates of the weights, and batch n is the same images with the same augmentation whatever
    happened before. With an `output` folder a run that was killed goes on from its last checkpoint when it is called
    again in the same way, and ends with the same weights as one that was not. A run that is over, also one that a
    callback has stopped, is not trained again: the call gives the same model once more.

    Args:
        model: A model, a `.keras` or `.weights.h5` file of one, what `from_checkpoint` takes (a file, a name of the
            catalogue), or a variant such as `"ViT-B/16"` for its recommended weights. A model and its files keep
            their head where it has the classes of the data; a checkpoint always gets a new head of zeros. What is
            frozen, adapters, and the model's name stay. A model is trained in place; where its head, its image size
            or the rates of the recipe's dropout differ, a copy is.
        data: A folder with `train/` and `test/` in it or with one folder per class, `(images, labels)` arrays, a
            tf.data, grain or torch pipeline, or `"tfds:NAME"` (see `open_data`).
        recipe: A name (see `list_recipes`), or a `Recipe`.
        validation: What to evaluate on, like `data`; None for the `test/` of a folder, if there is one.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        steps: Updates of the weights; None for the recipe's. Likewise the next four.
        batch_size: Images per update.
        learning_rate: The highest of the run.
        warmup_steps: Updates until then, fewer than `steps`.
        image_size: Pixels, an integer or (height, width). None for the size of the model where one is given, and for
            the recipe's otherwise.
        classes: Number of classes, where the data does not tell (integer labels of a pipeline).
        class_names: Their names, where the data does not tell. They become `model.config.class_names`.
        every: Updates between two evaluations and checkpoints; None for an epoch, or a tenth of the run where that
            is shorter.
        seed: Decides the order of the images, their augmentation and all that is random in the model.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        resume: Whether a run in `output` goes on. False starts again and removes all that the old one has left.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch.
        dtype: Dtype policy of a model that is loaded here, such as `"mixed_bfloat16"`.
        distribution: What shares the batches. None: all processes that the program was started in (by torchrun
            or Slurm: see `connect`), and the `keras.distribution` or `tf.distribute` scope around the call or
            the model. Also such a distribution or strategy itself. `"alone"`: this process trains by itself.
        verbose: Whether there is a progress bar.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
        ConnectionError: if another process ends before its time.
        OSError: if a file of the run cannot be written. The newest checkpoint is kept.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        >>> done = training.finetune(keras_vit.VisionTransformer(config), "photos", recipe, verbose=False)
        >>> done.class_names
        ['cat', 'dog']
    """
    return run(FINE_TUNING, model, data, recipe, RunOptions.of(locals()))


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


FINE_TUNING = Task("fine-tuning", load_model, logits_model, labelled_batches, loss, keras.metrics.CategoricalAccuracy)
