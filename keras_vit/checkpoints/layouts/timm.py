"""The layout of timm's Vision Transformers, and of Facebook's own files (DINO, DINOv2, DINOv3, MAE, DeiT-III, I-JEPA).

They have the same names but for a few. The same layout stands in open_clip's files whose image tower is timm's
(SigLIP, EVA-02-CLIP), under `visual.trunk.`, and the hybrids have a ResNet before the patches. What timm calls its
models, and how a model is said to it, is in `timm_models.py`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents, Hints, Layout, Row, bounded, shape_of
from keras_vit.checkpoints.layouts import timm_models
from keras_vit.checkpoints.layouts.pictures import (
    CLIP,
    HALF,
    IMAGENET,
    Fields,
    of_open_clip,
    of_timm,
    pictures,
    trim,
)
from keras_vit.checkpoints.layouts.pytorch import (
    CONVOLUTION,
    HEADS_OF_DINOV3,
    HEADS_OF_SIGLIP,
    LAYER_SCALE,
    LINEAR,
    UNKNOWN_GELU,
    Family,
    class_names,
    collect,
    computed_periods,
    finish,
    image_size_in,
    linear,
    mapping,
    norm,
    packed,
    trunk,
    trunk_fields,
)
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
_MOST_STAGES = 4  # every stage halves the picture, and no such model has more


# Rows


def _rows(config: ViTConfig, family: Family | None) -> list[Row]:
    """The rows in the names of a family; None for those that timm itself has for a model."""
    width, hidden = config.width, config.mlp_width
    rows = _stem_rows(config) + trunk(config, family or _own(config))
    if config.pooling == "map":
        rows.append(Row("attn_pool.latent", "pooling/probe", (1, 1, width)))
        rows += linear("attn_pool.q", "pooling/attention/query", width, width)
        rows += packed("attn_pool.kv.", ("pooling/attention/key", "pooling/attention/value"), width, width)
        rows += linear("attn_pool.proj", "pooling/attention/out", width, width)
        rows += norm("attn_pool.norm", "pooling/norm", width)
        rows += linear("attn_pool.mlp.fc1", "pooling/mlp/fc1", hidden, width)
        rows += linear("attn_pool.mlp.fc2", "pooling/mlp/fc2", width, hidden)
    if config.projection:
        rows.append(Row("head.weight", "projection/kernel", (config.projection, width), LINEAR))
        rows.append(Row("head.bias", None, (config.projection,)))
    if config.classes:
        rows += linear("head", "head", config.classes, config.pooled_size)
        rows += linear("head_dist", "head_dist", config.classes, width) if config.distillation_head else []
    return rows


def _own(config: ViTConfig) -> Family:
    """The names that timm itself has for a model."""
    eva, separate = timm_models.is_eva(config), config.mlp == "swiglu_norm"
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
    """The rows of a hybrid's ResNet (timm's `models/resnetv2.py`); none for a model without one."""
    rows = []
    for conv in convolutions(config):
        if not conv.stage:  # without stages, it stands in no module of its own
            name, number = f"{_STEM}stem." if config.stem_stages else _STEM, ""
        else:
            name, number = f"{_STEM}stages.{conv.stage - 1}.blocks.{conv.unit - 1}.", conv.layer.removeprefix("conv")
        if conv.layer == "conv_proj":
            name, number = f"{name}downsample.", ""
        kernel, path = (conv.filters, conv.inputs, conv.size, conv.size), conv.unit_path
        rows.append(Row(f"{name}conv{number}.weight", f"{path}{conv.layer}/kernel", kernel, CONVOLUTION))
        rows += norm(f"{name}norm{number}", f"{path}{conv.layer.replace('conv', 'gn')}", conv.filters)
    return rows


# Recognition


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    found = collect(file, _ANCHOR, _MODULES, _BESIDE)
    if found is None:
        return None
    contents, outer, module = found
    contents.head = ("head.bias", "head.weight")
    contents.arrays = {_CHUNK.sub(r"blocks.\1", name): array for name, array in contents.arrays.items()}
    stated = _stated(contents, hints, module == _TRUNK)
    container = getattr(file, "container", "") or outer.partition(".")[0]
    family = _family(contents, "teacher" if module.endswith("backbone.") else container)
    _refuse(contents, stated["architecture"])
    config = ViTConfig(**_fields(contents, stated, family, hints))
    config = config.replace(**trim(stated.get("input_size") or stated["image_size"], config))
    if stated["image_size"] is None and stated["test_size"] is not None:
        _use_at(contents, config, stated["test_size"])
    unused = _UNUSED if module else rf"{_UNUSED}|{_BESIDE}"
    return finish(contents, _layout(family), family.title, config, unused)


def _use_at(contents: Contents, config: ViTConfig, size: tuple[int, int]) -> None:
    """Notes that the publisher uses the model at a size that is not that of its position embeddings."""
    if size != config.image_size and not any(n % config.image_size_of((1, 1))[i] for i, n in enumerate(size)):
        contents.image_size = size
        contents.notes.append(
            f"its position embeddings are for {config.image_size[0]} x {config.image_size[1]} pixels, and its "
            f"publisher uses it at {size[0]} x {size[1]}, as is done here: they are resized. image_size=... takes "
            "another size"
        )


def _stated(contents: Contents, hints: Hints, is_trunk: bool) -> dict[str, Any]:
    """What the JSON files beside a file say, and the user; empty where they say nothing."""
    config = hints.config or {}
    stated: dict[str, Any] = {"open_clip": {}, "published": {}, "labels": None, "test_size": None}
    if is_trunk and hints.open_clip is not None:
        vision = mapping(mapping(hints.open_clip, "model_cfg"), "vision_cfg")
        return stated | {
            "architecture": _plain(hints.architecture or vision.get("timm_model_name", "")),
            "arguments": mapping(vision, "timm_model_kwargs"),
            "pooling": vision.get("timm_pool") or None,
            "image_size": image_size_in(vision.get("image_size")),
            "open_clip": mapping(hints.open_clip, "preprocess_cfg"),
        }
    if config and "architecture" not in config:
        contents.notes.append("the config.json beside it is not timm's and is left out")
        config = {}
    arguments = mapping(config, "model_args")
    published = mapping(config, "pretrained_cfg") or config  # older files have it all on one level
    return stated | {
        "architecture": _plain(hints.architecture or config.get("architecture", "")),
        "arguments": arguments,
        "published": published,
        "pooling": config.get("global_pool", arguments.get("global_pool")),
        "labels": config.get("label_names"),
        "image_size": image_size_in(arguments.get("img_size")),
        "input_size": _without_channels(published.get("input_size")),
        "test_size": _without_channels(published.get("test_input_size")),
    }


def _without_channels(value: Any) -> tuple[int, int] | None:
    return image_size_in(value[1:]) if isinstance(value, list) else None


def _plain(architecture: Any) -> str:
    """An architecture's name without the address and the tag that repositories have."""
    return str(architecture).rpartition("/")[2].partition(".")[0]


