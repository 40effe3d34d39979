"""The hybrids: a ResNet before the patches, from official files, from timm's, and by name."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import skip_initialization
from keras_vit.models import VARIANTS, count_macs, variant_config
from tests.checkpoints import test_families as families
from tests.checkpoints.test_fidelity import RESULTS, cross_entropy, errors, load
from tests.compute import forward, gradients, relative_error
from tests.tolerances import GRADIENTS, LOGITS, SAME_FUNCTION

CASES = ("mini_hybrid", "mini_hybrid_stem", "probe_gn_eps", "probe_stdconv_eps")
# A map of values up to 20 that has gone through convolutions over hundreds of channels: float32 keeps 7 digits.
MAP = 1e-4


def within(found):
    loose = {**{name: bound for name, (_, bound) in RESULTS.items()}, "stem": MAP, "tokens_in": MAP, "block0": MAP}
    return {name: error for name, error in found.items() if not error <= loose[name]} == {}


@pytest.mark.parametrize("name", CASES)
def test_forward(golden, name, record_property):
    case = golden(name)
    found = errors(load(case), case.ref)
    record_property("errors", found)
    assert {"stem", "encoded", "logits"} <= found.keys()
    assert within(found)


# A wrong choice that other ports make, and the case that shows it.
MISTAKES = {
    "GroupNorm epsilon of PyTorch": ("probe_gn_eps", {}, {"gn_root": 1e-5}),
    "epsilon under the root": ("probe_stdconv_eps", {"epsilon_inside": True}, {}),
    "StdConv epsilon of timm": ("probe_stdconv_eps", {"epsilon_inside": True, "epsilon": 1e-8}, {}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.once
def test_the_tolerances_catch(golden, mistake):
    name, convolution, norms = MISTAKES[mistake]
    case = golden(name)
    model = load(case)
    for layer in model._flatten_layers():
        if isinstance(layer, keras_vit.layers.StdConv2D):
            for attribute, value in convolution.items():
                setattr(layer, attribute, value)
        if layer.name in norms:
            layer.epsilon = norms[layer.name]
    assert not within(errors(model, case.ref))


def test_gradients(golden, record_property):
    case = golden("grad_hybrid")
    model = load(case)
    loss, grads = gradients(model, case.ref["images"], cross_entropy(case.ref["labels"]), training=True)
    np.testing.assert_allclose(loss, case.ref["loss"], rtol=0, atol=LOGITS)
    layout = keras_vit.checkpoints.LAYOUTS["vit_jax"]
    paths = {path: weight.path for path, weight in keras_vit.models.weights_by_path(model).items()}
    rows = [row for row in layout.rows(model.config) if not row.name.endswith("key/bias")]  # zero but for rounding
    found = {}
    for row in rows:
        reference = case.ref[f"grad/{row.name}"]
        found[row.name] = relative_error(grads[paths[row.path]].reshape(reference.shape), reference)
    record_property("errors", found)
    assert {name: error for name, error in found.items() if not error <= GRADIENTS} == {}


# What timm computes (`meta.json` says with which of its classes): group normalisations and kernels with other epsilons.
TIMM = pytest.mark.parametrize("name", ["fam_timm_hybrid"])


@TIMM
def test_forward_of_timm(golden, name, record_property):
    case = golden(name)
    model = keras_vit.from_checkpoint(case.folder)
    found = families.errors(model, case.ref)
    record_property("errors", found)
    assert {"tokens_in", "encoded", "logits"} <= found.keys() and families.too_far(found) == {}
    assert model.config.stem_epsilons == "timm" and model.config.gelu == "exact"
    for change in ({"stem_epsilons": "official"}, {"gelu": "tanh"}):
        assert "logits" in families.too_far(families.errors(model.with_config(**change), case.ref))


@TIMM
def test_forward_of_timm_at_another_size(golden, name, record_property):
    case = golden(name)
    model = keras_vit.from_checkpoint(case.folder, image_size=case.ref["images_resized"].shape[1:3])
    found = families.errors(model, case.ref, "_resized")
    record_property("errors", found)
    assert {"tokens_in", "logits"} <= found.keys() and families.too_far(found) == {}


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


REFUSED = {
    "other stages": ({"stem_stages": (1, 1)}, "stem_stages in .*timm has no others"),
    "official epsilons": ({"stem_epsilons": "official"}, "other epsilons"),
    "standardised": ({"stem_folded": True}, "standardised for good"),
    "narrow": ({"stem_width": 32}, "32 channels, not 64"),
    "another epsilon": ({"layer_norm_epsilon": 1e-5}, "epsilon 1e-6 after a ResNet"),
    "a gate": ({"mlp": "swiglu"}, "only plain blocks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_not_written_for_timm(golden, name):
    changes, message = REFUSED[name]
    config = keras_vit.checkpoints.open_checkpoint(golden("fam_timm_hybrid").folder).config
    config = config.replace(stem_stages=(), stem_width=64, patch_size=4)
    timm = keras_vit.checkpoints.LAYOUTS["timm"]
    timm.check_writable(config)
    with pytest.raises(ValueError, match=message):
        timm.check_writable(config.replace(**changes))


@pytest.mark.parametrize("name", CASES)
def test_round_trip(golden, name, tmp_path):
    case = golden(name)
    keras_vit.to_checkpoint(load(case), tmp_path / "back.npz")
    with np.load(case.path) as wanted, np.load(tmp_path / "back.npz") as got:
        assert sorted(got.files) == sorted(wanted.files)
        for array in wanted.files:
            np.testing.assert_array_equal(got[array], wanted[array], strict=True)


@pytest.mark.once
def test_todays_flax_has_vectors_in_group_normalisation(golden, tmp_path):
    case = golden("mini_hybrid")
    with np.load(case.path) as file:
        arrays = {name: a.reshape(-1) if a.shape[:-1] == (1, 1, 1) else a for name, a in file.items()}
    np.savez(tmp_path / "linen.npz", **arrays)
    model = keras_vit.from_checkpoint(tmp_path / "linen.npz")
    assert within(errors(model, case.ref))


def test_folded_kernels_give_the_same_numbers(golden):
    case = golden("mini_hybrid")
    model = load(case)
    folded = model.folded()
    assert folded.config.stem_folded and folded.folded().config == folded.config
    np.testing.assert_allclose(
        forward(folded, case.ref["images"]), forward(model, case.ref["images"]), rtol=0, atol=SAME_FUNCTION
    )
    with pytest.raises(ValueError, match="folded"):
        keras_vit.to_checkpoint(folded, "nowhere.npz")


@pytest.mark.parametrize("size", [(64, 96), (70, 58)])
def test_any_image_size(golden, size):
    case = golden("mini_hybrid")
    model = load(case).with_image_size(size)
    rows, columns = -(-size[0] // 8), -(-size[1] // 8)
    assert model.config.grid_size == (rows, columns)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype("float32")
    stem = forward(keras_vit.feature_extractor(model, ["stem"]), images)["stem"]
    assert stem.shape == (2, rows, columns, 48)
    dynamic = load(case).with_image_size("dynamic")
    np.testing.assert_allclose(forward(dynamic, images), forward(model, images), rtol=0, atol=SAME_FUNCTION)


def test_save_and_load(golden, tmp_path):
    case = golden("mini_hybrid")
    model = load(case).with_classes(5)
    model.save(tmp_path / "hybrid.keras")
    again = keras.saving.load_model(tmp_path / "hybrid.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(forward(again, case.ref["images"]), forward(model, case.ref["images"]))


# Parameters of the original configurations: with 1,000 classes at 224 and at 384 pixels, with 21,843 classes
# and the same with pre-logits at 224; then GMACs at 224 and 384. Counted with the original code.
PUBLISHED = {
    "R+ViT-Ti/16": (6_337_704, 6_355_944, 10_360_403, 10_397_459, 0.434, 1.327),
    "R26+ViT-S/32": (36_431_912, 36_468_392, 44_456_467, 44_604_307, 3.464, 10.264),
    "R26+ViT-B/32": (101_383_976, 101_456_936, 117_412_243, 118_002_835, 6.711, 19.808),
    "R50+ViT-B/16": (98_659_112, 98_950_952, 114_687_379, 115_277_971, 21.535, 67.156),
    "R50+ViT-L/32": (328_994_856, 329_092_136, 350_358_931, 351_408_531, 19.413, 57.136),
}


@pytest.mark.parametrize("variant", PUBLISHED)
@pytest.mark.once
def test_sizes(variant):
    at_224, at_384, classes_21k, pre_logits, gmacs_224, gmacs_384 = PUBLISHED[variant]
    small, large = variant_config(variant), variant_config(variant, image_size=384)
    many = variant_config(variant, classes=21843)
    with_layer = many.replace(representation_size=many.width)
    wanted = {small: at_224, large: at_384, many: classes_21k, with_layer: pre_logits}
    if variant in ("R26+ViT-B/32", "R50+ViT-L/32"):  # built once each; the others differ in the head and the table
        wanted = {small: at_224}
    for config, count in wanted.items():
        with skip_initialization():
            assert keras_vit.VisionTransformer(config).count_params() == count
    # The published figures have three decimals.
    assert count_macs(small) / 1e9 == pytest.approx(gmacs_224, abs=6e-4)
    assert count_macs(large) / 1e9 == pytest.approx(gmacs_384, abs=6e-4)


@pytest.mark.once
def test_all_hybrids_are_tested():
    assert {name for name, row in VARIANTS.items() if row.stem_stages is not None} == set(PUBLISHED)
