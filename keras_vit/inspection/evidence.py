"""What speaks for a class: pixels and patches."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import Tensor, to_numpy
from keras_vit.inspection.attention import POOLING, all_blocks, of_keys, output_row, read_attention
from keras_vit.inspection.running import BATCH_SIZE, Call, ModelSource, Probe, gradients, in_batches, no_gradients
from keras_vit.models import BiT
from keras_vit.models.features import POOLINGS as POOLING_LAYERS

Classes = int | Sequence[int] | np.ndarray | None


def class_scores(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """The score of each class, before the activation of a `VisionTransformer` or `BiT`.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        batch_size: Images computed at a time.

    Returns:
        float32 `(batch, classes)`: logits; for a model around a Vision Transformer, its outputs as they are.

    Raises:
        TypeError: if the model has none of this package inside, or the images are no numbers.
        ValueError: if its output is not one number for each class, or it does not take such images.

    Examples:
        >>> inspection.class_scores(model, images).shape
        (4, 164)
    """
    probe = Probe(model)
    with no_gradients():
        return np.concatenate([to_numpy(_scores(probe, batch)) for batch in in_batches(images, batch_size)])


def saliency(model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Which pixels a class hangs on: the size of the gradient of its score (Simonyan et al., arXiv 1312.6034).

    Args:
        model: As in `class_scores`.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        classes: A class, or one for each image; None for the one that the model predicts.
        batch_size: Images computed at a time.

    Returns:
        float32 `(batch, height, width)`: the largest absolute derivative of the score over the channels, per unit of
        the image that the model takes (127.5 grey levels where it is scaled to [-1, 1]).

    Raises:
        TypeError, ValueError: as in `class_scores`, and if a class does not exist.

    Examples:
        >>> inspection.saliency(model, images).shape
        (4, 24, 24)
    """
    probe = Probe(model)
    maps = []
    for batch, chosen in _with_classes(probe, images, classes, batch_size):

        def total(tensors: list[Tensor], chosen: np.ndarray = chosen) -> Tensor:
            return _sum_of(_scores(probe, tensors[0]), chosen)

        (gradient,) = gradients(total, [batch])
        maps.append(np.abs(gradient).max(-1))
    return np.concatenate(maps)


