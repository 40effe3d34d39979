"""The layouts of Flax: the official `vit_models/*.npz` (vit_jax) and big_vision's `models/vit.py`.

vit_jax and big_vision have the same modules. Published files of vit_jax number all modules of a block with one counter;
today's Flax (Linen) has one counter per class, and so has big_vision. What else differs in big_vision: position
embeddings are for patches only (or computed, and then not stored), attention pooling has weights, and blocks may be
stacked along a first axis (`scan=True`). The functions below take Linen's names.

Old files of big_vision are read as its own loader reads them: position embeddings under their two former names, arrays
of the attention pooling at the top, names from before Linen. A table of n^2 + 1 rows begins with the class token's.
The loader adds that row to `cls`; here it stays a row of the model, which computes the same and can be written back.

SigLIP 2 NaFlex (big_vision's `naflex_vit.py`) is read at one size: its patches go through a matrix, and its table of
positions has rows and columns.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import TABLE, Layout, Plan, Remark, Row, bounded, check_fields, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import mixer, naflex
from keras_vit.checkpoints.layouts.pytorch import square_patch
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import TextConfig, ViTConfig, convolutions

Arrays = dict[str, StoredArray]

# Prefixes that loaders know, most trusted first; and what may stand beside the model in a file without a prefix.
_PREFIXES = ("", "params/", "opt/target/", "target/", "params/img/", "img/")
_BESIDE = re.compile(r"(opt|opt_state|optimizer|extra|txt)/.*|step|t|b")
_PATCHES = "embedding/kernel"
_BLOCK, _STACK = "Transformer/encoderblock_", "Transformer/encoderblock/"
_POSITION, _VIT_JAX_POSITION = "pos_embedding", "Transformer/posembed_input/pos_embedding"
_OLD_POSITIONS = (_VIT_JAX_POSITION, "Transformer/pos_embedding")
# The modules of a block in the names of the published files, and in Linen's.
_LINEN = {
    "LayerNorm_2": "LayerNorm_1",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "MlpBlock_3": "MlpBlock_0",
}
_PUBLISHED = {linen: published for published, linen in _LINEN.items()}
_IN_BLOCK = re.compile(rf"({_BLOCK}\d+/)(\w+)(/.*)")
_POOLING = re.compile(r"(MAPHead_0/)?(probe|((?:MlpBlock|MultiHeadDotProductAttention|LayerNorm)_)\d+(/.*))")
_DEFAULT_SIZE = 224  # pixels: what the published files without position embeddings were trained at


# Rows


def _rows(config: ViTConfig, layout: str) -> list[Row]:
    """The rows of a Vision Transformer in the names of big_vision, or of vit_jax, whose blocks are called otherwise."""
    if config.tokens_mlp_width is not None:
        return mixer.flax_rows(config)
    rows = _stem(config) if config.stem_stages is not None else []
    width = config.width
    is_flat = layout == "big_vision" and naflex.is_naflex(config)
    kernel: tuple[int, ...] = (*config.patch_size, config.feature_map_channels)
    if is_flat:  # a linear layer on the numbers of a patch
        kernel = (math.prod(kernel),)
    rows.append(Row(_PATCHES, _PATCHES, (*kernel, width)))
    rows.append(Row("embedding/bias", "embedding/bias", (width,)))
    if config.position_rows:
        name = _VIT_JAX_POSITION if layout == "vit_jax" else _POSITION
        places = config.grid_size if is_flat else (1, config.position_rows)
        rows.append(Row(name, TABLE, (*places, width)))
    if config.class_token:
        rows.append(Row("cls", "class_token/token", (1, 1, width)))
    for i in range(config.depth):
        name, path = f"{_BLOCK}{i}", f"block_{i}"
        rows += norm_rows(f"{name}/LayerNorm_0", f"{path}/norm1", width)
        rows += attention_and_mlp_rows(f"{name}/", "LayerNorm_1", f"{path}/", "norm2", config)
    rows += norm_rows("Transformer/encoder_norm", "encoder_norm", width)
    if config.pooling == "map":
        rows.append(Row("MAPHead_0/probe", "pooling/probe", (1, 1, width)))
        rows += attention_and_mlp_rows("MAPHead_0/", "LayerNorm_0", "pooling/", "norm", config)
    features = config.representation_size or width
    if config.representation_size:
        rows += dense_rows("pre_logits", "pre_logits", width, features)
    if config.projection:
        rows += dense_rows("head", "projection", width, config.projection)
    elif config.classes:
        rows += dense_rows("head", "head", features, config.classes)
    if layout == "vit_jax":
        rows = [dataclasses.replace(row, name=_in_block(row.name, _PUBLISHED)) for row in rows]
    return rows


def attention_and_mlp_rows(
    name: str, norm: str, path: str, norm_path: str, config: ViTConfig | TextConfig
) -> list[Row]:
    """The rows of attention, of the normalisation after it, and of the MLP."""
    width, heads, size = config.width, config.heads, config.head_size
    attention, rows = f"{name}MultiHeadDotProductAttention_0", []
    for part in ("query", "key", "value"):
        rows += dense_rows(f"{attention}/{part}", f"{path}attention/{part}", width, heads, size)
    rows.append(Row(f"{attention}/out/kernel", f"{path}attention/out/kernel", (heads, size, width)))
    rows.append(Row(f"{attention}/out/bias", f"{path}attention/out/bias", (width,)))
    rows += norm_rows(f"{name}{norm}", f"{path}{norm_path}", width)
    rows += dense_rows(f"{name}MlpBlock_0/Dense_0", f"{path}mlp/fc1", width, config.mlp_width)
    return rows + dense_rows(f"{name}MlpBlock_0/Dense_1", f"{path}mlp/fc2", config.mlp_width, width)


def dense_rows(name: str, path: str, into: int, *out: int) -> list[Row]:
    """The rows of a dense layer, whose kernel may have more axes than two."""
    return [Row(f"{name}/kernel", f"{path}/kernel", (into, *out)), Row(f"{name}/bias", f"{path}/bias", out)]


def norm_rows(name: str, path: str, *shape: int) -> list[Row]:
    """The rows of a normalisation."""
    return [Row(f"{name}/scale", f"{path}/gamma", shape), Row(f"{name}/bias", f"{path}/beta", shape)]


def _stem(config: ViTConfig) -> list[Row]:
    """The ResNet of the hybrids. Published files give group normalisation four axes (Flax before 0.3.6)."""
    rows = []
    for conv in convolutions(config):
        path, norm = conv.unit_path, conv.layer.replace("conv", "gn")
        name, kernel = path.replace("_", "/"), (conv.size, conv.size, conv.inputs, conv.filters)
        rows.append(Row(f"{name}{conv.layer}/kernel", f"{path}{conv.layer}/kernel", kernel))
        rows += norm_rows(f"{name}{norm}", f"{path}{norm}", 1, 1, 1, conv.filters)
    return rows


def _in_block(name: str, modules: Mapping[str, str]) -> str:
    return _IN_BLOCK.sub(lambda match: f"{match[1]}{modules.get(match[2], match[2])}{match[3]}", name)


# Reading


def _prefixes(names: Collection[str]) -> set[str]:
    """What stands before the models that a file holds."""
    starts = (f"{_BLOCK}0/LayerNorm_0/scale", f"{_STACK}LayerNorm_0/scale")
    patches = [name for name in names if name == _PATCHES or name.endswith(f"/{_PATCHES}")]
    prefixes = {name.removesuffix(_PATCHES) for name in patches}
    return {prefix for prefix in prefixes if any(f"{prefix}{start}" in names for start in starts)}


def best_prefix(prefixes: set[str]) -> str:
    """The prefix that loaders know best, else the first."""
    return next((prefix for prefix in _PREFIXES if prefix in prefixes), min(prefixes))


def check_single(prefixes: set[str]) -> None:
    """Raises ValueError for several models whose prefixes no loader knows."""
    if len(prefixes) > 1 and not prefixes & {*_PREFIXES}:
        raise ValueError(f"The file holds several models, under the prefixes {sorted(prefixes)}; keep one of them.")


def model_under(prefix: str, file: Mapping[str, StoredArray]) -> Arrays:
    """The model's arrays by their names after the prefix."""
    inside = {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}
    # Under a prefix lies the model and nothing else; without one, other things may stand beside it.
    return {name: array for name, array in inside.items() if prefix or not _BESIDE.fullmatch(name)}


