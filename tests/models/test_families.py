"""Models of the ViT families: the fields of the config that the official models leave alone, and what comes of them."""

import numpy as np
import pytest

import keras_vit
import keras_vit.preprocessing
from keras_vit.models import weights_by_path
from keras_vit.training.pretraining import masked_patch_model
from tests.compute import forward, gradients, square
from tests.layers import in_numpy
from tests.small_models import model_of as make
from tests.small_models import values_of

SIZE = {"image_size": (16, 24), "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "mlp_width": 12, "classes": 3}
VIT = keras_vit.ViTConfig(**SIZE, gelu="exact", layer_norm_epsilon=1e-3, interpolation="bicubic")
MEAN = {"pooling": "avg", "final_norm": "pooled"}
DINOV2 = VIT.replace(layer_scale=0.3, register_tokens=2, position_embedding="learned_without_registers", classes=None)
DINOV3 = DINOV2.replace(position_embedding="none", rotary_embedding="dinov3", attention_bias="no_key")
BEIT = VIT.replace(attention_norm=True, **MEAN)
FAMILIES = {
    "deit": VIT.replace(distillation_token=True, distillation_head=True),
    "deit3": VIT.replace(layer_scale=0.3, position_embedding="learned_patches"),
    "dinov2": DINOV2,
    "dinov2_giant": DINOV2.replace(mlp="swiglu", pooling="token_avg", classes=3, interpolation="bicubic_hf"),
    "dinov3": DINOV3,
    "clip": VIT.replace(gelu="quick", patch_bias=False, pre_norm=True, projection=6, classes=None),
    "siglip": VIT.replace(class_token=False, pooling="map", gelu="tanh", classes=None),
    "registers_in_map": VIT.replace(class_token=False, register_tokens=2, pooling="map"),
    "patches_in_map": VIT.replace(distillation_token=True, register_tokens=2, pooling="map", map_prefix=False),
    "mae": VIT.replace(**MEAN),
    "ijepa": VIT.replace(class_token=False, pooling="avg", classes=None, interpolation="bicubic_offset"),
    "beit3": BEIT.replace(mlp="plain_norm"),
    "eva02": BEIT.replace(mlp="swiglu_norm", rotary_embedding="eva02", rotary_grid=5, attention_bias="no_key"),
    "none_of_it": VIT.replace(final_norm="none", position_embedding="none", attention_bias="none", register_tokens=1),
}
SOME = ("deit", "dinov3", "eva02")  # together they have every layer
some_families = pytest.mark.parametrize("family", SOME)
# All of them once, and on each backend those that have every layer.
every_family_once = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=[] if family in SOME else pytest.mark.once) for family in FAMILIES]
)


def images(size=(16, 24), batch=2, channels=3):
    return np.random.default_rng(1).uniform(-1, 1, (batch, *size, channels)).astype("f4")


def answer(config, w, x):
    """The whole model once more, in float64 NumPy."""
    epsilon, (rows, columns) = config.layer_norm_epsilon, config.grid_size
    p, q = config.patch_size
    patches = x.astype("f8").reshape(len(x), rows, p, columns, q, -1).transpose(0, 1, 3, 2, 4, 5)
    kernel = w["embedding/kernel"]
    x = patches.reshape(len(x), rows * columns, -1) @ kernel.reshape(-1, config.width) + w.get("embedding/bias", 0)
    names = ("class_token/token", "distillation_token/token", "register_tokens/tokens")
    prefix = np.concatenate([np.zeros((1, 0, config.width)), *(w[name] for name in names if name in w)], 1)
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
    return {path: values.astype("f8") for path, values in values_of(model).items()}


@every_family_once
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


@some_families
def test_mixed_precision(family):
    wanted = forward(make(FAMILIES[family]), images())
    mixed = make(FAMILIES[family], dtype="mixed_bfloat16")
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    assert mixed.output.dtype == ("float32" if mixed.config.classes else "bfloat16")
    if mixed.config.rotary_embedding:
        assert mixed.get_layer("rotary_embedding").output.dtype == "float32"
    error = np.abs(np.asarray(forward(mixed, images()), "f4") - wanted).max() / np.abs(wanted).max()
    assert 1e-5 < error < 5e-2  # 8 bits in two blocks


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


