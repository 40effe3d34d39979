"""Gradients with respect to tensors, on each backend: the only place of this room that knows them apart."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit._types import Tensor


def gradients(function: Callable[[list[Tensor]], Tensor], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The gradient of a number with respect to arrays.

    Args:
        function: From tensors, one for each array, to a scalar tensor. It is computed once.
        arrays: Where the gradient is taken; float32.

    Returns:
        float32 arrays with the shapes of `arrays`; zeros where the number does not depend on one.
    """
    compute = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return [to_numpy(gradient).astype("float32") for gradient in compute(function, arrays)]


@contextlib.contextmanager
def no_gradients() -> Iterator[None]:
    """Within this context, PyTorch keeps nothing for a backward pass; the other backends never do by themselves."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.no_grad():
        yield


def _tensorflow(function: Callable[[list[Tensor]], Tensor], arrays: Sequence[np.ndarray]) -> list[Tensor]:
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(array) for array in arrays]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        value = function(tensors)
    return tape.gradient(value, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _jax(function: Callable[[list[Tensor]], Tensor], arrays: Sequence[np.ndarray]) -> list[Tensor]:
    import jax

    return jax.grad(function)([jax.numpy.asarray(array) for array in arrays])


def _torch(function: Callable[[list[Tensor]], Tensor], arrays: Sequence[np.ndarray]) -> Sequence[Tensor]:
    import torch

    tensors = [keras.ops.convert_to_tensor(array).detach().clone().requires_grad_() for array in arrays]
    with torch.enable_grad():
        value = function(tensors)
    return torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
