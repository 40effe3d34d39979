"""Streams: batches of images and labels by the number of the step, read ahead by threads.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was asked for before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup and CutMix from (seed, step). So a run that was stopped goes on with the very batches
that it would have seen. Pipelines of other libraries cannot be asked for a step: `keras_vit.data.sources`.
"""

import functools
import itertools
import math
import operator
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self

import keras
import numpy as np

from keras_vit._arguments import SKIP, Message, printable, warn_caller
from keras_vit._processes import cores, share
from keras_vit.data.augmentation import MIXUP, ORDER, ImageTransform, mixed
from keras_vit.data.examples import BadImage, EndOfData, Examples, Reading, count_steps, one_hot, sampled, shuffled
from keras_vit.data.workers import Worker

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times


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
        """Inputs and targets of a step; IndexError if test data has no such batch."""
        ...

    def length(self, step: int) -> int:
        """Images in the whole batch of a step, of which `batch` returns the part that `shard` says."""
        ...

    def describe(self) -> dict[str, Any]:
        """What decides the batches, as plain data for JSON."""
        ...

    def map(self, function: Callable[..., tuple[Any, ...]]) -> "Stream":
        """The same stream with other batches: `function(step, images, labels)` of each."""
        return _Mapped(self, function)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """All batches of test data, once; TypeError for training data, which has no end."""
        if self.endless:
            raise TypeError("Training data has no end: ask for a step with stream.batch(step).")
        for step in itertools.count():
            try:
                batch = self.batch(step)
            except EndOfData:
                return
            yield batch