TYPES = [
    ({"pixel_mean": "grey"}, "pixel_mean must be one number, or one for each channel, but 'grey'"),
    ({"image_size": (16, float("inf"))}, r"image_size must be an integer or a pair .* but \(16, inf\)"),
    *(({"class_names": names}, "class_names must be") for names in ("abc", 7, ("cat", 1, "dog"))),
]
VALUES = [
    ({"rotary_embedding": "eva02", "heads": 8}, "needs a head size of 4, 8.*width=16 and heads=8 .* 2"),
    ({"rotary_grid": 0}, "rotary_grid must be positive"),
    ({"class_token": False, "pooling": "token_avg"}, "pooling='token_avg' needs class_token=True"),
    ({"pooling": "token_avg", "final_norm": "pooled"}, "cannot be used with pooling='token_avg'"),
    ({"pooling": "token_dist"}, "pooling='token_dist' needs distillation_token=True"),
    ({"distillation_token": True, "class_token": False, "pooling": "avg"}, "needs class_token=True"),
    ({"distillation_head": True}, "distillation_head=True needs distillation_token=True"),
    ({"distillation_head": True, "distillation_token": True, "pooling": "avg"}, "needs pooling='token', but 'avg'"),
    ({"distillation_head": True, "distillation_token": True, "unit_features": True}, "unit_features=False, but True"),
    ({"pixel_mean": (0.5, 0.4)}, r"pixel_mean must be one number, or one for each of 3 .* but \(0.5, 0.4\)"),
    ({"pixel_std": (0.5, 0.0, 0.5)}, "pixel_std must be a finite number above 0"),
    ({"classes": None, "class_names": ("cat", "dog")}, "class_names must be None without classes"),
    *(({"class_names": ("cat", "dog", name)}, "in class_names cannot be") for name in ("a\nb", "", " ant")),
    *(({"class_names": names}, "class_names must name each of the 3") for names in (("cat",), tuple("abcd"))),
]


@pytest.mark.once
def test_what_makes_no_sense_is_refused():
    for error, table in ((TypeError, TYPES), (ValueError, VALUES)):
        for fields, words in table:
            with pytest.raises(error, match=words):
                VIT.replace(**fields)


@pytest.mark.once
def test_equal_numbers_fit_any_number_of_channels():
    assert VIT.pixel_mean == (0.5,) * 3
    grey = VIT.replace(channels=1)
    assert grey.pixel_mean == grey.pixel_std == (0.5,) and grey.replace(channels=4).pixel_mean == (0.5,) * 4
    assert VIT.replace(pixel_std=0.25).pixel_std == (0.25,) * 3
    again = keras_vit.ViTConfig(**VIT.replace(pixel_mean=[0.1, 0.2, 0.3]).to_dict())  # JSON has lists
    assert again.pixel_mean == (0.1, 0.2, 0.3)


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


def test_stored_periods_stay():
    """Facebook's files hold periods that no formula gives."""
    model = make(FAMILIES["dinov3"])
    model.get_layer("rotary_embedding").periods.assign([1.0, 9.9375])
    other = model.with_config(image_size=32, classes=4)
    np.testing.assert_array_equal(float64(other)["rotary_embedding/periods"], [1.0, 9.9375])


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


@pytest.mark.once
def test_a_variant_is_its_row_and_its_family():
    config = keras_vit.models.variant_config("DINOv2-g/14-reg4", classes=None)
    assert (config.width, config.depth, config.heads, config.mlp_width) == (1536, 40, 24, 4096)
    assert config.grid_size == (37, 37)
    assert (config.mlp, config.register_tokens, config.gelu, config.interpolation) == ("swiglu", 4, "exact", "bicubic")
    assert config.pixel_mean == (0.485, 0.456, 0.406) and config.pipeline.crop_ratio == 0.875
    assert keras_vit.models.variant_of(config) == "DINOv2-g/14-reg4"
    assert keras_vit.models.variant_config("dinov3_splus16").mlp == "swiglu"
    assert keras_vit.models.variant_of(keras_vit.models.variant_config("ViT-B/16").replace(mlp="swiglu")) is None


@pytest.mark.once
def test_every_family_has_its_factories():
    for variant in (name for name, row in keras_vit.VARIANTS.items() if row.family != "ViT"):
        config = keras_vit.models.variant_config(variant)
        assert keras_vit.models.has_layers_of(config, variant)
        assert keras_vit.models.has_layers_of(config, keras_vit.models.variant_of(config))
        assert variant in getattr(keras_vit, keras_vit.models.factory_name(variant)).__doc__