def _family(contents: Contents, container: str) -> Family:
    """Who has published a file, and what it calls its parts; `container` is the dict that the model was in."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    bias = has("blocks.0.attn.qkv.bias")
    title = "timm"
    if has("storage_tokens") or has("rope_embed.periods"):
        title = "Facebook DINOv3"
    elif has("register_tokens") or (has("mask_token") and has("blocks.0.ls1.gamma")):
        title = "Facebook DINOv2"
    elif any("decoder" in name for name in (*arrays, *contents.unused)):
        title = "Facebook MAE"
    elif has("blocks.0.gamma_1") and bias and has("pos_embed"):
        title = "Facebook DeiT-III"
    elif container == "teacher":
        title = "Facebook DINO"
    elif container in ("target_encoder", "encoder"):
        title = "Facebook I-JEPA"
    elif container == "model" and has("cls_token") and has("fc_norm.weight") and bias:
        title = "Facebook MAE"  # fine-tuned
    own_biases = _OWN_BIASES if has("blocks.0.attn.q_bias") else ()
    family = dataclasses.replace(_TIMM, title=title, own_biases=own_biases, periods=has("rope_embed.periods"))
    return family.as_in(arrays, _CHOICES)


def _refuse(contents: Contents, architecture: str) -> None:
    """Raises ValueError where the names are known and the computation is another."""
    why = timm_models.refusal(architecture)
    if why is not None:
        raise ValueError(f"{printable(architecture, 100)} {why}. It cannot be computed here.")
    has = contents.arrays.keys().__contains__
    if has("norm_pre.weight") and (has("attn_pool.latent") or not (has("norm.weight") or has("fc_norm.weight"))):
        raise ValueError(
            "it has 'norm_pre' together with 'attn_pool' or without 'norm', as perception encoders have, whose rotary "
            "embedding and pooling are not known here."
        )
    if has("attn_pool.latent") and not has("norm.weight"):
        raise ValueError("it has 'attn_pool' without 'norm', which no known family has.")
    own_bias = has("blocks.0.attn.q_bias") or has("blocks.0.attn.q_proj.weight")
    if shape_of(contents.arrays, _ANCHOR, 4)[0] == 1792 and own_bias:
        raise ValueError("it is EVA-02-E, which normalises after each branch instead of before.")
    registers = any(map(has, _CHOICES["register_tokens"]))
    if has("cls_token") and not (has("pos_embed") or registers or has("rope_embed.periods")):
        raise ValueError(
            "it has 'cls_token', but neither 'pos_embed' nor 'reg_token', as models have whose rotary embedding is not "
            "known here (vit_*_rope_*)."
        )
    biases = any(map(has, ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")))
    if has("fc_norm.weight") and not (has("cls_token") or registers or biases):
        raise ValueError(
            "it has 'fc_norm', but neither 'cls_token' nor biases of queries, keys and values, as the models have that "
            "normalise after each branch instead of before (vit_*_rpn_*)."
        )


# Configs


def _fields(contents: Contents, stated: Mapping[str, Any], family: Family, hints: Hints) -> Fields:
    """The config of the model."""
    has = contents.arrays.keys().__contains__
    architecture, arguments = stated["architecture"], stated["arguments"]
    is_timms = family.title == "timm"
    stem = _stem_fields(contents)
    own_bias = has("blocks.0.attn.q_bias") or has("blocks.0.attn.q_proj.weight")
    dinov3 = family.periods or (has("cls_token") and has(family.register_tokens) and not has("pos_embed"))
    gated = len(family.mlp) == 3 or _is_packed(contents, family)
    family = dataclasses.replace(
        family,
        interpolation=_interpolation(architecture, family, has(family.register_tokens)),
        heads_by_width=HEADS_OF_DINOV3 if dinov3 else _TIMM.heads_by_width if gated else HEADS_OF_SIGLIP,
    )
    heads = arguments.get("num_heads")
    fields = trunk_fields(
        contents,
        family,
        hints,
        size=stated["image_size"] or stated.get("input_size"),
        heads=timm_models.heads(architecture, contents.arrays[_ANCHOR].shape[0]) if heads is None else heads,
        is_named=bool(architecture),
        cell=4 * 2 ** max(len(stem["stem_stages"]) - 1, 0) if stem else 1,
        registers_first=is_timms,
        usual_size=256 if dinov3 and is_timms else 224,
    )
    if dinov3 and family.title == "Facebook DINOv3" and has("blocks.0.attn.qkv.bias"):
        fields["attention_bias"] = "no_key"  # it multiplies the keys' part by a mask of zeros
    eva02 = not dinov3 and ((gated and own_bias) or not (has("cls_token") or has("pos_embed")))
    clip, beit3 = fields["pre_norm"], fields["mlp"] == "plain_norm"
    if architecture:
        clip, beit3 = timm_models.is_clip(architecture), architecture.startswith("beit3_")
    fields |= {
        **stem,
        "rotary_embedding": "dinov3" if dinov3 else "eva02" if eva02 else None,
        "gelu": timm_models.gelu(architecture, arguments),
        "layer_norm_epsilon": 1e-5 if dinov3 or clip or beit3 else 1e-6,
    }
    if has(f"blocks.0.{family.scales[0]}"):
        value = arguments.get("init_values")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fields["layer_scale"] = float(value) if is_number else LAYER_SCALE
    if eva02 and (grid := image_size_in(arguments.get("ref_feat_shape"))) is not None:
        fields["rotary_grid"] = grid
    if not (architecture or gated):
        if fields["pre_norm"]:
            contents.unknown["gelu"] = UNKNOWN_GELU
        else:
            contents.assumed["gelu"] = (
                "no config.json names its architecture; the exact GELU is assumed, as timm computes most models"
            )
    fields |= _end(contents, stated, dinov3 and is_timms, fields)
    return fields | _pictures(contents, stated, fields, family)


def _is_packed(contents: Contents, family: Family) -> bool:
    first, last = (shape_of(contents.arrays, f"blocks.0.{family.mlp[i]}.weight", 2) for i in (0, -1))
    return first[0] == 2 * last[1]


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
    arrays, arguments = contents.arrays, stated["arguments"]
    has = arrays.keys().__contains__
    if stated["pooling"] not in (None, *_POOLINGS):
        raise ValueError(
            f"its config says that it pools by {printable(stated['pooling'], 60)}, which is not known here."
        )
    pooling = None if stated["pooling"] is None else _POOLINGS[stated["pooling"]]
    special = has("cls_token") or trunk["register_tokens"] > 0
    pools_all = arguments.get("pool_include_prefix") is True
    fields: Fields = {}
    if has("attn_pool.latent"):
        pooling = "map"
        if special:
            fields["map_prefix"] = pools_all or stated["architecture"].startswith("test_vit3")
    elif pooling is None:
        mean = has("fc_norm.weight") or not has("cls_token") or averages
        pooling = "avg" if mean else "token"
        if not (has("fc_norm.weight") or has("head.weight") or has("dist_token")):
            what = "the mean of the patches" if mean else "the class token"
            sentence = f"no config.json says what it answers with; {what} is assumed"
            if stated["architecture"]:
                contents.notes.append(sentence)
            else:
                contents.assumed["pooling"] = sentence
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
        if has("norm_pre.weight") and bias is not None and not bias.read().any():
            contents.notes.append(
                f"its head has a bias of zeros: a projection to the {out} numbers of the text's space"
            )
            return fields | {"projection": out}
        fields |= {"classes": out, "class_names": class_names(stated["labels"], out)}
        fields["distillation_head"] = has("head_dist.weight")
    return fields


def _pictures(contents: Contents, stated: Mapping[str, Any], fields: Fields, family: Family) -> Fields:
    if stated["open_clip"]:
        return of_open_clip(stated["open_clip"], pictures(HALF, "squash", 1.0))
    if stated["architecture"]:
        default = timm_models.pictures_of(stated["architecture"])
    elif fields["pre_norm"] or fields["rotary_embedding"] == "eva02":
        default = pictures(CLIP, "shortest", 1.0)
    elif fields["rotary_embedding"] == "dinov3" or family.title == "Facebook DINOv2":
        default = pictures(IMAGENET, "shortest", 1.0)
    elif family.title != "timm" or fields["distillation_token"] or "layer_scale" in fields:
        default = pictures(IMAGENET, "shortest", 0.9)
    else:
        default = pictures(HALF, "shortest", 0.9)
    if not stated["published"].get("mean"):
        sentence = "no config.json says how its pictures are prepared; means, deviations and crop are assumed"
        if stated["architecture"]:
            contents.notes.append(sentence)
        else:
            contents.assumed["crop_ratio"] = sentence
    tests = stated["test_size"] is not None and stated["image_size"] is None
    return of_timm(stated["published"], default, "test_crop_pct" if tests else "crop_pct")


def _layout(family: Family | None = None) -> Layout:
    """The layout in the names of a family; None for those that timm itself has for a model."""
    own = family is None or family.title == "timm"
    return Layout(
        "timm",
        functools.partial(_rows, family=family),
        _read,
        timm_models.check_writable,
        timm_models.restate if own else lambda config, read: (config, {}),
        computed=lambda config: {} if family is not None and family.periods else computed_periods(config),
        sidecars=timm_models.sidecars,
        settled_by="Pass heads=... and architecture=..., timm's name of the model, or put its config.json beside it.",
    )


LAYOUT = _layout()
