"""The blocks of encoders: attention, perceptrons, the block of Transformers (equations 2 and 3), MLP-Mixer's."""

from collections.abc import Sequence
from typing import Annotated, Any

import keras
from keras import initializers, ops

from keras_vit._arguments import Shape, Tensor
from keras_vit._options import OneOf, Rate
from keras_vit.layers.base import (
    CompositeLayer,
    ResidualBlock,
    SameShape,
    activated,
    drop_path,
    dropout,
    initializer,
    not_none,
    outputs_of_all,
    registered,
)
from keras_vit.layers.choices import ATTENTION_BIASES, MLP_ACTIVATIONS, MLPS, ROTARY_EMBEDDINGS
from keras_vit.layers.ops import attention, attention_weights, float32_or_better, reshape
from keras_vit.layers.positions import rotate


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool = False,
    allowed: Any = None,
    offset: Any = None,
    rate: float = 0.0,
    seed: Any = None,
) -> Any:
    """Returns the attention `(batch, tokens, heads, d)`; `offset` is added to the weights after the softmax."""
    if seed is None and offset is None and allowed is None:
        return attention(query, key, value, causal)
    if seed is None and offset is None and keras.backend.backend() == "torch":  # which chooses the quickest kernel
        import torch.nn.functional as F

        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if causal:
            allowed = ops.logical_and(allowed, ops.tri(query.shape[2], key.shape[2], dtype="bool"))
        return F.scaled_dot_product_attention(query, key, value, allowed[:, None]).transpose(1, 2)
    weights = ops.cast(attention_weights(query, key, causal, allowed), query.dtype)
    weights = weights if offset is None else weights + ops.cast(offset, weights.dtype)
    return ops.einsum("bhqk,bkhd->bqhd", dropout(weights, rate, seed), value)


