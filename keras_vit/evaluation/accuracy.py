"""How often a model is right: over all images, per class, and what it takes for what."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._processes import Processes, connect
from keras_vit._terminal import Table, TableResult
from keras_vit.data import match_labels
from keras_vit.evaluation.batches import open_batches, predictions
from keras_vit.preprocessing import imagenet1k_classes
from keras_vit.zoo import as_model

OUTPUTS = ("logits", "softmax", "sigmoid")  # what a model's numbers are, and so what its loss is
CONFUSION_CLASSES = 4096  # a matrix for more classes would take over 128 MiB


@dataclasses.dataclass(frozen=True, eq=False)
class AccuracyResult(TableResult):
    """What `evaluate` found. Printing it draws a table.

    Attributes:
        examples: How many images there were.
        classes: How many outputs the model has.
        top: From k to the share of images whose class is among the k largest outputs.
        loss: Mean cross-entropy in nats: softmax for logits and softmax outputs, and for sigmoid outputs the sum of
            the classes' binary ones; None where it is not known what the outputs are.
        images_per_class: int64 `(classes,)`.
        correct_per_class: int64 `(classes,)`: how many of these are right.
        confusion: int64 `(classes, classes)`: rows are what the images show, columns what the model says; None for
            more than `CONFUSION_CLASSES` classes.
        class_names: What the classes are called, or None.
        seconds: How long it took, with reading the data.

    Examples:
        >>> result = evaluation.evaluate(small, (small_images, labels), top=(1,), progress=False)
        >>> result.examples, result.confusion.shape
        (4, (2, 2))
    """

    examples: int
    classes: int
    top: dict[int, float]
    loss: float | None
    images_per_class: np.ndarray
    correct_per_class: np.ndarray
    confusion: np.ndarray | None
    class_names: tuple[str, ...] | None
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of images whose class has the largest output."""
        return int(self.correct_per_class.sum()) / self.examples

    @property
    def per_class(self) -> np.ndarray:
        """float64 `(classes,)`: accuracy on the images of each class; NaN where there are none."""
        counts = np.where(self.images_per_class, self.images_per_class, np.nan)
        return self.correct_per_class / counts

    def class_table(self, worst: int | None = None) -> Table:
        """The classes that there are images of, the worst first.

        Args:
            worst: How many; None for all.

        Returns:
            Rows with `class`, `images`, `accuracy` in percent, and `taken for`: what most of the others were taken for.
        """
        accuracy = self.per_class
        order = [int(i) for i in np.argsort(accuracy, kind="stable") if self.images_per_class[i]]
        return Table(
            {
                "class": self._name(i),
                "images": int(self.images_per_class[i]),
                "accuracy %": round(100 * float(accuracy[i]), 2),
                "taken for": self._taken_for(i),
            }
            for i in order[:worst]
        )

    def _name(self, index: int) -> str:
        return str(index) if self.class_names is None else self.class_names[index]

    def _taken_for(self, index: int) -> str | None:
        if self.confusion is None:
            return None
        others = self.confusion[index].copy()
        others[index] = 0
        worst = int(others.argmax())
        return f"{self._name(worst)} ({others[worst]})" if others[worst] else None

    def table(self) -> Table:
        """One row with the figures over all images."""
        row: dict[str, Any] = {"images": self.examples, "classes": int((self.images_per_class > 0).sum())}
        row |= {f"top-{k} %": round(100 * share, 2) for k, share in self.top.items()}
        if self.loss is not None:
            row["loss"] = f"{self.loss:.4f}"
        return Table([{**row, "images/s": round(self.examples / max(self.seconds, 1e-9))}])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON; the accuracy of a class without images is None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
        per_class = [None if np.isnan(share) else float(share) for share in self.per_class]
        top = {str(k): share for k, share in self.top.items()}
        return {**plain, "top": top, "accuracy": self.accuracy, "per_class": per_class}


