"""Keras's normalisations, computed the way that is fastest where they run."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.fast_paths import fast_path


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis.

    Input: `(batch, ..., D)`. Output: the same shape.
    """

    def call(self, x: Any) -> Any:
        fast = fast_path("layer_norm", x)
        if fast is None or self.axis != [-1] or self.rms_scaling or not (self.center and self.scale):
            return super().call(x)
        return fast(x, ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta), self.epsilon)


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNormalization(keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` over groups of channels, the last axis.

    Input: `(batch, height, width, channels)`. Output: the same shape.
    """

    def call(self, x: Any) -> Any:
        fast = fast_path("group_norm", x)
        if fast is None or self.axis != -1 or not (self.center and self.scale) or len(x.shape) != 4:
            return super().call(x)
        return fast(x, self.groups, ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta), self.epsilon)
