"""Models as transformers' `config.json` and `preprocessor_config.json` say them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.checkpoints.layouts.huggingface_families import FAMILIES, Family
from keras_vit.checkpoints.layouts.pictures import FILTER_NUMBERS, RESAMPLE_FLOATS
from keras_vit.models import ViTConfig

_TABLE = "position_embedding/table"
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


def family_to_write(config: ViTConfig) -> Family:
    """The family whose code computes what a model computes, if any does."""
    if config.rotary_embedding is not None:
        name = "dinov3_vit"
    elif config.layer_scale is not None or config.mlp != "plain" or config.pooling == "token_avg":
        name = "dinov2_with_registers" if config.register_tokens else "dinov2"
    elif config.pre_norm:
        name = "clip"
    elif config.distillation_token:
        name = "deit"
    elif config.pooling == "map" or (not config.class_token and config.classes and config.gelu == "tanh"):
        name = "siglip"
    else:
        name = "vit" if config.class_token else "ijepa"
    return FAMILIES[name]


def check_writable(config: ViTConfig) -> None:
    """Raises ValueError unless transformers can compute what the model computes."""
    family = family_to_write(config)
    for field, accepted in _FEATURES[family.name].items():
        if getattr(config, field) not in accepted:
            raise ValueError(
                f"The layout 'huggingface' would write this model as a {family.title}, all of which have {field} in "
                f"{accepted}, but this one has {getattr(config, field)!r}. Save it as .keras."
            )
    problem = _problem(config, family)
    if problem is not None:
        raise ValueError(
            f"The layout 'huggingface' would write this model as a {family.title}, but {problem}. Save it as .keras."
        )


def _problem(config: ViTConfig, family: Family) -> str | None:
    """What the family cannot say of a config, in words; None where it can say all."""
    if config.representation_size and config.classes:
        return "there the head never reads the tanh layer (the pooler)"
    if config.representation_size and config.pooling != "token":
        return "there the tanh layer (the pooler) reads the class token"
    if config.representation_size not in (None, config.width) and family.name != "vit":
        return f"there the tanh layer (the pooler) has as many outputs as inputs, not {config.representation_size}"
    if family.name.startswith("dinov2"):
        if config.distillation_token:
            return "it has a distillation token"
        if config.layer_scale is None:
            return "it has no layer scale"
        expected = "token_avg" if config.classes else "token"
        if config.pooling not in (expected, "none"):
            return (
                f"{'with' if config.classes else 'without'} a head that pools by {expected!r}, not {config.pooling!r}"
            )
        if _dinov2_ratio(config) is None:
            return f"no ratio gives its mlp_width of {config.mlp_width}"
    if family.name == "dinov3_vit" and (config.rotary_embedding != "dinov3" or config.layer_scale is None):
        return "it has another rotary embedding, or no layer scale"
    if family.name == "siglip" and config.pooling not in (("avg",) if config.classes else ("map", "none")):
        return f"{'with' if config.classes else 'without'} a head that pools otherwise than by {config.pooling!r}"
    if family.name == "siglip" and config.classes and config.pooling == "avg" and config.prefix_tokens:
        return "it has tokens before the patches"
    if family.name == "ijepa" and config.prefix_tokens:
        return "it has tokens before the patches"
    return None


def restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Gives class and distillation token the positions that they have there: zero, where the model has none."""
    special = config.prefix_tokens - config.register_tokens
    if config.position_embedding != "learned_patches" or not special:
        return config, {}
    table = read(_TABLE)
    rows = np.concatenate([np.zeros_like(table[:, :special]), table], axis=1)
    kind = "learned_without_registers" if config.register_tokens else "learned"
    return config.replace(position_embedding=kind), {_TABLE: rows}


def sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The files beside the weights, by name."""
    return {"config.json": _config(config), "preprocessor_config.json": _preprocessor(config)}


# transformers takes what is missing to be 0; KerasHub's reader asks for it.
_RATES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _config(config: ViTConfig) -> dict[str, Any]:
    family = family_to_write(config)
    with_head, without = _CLASSES[family.name]
    name = with_head if config.classes else without
    if config.distillation_head:
        name = "DeiTForImageClassificationWithTeacher"
    elif config.projection:
        name = "CLIPVisionModelWithProjection"
    said: dict[str, Any] = {
        "architectures": [name],
        "model_type": f"{family.name}_vision_model" if family.two_towers else family.name,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": _one_or_two(config.image_size),
        "patch_size": _one_or_two(config.patch_size),
        "num_channels": config.channels,
        "hidden_act": _ACTIVATIONS[config.gelu],
        "layer_norm_eps": config.layer_norm_epsilon,
        "dtype": "float32",
    }
    if family.name.startswith("dinov2"):
        said |= {
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
        said["intermediate_size"] = config.mlp_width
    if family.name == "dinov3_vit":
        said |= {
            "num_register_tokens": config.register_tokens,
            "use_gated_mlp": config.mlp == "swiglu",
            "hidden_act": "silu" if config.mlp == "swiglu" else said["hidden_act"],
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
    elif family.name in ("vit", "deit", "ijepa"):
        said |= {"qkv_bias": config.attention_bias == "all", **_RATES}
        if config.representation_size:
            said |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    if config.projection:
        said["projection_dim"] = config.projection
    if config.classes:
        names = config.class_names or [f"LABEL_{i}" for i in range(config.classes)]
        said["id2label"] = {str(i): name for i, name in enumerate(names)}
        said["label2id"] = {name: i for i, name in enumerate(names)}
        if len(said["label2id"]) < len(names):  # two classes of one name
            del said["label2id"]
    if family.name == "siglip" and config.classes:
        # Only the model with two towers has a head, and takes what it says of the image's.
        said = {
            "architectures": said["architectures"],
            "model_type": "siglip",
            "vision_config": {**said, "vision_use_head": False},
            **{key: said[key] for key in ("id2label", "label2id", "dtype") if key in said},
        }
    return said


def _preprocessor(config: ViTConfig) -> dict[str, Any]:
    height, width = config.image_size
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
