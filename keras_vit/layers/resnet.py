"""The convolutions, normalisations and bottlenecks of ResNets: those of the hybrids, and of BiT."""

from typing import Annotated, Any

import keras
from keras import ops

from keras_vit._arguments import DType, Shape, Tensor, check_choice
from keras_vit._options import OneOf
from keras_vit.layers.base import BaseLayer, CompositeLayer, activated, initializer, registered, tensor_of
from keras_vit.layers.choices import POOL_PADDINGS, STEM_EPSILONS
from keras_vit.layers.ops import activate_in_place, conv, group_normalization, max_pool, standardized

# GroupNorm and StdConv in big_vision's `models/bit_paper.py`; both are added to a variance, inside the root.
GROUP_NORM_EPSILON = 1e-5
STD_CONV_EPSILON = 1e-10


@registered
class StdConv2D(BaseLayer):
    """Convolution without bias whose kernel has mean 0 and standard deviation 1 for every output channel.

    The stored kernel is raw; it is standardised at every call, in float32.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel.
        strides: Step of the convolution in both directions.
        padding: `"same"` (TensorFlow's, which pads more after than before), or the number of zeros on every side.
        epsilon: Added to the standard deviation or the variance.
        epsilon_inside: False: the kernel is divided by `std + epsilon` (`StdConv` in the official
            `models_resnet.py`). True: by `sqrt(var + epsilon)` (BiT).
        folded: Whether the stored kernel has been standardised already, for inference.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, filters)`.

    Examples:
        >>> tuple(layers.StdConv2D(filters=8, kernel_size=3, strides=2)(np.zeros((1, 8, 8, 3), "float32")).shape)
        (1, 4, 4, 8)
    """

    filters: int
    kernel_size: int
    strides: int = 1
    padding: str | int = "same"
    epsilon: float = 1e-5
    epsilon_inside: bool = False
    folded: bool = False

    def _check_together(self) -> None:
        if not isinstance(self.padding, int):
            check_choice("padding", self.padding, ("same",))

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer=initializer("lecun_normal"),
            autocast=False,
        )

    def standardized_kernel(self) -> Tensor:
        """The kernel that the convolution uses, in the dtype of the weight; the stored one if `folded`."""
        kernel = self.kernel.value if isinstance(self.kernel, keras.Variable) else self.kernel
        return kernel if self.folded else standardized(kernel, self.epsilon, self.epsilon_inside)

    def call(self, x: Tensor) -> Tensor:
        return conv(x, tensor_of(self.standardized_kernel(), x), self.strides, self.padding)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        zeros = self.kernel_size - 1 if isinstance(self.padding, str) else 2 * self.padding
        sizes = (None if n is None else (n + zeros - self.kernel_size) // self.strides + 1 for n in input_shape[1:3])
        return (input_shape[0], *sizes, self.filters)


def bit_conv(
    name: str, filters: int, size: int, strides: int = 1, padding: int = 0, folded: bool = False, dtype: DType = None
) -> StdConv2D:
    """Returns a new `StdConv2D` as BiT has it: zeros on every side, its own epsilon, added to the variance.

    `filters`, `size`, `strides`, `padding` and `folded` are as in `StdConv2D`, `name` and `dtype` as in every layer.
    Output `(batch, rows, columns, filters)`.

    Examples:
        >>> tuple(layers.bit_conv("conv", filters=8, size=3, padding=1)(np.zeros((1, 4, 4, 3), "float32")).shape)
        (1, 4, 4, 8)
    """
    return StdConv2D(
        filters, size, strides, padding, STD_CONV_EPSILON, epsilon_inside=True, folded=folded, dtype=dtype, name=name
    )


@registered
class GroupNormalization(keras.layers.GroupNormalization, BaseLayer):
    """`keras.layers.GroupNormalization` over groups of channels, the last axis, right in float64 as well.

    Input: `(batch, height, width, channels)`. Output: the same shape.
    """

    def call(self, inputs: Any) -> Any:
        gamma, beta = tensor_of(self.gamma, inputs), tensor_of(self.beta, inputs)
        return group_normalization(inputs, self.groups, gamma, beta, self.epsilon)


def group_norm(name: str, dtype: DType, epsilon: float = 1e-6, gamma: str = "ones") -> GroupNormalization:
    """Returns a new layer of group normalisation over 32 groups of channels (Wu and He, 2018), as in Flax.

    `gamma` is the initializer of the factors, `"zeros"` at the end of a branch; `epsilon` is added to the variance;
    `name` and `dtype` are as in every layer. Input and output are `(batch, height, width, channels)`, channels a
    multiple of 32.

    Examples:
        >>> tuple(layers.group_norm("norm", "float32")(np.zeros((1, 4, 4, 32), "float32")).shape)
        (1, 4, 4, 32)
    """
    return GroupNormalization(32, epsilon=epsilon, gamma_initializer=gamma, dtype=dtype, name=name)


class _Bottleneck(CompositeLayer):
    """What the units of both ResNets have in common: the arguments, normalisations, the shape of the output."""

    filters: int
    strides: int = 1
    folded: bool = False

    def _norm(self, name: str, channels: Any, epsilon: float, gamma: str = "ones") -> GroupNormalization:
        """A new, built group normalisation; ValueError unless `channels` is a multiple of 32."""
        layer = group_norm(name, self.dtype_policy, epsilon, gamma)
        layer.build((None, None, None, channels))
        return layer

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else -(-n // self.strides) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, 4 * self.filters)


@registered
class ResNetUnit(_Bottleneck):
    """Post-activation bottleneck (`ResidualUnit` in the official `models_resnet.py`).

    Convolutions 1x1, 3x3 and 1x1, each with group normalisation; the stride is the 3x3's.

    Args:
        filters: Channels of the first two convolutions, a multiple of 32; the output has four times as many.
        strides: Step of the 3x3 convolution, and of the projection of the shortcut.
        folded: Whether the stored kernels have been standardised already (see `StdConv2D`).
        epsilons: Epsilons of normalisations and kernels: `"official"` or `"timm"`.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, 4 * filters)`.

    Examples:
        >>> tuple(layers.ResNetUnit(32, strides=2)(np.zeros((1, 8, 8, 32), "float32")).shape)
        (1, 4, 4, 128)
    """

    epsilons: Annotated[str, OneOf(tuple(STEM_EPSILONS))] = "official"

    def build(self, input_shape: Shape) -> None:
        before, inner, outer = input_shape[-1], self.filters, 4 * self.filters
        epsilon, *_ = STEM_EPSILONS[self.epsilons]
        self.projected = before != outer or self.strides != 1
        self.conv1 = self._conv("conv1", before, inner, 1)
        self.gn1 = self._norm("gn1", inner, epsilon)
        self.conv2 = self._conv("conv2", inner, inner, 3, self.strides)
        self.gn2 = self._norm("gn2", inner, epsilon)
        self.conv3 = self._conv("conv3", inner, outer, 1)
        self.gn3 = self._norm("gn3", outer, epsilon, gamma="zeros")  # a new unit starts as its shortcut
        if self.projected:
            self.conv_proj = self._conv("conv_proj", before, outer, 1, self.strides)
            self.gn_proj = self._norm("gn_proj", outer, epsilon)

    def _conv(self, name: str, before: Any, filters: int, size: int, strides: int = 1) -> StdConv2D:
        _, epsilon, inside = STEM_EPSILONS[self.epsilons]
        policy = self.dtype_policy
        layer = StdConv2D(filters, size, strides, "same", epsilon, inside, self.folded, dtype=policy, name=name)
        layer.build((None, None, None, before))
        return layer

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        shortcut = x
        if self.projected:
            shortcut = self.gn_proj(self.conv_proj(x, training=training), training=training)
        y = activated(self.gn1, self.conv1(x, training=training), "relu", training)
        y = activated(self.gn2, self.conv2(y, training=training), "relu", training)
        y = self.gn3(self.conv3(y, training=training), training=training)
        return activate_in_place(shortcut + y, "relu")


@registered
class BiTUnit(_Bottleneck):
    """Pre-activation bottleneck (`ResidualUnit` in big_vision's `models/bit_paper.py`).

    Group normalisation and ReLU stand before each of the convolutions 1x1, 3x3 and 1x1; the stride is the 3x3's.
    Where the width or the stride changes, the shortcut is a projection of the first activation, otherwise the input.

    Arguments as in `ResNetUnit`, without `epsilons`.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, 4 * filters)`.

    Examples:
        >>> tuple(layers.BiTUnit(32, strides=2)(np.zeros((1, 8, 8, 32), "float32")).shape)
        (1, 4, 4, 128)
    """

    def build(self, input_shape: Shape) -> None:
        before, inner, outer = input_shape[-1], self.filters, 4 * self.filters
        self.projected = before != outer or self.strides != 1
        self.gn1 = self._norm("gn1", before, GROUP_NORM_EPSILON)
        self.conv1 = self._conv("conv1", before, inner, 1)
        self.gn2 = self._norm("gn2", inner, GROUP_NORM_EPSILON)
        self.conv2 = self._conv("conv2", inner, inner, 3, self.strides)
        self.gn3 = self._norm("gn3", inner, GROUP_NORM_EPSILON)
        self.conv3 = self._conv("conv3", inner, outer, 1)
        if self.projected:
            self.conv_proj = self._conv("conv_proj", before, outer, 1, self.strides)

    def _conv(self, name: str, before: Any, filters: int, size: int, strides: int = 1) -> StdConv2D:
        layer = bit_conv(name, filters, size, strides, size // 2, self.folded, self.dtype_policy)
        layer.build((None, None, None, before))
        return layer

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        y = activated(self.gn1, x, "relu", training)
        shortcut = self.conv_proj(y, training=training) if self.projected else x
        y = activated(self.gn2, self.conv1(y, training=training), "relu", training)
        y = activated(self.gn3, self.conv2(y, training=training), "relu", training)
        return shortcut + self.conv3(y, training=training)


@registered
class MaxPooling2D(keras.layers.MaxPooling2D, BaseLayer):
    """`keras.layers.MaxPooling2D`.

    Input: `(batch, height, width, channels)`. Output: fewer rows and columns.
    """

    def call(self, inputs: Any) -> Any:
        return max_pool(inputs, self.pool_size, self.strides, self.padding)


@registered
class PaddedMaxPooling2D(BaseLayer):
    """Maximum over windows of 3x3 in steps of 2, with one cell of padding on every side (BiT's root).

    Args:
        padding: What the padding holds: `"-inf"`, which no maximum takes (big_vision's `models/bit_paper.py`), or
            `"zeros"`, which win over negative values along the edges (the original `big_transfer` code).

    Input: `(batch, height, width, channels)`. Output: half as many rows and columns, rounded up.

    Examples:
        >>> tuple(layers.PaddedMaxPooling2D()(np.zeros((1, 5, 5, 2), "float32")).shape)
        (1, 3, 3, 2)
    """

    padding: Annotated[str, OneOf(tuple(POOL_PADDINGS))] = "-inf"

    def call(self, x: Tensor) -> Tensor:
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=POOL_PADDINGS[self.padding])
        return max_pool(x, (3, 3), (2, 2), "valid")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else -(-n // 2) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, input_shape[3])
