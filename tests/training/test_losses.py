"""The losses against their formulas in float64."""

import keras
import numpy as np
import pytest

from keras_vit.training import SigmoidLoss, SoftmaxLoss

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 5, (6, 4)).astype("float32")
LABELS = np.eye(4, dtype="float32")[RNG.integers(0, 4, 6)] * 0.7 + np.eye(4, dtype="float32")[0] * 0.3


def softmax(labels, logits):
    logits = logits.astype("float64")
    return -np.mean(np.sum(labels * (logits - np.log(np.exp(logits).sum(-1, keepdims=True))), -1))


def sigmoid(labels, logits):
    p = 1 / (1 + np.exp(-logits.astype("float64")))
    return -np.mean(np.sum(labels * np.log(p) + (1 - labels) * np.log(1 - p), -1))


@pytest.mark.parametrize("loss, formula", [(SoftmaxLoss, softmax), (SigmoidLoss, sigmoid)])
def test_losses(loss, formula):
    for smoothing in (0.0, 0.1):
        labels = LABELS * (1 - smoothing) + smoothing / 4
        found = float(loss(label_smoothing=smoothing)(LABELS, LOGITS))
        assert found == pytest.approx(formula(labels, LOGITS), rel=1e-6)  # float32
    # finite, and in float32
    labels, logits = np.array([[0.0, 1.0]], "float32"), np.array([[300.0, -300.0]], "float32")
    assert float(loss()(labels, logits)) == pytest.approx(600.0)
    half = loss().call(keras.ops.cast(labels, "bfloat16"), keras.ops.cast(logits, "bfloat16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    data = keras.saving.serialize_keras_object(loss(label_smoothing=0.2))
    assert data["registered_name"] == f"keras_vit>{loss.__name__}"
    assert keras.saving.deserialize_keras_object(data).label_smoothing == 0.2
    with pytest.raises(ValueError, match="one_hot"):
        loss()(np.zeros((6,), "int32"), LOGITS)
    with pytest.raises(ValueError, match="label_smoothing"):
        loss(label_smoothing=1.0)
