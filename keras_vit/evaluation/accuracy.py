"""How often a model is right, over all images and per class, and what it takes for what: figures and a picture."""

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import check_choice
from keras_vit._files import write_text
from keras_vit._pictures import BAD, GOOD, INK, MUTED, coarse, figure_for
from keras_vit._processes import Processes, connect
from keras_vit._terminal import Table, TableResult
from keras_vit.data import match_labels
from keras_vit.evaluation.batches import open_batches, predictions
from keras_vit.preprocessing import imagenet1k_classes
from keras_vit.zoo import as_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from keras_vit.evaluation.few_shot import FewShotResult

CONFUSION_CLASSES = 4096  # a matrix for more classes would take over 128 MiB
NAMED = 30  # classes at most that are named along the axes of the picture, with figures in the cells
CELLS = 250  # cells of the picture at most along a side: smaller ones could not be seen
LISTED = 20  # confusions in the list
TINY = float(np.finfo("float32").tiny)  # a probability of 0 would make the loss infinite
_OUTPUTS = {None: "logits", "linear": "logits", "softmax": "softmax", "sigmoid": "sigmoid"}  # by the activation


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
        return self.correct_per_class / np.where(self.images_per_class, self.images_per_class, np.nan)

    def class_table(self, worst: int | None = None) -> Table:
        """The classes that there are images of, the worst first.

        Args:
            worst: How many; None for all.

        Returns:
            Rows with `class`, `images`, `accuracy` in percent, and `taken for`: what most of the others were taken for.
        """
        names = self.class_names or [str(i) for i in range(self.classes)]
        taken_for: dict[int, str] = {}
        if self.confusion is not None:
            wrong = self.confusion * ~np.eye(self.classes, dtype=bool)
            taken_for = {i: f"{names[row.argmax()]} ({row.max()})" for i, row in enumerate(wrong) if row.any()}
        order = [int(i) for i in np.argsort(self.per_class, kind="stable") if self.images_per_class[i]]
        return Table(
            {
                "class": names[i],
                "images": int(self.images_per_class[i]),
                "accuracy %": round(100 * float(self.per_class[i]), 2),
                "taken for": taken_for.get(i),
            }
            for i in order[:worst]
        )

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
        outputs: What the outputs are, for the loss: `"logits"`, `"softmax"` or `"sigmoid"`. None: what the model's
            config says, and for models that are not of this package no loss.
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
    config = getattr(model, "config", None)
    if not callable(model):
        raise TypeError(f"model must be a Keras model or a function, but {type(model).__name__} was given.")
    if getattr(config, "classes", 0) is None:
        raise ValueError("The model has no head, so it knows no classes: build it with include_top=True.")
    check_choice("outputs", outputs, (None, "logits", "softmax", "sigmoid"))
    if outputs is None and hasattr(config, "classifier_activation"):
        outputs = _OUTPUTS.get(config.classifier_activation)
    top = (top,) if isinstance(top, int) else tuple(top)
    if not top or any(not isinstance(k, (int, np.integer)) or k < 1 for k in top):
        raise ValueError(f"top must be integers of at least 1, such as (1, 5), but {top!r} was given.")
    started, counts = time.perf_counter(), None
    reading: dict[str, Any] = {"preprocess": preprocess, "batch_size": batch_size, "class_names": class_names}
    reading |= {"classes": getattr(config, "classes", None), "on_bad_image": on_bad_image, "processes": processes}
    opened = open_batches(model, data, "test", title="images" if progress and processes.first else None, **reading)
    with processes.failing_together(), opened as (pairs, data_names):
        for scores, labels in predictions(model, pairs):
            if counts is None:
                outputs_of, names = _match(config, data_names, scores.shape[1])
                counts = _Counts(scores.shape[1], [int(k) for k in top if k <= scores.shape[1]], outputs)
            if outputs_of is not None and len(labels):
                if labels.max() >= len(outputs_of):
                    raise ValueError(
                        f"There is a label {labels.max()}, but the data has {len(outputs_of)} class names."
                    )
                labels = outputs_of[labels]
            counts.add(scores, labels)
        return counts.result(processes, names, started)


