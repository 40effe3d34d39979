"""What `keras.applications` has for each family: `preprocess_input` and `decode_predictions`; and sizes for NaFlex."""

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice, to_numpy, warn_caller
from keras_vit._files import weights_folder
from keras_vit._options import Positive, checked
from keras_vit.preprocessing.images import check_pixels, check_shape_and_dtype, normalized

_LEAST, _MOST, _PRECISION = 1e-6, 100.0, 1e-5  # of the scale that is searched
SUM_TOLERANCE = 0.02  # of a softmax over thousands of classes in bfloat16


def preprocess_input(images: Any, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.5) -> Any:
    """Returns normalised pixels: `(images / 255 - mean) / std`, by default in [-1, 1].

    All official checkpoints were trained with values in [-1, 1]. For other checkpoints, `model.preprocess` uses
    `model.config.pixel_mean` and `pixel_std`. The result is float32 of the same shape: a tensor for a tensor, otherwise
    an array. A warning is given if floats seem to be scaled or standardised already.

    Args:
        images: Values in 0..255 of any integer or float dtype, `(batch, height, width, 3)` or `(height, width, 3)`: an
            array, a list of equally large images, or a tensor of any backend (also in `tf.data` maps, or symbolic).
        mean: Mean to subtract from pixels of 0..1: a number, or one for each channel.
        std: Standard deviation to divide by, likewise.

    Raises:
        TypeError, ValueError: if images have another shape or values that are not pixels, or `mean` or `std` is
            invalid.

    Examples:
        >>> keras_vit.preprocess_input(np.array([[[0, 255, 51]]], "uint8"))
        array([[[-1. ,  1. , -0.6]]], dtype=float32)
    """
    for name, value in (("mean", mean), ("std", std)):
        if np.shape(value) not in ((), (1,), (3,)):
            raise ValueError(f"{name} must be one number or three, one for each channel, but {value!r} was given.")
        if not np.isfinite(np.asarray(value, "float64")).all():
            raise ValueError(f"{name} must be finite, but {value!r} was given.")
    if np.min(std) <= 0:
        raise ValueError(f"std must be above 0, but {std!r} was given.")
    if hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray):
        check_shape_and_dtype(images)
        return normalized(_to_float32(images), mean, std)
    return normalized(check_pixels(images), mean, std)


def _to_float32(tensor: Any) -> Any:
    """Returns a tensor of TensorFlow, Keras, torch or JAX in float32, without importing a framework."""
    framework = type(tensor).__module__.partition(".")[0]
    if framework in ("tensorflow", "keras"):
        module = sys.modules[framework]  # imported by whoever made the tensor
        return (module if framework == "tensorflow" else module.ops).cast(tensor, "float32")
    return tensor.float() if hasattr(tensor, "detach") else tensor.astype("float32")  # torch, or JAX


@checked
def decode_predictions(
    probabilities: Any,
    top: Positive = 5,
    class_names: Sequence[str] | Sequence[tuple[str, str]] | None = None,
    threshold: float | Sequence[float] | None = None,
) -> list[list[tuple[str, str, float]]]:
    """Returns the names of the best classes of each image, as `keras.applications` does.

    Each image has a list of tuples `(id, name, score)`, best first. Without `class_names`, 1,000 and 21,843 classes get
    ids and names of ImageNet-1k and ImageNet-21k, others `"class_123"`.

    Args:
        probabilities: `(batch, classes)`, an array or a tensor of any backend. Logits can be ranked, with a warning.
        top: Number of classes to return for each image.
        class_names: One name, or one `(id, name)` pair, for each class in order.
        threshold: For images with several labels: smallest score of a class, one number or one for each class.

    Raises:
        TypeError, ValueError: if scores are not `(batch, classes)` or not finite, or another argument does not fit.

    Examples:
        >>> keras_vit.decode_predictions([[0.25, 0.75]], top=1, class_names=["cat", "dog"])
        [[('class_1', 'dog', 0.75)]]
    """
    scores = to_numpy(probabilities).astype("float32")
    if scores.ndim != 2:
        hint = " Add the batch dimension: probabilities[None]." if scores.ndim == 1 else ""
        raise ValueError(f"probabilities must be (batch, classes), but {scores.shape} was given.{hint}")
    if not np.isfinite(scores).all():
        raise ValueError("probabilities must be finite, but some are NaN or infinite.")
    classes = scores.shape[1]
    if top > classes:
        raise ValueError(f"top must lie between 1 and the number of classes, {classes}, but {top} was given.")
    names = _pairs(classes, class_names)
    sums = scores.sum(axis=1)
    if threshold is None and np.any(np.abs(sums - 1) > SUM_TOLERANCE):
        warn_caller(
            f"The rows of probabilities do not sum to 1, but to {sums.min():.4g} up to {sums.max():.4g}. For logits "
            'pass keras.ops.softmax(logits), or load the model with classifier_activation="softmax".'
        )
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top].tolist()
    least = np.broadcast_to(-np.inf if threshold is None else np.asarray(threshold, "float32"), (classes,))
    return [
        [(*names[i], float(row[i])) for i in order if row[i] >= least[i]]
        for row, order in zip(scores, best, strict=True)
    ]


