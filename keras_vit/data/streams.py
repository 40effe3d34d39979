"""Streams: batches of images and labels by the number of the step.

A batch of a training stream is a function of the seed and the number of the step alone, whatever was asked for before:
the order is a permutation for every epoch, drawn from (seed, epoch); crop, flip and RandAugment of an image are drawn
from (seed, epoch, image), mixup from (seed, step). So a run that was stopped goes on with the very batches that it
would have seen. Pipelines of other libraries cannot be asked for a step: `keras_vit.data.pipelines`.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._text import printable
from keras_vit.data.checks import BadImage


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
        bad: What was left out, with reasons; it grows when a file turns out to be bad later.
        converted: Pictures that are not RGB with 8 bits, and what is done with them.
    """

    class_names: list[str] | None = None
    classes: int = 0
    examples: int | None = None
    batch_size: int = 0
    steps_per_epoch: int | None = None
    endless: bool = False

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
            pipeline's own, int64 `(batch,)`.

        Raises:
            IndexError: if test data has no such batch.
            ValueError: if an image or label is bad and bad images are not skipped.
        """
        raise NotImplementedError

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


def as_dataset(stream: ImageStream, steps: Sequence[int]) -> keras.utils.PyDataset:
    """Some batches of a stream for `model.fit` and `model.evaluate`, on any backend.

    Args:
        stream: What `open_data` returns.
        steps: The numbers of the steps, usually a `range`.

    Returns:
        The data set. Its order is that of `steps` if you call `model.fit(..., shuffle=False)`.
    """
    return Batches(stream.batch, steps)


class Batches(keras.utils.PyDataset):
    """Some batches, as `model.fit` and `model.evaluate` take them.

    Args:
        batch: From the number of a batch to `(inputs, targets)`.
        steps: The numbers of the batches.
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
