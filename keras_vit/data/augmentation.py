"""What happens to images after they are read: crops, flips, RandAugment, erasing, mixup and CutMix, in NumPy.

They are the same on every backend. What is random depends on a seed and the place of the image or the batch alone.
`Augmentation` says which of them as plain data: it is a part of every recipe.
"""

import dataclasses
import math
import os
from typing import Any, Self

import numpy as np

from keras_vit._arguments import Code, Message, check_choice
from keras_vit.data.randaugment import MAX_MAGNITUDE, randaugment
from keras_vit.interpolation import FLIPPED, Samples, area_samples, linear_samples, resample
from keras_vit.preprocessing import Pipeline, bring_to_size, load_image

CROPS = ("inception", "random", "resize")

# What the first number of a random seed says it is for, so that no two uses share their numbers.
ORDER, IMAGE, RANDAUGMENT, MIXUP, HOLDOUT, ERASING = range(6)

# Defaults of tf.image.sample_distorted_bounding_box, which vit_jax and big_vision leave alone.
ASPECTS, ATTEMPTS = (0.75, 1.33), 100
# Of timm's `RandomErasing`: share of the area, greatest ratio of its sides, and how often a box is drawn.
ERASED_AREA, ERASED_ASPECT, ERASING_ATTEMPTS = (0.02, 1 / 3), 1 / 0.3, 10
ENLARGED = 7 / 6  # the side that a random crop is cut from, per side of the crop: 448 to 384


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training images are changed. `Augmentation()` is what the papers fine-tune with.

    Args:
        crop: `"inception"` cuts out a random box of `min_area` to all of the image, of aspect 3/4 to 4/3, and
            scales it to size (vit_jax, `input_pipeline.py`; big_vision, `inception_crop`). `"random"` scales
            the short side to 7/6 of the size, keeping the aspect ratio, and cuts out a random part (big_vision,
            `resize_small` and `random_crop`: 448 to 384 in `configs/transfer.py`). `"resize"` scales the whole
            image to size.
        min_area: The least share of the image's area that the inception crop keeps, in (0, 1].
        flip: Mirror half of the images, left to right.
        mixup: `p` of the Beta(p, p) distribution that pairs of images are mixed by, at most 1; 0: none.
        randaugment: `(layers, magnitude)` of RandAugment, the magnitude as AugReg counts it (0 to 30; its tables
            have 0, 10, 15 and 20); `None`: none.
        cutmix: `p` of the Beta(p, p) distribution of the area that CutMix takes from another image (arXiv 1905.04899,
            timm's `Mixup`); 0: none. With mixup as well, a coin decides for each batch.
        erasing: How often a box of an image is erased (arXiv 1708.04896), after all else but mixup and CutMix; boxes
            as in timm's `RandomErasing`, 2 % to a third of the image.
        erasing_fill: `"pixel"`: normal noise; `"const"`: the mean.
        erasing_mean: Mean of the noise, of pixels of 0..1; a number, or one for each channel. It and the deviation are
            those that the model normalises by, so that it sees standard normal noise, or zeros.
        erasing_std: Standard deviation of the noise.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.Augmentation(crop="resize", flip=False).mixup  # for digits and text, which no one mirrors
        0.0
    """

    crop: str = "inception"
    min_area: float = 0.05
    flip: bool = True
    mixup: float = 0.0
    randaugment: tuple[int, int] | None = None
    cutmix: float = 0.0
    erasing: float = 0.0
    erasing_fill: str = "pixel"
    erasing_mean: float | tuple[float, ...] = 0.5
    erasing_std: float | tuple[float, ...] = 0.5

    def __post_init__(self):
        """Checks all fields and makes tuples of lists; TypeError or ValueError for a field that is out of its range."""
        check_choice("crop", self.crop, CROPS)
        check_choice("erasing_fill", self.erasing_fill, ("pixel", "const"))
        if not isinstance(self.flip, bool):
            raise TypeError(f"flip must be True or False, but {self.flip!r} was given.")
        for name in ("erasing_mean", "erasing_std"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, (tuple, list)) else value)
        for name in ("min_area", "mixup", "cutmix", "erasing"):
            if not is_number(getattr(self, name)):
                raise TypeError(f"{name} must be a number, but {getattr(self, name)!r} was given.")
        if not 0 < self.min_area <= 1:
            raise ValueError(f"min_area must lie in (0, 1], a share of the image, but {self.min_area} was given.")
        for name, value in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be 0 (none) or the p of Beta(p, p), at most 1, but {value} was given.")
        if not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing must be a share of the images, 0 to 1, but {self.erasing} was given.")
        if self.randaugment is not None:
            given = self.randaugment
            wanted = f"(layers, magnitude), at least 1 layer and a magnitude of 0 to {MAX_MAGNITUDE}, or None"
            message = Message(Code("randaugment"), f" must be {wanted}, but {given!r} was given.")
            if not isinstance(given, (tuple, list)) or [type(n) for n in given] != [int, int]:
                raise TypeError(message)
            if given[0] < 1 or not 0 <= given[1] <= MAX_MAGNITUDE:
                raise ValueError(message)
            object.__setattr__(self, "randaugment", tuple(given))


def is_number(value: Any) -> bool:
    """Whether a field is a plain number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """Brings images to size: by crop, flip and RandAugment in training, or without an augmentation as in evaluation."""

    image_size: tuple[int, int]
    augmentation: Augmentation | None
    resize: str | Pipeline = "squash"
    seed: int = 0
    channels: int = 3

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """The pixels of an image file, `(height, width, channels)`."""
        if self.channels == 3:
            return load_image(path)
        from keras_vit.preprocessing.channels import read_channels

        return read_channels(path, self.channels)

    def __call__(self, pixels: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """An image `(height, width, 3)` in 0..255 of any dtype at the size, float32 or uint8.

        What is random depends on the seed, the epoch and the index of the image.
        """
        if self.augmentation is None:
            return resize_for_evaluation(pixels, self.image_size, self.resize)
        generator = np.random.default_rng([self.seed, IMAGE, epoch, index])
        image = crop_and_flip(pixels, self.image_size, self.augmentation, generator)
        if self.augmentation.randaugment is not None:
            image = augmented(image, self.augmentation, [self.seed, RANDAUGMENT, epoch, index])
        return erased(image, self.augmentation, [self.seed, ERASING, epoch, index])

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The transform of `dataclasses.asdict`, also after a way through JSON."""
        augmentation, resize = fields["augmentation"], fields["resize"]
        augmentation = None if augmentation is None else Augmentation(**augmentation)
        resize = Pipeline(**resize) if isinstance(resize, dict) else resize
        return cls(tuple(fields["image_size"]), augmentation, resize, fields["seed"], fields["channels"])


def augmented(image: np.ndarray, augmentation: Augmentation, seed: list[int]) -> np.ndarray:
    """An image `(height, width, 3)` after RandAugment, uint8; fractions are cut off before, as in big_vision."""
    whole = image if image.dtype == np.uint8 else np.clip(image, 0, 255).astype("uint8")
    layers, magnitude = augmentation.randaugment or (0, 0)
    return randaugment(whole, layers, magnitude, np.random.default_rng(seed))


def erased(image: np.ndarray, augmentation: Augmentation, seed: list[int]) -> np.ndarray:
    """An image `(height, width, channels)` in 0..255, perhaps without what was in a box; then it is float32."""
    generator = np.random.default_rng(seed) if augmentation.erasing else None
    if generator is None or generator.random() >= augmentation.erasing:
        return image
    height, width, channels = image.shape
    for _ in range(ERASING_ATTEMPTS):
        area = generator.uniform(*ERASED_AREA) * height * width
        aspect = ERASED_ASPECT ** generator.uniform(-1, 1)
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = generator.integers(height - rows + 1), generator.integers(width - columns + 1)
            normal = augmentation.erasing_fill == "pixel"
            noise = generator.standard_normal((rows, columns, channels)) if normal else np.zeros(channels)
            image = image.astype("float32")
            values = np.asarray(augmentation.erasing_mean) + np.asarray(augmentation.erasing_std) * noise
            image[top : top + rows, left : left + columns] = 255 * values
            break
    return image


def mixed(
    images: np.ndarray, labels: np.ndarray, augmentation: Augmentation, seed: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """A batch after mixup or CutMix, whichever an augmentation has; of both, one by a coin (timm's `switch_prob`)."""
    generator = np.random.default_rng(seed)
    if augmentation.cutmix and (not augmentation.mixup or generator.random() < 0.5):
        return cutmix(images, labels, augmentation.cutmix, generator)
    return mixup(images, labels, augmentation.mixup, generator) if augmentation.mixup else (images, labels)


def cutmix(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The batch with a box of the image before it put into every image, and labels mixed by its area.

    One box for the whole batch, of a share of the area from Beta(p, p) around a place anywhere; what lies outside the
    image is cut off: timm's `Mixup`. The images are overwritten; labels are float32 rows `(batch, classes)`.
    """
    side, box, area = math.sqrt(1 - generator.beta(p, p)), [], 1.0
    for size in images.shape[1:3]:
        cut, centre = int(size * side), int(generator.integers(size))
        first, end = max(centre - cut // 2, 0), min(centre + (cut + 1) // 2, size)
        box.append(slice(first, end))
        area *= (end - first) / size
    rest = np.float32(area)
    images[:, *box] = np.roll(images[:, *box], 1, axis=0)
    return images, (1 - rest) * labels + rest * np.roll(labels, 1, axis=0)


def mixup(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The batch with every image, and its label, mixed with the one before it (arXiv 1710.09412, as AugReg uses it).

    One weight `a` for the whole batch, drawn from Beta(p, p) and made the larger of `a` and `1 - a`: big_vision's
    `utils.get_mixup`. The float32 images are overwritten; labels are float32 rows `(batch, classes)`.
    """
    drawn = generator.beta(p, p)
    weight = np.float32(max(drawn, 1 - drawn))
    rest = np.float32(1) - weight
    last = images[-1].copy()
    for i in range(len(images) - 1, -1, -1):  # image by image: a whole batch would not stay in a processor's cache
        images[i] *= weight
        images[i] += rest * (images[i - 1] if i else last)
    return images, weight * labels + rest * np.roll(labels, 1, axis=0)


# Crops


def crop_and_flip(
    pixels: np.ndarray, size: tuple[int, int], augmentation: Augmentation, generator: np.random.Generator
) -> np.ndarray:
    """The random crop of a training image at a size, perhaps mirrored: float32 in 0..255, whole for `"random"` only."""
    if augmentation.crop == "inception":
        top, left, height, width = inception_box(*pixels.shape[:2], generator, augmentation.min_area)
        pixels = pixels[top : top + height, left : left + width]
    if augmentation.crop == "random":
        rows, columns = _random_crop(pixels, size, generator)
    else:
        rows, columns = (linear_samples(old, new) for old, new in zip(pixels.shape, size, strict=False))
    if augmentation.flip and generator.random() < 0.5:
        columns = columns.part(FLIPPED)
    image = resample(pixels, rows, columns)
    # big_vision casts its means to uint8. The margin is for means of equal pixels just short of a whole number.
    return np.floor(image + 1e-3) if augmentation.crop == "random" else image


def inception_box(
    height: int, width: int, generator: np.random.Generator, min_area: float = 0.05
) -> tuple[int, int, int, int]:
    """A random box (top, left, height, width) in an image, drawn as `tf.image.sample_distorted_bounding_box` draws it.

    First the aspect ratio (width by height), then the height, uniformly among those with which the box fits, then the
    place. (torchvision draws the area.) Where rounding spoils the area, a height one larger or smaller is tried.
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


def resize_for_evaluation(pixels: np.ndarray, size: tuple[int, int], resize: str | Pipeline = "squash") -> np.ndarray:
    """A test image at the model's size, float32 `(*size, 3)`: what `load_image` returns for a file of these pixels."""
    if isinstance(resize, Pipeline):
        return dataclasses.replace(resize, image_size=size).resized(pixels, pixels.shape[-1])[0]
    return bring_to_size(pixels, size, resize)


def _random_crop(pixels: np.ndarray, size: tuple[int, int], generator: np.random.Generator) -> list[Samples]:
    """The rows and columns of a random crop from the image as big_vision's `resize_small` enlarges it."""
    shape = pixels.shape[:2]
    scale = max(round(side * ENLARGED) / old for side, old in zip(size, shape, strict=True))
    enlarged = [round(old * scale) for old in shape]
    starts = [int(generator.integers(large - side + 1)) for large, side in zip(enlarged, size, strict=True)]
    parts = zip(shape, enlarged, starts, size, strict=True)
    return [area_samples(old, large).part(slice(start, start + side)) for old, large, start, side in parts]
