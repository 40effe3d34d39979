"""The layout of timm's Vision Transformers, and of Facebook's own files (DINO, DINOv2, DINOv3, MAE, DeiT-III, I-JEPA).

They have the same names but for a few. open_clip's files whose image tower is timm's (SigLIP, EVA-02-CLIP) have them
under `visual.trunk.`. What no array tells is told by `architecture` in a repository's config.json.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import TABLE, Contents, Layout, Row, bounded, collect, finish, shape_of
from keras_vit.checkpoints.layouts import library_configs, mixer, pytorch
from keras_vit.checkpoints.layouts.pytorch import Family, Fields, linear, mapping, norm, packed, preparation, trunk
from keras_vit.checkpoints.like import plain_architecture
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig, convolutions

_ANCHOR = "patch_embed.proj.weight"
_TRUNK = "visual.trunk."
_MODULES = (_TRUNK, "module.backbone.", "backbone.", "timm_model.", "module.")
# What a self-distillation learns besides its backbone.
_BESIDE = r"(head|dino_head|ibot_head)\..*"
_UNUSED = r"mask_token|local_cls_norm\..*|blocks\.\d+\.attn\.qkv\.bias_mask|decoder.*|num_batches_tracked"
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+\.)")  # blocks in chunks, counted through
_POOLINGS = {"token": "token", "tok": "token", "avg": "avg", "map": "map", "": "none"}
_TIMM = Family(title="timm", interpolation="bicubic")
# What files call their parts. A key never has a bias where the others have none in common.
_CHOICES = {
    "register_tokens": ("storage_tokens", "register_tokens", "reg_token"),
    "scales": (("gamma_1", "gamma_2"), ("ls1.gamma", "ls2.gamma")),
    "attention": (("attn.qkv.", "attn.proj"), ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj")),
    "mlp": (
        ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2"),
        ("mlp.w1", "mlp.w2", "mlp.w3"),
        ("mlp.w12", "mlp.w3"),
        ("mlp.fc1", "mlp.fc2"),
    ),
    "norm": ("fc_norm", "norm"),
}
_OWN_BIASES = ("attn.q_bias", "attn.k_bias", "attn.v_bias")
_STEM = "patch_embed.backbone."
_MOST_STAGES = 4  # every stage halves the image, and no such model has more

# What architectures' names tell; of each table the first pattern that is found counts.

# Models whose arrays have the names of others, but which compute something else.
_REFUSED = {
    r"_rpn_": "normalises after each branch instead of before",
    r"eva02_enormous": "normalises after each branch instead of before, and does not turn its queries and keys",
    r"_rope_(ape_|mixed_)*\d+$": "turns its queries and keys by a rotary embedding that is not known here",
    r"vit_pe_": "is a perception encoder, whose rotary embedding and pooling are not known here",
}
# timm's SigLIPs compute the exact GELU but for these, though all were trained with the approximation.
_GELUS = {
    r"quickgelu": "quick",
    r"^vit_(base_patch32_siglip(_gap)?_256|large_patch16_siglip(_gap)?_512"
    r"|so400m_patch16_siglip(_gap)?_(256|384|512)|giantopt_patch16_siglip(_gap)?_(256|384))$": "tanh",
    r"": "exact",
}
# The channels of a head, where the width tells something else.
_HEAD_SIZES = {r"^test_vit": 32, r"^vit_base_patch16_gap_": {768: 48}, r"_radio_": {1536: 64}, r"giantopt": {1536: 96}}
# How images are prepared, for files without a `pretrained_cfg`, as most files of that kind have it.
_PREPARATIONS = {
    r"clip|eva02|eva_": preparation(pytorch.CLIP, "shortest", 1.0),
    r"dinov[23]|beit3|deit3_.*_384": preparation(pytorch.IMAGENET, "shortest", 1.0),
    r"miil": preparation(pytorch.NONE, "shortest", 0.875, "bilinear_pillow"),
    r"tipsv2": preparation(pytorch.NONE, "shortest", 1.0),
    r"deit|dino|mae|ijepa": preparation(pytorch.IMAGENET, "shortest", 0.9),
    r"_384": preparation(pytorch.HALF, "shortest", 1.0),
    r"^mixer_": preparation(pytorch.HALF, "shortest", 0.875),
    r"": preparation(pytorch.HALF, "shortest", 0.9),
}


def _first(table: Mapping[str, Any], architecture: str) -> Any:
    """Of a table by patterns what belongs to an architecture; None where it has nothing."""
    return next((value for pattern, value in table.items() if re.search(pattern, architecture)), None)


# Rows


def _rows(config: ViTConfig, family: Family | None) -> list[Row]:
    """The rows in the names of a family; None for those that timm itself has for a model."""
    if config.tokens_mlp_width is not None:
        return mixer.timm_rows(config)
    width = config.width
    rows = (_stem_rows(config) if config.stem_stages is not None else []) + trunk(config, family or _own(config))
    if config.pooling == "map":
        rows += linear("attn_pool.q", pytorch.POOLED_ATTENTION[0], width, width)
        rows += packed("attn_pool.kv.", pytorch.POOLED_ATTENTION[1:], width, width)
        rows += pytorch.attention_pooling(
            config, "attn_pool.latent", "attn_pool.proj", "attn_pool.norm", "attn_pool.mlp"
        )
    if config.projection:
        rows.append(Row("head.weight", "projection/kernel", (config.projection, width), pytorch.LINEAR))
        rows.append(Row("head.bias", "projection/bias" if config.projection_bias else None, (config.projection,)))
    if config.classes:
        rows += linear("head", "head", config.classes, config.pooled_size)
        rows += linear("head_dist", "head_dist", config.classes, width) if config.distillation_head else []
    return rows


def _own(config: ViTConfig) -> Family:
    """The names that timm itself has for a model."""
    eva, separate = library_configs.is_eva(config), config.mlp == "swiglu_norm"
    unpacked = separate or (config.mlp == "swiglu" and config.rotary_embedding == "dinov3")
    return dataclasses.replace(
        _TIMM,
        scales=_CHOICES["scales"][0 if eva else 1],
        attention=_CHOICES["attention"][1 if separate else 0],
        own_biases=_OWN_BIASES if eva and not separate else (),
        mlp=_CHOICES["mlp"][0 if unpacked else 3],
        norm="fc_norm" if config.final_norm == "pooled" else "norm",
    )


def _stem_rows(config: ViTConfig) -> list[Row]:
    rows = []  # as timm's `models/resnetv2.py` has them
    for conv in convolutions(config):
        if not conv.stage:  # without stages, it stands in no module of its own
            name, number = f"{_STEM}stem." if config.stem_stages else _STEM, ""
        else:
            name, number = f"{_STEM}stages.{conv.stage - 1}.blocks.{conv.unit - 1}.", conv.layer.removeprefix("conv")
        if conv.layer == "conv_proj":
            name, number = f"{name}downsample.", ""
        kernel, path = (conv.filters, conv.inputs, conv.size, conv.size), conv.unit_path
        rows.append(Row(f"{name}conv{number}.weight", f"{path}{conv.layer}/kernel", kernel, pytorch.CONVOLUTION))
        rows += norm(f"{name}norm{number}", f"{path}{conv.layer.replace('conv', 'gn')}", conv.filters)
    return rows


# Recognition


def _read(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents | None:
    found = collect(file, hints, _ANCHOR, _MODULES, _BESIDE)
    if found is None:
        return _read_mixer(file, hints)
    contents, outer, module = found
    contents.head = ("head.bias", "head.weight")
    contents.arrays = {_CHUNK.sub(r"blocks.\1", name): array for name, array in contents.arrays.items()}
    stated = _stated(contents, module == _TRUNK)
    container = getattr(file, "container", "") or outer.partition(".")[0]
    family = _family(contents, "teacher" if module.endswith("backbone.") else container)
    _refuse(contents, stated["architecture"])
    config = ViTConfig(**_fields(contents, stated, family))
    config = pytorch.used_at(contents, config, stated.get("input_size") or stated["image_size"], is_size=False)
    size, patch = stated.get("test_size"), config.image_size_of((1, 1))
    whole = size not in (None, config.image_size) and not (size[0] % patch[0] or size[1] % patch[1])
    if whole and stated["image_size"] is None:
        config = pytorch.used_at(contents, config, size)
    unused = _UNUSED if module else rf"{_UNUSED}|{_BESIDE}"
    return finish(contents, _layout(family), family.title, config, unused)


def _read_mixer(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents | None:
    found = collect(file, hints, mixer.TIMM_ANCHOR, _MODULES, _BESIDE)
    if found is None:
        return None
    contents, *_ = found
    contents.head = ("head.bias", "head.weight")
    stated = _stated(contents, False)
    architecture, size = stated["architecture"], stated["image_size"] or stated.get("input_size")
    default = _first(_PREPARATIONS, architecture or "mixer_")
    if not stated["published"].get("mean"):
        sentence = "no config.json says how its pictures are prepared; means, deviations and crop are assumed"
        pytorch.note(contents, "crop_ratio", sentence, architecture)
    config = mixer.timm_config(contents.arrays, pytorch.preparation_in(stated["published"], default))
    labels = pytorch.class_names(stated.get("labels"), config.classes or 0)
    config = config.replace(pooling="none" if stated["pooling"] == "" else "avg", class_names=labels or None)
    grid = size and (size[0] // config.patch_size[0], size[1] // config.patch_size[1])
    if grid and math.prod(grid) == math.prod(config.grid_size):
        config = config.replace(image_size=config.image_size_of(grid))
    contents.square = grid is not None or config.grid_size[0] == config.grid_size[1]
    return finish(contents, LAYOUT, "timm", config, "")


def _stated(contents: Contents, is_trunk: bool) -> dict[str, Any]:
    """What the JSON files beside a file say, and the user."""
    given, open_clip = contents.hints.get("architecture"), contents.hints.get("open_clip")
    if is_trunk and open_clip is not None:
        vision = mapping(open_clip, "model_cfg", "vision_cfg")
        return {
            "architecture": plain_architecture(given or vision.get("timm_model_name", "")),
            "arguments": mapping(vision, "timm_model_kwargs"),
            "pooling": vision.get("timm_pool") or None,
            "image_size": pytorch.image_size_in(vision.get("image_size")),
            "open_clip": mapping(open_clip, "preprocess_cfg"),
            "published": {},
        }
    config = contents.hints.get("config") or {}
    if config and "architecture" not in config:
        contents.notes.append("the config.json beside it is not timm's and is left out")
        config = {}
    if given and config and plain_architecture(given) != plain_architecture(config["architecture"]):
        said = printable(config["architecture"], 60)
        raise ValueError(f"its config.json says architecture={said}, but like={given!r} was given: leave it out.")
    arguments = mapping(config, "model_args")
    published = mapping(config, "pretrained_cfg") or config  # older files have it all on one level
    sizes = {key: published.get(key) for key in ("input_size", "test_input_size")}
    sizes = {key: pytorch.image_size_in(value[1:]) if isinstance(value, list) else None for key, value in sizes.items()}
    return {
        "architecture": plain_architecture(given or config.get("architecture", "")),
        "arguments": arguments,
        "published": published,
        "pooling": config.get("global_pool", arguments.get("global_pool")),
        "labels": config.get("label_names"),
        "image_size": pytorch.image_size_in(arguments.get("img_size")),
        "input_size": sizes["input_size"],
        "test_size": sizes["test_input_size"],
    }


def _family(contents: Contents, container: str) -> Family:
    """Who has published a file, and what it calls its parts; `container` is the dict that the model was in."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    bias = has("blocks.0.attn.qkv.bias")
    titles = (
        (has("storage_tokens") or has("rope_embed.periods"), "Facebook DINOv3"),
        (has("register_tokens") or (has("mask_token") and has("blocks.0.ls1.gamma")), "Facebook DINOv2"),
        (any("decoder" in name for name in (*arrays, *contents.unused)), "Facebook MAE"),
        (has("blocks.0.gamma_1") and bias and has("pos_embed"), "Facebook DeiT-III"),
        (container == "teacher", "Facebook DINO"),
        (container in ("target_encoder", "encoder"), "Facebook I-JEPA"),
        # Fine-tuned.
        (container == "model" and has("cls_token") and has("fc_norm.weight") and bias, "Facebook MAE"),
        (True, "timm"),
    )
    title = next(title for is_there, title in titles if is_there)
    own_biases = _OWN_BIASES if has("blocks.0.attn.q_bias") else ()
    family = dataclasses.replace(_TIMM, title=title, own_biases=own_biases, periods=has("rope_embed.periods"))
    return family.as_in(arrays, _CHOICES)


