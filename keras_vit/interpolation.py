"""Resampling by every rule that models and pictures need: along one axis, and pictures as other libraries do it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

FLIPPED = slice(None, None, -1)


class Samples(NamedTuple):
    """Which old samples each new one is made of, and their weights, both `(samples, new)`."""

    indices: np.ndarray
    weights: np.ndarray

    def part(self, new: slice) -> "Samples":
        """Returns the `Samples` of some of the new samples."""
        return Samples(self.indices[:, new], self.weights[:, new])


@dataclasses.dataclass(frozen=True)
class Method:
    """How samples are interpolated. The kernels "area" and "nearest" have no options."""

    kernel: str  # "linear", "cubic", "lanczos" (over three samples), "area" (means) or "nearest"
    aligned: bool = False  # the first and last samples stay where they are; else all are centres of equal parts
    antialias: bool = False  # the kernel is widened when there are fewer samples than before
    sharpness: float = -0.5  # the parameter a of Keys' cubic kernel
    clamped: bool = False  # beyond the ends the outermost samples count again; else nothing does
    offset: float = 0.0  # added to the number of new samples in the distance between them


METHODS: dict[str, Method] = {
    "official": Method("linear", aligned=True),  # scipy.ndimage.zoom(order=1): vit_jax and big_vision
    "bilinear": Method("linear"),  # as tf.image.resize
    "bilinear_antialias": Method("linear", antialias=True),  # as jax.image.resize(method="linear")
    "bicubic": Method("cubic", antialias=True),  # Pillow and timm; DINOv2 with registers
    # torch's interpolate(mode="bicubic"): Hugging Face's models, and Facebook's code of MAE.
    "bicubic_hf": Method("cubic", sharpness=-0.75, clamped=True),
    # The same called with scale_factor=(new + 0.1) / old: Facebook's code of DINO, and of DINOv2 without registers.
    "bicubic_offset": Method("cubic", sharpness=-0.75, clamped=True, offset=0.1),
}
# What pictures are resized by besides.
NEAREST = Method("nearest")  # Pillow's
LANCZOS = Method("lanczos", antialias=True)  # Pillow's
AREA = Method("area")  # TensorFlow's ResizeMethod.AREA


def interpolation_matrix(old: int, new: Any, method: str | Method = "official", xp: ModuleType = np) -> Any:
    """Returns the matrix that resamples `old` samples to `new` along one axis."""
    method = _method(method)
    if method.kernel == "nearest":
        # Pillow adds up the positions one by one, rounding errors included.
        positions = np.cumsum([0.5 * old / new, *[old / new] * (new - 1)])
        return np.eye(old)[np.minimum(positions.astype("int64"), old - 1)]
    if method.kernel == "area":
        matrix = np.zeros((new, old))
        indices, weights = area_samples(old, new)
        np.add.at(matrix, (np.arange(new), indices), weights)
        return matrix
    dtype = _dtype(xp)
    width = xp.maximum(old / _cast(new, dtype, xp), 1.0) if method.antialias else 1.0
    # Two samples beyond each end are as far as a cubic kernel reaches.
    source = xp.arange(-2, old + 2, dtype=dtype) if method.clamped else xp.arange(old, dtype=dtype)
    centres = _centres(old, new, method.aligned, xp, method.offset)
    distance = xp.abs(centres[:, None] - source[None, :]) / width
    if method.kernel == "linear":
        weights = xp.maximum(1.0 - distance, 0.0)
    elif method.kernel == "lanczos":
        weights = np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    else:
        weights = _keys_cubic(distance, xp, method.sharpness)
    if method.clamped:
        fold = np.eye(old, dtype=dtype)[np.clip(np.arange(-2, old + 2), 0, old - 1)]
        weights = xp.matmul(weights, fold)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def interpolation_matrices(
    old: tuple[int, int], new: tuple[Any, Any], method: str = "official", xp: ModuleType = np
) -> tuple[Any, Any]:
    """Returns the two matrices of `interpolation_matrix` for rows and columns of a grid; ValueError as there."""
    how = _method(method)
    if how.offset:
        # The original code does not resize a grid that is right already; where one axis is, it resamples both.
        changed = 1.0 - _equal(old[0], new[0], xp) * _equal(old[1], new[1], xp)
        how = dataclasses.replace(how, offset=how.offset * changed)
    return interpolation_matrix(old[0], new[0], how, xp), interpolation_matrix(old[1], new[1], how, xp)


def neighbours(
    old: Any, new: Any, aligned: bool = False, xp: ModuleType = np, dtype: str | None = None
) -> tuple[Any, Any, Any]:
    """Returns the two old samples around each new one, int32, and the share of the second in a linear mean of both."""
    old = old if isinstance(old, int) else _cast(old, _dtype(xp), xp)
    at = _centres(old, new, aligned, xp)
    at = at if dtype is None else at.astype(dtype)
    low = xp.floor(at)
    first, second = (_cast(xp.minimum(xp.maximum(index, 0), old - 1), "int32", xp) for index in (low, low + 1))
    return first, second, at - low


def linear_samples(old: int, new: int) -> Samples:
    """Returns a bilinear resize along one axis: the two old samples around each new one, and their weights."""
    first, second, share = neighbours(old, new)
    return Samples(np.stack([first, second]), np.stack([1 - share, share]))


def area_samples(old: int, new: int) -> Samples:
    """Returns all old samples that each new one covers, weighted by how much of them it does."""
    edges = np.arange(new + 1) * (old / new)
    indices = np.floor(edges[:-1]) + np.arange(math.ceil(old / new) + 1)[:, None]
    covered = np.minimum(edges[1:], indices + 1) - np.maximum(edges[:-1], indices)
    return Samples(np.minimum(indices, old - 1).astype("int32"), np.maximum(covered, 0) / (old / new))


def _method(name: str | Method) -> Method:
    """Returns the method of a name in `METHODS`, or the method itself; ValueError for an unknown name."""
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {name!r} was given.")
    return METHODS[name]


def _centres(old: Any, new: Any, aligned: bool, xp: ModuleType, offset: Any = 0.0) -> Any:
    """Returns where each new sample is read, counted in old samples: `(new,)`, which may lie outside them."""
    dtype = _dtype(xp)
    size, target = _cast(new, dtype, xp), _cast(xp.arange(new), dtype, xp)
    if aligned:
        # A single sample is read from the first corner, as scipy does.
        return target * ((old - 1) / xp.maximum(size - 1, 1))
    return (target + 0.5) * (old / (size + offset)) - 0.5


def _dtype(xp: ModuleType) -> str:
    """Returns the dtype of the arithmetic: "float64" for NumPy, "float32" for `keras.ops`."""
    return "float64" if xp is np else "float32"


def _cast(x: Any, dtype: Any, xp: ModuleType) -> Any:
    """Returns a number, an array or a tensor in a dtype."""
    return np.asarray(x, dtype) if xp is np else xp.cast(x, dtype)


def _equal(old: int, new: Any, xp: ModuleType) -> Any:
    """Returns 1 where both are equal, else 0, as a number or, for tensors, a scalar tensor."""
    return float(old == new) if isinstance(new, int) or xp is np else xp.cast(xp.equal(new, old), "float32")


def _keys_cubic(t: Any, xp: ModuleType, a: float) -> Any:
    """Returns Keys' cubic convolution kernel (1981) with the parameter `a` at distances `t >= 0`."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return xp.where(t < 1, near, xp.where(t < 2, far, xp.zeros_like(t)))


