"""The training loop: what it logs and saves, and that a run which was cut off ends like one which was not."""

import math

import keras
import numpy as np
import pytest

from keras_vit.data import Batches
from keras_vit.training import MomentumSGD, Recipe
from keras_vit.training.distribution import FilledBatches
from keras_vit.training.loop import Loop, RunFolder, _mark_kept, _out_of_patience
from keras_vit.training.recipes import MEASURES
from keras_vit.training.run import jit_compile


def train(model, batch, steps, callbacks=(), accumulate=1, keep="last", patience=None, **options):
    recipe = Recipe(steps=steps, accumulate=accumulate, keep=keep, patience=patience)
    return Loop(recipe=recipe, **options).train(model, batch, callbacks)


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


def lora_model():
    model = new_model()
    model.layers[-1].enable_lora(2)
    model.compile(MomentumSGD(0.1, momentum_dtype="bfloat16"), model.loss, metrics=["accuracy"])
    return model


def half_model():
    """In float16 Keras wraps the optimizer in one that scales the loss, and that says it keeps no averages."""
    model = new_model(use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(model.optimizer), model.loss, metrics=["accuracy"])
    return model


def batch(number):
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 3, 8)
    images = rng.normal(size=(8, 2, 2, 3)) + labels[:, None, None, None]
    return images.astype("float32"), np.eye(3, dtype="float32")[labels]


VALIDATION = FilledBatches(lambda number: batch(1000 + number), 2, 8)


class Stop(keras.callbacks.Callback):
    """Calls a function of the model after some batches."""

    def __init__(self, batches, stop):
        super().__init__()
        self.batches, self.stop = batches, stop

    def on_train_batch_end(self, batch, logs=None):
        self.batches -= 1
        if self.batches == 0:
            self.stop(self.model)


def cut_off(run, batches, **options):
    def fail(model):
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        run(callbacks=[Stop(batches, fail)], **options)


def train_until(step, model, steps, make=batch, **options):
    """A run that ends with an error before an update; on TensorFlow, the error comes wrapped in one of its own."""

    def cut(number):
        assert number != step, "cut off"
        return make(number)

    with pytest.raises(Exception, match="cut off"):
        train(model, cut, steps, verbose=False, **options)


def weights_of(model):
    return [np.copy(keras.ops.convert_to_numpy(weight.value)) for weight in model.weights]


def assert_same_weights(model, other):
    np.testing.assert_equal(weights_of(model), weights_of(other))


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize(
    "make",
    [new_model, lambda: new_model(use_ema=True), lora_model, half_model],
    ids=["plain", "polyak", "lora", "half"],
)
def test_a_run_that_was_cut_off_ends_like_one_in_one_stretch(tmp_path, make):
    """With the same masks of dropout, averages and bfloat16 momentum, and whatever was evaluated in between."""
    whole = make()
    train(whole, batch, 7, every=7, verbose=False)
    train_until(4, make(), 7, every=3, folder=RunFolder(tmp_path, {}))
    model = make()
    log = train(model, batch, 7, every=3, folder=RunFolder(tmp_path, {}), validation=VALIDATION, verbose=False)
    assert [row["step"] for row in log] == [3, 6, 7]
    assert_same_weights(model, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "run.json", "step-00000007.npz"]
    # The averages stayed in the model, and the last evaluation was of them.
    assert log[-1]["val_loss"] == pytest.approx(model.evaluate(VALIDATION, verbose=0)[0], rel=1e-6)
    assert ("bfloat16" in {str(v.dtype) for v in model.optimizer.variables}) == (make is lora_model)


@pytest.mark.nightly_elsewhere
def test_polyak_averages_are_those_of_all_updates():
    model, plain, average = new_model(use_ema=True), new_model(), None
    train(model, batch, 5, every=2, verbose=False)
    for step in range(5):  # by hand: Keras starts from the weights after the first step
        plain.fit(Batches(batch, [step]), verbose=0, shuffle=False)
        now = weights_of(plain)
        average = now if average is None else [(a + w) / 2 for a, w in zip(average, now, strict=True)]
    for got, wanted in zip(weights_of(model), average, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)  # float32 sums of weights of size 1, in another order


@pytest.mark.once
def test_accumulated_batches_are_one_step():
    model = new_model()
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), model.loss, metrics=["accuracy"])
    seen = []

    def watched(number):
        seen.append(number)
        return batch(number)

    log = train(model, watched, 3, every=2, accumulate=2, verbose=False)
    assert [row["step"] for row in log] == [2, 3]
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5]


# Nothing is ever better by 1e9 than the first. At the end it gives back the best weights: those are the run's.
EARLY = {"patience": 1, "min_delta": 1e9, "restore_best_weights": True}


@pytest.mark.parametrize(
    "callback, steps",
    [
        (lambda: Stop(6, lambda model: setattr(model, "stop_training", True)), [4, 6]),  # in the middle of a stretch
        (lambda: keras.callbacks.EarlyStopping("val_loss", **EARLY), [4, 8]),
    ],
    ids=["in the middle", "early"],
)
@pytest.mark.once
def test_a_run_that_a_callback_stops_is_finished(tmp_path, callback, steps):
    """Called again, it gives the model that it gave, as a run does that made all its updates."""
    first, again = new_model(use_ema=True), new_model(use_ema=True)
    options = {"every": 4, "validation": VALIDATION, "verbose": False}
    log = train(first, batch, 99, folder=RunFolder(tmp_path, {}), callbacks=[callback()], **options)
    assert [row["step"] for row in log] == steps
    assert int(keras.ops.convert_to_numpy(first.optimizer.iterations)) == steps[-1]
    assert [path.name for path in tmp_path.glob("step-*")] == [f"step-0000000{steps[-1]}.npz"]
    assert list(train(again, batch, 99, folder=RunFolder(tmp_path, {}), **options)) == list(log)
    assert_same_weights(again, first)


