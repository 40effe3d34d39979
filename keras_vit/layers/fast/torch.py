"""PyTorch on CPUs; on CUDA and in programs that are compiled or traced, its own operations in place of Keras's."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._keras import is_recorded
from keras_vit.layers.fast import TORCH, TORCH_CPU, TORCH_CUDA, faster, onednn

# The tanh approximation of GELU, x/2 (1 + tanh(c x + d x^3)), is x sigmoid(2 c x + 2 d x^3).
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR
PIECE = 1 << 20  # values that PyTorch works on at a time, so that they stay in the processor's cache between steps
FEW = 1 << 17  # values that PyTorch's own GELU does as soon as four operations
_INSTRUCTIONS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "fp16_arith")}


@functools.cache
def lacks_products_of(dtype: Any) -> bool:
    """Whether the processor, x86 or ARM, has no instructions for products of 16 bits: seventy times as slow."""
    import torch

    # PyTorch's check for oneDNN is content with AVX-512, which may lack these instructions.
    wanted, found = _INSTRUCTIONS.get(keras.backend.standardize_dtype(dtype)), torch.cpu.get_capabilities()
    return bool(wanted) and torch.backends.mkldnn.is_available() and not any(found.get(name) for name in wanted)


def _in_float32(function: Callable[..., Any], *tensors: Any) -> Any:
    """A function of tensors, computed in float32 and rounded to the dtype of the first."""
    return function(*(None if tensor is None else tensor.float() for tensor in tensors)).to(tensors[0].dtype)


# Convolutions 3 x 3 of 56 x 56 x 64: 11.3 to 9.5; 1 x 1 of 56 x 56 x 256: 13.1 to 1.6 (one thread).
@faster("conv", TORCH_CPU)
def conv(x: Any, kernel: Any, *options: Any) -> Any:
    """As `ops.conv`; in float32 where the processor has no products of 16 bits."""
    if lacks_products_of(x.dtype):
        return _in_float32(lambda x, kernel: conv_of_views(x, kernel, *options), x, kernel)
    return conv_of_views(x, kernel, *options)


@faster("conv", TORCH_CUDA)
def conv_of_views(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int | list[int]) -> Any:
    """As `ops.conv`, on a view of the same memory, which PyTorch calls channels_last; a product where it is one."""
    import torch.nn.functional as F

    rows, columns, channels, filters = kernel.shape
    strides = (strides, strides) if isinstance(strides, int) else strides
    if (rows, columns) == (1, 1) and padding in ("same", "valid", 0):
        x, kernel = x[:, :: strides[0], :: strides[1]], kernel.reshape(channels, filters)
        return dense(x, kernel, None) if x.device.type == "cpu" else linear(x, kernel, None)
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


# 0.90 to 0.46.
@faster("layer_normalization", *TORCH)
def layer_normalization(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """As `ops.layer_normalization`, in one operation, which computes in float32 inside on CPUs and CUDA."""
    import torch
    import torch.nn.functional as F

    wide = x.dtype if x.device.type in ("cpu", "cuda") else torch.promote_types(x.dtype, torch.float32)
    return F.layer_norm(x.to(wide), x.shape[-1:], gamma.to(wide), beta.to(wide), epsilon).to(x.dtype)


# Not measured alone: a call is shorter. On CUDA, a training step of ViT-Ti waits 37 ms for the host, not 56, with all.
@faster("dense", TORCH_CUDA)
def linear(x: Any, kernel: Any, bias: Any) -> Any:
    """As `ops.dense`."""
    import torch.nn.functional as F

    return F.linear(x, kernel.t(), bias)


# Without instructions for bfloat16: (197, 768) times (768, 3072) 1,204 to 15.7. On an AMD processor with AVX-512, one
# thread: 8.8 to 3.9, g 28 to 12.
@faster("dense", TORCH_CPU)
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """As `ops.dense`: by oneDNN where that is quicker; in float32 where the processor has no products of 16 bits."""
    if lacks_products_of(x.dtype):
        return _in_float32(dense, x, kernel, bias)
    return onednn.linear(x, kernel, bias) if onednn.is_quicker(x, kernel) else linear(x, kernel, bias)


# 12.0 to 10.7, g 38 to 37.
@faster("attention", *TORCH)
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """As `ops.attention`, by the kernel that PyTorch chooses. Keras's choice breaks `torch.compile`."""
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2)


