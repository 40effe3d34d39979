"""The few-shot linear probe: how well a regularised least-squares classifier does on frozen features (paper, 4.1).

The numbers are those of big_vision's `evaluators/fewshot_lsr.py`: the same draw of examples for a seed, the same
whitening, bias and targets, and the same closed form. It is all float64 NumPy, the same on every backend.
"""

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from keras_vit._arguments import check_type, whole_numbers
from keras_vit._options import ABOVE_0, PerChannel, Positive, checked
from keras_vit._processes import ALONE, ALONE_BY_NAME, Processes, connect
from keras_vit._terminal import Column, Table, TableResult, make_table
from keras_vit.data import has_test_split, match_labels
from keras_vit.evaluation.accuracy import AccuracyResult, all_outputs, evaluate, open_batches, predictor
from keras_vit.evaluation.embedding import TEMPERATURE, knn
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.zoo import as_model

SHOTS = (1, 5, 10, 25)
"""Default numbers of training images per class of `few_shot` (big_vision, `configs/common_fewshot.py`).

Examples:
    >>> max(evaluation.SHOTS)
    25
"""
L2 = 2.0**10
"""Default L2 regularisation strength of `few_shot` (big_vision, `configs/common_fewshot.py`).

Examples:
    >>> evaluation.L2 in evaluation.L2_SWEEP
    True
"""
L2_SWEEP = tuple(2.0**i for i in range(-10, 20))
"""The L2 strengths that earlier versions of big_vision compared, to be passed as `l2` of `few_shot`.

Examples:
    >>> len(evaluation.L2_SWEEP)
    30
"""
BIAS_CONSTANT = 100.0  # so large that the bias is hardly regularised
WHITENING_EPSILON = 1e-5
HELD_OUT = 10_000  # training images at most that decide between strengths


@dataclasses.dataclass(frozen=True)
class LeastSquaresProbe:
    """A linear least-squares classifier with L2 regularisation, fitted once for all regularisation strengths.

    X are the whitened features with a bias, and Y the targets of -1 and 1. The weights for the strength l2 are
    `(X^T X + l2 I)^-1 X^T Y = lhs (diag(eigenvalues) + l2 I)^-1 rhs`.

    Attributes:
        mean: Mean of the training features, `(features,)`.
        std: Standard deviation of the training features plus `WHITENING_EPSILON`, `(features,)`.
        eigenvalues: `(n,)`, where n is the smaller of examples and features + 1.
        lhs: Left factor of the weights, `(features + 1, n)`.
        rhs: Right factor of the weights, `(n, classes)`.

    Examples:
        >>> probe = evaluation.LeastSquaresProbe.fit(np.eye(4), np.array([0, 0, 1, 1]), 2)
        >>> probe.scores(np.eye(4), l2=[1.0])[0].argmax(axis=1)
        array([0, 0, 1, 1])
    """

    mean: np.ndarray
    std: np.ndarray
    eigenvalues: np.ndarray
    lhs: np.ndarray
    rhs: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, labels: np.ndarray, classes: int) -> "LeastSquaresProbe":
        """Fits a probe to features `(examples, features)` and integer labels `(examples,)`.

        `classes` is the number of classes; a label outside them belongs to no class. Raises ValueError unless features
        are one or more rows of finite numbers with a label each.
        """
        x, labels = np.asarray(features, "float64"), np.asarray(labels)
        if x.ndim != 2 or not len(x) or labels.shape != x.shape[:1]:
            raise ValueError(
                f"features must be (examples, features), one or more, and labels (examples,), but {x.shape} and "
                f"{labels.shape} were given."
            )
        if not np.isfinite(x).all():
            raise ValueError("features must be finite, but some are NaN or infinite.")
        mean, std = x.mean(0), x.std(0) + WHITENING_EPSILON
        x = _with_bias((x - mean) / std)
        y = np.where(np.arange(classes) == labels[:, None], 1.0, -1.0)
        if len(x) >= x.shape[1]:
            eigenvalues, q = np.linalg.eigh(x.T @ x)
            return cls(mean, std, eigenvalues, q, q.T @ (x.T @ y))
        # Fewer examples than features: X^T (X X^T + l2 I)^-1 Y is the same, from a smaller matrix.
        eigenvalues, q = np.linalg.eigh(x @ x.T)
        return cls(mean, std, eigenvalues, x.T @ q, q.T @ y)

    def weights(self, l2: float) -> np.ndarray:
        """Weights for an L2 strength, float64 `(features + 1, classes)`; last the bias / `BIAS_CONSTANT`."""
        return (self.lhs / (self.eigenvalues + l2)) @ self.rhs

    def scores(self, features: np.ndarray, l2: Sequence[float]) -> list[np.ndarray]:
        """Returns a list of scores, float64 `(examples, classes)`, one for each L2 strength in `l2`.

        The largest score of a row is the predicted class. ValueError if features are not `(examples, features)`.
        """
        x = np.asarray(features, "float64")
        if x.shape[1:] != self.mean.shape:
            raise ValueError(f"features must be (examples, {len(self.mean)}), but {x.shape} was given.")
        x = _with_bias((x - self.mean) / self.std) @ self.lhs
        return [(x / (self.eigenvalues + strength)) @ self.rhs for strength in l2]


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS_CONSTANT)


