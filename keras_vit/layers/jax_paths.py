"""What `ops.py` computes in another way than Keras does, in JAX on CPUs.

XLA decides in which order and in how many passes a program runs; these functions are written so that its compiler for
CPUs (JAX 0.10) finds quick ones. All but `remat` can be differentiated forwards, backwards and more than once, and
mapped with `jax.vmap`. docs/speed.md has the measurements.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras_vit.layers.common import GELU_CUBIC, GELU_LINEAR, padded_conv


def attention(query: Any, key: Any, value: Any) -> Any:
    """Heads before tokens, so that XLA for CPUs sees products of matrices and transposes nothing inside them."""
    import jax.numpy as jnp

    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    return jnp.swapaxes(_attend()(query * query.shape[-1] ** -0.5, key, value), 1, 2)


@functools.cache
def _attend() -> Any:
    """Attention of one head to its own, of `(batch, heads, tokens, length)`, as a differentiable function.

    The sums that softmax divides by divide the result, which is smaller than the weights: no second array of all
    weights is written, and none is kept for the gradients, which are those of FlashAttention (arXiv 2205.14135, B.2).
    """
    import jax
    import jax.numpy as jnp

    def scores(query: Any, key: Any) -> Any:
        """Summed and kept in at least float32, as everything up to the result is."""
        wide = jnp.promote_types(query.dtype, jnp.float32)
        return jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=wide)

    def mixed(weights: Any, value: Any) -> Any:
        """Weights are up to 1, and their sum up to the number of tokens, which float16 could not hold."""
        weights, dtype = weights.astype(value.dtype), weights.dtype
        return jnp.einsum("bhqk,bhkd->bhqd", weights, value, preferred_element_type=dtype)

    def parts(query: Any, key: Any, value: Any) -> Any:
        weights = scores(query, key)
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


def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """A product of two matrices: the gradients of a longer one are transposed by XLA for CPUs."""
    import jax.numpy as jnp

    rows, (units_in, units) = jnp.reshape(x, (-1, x.shape[-1])), kernel.shape
    y = (_widening_product() if units > units_in else jnp.matmul)(rows, kernel)
    y = y if bias is None else y + bias
    return jnp.reshape(y, (*x.shape[:-1], units))


@functools.cache
def _widening_product() -> Any:
    """The product of two matrices, with a gradient of the second one for which the first one is transposed beforehand.

    A product along the rows of both matrices, which this gradient is, goes to a kernel of XLA for CPUs that takes
    twice as long where the second one is the wider. The barriers keep the transposed copy from being simplified away.
    """
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


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Computed in at least float32, on two axes as the products beside it are."""
    import jax.numpy as jnp

    wide = jnp.promote_types(x.dtype, jnp.float32)
    rows = jnp.reshape(x, (-1, x.shape[-1])).astype(wide)
    y = _normalize()(rows, epsilon) * gamma.astype(wide) + beta.astype(wide)
    return jnp.reshape(y.astype(x.dtype), x.shape)


@functools.cache
def _normalize() -> Any:
    """Rows with mean 0 and variance 1, as a differentiable function: its gradient needs the result and no more."""
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


def gelu_tanh(x: Any) -> Any:
    """Computed in at least float32."""
    import jax.numpy as jnp

    return _gelu_function()(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)


@functools.cache
def _gelu_function() -> Any:
    """The tanh approximation of GELU as a differentiable function, which keeps x and nothing else for its gradient.

    The sigmoid is written in one way here and in another one there: XLA would keep what both have in common. The other
    one loses nothing where the sigmoid is nearly 1, unlike one made of a tanh (2e-7 instead of 4e-6).
    """
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


def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """A product where no value is in two windows."""
    import jax.numpy as jnp

    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else tuple(strides)
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):
        # Of a window of one place, "same" needs no padding.
        x, strides, padding = x[:, :: strides[0], :: strides[1]], (1, 1), "valid"
    batch, height, width, _ = x.shape
    if padding != "valid" or strides != (rows, columns) or height % rows or width % columns:
        return padded_conv(x, kernel, strides, padding)
    x = jnp.reshape(x, (batch, height // rows, rows, width // columns, columns, channels))
    x = jnp.reshape(jnp.swapaxes(x, 2, 3), (batch, height // rows, width // columns, rows * columns * channels))
    return dense(x, jnp.reshape(kernel, (-1, filters)), None)


def group_norm(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Moments of channels first, then of their groups: sums over whole axes are what XLA for CPUs does sooner."""
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    shape = (x.shape[0], groups, x.shape[-1] // groups)
    mean, variance = (jnp.reshape(moment, shape) for moment in (wide.mean((1, 2)), jnp.var(wide, (1, 2))))
    center = mean.mean(-1, keepdims=True)
    variance = variance.mean(-1, keepdims=True) + jnp.var(mean, -1, keepdims=True)
    scale = jax.lax.rsqrt(variance + epsilon) * jnp.reshape(gamma.astype(wide.dtype), shape[1:])
    shift = jnp.reshape(beta.astype(wide.dtype), shape[1:]) - center * scale
    scale, shift = (jnp.reshape(factor, (x.shape[0], 1, 1, x.shape[-1])) for factor in (scale, shift))
    return (wide * scale + shift).astype(x.dtype)


def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """Rows first, then columns: XLA for CPUs compares all values of a window, six here and nine at once."""
    import jax

    for axis in (1, 2):
        window, steps = [1] * 4, [1] * 4
        window[axis], steps[axis] = size[axis - 1], strides[axis - 1]
        x = jax.lax.reduce_window(x, -math.inf, jax.lax.max, window, steps, padding.upper())
    return x


def remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Recomputes a function for its gradients, not before they are asked for.

    XLA for CPUs drops the barriers of `jax.checkpoint` before it decides in which order to compute: it recomputes all
    blocks at once and keeps as much as without. Here, the first argument of the second run needs the gradient of the
    output, which is there only when the blocks behind are done. Such a program has no derivative forwards
    (`jax.jvp`), but those of its gradients.
    """
    import jax
    import jax.numpy as jnp

    def call(*arguments: Any) -> Any:
        pure, weights = jax.closure_convert(function, *arguments)

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
        return run(arguments, weights)

    return call
