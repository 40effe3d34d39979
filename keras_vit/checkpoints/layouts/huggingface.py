"""The layout of Hugging Face's transformers: ViT, DeiT, MAE, I-JEPA, DINOv2, DINOv3, CLIP, SigLIP and its NaFlex.

Versions 4 and 5 of transformers have other names. Reading takes each part as it comes, writing has those of the Hub.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.checkpoints.accounting import Layout, Notice, Plan, Row, prefixed, shape_of, with_prefix_positions
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import jsons, pytorch, tips
from keras_vit.checkpoints.layouts.jsons import HALF, Fields, Key, as_is, preparation
from keras_vit.checkpoints.layouts.pytorch import Family, Trunk, linear
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

# What the parts of a block are called; the first of each is that of ViT on the Hub.
_ATTENTIONS = (
    (*(f"attention.attention.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
    tuple(f"attention.{letter}_proj" for letter in "qkvo"),
    (*(f"self_attn.{letter}_proj" for letter in "qkv"), "self_attn.out_proj"),
)
_NORMS = (("layernorm_before", "layernorm_after"), ("norm1", "norm2"), ("layer_norm1", "layer_norm2"))
MLPS: dict[str, tuple[str, ...]] = {
    "dense": ("intermediate.dense", "output.dense"),
    "fc": ("mlp.fc1", "mlp.fc2"),
    "packed": ("mlp.weights_in", "mlp.weights_out"),
    "gate": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "up": ("mlp.up_proj", "mlp.down_proj"),
}
_BLOCKS = ("encoder.layer.", "encoder.layers.", "model.layer.", "model.layers.", "layer.", "layers.")
_CHOICES = {"blocks": _BLOCKS, "attention": _ATTENTIONS, "norms": _NORMS, "mlp": tuple(MLPS.values())}
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

# What config.json says besides what arrays tell as well.
_METADATA = (
    Key("heads", "num_attention_heads", read=as_is),
    Key("layer_norm_epsilon", "layer_norm_eps", read=as_is),
)
_LAYER_SCALE = Key("layer_scale", "layerscale_value", read=as_is)
ACTIVATION_NAMES = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu", "silu": "silu", "relu": "relu"}
_GELU = Key("gelu", "hidden_act", *jsons.name_codec(ACTIVATION_NAMES, ACTIVATIONS))
# What it says of a tower of images or of texts.
TOWER = (*jsons.SIZES[:2], Key("mlp_width", "intermediate_size"), *_METADATA, _GELU)
_MULTI_LABEL = "multi_label_classification"  # a `problem_type`, whose loss is that of a sigmoid

_VIT = Family(
    title="ViT",
    module="vit.",
    **pytorch.TRANSFORMERS,
    distillation_token="embeddings.distillation_token",
    pre_norm="pre_layrnorm",
    norms=_NORMS[0],
    attention=_ATTENTIONS[0],
    mlp=MLPS["dense"],
    types=("vit", "vit_mae", "vit_msn"),
    epsilon=1e-12,
)
_CENTRE = {"preparation": preparation(jsons.IMAGENET, "shortest", 0.9)}
_DINO = {
    "norms": _NORMS[1],
    "mlp": MLPS["fc"],
    "epsilon": 1e-6,
    "preparation": preparation(jsons.IMAGENET, "shortest", 0.875),
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
    "mlp": MLPS["fc"],
    "norm": "post_layernorm",
}
_SIGLIP = {**_TOWER, "activation": "gelu_pytorch_tanh", "epsilon": 1e-6, "heads_by_width": pytorch.HEADS_OF_SIGLIP}


def _family(title: str, *types: str, **fields: Any) -> Family:
    return dataclasses.replace(_VIT, title=title, types=types, **fields)


# The families by their `model_type`.
FAMILIES: dict[str, Family] = {
    "vit": _VIT,
    "deit": _family("DeiT", "deit", module="deit.", preparation=preparation(jsons.IMAGENET, "squash", 0.875)),
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
            "preparation": preparation(jsons.IMAGENET, "squash", 1.0, "bilinear_antialias"),
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
        preparation=preparation(jsons.CLIP, "shortest", 1.0),
    ),
    "siglip": _family(
        "SigLIP", *("siglip", "siglip_vision_model"), **_SIGLIP, preparation=preparation(HALF, "squash", 1.0)
    ),
    # SigLIP 2 of any size, at one size: positions of a square, resized as transformers does for each picture.
    "siglip2": _family(
        "SigLIP 2 NaFlex",
        *("siglip2", "siglip2_vision_model"),
        **_SIGLIP,
        linear_patches=True,
        interpolation="bilinear_antialias",
        preparation=preparation(HALF, "squash", 1.0, "bilinear_pillow"),
    ),
}


def _hf_rows(config: ViTConfig, family: Family | None) -> list[Row]:
    """Returns the rows in the names of a family; None for the names that a model's family has on the Hub."""
    if family is None and tips.is_tips(config):
        return tips.rows(config, hub=True)
    names = family or FAMILIES[family_to_write(config)]
    if family is None and names.title == "DINOv3":
        names = dataclasses.replace(names, mlp=MLPS["gate" if config.mlp == "swiglu" else "up"])
    elif family is None and config.mlp == "swiglu":
        names = dataclasses.replace(names, mlp=MLPS["packed"])
    width, module = config.width, names.module
    if family is None and not (config.classes or names.flat):
        module = ""  # models without a head are published without their module's name, except for those of two towers
    rows = pytorch.trunk_rows(config, names)
    if family is None and names.mask_token is not None:  # only training uses it, but transformers misses it
        rows.append(Row("embeddings.mask_token", None, (*names.mask_token, width)))
    if config.pooling == "map":
        rows += pytorch.packed("head.attention.in_proj_", pytorch.POOLED_ATTENTION, width, width)
        mlp = ("head.mlp.fc1", "head.mlp.fc2")
        rows += pytorch.attention_pooling(config, "head.probe", "head.attention.out_proj", "head.layernorm", mlp)
    if config.representation_size:
        rows += linear("pooler.dense", "pre_logits", config.representation_size, width)
    rows = prefixed(module, rows)
    if config.projection:
        shape = (config.projection, width)
        rows.append(Row("visual_projection.weight", "projection/kernel", shape, pytorch.LINEAR))
    if config.classes and config.distillation_head:
        rows += linear("cls_classifier", "head", config.classes, width)
        rows += linear("distillation_classifier", "head_dist", config.classes, width)
    elif config.classes:
        rows += linear("classifier", "head", config.classes, config.pooled_size)
    return rows


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether one of the families' patch embeddings is among the arrays."""
    return _anchor(names) is not None


