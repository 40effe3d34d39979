"""How images become a model's input, as the JSON files of timm, transformers and open_clip say it.

The functions give `pixel_mean`, `pixel_std`, `resize`, `crop_ratio` and `filter` of a `ViTConfig`. What cannot be done
as a file says is an error: the same image would give other numbers.
"""

import math
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents
from keras_vit.models import ViTConfig

Fields = dict[str, Any]  # of a `ViTConfig`

# Published means and standard deviations of the channels, for pixels of 0..1.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# What these JSON files call our filters, transformers by the numbers of Pillow. All of them resample with Pillow, whose
# filters widen where an image shrinks; without `bilinear_pillow` for the official code's.
_NUMBERS = ("nearest", "lanczos", "bilinear_pillow", "bicubic")
_FILTERS = {
    **dict(enumerate(_NUMBERS)),
    **dict(zip(("nearest", "lanczos", "bilinear", "bicubic"), _NUMBERS, strict=True)),
    "random": "bicubic",  # one of several, in training
}
FILTER_NUMBERS = {"bilinear": 2, "bilinear_antialias": 2} | {filter: number for number, filter in enumerate(_NUMBERS)}
FILTER_NAMES = {filter: ("nearest", "lanczos", "bilinear", "bicubic")[n] for filter, n in FILTER_NUMBERS.items()}
# What timm's `crop_mode` and open_clip's `resize_mode` may be.
_MODES: dict[str, dict[Any, Fields]] = {
    "crop_mode": {None: {}, "center": {}, "squash": {"resize": "squash"}},
    "resize_mode": {None: {}, **{mode: {"resize": mode, "crop_ratio": 1.0} for mode in ("shortest", "squash")}},
}
# The classes of transformers that resample floats instead of whole numbers.
RESAMPLE_FLOATS = "DINOv3ViTImageProcessor"
# What the classes of transformers do where a preprocessor_config.json does not say it, by the beginning of their names;
# `shortest` is whether a single number is the length of the shorter edge.
_SQUARE, _CROP = {"height": 224, "width": 224}, {"do_center_crop": True, "crop_size": 224}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "DINOv3ViT": {"resample": 2, "size": _SQUARE, "shortest": False},
    "ViT": {"resample": 2, "size": _SQUARE, "shortest": False},
    "Siglip": {"resample": 3, "size": _SQUARE, "shortest": False},
    "DeiT": {"resample": 3, "size": {"height": 256, "width": 256}, "shortest": False, **_CROP},
    "CLIP": {"resample": 3, "size": {"shortest_edge": 224}, "shortest": True, **_CROP},
    "Bit": {"resample": 3, "size": {"shortest_edge": 224}, "shortest": True, **_CROP},
}


def preparation(numbers: tuple[Any, Any], resize: str, crop_ratio: float, filter: str = "bicubic") -> Fields:
    """How images are prepared, from means and standard deviations and the rest."""
    mean, std = numbers
    return {"pixel_mean": mean, "pixel_std": std, "resize": resize, "crop_ratio": crop_ratio, "filter": filter}


def preparation_in(
    config: Mapping[str, Any], default: Fields, mode_key: str = "crop_mode", crop_key: str = "crop_pct"
) -> Fields:
    """How timm's `pretrained_cfg` or open_clip's `preprocess_cfg` prepares images; `default` for what it leaves out."""
    fields = {**default, **_means(config.get("mean"), config.get("std"))}
    crop, mode = config.get(crop_key, config.get("crop_pct")), config.get(mode_key)
    if mode_key == "crop_mode" and _is_number(crop) and 0 < crop <= 1:
        fields["crop_ratio"] = crop
    if not isinstance(mode, str | None) or mode not in _MODES[mode_key]:
        raise _not_done(mode_key, mode)
    return {**fields, **_MODES[mode_key][mode], **_filter("interpolation", config.get("interpolation"))}


