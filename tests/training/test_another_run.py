"""The folder of a run notices that it is another run: other weights, another teacher, other data."""

import json

import keras
import numpy as np
import pytest

from keras_vit import training
from tests.training.test_finetuning import IMAGES, colours, finetune, new_model
from tests.training.test_loop import assert_same_weights

pytestmark = pytest.mark.once

OTHER = colours(8, seed=5)


def other_model():
    model = new_model()
    weight = model.get_layer("encoder_norm").gamma
    weight.assign(weight + 1e-3)  # one of many
    return model


def in_the_middle(pixels):
    """The same images but one pixel in the middle: equal at both ends."""
    pixels = pixels.copy()
    pixels[len(pixels) // 2, 4, 4, 0] ^= 1
    return pixels


def with_masks(seed):
    return IMAGES[0], np.random.default_rng(seed).integers(0, 3, (8, 8, 8))


def segment(masks, **options):
    recipe = training.recipe("segmentation/dinov2_linear").replace(image_size=8, batch_size=8, steps=1)
    model = new_model(final_norm="tokens", dropout=0.0)
    return training.finetune_segmentation(model, masks, recipe, classes=3, verbose=False, **options)


def distil(seed, **options):
    teacher = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)], name="teacher")
    teacher.set_weights([np.random.default_rng(seed).random((192, 3)), np.zeros(3)])
    return finetune(new_model(), task=training.distillation(teacher), **options)


CASES = {  # what a run is begun with, what it is called with later, and what the error names
    "a model": (lambda **o: finetune(new_model(), **o), lambda **o: finetune(other_model(), **o), "weights"),
    "a teacher": (lambda **o: distil(1, **o), lambda **o: distil(2, **o), "answers of the teacher"),
    "arrays that are equal at both ends": (
        lambda **o: finetune(new_model(), **o),
        lambda **o: finetune(new_model(), (in_the_middle(IMAGES[0]), IMAGES[1]), **o),
        "training data",
    ),
    "images of several sizes": (
        lambda **o: finetune(new_model(), ([*IMAGES[0][:7], np.zeros((9, 8, 3), "uint8")], IMAGES[1]), **o),
        lambda **o: finetune(new_model(), ([*OTHER[0][:7], np.zeros((9, 8, 3), "uint8")], IMAGES[1]), **o),
        "training data",
    ),
    "images to evaluate on": (
        lambda **o: finetune(new_model(), validation=OTHER, **o),
        lambda **o: finetune(new_model(), validation=colours(8, seed=6), **o),
        "validation data",
    ),
    "masks": (lambda **o: segment(with_masks(0), **o), lambda **o: segment(with_masks(1), **o), "training data"),
}


@pytest.mark.parametrize("case", CASES)
def test_another_run_is_an_error_and_the_same_one_goes_on(case, tmp_path):
    first, other, name = CASES[case]
    done = first(output=tmp_path / "run")
    with pytest.raises(ValueError, match=f"settings: the {name} differ. Choose another output, or pass resume=F"):
        other(output=tmp_path / "run")
    if case == "a model":
        again = first(output=tmp_path / "run")
        assert_same_weights(again.model, done.model)
        assert list(again.log) == list(done.log)
        other(output=tmp_path / "run", resume=False)  # starts again


def test_what_nobody_can_tell_is_said(tmp_path):
    pipeline = [IMAGES]
    options = {"classes": 3, "output": tmp_path / "run"}
    done = finetune(new_model(), pipeline, **options)
    for images in (pipeline, [OTHER]):
        with pytest.warns(UserWarning, match="same training data: a pipeline has no fingerprint"):
            assert_same_weights(finetune(new_model(), images, **options).model, done.model)
    with pytest.raises(ValueError, match="the weights differ"):
        finetune(other_model(), pipeline, **options)


def test_a_folder_of_an_older_version_goes_on_and_is_noted(tmp_path):
    run = tmp_path / "run"
    done = finetune(new_model(), output=run)
    settings = json.loads((run / "run.json").read_text())
    assert set(settings["begun_with"]) == {"weights", "training data"}
    (run / "run.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "begun_with"}))
    with pytest.warns(UserWarning, match="same weights and training data: an older version began it"):
        assert_same_weights(finetune(new_model(), output=run).model, done.model)
    assert json.loads((run / "run.json").read_text()) == settings
    assert finetune(new_model(), validation=OTHER, output=run).accuracy is not None  # may be added
    with pytest.raises(ValueError, match="the validation data differ"):
        finetune(new_model(), validation=colours(8, seed=6), output=run)
    finetune(new_model(), output=run)
