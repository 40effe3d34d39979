"""Draws the bars of speed of the first page, and a search among digits.

    python docs/make_start.py

Needs matplotlib, Pillow and scikit-learn. Takes a minute. `make bench` measures what the bars show.
"""

import json
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import keras_vit
from keras_vit.data import load_digits

IMAGES = Path(__file__).resolve().parent / "images"
INK, TEAL, AMBER, GREY = "#12333f", "#0b6e75", "#d97a00", "#5d6b72"
ROW = "ViT-B/16 224 8 float32 forward"
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the line
PEERS = {"timm": "torch", "Transformers": "torch", "Flax": "jax", "KerasHub": "tensorflow"}
# Another processor, as it was reported: AMD with AVX-512 and bfloat16, idle, PyTorch 2.13.0, 5 to 9 rounds.
ELSEWHERE = {"timm": (1.06, 1.10), "Flax": (1.20, 1.20), "KerasHub": (1.02, 1.09)}  # lowest and highest
PROCESSORS = ("PyTorch's own products are slow", "PyTorch's own products are fast (measured elsewhere)")
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


def draw_search(model: keras_vit.VisionTransformer, digits: np.ndarray, asked: int) -> None:
    """A digit, and those whose features are most like its own."""
    features = model.predict(model.preprocess(digits), verbose=0)
    rows, cosines = keras_vit.evaluation.search(features, features[asked], k=12)
    figure, axes = plt.subplots(1, 12, figsize=(9, 1.25), layout="constrained")
    for axis, row, cosine in zip(axes, rows, cosines, strict=True):
        axis.imshow(digits[row])
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set(color=AMBER if row == asked else "white", linewidth=3)
        axis.set_title("asked" if row == asked else f"{cosine:.2f}", fontsize=10, color=INK)
    figure.savefig(IMAGES / "search.png", dpi=110)
    plt.close(figure)


def speeds() -> dict[str, float]:
    """keras_vit's speed as a share of each peer's on its backend; the median over rounds."""
    found = json.loads((IMAGES.parent / "speed.json").read_text(encoding="utf-8"))
    rows = {row["backend"]: row["contestants"] for row in found if row["row"] == ROW}
    ours = {backend: contestants["keras_vit"] for backend, contestants in rows.items()}
    return {
        peer: statistics.median(theirs / mine for theirs, mine in zip(rows[backend][peer], ours[backend], strict=True))
        for peer, backend in PEERS.items()
    }


def draw_speed(shares: dict[str, float]) -> None:
    """Two bars for each peer, one for each processor; the line is the peer itself."""
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    elsewhere = {peer: sum(ends) / 2 for peer, ends in ELSEWHERE.items()}
    for place, (found, colour) in enumerate(((shares, TEAL), (elsewhere, GREY))):
        heights = [-peer - 0.38 * place for peer, name in enumerate(PEERS) if name in found]
        bars = axis.barh(heights, [found[name] for name in PEERS if name in found], color=colour, height=0.36)
        bars.set_label(PROCESSORS[place])
        axis.bar_label(bars, fmt="%.2f", padding=4, color=INK, fontsize=11, bbox=LABEL)
    labels = [f"beside {peer} ({FRAMEWORKS[backend]})" for peer, backend in PEERS.items()]
    axis.set_yticks([-peer - 0.19 for peer in range(len(labels))], labels)
    axis.axvline(1, color=AMBER, linewidth=2)
    axis.set_xlim(0, 2.3)
    axis.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "0.5", "1: as fast", "1.5", "2"], color=GREY)
    axis.tick_params(length=0, labelsize=11, labelcolor=INK)
    axis.spines[:].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, title="Two processors of AMD")
    figure.savefig(IMAGES / "speed_bars.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Writes search.png and speed_bars.svg in docs/images/."""
    plt.rcParams["svg.hashsalt"] = "keras_vit"
    _, test = load_digits()
    draw_search(
        keras_vit.load("glyphs", include_top=False, pooling="avg"),
        test.pixels,
        int(np.flatnonzero(test.labels == 2)[0]),
    )
    draw_speed(speeds())


if __name__ == "__main__":
    main()
