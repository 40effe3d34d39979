"""Labelled images in whatever form they come, as batches for a model, with a progress bar; and the model's outputs."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit._processes import ALONE, Processes, batch_shares, fill_up, local_model, share
from keras_vit._terminal import ProgressBar
from keras_vit.data import ImageStream, open_data, pick_split
from keras_vit.data.examples import check_labels
from keras_vit.models import BiT, ImageModel, VisionTransformer

SCALED_MOST = 16  # No scaling of pixels that is in use reaches it: mean 0 and deviation 1 end below 3.
Pairs = Iterator[tuple[np.ndarray, np.ndarray]]


def batches(
    data: Any, batch_size: int = 64, *, title: str = "images", progress: bool = True, target: str = "class"
) -> Pairs:
    """Yields images and labels, batch by batch, of labelled images in whatever form they come, once.

    Args:
        data: A tuple `(images, labels)` of arrays, what `keras_vit.data.open_data` returns, or anything that yields
            such tuples batch by batch: a list, a generator, a `tf.data.Dataset`, a torch `DataLoader`, a grain dataset,
            a `keras.utils.PyDataset`.
        batch_size: Images per batch, for arrays.
        title: What stands before the progress bar.
        progress: Whether there is a bar.
        target: What labels are: `"class"`, `"multilabel"` or `"number"` (see `keras_vit.data.open_data`).

    Yields:
        Images or features as they are given `(batch, ...)`, and int64 labels `(batch,)`; for several labels float32
        `(batch, classes)`, for regression `(batch, 1)`.

    Raises:
        TypeError: if `data` is none of these, or its labels are neither integers nor one-hot.
        ValueError: if the lengths of images and labels differ, if a label is negative, or if there are no images.

    Examples:
        >>> [batch.shape for batch, _ in evaluation.batches((small_images, labels), batch_size=3, progress=False)]
        [(3, 8, 8, 3), (1, 8, 8, 3)]
    """
    labels, bar = None if isinstance(data, ImageStream) else target, title if progress else None
    with open_batches(None, data, "test", batch_size=batch_size, title=bar, target=labels) as opened:
        yield from opened.pairs


class OpenedBatches(NamedTuple):
    """Labelled images for a model, to go through once.

    Attributes:
        pairs: Images as the model takes them and labels, of which a process's part may be empty.
        class_names: Names of the classes in the order of the labels, or None.
        target: What labels are (see `open_data`).
        image_names: Once all are read: what they are called, or nothing where that is not known.
    """

    pairs: Pairs
    class_names: list[str] | None
    target: str
    image_names: Callable[[], list[str]]


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
) -> Iterator[OpenedBatches]:
    """Opens labelled images for a model as `OpenedBatches`, and closes them at the end of the `with` statement.

    Arguments as in `evaluate`; `classes` is for pixels whose labels have no names, and a `title` of None for no bar.
    Each process gets its part of every batch. Raises TypeError for a model with an output for every pixel, ValueError
    for options that do not fit the data, and while reading for values that the model does not take.
    """
    if isinstance(data, Mapping):
        data = pick_split(data, split)
    config: Any = model.config if isinstance(model, (VisionTransformer, BiT)) else None
    if isinstance(model, ImageModel) and config is None:
        words = f"model is a {type(model).__name__}, which has an output for every pixel"
        raise TypeError(f"{words}: keras_vit.segmentation.evaluate measures segmentation; this is for classifiers.")
    pixels = _are_pixels(data)
    if pixels and preprocess is False:
        raise ValueError("preprocess=False is for data that holds what the model takes; this data holds pixels.")
    pixels = pixels or bool(preprocess)
    if pixels and config is None and not (model is None and isinstance(data, ImageStream)):
        raise ValueError(
            "preprocess=True needs a model of keras_vit, which knows its preprocessing, and so do image files: "
            "preprocess the images yourself."
        )
    if not pixels and on_bad_image != "stop":
        raise ValueError(f"on_bad_image={on_bad_image!r} is for pixels, which are read here: leave it out.")
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "class_names": class_names,
        "on_bad_image": on_bad_image,
        "split": split,
        "shuffle": False,
        "shard": processes.shard,
        "target": target or "class",
    }
    if isinstance(data, ImageStream):
        if class_names is not None:
            raise ValueError(f"class_names={class_names!r} is for open_data, which has made this stream.")
        context: Any = contextlib.nullcontext(data)  # its owner closes it
    elif pixels:
        # Names of folders and tables say how many classes there are; the model may have others.
        named = class_names is not None or isinstance(data, (str, os.PathLike)) or hasattr(data, "open_examples")
        options["classes"] = None if named or target == "number" else classes
        options |= {"resize": config.pipeline, "channels": config.channels}
        context = open_data(data, image_size=config.image_size, **options)
    else:
        context = open_data(data, image_size=None, **options)
    with context as stream, ProgressBar(title or "", stream.steps_per_epoch, shown=title is not None) as bar:
        if target not in (None, stream.target):
            raise ValueError(f"target={target!r}, but the labels of the data are of the kind {stream.target!r}.")
        limit = np.inf if pixels or config is None or config.include_preprocessing else SCALED_MOST

        def prepared(step: int, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if images.max(initial=0) > limit:
                hint = "the model takes values of -1..1: are they pixels? preprocess=True."
                raise ValueError(f"The images reach {images.max():g}, but {hint}")
            if pixels and config is not None and not config.include_preprocessing:
                images = config.pipeline.normalized(images)
            rows = share(len(labels), processes.shard) if stream.shard != processes.shard else slice(None)
            return images[rows], one_class_each(labels, f"batch {step}", stream.target)[rows]

        yield OpenedBatches(
            bar.track(stream.map(prepared)), stream.class_names, stream.target, lambda: _image_names(stream)
        )


def _are_pixels(data: Any) -> bool:
    """Whether data can be nothing else: image files, a table of them, a stream, images of different sizes."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (tuple, list)):
        return len({np.shape(image) for image in data[0]}) > 1
    return isinstance(data, (str, os.PathLike, ImageStream)) or hasattr(data, "open_examples")


