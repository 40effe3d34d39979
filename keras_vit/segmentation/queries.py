"""Pictures of any size to segments with an EoMT: preparation and reading as its authors and as transformers do it.

Logits of masks are resized a few rows at a time: memory depends on the picture, and not on queries times pixels.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from keras_vit._arguments import softmax
from keras_vit.interpolation import torchvision_resized
from keras_vit.models import EoMT, EoMTConfig
from keras_vit.preprocessing import Pipeline
from keras_vit.preprocessing.windows import (
    Rows,
    Window,
    largest,
    merged,
    rows_of,
    spread,
    stretched,
    strips,
)
from keras_vit.segmentation.results import Segment, Segmentation, label_of, semantic

Size = tuple[int, int]
INSIDE = 0.5  # the probability from which a pixel lies in a mask


def segment_with_queries(
    model: EoMT, pixels: np.ndarray, task: str, stuff: Sequence[int], threshold: float, overlap: float, batch_size: int
) -> Segmentation:
    """The segments of a picture `(height, width, 3)` that an EoMT finds; the arguments are those of `segment`."""
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

    def at_size(kept: np.ndarray) -> Rows:
        """The masks of some queries, without the padding."""
        rows = _rows(masks[0][kept], (side, side))
        return stretched(lambda start, stop: rows(start, stop)[:, : inner[1]], inner, size)

    if task == "panoptic":
        return _panoptic(at_size, shares[0], size, config, stuff, threshold, overlap)
    return _instances(at_size, shares[0], size, config, threshold)


def prepared(config: EoMTConfig, pixels: np.ndarray, whole: bool) -> tuple[np.ndarray, list[Window], Size]:
    """The crops of a picture `(height, width, 3)` for an EoMT, their windows, and the size that the picture came to.

    Where `whole`, crops cover the picture, whose shorter side becomes the model's; else there is one crop, in which the
    longer side is the model's, with black beside the picture.
    """
    side = config.image_size[0]
    size = (pixels.shape[0], pixels.shape[1])
    inner = _covering(size, side, config.pictures) if whole else _fitting(size, side, config.pictures)
    if config.pictures == "eomt_transformers" and pixels.dtype == np.uint8:
        resized = torchvision_resized(pixels, inner, "bilinear_antialias")
    else:
        resized = Pipeline(inner, filter=config.backbone.filter).resized(pixels)[0]
    windows = spread(inner, side) if whole else [Window(0, 0, side, side)]
    if not whole:  # black before pixels are normalised
        resized = np.pad(resized, ((0, side - inner[0]), (0, side - inner[1]), (0, 0)))
    crops = np.stack([window.of(resized) for window in windows])
    vit = config.backbone
    crops = crops if vit.include_preprocessing else vit.pipeline.normalized(crops)
    return crops, windows, inner


def _covering(size: Size, side: int, preprocessing: str) -> Size:
    """The size whose shorter side is `side`."""
    short, long = min(size), max(size)
    new = round(long * side / short) if preprocessing == "eomt_authors" else int(side * long / short)
    return (side, new) if size[0] <= size[1] else (new, side)


def _fitting(size: Size, side: int, preprocessing: str) -> Size:
    """The size of a picture after a resize that keeps its aspect ratio: the longer side becomes `side`."""
    height, width = size
    if preprocessing == "eomt_authors":
        factor = min(side / height, side / width)
        return round(height * factor), round(width * factor)
    # As transformers' `get_size_with_aspect_ratio`, which rounds the shorter side and cuts off the longer one's
    # fraction, and leaves a picture as it is whose shorter side stays.
    if height == width:
        return side, side
    short, long = min(size), max(size)
    exact = side * short / long
    new_short = round(exact)
    new_long = long if new_short == short else int(exact * long / short)
    return (new_short, new_long) if height < width else (new_long, new_short)


def _rows(masks: np.ndarray, new: Size) -> Rows:
    """Rows of the logits of masks `(queries, rows, columns)` at a size, with the queries as the last axis."""
    logits = np.ascontiguousarray(np.moveaxis(masks.astype("float32"), 0, -1))
    return stretched(rows_of(logits), (masks.shape[1], masks.shape[2]), new)


def _class_rows(logits: Rows, shares: np.ndarray) -> Rows:
    """For each pixel the sum over queries of class times mask."""
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
    """The panoptic segments of a picture, from the probabilities of each query's classes and from its mask.

    Each pixel goes to the query with the largest score times probability, if it lies in that query's mask. Segments
    that keep too little of their mask are dropped, and those of a class in `stuff` become one.
    """
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
        if not kept_pixels[i] or not _keeps_enough(best_pixels[i] / mask_pixels[i], overlap, config.pictures):
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


def _keeps_enough(share: float, overlap: float, preprocessing: str) -> bool:
    """Whether a segment keeps so much of its mask that it counts."""
    if preprocessing == "eomt_transformers":  # which divides in float32, where 4/5 is more than 0.8
        return float(np.float32(share)) > overlap
    return share >= overlap


def _instances(
    at_size: Callable[[np.ndarray], Rows], shares: np.ndarray, size: Size, config: EoMTConfig, threshold: float
) -> Segmentation:
    """The instance segments of a picture: a segment for every query that is sure of its class and of its mask.

    A score is that of the class times the mean probability inside the mask. Where masks overlap, later ones lie above.
    """
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
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: its inverse is 0
        return 1 / (1 + np.exp(-logits))
