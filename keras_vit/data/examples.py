"""Labelled images with random access: their labels and class names, how they are read, which of them a stream has."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from keras_vit._arguments import check_choice, listing, to_numpy, whole_number
from keras_vit.data.augmentation import HOLDOUT
from keras_vit.preprocessing import imagenet1k_classes

TARGETS = ("class", "multilabel", "number")  # what labels are: one of n classes, any of them, or a quantity


class EndOfData(IndexError):
    """Test data has no such batch. Not an `IndexError`: one that a pipeline raises by mistake is no end of data."""


@dataclasses.dataclass(frozen=True)
class BadImage:
    """One image that is left out or changed, and why.

    Args:
        path: The file's path, or the place in the data, such as `"images[17]"`.
        reason: In words.

    Examples:
        >>> data.BadImage("photos/train/cat/7.jpg", "it is cut short").path
        'photos/train/cat/7.jpg'
    """

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data set with random access."""

    labels: np.ndarray  # int64 (examples,), or float32: shares or 0 and 1 (examples, classes), numbers (examples, 1)
    classes: int  # 1 for regression
    read: Callable[[int], np.ndarray]  # the pixels (height, width, 3) in 0..255, at the size of the image
    name: Callable[[int], str]  # what the image is called in messages
    kind: str  # "folder", "arrays", "tfds:NAME"
    fingerprint: str  # differs where the images or their labels do, as far as that is cheap to tell
    class_names: list[str] | None = None
    files: Sequence[Path] | None = None  # of the images, if each is one, for worker processes to read
    bad: list[BadImage] = dataclasses.field(default_factory=list)
    converted: list[BadImage] = dataclasses.field(default_factory=list)
    target: str = "class"  # of TARGETS, or "mask": `read` returns a picture and its mask
    ignore: int = 255  # the number in masks that stands for no class


def fingerprint(*parts: Any) -> str:
    """A short hash of arrays, numbers and texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:16]


# Labels and names of classes


def check_labels(
    labels: Any, classes: int | None, where: str, name: Callable[[int], str] | None = None, target: str = "class"
) -> tuple[np.ndarray, int]:
    """Labels as int64 `(n,)` or float32 `(n, classes)`, and the number of classes: the one check of labels.

    Raises TypeError unless they are numbers, ValueError if their shape or a value does not fit the target or the
    classes.

    Args:
        labels: Whole numbers `(n,)` or `(n, 1)`, or one row of shares in 0..1 for each image `(n, classes)`; only 0 and
            1 for `"multilabel"`; any finite numbers `(n,)` or `(n, 1)` for `"number"`, which become float32 `(n, 1)`.
        classes: How many there are; `None` for one more than the largest label, or as many as the rows are long.
        where: What it is, for the message.
        name: From an index to the name of an image.
        target: What they are, of `TARGETS`.
    """
    name = name or (lambda i: f"image {i} of {where}")
    labels = to_numpy(labels)
    if labels.dtype.kind not in "iufb" and "float" not in labels.dtype.name:
        raise TypeError(f"The labels of {where} must be numbers, but their dtype is {labels.dtype}. Number the names.")
    if labels.ndim == 2 and labels.shape[1] == 1 and target != "multilabel":
        labels = labels[:, 0]
    if labels.ndim == 1 and target == "number":
        finite = np.isfinite(labels.astype("float64"))
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(f"{name(i)} has the label {float(labels[i])}, but labels must be finite numbers.")
        return labels.astype("float32")[:, None], 1
    if labels.ndim == 1 and target == "class":
        return _check_class_numbers(labels.astype("float64"), classes, name)
    if labels.ndim != 2 or target == "number":
        wanted = {"number": "(n,) or (n, 1)", "multilabel": "(n, classes) with 0 and 1"}.get(target, "")
        wanted = wanted or "(n,) with numbers of classes, or (n, classes) with shares"
        shape = f"must have shape {wanted} for target={target!r}"
        raise ValueError(f"The labels of {where} {shape}, but {labels.shape} was given.")
    if classes is not None and labels.shape[1] != classes:
        raise ValueError(f"The labels of {where} are rows of {labels.shape[1]}, but there are {classes} classes.")
    values = labels.astype("float64")
    if target == "class":
        fits, forbidden = (values >= 0) & (values <= 1), "outside 0..1"
    else:
        fits, forbidden = (values == 0) | (values == 1), "other than 0 and 1"
    if not fits.all():
        i = int(np.argmin(fits.all(axis=1)))
        raise ValueError(f"{name(i)} has a row of labels with values {forbidden}: {labels[i].tolist()[:10]}.")
    return labels.astype("float32"), labels.shape[1]


def _check_class_numbers(values: np.ndarray, classes: int | None, name: Callable[[int], str]) -> tuple[np.ndarray, int]:
    """Numbers of classes as int64, and how many classes there are: `classes`, or one more than the largest number.

    Raises ValueError for a number that is not whole, is negative, or not below `classes`.
    """
    wrong = ~(np.isfinite(values) & (values == np.floor(values)) & (values >= 0))
    if classes is not None:
        wrong |= values >= classes
    if wrong.any():
        i = int(np.argmax(wrong))
        allowed = "0 on" if classes is None else f"0 to {classes - 1}, for {classes} classes"
        raise ValueError(f"{name(i)} has the label {values[i]:g}, but labels must be whole numbers from {allowed}.")
    return values.astype("int64"), classes or int(values.max(initial=0)) + 1


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels as float32 rows `(n, classes)`: 1 in the column of each class; rows and masks as they are."""
    if labels.ndim >= 2:
        return labels
    rows = np.zeros((len(labels), classes), dtype="float32")
    rows[np.arange(len(labels)), labels] = 1
    return rows


