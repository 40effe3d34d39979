"""`pretrain`: with labels, by masked patch prediction (appendix B.1.2 of the paper) or by LeJEPA."""

import os
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import DType, Source, check_choice
from keras_vit._processes import share
from keras_vit.checkpoints import is_variant
from keras_vit.data import ImageStream
from keras_vit.models import VisionTransformer, find_variant
from keras_vit.training.distribution import Batch
from keras_vit.training.lejepa import LeJEPA
from keras_vit.training.recipes import Recipe
from keras_vit.training.run import Trained, finetune
from keras_vit.training.tasks import (
    RATES,
    FineTuning,
    Model,
    Task,
    as_input,
    with_head,
    with_size_and_rates,
)
from keras_vit.zoo import create_model


def pretrain(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str | None = None,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    objective: str | Task = "labels",
    target: str = "class",
    **options: Any,
) -> Trained:
    """Trains a model from scratch, by a recipe of Table 3 or of AugReg, or without labels; a run like `finetune`.

    Args:
        model: The name of a variant, for a model with random weights; or a model or a file, as in `finetune`, which
            goes on with its weights and its head.
        data: As in `finetune`. `"masked_patches"` ignores labels. `"lejepa"` takes pictures without labels: a folder of
            them, an array, a list.
        recipe: A name (see `list_recipes`), or a `Recipe`; None for the objective's recipe (not for `"labels"`).
        validation: As in `finetune`. For `"lejepa"`, labelled images: `val_accuracy` is the accuracy of their nearest
            neighbours' votes. None: no validation.
        output: As in `finetune`.
        objective: `"labels"`: the recipe's softmax or sigmoid loss on the head, whose biases begin at the recipe's
            `head_bias`. `"masked_patches"`: half of the patches are corrupted, and the 3-bit mean colour of each has to
            be predicted; the head stays as it is. `"lejepa"`: views of a picture get similar embeddings, which are
            normally distributed (arXiv 2511.08544; see docs/pretraining.md); the head stays as it is, and a variant has
            none. A `LeJEPA` is the same with other settings.
        target: As in `finetune`.
        **options: Fields of `RunOptions` and of the recipe. `seed` also decides a variant's initial weights and the
            corrupted patches.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: as `finetune`; if the objective is unknown, or needs a recipe and none is given.
        FloatingPointError, OSError, RuntimeError, ImportError: as `finetune`.

    Examples:
        >>> recipe = training.Recipe(steps=1, batch_size=2, image_size=8)
        >>> fresh = keras_vit.VisionTransformer(config)
        >>> done = training.pretrain(fresh, (pixels, labels), recipe, objective="masked_patches", verbose=False)
    """
    if isinstance(objective, Task):
        task = objective
    else:
        check_choice("objective", objective, tuple(OBJECTIVES))
        task = OBJECTIVES[objective]()
    if recipe is None:
        if task.objective == "labels":
            raise TypeError('recipe must be given for objective="labels": a name of list_recipes(), or a Recipe.')
        recipe = f"pretrain/{task.objective}"
    return finetune(model, data, recipe, validation=validation, output=output, target=target, task=task, **options)


