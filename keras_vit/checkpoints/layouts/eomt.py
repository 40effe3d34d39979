"""EoMT's files: those of its authors (tue-mps/eomt) and of transformers, on DINOv2 and DINOv3."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import TABLE, Layout, Plan, Row, bounded, having, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import huggingface, jsons, pytorch
from keras_vit.checkpoints.layouts.jsons import Fields, preparation
from keras_vit.checkpoints.layouts.pytorch import Family, Trunk, linear, norm
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import EoMTConfig, ViTConfig

# A transposed convolution is (in, out, height, width), a depthwise one (channels, 1, height, width).
_TRANSPOSED, _DEPTHWISE = (0, 2, 3, 1), (2, 3, 0, 1)
_IMAGENET = preparation(jsons.IMAGENET, "squash", 1.0, "bilinear_pillow")
# What is computed here of what a preprocessor_config.json may say.
_PREPARED: Fields = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True)
_PREPARED |= {"resample": 2, "rescale_factor": 1 / 255}
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


@dataclasses.dataclass(frozen=True)
class Names:
    """What a kind of file calls the parts of the head; `masking` says how probably each block masks attention."""

    queries: str
    classes: str
    mask_head: tuple[str, str, str]
    upscale: str
    upscale_norm: str
    masking: str


_OF_AUTHORS = Names(
    "network.q.weight",
    "network.class_head",
    ("network.mask_head.0", "network.mask_head.2", "network.mask_head.4"),
    "network.upscale.",
    "norm",
    "network.attn_mask_probs",
)
_OF_TRANSFORMERS = Names(
    "query.weight",
    "class_predictor",
    ("mask_head.fc1", "mask_head.fc2", "mask_head.fc3"),
    "upscale_block.block.",
    "layernorm2d",
    "attn_mask_probs",
)
_UNUSED = r"(network\.)?criterion\..*|network\.encoder\.pixel_(mean|std)|rope_embeddings\.inv_freq|.*\.mask_token"


def _rows(config: EoMTConfig, family: Family, names: Names) -> list[Row]:
    width, backbone = config.backbone.width, pytorch.trunk_rows(config.backbone, family)
    rows = [dataclasses.replace(row, name=f"{family.module}{row.name}") for row in backbone]
    rows.append(Row(names.queries, "queries/tokens", (config.queries, width)))
    rows += linear(names.classes, "class_head", config.classes + 1, width)
    for i, name in enumerate(names.mask_head, 1):
        rows += linear(name, f"mask_head/fc{i}", width, width)
    for i in range(config.upscale_blocks):
        name, path = f"{names.upscale}{i}.", f"upscale_{i}"
        rows.append(Row(f"{name}conv1.weight", f"{path}/conv1/kernel", (width, width, 2, 2), _TRANSPOSED))
        rows.append(Row(f"{name}conv1.bias", f"{path}/conv1/bias", (width,)))
        rows.append(Row(f"{name}conv2.weight", f"{path}/conv2/kernel", (width, 1, 3, 3), _DEPTHWISE))
        rows += norm(f"{name}{names.upscale_norm}", f"{path}/norm", width)
    return rows


def _config(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, family: Family, is_rotary: bool
) -> tuple[EoMTConfig, Trunk]:
    """Returns the config that arrays and JSON files tell, and the `Trunk` of its backbone with what was assumed."""
    names = _OF_TRANSFORMERS if family.types else _OF_AUTHORS
    metadata = sidecars.config
    backbone, trunk = _backbone(arrays, sidecars, family, is_rotary)
    queries, width = shape_of(arrays, names.queries, 2)
    if width != backbone.width:
        raise ValueError(f"The queries must have the width of the backbone, {backbone.width}, but they have {width}.")
    blocks = re.findall(rf"^{re.escape(names.upscale)}(\d+)\.", "\n".join(arrays), re.MULTILINE)
    if not blocks:
        raise ValueError(f"The file lacks the arrays {names.upscale}... of the upscaling blocks. Download it again.")
    classes = shape_of(arrays, f"{names.classes}.weight", 2)[0] - 1
    stored: Any = EoMTConfig(
        backbone=backbone,
        classes=classes,
        class_names=huggingface.names_of_classes(metadata, classes),
        queries=queries,
        query_blocks=shape_of(arrays, names.masking, 1)[0],
        upscale_blocks=bounded(1 + max(map(int, blocks))),
        activation=_activation(metadata),
        pictures="eomt_transformers" if family.types else "eomt_authors",
        task="semantic" if (sidecars.preprocessor or {}).get("do_split_image") else None,
    )
    sizes = {
        "hidden_size": backbone.width,
        "num_hidden_layers": backbone.depth,
        "num_register_tokens": backbone.register_tokens,
        "patch_size": backbone.patch_size,
        "image_size": backbone.image_size,
        "num_queries": stored.queries,
        "num_blocks": stored.query_blocks,
        "num_upscale_blocks": stored.upscale_blocks,
    }
    jsons.check_metadata(metadata, "config.json", sizes)
    return stored, trunk


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan by which an EoMT is read."""
    if sidecars.backbone is not None:
        raise ValueError("head must be a file with only a head, but it is a whole EoMT: pass it without head=.")
    if sidecars.grid_size is not None:
        raise ValueError(f"An EoMT has its grid in the file: leave grid_size={sidecars.grid_size!r} out.")
    if sidecars.architecture:
        raise ValueError(f"An EoMT needs no like={sidecars.architecture!r}: leave like out.")
    anchor = next((name for name in FAMILIES if name in file), None)
    if anchor is None:
        raise ValueError("The file is an EoMT without a DINOv2 or DINOv3 backbone, which is not supported.")
    family, metadata = FAMILIES[anchor], sidecars.config
    if family.types and metadata.get("model_type") not in family.types:
        given = printable(metadata.get("model_type"), 60)
        raise ValueError(f"The config.json beside the file must have model_type={family.types[0]!r}, but has {given}..")
    names = _OF_TRANSFORMERS if family.types else _OF_AUTHORS
    _check_masking(file, names, family)
    # transformers stores register tokens also where there are none.
    inside = {name.removeprefix(family.module): array for name, array in file.items() if 0 not in array.shape}
    if family.positions in inside and len(inside[family.positions].shape) == 2:
        table = inside[family.positions]
        inside = {**inside, family.positions: table.piece(0, (1, *table.shape))}
    found = family.as_in(
        {name for name in inside if name.startswith(family.blocks)}, {"mlp": (*huggingface.MLPS.values(),)}
    )
    stored, trunk = _config(inside, sidecars, found, anchor.endswith("embeddings.weight"))
    made = Plan(
        layout=_layout(found, names, huggingface.base_of_periods(metadata)),
        dialect=family.title,
        stored=stored,
        arrays={
            f"{family.module}{name}" if name not in file else name: array
            for name, array in inside.items()
            if name != names.masking
        },
        unused=[name for name, array in file.items() if 0 in array.shape],
        warnings=trunk.warnings,
        is_grid_known=trunk.is_grid_known,
    )
    return pytorch.without_unused(made, _UNUSED)


