"""The layout of timm's Vision Transformers, and of Facebook's own files (DINO, DINOv2, DINOv3, MAE, DeiT-III, I-JEPA).

They have the same names but for a few (`timm_dialects.py`). The same layout stands in open_clip's files whose image
tower is timm's (SigLIP, EVA-02-CLIP), under `visual.trunk.`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit._text import printable
from keras_vit.checkpoints.engine import Contents, Hints, Layout, Row, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts import timm_architectures as by_name
from keras_vit.checkpoints.layouts.pictures import CLIP, HALF, IMAGENET, Fields, of_open_clip, of_timm, pictures
from keras_vit.checkpoints.layouts.pytorch import (
    LAYER_SCALE,
    LINEAR,
    Names,
    account,
    attention_bias,
    biased,
    computed_periods,
    depth_of,
    find,
    fused,
    grid_oddity,
    grid_of,
    heads_of,
    image_size_in,
    labels_in,
    linear,
    norm,
    packed,
    patches,
    value_oddities,
)
from keras_vit.checkpoints.layouts.timm_config import ACTIVATIONS, check_writable, restate, sidecars
from keras_vit.checkpoints.layouts.timm_dialects import Dialect, dialect_of, timms_own
from keras_vit.checkpoints.layouts.timm_hybrids import STEM_NAMES, patch_pixels, stem_fields, stem_rows
from keras_vit.models import ViTConfig

_ANCHOR = "patch_embed.proj.weight"
_TRUNK = "visual.trunk."
_MODULES = (_TRUNK, "module.backbone.", "backbone.", "timm_model.", "module.")
_PAIR = r"\.(weight|bias)"
_NAMES = Names(
    model=re.compile(
        rf"patch_embed\.proj{_PAIR}|cls_token|dist_token|reg_token|register_tokens|storage_tokens|pos_embed"
        rf"|rope_embed\.periods|(norm_pre|norm|fc_norm|head|head_dist){_PAIR}"
        rf"|blocks\.(\d+\.)?\d+\.(norm[12]{_PAIR}|attn\.((qkv|[qkv]_proj|proj|norm){_PAIR}|[qv]_bias)"
        rf"|mlp\.(fc1|fc2|fc1_[gx]|w12|w[123]|norm){_PAIR}|ls[12]\.gamma|gamma_[12])"
        rf"|attn_pool\.(latent|(q|kv|proj|norm|mlp\.fc[12]){_PAIR})|{STEM_NAMES}"
    ),
    unused=re.compile(
        rf"mask_token|local_cls_norm{_PAIR}|blocks\.(\d+\.)?\d+\.attn\.qkv\.bias_mask|decoder.*|num_batches_tracked"
    ),
    # What a self-distillation learns besides its backbone.
    beside=re.compile(r"(head|dino_head|ibot_head)\..*"),
)
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+\.)")  # blocks in chunks, counted through
_POOLINGS = {"token": "token", "tok": "token", "avg": "avg", "map": "map", "": "none"}


def _rows(config: ViTConfig, dialect: Dialect) -> list[Row]:
    width = config.width
    rows = stem_rows(config) + patches("patch_embed.proj", config)
    if config.class_token:
        rows.append(Row("cls_token", "class_token/token", (1, 1, width)))
    if config.distillation_token:
        rows.append(Row("dist_token", "distillation_token/token", (1, 1, width)))
    if config.register_tokens:
        rows.append(Row(dialect.registers, "register_tokens/tokens", (1, config.register_tokens, width)))
    if config.position_rows:
        rows.append(Row("pos_embed", "position_embedding/table", (1, config.position_rows, width)))
    if dialect.periods:
        rows.append(Row("rope_embed.periods", "rotary_embedding/periods", (config.width // config.heads // 4,)))
    rows += norm("norm_pre", "pre_norm", width) if config.pre_norm else []
    for i in range(config.depth):
        rows += _block(f"blocks.{i}", f"block_{i}", config, dialect)
    rows += norm(dialect.norm, "encoder_norm", width) if config.final_norm != "none" else []
    if config.pooling == "map":
        rows.append(Row("attn_pool.latent", "pooling/probe", (1, 1, width)))
        rows += linear("attn_pool.q", "pooling/attention/query", width, width)
        rows += packed("attn_pool.kv", ("pooling/attention/key", "pooling/attention/value"), width, width)
        rows += linear("attn_pool.proj", "pooling/attention/out", width, width)
        rows += norm("attn_pool.norm", "pooling/norm", width)
        rows += linear("attn_pool.mlp.fc1", "pooling/mlp/fc1", config.mlp_width, width)
        rows += linear("attn_pool.mlp.fc2", "pooling/mlp/fc2", width, config.mlp_width)
    if config.projection:
        rows.append(Row("head.weight", "projection/kernel", (config.projection, width), LINEAR))
        rows.append(Row("head.bias", None, (config.projection,)))
    # timm has no tanh layer and no head on two vectors, which `check_writable` says; they are here to be counted.
    features = config.pooled_size
    if config.representation_size:
        rows += linear("pre_logits.fc", "pre_logits", config.representation_size, features)
        features = config.representation_size
    if config.classes:
        rows += linear("head", "head", config.classes, features)
        rows += linear("head_dist", "head_dist", config.classes, width) if config.distillation_head else []
    return rows


def _block(name: str, path: str, config: ViTConfig, dialect: Dialect) -> list[Row]:
    width, hidden = config.width, config.mlp_width
    rows = norm(f"{name}.norm1", f"{path}/norm1", width) + norm(f"{name}.norm2", f"{path}/norm2", width)
    paths = [f"{path}/attention/{module}" for module in ("query", "key", "value")]
    if dialect.fused:
        bias = f"{name}.attn.qkv.bias" if dialect.fused_bias else None
        rows += fused(f"{name}.attn.qkv.weight", bias, paths, width, biased(config))
        if not dialect.fused_bias:
            rows += [Row(f"{name}.attn.{'qkv'[i]}_bias", f"{paths[i]}/bias", (width,)) for i in biased(config)]
    else:
        for i in range(3):
            rows += linear(f"{name}.attn.{'qkv'[i]}_proj", paths[i], width, width, bias=i in biased(config))
    rows += norm(f"{name}.attn.norm", f"{path}/attention/norm", width) if config.attention_norm else []
    rows += linear(f"{name}.attn.proj", f"{path}/attention/out", width, width)
    *first, last = (f"{name}.mlp.{module}" for module in dialect.mlp)
    inner = ["fc1"] if config.mlp.startswith("plain") else ["gate", "value"]
    if len(first) < len(inner):
        rows += packed(first[0], [f"{path}/mlp/{module}" for module in inner], hidden, width)
    else:
        for module, other in zip(first, inner, strict=True):
            rows += linear(module, f"{path}/mlp/{other}", hidden, width)
    rows += norm(f"{name}.mlp.norm", f"{path}/mlp/norm", hidden) if config.mlp.endswith("norm") else []
    rows += linear(last, f"{path}/mlp/fc2", width, hidden)
    if config.layer_scale is not None:
        rows += [Row(f"{name}.{dialect.scales[i]}", f"{path}/scale{i + 1}/gamma", (width,)) for i in range(2)]
    return rows


def _computed(config: ViTConfig, dialect: Dialect) -> dict[str, np.ndarray]:
    return {} if dialect.periods else computed_periods(config)


@dataclasses.dataclass(frozen=True)
class _Statements:
    """What the JSON files beside a file say, and the user; empty where they say nothing."""

    architecture: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooling: Any = None
    labels: Any = None
    image_size: tuple[int, int] | None = None
    open_clip: Mapping[str, Any] | None = None


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    place = find(file, _ANCHOR, _MODULES)
    if place is None:
        return None
    arrays, unused = account(file, place, _NAMES)
    arrays = {_CHUNK.sub(r"blocks.\1", name): array for name, array in arrays.items()}
    told: list[str] = []
    said = _statements(hints, place.module == _TRUNK, told)
    container = getattr(file, "container", "") or place.outer.partition(".")[0]
    dialect = dialect_of(arrays, unused, "teacher" if place.module.endswith("backbone.") else container)
    _refuse(arrays, said)
    fields, square = _fields(arrays, said, dialect, hints, told)
    config = ViTConfig(**fields)
    told += value_oddities(arrays, unused, "head.weight", "head.bias")
    told += [] if square else [grid_oddity(config.grid_size)]
    return Contents(_layout(dialect), dialect.name, place.prefix, config, arrays, unused, told, square)


def _statements(hints: Hints, trunk: bool, told: list[str]) -> _Statements:
    config = hints.config or {}
    if trunk and hints.open_clip is not None:
        model = _mapping(hints.open_clip, "model_cfg")
        vision = _mapping(model, "vision_cfg")
        name = hints.architecture or vision.get("timm_model_name", "")
        return _Statements(
            architecture=_plain(name),
            arguments=_mapping(vision, "timm_model_kwargs"),
            pooling=vision.get("timm_pool") or None,
            image_size=image_size_in(vision.get("image_size")),
            open_clip=_mapping(hints.open_clip, "preprocess_cfg"),
        )
    if config and "architecture" not in config:
        told.append("the config.json beside it is not timm's and is left out")
        config = {}
    arguments = _mapping(config, "model_args")
    published = _mapping(config, "pretrained_cfg") or config  # older files have it all on one level
    size = image_size_in(arguments.get("img_size"))
    channels_first = published.get("input_size")
    if size is None and isinstance(channels_first, list):
        size = image_size_in(channels_first[1:])
    return _Statements(
        architecture=_plain(hints.architecture or config.get("architecture", "")),
        arguments=arguments,
        published=published,
        pooling=config.get("global_pool", arguments.get("global_pool")),
        labels=config.get("label_names"),
        image_size=size,
    )


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _plain(architecture: Any) -> str:
    """An architecture's name without the address and the tag that repositories have."""
    return str(architecture).rpartition("/")[2].partition(".")[0]


