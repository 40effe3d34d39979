"""Models of the ViT families: the fields of the config that the official models leave alone, and what comes of them."""

import keras
import numpy as np
import pytest

import keras_vit
import keras_vit.preprocessing
from keras_vit import layers
from keras_vit.models import BEFORE_BLOCKS, weights_by_path
from keras_vit.training.pretraining import masked_patch_model
from tests.compute import forward, gradients
from tests.layers import in_numpy

VIT = keras_vit.ViTConfig(
    image_size=(16, 24),
    patch_size=8,
    width=16,
    depth=2,
    heads=2,
    mlp_width=12,
    classes=3,
    gelu="exact",
    layer_norm_epsilon=1e-3,
    interpolation="bicubic",
)
DINOV2 = VIT.replace(layer_scale=0.3, register_tokens=2, position_embedding="learned_without_registers", classes=None)
DINOV3 = DINOV2.replace(position_embedding="none", rotary_embedding="dinov3", attention_bias="no_key")
FAMILIES = {
    "deit": VIT.replace(distillation_token=True, distillation_head=True),
    "deit3": VIT.replace(layer_scale=0.3, position_embedding="learned_patches"),
    "dinov2": DINOV2,
    "dinov2_giant": DINOV2.replace(mlp="swiglu", pooling="token_avg", classes=3, interpolation="bicubic_hf"),
    "dinov3": DINOV3,
    "clip": VIT.replace(gelu="quick", patch_bias=False, pre_norm=True, projection=6, classes=None),
    "siglip": VIT.replace(class_token=False, pooling="map", gelu="tanh", classes=None),
    "registers_in_map": VIT.replace(class_token=False, register_tokens=2, pooling="map"),
    "patches_in_map": VIT.replace(register_tokens=2, pooling="map", map_prefix=False),
    "mae": VIT.replace(pooling="avg", final_norm="pooled"),
    "ijepa": VIT.replace(class_token=False, pooling="avg", classes=None, interpolation="bicubic_offset"),
    "beit3": VIT.replace(mlp="plain_norm", attention_norm=True, pooling="avg", final_norm="pooled"),
    "eva02": VIT.replace(
        mlp="swiglu_norm",
        rotary_embedding="eva02",
        rotary_grid=5,
        attention_bias="no_key",
        attention_norm=True,
        pooling="avg",
        final_norm="pooled",
    ),
    "none_of_it": VIT.replace(final_norm="none", position_embedding="none", attention_bias="none", register_tokens=1),
}
SOME = ("deit", "dinov3", "eva02")  # together they have every layer
every_family = pytest.mark.parametrize("family", FAMILIES)
some_families = pytest.mark.parametrize("family", SOME)
# All of them once, and on each backend those that have every layer.
every_family_once = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=[] if family in SOME else pytest.mark.once) for family in FAMILIES]
)


def make(config, seed=0, **options):
    """A model none of whose weights is zero or one; periods stay what they are."""
    with layers.skip_initialization():
        model = keras_vit.VisionTransformer(config, **options)
    rng = np.random.default_rng(seed)
    for path, weight in weights_by_path(model).items():
        if not path.endswith("/periods"):
            weight.assign(rng.normal(0.1, 0.3, weight.shape))
    return model


def images(size=(16, 24), batch=2):
    return np.random.default_rng(1).uniform(-1, 1, (batch, *size, 3)).astype("f4")


