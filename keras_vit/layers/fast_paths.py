"""What the layers compute faster than Keras does, each for the one backend and kind of device where it was measured.

`fast_path` gives the faster function, and the layers go Keras's way where there is none: on other devices, for symbolic
tensors, and in PyTorch while a program is traced or compiled, whose compiler knows Keras's operations best. Every
function gives the same numbers as Keras's way but for rounding, and the same gradients. docs/speed.md has the
measurements. At the end stand the layers and operations of Keras that are used everywhere, on their fast paths.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit._devices import tensorflow_has_only_cpus
from keras_vit.layers import jax_paths, tensorflow_paths, torch_paths
from keras_vit.layers.adapters import KeepsAdapters
from keras_vit.layers.base import padded_conv


def fast_path(operation: str, x: Any) -> Callable[..., Any] | None:
    """The faster function for an operation on tensors such as `x`; None where there is none.

    Args:
        operation: The first part of a key of `FAST`.
        x: An input of the operation, which tells the device.
    """
    backend = keras.backend.backend()
    return FAST.get((operation, backend, _device(backend, x)))


def call_inside(layer: keras.layers.Layer, x: Any, **options: Any) -> Any:
    """`layer(x, **options)` for a layer inside another one, without what has been done for the outer one already.

    Args:
        layer: A layer that is built and computes in the dtype of the layer that contains it.
        x: What that layer hands on.
        options: Further arguments of the call; no tensors.
    """
    fast = fast_path("call", x)
    return layer(x, **options) if fast is None else fast(layer, x, **options)


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """`keras.ops.reshape`, without its search for symbolic tensors where `x` is none."""
    fast = fast_path("reshape", x)
    return ops.reshape(x, shape) if fast is None else fast(x, shape)


def _device(backend: str, x: Any) -> str | None:
    """The kind of device on which a tensor lies or a program of JAX or TensorFlow will run; None for what is symbolic.

    In TensorFlow that is the kind of all devices: a graph does not know where it will run.
    """
    if backend == "torch":
        import torch

        if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        return x.device.type
    if backend == "jax":
        import jax

        return jax.default_backend() if isinstance(x, jax.Array) else None
    if backend == "tensorflow":
        import tensorflow as tf

        return "cpu" if isinstance(x, tf.Tensor) and tensorflow_has_only_cpus() else None
    return None


# The time that a function takes in relation to Keras's way, where it was measured by itself (docs/speed.md): batch 8,
# 197 tokens, D 768, MLP 3072, float32. What has no figure was measured as a part of whole Vision Transformers.
FAST: dict[tuple[str, str, str | None], Callable[..., Any]] = {
    ("attention", "jax", "cpu"): jax_paths.attention,  # 0.42 to 0.58; with gradients 0.74 to 0.85
    ("conv", "jax", "cpu"): jax_paths.conv,  # 1 x 1: 0.84 to 0.91
    ("dense", "jax", "cpu"): jax_paths.dense,  # 0.98; with gradients 0.79 to 0.95, of wide kernels on one thread half
    ("gelu_tanh", "jax", "cpu"): jax_paths.gelu_tanh,  # with gradients 0.70
    ("group_norm", "jax", "cpu"): jax_paths.group_norm,  # 0.10 to 0.85
    ("layer_norm", "jax", "cpu"): jax_paths.layer_norm,  # with gradients 0.53 to 0.62
    ("max_pool", "jax", "cpu"): jax_paths.max_pool,  # 0.15
    ("remat", "jax", "cpu"): jax_paths.remat,
    ("attention", "tensorflow", "cpu"): tensorflow_paths.attention,  # 0.86; with gradients 0.80; bfloat16 0.05
    ("dense", "tensorflow", "cpu"): tensorflow_paths.dense,
    ("group_norm", "tensorflow", "cpu"): tensorflow_paths.group_norm,  # 0.28 to 1.03; with gradients 0.26 to 0.93
    ("layer_norm", "tensorflow", "cpu"): tensorflow_paths.layer_norm,  # 0.71; with gradients 0.78
    ("add", "torch", "cpu"): torch_paths.add,
    ("attention", "torch", "cpu"): torch_paths.attention,
    ("call", "torch", "cpu"): torch_paths.call,
    ("conv", "torch", "cpu"): torch_paths.conv,  # 3 x 3: 0.80 to 0.84; 1 x 1: 0.12 to 0.16
    ("dense", "torch", "cpu"): torch_paths.dense,
    ("gelu_exact", "torch", "cpu"): torch_paths.gelu_exact,
    ("gelu_tanh", "torch", "cpu"): torch_paths.gelu_tanh,  # 0.53 to 0.84; bfloat16 0.65
    ("group_norm", "torch", "cpu"): torch_paths.group_norm,  # 0.17
    ("layer_norm", "torch", "cpu"): torch_paths.layer_norm,
    ("relu", "torch", "cpu"): torch_paths.relu,
    ("reshape", "torch", "cpu"): torch_paths.reshape,
}


# Keras's operations and layers, on their fast paths


def _tensor(weight: Any) -> Any:
    """The value of a variable in the dtype of the call; adapters make tensors of kernels."""
    return weight.value if isinstance(weight, keras.Variable) else weight


def add(x: Any, y: Any, sources: tuple[Any, ...] = ()) -> Any:
    """`x + y`, the sum of a block's input and what a part of it adds.

    Args:
        x: A tensor.
        y: A tensor of that shape.
        sources: The layers that `y` comes out of, if nothing else reads `y`: it may be written over.
    """
    fast = fast_path("add", y)
    return x + y if fast is None else fast(x, y, sources)


def gelu(x: Any, kind: str, sources: tuple[Any, ...] = ()) -> Any:
    """The activation of the MLPs.

    Args:
        x: A tensor of any shape.
        kind: `"tanh"`: the approximation that the official checkpoints were trained with; `"exact"`: with the error
            function, as timm and Hugging Face compute it; `"quick"`: `x * sigmoid(1.702 x)`, as OpenAI's CLIP.
        sources: The layers that `x` comes out of, if nothing else reads `x`: it may be written over.
    """
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    fast = fast_path(f"gelu_{kind}", x)
    return ops.gelu(x, approximate=kind == "tanh") if fast is None else fast(x, sources)


def relu(x: Any, sources: tuple[Any, ...] = ()) -> Any:
    """`keras.ops.relu`; `sources` as for `gelu`."""
    fast = fast_path("relu", x)
    return ops.relu(x) if fast is None else fast(x, sources)


def conv(x: Any, kernel: Any, strides: int | tuple[int, int], padding: str | int) -> Any:
    """A convolution without bias.

    Args:
        x: `(batch, height, width, channels)`.
        kernel: `(rows, columns, channels, filters)`, in the dtype of `x`.
        strides: Steps of the window, both or down and across.
        padding: `"same"`, `"valid"`, or the number of zeros on every side.

    Returns:
        `(batch, rows of windows, columns of windows, filters)`.
    """
    return (fast_path("conv", x) or padded_conv)(x, kernel, strides, padding)


def max_pool(x: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Any:
    """The maximum of every window.

    Args:
        x: `(batch, height, width, channels)`.
        size: Height and width of a window.
        strides: Steps of the window down and across.
        padding: `"same"` or `"valid"`.

    Returns:
        `(batch, rows of windows, columns of windows, channels)`.
    """
    fast = fast_path("max_pool", x)
    if fast is None:
        return ops.max_pool(x, size, strides, padding, data_format="channels_last")
    return fast(x, size, strides, padding)


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(KeepsAdapters, keras.layers.Dense):
    """`keras.layers.Dense`, whose adapters are saved, and which is fast where it has no activation.

    Input: `(batch, ..., D)`. Output: `(batch, ..., units)`.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        fast = fast_path("dense", inputs)
        if fast is None or self.activation is not keras.activations.linear:
            return super().call(inputs, training=training)
        return fast(inputs, _tensor(self.kernel), _tensor(self.bias) if self.use_bias else None)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As Keras's, which refuses subclasses, because they might compute something else."""
        super().quantize(mode, type_check=type_check and type(self) is not Dense, config=config)


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis.

    Input: `(batch, ..., D)`. Output: the same shape.
    """

    def call(self, inputs: Any) -> Any:
        fast = fast_path("layer_norm", inputs)
        if fast is None or self.axis != [-1] or self.rms_scaling or not (self.center and self.scale):
            return super().call(inputs)
        return fast(inputs, _tensor(self.gamma), _tensor(self.beta), self.epsilon)


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
class GroupNormalization(keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` over groups of channels, the last axis.

    Input: `(batch, height, width, channels)`. Output: the same shape.
    """

    def call(self, inputs: Any) -> Any:
        fast = fast_path("group_norm", inputs)
        if fast is None or self.axis != -1 or not (self.center and self.scale) or len(inputs.shape) != 4:
            return super().call(inputs)
        return fast(inputs, self.groups, _tensor(self.gamma), _tensor(self.beta), self.epsilon)
