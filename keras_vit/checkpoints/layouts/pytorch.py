"""What the layouts of PyTorch's models share: which arrays are the model's, names of parts, rows, what arrays tell.

A `Family` is data: what one publisher calls the parts of a model. PyTorch stores a linear layer's matrix as (out, in)
and a convolution's kernel as (out, in, height, width); the rows say so, and `accounting` transposes.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.checkpoints import torch_file
from keras_vit.checkpoints.accounting import (
    TABLE,
    Notice,
    Plan,
    Row,
    depth_of,
    guessed_grid,
    is_of_head,
    listed,
    rows_before_patches,
    shape_of,
    squarest_grid,
)
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts.jsons import HALF, Fields, preparation
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import TextConfig, ViTConfig

LINEAR, CONVOLUTION = (1, 0), (2, 3, 1, 0)  # the order in which Keras has the axes
POOLED_ATTENTION = tuple(f"pooling/attention/{part}" for part in ("query", "key", "value"))
# What a layer scale starts from where nothing says it; a trained one is in the file.
LAYER_SCALE = 1e-5
# Heads by width, where a head has not 64 channels: So400m; everything H/14 with 16 x 80; g/14 with 16 x 88; DINOv2's
# giant with 24 x 64; bigG; DINOv3's 7B with 32 x 128.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 4096: 32}
HEADS_OF_DINOV3, HEADS_OF_SIGLIP = {**HEADS, 1280: 20}, {**HEADS, 1536: 16}

UNKNOWN_GELU = (
    "the GELU of this CLIP is not in the file: pass like='vit_base_patch16_clip_quickgelu_224' for the quick GELU "
    "(OpenAI, DFN, MetaCLIP) or 'vit_base_patch16_clip_224' for the exact GELU (LAION, DataComp), for any size"
)
UNPREPARED = "without config.json the preprocessing is assumed (mean, standard deviation and crop)"

# Which arrays of PyTorch's files are the model's

# The keys under which training checkpoints hold models and what belongs to a training, the preferred first: averages
# before what they are averages of, a teacher before its student, a target encoder before the one that follows it.
CONTAINERS = (
    *torch_file.CONTAINERS,
    *("predictor", "optimizer", "optimizer_state", "opt", "scaler", "fp16_scaler", "scheduler"),
    *("lr_scheduler", "loss", "criterion", "dino_loss", "ibot_patch_loss", "koleo_loss", "amp"),
)
# The other tower of a two-tower file, and what joins both.
_TEXT = re.compile(
    r"(text_model|text|transformer|token_embedding|ln_final)\..*|positional_embedding"
    r"|text_projection(\.weight|\.bias)?|logit_scale|logit_bias"
)
_LOSS = re.compile(r"(\w+_)?(loss|criterion)(_\w+)?\.")  # the weights of classes in a loss, by a training's name
_OTHER_MODELS = re.compile(r"(^|\.)(text|text_model|decoder)\.")


@dataclasses.dataclass(frozen=True)
class Found:
    """A model among the arrays of a file of PyTorch."""

    outer: str  # what stands before the model, such as `"model."`
    module: str  # such as `"visual."`
    arrays: dict[str, StoredArray]  # by their names without both; others under a name that no row has
    unused: list[str]  # names of arrays that have no effect on it


def prefixes_of(names: Iterable[str], anchor: str) -> set[str]:
    """What stands before each array `anchor`, which image models of a kind have; not those of other towers."""
    prefixes = {name.removesuffix(anchor) for name in names if name == anchor or name.endswith(f".{anchor}")}
    return {prefix for prefix in prefixes if not _OTHER_MODELS.search(prefix)}


def collect(file: Mapping[str, StoredArray], anchor: str, modules: Sequence[str], beside: str, top: str = "") -> Found:
    """Returns the model that has the array `anchor`, which is in the file, by the order of `CONTAINERS`."""
    prefixes = prefixes_of(file, anchor)
    order = ("", *CONTAINERS)
    firsts = {prefix: prefix.partition(".")[0] for prefix in prefixes}
    ranks = {prefix: order.index(first) if first in order else len(order) for prefix, first in firsts.items()}
    chosen = sorted(prefix for prefix in prefixes if ranks[prefix] == min(ranks.values()))
    if len(chosen) > 1:
        raise ValueError(f"The file has several models, with the prefixes {chosen}. Keep only one in the file.")
    prefix = chosen[0]
    module = next((module for module in modules if f".{prefix}".endswith(f".{module}")), "")
    outer = prefix.removesuffix(module)
    arrays, unused = {}, []
    for name, array in file.items():
        around = name.removeprefix(outer) if name.startswith(outer) else name
        other = re.fullmatch(beside, around) or (module and _TEXT.fullmatch(around))
        if name.startswith(prefix):
            arrays[name.removeprefix(prefix)] = array
        elif top and re.fullmatch(top, around) and around not in arrays:
            arrays[around] = array
        elif other or (not name.startswith(outer) and name.partition(".")[0] in CONTAINERS):
            unused.append(name)
        else:
            arrays[name] = array
    if len(arrays) + len(unused) < len(file):
        raise ValueError(f"The file has some arrays twice, with the prefix {prefix!r} and without. Keep one of each.")
    return Found(outer, module, arrays, unused)


def without_expected(plan: Plan, pattern: str) -> Plan:
    """Returns the plan, its arrays without a row counted as unused if they match a pattern; ValueError for others."""
    wanted = {row.name for row in plan.rows}
    strange, unused, heads = [], [], set()
    for name in plan.arrays.keys() - wanted:
        array = plan.arrays[name]
        # No weights are integers, such as `n_averaged`, and numbers beside a model.
        is_count = array.dtype.kind in "iub" or (array.shape == () and not array.name.startswith(plan.prefix or " "))
        if is_count or re.fullmatch(pattern, name) or _LOSS.match(name):
            unused.append(array.name)
        elif is_of_head(array, plan.prefix):  # which loading leaves out where no head is asked for
            heads.add(name)
        else:
            strange.append(array.name)
    if strange:
        missing = wanted - plan.arrays.keys()
        lacks = f" The file lacks: {listed(missing)}." if missing else ""
        raise ValueError(f"The file has arrays that are not part of a known model: {listed(strange)}.{lacks}")
    return dataclasses.replace(
        plan,
        arrays={name: array for name, array in plan.arrays.items() if name in wanted | heads},
        unused=sorted([*plan.unused, *unused]),
    )


# A head for classes beside a model, of one layer or several; not the heads of self-distillation.
_HEAD = re.compile(
    r"(head|heads|classifier|cls_head|fc|linear|linear_head)((\.\d+|\.fc|\.linear|\.classifier)*)"
    r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"
)


def with_head(found: Found, widths: Collection[int], name: str) -> Found:
    """Returns the model with the linear layer of a head, whatever a training called it, as `name`."""
    whole = {key: key.removeprefix(found.outer) for key in found.arrays}
    own = (f"{name}.weight", f"{name}.bias")
    theirs = [key for key, plain in whole.items() if _HEAD.fullmatch(plain) and key not in own]
    if not theirs:
        return found
    matrices = [key for key in theirs if len(found.arrays[key].shape) == 2 and found.arrays[key].shape[1] in widths]
    start = matrices[0].removesuffix("weight") if matrices else ""
    if len(matrices) != 1 or {*theirs} - {f"{start}weight", f"{start}bias"} or f"{name}.weight" in found.arrays:
        return found  # which may be loaded without its head
    new = {f"{start}{end}": f"{name}.{end}" for end in ("weight", "bias")}
    return dataclasses.replace(found, arrays={new.get(key, key): array for key, array in found.arrays.items()})


def plan_of(found: Found, trunk: "Trunk", pattern: str, beside: str, **fields: Any) -> Plan:
    """The plan by which a model that was found is read; `fields` are those of the plan that it does not tell."""
    of_trunk = {"warnings": trunk.warnings, "is_grid_known": trunk.is_grid_known}
    fields = {"arrays": found.arrays, "unused": found.unused, **of_trunk, **fields}
    plan = Plan(prefix=f"{found.outer}{found.module}", **fields)
    return without_expected(plan, pattern if found.module else rf"{pattern}|{beside}")


# What publishers call the parts

# In transformers' ViT, and in what is made like it.
TRANSFORMERS: dict[str, Any] = {
    "patches": "embeddings.patch_embeddings.projection",
    "class_token": "embeddings.cls_token",
    "register_tokens": "embeddings.register_tokens",
    "positions": "embeddings.position_embeddings",
    "blocks": "encoder.layer.",
    "scales": ("layer_scale1.lambda1", "layer_scale2.lambda1"),
    "norm": "layernorm",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Who publishes models, what they call the parts, and what they do where nothing says it."""

    title: str
    module: str = ""  # what stands before the names of the arrays, except for the head's
    patches: str = "patch_embed.proj"
    class_token: str = "cls_token"
    distillation_token: str = "dist_token"
    register_tokens: str = "reg_token"
    positions: str = "pos_embed"
    flat: bool = False  # whether class token and positions have no first axis of length 1
    pre_norm: str = "norm_pre"
    blocks: str = "blocks."  # what stands before the number of a block; `norms` to `scales` are in a block
    norms: tuple[str, ...] = ("norm1", "norm2")
    # Projections to queries, keys, values, and the output; or how the matrix that the first three share begins, and it.
    attention: tuple[str, ...] = ("attn.qkv.", "attn.proj")
    own_biases: tuple[str, ...] = ()  # of the three where they share a matrix and no bias
    attention_norm: str = "attn.norm"
    mlp: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")  # two for a SwiGLU mean that gate and value are one layer
    mlp_norm: str = "mlp.norm"
    scales: tuple[str, ...] = ("ls1.gamma", "ls2.gamma")
    norm: str = "norm"
    types: tuple[str, ...] = ()  # the `model_type`s of transformers whose models have these arrays
    mask_token: tuple[int, ...] | None = None  # first axes of the one that all models have; None where they need none
    activation: str = "gelu"  # `hidden_act` where nothing says it, as the next three
    epsilon: float = 1e-6
    heads: int = 12
    heads_by_width: Mapping[int, int] = dataclasses.field(default_factory=lambda: HEADS)
    preparation: Fields = dataclasses.field(default_factory=lambda: preparation(HALF, "squash", 1.0, "bilinear_pillow"))
    interpolation: str = "bicubic_hf"
    periods: bool = False  # whether the periods of DINOv3's rotary embedding are stored
    linear_patches: bool = False  # whether patches go through a matrix, pixel by pixel, channels last (NaFlex)
    grid_table: bool = False  # whether the table of positions has rows and columns, not one axis for both (NaFlex)

    def as_in(self, arrays: Collection[str], choices: Mapping[str, Sequence[Any]]) -> "Family":
        """Returns this family as a file calls its parts: of each field's choices the first whose arrays are there."""
        found = self

        def has_arrays(part: str, spelling: Any) -> bool:
            if part == "blocks":
                return any(name.startswith(f"{spelling}0.") for name in arrays)
            names = [
                [f"{start}{name}{end}" for start in ("", f"{found.blocks}0.") for end in ("", ".weight", "weight")]
                for name in ((spelling,) if isinstance(spelling, str) else spelling)
            ]
            return all(any(name in arrays for name in spellings) for spellings in names)

        for field, options in choices.items():
            chosen = next((option for option in options if has_arrays(field, option)), getattr(found, field))
            found = dataclasses.replace(found, **{field: chosen})
        return found


