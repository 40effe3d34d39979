"""Positions that are computed: sines and cosines that are added, and rotations of queries and keys."""

import math
from types import ModuleType
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import DType, Shape, Tensor
from keras_vit._options import OneOf, Pair
from keras_vit.layers.base import BaseLayer, registered
from keras_vit.layers.choices import ROTARY_EMBEDDINGS

_DINOV3_BASE = 100.0  # the longest period is nearly this many times the shortest
_EVA02_BASE = 10_000.0


def sincos2d(rows: Any, columns: Any, width: int, xp: ModuleType = np) -> Any:
    """Returns the position embeddings of MoCo v3 in big_vision's order, float32 `(1, rows * columns, width)`.

    A patch in row y and column x gets `[sin(w x), cos(w x), sin(w y), cos(w y)]` with `width / 4` frequencies w that
    fall from 1 to 1/10,000 geometrically. ValueError unless `width` is a multiple of 4 and at least 8.

    `rows` and `columns` are integers, or scalar integer tensors if `xp` is `keras.ops` (float32, traceable) instead of
    `numpy` (computes in float64).

    Examples:
        >>> layers.sincos2d(2, 3, 8).shape
        (1, 6, 8)
    """
    if width % 4 or width < 8:
        raise ValueError(f"width must be 8 or more and a multiple of 4, but {width} was given.")
    omega = 10_000.0 ** -np.linspace(0, 1, width // 4)
    omega = omega if xp is np else ops.convert_to_tensor(omega, "float32")

    def waves(count: Any) -> Any:
        # For each place in one direction its sines, then its cosines.
        places = np.arange(count, dtype="float64") if xp is np else _count(count)
        angles = places[:, None] * omega
        return xp.concatenate([xp.sin(angles), xp.cos(angles)], axis=1)

    shape = (rows, columns, width // 2)
    by_column, by_row = xp.broadcast_to(waves(columns)[None], shape), xp.broadcast_to(waves(rows)[:, None], shape)
    table = xp.reshape(xp.concatenate([by_column, by_row], axis=-1), (1, -1, width))
    return table.astype("float32") if xp is np else table


def _count(n: Any) -> Any:
    return ops.cast(ops.arange(n), "float32")


@registered
class RotaryEmbedding(BaseLayer):
    """The sines and cosines by which `MultiHeadAttention` rotates queries and keys (RoFormer, arXiv 2104.09864).

    They are the same for all images, heads and blocks, and are computed for any grid without resizing. The first half
    of a head's channels encodes the row of a patch and the second half its column, except for `"pe"`:

    - `"dinov3"`: positions are in (-1, 1), and the angle is `2 pi position / period`. Channel i is rotated with channel
      i + d/2. The periods are a weight that does not train, initialised as in timm and Hugging Face.
    - `"eva02"`: positions are scaled to a reference grid, and the angle is `position * 10000 ** (-4 j / d)`. Channel 2i
      is rotated with channel 2i + 1. There are no weights.
    - `"pe"` (Perception Encoder): as `"eva02"`, but the first half encodes the column and the second the row, and if
      tokens stand before the patches, positions are counted from 1.

    Args:
        kind: `"dinov3"`, `"eva02"` or `"pe"`.
        size: d, the length of a head's queries and keys; a multiple of 4, otherwise a ValueError.
        prefix_tokens: Tokens before the patches, which are not rotated.
        reference_grid: Rows and columns of the reference grid of `"eva02"` (16 by 16 in all published files) and
            `"pe"`; None: positions are whole numbers of patches on any grid.

    Call arguments:
        patches: The patch map `(batch, rows, columns, D)`; only its shape matters.
        scale: Optional scalar by which all positions are multiplied, as DINOv3 does at random in training.

    Output: float32 `(2, prefix_tokens + rows * columns, size)`, the sines and the cosines.

    Examples:
        >>> tuple(layers.RotaryEmbedding("eva02", size=8)(np.zeros((1, 2, 3, 16), "float32")).shape)
        (2, 7, 8)
    """

    kind: Annotated[str, OneOf(ROTARY_EMBEDDINGS)]
    size: int
    prefix_tokens: int = 1
    reference_grid: Pair | None = (16, 16)

    def _check_together(self) -> None:
        # Neither the weight nor the result is rounded to a policy's dtype: angles need all their bits.
        self.autocast = False
        if self.size % 4 or self.size < 4:
            raise ValueError(f"size must be a positive multiple of 4, but {self.size} was given.")

    def build(self, patches_shape: Shape, scale_shape: Shape | None = None) -> None:
        if self.kind == "dinov3":
            self.periods = self.add_weight(
                name="periods",
                shape=(self.size // 4,),
                initializer=_dinov3_periods,
                dtype="float32",
                trainable=False,
                autocast=False,
            )

    def call(self, patches: Tensor, scale: Tensor | None = None) -> Tensor:
        _, rows, columns, _ = ops.shape(patches)
        if self.kind == "dinov3":
            frequencies = (2 * math.pi) / ops.convert_to_tensor(self.periods)
            y, x = (2 * (_count(n) + 0.5) / ops.cast(n, "float32") - 1 for n in (rows, columns))
        else:
            frequencies = ops.convert_to_tensor(_powers(_EVA02_BASE, self.size // 4, -1))
            first = 1 if self.kind == "pe" and self.prefix_tokens else 0
            y, x = _count(rows) + first, _count(columns) + first
            if self.reference_grid is not None:
                y = y * (self.reference_grid[0] / ops.cast(rows, "float32"))
                x = x * (self.reference_grid[1] / ops.cast(columns, "float32"))
        if scale is not None:
            frequencies = frequencies * ops.cast(scale, "float32")
        shape = (rows, columns, self.size // 4)
        by_row = ops.broadcast_to((y[:, None] * frequencies)[:, None], shape)
        by_column = ops.broadcast_to((x[:, None] * frequencies)[None], shape)
        halves = [by_column, by_row] if self.kind == "pe" else [by_row, by_column]
        angles = ops.reshape(ops.concatenate(halves, axis=-1), (-1, self.size // 2))
        # An angle for each of the two channels that are turned together.
        angles = ops.tile(angles, (1, 2)) if self.kind == "dinov3" else ops.repeat(angles, 2, axis=-1)
        angles = ops.pad(angles, ((self.prefix_tokens, 0), (0, 0)))
        return ops.stack([ops.sin(angles), ops.cos(angles)])

    def compute_output_spec(self, patches: Tensor, scale: Tensor | None = None) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(patches.shape), dtype="float32")

    def compute_output_shape(self, patches_shape: Shape, scale_shape: Shape | None = None) -> Shape:
        _, rows, columns, _ = patches_shape
        tokens = None if rows is None or columns is None else self.prefix_tokens + rows * columns
        return (2, tokens, self.size)


def _powers(base: float, count: int, sign: int) -> np.ndarray:
    """Float32 `(count,)`: powers of the base from 1 to nearly the base, or its inverse where `sign` is -1."""
    return (base ** (sign * np.arange(count, dtype="float64") / count)).astype("float32")


def _dinov3_periods(shape: tuple[int, ...], dtype: DType = None) -> Tensor:
    """Initializer: returns `shape[0]` periods, from 1 to nearly 100."""
    return ops.convert_to_tensor(_powers(_DINOV3_BASE, shape[0], 1), dtype)


def rotate(x: Tensor, rotation: Tensor, kind: str) -> Tensor:
    """Returns queries or keys `(batch, tokens, heads, d)`, turned by `(2, tokens, d)`, or `(2, batch, tokens, d)`."""
    sin, cos = (ops.cast(rotation[i], x.dtype)[..., None, :] for i in range(2))
    size = x.shape[-1]
    if kind == "dinov3":
        turned = ops.concatenate([-x[..., size // 2 :], x[..., : size // 2]], axis=-1)
    else:
        turned = ops.stack([-x[..., 1::2], x[..., ::2]], axis=-1)
        turned = ops.reshape(turned, (-1, x.shape[1] or ops.shape(x)[1], *x.shape[2:]))
    return x * cos + turned * sin
