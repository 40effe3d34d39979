"""What the layers compute, in the order of the paper; `layers.fast` has forms that are faster on some devices."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

import keras_vit.layers.fast.jax
import keras_vit.layers.fast.tensorflow
import keras_vit.layers.fast.torch  # noqa: F401 (these three enter their forms in the table)
from keras_vit.layers.fast import FORMS, TORCH_CPU, TORCH_CUDA, device_of


def with_faster_forms(definition: Any) -> Callable[..., Any]:
    """Decorator of an operation: the function computes the form in `FORMS` under its name, else its definition."""
    operation = definition.__name__

    @functools.wraps(definition)
    def call(x: Any, *arguments: Any) -> Any:
        form = FORMS.get((operation, device_of(x)))
        y = NotImplemented if form is None else form(x, *arguments)
        return definition(x, *arguments) if y is NotImplemented else y

    return call


def compute(operation: str, x: Any, *arguments: Any) -> Any:
    """What the form of an operation in `FORMS` computes on the device of `x`."""
    form = FORMS.get((operation, device_of(x)))
    return NotImplemented if form is None else form(x, *arguments)


def float32_or_better(dtype: Any, layer: str = "") -> Any:
    """The name of a dtype, also one of PyTorch's or that of a policy: "float32" for all but "float64".

    Of a map of policies that has one for `layer`, it is that one.
    """
    # `keras.backend.result_type` makes float32 of float64 and float32.
    if isinstance(dtype, keras.dtype_policies.DTypePolicyMap) and layer in dtype:
        return dtype[layer]
    dtype = getattr(dtype, "compute_dtype", dtype)
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def widened(x: Any) -> Any:
    """A tensor in float64 if that is its dtype, else in float32."""
    return ops.cast(x, float32_or_better(x.dtype))


def mean(x: Any, axis: int | tuple[int, ...]) -> Any:
    """Returns the mean over some axes, which stay with length 1, in the dtype of `x`."""
    if keras.backend.standardize_dtype(x.dtype) != "float64":
        return ops.mean(x, axis, keepdims=True)
    # Keras 3.15 computes its own in float32 for float64 as well.
    sizes = (x.shape[i] or ops.shape(x)[i] for i in ((axis,) if isinstance(axis, int) else axis))
    return ops.sum(x, axis, keepdims=True) / ops.cast(math.prod(sizes), "float64")


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """`x` in another shape, as `keras.ops.reshape` but without its search for symbolic tensors on PyTorch."""
    return x.reshape(shape) if device_of(x) in (TORCH_CPU, TORCH_CUDA) else ops.reshape(x, shape)


# Equation 1: patches are embedded by a convolution


@with_faster_forms
def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """The convolution, without bias, of `(batch, height, width, channels)`: `(batch, rows, columns, filters)`."""
    # The kernel is `(rows, columns, channels, filters)`; `padding` is `"same"`, `"valid"`, or the number of zeros on
    # every side.
    if isinstance(padding, int):
        x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
        padding = "valid"
    return ops.conv(x, kernel, strides, padding, data_format="channels_last")


# Equation 2: layer normalisation, projections and attention


@with_faster_forms
def layer_normalization(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Returns the layer normalisation over the last axis, computed in float32 or better, in the dtype of `x`."""
    # Not Keras's, whose variance has a `stop_gradient` of the mean on TensorFlow: second derivatives are wrong.
    centred = widened(x)
    centred = centred - mean(centred, -1)
    scale = ops.rsqrt(mean(ops.square(centred), -1) + epsilon) * widened(gamma)
    return ops.cast(centred * scale + widened(beta), x.dtype)


@with_faster_forms
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns the product of `x`, `(..., D)`, and a kernel `(D, units)` of the same dtype, plus a bias or None."""
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"  # Keras's product rounds it on PyTorch
    y = ops.einsum("...d,du->...u", x, kernel) if is_wide else ops.matmul(x, kernel)
    return y if bias is None else y + bias


@with_faster_forms
def dense_of_all(x: Any, kernels: list[Any], biases: list[Any]) -> list[Any]:
    """What `dense` does with each kernel and bias."""
    return [dense(x, kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)]


@with_faster_forms
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Returns the softmax of the scaled scores, times the values: all arrays are `(batch, tokens, heads, d)`."""
    dtype = keras.backend.standardize_dtype(query.dtype)
    # Keras rounds float64 to float32, and JAX's own attention knows no float16 on CPUs.
    if dtype == "float64" or (dtype == "float16" and _jax_runs_on("cpu")):
        weights = ops.cast(attention_weights(query, key, is_causal), dtype)
        return ops.einsum("bhqk,bkhd->bqhd", weights, value)
    # On TPUs, Keras 3.15 hands unmasked attention of 128-token multiples to a kernel that applies a causal mask and no
    # scaling. Its plain path is right.
    flash = False if _jax_runs_on("tpu") else None
    return ops.dot_product_attention(query, key, value, is_causal=is_causal, flash_attention=flash)


