"""Dropout on the tokens of models that add no position embedding, whose layer would do it."""

from typing import Any

import keras

from keras_vit.layers.stochastic import SeedGenerator, dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenDropout(keras.layers.Layer):
    """Dropout whose seed is optional in weight files, unlike that of Keras's own layer.

    Args:
        dropout: Rate while training.

    Input: `(batch, T, D)`. Output: the same shape.
    """

    def __init__(self, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = dropout
        self.seed_generator = SeedGenerator() if dropout else None

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        seed = self.seed_generator.next() if training and self.dropout else None
        return dropout(tokens, self.dropout, seed)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dropout": self.dropout}
