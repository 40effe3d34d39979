"""What the faster forms share."""

import math
from typing import Any

from keras import ops

# The tanh approximation of GELU, x/2 (1 + tanh(c x + d x^3)), is x sigmoid(2 c x + 2 d x^3).
GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


def float32_or_better(dtype: str) -> str:
    """float64 for float64, otherwise float32.

    `keras.backend.result_type` is no help: of float64 and float32 it makes float32.
    """
    return "float64" if dtype == "float64" else "float32"


def padded_conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """`keras.ops.conv` of NHWC tensors, where `padding` may be the number of zeros on every side."""
    if isinstance(padding, int):
        x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
        padding = "valid"
    return ops.conv(x, kernel, strides, padding, data_format="channels_last")