@dataclasses.dataclass(frozen=True, eq=False)
class FewShotResult(TableResult):
    """The result of `few_shot`. Printing it draws a table.

    Attributes:
        shots: Examples per class.
        l2: L2 regularisation strengths.
        seeds: Seeds of the draws of examples.
        accuracy: Accuracy on the test images, float64 `(shots, l2, seeds)`.
        held_out: Accuracy on training images that were not drawn, of the same shape; None for a single strength.
        classes: Number of classes.
        features: Length of a feature vector.
        train_examples: Number of training images to draw from.
        test_examples: Number of test images.

    Examples:
        >>> features = np.eye(4), np.array([0, 0, 1, 1])
        >>> result = evaluation.few_shot(None, features, features, shots=(1,), seeds=2, progress=False)
        >>> result.accuracy.shape
        (1, 1, 2)
    """

    shots: tuple[int, ...]
    l2: tuple[float, ...]
    seeds: tuple[int, ...]
    accuracy: np.ndarray
    held_out: np.ndarray | None
    classes: int
    features: int
    train_examples: int
    test_examples: int

    @property
    def mean(self) -> np.ndarray:
        """The accuracy averaged over the seeds, float64 `(shots, l2)`."""
        return self.accuracy.mean(-1)

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of the accuracy from seed to seed, float64 `(shots, l2)`; 0 for one seed."""
        return self.accuracy.std(-1, ddof=1) if len(self.seeds) > 1 else np.zeros(self.accuracy.shape[:2])

    @property
    def best_l2(self) -> dict[int, float]:
        """A dict from the number of shots to the best L2 strength on held-out training images.

        Test images play no part in the choice, so the test accuracy is not biased by it.
        """
        if self.held_out is None:  # there is one strength only
            best = [0] * len(self.shots)
        else:
            best = self.held_out.mean(-1).argmax(-1)
        return {shots: self.l2[i] for shots, i in zip(self.shots, best, strict=True)}

    @property
    def rows(self) -> Table:
        """A row for each number of shots and L2 strength: accuracy (0 to 1), its spread, whether it is best."""
        best, mean, spread, seeds = self.best_l2, self.mean.tolist(), self.spread.tolist(), len(self.seeds)
        return Table(
            {
                "shots": shots,
                "l2": l2,
                "accuracy": mean[i][j],
                "spread": spread[i][j],
                "seeds": seeds,
                "best": best[shots] == l2,
            }
            for i, shots in enumerate(self.shots)
            for j, l2 in enumerate(self.l2)
        )

    derived = ("mean", "spread", "best_l2")
    columns = (
        Column("shots", lambda row: row["shots"]),
        Column("accuracy %", lambda row: row["accuracy"], percent=True),
        Column("spread", lambda row: row["spread"], percent=True),
        Column("l2", lambda row: row["l2"], form="g"),
        Column("seeds", lambda row: row["seeds"]),
    )

    def table(self) -> Table:
        """A row for each number of shots: the accuracy at the best strength, in percent."""
        return make_table((row for row in self.rows if row["best"]), self.columns)


def few_shot(
    model: Any,
    train: Any,
    test: Any,
    *,
    shots: Sequence[int] = SHOTS,
    l2: float | Sequence[float] = L2,
    seeds: int | Sequence[int] = 3,
    preprocess: bool | None = None,
    batch_size: int = 64,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> FewShotResult:
    """Evaluates frozen features by few-shot linear probes: classifiers fitted to a few examples of each class.

    Arguments that are not listed here, and errors, are as in `evaluate`.

    Args:
        model: A model of this package, or what `keras_vit.load` takes (a name, an address, a path), whose `pre_logits`
            are used; another Keras model or a function, whose output `(batch, features)` is used; or None if `train`
            and `test` are features.
        train: Labelled images to draw examples from, as the data of `evaluate`; of a folder the `train/` is used. A
            stream of `open_data` needs `shuffle=False`.
        test: Labelled images to classify; of a folder the `test/` is used. Classes with names are matched by name.
        shots: Numbers of examples per class. A draw for more shots contains the draw for fewer.
        l2: L2 regularisation strength, or several, such as `L2_SWEEP`. The best is chosen on training images that were
            not drawn; more strengths cost little time.
        seeds: Number of draws, or a sequence of seeds.

    Returns:
        A `FewShotResult`: the accuracy for each number of shots, each strength and each seed.

    Raises:
        TypeError, ValueError: if an argument is invalid, a class has fewer examples than shots, or no training images
            are left to choose between several strengths.

    Examples:
        >>> print(evaluation.few_shot(model, (images, labels), (images, labels), shots=(1, 2), progress=False).classes)
        2
    """
    shots = whole_numbers("shots", shots, 1)
    seeds = whole_numbers("seeds", range(seeds) if isinstance(seeds, numbers.Integral) else seeds, 0)
    strengths = PerChannel(ABOVE_0)("l2", l2)
    strengths = tuple(map(float, strengths if isinstance(strengths, tuple) else (strengths,)))
    options = {"preprocess": preprocess, "batch_size": batch_size, "on_bad_image": on_bad_image, "progress": progress}
    known, unseen = _features_of_both(model, train, test, distribution, **options)
    x_train, y_train, x_test, y_test = known.features, known.labels, unseen.features, unseen.labels
    classes = int(y_train.max()) + 1
    counts = np.bincount(y_train)
    if classes < 2:
        raise ValueError("The data has only one class, but a classifier needs at least two.")
    if y_test.max() >= classes:
        raise ValueError(f"test must have labels from 0 to {classes - 1}, as train, but one is {y_test.max()}.")
    if counts.min() < max(shots):
        need = f"{max(shots)} shots need {max(shots)} training images of each class"
        raise ValueError(f"{need}, but class {counts.argmin()} has {counts.min()}. Pass fewer shots.")
    accuracy = np.empty((len(shots), len(strengths), len(seeds)))
    held_out = np.empty_like(accuracy) if len(strengths) > 1 else None
    for k, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        shuffled = [rng.permutation(np.flatnonzero(y_train == label)) for label in range(classes)]
        for i, count in enumerate(shots):
            drawn = np.concatenate([indices[:count] for indices in shuffled])
            probe = LeastSquaresProbe.fit(x_train[drawn], y_train[drawn], classes)
            accuracy[i, :, k] = [np.mean(scores.argmax(1) == y_test) for scores in probe.scores(x_test, strengths)]
            if held_out is not None:
                rest = np.concatenate([indices[count:] for indices in shuffled])
                if not len(rest):
                    raise ValueError(f"{count} shots leave no training images to choose between several l2. Pass one.")
                rest = rest[:: math.ceil(len(rest) / HELD_OUT)]
                scores = probe.scores(x_train[rest], strengths)
                held_out[i, :, k] = [np.mean(one.argmax(1) == y_train[rest]) for one in scores]
    facts = (classes, x_train.shape[1], len(y_train), len(y_test))
    return FewShotResult(shots, strengths, seeds, accuracy, held_out, *facts)


@checked
def knn_accuracy(
    model: Any,
    train: Any,
    test: Any,
    *,
    k: Positive = 20,
    temperature: Annotated[float, TEMPERATURE] = 0.07,
    top: Sequence[int] = (1, 5),
    preprocess: bool | None = None,
    batch_size: int = 64,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> AccuracyResult:
    """Evaluates frozen features by the votes of the `k` nearest neighbours, as DINO does.

    All arguments and errors are as in `few_shot`, votes as in `knn`, of all training images if fewer than `k`.
    The `AccuracyResult` that is returned has no loss.

    Examples:
        >>> evaluation.knn_accuracy(model, (images, labels), (images, labels), k=1, progress=False).accuracy
        1.0
    """
    options = {"preprocess": preprocess, "batch_size": batch_size, "on_bad_image": on_bad_image, "progress": progress}
    known, unseen = _features_of_both(model, train, test, distribution, **options)
    names = known.class_names
    classes = max(int(known.labels.max()) + 1, len(names or ()))
    k = min(k, len(known.features))
    votes = knn(known.features, known.labels, unseen.features, k, temperature, classes)
    found = evaluate(np.asarray, (votes, unseen.labels), top=top, distribution=ALONE_BY_NAME, progress=False)
    return dataclasses.replace(found, class_names=None if names is None else tuple(names))  # in the order of the votes


def extract_features(
    model: Any,
    data: Any,
    preprocess: bool | None = None,
    batch_size: int = 64,
    title: str | None = None,
    split: str = "test",
    on_bad_image: str = "stop",
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the frozen features of labelled images, floats `(examples, features)`, and int64 labels `(examples,)`.

    Arguments and errors are as in `few_shot`. Of a folder or a dict, `split` (`"train"` or `"test"`) is used. `title`
    is the text before the progress bar; None for no bar. `data` are labelled images.

    Examples:
        >>> features, classes = evaluation.extract_features(model, (images, labels))
        >>> features.shape
        (4, 96)
    """
    options: dict[str, Any] = {"preprocess": preprocess, "batch_size": batch_size, "on_bad_image": on_bad_image}
    found = _features(as_model(model), data, split, title=title, **options)
    return found.features, found.labels


