"""Both towers as files that transformers, open_clip, big_vision and TIPS read: the inverse of `load_image_text`."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice, check_type
from keras_vit._files import expanded_path
from keras_vit.checkpoints import LAYOUTS, files, to_checkpoint
from keras_vit.checkpoints.accounting import check_fits_float32, extract
from keras_vit.checkpoints.checkpoint import note_of
from keras_vit.checkpoints.layouts.huggingface import TOWER
from keras_vit.checkpoints.layouts.jsons import prepared_by, written
from keras_vit.checkpoints.layouts.pytorch import mlp_ratio
from keras_vit.checkpoints.layouts.text import NAMES, OPEN_CLIP_POOLINGS, Names, plan_of_text, text_layout
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.checkpoints.writing import warn_of_pictures
from keras_vit.text.image_text import ImageText
from keras_vit.text.open_vocabulary import OpenVocabularyDetector, save_detector
from keras_vit.text.tokenizers import CLEANINGS

# Layouts of TIPS, which have a file for each tower.
_PAIRS = ("tips", "tips_scenic")
_LAYOUTS = ("huggingface", "clip", "pe", "big_vision", *_PAIRS)
_HUB = "vision_encoder."  # before an image tower of TIPS beside its text tower
# What open_clip passes to timm itself.
_SAID_BY_OPEN_CLIP = ("img_size", "num_classes", "global_pool")
_TRUNK = "visual.trunk."  # what stands before an image tower that is timm's
# Whether the text projections of classes that read no such setting have a bias.
_BIASES = {"hf_clip": False, "open_clip": False, "siglip": True}
_POOLINGS = {ours: theirs for theirs, ours in OPEN_CLIP_POOLINGS.items()}
# What the names of the image tower's arrays begin with.
_IMAGE_STARTS = {"huggingface": "", "clip": "visual.", "pe": "visual.", "big_vision": "img/"}


def save_image_text(
    both: ImageText | OpenVocabularyDetector,
    path: str | os.PathLike[str],
    layout: str = "huggingface",
    overwrite: bool = False,
) -> None:
    """Writes both towers as a checkpoint for transformers, open_clip, big_vision, Meta's or TIPS's code.

    `load_image_text` reads the files back bit for bit. Weights are stored as float32.

    Args:
        both: What `load_image_text` returns, trained or not.
        path: A folder, which gets the weights, their JSON files and the tokenizer's files; for `"big_vision"` an
            `.npz`, for `"scenic"` a file.
        layout: `"huggingface"` (transformers: CLIP, SigLIP, TIPS, OWL), `"clip"` (open_clip), `"big_vision"` (SigLIP),
            `"pe"` (Meta's Perception Encoder), `"scenic"` (an OWL), `"tips"` (the authors' PyTorch) or `"tips_scenic"`.
        overwrite: Whether to replace existing files.

    Raises:
        TypeError, ValueError, OSError: as `to_checkpoint`, for either tower.
    """
    check_type("both", both, (ImageText, OpenVocabularyDetector), "what load_image_text returns")
    if isinstance(both, OpenVocabularyDetector):
        check_choice("layout", layout, ("huggingface", "scenic"))
        check_fits_float32(both.detector, both.text_encoder)
        save_detector(both, expanded_path(path), layout, overwrite)
        return
    check_choice("layout", layout, _LAYOUTS)
    kind, path = _kind_of_names(both, layout), Path(expanded_path(path))
    names = NAMES[kind]
    check_fits_float32(both.image_encoder, both.text_encoder)
    if layout in _PAIRS:
        _check_text_tower(both, layout, kind, [], {})
        _write_pair(both, path, layout, names, overwrite)
        return
    image_start = _HUB if kind == "tips_hub" else _IMAGE_STARTS[layout]
    if layout == "clip" and both.image_encoder.config.rotary_embedding == "pe":
        image_start = _TRUNK
    images, image_layout = both.image_encoder.config, LAYOUTS["timm" if image_start == _TRUNK else layout]
    # Beside big_vision's text tower, the head of an image tower is a projection to the texts' space.
    alone = images.replace(projection=None, projection_bias=False) if layout == "big_vision" else images
    note, sidecars = note_of(alone, image_layout), image_layout.sidecars
    jsons: dict[str, Any] = {}
    if layout in ("huggingface", "clip"):
        jsons = (_huggingface if layout == "huggingface" else _open_clip)(both, sidecars(images))
    arrays = {f"{image_start}{name}": values for name, values in extract(both.image_encoder, image_layout)}
    _check_text_tower(both, layout, kind, arrays, jsons)
    arrays |= _text_arrays(both, names)
    if layout == "big_vision":
        files.write_npz(path, sorted(arrays.items()), note, overwrite)
        return
    warn_of_pictures(note, layout)
    weights = path / ("open_clip_model.safetensors" if layout == "clip" else "model.safetensors")
    copies = () if both.tokenizer is None else both.tokenizer.files
    files.write_with_sidecars(weights, sorted(arrays.items()), jsons, copies, overwrite, note)


def _kind_of_names(both: ImageText, layout: str) -> str:
    """Returns by which of `NAMES` a layout calls the arrays of a text tower."""
    config = both.text_encoder.config
    if layout == "huggingface":
        return "tips_hub" if config.pooling == "mean" else "siglip" if both.activation == "sigmoid" else "hf_clip"
    if layout == "clip":  # open_clip's CLIP, or its CustomTextCLIP for other towers
        is_plain = config.causal and config.pooling == "largest_id" and both.activation == "softmax"
        is_plain = is_plain and config.projection and not config.projection_bias
        return "open_clip" if is_plain and both.image_encoder.config.rotary_embedding != "pe" else "open_clip_custom"
    return {"pe": "open_clip", "big_vision": "flax"}.get(layout, layout)


def _check_text_tower(both: ImageText, layout: str, kind: str, others: Iterable[str], jsons: dict[str, Any]) -> None:
    """Raises ValueError unless the text tower of a file, beside `others`, is read back as it is."""
    config, images = both.text_encoder.config, both.image_encoder.config
    rows = text_layout(NAMES[kind], config.projection_bias).rows(config)
    shapes = dict.fromkeys(others, ()) | {row.name: row.shape for row in rows}
    file = {name: StoredArray(name, shape, np.dtype("float32"), _zeros) for name, shape in shapes.items()}
    beside = {key: json.loads(json.dumps(jsons[name])) for key, name in files.SIDECARS.items() if name in jsons}
    try:
        back = plan_of_text(file, files.Sidecars(**beside))[0].stored.to_dict()
    except ValueError as error:
        raise ValueError(f"The layout {layout!r} cannot store this text tower. {error} Save as .keras.") from None
    lost = {field: value for field, value in config.to_dict().items() if back[field] != value}
    # What the libraries' classes have, whatever a file holds.
    if config.projection_bias != _BIASES.get(kind, config.projection_bias):
        lost["projection_bias"] = config.projection_bias
    if layout == "pe" and both.logit_bias is not None:  # nothing lies beside Meta's file
        lost["bias"] = both.bias
    if layout == "big_vision" and images.projection and not images.projection_bias:
        lost["the image tower's projection_bias"] = False
    if lost:
        given = ", ".join(f"{field}={value!r}" for field, value in lost.items())
        raise ValueError(f"The layout {layout!r} cannot store a text tower with {given}. Save the model as .keras.")


def _zeros(first: int, size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def _text_arrays(both: ImageText, names: Names) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and arrays of the text tower, then the temperature and the bias, in the form of a layout."""
    yield from extract(both.text_encoder, text_layout(names, both.text_encoder.config.projection_bias))
    if names.is_tips:
        # The authors' files of PyTorch have one name or the other.
        name = both.temperature_name if names is NAMES["tips"] else None
        yield name or names.scale, np.asarray(_temperature(both), "float32")
        return
    shape = (1,) if names.scale == "t" or names is NAMES["siglip"] else ()
    yield names.scale, both.log_scale.numpy().astype("float32").reshape(shape)
    if both.logit_bias is not None:
        yield names.bias, both.logit_bias.numpy().astype("float32").reshape(shape)