def _mixers(names: Collection[str]) -> set[str]:
    return {name.removesuffix(mixer.FLAX_ANCHOR) for name in names if name.endswith(mixer.FLAX_ANCHOR)}


def recognise(names: Collection[str], sidecars: Sidecars, layout: str) -> bool:
    """Whether a model of vit_jax, or of big_vision, is among the arrays."""
    if _mixers(names):
        return layout == "vit_jax"
    prefixes = _prefixes(names)
    if not prefixes:
        return False
    prefix = best_prefix(prefixes)
    inside = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return _is_big_vision(inside) == (layout == "big_vision")


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars, layout: str) -> Plan:
    """The plan by which a model in Flax's names is read; ValueError for models that are not computed here."""
    mixers = _mixers(file)
    check_single(mixers or _prefixes(file))
    if mixers:
        return _plan_of_mixer(file, best_prefix(mixers), sidecars.grid_size)
    prefix = best_prefix(_prefixes(file))
    arrays = model_under(prefix, file)
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    arrays, dialect = in_linen(arrays)
    of_two = prefix.endswith("img/") and f"{prefix.removesuffix('img/')}txt/Embed_0/embedding" in file
    remarks: list[Remark] = []
    is_naflex = layout == "big_vision" and len(arrays[_PATCHES].shape) == 2
    if is_naflex:
        stored = _naflex_config(arrays, of_two)
        grid = stored.grid_size
    elif layout == "vit_jax":
        grid = accounting.squarest_grid(shape_of(arrays, _VIT_JAX_POSITION, 3)[1] - ("cls" in arrays))
        stored = config(arrays, grid, "learned", of_two)
        arrays = {_in_block(name, _PUBLISHED): array for name, array in arrays.items()}
    else:
        for old in _OLD_POSITIONS:
            if old in arrays and _POSITION not in arrays:
                arrays = {_POSITION if name == old else name: array for name, array in arrays.items()}
        grid, table, remarks = _grid(arrays, sidecars.grid_size)
        position = "sincos2d"
        if table is not None:
            arrays = {**arrays, _POSITION: table}
            has_token_row = table.shape[1] > math.prod(grid)
            # Without a class token the two kinds are the same.
            position = "learned" if has_token_row or "cls" not in arrays else "learned_patches"
        stored = config(arrays, grid, position, of_two)
    return Plan(
        layout=VIT_JAX if layout == "vit_jax" else BIG_VISION,
        dialect=dialect,
        prefix=prefix,
        stored=stored,
        arrays=arrays,
        unused=unused,
        warnings=remarks,
        is_grid_known=is_naflex or grid[0] == grid[1] or not stored.position_rows,
        head=("head/bias", "head/kernel"),
    )