# 4,841,472 values: 15.0 to 6.04.
@faster("tanh", TORCH_CPU)
def gelu_tanh(x: Any) -> Any:
    """As `ops.activate(x, "tanh")`, in four operations on pieces; NotImplemented where PyTorch's own is as quick.

    PyTorch's tanh takes three times as long as its exact GELU.
    """
    return NotImplemented if _pytorch_is_as_quick(x) else _gelu().apply(x)


# 4,841,472 values: 15.0 to 5.64.
@faster("tanh in place", TORCH_CPU)
def gelu_tanh_in_place(x: Any) -> Any:
    """As `gelu_tanh`, written over `x` and returned; NotImplemented where others need its values."""
    if not _may_be_overwritten(x):
        return NotImplemented
    if _pytorch_is_as_quick(x):
        return pytorch_gelu_in_place(x)
    for piece in _pieces(x):
        piece.mul_(_gelu_factor(piece.float()))  # computed in at least float32
    return x


# 4,841,472 values, exact: 9.17 to 2.62. New memory costs more than the arithmetic: Linux hands it out in pages of
# 4 KiB, each after a fault.
@faster("tanh in place", TORCH_CUDA)
def pytorch_gelu_in_place(x: Any, approximate: str = "tanh") -> Any:
    """PyTorch's own GELU, written over `x` and returned; NotImplemented where others need its values."""
    import torch

    return torch.ops.aten.gelu_(x, approximate=approximate) if _may_be_overwritten(x) else NotImplemented


faster("exact in place", TORCH_CPU, TORCH_CUDA)(functools.partial(pytorch_gelu_in_place, approximate="none"))


# Not measured alone; as for GELU.
@faster("relu in place", TORCH_CPU, TORCH_CUDA)
def relu_in_place(x: Any) -> Any:
    """As `ops.activate(x, "relu")`, written over `x` and returned; NotImplemented where others need its values."""
    return x.relu_() if _may_be_overwritten(x) else NotImplemented


# Not measured alone: one new tensor in place of two.
@faster("quick", TORCH_CPU)
def gelu_quick(x: Any) -> Any:
    """As `ops.activate(x, "quick")`."""
    return x * (1.702 * x).sigmoid_()


# Not measured alone; as for GELU.
@faster("quick in place", TORCH_CPU)
def gelu_quick_in_place(x: Any) -> Any:
    """As `ops.activate(x, "quick")`, written over `x` and returned; NotImplemented where others need its values."""
    if not _may_be_overwritten(x):
        return NotImplemented
    for piece in _pieces(x):
        piece.mul_((1.702 * piece).sigmoid_())
    return x


def _may_be_overwritten(x: Any) -> bool:
    """Whether no gradient and no recorder of operations needs the values of a tensor."""
    import torch

    return x.is_contiguous() and not (x.requires_grad and torch.is_grad_enabled()) and not is_recorded()


def _pytorch_is_as_quick(x: Any) -> bool:
    import torch

    return x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < FEW


def _pieces(x: Any) -> list[Any]:
    # Slices, because PyTorch does not allow writing over what `split` returns.
    flat = x.reshape(-1)
    return [flat[start : start + PIECE] for start in range(0, len(flat), PIECE)]


def _gelu_factor(x: Any) -> Any:
    return x.new_tensor(_GELU_LINEAR).addcmul(x, x, value=_GELU_CUBIC).mul_(x).sigmoid_()


@functools.cache
def _gelu() -> Any:
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


