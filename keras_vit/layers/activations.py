"""GELU in its three forms and ReLU, with faster forms for PyTorch and JAX (see `ops.py`)."""

import functools
import math
from typing import Any

from keras import ops

from keras_vit._keras import is_recorded
from keras_vit.layers.ops import fast_path, faster, widened

# The tanh approximation of GELU, x/2 (1 + tanh(c x + d x^3)), is x sigmoid(2 c x + 2 d x^3).
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR
PIECE = 1 << 20  # values that PyTorch works on at a time, so that they stay in the processor's cache between steps
FEW = 1 << 17  # values that PyTorch's own GELU does as soon as four operations


def activate(x: Any, kind: str | None, fresh: bool = False) -> Any:
    """An activation: one of `choices.HEAD_ACTIVATIONS`, or None for none; a `fresh` tensor may be written over."""
    if kind is None:
        return x
    fast = fast_path(kind, x)
    if fast is not None:
        return fast(x, fresh)
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    return getattr(ops, kind)(x) if kind in ("relu", "silu") else ops.gelu(x, approximate=kind == "tanh")


@faster("tanh", "jax")
def _gelu_tanh_in_jax(x: Any, fresh: bool = False) -> Any:
    return _gelu_of_jax()(widened(x)).astype(x.dtype)


@functools.cache
def _gelu_of_jax() -> Any:
    """The tanh approximation of GELU, which keeps x and nothing else for its gradient.

    The sigmoid is written in two ways, as XLA would keep what both have in common. The second one loses nothing where
    the sigmoid is nearly 1, unlike one made of a tanh (2e-7 instead of 4e-6).
    """
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


@faster("exact", "torch", "torch elsewhere")
def _gelu_exact_in_torch(x: Any, fresh: bool = False) -> Any:
    import torch

    return (torch.ops.aten.gelu_ if _overwrites(x, fresh) else torch.ops.aten.gelu)(x)


@faster("tanh", "torch elsewhere")
def _gelu_of_aten(x: Any, fresh: bool = False) -> Any:
    import torch

    return (torch.ops.aten.gelu_ if _overwrites(x, fresh) else torch.ops.aten.gelu)(x, approximate="tanh")


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
