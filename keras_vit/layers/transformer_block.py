"""One block of the encoder: equations 2 and 3."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import initializers, ops

from keras_vit._arguments import Shape, Tensor, check_choice
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.base import (
    CompositeLayer,
    LayerNormalization,
    SeedGenerator,
    WatchedLayer,
    call_inside,
    drop_path,
    dropout,
    may_be_plain,
)
from keras_vit.layers.choices import MLPS
from keras_vit.layers.mlp import MLP, SwiGLU
from keras_vit.layers.ops import fast_path, float32_or_better

# What a block can give beside its output, with the shapes: T tokens of length D, H heads; where only the first Q tokens
# go on, Q takes the place of the first T. Rows of attention weights sum
# to 1 and are float32 or better.
BLOCK_ACTIVATIONS: dict[str, str] = {
    "attention_weights": "(batch, H, T, T)",
    "attention": "(batch, T, D)",  # what attention adds to the tokens; big_vision's `sa`
    "+attention": "(batch, T, D)",  # their sum, the z' of equation 2; big_vision's `+sa`
    "mlp": "(batch, T, D)",  # what the MLP adds; big_vision's `mlp`
}
"""What a `TransformerBlock` can give beside its output, and its shape: T tokens of length D, H heads.

Examples:
    >>> layers.BLOCK_ACTIVATIONS["attention_weights"]
    '(batch, H, T, T)'
