"""MLP-Mixer beside its formula in NumPy: answers, gradients, files of the official code and of timm, refusals."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import LAYOUTS
from keras_vit.models import count_macs, count_weights, variant_config, weights_by_path
from tests.checkpoints.npz_files import assert_same_bits, read
from tests.compute import forward, gradients, relative_error
from tests.small_models import images_for, small_vit_config
from tests.tolerances import GRADIENTS, LOGITS

MIXER = {"heads": 1, "class_token": False, "pooling": "avg", "position_embedding": "none"}
CONFIG = small_vit_config(image_size=(8, 12), mlp_width=10, tokens_mlp_width=5, **MIXER)
SQUARE = CONFIG.replace(image_size=16)


def arrays_of(config):
    """Random arrays in the official names, large enough that the approximations of GELU differ."""
    rng = np.random.default_rng(0)
    rows = LAYOUTS["vit_jax"].rows(config)
    return {row.name: (rng.normal(0, 0.5, row.shape) + row.name.endswith("scale")).astype("f4") for row in rows}


def mixer_in_numpy(a, images, patch, epsilon=1e-6):
    """`MlpMixer` in the official `models_mixer.py`, in float64: logits, and what the head reads."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + epsilon) * a[f"{name}/scale"] + a[f"{name}/bias"]

    def dense(x, name):
        return x @ a[f"{name}/kernel"] + a[f"{name}/bias"]

    def mlp(x, name):
        x = dense(x, f"{name}/Dense_0")
        return dense(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), f"{name}/Dense_1")

    batch, height, width, channels = images.shape
    patches = images.reshape(batch, height // patch, patch, width // patch, patch, channels).swapaxes(2, 3)
    kernel = a["stem/kernel"].reshape(-1, a["stem/kernel"].shape[-1])
    x = patches.reshape(batch, -1, patch * patch * channels) @ kernel + a["stem/bias"]
    for i in range(sum(name.endswith("channel_mixing/Dense_0/bias") for name in a)):
        block = f"MixerBlock_{i}"
        x = x + mlp(norm(x, f"{block}/LayerNorm_0").swapaxes(1, 2), f"{block}/token_mixing").swapaxes(1, 2)
        x = x + mlp(norm(x, f"{block}/LayerNorm_1"), f"{block}/channel_mixing")
    pooled = norm(x, "pre_head_layer_norm").mean(1)
    return dense(pooled, "head"), pooled


def exactly(arrays):
    return {name: values.astype("f8") for name, values in arrays.items()}


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "mixer.npz", **arrays_of(SQUARE))
    return tmp_path / "mixer.npz"


def test_answers(tmp_path):
    arrays = arrays_of(CONFIG)
    np.savez(tmp_path / "mixer.npz", **{f"opt/target/{name}": values for name, values in arrays.items()})
    model = keras_vit.load(tmp_path / "mixer.npz", grid_size=(2, 3))
    assert model.config == CONFIG
    x = images_for(CONFIG, seed=1)
    logits, pooled = mixer_in_numpy(exactly(arrays), x.astype("f8"), 4)
    features = keras_vit.load(tmp_path / "mixer.npz", grid_size=(2, 3), include_top=False, pooling="avg")
    answers = forward(model, x), model.predict(x, verbose=0), forward(features, x)
    for got, wanted in zip(answers, (logits, logits, pooled), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=LOGITS)
    # The choices of other code are seen: the exact GELU, and an epsilon of 1e-5 where the numbers are small.
    assert np.abs(forward(model.with_config(gelu="exact"), x) - logits).max() > 5 * LOGITS
    small = {name: values * (1e-2 if name.startswith("stem") else 1) for name, values in exactly(arrays).items()}
    other, right = (mixer_in_numpy(small, x.astype("f8"), 4, epsilon)[0] for epsilon in (1e-5, 1e-6))
    assert np.abs(other - right).max() > 5 * LOGITS


def test_gradients(tmp_path):
    """Of a weighted sum of the logits, by central differences in float64 of every single weight."""
    arrays = arrays_of(CONFIG)
    np.savez(tmp_path / "mixer.npz", **arrays)
    model = keras_vit.load(tmp_path / "mixer.npz", grid_size=(2, 3))
    x, weights = images_for(CONFIG), np.random.default_rng(2).normal(size=(2, 3))
    _, found = gradients(model, x, lambda y: keras.ops.sum(y * keras.ops.cast(weights, "float32")), training=True)
    by_path, exact = weights_by_path(model), exactly(arrays)
    for row in LAYOUTS["vit_jax"].rows(CONFIG):
        values, wanted = exact[row.name].reshape(-1), np.empty(exact[row.name].size)
        got = found[by_path[row.path].path].reshape(-1)
        for i, value in enumerate(values.copy()):
            sums = []
            for step in (1e-5, -1e-5):
                values[i] = value + step
                sums.append((mixer_in_numpy(exact, x.astype("f8"), 4)[0] * weights).sum())
            wanted[i], values[i] = (sums[0] - sums[1]) / 2e-5, value
        if row.name.endswith("token_mixing/Dense_1/bias"):  # the same for all channels: no normalised number sees it
            assert max(np.abs(got).max(), np.abs(wanted).max()) < 1e-6
        else:
            assert relative_error(got, wanted) < GRADIENTS, row.name


