"""What the layers compute, one function an operation, each followed by faster forms (docs/speed.md); activations last.

These are for CPUs, some for PyTorch on CUDA and in programs of `torch.compile` as well. Elsewhere, for symbolic tensors
and in exported or traced programs of PyTorch, it is Keras's. All give the same numbers and derivatives, but rounding.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit._keras import is_recorded
from keras_vit._processes import tensorflow_has_only_cpus

FAST: dict[tuple[str, str], Callable[..., Any]] = {}  # (operation, platform) -> the faster form
PLATFORMS = {"cpu": "torch", "cuda": "torch elsewhere"}  # of PyTorch; programs of `torch.compile` are the second
# The tanh approximation of GELU, x/2 (1 + tanh(c x + d x^3)), is x sigmoid(2 c x + 2 d x^3).
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR
PIECE = 1 << 20  # values that PyTorch works on at a time, so that they stay in the processor's cache between steps
FEW = 1 << 17  # values that PyTorch's own GELU does as soon as four operations
_INSTRUCTIONS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "fp16_arith")}


def faster(operation: str, *platforms: str) -> Callable[[Any], Any]:
    """Decorator: the form of an operation that is faster on platforms (see `_platform`)."""

    def register(function: Any) -> Any:
        FAST.update({(operation, platform): function for platform in platforms})
        return function

    return register


def fast_path(operation: str, x: Any) -> Callable[..., Any] | None:
    """The faster form of an operation on tensors such as `x`; None where there is none."""
    return FAST.get((operation, _platform(x) or ""))


def with_faster_forms(function: Any) -> Callable[..., Any]:
    """Decorator of an operation `name` or `_name`: its faster form is called where there is one."""
    operation = function.__name__.lstrip("_")

    @functools.wraps(function)
    def call(x: Any, *arguments: Any) -> Any:
        return (fast_path(operation, x) or function)(x, *arguments)

    return call


def is_torch_tensor(x: Any) -> bool:
    """Whether `x` is a tensor of PyTorch itself, on a CPU or on CUDA, in a program that is not exported or traced."""
    return _platform(x) in PLATFORMS.values()


def _platform(x: Any) -> str | None:
    """The backend, where `x` lies on a CPU or a program will run on one; one of `PLATFORMS`; otherwise None."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.jit.is_tracing() or torch.compiler.is_exporting():
            return None
        return "torch elsewhere" if torch.compiler.is_compiling() else PLATFORMS.get(x.device.type)
    if backend == "jax":
        import jax

        return backend if isinstance(x, jax.Array) and jax.default_backend() == "cpu" else None
    if backend == "tensorflow":
        import tensorflow as tf  # whose graphs do not know where they will run

        return backend if isinstance(x, tf.Tensor) and tensorflow_has_only_cpus() else None
    return None


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


@with_faster_forms
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """The product of `x`, `(batch, ..., D)`, with a kernel `(D, units)` of the same dtype, and a bias or None."""
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"  # Keras's product rounds it on PyTorch
    y = ops.einsum("...d,du->...u", x, kernel) if is_wide else ops.matmul(x, kernel)
    return y if bias is None else y + bias


@faster("dense", "jax")
def _dense_in_jax(x: Any, kernel: Any, bias: Any) -> Any:
    # A product of two axes: the gradients of one of three are transposed by XLA for CPUs.
    rows, (units_in, units) = x.reshape(-1, x.shape[-1]), kernel.shape
    y = _widening_product()(rows, kernel) if units > units_in else rows @ kernel
    return (y if bias is None else y + bias).reshape(*x.shape[:-1], units)