def _plan_of_mixer(file: Mapping[str, StoredArray], prefix: str, grid: tuple[int, int] | None) -> Plan:
    """The plan by which an MLP-Mixer in Flax's names is read; ValueError for arrays that no Mixer has."""
    arrays = model_under(prefix, file)
    stored, is_old = mixer.flax_config(arrays, grid)
    rows = functools.partial(mixer.flax_rows, old=is_old)
    return Plan(
        layout=dataclasses.replace(VIT_JAX, rows=rows) if is_old else VIT_JAX,
        dialect="old" if is_old else "published",
        prefix=prefix,
        stored=stored,
        arrays=arrays,
        unused=sorted(file.keys() - {array.name for array in arrays.values()}),
        is_grid_known=stored.grid_size[0] == stored.grid_size[1],
        head=("head/bias", "head/kernel"),
    )


def _is_big_vision(names: Iterable[str]) -> bool:
    """Whether a Flax model is of this layout and not of vit_jax, whose models know but one way to hold positions."""
    names = set(names)
    if names & {"MAPHead_0/probe", "probe", _POSITION, _OLD_POSITIONS[1]} or any(n.startswith(_STACK) for n in names):
        return True
    # Without any position embeddings: computed ones, unless the file is a vit_jax one that lacks an array.
    return _VIT_JAX_POSITION not in names and _is_linen(names) and "conv_root/kernel" not in names


def _is_linen(names: Iterable[str]) -> bool:
    return any(f"/{module}/" in name for name in names for module in _PUBLISHED if module != "LayerNorm_1")


def in_linen(arrays: Arrays) -> tuple[Arrays, str]:
    """The arrays by Linen's names, block by block, and what the file's own names are."""
    dialect = "Linen" if _is_linen(arrays) else "published"
    if any(name.startswith(_STACK) for name in arrays):
        arrays, dialect = _unstacked(arrays), "stacked"
    elif dialect == "published":
        arrays = renamed(arrays, lambda name: _in_block(name, _LINEN))
    pools = "probe" in arrays or "MAPHead_0/probe" in arrays

    def pooling(name: str) -> str:
        match = _POOLING.fullmatch(name) if pools else None
        return name if match is None else f"MAPHead_0/{f'{match[3]}0{match[4]}' if match[3] else match[2]}"

    return renamed(arrays, pooling), dialect


