"""EoMT's files: those of its authors (tue-mps/eomt) and of transformers, on DINOv2 and DINOv3."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import TABLE, Layout, Plan, Row, depth_of, having, prefixed, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import huggingface, jsons, pytorch
from keras_vit.checkpoints.layouts.jsons import Fields, Key, preparation
from keras_vit.checkpoints.layouts.pytorch import Family, Trunk, linear, norm
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import EoMTConfig, ViTConfig

# A transposed convolution is (in, out, height, width), a depthwise one (channels, 1, height, width).
_TRANSPOSED, _DEPTHWISE = (0, 2, 3, 1), (2, 3, 0, 1)
_IMAGENET = preparation(jsons.IMAGENET, "squash", 1.0, "bilinear_pillow")
_BACKBONE = "network.encoder.backbone."
_QKVO = huggingface.FAMILIES["dinov3_vit"].attention
_TRANSFORMERS = dataclasses.replace(
    huggingface.FAMILIES["dinov2"],
    title="transformers",
    module="",
    blocks="layers.",
    interpolation="bicubic",
    preparation=_IMAGENET,
)
_AUTHORS = Family(title="the authors, DINOv2", module=_BACKBONE, interpolation="bicubic", preparation=_IMAGENET)
# By the array that only its files have: what its parts are called. `types` are the model types of transformers.
FAMILIES: dict[str, Family] = {
    f"{_BACKBONE}patch_embed.proj.weight": _AUTHORS,
    f"{_BACKBONE}patch_embed.patch_embeddings.weight": dataclasses.replace(
        _AUTHORS,
        title="the authors, DINOv3",
        patches="patch_embed.patch_embeddings",
        class_token="patch_embed.cls_token",
        register_tokens="patch_embed.register_tokens",
        attention=_QKVO,
        scales=_TRANSFORMERS.scales,
        epsilon=1e-5,
    ),
    "embeddings.patch_embeddings.projection.weight": dataclasses.replace(
        _TRANSFORMERS,
        types=("eomt",),
        positions="embeddings.position_embeddings.weight",
        attention=(*_QKVO[:3], "attention.out_proj"),
    ),
    "embeddings.patch_embeddings.weight": dataclasses.replace(
        _TRANSFORMERS, types=("eomt_dinov3",), patches="embeddings.patch_embeddings", attention=_QKVO
    ),
}


# What a kind of file calls the parts of the head; "masking" says how probably each block masks attention.
_OF_AUTHORS = {
    "queries": "network.q.weight",
    "class_head": "network.class_head",
    **{f"mask_head/fc{i}": f"network.mask_head.{2 * (i - 1)}" for i in (1, 2, 3)},
    **{"upscale": "network.upscale.", "upscale_norm": "norm"},
    "masking": "network.attn_mask_probs",
}
_OF_TRANSFORMERS = {
    "queries": "query.weight",
    "class_head": "class_predictor",
    **{f"mask_head/fc{i}": f"mask_head.fc{i}" for i in (1, 2, 3)},
    **{"upscale": "upscale_block.block.", "upscale_norm": "layernorm2d"},
    "masking": "attn_mask_probs",
}
# What config.json says that arrays tell as well.
_OF_BACKBONE = (*jsons.SIZES, Key("register_tokens", "num_register_tokens"), Key("image_size", "image_size"))
_OF_HEAD = (
    *(Key("query_blocks", "num_blocks"), Key("queries", "num_queries")),
    Key("upscale_blocks", "num_upscale_blocks"),
)
_UNUSED = r"(network\.)?criterion\..*|network\.encoder\.pixel_(mean|std)|rope_embeddings\.inv_freq|.*\.mask_token"


def _eomt_rows(config: EoMTConfig, family: Family, names: Mapping[str, str]) -> list[Row]:
    width = config.backbone.width
    rows = prefixed(family.module, pytorch.trunk_rows(config.backbone, family))
    rows.append(Row(names["queries"], "queries/tokens", (config.queries, width)))
    rows += linear(names["class_head"], "class_head", config.classes + 1, width)
    for part in ("mask_head/fc1", "mask_head/fc2", "mask_head/fc3"):
        rows += linear(names[part], part, width, width)
    for i in range(config.upscale_blocks):
        name, path = f"{names['upscale']}{i}.", f"upscale_{i}"
        rows.append(Row(f"{name}conv1.weight", f"{path}/conv1/kernel", (width, width, 2, 2), _TRANSPOSED))
        rows.append(Row(f"{name}conv1.bias", f"{path}/conv1/bias", (width,)))
        rows.append(Row(f"{name}conv2.weight", f"{path}/conv2/kernel", (width, 1, 3, 3), _DEPTHWISE))
        rows += norm(f"{name}{names['upscale_norm']}", f"{path}/norm", width)
    return rows


def _eomt_config(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, family: Family, is_rotary: bool
) -> tuple[EoMTConfig, Trunk]:
    """Returns the config that arrays and JSON files tell, and the `Trunk` of its backbone with what was assumed."""
    names, metadata = _names(family), sidecars.config
    backbone, trunk = _backbone(arrays, sidecars, family, is_rotary)
    classes = shape_of(arrays, f"{names['class_head']}.weight", 2)[0] - 1
    stored: Any = EoMTConfig(
        backbone=backbone,
        classes=classes,
        class_names=huggingface.names_of_classes(metadata, classes),
        queries=shape_of(arrays, names["queries"], 2)[0],
        query_blocks=shape_of(arrays, names["masking"], 1)[0],
        upscale_blocks=depth_of(arrays, names["upscale"]),
        activation=_activation(metadata),
        pictures="eomt_transformers" if family.types else "eomt_authors",
        task="semantic" if (sidecars.preprocessor or {}).get("do_split_image") else None,
    )
    jsons.check_sizes(metadata, (*_OF_BACKBONE, *_OF_HEAD), vars(backbone) | vars(stored))
    return stored, trunk


def _names(family: Family) -> dict[str, str]:
    return _OF_TRANSFORMERS if family.types else _OF_AUTHORS


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which an EoMT is read."""
    if sidecars.grid_size is not None:
        raise ValueError(f"An EoMT has its grid in the file: leave grid_size={sidecars.grid_size!r} out.")
    if sidecars.architecture:
        raise ValueError(f"An EoMT needs no like={sidecars.architecture!r}: leave like out.")
    anchor = next((name for name in FAMILIES if name in file), None)
    if anchor is None:
        raise ValueError("The file is an EoMT without a DINOv2 or DINOv3 backbone, which is not supported.")
    family, metadata = FAMILIES[anchor], sidecars.config
    names = _names(family)
    if family.types:
        jsons.value_in(metadata or {"model_type": None}, "model_type", family.types)
    _check_masking(file, names, family)
    # transformers stores register tokens also where there are none.
    inside = {name.removeprefix(family.module): array for name, array in file.items() if 0 not in array.shape}
    if family.positions in inside and len(inside[family.positions].shape) == 2:
        table = inside[family.positions]
        inside = {**inside, family.positions: table.piece(0, (1, *table.shape))}
    of_blocks = {name for name in inside if name.startswith(family.blocks)}
    found = family.as_in(of_blocks, {"mlp": (*huggingface.MLPS.values(),)})
    stored, trunk = _eomt_config(inside, sidecars, found, anchor.endswith("embeddings.weight"))
    made = Plan(
        layout=_layout(found, names, huggingface.base_of_periods(metadata)),
        dialect=family.title,
        stored=stored,
        arrays={
            f"{family.module}{name}" if name not in file else name: array
            for name, array in inside.items()
            if name != names["masking"]
        },
        unused=[name for name, array in file.items() if 0 in array.shape],
        warnings=trunk.warnings,
        is_grid_known=trunk.is_grid_known,
    )
    return pytorch.without_expected(made, _UNUSED)


