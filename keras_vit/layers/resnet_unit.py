"""The bottleneck of the hybrids' ResNet."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.fast_paths import call_inside
from keras_vit.layers.normalization import GroupNormalization
from keras_vit.layers.std_conv import StdConv2D


def group_norm(name: str, dtype: Any, epsilon: float = 1e-6, gamma: str = "ones") -> GroupNormalization:
    """Group normalisation over 32 groups of channels (Wu and He, 2018), as in Flax."""
    return GroupNormalization(32, epsilon=epsilon, gamma_initializer=gamma, dtype=dtype, name=name)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetUnit(CompositeLayer):
    """Post-activation bottleneck (`ResidualUnit` in the official `models_resnet.py`).

    Convolutions 1x1, 3x3 and 1x1, each with group normalisation; the stride is the 3x3's.

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
        policy, outer = self.dtype_policy, 4 * self.filters
        self.projected = input_shape[-1] != outer or self.strides != 1
        self.conv1 = self._conv("conv1", self.filters, 1)
        self.gn1 = group_norm("gn1", policy)
        self.conv2 = self._conv("conv2", self.filters, 3, self.strides)
        self.gn2 = group_norm("gn2", policy)
        self.conv3 = self._conv("conv3", outer, 1)
        # A new unit starts as its shortcut.
        self.gn3 = group_norm("gn3", policy, gamma="zeros")
        self.conv1.build((*input_shape[:3], input_shape[-1]))
        self.conv2.build((None, None, None, self.filters))
        self.conv3.build((None, None, None, self.filters))
        self.gn1.build((None, None, None, self.filters))
        self.gn2.build((None, None, None, self.filters))
        self.gn3.build((None, None, None, outer))
        if self.projected:
            self.conv_proj = self._conv("conv_proj", outer, 1, self.strides)
            self.gn_proj = group_norm("gn_proj", policy)
            self.conv_proj.build(input_shape)
            self.gn_proj.build((None, None, None, outer))

    def _conv(self, name: str, filters: int, size: int, strides: int = 1) -> StdConv2D:
        return StdConv2D(filters, size, strides, folded=self.folded, dtype=self.dtype_policy, name=name)

    def call(self, x: Any) -> Any:
        shortcut = call_inside(self.gn_proj, call_inside(self.conv_proj, x)) if self.projected else x
        y = ops.relu(call_inside(self.gn1, call_inside(self.conv1, x)))
        y = ops.relu(call_inside(self.gn2, call_inside(self.conv2, y)))
        y = call_inside(self.gn3, call_inside(self.conv3, y))
        return ops.relu(shortcut + y)

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
