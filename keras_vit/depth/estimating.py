"""Pictures of any size to depth of the same size: the publishers' preparation and what they do with the answer."""

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import check_flag
from keras_vit._files import replacing, write_npy
from keras_vit._pictures import ColourBar, colour_numbers, palette, plot_map
from keras_vit.interpolation import torchvision_resized
from keras_vit.models import DPT, LinearDepth, ViTConfig
from keras_vit.preprocessing.images import normalized, resize_images
from keras_vit.preprocessing.windows import centre_margins, read_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RELATIVE = "inverse depth without a unit"


@dataclasses.dataclass(frozen=True)
class Depth:
    """The depth of a picture.

    Attributes:
        depth: float32 `(height, width)` of the picture. Metric: metres. Otherwise inverse depth, larger where nearer,
            up to an unknown scale and shift; it may lie below 0 where the publisher's resizing overshoots.
        metric: Whether it is in metres.

    Examples:
        >>> keras_vit.depth.Depth(np.ones((2, 3), "float32"), metric=True).unit
        'm'
    """

    depth: np.ndarray
    metric: bool

    @property
    def unit(self) -> str:
        """The unit: `"m"` for metric depth, otherwise a text that says that depth is inverse and has no unit."""
        return "m" if self.metric else RELATIVE

    def save(self, path: str | os.PathLike[str]) -> tuple[float, float]:
        """Writes the values as `.npy` (float32), or as a grey `.png` of 16 bits, which appears when it is complete.

        For metric depth, 256 grey levels are a metre (as in KITTI), up to 255.99 m. Otherwise the levels go from the
        smallest to the largest value. Text entries `scale`, `offset` and `unit` are in the file.

        Args:
            path: The file; it is replaced if it exists.

        Returns:
            Scale and offset: a value is `offset + scale * number` of the file; 1 and 0 for `.npy`.

        Raises:
            ImportError: if Pillow is not installed, for `.png`.
            OSError: if the file cannot be written.
            TypeError: if `path` is not a path.
            ValueError: if `path` has another ending or there are no pixels; or, for `.png`, a value is NaN, infinite or
                above 255.99 m.
        """
        ending = Path(path).suffix.lower()
        if ending not in (".npy", ".png"):
            raise ValueError(f"path must end with .npy or .png, but {os.fspath(path)!r} was given.")
        least, largest = float(self.depth.min()), float(self.depth.max())
        if ending == ".npy":
            write_npy(path, self.depth)
            return 1.0, 0.0
        if not math.isfinite(largest - least):
            raise ValueError("A .png holds finite numbers, but some of the depth is NaN or infinite: write a .npy.")
        if self.metric and not (0 <= least and 256 * largest < 65535.5):  # what would round to 65536 has no level
            raise ValueError(f"A .png holds 0 to 255.99 m, but depth is {least:.4g} to {largest:.4g} m: write a .npy.")
        scale, offset = (1 / 256, 0.0) if self.metric else (max(largest - least, 1e-6) / 65535, least)
        from PIL import Image, PngImagePlugin

        about = PngImagePlugin.PngInfo()
        for name, value in {"scale": scale, "offset": offset, "unit": self.unit}.items():
            about.add_text(name, str(value))
        with replacing(path) as temporary:
            Image.fromarray(np.round((self.depth - offset) / scale).astype("uint16")).save(temporary, pnginfo=about)
        return scale, offset


def _covering(height: int, width: int, size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) to resize to: in about the picture's aspect ratio, whole patches, at least `size`."""
    factor = max(size[0] / height, size[1] / width)

    def side(length: int, least: int, step: int) -> int:
        rounded = round(factor * length / step) * step
        return rounded if rounded >= least else math.ceil(factor * length / step) * step

    return side(height, size[0], patch[0]), side(width, size[1], patch[1])


def _nearest(height: int, width: int, size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) to resize to: in about the picture's aspect ratio and whole patches, at least one."""
    # The side that changes less has about its `size`, as in `DPTImageProcessor` of transformers.
    by_height, by_width = size[0] / height, size[1] / width
    factor = by_width if abs(1 - by_width) < abs(1 - by_height) else by_height
    # transformers fails where a side would have no patch.
    rows, columns = round(factor * height / patch[0]), round(factor * width / patch[1])
    return max(rows, 1) * patch[0], max(columns, 1) * patch[1]


