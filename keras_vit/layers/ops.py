"""The operations of the layers, each with faster forms for a backend and kind of device where they were measured.

`fast_path` gives the faster function. Where there is none, an operation is Keras's: on other devices, for symbolic
tensors, and in PyTorch while a program is traced or compiled, whose compiler knows Keras's operations best. Every
function gives the same numbers but for rounding, and first and second derivatives that are right: the tests compare
them with finite differences in float64. docs/speed.md has the measurements.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit._processes import tensorflow_has_only_cpus
from keras_vit.layers import jax_paths, tensorflow_paths, torch_paths
from keras_vit.layers.common import float32_or_better, padded_conv


def fast_path(operation: str, x: Any) -> Callable[..., Any] | None:
    """The faster function for an operation on tensors such as `x`; None where there is none.

    Args:
        operation: The first part of a key of `FAST`.
        x: An input of the operation, which tells the device.
    """
    backend = keras.backend.backend()
    return FAST.get((operation, backend, _device(backend, x))) or FAST.get((operation, backend, "any"))


def runs_eagerly_in_torch(x: Any) -> bool:
    """Whether `x` is a tensor of PyTorch on a CPU, in a program that is neither traced nor compiled.

    There, what Keras does around each call takes 0.1 to 0.2 ms, and new memory more than the arithmetic.
    """
    return keras.backend.backend() == "torch" and _device("torch", x) == "cpu"


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """`keras.ops.reshape`, without its search for symbolic tensors where `x` is none."""
    fast = fast_path("reshape", x)
    return ops.reshape(x, shape) if fast is None else fast(x, shape)


def _device(backend: str, x: Any) -> str | None:
    """The kind of device on which a tensor lies or a program of JAX or TensorFlow will run; None for what is symbolic.

    In TensorFlow that is the kind of all devices: a graph does not know where it will run.
    """
    if backend == "torch":
        import torch

        if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        return x.device.type
    if backend == "jax":
        import jax

        return jax.default_backend() if isinstance(x, jax.Array) else None
    if backend == "tensorflow":
        import tensorflow as tf

        return "cpu" if isinstance(x, tf.Tensor) and tensorflow_has_only_cpus() else None
    return None


# The time that a function takes in relation to Keras's way, where it was measured by itself (docs/speed.md): batch 8,
# 197 tokens, D 768, MLP 3072, float32. What has no figure was measured as a part of whole Vision Transformers.
FAST: dict[tuple[str, str, str | None], Callable[..., Any]] = {
    ("attention", "jax", "cpu"): jax_paths.attention,  # 0.42 to 0.58; with gradients 0.74 to 0.85
    ("conv", "jax", "cpu"): jax_paths.conv,  # 1 x 1: 0.84 to 0.91
    ("dense", "jax", "cpu"): jax_paths.dense,  # 0.98; with gradients 0.79 to 0.95, of wide kernels on one thread half
    ("gelu_tanh", "jax", "cpu"): jax_paths.gelu_tanh,  # with gradients 0.70
    ("group_norm", "jax", "cpu"): jax_paths.group_norm,  # 0.10 to 0.85
    ("layer_norm", "jax", "cpu"): jax_paths.layer_norm,  # with gradients 0.53 to 0.62
    ("max_pool", "jax", "cpu"): jax_paths.max_pool,  # 0.15
    ("remat", "jax", "cpu"): jax_paths.remat,
    ("attention", "tensorflow", "cpu"): tensorflow_paths.attention,  # 0.86; with gradients 0.80; bfloat16 0.05
    ("dense", "tensorflow", "cpu"): tensorflow_paths.dense,
    ("group_norm", "tensorflow", "cpu"): tensorflow_paths.group_norm,  # 0.28 to 1.03; with gradients 0.26 to 0.93
    ("layer_norm", "tensorflow", "cpu"): tensorflow_paths.layer_norm,  # 0.71; with gradients 0.78
    ("attention", "torch", "cpu"): torch_paths.attention,
    ("conv", "torch", "cpu"): torch_paths.conv,  # 3 x 3: 0.80 to 0.84; 1 x 1: 0.12 to 0.16
    ("dense", "torch", "cpu"): torch_paths.dense,
    ("gelu_exact", "torch", "cpu"): torch_paths.gelu_exact,
    ("gelu_tanh", "torch", "cpu"): torch_paths.gelu_tanh,  # 0.53 to 0.84; bfloat16 0.65
    ("group_norm", "torch", "cpu"): torch_paths.group_norm,  # 0.17
    ("layer_norm", "torch", "cpu"): torch_paths.layer_norm,
    ("layer_norm", "torch", "any"): torch_paths.layer_norm_anywhere,  # one operation, also in programs that are traced
    ("relu", "torch", "cpu"): torch_paths.relu,
    ("reshape", "torch", "cpu"): torch_paths.reshape,
}


def mean(x: Any, axis: int | tuple[int, ...]) -> Any:
    """The mean over some axes, which stay with length 1. Keras 3.15 computes its own in float32 for float64 as well."""
    if keras.backend.standardize_dtype(x.dtype) != "float64":
        return ops.mean(x, axis, keepdims=True)
    axes = (axis,) if isinstance(axis, int) else axis
    count = math.prod(x.shape[i] if x.shape[i] is not None else ops.shape(x)[i] for i in axes)
    return ops.sum(x, axis, keepdims=True) / ops.cast(count, "float64")


def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """The product with a matrix, and a bias.

    Args:
        x: `(batch, ..., D)`.
        kernel: `(D, units)`, in the dtype of `x`.
        bias: `(units,)`, or None.
    """
    fast = fast_path("dense", x)
    if fast is not None:
        return fast(x, kernel, bias)
    if keras.backend.standardize_dtype(x.dtype) == "float64":  # which Keras's product rounds to float32 on PyTorch
        y = ops.einsum("...d,du->...u", x, kernel)
    else:
        y = ops.matmul(x, kernel)
    return y if bias is None else y + bias


def attention(query: Any, key: Any, value: Any, flash_attention: bool | None = None) -> Any:
    """Softmax of the scaled scores, times the values: all `(batch, tokens, heads, d)`.

    Args:
        query: What asks.
        key: What is asked.
        value: What it answers.
        flash_attention: As in `keras.ops.dot_product_attention`; False for Keras's plain way.
    """
    fast = fast_path("attention", query)
    if fast is not None:
        return fast(query, key, value)
    if keras.backend.standardize_dtype(query.dtype) == "float64":  # which Keras rounds to float32
        return ops.einsum("bhqk,bkhd->bqhd", attention_weights(query, key), value)
    return ops.dot_product_attention(query, key, value, flash_attention=flash_attention)


def attention_weights(query: Any, key: Any) -> Any:
    """Softmax of the scaled scores, `(batch, heads, Q, T)`, computed in at least float32 as in the original."""
    scores = ops.einsum("bqhd,bkhd->bhqk", query * (query.shape[-1] ** -0.5), key)
    return ops.softmax(ops.cast(scores, _wide(query)))


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Layer normalisation over the last axis, computed in at least float32.

    Keras's own is not used: its variance goes through a `stop_gradient` of the mean on TensorFlow, which is right for
    the gradient and wrong for what is derived from it.

    Args:
        x: `(..., D)`.
        gamma: Factors, `(D,)`.
        beta: What is added, `(D,)`.
        epsilon: Added to the variance.
    """
    fast = fast_path("layer_norm", x)
    if fast is not None:
        return fast(x, gamma, beta, epsilon)
    wide = _wide(x)
    centred = ops.cast(x, wide)
    centred = centred - mean(centred, -1)
    scale = ops.rsqrt(mean(ops.square(centred), -1) + epsilon) * ops.cast(gamma, wide)
    return ops.cast(centred * scale + ops.cast(beta, wide), x.dtype)


