"""Several views of a picture without a label: crops with other colours, for self-supervised training."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar

import numpy as np

from keras_vit._options import Count, Hue, Limits, Pair, Positive, Share
from keras_vit.data.augmentation import CHANGES, IMAGE, Draw, PictureAugmentation, Transform, adjusted
from keras_vit.interpolation import torchvision_resized

ASPECTS, ATTEMPTS = (3 / 4, 4 / 3), 10  # of torchvision's `RandomResizedCrop`
SIGMA, THRESHOLD = (0.1, 2.0), 128  # of the blur, in pixels; above which solarized pixels are inverted
_LOCAL_SHARE = 96 / 224  # side of local views, per side of global ones


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

    targets: ClassVar[tuple[str, ...]] = ("none",)
    transform: ClassVar[type[Transform]] = ViewTransform

    def local_size_for(self, image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Returns the height and width of local views for a model; ValueError if its patches do not divide them.

        `image_size` and `patch` are the (height, width) of its images and patches.
        """
        if self.local_size is None:
            sides = zip(image_size, patch, strict=True)
            return tuple(max(1, round(side * _LOCAL_SHARE / unit)) * unit for side, unit in sides)
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
    image = torchvision_resized(picture[top : top + height, left : left + width], size, "bilinear_antialias")
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
        image = blurred(image, float(generator.uniform(*SIGMA)))
    if generator.random() < solarize:
        image = np.where(image >= THRESHOLD, 255 - image, image)
    return image


def crop_box(
    height: int, width: int, area: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """A random box, (top, left, height, width), as torchvision's `RandomResizedCrop`: its area is drawn first."""
    for _ in range(ATTEMPTS):
        wanted = height * width * generator.uniform(*area)
        aspect = math.exp(generator.uniform(*np.log(ASPECTS)))
        columns, rows = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            top, left = (int(generator.integers(most + 1)) for most in (height - rows, width - columns))
            return top, left, rows, columns
    columns, rows = min(width, round(height * ASPECTS[1])), min(height, round(width / ASPECTS[0]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def blurred(image: np.ndarray, sigma: float) -> np.ndarray:
    """Returns a uint8 picture blurred by a normal distribution of `sigma` pixels, above 0; its border is repeated."""
    radius = math.ceil(3 * sigma)
    kernel = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).astype("float32")
    result = image.astype("float32")
    for axis in (0, 1):
        margins = [(radius, radius) if axis == other else (0, 0) for other in range(3)]
        padded, length = np.pad(result, margins, mode="edge"), image.shape[axis]
        parts = (np.take(padded, range(i, i + length), axis) * share for i, share in enumerate(kernel))
        result = sum(parts, np.float32(0))
    return np.rint(result).clip(0, 255).astype("uint8")
