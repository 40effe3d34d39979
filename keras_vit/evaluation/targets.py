"""Classification with several labels an image, and regression: figures over arrays, and the results of `evaluate`."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit._terminal import ClassesResult, Column, TableResult

TINY = float(np.finfo("float32").tiny)  # a probability of 0 would make the loss infinite
# Columns that several results have.
IMAGES = Column("images", lambda result: result.examples)
CLASSES = Column("classes", lambda result: int((result.images_per_class > 0).sum()))
LOSS = Column("loss", lambda result: result.loss, form=".4f")
SPEED = Column("images/s", lambda result: round(result.examples / max(result.seconds, 1e-9)))


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the average precision of each class, float64 `(classes,)`; NaN for a class that no image has.

    It is the mean precision over the images of the class, ordered by their score, as scikit-learn's
    `average_precision_score` computes it. The mean over the classes is mAP.

    Args:
        scores: `(n, classes)`, larger for likelier classes.
        labels: `(n, classes)` of 0 and 1.

    ValueError if the arrays are not of these shapes or values, or scores are not finite.

    Examples:
        >>> evaluation.average_precision(np.array([[0.9], [0.8], [0.1]]), np.array([[1], [0], [1]])).round(3)
        array([0.833])
    """
    found = np.full(np.shape(scores)[1:], np.nan)
    for number, (_, chosen, right) in enumerate(_curves(scores, labels)):
        if right[-1]:
            found[number] = np.sum(np.diff(right, prepend=0) / right[-1] * right / chosen)
    return found


