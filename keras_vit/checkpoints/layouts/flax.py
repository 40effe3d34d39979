"""The layouts of Flax and of the published `.npz` files: vit_jax, big_vision's `models/vit.py`, MLP-Mixer, and BiT.

Published files of vit_jax number all modules of a block with one counter; Linen has one counter per class, as the
functions below. In big_vision, positions are for patches only or computed, and blocks may be stacked (`scan=True`). Its
old files are read as its loader reads them; a class token's row stays in the table, which computes the same.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import TABLE, Layout, Notice, Plan, Row, renamed, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts.pytorch import is_naflex, patch_shape, square_patch
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import BiTConfig, TextConfig, ViTConfig, convolutions

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
_UNITS = r"^block(\d+)/unit(\d+)/"  # of a ResNet
_MIXER_ANCHOR = "MixerBlock_0/channel_mixing/Dense_0/kernel"
# What big_vision computes in a NaFlex, which resizes pictures to floats; no array tells it.
_NAFLEX = {"interpolation": "bilinear_antialias", "filter": "bilinear_antialias"}


def _flax_rows(config: ViTConfig, layout: str) -> list[Row]:
    """Returns the rows of a ViT or an MLP-Mixer in the names of `"big_vision"`, or in the published ones of vit_jax."""
    if config.tokens_mlp_width is not None:
        return _mixer_rows(config)
    rows = _stem(config) if config.stem_stages is not None else []
    width = config.width
    is_flat = layout == "big_vision" and is_naflex(config)
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
        rows += block_rows(f"{_BLOCK}{i}/", f"block_{i}/", config)
    rows += norm_rows("Transformer/encoder_norm", "encoder_norm", width)
    if config.pooling == "map":
        rows += attention_pooling_rows(config)
    features = config.representation_size or width
    if config.representation_size:
        rows += dense_rows("pre_logits", "pre_logits", width, features)
    if config.projection:
        *rest, bias = dense_rows("head", "projection", width, config.projection)
        rows += [*rest, bias if config.projection_bias else dataclasses.replace(bias, path=None)]
    elif config.classes:
        rows += dense_rows("head", "head", features, config.classes)
    if layout == "vit_jax":
        rows = [dataclasses.replace(row, name=_in_block(row.name, _PUBLISHED)) for row in rows]
    return rows


def block_rows(name: str, path: str, config: ViTConfig | TextConfig) -> list[Row]:
    """The rows of a block; `name` and `path` are what stands before its parts in the file and the model."""
    first = norm_rows(f"{name}LayerNorm_0", f"{path}norm1", config.width)
    return first + attention_and_mlp_rows(name, "LayerNorm_1", path, "norm2", config)


def attention_and_mlp_rows(
    name: str, norm: str, path: str, norm_path: str, config: ViTConfig | TextConfig
) -> list[Row]:
    """Returns the rows of attention, of the normalisation after it, and of the MLP."""
    width, heads, size = config.width, config.heads, config.head_size
    attention, rows = f"{name}MultiHeadDotProductAttention_0", []
    for part in ("query", "key", "value"):
        rows += dense_rows(f"{attention}/{part}", f"{path}attention/{part}", width, heads, size)
    rows.append(Row(f"{attention}/out/kernel", f"{path}attention/out/kernel", (heads, size, width)))
    rows.append(Row(f"{attention}/out/bias", f"{path}attention/out/bias", (width,)))
    rows += norm_rows(f"{name}{norm}", f"{path}{norm_path}", width)
    rows += dense_rows(f"{name}MlpBlock_0/Dense_0", f"{path}mlp/fc1", width, config.mlp_width)
    return rows + dense_rows(f"{name}MlpBlock_0/Dense_1", f"{path}mlp/fc2", config.mlp_width, width)


def attention_pooling_rows(config: ViTConfig | TextConfig) -> list[Row]:
    """The rows of attention pooling: the probe, attention, a normalisation and an MLP."""
    probe = Row("MAPHead_0/probe", "pooling/probe", (1, 1, config.width))
    return [probe, *attention_and_mlp_rows("MAPHead_0/", "LayerNorm_0", "pooling/", "norm", config)]


def dense_rows(name: str, path: str, into: int, *out: int) -> list[Row]:
    """The rows of a dense layer: a kernel `(into, *out)` and a bias `out`."""
    return [Row(f"{name}/kernel", f"{path}/kernel", (into, *out)), Row(f"{name}/bias", f"{path}/bias", out)]


def norm_rows(name: str, path: str, *shape: int) -> list[Row]:
    """The rows of a normalisation: scale and bias, both of this shape."""
    return [Row(f"{name}/scale", f"{path}/gamma", shape), Row(f"{name}/bias", f"{path}/beta", shape)]


def _stem(config: ViTConfig) -> list[Row]:
    """Returns the rows of a hybrid's ResNet. Published files have group normalisation of four axes (old Flax)."""
    rows = []
    for conv in convolutions(config):
        path, norm = conv.unit_path, conv.layer.replace("conv", "gn")
        name, kernel = path.replace("_", "/"), (conv.size, conv.size, conv.inputs, conv.filters)
        rows.append(Row(f"{name}{conv.layer}/kernel", f"{path}{conv.layer}/kernel", kernel))
        rows += norm_rows(f"{name}{norm}", f"{path}{norm}", 1, 1, 1, conv.filters)
    return rows