def linear(name: str, path: str, out: int, into: int, bias: bool = True) -> list[Row]:
    """The rows of a linear layer: its matrix, and its bias where it has one."""
    rows = [Row(f"{name}.weight", f"{path}/kernel", (out, into), LINEAR)]
    return [*rows, Row(f"{name}.bias", f"{path}/bias", (out,))] if bias else rows


def packed(name: str, paths: Sequence[str], out: int, into: int, biased: Collection[int] = (0, 1, 2)) -> list[Row]:
    """The rows of linear layers whose matrices are one array in the file; `biased` are those with a bias."""
    n = len(paths)
    rows = [Row(f"{name}weight", f"{path}/kernel", (n * out, into), LINEAR, (i, n)) for i, path in enumerate(paths)]
    return rows + [Row(f"{name}bias", f"{paths[i]}/bias", (n * out,), part=(i, n)) for i in biased if i < n]


def norm(name: str, path: str, size: int) -> list[Row]:
    """The rows of a layer normalisation."""
    return [Row(f"{name}.weight", f"{path}/gamma", (size,)), Row(f"{name}.bias", f"{path}/beta", (size,))]


def attention_pooling(config: ViTConfig, probe: str, out: str, normalisation: str, mlp: tuple[str, str]) -> list[Row]:
    """Returns the rows of attention pooling except for queries, keys and values, which are packed differently."""
    width, hidden = config.width, config.pooling_mlp_width or config.mlp_width
    rows = [Row(probe, "pooling/probe", (1, 1, width)), *linear(out, "pooling/attention/out", width, width)]
    rows += norm(normalisation, "pooling/norm", width) + linear(mlp[0], "pooling/mlp/fc1", hidden, width)
    return rows + linear(mlp[1], "pooling/mlp/fc2", width, hidden)


