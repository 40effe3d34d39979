"""How models are described to timm and transformers: JSON files beside the weights, and what these cannot say."""

from collections.abc import Iterator
from typing import Any

from keras_vit.checkpoints.accounting import check_fields, plain_values
from keras_vit.checkpoints.layouts.pytorch import mlp_ratio
from keras_vit.checkpoints.layouts.sidecars import FILTER_NAMES, FILTER_NUMBERS, RESAMPLE_FLOATS
from keras_vit.models import ViTConfig

# SigLIP 2 NaFlex at one size. Its patches go through a matrix, pixel by pixel, channels last. Its table of positions is
# that of a square, and is resized bilinearly with antialiasing. All else is a SigLIP.


def is_naflex(config: ViTConfig) -> bool:
    """Returns whether a model is a SigLIP that resizes positions as NaFlex does, unlike the SigLIPs of one size."""
    siglip = config.pooling == "map" and config.mlp == "plain" and config.gelu == "tanh" and config.patch_bias
    plain = config.prefix_tokens == 0 and config.stem_stages is None and config.rotary_embedding is None
    scaled = config.layer_scale is not None or config.pre_norm or config.layer_norm_epsilon != 1e-6
    return siglip and plain and not scaled and config.interpolation == "bilinear_antialias"


def naflex_problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reasons for which no file has a place for a NaFlex model."""
    if config.patch_size[0] != config.patch_size[1] or config.channels != 3:
        yield "patches of NaFlex models are squares of three channels"
    if config.grid_size[0] != config.grid_size[1]:
        yield "positions of NaFlex models are those of a square image (with_config(image_size=...))"


# timm

TIMM_ACTIVATIONS = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}
NAFLEX_ARCHITECTURE = "naflexvit_base_patch16_siglip"
_TIMM_POOLINGS = {"token": "token", "token_dist": "token", "avg": "avg", "map": "map", "none": ""}
# timm's hybrids, by the units in the stages of their ResNet: no argument changes them.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_TIMM_ACCEPTED = {
    "stem_stages": (None, *_HYBRIDS),
    "representation_size": (None,),
    "position_embedding": ("learned", "learned_patches", "learned_without_registers", "none"),
    "pooling": tuple(_TIMM_POOLINGS),
    "layer_norm_epsilon": (1e-5, 1e-6),
}
# timm's MLP-Mixers by patch, depth and width, which no argument changes.
_MIXERS = {
    **{(patch, 8, 512): f"mixer_s{patch}_224" for patch in (16, 32)},
    **{(patch, 12, 768): f"mixer_b{patch}_224" for patch in (16, 32)},
    **{(patch, 24, 1024): f"mixer_l{patch}_224" for patch in (16, 32)},
}
_MIXER_ACCEPTED = {
    "gelu": ("exact",),
    "pooling": ("avg", "none"),
    **plain_values("layer_norm_epsilon", "patch_bias", "pre_norm", "final_norm", "projection", "representation_size"),
}


def is_eva(config: ViTConfig) -> bool:
    """Returns whether a model is of timm's class `Eva` and not of its `VisionTransformer`."""
    gated = config.mlp.startswith("swiglu")
    return (
        config.rotary_embedding is not None
        or config.attention_bias == "no_key"
        or config.mlp == "swiglu_norm"
        or (config.attention_norm and gated)
    )


def check_writable_by_timm(config: ViTConfig) -> None:
    """Raises ValueError unless timm can compute what the model computes."""
    if config.tokens_mlp_width is not None:
        accepted, problems = _MIXER_ACCEPTED, _mixer_problems(config)
    else:
        accepted = _TIMM_ACCEPTED
        problems = _pe_problems(config) if config.rotary_embedding == "pe" else _timm_problems(config)
    advice = "timm has no others. Change it with model.with_config({field}=...) where that is what you mean. "
    check_fields(config, "'timm'", accepted, problems, advice)


def _mixer_problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reason for which timm's files have no place for an MLP-Mixer: its sizes."""
    size = (config.patch_size[0], config.depth, config.width)
    if size not in _MIXERS or len(set(config.patch_size)) > 1:
        yield f"timm has no Mixer of {config.depth} blocks, {config.width} wide, for patches of {config.patch_size}"


