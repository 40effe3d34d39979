"""The table of faster forms of what `layers.ops` defines, by operation and device; `layers.ops` looks them up.

A form returns what its definition does, except for rounding, with the same derivatives; NotImplemented for arguments
that it is not made for. It is pure; one of an operation "... in place" writes over its argument. Each says what it
gains, in ms of the definition and of the form: ViT-B/16, batch 8, unless a comment names another; g: with gradients
(docs/speed.md).
"""

import math
import threading
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
# The tanh approximation of GELU, x/2 (1 + tanh(c x + d x^3)), is x sigmoid(2 c x + 2 d x^3).
GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


def faster(operation: str, *devices: str) -> Callable[[Any], Any]:
    """Returns a decorator that enters a function in `FORMS` as the form of an operation on these devices."""

    def register(form: Any) -> Any:
        FORMS.update({(operation, device): form for device in devices})
        return form

    return register


class _Running(threading.local):
    """What a thread is in the midst of: a flat call (`layers.fast.flat`), its device, and what was found out in it."""

    device: str | None = None
    found: Any = None


RUNNING = _Running()


def device_of(x: Any) -> str | None:
    """The device in this table on which a tensor lies or its program will run; None for no such device."""
    return RUNNING.device or found_device(x)


def found_device(x: Any) -> str | None:
    """Looks for what `device_of` returns."""
    # On PyTorch it is `TORCH_OTHER` in place of None, also for symbolic tensors and subclasses of tensors, and while a
    # program is traced or exported; a program of `torch.compile` counts as CUDA's.
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
