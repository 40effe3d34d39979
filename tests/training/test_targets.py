"""Several labels, numbers, uneven classes, tables and held-out shares in `finetune`."""

import json

import keras
import numpy as np
import pytest

from keras_vit import cli, data, training
from keras_vit.checkpoints import save_model
from tests.pictures import save
from tests.training.test_finetuning import RECIPE, colours, finetune, new_model
from tests.training.test_loop import assert_same_weights, cut_off


def softplus(x):
    return np.logaddexp(0, x)


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
    from keras_vit.training.tasks import RankingPrecision

    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (20, 7)).astype("float32"), rng.normal(size=(20, 7)).astype("float32")
    labels[3] = 0
    metric = RankingPrecision()
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


@pytest.mark.once  # test_loop.py and test_finetuning.py kill runs on each backend
def test_a_killed_run_with_a_table_a_share_and_sampling_goes_on(tmp_path):
    """To the same weights, bit for bit."""
    pixels, labels = colours(30)
    for i, picture in enumerate(pixels):
        save(tmp_path / f"{i}.png", picture)
    names = [f"{'abc'[n]} {'de'[n % 2] if i % 3 else ''}" for i, n in enumerate(labels)]
    columns = {"file": [f"{i}.png" for i in range(30)], "label": names}
    table = data.open_table(columns, separator=" ", folder=tmp_path)
    recipe = RECIPE.replace(class_weight={"b": 4.0}, sampling="sqrt", label_smoothing=0.1)
    options = {"data": table, "recipe": recipe, "steps": 4, "every": 2, "validation": 0.2}
    whole = finetune(new_model(), output=tmp_path / "whole", **options)
    assert whole.class_names == ["a", "b", "c", "d", "e"]
    cut_off(finetune, 3, model=new_model(), output=tmp_path / "run", **options)
    resumed = finetune(new_model(), output=tmp_path / "run", **options)
    assert_same_weights(resumed.model, whole.model)
    with pytest.raises(ValueError, match="holds a run with other settings: .*sampling"):
        finetune(new_model(), output=tmp_path / "run", **options | {"recipe": recipe.replace(sampling=None)})


@pytest.mark.once
def test_the_command_line_trains_on_tables_and_predicts(tmp_path, capsys):
    pixels, labels = colours(24)
    for i, picture in enumerate(pixels):
        save(tmp_path / f"{i}.png", picture)
    rows = [f"{i}.png,{'abc'[n]}|{'de'[i % 2]},{n}" for i, n in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,tags,age", *rows]))
    save_model(new_model(), tmp_path / "start.keras")
    start, run = str(tmp_path / "start.keras"), str(tmp_path / "run")
    table = [str(tmp_path / "labels.csv"), "--file", "image", "--validation", "0.2", "--steps", "2", "--restart"]
    common = ["finetune", start, *table, "--output", run, "--batch-size", "8", "--image-size", "8"]
    several = ["--label", "tags", "--separator", "|", "--sampling", "sqrt", "--class-weight", "a=2", "b=0.5"]
    assert cli.main([*common, *several]) == 0
    assert "val ranking precision" in capsys.readouterr().out
    predict = ["predict", "--json", str(tmp_path / "0.png"), "--weights", f"{run}/model.keras"]
    assert cli.main([*predict, "--threshold", "0"]) == 0
    found = json.loads(capsys.readouterr().out)[0]["classes"]
    assert sorted(entry["name"] for entry in found) == ["a", "b", "c", "d", "e"]
    assert cli.main([*common, "--label", "age", "--target", "number"]) == 0
    capsys.readouterr()
    assert cli.main(predict) == 0
    assert 0 <= json.loads(capsys.readouterr().out)[0]["number"] <= 2
    for wrong, words in ((["--class-weight", "a=b"], "NAME=WEIGHT"), (["--label", "nothing"], "no column 'nothing'")):
        assert cli.main([*common, *wrong]) == 1
        assert words in capsys.readouterr().err
