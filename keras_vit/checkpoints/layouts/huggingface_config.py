"""transformers' families, and models as its `config.json` and `preprocessor_config.json` say them."""

import dataclasses
from typing import Any

from keras_vit.checkpoints.accounting import check_fields
from keras_vit.checkpoints.layouts.pictures import (
    CLIP,
    FILTER_NUMBERS,
    HALF,
    IMAGENET,
    RESAMPLE_FLOATS,
    pictures,
)
from keras_vit.checkpoints.layouts.pytorch import HEADS_OF_DINOV3, HEADS_OF_SIGLIP, Family
from keras_vit.models import ViTConfig

# What the parts of a block are called; the first of each is that of ViT on the Hub.
ATTENTIONS = (
    (*(f"attention.attention.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
    tuple(f"attention.{letter}_proj" for letter in "qkvo"),
    (*(f"self_attn.{letter}_proj" for letter in "qkv"), "self_attn.out_proj"),
)
NORMS = (("layernorm_before", "layernorm_after"), ("norm1", "norm2"), ("layer_norm1", "layer_norm2"))
MLPS = (
    ("intermediate.dense", "output.dense"),
    ("mlp.fc1", "mlp.fc2"),
    ("mlp.weights_in", "mlp.weights_out"),
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ("mlp.up_proj", "mlp.down_proj"),
)
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
    norms=NORMS[0],
    attention=ATTENTIONS[0],
    mlp=MLPS[0],
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="layernorm",
    types=("vit", "vit_mae", "vit_msn"),
    epsilon=1e-12,
)
_IMAGENET = pictures(IMAGENET, "shortest", 0.9)
_DINO = {"norms": NORMS[1], "mlp": MLPS[1], "epsilon": 1e-6, "preparation": pictures(IMAGENET, "shortest", 0.875)}
_TOWER = {
    "module": "vision_model.",
    "patches": "embeddings.patch_embedding",
    "class_token": "embeddings.class_embedding",
    "positions": "embeddings.position_embedding.weight",
    "flat": True,
    "blocks": "encoder.layers.",
    "norms": NORMS[2],
    "attention": ATTENTIONS[2],
    "mlp": MLPS[1],
    "norm": "post_layernorm",
}
# The families by their `model_type`: in what they differ from ViT.
FAMILIES: dict[str, Family] = {
    name: dataclasses.replace(_VIT, **fields)
    for name, fields in {
        "vit": {},
        "deit": {
            "title": "DeiT",
            "types": ("deit",),
            "module": "deit.",
            "preparation": pictures(IMAGENET, "squash", 0.875),
        },
        "vit_mae": {"title": "MAE", "types": ("vit_mae",), "preparation": _IMAGENET},
        "vit_msn": {"title": "MSN", "types": ("vit_msn",), "epsilon": 1e-6, "preparation": _IMAGENET},
        "ijepa": {"title": "I-JEPA", "types": ("ijepa",), "module": "ijepa.", "preparation": _IMAGENET},
        "dinov2": {"title": "DINOv2", "types": ("dinov2",), "module": "dinov2.", **_DINO},
        "dinov2_with_registers": {
            "title": "DINOv2 with registers",
            "types": ("dinov2_with_registers",),
            "module": "dinov2_with_registers.",
            "interpolation": "bicubic",
            "mask_token": (1,),
            **_DINO,
        },
        "dinov3_vit": {
            **_DINO,
            "title": "DINOv3",
            "types": ("dinov3_vit",),
            "module": "",
            "patches": "embeddings.patch_embeddings",
            "blocks": "layer.",
            "attention": ATTENTIONS[1],
            "norm": "norm",
            "epsilon": 1e-5,
            "heads": 6,
            "preparation": pictures(IMAGENET, "squash", 1.0, "bilinear_antialias"),
            "heads_by_width": HEADS_OF_DINOV3,
            "mask_token": (1, 1),
        },
        "clip": {
            **_TOWER,
            "title": "CLIP",
            "types": ("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
            "activation": "quick_gelu",
            "epsilon": 1e-5,
            "preparation": pictures(CLIP, "shortest", 1.0),
        },
        "siglip": {
            **_TOWER,
            "title": "SigLIP",
            "types": ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
            "activation": "gelu_pytorch_tanh",
            "epsilon": 1e-6,
            "preparation": pictures(HALF, "squash", 1.0),
            "heads_by_width": HEADS_OF_SIGLIP,
        },
    }.items()
}


def own_family(family: Family, mlp: str) -> Family:
    """The names that a family has on the Hub, for a model with a kind of MLP."""
    if family.title == "DINOv3":
        return dataclasses.replace(family, mlp=MLPS[3 if mlp == "swiglu" else 4])
    return dataclasses.replace(family, mlp=MLPS[2]) if mlp == "swiglu" else family


_ACTIVATIONS = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
# The class with and without a head.
_CLASSES = {
    "vit": ("ViTForImageClassification", "ViTModel"),
    "deit": ("DeiTForImageClassification", "DeiTModel"),
    "ijepa": ("IJepaForImageClassification", "IJepaModel"),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Model"),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersModel"),
    "dinov3_vit": ("", "DINOv3ViTModel"),
    "clip": ("", "CLIPVisionModel"),
    "siglip": ("SiglipForImageClassification", "SiglipVisionModel"),
}
# What the models of a family have in common; for each field what it may be.
_COMMON: dict[str, tuple[Any, ...]] = {
    "stem_stages": (None,),
    "attention_norm": (False,),
    "mlp": ("plain", "swiglu"),
    "final_norm": ("tokens",),
}
_PLAIN: dict[str, tuple[Any, ...]] = {
    **_COMMON,
    "mlp": ("plain",),
    "layer_scale": (None,),
    "register_tokens": (0,),
    "rotary_embedding": (None,),
    "attention_bias": ("all", "none"),
}
_TOKENS = {"patch_bias": (True,), "pre_norm": (False,), "projection": (None,)}
_LEARNED = {"position_embedding": ("learned", "learned_patches", "learned_without_registers")}
_DINO = {**_COMMON, **_TOKENS, "representation_size": (None,), "class_token": (True,)}
_TOWER = {**_PLAIN, **_LEARNED, "attention_bias": ("all",), "representation_size": (None,)}
_FEATURES: dict[str, dict[str, tuple[Any, ...]]] = {
    "vit": {**_PLAIN, **_TOKENS, **_LEARNED, "pooling": ("token", "none"), "distillation_token": (False,)},
    "deit": {**_PLAIN, **_TOKENS, **_LEARNED, "pooling": ("token", "none")},
    "ijepa": {**_PLAIN, **_TOKENS, **_LEARNED, "pooling": ("avg", "none"), "representation_size": (None,)},
    "dinov2": {**_DINO, **_LEARNED, "rotary_embedding": (None,), "attention_bias": ("all", "none")},
    "dinov3_vit": {**_DINO, "position_embedding": ("none",), "pooling": ("token", "none"), "classes": (None,)},
    "clip": {**_TOWER, "patch_bias": (False,), "pooling": ("token", "none"), "classes": (None,)},
    "siglip": {**_TOWER, **_TOKENS, "class_token": (False,)},
}
_FEATURES["dinov2_with_registers"] = _FEATURES["dinov2"]


def family_to_write(config: ViTConfig) -> str:
    """The `model_type` of the family whose code computes what a model computes, if any does."""
    if config.rotary_embedding is not None:
        return "dinov3_vit"
    if config.layer_scale is not None or config.mlp != "plain" or config.pooling == "token_avg":
        return "dinov2_with_registers" if config.register_tokens else "dinov2"
    if config.pre_norm:
        return "clip"
    if config.distillation_token:
        return "deit"
    if config.pooling == "map" or (not config.class_token and config.classes and config.gelu == "tanh"):
        return "siglip"
    return "vit" if config.class_token else "ijepa"


def check_writable(config: ViTConfig) -> None:
    """Raises ValueError unless transformers can compute what the model computes."""
    name = family_to_write(config)
    title = FAMILIES[name].title
    check_fields(config, f"'huggingface' would write this as a {title}, and", _FEATURES[name])
    problem = _problem(config, name)
    if problem is not None:
        raise ValueError(
            f"The layout 'huggingface' would write this model as a {title}, but {problem}. Save it as .keras."
        )


def _problem(config: ViTConfig, name: str) -> str | None:
    """What a family cannot say of a config, in words; None where it can say all."""
    ending = f"{'with' if config.classes else 'without'} a head that pools"
    if config.representation_size and config.classes:
        return "there the head never reads the tanh layer (the pooler)"
    if config.representation_size and config.pooling != "token":
        return "there the tanh layer (the pooler) reads the class token"
    if config.representation_size not in (None, config.width) and name != "vit":
        return f"there the tanh layer (the pooler) has as many outputs as inputs, not {config.representation_size}"
    if name.startswith("dinov2"):
        if config.distillation_token:
            return "it has a distillation token"
        if config.layer_scale is None:
            return "it has no layer scale"
        expected = "token_avg" if config.classes else "token"
        if config.pooling not in (expected, "none"):
            return f"{ending} by {expected!r}, not {config.pooling!r}"
        if _dinov2_ratio(config) is None:
            return f"no ratio gives its mlp_width of {config.mlp_width}"
    if name == "dinov3_vit" and (config.rotary_embedding != "dinov3" or config.layer_scale is None):
        return "it has another rotary embedding, or no layer scale"
    if name == "siglip" and config.pooling not in (("avg",) if config.classes else ("map", "none")):
        return f"{ending} otherwise than by {config.pooling!r}"
    if config.resize == "shortest" and config.image_size[0] != config.image_size[1]:
        return "there pictures that keep their aspect ratio are cut to squares (with_config(resize='squash') are not)"
    if config.prefix_tokens and (name == "ijepa" or (name == "siglip" and config.classes and config.pooling == "avg")):
        return "it has tokens before the patches"
    return None


def sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The files beside the weights, by name."""
    return {"config.json": _config(config), "preprocessor_config.json": _preprocessor(config)}


# transformers takes what is missing to be 0; KerasHub's reader asks for it.
_RATES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _config(config: ViTConfig) -> dict[str, Any]:
    family = family_to_write(config)
    with_head, without = _CLASSES[family]
    name = with_head if config.classes else without
    if config.distillation_head and config.classes:
        name = "DeiTForImageClassificationWithTeacher"
    elif config.projection:
        name = "CLIPVisionModelWithProjection"
    stated: dict[str, Any] = {
        "architectures": [name],
        "model_type": f"{family}_vision_model" if FAMILIES[family].flat else family,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": _one_or_two(config.pipeline.prepared_size),
        "patch_size": _one_or_two(config.patch_size),
        "num_channels": config.channels,
        "hidden_act": _ACTIVATIONS[config.gelu],
        "layer_norm_eps": config.layer_norm_epsilon,
        "dtype": "float32",
    }
    if family.startswith("dinov2"):
        stated |= {
            "mlp_ratio": _dinov2_ratio(config),
            "use_swiglu_ffn": config.mlp == "swiglu",
            "qkv_bias": config.attention_bias == "all",
            "layerscale_value": config.layer_scale,
            "use_mask_token": False,
            "num_register_tokens": config.register_tokens,
            "drop_path_rate": 0.0,
            **_RATES,
        }
    else:
        stated["intermediate_size"] = config.mlp_width
    if family == "dinov3_vit":
        stated |= {
            "num_register_tokens": config.register_tokens,
            "use_gated_mlp": config.mlp == "swiglu",
            "hidden_act": "silu" if config.mlp == "swiglu" else stated["hidden_act"],
            "query_bias": config.attention_bias != "none",
            "key_bias": config.attention_bias == "all",
            "value_bias": config.attention_bias != "none",
            "layerscale_value": config.layer_scale,
            "rope_theta": 100.0,
            "proj_bias": True,
            "mlp_bias": True,
            "attention_dropout": 0.0,
            "drop_path_rate": 0.0,
        }
    elif family in ("vit", "deit", "ijepa"):
        stated |= {"qkv_bias": config.attention_bias == "all", **_RATES}
        if config.representation_size:
            stated |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    if config.projection:
        stated["projection_dim"] = config.projection
    if config.classes:
        names = config.class_names or [f"LABEL_{i}" for i in range(config.classes)]
        stated["id2label"] = {str(i): name for i, name in enumerate(names)}
        stated["label2id"] = {name: i for i, name in enumerate(names)}
        if len(stated["label2id"]) < len(names):  # two classes of one name
            del stated["label2id"]
    if family == "siglip" and config.classes:
        # Only the model with two towers has a head, and takes what it says of the image's.
        stated = {
            "architectures": stated["architectures"],
            "model_type": "siglip",
            "vision_config": {**stated, "vision_use_head": False},
            **{key: stated[key] for key in ("id2label", "label2id", "dtype") if key in stated},
        }
    return stated


def _preprocessor(config: ViTConfig) -> dict[str, Any]:
    height, width = config.pipeline.prepared_size
    resized = [int(size / config.crop_ratio) for size in (height, width)]
    size = {"shortest_edge": min(resized)} if config.resize == "shortest" else dict(zip(_SIDES, resized, strict=True))
    return {
        "image_processor_type": _processor(config),
        "do_resize": True,
        "size": size,
        "resample": FILTER_NUMBERS[config.filter],
        "do_center_crop": config.resize == "shortest" or config.crop_ratio < 1,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.pixel_mean),
        "image_std": list(config.pixel_std),
    }


def _processor(config: ViTConfig) -> str:
    """The class that can say all of it; the one that resamples floats cannot cut out the centre."""
    floats = config.filter == "bilinear_antialias" and config.resize == "squash" and config.crop_ratio == 1
    return RESAMPLE_FLOATS if floats else "CLIPImageProcessor"


_SIDES = ("height", "width")


def _one_or_two(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _dinov2_ratio(config: ViTConfig) -> float | None:
    """The ratio from which transformers computes the width of DINOv2's MLP, which must be an integer."""
    width, hidden = config.width, config.mlp_width
    for ratio in range(1, 17):
        swiglu = (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8
        if (swiglu if config.mlp == "swiglu" else int(width * ratio)) == hidden:
            return ratio
    return None
