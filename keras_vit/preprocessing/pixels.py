"""Pixels of 0..255, checked, and normalised as models take them."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._arrays import to_numpy

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
    """
    shift, scale = _in_grey_levels("mean", mean), _in_grey_levels("std", std)
    if np.min(scale) <= 0:
        raise ValueError(f"std must be above 0, but {std!r} was given.")
    if hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray):
        _check_dtype(images.dtype)
        _check_channels(images.shape)
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


def check_pixels(images: Any, channels: int = 3, *, stacklevel: int = 2) -> np.ndarray:
    """Images as an array of pixels in 0..255, which is all that is checked.

    Args:
        images: Values in 0..255, `(batch, height, width, channels)` or `(height, width, channels)`: an array, a
            tensor of any backend, or a list of equally large images.
        channels: How many there have to be.
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
    is_tensor = hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray)
    images = as_pixels(to_numpy(images) if is_tensor else images)
    _check_channels(images.shape, channels)
    _check_range(images, stacklevel + 1)
    return images


def as_pixels(images: Any) -> np.ndarray:
    """Images as an array of real numbers."""
    try:
        images = np.asarray(images)
    except ValueError as error:
        hint = "Resize each with load_image(file, image_size) or resize_images(image, image_size)."
        raise ValueError(f"images must be equally large to form a batch, but they differ. {hint}") from error
    _check_dtype(images.dtype)
    return images


def _check_dtype(dtype: Any) -> None:
    # Real dtypes are called so in every framework: "uint8", "torch.float16", "<dtype: 'bfloat16'>".
    if "int" not in str(dtype) and "float" not in str(dtype):
        raise TypeError(f"images must hold integers or floats in 0..255, but their dtype is {dtype}.")


def _check_channels(shape: Any, channels: int = 3) -> None:
    if getattr(shape, "rank", 0) is None:  # A TensorFlow tensor of unknown rank.
        return
    shape = tuple(shape)
    if len(shape) in (3, 4) and shape[-1] in (channels, None):
        return
    hint = ""
    if len(shape) in (3, 4):
        hints = {1: " Repeat the grey channel: numpy.repeat(images, 3, -1).", 4: " Drop alpha: images[..., :3]."}
        hint = hints.get(shape[-1], "") if channels == 3 else ""
        if shape[-3] == channels:
            hint = " The channels seem to come first: move them with numpy.moveaxis(images, -3, -1)."
    expected = f"(batch, height, width, {channels}) or (height, width, {channels})"
    raise ValueError(f"images must have shape {expected}, but {shape} was given.{hint}")


def _check_range(images: np.ndarray, stacklevel: int) -> None:
    if not images.size or images.dtype == "uint8":
        return
    least, most = images.min(), images.max()
    if images.dtype.kind in "iu":
        if least < 0 or most > 255:
            raise ValueError(f"images must hold values in 0..255, but they reach from {least} to {most}.")
        return
    if not np.isfinite(least) or not np.isfinite(most):
        raise ValueError("images must hold values in 0..255, but there are NaN or infinite values among them.")
    if least < -OVERSHOOT or most > 255 + OVERSHOOT:
        raise ValueError(
            f"images must hold values in 0..255, but they reach from {least:.6g} to {most:.6g}. Scale them first."
        )
    if least >= -1 and most <= 1 and images.any():
        warnings.warn(
            f"values in 0..255 are expected, but these floats lie between {least:.3g} and {most:.3g}. Multiply values "
            "in [0, 1] by 255; leave the preprocessing out if they are in [-1, 1] already.",
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
