"""What happens to images after they are read, by kind of target: sizes, crops, flips and random changes, in NumPy.

They are the same on every backend. What is random depends on a seed and the place of the image or the batch alone.
`Augmentation`, and the like for masks, segments and views, say which of them as plain data: a part of every recipe.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from keras_vit._arguments import ImageSize, listing, pair
from keras_vit._options import (
    FROM_0,
    GIVEN,
    Count,
    Hue,
    Limits,
    Number,
    OneOf,
    Options,
    Pair,
    Part,
    PerChannel,
    Positive,
    Several,
    Share,
    UpTo,
    Whole,
    checked,
    option,
)
from keras_vit.data.random_operations import (
    CHANGES,
    MAX_MAGNITUDE,
    adjusted,
    crop_box,
    erased,
    inception_box,
    randaugment,
    recoloured,
)
from keras_vit.interpolation import (
    FLIPPED,
    Samples,
    area_samples,
    blurred,
    linear_samples,
    resample,
    resized,
)
from keras_vit.preprocessing import Pipeline, resize_and_crop

CROPS = ("inception", "random", "resize")

# What the first number of a random seed says it is for, so that no two uses share their numbers.
ORDER, IMAGE, RANDAUGMENT, MIXUP, HOLDOUT, ERASING = range(6)

ENLARGED = 7 / 6  # the side that a random crop is cut from, per side of the crop: 448 to 384

REDRAWN = 10  # how often a crop of a mask is drawn again that nearly is of one class
TRIES = 100  # how often an augmentation is drawn that leaves no segment
SIGMA, THRESHOLD = (0.1, 2.0), 128  # of a view's blur, in pixels; above which solarized pixels are inverted
_LOCAL_SHARE = 96 / 224  # side of local views, per side of global ones
TARGET_PARTS = ("masks", "boxes", "labels", "crowd", "areas")  # of dicts that are targets themselves
COCO_PARTS = {"iscrowd": "crowd", "area": "areas"}  # what torchvision, torchmetrics and pycocotools call them


def target_parts(target: Mapping[str, Any], where: str, *more: str) -> dict[str, Any]:
    """Returns a target by the names of `TARGET_PARTS`, without `image_id`; ValueError for a part twice or unknown."""
    found = {COCO_PARTS.get(name, name): value for name, value in target.items() if name != "image_id"}
    known = list(dict.fromkeys((*TARGET_PARTS, *more)))
    unknown = [name for name in found if name not in known]
    if unknown or len(found) + ("image_id" in target) < len(target):
        wanted = f"only {listing(known, 9)}, each once (iscrowd and area are crowd and areas)"
        raise ValueError(f"{where} must have {wanted}, but has {listing([*target], 9)}.")
    return found


Draw = Callable[[int], np.random.Generator]


def draws(seed: int, *place: int) -> Draw:
    """Returns the generators of an example, by their use (`IMAGE`, ...), drawn from the seed and (epoch, index)."""
    return functools.cache(lambda use: np.random.default_rng([seed, use, *place]))


@dataclasses.dataclass(frozen=True)
class Transform:
    """What a stream makes of each picture and its target. As it stands: those to evaluate pixels on, which stay.

    Args:
        image_size: (height, width) of the pictures in a training batch.
        augmentation: The `PictureAugmentation` that it carries out; None for pictures to evaluate on.
        seed: Of the stream.
        channels: Channels of the pictures.

    Examples:
        >>> data.Transform((16, 16))(pixels[0], None, None)[0].shape
        (24, 24, 3)
    """

    image_size: tuple[int, int]
    augmentation: Any = None
    seed: int = 0
    channels: int = 3

    any_size: ClassVar[bool] = False  # whether pictures of a pipeline may have other sizes than `image_size`

    @property
    def mixes(self) -> bool:
        return False

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of a picture in a batch; None where each keeps its own."""
        return None if self.augmentation is None else (*self.image_size, self.channels)

    def __call__(self, picture: np.ndarray, target: Any, draw: Draw) -> tuple[np.ndarray, Any] | None:
        """Returns a picture and its target for a batch; None if nothing is left of the target."""
        return picture, target

    def finished(self, image: np.ndarray, draw: Draw) -> np.ndarray:
        """Returns an image of a pipeline, which crops by itself, with what the augmentation adds to it."""
        return image


