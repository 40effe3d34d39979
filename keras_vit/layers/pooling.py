"""From a sequence of tokens to one vector per image, the y of equation 4 and its alternatives, or back to a map."""

from typing import Any

import keras
from keras import ops

from keras_vit._arguments import Shape, Tensor, check_choice
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.base import CompositeLayer, LayerNormalization, WatchedLayer, initializer, may_be_plain
from keras_vit.layers.mlp import MLP
from keras_vit.layers.ops import mean


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class TokenPooling(WatchedLayer):
    """Picks a token, averages the patches (appendix D.3), or both.

    Args:
        mode: `"token"`: one token; `"token_dist"`: the mean of it and the next one, the distillation token, as timm's
            DeiT answers without a head; `"avg"`: the mean of the patch tokens; `"token_avg"`: the token, then the mean,
            as DINOv2's linear classifiers read them.
        prefix_tokens: Number of tokens before the patches, left out of the mean.
        token: Which token; 0 for the first.

    Input: `(batch, T, D)`. Output: `(batch, D)`, or `(batch, 2 D)` with `"token_avg"`.

    Examples:
        >>> tuple(layers.TokenPooling("avg")(np.zeros((1, 5, 8), "float32")).shape)
        (1, 8)
    """

    def __init__(self, mode: str = "token", prefix_tokens: int = 1, token: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("mode", mode, ("token_dist", "token", "avg", "token_avg"))
        self.mode = mode
        self.prefix_tokens = prefix_tokens
        self.token = token

    def call(self, tokens: Tensor) -> Tensor:
        if self.mode == "token":
            return tokens[:, self.token]
        if self.mode == "token_dist":
            return (tokens[:, self.token] + tokens[:, self.token + 1]) / 2
        patches = mean(tokens[:, self.prefix_tokens :], 1)[:, 0]
        return patches if self.mode == "avg" else ops.concatenate([tokens[:, self.token], patches], axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        width = input_shape[2] or 0  # known in any model
        return (input_shape[0], width * (2 if self.mode == "token_avg" else 1))

    def get_config(self) -> dict[str, Any]:
        config = {"mode": self.mode, "prefix_tokens": self.prefix_tokens, "token": self.token}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class MAPHead(CompositeLayer):
    """Multi-head attention pooling: one learned query asks all tokens (`MAPHead` in big_vision's `models/vit.py`).

    Args:
        heads: Number of attention heads.
        mlp_width: Length of the hidden layer of the MLP after the attention.
        gelu: `"tanh"`, `"exact"` or `"quick"`.
        epsilon: Added to the variance by the layer normalisation.
        skipped_tokens: How many of the first tokens are not asked.

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
        super().__init__(**kwargs)
        self.skipped_tokens = skipped_tokens
        self.heads = heads
        self.mlp_width = mlp_width
        self.gelu = gelu
        self.epsilon = epsilon

    def build(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> None:
        policy = self.dtype_policy
        width = tokens_shape[-1]
        self.probe = self.add_weight(name="probe", shape=(1, 1, width), initializer=initializer("glorot_uniform"))
        self.attention = MultiHeadAttention(self.heads, dtype=policy, name="attention")
        self.norm = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm")
        self.mlp = MLP(self.mlp_width, self.gelu, dtype=policy, name="mlp")
        for layer in (self.attention, self.norm, self.mlp):
            layer.build((None, None, width))

    def call(self, tokens: Tensor, attention_offset: Tensor | None = None) -> Tensor:
        x = self.attention(*self._asked(tokens), offset=attention_offset)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]

    def attention_weights(self, tokens: Tensor) -> Tensor:
        """How much of each token that is asked is read, `(batch, heads, 1, T - skipped_tokens)`, summing to 1.

        In at least float32.
        """
        return self.attention.attention_weights(*self._asked(tokens))

    def _asked(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that are asked, and the query."""
        probe = ops.cast(ops.convert_to_tensor(self.probe), tokens.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return tokens[:, self.skipped_tokens :] if self.skipped_tokens else tokens, probe

    def compute_output_shape(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[2])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "heads": self.heads,
            "mlp_width": self.mlp_width,
            "gelu": self.gelu,
            "epsilon": self.epsilon,
            "skipped_tokens": self.skipped_tokens,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenMap(keras.layers.Layer):
    """Lays the patch tokens out as they lie in the image, without the tokens before them.

    What detectors and segmentation heads read: a map as a convolutional network gives it.

    Args:
        grid_size: Rows and columns of the patches.
        prefix_tokens: Number of tokens before the patches.

    Call arguments:
        tokens: `(batch, prefix_tokens + rows * columns, D)`.
        patches: Optional `(batch, rows, columns, D)`, the patch map that the tokens come from, where the grid is
            another than `grid_size`.

    Output: `(batch, rows, columns, D)`.

    Examples:
        >>> tuple(layers.TokenMap(grid_size=(2, 3))(np.zeros((1, 7, 8), "float32")).shape)
        (1, 2, 3, 8)
    """

    def __init__(self, grid_size: tuple[int, int], prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid_size = tuple(grid_size)
        self.prefix_tokens = prefix_tokens

    def call(self, tokens: Tensor, patches: Tensor | None = None) -> Tensor:
        rows, columns = self.grid_size if patches is None else ops.shape(patches)[1:3]
        return ops.reshape(tokens[:, self.prefix_tokens :], (-1, rows, columns, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        grid = self.grid_size if patches_shape is None else patches_shape[1:3]
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid_size": self.grid_size, "prefix_tokens": self.prefix_tokens}
