"""COCO's average precision, equal to pycocotools to the last digit."""

import contextlib
import io

import numpy as np
import pytest

from keras_vit import detection, segmentation

pytestmark = pytest.mark.once
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100")
NAMES += ("ar_small", "ar_medium", "ar_large")
CLASSES = 5


def figures(result):
    """The twelve numbers, with pycocotools' -1 for NaN."""
    return np.nan_to_num([getattr(result, name) for name in NAMES], nan=-1.0)


def corners(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


def test_the_figures_of_the_reference(golden):
    case, metric = golden("owl_ap_boxes"), detection.MeanAP(6)
    for i in range(case.meta["pictures"]):
        found = {"boxes": corners(case.ref[f"boxes_{i}"])} | {k: case.ref[f"{k}_{i}"] for k in ("scores", "labels")}
        truth = {"boxes": corners(case.ref[f"true_boxes_{i}"])}
        metric.add(found, truth | {k: case.ref[f"true_{k}_{i}"] for k in ("labels", "crowd", "areas")})
    np.testing.assert_array_equal(figures(metric.result()), case.meta["stats"])


def test_the_names_of_pycocotools():
    found = {"boxes": [[0, 0, 10, 10], [50, 50, 60, 60]], "scores": [0.9, 0.95], "labels": [0, 0]}
    truth = {"boxes": [[0, 0, 10, 10], [40, 40, 90, 90]], "labels": [0, 0]}
    results = []
    for crowd, areas in (("crowd", "areas"), ("iscrowd", "area")):
        metric = detection.MeanAP(1)
        metric.add(found, truth | {crowd: [0, 1], areas: [100.0, 2500.0]})
        results.append(figures(metric.result()))
    np.testing.assert_array_equal(*results)
    assert results[0][0] > 0.99  # the better find is in the crowd
    for wrong in ((found, truth | {"isCrowd": [0, 1]}), (found | {"score": [1, 1]}, truth)):
        with pytest.raises(ValueError, match=r"(found|truth) must have only .* but has .*(isCrowd|score)"):
            detection.MeanAP(1).add(*wrong)


def boxes_of(rng, count):
    place = rng.integers(0, 50, (count, 2)) if rng.random() < 0.5 else rng.random((count, 2)) * 50
    side = rng.integers(1, 64, (count, 2)) if rng.random() < 0.5 else rng.random((count, 2)) * 60 + 1
    return np.concatenate([place, place + side], 1).astype("float64") * rng.choice([1, 4])


def masks_of(boxes):
    masks = np.zeros((len(boxes), 64, 64), bool)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes.astype(int) % 64, strict=True):
        mask[min(y0, y1) : max(y0, y1) + 1, min(x0, x1) : max(x0, x1) + 1] = True
    return masks


def picture_of(rng):
    """Ties of scores and of overlaps, truths that are there twice, crowds, areas at both limits, 140 detections."""
    truths, guesses = int(rng.integers(0, 6)), int(rng.integers(0, 8 if rng.random() < 0.95 else 140))
    truth = {"boxes": boxes_of(rng, truths), "labels": rng.integers(0, CLASSES - 1, truths)}
    found = {"boxes": boxes_of(rng, guesses), "labels": rng.integers(0, CLASSES, guesses)}
    found["scores"] = np.round(rng.random(guesses), int(rng.choice([1, 6])))
    for j in range(min(truths, guesses)):
        if rng.random() < 0.7:
            found["boxes"][j] = truth["boxes"][j] + (0 if rng.random() < 0.3 else rng.integers(-3, 4))
            found["labels"][j] = truth["labels"][j]
    for part, share in ((found, guesses), (truth, truths)):
        if share > 1 and rng.random() < 0.3:
            part["boxes"][-1], part["labels"][-1] = part["boxes"][0], part["labels"][0]
    for part in (found, truth):
        part["masks"] = masks_of(part["boxes"])
    areas = (truth["boxes"][:, 2:] - truth["boxes"][:, :2]).prod(1) * 0.8
    limits = rng.choice([1024.0, 9216.0, 500.0, 5000.0, 20000.0], truths)
    return found, truth | {"crowd": rng.random(truths) < 0.15, "areas": limits if rng.random() < 0.5 else areas}


