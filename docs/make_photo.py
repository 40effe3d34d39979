"""Draws what the small model does with photographs: docs/images/photo*.png.

    python docs/make_photo.py

The photos are `china.jpg` (by danielbuechele) and `flower.jpg` (by vultilion), which come with scikit-learn, CC BY 2.0;
the pages name them. Needs matplotlib, Pillow and scikit-learn. Takes some seconds.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import keras_vit
from keras_vit import data, inspection
from keras_vit._pictures import plot_map
from keras_vit.data.augmentation import ImageTransform, draws

IMAGES = Path(__file__).parent / "images"
SIZE = 96, 144  # 24 x 36 patches of 4 x 4 pixels
PATCH = 0, 10, 17  # image, row and column: of the flower
PINK = 255, 0, 170


def small(name: str) -> np.ndarray:
    """A photo at the size that the model looks at."""
    photo = Image.fromarray(load_sample_image(name))
    return np.asarray(photo.resize(SIZE[::-1], Image.Resampling.LANCZOS))


def enlarged(pixels: np.ndarray) -> np.ndarray:
    """Each pixel four times as wide and as high, so that frames around patches are thin."""
    return pixels.repeat(4, 0).repeat(4, 1)


def draw_features(names: list[str], file: str) -> None:
    """Each photo, its features as colours, where its attention goes, and the patches most like one of its own."""
    model = keras_vit.load("glyphs", image_size=SIZE)
    tiles = []
    for name in names:
        photo = small(name)
        images = model.preprocess(photo)
        places, _ = inspection.nearest_patches(model, images, PATCH, 12)
        framed = enlarged(photo)
        for place in places:
            draw_frame(framed, place, (255, 255, 255))
        draw_frame(framed, PATCH, PINK)
        rollout = inspection.attention_rollout(model, images)[0]
        tiles += [photo, enlarged(inspection.feature_map(model, images)[0]), inspection.overlay(photo, rollout), framed]
    words = ["the photo", "features as colours", "attention rollout", "most like the pink patch"]
    words += [""] * (len(tiles) - len(words))
    plot_map([*zip(words, tiles, strict=True)], IMAGES / file, columns=4, side=2.2, gap=0.06)


def draw_frame(pixels: np.ndarray, place: tuple[int, ...], colour: tuple[int, int, int]) -> None:
    """Draws a frame around a patch of enlarged pixels, in place."""
    top, left = 16 * place[1], 16 * place[2]
    inner = pixels[top + 3 : top + 13, left + 3 : left + 13].copy()
    pixels[top : top + 16, left : left + 16] = colour
    pixels[top + 3 : top + 13, left + 3 : left + 13] = inner


def draw_preprocessing() -> None:
    """A photo, what two kinds of preprocessing make of it, and six augmented versions of it."""
    photo = load_sample_image("china.jpg")
    squashed = keras_vit.load_image(Image.fromarray(photo), 224)
    cropped = keras_vit.load_image(Image.fromarray(photo), 224, resize="timm", crop_fraction=0.9)
    tiles = [("the photo", photo), ("squash (official)", squashed / 255), ("crop (timm)", cropped / 255)]
    kinds = {
        "crop and flip": data.Augmentation(min_area=0.3),
        "RandAugment": data.Augmentation(crop="resize", randaugment=(2, 10)),
        "random erasing": data.Augmentation(crop="resize", erasing=1.0),
    }
    for name, augmentation in kinds.items():
        transform = ImageTransform((224, 224), augmentation)
        tiles += [(name, np.clip(transform(photo, None, draws(3, 0, i))[0] / 255.0, 0, 1)) for i in range(2)]
    plot_map(tiles, IMAGES / "photo_augmentation.png", columns=5, side=1.8, gap=0.14)


def reduce_colours(path: Path) -> None:
    """Writes a picture again with 256 colours: a third of the bytes."""
    rgb = Image.open(path).convert("RGB")
    rgb.quantize(256, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


def main() -> None:
    """Writes photos.png, photo_augmentation.png and flower.jpg."""
    flower = Image.fromarray(load_sample_image("flower.jpg"))
    flower.resize((480, 320)).save(IMAGES / "flower.jpg", quality=85)
    draw_features(["flower.jpg", "china.jpg"], "photos.png")
    draw_preprocessing()
    for name in ("photos.png", "photo_augmentation.png"):
        reduce_colours(IMAGES / name)


if __name__ == "__main__":
    main()