def answer(config, w, x):
    """The whole model once more, in float64 NumPy."""
    epsilon, (rows, columns) = config.layer_norm_epsilon, config.grid_size
    p, q = config.patch_size
    patches = x.astype("f8").reshape(len(x), rows, p, columns, q, 3).transpose(0, 1, 3, 2, 4, 5)
    kernel = w["embedding/kernel"]
    x = patches.reshape(len(x), rows * columns, -1) @ kernel.reshape(-1, config.width) + w.get("embedding/bias", 0)
    prefix = [
        w[name] for name in ("class_token/token", "distillation_token/token", "register_tokens/tokens") if name in w
    ]
    prefix = np.concatenate([np.zeros((1, 0, config.width)), *prefix], 1)
    x = np.concatenate([np.repeat(prefix, len(x), 0), x], 1)
    if "position_embedding/table" in w:
        table = w["position_embedding/table"][0]
        mine = len(table) - rows * columns
        x[:, :mine] += table[:mine]
        x[:, prefix.shape[1] :] += table[mine:]
    if config.pre_norm:
        x = in_numpy.layer_norm(x, w, "pre_norm", epsilon)

    def turn(y):
        size, kind = config.head_size, config.rotary_embedding
        if kind is None:
            return y
        angles = in_numpy.dinov3_angles(rows, columns, size)
        if kind == "eva02":
            angles = in_numpy.eva02_angles(rows, columns, size, config.rotary_grid)
        return in_numpy.turned(y, np.concatenate([np.zeros((prefix.shape[1], size // 2)), angles]), kind)

    for i in range(config.depth):
        x = in_numpy.block(x, in_numpy.inner(w, f"block_{i}"), config.heads, config.gelu, epsilon, turn)
    if config.final_norm == "tokens":
        x = in_numpy.layer_norm(x, w, "encoder_norm", epsilon)
    mean = x[:, prefix.shape[1] :].mean(1)
    asked = x if config.map_prefix else x[:, prefix.shape[1] :]
    y = {
        "token": lambda: x[:, 0],
        "avg": lambda: mean,
        "token_avg": lambda: np.concatenate([x[:, 0], mean], 1),
        "map": lambda: in_numpy.map_head(asked, in_numpy.inner(w, "pooling"), config.heads, config.gelu, epsilon),
    }[config.pooling]()
    if config.final_norm == "pooled":
        y = in_numpy.layer_norm(y, w, "encoder_norm", epsilon)
    for name in ("projection", "head"):
        y = in_numpy.dense(y, w, name) if f"{name}/kernel" in w else y
    return (y + in_numpy.dense(x[:, 1], w, "head_dist")) / 2 if config.distillation_head else y


def float64(model):
    return {path: keras.ops.convert_to_numpy(w).astype("f8") for path, w in weights_by_path(model).items()}


@every_family
def test_against_numpy(family):
    model = make(FAMILIES[family])
    config = model.config
    names = ["stem", "embedded", "block_0", "block_1", "encoded", "pooled", "pre_logits"]
    names += ["projection"] * bool(config.projection) + ["logits"] * bool(config.classes)
    got = forward(keras_vit.feature_extractor(model, names), images())
    last = got["logits" if config.classes else "projection" if config.projection else "pooled"]
    # float32 through two blocks whose values grow to 30; measured: 1e-5.
    np.testing.assert_allclose(last, answer(config, float64(model), images()), rtol=1e-5, atol=3e-5)
    tokens = (2, config.prefix_tokens + 6, 16)
    assert got["embedded"].shape == got["block_0"].shape == got["encoded"].shape == got["block_1"].shape == tokens
    assert got["pooled"].shape == (2, config.pooled_size)
    assert np.array_equal(got["encoded"], got["block_1"]) == (config.final_norm != "tokens")
    if config.classes:
        head = in_numpy.dense(got["pre_logits"].astype("f8"), float64(model), "head")
        assert (np.abs(head - got["logits"]).max() > 1e-3) == config.distillation_head


@every_family_once
def test_at_another_size(family):
    """A model for any size computes in the graph what one whose tables were resized before would compute."""
    model = make(FAMILIES[family])
    larger, dynamic = model.with_config(image_size=(32, 16)), model.with_config(dynamic=True)
    x = images((32, 16))
    wanted = answer(larger.config, float64(larger), x)
    np.testing.assert_allclose(forward(dynamic, x), wanted, rtol=1e-5, atol=3e-5)
    before, after = float64(model), float64(larger)
    assert before.keys() == after.keys()
    for path, value in before.items():
        if path != "position_embedding/table":
            np.testing.assert_array_equal(after[path], value, err_msg=path)
    if "position_embedding/table" in before:
        prefix = model.config.position_rows - 6
        rows = (slice(None), slice(prefix))
        np.testing.assert_array_equal(after["position_embedding/table"][rows], before["position_embedding/table"][rows])


@every_family_once
def test_files(family, tmp_path):
    config = FAMILIES[family].replace(dropout=0.1, drop_path=0.1, pixel_mean=(0.4, 0.5, 0.6), resize="shortest")
    model = make(config, name="mine", dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.config == config and loaded.get_config() == model.get_config()
    got, wanted = weights_by_path(loaded), weights_by_path(model)
    assert list(got) == list(wanted)
    for path in got:
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (got[path], wanted[path])), err_msg=path)
        assert got[path].trainable == wanted[path].trainable == (not path.endswith("/periods"))
    assert keras.models.clone_model(model).get_config() == model.get_config()


@some_families
def test_mixed_precision(family):
    wanted = forward(make(FAMILIES[family]), images())
    mixed = make(FAMILIES[family], dtype="mixed_bfloat16")
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    if mixed.config.classes or mixed.config.projection:
        assert mixed.output.dtype == "float32"
    if mixed.config.rotary_embedding:
        assert mixed.get_layer("rotary_embedding").output.dtype == "float32"
    error = np.abs(np.asarray(forward(mixed, images()), "f4") - wanted).max() / np.abs(wanted).max()
    assert 1e-5 < error < 5e-2  # 8 bits in two blocks


def square(y):
    return keras.ops.mean(keras.ops.square(keras.ops.cast(y, "float32")))


@some_families
def test_gradients_reach_every_weight_with_and_without_remat(family):
    plain, again = make(FAMILIES[family]), make(FAMILIES[family].replace(remat=True))
    _, grads = gradients(plain, images(), square, training=True)
    _, grads_again = gradients(again, images(), square, training=True)
    paths = {weight.path: path for path, weight in weights_by_path(plain).items()}
    largest = max(np.abs(grad).max() for grad in grads.values())
    for (path, grad), other in zip(grads.items(), grads_again.values(), strict=True):
        # The sums in another order, next to the largest.
        np.testing.assert_allclose(other, grad, rtol=1e-3, atol=1e-6 * largest, err_msg=path)
        # A key's bias adds the same to all scores of a query.
        if not paths[path].endswith("attention/key/bias"):
            assert np.abs(grad).max() > 1e-9 * largest, path


def test_tokens_stand_in_their_order():
    config = DINOV3.replace(distillation_token=True, register_tokens=2)
    model = make(config)
    x = forward(keras_vit.feature_extractor(model, ["embedded"]), images())["embedded"]
    w = float64(model)
    expected = [w["class_token/token"], w["distillation_token/token"], w["register_tokens/tokens"]]
    np.testing.assert_array_equal(x[0, :4], np.concatenate(expected, 1)[0].astype("f4"))
    assert BEFORE_BLOCKS[0] == "tokens"


# What the config refuses


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"mlp": "glu"}, ValueError, "mlp must be one of .*'swiglu'.*'glu'"),
        ({"gelu": "relu"}, ValueError, "gelu must be one of .*'quick'.*'relu'"),
        ({"attention_bias": True}, ValueError, "attention_bias must be one of .*'no_key'.*True"),
        ({"rotary_embedding": "dinov2"}, ValueError, "rotary_embedding must be one of .*'dinov3'.*'dinov2'"),
        ({"final_norm": None}, ValueError, "final_norm must be one of .*'pooled'.*None"),
        ({"position_embedding": "rope"}, ValueError, "position_embedding must be one of .*'none'.*'rope'"),
        ({"interpolation": "cubic"}, ValueError, "interpolation must be one of .*'bicubic_hf'.*'cubic'"),
        ({"register_tokens": -1}, ValueError, "register_tokens must be at least 0, but -1"),
        ({"register_tokens": True}, TypeError, "register_tokens must be an integer, but True"),
        ({"register_tokens": 1.0}, TypeError, "register_tokens must be an integer, but 1.0"),
        ({"layer_scale": True}, TypeError, "layer_scale must be a number or None, but True"),
        ({"layer_scale": "1e-5"}, TypeError, "layer_scale must be a number or None, but '1e-5'"),
        ({"layer_scale": float("nan")}, ValueError, "layer_scale must be finite, but nan"),
        ({"pre_norm": 1}, TypeError, "pre_norm must be True or False, but 1"),
        ({"projection": 0}, ValueError, "projection must be at least 1, but 0"),
        ({"projection": 2.5}, TypeError, "projection must be an integer, but 2.5"),
        (
            {"rotary_embedding": "eva02", "heads": 8},
            ValueError,
            "needs heads of length 4, 8.*width 16 and 8 heads .* 2",
        ),
        ({"rotary_grid": 0}, ValueError, "rotary_grid must be positive"),
        ({"class_token": False, "pooling": "token_avg"}, ValueError, "pooling='token_avg' needs class_token=True"),
        ({"pooling": "token_avg", "final_norm": "pooled"}, ValueError, "'token_avg' gives 2 D"),
        ({"pooling": "token_dist"}, ValueError, "pooling='token_dist' needs distillation_token=True"),
        ({"distillation_token": True, "class_token": False, "pooling": "avg"}, ValueError, "needs class_token=True"),
        ({"distillation_head": True}, ValueError, "distillation_head=True needs distillation_token=True"),
        (
            {"distillation_head": True, "distillation_token": True, "pooling": "avg"},
            ValueError,
            "distillation_head=True needs pooling='token', but 'avg'",
        ),
        ({"pixel_mean": (0.5, 0.5)}, ValueError, r"pixel_mean must be a number or 3, .* but \(0.5, 0.4\)"),
        ({"pixel_mean": "grey"}, TypeError, "pixel_mean must be a number or one for each channel, but 'grey'"),
        ({"pixel_std": (0.5, 0.0, 0.5)}, ValueError, "pixel_std must be a finite number above 0"),
        ({"pixel_std": float("inf")}, ValueError, "pixel_std must be a finite number above 0"),
        ({"resize": "crop"}, ValueError, "resize must be one of .*'shortest'.*'crop'"),
        ({"filter": "hamming"}, ValueError, "filter must be one of .*'lanczos'.*'hamming'"),
        ({"crop_ratio": 0.0}, ValueError, r"crop_ratio must lie in \(0, 1\], but 0.0"),
        ({"crop_ratio": 1.5}, ValueError, r"crop_ratio must lie in \(0, 1\], but 1.5"),
        ({"crop_ratio": "0.9"}, TypeError, "crop_ratio must be a number, but '0.9'"),
    ],
)
@pytest.mark.once
def test_what_makes_no_sense_is_refused(fields, error, message):
    if fields.get("pixel_mean") == (0.5, 0.5):
        fields = {"pixel_mean": (0.5, 0.4)}
    with pytest.raises(error, match=message):
        VIT.replace(**fields)


