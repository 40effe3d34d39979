"""One figure for each experiment."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._files import replacing
from miniature.findings import correlation, middle_shots

INK, MUTED = "#1b1f27", "#6b7280"
COLOURS = {
    **{"ViT": "#1f6feb", "hybrid": "#8250df", "ResNet": "#d1742f"},
    **{"pretrained": "#1f6feb", "scratch": "#8c959f", "scratch, longer": "#57606a"},
    **{"labels": "#1f6feb", "masked patches": "#2da44e"},
}


def transfer(axes: list[Any], numbers: dict[str, Any]) -> None:
    names = {"scratch, longer": f"scratch, {numbers['longer']} updates"}
    _runs(axes[0], numbers["rows"], names | {"scratch": "scratch", "pretrained": "pre-trained"})
    axes[0].set(xlabel="digits to fine-tune on", ylabel="test accuracy, %", ylim=(0, 102))


def data(axes: list[Any], numbers: dict[str, Any]) -> None:
    shots = middle_shots(numbers["rows"][0])
    for architecture in numbers["models"]:
        rows = [row for row in numbers["rows"] if row["architecture"] == architecture]
        x = [row["pictures"] for row in rows]
        style = {"color": COLOURS[architecture], "marker": "o", "markersize": 4.5, "label": architecture}
        mean = [100 * row["few_shot"][shots] for row in rows]
        axes[0].errorbar(x, mean, [100 * row["spread"][shots] for row in rows], capsize=3, elinewidth=1, **style)
        axes[1].plot(x, [100 * row["held_out"] for row in rows], **style)
    for each, title in zip(axes, (f"{shots}-shot accuracy on digits, %", "new pictures of the source, %"), strict=True):
        each.set(xlabel="pictures to pre-train on", ylabel=title)
        _log_ticks(each, x)
        each.legend(frameon=False)


def few_shot(axes: list[Any], numbers: dict[str, Any]) -> None:
    shots = middle_shots(numbers["rows"][0])
    for architecture in dict.fromkeys(row["architecture"] for row in numbers["rows"]):
        rows = [row for row in numbers["rows"] if row["architecture"] == architecture]
        probe, tuned = ([100 * value for value in values] for values in _pairs(rows, shots))
        style = {"color": COLOURS[architecture], "marker": "o", "markersize": 4.5}
        axes[0].plot([row["step"] for row in rows], probe, label=architecture, **style)
        label = f"{architecture}, r = {correlation(probe, tuned):.2f}"
        axes[1].plot(probe, tuned, linestyle=":", label=label, **style)
    axes[0].set_xscale("symlog", linthresh=max(1, min(row["step"] for row in numbers["rows"] if row["step"])))
    axes[0].set_xticks(steps := sorted({row["step"] for row in numbers["rows"]}), [str(step) for step in steps])
    axes[0].minorticks_off()
    axes[0].set(xlabel="updates of pre-training", ylabel=f"{shots}-shot accuracy on digits, %")
    axes[1].set(xlabel=f"{shots}-shot accuracy, %", ylabel=f"fine-tuned on {numbers['digits']} digits, %")
    for each in axes:
        each.legend(frameon=False)


def _pairs(rows: list[dict[str, Any]], shots: str) -> tuple[list[float], list[float]]:
    return [row["few_shot"][shots] for row in rows], [row["finetuned"] for row in rows]


def resolution(axes: list[Any], numbers: dict[str, Any]) -> None:
    rows = numbers["rows"]
    shots = middle_shots(rows[0])
    x = np.arange(len(rows))
    kinds = {
        f"frozen, {shots}-shot": ([row["few_shot"][shots] for row in rows], "#b6c2d2"),
        f"fine-tuned on {numbers['digits']} digits": ([row["accuracy"] for row in rows], COLOURS["ViT"]),
    }
    for place, (label, (values, colour)) in enumerate(kinds.items()):
        bars = axes[0].bar(x + 0.4 * place - 0.2, 100 * np.asarray(values), 0.38, label=label, color=colour)
        axes[0].bar_label(bars, fmt="%.1f", fontsize=8.5, color=MUTED, padding=2)
    axes[0].set_xticks(x, [f"{row['image_size']} pixels\n{row['tokens']} tokens" for row in rows])
    axes[0].set(ylabel="test accuracy, %", ylim=(0, 118), yticks=range(0, 101, 20))
    axes[0].legend(frameon=False, loc="upper center", ncols=2)


def masked(axes: list[Any], numbers: dict[str, Any]) -> None:
    sizes = sorted({row["digits"] for row in numbers["rows"]})
    for place, start in enumerate(("scratch", "masked patches", "labels")):
        values = [100 * row["accuracy"] for row in numbers["rows"] if row["start"] == start]
        bars = axes[0].bar(np.arange(len(sizes)) + 0.27 * (place - 1), values, 0.25, label=start, color=COLOURS[start])
        axes[0].bar_label(bars, fmt="%.1f", fontsize=8.5, color=MUTED, padding=2)
    axes[0].set_xticks(range(len(sizes)), [f"{size:,} digits to fine-tune on" for size in sizes])
    axes[0].set(ylabel="test accuracy, %", ylim=(0, 118), yticks=range(0, 101, 20))
    axes[0].legend(frameon=False, loc="upper center", ncols=3)


DRAWN_BY = {
    "transfer": (transfer, 1, "Transfer beats scratch"),
    "data": (data, 2, "Data size against architecture"),
    "few_shot": (few_shot, 2, "Few-shot accuracy along pre-training"),
    "resolution": (resolution, 1, "Fine-tuning at higher resolution"),
    "masked": (masked, 1, "Labels, masked patches, or neither"),
}


def draw_figure(name: str, numbers: dict[str, Any], finding: dict[str, str], path: Path) -> None:
    """Draws an experiment with its finding below, and writes a `.png`, which appears when it is complete."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draw, panels, title = DRAWN_BY[name]
    style = {"font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.labelcolor": MUTED}
    style |= {"axes.edgecolor": "#c9ced6", "xtick.color": MUTED, "ytick.color": MUTED, "axes.axisbelow": True}
    with rc_context(style):
        lines = [("The paper", finding["claim"]), (f"Here: {finding['verdict']}", finding["seen"])]
        texts = [textwrap.fill(f"{head}. {text}", 132) for head, text in lines]
        below = 0.17 * (sum(text.count("\n") + 1 for text in texts) + 1.6)  # inches
        height = 4.1 + below
        figure = Figure(figsize=(9, height), dpi=90, facecolor="white")
        figure.text(0.03, 1 - 0.36 / height, title, size=15, weight="bold")
        bottom, top = (below + 0.65) / height, 1 - 0.65 / height
        width = 0.9 / panels - (0.06 if panels > 1 else 0)
        axes = [
            figure.add_axes((0.08 + i * (width + 0.09), bottom, width, top - bottom)) for i in range(panels)
        ]  # fmt: skip
        draw(axes, numbers)
        for each in axes:
            each.grid(axis="y", color="#e6e8ec")
            each.spines[["top", "right"]].set_visible(False)
        figure.text(0.03, 0.12 / height, "\n\n".join(texts), size=8.6, color=MUTED, va="bottom", linespacing=1.25)
        with replacing(path) as temporary:
            FigureCanvasAgg(figure).print_png(str(temporary))


def _runs(axes: Any, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Mean accuracy for each size of the training set as a line, single runs as dots."""
    for start, label in names.items():
        chosen = [row for row in rows if row["start"] == start]
        x = [row["digits"] for row in chosen]
        axes.plot(x, [100 * row["accuracy"] for row in chosen], color=COLOURS[start], linewidth=2, label=label)
        for row in chosen:
            axes.plot([row["digits"]] * len(row["runs"]), 100 * np.asarray(row["runs"]), ".", color=COLOURS[start])
    _log_ticks(axes, x)
    axes.legend(frameon=False)


def _log_ticks(axes: Any, values: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