def _mixer_rows(config: ViTConfig, old: bool = False) -> list[Row]:
    # The official code has had two spellings of the perceptron across tokens: dense layers in a module `token_mixing`,
    # which published files have, and (`old`) arrays of the block itself, with the length of their input in their names.
    width, tokens, mixed = config.width, math.prod(config.grid_size), config.tokens_mlp_width or 0
    rows = [Row("stem/kernel", "embedding/kernel", (*config.patch_size, config.channels, width))]
    rows.append(Row("stem/bias", "embedding/bias", (width,)))
    for i in range(config.depth):
        name, path = f"MixerBlock_{i}", f"block_{i}"
        for number, (into, out) in enumerate(((tokens, mixed), (mixed, tokens))):
            layer = f"{path}/token_mixing/fc{number + 1}"
            if old:
                rows.append(Row(f"{name}/kernel{into}", f"{layer}/kernel", (into, out)))
                rows.append(Row(f"{name}/bias{into}", f"{layer}/bias", (1, out, 1)))
            else:
                rows += dense_rows(f"{name}/token_mixing/Dense_{number}", layer, into, out)
            rows += norm_rows(f"{name}/LayerNorm_{number}", f"{path}/norm{number + 1}", width)
        rows += dense_rows(f"{name}/channel_mixing/Dense_0", f"{path}/mlp/fc1", width, config.mlp_width)
        rows += dense_rows(f"{name}/channel_mixing/Dense_1", f"{path}/mlp/fc2", config.mlp_width, width)
    rows += norm_rows("pre_head_layer_norm", "encoder_norm", width)
    return rows + (dense_rows("head", "head", width, config.classes) if config.classes else [])


def _in_block(name: str, modules: Mapping[str, str]) -> str:
    """The name of an array with the module within a block called as `modules` says; others as they are."""
    return _IN_BLOCK.sub(lambda match: f"{match[1]}{modules.get(match[2], match[2])}{match[3]}", name)


def _prefixes(names: Collection[str]) -> set[str]:
    starts = (f"{_BLOCK}0/LayerNorm_0/scale", f"{_STACK}LayerNorm_0/scale")
    patches = [name for name in names if name == _PATCHES or name.endswith(f"/{_PATCHES}")]
    prefixes = {name.removesuffix(_PATCHES) for name in patches}
    return {prefix for prefix in prefixes if any(f"{prefix}{start}" in names for start in starts)}


def _mixer_prefixes(names: Collection[str]) -> set[str]:
    return {name.removesuffix(_MIXER_ANCHOR) for name in names if name.endswith(_MIXER_ANCHOR)}


def _best_prefix(prefixes: set[str]) -> str:
    """The prefix that loaders know best, else the first of the alphabet; there is at least one."""
    return next((prefix for prefix in _PREFIXES if prefix in prefixes), min(prefixes))


def _model_in(file: Mapping[str, StoredArray], prefixes: set[str]) -> tuple[str, Arrays]:
    """Returns the prefix of the model that is read, and the model's arrays by their names after it."""
    if len(prefixes) > 1 and not prefixes & {*_PREFIXES}:
        raise ValueError(f"The file has several models, with the prefixes {sorted(prefixes)}. Keep only one of them.")
    prefix = _best_prefix(prefixes)
    inside = {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}
    # Under a prefix lies the model and nothing else; without one, other things may stand beside it.
    return prefix, {name: array for name, array in inside.items() if prefix or not _BESIDE.fullmatch(name)}