def _pe_problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reasons for which timm's files have no place for a Perception Encoder."""
    if config.projection and config.classes:
        yield "it has both a projection and a head"
    if config.patch_bias or not config.pre_norm or config.mlp != "plain":
        yield "timm's perception encoders have a normalisation before the blocks, plain MLPs and no bias of the patches"
    if config.attention_bias == "no_key" or config.attention_norm:
        yield "timm's perception encoders have biases of keys too, and no normalisation of heads"
    if config.register_tokens or config.distillation_token or config.stem_stages is not None:
        yield "timm's perception encoders have no tokens but the class token before the patches, and no ResNet"
    if config.gelu != "exact" or config.layer_norm_epsilon != 1e-5:
        yield "timm's perception encoders have the exact GELU and the epsilon 1e-5"
    if config.pooling == "map" and not (config.map_prefix and config.final_norm == "tokens"):
        yield "the attention pooling of timm's perception encoders reads all tokens, normalised"


def _timm_problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reasons for which timm's files have no place for a model."""
    if is_naflex(config):
        yield from naflex_problems(config)
    eva, distilled, epsilon = is_eva(config), config.distillation_token, config.layer_norm_epsilon
    classes, pooling, norm = config.classes, config.pooling, config.final_norm
    rotary, mlp = config.rotary_embedding, config.mlp
    mean = "the mean of class and distillation token"
    if config.position_embedding == "none" and rotary is None:
        yield "its patches have no positions"
    if config.projection and classes:
        yield "it has both a projection and a head"
    if config.projection_bias:
        yield "its projection has a bias"
    if config.projection and distilled:
        yield "it has a projection and a distillation token"
    if distilled and classes and not config.distillation_head:
        yield "its distillation token has no head of its own"
    if distilled and not classes and pooling != "token_dist":
        yield f"without a head timm answers with {mean}, as model.with_config(pooling='token_dist') does"
    if pooling == "token_dist" and classes:
        yield f"its head reads {mean}"
    plain = mlp == "plain" and epsilon == 1e-6 and not (eva or config.attention_norm)
    if distilled and not plain:
        yield "timm has only plain blocks with epsilon 1e-6 beside a distillation token"
    if norm == "none" and (config.pre_norm or eva):
        yield "it has no last normalisation"
    if norm == "pooled" and pooling == "map":
        yield "its last normalisation follows attention pooling"
    if mlp == "swiglu" and pooling == "map":
        yield "it has a SwiGLU and attention pooling, whose activation is another"
    if mlp == "swiglu" and not eva and config.register_tokens and not config.class_token:
        yield "it has a SwiGLU and register tokens without a class token"
    if mlp == "swiglu" and not eva and epsilon != 1e-6:
        yield "timm's models with a SwiGLU have the epsilon 1e-6"
    default_epsilon = 1e-5 if rotary == "dinov3" else 1e-6
    if eva and epsilon != default_epsilon:
        yield f"timm's models of that kind have another epsilon than {epsilon}"
    if eva and (config.pre_norm or pooling == "map" or mlp == "plain_norm"):
        yield "timm's models of that kind have no such parts"
    if config.pooling_heads or config.pooling_mlp_width:
        yield "its attention pooling has other sizes than its blocks, as only perception encoders have in timm"
    if eva and mlp == "plain" and config.gelu != "exact":
        yield f"timm's models of that kind have the exact GELU, not gelu={config.gelu!r}"
    if config.stem_stages is not None:
        if config.stem_folded:
            yield "the kernels of its ResNet were standardised for good"
        if config.stem_epsilons != "timm":
            yield "its ResNet has other epsilons (with_config(stem_epsilons='timm') changes the answers a little)"
        if config.stem_width != 64:
            yield f"the first convolution of its ResNet has {config.stem_width} channels, not 64"
        if distilled or not plain:
            yield "timm has only plain blocks with epsilon 1e-6 after a ResNet"


