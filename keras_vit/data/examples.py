"""Pictures that can be asked for one by one, in any order: arrays, and data sets of tensorflow-datasets."""

import dataclasses
import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit.data.checks import BadImage, check_images, check_labels
from keras_vit.preprocessing import load_image

IN_MEMORY = 4 * 2**30  # bytes of compressed pictures that are kept, where a data set cannot be read at random


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
    """Images and labels that are in memory, or in an array that is mapped into it.

    Args:
        images: `(n, height, width, 3)`, grey `(n, height, width)` or `(n, height, width, 1)`, in 0..255; or a list
            of images of different sizes.
        labels: `(n,)` numbers or `(n, classes)` shares.
        training: Whether one class alone is an error.
        classes: How many there are; `None` for as many as the labels show.
        class_names: Their names in order.
        on_bad_image: `"skip"` leaves out images with NaN or infinite values; `"stop"` raises an error.

    Returns:
        The examples. The arrays are not copied.

    Raises:
        ValueError: if counts differ, pixels or labels are out of range, or there are fewer than two classes.
        TypeError: if they do not hold numbers.
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
    labels, classes = check_labels(labels, classes, "labels", name)
    if training and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")

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
    for i in range(len(images)) if ragged else ():
        check_images(_rgb(images[i])[None], name(i), lambda _, i=i: name(i))
    if not ragged:
        whole = images if not bad else images[keep]
        check_images(_rgb(whole), "images", lambda i: name(keep[i]))
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
    """A data set of tensorflow-datasets, downloaded and prepared by it if need be.

    Data sets that were prepared as `array_record` are read at random from disk. Of all others the compressed pictures
    are kept in memory.

    Args:
        name: Such as `"cifar10"` or `"oxford_iiit_pet:4.0.0"`.
        split: `"train"`, or `"test"`, for which `validation` is taken where there is no test split with labels.

    Returns:
        The examples.

    Raises:
        ImportError: if tensorflow-datasets is not installed.
        ValueError: if the data set does not have the split, pictures or labels, or is too large to keep.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        hint = "pip install tensorflow-datasets, or give an image folder"
        raise ImportError(f'data="tfds:{name}" needs tensorflow-datasets: {hint}.') from error

    builder = tfds.builder(name)
    if not {"image", "label"} <= set(builder.info.features or ()):
        raise ValueError(f"tfds:{name} has {sorted(builder.info.features or ())}, but image and label are needed.")
    builder.download_and_prepare()
    wanted = ("train",) if split == "train" else ("test", "validation")
    there = list(builder.info.splits)
    split = next((s for s in wanted if s in there), None)
    if split is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {there}.")
    kind = getattr(builder.info.file_format, "value", None)
    at_random = kind == "array_record"
    size = builder.info.splits[split].num_bytes
    if not at_random and size > IN_MEMORY:
        raise ValueError(
            f"tfds:{name} has {size / 2**30:.0f} GiB, too much to keep in memory. Prepare it for random access: "
            f'tfds.builder({name!r}, file_format="array_record").download_and_prepare(), or give a tf.data pipeline.'
        )
    decoders = {"image": tfds.decode.SkipDecoding()}
    if at_random:
        pictures: Sequence[Any] = builder.as_data_source(split=split, decoders=decoders)
    else:
        pictures = list(tfds.as_numpy(builder.as_dataset(split=split, decoders=decoders, shuffle_files=False)))
    label = builder.info.features["label"]

    def called(i: int) -> str:
        return f"tfds:{name}/{split}[{i}]"

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
