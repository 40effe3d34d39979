"""From a picture of any size to its segments, with a linear head and with an EoMT.

With a linear head: crops that slide, several scales, mirror images, as the evaluations of DINOv2 and DINOv3 do it, and
the notebook of TIPS with vectors of texts. With an EoMT: as its authors and as transformers do it. Logits are resized a
few rows at a time: memory depends on the picture, and not on classes or queries times pixels.
"""

import dataclasses
import functools
import itertools
import math
import numbers
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from keras_vit._arguments import check_choice, listing, softmax, to_numpy
from keras_vit._files import ending_of, replacing, write_npy
from keras_vit._options import ABOVE_0, Positive, Several, Share, checked, option, refuse
from keras_vit._pictures import safe_colours
from keras_vit._processes import fill_up
from keras_vit._terminal import PlainData
from keras_vit.interpolation import neighbours, resized
from keras_vit.models import EoMT, EoMTConfig, LinearSegmenter, LinearSegmenterConfig, MultiTaskDPT
from keras_vit.preprocessing.images import TIPS_PICTURES, centre_margins, read_picture

Size = tuple[int, int]
INSIDE = 0.5  # the probability from which a pixel lies in a mask
TASKS = ("semantic", "panoptic", "instance")
THRESHOLD = 0.8  # of EomtImageProcessor's post-processing in transformers 5.23 and 5.24, for both tasks
LONGEST = 50  # how often the shorter side of a picture may fit into the longer one: crops are laid along that


@dataclasses.dataclass(frozen=True)
class Segment(PlainData):
    """A part of a picture.

    Attributes:
        id: The number that its pixels have in the map.
        label_id: Its class.
        label: What that class is called.
        score: How sure the model is, in 0..1; None where each pixel was classified by itself.
        area: The number of its pixels; of an instance those of its mask, which others may cover.

    Examples:
        >>> segmentation.Segment(id=0, label_id=2, label="sky", score=0.9, area=120).label
        'sky'
    """

    id: int
    label_id: int
    label: str
    score: float | None
    area: int


@dataclasses.dataclass(frozen=True)
class Segmentation(PlainData):
    """The segments of one picture, as `segment` returns them.

    Attributes:
        map: int32 `(height, width)`: the id of each pixel's segment, -1 for pixels in no segment; with the task
            `"semantic"` ids are classes.
        segments: A `Segment` for each, with its class and score, in the order of the model's queries or classes.
        task: `"semantic"`, `"panoptic"` or `"instance"`.

    Examples:
        >>> result = segmentation.Segmentation(np.zeros((2, 3), "int32"), (), "semantic")
        >>> result.to_dict()
        {'segments': [], 'task': 'semantic'}
    """

    map: np.ndarray
    segments: tuple[Segment, ...]
    task: str

    hidden: ClassVar[tuple[str, ...]] = ("map",)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as `.npy` (int32), or as a `.png` with an id a pixel, which appears when it is complete.

        Up to the id 254 the picture has 8 bits and a colour for each id; 255 are pixels of no segment. With more ids it
        is grey with 16 bits, and 65535 stands for them. A file that exists is replaced.

        Raises:
            ImportError: if Pillow is not installed, for `.png`.
            OSError: if the file cannot be written.
            ValueError: if `path` has another ending, or for `.png` an id is above 65534.
        """
        if ending_of(path, ".npy", ".png") == ".npy":
            write_npy(path, self.map)
            return
        from PIL import Image

        most = self.map.max(initial=-1)
        if most >= 65535:
            raise ValueError(f"A .png file holds ids up to 65534, but the map has {most}. Write a .npy file instead.")
        is_small = most < 255
        image = Image.fromarray(self.map.astype("uint8" if is_small else "uint16"))  # -1 becomes the largest number
        if is_small:
            colours = itertools.chain(itertools.islice(safe_colours(), 255), [(0, 0, 0)])
            image.putpalette([*itertools.chain(*colours)])
        with replacing(path) as temporary:
            image.save(temporary)


def label_of(names: tuple[str, ...] | None, label_id: int) -> str:
    """Returns the name of a class, or its number as text where there are no names; IndexError for too few names."""
    return str(label_id) if names is None else names[label_id]


def semantic(classes: np.ndarray, names: tuple[str, ...] | None) -> Segmentation:
    """Returns the segmentation of a map of classes `(height, width)`: a segment for each class; each pixel has one."""
    found, areas = np.unique(classes, return_counts=True)
    pairs = zip(found.tolist(), areas.tolist(), strict=True)
    segments = tuple(Segment(k, k, label_of(names, k), None, area) for k, area in pairs)
    return Segmentation(classes.astype("int32"), segments, "semantic")


def sorted_classes(name: str, given: Any, classes: int) -> list[int]:
    """Returns numbers of classes, one or several, sorted, each once; ValueError unless integers in 0..classes - 1."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    labels = list(given) if isinstance(given, Iterable) and given != "" else [given]
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, numbers.Integral) or not 0 <= label < classes:
            raise ValueError(f"{name} must be classes from 0 to {classes - 1}, but {labels!r} was given.")
    return sorted({*map(int, labels)})


