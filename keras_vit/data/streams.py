"""Streams: batches of images and labels by the number of the step.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was asked for before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup from (seed, step). So a run that was stopped goes on with the very batches that it
would have seen. Pipelines of other libraries cannot be asked for a step: `keras_vit.data.pipelines`.
"""

import functools
import itertools
import operator
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import printable
from keras_vit._processes import share
from keras_vit.data.augmentation import MIXUP, ORDER, ImageTransform, mixup
from keras_vit.data.examples import BadImage, Examples, one_hot
from keras_vit.data.worker import Worker

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times


class EndOfData(IndexError):
    """Test data has no such batch. A class of its own: an `IndexError` of somebody's pipeline is no end of data."""


class ImageStream:
    """Batches of images and labels by the number of the step.

    Attributes:
        class_names: In the order of the labels, or `None` if they have no names.
        classes: How many there are; 0 if nobody has said it of test data.
        examples: How many there are, or `None` if the data does not say.
        batch_size: Of full batches.
        steps_per_epoch: Full batches in the training data, at least 1; all batches of test data; `None` if unknown.
        endless: Whether it is training data: shuffled, augmented, and every batch full.
        shard: (i, n): of every batch `batch` gives the i-th of n parts. The other figures are those of whole batches.
        bad: What was left out, with reasons; it grows when a file turns out to be bad later.
        converted: Pictures that are not RGB with 8 bits, and what is done with them.

    Examples:
        >>> with data.open_data("photos", image_size=8, batch_size=2) as stream:
        ...     stream.class_names, stream.examples, stream.steps_per_epoch
        (['cat', 'dog'], 4, 2)
    """

    class_names: list[str] | None = None
    classes: int = 0
    examples: int | None = None
    batch_size: int = 0
    steps_per_epoch: int | None = None
    endless: bool = False
    shard: tuple[int, int] = (0, 1)

    def __init__(self) -> None:
        self.bad: list[BadImage] = []
        self.converted: list[BadImage] = []
        self._reported = False

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step.

        Args:
            step: 0 for the first.

        Returns:
            Images, float32 `(batch, height, width, 3)` in 0..255, before any scaling; labels, float32
            `(batch, classes)`, one-hot or mixed. Batches of training data are full. Batches of test data come in
            order and may be shorter; where nobody has said how many classes there are, their labels are the
            pipeline's own, int64 `(batch,)`. The part of a short batch may be empty.

        Raises:
            IndexError: if test data has no such batch.
            ValueError: if an image or label is bad and bad images are not skipped.
        """
        raise NotImplementedError

    def length(self, step: int) -> int:
        """Images in the whole batch of a step, of which `batch` gives the part that `shard` says."""
        if self.endless or self.examples is None:
            return self.batch_size
        return max(0, min(self.batch_size, self.examples - step * self.batch_size))

    def describe(self) -> dict[str, Any]:
        """What decides the batches apart from the augmentation and the seed, as plain data for JSON."""
        return {"classes": self.classes, "examples": self.examples, "batch_size": self.batch_size}

    def close(self) -> None:
        """End what reads ahead. A stream may be closed more than once."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All batches of test data, once."""
        if self.endless:
            raise TypeError("Training data has no end: ask for a step with stream.batch(step).")
        for step in itertools.count():
            try:
                batch = self.batch(step)
            except EndOfData:
                return
            yield batch

    def _report(self) -> None:
        """Warn of bad images when the first are found."""
        if self.bad and not self._reported:
            self._reported, first = True, self.bad[0]
            what = "A bad image is" if len(self.bad) == 1 else f"{len(self.bad)} bad images are"
            hint = "stream.bad has all of them, also what is found later"
            warnings.warn(
                f"{what} left out. {printable(first.path)}: {first.reason.rstrip('.')}. ({hint}.)", stacklevel=3
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def count_steps(examples: int, batch_size: int, training: bool) -> int:
    """Full batches in training data, at least 1; all batches of test data."""
    full, rest = divmod(examples, batch_size)
    return max(1, full) if training else full + bool(rest)


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


class ExampleStream(ImageStream):
    """Batches of examples; which images are in batch n, and what is done to them, depends on (seed, n) alone.

    Args:
        examples: The data.
        transform: What is done to each image. With an augmentation it is a training stream, and mixup is done here;
            without, all images come once and in order.
        batch_size, on_bad_image, workers, processes, prefetch, shard: As in `open_data`.
    """

    def __init__(
        self,
        examples: Examples,
        transform: ImageTransform,
        batch_size: int,
        on_bad_image: str = "stop",
        workers: int | None = None,
        processes: bool | None = None,
        prefetch: int = 1,
        shard: tuple[int, int] = (0, 1),
    ):
        super().__init__()
        self.shard = shard
        self._data, self._transform, self._prefetch = examples, transform, prefetch
        self._skip = on_bad_image == "skip"
        self.class_names, self.classes, self.batch_size = examples.class_names, examples.classes, batch_size
        self.examples, self.endless = len(examples.labels), transform.augmentation is not None
        if not self.examples:
            raise ValueError("data must hold images, but none of them can be read.")
        self.steps_per_epoch = count_steps(self.examples, batch_size, self.endless)
        self.bad, self.converted = examples.bad, examples.converted
        if processes and examples.files is None:
            raise ValueError("processes=True is for image files; other data is read by threads: leave it out.")
        if processes is None:
            processes = examples.files is not None and self.endless and cores() >= MANY_CORES
        self._workers = workers or min(32, cores())
        self._processes: list[Worker] = []
        self._free: queue.SimpleQueue[Worker] | None = queue.SimpleQueue() if processes else None
        self._unreadable: set[int] = set()
        self._permutation = functools.lru_cache(2)(self._draw_permutation)
        self._lock = threading.Lock()
        self._ahead: dict[int, Future] = {}
        self._readers = ThreadPoolExecutor(self._workers, "keras_vit_read")
        # Two: the images of the next batch are read while the last ones of this batch are, and while it is mixed.
        self._batches = ThreadPoolExecutor(2 if prefetch else 1, "keras_vit_batch")
        self._closed = False
        # A stream that nobody closes leaves no processes behind.
        weakref.finalize(self, _close_all, self._processes)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step: see `ImageStream.batch`."""
        step = operator.index(step)
        last = None if self.endless else self.steps_per_epoch
        if step < 0 or (last is not None and step >= last):
            raise EndOfData(f"step must be 0 or more{f' and below {last}' if last else ''}, but {step} was given.")
        if self._closed:
            raise ValueError("The stream is closed.")
        steps = range(step, step + 1 + self._prefetch)
        for other in [s for s in self._ahead if s not in steps]:
            self._ahead.pop(other).cancel()
        for s in steps:
            if s not in self._ahead and (last is None or s < last):
                self._ahead[s] = self._batches.submit(self._make, s)
        try:
            return self._ahead.pop(step).result()
        finally:
            self._report()

    def describe(self) -> dict[str, Any]:
        """What decides the batches apart from the augmentation and the seed, as plain data for JSON."""
        return {"source": self._data.kind, "fingerprint": self._data.fingerprint, **super().describe()}

    def close(self) -> None:
        """End the threads and processes that read ahead. A stream may be closed more than once."""
        self._closed = True
        self._batches.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        _close_all(self._processes)

    def _draw_permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._transform.seed, ORDER, epoch]).permutation(self.examples)

    def _places(self, step: int) -> list[tuple[int, int]]:
        """(epoch, index) of the images of a batch. Where an epoch ends within a batch, the next one fills it."""
        first = step * self.batch_size
        if not self.endless:
            return [(0, i) for i in range(first, min(first + self.batch_size, self.examples))]
        places = (divmod(place, self.examples) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._permutation(epoch)[place])) for epoch, place in places]

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        if self._free is not None and not self._processes:
            self._start_processes()
        places = self._places(step)
        rows = share(len(places), self.shard)
        mixed = self.endless and bool(self._transform.augmentation.mixup)
        # Mixup takes the image before, which for the first one of a part is in another part.
        before = places[rows.start - 1 :][:1] if mixed and rows != slice(0, len(places)) else []
        places = [*before, *places[rows]]
        if not places:
            return np.empty((0, *self._transform.image_size, 3), "float32"), one_hot(
                self._data.labels[:0], self.classes
            )
        images = np.empty((len(places), *self._transform.image_size, 3), "float32")
        size = -(-len(places) // (PIECES * self._workers))
        pieces = [slice(i, i + size) for i in range(0, len(places), size)]
        read = self._readers.map(lambda piece: self._fill(images[piece], places[piece]), pieces)
        indices = np.concatenate(list(read))
        if (indices < 0).all() and self.shard[1] == 1:
            raise ValueError(f'None of the images of batch {step} can be read. Leave them out: check="decode".')
        if (indices < 0).any():
            images, indices = images[indices >= 0], indices[indices >= 0]
        labels = one_hot(self._data.labels[indices], self.classes)
        if mixed:
            generator = np.random.default_rng([self._transform.seed, MIXUP, step])
            images, labels = mixup(images, labels, self._transform.augmentation.mixup, generator)
        return images[len(before) :], labels[len(before) :]

    def _start_processes(self) -> None:
        with self._lock:
            while len(self._processes) < self._workers:
                self._processes.append(Worker(self._transform))
                self._free.put(self._processes[-1])

    def _fill(self, images: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
        """Makes the images of some places; returns the index of each, -1 where there is none."""
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
        """Makes an image; in training, of the next good one if it is bad. Returns its index, or -1."""
        for i in range(index, index + self.examples):
            i %= self.examples
            pixels = self._read(i)
            if pixels is not None:
                image[...] = self._transform(pixels, epoch, index)
                return i
            if not self.endless:
                return -1
        raise ValueError("None of the images can be read any more.")

    def _read(self, i: int) -> np.ndarray | None:
        if i in self._unreadable:
            return None
        try:
            return self._data.read(i)
        except Exception as error:  # A disk that fails and a decoder that does are the same here: no picture.
            name = self._data.name(i)
            reason = str(error) if name in str(error) else f"{name}: {error}"
            if not self._skip or isinstance(error, MemoryError):
                raise ValueError(f'{reason} Repair the file, or go on without: on_bad_image="skip".') from error
            with self._lock:
                if i not in self._unreadable:
                    self._unreadable.add(i)
                    self.bad.append(BadImage(name, str(error)))
            return None


def as_dataset(stream: ImageStream, steps: Sequence[int]) -> keras.utils.PyDataset:
    """Some batches of a stream for `model.fit` and `model.evaluate`, on any backend.

    Args:
        stream: What `open_data` returns.
        steps: The numbers of the steps, usually a `range`.

    Returns:
        The data set. Its order is that of `steps` if you call `model.fit(..., shuffle=False)`.

    Examples:
        >>> stream = data.open_data((pixels, labels), image_size=8, batch_size=2)
        >>> batch, targets = data.as_dataset(stream, range(3))[0]
        >>> batch.shape
        (2, 8, 8, 3)
    """
    return Batches(stream.batch, steps)


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
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._batch(self._steps[index])
