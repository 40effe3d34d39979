"""OWL-ViT and OWLv2 in the names of transformers and of Scenic: CLIP's two towers, and heads on the patches.

Scenic's arrays get transformers' names and shapes when they are read, and their own when they are written.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.accounting import Layout, Plan, Row, bounded, listed, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import huggingface, pytorch
from keras_vit.checkpoints.layouts.pytorch import linear, norm
from keras_vit.checkpoints.layouts.sidecars import CLIP, mapping, preparation
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import DetectorConfig, TextConfig, ViTConfig
from keras_vit.models.dense_config import WITHOUT_TOP

Arrays = Mapping[str, StoredArray]
_HEAD, _SCENICS_HEAD = "class_head.dense0.weight", "class_head/Dense_0/kernel"
CONTEXT = 16  # tokens of a text
# What belongs to the logits of whole pictures: no part of detection, but written back.
EXTRAS = ("visual_projection.weight", "logit_scale")
_UNUSED = r"(owlvit|owlv2)\.(text|vision)_model\.embeddings\.position_ids"
_FAMILY = dataclasses.replace(huggingface.FAMILIES["clip"], pre_norm="pre_layernorm")


def recognise(names: Collection[str]) -> bool:
    """Returns whether a file is an OWL-ViT or an OWLv2."""
    return _HEAD in names or any(name.endswith(_SCENICS_HEAD) for name in names)


def is_scenic(names: Collection[str]) -> bool:
    """Returns whether an OWL's file has Scenic's names."""
    return _HEAD not in names


def prefix_of(config: DetectorConfig) -> str:
    """Returns what stands before the names of the towers, which is also the `model_type`."""
    return "owlv2" if config.objectness else "owlvit"


def rows(config: DetectorConfig) -> list[Row]:
    """Returns the rows of image tower and heads in transformers' names; the classes are not in a file."""
    width, tower = config.backbone.width, f"{prefix_of(config)}.vision_model."
    trunk = pytorch.trunk_rows(config.backbone, _FAMILY)
    found = [dataclasses.replace(row, name=f"{tower}{row.name}") for row in trunk]
    found += norm("layer_norm", "head/norm", width)
    found += linear("class_head.dense0", "head/embed", config.embedding, width)
    for part in ("logit_shift", "logit_scale"):
        found += linear(f"class_head.{part}", f"head/{part}", 1, width)
    for name, path, outputs in (("box", "box", 4), *([("objectness", "object", 1)] if config.objectness else [])):
        for i, size in enumerate((width, width, outputs)):
            found += linear(f"{name}_head.dense{i}", f"head/{path}_fc{i + 1}", size, width)
    return found


def _classes(config: DetectorConfig) -> dict[str, np.ndarray]:
    """Returns the matrix of the classes, which no file has: zeros."""
    return {"head/queries/kernel": np.zeros((config.embedding, config.classes), "float32")}


LAYOUT = Layout("owl", rows, computed=_classes, config_type=DetectorConfig)


def _as_clip(file: Arrays, sidecars: Sidecars, prefix: str) -> tuple[dict[str, StoredArray], Sidecars]:
    """Returns the towers as a CLIPModel has them, and what lies beside it: it computes what these towers do."""
    towers = {
        name.removeprefix(f"{prefix}.").replace("pre_layernorm", "pre_layrnorm"): array
        for name, array in file.items()
        if name.startswith(f"{prefix}.") and not re.fullmatch(_UNUSED, name)
    }
    text = {**mapping(sidecars.config, "text_config"), "model_type": "clip_text_model", "eos_token_id": 2}
    vision = {**mapping(sidecars.config, "vision_config"), "model_type": "clip_vision_model"}
    config = {**sidecars.config, "model_type": "clip", "text_config": text, "vision_config": vision}
    given = sidecars.preprocessor or {}
    means = {key: given[key] for key in ("image_mean", "image_std", "rescale_factor", "do_normalize") if key in given}
    return towers, dataclasses.replace(sidecars, config=config, preprocessor=means or None)


