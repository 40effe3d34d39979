"""The layout of timm's Vision Transformers, and of Facebook's own files (DINO, DINOv2, DINOv3, MAE, DeiT-III, I-JEPA).

They have the same names except for a few. open_clip's files whose image tower is timm's (SigLIP, EVA-02-CLIP) have them
under `visual.trunk.`. What no array tells is told by `architecture` in a repository's config.json. timm's MLP-Mixers
and SigLIP 2 NaFlex have names of their own.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import (
    TABLE,
    Layout,
    Notice,
    Plan,
    Row,
    mixer_config,
    renamed,
    shape_of,
    stages_of,
)
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import clip, jsons, pytorch, timm_json
from keras_vit.checkpoints.layouts.jsons import Fields, class_names, used_at
from keras_vit.checkpoints.layouts.pytorch import Family, Trunk, linear, norm, packed
from keras_vit.checkpoints.layouts.timm_json import TimmMetadata, first
from keras_vit.checkpoints.layouts.timm_json import sidecars as sidecars_of
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig, convolutions

_ANCHOR, _NAFLEX_ANCHOR = "patch_embed.proj.weight", "embeds.proj.weight"
_MIXER_ANCHOR = "blocks.0.mlp_tokens.fc1.weight"
_ANCHORS = (_NAFLEX_ANCHOR, _ANCHOR, _MIXER_ANCHOR)
_TRUNK = "visual.trunk."
_MODULES = (_TRUNK, "module.backbone.", "backbone.", "timm_model.", "module.")
# What a self-distillation learns besides its backbone.
_BESIDE = r"((dino|ibot)_head|head\.(mlp|last_layer|last_norm|projection_head|prototypes)2?)\..*"
_PROJECTION = "visual.head.proj"  # after a tower of timm's, in open_clip's file
_UNUSED = r"mask_token|local_cls_norm\..*|blocks\.\d+\.attn\.qkv\.bias_mask|decoder.*|num_batches_tracked"
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+\.)")  # blocks in chunks, counted through
_TIMM = Family(title="timm", interpolation="bicubic")
_NAFLEX = Family(
    title="timm",
    patches="embeds.proj",
    positions="embeds.pos_embed",
    interpolation="bilinear_antialias",
    linear_patches=True,
    grid_table=True,
    heads_by_width=pytorch.HEADS_OF_SIGLIP,
)
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

# Architectures that compute something else than others with such arrays, by the first pattern that is found.
_REFUSED = {
    r"_rpn_": "normalises after each branch instead of before",
    r"eva02_enormous": "normalises after each branch instead of before, and has no rotary embedding",
    r"_rope_(ape_|mixed_)*\d+$": "has a rotary embedding that is not supported",
}
# The grids in which Perception Encoders count places, where no `ref_feat_shape` says it.
_PE_GRIDS = {r"vit_pe_core_base": (14, 14), r"vit_pe_core_(tiny|small|large)": (24, 24), r"vit_pe_": (32, 32)}


def _timm_rows(config: ViTConfig, family: Family | None, bare: bool = False) -> list[Row]:
    """Returns the rows in the names of a family; None for the names that timm itself has for such a model."""
    if config.tokens_mlp_width is not None:
        return _mixer_rows(config)
    width = config.width
    rows = [] if config.stem_stages is None else _stem_rows(config)
    rows += pytorch.trunk_rows(config, family or _names_to_write(config))
    if config.pooling == "map":
        rows += linear("attn_pool.q", pytorch.POOLED_ATTENTION[0], width, width)
        rows += packed("attn_pool.kv.", pytorch.POOLED_ATTENTION[1:], width, width)
        mlp = ("attn_pool.mlp.fc1", "attn_pool.mlp.fc2")
        rows += pytorch.attention_pooling(config, "attn_pool.latent", "attn_pool.proj", "attn_pool.norm", mlp)
    if config.projection:
        rows.append(Row("head.weight", "projection/kernel", (config.projection, width), pytorch.LINEAR))
        if config.projection_bias or not bare:
            rows.append(Row("head.bias", "projection/bias" if config.projection_bias else None, (config.projection,)))
    if config.classes:
        rows += linear("head", "head", config.classes, config.pooled_size)
        rows += linear("head_dist", "head_dist", config.classes, width) if config.distillation_head else []
    return rows


def _names_to_write(config: ViTConfig) -> Family:
    if pytorch.is_naflex(config):
        return _NAFLEX
    eva, separate = timm_json.is_eva(config), config.mlp == "swiglu_norm"
    unpacked = separate or (config.mlp == "swiglu" and config.rotary_embedding == "dinov3")
    return dataclasses.replace(
        _TIMM,
        scales=_CHOICES["scales"][0 if eva else 1],
        attention=_CHOICES["attention"][1 if separate else 0],
        own_biases=_OWN_BIASES if eva and not separate and config.rotary_embedding != "pe" else (),
        mlp=_CHOICES["mlp"][0 if unpacked else 3],
        norm="fc_norm" if config.final_norm == "pooled" else "norm",
    )


def _stem_rows(config: ViTConfig) -> list[Row]:
    rows = []
    for conv in convolutions(config):
        if not conv.stage:  # without stages, it stands in no module of its own
            name, number = f"{_STEM}stem." if config.stem_stages else _STEM, ""
        else:
            name, number = f"{_STEM}stages.{conv.stage - 1}.blocks.{conv.unit - 1}.", conv.layer.removeprefix("conv")
        if conv.layer == "conv_proj":
            name, number = f"{name}downsample.", ""
        kernel, path = (conv.filters, conv.inputs, conv.size, conv.size), conv.unit_path
        rows.append(Row(f"{name}conv{number}.weight", f"{path}{conv.layer}/kernel", kernel, pytorch.CONVOLUTION))
        rows += norm(f"{name}norm{number}", f"{path}{conv.layer.replace('conv', 'gn')}", conv.filters)
    return rows


def _mixer_rows(config: ViTConfig) -> list[Row]:
    width, kernel = config.width, (config.width, config.channels, *config.patch_size)
    rows = [Row("stem.proj.weight", "embedding/kernel", kernel, pytorch.CONVOLUTION)]
    rows.append(Row("stem.proj.bias", "embedding/bias", (width,)))
    tokens = ("tokens", "token_mixing", math.prod(config.grid_size), config.tokens_mlp_width or 0)
    channels = ("channels", "mlp", width, config.mlp_width)
    for i in range(config.depth):
        for number, (name, layer, size, hidden) in enumerate((tokens, channels), 1):
            rows += norm(f"blocks.{i}.norm{number}", f"block_{i}/norm{number}", width)
            rows += linear(f"blocks.{i}.mlp_{name}.fc1", f"block_{i}/{layer}/fc1", hidden, size)
            rows += linear(f"blocks.{i}.mlp_{name}.fc2", f"block_{i}/{layer}/fc2", size, hidden)
    rows += norm("norm", "encoder_norm", width)
    return rows + (linear("head", "head", config.classes, width) if config.classes else [])


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether timm's patch embedding, its NaFlex's or its Mixer's, is among the arrays."""
    return any(pytorch.prefixes_of(names, anchor) for anchor in _ANCHORS)


