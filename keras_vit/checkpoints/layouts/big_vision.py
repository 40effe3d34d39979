"""The layout of google-research/big_vision: `models/vit.py`, and the image towers of its two-tower models.

It descends from vit_jax in Linen's names. What differs: the position embeddings are for patches only (or computed, and
then not stored), attention pooling has weights, and the blocks may be stacked along a first axis (`scan=True`).

Old files are read as big_vision's own loader reads them: position embeddings under their two former names, arrays
of the attention pooling at the top, names from before Linen. A table of n^2 + 1 rows begins with the class token's.
The loader adds that row to `cls`; here it stays a row of the model, which computes the same and can be written back.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.engine import (
    Contents,
    Hints,
    Layout,
    Row,
    bounded,
    length_of,
    oddities,
    shape_of,
    squarest_grid,
)
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts import vit_jax
from keras_vit.checkpoints.layouts.vit_jax import check_writable, depth_of, find_model, is_linen, renumbered
from keras_vit.models import ViTConfig

_TABLE = "position_embedding/table"
_POSITION = "pos_embedding"
_OLD_POSITIONS = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding")
_PROBE = "MAPHead_0/probe"
_OLD_POOLING = re.compile(r"(probe|MlpBlock_0/.*|MultiHeadDotProductAttention_0/.*|LayerNorm_0/.*)")
_STACK = "Transformer/encoderblock/"
_USUAL_SIZE = 224  # pixels: what the published files without position embeddings were trained at


def _rows(config: ViTConfig) -> list[Row]:
    rows = [row for row in vit_jax.LAYOUT.rows(config) if row.path != _TABLE]
    linen = renumbered([row.name for row in rows])
    rows = [dataclasses.replace(row, name=linen[row.name]) for row in rows]
    if config.position_rows:
        rows.append(Row(_POSITION, _TABLE, (1, "T", "D")))
    if config.pooling == "map":
        rows += _pooling_rows(rows)
    return rows


def _pooling_rows(rows: list[Row]) -> list[Row]:
    """The attention pooling's arrays: those of a block without its first normalisation, and the query."""
    pooling = [Row(_PROBE, "pooling/probe", (1, 1, "D"))]
    for row in rows:
        if row.path.startswith(("block_0/attention/", "block_0/norm2/", "block_0/mlp/")):
            name = row.name.replace("Transformer/encoderblock_0/", "MAPHead_0/").replace("LayerNorm_1/", "LayerNorm_0/")
            path = row.path.replace("block_0/", "pooling/").replace("norm2/", "norm/")
            pooling.append(Row(name, path, row.shape))
    return pooling


def _sizes(config: ViTConfig) -> dict[str, int]:
    return {**vit_jax.LAYOUT.sizes(config), "T": config.position_rows}


def _stacked(name: str) -> str:
    return re.sub(r"^Transformer/encoderblock_\d+/", _STACK, name)


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    found = find_model(file)
    if found is None or not _is_big_vision(found[1].keys()):
        return None
    prefix, arrays = found
    if len(arrays["embedding/kernel"].shape) == 2:
        raise ValueError("its patches go through a matrix, not a convolution. NaFlex models are not supported.")
    arrays, dialect = _modernised(arrays)
    grid, told = _position(arrays, getattr(file, "grid_size", None))
    config = _config(arrays, grid)
    square = grid[0] == grid[1] or not config.position_rows
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    told += oddities(arrays, unused, config, square)
    return Contents(LAYOUT, dialect, prefix, config, arrays, unused, told, square)


def _is_big_vision(names: Any) -> bool:
    """Whether a Flax model is of this layout and not of vit_jax, whose models know but one way to hold positions."""
    if _PROBE in names or "probe" in names or any(name.startswith(_STACK) for name in names):
        return True
    if _POSITION in names or _OLD_POSITIONS[1] in names:
        return True
    # Without any position embeddings: computed ones, unless the file is a vit_jax one that lacks an array.
    return _OLD_POSITIONS[0] not in names and is_linen(names) and "conv_root/kernel" not in names


def _modernised(arrays: dict[str, StoredArray]) -> tuple[dict[str, StoredArray], str]:
    """The arrays by today's names, block by block, and what the file's own names are."""
    dialect = "Linen"
    if any(name.startswith(_STACK) for name in arrays):
        arrays, dialect = _unstacked(arrays), "stacked"
    elif not is_linen(arrays):
        names = renumbered(arrays.keys())
        arrays, dialect = {names[name]: array for name, array in arrays.items()}, "published"
    for old in _OLD_POSITIONS:
        if old in arrays and _POSITION not in arrays:
            arrays[_POSITION] = arrays.pop(old)
    if "probe" in arrays:
        inlined = {name for name in arrays if _OLD_POOLING.fullmatch(name)}
        arrays = {f"MAPHead_0/{name}" if name in inlined else name: array for name, array in arrays.items()}
    return arrays, dialect