def plans(file: Arrays, sidecars: Sidecars, plan_of_text: Callable[[Arrays, Sidecars], Any]) -> tuple[Plan, Plan]:
    """Returns the plans of the image tower with the heads, and of the text tower, of a file in transformers' names."""
    kind = "owlv2" if "objectness_head.dense0.weight" in file else "owlvit"
    model_type = sidecars.config.get("model_type", kind)
    if model_type != kind:
        raise ValueError(f"model_type in config.json must be {kind!r} for these arrays, but is {model_type!r:.60}.")
    towers, beside = _as_clip(file, sidecars, kind)
    text, _ = plan_of_text({n: a for n, a in towers.items() if n.startswith("text_")}, beside)
    vision = {n: a for n, a in towers.items() if not n.startswith(("text_", "visual_projection", "logit_scale"))}
    backbone = huggingface.LAYOUT.plan(vision, beside)
    if text.stored.context > CONTEXT:
        raise ValueError(f"An OWL has texts of at most {CONTEXT} tokens, but the text tower has {text.stored.context}.")
    embedding = shape_of(file, _HEAD, 2)[0]
    if embedding != text.stored.projection:
        raise ValueError(
            "Patch and text embeddings must have the same length, but patches have "
            f"{embedding} values and texts {text.stored.projection}. Download the file again."
        )
    is_scenic = sidecars.container == "scenic"
    vit = backbone.config.replace(**WITHOUT_TOP, final_norm="tokens", **preparation(CLIP, "squash", 1.0))
    vit = vit.replace(pixel_mean=backbone.config.pixel_mean, pixel_std=backbone.config.pixel_std)
    config = DetectorConfig(
        backbone=vit,
        classes=1,
        embedding=embedding,
        objectness=kind == "owlv2",
        activation="tanh" if is_scenic else "exact",
        head_epsilon=1e-6 if is_scenic else 1e-5,
        pictures="scenic" if is_scenic else kind,
    )
    known = {row.name for row in rows(config)}
    texts = {array.name for array in text.arrays.values()}
    extras = {f"{kind}.{name}" for name in EXTRAS}
    left = [n for n in file if n not in known | extras and file[n].name not in texts and not re.fullmatch(_UNUSED, n)]
    if left:
        raise ValueError(f"The file has arrays that are not part of an OWL: {listed(left)}. Nothing was loaded.")
    arrays = {name: array for name, array in file.items() if name in known}
    warnings = [*backbone.warnings, *text.warnings]
    images = Plan(layout=LAYOUT, dialect=kind, stored=config, arrays=arrays, warnings=warnings)
    stored = dataclasses.replace(text.stored, pooling="largest_id", end_id=None)
    return images, dataclasses.replace(text, stored=stored)


def library_config(config: DetectorConfig, text: TextConfig) -> dict[str, Any]:
    """Returns the config.json of transformers."""
    vit, kind = config.backbone, prefix_of(config)

    def tower(of: ViTConfig | TextConfig, name: str, **more: Any) -> dict[str, Any]:
        return {
            "model_type": f"{kind}_{name}_model",
            "hidden_size": of.width,
            "intermediate_size": of.mlp_width,
            "num_hidden_layers": of.depth,
            "num_attention_heads": of.heads,
            "hidden_act": {"quick": "quick_gelu", "exact": "gelu", "tanh": "gelu_pytorch_tanh"}[of.gelu],
            "layer_norm_eps": of.layer_norm_epsilon,
            **more,
        }

    words, size = text.vocabulary, {"image_size": vit.image_size[0], "patch_size": vit.patch_size[0]}
    tokens = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": 0}
    return {
        "architectures": ["Owlv2ForObjectDetection" if config.objectness else "OwlViTForObjectDetection"],
        "model_type": kind,
        "dtype": "float32",
        "projection_dim": config.embedding,
        "text_config": tower(text, "text", vocab_size=words, max_position_embeddings=text.context, **tokens),
        "vision_config": tower(vit, "vision", **size, num_channels=3),
    }


def library_preprocessor(config: DetectorConfig) -> dict[str, Any]:
    """Returns the preprocessor_config.json of transformers."""
    vit, is_second = config.backbone, config.objectness
    size = {"height": vit.image_size[0], "width": vit.image_size[1]}
    return {
        "image_processor_type": "Owlv2ImageProcessor" if is_second else "OwlViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        **({"do_pad": True} if is_second else {"do_center_crop": False}),
        "resample": 2 if is_second else 3,
        "rescale_factor": 1 / 255,
        "size": size,
        "image_mean": list(vit.pixel_mean),
        "image_std": list(vit.pixel_std),
    }


