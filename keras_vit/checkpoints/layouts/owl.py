"""OWL-ViT and OWLv2 in the names of transformers and of Scenic: CLIP's two towers, and heads on the patches.

Scenic's arrays have the axes of our weights, so that their rows are made of those of transformers.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.accounting import Layout, Plan, Row, depth_of, having, prefixed, renamed, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import huggingface, jsons, pytorch
from keras_vit.checkpoints.layouts.jsons import CLIP, mapping, preparation, value_in, written, written_preprocessor
from keras_vit.checkpoints.layouts.pytorch import linear, norm
from keras_vit.checkpoints.layouts.text import NAMES, plan_of_text, text_layout
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
recognise = having(_HEAD, ending=_SCENICS_HEAD)


def is_scenic(names: Collection[str]) -> bool:
    """Whether an OWL's file has Scenic's names."""
    return _HEAD not in names


def prefix_of(config: DetectorConfig) -> str:
    """What stands before the names of the towers, which is also the `model_type`."""
    return "owlv2" if config.objectness else "owlvit"


def rows(config: DetectorConfig) -> list[Row]:
    """Returns the rows of image tower and heads in transformers' names; the classes are not in a file."""
    width, tower = config.backbone.width, f"{prefix_of(config)}.vision_model."
    found = prefixed(tower, pytorch.trunk_rows(config.backbone, _FAMILY))
    found += norm("layer_norm", "head/norm", width)
    found += linear("class_head.dense0", "head/embed", config.embedding, width)
    for part in ("logit_shift", "logit_scale"):
        found += linear(f"class_head.{part}", f"head/{part}", 1, width)
    for name, path, outputs in (("box", "box", 4), *([("objectness", "object", 1)] if config.objectness else [])):
        for i, size in enumerate((width, width, outputs)):
            found += linear(f"{name}_head.dense{i}", f"head/{path}_fc{i + 1}", size, width)
    return found


LAYOUT = Layout(
    "owl",
    rows,
    # The matrix of the classes, which no file has.
    computed=lambda config: {"head/queries/kernel": np.zeros((config.embedding, config.classes), "float32")},
    needs=lambda config: {"image_size": ((config.image_size[0],) * 2,)},
    config_type=DetectorConfig,
)
TEXT = text_layout(NAMES["hf_clip"], False)


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


def _check_prepared(given: Mapping[str, Any], kind: str, size: tuple[int, int]) -> None:
    """Raises ValueError where a preprocessor_config.json says other pictures than a detector of this size takes."""
    wanted: jsons.Fields = {"do_resize": True, "do_rescale": True, "rescale": True, "do_center_crop": False}
    wanted |= {"resample": 2, "do_pad": True} if kind == "owlv2" else {"resample": 3, "do_pad": False}
    read = ("size", "default_to_square", "image_mean", "image_std", "rescale_factor", "do_normalize")
    jsons.check_prepared(given, wanted, read)
    if jsons.edges_in(given, "size", given.get("default_to_square") is False) not in (None, size):
        raise jsons.unsupported_value("size", given["size"])


def check_fits(config: DetectorConfig, text: TextConfig) -> None:
    """Raises ValueError where towers and heads do not fit each other."""
    if text.context > CONTEXT:
        raise ValueError(f"An OWL has texts of at most {CONTEXT} tokens, but the text tower has {text.context}.")
    if config.embedding != text.projection:
        lengths = f"{config.embedding} and {text.projection} values"
        raise ValueError(f"Embeddings of patches and texts must have one length, but have {lengths}.")