def _image_names(stream: ImageStream) -> list[str]:
    """The names of the images of a stream in their order, without those left out; none where a process reads a part."""
    if stream.name is None or stream.shard[1] > 1:
        return []
    left_out = {image.path for image in stream.bad}
    return [name for name in map(stream.name, range(stream.examples or 0)) if name not in left_out]


def one_class_each(labels: Any, where: str, target: str = "class") -> np.ndarray:
    """One class for each image, int64 `(batch,)`, from integers or one-hot rows; labels of other targets as they are.

    Raises ValueError for rows that are not one-hot, which names the row.
    """
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


def predictor(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A function from a batch to the row that a model, or a function, has for each of its images.

    Shorter batches are filled up to the size of the largest before them, which spares JAX another compilation, and
    every batch to a multiple of the number of devices that share it. What is filled in is dropped from the rows. The
    function raises ValueError unless there is one output with a finite row for each image.
    """
    length, shares = 0, batch_shares(model)
    model = local_model(model) if isinstance(model, keras.Model) else model

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal length
        count = len(inputs)
        length = max(length, math.ceil(count / shares) * shares)
        inputs = inputs if count else fill_up(inputs, 1)  # the part of a process may be empty
        if isinstance(model, keras.Model):
            inputs = fill_up(inputs, length)
            found = model.predict(inputs, batch_size=len(inputs), verbose=0)
        else:
            found = model(inputs)
        outputs = keras.tree.flatten(found)
        if len(outputs) != 1:
            raise ValueError(f"The model must have one output, but it has {len(outputs)}.")
        return _checked_rows(to_numpy(outputs[0])[:count], count)

    return predict


def all_outputs(rows: Pairs, processes: Processes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the outputs and the labels of all batches and processes, of rows `(outputs, labels)` for each batch."""
    outputs, labels = zip(*rows, strict=True)
    return processes.in_order(outputs), processes.in_order(labels)


def _checked_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Outputs of a model as float rows, unchanged.

    Raises ValueError unless they are one finite vector for each of `count` images.
    """
    rows = rows if np.issubdtype(rows.dtype, np.floating) else rows.astype("float32")
    if rows.ndim != 2 or len(rows) != count:
        raise ValueError(
            f"The model must have one vector per image, ({count}, n), as output, but it is {rows.shape}. "
            "Models without pooling have one per token: build them with pooling='token' or 'avg'."
        )
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(1)))
        raise ValueError(f"The model's output for image {row} of a batch is not finite: look at the image and weights.")
    return rows
