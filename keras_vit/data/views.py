"""Pictures without labels, and several views of each: crops with other colours, for self-supervised training."""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from keras_vit._arguments import ImageSize, pair, printable
from keras_vit._options import Count, Hue, Limits, Options, Pair, Positive, Share
from keras_vit.data.augmentation import IMAGE
from keras_vit.data.examples import (
    Examples,
    Reading,
    fingerprint,
    good_files,
    image_files,
    is_folder,
    pick_split,
    split_of,
    visible,
)
from keras_vit.data.mask_augmentation import CHANGES, adjusted
from keras_vit.data.opening import open_arrays
from keras_vit.data.streams import ExampleStream
from keras_vit.interpolation import torchvision_resized
from keras_vit.preprocessing import load_image

NO_TARGET = "none"  # `stream.target` of pictures whose labels are not read
ASPECTS, ATTEMPTS = (3 / 4, 4 / 3), 10  # of torchvision's `RandomResizedCrop`
SIGMA, THRESHOLD = (0.1, 2.0), 128  # of the blur, in pixels; above which solarized pixels are inverted
_LOCAL_SHARE = 96 / 224  # side of local views, per side of global ones


@dataclasses.dataclass(frozen=True)
class ViewAugmentation(Options):
    """The views of a picture in self-supervised training (multi-crop); the defaults are lightly's for LeJEPA.

    Args:
        global_views: How many large crops; they come first, and are scaled to the image size of the model.
        local_views: How many small crops.
        local_size: What they are scaled to, an integer or (height, width); None for 3/7 of the image size, in whole
            patches: 96 for 224.
        global_area: The least and the largest share of the picture that a global view shows.
        local_area: The same of local views.
        flip: Mirror half of the views, left to right: not for digits and text.
        jitter: Share of the views whose colours change, by the next four.
        brightness: 0.4 multiplies by 0.6 to 1.4.
        contrast: Likewise.
        saturation: Likewise.
        hue: By what share of the circle of colours they turn, at most.
        grey: Share of the views that become grey.
        blur: Share that is blurred, with a standard deviation of 0.1 to 2 pixels.
        solarize: Share of the second global views whose bright pixels are inverted.

    Raises:
        TypeError, ValueError: if a field is out of its range.

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

    # What streams read of every augmentation, and what is not done to views.
    mixup: ClassVar[float] = 0.0
    cutmix: ClassVar[float] = 0.0

    def local_size_for(self, image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Returns the height and width of local views for a model; ValueError if its patches do not divide them.

        `image_size` and `patch` are the (height, width) of its images and patches.
        """
        if self.local_size is None:
            sides = zip(image_size, patch, strict=True)
            return tuple(max(1, round(side * _LOCAL_SHARE / unit)) * unit for side, unit in sides)
        size = self.local_size
        if size[0] % patch[0] or size[1] % patch[1]:
            raise ValueError(f"local_size={size} is no multiple of the patches of {patch} pixels: give one, or None.")
        return size


