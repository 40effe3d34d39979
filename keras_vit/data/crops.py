"""Crop, resize and flip of one image, in NumPy: the same on every backend, a function of the generator alone."""

import numpy as np

from keras_vit.data.augmentation import Augmentation
from keras_vit.preprocessing import load_image, resize_images

ASPECTS = (0.75, 1.33)  # tf.image.sample_distorted_bounding_box's default, which vit_jax and big_vision leave alone
ATTEMPTS = 100  # likewise
ENLARGED = 7 / 6  # the side that a random crop is cut from, per side of the crop: 448 to 384


def crop_and_flip(
    pixels: np.ndarray, size: tuple[int, int], augmentation: Augmentation, generator: np.random.Generator
) -> np.ndarray:
    """The random crop of a training image at the model's size, perhaps mirrored.

    Args:
        pixels: `(height, width, 3)` in 0..255, any dtype.
        size: `(height, width)` of the result.
        augmentation: `crop`, `min_area` and `flip` are used here.
        generator: Where all randomness comes from.

    Returns:
        float32 `(*size, 3)` in 0..255, not rounded unless `crop="random"`, as in the original.
    """
    if augmentation.crop == "inception":
        top, left, height, width = inception_box(*pixels.shape[:2], generator, augmentation.min_area)
        image = _bilinear(pixels[top : top + height, left : left + width], size)
    elif augmentation.crop == "random":
        image = _random_crop(pixels, size, generator)
    else:
        image = _bilinear(pixels, size)
    if augmentation.flip and generator.random() < 0.5:
        image = np.ascontiguousarray(image[:, ::-1])
    return image


def inception_box(
    height: int, width: int, generator: np.random.Generator, min_area: float = 0.05
) -> tuple[int, int, int, int]:
    """A random box in an image, drawn as `tf.image.sample_distorted_bounding_box` draws it.

    An aspect ratio (width by height) is drawn from 0.75 to 1.33, then a height, uniformly among those with which the
    box fits into the image and covers `min_area` to all of it; then the place. So the *height* is uniform, not the
    area as in torchvision. Where rounding spoils the area, a height one larger or smaller is tried; after 100 failed
    attempts the box is the whole image.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        generator: Where all randomness comes from.
        min_area: The least share of the image's area.

    Returns:
        `(top, left, height, width)` of the box in pixels.
    """
    most = height * width
    least = min_area * most
    for _ in range(ATTEMPTS):
        aspect = generator.uniform(*ASPECTS)
        tallest = round((most / aspect) ** 0.5)
        if round(tallest * aspect) > width:
            tallest = int((width + 0.5 - 1e-7) / aspect)
        tallest = min(tallest, height)
        rows = min(round((least / aspect) ** 0.5), tallest)
        rows += int(generator.integers(tallest - rows + 1))
        columns = round(rows * aspect)
        if rows * columns < least:
            rows += 1
            columns = round(rows * aspect)
        if rows * columns > most:
            rows -= 1
            columns = round(rows * aspect)
        if 0 < rows <= height and 0 < columns <= width and least <= rows * columns <= most:
            # The last place is never drawn: TensorFlow's upper bound is exclusive.
            top = int(generator.integers(height - rows)) if rows < height else 0
            left = int(generator.integers(width - columns)) if columns < width else 0
            return top, left, rows, columns
    return 0, 0, height, width


def resize_for_evaluation(pixels: np.ndarray, size: tuple[int, int], resize: str = "squash") -> np.ndarray:
    """A test image at the model's size, by one of `keras_vit.preprocessing.RESIZES`.

    Args:
        pixels: `(height, width, 3)` in 0..255, any dtype.
        size: `(height, width)` of the result.
        resize: As in `keras_vit.load_image`.

    Returns:
        float32 `(*size, 3)` in 0..255, equal to what `load_image` gives for a file of these pixels.
    """
    if resize == "squash":
        return resize_images(pixels, size)
    return load_image(_picture(pixels), size, resize=resize)


def _bilinear(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """`resize_images` up to rounding, several times faster: only the two samples that count are looked at."""
    (above, below, down), (before, after, right) = (_two_samples(*n) for n in zip(pixels.shape, size, strict=False))
    top, bottom = pixels[above].astype("float32"), pixels[below].astype("float32")
    rows = top + (bottom - top) * down[:, None, None]
    left = rows[:, before]
    return left + (rows[:, after] - left) * right[:, None]


def _two_samples(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `old` samples, the two that each of `new` lies between (half-pixel centres), and the share of the second."""
    centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(centre)
    lower, upper = (np.clip(n, 0, old - 1).astype("int64") for n in (first, first + 1))
    return lower, upper, (centre - first).astype("float32")


def _random_crop(pixels: np.ndarray, size: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale = max(round(side * ENLARGED) / old for side, old in zip(size, (height, width), strict=True))
    enlarged = round(height * scale), round(width * scale)
    image = load_image(_picture(pixels), enlarged, resize="big_vision", crop_fraction=1.0)
    top, left = (int(generator.integers(big - small + 1)) for big, small in zip(enlarged, size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


def _picture(pixels: np.ndarray):
    from PIL import Image

    if pixels.dtype != np.uint8:
        pixels = np.clip(np.round(pixels), 0, 255).astype("uint8")
    return Image.fromarray(pixels)
