"""The mean intersection over union: its definition, pixel by pixel, and what it refuses."""

import numpy as np
import pytest

from keras_vit.segmentation import MeanIoU, mean_iou

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


def test_several_pictures_at_once_are_the_same_as_one_by_one():
    rng = np.random.default_rng(0)
    predictions, labels = rng.integers(0, 3, (2, 4, 5, 6))
    at_once, one_by_one = MeanIoU(3, class_names=["a", "b", "c"]), MeanIoU(3)
    at_once.add(predictions, labels)
    for pair in zip(predictions, labels, strict=True):
        one_by_one.add(*pair)
    one, other = at_once.result(), one_by_one.result()
    assert one.mean_iou == other.mean_iou and one.pictures == other.pictures == 4
    assert {row["class"] for row in one.class_table()} == set("abc") and len(one.class_table(worst=2)) == 2


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
    "nothing": (np.zeros((0, 2), int), np.zeros((0, 2), int), ValueError, "with pixels"),
    "None": (None, MAP, TypeError, "prediction must be a map of classes"),
    "a class too many": (MAP + 3, MAP, ValueError, "prediction must hold the classes 0 to 2"),
    "no segment": (MAP - 1, MAP, ValueError, "it has -1 to -1"),
    "a label too many": (MAP, MAP + 3, ValueError, "label must hold .* reduce_zero_label"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused(case):
    prediction, label, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        MeanIoU(3).add(prediction, label)


@pytest.mark.parametrize("arguments", [(0,), (2.5,), (True,), (2, 255, ["a"])])
def test_classes_are_a_number_with_as_many_names(arguments):
    with pytest.raises(ValueError, match="class"):
        MeanIoU(*arguments)


def test_there_is_a_label_for_each_prediction():
    with pytest.raises(ValueError):
        mean_iou([MAP, MAP], [MAP], classes=1)
