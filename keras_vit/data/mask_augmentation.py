"""What happens to a picture and its mask alike in training: size, crop and flip; and to the picture's colours.

As in mmsegmentation, whose transforms DINOv2 and DINOv3 train their linear heads with, in this order: `RandomResize`,
`RandomCrop`, `RandomFlip`, `PhotoMetricDistortion`, `Pad`. Colours stay fractions; there they are cut to grey levels.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_vit._arguments import ImageSize, check_choice, pair
from keras_vit.data.augmentation import IMAGE, Augmentation, is_number
from keras_vit.interpolation import FLIPPED, linear_samples, resample, torchvision_resized

CROPS = 10  # how often a crop is drawn again that nearly is of one class
# Fields of `MaskAugmentation` that change colours, and the most that they may be.
COLOURS = {"brightness": 255.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5}

GREY_SHARES = np.array([0.2989, 0.587, 0.114])  # torchvision's shares of red, green and blue
CHANGES = ("brightness", "contrast", "saturation", "hue")


@dataclasses.dataclass(frozen=True)
class MaskAugmentation:
    """How training pictures with masks are changed. `MaskAugmentation()` is what DINOv2 trains its linear head with.

    Each change of colours happens to half of the pictures. Pipelines of other libraries have crops and colours of
    their own, and are left as they are.

    Args:
        scale: The shorter side becomes that of the image size times a number drawn from this range.
        one_class: A crop in which one class has this share of the labelled pixels or more is drawn again, up to ten
            times; 1.0: never.
        flip: Mirror half of the pictures, left to right.
        brightness: What is added to pixels of 0..255, at most.
        contrast: 0.5 multiplies them by 0.5 to 1.5.
        saturation: The same for the saturation of HSV.
        hue: By what share of the circle of colours they turn, at most. 18 of OpenCV's 180 are 0.1.
        fill: What pictures that are smaller than the crop are filled up with, below and right, in 0..255: the mean that
            the model subtracts, a number or one for each channel. Their masks have the label that does not count.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.MaskAugmentation(scale=(1, 3), flip=False).one_class
        0.75
    """

    scale: tuple[float, float] = (0.5, 2.0)
    one_class: float = 0.75
    flip: bool = True
    brightness: float = 32.0
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.1
    fill: float | tuple[float, ...] = (123.675, 116.28, 103.53)

    # What streams ask of an augmentation, and what is not done to masks.
    mixup: ClassVar[float] = 0.0
    cutmix: ClassVar[float] = 0.0
    erasing: ClassVar[float] = 0.0
    randaugment: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Checks all fields and makes tuples of lists; TypeError or ValueError for a field that is out of its range."""
        if not isinstance(self.flip, bool):
            raise TypeError(f"flip must be True or False, but {self.flip!r} was given.")
        for name in ("scale", "fill"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, (tuple, list)) else value)
        fills = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        for name, most in {**COLOURS, "one_class": 1.0}.items():
            _check_between(name, getattr(self, name), most)
        for value in fills:
            _check_between("fill", value, 255.0)
        scale = self.scale if isinstance(self.scale, tuple) else ()
        if len(scale) != 2 or not all(map(is_number, scale)) or not 0 < scale[0] <= scale[1] < np.inf:
            raise ValueError(f"scale must be (least, most) above 0, such as (0.5, 2.0), but {self.scale!r} was given.")

    @property
    def recolours(self) -> bool:
        """Whether it changes colours, which only red, green and blue have."""
        return any(getattr(self, name) for name in COLOURS)


def _check_between(name: str, value: Any, most: float) -> None:
    if not is_number(value) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}, but {value!r} was given.")


PLAIN = MaskAugmentation((1.0, 1.0), 1.0, False, 0.0, 0.0, 0.0, 0.0)  # a picture at size, and a crop where it is longer


