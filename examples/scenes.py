"""A miniature data set of masks that is made and not fetched: discs, squares and crosses on backgrounds."""

import os
from pathlib import Path

import numpy as np

SCENE_CLASSES = ("background", "disc", "square", "cross")  # what the numbers in the masks stand for


def make_scenes(count: int, image_size: int = 48, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures of one to four shapes of any colour on a background of another, with a mask each.

    Args:
        count: How many.
        image_size: Height and width in pixels, 16 or more.
        seed: The same seed gives the same pictures; picture i depends on it and i alone.

    Returns:
        Pictures, uint8 `(count, image_size, image_size, 3)`, and masks, uint8 `(count, image_size, image_size)` with
        the numbers of `SCENE_CLASSES`.
    """
    made = [_scene(np.random.default_rng([seed, i]), image_size) for i in range(count)]
    scenes, masks = zip(*made, strict=True)
    return np.stack(scenes), np.stack(masks)


def save_scenes(folder: str | os.PathLike[str], train: int = 200, test: int = 50, image_size: int = 48) -> Path:
    """Writes scenes as a folder that `open_masks` reads, with `train/`, `val/` and `classes.txt`. Needs Pillow.

    Args:
        folder: Where; files of the same names are replaced.
        train: How many to train on.
        test: How many to test on; they are others.
        image_size: As in `make_scenes`.

    Returns:
        The folder.
    """
    from PIL import Image

    folder = Path(folder)
    for seed, (split, count) in enumerate((("train", train), ("val", test))):
        for kind, arrays in zip(("images", "masks"), make_scenes(count, image_size, seed), strict=True):
            (folder / split / kind).mkdir(parents=True, exist_ok=True)
            for i, array in enumerate(arrays):
                Image.fromarray(array).save(folder / split / kind / f"{i:04d}.png")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in SCENE_CLASSES), encoding="utf-8")
    return folder


def _scene(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:size, :size]
    low, high = generator.uniform(0, 255, (2, 3))
    scene = low + (high - low) * (rows[..., None] / size) * 0.5
    mask = np.zeros((size, size), "uint8")
    for _ in range(generator.integers(1, 5)):
        radius = generator.uniform(size / 8, size / 4)
        down, across = (np.abs(place - generator.uniform(radius, size - radius)) for place in (rows, columns))
        square = np.maximum(down, across) < radius
        shapes = np.hypot(down, across) < radius, square, square & (np.minimum(down, across) < radius / 3)
        kind = int(generator.integers(len(shapes)))
        scene[shapes[kind]] = generator.uniform(0, 255, 3)
        mask[shapes[kind]] = kind + 1
    noise = generator.normal(0, 6, scene.shape)
    return np.clip(scene + noise, 0, 255).astype("uint8"), mask
