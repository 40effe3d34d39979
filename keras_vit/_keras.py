"""The private parts of Keras that this package uses, all in this file.

`PRIVATE` says of each why it is needed and what breaks without it; `tests/test_keras_internals.py` holds every one to
what a new Keras does. The rest of the package uses the names that are defined here.
"""

import inspect
import weakref
from typing import Any, TypeVar

import keras

PRIVATE: dict[str, str] = {
    "_flatten_layers": "Layers inside layers have no public list. Without it, freezing, adapters and quantization see "
    "the outer layers only.",
    "_run_through_graph": "clone_model builds the graph of a clone with it, and says nothing else of the model that is "
    "cloned. Without it, clones are plain functional models, without config.",
}

T = TypeVar("T", bound=type)
_SOURCE = "keras_vit_source_of_clone"


# Layers


def layers_inside(layer: keras.layers.Layer, include_self: bool = True) -> list[keras.layers.Layer]:
    """A layer or model and all layers inside it, outer ones before those that they contain."""
    return layer._flatten_layers(include_self=include_self)


# Models


def clonable(cls: T) -> T:
    """Class decorator: lets `keras.models.clone_model` make another model of the class; see `ClonableModel`.

    Keras 3.15 clones a functional model layer by layer and hands the result to `type(model)(inputs, outputs, name=...)`
    if the constructor has these arguments or takes any (`functional_like_constructor`). Otherwise, the clone is a plain
    functional model, without the config.
    """
    constructor = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        source = _source_of_clone(args)
        if source is None:
            constructor(self, *args, **kwargs)
        else:
            self.init_as_clone(source, *args, **kwargs)

    __init__.__doc__ = constructor.__doc__
    cls.__init__ = __init__
    cls.__signature__ = _SignatureOfClass(constructor)
    return cls


class _SignatureOfClass:
    """The arguments of a constructor for `help(cls)`; instances, which can be called as well, have their own."""

    def __init__(self, constructor: Any) -> None:
        self.signature = inspect.Signature([*inspect.signature(constructor).parameters.values()][1:])

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


class ClonableModel(keras.Model):
    """A functional model with a constructor of its own that `keras.models.clone_model` clones as what it is.

    Subclasses are decorated with `clonable`, and have a method `init_as_clone(source, inputs, outputs, name)`, which
    takes the place of the constructor.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        source = _source_of_clone(args)
        if source is not None:
            clone = keras.Model(*args, **kwargs)
            if _what_it_computes(clone) != _what_it_computes(source):
                return clone  # a clone_function or call_function has made another model of it
        return super().__new__(cls, *args, **kwargs)

    def _run_through_graph(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super()._run_through_graph(*args, **kwargs)
        if isinstance(outputs, keras.KerasTensor):
            setattr(outputs, _SOURCE, weakref.ref(self))
        return outputs


def _source_of_clone(arguments: tuple[Any, ...]) -> Any:
    """The model that is being cloned, where a constructor was called by `clone_model`; otherwise None."""
    source = getattr(arguments[1], _SOURCE, None) if len(arguments) == 2 else None
    return None if source is None else source()


def _what_it_computes(model: keras.Model) -> dict[str, Any]:
    """The layers of a model by name, as plain data; first values of weights do not count, nor do adapters."""

    def fields(layer: Any) -> dict[str, Any]:
        config = layer.get_config().items()
        # Keras 3.15 forgets lora_alpha when it makes a layer from its config.
        return {k: v for k, v in config if not k.endswith("_initializer") and not k.startswith("lora_")}

    return {
        layer.name: (type(layer), fields(layer))
        for layer in model.operations
        if not isinstance(layer, keras.layers.InputLayer)
    } | {"input": tuple(model.input_shape)[1:]}
