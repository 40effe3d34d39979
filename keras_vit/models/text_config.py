"""The one description of a text tower, which needs no Keras."""

import dataclasses
from typing import Annotated, ClassVar

from keras_vit.layers.choices import MLP_ACTIVATIONS, TEXT_POOLINGS, TEXT_POSITIONS
from keras_vit.models.fields import Config, Count, Epsilon, OneOf, Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(Config):
    """Everything that decides what a `TextEncoder` computes.

    Attributes:
        vocabulary: Rows of the table of tokens.
        context: Number of tokens of a text, with padding.
        width: D, the length of a token.
        depth: Number of Transformer blocks.
        heads: Attention heads per block; divides `width`.
        mlp_width: Length of the MLP's hidden layer.
        causal: Whether a token attends to itself and earlier ones only (CLIP).
        gelu: `"tanh"`, `"exact"` or `"quick"`, as in `ViTConfig`, or `"relu"` (TIPS).
        layer_norm_epsilon: Added to the variance by every layer normalisation.
        pooling: Which token stands for the text: the `"last"` (SigLIP, LiT) or the `"first"` one; the first of the
            largest id (`"largest_id"`, CLIP); the first that is `end_id` (`"end_id"`); `"mean"`: the mean of those that
            are no padding (TIPS); `"map"`: attention pooling.
        position_embedding: `"learned"`, or `"sincos"`: computed, added to `sqrt(width)` times the token (TIPS).
        pad_id: The id of padding that neither attention nor the mean sees (TIPS); None: padding counts as other tokens.
        end_id: The id of the token that ends a text; only with pooling `"end_id"`.
        projection: Length of the text's embedding; None for the pooled token itself.
        projection_bias: Whether the projection has a bias (SigLIP).

    Raises:
        TypeError, ValueError: if a field makes no sense.

    Examples:
        >>> keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16).pooling
        'last'
    """

    vocabulary: Positive
    context: Positive
    width: Positive
    depth: Positive
    heads: Positive
    mlp_width: Positive
    causal: bool = False
    gelu: Annotated[str, OneOf(MLP_ACTIVATIONS)] = "tanh"
    layer_norm_epsilon: Epsilon = 1e-6
    pooling: Annotated[str, OneOf((*TEXT_POOLINGS, "map"))] = "last"
    position_embedding: Annotated[str, OneOf(TEXT_POSITIONS)] = "learned"
    pad_id: Count | None = None
    end_id: Count | None = None
    projection: Positive | None = None
    projection_bias: bool = False

    model: ClassVar[str] = "TextEncoder"
    # What the blocks of image towers may have in another way: layouts list the arrays of both towers.
    attention_bias: ClassVar[str] = "all"
    attention_norm: ClassVar[bool] = False
    mlp: ClassVar[str] = "plain"
    layer_scale: ClassVar[None] = None

    def _check_together(self) -> None:
        """Raises ValueError unless padding, heads and pooling fit each other."""
        if self.pad_id is not None and self.causal:
            raise ValueError(
                f"pad_id={self.pad_id} and causal=True were given: a causal tower needs no mask of padding."
            )
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, but {self.heads} heads and width {self.width} were given.")
        if (self.pooling == "end_id") != (self.end_id is not None):
            given = f"end_id={self.end_id!r} and pooling={self.pooling!r} were given"
            raise ValueError(f"end_id and pooling='end_id' need each other, but {given}.")

    @property
    def head_size(self) -> int:
        """Length of a head's queries and keys."""
        return self.width // self.heads
