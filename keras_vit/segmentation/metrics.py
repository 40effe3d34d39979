"""How well maps of classes agree with labels: the mean intersection over union, exact and picture by picture.

`evaluate` computes it for a model on pictures with masks.
"""

import contextlib
import dataclasses
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import to_numpy, whole_number
from keras_vit._processes import connect
from keras_vit._terminal import ClassesResult, Column, ProgressBar
from keras_vit.data import ImageStream, MaskedImages, open_data, open_masks
from keras_vit.data.masks import names_beside
from keras_vit.models import EoMT, LinearSegmenter
from keras_vit.segmentation.segmenting import segment


@dataclasses.dataclass(frozen=True, eq=False)
class MeanIoUResult(ClassesResult):
    """What `mean_iou` found. Printing it draws a table; `class_table(worst=None)` has the classes, the worst first.

    Attributes:
        pictures: How many label maps there were.
        intersection: int64 `(classes,)`: pixels of a class that are predicted as it.
        predicted: int64 `(classes,)`: pixels that are predicted as a class, of those with a label.
        labelled: int64 `(classes,)`: pixels of a class.
        class_names: Names of the classes, or None.

    Examples:
        >>> segmentation.mean_iou([[[0, 1]]], [[[0, 0]]], classes=2).per_class.tolist()
        [0.5, 0.0]
    """

    pictures: int
    intersection: np.ndarray
    predicted: np.ndarray
    labelled: np.ndarray
    class_names: tuple[str, ...] | None = None

    @property
    def per_class(self) -> np.ndarray:
        """Returns intersection over union, float64 `(classes,)`; NaN for a class neither labelled nor predicted."""
        union = self.predicted + self.labelled - self.intersection
        return self.intersection / np.where(union, union, np.nan)

    @property
    def mean_iou(self) -> float:
        """Returns the mean of `per_class` over classes that are labelled or predicted; NaN without labelled pixels."""
        shares = self.per_class[~np.isnan(self.per_class)]
        return float(shares.mean()) if len(shares) else float("nan")

    @property
    def pixel_accuracy(self) -> float:
        """Returns the share of the labelled pixels that are predicted right; NaN without labelled pixels."""
        pixels = int(self.labelled.sum())
        return int(self.intersection.sum()) / pixels if pixels else float("nan")

    derived = ("mean_iou", "pixel_accuracy", "per_class")
    columns = (
        Column("pictures", lambda result: result.pictures),
        Column("classes", lambda result: int((result.labelled > 0).sum())),
        Column("mIoU %", lambda result: result.mean_iou, percent=True),
        Column("pixels right %", lambda result: result.pixel_accuracy, percent=True),
    )
    class_columns = (
        Column("IoU %", lambda result: result.per_class, percent=True),
        Column("labelled pixels", lambda result: result.labelled),
    )


class MeanIoU:
    """Adds up intersections, predicted and labelled pixels picture by picture: the mean IoU of a whole set.

    A union counts each pixel that is labelled or predicted as a class. Both sums run over all pictures before they are
    divided, and the mean is that over the classes with a union, as in mmsegmentation and the evaluation of ADE20K.

    Args:
        classes: How many classes there are; labels and predictions are 0 to `classes - 1`.
        ignore: The label of pixels that do not count, whatever is predicted there; None: all count.
        class_names: Names of the classes.

    Raises:
        ValueError: if there are not as many names as classes, `classes` is not an integer of at least 1, or `ignore` is
            not an integer.
        TypeError: if `class_names` is not a collection.

    Examples:
        >>> metric = segmentation.MeanIoU(classes=3)
        >>> metric.add(prediction=[[0, 1], [1, 2]], label=[[0, 1], [0, 255]])
        >>> round(metric.result().mean_iou, 3)
        0.5
    """

    def __init__(self, classes: int, ignore: int | None = 255, class_names: Sequence[str] | None = None) -> None:
        """Sets all sums to 0; ValueError unless `classes` is an integer of at least 1, with as many names.

        ValueError also where `ignore` is not an integer, TypeError where `class_names` is not a collection.
        """
        self.classes = whole_number("classes", classes, 1)
        if ignore is not None and not isinstance(ignore, numbers.Integral):
            raise ValueError(f"ignore must be an integer or None, but {ignore!r} was given.")
        self.ignore = None if ignore is None else int(ignore)
        self.class_names = None if class_names is None else tuple(class_names)
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(
                f"class_names must be {self.classes}, one a class, but {len(self.class_names)} were given."
            )
        self._pictures = 0
        self._counts = np.zeros((3, self.classes), "int64")  # intersection, predicted, labelled

    def add(self, prediction: ArrayLike, label: ArrayLike) -> None:
        """Adds a picture, or several of one size.

        Args:
            prediction: Integers `(height, width)` or `(batch, height, width)`: the class of each pixel.
            label: Likewise, of the same shape; `ignore` where a pixel does not count.

        Raises:
            TypeError: if they are not integers.
            ValueError: if they are not such maps or have no pixels, their shapes differ, or one has a class that does
                not exist.
        """
        maps = {"prediction": to_numpy(prediction), "label": to_numpy(label)}
        for name, values in maps.items():
            if values.dtype.kind not in "iub":
                raise TypeError(f"{name} must be a map of classes, which are integers, but it is {values.dtype}.")
            if values.ndim not in (2, 3) or not values.size:
                raise ValueError(
                    f"{name} must be (height, width) or (batch, height, width), with pixels, but the shape "
                    f"{values.shape} was given."
                )
        predicted, labelled = maps.values()
        if predicted.shape != labelled.shape:
            raise ValueError(
                f"prediction and label must be equally large, but the shapes {predicted.shape} and {labelled.shape} "
                "were given. Predict at the size of the label: that is what mIoU is measured at."
            )
        pictures = len(labelled) if labelled.ndim == 3 else 1
        if self.ignore is not None:
            counts = labelled != self.ignore
            predicted, labelled = predicted[counts], labelled[counts]
        for name, values in (("prediction", predicted), ("label", labelled)):
            if values.size and not (0 <= values.min() and values.max() < self.classes):
                found = f"but it has {values.min()} to {values.max()}"
                hint = " reduce_zero_label is for labels that begin with 1, as ADE20K's." if name == "label" else ""
                raise ValueError(f"{name} must hold the classes 0 to {self.classes - 1}, {found}.{hint}")
        for i, values in enumerate((labelled[predicted == labelled], predicted, labelled)):
            self._counts[i] += np.bincount(values.ravel().astype("int64"), minlength=self.classes)
        self._pictures += pictures

    def result(self, distribution: str | None = None) -> MeanIoUResult:
        """Returns the figures over all pictures that were added.

        Args:
            distribution: None: the processes that the program was started in have added pictures of their own, all of
                them call this, and each gets the result for all. `"alone"`: those of this process.

        Returns:
            A `MeanIoUResult`.

        Raises:
            ValueError: if `distribution`, or what the launcher says, makes no sense.
            RuntimeError: if the processes cannot work together, or another one ends before its time (on JAX also a
                ValueError).
        """
        processes = connect(distribution)
        pictures = int(processes.total(np.int64(self._pictures)))
        return MeanIoUResult(pictures, *processes.total(self._counts), class_names=self.class_names)


