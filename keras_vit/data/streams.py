"""Streams: batches of images and labels by the number of the step, made ahead by threads, which Keras's `fit` takes.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was read before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup and CutMix from (seed, step). So a run that was stopped goes on with the very batches
that it would have seen.

Pipelines of other libraries are used as they are, in their own order and with their own crops and flips. What they
yield is checked. Of an `Augmentation`, what mixes and recolours finished images is added: RandAugment, erasing, mixup
and CutMix; views are made. A pipeline only goes forward. To resume at step 1,000, its first 1,000 batches are read and
dropped: they are those of the first run if it always yields the same.
"""

import contextlib
import functools
import itertools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import keras
import numpy as np

from keras_vit._arguments import SKIP, printable, warn_caller
from keras_vit._processes import cores, share
from keras_vit.data import examples as base
from keras_vit.data.augmentation import MIXUP, ORDER, ImageTransform, Transform, draws, resize_for_evaluation
from keras_vit.data.random_operations import mixed
from keras_vit.data.targets import CLASS, NONE, TARGETS, TargetKind
from keras_vit.data.workers import Worker, is_importable
from keras_vit.preprocessing import check_pixels

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times
TOO_MANY = 100  # bad batches or examples, one after another, end it
SEVERAL = 4  # images, over which it is judged whether they are scaled already


class EndOfData(IndexError):
    """Test data has no such batch. A class of its own: an `IndexError` that a pipeline raises does not end the data."""


def _refuse_workers(stream: Any, value: int) -> None:
    if value is True or value not in (0, 1):
        advice = "Pass workers= or processes= to open_data."
        raise ValueError(f"A stream reads ahead by itself, in its own order, but {value} workers were given. {advice}")


class Stream(keras.utils.PyDataset):
    """Batches of data by step number, and a data set of Keras: `fit`, `evaluate` and `predict` take it as it is.

    `open_data` returns a stream, and `map` transforms one. Attributes and methods are as in `ImageStream`.

    For Keras, an epoch of training data has `steps_per_epoch` batches, and the next one goes on with those after them.
    Pass `shuffle=False` to `fit` to keep their order, and for data of unknown length `steps_per_epoch`. To resume a run
    of your own, set `start` before `fit`. The workers of `open_data` make batches ahead; those of Keras would take them
    out of their order, so `stream.workers = 2` is a ValueError.

    Attributes:
        start: The step that the next epoch of Keras begins with, 0 at first. Each epoch of training data moves it on.

    Examples:
        >>> stream = data.open_data((pixels, labels), image_size=8, batch_size=2)
        >>> small.compile("sgd", "categorical_crossentropy")
        >>> normalized = stream.map(lambda step, images, labels: (small.preprocess(images), labels))
        >>> history = small.fit(normalized, epochs=3, shuffle=False, verbose=0)
        >>> normalized.start == 3 * stream.steps_per_epoch
        True
    """

    batch_size: int
    steps_per_epoch: int | None
    endless: bool
    shard: tuple[int, int]
    start: int = 0
    workers = property(lambda stream: 1, _refuse_workers)  # of Keras, and so is:
    use_multiprocessing = property(lambda stream: False, _refuse_workers)

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[int] = set()  # the places in Keras's epoch whose batches it has

    def batch(self, step: int) -> tuple[Any, ...]:
        """Returns the inputs and targets of a step; errors as in `ImageStream.batch`."""
        raise NotImplementedError

    def length(self, step: int) -> int:
        """Returns the number of images in the whole batch of a step, over all shards."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Returns a JSON-ready dict that identifies the batches, as `ImageStream.describe`."""
        raise NotImplementedError

    def map(self, function: Callable[..., tuple[Any, ...]]) -> "Stream":
        """Returns a stream whose batches are the results of `function(step, images, labels)`."""
        return _Mapped(self, function)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields all batches of test data, once; TypeError for training data, which has no end. Raises as `batch`."""
        if self.endless:
            raise TypeError("Training data has no end, so it cannot be iterated. Use stream.batch(step).")
        for step in itertools.count():
            try:
                batch = self.batch(step)
            except EndOfData:
                return
            yield batch

    @property
    def num_batches(self) -> int | None:
        """The number of batches in an epoch of Keras, `steps_per_epoch`."""
        return self.steps_per_epoch

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns the batch of a place in the epoch of Keras, counted from `start`. Raises as `batch`."""
        self._taken.add(index)
        return self.batch(self.start + index)

    def on_epoch_end(self) -> None:
        """Moves `start` on by `steps_per_epoch` batches after a whole epoch of endless data; Keras calls it."""
        # Keras also calls it when it has read one batch, or two, only to build a model.
        if self.endless and self.steps_per_epoch is not None and len(self._taken) >= self.steps_per_epoch:
            self.start += self.steps_per_epoch
        self._taken.clear()


