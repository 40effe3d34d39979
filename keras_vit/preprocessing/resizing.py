"""Pictures at another size, resampled as TensorFlow, big_vision or Pillow does it; all in NumPy."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._types import pair
from keras_vit.interpolation import interpolation_matrix
from keras_vit.preprocessing.pixels import as_pixels

# How `load_image` brings a picture to a size, and the share of each side that the crop keeps.
RESIZES = {
    "squash": None,  # vit_jax (input_pipeline.py): straight to the size, the aspect ratio is not kept
    "big_vision": 0.875,  # big_vision (pp/ops_image.py): resize_small by area, then central_crop
    "timm": 0.9,  # timm's evaluation of ViT: Pillow's bicubic resize of the short side, then the centre
}


@dataclasses.dataclass(frozen=True)
class Filter:
    """How a picture is resampled.

    Attributes:
        method: A name in `keras_vit.interpolation.METHODS`.
        whole: Whether integers stay integers, as in Pillow: rounded after the columns, and after the rows again.
    """

    method: str
    whole: bool = False


FILTERS: dict[str, Filter] = {
    "bilinear": Filter("bilinear"),  # tf.image.resize: vit_jax
    "bicubic": Filter("bicubic", whole=True),  # Pillow: timm, and nearly all of Hugging Face's processors
    "bilinear_pillow": Filter("bilinear_antialias", whole=True),  # Pillow: Hugging Face's ViT
    "bilinear_antialias": Filter("bilinear_antialias"),  # torchvision on floats: Hugging Face's DINOv3
}


def resize_images(images: Any, image_size: int | tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Scale images to a size, whatever their aspect ratio.

    Args:
        images: Integers or floats `(batch, height, width, channels)` or `(height, width, channels)`, with any
            number of channels.
        image_size: `(height, width)` in pixels, or an integer for a square.
        interpolation: One of `keras_vit.interpolation.METHODS`. The default is
            `tf.image.resize(method="bilinear")`, which the official code uses.

    Returns:
        float32 `(batch, *image_size, channels)` or `(*image_size, channels)`, in the range of the input and
        not rounded.

    Raises:
        ValueError: if `images` has another rank or no pixels, or an argument has an unknown value.
        TypeError: if `images` does not hold real numbers, or `image_size` has a wrong type.
    """
    images = as_pixels(images)
    if images.ndim not in (3, 4) or 0 in images.shape[-3:-1]:
        expected = "(batch, height, width, channels) or (height, width, channels), with pixels"
        raise ValueError(f"images must have shape {expected}, but {images.shape} was given.")
    height, width = pair("image_size", image_size)
    rows = interpolation_matrix(images.shape[-3], height, interpolation)
    columns = interpolation_matrix(images.shape[-2], width, interpolation)
    return _apply(rows, columns, images)


def resample(images: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """Scales images to a size with a filter of `FILTERS`.

    Args:
        images: `(..., height, width, channels)`, integers or floats.
        size: `(height, width)`.
        filter: A name in `FILTERS`.

    Returns:
        float32 `(..., *size, channels)`.
    """
    how = FILTERS[filter]
    rows = interpolation_matrix(images.shape[-3], size[0], how.method)
    columns = interpolation_matrix(images.shape[-2], size[1], how.method)
    if not (how.whole and images.dtype.kind in "iu"):
        return _apply(rows, columns, images)
    # Pillow's arithmetic: weights of 22 bits, columns first. Such sums are whole numbers that float64 holds exactly.
    for matrices in ((None, columns), (rows, None)):
        fixed = (None if m is None else np.trunc(m * 2**22 + np.copysign(0.5, m)) for m in matrices)
        images = np.clip(np.floor(_apply(*fixed, images, "float64") / 2**22 + 0.5), 0, 255)
    return images.astype("float32")


def resize_and_crop(
    images: np.ndarray, size: tuple[int, int], resize: str, crop_ratio: float, filter: str
) -> np.ndarray:
    """Scales images so that their centre has a size, and cuts it out.

    Args:
        images: `(..., height, width, channels)`, integers or floats.
        size: `(height, width)` of the result.
        resize: `"squash"`: straight to `size / crop_ratio`; `"shortest"`: to the least size that covers it with the
            images' own aspect ratio.
        crop_ratio: In (0, 1].
        filter: A name in `FILTERS`.

    Returns:
        float32 `(..., *size, channels)`.
    """
    target = _uncropped(size, crop_ratio)
    if resize == "shortest":
        target = covering_size(images.shape[-3:], size, crop_ratio, int)
    images = resample(images, target, filter)
    top, left = (round((have - keep) / 2) for have, keep in zip(target, size, strict=True))
    return images[..., top : top + size[0], left : left + size[1], :]


def _apply(
    rows: np.ndarray | None, columns: np.ndarray | None, images: np.ndarray, dtype: str = "float32"
) -> np.ndarray:
    """Multiply the height by `rows` and the width by `columns`, in a dtype; None for no change."""
    for matrix, axis in ((rows, -3), (columns, -2)):
        if matrix is None:
            continue
        # Without antialiasing a small copy of a large picture looks at few of its rows: take only those.
        used = np.flatnonzero(matrix.any(axis=0))
        images = np.take(images, used, axis=axis).astype(dtype, copy=False)
        images = np.tensordot(matrix[:, used].astype(dtype), images, axes=(1, axis))
        images = np.moveaxis(images, 0, axis)
    return np.ascontiguousarray(images)


def _area_matrix(old: int, new: int) -> np.ndarray:
    """The `(new, old)` matrix of means over areas: TensorFlow's `ResizeMethod.AREA`."""
    edges = np.arange(new + 1) * (old / new)
    pixel = np.arange(old)
    covered = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.maximum(covered, 0.0) / (old / new)


def resize_as_big_vision(pixels: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    """The short side scaled by means over areas, then the centre; whole numbers."""
    height, width = covering_size(pixels.shape, size, fraction, round)
    resized = _apply(_area_matrix(pixels.shape[0], height), _area_matrix(pixels.shape[1], width), pixels)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    # The original casts the means to uint8, which cuts off the fraction. The margin is for float32 means of
    # equal pixels that fall just short of a whole number.
    return np.floor(resized[top : top + size[0], left : left + size[1]] + 1e-3)


def resize_as_timm(pixels: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    """The short side scaled by Pillow's bicubic filter, then the centre; whole numbers."""
    from PIL import Image

    height, width = covering_size(pixels.shape, size, fraction, int)
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    return resized[top : top + size[0], left : left + size[1]].astype("float32")


def covering_size(
    shape: tuple[int, ...], size: tuple[int, int], fraction: float, whole: Callable[[float], int]
) -> tuple[int, int]:
    """The smallest size that keeps the aspect ratio and covers `size / fraction`; `whole` makes integers."""
    height, width = shape[:2]
    least_height, least_width = _uncropped(size, fraction)
    if least_height * width >= least_width * height:
        return least_height, whole(width * least_height / height)
    return whole(height * least_width / width), least_width


def _uncropped(size: tuple[int, int], fraction: float) -> tuple[int, int]:
    """What has to be there before a crop that keeps `fraction` of each side."""
    # The margin is for fractions such as 384 / 438, which are no float64.
    height, width = (math.floor(n / fraction + 1e-6) for n in size)
    return height, width
