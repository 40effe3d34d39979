"""The convolutions and bottlenecks of ResNets: those of the hybrids, and of BiT."""

from typing import Any

import keras
from keras import ops

from keras_vit._arguments import DType, Shape, Tensor, check_choice
from keras_vit.layers.base import (
    CompositeLayer,
    GroupNormalization,
    WatchedLayer,
    call_inside,
    initializer,
    may_be_plain,
)
from keras_vit.layers.choices import POOL_PADDINGS, STEM_EPSILONS
from keras_vit.layers.ops import activate, conv, max_pool, mean


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class StdConv2D(WatchedLayer):
    """Convolution without bias whose kernel has mean 0 and standard deviation 1 for every output channel.

    The stored kernel is raw; it is standardised at every call, in float32.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel.
        strides: Step of the convolution in both directions.
        padding: `"same"` (TensorFlow's, which pads more after than before), or the number of zeros on every side.
        epsilon: Keeps the division finite.
        epsilon_inside: False: the kernel is divided by `std + epsilon` (`StdConv` in the official
            `models_resnet.py`). True: by `sqrt(var + epsilon)` (BiT).
        folded: True where the stored kernel has been standardised already, for inference.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, filters)`.

    Examples:
        >>> tuple(layers.StdConv2D(filters=8, kernel_size=3, strides=2)(np.zeros((1, 8, 8, 3), "float32")).shape)
        (1, 4, 4, 8)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        padding: str | int = "same",
        epsilon: float = 1e-5,
        epsilon_inside: bool = False,
        folded: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.epsilon = epsilon
        self.epsilon_inside = epsilon_inside
        self.folded = folded

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer=initializer("lecun_normal"),
            autocast=False,
        )

    def standardized_kernel(self) -> Tensor:
        """The kernel that the convolution uses, in float32 or better."""
        kernel = ops.convert_to_tensor(self.kernel)
        if self.folded:
            return kernel
        kernel = kernel - mean(kernel, (0, 1, 2))
        variance = mean(ops.square(kernel), (0, 1, 2))
        if self.epsilon_inside:
            return kernel / ops.sqrt(variance + self.epsilon)
        return kernel / (ops.sqrt(variance) + self.epsilon)

    def call(self, x: Tensor) -> Tensor:
        return conv(x, ops.cast(self.standardized_kernel(), x.dtype), self.strides, self.padding)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        def length(n: int | None) -> int | None:
            if n is None:
                return None
            if self.padding == "same":
                return -(-n // self.strides)
            return (n + 2 * self.padding - self.kernel_size) // self.strides + 1

        return (input_shape[0], length(input_shape[1]), length(input_shape[2]), self.filters)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "epsilon": self.epsilon,
            "epsilon_inside": self.epsilon_inside,
            "folded": self.folded,
        }


def group_norm(name: str, dtype: DType, epsilon: float = 1e-6, gamma: str = "ones") -> GroupNormalization:
    """Group normalisation over 32 groups of channels (Wu and He, 2018), as in Flax.

    Args:
        name: Name of the layer.
        dtype: Dtype policy of the layer.
        epsilon: Added to the variance.
        gamma: Initializer of the factors; `"zeros"` at the end of a branch.

    Returns:
        The layer; input and output `(batch, height, width, channels)`, channels a multiple of 32.

    Examples:
        >>> tuple(layers.group_norm("norm", "float32")(np.zeros((1, 4, 4, 32), "float32")).shape)
        (1, 4, 4, 32)
    """
    return GroupNormalization(32, epsilon=epsilon, gamma_initializer=gamma, dtype=dtype, name=name)


class _Bottleneck(CompositeLayer):
    """What the units of both ResNets have in common."""

    def __init__(self, filters: int, strides: int = 1, folded: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.folded = folded

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else -(-n // self.strides) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, 4 * self.filters)

    def get_config(self) -> dict[str, Any]:
        own = {"filters": self.filters, "strides": self.strides, "folded": self.folded}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class ResNetUnit(_Bottleneck):
    """Post-activation bottleneck (`ResidualUnit` in the official `models_resnet.py`).

    Convolutions 1x1, 3x3 and 1x1, each with group normalisation; the stride is the 3x3's.

    Args:
        filters: Channels of the first two convolutions; the output has four times as many.
        strides: Step of the 3x3 convolution, and of the projection of the shortcut.
        folded: Whether the stored kernels have been standardised already (see `StdConv2D`).
        epsilons: `"official"`, or `"timm"`, whose normalisations and kernels have others.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, 4 * filters)`.

    Examples:
        >>> tuple(layers.ResNetUnit(32, strides=2)(np.zeros((1, 8, 8, 32), "float32")).shape)
        (1, 4, 4, 128)
    """

    def __init__(
        self, filters: int, strides: int = 1, folded: bool = False, epsilons: str = "official", **kwargs: Any
    ) -> None:
        super().__init__(filters, strides, folded, **kwargs)
        check_choice("epsilons", epsilons, tuple(STEM_EPSILONS))
        self.epsilons = epsilons

    def build(self, input_shape: Shape) -> None:
        policy, outer = self.dtype_policy, 4 * self.filters
        epsilon, *_ = STEM_EPSILONS[self.epsilons]
        self.projected = input_shape[-1] != outer or self.strides != 1
        self.conv1 = self._conv("conv1", self.filters, 1)
        self.gn1 = group_norm("gn1", policy, epsilon)
        self.conv2 = self._conv("conv2", self.filters, 3, self.strides)
        self.gn2 = group_norm("gn2", policy, epsilon)
        self.conv3 = self._conv("conv3", outer, 1)
        # A new unit starts as its shortcut.
        self.gn3 = group_norm("gn3", policy, epsilon, gamma="zeros")
        self.conv1.build((*input_shape[:3], input_shape[-1]))
        self.conv2.build((None, None, None, self.filters))
        self.conv3.build((None, None, None, self.filters))
        self.gn1.build((None, None, None, self.filters))
        self.gn2.build((None, None, None, self.filters))
        self.gn3.build((None, None, None, outer))
        if self.projected:
            self.conv_proj = self._conv("conv_proj", outer, 1, self.strides)
            self.gn_proj = group_norm("gn_proj", policy, epsilon)
            self.conv_proj.build(input_shape)
            self.gn_proj.build((None, None, None, outer))

    def _conv(self, name: str, filters: int, size: int, strides: int = 1) -> StdConv2D:
        _, epsilon, inside = STEM_EPSILONS[self.epsilons]
        return StdConv2D(
            filters,
            size,
            strides,
            epsilon=epsilon,
            epsilon_inside=inside,
            folded=self.folded,
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        shortcut = x
        if self.projected:
            shortcut = call_inside(self.gn_proj, call_inside(self.conv_proj, x, training), training)
        y = call_inside(self.gn1, call_inside(self.conv1, x, training), training, activation="relu")
        y = call_inside(self.gn2, call_inside(self.conv2, y, training), training, activation="relu")
        y = call_inside(self.gn3, call_inside(self.conv3, y, training), training)
        return activate(shortcut + y, "relu", fresh=True)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilons": self.epsilons}


# GroupNorm and StdConv in big_vision's `models/bit_paper.py`; both are added to a variance, inside the root.
GROUP_NORM_EPSILON = 1e-5
STD_CONV_EPSILON = 1e-10


def bit_conv(
    name: str, filters: int, size: int, strides: int = 1, padding: int = 0, folded: bool = False, dtype: DType = None
) -> StdConv2D:
    """A `StdConv2D` as BiT has it: zeros on every side, its own epsilon, added to the variance.

    Args:
        name: Name of the layer.
        filters: Number of output channels.
        size: Height and width of the kernel.
        strides: Step in both directions.
        padding: Zeros on every side.
        folded: Whether the stored kernel has been standardised already.
        dtype: Dtype policy of the layer.

    Returns:
        The layer; input `(batch, height, width, channels)`, output `(batch, rows, columns, filters)`.

    Examples:
        >>> tuple(layers.bit_conv("conv", filters=8, size=3, padding=1)(np.zeros((1, 4, 4, 3), "float32")).shape)
        (1, 4, 4, 8)
    """
    return StdConv2D(
        filters, size, strides, padding, STD_CONV_EPSILON, epsilon_inside=True, folded=folded, dtype=dtype, name=name
    )


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class BiTUnit(_Bottleneck):
    """Pre-activation bottleneck (`ResidualUnit` in big_vision's `models/bit_paper.py`).

    Group normalisation and ReLU stand before each of the convolutions 1x1, 3x3 and 1x1; the stride is the 3x3's.
    Where the width or the stride changes, the shortcut is a projection of the first activation, otherwise the input.

    Args:
        filters: Channels of the first two convolutions; the output has four times as many.
        strides: Step of the 3x3 convolution, and of the projection of the shortcut.
        folded: Whether the stored kernels have been standardised already (see `StdConv2D`).

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, 4 * filters)`.

    Examples:
        >>> tuple(layers.BiTUnit(32, strides=2)(np.zeros((1, 8, 8, 32), "float32")).shape)
        (1, 4, 4, 128)
    """

    def build(self, input_shape: Shape) -> None:
        policy, before, outer = self.dtype_policy, input_shape[-1], 4 * self.filters
        self.projected = before != outer or self.strides != 1
        options = {"folded": self.folded, "dtype": policy}
        self.gn1 = group_norm("gn1", policy, GROUP_NORM_EPSILON)
        self.conv1 = bit_conv("conv1", self.filters, 1, **options)
        self.gn2 = group_norm("gn2", policy, GROUP_NORM_EPSILON)
        self.conv2 = bit_conv("conv2", self.filters, 3, self.strides, padding=1, **options)
        self.gn3 = group_norm("gn3", policy, GROUP_NORM_EPSILON)
        self.conv3 = bit_conv("conv3", outer, 1, **options)
        for layer in (self.gn1, self.conv1):
            layer.build((None, None, None, before))
        for layer in (self.gn2, self.conv2, self.gn3, self.conv3):
            layer.build((None, None, None, self.filters))
        if self.projected:
            self.conv_proj = bit_conv("conv_proj", outer, 1, self.strides, **options)
            self.conv_proj.build((None, None, None, before))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        y = call_inside(self.gn1, x, training, activation="relu")
        shortcut = call_inside(self.conv_proj, y, training) if self.projected else x
        y = call_inside(self.gn2, call_inside(self.conv1, y, training), training, activation="relu")
        y = call_inside(self.gn3, call_inside(self.conv2, y, training), training, activation="relu")
        return shortcut + call_inside(self.conv3, y, training)


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedMaxPooling2D(keras.layers.Layer):
    """Maximum over windows of 3x3 in steps of 2, with one cell of padding on every side (BiT's root).

    Args:
        padding: What the padding holds: `"-inf"`, which no maximum takes (big_vision's `models/bit_paper.py`), or
            `"zeros"`, which win over negative values along the edges (the original `big_transfer` code).

    Input: `(batch, height, width, channels)`. Output: half as many rows and columns, rounded up.

    Examples:
        >>> tuple(layers.PaddedMaxPooling2D()(np.zeros((1, 5, 5, 2), "float32")).shape)
        (1, 3, 3, 2)
    """

    def __init__(self, padding: str = "-inf", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if padding not in POOL_PADDINGS:
            raise ValueError(f"padding must be one of {tuple(POOL_PADDINGS)}, but {padding!r} was given.")
        self.padding = padding

    def call(self, x: Tensor) -> Tensor:
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=POOL_PADDINGS[self.padding])
        return max_pool(x, (3, 3), (2, 2), "valid")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else -(-n // 2) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding": self.padding}
