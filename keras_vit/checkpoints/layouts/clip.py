"""The layouts of image towers in the names of OpenAI's code: CLIP (open_clip, too), and Meta's Perception Encoder.

A Perception Encoder has other parts than a CLIP. A Core has attention pooling and a projection; Lang and Spatial end
with their last block. No array tells its heads.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import Layout, Notice, Plan, Row, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import jsons, pytorch
from keras_vit.checkpoints.layouts.jsons import HALF, Key, preparation
from keras_vit.checkpoints.layouts.pytorch import Family
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

_ANCHOR = "conv1.weight"


def _projection_rows(config: ViTConfig) -> list[Row]:
    return [Row("proj", "projection/kernel", (config.width, config.projection))] if config.projection else []


# CLIP

_OPENAI = ("input_resolution", "context_length", "vocab_size")  # what only OpenAI's own files hold
_BESIDE = rf"{'|'.join(_OPENAI)}|attn_mask"
_FILE = "open_clip_config.json"
_POOLINGS = {"tok": "token", "token": "token", "avg": "avg"}
_SIZES = (
    *(Key("projection", "embed_dim"), Key("depth", "layers"), Key("width", "width")),
    *(Key("vocabulary", "vocab_size"), Key("patch_size", "patch_size", jsons.one_or_two)),
)
# What open_clip's vision_cfg may say that leaves the computation as it is read here; anything else is refused.
_HARMLESS = {"ls_init_value": None, **dict.fromkeys(("attentional_pool", "input_patchnorm", "no_ln_pre"), False)}
_HARMLESS |= {"global_average_pool": False}
FAMILY = Family(
    title="OpenAI",
    patches="conv1",
    class_token="class_embedding",
    positions="positional_embedding",
    flat=True,
    pre_norm="ln_pre",
    blocks="transformer.resblocks.",
    norms=("ln_1", "ln_2"),
    attention=("attn.in_proj_", "attn.out_proj"),
    mlp=("mlp.c_fc", "mlp.c_proj"),
    norm="ln_post",
    interpolation="bicubic",
    preparation=preparation(jsons.CLIP, "shortest", 1.0),
)


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether an image tower of CLIP is among the arrays."""
    return any(f"{prefix}class_embedding" in names for prefix in pytorch.prefixes_of(names, _ANCHOR))


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which an image tower of CLIP is read."""
    like = sidecars.architecture
    if like and "clip" not in like.lower() and not like.startswith("ViT-"):
        raise ValueError(f"like must be a CLIP such as 'ViT-B-32-quickgelu' for this file, but {like!r} was given.")
    found = pytorch.collect(file, _ANCHOR, ("visual.",), _BESIDE)
    arrays, model = found.arrays, jsons.mapping(sidecars.open_clip, "model_cfg")
    vision = jsons.mapping(model, "vision_cfg")
    heads, pixels = None, jsons.image_size_in(vision.get("image_size"))
    if vision:
        heads = int(shape_of(arrays, _ANCHOR, 4)[0] // jsons.number(vision, "head_width", 64))
    trunk = pytorch.trunk_of(arrays, sidecars, FAMILY, size=pixels, heads=heads, is_named=bool(like))
    fields = {
        **trunk.fields,
        "pre_norm": True,
        "gelu": gelu_of(sidecars, vision, "quick"),
        "layer_norm_epsilon": jsons.mapping(vision, "norm_kwargs").get("eps", 1e-5),
        "pooling": _pooling(vision),
        "projection": shape_of(arrays, "proj", 2)[1] if "proj" in arrays else None,
        **jsons.preparation_in(jsons.mapping(sidecars.open_clip, "preprocess_cfg"), FAMILY.preparation, "resize_mode"),
    }
    check_open_clip(vision, "vision_cfg", fields)
    check_open_clip(model, "model_cfg", fields)
    warnings = list(trunk.warnings)
    if not (sidecars.open_clip or like):
        if any(name.rpartition(".")[2] in _OPENAI for name in (*arrays, *found.unused)):
            warnings.append(Notice("the names are those of OpenAI's CLIP, so the quick GELU is used"))
        else:
            warnings.append(Notice(pytorch.UNKNOWN_GELU, "gelu", "unknown"))
    return pytorch.plan_of(
        found,
        trunk,
        "",
        _BESIDE,
        layout=LAYOUT,
        dialect="open_clip" if sidecars.open_clip else "OpenAI",
        stored=jsons.used_at(ViTConfig(**fields), pixels, is_size=False)[0],
        warnings=warnings,
    )


def check_open_clip(metadata: Mapping[str, Any], place: str, fields: jsons.Fields) -> None:
    """Raises ValueError where a part of open_clip's config says other sizes than the tower's arrays."""
    file = f"{place} of {_FILE}"
    keys = _SIZES if fields.get("projection") else _SIZES[1:]
    jsons.check_sizes(metadata, keys, fields, file)
    width, hidden = fields["width"], fields["mlp_width"]
    # open_clip computes int(width * mlp_ratio).
    if not hidden <= width * jsons.number(metadata, "mlp_ratio", (hidden + 0.5) / width) < hidden + 1:
        jsons.check_sizes(metadata, [Key("ratio", "mlp_ratio")], {"ratio": hidden / width}, file)


def gelu_of(sidecars: Sidecars, tower: Mapping[str, Any], known: str | None) -> str | None:
    """Returns which GELU a tower computes, as `like` says or open_clip's config (`tower`: its part), else `known`."""
    if sidecars.architecture:
        return "quick" if "quickgelu" in sidecars.architecture else "exact"
    if not sidecars.open_clip:
        return known
    if jsons.mapping(sidecars.open_clip, "model_cfg").get("quick_gelu"):
        return "quick"
    return "tanh" if jsons.mapping(tower, "act_kwargs").get("approximate") == "tanh" else "exact"


