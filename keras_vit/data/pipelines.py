"""Data pipelines of other libraries: `tf.data`, grain, torch, Keras, or any iterable of (images, labels).

They are used as they are, in their own order and with their own crops and flips. Their images and labels are checked.
Of an `Augmentation`, what mixes and recolours finished images is added: RandAugment and mixup.

A pipeline only goes forward. To resume at step 1,000, its first 1,000 batches are read and dropped: they are those of
the first run if the pipeline itself always gives the same.
"""

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit._processes import share
from keras_vit.data.augmentation import MIXUP, RANDAUGMENT, Augmentation, augmented, mixup, resize_for_evaluation
from keras_vit.data.examples import BadImage, check_labels, one_hot
from keras_vit.data.streams import EndOfData, ImageStream, count_steps
from keras_vit.preprocessing import Pipeline, check_pixels

TOO_MANY = 100  # bad batches or examples, one after another: nobody would call that going on
IMAGES, LABELS = ("image", "images", "pixel_values"), ("label", "labels")


def is_pipeline(source: Any) -> bool:
    """Whether it can be iterated over, and is neither text, nor an array, nor a dict; a list has to be of batches."""
    if isinstance(source, keras.utils.PyDataset):
        return True
    if isinstance(source, list):
        return bool(source) and all(isinstance(item, Mapping) or _is_tuple_of_two(item) for item in source)
    return hasattr(source, "__iter__") and not isinstance(source, (str, bytes, Mapping, tuple, list, np.ndarray, set))


