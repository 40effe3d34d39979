"""From a picture of any size to boxes with names and scores, as OWL-ViT's and OWLv2's publishers read their models."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import check_flag, to_numpy, whole_number
from keras_vit._files import ending_of, write_text
from keras_vit._options import SHARE, as_python
from keras_vit._pictures import safe_colours
from keras_vit._terminal import PlainData, Table
from keras_vit.models import Detector
from keras_vit.preprocessing.images import read_picture
from keras_vit.segmentation.segmenting import label_of, plot_named, sigmoid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
            raise ValueError(
                f"category_ids must have an id for each class, at least {self.labels.max() + 1}, but "
                f"{len(category_ids)} were given."
            )
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


def detect(
    model: Detector,
    picture: Any,
    *,
    threshold: float = 0.1,
    nms: float | None = None,
    per_class: bool = False,
    most: int | None = None,
) -> Detection:
    """Returns the boxes in a picture of any size, read as the model's publisher reads them (`model.config.pictures`).

    The `Detection` has the order of the patches (as transformers' `post_process_grounded_object_detection`).

    Args:
        model: A `Detector`, such as `both.zero_shot_detector(names)` returns.
        picture: A path, a binary file object, a PIL image, or an array or tensor `(height, width, channels)` of 0..255.
        threshold: A box is kept where its score, the sigmoid of a logit, is above this number of 0..1.
        nms: If boxes of one class overlap by more than this intersection over union, only the best stays. None: all
            stay.
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
    if not isinstance(model, Detector):
        raise TypeError(f"model must be a Detector, but {type(model).__name__} was given.")
    SHARE("threshold", threshold)
    if nms is not None:
        SHARE("nms", nms)
    check_flag("per_class", per_class)
    if most is not None:
        whole_number("most", most, 1)
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
    """Returns boxes (centre and size, 0..1 of the model's image) as left, top, right and bottom of a picture."""
    height, width = size if rule == "owlvit" else (max(size), max(size))
    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] * 0.5, boxes[:, :2] + boxes[:, 2:] * 0.5], 1)
    return corners * np.array([width, height, width, height], "float32")


def suppressed(boxes: np.ndarray, scores: np.ndarray, most: float, labels: np.ndarray | None = None) -> np.ndarray:
    """Returns the numbers of the `boxes` `(k, 4)` that stay in non-maximum suppression, int64 `(kept,)`, ascending.

    Two of one of `labels` overlap by at most `most` (intersection over union); the best `scores` `(k,)` stay.

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
    """Returns the intersections of boxes `(n, 4)` and `(m, 4)`, float64 `(n, m)`."""
    one, other = one[:, None].astype("float64"), other[None].astype("float64")
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    return sides.clip(0, None).prod(-1)


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the intersections over unions of boxes `(n, 4)` and `(m, 4)`, `(n, m)`; 0 for empty boxes."""
    shared = shared_areas(one, other)
    areas = [(box[:, 2:].astype("float64") - box[:, :2]).clip(0, None).prod(1) for box in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def plot(found: Detection, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draws a picture with its boxes in a colour for each class, and a legend with the scores; returns the figure.

    Args:
        found: What `detect` returns.
        picture: The picture, as `detect` takes it, of three channels.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.

    Raises:
        ImportError, OSError: if matplotlib or Pillow is missing; if a file cannot be opened or written.
        TypeError, ValueError: if an argument is wrong, or the picture cannot be decoded.

    Examples:
        >>> figure = detection.plot(detection.detect(detector, "photo.jpg"), "photo.jpg", "boxes.png")
    """
    if not isinstance(found, Detection):
        raise TypeError(f"found must be a Detection, as detect returns, but {type(found).__name__} was given.")
    pixels = read_picture(picture).clip(0, 255).astype("uint8")
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
