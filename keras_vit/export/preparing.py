"""The model and the images as an export needs them."""

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.export.signature import Signature
from keras_vit.models import BiT, VisionTransformer, weights_by_path
from keras_vit.preprocessing import resize_images

# What an exported file does not need: it does not train.
TRAINING = {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0, "remat": False}
BUILT_IN = 8  # images: a batch of 1 and one of 7
FEWEST_IMAGES = 8  # for calibration: fewer say next to nothing about the range of values


def check_model(model: Any) -> None:
    """Refuses what cannot be exported.

    Raises:
        TypeError: if it is no model of this package.
        ValueError: if it is quantized, or weights are NaN or infinite.
    """
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(
            f"model must be a keras_vit.VisionTransformer or a keras_vit.BiT, but a {type(model).__name__} was given. "
            "Other Keras models, feature extractors among them, have an export method of their own: "
            "model.export(path, format=...)."
        )
    if any(layer.quantization_mode is not None for layer in model._flatten_layers()):
        raise ValueError(
            "model is quantized, which no format can express. Export it before model.quantize(), with "
            "precision='dynamic_int8' for a file with int8 weights."
        )
    bad = [
        name
        for name, weight in weights_by_path(model).items()
        if not np.all(np.isfinite(keras.ops.convert_to_numpy(weight).astype("float32")))
    ]
    if bad:
        others = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise ValueError(
            f"model has weights that are NaN or infinite, so its answers mean nothing: {', '.join(bad[:5])}{others}. "
            "Go back to a checkpoint from before they became so; a lower learning rate may keep them finite."
        )


def plain_model(model: Any) -> Any:
    """The model itself where it computes in float32 and has no adapters; otherwise one that gives its answers so."""
    if any(getattr(layer, "lora_enabled", False) for layer in model._flatten_layers()):
        # Saving merges the adapters into the weights.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "merged.keras"
            model.save(path)
            model = keras.saving.load_model(path, compile=False)
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    return model.with_config(dtype="float32")


def served_model(model: Any, *, uint8: bool, softmax: bool) -> Any:
    """The model that a file holds: with what belongs into the graph, without what only training needs.

    Args:
        model: A model that computes in float32.
        uint8: Whether the file takes uint8; the model then scales pixels of 0..255 itself.
        softmax: Whether the file answers with probabilities.

    Raises:
        ValueError: if there are no logits to take the softmax of.
    """
    config = model.config
    changes = {name: value for name, value in TRAINING.items() if hasattr(config, name)}
    if uint8:
        changes["include_preprocessing"] = True
    if softmax:
        if not config.classes or config.classifier_activation not in (None, "linear", "softmax"):
            has = f"the activation {config.classifier_activation!r}" if config.classes else "no head"
            raise ValueError(f"softmax=True needs a model that answers with logits, but {model.name} has {has}.")
        changes["classifier_activation"] = "softmax"
    if changes and config.replace(**changes) != config:
        model = model.with_config(dtype="float32", **changes)
    has_resnet = isinstance(model, BiT) or config.stem_stages is not None
    return model.folded() if has_resnet else model


def built_in_images(signature: Signature, size: tuple[int, int]) -> np.ndarray:
    """Pictures to compare answers on, the same every time: half of them smooth, half of them noise.

    Args:
        signature: What the file takes.
        size: Height and width.

    Returns:
        uint8 `(8, height, width, channels)`.
    """
    rng = np.random.default_rng(0)
    channels = signature.shape[3]
    smooth = resize_images(rng.uniform(0, 256, (BUILT_IN // 2, 4, 4, channels)), size)
    noise = rng.uniform(0, 256, (BUILT_IN // 2, *size, channels))
    images = np.empty((BUILT_IN, *size, channels), "uint8")
    images[0::2], images[1::2] = smooth, noise  # the first one, which is run alone, is smooth
    return images


def another_size(model: Any) -> tuple[int, int]:
    """A size that a model for any size has not been made for."""
    config = model.config
    if isinstance(model, BiT):
        return (config.image_size[0] + 32, config.image_size[1] + 64)
    rows, columns = config.grid_size
    return config.image_size_of((rows + 1, columns + 2))


def check_images(name: str, images: Any, model: Any, signature: Signature) -> np.ndarray:
    """Images of the user's as an array of uint8 or float32.

    Args:
        name: What the argument is called.
        images: uint8 pixels, or floats as the model takes them; `(n, height, width, channels)`.
        model: The model whose answers are compared.
        signature: What the file takes.

    Raises:
        TypeError, ValueError: if they do not fit; the message says what was expected.
    """
    images = np.asarray(images)
    size = "(n, height, width, channels)" if signature.any_size else f"(n, {', '.join(map(str, signature.shape[1:]))})"
    wanted = f"{name} must be uint8 or float32 {size}"
    if images.dtype.kind not in "uif":
        raise TypeError(f"{wanted}, but their dtype is {images.dtype}.")
    fits = images.ndim == 4 and all(w in (None, n) for w, n in zip(signature.shape[1:], images.shape[1:], strict=True))
    if not fits or not len(images):
        raise ValueError(f"{wanted}, but the shape {images.shape} was given. model.preprocess(images) resizes them.")
    if images.dtype.kind == "f":
        if signature.dtype == "uint8":
            raise ValueError(f"{name} must be uint8 pixels for a file that takes such, but {images.dtype} was given.")
        if not np.isfinite(images).all():
            raise ValueError(f"{name} must be finite, but some of the values are NaN or infinite.")
        return images.astype("float32")
    if images.min() < 0 or images.max() > 255:
        raise ValueError(f"{name} must be in 0..255, but reach from {images.min()} to {images.max()}.")
    return images.astype("uint8")


def check_calibration(images: Any, model: Any, signature: Signature) -> np.ndarray:
    """Calibration images as an array of what the file takes: their range decides how finely int8 can tell values apart.

    Args:
        images: As in `check_images`, at least `FEWEST_IMAGES`.
        model: The model that is exported.
        signature: What the file takes.

    Raises:
        TypeError, ValueError: if they do not fit, are too few, or floats outside the range that the model takes.
    """
    images = check_images("calibration", images, model, signature)
    if len(images) < FEWEST_IMAGES:
        raise ValueError(
            f"calibration must be at least {FEWEST_IMAGES} images, better 100 to 300 like those of later; "
            f"given: {len(images)}."
        )
    low, high = signature.value_range
    margin = 1e-3 * (high - low)  # for rounding, and for filters that overshoot a little
    if images.dtype.kind == "f" and not low - margin <= images.min() <= images.max() <= high + margin:
        raise ValueError(
            f"calibration must be in {low}..{high} as the model takes it, but reaches from {images.min():g} to "
            f"{images.max():g}. Pixels of 0..255 have to be uint8, or go through model.preprocess(images)."
        )
    return as_taken(images, signature.dtype, signature.value_range)


def as_taken(images: np.ndarray, dtype: str, value_range: tuple[int, int]) -> np.ndarray:
    """Images of uint8 or float32 as a file or a model takes them.

    Args:
        images: uint8 pixels, or float32 in the range already.
        dtype: `"uint8"` or `"float32"`.
        value_range: What 0 and 255 become, `(-1, 1)` or `(0, 255)`.
    """
    if images.dtype != "uint8" or dtype == "uint8":
        return images
    pixels = images.astype("float32")
    return pixels if value_range == (0, 255) else (pixels - 127.5) / 127.5
