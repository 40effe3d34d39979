"""What `ops.py` computes in another way than Keras does, in PyTorch on CPUs.

Tensors are those of a program that runs: what is traced or compiled goes Keras's way. docs/speed.md has the
measurements.
"""

import functools
from collections.abc import Callable
from typing import Any

from keras_vit._keras import is_recorded
from keras_vit.layers.common import GELU_CUBIC, GELU_LINEAR

# Values that are worked on at a time, so that they stay in the processor's cache between one step and the next.
_PIECE = 1 << 20
# Values that PyTorch's own GELU does as soon as four operations (docs/speed.md).
_FEW = 1 << 17


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """Without Keras's search for symbolic tensors."""
    return x.reshape(shape)


@functools.cache
def _lacks(dtype: Any) -> bool:
    """Whether the processor has no instructions for products in a dtype of 16 bits.

    PyTorch 2.13 then takes up to seventy times as long as in float32.
    """
    import torch

    if not torch.backends.mkldnn.is_available():
        return False
    supports = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    return dtype in supports and not getattr(torch.ops.mkldnn, supports[dtype])()


def _in_float32(function: Callable[..., Any], *tensors: Any) -> Any:
    """A function of tensors, rounded to the dtype of the first."""
    return function(*(None if tensor is None else tensor.float() for tensor in tensors)).to(tensors[0].dtype)


def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """The bias is added inside the product."""
    import torch.nn.functional as F

    if _lacks(x.dtype):
        return _in_float32(dense, x, kernel, bias)
    return F.linear(x, kernel.t(), bias)


def attention(query: Any, key: Any, value: Any) -> Any:
    """PyTorch's fused operation on views of the same memory."""
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """One operation, which computes in float32 inside."""
    import torch.nn.functional as F

    return F.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)


def layer_norm_anywhere(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """The same operation for devices where all its inputs have to be of one dtype, and for programs that are traced."""
    import torch

    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return layer_norm(x.to(wide), gamma.to(wide), beta.to(wide), epsilon).to(x.dtype)


def group_norm(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """One operation on a view of the same memory; it computes in float32 inside."""
    import torch
    import torch.nn.functional as F

    view = x.permute(0, 3, 1, 2)
    if x.requires_grad or not torch.is_grad_enabled():
        return F.group_norm(view, groups, gamma, beta, epsilon).permute(0, 2, 3, 1)
    # PyTorch 2.13 ends the process when it looks for the gradients of gamma and beta and not for that of x.
    return F.group_norm(view, groups, eps=epsilon).permute(0, 2, 3, 1) * gamma + beta


def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int | list[int]) -> Any:
    """A convolution on views of the same memory, which PyTorch calls channels_last; a product where it is one."""
    import torch.nn.functional as F

    if _lacks(x.dtype):
        return _in_float32(lambda x, kernel: conv(x, kernel, strides, padding), x, kernel)
    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else strides
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):
        # Without padding: of a window of one place, "same" needs none.
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


def _overwrites(x: Any, fresh: bool) -> bool:
    """Whether x may be written over: the caller has made it, no gradient needs it, and nobody records operations.

    Fresh memory costs more than the arithmetic: Linux hands it out in pages of 4 KiB, each after a fault.
    """
    import torch

    return fresh and x.is_contiguous() and not (x.requires_grad and torch.is_grad_enabled()) and not is_recorded()


def relu(x: Any, fresh: bool = False) -> Any:
    """In place of x if it may be."""
    return x.relu_() if _overwrites(x, fresh) else x.relu()


def gelu_exact(x: Any, fresh: bool = False) -> Any:
    """In place of x if it may be."""
    import torch
    import torch.nn.functional as F

    return torch.ops.aten.gelu_(x) if _overwrites(x, fresh) else F.gelu(x)


def gelu_tanh(x: Any, fresh: bool = False) -> Any:
    """In four operations, computed in at least float32; in place of x if it may be."""
    import torch
    import torch.nn.functional as F

    overwrites = _overwrites(x, fresh)
    if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < _FEW:
        return torch.ops.aten.gelu_(x, approximate="tanh") if overwrites else F.gelu(x, approximate="tanh")
    if not overwrites:
        return _gelu_function().apply(x)
    for piece in _pieces(x):
        piece.mul_(_gelu_factor(piece.float()))
    return x


def _pieces(x: Any) -> list[Any]:
    """Views that stay in the cache: slices, because PyTorch lets nobody write over what `split` gives."""
    flat = x.reshape(-1)
    return [flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE)]


def _gelu_factor(x: Any, out: Any = None) -> Any:
    """What x is multiplied with, sigmoid(2 (c x + d x^3))."""
    import torch

    out = torch.addcmul(x.new_tensor(GELU_LINEAR), x, x, value=GELU_CUBIC, out=out)
    return out.mul_(x).sigmoid_()


@functools.cache
def _gelu_function() -> Any:
    """The tanh approximation of GELU as a differentiable function, in pieces that stay in the cache."""
    import torch

    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            """Gives x sigmoid(2 (c x + d x^3)), computed in float32 whatever x is in."""
            y = torch.empty_like(x, memory_format=torch.contiguous_format)
            for a, b in zip(_pieces(x), _pieces(y), strict=True):
                work = a.float()
                s = _gelu_factor(work, b if b.dtype == work.dtype else None).mul_(work)
                if s is not b:
                    b.copy_(s)
            return y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Keeps x and nothing else, as PyTorch's operation does."""
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            """The slope, worked out from x again, by PyTorch's operation, which can be differentiated again."""
            (x,) = ctx.saved_tensors
            return torch.ops.aten.gelu_backward(grad, x, approximate="tanh")

        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            """The same slope in forward mode."""
            (x,) = ctx.saved_tensors
            return torch.ops.aten.gelu_backward(tangent, x, approximate="tanh")

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any) -> Any:
            """The function works on each value by itself, whatever the axes."""
            return Gelu.apply(x), in_dims[0]

    return Gelu