@pytest.mark.once
def test_equal_numbers_fit_any_number_of_channels():
    assert VIT.pixel_mean == (0.5,) * 3
    grey = VIT.replace(channels=1)
    assert grey.pixel_mean == grey.pixel_std == (0.5,) and grey.replace(channels=4).pixel_mean == (0.5,) * 4
    assert VIT.replace(pixel_std=0.25).pixel_std == (0.25,) * 3
    again = keras_vit.ViTConfig(**VIT.replace(pixel_mean=[0.1, 0.2, 0.3]).to_dict())  # JSON has lists
    assert again.pixel_mean == (0.1, 0.2, 0.3)


# One way to change a model


@pytest.mark.once
def test_a_second_head_comes_and_goes_with_the_first():
    model = make(FAMILIES["deit"])
    fresh = model.with_classes(5)
    assert fresh.config.distillation_head and not np.any(float64(fresh)["head_dist/kernel"])
    assert model.with_classes(3).config == model.config
    headless = model.with_config(classes=None)
    assert not any(path.startswith("head") for path in weights_by_path(headless))
    single = model.with_config(distillation_head=False)
    np.testing.assert_array_equal(float64(single)["head/kernel"], float64(model)["head/kernel"])
    with pytest.raises(ValueError, match="distillation_head=True needs new weights in head_dist"):
        single.with_config(distillation_head=True)


