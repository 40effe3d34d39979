"""Putting an array into a weight without a second copy of it: the one place that knows how backends do that."""

from typing import Any

import keras
import numpy as np


def assign(variable: Any, values: np.ndarray) -> None:
    """Assigns float32 values to a weight of the same shape.

    `Variable.assign` is right everywhere, but on torch it copies the values once on their way.

    Args:
        variable: A Keras variable.
        values: An array that nobody else will change: JAX keeps it instead of copying it.
    """
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            variable.value.copy_(torch.from_numpy(values))
    else:
        variable.assign(values)