class Pretraining(FineTuning):
    """Training on labels with the head that the model has; variants begin with random weights."""

    title = "pre-training"

    def prepare_model(self, source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
        """Returns the model of `model_with_any_head`."""
        model = model_with_any_head(source, recipe, images, dtype)
        if model.config.classes != images.classes:
            raise ValueError(
                f"model has {model.config.classes or 'no'} outputs, but the data has {images.classes} classes. "
                f"Pass model.with_classes({images.classes})."
            )
        return with_head(model, recipe, images)


def model_with_any_head(source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
    """A variant with random weights and a head of zeros for the images, or a copy of the model given or loaded."""
    if not is_variant(source):
        return with_size_and_rates(source, recipe, dtype)
    rates = {name: getattr(recipe, name) for name in RATES}
    if find_variant(source).startswith("BiT") and not any(rates.values()):
        rates = {}  # a BiT has none, and refuses those that are set
    options = {"classes": images.classes, "image_size": recipe.image_size, "dtype": dtype, **rates}
    return create_model(source, classifier_activation=None, **options)


# Masked patch prediction: corrupt patches, predict their colour

CORRUPTED = 0.5  # of the patches of an image; of these:
MASKED, REPLACED = 0.8, 0.1  # by the mask token, by another patch; the rest stays as it is
LEVELS = 8  # of each colour, that is 3 bits
COLOURS = LEVELS**3

KEEP, MASK = -1, -2  # instead of the number of a patch, in the plan of a corruption
NO_TARGET = -1


def plan_corruption(images: int, patches: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns which patches are corrupted, and how, drawn from the seed; ValueError for less than two patches."""
    if patches < 2:
        raise ValueError(f"images must have at least 2 patches, half of which are corrupted, but they have {patches}.")
    rng = np.random.default_rng(seed)
    count = round(CORRUPTED * patches)
    corrupted = np.argsort(rng.random((images, patches)), axis=1) < count
    fate = rng.random((images, patches))
    # Another patch: a step of 1 to patches - 1 away, round the end.
    others = (np.arange(patches) + rng.integers(1, patches, (images, patches))) % patches
    plan = np.where(fate < MASKED, MASK, np.where(fate < MASKED + REPLACED, others, KEEP))
    return np.where(corrupted, plan, KEEP).astype("int32"), corrupted


def mean_colours(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Returns the 3-bit mean colour of each patch of `(images, height, width, 3)` with values 0..255."""
    (images, height, width, _), (rows, columns) = pixels.shape, grid
    blocks = np.reshape(pixels, (images, rows, height // rows, columns, width // columns, 3))
    means = np.mean(blocks, axis=(2, 4), dtype="float64").reshape(images, rows * columns, 3)
    levels = np.clip(means * LEVELS // 256, 0, LEVELS - 1).astype("int32")
    return levels @ np.array([LEVELS**2, LEVELS, 1], "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class CorruptPatches(keras.layers.Layer):
    """Tokens `(batch, N, D)` with a learned token, or another patch, in the place of some.

    Call it with the tokens and a plan `(batch, N)` of integers (see `plan_corruption`).
    """

    def build(self, tokens_shape: Any, plan_shape: Any = None) -> None:
        self.mask_token = self.add_weight((tokens_shape[-1],), initializer="zeros", name="mask_token")

    def call(self, tokens: Any, plan: Any) -> Any:
        places = ops.broadcast_to(ops.arange(ops.shape(plan)[1], dtype=plan.dtype), ops.shape(plan))
        source = ops.where(plan < 0, places, plan)
        taken = ops.take_along_axis(tokens, source[..., None], axis=1)
        return ops.where((plan == MASK)[..., None], ops.cast(self.mask_token, tokens.dtype), taken)

    def compute_output_shape(self, tokens_shape: Any, plan_shape: Any = None) -> Any:
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchLoss(keras.losses.Loss):
    """Cross-entropy of the colours of corrupted patches: their mean over all of the batch.

    Targets are `(batch, N)` integers, `NO_TARGET` where nothing is to be predicted; predictions `(batch, N, 512)`.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each image, `(batch,)`: its share of the mean over the batch's corrupted patches."""
        y_true = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, "float32")
        counts = ops.cast(y_true >= 0, "float32")
        losses = keras.losses.sparse_categorical_crossentropy(ops.maximum(y_true, 0), logits, from_logits=True)
        return ops.sum(losses * counts, axis=-1) / ops.maximum(ops.mean(ops.sum(counts, axis=-1)), 1e-9)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchAccuracy(keras.metrics.Mean):
    """Share of the corrupted patches whose colour is named right."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts a batch; patches that were not corrupted, and images of weight 0, do not count."""
        y_true = ops.cast(y_true, "int32")
        right = ops.cast(ops.cast(ops.argmax(y_pred, axis=-1), "int32") == y_true, "float32")
        counts = ops.cast(y_true >= 0, "float32")
        if sample_weight is not None:
            counts = counts * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        super().update_state(right, sample_weight=counts)


def masked_patch_model(model: VisionTransformer) -> keras.Model:
    """Returns a model that predicts the colours of corrupted patches, on another's encoder, with the same weights."""
    # It takes `{"images", "plan"}`, images as `model` takes them and a plan of `plan_corruption`, and returns logits
    # `(batch, N, 512)`.
    if not isinstance(model, VisionTransformer):
        raise TypeError(f"model must be a VisionTransformer for masked patches, but {type(model).__name__} was given.")
    config = model.config
    if config.dynamic:
        raise ValueError("Masked patch prediction needs images of one size: call model.with_image_size((h, w)) first.")
    if config.channels != 3:
        raise ValueError(
            f"Masked patch prediction needs a model of 3 channels, but {model.name} has {config.channels}."
        )
    if config.grid_size == (1, 1):
        raise ValueError(
            f"model must have at least 2 patches, but {config.image_size} pixels are one of {config.patch_size}."
        )
    plan = keras.Input((config.grid_size[0] * config.grid_size[1],), dtype="int32", name="plan")
    corrupt = CorruptPatches(dtype=model.dtype_policy, name="corrupt_patches")
    calls = {"tokens": lambda layer, patches: corrupt(layer(patches), plan)}
    if config.final_norm == "pooled":  # all tokens are normalised, as one would be after the pooling
        calls["pooling"] = lambda layer, tokens: tokens
    last = f"block_{config.depth - 1}" if config.final_norm == "none" else "encoder_norm"
    x = model.run(model.input, calls, until=last)[:, config.prefix_tokens :]
    head = keras.layers.Dense(COLOURS, dtype="float32", name="colours")
    return keras.Model({"images": model.input, "plan": plan}, head(x), name=f"{model.name}_masked_patches")


class MaskedPatches(Task):
    """Masked patch prediction: labels are not looked at, and the model's head stays as it is."""

    title = "masked patches"
    objective = "masked_patches"
    targets = ("class", "multilabel", "number")

    def prepare_model(self, source: Model | Source, recipe: Recipe, images: ImageStream, dtype: DType) -> Model:
        model = model_with_any_head(source, recipe, images, dtype)
        return model.with_config(class_token_only=False) if model.config.class_token_only else model  # all are read

    def trained_model(self, model: VisionTransformer) -> keras.Model:
        return masked_patch_model(model)

    def loss_and_metric(self, recipe: Recipe, images: ImageStream) -> tuple[keras.losses.Loss, keras.metrics.Metric]:
        return MaskedPatchLoss(), MaskedPatchAccuracy(name="accuracy")

    def batches(self, model: VisionTransformer, images: ImageStream, seed: int) -> Batch:
        """A function from the number of a batch to images, a plan of their corruption, and colours to predict."""
        grid = model.config.grid_size

        def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            pixels, _ = images.batch(number)
            whole = images.length(number) if images.shard[1] > 1 else len(pixels)
            rows = share(whole, images.shard)
            plan, corrupted = (array[rows] for array in plan_corruption(whole, grid[0] * grid[1], (seed, number)))
            targets = np.where(corrupted, mean_colours(pixels, grid), NO_TARGET).astype("int32")
            return {"images": as_input(model, pixels), "plan": plan}, targets

        return batch


OBJECTIVES: dict[str, type[Task]] = {"labels": Pretraining, "masked_patches": MaskedPatches, "lejepa": LeJEPA}