# 2.40 to 0.41 for 56 x 56 x 256 (one thread).
@faster("group_normalization", TORCH_CPU, TORCH_CUDA)
def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """As `ops.group_normalization`, one operation on a view of the same memory, which computes in float32 inside."""
    import torch
    import torch.nn.functional as F

    view = x.permute(0, 3, 1, 2)
    if x.requires_grad or not torch.is_grad_enabled():
        return F.group_norm(view, groups, gamma, beta, epsilon).permute(0, 2, 3, 1)
    # PyTorch 2.13 ends the process when it looks for the gradients of gamma and beta and not for that of x.
    return F.group_norm(view, groups, eps=epsilon).permute(0, 2, 3, 1) * gamma + beta


# Not measured alone: with it and products for the transposed convolutions, EoMT-B takes 8.4 s an image, not 11.5.
@faster("depthwise_conv", TORCH_CPU)
def depthwise_conv(x: Any, kernel: Any) -> Any:
    """As `ops.depthwise_conv`, on views of the same memory, which PyTorch calls channels_last."""
    import torch.nn.functional as F

    kernel = kernel.permute(2, 3, 0, 1).contiguous()
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, padding=1, groups=len(kernel)).permute(0, 2, 3, 1)


# Not measured alone.
@faster("resize_bilinear", TORCH_CPU)
def resize_bilinear(x: Any, size: Any, aligned: bool) -> Any:
    """As `resizing.resize_bilinear`."""
    import torch.nn.functional as F

    return F.interpolate(x.permute(0, 3, 1, 2), tuple(size), mode="bilinear", align_corners=aligned).permute(0, 2, 3, 1)


# Not measured alone: one pass over the points in place of thirty.
@faster("sample", *TORCH)
def sample(maps: Any, points: Any) -> Any:
    """As `mask_classification.sample`."""
    from torch.nn.functional import grid_sample

    grid, maps, sizes = 2 * points - 1, maps.to(points.dtype), maps.shape[:-2]
    if grid.ndim == 4 and grid.shape[1] == 1:  # the same for all maps of a picture
        return grid_sample(maps, grid, align_corners=False)[:, :, 0]
    grid = grid.reshape(-1, 1, *grid.shape[-2:])
    found = grid_sample(maps.reshape(-1, 1, *maps.shape[-2:]), grid, align_corners=False)
    return found.reshape(*sizes, -1)


# Not measured alone.
@faster("sum_of_squares", *TORCH)
def sum_of_squares(gradient: Any) -> Any:
    """As `optimizers.sum_of_squares`, without an array of the squares."""
    import torch

    return torch.linalg.vector_norm(gradient, dtype=torch.float32).square()


# An update of all weights of ViT-Ti, clipped: 25 ms; 49 to 99 before, by how the system hands out memory (one thread).
@faster("adam in place", TORCH_CPU)
def adam_in_place(
    gradient: Any,
    variable: Any,
    m: Any,
    v: Any,
    learning_rate: Any,
    iterations: Any,
    multiplier: float,
    decay: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> Any:
    """As `AdamW.update_step`, in one new array: pages of new memory cost more than the arithmetic."""
    import torch

    weight, m, v = variable.value, m.value, v.value
    # Keras trains without gradients of its updates; others may want them.
    if torch.is_grad_enabled() or any(x.dtype != torch.float32 for x in (gradient, weight, m, v)):
        return NotImplemented
    rate, updates = float(learning_rate) * multiplier, int(iterations) + 1
    m.mul_(beta_1).add_(gradient, alpha=1.0 - beta_1)
    v.mul_(beta_2).addcmul_(gradient, gradient, value=1.0 - beta_2)
    direction = (v / (1.0 - beta_2**updates)).sqrt_().add_(epsilon)
    torch.div(m, direction, out=direction).div_(1.0 - beta_1**updates)
    if decay:
        direction.add_(weight, alpha=decay)
    weight.sub_(direction, alpha=rate)
    return None
