"""The two pieces of BiT's ResNet that the hybrids' stem has not: its unit and its padded pooling."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.choices import POOL_PADDINGS
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.fast_paths import call_inside
from keras_vit.layers.resnet_unit import group_norm
from keras_vit.layers.std_conv import StdConv2D

# GroupNorm and StdConv in big_vision's `models/bit_paper.py`; both are added to a variance, inside the root.
GROUP_NORM_EPSILON = 1e-5
STD_CONV_EPSILON = 1e-10


def bit_conv(
    name: str, filters: int, size: int, strides: int = 1, padding: int = 0, folded: bool = False, dtype: Any = None
) -> StdConv2D:
    """A `StdConv2D` as BiT has it: zeros on every side, its own epsilon, added to the variance."""
    return StdConv2D(
        filters, size, strides, padding, STD_CONV_EPSILON, epsilon_inside=True, folded=folded, dtype=dtype, name=name
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTUnit(CompositeLayer):
    """Pre-activation bottleneck (`ResidualUnit` in big_vision's `models/bit_paper.py`).

    Group normalisation and ReLU stand before each of the convolutions 1x1, 3x3 and 1x1; the stride is the 3x3's.
    Where the width or the stride changes, the shortcut is a projection of the first activation, otherwise the input.

    Args:
        filters: Channels of the first two convolutions; the output has four times as many.
        strides: Step of the 3x3 convolution, and of the projection of the shortcut.
        folded: Whether the stored kernels have been standardised already (see `StdConv2D`).

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, 4 * filters)`.
    """

    def __init__(self, filters: int, strides: int = 1, folded: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.folded = folded

    def build(self, input_shape: tuple[int | None, ...]) -> None:
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

    def call(self, x: Any) -> Any:
        y = ops.relu(call_inside(self.gn1, x))
        shortcut = call_inside(self.conv_proj, y) if self.projected else x
        y = call_inside(self.conv1, y)
        y = call_inside(self.conv2, ops.relu(call_inside(self.gn2, y)))
        y = call_inside(self.conv3, ops.relu(call_inside(self.gn3, y)))
        return y + shortcut

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        rows, columns = (None if n is None else -(-n // self.strides) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, 4 * self.filters)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "folded": self.folded,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedMaxPooling2D(keras.layers.Layer):
    """Maximum over windows of 3x3 in steps of 2, with one cell of padding on every side (BiT's root).

    Args:
        padding: What the padding holds: `"-inf"`, which no maximum takes (big_vision's `models/bit_paper.py`), or
            `"zeros"`, which win over negative values along the edges (the original `big_transfer` code).

    Input: `(batch, height, width, channels)`. Output: half as many rows and columns, rounded up.
    """

    def __init__(self, padding: str = "-inf", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if padding not in POOL_PADDINGS:
            raise ValueError(f"padding must be one of {tuple(POOL_PADDINGS)}, but {padding!r} was given.")
        self.padding = padding

    def call(self, x: Any) -> Any:
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=POOL_PADDINGS[self.padding])
        return ops.max_pool(x, 3, 2, "valid", data_format="channels_last")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        rows, columns = (None if n is None else -(-n // 2) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding": self.padding}
