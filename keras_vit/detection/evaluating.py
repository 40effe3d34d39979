"""`evaluate`: COCO's average precision of a model on pictures with boxes, or with the masks of single things."""

import contextlib
from typing import Any

import numpy as np

from keras_vit._processes import connect
from keras_vit._terminal import ProgressBar
from keras_vit.data import ImageStream, open_boxes, open_data, open_segments
from keras_vit.detection.detecting import detect
from keras_vit.detection.metrics import MeanAP, MeanAPResult
from keras_vit.models import Detector, EoMT
from keras_vit.segmentation.segmenting import best_masks


def evaluate(
    model: Any,
    data: Any,
    *,
    most: int | None = None,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> MeanAPResult:
    """Returns COCO's average precision on pictures at their own sizes: of boxes, or of the masks of an EoMT.

    Args:
        model: A `Detector`, or an `EoMT`, whose instance masks are compared.
        data: What `open_boxes` takes or returns (for an EoMT, `open_segments`), or a stream of it. The test split is
            used if there is one. Classes are matched by name if both have names.
        most: Number of boxes or masks per picture, those with the best scores. None: 300 pairs of a patch and a class
            (Scenic), or 100 pairs of a query and a class (EoMT's authors).
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        distribution: As in `segmentation.evaluate`.
        progress: Whether to show a progress bar.

    Returns:
        A `MeanAPResult`, over the pictures of all processes.

    Raises:
        TypeError, ValueError, OSError: as `detect`, `open_boxes` and `open_segments`; ValueError also if the data has a
            class whose name the model does not know; TypeError for a stream of training data, which has no end.
        ImportError: if a package to read the pictures is missing, such as Pillow.
        RuntimeError: if the processes cannot work together, or another one ends before its time.

    Examples:
        >>> boxes = data.open_boxes(([pixels[0]], [{"boxes": [[2, 2, 10, 12]], "labels": [0]}]), classes=3)
        >>> detection.evaluate(detector, boxes, progress=False).pictures
        1
    """
    if not isinstance(model, (Detector, EoMT)):
        raise TypeError(f"model must be a Detector or an EoMT, but {type(model).__name__} was given.")
    processes, config, has_boxes = connect(distribution), model.config, isinstance(model, Detector)
    with contextlib.ExitStack() as stack:
        if not isinstance(data, ImageStream):
            opened = (open_boxes if has_boxes else open_segments)(data).in_order(config.class_names)
            data = open_data(
                opened,
                split="test",
                image_size=config.image_size,
                batch_size=processes.count,
                shuffle=False,
                shard=processes.shard,
                on_bad_image=on_bad_image,
            )
            stack.enter_context(data)
        elif on_bad_image != "stop":
            raise ValueError("on_bad_image is for data that is opened here, not for streams: leave it out.")
        names = data.class_names and tuple(data.class_names)
        if data.target != ("boxes" if has_boxes else "segments") or data.classes > config.classes:
            raise ValueError(
                f"data must be {'boxes' if has_boxes else 'segments'} of at most the {config.classes} classes of "
                f"the model, but it has the target {data.target!r} and {data.classes} classes."
            )
        if names and config.class_names and names != config.class_names:
            raise ValueError(f"data has the classes {names}, but the model {config.class_names}, in this order.")
        metric = MeanAP(config.classes, "boxes" if has_boxes else "masks", config.class_names)
        bar = stack.enter_context(ProgressBar("pictures", data.steps_per_epoch, shown=progress and processes.first))
        for pictures, targets in bar.track(data):
            for picture, target in zip(pictures, targets, strict=True):
                metric.add(found_in(model, picture, most), target)
        return metric.result(distribution)


def found_in(model: Any, picture: np.ndarray, most: int | None = None) -> Any:
    """Returns the pairs with the best scores, whatever these are, as `MeanAP` takes them."""
    if isinstance(model, Detector):
        return detect(model, picture, threshold=0.0, per_class=True, most=300 if most is None else most)
    return best_masks(model, picture, 100 if most is None else most)
