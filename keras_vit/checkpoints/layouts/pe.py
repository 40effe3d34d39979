"""The layout of Meta's own files of the Perception Encoder (Core, Lang, Spatial): OpenAI's names, with other parts.

A Core has attention pooling and a projection; Lang and Spatial end with their last block. No array tells the heads.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import Layout, Plan, Row, check_fields, plain_values, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import clip, pytorch
from keras_vit.checkpoints.layouts.flax import renamed
from keras_vit.checkpoints.layouts.pytorch import Trunk
from keras_vit.checkpoints.layouts.sidecars import HALF, image_size_in, preparation
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

_ANCHOR = "conv1.weight"
_BESIDE = r"logit_scale"
# Every published model computes this, and has a pooling of 8 heads.
COMPUTES = {
    "gelu": "exact",
    "layer_norm_epsilon": 1e-5,
    "pre_norm": True,
    "rotary_embedding": "pe",
    "rotary_grid": None,
}
POOLING_HEADS = 8
HEADS = {1536: 16}  # where a head has not 64 channels
_FIRST_SCALE = 0.1
# The grids in which timm's models count places, where no `ref_feat_shape` says it.
_TIMM_GRIDS = {r"vit_pe_core_base": (14, 14), r"vit_pe_core_(tiny|small|large)": (24, 24), r"vit_pe_": (32, 32)}
FAMILY = dataclasses.replace(
    clip.FAMILY,
    title="Meta",
    scales=("ls_1.gamma", "ls_2.gamma"),
    heads_by_width=HEADS,
    interpolation="bilinear",
    preparation=preparation(HALF, "squash", 1.0, "bilinear_pillow"),
)


def _rows(config: ViTConfig) -> list[Row]:
    """The rows of a Perception Encoder in Meta's names: trunk, attention pooling and projection."""
    rows = pytorch.trunk_rows(config, FAMILY)
    if config.pooling == "map":
        rows += pytorch.packed("attn_pool.attn.in_proj_", pytorch.POOLED_ATTENTION, config.width, config.width)
        mlp = ("attn_pool.mlp.c_fc", "attn_pool.mlp.c_proj")
        rows += pytorch.attention_pooling(
            config, "attn_pool.probe", "attn_pool.attn.out_proj", "attn_pool.layernorm", mlp
        )
    return [*rows, Row("proj", "projection/kernel", (config.width, config.projection))] if config.projection else rows


def unwrapped(name: str) -> str:
    """The name of an array without what wrappers of PyTorch put in, anywhere, as Meta's loader has it."""
    return name.replace("module.", "")


def with_unwrapped_names(file: Mapping[str, StoredArray]) -> Mapping[str, StoredArray]:
    """The arrays of Meta's file by such names; those of any other file as they are."""
    if not recognise(file, Sidecars()):
        return file
    return {name: dataclasses.replace(array, name=name) for name, array in renamed(dict(file), unwrapped).items()}


def is_open_clips(names: Collection[str]) -> bool:
    """Whether a perception encoder in timm's names is the image tower of a file of open_clip's."""
    return {"norm_pre.weight", "attn_pool.latent"} <= {name.rpartition("visual.trunk.")[2] for name in names}


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether a perception encoder is among the arrays: OpenAI's names, and a probe or no last normalisation."""
    names = {unwrapped(name) for name in names}
    for prefix in pytorch.prefixes_of(names, _ANCHOR):
        pools, has_norm = f"{prefix}attn_pool.probe" in names, f"{prefix}ln_post.weight" in names
        if f"{prefix}ln_pre.weight" in names and (pools or not has_norm):
            return True
    return False


