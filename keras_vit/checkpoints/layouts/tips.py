"""The image towers of TIPS 1 and 2 (arXiv 2410.16512): the authors' files of PyTorch and of Scenic, and transformers'.

They are DINOv2's with a second class token in the place of its registers, other positions and pictures of 0..1. A
DINOv2 with one register has arrays of the same names: a TIPS is told by the `.npz` that its authors publish, by the
module `vision_encoder.`, or by a config.json of the type tipsv2.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Collection, Mapping

from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import TABLE, Layout, Notice, Plan, Row, having, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import flax, jsons, pytorch
from keras_vit.checkpoints.layouts.jsons import preparation
from keras_vit.checkpoints.layouts.pytorch import Family
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

# The authors' PyTorch, and the Hub, where the array of a class of transformers is saved in its place.
AUTHORS = Family(
    title="TIPS",
    register_tokens="register_tokens",
    interpolation="bilinear_antialias",
    preparation=preparation(jsons.NONE, "squash", 1.0, "bilinear_pillow"),
)
_TRANSFORMERS = dataclasses.replace(
    AUTHORS, **pytorch.TRANSFORMERS, attention=tuple(f"attention.{letter}_proj" for letter in "qkvo")
)
_HUB = "vision_encoder."
_MODULES = (_HUB, "vision_model.")
# What stands beside an image tower in one file.
_BESIDE = r"(text_encoder|text_model)\..*|temperature"
_UNUSED = r"(embeddings\.)?mask_token"
_CHOICES = {
    "mlp": (
        ("mlp.c_fc", "mlp.c_proj"),
        ("mlp.w12", "mlp.w3"),
        ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        ("mlp.fc1", "mlp.fc2"),
    )
}
TYPES = ("tipsv2", "tipsv2_vision_model")
_SCENIC_PREPARATION = preparation(jsons.NONE, "squash", 1.0, "bilinear_antialias")
_SCENIC = "encoder/"
_SCENIC_TOKENS = f"{_SCENIC}ToTokenSequence_0/"
_SCENIC_BLOCKS = f"{_SCENIC}transformer/encoderblock_"


def rows(config: ViTConfig, family: Family | None = None, hub: bool = False) -> list[Row]:
    """Returns the rows in the names of a family; None for those that are written, which differ on the Hub (`hub`)."""
    if family is None:
        plain = _CHOICES["mlp"][0] if hub else AUTHORS.mlp
        family = dataclasses.replace(AUTHORS, mlp=plain if config.mlp == "plain" else _CHOICES["mlp"][1])
        # Only training uses the mask token, but PyTorch's code misses it.
        return [*pytorch.trunk_rows(config, family), Row("mask_token", None, (1, config.width))]
    return pytorch.trunk_rows(config, family)


def _scenic_rows(config: ViTConfig) -> list[Row]:
    width, tokens = config.width, _SCENIC_TOKENS
    found = [
        Row(f"{tokens}embedding/kernel", "embedding/kernel", (*config.patch_size, config.channels, width)),
        Row(f"{tokens}embedding/bias", "embedding/bias", (width,)),
        Row(f"{tokens}cls", "class_token/token", (1, 2, width), part=(0, 2)),
        Row(f"{tokens}cls", "register_tokens/tokens", (1, 2, width), part=(1, 2)),
        Row(f"{tokens}posembed_input", TABLE, (1, *config.grid_size, width)),
    ]
    for i in range(config.depth):
        name, path = f"{_SCENIC_BLOCKS}{i}/", f"block_{i}/"
        block = flax.block_rows(name, path, config)
        if config.mlp == "swiglu":
            block = [row for row in block if "/MlpBlock_0/" not in row.name]
            gated = f"{name}FFNSwiGluFused_0/Dense_"
            block += flax.dense_rows(f"{gated}0", f"{path}mlp/gate", width, config.mlp_width)
            block += flax.dense_rows(f"{gated}1", f"{path}mlp/value", width, config.mlp_width)
            block += flax.dense_rows(f"{gated}2", f"{path}mlp/fc2", config.mlp_width, width)
        found += block
    return found + flax.norm_rows(f"{_SCENIC}encoder_norm", "encoder_norm", width)


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether a file is a TIPS of PyTorch's: by its arrays, and what tells it from a DINOv2 with one register."""
    # That is the ending `.npz`, the module `vision_encoder.`, or transformers' config.json.
    anchors = [f"{family.patches}.weight" for family in (AUTHORS, _TRANSFORMERS)]
    found = {anchor for anchor in anchors if pytorch.prefixes_of(names, anchor)}
    if not found:
        return False
    is_npz = getattr(names, "path", pathlib.Path()).suffix == ".npz"
    bare = "register_tokens" in names and (is_npz or f"{_HUB}norm.weight" in names)
    return bare or f"{_HUB}register_tokens" in names or str(sidecars.config.get("model_type")).startswith("tipsv2")


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which a TIPS of PyTorch's is read."""
    named = AUTHORS if pytorch.prefixes_of(file, f"{AUTHORS.patches}.weight") else _TRANSFORMERS
    found = pytorch.collect(file, f"{named.patches}.weight", _MODULES, _BESIDE)
    arrays, family = found.arrays, named.as_in(found.arrays, _CHOICES)
    metadata = sidecars.config
    if isinstance(metadata.get("vision_config"), dict):
        metadata = {**metadata["vision_config"], "model_type": metadata.get("model_type")}
    if metadata.get("model_type") is not None:
        jsons.value_in(metadata, "model_type", TYPES)
    shape = shape_of(arrays, family.register_tokens, 3)
    if shape[1] != 1:
        raise ValueError(f"{family.register_tokens!r} must have one row (TIPS), but its shape is {shape}.")
    size = jsons.image_size_in(metadata.get("image_size"))
    trunk = pytorch.trunk_of(
        arrays, sidecars, family, size=size, heads=metadata.get("num_attention_heads"), is_named=True
    )
    if trunk.fields["mlp"] != "swiglu":
        jsons.value_in(metadata, "hidden_act", ["gelu"])
    jsons.check_sizes(metadata, jsons.SIZES, trunk.fields)
    fields = trunk.fields | jsons.transformers_preparation(sidecars.preprocessor or {}, family.preparation)
    fields |= {"gelu": "exact", "pooling": "token", "layer_scale": metadata.get("layerscale_value", 1.0)}
    stored = ViTConfig(**fields, layer_norm_epsilon=jsons.number(metadata, "layer_norm_eps", 1e-6))
    stored, used, of_size = jsons.used_at(stored, jsons.transformers_size(sidecars.preprocessor or {}))
    is_hub = bool(found.module) or bool(metadata)
    return pytorch.plan_of(
        found,
        trunk,
        _UNUSED,
        _BESIDE,
        layout=dataclasses.replace(HUGGINGFACE if is_hub else LAYOUT, rows=functools.partial(rows, family=family)),
        dialect="TIPS" if named is AUTHORS else "transformers",
        stored=stored,
        warnings=[*trunk.warnings, *of_size],
        image_size=used,
    )