def renamed(arrays: Arrays, name: Callable[[str], str]) -> Arrays:
    """The arrays by other names; ValueError where two of them become the same."""
    new = {name(old): array for old, array in arrays.items()}
    if len(new) < len(arrays):
        raise ValueError("It has several arrays whose names differ in nothing but a number that has no meaning.")
    return new


def _unstacked(arrays: Arrays) -> Arrays:
    """The same with each array of all blocks as one array per block, of which only its part is read."""
    depth = bounded(shape_of(arrays, f"{_STACK}LayerNorm_0/scale", 2)[0])
    single = {}
    for name, array in arrays.items():
        if name.startswith(_STACK) and array.shape[:1] == (depth,):
            shape = array.shape[1:]
            for i in range(depth):
                single[name.replace(_STACK, f"{_BLOCK}{i}/")] = array.piece(i * math.prod(shape), shape)
        else:
            single[name] = array
    return single


# Configs


def config(arrays: Arrays, grid: tuple[int, int], position: str, of_two: bool) -> ViTConfig:
    """The model that the arrays' shapes tell of; the head of an image tower beside a text tower is a projection."""
    height, width, channels, hidden = shape_of(arrays, _PATCHES, 4)
    fields: dict[str, Any] = {
        field: shape_of(arrays, f"{name}/kernel", 2)[1]
        for field, name in (("representation_size", "pre_logits"), ("projection" if of_two else "classes", "head"))
        if f"{name}/kernel" in arrays
    }
    step = 1  # any size that divides will do until the grid is known
    if "conv_root/kernel" in arrays:
        _, _, channels, fields["stem_width"] = shape_of(arrays, "conv_root/kernel", 4)
        fields["stem_stages"] = stages(arrays)
        step = 4 * 2 ** len(fields["stem_stages"])
    fields["projection_bias"] = "projection" in fields
    numbers = re.findall(rf"^{_BLOCK}(\d+)/", "\n".join(arrays), re.MULTILINE)
    token = "cls" in arrays
    config = ViTConfig(
        image_size=(height * step, width * step),
        patch_size=(height, width),
        width=hidden,
        depth=bounded(1 + max(int(number) for number in numbers)),
        heads=shape_of(arrays, f"{_BLOCK}0/MultiHeadDotProductAttention_0/query/kernel", 3)[1],
        mlp_width=shape_of(arrays, f"{_BLOCK}0/MlpBlock_0/Dense_0/kernel", 2)[1],
        channels=channels,
        class_token=token,
        position_embedding=position,
        pooling="map" if "MAPHead_0/probe" in arrays else "token" if token else "avg",
        **fields,
    )
    return config.replace(image_size=config.image_size_of(grid))


def _naflex_config(arrays: Arrays, of_two: bool) -> ViTConfig:
    """The model of a NaFlex file; ValueError for one that has other parts than the published ones."""
    rows, columns, _ = shape_of(arrays, _POSITION, 3)
    if rows == 1 < columns:
        raise ValueError(f"its patches go through a matrix, but {_POSITION!r} has no rows and columns of patches.")
    values, width = shape_of(arrays, _PATCHES, 2)
    kernel = dataclasses.replace(arrays[_PATCHES], shape=(*square_patch(values), 3, width))  # that of a convolution
    found = config({**arrays, _PATCHES: kernel}, (rows, columns), "learned", of_two).replace(**naflex.BIG_VISION)
    if not naflex.is_naflex(found):
        raise ValueError("its patches go through a matrix, but it is no NaFlex: a class token, or no 'MAPHead_0'.")
    return found


def _grid(arrays: Arrays, known: tuple[int, int] | None) -> tuple[tuple[int, int], StoredArray | None, list[Remark]]:
    """The grid of patches of a big_vision model, the table of position embeddings, and what a user should know.

    A class token's row without a class token is taken away.
    """
    if _POSITION not in arrays:
        if known:
            return known, None, []
        height, width, *_ = shape_of(arrays, _PATCHES, 4)
        grid = (max(round(_DEFAULT_SIZE / height), 1), max(round(_DEFAULT_SIZE / width), 1))
        words = "its position embeddings are computed, so the file does not tell the image size"
        guess = f"{grid[0] * height} x {grid[1] * width}"
        return grid, None, [Remark(f"{words}; {guess} is a guess", "image_size")]
    table, (_, rows, width) = arrays[_POSITION], shape_of(arrays, _POSITION, 3)
    patches = rows - 1 if rows > 1 and math.isqrt(rows - 1) ** 2 == rows - 1 else rows
    if known and math.prod(known) in (rows, rows - 1):
        patches = math.prod(known)
    grid = accounting.squarest_grid(patches)
    if patches == rows or "cls" in arrays:
        return grid, table, []
    text = "the first row of its position embeddings is of a class token that it has not"
    return grid, table.piece(width, (1, patches, width)), [Remark(text)]


