"""Register tokens: learned tokens that stand for nothing in the image."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.initialization import initializer


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(keras.layers.Layer):
    """Puts learned tokens, the same for every image, before the others ("Vision Transformers Need Registers").

    The model keeps there what it would otherwise write over patches that say little (arXiv 2309.16588). Nothing reads
    them in the end. DINOv2 with registers and DINOv3 have four.

    Args:
        count: How many.

    Input: `(batch, tokens, D)`. Output: `(batch, count + tokens, D)`.
    """

    def __init__(self, count: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = (1, self.count, input_shape[-1])
        self.tokens = self.add_weight(name="tokens", shape=shape, initializer=initializer("normal", stddev=0.02))

    def call(self, tokens: Any) -> Any:
        registers = ops.cast(ops.convert_to_tensor(self.tokens), tokens.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(tokens)[0], self.count, tokens.shape[-1]))
        return ops.concatenate([registers, tokens], axis=1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else self.count + tokens, width)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "count": self.count}
