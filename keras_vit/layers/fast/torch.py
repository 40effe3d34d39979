"""PyTorch on CPUs; on CUDA and in programs that are compiled or traced, its own operations in place of Keras's.

Products of matrices are oneDNN's on CPUs of AMD with AVX-512. PyTorch multiplies float32 matrices with MKL, which
leaves AVX-512 out on processors that are not Intel's: oneDNN takes less than half of the time there, its copy of the
weights into its own order included (docs/speed.md).
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_vit._keras import (
    foreach,
    has_onednn_product,
    has_tangents,
    is_recorded,
    onednn_kernel,
    onednn_product,
    onednn_product_of_packed,
)
from keras_vit._processes import ONEDNN, switched_on
from keras_vit.layers.fast import GELU_CUBIC, GELU_LINEAR, RUNNING, TORCH, TORCH_CPU, TORCH_CUDA, faster

PIECE = 1 << 17  # values that each thread works on at a time, so that they stay in its cache between steps
FEW = 1 << 17  # values that PyTorch's own GELU does as soon as four operations


def cached_per_call(question: Callable[[], Any]) -> Callable[[], Any]:
    """Decorator of a function whose answer stays the same in a flat call, which asks it once."""

    @functools.wraps(question)
    def answer() -> Any:
        if RUNNING.device is None:
            return question()
        if question not in RUNNING.found:
            RUNNING.found[question] = question()
        return RUNNING.found[question]

    return answer


_is_recorded, _has_tangents = cached_per_call(is_recorded), cached_per_call(has_tangents)
_INSTRUCTIONS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "fp16_arith")}


@functools.cache
def lacks_products_of(dtype: Any) -> bool:
    """Whether a dtype is bfloat16 or float16 and the processor has no instructions for its products."""
    import torch

    # PyTorch's check for oneDNN is content with AVX-512, which may lack these instructions.
    wanted, found = _INSTRUCTIONS.get(keras.backend.standardize_dtype(dtype)), torch.cpu.get_capabilities()
    return bool(wanted) and torch.backends.mkldnn.is_available() and not any(found.get(name) for name in wanted)


def _in_float32(function: Callable[..., Any], *tensors: Any) -> Any:
    """A function of tensors, or None among them, computed in float32 and rounded to the dtype of the first."""
    return function(*(None if tensor is None else tensor.float() for tensor in tensors)).to(tensors[0].dtype)


# Convolutions 3 x 3 of 56 x 56 x 64: 11.3 to 9.5; 1 x 1 of 56 x 56 x 256: 13.1 to 1.6 (one thread).
# Patches of 16 x 16 pixels, an Intel processor: 9.4 to 7.0, of one image 2.1 to 1.0.
@faster("conv", TORCH_CPU)
def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int | list[int]) -> Any:
    """Returns as `ops.conv`; in float32 where the processor has no products of 16 bits."""
    if lacks_products_of(x.dtype):
        return _in_float32(lambda x, kernel: conv_of_views(x, kernel, strides, padding), x, kernel)
    rows, columns, channels, filters = kernel.shape
    if isinstance(strides, int) or [rows, columns] != [*strides] or padding != "valid":
        return conv_of_views(x, kernel, strides, padding)
    down, across = x.shape[1] // rows, x.shape[2] // columns
    x = x[:, : down * rows, : across * columns].reshape(-1, down, rows, across, columns * channels)
    x = x.transpose(2, 3).reshape(-1, down, across, rows * columns * channels)
    return dense(x, kernel.reshape(-1, filters), None)


@faster("conv", TORCH_CUDA)
def conv_of_views(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int | list[int]) -> Any:
    """Returns as `ops.conv`, on a view of the same memory, which PyTorch calls channels_last."""
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
    """Returns as `ops.layer_normalization`, in one operation, which computes in float32 inside on CPUs and CUDA."""
    import torch

    wide = x.dtype if x.device.type in ("cpu", "cuda") else torch.promote_types(x.dtype, torch.float32)
    if wide == x.dtype == gamma.dtype == beta.dtype:
        return torch.layer_norm(x, gamma.shape, gamma, beta, epsilon)
    return torch.layer_norm(x.to(wide), x.shape[-1:], gamma.to(wide), beta.to(wide), epsilon).to(x.dtype)


# Not measured alone: a call is shorter. On CUDA, a training step of ViT-Ti waits 37 ms for the host, not 56, with all.
@faster("dense", TORCH_CUDA)
def linear(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns as `ops.dense`, by PyTorch's own operation."""
    import torch

    return torch.nn.functional.linear(x, kernel.t(), bias)