def _anchor(names: Collection[str]) -> str | None:
    """The name of the patch embedding that a file has, without a prefix; None for none that is known."""
    anchors = dict.fromkeys(f"{family.patches}.weight" for family in FAMILIES.values())
    return next((anchor for anchor in anchors if pytorch.prefixes_of(names, anchor)), None)


def _hf_config(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, name: str, family: Family
) -> tuple[ViTConfig, Trunk, list[str]]:
    """The config that arrays and JSON files tell, its `Trunk` with what was assumed, and arrays without effect."""
    metadata = _metadata(sidecars, family)
    has, rotary = arrays.keys().__contains__, name == "dinov3_vit"
    if not rotary:
        shape_of(arrays, family.positions, 2 if family.flat else 3)  # which all others have
    known = jsons.fields_in((*_METADATA, _LAYER_SCALE), metadata)
    trunk = pytorch.trunk_of(
        arrays,
        sidecars,
        family,
        size=jsons.image_size_in(metadata.get("image_size", 224 if metadata and rotary else None)),
        heads=known.get("heads", family.heads if metadata else None),
        is_named=False,
    )
    jsons.check_sizes(metadata, jsons.SIZES, trunk.fields)
    if family.linear_patches:
        jsons.check_sizes(metadata, [Key("rows", "num_patches")], {"rows": arrays[family.positions].shape[0]})
    end, without = _end(arrays, metadata, name, family)
    gelu = "exact"  # which a gated MLP does not use, though DINOv2's config names one
    if sidecars.architecture:  # of a CLIP without config.json
        gelu = "quick" if "quickgelu" in sidecars.architecture else "exact"
    elif trunk.fields["mlp"] != "swiglu":
        gelu = jsons.fields_in([_GELU], metadata).get("gelu", ACTIVATIONS[family.activation])
    elif rotary:
        jsons.value_in(metadata, "hidden_act", ["silu"])
    fields = {
        **trunk.fields,
        "rotary_embedding": "dinov3" if rotary else None,
        "gelu": gelu,
        "layer_norm_epsilon": known.get("layer_norm_epsilon", family.epsilon),
        **end,
    }
    if has(f"{family.blocks}0.{family.scales[0]}"):
        fields["layer_scale"] = known.get("layer_scale", pytorch.LAYER_SCALE)
    if has(family.register_tokens) and not fields["register_tokens"]:
        without = [*without, family.register_tokens]  # of length 0
    prepared = jsons.transformers_preparation(sidecars.preprocessor or {}, family.preparation)
    if prepared["resize"] == "shortest" or prepared["crop_ratio"] < 1:
        # transformers' image_transforms.center_crop, with Pillow and torchvision
        prepared = {**prepared, "crop_rounding": "floor"}
    return ViTConfig(**fields | prepared), trunk, without


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which a file of transformers is read; names and `model_type` tell the family."""
    anchor: Any = _anchor(file)
    found = pytorch.collect(file, anchor, _MODULES, _BESIDE, _TOP)
    width = found.arrays[anchor].shape[:1]
    found = pytorch.with_head(found, (*width, *(2 * n for n in width)), "classifier")
    name = _family_of(found.arrays, file)
    metadata = _metadata(sidecars, FAMILIES[name])
    name = metadata["model_type"] if metadata.get("model_type") in FAMILIES else name
    published = FAMILIES[name]
    family = dataclasses.replace(published, module="").as_in(found.arrays, _CHOICES)
    stored, trunk, unneeded = _hf_config(found.arrays, sidecars, name, family)
    stored, used_size, size_warnings = jsons.used_at(stored, jsons.transformers_size(sidecars.preprocessor or {}))
    # Version 5 of transformers changed the names of blocks and attention, and of CLIP's and SigLIP's module.
    if family.flat:
        is_new = found.module != "vision_model."
    else:
        is_new = family.blocks != published.blocks or family.attention != published.attention
    computed = functools.partial(pytorch.computed_periods, base=base_of_periods(metadata))
    return pytorch.plan_of(
        found,
        trunk,
        _UNUSED,
        _BESIDE,
        layout=dataclasses.replace(LAYOUT, rows=functools.partial(_hf_rows, family=family), computed=computed),
        dialect=f"{family.title}, transformers {5 if is_new else 4}",
        stored=stored,
        arrays={name: array for name, array in found.arrays.items() if name not in unneeded},
        unused=[*found.unused, *(found.arrays[name].name for name in unneeded)],
        warnings=[*_assumed(sidecars, metadata, family), *trunk.warnings, *size_warnings],
        image_size=used_size,
    )


def _family_of(arrays: Mapping[str, StoredArray], file: Collection[str]) -> str:
    """Returns the key in `FAMILIES` that fits, `"vit"` or `"ijepa"` if no other; `file` are all its names."""
    has = arrays.keys().__contains__
    if has("embeddings.patch_embedding.weight"):
        if has("embeddings.class_embedding"):
            return "clip"
        return "siglip2" if len(arrays["embeddings.patch_embedding.weight"].shape) == 2 else "siglip"
    if has("embeddings.patch_embeddings.weight"):
        return "dinov3_vit"
    if any(name.endswith(".layer_scale1.lambda1") for name in arrays):
        return "dinov2_with_registers" if has("embeddings.register_tokens") else "dinov2"
    if has("embeddings.distillation_token"):
        return "deit"
    if not has("embeddings.cls_token"):
        return "ijepa"
    return "vit_mae" if any(".decoder_embed." in name for name in file) else "vit"


def _metadata(sidecars: Sidecars, family: Family) -> Mapping[str, Any]:
    """Returns what config.json says of the image model; empty where there is none."""
    metadata = sidecars.config
    if sidecars.architecture and (metadata or family.title != "CLIP"):
        given = f"like={sidecars.architecture!r} is a timm model name, but the file is one of transformers"
        raise ValueError(f"{given}. Leave like out, and put the repository's config.json beside the file.")
    # The type of a file with two towers has to fit as well, where it is that of a family.
    types = [metadata.get("model_type")] if metadata.get("model_type") in [*FAMILIES] else []
    vision = metadata.get("vision_config")
    if isinstance(vision, dict):  # the names of classes are those of the whole model
        labels = metadata.get("id2label", vision.get("id2label"))
        problem = metadata.get("problem_type", vision.get("problem_type"))
        metadata = {"model_type": metadata.get("model_type"), **vision, "id2label": labels, "problem_type": problem}
    for name in (*types, metadata.get("model_type")):
        if name is not None:
            where = f"config.json beside the arrays of {family.title}"
            jsons.value_in({"model_type": name}, "model_type", family.types, file=where)
    return metadata


def _assumed(sidecars: Sidecars, metadata: Mapping[str, Any], family: Family) -> list[Notice]:
    """Returns warnings on what is assumed because JSON files are missing."""
    warnings, is_clip = [], family.title == "CLIP"
    if not metadata and is_clip and not sidecars.architecture:
        warnings.append(Notice(pytorch.UNKNOWN_GELU, "gelu", "unknown"))
    if not metadata:
        text = f"without config.json the settings of {family.title} are assumed ({family.activation} GELU, epsilon "
        field = "layer_norm_epsilon" if is_clip else "gelu"
        warnings.append(Notice(f"{text}{family.epsilon:g})", field, "assumed"))
    if sidecars.preprocessor is None:
        text = f"without preprocessor_config.json the preprocessing of {family.title} is assumed"
        warnings.append(Notice(text, "crop_ratio", "assumed"))
    return warnings


def _end(
    arrays: Mapping[str, StoredArray], metadata: Mapping[str, Any], name: str, family: Family
) -> tuple[Fields, list[str]]:
    """Returns the fields for what follows the blocks, and the names of arrays that take no part in it."""
    has = arrays.keys().__contains__
    pooler = [array for array in arrays if array.startswith("pooler.")]
    attention = [array for array in arrays if array.startswith("head.") and has("head.probe")]
    token = has(family.class_token)
    fields: Fields = {"pooling": "token" if token else "avg", "final_norm": "tokens"}
    head = next((head for head in ("classifier", "cls_classifier") if has(f"{head}.weight")), None)
    if head is not None and name != "dinov3_vit":  # whose head is not supported
        classes = shape_of(arrays, f"{head}.weight", 2)[0]
        fields |= {"classes": classes, "class_names": names_of_classes(metadata, classes)}
        fields["classifier_activation"] = "sigmoid" if metadata.get("problem_type") == _MULTI_LABEL else None
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
        jsons.value_in(metadata, "pooler_act", ["tanh"])
        return {**fields, "representation_size": shape_of(arrays, "pooler.dense.weight", 2)[0]}, []
    return fields, pooler


def names_of_classes(metadata: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Returns the names of the classes in config.json; None where it has not as many, or only numbers them."""
    labels = jsons.mapping(metadata, "id2label")
    if len(labels) != classes:
        return None
    names = jsons.class_names([labels.get(str(i)) for i in range(classes)], classes)
    return None if names == tuple(f"LABEL_{i}" for i in range(classes)) else names


