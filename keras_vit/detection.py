"""Object detection: from a picture to boxes with names and scores, and COCO's average precision.

Boxes are read as OWL-ViT's and OWLv2's publishers do it, precision and recall computed as by pycocotools 2.0.11
(`cocoeval.py`).
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from keras_vit._arguments import check_class_names, check_type, to_numpy
from keras_vit._files import ending_of, write_text
from keras_vit._options import Positive, Share, as_python, checked
from keras_vit._pictures import safe_colours
from keras_vit._processes import connect
from keras_vit._terminal import ClassesResult, Column, PlainData, Table
from keras_vit.data import ImageStream
from keras_vit.data.augmentation import target_parts
from keras_vit.data.boxes import BOXES
from keras_vit.data.segments import SEGMENTS
from keras_vit.models import Detector, EoMT
from keras_vit.preprocessing.images import picture_to_draw, read_picture
from keras_vit.segmentation.metrics import whole_pictures
from keras_vit.segmentation.plots import plot_named
from keras_vit.segmentation.segmenting import best_masks, label_of, sigmoid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Detection", "MeanAP", "MeanAPResult", "detect", "evaluate", "plot", "suppressed"]

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the intersection over union
_RECALLS = np.linspace(0, 1, 101)
_AREAS = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])  # all, small, medium, large: both ends belong
MOST = (1, 10, 100)  # detections of a class in a picture
_FALSE, _TRUE, _IGNORED = range(3)  # what a detection is at a threshold, for a range of areas


@dataclasses.dataclass(frozen=True, eq=False)
class Detection(PlainData):
    """The boxes of a picture, in the order of the patches that found them.

    Attributes:
        boxes: float32 `(k, 4)`: left, top, right and bottom in pixels; a box may reach beyond the picture.
        scores: float32 `(k,)`: how likely each is, in 0..1.
        labels: int32 `(k,)`: the class of each.
        names: The name of each box's class.
        objectness: float32 `(k,)`: the probability that the patch has an object of any class; None without such a head.

    Examples:
        >>> detection.detect(detector, "photo.jpg", threshold=0.99).names
        ()
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    objectness: np.ndarray | None = None

    def to_coco(self, image_id: int | str, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Returns the boxes in COCO's result format: left, top, width and height, and the id of the class's category.

        Args:
            image_id: The id of the picture in COCO's file.
            category_ids: The id of the category of each class; None for the class's number plus 1.

        Raises:
            ValueError: if there are fewer ids than classes.
        """
        if category_ids is not None and self.labels.max(initial=-1) >= len(category_ids):
            least = f"an id for each class, at least {self.labels.max() + 1}"
            raise ValueError(f"category_ids must have {least}, but {len(category_ids)} were given.")
        rows = zip(self.boxes.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        return [
            {
                "image_id": as_python(image_id),
                "category_id": label + 1 if category_ids is None else int(category_ids[label]),
                "bbox": [left, top, right - left, bottom - top],
                "score": score,
            }
            for (left, top, right, bottom), score, label in rows
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the boxes as `.json` (`to_dict`) or `.csv` (a row per box); no half-written file is ever left.

        Raises:
            OSError: if the file cannot be written.
            ValueError: if `path` has another ending.
        """
        if ending_of(path, ".json", ".csv") == ".json":
            write_text(path, json.dumps(self.to_dict()))
            return
        found = (*self.boxes.T, self.scores, self.labels)
        rows = zip(*(values.tolist() for values in found), self.names, strict=True)
        names = ("left", "top", "right", "bottom", "score", "label", "name")
        write_text(path, Table(dict(zip(names, row, strict=True)) for row in rows).to_csv(names))


@checked
def detect(
    model: Detector,
    picture: Any,
    *,
    threshold: Share = 0.1,
    nms: Share | None = None,
    per_class: bool = False,
    most: Positive | None = None,
) -> Detection:
    """Returns the boxes in a picture of any size, read as the model's publisher reads them (`model.config.pictures`).

    Args:
        model: A `Detector`, such as `both.zero_shot_detector(names)` returns.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)` of 0..255.
        threshold: A box is kept where its score, the sigmoid of a logit, is above this number of 0..1.
        nms: Intersection over union above which only the better of two boxes of a class stays. None: all stay.
        per_class: Whether a patch gives a box for each class above the threshold, or only for its best class.
        most: Number of boxes to keep, those with the best scores; None for all.

    Raises:
        ImportError, OSError: if `picture` is a file and Pillow is not installed, or the file cannot be opened.
        TypeError, ValueError: if an argument is invalid, or the picture cannot be decoded or has other channels.

    Examples:
        >>> found = detection.detect(detector, "photo.jpg", threshold=0.005)
        >>> found.boxes.shape == (len(found.names), 4)
        True
    """
    pixels, config = read_picture(picture, model.config.channels), model.config
    answers = model.predict_on_batch(model.preprocess(pixels))
    outputs = {name: to_numpy(values)[0].astype("float32") for name, values in answers.items()}
    scores = sigmoid(outputs["logits"])
    if per_class:
        patches, labels = np.nonzero(scores > threshold)
    else:
        best = scores.argmax(1)
        patches = np.flatnonzero(scores.max(1) > threshold)
        labels = best[patches]
    scores = scores[patches, labels]
    boxes = in_pixels(outputs["boxes"][patches], (pixels.shape[0], pixels.shape[1]), config.pictures)
    kept = np.arange(len(scores)) if nms is None else suppressed(boxes, scores, nms, labels)
    if most is not None and len(kept) > most:
        kept = np.sort(kept[np.argsort(-scores[kept], kind="stable")[:most]])
    labels = labels[kept].astype("int32")
    names = tuple(label_of(config.class_names, label) for label in labels.tolist())
    objectness = sigmoid(outputs["objectness"][patches[kept]]) if "objectness" in outputs else None
    return Detection(boxes[kept], scores[kept], labels, names, objectness)


def in_pixels(boxes: np.ndarray, size: tuple[int, int], rule: str) -> np.ndarray:
    """Boxes (centre and size, 0..1 of the model's image) as left, top, right and bottom of a picture."""
    height, width = size if rule == "owlvit" else (max(size), max(size))
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] * 0.5, boxes[:, :2] + boxes[:, 2:] * 0.5], 1)
    return corners * np.array([width, height, width, height], "float32")


