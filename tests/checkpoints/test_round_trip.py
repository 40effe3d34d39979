"""File to model to file: every array comes back bit for bit, whatever the file called it and however it stored it."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import save_model
from keras_vit.text import save_image_text
from tests.checkpoints.npz_files import as_bfloat16, assert_same_bits, read, save
from tests.compute import forward
from tests.small_models import small_hybrid
from tests.tolerances import ENCODED

pytestmark = pytest.mark.once


def round_trip(path, folder, **options):
    model = keras_vit.from_checkpoint(path, **options)
    keras_vit.to_checkpoint(model, folder / "back.npz")
    return model, read(folder / "back.npz")


# What stands before the model's arrays.
PREFIXES = {
    "mini_token": ["", "params/", "opt/target/", "target/", "params/img/", "img/", "foo/bar/"],
    **{"alt_linen": ["params/"], "bit_mini_tf": ["", "params/"], "bit_mini_bv": ["", "params/", "params/img/"]},
    **{"bv_map": ["", "params/", "opt/target/", "params/img/", "img/", "foo/bar/"], "bv_scan_map": ["params/img/"]},
}
LAYOUTS = {"bit_mini_tf": "bit_tf", "bit_mini_bv": "bit_bv", "bv_map": "big_vision", "bv_scan_map": "big_vision"}


@pytest.mark.parametrize(("name", "prefix"), [(name, prefix) for name in PREFIXES for prefix in PREFIXES[name]])
def test_prefixes_and_what_stands_beside(golden, tmp_path, name, prefix):
    """The state of an optimizer, a second tower, copies of the trained weights: none of them is read."""
    case, layout, top = golden(name), LAYOUTS.get(name, "vit_jax"), prefix.removesuffix("img/")
    wanted = read(golden("mini_token" if name == "alt_linen" else name).path, "params/")
    arrays = read(case.path, "params/")
    if layout == "big_vision":  # SigLIP's image tower has no head
        arrays = wanted = {n: values for n, values in arrays.items() if not n.startswith("head/")}
    beside = {n: np.full((8, 4), 7, "f4") for n in ("opt/state/param_states/head/bias/grad_ema", "step")}
    if prefix.endswith("img/"):
        names = ("txt/Encoder_0/encoderblock_0/LayerNorm_0/scale", "txt/head/kernel", "t")
        beside = {f"{top}{n}": np.ones((1, 4, 8), "f4") for n in names}
    if prefix not in ("", "foo/bar/"):  # a known prefix comes before one that is not
        beside |= {f"ema/{prefix}{n}": values + 1 for n, values in arrays.items()}
    if prefix.endswith("img/") and layout == "bit_bv":  # today's vectors
        arrays = {n: values.reshape(-1) if "/gn" in n else values for n, values in arrays.items()}
    path = save(tmp_path / "file.npz", arrays, prefix, **beside)
    info = keras_vit.inspect_checkpoint(path)
    assert (info.layout, info.prefix) == (layout, prefix)
    assert any(f"{len(beside)} arrays are not part of the model" in oddity for oddity in info.oddities)
    model = keras_vit.load(path)
    keras_vit.to_checkpoint(model, tmp_path / "back.npz", layout=layout, stack=name == "bv_scan_map")
    assert_same_bits(read(tmp_path / "back.npz"), wanted)
    if layout == "big_vision":  # the embedding of an image is what the head would have been applied to
        np.testing.assert_allclose(forward(model, case.ref["images"]), case.ref["head_input"], rtol=0, atol=ENCODED)
    elif layout == "vit_jax":
        assert info.dialect == ("Linen" if name == "alt_linen" else "published")
        assert info.parameters == golden("mini_token").meta["n_params"]


@pytest.mark.parametrize(("dtype", "order"), [("f2", "C"), ("V2", "F")])
def test_half_precision_storage(golden, tmp_path, dtype, order):
    arrays = read(golden("mini_token").path)
    if dtype == "V2":
        stored, wanted = ({n: as_bfloat16(a)[i] for n, a in arrays.items()} for i in range(2))
    else:
        stored = {n: a.astype(dtype) for n, a in arrays.items()}
        wanted = {n: a.astype("f4") for n, a in stored.items()}
    np.savez(tmp_path / "file.npz", **{n: np.array(a, order=order) for n, a in stored.items()})
    assert any("read as float32" in oddity for oddity in keras_vit.inspect_checkpoint(tmp_path / "file.npz").oddities)
    _, back = round_trip(tmp_path / "file.npz", tmp_path)
    assert_same_bits(back, wanted)


def test_the_grid_travels_with_the_file(golden, tmp_path):
    case = golden("mini_nonsquare")
    model, back = round_trip(case.path, tmp_path, grid_size=(4, 7))
    assert model.config.image_size == (32, 56)

    # The published file does not say that its 28 patches are 4 x 7; ours does, where NumPy and others pass over it.
    assert any("do not form a square" in oddity for oddity in keras_vit.inspect_checkpoint(case.path).oddities)
    info = keras_vit.inspect_checkpoint(tmp_path / "back.npz")
    assert info.config.grid_size == (4, 7) and not any("square" in oddity for oddity in info.oddities)
    again = keras_vit.from_checkpoint(tmp_path / "back.npz")
    assert again.config == model.config
    assert_same_bits(back, read(case.path))


def test_a_grid_of_square_number_may_be_no_square(golden, tmp_path):
    """2 x 8 patches are as many as 4 x 4: only the note in the file tells."""
    model = keras_vit.from_checkpoint(golden("mini_token").path).with_image_size((16, 64))
    keras_vit.to_checkpoint(model, tmp_path / "wide.npz")
    again = keras_vit.from_checkpoint(tmp_path / "wide.npz")
    assert again.config.image_size == (16, 64)
    # Somebody else's file, without the note: the user says it.
    np.savez(tmp_path / "other.npz", **read(tmp_path / "wide.npz"))
    for grid, size in ((None, (32, 32)), ((2, 8), (16, 64))):
        assert keras_vit.inspect_checkpoint(tmp_path / "other.npz", grid_size=grid).config.image_size == size


def test_a_zero_head_is_said_aloud(golden):
    path = golden("alt_zero_head").path
    with pytest.warns(UserWarning, match="head of .*ckpt.npz is all zeros.*classes="):
        keras_vit.from_checkpoint(path)
    # Not where nobody looks at it (any warning would be an error).
    keras_vit.from_checkpoint(path, classes=3)
    keras_vit.from_checkpoint(path, include_top=False)


def test_loading_leaves_the_file_alone(golden, tmp_path):
    """The weights of a model are its own: neither training writes through to the file, nor the file to the model."""
    path = tmp_path / "file.npz"
    path.write_bytes(golden("mini_token").path.read_bytes())
    before = path.read_bytes()
    model = keras_vit.from_checkpoint(path)
    kept = model.get_weights()
    for weight in model.weights:
        weight.assign(keras.ops.zeros(weight.shape))
    assert path.read_bytes() == before
    model = keras_vit.from_checkpoint(path)
    with path.open("r+b") as file:
        file.write(bytes(len(before)))
    for got, wanted in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_writing_makes_folders_and_leaves_no_rest(golden, tmp_path, monkeypatch):
    model = keras_vit.from_checkpoint(golden("mini_token").path)
    (tmp_path / "a").mkdir()
    keras_vit.to_checkpoint(model, tmp_path / "a" / "b" / "file.npz")
    assert (tmp_path / "a" / "b" / "file.npz").is_file()
    for ending in ("npz", "keras"):  # a typing error makes no folders
        with pytest.raises(FileNotFoundError, match=f"There is no folder {tmp_path}/tpyo: check the path"):
            save_model(model, tmp_path / "tpyo" / "b" / f"file.{ending}")
    assert not (tmp_path / "tpyo").exists()

    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full_disk)
    with pytest.raises(OSError, match="No space"):
        keras_vit.to_checkpoint(model, tmp_path / "c" / "file.npz")
    assert list((tmp_path / "c").iterdir()) == []
    with pytest.raises(OSError, match="No space"):
        keras_vit.to_checkpoint(model, tmp_path / "a" / "b" / "file.npz", overwrite=True)
    assert len(read(tmp_path / "a" / "b" / "file.npz")) == 56


def test_bad_arguments_of_writing(golden, tmp_path):
    model = keras_vit.from_checkpoint(golden("mini_token").path)
    with pytest.raises(TypeError, match="must be a model of keras_vit, but Functional"):
        keras_vit.to_checkpoint(keras_vit.feature_extractor(model, ["encoded"]), tmp_path / "file.npz")
    with pytest.raises(ValueError, match="layout must be one of .*vit_jax.*'timn'"):
        keras_vit.to_checkpoint(model, tmp_path / "file.npz", layout="timn")
    for name, layout, words in (
        ("a.safetensors", "vit_jax", r"must end in \.npz for the layout 'vit_jax', but .*a\.safetensors"),
        ("a.npz", "timm", "must end in .safetensors for the layout 'timm', but"),
        ("a.weights.h5", "timm", "must end in .safetensors for the layout 'timm', but"),
    ):
        with pytest.raises(ValueError, match=words):
            keras_vit.to_checkpoint(model, tmp_path / name, layout)
        assert not (tmp_path / name).exists()
    model.get_layer("block_0").attention.query.enable_lora(2)
    with pytest.raises(ValueError, match=r"lora_kernel_a.*keras_vit\.training\.merge_lora\(model\)"):
        keras_vit.to_checkpoint(model, tmp_path / "file.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("towers", [1, 2])
def test_weights_of_float64_that_float32_does_not_hold(golden, tmp_path, towers):
    if towers == 1:
        part = model = keras_vit.from_checkpoint(golden("mini_token").path, dtype="float64")
        write, end = keras_vit.to_checkpoint, ".npz"
    else:
        model = keras_vit.load_image_text(golden("txt_hf_clip").folder, dtype="float64")
        part, write, end = model.text_encoder, save_image_text, ""
    weight = part.trainable_weights[0]
    write(model, tmp_path / f"exact{end}")  # numbers of float32 lose nothing, and nothing is said
    values = keras.ops.convert_to_numpy(weight).copy()
    values.flat[0] = 1 + 2.0**-40
    weight.assign(values)
    with pytest.warns(UserWarning, match="1 float64 weights are rounded to float32.*model.save"):
        write(model, tmp_path / f"rounded{end}")
    values.flat[0] = 1e39
    weight.assign(values)
    with pytest.raises(ValueError, match="beyond the range of float32"):
        write(model, tmp_path / f"beyond{end}")
    assert not (tmp_path / f"beyond{end}").exists()


@pytest.mark.parametrize("size", [(45, 75), (47, 47)])
def test_a_hybrid_of_pixels_that_its_grid_does_not_tell(tmp_path, size):
    """No file of vit_jax tells a size; the note does, unless a person does."""
    model, path = small_hybrid(image_size=size, patch_size=1), tmp_path / "a.npz"
    keras_vit.to_checkpoint(model, path)
    assert keras_vit.load(path, classes=2).config.image_size == size
    assert keras_vit.load(path, classes=2, image_size=60).config.image_size == (60, 60)
    turned = keras_vit.inspect_checkpoint(path, model.config.grid_size[::-1]).config.image_size
    assert turned == (size if size[0] == size[1] else (76, 48))