def _check_masking(file: Mapping[str, StoredArray], names: Names, family: Family) -> None:
    """Raises ValueError where the probabilities of masks are missing or not 0, or weights are differences (deltas)."""
    if names.masking not in file:
        raise ValueError(f"The file lacks the array {names.masking!r}, which must be 0 at the end of training.")
    probabilities = file[names.masking].read()
    last = file.get(f"{family.module}{family.norm}.weight")
    if (probabilities < 0).any() or (last is not None and np.abs(last.read()).mean() < 0.1):
        raise ValueError(
            "The file has delta weights, the differences to DINOv3's weights. Add the two together as the authors' "
            "code does, or download the repository for transformers."
        )
    if probabilities.any():
        raise ValueError(
            f"The array {names.masking!r} must be 0 everywhere (attention without masks), but is "
            f"{printable(probabilities.tolist(), 80)}. Pass the checkpoint from the end of training."
        )


def _preparation(metadata: Mapping[str, Any], side: int) -> Fields:
    """Returns the means and deviations that preprocessor_config.json says; `side` is the length of the edges."""
    jsons.check_prepared(metadata, _PREPARED)
    size = metadata.get("size")
    if any(edge not in (None, side) for edge in (size.values() if isinstance(size, dict) else [size])):
        raise jsons.unsupported_value("size", size)
    return jsons.means_in(metadata.get("image_mean"), metadata.get("image_std"))