def plans(file: Arrays, sidecars: Sidecars) -> tuple[Plan, Plan]:
    """Returns the plans of the image tower with the heads, and of the text tower, of a file in transformers' names."""
    kind = "owlv2" if "objectness_head.dense0.weight" in file else "owlvit"
    value_in(sidecars.config, "model_type", [kind])
    towers, beside = _as_clip(file, sidecars, kind)
    text, _ = plan_of_text({n: a for n, a in towers.items() if n.startswith("text_")}, beside)
    vision = {n: a for n, a in towers.items() if not n.startswith(("text_", "visual_projection", "logit_scale"))}
    backbone = huggingface.LAYOUT.plan(vision, beside)
    vit = backbone.config.replace(**WITHOUT_TOP, final_norm="tokens", **preparation(CLIP, "squash", 1.0))
    _check_prepared(sidecars.preprocessor or {}, kind, vit.image_size)
    vit = vit.replace(pixel_mean=backbone.config.pixel_mean, pixel_std=backbone.config.pixel_std)
    config = DetectorConfig(
        backbone=vit, classes=1, embedding=shape_of(file, _HEAD, 2)[0], objectness=kind == "owlv2", pictures=kind
    )
    check_fits(config, text.stored)
    texts = {array.name for array in text.arrays.values()}
    arrays = {name: array for name, array in file.items() if array.name not in texts}
    images = Plan(layout=LAYOUT, dialect=kind, stored=config, arrays=arrays, warnings=backbone.warnings + text.warnings)
    images = pytorch.without_expected(images, rf"{_UNUSED}|{kind}\.({'|'.join(EXTRAS)})")
    stored = dataclasses.replace(text.stored, pooling="largest_id", end_id=None)
    return images, dataclasses.replace(text, stored=stored)


def library_config(config: DetectorConfig, text: TextConfig) -> dict[str, Any]:
    """Returns the config.json of transformers."""
    vit, kind = config.backbone, prefix_of(config)

    def tower(of: ViTConfig | TextConfig, name: str, **more: Any) -> dict[str, Any]:
        return {"model_type": f"{kind}_{name}_model", **written(huggingface.TOWER, of), **more}

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
    size = dict(zip(("height", "width"), config.image_size, strict=True))
    if config.objectness:
        return written_preprocessor("Owlv2ImageProcessor", config.backbone, 2, size=size, do_pad=True)
    return written_preprocessor("OwlViTImageProcessor", config.backbone, 3, size=size, do_center_crop=False)


# Scenic, whose arrays have the axes of our weights

SCENICS_SCALE = "backbone/clip/logit_scale"  # its CLIP module declares it in any case; `logit_scale` of `EXTRAS`
_SCENICS_UNUSED = rf"class_head/(padding|padding_bias)$|{SCENICS_SCALE}$"
_TOWERS = {"visual": "backbone/clip/visual", "text": "backbone/clip/text"}
# Our modules and weights, and what Scenic calls them: in a tower, in a block of it, and outside of the towers.
_IN_TOWER = {
    **{"embedding": "conv1", "pre_norm": "ln_pre", "encoder_norm": "ln_post", "projection": "text_projection"},
    "class_token/token": "class_embedding",
    "position_embedding/table": "positional_embedding",
    "token_embedding/embeddings": "token_embedding/embedding",
}
_IN_BLOCK = {"norm1": "ln_0", "norm2": "ln_1", "mlp/fc1": "mlp/c_fc", "mlp/fc2": "mlp/c_proj"}
_OUTSIDE = {
    **{"head/norm": "backbone/merged_class_token", "head/embed": "class_head/Dense_0"},
    **{f"head/{part}": f"class_head/{part}" for part in ("logit_shift", "logit_scale")},
    **{f"head/box_fc{i + 1}": f"obj_box_head/Dense_{i}" for i in range(3)},
    **{f"head/object_fc{i + 1}": f"objectness_head/Dense_{i}" for i in range(3)},
}