def base_of_periods(metadata: Mapping[str, Any]) -> float:
    """The base of the rotary periods that config.json of version 4 or 5 says, by default 100."""
    return jsons.number(jsons.mapping(metadata, "rope_parameters") or metadata, "rope_theta", 100.0)


# Writing

# Their classes' names by the `model_type`.
_CLASSES = {
    **{"vit": "ViT", "deit": "DeiT", "ijepa": "IJepa", "dinov2": "Dinov2", "clip": "CLIP", "siglip": "Siglip"},
    **{"dinov2_with_registers": "Dinov2WithRegisters", "tipsv2": "Tipsv2", "dinov3_vit": "DINOv3ViT"},
    "siglip2": "Siglip2",
}


# Two towers, and those that compute the width of their MLP from a ratio.
_TOWERS, _DINOV2S = ("clip", "siglip", "siglip2"), ("dinov2", "dinov2_with_registers", "tipsv2")


def family_to_write(config: ViTConfig) -> str:
    """Returns the `model_type` of the family whose code computes what a model computes, if any does."""
    if config.rotary_embedding is not None:
        return "dinov3_vit"
    if tips.is_tips(config):
        return "tipsv2"
    if config.layer_scale is not None or config.mlp != "plain" or config.pooling == "token_avg":
        return "dinov2_with_registers" if config.register_tokens else "dinov2"
    if config.pre_norm:
        return "clip"
    if config.distillation_token:
        return "deit"
    if pytorch.is_naflex(config):
        return "siglip2"
    if config.pooling == "map" or (not config.class_token and config.classes and config.gelu == "tanh"):
        return "siglip"
    return "vit" if config.class_token else "ijepa"


