"""Where a patch is: embeddings that are added, learned or computed, and rotations of queries and keys."""

import math
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import DType, Shape, Tensor, check_choice
from keras_vit.interpolation import METHODS, interpolation_matrices
from keras_vit.layers.base import SeedGenerator, dropout, initializer
from keras_vit.layers.choices import ROTARY_EMBEDDINGS

DINOV3_BASE = 100.0  # the longest period is nearly this many times the shortest
EVA02_BASE = 10_000.0


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

    Examples:
        >>> tuple(layers.AddPositionEmbedding(grid_size=(2, 2))(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
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

    def build(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> None:
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

    def call(self, tokens: Tensor, patches: Tensor | None = None, training: bool | None = None) -> Tensor:
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

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> Shape:
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

    Examples:
        >>> layers.resize_table(np.zeros((1, 1 + 4, 8), "float32"), (2, 2), (3, 4), "official").shape
        (1, 13, 8)
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
        self.width: Any = tokens_shape[-1]
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


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryEmbedding(keras.layers.Layer):
    """The sines and cosines by which `MultiHeadAttention` turns queries and keys (RoFormer, arXiv 2104.09864).

    They are the same for all images, heads and blocks, and are computed for any grid: nothing is ever resized. The
    first half of a head's channels knows the row of a patch and the other its column, in an order that differs:

    - `"dinov3"`: a place is in (-1, 1), its angle `2 pi place / period`. Channel i is turned with channel i + d/2.
      The periods are a weight that does not train. It starts as the formula of timm and Hugging Face says; Facebook's
      own files hold periods that were rounded to bfloat16.
    - `"eva02"`: a place counts in cells of a reference grid, whatever the grid is; its angle is
      `place * 10000 ** (-4 j / d)`. Channel 2i is turned with channel 2i + 1. There are no weights.

    Args:
        kind: `"dinov3"` or `"eva02"`.
        size: d, the length of a head's queries and keys; a multiple of 4.
        prefix_tokens: Tokens before the patches; they are turned by nothing.
        reference_grid: Rows and columns of the reference grid of `"eva02"`; 16 by 16 in all published files.

    Input: The patch map `(batch, rows, columns, D)`; only its shape matters.
    Output: float32 `(2, prefix_tokens + rows * columns, size)`, the sines and the cosines.

    Raises:
        ValueError: if `kind` is unknown or `size` is no multiple of 4.

    Examples:
        >>> tuple(layers.RotaryEmbedding("eva02", size=8)(np.zeros((1, 2, 3, 16), "float32")).shape)
        (2, 7, 8)
    """

    def __init__(
        self,
        kind: str,
        size: int,
        prefix_tokens: int = 1,
        reference_grid: tuple[int, int] = (16, 16),
        **kwargs: Any,
    ) -> None:
        # Neither the weight nor the result is rounded to a policy's dtype: angles need all their bits.
        super().__init__(autocast=False, **kwargs)
        check_choice("kind", kind, ROTARY_EMBEDDINGS)
        if size % 4 or size < 4:
            raise ValueError(f"size must be a multiple of 4, but {size} was given.")
        self.kind = kind
        self.size = size
        self.prefix_tokens = prefix_tokens
        self.reference_grid = tuple(reference_grid)

    def build(self, input_shape: Shape) -> None:
        if self.kind == "dinov3":
            self.periods = self.add_weight(
                name="periods",
                shape=(self.size // 4,),
                initializer=_PeriodsInitializer(),
                dtype="float32",
                trainable=False,
                autocast=False,
            )

    def call(self, patches: Tensor) -> Tensor:
        _, rows, columns, _ = ops.shape(patches)
        if self.kind == "dinov3":
            frequencies = (2 * math.pi) / ops.convert_to_tensor(self.periods)
            y, x = (2 * (_count(n) + 0.5) / ops.cast(n, "float32") - 1 for n in (rows, columns))
        else:
            frequencies = ops.convert_to_tensor(eva02_bands(self.size))
            places = zip((rows, columns), self.reference_grid, strict=True)
            y, x = (_count(n) * (cells / ops.cast(n, "float32")) for n, cells in places)
        shape = (rows, columns, self.size // 4)
        by_row = ops.broadcast_to((y[:, None] * frequencies)[:, None], shape)
        by_column = ops.broadcast_to((x[:, None] * frequencies)[None], shape)
        angles = ops.reshape(ops.concatenate([by_row, by_column], axis=-1), (-1, self.size // 2))
        # An angle for each of the two channels that are turned together.
        angles = ops.tile(angles, (1, 2)) if self.kind == "dinov3" else ops.repeat(angles, 2, axis=-1)
        angles = ops.pad(angles, ((self.prefix_tokens, 0), (0, 0)))
        return ops.stack([ops.sin(angles), ops.cos(angles)])

    def compute_output_spec(self, patches: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(patches.shape), dtype="float32")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        _, rows, columns, _ = input_shape
        tokens = None if rows is None or columns is None else self.prefix_tokens + rows * columns
        return (2, tokens, self.size)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kind": self.kind,
            "size": self.size,
            "prefix_tokens": self.prefix_tokens,
            "reference_grid": self.reference_grid,
        }


def rotate(x: Tensor, rotation: Tensor, kind: str) -> Tensor:
    """Queries or keys, turned by their place.

    Args:
        x: `(batch, tokens, heads, d)`.
        rotation: The sines and cosines that `RotaryEmbedding` gives, `(2, tokens, d)`.
        kind: As for `RotaryEmbedding`; it says which two channels are turned together.
    """
    sin, cos = (ops.cast(rotation[i], x.dtype)[:, None] for i in range(2))
    size = x.shape[-1]
    if kind == "dinov3":
        turned = ops.concatenate([-x[..., size // 2 :], x[..., : size // 2]], axis=-1)
    else:
        turned = ops.stack([-x[..., 1::2], x[..., ::2]], axis=-1)
        turned = ops.reshape(turned, (-1, x.shape[1] or ops.shape(x)[1], *x.shape[2:]))
    return x * cos + turned * sin


def dinov3_periods(size: int) -> np.ndarray:
    """The periods of DINOv3 for heads of length `size`: float32 `(size / 4,)`, from 1 to nearly 100."""
    exponents = np.arange(size // 4, dtype="float64") / (size / 4)
    return (DINOV3_BASE**exponents).astype("float32")


def eva02_bands(size: int) -> np.ndarray:
    """The frequencies of EVA-02 for heads of length `size`: float32 `(size / 4,)`, from 1 to nearly 1/10,000."""
    exponents = np.arange(size // 4, dtype="float64") / (size / 4)
    return (EVA02_BASE**-exponents).astype("float32")


def _count(n: Any) -> Any:
    return ops.cast(ops.arange(n), "float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class _PeriodsInitializer(keras.initializers.Initializer):
    """DINOv3's formula as the first value of a weight."""

    def __call__(self, shape: tuple[int, ...], dtype: DType = None) -> Tensor:
        return ops.convert_to_tensor(dinov3_periods(4 * shape[0]), dtype)

    def get_config(self) -> dict[str, Any]:
        return {}
