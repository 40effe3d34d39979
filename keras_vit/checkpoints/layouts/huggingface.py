"""The layout of Hugging Face's transformers: ViT, DeiT, MAE, I-JEPA, DINOv2, DINOv3, CLIP and SigLIP.

The families have names of their own, and version 5 of transformers has others than version 4. A `Dialect` lists what a
file calls each part; reading takes each part as it comes, writing has a dialect for each family.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit._text import printable
from keras_vit.checkpoints.engine import Contents, Hints, Layout, Row, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.huggingface_config import check_writable, family_to_write, restate, sidecars
from keras_vit.checkpoints.layouts.huggingface_families import (
    ACTIVATIONS,
    FAMILIES,
    Family,
    family_of,
    preparation_of,
)
from keras_vit.checkpoints.layouts.pictures import of_transformers
from keras_vit.checkpoints.layouts.pytorch import (
    LAYER_SCALE,
    LINEAR,
    Names,
    Place,
    account,
    attention_bias,
    biased,
    check_config,
    computed_periods,
    depth_of,
    find,
    fused,
    grid_oddity,
    grid_of,
    heads_of,
    image_size_in,
    labels_in,
    linear,
    norm,
    packed,
    patches,
    value_oddities,
)
from keras_vit.models import ViTConfig

_PAIR = r"\.(weight|bias)"
_BLOCKS = ("encoder.layer.", "encoder.layers.", "model.layer.", "model.layers.", "layer.", "layers.")
_ATTENTIONS = (
    (*(f"attention.attention.{name}" for name in ("query", "key", "value")), "attention.output.dense"),
    tuple(f"attention.{letter}_proj" for letter in "qkvo"),
    (*(f"self_attn.{letter}_proj" for letter in "qkv"), "self_attn.out_proj"),
)
_NORMS = (("layernorm_before", "layernorm_after"), ("norm1", "norm2"), ("layer_norm1", "layer_norm2"))
_MLPS = (
    ("intermediate.dense", "output.dense"),
    ("mlp.fc1", "mlp.fc2"),
    ("mlp.weights_in", "mlp.weights_out"),
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ("mlp.up_proj", "mlp.down_proj"),
)
_MLP_OF = {("dinov2", "swiglu"): 2, ("dinov3", "swiglu"): 3, ("dinov3", "plain"): 4}
_MODULES = ("dinov2_with_registers.", "dinov3_vit.", "vision_model.", "dinov2.", "ijepa.", "deit.", "vit.")


def _any(names: tuple[tuple[str, ...], ...]) -> str:
    return "|".join(re.escape(name) for group in names for name in group)


_BLOCK = (
    rf"({'|'.join(re.escape(block) for block in _BLOCKS)})\d+\.(({_any(_ATTENTIONS)}|{_any(_NORMS)}|{_any(_MLPS)})"
    rf"{_PAIR}|layer_scale[12]\.lambda1)"
)
_NAMES = Names(
    model=re.compile(
        r"embeddings\.(cls_token|class_embedding|distillation_token|register_tokens|position_embeddings"
        rf"|position_embedding\.weight|(patch_embeddings\.projection|patch_embedding|patch_embeddings){_PAIR})"
        rf"|{_BLOCK}"
        rf"|(layernorm|pre_layrnorm|post_layernorm|norm|pooler\.dense){_PAIR}"
        rf"|head\.(probe|attention\.in_proj_(weight|bias)|(attention\.out_proj|layernorm|mlp\.fc[12]){_PAIR})"
    ),
    # Version 5 writes the blocks of ViTMSNForImageClassification without the module's name.
    top=re.compile(rf"(classifier|cls_classifier|distillation_classifier){_PAIR}|visual_projection\.weight|{_BLOCK}"),
    unused=re.compile(r"embeddings\.(mask_token|position_ids)|rope_embeddings\.inv_freq"),
    beside=re.compile(r"decoder\..*|(text_model|text_projection)\..*|logit_scale|logit_bias"),
)


@dataclasses.dataclass(frozen=True)
class Dialect:
    """What a file calls the parts that differ from family to family, and from version to version.

    Attributes:
        patches: The convolution.
        class_token: The class token.
        positions: The position embeddings.
        blocks: What stands before the number of a block.
        attention: The projections to queries, keys, values, and the output.
        norms: The normalisations of a block.
        mlp: The linear layers of an MLP; `mlp.weights_in` is gate and value in one.
        norm: The normalisation after the blocks.
        module: What stands before all that, but not before the head.
    """

    patches: str
    class_token: str
    positions: str
    blocks: str
    attention: tuple[str, ...]
    norms: tuple[str, ...]
    mlp: tuple[str, ...]
    norm: str
    module: str = ""


def _dialect(arrays: Mapping[str, StoredArray], family: Family) -> Dialect:
    """What a file calls its parts."""

    def first(choices: tuple[Any, ...], there: Callable[[Any], bool]) -> Any:
        return next((choice for choice in choices if there(choice)), choices[0])

    blocks = first(_BLOCKS, lambda block: any(name.startswith(f"{block}0.") for name in arrays))
    has = arrays.keys().__contains__
    parts = {
        field: first(choices, lambda names: all(has(f"{blocks}0.{name}.weight") for name in names))
        for field, choices in (("attention", _ATTENTIONS), ("norms", _NORMS), ("mlp", _MLPS))
    }
    return dataclasses.replace(_own_dialect(family, "plain"), blocks=blocks, **parts)


def _own_dialect(family: Family, mlp: str) -> Dialect:
    """The names that a family has on the Hub, for a model with a kind of MLP."""
    dino = family.name.startswith("dino")
    return Dialect(
        patches=family.patches,
        class_token="embeddings.class_embedding" if family.two_towers else "embeddings.cls_token",
        positions="embeddings.position_embedding.weight" if family.two_towers else "embeddings.position_embeddings",
        blocks=family.blocks,
        attention=_ATTENTIONS[2 if family.two_towers else 1 if family.name == "dinov3_vit" else 0],
        norms=_NORMS[2 if family.two_towers else 1 if dino else 0],
        mlp=_MLPS[_MLP_OF.get((family.name.partition("_")[0], mlp), 1 if family.two_towers or dino else 0)],
        norm=family.norm,
    )


def _rows(config: ViTConfig, dialect: Dialect, family: Family) -> list[Row]:
    width, flat = config.width, family.two_towers
    rows = patches(dialect.patches, config)
    if config.class_token:
        rows.append(Row(dialect.class_token, "class_token/token", (width,) if flat else (1, 1, width)))
    if config.distillation_token:
        rows.append(Row("embeddings.distillation_token", "distillation_token/token", (1, 1, width)))
    if config.register_tokens:
        shape = (1, config.register_tokens, width)
        rows.append(Row("embeddings.register_tokens", "register_tokens/tokens", shape))
    if config.position_rows:
        shape = (config.position_rows, width) if flat else (1, config.position_rows, width)
        rows.append(Row(dialect.positions, "position_embedding/table", shape))
    rows += norm("pre_layrnorm", "pre_norm", width) if config.pre_norm else []
    for i in range(config.depth):
        rows += _block(f"{dialect.blocks}{i}", f"block_{i}", config, dialect)
    rows += norm(dialect.norm, "encoder_norm", width) if config.final_norm != "none" else []
    if config.pooling == "map":
        rows += _map_head(config)
    if config.representation_size:
        rows += linear("pooler.dense", "pre_logits", config.representation_size, width)
    rows = [dataclasses.replace(row, name=f"{dialect.module}{row.name}") for row in rows]
    if config.projection:
        rows.append(Row("visual_projection.weight", "projection/kernel", (config.projection, width), LINEAR))
    if config.classes and config.distillation_head:
        rows += linear("cls_classifier", "head", config.classes, width)
        rows += linear("distillation_classifier", "head_dist", config.classes, width)
    elif config.classes:
        rows += linear("classifier", "head", config.classes, 2 * width if config.pooling == "token_avg" else width)
    return rows


def _block(name: str, path: str, config: ViTConfig, dialect: Dialect) -> list[Row]:
    width, hidden = config.width, config.mlp_width
    rows = [row for i in range(2) for row in norm(f"{name}.{dialect.norms[i]}", f"{path}/norm{i + 1}", width)]
    for i, module in enumerate(("query", "key", "value")):
        there = i in biased(config)
        rows += linear(f"{name}.{dialect.attention[i]}", f"{path}/attention/{module}", width, width, bias=there)
    rows += linear(f"{name}.{dialect.attention[3]}", f"{path}/attention/out", width, width)
    *first, last = (f"{name}.{module}" for module in dialect.mlp)
    inner = ["fc1"] if config.mlp == "plain" else ["gate", "value"]
    if len(first) < len(inner):
        rows += packed(first[0], [f"{path}/mlp/{module}" for module in inner], hidden, width)
    else:
        for module, other in zip(first, inner, strict=True):
            rows += linear(module, f"{path}/mlp/{other}", hidden, width)
    rows += linear(last, f"{path}/mlp/fc2", width, hidden)
    if config.layer_scale is not None:
        rows += [Row(f"{name}.layer_scale{i}.lambda1", f"{path}/scale{i}/gamma", (width,)) for i in (1, 2)]
    return rows


def _map_head(config: ViTConfig) -> list[Row]:
    width, paths = config.width, [f"pooling/attention/{name}" for name in ("query", "key", "value")]
    return [
        Row("head.probe", "pooling/probe", (1, 1, width)),
        *fused("head.attention.in_proj_weight", "head.attention.in_proj_bias", paths, width, (0, 1, 2)),
        *linear("head.attention.out_proj", "pooling/attention/out", width, width),
        *norm("head.layernorm", "pooling/norm", width),
        *linear("head.mlp.fc1", "pooling/mlp/fc1", config.mlp_width, width),
        *linear("head.mlp.fc2", "pooling/mlp/fc2", width, config.mlp_width),
    ]


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    place = None
    for anchor in dict.fromkeys(f"{family.patches}.weight" for family in FAMILIES.values()):
        place = place or find(file, anchor, _MODULES)
    if place is None:
        return None
    arrays, unused = account(file, place, _NAMES)
    family = family_of(arrays, unused)
    told: list[str] = []
    said = _stated(hints, family, told)
    family = FAMILIES.get(str(said.get("model_type")), family)
    dialect = _dialect(arrays, family)
    fields, square, left = _fields(arrays, said, dialect, family, hints, told)
    unused = sorted([*unused, *(arrays.pop(name).name for name in left)])
    fields |= of_transformers(hints.preprocessor or {}, preparation_of(family, hints.preprocessor), told)
    if hints.preprocessor is None:
        told.append("no preprocessor_config.json says how its pictures are prepared; its family's usual way is assumed")
    config = ViTConfig(**fields)
    told += value_oddities(arrays, unused, "classifier.weight", "classifier.bias")
    told += [] if square else [grid_oddity(config.grid_size)]
    theta = _number(said, "rope_theta", 100.0)
    name = f"{family.title}, transformers {5 if _is_new(dialect, place, family) else 4}"
    return Contents(_layout(dialect, family, theta), name, place.prefix, config, arrays, unused, told, square)


def _is_new(dialect: Dialect, place: Place, family: Family) -> bool:
    """Whether the names are those that only version 5 of transformers writes."""
    if family.two_towers:
        return place.module != "vision_model."
    return dialect.attention != _own_dialect(family, "plain").attention or dialect.blocks != family.blocks


def _stated(hints: Hints, family: Family, told: list[str]) -> Mapping[str, Any]:
    """What config.json says of the image model; empty where there is none."""
    if hints.architecture is not None:
        raise ValueError(
            f"it has Hugging Face's names, but architecture={hints.architecture!r} is a name of timm's: leave it out, "
            "and put the repository's config.json beside the file."
        )
    config = hints.config or {}
    vision = config.get("vision_config")
    if isinstance(vision, dict):
        config = {"model_type": config.get("model_type"), **vision}
    if not config:
        told.append(
            f"no config.json is beside it: GELU ({family.activation}), epsilon ({family.epsilon:g}) and whatever else "
            f"arrays do not tell are assumed as usual for {family.title}"
        )
    elif config.get("model_type") not in (None, *family.types):
        raise ValueError(
            f"the config.json beside it says that it is of the type {printable(config['model_type'], 60)}, but its "
            f"arrays are those of {family.title}; {', '.join(family.types)} were expected."
        )
    return config


def _fields(
    arrays: Mapping[str, StoredArray],
    said: Mapping[str, Any],
    dialect: Dialect,
    family: Family,
    hints: Hints,
    told: list[str],
) -> tuple[dict[str, Any], bool, list[str]]:
    """The config of the model, whether its grid is known, and the arrays that it does not use."""
    has = arrays.keys().__contains__
    block = f"{dialect.blocks}0."
    kernel = f"{dialect.patches}.weight"
    if kernel in arrays and len(arrays[kernel].shape) == 2:
        raise ValueError(
            f"its patches go through a matrix ({kernel!r}), not a convolution. NaFlex models are not supported."
        )
    width, channels, *patch = shape_of(arrays, kernel, 4)
    depth = depth_of(arrays, dialect.blocks)
    hidden = shape_of(arrays, f"{block}{dialect.mlp[-1]}.weight", 2)[1]
    check_config(said, "hidden_size", width)
    check_config(said, "num_hidden_layers", depth)
    gated = len(dialect.mlp) == 3 or dialect.mlp[0] == "mlp.weights_in"
    special = has(dialect.class_token) + has("embeddings.distillation_token")
    registers = 0
    if has("embeddings.register_tokens"):
        registers = shape_of(arrays, "embeddings.register_tokens", 3)[1]
    rows = None
    if has(dialect.positions):
        rows = shape_of(arrays, dialect.positions, 2 if family.two_towers else 3)[-2]
    rotary = family.name == "dinov3_vit"
    if rows is None and not rotary:
        raise ValueError(f"it has no array {dialect.positions!r}, the position embeddings of {family.title}.")
    size = image_size_in(said.get("image_size", 224 if said and rotary else None))
    position, grid, square = grid_of(rows, size, tuple(patch), special, registers, told)
    stated = said.get("num_attention_heads", family.heads if said else None)
    biases = (has(f"{block}{dialect.attention[i]}.bias") for i in range(3))
    end, left = _end(arrays, said, dialect, family)
    fields = {
        "image_size": (grid[0] * patch[0], grid[1] * patch[1]),
        "patch_size": tuple(patch),
        "width": width,
        "depth": depth,
        "heads": heads_of(width, hints.heads, stated, told, family.heads_by_width),
        "mlp_width": hidden,
        "channels": channels,
        "patch_bias": has(f"{dialect.patches}.bias"),
        "class_token": has(dialect.class_token),
        "distillation_token": has("embeddings.distillation_token"),
        "register_tokens": registers,
        "position_embedding": position,
        "rotary_embedding": "dinov3" if rotary else None,
        "interpolation": family.interpolation,
        "pre_norm": has("pre_layrnorm.weight"),
        "attention_bias": attention_bias(*biases),
        "mlp": "swiglu" if gated else "plain",
        "gelu": _gelu(said, family, gated),
        "layer_scale": None,
        "layer_norm_epsilon": _number(said, "layer_norm_eps", family.epsilon),
    }
    if has(f"{block}layer_scale1.lambda1"):
        fields["layer_scale"] = _number(said, "layerscale_value", LAYER_SCALE)
    if not registers and has("embeddings.register_tokens"):
        left.append("embeddings.register_tokens")  # of length 0
    return fields | end, square, left


def _gelu(said: Mapping[str, Any], family: Family, gated: bool) -> str:
    name = said.get("hidden_act", "silu" if gated else family.activation)
    if gated:  # there is no GELU; DINOv2's config names one nevertheless
        if name != "silu" and family.name == "dinov3_vit":
            raise ValueError(
                f"its config.json says hidden_act={printable(name, 60)}; of a gated MLP 'silu' is expected."
            )
        return "exact"
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"its config.json says hidden_act={printable(name, 60)}; one of {', '.join(ACTIVATIONS)} was expected."
        )
    return ACTIVATIONS[name]


def _end(
    arrays: Mapping[str, StoredArray], said: Mapping[str, Any], dialect: Dialect, family: Family
) -> tuple[dict[str, Any], list[str]]:
    """From the tokens to the answer, and which arrays take no part in it."""
    has = arrays.keys().__contains__
    pooler = [name for name in arrays if name.startswith("pooler.")]
    attention = [name for name in arrays if name.startswith("head.")]
    token = has(dialect.class_token)
    fields: dict[str, Any] = {"pooling": "token" if token else "avg", "final_norm": "tokens"}
    if has("classifier.weight"):
        if family.name == "dinov3_vit":
            raise ValueError("it has a 'classifier', which no published DINOv3 has.")
        fields["classes"] = shape_of(arrays, "classifier.weight", 2)[0]
        fields["class_names"] = _class_names(said, fields["classes"])
        if family.name.startswith("dinov2"):
            fields["pooling"] = "token_avg"
        if family.name == "clip":  # transformers averages the patches, not normalised
            fields |= {"pooling": "avg", "final_norm": "none"}
            return fields, [*pooler, *(name for name in arrays if name.startswith("post_layernorm."))]
        return fields, [*pooler, *attention]
    if has("cls_classifier.weight"):
        fields["classes"] = shape_of(arrays, "cls_classifier.weight", 2)[0]
        fields["class_names"] = _class_names(said, fields["classes"])
        fields["distillation_head"] = True
        return fields, pooler
    if attention:
        return {**fields, "pooling": "map"}, []
    if has("visual_projection.weight"):
        fields["projection"] = shape_of(arrays, "visual_projection.weight", 2)[0]
    if pooler and token:
        if said.get("pooler_act", "tanh") != "tanh":
            raise ValueError(
                f"its config.json says pooler_act={printable(said['pooler_act'], 60)}; 'tanh' was expected."
            )
        return {**fields, "representation_size": shape_of(arrays, "pooler.dense.weight", 2)[0]}, []
    return fields, pooler


def _class_names(said: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """What the outputs stand for, where config.json says more than their numbers."""
    labels = said.get("id2label")
    if not isinstance(labels, dict) or len(labels) != classes:
        return None
    names = labels_in([labels.get(str(i)) for i in range(classes)], classes)
    return None if names == tuple(f"LABEL_{i}" for i in range(classes)) else names


def _number(said: Mapping[str, Any], key: str, default: float) -> float:
    value = said.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"its config.json says {key}={printable(value, 60)}; a positive number was expected.")
    return float(value)


def _layout(dialect: Dialect | None = None, family: Family | None = None, theta: float = 100.0) -> Layout:
    """The layout in the names of a file; None for those that a model's family has on the Hub."""

    def rows(config: ViTConfig) -> list[Row]:
        if dialect is not None and family is not None:
            return _rows(config, dialect, family)
        kind = family_to_write(config)
        own = _own_dialect(kind, config.mlp)
        # Models without a head are published without their module's name, but for those of two towers.
        module = kind.module if config.classes or kind.two_towers else ""
        rows = _rows(config, dataclasses.replace(own, module=module), kind)
        if kind.mask_token is not None:  # only training uses it, but transformers misses it
            shape = (*kind.mask_token, config.width)
            rows.append(Row(f"{module}embeddings.mask_token", None, shape))
        return rows

    return Layout(
        "huggingface",
        rows,
        lambda config: {},
        _read,
        check_writable,
        restate,
        computed=lambda config: computed_periods(config, theta),
        sidecars=sidecars,
    )


LAYOUT = _layout()
