"""Pretrained weights for other channels than red, green and blue: timm's rule, computed once more."""

import numpy as np
import pytest

import keras_vit
from tests.compute import forward
from tests.models.test_bit import definition
from tests.models.test_bit import small as bit
from tests.models.test_families import VIT, answer, float64, images, make
from tests.small_models import values_of
from tests.tolerances import SAME_FUNCTION

HYBRID = VIT.replace(image_size=32, patch_size=2, stem_stages=(1,), stem_width=32)


def adapted(kernel, channels):
    """The sum for one; else red, green, blue, red ..., times 3 / channels, all in float32."""
    if channels == 1:
        return (kernel[:, :, 0] + kernel[:, :, 1] + kernel[:, :, 2])[:, :, None]
    return np.stack([kernel[:, :, c % 3] * np.float32(3 / channels) for c in range(channels)], 2)


@pytest.mark.parametrize("channels", [4, *(pytest.param(n, marks=pytest.mark.once) for n in (1, 2, 5))])
def test_against_numpy(channels):
    x = images((16, 24), channels=channels)
    model = make(VIT.replace(pixel_mean=(0.1, 0.2, 0.3), pixel_std=(0.4, 0.5, 0.9)))
    other = model.with_config(channels=channels)
    np.testing.assert_allclose(forward(other, x), answer(other.config, float64(other), x), rtol=1e-5, atol=3e-5)
    residual = bit(image_size=(16, 24)).with_config(channels=channels)
    np.testing.assert_allclose(forward(residual, x), definition(residual, x), rtol=0, atol=SAME_FUNCTION)
    for old, new, first in (
        (model, other, "embedding/kernel"),
        (bit(), bit().with_config(channels=channels), "conv_root/kernel"),
        (make(HYBRID), make(HYBRID).with_config(channels=channels), "conv_root/kernel"),
    ):
        for path, value in values_of(old).items():
            wanted = adapted(value, channels) if path == first else value
            np.testing.assert_array_equal(values_of(new)[path], wanted, err_msg=path)
    # Means and deviations stand in the order of the weights.
    turns = [(0.1, 0.2, 0.3)[c % 3] for c in range(channels)] if channels > 1 else [0.2]
    np.testing.assert_allclose(other.config.pixel_mean, turns, rtol=1e-12)
    assert model.with_config(channels=channels, pixel_std=0.25).config.pixel_std == (0.25,) * channels


@pytest.mark.once
def test_load_and_create_model(tmp_path):
    model = make(VIT.replace(gelu="tanh", layer_norm_epsilon=1e-6, interpolation="official"), name="mine")
    model.save(tmp_path / "model.keras")
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    for path in ("model.keras", "model.npz"):
        other = keras_vit.load(tmp_path / path, channels=4, classes=7)
        assert other.input_shape == (None, 16, 24, 4) and other.output_shape == (None, 7)
        assert keras_vit.load(tmp_path / path, channels=3).config == keras_vit.load(tmp_path / path).config
    tiny = keras_vit.create_model("ViT-mu/16", image_size=32, classes=3, channels=5)
    assert tiny.input_shape == (None, 32, 32, 5)
    with pytest.raises(ValueError, match="channels and input_tensor"):
        keras_vit.load(tmp_path / "model.npz", channels=4, input_tensor=tiny.input)


@pytest.mark.once
def test_what_is_refused():
    grey, folded = make(VIT).with_config(channels=1), make(HYBRID).folded()
    pixels = make(VIT.replace(include_preprocessing=True))
    for model, changes, words in (
        (grey, {"channels": 3}, "channels cannot change from 1 to 3, because only weights for RGB"),
        (folded, {"channels": 4}, "channels cannot change to 4, because stem_folded=True changes weights"),
        (pixels, {"channels": 4, "preprocessing_folded": True}, "channels cannot .* preprocessing_folded=True"),
        (make(VIT), {"channels": 2, "pixel_mean": (0.1, 0.2, 0.3)}, "pixel_mean must be one number, or one for"),
        (make(VIT), {"channels": 10**12}, "channels must be a whole number from 1 to 65,536"),
    ):
        with pytest.raises(ValueError, match=words):
            model.with_config(**changes)
    with pytest.raises(ValueError, match=r"needs images with 1 channels .*with_config\(channels=3\)"):
        grey(images())