def _recognise(names: Collection[str], sidecars: Sidecars, layout: str) -> bool:
    """Returns whether a model of `layout`, `"vit_jax"` or `"big_vision"`, is among the arrays; Mixers are vit_jax's."""
    if _mixer_prefixes(names):
        return layout == "vit_jax"
    prefixes = _prefixes(names)
    if not prefixes:
        return False
    prefix = _best_prefix(prefixes)
    inside = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return _is_big_vision(inside) == (layout == "big_vision")


def _flax_plan(file: Mapping[str, StoredArray], sidecars: Sidecars, layout: str) -> Plan:
    mixers = _mixer_prefixes(file)
    prefix, arrays = _model_in(file, mixers or _prefixes(file))
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    read_as, warnings, is_grid_known = (VIT_JAX if layout == "vit_jax" else BIG_VISION), [], True
    if mixers:
        stored, is_old = _mixer_config(arrays, sidecars)
        if is_old:
            read_as = dataclasses.replace(VIT_JAX, rows=functools.partial(_mixer_rows, old=True))
        dialect, is_grid_known = "old" if is_old else "published", stored.grid_size[0] == stored.grid_size[1]
    else:
        arrays, dialect = in_linen(arrays)
        of_two = prefix.endswith("img/") and f"{prefix.removesuffix('img/')}txt/Embed_0/embedding" in file
        if layout == "big_vision" and len(arrays[_PATCHES].shape) == 2:
            stored = _naflex_config(arrays, of_two)
        elif layout == "vit_jax":
            grid = accounting.squarest_grid(shape_of(arrays, _VIT_JAX_POSITION, 3)[1] - ("cls" in arrays))
            stored = _flax_config(arrays, grid, "learned", of_two)
            arrays = {_in_block(name, _PUBLISHED): array for name, array in arrays.items()}
            is_grid_known = grid[0] == grid[1]
        else:
            arrays, grid, position, warnings = _big_vision_positions(arrays, sidecars)
            stored = _flax_config(arrays, grid, position, of_two)
            is_grid_known = grid[0] == grid[1] or not stored.position_rows
    return Plan(
        layout=read_as,
        dialect=dialect,
        prefix=prefix,
        stored=stored,
        arrays=arrays,
        unused=unused,
        warnings=warnings,
        is_grid_known=is_grid_known,
    )


def _is_big_vision(names: set[str]) -> bool:
    """Returns whether a ViT of Flax is big_vision's and not vit_jax's, which knows but one way to hold positions."""
    if names & {"MAPHead_0/probe", "probe", _POSITION, _OLD_POSITIONS[1]} or any(n.startswith(_STACK) for n in names):
        return True
    # Without any position embeddings: computed ones, unless the file is a vit_jax one that lacks an array.
    return _VIT_JAX_POSITION not in names and _is_linen(names) and "conv_root/kernel" not in names


def _is_linen(names: Iterable[str]) -> bool:
    return any("/MultiHeadDotProductAttention_0/" in name or "/MlpBlock_0/" in name for name in names)


def in_linen(arrays: Arrays) -> tuple[Arrays, str]:
    """Returns the arrays by Linen's names, block by block, and the file's names: Linen, published or stacked."""
    dialect = "Linen" if _is_linen(arrays) else "published"
    if any(name.startswith(_STACK) for name in arrays):
        arrays, dialect = _unstacked(arrays), "stacked"
    elif dialect == "published":
        arrays = renamed(arrays, lambda name: _in_block(name, _LINEN))
    if not arrays.keys() & {"probe", "MAPHead_0/probe"}:
        return arrays, dialect

    def in_pooling(name: str) -> str:
        match = _POOLING.fullmatch(name)
        if match is None:
            return name
        return f"MAPHead_0/{match[3]}0{match[4]}" if match[3] else f"MAPHead_0/{match[2]}"

    return renamed(arrays, in_pooling), dialect


def _unstacked(arrays: Arrays) -> Arrays:
    """Returns the arrays with one per block in place of each stacked one, of which only its part is read."""
    depth = accounting.bounded(shape_of(arrays, f"{_STACK}LayerNorm_0/scale", 2)[0])
    single = {}
    for name, array in arrays.items():
        if name.startswith(_STACK) and array.shape[:1] == (depth,):
            shape = array.shape[1:]
            for i in range(depth):
                single[name.replace(_STACK, f"{_BLOCK}{i}/")] = array.piece(i * math.prod(shape), shape)
        else:
            single[name] = array
    return single