def test_drops_the_same_branches_again():
    """Stochastic depth and dropout with and without recomputation: gradients of one seed are the same."""
    results = []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        model = keras_vit.VisionTransformer(CONFIG.replace(dropout=0.3, drop_path=0.5, remat=remat))
        for name, weight in sorted(weights_by_path(model).items()):
            weight.assign(np.random.default_rng(len(name)).normal(0, 0.5, weight.shape))
        results.append(gradients(model, images_for(CONFIG), lambda logits: keras.ops.sum(logits**2), training=True)[1])
    for plain, again in zip(results[0].values(), results[1].values(), strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.once
def test_published_files():
    """The original's own counts, and its listing of the buckets in MiB; multiplications as timm counts them."""
    counts = {"Mixer-B/16": 59_880_472, "Mixer-B/32": 60_293_428, "Mixer-L/16": 208_196_168}
    assert {name: count_weights(variant_config(name)) for name in counts} == counts
    for entry in keras_vit.list_weights("mixer"):
        if entry["name"].startswith("mixer_models/"):
            config = variant_config(entry["variant"], classes=entry["classes"])
            assert entry["params"] == count_weights(config) and entry["image_size"] == 224
            mib = float(entry["size"].removesuffix(" MiB"))
            assert 0 < mib - entry["params"] * 4 / 2**20 < 0.1
    assert round(count_macs(variant_config("mixer_b16_224")) / 1e9, 2) == 12.6
    with keras_vit.layers.skip_initialization():
        model = keras_vit.create_model("mixer_b16_224")
        other = keras_vit.create_model("Mixer-S/32", image_size=64, classes=2)
    assert (model.count_params(), model.config.gelu) == (59_880_472, "tanh") and other.config.grid_size == (2, 2)


@pytest.mark.once
@pytest.mark.parametrize("old", [False, True])
def test_official_files(path, tmp_path, old):
    arrays = read(path)
    source = dict(arrays)
    if old:  # matrices of the block, with their number of rows in their names
        for name in [name for name in source if "token_mixing" in name]:
            block, _, dense, kind = name.split("/")
            values = source.pop(name)
            rows = 16 if dense == "Dense_0" else 5
            source[f"{block}/{kind}{rows}"] = values if kind == "kernel" else values[None, :, None]
    np.savez(tmp_path / "file.npz", **source)
    info = keras_vit.inspect_checkpoint(tmp_path / "file.npz")
    assert (info.layout, info.dialect, info.oddities) == ("vit_jax", "old" if old else "published", [])
    assert info.config == SQUARE
    if old:  # 5 x 1 patches would have matrices of the same sizes
        assert keras_vit.inspect_checkpoint(tmp_path / "file.npz", grid_size=(4, 4)).config == SQUARE
    keras_vit.to_checkpoint(keras_vit.load(tmp_path / "file.npz"), tmp_path / "back.npz")
    assert_same_bits(read(tmp_path / "back.npz"), arrays)


@pytest.mark.once
def test_files_of_timm(tmp_path):
    config = CONFIG.replace(image_size=64, patch_size=32, width=512, depth=8, gelu="exact", crop_ratio=0.9)
    model = keras_vit.VisionTransformer(config.replace(filter="bicubic", resize="shortest", interpolation="bicubic"))
    model.get_layer("head").bias.assign([1, 2, 3])
    keras_vit.to_checkpoint(model, tmp_path, layout="timm")
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["architecture"], said["pretrained_cfg"]["first_conv"]) == ("mixer_s32_224", "stem.proj")
    again = keras_vit.load(tmp_path)
    assert again.config == model.config
    assert keras_vit.load(tmp_path, numerics="official").config.gelu == "tanh"
    for got, wanted in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="must be an MLP-Mixer for these arrays, but is vit_base_patch16_224"):
        keras_vit.load(tmp_path, like="vit_base_patch16_224")
    assert keras_vit.load(tmp_path, like="mixer_s32_224").config.width == 512


@pytest.mark.once
def test_what_a_mixer_cannot_be(path, tmp_path):
    model = keras_vit.load(path)
    for call, message in (
        (lambda: CONFIG.replace(class_token=True), "tokens_mlp_width=5 needs class_token=False, but True"),
        (lambda: CONFIG.replace(dynamic=True), "needs dynamic=False"),
        (lambda: model.with_image_size(32), "cannot be .32, 32., because .* mixes 4 x 4 patches. Use image_size=.16"),
        (lambda: keras_vit.load(path, image_size=32), "image_size cannot be .32, 32."),
        (lambda: keras_vit.load(path, grid_size=(3, 3)), "grid_size must have 16 patches"),
        (lambda: keras_vit.to_checkpoint(model, tmp_path / "a", layout="timm"), "timm has no Mixer with"),
        (lambda: keras_vit.to_checkpoint(model, tmp_path / "a", layout="big_vision"), "read as the layout 'vit_jax'"),
        (lambda: keras_vit.to_checkpoint(model, tmp_path / "a", layout="huggingface"), "cannot store this model"),
        (lambda: keras_vit.inspection.attention_maps(model, images_for(SQUARE)), "MLP-Mixer .* has no attention"),
        (lambda: keras_vit.layers.MixerBlock(3, 4).build((None, None, 8)), "needs a fixed number of tokens"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    keras_vit.inspection.write_page(model, tmp_path / "page.html")
    assert "2 blocks: MLP across tokens, MLP of 10" in (tmp_path / "page.html").read_text(encoding="utf-8")
