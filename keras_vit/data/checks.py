"""Nothing is trained on silently wrong data: what pixels, labels and names of classes must look like."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit._text import printable
from keras_vit.preprocessing import OVERSHOOT, channel_hint, check_dtype, imagenet1k_classes

SHOWN = 5  # names in a message


@dataclasses.dataclass(frozen=True)
class BadImage:
    """One picture that is left out or changed, and why.

    Args:
        path: The file's path, or the place in the data, such as `"images[17]"`.
        reason: In words.

    Examples:
        >>> data.BadImage("photos/train/cat/7.jpg", "it is cut short").path
        'photos/train/cat/7.jpg'
    """

    path: str
    reason: str


def check_images(images: np.ndarray, where: str, name: Callable[[int], str] | None = None) -> None:
    """Refuse images that are no RGB pixels in 0..255.

    Args:
        images: `(batch, height, width, channels)`, of one pipeline's batch or a whole data set: the more there is to
            look at, the surer it is that values up to 1 mean a wrong scale and not a dark picture.
        where: What it is, for the message.
        name: From an index to the name of an image.

    Raises:
        ValueError: if they are not, naming the first image that is wrong.
        TypeError: if they hold no real numbers.
    """
    name = name or (lambda i: f"image {i} of {where}")
    check_dtype(images.dtype, where)
    if images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape:
        hint = channel_hint(images.shape) if images.ndim == 4 else ""
        if images.ndim == 3:
            hint = " Grey images need a channel axis, repeated three times."
        raise ValueError(f"{where} must have shape (batch, height, width, 3), but {images.shape} was given.{hint}")
    if images.dtype == np.uint8 and images.max() > 1:
        return
    least, most = (pick(axis=(1, 2, 3)).astype("float64") for pick in (images.min, images.max))
    wrong = ~np.isfinite(least + most)
    if wrong.any():
        raise ValueError(f"{name(int(np.argmax(wrong)))} holds NaN or infinite values.")
    lowest, highest = least.min(), most.max()
    reach = f"but the values of {where} reach from {lowest:.4g} to {highest:.4g}"
    if highest <= 1 and (lowest, highest) != (0, 0):
        scale = "(images + 1) * 127.5" if lowest < 0 else "images * 255"
        raise ValueError(f"Pixels must lie in 0..255, {reach}: they seem to be scaled already. Give {scale}.")
    if lowest < 0 and highest < 16:
        raise ValueError(f"Pixels must lie in 0..255, {reach}: they seem to be standardised. Leave that out.")
    margin = OVERSHOOT if images.dtype.kind not in "iu" else 0
    wrong = (least < -margin) | (most > 255 + margin)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(f"Pixels must lie in 0..255, but those of {name(i)} reach {least[i]:.6g} to {most[i]:.6g}.")


def check_labels(
    labels: Any, classes: int | None, where: str, name: Callable[[int], str] | None = None
) -> tuple[np.ndarray, int]:
    """Look at every label.

    Args:
        labels: Whole numbers `(n,)` or `(n, 1)`, or one row of shares in 0..1 for each image `(n, classes)`.
        classes: How many there are; `None` for one more than the largest label, or as many as the rows are long.
        where: What it is, for the message.
        name: From an index to the name of an image.

    Returns:
        int64 `(n,)` or float32 `(n, classes)`, and the number of classes.

    Raises:
        ValueError: if a label is out of range or none at all, naming the first.
        TypeError: if they are not numbers.
    """
    name = name or (lambda i: f"image {i} of {where}")
    labels = to_numpy(labels)
    if labels.dtype.kind not in "iufb" and "float" not in labels.dtype.name:
        raise TypeError(f"The labels of {where} must be numbers, but their dtype is {labels.dtype}. Number the names.")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2):
        wanted = "(n,) with numbers of classes, or (n, classes) with shares"
        raise ValueError(f"The labels of {where} must have shape {wanted}, but {labels.shape} was given.")
    values = labels.astype("float64")
    if labels.ndim == 1:
        wrong = ~(np.isfinite(values) & (values == np.floor(values)) & (values >= 0))
        if classes is not None:
            wrong |= values >= classes
        if wrong.any():
            i = int(np.argmax(wrong))
            allowed = "0 on" if classes is None else f"0 to {classes - 1}, for {classes} classes"
            raise ValueError(f"{name(i)} has the label {values[i]:g}, but labels must be whole numbers from {allowed}.")
        return values.astype("int64"), classes or int(values.max(initial=0)) + 1
    if classes is not None and labels.shape[1] != classes:
        raise ValueError(f"The labels of {where} are rows of {labels.shape[1]}, but there are {classes} classes.")
    wrong = ~((values >= 0) & (values <= 1)).all(axis=1)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(f"{name(i)} has a row of labels with values outside 0..1: {labels[i].tolist()[:10]}.")
    return labels.astype("float32"), labels.shape[1]


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """What `check_labels` returns, as float32 rows `(n, classes)`."""
    if labels.ndim == 2:
        return labels
    rows = np.zeros((len(labels), classes), dtype="float32")
    rows[np.arange(len(labels)), labels] = 1
    return rows


def check_class_name(name: str, where: str) -> None:
    """Refuse a name that cannot be written on a line of its own.

    Args:
        name: Of a folder, or one that was given.
        where: What the name belongs to, for the message.

    Raises:
        ValueError: if it is empty, has line breaks or space around it, or is not valid UTF-8.
    """
    if not name.strip():
        fault = "it is empty"
    elif len(name.splitlines()) > 1 or name != name.strip():
        fault = "it has line breaks, or space around it"
    elif any("\ud800" <= character <= "\udfff" for character in name):
        fault = "it is not valid UTF-8"
    else:
        return
    raise ValueError(f"{printable(where)} cannot be the name of a class: {fault}. Rename it.")


def match_labels(data_names: Sequence[str], model_names: Sequence[str], where: str = "The data") -> np.ndarray:
    """Which output of a model each class of the data is, by name.

    The data may have fewer classes than the model, in any order. Where the model's classes are those of ImageNet-1k,
    the folders may also be called by WordNet's ids, such as `n01440764`.

    Args:
        data_names: In the order of the labels.
        model_names: In the order of the outputs.
        where: What has these classes, for the message.

    Returns:
        int64 `(len(data_names),)`: the output of each label.

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
        raise ValueError(
            f"{where} has classes that the model does not know: {_listed(foreign)}. Its {len(model_names)} classes are "
            f"{_listed(model_names)}. Fine-tune it on these classes, or rename those that only have another name."
        )
    ambiguous = [name for name in data_names if counts[name] > 1]
    if ambiguous:
        raise ValueError(f"{where} has {_listed(ambiguous)}, which several outputs of the model are called.")
    outputs = {name: output for output, name in enumerate(model_names)}
    return np.array([outputs[name] for name in data_names], "int64")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(printable(name, 40)) for name in names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