def gradient_attention(
    model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """Which patches speak for a class: attention times its gradient, through all blocks.

    The relevance of Chefer et al. (arXiv 2103.15679, equations 5 and 6): the attention weights of a block are
    multiplied by the gradient of the class's score with respect to them; negative products become 0, the heads are
    averaged, and the sum of the identity and these matrices is multiplied through the blocks. Unlike attention rollout,
    it tells classes apart. The arguments that are not listed here are those of `saliency`, with a Vision Transformer.

    Returns:
        float32 `(batch, rows, columns)`, at least 0, in units of the score: the row of the token that the
        head reads, as in `attention_rollout`.

    Examples:
        >>> inspection.gradient_attention(model, images, classes=[0, 1, 2, 3]).shape
        (4, 6, 6)
    """
    probe = Probe(model, attention=True)
    config = probe.config
    blocks = all_blocks(config)
    layers = [block if block == POOLING else f"block_{block}" for block in blocks]
    maps = []
    for batch, chosen in _with_classes(probe, images, classes, batch_size):
        weights: list[np.ndarray] = []
        read_attention(probe, batch, blocks, len(batch), lambda _, read, weights=weights: weights.append(read))

        def total(offsets: list[Tensor], batch: np.ndarray = batch, chosen: np.ndarray = chosen) -> Tensor:
            calls = {layer: _with_offset(offset) for layer, offset in zip(layers, offsets, strict=True)}
            return _sum_of(_scores(probe, batch, calls), chosen)

        slopes = gradients(total, [np.zeros_like(values) for values in weights])
        products = [np.maximum(w * g, 0).mean(1) for w, g in zip(weights, slopes, strict=True)]
        relevance = np.eye(products[0].shape[-1])
        for product in products[: config.depth]:
            relevance = relevance + product @ relevance
        if config.pooling == "map":
            row = (products[-1] @ relevance[:, -products[-1].shape[-1] :])[:, 0]
        else:
            row = output_row(probe, relevance)
        maps.append(of_keys(probe, row).astype("float32"))
    return np.concatenate(maps)


def class_evidence(
    model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """The logit of a class for each patch by itself (big_vision's `logits_2d`).

    All that follows the pooling is applied to every encoded patch instead. Where a model averages its patches and has
    no tanh layer, the mean of the map is the logit of the image, exactly. With a class token or attention pooling, the
    head was never trained on patches: the map then shows which tokens are like those that it was trained on. The
    arguments that are not listed here are those of `saliency`; of a model around a Vision Transformer, pass the one
    inside if it has the head.

    Returns:
        float32 `(batch, rows, columns)`, logits.

    Raises:
        TypeError, ValueError: as in `saliency`; also if nothing pools the tokens, or the head reads several.

    Examples:
        >>> inspection.class_evidence(model, images, classes=7).shape
        (4, 6, 6)
    """
    probe = Probe(model)
    probe.check_all_tokens()
    if probe.config.pooling not in ("token", "avg", "map"):
        raise ValueError(
            f"{probe.inner.name} has pooling={probe.config.pooling!r}: there is no head that would fit a single patch."
        )

    def each_patch(layer: Any, tokens: Tensor) -> Tensor:
        if isinstance(probe.inner, BiT):
            return tokens
        rows, columns = probe.grid
        return keras.ops.reshape(tokens[:, -rows * columns :], (-1, rows, columns, tokens.shape[-1]))

    maps = []
    for batch, chosen in _with_classes(probe, images, classes, batch_size):
        with no_gradients():
            scores = probe.run(batch, _logits(probe) | dict.fromkeys(POOLING_LAYERS, each_patch))
        if len(scores.shape) != 4:
            raise ValueError(f"The head of {probe.model.name} has no output for single places, but {scores.shape}.")
        scores = to_numpy(scores).astype("float32")
        maps.append(np.take_along_axis(scores, chosen[:, None, None, None], -1)[..., 0])
    return np.concatenate(maps)


def _logits(probe: Probe) -> dict[str, Call]:
    """The calls that leave out the activation at the end."""
    return {"predictions": lambda layer, x: x} if probe.inner is probe.model else {}


def _scores(probe: Probe, images: Any, calls: dict[str, Call] | None = None) -> Tensor:
    """The outputs `(batch, classes)` of a model before its last activation; `calls` take the place of layers' own.

    Raises ValueError if the model has no head, or its output is not one number for each class and image.
    """
    if probe.inner is probe.model and not probe.config.classes:
        raise ValueError(f"{probe.inner.name} has no head, so that nothing speaks for a class.")
    scores = probe.run(images, _logits(probe) | (calls or {}))
    if len(getattr(scores, "shape", ())) != 2:
        raise ValueError(f"{probe.model.name} must have one number for each class and image, (batch, classes).")
    return scores


def _sum_of(scores: Tensor, classes: np.ndarray) -> Tensor:
    """The sum of one score for each image; the images do not touch each other, so its gradient is theirs."""
    chosen = np.eye(scores.shape[1], dtype="float32")[classes]
    return keras.ops.sum(keras.ops.cast(scores, "float32") * keras.ops.convert_to_tensor(chosen))


def _with_classes(
    probe: Probe, images: Any, classes: Classes, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of images with a class for each of them: those given, or the one with the largest score.

    Raises ValueError unless `classes` is one class of the model, or one for each image.
    """
    images = to_numpy(images)
    given = None if classes is None else np.asarray(classes)
    if given is not None and (given.dtype.kind not in "iu" or given.shape not in ((), images.shape[:1])):
        raise ValueError(
            f"classes must be a class, or one for each of the {len(images)} images, as integers, but {classes!r} "
            "was given."
        )
    start = 0
    for batch in in_batches(images, batch_size):
        with no_gradients():
            scores = to_numpy(_scores(probe, batch))
        if given is None:
            chosen = scores.argmax(1)
        else:
            chosen = np.broadcast_to(given, images.shape[:1])[start : start + len(batch)].astype("int64")
        if chosen.min() < 0 or chosen.max() >= scores.shape[1]:
            raise ValueError(f"classes must be from 0 to {scores.shape[1] - 1}, but {classes!r} was given.")
        start += len(batch)
        yield batch, chosen


def _with_offset(offset: Tensor) -> Call:
    """The call of a layer that adds `offset` to its attention weights."""
    return lambda layer, *args, **kwargs: layer(*args, attention_offset=offset, **kwargs)