def count_steps(examples: int, batch_size: int, training: bool) -> int:
    """Full batches in training data, at least 1; all batches of test data."""
    if training:
        return max(1, examples // batch_size)
    return math.ceil(examples / batch_size)


def match_labels(data_names: Sequence[str], model_names: Sequence[str], where: str = "The data") -> np.ndarray:
    """Which output of a model each class of the data is, by name.

    The data may have fewer classes than the model, in any order. Where the model's classes are those of ImageNet-1k,
    the folders may also be called by WordNet's ids, such as `n01440764`.

    Args:
        data_names: In the order of the labels.
        model_names: In the order of the outputs.
        where: What has these classes, for the message.

    Returns:
        int64 `(len(data_names),)`: numbers of the model's outputs.

    Raises:
        ValueError: if the data has names that the model does not have, or that stand for several of its outputs.

    Examples:
        >>> data.match_labels(["dog", "cat"], ["bird", "cat", "dog"])
        array([2, 1])
    """
    if tuple(model_names) == tuple(name for _, name in imagenet1k_classes()):
        ids = [wnid for wnid, _ in imagenet1k_classes()]
        model_names = ids if set(data_names) <= set(ids) else model_names
    counts = collections.Counter(model_names)
    foreign = [name for name in data_names if name not in counts]
    if foreign:
        known = f"Its {len(model_names)} classes are {listing(model_names)}"
        hint = "Fine-tune it on these classes, or rename those that only have another name."
        raise ValueError(f"{where} has classes that the model does not know: {listing(foreign)}. {known}. {hint}")
    ambiguous = [name for name in data_names if counts[name] > 1]
    if ambiguous:
        raise ValueError(f"{where} has {listing(ambiguous)}, which several outputs of the model are called.")
    outputs = {name: output for output, name in enumerate(model_names)}
    return np.array([outputs[name] for name in data_names], "int64")


# How they are read


class ReadingOptions(TypedDict, total=False):
    """The fields of `Reading`, for signatures."""

    on_bad_image: str
    check: str
    workers: int | None
    processes: bool | None
    prefetch: int
    channels: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """How images are read; ValueError or TypeError if an option is out of its range."""

    on_bad_image: str = "stop"
    check: str = "headers"
    workers: int | None = None
    processes: bool | None = None
    prefetch: int = 1
    channels: int = 3

    def __post_init__(self) -> None:
        check_choice("on_bad_image", self.on_bad_image, ("stop", "skip"))
        check_choice("check", self.check, ("headers", "decode", "none"))
        whole_number("prefetch", self.prefetch, 0)
        whole_number("channels", self.channels, 1)

    @property
    def skip(self) -> bool:
        """Whether images that cannot be read are left out."""
        return self.on_bad_image == "skip"

    @property
    def looks(self) -> bool:
        """Whether files are looked at before they are read; those of other channels than three are not."""
        return self.check != "none" and self.channels == 3


# Which of them a stream has, and how often


Draw = Callable[[np.random.Generator], np.ndarray]


def hold_out(examples: Examples, share: float, seed: int, split: str) -> Examples:
    """The examples without a share of them (`split="train"`), or only that share (others), which the seed decides.

    Stratified: each class has its share to within one image, and keeps one to train on; of several labels the rarest
    one counts, and numbers are held out from small to large. Raises ValueError if the share is no image, or too many.
    """
    groups, generator = _groups(examples), np.random.default_rng([seed, HOLDOUT])
    order = np.lexsort((generator.random(len(groups)), groups))
    if examples.target != "number":
        order = order[1:][groups[order][1:] == groups[order][:-1]]  # without one of each class
    count = round(share * len(groups))
    if not 1 <= count <= len(order):
        raise ValueError(f"holdout={share} of {len(groups)} images cannot be held out: give another share.")
    held = np.array([generator.choice(part) for part in np.array_split(order, count)])
    keep = np.sort(held) if split != "train" else np.setdiff1d(np.arange(len(groups)), held)
    return dataclasses.replace(
        examples,
        labels=examples.labels[keep],
        read=lambda i: examples.read(keep[i]),
        name=lambda i: examples.name(keep[i]),
        files=None if examples.files is None else [examples.files[i] for i in keep],
        fingerprint=fingerprint(examples.fingerprint, share, seed, split),
    )


def shuffled(examples: Examples) -> Draw:
    """A function from a generator to the examples of an epoch: each once."""
    return lambda generator: generator.permutation(len(examples.labels))


def sampled(examples: Examples, sampling: str) -> Draw:
    """A function from a generator to the examples of an epoch: as many as there are, some of them several times.

    A class has as many as any other (`"balanced"`), or as the root of its size says (`"sqrt"`), to within one; an image
    with several labels is drawn as its rarest one is (as in LVIS's repeat factor sampling, arXiv 1908.03195). Raises
    ValueError for regression, which has no classes.
    """
    if examples.target == "number":
        raise ValueError(f"sampling={sampling!r} is for classes, but the labels are numbers.")
    groups = _groups(examples)
    counts = np.bincount(groups)
    if examples.target == "multilabel":
        counts = np.append(examples.labels.sum(axis=0), np.sum(groups == examples.classes))
    weights = counts[groups] ** (-1.0 if sampling == "balanced" else -0.5)

    def draw(generator: np.random.Generator) -> np.ndarray:
        order = np.lexsort((generator.random(len(groups)), groups))
        ends = np.cumsum(weights[order])
        places = (generator.random() + np.arange(len(groups))) * (ends[-1] / len(groups))
        return generator.permutation(order[np.minimum(np.searchsorted(ends, places, "right"), len(groups) - 1)])

    return draw


def _groups(examples: Examples) -> np.ndarray:
    """The group of each example: its class, its rarest label (`classes` for none), or for regression its label."""
    labels = examples.labels
    if labels.ndim == 1:
        return labels
    if examples.target != "multilabel":
        return labels[:, 0] if examples.target == "number" else labels.argmax(axis=1)
    rarest = np.where(labels > 0, labels.sum(axis=0), np.inf).argmin(axis=1)
    return np.where(labels.any(axis=1), rarest, examples.classes)
