"""Pixels of 0..255 in NumPy: checked, normalised as models take them, and brought to another size."""

import dataclasses
import functools
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit._arguments import pair, to_numpy
from keras_vit.interpolation import interpolation_matrix

# Bicubic and Lanczos filters overshoot: floats may lie outside 0..255, by half of the range at most.
OVERSHOOT = 128.0


def preprocess_input(images: Any, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.5) -> Any:
    """Normalise pixels of 0..255: `(images / 255 - mean) / std`, by default to [-1, 1].

    All official checkpoints were trained with values in [-1, 1]: `value_range(-1, 1)` in vit_jax and big_vision.
    Others were trained with the means and standard deviations of ImageNet or of their own data; the config of a
    model has them (`model.config.pixel_mean`, `pixel_std`), and `model.preprocess` uses them.

    Args:
        images: Values in 0..255 of any integer or float dtype, `(batch, height, width, 3)` or
            `(height, width, 3)`: a NumPy array, a list of equally large images, or a tensor of TensorFlow
            (also inside `tf.data` maps), JAX, torch or Keras (also symbolic).
        mean: What is subtracted from pixels of 0..1: a number, or one for each channel.
        std: What they are divided by then; likewise.

    Returns:
        float32 of the same shape: a tensor of the same kind for a tensor, otherwise a new NumPy array.

    Raises:
        ValueError: if the last dimension is not 3 or the rank is not 3 or 4, if the images of a list differ
            in size, if values are no pixels (see `check_pixels`; looked at in NumPy input only), or if `mean` or
            `std` have another length, or `std` is not above 0.
        TypeError: if the values are not real numbers.

    Warns:
        UserWarning: if NumPy floats all lie in [-1, 1]: they look scaled already.

    Examples:
        >>> keras_vit.preprocess_input(np.array([[[0, 255, 51]]], "uint8"))
        array([[[-1. ,  1. , -0.6]]], dtype=float32)
    """
    shift, scale = _in_grey_levels("mean", mean), _in_grey_levels("std", std)
    if np.min(scale) <= 0:
        raise ValueError(f"std must be above 0, but {std!r} was given.")
    if hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray):
        check_shape_and_dtype(images)
        return (_to_float32(images) - shift) / scale

    return normalized(check_pixels(images, stacklevel=3), mean, std)


def normalized(images: np.ndarray, mean: float | Sequence[float], std: float | Sequence[float]) -> np.ndarray:
    """`(images / 255 - mean) / std` in float32, as a new array; any number of channels, and nothing is checked."""
    pixels = images.astype("float32")
    pixels -= _in_grey_levels("mean", mean, None)
    pixels /= _in_grey_levels("std", std, None)
    return pixels


def _in_grey_levels(name: str, value: float | Sequence[float], channels: int | None = 3) -> Any:
    """255 times a number, or an array for each channel: a number wherever all are equal, which any tensor takes."""
    values = np.asarray(value, "float64")
    if values.ndim > 1 or not values.size or (values.ndim and values.size != 1 and channels not in (None, values.size)):
        raise ValueError(f"{name} must be a number or {channels}, one for each channel, but {value!r} was given.")
    if np.all(values == values.flat[0]):
        return 255 * float(values.flat[0])
    return (255 * values).astype("float32")


def check_pixels(
    images: Any,
    channels: int = 3,
    *,
    name: str = "images",
    item: Callable[[int], str] | None = None,
    scaled: str = "warn",
    stacklevel: int = 2,
) -> np.ndarray:
    """Images as an array of pixels in 0..255: the one check of pixels.

    Args:
        images: Values in 0..255, `(batch, height, width, channels)` or `(height, width, channels)`: an array, a
            tensor of any backend, or a list of equally large images.
        channels: How many there have to be.
        name: What the images are called in messages.
        item: From the number of an image to what it is called in messages; None for `"image 3 of images"`.
        scaled: What happens where all values lie in [-1, 1], or seem to be standardised: `"warn"`, or `"raise"`, which
            is for data that a model is trained on.
        stacklevel: Whose line a warning points at, as for `warnings.warn`; the caller's by default.

    Returns:
        The values in their own dtype.

    Raises:
        ValueError: if the shape is another one, the images of a list differ in size, integers lie outside 0..255,
            or floats are not finite or further outside than a resampling filter overshoots (`OVERSHOOT`).
        TypeError: if the values are not real numbers.

    Warns:
        UserWarning: if floats all lie in [-1, 1]: they look scaled already.
    """
    images = as_pixels(images, name)
    _check_channels(images.shape, channels, name)
    _check_range(images, name, item or (lambda i: f"image {i} of {name}"), scaled, stacklevel + 1)
    return images