def _unstacked(arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """The same with each array of all blocks as one array per block, of which only its part is read."""
    depth = bounded(shape_of(arrays, f"{_STACK}LayerNorm_0/scale", 2)[0])
    single = {}
    for name, array in arrays.items():
        if name.startswith(_STACK) and array.shape[:1] == (depth,):
            shape = array.shape[1:]
            for i in range(depth):
                block = name.replace(_STACK, f"Transformer/encoderblock_{i}/")
                single[block] = array.piece(i * math.prod(shape), shape)
        else:
            single[name] = array
    return single


def _position(arrays: dict[str, StoredArray], noted_grid: tuple[int, int] | None) -> tuple[tuple[int, int], list[str]]:
    """The grid of patches, and what is odd about it. A class token's row without a class token is taken away."""
    if _POSITION not in arrays:
        height, width, *_ = shape_of(arrays, "embedding/kernel", 4)
        grid = tuple(noted_grid or (max(round(_USUAL_SIZE / patch), 1) for patch in (height, width)))
        size = f"{grid[0] * height} x {grid[1] * width}"
        return grid, [] if noted_grid else [
            f"its position embeddings are computed, so the file does not tell the image size; {size} is a guess"
        ]
    _, rows, width = shape_of(arrays, _POSITION, 3)
    patches = rows - 1 if rows > 1 and math.isqrt(rows - 1) ** 2 == rows - 1 else rows
    if noted_grid and math.prod(noted_grid) in (rows, rows - 1):
        patches = math.prod(noted_grid)
    if patches == rows or "cls" in arrays:
        return squarest_grid(patches), []
    arrays[_POSITION] = arrays[_POSITION].piece(width, (1, patches, width))
    return squarest_grid(patches), ["the first row of its position embeddings is of a class token that it has not"]


def _config(arrays: Mapping[str, StoredArray], grid: tuple[int, int]) -> ViTConfig:
    """The model that the arrays' shapes tell of."""
    height, width, channels, hidden = shape_of(arrays, "embedding/kernel", 4)
    block = "Transformer/encoderblock_0"
    _, heads, _ = shape_of(arrays, f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)
    _, mlp_width = shape_of(arrays, f"{block}/MlpBlock_0/Dense_0/kernel", 2)
    class_token = "cls" in arrays
    position = "sincos2d"
    if _POSITION in arrays:
        own_row = arrays[_POSITION].shape[1] > math.prod(grid)
        # Without a class token the two kinds are the same.
        position = "learned" if own_row or not class_token else "learned_patches"
    return ViTConfig(
        image_size=(grid[0] * height, grid[1] * width),
        patch_size=(height, width),
        width=hidden,
        depth=depth_of(arrays),
        heads=heads,
        mlp_width=mlp_width,
        channels=channels,
        class_token=class_token,
        position_embedding=position,
        pooling="map" if _PROBE in arrays else "token" if class_token else "avg",
        representation_size=length_of(arrays, "pre_logits/kernel"),
        classes=length_of(arrays, "head/kernel"),
    )


def _check_writable(config: ViTConfig) -> None:
    check_writable(config, "big_vision", ("token",) if config.class_token else ("avg", "map"))
    if config.stem_stages is not None:
        raise ValueError("The layout 'big_vision' has no place for a ResNet. Write layout='vit_jax' instead.")


def _restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Keeps the class token's position where big_vision's loader understands it; else adds it to the token.

    The loader knows a table of n^2 + 1 rows. On other grids the sum is what the model computes, bit for bit, but what
    was the token and what its position is lost. A row of zeros, as from a big_vision model, says nothing.
    """
    if not (config.class_token and config.position_embedding == "learned"):
        return config, {}
    table, token = read(_TABLE), read("class_token/token")
    row, patches = table[:, :1], table[:, 1:]
    if row.any() and math.isqrt(patches.shape[1]) ** 2 == patches.shape[1]:
        return config, {}
    changed = {_TABLE: patches, "class_token/token": np.where(row == 0, token, token + row)}
    return config.replace(position_embedding="learned_patches"), changed


LAYOUT = Layout("big_vision", _rows, _sizes, _read, _check_writable, _restate, _stacked)
