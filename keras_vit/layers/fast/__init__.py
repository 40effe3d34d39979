"""Faster forms of what `layers.ops` defines, by operation and device; without one, the definition is computed.

A form returns what its definition does, but for rounding, with the same derivatives; NotImplemented for arguments that
it is not made for. It is pure; one of an operation "... in place" writes over its argument. Each says what it
gains, in ms of the definition and of the form: ViT-B/16, batch 8, unless a comment names another; g: with gradients
(docs/speed.md).
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._processes import tensorflow_has_only_cpus

FORMS: dict[tuple[str, str | None], Callable[..., Any]] = {}  # (operation, device) -> the faster form
TORCH_CPU = "torch, cpu"
TORCH_CUDA = "torch, cuda"  # and programs of `torch.compile`
TORCH_OTHER = "torch, other"  # devices; and programs that are exported or traced, which hold plain operations
TORCH = (TORCH_CPU, TORCH_CUDA, TORCH_OTHER)
JAX_CPU = "jax, cpu"
TENSORFLOW_CPU = "tensorflow, cpu"


def faster(operation: str, *devices: str) -> Callable[[Any], Any]:
    """Decorator: the faster form of an operation on these devices."""

    def register(form: Any) -> Any:
        FORMS.update({(operation, device): form for device in devices})
        return form

    return register


def with_faster_forms(definition: Any) -> Callable[..., Any]:
    """Decorator of an operation, which is named as its function: computes a faster form where there is one."""
    operation = definition.__name__

    @functools.wraps(definition)
    def call(x: Any, *arguments: Any) -> Any:
        form = FORMS.get((operation, device_of(x)))
        y = NotImplemented if form is None else form(x, *arguments)
        return definition(x, *arguments) if y is NotImplemented else y

    return call


def compute(operation: str, x: Any, *arguments: Any) -> Any:
    """What the faster form of an operation on tensors such as `x` returns; NotImplemented where there is none."""
    form = faster_form(operation, x)
    return NotImplemented if form is None else form(x, *arguments)


def faster_form(operation: str, x: Any) -> Callable[..., Any] | None:
    """The faster form of an operation on tensors such as `x`; None where there is none."""
    return FORMS.get((operation, device_of(x)))


def is_torch_tensor(x: Any) -> bool:
    """Whether `x` is a tensor of PyTorch itself, on a CPU or on CUDA, in a program that is not exported or traced."""
    return device_of(x) in (TORCH_CPU, TORCH_CUDA)


def device_of(x: Any) -> str | None:
    """The device of the table on which `x` lies or its program will run; else None, on PyTorch `TORCH_OTHER`.

    Symbolic tensors lie on none.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.jit.is_tracing() or torch.compiler.is_exporting():
            return TORCH_OTHER
        if torch.compiler.is_compiling():
            return TORCH_CUDA
        return {"cpu": TORCH_CPU, "cuda": TORCH_CUDA}.get(x.device.type, TORCH_OTHER)
    if backend == "jax":
        import jax

        return JAX_CPU if isinstance(x, jax.Array) and jax.default_backend() == "cpu" else None
    if backend == "tensorflow":
        import tensorflow as tf  # whose graphs do not know where they will run

        return TENSORFLOW_CPU if isinstance(x, tf.Tensor) and tensorflow_has_only_cpus() else None
    return None
