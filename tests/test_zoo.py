"""Models by name: every argument of `create_model`, every factory, every refusal."""

import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import find_variant, weights_by_path
from keras_vit.preprocessing import preprocess_input, resize_images
from keras_vit.text import ImageText
from tests import small_models as small
from tests.compute import forward
from tests.small_models import randomized
from tests.tolerances import SAME_FUNCTION

# What new models hold, and pixels in the graph, on each backend: test_threads.py and models/test_families.py.
pytestmark = pytest.mark.once

FACTORIES = {name.replace("/", "").replace("-", "_").replace("+", "_"): name for name in (
    "ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/8", "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14",
    "R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32",
)}  # fmt: skip
# One block of 32 numbers per token: the smallest variant, for everything that does not hang on the size.
TINY = "ViT-mu/16"


def create(variant=TINY, image_size=32, **options):
    """Without random values, which cost JAX seconds."""
    with keras_vit.layers.skip_initialization():
        return keras_vit.create_model(variant, image_size=image_size, **options)


@pytest.fixture(scope="module")
def tiny():
    return randomized(create())


@pytest.fixture
def images():
    return np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3)).astype("f4")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("ViT-B/17", ValueError, "no variant 'ViT-B/17'.*Did you mean .*ViT-B/16.*list_models"),
        ("ViT-X/32", ValueError, "Did you mean .*ViT-L/32.*list_models"),
        ("huge14", ValueError, "Did you mean .*ViT-H/14"),
        ("R50+B", ValueError, "Did you mean .*R50"),
        ("", ValueError, "no variant ''.*list_models"),
        (16, TypeError, "variant must be a string such as 'ViT-B/16', but 16"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(wrong, error, words):
    with pytest.raises(error, match=words):
        keras_vit.create_model(wrong)


TIMM = {
    "vit_base_patch16_224": ("ViT-B/16", "hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
    "vit_small_patch14_dinov2": ("DINOv2-S/14", "hf://timm/vit_small_patch14_dinov2.lvd142m"),
    "VIT-Base-Patch16-224": ("ViT-B/16", "hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
    "timm/vit_base_patch16_224.mae": ("MAE-B/16", "hf://timm/vit_base_patch16_224.mae"),
    "google/siglip2-base-patch16-224": ("SigLIP2-B/16", "hf://google/siglip2-base-patch16-224"),
}


@pytest.mark.parametrize("name", TIMM)
def test_names_of_timm_and_hugging_face(name):
    variant, first = TIMM[name]
    with pytest.raises(ValueError, match=f"There is no checkpoint or model '{name}'. Did you mean '{first}'"):
        keras_vit.load(name)
    words = rf"There is no variant '{name}'. Did you mean '{variant}', or for its weights keras_vit.load\('{first}'\)\?"
    with pytest.raises(ValueError, match=words):
        keras_vit.create_model(name)


def test_list_models_and_their_spellings():
    for name in ("vit_b16", "B/16", "VIT B 16", "b16", "vit-b-16"):
        assert find_variant(name) == "ViT-B/16"
    names = [row["name"] for row in keras_vit.list_models()]
    assert set(FACTORIES.values()) <= set(names) and names[0] == "ViT-Ti/16" and len(names) == len(set(names))
    for name in names:
        for spelling in (name, name.replace("/", "_"), name.replace("-", "").replace("/", "")):
            assert find_variant(spelling) == name


def test_factories(monkeypatch):
    """Each passes on what it is given. (Building all would take gigabytes; test_counts.py knows what they are.)"""
    assert {name for name in keras_vit.__all__ if "ViT_" in name} == set(FACTORIES)
    wanted, seen = list(inspect.signature(keras_vit.create_model).parameters.values())[1:], []
    monkeypatch.setattr("keras_vit.zoo.create_model", lambda *args, **kwargs: seen.append((args, kwargs)))
    for name, variant in FACTORIES.items():
        factory = getattr(keras_vit, name)
        assert factory.__name__ == factory.__qualname__ == name
        assert list(inspect.signature(factory).parameters.values()) == wanted
        assert variant in factory.__doc__ and "`create_model`" in factory.__doc__
        assert all(f"    {option}: " in factory.__doc__ for option in keras_vit.CreateOptions.__annotations__)
        assert f">>> model = keras_vit.{name}(" in factory.__doc__
        factory(classes=3, dtype="mixed_bfloat16")
        assert seen.pop() == ((variant,), {"classes": 3, "dtype": "mixed_bfloat16"})


def test_a_factory_makes_its_variant():
    with keras_vit.layers.skip_initialization():
        model = keras_vit.ViT_Ti16(image_size=64, classes=7)
    assert isinstance(model, keras_vit.VisionTransformer) and model.name == "vit_ti_16"
    config = model.config
    assert (config.width, config.depth, config.heads, config.mlp_width) == (192, 12, 3, 768)
    assert config.patch_size == (16, 16) and config.image_size == (64, 64)
    assert model.input_shape == (None, 64, 64, 3) and model.output_shape == (None, 7)
    with pytest.raises(TypeError):
        keras_vit.ViT_Ti16("imagenet")  # everything goes by keyword: the order differs between packages
    with pytest.raises(TypeError, match="ViT_Ti16 has no argument input_shape=.*Did you mean 'image_size'"):
        keras_vit.ViT_Ti16(input_shape=(64, 64, 3))


def test_defaults():
    model = create()
    assert model.output_shape == (None, 1000)
    assert model.config.classifier_activation == "softmax" and model.layers[-1].name == "predictions"
    assert model.config.interpolation == "official" and model.config.gelu == "tanh"
    assert model.config.layer_norm_epsilon == 1e-6


@pytest.mark.parametrize("names", [None, ["one", "two"]])
def test_the_size_where_none_is_given(names):
    """224 pixels for a Vision Transformer; a BiT has no size of its own. Neither depends on names of classes."""
    assert create(image_size=None, class_names=names).input_shape == (None, 224, 224, 3)
    assert create("BiT-R50x1", image_size=None, class_names=names).input_shape == (None, None, None, 3)


@pytest.mark.parametrize(
    ("options", "fields", "shape"),
    [
        ({"classes": 7}, {"classes": 7}, (7,)),
        ({"image_size": np.int32(48)}, {"image_size": (48, 48)}, (1000,)),
        ({"image_size": "dynamic"}, {"dynamic": True}, (1000,)),
        ({"include_top": False}, {"classes": None, "pooling": "none"}, (4, 32)),
        ({"include_top": False, "pooling": "token", "class_token": True}, {"pooling": "token"}, (32,)),
        ({"class_token": True}, {"class_token": True, "pooling": "token"}, (1000,)),
        ({"class_token": True, "pooling": "avg"}, {"class_token": True, "pooling": "avg"}, (1000,)),
        ({"pooling": "none"}, {"pooling": "none"}, (4, 1000)),
        ({"representation_size": 24}, {"representation_size": 24}, (1000,)),
        (
            {"dropout": 0.1, "attention_dropout": 0.2, "drop_path": np.float32(0.25), "patch_drop": 0.5, "remat": True},
            {"dropout": 0.1, "attention_dropout": 0.2, "drop_path": 0.25, "patch_drop": 0.5, "remat": True},
            (1000,),
        ),
    ],
)
def test_arguments(options, fields, shape):
    model = create(**{"image_size": 32, **options})
    assert {name: getattr(model.config, name) for name in fields} == fields
    assert model.output_shape == (None, *shape)
    # Plain data, as files need it.
    assert all(type(v) in (int, float, bool, str, list, type(None)) for v in model.config.to_dict().values())


def test_stochastic_depth_grows_with_depth():
    with keras_vit.layers.skip_initialization():
        model = keras_vit.ViT_Ti16(image_size=32, drop_path=0.11, dropout=0.2, attention_dropout=0.3, remat=True)
    blocks = [model.get_layer(f"block_{i}") for i in range(12)]
    np.testing.assert_allclose([block.drop_path for block in blocks], np.arange(12) / 100, atol=1e-12)
    for block in blocks:
        assert (block.dropout, block.attention.dropout, block.mlp.dropout, block.remat) == (0.2, 0.3, 0.2, True)
    assert model.get_layer("position_embedding").dropout == 0.2


@pytest.mark.parametrize("variant", ["PE-Core-T/16", "EVA-02-Ti/14"])
@pytest.mark.parametrize("class_token", [True, False])
def test_a_class_token_leaves_other_poolings_as_they_are(variant, class_token):
    config = create(variant, image_size=28 if variant.endswith("14") else 32, class_token=class_token).config
    assert (config.class_token, config.pooling) == (class_token, "map" if "PE" in variant else "avg")


def test_official_dropout():
    for variant, rate in {"ViT-B/16": 0.0, "ViT-L/16": 0.1, "ViT-L/32": 0.0, "ViT-H/14": 0.1}.items():
        config = keras_vit.models.variant_config(variant)
        assert (config.dropout, config.attention_dropout, config.drop_path) == (rate, 0.0, 0.0)


def test_new_models_are_random_and_their_heads_are_zero():
    model = keras_vit.create_model(TINY, image_size=32, classes=5, class_token=True)
    weights = {path: keras.ops.convert_to_numpy(w) for path, w in weights_by_path(model).items()}
    zero = {path for path, values in weights.items() if not values.any()}
    assert {"head/kernel", "head/bias", "class_token/token", "embedding/bias"} <= zero
    for path in ("embedding/kernel", "block_0/attention/query/kernel", "block_0/mlp/fc2/kernel"):
        assert 0.01 < weights[path].std() < 0.5, path
    # The scales of the original: N(0, 0.02) for positions, N(0, 1e-6) for the MLP's biases.
    assert 0.01 < weights["position_embedding/table"].std() < 0.03
    assert 1e-7 < weights["block_0/mlp/fc1/bias"].std() < 3e-6
    # Another model is another one.
    other = weights_by_path(keras_vit.create_model(TINY, image_size=32, classes=5, class_token=True))
    assert np.abs(keras.ops.convert_to_numpy(other["embedding/kernel"]) - weights["embedding/kernel"]).max() > 0.01


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"classes": 0}, ValueError, "classes must be a whole number of at least 1.*include_top=False"),
        ({"weights": "imagenet"}, ValueError, "weights='imagenet' .*pass pretrained=True"),
        ({"image_size": 230}, ValueError, "patch size: height 230 .* of 16.*nearest that fit are 224 or 240"),
        ({"image_size": "any"}, TypeError, "image_size must be an integer or a pair .*'any'"),
        ({"pooling": "token"}, ValueError, "pooling='token' needs class_token=True"),
        ({"classifier_activation": "softmaxx"}, ValueError, "softmaxx"),
        ({"classifier_activation": len}, TypeError, "classifier_activation must be a string, but"),
        ({"pretrained": True, "weights": "x.npz"}, ValueError, "pretrained=True .* weights='x.npz'"),
        ({"weights": "absent/B_16.npz"}, FileNotFoundError, "absent/B_16.npz"),
        ({"weights": "https://example.org/a.weights.h5"}, ValueError, "can run code. If you trust"),
        ({"dtype": "float31"}, ValueError, "float31"),
        ({"representation_size": 24, "include_top": False}, ValueError, "representation_size=24 .* needs include_top"),
    ],
)
def test_arguments_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        create(**options)