@checked
def segment(
    model: EoMT | LinearSegmenter | MultiTaskDPT,
    picture: Any,
    *,
    task: Literal["semantic", "panoptic", "instance"] | None = None,
    stuff_classes: Collection[int] = (),
    threshold: Share | None = None,
    overlap: Share = 0.8,
    scales: Annotated[Sequence[float], Several(ABOVE_0)] = (1.0,),
    flip: bool = False,
    batch_size: Positive = 4,
) -> Segmentation:
    """Returns the segments of a picture of any size, found as the model's publisher does (`model.config.pictures`).

    Source: EoMT's `training/lightning_module.py`, transformers' `EomtImageProcessor`, mmsegmentation as DINOv2 uses it.

    Args:
        model: A segmentation model, an `EoMT`, a `LinearSegmenter` or a `MultiTaskDPT` with classes (TIPS 2), such as
            `keras_vit.load` returns.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)` of 0..255.
        task: `"semantic"`: a class for each pixel; `"panoptic"`: also which thing it is; `"instance"`: things alone,
            which may overlap. None for the one that the model's file says, else `"panoptic"`. Heads without
            queries know `"semantic"` only.
        stuff_classes: Numbers of the classes of which there are no single things, such as sky: with `"panoptic"` all of
            one class are one segment. Authors' figures on COCO are with 80 to 132.
        threshold: Scores, in 0..1, below which a query is not a segment. None: the publisher's, 0.8; not for
            `"semantic"`.
        overlap: For `"panoptic"` the least share of its mask that a segment keeps beside those above it.
        scales: For a linear head: in which sizes the picture is looked at, in relation to `config.short_side`; shares
            of classes are averaged. DINOv2 is measured with `(1.0, 1.32, 1.73, 2.28, 3.0)` for heads on four blocks.
        flip: For a linear head: whether the mirror image counts as much.
        batch_size: Crops computed at a time.

    Returns:
        A `Segmentation` of the size of the picture.

    Raises:
        OSError, ImportError: if the file cannot be opened; if Pillow or tifffile is missing.
        TypeError, ValueError: if an argument is invalid, or the picture cannot be decoded or has a size or channels
            that the model does not take.

    Examples:
        >>> result = keras_vit.segmentation.segment(eomt, "photo.jpg", task="semantic")
        >>> result.map.shape == keras_vit.load_image("photo.jpg").shape[:2]
        True
    """
    config, kind = model.config, model.config.model
    if not config.classes:
        raise ValueError(f"{model.name} predicts {listing(config.tasks)}, but no classes. Load the head for them.")
    if task is None:
        task = getattr(config, "task", None) or ("panoptic" if kind == "EoMT" else "semantic")
    if kind != "EoMT":
        check_choice("task", task, ("semantic",))
    stuff = sorted_classes("stuff_classes", stuff_classes, config.classes)
    given = {"threshold": threshold, "overlap": overlap, "stuff_classes": stuff, "scales": tuple(scales), "flip": flip}
    refuse(_OF_TASKS, given, {"task": task, "model": kind})
    threshold = THRESHOLD if threshold is None else threshold
    side = getattr(config, "short_side", 1)
    if not scales or min(scales) * side < 1:
        raise ValueError(f"scales must be numbers of at least 1 / {side}, such as (1.0, 1.32), not {scales!r}.")
    pixels = read_picture(picture, config.channels)
    height, width = pixels.shape[:2]
    if max(height, width) > LONGEST * min(height, width):
        found = f"but it has {height} x {width} pixels. Crop it."
        raise ValueError(f"The longer side of picture must be at most {LONGEST} times the shorter one, {found}")
    if isinstance(model, LinearSegmenter):
        return segment_patches(model, pixels, scales, flip, batch_size)
    if isinstance(model, MultiTaskDPT):
        return segment_whole(model, pixels)
    return segment_with_queries(model, pixels, task, stuff, threshold, overlap, batch_size)


