"""What speaks for a class, pixels and patches, and which patches are alike to a model."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import Tensor, to_numpy, unit_vectors, whole_number
from keras_vit._keras import no_gradients
from keras_vit.inspection.attention import POOLING, all_blocks, of_keys, output_row, read_attention
from keras_vit.inspection.running import BATCH_SIZE, Call, ModelSource, Probe, gradients, in_batches
from keras_vit.models import BiT
from keras_vit.models.features import POOLINGS as POOLING_LAYERS

Classes = int | Sequence[int] | np.ndarray | None


def class_scores(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Returns the score of each class, before the activation: float32 `(batch, classes)`.

    These are logits; for a model around a Vision Transformer, its outputs as they are.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        batch_size: Images computed at a time.

    Raises:
        TypeError: if the model contains no model of this package, or the images are not numbers.
        ValueError: if it is damaged, contains several models or has no head with one number for each class, or images
            or `batch_size` do not fit.
        OSError: if the model's file is missing or cannot be read or fetched.

    Examples:
        >>> inspection.class_scores(model, images).shape
        (4, 164)
    """
    probe = Probe(model)
    with no_gradients():
        scores = [to_numpy(_scores(probe, batch)) for batch in in_batches(images, batch_size)]
    return np.concatenate(scores, dtype="float32")


