"""Several labels, numbers, uneven classes, tables and held-out shares in `finetune`."""

import keras
import numpy as np
import pytest

from keras_vit import data, training
from tests.training.test_finetuning import RECIPE, colours, finetune, new_model


def softplus(x):
    return np.logaddexp(0, x)


@pytest.mark.nightly_elsewhere
def test_losses_with_weights_of_classes():
    """An independent reading of PyTorch's `weight` and `pos_weight`, with a plain mean."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3)).astype("float32")
    w = np.array([0.5, 2.0, 7.0])
    one, several = np.eye(3, dtype="float32")[[0, 1, 2, 2, 1, 0]], rng.integers(0, 2, (6, 3)).astype("float32")
    log_p = logits - np.log(np.exp(logits.astype("float64")).sum(1, keepdims=True))
    expected = np.mean(-(w * one * log_p).sum(1))
    np.testing.assert_allclose(float(training.SoftmaxLoss(class_weight=w)(one, logits)), expected, rtol=1e-6)
    expected = np.mean((w * several * softplus(-logits) + (1 - several) * softplus(logits)).sum(1))
    loss = training.SigmoidLoss(class_weight=w)
    np.testing.assert_allclose(float(loss(several, logits)), expected, rtol=1e-6)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert float(again(several, logits)) == float(loss(several, logits))


@pytest.mark.nightly_elsewhere
def test_ranking_precision_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    from keras_vit.training.tasks import ranking_precision

    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (20, 7)).astype("float32"), rng.normal(size=(20, 7)).astype("float32")
    labels[3] = 0
    metric = keras.metrics.MeanMetricWrapper(ranking_precision)
    metric.update_state(labels[:12], scores[:12])
    metric.update_state(labels[12:], scores[12:])
    expected = metrics.label_ranking_average_precision_score(labels, scores)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


@pytest.mark.once
def test_balanced_weights():
    from keras_vit.training.tasks import class_weights

    images, labels = colours(12)
    options = {"image_size": 8, "batch_size": 4}
    labels = np.array([0] * 6 + [1] * 4 + [2] * 2)
    with data.open_data((images, labels), **options) as stream:
        assert class_weights("balanced", stream) == pytest.approx([12 / 18, 1, 2])  # n / (classes * count)
        assert class_weights({"2": 3}, stream) == class_weights({2: 3.0}, stream) == [1, 1, 3]  # Keras's way as well
        recipe = training.Recipe(class_weight={np.int64(2): np.float32(3)})  # as scikit-learn counts classes
        assert class_weights(recipe.class_weight, stream) == [1, 1, 3]
        with pytest.raises(ValueError, match="class_weight names 'dog', but the data's classes are '0'"):
            class_weights({"dog": 3}, stream)
    rows = np.eye(3)[labels] + np.eye(3)[[1] * 12] > 0
    with data.open_data((images, rows), target="multilabel", **options) as stream:
        assert class_weights("balanced", stream) == pytest.approx([1, 0, 5])  # negatives / positives
    with data.open_data([(images[:4], labels[:4])], classes=3, **options) as stream:
        with pytest.raises(ValueError, match="A pipeline does not say"):
            class_weights("balanced", stream)
    for wrong in ({"class_weight": "even"}, {"class_weight": {"a": -1}}, {"sampling": "cube"}):
        with pytest.raises(ValueError, match=rf"{next(iter(wrong))}(\['a'\])? must"):
            RECIPE.replace(**wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["multilabel", pytest.param("number", marks=pytest.mark.once)])
def test_it_learns(target):
    images, labels = colours(48)
    labels = np.eye(3)[labels][:, [0, 1, 2, 0]] if target == "multilabel" else 10.0 + labels
    recipe = RECIPE.replace(optimizer="adamw", learning_rate=0.003, dropout=0)
    done = finetune(new_model(dropout=0), (images, labels), recipe, 60, target=target, validation=0.25)
    outputs = done.model.predict(done.model.preprocess(images), verbose=0)
    if target == "multilabel":
        assert done.model.config.classifier_activation == "sigmoid" and outputs.shape == (48, 4)
        assert done.log[-1]["val_ranking_precision"] > 0.9 and ((outputs > 0.5) == labels).mean() > 0.9
    else:
        assert outputs.shape == (48, 1) and done.accuracy is None
        # 0.67 where all are the mean, which the head's bias starts with.
        assert done.log[-1]["val_mean_absolute_error"] < 0.5 and np.abs(outputs[:, 0] - labels).mean() < 0.5
