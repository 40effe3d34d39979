"""The loss of masks and classes beside the authors' numbers, and mistakes that others make with it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import training
from keras_vit.training.mask_classification import match, pad_targets, sample

pytestmark = pytest.mark.once

FLOAT32 = 3e-6  # of values and of the gradients' range: a few times the noise of the original in float32


@pytest.fixture(scope="module")
def case(golden):
    return golden("train_loss_panoptic")


@pytest.fixture(scope="module")
def targets(case):
    return [{"masks": case.ref[f"target_masks_{i}"], "labels": case.ref[f"target_labels_{i}"]} for i in range(2)]


def gradients_of(function, *arrays):
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        value, gradients = jax.value_and_grad(function, argnums=tuple(range(len(arrays))))(*arrays)
    elif backend == "tensorflow":
        import tensorflow as tf

        tensors = [tf.constant(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        gradients = tape.gradient(value, tensors)
    else:
        import torch

        tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
        value = function(*tensors)
        gradients = torch.autograd.grad(value, tensors)
        value = value.detach()
    return float(value), [ops.convert_to_numpy(gradient) for gradient in gradients]


def points_of(case):
    return {name: case.ref[name] for name in ("match", "candidates", "random")}


def outputs_of(masks, classes):
    return [{"masks": masks[i], "classes": classes[i]} for i in range(len(masks))]


@pytest.mark.each
def test_the_loss_and_its_gradients_are_the_authors(case, targets):
    loss = training.MaskClassificationLoss(case.meta["classes"], **case.meta["options"])
    logits = (case.ref["masks"], case.ref["classes"])

    def total(masks, classes):
        return loss(targets, outputs_of(masks, classes), points_of(case))

    value, gradients = gradients_of(total, *logits)
    np.testing.assert_allclose(value, case.ref["total"], rtol=FLOAT32)
    for gradient, name in zip(gradients, ("grad_masks", "grad_classes"), strict=True):
        np.testing.assert_allclose(gradient, case.ref[name], rtol=0, atol=FLOAT32 * np.ptp(case.ref[name]))
    terms = loss.terms(targets, outputs_of(*logits), points_of(case))
    found = [[float(term[name]) for name in ("mask", "dice", "classes")] for term in terms]
    np.testing.assert_allclose(found, case.ref["terms"], rtol=FLOAT32)


@pytest.mark.nightly_elsewhere
def test_queries_are_matched_as_by_the_authors(case, targets):
    for i, output in enumerate(outputs_of(case.ref["masks"], case.ref["classes"])):
        for n, found in enumerate(match(targets, output, case.ref["match"][i])):
            np.testing.assert_allclose(found.cost, case.ref[f"cost_{i}_{n}"], atol=FLOAT32 * 10)
            pairs = zip(case.ref[f"queries_{i}_{n}"], case.ref[f"matched_{i}_{n}"], strict=True)
            assert sorted(zip(found.queries, found.targets, strict=True)) == sorted(pairs)


@pytest.mark.nightly_elsewhere
def test_values_at_points():
    """(x, y) from the corner of the map; between centres linear; what lies outside counts as 0."""
    maps = np.arange(6, dtype="float32").reshape(1, 2, 3) + 1
    points = np.array([[[0.5 / 3, 0.25], [2.5 / 3, 0.75], [1 / 3, 0.25], [0, 0], [1, 0.75], [0.5, 0.5]]], "float32")
    found = ops.convert_to_numpy(sample(ops.convert_to_tensor(maps), ops.convert_to_tensor(points)))
    np.testing.assert_allclose(found[0], [1, 6, 1.5, 0.25, 3, 3.5], rtol=1e-6)


def one_prediction(queries=2, pictures=1, size=4):
    rng = np.random.default_rng(0)
    masks = rng.normal(size=(pictures, queries, size, size)).astype("float32")
    return {"masks": masks, "classes": rng.normal(size=(pictures, queries, 4)).astype("float32")}


def corners(count, size=8):
    masks = np.zeros((count, size, size), bool)
    for i in range(count):
        masks[i, i : i + 4, i : i + 4] = True
    return {"masks": masks, "labels": np.arange(count) % 3}


def points_for(pictures):
    """Six points for each of three masks in all."""
    rng = np.random.default_rng(0)
    sizes = {"match": (pictures, 6), "candidates": (3, 18), "random": (3, 2)}
    return {name: rng.random((1, *size, 2)).astype("float32") for name, size in sizes.items()}


def test_masks_without_a_query_do_not_count():
    """Three masks and two queries: both terms are divided by two; a number that is given takes its place."""
    loss, points = training.MaskClassificationLoss(3, points=6, seed=1), points_for(1)
    output, target = one_prediction(), corners(3)
    (found,) = match([target], output, points["match"][0])
    assert len(found.queries) == 2
    (two,), (six,) = loss.terms([target], [output], points), loss.terms([target], [output], points, num_masks=6)
    for name in ("mask", "dice"):
        assert float(two[name]) == pytest.approx(3 * float(six[name]), rel=1e-5)
    assert float(two["classes"]) == pytest.approx(float(six["classes"]))


def test_pictures_without_masks_train_classes_alone():
    loss = training.MaskClassificationLoss(3, points=6, seed=1)
    output, nothing = one_prediction(4), {"masks": np.zeros((0, 8, 8), bool), "labels": np.zeros(0, int)}
    (terms,) = loss.terms([nothing], [output])
    logits = output["classes"][0].astype("float64")
    surprise = np.log(np.exp(logits).sum(-1)) - logits[:, 3]
    assert float(terms["mask"]) == float(terms["dice"]) == 0
    assert float(terms["classes"]) == pytest.approx(surprise.mean(), rel=1e-5)


def test_costs_that_are_no_numbers():
    """NaN and infinity are the largest float: such a query gets a mask only if nothing else is left."""
    output = one_prediction(3)
    output["masks"][0, 1] = np.nan
    (found,) = match([corners(2)], output, np.random.default_rng(0).random((1, 6, 2)).astype("float32"))
    assert found.queries.tolist() == [0, 2] and found.cost[1].min() == np.finfo("float32").max


def test_masks_that_fill_up_change_nothing():
    """The padded form, whose programs JAX compiles once: no gradient, no share in any term."""
    loss, output = training.MaskClassificationLoss(3, points=6), one_prediction(3, 2)
    targets, points = [corners(1), corners(2)], points_for(2)
    padded = pad_targets(targets, multiple=8)
    assert padded["labels"].shape == (2, 8) and padded["labels"][0].tolist() == [0] + [-1] * 7
    values = [float(loss(form, [output], points)) for form in (targets, padded)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_targets_that_make_no_sense():
    with pytest.raises(ValueError, match="targets must have masks"):
        pad_targets([corners(1), corners(1, size=6)])
    for masks, labels in ((np.zeros((2, 4, 4)), [1]), (np.zeros((1, 4, 4)), 1), (np.zeros(()), [1])):
        with pytest.raises(ValueError, match="targets must have masks"):
            pad_targets([{"masks": masks, "labels": labels}])
    with pytest.raises(ValueError, match="whole numbers as labels"):
        pad_targets([{"masks": np.zeros((1, 4, 4)), "labels": [1.5]}])
    loss, output = training.MaskClassificationLoss(3, points=6), one_prediction()
    for labels, words in (([-1], "at least 0"), ([3], "labels of 0 to 2, but have 3")):
        with pytest.raises(ValueError, match=words):
            loss([corners(1) | {"labels": np.array(labels)}], [output])
    with pytest.raises(ValueError, match="outputs must have 4 classes .* but they have 3"):
        training.MaskClassificationLoss(4, points=6)([corners(1)], [output])
    for wrong in ({"classes": 0}, {"points": 0}, {"oversample": 0.5}, {"importance": 2}, {"no_object": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a"):
            training.MaskClassificationLoss(**{"classes": 3} | wrong)
