"""JAX on CPUs, where XLA makes too much of some operations. Derivatives are `custom_jvp`, which has forward mode."""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras_vit.layers.fast import GELU_CUBIC, GELU_LINEAR, JAX_CPU, faster


def _widened(x: Any) -> Any:
    import jax.numpy as jnp

    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


# A patch embedding trained: 36.2 to 24.3; convolutions 1 x 1: 1.72 to 1.55 (one thread).
@faster("conv", JAX_CPU)
def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """Returns as `ops.conv`, by a product, for 1 x 1 kernels or unpadded patches that fit; else NotImplemented."""
    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else tuple(strides)
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):  # of a window of one place, "same" needs none
        x, strides, padding = x[:, :: strides[0], :: strides[1]], (1, 1), "valid"
    batch, height, width, _ = x.shape
    if padding != "valid" or strides != (rows, columns) or height % rows or width % columns:
        return NotImplemented
    x = x.reshape(batch, height // rows, rows, width // columns, columns, channels)
    x = x.swapaxes(2, 3).reshape(batch, height // rows, width // columns, rows * columns * channels)
    return dense(x, kernel.reshape(-1, filters), None)


# 32.4 to 20.1 trained (one thread, two blocks, batch 4).
@faster("layer_normalization", JAX_CPU)
def layer_normalization(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Returns as `ops.layer_normalization`, on two axes as the products beside it are."""
    rows = _widened(x.reshape(-1, x.shape[-1]))
    y = _normalize()(rows, epsilon) * gamma.astype(rows.dtype) + beta.astype(rows.dtype)
    return y.astype(x.dtype).reshape(x.shape)


@functools.cache
def _normalize() -> Any:
    """Returns a function, made once, of rows and epsilon: the rows with mean 0 and variance 1."""
    # The gradient is made of the result: JAX's writes factors for every value.
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
        (d_x,) = tangents
        return y, scale * (d_x - d_x.mean(-1, keepdims=True) - y * (y * d_x).mean(-1, keepdims=True))

    return normalize


# 121 to 118, g 331 to 262; gradients of the kernels of two blocks 356 to 280 (one thread, batch 4).
@faster("dense", JAX_CPU)
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns as `ops.dense`, a product of two axes: XLA transposes the gradients of one of three."""
    rows, (units_in, units) = x.reshape(-1, x.shape[-1]), kernel.shape
    y = _widening_product()(rows, kernel) if units > units_in else rows @ kernel
    return (y if bias is None else y + bias).reshape(*x.shape[:-1], units)


@functools.cache
def _widening_product() -> Any:
    """Returns a function, made once: the product of two matrices."""
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


# 67.5 to 28.3, g 166 to 123; in bfloat16 78.8 to 33.8, g 174 to 152.
@faster("attention", JAX_CPU)
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Returns as `ops.attention`, computed with heads before tokens; NotImplemented for float16."""
    # XLA sees products of matrices and transposes nothing inside them.
    if query.dtype == "float16":  # of which XLA for CPUs does not know every product into float32
        return NotImplemented
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return _attend(is_causal)(query * query.shape[-1] ** -0.5, key, value).swapaxes(1, 2)


@functools.cache
def _attend(is_causal: bool) -> Any:
    """Returns a function, made once, of scaled queries, keys and values `(batch, heads, tokens, d)`: the attention."""
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
        weights = scores(query, key)
        if is_causal:
            weights = jnp.where(jnp.tri(*weights.shape[-2:], dtype=bool), weights, -math.inf)
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


# 27.9 to 19.4 trained (one thread, two blocks, batch 4).
@faster("tanh", JAX_CPU)
def gelu_tanh(x: Any) -> Any:
    """Returns as `ops.activate(x, "tanh")`, which keeps x and nothing else for its gradient."""
    return _gelu()(_widened(x)).astype(x.dtype)


@functools.cache
def _gelu() -> Any:
    """Returns a function, made once: the GELU by tanh of an array; its derivative has one exponential."""
    # The sigmoid is written in two ways, as XLA would keep what both have in common. The second one loses nothing where
    # the sigmoid is nearly 1, unlike one made of a tanh (2e-7 instead of 4e-6).
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def gelu(x: Any) -> Any:
        # Division comes last: XLA repeats products in what reads them, here in the slow copy of _widening_product.
        return x / (1 + jnp.exp(-x * (GELU_LINEAR + GELU_CUBIC * x * x)))

    @gelu.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        (x,), (d_x,) = primals, tangents
        e = jnp.exp(-jnp.abs(x) * (GELU_LINEAR + GELU_CUBIC * x * x))
        s = 1 / (1 + e)  # the sigmoid of what is positive; that of the negative is e s, and the slope of both e s^2
        slope = e * s * s * x * (GELU_LINEAR + 3 * GELU_CUBIC * x * x)
        return gelu(x), d_x * (jnp.where(x < 0, e * s, s) + slope)

    return gelu


# ViT-S/16 trained, batch 16: at most 998 MB for the process, not 2,075; 2,083 with `jax.checkpoint`.
@faster("rematerialized", JAX_CPU)
def rematerialized(x: Any, function: Callable[..., Any], *tensors: Any) -> Any:
    """Returns as `ops.rematerialized`, with derivatives backwards only, and those of its gradients."""
    # XLA for CPUs drops the barriers of `jax.checkpoint` before it decides in which order to compute: it recomputes all
    # blocks at once and keeps as much as without. Here, the first argument of the second run needs the gradient of the
    # output, which is there only when the blocks behind are done.
    import jax
    import jax.numpy as jnp

    pure, weights = jax.closure_convert(function, x, *tensors)

    @jax.custom_vjp
    def run(arguments: tuple[Any, ...], weights: list[Any]) -> Any:
        return pure(*arguments, *weights)

    def forward(arguments: tuple[Any, ...], weights: list[Any]) -> Any:
        return pure(*arguments, *weights), (arguments, weights)

    def backward(inputs: Any, grads: Any) -> Any:
        (x, *others), weights = inputs
        grad = jax.tree.leaves(grads)[-1].reshape(-1)[:1].sum()
        # XLA does not know that this is zero. It is so for infinities as well, which stay with their image.
        zero = 0 * jnp.where(jnp.isfinite(grad), grad, 0)
        return jax.vjp(run.fun, (x + zero.astype(x.dtype), *others), weights)[1](grads)

    run.defvjp(forward, backward)
    return run((x, *tensors), weights)


# 1.76 to 0.17 for 56 x 56 x 64, 0.23 to 0.19 for 14 x 14 x 1024 (one thread).
@faster("group_normalization", JAX_CPU)
def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Returns as `ops.group_normalization`: moments of channels first, as XLA sums over whole axes sooner."""
    import jax

    wide = _widened(x)
    shape = (x.shape[0], groups, x.shape[-1] // groups)
    mean, variance = (moment.reshape(shape) for moment in (wide.mean((1, 2)), wide.var((1, 2))))
    center = mean.mean(-1, keepdims=True)
    variance = variance.mean(-1, keepdims=True) + mean.var(-1, keepdims=True)
    scale = jax.lax.rsqrt(variance + epsilon) * gamma.astype(wide.dtype).reshape(shape[1:])
    shift = beta.astype(wide.dtype).reshape(shape[1:]) - center * scale
    scale, shift = (factor.reshape(x.shape[0], 1, 1, x.shape[-1]) for factor in (scale, shift))
    return (wide * scale + shift).astype(x.dtype)


# 2.26 to 0.30 for 3 x 3 in steps of 2 of 112 x 112 x 64 (one thread).
@faster("max_pool", JAX_CPU)
def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """Returns as `ops.max_pool`, rows first, then columns: XLA compares six values then, and nine at once."""
    import jax

    for axis in (1, 2):
        window, steps = [1] * 4, [1] * 4
        window[axis], steps[axis] = size[axis - 1], strides[axis - 1]
        x = jax.lax.reduce_window(x, -math.inf, jax.lax.max, window, steps, padding.upper())
    return x
