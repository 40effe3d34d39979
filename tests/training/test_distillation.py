"""Distillation: the losses of DeiT by another reading, and what the student learns from the teacher."""

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.training import DistillationLoss, SigmoidLoss
from tests.training.test_finetuning import IMAGES, RECIPE, finetune, new_model
from tests.training.test_loop import assert_same_weights, weights_of

# They are compared by hand.
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:validation holds the training images")]

RNG = np.random.default_rng(0)
LABELS = np.eye(3, dtype="float32")[[0, 2, 1, 2]] * 0.8 + 0.2 / 3
LOGITS, STUDENT, TEACHER = RNG.normal(0, 3, (3, 4, 3)).astype("float32")
DISTILLED = {"distillation_token": True, "distillation_head": True}


def log_softmax(x):
    x = x.astype("float64")
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def deit(kind, alpha, t):
    """DeiT's losses.py: `kl_div(..., reduction="sum", log_target=True) * T * T / numel`, or the teacher's argmax."""
    base = -np.sum(LABELS * log_softmax(LOGITS), -1).mean()
    if kind == "soft":
        wanted, found = log_softmax(TEACHER / t), log_softmax(STUDENT / t)
        distance = np.sum(np.exp(wanted) * (wanted - found)) * t * t / STUDENT.size
    elif kind == "hard":
        distance = -np.mean(log_softmax(STUDENT)[np.arange(4), TEACHER.argmax(1)])
    else:
        norms = np.linalg.norm(STUDENT, axis=1) * np.linalg.norm(TEACHER, axis=1)
        distance = np.mean(1 - np.sum(STUDENT * TEACHER, 1) / norms)
    return base * (1 - alpha) + distance * alpha


@pytest.mark.each
@pytest.mark.parametrize("kind", ["soft", "hard", "features"])
def test_the_loss_is_deit_s(kind):
    for alpha, temperature in ((0.5, 1.0), (0.1, 3.0 if kind == "soft" else 1.0)):
        loss = DistillationLoss(kind, alpha, temperature)
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        for one in (loss, again):
            found = float(one(LABELS, np.concatenate([LOGITS, STUDENT, TEACHER], -1)))
            assert found == pytest.approx(deit(kind, alpha, temperature), rel=2e-6)  # float32


def distil(student, teacher, kind="hard", steps=3, recipe=RECIPE, **options):
    task = training.distillation(teacher, kind, **options)
    return training.finetune(student, IMAGES, recipe, steps=steps, task=task, validation=IMAGES, verbose=False)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", ["soft", "hard", "features"])
def test_a_student_learns_from_a_teacher_that_stays(kind):
    teacher = new_model(dropout=0, width=12, classifier_activation="softmax", pixel_mean=0.2, pixel_std=(0.3, 0.4, 1))
    teacher.get_layer("head").kernel.assign(np.random.default_rng(1).normal(size=(12, 3)))
    teacher.compile(loss="mse")
    before, student = weights_of(teacher), new_model(**DISTILLED, pooling="token", dropout=0.0)
    start = {weight.path: value for weight, value in zip(student.weights, weights_of(student), strict=True)}
    done = distil(student, teacher, kind, recipe=RECIPE.replace(dropout=0.0, warmup_steps=0))
    assert done.accuracy is not None
    student = done.model
    np.testing.assert_equal(weights_of(teacher), before)
    now = {weight.path: value for weight, value in zip(student.weights, weights_of(student), strict=True)}
    for path in ("head/kernel", "head_dist/kernel", "block_0/mlp/fc1/kernel"):
        assert np.any(now[path] != start[path])
    # The last validation, by hand: what each of the two sees are the same pixels, normalised for it.
    heads = keras.Model(student.input, [student.get_layer(name).output for name in ("head", "head_dist")])
    logits, second = heads.predict(student.preprocess(IMAGES[0]), verbose=0)
    assert done.accuracy == np.mean((logits + second).argmax(1) == IMAGES[1])
    if kind != "features":
        said = np.log(teacher.predict(teacher.preprocess(IMAGES[0]), verbose=0))
        loss = DistillationLoss(kind)(np.eye(3, dtype="float32")[IMAGES[1]], np.concatenate([logits, second, said], 1))
        assert done.log[-1]["val_loss"] == pytest.approx(float(loss), rel=1e-4)  # logits of a float32 softmax


def test_any_keras_model_teaches_a_model_with_one_head():
    teacher = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)], name="any")
    done = distil(new_model(), teacher, "soft", recipe=RECIPE.replace(loss="sigmoid"), temperature=2.0)
    student = new_model()
    again = distil(student, teacher, "soft", recipe=RECIPE.replace(loss="sigmoid"), temperature=2.0)
    assert_same_weights(again.model, done.model)
    assert not teacher.trainable and student.trainable


WRONG = {
    "kind must be one of": lambda: DistillationLoss("l2"),
    "alpha must be": lambda: training.distillation(new_model(), alpha=1.0),
    "temperature must be": lambda: DistillationLoss(temperature=0.0, base=SigmoidLoss()),
    'temperature=2.0 is for kind="soft", but kind=.hard. was given': lambda: DistillationLoss("hard", temperature=2.0),
    "teacher must be a Keras model.*but str was given": lambda: training.distillation("ViT-B/16"),
    "the 3 classes of the data, but it has 5": lambda: distil(new_model(), new_model(classes=5)),
    r"the teacher takes \(16, 16, 3\). Pass load": lambda: distil(new_model(), new_model(image_size=16)),
    r"of \(8, 8, 1\), but the teacher takes \(8, 8, 3\). Pass a teacher for as many channels": lambda: finetune(
        new_model(channels=1), (IMAGES[0][..., 0], IMAGES[1]), task=training.distillation(new_model())
    ),
    r"teacher must return one row for each image, but it returns \(None, 5, 8\).*pooling=": lambda: distil(
        new_model(), new_model(classes=None, pooling="none"), "features"
    ),
    "teacher must return .*pooling=": lambda: distil(new_model(), new_model(classes=None, pooling="none")),
    "distillation takes data of the target 'class', but .* 'number'": lambda: finetune(
        new_model(), IMAGES, task=training.distillation(new_model()), target="number"
    ),
    "same order, 'a', 'b', 'c', not 'b'": lambda: distil(
        new_model(class_names=["a", "b", "c"]), new_model(class_names=["b", "a", "c"])
    ),
}


def test_what_does_not_fit_is_refused():
    for message, call in WRONG.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()
