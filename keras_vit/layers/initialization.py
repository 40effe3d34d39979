"""First values of weights, how to do without them where a checkpoint follows, and how to put that into them."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
from keras import initializers

from keras_vit._arrays import aligned_zeros

# Of the context, not of the process: other threads and other coroutines build their models as usual meanwhile.
_skipped: ContextVar[bool] = ContextVar("keras_vit_skip_initialization", default=False)


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Within this context, weights start with no particular values, and take no memory until they are written.

    For models whose every weight is about to be assigned: drawing 86 million random numbers only to overwrite
    them costs seconds. The layers' configs do not change: clones of the model are initialised as usual. Threads and
    coroutines that run meanwhile are not concerned.
    """
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def initializer(name: str, stddev: float = 0.02) -> initializers.Initializer:
    """The initializer of that name, or none inside `skip_initialization`."""
    if _skipped.get():
        return _Unwritten(name, stddev)
    if name == "normal":
        return initializers.RandomNormal(stddev=stddev)
    return initializers.get(name)


@keras.saving.register_keras_serializable(package="keras_vit")
class _Unwritten(initializers.Initializer):
    """Whatever is there, in pages that the system has not handed out yet: each backend has its own way to that.

    Keras's own layers carry their initializers in their configs: a copy of them gets the one that this stands for.
    """

    def __init__(self, name: str, stddev: float) -> None:
        self.name = name
        self.stddev = stddev

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)
        if backend == "jax" and dtype == "float32":
            # With a dtype, JAX takes an aligned array as it is; without, it copies it.
            return keras.ops.convert_to_tensor(aligned_zeros(shape, dtype), dtype)
        return keras.ops.empty(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "stddev": self.stddev}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> initializers.Initializer:
        return initializer(**config)


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
