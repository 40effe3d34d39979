"""What becomes of one image after it is read: a function of (seed, epoch, image), the same on every backend."""

import dataclasses
from typing import Any, Self

import numpy as np

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.crops import crop_and_flip, resize_for_evaluation
from keras_vit.data.randaugment import randaugment

# What the first number of a random seed says it is for, so that no two uses share their numbers.
ORDER, IMAGE, RANDAUGMENT, MIXUP = range(4)


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """Brings images to size: by crop, flip and RandAugment in training, else as evaluation does.

    Args:
        image_size: `(height, width)`.
        augmentation: What is done to training images; `None` for test images.
        resize: How test images come to their size, one of `keras_vit.preprocessing.RESIZES`.
        seed: At least 0.
    """

    image_size: tuple[int, int]
    augmentation: Augmentation | None
    resize: str = "squash"
    seed: int = 0

    def __call__(self, pixels: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """One image.

        Args:
            pixels: `(height, width, 3)` in 0..255, any dtype.
            epoch: How often all images were seen before. It and the next decide what is random.
            index: Which image it is.

        Returns:
            `(*image_size, 3)` in 0..255, float32, or uint8 where the values are whole numbers anyway.
        """
        if self.augmentation is None:
            return resize_for_evaluation(pixels, self.image_size, self.resize)
        generator = np.random.default_rng([self.seed, IMAGE, epoch, index])
        image = crop_and_flip(pixels, self.image_size, self.augmentation, generator)
        if self.augmentation.randaugment is not None:
            image = augmented(image, self.augmentation, [self.seed, RANDAUGMENT, epoch, index])
        return image

    def to_dict(self) -> dict[str, Any]:
        """All fields as data that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The transform of `to_dict`, also after a way through JSON."""
        fields = {**fields, "image_size": tuple(fields["image_size"])}
        if fields["augmentation"] is not None:
            fields["augmentation"] = Augmentation(**fields["augmentation"])
        return cls(**fields)


def augmented(image: np.ndarray, augmentation: Augmentation, seed: list[int]) -> np.ndarray:
    """An image after RandAugment.

    Args:
        image: `(height, width, 3)` in 0..255. Fractions are cut off, as big_vision's crops do.
        augmentation: Says how many operations follow each other, and their magnitude.
        seed: The same seed gives the same image.

    Returns:
        uint8 of the same shape.
    """
    whole = image if image.dtype == np.uint8 else np.clip(image, 0, 255).astype("uint8")
    layers, magnitude = augmentation.randaugment or (0, 0)
    return randaugment(whole, layers, magnitude, np.random.default_rng(seed))