def _flax_config(arrays: Arrays, grid: tuple[int, int], position: str, of_two: bool) -> ViTConfig:
    """Returns the config that the shapes of a ViT's arrays tell, for a grid of patches and a kind of positions."""
    height, width, channels, hidden = patch_shape(arrays, _PATCHES)
    fields: dict[str, Any] = {}
    if "pre_logits/kernel" in arrays:
        fields["representation_size"] = shape_of(arrays, "pre_logits/kernel", 2)[1]
    if "head/kernel" in arrays:
        fields["projection" if of_two else "classes"] = shape_of(arrays, "head/kernel", 2)[1]
    step = 1  # any size that divides will do until the grid is known
    if "conv_root/kernel" in arrays:
        _, _, channels, fields["stem_width"] = shape_of(arrays, "conv_root/kernel", 4)
        fields["stem_stages"] = accounting.stages_of(arrays, _UNITS, first=1)
        step = 4 * 2 ** len(fields["stem_stages"])
    pooling = "token" if "cls" in arrays else "avg"
    config = ViTConfig(
        image_size=(height * step, width * step),
        patch_size=(height, width),
        width=hidden,
        depth=accounting.depth_of(arrays, _BLOCK),
        **sizes_of_block(arrays, f"{_BLOCK}0/"),
        channels=channels,
        class_token="cls" in arrays,
        position_embedding=position,
        pooling="map" if "MAPHead_0/probe" in arrays else pooling,
        projection_bias="projection" in fields,
        **fields,
    )
    return config.replace(image_size=config.image_size_of(grid))


def sizes_of_block(arrays: Mapping[str, StoredArray], block: str, mlp: str = "MlpBlock_0") -> dict[str, Any]:
    """The fields of a config that the arrays of a block tell."""
    heads = shape_of(arrays, f"{block}MultiHeadDotProductAttention_0/query/kernel", 3)[1]
    return {"heads": heads, "mlp_width": shape_of(arrays, f"{block}{mlp}/Dense_0/kernel", 2)[1]}


def _naflex_config(arrays: Arrays, of_two: bool) -> ViTConfig:
    """Returns the config of a NaFlex file (`of_two` as for `_flax_config`)."""
    rows, columns, _ = shape_of(arrays, _POSITION, 3)
    if rows == 1 < columns:
        raise ValueError(f"The array {_POSITION!r} of a NaFlex must be a grid, but its shape is (1, {columns}, ...).")
    values, width = shape_of(arrays, _PATCHES, 2)
    kernel = dataclasses.replace(arrays[_PATCHES], shape=(*square_patch(values), 3, width))  # that of a convolution
    found = _flax_config({**arrays, _PATCHES: kernel}, (rows, columns), "learned", of_two).replace(**_NAFLEX)
    if not is_naflex(found):
        raise ValueError("A model with linear patches must be a NaFlex, with 'MAPHead_0' and without a class token.")
    return found


def _big_vision_positions(arrays: Arrays, sidecars: Sidecars) -> tuple[Arrays, tuple[int, int], str, list[Notice]]:
    """Returns what tells the positions of a big_vision model, whose size the user may know."""
    # These are the arrays with the table under today's name, and without a class token's row that no class token has;
    # the grid; the kind of positions (a `ViTConfig.position_embedding`); and what a user should know.
    for old in _OLD_POSITIONS:
        if old in arrays and _POSITION not in arrays:
            arrays = {_POSITION if name == old else name: array for name, array in arrays.items()}
    patch, known = patch_shape(arrays, _PATCHES)[:2], sidecars.grid_size
    if _POSITION not in arrays:
        grid, notice = accounting.guessed_grid(patch)
        return arrays, known or grid, "sincos2d", [] if known else [notice]
    _, rows, width = shape_of(arrays, _POSITION, 3)
    patches = rows - (accounting.rows_before_patches(rows, (1, 0) if rows > 1 else (0,), sidecars, patch) or 0)
    grid = accounting.squarest_grid(patches)
    if "cls" in arrays:
        return arrays, grid, "learned_patches" if patches == rows else "learned", []
    if patches == rows:  # without a class token the two kinds are the same
        return arrays, grid, "learned", []
    text = "the first row of the position embeddings is ignored, because the model has no class token"
    table = arrays[_POSITION].piece(width, (1, patches, width))
    return {**arrays, _POSITION: table}, grid, "learned", [Notice(text)]


