"""From a picture of any size to its segments, with a linear head and with an EoMT.

With a linear head: crops that slide, several scales, mirror images, as the evaluations of DINOv2 and DINOv3 do it, and
the notebook of TIPS with vectors of texts. With an EoMT: as its authors and as transformers do it. Logits are resized a
few rows at a time: memory depends on the picture, and not on classes or queries times pixels.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice, check_flag, softmax, to_numpy, whole_number
from keras_vit._options import SHARE
from keras_vit._processes import fill_up
from keras_vit.interpolation import opencv_resized, torchvision_resized
from keras_vit.models import EoMT, EoMTConfig, LinearSegmenter, LinearSegmenterConfig
from keras_vit.preprocessing import Pipeline, resize_images
from keras_vit.preprocessing.images import centre_margins
from keras_vit.preprocessing.windows import (
    Rows,
    Window,
    largest,
    merged,
    read_picture,
    rows_of,
    sliding,
    spread,
    stretched,
    strips,
)
from keras_vit.segmentation.results import Segment, Segmentation, check_classes, label_of, semantic

Size = tuple[int, int]
INSIDE = 0.5  # the probability from which a pixel lies in a mask
TASKS = ("semantic", "panoptic", "instance")
THRESHOLD = 0.8  # of EomtImageProcessor's post-processing in transformers 5.23 and 5.24, for both tasks
LONGEST = 50  # how often the shorter side of a picture may fit into the longer one: crops are laid along that


def segment(
    model: Any,
    picture: Any,
    *,
    task: str | None = None,
    stuff_classes: Collection[int] = (),
    threshold: float | None = None,
    overlap: float = 0.8,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    batch_size: int = 4,
) -> Segmentation:
    """Returns the segments of a picture of any size, found as the model's publisher does (`model.config.pictures`).

    Args:
        model: A segmentation model, an `EoMT` or a `LinearSegmenter`, such as `keras_vit.load` returns.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)` of 0..255.
        task: `"semantic"`: a class for each pixel; `"panoptic"`: also which thing it is; `"instance"`: things alone,
            which may overlap. None for the one that the model's file says, else `"panoptic"`. A linear head knows
            `"semantic"` only.
        stuff_classes: Numbers of the classes of which there are no single things, such as sky: with `"panoptic"` all
            of one class are one segment. Authors' figures on COCO are with 80 to 132.
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
        ImportError: if Pillow is missing for a file, or tifffile for a TIFF of other channels than three.
        OSError: if the file is not there (FileNotFoundError) or cannot be opened.
        TypeError, ValueError: if an argument is invalid, or the picture cannot be decoded, has other channels or
            values, one side more than 50 times as long as the other, or a size that the model does not take.

    Source: EoMT's `training/lightning_module.py` and `training/mask_classification_panoptic.py`; `EomtImageProcessor`
    of transformers; `slide_inference` and `aug_test` of mmsegmentation, as DINOv2 calls them.

    Examples:
        >>> result = keras_vit.segmentation.segment(eomt, "photo.jpg", task="semantic")
        >>> result.map.shape == keras_vit.load_image("photo.jpg").shape[:2]
        True
    """
    if not isinstance(model, (EoMT, LinearSegmenter)):
        raise TypeError(
            f"model must be a segmentation model, EoMT or LinearSegmenter, but {type(model).__name__} was given."
        )
    config, linear = model.config, isinstance(model, LinearSegmenter)
    if task is None:
        task = getattr(config, "task", None) or ("semantic" if linear else "panoptic")
    check_choice("task", task, ("semantic",) if linear else TASKS)
    if (threshold is not None and task == "semantic") or (overlap != 0.8 and task != "panoptic"):
        raise ValueError(
            "threshold applies to task='panoptic' and 'instance' of an EoMT, overlap to 'panoptic' alone, but "
            f"task={task!r} was given. Leave them out."
        )
    threshold = SHARE("threshold", THRESHOLD if threshold is None else threshold)
    overlap = SHARE("overlap", overlap)
    whole_number("batch_size", batch_size, 1)
    check_flag("flip", flip)
    stuff = check_classes("stuff_classes", stuff_classes, config.classes)
    if stuff and task != "panoptic":
        raise ValueError(f"stuff_classes={stuff!r} needs task='panoptic', but task={task!r} was given.")
    scales = list(scales)
    if not linear and (scales != [1.0] or flip):
        raise ValueError("scales and flip apply to models with a linear head. An EoMT has one scale: leave them out.")
    side = getattr(config, "short_side", 1)
    if not scales or not all(isinstance(scale, numbers.Real) and 1 <= side * scale < math.inf for scale in scales):
        raise ValueError(
            f"scales must be numbers of at least 1 / {side}, such as (1.0, 1.32), but {scales!r} was given."
        )
    pixels = read_picture(picture, config.channels)
    height, width = pixels.shape[:2]
    if max(height, width) > LONGEST * min(height, width):
        raise ValueError(
            f"The longer side of picture must be at most {LONGEST} times the shorter one, but it has "
            f"{height} x {width} pixels. Crop it."
        )
    if linear:
        return segment_patches(model, pixels, scales, flip, batch_size)
    return segment_with_queries(model, pixels, task, stuff, threshold, overlap, batch_size)


# With a linear head


def segment_patches(
    model: LinearSegmenter, pixels: np.ndarray, scales: Sequence[float], flip: bool, batch_size: int
) -> Segmentation:
    """The class of each pixel of a picture `(height, width, channels)`, by scales and mirror images on average."""
    config, size = model.config, (pixels.shape[0], pixels.shape[1])
    images = []
    for scale in scales:
        image = _resized(pixels, config, scale).astype("float32")
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
    """Returns a function for the same rows with left and right exchanged."""
    return lambda start, stop: rows(start, stop)[:, ::-1]


def _resized(pixels: np.ndarray, config: LinearSegmenterConfig, scale: float) -> np.ndarray:
    """Returns a picture whose shorter side is the config's times a scale, truncated, by its publisher's resizing."""
    height, width = pixels.shape[:2]
    short = int(config.short_side * scale)
    if config.pictures == "dinov2":
        factor = short / min(height, width)  # mmcv's `rescale_size`, then OpenCV, which rounds bytes only
        size = int(height * factor + 0.5), int(width * factor + 0.5)
        return opencv_resized(pixels, size) if pixels.dtype == np.uint8 else resize_images(pixels, size)
    is_tips = config.pictures.startswith("tips")
    long = int(short * max(height, width) / min(height, width) + (0 if is_tips else 0.5))
    size = (short, long) if height <= width else (long, short)
    return Pipeline(size, filter="bicubic" if is_tips else "bilinear_pillow").resized(pixels, pixels.shape[2])[0]


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
    return crops if size == crops.shape[1:3] else resize_images(crops, size, "bicubic_hf")


def _shares(rows: Rows) -> Rows:
    """Returns a function for the softmax over the classes of the same rows."""
    return lambda start, stop: softmax(rows(start, stop))


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
        total += (_sigmoid(logits) * (logits > 0)).sum((0, 1), dtype="float64")
    sure = total / (masks.sum((1, 2)) + 1e-6)
    return {"masks": masks[places], "scores": pairs[best] * sure[places], "labels": best % config.classes}


def prepared(config: EoMTConfig, pixels: np.ndarray, whole: bool) -> tuple[np.ndarray, list[Window], Size]:
    """Returns crops of a picture `(height, width, channels)` for an EoMT, their windows, and its size in them."""
    side = config.image_size[0]
    size = (pixels.shape[0], pixels.shape[1])
    inner = _covering(size, side, config.pictures) if whole else _fitting(size, side, config.pictures)
    if config.pictures == "eomt_transformers" and pixels.dtype == np.uint8:
        resized = torchvision_resized(pixels, inner, "bilinear_antialias")
    else:
        resized = Pipeline(inner, filter=config.backbone.filter).resized(pixels, pixels.shape[2])[0]
    windows = spread(inner, side) if whole else [Window(0, 0, side, side)]
    if not whole:  # black before pixels are normalised; patches leave out what is beyond the side
        inner = min(inner[0], side), min(inner[1], side)
        resized = np.pad(resized[:side, :side], ((0, side - inner[0]), (0, side - inner[1]), (0, 0)))
    crops = np.stack([window.of(resized) for window in windows])
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
    """Returns a function for rows of scores of classes: for each pixel the sum over queries of class times mask."""
    return lambda start, stop: _sigmoid(logits(start, stop)) @ shares


def _panoptic(
    at_size: Callable[[np.ndarray], Rows],
    shares: np.ndarray,
    size: Size,
    config: EoMTConfig,
    stuff: Sequence[int],
    threshold: float,
    overlap: float,
) -> Segmentation:
    """Returns the panoptic segments of a picture, from the probabilities of each query's classes and from its mask."""
    labels, scores = shares.argmax(-1), shares.max(-1)
    queries = np.flatnonzero((labels != config.classes) & (scores > threshold))
    count = len(queries)
    best = np.full(size, -1, "int32")  # the best query of each pixel, as a place in `queries`
    best_pixels, mask_pixels, kept_pixels = (np.zeros(count, "int64") for _ in range(3))
    rows = at_size(queries)
    for start, stop in strips(size, count) if count else ():
        probabilities = _sigmoid(rows(start, stop))
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
    """Returns the instances of a picture: a segment for each query that is sure of its class and of its mask."""
    labels, scores = shares[:, :-1].argmax(-1), shares[:, :-1].max(-1)
    found = np.full(size, -1, "int32")
    queries = np.flatnonzero(scores >= threshold)  # the mask's own probability only lowers a score
    total, count = np.zeros(len(queries)), np.zeros(len(queries))
    rows = at_size(queries)
    for start, stop in strips(size, max(len(queries), 1)):
        logits = rows(start, stop)
        lies = logits > 0
        total += (_sigmoid(logits) * lies).sum((0, 1), dtype="float64")
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


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities of logits."""
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: its inverse is 0
        return 1 / (1 + np.exp(-logits))
