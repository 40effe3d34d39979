"""timm's models: what their names tell and nothing in their arrays does, and how a model is said to timm.

A name is `architecture` in a repository's config.json, such as `vit_base_patch16_clip_quickgelu_224`; its tag, such as
`openai`, stands there in `pretrained_cfg`. That file says whose code computes a model, and what it is called with.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import check_fields
from keras_vit.checkpoints.layouts.pictures import CLIP, FILTER_NAMES, HALF, IMAGENET, NONE, Fields, pictures
from keras_vit.checkpoints.layouts.pytorch import TABLE
from keras_vit.models import ViTConfig

# Models whose arrays have the names of others, but which compute something else.
REFUSED = {
    r"_rpn_": "normalises after each branch instead of before",
    r"eva02_enormous": "normalises after each branch instead of before, and does not turn its queries and keys",
    r"_rope_(ape_|mixed_)*\d+$": "turns its queries and keys by a rotary embedding that is not known here",
    r"vit_pe_": "is a perception encoder, whose rotary embedding and pooling are not known here",
}
# Of timm's SigLIPs only these compute the approximation that all of them were trained with.
_TANH_GELU = (
    r"vit_base_patch32_siglip(_gap)?_256|vit_large_patch16_siglip(_gap)?_512"
    r"|vit_so400m_patch16_siglip(_gap)?_(256|384|512)|vit_giantopt_patch16_siglip(_gap)?_(256|384)"
)
_POOLINGS = {"token": "token", "token_dist": "token", "avg": "avg", "map": "map", "none": ""}
# timm's hybrids, by the units in the stages of their ResNet: no argument changes them.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_ACTIVATIONS = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}


# What names tell


def refusal(architecture: str) -> str | None:
    """Why a model is not read although its arrays look like one that is; None for all others."""
    return next((why for pattern, why in REFUSED.items() if re.search(pattern, architecture)), None)


def gelu(architecture: str, arguments: Mapping[str, Any]) -> str:
    """Which GELU timm computes: what a model is called with, or by its name: exact, but for a few.

    Raises:
        ValueError: if it is called with another activation.
    """
    activation = arguments.get("act_layer")
    if activation is not None:
        names = {name: kind for kind, name in _ACTIVATIONS.items()}
        if not isinstance(activation, str) or activation not in names:
            raise ValueError(
                f"its config.json says act_layer={printable(activation, 60)}; one of {list(names)} was expected."
            )
        return names[activation]
    if "quickgelu" in architecture:
        return "quick"
    return "tanh" if re.fullmatch(_TANH_GELU, architecture) else "exact"


def is_clip(architecture: str) -> bool:
    """Whether a model is one of timm's Vision Transformers for CLIP, whose epsilon is 1e-5."""
    return re.match(r"vit_.*_clip_", architecture) is not None


def heads(architecture: str, width: int) -> int | None:
    """The heads of models whose width tells something else; None for all others."""
    if architecture.startswith("test_vit"):
        return width // 32
    if architecture.startswith("vit_base_patch16_gap_") and width == 768:
        return 16
    if "_radio_" in architecture and width == 1536:
        return 24
    return 16 if "giantopt" in architecture and width == 1536 else None


def pictures_of(architecture: str) -> Fields:
    """How pictures are prepared, for files without a `pretrained_cfg`, as most files of that kind have it."""
    if re.search(r"clip|eva02|eva_", architecture):
        return pictures(CLIP, "shortest", 1.0)
    if re.search(r"dinov[23]|beit3", architecture):
        return pictures(IMAGENET, "shortest", 1.0)
    if "miil" in architecture:
        return pictures(NONE, "shortest", 0.875, "bilinear_pillow")
    if "tipsv2" in architecture:
        return pictures(NONE, "shortest", 1.0)
    if re.search(r"deit3_.*_384", architecture):
        return pictures(IMAGENET, "shortest", 1.0)
    if re.search(r"deit|dino|mae|ijepa", architecture):
        return pictures(IMAGENET, "shortest", 0.9)
    return pictures(HALF, "shortest", 1.0 if re.search(r"_384", architecture) else 0.9)


# How a model is said to timm


def is_eva(config: ViTConfig) -> bool:
    """Whether a model is of timm's class `Eva` and not of its `VisionTransformer`."""
    gated = config.mlp.startswith("swiglu")
    return (
        config.rotary_embedding is not None
        or config.attention_bias == "no_key"
        or config.mlp == "swiglu_norm"
        or (config.attention_norm and gated)
    )


