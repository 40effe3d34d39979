"""What speaks for a class: pixels, patches, and patches like a given one."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import Tensor, to_numpy
from keras_vit.inspection.attention import POOLING, all_blocks, answering_row, read_attention
from keras_vit.inspection.running import (
    BATCH_SIZE,
    Grid,
    ModelSource,
    check_all_tokens,
    find_model,
    find_transformer,
    gradients,
    in_batches,
    no_gradients,
    run,
)
from keras_vit.models import BiT
from keras_vit.models.features import POOLINGS as POOLING_LAYERS
from keras_vit.zoo import as_model

Classes = int | Sequence[int] | np.ndarray | None


def class_scores(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """What a model says of each class, before the activation of a `VisionTransformer` or `BiT`.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        batch_size: Images computed at a time.

    Returns:
        float32 `(batch, classes)`: logits; for a model around a Vision Transformer, its outputs as they are.

    Raises:
        TypeError: if the model has none of this package inside.
        ValueError: if it does not give one number for each class.

    Examples:
        >>> inspection.class_scores(model, images).shape
        (4, 164)
    """
    model = as_model(model)
    with no_gradients():
        return np.concatenate([to_numpy(_scores(model, batch)) for batch in in_batches(images, batch_size)])


def saliency(model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Which pixels a class hangs on: the size of the gradient of its score (Simonyan et al., arXiv 1312.6034).

    Args:
        model: As for `class_scores`.
        images: Likewise.
        classes: A class, or one for each image; None for the one that the model says.
        batch_size: Likewise.

    Returns:
        float32 `(batch, height, width)`: the largest absolute derivative of the score over the channels, per unit of
        the image that the model takes (127.5 grey levels where it is scaled to [-1, 1]).

    Raises:
        TypeError, ValueError: as for `class_scores`, and if a class does not exist.

    Examples:
        >>> inspection.saliency(model, images).shape
        (4, 24, 24)
    """
    model = as_model(model)
    maps = []
    for batch, chosen in _with_classes(model, images, classes, batch_size):

        def total(tensors: list[Tensor], chosen: np.ndarray = chosen) -> Tensor:
            return _sum_of(_scores(model, tensors[0]), chosen)

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
    it tells classes apart.

    Args:
        model: As for `class_scores`, with a Vision Transformer.
        images: Likewise.
        classes: A class, or one for each image; None for the one that the model says.
        batch_size: Likewise.

    Returns:
        float32 `(batch, rows, columns)`, at least 0, in units of the score: the row of the token that answers, as in
        `attention_rollout`.

    Raises:
        TypeError, ValueError: as for `saliency`.

    Examples:
        >>> inspection.gradient_attention(model, images, classes=[0, 1, 2, 3]).shape
        (4, 6, 6)
    """
    model = as_model(model)
    config, grid = find_transformer(model).config, Grid()
    blocks = all_blocks(config)
    places = [block if block == POOLING else f"block_{block}" for block in blocks]
    maps = []
    for batch, chosen in _with_classes(model, images, classes, batch_size):
        weights: list[np.ndarray] = []
        read_attention(
            model, batch, blocks, len(batch), lambda _, values, weights=weights: weights.append(values), grid
        )

        def total(offsets: list[Tensor], batch: np.ndarray = batch, chosen: np.ndarray = chosen) -> Tensor:
            calls = {place: _with_offset(offset) for place, offset in zip(places, offsets, strict=True)}
            return _sum_of(_scores(model, batch, calls), chosen)

        slopes = gradients(total, [np.zeros_like(values) for values in weights])
        products = [np.maximum(w * g, 0).mean(1) for w, g in zip(weights, slopes, strict=True)]
        relevance = np.eye(products[0].shape[-1])
        for product in products[: config.depth]:
            relevance = relevance + product @ relevance
        if config.pooling == "map":
            row = (products[-1] @ relevance[:, -products[-1].shape[-1] :])[:, 0]
        else:
            row = answering_row(config, relevance, grid)
        maps.append(grid.of_keys(row).astype("float32"))
    return np.concatenate(maps)


def class_evidence(
    model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """What the head says of each patch by itself (big_vision's `logits_2d`).

    All that follows the pooling is applied to every encoded patch instead. Where a model averages its patches and has
    no tanh layer, the mean of the map is the logit of the image, exactly. With a class token or attention pooling, the
    head was never trained on patches: the map then says where tokens look to the head like those that it knows.

    Args:
        model: As for `class_scores`; of a model around a Vision Transformer, pass the one inside if it has the head.
        images: Likewise.
        classes: A class, or one for each image; None for the one that the model says.
        batch_size: Likewise.

    Returns:
        float32 `(batch, rows, columns)`, logits.

    Raises:
        TypeError, ValueError: as for `saliency`; also if nothing pools the tokens, or the head reads more than one
            token.

    Examples:
        >>> inspection.class_evidence(model, images, classes=7).shape
        (4, 6, 6)
    """
    model = as_model(model)
    inner, grid = find_model(model), Grid()
    check_all_tokens(inner)
    if inner.config.pooling not in ("token", "avg", "map"):
        raise ValueError(
            f"{inner.name} has pooling={inner.config.pooling!r}: there is no head that would fit a single patch."
        )

    def each_place(layer: Any, tokens: Tensor) -> Tensor:
        if isinstance(inner, BiT):
            return tokens
        rows, columns = grid.size
        return keras.ops.reshape(tokens[:, -rows * columns :], (-1, rows, columns, tokens.shape[-1]))

    maps = []
    for batch, chosen in _with_classes(model, images, classes, batch_size):
        with no_gradients():
            scores = run(model, batch, _logits(model) | grid.calls | dict.fromkeys(POOLING_LAYERS, each_place))
        if len(scores.shape) != 4:
            raise ValueError(f"The head of {model.name} does not answer for single places, but gives {scores.shape}.")
        scores = to_numpy(scores).astype("float32")
        maps.append(np.take_along_axis(scores, chosen[:, None, None, None], -1)[..., 0])
    return np.concatenate(maps)


def nearest_patches(
    model: ModelSource,
    images: Any,
    patch: tuple[int, int, int],
    count: int = 12,
    *,
    layer: str = "encoder_norm",
    batch_size: int = BATCH_SIZE,
) -> tuple[np.ndarray, np.ndarray]:
    """The patches, among those of all images, that a model takes for most alike to a given one.

    Args:
        model: As for `class_scores`.
        images: Likewise: those that are searched, with the given one among them.
        patch: Image, row and column of the given patch.
        count: How many.
        layer: The layer whose outputs are compared, by their cosine: a block such as `"block_5"`, or `"encoder_norm"`;
            for a BiT a unit such as `"block4_unit3"`.
        batch_size: Likewise.

    Returns:
        int64 `(count, 3)`: image, row and column of each, the most alike first, without the given one; and float32
        `(count,)`: their cosines.

    Raises:
        TypeError: as for `class_scores`.
        ValueError: if there is no such patch or layer, or not as many patches.

    Examples:
        >>> places, cosines = inspection.nearest_patches(model, images, patch=(0, 2, 3), count=5)
        >>> places.shape, cosines.shape
        ((5, 3), (5,))
    """
    model = as_model(model)
    inner, grid = find_model(model), Grid()
    names = [one.name for one in inner.layers]
    if layer not in names:
        raise ValueError(f"layer must be the name of a layer of {inner.name}, one of {names}, but {layer!r} was given.")
    outputs: list[Tensor] = []

    def keep(one: Any, *args: Any, **kwargs: Any) -> Tensor:
        outputs.append(grid.calls[layer](one, *args, **kwargs) if layer in grid.calls else one(*args, **kwargs))
        return outputs[-1]

    maps = []
    with no_gradients():
        for batch in in_batches(images, batch_size):
            outputs.clear()
            run(model, batch, grid.calls | {layer: keep})
            values = to_numpy(outputs[0]).astype("float32")
            if values.ndim not in (3, 4):
                raise ValueError(f"layer {layer!r} of {inner.name} has no places: its output is {values.shape}.")
            if values.ndim == 3 and values.shape[1] < grid.size[0] * grid.size[1]:
                check_all_tokens(inner)
            maps.append(grid.map(values) if values.ndim == 3 else values)
    features = np.concatenate(maps)
    shape = features.shape[:3]
    place = tuple(int(i) for i in patch)
    if len(place) != 3 or not all(0 <= i < n for i, n in zip(place, shape, strict=True)):
        raise ValueError(
            f"patch must be (image, row, column) of {shape[0]} images with {shape[1]} x {shape[2]} patches, but "
            f"{patch!r} was given."
        )
    total = features[..., 0].size
    if not 1 <= count < total:
        raise ValueError(f"count must be from 1 to {total - 1}, the other patches, but {count!r} was given.")
    features = features.reshape(total, -1)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.where(lengths > 0, lengths, 1)
    given = np.ravel_multi_index(place, shape)
    cosines = features @ features[given]
    order = np.argsort(-cosines, kind="stable")
    order = order[order != given][:count]
    return np.stack(np.unravel_index(order, shape), 1), cosines[order]


def _logits(model: keras.Model) -> dict[str, Any]:
    """The calls that leave out the activation at the end."""
    return {"predictions": lambda layer, x: x} if find_model(model) is model else {}


def _scores(model: keras.Model, images: Any, calls: dict[str, Any] | None = None) -> Tensor:
    inner = find_model(model)
    if inner is model and not inner.config.classes:
        raise ValueError(f"{inner.name} has no head, so that nothing speaks for a class.")
    scores = run(model, images, _logits(model) | (calls or {}))
    if len(getattr(scores, "shape", ())) != 2:
        raise ValueError(f"{model.name} must give one number for each class and image, (batch, classes).")
    return scores


def _sum_of(scores: Tensor, classes: np.ndarray) -> Tensor:
    """The sum of one score for each image; the images do not touch each other, so its gradient is theirs."""
    chosen = np.eye(scores.shape[1], dtype="float32")[classes]
    return keras.ops.sum(keras.ops.cast(scores, "float32") * keras.ops.convert_to_tensor(chosen))


def _with_classes(model: keras.Model, images: Any, classes: Classes, batch_size: int) -> Any:
    """Batches, and a class for each of their images."""
    images = to_numpy(images)
    given = None if classes is None else np.asarray(classes)
    if given is not None:
        if given.dtype.kind not in "iu" or given.shape not in ((), images.shape[:1]):
            raise ValueError(
                f"classes must be a class, or one for each of the {len(images)} images, as integers, but {classes!r} "
                "was given."
            )
        given = np.broadcast_to(given, images.shape[:1])
    start = 0
    for batch in in_batches(images, batch_size):
        with no_gradients():
            scores = to_numpy(_scores(model, batch))
        chosen = scores.argmax(1) if given is None else given[start : start + len(batch)].astype("int64")
        if chosen.min() < 0 or chosen.max() >= scores.shape[1]:
            raise ValueError(f"classes must be from 0 to {scores.shape[1] - 1}, but {classes!r} was given.")
        start += len(batch)
        yield batch, chosen


def _with_offset(offset: Tensor) -> Any:
    return lambda layer, *args, **kwargs: layer(*args, attention_offset=offset, **kwargs)
