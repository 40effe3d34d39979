"""Multi-head self-attention: the MSA of equation 2."""

from typing import Any

import keras
from keras import ops

from keras_vit._arguments import check_choice
from keras_vit.layers.base import (
    CompositeLayer,
    Dense,
    LayerNormalization,
    SeedGenerator,
    call_inside,
    dropout,
    initializer,
    may_be_plain,
    own_policy,
)
from keras_vit.layers.choices import ATTENTION_BIASES, ROTARY_EMBEDDINGS
from keras_vit.layers.ops import attention, attention_weights, reshape
from keras_vit.layers.positions import rotate


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class MultiHeadAttention(CompositeLayer):
    """Multi-head attention (appendix A): of tokens to themselves, or of queries to other tokens.

    Three projections, the backend's fused attention operation, and an output projection, all with biases, as
    `MultiHeadDotProductAttention` in Flax. Scores are scaled by `1 / sqrt(D / heads)`.

    Args:
        heads: Number of attention heads; divides D.
        dropout: Rate of dropout on the attention weights while training.
        bias: Which of the projections to queries, keys and values have a bias: `"all"`, `"no_key"` or `"none"`. The
            output projection always has one.
        norm: Whether the joined heads are normalised before the output projection, as in EVA-02-CLIP.
        epsilon: Added to the variance by that normalisation.
        rotary_embedding: `"dinov3"` or `"eva02"` where a rotation is passed; None for none.

    Call arguments:
        tokens: `(batch, T, D)`, the keys and values.
        queries: Optional `(batch, Q, D)`; the tokens themselves where it is left out.
        rotation: What `RotaryEmbedding` gives, `(2, T, D / heads)`: by how much keys are turned, and queries, which are
            the first tokens then.
        offset: Optional `(batch, heads, Q, T)`, added to the attention weights. Zeros change nothing, and their
            gradient is that of the weights.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Output: `(batch, Q, D)`.

    Raises:
        ValueError: if `heads` does not divide D, a name is unknown, or a rotation is passed to a layer that was not
            made for one, or the other way round.

    Examples:
        >>> tuple(layers.MultiHeadAttention(heads=2)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    def __init__(
        self,
        heads: int,
        dropout: float = 0.0,
        bias: str = "all",
        norm: bool = False,
        epsilon: float = 1e-6,
        rotary_embedding: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("bias", bias, ATTENTION_BIASES)
        check_choice("rotary_embedding", rotary_embedding, (None, *ROTARY_EMBEDDINGS))
        self.heads = heads
        self.dropout = dropout
        self.bias = bias
        self.use_norm = norm
        self.epsilon = epsilon
        self.rotary_embedding = rotary_embedding
        self.seed_generator = SeedGenerator() if dropout else None
        self.flash_attention: bool | None = None

    def build(
        self,
        tokens_shape: tuple[int | None, ...],
        queries_shape: Any = None,
        rotation_shape: Any = None,
        offset_shape: Any = None,
    ) -> None:
        width = tokens_shape[-1]
        if width % self.heads:
            raise ValueError(
                f"heads must divide the width of the tokens, but {self.heads} heads were given for width {width}."
            )
        self.width = width
        for name in ("query", "key", "value", "out"):
            kernel = initializer("glorot_uniform")
            policy = own_policy(self.dtype_policy, f"{self.path}/{name}")
            bias = name == "out" or self.bias == "all" or (self.bias == "no_key" and name != "key")
            dense = Dense(width, use_bias=bias, kernel_initializer=kernel, dtype=policy, name=name)
            setattr(self, name, dense)
            dense.build((None, None, width))
        if self.use_norm:
            self.norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
            self.norm.build((None, None, width))
        # On TPUs, Keras 3.15 hands unmasked attention of 128-token multiples to a kernel that applies a causal mask and
        # no scaling. Its plain path is right.
        self.flash_attention = False if _jax_runs_on("tpu") else None

    def draw_seeds(self, training: bool | None) -> list[Any]:
        """The seeds of one call: one for the attention weights, or None where nothing is dropped."""
        return [self.seed_generator.next() if training and self.dropout else None]

    def call(
        self,
        tokens: Any,
        queries: Any = None,
        rotation: Any = None,
        offset: Any = None,
        training: bool | None = None,
        seeds: Any = None,
    ) -> Any:
        queries = tokens if queries is None else queries
        (seed,) = self.draw_seeds(training) if seeds is None else seeds
        query, key = self._query_and_key(tokens, queries, rotation, training)
        value = self._projected(self.value, tokens, training)
        # On CPUs, JAX's own attention knows no float16.
        fused = keras.backend.standardize_dtype(query.dtype) != "float16" or not _jax_runs_on("cpu")
        if seed is None and offset is None and fused:
            y = attention(query, key, value, self.flash_attention)
        else:
            weights = ops.cast(attention_weights(query, key), query.dtype)
            weights = weights if offset is None else weights + ops.cast(offset, weights.dtype)
            weights = dropout(weights, self.dropout, seed)
            y = ops.einsum("bhqk,bkhd->bqhd", weights, value)
        y = reshape(y, (-1, *_length(queries), self.width))
        y = call_inside(self.norm, y, training) if self.use_norm else y
        return call_inside(self.out, y, training)

    def attention_weights(self, tokens: Any, queries: Any = None, rotation: Any = None) -> Any:
        """The attention weights, `(batch, heads, Q, T)`, each row summing to 1; in at least float32."""
        return attention_weights(*self._query_and_key(tokens, tokens if queries is None else queries, rotation))

    def _query_and_key(self, tokens: Any, queries: Any, rotation: Any, training: bool | None = None) -> tuple[Any, Any]:
        query, key = self._projected(self.query, queries, training), self._projected(self.key, tokens, training)
        if (rotation is None) != (self.rotary_embedding is None):
            raise ValueError(
                f"{self.name!r} was made with rotary_embedding={self.rotary_embedding!r} and needs "
                f"{'no' if self.rotary_embedding is None else 'a'} rotation, the output of a RotaryEmbedding."
            )
        if rotation is None:
            return query, key
        of_queries = rotation[:, : _length(query)[0]]
        return rotate(query, of_queries, self.rotary_embedding), rotate(key, rotation, self.rotary_embedding)

    def _projected(self, dense: Dense, x: Any, training: bool | None) -> Any:
        return reshape(call_inside(dense, x, training), (-1, *_length(x), self.heads, self.width // self.heads))

    def compute_output_shape(
        self,
        tokens_shape: tuple[int | None, ...],
        queries_shape: Any = None,
        rotation_shape: Any = None,
        offset_shape: Any = None,
    ) -> Any:
        return tokens_shape if queries_shape is None else queries_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "heads": self.heads,
            "dropout": self.dropout,
            "bias": self.bias,
            "norm": self.use_norm,
            "epsilon": self.epsilon,
            "rotary_embedding": self.rotary_embedding,
        }


def _length(x: Any) -> tuple[Any]:
    """Number of tokens, static where it is known (a dynamic one costs some exporters their shapes)."""
    return (x.shape[1] if x.shape[1] is not None else ops.shape(x)[1],)


def _jax_runs_on(kind: str) -> bool:
    if keras.backend.backend() != "jax":
        return False
    return any(kind in str(device).lower() for device in keras.distribution.list_devices())
