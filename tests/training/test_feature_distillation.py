"""Feature distillation: the loss by another reading, what a student learns, what is refused, and that a run goes on."""

import keras
import numpy as np
import pytest

from keras_vit import data, training
from keras_vit.models import feature_extractor
from keras_vit.training.feature_distillation import Standardize, similarities
from tests.small_models import small_vit
from tests.training.test_loop import assert_same_weights
from tests.training.test_mask_classification import FLOAT32, gradients_of

pytestmark = [pytest.mark.once]

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (8, 16, 16, 3)).astype("uint8")
PLAIN = data.Augmentation(crop="resize", flip=False)
SMALL = {"steps": 2, "batch_size": 8, "every": 1, "verbose": False}


def teacher(**changes):
    return small_vit(**{"image_size": 16, "width": 12} | changes)


def distil(student=None, pictures=PICTURES, **options):
    keras.utils.set_random_seed(0)
    student = small_vit(image_size=16, patch_size=8) if student is None else student
    settings = {name: options.pop(name) for name in [*options] if name in training.FeatureDistillation.__annotations__}
    task = training.FeatureDistillation(**{"teacher": teacher(), "views": PLAIN} | settings)
    return training.pretrain(student, pictures, objective=task, **SMALL | options)


def figures(done):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in done.log]


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
    values, slopes = reading(x, y)
    for number in range(2):
        value, (slope, _) = gradients_of(lambda x, y: keras.ops.mean(similarities(x, y)[number]), x, y)  # noqa: B023
        assert value == pytest.approx(values[number], abs=FLOAT32)
        np.testing.assert_allclose(slope, slopes[number], rtol=0, atol=FLOAT32 * np.ptp(slopes[number]))


@pytest.mark.each
def test_the_loss_of_a_run_is_that_of_its_features(tmp_path):
    student, wise = small_vit(image_size=16, patch_size=8), teacher(pixel_mean=0.3, pixel_std=(0.2, 0.3, 0.4))
    weights = {"pooled": 0.7, "patches": 0.4, "cosine": 0.9, "smooth_l1": 0.2}
    done = distil(student, teacher=wise, **weights, learning_rate=0.0, drop_path=0.0, output=tmp_path / "run")
    found, wanted = (
        feature_extractor(model, ["pooled", "encoded"], "map").predict(model.preprocess(PICTURES), verbose=0)
        for model in (student, wise)
    )
    # 4 x 4 patches of the teacher, 2 x 2 of the student
    wanted["encoded"] = wanted["encoded"].reshape(8, 2, 2, 2, 2, 12).mean((2, 4))
    arrays, loss, cosines = np.load(tmp_path / "run" / "adaptors.npz"), 0.0, []
    for feature, name in (("pooled", "pooled"), ("encoded", "patches")):
        axes = tuple(range(wanted[feature].ndim - 1))
        mean, variance = wanted[feature].mean(axes), wanted[feature].var(axes)
        np.testing.assert_allclose(arrays[f"{name}_statistics/moving_mean"], mean, atol=1e-5)
        np.testing.assert_allclose(arrays[f"{name}_statistics/moving_variance"], variance, rtol=1e-4)
        x = found[feature] @ arrays[f"{name}_adaptor/kernel"] + arrays[f"{name}_adaptor/bias"]
        cosine, smooth = reading(x, (wanted[feature] - mean) / np.sqrt(variance + 1e-5))[0]
        cosines.append(cosine)
        loss += weights[name] * (0.9 * (1 - cosine) + 0.2 * smooth)
    for row in done.log:  # the statistics of the same pictures stay
        assert [row["loss"], row["cosine"], row["patches_cosine"]] == pytest.approx([loss, *cosines], abs=2e-5)
    assert_same_weights(done.model, student)
    assert {layer.name for layer in done.model.layers} == {layer.name for layer in student.layers}


def test_the_pooled_part_is_timm_s_without_standardisation_and_cosine(tmp_path):
    """`F.mse_loss(projection(student), teacher)`, of which smooth L1 is a half where differences are below 1."""
    student, wise = small_vit(image_size=16), teacher()
    options = {"patches": 0.0, "cosine": 0.0, "standardize": False, "learning_rate": 0.0, "output": tmp_path / "run"}
    done = distil(student, teacher=wise, **options)
    pooled = (feature_extractor(m, ["pooled"]).predict(m.preprocess(PICTURES), verbose=0) for m in (student, wise))
    x, y = (made["pooled"] for made in pooled)
    arrays = np.load(tmp_path / "run" / "adaptors.npz")
    assert sorted(arrays) == ["pooled_adaptor/bias", "pooled_adaptor/kernel"]
    difference = x @ arrays["pooled_adaptor/kernel"] - y
    small = np.abs(difference) < 1
    expected = np.where(small, difference**2, 2 * np.abs(difference) - 1).mean()
    assert small.any() and 2 * done.log[-1]["loss"] == pytest.approx(expected, rel=1e-5)


def test_statistics_are_those_of_all_updates():
    layer = Standardize(center=False, scale=False)
    parts = [RNG.normal(5, 3, (8, 4)).astype("float32") for _ in range(3)]
    for part in parts:
        layer(part, training=True)
    np.testing.assert_allclose(layer.moving_mean, np.concatenate(parts).mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, np.concatenate(parts).var(0), rtol=1e-5)
