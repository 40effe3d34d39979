"""The repr of a model and of a checkpoint's facts: one line that a person reads."""

import pytest

import keras_vit
from keras_vit.text import ImageText
from tests import small_models as small

pytestmark = pytest.mark.once


def test_models_have_one_line_of_facts():
    glyphs = keras_vit.load("glyphs", classifier_activation="softmax")
    assert repr(glyphs) == "<VisionTransformer width 96, 24 px, 584,324 parameters, softmax of 164 classes>"
    lines = {
        small.small_vit(): "<VisionTransformer width 8, 8 px, 1,683 parameters, logits of 3 classes>",
        small.small_vit(classes=None, dynamic=True): "width 8, any size, 1,656 parameters, features>",
        small.small_vit(image_size=(8, 12), pooling="none", classes=None): "8 x 12 px, 1,672 parameters, features of",
        small.small_bit(): "<BiT width 32, 16 px, ",
        small.small_eomt(): "<EoMT width 8, 8 px, 2,",
        small.small_linear_segmenter(): "parameters, maps of 3 classes>",
        small.small_depth_model(): "parameters, depth up to 80 m>",
        small.small_linear_depth(): "parameters, depth up to 10 m>",
        small.small_text_encoder(): "<TextEncoder 5 tokens of 11, 1,",
        ImageText(
            small.small_vit(classes=None), small.small_text_encoder()
        ): "<ImageText <VisionTransformer width 8, 8",
    }
    for model, words in lines.items():
        assert words in repr(model) and "\n" not in repr(model) and len(repr(model)) < 200, repr(model)


def test_the_facts_of_a_checkpoint(tmp_path):
    path = tmp_path / "some.npz"
    keras_vit.to_checkpoint(keras_vit.load("glyphs"), path)
    shown = str(keras_vit.inspect_checkpoint(path)).splitlines()
    assert "24 px, 584,324 parameters, logits of 164 classes, vit_jax, 2." in shown[0]
    assert all(len(line) < 200 for line in shown)
