"""Labelled images with random access, and what labels and names of classes must look like."""

import collections
import dataclasses
import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import listing, printable, to_numpy
from keras_vit.preprocessing import check_pixels, imagenet1k_classes, load_image


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


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data set with random access.

    Args:
        labels: int64 `(examples,)`, or float32 shares `(examples, classes)`.
        classes: How many there are.
        read: From an index to the pixels `(height, width, 3)` in 0..255, at the picture's own size; raises a
            `ValueError` where it cannot be read.
        name: From an index to what the picture is called in messages.
        kind: What it came from: `"folder"`, `"arrays"`, `"tfds:NAME"`.
        fingerprint: A hash that differs where the pictures or their labels do, as far as that is cheap to tell.
        class_names: In the order of the labels, or `None` if they have no names.
        files: The files of the pictures, if each is one, for worker processes to read.
        bad: What was left out.
        converted: What was not RGB with 8 bits, and is made so.
    """

    labels: np.ndarray
    classes: int
    read: Callable[[int], np.ndarray]
    name: Callable[[int], str]
    kind: str
    fingerprint: str
    class_names: list[str] | None = None
    files: Sequence[Path] | None = None
    bad: list[BadImage] = dataclasses.field(default_factory=list)
    converted: list[BadImage] = dataclasses.field(default_factory=list)


def fingerprint(*parts: Any) -> str:
    """A short hash of arrays, numbers and texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:16]


def open_arrays(
    images: Any,
    labels: Any,
    training: bool = True,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
) -> Examples:
    """Images and labels that are in memory, or in an array that is mapped into it; they are not copied.

    Args:
        images: `(n, height, width, 3)`, grey `(n, height, width)` or `(n, height, width, 1)`, in 0..255; or a list
            of images of different sizes.
        labels: `(n,)` numbers or `(n, classes)` shares.
        training: Whether one class alone is an error.
        classes: As in `open_data`.
        class_names: Likewise.
        on_bad_image: Likewise.

    Raises:
        ValueError: if counts differ, pixels or labels are out of range, or there are fewer than two classes.
        TypeError: if they do not hold numbers.

    Warns:
        UserWarning: in training, if most of the classes that the largest label makes have no image.
    """

    def name(i: int) -> str:
        return f"images[{i}]"

    ragged = isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1
    images = [to_numpy(image) for image in images] if ragged else to_numpy(images)
    labels = to_numpy(labels)
    if not len(images):
        raise ValueError("data must hold images, but there are none.")
    if labels.ndim == 0 or len(images) != len(labels):
        count = len(labels) if labels.ndim else "one"
        raise ValueError(f"There are {len(images)} images, but {count} labels: each image needs one.")
    if class_names is not None and classes is None:
        classes = len(class_names)
    counted = classes is None and labels.ndim == 1
    labels, classes = check_labels(labels, classes, "labels", name)
    if training and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")
    empty = classes - len(np.unique(labels)) if counted else 0
    if training and 2 * empty > classes:
        warnings.warn(
            f"{empty} of {classes} classes have no picture: the largest label is {labels.max()}, of "
            f"{name(int(labels.argmax()))}. If it is a mistake, correct it; else give classes={classes}.",
            stacklevel=3,
        )

    keep, bad = [], []
    for i, image in enumerate(images):
        if image.dtype.kind in "iu" or np.isfinite(np.sum(image, dtype="float64")):
            keep.append(i)
            continue
        bad.append(BadImage(name(i), "NaN or infinite values"))
        if on_bad_image == "stop":
            raise ValueError(f'{name(i)} holds NaN or infinite values. Go on without: on_bad_image="skip".')
    if not keep:
        raise ValueError("All images hold NaN or infinite values.")
    if isinstance(images, list):
        for i in keep:
            check_pixels(_rgb(images[i][None]), name=name(i), item=lambda _, i=i: name(i), scaled="raise")
    else:
        check_pixels(_rgb(images[keep] if bad else images), item=lambda i: name(keep[i]), scaled="raise")
    return Examples(
        labels=labels[keep],
        classes=classes,
        read=lambda i: _rgb(images[keep[i]][None])[0],
        name=lambda i: name(keep[i]),
        kind="arrays",
        fingerprint=fingerprint(labels[keep], np.shape(images[keep[0]]), images[keep[0]], images[keep[-1]]),
        class_names=None if class_names is None else list(class_names),
        bad=bad,
    )


def _rgb(images: np.ndarray) -> np.ndarray:
    """Grey images with three channels, as a view; all others as they are."""
    if images.ndim == 3 and images.shape[-1] not in (3, 4):
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] == 1:
        return np.broadcast_to(images, (*images.shape[:-1], 3))
    return images


def open_tfds(name: str, split: str) -> Examples:
    """A data set of tensorflow-datasets that was prepared for random access, such as `"oxford_iiit_pet:4.0.0"`.

    For `"test"`, `validation` is taken where there is no test split with labels.

    Raises:
        ImportError: if tensorflow-datasets is not installed.
        ValueError: if the data set is not prepared as `array_record`, or does not have the split, pictures or labels.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        hint = "pip install tensorflow-datasets, or give an image folder"
        raise ImportError(f'data="tfds:{name}" needs tensorflow-datasets: {hint}.') from error

    builder = tfds.builder(name)
    if not {"image", "label"} <= set(builder.info.features or ()):
        raise ValueError(f"tfds:{name} has {sorted(builder.info.features or ())}, but image and label are needed.")
    if getattr(builder.info.file_format, "value", None) != "array_record":
        raise ValueError(
            f"tfds:{name} cannot be read at random. Prepare it for that: tfds.builder({name!r}, "
            'file_format="array_record").download_and_prepare(). Or give a pipeline, with classes=: '
            f'tfds.load({name!r}, split="train", as_supervised=True), resized, shuffled and in batches.'
        )
    builder.download_and_prepare()
    wanted = ("train",) if split == "train" else ("test", "validation")
    there = list(builder.info.splits)
    found = next((s for s in wanted if s in there), None)
    if found is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {there}.")
    pictures = builder.as_data_source(split=found, decoders={"image": tfds.decode.SkipDecoding()})
    label = builder.info.features["label"]

    def called(i: int) -> str:
        return f"tfds:{name}/{found}[{i}]"

    # The labels of test splits that are kept secret are -1: check_labels says so.
    numbers = np.array([int(picture["label"]) for picture in pictures])
    labels, classes = check_labels(numbers, label.num_classes, f"tfds:{name}", called)
    return Examples(
        labels=labels,
        classes=classes,
        read=lambda i: load_image(io.BytesIO(pictures[i]["image"]), orient=False),  # As tfds decodes.
        name=called,
        kind=f"tfds:{name}",
        fingerprint=fingerprint(labels),
        class_names=list(label.names),
    )


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
    """Raises ValueError for a name that cannot be written on a line of its own; `where` is what it belongs to."""
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
            f"{where} has classes that the model does not know: {listing(foreign)}. Its {len(model_names)} classes are "
            f"{listing(model_names)}. Fine-tune it on these classes, or rename those that only have another name."
        )
    ambiguous = [name for name in data_names if counts[name] > 1]
    if ambiguous:
        raise ValueError(f"{where} has {listing(ambiguous)}, which several outputs of the model are called.")
    outputs = {name: output for output, name in enumerate(model_names)}
    return np.array([outputs[name] for name in data_names], "int64")
