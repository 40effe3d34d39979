"""How well segments agree with labels: the mean intersection over union and the panoptic quality."""

import contextlib
import dataclasses
import numbers
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import check_class_names, to_numpy
from keras_vit._options import Integer, Positive, checked
from keras_vit._processes import connect
from keras_vit._terminal import ClassesResult, Column, ProgressBar, Table, TableResult, make_table
from keras_vit.data import ImageStream, MaskedImages, open_data, open_masks
from keras_vit.data.masks import names_beside
from keras_vit.models import EoMT, LinearSegmenter
from keras_vit.segmentation.segmenting import Segmentation, segment, sorted_classes


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
        """Intersection over union, float64 `(classes,)`; NaN for a class neither labelled nor predicted."""
        union = self.predicted + self.labelled - self.intersection
        return self.intersection / np.where(union, union, np.nan)

    @property
    def mean_iou(self) -> float:
        """The mean of `per_class` over classes that are labelled or predicted; NaN without labelled pixels."""
        shares = self.per_class[~np.isnan(self.per_class)]
        return float(shares.mean()) if len(shares) else float("nan")

    @property
    def pixel_accuracy(self) -> float:
        """The share of the labelled pixels that are predicted right; NaN without labelled pixels."""
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
    """The mean IoU of a data set: `add` the prediction and the label of each picture, then take `result()`.

    The intersections and unions of each class are summed over all pictures and then divided. The mean is over the
    classes with a union, as in mmsegmentation and the evaluation of ADE20K.

    Args:
        classes: How many classes there are; labels and predictions are 0 to `classes - 1`.
        ignore: The label of pixels that do not count, whatever is predicted there; None: all count.
        class_names: Names of the classes.

    Raises:
        TypeError, ValueError: if `classes` is not an integer of at least 1, `ignore` is not one, or names do not fit.

    Examples:
        >>> metric = segmentation.MeanIoU(classes=3)
        >>> metric.add(prediction=[[0, 1], [1, 2]], label=[[0, 1], [0, 255]])
        >>> round(metric.result().mean_iou, 3)
        0.5
    """

    @checked
    def __init__(
        self, classes: Positive, ignore: Integer | None = 255, class_names: Sequence[str] | None = None
    ) -> None:
        self.classes, self.ignore = classes, ignore
        self.class_names, _ = check_class_names(class_names, classes)
        self._pictures = 0
        self._counts = np.zeros((3, self.classes), "int64")  # intersection, predicted, labelled

    def add(self, prediction: ArrayLike, label: ArrayLike) -> None:
        """Adds a picture, or several of one size.

        Args:
            prediction: Integers `(height, width)` or `(batch, height, width)`: the class of each pixel.
            label: Likewise, of the same shape; `ignore` where a pixel does not count.

        Raises:
            TypeError, ValueError: if they are not such maps, or have different shapes or a class that does not exist.
        """
        maps = {"prediction": to_numpy(prediction), "label": to_numpy(label)}
        for name, values in maps.items():
            if values.dtype.kind not in "iub":
                raise TypeError(f"{name} must be a map of classes, which are integers, but it is {values.dtype}.")
            if values.ndim not in (2, 3) or not values.size:
                wanted = "(height, width) or (batch, height, width), with pixels"
                raise ValueError(f"{name} must be {wanted}, but the shape {values.shape} was given.")
        predicted, labelled = maps.values()
        _check_sizes(predicted, labelled)
        pictures = len(labelled) if labelled.ndim == 3 else 1
        if self.ignore is not None:
            counts = labelled != self.ignore
            predicted, labelled = predicted[counts], labelled[counts]
        for name, values in (("prediction", predicted), ("label", labelled)):
            if values.size and not (0 <= values.min() and values.max() < self.classes):
                found = f"but its classes are {values.min()} to {values.max()}"
                hint = " Classes that begin at 1, as ADE20K's, need reduce_zero_label=True." if name == "label" else ""
                raise ValueError(f"{name} must have classes from 0 to {self.classes - 1}, {found}.{hint}")
        for i, values in enumerate((labelled[predicted == labelled], predicted, labelled)):
            self._counts[i] += np.bincount(values.ravel().astype("int64"), minlength=self.classes)
        self._pictures += pictures

    def result(self, distribution: str | None = None) -> MeanIoUResult:
        """The metrics over the pictures of all processes (see `connect`), or with `"alone"` of this process."""
        processes = connect(distribution)
        pictures = int(processes.total(np.int64(self._pictures)))
        return MeanIoUResult(pictures, *processes.total(self._counts), class_names=self.class_names)


