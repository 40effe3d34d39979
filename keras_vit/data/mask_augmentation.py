"""What happens to a picture and its mask, or the masks of its segments, in training: size, crop, flip, and colours.

`MaskAugmentation` is mmsegmentation's, whose transforms DINOv2 and DINOv3 train their linear heads with, in this order:
`RandomResize`, `RandomCrop`, `RandomFlip`, `PhotoMetricDistortion`, `Pad`. Colours stay fractions; there they are cut
to grey levels. `SegmentAugmentation` is that of EoMT's authors.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from keras_vit._arguments import ImageSize, check_choice, pair, whole_number
from keras_vit._options import Hue, Limits, PerChannel, Share, UpTo
from keras_vit.data.augmentation import IMAGE, Draw, PictureAugmentation, Transform
from keras_vit.interpolation import FLIPPED, linear_samples, resample, torchvision_resized

CROPS = 10  # how often a crop is drawn again that nearly is of one class
TRIES = 100  # how often an augmentation is drawn that leaves no segment
CHANGES = ("brightness", "contrast", "saturation", "hue")  # of colours, fields of `MaskAugmentation`
_GREY_SHARES = np.array([0.2989, 0.587, 0.114])  # torchvision's, of red, green and blue


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
            """Returns a random crop: its rows and columns in the resized picture, and its part of the mask."""
            starts = [int(generator.integers(new - side + 1)) for new, side in zip(large, crop, strict=True)]
            box = [slice(start, start + side) for start, side in zip(starts, crop, strict=True)]
            return box, mask[np.ix_(nearest[0][box[0]], nearest[1][box[1]])]

        box, labels = draw()
        if augmentation.one_class < 1:
            for _ in range(CROPS):
                counts = np.unique(labels[labels != self.ignore], return_counts=True)[1]
                if len(counts) > 1 and counts.max() < augmentation.one_class * counts.sum():
                    break
                box, labels = draw()
        samples = [linear_samples(old, new) for old, new in zip(mask.shape, large, strict=True)]
        rows, columns = (along.part(place) for along, place in zip(samples, box, strict=True))
        if augmentation.flip and generator.random() < 0.5:
            columns, labels = columns.part(FLIPPED), labels[:, FLIPPED]
        pixels = resample(picture, rows, columns)
        if augmentation.recolours:
            pixels = distorted(pixels, augmentation, generator)
        image, result = np.empty(self.shape, "float32"), np.full(self.image_size, self.ignore, "int32")
        image[...] = augmentation.fill
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

    targets: ClassVar[tuple[str, ...]] = ("mask",)
    transform: ClassVar[type[Transform]] = MaskTransform

    @property
    def recolours(self) -> bool:
        """Whether this augmentation changes colours, which needs RGB images."""
        return any(getattr(self, name) for name in CHANGES)

    def check_channels(self, channels: int) -> None:
        """Raises ValueError if `channels` is not 3 and colours change, or if `fill` does not have `channels` values."""
        if channels != 3 and self.recolours:
            plain = ", ".join(f"{name}=0" for name in (*CHANGES, "fill"))
            raise ValueError(
                f"Colour changes need RGB images, but channels={channels}. Pass MaskAugmentation({plain})."
            )
        if isinstance(self.fill, tuple) and len(self.fill) not in (1, channels):
            raise ValueError(f"fill must be one number, or one for each of {channels} channels, not {self.fill}.")


PLAIN = MaskAugmentation((1.0, 1.0), 1.0, False, 0.0, 0.0, 0.0, 0.0)  # a picture at size, and a crop where it is longer


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


def recoloured(image: np.ndarray, factor: float, turn: float) -> np.ndarray:
    """Colours `(..., 3)`, floats from 0, of other saturation and hue in HSV, as a new array; the value stays."""
    value, chroma = image.max(-1), image.max(-1) - image.min(-1)
    red, green, blue = np.moveaxis(image, -1, 0)
    safe = np.where(chroma > 0, chroma, 1)
    hue = np.select(  # in sixths of the circle
        [value == red, value == green], [(green - blue) / safe, (blue - red) / safe + 2], (red - green) / safe + 4
    )
    hue, chroma = (hue + 6 * turn) % 6, np.minimum(chroma * factor, value)
    sixths = (np.array([5, 3, 1]) + hue[..., None]) % 6  # red, green and blue stand thirds of the circle apart
    return value[..., None] - chroma[..., None] * np.clip(np.minimum(sixths, 4 - sixths), 0, 1)


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

    targets: ClassVar[tuple[str, ...]] = ("segments",)
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
        """Returns changes of colours and their amounts, in the order of their use, each in half of all cases."""
        ranges = {"brightness": (1 - 32 / 255, 1 + 32 / 255), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}
        ranges["hue"] = (-0.05, 0.05)
        contrast_last = rng.random() < 0.5
        order = ("brightness", "saturation", "hue", "contrast") if contrast_last else CHANGES
        return [(name, float(rng.uniform(*ranges[name]))) for name in order if rng.random() < 0.5]


PLAIN_SEGMENTS = SegmentAugmentation((1.0, 1.0), flip=False)


def augment_masks(
    picture: np.ndarray,
    targets: Mapping[str, Any],
    image_size: ImageSize,
    *,
    size: tuple[int, int],
    flip: bool = False,
    top: int = 0,
    left: int = 0,
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
        `(picture, targets)`: uint8 `(*image_size, 3)`, and a dict of boolean `masks` and int32 `labels` of the segments
        that have a pixel in the crop.

    Raises:
        ValueError: if `colour` has an unknown name, a size is not positive, `top` or `left` is negative, or the masks
            are not as large as the picture.
        TypeError: if a size is not an integer or pair, or the picture is not uint8.
        KeyError: if the targets lack masks or labels.

    Examples:
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": np.array([1])}
        >>> picture, target = data.augment_masks(np.zeros((4, 4, 3), "uint8"), target, 8, size=(6, 6))
        >>> picture.shape, int(target["masks"].sum())
        ((8, 8, 3), 36)
    """
    crop, size = pair("image_size", image_size), pair("size", size)
    top, left = whole_number("top", top, 0), whole_number("left", left, 0)
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
    picture = torchvision_resized(picture, size, "bilinear_antialias")
    places = [np.arange(new) * before // new for before, new in zip(old, size, strict=True)]
    rows, columns = places[0][top : top + crop[0]], places[1][left : left + crop[1]]
    below, beside = crop[0] - len(rows), crop[1] - len(columns)
    picture = picture[top : top + crop[0], left : left + crop[1]]
    masks = masks[:, rows[:, None], columns]
    picture = np.pad(picture, ((0, below), (0, beside), (0, 0)))
    masks = np.pad(masks, ((0, 0), (0, below), (0, beside)))
    left_over = masks.any((1, 2))
    return picture, {"masks": masks[left_over], "labels": labels[left_over].astype("int32")}


def adjusted(picture: np.ndarray, name: str, factor: float) -> np.ndarray:
    """A new uint8 picture `(height, width, 3)` with other colours, as torchvision's `functional.adjust_{name}`."""
    check_choice("colour", name, CHANGES)
    values = picture.astype("float64")
    if name == "hue":
        # torchvision makes bytes of fractions by 255.999.
        return (recoloured(values / 255, 1.0, factor) * 255.999).clip(0, 255).astype("uint8")
    other: Any = 0.0
    if name == "contrast":
        other = np.floor(values @ _GREY_SHARES).mean()
    elif name == "saturation":
        other = np.floor(values @ _GREY_SHARES)[..., None]
    return (factor * values + (1 - factor) * other).clip(0, 255).astype("uint8")
