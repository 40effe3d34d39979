"""The mean intersection over union and the panoptic quality, by their definitions, and folders in COCO's format."""

import numpy as np
import pytest

from keras_vit.segmentation import MeanIoU, PanopticQuality, Segment, Segmentation, mean_iou

pytestmark = pytest.mark.once


def by_hand(pairs, classes, ignore):
    """The definition, one pixel at a time."""
    both, either = np.zeros(classes), np.zeros(classes)
    for prediction, label in pairs:
        for guess, true in zip(prediction.ravel(), label.ravel(), strict=True):
            if true == ignore:
                continue
            both[guess] += guess == true
            either[guess] += 1
            either[true] += guess != true
    shares = [i / u for i, u in zip(both, either, strict=True) if u]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("ignore", [255, 0, None])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_the_mean_is_that_of_the_definition(ignore, dtype):
    rng = np.random.default_rng(3)
    pairs = []
    for size in ((5, 7), (1, 1), (16, 3), (9, 9)):
        label = rng.integers(0, 5, size).astype(dtype)  # class 5 is nowhere labelled, class 6 nowhere at all
        prediction = np.where(rng.random(size) < 0.5, label, rng.integers(0, 6, size)).astype(dtype)
        if ignore == 255 and dtype != "int64":
            label[rng.random(size) < 0.3] = 255
        pairs.append((prediction, label))
    result = mean_iou(*zip(*pairs, strict=True), classes=7, ignore=ignore)
    assert result.mean_iou == pytest.approx(by_hand(pairs, 7, ignore), rel=1e-15)
    assert result.pictures == 4 and np.isnan(result.per_class[6])
    assert result.to_dict()["per_class"][6] is None and "mIoU" in str(result)
    each = [mean_iou([p], [t], classes=7, ignore=ignore).mean_iou for p, t in pairs]
    assert result.mean_iou != pytest.approx(np.nanmean(each), rel=1e-3)  # sums first, then the mean


def test_nothing_labelled_is_no_number():
    metric = MeanIoU(2)
    assert np.isnan(metric.result().mean_iou) and metric.result().to_dict()["mean_iou"] is None
    metric.add([[7, -1]], [[255, 255]])  # what is predicted there does not matter
    assert np.isnan(metric.result().pixel_accuracy) and metric.result().pictures == 1


