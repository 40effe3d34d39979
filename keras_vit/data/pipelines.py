"""Pipelines of other libraries (`tf.data`, grain, torch, Keras, or any iterable), as streams.

They are used as they are, in their own order and with their own crops and flips. What they yield is checked. Of an
`Augmentation`, what mixes and recolours finished images is added: RandAugment, erasing, mixup and CutMix; views are
made. A pipeline only goes forward. To resume at step 1,000, its first 1,000 batches are read and dropped: they are
those of the first run if it always yields the same.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_vit._arguments import SKIP, warn_caller
from keras_vit._processes import share
from keras_vit.data.augmentation import MIXUP, ImageTransform, Transform, draws, mixed, resize_for_evaluation
from keras_vit.data.examples import (
    DENSE,
    NO_TARGET,
    BadImage,
    Reading,
    check_labels,
    count_steps,
    extremes,
    is_py_dataset,
    one_pass,
    pair_of,
)
from keras_vit.data.streams import EndOfData, ImageStream, one_hot
from keras_vit.preprocessing import check_pixels

TOO_MANY = 100  # bad batches or examples, one after another, end it
SEVERAL = 4  # images, over which it is judged whether they are scaled already


class Labels(NamedTuple):
    """What the labels of a pipeline are, as opened masks, segments and boxes say it of themselves."""

    target: str
    classes: int | None
    class_names: list[str] | None
    task: str = ""


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
        reading: Reading,
        shard: tuple[int, int],
    ) -> None:
        """Pulls the first batch, which shows the kind of labels. `kind`: `Labels`, or data that checks its targets."""
        self.target, self.task, self.converted = kind.target, kind.task, []
        self.class_names = list(kind.class_names or ()) or None
        self._source, self._kind, self.transform, self._skip, self.shard = source, kind, transform, reading.skip, shard
        self._origin = {"source": type(source).__name__}
        self.endless = transform is not None and transform.augmentation is not None
        # Whether batches are lists: pictures have sizes of their own, or become views.
        self._in_lists = transform is not None and (transform.shape is None or transform.any_size)
        self.batch_size, self.classes = batch_size, kind.classes or 0
        self.bad: list[BadImage] = []
        self._single = False  # Whether examples come one by one.
        self._recent: list[np.ndarray] = []  # the extremes of images of small batches
        self._lengths: dict[int, int] = {}  # of the last two batches
        self._restart()
        self._first = next(self._good, None)
        if self._first is None:
            why = f": {self.bad[0].reason}" if self.bad else "."
            raise ValueError(f"data must hold images, but the pipeline has no good image{why}")
        images, labels = self._first
        if not self.classes and labels.ndim == 2 and (labels.shape[1] > 1 or kind.target != "class"):
            self.classes = labels.shape[1]
        elif not self.classes and self.endless:
            raise ValueError("The labels of the pipeline are class numbers. Pass the number of classes as classes=.")
        if self.endless and len(images) != batch_size:
            given = f"The pipeline yields batches of {len(images)}, not of batch_size={batch_size}"
            warn_caller(f"{given}. They are used as they are.")
        if not self._single:  # test data, too, is filled up to no more than this
            self.batch_size = len(images)
        try:
            length = source.num_batches if is_py_dataset(source) else len(source)
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

    def _make(self, step: int) -> tuple[Any, Any]:
        """Goes forward to the step, from the start for an earlier one; one thread at a time may call it."""
        if step < self._next:
            self._restart()
        images, labels = self._pull(step)
        while self._next <= step:
            images, labels = self._pull(step)
        if self.classes and self.target not in DENSE:
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

    def _pull(self, step: int) -> tuple[Any, Any]:
        """Returns the next batch on the way to a step."""
        if self._first is not None:
            pulled, self._first = self._first, None
        else:
            pulled = next(self._good, None)
        if pulled is None:
            if not self.endless:
                raise EndOfData(f"step must be below {self._next}, the batches of the pipeline, but {step} was given.")
            raise ValueError(
                f"The pipeline ends after {self._next} batches. Pass a data set or list that can be read again."
            )
        self._next += 1
        return pulled

    def _restart(self) -> None:
        if hasattr(self._source, "__next__") and getattr(self, "_next", 0):
            raise ValueError("This iterator can be read only once. Pass its source instead: a data set, or a list.")
        self._next, self._first, self._good = 0, None, self._good_batches()

    def _good_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yields batches of good images and checked labels, epoch after epoch in training; puts examples together."""
        waiting: list[tuple[np.ndarray, Any]] = []
        bad_in_a_row = 0
        while True:
            number = -1
            for number, element in enumerate(one_pass(self._source)):
                images, labels = pair_of(element, self.target)
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
        if self.target not in DENSE:
            labels = np.concatenate([labels for _, labels in parts])
        elif self.target == "mask" and self.endless:
            labels = np.stack(labels)
        return images, labels

    def _resized(self, images: np.ndarray) -> np.ndarray:
        """Returns images as a stream does: float32 at the size, with masks at theirs; without a transform as given."""
        transform = self.transform
        if transform is None or transform.any_size:
            return images
        if images.shape[1:3] != transform.image_size and isinstance(transform, ImageTransform):
            images = np.stack(
                [resize_for_evaluation(image, transform.image_size, transform.resize) for image in images]
            )
        return images.astype("float32")

    def _check_pixels(self, images: np.ndarray, where: str) -> None:
        """Checks images; whether they are scaled already is judged over several of them, because one may be dark."""
        several = len(images) >= SEVERAL or images.dtype == "uint8"
        check_pixels(images, self.transform.channels, name=where, scaled="raise" if several else "ignore")
        self._recent = [] if several else [*self._recent, *map(extremes, images)][-SEVERAL:]
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
                raise ValueError(
                    f"The images of {where} are {given}, but the model takes {wanted}. Resize them in the pipeline, "
                    "for example with keras_vit.preprocessing.resize_images."
                )
            counts = [len(of) if getattr(of, "ndim", 1) else "one" for of in (images, labels)]
            if counts[0] != counts[1]:
                given = f"has {counts[0]} images, {counts[1]} labels"
                raise ValueError(f"{where} needs a label for each image, but {given}.")
            if self.target in DENSE:
                pairs = zip(images, labels, strict=True)
                return [self._kind.checked(target, image.shape[:2], where) for image, target in pairs]
            target = "class" if self.target == NO_TARGET else self.target
            return check_labels(labels, self._kind.classes, where, target=target)[0]
        except ValueError as error:
            if not self._skip:
                if self.transform is None:  # evaluation has no option to leave such batches out
                    raise
                raise ValueError(f"{error} Pass {SKIP} to leave such data out.") from error
            if all(image.path != where for image in self.bad):
                self.bad.append(BadImage(where, str(error)))
            return None