def trunk_rows(config: ViTConfig, family: Family) -> list[Row]:
    """Returns the rows from the patches to the last normalisation, without the module's name."""
    width, first = config.width, () if family.flat else (1,)
    if family.linear_patches:  # transposed, it has the values of a convolution's kernel in Keras's order
        shape, axes = (width, math.prod(config.patch_size) * config.channels), LINEAR
    else:
        shape, axes = (width, config.feature_map_channels, *config.patch_size), CONVOLUTION
    rows = [Row(f"{family.patches}.weight", "embedding/kernel", shape, axes)]
    rows += [Row(f"{family.patches}.bias", "embedding/bias", (width,))] if config.patch_bias else []
    if config.class_token:
        rows.append(Row(family.class_token, "class_token/token", (*first, *first, width)))
    if config.distillation_token:
        rows.append(Row(family.distillation_token, "distillation_token/token", (1, 1, width)))
    if config.register_tokens:
        rows.append(Row(family.register_tokens, "register_tokens/tokens", (1, config.register_tokens, width)))
    if config.position_rows:
        places = config.grid_size if family.grid_table else (config.position_rows,)
        rows.append(Row(family.positions, TABLE, (*first, *places, width)))
    if family.periods:
        rows.append(Row("rope_embed.periods", "rotary_embedding/periods", (config.head_size // 4,)))
    rows += norm(family.pre_norm, "pre_norm", width) if config.pre_norm else []
    for i in range(config.depth):
        rows += block(f"{family.blocks}{i}.", f"block_{i}", config, family)
    if config.final_norm != "none":
        rows += norm(family.norm, "encoder_norm", width)
    return rows


def block(name: str, path: str, config: ViTConfig | TextConfig, family: Family) -> list[Row]:
    """Returns the rows of a block; `name` and `path` are what stands before its parts in the file and the model."""
    width, hidden = config.width, config.mlp_width
    biased = {"all": (0, 1, 2), "no_key": (0, 2), "none": ()}[config.attention_bias]
    rows = [row for i in range(2) for row in norm(f"{name}{family.norms[i]}", f"{path}/norm{i + 1}", width)]
    paths = [f"{path}/attention/{part}" for part in ("query", "key", "value")]
    *inputs, output = family.attention
    if len(inputs) == 3:
        for i, part in enumerate(inputs):
            rows += linear(f"{name}{part}", paths[i], width, width, bias=i in biased)
    else:
        separate = family.own_biases
        rows += packed(f"{name}{inputs[0]}", paths, width, width, () if separate else biased)
        if separate:
            rows += [Row(f"{name}{separate[i]}", f"{paths[i]}/bias", (width,)) for i in biased]
    if config.attention_norm:
        rows += norm(f"{name}{family.attention_norm}", f"{path}/attention/norm", width)
    rows += linear(f"{name}{output}", f"{path}/attention/out", width, width)
    *first, last = family.mlp
    inner = ["fc1"] if config.mlp.startswith("plain") else ["gate", "value"]
    if len(first) < len(inner):
        rows += packed(f"{name}{first[0]}.", [f"{path}/mlp/{layer}" for layer in inner], hidden, width)
    else:
        for part, layer in zip(first, inner, strict=True):
            rows += linear(f"{name}{part}", f"{path}/mlp/{layer}", hidden, width)
    if config.mlp.endswith("norm"):
        rows += norm(f"{name}{family.mlp_norm}", f"{path}/mlp/norm", hidden)
    rows += linear(f"{name}{last}", f"{path}/mlp/fc2", width, hidden)
    if config.layer_scale is not None:
        rows += [Row(f"{name}{family.scales[i]}", f"{path}/scale{i + 1}/gamma", (width,)) for i in range(2)]
    return rows


def computed_periods(config: ViTConfig, base: float = 100.0) -> dict[str, np.ndarray]:
    """Returns the periods of DINOv3's rotary embedding by their path, for files without them; empty for others."""
    if config.rotary_embedding != "dinov3":
        return {}
    count = config.head_size // 4
    periods = base ** (np.arange(count, dtype=np.float64) / count)
    return {"rotary_embedding/periods": periods.astype(np.float32)}


# What arrays and configs tell


@dataclasses.dataclass(frozen=True)
class Trunk:
    """What arrays tell of a model from its patches to the last normalisation."""

    fields: Fields
    warnings: list[Notice]  # what was assumed or is unusual
    is_grid_known: bool  # False where the number of patches is not a square


def trunk_of(
    arrays: Mapping[str, StoredArray],
    sidecars: Sidecars,
    family: Family,
    *,
    size: tuple[int, int] | None,
    heads: Any,
    is_named: bool,
    cell: int = 1,
    **grid_options: Any,
) -> Trunk:
    """Returns what the arrays from the patches to the last normalisation tell."""
    has = arrays.keys().__contains__
    block = f"{family.blocks}0."
    if family.linear_patches:
        width, values = shape_of(arrays, f"{family.patches}.weight", 2)
        channels, patch = 3, square_patch(values)
    else:
        width, channels, *patch = patch_shape(arrays, f"{family.patches}.weight")
    hidden = shape_of(arrays, f"{block}{family.mlp[-1]}.weight", 2)[1]
    first = shape_of(arrays, f"{block}{family.mlp[0]}.weight", 2)[0]
    registers = shape_of(arrays, family.register_tokens, 3)[1] if has(family.register_tokens) else 0
    special = has(family.class_token) + has(family.distillation_token)
    pixels = (patch[0] * cell, patch[1] * cell)
    if family.grid_table:
        _, *grid, _ = shape_of(arrays, family.positions, 4)
        rows, size = math.prod(grid), (grid[0] * pixels[0], grid[1] * pixels[1])
    elif has(family.positions):
        rows = shape_of(arrays, family.positions, 2 if family.flat else 3)[-2]
    else:
        rows = None
    kind, cells, warnings, is_known = _positions(rows, size, pixels, special, registers, sidecars, **grid_options)
    if heads is None:
        heads, of_heads = _heads(sidecars, width, family.heads_by_width, is_named)
        warnings = [*warnings, *of_heads]
    gated = len(family.mlp) == 3 or first == 2 * hidden
    fields = {
        "image_size": (cells[0] * pixels[0], cells[1] * pixels[1]),
        "patch_size": tuple(patch),
        "width": width,
        "depth": depth_of(arrays, family.blocks),
        "heads": heads,
        "mlp_width": hidden,
        "channels": channels,
        "patch_bias": has(f"{family.patches}.bias"),
        "class_token": has(family.class_token),
        "distillation_token": has(family.distillation_token),
        "register_tokens": registers,
        "position_embedding": kind,
        "pre_norm": has(f"{family.pre_norm}.weight"),
        "attention_bias": _attention_bias(arrays, block, family),
        "attention_norm": has(f"{block}{family.attention_norm}.weight"),
        "mlp": ("swiglu" if gated else "plain") + ("_norm" if has(f"{block}{family.mlp_norm}.weight") else ""),
        "interpolation": family.interpolation,
    }
    return Trunk(fields, warnings, is_known)


def patch_shape(arrays: Mapping[str, StoredArray], name: str) -> tuple[int, ...]:
    """Returns the shape of the kernel that embeds patches; ValueError if it is missing, has other axes or no values."""
    shape = shape_of(arrays, name, 4)
    if 0 in shape:
        raise ValueError(f"The array {name!r} must not be empty, but its shape is {shape}. Download the file again.")
    return shape


def square_patch(values: int) -> tuple[int, int]:
    """Returns height and width of a square patch of three channels with so many values; ValueError for no square."""
    side = math.isqrt(values // 3)
    if side < 1 or 3 * side * side != values:
        raise ValueError(f"A patch must be a square of three channels, but {values} values are not.")
    return side, side


def _attention_bias(arrays: Collection[str], block: str, family: Family) -> str:
    """Returns which projections of a block have a bias (a `ViTConfig.attention_bias`); `block` is its prefix."""
    names = family.own_biases or (f"{family.attention[0]}bias",) * 3
    if len(family.attention) == 4:
        names = tuple(f"{name}.bias" for name in family.attention[:3])
    biased = tuple(f"{block}{name}" in arrays for name in names)
    kinds = {(True, True, True): "all", (True, False, True): "no_key", (False, False, False): "none"}
    if biased not in kinds:
        raise ValueError(f"Biases must be in (query, key, value), in (query, value) or in none, but are {biased}.")
    return kinds[biased]


def _heads(sidecars: Sidecars, width: int, by_width: Mapping[int, int], is_named: bool) -> tuple[int, list[Notice]]:
    """Returns the number of attention heads where no JSON file says it, and what a user should know of it."""
    like = None if sidecars.like is None else sidecars.like.config
    if like is not None and like.width == width:
        return like.heads, []
    heads = by_width.get(width, width // 64)
    if width % 64 and width not in by_width:
        what = f"The heads are not in the file, and the width {width} is not a multiple of 64"
        raise ValueError(f"{what}. Put config.json beside the file, or pass like=... with a model of this width.")
    text = f"without config.json {heads} attention heads are assumed"
    return heads, [assumption("heads", text, is_named)]


def assumption(field: str, text: str, is_named: Any) -> Notice:
    """A warning on an assumption; loading warns of it unless something tells which model it is."""
    return Notice(text, field, "note" if is_named else "assumed")


def _positions(
    rows: int | None,
    given: tuple[int, int] | None,
    patch: tuple[int, int],
    special: int,
    registers: int,
    sidecars: Sidecars,
    *,
    registers_first: bool = False,
    default_size: int = 224,
) -> tuple[str, tuple[int, int], list[Notice], bool]:
    """Returns what rows of positions belong to (None: no table), the grid, warnings, and whether the grid is known.

    `registers_first` is for timm's tables, where the class token beside registers has its position in it;
    `default_size` is assumed without a table and a config.
    """
    warnings, grid = [], None
    if given is not None:
        grid = (max(given[0] // patch[0], 1), max(given[1] // patch[1], 1))
        size = f"{given[0]} x {given[1]} pixels"
        if given[0] % patch[0] or given[1] % patch[1]:
            text = f"images of {size} are not a whole number of patches; the rest at the right and bottom is ignored"
            warnings.append(Notice(text))
    if rows is None:
        if grid is None:
            grid, notice = guessed_grid(patch, default_size)
            warnings.append(notice)
        return "none", grid, warnings, True
    # Where two of them mean the same, the last one is the name.
    kinds = {special: "learned_without_registers", 0: "learned_patches", special + registers: "learned"}
    if grid is not None and sidecars.grid_size is None and rows - math.prod(grid) in kinds:
        return kinds[rows - math.prod(grid)], grid, warnings, True
    first = 0 if registers_first and registers and special else special
    order = [n for n in (first, special + registers, special, 0) if n < rows]
    extra = rows_before_patches(rows, order, sidecars, patch)
    if given is not None:
        text = (
            f"the config has images of {size}, but the {rows} position embeddings are for another size, which is used"
        )
        warnings.append(Notice(text))
    if extra is None:
        extra = order[0] if order else 0
    grid, asked = squarest_grid(rows - extra), sidecars.grid_at_size(patch)
    if asked and grid[0] != grid[1] and math.prod(asked) == rows - extra:
        return kinds[extra], asked, warnings, True
    return kinds[extra], grid, warnings, grid[0] == grid[1]


def mlp_ratio(hidden: int, width: int) -> float:
    """A ratio from which timm computes `hidden` as `int(width * ratio)`."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


# SigLIP 2 NaFlex at one size. Its patches go through a matrix, pixel by pixel, channels last. Its table of positions is
# that of a square, and is resized bilinearly with antialiasing. All else is a SigLIP.


def is_naflex(config: ViTConfig) -> bool:
    """Returns whether a model is a SigLIP that resizes positions as NaFlex does, unlike the SigLIPs of one size."""
    siglip = config.pooling == "map" and config.mlp == "plain" and config.gelu == "tanh" and config.patch_bias
    plain = config.prefix_tokens == 0 and config.stem_stages is None and config.rotary_embedding is None
    scaled = config.layer_scale is not None or config.pre_norm or config.layer_norm_epsilon != 1e-6
    return siglip and plain and not scaled and config.interpolation == "bilinear_antialias"