def attention_weights(query: Any, key: Any, is_causal: bool = False, allowed: Any = None) -> Any:
    """Returns the softmax of the scaled scores, `(batch, heads, Q, T)`, in float32 or better as in the original."""
    # `allowed`, booleans `(batch, Q, T)`, says which keys each query sees: at least one each; None for all.
    scores = widened(ops.einsum("bqhd,bkhd->bhqk", query * (query.shape[-1] ** -0.5), key))
    if is_causal:
        scores = ops.where(ops.tri(*scores.shape[-2:], dtype="bool"), scores, -math.inf)
    if allowed is not None:
        scores = ops.where(allowed[:, None], scores, -math.inf)
    return ops.softmax(scores)


def _jax_runs_on(kind: str) -> bool:
    if keras.backend.backend() != "jax":
        return False
    return any(kind in str(device).lower() for device in keras.distribution.list_devices())


# Equation 3: the activation between the two products of the MLP


def activate(x: Any, kind: str | None) -> Any:
    """An activation of `x`; `kind`, which has been checked, is in `choices.HEAD_ACTIVATIONS`, or None for `x`."""
    # Any other name would be the exact GELU.
    if kind is None:
        return x
    y = compute(kind, x)
    if y is not NotImplemented:
        return y
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    return getattr(ops, kind)(x) if kind in ("relu", "silu") else ops.gelu(x, approximate=kind == "tanh")


def activate_in_place(x: Any, kind: str) -> Any:
    """What `activate` does, and may write it over `x`, which only the caller has, where that is faster."""
    y = compute(f"{kind} in place", x)
    return activate(x, kind) if y is NotImplemented else y


@with_faster_forms
def rematerialized(x: Any, function: Callable[..., Any], *tensors: Any) -> Any:
    """`function(x, *tensors)`, which is computed again for its gradients instead of keeping activations."""
    return keras.remat(function)(x, *tensors)


# ResNets of hybrids, and layers of dense prediction


@with_faster_forms
def standardized(kernel: Any, epsilon: float, inside: bool) -> Any:
    """A kernel with mean 0 and deviation 1 for each filter; `inside`, epsilon is added to the variance."""
    kernel = kernel - mean(kernel, (0, 1, 2))
    variance = mean(ops.square(kernel), (0, 1, 2))
    return kernel / (ops.sqrt(variance + epsilon) if inside else ops.sqrt(variance) + epsilon)


@with_faster_forms
def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Returns `(batch, rows, columns, channels)` normalised over groups of channels, computed in float32 or better."""
    # Not Keras's for the reason of `layer_normalization`.
    channels = x.shape[-1]

    def means(values: Any) -> Any:
        of_channels = ops.reshape(mean(values, (1, 2)), (-1, 1, 1, groups, channels // groups))
        of_groups = ops.repeat(mean(of_channels, -1), channels // groups, axis=-1)
        return ops.reshape(of_groups, (-1, 1, 1, channels))

    centred = widened(x)
    centred = centred - means(centred)
    scale = ops.rsqrt(means(ops.square(centred)) + epsilon) * widened(gamma)
    return ops.cast(centred * scale + widened(beta), x.dtype)


@with_faster_forms
def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """The largest value of each window of `(batch, rows, columns, channels)`; padding "same" or "valid"."""
    return ops.max_pool(x, size, strides, padding, data_format="channels_last")


@with_faster_forms
def depthwise_conv(x: Any, kernel: Any) -> Any:
    """A convolution of each channel of `(batch, rows, columns, D)` with its own kernel of `(3, 3, D, 1)`."""
    # There are zeros around the map: the shape stays.
    return ops.depthwise_conv(x, kernel, padding="same", data_format="channels_last")
