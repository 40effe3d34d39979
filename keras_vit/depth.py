"""From a picture of any size to its depth, in metres or without a unit, as the publisher of each model returns it."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import listing, to_numpy
from keras_vit._files import ending_of, replacing, write_npy
from keras_vit._options import checked
from keras_vit._pictures import ColourBar, colour_numbers, palette, plot_map
from keras_vit._terminal import Column, TableResult
from keras_vit.interpolation import resized, torchvision_resized
from keras_vit.models import DPT, LinearDepth, MultiTaskDPT, ViTConfig
from keras_vit.preprocessing.images import (
    TIPS_PICTURES,
    centre_margins,
    normalized,
    picture_to_draw,
    read_picture,
    resize_images,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Depth", "DepthErrors", "Normals", "depth_errors", "estimate", "mean_depth_errors", "normals", "plot"]


@dataclasses.dataclass(frozen=True)
class Depth:
    """The depth of a picture.

    Attributes:
        depth: float32 `(height, width)` of the picture. Metric: metres. Inverse: larger where nearer, up to an unknown
            scale and shift; it may lie below 0 where the publisher's resizing overshoots. Otherwise larger where
            farther, up to an unknown scale (Depth Anything 3).
        metric: Whether it is in metres.
        inverse: Whether it is inverse depth; None: unless it is metric.
        sky: bool `(height, width)`, where the sky is; None if the model does not say it. The sky's depth is that of
            the farthest things (their 0.99 quantile).

    Examples:
        >>> keras_vit.depth.Depth(np.ones((2, 3), "float32"), metric=True).unit
        'm'
    """

    depth: np.ndarray
    metric: bool
    inverse: bool | None = None
    sky: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.inverse is None:
            object.__setattr__(self, "inverse", not self.metric)
        if self.inverse and self.metric:
            raise ValueError("inverse=True is for depth without a unit, but metric=True was given.")

    @property
    def unit(self) -> str:
        """The unit: `"m"` for metric depth, otherwise a text that says whether depth is inverse, and has no unit."""
        return "m" if self.metric else f"{'inverse depth' if self.inverse else 'depth'} without a unit"

    def save(self, path: str | os.PathLike[str]) -> tuple[float, float]:
        """Writes the values as `.npy` (float32), or as a grey `.png` of 16 bits, which appears when it is complete.

        For metric depth, 256 grey levels are a metre (as in KITTI), up to 255.99 m. Otherwise the levels go from the
        smallest to the largest value. Text entries `scale`, `offset` and `unit` are in the file. An existing file is
        replaced.

        Returns:
            Scale and offset: a value is `offset + scale * number` of the file; 1 and 0 for `.npy`.

        Raises:
            ImportError: if Pillow is not installed, for `.png`.
            OSError: if the file cannot be written.
            ValueError: if `path` has another ending, or for `.png` a value is not finite or beyond what it holds.
        """
        ending = ending_of(path, ".npy", ".png")
        least, largest = float(self.depth.min()), float(self.depth.max())
        if ending == ".npy":
            write_npy(path, self.depth)
            return 1.0, 0.0
        if not math.isfinite(largest - least):
            raise ValueError("A .png file cannot hold depth that is NaN or infinite. Write a .npy file instead.")
        if self.metric and not (0 <= least and 256 * largest < 65535.5):  # what would round to 65536 has no level
            raise ValueError(
                f"A .png file holds 0 to 255.99 m, but the depth is {least:.4g} to {largest:.4g} m. Write a .npy file."
            )
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
    size = _covering(*picture.shape[:2], size, vit.patch_size)
    return normalized(resize_images(picture[None], size, "bicubic_hf"), vit.pixel_mean, vit.pixel_std)


def _transformers(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    size = _nearest(*picture.shape[:2], size, vit.patch_size)
    if picture.dtype == np.uint8:
        pixels = torchvision_resized(picture, size, "bicubic")[None]
    else:  # floats stay floats there
        pixels = resize_images(picture[None], size, "bicubic")
    return normalized(pixels, vit.pixel_mean, vit.pixel_std)


def _padded(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    margins = centre_margins(picture.shape[:2], vit.patch_size)
    return np.pad(normalized(picture[None], vit.pixel_mean, vit.pixel_std), [(0, 0), *margins, (0, 0)])


def _bounded(picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    """Returns a normalised batch of one, resized as OpenCV: longer side as in `size`, then to the nearest patches."""
    factor = max(size) / max(picture.shape[:2])
    sides = [max(1, round(side * factor)) for side in picture.shape[:2]]
    patches = [math.floor(side / patch + 0.5) for side, patch in zip(sides, vit.patch_size, strict=True)]
    if 0 in patches:
        what = "{} x {} pixels, whose shorter side becomes less than half a patch".format(*picture.shape[:2])
        raise ValueError(f"The picture has {what}. Crop it to a smaller aspect ratio.")
    for height, width in (sides, [n * patch for n, patch in zip(patches, vit.patch_size, strict=True)]):
        if picture.shape[:2] != (height, width):
            picture = resized(picture, (height, width), "opencv_scaled").astype(picture.dtype)
    return normalized(picture[None], vit.pixel_mean, vit.pixel_std)


def _squashed(like: str, picture: np.ndarray, vit: ViTConfig, size: tuple[int, int]) -> np.ndarray:
    return vit.pipeline.normalized(resized(picture, size, like)[None])


# By `config.pictures`: from a picture, a backbone's config and a size to images, and how depth is resized.
PREPARATIONS: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "depth_anything": (_authors, "official"),
    "depth_anything_transformers": (_transformers, "bicubic_hf"),
    "depth_anything_3": (_bounded, "bilinear"),
    "dinov2": (_padded, "bilinear"),
    **{name: (functools.partial(_squashed, like), "bilinear") for name, like in TIPS_PICTURES.items()},
}
_SKY = 0.3  # the least score of the sky
_FEW = 10  # pixels of the sky, or of anything else, that leave depth as it is
_FARTHEST = 0.99  # the quantile of depth that the sky has
_FOCAL = 300  # the focal length, in pixels of the prepared picture, at which Depth Anything 3's output is in metres


@checked
def estimate(
    model: DPT | LinearDepth | MultiTaskDPT,
    picture: Any,
    *,
    flip: bool = False,
    focal: float | tuple[float, float] | None = None,
) -> Depth:
    """Returns the depth of a picture, at its own size, as a `Depth`.

    `model.config.pictures` says whose rules prepare the picture, at its own aspect ratio, and resize the depth back:
    Depth Anything's (`infer_image`), transformers' (`DPTImageProcessor`) or DINOv2's. They differ visibly.

    Args:
        model: A depth model, such as `keras_vit.load` returns. A model for a single size takes only pictures whose
            prepared size is the same; `"dynamic"` models take all.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)` of 0..255.
        flip: Whether to average with the depth of the mirrored picture, as DINOv2's figures on NYU do.
        focal: Focal length of the camera in pixels of the picture, one number or (horizontal, vertical), with which a
            metric Depth Anything 3 tells metres; without it, its depth has no unit.

    Raises:
        OSError, ImportError: if the file cannot be opened; if Pillow or tifffile is missing.
        TypeError, ValueError: if an argument is invalid, the picture cannot be decoded, or does not fit the model.

    Examples:
        >>> result = keras_vit.depth.estimate(depth_model, "photo.jpg")
        >>> result.depth.shape == keras_vit.load_image("photo.jpg").shape[:2], result.unit
        (True, 'm')
    """
    config, needs_focal = model.config, getattr(model.config, "needs_focal", False)
    lengths = np.broadcast_to(0.0 if focal is None else focal, 2).astype("float64")
    if focal is not None and not needs_focal:
        raise ValueError(f"focal={focal!r} is for a metric Depth Anything 3, which {model.name} is not. Leave it out.")
    if focal is not None and not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError(f"focal must be a number of pixels above 0, or two, but {focal!r} was given.")
    pixels, images, method = _prepared(model, "depth", picture)
    maps = _predicted(model, "depth", images)
    if flip:
        mirrored = _predicted(model, "depth", images[:, :, ::-1])
        maps = {name: (values + mirrored[name][:, ::-1]) / 2 for name, values in maps.items()}
    size, depth, sky = pixels.shape[:2], maps["depth"], None
    is_relative = getattr(config, "design", "") == "depth_anything_3" and focal is None
    if "sky" in maps:
        inside = maps["sky"] >= _SKY
        if min(inside.sum(), (~inside).sum()) > _FEW:
            depth = np.where(inside, np.quantile(depth[~inside], _FARTHEST), depth)
        sky = resize_images(maps["sky"][..., None], size, method)[..., 0] >= _SKY
    depth = resize_images(depth[..., None].astype("float32"), size, method)[..., 0]
    if focal is not None:
        prepared = lengths * [images.shape[2] / size[1], images.shape[1] / size[0]]
        depth = depth * np.float32(prepared.mean() / _FOCAL)
    return Depth(depth, config.metric and not is_relative, False if is_relative else None, sky)


def _prepared(model: Any, task: str, picture: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the pixels of a picture, a model's images of it, and how its maps are resized back; checks the model."""
    config = model.config
    if task not in getattr(config, "tasks", ("depth",)):
        raise ValueError(f"{model.name} predicts {listing(getattr(config, 'tasks', ('depth',)))}, but not {task}.")
    if config.include_preprocessing:
        raise ValueError(f"{model.name} would normalise pixels twice. Build it with include_preprocessing=False.")
    pixels = read_picture(picture, config.channels)
    prepare, method = PREPARATIONS[config.pictures]
    return pixels, prepare(pixels, config.backbone, config.picture_size), method


def _predicted(model: Any, task: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the maps that a model predicts of one image, by name; of one map by the name of the task."""
    found = model.predict_on_batch(np.ascontiguousarray(images))
    maps = found if isinstance(found, dict) else {task: found}
    return {name: values[0].astype("float32") for name, values in maps.items()}


@dataclasses.dataclass(frozen=True)
class Normals:
    """The surface normals of a picture.

    Attributes:
        normals: float32 `(height, width, 3)`, vectors of length 1 in the axes of the camera, as the model's training
            data have them.

    Examples:
        >>> keras_vit.depth.Normals(np.ones((2, 3, 3), "float32")).normals.shape
        (2, 3, 3)
    """

    normals: np.ndarray


@checked
def normals(model: MultiTaskDPT, picture: Any) -> Normals:
    """Returns the surface normals of a picture, at its own size, as `Normals`.

    Vectors are brought to length 1, resized bilinearly, and brought to length 1 again (TIPS's notebook resizes
    bicubically; transformers does not repeat the last step). Arguments and errors are as in `estimate`; ValueError for
    a model without normals.

    Examples:
        >>> keras_vit.depth.normals(normals_model, "photo.jpg").normals.shape[-1]
        3
    """
    pixels, images, method = _prepared(model, "normals", picture)
    vectors = _predicted(model, "normals", images)["normals"]
    return Normals(_unit(resize_images(_unit(vectors), pixels.shape[:2], method)))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


# Plots


@checked
def plot(result: Depth | Normals, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Returns a figure of a picture beside its depth, with a scale and its unit; near places are bright.

    Normals are shown as colours: red, green and blue are their three numbers, -1 to 1. `result` is what `estimate` or
    `normals` returns for `picture`. `path` is the `.png`, `.svg` or `.pdf` to write; None for none.

    Raises:
        ImportError, OSError: if matplotlib or Pillow is missing; if a file cannot be opened or written.
        TypeError, ValueError: if an argument is invalid, or the picture cannot be decoded or has another size.

    Examples:
        >>> figure = keras_vit.depth.plot(keras_vit.depth.estimate(depth_model, "photo.jpg"), "photo.jpg", "depth.png")
    """
    if isinstance(result, Normals):
        pixels = picture_to_draw(picture, result.normals.shape[:2])
        shown = np.nan_to_num(np.round(127.5 * (result.normals + 1))).clip(0, 255).astype("uint8")
        return plot_map([("picture", pixels), ("normals", shown)], path, side=4.4)
    pixels = picture_to_draw(picture, result.depth.shape)
    known = np.isfinite(result.depth)
    values = result.depth[known]
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not result.inverse:
        what = "depth in metres" if result.metric else "depth, without a unit:\nlarger is farther"
        bar = ColourBar("inferno", most, least, what)
    else:
        bar = ColourBar("inferno", least, most, "inverse depth, without a unit:\nlarger is nearer")
    depth = np.where(known, result.depth, least)
    colours = palette(bar.scale, 256)[colour_numbers(depth, bar.first, bar.last, 256)]
    colours[~known] = 255
    tiles = [("picture", pixels), ("depth", colours)]
    return plot_map(tiles, path, side=4.4, bar=bar)


@dataclasses.dataclass(frozen=True)
class DepthErrors(TableResult):
    """The errors of one picture or the means over several. Printing it draws a table.

    Attributes:
        pictures: Number of pictures.
        delta1: The share of pixels whose depth is off by a factor below 1.25.
        relative: The mean of `|depth - truth| / truth`.
        rmse: The root of the mean squared error, in metres.

    Examples:
        >>> keras_vit.depth.DepthErrors(1, 0.5, 0.1, 0.2).delta1
        0.5
    """

    pictures: int
    delta1: float
    relative: float
    rmse: float

    columns = (
        Column("pictures", lambda errors: errors.pictures),
        Column("delta1", lambda errors: errors.delta1, digits=4),
        Column("relative", lambda errors: errors.relative, digits=4),
        Column("rmse", lambda errors: errors.rmse, digits=4),
    )


@checked
def depth_errors(result: Depth, truth: ArrayLike, *, least: float = 1e-3, most: float = 10.0) -> DepthErrors:
    """Returns the errors of estimated depth against measured depth, over the pixels in a range.

    Inverse depth is first fitted to the inverse of the truth by scale and shift with the least squared error, as Depth
    Anything and MiDaS do, other depth without a unit to the truth by scale alone; then depth is clipped to the range
    (Eigen et al., arXiv 1406.2283, section 4.1).

    Args:
        result: What `estimate` returns.
        truth: Metres `(height, width)`; 0 or NaN where nothing was measured.
        least: Only pixels with a true depth above this many metres count.
        most: Only pixels with a true depth below this many metres count: 10 for NYU, 80 for KITTI.

    Raises:
        TypeError, ValueError: if an argument is invalid, sizes differ, no pixel counts, or depth is not finite.

    Examples:
        >>> truth = np.linspace(1, 5, 12).reshape(3, 4)
        >>> keras_vit.depth.depth_errors(keras_vit.depth.Depth(2 / truth + 1, metric=False), truth).delta1
        1.0
    """
    if not 0 < least < most:
        raise ValueError(f"least and most must be metres with 0 < least < most, but {least!r} and {most!r} were given.")
    metres, depth = to_numpy(truth).astype("float64"), result.depth.astype("float64")
    if metres.shape != depth.shape:
        raise ValueError(f"truth must be as large as the depth, {depth.shape}, but {metres.shape} was given.")
    if not np.isfinite(depth).all():
        raise ValueError("The depth of result must be finite, but some values are infinite or NaN.")
    counted = (metres > least) & (metres < most)  # NaN is neither
    if not counted.any():
        raise ValueError(f"No pixel of truth lies between {least} and {most} m. truth must be in metres.")
    metres, depth = metres[counted], depth[counted]
    if not (result.metric or result.inverse):
        depth = depth * ((depth @ metres) / (depth @ depth or 1.0))
    elif not result.metric:  # scale and shift fit the inverse of the metres, least squares
        lines = np.stack([depth, np.ones_like(depth)], axis=1)
        inverse = lines @ np.linalg.lstsq(lines, 1 / metres, rcond=None)[0]
        depth = 1 / np.maximum(inverse, 1 / most)
    depth = np.clip(depth, least, most)
    delta1 = float((np.maximum(depth / metres, metres / depth) < 1.25).mean())
    error = depth - metres
    relative, rmse = float((np.abs(error) / metres).mean()), float(np.sqrt((error**2).mean()))
    return DepthErrors(1, delta1, relative, rmse)


def mean_depth_errors(errors: list[DepthErrors]) -> DepthErrors:
    """Returns the mean of `depth_errors` over pictures, each root taken before; ValueError if `errors` is empty.

    Examples:
        >>> keras_vit.depth.mean_depth_errors([keras_vit.depth.DepthErrors(1, 0.5, 0.1, 0.2)] * 2).pictures
        2
    """
    errors = list(errors)
    if not errors:
        raise ValueError("errors must hold the errors of at least one picture.")
    means = [float(np.mean([getattr(one, name) for one in errors])) for name in ("delta1", "relative", "rmse")]
    return DepthErrors(sum(one.pictures for one in errors), *means)
