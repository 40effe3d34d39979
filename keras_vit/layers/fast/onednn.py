"""Products of matrices by oneDNN on PyTorch's CPUs, where that is quicker than what PyTorch chooses for float32.

PyTorch multiplies float32 matrices with MKL, which leaves AVX-512 out on processors that are not Intel's: oneDNN takes
less than half of the time there, its copy of the weights into its own order included (docs/speed.md).
"""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from keras_vit._keras import (
    has_onednn_product,
    is_recorded,
    onednn_kernel,
    onednn_product,
    onednn_product_of_packed,
)

# The share of PyTorch's time below which oneDNN is taken. Far from 1, so that each process on a machine finds the same
# and a run repeats bit by bit: 0.40 to 0.60 was measured where it is quicker.
WORTH_CHANGING = 0.77
FEWEST = 1 << 22  # multiplications of a product below which the calls cost as much as the arithmetic
WORTH_PACKING = 0.95  # of the time of a product; a second copy of the kernels is in memory then
_ROWS, _WIDTH, _ROUNDS = 197, 768, 7


def is_quicker(x: Any, kernel: Any) -> bool:
    """Whether a product of float32 tensors `(..., D)` and `(D, units)` on a CPU is quicker by oneDNN."""
    import torch

    return (
        x.dtype == torch.float32
        and x.ndim > 1
        and x.numel() * kernel.shape[1] >= FEWEST
        and type(kernel) in (torch.Tensor, torch.nn.Parameter)
        and torch.backends.mkldnn.enabled
        and not is_recorded()
        and not torch.is_autocast_enabled("cpu")
        and (_wins_trial(torch.get_num_threads()) or (is_packed(kernel) and not torch.is_grad_enabled()))
    )


@functools.cache
def _wins_trial(threads: int) -> bool:
    """Whether oneDNN is there and wins a trial with as many threads as PyTorch has: some 20 ms, once a process."""
    return _is_there() and _time_share(onednn_product) < WORTH_CHANGING


def _is_there() -> bool:
    import torch

    return torch.backends.mkldnn.is_available() and has_onednn_product()


def _time_share(product: Callable[..., Any], other: Callable[..., Any] | None = None, units: int = _WIDTH) -> float:
    """The time of a product over that of another, PyTorch's: the lowest of some rounds in turn."""
    import torch

    x, kernel = torch.ones(_ROWS, _WIDTH), torch.ones(_WIDTH, units)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for function, taken in zip((other or torch.matmul, product), times, strict=True):
            start = time.perf_counter()
            function(x, kernel)
            taken.append(time.perf_counter() - start)
    return min(times[1]) / min(times[0])


# Kernels in oneDNN's own order, which spares a tenth of the time of a ViT-B: `optimize_for_inference` asks for them.


@functools.cache
def packing_is_quicker(threads: int) -> bool:
    """Whether a packed kernel wins a trial against the product that is taken otherwise, with so many threads."""
    import torch

    if not _is_there():
        return False
    units = 4 * _WIDTH  # of the MLP: smaller kernels stay in the processor's cache from one round to the next
    packed = onednn_kernel(torch.ones(_WIDTH, units))
    other = onednn_product if _wins_trial(threads) else None
    return _time_share(lambda x, kernel: onednn_product_of_packed(x, packed), other, units) < WORTH_PACKING


@functools.cache
def _packed_kernels() -> Any:
    """Kernel -> (the state of the kernel that was packed, the packed copy); without a kernel, its copy goes."""
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def pack(kernels: Iterable[Any]) -> None:
    """Keeps a packed copy of each of the kernels `(D, units)`, for products without gradients."""
    for kernel in kernels:
        _packed_kernels()[kernel] = (_state(kernel), onednn_kernel(kernel))


def unpack(kernels: Iterable[Any]) -> None:
    """Lets the packed copies of kernels go."""
    for kernel in kernels:
        _packed_kernels().pop(kernel, None)


def _state(kernel: Any) -> tuple[int, int]:
    """What is another after an assignment or an update of a weight, but not after a change of `kernel.data`."""
    return kernel._version, kernel.data_ptr()  # noqa: SLF001 (PyTorch documents it, in its notes on autograd)


def is_packed(kernel: Any) -> bool:
    """Whether a kernel has a packed copy."""
    return kernel in _packed_kernels()


def _packed_copy(kernel: Any) -> Any:
    """The packed copy of a kernel, made anew where the kernel has changed; None where it has none."""
    if not _packed_kernels() or not is_packed(kernel):  # most programs pack nothing, and a search takes a microsecond
        return None
    state, packed = _packed_kernels()[kernel]
    if state != _state(kernel):
        pack([kernel])
        _, packed = _packed_kernels()[kernel]
    return packed


def linear(x: Any, kernel: Any, bias: Any) -> Any:
    """As `ops.dense`, with derivatives of any order."""
    import torch
    from torch.autograd.forward_ad import unpack_dual

    if torch.is_grad_enabled():
        return _linear().apply(x, kernel, bias)
    tensors = (x, kernel) if bias is None else (x, kernel, bias)
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):  # the function would leave tangents out
        return torch.nn.functional.linear(x, kernel.t(), bias)
    try:
        x.data_ptr(), kernel.data_ptr()
    except RuntimeError:  # tensors of `torch.func` have none
        return _linear().apply(x, kernel, bias)
    packed = _packed_copy(kernel)
    if packed is not None:
        return onednn_product_of_packed(x, packed, bias)
    return onednn_product(x, kernel, bias)  # a third of the call's time is saved


@functools.cache
def _linear() -> Any:
    """The product as a function that PyTorch can differentiate, also again and by `torch.func`."""
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
                linear(grad, kernel.t(), None) if needs_x else None,
                linear(x.reshape(-1, x.shape[-1]).t(), rows, None) if needs_kernel else None,
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
                return linear(x.movedim(of_x, 0), kernel, bias), 0

            def lead(tensor: Any, axis: int | None) -> Any:
                return tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)

            x, kernel = lead(x, of_x), lead(kernel, of_kernel)
            y = x.reshape(info.batch_size, -1, x.shape[-1]) @ kernel
            y = y if bias is None else y + lead(bias, of_bias)[:, None]
            return y.reshape(*x.shape[:-1], -1), 0

    return _Linear