def _check_masking(file: Mapping[str, StoredArray], names: Mapping[str, str], family: Family) -> None:
    """Raises ValueError where the probabilities of masks are missing or not 0, or weights are differences (deltas)."""
    shape_of(file, names["masking"], 1)
    probabilities = file[names["masking"]].read()
    last = file.get(f"{family.module}{family.norm}.weight")
    if (probabilities < 0).any() or (last is not None and np.abs(last.read()).mean() < 0.1):
        raise ValueError("The file has delta weights. Add DINOv3's weights, or load the repository for transformers.")
    if probabilities.any():
        given = printable(probabilities.tolist(), 80)
        raise ValueError(f"{names['masking']!r} must be 0 everywhere, as at the end of training, but is {given}.")


def _backbone(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, family: Family, is_rotary: bool
) -> tuple[ViTConfig, Trunk]:
    metadata = sidecars.config
    width, _, *patch = shape_of(arrays, f"{family.patches}.weight", 4)
    if family.types:
        size = jsons.image_size_in(metadata.get("image_size", 640))
    elif is_rotary:
        size = sidecars.image_size
    else:
        side = math.isqrt(shape_of(arrays, family.positions, 3)[1])
        size = (side * patch[0], side * patch[1])
    if is_rotary and size is None:
        raise ValueError("The image size is not in the file: pass image_size=... (see the file's name), such as 640.")
    heads = None if width % 64 else width // 64
    if family.types:
        heads = metadata.get("num_attention_heads", 16)
    trunk = pytorch.trunk_of(arrays, sidecars, family, size=size, heads=heads, is_named=True)
    fields: Fields = dict(trunk.fields)
    pictures = sidecars.preprocessor or {}
    wanted = jsons.PREPARED | {"resample": 2} | ({} if pictures.get("do_split_image") else {"do_pad": True})
    read = ("size", "image_mean", "image_std", "do_split_image", "do_pad", "default_to_square")
    jsons.check_prepared(pictures, wanted, read)
    edges = pictures["size"].values() if isinstance(pictures.get("size"), dict) else [pictures.get("size")]
    if any(edge not in (None, fields["image_size"][0]) for edge in edges):
        raise jsons.unsupported_value("size", pictures["size"])
    fields |= jsons.means_in(pictures.get("image_mean"), pictures.get("image_std"))
    gated = fields["mlp"] == "swiglu"
    if gated and is_rotary and family.types:
        jsons.value_in(metadata, "hidden_act", ["silu"], "gelu")
    fields |= {
        **{"class_token": True, "patch_bias": True, "position_embedding": "none" if is_rotary else "learned_patches"},
        "rotary_embedding": "dinov3" if is_rotary else None,
        "gelu": "exact" if gated else _activation(metadata),
        "layer_norm_epsilon": metadata.get("layer_norm_eps", family.epsilon),
        "layer_scale": metadata.get("layerscale_value", 1.0),
        "pooling": "none",
    }
    return ViTConfig(**family.preparation | fields), trunk


