"""The loss of OWL-ViT beside Scenic's numbers: matching, terms, gradients."""

import numpy as np
import pytest

from keras_vit import training
from tests.training.test_mask_classification import gradients_of

pytestmark = pytest.mark.once

FLOAT32 = 1e-6  # of values around 1; Scenic's own float32 differs from float64 by 5e-7


@pytest.fixture(scope="module")
def case(golden):
    return golden("owl_loss")


@pytest.fixture(scope="module")
def targets(case):
    boxes, labels = case.ref["true_boxes"], case.ref["true_labels"]
    return [{"boxes": boxes[i, :n], "labels": labels[i, :n]} for i, n in enumerate(case.meta["counts"])]


@pytest.mark.each
def test_the_numbers_of_scenic(case, targets):
    loss, outputs = training.DetectionLoss(), {name: case.ref[name] for name in ("logits", "boxes")}
    terms = {name: float(value) for name, value in loss.terms(targets, outputs).items()}
    wanted = case.meta["losses"]
    for name, key in (("classes", "loss_class"), ("boxes", "loss_bbox"), ("giou", "loss_giou")):
        assert terms[name] == pytest.approx(wanted[key], rel=FLOAT32)

    def total(logits, boxes):
        return loss(targets, {"logits": logits, "boxes": boxes})

    value, gradients = gradients_of(total, outputs["logits"], outputs["boxes"])
    assert value == pytest.approx(case.meta["total"], rel=FLOAT32)
    for name, gradient in zip(outputs, gradients, strict=True):
        np.testing.assert_allclose(gradient, case.ref[f"grad_{name}"], atol=FLOAT32, rtol=0)
    assert not gradients[0][case.ref["logits"] == -1e6].any()  # of queries that only fill up


def test_the_pairs_of_scenic(case, targets):
    outputs = {name: case.ref[name] for name in ("logits", "boxes")}
    for i, found in enumerate(training.match_boxes(targets, outputs)):
        pairs = list(zip(found.queries.tolist(), found.targets.tolist(), strict=True))
        assert sorted(pairs) == sorted(map(tuple, case.meta["pairs"][i]))
        count = case.meta["counts"][i]
        np.testing.assert_allclose(found.cost, case.ref["cost"][i][:, :count], atol=2e-6, rtol=0)


def test_normalization_over_the_batch(case, targets):
    """The sums of pictures that are divided one by one, and by the numbers of all of them."""
    outputs = {name: case.ref[name] for name in ("logits", "boxes")}
    counts = np.array(case.meta["counts"], float)
    alone = [
        training.DetectionLoss().terms([t], {name: values[i : i + 1] for name, values in outputs.items()})
        for i, t in enumerate(targets)
    ]
    whole = training.DetectionLoss(normalization="global").terms(targets, outputs)
    for name in ("boxes", "giou"):
        sums = sum(float(terms[name]) * count for terms, count in zip(alone, counts, strict=True))
        assert float(whole[name]) == pytest.approx(sums / counts.sum(), rel=1e-5)


def test_labels_as_numbers_and_pictures_without_boxes(case):
    outputs = {name: case.ref[name][:1] for name in ("logits", "boxes")}
    loss, boxes = training.DetectionLoss(), [[0.5, 0.5, 0.2, 0.2], [0.2, 0.2, 0.1, 0.1]]
    hot = {"boxes": boxes, "labels": np.eye(7)[[2, 5]]}
    assert float(loss([hot], outputs)) == float(loss([{"boxes": boxes, "labels": [2, 5]}], outputs))
    terms = loss.terms([{"boxes": [], "labels": []}], outputs)
    assert float(terms["boxes"]) == float(terms["giou"]) == 0 and float(terms["classes"]) > 0


@pytest.mark.parametrize(
    "target, message",
    [
        ({"boxes": [[0.5, 0.5, 1, 1]], "labels": [7]}, "integers from 0 to 6"),
        ({"boxes": [[0.5, 0.5, 1, 1]], "labels": [0.5]}, "integers from 0 to 6"),
        ({"boxes": [[0.5, 0.5, 1, 1]], "labels": [1, 2]}, r"labels \(M,\) or \(M, 7\)"),
        ({"boxes": [[0.5, 0.5, -1, 1]], "labels": [1]}, "sizes of at least 0"),
        ({"boxes": [[0.5, np.nan, 1, 1]], "labels": [1]}, "sizes of at least 0"),
    ],
)
def test_targets_that_make_no_sense(case, target, message):
    outputs = {name: case.ref[name][:1] for name in ("logits", "boxes")}
    with pytest.raises(ValueError, match=message):
        training.DetectionLoss()([target], outputs)
    for wrong in ({"focal_alpha": 2}, {"box_weight": -1}, {"focal_gamma": np.nan}, {"normalization": "batch"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            training.DetectionLoss(**wrong)