@registered
class MultiHeadAttention(CompositeLayer):
    """Multi-head attention (appendix A): of tokens to themselves, or of queries to other tokens.

    Three projections, the backend's fused attention operation, and an output projection, all with biases, as
    `MultiHeadDotProductAttention` in Flax. Scores are scaled by `1 / sqrt(D / heads)`.

    Args:
        heads: Number of attention heads; divides D.
        dropout: Rate of dropout on the attention weights while training.
        bias: Which of the projections to queries, keys and values have a bias: `"all"`, `"no_key"` or `"none"`.
        norm: Whether the concatenated heads are normalised before the output projection, as in EVA-02-CLIP.
        epsilon: Added to the variance by that normalisation.
        rotary_embedding: The `kind` of the `RotaryEmbedding` whose output is passed as `rotation`, or None.
        causal: Whether a token attends only to itself and earlier tokens, as in the text towers of CLIP.

    Call arguments:
        tokens: `(batch, T, D)`, the keys and values.
        queries: Optional `(batch, Q, D)`; by default the tokens. The output has the same shape.
        rotation: The output of `RotaryEmbedding`, `(2, T, D / heads)`, or one for each image,
            `(2, batch, T, D / heads)`. It rotates keys, and queries, which must then be the first tokens.
        offset: Optional `(batch, heads, Q, T)`, added to the attention weights. Pass zeros to get gradients.
        allowed: Optional booleans `(batch, Q, T)`: which tokens each query attends to, at least one; None: all tokens.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Raises ValueError if an argument is out of range, or a rotation does not fit `rotary_embedding`.

    Examples:
        >>> tuple(layers.MultiHeadAttention(heads=2)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    heads: int
    dropout: Rate = 0.0
    bias: Annotated[str, OneOf(ATTENTION_BIASES)] = "all"
    use_norm: bool = False  # the argument `norm`
    epsilon: float = 1e-6
    rotary_embedding: Annotated[str | None, OneOf((None, *ROTARY_EMBEDDINGS))] = None
    causal: bool = False
    drops = ("dropout",)

    def build(
        self, tokens_shape: Shape, queries_shape: Any = None, rotation_shape: Any = None, offset_shape: Any = None
    ) -> None:
        width: Any = tokens_shape[-1]
        if self.heads < 1 or width % self.heads:
            raise ValueError(f"heads must divide the width of tokens, but {self.heads} was given for width {width}.")
        self.width = width
        for name in ("query", "key", "value", "out"):
            bias = name == "out" or self.bias == "all" or (self.bias == "no_key" and name != "key")
            setattr(self, name, self.inner_dense(name, (None, None, width), width, use_bias=bias))
        if self.use_norm:
            self.norm = self.inner_norm("norm", (None, None, width), self.epsilon)

    def draw_seeds(self, training: bool | None) -> list[Any]:
        """A list with the dropout seed of one call, or with None if nothing is dropped."""
        return self.draw(training, self.dropout)

    def call(
        self,
        tokens: Tensor,
        queries: Tensor | None = None,
        rotation: Tensor | None = None,
        offset: Tensor | None = None,
        allowed: Tensor | None = None,
        training: bool | None = None,
        seeds: list[Any] | None = None,
    ) -> Tensor:
        queries = tokens if queries is None else queries
        (seed,) = self.draw_seeds(training) if seeds is None else seeds
        layers = [self.query, self.key, self.value]
        if queries is tokens:
            query, key, value = self._projected(layers, tokens, training)
        else:
            query, key, value = (
                *self._projected(layers[:1], queries, training),
                *self._projected(layers[1:], tokens, training),
            )
        query, key = self._turned(query, key, rotation)
        y = attend(query, key, value, causal=self.causal, allowed=allowed, offset=offset, rate=self.dropout, seed=seed)
        y = reshape(y, (-1, _length(queries), self.width))
        y = self.norm(y, training=training) if self.use_norm else y
        return self.out(y, training=training)

    def attention_weights(
        self, tokens: Tensor, queries: Tensor | None = None, rotation: Any = None, allowed: Tensor | None = None
    ) -> Tensor:
        """The attention weights before dropout, `(batch, heads, Q, T)`, whose rows sum to 1, in float32."""
        (query,) = self._projected([self.query], tokens if queries is None else queries, None)
        (key,) = self._projected([self.key], tokens, None)
        return attention_weights(*self._turned(query, key, rotation), self.causal, allowed)

    def _turned(self, query: Any, key: Any, rotation: Any) -> tuple[Any, Any]:
        """Returns queries and keys, `(batch, tokens, heads, d)` each, turned where positions are rotary."""
        kind = self.rotary_embedding
        if (rotation is None) != (kind is None):
            raise ValueError(
                f"{self.name!r} has rotary_embedding={kind!r}, so rotation, the output of a RotaryEmbedding, must "
                f"{'not ' if kind is None else ''}be passed."
            )
        if kind is None:
            return query, key
        return rotate(query, rotation[..., : _length(query), :], kind), rotate(key, rotation, kind)

    def _projected(self, layers: list[Any], x: Any, training: bool | None) -> list[Any]:
        """What projections make of `x`, `(batch, tokens, D)`, by heads: `(batch, tokens, heads, d)` each."""
        shape = (-1, _length(x), self.heads, self.width // self.heads)
        return [reshape(y, shape) for y in outputs_of_all(layers, x, training)]

    def compute_output_shape(
        self, tokens_shape: Shape, queries_shape: Any = None, rotation_shape: Any = None, offset_shape: Any = None
    ) -> Shape:
        return tokens_shape if queries_shape is None else queries_shape


def _length(x: Any) -> Any:
    # A dynamic one costs some exporters their shapes.
    return x.shape[1] if x.shape[1] is not None else ops.shape(x)[1]


class _HiddenLayer(SameShape, CompositeLayer):
    """A perceptron: `hidden(x)`, which subclasses define, a dropout, with `norm` a normalisation, `fc2`, a dropout."""

    width: int
    drops = ("dropout",)

    def build_output(self, input_shape: Shape, bias: str | initializers.Initializer = "zeros") -> None:
        """Makes `fc2`, whose bias starts as `bias` says, and with `norm` the normalisation before it."""
        hidden = (*input_shape[:-1], self.width)
        self.fc2 = self.inner_dense("fc2", hidden, input_shape[-1], bias)
        if self.use_norm:
            self.norm = self.inner_norm("norm", hidden, self.epsilon)

    def draw_seeds(self, training: bool | None) -> list[Any]:
        """The seeds of both dropouts for one call; None for each if nothing is dropped."""
        return self.draw(training, self.dropout, self.dropout)

    def hidden(self, x: Any, training: bool | None) -> Any:
        """The activations of the hidden layer, `(..., width)`; each subclass defines it."""
        raise NotImplementedError

    def call(self, x: Tensor, training: bool | None = None, seeds: Sequence[Tensor | None] | None = None) -> Tensor:
        hidden_seed, output_seed = self.draw_seeds(training) if seeds is None else seeds
        x = dropout(self.hidden(x, training), self.dropout, hidden_seed)
        x = self.norm(x, training=training) if self.use_norm else x
        return dropout(self.fc2(x, training=training), self.dropout, output_seed)


@registered
class MLP(_HiddenLayer):
    """Dense, GELU, dropout, Dense, dropout (`MlpBlock` in the official `models_vit.py`).

    Args:
        width: Length of the hidden layer.
        gelu: `"tanh"`, the approximation that the official checkpoints were trained with; `"exact"`, with the error
            function, as in timm and Hugging Face; `"quick"`, `x * sigmoid(1.702 x)`, as in OpenAI's CLIP; `"relu"`, no
            GELU, as in the text towers of TIPS.
        dropout: Rate of both dropouts while training.
        norm: Whether the hidden layer is normalised before the last one, as in BEiT-3.
        epsilon: Added to the variance by that normalisation.

    Call arguments:
        x: `(..., D)`, as the output.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Raises ValueError if `gelu` is unknown, or the rate is not from 0 to below 1.

    Examples:
        >>> layers.MLP(width=16)(np.zeros((1, 5, 8), "float32")).shape[-1]
        8
    """

    gelu: Annotated[str, OneOf(MLP_ACTIVATIONS)] = "tanh"
    dropout: Rate = 0.0
    use_norm: bool = False  # the argument `norm`
    epsilon: float = 1e-6

    def build(self, input_shape: Shape) -> None:
        self.fc1 = self.inner_dense("fc1", input_shape, self.width, initializer("normal", stddev=1e-6))
        self.build_output(input_shape, initializer("normal", stddev=1e-6))

    def hidden(self, x: Any, training: bool | None) -> Any:
        """The activation of the first dense layer, `(..., width)`."""
        return activated(self.fc1, x, self.gelu, training)


@registered
class SwiGLU(_HiddenLayer):
    """`fc2(silu(gate(x)) * value(x))` (Shazeer, arXiv 2002.05202), with a dropout before and after `fc2`.

    The MLP of DINOv2's giant, of DINOv3's S+, H+ and 7B, and of EVA-02. Call arguments are as in `MLP`, `(..., D)`.

    Args:
        width: Length of the gate and of the value.
        norm: Whether their product is normalised before `fc2`, as in EVA-02's B and L.
        epsilon: Added to the variance by that normalisation.
        dropout: Rate of both dropouts while training.

    Examples:
        >>> tuple(layers.SwiGLU(width=16)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    use_norm: bool = False  # the argument `norm`
    epsilon: float = 1e-6
    dropout: Rate = 0.0

    def build(self, input_shape: Shape) -> None:
        self.gate = self.inner_dense("gate", input_shape, self.width)
        self.value = self.inner_dense("value", input_shape, self.width)
        self.build_output(input_shape)

    def hidden(self, x: Any, training: bool | None) -> Any:
        """`silu(gate(x)) * value(x)`, `(..., width)`."""
        gate, value = self.gate(x, training=training), self.value(x, training=training)
        return ops.silu(gate) * value


@registered
class LayerScale(SameShape):
    """Multiplies every channel by a learned factor, at the end of a branch of a block (CaiT, arXiv 2103.17239).

    With small factors a block starts as nearly the identity. DeiT-III, DINOv2 and DINOv3 have it.

    Args:
        initial: Initial value of all factors, such as 1e-5.

    Input: `(..., D)`. Output: the same shape.

    Examples:
        >>> tuple(layers.LayerScale(0.5)(np.ones((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    initial: float = 1e-5

    def build(self, input_shape: Shape) -> None:
        first = initializers.Constant(self.initial)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=first)

    def call(self, x: Tensor) -> Tensor:
        return x * ops.cast(self.gamma, x.dtype)


BLOCK_ACTIVATIONS: dict[str, str] = {
    "attention_weights": "(batch, H, T, T)",
    "attention": "(batch, T, D)",  # what attention adds to the tokens; big_vision's `sa`
    "+attention": "(batch, T, D)",  # their sum, the z' of equation 2; big_vision's `+sa`
    "mlp": "(batch, T, D)",  # what the MLP adds; big_vision's `mlp`
}
"""What a `TransformerBlock` can return beside its output, and its shape: T tokens of length D, H heads.

Where only the first Q tokens go on, Q takes the place of the first T. Rows of attention weights sum to 1.

Examples:
    >>> layers.BLOCK_ACTIVATIONS["attention_weights"]
    '(batch, H, T, T)'
"""


@registered
class TransformerBlock(ResidualBlock):
    """Pre-norm Transformer block (`Encoder1DBlock` in the official `models_vit.py`). All rates apply only in training.

    Args:
        heads: Number of attention heads.
        mlp_width: Length of the MLP's hidden layer.
        dropout: Rate of dropout after attention and in the MLP.
        attention_dropout: Rate of dropout on the attention weights.
        drop_path: Rate of stochastic depth: how often each branch of an example is skipped.
        remat: Whether to recompute the block in the backward pass instead of keeping its activations: less memory,
            about a third more time. Dropout drops the same units both times.
        gelu: `"tanh"`, `"exact"`, `"quick"` or `"relu"`; not used by a SwiGLU.
        epsilon: Added to the variance by all layer normalisations.
        mlp: `"plain"`, `"swiglu"`, or with a normalisation inside `"plain_norm"`, `"swiglu_norm"`.
        layer_scale: Initial value of `LayerScale` at the end of both branches; None: no LayerScale.
        attention_bias: As `bias` in `MultiHeadAttention`.
        attention_norm: As `norm` in `MultiHeadAttention`.
        rotary_embedding: As in `MultiHeadAttention`.
        output_tokens: Number of tokens to return, from the first one; None: all tokens. For the remaining tokens, only
            keys and values are computed.
        causal: Whether a token attends only to itself and earlier tokens.

    Call arguments:
        x: `(batch, T, D)`. The output is the same with `output_tokens` tokens.
        rotation: The output of `RotaryEmbedding`, only with `rotary_embedding`.
        attention_offset: As `offset` in `MultiHeadAttention`, `(batch, heads, Q, T)`; Q is T or `output_tokens`.
        allowed: Optional booleans `(batch, Q, T)`: which tokens each of the first Q attends to, at least one.
        activations: Optional names from `BLOCK_ACTIVATIONS`; the output is then a list of these and the output.

    Raises ValueError if a name is unknown, `heads` does not divide D, or a rate is not from 0 to below 1.

    Examples:
        >>> tuple(layers.TransformerBlock(heads=2, mlp_width=16)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    heads: int
    mlp_width: int
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    drop_path: Rate = 0.0
    remat: bool = False
    gelu: str = "tanh"
    epsilon: float = 1e-6
    use_mlp: Annotated[str, OneOf(MLPS)] = "plain"  # the argument `mlp`
    layer_scale: float | None = None
    attention_bias: str = "all"
    attention_norm: bool = False
    rotary_embedding: str | None = None
    output_tokens: int | None = None
    causal: bool = False
    drops = ("dropout", "drop_path")

    def build(self, x_shape: Shape, rotation_shape: Any = None, attention_offset_shape: Any = None) -> None:
        policy = self.dtype_policy
        self.norm1 = self.inner_norm("norm1", x_shape, self.epsilon)
        common = (self.heads, self.attention_dropout, self.attention_bias, self.attention_norm, self.epsilon)
        self.attention = MultiHeadAttention(*common, self.rotary_embedding, self.causal, dtype=policy, name="attention")
        self.norm2 = self.inner_norm("norm2", x_shape, self.epsilon)
        norm = self.use_mlp.endswith("norm")
        if self.use_mlp.startswith("plain"):
            self.mlp = MLP(self.mlp_width, self.gelu, self.dropout, norm, self.epsilon, dtype=policy, name="mlp")
        else:
            self.mlp = SwiGLU(self.mlp_width, norm, self.epsilon, self.dropout, dtype=policy, name="mlp")
        parts = [self.attention, self.mlp]
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
        allowed: Any = None,
        activations: Any = None,
        training: Any = None,
    ) -> Any:
        # Equations 2 and 3 with nothing else, as in most calls: small models wait for each call of Python in `_block`.
        # The chain asks whether all of them are None.
        if not training and rotation is attention_offset is allowed is activations is self.output_tokens is None:
            y = self.attention(self.norm1(x, training=False), training=False)
            x = x + (y if self.layer_scale is None else self.scale1(y, training=False))
            y = self.mlp(self.norm2(x, training=False), training=False)
            return x + (y if self.layer_scale is None else self.scale2(y, training=False))
        if activations is not None:
            _check_activations(activations)
        block_seeds = self.draw(training, self.dropout, self.drop_path, self.drop_path)
        seeds = [block_seeds, *self.draw_inner_seeds(training, self.attention, self.mlp)]

        def block(x: Any, *inputs: Any) -> Any:
            return self._block(x, *inputs, activations, training)

        return self.compute(block, x, rotation, attention_offset, allowed, seeds, training=training)

    def _block(
        self, x: Any, rotation: Any, offset: Any, allowed: Any, seeds: list[Any], activations: Any, training: Any
    ) -> Any:
        """Returns what `call` does, in the order of equations 2 and 3."""
        # `seeds` holds those of the block (dropout, both paths), of attention and of the MLP.
        (dropout_seed, *path_seeds), attention_seeds, mlp_seeds = seeds
        kept: dict[str, Any] = {}

        def keep(name: str, value: Any) -> Any:
            if activations and name in activations:
                kept[name] = value
            return value

        # Equation 2: z' = MSA(LN(z)) + z
        y, queries = self.norm1(x, training=training), None
        if self.output_tokens is not None:
            queries, x = y[:, : self.output_tokens], x[:, : self.output_tokens]
        if activations and "attention_weights" in activations:
            weights = self.attention.attention_weights(y, queries, rotation, **not_none(allowed=allowed))
            kept["attention_weights"] = weights
        options = not_none(queries=queries, rotation=rotation, offset=offset, allowed=allowed, seeds=attention_seeds)
        y = dropout(self.attention(y, training=training, **options), self.dropout, dropout_seed)
        y = y if self.layer_scale is None else self.scale1(y, training=training)
        x = keep("+attention", x + keep("attention", drop_path(y, self.drop_path, path_seeds[0])))
        # Equation 3: z = MLP(LN(z')) + z'
        y = self.norm2(x, training=training)
        y = self.mlp(y, training=training, **({} if mlp_seeds is None else {"seeds": mlp_seeds}))
        y = y if self.layer_scale is None else self.scale2(y, training=training)
        x = x + keep("mlp", drop_path(y, self.drop_path, path_seeds[1]))
        return [*(kept[name] for name in activations), x] if activations else x

    def compute_output_spec(self, x: Any, *others: Any, activations: Any = None, **options: Any) -> Any:
        _check_activations(activations)
        shape, dtype = self.compute_output_shape(x.shape), self.compute_dtype
        weights = keras.KerasTensor((x.shape[0], self.heads, shape[1], x.shape[1]), float32_or_better(dtype))
        names = [*(activations or ()), "output"]
        outputs = [weights if name == "attention_weights" else keras.KerasTensor(shape, dtype) for name in names]
        return outputs if activations else outputs[0]

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return x_shape if self.output_tokens is None else (x_shape[0], self.output_tokens, x_shape[2])


def _check_activations(names: Sequence[str] | None) -> None:
    if isinstance(names, str) or not set(names or ()) <= BLOCK_ACTIVATIONS.keys():
        raise ValueError(f"activations must be a list of names from {[*BLOCK_ACTIVATIONS]}, but {names!r} was given.")


@registered
class MixerMLP(MLP):
    """An `MLP` whose weights start as those of `MlpBlock` in the official `models_mixer.py`; it has no `norm`."""

    def build(self, input_shape: Shape) -> None:
        hidden = (*input_shape[:-1], self.width)
        self.fc1 = self.inner_dense("fc1", input_shape, self.width, kernel="lecun_normal")
        self.fc2 = self.inner_dense("fc2", hidden, input_shape[-1], kernel="lecun_normal")


@registered
class MixerBlock(SameShape, ResidualBlock):
    """Block of MLP-Mixer (`MixerBlock` in the official `models_mixer.py`).

    Args:
        tokens_mlp_width: Length of the hidden layer of the perceptron across tokens.
        mlp_width: Length of the hidden layer of the perceptron across channels.
        dropout: Rate of dropout in both perceptrons.
        drop_path: As in `TransformerBlock`, like `remat`. All rates apply only in training.
        remat: Whether to recompute the block in the backward pass.
        gelu: `"tanh"`, as in the official code, `"exact"`, as timm computes the same weights, or `"quick"`.
        epsilon: Added to the variance by both layer normalisations.

    Call arguments:
        x: `(batch, T, D)`, with the same T in every call; as the output.

    Raises ValueError if `gelu` or the number of tokens is unknown, or a rate is not from 0 to below 1.

    Examples:
        >>> tuple(layers.MixerBlock(tokens_mlp_width=3, mlp_width=16)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    tokens_mlp_width: int
    mlp_width: int
    dropout: Rate = 0.0
    drop_path: Rate = 0.0
    remat: bool = False
    gelu: str = "tanh"
    epsilon: float = 1e-6
    drops = ("drop_path",)

    def build(self, x_shape: Shape) -> None:
        _, tokens, width = x_shape
        if tokens is None:
            raise ValueError(f"{self.name!r} needs a fixed number of tokens, but the shape {x_shape} was given.")
        options = {"gelu": self.gelu, "dropout": self.dropout, "dtype": self.dtype_policy}
        self.norm1 = self.inner_norm("norm1", x_shape, self.epsilon)
        self.token_mixing = MixerMLP(self.tokens_mlp_width, **options, name="token_mixing")
        self.token_mixing.build((None, width, tokens))
        self.norm2 = self.inner_norm("norm2", x_shape, self.epsilon)
        self.mlp = MixerMLP(self.mlp_width, **options, name="mlp")
        self.mlp.build(x_shape)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        path_seeds = self.draw(training, self.drop_path, self.drop_path)
        seeds = self.draw_inner_seeds(training, self.token_mixing, self.mlp)

        def block(x: Any, path_seeds: Any, token_mixing_seeds: Any, mlp_seeds: Any) -> Any:
            y = ops.swapaxes(self.norm1(x, training=training), 1, 2)
            y = self.token_mixing(y, training=training, **not_none(seeds=token_mixing_seeds))
            x = x + drop_path(ops.swapaxes(y, 1, 2), self.drop_path, path_seeds[0])
            y = self.norm2(x, training=training)
            y = self.mlp(y, training=training, **not_none(seeds=mlp_seeds))
            return x + drop_path(y, self.drop_path, path_seeds[1])

        return self.compute(block, x, path_seeds, *seeds, training=training)