def _mixer_config(arrays: Arrays, sidecars: Sidecars) -> tuple[ViTConfig, bool]:
    """Returns the config of an MLP-Mixer, and whether its spelling is the old one."""
    height, width, channels, hidden = patch_shape(arrays, "stem/kernel")
    old = sorted({int(n) for n in re.findall(r"^MixerBlock_0/kernel(\d+)$", "\n".join(arrays), re.MULTILINE)})
    if old:  # whose names do not say which of two numbers is that of the patches
        grid = sidecars.grid_size or sidecars.grid_at_size((height, width))
        default_tokens = math.prod(grid or accounting.guessed_grid((height, width))[0])
        ranks = {n: (n == default_tokens, math.isqrt(n) ** 2 == n) for n in old}
        *_, mixed, tokens = sorted([0, *old], key=lambda n: ranks.get(n, ()))
        if len(old) != 2 or ranks[mixed] == ranks[tokens]:
            raise ValueError(f"The file may be for any of {old} patches. Pass grid_size=(rows, columns).")
    else:
        tokens, mixed = shape_of(arrays, "MixerBlock_0/token_mixing/Dense_0/kernel", 2)
    classes = shape_of(arrays, "head/kernel", 2)[1] if "head/kernel" in arrays else None
    sizes = {"width": hidden, "mlp_width": shape_of(arrays, _MIXER_ANCHOR, 2)[1], "tokens_mlp_width": mixed}
    fields = {"patch_size": (height, width), "channels": channels, "classes": classes, **sizes}
    return accounting.mixer_config(arrays, "MixerBlock_", tokens, fields), bool(old)


def _needs_of_big_vision(config: ViTConfig) -> dict[str, tuple[Any, ...]]:
    """`Layout.needs`: no ResNet, and a class token only where it is what goes on."""
    return {"stem_stages": (None,), **({"class_token": (False,)} if config.pooling == "map" else {})}


