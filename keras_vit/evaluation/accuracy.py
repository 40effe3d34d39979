"""How good a model is on labelled images: how often it is right, over all and per class, and what it takes for what."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice, listing, whole_number, whole_numbers
from keras_vit._processes import Processes, connect
from keras_vit._terminal import ClassesResult, Column, PlainData
from keras_vit.data import match_labels
from keras_vit.data.examples import TARGETS
from keras_vit.evaluation.batches import Pairs, open_batches, predictor
from keras_vit.evaluation.targets import CLASSES, IMAGES, LOSS, SPEED, measure_labels, measure_regression
from keras_vit.preprocessing import imagenet1k_classes, resize_images
from keras_vit.zoo import as_model

CONFUSION_CLASSES = 4096  # a matrix for more classes would take over 128 MiB
CROP = 7 / 8  # 224 of 256 pixels, as Krizhevsky et al. (2012) cut them
CROP_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5))  # shares of what is left over above and left of a crop
TINY = float(np.finfo("float32").tiny)  # a probability of 0 would make the loss infinite
_OUTPUTS = {None: "logits", "linear": "logits", "softmax": "softmax", "sigmoid": "sigmoid"}  # by the activation


@dataclasses.dataclass(frozen=True, eq=False)
class Mistake(PlainData):
    """An image that the model is wrong about.

    Attributes:
        number: Of the image in the data, from 0.
        label: What it shows.
        guess: The class that the model predicts.
        margin: By how much the output of the guess is above that of the label.
        image: uint8 `(height, width, 3)`, as the model gets it.
        name: What the image is called: its path, or `"images[95]"`; None where that is not known.

    Examples:
        >>> wrong = evaluation.evaluate(small, (small_images, labels), mistakes=4, progress=False).mistakes
        >>> all(mistake.guess != mistake.label for mistake in wrong)
        True
    """

    number: int
    label: int
    guess: int
    margin: float
    image: np.ndarray
    name: str | None

    hidden = ("image",)


@dataclasses.dataclass(frozen=True, eq=False)
class AccuracyResult(ClassesResult):
    """What `evaluate` found. Printing it draws a table; `class_table(worst=None)` has the classes, the worst first.

    Attributes:
        examples: How many images there were.
        classes: How many outputs the model has.
        top: From k to the share of images whose class is among the k largest outputs.
        loss: Mean cross-entropy in nats: softmax for logits and softmax outputs, and for sigmoid outputs the sum of
            the classes' binary ones; None where it is not known what the outputs are.
        images_per_class: int64 `(classes,)`.
        correct_per_class: int64 `(classes,)`: how many of these are right.
        confusion: int64 `(classes, classes)`: rows are what the images show, columns what the model predicts; None for
            more than `CONFUSION_CLASSES` classes.
        class_names: What the classes are called, or None.
        seconds: How long it took, with reading the data.
        mistakes: The worst ones, where they were asked for.

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
    mistakes: tuple[Mistake, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of images whose class has the largest output."""
        return int(self.correct_per_class.sum()) / self.examples

    @property
    def per_class(self) -> np.ndarray:
        """float64 `(classes,)`: accuracy on the images of each class; NaN where there are none."""
        return self.correct_per_class / np.where(self.images_per_class, self.images_per_class, np.nan)

    @property
    def taken_for(self) -> np.ndarray:
        """Text `(classes,)`: the class that most misclassified images of a class are taken for, and their number.

        None for a class without misclassified images, and where there is no confusion matrix.
        """
        names = self.class_names or [str(i) for i in range(self.classes)]
        found = np.full(self.classes, None, object)
        if self.confusion is not None:
            wrong = self.confusion * ~np.eye(self.classes, dtype=bool)
            for i in np.flatnonzero(wrong.any(1)):
                found[i] = f"{names[wrong[i].argmax()]} ({wrong[i].max()})"
        return found

    derived = ("accuracy", "per_class")
    class_columns = (
        Column("images", lambda result: result.images_per_class),
        Column("accuracy %", lambda result: result.per_class, percent=True),
        Column("taken for", lambda result: result.taken_for),
    )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table that is printed."""
        top = (Column(f"top-{k} %", lambda result, k=k: result.top[k], percent=True) for k in self.top)
        loss = (LOSS,) if self.loss is not None else ()
        return (IMAGES, CLASSES, *top, *loss, SPEED)


def evaluate(
    model: Any,
    data: Any,
    *,
    top: Sequence[int] = (1, 5),
    outputs: str | None = None,
    preprocess: bool | None = None,
    batch_size: int = 64,
    class_names: Sequence[str] | None = None,
    target: str | None = None,
    threshold: float = 0.5,
    views: str | None = None,
    mistakes: int = 0,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> Any:
    """Measures a classifier on labelled images, batch by batch: no more than a batch is held in memory.

    Args:
        model: A Keras model with outputs `(batch, classes)`, a function from images to such, or what `keras_vit.load`
            takes: a name, an address or a path.
        data: What `keras_vit.data.open_data` takes (a folder, of which the `test/` is taken, `(images, labels)`, a
            pipeline, `"tfds:NAME"`, a table, a dict of splits), what it returns, or a list or generator of batches.
            Labels are integers or one-hot. Images in arrays and pipelines are as the model wants them, or pixels with
            `preprocess=True`.
        top: The ks of the top-k accuracies; those with more than the model's classes are left out.
        outputs: What the outputs are, for the loss: `"logits"`, `"softmax"` or `"sigmoid"`. None: those of the
            model's config, and for models that are not of this package no loss.
        preprocess: Whether the images are pixels of 0..255 in any size. `None`: those of files, of streams and in
            lists of images of different sizes are.
        batch_size: Images per batch, where the data does not come in batches.
        class_names: What the labels stand for, in their order, where the data has no names (see `open_data`).
            Where the model knows the names of its outputs, too, labels and outputs are matched by name: the data
            may have fewer classes than the model, in another order.
        target: What the labels are: `"class"`, `"multilabel"` (rows of 0 and 1) or `"number"`. None: that of a table
            or stream, else `"class"`.
        threshold: For several labels: the probability from which on a class is predicted.
        views: What is averaged over for each image, the outputs as they are: `"flip"` for the image and its mirror
            image, `"crops"` for those of its four corners and its middle, of 7/8 of its height and width each (the ten
            crops of Krizhevsky et al., 2012). None for the image alone.
        mistakes: How many of the worst mistakes are kept, with their images; none where processes share the images.
        on_bad_image: `"stop"` or `"skip"`, for pixels (see `open_data`).
        distribution: None: all processes that the program was started in share the images, and each gets the result
            for all (see `keras_vit.training.connect`). `"alone"`: this process looks at all of them.
        progress: Whether a bar is shown.

    Returns:
        An `AccuracyResult`: accuracy over all images and per class, loss, and the confusion matrix. For several labels
        a `MultilabelResult` with mAP and F1, for regression a `NumberResult` with R2 and the mean absolute error.

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
    config = getattr(model, "config", None)
    if not callable(model):
        raise TypeError(f"model must be a Keras model or a function, but {type(model).__name__} was given.")
    if getattr(config, "classes", 0) is None:
        raise ValueError("The model has no head, so it knows no classes: build it with include_top=True.")
    check_choice("outputs", outputs, (None, "logits", "softmax", "sigmoid"))
    given = {"top": top, "threshold": threshold, "outputs": outputs, "mistakes": mistakes, "class_names": class_names}
    if outputs is None and hasattr(config, "classifier_activation"):
        outputs = _OUTPUTS.get(config.classifier_activation)
    top = whole_numbers("top", top, 1)
    check_choice("target", target, (None, *TARGETS))
    check_choice("views", views, (None, "flip", "crops"))
    if target is not None:
        _refuse_unused(target, given)
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must be a probability between 0 and 1, but {threshold!r} was given.")
    mistakes = whole_number("mistakes", mistakes, 0) if processes.count == 1 else 0
    started = time.perf_counter()
    opened = open_batches(
        model,
        data,
        "test",
        preprocess=preprocess,
        batch_size=batch_size,
        classes=getattr(config, "classes", None),
        class_names=class_names,
        on_bad_image=on_bad_image,
        title="images" if progress and processes.first else None,
        processes=processes,
        target=target,
    )
    with processes.failing_together(), opened as (pairs, data_names, target, image_names):
        _refuse_unused(target, given)
        batches = _with_outputs(predictor(model), pairs, views)
        if target == "number":
            return measure_regression(((scores, labels) for _, scores, labels in batches), processes, started)
        first = next(batches)
        label_outputs, names = _match(config, data_names, first[1].shape[1])
        batches = itertools.chain([first], batches)
        if target == "multilabel":
            if outputs not in ("logits", "sigmoid"):
                wanted = 'target="multilabel" needs outputs="logits" or "sigmoid"'
                raise ValueError(f"{wanted}, but the outputs are {outputs!r}.")
            rows = ((scores, labels) for _, scores, labels in batches)
            return measure_labels(rows, processes, outputs, label_outputs, threshold, names, started)
        counts, worst = _Counts(first[1].shape[1], top, outputs), []
        for images, scores, labels in batches:
            labels = labels if label_outputs is None else label_outputs[labels]
            counts.add(scores, labels)
            if mistakes:
                number = counts.examples - len(labels)
                worst = _worst_mistakes(worst, mistakes, images, scores, labels, number, config)
        known = image_names() if worst else []
        if known:
            worst = [dataclasses.replace(mistake, name=known[mistake.number]) for mistake in worst]
        return counts.result(processes, names, started, tuple(worst))


# Options that are not for every target: their defaults, and the targets.
_TARGETS_OF: dict[str, tuple[Any, tuple[str, ...]]] = {
    "top": ((1, 5), ("class",)),
    "mistakes": (0, ("class",)),
    "threshold": (0.5, ("multilabel",)),
    "outputs": (None, ("class", "multilabel")),
    "class_names": (None, ("class", "multilabel")),
}


def _refuse_unused(target: str, given: dict[str, Any]) -> None:
    """Raises ValueError where an option was given that does not apply to the target."""
    for name, (default, targets) in _TARGETS_OF.items():
        if target not in targets and given[name] != default:
            words = f"{name}={given[name]!r} is for labels of the target {listing(targets)}, but these are {target!r}"
            raise ValueError(f"{words}: leave it out.")


def _with_outputs(
    predict: Callable[[np.ndarray], np.ndarray], pairs: Pairs, views: str | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields images, the mean of the outputs for the views of each, and labels, batch by batch."""
    for images, labels in pairs:
        outputs = [predict(view) for view in _views(images, views)]
        yield images, sum(outputs[1:], outputs[0]) / len(outputs), labels


def _views(images: np.ndarray, views: str | None) -> Iterator[np.ndarray]:
    """Yields the images; with views also their mirror images, or crops of them and the crops' mirror images."""
    cut: Callable[[np.ndarray], Iterable[np.ndarray]] = _crops if views == "crops" else lambda batch: [batch]
    yield from cut(images)
    if views is not None:
        for view in cut(images):
            yield np.ascontiguousarray(view[:, :, ::-1])


def _crops(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yields crops of images at `CROP_PLACES`, resized to the size of the images."""
    height, width = images.shape[1:3]
    size = max(1, round(CROP * height)), max(1, round(CROP * width))
    for above, before in CROP_PLACES:
        top, left = round(above * (height - size[0])), round(before * (width - size[1]))
        yield resize_images(images[:, top : top + size[0], left : left + size[1]], (height, width))


def _worst_mistakes(
    known: Sequence[Mistake],
    count: int,
    images: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    number: int,
    config: Any,
) -> list[Mistake]:
    """The worst mistakes among those known and those of a batch; `number` is that of its first image in the data."""
    guesses, rows = scores.argmax(1), np.arange(len(labels))
    margins = scores[rows, guesses] - scores[rows, labels]
    found = list(known)
    for i in np.argsort(-margins, kind="stable")[:count].tolist():
        if guesses[i] != labels[i]:
            label, guess, margin = int(labels[i]), int(guesses[i]), float(margins[i])
            found.append(Mistake(number + i, label, guess, margin, _pixels(config, images[i]), None))
    return sorted(found, key=lambda mistake: (-mistake.margin, mistake.number))[:count]


def _pixels(config: Any, image: np.ndarray) -> np.ndarray:
    """The input of a model as uint8 pixels to show; a black pixel where it is no image of one or three channels."""
    if image.ndim != 3 or image.shape[2] not in (1, 3):
        return np.zeros((1, 1, 3), "uint8")
    pipeline = getattr(config, "pipeline", None)
    if pipeline is not None and not config.include_preprocessing:
        image = 255 * (image * np.asarray(pipeline.std) + np.asarray(pipeline.mean))
    pixels = np.clip(np.round(image), 0, 255).astype("uint8")
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


def _match(
    config: Any, data_names: Sequence[str] | None, classes: int
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """The output of each label, or None where labels are outputs; and the names of the outputs, or None.

    Raises ValueError where the names of the data are not among the model's, or not as many as its outputs.
    """
    names = getattr(config, "class_names", None)
    if data_names is None:
        return None, names
    if names is None and classes == 1000:
        ids, imagenet = zip(*imagenet1k_classes(), strict=True)
        names = imagenet if set(data_names) <= set(ids) else None
    if names is not None:
        return match_labels(data_names, names), tuple(names)
    if len(data_names) != classes:
        raise ValueError(
            f"The classes of the data have {len(data_names)} names, but the model has {classes} outputs, and does not "
            "know what they are called. Is it the model for this data? If it is: model.with_config(class_names=[...])."
        )
    return None, tuple(data_names)


class _Counts:
    """What is added up from batch to batch: images, those that are right, losses, the confusion matrix."""

    def __init__(self, classes: int, top: Sequence[int], outputs: str | None) -> None:
        """Sets all sums to 0; for more than `CONFUSION_CLASSES` classes there is no confusion matrix."""
        self.classes, self.outputs, self.examples, self.loss = classes, outputs, 0, 0.0
        self.top = [k for k in top if k <= classes]
        self.images, self.correct = np.zeros((2, classes), "int64")
        self.within = np.zeros(len(self.top), "int64")
        self.confusion = np.zeros((classes, classes), "int64") if classes <= CONFUSION_CLASSES else None

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch, which is empty where a process has no part of it.

        Raises ValueError for other outputs or unknown labels.
        """
        if scores.shape[1] != self.classes:
            raise ValueError(f"The model has {scores.shape[1]} outputs, but had {self.classes} for the batch before.")
        if labels.max(initial=0) >= self.classes:
            raise ValueError(
                f"There is a label {labels.max()}, but the model has {self.classes} outputs, for the classes 0 to "
                f"{self.classes - 1}. Is it the model for this data?"
            )
        # Of equal outputs the first counts as the largest, as argmax has it.
        score = scores[np.arange(len(labels)), labels][:, None]
        earlier = np.arange(self.classes) < labels[:, None]
        rank = ((scores > score) | ((scores == score) & earlier)).sum(1)
        self.examples += len(labels)
        self.within += np.array([(rank < k).sum() for k in self.top], "int64")
        self.images += np.bincount(labels, minlength=self.classes)
        self.correct += np.bincount(labels[rank == 0], minlength=self.classes)
        if self.confusion is not None:
            np.add.at(self.confusion, (labels, scores.argmax(1)), 1)
        if self.outputs is not None:
            self.loss += float(_losses(self.outputs, scores.astype("float64"), labels).sum())

    def result(
        self, processes: Processes, class_names: tuple[str, ...] | None, started: float, mistakes: tuple[Mistake, ...]
    ) -> AccuracyResult:
        """The `AccuracyResult` of all that was added, in all processes."""
        images, correct, within, loss = map(processes.total, (self.images, self.correct, self.within, self.loss))
        examples = int(images.sum())
        return AccuracyResult(
            examples,
            self.classes,
            {k: int(count) / examples for k, count in zip(self.top, within, strict=True)},
            None if self.outputs is None else float(loss) / examples,
            images,
            correct,
            None if self.confusion is None else processes.total(self.confusion),
            class_names,
            time.perf_counter() - started,
            mistakes,
        )


def _losses(outputs: str, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The cross-entropy of each image, float64, for outputs that are logits, a softmax, or sigmoids of all classes."""
    rows = np.arange(len(labels))
    if outputs == "logits":
        top = scores.max(1)
        return np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[rows, labels]
    if outputs == "softmax":
        return -np.log(np.maximum(scores[rows, labels], TINY))
    yes, no = np.log(np.maximum(scores, TINY)), np.log(np.maximum(1 - scores, TINY))
    return -(yes[rows, labels] + no.sum(1) - no[rows, labels])
