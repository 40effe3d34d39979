"""The stream over images that can be read in any order: order, look-ahead, threads or processes that read."""

import functools
import operator
import os
import queue
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_vit.data.checks import BadImage, one_hot
from keras_vit.data.examples import Examples
from keras_vit.data.mixup import mixup
from keras_vit.data.streams import EndOfData, ImageStream, count_steps
from keras_vit.data.transform import MIXUP, ORDER, ImageTransform
from keras_vit.data.worker import Worker

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times


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
        batch_size: Images in a batch.
        on_bad_image: `"stop"` or `"skip"`.
        workers: How many read and transform; `None` for one on every core.
        processes: Whether the workers are processes, which examples in files can have; `None`: for training data on
            `MANY_CORES` or more.
        prefetch: How many batches are made ahead.
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
    ):
        super().__init__()
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
        images = np.empty((len(places), *self._transform.image_size, 3), "float32")
        size = -(-len(places) // (PIECES * self._workers))
        pieces = [slice(i, i + size) for i in range(0, len(places), size)]
        read = self._readers.map(lambda piece: self._fill(images[piece], places[piece]), pieces)
        indices = np.concatenate(list(read))
        if (indices < 0).all():
            raise ValueError(f'None of the images of batch {step} can be read. Leave them out: check="decode".')
        if (indices < 0).any():
            images, indices = images[indices >= 0], indices[indices >= 0]
        labels = one_hot(self._data.labels[indices], self.classes)
        if self.endless and self._transform.augmentation.mixup:
            generator = np.random.default_rng([self._transform.seed, MIXUP, step])
            images, labels = mixup(images, labels, self._transform.augmentation.mixup, generator)
        return images, labels

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
