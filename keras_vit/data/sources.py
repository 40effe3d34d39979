"""Labelled images in memory and in other libraries: arrays, tensorflow-datasets, pipelines.

Pipelines (`tf.data`, grain, torch, Keras, or any iterable of (images, labels)) are used as they are, in their own order
and with their own crops and flips. Their images and labels are checked. Of an `Augmentation`, what mixes and recolours
finished images is added: RandAugment and mixup. A pipeline only goes forward. To resume at step 1,000, its first 1,000
batches are read and dropped: they are those of the first run if the pipeline itself always yields the same.
"""

import io
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import SKIP, Message, to_numpy, warn_caller
from keras_vit._processes import share
from keras_vit.data.augmentation import (
    ERASING,
    MIXUP,
    RANDAUGMENT,
    ImageTransform,
    augmented,
    erased,
    mixed,
    resize_for_evaluation,
)
from keras_vit.data.examples import (
    BadImage,
    EndOfData,
    Examples,
    Reading,
    check_labels,
    count_steps,
    fingerprint,
    one_hot,
)
from keras_vit.data.folders import IN_PLACE_OF
from keras_vit.data.streams import ImageStream
from keras_vit.preprocessing import check_pixels, load_image

TOO_MANY = 100  # bad batches or examples, one after another, end it
IMAGES, LABELS = ("image", "images", "pixel_values"), ("label", "labels")


def open_arrays(
    images: Any,
    labels: Any,
    training: bool,
    classes: int | None,
    class_names: list[str] | None,
    reading: Reading,
    target: str,
) -> Examples:
    """Images `(n, height, width[, channels])`, or a list of different sizes, in memory; they are not copied.

    Raises ValueError or TypeError if images or labels are no such, not as many, of one class in training, or not
    finite; with `reading.skip` images that are not finite are left out.
    """

    def name(i: int) -> str:
        return f"images[{i}]"

    channels = reading.channels
    ragged = isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1
    images = [to_numpy(image) for image in images] if ragged else to_numpy(images)
    labels = to_numpy(labels)
    if not len(images):
        raise ValueError("data must hold images, but there are none.")
    if labels.ndim == 0 or len(images) != len(labels):
        count = len(labels) if labels.ndim else "one"
        raise ValueError(f"There are {len(images)} images, but {count} labels: each image needs one.")
    are_counted = classes is None
    labels, classes = check_labels(labels, classes, "labels", name, target)
    if training and target == "class" and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")
    if training and are_counted and labels.ndim == 1:
        empty = classes - len(np.unique(labels))
        if 2 * empty > classes:
            largest = f"the largest label is {labels.max()}, of {name(int(labels.argmax()))}"
            hint = f"Correct it, or give classes={classes}."
            warn_caller(f"{empty} of {classes} classes have no picture: {largest}. {hint}")
    finite = [image.dtype.kind in "iu" or np.isfinite(np.sum(image, dtype="float64")) for image in images]
    keep = np.flatnonzero(finite)
    bad = [BadImage(name(i), "NaN or infinite values") for i, good in enumerate(finite) if not good]
    if bad and not (reading.skip and len(keep)):
        words = f"{bad[0].path} holds NaN or infinite values. Go on without: "
        raise ValueError(Message(words, SKIP, "."))
    if ragged:
        for i in keep:
            one = _with_channels(images[i][None], channels)
            check_pixels(one, channels, name=name(i), item=lambda _, i=i: name(i), scaled="raise")
    else:
        good = _with_channels(images[keep] if bad else images, channels)
        check_pixels(good, channels, item=lambda i: name(keep[i]), scaled="raise")
    return Examples(
        labels=labels[keep],
        classes=classes,
        read=lambda i: _with_channels(images[keep[i]][None], channels)[0],
        name=lambda i: name(keep[i]),
        kind="arrays",
        fingerprint=fingerprint(labels[keep], np.shape(images[keep[0]]), images[keep[0]], images[keep[-1]]),
        class_names=class_names,
        bad=bad,
        target=target,
    )


def _with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Grey images with an axis for channels, and with three of them where these are wanted; others as they are."""
    if images.ndim == 3 and images.shape[-1] not in (3, 4, channels):
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] == 1 and channels == 3:
        return np.broadcast_to(images, (*images.shape[:-1], 3))
    return images


def open_tfds(name: str, split: str) -> Examples:
    """A data set of tensorflow-datasets that was prepared for random access, such as `"oxford_iiit_pet:4.0.0"`.

    Raises ImportError without the package, ValueError if the data set has no images with labels, no such split, or
    cannot be read at random.
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
        prepare = f'tfds.builder({name!r}, file_format="array_record").download_and_prepare()'
        raise ValueError(f"tfds:{name} cannot be read at random. Call {prepare}, or give tfds.load(...) and classes=.")
    builder.download_and_prepare()
    wanted = [s for s in (split, IN_PLACE_OF.get(split)) if s]
    found = next((s for s in wanted if s in builder.info.splits), None)
    if found is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {list(builder.info.splits)}.")
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


# Pipelines