@pytest.mark.once
def test_what_a_change_would_lose_has_to_be_given_up():
    model = make(FAMILIES["dinov2_giant"])
    with pytest.raises(ValueError, match="pooling='token' needs new weights in head.*fresh="):
        model.with_config(pooling="token")
    assert model.with_config(pooling="token", classes=4).output_shape == (None, 4)
    with pytest.raises(ValueError, match="projection=5 needs new weights in head and projection"):
        model.with_config(projection=5)
    assert make(FAMILIES["clip"]).with_config(projection=None).output_shape == (None, 16)
    bare = make(FAMILIES["none_of_it"])
    with pytest.raises(ValueError, match="final_norm='tokens' needs new weights in encoder_norm"):
        bare.with_config(final_norm="tokens")
    for field, value in (
        ("register_tokens", 3),
        ("layer_scale", None),
        ("mlp", "plain"),
        ("rotary_embedding", "eva02"),
        ("distillation_token", True),
    ):
        with pytest.raises(ValueError, match=f"{field} cannot change .*build another model"):
            model.with_config(**{field: value})


def test_stored_periods_stay():
    """Facebook's files hold periods that no formula gives."""
    model = make(FAMILIES["dinov3"])
    model.get_layer("rotary_embedding").periods.assign([1.0, 9.9375])
    other = model.with_config(image_size=32, classes=4)
    np.testing.assert_array_equal(float64(other)["rotary_embedding/periods"], [1.0, 9.9375])


