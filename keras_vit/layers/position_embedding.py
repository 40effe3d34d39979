"""Position embeddings: the E_pos of equation 1, at any resolution."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.interpolation import METHODS, interpolation_matrices
from keras_vit.layers.initialization import initializer
from keras_vit.layers.stochastic import SeedGenerator, dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbedding(keras.layers.Layer):
    """Adds a learned embedding to every token according to its place (section 3.1, "2D interpolation" in 3.2).

    Args:
        grid_size: Rows and columns of the patches that the table was made for.
        prefix_tokens: Number of tokens before the patches (1 for a class token); they are never resized.
        interpolation: How the table changes size for another grid: a name in `keras_vit.interpolation.METHODS`.
        dropout: Rate of dropout on the sum while training.
        embed_prefix: Whether the tokens before the patches have rows in the table. Without, they pass unchanged, as
            in big_vision, which prepends its class token after adding the embeddings.
        register_tokens: How many tokens right before the patches have no row even so, as DINOv2's registers.

    Call arguments:
        tokens: `(batch, prefix_tokens + rows * columns, D)`.
        patches: Optional `(batch, rows, columns, D)`, the patch map that the tokens come from. Where it is given,
            the table is resized in the graph to its rows and columns; without it the grid is `grid_size`.

    Output: as `tokens`.
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        prefix_tokens: int = 1,
        interpolation: str = "official",
        dropout: float = 0.0,
        embed_prefix: bool = True,
        register_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if interpolation not in METHODS:
            raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {interpolation!r} was given.")
        self.grid_size = tuple(grid_size)
        self.prefix_tokens = prefix_tokens
        self.interpolation = interpolation
        self.dropout = dropout
        self.embed_prefix = embed_prefix
        self.register_tokens = register_tokens
        self.seed_generator = SeedGenerator() if dropout else None

    def build(self, tokens_shape: tuple[int | None, ...], patches_shape: Any = None) -> None:
        rows, columns = self.grid_size
        self.table = self.add_weight(
            name="table",
            shape=(1, self._prefix_rows + rows * columns, tokens_shape[-1]),
            initializer=initializer("normal", stddev=0.02),
        )

    @property
    def _prefix_rows(self) -> int:
        """Rows of the table that are for tokens before the patches."""
        return self.prefix_tokens - self.register_tokens if self.embed_prefix else 0

    def call(self, tokens: Any, patches: Any = None, training: bool | None = None) -> Any:
        table = ops.convert_to_tensor(self.table)
        if patches is not None and tuple(patches.shape[1:3]) != self.grid_size:
            _, rows, columns, _ = ops.shape(patches)
            table = resize_table(table, self.grid_size, (rows, columns), self.interpolation, ops)
        rows = self._prefix_rows
        if rows < self.prefix_tokens:
            patch_rows = ops.pad(table[:, rows:], ((0, 0), (self.prefix_tokens - rows, 0), (0, 0)))
            table = ops.concatenate([table[:, :rows], patch_rows], axis=1) if rows else patch_rows
        seed = self.seed_generator.next() if training and self.dropout else None
        return dropout(tokens + ops.cast(table, tokens.dtype), self.dropout, seed)

    def compute_output_shape(self, tokens_shape: tuple[int | None, ...], patches_shape: Any = None) -> Any:
        return tokens_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "grid_size": self.grid_size,
            "prefix_tokens": self.prefix_tokens,
            "interpolation": self.interpolation,
            "dropout": self.dropout,
            "embed_prefix": self.embed_prefix,
            "register_tokens": self.register_tokens,
        }


def resize_table(table: Any, old: tuple[int, int], new: tuple[Any, Any], method: str, xp: Any = np) -> Any:
    """Resizes a table of position embeddings from one grid to another.

    Args:
        table: `(1, prefix + old rows * old columns, D)`, a NumPy array or, with `xp=keras.ops`, a tensor.
        old: Rows and columns of the grid that the table was made for.
        new: Rows and columns wanted; may be scalar tensors with `xp=keras.ops`.
        method: A name in `keras_vit.interpolation.METHODS`.
        xp: `numpy` (interpolates in float64) or `keras.ops` (in the table's own dtype, at least float32).

    Returns:
        `(1, prefix + new rows * new columns, D)` in the table's dtype. The prefix is kept as it is.
    """
    prefix = table.shape[1] - old[0] * old[1]
    width, dtype = table.shape[2], table.dtype
    by_row, by_column = interpolation_matrices(old, new, method, xp)
    grid = xp.reshape(table[0, prefix:], (*old, width))
    grid = grid.astype(by_row.dtype) if xp is np else xp.cast(grid, by_row.dtype)
    grid = xp.einsum("hi,wj,ijd->hwd", by_row, by_column, grid)
    grid = xp.reshape(grid, (1, -1, width))
    grid = grid.astype(dtype) if xp is np else xp.cast(grid, dtype)
    return xp.concatenate([table[:, :prefix], grid], axis=1)