def group_norm(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Group normalisation of maps, computed in at least float32; not Keras's own for the reason of `layer_norm`.

    Args:
        x: `(batch, height, width, channels)`.
        groups: How many groups of channels there are.
        gamma: Factors, `(channels,)`.
        beta: What is added, `(channels,)`.
        epsilon: Added to the variance.
    """
    fast = fast_path("group_norm", x)
    if fast is not None:
        return fast(x, groups, gamma, beta, epsilon)
    wide, channels = _wide(x), x.shape[-1]

    def means(values: Any) -> Any:
        """Of the channels of a map, then of their groups, for each channel."""
        of_channels = ops.reshape(mean(values, (1, 2)), (-1, 1, 1, groups, channels // groups))
        of_groups = ops.repeat(mean(of_channels, -1), channels // groups, axis=-1)
        return ops.reshape(of_groups, (-1, 1, 1, channels))

    centred = ops.cast(x, wide)
    centred = centred - means(centred)
    scale = ops.rsqrt(means(ops.square(centred)) + epsilon) * ops.cast(gamma, wide)
    return ops.cast(centred * scale + ops.cast(beta, wide), x.dtype)


def activate(x: Any, kind: str | None, fresh: bool = False) -> Any:
    """An activation.

    Args:
        x: A tensor of any shape.
        kind: `"tanh"`: the approximation of GELU that the official checkpoints were trained with; `"exact"`: GELU with
            the error function, as timm and Hugging Face compute it; `"quick"`: `x * sigmoid(1.702 x)`, as OpenAI's
            CLIP; `"relu"`; None for none.
        fresh: Whether the caller has made `x` and nobody else has seen it: then it may be written over.
    """
    if kind is None:
        return x
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    name = "relu" if kind == "relu" else f"gelu_{kind}"
    fast = fast_path(name, x)
    if fast is not None:
        return fast(x, fresh) if keras.backend.backend() == "torch" else fast(x)  # XLA sees what it may write over
    return ops.relu(x) if kind == "relu" else ops.gelu(x, approximate=kind == "tanh")


def _wide(x: Any) -> str:
    return float32_or_better(keras.backend.standardize_dtype(x.dtype))


def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """A convolution without bias.

    Args:
        x: `(batch, height, width, channels)`.
        kernel: `(rows, columns, channels, filters)`, in the dtype of `x`.
        strides: Steps of the window, both or down and across.
        padding: `"same"`, `"valid"`, or the number of zeros on every side.

    Returns:
        `(batch, rows of windows, columns of windows, filters)`.
    """
    return (fast_path("conv", x) or padded_conv)(x, kernel, strides, padding)


def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """The maximum of every window.

    Args:
        x: `(batch, height, width, channels)`.
        size: Height and width of a window.
        strides: Steps of the window down and across.
        padding: `"same"` or `"valid"`.

    Returns:
        `(batch, rows of windows, columns of windows, channels)`.
    """
    fast = fast_path("max_pool", x)
    if fast is None:
        return ops.max_pool(x, size, strides, padding, data_format="channels_last")
    return fast(x, size, strides, padding)