# Scenic

_NORMS = (("ln_0", "ln_1"), ("ln_1", "ln_2"))  # of a block, in new and in old files
# Scenic's names and transformers', and what becomes of the axes.
_SCENIC = (
    (r"backbone/clip/visual/conv1/kernel", "{p}.vision_model.embeddings.patch_embedding.weight", "conv"),
    (r"backbone/clip/visual/class_embedding", "{p}.vision_model.embeddings.class_embedding", ""),
    (r"backbone/clip/visual/positional_embedding", "{p}.vision_model.embeddings.position_embedding.weight", ""),
    (r"backbone/clip/visual/ln_pre", "{p}.vision_model.pre_layernorm", "norm"),
    (r"backbone/clip/visual/ln_post", "{p}.vision_model.post_layernorm", "norm"),
    (r"backbone/clip/text/token_embedding/embedding", "{p}.text_model.embeddings.token_embedding.weight", ""),
    (r"backbone/clip/text/positional_embedding", "{p}.text_model.embeddings.position_embedding.weight", ""),
    (r"backbone/clip/text/ln_final", "{p}.text_model.final_layer_norm", "norm"),
    (r"backbone/clip/text/text_projection/kernel", "{p}.text_projection.weight", "matrix"),
    (r"backbone/merged_class_token", "layer_norm", "norm"),
    (r"class_head/Dense_0", "class_head.dense0", "linear"),
    (r"class_head/logit_shift", "class_head.logit_shift", "linear"),
    (r"class_head/logit_scale", "class_head.logit_scale", "linear"),
    *((rf"obj_box_head/Dense_{i}", f"box_head.dense{i}", "linear") for i in range(3)),
    *((rf"objectness_head/Dense_{i}", f"objectness_head.dense{i}", "linear") for i in range(3)),
)
_TOWERS = {"visual": "vision_model", "text": "text_model"}
_SCENICS_UNUSED = r"class_head/(padding|padding_bias)"


def _pairs(prefix: str, depths: Mapping[str, int], old: bool, dot: str) -> dict[str, Any]:
    """Returns for each of transformers' names the one of Scenic and what becomes of its axes."""
    table = [row for row in _SCENIC if prefix == "owlv2" or not row[1].startswith("objectness")]
    for tower, theirs in _TOWERS.items():
        for i in range(depths[tower]):
            block = f"backbone/clip/{tower}/transformer/resblocks{dot}{i}"
            layer = f"{{p}}.{theirs}.encoder.layers.{i}"
            for ours, part in (("query", "q"), ("key", "k"), ("value", "v")):
                table.append((f"{block}/attn/{ours}", f"{layer}.self_attn.{part}_proj", "heads"))
            table.append((f"{block}/attn/out", f"{layer}.self_attn.out_proj", "joined"))
            table += [(f"{block}/mlp/c_{a}", f"{layer}.mlp.{b}", "linear") for a, b in (("fc", "fc1"), ("proj", "fc2"))]
            for k, ln in enumerate(_NORMS[old]):
                table.append((f"{block}/{ln}", f"{layer}.layer_norm{k + 1}", "norm"))
    found: dict[str, Any] = {}
    for ours, theirs, how in table:
        weight = "/scale" if how == "norm" else "/kernel"
        ends = [("", "")] if how in ("", "conv", "matrix") else [(weight, ".weight"), ("/bias", ".bias")]
        for a, b in ends:
            found[f"{theirs.format(p=prefix)}{b}"] = (f"{ours}{a}", how if b != ".bias" else "bias")
    return found


def _to_transformers(values: np.ndarray, how: str) -> np.ndarray:
    """Returns an array of Scenic's as transformers has it."""
    if how == "conv":
        return values.transpose(3, 2, 0, 1)
    if how == "bias":
        return values.reshape(-1)
    if how == "heads":
        return values.reshape(len(values), -1).T
    if how == "joined":
        return values.reshape(-1, values.shape[-1]).T
    return values.T if how in ("linear", "matrix") else values


