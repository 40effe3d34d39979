"""Draws the README's picture: four photographs, the features of their patches, and masks and boxes made of these.

    python docs/make_photographs.py WEIGHTS PHOTOGRAPHS

WEIGHTS is the folder that examples/trained_weights.py writes: a ViT-S/14 in DINOv2's layout. PHOTOGRAPHS is the folder
`skimage/data` of scikit-image with `chelsea.png` (by Stefan van der Walt) and `coffee.png` (by Rachel Michetti), both
CC0. `flower.jpg` (by vultilion) and `china.jpg` (by danielbuechele) come with scikit-learn, CC BY 2.0. Takes a minute.

Nothing is trained here, and there are no names: a mask is the foreground of `feature_map`, a box is what it spans.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage
from sklearn.datasets import load_sample_image

import keras_vit
from keras_vit import inspection

FILE = Path(__file__).parent / "images" / "photographs.jpg"
NAMES = ("flower.jpg", "china.jpg", "chelsea.png", "coffee.png")
SIZE = 644, 434  # 46 x 31 patches of 14 x 14 pixels
TILE, GAP = (300, 202), 8
AMBER, TEAL = (255, 176, 0), (0, 200, 190)


def photograph(name: str, folder: Path) -> Image.Image:
    """Returns a photograph, cut to the proportions of the model's pictures."""
    file = folder / name
    picture = Image.open(file).convert("RGB") if file.exists() else Image.fromarray(load_sample_image(name))
    width, height = picture.size
    wide, high = min(width, height * SIZE[0] / SIZE[1]), min(height, width * SIZE[1] / SIZE[0])
    left, top = (width - wide) / 2, (height - high) / 2
    return picture.resize(SIZE, Image.Resampling.LANCZOS, (left, top, left + wide, top + high))


def largest_part(foreground: np.ndarray) -> np.ndarray:
    """Returns the largest connected part of a mask of patches, at the pixels of the photograph, without holes."""
    parts, _ = ndimage.label(foreground)
    largest = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
    filled = Image.fromarray(255 * ndimage.binary_fill_holes(largest).astype("uint8"))
    return np.asarray(filled.resize(SIZE, Image.Resampling.BICUBIC)) > 127


def masked(picture: Image.Image, mask: np.ndarray) -> Image.Image:
    """Returns a photograph with a mask in colour, its background in grey, and the box around it."""
    pixels = np.asarray(picture, "float32")
    grey = np.repeat(pixels.mean(-1, keepdims=True), 3, -1)
    shown = np.where(mask[..., None], pixels, 0.35 * grey + 110)
    shown[ndimage.binary_dilation(mask, iterations=4) & ~mask] = TEAL
    result = Image.fromarray(shown.clip(0, 255).astype("uint8"))
    rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
    box = (int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1]))
    ImageDraw.Draw(result).rectangle(box, outline=AMBER, width=6)
    return result


def main(weights: str, photographs: str) -> None:
    """Writes docs/images/photographs.jpg: three rows of four pictures."""
    model = keras_vit.load(weights, image_size=SIZE[::-1])
    across, down = TILE[0] + GAP, TILE[1] + GAP
    sheet = Image.new("RGB", (across * len(NAMES) - GAP, down * 3 - GAP), "white")
    for column, name in enumerate(NAMES):
        images = model.preprocess(photograph(name, Path(photographs)))
        picture = Image.fromarray(inspection.shown_pixels(model, images)[0])  # cropped
        features = inspection.feature_map(model, images)[0]
        colours = Image.fromarray((255 * features).astype("uint8")).resize(SIZE, Image.Resampling.BICUBIC)
        found = masked(picture, largest_part(features.any(-1)))
        for row, tile in enumerate((picture, colours, found)):
            sheet.paste(tile.resize(TILE, Image.Resampling.LANCZOS), (column * across, row * down))
    sheet.save(FILE, quality=80, optimize=True, progressive=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
