"""Pictures at another size: in float32, or in whole numbers as Pillow, torchvision and OpenCV round them."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_vit.interpolation import LANCZOS, METHODS, NEAREST, Method, Samples, interpolation_matrix, neighbours


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
    """Images `(..., height, width, channels)` at a size, float32; ValueError if `method` is unknown."""
    for axis, new in ((-3, size[0]), (-2, size[1])):
        images = _along(axis, images, interpolation_matrix(images.shape[axis], new, method), "float32")
    return np.ascontiguousarray(images)


def filtered(images: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """Images `(batch, height, width, channels)` resized to `size` by a filter, a name in `FILTERS`; float32.

    By Pillow's filters, integers become whole numbers, exactly those of Pillow.
    """
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
    """A picture `(height, width, 3)` of uint8 at a size by Pillow, with one of its filters; ImportError without it."""
    from PIL import Image

    # Pillow 13 begins with the axis that shrinks more, older ones with the width, which may differ by a grey level, in
    # noise by up to 15: in two calls it is the width first.
    filter = Image.Resampling[name]
    image = Image.fromarray(pixels).resize((size[1], pixels.shape[0]), filter)
    return np.asarray(image.resize((size[1], size[0]), filter))


def torchvision_resized(pixels: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """A uint8 picture at a size as torchvision resizes tensors, by the name of an antialiased method in `METHODS`.

    Weights have 16 bits, where Pillow's have 22; columns first; to the same grey levels.
    """
    return _in_whole_numbers(pixels, size, method).astype("uint8")


def opencv_resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A uint8 picture at a size as `cv2.resize` does it by default: bilinear without antialiasing, 11 bits a weight."""
    (top, bottom, down), (left, right, across) = (
        neighbours(old, new, dtype="float32") for old, new in zip(pixels.shape[:2], size, strict=True)
    )
    low, high = (np.rint(2048 * share).astype("int32")[:, None] for share in (1 - across, across))
    rows = (pixels[:, left] * low + pixels[:, right] * high) >> 4
    low, high = (np.rint(2048 * share).astype("int32")[:, None, None] for share in (1 - down, down))
    return ((((rows[top] * low) >> 16) + ((rows[bottom] * high) >> 16) + 2) >> 2).astype("uint8")


def resample(pixels: np.ndarray, rows: Samples, columns: Samples) -> np.ndarray:
    """A picture `(height, width, channels)` as sums of samples, of rows and then of columns; float32.

    For parts of pictures in training: a matrix would be made anew for every crop.
    """
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
    """The sum of products, in the memory of the first factors: new memory takes longer than the arithmetic."""
    products = (np.multiply(values, weight, out=values) for values, weight in terms)
    return functools.reduce(lambda total, product: np.add(total, product, out=total), products)


def _in_whole_numbers(
    images: np.ndarray, size: tuple[int, int], method: str | Method, bits: int | None = None
) -> np.ndarray:
    """Integers `(..., height, width, channels)` at a size, as whole numbers in float64, rounded after each axis.

    Pillow's arithmetic: weights of 22 bits, columns first; without `bits` torchvision's, with as many as 16 bits hold.
    """
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
    """Images resampled along one axis by a matrix `(new, old)`."""
    # Without antialiasing a small copy of a large image looks at few of its rows: take only those.
    used = np.flatnonzero(matrix.any(axis=0))
    images = np.take(images, used, axis=axis).astype(dtype, copy=False)
    return np.moveaxis(np.tensordot(matrix[:, used].astype(dtype), images, axes=(1, axis)), 0, axis)