# Options that are not for every task, or not for every model.
_OF_TASKS = {
    "threshold": option(when={"task": ("panoptic", "instance")}),
    "overlap": option(0.8, when={"task": ("panoptic",)}),
    "stuff_classes": option([], when={"task": ("panoptic",)}),
    "scales": option((1.0,), when={"model": ("LinearSegmenter",)}),
    "flip": option(False, when={"model": ("LinearSegmenter",)}),
}


# Crops that slide over a picture, and maps that are put together again

# A function `rows(start, stop)` that computes these rows of a map, float32 `(stop - start, width, values)`: whole maps
# of many values a pixel would not fit into memory.
Rows = Callable[[int, int], np.ndarray]
_STRIP = 2**22  # values of a map that are computed at a time


class Window(NamedTuple):
    """A crop of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, picture: np.ndarray) -> np.ndarray:
        """Returns the pixels of a picture `(height, width, ...)` that lie in it, a view."""
        return picture[self.top : self.top + self.height, self.left : self.left + self.width]


def sliding(size: tuple[int, int], crop: tuple[int, int], stride: tuple[int, int]) -> list[Window]:
    """Returns windows at distances `stride`, row by row, that cover a picture (mmsegmentation)."""
    sides = tuple(map(min, crop, size))
    starts = []
    for length, side, step in zip(size, crop, stride, strict=True):
        count = max(length - side + step - 1, 0) // step + 1
        starts.append([max(min(i * step, length - side), 0) for i in range(count)])
    return [Window(top, left, *sides) for top in starts[0] for left in starts[1]]


def spread(size: tuple[int, int], side: int) -> list[Window]:
    """The least number of square windows of a side that cover a picture whose shorter side is the same (EoMT)."""
    count = math.ceil(max(size) / side)
    overlap = (count * side - max(size)) / (count - 1) if count > 1 else 0.0
    starts = [int(i * (side - overlap)) for i in range(count)]
    return [Window(*((start, 0) if size[0] > size[1] else (0, start)), side, side) for start in starts]


def rows_of(values: np.ndarray) -> Rows:
    """Returns a function `(start, stop)` that returns these rows of an array `(height, width, values)`."""
    return lambda start, stop: values[start:stop]


def stretched(rows: Rows, old: tuple[int, int], new: tuple[int, int]) -> Rows:
    """Returns a function `(start, stop)` of the rows of a map after a bilinear resize from size `old` to `new`."""
    if tuple(old) == tuple(new):
        return rows
    # The neighbours of each new place in the old map, and how far it lies from the first one to the second.
    (top, bottom, down), (left, right, across) = map(_neighbours, old, new)
    down, across = down[:, None, None], across[:, None]

    def stretched_rows(start: int, stop: int) -> np.ndarray:
        part, first = slice(start, stop), top[start]
        needed = rows(first, bottom[stop - 1] + 1)
        upper, lower = needed[top[part] - first], needed[bottom[part] - first]
        lines = _between(upper, lower, down[part])
        return _between(lines[:, left], lines[:, right], across)

    return stretched_rows


def largest(rows: Rows, old: tuple[int, int], new: tuple[int, int], values: int) -> np.ndarray:
    """Returns which of so many values of a map, after `stretched`, is the largest at each place: int32 `(*new)`."""
    (top, bottom, down), (left, right, across) = map(_neighbours, old, new)
    found = np.empty(new, "int32")
    for start, stop in strips((new[0], max(1, old[0] * old[1] // new[0])), values):
        first = top[start]
        given = rows(first, bottom[stop - 1] + 1)
        upper, lower = top[start:stop] - first, bottom[start:stop] - first
        best = given.argmax(-1)
        above = best[upper]
        agree = above == best[lower]
        agree = agree[:, left] & agree[:, right] & (above[:, left] == above[:, right])
        found[start:stop] = above[:, left]
        places = np.argwhere(~agree)
        for part in np.array_split(places, 1 + len(places) * values // _STRIP):
            y, x = part.T
            corners = ((given[upper[y], side], given[lower[y], side]) for side in (left[x], right[x]))
            near, far = (_between(*pair, down[start + y, None]) for pair in corners)
            found[start + y, x] = _between(near, far, across[x, None]).argmax(-1)
    return found


def merged(width: int, windows: Sequence[Window], maps: Sequence[Rows]) -> Rows:
    """Returns a function `(start, stop)` of the rows of the mean of maps in overlapping windows."""

    def merged_rows(start: int, stop: int) -> np.ndarray:
        total: Any = None
        count = np.zeros((stop - start, width, 1), "float32")
        for window, rows in zip(windows, maps, strict=True):
            first, last = max(start, window.top), min(stop, window.top + window.height)
            if first < last:
                values = rows(first - window.top, last - window.top)
                if total is None:  # only now it is known how many values a place has
                    total = np.zeros((stop - start, width, values.shape[2]), "float32")
                place = slice(first - start, last - start), slice(window.left, window.left + window.width)
                total[place] += values
                count[place] += 1
        return np.divide(total, count, out=total)

    return merged_rows


def strips(size: tuple[int, int], values: int) -> Iterator[tuple[int, int]]:
    """Yields first and last row (excluded) of the parts in which a map with so many values a pixel is computed."""
    step = max(1, _STRIP // (size[1] * values))
    for start in range(0, size[0], step):
        yield start, min(start + step, size[0])


def _between(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Returns the linear mean of two arrays: `first` where the share is 0, `second` where it is 1."""
    return first + (second - first) * share


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what `neighbours` does, with float32 shares: the old places before and behind each new one, shares."""
    first, second, share = neighbours(old, new)
    return first, second, share.astype("float32")


# With a linear head


def segment_patches(
    model: LinearSegmenter, pixels: np.ndarray, scales: Sequence[float], flip: bool, batch_size: int
) -> Segmentation:
    """The class of each pixel of a picture `(height, width, channels)`, by scales and mirror images on average."""
    config, size = model.config, (pixels.shape[0], pixels.shape[1])
    images = []
    for scale in scales:
        image = _resized(pixels, config, scale)
        images.append(image if config.include_preprocessing else config.pipeline.normalized(image))
    if len(images) == 1 and not flip:  # a softmax would not change which is largest
        rows, inner = _logits(model, images[0], batch_size)
        return semantic(largest(rows, inner, size, config.classes), config.class_names)
    maps: list[Rows] = []
    for image in images:
        maps.append(stretched(*_logits(model, image, batch_size), size))
        if flip:
            mirrored = stretched(*_logits(model, image[:, ::-1], batch_size), size)
            maps.append(_mirrored(mirrored))
    if not config.zero_shot and config.pictures != "tips_slide":  # cosines, or shares already
        maps = [_shares(rows) for rows in maps]
    found = np.empty(size, "int32")
    for start, stop in strips(size, config.classes):
        total = sum((rows(start, stop) for rows in maps), np.zeros(()))
        found[start:stop] = total.argmax(-1)
    return semantic(found, config.class_names)


def _mirrored(rows: Rows) -> Rows:
    return lambda start, stop: rows(start, stop)[:, ::-1]


def _resized(pixels: np.ndarray, config: LinearSegmenterConfig, scale: float) -> np.ndarray:
    """Returns a picture whose shorter side is the config's times a scale, truncated, by its publisher's resizing."""
    height, width = pixels.shape[:2]
    short = int(config.short_side * scale)
    if config.pictures == "dinov2":
        factor = short / min(height, width)  # mmcv's `rescale_size`, then OpenCV, which rounds bytes only
        size = int(height * factor + 0.5), int(width * factor + 0.5)
        return resized(pixels, size, "opencv")
    is_tips = config.pictures.startswith("tips")
    long = int(short * max(height, width) / min(height, width) + (0 if is_tips else 0.5))
    size = (short, long) if height <= width else (long, short)
    return resized(pixels, size, "bicubic" if is_tips else "bilinear_pillow")


def _logits(model: LinearSegmenter, image: np.ndarray, batch_size: int) -> tuple[Rows, tuple[int, int]]:
    """Returns a function for rows of the map of logits of an image, and the size of that map."""
    config, size = model.config, (image.shape[0], image.shape[1])
    is_whole, is_tips = config.pictures == "tips_whole", config.pictures.startswith("tips")
    windows = [Window(0, 0, *size)] if is_whole else sliding(size, config.crop_size, config.stride)
    crop = windows[0][2:]
    maps: list[Rows] = []
    grid = size
    for first in range(0, len(windows), batch_size):
        crops = np.stack([window.of(image) for window in windows[first : first + batch_size]])
        count = len(crops)
        # Several batches have one shape: some backends compile for each.
        if len(windows) > batch_size:
            crops = fill_up(crops, batch_size)
        crops = _stretched_to_patches(crops, config) if is_tips else _padded_to_patches(crops, config)
        for logits in to_numpy(model.predict_on_batch(crops))[:count].astype("float32"):
            grid = (logits.shape[0], logits.shape[1])
            # The grid that the padding belongs to is stretched over the crop without it, as in the original.
            maps.append(rows_of(logits) if is_whole else stretched(rows_of(logits), grid, crop))
    if is_whole:
        return maps[0], grid
    maps = [_shares(rows) for rows in maps] if is_tips else maps
    return merged(image.shape[1], windows, maps), size


def _padded_to_patches(crops: np.ndarray, config: LinearSegmenterConfig) -> np.ndarray:
    """Returns float crops with margins up to whole patches, which are 0 once they are normalised (DINOv2)."""
    margins = [(0, 0), *centre_margins(crops.shape[1:3], config.patch_size), (0, 0)]
    grey = 255 * np.asarray(config.pipeline.mean, "float32") if config.include_preprocessing else np.float32(0)
    return np.pad(crops - grey, margins) + grey


def _stretched_to_patches(crops: np.ndarray, config: LinearSegmenterConfig) -> np.ndarray:
    """Returns crops enlarged to whole patches, without antialiasing (TIPS)."""
    pairs = zip(crops.shape[1:3], config.patch_size, strict=True)
    size = tuple(math.ceil(side / patch) * patch for side, patch in pairs)
    return crops if size == crops.shape[1:3] else resized(crops, size, "bicubic_hf")


def _shares(rows: Rows) -> Rows:
    return lambda start, stop: softmax(rows(start, stop))


def segment_whole(model: MultiTaskDPT, pixels: np.ndarray) -> Segmentation:
    """Returns the class of each pixel of a picture that a TIPS 2 sees whole, squashed to its size."""
    config = model.config
    images = resized(pixels, config.picture_size, TIPS_PICTURES[config.pictures])[None]
    found = model.predict_on_batch(config.backbone.pipeline.normalized(images))
    logits = (found["segmentation"] if isinstance(found, dict) else found)[0].astype("float32")
    classes = largest(rows_of(logits), logits.shape[:2], pixels.shape[:2], config.classes)
    return semantic(classes, config.class_names)


# With an EoMT


def segment_with_queries(
    model: EoMT, pixels: np.ndarray, task: str, stuff: Sequence[int], threshold: float, overlap: float, batch_size: int
) -> Segmentation:
    """Returns the segments of a picture `(height, width, channels)` that an EoMT finds."""
    config, size = model.config, (pixels.shape[0], pixels.shape[1])
    side, is_semantic = config.image_size[0], task == "semantic"
    crops, windows, inner = prepared(config, pixels, is_semantic)
    parts = [model.predict_on_batch(crops[i : i + batch_size]) for i in range(0, len(crops), batch_size)]
    classes, masks = (np.concatenate([np.asarray(part[name]) for part in parts]) for name in ("classes", "masks"))
    shares = softmax(classes.astype("float32"))
    if is_semantic:
        maps = [
            _class_rows(_rows(mask, (side, side)), share[:, :-1]) for mask, share in zip(masks, shares, strict=True)
        ]
        found = largest(merged(inner[1], windows, maps), inner, size, config.classes)
        return semantic(found, config.class_names)

    at_size = functools.partial(_at_size, masks[0], side, inner, size)
    if task == "panoptic":
        return _panoptic(at_size, shares[0], size, config, stuff, threshold, overlap)
    return _instances(at_size, shares[0], size, config, threshold)


def _at_size(masks: np.ndarray, side: int, inner: Size, size: Size, kept: np.ndarray) -> Rows:
    """Returns a function for rows of the masks of some queries, without the padding, at the picture's size."""
    rows = _rows(masks[kept], (side, side))
    return stretched(lambda start, stop: rows(start, stop)[:, : inner[1]], inner, size)


