"""What happens to pictures and the masks of their segments alike in training, as EoMT's authors do it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_vit._arguments import ImageSize, check_choice, pair
from keras_vit.data.mask_augmentation import recoloured
from keras_vit.interpolation import torchvision_resized

_GREY = np.array([0.2989, 0.587, 0.114])  # torchvision's shares of red, green and blue
CHANGES = ("brightness", "contrast", "saturation", "hue")


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
        other = np.floor(values @ _GREY).mean()
    elif name == "saturation":
        other = np.floor(values @ _GREY)[..., None]
    return (factor * values + (1 - factor) * other).clip(0, 255).astype("uint8")
