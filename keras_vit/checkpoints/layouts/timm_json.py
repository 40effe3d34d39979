"""What timm's config.json says of a model, both ways; open_clip's says the same of image towers that are timm's."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import did_you_mean, listing, printable
from keras_vit.checkpoints.accounting import Notice
from keras_vit.checkpoints.files import Like, Sidecars
from keras_vit.checkpoints.layouts import jsons
from keras_vit.checkpoints.layouts.jsons import HALF, Fields, Key, as_is, preparation
from keras_vit.checkpoints.layouts.pytorch import UNPREPARED, assumption, is_naflex, mlp_ratio
from keras_vit.models import VARIANTS, ViTConfig, find_variant, variant_config

# What `model_args` say and no array tells.
ARGUMENTS = (
    Key("heads", "num_heads", read=as_is),
    Key("gelu", "act_layer", *jsons.name_codec({"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"})),
    Key(
        "layer_scale",
        "init_values",
        lambda value: 1e-5 if value == 0 else value,  # timm makes no scales for 0
        lambda key, value: float(value) if jsons.is_number(value) else None,
    ),
)
_GRID = Key("rotary_grid", "ref_feat_shape", list, lambda key, value: jsons.image_size_in(value))
_OF_PE = (Key("pooling_heads", "attn_pool_num_heads", read=as_is), _GRID)
READ = (*ARGUMENTS, *_OF_PE)
_SIZES = (
    *(Key("patch_size", "patch_size", jsons.one_or_two), Key("channels", "in_chans"), Key("width", "embed_dim")),
    *(Key("depth", "depth"), Key("class_token", "class_token")),
    Key("attention_bias", "qkv_bias", lambda value: value != "none"),
)
_FC_NORM, _IN_ATTENTION = ("final_norm", lambda value: value == "pooled"), "attention_norm"
# By class of timm's, which say by themselves what is not said here.
_OF_VIT = (
    *(Key("register_tokens", "reg_tokens"), Key("pre_norm", "pre_norm"), Key(_FC_NORM[0], "fc_norm", _FC_NORM[1])),
    Key("final_norm", "final_norm", lambda value: value != "none"),
)
_OF_NORMED = (Key(_IN_ATTENTION, "scale_attn_norm"), Key("mlp", "scale_mlp_norm", lambda value: value == "plain_norm"))
_OF_EVA = (
    Key("register_tokens", "num_reg_tokens"),
    Key("position_rows", "use_abs_pos_emb", bool),
    Key("rotary_embedding", "use_rot_pos_emb", lambda value: value is not None),
    Key("mlp", "swiglu_mlp", lambda value: value.startswith("swiglu")),
    Key("mlp", "scale_mlp", lambda value: value == "swiglu_norm"),
    Key("mlp", "qkv_fused", lambda value: value != "swiglu_norm"),
    *(Key(_IN_ATTENTION, "scale_attn_inner"), Key(_FC_NORM[0], "use_fc_norm", _FC_NORM[1])),
)
POOLINGS = {"token": "token", "tok": "token", "avg": "avg", "map": "map", "": "none"}
_POOLINGS = {"token_dist": "token", **{ours: theirs for theirs, ours in POOLINGS.items() if theirs != "tok"}}
NAFLEX = "naflexvit_base_patch16_siglip"
# timm's hybrids, by the units in the stages of their ResNet, and its MLP-Mixers by patch, depth and width: no argument
# changes them.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_MIXERS = {
    (patch, *size): f"mixer_{letter}{patch}_224"
    for letter, size in {"s": (8, 512), "b": (12, 768), "l": (24, 1024)}.items()
    for patch in (16, 32)
}

# All arguments of timm 1.0.31's `VisionTransformer`, `Eva`, `NaFlexVit`, `MlpMixer`: what no array tells is in `READ`
# and `check_arguments`, the others have no effect on answers.
_KNOWN = frozenset(
    """
    act_layer attn_drop_rate attn_gated attn_layer attn_only_layer_scale attn_pool_mlp_ratio attn_pool_num_heads
    attn_type block_fn block_layer class_token depth device drop_path_rate drop_rate dtype dynamic_img_pad
    dynamic_img_size embed_dim embed_layer embed_norm_layer embed_proj_type enable_patch_interpolator fc_norm
    final_norm fix_init flexible global_pool head_init_scale img_size in_chans init_values input_norm_layer
    mlp_layer mlp_ratio nlhb no_embed_class norm_layer num_blocks num_classes num_heads num_kv_heads
    num_reg_tokens patch_drop_rate patch_size patchify_channels_last pool_include_prefix pos_drop_rate pos_embed
    pos_embed_align_corners pos_embed_antialias pos_embed_ar_preserving pos_embed_grid_size
    pos_embed_interp_mode pos_embed_use_grid_sample pre_norm proj_bias proj_drop_rate qk_norm qkv_bias qkv_fused
    ref_feat_shape reg_tokens rope_grid_indexing rope_grid_offset rope_jitter_coords rope_mixed_mode
    rope_mrope_section rope_ref_feat_shape rope_rescale_coords rope_rotate_half rope_shift_coords
    rope_temperature rope_type scale_attn_inner scale_attn_inner_norm scale_attn_norm scale_mlp scale_mlp_norm
    stem_norm strict_img_size swiglu_align_to swiglu_mlp use_abs_pos_emb use_fc_norm use_key_only_attn_mask
    use_post_norm use_post_transformer_norm use_pre_transformer_norm use_rot_pos_emb weight_init
    """.split()
)


@dataclasses.dataclass(frozen=True)
class TimmMetadata:
    """What the JSON files beside a file say, and the user."""

    architecture: str  # timm's name of the model; empty where nothing says it
    arguments: Mapping[str, Any]  # what timm makes the model with
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # timm's `pretrained_cfg`
    preprocess: Mapping[str, Any] | None = None  # open_clip's `preprocess_cfg`, of a tower that is timm's
    pooling: Any = None  # what timm calls it
    labels: Any = None  # names of classes
    image_size: tuple[int, int] | None = None  # of the model; the next two are what its publisher prepares images to
    input_size: tuple[int, int] | None = None
    test_size: tuple[int, int] | None = None
    warnings: tuple[Notice, ...] = ()


def plain_architecture(name: Any) -> str:
    """An architecture's name without the address and the tag that repositories have."""
    return str(name).rpartition("/")[2].partition(".")[0]


