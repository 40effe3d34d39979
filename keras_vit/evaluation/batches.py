"""Labelled images in whatever form they come, as batches of NumPy arrays with a progress bar."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit.models import BiT, VisionTransformer


def batches(
    data: Any, batch_size: int = 64, *, title: str = "images", progress: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Goes through labelled images once.

    Args:
        data: A tuple `(images, labels)` of arrays, or anything that gives such tuples batch by batch: a list, a
            generator, a `tf.data.Dataset`, a torch `DataLoader`, a grain dataset, a `keras.utils.PyDataset`.
        batch_size: Images per batch, for arrays.
        title: What stands before the progress bar.
        progress: Whether there is a bar.

    Yields:
        Images or features as they are given `(batch, ...)`, and int64 labels `(batch,)`.

    Raises:
        TypeError: if `data` is none of these, or its labels are neither integers nor one-hot.
        ValueError: if the lengths of images and labels differ, if a label is negative, or if there are no images.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but {batch_size} was given.")
    source, total = _open(data, batch_size)
    seen = 0
    for place, batch in enumerate(_with_bar(source, total, title) if progress else source):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise TypeError(f"Batch {place} of the data must be (images, labels), but {_spell(batch)} was given.")
        images, labels = to_numpy(batch[0]), hard_labels(batch[1], f"batch {place}")
        if len(images) != len(labels):
            raise ValueError(f"Batch {place} of the data has {len(images)} images, but {len(labels)} labels.")
        if len(images):
            seen += len(images)
            yield images, labels
    if not seen:
        raise ValueError("There are no images in the data. (A generator can be gone through once only.)")


def hard_labels(labels: Any, where: str = "labels") -> np.ndarray:
    """One class per image from integers `(batch,)` or `(batch, 1)`, or from one-hot rows `(batch, classes)`.

    Args:
        labels: What was given.
        where: What messages call it.

    Returns:
        int64 `(batch,)`.

    Raises:
        TypeError: if they are something else.
        ValueError: if one is negative, or a row is no one-hot row (as after mixup).
    """
    labels = to_numpy(labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        wrong = ((labels == 1).sum(1) != 1) | ((labels == 0).sum(1) != labels.shape[1] - 1)
        if wrong.any():
            raise ValueError(
                f"Row {int(np.argmax(wrong))} of the labels in {where} is not one-hot: one 1 among zeros was expected. "
                "Evaluation needs one class per image; mixup and label smoothing belong to training."
            )
        return labels.argmax(1)
    labels = labels[:, 0] if labels.ndim == 2 else labels
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(
            f"The labels in {where} must be integers (batch,) or one-hot rows (batch, classes), but {_spell(labels)} "
            "was given."
        )
    if len(labels) and labels.min() < 0:
        row = int(labels.argmin())
        raise ValueError(f"Label {row} in {where} is {labels[row]}; classes are counted from 0.")
    return labels.astype("int64")


def predictions(
    model: Any, pairs: Iterable[tuple[np.ndarray, np.ndarray]], prepared: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What a model says to each batch, with the labels; later batches are filled up to the size of the first.

    Args:
        model: As in `predict`.
        pairs: Batches of images and labels (see `batches`).
        prepared: Makes of a batch of images what the model takes.
    """
    largest = None
    for images, labels in pairs:
        yield predict(model, prepared(images), largest), labels
        largest = largest or len(images)


def predict(model: Any, images: np.ndarray, like: int | None = None) -> np.ndarray:
    """What a model says to a batch, as a float array.

    Args:
        model: A Keras model with one output, or a function from a batch to an array.
        images: `(batch, ...)`.
        like: Size that a Keras model has been given before. A shorter batch is filled up to it, which spares JAX
            another compilation, and can be split over several devices where the whole ones can.

    Raises:
        ValueError: if there is not one output row per image, or one is not finite.
    """
    count = len(images)
    if isinstance(model, keras.Model):
        if like is not None and count < like:
            images = np.concatenate([images, np.repeat(images[-1:], like - count, axis=0)])
        answer = model.predict(images, batch_size=len(images), verbose=0)
    else:
        answer = model(images)
    flat = keras.tree.flatten(answer)
    if len(flat) != 1:
        raise ValueError(f"The model must have one output, but it has {len(flat)}: {_spell(answer)}.")
    rows = to_numpy(flat[0])[:count]
    rows = rows if np.issubdtype(rows.dtype, np.floating) else rows.astype("float32")
    if rows.ndim != 2 or len(rows) != count:
        raise ValueError(
            f"The model must give one vector per image, ({count}, n), but gave {rows.shape}. "
            "Models without pooling give one per token: build them with pooling='token' or 'avg'."
        )
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(1)))
        raise ValueError(f"The model's output for image {row} of a batch is not finite: look at the image and weights.")
    return rows


def prepare(model: Any, images: np.ndarray, preprocess: bool) -> np.ndarray:
    """Images as the model wants them: pixels of 0..255 resized and scaled with `preprocess`, else as they are.

    Raises:
        ValueError: if `preprocess` is asked of a model that is not of this package.
    """
    if not preprocess:
        return images
    if not isinstance(model, (VisionTransformer, BiT)):
        raise ValueError(
            f"preprocess=True needs a model of keras_vit, which knows its own preprocessing; {type(model).__name__} "
            "was given. Preprocess the images yourself."
        )
    return model.preprocess(images)


def _open(data: Any, batch_size: int) -> tuple[Iterable[Any], int | None]:
    """The batches, and how many there are where that is known."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise TypeError(f"Arrays must be given as (images, labels), but {_spell(data)} was given.")
        images, labels = to_numpy(data[0]), to_numpy(data[1])
        if images.ndim < 2 or labels.ndim < 1 or len(images) != len(labels):
            raise ValueError(
                f"Images and labels must be of one length, but have the shapes {images.shape} and {labels.shape}."
            )
        starts = range(0, len(images), batch_size)
        return ((images[i : i + batch_size], labels[i : i + batch_size]) for i in starts), len(starts)
    if isinstance(data, keras.utils.PyDataset):
        return (data[i] for i in range(data.num_batches)), data.num_batches
    if isinstance(data, (str, dict, np.ndarray)) or not hasattr(data, "__iter__"):
        raise TypeError(f"data must be (images, labels) or give such batches one by one, but {_spell(data)} was given.")
    try:
        return data, len(data)
    except TypeError:  # a generator, or a dataset of unknown length
        return data, None


def _with_bar(source: Iterable[Any], total: int | None, title: str) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # On standard error: the results go to standard output.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(source, total=total, description=title)


def _spell(value: Any) -> str:
    if isinstance(value, (tuple, list)) and len(value) < 9:
        return f"{type(value).__name__} of ({', '.join(map(_spell, value))})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{dtype} {tuple(shape)}" if shape is not None else f"a {type(value).__name__}"