@pytest.mark.parametrize("filter", ["bicubic", "bilinear_pillow"])
@pytest.mark.parametrize(("resize", "crop_ratio"), [("squash", 1.0), ("shortest", 0.9), ("squash", 224 / 256)])
@pytest.mark.once
def test_pictures_are_resized_as_pillow_does(filter, resize, crop_ratio):
    Image = pytest.importorskip("PIL.Image")
    pipeline = keras_vit.preprocessing.Pipeline((96, 64), resize=resize, crop_ratio=crop_ratio, filter=filter)
    least = [int(n / crop_ratio + 1e-6) for n in (96, 64)]
    method = {"bicubic": Image.Resampling.BICUBIC, "bilinear_pillow": Image.Resampling.BILINEAR}[filter]
    for shape in ((150, 230), (301, 187), (20, 30)):
        pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype="uint8")
        height, width = least
        if resize == "shortest":
            scale = max(least[0] / shape[0], least[1] / shape[1])
            height, width = max(least[0], round(shape[0] * scale)), max(least[1], round(shape[1] * scale))  # as timm
        wanted = np.asarray(Image.fromarray(pixels).resize((width, height), method), "f4")
        top, left = round((height - 96) / 2), round((width - 64) / 2)
        np.testing.assert_array_equal(pipeline.resized(pixels)[0], wanted[top : top + 96, left : left + 64])


@pytest.mark.once
def test_crops_begin_where_the_publisher_begins():
    """Half of an odd rest: 0.5, 1.5 and 2.5 become 0, 2 and 2 for timm and open_clip, 0, 1 and 2 for transformers."""
    pixels = np.arange(21 * 3).reshape(1, 21, 1, 3).repeat(16, 2).astype("uint8")
    for rest, even, floor in ((1, 0, 0), (3, 2, 1), (4, 2, 2), (5, 2, 2)):
        for rounding, first in (("even", even), ("floor", floor)):
            options = {"resize": "shortest", "filter": "nearest", "crop_rounding": rounding}
            got = keras_vit.preprocessing.Pipeline(16, **options).resized(pixels[:, : 16 + rest])
            np.testing.assert_array_equal(got, pixels[:, first : first + 16])


@pytest.mark.once
@pytest.mark.parametrize("filter", keras_vit.preprocessing.images.FILTERS)
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_values_beyond_255_stay(filter, channels):
    """Of one kind of picture as of another: within the rounding to whole numbers, in both directions."""
    pixels = np.random.default_rng(0).integers(20000, 40000, (1, 9, 12, channels)).astype("uint16")
    pipeline = keras_vit.preprocessing.Pipeline(8, filter=filter)
    whole, floats = pipeline.resized(pixels, channels), pipeline.resized(pixels.astype("f4"), channels)
    # Two roundings by half; the first is weighted by at most 2, a filter's overshoot included.
    np.testing.assert_allclose(whole, floats, rtol=0, atol=1.6)


def test_pixels_are_normalised_alike_everywhere():
    """Before the model and in its graph, for training and for export."""
    from keras_vit.export.served_model import as_model_input
    from keras_vit.training.tasks import as_input

    config = VIT.replace(pixel_mean=(0.48, 0.46, 0.41), pixel_std=(0.27, 0.26, 0.28))
    model, pixels = make(config), np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype="uint8")
    wanted = (pixels / 255 - config.pixel_mean) / config.pixel_std
    for got in (model.preprocess(pixels), as_input(model, pixels), as_model_input(pixels, "float32", config)):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
    low, high = config.pipeline.value_range
    assert low == pytest.approx(-0.48 / 0.27) and high == pytest.approx(0.59 / 0.28)
    inside = model.with_config(include_preprocessing=True)
    assert inside.preprocess(pixels).max() > 200
    given = pixels.astype("f4")
    np.testing.assert_allclose(forward(inside, given), forward(model, wanted.astype("f4")), rtol=1e-5, atol=3e-5)
    one = model.with_config(pixel_std=0.25, include_preprocessing=True)
    wanted = ((pixels / 255 - config.pixel_mean) / 0.25).astype("f4")
    np.testing.assert_allclose(forward(one, given), forward(model, wanted), rtol=1e-5, atol=3e-5)
