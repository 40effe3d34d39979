"""Pre-training: with labels, and by masked patch prediction (appendix B.1.2 of the paper)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._processes import share
from keras_vit.checkpoints import is_variant
from keras_vit.data import ImageStream
from keras_vit.models import VisionTransformer, find_variant
from keras_vit.training import tasks
from keras_vit.training.distribution import Batch
from keras_vit.zoo import create_model


class Pretraining(tasks.FineTuning):
    """Training on labels with the head that the model has; variants begin with random weights."""

    name = "pretrain"
    title = "pre-training"

    def model(self, given: tasks.Given, images: ImageStream) -> tasks.Model:
        """Returns the model of `model_with_any_head`."""
        model = model_with_any_head(given, images)
        if model.config.classes != images.classes:
            raise ValueError(
                f"model has {model.config.classes or 'no'} outputs, but the data has {images.classes} classes. "
                f"Pass model.with_classes({images.classes})."
            )
        return tasks.with_head(model, given.recipe, images)


def model_with_any_head(given: tasks.Given, images: ImageStream | None) -> tasks.Model:
    """A variant with random weights and a head of zeros for images with labels, or a copy of another model."""
    source, recipe = given.model, given.recipe
    if not is_variant(source):
        return tasks.with_size_and_rates(given)
    rates = {name: getattr(recipe, name) for name in tasks.RATES}
    if find_variant(source).startswith("BiT") and not any(rates.values()):
        rates = {}  # a BiT has none, and refuses those that are set
    classes = {} if images is None else {"classes": images.classes}
    options = {"image_size": recipe.image_size, "dtype": given.settings.dtype, **classes, **rates}
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


class MaskedPatches(tasks.Task):
    """Masked patch prediction: labels are not looked at, and the model's head stays as it is."""

    name = "masked_patches"
    title = "masked patches"
    objective = "masked_patches"
    targets = ("class", "multilabel", "number")

    def model(self, given: tasks.Given, images: ImageStream) -> tasks.Model:
        model = model_with_any_head(given, images)
        return model.with_config(class_token_only=False) if model.config.class_token_only else model  # all are read

    def loss(self, run: tasks.Run) -> tasks.Learning:
        batch = corrupted_batches(run.model, run.images, run.seed)
        return masked_patch_model(run.model), MaskedPatchLoss(), MaskedPatchAccuracy(name="accuracy"), batch

    def measure(self, run: tasks.Run) -> Any:
        return tasks.measured_loss(run, corrupted_batches(run.model, run.tests, run.seed + 1))


def corrupted_batches(model: VisionTransformer, images: ImageStream, seed: int) -> Batch:
    """A function from the number of a batch to images, a plan of their corruption, and colours to predict."""
    grid = model.config.grid_size

    def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        pixels, _ = images.batch(number)
        whole = images.length(number) if images.shard[1] > 1 else len(pixels)
        rows = share(whole, images.shard)
        plan, corrupted = (array[rows] for array in plan_corruption(whole, grid[0] * grid[1], (seed, number)))
        targets = np.where(corrupted, mean_colours(pixels, grid), NO_TARGET).astype("int32")
        return {"images": tasks.as_input(model, pixels), "plan": plan}, targets

    return batch