def _authors(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    """Returns the picture resized and normalised as Depth Anything's authors do, `(1, height, width, 3)`."""
    size = _covering(*picture.shape[:2], size, vit.patch_size)
    return normalized(resize_images(picture[None], size, "bicubic_hf"), vit.pixel_mean, vit.pixel_std)


def _transformers(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    """Returns the picture resized and normalised as transformers does for Depth Anything, `(1, height, width, 3)`."""
    size = _nearest(*picture.shape[:2], size, vit.patch_size)
    if picture.dtype == np.uint8:
        pixels = torchvision_resized(picture, size, "bicubic")[None]
    else:  # floats stay floats there
        pixels = resize_images(picture[None], size, "bicubic")
    return normalized(pixels, vit.pixel_mean, vit.pixel_std)


def _padded(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    """The picture at its own size, normalised, with zeros around up to whole patches, `(1, height, width, 3)`."""
    margins = centre_margins(picture.shape[:2], vit.patch_size)
    return np.pad(normalized(picture[None], vit.pixel_mean, vit.pixel_std), [(0, 0), *margins, (0, 0)])


# By `config.pictures`: from a picture, a backbone's config and a size to images, and how depth is resized.
PREPARATIONS: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "depth_anything": (_authors, "official"),
    "depth_anything_transformers": (_transformers, "bicubic_hf"),
    "dinov2": (_padded, "bilinear"),
}


def estimate(model: DPT | LinearDepth, picture: Any, *, flip: bool = False) -> Depth:
    """Returns the depth of a picture, at its own size.

    `model.config.pictures` says whose rules prepare the picture, at its own aspect ratio, and resize the depth back.
    The three rules differ visibly.

    Args:
        model: A depth model, such as `keras_vit.load` returns. A model for a single size takes only pictures whose
            prepared size is the same; `"dynamic"` models take all.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)`, uint8 or
            values of 0..255; three channels unless `model.config.channels` says otherwise.
        flip: Whether to average with the depth of the mirrored picture, as DINOv2's figures on NYU do.

    Returns:
        A `Depth`.

    Raises:
        ImportError: if `picture` is a file and Pillow is not installed, or tifffile for a TIFF of other channels than
            three.
        TypeError: if `model` is not a depth model, `picture` is not a picture, or `flip` is not a bool.
        OSError: if the file is not there (FileNotFoundError) or cannot be opened.
        ValueError: if the picture cannot be decoded, has another shape, no pixels or values outside 0..255. Also if the
            model does not take the prepared size, or has `include_preprocessing`.

    Source: `DepthAnythingV2.infer_image` and `image2tensor`; `DPTImageProcessor` and
    `post_process_depth_estimation` in transformers; `CenterPadding` and `DepthEncoderDecoder` in DINOv2.

    Examples:
        >>> result = keras_vit.depth.estimate(depth_model, "photo.jpg")
        >>> result.depth.shape == keras_vit.load_image("photo.jpg").shape[:2], result.unit
        (True, 'm')
    """
    if not isinstance(model, (DPT, LinearDepth)):
        raise TypeError(f"model must be a DPT or a LinearDepth, but {type(model).__name__} was given.")
    config = model.config
    check_flag("flip", flip)
    if config.include_preprocessing:
        raise ValueError(
            f"{model.name} normalises pixels itself, before the padding: pass include_preprocessing=False."
        )
    pixels = read_picture(picture, config.channels)
    prepare, method = PREPARATIONS[config.pictures]
    images = prepare(pixels, config.backbone, config.picture_size)
    depth = _predicted(model, images)
    if flip:
        depth = (depth + _predicted(model, images[:, :, ::-1])[:, ::-1]) / 2
    return Depth(resize_images(depth[..., None], pixels.shape[:2], method)[..., 0], config.metric)


def _predicted(model: Any, images: np.ndarray) -> np.ndarray:
    """Returns the output of a model for the first of some images, float32 `(height, width)`."""
    return model.predict_on_batch(np.ascontiguousarray(images))[0].astype("float32")


# Plots


def plot(result: Depth, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Returns a figure of a picture beside its depth, with a scale and its unit; near places are bright.

    Args:
        result: What `estimate` returns.
        picture: The picture, as `estimate` takes it, of three channels.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed, or Pillow and `picture` is a file.
        TypeError: if `result` is not a `Depth`, `picture` is not a picture, or `path` is not a path.
        OSError: if the picture is not there (FileNotFoundError) or cannot be opened, or `path` cannot be written.
        ValueError: if the picture cannot be decoded, holds values that are not pixels or is of another size, or `path`
            has another ending.

    Examples:
        >>> figure = keras_vit.depth.plot(keras_vit.depth.estimate(depth_model, "photo.jpg"), "photo.jpg", "depth.png")
    """
    if not isinstance(result, Depth):
        raise TypeError(f"result must be a Depth, as estimate returns, but {type(result).__name__} was given.")
    pixels = read_picture(picture, 3)
    (height, width), size = result.depth.shape, pixels.shape[:2]
    if size != (height, width):
        raise ValueError(f"The picture has {size[0]} x {size[1]} pixels, but the depth {height} x {width}.")
    known = np.isfinite(result.depth)
    values = result.depth[known]
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if result.metric:
        bar = ColourBar("inferno", most, least, "depth in metres")
    else:
        bar = ColourBar("inferno", least, most, "inverse depth, without a unit:\nlarger is nearer")
    depth = np.where(known, result.depth, least)
    colours = palette(bar.scale, 256)[colour_numbers(depth, bar.first, bar.last, 256)]
    colours[~known] = 255
    tiles = [("picture", pixels.clip(0, 255).astype("uint8")), ("depth", colours)]
    return plot_map(tiles, path, side=4.4, bar=bar)