def resize_table(table: Any, old: tuple[int, int], new: tuple[Any, Any], method: str, xp: Any = np) -> Any:
    """Returns a table of position embeddings resized from one grid to another, in its dtype; the prefix is kept.

    Args:
        table: `(1, prefix + old rows * old columns, D)`, a NumPy array or, with `xp=keras.ops`, a tensor.
        old: Rows and columns of the grid that the table was made for.
        new: Rows and columns wanted; may be scalar tensors with `xp=keras.ops`.
        method: A name in `keras_vit.interpolation.METHODS`; ValueError for another.
        xp: `numpy` (interpolates in float64) or `keras.ops` (in float32).

    Examples:
        >>> layers.resize_table(np.zeros((1, 1 + 4, 8), "float32"), (2, 2), (3, 4), "official").shape
        (1, 13, 8)
    """
    prefix, width = table.shape[1] - old[0] * old[1], table.shape[2]
    by_row, by_column = interpolation_matrices(old, new, method, xp)
    grid = _cast(xp.reshape(table[0, prefix:], (*old, width)), by_row.dtype, xp)
    grid = xp.reshape(xp.einsum("hi,wj,ijd->hwd", by_row, by_column, grid), (1, -1, width))
    return xp.concatenate([table[:, :prefix], _cast(grid, table.dtype, xp)], axis=1)


