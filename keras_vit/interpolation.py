"""One-dimensional interpolation matrices: every two-dimensional resize in the package is two of them."""

from types import ModuleType
from typing import Any

import numpy as np

# name: (kernel, are the corners aligned?, is the kernel widened when shrinking?)
METHODS = {
    "official": ("linear", True, False),  # scipy.ndimage.zoom(order=1): vit_jax and big_vision
    "bilinear": ("linear", False, False),  # half-pixel centres, as tf.image.resize
    "bilinear_antialias": ("linear", False, True),  # as jax.image.resize(method="linear")
    "bicubic": ("cubic", False, True),  # Keys' kernel with a = -0.5, as Pillow and timm
}


def interpolation_matrix(old: int, new: Any, method: str = "official", xp: ModuleType = np) -> Any:
    """The matrix that resamples `old` samples to `new` along one axis.

    Args:
        old: Number of samples given; a Python integer.
        new: Number of samples wanted; a Python integer, or a scalar integer tensor where `xp` is `keras.ops`.
        method: One of `METHODS`.
            `"official"` samples linearly with aligned corners: sample `i` is read at
            `i * (old - 1) / (new - 1)`. It is what `scipy.ndimage.zoom(order=1)` computes, without the zero
            last row and column that rounding makes scipy give for some pairs of sizes (28 to 48, for example).
            The others use half-pixel centres.
        xp: The array module, `numpy` (computes in float64) or `keras.ops` (float32, traceable).

    Returns:
        Array of shape `(new, old)` whose rows sum to 1.

    Raises:
        ValueError: if `method` is unknown.
    """
    if method not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {method!r} was given.")
    kernel, align_corners, antialias = METHODS[method]
    dtype = "float64" if xp is np else "float32"
    target = xp.cast(xp.arange(new), dtype) if xp is not np else np.arange(new, dtype=dtype)
    source = xp.arange(old, dtype=dtype)
    size = xp.cast(new, dtype) if xp is not np else float(new)
    if align_corners:
        # A single sample is read from the first corner, as scipy does.
        centre = target * ((old - 1) / xp.maximum(size - 1, 1))
        width = 1.0
    else:
        centre = (target + 0.5) * (old / size) - 0.5
        width = xp.maximum(old / size, 1.0) if antialias else 1.0
    distance = xp.abs(centre[:, None] - source[None, :]) / width
    weights = xp.maximum(1.0 - distance, 0.0) if kernel == "linear" else _keys_cubic(distance, xp)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _keys_cubic(t: Any, xp: ModuleType, a: float = -0.5) -> Any:
    """Keys' cubic convolution kernel (1981), for distances `t >= 0`."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return xp.where(t < 1, near, xp.where(t < 2, far, xp.zeros_like(t)))