@functools.cache
def _widening_product() -> Any:
    """The product of two matrices; for the gradient of the second one, the first one is transposed beforehand."""
    # A product along the rows of both, as this gradient is, goes to a kernel of XLA for CPUs that takes twice as long
    # where the second one is the wider. The barriers keep the transposed copy from being simplified away.
    import jax
    from jax.custom_derivatives import SymbolicZero

    @jax.custom_jvp
    def product(x: Any, kernel: Any) -> Any:
        return x @ kernel

    def differentiate(primals: Any, tangents: Any) -> Any:
        (x, kernel), (d_x, d_kernel) = primals, tangents
        y = product(x, kernel)
        terms = [] if type(d_x) is SymbolicZero else [product(d_x, kernel)]
        if type(d_kernel) is not SymbolicZero:
            columns = jax.lax.optimization_barrier(jax.lax.optimization_barrier(x).T)
            terms.append(jax.lax.dot_general(columns, d_kernel, (((0,), (0,)), ((), ()))))
        return y, sum(terms[1:], terms[0]) if terms else jax.numpy.zeros_like(y)

    product.defjvp(differentiate, symbolic_zeros=True)
    return product


@faster("dense", "tensorflow")
def _dense_in_tensorflow(x: Any, kernel: Any, bias: Any) -> Any:
    # Directly before its bias: TensorFlow makes one operation of both. Exporters need the sizes that are known.
    import tensorflow as tf

    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    sizes = x.shape[:-1].as_list()
    if sizes.count(None) > 1:
        sizes = [tf.shape(x)[i] if size is None else size for i, size in enumerate(sizes)]
    return tf.reshape(y, [*(-1 if size is None else size for size in sizes), y.shape[-1]])


@faster("dense", "torch elsewhere")
def _linear(x: Any, kernel: Any, bias: Any) -> Any:
    import torch.nn.functional as F

    return F.linear(x, kernel.t(), bias)


@faster("dense", "torch")
def _dense_in_torch(x: Any, kernel: Any, bias: Any) -> Any:
    return _in_float32(_linear, x, kernel, bias) if _torch_lacks(x.dtype) else _linear(x, kernel, bias)


@functools.cache
def _torch_lacks(dtype: Any) -> bool:
    """Whether the processor, x86 or ARM, has no instructions for products of 16 bits: seventy times as slow."""
    import torch

    # PyTorch's own check for oneDNN is content with AVX-512 that has none of them.
    wanted, found = _INSTRUCTIONS.get(keras.backend.standardize_dtype(dtype)), torch.cpu.get_capabilities()
    return bool(wanted) and torch.backends.mkldnn.is_available() and not any(found.get(name) for name in wanted)


def _in_float32(function: Callable[..., Any], *tensors: Any) -> Any:
    """A function of tensors of PyTorch, rounded to the dtype of the first."""
    return function(*(None if tensor is None else tensor.float() for tensor in tensors)).to(tensors[0].dtype)


@with_faster_forms
def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """A convolution of `(batch, height, width, channels)` with kernel `(rows, columns, channels, filters)`, no bias."""
    if isinstance(padding, int):  # so many zeros on every side
        x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
        padding = "valid"
    return ops.conv(x, kernel, strides, padding, data_format="channels_last")