# Without instructions for bfloat16: (197, 768) times (768, 3072) 1,204 to 15.7. On an AMD processor with AVX-512, one
# thread: 8.8 to 3.9, g 28 to 12.
@faster("dense", TORCH_CPU)
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns as `ops.dense`: by oneDNN where `takes_onednn` says so; in float32 without instructions for 16 bits."""
    import torch

    if lacks_products_of(x.dtype):
        return _in_float32(dense, x, kernel, bias)
    if is_for_onednn(x, kernel):
        return onednn_linear(x, kernel, bias)
    return torch.nn.functional.linear(x, kernel.t(), bias)  # not by `linear`: a call of Python less


# ViT-Ti: 1.57 to 1.42; g: 3 % of an update (an Intel processor).
@faster("dense_of_all", TORCH_CPU)
def dense_of_all(x: Any, kernels: list[Any], biases: list[Any]) -> Any:
    """Returns as `ops.dense_of_all`: one product for many tokens, for which the kernels are copied side by side."""
    import torch

    few = x.numel() < 4 * kernels[0].numel()  # the copy takes longer than it saves
    if few or any(bias is None for bias in biases) or any(map(is_packed, kernels)):
        return NotImplemented
    return dense(x, torch.cat(kernels, 1), torch.cat(biases)).split([kernel.shape[1] for kernel in kernels], -1)


# 12.0 to 10.7, g 38 to 37.
@faster("attention", *TORCH)
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Returns as `ops.attention`, by the kernel that PyTorch chooses. Keras's choice breaks `torch.compile`."""
    import torch

    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    product = torch.nn.functional.scaled_dot_product_attention
    return product(query, key, value, is_causal=is_causal).transpose(1, 2)


# 4,841,472 values: 15.0 to 6.04 on an AMD processor with AVX-512. In a ViT-Ti of 8 images on an Intel one: 1.2 to 0.6.
@faster("tanh", TORCH_CPU)
def gelu_tanh(x: Any) -> Any:
    """Returns the GELU by tanh, in four operations on pieces, or PyTorch's own where that is as quick."""
    import torch

    if _uses_pytorch_gelu(x) or not is_amd_with_avx512():
        return torch.nn.functional.gelu(x, approximate="tanh")
    return _applied(_gelu(), x)


# 4,841,472 values: 15.0 to 5.64.
@faster("tanh in place", TORCH_CPU)
def gelu_tanh_in_place(x: Any) -> Any:
    """Returns `x`, with what `gelu_tanh` returns written over it."""
    if _uses_pytorch_gelu(x):
        return pytorch_gelu_in_place(x)
    if not _may_be_overwritten(x):
        return NotImplemented
    for piece in _pieces(x):
        piece.mul_(_gelu_factor(piece.float()))  # computed in at least float32
    return x


# 4,841,472 values, exact: 9.17 to 2.62. New memory costs more than the arithmetic: Linux hands it out in pages of
# 4 KiB, each after a fault.
@faster("tanh in place", TORCH_CUDA)
def pytorch_gelu_in_place(x: Any, approximate: str = "tanh") -> Any:
    """`x`, with PyTorch's own GELU written over it."""
    import torch

    return torch.ops.aten.gelu_(x, approximate=approximate) if _may_be_overwritten(x) else NotImplemented


