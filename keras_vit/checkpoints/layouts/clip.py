"""The layout of CLIP's image tower in the names of OpenAI's code, which open_clip has, too."""

from collections.abc import Collection, Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import Layout, Plan, Remark, Row, check_fields, plain_values, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import pytorch
from keras_vit.checkpoints.layouts.pytorch import Family, Trunk
from keras_vit.checkpoints.layouts.sidecars import (
    CLIP,
    FILTER_NAMES,
    image_size_in,
    mapping,
    number,
    preparation,
    preparation_in,
)
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

_ANCHOR = "conv1.weight"
_OPENAI = ("input_resolution", "context_length", "vocab_size")  # what only OpenAI's own files hold
_BESIDE = rf"{'|'.join(_OPENAI)}|attn_mask"
_POOLINGS = {"tok": "token", "token": "token", "avg": "avg"}
# What open_clip's vision_cfg may say that leaves the computation as it is read here; anything else is refused.
_HARMLESS = {"ls_init_value": None, "attentional_pool": False, "input_patchnorm": False, "no_ln_pre": False}
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
    preparation=preparation(CLIP, "shortest", 1.0),
)


def _rows(config: ViTConfig) -> list[Row]:
    rows = pytorch.trunk_rows(config, FAMILY)
    return [*rows, Row("proj", "projection/kernel", (config.width, config.projection))] if config.projection else rows


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether an image tower of CLIP is among the arrays."""
    starts = (name.removesuffix(_ANCHOR) for name in names if name.endswith(_ANCHOR))
    return any(f"{start}class_embedding" in names for start in starts) and bool(pytorch.prefixes_of(names, _ANCHOR))


def config(arrays: Mapping[str, StoredArray], sidecars: Sidecars) -> tuple[ViTConfig, Trunk]:
    """The config that arrays and open_clip_config.json tell, and what was assumed; ValueError for what is not known."""
    model = mapping(sidecars.open_clip, "model_cfg")
    vision = mapping(model, "vision_cfg")
    size = vision.get("head_width", 64 if vision else None)
    if size is not None and (type(size) is not int or size < 1):
        raise _not_known("head_width", size)
    trunk = pytorch.trunk_of(
        arrays,
        sidecars,
        FAMILY,
        size=image_size_in(vision.get("image_size")),
        heads=None if size is None else shape_of(arrays, _ANCHOR, 4)[0] // size,
        is_named=bool(sidecars.architecture),
    )
    fields = {
        **trunk.fields,
        "pre_norm": True,
        "gelu": _gelu(sidecars, vision),
        "layer_norm_epsilon": number(mapping(vision, "norm_kwargs"), "eps", 1e-5),
        "pooling": _pooling(vision),
        "projection": shape_of(arrays, "proj", 2)[1] if "proj" in arrays else None,
        **preparation_in(mapping(sidecars.open_clip, "preprocess_cfg"), FAMILY.preparation, "resize_mode"),
    }
    check_stated(vision, "vision_cfg", fields)
    check_stated(model, "model_cfg", fields)
    return ViTConfig(**fields), trunk


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """The plan by which an image tower of CLIP is read; ValueError for what is not computed here."""
    found = pytorch.collect(file, _ANCHOR, ("visual.",), _BESIDE)
    stored, trunk = config(found.arrays, sidecars)
    remarks = list(trunk.remarks)
    if not (sidecars.open_clip or sidecars.architecture):
        if any(name.rpartition(".")[2] in _OPENAI for name in (*found.arrays, *found.unused)):
            remarks.append(Remark("it is OpenAI's own, which has QuickGELU"))
        else:
            remarks.append(Remark(pytorch.UNKNOWN_GELU, "gelu", "unknown"))
    made = Plan(
        layout=LAYOUT,
        dialect="open_clip" if sidecars.open_clip else "OpenAI",
        prefix=f"{found.outer}{found.module}",
        stored=stored,
        arrays=found.arrays,
        unused=found.unused,
        warnings=remarks,
        is_grid_known=trunk.is_grid_known,
    )
    return pytorch.without_unused(made, "" if found.module else _BESIDE)


def check_stated(stated: Mapping[str, Any], place: str, fields: Mapping[str, Any]) -> None:
    """Raises ValueError where a part of open_clip's config says other sizes of a tower than its arrays have."""
    width, hidden = fields["width"], fields["mlp_width"]
    sizes = {"layers": fields["depth"], "width": width, "vocab_size": fields.get("vocabulary")}
    if fields.get("projection"):
        sizes["embed_dim"] = fields["projection"]
    if patch := list(fields.get("patch_size", ())):  # open_clip takes one number, or two
        is_one = patch[0] == patch[1] and not isinstance(stated.get("patch_size"), list)
        sizes["patch_size"] = patch[0] if is_one else patch
    wrong = {key: size for key, size in sizes.items() if stated.get(key) not in (None, size)}
    # open_clip computes int(width * mlp_ratio).
    if stated.get("mlp_ratio") is not None and not hidden <= width * number(stated, "mlp_ratio", 4) < hidden + 1:
        wrong["mlp_ratio"] = f"{hidden} / {width}"
    for key, size in wrong.items():
        given = f"its {place} says {key}={printable(stated[key], 60)}, but the arrays have {size}"
        raise ValueError(f"The open_clip_config.json beside it belongs to another file: {given}.")


