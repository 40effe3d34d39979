"""Position embeddings that are computed instead of learned."""

from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._types import Shape, Tensor
from keras_vit.layers.base import SeedGenerator, dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class AddSinCosPositionEmbedding(keras.layers.Layer):
    """Adds sines and cosines of every patch's row and column: `posemb="sincos2d"` in big_vision's `models/vit.py`.

    It has no weights, and for another grid it computes other values: nothing is ever resized.

    Args:
        grid_size: Rows and columns of the patches.
        prefix_tokens: Number of tokens before the patches (1 for a class token); they pass unchanged.
        dropout: Rate of dropout on the sum while training.

    Call arguments:
        tokens: `(batch, prefix_tokens + rows * columns, D)`; D is 8 or more and a multiple of 4.
        patches: Optional `(batch, rows, columns, D)`, the patch map that the tokens come from, where the grid is
            another than `grid_size`.

    Output: as `tokens`.

    Raises:
        ValueError: if D is no such number.

    Examples:
        >>> layer = layers.AddSinCosPositionEmbedding(grid_size=(2, 2))
        >>> tuple(layer(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    def __init__(self, grid_size: tuple[int, int], prefix_tokens: int = 1, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid_size = tuple(grid_size)
        self.prefix_tokens = prefix_tokens
        self.dropout = dropout
        self.seed_generator = SeedGenerator() if dropout else None

    def build(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> None:
        self.width = tokens_shape[-1]
        self._table = sincos2d(self.grid_size[0], self.grid_size[1], self.width)

    def call(self, tokens: Tensor, patches: Tensor | None = None, training: bool | None = None) -> Tensor:
        table = ops.convert_to_tensor(self._table)
        if patches is not None and tuple(patches.shape[1:3]) != self.grid_size:
            _, rows, columns, _ = ops.shape(patches)
            table = sincos2d(rows, columns, self.width, ops)
        if self.prefix_tokens:
            table = ops.pad(table, ((0, 0), (self.prefix_tokens, 0), (0, 0)))
        seed = self.seed_generator.next() if training and self.dropout else None
        return dropout(tokens + ops.cast(table, tokens.dtype), self.dropout, seed)

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        return tokens_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid_size": self.grid_size,
            "prefix_tokens": self.prefix_tokens,
            "dropout": self.dropout,
        }


def sincos2d(rows: Any, columns: Any, width: int, xp: ModuleType = np) -> Any:
    """The position embeddings of MoCo v3 (Chen et al., 2021), in big_vision's order.

    A patch in row y and column x gets `[sin(w x), cos(w x), sin(w y), cos(w y)]` with `width / 4` frequencies w that
    fall from 1 to 1/10,000 geometrically.

    Args:
        rows: Rows of patches; a Python integer, or a scalar integer tensor where `xp` is `keras.ops`.
        columns: Columns of patches; likewise.
        width: D.
        xp: The array module, `numpy` (computes in float64) or `keras.ops` (float32, traceable).

    Returns:
        float32 `(1, rows * columns, width)`, row by row.

    Raises:
        ValueError: if `width` is no multiple of 4 or less than 8.

    Examples:
        >>> layers.sincos2d(2, 3, 8).shape
        (1, 6, 8)
    """
    if width % 4 or width < 8:
        raise ValueError(f"width must be 8 or more and a multiple of 4, but {width} was given.")
    omega = 10_000.0 ** -np.linspace(0, 1, width // 4)
    omega = omega if xp is np else xp.convert_to_tensor(omega, "float32")
    x = _positions(columns, xp)[:, None] * omega
    y = _positions(rows, xp)[:, None] * omega
    x = xp.concatenate([xp.sin(x), xp.cos(x)], axis=1)
    y = xp.concatenate([xp.sin(y), xp.cos(y)], axis=1)
    shape = (rows, columns, width // 2)
    table = xp.concatenate([xp.broadcast_to(x[None], shape), xp.broadcast_to(y[:, None], shape)], axis=-1)
    table = xp.reshape(table, (1, -1, width))
    return table.astype("float32") if xp is np else table


def _positions(count: Any, xp: ModuleType) -> Any:
    return np.arange(count, dtype="float64") if xp is np else xp.cast(xp.arange(count), "float32")