def stages(arrays: Arrays, pattern: str = r"^block(\d+)/unit(\d+)/") -> tuple[int, ...]:
    """How many units each stage of the ResNet has, by the numbers in names; ValueError if numbers are left out."""
    units = {(int(s), int(u)) for s, u in re.findall(pattern, "\n".join(arrays), re.MULTILINE)}
    highest = bounded(max(map(max, units), default=0))
    if highest > len(units):
        raise ValueError(f"It has {len(units)} units, but their numbers go up to {highest}.")
    stages = max((stage for stage, _ in units), default=0)
    return tuple(max((u for s, u in units if s == stage), default=1) for stage in range(1, stages + 1))


# What the models of vit_jax and big_vision all have.
_COMMON = accounting.plain_values(
    *("stem_epsilons", "patch_bias", "distillation_token", "register_tokens", "rotary_embedding", "pre_norm"),
    *("attention_bias", "attention_norm", "mlp", "gelu", "layer_scale", "layer_norm_epsilon", "final_norm"),
    *("projection", "pooling_heads", "pooling_mlp_width"),
)
FOLDED = "its kernels have been standardised by folded(): write the model that it was made from"


def _check_writable(config: ViTConfig, layout: str) -> None:
    check_fields(config, repr(layout), _COMMON, _problems(config, layout))


def _problems(config: ViTConfig, layout: str) -> Iterator[str]:
    """Yields the reasons for which a layout has no place for a model."""
    token, position, mixes = config.class_token, config.position_embedding, config.tokens_mlp_width is not None
    if config.stem_folded:
        yield FOLDED
    if config.classes and config.pooling == "none":
        yield "it has a head for every token"
    if config.pooling == "map" and token and not config.map_prefix:
        yield "its attention pooling leaves the token out"
    if position in ("learned_without_registers", "none") and not mixes:
        yield f"position_embedding={position!r}"
    if mixes and layout == "big_vision":
        yield "an MLP-Mixer, but 'vit_jax' has"
    if mixes and config.representation_size:
        yield "an MLP-Mixer with pre-logits"
    poolings = ("token",) if token else ("avg",) if layout == "vit_jax" else ("avg", "map")
    if config.pooling not in (*poolings, "none"):
        yield f"pooling={config.pooling!r} {'with' if token else 'without'} a class token"
    if layout == "vit_jax" and position == "sincos2d":
        yield "position_embedding='sincos2d', but 'big_vision' has"
    if layout == "big_vision" and config.stem_stages is not None:
        yield "a ResNet, but 'vit_jax' has"
    if layout == "big_vision" and naflex.is_naflex(config):
        yield from naflex.problems(config)


def _restate_big_vision(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
    """Keeps the class token's position where big_vision's loader understands it, with n^2 patches; else adds it."""
    if not (config.class_token and config.position_embedding == "learned"):
        return config, {}
    table, token = read(TABLE), read("class_token/token")
    row, patches = table[:, :1], table[:, 1:]
    if row.any() and math.isqrt(patches.shape[1]) ** 2 == patches.shape[1]:
        return config, {}
    changed = {TABLE: patches, "class_token/token": np.where(row == 0, token, token + row)}
    return config.replace(position_embedding="learned_patches"), changed


def _layout(name: str, restate: Any, **functions: Any) -> Layout:
    """A layout whose functions know its name."""
    return Layout(
        name,
        functools.partial(_rows, layout=name),
        functools.partial(recognise, layout=name),
        functools.partial(plan, layout=name),
        functools.partial(_check_writable, layout=name),
        restate,
        **functions,
    )


VIT_JAX = _layout("vit_jax", accounting.with_prefix_positions)
BIG_VISION = _layout(
    "big_vision",
    _restate_big_vision,
    stacked=lambda name: re.sub(rf"^{_BLOCK}\d+/", _STACK, name),
    unstated=lambda config: naflex.BIG_VISION if naflex.is_naflex(config) else {},
)
# Beside a text tower, the head of an image tower is a projection to the texts' space.
IMAGE_TOWER = dataclasses.replace(
    BIG_VISION,
    check_writable=lambda config: _check_writable(config.replace(projection=None, projection_bias=False), "big_vision"),
)
