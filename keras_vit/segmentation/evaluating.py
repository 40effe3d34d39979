"""The mean intersection over union of a segmentation model on pictures with masks."""

import contextlib
from typing import Any

from keras_vit._processes import connect
from keras_vit._terminal import ProgressBar
from keras_vit.data import ImageStream, open_data
from keras_vit.data.masks import Masks, as_masks, names_beside
from keras_vit.models import EoMT, LinearSegmenter
from keras_vit.segmentation.metrics import MeanIoU, MeanIoUResult
from keras_vit.segmentation.segmenting import segment


def evaluate(
    model: Any,
    data: Any,
    *,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> MeanIoUResult:
    """The mean intersection over union on pictures with masks, each at its own size.

    Args:
        model: A segmentation model; an EoMT is used as for semantic segmentation.
        data: What `open_masks` takes or returns, whose test pictures count where it has such; or a stream of them.
            Where both have names of classes, they are matched by name.
        ignore: The value of pixels that have no class and do not count.
        reduce_zero_label: Whether 0 is no class and the others are one lower, as in ADE20K's files.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        distribution: None: all processes that the program was started in share the pictures, and each gets the result
            for all. `"alone"`: this process evaluates by itself.
        progress: Whether there is a bar.

    Returns:
        A `MeanIoUResult`.

    Raises:
        TypeError, ValueError: as `segment` and `open_masks`; if the data has a class whose name the model does not
            know, or no pixel has a class.

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> segmentation.evaluate(segmenter, masks, progress=False).pictures
        4
    """
    if not isinstance(model, (EoMT, LinearSegmenter)):
        raise TypeError(
            f"model must be a segmentation model, EoMT or LinearSegmenter, but {type(model).__name__} was given."
        )
    processes, config = connect(distribution), model.config
    with contextlib.ExitStack() as stack:
        if isinstance(data, ImageStream):
            if reduce_zero_label:
                raise ValueError("reduce_zero_label=True is for open_masks, which has made what is in this stream.")
        else:
            known = None if isinstance(data, Masks) or names_beside(data) else config.classes
            masks = as_masks(
                data, classes=known, class_names=None, ignore=ignore, reduce_zero_label=reduce_zero_label
            ).in_order(config.class_names)
            ignore = masks.ignore
            data = open_data(
                masks,
                split="test" if getattr(masks, "has_test_split", True) else "train",
                image_size=config.image_size,
                channels=config.channels,
                batch_size=processes.count,
                shuffle=False,
                shard=processes.shard,
                on_bad_image=on_bad_image,
            )
            stack.enter_context(data)
        names = data.class_names and tuple(data.class_names)
        if names and config.class_names and names != config.class_names:
            raise ValueError(f"data has the classes {names}, but the model {config.class_names}, in this order.")
        metric = MeanIoU(config.classes, ignore=ignore, class_names=config.class_names or names)
        bar = stack.enter_context(ProgressBar("pictures", data.steps_per_epoch, shown=progress and processes.first))
        for pictures, labels in bar.track(data):
            for picture, label in zip(pictures, labels, strict=True):
                metric.add(segment(model, picture, task="semantic").map, label)
        result = metric.result(distribution)
    if not result.labelled.any():
        raise ValueError(f"No pixel of the data has a class: all are {ignore}.")
    return result