def _for_big_vision(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns a config and changed weights whose class token has no position in the table; unchanged where none has."""
    # The position stays where big_vision's loader understands it, with n^2 patches; else it is added to the token.
    if not (config.class_token and config.position_embedding == "learned"):
        return config, {}
    table, token = read(TABLE), read("class_token/token")
    row, patches = table[:, :1], table[:, 1:]
    if row.any() and math.isqrt(patches.shape[1]) ** 2 == patches.shape[1]:
        return config, {}
    changed = {TABLE: patches, "class_token/token": np.where(row == 0, token, token + row)}
    return config.replace(position_embedding="learned_patches"), changed


_NEEDS = {
    "pooling": ("token", "avg", "none"),
    "position_embedding": ("learned", "learned_patches", "learned_without_registers", "none"),
}


def _layout(name: str, rewritten: Any, **functions: Any) -> Layout:
    return Layout(
        name,
        functools.partial(_flax_rows, layout=name),
        functools.partial(_recognise, layout=name),
        functools.partial(_flax_plan, layout=name),
        rewritten,
        **functions,
    )


VIT_JAX = _layout("vit_jax", accounting.with_prefix_positions, needs=lambda config: _NEEDS)
BIG_VISION = _layout(
    "big_vision",
    _for_big_vision,
    stacked=lambda name: re.sub(rf"^{_BLOCK}\d+/", _STACK, name),
    needs=_needs_of_big_vision,
)


# BiT, the ResNet that the first paper compares with, in the names of the TensorFlow code that trained the published
# `bit_models/*.npz` (`bit_tf`), or of big_vision's `models/bit_paper.py` (`bit_bv`). The arrays are the same except for
# axes of length 1.

_CONV = "standardized_conv2d"
# What the two layouts call the model's layers, where that is another name.
_BIT_NAMES = {
    "bit_tf": {
        "conv_root": f"root_block/{_CONV}",
        "conv_proj": f"a/proj/{_CONV}",
        **{f"conv{i}": f"{letter}/{_CONV}" for i, letter in enumerate("abc", start=1)},
        **{f"gn{i}": f"{letter}/group_norm" for i, letter in enumerate("abc", start=1)},
        "norm_pre_head": "group_norm",
        "head": "head/conv2d",
    },
    "bit_bv": {"conv_root": "root_block/conv_root", "norm_pre_head": "norm-pre-head", "gamma": "scale", "beta": "bias"},
}
_BIT_TOP = {"bit_tf": "resnet/", "bit_bv": ""}


def _bit_name(path: str, layout: str) -> str:
    parts = [_BIT_NAMES[layout].get(part, part) for part in path.split("/")]
    name = re.sub(r"block(\d+)_unit(\d+)", lambda m: f"block{m[1]}/unit{int(m[2]):02d}", "/".join(parts))
    return f"{_BIT_TOP[layout]}{name}"


def _bit_rows(config: BiTConfig, layout: str) -> list[Row]:
    """Returns the rows of a BiT in a layout, for `"bit_tf"` with axes of length 1 where the older code has them."""
    shapes: dict[str, tuple[int, ...]] = {}
    vector, matrix = ((), (1, 1)) if layout == "bit_tf" else ((1, 1, 1), ())
    for conv in convolutions(config):
        shapes[f"{conv.unit_path}{conv.layer}/kernel"] = (conv.size, conv.size, conv.inputs, conv.filters)
        if conv.layer in ("conv1", "conv2", "conv3"):  # with a normalisation before it
            norm = f"{conv.unit_path}{conv.layer.replace('conv', 'gn')}"
            shapes |= {f"{norm}/gamma": (*vector, conv.inputs), f"{norm}/beta": (*vector, conv.inputs)}
    shapes |= {f"norm_pre_head/{weight}": (*vector, config.features) for weight in ("gamma", "beta")}
    if config.classes:
        shapes |= {"head/kernel": (*matrix, config.features, config.classes), "head/bias": (config.classes,)}
    return [Row(_bit_name(path, layout), path, shape) for path, shape in shapes.items()]


def _without_number(name: str) -> str:
    """A name without the number of a convolution, which some published files have; big_vision drops it too."""
    return re.sub(rf"/{_CONV}_\d+/", f"/{_CONV}/", name)


def _bit_prefixes(names: Collection[str], layout: str) -> set[str]:
    plain = [_without_number(name) for name in names]
    ends = [_bit_name(path, layout) for path in ("conv_root/kernel", "block1_unit1/conv1/kernel")]
    roots, units = ({name.removesuffix(end) for name in plain if name.endswith(end)} for end in ends)
    return {prefix for prefix in roots & units if not prefix or prefix.endswith("/")}


def _plan_of_bit(file: Mapping[str, StoredArray], sidecars: Sidecars, layout: str) -> Plan:
    top = _BIT_TOP[layout]
    prefix, arrays = _model_in(renamed(dict(file), _without_number), _bit_prefixes(file, layout))
    arrays = {name: array for name, array in arrays.items() if name.startswith(top)}
    is_numbered = any(array.name != f"{prefix}{name}" for name, array in arrays.items())
    head, axes = _bit_name("head/kernel", layout), 4 if layout == "bit_tf" else 2
    *_, channels, width = shape_of(arrays, _bit_name("conv_root/kernel", layout), 4)
    dialects = {"bit_tf": "published", "bit_bv": "big_vision"}
    stored = BiTConfig(
        stages=accounting.stages_of({name.removeprefix(top) for name in arrays}, _UNITS, first=1),
        width=width,
        channels=channels,
        dynamic=True,
        classes=shape_of(arrays, head, axes)[-1] if head in arrays else None,
    )
    return Plan(
        layout=BIT_TF if layout == "bit_tf" else BIT_BV,
        dialect="numbered" if is_numbered else dialects[layout],
        prefix=prefix,
        stored=stored,
        arrays=arrays,
        unused=sorted(file.keys() - {array.name for array in arrays.values()}),
    )


def _bit_layout(name: str) -> Layout:
    return Layout(
        name,
        functools.partial(_bit_rows, layout=name),
        lambda names, sidecars: bool(_bit_prefixes(names, name)),
        functools.partial(_plan_of_bit, layout=name),
        noted=("pool_padding",) if name == "bit_tf" else (),
        config_type=BiTConfig,
    )


BIT_TF, BIT_BV = _bit_layout("bit_tf"), _bit_layout("bit_bv")