def test_channels_first_is_refused():
    keras.config.set_image_data_format("channels_first")
    with pytest.raises(ValueError, match="channels_first.*set_image_data_format.'channels_last'"):
        create()


@pytest.fixture(scope="module")
def checkpoint(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("zoo") / "mu.npz"
    keras_vit.to_checkpoint(tiny, path, layout="vit_jax")
    return path


def test_weights_from_a_checkpoint(tiny, checkpoint):
    model = keras_vit.create_model(TINY, weights=checkpoint)
    assert model.config == tiny.config
    for got, wanted in zip(model.get_weights(), tiny.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    model = keras_vit.create_model(TINY, weights=str(checkpoint), image_size=64, classes=3, dropout=0.1, name="mine")
    assert (model.config.image_size, model.config.classes, model.config.dropout) == ((64, 64), 3, 0.1)
    assert model.name == "mine" and model.output_shape == (None, 3)
    model = keras_vit.create_model(TINY, weights=checkpoint, include_top=False, pooling="avg")
    assert model.output_shape == (None, 32)


def test_weights_of_another_variant(checkpoint, golden):
    with pytest.raises(ValueError, match=r"mu.npz holds ViT-mu/16, but ViT-B/16 was asked for.*keras_vit.load\(path\)"):
        keras_vit.ViT_B16(weights=checkpoint)
    with pytest.raises(ValueError, match="holds a model that is not a known variant, but ViT-B/16 was asked for"):
        keras_vit.ViT_B16(weights=golden("mini_token").path)


@pytest.mark.parametrize(("argument", "value"), [("class_token", True), ("representation_size", 24)])
def test_arguments_that_the_file_contradicts(checkpoint, argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value}.*mu.npz"):
        keras_vit.create_model(TINY, weights=checkpoint, **{argument: value})
    assert keras_vit.create_model(TINY, weights=checkpoint, class_token=False).config.class_token is False


def test_preprocess_of_a_model(tiny):
    """It resizes and scales; where that is in the graph, it only resizes."""
    pixels = np.random.default_rng(2).integers(0, 256, (2, 50, 40, 3), dtype=np.uint8)
    np.testing.assert_array_equal(tiny.preprocess(pixels), preprocess_input(resize_images(pixels, (32, 32))))
    np.testing.assert_array_equal(tiny.preprocess(pixels[0]), tiny.preprocess(pixels)[:1])
    assert tiny.with_image_size((16, 48)).preprocess(pixels).shape == (2, 16, 48, 3)
    inside = create(include_preprocessing=True)
    np.testing.assert_array_equal(inside.preprocess(pixels), resize_images(pixels, (32, 32)))
    for model in (tiny, inside):
        for values, message in ((500, "500"), (np.nan, "NaN")):
            with pytest.raises(ValueError, match=message):
                model.preprocess(np.full((4, 4, 3), values))


def test_preprocessing_in_the_graph_loses_no_bit_to_mixed_precision():
    """0..255 is scaled in float32, whatever the rest computes in: float16 would lose a bit of every pixel."""
    model = create(include_preprocessing=True, dtype="mixed_float16")
    pixels = np.arange(0, 256, 1 / 12, dtype="f4").reshape(1, 32, 32, 3)
    scaled = keras.Model(model.input, model.get_layer("preprocessing").output)(pixels)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(scaled), pixels / 127.5 - 1, rtol=0, atol=3e-7)


def test_input_tensor(tiny, images):
    tensor = keras.Input((32, 32, 3), name="pictures")
    model = create(input_tensor=tensor)
    assert model.input is tensor
    model.set_weights(tiny.get_weights())
    np.testing.assert_array_equal(forward(model, images), forward(tiny, images))
    features = keras_vit.feature_extractor(model, ["encoded"])
    assert features.output["encoded"].shape == (None, 4, 32)


def test_input_tensor_that_is_none(tiny, images):
    tensor = keras.Input((32, 32, 3))
    with pytest.raises(ValueError, match=r"input_tensor must be a tensor from keras.Input\(\).*call it .*: model\(x\)"):
        create(input_tensor=keras.layers.Rescaling(2.0)(tensor))
    with pytest.raises(ValueError, match=r"input_tensor must be a tensor from keras.Input\(\).*ndarray"):
        create(input_tensor=images)
    with pytest.raises(ValueError, match=r"input_tensor must have the shape \(batch, 32 x 32 x 3\), but .*48"):
        create(input_tensor=keras.Input((48, 32, 3)))
    # What the message advises:
    outer = keras.Model(tensor, tiny(keras.layers.Rescaling(0.5)(tensor)))
    np.testing.assert_allclose(forward(outer, images * 2), forward(tiny, images), rtol=0, atol=SAME_FUNCTION)


def test_a_config_is_needed():
    with pytest.raises(TypeError, match=r"config must be a ViTConfig, but str was given.*keras_vit.ViT_B16\(\)"):
        keras_vit.VisionTransformer("ViT-B/16")


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


@pytest.mark.parametrize(
    "name", ["DPTConfig", "DetectorConfig", "EoMTConfig", "LinearDepthConfig", "LinearSegmenterConfig"]
)
def test_configs_that_have_moved(name):
    with pytest.warns(DeprecationWarning, match=rf"keras_vit.{name} is deprecated. Use keras_vit.models.{name}"):
        assert getattr(keras_vit, name) is getattr(keras_vit.models, name)
    assert name not in keras_vit.__all__
