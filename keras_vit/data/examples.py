"""Labelled images with random access, their labels and class names."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import listing, to_numpy
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
    values = labels.astype("float64")
    if labels.ndim == 1 and target == "number":
        if not np.isfinite(values).all():
            i = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"{name(i)} has the label {values[i]}, but labels must be finite numbers.")
        return labels.astype("float32")[:, None], 1
    if labels.ndim == 1 and target == "class":
        wrong = ~(np.isfinite(values) & (values == np.floor(values)) & (values >= 0))
        if classes is not None:
            wrong |= values >= classes
        if wrong.any():
            i = int(np.argmax(wrong))
            allowed = "0 on" if classes is None else f"0 to {classes - 1}, for {classes} classes"
            raise ValueError(f"{name(i)} has the label {values[i]:g}, but labels must be whole numbers from {allowed}.")
        return values.astype("int64"), classes or int(values.max(initial=0)) + 1
    if labels.ndim != 2 or target == "number":
        wanted = {"number": "(n,) or (n, 1)", "multilabel": "(n, classes) with 0 and 1"}.get(target, "")
        wanted = wanted or "(n,) with numbers of classes, or (n, classes) with shares"
        shape = f"must have shape {wanted} for target={target!r}"
        raise ValueError(f"The labels of {where} {shape}, but {labels.shape} was given.")
    if classes is not None and labels.shape[1] != classes:
        raise ValueError(f"The labels of {where} are rows of {labels.shape[1]}, but there are {classes} classes.")
    fits = (values >= 0) & (values <= 1) if target == "class" else (values == 0) | (values == 1)
    if not fits.all():
        i, allowed = int(np.argmin(fits.all(axis=1))), "outside 0..1" if target == "class" else "other than 0 and 1"
        raise ValueError(f"{name(i)} has a row of labels with values {allowed}: {labels[i].tolist()[:10]}.")
    return labels.astype("float32"), labels.shape[1]


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels as float32 rows `(n, classes)`: 1 in the column of each class; rows and masks as they are."""
    if labels.ndim >= 2:
        return labels
    rows = np.zeros((len(labels), classes), dtype="float32")
    rows[np.arange(len(labels)), labels] = 1
    return rows


def count_steps(examples: int, batch_size: int, training: bool) -> int:
    """Full batches in training data, at least 1; all batches of test data."""
    full, rest = divmod(examples, batch_size)
    return max(1, full) if training else full + bool(rest)


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
