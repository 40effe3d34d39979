"""One block of the encoder: equations 2 and 3."""

from typing import Any

import keras

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.mlp import MLP
from keras_vit.layers.stochastic import SeedGenerator, drop_path, dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(CompositeLayer):
    """Pre-norm Transformer block (`Encoder1DBlock` in the official `models_vit.py`).

    Args:
        heads: Number of attention heads.
        mlp_width: Length of the MLP's hidden layer.
        dropout: Rate of dropout after attention and in the MLP.
        attention_dropout: Rate of dropout on the attention weights.
        drop_path: Rate of stochastic depth: how often each branch of an example is skipped.
        remat: Whether to recompute the block in the backward pass instead of keeping its activations: less memory,
            about a third more time. Dropout drops the same units both times.
        gelu: `"tanh"` or `"exact"`.
        epsilon: Added to the variance by both layer normalisations.

    Input: `(batch, T, D)`. Output: the same shape. All rates apply while training only.
    """

    def __init__(
        self,
        heads: int,
        mlp_width: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        remat: bool = False,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.mlp_width = mlp_width
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.drop_path = drop_path
        self.remat = remat
        self.gelu = gelu
        self.epsilon = epsilon
        self.seed_generator = SeedGenerator() if dropout or drop_path else None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        policy = self.dtype_policy
        self.norm1 = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm1")
        self.attention = MultiHeadAttention(self.heads, self.attention_dropout, dtype=policy, name="attention")
        self.norm2 = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm2")
        self.mlp = MLP(self.mlp_width, self.gelu, self.dropout, dtype=policy, name="mlp")
        for layer in (self.norm1, self.attention, self.norm2, self.mlp):
            layer.build(input_shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        # Every seed is drawn here, outside what may run twice.
        seeds = [
            *self.attention.draw_seeds(training),
            *self.mlp.draw_seeds(training),
            self._draw(training, self.dropout),
            self._draw(training, self.drop_path),
            self._draw(training, self.drop_path),
        ]
        if not (self.remat and training):
            return self._block(x, seeds)
        drawn = [seed for seed in seeds if seed is not None]

        def block(x: Any, *drawn: Any) -> Any:
            given = iter(drawn)
            return self._block(x, [None if seed is None else next(given) for seed in seeds])

        return keras.remat(block)(x, *drawn)

    def _draw(self, training: bool | None, rate: float) -> Any:
        return self.seed_generator.next() if training and rate else None

    def _block(self, x: Any, seeds: list[Any]) -> Any:
        attention_seed, hidden_seed, mlp_seed, dropout_seed, path_seed1, path_seed2 = seeds
        # Equation 2: z' = MSA(LN(z)) + z
        y = self.attention(self.norm1(x), seeds=[attention_seed])
        x = x + drop_path(dropout(y, self.dropout, dropout_seed), self.drop_path, path_seed1)
        # Equation 3: z = MLP(LN(z')) + z'
        y = self.mlp(self.norm2(x), seeds=[hidden_seed, mlp_seed])
        return x + drop_path(y, self.drop_path, path_seed2)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "heads": self.heads,
            "mlp_width": self.mlp_width,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "drop_path": self.drop_path,
            "remat": self.remat,
            "gelu": self.gelu,
            "epsilon": self.epsilon,
        }