def _refuse(contents: Contents, architecture: str) -> None:
    """Raises ValueError where the names are known and the computation is another."""
    has = contents.arrays.keys().__contains__
    latent, has_norm, after = has("attn_pool.latent"), has("norm.weight"), has("fc_norm.weight")
    registers = any(map(has, _CHOICES["register_tokens"]))
    own_bias = has("blocks.0.attn.q_bias") or has("blocks.0.attn.q_proj.weight")
    biases = any(map(has, ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")))
    why = _first(_REFUSED, architecture)
    token, afterwards = has("cls_token"), "after each branch instead of before"
    perception = has("norm_pre.weight") and (latent or not (has_norm or after))
    no_positions = token and not (has("pos_embed") or registers or has("rope_embed.periods"))
    wide = shape_of(contents.arrays, _ANCHOR, 4)[0] == 1792
    problems = {
        f"{printable(architecture, 100)} {why}. It cannot be computed here.": why,
        "it has 'norm_pre' with 'attn_pool' or without 'norm': perception encoders are not known here.": perception,
        "it has 'attn_pool' without 'norm', which no known family has.": latent and not has_norm,
        f"it is EVA-02-E, which normalises {afterwards}.": wide and own_bias,
        "it has 'cls_token', but neither 'pos_embed' nor 'reg_token': vit_*_rope_* are not known here.": no_positions,
        "it has 'fc_norm', but neither 'cls_token' nor biases of queries, keys and values: vit_*_rpn_* models "
        f"normalise {afterwards}.": after and not (token or registers or biases),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(problem)


# Configs


def _fields(contents: Contents, stated: Mapping[str, Any], family: Family) -> Fields:
    """The config of the model."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    architecture, arguments = stated["architecture"], stated["arguments"]
    is_timms = family.title == "timm"
    stem = _stem_fields(contents)
    own_bias = has("blocks.0.attn.q_bias") or has("blocks.0.attn.q_proj.weight")
    dinov3 = (
        family.periods
        or "dinov3" in architecture
        or (has("cls_token") and has(family.register_tokens) and not has("pos_embed"))
    )
    first, last = (shape_of(arrays, f"blocks.0.{family.mlp[i]}.weight", 2) for i in (0, -1))
    gated = len(family.mlp) == 3 or first[0] == 2 * last[1]
    family = dataclasses.replace(
        family,
        interpolation=_interpolation(architecture, family, has(family.register_tokens)),
        heads_by_width=pytorch.HEADS_OF_DINOV3 if dinov3 else pytorch.HEADS if gated else pytorch.HEADS_OF_SIGLIP,
    )
    width, size = arrays[_ANCHOR].shape[0], _first(_HEAD_SIZES, architecture)
    size = size.get(width) if isinstance(size, dict) else size
    heads = arguments.get("num_heads")
    fields = pytorch.trunk_fields(
        contents,
        family,
        size=stated["image_size"] or stated.get("input_size"),
        heads=width // size if heads is None and size else heads,
        is_named=bool(architecture),
        cell=4 * 2 ** max(len(stem["stem_stages"]) - 1, 0) if stem else 1,
        registers_first=is_timms,
        usual_size=256 if dinov3 and is_timms else 224,
    )
    if dinov3 and family.title == "Facebook DINOv3" and has("blocks.0.attn.qkv.bias"):
        fields["attention_bias"] = "no_key"  # it multiplies the keys' part by a mask of zeros
    turned = arguments.get("use_rot_pos_emb", (gated and own_bias) or not (has("cls_token") or has("pos_embed")))
    eva02 = not dinov3 and turned is True
    coarse = fields["pre_norm"] or fields["mlp"] == "plain_norm"  # CLIP, BEiT-3
    if architecture:
        coarse = re.match(r"vit_.*_clip_|beit3_", architecture) is not None
    fields |= {
        **stem,
        "rotary_embedding": "dinov3" if dinov3 else "eva02" if eva02 else None,
        "gelu": _gelu(architecture, arguments),
        "layer_norm_epsilon": 1e-5 if dinov3 or coarse else 1e-6,
    }
    if has(f"blocks.0.{family.scales[0]}"):
        value = arguments.get("init_values")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fields["layer_scale"] = float(value) if is_number else pytorch.LAYER_SCALE
    if eva02 and (grid := pytorch.image_size_in(arguments.get("ref_feat_shape"))) is not None:
        fields["rotary_grid"] = grid
    if not (architecture or gated) and fields["pre_norm"]:
        contents.unknown["gelu"] = pytorch.UNKNOWN_GELU
    elif not (architecture or gated):
        contents.assumed["gelu"] = "no config.json names its architecture; the exact GELU is assumed, as in most models"
    fields |= _end(contents, stated, dinov3 and is_timms, fields)
    return fields | _preparation(contents, stated, fields, family)


def _gelu(architecture: str, arguments: Mapping[str, Any]) -> str:
    """Which GELU timm computes: what a model is called with, or by its name."""
    activation = arguments.get("act_layer")
    if activation is None:
        return _first(_GELUS, architecture)
    names = {name: kind for kind, name in library_configs.TIMM_ACTIVATIONS.items()}
    if not isinstance(activation, str) or activation not in names:
        raise ValueError(f"its config.json says act_layer={printable(activation, 60)}; expected one of {list(names)}.")
    return names[activation]


def _stem_fields(contents: Contents) -> Fields:
    """The fields of the config that say which ResNet a file has; none for a file without one."""
    if not any(re.match(rf"{_STEM}(stem|conv|norm|stages)\.", name) for name in contents.arrays):
        return {}
    pattern = rf"^{re.escape(_STEM)}stages\.(\d+)\.blocks\.(\d+)\."
    units = {(int(s), int(u)) for s, u in re.findall(pattern, "\n".join(contents.arrays), re.MULTILINE)}
    count = 1 + max((stage for stage, _ in units), default=-1)
    if count > _MOST_STAGES:
        raise ValueError(f"Its ResNet has {count} stages, but those of known models have {_MOST_STAGES} at most.")
    bounded(1 + max((unit for _, unit in units), default=0))
    root = f"{_STEM}stem.conv.weight" if count else f"{_STEM}conv.weight"
    width, channels, *_ = shape_of(contents.arrays, root, 4)
    stages = tuple(1 + max((unit for stage, unit in units if stage == s), default=0) for s in range(count))
    return {"stem_stages": stages, "stem_width": width, "stem_epsilons": "timm", "channels": channels}


def _interpolation(architecture: str, family: Family, registers: bool) -> str:
    if family.title in ("Facebook MAE", "Facebook I-JEPA"):
        return "bicubic_hf"
    if family.title == "Facebook DINO" or (family.title == "Facebook DINOv2" and not registers):
        return "bicubic_offset"
    return "bilinear" if "flexi" in architecture else "bicubic"


def _end(contents: Contents, stated: Mapping[str, Any], averages: bool, trunk: Fields) -> Fields:
    """From the tokens to the answer; `averages` is whether models of that kind answer with a mean without a config."""
    arrays, asked, architecture = contents.arrays, stated["pooling"], stated["architecture"]
    has = arrays.keys().__contains__
    if asked not in (None, *_POOLINGS):
        raise ValueError(f"its config says that it pools by {printable(asked, 60)}, which is not known here.")
    pooling = None if asked is None else _POOLINGS[asked]
    special = has("cls_token") or trunk["register_tokens"] > 0
    pools_all = stated["arguments"].get("pool_include_prefix") is True
    fields: Fields = {}
    if has("attn_pool.latent"):
        pooling = "map"
        if special:
            fields["map_prefix"] = pools_all or architecture.startswith("test_vit3")
    elif pooling is None:
        mean = has("fc_norm.weight") or not has("cls_token") or averages
        pooling = "avg" if mean else "token"
        if not (has("fc_norm.weight") or has("head.weight") or has("dist_token")):
            what = "the mean of the patches" if mean else "the class token"
            sentence = f"no config.json says what it answers with; {what} is assumed"
            pytorch.note(contents, "pooling", sentence, architecture)
    if pooling == "token" and has("dist_token") and not has("head.weight"):
        pooling = "token_dist"
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
        biased = bias is not None and bool(bias.read().any())
        if stated.get("open_clip") is not None or (has("norm_pre.weight") and bias is not None and not biased):
            contents.notes.append(f"its head is a projection to {out} numbers, the text's space")
            return fields | {"projection": out, "projection_bias": biased}
        fields |= {"classes": out, "class_names": pytorch.class_names(stated.get("labels"), out)}
        fields["distillation_head"] = has("head_dist.weight")
    return fields


def _preparation(contents: Contents, stated: Mapping[str, Any], fields: Fields, family: Family) -> Fields:
    if stated.get("open_clip"):
        return pytorch.preparation_in(stated["open_clip"], preparation(pytorch.HALF, "squash", 1.0), "resize_mode")
    kinds = (
        (stated["architecture"], _first(_PREPARATIONS, stated["architecture"])),
        (fields["pre_norm"] or fields["rotary_embedding"] == "eva02", _PREPARATIONS["clip|eva02|eva_"]),
        (
            fields["rotary_embedding"] == "dinov3" or family.title == "Facebook DINOv2",
            preparation(pytorch.IMAGENET, "shortest", 1.0),
        ),
        (
            family.title != "timm" or fields["distillation_token"] or "layer_scale" in fields,
            preparation(pytorch.IMAGENET, "shortest", 0.9),
        ),
        (True, preparation(pytorch.HALF, "shortest", 0.9)),
    )
    if not stated["published"].get("mean"):
        sentence = "no config.json says how its pictures are prepared; means, deviations and crop are assumed"
        pytorch.note(contents, "crop_ratio", sentence, stated["architecture"])
    tests = stated.get("test_size") is not None and stated["image_size"] is None
    default = next(default for is_it, default in kinds if is_it)
    return pytorch.preparation_in(stated["published"], default, crop_key="test_crop_pct" if tests else "crop_pct")


def _restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Adds the positions of class and distillation token to them, where timm's models with registers have none."""
    if config.position_embedding != "learned_without_registers" or not config.register_tokens:
        return config, {}
    table = read(TABLE)
    special = config.prefix_tokens - config.register_tokens
    changed = {TABLE: table[:, special:]}
    for i, path in enumerate(["class_token/token", "distillation_token/token"][:special]):
        changed[path] = read(path) + table[:, i : i + 1]
    return config.replace(position_embedding="learned_patches"), changed


def _layout(family: Family | None = None) -> Layout:
    """The layout in the names of a family; None for those that timm itself has for a model."""
    stores_periods = family is not None and family.periods
    return Layout(
        "timm",
        functools.partial(_rows, family=family),
        _read,
        library_configs.check_writable_by_timm,
        _restate if family is None or family.title == "timm" else lambda config, read: (config, {}),
        computed=lambda config: {} if stores_periods else pytorch.computed_periods(config),
        sidecars=library_configs.timm_sidecars,
        settled_by="Pass like=..., a variant or timm's name of the model, or put its config.json beside it.",
    )


LAYOUT = _layout()
