"""What an evaluation found as one picture and one page: the confusion matrix, classes, and the worst mistakes."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import whole_number
from keras_vit._files import expanded_path, write_text
from keras_vit._page import html_table, html_tiles, image_address, tag, thumbnail, write_page
from keras_vit._pictures import BAD, GOOD, INK, MUTED, block_maxima, figure_for, need_matplotlib, rgb, tile_axes
from keras_vit._terminal import TableResult
from keras_vit.evaluation.accuracy import AccuracyResult, Mistake
from keras_vit.evaluation.targets import MultilabelResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NAMED = 30  # classes at most that are named along the axes of the picture, with figures in the cells
CELLS = 250  # cells of the picture at most along a side: smaller ones could not be seen
LISTED = 20  # confusions in the list
PATH_SHOWN = 100  # characters of a file's path below its picture
PICTURED = 12  # mistakes that are shown below the matrix


def confusion_shares(confusion: np.ndarray) -> np.ndarray:
    """Returns the counts of a `confusion` matrix `(classes, classes)` as float64 shares of rows; ValueError for others.

    Examples:
        >>> evaluation.confusion_shares(np.array([[3, 1], [0, 0]])).tolist()
        [[0.75, 0.25], [0.0, 0.0]]
    """
    confusion = np.asarray(confusion)
    square = confusion.ndim == 2 and confusion.shape[0] == confusion.shape[1] > 0
    if not square or confusion.min() < 0:
        given = f"but {confusion.shape} was given" if not square else f"but the least is {confusion.min()}"
        raise ValueError(f"confusion must be counts (classes, classes) of at least 0, {given}.")
    return confusion / np.maximum(confusion.sum(1, keepdims=True), 1)


def most_confused(confusion: np.ndarray, count: int = LISTED) -> list[tuple[int, int, int]]:
    """Returns the `count` most frequent mistakes of counts `(classes, classes)`: (true, predicted class, images).

    Examples:
        >>> evaluation.most_confused(np.array([[3, 1], [2, 4]]))  # `confusion` and errors as in `confusion_shares`
        [(1, 0, 2), (0, 1, 1)]
    """
    confusion_shares(confusion)  # which checks it
    count, counts = whole_number("count", count, 0), np.array(confusion)
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
    """Draws the confusion matrix, the most frequent confusions, the accuracies of classes, and the worst mistakes.

    Returns the matplotlib figure with this `title`.

    Args:
        result: What `evaluate` returned, or counts `(classes, classes)`; rows are true classes, columns predictions.
        path: Path of a `.png`, `.svg` or `.pdf` file to write; None: no file is written.
        class_names: Names of the classes; None: the result's names, or numbers.

    Raises:
        ImportError, OSError: if matplotlib is not installed, or the file cannot be written.
        ValueError: if the confusion matrix is missing or not square, or `class_names` or the suffix does not fit.

    Examples:
        >>> figure = evaluation.draw_confusion(np.array([[3, 1], [0, 4]]), "confusion.png", class_names=["cat", "dog"])
    """
    confusion = result.confusion if isinstance(result, AccuracyResult) else np.asarray(result)
    if confusion is None:
        raise ValueError("The result has no confusion matrix, because it has too many classes.")
    shares = confusion_shares(confusion)
    if class_names is None:
        class_names = getattr(result, "class_names", None) or [str(i) for i in range(len(shares))]
    if len(class_names) != len(shares):
        raise ValueError(f"class_names must name each of {len(shares)} classes, but has {len(class_names)} names.")
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in map(str, class_names)]
    names = [name.replace("$", r"\$") for name in names]  # matplotlib would read formulas, as in the title
    mistakes = getattr(result, "mistakes", ())[:PICTURED]
    with figure_for(path, 13, 10.2 if mistakes else 8.4) as whole:
        figure: Any = whole
        if mistakes:
            figure, below = whole.subfigures(2, 1, height_ratios=(8.4, 1.8), hspace=0)
            _draw_mistakes(below, mistakes, names)
        total, right = int(confusion.sum()), int(np.trace(confusion))
        figure.text(0.035, 0.945, title.replace("$", r"\$"), size=19, weight="bold")
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
    return whole


def _draw_mistakes(figure: Any, mistakes: Sequence[Mistake], names: Sequence[str]) -> None:
    """Draws at most `PICTURED` images in a row on a figure, what they show above and the prediction below each."""
    figure.text(0.035, 0.9, "Worst mistakes", size=13, weight="bold")
    places = tile_axes(figure, (0.035, 0.14, 0.93, 0.6), 1, PICTURED, 0.12)
    for axes in places[len(mistakes) :]:
        axes.remove()
    for mistake, axes in zip(mistakes, places, strict=False):
        axes.imshow(mistake.image)
        axes.spines[:].set_visible(False)
        axes.set_title(names[mistake.label], size=8, pad=3, color=GOOD)
        axes.set_xlabel(names[mistake.guess], size=8, labelpad=3, color=BAD)


def _draw_matrix(axes: "Axes", shares: np.ndarray, confusion: np.ndarray, names: Sequence[str]) -> None:
    """Draws the confusion matrix on axes: small ones with names and numbers, large ones as blocks of cells."""
    classes, cells = len(shares), block_maxima(shares, CELLS)
    # From white to one colour for what is right and another for what is wrong; the square root lifts small shares.
    colours = np.array([rgb(BAD), rgb(GOOD)])
    image = 1 + np.sqrt(cells)[..., None] * (colours[np.eye(len(cells), dtype=int)] - 1)
    end = len(cells) * math.ceil(classes / len(cells)) - 0.5
    axes.imshow(np.clip(image, 0, 1), extent=(-0.5, end, end, -0.5), interpolation="none")
    axes.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), ylabel="what the image shows")
    axes.set_xlabel("what the model says")
    axes.xaxis.set_label_position("top")  # below, names may need the space
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


def write_report(result: TableResult, path: str | os.PathLike[str], title: str = "Evaluation") -> Path:
    """Writes a result as one HTML page: its numbers, the confusion matrix, every class, and the worst mistakes.

    The page needs no network and no other files. `title` is its headline. Returns `path`.

    Args:
        result: What `evaluate`, `few_shot` or `knn_accuracy` returned. For mistakes, use `evaluate(..., mistakes=48)`.
        path: Path of the `.html` file to write.
        title: Title of the page.

    Raises:
        ImportError: if matplotlib or Pillow is not installed.
        ValueError, OSError: if the path has another suffix, or the file cannot be written.
    """
    need_matplotlib()
    parts = [html_table(result.table())]
    if isinstance(result, AccuracyResult):
        names = result.class_names or [str(i) for i in range(result.classes)]
        if result.confusion is not None:
            canvas: Any = draw_confusion(result.confusion, class_names=names).canvas  # the mistakes stand below it
            canvas.draw()
            address = image_address(np.asarray(canvas.buffer_rgba()))
            parts.append(tag("img", src=address, alt="confusion matrix", class_="plot"))
        if result.mistakes:
            tiles = html_tiles((thumbnail(one.image), _words(one, names)) for one in result.mistakes)
            parts += [tag("h2", "Worst mistakes"), tiles]
    if isinstance(result, (AccuracyResult, MultilabelResult)):
        parts += [tag("h2", "Classes, the worst first"), html_table(result.class_table())]
    return write_page(path, title, parts)


def _words(mistake: Mistake, names: Sequence[str]) -> str:
    name = f"image {mistake.number}" if mistake.name is None else mistake.name
    if len(name) > PATH_SHOWN:
        name = f"…{name[1 - PATH_SHOWN :]}"  # a path's end tells which file it is
    return f"{names[mistake.label]} taken for {names[mistake.guess]}: {name}"


def write_files(result: Any, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes a result to `evaluation.json`, and its confusion matrix to `confusion.png`; returns their paths.

    `result` and errors are as in `write_report`; `folder` is created.

    Examples:
        >>> evaluation.write_files(evaluation.evaluate(model, (images, labels), progress=False), "results")[0].name
        'evaluation.json'
    """
    folder = Path(expanded_path(folder))
    files = [folder / "evaluation.json"]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    write_text(files[0], json.dumps(result.to_dict(), indent=2) + "\n")
    if isinstance(result, AccuracyResult) and result.confusion is not None:
        files.append(folder / "confusion.png")
        draw_confusion(result, files[1])
    return files
