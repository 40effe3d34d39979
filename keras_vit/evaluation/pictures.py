"""The confusion matrix: as shares, as a list of what is mistaken most often, and as a picture."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._files import write_text
from keras_vit._pictures import BAD, GOOD, INK, MUTED, figure_for
from keras_vit.evaluation.accuracy import AccuracyResult
from keras_vit.evaluation.few_shot import FewShotResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 30  # classes at most that are named along the axes, with figures in the cells
CELLS = 250  # cells at most along a side: smaller ones could not be seen
LISTED = 20  # confusions in the list


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


def coarse(shares: np.ndarray, cells: int = CELLS) -> np.ndarray:
    """A matrix with at most `cells` rows and columns, each cell the largest value of those that it stands for.

    The mean would hide single confusions among a million cells; the largest value keeps them visible.
    """
    classes = len(shares)
    if classes <= cells:
        return shares
    step = -(-classes // cells)
    padded = np.pad(shares, (0, -classes % step))
    side = len(padded) // step
    return padded.reshape(side, step, side, step).max((1, 3))


def draw_confusion(
    result: AccuracyResult | np.ndarray,
    path: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    title: str = "What is taken for what",
) -> "Figure":
    """Draws a confusion matrix, and beside it a list of the most frequent confusions.

    Up to 30 classes are named and their cells show counts. More are drawn as a map in which each cell is the largest
    share of the classes that it stands for, so that single confusions stay visible among 1,000 classes.

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
    if path is not None and Path(path).suffix.lower() != ".png":
        raise ValueError(f"path must end with .png, but {os.fspath(path)!r} was given.")
    with figure_for(path, 13, 8.4) as figure:
        total, right = int(confusion.sum()), int(np.trace(confusion))
        figure.text(0.035, 0.945, title, size=19, weight="bold")
        words = f"{right:,} of {total:,} images are right ({right / max(total, 1):.2%}), {len(shares):,} classes"
        figure.text(0.035, 0.908, words, size=11, color=MUTED)
        names = [_short(name) for name in class_names]
        _matrix(figure.add_axes((0.13, 0.145, 0.49, 0.72)), shares, confusion, names)
        _list(figure, 0.66, most_confused(confusion), confusion, names)
        _bars(figure.add_axes((0.66, 0.145, 0.3, 0.13)), shares, confusion)
    return figure


def write_files(result: AccuracyResult | FewShotResult, folder: str | os.PathLike[str]) -> list[Path]:
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
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "evaluation.json", json.dumps(result.to_dict(), indent=2) + "\n")
    if not isinstance(result, AccuracyResult) or result.confusion is None:
        return [folder / "evaluation.json"]
    draw_confusion(result, folder / "confusion.png")
    return [folder / "evaluation.json", folder / "confusion.png"]


def _matrix(axes: "Axes", shares: np.ndarray, confusion: np.ndarray, names: Sequence[str]) -> None:
    classes = len(shares)
    cells = coarse(shares)
    # The square root lifts small shares out of the white; what is right is another colour than what is wrong.
    right, wrong = cells * np.eye(len(cells)), cells * (1 - np.eye(len(cells)))
    if classes > CELLS:  # a cell of the diagonal stands for confusions between neighbours, too
        right, wrong = cells * _near_diagonal(shares), cells * ~_near_diagonal(shares)
    end = len(cells) * -(-classes // len(cells)) - 0.5
    axes.imshow(_tint(right, GOOD, wrong, BAD), extent=(-0.5, end, end, -0.5), interpolation="none")
    axes.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), ylabel="what the image shows")
    axes.set_xlabel("what the model says")
    axes.xaxis.set_label_position("top")  # below, names may need the room
    axes.tick_params(length=0)
    if classes > NAMED:
        return
    axes.set_xticks(range(classes), names, rotation=45 if max(map(len, names)) > 3 else 0, rotation_mode="anchor")
    for label in axes.get_xticklabels():
        label.set_ha("right" if label.get_rotation() else "center")
        label.set_va("top")
    axes.set_yticks(range(classes), names)
    for i, j in zip(*np.nonzero(confusion), strict=True):
        dark = shares[i, j] > 0.4
        axes.text(j, i, f"{confusion[i, j]}", ha="center", va="center", size=8, color="white" if dark else INK)


def _near_diagonal(shares: np.ndarray) -> np.ndarray:
    """The diagonal cells of the coarse map whose largest value is a right answer."""
    right = coarse(np.diag(np.diag(shares)))
    return (right > 0) & (right >= coarse(shares))


def _tint(right: np.ndarray, good: str, wrong: np.ndarray, bad: str) -> np.ndarray:
    """RGB from white to one colour for each of two matrices that are never both above zero."""
    image = np.ones((*right.shape, 3))
    for values, colour in ((right, good), (wrong, bad)):
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        image += np.sqrt(values)[..., None] * (rgb - 1)
    return np.clip(image, 0, 1)


def _list(figure: "Figure", x: float, pairs: list[Any], confusion: np.ndarray, names: Sequence[str]) -> None:
    figure.text(x, 0.85, "Mistaken most often", size=13, weight="bold")
    for place, (i, j, count) in enumerate(pairs):
        y = 0.82 - 0.024 * place
        figure.text(x, y, f"{count} of {confusion[i].sum()}", size=9, color=BAD, weight="bold")
        figure.text(x + 0.075, y, f"{names[i]}  taken for  {names[j]}", size=9)
    if not pairs:
        figure.text(x, 0.82, "nothing", size=9, color=MUTED)


def _bars(axes: "Axes", shares: np.ndarray, confusion: np.ndarray) -> None:
    """How many classes have which accuracy."""
    axes.hist(100 * np.diag(shares)[confusion.sum(1) > 0], bins=20, range=(0, 100), color=GOOD)
    axes.set(xlabel="accuracy of a class, %", ylabel="classes", xlim=(0, 100))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.yaxis.get_major_locator().set_params(integer=True)


def _short(name: str, length: int = 18) -> str:
    name = str(name).replace("$", r"\$")  # matplotlib would read formulas
    return name if len(name) <= length else f"{name[: length - 1]}…"