def _scenics(row: Row, tower: str, heads: int) -> Row:
    """Returns the row of a weight in Scenic's file, by its row in transformers'."""
    shape = row.shape if row.axes is None else tuple(row.shape[axis] for axis in row.axes)
    path: Any = row.path
    module, _, part = path.rpartition("/")
    part = {"gamma": "scale", "beta": "bias"}.get(part, part)
    inside = re.fullmatch(r"block_(\d+)/(.*)", module)
    if path in _IN_TOWER:
        return Row(f"{tower}/{_IN_TOWER[path]}", path, shape)
    if not inside:
        name = _OUTSIDE[module] if module in _OUTSIDE else f"{tower}/{_IN_TOWER[module]}"
        return Row(f"{name}/{part}", path, shape)
    layer = _IN_BLOCK.get(inside[2], inside[2].replace("attention", "attn"))
    if layer == "attn/out" and part == "kernel":
        shape = (heads, shape[0] // heads, shape[1])
    elif layer in ("attn/query", "attn/key", "attn/value"):
        shape = (*shape[:-1], heads, shape[-1] // heads)
    return Row(f"{tower}/transformer/resblocks.{inside[1]}/{layer}/{part}", path, shape)


def _scenic_rows(config: DetectorConfig) -> list[Row]:
    return [_scenics(row, _TOWERS["visual"], config.backbone.heads) for row in rows(config)]


def _scenic_text_rows(config: TextConfig) -> list[Row]:
    found = [_scenics(row, _TOWERS["text"], config.heads) for row in TEXT.rows(config)]
    return [dataclasses.replace(row, name=row.name.replace("/ln_post/", "/ln_final/")) for row in found]


SCENIC = dataclasses.replace(LAYOUT, rows=_scenic_rows)
SCENIC_TEXT = Layout("owl", _scenic_text_rows)


def scenic_plans(file: Arrays) -> tuple[Plan, Plan]:
    """Returns the plans of the image tower with the heads, and of the text tower, of a file in Scenic's names."""
    start = next(name for name in file if name.endswith(_SCENICS_HEAD)).removesuffix(_SCENICS_HEAD)
    inside = {name.removeprefix(start): array for name, array in file.items() if name.startswith(start)}
    is_old = not any("/ln_0/" in name for name in inside)  # norms of blocks are counted from 1 there

    def current(name: str) -> str:
        name = name.replace("/resblocks_", "/resblocks.")
        return re.sub(r"/ln_([12])/", lambda match: f"/ln_{int(match[1]) - 1}/", name) if is_old else name

    arrays = renamed({n: a for n, a in inside.items() if not re.match(_SCENICS_UNUSED, n)}, current)

    def sizes(tower: str) -> dict[str, Any]:
        blocks = f"{_TOWERS[tower]}/transformer/resblocks."
        width, heads, _ = shape_of(arrays, f"{blocks}0/attn/query/kernel", 3)
        mlp_width = shape_of(arrays, f"{blocks}0/mlp/c_fc/kernel", 2)[1]
        return {"width": width, "heads": heads, "depth": depth_of(arrays, blocks), "mlp_width": mlp_width}

    def table(tower: str, name: str) -> tuple[int, ...]:
        return shape_of(arrays, f"{_TOWERS[tower]}/{name}", 2)

    patch = shape_of(arrays, f"{_TOWERS['visual']}/conv1/kernel", 4)[:2]
    side = round((table("visual", "positional_embedding")[0] - 1) ** 0.5)
    clip: Any = {"gelu": "quick", "layer_norm_epsilon": 1e-5}
    vit = ViTConfig(
        image_size=(side * patch[0], side * patch[1]),
        patch_size=(patch[0], patch[1]),
        pre_norm=True,
        patch_bias=False,
        interpolation=_FAMILY.interpolation,
        crop_rounding="floor",
        **sizes("visual"),
        **clip,
        **WITHOUT_TOP,
        **preparation(CLIP, "squash", 1.0),
    )
    text = TextConfig(
        vocabulary=table("text", "token_embedding/embedding")[0],
        context=table("text", "positional_embedding")[0],
        causal=True,
        pooling="largest_id",
        projection=table("text", "text_projection/kernel")[1],
        **sizes("text"),
        **clip,
    )
    config = DetectorConfig(
        backbone=vit,
        classes=1,
        embedding=shape_of(arrays, _SCENICS_HEAD, 2)[1],
        objectness=any(name.startswith("objectness_head/") for name in arrays),
    )
    check_fits(config, text)
    words = {name: array for name, array in arrays.items() if name.startswith(_TOWERS["text"])}
    images = {name: array for name, array in arrays.items() if name not in words}
    return (
        Plan(layout=SCENIC, dialect="scenic", stored=config, arrays=images),
        Plan(layout=SCENIC_TEXT, dialect="scenic", stored=text, arrays=words),
    )
