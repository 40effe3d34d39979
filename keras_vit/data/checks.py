"""Nothing is trained on silently wrong data: what pixels and labels must look like, wherever they come from."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._arrays import to_numpy

OVERSHOOT = 128  # Bicubic and Lanczos resizing leave 0..255, but never by more than half of it.


@dataclasses.dataclass(frozen=True)
class BadImage:
    """One picture that is left out or changed, and why.

    Args:
        path: The file's path, or the place in the data, such as `"images[17]"`.
        reason: In words.
    """

    path: str
    reason: str


def check_pixels(images: np.ndarray, where: str, name: Callable[[int], str] | None = None) -> None:
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
    if images.dtype.kind not in "iuf" and "float" not in images.dtype.name:  # bfloat16 is of kind V.
        raise TypeError(f"{where} must hold integers or floats in 0..255, but the dtype is {images.dtype}.")
    if images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape:
        hint = ""
        if images.ndim == 4 and images.shape[1] == 3:
            hint = " The channels come first: move them with permute(0, 2, 3, 1) or numpy.moveaxis(images, 1, -1)."
        elif images.ndim == 4 and images.shape[-1] == 1:
            hint = " Repeat the grey channel: numpy.repeat(images, 3, -1)."
        elif images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 4):
            hint = " Grey images need a channel axis, repeated three times; of RGBA take images[..., :3]."
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
