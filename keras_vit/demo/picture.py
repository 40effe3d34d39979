"""The demo's picture: what was learned, how fast, what was misread, and where the model looked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import inspection
from keras_vit._pictures import BAD, GOOD, GRID, MUTED, figure_for, tile_axes
from keras_vit.models import VisionTransformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from keras_vit.demo import Digits

COLUMNS, ROWS = 12, 4  # of the panel of test digits


def draw_picture(
    model: VisionTransformer, test: "Digits", logits: np.ndarray, result: dict[str, Any], path: Path
) -> None:
    """Draws four panels of the model's answers, `(images, 10)`, to test images, and of the result of `run`."""
    accuracy = result["accuracy"]
    with figure_for(path, 13, 8.8) as figure:
        figure.text(0.035, 0.945, "From printed characters to handwriting", size=21, weight="bold")
        figure.text(
            0.035,
            0.91,
            "A small Vision Transformer, pre-trained to name warped characters of printed fonts, reads "
            f"{accuracy['transfer']:.1%} of {len(test.labels)} handwritten digits after {result['epochs']} "
            f"epoch{'s' * (result['epochs'] != 1)} of fine-tuning.",
            size=11,
            color=MUTED,
        )
        _heading(figure, 0.035, 0.84, "The head start", "test accuracy after each epoch")
        _curves(figure.add_axes((0.075, 0.5, 0.25, 0.29)), result["accuracy_per_epoch"])
        mistakes = f"All {result['mistakes']} misread digits, and some others" if result["mistakes"] else "Test digits"
        _heading(figure, 0.375, 0.84, mistakes, "what the model reads, and where it errs what is written")
        _digits(figure, (0.375, 0.455, 0.592, 0.325), test, logits)
        _heading(figure, 0.035, 0.38, "Where the class token looks", "its attention to each patch, mean of the heads")
        _attention(figure, (0.055, 0.03, 0.6, 0.29), model, test, logits)
        _heading(figure, 0.71, 0.38, "What it knows of places", "likeness of each position's embedding to all others")
        _positions(figure, (0.71, 0.03, 0.29 * 8.8 / 13, 0.29), model)


def _heading(figure: "Figure", x: float, y: float, title: str, explanation: str) -> None:
    figure.text(x, y, title, size=13, weight="bold")
    figure.text(x, y - 0.022, explanation, size=9.5, color=MUTED)


def _curves(axes: "Axes", histories: dict[str, list[float]]) -> None:
    for name, label, colour in (("scratch", "from scratch", MUTED), ("transfer", "pre-trained", GOOD)):
        values = np.asarray(histories[name]) * 100
        axes.plot(values, "o-", color=colour, linewidth=2.2, markersize=4.5, clip_on=False)
        axes.annotate(
            f"{label}  {values[-1]:.1f}%",
            (len(values) - 1, values[-1]),
            (0, -9 if name == "transfer" else -58),
            textcoords="offset points",
            ha="right",
            va="top",
            color=colour,
            weight="bold",
        )
    axes.set(ylim=(0, 100), xlabel="epochs of fine-tuning", xticks=range(len(histories["transfer"])))
    axes.set_xlim(0, len(histories["transfer"]) - 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _digits(figure: "Figure", box: tuple[float, ...], test: "Digits", logits: np.ndarray) -> None:
    """A grid of test digits: every mistake (as many as fit), then the first correct ones in order of their class."""
    read = logits.argmax(-1)
    wrong = np.flatnonzero(read != test.labels)
    right = np.flatnonzero(read == test.labels)
    per_class = [right[test.labels[right] == digit] for digit in range(10)]
    mixed = [members[i] for i in range(max(map(len, per_class))) for members in per_class if i < len(members)]
    chosen = [*wrong, *mixed][: COLUMNS * ROWS]
    for index, axes in zip(chosen, tile_axes(figure, box, ROWS, COLUMNS, gap=0.3, anchor="N"), strict=False):
        axes.imshow(test.pixels[index, ..., 0], cmap="gray_r", vmin=0, vmax=255)
        correct = read[index] == test.labels[index]
        for spine in axes.spines.values():
            spine.set(color=GRID if correct else BAD, linewidth=1 if correct else 2.2)
        text = f"{read[index]}" if correct else f"{read[index]}, not {test.labels[index]}"
        axes.set_title(text, size=9.5, pad=3, color=MUTED if correct else BAD, weight="normal" if correct else "bold")


def _attention(
    figure: "Figure", box: tuple[float, ...], model: VisionTransformer, test: "Digits", logits: np.ndarray
) -> None:
    """One digit of each class, and how much the class token looks at its patches in the first and the last block."""
    sure = np.max(logits, -1) * (logits.argmax(-1) == test.labels)
    chosen = [int(np.argmax(np.where(test.labels == digit, sure, -np.inf))) for digit in range(10)]
    images = model.preprocess(test.pixels[chosen])
    first, last = (inspection.patch_attention(model, images, block).mean(1) for block in (0, -1))
    grid = tile_axes(figure, box, 3, 10, gap=0.06, anchor="N")
    for column, scan in enumerate((images[..., 0] + 1) / 2):
        grid[column].imshow(1 - scan, cmap="gray", vmin=0, vmax=1)
        grid[10 + column].imshow(inspection.overlay(scan[..., None], first[column]))
        grid[20 + column].imshow(inspection.overlay(scan[..., None], last[column]))
    for row, label in enumerate(("scan", "first block", "last block")):
        grid[row * 10].set_ylabel(label, size=9.5)
    for axes in grid:
        axes.spines[:].set_visible(False)


def _positions(figure: "Figure", box: tuple[float, ...], model: VisionTransformer) -> None:
    """For each place a map: the cosine of its position embedding with that of every place (paper, Figure 7)."""
    similarities = inspection.position_similarity(model)
    rows, columns = similarities.shape[:2]
    maps = similarities.reshape(-1, rows, columns)
    for similarity, axes in zip(maps, tile_axes(figure, box, rows, columns, gap=0.12, anchor="N"), strict=True):
        axes.imshow(similarity, cmap="viridis", vmin=-1, vmax=1)
        axes.spines[:].set_visible(False)
