"""The panoptic quality of segments, exact and picture by picture: Kirillov et al., arXiv 1801.00868, section 4."""

import dataclasses
import numbers
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import to_numpy, whole_number
from keras_vit._processes import connect
from keras_vit._terminal import Column, Table, TableResult, make_table
from keras_vit.segmentation.results import Segmentation, check_classes

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
        """Returns float64 `(classes, 3)`: PQ, SQ and RQ (Eq. 1 and 2); NaN for a class without any segment."""
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
        """Returns PQ, the mean over the classes that have segments; NaN where none has."""
        return self._mean(0)

    @property
    def pq(self) -> float:
        """Returns the same by its short name."""
        return self._mean(0)

    @property
    def sq(self) -> float:
        """Returns the segmentation quality, how well segments overlap that were found: the mean over the classes."""
        return self._mean(1)

    @property
    def rq(self) -> float:
        """Returns the recognition quality, F1 of finding segments: the mean over the classes."""
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

    def __init__(self, classes: int, stuff: Collection[int] = ()) -> None:
        """Sets all sums to 0; ValueError unless `classes` is an integer of at least 1, and `stuff` of 0 to below it."""
        self.classes = whole_number("classes", classes, 1)
        self.stuff = tuple(check_classes("stuff", stuff, self.classes))
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
            TypeError: if `prediction` is not a panoptic `Segmentation`, or `label` holds no integers.
            ValueError: if their sizes differ, a class does not exist, an id of `segments` or `crowd` has no pixel, or
                `background` is the id of a segment.
        """
        if not isinstance(prediction, Segmentation) or prediction.task != "panoptic":
            raise TypeError(
                f"prediction must be what segment(task='panoptic') returns, but {prediction!r:.80} was given."
            )
        labels = to_numpy(label)
        if labels.dtype.kind not in "iu":
            raise TypeError(f"label must be a map of ids, which are integers, but it is {labels.dtype}.")
        if labels.shape != prediction.map.shape:
            raise ValueError(
                f"prediction and label must be equally large, but the shapes {prediction.map.shape} and "
                f"{labels.shape} were given."
            )
        guesses = {part.id: part.label_id for part in prediction.segments}
        for name, found in (("prediction", guesses), ("segments", segments)):
            wrong = [k for k in found.values() if not isinstance(k, numbers.Integral) or not 0 <= k < self.classes]
            if wrong:
                raise ValueError(f"{name} must have the classes 0 to {self.classes - 1}, but has {wrong[:5]}.")
            if any(k < 0 for k in found):
                raise ValueError(f"{name} must have ids of at least 0, but has {min(found)}.")
        if background is not None and (background < 0 or background in segments):
            raise ValueError(
                f"background must be an id of at least 0 that is not in segments, but {background} was given."
            )
        (ids, places), crowds = np.unique(labels, return_inverse=True), set(crowd)
        absent = sorted({*segments, *crowds} - set(ids.tolist())) or sorted(crowds - set(segments))
        if absent:
            raise ValueError(f"segments and crowd must name ids of the label, but {absent} are not there.")
        truths = np.array([k if k in segments or k == background else _VOID for k in ids.tolist()])[places.ravel()]
        pairs = np.stack([truths, np.where(np.isin(prediction.map, list(guesses)), prediction.map, _VOID).ravel()])
        found, counts = np.unique(pairs, axis=1, return_counts=True)
        shared = {(int(t), int(p)): int(n) for (t, p), n in zip(found.T, counts, strict=True)}
        self._match(shared, dict(segments), guesses, crowds)
        self._pictures += 1

    def _match(
        self, shared: dict[tuple[int, int], int], truths: dict[int, int], guesses: dict[int, int], crowd: set[int]
    ) -> None:
        """Adds the matched, invented and missed segments of one picture to the counts."""
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

        Raises ValueError for another `distribution`, RuntimeError where the processes cannot work together or another
        one ends before its time (on JAX also a ValueError).
        """
        processes = connect(distribution)
        pictures = int(processes.total(np.int64(self._pictures)))
        counts, overlap = processes.total(self._counts), processes.total(self._overlap)
        return PanopticQualityResult(pictures, *counts, overlap, self.stuff)
