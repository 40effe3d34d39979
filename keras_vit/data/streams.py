"""`open_data`: labelled images of every kind as a stream, batches of images and labels by the number of the step.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was asked for before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup and CutMix from (seed, step). So a run that was stopped goes on with the very batches
that it would have seen. Pipelines of other libraries cannot be asked for a step: `keras_vit.data.sources`.
"""

import dataclasses
import functools
import itertools
import operator
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import ImageSize, check_choice, check_class_names, pair, printable, warn_caller, whole_number
from keras_vit._messages import SKIP, Message
from keras_vit._processes import cores, share
from keras_vit.data.augmentation import MIXUP, ORDER, Augmentation, ImageTransform, Worker, mixed
from keras_vit.data.examples import (
    SPLITS,
    TARGETS,
    BadImage,
    EndOfData,
    Examples,
    count_steps,
    one_hot,
    open_folder,
    pick_split,
)
from keras_vit.data.sources import PipelineBatches, is_pipeline, open_arrays, open_tfds
from keras_vit.preprocessing import RESIZES, Pipeline

MANY_CORES = 8  # from here on, threads of one Python process wait for each other
PIECES = 4  # that each worker's share of a batch is divided into, because images take different times


def open_data(
    source: Any,
    *,
    image_size: ImageSize,
    batch_size: int,
    split: str = "train",
    shuffle: bool | None = None,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    target: str = "class",
    on_bad_image: str = "stop",
    check: str = "headers",
    resize: str | Pipeline = "squash",
    workers: int | None = None,
    processes: bool | None = None,
    prefetch: int = 1,
    shard: tuple[int, int] = (0, 1),
    holdout: float | None = None,
    sampling: str | None = None,
    channels: int = 3,
) -> "ImageStream":
    """A stream of batches.

    Args:
        source: One of

            - a folder with `train/` and `test/` (or `val/` and the like), each with one folder of images for each
              class; or the folder of the classes itself. Needs Pillow.
            - `(images, labels)`: arrays, tensors, or a list of images of different sizes.
            - `"tfds:NAME"`: a data set of tensorflow-datasets that was prepared as `array_record`; any other is a
              pipeline, `tfds.load(NAME, split="train", as_supervised=True)`.
            - a `tf.data.Dataset`, a grain dataset or loader, a torch `DataLoader`, a `keras.utils.PyDataset`, a list
              of batches, or any iterable of (images, labels): used as it is, in its own order, with its own crops;
              `randaugment` and `mixup` of an augmentation are added.
            - a table of image files and labels: `open_table`; pictures with masks: `open_masks`.
            - a dict with any of these for `"train"` and `"test"`.
        image_size: Of the images that come out, an integer or `(height, width)`.
        batch_size: Images in a batch.
        split: `"train"`, `"test"` or `"validation"`; where there is only one of the last two, it is taken for both.
        shuffle: `True`: shuffled, without end, every batch full, for training. `False`: in order, once. `None`: as
            `split` says.
        augmentation: What is done to training images; `None`: they are scaled to size.
        seed: A whole number from 0. The same seed gives the same batches.
        classes: How many there are, where the data does not say it.
        class_names: Their names in order; of a folder, which folders they are.
        target: What the labels of arrays and pipelines are: `"class"`, one of n; `"multilabel"`, any of n, as rows
            `(n, classes)` of 0 and 1; `"number"`, a quantity such as an age.
        on_bad_image: `"stop"` raises an error that names the file; `"skip"` leaves it out, warns once and keeps
            it in `stream.bad`. In training, the next good image takes its place.
        check: What is looked at in a folder before the first step: `"headers"` (opens every file: finds those that are
            cut short), `"decode"` (decodes all: also finds what is damaged in the middle) or `"none"`.
        resize: How test images come to size: as in `load_image`, or the pipeline of a model, `model.config.pipeline`,
            which crops as its family does. Pixels are not normalised.
        workers: How many threads or processes read and decode; `None` for one on every core.
        processes: Whether they are processes, for image files only: many threads of one process wait for each other.
            `None`: for training on 8 cores or more.
        prefetch: How many batches, of `batch_size * height * width * 12` bytes, are made ahead while the model trains.
        shard: (i, n): only the i-th of n parts of every batch, counted from 0, for the i-th of n processes; together
            they are the batch of `(0, 1)`. Of files and arrays only the part is read; a pipeline of another library is
            read as a whole by each process, and must give the same to all of them.
        holdout: A share of the training images, drawn by the seed, every class alike: `split="train"` has the others,
            the others have these. None: the data's own splits.
        sampling: `"balanced"`: in training, each class is drawn as often as any other; `"sqrt"`: as often as the root
            of its size says; None: each image once an epoch.
        channels: Of the images: others than three have values of any range, in arrays, grey pictures and TIFFs of 8
            and 16 bits or floats; such files are not looked at before they are read.

    Returns:
        The stream. Close it, or use it in a `with` statement, to end its threads early.

    Raises:
        ValueError, TypeError: if an argument or the data is wrong; the file or the place is named.
        FileNotFoundError: if the folder does not exist.
        ImportError: if a package is missing; it names the extra.

    Examples:
        >>> with data.open_data((pixels, labels), image_size=16, batch_size=2) as stream:
        ...     batch, targets = stream.batch(0)
        >>> batch.shape, batch.dtype
        ((2, 16, 16, 3), dtype('float32'))
    """
    size = pair("image_size", image_size)
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("prefetch", prefetch, 0)):
        whole_number(name, value, least)
    check_choice("split", split, tuple(SPLITS))
    check_choice("on_bad_image", on_bad_image, ("stop", "skip"))
    check_choice("check", check, ("headers", "decode", "none"))
    check_choice("target", target, TARGETS)
    whole_number("channels", channels, 1)
    if channels != 3:
        check = "none"
        if augmentation is not None and augmentation.randaugment is not None:
            raise ValueError(f"RandAugment is for red, green and blue, but channels={channels}: leave it out.")
    if not isinstance(resize, Pipeline):
        check_choice("resize", resize, tuple(RESIZES))
    if len(shard) != 2 or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard must be (i, n) with 0 <= i < n, but {shard!r} was given.")
    check_choice("sampling", sampling, (None, "balanced", "sqrt"))
    if holdout is not None and (isinstance(holdout, bool) or not 0 < holdout < 1):
        raise ValueError(f"holdout must be a share between 0 and 1, such as 0.1, but {holdout!r} was given.")
    shuffle = split == "train" if shuffle is None else shuffle
    if not isinstance(shuffle, bool) or (shuffle and split != "train"):
        raise ValueError(f'shuffle must be True (for split="train"), False or None, but {shuffle!r} was given.')
    if not shuffle and augmentation is not None:
        raise ValueError("Images that come in order, once, are not augmented: leave augmentation out.")
    if sampling is not None and not shuffle:
        raise ValueError(f"sampling={sampling!r} is for shuffled training data: leave it out.")
    part = "train" if holdout is not None else split
    if isinstance(source, Mapping):
        source = pick_split(source, part)
    names, classes = check_class_names(class_names, classes)
    if getattr(source, "target", "class") == "mask":
        from keras_vit.data.mask_augmentation import MaskTransform

        transform = MaskTransform.of(size, augmentation, shuffle, seed, channels, source.ignore)
    else:
        if not isinstance(augmentation, Augmentation | None):
            raise TypeError(f"augmentation must be an Augmentation or None, but {augmentation!r} was given.")
        plain = Augmentation(crop="resize", flip=False) if shuffle else None
        transform = ImageTransform(size, augmentation or plain, resize, seed, channels)
    if isinstance(source, (str, os.PathLike)) and not str(source).startswith("tfds:"):
        examples = open_folder(source, part, names, on_bad_image, check)
    elif hasattr(source, "open_examples"):
        examples = source.open_examples(part, names, on_bad_image, check)
    else:
        if isinstance(source, str):
            examples = open_tfds(source.removeprefix("tfds:"), part)
        elif is_pipeline(source):
            target, classes = getattr(source, "target", target), getattr(source, "classes", classes)
            if holdout is not None or sampling is not None:
                raise ValueError("A pipeline goes its own way: holdout and sampling are for other data.")
            batches = PipelineBatches(
                source, transform, batch_size, classes, names, on_bad_image == "skip", shard, target
            )
            return ImageStream(batches, 1, min(prefetch, 1))
        elif isinstance(source, (tuple, list)) and len(source) == 2:
            examples = open_arrays(*source, shuffle, classes, names, on_bad_image, target, channels)
        else:
            kinds = "an image folder, (images, labels), 'tfds:NAME', a tf.data, grain, torch or Keras data set"
            raise TypeError(f"data must be {kinds}, or a dict of these, but {type(source).__name__} was given.")
    if target not in ("class", examples.target):
        raise ValueError(f"target={target!r} is for arrays, pipelines and tables: these labels are classes.")
    if classes not in (None, examples.classes):
        raise ValueError(f"classes={classes}, but the data has {examples.classes} classes.")
    if channels != 3 and examples.files is not None:
        files = examples.files
        examples = dataclasses.replace(examples, read=lambda i: transform.read(files[i]))
    draw = None
    if holdout is not None or sampling is not None:
        from keras_vit.data.sampling import evened, hold_out

        examples = examples if holdout is None else hold_out(examples, holdout, seed, split)
        draw = None if sampling is None else evened(examples, sampling)
    batches = ExampleBatches(examples, transform, batch_size, on_bad_image == "skip", workers, processes, shard, draw)
    batches.origin |= {} if sampling is None else {"sampling": sampling}
    # Two threads: images of the next batch are read while the last ones of this batch are, and while it is mixed.
    return ImageStream(batches, 2 if prefetch else 1, prefetch)


