"""What a family of models makes of a picture before it sees it."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit._types import pair
from keras_vit.preprocessing.pixels import FILTERS, check_pixels, normalized, resize_and_crop

PIPELINE_RESIZES = ("squash", "shortest")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Pictures of any size in, what a model takes out: resize, cut out the centre, normalise.

    The defaults are those of the official checkpoints.

    Args:
        image_size: Height and width of the result in pixels; an integer for squares.
        mean: What is subtracted from pixels of 0..1: a number, or one for each channel.
        std: What they are divided by then; likewise.
        resize: `"squash"`: straight to `image_size / crop_ratio`; `"shortest"`: to the least size that covers it with
            the picture's own aspect ratio.
        crop_ratio: Which share of each side the crop keeps, in (0, 1].
        filter: A name in `FILTERS`.

    Raises:
        TypeError, ValueError: if an argument makes no sense.
    """

    image_size: tuple[int, int]
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    resize: str = "squash"
    crop_ratio: float = 1.0
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name, choices in (("resize", PIPELINE_RESIZES), ("filter", tuple(FILTERS))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, but {getattr(self, name)!r} was given.")
        if isinstance(self.crop_ratio, bool) or not isinstance(self.crop_ratio, (int, float)):
            raise TypeError(f"crop_ratio must be a number, but {self.crop_ratio!r} was given.")
        if not 0 < self.crop_ratio <= 1:
            raise ValueError(f"crop_ratio must lie in (0, 1], but {self.crop_ratio!r} was given.")
        for name, least in (("mean", -np.inf), ("std", 0.0)):
            values = np.asarray(getattr(self, name), "float64")
            if values.ndim > 1 or not values.size or not np.all(np.isfinite(values) & (values > least)):
                above = " above 0" if name == "std" else ""
                raise ValueError(
                    f"pixel_{name} must be a finite number{above}, or one for each channel, but "
                    f"{getattr(self, name)!r} was given."
                )

    def __call__(self, images: Any, channels: int = 3) -> np.ndarray:
        """What a model takes.

        Args:
            images: As for `resized`.
            channels: How many the images have.

        Returns:
            float32 `(batch, *image_size, channels)`.
        """
        return self.normalized(self.resized(images, channels, stacklevel=3))

    def resized(self, images: Any, channels: int = 3, *, stacklevel: int = 2) -> np.ndarray:
        """Pictures at the model's size, still as pixels.

        Args:
            images: `(height, width, channels)` or `(batch, height, width, channels)`, uint8 or values of 0..255: an
                array, a tensor of any backend, or a list of equally large images.
            channels: How many the images have.
            stacklevel: Whose line a warning points at, as for `warnings.warn`.

        Returns:
            float32 `(batch, *image_size, channels)` in 0..255; integers stay whole numbers where the filter is one of
            Pillow's.

        Raises:
            TypeError, ValueError: if the values are no pixels, or there are other channels.

        Warns:
            UserWarning: if floats all lie in [-1, 1]: they look scaled already.
        """
        images = check_pixels(images, channels, stacklevel=stacklevel + 1)
        images = images if images.ndim == 4 else images[None]
        if 0 in images.shape[1:3]:
            raise ValueError(f"images must have pixels, but the shape {images.shape} was given.")
        return resize_and_crop(images, self.image_size, self.resize, self.crop_ratio, self.filter)

    @property
    def value_range(self) -> tuple[float, float]:
        """What the least and the largest pixel become, over all channels; `(-1, 1)` by default."""
        mean, std = np.broadcast_arrays(np.asarray(self.mean, "float64"), np.asarray(self.std, "float64"))
        low, high = float(np.min(-mean / std)), float(np.max((1 - mean) / std))
        return (int(low) if low.is_integer() else low, int(high) if high.is_integer() else high)

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """`(pixels / 255 - mean) / std` in float32, as a new array."""
        return normalized(pixels, self.mean, self.std)