def astray(number):
    """Right labels first and wrong ones later: a model that gets worse from the fifth update on."""
    images, labels = batch(number)
    return images, np.roll(labels, number >= 4, axis=1)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("make", [lambda: new_model(use_ema=True), half_model], ids=["ema", "half"])
def test_the_best_weights_are_kept(tmp_path, make):
    """Also where the run is cut off after them, or stops for want of patience, bit for bit."""
    options = {"every": 2, "validation": VALIDATION, "keep": "best"}
    whole, model, last = make(), make(), make()
    log = train(whole, astray, 12, verbose=False, **options)
    best = max(log, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert 2 <= best["step"] <= 8 and [row["kept"] for row in log] == [row is best for row in log]
    found = whole.evaluate(VALIDATION, return_dict=True, verbose=0)
    assert (found["loss"], found["accuracy"]) == pytest.approx((best["val_loss"], best["val_accuracy"]), rel=1e-6)
    train(last, astray, 12, verbose=False, **options | {"keep": "last"})
    assert any(np.any(a != b) for a, b in zip(weights_of(last), weights_of(whole), strict=True))
    train_until(11, make(), 12, astray, folder=RunFolder(tmp_path, {}), **options)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{s:08}.npz" for s in (best["step"], 10)]
    for again in (model, make()):  # the rest of the run, and once more when it is over
        resumed = train(again, astray, 12, folder=RunFolder(tmp_path, {}), verbose=False, **options)
        assert [row | {"seconds": 0} for row in resumed] == [row | {"seconds": 0} for row in log]
        assert_same_weights(again, whole)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000012.npz"]
    kept = [line.endswith("True") for line in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    assert kept == [row["kept"] for row in log]


@pytest.mark.once
def test_patience(tmp_path):
    """A run that was killed before it could say that it is over makes no more updates."""
    options = {"every": 2, "validation": VALIDATION, "verbose": False, "patience": 2}
    log = train(new_model(), astray, 99, **options)
    best = max(log, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert log[-1]["step"] == best["step"] + 4 < 99 and "kept" not in log[-1]
    killed = keras.callbacks.LambdaCallback(on_train_end=lambda logs: {}["killed"])
    with pytest.raises(KeyError, match="killed"):
        train(new_model(), astray, 99, folder=RunFolder(tmp_path, {}), callbacks=[killed], **options)
    again = train(new_model(), astray, 99, folder=RunFolder(tmp_path, {}), **options)
    assert [row["loss"] for row in again] == [row["loss"] for row in log]


@pytest.mark.once
@pytest.mark.parametrize(
    ("qualities", "losses", "kept", "over"),
    [
        ((0.0, 0.0, 0.0, 0.0), (4, 3, 2, 1), 3, False),  # nothing is found yet, but it learns
        ((0.0, 0.0, 0.0, 0.0), (1, 2, 3, 4), 0, True),
        ((0.0, 0.3, 0.3, 0.3), (4, 3, 2, 1), 1, True),  # the first of equals
        ((0.0, 0.1, 0.0, 0.2), (4, 3, 1, 2), 3, False),
        ((math.nan, 0.0, 0.2, math.nan), (4, 3, 2, 1), 2, False),  # pictures without segments have none
    ],
)
def test_the_best_of_qualities_that_begin_at_0(qualities, losses, kept, over):
    log = [{"val_panoptic_quality": q, "loss": loss} for q, loss in zip(qualities, losses, strict=True)]
    _mark_kept(log, MEASURES)
    assert [row["kept"] for row in log] == [number == kept for number in range(4)]
    assert _out_of_patience(log, 2, MEASURES) is over


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def broken(number):
        images, labels = batch(number)
        return (images * np.nan if number >= 2 else images), labels

    with pytest.raises(FloatingPointError, match="between steps 2 and 4.*still holds step 2"):
        train(new_model(), broken, 6, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000002.npz"]


def test_stretches_share_one_graph(backend):
    if backend == "torch":
        pytest.skip("nothing is compiled on torch")
    calls, by_epoch = [], []

    def loss(y_true, y_pred):  # Python runs it once for each time that the step is traced
        calls.append(1)
        return keras.losses.categorical_crossentropy(y_true, y_pred, from_logits=True)

    model = new_model(use_ema=True)
    model.compile(model.optimizer, loss, metrics=[keras.metrics.CategoricalAccuracy()])
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: by_epoch.append(len(calls)))
    train(model, batch, 7, every=2, validation=VALIDATION, callbacks=[count], verbose=False)
    assert by_epoch[0] > 0 and by_epoch == by_epoch[:1] * 4  # the last stretch is shorter than the others
    if backend == "tensorflow":
        assert by_epoch[0] == 2  # one trace for training, one for evaluation


def test_xla_trains_on_cpus_of_tensorflow(backend, monkeypatch):
    """Keras leaves XLA out there; long runs take it, unless the variable says otherwise."""
    model = new_model()
    assert jit_compile(model, 50) == (True if backend == "tensorflow" else "auto")
    assert jit_compile(model, 49) == "auto"
    with monkeypatch.context() as patch:
        patch.setenv("KERAS_VIT_XLA", "0")
        assert jit_compile(model, 50) == "auto"
    model.layers[-1].supports_jit = False
    assert jit_compile(model, 50) == "auto"