"""


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class LayerScale(WatchedLayer):
    """Multiplies every channel by a learned factor, at the end of a branch of a block (CaiT, arXiv 2103.17239).

    With small factors a block starts as nearly the identity. DeiT-III, DINOv2 and DINOv3 have it.

    Args:
        initial: First value of all factors, such as 1e-5.

    Input: `(..., D)`. Output: the same shape.

    Examples:
        >>> tuple(layers.LayerScale(0.5)(np.ones((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    def __init__(self, initial: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape: Shape) -> None:
        first = initializers.Constant(self.initial)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=first)

    def call(self, x: Tensor) -> Tensor:
        return x * ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial": self.initial}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
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
        gelu: `"tanh"`, `"exact"` or `"quick"`; a SwiGLU has none.
        epsilon: Added to the variance by all layer normalisations.
        mlp: `"plain"`, `"swiglu"`, or with a normalisation inside `"plain_norm"`, `"swiglu_norm"`.
        layer_scale: First value of the factors at the end of both branches (see `LayerScale`); None for none.
        attention_bias: Which projections have a bias, as `bias` in `MultiHeadAttention`.
        attention_norm: Whether the joined heads are normalised, as `norm` there.
        rotary_embedding: `"dinov3"` or `"eva02"` where a rotation is passed; None for none.
        output_tokens: How many tokens go on, from the first one; None for all. Of the others nothing is computed but
            their keys and values.

    Call arguments:
        x: `(batch, T, D)`.
        rotation: What `RotaryEmbedding` gives, with `rotary_embedding` only.

        attention_offset: Optional `(batch, heads, Q, T)`, added to the attention weights (see `MultiHeadAttention`); Q
            is T or `output_tokens`.
        activations: Names from `BLOCK_ACTIVATIONS`; None for none.

    Output: as `x`, with `output_tokens` tokens; with `activations` a list of these, in their order, and the output at
    its end. All rates apply while training only.

    Raises:
        ValueError: if a name is unknown, or `heads` does not divide D.

    Examples:
        >>> tuple(layers.TransformerBlock(heads=2, mlp_width=16)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
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
        mlp: str = "plain",
        layer_scale: float | None = None,
        attention_bias: str = "all",
        attention_norm: bool = False,
        rotary_embedding: str | None = None,
        output_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mlp", mlp, MLPS)
        self.heads = heads
        self.mlp_width = mlp_width
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.drop_path = drop_path
        self.remat = remat
        self.gelu = gelu
        self.epsilon = epsilon
        self.mlp_kind = mlp
        self.layer_scale = layer_scale
        self.attention_bias = attention_bias
        self.attention_norm = attention_norm
        self.rotary_embedding = rotary_embedding
        self.output_tokens = output_tokens
        self.seed_generator = SeedGenerator() if dropout or drop_path else None

    def build(
        self, x_shape: tuple[int | None, ...], rotation_shape: Any = None, attention_offset_shape: Any = None
    ) -> None:
        policy = self.dtype_policy
        self.norm1 = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm1")
        self.attention = MultiHeadAttention(
            self.heads,
            self.attention_dropout,
            self.attention_bias,
            self.attention_norm,
            self.epsilon,
            self.rotary_embedding,
            dtype=policy,
            name="attention",
        )
        self.norm2 = LayerNormalization(epsilon=self.epsilon, dtype=policy, name="norm2")
        norm = self.mlp_kind.endswith("norm")
        if self.mlp_kind.startswith("plain"):
            self.mlp = MLP(self.mlp_width, self.gelu, self.dropout, norm, self.epsilon, dtype=policy, name="mlp")
        else:
            self.mlp = SwiGLU(self.mlp_width, norm, self.epsilon, self.dropout, dtype=policy, name="mlp")
        parts = [self.norm1, self.attention, self.norm2, self.mlp]
        if self.layer_scale is not None:
            self.scale1 = LayerScale(self.layer_scale, dtype=policy, name="scale1")
            self.scale2 = LayerScale(self.layer_scale, dtype=policy, name="scale2")
            parts += [self.scale1, self.scale2]
        for layer in parts:
            layer.build(x_shape)

    def call(
        self,
        x: Any,
        rotation: Any = None,
        attention_offset: Any = None,
        activations: Sequence[str] | None = None,
        training: bool | None = None,
    ) -> Any:
        _check_activations(activations)
        # Every seed is drawn here, outside what may run twice.
        seeds = [
            [self._draw(training, self.dropout), *(self._draw(training, self.drop_path) for _ in range(2))],
            *(_drawn_by(layer, training) for layer in (self.attention, self.mlp)),
        ]
        if not (self.remat and training):
            return self._block(x, rotation, attention_offset, seeds, activations, training)
        # What a rematerialised function reads has to be its arguments, which are tensors.
        inputs = [rotation, attention_offset, seeds]

        def block(x: Any, *tensors: Any) -> Any:
            following = iter(tensors)
            given = keras.tree.map_structure(lambda value: None if value is None else next(following), inputs)
            return self._block(x, *given, activations, training)

        tensors = [value for value in keras.tree.flatten(inputs) if value is not None]
        return (fast_path("remat", x) or keras.remat)(block)(x, *tensors)

    def _draw(self, training: bool | None, rate: float) -> Any:
        return self.seed_generator.next() if training and rate else None

    def _block(
        self,
        x: Any,
        rotation: Any,
        offset: Any,
        seeds: list[Any],
        activations: Sequence[str] | None,
        training: bool | None,
    ) -> Any:
        (dropout_seed, *path_seeds), attention_seeds, mlp_seeds = seeds
        kept: dict[str, Any] = {}

        # Equation 2: z' = MSA(LN(z)) + z
        y, queries = call_inside(self.norm1, x, training), None
        if self.output_tokens is not None:
            queries, x = y[:, : self.output_tokens], x[:, : self.output_tokens]
        if activations and "attention_weights" in activations:
            kept["attention_weights"] = self.attention.attention_weights(y, queries, rotation)
        options = {"queries": queries, "rotation": rotation, "offset": offset, "seeds": attention_seeds}
        y = dropout(call_inside(self.attention, y, training, **options), self.dropout, dropout_seed)
        if self.layer_scale is not None:
            y = call_inside(self.scale1, y, training)
        kept["attention"] = drop_path(y, self.drop_path, path_seeds[0])
        kept["+attention"] = x = x + kept["attention"]
        # Equation 3: z = MLP(LN(z')) + z'
        y = call_inside(self.mlp, call_inside(self.norm2, x, training), training, seeds=mlp_seeds)
        if self.layer_scale is not None:
            y = call_inside(self.scale2, y, training)
        kept["mlp"] = drop_path(y, self.drop_path, path_seeds[1])
        x = x + kept["mlp"]
        return [*(kept[name] for name in activations), x] if activations else x

    def compute_output_spec(
        self,
        x: Any,
        rotation: Any = None,
        attention_offset: Any = None,
        activations: Sequence[str] | None = None,
        training: bool | None = None,
    ) -> Any:
        _check_activations(activations)
        output = keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)
        batch, tokens, _ = x.shape
        weights = (batch, self.heads, output.shape[1], tokens)
        kept = [
            keras.KerasTensor(weights, float32_or_better(self.compute_dtype))
            if name == "attention_weights"
            else keras.KerasTensor(output.shape, self.compute_dtype)
            for name in activations or ()
        ]
        return [*kept, output] if activations else output

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], rotation_shape: Any = None, attention_offset_shape: Any = None
    ) -> Any:
        return x_shape if self.output_tokens is None else (x_shape[0], self.output_tokens, x_shape[2])

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
            "mlp": self.mlp_kind,
            "layer_scale": self.layer_scale,
            "attention_bias": self.attention_bias,
            "attention_norm": self.attention_norm,
            "rotary_embedding": self.rotary_embedding,
            "output_tokens": self.output_tokens,
        }


def _drawn_by(layer: Any, training: bool | None) -> Any:
    """The seeds of one call of a layer; None where somebody has put another in its place, which draws its own."""
    return layer.draw_seeds(training) if hasattr(layer, "draw_seeds") else None


def _check_activations(names: Sequence[str] | None) -> None:
    if isinstance(names, str) or not set(names or ()) <= BLOCK_ACTIVATIONS.keys():
        raise ValueError(f"activations must be a list of names from {[*BLOCK_ACTIVATIONS]}, but {names!r} was given.")