def imagenet1k_classes() -> tuple[tuple[str, str], ...]:
    """The 1,000 classes of ImageNet-1k in the order of outputs: pairs of WordNet id and first name."""
    return _classes("imagenet1k_classes.tsv")


def imagenet21k_classes() -> tuple[tuple[str, str], ...]:
    """The 21,843 classes of ImageNet-21k in the order of outputs: pairs of WordNet id and first name."""
    return _classes("imagenet21k_classes.tsv")


@functools.cache
def _classes(file: str) -> tuple[tuple[str, str], ...]:
    """The pairs `(id, name)` of a file of the package, which is read once; OSError if it cannot be."""
    text = (weights_folder() / file).read_text(encoding="utf-8")
    return tuple((wnid, name) for wnid, name in (line.split("\t") for line in text.splitlines()))


def _pairs(classes: int, names: Any) -> Sequence[tuple[str, str]]:
    """One `(id, name)` pair for each class: those of `names`; without, ImageNet's for 1,000 or 21,843 classes."""
    if names is None and classes in (1000, 21843):
        return imagenet1k_classes() if classes == 1000 else imagenet21k_classes()
    if names is None:
        names = [f"class_{i}" for i in range(classes)]
    if isinstance(names, (str, dict)) or not hasattr(names, "__getitem__"):
        raise TypeError(f"class_names must be a list in the order of the classes, but {names!r:.80} was given.")
    if len(names) != classes:
        raise ValueError(f"class_names must name each of the {classes} classes, but it names {len(names)}.")
    pairs = [(f"class_{i}", name) if isinstance(name, str) else name for i, name in enumerate(names)]
    for entry in pairs:
        is_pair = isinstance(entry, (tuple, list)) and len(entry) == 2
        if not is_pair or not all(isinstance(part, str) for part in entry):
            raise TypeError(f"class_names must hold names or (id, name) pairs, but {entry!r} is among them.")
    return pairs


def sample_image(name: str = "character.png") -> str:
    """Returns the path of a picture that is installed with the package, for `model.preprocess` and `load_image`.

    `name` is `"character.png"`, a printed R, or `"digit.png"`, a handwritten 5; ValueError for another. The small model
    `glyphs` reads both.

    Examples:
        >>> images = model.preprocess(keras_vit.sample_image("character.png"))
        >>> model.config.class_names[model.predict(images, verbose=0).argmax()]
        'R'
    """
    folder = weights_folder() / "samples"
    check_choice("name", name, tuple(sorted(path.name for path in folder.iterdir())))
    return str(folder / name)


LABEL_SETS = ("ade20k", "cityscapes", "coco", "voc2012")


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """The classes of a data set, in the order of the outputs of models.

    Attributes:
        names: Names of the classes.
        colours: `(red, green, blue)` of each, 0..255, as its publishers draw it.
        stuff: Indices of the classes of stuff, such as sky: each of them has at most one segment in panoptic maps.

    Examples:
        >>> len(segmentation.label_set("ade20k").stuff)
        50
    """

    names: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]
    stuff: tuple[int, ...]


@functools.cache
def label_set(name: str) -> LabelSet:
    """Returns the classes of a data set as a `LabelSet` (sources in `weights/README.md`); ValueError for another name.

    `name` is `"ade20k"` (150 classes), `"coco"` (133: 80 things, then 53 kinds of stuff), `"cityscapes"` (19) or
    `"voc2012"` (21 with the background).

    Examples:
        >>> segmentation.label_set("cityscapes").names[:2]
        ('road', 'sidewalk')
    """
    check_choice("name", name, LABEL_SETS)
    found = json.loads((weights_folder() / "label_sets.json").read_text(encoding="utf-8"))[name]
    colours = tuple((code >> 16, code >> 8 & 255, code & 255) for code in (int(text, 16) for text in found["colours"]))
    return LabelSet(tuple(found["names"]), colours, tuple(found["stuff"]))


@checked
def naflex_size(height: Positive, width: Positive, patch: Positive = 16, patches: Positive = 256) -> tuple[int, int]:
    """Returns the height and width, in pixels, to which SigLIP 2 NaFlex resizes a picture of `height` and `width`.

    Both are multiples of `patch`, the side of a patch, for a grid of at most `patches` patches; small pictures are
    enlarged. The scale is searched by bisection, as in transformers (`image_processing_siglip2.py`) and big_vision
    (`ops_naflex.py`). Load a model for that size with `keras_vit.load(path, image_size=naflex_size(height, width))`.
    ValueError if an argument is not a positive integer, or the picture is too long and narrow.

    Examples:
        >>> keras_vit.preprocessing.naflex_size(480, 640)
        (224, 288)
    """

    def size(scale: float) -> tuple[int, int]:
        sides = (max(patch, math.ceil(side * scale / patch) * patch) for side in (height, width))
        return next(sides), next(sides)

    low, high = _LEAST, _MOST
    while high - low >= _PRECISION:
        scale = (low + high) / 2
        rows, columns = (side // patch for side in size(scale))
        low, high = (scale, high) if rows * columns <= patches else (low, scale)
    rows, columns = (side // patch for side in size(low))
    if rows * columns > patches:
        raise ValueError(f"A picture of {height} x {width} pixels is too long for {patches} patches. Crop it.")
    return rows * patch, columns * patch