def _check_sizes(prediction: np.ndarray, label: np.ndarray) -> None:
    if prediction.shape != label.shape:
        shapes = f"the shapes {prediction.shape} and {label.shape} were given"
        raise ValueError(f"prediction and label must be equally large, but {shapes}. Predict at the size of the label.")


def mean_iou(
    predictions: Iterable[ArrayLike],
    labels: Iterable[ArrayLike],
    classes: int,
    *,
    ignore: int | None = 255,
    class_names: Sequence[str] | None = None,
) -> MeanIoUResult:
    """Returns the mean intersection over union of maps of classes, one picture at a time, of this process alone.

    `predictions` and `labels` are maps in any iterables, integers `(height, width)`, in pairs of one size. All else,
    and errors, are as in `MeanIoU`; ValueError if there are not as many labels as predictions.

    Examples:
        >>> segmentation.mean_iou([[[0, 1]]], [[[0, 1]]], classes=2).mean_iou
        1.0
    """
    metric = MeanIoU(classes, ignore, class_names)
    for prediction, label in zip(predictions, labels, strict=True):
        metric.add(prediction, label)
    return metric.result("alone")


@checked
def evaluate(
    model: EoMT | LinearSegmenter,
    data: Any,
    *,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> MeanIoUResult:
    """Returns the mean intersection over union on pictures with masks, each at its size; errors: as in `open_masks`.

    Args:
        model: A segmentation model; an EoMT is used as for semantic segmentation.
        data: What `open_masks` takes or returns, or a stream; its test split if it has one. Names match classes.
        ignore: The value of pixels that have no class and do not count.
        reduce_zero_label: Whether 0 means no class and class k has the number k + 1, as in ADE20K's files.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        distribution: None: all processes of the program share the pictures, and each gets the result for all.
            `"alone"`: this process evaluates by itself.
        progress: Whether to show a progress bar.

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> segmentation.evaluate(segmenter, masks, progress=False).pictures
        4
    """
    if isinstance(data, ImageStream):
        if reduce_zero_label:
            raise ValueError("reduce_zero_label applies to folders and lists, not to a stream. Leave it out.")
    else:
        known = None if isinstance(data, MaskedImages) or names_beside(data) else model.config.classes
        data = open_masks(data, classes=known, ignore=ignore, reduce_zero_label=reduce_zero_label)
        ignore = data.ignore
    with whole_pictures(model.config, data, on_bad_image, distribution, progress) as (images, pairs):
        names = model.config.class_names or images.class_names
        metric = MeanIoU(model.config.classes, ignore=ignore, class_names=names)
        for picture, label in pairs:
            metric.add(segment(model, picture, task="semantic").map, label)
        result = metric.result(distribution)
    if not result.labelled.any():
        found = f"All pixels of the masks have the ignored class {ignore}"
        raise ValueError(f"{found}, so there is nothing to measure. Check the masks, or pass another ignore=.")
    return result


@contextlib.contextmanager
def whole_pictures(
    config: Any, data: Any, on_bad_image: str, distribution: str | None, progress: bool
) -> Iterator[tuple[ImageStream, Iterator[tuple[np.ndarray, Any]]]]:
    """Yields the stream of opened data to evaluate a model on, and its pictures at their own sizes with targets."""
    processes = connect(distribution)
    with contextlib.ExitStack() as stack:
        if not isinstance(data, ImageStream):
            images = open_data(
                data.in_order(config.class_names),
                split="train" if data.splits and not data.has_test_split else "test",
                image_size=config.image_size,
                channels=config.channels,
                batch_size=processes.count,
                shuffle=False,
                shard=processes.shard,
                on_bad_image=on_bad_image,
            )
            data = stack.enter_context(images)
        elif on_bad_image != "stop":
            raise ValueError("on_bad_image applies to folders and lists, not to a stream. Leave it out.")
        names = data.class_names and tuple(data.class_names)
        if names and config.class_names and names != config.class_names:
            raise ValueError(f"data must have the classes of the model, {config.class_names}, but it has {names}.")
        bar = stack.enter_context(ProgressBar("pictures", data.steps_per_epoch, shown=progress and processes.first))
        yield data, (pair for batch in bar.track(data) for pair in zip(*batch, strict=True))


_VOID = -1


@dataclasses.dataclass(frozen=True, eq=False)
class PanopticQualityResult(TableResult):
    """What `PanopticQuality` found. Printing it draws a table.

    Attributes:
        pictures: Number of pictures.
        matched: int64 `(classes,)`: segments that were found (true positives).
        invented: int64 `(classes,)`: predicted segments that match none (false positives).
        missed: int64 `(classes,)`: labelled segments that match none (false negatives).
        overlap: float64 `(classes,)`: the sum of the intersections over unions of those that were found.
        stuff: Which classes are not countable things.

    Examples:
        >>> segmentation.PanopticQuality(classes=2).result().pictures
        0
    """

    pictures: int
    matched: np.ndarray
    invented: np.ndarray
    missed: np.ndarray
    overlap: np.ndarray
    stuff: tuple[int, ...] = ()

    @property
    def per_class(self) -> np.ndarray:
        """Float64 `(classes, 3)`: PQ, SQ and RQ (Eq. 1 and 2); NaN for a class without any segment."""
        segments = self.matched + (self.invented + self.missed) / 2
        counted = np.where(segments, segments, np.nan)
        shares = self.overlap / counted, self.overlap / np.maximum(self.matched, 1), self.matched / counted
        return np.where(segments[:, None], np.stack(shares, axis=1), np.nan)

    def _mean(self, column: int, stuff: bool | None = None) -> float:
        """The mean of a column of `per_class` over the classes that are stuff (True), are not (False), or all."""
        chosen = [k for k in range(len(self.matched)) if stuff is None or (k in self.stuff) is stuff]
        values = self.per_class[chosen, column]
        return float(np.nanmean(values)) if (~np.isnan(values)).any() else float("nan")

    @property
    def quality(self) -> float:
        """PQ, the mean over the classes that have segments; NaN where none has."""
        return self._mean(0)

    pq = quality

    @property
    def sq(self) -> float:
        """The segmentation quality, how well segments overlap that were found: the mean over the classes."""
        return self._mean(1)

    @property
    def rq(self) -> float:
        """The recognition quality, F1 of finding segments: the mean over the classes."""
        return self._mean(2)

    derived = ("pq", "sq", "rq", "per_class")

    def table(self) -> Table:
        """Returns a table of PQ, SQ and RQ in percent, with a row for all classes, one for things and one for stuff."""
        columns = (
            Column("classes", lambda group: group[0]),
            Column("PQ %", lambda group: self._mean(0, group[1]), percent=True),
            Column("SQ %", lambda group: self._mean(1, group[1]), percent=True),
            Column("RQ %", lambda group: self._mean(2, group[1]), percent=True),
        )
        return make_table([("all", None), ("things", False), ("stuff", True)], columns)


class PanopticQuality:
    """Adds up matched, invented and missed segments picture by picture.

    A predicted and a labelled segment of one class match where they overlap by more than half of their union, of which
    pixels without a label are not a part. A predicted segment that lies mostly on such pixels, or on a crowd of its
    class, is not a mistake; a crowd need not be found. As panopticapi's `evaluation.py`.

    Args:
        classes: Number of classes.
        stuff: Which of them are not countable things, for the table.

    Raises:
        ValueError: if `classes` is not an integer of at least 1, or `stuff` holds anything but integers below it.

    Examples:
        >>> metric = segmentation.PanopticQuality(classes=3, stuff=[2])
        >>> parts = (segmentation.Segment(0, 1, "dog", 0.9, 4),)
        >>> found = segmentation.Segmentation(np.zeros((2, 2), "int32"), parts, "panoptic")
        >>> metric.add(found, label=[[7, 7], [7, 8]], segments={7: 1, 8: 2})
        >>> metric.result().per_class[1].tolist()
        [0.75, 0.75, 1.0]
    """

    @checked
    def __init__(self, classes: Positive, stuff: Collection[int] = ()) -> None:
        self.classes = classes
        self.stuff = tuple(sorted_classes("stuff", stuff, self.classes))
        self._pictures = 0
        self._counts = np.zeros((3, self.classes), "int64")  # matched, invented, missed
        self._overlap = np.zeros(self.classes)

    def add(
        self,
        prediction: Segmentation,
        label: ArrayLike,
        segments: Mapping[int, int],
        crowd: Collection[int] = (),
        background: int | None = None,
    ) -> None:
        """Adds a picture.

        Args:
            prediction: What `segment(task="panoptic")` gives.
            label: Integers `(height, width)`: the id of each pixel's segment.
            segments: The class of each id; pixels of an id that it lacks have no label.
            crowd: Ids of segments that stand for several things that were not told apart.
            background: The id of pixels that are known to belong to no segment: a segment that is predicted there is
                a mistake, as in COCO's evaluation of instances. None: such pixels have no label, as in panopticapi.

        Raises:
            TypeError, ValueError: if `prediction` is not a panoptic `Segmentation` or `label` a map of integers, their
                sizes differ, a class or an id does not exist, or `background` is the id of a segment.
        """
        if not isinstance(prediction, Segmentation) or prediction.task != "panoptic":
            raise TypeError(f"prediction must be what segment(task='panoptic') returns, not {prediction!r:.80}.")
        labels = to_numpy(label)
        if labels.dtype.kind not in "iu":
            raise TypeError(f"label must be a map of ids, which are integers, but it is {labels.dtype}.")
        _check_sizes(prediction.map, labels)
        guesses = {part.id: part.label_id for part in prediction.segments}
        for name, found in (("prediction", guesses), ("segments", segments)):
            wrong = [k for k in found.values() if not isinstance(k, numbers.Integral) or not 0 <= k < self.classes]
            if wrong:
                raise ValueError(f"{name} must have the classes 0 to {self.classes - 1}, but has {wrong[:5]}.")
            if any(k < 0 for k in found):
                raise ValueError(f"{name} must have ids of at least 0, but has {min(found)}.")
        if background is not None and (background < 0 or background in segments):
            raise ValueError(f"background must be an id from 0 on that is not in segments, not {background}.")
        (ids, places), crowds = np.unique(labels, return_inverse=True), set(crowd)
        absent = sorted({*segments, *crowds} - set(ids.tolist())) or sorted(crowds - set(segments))
        if absent:
            raise ValueError(f"segments and crowd must have ids that are in label, but {absent} are not in it.")
        truths = np.array([k if k in segments or k == background else _VOID for k in ids.tolist()])[places.ravel()]
        pairs = np.stack([truths, np.where(np.isin(prediction.map, list(guesses)), prediction.map, _VOID).ravel()])
        found, counts = np.unique(pairs, axis=1, return_counts=True)
        shared = {(int(t), int(p)): int(n) for (t, p), n in zip(found.T, counts, strict=True)}
        self._match(shared, dict(segments), guesses, crowds)
        self._pictures += 1

    def _match(
        self, shared: dict[tuple[int, int], int], truths: dict[int, int], guesses: dict[int, int], crowd: set[int]
    ) -> None:
        area_true, area_guess = Counter[int](), Counter[int]()
        for (true, guess), pixels in shared.items():
            area_true[true] += pixels
            area_guess[guess] += pixels
        matched, invented, missed = self._counts
        found_truths: set[int] = set()
        found_guesses: set[int] = set()
        for (true, guess), pixels in shared.items():
            if guess == _VOID or true in crowd or true not in truths or truths[true] != guesses[guess]:
                continue
            union = area_true[true] + area_guess[guess] - pixels - shared.get((_VOID, guess), 0)
            if 2 * pixels > union:
                matched[truths[true]] += 1
                self._overlap[truths[true]] += pixels / union
                found_truths.add(true)
                found_guesses.add(guess)
        for true, label in truths.items():
            if true not in found_truths and true not in crowd:
                missed[label] += 1
        crowd_of_class = {truths[true]: true for true in truths if true in crowd}
        for guess, label in guesses.items():
            excused = shared.get((_VOID, guess), 0)
            if label in crowd_of_class:
                excused += shared.get((crowd_of_class[label], guess), 0)
            if guess not in found_guesses and area_guess[guess] and 2 * excused <= area_guess[guess]:
                invented[label] += 1

    def result(self, distribution: str | None = None) -> PanopticQualityResult:
        """Returns the metrics over the pictures of all processes, or with `"alone"` of this process.

        Raises ValueError for another `distribution`, RuntimeError where the processes cannot work together.
        """
        processes = connect(distribution)
        pictures = int(processes.total(np.int64(self._pictures)))
        counts, overlap = processes.total(self._counts), processes.total(self._overlap)
        return PanopticQualityResult(pictures, *counts, overlap, self.stuff)