def is_pipeline(source: Any) -> bool:
    """Whether it can be iterated over, and is neither text, nor an array, nor a dict; a list has to be of batches."""
    if isinstance(source, keras.utils.PyDataset):
        return True
    if isinstance(source, list):
        return bool(source) and all(
            isinstance(item, Mapping) or (isinstance(item, tuple) and len(item) == 2) for item in source
        )
    return hasattr(source, "__iter__") and not isinstance(source, (str, bytes, Mapping, tuple, list, np.ndarray, set))


class Slices:
    """Arrays of what a model takes, and their labels, as a pipeline of batches."""

    def __init__(self, images: Any, labels: Any, batch_size: int) -> None:
        """Keeps both as arrays; ValueError unless they have one length."""
        self._images, self._labels, self._batch_size = to_numpy(images), to_numpy(labels), batch_size
        shapes = self._images.shape, self._labels.shape
        if self._images.ndim < 2 or self._labels.ndim < 1 or len(self._images) != len(self._labels):
            raise ValueError(
                f"Images and labels must be of one length, but have the shapes {shapes[0]} and {shapes[1]}."
            )

    def __len__(self) -> int:
        return count_steps(len(self._images), self._batch_size, training=False)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self._images), self._batch_size):
            rows = slice(start, start + self._batch_size)
            yield self._images[rows], self._labels[rows]


def inputs_of(source: Any, batch_size: int) -> Any:
    """A pipeline of what a model takes: arrays `(images, labels)` in slices, others as given; TypeError for files."""
    if isinstance(source, tuple) and len(source) == 2:
        return Slices(*source, batch_size)
    if isinstance(source, (str, os.PathLike, Mapping, tuple, np.ndarray)) or not hasattr(source, "__iter__"):
        given = f"not a {type(source).__name__}. Of files, say the image_size"
        raise TypeError(f"data must be (images, labels) or yield such batches one by one, {given}.")
    return source