def mean_iou(
    predictions: Iterable[ArrayLike],
    labels: Iterable[ArrayLike],
    classes: int,
    *,
    ignore: int | None = 255,
    class_names: Sequence[str] | None = None,
) -> MeanIoUResult:
    """Returns the mean intersection over union of maps of classes, one picture at a time.

    Args:
        predictions: Maps, integers `(height, width)`, in any iterable: the pictures may differ in size.
        labels: As many, each as large as its prediction.
        classes: As in `MeanIoU`, like the others.
        ignore: Likewise.
        class_names: Likewise.

    Returns:
        A `MeanIoUResult`, of this process alone.

    Raises:
        TypeError, ValueError: as in `MeanIoU` and `MeanIoU.add`; ValueError if there are not as many labels as
            predictions.

    Examples:
        >>> segmentation.mean_iou([[[0, 1]]], [[[0, 1]]], classes=2).mean_iou
        1.0
    """
    metric = MeanIoU(classes, ignore, class_names)
    for prediction, label in zip(predictions, labels, strict=True):
        metric.add(prediction, label)
    return metric.result("alone")


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
    """Returns the mean intersection over union on pictures with masks, each at its own size.

    Args:
        model: A segmentation model; an EoMT is used as for semantic segmentation.
        data: What `open_masks` takes or returns, or a stream of it. The test split is used if there is one. Classes are
            matched by name if both have names.
        ignore: The value of pixels that have no class and do not count.
        reduce_zero_label: Whether 0 means no class and class k has the number k + 1, as in ADE20K's files.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        distribution: None: all processes that the program was started in share the pictures, and each gets the result
            for all. `"alone"`: this process evaluates by itself.
        progress: Whether to show a progress bar.

    Returns:
        A `MeanIoUResult`.

    Raises:
        TypeError, ValueError, OSError: as `segment` and `open_masks`; ValueError also if the data has a class whose
            name the model does not know, or no pixel has a class, or for options that a stream does not use; TypeError
            for a stream of training data, which has no end.
        ImportError: if a package to read the pictures is missing, such as Pillow.
        RuntimeError: if the processes cannot work together, or another one ends before its time (on JAX also a
            ValueError).

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> segmentation.evaluate(segmenter, masks, progress=False).pictures
        4
    """
    if not isinstance(model, (EoMT, LinearSegmenter)):
        kind = type(model).__name__
        raise TypeError(f"model must be a segmentation model, EoMT or LinearSegmenter, but {kind} was given.")
    processes, config = connect(distribution), model.config
    with contextlib.ExitStack() as stack:
        if isinstance(data, ImageStream):
            if reduce_zero_label or on_bad_image != "stop":
                raise ValueError(
                    "reduce_zero_label and on_bad_image are for data that is opened here, not for streams."
                )
        else:
            known = None if isinstance(data, MaskedImages) or names_beside(data) else config.classes
            masks = open_masks(
                data, classes=known, class_names=None, ignore=ignore, reduce_zero_label=reduce_zero_label
            ).in_order(config.class_names)
            ignore = masks.ignore
            data = open_data(
                masks,
                split="test" if masks.has_test_split else "train",
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
