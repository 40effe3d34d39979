"""The layout of Hugging Face's transformers: ViT, DeiT, MAE, I-JEPA, DINOv2, DINOv3, CLIP and SigLIP.

The families have names of their own, and version 5 of transformers has others than version 4. Reading takes each part
as it comes, writing has the names that a family has on the Hub. What a model is said to transformers with stands in
`huggingface_config.py`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents, Hints, Layout, Row, shape_of
from keras_vit.checkpoints.layouts import huggingface_config
from keras_vit.checkpoints.layouts.huggingface_config import ATTENTIONS, FAMILIES, MLPS, NORMS, own_family
from keras_vit.checkpoints.layouts.pictures import Fields, of_transformers, trim
from keras_vit.checkpoints.layouts.pytorch import (
    LAYER_SCALE,
    LINEAR,
    UNKNOWN_GELU,
    Family,
    class_names,
    collect,
    computed_periods,
    finish,
    image_size_in,
    linear,
    mapping,
    norm,
    number,
    packed,
    trunk,
    trunk_fields,
    with_prefix_positions,
)
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

_BLOCKS = ("encoder.layer.", "encoder.layers.", "model.layer.", "model.layers.", "layer.", "layers.")
_CHOICES = {"blocks": _BLOCKS, "attention": ATTENTIONS, "norms": NORMS, "mlp": MLPS}
_MODULES = ("dinov2_with_registers.", "dinov3_vit.", "vision_model.", "dinov2.", "ijepa.", "deit.", "vit.")
# Arrays outside of the module; version 5 writes the blocks of ViTMSNForImageClassification without the module's name.
_TOP = (
    r"(classifier|cls_classifier|distillation_classifier)\.(weight|bias)|visual_projection\.weight"
    rf"|({'|'.join(map(re.escape, _BLOCKS))})\d+\..*"
)
_BESIDE = r"decoder\..*|(text_model|text_projection)\..*|logit_scale|logit_bias"
_UNUSED = r"embeddings\.(mask_token|position_ids)|rope_embeddings\.inv_freq"
# The names of activations and what they compute; `gelu_fast` and its like differ by rounding errors only.
_ACTIVATIONS = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "quick_gelu": "quick",
}


# Rows


def _rows(config: ViTConfig, family: Family | None) -> list[Row]:
    """The rows in the names of a family; None for those that a model's family has on the Hub."""
    name = huggingface_config.family_to_write(config)
    names = family or own_family(FAMILIES[name], config.mlp)
    width, module = config.width, names.module
    if family is None and not (config.classes or names.flat):
        module = ""  # models without a head are published without their module's name, but for those of two towers
    rows = trunk(config, names)
    if family is None and names.mask_token is not None:  # only training uses it, but transformers misses it
        rows.append(Row("embeddings.mask_token", None, (*names.mask_token, width)))
    if config.pooling == "map":
        paths = [f"pooling/attention/{part}" for part in ("query", "key", "value")]
        rows.append(Row("head.probe", "pooling/probe", (1, 1, width)))
        rows += packed("head.attention.in_proj_", paths, width, width)
        rows += linear("head.attention.out_proj", "pooling/attention/out", width, width)
        rows += norm("head.layernorm", "pooling/norm", width)
        rows += linear("head.mlp.fc1", "pooling/mlp/fc1", config.mlp_width, width)
        rows += linear("head.mlp.fc2", "pooling/mlp/fc2", width, config.mlp_width)
    if config.representation_size:
        rows += linear("pooler.dense", "pre_logits", config.representation_size, width)
    rows = [dataclasses.replace(row, name=f"{module}{row.name}") for row in rows]
    if config.projection:
        rows.append(Row("visual_projection.weight", "projection/kernel", (config.projection, width), LINEAR))
    if config.classes and config.distillation_head:
        rows += linear("cls_classifier", "head", config.classes, width)
        rows += linear("distillation_classifier", "head_dist", config.classes, width)
    elif config.classes:
        rows += linear("classifier", "head", config.classes, config.pooled_size)
    return rows