faster("exact in place", TORCH_CPU, TORCH_CUDA)(functools.partial(pytorch_gelu_in_place, approximate="none"))


# Not measured alone; as for GELU.
@faster("relu in place", TORCH_CPU, TORCH_CUDA)
def relu_in_place(x: Any) -> Any:
    """`x`, with the ReLU written over it."""
    return x.relu_() if _may_be_overwritten(x) else NotImplemented


# Not measured alone: one new tensor in place of two.
@faster("quick", TORCH_CPU)
def gelu_quick(x: Any) -> Any:
    """Returns as `ops.activate(x, "quick")`."""
    return x * (1.702 * x).sigmoid_()


# Not measured alone; as for GELU.
@faster("quick in place", TORCH_CPU)
def gelu_quick_in_place(x: Any) -> Any:
    """Returns `x`, with the quick GELU written over it."""
    if not _may_be_overwritten(x):
        return NotImplemented
    for piece in _pieces(x):
        piece.mul_((1.702 * piece).sigmoid_())
    return x


def _may_be_overwritten(x: Any) -> bool:
    import torch

    return x.is_contiguous() and not (x.requires_grad and torch.is_grad_enabled()) and not _is_recorded()


def _uses_pytorch_gelu(x: Any) -> bool:
    """Whether PyTorch's GELU is taken: except for many values in float32 and bfloat16."""
    import torch

    return x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < FEW


def _pieces(x: Any) -> list[Any]:
    """Returns views of a contiguous tensor, flat, of `PIECE` values for each thread, the last one of the rest."""
    import torch

    # Slices, because PyTorch does not allow writing over what `split` returns.
    flat, size = x.reshape(-1), PIECE * torch.get_num_threads()
    return [flat[start : start + size] for start in range(0, len(flat), size)]


def _gelu_factor(x: Any) -> Any:
    return x.new_tensor(GELU_LINEAR).addcmul(x, x, value=GELU_CUBIC).mul_(x).sigmoid_()


@functools.cache
def _gelu() -> Any:
    """Returns a `torch.autograd.Function`, made once: the tanh approximation of GELU, which keeps x alone."""
    import torch

    # Its gradient is PyTorch's, which can be differentiated again.

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

    return _with_quick_calls(_Gelu)


def _with_quick_calls(function: Any) -> tuple[Any, Any]:
    """Returns an autograd function, and the same without a `setup_context`: PyTorch binds no arguments then."""
    import torch

    def forward(ctx: Any, *inputs: Any) -> Any:
        y = function.forward(*inputs)
        function.setup_context(ctx, inputs, y)
        return y

    parts = {"forward": staticmethod(forward), "setup_context": staticmethod(torch.autograd.Function.setup_context)}
    return function, type(f"Quick{function.__name__}", (function,), parts)


def _applied(functions: tuple[Any, Any], x: Any, *others: Any) -> Any:
    """Returns what an autograd function computes; tensors of `torch.func` need the first, and have no address."""
    try:
        for tensor in (x, *others):
            if tensor is not None:
                tensor.data_ptr()
    except RuntimeError:
        return functions[0].apply(x, *others)
    return functions[1].apply(x, *others)


# Not measured alone: 53 of a hybrid take 12,000 calls of Python less.
@faster("standardized", TORCH_CPU, TORCH_CUDA)
def standardized(kernel: Any, epsilon: float, inside: bool) -> Any:
    """Returns as `ops.standardized`, by the same operations of PyTorch."""
    kernel = kernel - kernel.mean((0, 1, 2), keepdim=True)
    variance = kernel.square().mean((0, 1, 2), keepdim=True)
    return kernel / ((variance + epsilon).sqrt() if inside else variance.sqrt() + epsilon)