def timm_sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """Returns the files beside the weights, by name, as timm's `push_to_hf_hub` writes them; the config is writable."""
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
        "first_conv": "patch_embed.proj",
        "classifier": ["head", "head_dist"] if config.distillation_head else "head",
    }
    arguments: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": _one_or_two(config.patch_size),
        "in_chans": config.channels,
        "num_classes": outputs,
        "global_pool": _TIMM_POOLINGS[config.pooling],
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": mlp_ratio(config.mlp_width, config.width),
        "class_token": config.class_token,
        "init_values": config.layer_scale,
        "qkv_bias": config.attention_bias != "none",
    }
    if config.stem_stages is not None:
        published["first_conv"] = f"patch_embed.backbone.{'stem.' if config.stem_stages else ''}conv"
    if config.tokens_mlp_width is not None:
        published["first_conv"] = "stem.proj"
        architecture, more = _MIXERS[config.patch_size[0], config.depth, config.width], {}
        arguments = {
            "img_size": list(config.image_size),
            "in_chans": config.channels,
            "num_classes": outputs,
            "mlp_ratio": [mlp_ratio(n, config.width) for n in (config.tokens_mlp_width, config.mlp_width)],
            "global_pool": _TIMM_POOLINGS[config.pooling],
        }
    elif is_naflex(config):
        architecture, more = NAFLEX_ARCHITECTURE, {"pos_embed_grid_size": list(config.grid_size)}
        del arguments["img_size"]
        published["first_conv"] = "embeds.proj"
    else:
        architecture, more = (_eva_arguments if is_eva(config) else _arguments)(config)
    return {
        "config.json": {
            "architecture": architecture,
            "num_classes": outputs,
            "num_features": config.width,
            "global_pool": _TIMM_POOLINGS[config.pooling],
            "model_args": arguments | more,
            "pretrained_cfg": published,
            **({"label_names": list(config.class_names)} if config.class_names else {}),
        }
    }


def _arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Returns the name of one of timm's models that has the same code, and the arguments that make it this one."""
    registers, gelu, large_epsilon = config.register_tokens, config.gelu, config.layer_norm_epsilon == 1e-5
    arguments: dict[str, Any] = {
        "reg_tokens": registers,
        "no_embed_class": _only_patches_have_positions(config),
        "pre_norm": config.pre_norm,
        "fc_norm": config.final_norm == "pooled",
        "final_norm": config.final_norm != "none",
    }
    if config.pooling == "map" and config.prefix_tokens:
        arguments["pool_include_prefix"] = config.map_prefix
    if config.mlp != "swiglu":  # which has an activation of its own
        arguments["act_layer"] = TIMM_ACTIVATIONS[gelu]
    if config.distillation_token:
        return "deit_base_distilled_patch16_224", arguments
    if config.mlp == "swiglu":
        arguments["mlp_ratio"] = mlp_ratio(2 * config.mlp_width, config.width)
        return f"vit_giant_patch14_{'reg4_' if registers else ''}dinov2", arguments
    if config.stem_stages is not None:
        return _HYBRIDS[config.stem_stages], arguments
    # The epsilon is the architecture's: no argument that JSON can say sets it.
    if config.attention_norm or config.mlp == "plain_norm":
        arguments |= {"scale_attn_norm": config.attention_norm, "scale_mlp_norm": config.mlp == "plain_norm"}
        if large_epsilon:
            return "beit3_base_patch16_224", arguments
    if not large_epsilon:
        return "vit_base_patch16_224", arguments
    return f"vit_base_patch16_clip_{'quickgelu_' if gelu == 'quick' else ''}224", arguments


def _only_patches_have_positions(config: ViTConfig) -> bool:
    """Returns whether the table that is written for timm has no rows for the tokens before the patches."""
    kind = config.position_embedding
    without = kind == "learned_patches" or (kind == "learned_without_registers" and config.register_tokens > 0)
    return without and config.prefix_tokens > 0


