"""What the layouts of PyTorch's models share: names of parts, rows, what arrays tell, how images are prepared.

A `Family` is data: what one publisher calls the parts of a model. PyTorch stores a linear layer's matrix as (out, in)
and a convolution's kernel as (out, in, height, width); the rows say so, and `accounting` transposes.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit._arguments import is_class_name, printable
from keras_vit.checkpoints.accounting import TABLE, Contents, Row, bounded, shape_of, squarest_grid
from keras_vit.models import TextConfig, ViTConfig

Fields = dict[str, Any]  # of a `ViTConfig`

LINEAR, CONVOLUTION = (1, 0), (2, 3, 1, 0)  # the order in which Keras has the axes
POOLED_ATTENTION = tuple(f"pooling/attention/{part}" for part in ("query", "key", "value"))
# What a layer scale starts from where nothing says it; a trained one is in the file.
LAYER_SCALE = 1e-5
# Heads by width, where a head has not 64 channels: So400m; everything H/14 with 16 x 80; g/14 with 16 x 88; DINOv2's
# giant with 24 x 64; bigG; DINOv3's 7B with 32 x 128.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 4096: 32}
HEADS_OF_DINOV3, HEADS_OF_SIGLIP = {**HEADS, 1280: 20}, {**HEADS, 1536: 16}

UNKNOWN_GELU = (
    "nothing tells which GELU this CLIP computes: pass like='vit_base_patch16_clip_quickgelu_224' for the quick one "
    "(OpenAI, DFN, MetaCLIP), 'vit_base_patch16_clip_224' for the exact one (LAION, DataComp), at any size"
)

# How images are prepared. What JSON files say and is not done here is an error: the image would give other numbers.

# Published means and standard deviations of the channels, for pixels of 0..1.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# What these JSON files call our filters, transformers by the numbers of Pillow. All of them resample with Pillow, whose
# filters widen where an image shrinks; without `bilinear_pillow` for the official code's.
_NUMBERS = ("nearest", "lanczos", "bilinear_pillow", "bicubic")
_FILTERS = {
    **dict(enumerate(_NUMBERS)),
    **dict(zip(("nearest", "lanczos", "bilinear", "bicubic"), _NUMBERS, strict=True)),
    "random": "bicubic",  # one of several, in training
}
FILTER_NUMBERS = {"bilinear": 2, "bilinear_antialias": 2} | {filter: number for number, filter in enumerate(_NUMBERS)}
FILTER_NAMES = {filter: ("nearest", "lanczos", "bilinear", "bicubic")[n] for filter, n in FILTER_NUMBERS.items()}
# What timm's `crop_mode` and open_clip's `resize_mode` may be.
_MODES: dict[str, dict[Any, Fields]] = {
    "crop_mode": {None: {}, "center": {}, "squash": {"resize": "squash"}},
    "resize_mode": {None: {}, **{mode: {"resize": mode, "crop_ratio": 1.0} for mode in ("shortest", "squash")}},
}


def preparation(numbers: tuple[Any, Any], resize: str, crop_ratio: float, filter: str = "bicubic") -> Fields:
    """How images are prepared; `numbers` are means and standard deviations."""
    mean, std = numbers
    return {"pixel_mean": mean, "pixel_std": std, "resize": resize, "crop_ratio": crop_ratio, "filter": filter}


def preparation_in(
    config: Mapping[str, Any], default: Fields, mode_key: str = "crop_mode", crop_key: str = "crop_pct"
) -> Fields:
    """How timm's `pretrained_cfg` or open_clip's `preprocess_cfg` prepares images; `default` for what it leaves out."""
    fields = {**default, **means_in(config.get("mean"), config.get("std"))}
    crop, mode = config.get(crop_key, config.get("crop_pct")), config.get(mode_key)
    if mode_key == "crop_mode" and is_number(crop) and 0 < crop <= 1:
        fields["crop_ratio"] = crop
    if not isinstance(mode, str | None) or mode not in _MODES[mode_key]:
        raise not_done(mode_key, mode)
    return {**fields, **_MODES[mode_key][mode], **filter_in("interpolation", config.get("interpolation"))}


def used_at(contents: Contents, config: ViTConfig, size: tuple[int, int] | None, is_size: bool = True) -> ViTConfig:
    """The config with what of the images, which the publisher prepares at a size, lies beyond the last whole patches.

    Notes where that (`is_size`) is another size than that of the position embeddings.
    """
    if size is None:
        return config
    patch = config.image_size_of((1, 1))
    if all(0 <= a - b < n for a, b, n in zip(size, config.image_size, patch, strict=True)):
        config = config.replace(trim=(size[0] - config.image_size[0], size[1] - config.image_size[1]))
    used = (max(size[0] // patch[0], 1) * patch[0], max(size[1] // patch[1], 1) * patch[1])
    prepared = f"its publisher prepares pictures of {size[0]} x {size[1]} pixels"
    if is_size and used not in (size, config.image_size):
        contents.assumed["image_size"] = (
            f"{prepared}, no whole number of patches, and leaves the rest at the right and lower edge out; here they "
            f"are of {used[0]} x {used[1]}, which differ a little"
        )
    if is_size and used != config.image_size:
        contents.image_size = used
        trained = f"its position embeddings are for {config.image_size[0]} x {config.image_size[1]}"
        contents.notes.append(f"{prepared}, {trained} and are resized; image_size=... takes another size")
    return config


def means_in(mean: Any, std: Any) -> Fields:
    """Means and standard deviations; ValueError where they are no numbers."""
    fields = {}
    for name, values in (("mean", mean), ("std", std)):
        numbers = [values] * 3 if is_number(values) else values
        if isinstance(numbers, (list, tuple)) and numbers and all(map(is_number, numbers)):
            fields[f"pixel_{name}"] = tuple(map(float, numbers))
        elif values is not None:
            raise not_done(name, values)
    return fields


def filter_in(key: str, value: Any) -> Fields:
    """The filter by its name or number; ValueError for those that are not done here."""
    if value is None:
        return {}
    if isinstance(value, (int, str)) and not isinstance(value, bool) and value in _FILTERS:
        return {"filter": _FILTERS[value]}
    raise not_done(key, value)


def not_done(key: str, value: Any) -> ValueError:
    """The error for what a JSON file says of preparing images and is not done here."""
    advice = "Remove that file, or the line, and prepare pictures yourself: they would get other numbers here."
    return ValueError(f"the JSON file beside it says of pictures {key}={printable(value, 60)}, not done here. {advice}")


def is_length(value: Any) -> bool:
    """Whether a value of JSON is a number of pixels."""
    return type(value) is int and 0 < value < 2**20


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# What publishers call the parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Who publishes models, what they call the parts, and what they do where nothing says it.

    Attributes:
        module: What stands before the names of the arrays, but for the head's.
        flat: Whether class token and positions have no first axis of length 1.
        blocks: What stands before the number of a block; `norms` to `scales` are in a block.
        attention: The projections to queries, keys, values, and the output; or the beginning of the name of the matrix
            that the first three share, and the output.
        own_biases: The biases of the three where they share a matrix and no bias.
        mlp: The linear layers of an MLP; two for a SwiGLU mean that gate and value are one layer.
        types: The `model_type`s of transformers whose models have these arrays.
        mask_token: The first axes of the mask token that all models have; None where they need none.
        activation, epsilon, heads: `hidden_act`, `layer_norm_eps` and `num_attention_heads` where nothing says them.
        heads_by_width: The heads where nothing says it, for widths whose heads have not 64 channels.
        interpolation: How position embeddings are resized.
        periods: Whether the periods of DINOv3's rotary embedding are stored.
    """

    title: str
    module: str = ""
    patches: str = "patch_embed.proj"
    class_token: str = "cls_token"
    distillation_token: str = "dist_token"
    register_tokens: str = "reg_token"
    positions: str = "pos_embed"
    flat: bool = False
    pre_norm: str = "norm_pre"
    blocks: str = "blocks."
    norms: tuple[str, ...] = ("norm1", "norm2")
    attention: tuple[str, ...] = ("attn.qkv.", "attn.proj")
    own_biases: tuple[str, ...] = ()
    attention_norm: str = "attn.norm"
    mlp: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")
    mlp_norm: str = "mlp.norm"
    scales: tuple[str, ...] = ("ls1.gamma", "ls2.gamma")
    norm: str = "norm"
    types: tuple[str, ...] = ()
    mask_token: tuple[int, ...] | None = None
    activation: str = "gelu"
    epsilon: float = 1e-6
    heads: int = 12
    heads_by_width: Mapping[int, int] = dataclasses.field(default_factory=lambda: HEADS)
    preparation: Fields = dataclasses.field(default_factory=lambda: preparation(HALF, "squash", 1.0, "bilinear_pillow"))
    interpolation: str = "bicubic_hf"
    periods: bool = False

    def as_in(self, arrays: Collection[str], choices: Mapping[str, Sequence[Any]]) -> "Family":
        """This family with what a file calls its parts: of each field's choices the first whose arrays are there."""
        found = self

        def is_there(field: str, option: Any) -> bool:
            if field == "blocks":
                return any(name.startswith(f"{option}0.") for name in arrays)
            names = [
                [f"{start}{part}{end}" for start in ("", f"{found.blocks}0.") for end in ("", ".weight", "weight")]
                for part in ((option,) if isinstance(option, str) else option)
            ]
            return all(any(name in arrays for name in spellings) for spellings in names)

        for field, options in choices.items():
            chosen = next((option for option in options if is_there(field, option)), getattr(found, field))
            found = dataclasses.replace(found, **{field: chosen})
        return found