_ACCEPTED = {
    "stem_stages": (None, *HYBRIDS),
    "representation_size": (None,),
    "position_embedding": ("learned", "learned_patches", "learned_without_registers", "none"),
    "pooling": tuple(_POOLINGS),
    "layer_norm_epsilon": (1e-5, 1e-6),
}


def check_writable(config: ViTConfig) -> None:
    """Raises ValueError unless timm can compute what the model computes."""
    advice = "timm has no others. Change it with model.with_config({field}=...) where that is what you mean. "
    check_fields(config, "'timm'", _ACCEPTED, advice)
    problem = _problem(config) or _problem_of_hybrid(config)
    if problem is not None:
        raise ValueError(f"The layout 'timm' has no place for this model: {problem}. Save it as .keras.")


def _problem(config: ViTConfig) -> str | None:
    """What timm cannot say of a config, in words; None where it can say all."""
    eva = is_eva(config)
    if config.position_embedding == "none" and config.rotary_embedding is None:
        return "its patches have no positions"
    if config.projection and config.classes:
        return "it has both a projection and a head"
    if config.projection and config.distillation_token:
        return "it has a projection and a distillation token"
    if config.distillation_token and config.classes and not config.distillation_head:
        return "its distillation token has no head of its own"
    if config.distillation_token and not config.classes and config.pooling != "token_dist":
        return (
            "without a head timm answers with the mean of class and distillation token, as "
            "model.with_config(pooling='token_dist') does"
        )
    if config.pooling == "token_dist" and config.classes:
        return "its head reads the mean of class and distillation token"
    if config.final_norm == "none" and (config.pre_norm or eva):
        return "it has no last normalisation"
    if config.final_norm == "pooled" and config.pooling == "map":
        return "its last normalisation follows attention pooling"
    if config.mlp == "swiglu" and not eva and (config.register_tokens and not config.class_token):
        return "it has a SwiGLU and register tokens without a class token"
    if eva and config.layer_norm_epsilon != (1e-5 if config.rotary_embedding == "dinov3" else 1e-6):
        return f"timm's models of that kind have another epsilon than {config.layer_norm_epsilon}"
    if eva and (config.pre_norm or config.pooling == "map" or config.mlp == "plain_norm"):
        return "timm's models of that kind have no such parts"
    return None


def _problem_of_hybrid(config: ViTConfig) -> str | None:
    """What timm cannot say of a Transformer after a ResNet, in words; None where it can say all."""
    if config.stem_stages is None:
        return None
    if config.stem_folded:
        return "the kernels of its ResNet were standardised for good"
    if config.stem_epsilons != "timm":
        return "its ResNet has other epsilons (with_config(stem_epsilons='timm') changes the answers a little)"
    if config.stem_width != 64:
        return f"the first convolution of its ResNet has {config.stem_width} channels, not 64"
    plain = config.mlp == "plain" and not (is_eva(config) or config.attention_norm or config.distillation_token)
    if not plain or config.layer_norm_epsilon != 1e-6:
        return "timm has only plain blocks with epsilon 1e-6 after a ResNet"
    return None


def restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Adds the positions of class and distillation token to them, where timm's models with registers have none."""
    if config.position_embedding != "learned_without_registers" or not config.register_tokens:
        return config, {}
    table = read(TABLE)
    special = config.prefix_tokens - config.register_tokens
    changed = {TABLE: table[:, special:]}
    for i, path in enumerate(["class_token/token", "distillation_token/token"][:special]):
        changed[path] = read(path) + table[:, i : i + 1]
    return config.replace(position_embedding="learned_patches"), changed


def sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The files beside the weights, by name, as timm's `push_to_hf_hub` writes them."""
    height, width = config.pipeline.prepared_size
    outputs = config.projection or config.classes or 0
    published = {
        "input_size": [config.channels, height, width],
        "fixed_input_size": True,
        "interpolation": FILTER_NAMES[config.filter],
        "crop_pct": config.crop_ratio,
        "crop_mode": "squash" if config.resize == "squash" else "center",
        "mean": list(config.pixel_mean),
        "std": list(config.pixel_std),
        "num_classes": outputs,
        "pool_size": None,
        "first_conv": _first_convolution(config),
        "classifier": ["head", "head_dist"] if config.distillation_head else "head",
    }
    architecture, arguments = _architecture(config)
    return {
        "config.json": {
            "architecture": architecture,
            "num_classes": outputs,
            "num_features": config.width,
            "global_pool": _POOLINGS[config.pooling],
            "model_args": arguments,
            "pretrained_cfg": published,
            **({"label_names": list(config.class_names)} if config.class_names else {}),
        }
    }