def _temperature(both: ImageText) -> float:
    """What cosines are divided by: as the file stored it, unless it has changed."""
    stored, log_scale = both.temperature, both.log_scale.numpy()
    # A float32 has fewer logarithms than numbers.
    return stored if stored is not None and np.float32(-math.log(stored)) == log_scale else math.exp(-log_scale)


def _write_pair(both: ImageText, folder: Path, layout: str, names: Names, overwrite: bool) -> None:
    """Writes both towers of a TIPS, and the tokenizer's files, into a folder, which is made where it is missing."""
    copies = [] if both.tokenizer is None else files.from_elsewhere(both.tokenizer.files, folder)
    names_of_files = ("tips_vision.npz", "tips_text.npz", *(file.name for file in copies))
    files.check_absent(*(folder / name for name in names_of_files), overwrite=overwrite)
    arrays = sorted(_text_arrays(both, names))  # before the first file: it may be refused
    to_checkpoint(both.image_encoder, folder / "tips_vision.npz", layout, overwrite)
    files.write_npz(folder / "tips_text.npz", arrays, None, overwrite)
    files.copy_files(copies, folder)


# The classes of transformers with two towers, by `model_type`.
_CLASSES = {"clip": "CLIP", "siglip": "Siglip", "siglip2": "Siglip2", "tipsv2": "Tipsv2"}


