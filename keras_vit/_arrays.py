"""Tensors of any framework as NumPy arrays."""

from typing import Any

import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np


def to_numpy(values: Any) -> np.ndarray:
    """A tensor of any framework, an array or lists as a NumPy array; bfloat16, which NumPy lacks, as float32."""
    if hasattr(values, "detach"):  # torch: NumPy refuses gradients, other devices and bfloat16
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if hasattr(values, "numpy") and not isinstance(values, np.ndarray):
        values = values.numpy()
    array = np.asarray(values)
    return array.astype("float32") if array.dtype == "bfloat16" else array
