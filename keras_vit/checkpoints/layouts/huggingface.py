"""The layout of Hugging Face's transformers: ViT, DeiT, MAE, I-JEPA, DINOv2, DINOv3, CLIP and SigLIP.

Versions 4 and 5 of transformers have other names. Reading takes each part as it comes, writing has those of the Hub.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents, Layout, Row, collect, finish, shape_of, with_prefix_positions
from keras_vit.checkpoints.layouts import library_configs, pytorch
from keras_vit.checkpoints.layouts.pytorch import Family, Fields, linear, number, preparation
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

# What the parts of a block are called; the first of each is that of ViT on the Hub.
_ATTENTIONS = (
    (*(f"attention.attention.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
    tuple(f"attention.{letter}_proj" for letter in "qkvo"),
    (*(f"self_attn.{letter}_proj" for letter in "qkv"), "self_attn.out_proj"),
)
_NORMS = (("layernorm_before", "layernorm_after"), ("norm1", "norm2"), ("layer_norm1", "layer_norm2"))
MLPS = (
    ("intermediate.dense", "output.dense"),
    ("mlp.fc1", "mlp.fc2"),
    ("mlp.weights_in", "mlp.weights_out"),
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ("mlp.up_proj", "mlp.down_proj"),
)
_BLOCKS = ("encoder.layer.", "encoder.layers.", "model.layer.", "model.layers.", "layer.", "layers.")
_CHOICES = {"blocks": _BLOCKS, "attention": _ATTENTIONS, "norms": _NORMS, "mlp": MLPS}
_MODULES = ("dinov2_with_registers.", "dinov3_vit.", "vision_model.", "dinov2.", "ijepa.", "deit.", "vit.")
# Arrays outside of the module; version 5 writes the blocks of ViTMSNForImageClassification without the module's name.
_TOP = (
    r"(classifier|cls_classifier|distillation_classifier)\.(weight|bias)|visual_projection\.weight"
    rf"|({'|'.join(map(re.escape, _BLOCKS))})\d+\..*"
)
_BESIDE = r"decoder\..*|(text_model|text_projection)\..*|logit_scale|logit_bias"
_UNUSED = r"embeddings\.(mask_token|position_ids)|rope_embeddings\.inv_freq"
# The names of activations and what they compute; `gelu_fast` and its like differ by rounding errors only.
ACTIVATIONS = {
    **{"gelu": "exact", "gelu_python": "exact", "quick_gelu": "quick"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "tanh"),
}

_VIT = Family(
    title="ViT",
    module="vit.",
    patches="embeddings.patch_embeddings.projection",
    class_token="embeddings.cls_token",
    distillation_token="embeddings.distillation_token",
    register_tokens="embeddings.register_tokens",
    positions="embeddings.position_embeddings",
    pre_norm="pre_layrnorm",
    blocks="encoder.layer.",
    norms=_NORMS[0],
    attention=_ATTENTIONS[0],
    mlp=MLPS[0],
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="layernorm",
    types=("vit", "vit_mae", "vit_msn"),
    epsilon=1e-12,
)
_CENTRE = {"preparation": preparation(pytorch.IMAGENET, "shortest", 0.9)}
_DINO = {
    "norms": _NORMS[1],
    "mlp": MLPS[1],
    "epsilon": 1e-6,
    "preparation": preparation(pytorch.IMAGENET, "shortest", 0.875),
}
_TOWER = {
    "module": "vision_model.",
    "patches": "embeddings.patch_embedding",
    "class_token": "embeddings.class_embedding",
    "positions": "embeddings.position_embedding.weight",
    "flat": True,
    "blocks": "encoder.layers.",
    "norms": _NORMS[2],
    "attention": _ATTENTIONS[2],
    "mlp": MLPS[1],
    "norm": "post_layernorm",
}


def _family(title: str, *types: str, **fields: Any) -> Family:
    """A family by what it has other than ViT."""
    return dataclasses.replace(_VIT, title=title, types=types, **fields)


# The families by their `model_type`.
FAMILIES: dict[str, Family] = {
    "vit": _VIT,
    "deit": _family("DeiT", "deit", module="deit.", preparation=preparation(pytorch.IMAGENET, "squash", 0.875)),
    "vit_mae": _family("MAE", "vit_mae", **_CENTRE),
    "vit_msn": _family("MSN", "vit_msn", epsilon=1e-6, **_CENTRE),
    "ijepa": _family("I-JEPA", "ijepa", module="ijepa.", **_CENTRE),
    "dinov2": _family("DINOv2", "dinov2", module="dinov2.", **_DINO),
    "dinov2_with_registers": _family(
        "DINOv2 with registers",
        "dinov2_with_registers",
        **_DINO,
        module="dinov2_with_registers.",
        interpolation="bicubic",
        mask_token=(1,),
    ),
    "dinov3_vit": _family(
        "DINOv3",
        "dinov3_vit",
        **_DINO
        | {
            "module": "",
            "patches": "embeddings.patch_embeddings",
            "blocks": "layer.",
            "attention": _ATTENTIONS[1],
            "norm": "norm",
            "epsilon": 1e-5,
            "heads": 6,
            "preparation": preparation(pytorch.IMAGENET, "squash", 1.0, "bilinear_antialias"),
            "heads_by_width": pytorch.HEADS_OF_DINOV3,
            "mask_token": (1, 1),
        },
    ),
    "clip": _family(
        "CLIP",
        *("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
        **_TOWER,
        activation="quick_gelu",
        epsilon=1e-5,
        preparation=preparation(pytorch.CLIP, "shortest", 1.0),
    ),
    "siglip": _family(
        "SigLIP",
        *("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
        **_TOWER,
        activation="gelu_pytorch_tanh",
        epsilon=1e-6,
        preparation=preparation(pytorch.HALF, "squash", 1.0),
        heads_by_width=pytorch.HEADS_OF_SIGLIP,
    ),
}


# Rows


def _rows(config: ViTConfig, family: Family | None) -> list[Row]:
    """The rows in the names of a family; None for those that a model's family has on the Hub."""
    names = family or FAMILIES[library_configs.family_to_write(config)]
    if family is None and (names.title == "DINOv3" or config.mlp == "swiglu"):
        gated = config.mlp == "swiglu"
        names = dataclasses.replace(names, mlp=MLPS[2 if names.title != "DINOv3" else 3 if gated else 4])
    width, module = config.width, names.module
    if family is None and not (config.classes or names.flat):
        module = ""  # models without a head are published without their module's name, but for those of two towers
    rows = pytorch.trunk(config, names)
    if family is None and names.mask_token is not None:  # only training uses it, but transformers misses it
        rows.append(Row("embeddings.mask_token", None, (*names.mask_token, width)))
    if config.pooling == "map":
        rows += pytorch.packed("head.attention.in_proj_", pytorch.POOLED_ATTENTION, width, width)
        rows += pytorch.attention_pooling(config, "head.probe", "head.attention.out_proj", "head.layernorm", "head.mlp")
    if config.representation_size:
        rows += linear("pooler.dense", "pre_logits", config.representation_size, width)
    rows = [dataclasses.replace(row, name=f"{module}{row.name}") for row in rows]
    if config.projection:
        shape = (config.projection, width)
        rows.append(Row("visual_projection.weight", "projection/kernel", shape, pytorch.LINEAR))
    if config.classes and config.distillation_head:
        rows += linear("cls_classifier", "head", config.classes, width)
        rows += linear("distillation_classifier", "head_dist", config.classes, width)
    elif config.classes:
        rows += linear("classifier", "head", config.classes, config.pooled_size)
    return rows