# Rows


def linear(name: str, path: str, out: int, into: int, bias: bool = True) -> list[Row]:
    """The rows of a linear layer."""
    rows = [Row(f"{name}.weight", f"{path}/kernel", (out, into), LINEAR)]
    return [*rows, Row(f"{name}.bias", f"{path}/bias", (out,))] if bias else rows


def packed(name: str, paths: Sequence[str], out: int, into: int, biased: Collection[int] = (0, 1, 2)) -> list[Row]:
    """Linear layers that are one in the file, matrices one after the other; `biased` are those that have a bias."""
    n = len(paths)
    rows = [Row(f"{name}weight", f"{path}/kernel", (n * out, into), LINEAR, (i, n)) for i, path in enumerate(paths)]
    return rows + [Row(f"{name}bias", f"{paths[i]}/bias", (n * out,), part=(i, n)) for i in biased if i < n]


def norm(name: str, path: str, size: int) -> list[Row]:
    """The rows of a layer normalisation."""
    return [Row(f"{name}.weight", f"{path}/gamma", (size,)), Row(f"{name}.bias", f"{path}/beta", (size,))]


def attention_pooling(config: ViTConfig, probe: str, out: str, normalisation: str, mlp: str) -> list[Row]:
    """Attention pooling but for queries, keys and values, which timm and transformers pack differently."""
    width, hidden = config.width, config.mlp_width
    rows = [Row(probe, "pooling/probe", (1, 1, width)), *linear(out, "pooling/attention/out", width, width)]
    rows += norm(normalisation, "pooling/norm", width) + linear(f"{mlp}.fc1", "pooling/mlp/fc1", hidden, width)
    return rows + linear(f"{mlp}.fc2", "pooling/mlp/fc2", width, hidden)