def _eva_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Returns the name of a timm model of the class `Eva`, and the arguments that make it this one."""
    if config.rotary_embedding == "pe":
        return _pe_arguments(config)
    arguments: dict[str, Any] = {
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
    if config.rotary_embedding == "eva02":
        arguments["ref_feat_shape"] = list(config.rotary_grid or config.grid_size)
    return "eva02_base_patch14_448" if config.rotary_embedding else "eva_giant_patch14_224", arguments


def _pe_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Returns the name of a Perception Encoder of timm, and the arguments that make it this one."""
    return "vit_pe_core_base_patch16_224", {
        "num_reg_tokens": 0,
        "no_embed_class": _only_patches_have_positions(config),
        "use_post_transformer_norm": config.final_norm == "tokens",
        "use_fc_norm": config.final_norm == "pooled",
        "attn_pool_num_heads": config.pooling_heads or config.heads,
        "attn_pool_mlp_ratio": mlp_ratio(config.pooling_mlp_width or config.mlp_width, config.width),
        "rope_grid_offset": float(config.class_token),
        "ref_feat_shape": list(config.rotary_grid or config.grid_size),
    }


# transformers

ACTIVATION_NAMES = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}

# For each family its class's name and, for fields of a config, the values that its code can compute.
_COMMON = plain_values("stem_stages", "tokens_mlp_width", "attention_norm", "final_norm", "projection_bias")
_COMMON |= plain_values("pooling_heads", "pooling_mlp_width")
_PLAIN = {**_COMMON, **plain_values("mlp", "layer_scale", "register_tokens", "rotary_embedding")}
_BIASES = {"attention_bias": ("all", "none")}
_NO_TOWER = plain_values("patch_bias", "pre_norm", "projection")
_LEARNED = {"position_embedding": ("learned", "learned_patches", "learned_without_registers")}
_NO_POOLER, _NO_CLASSES = plain_values("representation_size"), plain_values("classes")
_BY_TOKEN = {"pooling": ("token", "none")}
_SINGLE = {**_PLAIN, **_NO_TOWER, **_LEARNED, **_BIASES}
_DINO = {**_COMMON, **_NO_TOWER, **_NO_POOLER, **plain_values("class_token"), "mlp": ("plain", "swiglu")}
_DINOV2 = {**_DINO, **_LEARNED, **_BIASES, **plain_values("rotary_embedding")}
_TOWER = {**_PLAIN, **_LEARNED, **_NO_POOLER, **plain_values("attention_bias")}
_TRANSFORMERS: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "vit": ("ViT", {**_SINGLE, **_BY_TOKEN, **plain_values("distillation_token")}),
    "deit": ("DeiT", {**_SINGLE, **_BY_TOKEN}),
    "ijepa": ("IJepa", {**_SINGLE, **_NO_POOLER, "pooling": ("avg", "none")}),
    "dinov2": ("Dinov2", _DINOV2),
    "dinov2_with_registers": ("Dinov2WithRegisters", _DINOV2),
    "tipsv2": (
        "Tipsv2",
        {**_DINOV2, **_BY_TOKEN, **_NO_CLASSES, **plain_values("distillation_token"), "gelu": ("exact",)},
    ),
    "dinov3_vit": ("DINOv3ViT", {**_DINO, **_BY_TOKEN, **_NO_CLASSES, "position_embedding": ("none",)}),
    "clip": ("CLIP", {**_TOWER, **_BY_TOKEN, **_NO_CLASSES, "patch_bias": (False,)}),
    "siglip": ("Siglip", {**_TOWER, **_NO_TOWER, "class_token": (False,)}),
    "siglip2": ("Siglip2", {**_TOWER, **_NO_TOWER, "channels": (3,)}),
}


def family_to_write(config: ViTConfig) -> str:
    """Returns the `model_type` of the family whose code computes what a model computes, if any does."""
    if config.rotary_embedding is not None:
        return "dinov3_vit"
    if is_tips(config):
        return "tipsv2"
    if config.layer_scale is not None or config.mlp != "plain" or config.pooling == "token_avg":
        return "dinov2_with_registers" if config.register_tokens else "dinov2"
    if config.pre_norm:
        return "clip"
    if config.distillation_token:
        return "deit"
    if is_naflex(config):
        return "siglip2"
    if config.pooling == "map" or (not config.class_token and config.classes and config.gelu == "tanh"):
        return "siglip"
    return "vit" if config.class_token else "ijepa"


def is_tips(config: ViTConfig) -> bool:
    """Returns whether a model is a TIPS with layer scale, not a DINOv2: one register, positions resized bilinearly."""
    scaled = config.layer_scale is not None
    return scaled and config.register_tokens == 1 and config.interpolation == "bilinear_antialias"