def _backbone(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, family: Family, is_rotary: bool
) -> tuple[ViTConfig, Trunk]:
    """Returns the config of the Vision Transformer, and its `Trunk` with what was assumed."""
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
    if sidecars.preprocessor:
        fields |= _preparation(sidecars.preprocessor, fields["image_size"][0])
    for name in (family.class_token, f"{family.patches}.bias"):
        if name not in arrays:
            raise ValueError(f"The file lacks the array {family.module + name!r}. Download it again.")
    position, given = "none" if is_rotary else "learned_patches", fields["position_embedding"]
    if given != position:
        raise ValueError(
            f"The position embeddings must be {position!r}, but they are {given!r}. The array {family.positions!r} is "
            "missing or has a wrong shape: download the file again."
        )
    activation = _activation(metadata)
    gated = fields["mlp"] == "swiglu"
    if gated and is_rotary and family.types:
        jsons.value_in(metadata, "hidden_act", ["silu"], "gelu")
    if not gated and activation not in huggingface.ACTIVATIONS.values():
        raise ValueError(f"hidden_act={activation!r} in config.json is not supported for a Vision Transformer.")
    if not trunk.is_grid_known:
        raise ValueError("The position embeddings of an EoMT must form a square, but they do not. Download it again.")
    fields |= {
        "rotary_embedding": "dinov3" if is_rotary else None,
        "gelu": "exact" if gated else activation,
        "layer_norm_epsilon": jsons.number(metadata, "layer_norm_eps", family.epsilon),
        "layer_scale": jsons.number(metadata, "layerscale_value", 1.0),
        "pooling": "none",
    }
    return ViTConfig(**family.preparation | fields), trunk


def _activation(config: Mapping[str, Any]) -> str:
    """Returns the activation that config.json says, by default the exact GELU; ValueError for an unknown one."""
    known = {**huggingface.ACTIVATIONS, "silu": "silu", "relu": "relu"}
    return known[jsons.value_in(config, "hidden_act", known, "gelu")]


def _layout(family: Family, names: Names, theta: float = 100.0) -> Layout:
    """Returns the layout of an EoMT whose backbone has the names of a family."""
    return Layout(
        "eomt",
        functools.partial(_rows, family=family, names=names),
        computed=lambda config: pytorch.computed_periods(config.backbone, theta),
        advice="",
        config_type=EoMTConfig,
    )


def _written_rows(config: EoMTConfig) -> list[Row]:
    """Returns the rows of an EoMT in transformers, whose position embeddings have no first axis."""
    rotary, gated = config.backbone.rotary_embedding is not None, config.backbone.mlp == "swiglu"
    family = FAMILIES[f"embeddings.patch_embeddings{'' if rotary else '.projection'}.weight"]
    family = dataclasses.replace(family, mlp=huggingface.MLPS["gate" if gated else "up" if rotary else "fc"])
    rows = _rows(config, family, _OF_TRANSFORMERS)
    return [dataclasses.replace(row, shape=row.shape[1:]) if row.path == TABLE else row for row in rows]


def _needs(config: EoMTConfig) -> dict[str, tuple[Any, ...]]:
    """Returns `Layout.needs` by the class of transformers for the backbone."""
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
    """Returns the arrays beside the weights: which blocks mask attention (none), and class weights for training."""
    weights = np.ones(config.classes + 1, "float32")
    weights[-1] = 0.1
    return {"attn_mask_probs": np.zeros(config.query_blocks, "float32"), "criterion.empty_weight": weights}


def _sidecars(config: EoMTConfig) -> dict[str, dict[str, Any]]:
    """Returns the config.json and preprocessor_config.json of transformers for an EoMT."""
    backbone, size = config.backbone, config.image_size[0]
    kind = "eomt" if backbone.rotary_embedding is None else "eomt_dinov3"
    labels = config.class_names or [f"LABEL_{i}" for i in range(config.classes)]
    metadata = huggingface.sidecars_of(backbone)["config.json"]
    metadata |= {
        "architectures": [f"{kind.title().replace('_', '')}ForUniversalSegmentation"],
        "model_type": kind,
        "image_size": size,
        "hidden_act": huggingface.ACTIVATION_NAMES[config.activation],
        "num_blocks": config.query_blocks,
        "num_queries": config.queries,
        "num_upscale_blocks": config.upscale_blocks,
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }
    whole = config.task == "semantic"
    pictures = {
        "image_processor_type": "EomtImageProcessor",
        **_PREPARED,
        **{"do_pad": not whole, "do_split_image": whole},
        "size": {"shortest_edge": size, "longest_edge": None if whole else size},
        **{"image_mean": list(backbone.pixel_mean), "image_std": list(backbone.pixel_std)},
    }
    return {"config.json": metadata, "preprocessor_config.json": pictures}


LAYOUT = Layout(
    "eomt",
    functools.partial(_rows, family=_AUTHORS, names=_OF_AUTHORS),
    having(_OF_AUTHORS.queries, _OF_TRANSFORMERS.queries),
    plan,
)
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