def config(arrays: Mapping[str, StoredArray], sidecars: Sidecars) -> tuple[ViTConfig, Trunk]:
    """The config that the arrays tell; ValueError for what is not computed here."""
    pools = "attn_pool.probe" in arrays
    if FAMILY.positions not in arrays:
        raise ValueError(f"it has no array {FAMILY.positions!r}, which every perception encoder has.")
    if any(name.startswith("attn_pool.") for name in arrays) and not pools:
        raise ValueError("it has 'attn_pool' without 'attn_pool.probe', which no known family has.")
    if pools and shape_of(arrays, "attn_pool.probe", 3)[:2] != (1, 1):
        shape = arrays["attn_pool.probe"].shape
        raise ValueError(f"the shape of its 'attn_pool.probe' is {shape}; one probe (1, 1, width) was expected.")
    trunk = pytorch.trunk_of(arrays, sidecars, FAMILY, size=None, heads=None, is_named=True)
    fields: dict[str, Any] = {**trunk.fields, **COMPUTES, **FAMILY.preparation, "pooling": "none"}
    fields["final_norm"] = "tokens" if "ln_post.weight" in arrays else "none"
    fields["pooling_heads"] = POOLING_HEADS
    if pools:
        hidden = shape_of(arrays, "attn_pool.mlp.c_fc.weight", 2)[0]
        fields |= {"pooling": "map", "pooling_mlp_width": None if hidden == fields["mlp_width"] else hidden}
    if "proj" in arrays:
        fields["projection"] = shape_of(arrays, "proj", 2)[1]
    if f"{FAMILY.blocks}0.{FAMILY.scales[0]}" in arrays:
        fields["layer_scale"] = _FIRST_SCALE
    return ViTConfig(**fields), trunk


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """The plan by which a Perception Encoder is read; ValueError for what is not computed here."""
    found = pytorch.collect(renamed(dict(file), unwrapped), _ANCHOR, ("visual.",), _BESIDE)
    stored, trunk = config(found.arrays, sidecars)
    made = Plan(
        layout=LAYOUT,
        dialect=FAMILY.title,
        prefix=f"{found.outer}{found.module}",
        stored=stored,
        arrays=found.arrays,
        unused=[file_name for file_name, array in file.items() if unwrapped(file_name) in found.unused],
        warnings=trunk.remarks,
        is_grid_known=trunk.is_grid_known,
    )
    return pytorch.without_unused(made, "" if found.module else _BESIDE)


# In timm's names


def is_timms(arrays: Collection[str]) -> bool:
    """Whether arrays in timm's names are a perception encoder's: no other model has these together, or lacks a norm."""
    has = arrays.__contains__
    has_norm = has("norm.weight") or has("fc_norm.weight")
    return has("norm_pre.weight") and (has("attn_pool.latent") or not has_norm)


def timm_fields(
    arrays: Mapping[str, StoredArray], architecture: str, arguments: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """What timm computes in a perception encoder; `fields` are those that the arrays tell.

    Places are counted in cells of `ref_feat_shape` at any size. timm's class takes no other activation and epsilon.
    """
    grids = (grid for pattern, grid in _TIMM_GRIDS.items() if re.search(pattern, architecture))
    grid = tuple(n // patch for n, patch in zip(fields["image_size"], fields["patch_size"], strict=True))
    found: dict[str, Any] = {
        **COMPUTES,
        "rotary_grid": image_size_in(arguments.get("ref_feat_shape")) or next(grids, grid),
        "pooling_heads": arguments.get("attn_pool_num_heads") or POOLING_HEADS,
    }
    if "attn_pool.latent" in arrays:
        hidden = shape_of(arrays, "attn_pool.mlp.fc1.weight", 2)[0]
        found["pooling_mlp_width"] = None if hidden == fields["mlp_width"] else hidden
    return found


# Writing

_ACCEPTED = {
    **plain_values("stem_stages", "distillation_token", "register_tokens", "mlp", "tokens_mlp_width"),
    **plain_values("attention_bias", "attention_norm", "representation_size", "classes", "projection_bias"),
    **{field: (value,) for field, value in COMPUTES.items() if field != "rotary_grid"},
    "position_embedding": ("learned", "learned_patches"),
    "patch_bias": (False,),
    "pooling": ("map", "none"),
    "final_norm": ("tokens", "none"),
    "map_prefix": (True,),
}


def _check_writable(config: ViTConfig) -> None:
    check_fields(config, "'pe'", _ACCEPTED, _problems(config))


def _problems(config: ViTConfig) -> list[str]:
    """The reasons for which the layout has no place for a model of the config, none if it has one."""
    problems = []
    if config.rotary_grid not in (None, config.grid_size):
        problems.append("Meta's code counts places in patches, not in cells of a reference grid")
    if config.heads != HEADS.get(config.width, config.width // 64):
        problems.append(f"no array tells its {config.heads} heads, and Meta's models of that width have others")
    pooling_heads = config.pooling_heads or config.heads
    if config.pooling == "map" and pooling_heads != POOLING_HEADS:
        problems.append(f"its attention pooling has {pooling_heads} heads, not {POOLING_HEADS}")
    if config.pooling == "map" and config.final_norm != "tokens":
        problems.append("its attention pooling reads tokens without a last normalisation")
    if config.pooling == "none" and config.final_norm == "tokens":
        problems.append("with a last normalisation and no attention pooling its arrays are those of a CLIP")
    return problems


LAYOUT = Layout(
    "pe",
    _rows,
    recognise,
    plan,
    _check_writable,
    accounting.with_prefix_positions,
    sidecars=lambda config: {},
    unstated=lambda config: {**FAMILY.preparation, "interpolation": FAMILY.interpolation},
    settled_by="Pass like=..., such as 'PE-Core-B/16'.",
)