MAP = np.zeros((2, 2), int)
WRONG = {
    "other sizes": (MAP, np.zeros((2, 3), int), ValueError, "equally large"),
    "floats": (MAP * 0.5, MAP, TypeError, "prediction must be a map of classes"),
    "logits": (np.zeros((2, 2, 3, 4), int), MAP, ValueError, "prediction must be"),
    "a class too many": (MAP + 3, MAP, ValueError, "prediction must have classes from 0 to 2"),
    "no segment": (MAP - 1, MAP, ValueError, "its classes are -1 to -1"),
    "a label too many": (MAP, MAP + 3, ValueError, "label must have .* reduce_zero_label"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused(case):
    prediction, label, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        MeanIoU(3).add(prediction, label)
    with pytest.raises(ValueError, match="shorter"):
        mean_iou([MAP, MAP], [MAP], classes=1)
    for wrong in ((0,), (2, 255, ["a"]), (2, 0.5)):
        with pytest.raises((TypeError, ValueError), match="class|ignore must be an integer"):
            MeanIoU(*wrong)


def predicted(ids, labels):
    parts = tuple(Segment(k, label, str(label), 0.9, int((ids == k).sum())) for k, label in labels.items())
    return Segmentation(np.asarray(ids, "int32"), parts, "panoptic")


def quality_by_definition(pictures, classes):
    """Mask by mask, as the paper's section 4 and 4.2 say it."""
    sums = np.zeros((classes, 4))  # found, invented, missed, overlap
    for guess, guesses, truth, truths, crowd in pictures:
        labelled = np.isin(truth, list(truths))
        used, found = set(), set()
        for t, true in truths.items():
            for g, label in guesses.items():
                one, other = truth == t, (guess == g) & labelled
                share = (one & other).sum() / max((one | other).sum(), 1)
                if t not in crowd and true == label and share > 0.5:
                    sums[label] += (1, 0, 0, share)
                    used.add(g)
                    found.add(t)
        for t, true in truths.items():
            sums[true, 2] += t not in found and t not in crowd
        for g, label in guesses.items():
            excused = (guess == g) & (~labelled | np.isin(truth, [t for t in crowd if truths[t] == label]))
            sums[label, 1] += g not in used and (guess == g).any() and excused.sum() <= (guess == g).sum() / 2
    return sums


def test_the_panoptic_quality_is_that_of_the_definition():
    rng, metric, pictures = np.random.default_rng(0), PanopticQuality(5, stuff=(3, 4)), []
    for _ in range(20):
        truth = np.kron(rng.integers(0, 7, (4, 5)), np.ones((3, 3), int))
        guess = np.where(rng.random(truth.shape) < 0.15, rng.integers(-1, 9, truth.shape), truth)
        truths = {int(k): int(rng.integers(4)) for k in np.unique(truth) if k < 6}  # 6 has no label, class 4 is nowhere
        guesses = {k: truths.get(k, 0) if rng.random() < 0.8 else int(rng.integers(4)) for k in range(9)}
        crowd = {k for k in list(truths)[:1] if rng.random() < 0.5}
        pictures.append((guess, guesses, truth, truths, crowd))
        metric.add(predicted(guess, guesses), truth, truths, iter(crowd))
    result, sums = metric.result(), quality_by_definition(pictures, 5)
    np.testing.assert_array_equal([result.matched, result.invented, result.missed], sums.T[:3])
    np.testing.assert_allclose(result.overlap, sums[:, 3], rtol=1e-12)
    segments = sums[:4, 0] + sums[:4, 1] / 2 + sums[:4, 2] / 2
    assert result.quality == pytest.approx((sums[:4, 3] / segments).mean(), rel=1e-12)
    assert np.isnan(result.per_class[4]).all() and result.pictures == 20
    assert np.isnan(PanopticQuality(1).result().quality)
    rows = {row["classes"]: row for row in result.table()}
    assert rows["stuff"]["PQ %"] == pytest.approx(100 * sums[3, 3] / segments[3], abs=0.006)


@pytest.mark.parametrize(
    "guess, background, counts, quality",
    [
        # The segment on id 7, which is neither a segment nor background, is on pixels without a label in both cases.
        ([1, 1, -1, 2, 2, 4], None, (1, 0, 0), 1.0),
        ([1, 1, -1, 2, 2, 4], 0, (1, 1, 0), 2 / 3),
        # Background counts in the union, as COCO counts it: 2 of 5 pixels are not half.
        ([1, 1, 1, 1, 1, -1], None, (1, 0, 0), 1.0),
        ([1, 1, 1, 1, 1, -1], 0, (0, 1, 1), 0.0),
    ],
)
def test_background_is_known_to_belong_to_no_segment(guess, background, counts, quality):
    """Without a background, the pixels of id 0 have no label."""
    metric, guess = PanopticQuality(1), np.array([guess])
    guesses = {k: 0 for k in np.unique(guess).tolist() if k > 0}
    metric.add(predicted(guess, guesses), np.array([[3, 3, 0, 0, 0, 7]]), {3: 0}, background=background)
    result = metric.result()
    assert (result.matched[0], result.invented[0], result.missed[0]) == counts
    assert result.quality == pytest.approx(quality)


GOOD = predicted(MAP, {0: 0})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((MAP, MAP, {0: 0}), TypeError, "must be what segment"),
        ((Segmentation(MAP, (), "semantic"), MAP, {0: 0}), TypeError, "must be what segment"),
        ((GOOD, MAP[:1], {0: 0}), ValueError, r"\(2, 2\) and \(1, 2\)"),
        ((GOOD, MAP, {0: 9}), ValueError, r"segments must have the classes 0 to 1, but has \[9\]"),
        ((predicted(MAP, {0: -1}), MAP, {0: 0}), ValueError, "prediction must have the classes"),
        ((GOOD, MAP, {0: 0, 7: 1}), ValueError, r"but \[7\] are"),
        ((GOOD, MAP, {0: 0.5}), ValueError, r"segments must have the classes 0 to 1, but has \[0.5\]"),
        ((GOOD, MAP - 1, {-1: 0}), ValueError, "segments must have ids of at least 0, but has -1"),
        ((GOOD, MAP, {0: 0}, (), 0), ValueError, "background must be an id .*, not 0"),
    ],
)
def test_segments_that_make_no_sense(arguments, error, message):
    with pytest.raises(error, match=message):
        PanopticQuality(2).add(*arguments)


def test_stuff_is_a_set_of_classes():
    for stuff in (["sky", 2], [1, None], [True], [3], [0.5]):
        with pytest.raises(ValueError, match="stuff must be classes from 0 to 2"):
            PanopticQuality(3, stuff)
    assert PanopticQuality(3, [2, 1, 2]).stuff == (1, 2)