def timm_metadata(sidecars: Sidecars, is_trunk: bool) -> TimmMetadata:
    """Returns what the JSON files beside a file say, and `like`; `is_trunk` is for timm's tower in open_clip's file."""
    given = sidecars.architecture
    if is_trunk and sidecars.open_clip:
        vision = jsons.mapping(sidecars.open_clip, "model_cfg", "vision_cfg")
        return TimmMetadata(
            architecture=plain_architecture(given or vision.get("timm_model_name", "")),
            arguments=jsons.mapping(vision, "timm_model_kwargs"),
            preprocess=jsons.mapping(sidecars.open_clip, "preprocess_cfg"),
            pooling=vision.get("timm_pool") or None,
            image_size=jsons.image_size_in(vision.get("image_size")),
        )
    metadata, warnings = sidecars.config, ()
    if metadata and "architecture" not in metadata:
        warnings = (Notice("the config.json is not one of timm and is ignored"),)
        metadata = {}
    if given and metadata and plain_architecture(given) != plain_architecture(metadata["architecture"]):
        name = printable(metadata["architecture"], 60)
        raise ValueError(f"config.json has architecture={name}, but like={given!r} was given: leave like out.")
    arguments = jsons.mapping(metadata, "model_args")
    if unknown := sorted(arguments.keys() - _KNOWN):
        text = f"model_args has {listing(unknown)}, which is not known here: the answers may differ from those of timm"
        warnings = (*warnings, Notice(text, "", "assumed"))
    published = jsons.mapping(metadata, "pretrained_cfg") or metadata  # older files have it all on one level
    sizes = [published.get(key) for key in ("input_size", "test_input_size")]
    input_size, test_size = (jsons.image_size_in(value[1:]) if isinstance(value, list) else None for value in sizes)
    return TimmMetadata(
        architecture=plain_architecture(given or metadata.get("architecture", "")),
        arguments=arguments,
        published=published,
        pooling=metadata.get("global_pool", arguments.get("global_pool")),
        labels=metadata.get("label_names"),
        image_size=jsons.image_size_in(arguments.get("img_size")),
        input_size=input_size,
        test_size=test_size,
        warnings=warnings,
    )


