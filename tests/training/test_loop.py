"""The training loop: what it logs and saves, and that a run which was cut off ends like one which was not."""

import keras
import numpy as np
import pytest

from keras_vit.data import Batches
from keras_vit.training import MomentumSGD
from keras_vit.training.loop import RunFolder, train
from keras_vit.training.run import jit_compile
from keras_vit.training.sharing import FilledBatches


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


VALIDATION = FilledBatches(lambda number: batch(1000 + number), 2, 8)


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "run.json", "step-00000007.npz"]


def test_dropout_goes_on_where_it_was(tmp_path):
    """Keras's weight files hold no state of random generators: without it, the masks of the first steps come again."""
    train(new_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    model = new_model()
    states = [weight for weight in model.variables if "seed_generator" in weight.path]
    before = [np.copy(keras.ops.convert_to_numpy(state.value)) for state in states]
    model.optimizer.build(model.trainable_variables)
    assert RunFolder(tmp_path, {}).restore(model)[:2] == (2, True)
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


@pytest.mark.once
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


@pytest.mark.once
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
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000002.npz"]


def test_adapters_and_short_momentum_go_on_exactly(tmp_path):
    def lora_model():
        model = new_model()
        model.layers[-1].enable_lora(2)
        optimizer = MomentumSGD(0.1, momentum_dtype="bfloat16")
        model.compile(optimizer, model.loss, metrics=["accuracy"])
        return model

    whole = lora_model()
    train(whole, batch, 4, every=2, verbose=False)
    with pytest.raises(Exception) as caught:
        train(lora_model(), cut_at(2), 4, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert "Cut" in repr(caught.value) or "Cut" in str(caught.value)
    model = lora_model()
    train(model, batch, 4, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert {str(v.dtype) for v in model.optimizer.variables} >= {"bfloat16"}
    for got, wanted in zip(weights_of(model), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)


class StopInTheMiddle(keras.callbacks.Callback):
    """Stops a run after some batches, wherever that is."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if self.batches == 0:
            self.model.stop_training = True


@pytest.mark.once
def test_a_run_that_is_stopped_in_the_middle_of_a_stretch_counts_the_updates_that_were_made(tmp_path):
    model = new_model()
    log = train(model, batch, 9, every=4, folder=RunFolder(tmp_path, {}), callbacks=[StopInTheMiddle(6)], verbose=False)
    assert [row["step"] for row in log] == [4, 6]
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 6
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000006.npz"]


@pytest.mark.parametrize("use_ema", [False, True], ids=["plain", "polyak"])
@pytest.mark.once
def test_a_run_that_was_stopped_is_finished(tmp_path, use_ema):
    """Called again, it gives the model that it gave, as a run does that made all its updates."""
    first = new_model(use_ema)
    log = train(first, batch, 9, every=4, folder=RunFolder(tmp_path, {}), callbacks=[StopInTheMiddle(6)], verbose=False)
    again = new_model(use_ema)
    assert list(train(again, batch, 9, every=4, folder=RunFolder(tmp_path, {}), verbose=False)) == list(log)
    for got, wanted in zip(weights_of(again), weights_of(first), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.once
def test_weights_that_a_callback_restores_at_the_end_are_those_of_the_run(tmp_path):
    """EarlyStopping gives back the best weights when training ends: the folder must not keep the last ones."""
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9, restore_best_weights=True)
    arguments = {"every": 2, "validation": VALIDATION, "verbose": False}
    first = new_model()
    train(first, batch, 10, folder=RunFolder(tmp_path, {}), callbacks=[stop], **arguments)
    again = new_model()
    train(again, batch, 10, folder=RunFolder(tmp_path, {}), **arguments)
    for got, wanted in zip(weights_of(again), weights_of(first), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.once
def test_a_loss_that_is_not_finite_at_once_claims_no_checkpoint(tmp_path):
    def astray(number):
        images, labels = batch(number)
        return images * np.nan, labels

    with pytest.raises(FloatingPointError, match="between steps 0 and 2") as caught:
        train(new_model(), astray, 6, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert "holds" not in str(caught.value)


def test_a_validation_set_may_be_added_to_a_run(tmp_path):
    with pytest.raises(Exception) as caught:
        train(new_model(), cut_at(2), 4, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert "Cut" in repr(caught.value) or "Cut" in str(caught.value)
    log = train(new_model(), batch, 4, every=2, folder=RunFolder(tmp_path, {}), validation=VALIDATION, verbose=False)
    assert [row.get("val_loss") is not None for row in log] == [False, True]
    assert RunFolder(tmp_path, {}).restore(new_model())[2] == log
    again = train(new_model(), batch, 4, every=2, folder=RunFolder(tmp_path, {}), validation=VALIDATION, verbose=False)
    assert again[-1] == log[-1]


def test_a_finished_run_is_evaluated_on_a_validation_set_that_is_added(tmp_path):
    model = new_model()
    train(model, batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    again = train(new_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), validation=VALIDATION, verbose=False)
    wanted = model.evaluate(VALIDATION, verbose=0, return_dict=True)
    assert again[-1]["val_loss"] == pytest.approx(wanted["loss"], rel=1e-6)  # two compilations of the same sums
    assert RunFolder(tmp_path, {}).restore(new_model())[2] == again


def test_float16_with_averaged_weights_ends_like_a_run_in_one_stretch(tmp_path):
    """Keras wraps the optimizer in one that scales the loss, and that says it keeps no averages."""

    def half_model():
        model = new_model(use_ema=True)
        optimizer = keras.optimizers.LossScaleOptimizer(model.optimizer)
        model.compile(optimizer, model.loss, metrics=["accuracy"])
        return model

    whole = half_model()
    train(whole, batch, 6, every=6, verbose=False)
    parts = half_model()
    log = train(parts, batch, 6, every=2, validation=VALIDATION, verbose=False)
    for got, wanted in zip(weights_of(parts), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert log[-1]["val_loss"] == pytest.approx(parts.evaluate(VALIDATION, verbose=0)[0], rel=1e-6)
    train(half_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)


class CountedLoss(keras.losses.CategoricalCrossentropy):
    """Counts how often Python runs it: where the step is compiled, once for each time that it is traced."""

    calls = 0

    def call(self, y_true, y_pred):
        CountedLoss.calls += 1
        return super().call(y_true, y_pred)


class CallsByEpoch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(CountedLoss.calls)


@pytest.mark.parametrize("use_ema", [False, True], ids=["plain", "polyak"])
def test_stretches_share_one_graph(backend, use_ema, monkeypatch):
    if backend == "torch":
        pytest.skip("nothing is compiled on torch")
    monkeypatch.setattr(CountedLoss, "calls", 0)
    model = new_model(use_ema)
    model.compile(model.optimizer, CountedLoss(from_logits=True), metrics=[keras.metrics.CategoricalAccuracy()])
    calls = CallsByEpoch()
    train(model, batch, 7, every=2, validation=VALIDATION, callbacks=[calls], verbose=False)
    assert len(calls.calls) == 4 and calls.calls[0] > 0
    if backend == "tensorflow":
        assert calls.calls[0] == 2  # one trace for training, one for evaluation
    assert calls.calls == calls.calls[:1] * 4  # the last stretch is shorter than the others


def test_xla_trains_on_cpus_of_tensorflow(backend):
    """Keras leaves XLA out there, where it takes less than half of the time; in bfloat16 it would take more."""
    model = new_model()
    assert jit_compile(model, 50) == (True if backend == "tensorflow" else "auto")
    assert jit_compile(model, 49) == "auto"
    model.layers[-1].supports_jit = False
    assert jit_compile(model, 50) == "auto"
    assert jit_compile(keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, dtype="bfloat16")]), 50) == "auto"


def test_xla_changes_rounding_only(backend):
    """But for the masks of dropout, which XLA draws from the same seeds in another way."""
    if backend != "tensorflow":
        pytest.skip("on the other backends Keras decides")
    weights = []
    for xla in (False, True):
        model = new_model()
        model.layers[1].rate = 0
        model.compile(model.optimizer, model.loss, jit_compile=xla)
        train(model, batch, 7, every=3, verbose=False)
        weights.append(weights_of(model))
    for got, wanted in zip(*weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)  # seven updates of weights of about 1
