"""Streams: batches of images and labels by the number of the step, made ahead by threads.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was read before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup and CutMix from (seed, step). So a run that was stopped goes on with the very batches
that it would have seen.

Pipelines (`tf.data`, grain, torch, Keras, or any iterable of (images, labels)) are used as they are, in their own order
and with their own crops and flips. Their images and labels are checked. Of an `Augmentation`, what mixes and recolours
finished images is added: RandAugment, erasing, mixup and CutMix. A pipeline only goes forward. To resume at step 1,000,
its first 1,000 batches are read and dropped: they are those of the first run if it always yields the same.
"""

import functools
import itertools
import math
import operator
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self

import keras
import numpy as np

from keras_vit._arguments import SKIP, Message, printable, to_numpy, warn_caller
from keras_vit._processes import cores, share
from keras_vit.data.augmentation import (
    MIXUP,
    ORDER,
    ImageTransform,
    finish,
    mixed,
    resize_for_evaluation,
)
from keras_vit.data.examples import (
    BadImage,
    Examples,
    Reading,
    Worker,
    check_labels,
    count_steps,
    sampled,
)
from keras_vit.preprocessing import check_pixels

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
TOO_MANY = 100  # bad batches or examples, one after another, end it
IMAGES, LABELS = ("image", "images", "pixel_values"), ("label", "labels")
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times


class EndOfData(IndexError):
    """Test data has no such batch. A class of its own: an `IndexError` that a pipeline raises is no end of data."""


class Stream(Protocol):
    """Batches by the number of the step: what a run and an evaluation read, whatever their data comes in.

    `open_data` returns one, and `map` makes others of it. Attributes and methods as those of `ImageStream`.

    Examples:
        >>> with data.open_data((pixels, labels), image_size=16, batch_size=2) as stream:
        ...     halved = stream.map(lambda step, images, labels: (images / 2, labels))
        ...     halved.batch(0)[0].shape
        (2, 16, 16, 3)
    """

    batch_size: int
    steps_per_epoch: int | None
    endless: bool
    shard: tuple[int, int]

    def batch(self, step: int) -> tuple[Any, ...]:
        """Returns the inputs and targets of a step; IndexError without such a batch, others as `ImageStream.batch`."""
        ...

    def length(self, step: int) -> int:
        """Returns the number of images in the whole batch of a step, of which `batch` returns the part of `shard`."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what decides the batches, as plain data for JSON."""
        ...

    def map(self, function: Callable[..., tuple[Any, ...]]) -> "Stream":
        """Returns the same stream with other batches: what `function(step, images, labels)` returns of each."""
        return _Mapped(self, function)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields all batches of test data, once; TypeError for training data, which has no end. Raises as `batch`."""
        if self.endless:
            raise TypeError("Training data has no end: ask for a step with stream.batch(step).")
        for step in itertools.count():
            try:
                batch = self.batch(step)
            except EndOfData:
                return
            yield batch


class _Mapped(Stream):
    """A stream whose batches are those of another one after a function; all else is that stream's."""

    def __init__(self, stream: Stream, function: Callable[..., tuple[Any, ...]]) -> None:
        self._stream, self._function = stream, function
        self.batch_size, self.steps_per_epoch = stream.batch_size, stream.steps_per_epoch
        self.endless, self.shard = stream.endless, stream.shard

    def batch(self, step: int) -> tuple[Any, ...]:
        return self._function(step, *self._stream.batch(step))

    def length(self, step: int) -> int:
        return self._stream.length(step)

    def describe(self) -> dict[str, Any]:
        return self._stream.describe()