def first(table: Mapping[str, Any], architecture: str) -> Any:
    """Returns the value of the first pattern of a table that is found in an architecture's name; None for none."""
    return next((value for pattern, value in table.items() if re.search(pattern, architecture)), None)


# timm's SigLIPs compute the exact GELU except these, though all were trained with the approximation.
_GELUS = {
    r"quickgelu": "quick",
    r"^naflexvit_": "tanh",
    r"^vit_(base_patch32_siglip(_gap)?_256|large_patch16_siglip(_gap)?_512"
    r"|so400m_patch16_siglip(_gap)?_(256|384|512)|giantopt_patch16_siglip(_gap)?_(256|384))$": "tanh",
    r"": "exact",
}
# The channels of a head, where the width tells something else.
_HEAD_SIZES = {r"^test_vit": 32, r"^vit_base_patch16_gap_": {768: 48}, r"_radio_": {1536: 64}, r"giantopt": {1536: 96}}


def known_by(metadata: TimmMetadata, width: int) -> Fields:
    """Returns the fields that `model_args` say, or else the name: heads (None where it does not tell them) and GELU."""
    size = first(_HEAD_SIZES, metadata.architecture)
    size = size.get(width) if isinstance(size, dict) else size
    default = {"heads": width // size if size else None, "gelu": first(_GELUS, metadata.architecture)}
    return default | jsons.fields_in(READ, metadata.arguments)


def check_arguments(arguments: Mapping[str, Any], trunk: Fields) -> None:
    """Raises ValueError where timm's arguments say another computation than `trunk`, which has the same arrays."""
    rotary = trunk["rotary_embedding"]
    known = {
        "use_post_norm": False,
        "rope_mixed_mode": False,
        "rope_temperature": 100 if rotary == "dinov3" else 10000,
        "rope_rotate_half": rotary == "dinov3",
        "rope_grid_indexing": "xy" if rotary == "pe" else "ij",
        "rope_grid_offset": float(rotary == "pe" and trunk["class_token"]),
    }
    for key, value in known.items():
        if arguments.get(key) is not None and (rotary or key == "use_post_norm"):
            jsons.value_in(arguments, key, [value])


# How images are prepared, for files without a `pretrained_cfg`, as most files of that kind have it.
PREPARATIONS = {
    r"^naflexvit_": preparation(HALF, "squash", 1.0),
    r"clip|eva02|eva_": preparation(jsons.CLIP, "shortest", 1.0),
    r"dinov[23]|beit3|deit3_.*_384": preparation(jsons.IMAGENET, "shortest", 1.0),
    r"vit_pe_": preparation(HALF, "shortest", 1.0),
    r"miil": preparation(jsons.NONE, "shortest", 0.875, "bilinear_pillow"),
    r"tipsv2": preparation(jsons.NONE, "shortest", 1.0),
    r"deit|dino|mae|ijepa": preparation(jsons.IMAGENET, "shortest", 0.9),
    r"_384": preparation(HALF, "shortest", 1.0),
    r"^mixer_": preparation(HALF, "shortest", 0.875),
    r"": preparation(HALF, "shortest", 0.9),
}


def preparation_of(metadata: TimmMetadata, default: Fields, crop_key: str) -> tuple[Fields, list[Notice]]:
    """Returns how images are prepared, and warnings on what was assumed; `crop_key` is that of timm's share to crop."""
    if metadata.preprocess:
        return jsons.preparation_in(metadata.preprocess, preparation(HALF, "squash", 1.0), "resize_mode"), []
    warnings = []
    if not metadata.published.get("mean"):
        warnings.append(assumption("crop_ratio", UNPREPARED, metadata.architecture))
    return jsons.preparation_in(metadata.published, default, crop_key=crop_key), warnings


def is_eva(config: ViTConfig) -> bool:
    """Whether a model is of timm's class `Eva` and not of its `VisionTransformer`."""
    is_gated_and_normed = config.attention_norm and config.mlp.startswith("swiglu")
    is_no_vit = config.attention_bias == "no_key" or config.mlp == "swiglu_norm" or is_gated_and_normed
    return config.rotary_embedding is not None or is_no_vit


def needs(config: ViTConfig) -> dict[str, tuple[Any, ...]]:
    """Returns `Layout.needs` by the class of timm's that would compute a model."""
    if config.tokens_mlp_width is not None:
        return {"final_norm": ("tokens",), "pre_norm": (False,), "patch_bias": (True,)}
    found: dict[str, tuple[Any, ...]] = {"patch_bias": (not config.pre_norm,)}
    if config.rotary_embedding == "pe":
        found |= {"pre_norm": (True,), "mlp": ("plain",), "attention_bias": ("all",), "attention_norm": (False,)}
        return found | {"register_tokens": (0,), "distillation_token": (False,), "stem_stages": (None,)}
    if is_eva(config):
        found |= {"pre_norm": (False,), "final_norm": ("tokens", "pooled"), "mlp": ("plain", "swiglu", "swiglu_norm")}
        found |= {"attention_bias": ("no_key", "none"), "trim": ((0, 0),)}
        return found | {"pooling": ("token", "avg", "none"), "stem_stages": (None,), "distillation_token": (False,)}
    if config.stem_stages is not None:
        found |= {"stem_width": (64,)}
    if config.distillation_token or config.stem_stages is not None:
        found |= {"mlp": ("plain",), "attention_norm": (False,)}
    if config.distillation_token:  # of `VisionTransformerDistilled`
        found |= {"register_tokens": (0,), "stem_stages": (None,)}
        found |= {"pooling": ("token", "token_dist"), "final_norm": ("tokens", "none")}
    if config.distillation_token and config.classes:
        found |= {"distillation_head": (True,)}
    if config.mlp == "swiglu":
        found |= {"pooling": ("token", "avg", "none")}  # whose activation in attention pooling is another
    return found


def sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    """Returns the files beside the weights, by name, as timm's `push_to_hf_hub` writes them."""
    size, outputs = list(config.pipeline.prepared_size), config.projection or config.classes or 0
    pooling = _POOLINGS.get(config.pooling, config.pooling)
    architecture, arguments, conv = _made_with(config)
    published = {
        "input_size": [config.channels, *size],
        "fixed_input_size": True,
        **jsons.prepared_by(config, "crop_mode"),
        "num_classes": outputs,
        "pool_size": None,
        "first_conv": conv,
        "classifier": ["head", "head_dist"] if config.distillation_head else "head",
    }
    metadata = {
        "architecture": architecture,
        "num_classes": outputs,
        "num_features": config.width,
        "global_pool": pooling,
        "model_args": {"img_size": size, "num_classes": outputs, "global_pool": pooling} | arguments,
        "pretrained_cfg": published,
        **({"label_names": list(config.class_names)} if config.class_names else {}),
    }
    if architecture == NAFLEX:  # of any size
        del metadata["model_args"]["img_size"]
    return {"config.json": metadata}


def _made_with(config: ViTConfig) -> tuple[str, dict[str, Any], str]:
    """Returns the model of timm's that has the same code, the arguments that make it this one, and its first layer."""
    width = config.width
    if config.tokens_mlp_width is not None:
        key = (config.patch_size[0], config.depth, width)
        if key not in _MIXERS:
            raise ValueError(f"timm has no Mixer with (patch size, depth, width) = {key}.")
        ratios = [mlp_ratio(hidden, width) for hidden in (config.tokens_mlp_width, config.mlp_width)]
        return _MIXERS[key], {"in_chans": config.channels, "mlp_ratio": ratios}, "stem.proj"
    hidden = 2 * config.mlp_width if config.mlp == "swiglu" and not is_eva(config) else config.mlp_width
    arguments = jsons.written((*_SIZES, ARGUMENTS[0], ARGUMENTS[2]), config) | {"mlp_ratio": mlp_ratio(hidden, width)}
    if is_naflex(config):
        return NAFLEX, arguments | {"pos_embed_grid_size": list(config.grid_size)}, "embeds.proj"
    architecture, keys = _class_of(config)
    arguments |= jsons.written(keys, config)
    kind = config.position_embedding  # timm's table has no rows for registers, or none but the patches'
    only_patches = kind == "learned_patches" or (kind == "learned_without_registers" and config.register_tokens > 0)
    arguments["no_embed_class"] = only_patches and config.prefix_tokens > 0
    if config.rotary_embedding == "pe":
        arguments |= {
            "num_reg_tokens": 0,
            "use_post_transformer_norm": config.final_norm == "tokens",
            "use_fc_norm": config.final_norm == "pooled",
            "attn_pool_num_heads": config.pooling_heads or config.heads,
            "attn_pool_mlp_ratio": mlp_ratio(config.pooling_mlp_width or config.mlp_width, width),
            "rope_grid_offset": float(config.class_token),
        }
    if config.rotary_embedding in ("pe", "eva02"):
        arguments["ref_feat_shape"] = list(config.rotary_grid or config.grid_size)
    if config.rotary_embedding == "dinov3" and config.mlp == "swiglu":
        arguments["swiglu_align_to"] = 1  # of any width; what is not aligned would be packed
    if keys[: len(_OF_VIT)] == _OF_VIT and config.pooling == "map" and config.prefix_tokens:
        arguments["pool_include_prefix"] = config.map_prefix
    conv = "" if config.stem_stages is None else f"backbone.{'stem.' if config.stem_stages else ''}conv"
    return architecture, arguments, f"patch_embed.{conv or 'proj'}"


def _class_of(config: ViTConfig) -> tuple[str, tuple[Key, ...]]:
    """Returns a model of timm's of the class that computes a model, and the keys of what that class does not tell."""
    rotary, large_epsilon, gelu = config.rotary_embedding, config.layer_norm_epsilon == 1e-5, ARGUMENTS[1]
    if rotary == "pe":
        return "vit_pe_core_base_patch16_224", ()
    if is_eva(config):
        names = {None: "eva_giant_patch14_224", "eva02": "eva02_base_patch14_448", "dinov3": "vit_base_patch16_dinov3"}
        return names[rotary], _OF_EVA
    if config.distillation_token:
        return "deit_base_distilled_patch16_224", (*_OF_VIT, gelu)
    if config.mlp == "swiglu":  # which has an activation of its own
        return f"vit_giant_patch14_{'reg4_' if config.register_tokens else ''}dinov2", _OF_VIT
    if config.stem_stages is not None:
        if config.stem_stages not in _HYBRIDS:
            raise ValueError(f"timm has no hybrid with stem_stages={config.stem_stages!r}.")
        return _HYBRIDS[config.stem_stages], (*_OF_VIT, gelu)
    # The epsilon is the architecture's: no argument that JSON can say sets it.
    normed = config.attention_norm or config.mlp == "plain_norm"
    if normed and large_epsilon:
        return "beit3_base_patch16_224", (*_OF_VIT, gelu, *_OF_NORMED)
    clip = f"vit_base_patch16_clip_{'quickgelu_' if config.gelu == 'quick' else ''}224"
    return clip if large_epsilon else "vit_base_patch16_224", (*_OF_VIT, gelu, *(_OF_NORMED if normed else ()))


# The names of timm's models, beside our own

# How the names of timm's Transformers begin, and those of open_clip's.
_TIMM_NAMES = re.compile(
    r"(test_vit\d*|(vit|deit3?|beit3|eva|eva02|flexivit|mixer|naflexvit|sam\w*|sapiens2|aimv2)_\w+|ViT-[\w-]+)(\.\w+)?"
)
_LIKE = "like must be a variant such as 'DINOv2-S/14' or a timm model name such as 'vit_base_patch16_224'"


def find_like(name: Any) -> Like:
    """Returns the model that a name means: a variant with its config, or a name of timm's without one."""
    if not isinstance(name, str):
        raise TypeError(f"{_LIKE}, but {name!r} was given.")
    is_timms = _TIMM_NAMES.fullmatch(name.rpartition("/")[2]) is not None
    # `mixer_b16_224` is a spelling of a variant as well.
    if is_timms and re.search(r"patch\d+|^(\w+/)?mixer_\w+_\d+(\.|$)", name):
        return Like(name)
    try:
        variant = find_variant(name)
    except ValueError:
        if is_timms:
            return Like(name)
        near = did_you_mean(name, {variant.lower(): variant for variant in VARIANTS})
        raise ValueError(f"{_LIKE}, but {name!r} was given.{near}") from None
    config = variant_config(variant)
    if not isinstance(config, ViTConfig):
        raise ValueError(f"like must be a Vision Transformer, but {name!r} is a BiT: leave like out for BiT files.")
    return Like(variant, config)
