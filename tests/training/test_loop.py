"""The training loop: what it logs and saves, and that a run which was cut off ends like one which was not."""

import json

import keras
import numpy as np
import pytest

from keras_vit.data import Batches
from keras_vit.training.curve import draw_curve
from keras_vit.training.loop import train
from keras_vit.training.optimizers import MomentumSGD
from keras_vit.training.run_folder import RunFolder


def new_model(use_ema=False):
    keras.utils.set_random_seed(1)
    # The loop knows nothing of what it trains, and this compiles fast.
    layers = [keras.layers.Flatten(), keras.layers.Dropout(0.2, seed=3), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((2, 2, 3)), *layers])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, use_ema=use_ema, ema_momentum=0.5),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.CategoricalAccuracy("accuracy")],
    )
    return model


def batch(number):
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 3, 8)
    images = rng.normal(size=(8, 2, 2, 3)) + labels[:, None, None, None]
    return images.astype("float32"), np.eye(3, dtype="float32")[labels]


VALIDATION = Batches(batch, range(1000, 1002))


class Cut(Exception):
    pass


def cut_at(step):
    def cut(number):
        if number == step:
            raise Cut
        return batch(number)

    return cut


def weights_of(model):
    return [np.copy(keras.ops.convert_to_numpy(weight.value)) for weight in model.weights]


@pytest.mark.parametrize("use_ema", [False, True], ids=["plain", "polyak"])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, use_ema):
    whole = new_model(use_ema)
    log = train(whole, batch, 7, every=3, validation=VALIDATION, verbose=False)
    for step in (4, 6):
        with pytest.raises(Exception) as caught:  # on TensorFlow, the error comes wrapped in one of its own
            train(new_model(use_ema), cut_at(step), 7, every=3, folder=RunFolder(tmp_path, {}), verbose=False)
        assert "Cut" in repr(caught.value) or "Cut" in str(caught.value)
    model = new_model(use_ema)
    resumed = train(model, batch, 7, every=3, folder=RunFolder(tmp_path, {}), verbose=False)
    assert [row["step"] for row in resumed] == [3, 6, 7]
    assert resumed[-1]["loss"] == log[-1]["loss"]
    for got, wanted in zip(weights_of(model), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "run.json", "step-00000007.h5"]


def test_dropout_goes_on_where_it_was(tmp_path):
    """Keras's weight files hold no state of random generators: without it, the masks of the first steps come again."""
    train(new_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    model = new_model()
    states = [weight for weight in model.variables if "seed_generator" in weight.path]
    before = [np.copy(keras.ops.convert_to_numpy(state.value)) for state in states]
    model.optimizer.build(model.trainable_variables)
    assert RunFolder(tmp_path, {}).restore(model) == 2
    assert states and all(np.any(keras.ops.convert_to_numpy(s.value) != b) for s, b in zip(states, before, strict=True))


def test_polyak_averages_are_what_is_evaluated_and_kept():
    model = new_model(use_ema=True)
    log = train(model, batch, 5, every=2, validation=VALIDATION, verbose=False)
    again = model.evaluate(VALIDATION, verbose=0, return_dict=True)
    # The averages stayed in the model, and the last evaluation was of them.
    assert log[-1]["val_loss"] == pytest.approx(again["loss"], rel=1e-6)
    # By hand: Keras starts from the weights after the first step.
    plain = new_model()
    average = None
    for step in range(5):
        plain.fit(Batches(batch, [step]), verbose=0, shuffle=False)
        now = weights_of(plain)
        average = now if average is None else [(a + w) / 2 for a, w in zip(average, now, strict=True)]
    for got, wanted in zip(weights_of(model), average, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)  # float32 sums of weights of size 1, in another order


def test_accumulated_batches_are_one_step(tmp_path):
    model = new_model()
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), model.loss, metrics=["accuracy"])
    seen = []

    def watched(number):
        seen.append(number)
        return batch(number)

    log = train(model, watched, 3, every=2, batches_per_step=2, verbose=False)
    assert [row["step"] for row in log] == [2, 3]
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5]


def test_callbacks_see_one_run(tmp_path):
    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.events = []

        def on_train_begin(self, logs=None):
            self.events.append("begin")

        def on_train_batch_end(self, batch, logs=None):
            self.events.append("batch")

        def on_epoch_end(self, epoch, logs=None):
            self.events.append((epoch, "val_loss" in logs))

        def on_train_end(self, logs=None):
            self.events.append("end")

    watch = Watch()
    train(new_model(), batch, 3, every=2, validation=VALIDATION, callbacks=[watch], verbose=False)
    assert watch.events == ["begin", "batch", "batch", (0, True), "batch", (1, True), "end"]


def test_early_stopping_stops():
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    log = train(new_model(), batch, 10, every=1, validation=VALIDATION, callbacks=[stop], verbose=False)
    assert len(log) == 2  # nothing is ever better by 1e9 than the first


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def astray(number):
        images, labels = batch(number)
        return (images * np.nan if number >= 2 else images), labels

    with pytest.raises(FloatingPointError, match="between steps 2 and 4.*step 2"):
        train(new_model(), astray, 6, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert [path.name for path in tmp_path.glob("*.h5")] == ["step-00000002.h5"]


def test_a_folder_is_of_one_run(tmp_path):
    run = tmp_path / "run"
    with RunFolder(run, {"seed": 0, "recipe": {"steps": 3}}).locked():
        pass
    RunFolder(run, {"seed": 0, "recipe": {"steps": 3}})
    with pytest.raises(ValueError, match="seed was 0 and is now 1.*resume=False"):
        RunFolder(run, {"seed": 1, "recipe": {"steps": 3}})
    with RunFolder(run, {"seed": 1}, resume=False).locked():
        pass
    assert json.loads((run / "run.json").read_text()) == {"seed": 1}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        RunFolder(tmp_path, {})
    with pytest.raises(ValueError, match="is a file"):
        RunFolder(tmp_path / "notes.txt", {})
    (run / "run.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        RunFolder(run, {"seed": 1})


def test_two_processes_do_not_share_a_folder(tmp_path):
    with RunFolder(tmp_path / "run", {}).locked(), pytest.raises(RuntimeError, match="Another process"):
        with RunFolder(tmp_path / "run", {}).locked():
            pass


def test_the_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": s, "loss": 1 / s, "val_loss": None, "accuracy": 0.5, "learning_rate": 0.1} for s in (1, 2, 3)]
    draw_curve(rows, tmp_path / "curve.png", "a run")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_adapters_and_short_momentum_go_on_exactly(tmp_path):
    def lora_model():
        model = new_model()
        model.layers[-1].enable_lora(2)
        optimizer = MomentumSGD(0.1, momentum_dtype="bfloat16")
        model.compile(optimizer, model.loss, metrics=["accuracy"])
        return model

    whole = lora_model()
    train(whole, batch, 4, every=2, verbose=False)
    train(lora_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    model = lora_model()
    train(model, batch, 4, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert {str(v.dtype) for v in model.optimizer.variables} >= {"bfloat16"}
    for got, wanted in zip(weights_of(model), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    train(new_model(), batch, 1, every=1, folder=RunFolder(tmp_path, {}), verbose=False)
    other = keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    other.compile("sgd", "mse")
    with pytest.raises(ValueError, match="of another model"):
        RunFolder(tmp_path, {}).restore(other)