def _pooling(vision: Mapping[str, Any]) -> str:
    """Returns the pooling that open_clip's `vision_cfg` says; ValueError for what is not computed here."""
    for key, harmless in _HARMLESS.items():
        jsons.value_in(vision, key, (harmless, None), file=_FILE)
    kind = jsons.value_in(vision, "pool_type", _POOLINGS, file=_FILE)
    if kind != "tok":
        jsons.value_in(vision, "final_ln_after_pool", (False, None), file=_FILE)
    return _POOLINGS[kind]


def _sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    vision = {
        "image_size": list(config.pipeline.prepared_size),
        **jsons.written((_SIZES[1], _SIZES[2], _SIZES[4]), config),
        "head_width": config.head_size,
        "mlp_ratio": pytorch.mlp_ratio(config.mlp_width, config.width),
    }
    if config.gelu == "tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    if config.layer_norm_epsilon != 1e-5:
        vision["norm_kwargs"] = {"eps": config.layer_norm_epsilon}
    model = {"embed_dim": config.projection, "quick_gelu": config.gelu == "quick", "vision_cfg": vision}
    return {"open_clip_config.json": {"model_cfg": model, "preprocess_cfg": jsons.prepared_by(config, "resize_mode")}}


# What no tower of OpenAI's names has otherwise.
_NEEDS = {
    **{"patch_bias": (False,), "distillation_token": (False,), "register_tokens": (0,), "attention_bias": ("all",)},
    **{"attention_norm": (False,), "mlp": ("plain",)},
    "position_embedding": ("learned", "learned_patches", "learned_without_registers"),
}
LAYOUT = Layout(
    "clip",
    lambda config: pytorch.trunk_rows(config, FAMILY) + _projection_rows(config),
    recognise,
    plan,
    accounting.with_prefix_positions,
    sidecars=_sidecars,
    needs=lambda config: _NEEDS,
    advice="Pass like=..., or put open_clip_config.json beside the file.",
)


# Perception Encoder

# Every published model computes this, and has a pooling of 8 heads.
PE_COMPUTES = {
    "gelu": "exact",
    "layer_norm_epsilon": 1e-5,
    "pre_norm": True,
    "rotary_embedding": "pe",
    "rotary_grid": None,
}
PE_POOLING_HEADS = 8
PE_HEADS = {1536: 16}  # where a head has not 64 channels
_FIRST_SCALE = 0.1
PE_FAMILY = dataclasses.replace(
    FAMILY,
    title="Meta",
    scales=("ls_1.gamma", "ls_2.gamma"),
    heads_by_width=PE_HEADS,
    interpolation="bilinear",
    preparation=preparation(HALF, "squash", 1.0, "bilinear_pillow"),
)


def _pe_rows(config: ViTConfig) -> list[Row]:
    rows = pytorch.trunk_rows(config, PE_FAMILY)
    if config.pooling == "map":
        rows += pytorch.packed("attn_pool.attn.in_proj_", pytorch.POOLED_ATTENTION, config.width, config.width)
        out, mlp = "attn_pool.attn.out_proj", ("attn_pool.mlp.c_fc", "attn_pool.mlp.c_proj")
        rows += pytorch.attention_pooling(config, "attn_pool.probe", out, "attn_pool.layernorm", mlp)
    return rows + _projection_rows(config)


def recognise_pe(names: Collection[str], sidecars: Sidecars) -> bool:
    """Returns whether a Perception Encoder is there: OpenAI's names, and a probe or no last normalisation."""
    for prefix in pytorch.prefixes_of(names, _ANCHOR):
        pools, has_norm = f"{prefix}attn_pool.probe" in names, f"{prefix}ln_post.weight" in names
        if f"{prefix}ln_pre.weight" in names and (pools or not has_norm):
            return True
    return False


def plan_of_pe(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which a Perception Encoder is read."""
    found = pytorch.collect(file, _ANCHOR, ("visual.",), "logit_scale")
    arrays, has = found.arrays, found.arrays.keys().__contains__
    shape_of(arrays, PE_FAMILY.positions, 2)  # every such model has them
    trunk = pytorch.trunk_of(arrays, sidecars, PE_FAMILY, size=None, heads=None, is_named=True)
    fields: dict[str, Any] = {**trunk.fields, **PE_COMPUTES, **PE_FAMILY.preparation, "pooling": "none"}
    fields["final_norm"] = "tokens" if has("ln_post.weight") else "none"
    fields["pooling_heads"] = PE_POOLING_HEADS
    if has("attn_pool.probe"):
        hidden = shape_of(arrays, "attn_pool.mlp.c_fc.weight", 2)[0]
        fields |= {"pooling": "map", "pooling_mlp_width": None if hidden == fields["mlp_width"] else hidden}
    if has("proj"):
        fields["projection"] = shape_of(arrays, "proj", 2)[1]
    if has(f"{PE_FAMILY.blocks}0.{PE_FAMILY.scales[0]}"):
        fields["layer_scale"] = _FIRST_SCALE
    return pytorch.plan_of(
        found,
        trunk,
        "",
        "logit_scale",
        layout=PE,
        dialect=PE_FAMILY.title,
        stored=ViTConfig(**fields),
    )


PE = Layout(
    "pe",
    _pe_rows,
    recognise_pe,
    plan_of_pe,
    accounting.with_prefix_positions,
    sidecars=lambda config: {},
    needs=lambda config: _NEEDS,
    advice="Pass like=..., such as 'PE-Core-B/16'.",
)
