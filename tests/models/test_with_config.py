"""One way to change a model: what stays, what is resized, what starts again, and what is refused."""

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit.models import weights_by_path
from keras_vit.models.changes import CHANGES
from tests.compute import forward
from tests.small_models import images_for, model_of, values_of
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once

SIZE = {"image_size": 16, "patch_size": 8, "width": 8, "depth": 2, "heads": 2, "mlp_width": 12, "classes": 3}
VIT = keras_vit.ViTConfig(**SIZE, representation_size=6, class_names=("a", "b", "c"))
HYBRID = VIT.replace(image_size=32, patch_size=2, stem_stages=(1,), stem_width=32, representation_size=None)
BIT = keras_vit.BiTConfig(image_size=16, stages=(1,), width=32, classes=3)
FAMILIES = {"vit": VIT, "hybrid": HYBRID, "bit": BIT}

# A new value for every field that may change, by family; with what has to be given up for it.
BOTH_VALUES = {
    **{"image_size": (24, 16), "dynamic": True, "include_preprocessing": True, "channels": 4},
    **{"classes": 5, "class_names": ("x", "y", "z"), "classifier_activation": "softmax"},
}
VIT_VALUES = BOTH_VALUES | {
    **{
        "patch_size": 4,
        "interpolation": "bicubic_hf",
        "gelu": "exact",
        "layer_norm_epsilon": 1e-5,
        "final_norm_epsilon": 1e-4,
    },
    **{"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1, "remat": True, "class_token_only": True},
    **{"patch_drop": 0.5},
    **{"pooling": "avg", "final_norm": "pooled", "map_prefix": False},
    **{"pixel_mean": (0.1, 0.2, 0.3), "pixel_std": (0.2,) * 3, "resize": "shortest", "crop_ratio": 0.9},
    **{"crop_rounding": "floor", "filter": "bicubic", "trim": (1, 0)},
}
BIT_VALUES = BOTH_VALUES | {"pooling": "none", "pool_padding": "zeros", "folded": True}
# Fields that may change, but not for every model or not without giving something up; tested by name.
SPECIAL = (
    *("representation_size", "stem_epsilons", "stem_folded", "folded", "preprocessing_folded", "projection"),
    *("distillation_head", "unit_features", "projection_bias"),
)
CASES = [
    *(("vit", {field: value}, ()) for field, value in VIT_VALUES.items()),
    ("vit", {"representation_size": 4}, ("pre_logits", "head")),
    ("vit", {"representation_size": None}, ("head",)),
    ("vit", {"representation_size": None, "classes": 5}, ()),
    ("vit", {"classes": None}, ()),
    ("vit", {"classes": None, "representation_size": None}, ()),
    ("vit", {"unit_features": True}, ("head",)),
    ("vit", {"pooling": "map"}, ("pooling",)),
    ("vit", {}, ("block_1", "head")),
    ("hybrid", {"stem_folded": True}, ()),
    ("hybrid", {"stem_epsilons": "timm"}, ()),
    ("hybrid", {"image_size": (32, 48), "patch_size": 4}, ()),
    *(("bit", {field: value}, ()) for field, value in BIT_VALUES.items()),
]


def make(family, **options):
    return model_of(FAMILIES[family], **options)


def trained(model):
    ids = {id(weight) for weight in model.trainable_weights}
    return {path for path, weight in weights_by_path(model).items() if id(weight) in ids}


def policies(model):
    return {layer.name: layer.dtype_policy.name for layer in model.layers}


@pytest.mark.parametrize(("family", "changes", "fresh"), CASES)
def test_every_change_keeps_the_rest(family, changes, fresh):
    model = make(family, name="mine", dtype="mixed_bfloat16")
    frozen = ("conv_root", "block1_unit1") if family == "bit" else ("embedding", "encoder_norm", "block_1/mlp")
    for name in frozen:
        layer = model.get_layer(name.partition("/")[0])
        (layer.mlp if name.endswith("/mlp") else layer).trainable = False
    before = values_of(model)
    other = model.with_config(fresh=fresh, **changes)

    assert type(other) is type(model) and other is not model
    assert other.config == model.config.replace(**changes)
    assert other.name == "mine" and other.dtype_policy.name == "mixed_bfloat16" and other.trainable is True
    shared = policies(model).keys() & policies(other).keys()
    assert {name: policies(other)[name] for name in shared} == {name: policies(model)[name] for name in shared}

    reinitialised = {*fresh, *(("head",) if "classes" in changes else ())}
    after = values_of(other)
    expected = {path for path in after if path.partition("/")[0] in reinitialised or path in trained(model)}
    assert trained(other) == expected
    table = {"position_embedding/table"}
    resized = {"image_size": table, "patch_size": table | {"embedding/kernel"}, "channels": {"embedding/kernel"}}
    computed = "folded" in str(changes) or "channels" in changes
    for path, value in after.items():
        if path.partition("/")[0] in reinitialised:
            assert path not in before or not np.array_equal(value, before[path])
        elif any(path in resized.get(field, ()) for field in changes) and family != "bit":
            assert value.shape != before[path].shape and np.isfinite(value).all()
        elif computed and path.endswith("/kernel") and before[path].ndim == 4:
            pass  # test_folded_models_compute_the_same, test_channels.py
        else:
            np.testing.assert_array_equal(value, before[path], err_msg=path)
    # The old model is what it was, and shares nothing with the new one.
    for path, value in values_of(model).items():
        np.testing.assert_array_equal(value, before[path])
    ids = {id(weight) for weight in model.weights}
    assert not any(id(weight) in ids for weight in other.weights)


def test_every_field_is_kept_or_refused():
    """A field that is added to a config has to be decided about: its name is in this test or it is refused."""
    for config, given in ((VIT, VIT_VALUES), (BIT, BIT_VALUES)):
        refused = {
            "width", "depth", "heads", "mlp_width", "stem_stages", "stem_width", "class_token",
            "position_embedding", "stages", "patch_bias", "distillation_token", "register_tokens", "rotary_embedding",
            "rotary_grid", "pre_norm", "attention_bias", "attention_norm", "tokens_mlp_width", "mlp", "layer_scale",
            "pooling_heads", "pooling_mlp_width",
        }  # fmt: skip
        for field in dataclasses.fields(config):
            decided = {*given, *SPECIAL}
            assert (field.name in CHANGES) == (field.name in decided), field.name
            assert (field.name in CHANGES) != (field.name in refused), field.name


REFUSED = [
    *(
        ("vit", {field: value}, ValueError, f"{field} cannot change .*build another model")
        for field, value in {"width": 16, "stem_stages": (1,), "mlp": "swiglu"}.items()
    ),
    ("vit", {"stem_stages": np.array([1, 2])}, ValueError, r"stem_stages cannot change from None to \(1, 2\)"),
    ("vit", {"image_sise": 32}, TypeError, "no field 'image_sise'. Did you mean 'image_size'"),
    ("vit", {"grid_size": (2, 2)}, TypeError, "no field 'grid_size'"),  # a property
    ("vit", {"fresh": "haed"}, ValueError, r"fresh must name layers .*'haed'"),
    ("vit", {"image_size": 17}, ValueError, "not a multiple"),
    ("vit", {"dtype": "nonsense"}, ValueError, "nonsense"),
    ("vit", {"representation_size": None}, ValueError, "representation_size=.* new weights in head.*fresh="),
    ("vit", {"representation_size": 4}, ValueError, "representation_size=.* in head and pre_logits.*fresh="),
    ("vit", {"pooling": "map"}, ValueError, "pooling=.* new weights in pooling.*fresh="),
    ("vit", {"classes": None, "classifier_activation": "relu"}, ValueError, "'relu' needs a head"),
]


def test_what_is_refused():
    for family, changes, error, words in REFUSED:
        with pytest.raises(error, match=words):
            make(family).with_config(**changes)


def test_a_frozen_model_stays_so_and_a_dtype_may_change():
    model = make("vit", trainable=False, name="mine", dtype="mixed_bfloat16")
    other = model.with_classes(5)
    assert other.trainable is False and other.trainable_weights == []
    other = model.with_config(name="other", dtype="float32")
    assert (other.name, other.dtype_policy.name) == ("other", "float32")
    assert set(policies(other).values()) == {"float32"}


def test_what_is_folded_stays_so():
    folded = make("hybrid").with_config(stem_folded=True)
    with pytest.raises(ValueError, match="stem_folded cannot change to False"):
        folded.with_config(stem_folded=False)
    for model, changes in ((make("hybrid"), {"stem_folded": True}), (folded, {})):
        with pytest.raises(ValueError, match="stem_epsilons cannot change to 'timm', because stem_folded=True"):
            model.with_config(stem_epsilons="timm", **changes)


def test_another_number_of_classes_drops_the_names():
    for named in (VIT, BIT.replace(class_names=list("abc"))):
        assert named.class_names == tuple("abc") and named.to_dict()["class_names"] == list("abc")
        assert named.replace(classes=2).class_names is named.replace(classes=None).class_names is None
        assert named.replace(classes=3).class_names == tuple("abc")
        assert named.replace(classes=1, class_names=("cat",)).class_names == ("cat",)


@pytest.mark.each
def test_fresh_layers_are_drawn_and_train():
    model = make("vit")
    for layer in model.layers:
        layer.trainable = False
    other = model.with_config(representation_size=None, classes=4)
    assert trained(other) == {"head/kernel", "head/bias"}
    assert not any(np.any(value) for path, value in values_of(other).items() if path.startswith("head/"))
    other = model.with_config(representation_size=4, fresh=("pre_logits", "head"))
    assert trained(other) == {f"{layer}/{name}" for layer in ("pre_logits", "head") for name in ("kernel", "bias")}
    assert 0 < np.abs(values_of(other)["pre_logits/kernel"]).max() < 1.0  # Glorot's bound is sqrt(6 / (8 + 4))


def test_the_shorthands_do_the_same():
    model, without, xyz = make("vit", name="mine"), {"representation_size": None}, tuple("xyz")
    pairs = [
        (model.with_image_size(24), model.with_config(image_size=24)),
        (model.with_image_size("dynamic").with_image_size(24), model.with_config(image_size=24)),
        (model.with_config(image_size=24, dynamic=True), model.with_image_size(24).with_image_size("dynamic")),
        (model.with_patch_size(4, image_size=24), model.with_config(patch_size=4, image_size=24)),
        (model.with_classes(4), model.with_config(classes=4, **without)),
        (model.with_classes(4, keep_pre_logits=True), model.with_config(classes=4)),
        (model.with_classes(3, class_names=xyz), model.with_config(class_names=xyz, fresh="head", **without)),
    ]
    for one, two in pairs:
        assert one.get_config() == two.get_config()
        for path, value in values_of(two).items():
            np.testing.assert_array_equal(values_of(one)[path], value, err_msg=path)
    assert model.with_classes(3).config.class_names is None  # a new head stands for nothing yet
    with pytest.raises((TypeError, ValueError), match="image_size"):
        model.with_patch_size(4, image_size=0)


@pytest.mark.each
@pytest.mark.parametrize("family", ["hybrid", "bit"])
def test_folded_models_compute_the_same(family):
    model = make(family)
    images = images_for(model.config)
    folded = model.folded()
    np.testing.assert_allclose(forward(folded, images), forward(model, images), rtol=0, atol=SAME_FUNCTION)
    again = folded.folded()
    for path, value in values_of(folded).items():
        np.testing.assert_array_equal(values_of(again)[path], value, err_msg=path)


@pytest.mark.each
def test_adapters_travel():
    """LoRA's adapters belong to what a model has learned, and so does what of it trains."""
    model = make("vit")
    query = model.get_layer("block_0").attention.query
    query.enable_lora(2, lora_alpha=3)
    query.lora_kernel_b.assign(np.random.default_rng(2).normal(0, 0.3, query.lora_kernel_b.shape))
    for path, weight in weights_by_path(model).items():
        weight.trainable = "lora" in path
    images = images_for(model.config)
    other = model.with_config(interpolation="bicubic")
    assert other.get_layer("block_0").attention.query.lora_alpha == 3
    np.testing.assert_array_equal(forward(other, images), forward(model, images))
    assert trained(other) == trained(model) and len(trained(model)) == 2
    assert trained(model.with_classes(5)) == trained(model) | {"head/kernel", "head/bias"}


@pytest.mark.parametrize("family", ["vit", "bit"])
def test_a_head_for_every_token_has_to_be_asked_for(family):
    """`include_top=False` gives all tokens: a head on each of them is not what anybody means by 5 classes."""
    without = {} if family == "bit" else {"representation_size": None}
    model = make(family).with_config(classes=None, pooling="none", **without)
    for change in (lambda: model.with_classes(5), lambda: model.with_config(classes=5)):
        with pytest.raises(ValueError, match=r"no pooling.*with_config\(classes=5, pooling=\.\.\.\)"):
            change()
    pooling = "avg" if family == "bit" else "token"
    assert model.with_config(classes=5, pooling=pooling).output_shape == (None, 5)
    everywhere = model.with_config(classes=5, pooling="none")
    assert everywhere.output_shape == (*model.output_shape[:-1], 5)
    assert everywhere.with_classes(4).output_shape == (*model.output_shape[:-1], 4)  # as it is