def _refuse(arrays: Mapping[str, StoredArray], said: _Statements) -> None:
    """Raises ValueError where the names are known and the computation is another."""
    why = by_name.refusal(said.architecture)
    if why is not None:
        raise ValueError(f"{printable(said.architecture, 100)} {why}. It cannot be computed here.")
    has = arrays.keys().__contains__
    if has("norm_pre.weight") and (has("attn_pool.latent") or not (has("norm.weight") or has("fc_norm.weight"))):
        raise ValueError(
            "it has 'norm_pre' together with 'attn_pool' or without 'norm', as perception encoders have, whose rotary "
            "embedding and pooling are not known here."
        )
    if has("attn_pool.latent") and not has("norm.weight"):
        raise ValueError("it has 'attn_pool' without 'norm', which no known family has.")
    if shape_of(arrays, _ANCHOR, 4)[0] == 1792 and (has("blocks.0.attn.q_bias") or has("blocks.0.attn.q_proj.weight")):
        raise ValueError("it is EVA-02-E, which normalises after each branch instead of before.")
    registers = any(map(has, ("reg_token", "register_tokens", "storage_tokens")))
    periods = has("rope_embed.periods")
    if has("cls_token") and not (has("pos_embed") or registers or periods):
        raise ValueError(
            "it has 'cls_token', but neither 'pos_embed' nor 'reg_token', as models have whose rotary embedding is not "
            "known here (vit_*_rope_*)."
        )
    qkv_bias = any(map(has, ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")))
    if has("fc_norm.weight") and not (has("cls_token") or registers or qkv_bias):
        raise ValueError(
            "it has 'fc_norm', but neither 'cls_token' nor biases of queries, keys and values, as the models have that "
            "normalise after each branch instead of before (vit_*_rpn_*)."
        )


def _fields(
    arrays: Mapping[str, StoredArray], said: _Statements, dialect: Dialect, hints: Hints, told: list[str]
) -> tuple[dict[str, Any], bool]:
    """The config of the model, and whether its grid is known."""
    has = arrays.keys().__contains__
    block = "blocks.0."
    width, channels, *patch = shape_of(arrays, _ANCHOR, 4)
    stem = stem_fields(arrays)
    pixels = patch_pixels(patch, stem)
    hidden = shape_of(arrays, f"{block}mlp.{dialect.mlp[-1]}.weight", 2)[1]
    first = shape_of(arrays, f"{block}mlp.{dialect.mlp[0]}.weight", 2)[0]
    gated = len(dialect.mlp) == 3 or (first == 2 * hidden)
    mlp = ("swiglu" if gated else "plain") + ("_norm" if has(f"{block}mlp.norm.weight") else "")
    special = has("cls_token") + has("dist_token")
    registers = shape_of(arrays, dialect.registers, 3)[1] if has(dialect.registers) else 0
    dinov3 = dialect.periods or (has("cls_token") and bool(registers) and not has("pos_embed"))
    own_bias = has(f"{block}attn.q_bias") or has(f"{block}attn.q_proj.weight")
    eva02 = not dinov3 and ((gated and own_bias) or not (has("cls_token") or has("pos_embed")))
    position, grid, square = grid_of(
        shape_of(arrays, "pos_embed", 3)[1] if has("pos_embed") else None,
        said.image_size,
        pixels,
        special,
        registers,
        told,
        registers_first=dialect.name == "timm",
        usual_size=256 if dinov3 and dialect.name == "timm" else 224,
    )
    table = by_name.HEADS_OF_DINOV3 if dinov3 else by_name.HEADS if gated else by_name.HEADS_OF_SIGLIP
    stated = said.arguments.get("num_heads")
    stated = by_name.heads_by_name(said.architecture, width) if stated is None else stated
    fields = {
        "image_size": (grid[0] * pixels[0], grid[1] * pixels[1]),
        "patch_size": tuple(patch),
        "width": width,
        "depth": depth_of(arrays, "blocks."),
        "heads": heads_of(width, hints.heads, stated, told, table),
        "mlp_width": hidden,
        "channels": channels,
        "patch_bias": has("patch_embed.proj.bias"),
        "class_token": has("cls_token"),
        "distillation_token": has("dist_token"),
        "register_tokens": registers,
        "position_embedding": position,
        "rotary_embedding": "dinov3" if dinov3 else "eva02" if eva02 else None,
        "interpolation": _interpolation(said, dialect, bool(registers)),
        "pre_norm": has("norm_pre.weight"),
        "attention_bias": _attention_bias(arrays, dialect, dinov3),
        "attention_norm": has(f"{block}attn.norm.weight"),
        "mlp": mlp,
        "gelu": _gelu(said),
        "layer_scale": _layer_scale(said) if has(f"{block}{dialect.scales[0]}") else None,
        "layer_norm_epsilon": 1e-5 if dinov3 or _is_clip(arrays, said) or _is_beit3(mlp, said) else 1e-6,
    }
    fields |= stem
    if eva02:
        fields |= _rotary_grid(said)
    if not (said.architecture or gated):
        told.append("no config.json names its architecture; the exact GELU is assumed, as timm computes most models")
    fields |= _end(arrays, said, dialect, dinov3, told)
    return fields | _pictures(said, fields, dialect, told), square


def _interpolation(said: _Statements, dialect: Dialect, registers: bool) -> str:
    if dialect.name in ("Facebook MAE", "Facebook I-JEPA"):
        return "bicubic_hf"
    if dialect.name == "Facebook DINO" or (dialect.name == "Facebook DINOv2" and not registers):
        return "bicubic_offset"
    return by_name.interpolation_of(said.architecture)


def _attention_bias(arrays: Mapping[str, StoredArray], dialect: Dialect, dinov3: bool) -> str:
    has = arrays.keys().__contains__
    block = "blocks.0.attn."
    if not dialect.fused:
        return attention_bias(*(has(f"{block}{letter}_proj.bias") for letter in "qkv"))
    if not dialect.fused_bias:
        return attention_bias(True, False, has(f"{block}v_bias"))
    # Facebook's DINOv3 multiplies the keys' part by a mask of zeros.
    masked = dinov3 and dialect.name == "Facebook DINOv3"
    return ("no_key" if masked else "all") if has(f"{block}qkv.bias") else "none"


def _gelu(said: _Statements) -> str:
    activation = said.arguments.get("act_layer")
    if activation is None:
        return by_name.gelu_of(said.architecture)
    if activation not in (names := list(ACTIVATIONS.values())):
        raise ValueError(f"its config.json says act_layer={printable(activation, 60)}; one of {names} was expected.")
    return next(gelu for gelu, name in ACTIVATIONS.items() if name == activation)


def _is_clip(arrays: Mapping[str, StoredArray], said: _Statements) -> bool:
    """Whether its epsilon is that of CLIP's models, which is not timm's usual."""
    return by_name.is_clip(said.architecture) if said.architecture else "norm_pre.weight" in arrays


def _is_beit3(mlp: str, said: _Statements) -> bool:
    """Whether it is a BEiT-3, the only published models with a norm in an MLP that has no gate."""
    return by_name.is_beit3(said.architecture) if said.architecture else mlp == "plain_norm"


def _layer_scale(said: _Statements) -> float:
    value = said.arguments.get("init_values")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else LAYER_SCALE


def _rotary_grid(said: _Statements) -> Fields:
    grid = image_size_in(said.arguments.get("ref_feat_shape"))
    return {} if grid is None else {"rotary_grid": grid}


def _end(
    arrays: Mapping[str, StoredArray], said: _Statements, dialect: Dialect, dinov3: bool, told: list[str]
) -> Fields:
    """From the tokens to the answer."""
    has = arrays.keys().__contains__
    if said.pooling not in (None, *_POOLINGS):
        raise ValueError(f"its config says that it pools by {printable(said.pooling, 60)}, which is not known here.")
    pooling = None if said.pooling is None else _POOLINGS[said.pooling]
    special, pools_all = has("cls_token") or has(dialect.registers), said.arguments.get("pool_include_prefix") is True
    fields: Fields = {}
    if has("attn_pool.latent"):
        pooling = "map"
        if special:
            fields["map_prefix"] = pools_all or by_name.pools_prefix(said.architecture)
    elif pooling is None:
        mean = has("fc_norm.weight") or not has("cls_token") or (dinov3 and dialect.name == "timm")
        pooling = "avg" if mean else "token"
        if not (has("fc_norm.weight") or has("head.weight")):
            what = "the mean of the patches" if mean else "the class token"
            told.append(f"no config.json says what it answers with; {what} is assumed")
    if pooling == "avg" and special and pools_all:
        raise ValueError("its config.json says pool_include_prefix=true: a mean of all tokens is not known here.")
    fields |= {"pooling": pooling, "final_norm": "pooled" if has("fc_norm.weight") else "tokens"}
    if not (has("fc_norm.weight") or has("norm.weight")):
        fields["final_norm"] = "none"
    elif pooling == "none":
        fields["final_norm"] = "tokens"  # which is the same
    if has("head.weight"):
        out = shape_of(arrays, "head.weight", 2)[0]
        bias = arrays.get("head.bias")
        if has("norm_pre.weight") and bias is not None and not bias.read().any():
            told.append(f"its head has a bias of zeros: a projection to the {out} numbers of the text's space")
            fields["projection"] = out
        else:
            fields |= {"classes": out, "class_names": labels_in(said.labels, out)}
            fields["distillation_head"] = has("head_dist.weight")
    return fields


def _pictures(said: _Statements, fields: Mapping[str, Any], dialect: Dialect, told: list[str]) -> Fields:
    if said.open_clip:
        return of_open_clip(said.open_clip, pictures(HALF, "squash", 1.0), told)
    if not said.published.get("mean"):
        told.append("no config.json says how its pictures are prepared; means, deviations and crop are assumed")
    if said.architecture:
        default = by_name.pictures_of(said.architecture)
    elif fields["pre_norm"] or fields["rotary_embedding"] == "eva02":
        default = pictures(CLIP, "shortest", 1.0)
    elif fields["rotary_embedding"] == "dinov3" or dialect.name == "Facebook DINOv2":
        default = pictures(IMAGENET, "shortest", 1.0)
    elif dialect.name != "timm" or fields["distillation_token"] or fields["layer_scale"] is not None:
        default = pictures(IMAGENET, "shortest", 0.9)
    else:
        default = pictures(HALF, "shortest", 0.9)
    return of_timm(said.published, default, told)


def _layout(dialect: Dialect | None = None) -> Layout:
    """The layout in the names of a dialect; None for those that timm itself has for a model."""

    def spoken(function: Callable[..., Any]) -> Callable[[ViTConfig], Any]:
        return lambda config: function(config, dialect or timms_own(config))

    return Layout(
        "timm",
        spoken(_rows),
        lambda config: {},
        _read,
        check_writable,
        restate if dialect is None or dialect.name == "timm" else lambda config, read: (config, {}),
        computed=spoken(_computed),
        sidecars=sidecars,
    )


LAYOUT = _layout()