@some_families
def test_adapters_and_training(family):
    """LoRA on what a family has in its blocks, a few steps, and the merged weights in a file."""
    config = FAMILIES[family].replace(classes=3, pooling="avg", final_norm="pooled", distillation_head=False, depth=1)
    model = make(config)
    block = model.get_layer("block_0")
    dense = [block.attention.query, block.mlp.fc2, *([block.mlp.gate] if config.mlp != "plain" else [])]
    for layer in dense:
        layer.enable_lora(2)
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = float64(model)
    losses = [float(model.train_on_batch(images(), np.array([0, 2]))) for _ in range(3)]
    assert np.isfinite(losses).all() and losses[2] < losses[0]
    after = float64(model)
    unchanged = {path for path in after if np.array_equal(after[path], before[path])}
    adapted = {"block_0/attention/query/kernel", "block_0/mlp/fc2/kernel", "block_0/mlp/gate/kernel"} & after.keys()
    assert adapted <= unchanged and ("rotary_embedding/periods" in after) == ("rotary_embedding/periods" in unchanged)


@some_families
def test_masked_patches_go_through_all_of_it(family):
    """The model that predicts corrupted patches takes the same way as the model itself."""
    model = make(FAMILIES[family])
    masked = masked_patch_model(model)
    masked.get_layer("colours").set_weights([np.eye(16, 512), np.zeros(512)])
    keep = np.full((2, 6), -1, "int32")
    tokens = masked.predict({"images": images(), "plan": keep}, verbose=0)[..., :16]
    encoded = forward(keras_vit.feature_extractor(model, ["encoded"]), images())["encoded"]
    w = float64(model)
    if model.config.final_norm == "pooled":
        encoded = in_numpy.layer_norm(encoded.astype("f8"), w, "encoder_norm", model.config.layer_norm_epsilon)
    np.testing.assert_allclose(tokens, encoded[:, model.config.prefix_tokens :], rtol=1e-4, atol=1e-4)


# Variants


@pytest.mark.once
def test_a_variant_is_its_row_and_its_family():
    config = keras_vit.models.variant_config("DINOv2-g/14-reg4", classes=None)
    assert (config.width, config.depth, config.heads, config.mlp_width) == (1536, 40, 24, 4096)
    assert config.grid_size == (37, 37)
    assert (config.mlp, config.register_tokens, config.gelu, config.interpolation) == ("swiglu", 4, "exact", "bicubic")
    assert config.pixel_mean == (0.485, 0.456, 0.406) and config.pipeline.crop_ratio == 0.875
    assert keras_vit.models.variant_of(config) == "DINOv2-g/14-reg4"
    assert keras_vit.models.variant_config("dinov3_splus16").mlp == "swiglu"


@pytest.mark.parametrize("variant", [name for name, row in keras_vit.VARIANTS.items() if row.family != "ViT"])
@pytest.mark.once
def test_every_family_has_its_factories(variant):
    config = keras_vit.models.variant_config(variant)
    assert keras_vit.models.has_layers_of(config, variant)
    assert keras_vit.models.has_layers_of(config, keras_vit.models.variant_of(config))
    factory = getattr(keras_vit, keras_vit.models.factory_name(variant))
    assert factory.__name__ == keras_vit.models.factory_name(variant) and variant in factory.__doc__


@pytest.mark.once
def test_a_factory_makes_its_variant():
    with layers.skip_initialization():
        model = keras_vit.DeiT_Ti16_distilled(image_size=32, classes=5, interpolation="bicubic_hf")
    assert model.config.distillation_head and model.output_shape == (None, 5) and model.name == "deit_ti_16_distilled"
    assert model.config.interpolation == "bicubic_hf" and model.config.pixel_std == (0.229, 0.224, 0.225)
    with layers.skip_initialization():
        features = keras_vit.DeiT_Ti16_distilled(image_size=32, include_top=False)
    assert features.output_shape == (None, 6, 192) and features.config.interpolation == "bicubic"