@dataclasses.dataclass(frozen=True)
class ImageTransform(Transform):
    """Brings images to size: by crop, flip and RandAugment in training, or without an augmentation as in evaluation."""

    resize: str | Pipeline = "squash"

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.image_size, self.channels

    @property
    def mixes(self) -> bool:
        return self.augmentation is not None and bool(self.augmentation.mixup or self.augmentation.cutmix)

    def __call__(self, picture: np.ndarray, target: Any, draw: Draw) -> tuple[np.ndarray, Any]:
        if self.augmentation is None:
            return resize_for_evaluation(picture, self.image_size, self.resize), target
        return self.finished(crop_and_flip(picture, self.image_size, self.augmentation, draw(IMAGE)), draw), target

    def finished(self, image: np.ndarray, draw: Draw) -> np.ndarray:
        # RandAugment returns uint8 and cuts fractions off before, as big_vision does; an erased box makes it float32.
        augmentation = self.augmentation
        if augmentation.randaugment is not None:
            whole = image if image.dtype == np.uint8 else np.clip(image, 0, 255).astype("uint8")
            image = randaugment(whole, *augmentation.randaugment, draw(RANDAUGMENT))
        return erased(image, augmentation, draw(ERASING)) if augmentation.erasing else image


class PictureAugmentation(Options):
    """The base of frozen dataclasses that say how training pictures are changed, by a `Transform`.

    Examples:
        >>> issubclass(data.BoxAugmentation, data.PictureAugmentation), data.Augmentation.transform.__name__
        (True, 'ImageTransform')
    """

    transform: ClassVar[type[Transform]]
    per_channel: ClassVar[tuple[str, ...]] = ()  # fields that may have a value for each channel

    @property
    def for_rgb(self) -> str:
        """What needs three channels, and what to do without it; empty for nothing."""
        return f"{type(self).__name__} needs RGB images with 3 channels. Leave it out"

    def check_channels(self, channels: int) -> None:
        """Raises ValueError for options of RGB pictures alone, and for values for another number of channels."""
        if channels != 3 and self.for_rgb:
            raise ValueError(f"{self.for_rgb}, because channels={channels}.")
        for name in self.per_channel:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) not in (1, channels):
                raise ValueError(f"{name} must be one number, or one for each of {channels} channels, not {value}.")


def _layers_and_magnitude(name: str, value: Any) -> tuple[int, int]:
    layers, magnitude = Several(Whole(0), 2)(name, value)
    if layers < 1 or magnitude > MAX_MAGNITUDE:
        wanted = f"(layers, magnitude), at least 1 layer and a magnitude of 0 to {MAX_MAGNITUDE}, or None"
        raise ValueError(f"{name} must be {wanted}, but {value!r} was given.")
    return layers, magnitude


_ERASED = {"erasing": GIVEN}
OF_CLASSES = {"target": ("class", "multilabel")}  # what mixes images has to mix their labels, too