class PipelineStream(ImageStream):
    """The batches of a pipeline, which goes forward only and starts anew when an earlier step is asked for.

    It yields batches, which keep their size, or single examples of (images, labels), or dicts of these. Without an
    augmentation it is gone through once; without a transform, images are what a model takes, of any shape and unit.
    """

    def __init__(
        self,
        source: Any,
        transform: ImageTransform | None,
        batch_size: int,
        classes: int | None,
        class_names: list[str] | None,
        reading: Reading,
        shard: tuple[int, int],
        target: str,
    ) -> None:
        """Pulls the first batch, which tells the kind of labels.

        Raises ValueError if there is none, or nobody says the classes.
        """
        self.target, self.converted = target, []
        self._source, self._transform, self._skip, self.shard = source, transform, reading.skip, shard
        self._origin = {"source": type(source).__name__}
        self.endless = transform is not None and transform.augmentation is not None
        self.batch_size, self.class_names, self.classes = batch_size, class_names, classes or 0
        self.bad: list[BadImage] = []
        self._single = False  # Whether examples come one by one.
        self._lengths: dict[int, int] = {}  # of the last two batches
        self._restart()
        self._first = next(self._good, None)
        if self._first is None:
            why = f": {self.bad[0].reason}" if self.bad else "."
            raise ValueError(f"data must hold images, but the pipeline has none that are good{why}")
        images, labels = self._first
        if classes is None and labels.ndim == 2 and (labels.shape[1] > 1 or target != "class"):
            self.classes = labels.shape[1]
        elif classes is None and self.endless:
            raise ValueError("The labels of the pipeline are numbers: say how many classes there are, with classes=...")
        if self.endless and len(images) != batch_size:
            given = f"The pipeline makes batches of {len(images)}, not of batch_size={batch_size}"
            warn_caller(f"{given}: they are used as they are.")
            self.batch_size = len(images)
        try:
            length = source.num_batches if isinstance(source, keras.utils.PyDataset) else len(source)
        except TypeError:  # Of unknown or infinite length.
            length = None
        if length is not None and self._single:
            self.examples = length
            length = count_steps(length, batch_size, self.endless)
        self.steps_per_epoch = length
        super().__init__(1, min(reading.prefetch, 1))

    def length(self, step: int) -> int:
        """Images in a batch: one of the last two that were read."""
        return self._lengths.get(step, self.batch_size)

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step, mixed and erased in training; one thread at a time may ask.

        Goes forward to the step, from the start for an earlier one, and notes the length of the batch. Raises EndOfData
        after the last batch of test data, ValueError if a pipeline ends in training.
        """
        if step < self._next:
            self._restart()
        images, labels = self._pull(step)
        while self._next <= step:
            images, labels = self._pull(step)
        if self.classes:
            labels = one_hot(labels, self.classes)
        if self.endless:
            augmentation, seed = self._transform.augmentation, self._transform.seed
            for i, image in enumerate(images):
                if augmentation.randaugment is not None:
                    image = augmented(image, augmentation, [seed, RANDAUGMENT, step, i])
                images[i] = erased(image, augmentation, [seed, ERASING, step, i])
            images, labels = mixed(images, labels, augmentation, [seed, MIXUP, step])
        self._lengths = {step: len(images), step - 1: self._lengths.get(step - 1, len(images))}
        rows = share(len(images), self.shard)
        return images[rows], labels[rows]

    def _pull(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The next batch of the pipeline, on the way to a step; raises the errors of `_make` if there is none."""
        if self._first is not None:
            pulled, self._first = self._first, None
        else:
            pulled = next(self._good, None)
        if pulled is None:
            if not self.endless:
                raise EndOfData(f"The pipeline has {self._next} batches: there is none for step {step}.")
            raise ValueError(f"The pipeline ends after {self._next} batches and cannot be started again.")
        self._next += 1
        return pulled

    def _restart(self) -> None:
        """Starts the pipeline anew; ValueError for an iterator that was begun."""
        if hasattr(self._source, "__next__") and getattr(self, "_next", 0):
            raise ValueError("This iterator only goes forward. Give what it came from: a data set, or a list.")
        self._next, self._first, self._good = 0, None, self._good_batches()

    def _good_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields batches of good images and checked labels, epoch after epoch in training, also of single examples.

        Raises ValueError for bad ones unless they are skipped, and after 100 in a row.
        """
        waiting: list[tuple[np.ndarray, np.ndarray]] = []
        bad_in_a_row = 0
        while True:
            number = -1
            for number, element in enumerate(one_pass(self._source)):
                images, labels = _pair(element)
                self._single = images.ndim == 3 if self._transform is not None else labels.ndim == 0
                if self._single:
                    images, labels = images[None], labels[None]
                checked = self._checked(images, labels, f"{'example' if self._single else 'batch'} {number}")
                bad_in_a_row = 0 if checked is not None else bad_in_a_row + 1
                if bad_in_a_row == TOO_MANY:
                    raise ValueError(f"{TOO_MANY} in a row are bad, the last: {self.bad[-1].reason}")
                if checked is None:
                    continue
                waiting.append((self._resized(images), checked))
                if not self._single or len(waiting) == self.batch_size:
                    yield np.concatenate([x for x, _ in waiting]), np.concatenate([y for _, y in waiting])
                    waiting = []
            if waiting and not self.endless:
                yield np.concatenate([x for x, _ in waiting]), np.concatenate([y for _, y in waiting])
            if not self.endless or number < 0:
                return

    def _resized(self, images: np.ndarray) -> np.ndarray:
        """A batch as the stream returns it: float32 at the size; what a model takes already as it is."""
        if self._transform is None:
            return images
        size = self._transform.image_size
        if images.shape[1:3] != size and self.target != "mask":
            images = np.stack([resize_for_evaluation(image, size, self._transform.resize) for image in images])
        return images.astype("float32")

    def _checked(self, images: np.ndarray, labels: np.ndarray, where: str) -> np.ndarray | None:
        """The labels as `check_labels` returns them, or None for a bad batch, which is noted in `bad`.

        Raises ValueError for a bad batch unless such are skipped.
        """
        try:
            if self._transform is not None:
                check_pixels(images, self._transform.channels, name=where, scaled="raise")
                if not images.size:
                    raise ValueError(f"The images of {where}, {images.shape}, have no pixels.")
            if self.endless and images.shape[1:3] != self._transform.image_size:
                given, wanted = ("{} x {}".format(*size) for size in (images.shape[1:3], self._transform.image_size))
                hint = "Resize in the pipeline: keras_vit.preprocessing.resize_images."
                raise ValueError(f"The images of {where} are {given}, but the model takes {wanted}. {hint}")
            if len(images) != len(labels):
                raise ValueError(f"There are {len(images)} images but {len(labels)} labels in {where}.")
            if self.target == "mask":  # checked by `open_masks`
                return labels
            return check_labels(labels, self.classes or None, where, target=self.target)[0]
        except ValueError as error:
            if not self._skip:
                if self._transform is None:  # evaluation has no option to leave such batches out
                    raise
                raise ValueError(Message(f"{error} (Go on without: ", SKIP, ".)")) from error
            if all(image.path != where for image in self.bad):
                self.bad.append(BadImage(where, str(error)))
            return None


def one_pass(source: Any) -> Iterator[Any]:
    """Yields each batch or element of one epoch of a pipeline: a Keras `PyDataset`, or anything to iterate over."""
    if isinstance(source, keras.utils.PyDataset):
        for i in range(source.num_batches):
            yield source[i]
        source.on_epoch_end()
    else:
        yield from source


def _pair(element: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of what a pipeline yields, a pair or a dict; ValueError for anything else."""
    if isinstance(element, Mapping):
        images, labels = (next((element[k] for k in keys if k in element), None) for keys in (IMAGES, LABELS))
        if images is None or labels is None:
            raise ValueError(f"The pipeline yields {sorted(element)}, but 'image' and 'label' are needed.")
    elif isinstance(element, (tuple, list)) and len(element) == 2:
        images, labels = element
    else:
        wanted = "(images, labels), or a dict with 'image' and 'label'"
        raise ValueError(f"The pipeline must yield {wanted}, not a {type(element).__name__}.")
    return to_numpy(images), to_numpy(labels)