def _match(
    config: Any, data_names: Sequence[str] | None, classes: int
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """The output of each label, where names tell it, or None; and the names of the outputs."""
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
    """What is added up from batch to batch."""

    def __init__(self, classes: int, top: list[int], outputs: str | None) -> None:
        self.classes, self.top, self.outputs, self.loss = classes, top, outputs, 0.0
        self.images, self.correct = np.zeros((2, classes), "int64")
        self.within = np.zeros(len(top), "int64")
        self.confusion = np.zeros((classes, classes), "int64") if classes <= CONFUSION_CLASSES else None

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch, which is empty where a process has no part of it."""
        if scores.shape[1] != self.classes:
            raise ValueError(f"The model gave {scores.shape[1]} outputs, but {self.classes} for the batch before.")
        if labels.max(initial=0) >= self.classes:
            raise ValueError(
                f"There is a label {labels.max()}, but the model has {self.classes} outputs, for the classes 0 to "
                f"{self.classes - 1}. Is it the model for this data?"
            )
        # Of equal outputs the first counts as the largest, as argmax has it.
        own = scores[np.arange(len(labels)), labels][:, None]
        earlier = np.arange(self.classes) < labels[:, None]
        rank = ((scores > own) | ((scores == own) & earlier)).sum(1)
        self.within += np.array([(rank < k).sum() for k in self.top], "int64")
        self.images += np.bincount(labels, minlength=self.classes)
        self.correct += np.bincount(labels[rank == 0], minlength=self.classes)
        if self.confusion is not None:
            np.add.at(self.confusion, (labels, scores.argmax(1)), 1)
        if self.outputs is not None:
            self.loss += float(_losses(self.outputs, scores.astype("float64"), labels).sum())

    def result(self, processes: Processes, class_names: tuple[str, ...] | None, started: float) -> AccuracyResult:
        """The figures over all processes."""
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
        )


def _losses(outputs: str, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows = np.arange(len(labels))
    if outputs == "logits":
        top = scores.max(1)
        return np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[rows, labels]
    if outputs == "softmax":
        return -np.log(np.maximum(scores[rows, labels], TINY))
    yes, no = np.log(np.maximum(scores, TINY)), np.log(np.maximum(1 - scores, TINY))
    return -(yes[rows, labels] + no.sum(1) - no[rows, labels])


def confusion_shares(confusion: np.ndarray) -> np.ndarray:
    """Which share of the images of each class is taken for which.

    Args:
        confusion: Counts `(classes, classes)`, rows what the images show.

    Returns:
        float64 `(classes, classes)`; rows sum to 1, or are 0 where there are no images.

    Raises:
        ValueError: if `confusion` is not square, or has negative counts.

    Examples:
        >>> evaluation.confusion_shares(np.array([[3, 1], [0, 0]]))
        array([[0.75, 0.25],
               [0.  , 0.  ]])
    """
    confusion = np.asarray(confusion)
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or confusion.min(initial=0) < 0:
        raise ValueError(f"confusion must be counts (classes, classes), but {confusion.shape} was given.")
    return confusion / np.maximum(confusion.sum(1, keepdims=True), 1)


def most_confused(confusion: np.ndarray, count: int = LISTED) -> list[tuple[int, int, int]]:
    """The pairs of classes that are mistaken most often.

    Args:
        confusion: Counts `(classes, classes)`, rows what the images show.
        count: How many pairs at most.

    Returns:
        Tuples of the true class, the class that it was taken for, and how often; the most frequent first.

    Examples:
        >>> evaluation.most_confused(np.array([[3, 1], [2, 4]]))
        [(1, 0, 2), (0, 1, 1)]
    """
    counts = np.array(confusion)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:count]
    pairs = zip(*np.unravel_index(order, counts.shape), strict=True)
    return [(int(i), int(j), int(counts[i, j])) for i, j in pairs if counts[i, j]]


def draw_confusion(
    result: AccuracyResult | np.ndarray,
    path: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "What is taken for what",
) -> "Figure":
    """Draws a confusion matrix, with the pairs that are mistaken most often and the classes' accuracies.

    Args:
        result: What `evaluate` returned, or counts `(classes, classes)`, rows what the images show.
        path: A `.png` to write; it appears when it is complete. None for none.
        class_names: What the classes are called; None for the result's names, or numbers.
        title: The headline.

    Returns:
        The figure, for notebooks.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no confusion matrix, or not a name for each class.

    Examples:
        >>> figure = evaluation.draw_confusion(np.array([[3, 1], [0, 4]]), "confusion.png", class_names=["cat", "dog"])
    """
    confusion = result.confusion if isinstance(result, AccuracyResult) else np.asarray(result)
    if confusion is None:
        raise ValueError("The result has no confusion matrix: it has too many classes for one.")
    shares = confusion_shares(confusion)
    if class_names is None:
        class_names = getattr(result, "class_names", None) or [str(i) for i in range(len(shares))]
    if len(class_names) != len(shares):
        raise ValueError(f"There are {len(class_names)} names for {len(shares)} classes.")
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in map(str, class_names)]
    names = [name.replace("$", r"\$") for name in names]  # matplotlib would read formulas
    with figure_for(path, 13, 8.4) as figure:
        total, right = int(confusion.sum()), int(np.trace(confusion))
        figure.text(0.035, 0.945, title, size=19, weight="bold")
        words = f"{right:,} of {total:,} images are right ({right / max(total, 1):.2%}), {len(shares):,} classes"
        figure.text(0.035, 0.908, words, size=11, color=MUTED)
        _draw_matrix(figure.add_axes((0.13, 0.145, 0.49, 0.72)), shares, confusion, names)
        pairs = most_confused(confusion)
        figure.text(0.66, 0.85, "Mistaken most often" if pairs else "Nothing is mistaken", size=13, weight="bold")
        for place, (i, j, count) in enumerate(pairs):
            y = 0.82 - 0.024 * place
            figure.text(0.66, y, f"{count} of {confusion[i].sum()}", size=9, color=BAD, weight="bold")
            figure.text(0.735, y, f"{names[i]}  taken for  {names[j]}", size=9)
        axes = figure.add_axes((0.66, 0.145, 0.3, 0.13))  # how many classes have which accuracy
        axes.hist(100 * np.diag(shares)[confusion.sum(1) > 0], bins=20, range=(0, 100), color=GOOD)
        axes.set(xlabel="accuracy of a class, %", ylabel="classes", xlim=(0, 100))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
    return figure


def _draw_matrix(axes: "Axes", shares: np.ndarray, confusion: np.ndarray, names: Sequence[str]) -> None:
    classes, cells = len(shares), coarse(shares, CELLS)
    # From white to one colour for what is right and another for what is wrong; the square root lifts small shares.
    colours = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in (BAD, GOOD)])
    image = 1 + np.sqrt(cells)[..., None] * (colours[np.eye(len(cells), dtype=int)] - 1)
    end = len(cells) * -(-classes // len(cells)) - 0.5
    axes.imshow(np.clip(image, 0, 1), extent=(-0.5, end, end, -0.5), interpolation="none")
    axes.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), ylabel="what the image shows")
    axes.set_xlabel("what the model says")
    axes.xaxis.set_label_position("top")  # below, names may need the room
    axes.tick_params(length=0)
    if classes > NAMED:
        return
    turned = max(map(len, names)) > 3
    options: dict[str, Any] = {"rotation": 45 if turned else 0, "rotation_mode": "anchor", "va": "top"}
    axes.set_xticks(range(classes), names, ha="right" if turned else "center", **options)
    axes.set_yticks(range(classes), names)
    for i, j in zip(*np.nonzero(confusion), strict=True):
        colour = "white" if shares[i, j] > 0.4 else INK
        axes.text(j, i, f"{confusion[i, j]}", ha="center", va="center", size=8, color=colour)


def write_files(result: "AccuracyResult | FewShotResult", folder: str | os.PathLike[str]) -> list[Path]:
    """Writes a result as `evaluation.json`, and its confusion matrix, if it has one, as `confusion.png`.

    Args:
        result: What `evaluate` or `few_shot` returned.
        folder: Where to; made if it does not exist. Files of these names are replaced.

    Returns:
        What was written.

    Examples:
        >>> result = evaluation.evaluate(small, (small_images, labels), progress=False)
        >>> [path.name for path in evaluation.write_files(result, "results")]
        ['evaluation.json', 'confusion.png']
    """
    files = [Path(folder) / "evaluation.json"]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    write_text(files[0], json.dumps(result.to_dict(), indent=2) + "\n")
    if isinstance(result, AccuracyResult) and result.confusion is not None:
        files.append(Path(folder) / "confusion.png")
        draw_confusion(result, files[1])
    return files
