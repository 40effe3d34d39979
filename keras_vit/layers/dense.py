"""Keras's dense layer, computed the way that is fastest where it runs."""

from typing import Any

import keras

from keras_vit.layers.fast_paths import fast_path


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` for what the blocks consist of: sequences, no activation.

    Input: `(batch, ..., D)`. Output: `(batch, ..., units)`.
    """

    def call(self, x: Any, training: bool | None = None) -> Any:
        fast = fast_path("dense", x)
        if fast is None or self.activation is not keras.activations.linear:
            return super().call(x, training=training)
        bias = keras.ops.convert_to_tensor(self.bias) if self.use_bias else None
        return fast(x, keras.ops.convert_to_tensor(self.kernel), bias)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As Keras's, which refuses subclasses, because they might compute something else."""
        super().quantize(mode, type_check=type_check and type(self) is not Dense, config=config)