def needs(config: ViTConfig) -> dict[str, tuple[Any, ...]]:
    """Returns `Layout.needs` by the class of transformers that would compute a model."""
    family = family_to_write(config)
    is_tower, is_dinov2 = family in _TOWERS, family in _DINOV2S
    has_plain_blocks = is_tower or family in ("vit", "deit", "ijepa")
    found: dict[str, tuple[Any, ...]] = {
        "attention_norm": (False,),
        "patch_bias": (family != "clip",),
        "mlp": ("plain",) if has_plain_blocks else ("plain", "swiglu"),
    }
    found |= {"register_tokens": (0,)} if has_plain_blocks else {"class_token": (True,)}
    if family != "deit":
        found["distillation_token"] = (False,)
    if family != "clip":
        found |= {"pre_norm": (False,), "projection": (None,)}
    if is_dinov2 or family == "dinov3_vit":  # whose classes always have one
        found["layer_scale"] = (1.0 if config.layer_scale is None else config.layer_scale,)
    if is_dinov2 and config.register_tokens:
        found["position_embedding"] = ("learned_without_registers", "learned_patches")
    if family == "dinov3_vit":
        found["position_embedding"] = ("none",)
    else:
        found["attention_bias"] = ("all",) if is_tower else ("all", "none")
    if is_dinov2:
        found["mlp_width"] = tuple(_dinov2_widths(config))
    if family not in ("vit", "deit"):  # the others have no pooler
        found["representation_size"] = (None,)
    if is_tower:  # which divide a side by a number
        found |= {"patch_size": ((config.patch_size[0],) * 2,), "trim": ((config.trim[0],) * 2,)}
    if is_dinov2 or family in ("clip", "siglip"):
        # In a DINOv2, positions of other grids than squares are taken to be those of a square, and are resized.
        found["image_size"] = ((config.image_size[0],) * 2,)
    return found