def _huggingface(both: ImageText, sidecars: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON files of transformers for both towers, by name; `sidecars` are those of the image tower."""
    config, vision = both.text_encoder.config, dict(sidecars["config.json"])
    if config.causal:
        family = "clip"
    elif config.pooling == "mean":
        family = "tipsv2"
    else:
        family = "siglip2" if vision["model_type"] == "siglip2_vision_model" else "siglip"
    del vision["architectures"]
    text = {
        "model_type": f"{family}_text_model",
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        **written(TOWER, config),
    }
    if family == "tipsv2":
        text |= {"pad_token_id": 0, "scale_sqrt_depth": True, "pooling_epsilon": 1e-8}
    elif family == "clip":
        text["eos_token_id"] = 2 if config.end_id is None else config.end_id
    else:
        text["projection_size"] = config.projection
    return sidecars | {
        "config.json": {
            "architectures": [f"{_CLASSES[family]}Model"],
            "model_type": family,
            "dtype": "float32",
            **({"projection_dim": config.projection} if family == "clip" else {}),
            **({"temperature_init_value": _temperature(both)} if family == "tipsv2" else {}),
            "text_config": text,
            "vision_config": vision,
        }
    }


def _timms_tower(both: ImageText, sidecars: dict[str, Any]) -> dict[str, Any]:
    """Returns what open_clip_config.json says of an image tower that is timm's."""
    timm, config = sidecars["config.json"], both.image_encoder.config
    arguments = {key: value for key, value in timm["model_args"].items() if key not in _SAID_BY_OPEN_CLIP}
    vision = {
        "image_size": config.image_size[0] if len({*config.image_size}) == 1 else list(config.image_size),
        "timm_model_name": timm["architecture"],
        "timm_model_kwargs": arguments,
        "timm_pool": timm["global_pool"],
        "timm_proj": None,
    }
    model = {"embed_dim": config.projection, "vision_cfg": vision}
    return {"model_cfg": model, "preprocess_cfg": prepared_by(config, "resize_mode")}


def _open_clip(both: ImageText, sidecars: dict[str, Any]) -> dict[str, Any]:
    """Returns the `open_clip_config.json` for both towers; `sidecars` are the image tower's JSON files."""
    config = both.text_encoder.config
    metadata = dict(
        sidecars["open_clip_config.json"] if "open_clip_config.json" in sidecars else _timms_tower(both, sidecars)
    )
    model = dict(metadata["model_cfg"])
    if config.gelu not in (("quick",) if model.get("quick_gelu") else ("exact", "tanh")):
        raise ValueError(
            f"The layout 'clip' needs matching GELUs in both towers, but the text tower has {config.gelu!r} and the "
            f"image tower {both.image_encoder.config.gelu!r}. Save the model as .keras."
        )
    text: dict[str, Any] = {
        "context_length": config.context,
        "vocab_size": config.vocabulary,
        "width": config.width,
        "heads": config.heads,
        "layers": config.depth,
        "mlp_ratio": mlp_ratio(config.mlp_width, config.width),
    }
    more = {
        "no_causal_mask": not config.causal,
        "proj_bias": config.projection_bias,
        "pool_type": None if config.pooling == "largest_id" else _POOLINGS.get(config.pooling),
        "eos_id": config.end_id,
        "proj_type": None if config.projection else "none",
        "act_kwargs": {"approximate": "tanh"} if config.gelu == "tanh" else None,
        "norm_kwargs": None if config.layer_norm_epsilon == 1e-5 else {"eps": config.layer_norm_epsilon},
        # Any name says that the words are not CLIP's; that of a repository is not known here.
        "hf_tokenizer_name": "." if both.tokenizer is not None and both.tokenizer.files else None,
        "tokenizer_kwargs": _cleaning_of(both),
    }
    text |= {key: value for key, value in more.items() if value is not None and value is not False}
    if _kind_of_names(both, "clip") == "open_clip_custom":
        model["custom_text"] = True
    if both.logit_bias is not None:
        model["init_logit_bias"] = both.bias
    model |= {"text_cfg": text, "embed_dim": both.text_encoder.output_shape[-1]}
    return {"open_clip_config.json": metadata | {"model_cfg": model}}


def _cleaning_of(both: ImageText) -> dict[str, str] | None:
    """Returns what open_clip_config.json says of how texts are cleaned; None for its default, or no word for it."""
    if both.tokenizer is None:
        return None
    default = "whitespace" if both.tokenizer.files else "lower"
    names = (name for name, clean in CLEANINGS.items() if clean is both.tokenizer.clean)
    return next(({"clean": name} for name in names if name != default), None)