def as_pixels(images: Any, name: str = "images") -> np.ndarray:
    """Images as an array of real numbers, in the byte order of the machine."""
    try:
        images = to_numpy(images)
    except Exception as error:  # Each framework has its own for tensors that have no values yet.
        if hasattr(images, "dtype"):
            raise TypeError(
                f"{name} must have values, but a symbolic tensor was given, {type(images).__name__}: NumPy resizes it. "
                "Call it before the compiled function or the functional model, which can take pixels of "
                "the right size with include_preprocessing=True."
            ) from error
        if not isinstance(error, ValueError):
            raise
        hint = "Resize each with load_image(file, image_size) or resize_images(image, image_size)."
        raise ValueError(f"{name} must be equally large to form a batch, but they differ. {hint}") from error
    check_dtype(images.dtype, name)
    return images


def check_dtype(dtype: Any, name: str = "images") -> None:
    """Raises TypeError unless a dtype of any framework is one of real numbers; `name` is said of what has it."""
    # They are called so in every framework: "uint8", "torch.float16", "<dtype: 'bfloat16'>".
    if "int" not in str(dtype) and "float" not in str(dtype):
        raise TypeError(f"{name} must hold integers or floats in 0..255, but the dtype is {dtype}.")


def channel_hint(shape: tuple[int | None, ...], channels: int = 3) -> str:
    """What to do about images `(..., height, width, channels)` with other channels, after a space; empty if unknown."""
    if shape[-3] == channels:
        return " The channels seem to come first: move them with numpy.moveaxis(images, -3, -1)."
    hints = {1: " Repeat the grey channel: numpy.repeat(images, 3, -1).", 4: " Drop alpha: images[..., :3]."}
    return hints.get(shape[-1] or 0, "") if channels == 3 else ""


def check_shape_and_dtype(tensor: Any, channels: int = 3) -> None:
    """What can be checked of a tensor of any framework that has no values yet, or whose values stay where they are."""
    check_dtype(tensor.dtype)
    _check_channels(tensor.shape, channels)


def _check_channels(shape: Any, channels: int = 3, name: str = "images") -> None:
    if getattr(shape, "rank", 0) is None:  # A TensorFlow tensor of unknown rank.
        return
    shape = tuple(shape)
    if len(shape) in (3, 4) and shape[-1] in (channels, None):
        return
    hint = channel_hint(shape, channels) if len(shape) in (3, 4) else ""
    expected = f"(batch, height, width, {channels}) or (height, width, {channels})"
    raise ValueError(f"{name} must have shape {expected}, but {shape} was given.{hint}")


def _check_range(images: np.ndarray, name: str, item: Callable[[int], str], scaled: str, stacklevel: int) -> None:
    is_integer = images.dtype.kind in "iu"
    if not images.size or (images.dtype == "uint8" and (scaled == "warn" or images.max() > 1)):
        return
    batch = images.reshape(-1, *images.shape[-3:])
    least, most = (values.astype("float64") for values in (batch.min((1, 2, 3)), batch.max((1, 2, 3))))
    lowest, highest = least.min(), most.max()
    wrong = ~np.isfinite(least + most)
    if wrong.any():
        first = item(int(np.argmax(wrong)))
        raise ValueError(f"{name} must hold values in 0..255, but {first} holds NaN or infinite values.")
    reach = f"{name} must hold values in 0..255, but they reach from {lowest:.6g} to {highest:.6g}"
    is_scaled = highest <= 1 and lowest >= -1 and (lowest, highest) != (0, 0)
    if is_scaled and scaled == "raise":
        advice = "(images + 1) * 127.5" if lowest < 0 else "images * 255"
        raise ValueError(f"{reach}: they seem to be scaled already. Give {advice}.")
    if scaled == "raise" and lowest < 0 and highest < 16:
        raise ValueError(f"{reach}: they seem to be standardised. Leave that out.")
    margin = 0 if is_integer else OVERSHOOT
    wrong = (least < -margin) | (most > 255 + margin)
    if wrong.any():
        raise ValueError(f"{reach}. The first of them is {item(int(np.argmax(wrong)))}. Scale them first.")
    if is_scaled and not is_integer:
        warnings.warn(
            f"values in 0..255 are expected, but these floats lie between {lowest:.3g} and {highest:.3g}. Multiply "
            "values in [0, 1] by 255; leave the preprocessing out if they are in [-1, 1] already.",
            stacklevel=stacklevel,
        )