def _first_convolution(config: ViTConfig) -> str:
    if config.stem_stages is None:
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if config.stem_stages else "patch_embed.backbone.conv"


def _architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The name of one of timm's models that has the same code, and the arguments that make it this one."""
    arguments: dict[str, Any] = {
        "img_size": list(config.pipeline.prepared_size),
        "patch_size": config.patch_size[0] if len(set(config.patch_size)) == 1 else list(config.patch_size),
        "in_chans": config.channels,
        "num_classes": config.projection or config.classes or 0,
        "global_pool": _POOLINGS[config.pooling],
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config.mlp_width, config.width),
        "class_token": config.class_token,
        "init_values": config.layer_scale,
        "qkv_bias": config.attention_bias != "none",
    }
    if is_eva(config):
        return _eva(config, arguments)
    registers = config.register_tokens
    arguments |= {
        "reg_tokens": registers,
        "no_embed_class": _only_patches_have_positions(config),
        "pre_norm": config.pre_norm,
        "fc_norm": config.final_norm == "pooled",
        "final_norm": config.final_norm != "none",
    }
    if config.pooling == "map" and config.prefix_tokens:
        arguments["pool_include_prefix"] = config.map_prefix
    if config.distillation_token:
        return "deit_base_distilled_patch16_224", arguments
    if config.mlp == "swiglu":
        return "vit_giant_patch14_reg4_dinov2" if registers else "vit_giant_patch14_dinov2", {
            **arguments,
            "mlp_ratio": _ratio(2 * config.mlp_width, config.width),
        }
    arguments["act_layer"] = _ACTIVATIONS[config.gelu]
    if config.stem_stages is not None:
        return HYBRIDS[config.stem_stages], arguments
    if config.attention_norm or config.mlp == "plain_norm":
        arguments |= {"scale_attn_norm": config.attention_norm, "scale_mlp_norm": config.mlp == "plain_norm"}
        if config.layer_norm_epsilon == 1e-5:
            return "beit3_base_patch16_224", arguments
    # The epsilon is the architecture's: no argument that JSON can say sets it.
    name = "vit_base_patch16_clip_224" if config.layer_norm_epsilon == 1e-5 else "vit_base_patch16_224"
    if config.gelu == "quick" and config.layer_norm_epsilon == 1e-5:
        name = "vit_base_patch16_clip_quickgelu_224"
    return name, arguments


def _only_patches_have_positions(config: ViTConfig) -> bool:
    """Whether the table that is written has no rows for the tokens before the patches (see `restate`)."""
    kind = config.position_embedding
    without = kind == "learned_patches" or (kind == "learned_without_registers" and config.register_tokens > 0)
    return without and config.prefix_tokens > 0


def _eva(config: ViTConfig, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    arguments |= {
        "num_reg_tokens": config.register_tokens,
        "use_abs_pos_emb": config.position_rows > 0,
        "use_rot_pos_emb": config.rotary_embedding is not None,
        "no_embed_class": _only_patches_have_positions(config),
        "swiglu_mlp": config.mlp.startswith("swiglu"),
        "scale_mlp": config.mlp == "swiglu_norm",
        "scale_attn_inner": config.attention_norm,
        "qkv_fused": config.mlp != "swiglu_norm",
        "use_fc_norm": config.final_norm == "pooled",
    }
    if config.rotary_embedding == "dinov3":
        if config.mlp == "swiglu":
            arguments["swiglu_align_to"] = 1  # of any width; what is not aligned would be packed
        return "vit_base_patch16_dinov3", arguments
    grid = getattr(config, "rotary_grid", None)
    if grid is not None and config.rotary_embedding == "eva02":
        arguments["ref_feat_shape"] = list(grid)
    return "eva02_base_patch14_448" if config.rotary_embedding else "eva_giant_patch14_224", arguments


def _ratio(hidden: int, width: int) -> float:
    """A ratio from which timm computes `hidden` as `int(width * ratio)`."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width