def _is_tuple_of_two(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2


class PipelineStream(ImageStream):
    """A stream over a pipeline, which goes forward only and starts anew when an earlier step is asked for.

    Args:
        source: The pipeline: batches or single examples of (images, labels), or dicts of these.
        image_size: `(height, width)` that its images must have in training.
        batch_size: How many single examples make a batch. A pipeline of batches keeps its own size.
        augmentation: `randaugment` and `mixup` are used; crop and flip are the pipeline's own business. Or `None`.
        training: Whether it starts again when it ends.
        seed, classes, class_names, on_bad_image, resize, shard: As in `open_data`.
    """

    def __init__(
        self,
        source: Any,
        image_size: tuple[int, int],
        batch_size: int,
        augmentation: Augmentation | None,
        seed: int = 0,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        on_bad_image: str = "stop",
        training: bool = True,
        resize: str | Pipeline = "squash",
        shard: tuple[int, int] = (0, 1),
    ):
        super().__init__()
        self.shard = shard
        self._source, self._size, self._seed = source, image_size, seed
        self._skip, self.endless, self._resize = on_bad_image == "skip", training, resize
        self._augmentation = augmentation or Augmentation()
        self.batch_size, self.class_names = batch_size, class_names
        self.classes = classes or 0
        self._thread = ThreadPoolExecutor(1, "keras_vit_pipeline")
        self._ahead: tuple[int, Future] | None = None
        self._single = False  # Whether examples come one by one.
        self._lengths: dict[int, int] = {}  # of the last two batches
        self._restart()
        self._first = next(self._batches, None)
        self._report()
        if self._first is None:
            raise ValueError("data must hold images, but the pipeline has none that are good.")
        images, labels = self._first
        self.classes = _count_classes(labels, classes, training)
        if training and len(images) != batch_size:
            text = f"The pipeline makes batches of {len(images)}, not of batch_size={batch_size}: its own are used."
            warnings.warn(text, stacklevel=3)
            self.batch_size = len(images)
        length = _length(source)
        if length is not None and self._single:
            self.examples = length
            length = count_steps(length, batch_size, training)
        self.steps_per_epoch = length

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a step: see `ImageStream.batch`."""
        step = operator.index(step)
        if step < 0:
            raise IndexError(f"step must be 0 or more, but {step} was given.")
        waiting, self._ahead = self._ahead, None
        if waiting is not None and waiting[0] != step:
            waiting[1].exception()  # One thread at a time reads the pipeline.
            waiting = None
        try:
            made = (waiting[1] if waiting is not None else self._thread.submit(self._make, step)).result()
        finally:
            self._report()
        self._ahead = step + 1, self._thread.submit(self._make, step + 1)
        return made

    def length(self, step: int) -> int:
        """Images in the whole batch of a step: one of the last two that were read."""
        return self._lengths.get(step, self.batch_size)

    def describe(self) -> dict[str, Any]:
        """What is known of the pipeline, as plain data for JSON."""
        return {"source": type(self._source).__name__, **super().describe()}

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._thread.shutdown(cancel_futures=True)

    def _make(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        if step < self._next:
            self._restart()
        while True:
            pulled, self._first = self._first or next(self._batches, None), None
            if pulled is None:
                if not self.endless:
                    raise EndOfData(f"The pipeline has {self._next} batches: there is none for step {step}.")
                raise ValueError(f"The pipeline ends after {self._next} batches and cannot be started again.")
            self._next += 1
            if self._next > step:
                images, labels = pulled
                images, labels = self._augmented(
                    images, one_hot(labels, self.classes) if self.classes else labels, step
                )
                self._lengths = {step: len(images), step - 1: self._lengths.get(step - 1, len(images))}
                rows = share(len(images), self.shard)
                return images[rows], labels[rows]

    def _restart(self) -> None:
        if hasattr(self._source, "__next__") and getattr(self, "_next", 0):
            raise ValueError("This iterator only goes forward. Give what it came from: a data set, or a list.")
        self._next, self._first = 0, None
        self._batches = self._good_batches()

    def _good_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of good images and checked labels, epoch after epoch in training; single examples are joined."""
        held: list[tuple[np.ndarray, np.ndarray]] = []
        bad_in_a_row = 0
        while True:
            number = 0
            for number, element in enumerate(_one_pass(self._source), 1):
                images, labels = _pair(element)
                self._single = images.ndim == 3
                if self._single:
                    images, labels = images[None], labels[None]
                checked = self._checked(images, labels, f"{'example' if self._single else 'batch'} {number - 1}")
                bad_in_a_row = 0 if checked is not None else bad_in_a_row + 1
                if bad_in_a_row == TOO_MANY:
                    raise ValueError(f"{TOO_MANY} in a row are bad, the last: {self.bad[-1].reason}")
                if checked is None:
                    continue
                if images.shape[1:3] != self._size:
                    images = np.stack([resize_for_evaluation(image, self._size, self._resize) for image in images])
                held.append((images.astype("float32"), checked))
                if not self._single or len(held) == self.batch_size:
                    yield _joined(held)
                    held = []
            if held and not self.endless:
                yield _joined(held)
            if not self.endless or not number:
                return

    def _checked(self, images: np.ndarray, labels: np.ndarray, where: str) -> np.ndarray | None:
        """The labels as `check_labels` returns them, or `None` if this is bad and left out."""
        try:
            check_pixels(images, name=where, scaled="raise")
            if not images.size:
                raise ValueError(f"The images of {where}, {images.shape}, have no pixels.")
            if self.endless and images.shape[1:3] != self._size:
                given, wanted = ("{} x {}".format(*size) for size in (images.shape[1:3], self._size))
                hint = "Resize in the pipeline: keras_vit.preprocessing.resize_images."
                raise ValueError(f"The images of {where} are {given}, but the model takes {wanted}. {hint}")
            if len(images) != len(labels):
                raise ValueError(f"There are {len(images)} images but {len(labels)} labels in {where}.")
            return check_labels(labels, self.classes or None, where)[0]
        except ValueError as error:
            if not self._skip:
                raise ValueError(f'{error} (Go on without: on_bad_image="skip".)') from error
            if all(image.path != where for image in self.bad):
                self.bad.append(BadImage(where, str(error)))
            return None

    def _augmented(self, images: np.ndarray, labels: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        if self._augmentation.randaugment is not None:
            for i, image in enumerate(images):
                images[i] = augmented(image, self._augmentation, [self._seed, RANDAUGMENT, step, i])
        if self._augmentation.mixup:
            generator = np.random.default_rng([self._seed, MIXUP, step])
            images, labels = mixup(images, labels, self._augmentation.mixup, generator)
        return images, labels


def _one_pass(source: Any) -> Iterator[Any]:
    if isinstance(source, keras.utils.PyDataset):
        for i in range(source.num_batches):
            yield source[i]
        source.on_epoch_end()
    else:
        yield from source


def _pair(element: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of what a pipeline yields."""
    if isinstance(element, Mapping):
        images, labels = (next((element[k] for k in keys if k in element), None) for keys in (IMAGES, LABELS))
        if images is None or labels is None:
            raise ValueError(f"The pipeline yields {sorted(element)}, but 'image' and 'label' are needed.")
    elif isinstance(element, (tuple, list)) and len(element) == 2:
        images, labels = element
    else:
        what = f"{len(element)} things" if isinstance(element, (tuple, list)) else type(element).__name__
        raise ValueError(f"The pipeline must yield (images, labels), or a dict with 'image' and 'label', not {what}.")
    return to_numpy(images), to_numpy(labels)


def _joined(held: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*held, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _count_classes(labels: np.ndarray, classes: int | None, training: bool) -> int:
    if classes is not None:
        return classes
    if labels.ndim == 2 and labels.shape[1] > 1:
        return labels.shape[1]
    if not training:
        return 0
    raise ValueError("The labels of the pipeline are numbers: say how many classes there are, with classes=...")


def _length(source: Any) -> int | None:
    if isinstance(source, keras.utils.PyDataset):
        return source.num_batches
    try:
        return len(source)
    except TypeError:  # Of unknown or infinite length.
        return None