def _timm_config(
    arrays: Mapping[str, StoredArray], metadata: TimmMetadata, trunk: Trunk, family: Family, of_text: bool
) -> tuple[ViTConfig, list[Notice]]:
    end, of_end = _end(arrays, metadata, family, trunk.fields, of_text)
    default = _default_preparation(metadata.architecture, trunk.fields, family)
    is_tested = metadata.test_size is not None and metadata.image_size is None
    prepared, of_pictures = timm_json.preparation_of(metadata, default, "test_crop_pct" if is_tested else "crop_pct")
    timm_json.check_arguments(metadata.arguments, trunk.fields)
    return ViTConfig(**{**trunk.fields, **end, **prepared}), [*trunk.warnings, *of_end, *of_pictures]


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which a file in timm's names is read."""
    anchor = next(anchor for anchor in _ANCHORS if pytorch.prefixes_of(file, anchor))
    is_naflex, is_mixer = anchor == _NAFLEX_ANCHOR, anchor == _MIXER_ANCHOR
    found = pytorch.collect(file, anchor, _MODULES, _BESIDE)
    of_text = f"{_PROJECTION}.weight" in found.arrays
    arrays = renamed(found.arrays, lambda name: name.replace(f"{_PROJECTION}.", "head."))
    arrays = renamed(arrays, lambda name: _CHUNK.sub(r"blocks.\1", name), "the number of a chunk of blocks")
    widths = arrays.get("stem.proj.weight" if is_mixer else anchor, arrays[anchor]).shape[:1]
    found = pytorch.with_head(dataclasses.replace(found, arrays=arrays), widths, "head")
    arrays, metadata = found.arrays, timm_json.timm_metadata(sidecars, found.module == _TRUNK)
    is_teacher = found.module.endswith("backbone.")
    container = "teacher" if is_teacher else sidecars.container or found.outer.partition(".")[0]
    family = _NAFLEX if is_naflex else _family({*arrays, *found.unused}, container)
    if is_naflex and not metadata.architecture:  # its arrays tell it
        metadata = dataclasses.replace(metadata, architecture=timm_json.NAFLEX)
    if is_mixer:
        family, trunk = _TIMM, _mixer_trunk_fields(arrays, metadata)
    else:
        _refuse(arrays, family, metadata.architecture)
        trunk = _trunk_fields(arrays, sidecars, metadata, family)
    stored, warnings = _timm_config(arrays, metadata, trunk, family, of_text)
    used = None
    if not (is_naflex or is_mixer):  # which have no size of their own, or one alone
        stored, *_ = used_at(stored, metadata.input_size or metadata.image_size, is_size=False)
    size, patch = metadata.test_size, stored.image_size_of((1, 1))
    is_whole = size is not None and not (size[0] % patch[0] or size[1] % patch[1])
    if is_whole and size != stored.image_size and metadata.image_size is None and not is_mixer:
        stored, used, of_size = used_at(stored, size)
        warnings += of_size
    bare = of_text and "head.bias" not in arrays
    layout = dataclasses.replace(LAYOUT, rows=functools.partial(_timm_rows, family=family, bare=bare))
    if family.title != "timm":
        layout = dataclasses.replace(layout, rewritten=Layout.rewritten)
    if family.periods:
        layout = dataclasses.replace(layout, computed=Layout.computed)
    return pytorch.plan_of(
        found,
        trunk,
        _UNUSED,
        _BESIDE,
        layout=layout,
        dialect=family.title,
        stored=stored,
        warnings=[*metadata.warnings, *warnings],
        image_size=used,
    )


