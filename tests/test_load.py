"""One way in: every kind of source with every option is either honoured or refused."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import save_model
from tests.small_models import model_of, small_bit_config, small_vit_config, values_of

pytestmark = pytest.mark.once

NAMES = ("a", "b", "c")
VIT = small_vit_config(image_size=16, patch_size=8, representation_size=6)
BIT = small_bit_config(dynamic=True)
CONFIGS = {"vit": VIT, "bit": BIT}
ENDINGS = (".npz", ".keras", ".weights.h5")

# What an option does to the config of a ViT and of a BiT; a text is that of the error.
OPTIONS = {
    "nothing": ({}, {}, {}),
    "image_size": ({"image_size": (24, 16)}, {"image_size": (24, 16)}, {"image_size": (24, 16), "dynamic": False}),
    "any size": ({"image_size": "dynamic"}, {"dynamic": True}, {}),
    "wrong size": ({"image_size": 17}, "not a multiple", {"image_size": (17, 17), "dynamic": False}),
    "classes": ({"classes": 5}, {"classes": 5, "representation_size": None}, {"classes": 5}),
    "the same classes": ({"classes": 3}, {}, {}),
    "no classes": ({"classes": 0}, "classes must be at least 1", "classes must be at least 1"),
    "class_names": ({"class_names": NAMES}, {"class_names": NAMES}, {"class_names": NAMES}),
    "other names": ({"class_names": ("a",)}, "each of the 3 classes, but has 1", "each of the 3 classes, but has 1"),
    "features": (
        {"include_top": False},
        {"classes": None, "representation_size": None, "pooling": "none"},
        {"classes": None, "pooling": "none"},
    ),
    "pooled features": (
        {"include_top": False, "pooling": "avg"},
        {"classes": None, "representation_size": None, "pooling": "avg"},
        {"classes": None},
    ),
    "features with classes": (  # which have no effect, as in keras.applications
        {"include_top": False, "classes": 5},
        {"classes": None, "representation_size": None, "pooling": "none"},
        {"classes": None, "pooling": "none"},
    ),
    "features with names": ({"include_top": False, "class_names": NAMES}, "needs include_top", "needs include_top"),
    "features with softmax": (
        {"include_top": False, "classifier_activation": "softmax"},
        "needs include_top",
        "needs include_top",
    ),
    "pre_logits": ({"pre_logits": True}, {}, "no use for pre_logits"),
    "pre_logits with a new head": ({"pre_logits": True, "classes": 5}, {"classes": 5}, "no use for pre_logits"),
    "without pre_logits": ({"pre_logits": False}, "needs a new head", {}),
    "pooling": ({"pooling": "avg"}, {"pooling": "avg"}, {}),
    "pooling with weights": ({"pooling": "map"}, "pooling", "pooling must be one of"),
    "softmax": (
        {"classifier_activation": "softmax"},
        {"classifier_activation": "softmax"},
        {"classifier_activation": "softmax"},
    ),
    "logits": ({"classifier_activation": "linear"}, {}, {}),
    "pixels": (
        {"include_preprocessing": True},
        {"include_preprocessing": True},
        {"include_preprocessing": True},
    ),
    "interpolation": ({"interpolation": "bicubic"}, {"interpolation": "bicubic"}, "no use for interpolation"),
    "dropout": ({"dropout": 0.1}, {"dropout": 0.1}, "no use for dropout"),
    "no dropout": ({"dropout": 0.0}, {}, {}),
    "attention_dropout": ({"attention_dropout": 0.1}, {"attention_dropout": 0.1}, "no use for attention_dropout"),
    "drop_path": ({"drop_path": 0.1}, {"drop_path": 0.1}, "no use for drop_path"),
    "patch_drop": ({"patch_drop": 0.5}, {"patch_drop": 0.5}, "no use for patch_drop"),
    "wrong rate": ({"drop_path": 1.0}, "drop_path must be", "no use for drop_path"),
    "remat": ({"remat": True}, {"remat": True}, "no use for remat"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for family, config in CONFIGS.items():
        model = model_of(config, name="mine")
        model.get_layer("head").kernel.assign(np.ones(model.get_layer("head").kernel.shape))
        for ending in ENDINGS:
            save_model(model, folder / f"{family}{ending}")
    return folder


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("family", CONFIGS)
def test_every_source_and_option(family, ending, option, files):
    arguments, *outcomes = OPTIONS[option]
    outcome, source = outcomes[family == "bit"], files / f"{family}{ending}"
    if isinstance(outcome, str):
        with pytest.raises((ValueError, TypeError), match=outcome):
            keras_vit.load(source, **arguments)
        return
    model = keras_vit.load(source, **arguments)
    config = CONFIGS[family]
    if ending == ".npz" and family == "bit":  # files of a BiT say no size
        config = config.replace(image_size=(224, 224))
    assert model.config == config.replace(**outcome)
    if model.config.classes:
        is_new = model.config.classes != 3
        assert np.all(keras.ops.convert_to_numpy(model.get_layer("head").kernel) == (0 if is_new else 1))


@pytest.mark.parametrize("ending", ENDINGS)
def test_name_and_dtype(ending, files):
    model = keras_vit.load(files / f"vit{ending}", name="other", dtype="mixed_bfloat16")
    assert model.name == "other" and model.get_layer("block_0").compute_dtype == "bfloat16"
    with pytest.raises(ValueError, match="nonsense"):
        keras_vit.load(files / f"vit{ending}", dtype="nonsense")


def test_grid_size(files, tmp_path):
    assert keras_vit.load(files / "vit.npz", grid_size=(2, 2)).config == VIT
    with pytest.raises(ValueError, match="grid_size must have 4 patches"):
        keras_vit.load(files / "vit.npz", grid_size=(3, 2))
    for ending in (".keras", ".weights.h5"):
        with pytest.raises(ValueError, match="leave grid_size=.* out"):
            keras_vit.load(files / f"vit{ending}", grid_size=(2, 2))
    with pytest.raises(ValueError, match="no position embeddings"):
        keras_vit.load(files / "bit.npz", grid_size=(2, 2))


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_what_keras_files_say_stays(ending, tmp_path):
    config = VIT.replace(
        classifier_activation="sigmoid", dropout=0.1, remat=True, include_preprocessing=True, class_names=NAMES
    )
    model = keras_vit.VisionTransformer(config, name="mine", dtype="mixed_bfloat16")
    model.get_layer("block_0").trainable = False
    path = tmp_path / f"model{ending}"
    save_model(model, path)
    for options in ({}, {"image_size": 32}, {"dropout": 0.0}):
        loaded = keras_vit.load(path, **options)
        assert loaded.config == config.replace(**options)
        assert loaded.name == "mine" and loaded.get_layer("head").dtype_policy.name == "float32"
        assert loaded.get_layer("block_0").trainable is False and loaded.get_layer("head").trainable is True
        assert loaded.dtype_policy.name == "mixed_bfloat16"
    plain = keras_vit.load(path, include_preprocessing=False, remat=False, classifier_activation="linear")
    assert plain.config == config.replace(include_preprocessing=False, remat=False, classifier_activation=None)


def test_a_source_without_a_head(tmp_path):
    config = VIT.replace(classes=None, representation_size=None, pooling="none")
    model = keras_vit.VisionTransformer(config)
    for ending in ENDINGS:
        path = tmp_path / f"model{ending}"
        save_model(model, path)
        with pytest.raises(ValueError, match="softmax' needs a head, but"):
            keras_vit.load(path, classifier_activation="softmax")
        with pytest.raises(ValueError, match="class_names must name each of the 0 classes"):
            keras_vit.load(path, class_names=NAMES)
        new = keras_vit.load(path, classes=2, pooling="token", classifier_activation="softmax")
        assert new.output_shape == (None, 2)
    for ending in (".keras", ".weights.h5"):
        with pytest.raises(ValueError, match="no pooling"):
            keras_vit.load(tmp_path / f"model{ending}", classes=2)


@pytest.mark.parametrize("source", ["ViT-Ti/16", "vit_ti16", "https://example.org/any.npz", "imagenet21k/ViT-B_16"])
def test_names_and_addresses_go_the_way_of_files(source, files, monkeypatch):
    asked = []
    for module in ("zoo", "checkpoints.download"):
        find = f"keras_vit.{module}.find_checkpoint"
        monkeypatch.setattr(find, lambda name: asked.append(name) or files / "vit.npz")
    model = keras_vit.load(source, classes=5, image_size=32, dtype="mixed_bfloat16", name="other", dropout=0.1)
    assert model.config == VIT.replace(classes=5, image_size=32, dropout=0.1, representation_size=None)
    assert model.name == "other" and model.dtype_policy.name == "mixed_bfloat16"
    is_variant = source[0] in "Vv"
    assert ("augreg/Ti_16" in asked[0] and "imagenet2012" in asked[0]) if is_variant else asked == [source]


def test_a_variant_without_a_recommended_checkpoint():
    with pytest.raises(ValueError, match="No checkpoint of 'ViT-mu/16' is published|No recommended"):
        keras_vit.load("ViT-mu/16")


def test_glyphs():
    model = keras_vit.load("glyphs")
    assert model.config.classes == 164 and model.config.classifier_activation is None


def test_a_file_comes_before_a_variant(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "B").mkdir()
    (tmp_path / "B" / "16").write_bytes((files / "vit.npz").read_bytes())
    assert keras_vit.load("B/16").config == VIT


@pytest.mark.parametrize("ending", ENDINGS)
def test_paths_in_the_home_folder(ending, files, monkeypatch):
    monkeypatch.setenv("HOME", str(files))
    assert keras_vit.load(f"~/vit{ending}").config == VIT


def test_what_is_no_source(files, tmp_path):
    for ending in ENDINGS:
        with pytest.raises(FileNotFoundError):
            keras_vit.load(tmp_path / f"missing{ending}")
    for wrong in (None, 3, ["glyphs"], b"glyphs"):
        with pytest.raises(TypeError, match="source must be a name, an address or a path"):
            keras_vit.load(wrong)
    with pytest.raises(TypeError, match=r"model already: model\.with_config"):
        keras_vit.load(keras_vit.load(files / "vit.keras"))
    with pytest.raises(TypeError):
        keras_vit.load(files / "vit.keras", patch_size=4)
    for address in ("https://example.org/a.keras", "gs://bucket/a.weights.h5"):
        with pytest.raises(ValueError, match="may run code: if you trust it"):
            keras_vit.load(address)
    with pytest.raises(ValueError, match="no (variant|checkpoint|name)|There is no"):
        keras_vit.load("ViT-B/17")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="another kind of model"):
        keras_vit.load(tmp_path / "other.keras")


def test_unknown_options_are_answered_with_the_nearest(files):
    assert keras_vit.from_checkpoint is keras_vit.load
    for function in (lambda **options: keras_vit.load(files / "vit.npz", **options), keras_vit.ViT_Ti16):
        with pytest.raises(TypeError, match="(load|ViT_Ti16) has no argument image_sise=32. Did you mean 'image_size'"):
            function(image_sise=32)


def test_weights_arrive(files):
    first, *others = (values_of(keras_vit.load(files / f"vit{ending}")) for ending in ENDINGS)
    for path, value in first.items():
        for other in others:
            np.testing.assert_array_equal(value, other[path], err_msg=path)