@dataclasses.dataclass(frozen=True)
class ViewTransform:
    """Makes the views of a picture, one after another as rows of pixels; `unpack` takes a batch of these apart.

    What is random depends on the seed, the epoch and the index of the picture.
    """

    augmentation: ViewAugmentation
    global_size: tuple[int, int]
    local_size: tuple[int, int]
    seed: int = 0
    channels: int = 3

    @property
    def image_size(self) -> tuple[int, ...]:
        """How many pixels all views of a picture have, as a tuple of one number: the shape of a row of a batch."""
        views, local = self.augmentation, math.prod(self.local_size)
        return (views.global_views * math.prod(self.global_size) + views.local_views * local,)

    def __call__(self, pixels: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """Returns float32 `(pixels of all views, 3)` of a picture `(height, width, 3)` of 0..255, rounded."""
        generator, views = np.random.default_rng([self.seed, IMAGE, epoch, index]), self.augmentation
        if pixels.dtype != np.uint8:
            pixels = np.rint(pixels).clip(0, 255).astype("uint8")
        made = []
        for number in range(views.global_views):
            solarize = views.solarize if number == 1 else 0.0
            made.append(view(pixels, self.global_size, views.global_area, views, solarize, generator))
        for _ in range(views.local_views):
            made.append(view(pixels, self.local_size, views.local_area, views, 0.0, generator))
        return np.concatenate([one.reshape(-1, 3) for one in made]).astype("float32")

    def unpack(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the global and the local views, each `(batch, views, height, width, 3)`, of a batch of calls."""
        views = self.augmentation
        end = views.global_views * math.prod(self.global_size)
        return (
            batch[:, :end].reshape(len(batch), views.global_views, *self.global_size, 3),
            batch[:, end:].reshape(len(batch), views.local_views, *self.local_size, 3),
        )


def view(
    picture: np.ndarray,
    size: tuple[int, int],
    area: tuple[float, float],
    views: ViewAugmentation,
    solarize: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """Returns a view of a uint8 picture `(height, width, 3)`: a random crop at a size, with other colours, uint8.

    It shows a share of the picture between the two of `area`. Of `views`, `flip`, colours, `grey` and `blur` count;
    `solarize` says how often bright pixels are inverted.
    """
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
    """Returns a random box, (top, left, height, width), as torchvision's `RandomResizedCrop`: its area is drawn first.

    `area` is the least and the largest share of the picture that it has. Where none fits in ten attempts, it is the
    middle of the picture, of an aspect that is allowed.
    """
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


class ViewStream(ExampleStream):
    """Batches of views of pictures without labels; `unpack` takes a batch apart."""

    def set_local_size(self, size: tuple[int, int]) -> None:
        """Sets the size of local views, which depends on a model's patches. To be called before the first batch."""
        self._transform = dataclasses.replace(self._transform, local_size=size)

    def unpack(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the global and the local views, each `(batch, views, height, width, 3)` in 0..255, of a batch."""
        return self._transform.unpack(batch)


def open_views(
    source: Any,
    views: ViewAugmentation,
    *,
    image_size: ImageSize,
    batch_size: int,
    seed: int,
    shard: tuple[int, int],
    on_bad_image: str,
) -> ViewStream:
    """Returns a stream of views of pictures, without end, whose labels are not read; options are those of `open_data`.

    `source` is a folder, of which all pictures are taken, in whatever folders they lie, or where it has `train/` those
    in it; an array or a list of pictures, also `(pictures, labels)`; or a dict with `"train"`. Raises TypeError for
    other sources or an image size that is no pair, OSError if a folder is missing (FileNotFoundError) or cannot be
    read, ValueError without good pictures, for one that cannot be read and is not to be skipped, or an option that
    makes no sense, ImportError without Pillow.
    """
    reading = Reading(on_bad_image=on_bad_image, processes=False)
    examples = dataclasses.replace(_examples(source, reading), target=NO_TARGET)
    size = pair("image_size", image_size)
    return ViewStream(examples, ViewTransform(views, size, size, seed), batch_size, reading, shard, None)


def _examples(source: Any, reading: Reading) -> Examples:
    """Returns the training pictures of a source, as `open_views` takes it; their labels are all 0.

    Raises TypeError for other sources, OSError if a folder is missing or cannot be read, ValueError without good
    pictures, ImportError without Pillow.
    """
    if isinstance(source, Mapping):
        source = pick_split(source, "train")
    if isinstance(source, (str, os.PathLike)):
        return _folder(Path(source), reading)
    if isinstance(source, tuple) and len(source) == 2:
        source = source[0]
    if not isinstance(source, list) and len(getattr(source, "shape", ())) not in (3, 4):
        kinds = "a folder, an array or a list of pictures, (pictures, labels), or a dict of these"
        raise TypeError(f"data without labels must be {kinds}, but {type(source).__name__} was given.")
    return open_arrays(source, np.zeros(len(source), "int64"), False, 1, None, reading, "class")


def _folder(root: Path, reading: Reading) -> Examples:
    """Returns all pictures below a folder, or below its `train/`; their labels are all 0.

    Raises FileNotFoundError without the folder, OSError if one cannot be read, ValueError without pictures, for two
    training folders, a link to a folder above it, or a picture that cannot be read unless `reading` skips it,
    ImportError without Pillow.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"data must be a folder of pictures, but there is none at {printable(root)}.")
    folders = [Path(entry.path) for entry in visible(root) if is_folder(entry)]
    training = {path.name: path for path in folders if (split_of(path.name) or ("",))[0] == "train"}
    folder = pick_split(training, "train") if training else root
    paths = image_files(folder)
    if not paths:
        raise ValueError(f"data must be a folder of pictures, but there are none in {printable(folder)}.")
    keep, bad, converted = good_files(paths, reading, lambda i: str(paths[i]))
    paths = [paths[i] for i in keep]
    return Examples(
        labels=np.zeros(len(paths), "int64"),
        classes=1,
        read=lambda i: load_image(paths[i]),
        name=lambda i: str(paths[i]),
        kind="pictures",
        fingerprint=fingerprint([path.relative_to(folder).as_posix() for path in paths]),
        files=paths,
        bad=bad,
        converted=converted,
    )
