"""Resampling by matrices, one for each axis: of images, tables of position embeddings and patch kernels."""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Method:
    """How samples are interpolated."""

    kernel: str  # "linear" or "cubic"
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


def interpolation_matrix(old: int, new: Any, method: str = "official", xp: ModuleType = np) -> Any:
    """The matrix that resamples `old` samples to `new` along one axis.

    Args:
        old: Number of samples given; a Python integer.
        new: Number of samples wanted; a Python integer, or a scalar integer tensor where `xp` is `keras.ops`.
        method: One of `METHODS`.
            `"official"` samples linearly with aligned corners: sample `i` is read at
            `i * (old - 1) / (new - 1)`. It is what `scipy.ndimage.zoom(order=1)` computes, without the zero
            last row and column that rounding makes scipy give for some pairs of sizes (28 to 48, for example).
            The others use half-pixel centres. `"bicubic_offset"` is no identity where `new` is `old`.
        xp: The array module, `numpy` (computes in float64) or `keras.ops` (float32, traceable).

    Returns:
        Array of shape `(new, old)` whose rows sum to 1.

    Raises:
        ValueError: if `method` is unknown.
    """
    return _matrix(old, new, _method(method), xp)


def interpolation_matrices(
    old: tuple[int, int], new: tuple[Any, Any], method: str = "official", xp: ModuleType = np
) -> tuple[Any, Any]:
    """As `interpolation_matrix` for rows and columns of a grid; where neither changes, they are identities."""
    how = _method(method)
    if how.offset:
        # The original code does not resize a grid that is right already; where one axis is, it resamples both.
        changed = 1.0 - _equal(old[0], new[0], xp) * _equal(old[1], new[1], xp)
        how = dataclasses.replace(how, offset=how.offset * changed)
    return _matrix(old[0], new[0], how, xp), _matrix(old[1], new[1], how, xp)


def _method(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {name!r} was given.")
    return METHODS[name]


def _equal(old: int, new: Any, xp: ModuleType) -> Any:
    """1 or 0, as a number or a scalar tensor."""
    return float(old == new) if isinstance(new, int) or xp is np else xp.cast(xp.equal(new, old), "float32")


def _matrix(old: int, new: Any, how: Method, xp: ModuleType) -> Any:
    dtype = "float64" if xp is np else "float32"
    target = xp.cast(xp.arange(new), dtype) if xp is not np else np.arange(new, dtype=dtype)
    source = xp.arange(old, dtype=dtype)
    size = xp.cast(new, dtype) if xp is not np else float(new)
    if how.aligned:
        # A single sample is read from the first corner, as scipy does.
        centre = target * ((old - 1) / xp.maximum(size - 1, 1))
        width = 1.0
    else:
        centre = (target + 0.5) * (old / (size + how.offset)) - 0.5
        width = xp.maximum(old / size, 1.0) if how.antialias else 1.0
    if how.clamped:
        # Two samples beyond each end are as far as a cubic kernel reaches.
        source = xp.arange(-2, old + 2, dtype=dtype)
    distance = xp.abs(centre[:, None] - source[None, :]) / width
    if how.kernel == "linear":
        weights = xp.maximum(1.0 - distance, 0.0)
    else:
        weights = _keys_cubic(distance, xp, how.sharpness)
    if how.clamped:
        fold = np.eye(old, dtype=dtype)[np.clip(np.arange(-2, old + 2), 0, old - 1)]
        weights = xp.matmul(weights, fold)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _keys_cubic(t: Any, xp: ModuleType, a: float) -> Any:
    """Keys' cubic convolution kernel (1981), for distances `t >= 0`."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return xp.where(t < 1, near, xp.where(t < 2, far, xp.zeros_like(t)))


def resize_table(table: Any, old: tuple[int, int], new: tuple[Any, Any], method: str, xp: Any = np) -> Any:
    """Resizes a table of position embeddings from one grid to another.

    Args:
        table: `(1, prefix + old rows * old columns, D)`, a NumPy array or, with `xp=keras.ops`, a tensor.
        old: Rows and columns of the grid that the table was made for.
        new: Rows and columns wanted; may be scalar tensors with `xp=keras.ops`.
        method: A name in `keras_vit.interpolation.METHODS`.
        xp: `numpy` (interpolates in float64) or `keras.ops` (in the table's own dtype, at least float32).

    Returns:
        `(1, prefix + new rows * new columns, D)` in the table's dtype. The prefix is kept as it is.

    Examples:
        >>> layers.resize_table(np.zeros((1, 1 + 4, 8), "float32"), (2, 2), (3, 4), "official").shape
        (1, 13, 8)
    """

    def cast(x: Any, dtype: Any) -> Any:
        return x.astype(dtype) if xp is np else xp.cast(x, dtype)

    prefix, width = table.shape[1] - old[0] * old[1], table.shape[2]
    by_row, by_column = interpolation_matrices(old, new, method, xp)
    grid = cast(xp.reshape(table[0, prefix:], (*old, width)), by_row.dtype)
    grid = xp.reshape(xp.einsum("hi,wj,ijd->hwd", by_row, by_column, grid), (1, -1, width))
    return xp.concatenate([table[:, :prefix], cast(grid, table.dtype)], axis=1)


def resize_patch_kernel(kernel: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Resizes the kernel of a patch embedding by the pseudo-inverse method (FlexiViT, arXiv 2212.08013, section 3.4).

    Where B resizes patches bilinearly (half-pixel centres, no antialiasing), the new kernel is `pinv(B^T) w`. For a
    larger patch size this makes a resized patch give exactly the embedding of the original one, which resizing the
    kernel like an image does not; for a smaller one it is the nearest to that on average.

    Args:
        kernel: `(height, width, channels, D)`.
        patch_size: New height and width.

    Returns:
        `(*patch_size, channels, D)` in the kernel's dtype, computed in float64.

    Source: `resample_patchemb` in big_vision's `models/proj/flexi/vit.py`.

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