@pytest.mark.once
def test_todays_variants_are_told_from_their_relatives():
    plain = keras_vit.models.variant_config("ViT-B/16")
    assert keras_vit.models.variant_of(plain) == "ViT-B/16"
    for change in ({"layer_scale": 1.0, "register_tokens": 4}, {"mlp": "swiglu"}, {"pre_norm": True}):
        assert keras_vit.models.variant_of(plain.replace(**change)) is None


# Pixels


@pytest.mark.parametrize("filter", ["bicubic", "bilinear_pillow"])
@pytest.mark.parametrize(("resize", "crop_ratio"), [("squash", 1.0), ("shortest", 0.9), ("squash", 224 / 256)])
@pytest.mark.parametrize("shape", [(150, 230), (301, 187), (20, 30)])
@pytest.mark.once
def test_pictures_are_resized_as_pillow_does(filter, resize, crop_ratio, shape):
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype="uint8")
    pipeline = keras_vit.preprocessing.Pipeline((96, 64), resize=resize, crop_ratio=crop_ratio, filter=filter)
    least = [int(n / crop_ratio + 1e-6) for n in (96, 64)]
    height, width = least
    if resize == "shortest":
        scale = max(least[0] / shape[0], least[1] / shape[1])
        height, width = max(least[0], round(shape[0] * scale)), max(least[1], round(shape[1] * scale))  # as timm
    method = {"bicubic": Image.Resampling.BICUBIC, "bilinear_pillow": Image.Resampling.BILINEAR}[filter]
    wanted = np.asarray(Image.fromarray(pixels).resize((width, height), method), "f4")
    top, left = round((height - 96) / 2), round((width - 64) / 2)
    got = pipeline.resized(pixels)[0]
    np.testing.assert_array_equal(got, wanted[top : top + 96, left : left + 64])


@pytest.mark.once
def test_the_default_pipeline_is_the_official_one():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 15, 22, 3), dtype="uint8")
    wanted = keras_vit.preprocessing.resize_images(pixels, (16, 24))
    pipeline = VIT.pipeline
    np.testing.assert_array_equal(pipeline.resized(pixels), wanted)
    np.testing.assert_array_equal(pipeline(pixels), (wanted - 127.5) / 127.5)
    assert pipeline.value_range == (-1, 1)
    floats = keras_vit.preprocessing.Pipeline(8, filter="bilinear_antialias")(pixels.astype("f8"))
    np.testing.assert_allclose(
        floats, keras_vit.preprocessing.resize_images(pixels, 8, "bilinear_antialias") / 127.5 - 1, rtol=0, atol=1e-6
    )


@pytest.mark.once
def test_training_and_export_normalise_as_the_model_wants():
    from keras_vit.export.images import as_taken
    from keras_vit.training.run import as_input

    model = make(VIT.replace(pixel_mean=(0.48, 0.46, 0.41), pixel_std=(0.27, 0.26, 0.28)))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype="uint8")
    wanted = model.preprocess(pixels)
    np.testing.assert_allclose(as_input(model, pixels), wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(as_taken(pixels, "float32", model.config), wanted, rtol=0, atol=1e-6)
    low, high = model.config.pipeline.value_range
    assert low == pytest.approx(-0.48 / 0.27) and high == pytest.approx(0.59 / 0.28)


def test_normalisation_in_the_graph_is_that_before_it():
    config = VIT.replace(pixel_mean=(0.48, 0.46, 0.41), pixel_std=(0.27, 0.26, 0.28))
    model = make(config)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype="uint8")
    wanted = (pixels / 255 - config.pixel_mean) / config.pixel_std
    np.testing.assert_allclose(model.preprocess(pixels), wanted, rtol=0, atol=1e-6)
    inside = model.with_config(include_preprocessing=True)
    assert inside.preprocess(pixels).max() > 200
    np.testing.assert_allclose(
        forward(inside, pixels.astype("f4")), forward(model, wanted.astype("f4")), rtol=1e-5, atol=3e-5
    )
    one = model.with_config(pixel_std=0.25, include_preprocessing=True)
    wanted = ((pixels / 255 - config.pixel_mean) / 0.25).astype("f4")
    np.testing.assert_allclose(forward(one, pixels.astype("f4")), forward(model, wanted), rtol=1e-5, atol=3e-5)
