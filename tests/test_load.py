"""One way in: every kind of source with every option, which changes the model or is refused; none is left out."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import BiTConfig
from keras_vit.checkpoints import save_model
from keras_vit.models import DPTConfig, EoMTConfig, LinearSegmenterConfig
from tests.small_models import model_of, small_bit_config, small_vit_config

# Official models have a filter that timm and transformers have no word for.
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:The layout .* cannot store")]

NAMES = ("a", "b", "c")
VIT = small_vit_config(image_size=16, patch_size=8, representation_size=6)
BIT = small_bit_config(dynamic=True)
CONFIGS = {"vit": VIT, "bit": BIT}
ENDINGS = (".npz", ".keras", ".weights.h5")

FEATURES = {"classes": None, "representation_size": None, "pooling": "none"}, {"classes": None, "pooling": "none"}
# What an option does to the config of a ViT and of a BiT; a text is that of the error.
OPTIONS = {
    "nothing": ({}, {}, {}),
    "image_size": ({"image_size": (24, 16)}, {"image_size": (24, 16)}, {"image_size": (24, 16), "dynamic": False}),
    "any size": ({"image_size": "dynamic"}, {"dynamic": True}, {}),
    "wrong size": ({"image_size": 17}, "not a multiple", {"image_size": (17, 17), "dynamic": False}),
    "classes": ({"classes": 5}, {"classes": 5, "representation_size": None}, {"classes": 5}),
    "the same classes": ({"classes": 3}, {}, {}),
    "no classes": ({"classes": 0}, "classes must be a whole number", "classes must be a whole number"),
    "class_names": 3 * ({"class_names": NAMES},),
    "other names": ({"class_names": ("a",)}, "each of the 3 classes, but has 1", "each of the 3 classes, but has 1"),
    "features": ({"include_top": False}, *FEATURES),
    "pooled features": ({"include_top": False, "pooling": "avg"}, FEATURES[0] | {"pooling": "avg"}, {"classes": None}),
    # Which have no effect, as in keras.applications.
    "features with classes": ({"include_top": False, "classes": 5}, *FEATURES),
    "features with names": ({"include_top": False, "class_names": NAMES}, "needs include_top", "needs include_top"),
    "features, softmax": ({"include_top": False, "classifier_activation": "softmax"}, *2 * ["needs include_top"]),
    "pre_logits": ({"pre_logits": True}, {}, "does not use pre_logits"),
    "pre_logits with a new head": ({"pre_logits": True, "classes": 5}, {"classes": 5}, "does not use pre_logits"),
    "without pre_logits": ({"pre_logits": False}, "needs a new head", {}),
    "pooling": ({"pooling": "avg"}, {"pooling": "avg"}, {}),
    "pooling with weights": ({"pooling": "map"}, "pooling", "pooling must be one of"),
    "softmax": 3 * ({"classifier_activation": "softmax"},),
    "logits": ({"classifier_activation": "linear"}, {}, {}),
    "pixels": 3 * ({"include_preprocessing": True},),
    "interpolation": ({"interpolation": "bicubic"}, {"interpolation": "bicubic"}, "does not use interpolation"),
    "dropout": ({"dropout": 0.1}, {"dropout": 0.1}, "does not use dropout"),
    "no dropout": ({"dropout": 0.0}, {}, {}),
    "attention_dropout": ({"attention_dropout": 0.1}, {"attention_dropout": 0.1}, "does not use attention_dropout"),
    "drop_path": ({"drop_path": 0.1}, {"drop_path": 0.1}, "does not use drop_path"),
    "patch_drop": ({"patch_drop": 0.5}, {"patch_drop": 0.5}, "does not use patch_drop"),
    "wrong rate": ({"drop_path": 1.0}, "drop_path must be", "does not use drop_path"),
    "remat": ({"remat": True}, {"remat": True}, "does not use remat"),
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


# A `.weights.h5` goes the way of a `.keras` once it is read.
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("family", "ending"), [("vit", ".npz"), ("vit", ".keras"), ("bit", ".npz")])
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


def test_grid_size(files):
    assert keras_vit.load(files / "vit.npz", grid_size=(2, 2)).config == VIT
    with pytest.raises(ValueError, match="grid_size must have 4 patches"):
        keras_vit.load(files / "vit.npz", grid_size=(3, 2))


def test_a_source_without_a_head(tmp_path):
    config = VIT.replace(classes=None, representation_size=None, pooling="none")
    model = keras_vit.VisionTransformer(config)
    for ending in ENDINGS:
        path = tmp_path / f"model{ending}"
        save_model(model, path)
        with pytest.raises(ValueError, match="softmax' needs a head, but"):
            keras_vit.load(path, classifier_activation="softmax")
        with pytest.raises(ValueError, match="class_names must be None without classes"):
            keras_vit.load(path, class_names=NAMES)
        new = keras_vit.load(path, classes=2, pooling="token", classifier_activation="softmax")
        assert new.output_shape == (None, 2)
    for ending in (".keras", ".weights.h5"):
        with pytest.raises(ValueError, match="no pooling"):
            keras_vit.load(tmp_path / f"model{ending}", classes=2)


@pytest.mark.parametrize("source", ["ViT-Ti/16", "vit_ti16", "https://example.org/any.npz", "imagenet21k/ViT-B_16"])
def test_names_and_addresses_go_the_way_of_files(source, files, monkeypatch):
    asked = []
    for module in ("checkpoints", "checkpoints.download"):
        find = f"keras_vit.{module}.find_checkpoint"
        monkeypatch.setattr(find, lambda name: asked.append(name) or files / "vit.npz")
    model = keras_vit.load(source, classes=5, image_size=32, dtype="mixed_bfloat16", name="other", dropout=0.1)
    assert model.config == VIT.replace(classes=5, image_size=32, dropout=0.1, representation_size=None)
    assert model.name == "other" and model.dtype_policy.name == "mixed_bfloat16"
    is_variant = source[0] in "Vv"
    assert ("augreg/Ti_16" in asked[0] and "imagenet2012" in asked[0]) if is_variant else asked == [source]


def test_a_file_comes_before_a_variant(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "B").mkdir()
    (tmp_path / "B" / "16").write_bytes((files / "vit.npz").read_bytes())
    assert keras_vit.load("B/16").config == VIT


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        *((f"missing{ending}", FileNotFoundError, "missing") for ending in ENDINGS),
        *(
            (wrong, TypeError, "source must be a name, an address or a path")
            for wrong in (None, 3, ["glyphs"], b"glyphs")
        ),
        *(
            (f"{start}.keras", ValueError, "can run code. If you trust")
            for start in ("https://example.org/a", "gs://b/a")
        ),
        ("ViT-B/17", ValueError, "There is no"),
        ("ViT-mu/16", ValueError, "No checkpoint of 'ViT-mu/16' is published"),
    ],
)
def test_what_is_no_source(source, error, words):
    with pytest.raises(error, match=words):
        keras_vit.load(source)


def test_what_is_no_option(files, tmp_path):
    for options in ({"patch_size": 4}, {"include_top": "no"}, {"pre_logits": 1}):
        with pytest.raises(TypeError, match=[*options][0]):
            keras_vit.load(files / "vit.keras", **options)
    with pytest.raises(TypeError, match=r"use model\.with_config"):
        keras_vit.load(keras_vit.load(files / "vit.keras"))
    with pytest.raises(TypeError, match="pretrained must be True or False"):
        keras_vit.ViT_Ti16(pretrained="imagenet")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]).save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="must hold a model of keras_vit"):
        keras_vit.load(tmp_path / "other.keras")


def test_unknown_options_are_answered_with_the_nearest(files):
    assert keras_vit.from_checkpoint is keras_vit.load
    for function in (lambda **options: keras_vit.load(files / "vit.npz", **options), keras_vit.ViT_Ti16):
        with pytest.raises(TypeError, match="(load|ViT_Ti16) has no argument image_sise=32. Did you mean 'image_size'"):
            function(image_sise=32)


WIDE = small_vit_config(image_size=16, patch_size=8, width=64, heads=1, mlp_width=32, representation_size=5)
BARE = WIDE.replace(representation_size=None)
BACKBONE = BARE.replace(depth=4, classes=None, pooling="none")
HEAD = {"widths": (8, 8, 8, 8), "fusion_width": 8, "head_width": 4}
MODELS = {
    "vit": WIDE,
    "hybrid": WIDE.replace(stem_stages=(1,), stem_width=32, patch_size=2),
    "mixer": BARE.replace(tokens_mlp_width=5, position_embedding="none", class_token=False, pooling="avg"),
    "bit": BiTConfig(image_size=16, stages=(1,), width=32, classes=3),
    "timm": BARE,
    "huggingface": BARE.replace(layer_norm_epsilon=1e-12, gelu="exact"),
    "segmenter": LinearSegmenterConfig(backbone=BACKBONE, classes=3, blocks=(3,), crop_size=16, stride=8),
    "queries": EoMTConfig(backbone=BACKBONE, classes=3, queries=2, query_blocks=1, upscale_blocks=1),
    "depth": DPTConfig(backbone=BACKBONE, blocks=(0, 1, 2, 3), max_depth=1.0, metric=False, **HEAD),
}
IN_KERAS = ("vit", "bit", "segmenter")  # .keras files as well
# A value of each option that no model here has.
VALUES = {
    **{"image_size": 32, "grid_size": (1, 4), "like": "vit_base_patch16_clip_quickgelu_224.openai"},
    "state": "model",
    **{"head": "HEAD", "max_depth": 7.0, "numerics": "official", "classes": 4, "class_names": ["a", "b", "c"]},
    **{"include_top": False, "pre_logits": False, "pooling": "token_avg", "classifier_activation": "sigmoid"},
    **{"include_preprocessing": True, "channels": 1, "interpolation": "bilinear", "dropout": 0.1, "remat": True},
    **{"attention_dropout": 0.1, "patch_drop": 0.1, "drop_path": 0.1, "input_tensor": "INPUT", "name": "another"},
    "dtype": "float64",
}
# Where that is so already, another value or None for none.
OTHERS = {(kind, "numerics"): None for kind in ("vit", "hybrid", "mixer", "bit", "timm")}
OTHERS |= {(kind, "pre_logits"): True for kind in ("mixer", "bit", "bit.keras", "timm", "huggingface")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("sources"), {}
    for kind, config in MODELS.items():
        model = getattr(keras_vit, config.model)(config) if hasattr(config, "backbone") else _model(config)
        layout = kind if kind in ("timm", "huggingface") else None
        found[kind] = folder / (kind if layout else f"{kind}.npz")
        save_model(model, found[kind], layout)
        if kind in IN_KERAS:
            found[f"{kind}.keras"] = folder / f"{kind}.keras"
            save_model(model, found[f"{kind}.keras"])
    return found


def _model(config):
    model = (keras_vit.BiT if isinstance(config, BiTConfig) else keras_vit.VisionTransformer)(config)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    return model


def described(model):
    facts = {"config": model.config.to_dict(), "name": model.name, "dtype": model.dtype_policy.name}
    return json.dumps({**facts, "input": str(model.inputs[0].name), "shape": str(model.output_shape)})


KINDS = [*MODELS, *(f"{kind}.keras" for kind in IN_KERAS)]


def test_every_option_has_a_value():
    assert set(VALUES) == {*keras_vit.LoadOptions.__annotations__}


@pytest.fixture(scope="module")
def plain(sources):
    return {kind: keras_vit.load(source) for kind, source in sources.items()}


# What a ViT and a BiT make of these is said above.
EXACT = {(kind, o) for kind in ("vit", "vit.keras", "bit") for row in OPTIONS.values() for o in row[0]}
CASES = [(k, o) for k in KINDS for o in VALUES if OTHERS.get((k, o), "") is not None and (k, o) not in EXACT]


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_it_changes_the_model_or_is_refused(sources, plain, kind, option):
    value = OTHERS.get((kind, option), VALUES[option])
    if option == "head":
        value = sources["segmenter"]
    if option == "input_tensor":
        value = keras.Input((*plain[kind].config.image_size, 3), name="mine")
    try:
        model = keras_vit.load(sources[kind], **{option: value})
    except (ValueError, TypeError) as error:
        assert option in str(error), f"{kind}, {option}: the error does not name it: {error}"
        return
    if option == "input_tensor":
        assert model.inputs[0] is value
    else:
        assert described(model) != described(plain[kind]), f"{kind}: {option}={value!r} is dropped in silence"


@pytest.mark.parametrize("kind", ["vit", "vit.keras", "timm"])
def test_poolings_that_the_weights_do_not_fit(sources, kind):
    for pooling, options in (("map", {}), ("map", {"include_top": False}), ("map", {"classes": 5}), ("token_avg", {})):
        with pytest.raises(ValueError, match=f"pooling='{pooling}'"):
            keras_vit.load(sources[kind], pooling=pooling, **options)
    assert keras_vit.load(sources[kind], pooling="token_avg", classes=5).output_shape == (None, 5)


def test_a_path_whose_name_is_a_variants_is_a_path(tmp_path, monkeypatch):
    """What is written to the home folder is read there, and what is not there is missing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = model_of(VIT.replace(representation_size=None))
    keras_vit.to_checkpoint(model, "~/vit_b16", layout="timm")
    save_model(model, "~/vit_s16.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vit_b16", "vit_s16.npz"]
    assert keras_vit.load("~/vit_b16").config.width == VIT.width
    assert keras_vit.inspect_checkpoint("~/vit_s16.npz").config.width == VIT.width
    for path in ("~/vit_l16", "./vit_b32"):
        with pytest.raises(FileNotFoundError):
            keras_vit.load(path)


def test_what_a_file_of_keras_holds_stays(tmp_path):
    made = keras_vit.create_model("ViT-mu/16", image_size=16, include_preprocessing=True, classes=2)
    save_model(made, tmp_path / "model.keras")
    assert keras_vit.create_model("ViT-mu/16", weights=tmp_path / "model.keras").config.include_preprocessing
    fast = model_of(VIT.replace(pooling="token", representation_size=None)).with_config(class_token_only=True)
    save_model(fast, tmp_path / "fast.keras")
    features = keras_vit.load(tmp_path / "fast.keras", include_top=False)
    assert features.config.pooling == "none" and not features.config.class_token_only