@faster("conv", "jax")
def _conv_in_jax(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    # A product where no value is in two windows.
    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else tuple(strides)
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):  # of a window of one place, "same" needs none
        x, strides, padding = x[:, :: strides[0], :: strides[1]], (1, 1), "valid"
    batch, height, width, _ = x.shape
    if padding != "valid" or strides != (rows, columns) or height % rows or width % columns:
        return inspect.unwrap(conv)(x, kernel, strides, padding)
    x = x.reshape(batch, height // rows, rows, width // columns, columns, channels)
    x = x.swapaxes(2, 3).reshape(batch, height // rows, width // columns, rows * columns * channels)
    return _dense_in_jax(x, kernel.reshape(-1, filters), None)


@faster("conv", "torch")
def _conv_in_torch(x: Any, kernel: Any, *options: Any) -> Any:
    if _torch_lacks(x.dtype):
        return _in_float32(lambda x, kernel: _conv_of_views(x, kernel, *options), x, kernel)
    return _conv_of_views(x, kernel, *options)


@faster("conv", "torch elsewhere")
def _conv_of_views(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int | list[int]) -> Any:
    # Of the same memory, which PyTorch calls channels_last; a product where it is one.
    import torch.nn.functional as F

    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else strides
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):
        return F.linear(x[:, :: strides[0], :: strides[1]], kernel.reshape(channels, filters).t())
    x = x.permute(0, 3, 1, 2)
    if padding == "same":
        margins = []
        for size, window, step in zip(x.shape[2:], (rows, columns), strides, strict=True):
            total = max((-(-size // step) - 1) * step + window - size, 0)
            margins.append((total // 2, total - total // 2))
        if any(before != after for before, after in margins):
            x, padding = F.pad(x, (*margins[1], *margins[0])), 0
        else:
            padding = [before for before, _ in margins]
    # Transposing a matrix is what PyTorch copies quickest; the view of it is channels_last.
    kernel = kernel.reshape(-1, filters).t().contiguous().view(filters, rows, columns, channels).permute(0, 3, 1, 2)
    return F.conv2d(x, kernel, None, strides, 0 if padding == "valid" else padding).permute(0, 2, 3, 1)


def attention(query: Any, key: Any, value: Any, flash_attention: bool | None = None, is_causal: bool = False) -> Any:
    """Softmax of the scaled scores, times the values: all `(batch, tokens, heads, d)`; the rest as in Keras's."""
    if keras.backend.backend() == "torch":
        return _attention_in_torch(query, key, value, is_causal)
    if (fast := fast_path("attention", query)) is not None:
        return fast(query, key, value, is_causal)
    if keras.backend.standardize_dtype(query.dtype) == "float64":  # which Keras rounds to float32
        return ops.einsum("bhqk,bkhd->bqhd", attention_weights(query, key, is_causal), value)
    return ops.dot_product_attention(query, key, value, is_causal=is_causal, flash_attention=flash_attention)


def attention_weights(query: Any, key: Any, is_causal: bool = False) -> Any:
    """Softmax of the scaled scores, `(batch, heads, Q, T)`, computed in at least float32 as in the original."""
    scores = widened(ops.einsum("bqhd,bkhd->bhqk", query * (query.shape[-1] ** -0.5), key))
    return ops.softmax(_without_later_keys(scores) if is_causal else scores)


def _without_later_keys(scores: Any) -> Any:
    return ops.where(ops.tri(*scores.shape[-2:], dtype="bool"), scores, -math.inf)


@faster("attention", "jax")
def _attention_in_jax(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    # Heads before tokens, so that XLA for CPUs sees products of matrices and transposes nothing inside them.
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return _attend(is_causal)(query * query.shape[-1] ** -0.5, key, value).swapaxes(1, 2)


@functools.cache
def _attend(is_causal: bool) -> Any:
    # The sums that softmax divides by divide the result, which is smaller than the weights: no second array of all
    # weights is written, and none is kept for the gradients, which are those of FlashAttention (arXiv 2205.14135, B.2).
    import jax
    import jax.numpy as jnp

    def scores(query: Any, key: Any) -> Any:
        # Summed and kept in at least float32, as everything up to the result is.
        wide = jnp.promote_types(query.dtype, jnp.float32)
        return jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=wide)

    def mixed(weights: Any, value: Any) -> Any:
        # Weights are up to 1, and their sum up to the number of tokens, which float16 could not hold.
        weights, dtype = weights.astype(value.dtype), weights.dtype
        return jnp.einsum("bhqk,bhkd->bhqd", weights, value, preferred_element_type=dtype)

    def parts(query: Any, key: Any, value: Any) -> Any:
        weights = _without_later_keys(scores(query, key)) if is_causal else scores(query, key)
        weights = jnp.exp(weights - weights.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        return weights, total, mixed(weights, value) / total

    @jax.custom_jvp
    def attend(query: Any, key: Any, value: Any) -> Any:
        return parts(query, key, value)[-1].astype(value.dtype)

    @attend.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        (query, key, value), (d_query, d_key, d_value) = primals, tangents
        weights, total, y = parts(query, key, value)
        d_weights = weights * (scores(d_query, key) + scores(query, d_key))
        d_y = mixed(d_weights, value) + mixed(weights, d_value) - d_weights.sum(-1, keepdims=True) * y
        return y.astype(value.dtype), (d_y / total).astype(value.dtype)

    return attend


@faster("attention", "tensorflow")
def _attention_in_tensorflow(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    # Keras takes `Einsum`, which adds up in bfloat16 where the tokens are in bfloat16, and takes twenty times as long.
    import tensorflow as tf

    dtype = query.dtype
    query, key, value = (widened(tf.transpose(x, (0, 2, 1, 3))) for x in (query, key, value))
    scores = tf.matmul(query * query.shape[-1] ** -0.5, key, transpose_b=True)
    weights = tf.nn.softmax(_without_later_keys(scores) if is_causal else scores)
    return tf.transpose(tf.cast(tf.matmul(weights, value), dtype), (0, 2, 1, 3))


def _attention_in_torch(query: Any, key: Any, value: Any, is_causal: bool) -> Any:
    # On any device and in programs that are traced: PyTorch chooses the kernel. Keras's choice breaks `torch.compile`.
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2)


@with_faster_forms
def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Layer normalisation over the last axis, computed in at least float32."""
    # Not Keras's, whose variance has a `stop_gradient` of the mean on TensorFlow: second derivatives are wrong.
    if keras.backend.backend() == "torch":
        return _layer_norm_in_torch(x, gamma, beta, epsilon)
    centred = widened(x)
    centred = centred - mean(centred, -1)
    scale = ops.rsqrt(mean(ops.square(centred), -1) + epsilon) * widened(gamma)
    return ops.cast(centred * scale + widened(beta), x.dtype)


@faster("layer_norm", "jax")
def _layer_norm_in_jax(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    # On two axes as the products beside it are.
    rows = widened(x.reshape(-1, x.shape[-1]))
    y = _normalize()(rows, epsilon) * gamma.astype(rows.dtype) + beta.astype(rows.dtype)
    return y.astype(x.dtype).reshape(x.shape)


@functools.cache
def _normalize() -> Any:
    import jax

    def parts(x: Any, epsilon: float) -> Any:
        x = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
        return x * scale, scale

    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def normalize(x: Any, epsilon: float) -> Any:
        return parts(x, epsilon)[0]

    @normalize.defjvp
    def differentiate(epsilon: float, primals: Any, tangents: Any) -> Any:
        y, scale = parts(*primals, epsilon)
        (d_x,) = tangents  # the gradient needs the result and no more
        return y, scale * (d_x - d_x.mean(-1, keepdims=True) - y * (y * d_x).mean(-1, keepdims=True))

    return normalize


def _layer_norm_in_torch(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    # One operation, on any device and in programs that are traced; on CPUs and CUDA it computes in float32 inside.
    import torch
    import torch.nn.functional as F

    wide = x.dtype if x.device.type in ("cpu", "cuda") else torch.promote_types(x.dtype, torch.float32)
    return F.layer_norm(x.to(wide), x.shape[-1:], gamma.to(wide), beta.to(wide), epsilon).to(x.dtype)


def activate(x: Any, kind: str | None, fresh: bool = False) -> Any:
    """An activation: one of `choices.HEAD_ACTIVATIONS`, or None for none; a `fresh` tensor may be written over."""
    if kind is None:
        return x
    if (fast := fast_path(kind, x)) is not None:
        return fast(x, fresh)
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    return getattr(ops, kind)(x) if kind in ("relu", "silu") else ops.gelu(x, approximate=kind == "tanh")


@faster("tanh", "jax")
def _gelu_tanh_in_jax(x: Any, fresh: bool = False) -> Any:
    return _gelu_of_jax()(widened(x)).astype(x.dtype)


@functools.cache
def _gelu_of_jax() -> Any:
    """The tanh approximation of GELU, which keeps x and nothing else for its gradient."""
    # The sigmoid is written in two ways, as XLA would keep what both have in common. The second one loses nothing where
    # the sigmoid is nearly 1, unlike one made of a tanh (2e-7 instead of 4e-6).
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def gelu(x: Any) -> Any:
        # Division comes last: XLA repeats products in what reads them, here in the slow copy of _widening_product.
        return x / (1 + jnp.exp(-x * (_GELU_LINEAR + _GELU_CUBIC * x * x)))

    @gelu.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        (x,), (d_x,) = primals, tangents
        e = jnp.exp(-jnp.abs(x) * (_GELU_LINEAR + _GELU_CUBIC * x * x))
        s = 1 / (1 + e)  # the sigmoid of what is positive; that of the negative is e s, and the slope of both e s^2
        slope = e * s * s * x * (_GELU_LINEAR + 3 * _GELU_CUBIC * x * x)
        return gelu(x), d_x * (jnp.where(x < 0, e * s, s) + slope)

    return gelu


def _overwrites(x: Any, fresh: bool) -> bool:
    import torch

    # Fresh memory costs more than the arithmetic: Linux hands it out in pages of 4 KiB, each after a fault.
    return fresh and x.is_contiguous() and not (x.requires_grad and torch.is_grad_enabled()) and not is_recorded()


@faster("relu", "torch", "torch elsewhere")
def _relu_in_torch(x: Any, fresh: bool = False) -> Any:
    return x.relu_() if _overwrites(x, fresh) else x.relu()


@faster("quick", "torch")
def _gelu_quick_in_torch(x: Any, fresh: bool = False) -> Any:
    if not _overwrites(x, fresh):
        return x * (1.702 * x).sigmoid_()
    for piece in _pieces(x):
        piece.mul_((1.702 * piece).sigmoid_())
    return x


@faster("tanh", "torch elsewhere")
def _gelu_of_aten(x: Any, fresh: bool = False, approximate: str = "tanh") -> Any:
    import torch

    gelu = torch.ops.aten.gelu_ if _overwrites(x, fresh) else torch.ops.aten.gelu
    return gelu(x, approximate=approximate)


faster("exact", "torch", "torch elsewhere")(functools.partial(_gelu_of_aten, approximate="none"))


@faster("tanh", "torch")
def _gelu_tanh_in_torch(x: Any, fresh: bool = False) -> Any:
    import torch

    if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < FEW:
        return _gelu_of_aten(x, fresh)
    if not _overwrites(x, fresh):
        return _gelu_of_torch().apply(x)
    for piece in _pieces(x):
        piece.mul_(_gelu_factor(piece.float()))  # computed in at least float32
    return x


def _pieces(x: Any) -> list[Any]:
    # Slices, because PyTorch lets nobody write over what `split` gives.
    flat = x.reshape(-1)
    return [flat[start : start + PIECE] for start in range(0, len(flat), PIECE)]


def _gelu_factor(x: Any) -> Any:
    return x.new_tensor(_GELU_LINEAR).addcmul(x, x, value=_GELU_CUBIC).mul_(x).sigmoid_()


@functools.cache
def _gelu_of_torch() -> Any:
    """The tanh approximation of GELU, which keeps x alone. PyTorch's gradient can be differentiated again."""
    import torch

    def slope(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(grad, x, approximate="tanh")

    class _Gelu(torch.autograd.Function):
        backward = jvp = staticmethod(slope)

        @staticmethod
        def forward(x: Any) -> Any:
            y = torch.empty_like(x, memory_format=torch.contiguous_format)
            for source, target in zip(_pieces(x), _pieces(y), strict=True):
                torch.mul(source, _gelu_factor(source.float()), out=target)
            return y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any) -> Any:
            return _Gelu.apply(x), in_dims[0]

    return _Gelu