def needs_of_backbone(config: Any) -> dict[str, tuple[Any, ...]]:
    """`Layout.needs` of a dense model by the class of its backbone."""
    return {f"backbone.{field}": values for field, values in needs(config.backbone).items()}


def sidecars_of(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The config.json and preprocessor_config.json for a model that transformers can compute."""
    processor = "Tipsv2ImageProcessor" if tips.is_tips(config) else "CLIPImageProcessor"
    prepared = jsons.transformers_preprocessor(config, pytorch.is_naflex(config), processor)
    return {"config.json": _metadata_of(config), "preprocessor_config.json": prepared}


# transformers takes what is missing to be 0; KerasHub's reader asks for it.
_RATES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _metadata_of(config: ViTConfig) -> dict[str, Any]:
    family = family_to_write(config)
    flat, name = family in (*_TOWERS, "tipsv2"), _CLASSES[family]
    ending = ("Vision" if flat else "") + ("ModelWithProjection" if config.projection else "Model")
    if config.classes:
        ending = "ForImageClassification" + ("WithTeacher" if config.distillation_head else "")
    metadata: dict[str, Any] = {
        "architectures": [f"{name}{ending}"],
        "model_type": f"{family}_vision_model" if flat else family,
        "image_size": jsons.one_or_two(config.pipeline.prepared_size),
        "num_channels": config.channels,
        **jsons.written((*jsons.SIZES, *_METADATA, _GELU), config),
        "dtype": "float32",
    }
    if family == "siglip2":  # of any size
        del metadata["image_size"]
        metadata |= {"num_patches": config.position_rows, "vision_use_head": True}
    metadata |= _of_family(config, family)
    if config.classes and config.classifier_activation == "sigmoid":
        metadata["problem_type"] = _MULTI_LABEL
    if config.projection:
        metadata["projection_dim"] = config.projection
    if config.classes:
        metadata |= labels_of(config)
    if family == "siglip" and config.classes:
        # Only the model with two towers has a head, and takes what it says of the image's.
        metadata = {
            "architectures": metadata["architectures"],
            "model_type": "siglip",
            "vision_config": {**metadata, "vision_use_head": False},
            **{key: metadata[key] for key in ("id2label", "label2id", "problem_type", "dtype") if key in metadata},
        }
    return metadata


def labels_of(config: Any) -> dict[str, Any]:
    """What config.json says of the classes of a model: `names_of_classes` back."""
    names = config.class_names or [f"LABEL_{i}" for i in range(config.classes)]
    labels = {"id2label": {str(i): name for i, name in enumerate(names)}}
    return labels | ({"label2id": {name: i for i, name in enumerate(names)}} if len({*names}) == len(names) else {})


def _of_family(config: ViTConfig, family: str) -> dict[str, Any]:
    gated, bias = config.mlp == "swiglu", config.attention_bias
    metadata: dict[str, Any] = {"num_register_tokens": config.register_tokens, _LAYER_SCALE.key: config.layer_scale}
    if family in _DINOV2S:
        ratio = _dinov2_widths(config)[config.mlp_width]
        metadata |= {"mlp_ratio": ratio, "use_swiglu_ffn": gated, "qkv_bias": bias == "all", "use_mask_token": False}
        return metadata | {"drop_path_rate": 0.0, **_RATES}
    hidden = {"intermediate_size": config.mlp_width}
    if family == "dinov3_vit":
        metadata |= {"query_bias": bias != "none", "key_bias": bias == "all", "value_bias": bias != "none"}
        metadata |= {"use_gated_mlp": gated, **hidden, **({"hidden_act": "silu"} if gated else {})}
        metadata |= {"rope_theta": 100.0, "proj_bias": True, "mlp_bias": True}
        return metadata | {"attention_dropout": 0.0, "drop_path_rate": 0.0}
    if family in _TOWERS:
        return hidden
    pooler = {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    return hidden | {"qkv_bias": bias == "all", **_RATES} | (pooler if config.representation_size else {})


def _dinov2_widths(config: ViTConfig) -> dict[int, int]:
    """Returns the integer ratios of DINOv2's MLP by the width that transformers computes from them."""
    ratios = range(1, 17)
    if config.mlp == "swiglu":
        return {(int(config.width * ratio * 2 / 3) + 7) // 8 * 8: ratio for ratio in ratios}
    return {config.width * ratio: ratio for ratio in ratios}


LAYOUT = Layout(
    "huggingface",
    functools.partial(_hf_rows, family=None),
    recognise,
    plan,
    with_prefix_positions,
    computed=pytorch.computed_periods,
    sidecars=sidecars_of,
    needs=needs,
    advice="Pass like=..., or put the repository's config.json and preprocessor_config.json beside the file.",
)