def f1_scores(chosen: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns F1 of each class, the harmonic mean of precision and recall, float64 `(classes,)`.

    `chosen`, what the model predicts, and `labels` are `(n, classes)` of 0 and 1; ValueError for other arrays. NaN
    marks a class that is neither labelled nor predicted.

    Examples:
        >>> evaluation.f1_scores(np.array([[1], [1], [0]]), np.array([[1], [0], [1]]))
        array([0.5])
    """
    chosen, labels = _pair("chosen", chosen, labels)
    if not np.isin(chosen, (0, 1)).all():
        raise ValueError("chosen must be 0 or 1, such as scores >= threshold, but it has other values.")
    both, total = (chosen * labels).sum(0), (chosen + labels).sum(0)
    return np.where(total > 0, 2 * both / np.maximum(total, 1), np.nan)


def best_thresholds(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns for each class the score with the best F1 as threshold, float64 `(classes,)`.

    Choose thresholds on validation data: on test data, the result would be too good. Of equally good scores, the
    largest is returned; NaN for a class that no image has. Arguments and errors are as in `average_precision`.

    Examples:
        >>> evaluation.best_thresholds(np.array([[0.9], [0.4], [0.1]]), np.array([[1], [1], [0]]))
        array([0.4])
    """
    found = np.full(np.shape(scores)[1:], np.nan)
    for number, (values, chosen, right) in enumerate(_curves(scores, labels)):
        if right[-1]:
            found[number] = values[np.argmax(right / (chosen + right[-1]))]
    return found


def _curves(scores: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields for each class its different scores, falling; how many images reach each; how many of these have it."""
    scores, labels = _pair("scores", scores, labels)
    for column, truth in zip(scores.T, labels.T, strict=True):
        order = np.argsort(-column, kind="stable")
        ends = np.flatnonzero(np.diff(column[order], append=-np.inf))
        yield column[order][ends], ends + 1, np.cumsum(truth[order])[ends]


def _pair(name: str, values: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, labels = to_numpy(values).astype("float64"), to_numpy(labels).astype("float64")
    if values.ndim != 2 or values.shape != labels.shape or not len(values):
        raise ValueError(f"{name} and labels must both be (n, classes), n > 0, not {values.shape} and {labels.shape}.")
    if not np.isin(labels, (0, 1)).all() or not np.isfinite(values).all():
        raise ValueError(f"labels must be 0 or 1, and {name} must be finite, but they have other values.")
    return values, labels


@dataclasses.dataclass(frozen=True, eq=False)
class MultilabelResult(ClassesResult):
    """The result of `evaluate` if an image may have several labels.

    Printing it draws a table; `class_table(worst=None)` lists the classes, the lowest average precision first.

    Attributes:
        examples: Number of images.
        classes: Number of outputs of the model.
        loss: Binary cross-entropy in nats, summed over the classes and averaged over the images.
        average_precision: float64 `(classes,)`, see `evaluation.average_precision`.
        f1: float64 `(classes,)`: F1 of the predictions at `threshold`.
        threshold: A class is predicted if its probability is at least this.
        best_thresholds: float64 `(classes,)`: the thresholds with the best F1 on these images.
        best_f1: float64 `(classes,)`: F1 at these thresholds.
        images_per_class: int64 `(classes,)`.
        class_names: Names of the classes, or None.
        seconds: Duration, including reading the data.

    Examples:
        >>> data = small_images, np.array([[1, 0], [1, 1], [0, 1], [0, 0]])
        >>> result = evaluation.evaluate(small, data, target="multilabel", outputs="logits", progress=False)
        >>> result.average_precision.shape
        (2,)
    """

    examples: int
    classes: int
    loss: float
    average_precision: np.ndarray
    f1: np.ndarray
    threshold: float
    best_thresholds: np.ndarray
    best_f1: np.ndarray
    images_per_class: np.ndarray
    class_names: tuple[str, ...] | None
    seconds: float

    @property
    def mean_average_precision(self) -> float:
        """MAP: the mean of `average_precision` over the classes that have images; NaN if none has."""
        return _mean(self.average_precision)

    @property
    def mean_f1(self) -> float:
        """Macro F1: the mean of `f1` over the classes with a defined F1; NaN if there are none."""
        return _mean(self.f1)

    derived = ("mean_average_precision", "mean_f1")
    ranked_by = "average_precision"
    columns = (
        IMAGES,
        CLASSES,
        Column("mAP %", lambda result: result.mean_average_precision, percent=True),
        Column("F1 %", lambda result: result.mean_f1, percent=True),
        LOSS,
        SPEED,
    )
    class_columns = (
        Column("images", lambda result: result.images_per_class),
        Column("AP %", lambda result: result.average_precision, percent=True),
        Column("F1 %", lambda result: result.f1, percent=True),
        Column("best threshold", lambda result: result.best_thresholds, digits=4),
        Column("F1 there %", lambda result: result.best_f1, percent=True),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class NumberResult(TableResult):
    """Result of `evaluate` for a regression, where the label of an image is a number. Printing it draws a table.

    Attributes:
        examples: Number of images.
        r2: The share of the labels' variance that the outputs explain, 1 at best; NaN if all labels are the same.
        mean_absolute_error: Mean absolute error of the outputs, in the unit of the labels.
        root_mean_squared_error: Root mean squared error of the outputs, in the unit of the labels.
        seconds: Duration, including reading the data.

    Examples:
        >>> data = np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 2.0, 3.0])
        >>> result = evaluation.evaluate(lambda x: x, data, target="number", progress=False)
        >>> result.r2, round(result.mean_absolute_error, 3)
        (0.5, 0.333)
    """

    examples: int
    r2: float
    mean_absolute_error: float
    root_mean_squared_error: float
    seconds: float

    columns = (
        IMAGES,
        Column("R2", lambda result: result.r2, digits=4),
        Column("mean abs. error", lambda result: result.mean_absolute_error, form=".5g"),
        Column("RMS error", lambda result: result.root_mean_squared_error, form=".5g"),
        SPEED,
    )


def measure_labels(
    scores: np.ndarray,
    labels: np.ndarray,
    outputs: str,
    label_outputs: np.ndarray | None,
    threshold: float,
    class_names: Sequence[str] | None,
    started: float,
) -> MultilabelResult:
    """Returns the `MultilabelResult` of scores `(n, classes)` and labels of 0 and 1 `(n, columns)`."""
    if label_outputs is not None:
        columns, labels = labels, np.zeros((len(labels), scores.shape[1]), "float32")
        labels[:, label_outputs] = columns
    if labels.shape != scores.shape:
        raise ValueError(f"Labels must have {scores.shape[1]} columns, one an output, but have {labels.shape[1]}.")
    scores, labels = scores.astype("float64"), labels.astype("float64")
    if outputs == "logits":
        losses = np.logaddexp(0, scores) - scores * labels
        scores = np.exp(-np.logaddexp(0, -scores))
    else:
        losses = -(labels * np.log(np.maximum(scores, TINY)) + (1 - labels) * np.log(np.maximum(1 - scores, TINY)))
    best = best_thresholds(scores, labels)
    return MultilabelResult(
        examples=len(scores),
        classes=scores.shape[1],
        loss=float(losses.sum(1).mean()),
        average_precision=average_precision(scores, labels),
        f1=f1_scores(scores >= threshold, labels),
        threshold=threshold,
        best_thresholds=best,
        best_f1=np.where(np.isnan(best), np.nan, f1_scores(scores >= np.nan_to_num(best, nan=np.inf), labels)),
        images_per_class=labels.sum(0).astype("int64"),
        class_names=None if class_names is None else tuple(class_names),
        seconds=time.perf_counter() - started,
    )


def measure_regression(outputs: np.ndarray, labels: np.ndarray, started: float) -> NumberResult:
    """Returns the `NumberResult` of outputs and labels `(n, 1)`; its time counts from `started`."""
    outputs, labels = outputs.astype("float64"), labels.astype("float64")
    if outputs.shape != labels.shape:
        raise ValueError(f"target='number' needs a model with one output, but the model has {outputs.shape[1]}.")
    errors, spread = outputs - labels, float(((labels - labels.mean()) ** 2).sum())
    squares = float((errors**2).sum())
    return NumberResult(
        examples=len(labels),
        r2=1 - squares / spread if spread else float("nan"),
        mean_absolute_error=float(np.abs(errors).mean()),
        root_mean_squared_error=float(np.sqrt(squares / len(labels))),
        seconds=time.perf_counter() - started,
    )


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
