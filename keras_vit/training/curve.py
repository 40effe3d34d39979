"""The learning curve of a run, as a picture."""

import os
from typing import TYPE_CHECKING, Any

from keras_vit._files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, TRAIN, TEST = "#1b1f27", "#6b7280", "#9aa4b2", "#1f6feb"


def draw_curve(log: list[dict[str, Any]], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws loss, accuracy and learning rate over the steps of a run.

    Args:
        log: Rows with `step` and any of `loss`, `val_loss`, `accuracy`, `val_accuracy`, `learning_rate`.
        path: The `.png` to write; it appears when it is complete.
        title: Above the picture.

    Raises:
        ImportError: if matplotlib is not installed (`pip install "keras-vit[plots]"`).
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('A picture needs matplotlib: pip install "keras-vit[plots]"', name="matplotlib") from None
    figure = Figure(figsize=(12, 3.8), dpi=110, facecolor="white", layout="constrained")
    figure.suptitle(title, color=INK, weight="bold", x=0.01, ha="left")
    loss, accuracy, rate = figure.subplots(1, 3)
    _curves(loss, log, "loss", {"loss": "training", "val_loss": "test"})
    _curves(accuracy, log, "accuracy, %", {"accuracy": "training", "val_accuracy": "test"}, factor=100)
    _curves(rate, log, "learning rate", {"learning_rate": "learning rate"})
    with replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))


def _curves(axes: "Axes", log: list[dict[str, Any]], title: str, names: dict[str, str], factor: float = 1) -> None:
    axes.set_title(title, color=INK, loc="left", fontsize=11)
    for (name, label), colour in zip(names.items(), (TRAIN, TEST), strict=False):
        points = [(row["step"], factor * row[name]) for row in log if row.get(name) is not None]
        if points:
            axes.plot(
                *zip(*points, strict=True), ".-", color=colour, linewidth=1.8, label=f"{label} {points[-1][1]:.4g}"
            )
    axes.set_xlabel("step", color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c9ced6")
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)