class ImageStream(Stream):
    """Batches of images and labels by the number of the step; `open_data` makes it.

    Attributes:
        class_names: In the order of the labels, or `None` if they have no names.
        classes: How many there are; 0 of test data that does not say it; 1 for regression.
        target: What the labels are, as in `open_data`; also `"mask"` and `"segments"`.
        labels: All of them, in the data's order: int64 `(examples,)`, or float32 rows; None of pipelines.
        name: From an index in the data's order to what the image is called, such as its path; None of pipelines.
        examples: How many there are, or `None` if the data does not say.
        batch_size: Of full batches.
        steps_per_epoch: Full batches in the training data, at least 1; all batches of test data; `None` if unknown.
        endless: Whether it is training data: shuffled, augmented, and every batch full.
        shard: (i, n): of every batch `batch` returns the i-th of n parts. The other figures are those of whole batches.
        bad: What was left out, with reasons; it grows when a file turns out to be bad later.
        converted: Images that are not RGB with 8 bits, and what is done with them.

    Examples:
        >>> with data.open_data("photos", image_size=8, batch_size=2) as stream:
        ...     stream.class_names, stream.examples, stream.steps_per_epoch
        (['cat', 'dog'], 4, 2)
    """

    class_names: list[str] | None
    classes: int
    target: str
    labels: np.ndarray | None = None
    name: Callable[[int], str] | None = None
    examples: int | None = None
    bad: list[BadImage]
    converted: list[BadImage]
    # What only streams themselves read: what the data is, the number of batches where it is known to end there, and the
    # threads that read files.
    _origin: dict[str, Any]
    _last: int | None = None
    _readers: ThreadPoolExecutor | None = None

    def __init__(self, threads: int, prefetch: int) -> None:
        """Starts the threads that make batches; subclasses have set all other attributes before."""
        self._prefetch = prefetch
        self._ahead: dict[int, Future] = {}
        self._threads = ThreadPoolExecutor(threads, "keras_vit_batch")
        self._closed = self._reported = False
        self._report()

    def length(self, step: int) -> int:
        """Returns the number of images in the batch of a step: 0 after the last of test data.

        Where the number of examples is not known, it is the size of full batches.
        """
        rest = self.batch_size if self.endless or self.examples is None else self.examples - step * self.batch_size
        return max(0, min(self.batch_size, rest))

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a step, which one of the threads makes; here NotImplementedError."""
        raise NotImplementedError

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a step, and starts the next ones.

        Args:
            step: 0 for the first.

        Returns:
            Images, float32 `(batch, height, width, channels)` in 0..255, before any scaling; labels, float32
            `(batch, classes)`, one-hot or mixed, 0 and 1 for several labels, `(batch, 1)` for regression. Batches of
            training data are full. Those of test data come in order and may be shorter; where it is not known how many
            classes there are, their labels are int64 `(batch,)`. With masks in place of labels: int32
            `(batch, height, width)` in training, and lists of pictures and masks of their own sizes else.

        Raises:
            IndexError: if test data has no such batch, or the step is below 0.
            TypeError: if the step is no integer, or a pipeline yields what is no numbers; its own errors are raised.
            ValueError: if an image or label is bad and bad images are not skipped, single examples of a pipeline differ
                in shape, or the stream is closed.
            RuntimeError: if a worker process has ended.
            OSError: if a picture of segments cannot be opened, or a worker process cannot be started.
            ImportError: if a package that reads the images is missing.
        """
        step, last = operator.index(step), self._last
        if step < 0 or (last is not None and step >= last):
            raise EndOfData(f"step must be 0 or more{f' and below {last}' if last else ''}, but {step} was given.")
        if self._closed:
            raise ValueError("The stream is closed.")
        steps = range(step, step + 1 + self._prefetch)
        for other in [s for s in self._ahead if s not in steps]:
            self._ahead.pop(other).cancel()
        for s in steps:
            if s not in self._ahead and (last is None or s < last):
                self._ahead[s] = self._threads.submit(self._make, s)
        try:
            return self._ahead.pop(step).result()
        finally:
            self._report()

    def describe(self) -> dict[str, Any]:
        """Returns what decides the batches apart from the augmentation and the seed, as plain data for JSON."""
        counts = {"classes": self.classes, "examples": self.examples, "batch_size": self.batch_size}
        return self._origin | counts

    def close(self) -> None:
        """Ends what reads ahead, after the batches in work. A stream may be closed more than once."""
        self._closed = True
        self._threads.shutdown(cancel_futures=True)
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def _report(self) -> None:
        """Warns once of bad images, when the first are found."""
        if self.bad and not self._reported:
            self._reported, first = True, self.bad[0]
            what = "A bad image is" if len(self.bad) == 1 else f"{len(self.bad)} bad images are"
            warn_caller(f"{what} left out. {printable(first.path)}: {first.reason.rstrip('.')}. (stream.bad has all.)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ExampleStream(ImageStream):
    """Batches of examples, shuffled and without end where the transform has an augmentation, else in order."""

    def __init__(
        self,
        examples: Examples,
        transform: ImageTransform,
        batch_size: int,
        reading: Reading,
        shard: tuple[int, int],
        sampling: str | None,
    ) -> None:
        """Starts the threads that read; the arguments are those of `open_data`, which has checked them.

        Raises ValueError without images, for worker processes without files, for `sampling` without classes, and for
        variables of a launcher that make no sense.
        """
        self._data, self._transform, self._skip = examples, transform, reading.skip
        self._origin = {"source": examples.kind, "fingerprint": examples.fingerprint}
        self._origin |= {} if sampling is None else {"sampling": sampling}
        self.class_names, self.classes, self.batch_size = examples.class_names, examples.classes, batch_size
        self.target, self.labels, self.name = examples.target, examples.labels, examples.name
        self.examples, self.endless, self.shard = len(examples.labels), transform.augmentation is not None, shard
        if not self.examples:
            raise ValueError("data must hold images, but none of them can be read.")
        self.steps_per_epoch = count_steps(self.examples, batch_size, self.endless)
        self._last = None if self.endless else self.steps_per_epoch
        self.bad, self.converted = examples.bad, examples.converted
        processes = reading.processes
        if processes and examples.files is None:
            raise ValueError("processes=True is for image files; other data is read by threads: leave it out.")
        if processes is None:
            processes = examples.files is not None and self.endless and cores() >= MANY_CORES
        self._workers = reading.workers or min(32, cores())
        self._processes: list[Worker] = []
        self._free: queue.SimpleQueue[Worker] | None = queue.SimpleQueue() if processes else None
        self._unreadable: set[int] = set()
        draw = operator.methodcaller("permutation", self.examples) if sampling is None else sampled(examples, sampling)
        self._order = functools.lru_cache(2)(lambda epoch: draw(np.random.default_rng([transform.seed, ORDER, epoch])))
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(self._workers, "keras_vit_read")
        # Also where the stream is not closed.
        self._close_processes = weakref.finalize(self, lambda workers: [w.close() for w in workers], self._processes)
        # Two threads: images of the next batch are read while the last ones of this batch are, and while it is mixed.
        super().__init__(2 if reading.prefetch else 1, reading.prefetch)

    def close(self) -> None:
        """Ends the threads and processes that read. A stream may be closed more than once."""
        super().close()
        self._close_processes()

    def _make(self, step: int) -> tuple[Any, Any]:
        """Returns the images and labels, or masks, of a step, mixed in training; as `batch`, with its errors."""
        self._start_processes()
        places = self._places(step)
        part = share(len(places), self.shard)
        if self.target == "mask" and not self.endless:
            pairs = self._readers.map(self._read, [index for _, index in places[part]])
            good = [pair for pair in pairs if pair is not None]
            return [image for image, _ in good], [mask for _, mask in good]
        augmentation = self._transform.augmentation
        mixes = self.endless and bool(augmentation.mixup or augmentation.cutmix)
        # Both mix an image with the one before it; for the first of a part, that is the last of another part.
        before = [places[part.start - 1]] if mixes and part != slice(0, len(places)) else []
        images, indices = self._transformed(step, [*before, *places[part]])
        if self.target == "mask":  # the transform returns the mask behind the channels of the image
            return images[..., :-1], images[..., -1].astype("int32")
        labels = one_hot(self._data.labels[indices], self.classes)
        if mixes:
            images, labels = mixed(images, labels, augmentation, [self._transform.seed, MIXUP, step])
        return images[len(before) :], labels[len(before) :]

    def _start_processes(self) -> None:
        """Starts the worker processes, where there are to be some and none runs yet."""
        if self._free is not None:
            with self._lock:
                while len(self._processes) < self._workers:
                    self._processes.append(Worker(self._transform))
                    self._free.put(self._processes[-1])

    def _transformed(self, step: int, places: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the transformed images of some places, and the index of each, without those that cannot be read.

        Images are float32 `(images, height, width, channels)`, with a mask behind the channels where there are masks.
        Raises ValueError if none of a batch can be read, or one cannot and is not to be skipped; RuntimeError if a
        worker process has ended, ImportError if a package is missing.
        """
        channels = self._transform.channels + 1 if self.target == "mask" else self._transform.channels
        images = np.empty((len(places), *self._transform.image_size, channels), "float32")
        if not places:
            return images, np.empty(0, "int64")
        size = math.ceil(len(places) / (PIECES * self._workers))
        pieces = [slice(i, i + size) for i in range(0, len(places), size)]
        read = self._readers.map(lambda piece: self._fill(images[piece], places[piece]), pieces)
        indices = np.concatenate(list(read))
        good = indices >= 0
        # A part of a test batch may have no good image, where another process has some.
        if not good.any() and (self.endless or self.shard[1] == 1):
            raise ValueError(f'None of the images of batch {step} can be read. Leave them out: check="decode".')
        return (images, indices) if good.all() else (images[good], indices[good])

    def _places(self, step: int) -> list[tuple[int, int]]:
        """Returns (epoch, index) of each image of a batch; where an epoch ends within it, the next one fills it."""
        first = step * self.batch_size
        if not self.endless:
            return [(0, i) for i in range(first, min(first + self.batch_size, self.examples))]
        places = (divmod(place, self.examples) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def _fill(self, images: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
        """Fills `images` with the transformed images of some places; returns the indices, int64, -1 for none.

        What a worker process cannot read is read again here, for its error. Raises ValueError for an image that cannot
        be read unless such are skipped, RuntimeError if the process has ended, ImportError if a package is missing.
        """
        rest = range(len(places))
        indices = np.array([index for _, index in places], "int64")
        if self._free is not None and not self._unreadable.intersection(indices.tolist()):
            worker = self._free.get()
            try:
                rest = worker.make([(str(self._data.files[i]), epoch, i) for epoch, i in places], images)
            finally:
                self._free.put(worker)
        for slot in rest:
            indices[slot] = self._fill_one(images[slot], *places[slot])
        return indices

    def _fill_one(self, image: np.ndarray, epoch: int, index: int) -> int:
        """Fills `image` with the transformed image of an index, in training the next good one; returns its index or -1.

        -1 where it is bad and skipped, and none takes its place. Raises ValueError for a bad one that is not skipped,
        ImportError if a package is missing.
        """
        for i in range(index, index + (self.examples if self.endless else 1)):
            i %= self.examples
            pixels = self._read(i)
            if pixels is not None:
                image[...] = self._transform(pixels, epoch, index)
                return i
        return -1

    def _read(self, i: int) -> np.ndarray | None:
        """Returns what `examples.read` does, or None for a bad image, which is added to `bad` and not read again.

        Raises ValueError for it unless such are skipped, or memory was short; ImportError if a package is missing.
        """
        try:
            return None if i in self._unreadable else self._data.read(i)
        except ImportError:  # a package is missing, the file is not to blame
            raise
        except Exception as error:  # A disk that fails and a decoder that does are the same here: no image.
            name = self._data.name(i)
            reason = str(error) if name in str(error) else f"{name}: {error}"
            if not self._skip or isinstance(error, MemoryError):
                words = f"{reason} Repair the file, or go on without: "
                raise ValueError(Message(words, SKIP, ".")) from error
            with self._lock:
                if i not in self._unreadable:
                    self._unreadable.add(i)
                    self.bad.append(BadImage(name, str(error)))
            return None


# Pipelines


def is_pipeline(source: Any) -> bool:
    """Whether a source is a pipeline: iterable, and no text, array, dict, tuple or set; a list only if of batches.

    A list is one of batches if each of its items is a dict or a pair.
    """
    if isinstance(source, keras.utils.PyDataset):
        return True
    if isinstance(source, list):
        return bool(source) and all(
            isinstance(item, Mapping) or (isinstance(item, tuple) and len(item) == 2) for item in source
        )
    return hasattr(source, "__iter__") and not isinstance(source, (str, bytes, Mapping, tuple, list, np.ndarray, set))


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Returns int64 labels `(n,)` as float32 rows `(n, classes)`, 1 in the column of each class; others as given.

    Raises IndexError for a label that is not below `classes`, which `check_labels` has refused.
    """
    if labels.ndim >= 2:
        return labels
    rows = np.zeros((len(labels), classes), dtype="float32")
    rows[np.arange(len(labels)), labels] = 1
    return rows


class PipelineStream(ImageStream):
    """The batches of a pipeline, which goes forward only and starts anew for an earlier step.

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
        """Pulls the first batch, which shows the kind of labels; the arguments are those of `open_data`.

        Warns where its size is not `batch_size` in training. Raises ValueError if there is none, it is bad and not to
        be skipped, or in training nothing says how many classes there are; TypeError for images or labels that are no
        numbers; and what the pipeline raises.
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
        if not self._single:  # test data, too, is filled up to no more than this
            self.batch_size = len(images)
        try:
            length = source.num_batches if isinstance(source, keras.utils.PyDataset) else len(source)
        except TypeError:  # Of unknown or infinite length.
            length = None
        if length is not None and self._single:
            self.examples = length
            length = count_steps(length, batch_size, self.endless)
        # Without batches that are left out there may be fewer.
        self.steps_per_epoch = None if reading.skip and not self.endless else length
        super().__init__(1, min(reading.prefetch, 1))

    def length(self, step: int) -> int:
        """Returns the number of images in a batch: known of the last two that were read, else that of full batches."""
        return self._lengths.get(step, self.batch_size)

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a step, in training with all that the augmentation adds to pipelines.

        Goes forward to the step, from the start for an earlier one, and notes the length of the batch; one thread at a
        time may call it. Raises EndOfData after the last batch of test data, ValueError if a pipeline ends in training
        or cannot start anew, and as `_good_batches`.
        """
        if step < self._next:
            self._restart()
        images, labels = self._pull(step)
        while self._next <= step:
            images, labels = self._pull(step)
        if self.classes and self.target != "mask":
            labels = one_hot(labels, self.classes)
        if self.endless:
            augmentation, seed = self._transform.augmentation, self._transform.seed
            for i, image in enumerate(images):
                images[i] = finish(image, augmentation, seed, (step, i))
            images, labels = mixed(images, labels, augmentation, [seed, MIXUP, step])
        self._lengths = {step: len(images), step - 1: self._lengths.get(step - 1, len(images))}
        rows = share(len(images), self.shard)
        return images[rows], labels[rows]

    def _pull(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the next batch on the way to a step; EndOfData, ValueError, TypeError as `_make`, or the source's."""
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
        """Sets the stream to the start of the pipeline; ValueError for an iterator of which a batch was returned."""
        if hasattr(self._source, "__next__") and getattr(self, "_next", 0):
            raise ValueError("This iterator only goes forward. Give what it came from: a data set, or a list.")
        self._next, self._first, self._good = 0, None, self._good_batches()

    def _good_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields batches of good images and checked labels, epoch after epoch in training.

        Single examples are put together, test pictures and masks as lists; what is bad and skipped is added to `bad`.
        Raises ValueError for what is no pair, for bad batches unless they are skipped, after 100 of these in a row, and
        for single examples that differ in shape; TypeError for what is no numbers; and what the pipeline raises.
        """
        waiting: list[tuple[np.ndarray, np.ndarray]] = []
        bad_in_a_row = 0
        while True:
            number = -1
            for number, element in enumerate(one_pass(self._source)):
                images, labels = image_pair(element)
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
                    yield self._joined(waiting)
                    waiting = []
            if waiting and not self.endless:
                yield self._joined(waiting)
            if not self.endless or number < 0:
                return

    def _joined(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, Any]:
        """Returns images and labels, or masks, of some parts as a batch: lists of test pictures and their masks.

        Raises ValueError for single examples that differ in shape.
        """
        if self.target == "mask" and not self.endless:
            return [image for images, _ in parts for image in images], [mask for _, masks in parts for mask in masks]
        shapes = sorted({(images.shape[1:], labels.shape[1:]) for images, labels in parts})
        if len(shapes) > 1:
            found = " and ".join("{} with labels {}".format(*shape) for shape in shapes[:2])
            raise ValueError(f"Single examples of {found} make no batch: give batch_size=1, or batches of one shape.")
        return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])

    def _resized(self, images: np.ndarray) -> np.ndarray:
        """Returns images as a stream does: float32 at the size, with masks at theirs; without a transform as given."""
        if self._transform is None:
            return images
        size = self._transform.image_size
        if images.shape[1:3] != size and self.target != "mask":
            images = np.stack([resize_for_evaluation(image, size, self._transform.resize) for image in images])
        return images.astype("float32")

    def _checked(self, images: np.ndarray, labels: np.ndarray, where: str) -> np.ndarray | None:
        """Returns labels as `check_labels` does, masks as numbers of classes, or None for a bad batch.

        A bad one is added to `bad`, once. Raises ValueError for it unless such are skipped, and TypeError for what is
        no numbers.
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
            if self.target == "mask":
                return self._source.checked(labels, images.shape[:-1], where)
            if not images.ndim or not labels.ndim or len(images) != len(labels):
                counts = [len(of) if of.ndim else "one" for of in (images, labels)]
                raise ValueError(f"There are {counts[0]} images but {counts[1]} labels in {where}.")
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
    """Yields each batch or element of one epoch of a pipeline; of a Keras `PyDataset` it ends the epoch as well.

    Raises TypeError if the source is neither that nor iterable, and what the pipeline raises.
    """
    if isinstance(source, keras.utils.PyDataset):
        for i in range(source.num_batches):
            yield source[i]
        source.on_epoch_end()
    else:
        yield from source


def image_pair(element: Any, keys: Sequence[str] = LABELS) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images, and the labels or masks, of what a pipeline yields: a pair, or a dict.

    `keys` are names that a dict may have for the second, such as `"label"`. Raises ValueError for anything else.
    """
    if isinstance(element, Mapping):
        images, labels = (next((element[k] for k in names if k in element), None) for names in (IMAGES, keys))
        if images is None or labels is None:
            raise ValueError(f"The pipeline yields {sorted(element)}, but 'image' and {keys[0]!r} are needed.")
    elif isinstance(element, (tuple, list)) and len(element) == 2:
        images, labels = element
    else:
        wanted = f"(images, {keys[0]}s), or a dict with 'image' and {keys[0]!r}"
        raise ValueError(f"The pipeline must yield {wanted}, not a {type(element).__name__}.")
    return to_numpy(images), to_numpy(labels)


# For Keras