@dataclasses.dataclass(frozen=True)
class Augmentation(PictureAugmentation):
    """Augmentation of training images. The defaults are the papers' settings for fine-tuning.

    Args:
        crop: `"inception"` cuts out a random box of `min_area` to all of the image, of aspect 3/4 to 4/3, and scales it
            to size (vit_jax, `input_pipeline.py`). `"random"` scales the image, keeping its aspect ratio, until it
            covers 7/6 of the size, and cuts out a random part (big_vision, `configs/transfer.py`). `"resize"` scales
            the whole image to size.
        min_area: The least share of the image's area that the inception crop keeps, in (0, 1].
        flip: Whether to mirror half of the images, left to right.
        mixup: `p` of mixup's Beta(p, p) distribution, at most 1; 0: no mixup.
        randaugment: `(layers, magnitude)` of RandAugment, with magnitudes from 0 to 30 (AugReg: 0, 10, 15 and 20).
        cutmix: `p` of the Beta(p, p) distribution of the area that CutMix takes from another image (arXiv 1905.04899),
            at most 1; 0: no CutMix. With mixup as well, one of the two is drawn for each batch.
        erasing: Probability that a box of an image is erased (arXiv 1708.04896), before mixup and CutMix. Boxes are as
            in timm's `RandomErasing`, 2 % to a third of the image.
        erasing_fill: `"pixel"`: normal noise; `"const"`: the mean.
        erasing_mean: Mean of the noise for pixels in 0..1; a number, or one for each channel, such as the model's own.
        erasing_std: Standard deviation of the noise, likewise.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.Augmentation(crop="resize", flip=False).mixup  # for digits and text
        0.0
    """

    crop: Annotated[str, OneOf(CROPS)] = "inception"
    min_area: Part = option(0.05, when={"crop": ("inception",)})
    flip: bool = True
    mixup: Share = option(0.0, when=OF_CLASSES)
    randaugment: Annotated[tuple[int, int], _layers_and_magnitude] | None = None
    cutmix: Share = option(0.0, when=OF_CLASSES)
    erasing: Share = 0.0
    erasing_fill: Annotated[str, OneOf(("pixel", "const"))] = option("pixel", when=_ERASED)
    erasing_mean: Annotated[float | tuple[float, ...], PerChannel(Number())] = option(0.5, when=_ERASED)
    erasing_std: Annotated[float | tuple[float, ...], PerChannel(FROM_0)] = option(0.5, when=_ERASED)

    transform: ClassVar[type[Transform]] = ImageTransform

    per_channel: ClassVar[tuple[str, ...]] = ("erasing_mean", "erasing_std")

    @property
    def for_rgb(self) -> str:
        return "" if self.randaugment is None else "randaugment needs RGB images. Leave randaugment out"


def resize_for_evaluation(pixels: np.ndarray, size: tuple[int, int], resize: str | Pipeline = "squash") -> np.ndarray:
    """A test image `(height, width, channels)` at a size, float32: what `load_image` returns for such a file."""
    if isinstance(resize, Pipeline):
        return dataclasses.replace(resize, image_size=size).resized(pixels, pixels.shape[-1])[0]
    return resize_and_crop(pixels, size, resize)


# Crops


def crop_and_flip(
    pixels: np.ndarray, size: tuple[int, int], augmentation: Augmentation, generator: np.random.Generator
) -> np.ndarray:
    """Returns the random crop of a training image, perhaps mirrored: float32 `(*size, channels)` in 0..255."""
    if augmentation.crop == "inception":
        top, left, height, width = inception_box(*pixels.shape[:2], generator, augmentation.min_area)
        pixels = pixels[top : top + height, left : left + width]
    if augmentation.crop == "random":
        rows, columns = _random_crop(pixels.shape[:2], size, generator)
    else:
        rows, columns = (linear_samples(old, new) for old, new in zip(pixels.shape, size, strict=False))
    if augmentation.flip and generator.random() < 0.5:
        columns = columns.part(FLIPPED)
    image = resample(pixels, rows, columns)
    # big_vision casts its means to uint8. The margin is for means of equal pixels just short of a whole number.
    return np.floor(image + 1e-3) if augmentation.crop == "random" else image


def _random_crop(shape: tuple[int, ...], size: tuple[int, int], generator: np.random.Generator) -> list[Samples]:
    """Returns the rows and columns of a random crop of a size from an image that `resize_small` has enlarged."""
    # `shape` is the image's height and width; big_vision's function scales it until it covers 7/6 of the size.
    scale = max(round(side * ENLARGED) / old for side, old in zip(size, shape, strict=True))
    enlarged = [round(old * scale) for old in shape]
    starts = [int(generator.integers(large - side + 1)) for large, side in zip(enlarged, size, strict=True)]
    parts = zip(shape, enlarged, starts, size, strict=True)
    return [area_samples(old, large).part(slice(start, start + side)) for old, large, start, side in parts]


# Pictures with a mask
#
# `MaskAugmentation` is mmsegmentation's, whose transforms DINOv2 and DINOv3 train their linear heads with, in this
# order: `RandomResize`, `RandomCrop`, `RandomFlip`, `PhotoMetricDistortion`, `Pad`. Colours stay fractions; there they
# are cut to grey levels.