# Recognition


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    found = None
    for anchor in dict.fromkeys(f"{family.patches}.weight" for family in FAMILIES.values()):
        found = found or collect(file, anchor, _MODULES, _BESIDE, _TOP)
    if found is None:
        return None
    contents, _, module = found
    contents.head = ("classifier.bias", "classifier.weight")
    name = _family_of(contents, file)
    stated = _stated(contents, hints, FAMILIES[name])
    name = stated["model_type"] if stated.get("model_type") in FAMILIES else name
    family = dataclasses.replace(FAMILIES[name], module="").as_in(contents.arrays, _CHOICES)
    fields, without = _fields(contents, stated, name, family, hints)
    prepared, size = _pictures(contents, family, hints)
    config = ViTConfig(**fields | prepared)
    contents.unused += [contents.arrays.pop(array).name for array in without]
    if size is not None:
        config = config.replace(**trim(size, config))
        _use_at(contents, config, size)
    is_new = module != "vision_model." if family.flat else family.blocks != FAMILIES[name].blocks
    is_new = is_new or (not family.flat and family.attention != FAMILIES[name].attention)
    dialect = f"{family.title}, transformers {5 if is_new else 4}"
    layout = _layout(family, number(stated, "rope_theta", 100.0))
    return finish(contents, layout, dialect, config, _UNUSED if module else rf"{_UNUSED}|{_BESIDE}")


def _family_of(contents: Contents, file: Mapping[str, StoredArray]) -> str:
    """The name of the family whose arrays a file has."""
    has = contents.arrays.keys().__contains__
    if has("embeddings.patch_embedding.weight"):
        return "clip" if has("embeddings.class_embedding") else "siglip"
    if has("embeddings.patch_embeddings.weight"):
        return "dinov3_vit"
    if any(name.endswith(".layer_scale1.lambda1") for name in contents.arrays):
        return "dinov2_with_registers" if has("embeddings.register_tokens") else "dinov2"
    if has("embeddings.distillation_token"):
        return "deit"
    if not has("embeddings.cls_token"):
        return "ijepa"
    return "vit_mae" if any(".decoder_embed." in name for name in file) else "vit"


def _stated(contents: Contents, hints: Hints, family: Family) -> Mapping[str, Any]:
    """What config.json says of the image model; empty where there is none."""
    config = hints.config or {}
    is_clip = family.title == "CLIP"
    if hints.architecture is not None and (config or not is_clip):
        raise ValueError(
            f"it has Hugging Face's names, but architecture={hints.architecture!r} is a name of timm's: leave it out, "
            "and put the repository's config.json beside the file."
        )
    if isinstance(config.get("vision_config"), dict):
        config = {"model_type": config.get("model_type"), **config["vision_config"]}
    if not config:
        if is_clip and hints.architecture is None:
            contents.unknown["gelu"] = UNKNOWN_GELU
        contents.assumed["layer_norm_epsilon" if is_clip else "gelu"] = (
            f"no config.json is beside it: GELU ({family.activation}), epsilon ({family.epsilon:g}) and whatever else "
            f"arrays do not tell are assumed as usual for {family.title}"
        )
    elif config.get("model_type") not in (None, *family.types):
        raise ValueError(
            f"the config.json beside it says that it is of the type {printable(config['model_type'], 60)}, but its "
            f"arrays are those of {family.title}; {', '.join(family.types)} were expected."
        )
    return config


def _pictures(contents: Contents, family: Family, hints: Hints) -> tuple[Fields, tuple[int, int] | None]:
    if hints.preprocessor is not None:
        return of_transformers(hints.preprocessor, family.preparation)
    contents.assumed["crop_ratio"] = (
        "no preprocessor_config.json says how its pictures are prepared; its family's usual way is assumed"
    )
    return dict(family.preparation), None


