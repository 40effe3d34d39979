"""Feature distillation: the loss by another reading, what a student learns, what is refused, and that a run goes on."""

import keras
import numpy as np
import pytest

from keras_vit import BiT, data, training
from keras_vit.models import feature_extractor
from keras_vit.training.feature_distillation import PLAIN, Distances, agreement
from tests.pictures import save
from tests.small_models import small_bit_config, small_vit
from tests.training.test_lejepa import figures
from tests.training.test_loop import assert_same_weights, cut_off
from tests.training.test_mask_classification import FLOAT32, gradients_of

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (8, 16, 16, 3)).astype("uint8")
LAYERS = [layer.name for layer in small_vit().layers if layer.weights and layer.name != "head"]
SMALL = {"steps": 2, "batch_size": 8, "every": 1, "verbose": False}


def teacher(scale=1.0, **changes):
    model = small_vit(**{"image_size": 16, "width": 12} | changes)
    model.set_weights([scale * weight for weight in model.get_weights()])
    return model


def distil(student=None, pictures=PICTURES, **options):
    keras.utils.set_random_seed(0)
    student = small_vit(image_size=16, patch_size=8) if student is None else student
    settings = {name: options.pop(name) for name in [*options] if name in training.FeatureDistillation.__annotations__}
    task = training.FeatureDistillation(**{"teacher": teacher(), "views": PLAIN} | settings)
    return training.pretrain(student, pictures, objective=task, **SMALL | options)


def reading(x, y):
    """The means of the cosine and the smooth L1 distance, and their gradients in x, in float64."""
    x, y = x.astype("float64"), y.astype("float64")
    lengths = [np.linalg.norm(one, axis=-1, keepdims=True) for one in (x, y)]
    cosines = np.sum(x * y, -1, keepdims=True) / lengths[0] / lengths[1]
    smooth = np.where(np.abs(x - y) < 1, (x - y) ** 2 / 2, np.abs(x - y) - 0.5)
    slopes = (y / lengths[1] - cosines * x / lengths[0]) / lengths[0] / cosines.size, np.clip(x - y, -1, 1) / x.size
    return (cosines.mean(), smooth.mean()), slopes


@pytest.mark.each
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 4, 6)])
def test_distances_and_gradients_are_those_of_another_reading(shape):
    x, y = np.random.default_rng(1).normal(0, 2, (2, *shape)).astype("float32")
    (cosine, smooth), slopes = reading(x, y)
    for weights, wanted, slope in ([1, 0], 1 - cosine, -slopes[0]), ([0, 1], smooth, slopes[1]):
        layer = Distances([weights])
        value, (found, _) = gradients_of(lambda x, y: keras.ops.mean(layer([x, y])[:, 0]), x, y)  # noqa: B023
        assert value == pytest.approx(wanted, abs=FLOAT32)
        np.testing.assert_allclose(found, slope, rtol=0, atol=FLOAT32 * np.ptp(slope))


OWN = {"pooled": 0.7, "patches": 0.4, "cosine": 0.9, "smooth_l1": 0.2}
# Half of timm's `F.mse_loss(projection(student), teacher)` where differences are below 1
TIMM = {"patches": 0.0, "cosine": 0.0, "standardize": False}


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("settings", [OWN, pytest.param(TIMM, marks=pytest.mark.once)])
def test_the_loss_of_a_run_is_that_of_its_features(settings, tmp_path):
    student, wise = small_vit(image_size=16, patch_size=8), teacher(pixel_mean=0.3, pixel_std=(0.2, 0.3, 0.4))
    options = {"learning_rate": 0.0, "drop_path": 0.0, "output": tmp_path / "run"}
    done, how = distil(student, teacher=wise, **settings, **options), training.FeatureDistillation(wise, **settings)
    found, wanted = (
        feature_extractor(model, ["pooled", "encoded"], "map").predict(model.preprocess(PICTURES), verbose=0)
        for model in (student, wise)
    )
    arrays, loss, row = np.load(tmp_path / "run" / "adaptors.npz"), 0.0, done.log[-1]
    for feature, name in (("pooled", "pooled"), ("encoded", "patches"))[: len(how.learned)]:
        x, y = found[feature] @ arrays[f"{name}_adaptor/kernel"] + arrays[f"{name}_adaptor/bias"], wanted[feature]
        if how.standardize:
            mean, variance = (arrays[f"{name}_statistics/moving_{which}"] for which in ("mean", "variance"))
            np.testing.assert_allclose(mean, y.mean(tuple(range(y.ndim - 1))), atol=1e-5)
            np.testing.assert_allclose(variance, y.var(tuple(range(y.ndim - 1))), rtol=0.01)  # running, n - 1 for n
            y = (y - mean) / np.sqrt(variance + 1e-5)
        if name == "patches":  # 4 x 4 of the teacher, 2 x 2 of the student
            y = y.reshape(8, 2, 2, 2, 2, 12).mean((2, 4))
        cosine, smooth = reading(x, y)[0]
        assert row[f"{name}_cosine"] == pytest.approx(cosine, abs=2e-5)
        loss += getattr(how, name) * (how.cosine * (1 - cosine) + how.smooth_l1 * smooth)
    assert row["loss"] == pytest.approx(loss, abs=2e-5)
    assert_same_weights(done.model, student)
    assert {layer.name for layer in done.model.layers} == {layer.name for layer in student.layers}


