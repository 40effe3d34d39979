"""Draws docs/images/words_masks.png: masks by words, from towers that learned from pictures with captions alone.

    python docs/make_words.py

Each picture shows one pattern and has a caption, "red dots". Two small towers with random weights learn which caption
belongs to which picture. No mask is shown to them, and three pairs of words are left out. Then `zero_shot_segmenter`
names each pixel of pictures of several patterns. Prints how many pixels are named correctly. Needs matplotlib; takes a
minute on a CPU.
"""

from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch
from PIL import Image

import keras_vit
from keras_vit import segmentation, text, training

PICTURE = Path(__file__).resolve().parent / "images" / "words_masks.png"
COLOURS = {"red": (220, 50, 40), "green": (60, 170, 70), "blue": (50, 90, 220), "yellow": (235, 200, 40)}
COLOURS |= {"violet": (160, 60, 200), "grey": (110, 110, 110)}
PATTERNS = ("stripes", "dots", "checks", "plain")
NAMES = [f"{colour} {pattern}" for colour in COLOURS for pattern in PATTERNS]
UNSEEN = ("green dots", "yellow stripes", "violet checks")  # each word is seen with others
TRAINED_AT, SHOWN_AT, PATCH, WIDTH = 72, 144, 12, 96
# Of the masks, whatever the words are: told apart without colour vision as well.
MASKS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


def pattern(rng: np.random.Generator, name: str, size: tuple[int, int]) -> np.ndarray:
    """A picture `(height, width, 3)` of one pattern on paper of its colour, turned and scaled by chance."""
    colour, kind = name.split()
    rows, columns = np.mgrid[: size[0], : size[1]]
    turn, period = rng.uniform(0, np.pi), rng.uniform(6, 8)
    x = (rows * np.cos(turn) + columns * np.sin(turn)) / period + rng.uniform()
    y = (columns * np.cos(turn) - rows * np.sin(turn)) / period + rng.uniform()
    ink = {
        "stripes": x % 1 < 0.5,
        "dots": np.hypot(x % 1 - 0.5, y % 1 - 0.5) < 0.35,
        "checks": (x % 1 < 0.5) ^ (y % 1 < 0.5),
        "plain": np.ones(size, bool),
    }[kind]
    shade = np.asarray(COLOURS[colour]) * rng.uniform(0.8, 1.1)
    paper = 255 - (255 - shade) * rng.uniform(0.15, 0.3)
    picture = np.where(ink[..., None], shade, paper) + rng.normal(0, 3, (*size, 3))
    return np.clip(picture, 0, 255).astype("uint8")


def scene(rng: np.random.Generator, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A picture of the first pattern with discs and squares of the others, and the number of the name of each pixel."""
    size = SHOWN_AT, SHOWN_AT * 3 // 2
    picture, truth = pattern(rng, names[0], size), np.zeros(size, int)
    rows, columns = np.mgrid[: size[0], : size[1]]
    for number, name in enumerate(names[1:]):
        radius = rng.uniform(0.22, 0.3) * size[0]
        left, right = (
            size[1] * number / 3,
            size[1] * (number + 1) / 3,
        )  # a third of the picture each, so that all are seen
        down = np.abs(rows - rng.uniform(radius, size[0] - radius))
        across = np.abs(columns - np.clip((left + right) / 2 + rng.uniform(-8, 8), radius, size[1] - radius))
        mask = np.hypot(down, across) < radius if rng.uniform() < 0.5 else np.maximum(down, across) < radius
        picture[mask], truth[mask] = pattern(rng, name, size)[mask], number + 1
    return picture, truth


def towers() -> text.ImageText:
    """An image tower of one block and a text tower that reads letters; the latter is built as TIPS's are."""
    images = keras_vit.ViTConfig(
        **{"image_size": TRAINED_AT, "patch_size": PATCH, "position_embedding": "none"},
        **{"width": WIDTH, "depth": 1, "heads": 3, "mlp_width": 2 * WIDTH, "class_token": False, "pooling": "avg"},
    )
    words = keras_vit.TextConfig(
        **{"vocabulary": 128, "context": 16, "width": WIDTH, "depth": 2, "heads": 3, "mlp_width": 2 * WIDTH},
        **{"position_embedding": "sincos", "pooling": "mean", "pad_id": 0, "gelu": "relu"},
    )
    letters = text.Tokenizer(lambda line: [ord(letter) for letter in line], context=16, end=None, pad=0)
    return text.ImageText(keras_vit.VisionTransformer(images), keras_vit.TextEncoder(words), letters)


def trained(rng: np.random.Generator) -> text.ImageText:
    """Towers that learned from batches in which each caption stands once."""
    both = towers()
    captions = [name for name in NAMES if name not in UNSEEN] * 250
    pictures = np.stack([pattern(rng, caption, (TRAINED_AT, TRAINED_AT)) for caption in captions])
    both.compile(keras.optimizers.Adam(5e-4), training.ContrastiveLoss())
    images = both.image_encoder.preprocess(pictures)
    both.fit((images, captions), batch_size=len(NAMES) - len(UNSEEN), epochs=3, shuffle=False, verbose=2)
    return both


def masks_of(both: text.ImageText, names: list[str], picture: np.ndarray) -> np.ndarray:
    """The number of the name of each pixel."""
    model = both.zero_shot_segmenter(names, ["{}"], mode="whole", image_size=SHOWN_AT)
    return segmentation.segment(model, picture).map


def measure(both: text.ImageText) -> None:
    """Prints the share of pixels that are named correctly, of 40 pictures of four patterns each."""
    right: dict[bool, list[float]] = {False: [], True: []}
    for number in range(40):
        rng = np.random.default_rng([1, number])
        names = [str(name) for name in rng.choice(NAMES, 4, replace=False)]
        picture, truth = scene(rng, names)
        found = masks_of(both, names, picture)
        for index, name in enumerate(names):
            right[name in UNSEEN].append(float((found == index)[truth == index].mean()))
    for unseen, shares in right.items():
        words = "left out in training" if unseen else "seen in training"
        print(f"{np.mean(shares):.0%} of the pixels of {len(shares)} regions whose words were {words}")


def draw(both: text.ImageText) -> None:
    """Two pictures, and the masks of each for names of two words and for colours alone, which were never a caption."""
    asked = [
        ["blue plain", "green dots", "red stripes", "yellow checks"],
        ["grey dots", "yellow stripes", "violet plain", "red checks"],
    ]
    figure, axes = plt.subplots(2, 3, figsize=(7.2, 3.9), layout="constrained", dpi=125)
    figure.get_layout_engine().set(h_pad=0.12)
    for row, names in enumerate(asked):
        picture, _ = scene(np.random.default_rng([2, row]), names)
        axes[row, 0].imshow(picture)
        questions = [names, [name.split()[0] for name in names]]
        for axis, words in zip(axes[row, 1:], questions, strict=True):
            found = masks_of(both, words, picture)
            colours = np.array([[int(mask[k : k + 2], 16) for k in (1, 3, 5)] for mask in MASKS])
            axis.imshow(colours[found])
            handles = [Patch(color=mask, label=word) for mask, word in zip(MASKS, words, strict=False)]
            axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=2, fontsize=8, frameon=False)
    for axis, title in zip(axes[0], ("picture", "masks of these names", "masks of other names"), strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.savefig(PICTURE)
    Image.open(PICTURE).convert("RGB").quantize(48, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")


def main() -> None:
    """Trains, measures and draws."""
    keras.utils.set_random_seed(0)
    both = trained(np.random.default_rng(0))
    measure(both)
    draw(both)


if __name__ == "__main__":
    main()
