"""`pretrain`: from random weights, with labels or without."""

import inspect
from typing import Any

import keras
import numpy as np

from keras_vit._processes import share
from keras_vit._types import DType, Source
from keras_vit.checkpoints import is_variant
from keras_vit.data import ImageStream
from keras_vit.models import BiT, VisionTransformer, find_variant
from keras_vit.training.finetuning import Model, Task, adapted, as_input, labelled_batches, logits_model
from keras_vit.training.masked_patches import (
    NO_TARGET,
    MaskedPatchAccuracy,
    MaskedPatchLoss,
    masked_patch_model,
    mean_colours,
    plan_corruption,
)
from keras_vit.training.recipes import Recipe, build_loss
from keras_vit.training.run import Trained, finetune
from keras_vit.training.sharing import Batch
from keras_vit.zoo import create_model, load


def pretrain(
    model: Model | Source, data: Any, recipe: Recipe | str, *, objective: str = "labels", **options: Any
) -> Trained:
    """Trains a model from scratch by a recipe of Table 3 or of AugReg, or without labels as in appendix B.1.2.

    Like `finetune` it is counted in updates and goes on after a kill.

    Args:
        model: The name of a variant, for a model with random weights; or a model or a file of one, as in `finetune`,
            which goes on with the weights and the head that it has.
        data: As in `finetune`. Labels are not looked at by `"masked_patches"`.
        recipe: A name (see `list_recipes`), or a `Recipe`.
        objective: `"labels"`: the recipe's softmax or sigmoid loss on the head, whose biases begin at the recipe's
            `head_bias`. `"masked_patches"`: half of the patches are corrupted, and the 3-bit mean colour of each has
            to be predicted; the encoder is trained, and the head of the model stays as it is.
        options: All other arguments of `finetune`. `seed` also decides the first weights of a variant, and which
            patches are corrupted.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
        ConnectionError: if another process ends before its time.
        OSError: if a file of the run cannot be written. The newest checkpoint is kept.

    Examples:
        >>> recipe = training.Recipe(steps=1, batch_size=2, image_size=8)
        >>> fresh = keras_vit.VisionTransformer(config)
        >>> done = training.pretrain(fresh, (pixels, labels), recipe, objective="masked_patches", verbose=False)
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {tuple(OBJECTIVES)}, but {objective!r} was given.")
    return finetune(model, data, recipe, task=OBJECTIVES[objective], **options)


_parameters = inspect.signature(finetune).parameters
pretrain.__signature__ = inspect.signature(pretrain).replace(  # ty: ignore[unresolved-attribute]
    parameters=[
        *[p for p in inspect.signature(pretrain).parameters.values() if p.kind is not p.VAR_KEYWORD],
        *[p for name, p in _parameters.items() if p.kind is p.KEYWORD_ONLY and name != "task"],
    ]
)


def create(variant: str, recipe: Recipe, classes: int, dtype: DType = None) -> Model:
    """A model with random weights as a recipe wants it: rates of dropout, size of images, biases of the head."""
    options: dict[str, Any] = {"dtype": dtype, "classes": classes, "image_size": recipe.image_size}
    if not find_variant(variant).startswith("BiT") or recipe.dropout or recipe.drop_path:
        options |= {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
    model = create_model(variant, classifier_activation=None, **options)
    model.get_layer("head").bias.assign(np.full(classes, recipe.head_bias, "float32"))
    return model


def new_or_given_model(source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
    """The model to pre-train on labels, whose head has the classes of the data."""
    model = model_of_any_head(source, recipe, images, dtype)
    if model.config.classes != images.classes:
        raise ValueError(
            f"model has {model.config.classes or 'no'} outputs, but the data has {images.classes} classes. "
            f"Give model.with_classes({images.classes})."
        )
    return adapted(model, recipe, images)


def model_of_any_head(source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
    """The model to pre-train without labels, whose head stays as it is."""
    if isinstance(source, (VisionTransformer, BiT)):
        return adapted(source, recipe)
    if is_variant(source):
        return create(source, recipe, images.classes, dtype)
    options = {name: getattr(recipe, name) for name in ("dropout", "drop_path") if getattr(recipe, name)}
    return load(source, image_size=recipe.image_size, dtype=dtype, **options)


def corrupted_batches(model: VisionTransformer, images: ImageStream, seed: int) -> Batch:
    """Batches of images with a plan of their corruption, and the colours that have to be predicted."""
    grid = model.config.grid_size

    def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        pixels, _ = images.batch(number)
        whole = images.length(number) if images.shard[1] > 1 else len(pixels)
        rows = share(whole, images.shard)
        plan, corrupted = (array[rows] for array in plan_corruption(whole, grid[0] * grid[1], (seed, number)))
        targets = np.where(corrupted, mean_colours(pixels, grid), NO_TARGET).astype("int32")
        return {"images": as_input(model, pixels), "plan": plan}, targets

    return batch


OBJECTIVES = {
    "labels": Task(
        "pre-training",
        new_or_given_model,
        logits_model,
        labelled_batches,
        build_loss,
        keras.metrics.CategoricalAccuracy,
    ),
    "masked_patches": Task(
        "masked patches",
        model_of_any_head,
        masked_patch_model,
        corrupted_batches,
        lambda recipe: MaskedPatchLoss(),
        MaskedPatchAccuracy,
    ),
}