def plan_of_scenic(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which an image tower of Scenic's is read; the arrays beside it are the text tower's."""
    arrays = {name: array for name, array in file.items() if name.startswith(_SCENIC)}
    height, width, channels, hidden = shape_of(arrays, f"{_SCENIC_TOKENS}embedding/kernel", 4)
    _, grid_rows, columns, _ = shape_of(arrays, f"{_SCENIC_TOKENS}posembed_input", 4)
    gated = f"{_SCENIC_BLOCKS}0/FFNSwiGluFused_0/Dense_0/kernel" in arrays
    stored = ViTConfig(
        image_size=(grid_rows * height, columns * width),
        patch_size=(height, width),
        width=hidden,
        depth=accounting.depth_of(arrays, _SCENIC_BLOCKS),
        **flax.sizes_of_block(arrays, f"{_SCENIC_BLOCKS}0/", "FFNSwiGluFused_0" if gated else "MlpBlock_0"),
        channels=channels,
        mlp="swiglu" if gated else "plain",
        gelu="exact" if gated else "tanh",
        register_tokens=1,
        position_embedding="learned_patches",
        pooling="token",
        interpolation=AUTHORS.interpolation,
        **_SCENIC_PREPARATION,
    )
    warning = Notice(f"the position embeddings are a table of {grid_rows} x {columns}, resized for other image sizes")
    return Plan(
        layout=SCENIC,
        dialect="Scenic",
        stored=stored,
        arrays=arrays,
        unused=sorted(file.keys() - arrays.keys()),
        warnings=[warning],
    )


def is_tips(config: ViTConfig) -> bool:
    """Returns whether a model is a TIPS with layer scale, not a DINOv2: one register, positions resized bilinearly."""
    scaled = config.layer_scale is not None
    return scaled and config.register_tokens == 1 and config.interpolation == "bilinear_antialias"


_NEEDS = {
    **{"patch_bias": (True,), "distillation_token": (False,), "pre_norm": (False,), "attention_bias": ("all",)},
    **{"attention_norm": (False,), "mlp": ("plain", "swiglu")},
    "position_embedding": ("learned_patches", "learned_without_registers"),
}
LAYOUT = Layout("tips", rows, recognise, plan, accounting.with_prefix_positions, needs=lambda config: _NEEDS)
# The same in `.safetensors`, with what config.json says; `huggingface` writes it.
HUGGINGFACE = dataclasses.replace(LAYOUT, name="huggingface", rows=functools.partial(rows, hub=True))
SCENIC = Layout("tips_scenic", _scenic_rows, having(f"{_SCENIC_TOKENS}embedding/kernel"), plan_of_scenic)
