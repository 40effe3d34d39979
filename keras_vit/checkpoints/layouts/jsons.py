"""What the JSON files beside weights say: values, and how images are prepared.

What they say and is not computed here is an error: the image would get other numbers.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from keras_vit._arguments import is_class_name, printable
from keras_vit.checkpoints.accounting import Notice
from keras_vit.models import ViTConfig

Fields = dict[str, Any]  # of a config

# Published means and standard deviations of the channels, for pixels of 0..1.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# What these JSON files call our filters, transformers by the numbers of Pillow. All of them resample with Pillow, whose
# filters widen where an image shrinks; without `bilinear_pillow` for the official code's.
_OURS, _NAMES = ("nearest", "lanczos", "bilinear_pillow", "bicubic"), ("nearest", "lanczos", "bilinear", "bicubic")
_FILTERS = dict(enumerate(_OURS)) | dict(zip(_NAMES, _OURS, strict=True)) | {"random": "bicubic"}  # in training
FILTER_NUMBERS = {"bilinear": 2, "bilinear_antialias": 2} | {filter: number for number, filter in enumerate(_OURS)}
# What timm's `crop_mode` and open_clip's `resize_mode` may be.
_MODES: dict[str, dict[Any, Fields]] = {
    "crop_mode": {None: {}, "center": {}, "squash": {"resize": "squash"}},
    "resize_mode": {None: {}, **{mode: {"resize": mode, "crop_ratio": 1.0} for mode in ("shortest", "squash")}},
}


@dataclasses.dataclass(frozen=True)
class Key:
    """How a library's JSON says a field of a config."""

    field: str  # ours
    key: str  # theirs
    write: Callable[[Any], Any] = lambda value: value  # from our value to theirs
    # From key and value to ours; raises ValueError for an unknown name. None where arrays tell the field.
    read: Callable[[str, Any], Any] | None = None


def name_codec(ours: Mapping[str, str], theirs: Mapping[str, str] | None = None) -> tuple[Callable, Callable]:
    """`Key.write` and `Key.read` for names: theirs by ours, and where they have more of them ours by theirs."""
    known = theirs or {name: value for value, name in ours.items()}
    return ours.__getitem__, lambda key, value: known[value_in({key: value}, key, known)]


def fields_in(keys: Iterable[Key], found: Mapping[str, Any]) -> Fields:
    """The config fields in a library's JSON."""
    return {key.field: key.read(key.key, found[key.key]) for key in keys if key.read and found.get(key.key) is not None}


def written(keys: Iterable[Key], config: Any) -> dict[str, Any]:
    """Returns a library's JSON settings for a config."""
    return {key.key: key.write(getattr(config, key.field)) for key in keys}


def one_or_two(size: tuple[int, int]) -> int | list[int]:
    """A single number for two equal ones, else a list of both."""
    return size[0] if size[0] == size[1] else list(size)


def as_is(key: str, value: Any) -> Any:
    """A `Key.read` that takes any value, which the config checks."""
    return value


def preparation(numbers: tuple[Any, Any], resize: str, crop_ratio: float, filter: str = "bicubic") -> Fields:
    """Fields of a config: how images are prepared. `numbers` are means and standard deviations."""
    mean, std = numbers
    return {"pixel_mean": mean, "pixel_std": std, "resize": resize, "crop_ratio": crop_ratio, "filter": filter}


def prepared_by(config: ViTConfig, mode_key: str = "crop_mode") -> Fields:
    """Returns what timm's `pretrained_cfg` or open_clip's `preprocess_cfg` says of pictures: `preparation_in` back."""
    metadata: Fields = {"interpolation": _NAMES[FILTER_NUMBERS[config.filter]]}
    metadata |= {"mean": list(config.pixel_mean), "std": list(config.pixel_std), mode_key: config.resize}
    if mode_key == "crop_mode":
        metadata |= {"crop_pct": config.crop_ratio, mode_key: "squash" if config.resize == "squash" else "center"}
    return metadata