def saliency(model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Returns how much each pixel affects the score of a class: the gradient's size (Simonyan, arXiv 1312.6034).

    It is float32 `(batch, height, width)`: the largest absolute derivative over the channels, per unit of the model's
    input (127.5 grey levels for images in [-1, 1]). `classes` is the index of a class, or one for each image; None: the
    predicted class. Other arguments and errors are as in `class_scores`.

    Examples:
        >>> inspection.saliency(model, images).shape
        (4, 24, 24)
    """
    probe = Probe(model)
    maps = []
    for batch, chosen in _with_classes(probe, images, classes, batch_size):
        (gradient,) = gradients(lambda tensors, chosen=chosen: _sum_of(_scores(probe, tensors[0]), chosen), [batch])
        maps.append(np.abs(gradient).max(-1))
    return np.concatenate(maps)


def gradient_attention(
    model: ModelSource, images: Any, classes: Classes = None, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """Returns how much each patch supports a class: attention times its gradient, through all blocks.

    The relevance of Chefer et al. (arXiv 2103.15679, equations 5 and 6). The attention weights of a block are
    multiplied by the score's gradient with respect to them, negative products become 0, and heads are averaged. The
    identity plus these matrices is multiplied through the blocks. Unlike attention rollout, the result depends on the
    class. It is float32 `(batch, rows, columns)`, at least 0, in units of the score, for the token that the head reads.
    Arguments are as in `saliency`, errors as in `saliency` and `attention_rollout`.

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
            calls: dict[str, Call] = {
                layer: lambda one, *args, offset=offset, **kwargs: one(*args, attention_offset=offset, **kwargs)
                for layer, offset in zip(layers, offsets, strict=True)
            }
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
    """Returns the logit of a class for each patch, float32 `(batch, rows, columns)` (big_vision's `logits_2d`).

    The layers after the pooling are applied to every encoded patch. If the model averages its patches and has no tanh
    layer, the mean of the map is exactly the logit of the image. With a class token or attention pooling, the head was
    not trained on patches. The map then shows which patches resemble the tokens that it was trained on. For a model
    around a Vision Transformer that has the head, pass the Vision Transformer inside.

    Arguments and errors are as in `saliency`; ValueError also for a model whose head reads all or several tokens.

    Examples:
        >>> inspection.class_evidence(model, images, classes=7).shape
        (4, 6, 6)
    """
    probe = Probe(model)
    probe.check_all_tokens()
    if probe.config.pooling not in ("token", "avg", "map"):
        raise ValueError(
            f"model must have pooling 'token', 'avg' or 'map', but {probe.inner.name} has "
            f"pooling={probe.config.pooling!r}, whose head does not fit a single patch."
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
            raise ValueError(f"The head of {probe.model.name} must have an output for each patch, not {scores.shape}.")
        scores = to_numpy(scores).astype("float32")
        maps.append(np.take_along_axis(scores, chosen[:, None, None, None], -1)[..., 0])
    return np.concatenate(maps)


def _logits(probe: Probe) -> dict[str, Call]:
    """The calls that leave out the activation at the end; none for a model inside another one."""
    return {"predictions": lambda layer, x: x} if probe.inner is probe.model else {}


def _scores(probe: Probe, images: Any, calls: dict[str, Call] | None = None) -> Tensor:
    """Returns the outputs `(batch, classes)` of a model before its last activation; `calls` replace those of layers."""
    if probe.inner is probe.model and not probe.config.classes:
        raise ValueError(f"{probe.inner.name} has no head, so it has no class scores. Load it with its head.")
    scores = probe.run(images, _logits(probe) | (calls or {}))
    if len(getattr(scores, "shape", ())) != 2:
        raise ValueError(f"{probe.model.name} must return scores (batch, classes), but its output is {scores.shape}.")
    return scores


def _sum_of(scores: Tensor, classes: np.ndarray) -> Tensor:
    chosen = np.eye(scores.shape[1], dtype="float32")[classes]
    return keras.ops.sum(keras.ops.cast(scores, "float32") * keras.ops.convert_to_tensor(chosen))


def _with_classes(
    probe: Probe, images: Any, classes: Classes, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of float32 images with an int64 class for each: those given, or the one with the largest score."""
    images = to_numpy(images)
    given = None if classes is None else np.asarray(classes)
    if given is not None and (given.dtype.kind not in "iu" or given.shape not in ((), images.shape[:1])):
        raise ValueError(f"classes must be an integer, or one for each of the {len(images)} images, not {classes!r}.")
    start = 0
    for batch in in_batches(images, batch_size):
        with no_gradients():
            scores = to_numpy(_scores(probe, batch))
        chosen = scores.argmax(1)
        if given is not None:
            chosen = np.broadcast_to(given, images.shape[:1])[start : start + len(batch)].astype("int64")
        if chosen.min() < 0 or chosen.max() >= scores.shape[1]:
            raise ValueError(f"classes must be from 0 to {scores.shape[1] - 1}, but {classes!r} was given.")
        start += len(batch)
        yield batch, chosen


# Which patches are alike


def nearest_patches(
    model: ModelSource,
    images: Any,
    patch: tuple[int, int, int],
    count: int = 12,
    *,
    layer: str = "encoder_norm",
    batch_size: int = BATCH_SIZE,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the patches of all images whose features are most similar to the features of a given patch.

    These are int64 `(count, 3)`, the image, row and column of each, best first; and float32 `(count,)`, their cosines.

    Args:
        model: As in `class_scores`, like `images`, `batch_size` and the errors.
        patch: Image, row and column of the given patch.
        count: Number of patches to find, from 1 to the number of patches minus 1.
        layer: Name of a layer with places, whose outputs are compared: a block such as `"block_5"`, or
            `"encoder_norm"`; for a BiT a unit such as `"block4_unit3"`. A model that was optimized for inference lacks
            patches (ValueError).

    Examples:
        >>> places, cosines = inspection.nearest_patches(model, images, patch=(0, 2, 3), count=5)
        >>> places.shape, cosines.shape
        ((5, 3), (5,))
    """
    features = _features(model, images, layer, batch_size)
    shape = features.shape[:3]
    place = tuple(map(int, patch))
    if place != tuple(patch) or len(place) != 3 or not all(0 <= i < n for i, n in zip(place, shape, strict=True)):
        raise ValueError(
            f"patch must be (image, row, column) of {shape[0]} images with {shape[1]} x {shape[2]} patches, but "
            f"{patch!r} was given."
        )
    total = features[..., 0].size
    if whole_number("count", count, 1) >= total:
        raise ValueError(f"count must be from 1 to {total - 1}, the other patches, but {count!r} was given.")
    features = unit_vectors(features.reshape(total, -1))
    given = np.ravel_multi_index(place, shape)
    cosines = features @ features[given]
    order = np.argsort(-cosines, kind="stable")
    order = order[order != given][:count]
    return np.stack(np.unravel_index(order, shape), 1), cosines[order]


def feature_map(
    model: ModelSource,
    images: Any,
    *,
    layer: str = "encoder_norm",
    foreground: bool = True,
    batch_size: int = BATCH_SIZE,
) -> np.ndarray:
    """Returns the patches of several images as colours: patches with similar features have similar colours.

    Colours are principal components over the patches of all images, as in DINOv2 (arXiv 2304.07193, section 7.5, Figure
    1). The first component separates the foreground: the patches above its mean, with the sign that puts fewer of them
    at the borders. The first three components of the foreground are red, green and blue, scaled from the least to the
    largest value; without `foreground`, these are components of all patches. The result is float32
    `(batch, rows, columns, 3)` of 0..1; the background and components without differences are 0.

    Arguments and errors are as in `class_scores`, `layer` as in `nearest_patches`.

    Examples:
        >>> inspection.feature_map(model, images).shape
        (4, 6, 6, 3)
    """
    features = _features(model, images, layer, batch_size).astype("float64")
    shape = features.shape[:3]
    vectors = features.reshape(-1, features.shape[-1])
    chosen = np.ones(len(vectors), bool)
    if foreground:
        first = _components(vectors, 1)[:, 0]
        inner = np.zeros(shape, bool)
        inner[:, 1:-1, 1:-1] = True
        if inner.any() and first[inner.ravel()].mean() < first[~inner.ravel()].mean():
            first = -first
        chosen = first > 0
    colours = np.zeros((len(vectors), 3))
    if chosen.any():
        values = _components(vectors[chosen], 3)
        values -= values.min(0)
        colours[chosen] = values / np.where(values.max(0) > 0, values.max(0), 1)
    return colours.reshape(*shape, 3).astype("float32")


def _components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Returns the first principal components `(n, count)` of float64 vectors `(n, D)`; 0 where these do not differ."""
    centred = vectors - vectors.mean(0)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    variances, axes = variances[::-1][:count], axes[:, ::-1][:, :count]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), range(axes.shape[1])] < 0, -1, 1)
    # What float32 features leave of rounding errors is not a component: their squares are below 1e-12 of the values'.
    real = variances > 1e-12 * max(float((vectors**2).sum()), 1e-30)
    result = np.zeros((len(vectors), count))
    result[:, : axes.shape[1]] = centred @ (axes * real)
    return result


def _features(model: ModelSource, images: Any, layer: str, batch_size: int) -> np.ndarray:
    """Returns a layer's output at each place of images, float32 `(batch, rows, columns, D)`."""
    probe = Probe(model)
    name = probe.inner.name
    names = [one.name for one in probe.inner.layers if not isinstance(one, keras.layers.InputLayer)]
    if layer not in names:
        raise ValueError(f"layer must be the name of a layer of {name}, one of {names}, but {layer!r} was given.")
    outputs: list[Tensor] = []

    def keep(one: Any, *args: Any, **kwargs: Any) -> Tensor:
        outputs.append(one(*args, **kwargs))
        return outputs[-1]

    maps = []
    with no_gradients():
        for batch in in_batches(images, batch_size):
            outputs.clear()
            probe.run(batch, {layer: keep})
            values = to_numpy(outputs[0]).astype("float32")
            if values.ndim not in (3, 4):
                raise ValueError(f"layer must return a map or tokens, but {layer!r} of {name} returns {values.shape}.")
            if values.ndim == 3 and values.shape[1] < probe.grid[0] * probe.grid[1]:
                probe.check_all_tokens()
            maps.append(probe.map(values) if values.ndim == 3 else values)
    return np.concatenate(maps)
