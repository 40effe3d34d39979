"""Training an EoMT: when queries see masks only, what is predicted, and one update of the weights."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import to_numpy
from keras_vit.models import EoMT
from keras_vit.training.mask_classification import MaskClassificationLoss, Targets


def mask_probabilities(step: Any, starts: Sequence[int], ends: Sequence[int], power: float = 0.9) -> np.ndarray:
    """How likely masked attention is for a query of each block in an update: float32 `(blocks,)`, from 1 to 0.

    Args:
        step: The update, counted from 0.
        starts: In which update the probability of each block begins to fall.
        ends: From which on it is 0.
        power: Of its fall, as of the learning rate.

    Returns:
        The probabilities, float32 `(blocks,)`.

    Raises:
        ValueError: if there are not as many ends as starts, or one is not later.

    Examples:
        >>> training.mask_probabilities(150, starts=[100, 200], ends=[200, 300], power=1.0).tolist()
        [0.5, 1.0]
    """
    first, last = np.asarray(starts, "float64"), np.asarray(ends, "float64")
    if first.shape != last.shape or (first >= last).any():
        raise ValueError(f"ends must be as many as starts, and later, but {starts} and {ends} were given.")
    left = np.clip(1 - (step - first) / (last - first), 0, 1)
    return (left**power).astype("float32")


def mask_windows(steps: int, blocks: int, first: int | None = None) -> tuple[list[int], list[int]]:
    """In which updates the authors let the probability of each block fall: starts and ends.

    Each takes a sixth of the run; they begin evenly from its first to its fourth sixth, the last sixth has no masks.

    Args:
        steps: Updates of the run.
        blocks: How many blocks have queries.
        first: For how many updates, from the beginning, the first block's falls instead, as with DINOv3.
    """
    sixth = steps / 6
    starts = [round(start) for start in np.linspace(sixth, 4 * sixth, blocks)]
    ends = [max(round(start + sixth), start + 1) for start in starts]
    if first is not None:
        starts[0], ends[0] = 0, max(1, min(first, steps))
    return starts, ends


def predictions(
    model: EoMT, images: Any, mask_probability: Any = 1.0, draws: Any = None, rope_scale: Any = None
) -> list[dict[str, Any]]:
    """What an EoMT predicts while it trains, before each block with queries and after the last one.

    Args:
        model: The model.
        images: Normalised, as `model.predict` takes them.
        mask_probability: How likely queries see their masks only, a number or one for each block with queries.
        draws: Uniform numbers `(blocks, batch, queries)`, where a probability is neither 0 nor 1.
        rope_scale: What rotary coordinates are multiplied by; DINOv3's authors draw one for each batch, from 0.5 to 2.

    Returns:
        As `EoMT.predictions`, in order.

    Raises:
        TypeError: if `model` is no EoMT.
        ValueError: as `EoMT.predictions`.

    Examples:
        >>> len(training.predictions(keras_vit.EoMT(eomt_config), small_images)) == eomt_config.query_blocks + 1
        True
    """
    if not isinstance(model, EoMT):
        raise TypeError(f"model must be an EoMT, but {type(model).__name__} was given.")
    return model.predictions(images, mask_probability, draws, rope_scale)


def segmentation_step(
    model: EoMT,
    optimizer: Any,
    loss: MaskClassificationLoss,
    images: Any,
    targets: Targets,
    points: Any = None,
    mask_probability: Any = 1.0,
    draws: Any = None,
    rope_scale: Any = None,
) -> dict[str, float]:
    """Trains an EoMT on one batch, in place; for loops of one's own, where `finetune_segmentation` is a whole run.

    Args:
        model: The model, whose weights change.
        optimizer: Such as `build_optimizer(recipe, model)`.
        loss: The loss.
        images: Normalised, as `model.predict` takes them.
        targets: For each picture `{"masks", "labels"}`, as `loss` takes them.
        points: As `loss` takes them; None for random ones.
        mask_probability: As of `predictions`, like the next two.
        draws: Likewise.
        rope_scale: Likewise.

    Returns:
        `loss`, and `gradient_norm`, before clipping (NaN of an optimizer that does not keep it).

    Examples:
        >>> model, loss = keras_vit.EoMT(eomt_config), training.MaskClassificationLoss(eomt_config.classes, points=8)
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": [1]}
        >>> step = training.segmentation_step(model, training.AdamW(), loss, small_images, [target] * 4)
        >>> sorted(step)
        ['gradient_norm', 'loss']
    """
    weights = model.trainable_variables
    if not optimizer.built:
        optimizer.build(weights)

    def compute() -> Any:
        return loss(targets, predictions(model, images, mask_probability, draws, rope_scale), points)

    value, gradients = _gradients(compute, weights)
    with _without_gradients():
        optimizer.apply(gradients, weights)
    norm = getattr(optimizer, "gradient_norm", None)
    return {"loss": float(value), "gradient_norm": float("nan") if norm is None else float(to_numpy(norm.value))}


def _without_gradients() -> Any:
    """A context in which PyTorch records nothing for gradients; on other backends it does nothing."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def _gradients(compute: Any, weights: list[Any]) -> tuple[Any, list[Any]]:
    """What a function returns, and its gradients with respect to weights; zeros of those that it does not use."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def of_values(values: list[Any]) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
                return compute()

        return jax.value_and_grad(of_values)([weight.value for weight in weights])
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = compute()
        gradients = tape.gradient(value, [weight.value for weight in weights])
    else:
        import torch

        value = compute()
        gradients = torch.autograd.grad(value, [weight.value for weight in weights], allow_unused=True)
        value = value.detach()
    return value, [ops.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
