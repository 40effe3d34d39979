"""Instances on a CPU in two minutes: a small EoMT tells digits apart that are written with the same pen.

    python examples/tell_digits_apart.py --output digits-output [--quick]

Makes a folder of pages with handwritten digits in three pens, and a picture of the mask of each digit; trains queries
and all of the small model that comes along; prints the panoptic quality on digits that it has not seen.
`digits-output/digits.json` has the figures, `digits-output/digits.png` shows pages and what was found. Needs
scikit-learn, SciPy, Pillow and matplotlib.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit import data, segmentation, training

SIZE = 48
PENS = {"red": (200, 40, 40), "blue": (40, 60, 200), "green": (30, 140, 70)}


def make_page(rng: np.random.Generator, scans: np.ndarray) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Returns a page with one to four digits that hardly overlap, and for each its pen and its mask."""
    page = np.array([225, 220, 200]) + rng.integers(-15, 15, 3) + rng.normal(0, 6, (SIZE, SIZE, 1))
    ids, pens = np.zeros((SIZE, SIZE), "uint8"), []
    for number in range(1, int(rng.integers(2, 6))):
        pen = str(rng.choice(list(PENS)))
        for _ in range(50):
            side = int(rng.integers(18, 27))
            y, x = rng.integers(0, SIZE - side + 1, 2)
            scan = Image.fromarray((scans[rng.integers(len(scans))] * 15.9).astype("uint8"))
            ink = np.asarray(scan.resize((side, side), Image.Resampling.BICUBIC))[..., None] / 255
            part, written = (slice(y, y + side), slice(x, x + side)), ink[..., 0] > 0.35
            if (ids[part][written] > 0).mean() < 0.05:
                page[part] = page[part] * (1 - ink) + ink * (PENS[pen] + rng.integers(-20, 20, 3))
                ids[part][written] = number
                pens.append((number, pen))
                break
    return page.clip(0, 255).astype("uint8"), [(pen, ids == number) for number, pen in pens]


def save_pages(folder: Path, scans: np.ndarray, count: int, seed: int) -> None:
    """Writes `images/0000.png` and, for each digit on it, `instances/0000/PEN_NUMBER.png`."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        page, digits = make_page(rng, scans)
        Image.fromarray(page).save(folder / f"images/{i:04d}.png")
        (folder / f"instances/{i:04d}").mkdir(parents=True, exist_ok=True)
        for number, (pen, mask) in enumerate(digits):
            Image.fromarray(255 * mask.astype("uint8")).save(folder / f"instances/{i:04d}/{pen}_{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="digits-output")
    parser.add_argument("--quick", action="store_true", help="a few steps: the numbers mean nothing")
    options = parser.parse_args()
    output, (steps, train, test) = Path(options.output), (2, 8, 7) if options.quick else (600, 600, 100)

    scans = load_digits().images
    save_pages(output / "pages/train", scans[:1000], train, seed=0)
    save_pages(output / "pages/val", scans[1000:], test, seed=1)
    recipe = training.recipe("segmentation/eomt_coco_panoptic_base").replace(
        steps=steps,
        batch_size=8,
        image_size=SIZE,
        queries=12,
        points=196,  # of a mask; 12,544 as published are for pictures of 640 pixels
        learning_rate=2e-3,
        augmentation=data.SegmentAugmentation(scale=(0.7, 1.4), flip=False),
    )
    done = training.finetune_segmentation(
        "glyphs", output / "pages", recipe, every=-(-steps // 3), output=output / "run"
    )
    print(f"panoptic quality {done.panoptic_quality:.3f}")
    figures = {"panoptic_quality": done.panoptic_quality, "seconds": done.log[-1]["seconds"]}
    (output / "digits.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    figure, axes = plt.subplots(
        2, 7, figsize=(10.5, 3.1), layout="constrained", subplot_kw={"xticks": [], "yticks": []}
    )
    for file, (above, below) in zip(sorted((output / "pages/val/images").iterdir()), axes.T, strict=False):
        page = np.asarray(Image.open(file))
        found = segmentation.segment(done.model, page, task="panoptic")
        colours = np.full(page.shape, 255, "uint8")
        for number, part in enumerate(found.segments):
            colours[found.map == part.id] = 255 * np.array(plt.get_cmap("tab10").colors[number % 10])
        above.imshow(page)
        below.imshow(colours)
    figure.savefig(output / "digits.png", dpi=100)


if __name__ == "__main__":
    main()
