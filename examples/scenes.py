"""Miniature data sets of masks and of boxes that are made and not fetched: discs, squares, crosses on backgrounds."""

import os
from pathlib import Path

import numpy as np

BOX_CLASSES = ("disc", "square", "cross")
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


def make_boxes(count: int, image_size: int = 48, seed: int = 0) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Returns pictures of one or two shapes with a box each: red discs, green squares and blue crosses on noise.

    Args:
        count: How many.
        image_size: Height and width in pixels, 16 or more.
        seed: As in `make_scenes`.

    Returns:
        Pictures, uint8 `(image_size, image_size, 3)`, and targets as `open_boxes` takes them: `boxes` `(k, 4)` and
        `labels` `(k,)`, the numbers of `BOX_CLASSES`.
    """
    made = [_boxes(np.random.default_rng([seed, i]), image_size) for i in range(count)]
    pictures, targets = zip(*made, strict=True)
    return list(pictures), list(targets)


def _boxes(generator: np.random.Generator, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    scene = generator.normal(generator.uniform(60, 160), 10, (size, size, 3))
    boxes, labels, taken = [], [], np.zeros((size, size), bool)
    for _ in range(generator.integers(1, 3)):
        width, height = generator.integers(size // 3, 2 * size // 3, 2)
        left, top = (int(generator.integers(size - side + 1)) for side in (width, height))
        place = slice(top, top + height), slice(left, left + width)
        if taken[place].any():
            continue
        taken[place], kind = True, int(generator.integers(3))
        down, across = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
        shape = (np.hypot(down, across) <= 1, down < 2, np.minimum(np.abs(down), np.abs(across)) < 0.4)[kind]
        colour = np.eye(3)[kind] * generator.uniform(150, 255)
        scene[place][shape] = colour + generator.normal(0, 10, (int(shape.sum()), 3))
        boxes.append([left, top, left + width, top + height])
        labels.append(kind)
    return np.clip(scene, 0, 255).astype("uint8"), {"boxes": np.array(boxes), "labels": np.array(labels)}