def _mixer_trunk_fields(arrays: Mapping[str, StoredArray], metadata: TimmMetadata) -> Trunk:
    name = metadata.architecture
    if name and "mixer" not in name:
        raise ValueError(f"The architecture must be an MLP-Mixer for these arrays, but is {printable(name, 100)}.")
    width, channels, *patch = shape_of(arrays, "stem.proj.weight", 4)
    mixed, tokens = shape_of(arrays, _MIXER_ANCHOR, 2)
    fields = {
        "patch_size": tuple(patch),
        "channels": channels,
        "width": width,
        "mlp_width": shape_of(arrays, "blocks.0.mlp_channels.fc1.weight", 2)[0],
        "tokens_mlp_width": mixed,
        "gelu": timm_json.known_by(metadata, width)["gelu"],
        "interpolation": "bicubic",
    }
    config = mixer_config(arrays, "blocks.", tokens, fields)
    size = metadata.image_size or metadata.input_size or (0, 0)
    grid = (size[0] // patch[0], size[1] // patch[1])
    if math.prod(grid) == tokens:
        config = config.replace(image_size=config.image_size_of(grid))
    return Trunk(config.to_dict(), [], config.grid_size[0] == config.grid_size[1] or config.grid_size == grid)


def _family(names: Collection[str], container: str) -> Family:
    """Returns who has published a file, and what it calls its parts; `container` is the dict that the model was in."""
    has = names.__contains__
    own_biases = _OWN_BIASES if has("blocks.0.attn.q_bias") else ()
    family = dataclasses.replace(
        _TIMM, title=_publisher(names, container), own_biases=own_biases, periods=has("rope_embed.periods")
    )
    return family.as_in(names, _CHOICES)


def _publisher(names: Collection[str], container: str) -> str:
    """Returns the title of who has published a file with these arrays, such as `"Facebook DINOv2"`, or `"timm"`."""
    has = names.__contains__
    bias = has("blocks.0.attn.qkv.bias")
    titles = {
        "DINOv3": has("storage_tokens") or has("rope_embed.periods"),
        "DINOv2": has("register_tokens") or (has("mask_token") and has("blocks.0.ls1.gamma")),
        "MAE": any("decoder" in name for name in names),
        "DeiT-III": has("blocks.0.gamma_1") and bias and has("pos_embed") and not has("norm_pre.weight"),
        "DINO": container == "teacher",
        "I-JEPA": container in ("target_encoder", "encoder"),
    }
    title = next((title for title, is_so in titles.items() if is_so), None)
    if title is None and container == "model" and has("cls_token") and has("fc_norm.weight") and bias:
        title = "MAE"  # fine-tuned
    return "timm" if title is None else f"Facebook {title}"


def _refuse(arrays: Mapping[str, StoredArray], family: Family, architecture: str) -> None:
    """Raises ValueError where the names are known and the computation is another, by the arrays or the architecture."""
    has, name = arrays.keys().__contains__, printable(architecture, 100)
    why, token = first(_REFUSED, architecture), has("cls_token")
    registers = any(map(has, _CHOICES["register_tokens"]))
    biases = any(map(has, ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")))
    if family is _NAFLEX:
        is_siglip = re.search(r"^naflexvit_\w+_siglip$", architecture) is not None
        is_siglip = is_siglip and has("attn_pool.latent") and has(_NAFLEX.positions)
        found = {"The file or its architecture is not a naflexvit_*_siglip": not is_siglip}
    else:
        is_pe = _is_perception_encoder(arrays, architecture)
        is_pooled = has("attn_pool.latent") and not is_pe
        is_large = shape_of(arrays, _ANCHOR, 4)[0] == 1792 and _has_separate_biases(arrays)
        is_after = has("fc_norm.weight") and not (token or registers or biases)
        is_placed = has("pos_embed") or registers or has("rope_embed.periods")
        found = {
            f"{name} {why}": why is not None,
            f"The file lacks the array 'norm_pre.weight' of {name}": is_pe and not has("norm_pre.weight"),
            "The file has 'attn_pool' without the array 'norm.weight'": is_pooled and not has("norm.weight"),
            "The file is an EVA-02-E, which normalises after each branch": is_large,
            "The file is a vit_*_rope_* ('cls_token' without 'pos_embed')": token and not is_placed,
            "The file is a vit_*_rpn_* ('fc_norm' without 'cls_token')": is_after,
        }
    for what, is_so in found.items():
        if is_so:
            raise ValueError(f"{what}. Such a file is not supported: load another ViT of timm.")


def _has_separate_biases(arrays: Collection[str]) -> bool:
    return "blocks.0.attn.q_bias" in arrays or "blocks.0.attn.q_proj.weight" in arrays


def is_pe_of_open_clip(names: Collection[str]) -> bool:
    """Whether the image tower of a file of open_clip is a Perception Encoder in timm's names."""
    return {"norm_pre.weight", "attn_pool.latent"} <= {name.rpartition(_TRUNK)[2] for name in names}


def _is_perception_encoder(arrays: Collection[str], architecture: str) -> bool:
    """Returns whether a model of timm's is a Perception Encoder: by its name, else by its arrays."""
    # No other of timm's own has a normalisation before the blocks and attention pooling, or no last normalisation then.
    if architecture:
        return "vit_pe_" in architecture
    has_norm = "norm.weight" in arrays or "fc_norm.weight" in arrays
    return "norm_pre.weight" in arrays and ("attn_pool.latent" in arrays or not has_norm)


def _pe_fields(arrays: Mapping[str, StoredArray], metadata: TimmMetadata, known: Fields, fields: Fields) -> Fields:
    """Returns what timm computes in a Perception Encoder; `known` is what JSON files say, `fields` what arrays tell."""
    # Places are counted in cells of `ref_feat_shape` at any size. timm's class takes no other activation and epsilon.
    heads = None if "attn_pool_num_heads" in metadata.arguments else clip.PE_POOLING_HEADS  # as many as the blocks
    grid = tuple(n // patch for n, patch in zip(fields["image_size"], fields["patch_size"], strict=True))
    found: Fields = {
        **clip.PE_COMPUTES,
        "rotary_grid": known.get("rotary_grid") or first(_PE_GRIDS, metadata.architecture) or grid,
        "pooling_heads": known.get("pooling_heads", heads),
    }
    if "attn_pool.latent" in arrays:
        hidden = shape_of(arrays, "attn_pool.mlp.fc1.weight", 2)[0]
        found["pooling_mlp_width"] = None if hidden == fields["mlp_width"] else hidden
    return found


def _trunk_fields(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, metadata: TimmMetadata, family: Family
) -> Trunk:
    """Returns what arrays, architecture and timm's arguments tell of a model up to its last normalisation."""
    has = arrays.keys().__contains__
    architecture, arguments, is_timms = metadata.architecture, metadata.arguments, family.title == "timm"
    stem, is_pe = _stem_fields(arrays), _is_perception_encoder(arrays, architecture)
    known = timm_json.known_by(
        metadata, shape_of(arrays, f"{family.patches}.weight", 2 if family.linear_patches else 4)[0]
    )
    has_registers_alone = has("cls_token") and has(family.register_tokens) and not has("pos_embed")
    dinov3 = family.periods or "dinov3" in architecture or has_registers_alone
    first, last = (shape_of(arrays, f"blocks.0.{family.mlp[i]}.weight", 2) for i in (0, -1))
    gated = len(family.mlp) == 3 or first[0] == 2 * last[1]
    if not family.linear_patches:
        heads = pytorch.HEADS if gated else pytorch.HEADS_OF_SIGLIP
        if is_pe:
            heads = clip.PE_HEADS
        if dinov3:
            heads = pytorch.HEADS_OF_DINOV3
        rule = _interpolation(architecture, family, has(family.register_tokens))
        family = dataclasses.replace(family, interpolation=rule, heads_by_width=heads)
    trunk = pytorch.trunk_of(
        arrays,
        sidecars,
        family,
        size=metadata.image_size or metadata.input_size,
        heads=known["heads"],
        is_named=bool(architecture) or is_pe,
        cell=4 * 2 ** max(len(stem["stem_stages"]) - 1, 0) if stem else 1,
        registers_first=is_timms,
        default_size=256 if dinov3 and is_timms else 224,
    )
    fields = {**trunk.fields, **stem}
    if dinov3 and family.title == "Facebook DINOv3" and has("blocks.0.attn.qkv.bias"):
        fields["attention_bias"] = "no_key"  # it multiplies the keys' part by a mask of zeros
    is_turned = (gated and _has_separate_biases(arrays)) or not (has("cls_token") or has(family.positions))
    eva02 = not dinov3 and arguments.get("use_rot_pos_emb", is_turned) is True
    fields["rotary_embedding"] = "eva02" if eva02 else None
    if dinov3:
        fields["rotary_embedding"] = "dinov3"
    fields["gelu"] = known["gelu"]
    if architecture:  # CLIP's and BEiT-3's have the larger epsilon
        is_large = re.match(r"vit_.*_clip_|beit3_", architecture) is not None
    else:
        is_large = fields["pre_norm"] or fields["mlp"] == "plain_norm"
    fields["layer_norm_epsilon"] = 1e-5 if dinov3 or is_large else 1e-6
    if is_pe:
        fields |= _pe_fields(arrays, metadata, known, fields)
    if has(f"blocks.0.{family.scales[0]}"):
        value = known.get("layer_scale")
        fields["layer_scale"] = pytorch.LAYER_SCALE if value is None else value
    if eva02 and known.get("rotary_grid"):
        fields["rotary_grid"] = known["rotary_grid"]
    warnings = list(trunk.warnings)
    if not (architecture or gated) and fields["pre_norm"] and not is_pe:
        warnings.append(Notice(pytorch.UNKNOWN_GELU, "gelu", "unknown"))
    elif not (architecture or gated or is_pe):
        text = "without config.json the exact GELU is assumed, as in most models"
        warnings.append(Notice(text, "gelu", "assumed"))
    return Trunk(fields, warnings, trunk.is_grid_known)


def _stem_fields(arrays: Mapping[str, StoredArray]) -> Fields:
    """Returns the fields of the config that say which ResNet a file has; empty for a file without one."""
    if not any(re.match(rf"{_STEM}(stem|conv|norm|stages)\.", name) for name in arrays):
        return {}
    stages = stages_of(arrays, rf"^{re.escape(_STEM)}stages\.(\d+)\.blocks\.(\d+)\.", first=0)
    width, channels, *_ = shape_of(arrays, f"{_STEM}{'stem.' if stages else ''}conv.weight", 4)
    return {"stem_stages": stages, "stem_width": width, "stem_epsilons": "timm", "channels": channels}


def _interpolation(architecture: str, family: Family, registers: bool) -> str:
    """Returns how the code of those who trained a model resizes its position embeddings; `registers`: it has some."""
    if family.title in ("Facebook MAE", "Facebook I-JEPA"):
        return "bicubic_hf"
    if family.title == "Facebook DINO" or (family.title == "Facebook DINOv2" and not registers):
        return "bicubic_offset"
    return "bilinear" if "flexi" in architecture else "bicubic"


def _end(
    arrays: Mapping[str, StoredArray], metadata: TimmMetadata, family: Family, trunk: Fields, of_text: bool
) -> tuple[Fields, list[Notice]]:
    """Returns the fields for what follows the blocks (`trunk` are the others), and warnings on what was assumed."""
    has, pooling = arrays.keys().__contains__, None
    if metadata.pooling is not None:
        said = {"global_pool": metadata.pooling}
        pooling = timm_json.POOLINGS[jsons.value_in(said, "global_pool", timm_json.POOLINGS, file="the JSON file")]
    special = has("cls_token") or trunk["register_tokens"] > 0
    pools_all = metadata.arguments.get("pool_include_prefix") is True
    fields: Fields = {}
    warnings: list[Notice] = []
    if has("attn_pool.latent"):
        pooling = "map"
        if special:
            is_test_vit3 = metadata.architecture.startswith("test_vit3")
            fields["map_prefix"] = trunk["rotary_embedding"] == "pe" or pools_all or is_test_vit3
    elif pooling is None:
        averages = family.title == "timm" and trunk["rotary_embedding"] == "dinov3"
        mean = has("fc_norm.weight") or not has("cls_token") or averages or trunk["rotary_embedding"] == "pe"
        pooling = "avg" if mean else "token"
        if not (has("fc_norm.weight") or has("head.weight") or has("dist_token") or trunk.get("tokens_mlp_width")):
            what = "the mean of the patches" if mean else "the class token"
            text = f"without config.json {what} is assumed to be the output"
            warnings.append(pytorch.assumption("pooling", text, metadata.architecture))
    if pooling == "token" and has("dist_token") and not has("head.weight"):
        pooling = "token_dist"
    if pooling == "avg" and special and pools_all:
        raise ValueError("pool_include_prefix=true in config.json is not supported for a mean of the tokens.")
    fields |= {"pooling": pooling, "final_norm": "pooled" if has("fc_norm.weight") else "tokens"}
    if not (has("fc_norm.weight") or has("norm.weight")):
        fields["final_norm"] = "none"
    elif pooling == "none":
        fields["final_norm"] = "tokens"  # which is the same
    head, of_head = _head(arrays, metadata, of_text) if has("head.weight") else ({}, [])
    return {**fields, **head}, [*warnings, *of_head]


def _head(arrays: Mapping[str, StoredArray], metadata: TimmMetadata, of_text: bool) -> tuple[Fields, list[Notice]]:
    """Returns the fields that the array `head.weight` tells, of classes or a projection for texts; warnings."""
    out = shape_of(arrays, "head.weight", 2)[0]
    bias = arrays.get("head.bias")
    biased = bias is not None and bool(bias.read().any())
    if of_text or metadata.preprocess is not None or ("norm_pre.weight" in arrays and bias is not None and not biased):
        text = f"the head is a projection to {out} numbers, for comparison with texts"
        return {"projection": out, "projection_bias": biased}, [Notice(text)]
    distilled = "head_dist.weight" in arrays
    return {"classes": out, "class_names": class_names(metadata.labels, out), "distillation_head": distilled}, []


def _default_preparation(architecture: str, fields: Fields, family: Family) -> Fields:
    """Returns how images are prepared where no JSON file says it; `fields` tell it where no architecture is known."""
    rotary = fields["rotary_embedding"]
    kinds = {
        "vit_pe_": rotary == "pe",
        "mixer_": bool(fields.get("tokens_mlp_width")),
        "clip": fields["pre_norm"] or rotary == "eva02",
        "dinov2": rotary == "dinov3" or family.title == "Facebook DINOv2",
        "deit": family.title != "timm" or fields["distillation_token"] or "layer_scale" in fields,
    }
    return first(timm_json.PREPARATIONS, architecture or next((kind for kind, is_so in kinds.items() if is_so), ""))


def _rewritten(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Returns a config and weights whose tokens before the registers have no positions in the table."""
    # timm's models with registers have none: they are added to the tokens.
    if config.position_embedding != "learned_without_registers" or not config.register_tokens:
        return config, {}
    table = read(TABLE)
    special = config.prefix_tokens - config.register_tokens
    changed = {TABLE: table[:, special:]}
    for i, path in enumerate(["class_token/token", "distillation_token/token"][:special]):
        changed[path] = read(path) + table[:, i : i + 1]
    return config.replace(position_embedding="learned_patches"), changed


LAYOUT = Layout(
    "timm",
    functools.partial(_timm_rows, family=None),
    recognise,
    plan,
    _rewritten,
    computed=pytorch.computed_periods,
    sidecars=sidecars_of,
    needs=timm_json.needs,
    advice="Pass like=... (a variant or a timm model name), or put config.json beside the file.",
)