def trunk(config: ViTConfig, family: Family) -> list[Row]:
    """The rows from the patches to the last normalisation, without the module's name."""
    width, first = config.width, () if family.flat else (1,)
    shape = (width, config.feature_map_channels, *config.patch_size)
    rows = [Row(f"{family.patches}.weight", "embedding/kernel", shape, CONVOLUTION)]
    rows += [Row(f"{family.patches}.bias", "embedding/bias", (width,))] if config.patch_bias else []
    if config.class_token:
        rows.append(Row(family.class_token, "class_token/token", (*first, *first, width)))
    if config.distillation_token:
        rows.append(Row(family.distillation_token, "distillation_token/token", (1, 1, width)))
    if config.register_tokens:
        rows.append(Row(family.register_tokens, "register_tokens/tokens", (1, config.register_tokens, width)))
    if config.position_rows:
        rows.append(Row(family.positions, TABLE, (*first, config.position_rows, width)))
    if family.periods:
        rows.append(Row("rope_embed.periods", "rotary_embedding/periods", (config.head_size // 4,)))
    rows += norm(family.pre_norm, "pre_norm", width) if config.pre_norm else []
    for i in range(config.depth):
        rows += block(f"{family.blocks}{i}.", f"block_{i}", config, family)
    return rows + (norm(family.norm, "encoder_norm", width) if config.final_norm != "none" else [])


def block(name: str, path: str, config: ViTConfig | TextConfig, family: Family) -> list[Row]:
    """The rows of a block; `name` and `path` are what stands before its parts."""
    width, hidden = config.width, config.mlp_width
    biased = {"all": (0, 1, 2), "no_key": (0, 2), "none": ()}[config.attention_bias]
    rows = [row for i in range(2) for row in norm(f"{name}{family.norms[i]}", f"{path}/norm{i + 1}", width)]
    paths = [f"{path}/attention/{part}" for part in ("query", "key", "value")]
    *inputs, output = family.attention
    if len(inputs) == 3:
        for i, part in enumerate(inputs):
            rows += linear(f"{name}{part}", paths[i], width, width, bias=i in biased)
    else:
        own = family.own_biases
        rows += packed(f"{name}{inputs[0]}", paths, width, width, () if own else biased)
        rows += [Row(f"{name}{own[i]}", f"{paths[i]}/bias", (width,)) for i in biased if own]
    rows += norm(f"{name}{family.attention_norm}", f"{path}/attention/norm", width) if config.attention_norm else []
    rows += linear(f"{name}{output}", f"{path}/attention/out", width, width)
    *first, last = family.mlp
    inner = ["fc1"] if config.mlp.startswith("plain") else ["gate", "value"]
    if len(first) < len(inner):
        rows += packed(f"{name}{first[0]}.", [f"{path}/mlp/{layer}" for layer in inner], hidden, width)
    else:
        for part, layer in zip(first, inner, strict=True):
            rows += linear(f"{name}{part}", f"{path}/mlp/{layer}", hidden, width)
    rows += norm(f"{name}{family.mlp_norm}", f"{path}/mlp/norm", hidden) if config.mlp.endswith("norm") else []
    rows += linear(f"{name}{last}", f"{path}/mlp/fc2", width, hidden)
    if config.layer_scale is not None:
        rows += [Row(f"{name}{family.scales[i]}", f"{path}/scale{i + 1}/gamma", (width,)) for i in range(2)]
    return rows


def computed_periods(config: ViTConfig, base: float = 100.0) -> dict[str, np.ndarray]:
    """The periods of DINOv3's rotary embedding, for files that do not store them: as `layers.RotaryEmbedding` has."""
    if config.rotary_embedding != "dinov3":
        return {}
    count = config.head_size // 4
    periods = base ** (np.arange(count, dtype=np.float64) / count)
    return {"rotary_embedding/periods": periods.astype(np.float32)}


# What arrays and configs tell


def trunk_fields(
    contents: Contents,
    family: Family,
    *,
    size: tuple[int, int] | None,
    heads: Any,
    is_named: bool,
    cell: int = 1,
    **grid_options: Any,
) -> Fields:
    """The fields of a config that the arrays from the patches to the last normalisation tell.

    `size` (in pixels) and `heads` are what a config says, or None; `is_named` is whether something tells which model it
    is; `cell` is how many pixels one cell of what is cut into patches stands for.
    """
    arrays = contents.arrays
    has = arrays.keys().__contains__
    block = f"{family.blocks}0."
    width, channels, *patch = shape_of(arrays, f"{family.patches}.weight", 4)
    hidden = shape_of(arrays, f"{block}{family.mlp[-1]}.weight", 2)[1]
    first = shape_of(arrays, f"{block}{family.mlp[0]}.weight", 2)[0]
    numbers = re.findall(rf"^{re.escape(family.blocks)}(\d+)\.", "\n".join(arrays), re.MULTILINE)
    registers = shape_of(arrays, family.register_tokens, 3)[1] if has(family.register_tokens) else 0
    special = has(family.class_token) + has(family.distillation_token)
    rows = shape_of(arrays, family.positions, 2 if family.flat else 3)[-2] if has(family.positions) else None
    pixels = (patch[0] * cell, patch[1] * cell)
    position, grid = _positions(contents, rows, size, pixels, special, registers, **grid_options)
    gated = len(family.mlp) == 3 or first == 2 * hidden
    return {
        "image_size": (grid[0] * pixels[0], grid[1] * pixels[1]),
        "patch_size": tuple(patch),
        "width": width,
        "depth": bounded(1 + max(map(int, numbers))),
        "heads": _heads(contents, width, heads, family.heads_by_width, is_named),
        "mlp_width": hidden,
        "channels": channels,
        "patch_bias": has(f"{family.patches}.bias"),
        "class_token": has(family.class_token),
        "distillation_token": has(family.distillation_token),
        "register_tokens": registers,
        "position_embedding": position,
        "pre_norm": has(f"{family.pre_norm}.weight"),
        "attention_bias": _attention_bias(arrays, block, family),
        "attention_norm": has(f"{block}{family.attention_norm}.weight"),
        "mlp": ("swiglu" if gated else "plain") + ("_norm" if has(f"{block}{family.mlp_norm}.weight") else ""),
        "interpolation": family.interpolation,
    }


def _attention_bias(arrays: Collection[str], block: str, family: Family) -> str:
    """Which of the projections to queries, keys and values have a bias."""
    shared = family.own_biases or [f"{family.attention[0]}bias"] * 3
    names = [f"{name}.bias" for name in family.attention[:3]] if len(family.attention) == 4 else shared
    biased = tuple(f"{block}{name}" in arrays for name in names)
    kinds = {(True, True, True): "all", (True, False, True): "no_key", (False, False, False): "none"}
    if biased not in kinds:
        given = ", ".join(map(str, biased))
        raise ValueError(f"Queries, keys and values have biases as in no known family: {given}.")
    return kinds[biased]


def _heads(contents: Contents, width: int, stated: Any, by_width: Mapping[int, int], is_named: bool) -> int:
    """The number of attention heads, which no array tells."""
    given = contents.hints.get("heads")
    if given is None and isinstance(stated, bool) or not isinstance(stated, int | None):
        raise ValueError(f"Its config gives the number of heads as {printable(stated, 60)}, expected an integer.")
    heads = stated if given is None else given
    like = contents.hints.get("like")
    if heads is None and like is not None and like.config is not None and like.config.width == width:
        return like.config.heads
    if heads is None:
        heads = by_width.get(width, width // 64 if width % 64 == 0 else None)
        if heads is None:
            words = "Nothing tells its number of attention heads: no config.json is beside it"
            raise ValueError(f"{words}, and its width {width} is no multiple of 64. Pass like=...")
        note(contents, "heads", f"no config.json says how many attention heads it has; {heads} are assumed", is_named)
    elif given is not None and stated is not None and given != stated:
        contents.notes.append(f"its config says {stated} attention heads, {given} were asked for")
    if heads < 1 or width % heads:
        raise ValueError(f"It cannot have {heads} attention heads: its width is {width}.")
    return heads


def note(contents: Contents, field: str, sentence: str, is_named: Any) -> None:
    """Notes an assumption; loading warns of it unless something tells which model it is."""
    if is_named:
        contents.notes.append(sentence)
    else:
        contents.assumed[field] = sentence


def _positions(
    contents: Contents,
    rows: int | None,
    stated: tuple[int, int] | None,
    patch: tuple[int, int],
    special: int,
    registers: int,
    *,
    registers_first: bool = False,
    usual_size: int = 224,
) -> tuple[str, tuple[int, int]]:
    """What the rows of the position embeddings (None: no table) belong to, and the grid of patches.

    `stated` is the size of the images in pixels that a config says; `special` counts class and distillation tokens.
    `registers_first` is for timm's tables, where the class token beside registers has its position in it; `usual_size`
    is assumed without a table and a config.
    """
    grid = None if stated is None else (max(stated[0] // patch[0], 1), max(stated[1] // patch[1], 1))
    if stated is not None and (stated[0] % patch[0] or stated[1] % patch[1]):
        words = "are no whole number of patches; the rest at the right and lower edge had no effect and is left out"
        contents.notes.append(f"its images of {stated[0]} x {stated[1]} pixels {words}")
    if rows is None:
        if grid is None:
            grid = tuple(max(round(usual_size / size), 1) for size in patch)
            size = " x ".join(str(n * p) for n, p in zip(grid, patch, strict=True))
            contents.guessed_size = f"no position embeddings tell the size of its images; {size} is a guess"
        return "none", grid
    # Where two of them mean the same, the last one is the name.
    kinds = {special: "learned_without_registers", 0: "learned_patches", special + registers: "learned"}
    if grid is not None and rows - math.prod(grid) in kinds:
        return kinds[rows - math.prod(grid)], grid
    first = 0 if registers_first and registers and special else special
    order = [n for n in (first, special + registers, special, 0) if n < rows]
    extra = next((n for n in order if math.isqrt(rows - n) ** 2 == rows - n), None)
    if stated is not None:
        words = f"its {rows} position embeddings are for others, which count"
        contents.notes.append(f"its config says images of {stated[0]} x {stated[1]} pixels, but {words}")
    contents.square = extra is not None
    extra = extra if extra is not None else order[0] if order else 0
    return kinds[extra], squarest_grid(rows - extra)


def mlp_ratio(hidden: int, width: int) -> float:
    """A ratio from which timm computes `hidden` as `int(width * ratio)`."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


def mapping(config: Mapping[str, Any] | None, *keys: str) -> Mapping[str, Any]:
    """An object within objects of a config; empty where there is none."""
    for key in keys:
        value = (config or {}).get(key)
        config = value if isinstance(value, dict) else {}
    return config or {}


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """A positive number in a config; ValueError where something else stands there."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"the config beside it says {key}={printable(value, 60)}; a positive number was expected.")
    return float(value)


def class_names(value: Any, classes: int) -> tuple[str, ...] | None:
    """The names of the classes from what a config says; None unless it is a list of as many names."""
    if not isinstance(value, list) or len(value) != classes:
        return None
    return tuple(value) if all(isinstance(name, str) and is_class_name(name) for name in value) else None


def image_size_in(value: Any) -> tuple[int, int] | None:
    """Height and width from what a config says: an integer, or a list of two; None for anything else."""
    values = [value, value] if isinstance(value, int) else value
    if isinstance(values, list) and len(values) == 2 and all(map(is_length, values)):
        return values[0], values[1]
    return None


def check_stated(stated: Mapping[str, Any], file: str, known: Mapping[str, Any]) -> None:
    """Raises ValueError if a JSON file says another size than the arrays; what it leaves out is not compared."""
    for key, size in known.items():
        sizes = (size, list(size), size[0] if size[0] == size[1] else None) if isinstance(size, tuple) else (size,)
        if stated.get(key) is not None and stated[key] not in sizes:
            given = f"its {file} says {key}={printable(stated[key], 60)}, but the arrays have {size}"
            raise ValueError(f"{given}: it lies beside another file.")
