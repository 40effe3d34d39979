"""`finetune`: a pre-trained model, images in classes, a recipe of the paper."""

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.data import Batches, ImageStream, has_test_split, open_data
from keras_vit.models import BiT, VisionTransformer, pair
from keras_vit.preprocessing import preprocess_input
from keras_vit.training.freezing import freeze
from keras_vit.training.recipes import Recipe
from keras_vit.training.recipes import recipe as find_recipe
from keras_vit.training.running import Trained, run
from keras_vit.zoo import load_any

MOST_PATCHES = 4096  # Three times as many as any of the papers' models has: H/14 at 518 pixels, 1,369.


def finetune(
    model: VisionTransformer | BiT | str | os.PathLike[str],
    data: Any,
    recipe: Recipe | str,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    every: int | None = None,
    seed: int = 0,
    on_bad_image: str = "stop",
    resume: bool = True,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    dtype: Any = None,
    verbose: bool = True,
) -> Trained:
    """Fine-tunes a model as the paper does (section 4.1, Table 4): new head of zeros, SGD, cosine decay, clipping.

    The run is counted in updates of the weights, and batch n is the same images with the same augmentation whatever
    happened before. With an `output` folder a run that was killed goes on from its last checkpoint when it is called
    again in the same way, and ends with the same weights as one that was not.

    Args:
        model: What `from_checkpoint` takes (a file, a name of the catalogue), a variant such as `"ViT-B/16"` for its
            recommended weights, or a model. A model is trained in place where its head fits the data; where its head
            has another number of outputs, a copy with a new head of zeros is.
        data: A folder with `train/` and `test/` in it or with one folder per class, `(images, labels)` arrays, a
            tf.data, grain or torch pipeline, or `"tfds:NAME"` (see `open_data`).
        recipe: A name (see `list_recipes`), or a `Recipe`.
        validation: What to evaluate on, like `data`; None for the `test/` of a folder, if there is one.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        steps: Updates of the weights; None for the recipe's. Likewise the next four.
        batch_size: Images per update.
        learning_rate: The highest of the run.
        warmup_steps: Updates until then.
        image_size: Pixels, an integer or (height, width). None for the size of the model where one is given, and for
            the recipe's otherwise.
        classes: Number of classes, where the data does not tell (integer labels of a pipeline).
        class_names: Their names, where the data does not tell.
        every: Updates between two evaluations and checkpoints; None for an epoch, or a tenth of the run where that
            is shorter.
        seed: Decides the order of the images, their augmentation and all that is random in the model.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        resume: Whether a run in `output` goes on. False starts again and removes the old one's checkpoint.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch.
        dtype: Dtype policy of a model that is loaded here, such as `"mixed_bfloat16"`.
        verbose: Whether there is a progress bar.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
    """
    changes = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "warmup_steps": warmup_steps}
    given = isinstance(model, (VisionTransformer, BiT))
    size_unasked = image_size is None and not given
    if image_size is None and given and not model.config.dynamic:
        image_size = model.config.image_size
    changes["image_size"] = image_size
    options = {"seed": seed, "classes": classes, "class_names": class_names, "on_bad_image": on_bad_image}
    recipe, stream, test = open_run(recipe, changes, data, validation, options)
    model = _with_head(model, recipe, stream.classes, dtype) if given else _load(model, recipe, stream.classes, dtype)
    if size_unasked:
        _warn_of_many_patches(model, recipe)
    if recipe.freeze:
        freeze(model, recipe.freeze)
    return run(
        logits_model(model),
        model,
        recipe,
        labelled(model, stream),
        stream=stream,
        validation=test_batches(test, labelled(model, test)),
        settings={"model": model.get_config()["config"], "seed": seed, "data": stream.describe()},
        output=output,
        resume=resume,
        every=every,
        callbacks=callbacks,
        compile_with={"metrics": [keras.metrics.CategoricalAccuracy("accuracy")]},
        title="fine-tuning",
        verbose=verbose,
    )