def best_masks(model: EoMT, pixels: np.ndarray, most: int) -> dict[str, np.ndarray]:
    """Returns `masks`, `scores` and `labels` of the best pairs of a query and a class, as EoMT's authors measure AP.

    Source: `training/mask_classification_instance.py` of tue-mps/eomt.
    """
    config, size = model.config, (pixels.shape[0], pixels.shape[1])
    crops, _, inner = prepared(config, pixels, False)
    output = {name: np.asarray(values)[0].astype("float32") for name, values in model.predict_on_batch(crops).items()}
    pairs = softmax(output["classes"])[:, :-1].ravel()
    best = np.argsort(-pairs, kind="stable")[:most]
    queries, places = np.unique(best // config.classes, return_inverse=True)
    rows = _at_size(output["masks"], config.image_size[0], inner, size, queries)
    masks, total = np.empty((len(queries), *size), bool), np.zeros(len(queries))
    for start, stop in strips(size, max(len(queries), 1)):
        logits = rows(start, stop)
        masks[:, start:stop] = np.moveaxis(logits > 0, -1, 0)
        total += (sigmoid(logits) * (logits > 0)).sum((0, 1), dtype="float64")
    sure = total / (masks.sum((1, 2)) + 1e-6)
    return {"masks": masks[places], "scores": pairs[best] * sure[places], "labels": best % config.classes}


def prepared(config: EoMTConfig, pixels: np.ndarray, whole: bool) -> tuple[np.ndarray, list[Window], Size]:
    """Returns crops of a picture `(height, width, channels)` for an EoMT, their windows, and its size in them."""
    side = config.image_size[0]
    size = (pixels.shape[0], pixels.shape[1])
    inner = _covering(size, side, config.pictures) if whole else _fitting(size, side, config.pictures)
    is_torchvision = config.pictures == "eomt_transformers" and pixels.dtype == np.uint8
    image = resized(pixels, inner, "torchvision_bilinear" if is_torchvision else config.backbone.filter)
    windows = spread(inner, side) if whole else [Window(0, 0, side, side)]
    if not whole:  # black before pixels are normalised; patches leave out what is beyond the side
        inner = min(inner[0], side), min(inner[1], side)
        image = np.pad(image[:side, :side], ((0, side - inner[0]), (0, side - inner[1]), (0, 0)))
    crops = np.stack([window.of(image) for window in windows])
    vit = config.backbone
    crops = crops if vit.include_preprocessing else vit.pipeline.normalized(crops)
    return crops, windows, inner


def _covering(size: Size, side: int, preprocessing: str) -> Size:
    """Returns a size in about the same aspect ratio whose shorter side is `side`."""
    short, long = min(size), max(size)
    new = round(long * side / short) if preprocessing == "eomt_authors" else int(side * long / short)
    return (side, new) if size[0] <= size[1] else (new, side)


def _fitting(size: Size, side: int, preprocessing: str) -> Size:
    """Returns a size in about the same aspect ratio whose longer side is about `side`; no side is 0."""
    height, width = size
    if preprocessing == "eomt_authors":
        factor = min(side / height, side / width)
        return max(round(height * factor), 1), max(round(width * factor), 1)
    # As transformers' `get_size_with_aspect_ratio`, which rounds the shorter side and cuts off the longer one's
    # fraction, and leaves a picture as it is whose shorter side stays: that may be a little longer than `side`.
    if height == width:
        return side, side
    short, long = min(size), max(size)
    exact = side * short / long
    new_long = long if round(exact) == short else int(exact * long / short)
    new_short = max(round(exact), 1)
    return (new_short, new_long) if height < width else (new_long, new_short)


def _rows(masks: np.ndarray, new: Size) -> Rows:
    """Returns a function for rows of masks `(queries, rows, columns)` at a new size, with queries as the last axis."""
    logits = np.ascontiguousarray(np.moveaxis(masks.astype("float32"), 0, -1))
    return stretched(rows_of(logits), (masks.shape[1], masks.shape[2]), new)


def _class_rows(logits: Rows, shares: np.ndarray) -> Rows:
    return lambda start, stop: sigmoid(logits(start, stop)) @ shares


def _panoptic(
    at_size: Callable[[np.ndarray], Rows],
    shares: np.ndarray,
    size: Size,
    config: EoMTConfig,
    stuff: Sequence[int],
    threshold: float,
    overlap: float,
) -> Segmentation:
    labels, scores = shares.argmax(-1), shares.max(-1)
    queries = np.flatnonzero((labels != config.classes) & (scores > threshold))
    count = len(queries)
    best = np.full(size, -1, "int32")  # the best query of each pixel, as a place in `queries`
    best_pixels, mask_pixels, kept_pixels = (np.zeros(count, "int64") for _ in range(3))
    rows = at_size(queries)
    for start, stop in strips(size, count) if count else ():
        probabilities = sigmoid(rows(start, stop))
        winner = (scores[queries] * probabilities).argmax(-1)
        lies = np.take_along_axis(probabilities, winner[..., None], -1)[..., 0] >= INSIDE
        best_pixels += np.bincount(winner.ravel(), minlength=count)
        mask_pixels += (probabilities >= INSIDE).sum((0, 1))
        kept_pixels += np.bincount(winner[lies], minlength=count)
        best[start:stop] = np.where(lies, winner, -1)
    ids = np.full(count + 1, -1)  # of each place in `queries`; the last, which -1 finds, is that of no mask
    segments: list[Segment] = []
    ids_of_stuff: dict[int, int] = {}
    for i, query in enumerate(queries.tolist()):
        share = best_pixels[i] / max(mask_pixels[i], 1)
        if config.pictures == "eomt_transformers":  # which divides in float32, where 4/5 is more than 0.8
            keeps_enough = float(np.float32(share)) > overlap
        else:
            keeps_enough = share >= overlap
        if not kept_pixels[i] or not keeps_enough:
            continue
        label = int(labels[query])
        if label in ids_of_stuff:
            ids[i] = ids_of_stuff[label]
            continue
        ids[i] = len(segments)
        if label in stuff:
            ids_of_stuff[label] = len(segments)
        segments.append(Segment(len(segments), label, label_of(config.class_names, label), float(scores[query]), 0))
    found = ids[best].astype("int32")
    areas = np.bincount(found[found >= 0], minlength=len(segments)).tolist()
    parts = (dataclasses.replace(segment, area=areas[segment.id]) for segment in segments)
    return Segmentation(found, tuple(parts), "panoptic")


def _instances(
    at_size: Callable[[np.ndarray], Rows], shares: np.ndarray, size: Size, config: EoMTConfig, threshold: float
) -> Segmentation:
    labels, scores = shares[:, :-1].argmax(-1), shares[:, :-1].max(-1)
    found = np.full(size, -1, "int32")
    queries = np.flatnonzero(scores >= threshold)  # the mask's own probability only lowers a score
    total, count = np.zeros(len(queries)), np.zeros(len(queries))
    rows = at_size(queries)
    for start, stop in strips(size, max(len(queries), 1)):
        logits = rows(start, stop)
        lies = logits > 0
        total += (sigmoid(logits) * lies).sum((0, 1), dtype="float64")
        count += lies.sum((0, 1))
    sure = scores[queries] * (total / (count + 1e-6))
    kept = (count > 0) & (sure >= threshold)
    queries, sure, count = queries[kept], sure[kept], count[kept]
    rows = at_size(queries)
    for start, stop in strips(size, max(len(queries), 1)):
        logits = rows(start, stop)
        for i in range(len(queries)):
            found[start:stop][logits[..., i] > 0] = i
    segments = tuple(
        Segment(i, int(labels[q]), label_of(config.class_names, int(labels[q])), float(score), int(area))
        for i, (q, score, area) in enumerate(zip(queries, sure, count, strict=True))
    )
    return Segmentation(found, segments, "instance")


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities of logits."""
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: its inverse is 0
        return 1 / (1 + np.exp(-logits))