@dataclasses.dataclass(frozen=True)
class _Features:
    """Features `(examples, features)`, int64 labels `(examples,)`, and the names of the classes, or None."""

    features: np.ndarray
    labels: np.ndarray
    class_names: list[str] | None


def _features_of_both(
    model: Any, train: Any, test: Any, distribution: str | None, progress: bool, **options: Any
) -> tuple[_Features, _Features]:
    """The features of the training images and those of the test images, whose labels are numbered as in train."""
    paths = isinstance(train, (str, os.PathLike)) and str(train) == str(test) and os.path.isdir(train)
    if (paths or (hasattr(train, "open_examples") and train is test)) and not has_test_split(train):
        name = getattr(train, "source", train)
        raise ValueError(f"{name} has no test/ folder or rows. Add them, or pass other data as test.")
    processes = connect(distribution)  # before anything is computed
    model, bars = as_model(model), progress and processes.first
    options["processes"] = processes
    known = _features(model, train, "train", title="training images" if bars else None, **options)
    unseen = _features(model, test, "test", title="test images" if bars else None, **options)
    if known.class_names is not None and unseen.class_names is not None:
        numbers = match_labels(unseen.class_names, known.class_names, "test")
        unseen = dataclasses.replace(unseen, labels=numbers[unseen.labels], class_names=known.class_names)
    counts = known.features.shape[1], unseen.features.shape[1]
    if counts[0] != counts[1]:
        raise ValueError(f"train and test must have equally long features, but have {counts[0]} and {counts[1]}.")
    return known, unseen


def _features(model: Any, data: Any, split: str, processes: Processes = ALONE, **options: Any) -> _Features:
    """Returns the features of a split; of a model of this package its `pre_logits`, with None the data itself."""
    check_type("model", model, (Callable, type(None)), "a Keras model, a function or None")
    extractor = np.asarray if model is None else model
    if isinstance(model, (VisionTransformer, BiT)):
        extractor = feature_extractor(model, ["pre_logits"])
    opened = open_batches(model, data, split, processes=processes, **options)
    with processes.explaining_lost_processes(), opened as (pairs, names, target, _):
        if target != "class":
            raise ValueError(f"A probe needs data of the target 'class', but {target!r} was given.")
        predict = predictor(extractor)
        features, labels = all_outputs(((predict(images), labels) for images, labels in pairs), processes)
        return _Features(features, labels, names)