@dataclasses.dataclass(frozen=True)
class MaskTransform:
    """Brings a picture and its mask to size in training; in evaluation, without an augmentation, they stay as they are.

    What is random depends on the seed, the epoch and the index of the picture. The mask is the last of the channels.
    """

    image_size: tuple[int, int]
    augmentation: MaskAugmentation | None
    seed: int
    channels: int
    ignore: int

    @classmethod
    def of(
        cls, size: tuple[int, int], augmentation: Any, shuffle: bool, seed: int, channels: int, ignore: int
    ) -> "MaskTransform":
        """The transform of a stream; shuffled pictures without an augmentation are cropped at their size.

        Raises TypeError for an augmentation of images without masks, ValueError for changes of colours that are no red,
        green and blue.
        """
        if augmentation is None and shuffle:
            augmentation = PLAIN
        if isinstance(augmentation, Augmentation):
            raise TypeError(
                "Pictures with masks are changed by a data.MaskAugmentation, as those of the recipes segmentation/..., "
                "but an Augmentation was given: recipe.replace(augmentation=data.MaskAugmentation())."
            )
        if channels != 3 and augmentation is not None and augmentation.recolours:
            plain = ", ".join(f"{name}=0" for name in COLOURS)
            raise ValueError(f"Colours are red, green and blue, but channels={channels}: MaskAugmentation({plain}).")
        return cls(size, augmentation, seed, channels, ignore)

    def __call__(self, pair: tuple[np.ndarray, np.ndarray], epoch: int, index: int) -> np.ndarray:
        """A picture `(height, width, channels)` and its mask `(height, width)` as one float32 array at the size."""
        (image, mask), augmentation = pair, self.augmentation
        generator = np.random.default_rng([self.seed, IMAGE, epoch, index])
        factor = min(self.image_size) * generator.uniform(*augmentation.scale) / min(mask.shape)
        large = [max(1, int(side * factor + 0.5)) for side in mask.shape]
        crop = [min(sides) for sides in zip(large, self.image_size, strict=True)]
        # cv2.INTER_NEAREST, which mmsegmentation resizes masks with
        nearest = [np.arange(new) * old // new for old, new in zip(mask.shape, large, strict=True)]

        def draw() -> tuple[list[slice], np.ndarray]:
            """A crop at random: its rows and columns in the resized picture, and its part of the mask."""
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
        pixels = resample(image, rows, columns)
        if augmentation.recolours:
            pixels = distorted(pixels, augmentation, generator)
        both = np.empty((*self.image_size, self.channels + 1), "float32")
        both[..., :-1], both[..., -1] = augmentation.fill, self.ignore
        both[: crop[0], : crop[1], :-1], both[: crop[0], : crop[1], -1] = pixels, labels
        return both


def distorted(image: np.ndarray, augmentation: MaskAugmentation, generator: np.random.Generator) -> np.ndarray:
    """A picture `(height, width, 3)` in 0..255 with other brightness, contrast, saturation and hue: float32."""

    def chosen() -> bool:
        return generator.random() < 0.5

    def contrasted(image: np.ndarray) -> np.ndarray:
        return np.clip(image * generator.uniform(1 - augmentation.contrast, 1 + augmentation.contrast), 0, 255)

    if chosen():
        image = np.clip(image + generator.uniform(-augmentation.brightness, augmentation.brightness), 0, 255)
    contrast_first = chosen()
    if contrast_first and chosen():
        image = contrasted(image)
    factor = generator.uniform(1 - augmentation.saturation, 1 + augmentation.saturation) if chosen() else 1.0
    turn = generator.uniform(-augmentation.hue, augmentation.hue) if chosen() else 0.0
    if factor != 1 or turn:
        image = recoloured(image, factor, turn)
    if not contrast_first and chosen():
        image = contrasted(image)
    return image.astype("float32")


def recoloured(image: np.ndarray, factor: float, turn: float) -> np.ndarray:
    """Colours `(..., 3)` whose saturation in HSV is multiplied, at most to 1, and whose hue turns by a share of it."""
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
class SegmentAugmentation:
    """How pictures with segments are changed in training (`datasets/transforms.py` of EoMT).

    In this order: colours, mirroring, a size between two scales of that which fits into the crop, black below and to
    the right where the picture is smaller than the crop, and a crop. Masks that leave the crop are dropped; where none
    is left, all is drawn again.

    Args:
        scale: The least and the largest size, in relation to that at which the picture fits into the crop.
        jitter: Whether half of the pictures each get another brightness (times 0.875 to 1.125), contrast and
            saturation (0.5 to 1.5) and hue (up to a twentieth of the circle).
        flip: Mirror half of the pictures, left to right.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> data.SegmentAugmentation(scale=(0.5, 2.0), jitter=True).flip
        True
    """

    scale: tuple[float, float] = (0.1, 2.0)
    jitter: bool = False
    flip: bool = True

    # What streams ask of an augmentation, and what nobody does to masks.
    mixup: ClassVar[float] = 0.0
    cutmix: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        """Checks all fields and makes a tuple of the scales.

        Raises TypeError or ValueError for a field that is out of its range.
        """
        object.__setattr__(self, "scale", tuple(self.scale))
        for name in ("jitter", "flip"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, but {getattr(self, name)!r} was given.")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < np.inf:
            raise ValueError(f"scale must be (least, most) above 0, such as (0.5, 2.0), but {self.scale!r} was given.")

    def draw(self, size: tuple[int, int], image_size: tuple[int, int], rng: np.random.Generator) -> dict[str, Any]:
        """Arguments of `augment_masks` for a picture of a size, at random."""
        colour = self._colours(rng) if self.jitter else []
        flip = self.flip and rng.random() < 0.5
        factor = rng.uniform(*self.scale) * min(image_size[0] / size[0], image_size[1] / size[1])
        new = max(1, int(size[0] * factor)), max(1, int(size[1] * factor))
        top, left = (int(rng.integers(max(side - crop, 0) + 1)) for side, crop in zip(new, image_size, strict=True))
        return {"size": new, "flip": flip, "top": top, "left": left, "colour": colour}

    def _colours(self, rng: np.random.Generator) -> list[tuple[str, float]]:
        """Changes of colours and their factors, in the order of their use, each drawn in half of all cases."""
        ranges = {"brightness": (1 - 32 / 255, 1 + 32 / 255), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}
        ranges["hue"] = (-0.05, 0.05)
        contrast_last = rng.random() < 0.5
        order = ("brightness", "saturation", "hue", "contrast") if contrast_last else CHANGES
        return [(name, float(rng.uniform(*ranges[name]))) for name in order if rng.random() < 0.5]


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
    """A picture and its masks as they are trained on; what is random is given (see `SegmentAugmentation.draw`).

    Args:
        picture: uint8 `(height, width, 3)`.
        targets: `masks` `(T, height, width)`, `labels` `(T,)`, and `crowd` `(T,)` if there are any, which are dropped.
        image_size: Height and width of the crop.
        size: Height and width that the picture is resized to.
        flip: Whether it is mirrored, left to right.
        top: Where the crop begins, in the resized picture.
        left: Likewise.
        colour: `"brightness"`, `"contrast"`, `"saturation"` (factors) and `"hue"` (a share of the circle), in the order
            in which they change.

    Returns:
        uint8 `(*image_size, 3)`; `masks` and `labels` of what has a pixel in the crop.

    Raises:
        ValueError: if a change of colours is unknown.

    Examples:
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": np.array([1])}
        >>> picture, target = data.augment_masks(np.zeros((4, 4, 3), "uint8"), target, 8, size=(6, 6))
        >>> picture.shape, int(target["masks"].sum())
        ((8, 8, 3), 36)
    """
    crop = pair("image_size", image_size)
    masks, labels = np.asarray(targets["masks"], bool), np.asarray(targets["labels"])
    if "crowd" in targets:
        single = ~np.asarray(targets["crowd"], bool)
        masks, labels = masks[single], labels[single]
    for name, factor in colour:
        picture = adjusted(picture, name, factor)
    if flip:
        picture, masks = picture[:, ::-1], masks[:, :, ::-1]
    old = picture.shape[:2]
    picture = torchvision_resized(picture, tuple(size), "bilinear_antialias")
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
    """A uint8 picture with one change of colours, as `torchvision.transforms.v2.functional.adjust_{name}`.

    Raises ValueError for an unknown change.
    """
    check_choice("colour", name, CHANGES)
    values = picture.astype("float64")
    if name == "hue":
        # torchvision makes bytes of fractions by 255.999.
        return (recoloured(values / 255, 1.0, factor) * 255.999).clip(0, 255).astype("uint8")
    other: Any = 0.0
    if name == "contrast":
        other = np.floor(values @ GREY_SHARES).mean()
    elif name == "saturation":
        other = np.floor(values @ GREY_SHARES)[..., None]
    return (factor * values + (1 - factor) * other).clip(0, 255).astype("uint8")