def _gelu(sidecars: Sidecars, vision: Mapping[str, Any]) -> str:
    """Which GELU it computes: as its JSON file or `like` says, OpenAI's where nothing does.

    Raises ValueError if `like` names another kind of model.
    """
    like = sidecars.architecture
    if like and "clip" not in like.lower() and not like.startswith("ViT-"):
        advice = "pass one such as 'ViT-B-32-quickgelu', or put open_clip_config.json beside the file"
        raise ValueError(f"it is a CLIP, but like={like!r} is another model: {advice}.")
    if like:
        return "quick" if "quickgelu" in like else "exact"
    if not sidecars.open_clip or mapping(sidecars.open_clip, "model_cfg").get("quick_gelu"):
        return "quick"
    return "tanh" if mapping(vision, "act_kwargs").get("approximate") == "tanh" else "exact"


def _pooling(vision: Mapping[str, Any]) -> str:
    """The pooling that open_clip's `vision_cfg` says; ValueError for one that is not computed here."""
    for key, harmless in _HARMLESS.items():
        if vision.get(key, harmless) not in (harmless, None):
            raise _not_known(key, vision[key])
    kind = vision.get("pool_type", "tok")
    after = vision.get("final_ln_after_pool", False)
    if not isinstance(kind, str) or kind not in _POOLINGS or (kind != "tok" and after):
        raise _not_known("pool_type", kind)
    return _POOLINGS[kind]


def _not_known(key: str, value: Any) -> ValueError:
    return ValueError(f"its open_clip_config.json says {key}={printable(value, 60)}, which is not known here.")


_ACCEPTED = {
    **plain_values("stem_stages", "class_token", "distillation_token", "register_tokens", "rotary_embedding", "mlp"),
    **plain_values("attention_bias", "attention_norm", "layer_scale", "final_norm", "representation_size", "classes"),
    **plain_values("tokens_mlp_width", "projection_bias"),
    "position_embedding": ("learned", "learned_patches"),
    "pre_norm": (True,),
    "pooling": ("token", "none"),
}


def _sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The `open_clip_config.json` of an image tower."""
    vision = {
        "image_size": list(config.image_size),
        "layers": config.depth,
        "width": config.width,
        "head_width": config.head_size,
        "patch_size": config.patch_size[0] if len({*config.patch_size}) == 1 else list(config.patch_size),
        "mlp_ratio": pytorch.mlp_ratio(config.mlp_width, config.width),
    }
    if config.gelu == "tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    if config.layer_norm_epsilon != 1e-5:
        vision["norm_kwargs"] = {"eps": config.layer_norm_epsilon}
    prepared = {
        "mean": list(config.pixel_mean),
        "std": list(config.pixel_std),
        "interpolation": FILTER_NAMES[config.filter],
        "resize_mode": config.resize,
    }
    model = {"embed_dim": config.projection, "quick_gelu": config.gelu == "quick", "vision_cfg": vision}
    return {"open_clip_config.json": {"model_cfg": model, "preprocess_cfg": prepared}}


LAYOUT = Layout(
    "clip",
    _rows,
    recognise,
    plan,
    lambda config: check_fields(config, "'clip'", _ACCEPTED),
    accounting.with_prefix_positions,
    sidecars=_sidecars,
    settled_by="Pass like=..., or put its open_clip_config.json beside it.",
)
