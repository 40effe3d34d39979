"""The layout of big_vision: its numbers, its files old and new, and the way to vit_jax and back."""

import numpy as np
import pytest

import keras_vit
from keras_vit.layers import skip_initialization
from tests.checkpoints.npz_files import assert_same_bits, read, save
from tests.checkpoints.test_fidelity import load
from tests.compute import forward
from tests.tolerances import LOGITS

POSITION = "pos_embedding"
OLD_POSITION = "Transformer/posembed_input/pos_embedding"
TINY = {"image_size": 8, "patch_size": 4, "width": 8, "heads": 2, "mlp_width": 4}

pytestmark = pytest.mark.once


def images(size=32, seed=0):
    size = (size, size) if isinstance(size, int) else size
    return np.random.default_rng(seed).uniform(-1, 1, (2, *size, 3)).astype("f4")


def written(model, path, layout="big_vision", **options):
    keras_vit.to_checkpoint(model, path, layout=layout, overwrite=True, **options)
    return read(path)


@pytest.fixture
def token_arrays(golden):
    """The arrays of a token model in today's big_vision names: what bv_from_vit_jax_tok would be."""
    arrays = read(golden("alt_linen").path)
    table = arrays.pop(OLD_POSITION)
    return arrays | {POSITION: table[:, 1:], "cls": arrays["cls"] + table[:, :1]}


def test_stacked_blocks_come_back_one_by_one_unless_asked(golden, tmp_path):
    arrays = read(golden("bv_scan_map").path, "params/")
    wanted = {}
    for name, values in arrays.items():
        if "encoderblock/" in name:
            wanted |= {name.replace("block/", f"block_{i}/"): values[i] for i in range(3)}
        else:
            wanted[name] = values
    model = load(golden("bv_scan_map"))
    assert_same_bits(written(model, tmp_path / "single.npz"), wanted)
    info = keras_vit.inspect_checkpoint(golden("bv_scan_map").path)
    assert (info.dialect, info.parameters) == ("stacked", golden("bv_scan_map").meta["n_params"])
    # More than ten blocks, whose names sort otherwise than their numbers.
    with skip_initialization():
        deep = keras_vit.VisionTransformer(keras_vit.ViTConfig(**TINY, depth=12, class_token=False, pooling="avg"))
    for weight in deep.weights:
        weight.assign(np.zeros(weight.shape, "f4"))
    for i in range(12):
        deep.get_layer(f"block_{i}").mlp.fc1.bias.assign(np.full(4, i, "f4"))
    stacked = written(deep, tmp_path / "deep.npz", stack=True)
    np.testing.assert_array_equal(stacked["Transformer/encoderblock/MlpBlock_0/Dense_0/bias"][:, 0], np.arange(12))
    with pytest.raises(ValueError, match="layout 'vit_jax' does not stack blocks"):
        written(deep, tmp_path / "no.npz", "vit_jax", stack=True)


def test_pre_logits(golden, tmp_path):
    """vit_s16_i1k: rep_size=True, global average, computed positions."""
    rep_size = 24
    arrays = read(golden("bv_gap_sincos").path, "params/")
    rng = np.random.default_rng(0)
    arrays["pre_logits/kernel"] = rng.normal(0, 0.2, (48, rep_size)).astype("f4")
    arrays["pre_logits/bias"] = rng.normal(0, 0.2, rep_size).astype("f4")
    arrays["head/kernel"] = arrays["head/kernel"][:rep_size]
    path = save(tmp_path / "file.npz", arrays, "params/")
    model = keras_vit.from_checkpoint(path, image_size=32)
    assert model.config.representation_size == rep_size
    ref = golden("bv_gap_sincos").ref
    hidden = np.tanh(ref["head_input"] @ arrays["pre_logits/kernel"] + arrays["pre_logits/bias"])
    wanted = hidden @ arrays["head/kernel"] + arrays["head/bias"]
    np.testing.assert_allclose(forward(model, ref["images"]), wanted, rtol=0, atol=LOGITS)
    assert_same_bits(written(model, tmp_path / "back.npz"), arrays)


def published(arrays):
    """Names from before Linen: one counter for all modules of a block."""
    old = {"LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1"}
    return renamed(arrays, "Transformer/", old | {"MlpBlock_0": "MlpBlock_3"})


def renamed(arrays, beginning, new):
    names = {name: "/".join(new.get(part, part) for part in name.split("/")) for name in arrays}
    return {names[n] if n.startswith(beginning) else n: values for n, values in arrays.items()}


@pytest.mark.parametrize("names", ["Linen", "published"])
@pytest.mark.parametrize("position", [POSITION, OLD_POSITION, "Transformer/pos_embedding"])
def test_attention_pooling_at_the_top(golden, tmp_path, names, position):
    arrays = read(golden("bv_map").path, "params/")
    moved = {name.removeprefix("MAPHead_0/"): values for name, values in arrays.items()}
    if names == "published":
        moved = published(moved)
        # At the top, too, one counter went through all modules.
        old = {"LayerNorm_0": "LayerNorm_3", "MlpBlock_0": "MlpBlock_4"}
        old["MultiHeadDotProductAttention_0"] = "MultiHeadDotProductAttention_2"
        moved = renamed(moved, ("LayerNorm_0/", "MlpBlock_0/", "MultiHeadDotProductAttention_0/"), old)
    moved[position] = moved.pop(POSITION)
    path = save(tmp_path / "file.npz", moved, "opt/target/")
    info = keras_vit.inspect_checkpoint(path)
    assert (info.layout, info.dialect, info.config.pooling) == ("big_vision", names, "map")
    assert_same_bits(written(keras_vit.from_checkpoint(path), tmp_path / "back.npz"), arrays)