class ImageStream:
    """Batches of images and labels by the number of the step; `open_data` makes it.

    Attributes:
        class_names: In the order of the labels, or `None` if they have no names.
        classes: How many there are; 0 if nobody has said it of test data; 1 of numbers.
        target: What the labels are: `"class"`, `"multilabel"` or `"number"`, as in `open_data`.
        labels: All of them, in the data's order: int64 `(examples,)`, or float32 rows; None of pipelines.
        name: From an index in the data's order to what the image is called, such as its path; None of pipelines.
        examples: How many there are, or `None` if the data does not say.
        batch_size: Of full batches.
        steps_per_epoch: Full batches in the training data, at least 1; all batches of test data; `None` if unknown.
        endless: Whether it is training data: shuffled, augmented, and every batch full.
        shard: (i, n): of every batch `batch` gives the i-th of n parts. The other figures are those of whole batches.
        bad: What was left out, with reasons; it grows when a file turns out to be bad later.
        converted: Images that are not RGB with 8 bits, and what is done with them.

    Examples:
        >>> with data.open_data("photos", image_size=8, batch_size=2) as stream:
        ...     stream.class_names, stream.examples, stream.steps_per_epoch
        (['cat', 'dog'], 4, 2)
    """

    def __init__(self, batches: Any, threads: int, prefetch: int) -> None:
        self._batches, self._prefetch = batches, prefetch
        self.class_names: list[str] | None = batches.class_names
        self.classes: int = batches.classes
        self.target: str = batches.target
        self.labels: np.ndarray | None = batches.labels
        self.name: Callable[[int], str] | None = batches.name
        self.examples: int | None = batches.examples
        self.batch_size: int = batches.batch_size
        self.steps_per_epoch: int | None = batches.steps_per_epoch
        self.endless: bool = batches.endless
        self.shard: tuple[int, int] = batches.shard
        self.bad: list[BadImage] = batches.bad
        self.converted: list[BadImage] = list(batches.converted)
        self._ahead: dict[int, Future] = {}
        self._threads = ThreadPoolExecutor(threads, "keras_vit_batch")
        self._closed = self._reported = False
        self._report()

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step.

        Args:
            step: 0 for the first.

        Returns:
            Images, float32 `(batch, height, width, 3)` in 0..255, before any scaling; labels, float32
            `(batch, classes)`, one-hot or mixed, 0 and 1 for several labels, `(batch, 1)` for numbers. Batches of
            training data are full. Those of test data come in order and may be shorter; where nobody has said how many
            classes there are, their labels are int64 `(batch,)`.

        Raises:
            IndexError: if test data has no such batch.
            ValueError: if an image or label is bad and bad images are not skipped.
        """
        step, last = operator.index(step), self._batches.last
        if step < 0 or (last is not None and step >= last):
            raise EndOfData(f"step must be 0 or more{f' and below {last}' if last else ''}, but {step} was given.")
        if self._closed:
            raise ValueError("The stream is closed.")
        steps = range(step, step + 1 + self._prefetch)
        for other in [s for s in self._ahead if s not in steps]:
            self._ahead.pop(other).cancel()
        for s in steps:
            if s not in self._ahead and (last is None or s < last):
                self._ahead[s] = self._threads.submit(self._batches.make, s)
        try:
            return self._ahead.pop(step).result()
        finally:
            self._report()

    def length(self, step: int) -> int:
        """Images in the whole batch of a step, of which `batch` gives the part that `shard` says."""
        return self._batches.length(step)

    def describe(self) -> dict[str, Any]:
        """What decides the batches apart from the augmentation and the seed, as plain data for JSON."""
        counts = {"classes": self.classes, "examples": self.examples, "batch_size": self.batch_size}
        return self._batches.origin | counts

    def close(self) -> None:
        """End what reads ahead. A stream may be closed more than once."""
        self._closed = True
        self._threads.shutdown(cancel_futures=True)
        self._batches.close()

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
            warn_caller(f"{what} left out. {printable(first.path)}: {first.reason.rstrip('.')}. (stream.bad has all.)")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class ExampleBatches:
    """Batches of examples: training data with an augmentation. The other arguments are those of `open_data`."""

    def __init__(
        self,
        examples: Examples,
        transform: ImageTransform,
        batch_size: int,
        skip: bool,
        workers: int | None,
        processes: bool | None,
        shard: tuple[int, int],
        draw: Callable[[np.random.Generator], np.ndarray] | None = None,
    ) -> None:
        self._data, self._transform, self._skip = examples, transform, skip
        self.origin = {"source": examples.kind, "fingerprint": examples.fingerprint}
        self.class_names, self.classes, self.batch_size = examples.class_names, examples.classes, batch_size
        self.target, self.labels, self.name = examples.target, examples.labels, examples.name
        self.examples, self.endless, self.shard = len(examples.labels), transform.augmentation is not None, shard
        if not self.examples:
            raise ValueError("data must hold images, but none of them can be read.")
        self.steps_per_epoch = count_steps(self.examples, batch_size, self.endless)
        self.last = None if self.endless else self.steps_per_epoch
        self.bad, self.converted = examples.bad, examples.converted
        if processes and examples.files is None:
            raise ValueError("processes=True is for image files; other data is read by threads: leave it out.")
        if processes is None:
            processes = examples.files is not None and self.endless and cores() >= MANY_CORES
        self._workers = workers or min(32, cores())
        self._processes: list[Worker] = []
        self._free: queue.SimpleQueue[Worker] | None = queue.SimpleQueue() if processes else None
        self._unreadable: set[int] = set()
        draw = draw or (lambda generator: generator.permutation(self.examples))
        self._order = functools.lru_cache(2)(lambda epoch: draw(np.random.default_rng([transform.seed, ORDER, epoch])))
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(self._workers, "keras_vit_read")
        # Also where nobody closes the stream.
        self._close_processes = weakref.finalize(self, lambda workers: [w.close() for w in workers], self._processes)

    def length(self, step: int) -> int:
        """Images in a batch."""
        rest = self.batch_size if self.endless else self.examples - step * self.batch_size
        return max(0, min(self.batch_size, rest))

    def close(self) -> None:
        """End the threads and processes that read."""
        self._readers.shutdown(cancel_futures=True)
        self._close_processes()

    def make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step."""
        if self._free is not None:
            with self._lock:
                while len(self._processes) < self._workers:
                    self._processes.append(Worker(self._transform))
                    self._free.put(self._processes[-1])
        places = self._places(step)
        rows = share(len(places), self.shard)
        augmentation = self._transform.augmentation
        mixes = self.endless and bool(augmentation.mixup or augmentation.cutmix)
        # Both take the image before, which for the first one of a part is in another part.
        before = places[rows.start - 1 :][:1] if mixes and rows != slice(0, len(places)) else []
        places = [*before, *places[rows]]
        if self.target == "mask" and not self.endless:  # pictures keep their sizes
            pairs = [pair for pair in self._readers.map(self._read, [i for _, i in places]) if pair is not None]
            return [image for image, _ in pairs], [mask for _, mask in pairs]
        planes = self._transform.channels + (self.target == "mask")
        images = np.empty((len(places), *self._transform.image_size, planes), "float32")
        if not places:
            return images, one_hot(self._data.labels[:0], self.classes)
        size = -(-len(places) // (PIECES * self._workers))
        pieces = [slice(i, i + size) for i in range(0, len(places), size)]
        read = self._readers.map(lambda piece: self._fill(images[piece], places[piece]), pieces)
        indices = np.concatenate(list(read))
        if (indices < 0).all() and (self.endless or self.shard[1] == 1):
            raise ValueError(f'None of the images of batch {step} can be read. Leave them out: check="decode".')
        if (indices < 0).any():
            images, indices = images[indices >= 0], indices[indices >= 0]
        if self.target == "mask":
            return images[..., :-1], images[..., -1].astype("int32")
        labels = one_hot(self._data.labels[indices], self.classes)
        if mixes:
            images, labels = mixed(images, labels, augmentation, [self._transform.seed, MIXUP, step])
        return images[len(before) :], labels[len(before) :]

    def _places(self, step: int) -> list[tuple[int, int]]:
        """(epoch, index) of the images of a batch. Where an epoch ends within a batch, the next one fills it."""
        first = step * self.batch_size
        if not self.endless:
            return [(0, i) for i in range(first, min(first + self.batch_size, self.examples))]
        places = (divmod(place, self.examples) for place in range(first, first + self.batch_size))
        return [(epoch, int(self._order(epoch)[place])) for epoch, place in places]

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
        for i in range(index, index + (self.examples if self.endless else 1)):
            i %= self.examples
            pixels = self._read(i)
            if pixels is not None:
                image[...] = self._transform(pixels, epoch, index)
                return i
        return -1

    def _read(self, i: int) -> np.ndarray | None:
        try:
            return None if i in self._unreadable else self._data.read(i)
        except ImportError:  # no file is to blame
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
        steps: The numbers of the steps, usually a `range`; their order is kept by `model.fit(..., shuffle=False)`.

    Returns:
        A `keras.utils.PyDataset` of `len(steps)` batches, as `stream.batch` gives them.

    Examples:
        >>> stream = data.open_data((pixels, labels), image_size=8, batch_size=2)
        >>> batch, targets = data.as_dataset(stream, range(3))[0]
        >>> batch.shape
        (2, 8, 8, 3)
    """
    return Batches(stream.batch, steps)
