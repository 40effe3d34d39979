"""How pictures become a model's input, as the JSON files of timm, transformers and open_clip say it.

Each function gives fields of a `ViTConfig`: `pixel_mean`, `pixel_std`, `resize`, `crop_ratio` and `filter`. What cannot
be done as the file says is an error: the same picture would give other numbers.
"""

import math
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.models import ViTConfig

Fields = dict[str, Any]

# Published means and standard deviations of the channels, for pixels of 0..1.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

# What these JSON files call our filters, transformers by the numbers of Pillow. All of them resample with Pillow, whose
# filters widen where a picture shrinks; without `bilinear_pillow` for the official code's.
_FILTERS = {
    **{0: "nearest", 1: "lanczos", 2: "bilinear_pillow", 3: "bicubic"},
    **{"nearest": "nearest", "lanczos": "lanczos", "bilinear": "bilinear_pillow", "bicubic": "bicubic"},
    "random": "bicubic",  # one of several, in training
}
FILTER_NUMBERS = {filter: number for number, filter in _FILTERS.items() if isinstance(number, int)}
FILTER_NUMBERS |= {"bilinear": 2, "bilinear_antialias": 2}
FILTER_NAMES = {filter: ("nearest", "lanczos", "bilinear", "bicubic")[n] for filter, n in FILTER_NUMBERS.items()}
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


def pictures(
    numbers: tuple[tuple[float, ...], tuple[float, ...]], resize: str, crop_ratio: float, filter: str = "bicubic"
) -> Fields:
    """The fields from means and standard deviations and the rest."""
    mean, std = numbers
    return {"pixel_mean": mean, "pixel_std": std, "resize": resize, "crop_ratio": crop_ratio, "filter": filter}


def of_timm(config: Mapping[str, Any], default: Fields, crop_key: str = "crop_pct") -> Fields:
    """The fields from timm's `pretrained_cfg`, or `default` for what it leaves out.

    Args:
        config: The `pretrained_cfg`.
        default: All of the fields.
        crop_key: Where it has the share that is cut out; what is no share is left out.

    Raises:
        ValueError: if pictures cannot be prepared so.
    """
    fields = {**default, **_numbers(config.get("mean"), config.get("std"))}
    crop, mode = config.get(crop_key, config.get("crop_pct")), config.get("crop_mode")
    if _is_number(crop) and 0 < crop <= 1:
        fields["crop_ratio"] = crop
    if mode == "squash":
        fields["resize"] = "squash"
    elif mode not in (None, "center"):
        raise _cannot("crop_mode", mode)
    return {**fields, **_filter("interpolation", config.get("interpolation"))}


def trim(prepared: tuple[int, int] | None, config: ViTConfig) -> Fields:
    """What of the pictures that a publisher prepares lies beyond the last whole patches, which are the model's size."""
    if prepared is None:
        return {}
    height, width = (a - b for a, b in zip(prepared, config.image_size, strict=True))
    rows, columns = config.image_size_of((1, 1))
    return {"trim": (height, width)} if 0 <= height < rows and 0 <= width < columns else {}


def of_open_clip(config: Mapping[str, Any], default: Fields) -> Fields:
    """The fields from open_clip's `preprocess_cfg`, or `default` for what it leaves out; raises as `of_timm`."""
    fields = {**default, **_numbers(config.get("mean"), config.get("std"))}
    mode = config.get("resize_mode")
    if mode in ("shortest", "squash"):
        fields |= {"resize": mode, "crop_ratio": 1.0}
    elif mode is not None:
        raise _cannot("resize_mode", mode)
    return {**fields, **_filter("interpolation", config.get("interpolation"))}