def open_run(
    recipe: Recipe | str, changes: dict[str, Any], data: Any, validation: Any, options: dict[str, Any]
) -> tuple[Recipe, ImageStream, ImageStream | None]:
    """What a run begins with; the global seed is set, too.

    Args:
        recipe: A recipe or its name.
        changes: Fields of the recipe that are to have other values; those that are None keep theirs.
        data: As in `finetune`.
        validation: As in `finetune`.
        options: Arguments of `open_data`: `seed`, `classes`, `class_names`, `on_bad_image`.

    Returns:
        The recipe with the changes and with a number of steps, the training images, and those to evaluate on.
    """
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    recipe = recipe.replace(**{name: value for name, value in changes.items() if value})
    keras.utils.set_random_seed(options["seed"])
    options = {**options, "image_size": recipe.image_size, "batch_size": recipe.batch_size // recipe.accumulate}
    stream = open_data(data, split="train", augmentation=recipe.augmentation, **options)
    recipe = recipe.replace(steps=recipe.total_steps(stream.examples))
    return recipe, stream, _open_test_data(data, validation, stream, options)


def labelled(
    model: VisionTransformer | BiT, stream: ImageStream | None
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """From the number of a batch to images as the model takes them, and labels."""

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = stream.batch(number)
        return as_input(model, images), labels

    return batch


def as_input(model: VisionTransformer | BiT, pixels: np.ndarray) -> np.ndarray:
    """Pixels of 0..255 as the model takes them."""
    return pixels if model.config.include_preprocessing else preprocess_input(pixels)


def logits_model(model: VisionTransformer | BiT) -> keras.Model:
    """The model up to its logits, with the same weights: losses want them before the softmax."""
    if model.config.classifier_activation is None:
        return model
    return keras.Model(model.input, model.get_layer("head").output, name=model.name)


def _open_test_data(data: Any, validation: Any, train: ImageStream, options: dict[str, Any]) -> ImageStream | None:
    """The images to evaluate on, in the classes of the training images; None where there are none."""
    if validation is None:
        if not has_test_split(data):
            return None
        validation = data
    options = options | {"classes": train.classes, "class_names": train.class_names}
    return open_data(validation, split="test", augmentation=None, **options)


def test_batches(test: ImageStream | None, batch: Callable[[int], tuple[Any, Any]]) -> Batches | None:
    """All batches of a test stream, once, made into inputs and targets by `batch`."""
    if test is None:
        return None
    _check_divisible(test)
    return Batches(batch, range(_count_batches(test)))


def _check_divisible(test: ImageStream) -> None:
    """JAX cannot share a batch among devices that do not divide it; of test data, only the last may be short."""
    distribution = keras.distribution.distribution()
    if distribution is None or not test.examples:
        return
    mesh = distribution.device_mesh
    groups = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    last = test.examples % test.batch_size
    if last % groups:
        raise ValueError(
            f"The last batch of the {test.examples} test images would have {last}, which cannot be shared by {groups} "
            f"groups of devices. Leave {last % groups} images out, or evaluate afterwards with "
            "keras_vit.evaluation.evaluate, which fills the batch up."
        )


def _count_batches(stream: ImageStream) -> int:
    """How many batches a test stream has; those of a pipeline that does not say it are read once."""
    if stream.steps_per_epoch:
        return stream.steps_per_epoch
    for number in itertools.count():
        try:
            stream.batch(number)
        except IndexError:
            return number


def _warn_of_many_patches(model: VisionTransformer | BiT, recipe: Recipe) -> None:
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


def _load(source: Any, recipe: Recipe, classes: int, dtype: Any) -> VisionTransformer | BiT:
    options: dict[str, Any] = {"image_size": recipe.image_size, "classes": classes, "dtype": dtype}
    if recipe.dropout:
        options["dropout"] = recipe.dropout
    if recipe.drop_path:
        options["drop_path"] = recipe.drop_path
    model = _with_head(load_any(source, **options), recipe, classes, None)
    # A head that fits by chance goes as well: the original always starts from zeros.
    return model.with_classes(classes) if np.any(model.get_layer("head").get_weights()[0]) else model


def _with_head(model: VisionTransformer | BiT, recipe: Recipe, classes: int, dtype: Any) -> VisionTransformer | BiT:
    if dtype is not None:
        raise ValueError("dtype is for models that are loaded here; build the model with that dtype instead.")
    if not model.config.dynamic and model.config.image_size != pair("image_size", recipe.image_size):
        model = model.with_image_size(recipe.image_size)
    return model if model.config.classes == classes else model.with_classes(classes)
