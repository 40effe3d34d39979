"""Labelled images in whatever form they come, as batches for a model, with a progress bar; and the model's outputs."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit._arguments import to_numpy, whole_number
from keras_vit._processes import ALONE, Processes, batch_shares, fill_up, local_model, share
from keras_vit._terminal import ProgressBar
from keras_vit.data import ImageStream, open_data, pick_split
from keras_vit.data.examples import check_labels
from keras_vit.models import BiT, ImageModel, VisionTransformer

SCALED_MOST = 16  # No scaling of pixels that is in use reaches it: mean 0 and deviation 1 end below 3.
Pairs = Iterator[tuple[np.ndarray, np.ndarray]]


class Opened(NamedTuple):
    """Labelled images for a model: batches, the names of the classes or None, and what labels are (see `open_data`)."""

    pairs: Pairs
    class_names: list[str] | None
    target: str
    image_names: Callable[[], list[str]]  # once all are read: what they are called, or nothing where nobody says


def batches(
    data: Any, batch_size: int = 64, *, title: str = "images", progress: bool = True, target: str = "class"
) -> Pairs:
    """Goes through labelled images once.

    Args:
        data: A tuple `(images, labels)` of arrays, or anything that gives such tuples batch by batch: a list, a
            generator, a `tf.data.Dataset`, a torch `DataLoader`, a grain dataset, a `keras.utils.PyDataset`.
        batch_size: Images per batch, for arrays.
        title: What stands before the progress bar.
        progress: Whether there is a bar.
        target: What labels are: `"class"`, `"multilabel"` or `"number"` (see `keras_vit.data.open_data`).

    Yields:
        Images or features as they are given `(batch, ...)`, and int64 labels `(batch,)`; for several labels float32
        `(batch, classes)`, for numbers `(batch, 1)`.

    Raises:
        TypeError: if `data` is none of these, or its labels are neither integers nor one-hot.
        ValueError: if the lengths of images and labels differ, if a label is negative, or if there are no images.

    Examples:
        >>> [batch.shape for batch, _ in evaluation.batches((small_images, labels), batch_size=3, progress=False)]
        [(3, 8, 8, 3), (1, 8, 8, 3)]
    """
    source, total = _open(data, whole_number("batch_size", batch_size, 1))
    part = isinstance(data, ImageStream) and data.shard[1] > 1  # of a short batch it may be empty
    seen = 0
    with ProgressBar(title, total, shown=progress) as bar:
        for place, batch in enumerate(bar.track(source)):
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(f"Batch {place} of the data must be (images, labels), but is a {type(batch).__name__}.")
            images, labels = to_numpy(batch[0]), hard_labels(batch[1], f"batch {place}", target)
            if len(images) != len(labels):
                raise ValueError(f"Batch {place} of the data has {len(images)} images, but {len(labels)} labels.")
            if len(images) or part:
                seen += 1
                yield images, labels
    if not seen:
        raise ValueError("There are no images in the data. (A generator can be gone through once only.)")


def _open(data: Any, batch_size: int) -> tuple[Iterable[Any], int | None]:
    """The batches, and how many there are where that is known."""
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = to_numpy(data[0]), to_numpy(data[1])
        if images.ndim < 2 or labels.ndim < 1 or len(images) != len(labels):
            raise ValueError(
                f"Images and labels must be of one length, but have the shapes {images.shape} and {labels.shape}."
            )
        starts = range(0, len(images), batch_size)
        return ((images[i : i + batch_size], labels[i : i + batch_size]) for i in starts), len(starts)
    if isinstance(data, ImageStream):
        return data, data.steps_per_epoch
    if isinstance(data, keras.utils.PyDataset):
        return (data[i] for i in range(data.num_batches)), data.num_batches
    if isinstance(data, (str, dict, tuple, np.ndarray)) or not hasattr(data, "__iter__"):
        raise TypeError(f"data must be (images, labels) or give such batches one by one, not a {type(data).__name__}.")
    try:
        return data, len(data)
    except TypeError:  # a generator, or a dataset of unknown length
        return data, None


def hard_labels(labels: Any, where: str = "the data", target: str = "class") -> np.ndarray:
    """One class for each image, int64 `(batch,)`, from integers or one-hot rows; or rows of 0 and 1, or of a number."""
    checked, _ = check_labels(labels, None, where, target=target)
    if checked.ndim == 1 or target != "class":
        return checked
    wrong = ((checked == 1).sum(1) != 1) | ((checked == 0).sum(1) != checked.shape[1] - 1)
    if wrong.any():
        raise ValueError(
            f"Row {int(np.argmax(wrong))} of the labels of {where} is not one-hot: one 1 among zeros was expected. "
            "Evaluation needs one class per image; mixup and label smoothing belong to training."
        )
    return checked.argmax(1)


@contextlib.contextmanager
def open_batches(
    model: Any,
    data: Any,
    split: str,
    *,
    preprocess: bool | None = None,
    batch_size: int = 64,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    title: str | None = "images",
    processes: Processes = ALONE,
    target: str | None = None,
) -> Iterator[Opened]:
    """Opens labelled images for a model, and closes them at the end of the `with` statement.

    Arguments as in `evaluate`; `classes` is for pixels whose labels have no names, and a `title` of None for no bar.

    Yields:
        The batches once, images as the model takes them with labels as in `batches`, of each this process's part, which
        may be empty at the end.
    """
    if isinstance(data, Mapping):
        data = pick_split(data, split)
    # What cannot be anything but pixels: image files, a table of them, a stream, images of different sizes.
    files = isinstance(data, (str, os.PathLike)) or hasattr(data, "open_examples")
    pixels = files or isinstance(data, ImageStream)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (tuple, list)):
        pixels = len({np.shape(image) for image in data[0]}) > 1
    if pixels and preprocess is False:
        raise ValueError("preprocess=False is for data that holds what the model takes; this data holds pixels.")
    bar: dict[str, Any] = {"title": title or "", "progress": title is not None}
    ours = isinstance(model, (VisionTransformer, BiT))
    if isinstance(model, ImageModel) and not ours:
        words = f"model is a {type(model).__name__}, which answers for every pixel"
        raise TypeError(f"{words}: of masks, keras_vit.segmentation.evaluate measures it; this is for classifiers.")
    if not (pixels or preprocess):
        if on_bad_image != "stop":
            raise ValueError(f"on_bad_image={on_bad_image!r} is for pixels, which are read here: leave it out.")
        limit = SCALED_MOST if ours and not model.config.include_preprocessing else np.inf
        target = target or "class"
        pairs = _parts(_checked(batches(data, batch_size, target=target, **bar), limit), processes)
        yield Opened(pairs, list(class_names) if class_names else None, target, list)
        return
    if not ours:
        raise ValueError(
            "preprocess=True needs a model of keras_vit, which knows its preprocessing, and so do image files: "
            "preprocess the images yourself."
        )
    with contextlib.ExitStack() as stack:
        stream = data
        if isinstance(data, ImageStream):
            if class_names is not None:
                raise ValueError(f"class_names={class_names!r} is for open_data, which has made this stream.")
        else:
            named = class_names is not None or files or target == "number"
            stream = open_data(
                data,
                image_size=model.config.image_size,
                batch_size=batch_size,
                split=split,
                shuffle=False,
                classes=None if named else classes,
                class_names=class_names,
                on_bad_image=on_bad_image,
                resize=model.config.pipeline,
                channels=model.config.channels,
                shard=processes.shard,
                target=target or "class",
            )
            stack.enter_context(stream)
        if target not in (None, stream.target):
            raise ValueError(f"target={target!r}, but the labels of the data are of the kind {stream.target!r}.")
        pairs = batches(stream, target=stream.target, **bar)
        if stream.shard != processes.shard:
            pairs = _parts(pairs, processes)
        if not model.config.include_preprocessing:
            normalized = model.config.pipeline.normalized
            pairs = ((normalized(images), labels) for images, labels in pairs)
        yield Opened(pairs, stream.class_names, stream.target, lambda: _names(stream))


def _names(stream: ImageStream) -> list[str]:
    if stream.name is None or stream.shard[1] > 1:
        return []
    left_out = {image.path for image in stream.bad}
    return [name for name in map(stream.name, range(stream.examples or 0)) if name not in left_out]


def _checked(pairs: Pairs, limit: float) -> Pairs:
    """The same batches; pixels for a model that takes -1..1 are an error."""
    for images, labels in pairs:
        if images.max(initial=0) > limit:
            hint = "the model takes values of -1..1: are they pixels? preprocess=True."
            raise ValueError(f"The images reach {images.max():g}, but {hint}")
        yield images, labels


def _parts(pairs: Pairs, processes: Processes) -> Pairs:
    for images, labels in pairs:
        rows = share(len(labels), processes.shard)
        yield images[rows], labels[rows]


def predictions(model: Any, pairs: Pairs) -> Pairs:
    """The rows that a model, or a function, gives for each batch, with the labels.

    Shorter batches are filled up to the size of the largest before them, which spares JAX another compilation, and
    every batch to a multiple of the number of devices that share it. What is filled in is dropped from the rows.
    """
    length, shares = 0, batch_shares(model)
    model = local_model(model) if isinstance(model, keras.Model) else model
    for inputs, labels in pairs:
        length = max(length, -(-len(inputs) // shares) * shares)
        count = len(inputs)
        inputs = inputs if count else fill_up(inputs, 1)  # the part of a process may be empty
        if isinstance(model, keras.Model):
            inputs = fill_up(inputs, length)
            found = model.predict(inputs, batch_size=len(inputs), verbose=0)
        else:
            found = model(inputs)
        outputs = keras.tree.flatten(found)
        if len(outputs) != 1:
            raise ValueError(f"The model must have one output, but it has {len(outputs)}.")
        yield checked_rows(to_numpy(outputs[0])[:count], count), labels


def checked_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """One finite vector of floats for each of `count` images; an error for anything else."""
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