# Recognition


def _read(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents | None:
    anchors = dict.fromkeys(f"{family.patches}.weight" for family in FAMILIES.values())
    models = (collect(file, hints, anchor, _MODULES, _BESIDE, _TOP) for anchor in anchors)
    found = next((model for model in models if model is not None), None)
    if found is None:
        return None
    contents, _, module = found
    contents.head = ("classifier.bias", "classifier.weight")
    name = _family_of(contents, file)
    stated = _stated(contents, FAMILIES[name])
    name = stated["model_type"] if stated.get("model_type") in FAMILIES else name
    published = FAMILIES[name]
    family = dataclasses.replace(published, module="").as_in(contents.arrays, _CHOICES)
    fields, without = _fields(contents, stated, name, family)
    pytorch.check_stated(stated, "config.json", {"patch_size": fields["patch_size"]})
    prepared, size = dict(family.preparation), None
    if (preprocessor := hints.get("preprocessor")) is not None:
        prepared, size = _preparation(preprocessor, family.preparation)
    else:
        words = "no preprocessor_config.json says how its pictures are prepared"
        contents.assumed["crop_ratio"] = f"{words}; its family's usual way is assumed"
    if prepared["resize"] == "shortest" or prepared["crop_ratio"] < 1:
        prepared["crop_rounding"] = "floor"  # transformers' image_transforms.center_crop, with Pillow and torchvision
    config = ViTConfig(**fields | prepared)
    contents.unused += [contents.arrays.pop(array).name for array in without]
    config = pytorch.used_at(contents, config, size)
    if family.flat:
        is_new = module != "vision_model."
    else:
        is_new = family.blocks != published.blocks or family.attention != published.attention
    dialect = f"{family.title}, transformers {5 if is_new else 4}"
    layout = _layout(family, number(stated, "rope_theta", 100.0))
    return finish(contents, layout, dialect, config, _UNUSED if module else rf"{_UNUSED}|{_BESIDE}")


def _family_of(contents: Contents, file: Mapping[str, StoredArray]) -> str:
    """The name of the family whose arrays a file has."""
    has = contents.arrays.keys().__contains__
    if has("embeddings.patch_embedding.weight"):
        return "clip" if has("embeddings.class_embedding") else "siglip"
    if has("embeddings.patch_embeddings.weight"):
        return "dinov3_vit"
    if any(name.endswith(".layer_scale1.lambda1") for name in contents.arrays):
        return "dinov2_with_registers" if has("embeddings.register_tokens") else "dinov2"
    if has("embeddings.distillation_token"):
        return "deit"
    if not has("embeddings.cls_token"):
        return "ijepa"
    return "vit_mae" if any(".decoder_embed." in name for name in file) else "vit"


def _stated(contents: Contents, family: Family) -> Mapping[str, Any]:
    """What config.json says of the image model; empty where there is none."""
    config, architecture = contents.hints.get("config") or {}, contents.hints.get("architecture")
    is_clip = family.title == "CLIP"
    if architecture is not None and (config or not is_clip):
        advice = "leave it out, and put the repository's config.json beside the file"
        raise ValueError(f"it has Hugging Face's names, and like={architecture!r} is timm's: {advice}.")
    if isinstance(config.get("vision_config"), dict):
        config = {"model_type": config.get("model_type"), **config["vision_config"]}
    if not config:
        if is_clip and architecture is None:
            contents.unknown["gelu"] = pytorch.UNKNOWN_GELU
        usual = f"GELU ({family.activation}), epsilon ({family.epsilon:g}) and others are assumed as in {family.title}"
        contents.assumed["layer_norm_epsilon" if is_clip else "gelu"] = f"no config.json is beside it: {usual}"
    elif config.get("model_type") not in (None, *family.types):
        given = f"it is of the type {printable(config['model_type'], 60)}, but its arrays are those of {family.title}"
        raise ValueError(f"the config.json says that {given}; {', '.join(family.types)} were expected.")
    return config


# Configs


def _fields(contents: Contents, stated: Mapping[str, Any], name: str, family: Family) -> tuple[Fields, list[str]]:
    """The config of the model, and the arrays that it does not use."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    kernel, rotary = f"{family.patches}.weight", name == "dinov3_vit"
    if has(kernel) and len(arrays[kernel].shape) == 2:
        raise ValueError(f"its patches go through a matrix ({kernel!r}). NaFlex models are not supported.")
    if not rotary and not has(family.positions):
        raise ValueError(f"it has no array {family.positions!r}, the position embeddings of {family.title}.")
    _check_size(stated, "hidden_size", shape_of(arrays, kernel, 4)[0])
    fields = pytorch.trunk_fields(
        contents,
        family,
        size=pytorch.image_size_in(stated.get("image_size", 224 if stated and rotary else None)),
        heads=stated.get("num_attention_heads", family.heads if stated else None),
        is_named=False,
    )
    _check_size(stated, "num_hidden_layers", fields["depth"])
    end, without = _end(contents, stated, name, family)
    fields |= {
        "rotary_embedding": "dinov3" if rotary else None,
        "gelu": _gelu(contents, stated, name, family, fields["mlp"] == "swiglu"),
        "layer_norm_epsilon": number(stated, "layer_norm_eps", family.epsilon),
        **end,
    }
    if has(f"{family.blocks}0.{family.scales[0]}"):
        fields["layer_scale"] = number(stated, "layerscale_value", pytorch.LAYER_SCALE)
    if has(family.register_tokens) and not fields["register_tokens"]:
        without.append(family.register_tokens)  # of length 0
    return fields, without


def _check_size(stated: Mapping[str, Any], key: str, size: int) -> None:
    if stated.get(key) not in (None, size):
        given = f"it says {key}={printable(stated[key], 60)}, but the arrays have {size}"
        raise ValueError(f"The config.json beside it belongs to another file: {given}.")


def _gelu(contents: Contents, stated: Mapping[str, Any], name: str, family: Family, gated: bool) -> str:
    architecture = contents.hints.get("architecture")
    if architecture is not None:  # of a CLIP without config.json
        return "quick" if "quickgelu" in architecture else "exact"
    activation = stated.get("hidden_act", "silu" if gated else family.activation)
    # A gated MLP has no GELU; DINOv2's config names one nevertheless.
    expected = ["silu"] if gated and name == "dinov3_vit" else [] if gated else list(ACTIVATIONS)
    _check_value("hidden_act", activation, expected or [activation])
    return "exact" if gated else ACTIVATIONS[activation]


def _check_value(key: str, value: Any, expected: list[str]) -> None:
    if value not in expected:
        raise ValueError(f"its config.json says {key}={printable(value, 60)}; one of {expected} was expected.")


def _end(contents: Contents, stated: Mapping[str, Any], name: str, family: Family) -> tuple[Fields, list[str]]:
    """From the tokens to the answer, and which arrays take no part in it."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    pooler = [array for array in arrays if array.startswith("pooler.")]
    attention = [array for array in arrays if array.startswith("head.")]
    token = has(family.class_token)
    fields: Fields = {"pooling": "token" if token else "avg", "final_norm": "tokens"}
    head = next((head for head in ("classifier", "cls_classifier") if has(f"{head}.weight")), None)
    if head is not None:
        if name == "dinov3_vit":
            raise ValueError("it has a 'classifier', which no published DINOv3 has.")
        classes = shape_of(arrays, f"{head}.weight", 2)[0]
        fields |= {"classes": classes, "class_names": _class_names(stated, classes)}
        fields["distillation_head"] = head == "cls_classifier"
        if name.startswith("dinov2"):
            fields["pooling"] = "token_avg"
        if name == "clip":  # transformers averages the patches, not normalised
            fields |= {"pooling": "avg", "final_norm": "none"}
            return fields, [*pooler, *(array for array in arrays if array.startswith(f"{family.norm}."))]
        return fields, [*pooler, *attention]
    if attention:
        return {**fields, "pooling": "map"}, []
    if has("visual_projection.weight"):
        fields["projection"] = shape_of(arrays, "visual_projection.weight", 2)[0]
    if pooler and token:
        _check_value("pooler_act", stated.get("pooler_act", "tanh"), ["tanh"])
        return {**fields, "representation_size": shape_of(arrays, "pooler.dense.weight", 2)[0]}, []
    return fields, pooler


def _class_names(stated: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """What the outputs stand for, where config.json says more than their numbers."""
    labels = pytorch.mapping(stated, "id2label")
    if len(labels) != classes:
        return None
    names = pytorch.class_names([labels.get(str(i)) for i in range(classes)], classes)
    return None if names == tuple(f"LABEL_{i}" for i in range(classes)) else names


# How images are prepared

# What the classes of transformers do where a preprocessor_config.json does not say it, by the beginning of their names;
# `shortest` is whether a single number is the length of the shorter edge.
_SQUARE, _CROP = {"height": 224, "width": 224}, {"do_center_crop": True, "crop_size": 224}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "DINOv3ViT": {"resample": 2, "size": _SQUARE, "shortest": False},
    "ViT": {"resample": 2, "size": _SQUARE, "shortest": False},
    "Siglip": {"resample": 3, "size": _SQUARE, "shortest": False},
    "DeiT": {"resample": 3, "size": {"height": 256, "width": 256}, "shortest": False, **_CROP},
    "CLIP": {"resample": 3, "size": {"shortest_edge": 224}, "shortest": True, **_CROP},
    "Bit": {"resample": 3, "size": {"shortest_edge": 224}, "shortest": True, **_CROP},
}


def _preparation(config: Mapping[str, Any], default: Fields) -> tuple[Fields, tuple[int, int] | None]:
    """How a `preprocessor_config.json` prepares images, and to which height and width, where it says it."""
    name = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    usual = next((values for start, values in _PROCESSORS.items() if name.startswith(start)), {})
    stated = {**usual, **{key: value for key, value in config.items() if value is not None}}
    fields: Fields = {**default, **({"filter": "bicubic"} if name else {})}
    fields |= pytorch.filter_in("resample", stated.get("resample"))
    if name.startswith(library_configs.RESAMPLE_FLOATS):
        if fields["filter"] != "bilinear_pillow":
            raise pytorch.not_done("resample", stated["resample"])
        fields["filter"] = "bilinear_antialias"
    normalizes = stated.get("do_normalize") is not False
    fields |= pytorch.means_in(*((stated.get("image_mean"), stated.get("image_std")) if normalizes else pytorch.NONE))
    factor = stated.get("rescale_factor", 1 / 255) if stated.get("do_rescale") is not False else 1.0
    if not pytorch.is_number(factor) or factor <= 0:
        raise pytorch.not_done("rescale_factor", factor)
    if abs(255 * factor - 1) > 1e-6:  # (x factor - mean) / std for pixels x of 0..255, said for pixels of 0..1
        for key in ("pixel_mean", "pixel_std"):
            fields[key] = tuple(value / (255 * factor) for value in fields[key])
    for key, value in (("do_resize", False), ("do_pad", True)):
        if stated.get(key) is value:
            raise pytorch.not_done(key, value)
    crops = stated.get("do_center_crop", False)
    # Files of old versions have a number, which was the shorter edge where a crop followed.
    size = _edges(stated, "size", stated.get("shortest", bool(crops)))
    crop = _edges(stated, "crop_size", False) if crops else size
    if crops and (size is None or crop is None):
        raise pytorch.not_done("do_center_crop", crops)
    if size is None or crop is None:
        return fields, None
    if isinstance(crop, int):  # as many pixels on the longer edge as the image has
        raise pytorch.not_done("size", stated["size"])
    shortest = isinstance(size, int)
    height, width = (size, size) if shortest else size
    if height * crop[1] != width * crop[0] or crop[0] > height or (shortest and crop[0] != crop[1]):
        raise pytorch.not_done("crop_size", stated["crop_size"])
    ratio = crop[0] / height
    while math.floor(crop[0] / ratio) < height:  # dividing by it has to give the size before again
        ratio = math.nextafter(ratio, 0.0)
    fields |= {"resize": "shortest" if shortest else "squash", "crop_ratio": ratio}
    return fields, crop if config.get("size") is not None or config.get("crop_size") is not None else None


def _edges(config: Mapping[str, Any], key: str, shortest: bool) -> int | tuple[int, int] | None:
    """The length of the shorter edge, or height and width; None where the config does not say it."""
    value = config.get(key)
    if value is None:
        return None
    if pytorch.is_length(value):
        return value if shortest else (value, value)
    given = {name: n for name, n in value.items() if n is not None} if isinstance(value, dict) else {}
    if all(map(pytorch.is_length, given.values())):
        if given.keys() == {"shortest_edge"}:
            return given["shortest_edge"]
        if given.keys() == {"height", "width"}:
            return given["height"], given["width"]
    raise pytorch.not_done(key, value)


def _layout(family: Family | None = None, theta: float = 100.0) -> Layout:
    """The layout in the names of a file; None for those that a model's family has on the Hub."""
    return Layout(
        "huggingface",
        functools.partial(_rows, family=family),
        _read,
        library_configs.check_writable_by_transformers,
        with_prefix_positions,
        computed=functools.partial(pytorch.computed_periods, base=theta),
        sidecars=library_configs.transformers_sidecars,
        settled_by="Pass like=..., or put the repository's config.json and preprocessor_config.json beside it.",
    )


LAYOUT = _layout()
