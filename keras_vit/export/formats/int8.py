"""How numbers become integers, and images batches."""

from collections.abc import Iterator

import numpy as np


def symmetric_int8(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest integers in -127..127 of values divided by their scales.

    Args:
        values: float32 of any shape.
        axis: The axis for each index of which there is a scale of its own.

    Returns:
        The integers, int8 of the same shape, and the scales, float32 of a shape that broadcasts against it. What is
        zero throughout has the scale 1.
    """
    others = tuple(other for other in range(values.ndim) if other != axis)
    scales = np.abs(values).max(others, keepdims=True) / 127
    scales = np.where(scales > 0, scales, 1).astype("float32")
    return np.rint(values / scales).astype("int8"), scales


def batches(images: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The images in batches of one size; the first images come again to fill the last one."""
    for start in range(0, len(images), size):
        yield images.take(range(start, start + size), axis=0, mode="wrap")
