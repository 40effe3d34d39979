"""Tensors of any framework as NumPy arrays, and memory that any framework can use."""

import math
from typing import Any

import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np


def to_numpy(values: Any) -> np.ndarray:
    """A tensor of any framework, an array or lists as a NumPy array.

    bfloat16, which NumPy lacks, becomes float32; the bytes of a number come in the order of the machine, as frameworks
    want them.
    """
    if hasattr(values, "detach"):  # torch: NumPy refuses gradients, other devices and bfloat16
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if hasattr(values, "numpy") and not isinstance(values, np.ndarray):
        values = values.numpy()
    array = np.asarray(values)
    if array.dtype == "bfloat16":
        return array.astype("float32")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros at an address that backends can use without copying (a multiple of 64 bytes)."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)