def resize_patch_kernel(kernel: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Returns the `kernel` of a patch embedding for another `patch_size`: `(*patch_size, channels, D)`, in its dtype.

    By FlexiViT's pseudo-inverse (arXiv 2212.08013, section 3.4; `resample_patchemb` in big_vision): where B resizes
    patches bilinearly, the new kernel is `pinv(B^T) w`, computed in float64. For a larger patch size this makes a
    resized patch yield exactly the embedding of the original one; for a smaller one it is the nearest to that on
    average.

    Examples:
        >>> layers.resize_patch_kernel(np.zeros((4, 4, 3, 8), "float32"), (6, 6)).shape
        (6, 6, 3, 8)
    """
    # B is the Kronecker product of what it does to rows and to columns, and so is the pseudo-inverse.
    by_row, by_column = (
        np.linalg.pinv(interpolation_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    resized = np.einsum("hi,wj,ijcd->hwcd", by_row, by_column, kernel.astype("float64"), optimize=True)
    return resized.astype(kernel.dtype)


# Pictures, as Pillow, torchvision and OpenCV resize them


class Filter(NamedTuple):
    """How images change size."""

    method: Method
    # The name of Pillow's filter where integers are resized as Pillow does it: rounded after the width, and again after
    # the height. None: results are not rounded.
    pillow: str | None


FILTERS: dict[str, Filter] = {
    "bilinear": Filter(METHODS["bilinear"], None),  # tf.image.resize: vit_jax
    "bicubic": Filter(METHODS["bicubic"], "BICUBIC"),  # timm, and nearly all of Hugging Face's processors
    "bilinear_pillow": Filter(METHODS["bilinear_antialias"], "BILINEAR"),  # Hugging Face's ViT
    "bilinear_antialias": Filter(METHODS["bilinear_antialias"], None),  # torchvision on floats: Hugging Face's DINOv3
    "nearest": Filter(NEAREST, "NEAREST"),
    "lanczos": Filter(LANCZOS, "LANCZOS"),
}
_PILLOW_BITS = 22  # of Pillow's weights, which are integers
STRIP = 112  # rows that are resampled at a time, so that they stay in a processor's cache between steps


def resampled(images: np.ndarray, size: tuple[int, int], method: str | Method) -> np.ndarray:
    """Returns images `(..., height, width, channels)` at a size, float32; ValueError if `method` is unknown."""
    for axis, new in ((-3, size[0]), (-2, size[1])):
        images = _along(axis, images, interpolation_matrix(images.shape[axis], new, method), "float32")
    return np.ascontiguousarray(images)


def resized(pixels: np.ndarray, size: tuple[int, int], like: str) -> np.ndarray:
    """Returns pictures `([batch,] height, width, channels)` at a size as another library resizes them, float32.

    `like` is a checked name: in `FILTERS`, of Pillow, where integers stay whole numbers, or TensorFlow; in `METHODS`;
    or in `LIBRARIES`, which resize bytes in arithmetic of their own, and other values by a filter.
    """
    of_bytes, like = LIBRARIES.get(like, (None, like))
    if of_bytes is not None and pixels.dtype == np.uint8:
        return of_bytes(pixels, size).astype("float32")
    if like not in FILTERS:
        return resampled(pixels, size, like)
    made = filtered(pixels if pixels.ndim == 4 else pixels[None], size, like)
    return made if pixels.ndim == 4 else made[0]


def filtered(images: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """Returns images `(batch, height, width, channels)` at a size by a filter, a checked name in `FILTERS`; float32."""
    # By Pillow's filters, integers become whole numbers, exactly those of Pillow, which need not be installed.
    method, pillow = FILTERS[filter]
    if pillow is None or images.dtype.kind not in "iu":
        return resampled(images, size, method)
    if images.dtype == np.uint8 and images.shape[-1] == 3:
        try:
            return np.stack([pillow_resized(image, size, pillow) for image in images]).astype("float32")
        except ImportError:  # Without Pillow, our arithmetic returns the same, in six to nine times the time.
            pass
    return _in_whole_numbers(images, size, method, _PILLOW_BITS).astype("float32")


def pillow_resized(pixels: np.ndarray, size: tuple[int, int], name: str) -> np.ndarray:
    """A picture `(height, width, 3)` of uint8 at a size by Pillow, with one of its filters, such as "BICUBIC"."""
    from PIL import Image

    # Pillow 13 begins with the axis that shrinks more, older ones with the width, which may differ by a grey level, in
    # noise by up to 15: in two calls it is the width first.
    filter = Image.Resampling[name]
    image = Image.fromarray(pixels).resize((size[1], pixels.shape[0]), filter)
    return np.asarray(image.resize((size[1], size[0]), filter))


def torchvision_resized(pixels: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """Returns a uint8 picture `(height, width, channels)` at a size as torchvision resizes tensors."""
    # Weights have 16 bits, where Pillow's have 22; columns first; to the same grey levels.
    return _in_whole_numbers(pixels, size, method).astype("uint8")


def opencv_resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A uint8 picture at a size as `cv2.resize` does by default: bilinear, not antialiased, in whole numbers."""
    # Columns are weighted first, and OpenCV drops 4 of their bits; then rows, of which it drops 16, and rounds the sum
    # by the last two.
    (top, bottom, down), (left, right, across) = (
        neighbours(old, new, dtype="float32") for old, new in zip(pixels.shape[:2], size, strict=True)
    )
    low, high = (np.rint(2048 * share).astype("int32")[:, None] for share in (1 - across, across))
    rows = (pixels[:, left] * low + pixels[:, right] * high) >> 4
    low, high = (np.rint(2048 * share).astype("int32")[:, None, None] for share in (1 - down, down))
    return ((((rows[top] * low) >> 16) + ((rows[bottom] * high) >> 16) + 2) >> 2).astype("uint8")


def opencv_scaled(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A uint8 picture as `cv2.resize` by INTER_AREA, or by INTER_CUBIC if a side grows."""
    # In floats, rounded half to even; OpenCV's whole numbers may differ by a grey level.
    grows = any(new > old for old, new in zip(pixels.shape[:2], size, strict=True))
    return np.clip(np.rint(resampled(pixels, size, METHODS["bicubic_hf"] if grows else AREA)), 0, 255).astype("uint8")


# How libraries resize bytes, and the filter for other values.
LIBRARIES: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "opencv": (opencv_resized, "bilinear"),
    "opencv_scaled": (opencv_scaled, "bicubic"),
    "torchvision_bilinear": (functools.partial(torchvision_resized, method="bilinear_antialias"), "bilinear_antialias"),
    "torchvision_bicubic": (functools.partial(torchvision_resized, method="bicubic"), "bicubic"),
}


def resample(pixels: np.ndarray, rows: Samples, columns: Samples) -> np.ndarray:
    """Returns a picture `(height, width, channels)` as sums of samples, of rows and then of columns; float32."""
    # For parts of pictures in training: a matrix would be made again for every crop.
    # Columns are taken by flat index, which NumPy copies without a loop over pixels of three bytes.
    count = pixels.shape[-1]
    flat = np.ascontiguousarray(pixels).reshape(len(pixels), -1)
    places = [(index[:, None] * count + np.arange(count)).ravel() for index in columns.indices]
    row_weights, column_weights = (part.weights.astype("float32") for part in (rows, columns))
    column_weights = np.repeat(column_weights, count, axis=1)
    image = np.empty((row_weights.shape[1], column_weights.shape[1]), "float32")
    for start in range(0, len(image), STRIP):
        part = slice(start, start + STRIP)
        taken = zip(rows.indices[:, part], row_weights[:, part], strict=True)
        strip = _weighted((flat[index].astype("float32"), weight[:, None]) for index, weight in taken)
        taken = zip(places, column_weights, strict=True)
        image[part] = _weighted((strip.take(place, axis=1), weight) for place, weight in taken)
    return image.reshape(len(image), -1, count)


def _weighted(terms: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns the sum of products of values and weights; writes over the values, which saves new memory."""
    products = (np.multiply(values, weight, out=values) for values, weight in terms)
    return functools.reduce(lambda total, product: np.add(total, product, out=total), products)


def _in_whole_numbers(
    images: np.ndarray, size: tuple[int, int], method: str | Method, bits: int | None = None
) -> np.ndarray:
    """Integers `(..., height, width, channels)` at a size: whole numbers in float64, rounded after each axis."""
    # Pillow's arithmetic: weights of 22 bits, columns first; without `bits` torchvision's, with as many as 16 bits
    # hold.
    # Such sums are whole numbers that float64 holds exactly. Values of other channels than three may reach beyond 255:
    # they are clipped to the range of their type.
    least, most = (0, 255) if images.shape[-1] == 3 else (np.iinfo(images.dtype).min, np.iinfo(images.dtype).max)
    for axis, new in ((-2, size[1]), (-3, size[0])):
        weights = interpolation_matrix(images.shape[axis], new, method)
        scale = 2 ** (bits or max(n for n in range(23) if int(0.5 + weights.max() * 2**n) < 2**15))
        fixed = np.trunc(weights * scale + np.copysign(0.5, weights))
        images = np.clip(np.floor(_along(axis, images, fixed, "float64") / scale + 0.5), least, most)
    return images


def _along(axis: int, images: np.ndarray, matrix: np.ndarray, dtype: str) -> np.ndarray:
    """Returns images resampled along one axis by a matrix `(new, old)`, in a float dtype."""
    # Without antialiasing a small copy of a large image looks at few of its rows: take only those.
    used = np.flatnonzero(matrix.any(axis=0))
    images = np.take(images, used, axis=axis).astype(dtype, copy=False)
    return np.moveaxis(np.tensordot(matrix[:, used].astype(dtype), images, axes=(1, axis)), 0, axis)


def blurred(image: np.ndarray, axis: int, sigma: float, margins: Literal["edge", "reflect"]) -> np.ndarray:
    """Returns a picture blurred along an axis by a Gaussian over three deviations; `margins` as in `numpy.pad`."""
    radius = math.ceil(3 * sigma)
    if not radius:
        return image
    kernel = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).astype("float32")
    padded = np.pad(image, [(radius, radius) if i == axis else (0, 0) for i in range(3)], margins)
    parts = (padded.take(range(i, i + image.shape[axis]), axis) * share for i, share in enumerate(kernel))
    return sum(parts, np.zeros((), "float32"))
