"""Which patches are alike to a model: those nearest to one, and all of several images as colours."""

from typing import Any

import numpy as np

from keras_vit._arguments import Tensor, to_numpy, unit_vectors
from keras_vit.inspection.running import BATCH_SIZE, ModelSource, Probe, in_batches, no_gradients


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
        model: As in `class_scores`.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        patch: The image, the row and the column of the given one.
        count: How many to find.
        layer: Name of the layer whose outputs are compared: a block such as `"block_5"`, or `"encoder_norm"`; for a
            BiT a unit such as `"block4_unit3"`.
        batch_size: Images computed at a time.

    Returns:
        int64 `(count, 3)`: image, row and column of each, the most alike first, without the given one; and float32
        `(count,)`: their cosines.

    Raises:
        TypeError: as in `class_scores`.
        ValueError: if the model does not take such images, or there is no such patch or layer, or not as many patches.

    Examples:
        >>> places, cosines = inspection.nearest_patches(model, images, patch=(0, 2, 3), count=5)
        >>> places.shape, cosines.shape
        ((5, 3), (5,))
    """
    features = _features(model, images, layer, batch_size)
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
    """The patches of several images as colours: what is alike has the same colour, in every image.

    Principal components over the patches of all images, as in DINOv2 (arXiv 2304.07193, section 7.5, Figure 1). The
    first component tells the foreground: the patches above its mean. The next three, of those patches alone, are red,
    green and blue, each from its least to its largest value. Signs are free in principal components: the foreground
    is the side that lies less along the borders of the images; a colour's largest weight is positive.

    Args:
        model: As in `class_scores`.
        images: A batch as the model takes it, `(batch, height, width, channels)`; colours hold within it.
        layer: As in `nearest_patches`.
        foreground: Whether the background is left out; otherwise the first three components of all patches.
        batch_size: Images computed at a time; the components are always those of all images.

    Returns:
        float32 `(batch, rows, columns, 3)`, red, green and blue of 0..1; the background is 0. Components in which the
        patches do not differ are 0.

    Raises:
        TypeError: as in `class_scores`.
        ValueError: if there is no such layer, or it has no places.

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
    """The first principal components of float64 vectors, `(n, count)`: 0 where the vectors do not differ."""
    centred = vectors - vectors.mean(0)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    variances, axes = variances[::-1][:count], axes[:, ::-1][:, :count]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), range(axes.shape[1])] < 0, -1, 1)
    # What float32 features leave of rounding errors is no component: their squares are below 1e-12 of the values'.
    real = variances > 1e-12 * max(float((vectors**2).sum()), 1e-30)
    result = np.zeros((len(vectors), count))
    result[:, : axes.shape[1]] = centred @ (axes * real)
    return result


def _features(model: ModelSource, images: Any, layer: str, batch_size: int) -> np.ndarray:
    """A layer's output at each place of images, float32 `(batch, rows, columns, D)`.

    Raises TypeError unless it is a model that can be looked into and the images are numbers, and ValueError if there is
    no such layer, its output has no places, or the images are none that the model takes.
    """
    probe = Probe(model)
    name = probe.inner.name
    names = [one.name for one in probe.inner.layers]
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
                raise ValueError(f"layer {layer!r} of {name} has no places: its output is {values.shape}.")
            if values.ndim == 3 and values.shape[1] < probe.grid[0] * probe.grid[1]:
                probe.check_all_tokens()
            maps.append(probe.map(values) if values.ndim == 3 else values)
    return np.concatenate(maps)