def pycocotools(pictures, kind):
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    from pycocotools.mask import encode

    images, annotations, results = [], [], []
    for i, (found, truth) in enumerate(pictures, 1):
        images.append({"id": i, "height": 64, "width": 64})
        for part, rows in ((truth, annotations), (found, results)):
            for j, (left, top, right, bottom) in enumerate(part["boxes"].tolist()):
                row = {"image_id": i, "category_id": int(part["labels"][j]) + 1, "id": len(rows) + 1}
                if kind == "masks":
                    row["segmentation"] = encode(np.asfortranarray(part["masks"][j].astype("uint8")))
                if kind == "boxes" or part is truth:
                    row["bbox"] = [left, top, right - left, bottom - top]
                if part is truth:
                    row |= {"iscrowd": int(part["crowd"][j]), "area": float(part["areas"][j])}
                else:
                    row["score"] = float(part["scores"][j])
                rows.append(row)
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO()
        categories = [{"id": k + 1, "name": str(k)} for k in range(CLASSES)]
        data.dataset = {"images": images, "annotations": annotations, "categories": categories}
        data.createIndex()
        found = evaluation.COCOeval(data, data.loadRes(results), "segm" if kind == "masks" else "bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    return found.stats


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_equal_to_pycocotools_to_the_last_digit(kind):
    for seed in range(10):
        rng = np.random.default_rng([seed, kind == "masks"])
        pictures = [picture_of(rng) for _ in range(rng.integers(2, 15))]
        if not any(len(found["labels"]) for found, _ in pictures):
            continue
        metric = detection.MeanAP(CLASSES, kind)
        for found, truth in pictures:
            metric.add(found, truth)
        np.testing.assert_array_equal(figures(metric.result()), pycocotools(pictures, kind), err_msg=f"seed {seed}")


def test_nothing_labelled_is_not_a_number():
    metric = detection.MeanAP(2, class_names=["a", "b"])
    assert np.isnan(metric.result().ap)
    metric.add({"boxes": [[0, 0, 1, 1]], "scores": [0.5], "labels": [0]}, {"boxes": [], "labels": []})
    assert np.isnan(metric.result().ap) and metric.result().pictures == 1
    metric.add({"boxes": [], "scores": [], "labels": []}, {"boxes": [[0, 0, 1, 1]], "labels": [1]})
    result = metric.result()
    assert result.ap == 0 and np.isnan(result.per_class[0]) and result.truths.tolist() == [0, 1]
    assert "AP50 %" in str(result) and result.class_table()[0]["class"] == "b"


def test_instances_of_a_segmentation():
    parts = (segmentation.Segment(0, 1, "dog", 0.9, 2), segmentation.Segment(1, 0, "cat", 0.8, 2))
    found = segmentation.Segmentation(np.array([[0, 0], [1, 1]], "int32"), parts, "instance")
    truth = {"masks": np.array([[[True, True], [False, False]], [[False, False], [True, False]]]), "labels": [1, 0]}
    metric = detection.MeanAP(2, "masks")
    metric.add(found, truth)
    assert metric.result().per_class.tolist() == pytest.approx([0.1, 1.0])  # half of the cat: right at 0.5 alone
    with pytest.raises(ValueError, match="task 'instance'"):
        metric.add(segmentation.Segmentation(found.map, parts, "panoptic"), truth)
    with pytest.raises(TypeError, match="found must be a dict, a Detection or an instance Segmentation"):
        metric.add(None, truth)


GOOD = {"boxes": [[0, 0, 1, 1]], "scores": [0.5], "labels": [0]}


@pytest.mark.parametrize(
    "found, truth, message",
    [
        (GOOD | {"labels": [2]}, GOOD, "labels of found must be from 0 to 1"),
        (GOOD | {"labels": [0.5]}, GOOD, "labels of found must be integers"),
        (GOOD | {"scores": [0.1, 0.2]}, GOOD, "scores of found must be finite"),
        (GOOD | {"boxes": [[1, 0, 0, 1]]}, GOOD, r"must be \(left, top, right, bottom\)"),
        (GOOD, GOOD | {"boxes": [[0, 0, np.inf, 1]]}, "boxes of truth must be finite"),
        (GOOD, GOOD | {"crowd": [True, False]}, "one value of crowd for each label"),
    ],
)
def test_what_makes_no_sense(found, truth, message):
    metric = detection.MeanAP(2)
    with pytest.raises(ValueError, match=message):
        metric.add(found, truth)
    assert metric.result().pictures == 0
    for wrong in ((0,), (2.5,), (2, "points"), (2, "boxes", ["a"])):
        with pytest.raises((ValueError, TypeError)):
            detection.MeanAP(*wrong)
