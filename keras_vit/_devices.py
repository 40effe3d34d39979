"""How many devices share a batch, and where models are made for them."""

import contextlib
from typing import Any

import keras
import numpy as np


def batch_shares(model: keras.Model | None = None) -> int:
    """Among how many devices, or groups of devices that hold a model together, a batch is divided.

    Args:
        model: Asked for its `tf.distribute` strategy, on TensorFlow. JAX has one distribution for all.

    Returns:
        1 where batches stay whole. The length of a batch has to be a multiple of it.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        mesh = distribution.device_mesh
        return dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(distribution.batch_dim_name, 1)
    return getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)


def fill_up(batch: np.ndarray, length: int) -> np.ndarray:
    """A batch with its last row repeated until it has a length; the rows that were there come first."""
    missing = length - len(batch)
    return np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing > 0 else batch


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Where a model has to be copied, compiled and trained: within TensorFlow's strategy that it was made in."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()
