"""Features by name: every activation, in one pass, as tokens or as maps."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.compute import forward
from tests.layers import in_numpy
from tests.small_models import images_for, small_detector, small_vit
from tests.tolerances import SAME_FUNCTION

KINDS = {
    "plain": {"class_token": True, "pooling": "token"},
    "gap": {"class_token": False, "pooling": "avg"},
    "map": {"class_token": False, "pooling": "map"},
    "tanh": {"class_token": True, "pooling": "token", "representation_size": 6},
    "dynamic": {"class_token": True, "pooling": "avg", "dynamic": True},
    "hybrid": {"stem_stages": (1, 2), "stem_width": 32, "patch_size": 1, "image_size": (16, 24)},
    "tokens": {"pooling": "none"},
    "dinov3": {"register_tokens": 2, "rotary_embedding": "dinov3", "position_embedding": "none", "mlp": "swiglu"},
    "distilled": {"distillation_token": True, "distillation_head": True},
    "normalised_mean": {"class_token": False, "pooling": "avg", "final_norm": "pooled", "dynamic": True},
}


def make(kind="plain"):
    sizes = {"image_size": (8, 12), "width": 16, "mlp_width": 24, "classifier_activation": "softmax"}
    return small_vit(**sizes | KINDS[kind])


@pytest.mark.parametrize(
    "kind",
    ["plain", "hybrid", *(pytest.param(k, marks=pytest.mark.once) for k in KINDS if k not in ("plain", "hybrid"))],
)
def test_every_name_that_is_listed_works_in_one_pass(kind):
    model = make(kind)
    names = keras_vit.feature_names(model)
    features = forward(keras_vit.feature_extractor(model, names), images_for(model.config))
    assert features.keys() == set(names)
    wanted = forward(model, images_for(model.config))
    np.testing.assert_allclose(features["predictions"], wanted, rtol=0, atol=SAME_FUNCTION)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", ["plain", "dynamic", "hybrid"])
def test_maps_are_tokens_where_they_lie(kind):
    model = make(kind)
    names = ["stem", "embedded", "block_-1", "block_0/mlp", "encoded", "pre_logits", "block_0/attention_weights"]
    images = images_for(model.config)
    tokens = forward(keras_vit.feature_extractor(model, names), images)
    maps = forward(keras_vit.feature_extractor(model, names, layout="map"), images)
    rows, columns = model.config.grid_size
    assert rows != columns
    for name in ("embedded", "block_-1", "block_0/mlp", "encoded"):
        wanted = tokens[name][:, model.config.prefix_tokens :].reshape(2, rows, columns, 16)
        np.testing.assert_allclose(maps[name], wanted, rtol=0, atol=SAME_FUNCTION)
    for name in ("stem", "pre_logits", "block_0/attention_weights"):
        np.testing.assert_allclose(maps[name], tokens[name], rtol=0, atol=SAME_FUNCTION)
    assert maps["stem"].shape == (2, rows, columns, 16)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", ["plain", "gap", "tanh", "tokens", "hybrid"])
def test_logits_of_every_patch(kind):
    model = make(kind)
    got = forward(keras_vit.feature_extractor(model, ["encoded", "logits", "logits_2d"]), images_for(model.config))
    rows, columns = model.config.grid_size
    patches = got["encoded"][:, model.config.prefix_tokens :].astype("f8")
    head = in_numpy.weights_of(model.get_layer("head"))
    if kind == "tanh":
        w = in_numpy.weights_of(model.get_layer("pre_logits"))
        patches = np.tanh(patches @ w["kernel"] + w["bias"])
    wanted = (patches @ head["kernel"] + head["bias"]).reshape(2, rows, columns, 3)
    np.testing.assert_allclose(got["logits_2d"], wanted, rtol=0, atol=SAME_FUNCTION)
    if kind == "gap":
        np.testing.assert_allclose(got["logits_2d"].mean((1, 2)), got["logits"], rtol=0, atol=SAME_FUNCTION)


@pytest.mark.once
def test_stages_of_a_hybrid():
    shapes = {"root": (4, 6, 32), "stage_1": (4, 6, 128), "block2_unit1": (2, 3, 256), "stem": (2, 3, 16)}
    outputs = keras_vit.feature_extractor(make("hybrid"), [*shapes]).output
    assert {name: tensor.shape[1:] for name, tensor in outputs.items()} == shapes


def test_an_extractor_is_saved_and_trained_like_any_model(tmp_path):
    model = make("plain")
    names = ["block_0/attention", "block_-1", "logits_2d"]
    extractor = keras_vit.feature_extractor(model, names, layout="map")
    wanted = forward(extractor, images_for(model.config))
    extractor.save(tmp_path / "features.keras")
    got = forward(keras.saving.load_model(tmp_path / "features.keras"), images_for(model.config))
    assert got.keys() == wanted.keys()
    for name in names:
        np.testing.assert_allclose(got[name], wanted[name], rtol=0, atol=SAME_FUNCTION)
    # The weights are those of the model, which stays as it was.
    assert {id(w) for w in extractor.weights} == {id(w) for w in model.weights}
    model.get_layer("block_0").mlp.fc1.kernel.assign_add(np.ones((16, 24)))
    assert np.abs(forward(extractor, images_for(model.config))["block_-1"] - wanted["block_-1"]).max() > 1e-3


@pytest.mark.once
def test_what_is_refused():
    model, outer = make(), keras.Sequential([make()])
    for name in ("block_2", "block_-3", "block_0/", "block_0/attn", "block_0/block_1", "", None, 3):
        with pytest.raises(ValueError, match=r"features must be a list of names from .*'block_0'.* also has block_0/"):
            keras_vit.feature_extractor(model, ["encoded", name])
    with pytest.raises(ValueError, match=r"layout must be one of \('tokens', 'map'\), but 'nhwc'"):
        keras_vit.feature_extractor(model, ["encoded"], layout="nhwc")
    for function in (keras_vit.feature_names, lambda m: keras_vit.feature_extractor(m, ["encoded"])):
        with pytest.raises(TypeError, match=r"must be a VisionTransformer or a BiT, but Sequential.*get_layer"):
            function(outer)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", ["normalised_mean", "gap"])
def test_without_head_and_pooling_a_model_gives_the_encoded_tokens(kind):
    """A normalisation that comes after pooling is none of tokens: timm's `forward_features` has none, either."""
    model = make(kind)
    images = images_for(model.config)
    given = forward(keras_vit.feature_extractor(model, ["before_norm", "encoded"]), images)
    headless = model.with_config(classes=None, classifier_activation=None, pooling="none")
    np.testing.assert_allclose(forward(headless, images), given["encoded"], rtol=0, atol=SAME_FUNCTION)
    assert (np.abs(given["encoded"] - given["before_norm"]).max() > 1e-2) == (kind == "gap")


@pytest.mark.once
def test_a_run_may_end_before_layers_of_several_outputs():
    for model, name in ((small_detector(), "encoder_norm"), (small_vit(**KINDS["dinov3"], patch_drop=0.5), "tokens")):
        images = images_for(model.config)
        wanted = forward(keras.Model(model.input, model.get_layer(name).output), images)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(model.run(images, until=name)), wanted)
