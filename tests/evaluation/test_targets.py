"""Several labels and numbers as labels: beside scikit-learn."""

import json

import numpy as np
import pytest

from keras_vit import data, evaluation
from tests.small_models import small_vit

pytestmark = pytest.mark.once
Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
LABELS = (RNG.uniform(size=(60, 5)) < [0.5, 0.3, 0.1, 0.05, 0]).astype("float64")
SCORES = np.round(RNG.normal(size=(60, 5)) + LABELS, 1)  # with ties


def same(scores):
    return scores


def test_figures_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    result = evaluation.evaluate(same, (SCORES, LABELS), target="multilabel", outputs="logits", progress=False)
    probabilities = 1 / (1 + np.exp(-SCORES))
    wanted = metrics.average_precision_score(LABELS[:, :4], SCORES[:, :4], average=None)
    np.testing.assert_allclose(result.average_precision[:4], wanted, rtol=1e-12)
    for i in range(4):
        every = {t: metrics.f1_score(LABELS[:, i], probabilities[:, i] >= t) for t in probabilities[:, i]}
        assert result.f1[i] == pytest.approx(metrics.f1_score(LABELS[:, i], probabilities[:, i] >= 0.5), rel=1e-12)
        assert result.best_f1[i] == pytest.approx(max(every.values()), rel=1e-12)
        nearest = min(every, key=lambda t: abs(t - result.best_thresholds[i]))
        assert nearest == pytest.approx(result.best_thresholds[i], rel=1e-9) and every[nearest] == max(every.values())
    assert np.isnan([result.average_precision[4], result.best_thresholds[4]]).all() and result.f1[4] == 0
    losses = -np.log(np.where(LABELS == 1, probabilities, 1 - probabilities)).sum(1)
    assert result.loss == pytest.approx(losses.mean(), rel=1e-12)
    wanted = metrics.f1_score(LABELS, probabilities >= 0.5, average="macro", zero_division=0)
    assert result.mean_f1 == pytest.approx(wanted, rel=1e-12)
    assert result.mean_average_precision == result.average_precision[:4].mean()
    again = evaluation.evaluate(same, (probabilities, LABELS), target="multilabel", outputs="sigmoid", progress=False)
    np.testing.assert_array_equal(again.average_precision, result.average_precision)
    assert again.loss == pytest.approx(result.loss, rel=1e-9)
    assert json.loads(json.dumps(result.to_dict()))["average_precision"][4] is None
    ranked = [i for i in np.argsort(result.average_precision) if i < 4]
    assert [row["images"] for row in result.class_table()] == [int(LABELS[:, i].sum()) for i in ranked]


def test_numbers():
    labels = RNG.normal(30, 10, 50).astype("float32")
    outputs = labels[:, None].astype("float64") + RNG.normal(size=(50, 1))
    result = evaluation.evaluate(same, [(outputs[:30], labels[:30]), (outputs[30:], labels[30:])], target="number")
    metrics = pytest.importorskip("sklearn.metrics")
    assert result.r2 == pytest.approx(metrics.r2_score(labels, outputs[:, 0]), rel=1e-9)
    assert result.mean_absolute_error == pytest.approx(np.abs(outputs[:, 0] - labels).mean(), rel=1e-9)
    assert result.root_mean_squared_error == pytest.approx(np.sqrt(((outputs[:, 0] - labels) ** 2).mean()), rel=1e-9)
    assert "R2" in str(result) and result.to_dict()["examples"] == 50
    assert np.isnan(evaluation.evaluate(same, (outputs, np.ones(50)), target="number", progress=False).r2)


def test_a_table_says_what_its_labels_are_and_names_decide_the_columns(tmp_path):
    """The model knows more classes, in another order."""
    for i in range(6):
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype="uint8")).save(tmp_path / f"{i}.png")
    lines = ["file,label,age", *(f"{i}.png,{'cat|young' if i % 2 else 'dog'},{i}" for i in range(6))]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    names = ("young", "owl", "dog", "cat")
    model = small_vit(classes=4, class_names=names)
    model.get_layer("head").kernel.assign(np.zeros((8, 4)))
    model.get_layer("head").bias.assign([3.0, -3.0, -3.0, 3.0])
    table = data.open_table(tmp_path / "labels.csv", separator="|")
    result = evaluation.evaluate(model, table, batch_size=4, progress=False)
    assert result.class_names == names and result.images_per_class.tolist() == [3, 0, 3, 3]
    np.testing.assert_allclose(result.f1, [2 / 3, np.nan, 0, 2 / 3])
    ages = data.open_table(tmp_path / "labels.csv", label="age", target="number")
    one = small_vit(classes=1)
    one.get_layer("head").kernel.assign(np.zeros((8, 1)))
    one.get_layer("head").bias.assign([2.0])
    assert evaluation.evaluate(one, ages, progress=False).mean_absolute_error == np.abs(np.arange(6) - 2).mean()
    for evaluated, source, options, words in (
        (model, table, {"target": "number"}, "target='number'"),
        (model, ages, {}, "needs a model with one output, but the model has 4"),
        (small_vit(classes=4, class_names=names, classifier_activation="softmax"), table, {}, "outputs are 'softmax'"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluation.evaluate(evaluated, source, progress=False, **options)
    with pytest.raises(ValueError, match="target 'class', but 'multilabel' was given"):
        evaluation.few_shot(model, {"train": table}, {"test": table}, shots=[1], progress=False)