def from_scenic(file: Arrays) -> tuple[dict[str, StoredArray], dict[str, Any]]:
    """Returns Scenic's arrays in transformers' names and shapes, and a config.json for them."""
    start = next(name for name in file if name.endswith(_SCENICS_HEAD)).removesuffix(_SCENICS_HEAD)
    inside = {name.removeprefix(start): array for name, array in file.items() if name.startswith(start)}
    if any(name.startswith("obj_mask_head/") for name in inside):
        raise ValueError("The file has a head for masks ('obj_mask_head'), which is not supported.")
    kind = "owlv2" if any(name.startswith("objectness_head/") for name in inside) else "owlvit"
    blocks = re.compile(r"backbone/clip/(visual|text)/transformer/resblocks([._])(\d+)/")
    matches = [m for name in inside if (m := blocks.match(name))]
    depths = {t: bounded(1 + max((int(m[3]) for m in matches if m[1] == t), default=-1)) for t in _TOWERS}
    dot = matches[0][2] if matches else "."
    old = not any("/ln_0/" in name for name in inside)
    pairs = _pairs(kind, depths, old, dot)
    used = {scenics for scenics, _ in pairs.values()}
    missing = sorted(used - inside.keys())
    left = sorted(name for name in inside if name not in used and not re.match(_SCENICS_UNUSED, name))
    if missing or left:
        problem = f"lacks the arrays {listed(missing)}" if missing else f"has unknown arrays {listed(left)}"
        raise ValueError(f"The file {problem}. Nothing was loaded: download it again.")
    arrays = {name: _changed(inside[scenics], name, how) for name, (scenics, how) in pairs.items()}

    def heads(tower: str) -> int:
        name = f"backbone/clip/{tower}/transformer/resblocks{dot}0/attn/query/kernel"
        return shape_of(inside, name, 3)[1]

    patch = shape_of(inside, "backbone/clip/visual/conv1/kernel", 4)
    side = round((shape_of(inside, "backbone/clip/visual/positional_embedding", 2)[0] - 1) ** 0.5)
    config = {
        "model_type": kind,
        "text_config": {"num_attention_heads": heads("text"), "max_position_embeddings": CONTEXT},
        "vision_config": {
            "num_attention_heads": heads("visual"),
            "image_size": side * patch[0],
            "patch_size": patch[0],
            "hidden_size": patch[3],
        },
    }
    return arrays, config


def _changed(array: StoredArray, name: str, how: str) -> StoredArray:
    """Returns an array of Scenic's under a name of transformers, whose axes are changed when it is read."""
    shape = _to_transformers(np.broadcast_to(np.zeros((), "int8"), array.shape), how).shape
    if not how:
        return dataclasses.replace(array, name=name)

    def load(offset: int, size: int) -> np.ndarray:
        values = np.ascontiguousarray(_to_transformers(array.read_stored(), how))
        return values.reshape(-1).view(np.uint8)[offset : offset + size]

    return StoredArray(name, shape, array.dtype, load)


def to_scenic(arrays: Mapping[str, np.ndarray], config: DetectorConfig, text: TextConfig) -> dict[str, np.ndarray]:
    """Returns transformers' arrays in Scenic's names and shapes; those of `EXTRAS` have no place there."""
    kind = prefix_of(config)
    pairs = _pairs(kind, {"visual": config.backbone.depth, "text": text.depth}, False, ".")
    heads = {f"{kind}.vision_model": config.backbone.heads, f"{kind}.text_model": text.heads}
    found = {}
    for name, (scenics, how) in pairs.items():
        if name not in arrays:
            continue
        values = arrays[name]
        count = next((n for tower, n in heads.items() if name.startswith(tower)), 1)
        is_projection = "self_attn" in name and "out_proj" not in name
        if how == "conv":
            values = values.transpose(2, 3, 1, 0)
        elif how == "heads":
            values = values.T.reshape(values.shape[1], count, -1)
        elif how == "joined":
            values = values.T.reshape(count, -1, values.shape[0])
        elif how in ("linear", "matrix"):
            values = values.T
        elif how == "bias" and is_projection:
            values = values.reshape(count, -1)
        found[f"params/{scenics}"] = np.ascontiguousarray(values)
    return found