def _use_at(contents: Contents, config: ViTConfig, size: tuple[int, int]) -> None:
    """Notes that the publisher's pictures have another size than those of the position embeddings."""
    patch = config.patch_size
    used = (max(size[0] // patch[0], 1) * patch[0], max(size[1] // patch[1], 1) * patch[1])
    if used not in (size, config.image_size):
        contents.assumed["image_size"] = (
            f"its publisher prepares pictures of {size[0]} x {size[1]} pixels, no whole number of patches, and leaves "
            f"the rest at the right and lower edge out; here pictures of {used[0]} x {used[1]} are prepared, which "
            "differ a little"
        )
    if used != config.image_size:
        contents.image_size = used
        contents.notes.append(
            f"its position embeddings are for {config.image_size[0]} x {config.image_size[1]} pixels, and its "
            f"publisher prepares pictures of {size[0]} x {size[1]}, as is done here: they are resized. image_size=... "
            "takes another size"
        )


# Configs


def _fields(
    contents: Contents, stated: Mapping[str, Any], name: str, family: Family, hints: Hints
) -> tuple[Fields, list[str]]:
    """The config of the model, and the arrays that it does not use."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    kernel, rotary = f"{family.patches}.weight", name == "dinov3_vit"
    if has(kernel) and len(arrays[kernel].shape) == 2:
        raise ValueError(
            f"its patches go through a matrix ({kernel!r}), not a convolution. NaFlex models are not supported."
        )
    if not rotary and not has(family.positions):
        raise ValueError(f"it has no array {family.positions!r}, the position embeddings of {family.title}.")
    _check_size(stated, "hidden_size", shape_of(arrays, kernel, 4)[0])
    fields = trunk_fields(
        contents,
        family,
        hints,
        size=image_size_in(stated.get("image_size", 224 if stated and rotary else None)),
        heads=stated.get("num_attention_heads", family.heads if stated else None),
        is_named=False,
    )
    _check_size(stated, "num_hidden_layers", fields["depth"])
    end, without = _end(contents, stated, name, family)
    fields |= {
        "rotary_embedding": "dinov3" if rotary else None,
        "gelu": _gelu(stated, name, family, fields["mlp"] == "swiglu", hints.architecture),
        "layer_norm_epsilon": number(stated, "layer_norm_eps", family.epsilon),
        **end,
    }
    if has(f"{family.blocks}0.{family.scales[0]}"):
        fields["layer_scale"] = number(stated, "layerscale_value", LAYER_SCALE)
    if has(family.register_tokens) and not fields["register_tokens"]:
        without.append(family.register_tokens)  # of length 0
    return fields, without


def _check_size(stated: Mapping[str, Any], key: str, size: int) -> None:
    if stated.get(key) not in (None, size):
        raise ValueError(
            f"The config.json beside it belongs to another file: it says {key}={printable(stated[key], 60)}, but the "
            f"arrays have {size}."
        )


def _gelu(stated: Mapping[str, Any], name: str, family: Family, gated: bool, architecture: str | None) -> str:
    if architecture is not None:  # of a CLIP without config.json
        return "quick" if "quickgelu" in architecture else "exact"
    activation = stated.get("hidden_act", "silu" if gated else family.activation)
    # A gated MLP has no GELU; DINOv2's config names one nevertheless.
    expected = ["silu"] if gated and name == "dinov3_vit" else [] if gated else list(_ACTIVATIONS)
    if expected and activation not in expected:
        raise ValueError(
            f"its config.json says hidden_act={printable(activation, 60)}; one of {', '.join(expected)} was expected."
        )
    return "exact" if gated else _ACTIVATIONS[activation]


def _end(contents: Contents, stated: Mapping[str, Any], name: str, family: Family) -> tuple[Fields, list[str]]:
    """From the tokens to the answer, and which arrays take no part in it."""
    arrays = contents.arrays
    has = arrays.keys().__contains__
    pooler = [array for array in arrays if array.startswith("pooler.")]
    attention = [array for array in arrays if array.startswith("head.")]
    token = has(family.class_token)
    fields: Fields = {"pooling": "token" if token else "avg", "final_norm": "tokens"}
    head = next((head for head in ("classifier", "cls_classifier") if has(f"{head}.weight")), None)
    if head is not None:
        if name == "dinov3_vit":
            raise ValueError("it has a 'classifier', which no published DINOv3 has.")
        fields["classes"] = shape_of(arrays, f"{head}.weight", 2)[0]
        fields["class_names"] = _class_names(stated, fields["classes"])
        fields["distillation_head"] = head == "cls_classifier"
        if name.startswith("dinov2"):
            fields["pooling"] = "token_avg"
        if name == "clip":  # transformers averages the patches, not normalised
            fields |= {"pooling": "avg", "final_norm": "none"}
            return fields, [*pooler, *(array for array in arrays if array.startswith(f"{family.norm}."))]
        return fields, [*pooler, *attention]
    if attention:
        return {**fields, "pooling": "map"}, []
    if has("visual_projection.weight"):
        fields["projection"] = shape_of(arrays, "visual_projection.weight", 2)[0]
    if pooler and token:
        if stated.get("pooler_act", "tanh") != "tanh":
            raise ValueError(
                f"its config.json says pooler_act={printable(stated['pooler_act'], 60)}; 'tanh' was expected."
            )
        return {**fields, "representation_size": shape_of(arrays, "pooler.dense.weight", 2)[0]}, []
    return fields, pooler


def _class_names(stated: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """What the outputs stand for, where config.json says more than their numbers."""
    labels = mapping(stated, "id2label")
    names = class_names([labels.get(str(i)) for i in range(classes)], classes) if len(labels) == classes else None
    return None if names == tuple(f"LABEL_{i}" for i in range(classes)) else names


def _layout(family: Family | None = None, theta: float = 100.0) -> Layout:
    """The layout in the names of a file; None for those that a model's family has on the Hub."""
    return Layout(
        "huggingface",
        functools.partial(_rows, family=family),
        _read,
        huggingface_config.check_writable,
        with_prefix_positions,
        computed=functools.partial(computed_periods, base=theta),
        sidecars=huggingface_config.sidecars,
        settled_by="Pass heads=..., or put the repository's config.json and preprocessor_config.json beside it.",
    )


LAYOUT = _layout()