def evaluate(
    model: Any,
    data: Any,
    *,
    top: Sequence[int] = (1, 5),
    outputs: str | None = None,
    preprocess: bool | None = None,
    batch_size: int = 64,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> AccuracyResult:
    """Measures a classifier on labelled images, batch by batch: no more than a batch is held in memory.

    Args:
        model: A Keras model with outputs `(batch, classes)`, a function from images to such, or what `keras_vit.load`
            takes: a name, an address or a path.
        data: What `keras_vit.data.open_data` takes (a folder, of which the `test/` is taken, `(images, labels)`, a
            pipeline, `"tfds:NAME"`, a dict of splits), what it returns, or a list or generator of batches. Labels are
            integers or one-hot. Images in arrays and pipelines are as the model wants them, or pixels with
            `preprocess=True`.
        top: The ks of the top-k accuracies; those with more than the model's classes are left out.
        outputs: What the outputs are, for the loss: one of `OUTPUTS`. None: what the model's config says, and for
            models that are not of this package no loss.
        preprocess: Whether the images are pixels of 0..255 in any size. `None`: those of files, of streams and in
            lists of images of different sizes are.
        batch_size: Images per batch, where the data does not come in batches.
        class_names: What the labels stand for, in their order, where the data does not say it (see `open_data`).
            Where the model knows the names of its outputs, too, labels and outputs are matched by name: the data
            may have fewer classes than the model, in another order.
        on_bad_image: `"stop"` or `"skip"`, for pixels (see `open_data`).
        distribution: None: all processes that the program was started in share the images, and each gets the result
            for all (see `keras_vit.training.connect`). `"alone"`: this process looks at all of them.
        progress: Whether a bar is shown.

    Returns:
        Accuracy over all images and per class, loss, and the confusion matrix.

    Raises:
        TypeError, ValueError: if the data or an argument makes no sense, if the data has classes that the model does
            not have, or if an output is not finite.
        ConnectionError: if another process ends before its time.

    Examples:
        >>> result = evaluation.evaluate(small, (pixels, labels), preprocess=True, progress=False)
        >>> 0 <= result.top[1] <= 1
        True
    """
    processes = connect(distribution)  # before anything is computed
    model = as_model(model)
    top, outputs = _check(model, top, outputs)
    started = time.perf_counter()
    counts: _Counts | None = None
    options: dict[str, Any] = {"preprocess": preprocess, "batch_size": batch_size, "class_names": class_names}
    options |= {"on_bad_image": on_bad_image, "title": "images" if progress and processes.first else None}
    options["processes"] = processes
    classes = getattr(getattr(model, "config", None), "classes", None)
    opened = open_batches(model, data, "test", classes=classes, **options)
    with processes.failing_together(), opened as (pairs, data_names):
        outputs_of, names = _outputs(model, data_names, classes)
        for scores, labels in predictions(model, pairs):
            if counts is None:
                if classes is None:
                    outputs_of, names = _outputs(model, data_names, scores.shape[1])
                counts = _Counts(scores.shape[1], tuple(k for k in top if k <= scores.shape[1]), outputs)
            if len(labels):
                counts.add(scores, labels if outputs_of is None else _looked_up(outputs_of, labels))
        counts.add_up(processes)
    return counts.result(names, time.perf_counter() - started)


def _outputs(
    model: Any, data_names: Sequence[str] | None, classes: int | None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """The output of each label, where names tell it, or None; and the names of the outputs."""
    names = getattr(getattr(model, "config", None), "class_names", None)
    if names is None and classes == 1000 and data_names is not None:
        ids, imagenet = zip(*imagenet1k_classes(), strict=True)
        names = imagenet if set(data_names) <= set(ids) else None
    if data_names is None or classes is None:
        return None, names
    if names is not None:
        return match_labels(data_names, names), tuple(names)
    if len(data_names) != classes:
        raise ValueError(
            f"The classes of the data have {len(data_names)} names, but the model has {classes} outputs, and does not "
            "know what they are called. Is it the model for this data? If it is: model.with_config(class_names=[...])."
        )
    return None, tuple(data_names)


def _looked_up(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if labels.max() >= len(outputs):
        raise ValueError(f"There is a label {labels.max()}, but the data has {len(outputs)} class names.")
    return outputs[labels]


class _Counts:
    """What is added up from batch to batch."""

    def __init__(self, classes: int, top: tuple[int, ...], outputs: str | None) -> None:
        self.classes, self.top, self.outputs = classes, top, outputs
        self.images, self.correct = np.zeros(classes, "int64"), np.zeros(classes, "int64")
        self.within = dict.fromkeys(top, 0)
        self.loss = 0.0
        self.confusion = np.zeros((classes, classes), "int64") if classes <= CONFUSION_CLASSES else None

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        if scores.shape[1] != self.classes:
            raise ValueError(f"The model gave {scores.shape[1]} outputs, but {self.classes} for the batch before.")
        if labels.max() >= self.classes:
            raise ValueError(
                f"There is a label {labels.max()}, but the model has {self.classes} outputs, for the classes 0 to "
                f"{self.classes - 1}. Is it the model for this data?"
            )
        # Of equal outputs the first counts as the largest, as argmax has it.
        own = _own(scores, labels)[:, None]
        earlier = np.arange(self.classes) < labels[:, None]
        rank = ((scores > own) | ((scores == own) & earlier)).sum(1)
        for k in self.top:
            self.within[k] += int((rank < k).sum())
        self.images += np.bincount(labels, minlength=self.classes)
        self.correct += np.bincount(labels[rank == 0], minlength=self.classes)
        if self.confusion is not None:
            np.add.at(self.confusion, (labels, scores.argmax(1)), 1)
        if self.outputs is not None:
            self.loss += float(_LOSSES[self.outputs](scores.astype("float64"), labels).sum())

    def add_up(self, processes: Processes) -> None:
        """Puts the sums over all processes in the place of this one's."""
        self.images, self.correct = processes.total(self.images), processes.total(self.correct)
        self.within = {k: int(processes.total(count)) for k, count in self.within.items()}
        self.loss = float(processes.total(self.loss))
        if self.confusion is not None:
            self.confusion = processes.total(self.confusion)

    def result(self, class_names: tuple[str, ...] | None, seconds: float) -> AccuracyResult:
        examples = int(self.images.sum())
        return AccuracyResult(
            examples,
            self.classes,
            {k: count / examples for k, count in self.within.items()},
            None if self.outputs is None else self.loss / examples,
            self.images,
            self.correct,
            self.confusion,
            class_names,
            seconds,
        )


def _own(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return values[np.arange(len(labels)), labels]


def _of_logits(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    top = scores.max(1)
    return np.log(np.exp(scores - top[:, None]).sum(1)) + top - _own(scores, labels)


def _of_softmax(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(_own(scores, labels), TINY))


def _of_sigmoid(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    yes, no = np.log(np.maximum(scores, TINY)), np.log(np.maximum(1 - scores, TINY))
    return -(_own(yes, labels) + no.sum(1) - _own(no, labels))


TINY = float(np.finfo("float32").tiny)  # a probability of 0 would make the loss infinite
_LOSSES = {"logits": _of_logits, "softmax": _of_softmax, "sigmoid": _of_sigmoid}
_ACTIVATIONS = {None: "logits", "linear": "logits", "softmax": "softmax", "sigmoid": "sigmoid"}


def _check(model: Any, top: Any, outputs: str | None) -> tuple[tuple[int, ...], str | None]:
    if not callable(model):
        raise TypeError(f"model must be a Keras model or a function, but {type(model).__name__} was given.")
    config = getattr(model, "config", None)
    if getattr(config, "classes", 0) is None:
        raise ValueError("The model has no head, so it knows no classes: build it with include_top=True.")
    if outputs is not None and outputs not in OUTPUTS:
        raise ValueError(f"outputs must be one of {OUTPUTS} or None, but {outputs!r} was given.")
    if outputs is None and hasattr(config, "classifier_activation"):
        outputs = _ACTIVATIONS.get(config.classifier_activation)
    top = (top,) if isinstance(top, int) else tuple(top)
    if not top or any(not isinstance(k, (int, np.integer)) or k < 1 for k in top):
        raise ValueError(f"top must be integers of at least 1, such as (1, 5), but {top!r} was given.")
    return tuple(map(int, top)), outputs
