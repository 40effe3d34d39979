"""What text towers have beside the blocks: computed positions, a mask of the padding, and one vector for a text."""

from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit._options import OneOf
from keras_vit.layers.base import BaseLayer, SameShape, registered
from keras_vit.layers.choices import TEXT_POOLINGS


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
        """Computes the table of sines and cosines, float32 `(T, D)`, which is not a weight. T has to be known."""
        length: Any = input_shape[1]
        width: Any = input_shape[2]
        omega = 10_000.0 ** -np.linspace(0, 1, width // 2)
        angles = np.arange(length)[:, None] * omega
        waves = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=1)
        self.table = waves.astype("float32")

    def call(self, tokens: Tensor) -> Tensor:
        """Returns `sqrt(D)` times the tokens plus the table, in the dtype of the tokens."""
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
        """Returns booleans `(batch, 1, T)`: False for padding, but True everywhere in a text of padding alone."""
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
        end_id: The id of the token that ends a text, for `"end_id"`.
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
        """Raises ValueError unless `end_id` is there for `"end_id"` alone."""
        if (self.kind == "end_id") != (self.end_id is not None):
            raise ValueError(
                f"end_id needs kind='end_id' and the reverse, but {self.end_id!r}, {self.kind!r} were given."
            )

    def call(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """Returns one vector for each text, `(batch, D)`: a token, or the mean of all tokens except padding.

        `"end_id"` picks the first token with that id, or the first token of a text without it.
        """
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
