"""The loss of masks and classes beside the authors' numbers, and mistakes that others make with it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import training
from keras_vit.training.mask_classification import match

FLOAT32 = 3e-6  # of values and of the gradients' range: a few times the noise of the original in float32


@pytest.fixture(scope="module")
def case(golden):
    return golden("train_loss_panoptic")


@pytest.fixture(scope="module")
def targets(case):
    return [{"masks": case.ref[f"target_masks_{i}"], "labels": case.ref[f"target_labels_{i}"]} for i in range(2)]


def gradients_of(function, *arrays):
    """The value of a function of arrays and its gradients with respect to them."""
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


def test_queries_are_matched_as_by_the_authors(case, targets):
    for i, output in enumerate(outputs_of(case.ref["masks"], case.ref["classes"])):
        for n, found in enumerate(match(targets, output, case.ref["match"][i])):
            np.testing.assert_allclose(found.cost, case.ref[f"cost_{i}_{n}"], atol=FLOAT32 * 10)
            pairs = zip(case.ref[f"queries_{i}_{n}"], case.ref[f"matched_{i}_{n}"], strict=True)
            assert sorted(zip(found.queries, found.targets, strict=True)) == sorted(pairs)