class _Mapped(Stream):
    def __init__(self, stream: Stream, function: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__()
        self._stream, self._function = stream, function
        self.batch_size, self.steps_per_epoch = stream.batch_size, stream.steps_per_epoch
        self.endless, self.shard, self.start = stream.endless, stream.shard, stream.start
        self.length, self.describe = stream.length, stream.describe

    def batch(self, step: int) -> tuple[Any, ...]:
        return self._function(step, *self._stream.batch(step))


class Batches(keras.utils.PyDataset):
    """A Keras data set of chosen batches, for `model.fit` and `model.evaluate`.

    Args:
        batch: Function from a batch's number to `(inputs, targets)` or `(inputs, targets, weights)`, such as
            `stream.batch`.
        steps: The numbers of the batches, in order. Pass `shuffle=False` to `model.fit` to keep it.

    Examples:
        >>> batches = data.Batches(lambda step: (small_images, labels), range(10))
        >>> len(batches)
        10
    """

    def __init__(self, batch: Callable[[int], tuple[Any, ...]], steps: Sequence[int]) -> None:
        super().__init__()
        self._batch, self._steps = batch, steps
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        try:
            return self._batch(self._steps[index])
        except Exception as error:
            self._error = error
            raise

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """Context manager for `fit` and `evaluate`: raises an error of a batch unchanged, which TensorFlow wraps."""
        try:
            yield
        except Exception as error:
            if self._error is not None and error is not self._error:
                raise self._error from None
            raise


class ImageStream(Stream):
    """Batches of images and labels by step number; `open_data` makes it.

    Attributes:
        class_names: Class names in the order of the labels; `None` if the classes have no names.
        classes: Number of classes; 0 for test data without this information, 1 for regression.
        target: Name of the kind of the labels, as in `open_data`, or of the opened data.
        kind: The `TargetKind` of this name.
        labels: All labels, in the data's order: int64 `(examples,)`, or float32 rows; None for pipelines.
        name: Function from an index in the data's order to the image's name, such as its path; None for pipelines.
        examples: Number of examples, or `None` if the data does not say.
        batch_size: Images in a full batch.
        steps_per_epoch: Full batches in the training data, at least 1; all batches of test data; `None` if unknown.
        endless: Whether this is training data: shuffled, augmented, and every batch full.
        shard: (i, n): `batch` returns the i-th of n parts of each batch. All counts are for whole batches.
        bad: Images that were left out, as a list of `BadImage`; it grows while files are read.
        converted: Images that are not RGB with 8 bits, and how they are converted.

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
    bad: list[base.BadImage]
    converted: list[base.BadImage]
    # What only streams themselves read: what the data is, the number of batches where it is known to end there, and the
    # threads that read files.
    _origin: dict[str, Any]
    _last: int | None = None
    _readers: ThreadPoolExecutor | None = None

    @property
    def kind(self) -> TargetKind:
        return TARGETS[self.target]

    def __init__(self, threads: int, prefetch: int) -> None:
        """Starts the threads that make batches; subclasses have set all other attributes before."""
        super().__init__()
        self._prefetch, self._lock = prefetch, threading.Lock()
        self._ahead: dict[int, Future] = {}
        self._threads = ThreadPoolExecutor(threads, "keras_vit_batch")
        self._closed = self._reported = False
        self._report()

    def length(self, step: int) -> int:
        """Returns the number of images in the batch of `step`: 0 after the last; `batch_size` if it is unknown."""
        rest = self.batch_size if self.endless or self.examples is None else self.examples - step * self.batch_size
        return max(0, min(self.batch_size, rest))

    def _stacked(self, targets: list[Any]) -> Any:
        """Returns targets that are not labels as a batch has them."""
        stack = self.kind.stack if self.endless else None
        return targets if stack is None else stack(targets, self.transform.image_size)

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a step, which one of the threads makes; here NotImplementedError."""
        raise NotImplementedError

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a step, and starts the next ones. `step` is 0 for the first.

        Images are float32 `(batch, height, width, channels)` in 0..255, before normalisation. Labels are float32
        `(batch, classes)`, one-hot or mixed, 0 and 1 for several labels, `(batch, 1)` for regression. If the number of
        classes of test data is not known, they are int64 `(batch,)`. The last batch of test data may be shorter. Masks
        are int32 `(batch, height, width)` in training; otherwise images and masks are lists, because their sizes
        differ.

        Raises:
            IndexError: if test data has no such batch, or the step is below 0.
            TypeError, ValueError: if an image or label is bad and not skipped, or the stream is closed.
            OSError, RuntimeError, ImportError: if a file cannot be read, a worker has ended, or a package is missing.
        """
        step, last = operator.index(step), self._last
        if step < 0 or (last is not None and step >= last):
            raise EndOfData(f"step must be 0 or more{f' and below {last}' if last else ''}, but {step} was given.")
        if self._closed:
            raise ValueError("The stream is closed. Open the data again with open_data.")
        steps = range(step, step + 1 + self._prefetch)
        with self._lock:
            for other in [s for s in self._ahead if s not in steps]:
                self._ahead.pop(other).cancel()
            for s in steps:
                if s not in self._ahead and (last is None or s < last):
                    self._ahead[s] = self._threads.submit(self._make, s)
            made = self._ahead.pop(step)
        try:
            return made.result()
        finally:
            self._report()

    def describe(self) -> dict[str, Any]:
        """Returns a JSON-ready dict of the source, its fingerprint, the classes, the examples and the batch size."""
        counts = {"classes": self.classes, "examples": self.examples, "batch_size": self.batch_size}
        return self._origin | counts

    def contents(self) -> str | None:
        """Returns a fingerprint of the pictures and their labels; None for pipelines, which cannot be compared."""
        return None

    def close(self) -> None:
        """Ends the threads and processes that read ahead. A stream may be closed more than once."""
        self._closed = True
        self._threads.shutdown(cancel_futures=True)
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def _report(self) -> None:
        """Warns once of bad images, when the first are found."""
        if self.bad and not self._reported:
            self._reported, first = True, self.bad[0]
            what = "A bad image is" if len(self.bad) == 1 else f"{len(self.bad)} bad images are"
            reason = f"{printable(first.path)}: {first.reason.rstrip('.')}."
            warn_caller(f"{what} left out. {reason} stream.bad lists all bad images.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Returns int64 labels `(n,)` as float32 rows `(n, classes)`, 1 in the column of each class; others as given."""
    if labels.ndim >= 2:
        return labels
    rows = np.zeros((len(labels), classes), dtype="float32")
    rows[np.arange(len(labels)), labels] = 1
    return rows


class ExampleStream(ImageStream):
    """Batches of examples, shuffled and without end in training, else in order."""

    def __init__(
        self,
        examples: base.Examples,
        transform: Transform,
        batch_size: int,
        reading: base.Reading,
        shard: tuple[int, int],
        sampling: str | None,
    ) -> None:
        self._data, self.transform, self._skip, self.task = examples, transform, reading.skip, examples.task
        self._origin = {"source": examples.kind, "fingerprint": examples.fingerprint}
        self._origin |= {} if sampling is None else {"sampling": sampling}
        self.class_names, self.classes, self.batch_size = examples.class_names, examples.classes, batch_size
        self.target, self.labels, self.name = examples.target, examples.labels, examples.called
        self.examples, self.endless, self.shard = len(examples), transform.augmentation is not None, shard
        if not self.examples:
            raise ValueError("data must hold images, but none of them can be read.")
        self.steps_per_epoch = base.count_steps(self.examples, batch_size, self.endless)
        self._last = None if self.endless else self.steps_per_epoch
        self.bad, self.converted = examples.bad, examples.converted
        processes = reading.processes
        if processes and not examples.in_files:
            raise ValueError("processes=True needs image files, but the data is in memory. Leave processes out.")
        if processes and not is_importable(examples, transform):
            advice = "Move its classes and functions from the program to a module, or leave processes out."
            raise ValueError(f"processes=True needs what other processes can import. {advice}")
        if processes is None:
            processes = examples.in_files and self.endless and cores() >= MANY_CORES
            processes = processes and is_importable(examples, transform)
        workers = reading.workers or min(32, cores())
        self._pieces = PIECES * workers  # of a batch
        self._own = threading.local() if processes else None  # the process of each thread that reads
        self._processes: list[Worker] = []
        self._unreadable: set[int] = set()
        draw = (
            operator.methodcaller("permutation", self.examples)
            if sampling is None
            else base.sampled(examples, sampling)
        )
        self._order = functools.lru_cache(2)(lambda epoch: draw(np.random.default_rng([transform.seed, ORDER, epoch])))
        self._readers = ThreadPoolExecutor(workers, "keras_vit_read")
        # Also where the stream is not closed.
        self._close_processes = weakref.finalize(self, lambda workers: [w.close() for w in workers], self._processes)
        # Two threads: images of the next batch are read while the last ones of this batch are, and while it is mixed.
        super().__init__(2 if reading.prefetch else 1, reading.prefetch)

    def contents(self) -> str:
        return self._data.contents

    def close(self) -> None:
        """Ends the threads and processes that read. A stream may be closed more than once."""
        super().close()
        self._close_processes()

    def _make(self, step: int) -> tuple[Any, Any]:
        places, mixes, shape = self._places(step), self.transform.mixes, self.transform.shape
        part = share(len(places), self.shard)
        # Both mix an image with the one before it; for the first of a part, that is the last of another part.
        before = [places[part.start - 1]] if mixes and part != slice(0, len(places)) else []
        places = [*before, *places[part]]
        count = len(places)
        images: Any = [None] * count if shape is None else np.empty((count, *shape), "float32")
        size = math.ceil(count / self._pieces) or 1
        pieces = [range(i, min(i + size, count)) for i in range(0, count, size)]
        read = self._readers.map(lambda slots: self._read_piece(slots, places, images), pieces)
        made = dict(itertools.chain.from_iterable(read))
        # A part of a test batch may have no good image, where another process has some.
        if places and not made and (self.endless or (shape is not None and self.shard[1] == 1)):
            if self.bad:
                raise ValueError(f'None of the images of batch {step} can be read. Pass check="decode".')
            raise ValueError(f"None of the images of batch {step} has a segment in its crop. Check the segments.")
        if len(made) < count:
            images = [images[slot] for slot in sorted(made)] if shape is None else images[sorted(made)]
        indices, targets = [made[slot][0] for slot in sorted(made)], [made[slot][1] for slot in sorted(made)]
        if self.kind.is_label:
            targets = one_hot(self.labels[np.array(indices, "int64")], self.classes)
        else:
            targets = self._stacked(targets)
        if mixes:
            seed = [self.transform.seed, MIXUP, step]
            images, targets = mixed(images, targets, self.transform.augmentation, seed)
        return images[len(before) :], targets[len(before) :]

    def _places(self, step: int) -> list[tuple[int, int]]:
        """Returns (epoch, index) of each image of a batch; where an epoch ends within it, the next one fills it."""
        first = step * self.batch_size
        if not self.endless:
            return [(0, i) for i in range(first, min(first + self.batch_size, self.examples))]
        places = (divmod(place, self.examples) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def _read_piece(self, slots: range, places: Any, images: Any) -> list[tuple[int, tuple[int, Any]]]:
        """Fills slots of a batch with the pictures of their places; returns each with its index and target."""
        made: dict[int, tuple[int, Any]] = {}
        if self._own is not None and not self._unreadable.intersection(places[slot][1] for slot in slots):
            if not hasattr(self._own, "worker"):
                self._own.worker = Worker(self._data, self.transform)
                self._processes.append(self._own.worker)
            requests = [(*self._data.request(places[slot][1]), *places[slot]) for slot in slots]
            for slot, one in zip(slots, self._own.worker.make(requests), strict=True):
                if one is not None:
                    images[slot], made[slot] = one[0], (places[slot][1], one[1])
        for slot in slots:  # What a process cannot make, this thread tries: it has the errors, and the next good one.
            if slot not in made and (example := self._example(*places[slot])) is not None:
                index, images[slot], target = example
                made[slot] = index, target
        return list(made.items())

    def _example(self, epoch: int, index: int) -> tuple[int, Any, Any] | None:
        """Returns index, picture and target of an example, in training the next good one; None if there is none."""
        draw = draws(self.transform.seed, epoch, index)
        for i in range(index, index + (self.examples if self.endless else 1)):
            i %= self.examples
            example = self._read(i)
            made = None if example is None else self.transform(*example, draw)
            if made is not None:
                return i, *made
        return None

    def _read(self, i: int) -> tuple[np.ndarray, Any] | None:
        """Returns what `examples.read` does, or None for a bad example, which is added to `bad` and not read again."""
        try:
            return None if i in self._unreadable else self._data.read(i)
        except (ImportError, MemoryError):  # the file is not to blame
            raise
        except Exception as error:  # A disk that fails and a decoder that does are the same here: no image.
            name = self._data.called(i)
            reason = str(error) if name in str(error) else f"{name}: {error}"
            if not self._skip:
                raise ValueError(f"{reason} Repair the file, or pass {SKIP} to leave it out.") from error
            with self._lock:
                if i not in self._unreadable:
                    self._unreadable.add(i)
                    self.bad.append(base.BadImage(name, str(error)))
            return None


class Labels(NamedTuple):
    """What the labels of a pipeline are, as opened masks, segments and boxes say it of themselves."""

    target: str
    classes: int | None
    class_names: list[str] | None
    task: str = ""

    def checked(self, target: Any, size: tuple[int, ...], where: str) -> Any:
        return TARGETS[self.target].check(target, size, where)


class PipelineStream(ImageStream):
    """The batches of a pipeline, which goes forward only and starts again for an earlier step.

    It yields batches, which keep their size, or single examples of (images, labels), or dicts of these. Without an
    augmentation it is gone through once; without a transform, images are what a model takes, of any shape and unit.
    """

    def __init__(
        self,
        source: Any,
        kind: Any,
        transform: Transform | None,
        batch_size: int,
        reading: base.Reading,
        shard: tuple[int, int],
    ) -> None:
        """Pulls the first batch, which shows the kind of labels. `kind`: `Labels`, or data that checks its targets."""
        self.target, self.task, self.converted = kind.target, kind.task, []
        self.class_names = list(kind.class_names or ()) or None
        self._source, self._about, self.transform, self._skip, self.shard = source, kind, transform, reading.skip, shard
        self._origin = {"source": type(source).__name__}
        self.endless = transform is not None and transform.augmentation is not None
        if not self.endless and base.has_no_end(source):
            advice = "Pass data with an end, such as data.take(100) of a tf.data.Dataset."
            raise ValueError(f"The pipeline never ends, so not all of its images can be read. {advice}")
        # Whether batches are lists: pictures have sizes of their own, or become views.
        self._in_lists = transform is not None and (transform.shape is None or transform.any_size)
        self.batch_size, self.classes = batch_size, kind.classes or 0
        self.bad: list[base.BadImage] = []
        self._single = False  # Whether examples come one by one.
        self._recent: list[np.ndarray] = []  # the extremes of images of small batches
        self._lengths: dict[int, int] = {}  # of the last two batches
        self._restart()
        first = next(self._good, None)
        if first is None:
            why = f": {self.bad[0].reason}" if self.bad else "."
            raise ValueError(f"data must hold images, but the pipeline has no good image{why}")
        self._good = itertools.chain([first], self._good)
        images, labels = first
        unknown = self.kind.is_label and not self.classes
        if unknown and labels.ndim == 2 and (labels.shape[1] > 1 or self.kind is not CLASS):
            self.classes = labels.shape[1]
        elif unknown and self.endless:
            raise ValueError("The labels of the pipeline are class numbers. Pass the number of classes as classes=.")
        if self.endless and len(images) != batch_size:
            given = f"The pipeline yields batches of {len(images)}, not of batch_size={batch_size}"
            warn_caller(f"{given}. They are used as they are.")
        if not self._single:  # test data, too, is filled up to no more than this
            self.batch_size = len(images)
        length = None if base.has_no_end(source) else base.length_of(source)
        if length is not None and self._single:
            self.examples = length
            length = base.count_steps(length, batch_size, self.endless)
        # Without batches that are left out there may be fewer.
        self.steps_per_epoch = None if reading.skip and not self.endless else length
        super().__init__(1, min(reading.prefetch, 1))

    def length(self, step: int) -> int:
        """Returns the number of images in a batch: known of the last two that were read, else that of full batches."""
        return self._lengths.get(step, self.batch_size)

    def _make(self, step: int) -> tuple[Any, Any]:
        """Goes forward to the step, from the start for an earlier one; one thread at a time may call it."""
        if step < self._next:
            self._restart()
        for images, labels in self._good:  # noqa: B007 - both are used after the loop
            self._next += 1
            if self._next > step:
                break
        else:
            if not self.endless:
                raise EndOfData(f"step must be below {self._next}, the batches of the pipeline, but {step} was given.")
            advice = "Pass a data set or list that can be read again."
            raise ValueError(f"The pipeline ends after {self._next} batches. {advice}")
        if self.classes and self.kind.is_label:
            labels = one_hot(labels, self.classes)
        if self.endless:
            seed, finished = self.transform.seed, self.transform.finished
            made = [finished(image, draws(seed, step, i)) for i, image in enumerate(images)]
            images = np.stack(made).astype("float32", copy=False)
            if self.transform.mixes:
                images, labels = mixed(images, labels, self.transform.augmentation, [seed, MIXUP, step])
        self._lengths = {step: len(images), step - 1: self._lengths.get(step - 1, len(images))}
        rows = share(len(images), self.shard)
        return images[rows], labels[rows]

    def _restart(self) -> None:
        if hasattr(self._source, "__next__") and getattr(self, "_next", 0):
            raise ValueError("This iterator can be read only once. Pass its source instead: a data set, or a list.")
        self._next, self._good = 0, self._good_batches()

    def _good_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yields batches of good images and checked labels, epoch after epoch in training; puts examples together."""
        waiting: list[tuple[np.ndarray, Any]] = []
        bad_in_a_row = 0
        while True:
            number = -1
            for number, element in enumerate(base.one_pass(self._source)):
                images, labels = base.pair_of(element, self.kind)
                self._single = images.ndim == 3 if self.transform is not None else labels.ndim == 0
                if self._single:
                    images, labels = images[None], [labels]
                checked = self._checked(images, labels, f"{'example' if self._single else 'batch'} {number}")
                bad_in_a_row = 0 if checked is not None else bad_in_a_row + 1
                if bad_in_a_row == TOO_MANY:
                    what = "examples" if self._single else "batches"
                    raise ValueError(f"{TOO_MANY} {what} in a row are bad. The last one: {self.bad[-1].reason}")
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

    def _joined(self, parts: list[tuple[np.ndarray, Any]]) -> tuple[Any, Any]:
        """Returns images and labels, or masks, of some parts as a batch."""
        shapes = sorted({(images.shape[1:], np.shape(labels[0])) for images, labels in parts})
        if len(shapes) > 1 and not self._in_lists:
            found = " and ".join("{} with labels {}".format(*shape) for shape in shapes[:2])
            raise ValueError(f"Examples of a batch must have one shape, but have {found}. Pass batch_size=1.")
        images: Any = [image for images, _ in parts for image in images]
        labels: Any = [label for _, labels in parts for label in labels]
        if not self._in_lists:
            images = np.concatenate([images for images, _ in parts])
        if self.kind.is_label:
            return images, np.concatenate([labels for _, labels in parts])
        return images, self._stacked(labels)

    def _resized(self, images: np.ndarray) -> np.ndarray:
        """Returns images as a stream does: float32 at the size, with masks at theirs; without a transform as given."""
        transform = self.transform
        if transform is None or transform.any_size:
            return images
        if images.shape[1:3] != transform.image_size and isinstance(transform, ImageTransform):
            size, resize = transform.image_size, transform.resize
            images = np.stack([resize_for_evaluation(image, size, resize) for image in images])
        return images.astype("float32")

    def _check_pixels(self, images: np.ndarray, where: str) -> None:
        """Checks images; whether they are scaled already is judged over several of them, because one may be dark."""
        several = len(images) >= SEVERAL or images.dtype == "uint8"
        check_pixels(images, self.transform.channels, name=where, scaled="raise" if several else "ignore")
        self._recent = [] if several else [*self._recent, *map(base.extremes, images)][-SEVERAL:]
        if len(self._recent) == SEVERAL:
            where = f"{where} and earlier images"
            check_pixels(np.stack(self._recent), self.transform.channels, name=where, scaled="raise")

    def _checked(self, images: np.ndarray, labels: Any, where: str) -> Any:
        """Returns labels as their kind checks them, or None for a bad batch, which is added to `bad`, once."""
        try:
            if self.transform is not None:
                self._check_pixels(images, where)
                if not images.size:
                    raise ValueError(f"The images of {where}, {images.shape}, have no pixels.")
            if self.endless and not self.transform.any_size and images.shape[1:3] != self.transform.image_size:
                given, wanted = ("{} x {}".format(*size) for size in (images.shape[1:3], self.transform.image_size))
                advice = "Resize them in the pipeline, for example with keras_vit.preprocessing.resize_images."
                raise ValueError(f"The images of {where} are {given}, but the model takes {wanted}. {advice}")
            counts = [len(of) if getattr(of, "ndim", 1) else "one" for of in (images, labels)]
            if counts[0] != counts[1]:
                given = f"has {counts[0]} images, {counts[1]} labels"
                raise ValueError(f"{where} needs a label for each image, but {given}.")
            if not self.kind.is_label:
                pairs = zip(images, labels, strict=True)
                return [self._about.checked(target, image.shape[:2], where) for image, target in pairs]
            target = CLASS.name if self.kind is NONE else self.target
            return base.check_labels(labels, self._about.classes, where, target=target)[0]
        except ValueError as error:
            if not self._skip:
                if self.transform is None:  # evaluation has no option to leave such batches out
                    raise
                raise ValueError(f"{error} Pass {SKIP} to leave such data out.") from error
            if all(image.path != where for image in self.bad):
                self.bad.append(base.BadImage(where, str(error)))
            return None
