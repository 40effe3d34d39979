"""The text tower of CLIP, SigLIP and LiT: token ids to one vector; a function of a `TextConfig`."""

import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers

from keras_vit._arguments import check_choice, whole_number
from keras_vit._keras import clonable
from keras_vit.layers import AddPositionEmbedding, MAPHead, TextPooling, TransformerBlock
from keras_vit.layers.base import Dense, LayerNormalization, initializer, own_policy
from keras_vit.layers.choices import GELUS, TEXT_POOLINGS
from keras_vit.models.image_model import ConfiguredModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Everything that decides what a `TextEncoder` computes.

    Attributes:
        vocabulary: Rows of the table of tokens.
        context: Number of tokens of a text, with padding.
        width: D, the length of a token.
        depth: Number of Transformer blocks.
        heads: Attention heads per block; divides `width`.
        mlp_width: Length of the MLP's hidden layer.
        causal: Whether a token attends to itself and earlier ones only (CLIP).
        gelu: `"tanh"`, `"exact"` or `"quick"`, as in `ViTConfig`.
        layer_norm_epsilon: Added to the variance by every layer normalisation.
        pooling: Which token stands for the text: the `"last"` (SigLIP, LiT) or the `"first"` one; the first of the
            largest id (`"largest_id"`, CLIP); the first that is `end_id` (`"end_id"`); `"map"`: attention pooling.
        end_id: The id of the token that ends a text; only with pooling `"end_id"`.
        projection: Length of the text's embedding; None for the pooled token itself.
        projection_bias: Whether the projection has a bias (SigLIP).

    Raises:
        TypeError, ValueError: if a field makes no sense.

    Examples:
        >>> keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16).pooling
        'last'
    """

    vocabulary: int
    context: int
    width: int
    depth: int
    heads: int
    mlp_width: int
    causal: bool = False
    gelu: str = "tanh"
    layer_norm_epsilon: float = 1e-6
    pooling: str = "last"
    end_id: int | None = None
    projection: int | None = None
    projection_bias: bool = False
    # What the blocks of image towers may have in another way, for who lists the arrays of both.
    attention_bias: ClassVar[str] = "all"
    attention_norm: ClassVar[bool] = False
    mlp: ClassVar[str] = "plain"
    layer_scale: ClassVar[None] = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "depth", "heads", "mlp_width"):
            whole_number(name, getattr(self, name), 1)
        if self.projection is not None:
            whole_number("projection", self.projection, 1)
        check_choice("gelu", self.gelu, GELUS)
        check_choice("pooling", self.pooling, (*TEXT_POOLINGS, "map"))
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, but {self.heads} heads and width {self.width} were given.")
        if (self.pooling == "end_id") != (self.end_id is not None):
            given = f"end_id={self.end_id!r} and pooling={self.pooling!r} were given"
            raise ValueError(f"end_id and pooling='end_id' need each other, but {given}.")
        if not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon must be in 0..1, but {self.layer_norm_epsilon!r} was given.")

    @property
    def head_size(self) -> int:
        """Length of a head's queries and keys."""
        return self.width // self.heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return dataclasses.asdict(self)


def text_transformer(config: TextConfig, ids: Any, dtype: Any = None) -> Any:
    """Applies a text tower to a symbolic batch of token ids `(batch, context)`; gives `(batch, projection or width)`.

    No dropout and no mask of the padding: SigLIP and LiT were trained to see it, and CLIP's mask hides what follows.
    """
    policy = keras.dtype_policies.get(dtype)
    table = initializer("normal", stddev=0.02)
    embedding = layers.Embedding(
        config.vocabulary, config.width, table, dtype=own_policy(policy, "token_embedding"), name="token_embedding"
    )
    position = AddPositionEmbedding((1, config.context), prefix_tokens=0, dtype=policy, name="position_embedding")
    x = position(embedding(ids))
    for i in range(config.depth):
        x = TransformerBlock(
            config.heads,
            config.mlp_width,
            gelu=config.gelu,
            epsilon=config.layer_norm_epsilon,
            causal=config.causal,
            dtype=policy,
            name=f"block_{i}",
        )(x)
    x = LayerNormalization(epsilon=config.layer_norm_epsilon, dtype=policy, name="encoder_norm")(x)
    if config.pooling == "map":
        epsilon = config.layer_norm_epsilon
        x = MAPHead(config.heads, config.mlp_width, config.gelu, epsilon, dtype=policy, name="pooling")(x)
    else:
        x = TextPooling(config.pooling, config.end_id, dtype=policy, name="pooling")(x, ids)
    if config.projection is None:
        return x
    return Dense(
        config.projection,
        use_bias=config.projection_bias,
        kernel_initializer=initializer("glorot_uniform"),
        dtype=own_policy(policy, "projection"),
        name="projection",
    )(x)


@keras.saving.register_keras_serializable(package="keras_vit")
@clonable
class TextEncoder(ConfiguredModel):
    """The text tower of an image-text model as a functional Keras model: a function of one `TextConfig`.

    It takes token ids, integers `(batch, context)` as the tokenizer of its weights makes them, and gives embeddings
    `(batch, projection)` that are not normalised. Only a tokenizer knows what ids mean: see `load_image_text`.

    Args:
        config: What to build.
        name: Name of the model.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        TypeError: if `config` is no `TextConfig`.
        ValueError: at call time, if the ids are no integers of 0 to `vocabulary - 1`, or not `context` of them.

    Examples:
        >>> tiny = keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16)
        >>> keras_vit.TextEncoder(tiny)(np.array([[3, 1, 0, 0]])).shape[-1]
        8
    """

    config_type = TextConfig

    def __init__(
        self, config: TextConfig, *, name: str | None = None, dtype: Any = None, trainable: bool = True
    ) -> None:
        if not isinstance(config, TextConfig):
            raise TypeError(f"config must be a TextConfig, but {type(config).__name__} was given.")
        policy = keras.dtype_policies.get(dtype)
        ids = keras.Input((config.context,), name="ids", dtype="int32")
        super().__init__(ids, text_transformer(config, ids, policy), name=name or "text_encoder")
        self.set_up(config, policy)
        self.trainable = trainable

    @property
    def config(self) -> TextConfig:
        """The config of this model."""
        return self._config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args:
            self._check_ids(args[0])
        return super().__call__(*args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`; ids in arrays are checked first."""
        self._check_ids(x)
        return super().predict(x, *args, **kwargs)

    def _check_ids(self, ids: Any) -> None:
        """Raises ValueError where ids make no sense, as far as that is known without reading from a device."""
        config = self._config
        shape = getattr(ids, "shape", None)
        if shape is not None and (len(shape) != 2 or shape[1] != config.context):
            raise ValueError(
                f"{self.name} takes token ids (batch, {config.context}), but the shape {tuple(shape)} was given. The "
                "tokenizer pads texts to that length."
            )
        if isinstance(ids, np.ndarray) and ids.dtype.kind not in "iu":
            raise ValueError(f"{self.name} takes token ids, which are integers, but {ids.dtype} was given.")
        if isinstance(ids, np.ndarray) and ids.size and not (0 <= ids.min() and ids.max() < config.vocabulary):
            raise ValueError(
                f"{self.name} knows the token ids 0 to {config.vocabulary - 1}, but {ids.min()} to {ids.max()} were "
                "given: they are of another tokenizer."
            )