class _Mapped(Stream):
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
        target: What the labels are: `"class"`, `"multilabel"` or `"number"`, as in `open_data`.
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
    # What only streams themselves read: what the data is, and the number of batches where it is known to end there.
    _origin: dict[str, Any]
    _last: int | None = None

    def __init__(self, threads: int, prefetch: int) -> None:
        """Starts the threads that make batches; subclasses have set all other attributes before."""
        self._prefetch = prefetch
        self._ahead: dict[int, Future] = {}
        self._threads = ThreadPoolExecutor(threads, "keras_vit_batch")
        self._closed = self._reported = False
        self._report()

    def length(self, step: int) -> int:
        """Images in a batch, where it is known how many there are."""
        rest = self.batch_size if self.endless or self.examples is None else self.examples - step * self.batch_size
        return max(0, min(self.batch_size, rest))

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step, made by one of the threads."""
        raise NotImplementedError

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step.

        Args:
            step: 0 for the first.

        Returns:
            Images, float32 `(batch, height, width, 3)` in 0..255, before any scaling; labels, float32
            `(batch, classes)`, one-hot or mixed, 0 and 1 for several labels, `(batch, 1)` for regression. Batches of
            training data are full. Those of test data come in order and may be shorter; where it is not known how many
            classes there are, their labels are int64 `(batch,)`.

        Raises:
            IndexError: if test data has no such batch.
            ValueError: if an image or label is bad and bad images are not skipped.
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
        """What decides the batches apart from the augmentation and the seed, as plain data for JSON."""
        counts = {"classes": self.classes, "examples": self.examples, "batch_size": self.batch_size}
        return self._origin | counts

    def close(self) -> None:
        """End what reads ahead. A stream may be closed more than once."""
        self._closed = True
        self._threads.shutdown(cancel_futures=True)

    def _report(self) -> None:
        """Warn of bad images when the first are found."""
        if self.bad and not self._reported:
            self._reported, first = True, self.bad[0]
            what = "A bad image is" if len(self.bad) == 1 else f"{len(self.bad)} bad images are"
            warn_caller(f"{what} left out. {printable(first.path)}: {first.reason.rstrip('.')}. (stream.bad has all.)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ExampleStream(ImageStream):
    """Batches of examples: training data with an augmentation. The other arguments are those of `open_data`."""

    def __init__(
        self,
        examples: Examples,
        transform: ImageTransform,
        batch_size: int,
        reading: Reading,
        shard: tuple[int, int],
        sampling: str | None,
    ) -> None:
        """Starts the threads that read; ValueError without images, or for worker processes without files."""
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
        draw = shuffled(examples) if sampling is None else sampled(examples, sampling)
        self._order = functools.lru_cache(2)(lambda epoch: draw(np.random.default_rng([transform.seed, ORDER, epoch])))
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(self._workers, "keras_vit_read")
        # Also where the stream is not closed.
        self._close_processes = weakref.finalize(self, lambda workers: [w.close() for w in workers], self._processes)
        # Two threads: images of the next batch are read while the last ones of this batch are, and while it is mixed.
        super().__init__(2 if reading.prefetch else 1, reading.prefetch)

    def close(self) -> None:
        """End the threads and processes that read. A stream may be closed more than once."""
        super().close()
        self._readers.shutdown(cancel_futures=True)
        self._close_processes()

    def _make(self, step: int) -> tuple[Any, Any]:
        """The images and labels, or masks, of a step; in training augmented and mixed. ValueError as of `batch`.

        Images and masks to evaluate segmentation on keep their sizes, and come as lists.
        """
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
        """Starts the worker processes, where there are to be some, before the first batch."""
        if self._free is not None:
            with self._lock:
                while len(self._processes) < self._workers:
                    self._processes.append(Worker(self._transform))
                    self._free.put(self._processes[-1])

    def _transformed(self, step: int, places: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """The transformed images of some places, and the index of each; without those that cannot be read.

        Raises ValueError if none of a batch can be read.
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
        """The (epoch, index) of each image of a batch; where an epoch ends within a batch, the next one fills it."""
        first = step * self.batch_size
        if not self.endless:
            return [(0, i) for i in range(first, min(first + self.batch_size, self.examples))]
        places = (divmod(place, self.examples) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

    def _fill(self, images: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
        """Reads and transforms the images of some places into an array; returns the index of each, -1 where none is."""
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
        """Reads and transforms an image, in training the next good one if it is bad; returns its index, or -1."""
        for i in range(index, index + (self.examples if self.endless else 1)):
            i %= self.examples
            pixels = self._read(i)
            if pixels is not None:
                image[...] = self._transform(pixels, epoch, index)
                return i
        return -1

    def _read(self, i: int) -> np.ndarray | None:
        """The pixels of an image, None for a bad one, which is noted in `bad`.

        Raises ValueError for it unless such are skipped.
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


class Batches(keras.utils.PyDataset):
    """Some batches, as `model.fit` and `model.evaluate` take them.

    Args:
        batch: From the number of a batch to `(inputs, targets)`.
        steps: The numbers of the batches.

    Examples:
        >>> batches = data.Batches(lambda step: (small_images, labels), range(10))
        >>> len(batches)
        10
    """

    def __init__(self, batch: Callable[[int], tuple[Any, Any]], steps: Sequence[int]) -> None:
        super().__init__(workers=1, use_multiprocessing=False)  # Streams read ahead by themselves.
        self._batch, self._steps = batch, steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._batch(self._steps[index])


def as_dataset(stream: ImageStream, steps: Sequence[int]) -> Batches:
    """Some batches of a stream for `model.fit` and `model.evaluate`, on any backend.

    Args:
        stream: What `open_data` returns.
        steps: The numbers of the steps, such as a `range`; their order is kept by `model.fit(..., shuffle=False)`.

    Returns:
        A `keras.utils.PyDataset` of `len(steps)` batches, as `stream.batch` returns them.

    Examples:
        >>> stream = data.open_data((pixels, labels), image_size=8, batch_size=2)
        >>> batch, targets = data.as_dataset(stream, range(3))[0]
        >>> batch.shape
        (2, 8, 8, 3)
    """
    return Batches(stream.batch, steps)
