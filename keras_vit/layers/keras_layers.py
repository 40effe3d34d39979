"""Keras's layers on the operations of `fast_paths.py`, and how a layer calls those inside it.

In PyTorch on CPUs, what Keras does around each call takes 0.1 to 0.2 ms, and new memory for an activation more than its
arithmetic. So `call_inside` computes directly what a *plain* layer gives. A layer is plain where nobody could see the
difference: its class is of this package, its methods are as they were defined, and nothing watches, recomputes,
quantizes, adapts or regularizes it. Any other layer is called as Keras calls it.
On other backends and devices, all are.
"""

import inspect
from typing import Any, TypeVar

import keras

from keras_vit._keras import any_module_is_watched, is_recomputed
from keras_vit.layers.adapters import KeepsAdapters
from keras_vit.layers.base import WatchedLayer
from keras_vit.layers.fast_paths import (
    activate,
    dense,
    group_norm,
    layer_norm,
    max_pool,
    runs_eagerly_in_torch,
)

C = TypeVar("C", bound=type[keras.layers.Layer])
# The classes whose layers may be plain: their methods as they were defined, and whether `call` takes `training`.
_PLAIN: dict[type, tuple[Any, Any, bool]] = {}


def may_be_plain(cls: C) -> C:
    """Class decorator: instances of exactly this class may be called without Keras."""
    _PLAIN[cls] = (cls.call, cls.__call__, "training" in inspect.signature(cls.call).parameters)
    return cls


def is_plain(layer: Any, x: Any) -> bool:
    """Whether `layer.call(x)` is all that `layer(x)` does, and nobody sees the result but who calls.

    Args:
        layer: Any layer.
        x: Its input.
    """
    cls = type(layer)
    defined = _PLAIN.get(cls)
    if defined is None or defined[:2] != (cls.call, cls.__call__) or not runs_eagerly_in_torch(x):
        return False
    # Mixed precision casts weights in a scope that Keras's call opens; PyTorch's recomputation has left the outer one.
    dtype = keras.backend.standardize_dtype(x.dtype)
    return (
        layer.built
        and layer.compute_dtype == dtype == layer.variable_dtype
        and not ("call" in vars(layer) or "forward" in vars(layer))
        and not (layer.watched or any_module_is_watched() or is_recomputed(layer))
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        and not getattr(layer, "lora_enabled", False)
    )


def call_inside(layer: Any, x: Any, training: bool | None = None, activation: str | None = None, **options: Any) -> Any:
    """`layer(x, training=training, **options)` for a layer inside another one, and an activation of what it gives.

    Args:
        layer: A layer of this package, or whatever somebody has put in its place.
        x: A tensor.
        training: Whether the outer layer is called for training.
        activation: As for `activate`.
        options: Further arguments of the call; None means that there is none.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if not is_plain(layer, x):
        return activate(layer(x, training=training, **options), activation)
    if _PLAIN[type(layer)][-1]:
        options["training"] = training
    return activate(layer.call(x, **options), activation, fresh=True)


def _tensor(weight: Any) -> Any:
    """The value of a variable in the dtype of the call; adapters make tensors of kernels."""
    return weight.value if isinstance(weight, keras.Variable) else weight


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class Dense(KeepsAdapters, WatchedLayer, keras.layers.Dense):
    """`keras.layers.Dense`, whose adapters are saved.

    Input: `(batch, ..., D)`. Output: `(batch, ..., units)`.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        y = dense(inputs, _tensor(self.kernel), _tensor(self.bias) if self.use_bias else None)
        return y if self.activation is keras.activations.linear else self.activation(y)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As Keras's, which refuses subclasses, because they might compute something else."""
        super().quantize(mode, type_check=type_check and type(self) is not Dense, config=config)


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class LayerNormalization(WatchedLayer, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, right to the second derivative on every backend.

    Input: `(batch, ..., D)`. Output: the same shape.
    """

    def call(self, inputs: Any) -> Any:
        if self.axis not in (-1, [-1]) or self.rms_scaling or not (self.center and self.scale):
            return super().call(inputs)
        return layer_norm(inputs, _tensor(self.gamma), _tensor(self.beta), self.epsilon)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaxPooling2D(keras.layers.MaxPooling2D):
    """`keras.layers.MaxPooling2D`.

    Input: `(batch, height, width, channels)`. Output: fewer rows and columns.
    """

    def call(self, inputs: Any) -> Any:
        if self.data_format != "channels_last":
            return super().call(inputs)
        return max_pool(inputs, self.pool_size, self.strides, self.padding)


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class GroupNormalization(WatchedLayer, keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` over groups of channels, the last axis, right in float64 as well.

    Input: `(batch, height, width, channels)`. Output: the same shape.
    """

    def call(self, inputs: Any) -> Any:
        if self.axis != -1 or not (self.center and self.scale) or len(inputs.shape) != 4:
            return super().call(inputs)
        return group_norm(inputs, self.groups, _tensor(self.gamma), _tensor(self.beta), self.epsilon)
