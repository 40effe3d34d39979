"""Training a detector by words: both towers train, go on, and find what other words name."""

import numpy as np
import pytest

import keras_vit
from keras_vit import training
from tests.small_models import small_vit, values_of
from tests.training.test_detection import NAMES, RECIPE, SIZE, scenes
from tests.training.test_loop import cut_off


@pytest.fixture
def owl(golden):
    return keras_vit.load_image_text(golden("owl_v2_p14").folder, image_size=28)


def tune(owl, text_rate=0.5, boxes=None, **options):
    recipe = RECIPE.replace(image_size=28, drop_path=0.0)
    boxes = scenes(12) if boxes is None else boxes
    options = {"verbose": False, "seed": 1, "recipe": recipe} | options
    return training.finetune_detection(owl, boxes, text_rate=text_rate, **options)


def moved(old, new):
    old, new = values_of(old), values_of(new)
    return {path: np.abs(new[path] - value).max() for path, value in old.items() if path in new}


@pytest.mark.nightly
def test_both_towers_train_and_a_killed_run_goes_on(owl, tmp_path):
    options = {"validation": scenes(4, 1), "every": 2}
    done = tune(owl, output=tmp_path / "whole", **options)
    image, text = moved(owl.detector, done.owl.detector), moved(owl.text_encoder, done.owl.text_encoder)
    assert image["head/embed/kernel"] > 1e-4 and max(text.values()) > 1e-4
    assert max(text.values()) < 0.6 * max(image.values())  # by half of the rate
    cut_off(tune, 3, owl=owl, output=tmp_path / "killed", **options)
    again = tune(owl, output=tmp_path / "killed", **options)
    assert not any(moved(done.owl.text_encoder, again.owl.text_encoder).values())
    assert not any(moved(done.model, again.model).values()) and done.log[-1]["val_ap"] == again.log[-1]["val_ap"]
    owl.text_encoder.set_weights([1.01 * value for value in owl.text_encoder.get_weights()])
    with pytest.raises(ValueError, match="the weights differ"):
        tune(owl, output=tmp_path / "killed", **options)
    # What is returned, measured and written has the vectors that the trained text tower makes.
    for both in (done.owl, keras_vit.load_image_text(tmp_path / "whole/owl")):
        words = both.zero_shot_detector(NAMES, progress=False)
        assert max(moved(words, done.model).values()) < 1e-6
    loaded = keras_vit.load(tmp_path / "whole/model.keras")
    assert loaded.config.class_names == NAMES and not any(moved(loaded, done.model).values())


@pytest.mark.nightly_elsewhere
def test_words_without_training_their_tower(owl):
    done = tune(owl, text_rate=0.0)
    assert not any(moved(owl.text_encoder, done.owl.text_encoder).values())
    assert moved(owl.detector, done.owl.detector)["head/embed/kernel"] > 1e-4
    assert tune(owl, text_rate=None).owl is None


@pytest.mark.once
def test_who_has_no_text_tower(owl):
    with pytest.raises(ValueError, match="text_rate=0.04 trains the text tower of an OWL"):
        tune(small_vit(pooling="none", classes=None, image_size=SIZE), 0.04)
    with pytest.raises(ValueError, match="text_rate must be a number of at least 0"):
        tune(owl, -1.0)