@pytest.mark.parametrize("names", ["Linen", "published"])
@pytest.mark.parametrize("position", [POSITION, "Transformer/pos_embedding"])
def test_a_table_with_a_row_for_the_class_token(golden, token_arrays, tmp_path, position, names):
    """big_vision's loader adds the row to the token. We keep it: the same numbers bit for bit, and nothing is lost."""
    arrays = read(golden("alt_linen").path)
    arrays[POSITION] = arrays.pop(OLD_POSITION)
    moved = published(arrays) if names == "published" else dict(arrays)
    moved[position] = moved.pop(POSITION)
    path = save(tmp_path / "file.npz", moved)
    info = keras_vit.inspect_checkpoint(path)
    assert (info.layout, info.dialect) == ("big_vision", names)
    assert (info.config.position_embedding, info.config.grid_size) == ("learned", (4, 4))
    model = keras_vit.from_checkpoint(path)
    assert_same_bits(written(model, tmp_path / "back.npz"), arrays)

    added = keras_vit.from_checkpoint(save(tmp_path / "added.npz", token_arrays))
    ref = golden("mini_token").ref
    np.testing.assert_allclose(forward(model, ref["images"]), ref["logits"], rtol=0, atol=LOGITS)
    for layer in ("embedded", "logits"):
        one, other = (forward(keras_vit.feature_extractor(m, [layer]), ref["images"])[layer] for m in (model, added))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["mini_token", "mini_token_rep", "mini_gap", "mini_nohead"])
def test_from_vit_jax_and_back(golden, tmp_path, name):
    model = load(golden(name))
    arrays = written(model, tmp_path / "big_vision.npz")
    assert arrays[POSITION].shape[1] == 16 + model.config.class_token
    assert keras_vit.inspect_checkpoint(tmp_path / "big_vision.npz").layout == "big_vision"
    other = keras_vit.from_checkpoint(tmp_path / "big_vision.npz")
    assert other.config == model.config
    np.testing.assert_array_equal(forward(other, images()), forward(model, images()))
    assert_same_bits(written(other, tmp_path / "back.npz", "vit_jax"), read(golden(name).path))


def test_to_vit_jax_and_back(golden, token_arrays, tmp_path):
    for arrays in (token_arrays, read(golden("bv_gap").path, "params/")):
        model = keras_vit.from_checkpoint(save(tmp_path / "file.npz", arrays))
        if "cls" in arrays:  # the class token is what the file says, untouched by positions
            assert (model.config.position_embedding, model.config.pooling) == ("learned_patches", "token")
            embedded = forward(keras_vit.feature_extractor(model, ["embedded"]), images())["embedded"]
            np.testing.assert_array_equal(embedded[:, 0], np.repeat(arrays["cls"][0], 2, 0))
        there = written(model, tmp_path / "vit_jax.npz", "vit_jax")
        assert keras_vit.inspect_checkpoint(tmp_path / "vit_jax.npz").layout == "vit_jax"
        if "cls" in arrays:
            assert there[OLD_POSITION].shape == (1, 17, 48) and not there[OLD_POSITION][:, 0].any()
        other = keras_vit.from_checkpoint(tmp_path / "vit_jax.npz")
        np.testing.assert_array_equal(forward(other, images()), forward(model, images()))
        assert_same_bits(written(other, tmp_path / "back.npz"), arrays)


def test_on_other_grids_the_position_is_added_to_the_token(golden, tmp_path):
    """big_vision's loader would not know the row of a table of 28 + 1."""
    case = golden("mini_nonsquare")
    model = load(case)
    arrays, original = written(model, tmp_path / "file.npz"), read(case.path)
    assert arrays[POSITION].shape == (1, 28, 48)
    np.testing.assert_array_equal(arrays["cls"], original["cls"] + original[OLD_POSITION][:, :1])
    again = keras_vit.from_checkpoint(tmp_path / "file.npz")
    assert (again.config.grid_size, again.config.position_embedding) == ((4, 7), "learned_patches")
    np.testing.assert_array_equal(forward(again, case.ref["images"]), forward(model, case.ref["images"]))


def test_two_tables_of_positions_have_one_shape(golden, tmp_path):
    arrays = read(golden("txt_bv_siglip").folder / "model.npz")
    (name,) = (name for name in arrays if name.endswith("txt/pos_embedding"))
    second = {name.replace("txt/", "txt/Encoder_0/"): arrays[name][:, :1]}
    with pytest.raises(ValueError, match="tables of text positions must have one shape"):
        keras_vit.load_image_text(save(tmp_path / "file.npz", arrays | second), tokenizer=None)


def test_a_projection_without_bias_comes_back(tmp_path):
    """The file has a bias of zeros, as all of big_vision's do; writing it was a KeyError."""
    sizes = {"image_size": 16, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 64}
    config = keras_vit.ViTConfig(**sizes, class_token=False, pooling="map", projection=8, projection_bias=False)
    model = keras_vit.VisionTransformer(config)
    keras_vit.to_checkpoint(model, tmp_path / "model.npz", "big_vision")
    back = keras_vit.load(tmp_path / "model.npz")
    assert back.config == config and not np.load(tmp_path / "model.npz")["head/bias"].any()
    for one, other in zip(back.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
