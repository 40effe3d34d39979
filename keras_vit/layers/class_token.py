"""The class token: x_class of equation 1."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Puts one learned token, the same for every image, before the patch tokens (section 3.1).

    Input: `(batch, tokens, D)`. Output: `(batch, 1 + tokens, D)`.
    The token starts as zeros, as `cls` does in the official `models_vit.py`.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.token = self.add_weight(name="token", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def call(self, tokens: Any) -> Any:
        token = ops.cast(ops.convert_to_tensor(self.token), tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return ops.concatenate([token, tokens], axis=1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else tokens + 1, width)

    def get_config(self) -> dict[str, Any]:
        # Keras wants to see that this layer has no arguments of its own.
        return super().get_config()