# 2.40 to 0.41 for 56 x 56 x 256 (one thread).
@faster("group_normalization", TORCH_CPU, TORCH_CUDA)
def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Returns as `ops.group_normalization`, one operation on a view of the same memory, in float32 inside."""
    import torch
    import torch.nn.functional as F

    view = x.permute(0, 3, 1, 2)
    if torch.is_grad_enabled() and x.shape[1:].numel() < 32 * groups:
        return NotImplemented  # PyTorch's gradients are 1e-2 off where a group has few values, and so no variance
    if x.requires_grad or not torch.is_grad_enabled():
        return F.group_norm(view, groups, gamma, beta, epsilon).permute(0, 2, 3, 1)
    # PyTorch 2.13 ends the process when it looks for the gradients of gamma and beta and not for that of x.
    return F.group_norm(view, groups, eps=epsilon).permute(0, 2, 3, 1) * gamma + beta


# Not measured alone: with it and products for the transposed convolutions, EoMT-B takes 8.4 s an image, not 11.5.
@faster("depthwise_conv", TORCH_CPU)
def depthwise_conv(x: Any, kernel: Any) -> Any:
    """Returns as `ops.depthwise_conv`, on views of the same memory, which PyTorch calls channels_last."""
    import torch.nn.functional as F

    kernel = kernel.permute(2, 3, 0, 1).contiguous()
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, padding=1, groups=len(kernel)).permute(0, 2, 3, 1)


# Not measured alone.
@faster("resize_bilinear", TORCH_CPU)
def resize_bilinear(x: Any, size: Any, aligned: bool) -> Any:
    """Returns as `dense_prediction.resize_bilinear`."""
    import torch.nn.functional as F

    return F.interpolate(x.permute(0, 3, 1, 2), tuple(size), mode="bilinear", align_corners=aligned).permute(0, 2, 3, 1)


# Not measured alone: one pass over the points in place of thirty.
@faster("sample", *TORCH)
def sample(maps: Any, points: Any) -> Any:
    """Returns as `mask_classification.sample`."""
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
    """Returns as `optimizers.sum_of_squares`, without an array of the squares; NotImplemented for float64."""
    import torch

    if gradient.dtype == torch.float64:  # which the norm does not narrow
        return NotImplemented
    return torch.linalg.vector_norm(gradient, dtype=torch.float32).square()


# Not measured alone: ten calls in place of 200 for each weight.
@faster("momentum in place", TORCH_CPU)
def momentum_in_place(
    gradient: Any, lists: Any, multipliers: list[float], decays: list[float], learning_rate: Any, share: float
) -> Any:
    """Changes all weights and momentums in place, as `MomentumSGD.update_step`, and returns None."""
    import torch

    if torch.is_grad_enabled():  # Keras trains without gradients of its updates; others may want them
        return NotImplemented
    gradients, weights, momentums = lists
    gradients = [g if g.dtype == w.dtype else g.to(w.dtype) for g, w in zip(gradients, weights, strict=True)]
    directions = [m if m.dtype == w.dtype else m.to(w.dtype) for m, w in zip(momentums, weights, strict=True)]
    foreach("mul_", directions, share)
    foreach("add_", directions, gradients)
    for m, direction in zip(momentums, directions, strict=True):
        if m is not direction:
            m.copy_(direction)
    rate = float(learning_rate)
    rates = [rate * multiplier for multiplier in multipliers]
    if any(decays):
        foreach("mul_", weights, [1.0 - rate * decay for rate, decay in zip(rates, decays, strict=True)])
    for rate in {*rates}:
        which = [number for number, one in enumerate(rates) if one == rate]
        foreach("add_", [weights[n] for n in which], [directions[n] for n in which], alpha=-rate)
    return None


# Not measured alone; as `momentum_in_place`.
@faster("norm_and_clipped", TORCH_CPU)
def norm_and_clipped(first: Any, gradients: list[Any], largest: float | None, epsilon: float) -> Any:
    """Returns as `optimizers.norm_and_clipped`; NotImplemented for float64."""
    import torch

    dtypes = {one.dtype for one in gradients}
    if torch.float64 in dtypes:  # which the norm does not narrow
        return NotImplemented
    norm = torch.linalg.vector_norm(torch.stack(foreach("norm", gradients, 2, torch.float32)))
    if largest and not float(norm) + epsilon < largest:
        scales = {dtype: (largest / (norm + epsilon)).to(dtype) for dtype in dtypes}
        gradients = foreach("mul", gradients, [scales[one.dtype] for one in gradients])
    return norm, gradients


# An update of all weights of ViT-Ti, clipped: 25 ms; 49 to 99 before, by how the system hands out memory (one thread).
@faster("adam in place", TORCH_CPU)
def adam_in_place(
    gradient: Any,
    lists: Any,
    multipliers: list[float],
    decays: list[float],
    learning_rate: Any,
    updates: int,
    *of: float,
) -> Any:
    """Changes weights and both moments in place, as `AdamW.update_step`, and returns None."""
    import torch

    if torch.is_grad_enabled() or {one.dtype for tensors in lists for one in tensors} != {torch.float32}:
        return NotImplemented
    rate, (beta_1, beta_2, epsilon) = float(learning_rate), of
    for g, weight, m, v, multiplier, decay in zip(*lists, multipliers, decays, strict=True):
        m.mul_(beta_1).add_(g, alpha=1.0 - beta_1)
        v.mul_(beta_2).addcmul_(g, g, value=1.0 - beta_2)
        # One new array: pages of new memory cost more than the arithmetic.
        direction = (v / (1.0 - beta_2**updates)).sqrt_().add_(epsilon)
        torch.div(m, direction, out=direction).div_(1.0 - beta_1**updates)
        if decay:
            direction.add_(weight, alpha=decay)
        weight.sub_(direction, alpha=rate * multiplier)
    return None


# Products of matrices by oneDNN

FEWEST = 1 << 22  # multiplications of a product below which the calls cost as much as the arithmetic


def is_for_onednn(x: Any, kernel: Any) -> bool:
    """Whether `onednn_linear` is taken for `x`, `(..., D)`, and a kernel `(D, units)` on a CPU."""
    always, packs = _onednn_may_run()
    if not (always or packs):
        return False
    import torch

    if x.dtype != torch.float32 or x.ndim < 2 or x.numel() * kernel.shape[1] < FEWEST:
        return False
    takes = always or (not torch.is_grad_enabled() and is_packed(kernel))
    return takes and type(kernel) in (torch.Tensor, torch.nn.Parameter)


@cached_per_call
def _onednn_may_run() -> tuple[bool, bool]:
    """Whether oneDNN is taken now: for all kernels, and for packed ones. Not by a recorder or autocast."""
    import torch

    if not torch.backends.mkldnn.enabled or _is_recorded() or torch.is_autocast_enabled("cpu"):
        return False, False
    return takes_onednn(), bool(_packed_kernels())


@functools.cache
def is_amd_with_avx512() -> bool:
    """Whether the processor is AMD's with AVX-512, where PyTorch's products and its tanh are slow."""
    import torch

    found = torch.cpu.get_capabilities()
    return "AMD" in found.get("cpu_name", "") and found.get("avx512_f", False)


@functools.cache
def takes_onednn() -> bool:
    """Whether products on this CPU are oneDNN's: on AMD's with AVX-512 (0.40 to 0.60 of MKL's time), or as asked."""
    import torch

    there = torch.backends.mkldnn.is_available() and has_onednn_product()
    taken = switched_on(ONEDNN, there and is_amd_with_avx512())
    if taken and not there:
        raise ValueError(f"{ONEDNN}=1, but this PyTorch has no oneDNN. Unset it.")
    return taken


# Kernels in oneDNN's own order, which spares a tenth of the time of a ViT-B: `optimize_for_inference` asks for them.


@functools.cache
def _packed_kernels() -> Any:
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def pack_kernels(kernels: Iterable[Any]) -> None:
    """Keeps a packed copy of each of the float32 kernels `(D, units)`, for products without gradients; returns None."""
    for kernel in kernels:
        _packed_kernels()[kernel] = (_state(kernel), onednn_kernel(kernel))


def unpack_kernels(kernels: Iterable[Any]) -> None:
    """Lets the packed copies of kernels go; those without one may be among them."""
    for kernel in kernels:
        _packed_kernels().pop(kernel, None)


def _state(kernel: Any) -> tuple[int, int]:
    return kernel._version, kernel.data_ptr()  # noqa: SLF001 (PyTorch documents it, in its notes on autograd)


def is_packed(kernel: Any) -> bool:
    """Whether a kernel has a packed copy."""
    return kernel in _packed_kernels()


def _packed_copy(kernel: Any) -> Any:
    """Returns the packed copy of a kernel, made again where the kernel has changed; None where it has none."""
    if not _packed_kernels() or not is_packed(kernel):  # most programs pack nothing, and a search takes a microsecond
        return None
    state, packed = _packed_kernels()[kernel]
    if state != _state(kernel):
        pack_kernels([kernel])
        _, packed = _packed_kernels()[kernel]
    return packed


def onednn_linear(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns as `ops.dense` by oneDNN, with derivatives of any order; with forward tangents by PyTorch."""
    import torch

    if torch.is_grad_enabled():
        return _applied(_onednn_functions(), x, kernel, bias)
    if _has_tangents():  # which the function would leave out
        return torch.nn.functional.linear(x, kernel.t(), bias)
    try:
        x.data_ptr(), kernel.data_ptr()
    except RuntimeError:  # tensors of `torch.func` have none
        return _onednn_functions()[0].apply(x, kernel, bias)
    packed = _packed_copy(kernel)
    if packed is not None:
        return onednn_product_of_packed(x, packed, bias)
    return onednn_product(x, kernel, bias)  # a third of the call's time is saved


@functools.cache
def _onednn_functions() -> Any:
    """Returns autograd functions of the product for `_applied`, made once: for `torch.func`, and a faster one."""
    import torch

    class _Linear(torch.autograd.Function):
        @staticmethod
        def forward(x: Any, kernel: Any, bias: Any) -> Any:
            return onednn_product(x, kernel, bias)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, kernel, _ = inputs
            ctx.save_for_backward(x, kernel)
            ctx.save_for_forward(x, kernel)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, kernel = ctx.saved_tensors
            needs_x, needs_kernel, needs_bias = ctx.needs_input_grad
            rows = grad.reshape(-1, grad.shape[-1])
            return (
                onednn_linear(grad, kernel.t(), None) if needs_x else None,
                onednn_linear(x.reshape(-1, x.shape[-1]).t(), rows, None) if needs_kernel else None,
                rows.sum(0) if needs_bias else None,
            )

        @staticmethod
        def jvp(ctx: Any, x: Any, kernel: Any, bias: Any) -> Any:
            saved_x, saved_kernel = ctx.saved_tensors
            parts = [] if x is None else [x @ saved_kernel]
            parts += [] if kernel is None else [saved_x @ kernel]
            parts += [] if bias is None else [bias.expand(*saved_x.shape[:-1], -1)]
            return sum(parts[1:], parts[0])

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any, kernel: Any, bias: Any) -> Any:
            """With an axis before the others: one more of rows, or one of products."""
            of_x, of_kernel, of_bias = in_dims
            if of_kernel is None and of_bias is None:
                return onednn_linear(x.movedim(of_x, 0), kernel, bias), 0

            def lead(tensor: Any, axis: int | None) -> Any:
                return tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)

            x, kernel = lead(x, of_x), lead(kernel, of_kernel)
            y = x.reshape(info.batch_size, -1, x.shape[-1]) @ kernel
            y = y if bias is None else y + lead(bias, of_bias)[:, None]
            return y.reshape(*x.shape[:-1], -1), 0

    return _with_quick_calls(_Linear)
