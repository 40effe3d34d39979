"""Attention pooling: one learned query attends to all tokens."""

from typing import Any

from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit.layers.base import CompositeLayer, initializer, registered
from keras_vit.layers.transformer_block import MLP, MultiHeadAttention


@registered
class MAPHead(CompositeLayer):
    """Attention pooling: one learned query attends to all tokens (`MAPHead` in big_vision's `models/vit.py`).

    Args:
        heads: Number of attention heads.
        mlp_width: Length of the hidden layer of the MLP after the attention.
        gelu: `"tanh"`, `"exact"` or `"quick"`.
        epsilon: Added to the variance by the layer normalisation.
        skipped_tokens: How many of the first tokens the query does not attend to.

    Call arguments:
        tokens: `(batch, T, D)`.
        attention_offset: Optional `(batch, heads, 1, T - skipped_tokens)`, added to the attention weights (see
            `MultiHeadAttention`).

    Output: `(batch, D)`.

    Examples:
        >>> tuple(layers.MAPHead(heads=2, mlp_width=16)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 8)
    """

    def __init__(
        self,
        heads: int,
        mlp_width: int,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        skipped_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        """Keeps the arguments."""
        super().__init__(**kwargs)
        self.heads = heads
        self.mlp_width = mlp_width
        self.gelu = gelu
        self.epsilon = epsilon
        self.skipped_tokens = skipped_tokens

    def build(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> None:
        """Makes the probe, attention, normalisation and MLP."""
        policy, width = self.dtype_policy, tokens_shape[-1]
        self.probe = self.add_weight(name="probe", shape=(1, 1, width), initializer=initializer("glorot_uniform"))
        self.attention = MultiHeadAttention(self.heads, dtype=policy, name="attention")
        self.norm = self.inner_norm("norm", (None, None, width), self.epsilon)
        self.mlp = MLP(self.mlp_width, self.gelu, dtype=policy, name="mlp")
        for layer in (self.attention, self.mlp):
            layer.build((None, None, width))

    def call(self, tokens: Tensor, attention_offset: Tensor | None = None, training: bool | None = None) -> Tensor:
        x = self.attention(*self._keys_and_query(tokens), offset=attention_offset, training=training)
        x = x + self.mlp(self.norm(x, training=training), training=training)
        return x[:, 0]

    def attention_weights(self, tokens: Tensor) -> Tensor:
        """The attention weights, `(batch, heads, 1, T - skipped_tokens)`, which sum to 1; in at least float32."""
        return self.attention.attention_weights(*self._keys_and_query(tokens))

    def _keys_and_query(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that the query attends to, and the query for each image."""
        probe = ops.cast(ops.convert_to_tensor(self.probe), tokens.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return tokens[:, self.skipped_tokens :] if self.skipped_tokens else tokens, probe

    def compute_output_shape(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[2])
