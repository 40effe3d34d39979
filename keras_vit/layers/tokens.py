"""Equation 1, an image becomes a sequence of tokens with their positions; and the sequence a vector or a map again."""

from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit._options import OneOf, Pair, Rate
from keras_vit.interpolation import METHODS, resize_table
from keras_vit.layers.base import (
    BaseLayer,
    CompositeLayer,
    DrawnSeed,
    SameShape,
    dropout,
    initializer,
    registered,
    tensor_of,
)
from keras_vit.layers.blocks import MLP, MultiHeadAttention
from keras_vit.layers.choices import TEXT_POOLINGS
from keras_vit.layers.fast import TORCH_CPU, TORCH_CUDA, device_of
from keras_vit.layers.ops import conv, mean, reshape
from keras_vit.layers.positions import sincos2d


@registered
class PatchEmbedding(BaseLayer):
    """Cuts an image into patches and projects each one linearly (section 3.1).

    A convolution whose stride is its kernel, without padding (`embedding` in the official `models_vit.py`).

    Args:
        width: D, the length of an embedding.
        patch_size: Height and width of a patch in pixels; one integer for square patches.
        bias: Whether to add a bias (CLIP: no).

    Input: `(batch, height, width, channels)`, floating point; the sizes are multiples of the patch's.
    Output: `(batch, rows, columns, D)`, one embedding per patch.

    Raises:
        ValueError: if an image is not a whole number of patches; for graphs of TensorFlow with unknown sizes
            InvalidArgumentError at run time.

    Examples:
        >>> tuple(layers.PatchEmbedding(width=8, patch_size=4)(np.zeros((1, 8, 12, 3), "float32")).shape)
        (1, 2, 3, 8)
    """

    width: int
    patch_size: Pair
    use_bias: bool = True  # the argument `bias`

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, input_shape[-1], self.width),
            # Flax's default for convolutions; the file layouts keep this shape.
            initializer=initializer("lecun_normal"),
        )
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.width,), initializer="zeros")

    def call(self, images: Tensor) -> Tensor:
        if None in self._grid(images.shape):
            images = self._checked_in_graph(images)
        patches = conv(images, tensor_of(self.kernel, images), self.patch_size, "valid")
        return patches + tensor_of(self.bias, images) if self.use_bias else patches

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self._grid(input_shape), self.width)

    def _grid(self, shape: Shape) -> Shape:
        """Returns rows and columns of patches, None where they are not known."""
        for axis, size, patch in zip(("height", "width"), shape[1:3], self.patch_size, strict=True):
            if size is not None and (size % patch or not size):
                raise ValueError(
                    f"The {axis} of the input of {self.name!r} is {size}, which is not a multiple of the patch size "
                    f"{patch}. Resize or pad it to {max(size // patch, 1) * patch} or {(size // patch + 1) * patch}."
                )
        return tuple(None if n is None else n // p for n, p in zip(shape[1:3], self.patch_size, strict=True))

    def _checked_in_graph(self, images: Tensor) -> Tensor:
        """Returns the images; TensorFlow's graph raises InvalidArgumentError when it runs if the patches do not fit."""
        import tensorflow as tf

        size, patch = tf.shape(images)[1:3], tf.constant(self.patch_size)
        whole = tf.reduce_all((size % patch == 0) & (size > 0))
        message = f"The size of the input of {self.name!r} is not a multiple of the patch size {self.patch_size}:"
        with tf.control_dependencies([tf.debugging.Assert(whole, [message, size])]):
            # XLA drops the assertion, but no reshape to another number of values.
            return tf.reshape(images, tf.concat([tf.shape(images)[:1], size // patch * patch, images.shape[3:]], 0))


@registered
class Reshape(keras.layers.Reshape, BaseLayer):
    """`keras.layers.Reshape`, which may be flat; Keras's own takes a hundred calls of Python."""

    def call(self, inputs: Any) -> Any:
        if [*self.target_shape] == [-1, inputs.shape[-1]] and device_of(inputs) in (TORCH_CPU, TORCH_CUDA):
            return inputs.flatten(1, -2)  # of an empty batch, PyTorch's `reshape` cannot tell what -1 stands for
        return keras.layers.Reshape.call(self, inputs)


@registered
class Activation(keras.layers.Activation, BaseLayer):
    """`keras.layers.Activation`, which may be flat."""

    def call(self, inputs: Any) -> Any:
        return self.activation(inputs)


class _LearnedTokens(BaseLayer):
    """Puts `count` learned tokens, the same for every image, before the others; subclasses build `learned`."""

    count = 1

    def call(self, tokens: Tensor) -> Tensor:
        learned = ops.broadcast_to(
            tensor_of(self.learned, tokens), (ops.shape(tokens)[0], self.count, tokens.shape[-1])
        )
        return ops.concatenate([learned, tokens], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else self.count + tokens, width)


@registered
class ClassToken(_LearnedTokens):
    """Puts one learned token, the same for every image, before the patch tokens (section 3.1).

    Input: `(batch, tokens, D)`. Output: `(batch, 1 + tokens, D)`.
    The token starts as zeros, as `cls` does in the official `models_vit.py`.

    Examples:
        >>> tuple(layers.ClassToken()(np.zeros((1, 4, 8), "float32")).shape)
        (1, 5, 8)
    """

    def build(self, input_shape: Shape) -> None:
        self.learned = self.add_weight(name="token", shape=(1, 1, input_shape[-1]), initializer="zeros")


@registered
class RegisterTokens(_LearnedTokens):
    """Prepends learned register tokens, the same for every image ("Vision Transformers Need Registers").

    Without them, models store global information in patches of low information (arXiv 2309.16588). The head does not
    read them. DINOv2 with registers and DINOv3 have four.

    Args:
        count: Number of register tokens.

    Input: `(batch, tokens, D)`. Output: `(batch, count + tokens, D)`.

    Examples:
        >>> tuple(layers.RegisterTokens(4)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 9, 8)
    """

    count: int = 4

    def build(self, input_shape: Shape) -> None:
        shape = (1, self.count, input_shape[-1])
        self.learned = self.add_weight(name="tokens", shape=shape, initializer=initializer("normal", stddev=0.02))


@registered
class TokenDropout(SameShape):
    """Dropout whose seed is optional in weight files, unlike that of Keras's own layer.

    Args:
        dropout: Rate while training.

    Input: `(batch, T, D)`. Output: the same shape.

    Examples:
        >>> tuple(layers.TokenDropout(0.1)(np.zeros((1, 5, 8), "float32"), training=True).shape)
        (1, 5, 8)
    """

    dropout: Rate = 0.0
    drops = ("dropout",)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        return dropout(tokens, self.dropout, *self.draw(training, self.dropout))


@registered
class PatchDropout(BaseLayer):
    """Drops random patch tokens of each image in training, which saves time (FLIP, arXiv 2212.00794).

    The same as timm's `PatchDropout`. Patches must have their position embeddings already, because the order of kept
    patches is random unless `ordered`. Inference keeps all patches.

    Args:
        rate: Share of the patches to drop; at least one patch is kept.
        prefix_tokens: Number of tokens before the patches, all of which are kept.
        ordered: Whether kept patches stay in order.

    Call arguments:
        tokens: `(batch, prefix_tokens + patches, D)`.
        rotation: Optional, the output of `RotaryEmbedding`, `(2, T, size)`.

    Output: `(batch, prefix_tokens + kept patches, D)`. With `rotation`, a list of these tokens and the rotation of each
    image, `(2, batch, prefix_tokens + kept patches, size)`.

    Examples:
        >>> tuple(layers.PatchDropout(0.5)(np.zeros((2, 5, 8), "float32"), training=True).shape)
        (2, 3, 8)
    """

    rate: Rate = 0.5
    prefix_tokens: int = 1
    ordered: bool = False
    drops = ("rate",)

    def call(self, tokens: Tensor, rotation: Tensor | None = None, training: bool | None = None) -> Any:
        (seed,) = self.draw(training, self.rate)
        if seed is not None:
            places = self._kept(tokens, seed)
            tokens = ops.take_along_axis(tokens, places[..., None], axis=1)
            rotation = None if rotation is None else ops.take(rotation, places, axis=1)
        return tokens if rotation is None else [tokens, rotation]

    def _kept(self, tokens: Tensor, seed: Any) -> Tensor:
        """Returns the places of the tokens that stay, int32 `(batch, prefix_tokens + kept patches)`."""
        batch, count = ops.shape(tokens)[0], ops.shape(tokens)[1] - self.prefix_tokens
        if isinstance(count, int):
            kept = max(1, int(count * (1 - self.rate)))
        else:  # a tensor of TensorFlow
            kept = ops.maximum(1, ops.cast(ops.cast(count, "float64") * (1 - self.rate), "int32"))
        order = ops.argsort(keras.random.uniform((batch, count), dtype="float32", seed=DrawnSeed(seed)), axis=-1)
        places = ops.cast(order[:, :kept], "int32") + self.prefix_tokens
        places = ops.sort(places, axis=-1) if self.ordered else places
        prefix = ops.broadcast_to(ops.arange(self.prefix_tokens, dtype="int32"), (batch, self.prefix_tokens))
        return ops.concatenate([prefix, places], axis=1)

    def compute_output_spec(self, tokens: Any, rotation: Any = None, training: bool | None = None) -> Any:
        outputs = [keras.KerasTensor(x.shape, self.compute_dtype) for x in (tokens, rotation) if x is not None]
        return outputs if len(outputs) > 1 else outputs[0]

    def compute_output_shape(self, tokens_shape: Shape, rotation_shape: Shape | None = None) -> Any:
        return tokens_shape if rotation_shape is None else [tokens_shape, rotation_shape]


class _AddTable(SameShape):
    """Adds a table to tokens, whose rows are for the first tokens and, row by row, for the patches of a grid.

    Subclasses have a `table`, `(1, _table_prefix + rows * columns, D)`, and `_resized(rows, columns)` of another grid.
    """

    grid_size: Pair
    prefix_tokens: int = 1
    drops = ("dropout",)

    @property
    def _table_prefix(self) -> int:
        return 0

    def call(self, tokens: Tensor, patches: Tensor | None = None, training: bool | None = None) -> Tensor:
        # The table is made for the grid of `patches` where that is not `grid_size`, and has zeros for tokens before the
        # patches that have no row.
        table, rows = ops.convert_to_tensor(self.table), self._table_prefix
        if patches is not None and tuple(patches.shape[1:3]) != self.grid_size:
            table = self._resized(*ops.shape(patches)[1:3])
        if rows < self.prefix_tokens:
            patch_rows = ops.pad(table[:, rows:], ((0, 0), (self.prefix_tokens - rows, 0), (0, 0)))
            table = ops.concatenate([table[:, :rows], patch_rows], axis=1) if rows else patch_rows
        return dropout(tokens + ops.cast(table, tokens.dtype), self.dropout, *self.draw(training, self.dropout))


@registered
class AddPositionEmbedding(_AddTable):
    """Adds a learned embedding to every token according to its place (section 3.1, "2D interpolation" in 3.2).

    Args:
        grid_size: Rows and columns of the patches that the table was made for.
        prefix_tokens: Number of tokens before the patches (1 for a class token); they are never resized.
        interpolation: How the table is resized for another grid: a name in `keras_vit.interpolation.METHODS`.
        dropout: Dropout rate of the sum in training.
        embed_prefix: Whether the tokens before the patches have rows in the table. Otherwise they pass unchanged, as in
            big_vision, which prepends its class token after adding the embeddings.
        register_tokens: Number of tokens directly before the patches without a row in any case, as DINOv2's registers.

    Call arguments:
        tokens: `(batch, prefix_tokens + rows * columns, D)`.
        patches: Optional `(batch, rows, columns, D)`, the patch map that the tokens come from. If given, the table is
            resized to its rows and columns at run time; otherwise the grid is `grid_size`.

    Output: as `tokens`.

    Examples:
        >>> tuple(layers.AddPositionEmbedding(grid_size=(2, 2))(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    interpolation: Annotated[str, OneOf(tuple(METHODS))] = "official"
    dropout: Rate = 0.0
    embed_prefix: bool = True
    register_tokens: int = 0

    @property
    def _table_prefix(self) -> int:
        return self.prefix_tokens - self.register_tokens if self.embed_prefix else 0

    def build(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> None:
        shape = (1, self._table_prefix + self.grid_size[0] * self.grid_size[1], tokens_shape[-1])
        self.table = self.add_weight(name="table", shape=shape, initializer=initializer("normal", stddev=0.02))

    def _resized(self, rows: Any, columns: Any) -> Any:
        table = ops.convert_to_tensor(self.table)
        return resize_table(table, self.grid_size, (rows, columns), self.interpolation, ops)


@registered
class AddSinCosPositionEmbedding(_AddTable):
    """Adds sines and cosines of every patch's row and column: `posemb="sincos2d"` in big_vision's `models/vit.py`.

    It has no weights, and values are computed for every grid without resizing.

    Arguments as in `AddPositionEmbedding`; tokens before the patches pass unchanged.

    Call arguments and output: as in `AddPositionEmbedding`, `(batch, T, D)`; D is a multiple of 4 of at least 8.

    Raises:
        ValueError: if D is another number.

    Examples:
        >>> layer = layers.AddSinCosPositionEmbedding(grid_size=(2, 2))
        >>> tuple(layer(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    dropout: Rate = 0.0

    def build(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> None:
        self.width: Any = tokens_shape[-1]
        self.table = sincos2d(*self.grid_size, self.width)

    def _resized(self, rows: Any, columns: Any) -> Any:
        return sincos2d(rows, columns, self.width, ops)


@registered
class TokenPooling(BaseLayer):
    """The y of equation 4: picks a token, averages the patches (appendix D.3), or both.

    Args:
        mode: `"token"`: one token; `"token_dist"`: the mean of this token and the next one, the distillation token, as
            in timm's DeiT without a head; `"avg"`: the mean of the patch tokens; `"token_avg"`: the token and the mean,
            concatenated, as for DINOv2's linear classifiers.
        prefix_tokens: Number of tokens before the patches, which the mean leaves out.
        token: Index of the token to pick.

    Input: `(batch, T, D)`. Output: `(batch, D)`, or `(batch, 2 D)` with `"token_avg"`.

    Examples:
        >>> tuple(layers.TokenPooling("avg")(np.zeros((1, 5, 8), "float32")).shape)
        (1, 8)
    """

    mode: Annotated[str, OneOf(("token_dist", "token", "avg", "token_avg"))] = "token"
    prefix_tokens: int = 1
    token: int = 0

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


@registered
class MAPHead(CompositeLayer):
    """Attention pooling: one learned query attends to all tokens (`MAPHead` in big_vision's `models/vit.py`).

    Args:
        heads: Number of attention heads.
        mlp_width: Length of the hidden layer of the MLP after the attention.
        gelu: `"tanh"`, `"exact"` or `"quick"`.
        epsilon: Added to the variance by the layer normalisation.
        skipped_tokens: Number of first tokens that the query does not attend to.

    Call arguments:
        tokens: `(batch, T, D)`.
        attention_offset: Optional `(batch, heads, 1, T - skipped_tokens)`, added to the attention weights (see
            `MultiHeadAttention`).

    Output: `(batch, D)`.

    Examples:
        >>> tuple(layers.MAPHead(heads=2, mlp_width=16)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 8)
    """

    heads: int
    mlp_width: int
    gelu: str = "tanh"
    epsilon: float = 1e-6
    skipped_tokens: int = 0

    def build(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> None:
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
        """The attention weights, `(batch, heads, 1, T - skipped_tokens)`, which sum to 1; float32 or better."""
        return self.attention.attention_weights(*self._keys_and_query(tokens))

    def _keys_and_query(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that the query attends to, and the query for each image, `(batch, 1, D)`."""
        probe = ops.cast(ops.convert_to_tensor(self.probe), tokens.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return tokens[:, self.skipped_tokens :] if self.skipped_tokens else tokens, probe

    def compute_output_shape(self, tokens_shape: Shape, attention_offset_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[2])


@registered
class SelfMask(BaseLayer):
    """A mask with which each token attends only to itself: `allowed` of a `TransformerBlock`.

    Input: `(batch, T, D)`. Output: booleans `(1, T, T)`.

    Examples:
        >>> layers.SelfMask()(np.zeros((3, 2, 8), "float32")).tolist()
        [[[True, False], [False, True]]]
    """

    def call(self, tokens: Tensor) -> Tensor:
        places = ops.arange(ops.shape(tokens)[1])
        return ops.equal(places[:, None], places)[None]

    def compute_output_spec(self, tokens: Any) -> Any:
        return keras.KerasTensor((1, tokens.shape[1], tokens.shape[1]), "bool")


@registered
class TokenMap(BaseLayer):
    """Reshapes the patch tokens to a map of rows and columns, without the tokens before them.

    Detectors and segmentation heads read such maps.

    Args:
        grid_size: Rows and columns of the patches.
        prefix_tokens: Number of tokens before the patches.

    Call arguments: as in `AddPositionEmbedding`. Output: `(batch, rows, columns, D)`.

    Examples:
        >>> tuple(layers.TokenMap(grid_size=(2, 3))(np.zeros((1, 7, 8), "float32")).shape)
        (1, 2, 3, 8)
    """

    grid_size: Pair
    prefix_tokens: int = 1

    def call(self, tokens: Tensor, patches: Tensor | None = None) -> Tensor:
        rows, columns = self.grid_size if patches is None else ops.shape(patches)[1:3]
        return reshape(tokens[:, self.prefix_tokens :], (-1, rows, columns, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        grid = self.grid_size if patches_shape is None else patches_shape[1:3]
        return (tokens_shape[0], *grid, tokens_shape[-1])


# What text towers have beside the blocks: computed positions, a mask of the padding, and one vector for a text


@registered
class AddTextPositions(SameShape):
    """Adds sines and cosines of a token's place in a text to `sqrt(D)` times the token (TIPS; arXiv 1706.03762, 3.4).

    Place t gets `[sin(w t), cos(w t)]` with `D / 2` frequencies w that fall from 1 to 1/10,000 geometrically; an odd D
    ends with a 0. It has no weights.

    Input: `(batch, T, D)`. Output: the same shape.

    Examples:
        >>> layers.AddTextPositions()(np.ones((1, 2, 4), "float32"))[0, 0].tolist()
        [2.0, 2.0, 3.0, 3.0]
    """

    def build(self, input_shape: Shape) -> None:
        length: Any = input_shape[1]
        width: Any = input_shape[2]
        omega = 10_000.0 ** -np.linspace(0, 1, width // 2)
        angles = np.arange(length)[:, None] * omega
        waves = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=1)
        self.table = waves.astype("float32")

    def call(self, tokens: Tensor) -> Tensor:
        return tokens * tokens.shape[-1] ** 0.5 + ops.cast(self.table, tokens.dtype)


@registered
class TextMask(BaseLayer):
    """A mask of the tokens of a text: True for all except padding; all True for a text of padding alone.

    Args:
        pad_id: The id of the padding.

    Input: ids, integers `(batch, T)`. Output: booleans `(batch, 1, T)`, as `allowed` of a `TransformerBlock`.

    Examples:
        >>> layers.TextMask(0)(np.array([[5, 0], [0, 0]])).tolist()
        [[[True, False]], [[True, True]]]
    """

    pad_id: int = 0

    def call(self, ids: Tensor) -> Tensor:
        seen = ops.not_equal(ids, self.pad_id)
        # A softmax over nothing has no value.
        return ops.logical_or(seen, ops.logical_not(ops.any(seen, axis=1, keepdims=True)))[:, None]

    def compute_output_spec(self, ids: Any) -> Any:
        return keras.KerasTensor((ids.shape[0], 1, ids.shape[1]), "bool")


@registered
class TextPooling(BaseLayer):
    """Pools the tokens of a text: picks one of them, or averages all that are not padding.

    Args:
        kind: `"last"`, `"first"`, `"largest_id"`, `"end_id"` or `"mean"`, as `pooling` in `keras_vit.TextConfig`.
        end_id: The id of the token that ends a text, for `"end_id"`; of a text without it, the first token is picked.
        pad_id: The id of padding, which the mean leaves out.

    Call arguments:
        tokens: `(batch, T, D)`.
        ids: Their ids, integers `(batch, T)`.

    Output: `(batch, D)`.

    Examples:
        >>> ids = np.array([[1, 9, 0]])
        >>> layers.TextPooling("largest_id")(np.arange(6.0).reshape(1, 3, 2), ids).tolist()
        [[2.0, 3.0]]
        >>> layers.TextPooling("mean", pad_id=0)(np.arange(6.0).reshape(1, 3, 2), ids).tolist()
        [[1.0, 2.0]]
    """

    kind: Annotated[str, OneOf(TEXT_POOLINGS)]
    end_id: int | None = None
    pad_id: int | None = None

    def _check_together(self) -> None:
        if (self.kind == "end_id") != (self.end_id is not None):
            raise ValueError(
                f"end_id needs kind='end_id' and the reverse, but {self.end_id!r}, {self.kind!r} were given."
            )

    def call(self, tokens: Tensor, ids: Tensor) -> Tensor:
        if self.kind in ("last", "first"):
            return tokens[:, -1 if self.kind == "last" else 0]
        if self.kind == "mean":
            return self._mean(tokens, ids)
        place = ops.argmax(ids if self.end_id is None else ops.cast(ops.equal(ids, self.end_id), "int32"), axis=1)
        return ops.take_along_axis(tokens, place[:, None, None], axis=1)[:, 0]

    def _mean(self, tokens: Any, ids: Any) -> Any:
        """Returns the mean of the tokens that are not padding (zeros if all are); of all tokens without a `pad_id`."""
        if self.pad_id is None:
            return ops.mean(tokens, axis=1)
        there = ops.cast(ops.not_equal(ids, self.pad_id), tokens.dtype)[..., None]
        return ops.sum(tokens * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1)

    def compute_output_shape(self, tokens_shape: Shape, ids_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[2])
