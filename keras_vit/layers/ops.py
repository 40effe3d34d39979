"""What the layers compute, in the order of the paper; `layers.fast` has forms that are faster on some devices."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

import keras_vit.layers.fast.jax
import keras_vit.layers.fast.tensorflow
import keras_vit.layers.fast.torch  # noqa: F401 (these three register their forms)
from keras_vit.layers.fast import compute, is_torch_tensor, with_faster_forms


def float32_or_better(dtype: Any) -> str:
    """float64 for float64, also as PyTorch's, else float32; of both, `keras.backend.result_type` makes float32."""
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def widened(x: Any) -> Any:
    """`x` in float32 or better."""
    return ops.cast(x, float32_or_better(x.dtype))


def mean(x: Any, axis: int | tuple[int, ...]) -> Any:
    """The mean over some axes, which stay with length 1. Keras 3.15 computes its own in float32 for float64 as well."""
    if keras.backend.standardize_dtype(x.dtype) != "float64":
        return ops.mean(x, axis, keepdims=True)
    sizes = (x.shape[i] or ops.shape(x)[i] for i in ((axis,) if isinstance(axis, int) else axis))
    return ops.sum(x, axis, keepdims=True) / ops.cast(math.prod(sizes), "float64")


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """`keras.ops.reshape`, without its search for symbolic tensors where `x` is none."""
    return x.reshape(shape) if is_torch_tensor(x) else ops.reshape(x, shape)


# Equation 1: patches are embedded by a convolution


@with_faster_forms
def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """A convolution of `(batch, height, width, channels)` with kernel `(rows, columns, channels, filters)`, no bias."""
    if isinstance(padding, int):  # so many zeros on every side
        x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
        padding = "valid"
    return ops.conv(x, kernel, strides, padding, data_format="channels_last")


# Equation 2: layer normalisation, projections and attention


@with_faster_forms
def layer_normalization(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Layer normalisation over the last axis, computed in at least float32."""
    # Not Keras's, whose variance has a `stop_gradient` of the mean on TensorFlow: second derivatives are wrong.
    centred = widened(x)
    centred = centred - mean(centred, -1)
    scale = ops.rsqrt(mean(ops.square(centred), -1) + epsilon) * widened(gamma)
    return ops.cast(centred * scale + widened(beta), x.dtype)


@with_faster_forms
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """The product of `x`, `(batch, ..., D)`, with a kernel `(D, units)` of the same dtype, and a bias or None."""
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"  # Keras's product rounds it on PyTorch
    y = ops.einsum("...d,du->...u", x, kernel) if is_wide else ops.matmul(x, kernel)
    return y if bias is None else y + bias


@with_faster_forms
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Softmax of the scaled scores, times the values: all `(batch, tokens, heads, d)`.

    Where it is causal, a token attends to itself and earlier ones only.
    """
    dtype = keras.backend.standardize_dtype(query.dtype)
    # Keras rounds float64 to float32, and JAX's own attention knows no float16 on CPUs.
    if dtype == "float64" or (dtype == "float16" and _jax_runs_on("cpu")):
        weights = ops.cast(attention_weights(query, key, is_causal), dtype)
        return ops.einsum("bhqk,bkhd->bqhd", weights, value)
    # On TPUs, Keras 3.15 hands unmasked attention of 128-token multiples to a kernel that applies a causal mask and no
    # scaling. Its plain path is right.
    flash = False if _jax_runs_on("tpu") else None
    return ops.dot_product_attention(query, key, value, is_causal=is_causal, flash_attention=flash)


def attention_weights(query: Any, key: Any, is_causal: bool = False) -> Any:
    """Softmax of the scaled scores, `(batch, heads, Q, T)`, computed in at least float32 as in the original."""
    scores = widened(ops.einsum("bqhd,bkhd->bhqk", query * (query.shape[-1] ** -0.5), key))
    if is_causal:
        scores = ops.where(ops.tri(*scores.shape[-2:], dtype="bool"), scores, -math.inf)
    return ops.softmax(scores)


def _jax_runs_on(kind: str) -> bool:
    if keras.backend.backend() != "jax":
        return False
    return any(kind in str(device).lower() for device in keras.distribution.list_devices())


# Equation 3: the activation between the two products of the MLP


def activate(x: Any, kind: str | None) -> Any:
    """An activation: one of `choices.HEAD_ACTIVATIONS`, or None for none."""
    if kind is None:
        return x
    y = compute(kind, x)
    if y is not NotImplemented:
        return y
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    return getattr(ops, kind)(x) if kind in ("relu", "silu") else ops.gelu(x, approximate=kind == "tanh")


def activate_in_place(x: Any, kind: str) -> Any:
    """`activate` for a tensor that only the caller has: it may be written over where that is faster."""
    y = compute(f"{kind} in place", x)
    return activate(x, kind) if y is NotImplemented else y


@with_faster_forms
def rematerialized(x: Any, function: Callable[..., Any], *tensors: Any) -> Any:
    """`function(x, *tensors)`, computed again for its gradients instead of being kept; it reads no other tensors."""
    return keras.remat(function)(x, *tensors)


# ResNets of hybrids, and heads of dense models


@with_faster_forms
def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Normalisation of `(batch, rows, columns, channels)` over groups of channels, computed in at least float32."""
    # Not Keras's for the reason of `layer_normalization`.
    channels = x.shape[-1]

    def means(values: Any) -> Any:
        # Of the channels of a map, then of their groups, for each channel.
        of_channels = ops.reshape(mean(values, (1, 2)), (-1, 1, 1, groups, channels // groups))
        of_groups = ops.repeat(mean(of_channels, -1), channels // groups, axis=-1)
        return ops.reshape(of_groups, (-1, 1, 1, channels))

    centred = widened(x)
    centred = centred - means(centred)
    scale = ops.rsqrt(means(ops.square(centred)) + epsilon) * widened(gamma)
    return ops.cast(centred * scale + widened(beta), x.dtype)


@with_faster_forms
def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """The largest value of each window of `(batch, rows, columns, channels)`."""
    return ops.max_pool(x, size, strides, padding, data_format="channels_last")


@with_faster_forms
def depthwise_conv(x: Any, kernel: Any) -> Any:
    """A convolution of each channel of `(batch, rows, columns, D)` with its own kernel, of `(3, 3, D, 1)`."""
    return ops.depthwise_conv(x, kernel, padding="same", data_format="channels_last")
