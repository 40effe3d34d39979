"""The two-layer perceptron of equation 3."""

from typing import Any

import keras

from keras_vit.layers.choices import GELUS, check_choice
from keras_vit.layers.composite import CompositeLayer, own_policy
from keras_vit.layers.dense import Dense
from keras_vit.layers.fast_paths import call_inside
from keras_vit.layers.gelu import gelu as apply_gelu
from keras_vit.layers.initialization import initializer
from keras_vit.layers.stochastic import SeedGenerator, dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(CompositeLayer):
    """Dense, GELU, dropout, Dense, dropout (`MlpBlock` in the official `models_vit.py`).

    Args:
        width: Length of the hidden layer.
        gelu: `"tanh"`, the approximation that the official checkpoints were trained with, `"exact"` or `"quick"`.
        dropout: Rate of both dropouts while training.

    Call arguments:
        x: `(..., D)`.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Output: as `x`.

    Raises:
        ValueError: if `gelu` is unknown.
    """

    def __init__(self, width: int, gelu: str = "tanh", dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("gelu", gelu, GELUS)
        self.width = width
        self.gelu = gelu
        self.dropout = dropout
        self.seed_generator = SeedGenerator() if dropout else None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.fc1 = self._dense(self.width, "fc1")
        self.fc2 = self._dense(input_shape[-1], "fc2")
        self.fc1.build(input_shape)
        self.fc2.build((*input_shape[:-1], self.width))

    def _dense(self, units: int, name: str) -> Dense:
        return Dense(
            units,
            kernel_initializer=initializer("glorot_uniform"),
            bias_initializer=initializer("normal", stddev=1e-6),
            dtype=own_policy(self.dtype_policy, f"{self.path}/{name}"),
            name=name,
        )

    def draw_seeds(self, training: bool | None) -> list[Any]:
        """The seeds of one call, one per dropout; None where nothing is dropped."""
        return [self.seed_generator.next() if training and self.dropout else None for _ in range(2)]

    def call(self, x: Any, training: bool | None = None, seeds: Any = None) -> Any:
        hidden_seed, out_seed = self.draw_seeds(training) if seeds is None else seeds
        x = apply_gelu(call_inside(self.fc1, x), self.gelu)
        x = call_inside(self.fc2, dropout(x, self.dropout, hidden_seed))
        return dropout(x, self.dropout, out_seed)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "gelu": self.gelu, "dropout": self.dropout}
