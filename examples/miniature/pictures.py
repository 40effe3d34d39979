"""The two data sets: pictures of printed characters without end (the source), scans of handwriting (the target)."""

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from keras_vit.data import load_digits

SCRIPT = Path(__file__).resolve().parents[2] / "weights" / "train_glyphs.py"
IMAGE_SIZE = 24


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Images and what they show.

    Attributes:
        pixels: uint8 `(images, height, width, 3)`.
        labels: int32 `(images,)`.
    """

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Pictures":
        return Pictures(self.pixels[chosen], self.labels[chosen])

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        return self.pixels, self.labels

    def balanced(self, count: int, seed: int) -> "Pictures":
        """`count` images, as many of each class as of any other (or one more)."""
        rng = np.random.default_rng([seed, count])
        members = [rng.permutation(np.flatnonzero(self.labels == label)) for label in np.unique(self.labels)]
        in_turn = [member[i] for i in range(max(map(len, members))) for member in members if i < len(member)]
        return self[np.asarray(in_turn[:count])]


def source_pictures(count: int, held_out: int, classes: int, fonts: str, seed: int) -> tuple[Pictures, Pictures]:
    """Digits and Latin letters of the DejaVu fonts, each picture warped, inked, tinted and noisy in its own way.

    They are easier to read than those that the shipped checkpoint was trained on, and have fewer classes: a model of
    100,000 weights has to learn something in a minute.

    Args:
        count: Pictures to train on. A smaller training set is the first ones of a larger.
        held_out: Further pictures to test on.
        classes: The first so many of `train_glyphs.CLASSES`.
        fonts: Which of the fonts that come with matplotlib: a pattern for file names.
        seed: Another seed, other pictures.
    """
    glyphs = _train_glyphs()
    fields, labels = glyphs.distance_fields(fonts)
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    rng = np.random.default_rng(seed)
    shown = np.arange(count + held_out, dtype="int32") % classes
    chunks = []
    for start in range(0, len(shown), 512):
        chosen = [rng.choice(members[label]) for label in shown[start : start + 512]]
        chunks.append(_draw(fields[chosen], rng, glyphs._look_up))
    pictures = Pictures(np.concatenate(chunks), shown)
    return pictures[:count], pictures[count:]


def _draw(fields: np.ndarray, rng: np.random.Generator, look_up) -> np.ndarray:
    """One picture of each distance field `(batch, side, side)`: uint8 `(batch, IMAGE_SIZE, IMAGE_SIZE, 3)`."""
    count, side = len(fields), fields.shape[1]

    def uniform(low: float, high: float, *shape: int) -> np.ndarray:
        return rng.uniform(low, high, (count, *(shape or (1, 1)))).astype("float32")

    places = (np.arange(IMAGE_SIZE, dtype="float32") + 0.5) / IMAGE_SIZE * 2 - 1
    y, x = np.broadcast_arrays(places[:, None], places[None, :])
    angle, slant, aspect, zoom = (
        uniform(-0.2, 0.2),
        uniform(-0.25, 0.25),
        np.exp(uniform(-0.3, 0.15)),
        uniform(0.6, 0.8),
    )
    x, y = x * zoom + uniform(-0.08, 0.08), y * zoom + uniform(-0.08, 0.08)
    x, y = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    x = (x + slant * y) / aspect
    distance = look_up(fields, (y + 1) * (side / 2) - 0.5, (x + 1) * (side / 2) - 0.5)
    ink = np.clip((distance + uniform(-1, 1.5)) / uniform(2, 8) + 0.5, 0, 1)[..., None]
    paper, pen = uniform(0, 0.3, 1, 1, 3), uniform(0.5, 1, 1, 1, 3)
    image = paper + (pen - paper) * ink + rng.normal(0, 0.04, (*ink.shape[:3], 1))
    return np.round(np.clip(image, 0, 1) * 255).astype("uint8")


def target_digits() -> tuple[Pictures, Pictures]:
    """1,297 scans of handwritten digits to train on, 500 to test on; 8 x 8 pixels each."""
    return tuple(Pictures(part.pixels, part.labels) for part in load_digits())


def _train_glyphs() -> ModuleType:
    """`weights/train_glyphs.py`, which knows the characters and how to draw them."""
    spec = importlib.util.spec_from_file_location("train_glyphs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
