"""Draws docs/images/anomaly.png and prints the table of docs/anomaly.md: a brick wall with made defects.

    python docs/make_anomaly.py VITS14 brick.png

VITS14 is the folder that `examples/trained_weights.py` writes; without it, the small model `glyphs` draws. `brick.png`
comes with scikit-image (`skimage.data.brick()`, 512 x 512 pixels, CC0). Pictures are crops of it at random places, so
that good ones are exchangeable. Needs matplotlib, Pillow, SciPy and scikit-learn. Takes some minutes.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from sklearn.neighbors import NearestNeighbors

import keras_vit
from keras_vit import anomaly
from keras_vit._pictures import BAD, GOOD, MUTED, figure_for
from keras_vit.layers.anomaly import map_matrix

FIGURE = Path(__file__).parent / "images" / "anomaly.png"
SIDE, GOODS, TESTS, DEFECTS = 224, 60, 20, 10


def crop(wall: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A crop, a little lighter or darker, uint8 `(SIDE, SIDE, 3)`."""
    top, start = generator.integers(0, 512 - SIDE, 2)
    part = wall[top : top + SIDE, start : start + SIDE] * generator.uniform(0.92, 1.08)
    return np.repeat(part.clip(0, 255).astype("uint8")[..., None], 3, 2)


def damaged(picture: np.ndarray, kind: str, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A picture with a scratch, with spots or with a missing part, and its mask, 0 or 255."""
    mask = Image.new("L", (SIDE, SIDE))
    draw, at = ImageDraw.Draw(mask), generator.integers(30, SIDE - 60, (3, 2))
    if kind == "scratch":
        draw.line([*map(tuple, at.tolist())], fill=255, width=2)
    elif kind == "spots":
        for x, y in at.tolist():
            draw.ellipse((x, y, x + 9, y + 9), fill=255)
    else:
        x, y = at[0].tolist()
        draw.rectangle((x, y, x + 40, y + 25), fill=255)
    found = np.asarray(mask)
    tone = {"scratch": 235, "spots": 40, "missing": picture.mean()}[kind] + generator.normal(0, 4, picture.shape)
    return np.where(found[..., None] > 0, tone, picture).clip(0, 255).astype("uint8"), found


def write_set(wall: np.ndarray, root: Path) -> None:
    """Writes the pictures in the layout of MVTec AD."""
    generator = np.random.default_rng(0)

    def save(pixels: np.ndarray, *parts: str) -> None:
        path = root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)

    for i in range(GOODS):
        save(crop(wall, generator), "train", "good", f"{i:03}.png")
    for i in range(TESTS):
        save(crop(wall, generator), "test", "good", f"{i:03}.png")
    for kind in ("scratch", "spots", "missing"):
        for i in range(DEFECTS):
            pixels, mask = damaged(crop(wall, generator), kind, generator)
            save(pixels, "test", kind, f"{i:03}.png")
            save(mask, "ground_truth", kind, f"{i:03}_mask.png")


def patchcore(model: keras_vit.AnomalyDetector, paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and maps by scikit-learn's neighbours, as PatchCore: the largest distance of a patch, Euclidean."""
    neighbours = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(model.bank)
    features = keras_vit.feature_extractor(model.backbone, ["encoded"], layout="map")
    scores, maps = [], []
    for path in paths:
        grid = np.asarray(features.predict_on_batch(model.preprocess(path))["encoded"])[0]
        unit = grid / np.linalg.norm(grid, axis=-1, keepdims=True)
        distances = neighbours.kneighbors(unit.reshape(-1, unit.shape[-1]))[0].reshape(grid.shape[:2])
        matrix = map_matrix(SIDE, len(distances), 4.0)
        scores.append(distances.max())
        maps.append(matrix @ distances @ matrix.T)
    return np.array(scores), np.array(maps)


def measure(name: str, model: keras_vit.AnomalyDetector, root: Path) -> list[anomaly.Anomaly]:
    """Prints the rows of a model in the table, of this package and of `patchcore`."""
    paths = sorted(root.glob("test/*/*.png"))
    found = [anomaly.detect(model, path) for path in paths]
    truths = [root / "ground_truth" / path.parent.name / f"{path.stem}_mask.png" for path in paths]
    masks = [np.asarray(Image.open(file)) if file.exists() else np.zeros((SIDE, SIDE)) for file in truths]
    labels = np.array([mask.any() for mask in masks])
    rows = {"this package": ([one.score for one in found], [one.map for one in found])}
    rows["PatchCore, scikit-learn"] = patchcore(model, paths)
    for who, (scores, maps) in rows.items():
        result = anomaly.metrics(scores, labels, maps, masks)
        print(f"| {name}, {who} | {result.auroc:.3f} | {result.pixel_auroc:.3f} | {result.aupro:.3f} |", flush=True)
    alarms = np.array([one.is_anomalous for one in found])
    print(f"{name}: {alarms[~labels].sum()} of {TESTS} good reported, {alarms[labels].sum()} of {labels.sum()} damaged")
    return found


def draw(model: keras_vit.AnomalyDetector, found: list[anomaly.Anomaly], root: Path) -> None:
    """A good picture, a scratch and its map, and the scores with the threshold."""
    paths = sorted(root.glob("test/*/*.png"))
    kinds = [path.parent.name for path in paths]
    scratch = kinds.index("scratch") + 1
    tiles = [("a good picture", paths[0]), ("a scratch", paths[scratch]), ("its map", None)]
    with figure_for(FIGURE, 8.4, 2.9) as figure:
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.6))
        for place, (title, path) in zip(axes, tiles, strict=False):
            limits = {"vmin": 0, "vmax": found[scratch].map.max(), "cmap": "inferno"} if path is None else {}
            place.imshow(found[scratch].map if path is None else np.asarray(Image.open(path)), **limits)
            place.set_title(title, size=9, color=MUTED)
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
        damaged_scores = [one.score for one, kind in zip(found, kinds, strict=True) if kind != "good"]
        steps = np.linspace(0, max(*damaged_scores, *model.good_scores), 24)
        axes[3].hist([model.good_scores, damaged_scores], steps, color=[GOOD, BAD], label=["good pictures", "defects"])
        axes[3].axvline(model.threshold, color=MUTED, ls="--", lw=1)
        axes[3].set_title(f"scores; threshold {model.threshold:.3f}", size=9, color=MUTED)
        axes[3].legend(frameon=False, fontsize=8)
        axes[3].spines[["top", "right"]].set_visible(False)
        figure.tight_layout()


def main() -> None:
    """Makes the set, measures both models and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", nargs="?", help="the folder of ViT-S/14 (default: only glyphs)")
    parser.add_argument("brick", help="brick.png of scikit-image")
    asked = parser.parse_args()
    wall = np.asarray(Image.open(asked.brick).convert("L"), "float64")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_set(wall, root)
        sources = {"glyphs": ("glyphs", 112)} | ({"ViT-S/14": (asked.weights, SIDE)} if asked.weights else {})
        for name, (source, size) in sources.items():
            model = anomaly.fit(source, root, image_size=size, verbose=False)
            found = measure(name, model, root)
        draw(model, found, root)


if __name__ == "__main__":
    main()