def preparation_in(
    config: Mapping[str, Any], default: Fields, mode_key: str = "crop_mode", crop_key: str = "crop_pct"
) -> Fields:
    """Returns how timm's `pretrained_cfg` or open_clip's `preprocess_cfg` prepares images, as fields of a config.

    `mode_key` is `"crop_mode"` for timm and `"resize_mode"` for open_clip, whose config has no crop ratio.
    """
    mode = value_in(config, mode_key, _MODES[mode_key], file="the JSON file")
    if mode_key == "resize_mode":
        read = ("size", "mean", "std", "interpolation", "resize_mode", "fill_color")  # the model decides the size
        check_prepared(config, {"mode": "RGB"}, read)
    fields = default | means_in(config.get("mean"), config.get("std"))
    if mode_key == "crop_mode":
        crop = config.get("crop_pct") if config.get(crop_key) is None else config[crop_key]
        fields |= {} if crop is None else {"crop_ratio": crop}
    return fields | _MODES[mode_key][mode] | filter_in("interpolation", config.get("interpolation"))


def used_at(
    config: ViTConfig, size: tuple[int, int] | None, is_size: bool = True
) -> tuple[ViTConfig, tuple[int, int] | None, list[Notice]]:
    """Returns the config, the size at which the model is used, and warnings; `size` is the publisher's image size."""
    if size is None:
        return config, None, []
    patch = config.image_size_of((1, 1))
    if all(0 <= a - b < n for a, b, n in zip(size, config.image_size, patch, strict=True)):
        config = config.replace(trim=(size[0] - config.image_size[0], size[1] - config.image_size[1]))
    used = (max(size[0] // patch[0], 1) * patch[0], max(size[1] // patch[1], 1) * patch[1])
    if not is_size or used == config.image_size:
        return config, None, []
    published = f"the published image size is {size[0]} x {size[1]} pixels"
    trained = f"the position embeddings for {config.image_size[0]} x {config.image_size[1]} are resized"
    warnings = [Notice(f"{published}, so {trained}; pass image_size=... for another size")]
    if used != size:
        rounded = f"{published}, which is not a whole number of patches; {used[0]} x {used[1]} is used instead"
        warnings.append(Notice(f"{rounded}, so outputs differ a little", "image_size", "assumed"))
    return config, used, warnings


def means_in(mean: Any, std: Any) -> Fields:
    """The fields `pixel_mean` and `pixel_std` without what is None; the config checks the numbers."""
    return {name: value for name, value in (("pixel_mean", mean), ("pixel_std", std)) if value is not None}


def filter_in(key: str, value: Any) -> Fields:
    """Returns the field `filter` of a config, by its name or Pillow's number in a JSON file; empty for None."""
    if value is None:
        return {}
    if isinstance(value, (int, str)) and not isinstance(value, bool) and value in _FILTERS:
        return {"filter": _FILTERS[value]}
    raise unsupported_value(key, value)


def unsupported_value(key: str, value: Any) -> ValueError:
    """Returns the error for an unsupported preprocessing setting in a JSON file."""
    return ValueError(
        f"The preprocessing {key}={printable(value, 60)} in the JSON file beside the weights is not supported. Remove "
        "the line, and preprocess pictures yourself."
    )


# What a preprocessor_config.json says besides how pixels are computed, and for labels.
_WITHOUT_EFFECT = frozenset(
    "image_processor_type feature_extractor_type processor_class auto_map _valid_processor_keys model_input_names "
    "return_tensors data_format input_data_format device disable_grouping do_convert_rgb image_seq_length crop_size "
    "pad_size do_reduce_labels reduce_labels ignore_index num_labels transformers_version _name_or_path".split()
)


def check_prepared(metadata: Mapping[str, Any], wanted: Fields, read: Collection[str]) -> None:
    """Raises ValueError where a preprocessor_config.json says something else than `wanted`, or a key not in `read`."""
    for key, value in metadata.items():
        if key in wanted:
            is_done = value in (None, wanted[key])
        else:  # an unknown step may be switched off
            is_done = value is None or value is False or key in read or key in _WITHOUT_EFFECT
        if not is_done:
            raise unsupported_value(key, value)


def is_length(value: Any) -> bool:
    """Whether a value of JSON is a number of pixels: an integer above 0, below 2**20."""
    return type(value) is int and 0 < value < 2**20


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a float holds: finite, no bool, no huge integer."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def mapping(config: Mapping[str, Any] | None, *keys: str) -> Mapping[str, Any]:
    """Returns the object at nested keys of a config; empty if it is missing or not an object."""
    for key in keys:
        value = (config or {}).get(key)
        config = value if isinstance(value, dict) else {}
    return config or {}


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Returns the number at a key of a config, or the default; ValueError unless it is finite and above 0."""
    value = default if config.get(key) is None else config[key]
    if not is_number(value) or value <= 0:
        raise ValueError(f"{key} in the JSON file must be a number above 0, but is {printable(value, 60)}.")
    return float(value)


def value_in(
    config: Mapping[str, Any], key: str, known: Collection[Any], default: Any = None, file: str = "config.json"
) -> Any:
    """Returns the value at a key of a JSON `file`, or the default, else the first `known`; ValueError for others."""
    known = [*known]
    value = config.get(key, known[0] if default is None else default)
    if value not in known:
        expected = repr(known[0]) if len(known) == 1 else f"one of {known}"
        raise ValueError(f"{key} in {file} must be {expected}, but is {printable(value, 60)}.")
    return value


def class_names(value: Any, classes: int) -> tuple[str, ...] | None:
    """Returns the names of the classes from what a config says; None unless it is a list of so many names."""
    if not isinstance(value, list) or len(value) != classes:
        return None
    return tuple(value) if all(isinstance(name, str) and is_class_name(name) for name in value) else None


def image_size_in(value: Any) -> tuple[int, int] | None:
    """Returns height and width from what a config says, an integer or a list of two; None for anything else."""
    values = [value, value] if isinstance(value, int) else value
    if isinstance(values, list) and len(values) == 2 and all(map(is_length, values)):
        return values[0], values[1]
    return None


def check_sizes(metadata: Mapping[str, Any], keys: Iterable[Key], fields: Fields, file: str = "config.json") -> None:
    """Raises ValueError if a JSON file says other sizes than the arrays, which have told the fields of a config."""
    for key in keys:
        size = fields.get(key.field)
        accepted = [None, size]
        if isinstance(size, tuple):
            accepted += [list(size), size[0]] if size[0] == size[1] else [list(size)]
        if key.read is None and metadata.get(key.key) not in accepted:
            raise ValueError(
                f"{key.key} in {file} must be {size} for these arrays, but is {printable(metadata[key.key], 60)}. Put "
                "the JSON files of these weights beside them."
            )


# What transformers' config.json says that arrays tell as well
SIZES = (
    Key("width", "hidden_size"),
    Key("depth", "num_hidden_layers"),
    Key("patch_size", "patch_size", one_or_two),
)

# How transformers prepares images

# The class of transformers that resamples floats instead of whole numbers.
RESAMPLE_FLOATS = "DINOv3ViTImageProcessor"
# What the classes of transformers do where a preprocessor_config.json does not say it, by the beginning of their names.
_SQUARE, _CROP = {"height": 224, "width": 224}, {"do_center_crop": True, "crop_size": 224}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "DINOv3ViT": {"resample": 2, "size": _SQUARE, "default_to_square": True},
    "ViT": {"resample": 2, "size": _SQUARE, "default_to_square": True},
    "Tipsv2": {"resample": 2, "size": {"height": 448, "width": 448}, "default_to_square": True, "do_normalize": False},
    "Siglip2": {"resample": 2},  # before "Siglip": the first that a name begins with counts
    "Siglip": {"resample": 3, "size": _SQUARE, "default_to_square": False},
    "DeiT": {"resample": 3, "size": {"height": 256, "width": 256}, "default_to_square": True, **_CROP},
    "CLIP": {"resample": 3, "size": {"shortest_edge": 224}, "default_to_square": False, **_CROP},
    "Bit": {"resample": 3, "size": {"shortest_edge": 224}, "default_to_square": False, **_CROP},
}


def transformers_preparation(config: Mapping[str, Any], default: Fields) -> Fields:
    """Returns how a preprocessor_config.json prepares images, as fields; `default` for what it leaves out."""
    name, metadata = _processor(config)
    fields = default | ({"filter": "bicubic"} if name else {}) | filter_in("resample", metadata.get("resample"))
    if name.startswith(RESAMPLE_FLOATS):
        if fields["filter"] != "bilinear_pillow":
            raise unsupported_value("resample", metadata["resample"])
        fields["filter"] = "bilinear_antialias"
    is_plain = metadata.get("do_normalize") is False
    fields |= means_in(*(NONE if is_plain else (metadata.get("image_mean"), metadata.get("image_std"))))
    scale = 255 * (1.0 if metadata.get("do_rescale") is False else number(metadata, "rescale_factor", 1 / 255))
    if abs(scale - 1) > 1e-6:  # (x factor - mean) / std for pixels x of 0..255, for pixels of 0..1
        for key in ("pixel_mean", "pixel_std"):
            fields[key] = tuple(np.divide(fields[key], scale).reshape(-1).tolist())
    read = {*PREPARED, "resample", "size", "do_center_crop", "default_to_square", "image_mean", "image_std"}
    read |= {"patch_size", "max_num_patches"} if name.startswith("Siglip2") else set()  # of pictures of any shape
    check_prepared(metadata, {"do_resize": True, "do_pad": False}, read)
    size, crop = _sizes(metadata)
    if size is None or crop is None:
        return fields
    fields["resize"] = "shortest" if isinstance(size, int) else "squash"
    height, width = (size, size) if isinstance(size, int) else size
    ratio = min(crop[0] / height, crop[1] / width)
    while ratio <= 1 and (math.floor(crop[0] / ratio) < height or math.floor(crop[1] / ratio) < width):
        ratio = math.nextafter(ratio, 0.0)  # dividing by it has to give the size before again
    again = (math.floor(crop[0] / ratio), math.floor(crop[1] / ratio)) == (height, width)
    if ratio > 1 or not again or (isinstance(size, int) and crop[0] != crop[1]):
        raise unsupported_value("crop_size", metadata["crop_size"])
    fields["crop_ratio"] = ratio
    return fields


def transformers_preprocessor(config: ViTConfig, is_naflex: bool, processor: str) -> Fields:
    """Returns the preprocessor_config.json for a model: `transformers_preparation` back."""
    if is_naflex:
        sizes = {"patch_size": config.patch_size[0], "max_num_patches": config.position_rows}
        return written_preprocessor("Siglip2ImageProcessor", config, FILTER_NUMBERS[config.filter], **sizes)
    (height, width), resized = config.pipeline.prepared_size, config.pipeline.uncropped_size
    shortest = config.resize == "shortest"
    # The class that resamples floats cannot cut out the centre.
    if config.filter == "bilinear_antialias" and not shortest and config.crop_ratio == 1:
        processor = RESAMPLE_FLOATS
    return written_preprocessor(
        processor,
        config,
        FILTER_NUMBERS[config.filter],
        size={"shortest_edge": min(resized)} if shortest else {"height": resized[0], "width": resized[1]},
        do_center_crop=shortest or config.crop_ratio < 1,
        crop_size={"height": height, "width": width},
        do_normalize=(config.pixel_mean, config.pixel_std) != ((0.0,) * 3, (1.0,) * 3),
    )


# What transformers does with pictures for all models here.
PREPARED: Fields = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True) | {"rescale_factor": 1 / 255}


def written_preprocessor(processor: str, config: ViTConfig, resample: int, **more: Any) -> Fields:
    """A preprocessor_config.json of a class of transformers."""
    means = {"image_mean": list(config.pixel_mean), "image_std": list(config.pixel_std)}
    return {"image_processor_type": processor, "resample": resample, **PREPARED, **means, **more}


def _processor(config: Mapping[str, Any]) -> tuple[str, Fields]:
    name = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    defaults = next((values for start, values in _PROCESSORS.items() if name.startswith(start)), {})
    return name, {**defaults, **{key: value for key, value in config.items() if value is not None}}


def _sizes(metadata: Mapping[str, Any]) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
    """Returns the size to which images are resized (a number is the shorter edge), and the size after a crop."""
    crops = metadata.get("do_center_crop", False)
    # Files of old versions have a number, which was the shorter edge where a crop followed.
    size = edges_in(metadata, "size", not metadata.get("default_to_square", not crops))
    crop = edges_in(metadata, "crop_size", False) if crops else size
    if crops and (size is None or crop is None):
        raise unsupported_value("do_center_crop", crops)
    if isinstance(crop, int):  # as many pixels on the longer edge as the image has
        raise unsupported_value("size", metadata["size"])
    return size, crop


def transformers_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns height and width of what a preprocessor_config.json prepares; None where it does not say them itself."""
    if config.get("size") is None and config.get("crop_size") is None:
        return None
    size, crop = _sizes(_processor(config)[1])
    return None if size is None else crop


def edges_in(config: Mapping[str, Any], key: str, shortest: bool) -> int | tuple[int, int] | None:
    """Returns the length of the shorter edge, or height and width, at a key; None where the config does not say it."""
    value = config.get(key)
    if value is None:
        return None
    if is_length(value):
        return value if shortest else (value, value)
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    given = {name: n for name, n in value.items() if n is not None} if isinstance(value, dict) else {}
    if all(map(is_length, given.values())):
        if given.keys() == {"shortest_edge"}:
            return given["shortest_edge"]
        if given.keys() == {"height", "width"}:
            return given["height"], given["width"]
    raise unsupported_value(key, value)