def check_writable_by_transformers(config: ViTConfig) -> None:
    """Raises ValueError unless transformers can compute what the model computes."""
    name = family_to_write(config)
    layout = f"'huggingface', which would write this model as a {_TRANSFORMERS[name][0]},"
    check_fields(config, layout, _TRANSFORMERS[name][1], _transformers_problems(config, name))


def _transformers_problems(config: ViTConfig, name: str) -> Iterator[str]:
    """Yields the reasons for which transformers' files of a family have no place for a model."""
    ending = f"{'with' if config.classes else 'without'} a head that pools"
    size, pooling, dinov2 = config.representation_size, config.pooling, name.startswith("dinov2")
    if config.classes and pooling == "none":
        yield "it has a head for every token"
    if size and config.classes:
        yield "there the head never reads the tanh layer (the pooler)"
    if size and pooling != "token":
        yield "there the tanh layer (the pooler) reads the class token"
    if size not in (None, config.width) and name != "vit":
        yield f"there the tanh layer (the pooler) has as many outputs as inputs, not {size}"
    if dinov2 and config.distillation_token:
        yield "it has a distillation token"
    if dinov2 and config.layer_scale is None:
        yield "it has no layer scale"
    expected = ("token_avg" if config.classes else "token", "none")
    if dinov2 and pooling not in expected:
        yield f"{ending} by {expected[0]!r}, not {pooling!r}"
    has_ratio = _dinov2_ratio(config) is not None or (name == "tipsv2" and config.mlp == "plain")
    if (dinov2 or name == "tipsv2") and not has_ratio:
        yield f"no ratio gives its mlp_width of {config.mlp_width}"
    is_dinov3 = config.rotary_embedding == "dinov3" and config.layer_scale is not None
    if name == "dinov3_vit" and not is_dinov3:
        yield "it has another rotary embedding, or no layer scale"
    expected = ("avg",) if config.classes else ("map", "none")
    if name == "siglip" and pooling not in expected:
        yield f"{ending} otherwise than by {pooling!r}"
    if config.resize == "shortest" and config.image_size[0] != config.image_size[1]:
        yield "there pictures that keep their aspect ratio are cut to squares (with_config(resize='squash') are not)"
    averages = name == "ijepa" or (name == "siglip" and config.classes and pooling == "avg")
    if config.prefix_tokens and averages:
        yield "it has tokens before the patches"
    if name == "siglip2":
        yield from naflex_problems(config)
        if config.classes or config.projection:
            yield "there the head reads the mean of the patches"
        if config.resize != "squash" or config.crop_ratio != 1:
            yield "pictures are not cropped there (with_config(resize='squash', crop_ratio=1.0))"


def transformers_sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """Returns the config.json and preprocessor_config.json for a model that transformers can compute."""
    return {"config.json": _config(config), "preprocessor_config.json": _preprocessor(config)}


# transformers takes what is missing to be 0; KerasHub's reader asks for it.
_RATES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _config(config: ViTConfig) -> dict[str, Any]:
    """Returns the config.json of transformers for a model."""
    family = family_to_write(config)
    flat, name = family in ("clip", "siglip", "siglip2", "tipsv2"), _TRANSFORMERS[family][0]
    ending = ("Vision" if flat else "") + ("ModelWithProjection" if config.projection else "Model")
    if config.classes:
        ending = "ForImageClassification" + ("WithTeacher" if config.distillation_head else "")
    stated: dict[str, Any] = {
        "architectures": [f"{name}{ending}"],
        "model_type": f"{family}_vision_model" if flat else family,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": _one_or_two(config.pipeline.prepared_size),
        "patch_size": _one_or_two(config.patch_size),
        "num_channels": config.channels,
        "hidden_act": ACTIVATION_NAMES[config.gelu],
        "layer_norm_eps": config.layer_norm_epsilon,
        "dtype": "float32",
    }
    if family == "siglip2":  # of any size
        del stated["image_size"]
        stated |= {"num_patches": config.position_rows, "vision_use_head": True}
    stated |= _of_family(config, family)
    if config.projection:
        stated["projection_dim"] = config.projection
    if config.classes:
        names = config.class_names or [f"LABEL_{i}" for i in range(config.classes)]
        stated["id2label"] = {str(i): name for i, name in enumerate(names)}
        if len(set(names)) == len(names):
            stated["label2id"] = {name: i for i, name in enumerate(names)}
    if family == "siglip" and config.classes:
        # Only the model with two towers has a head, and takes what it says of the image's.
        stated = {
            "architectures": stated["architectures"],
            "model_type": "siglip",
            "vision_config": {**stated, "vision_use_head": False},
            **{key: stated[key] for key in ("id2label", "label2id", "dtype") if key in stated},
        }
    return stated