def transformers_preparation(config: Mapping[str, Any], default: Fields) -> tuple[Fields, tuple[int, int] | None]:
    """How a `preprocessor_config.json` prepares images, and to which height and width, where it says it."""
    name = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    usual = next((values for start, values in _PROCESSORS.items() if name.startswith(start)), {})
    stated = {**usual, **{key: value for key, value in config.items() if value is not None}}
    fields: Fields = {**default, **({"filter": "bicubic"} if name else {})}
    fields |= _filter("resample", stated.get("resample"))
    if name.startswith(RESAMPLE_FLOATS):
        if fields["filter"] != "bilinear_pillow":
            raise _not_done("resample", stated["resample"])
        fields["filter"] = "bilinear_antialias"
    normalizes = stated.get("do_normalize") is not False
    fields |= _means(*((stated.get("image_mean"), stated.get("image_std")) if normalizes else NONE))
    factor = stated.get("rescale_factor", 1 / 255) if stated.get("do_rescale") is not False else 1.0
    if not _is_number(factor) or factor <= 0:
        raise _not_done("rescale_factor", factor)
    if abs(255 * factor - 1) > 1e-6:  # (x factor - mean) / std for pixels x of 0..255, said for pixels of 0..1
        for key in ("pixel_mean", "pixel_std"):
            fields[key] = tuple(value / (255 * factor) for value in fields[key])
    for key, value in (("do_resize", False), ("do_pad", True)):
        if stated.get(key) is value:
            raise _not_done(key, value)
    crops = stated.get("do_center_crop", False)
    # Files of old versions have a number, which was the shorter edge where a crop followed.
    size = _edges(stated, "size", stated.get("shortest", bool(crops)))
    crop = _edges(stated, "crop_size", False) if crops else size
    if crops and (size is None or crop is None):
        raise _not_done("do_center_crop", crops)
    if size is None or crop is None:
        return fields, None
    if isinstance(crop, int):  # as many pixels on the longer edge as the image has
        raise _not_done("size", stated["size"])
    shortest = isinstance(size, int)
    height, width = (size, size) if shortest else size
    if height * crop[1] != width * crop[0] or crop[0] > height or (shortest and crop[0] != crop[1]):
        raise _not_done("crop_size", stated["crop_size"])
    ratio = crop[0] / height
    while math.floor(crop[0] / ratio) < height:  # dividing by it has to give the size before again
        ratio = math.nextafter(ratio, 0.0)
    fields |= {"resize": "shortest" if shortest else "squash", "crop_ratio": ratio}
    return fields, crop if config.get("size") is not None or config.get("crop_size") is not None else None


def _edges(config: Mapping[str, Any], key: str, shortest: bool) -> int | tuple[int, int] | None:
    """The length of the shorter edge, or height and width; None where the config does not say it."""
    value = config.get(key)
    if value is None:
        return None
    if is_length(value):
        return value if shortest else (value, value)
    given = {name: n for name, n in value.items() if n is not None} if isinstance(value, dict) else {}
    if all(map(is_length, given.values())):
        if given.keys() == {"shortest_edge"}:
            return given["shortest_edge"]
        if given.keys() == {"height", "width"}:
            return given["height"], given["width"]
    raise _not_done(key, value)


def used_at(contents: Contents, config: ViTConfig, size: tuple[int, int] | None, is_size: bool = True) -> ViTConfig:
    """The config with what of the images, which the publisher prepares at a size, lies beyond the last whole patches.

    Notes where that (`is_size`) is another size than that of the position embeddings.
    """
    if size is None:
        return config
    patch = config.image_size_of((1, 1))
    if all(0 <= a - b < n for a, b, n in zip(size, config.image_size, patch, strict=True)):
        config = config.replace(trim=(size[0] - config.image_size[0], size[1] - config.image_size[1]))
    used = (max(size[0] // patch[0], 1) * patch[0], max(size[1] // patch[1], 1) * patch[1])
    if is_size and used not in (size, config.image_size):
        contents.assumed["image_size"] = (
            f"its publisher prepares pictures of {size[0]} x {size[1]} pixels, no whole number of patches, and leaves "
            f"the rest at the right and lower edge out; here pictures of {used[0]} x {used[1]} are prepared, which "
            "differ a little"
        )
    if is_size and used != config.image_size:
        contents.image_size = used
        contents.notes.append(
            f"its position embeddings are for {config.image_size[0]} x {config.image_size[1]} pixels, and its "
            f"publisher prepares pictures of {size[0]} x {size[1]}, as is done here: they are resized. image_size=... "
            "takes another size"
        )
    return config


def _means(mean: Any, std: Any) -> Fields:
    fields = {}
    for name, values in (("mean", mean), ("std", std)):
        numbers = [values] * 3 if _is_number(values) else values
        if isinstance(numbers, (list, tuple)) and numbers and all(map(_is_number, numbers)):
            fields[f"pixel_{name}"] = tuple(map(float, numbers))
        elif values is not None:
            raise _not_done(name, values)
    return fields


def _filter(key: str, value: Any) -> Fields:
    if value is None:
        return {}
    if isinstance(value, (int, str)) and not isinstance(value, bool) and value in _FILTERS:
        return {"filter": _FILTERS[value]}
    raise _not_done(key, value)


def _not_done(key: str, value: Any) -> ValueError:
    return ValueError(
        f"the JSON file beside it says of pictures {key}={printable(value, 60)}, which is not done here, so that the "
        "same picture would give other numbers. Remove that file, or the line, and prepare pictures as it says: "
        "model.preprocess then does what is usual in the family."
    )


def is_length(value: Any) -> bool:
    """Whether a value of JSON is a number of pixels."""
    return type(value) is int and 0 < value < 2**20


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