def _to_float32(tensor: Any) -> Any:
    """Cast a tensor of any framework without importing one that is not loaded."""
    framework = type(tensor).__module__.partition(".")[0]
    if framework == "tensorflow":
        return sys.modules["tensorflow"].cast(tensor, "float32")
    if framework == "keras":
        return sys.modules["keras"].ops.cast(tensor, "float32")
    return tensor.float() if hasattr(tensor, "detach") else tensor.astype("float32")  # torch, or JAX


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
        matrix: From the old and the new number of samples along an axis to the matrix that resamples them.
        whole: Whether integers stay integers, as in Pillow: rounded after the columns, and after the rows again.
    """

    matrix: Callable[[int, int], np.ndarray]
    whole: bool = False


def _matrices(method: str) -> Callable[[int, int], np.ndarray]:
    return functools.partial(interpolation_matrix, method=method)


def _nearest_matrix(old: int, new: int) -> np.ndarray:
    """Pillow's nearest neighbour, which adds up the positions one by one, rounding errors included."""
    step = old / new
    positions = np.cumsum([0.5 * step, *[step] * (new - 1)])
    return np.eye(old)[np.minimum(positions.astype("int64"), old - 1)]


def _lanczos_matrix(old: int, new: int) -> np.ndarray:
    """Lanczos's filter over three samples, widened where a picture shrinks: Pillow's."""
    distance = (np.arange(new)[:, None] + 0.5) * (old / new) - (np.arange(old) + 0.5)
    distance /= max(old / new, 1.0)
    weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


FILTERS: dict[str, Filter] = {
    "bilinear": Filter(_matrices("bilinear")),  # tf.image.resize: vit_jax
    "bicubic": Filter(_matrices("bicubic"), whole=True),  # Pillow: timm, and nearly all of Hugging Face's processors
    "bilinear_pillow": Filter(_matrices("bilinear_antialias"), whole=True),  # Pillow: Hugging Face's ViT
    "bilinear_antialias": Filter(_matrices("bilinear_antialias")),  # torchvision on floats: Hugging Face's DINOv3
    "nearest": Filter(_nearest_matrix, whole=True),  # Pillow
    "lanczos": Filter(_lanczos_matrix, whole=True),  # Pillow
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
    """Images `(..., height, width, channels)` at a size, float32, by a filter of `FILTERS`."""
    how = FILTERS[filter]
    rows, columns = how.matrix(images.shape[-3], size[0]), how.matrix(images.shape[-2], size[1])
    if not (how.whole and images.dtype.kind in "iu"):
        return _apply(rows, columns, images)
    # Pillow's arithmetic: weights of 22 bits, columns first. Such sums are whole numbers that float64 holds exactly.
    # Pillow 13 begins with the rows where that is less work, such as where the height shrinks and the width grows. What
    # is rounded and cut off at 0 and 255 in between then differs by a grey level, in noise of 700 x 33 pixels by up to
    # 15; all versions before, and torchvision, begin with the columns.
    for matrices in ((None, columns), (rows, None)):
        fixed = (None if m is None else np.trunc(m * 2**22 + np.copysign(0.5, m)) for m in matrices)
        images = np.clip(np.floor(_apply(*fixed, images, "float64") / 2**22 + 0.5), 0, 255)
    return images.astype("float32")


def resize_and_crop(
    images: np.ndarray, size: tuple[int, int], resize: str, crop_ratio: float, filter: str
) -> np.ndarray:
    """Images `(..., height, width, channels)` scaled so that their centre has a size, and cut: see `Pipeline`."""
    target = _uncropped(size, crop_ratio)
    if resize == "shortest":
        # torchvision cuts off the fraction; timm, which has a class of its own for what is no square, rounds it.
        target = covering_size(images.shape[-3:], size, crop_ratio, int if target[0] == target[1] else round)
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


def bring_to_size(
    pixels: np.ndarray,
    size: tuple[int, int],
    resize: str = "squash",
    interpolation: str = "bilinear",
    crop_fraction: float | None = None,
) -> np.ndarray:
    """One picture `(height, width, 3)` at a size, float32, in one of the ways of `RESIZES`: see `load_image`."""
    if resize == "squash":
        return resize_images(pixels, size, interpolation)
    if pixels.dtype != np.uint8:
        pixels = np.clip(np.round(pixels), 0, 255).astype("uint8")
    fraction = crop_fraction or RESIZES[resize] or 1.0
    if resize == "timm":
        from PIL import Image

        height, width = covering_size(pixels.shape, size, fraction, int)
        resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
        top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
        return resized[top : top + size[0], left : left + size[1]].astype("float32")
    height, width = covering_size(pixels.shape, size, fraction, round)
    resized = _apply(_area_matrix(pixels.shape[0], height), _area_matrix(pixels.shape[1], width), pixels)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    # The original casts the means to uint8, which cuts off the fraction. The margin is for float32 means of
    # equal pixels that fall just short of a whole number.
    return np.floor(resized[top : top + size[0], left : left + size[1]] + 1e-3)


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