def _of_family(config: ViTConfig, family: str) -> dict[str, Any]:
    """Returns what the config.json of a family says of a model's blocks."""
    gated, bias = config.mlp == "swiglu", config.attention_bias
    if family.startswith("dinov2") or family == "tipsv2":
        return {
            "mlp_ratio": _dinov2_ratio(config) or mlp_ratio(config.mlp_width, config.width),
            "use_swiglu_ffn": gated,
            "qkv_bias": bias == "all",
            "layerscale_value": config.layer_scale,
            "use_mask_token": False,
            "num_register_tokens": config.register_tokens,
            "drop_path_rate": 0.0,
            **_RATES,
        }
    stated: dict[str, Any] = {"intermediate_size": config.mlp_width}
    if family == "dinov3_vit":
        stated |= {
            "num_register_tokens": config.register_tokens,
            "use_gated_mlp": gated,
            "query_bias": bias != "none",
            "key_bias": bias == "all",
            "value_bias": bias != "none",
            "layerscale_value": config.layer_scale,
            "rope_theta": 100.0,
            "proj_bias": True,
            "mlp_bias": True,
            "attention_dropout": 0.0,
            "drop_path_rate": 0.0,
        }
        if gated:
            stated["hidden_act"] = "silu"
    elif family in ("vit", "deit", "ijepa"):
        stated |= {"qkv_bias": bias == "all", **_RATES}
        if config.representation_size:
            stated |= {"pooler_output_size": config.representation_size, "pooler_act": "tanh"}
    return stated


def _preprocessor(config: ViTConfig) -> dict[str, Any]:
    """Returns the preprocessor_config.json of transformers for a model."""
    if is_naflex(config):
        return {
            "image_processor_type": "Siglip2ImageProcessor",
            "do_resize": True,
            "resample": FILTER_NUMBERS[config.filter],
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(config.pixel_mean),
            "image_std": list(config.pixel_std),
            "patch_size": config.patch_size[0],
            "max_num_patches": config.position_rows,
        }
    height, width = config.pipeline.prepared_size
    resized = [int(size / config.crop_ratio) for size in (height, width)]
    shortest = config.resize == "shortest"
    # The class that resamples floats cannot cut out the centre.
    floats = config.filter == "bilinear_antialias" and not shortest and config.crop_ratio == 1
    processor = "Tipsv2ImageProcessor" if is_tips(config) else "CLIPImageProcessor"
    return {
        "image_processor_type": RESAMPLE_FLOATS if floats else processor,
        "do_resize": True,
        "size": {"shortest_edge": min(resized)} if shortest else {"height": resized[0], "width": resized[1]},
        "resample": FILTER_NUMBERS[config.filter],
        "do_center_crop": shortest or config.crop_ratio < 1,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": config.pixel_mean != (0.0, 0.0, 0.0) or config.pixel_std != (1.0, 1.0, 1.0),
        "image_mean": list(config.pixel_mean),
        "image_std": list(config.pixel_std),
    }


def _one_or_two(size: tuple[int, int]) -> int | list[int]:
    """Returns a single number for two equal ones, else a list of both."""
    return size[0] if size[0] == size[1] else list(size)


def _dinov2_ratio(config: ViTConfig) -> float | None:
    """Returns the integer ratio from which transformers computes the width of DINOv2's MLP; None if none does."""
    width, hidden = config.width, config.mlp_width
    for ratio in range(1, 17):
        swiglu = (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8
        if (swiglu if config.mlp == "swiglu" else int(width * ratio)) == hidden:
            return ratio
    return None