def _activation(config: Mapping[str, Any]) -> str:
    """The activation that config.json says, by default the exact GELU; ValueError for an unknown one."""
    known = {**huggingface.ACTIVATIONS, "silu": "silu", "relu": "relu"}
    return known[jsons.value_in(config, "hidden_act", known, "gelu")]


def _layout(family: Family, names: Mapping[str, str], theta: float = 100.0) -> Layout:
    return Layout(
        "eomt",
        functools.partial(_eomt_rows, family=family, names=names),
        computed=lambda config: pytorch.computed_periods(config.backbone, theta),
        advice="",
        config_type=EoMTConfig,
    )


def _written_rows(config: EoMTConfig) -> list[Row]:
    """Returns the rows of an EoMT in transformers, whose position embeddings have no first axis."""
    rotary, gated = config.backbone.rotary_embedding is not None, config.backbone.mlp == "swiglu"
    family = FAMILIES[f"embeddings.patch_embeddings{'' if rotary else '.projection'}.weight"]
    family = dataclasses.replace(family, mlp=huggingface.MLPS["gate" if gated else "up" if rotary else "fc"])
    rows = _eomt_rows(config, family, _OF_TRANSFORMERS)
    return [dataclasses.replace(row, shape=row.shape[1:]) if row.path == TABLE else row for row in rows]


def _needs(config: EoMTConfig) -> dict[str, tuple[Any, ...]]:
    rotary, gated = config.backbone.rotary_embedding is not None, config.backbone.mlp == "swiglu"
    # The file says one activation for blocks and head; DINOv2's gated MLPs have their own.
    activation = ("silu" if rotary else config.activation) if gated else config.backbone.gelu
    return huggingface.needs_of_backbone(config) | {
        "activation": (activation,),
        "upscale_blocks": (max(config.upscale_blocks, 1),),
        "backbone.attention_bias": ("no_key" if rotary else "all",),
        "backbone.position_embedding": ("none" if rotary else "learned_patches",),
    }


def _constants(config: EoMTConfig) -> dict[str, np.ndarray]:
    weights = np.ones(config.classes + 1, "float32")
    weights[-1] = 0.1
    return {"attn_mask_probs": np.zeros(config.query_blocks, "float32"), "criterion.empty_weight": weights}


def _sidecars(config: EoMTConfig) -> dict[str, dict[str, Any]]:
    backbone, size = config.backbone, config.image_size[0]
    kind = "eomt" if backbone.rotary_embedding is None else "eomt_dinov3"
    metadata = huggingface.sidecars_of(backbone)["config.json"]
    metadata |= {
        "architectures": [f"{kind.title().replace('_', '')}ForUniversalSegmentation"],
        "model_type": kind,
        "image_size": size,
        "hidden_act": huggingface.ACTIVATION_NAMES[config.activation],
        **jsons.written(_OF_HEAD, config),
        **huggingface.labels_of(config),
    }
    whole = config.task == "semantic"
    edges = {"shortest_edge": size, "longest_edge": None if whole else size}
    cut = {"do_pad": not whole, "do_split_image": whole}
    pictures = jsons.written_preprocessor("EomtImageProcessor", backbone, 2, size=edges, **cut)
    return {"config.json": metadata, "preprocessor_config.json": pictures}


LAYOUT = Layout("eomt", recognise=having(_OF_AUTHORS["queries"], _OF_TRANSFORMERS["queries"]), plan=plan)
HUGGINGFACE = Layout(
    "eomt",
    _written_rows,
    computed=lambda config: pytorch.computed_periods(config.backbone),
    needs=_needs,
    sidecars=_sidecars,
    constants=_constants,
    noted=("task",),
    config_type=EoMTConfig,
)