def test_a_student_with_the_teacher_s_weights_has_no_loss():
    wise, identity = teacher(), keras.callbacks.LambdaCallback()
    adaptors, parts = ("pooled_adaptor", "patches_adaptor"), [np.eye(12), np.zeros(12)]
    identity.on_train_begin = lambda logs: [identity.model.get_layer(name).set_weights(parts) for name in adaptors]
    done = distil(wise, teacher=wise, standardize=False, learning_rate=0.0, drop_path=0.0, callbacks=[identity])
    assert done.log[0]["loss"] == pytest.approx(0, abs=1e-6)  # the rounding of cosines in float32


def test_a_linear_map_of_the_student_s_features_is_learned():
    student, wise = small_vit(image_size=16), small_vit(image_size=16)
    wise.get_layer("encoder_norm").set_weights([np.linspace(0.5, 2, 8), np.linspace(-1, 1, 8)])
    fixed = {"freeze": [name for name in LAYERS if name != "embedding"], "layer_decay": 1e-4}  # adaptors alone
    rates = {"learning_rate": 0.5, "beta_2": 0.95, "weight_decay": 0.0, "drop_path": 0.0, "steps": 200, "every": 50}
    last = distil(student, PICTURES[:4], teacher=wise, standardize=False, **fixed, **rates, batch_size=4).log[-1]
    assert last["loss"] < 1e-3  # the mean over the last 50 updates


def test_before_and_after_are_measured_on_held_out_pictures():
    labelled = (PICTURES[:, ::-1], np.arange(8) % 2)
    options = {"learning_rate": 0.01, "steps": 4, "every": 2, "teacher": teacher(dynamic=True)}
    done = distil(small_vit(image_size=16), validation=labelled, **options)
    names = "loss pooled_cosine patches_cosine cka knn accuracy accuracy_teacher cka_before knn_before accuracy_before"
    assert {f"val_{name}" for name in names.split()} <= done.log[0].keys()
    assert done.log[1]["val_cka"] != done.log[1]["val_cka_before"] == done.log[0]["val_cka_before"]
    unlabelled = distil(validation=PICTURES[:, ::-1], **options).log[0]
    assert "val_accuracy" not in unlabelled and "val_knn" in unlabelled
    x, turn = RNG.normal(size=(40, 6)), np.linalg.qr(RNG.normal(size=(6, 6)))[0]
    same, other = agreement(x, 3 * x @ turn), agreement(x, RNG.normal(size=(40, 6)))
    assert same == pytest.approx({"cka": 1.0, "knn": 1.0}) and other["cka"] < 0.3 and other["knn"] < 0.8


@pytest.mark.nightly_elsewhere
def test_a_run_that_was_stopped_goes_on_bit_by_bit(tmp_path):
    wise = BiT(small_bit_config()) if keras.backend.backend() == "torch" else teacher()

    def run(**options):
        common = {"teacher": wise, "views": data.Augmentation(), "lora_rank": 2, "drop_path": 0.2, "steps": 3}
        return distil(**common, learning_rate=0.01, batch_size=4, **options)

    whole = run(output=tmp_path / "whole")
    cut_off(run, 2, output=tmp_path / "stopped")
    resumed = run(output=tmp_path / "stopped")
    assert_same_weights(whole.model, resumed.model)
    assert figures(whole)[-1] == figures(resumed)[-1]


def test_features_of_files_are_computed_once(tmp_path):
    for number, picture in enumerate(PICTURES):
        save(tmp_path / "photos" / f"{9 - number}.png", picture)
    options = {"pictures": tmp_path / "photos", "steps": 2, "learning_rate": 0.01, "batch_size": 4}
    plain, kept = distil(**options), distil(**options, cache=tmp_path / "cache")
    for row, same in zip(figures(plain), figures(kept), strict=True):
        assert row == pytest.approx(same, rel=1e-4, abs=5e-6)  # a cosine near 0 sums terms of up to 1
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert figures(distil(**options, cache=tmp_path / "cache")) == figures(kept)
    assert len(files) == 2 and all(path.stat().st_mtime_ns == time for path, time in files.items())
    save(tmp_path / "photos" / "9.png", PICTURES[0][::-1].copy()[:8])
    with pytest.raises(ValueError, match="features of other settings: different images"):
        distil(**options, cache=tmp_path / "cache")


WRONG = {
    "takes 1 channels, but the teacher 3": lambda: distil(small_vit(image_size=16, channels=1), PICTURES[..., 0]),
    "but its head is frozen": lambda: distil(freeze=LAYERS),
    "are not finite": lambda: distil(teacher=teacher(np.nan)),
    "has none": lambda: distil(pictures="empty"),
    "one VisionTransformer, BiT or what load takes, but tuple": lambda: distil(teacher=[teacher(), teacher()]),
    "must be above 0, so that something": lambda: distil(pooled=0.0, patches=0.0),
    "cache is for views=": lambda: distil(views=data.Augmentation(), cache="cache"),
    "cache is for files": lambda: distil(cache="cache"),
    "views of one size": lambda: distil(small_vit(dynamic=True)),
    "beside a teacher, must be": lambda: training.pretrain("glyphs", PICTURES, teacher=teacher(), objective="lejepa"),
    "but NoneType": lambda: training.pretrain("glyphs", PICTURES, "pretrain/feature_distillation"),
    "classes=3 is about labels": lambda: distil(classes=3),
}


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for message, call in WRONG.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()
