"""How pictures become a model's input, as the JSON files of timm, transformers and open_clip say it.

Each function gives fields of a `ViTConfig`: `pixel_mean`, `pixel_std`, `resize`, `crop_ratio` and `filter`.
"""

import math
from collections.abc import Mapping
from typing import Any

from keras_vit._text import printable

Fields = dict[str, Any]

# Published means and standard deviations of the channels, for pixels of 0..1.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

# All of them resample with Pillow, whose filters widen where a picture shrinks.
_FILTERS = {
    2: "bilinear_pillow",
    3: "bicubic",
    "bilinear": "bilinear_pillow",
    "bicubic": "bicubic",
    "random": "bicubic",
}
# What these JSON files call our filters; transformers by the numbers of Pillow.
FILTER_NAMES = {
    "bilinear": "bilinear",
    "bilinear_pillow": "bilinear",
    "bilinear_antialias": "bilinear",
    "bicubic": "bicubic",
}
FILTER_NUMBERS = {filter: {"bilinear": 2, "bicubic": 3}[name] for filter, name in FILTER_NAMES.items()}
# The classes of transformers that resample floats instead of whole numbers.
RESAMPLE_FLOATS = "DINOv3ViTImageProcessor"


def pictures(
    numbers: tuple[tuple[float, ...], tuple[float, ...]], resize: str, crop_ratio: float, filter: str = "bicubic"
) -> Fields:
    """The fields from means and standard deviations and the rest."""
    mean, std = numbers
    return {"pixel_mean": mean, "pixel_std": std, "resize": resize, "crop_ratio": crop_ratio, "filter": filter}


def of_timm(config: Mapping[str, Any], default: Fields, told: list[str]) -> Fields:
    """The fields from timm's `pretrained_cfg`, or `default` for what it leaves out."""
    fields = dict(default)
    fields |= _numbers(config.get("mean"), config.get("std"), told)
    crop, mode = config.get("crop_pct"), config.get("crop_mode")
    if _is_share(crop):
        fields["crop_ratio"] = crop
    if mode == "squash":
        fields |= {"resize": "squash"}
    elif mode == "border":
        told.append("its pictures were padded to squares before they were resized, which is not done here")
    if "interpolation" in config:
        fields |= _filter(config["interpolation"], told)
    return fields


def of_transformers(config: Mapping[str, Any], default: Fields, told: list[str]) -> Fields:
    """The fields from transformers' `preprocessor_config.json`, or `default` for what it leaves out."""
    fields = dict(default)
    mean, std = config.get("image_mean"), config.get("image_std")
    if config.get("do_normalize") is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    fields |= _numbers(mean, std, told)
    factor = config.get("rescale_factor", 1 / 255)
    if config.get("do_rescale") is False:
        told.append("its preprocessor_config.json does not scale pixels; pixels of 0..1 are assumed")
    elif isinstance(factor, float) and factor > 0 and abs(255 * factor - 1) > 1e-6:
        # (x factor - mean) / std for pixels x of 0..255, said for pixels of 0..1.
        fields["pixel_mean"] = tuple(m / (255 * factor) for m in fields["pixel_mean"])
        fields["pixel_std"] = tuple(s / (255 * factor) for s in fields["pixel_std"])
    if config.get("resample") is not None:
        fields |= _filter(config["resample"], told)
    if str(config.get("image_processor_type", "")).startswith(RESAMPLE_FLOATS):
        if fields["filter"].startswith("bilinear"):
            fields["filter"] = "bilinear_antialias"
        else:
            told.append("its pictures were resampled as floats, which is not done here: they are whole numbers")
    resized, shortest = _size(config.get("size"), config.get("do_center_crop"))
    cropped, _ = _size(config.get("crop_size"), None)
    if resized is not None and config.get("do_resize") is not False:
        fields |= {"resize": "shortest" if shortest else "squash", "crop_ratio": 1.0}
        if config.get("do_center_crop") and cropped is not None and cropped < resized:
            fields["crop_ratio"] = _ratio(cropped, resized)
    return fields


def of_open_clip(config: Mapping[str, Any], default: Fields, told: list[str]) -> Fields:
    """The fields from open_clip's `preprocess_cfg`, or `default` for what it leaves out."""
    fields = dict(default)
    fields |= _numbers(config.get("mean"), config.get("std"), told)
    if config.get("interpolation") is not None:
        fields |= _filter(config["interpolation"], told)
    mode = config.get("resize_mode")
    if mode in ("shortest", "squash"):
        fields |= {"resize": mode, "crop_ratio": 1.0}
    elif mode is not None:
        told.append(f"its pictures were resized by {printable(mode, 60)}, which is not done here")
    return fields


def _numbers(mean: Any, std: Any, told: list[str]) -> Fields:
    fields = {}
    for name, values in (("pixel_mean", mean), ("pixel_std", std)):
        if values is None:
            continue
        listed = [values] * 3 if isinstance(values, (int, float)) else values
        if isinstance(listed, (list, tuple)) and listed and all(_is_number(value) for value in listed):
            fields[name] = tuple(float(value) for value in listed)
        else:
            told.append(f"its config gives {name} as {printable(values, 60)}, which is left out")
    return fields


def _filter(value: Any, told: list[str]) -> Fields:
    if isinstance(value, (int, str)) and value in _FILTERS:
        return {"filter": _FILTERS[value]}
    told.append(f"its pictures were resampled by {printable(value, 60)}; bicubic is taken instead")
    return {"filter": "bicubic"}


def _size(value: Any, cropped: Any) -> tuple[int | None, bool]:
    """The height, or the length of the shorter edge, that a config says, and whether it is the latter."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, bool(cropped)  # files of old versions: a number was the shorter edge where a crop followed
    if isinstance(value, dict):
        for key in ("shortest_edge", "height"):
            if isinstance(value.get(key), int) and value[key] > 0:
                return value[key], key == "shortest_edge"
    return None, False


def _ratio(cropped: int, resized: int) -> float:
    """The share of the resized picture that remains, such that dividing by it gives the size before again."""
    ratio = cropped / resized
    while math.floor(cropped / ratio) < resized:
        ratio = math.nextafter(ratio, 0.0)
    return ratio


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1