def suppressed(boxes: np.ndarray, scores: np.ndarray, most: float, labels: np.ndarray | None = None) -> np.ndarray:
    """Returns which `boxes` stay, of the best `scores`, where two of one of `labels` overlap by at most `most`.

    Examples:
        >>> detection.suppressed(np.array([[0, 0, 4, 4], [0, 0, 4, 5], [9, 9, 12, 12]]), np.array([0.5, 0.9, 0.1]), 0.7)
        array([1, 2])
    """
    labels = np.zeros(len(scores)) if labels is None else labels
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        rivals = [k for k in kept if labels[k] == labels[i]]
        if not rivals or (overlaps(boxes[i : i + 1], boxes[rivals]) <= most).all():
            kept.append(i)
    return np.array(sorted(kept), "int64")


def shared_areas(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The intersections of boxes `(n, 4)` and `(m, 4)`, float64 `(n, m)`."""
    one, other = one[:, None].astype("float64"), other[None].astype("float64")
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    return sides.clip(0, None).prod(-1)


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the intersections over unions of boxes `(n, 4)` and `(m, 4)`, `(n, m)`; 0 for empty boxes."""
    shared = shared_areas(one, other)
    areas = [(box[:, 2:].astype("float64") - box[:, :2]).clip(0, None).prod(1) for box in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


@checked
def plot(found: Detection, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draws a picture with its boxes in a colour for each class, and a legend with the scores; returns the figure.

    Args:
        found: What `detect` returns.
        picture: The picture, as `detect` takes it, of three channels.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.

    Raises ImportError without matplotlib or Pillow, OSError for files, TypeError or ValueError if an argument is wrong.

    Examples:
        >>> figure = detection.plot(detection.detect(detector, "photo.jpg"), "photo.jpg", "boxes.png")
    """
    pixels = picture_to_draw(picture)
    colours = dict(zip(sorted({*found.labels.tolist()}), safe_colours(), strict=False))
    order = np.argsort(found.scores, kind="stable")  # the surest lies above
    painted = with_frames(pixels, found.boxes[order], [colours[int(label)] for label in found.labels[order]])
    labels = []
    for i in order.tolist():
        left, top = (max(int(side), 0) for side in found.boxes[i][:2].round())
        labels.append((min(left, pixels.shape[1] - 1), min(top, pixels.shape[0] - 1), found.names[i]))
    legend: list[Any] = []
    for i in order[::-1].tolist():
        legend.append((colours[int(found.labels[i])], f"{found.names[i]}  {found.scores[i]:.2f}"))
    return plot_named(painted, legend, labels, path)


def with_frames(pixels: np.ndarray, boxes: np.ndarray, colours: Sequence[Any]) -> np.ndarray:
    """Returns a picture, uint8, with a frame in a colour for each box; the last lies above."""
    painted, thick = pixels.copy(), 1 + max(pixels.shape) // 300
    for box, colour in zip(boxes, colours, strict=True):
        left, top, right, bottom = (max(int(side), 0) for side in box.round())
        inside = painted[top : bottom + 1, left : right + 1]
        middle = inside[thick:-thick, thick:-thick].copy()
        inside[:] = colour
        inside[thick:-thick, thick:-thick] = middle
    return painted


# How good boxes and masks are


@dataclasses.dataclass(frozen=True, eq=False)
class MeanAPResult(ClassesResult):
    """The result of `MeanAP`. Printing it draws a table; `class_table(worst=None)` lists the classes, worst first.

    A figure without any labelled object is NaN; pycocotools has -1 there.

    Attributes:
        pictures: Number of pictures.
        ap: The average precision: mean over the classes and the thresholds 0.50 to 0.95.
        ap50: The same at 0.50.
        ap75: The same at 0.75.
        ap_small: `ap` for objects of up to 32 x 32 pixels.
        ap_medium: `ap` for objects of 32 x 32 to 96 x 96 pixels.
        ap_large: `ap` for objects of 96 x 96 pixels or more.
        ar1: The average recall with one detection for each class and picture.
        ar10: The same with ten.
        ar100: The same with a hundred.
        ar_small: `ar100` for small objects.
        ar_medium: `ar100` for medium objects.
        ar_large: `ar100` for large objects.
        per_class: float64 `(classes,)`: `ap` of each class; NaN for a class without objects.
        truths: int64 `(classes,)`: number of labelled objects, without crowds.
        class_names: Names of the classes, or None.

    Examples:
        >>> detection.MeanAP(classes=2).result().pictures
        0
    """

    pictures: int
    ap: float
    ap50: float
    ap75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar1: float
    ar10: float
    ar100: float
    ar_small: float
    ar_medium: float
    ar_large: float
    per_class: np.ndarray
    truths: np.ndarray
    class_names: tuple[str, ...] | None = None

    columns = (
        Column("pictures", lambda result: result.pictures),
        Column("AP %", lambda result: result.ap, percent=True),
        Column("AP50 %", lambda result: result.ap50, percent=True),
        Column("AP75 %", lambda result: result.ap75, percent=True),
        Column("AR100 %", lambda result: result.ar100, percent=True),
    )
    class_columns = (
        Column("AP %", lambda result: result.per_class, percent=True),
        Column("truths", lambda result: result.truths),
    )


class MeanAP:
    """Accumulates detections over pictures and computes COCO's average precision and recall.

    Args:
        classes: Number of classes.
        kind: What to compare: `"boxes"` or `"masks"`.
        class_names: Names of the classes.

    Raises:
        TypeError, ValueError: if `classes` is not an integer of at least 1, `kind` is unknown, or names do not fit.

    Examples:
        >>> metric = detection.MeanAP(classes=1)
        >>> found = {"boxes": [[0, 0, 4, 4]], "scores": [0.9], "labels": [0]}
        >>> metric.add(found, {"boxes": [[0, 0, 4, 5]], "labels": [0]})
        >>> round(metric.result().ap, 6)  # an overlap of 0.8: right at 7 of 10 thresholds
        0.7
    """

    @checked
    def __init__(
        self,
        classes: Positive,
        kind: Literal["boxes", "masks"] = "boxes",
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.classes, self.kind = classes, kind
        self.class_names, _ = check_class_names(class_names, classes)
        self._pictures = 0
        self._truths = np.zeros((classes, len(_AREAS)), "int64")
        # A row for each detection: class, picture, rank in its class and picture; its score; what it is.
        self._places: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []
        self._verdicts: list[np.ndarray] = []

    def add(self, found: Any, truth: Mapping[str, Any]) -> None:
        """Adds a picture.

        Args:
            found: A `Detection`, an instance `Segmentation` for masks, or a mapping with `boxes` `(k, 4)`, left, top,
                right and bottom in pixels, or `masks` `(k, height, width)`, and `scores` and `labels` `(k,)`.
            truth: `boxes` or `masks` and `labels` of the picture likewise. Optional: `crowd` `(k,)`, boxes of several
                objects, which need not be found; `areas` `(k,)` in pixels, which decide the size group. `iscrowd`
                and `area` are the same.

        Raises:
            KeyError, TypeError, ValueError: if a part is missing or not of numbers, shapes do not fit, a label does not
                exist, or a box, score or area is not finite.
        """
        truth = target_parts(truth, "truth", "scores")  # which other detections have
        guesses = self._parts("found", target_parts(_as_mapping(found), "found", "scores"))
        truths = self._parts("truth", truth)
        scores = _numbers("found", "scores", guesses["scores"], guesses["labels"].shape)
        if self.kind == "masks" and len(scores) and len(truths["own"]):
            sizes = guesses["masks"].shape[1:], truths["masks"].shape[1:]
            if sizes[0] != sizes[1]:
                raise ValueError("found and truth must have masks of one size, not {} and {}.".format(*sizes))
        crowd = to_numpy(truth.get("crowd", np.zeros(len(truths["labels"])))).astype(bool)
        areas = _numbers("truth", "areas", truth.get("areas", truths["own"]), truths["labels"].shape)
        if crowd.shape != truths["labels"].shape:
            raise ValueError(f"truth must have one value of crowd for each label, but crowd has {crowd.shape}.")
        for label in {*guesses["labels"].tolist(), *truths["labels"].tolist()}:
            mine = np.flatnonzero(guesses["labels"] == label)
            mine = mine[np.argsort(-scores[mine], kind="stable")[: MOST[-1]]]
            theirs = np.flatnonzero(truths["labels"] == label)
            overlaps = _overlaps(self.kind, guesses, truths, mine, theirs, crowd[theirs])
            outside = _outside(areas[theirs]) | crowd[theirs]
            verdicts = _match(overlaps, outside, crowd[theirs], _outside(guesses["own"][mine]))
            self._truths[label] += (~outside).sum(1)
            places = np.stack([np.full(len(mine), label), np.full(len(mine), self._pictures), np.arange(len(mine))], 1)
            self._places.append(places)
            self._scores.append(scores[mine])
            self._verdicts.append(verdicts)
        self._pictures += 1

    def _parts(self, name: str, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        labels = to_numpy(given["labels"])
        labels = labels.astype("int64") if not labels.size else labels
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(f"labels of {name} must be integers (k,), but {labels.dtype} {labels.shape} was given.")
        if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
            raise ValueError(f"labels of {name} must be from 0 to {self.classes - 1}, but {labels.tolist()} was given.")
        parts = {"labels": labels, "scores": given.get("scores", ())}
        if self.kind == "boxes":
            boxes = _numbers(name, "boxes", given["boxes"], (len(labels), 4))
            sides = boxes[:, 2:] - boxes[:, :2]
            wrong = boxes[(sides < 0).any(1)].tolist()
            if wrong:
                raise ValueError(f"boxes of {name} must be (left, top, right, bottom), but {wrong[0]} is not.")
            return parts | {"boxes": boxes, "own": sides.prod(1)}
        masks = to_numpy(given["masks"]).astype(bool)
        if masks.ndim != 3 or len(masks) != len(labels):
            raise ValueError(f"masks of {name} must be ({len(labels)}, height, width), but have {masks.shape}.")
        return parts | {"masks": masks, "own": masks.sum((1, 2), dtype="float64")}

    def result(self, distribution: str | None = None) -> MeanAPResult:
        """Returns the metrics over the pictures of all processes, or with `"alone"` of this process.

        Raises ValueError for another `distribution`, RuntimeError where the processes cannot work together.
        """
        processes = connect(distribution)
        places = np.concatenate([np.zeros((0, 3), "int64"), *self._places])
        places[:, 1] = places[:, 1] * processes.count + processes.shard[0]  # pictures are dealt out in turn
        scores = np.concatenate([np.zeros(0), *self._scores])
        verdicts = np.concatenate([np.zeros((0, len(_AREAS), len(THRESHOLDS)), "uint8"), *self._verdicts])
        places, scores, verdicts = (np.concatenate(processes.gather(part)) for part in (places, scores, verdicts))
        truths = processes.total(self._truths)
        order = np.lexsort((places[:, 2], places[:, 1], places[:, 0]))
        bounds = np.searchsorted(places[order, 0], np.arange(self.classes + 1))
        # As in pycocotools: -1 where a class has no truth, and axes in the order of its means.
        precision = np.full((len(_AREAS), len(THRESHOLDS), len(_RECALLS), self.classes), -1.0)
        recall = np.full((len(MOST), len(_AREAS), len(THRESHOLDS), self.classes), -1.0)
        for k in range(self.classes):
            mine = order[bounds[k] : bounds[k + 1]]
            for i, most in enumerate(MOST):
                kept = mine[places[mine, 2] < most]
                kept = kept[np.argsort(-scores[kept], kind="stable")]
                for a in np.flatnonzero(truths[k]):
                    curve, recall[i, a, :, k] = _curve(verdicts[kept, a].T, int(truths[k, a]))
                    if i == len(MOST) - 1:
                        precision[a, :, :, k] = curve
        means = [_mean(precision[0]), _mean(precision[0, :1]), _mean(precision[0, 5:6]), *map(_mean, precision[1:])]
        means += [*map(_mean, recall[:, 0]), *map(_mean, recall[-1, 1:])]
        per_class = np.array([_mean(precision[0, :, :, k]) for k in range(self.classes)])
        pictures = int(processes.total(np.int64(self._pictures)))
        return MeanAPResult(pictures, *means, per_class=per_class, truths=truths[:, 0], class_names=self.class_names)


def _as_mapping(found: Any) -> Mapping[str, Any]:
    """Returns boxes or masks, scores and labels of a `Detection`, an instance `Segmentation` or a mapping."""
    if isinstance(found, Mapping):
        return found
    if hasattr(found, "segments"):
        if found.task != "instance":
            raise ValueError(f"found must be of task 'instance', but {found.task!r} was given.")
        parts = found.segments
        masks = np.array([found.map == part.id for part in parts]).reshape(len(parts), *found.map.shape)
        return {"masks": masks, "scores": [p.score for p in parts], "labels": [p.label_id for p in parts]}
    check_type("found", found, Detection, "a dict, a Detection or an instance Segmentation")
    return {"boxes": found.boxes, "scores": found.scores, "labels": found.labels}


def _numbers(name: str, part: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = to_numpy(given)
    if values.size and values.dtype.kind not in "fiub":
        raise TypeError(f"{part} of {name} must be numbers, but {values.dtype} was given.")
    values = values.astype("float64").reshape(shape if not values.size and 0 in shape else values.shape)
    if values.shape != shape or not np.isfinite(values).all():
        found = f"but have {values.shape}, or NaN or infinity"
        raise ValueError(f"{part} of {name} must be finite and have the shape {shape}, {found}.")
    return values


def _outside(areas: np.ndarray) -> np.ndarray:
    return (areas < _AREAS[:, :1]) | (areas > _AREAS[:, 1:])


def _overlaps(
    kind: str, guesses: Mapping[str, np.ndarray], truths: Mapping[str, np.ndarray], mine: Any, theirs: Any, crowd: Any
) -> np.ndarray:
    """Returns intersections over unions `(detections, truths)`; of a crowd over the area of the detection."""
    if not len(mine) or not len(theirs):
        return np.zeros((len(mine), len(theirs)))
    if kind == "masks":
        one, other = (
            masks.reshape(len(masks), -1).astype("float64")
            for masks in (guesses["masks"][mine], truths["masks"][theirs])
        )
        shared = one @ other.T
    else:
        shared = shared_areas(guesses["boxes"][mine], truths["boxes"][theirs])
    own, their = guesses["own"][mine][:, None], truths["own"][theirs][None]
    whole = np.where(crowd, own, own + their - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)


def _match(overlaps: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Returns what each detection is, uint8 `(detections, ranges, thresholds)`; detections come by falling score."""
    # `ignored` are truths `(ranges, truths)` that need not be found, `outside` detections `(ranges, detections)` of
    # another area.
    verdicts = np.where(outside.T[:, :, None], _IGNORED, _FALSE).repeat(len(THRESHOLDS), 2).astype("uint8")
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[None, :, None]
    taken = np.zeros((len(_AREAS), len(THRESHOLDS), overlaps.shape[1]), bool)
    ranges, steps = np.ogrid[: len(_AREAS), : len(THRESHOLDS)]
    for i in np.flatnonzero((overlaps >= THRESHOLDS[0]).any(1)):
        fits = (overlaps[i] >= least) & (~taken | crowd)
        counted = fits & ~ignored[:, None]
        fits = np.where(counted.any(-1, keepdims=True), counted, fits)
        last = fits.shape[-1] - 1 - np.where(fits, overlaps[i], -1)[..., ::-1].argmax(-1)
        hit = fits.any(-1)
        verdicts[i][hit] = np.where(ignored[ranges, last], _IGNORED, _TRUE)[hit]
        taken[ranges, steps, last] |= hit
    return verdicts


def _curve(verdicts: np.ndarray, truths: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns precision at each recall `(thresholds, recalls)`, and the last recall, of detections by falling score."""
    right, wrong = (verdicts == _TRUE).cumsum(1, dtype="float64"), (verdicts == _FALSE).cumsum(1, dtype="float64")
    recall, precision = right / truths, right / (right + wrong + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    curve = np.zeros((len(verdicts), len(_RECALLS)))
    for one, reached, values in zip(curve, recall, precision, strict=True):
        places = np.searchsorted(reached, _RECALLS, side="left")
        inside = places < len(values)
        one[inside] = values[places[inside]]
    return curve, recall[:, -1] if recall.shape[1] else np.zeros(len(verdicts))


def _mean(values: np.ndarray) -> float:
    known = values[values > -1]
    return float(np.mean(known)) if known.size else float("nan")


@checked
def evaluate(
    model: Detector | EoMT,
    data: Any,
    *,
    most: Positive | None = None,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> MeanAPResult:
    """Returns COCO's average precision of boxes or masks; other arguments and errors are as in `segmentation.evaluate`.

    Args:
        model: A `Detector`, or an `EoMT`, whose instance masks are compared.
        data: What `open_boxes` (for an EoMT `open_segments`) takes or returns, or a stream; its test split is used.
        most: Number of boxes or masks per picture. None: Scenic's 300 pairs of a patch and a class, or EoMT's 100.

    Examples:
        >>> boxes = data.open_boxes(([pixels[0]], [{"boxes": [[2, 2, 10, 12]], "labels": [0]}]), classes=3)
        >>> detection.evaluate(detector, boxes, progress=False).pictures
        1
    """
    config, of = model.config, BOXES if isinstance(model, Detector) else SEGMENTS
    data = data if isinstance(data, ImageStream) else of.open(data)
    with whole_pictures(config, data, on_bad_image, distribution, progress) as (images, pairs):
        if images.kind is not of or images.classes > config.classes:
            wanted = f"{of.name} of at most the {config.classes} classes of the model"
            found = f"the target {images.target!r} and {images.classes} classes"
            raise ValueError(f"data must be {wanted}, but it has {found}.")
        metric = MeanAP(config.classes, "boxes" if of is BOXES else "masks", config.class_names)
        for picture, truth in pairs:
            metric.add(found_in(model, picture, most), truth)
        return metric.result(distribution)


def found_in(model: Any, picture: np.ndarray, most: int | None = None) -> Any:
    """The pairs with the best scores, whatever these are, as `MeanAP` takes them."""
    if isinstance(model, Detector):
        return detect(model, picture, threshold=0.0, per_class=True, most=300 if most is None else most)
    return best_masks(model, picture, 100 if most is None else most)