def of_transformers(config: Mapping[str, Any], default: Fields) -> tuple[Fields, tuple[int, int] | None]:
    """The fields from transformers' `preprocessor_config.json`, or `default` for what it leaves out.

    Returns:
        The fields, and the height and width of what the model is given, where the file says it.

    Raises:
        ValueError: if pictures cannot be prepared so.
    """
    name = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    usual = next((values for start, values in _PROCESSORS.items() if name.startswith(start)), {})
    stated = {**usual, **{key: value for key, value in config.items() if value is not None}}
    fields: Fields = {**default, **({"filter": "bicubic"} if name else {})}
    fields |= _filter("resample", stated.get("resample"))
    if name.startswith(RESAMPLE_FLOATS):
        if fields["filter"] != "bilinear_pillow":
            raise _cannot("resample", stated["resample"])
        fields["filter"] = "bilinear_antialias"
    normalizes = stated.get("do_normalize") is not False
    fields |= _numbers(*((stated.get("image_mean"), stated.get("image_std")) if normalizes else NONE))
    factor = stated.get("rescale_factor", 1 / 255) if stated.get("do_rescale") is not False else 1.0
    if not _is_number(factor) or factor <= 0:
        raise _cannot("rescale_factor", factor)
    if abs(255 * factor - 1) > 1e-6:
        # (x factor - mean) / std for pixels x of 0..255, said for pixels of 0..1.
        fields["pixel_mean"] = tuple(m / (255 * factor) for m in fields["pixel_mean"])
        fields["pixel_std"] = tuple(s / (255 * factor) for s in fields["pixel_std"])
    for key, value in (("do_resize", False), ("do_pad", True)):
        if stated.get(key) is value:
            raise _cannot(key, value)
    crops = stated.get("do_center_crop", False)
    # Files of old versions have a number, which was the shorter edge where a crop followed.
    size = _edges(stated, "size", stated.get("shortest", bool(crops)))
    crop = _edges(stated, "crop_size", False) if crops else size
    if crops and (size is None or crop is None):
        raise _cannot("do_center_crop", crops)
    if size is None or crop is None:
        return fields, None
    if isinstance(crop, int):  # as many pixels on the longer edge as the picture has
        raise _cannot("size", stated["size"])
    says_size = config.get("size") is not None or config.get("crop_size") is not None
    return {**fields, **_resized(size, crop, stated)}, crop if says_size else None


def _resized(size: int | tuple[int, int], crop: tuple[int, int], config: Mapping[str, Any]) -> Fields:
    """How pictures come to their size: `size` is the shorter edge or height and width, `crop` what remains."""
    height, width = (size, size) if isinstance(size, int) else size
    same_share = height * crop[1] == width * crop[0]
    if not same_share or crop[0] > height or (isinstance(size, int) and crop[0] != crop[1]):
        raise _cannot("crop_size", config["crop_size"])
    ratio = crop[0] / height
    while math.floor(crop[0] / ratio) < height:  # dividing by it has to give the size before again
        ratio = math.nextafter(ratio, 0.0)
    return {"resize": "shortest" if isinstance(size, int) else "squash", "crop_ratio": ratio}


def _edges(config: Mapping[str, Any], key: str, shortest: bool) -> int | tuple[int, int] | None:
    """The length of the shorter edge, or height and width; None where the config does not say it."""
    value = config.get(key)
    if value is None:
        return None
    if _is_length(value):
        return value if shortest else (value, value)
    if isinstance(value, dict):
        given = {name: length for name, length in value.items() if length is not None}
        if all(map(_is_length, given.values())):
            if given.keys() == {"shortest_edge"}:
                return given["shortest_edge"]
            if given.keys() == {"height", "width"}:
                return given["height"], given["width"]
    raise _cannot(key, value)


def _numbers(mean: Any, std: Any) -> Fields:
    fields = {}
    for name, values in (("mean", mean), ("std", std)):
        listed = [values] * 3 if _is_number(values) else values
        if isinstance(listed, (list, tuple)) and listed and all(map(_is_number, listed)):
            fields[f"pixel_{name}"] = tuple(float(value) for value in listed)
        elif values is not None:
            raise _cannot(name, values)
    return fields


def _filter(key: str, value: Any) -> Fields:
    if value is None:
        return {}
    if isinstance(value, (int, str)) and not isinstance(value, bool) and value in _FILTERS:
        return {"filter": _FILTERS[value]}
    raise _cannot(key, value)


def _cannot(key: str, value: Any) -> ValueError:
    return ValueError(
        f"the JSON file beside it says of pictures {key}={printable(value, 60)}, which is not done here, so that the "
        "same picture would give other numbers. Remove that file, or the line, and prepare pictures as it says: "
        "model.preprocess then does what is usual in the family."
    )


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