@dataclasses.dataclass(frozen=True)
class MaskTransform(Transform):
    """Brings a picture and its mask to size in training."""

    ignore: int = 255

    def __call__(self, picture: np.ndarray, target: np.ndarray, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
        """Returns a crop, float32, and its mask, int32 of the same size, of a picture and a mask of integers."""
        mask, augmentation, generator = target, self.augmentation, draw(IMAGE)
        factor = min(self.image_size) * generator.uniform(*augmentation.scale) / min(mask.shape)
        large = [max(1, int(side * factor + 0.5)) for side in mask.shape]
        crop = [min(sides) for sides in zip(large, self.image_size, strict=True)]
        # cv2.INTER_NEAREST, which mmsegmentation resizes masks with
        nearest = [np.arange(new) * old // new for old, new in zip(mask.shape, large, strict=True)]

        def draw() -> tuple[list[slice], np.ndarray]:
            starts = [int(generator.integers(new - side + 1)) for new, side in zip(large, crop, strict=True)]
            box = [slice(start, start + side) for start, side in zip(starts, crop, strict=True)]
            return box, mask[np.ix_(nearest[0][box[0]], nearest[1][box[1]])]

        box, labels = draw()
        if augmentation.one_class < 1:
            for _ in range(REDRAWN):
                counts = np.unique(labels[labels != self.ignore], return_counts=True)[1]
                if len(counts) > 1 and counts.max() < augmentation.one_class * counts.sum():
                    break
                box, labels = draw()
        samples = [linear_samples(old, new) for old, new in zip(mask.shape, large, strict=True)]
        rows, columns = (along.part(place) for along, place in zip(samples, box, strict=True))
        if augmentation.flip and generator.random() < 0.5:
            columns, labels = columns.part(FLIPPED), labels[:, FLIPPED]
        pixels = resample(picture, rows, columns)
        if augmentation.for_rgb:
            pixels = distorted(pixels, augmentation, generator)
        image, result = np.empty((*self.image_size, self.channels), "float32"), np.empty(self.image_size, "int32")
        image[...], result[...] = augmentation.fill, self.ignore
        image[: crop[0], : crop[1]], result[: crop[0], : crop[1]] = pixels, labels
        return image, result


@dataclasses.dataclass(frozen=True)
class MaskAugmentation(PictureAugmentation):
    """How training pictures with masks are changed. The defaults are DINOv2's settings for its linear head.

    Each change of colours happens to half of the pictures. Batches of other libraries' pipelines are not changed.

    Args:
        scale: (least, largest) factor. The shorter side becomes the shorter side of `image_size` times a random factor.
        one_class: A crop in which one class has this share of the labelled pixels or more is drawn again, up to ten
            times; 1.0: never.
        flip: Whether to mirror half of the pictures, left to right.
        brightness: The largest number that is added to or subtracted from pixels of 0..255.
        contrast: The largest relative change: 0.5 multiplies pixels by 0.5 to 1.5.
        saturation: The largest relative change of the saturation in HSV.
        hue: The largest turn of the hue, as a share of the circle of colours: 0.1 is 18 of OpenCV's 180.
        fill: Pixel value in 0..255, or one for each channel, that pads small pictures below and to the right: the mean
            that the model subtracts. Their masks are padded with the ignored label.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.MaskAugmentation(scale=(1, 3), flip=False).one_class
        0.75
    """

    scale: Annotated[tuple[float, float], Limits()] = (0.5, 2.0)
    one_class: Share = 0.75
    flip: bool = True
    brightness: Annotated[float, UpTo(255)] = 32.0
    contrast: Share = 0.5
    saturation: Share = 0.5
    hue: Hue = 0.1
    fill: Annotated[float | tuple[float, ...], PerChannel(UpTo(255))] = (123.675, 116.28, 103.53)

    transform: ClassVar[type[Transform]] = MaskTransform

    per_channel: ClassVar[tuple[str, ...]] = ("fill",)

    @property
    def for_rgb(self) -> str:
        plain = ", ".join(f"{name}=0" for name in (*CHANGES, "fill"))
        recolours = any(getattr(self, name) for name in CHANGES)
        return f"Colour changes need RGB images. Pass MaskAugmentation({plain})" if recolours else ""


def distorted(image: np.ndarray, augmentation: MaskAugmentation, generator: np.random.Generator) -> np.ndarray:
    """A picture `(height, width, 3)` in 0..255 with random colours, float32: each change in half of all cases."""

    def drawn(change: str, middle: float) -> float | None:
        """Returns an amount around `middle`, at most the augmentation's away; None in half of all cases."""
        most = getattr(augmentation, change)
        return generator.uniform(middle - most, middle + most) if generator.random() < 0.5 else None

    def contrasted(image: np.ndarray) -> np.ndarray:
        contrast = drawn("contrast", 1.0)
        return image if contrast is None else np.clip(image * contrast, 0, 255)

    brightness = drawn("brightness", 0.0)
    if brightness is not None:
        image = np.clip(image + brightness, 0, 255)
    contrast_first = generator.random() < 0.5
    if contrast_first:
        image = contrasted(image)
    saturation, hue = drawn("saturation", 1.0), drawn("hue", 0.0)
    factor, turn = 1.0 if saturation is None else saturation, hue or 0.0
    if factor != 1 or turn:
        image = recoloured(image, factor, turn)
    if not contrast_first:
        image = contrasted(image)
    return image.astype("float32")


# Pictures with segments, as EoMT's authors change them


@dataclasses.dataclass(frozen=True)
class SegmentTransform(Transform):
    """Crops a picture and the masks of its segments in training, as often as it takes until one is left."""

    def __call__(self, picture: np.ndarray, target: Any, draw: Draw) -> tuple[np.ndarray, Any] | None:
        for _ in range(TRIES if target["masks"].any() else 0):
            drawn = self.augmentation.draw(picture.shape[:2], self.image_size, draw(IMAGE))
            crop, found = augment_masks(picture, target, self.image_size, **drawn)
            if len(found["labels"]):
                return crop.astype("float32"), found
        return None


@dataclasses.dataclass(frozen=True)
class SegmentAugmentation(PictureAugmentation):
    """How pictures with segments are changed in training (`datasets/transforms.py` of EoMT).

    In this order: colours, mirroring, resizing, padding with black below and to the right if the picture is smaller
    than the crop, and a crop. Masks outside the crop are dropped. If no mask is left, everything is drawn again.

    Args:
        scale: Smallest and largest size, relative to the size at which the picture fits into the crop.
        jitter: Whether to change brightness (times 0.875 to 1.125), contrast and saturation (times 0.5 to 1.5) and hue
            (up to a twentieth of the circle), each in half of the pictures.
        flip: Whether to mirror half of the pictures, left to right.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.SegmentAugmentation(scale=(0.5, 2.0), jitter=True).flip
        True
    """

    scale: Annotated[tuple[float, float], Limits()] = (0.1, 2.0)
    jitter: bool = False
    flip: bool = True

    transform: ClassVar[type[Transform]] = SegmentTransform

    def draw(self, size: tuple[int, int], image_size: tuple[int, int], rng: np.random.Generator) -> dict[str, Any]:
        """Returns random keyword arguments for `augment_masks`, as a dict.

        `size` is the picture's (height, width). `image_size` is the crop's, whose position is uniform.
        """
        colour = self._colours(rng) if self.jitter else []
        flip = self.flip and rng.random() < 0.5
        factor = rng.uniform(*self.scale) * min(image_size[0] / size[0], image_size[1] / size[1])
        new = max(1, int(size[0] * factor)), max(1, int(size[1] * factor))
        top, left = (int(rng.integers(max(side - crop, 0) + 1)) for side, crop in zip(new, image_size, strict=True))
        return {"size": new, "flip": flip, "top": top, "left": left, "colour": colour}

    def _colours(self, rng: np.random.Generator) -> list[tuple[str, float]]:
        ranges = {"brightness": (1 - 32 / 255, 1 + 32 / 255), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}
        ranges["hue"] = (-0.05, 0.05)
        contrast_last = rng.random() < 0.5
        order = ("brightness", "saturation", "hue", "contrast") if contrast_last else CHANGES
        return [(name, float(rng.uniform(*ranges[name]))) for name in order if rng.random() < 0.5]


@checked
def augment_masks(
    picture: np.ndarray,
    targets: Mapping[str, Any],
    image_size: ImageSize,
    *,
    size: Pair,
    flip: bool = False,
    top: Count = 0,
    left: Count = 0,
    colour: Sequence[tuple[str, float]] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Applies the changes that `SegmentAugmentation.draw` returned to a picture and its masks.

    Args:
        picture: uint8 `(height, width, 3)`.
        targets: `masks` `(T, height, width)`, `labels` `(T,)`, and optionally `crowd` `(T,)`. Crowds are dropped.
        image_size: Height and width of the crop.
        size: Height and width that the picture is resized to.
        flip: Whether to mirror the picture, left to right.
        top: First row of the crop in the resized picture.
        left: First column of the crop in the resized picture.
        colour: Pairs of `"brightness"`, `"contrast"` or `"saturation"` and a factor, or of `"hue"` and a share of the
            circle of colours, in the order in which they are applied.

    Returns:
        `(picture, targets)`: uint8 `(*image_size, 3)`, and the boolean `masks` and int32 `labels` of its segments.

    Raises:
        TypeError, ValueError, KeyError: if an argument is wrong, or the targets lack `masks` or `labels`.

    Examples:
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": np.array([1])}
        >>> data.augment_masks(np.zeros((4, 4, 3), "uint8"), target, 8, size=(6, 6))[0].shape
        (8, 8, 3)
    """
    crop, targets = pair("image_size", image_size), target_parts(targets, "targets")
    masks, labels = np.asarray(targets["masks"], bool), np.asarray(targets["labels"])
    if picture.dtype != np.uint8:
        raise TypeError(f"picture must be uint8 (height, width, 3), but its dtype is {picture.dtype}.")
    if masks.shape[1:] != picture.shape[:2]:
        raise ValueError(f"masks must have the picture's size, {picture.shape[:2]}, but their shape is {masks.shape}.")
    if "crowd" in targets:
        single = ~np.asarray(targets["crowd"], bool)
        masks, labels = masks[single], labels[single]
    for name, factor in colour:
        picture = adjusted(picture, name, factor)
    if flip:
        picture, masks = picture[:, ::-1], masks[:, :, ::-1]
    old = picture.shape[:2]
    picture = resized(picture, size, "torchvision_bilinear").astype("uint8")
    places = [np.arange(new) * before // new for before, new in zip(old, size, strict=True)]
    rows, columns = places[0][top : top + crop[0]], places[1][left : left + crop[1]]
    below, beside = crop[0] - len(rows), crop[1] - len(columns)
    picture = picture[top : top + crop[0], left : left + crop[1]]
    masks = masks[:, rows[:, None], columns]
    picture = np.pad(picture, ((0, below), (0, beside), (0, 0)))
    masks = np.pad(masks, ((0, 0), (0, below), (0, beside)))
    left_over = masks.any((1, 2))
    return picture, {"masks": masks[left_over], "labels": labels[left_over].astype("int32")}


# Several views of a picture without a label, for self-supervised training


@dataclasses.dataclass(frozen=True)
class ViewTransform(Transform):
    """Makes the views of a picture, one after another as rows of pixels; `unpack` takes a batch of these apart.

    `image_size` is that of global views. Where it is not given, the size of local ones depends on the model's patches:
    `stream.transform` gets it before the first batch.
    """

    local_size: tuple[int, int] | None = None

    any_size: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The pixels of all views of a picture, and three channels."""
        views, local = self.augmentation, math.prod(self.local_size or self.image_size)
        return views.global_views * math.prod(self.image_size) + views.local_views * local, 3

    def __call__(self, picture: np.ndarray, target: Any, draw: Draw) -> tuple[np.ndarray, Any]:
        return self.finished(picture, draw), target

    def finished(self, image: np.ndarray, draw: Draw) -> np.ndarray:
        generator, views = draw(IMAGE), self.augmentation
        if image.dtype != np.uint8:
            image = np.rint(image).clip(0, 255).astype("uint8")
        made = []
        for number in range(views.global_views):
            solarize = views.solarize if number == 1 else 0.0
            made.append(view(image, self.image_size, views.global_area, views, solarize, generator))
        for _ in range(views.local_views):
            made.append(view(image, self.local_size or self.image_size, views.local_area, views, 0.0, generator))
        return np.concatenate([one.reshape(-1, 3) for one in made]).astype("float32")

    def unpack(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the global and the local views, each `(batch, views, height, width, 3)`, of a batch of calls."""
        views, local = self.augmentation, self.local_size or self.image_size
        end = views.global_views * math.prod(self.image_size)
        return (
            batch[:, :end].reshape(len(batch), views.global_views, *self.image_size, 3),
            batch[:, end:].reshape(len(batch), views.local_views, *local, 3),
        )


@dataclasses.dataclass(frozen=True)
class ViewAugmentation(PictureAugmentation):
    """Random views of a picture for self-supervised training (multi-crop); the defaults are lightly's for LeJEPA.

    Args:
        global_views: Number of large crops, which come first and are scaled to the image size of the model.
        local_views: Number of small crops.
        local_size: Size of local views, an integer or (height, width); None: 3/7 of the image size, rounded to whole
            patches (96 for 224).
        global_area: (least, largest) share of the picture that a global view shows.
        local_area: (least, largest) share of the picture that a local view shows.
        flip: Whether to mirror half of the views, left to right; not for digits and text.
        jitter: Share of the views whose brightness, contrast, saturation and hue change.
        brightness: Largest relative change: 0.4 multiplies pixels by 0.6 to 1.4.
        contrast: Largest relative change of the contrast.
        saturation: Largest relative change of the saturation.
        hue: Largest turn of the hue, as a share of the circle of colours.
        grey: Share of the views that become grey.
        blur: Share of the views that are blurred, with a standard deviation of 0.1 to 2 pixels.
        solarize: Share of the second global views whose bright pixels are inverted.

    Raises TypeError or ValueError if a field is out of its range.

    Examples:
        >>> data.ViewAugmentation(local_views=4, flip=False).global_views
        2
    """

    global_views: Positive = 2
    local_views: Count = 6
    local_size: Pair | None = None
    global_area: Annotated[tuple[float, float], Limits(1)] = (0.3, 1.0)
    local_area: Annotated[tuple[float, float], Limits(1)] = (0.05, 0.3)
    flip: bool = True
    jitter: Share = 0.8
    brightness: Share = 0.4
    contrast: Share = 0.4
    saturation: Share = 0.2
    hue: Hue = 0.1
    grey: Share = 0.2
    blur: Share = 0.5
    solarize: Share = 0.2

    transform: ClassVar[type[Transform]] = ViewTransform

    def local_size_for(self, image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Returns the height and width of local views for a model; ValueError if its patches do not divide them.

        `image_size` and `patch` are the (height, width) of its images and patches.
        """
        if self.local_size is None:
            sides = zip(image_size, patch, strict=True)
            rows, columns = (max(1, round(side * _LOCAL_SHARE / unit)) * unit for side, unit in sides)
            return rows, columns
        size = self.local_size
        if size[0] % patch[0] or size[1] % patch[1]:
            raise ValueError(f"local_size must be None or a multiple of the patch size {patch}, but {size} was given.")
        return size


def view(
    picture: np.ndarray,
    size: tuple[int, int],
    area: tuple[float, float],
    views: ViewAugmentation,
    solarize: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """Returns a view of a uint8 picture `(height, width, 3)`: a random crop at a size, with other colours, uint8."""
    top, left, height, width = crop_box(*picture.shape[:2], area, generator)
    crop = picture[top : top + height, left : left + width]
    image = resized(crop, size, "torchvision_bilinear").astype("uint8")
    if views.flip and generator.random() < 0.5:
        image = image[:, ::-1]
    if generator.random() < views.jitter:
        for number in generator.permutation(len(CHANGES)):
            name = CHANGES[number]
            most, middle = getattr(views, name), 0.0 if name == "hue" else 1.0
            if most:
                image = adjusted(image, name, float(generator.uniform(middle - most, middle + most)))
    if generator.random() < views.grey:
        image = adjusted(image, "saturation", 0.0)
    if generator.random() < views.blur:
        sigma = float(generator.uniform(*SIGMA))
        soft = blurred(blurred(image.astype("float32"), 0, sigma, "edge"), 1, sigma, "edge")
        image = np.rint(soft).clip(0, 255).astype("uint8")
    if generator.random() < solarize:
        image = np.where(image >= THRESHOLD, 255 - image, image)
    return image
