"""Flat calls: in PyTorch, layers that are called without Keras between them.

What Keras does around each call takes 0.1 to 0.2 ms of the processor's time, which a GPU waits for. So a call is *flat*
where nobody could see the difference: in the place of each layer a `FlatLayer` runs the same method `call`, with
weights that are tensors and inner layers that are flat as well. They are made once, and made again after a change of
any layer that has one, which `note_change` counts. On other backends and devices, layers are called as Keras does, and
so is a layer that is watched, recomputed, quantized, adapted or regularized, or is somebody else's.
"""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import keras

from keras_vit._keras import has_hidden_state, is_compiled, is_rematerialized, layers_inside, raw_value
from keras_vit.layers.fast import RUNNING, TORCH_CPU, TORCH_CUDA, found_device

# The classes whose layers may be flat: their methods as they were defined, and the class of what runs in their place.
_FLAT: dict[type, tuple[Any, Any, type]] = {}
_numbers = itertools.count(1)


class LastChange:
    """The number of the last change of a layer: what was made at another number is made again."""

    number = 0


def note_change() -> None:
    """Makes all flat layers stale; called after a change."""
    LastChange.number = next(_numbers)  # no two threads get the same


def may_run_flat(cls: Any) -> None:
    """Enters a class of layers whose `call` asks Keras for nothing, and notes whether that takes `training`."""
    call = cls.call
    cls.takes_training = "training" in inspect.signature(call).parameters
    if "__class__" not in call.__code__.co_freevars:
        method = (
            call if cls.takes_training else lambda self, *args, training=None, **options: call(self, *args, **options)
        )
        _FLAT[cls] = (call, cls.__call__, type(f"Flat{cls.__name__}", (FlatLayer,), {"__call__": method}))


class FlatLayer:
    """What runs in the place of a layer in a flat call: its `call`, with the attributes that they had when first read.

    Of weights it has the tensors, of layers inside their flat layers.
    """

    def __init__(self, layer: Any) -> None:
        import torch

        self.layer = layer
        self.dtypes = {getattr(torch, layer.compute_dtype), torch.bool}  # of arguments that Keras would not cast

    def __getattr__(self, name: str) -> Any:
        """Reads an attribute of the layer, once."""
        value = self._flattened(getattr(self.layer, name))
        setattr(self, name, value)
        return value

    def _flattened(self, value: Any) -> Any:
        """Returns an attribute for use here: weights as tensors, layers flat where they may be, methods of this."""
        if isinstance(value, keras.Variable):
            return raw_value(value)
        if isinstance(value, keras.layers.Layer):
            return flat(value) or value
        if isinstance(value, list | tuple):
            return [self._flattened(one) for one in value]
        return value.__func__.__get__(self) if getattr(value, "__self__", None) is self.layer else value


def flat(layer: Any) -> Any:
    """Returns the `FlatLayer` of a layer, which is kept until a change; None where Keras has to call the layer."""
    number, known = LastChange.number, vars(layer).get("_flat")
    if known is None or known[:2] != (number, id(layer)):  # the id: copies of a layer are given its attributes
        inside: list[Any] = layers_inside(layer, include_self=False)
        for inner in inside:
            vars(inner).setdefault("_flat", None)  # from now on, their changes are noted
        made = _FLAT[type(layer)][2](layer) if may_be_flat(layer) else None
        known = vars(layer)["_flat"] = number, id(layer), made
    return known[2]


def may_be_flat(layer: Any) -> bool:
    """Whether `call` is all that a call of the layer does, and nobody but the caller sees the result."""
    return (
        _is_as_made(layer)
        and not is_rematerialized(layer)
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        and not getattr(layer, "lora_enabled", False)
        and all(
            _is_as_made(one) and one.compute_dtype == layer.compute_dtype
            for one in layers_inside(layer, include_self=False)
        )
    )


def _is_as_made(layer: Any) -> bool:
    """Whether a layer that `may_run_flat` is built, has the methods of its class, and no hooks."""
    cls = type(layer)
    return (
        _FLAT.get(cls, ())[:2] == (cls.call, cls.__call__)
        and layer.built
        and not ("call" in vars(layer) or "forward" in vars(layer))
        and not layer.watched
    )


def device_of_flat_calls(x: Any) -> str | None:
    """The device of a tensor on which layers may be flat now; None for no such device, and where Keras looks."""
    # That is where all modules of PyTorch are watched, a program is traced or compiled, or weights stand for others.
    device = found_device(x)
    return None if device not in (TORCH_CPU, TORCH_CUDA) or is_compiled() or has_hidden_state() else device


def _noting(name: str) -> Any:
    """Returns a method that does as that of `torch.nn.Module` of this name and sets the layer's `watched` to True."""

    def register(self: Any, *arguments: Any, **options: Any) -> Any:
        """Sets `watched` to True and returns what PyTorch's own method does."""
        self.watched = True
        return getattr(super(Noting, self), name)(*arguments, **options)

    return register


# Types of attributes that neither Keras nor its frameworks track; Flax's NNX has to see all.
_PLAIN = frozenset(() if keras.config.is_nnx_enabled() else (str, int, float, bool, type(None)))


class Noting:
    """Notes the changes of a layer or model that is flat, and hooks of PyTorch, of which there is no public list."""

    watched = False
    register_forward_hook = _noting("register_forward_hook")
    register_forward_pre_hook = _noting("register_forward_pre_hook")
    register_full_backward_hook = _noting("register_full_backward_hook")
    register_full_backward_pre_hook = _noting("register_full_backward_pre_hook")
    register_backward_hook = _noting("register_backward_hook")

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        # Keras makes `_torch_params` in each step.
        changes = "_flat" in own and name != "_torch_params" and own.get(name) is not value and not is_compiled()
        # A model is made in four fifths of the time where nobody looks for layers in what cannot be one.
        if type(value) in _PLAIN and name not in own.get("_modules", ()):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)
        if changes:
            note_change()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        note_change()

    def add_module(self, name: str, module: Any) -> None:
        """Puts a module in the place of a layer, as PyTorch does."""
        super().add_module(name, module)  # ty: ignore[missing-attribute]
        note_change()


class NotingClass(type(keras.layers.Layer)):
    """Class of the classes of layers: another method of one of them is a change as well."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        note_change()

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        note_change()


def call_flat(device: str | None, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Returns what a function computes, whose layers run on this device without Keras between them; None: with it."""
    before = RUNNING.device, RUNNING.found
    RUNNING.device, RUNNING.found = device, {}
    try:
        return function(*args, **options)
    finally:
        RUNNING.device, RUNNING.found = before
