"""The hybrids: a ResNet before the patches, from official files, from timm's, and by name."""

import json

import numpy as np
import pytest

import keras_vit
from tests.checkpoints.test_fidelity import HYBRID, errors, too_far
from tests.compute import forward


@pytest.mark.once
def test_timms_weights_with_the_official_numbers(golden, tmp_path):
    """As catalogue names mean them: what the official code computes from them, whose file they can be."""
    case = golden("fam_timm_hybrid")
    publisher = keras_vit.from_checkpoint(case.folder)
    with pytest.raises(ValueError, match="stem_epsilons='official'"):
        keras_vit.to_checkpoint(publisher, tmp_path / "official.npz")
    official = keras_vit.from_checkpoint(case.folder, numerics="official")
    keras_vit.to_checkpoint(official, tmp_path / "official.npz")
    again = keras_vit.from_checkpoint(tmp_path / "official.npz")
    assert again.config == official.config != publisher.config
    np.testing.assert_array_equal(forward(again, case.ref["images"]), forward(official, case.ref["images"]))


@pytest.mark.once
def test_written_for_timm(golden, tmp_path):
    config = keras_vit.checkpoints.open_checkpoint(golden("fam_timm_hybrid").folder).config
    stem = config.replace(stem_stages=(), stem_width=64, patch_size=4)
    model = keras_vit.VisionTransformer(stem)
    for weight in model.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    keras_vit.to_checkpoint(model, tmp_path, layout="timm")
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "vit_tiny_r_s16_p8_224"
    again = keras_vit.from_checkpoint(tmp_path)
    assert again.config == stem
    for new, old in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.once
def test_todays_flax_has_vectors_in_group_normalisation(golden, tmp_path):
    case = golden("mini_hybrid")
    with np.load(case.path) as file:
        arrays = {name: a.reshape(-1) if a.shape[:-1] == (1, 1, 1) else a for name, a in file.items()}
    np.savez(tmp_path / "linen.npz", **arrays)
    model = keras_vit.from_checkpoint(tmp_path / "linen.npz")
    assert too_far(errors(model, case.ref, HYBRID), HYBRID) == {}
