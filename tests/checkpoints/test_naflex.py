"""SigLIP 2 NaFlex at one size: the numbers of transformers, the files of three libraries, and what is refused."""

import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.preprocessing import naflex_size
from tests.checkpoints.state_dicts import arrays_of, near

pytestmark = pytest.mark.once

CASE = "next_naflex_hf_vision"
LAYOUTS = {"huggingface": "folder", "timm": "folder", "big_vision": "file.npz"}


@pytest.mark.nightly_elsewhere
def test_a_picture_s_answer_is_that_of_its_grid(golden):
    """In the reference, pictures of other grids stand beside it in the batch, and padding: neither changes it."""
    ref, folder = golden(CASE).ref, golden(CASE).folder
    model = keras_vit.load(folder, image_size=(24, 40))
    assert near(model.predict(ref["images_fixed"], verbose=0), ref["fixed"])
    for i in (0, 1):
        count = ref["mask"][i].sum()
        rows, columns = ref["positions"][i][:count].max(axis=0) + 1
        pixels = ref["images"][i][:count].reshape(rows, columns, 8, 8, 3)
        pixels = pixels.transpose(0, 2, 1, 3, 4).reshape(1, 8 * rows, 8 * columns, 3)
        model = keras_vit.load(folder, image_size=(8 * int(rows), 8 * int(columns)))
        found = keras_vit.feature_extractor(model, ["encoded", "pooled"]).predict(pixels, verbose=0)
        assert near(found["encoded"][0], ref["encoded"][i][:count])
        assert near(found["pooled"][0], ref["pooled"][i])


def test_pixels_are_those_of_the_processor(golden):
    ref, folder = golden(CASE).ref, golden(CASE).folder
    for i in (0, 1, 3, 4):
        picture = ref[f"picture_{i}"]
        height, width = naflex_size(*picture.shape[:2], 8, 18)
        patches = ref["prep_images"][i][: ref["prep_mask"][i].sum()]
        pixels = keras_vit.load(folder, image_size=(height, width)).preprocess(picture[None])[0]
        expected = patches.reshape(height // 8, width // 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(pixels.shape)
        # torchvision's and Pillow's bytes differ by one grey level at most.
        assert np.abs(pixels - expected).max() <= 1.01 / 127.5


# Of `get_image_size_for_max_num_patches` of transformers 5.23: height, width, patch, patches, and what it returns.
SIZES = (
    (480, 640, 16, 256, 224, 288),
    (5, 200, 8, 18, 8, 144),
    (1, 1, 16, 256, 112, 112),
    (3000, 4000, 16, 1024, 432, 576),
    (427, 640, 14, 576, 266, 406),
    (9000, 17, 16, 256, 4096, 16),
    (333, 500, 32, 64, 192, 320),
    (2, 2, 8, 1, 8, 8),
)


def test_naflex_size_is_what_the_search_of_transformers_finds():
    for height, width, patch, patches, *expected in SIZES:
        assert naflex_size(height, width, patch, patches) == tuple(expected)
    for height, width in np.random.default_rng(0).integers(1, 3000, (200, 2)):
        rows, columns = (side // 16 for side in naflex_size(int(height), int(width)))
        assert 0 < rows * columns <= 256
    for wrong in ((0, 5), (5, 5, 0), (5, 5, 16, 0)):
        with pytest.raises(ValueError, match="must be a whole number"):
            naflex_size(*wrong)
    with pytest.raises(ValueError, match="too long for 1 patches"):
        naflex_size(10**9, 10**9, 16, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_written_back_in_every_layout(layout, golden, tmp_path):
    ref, folder = golden(CASE).ref, golden(CASE).folder
    model = keras_vit.load(folder)
    path = tmp_path / LAYOUTS[layout]
    keras_vit.to_checkpoint(model, path, layout=layout)
    again = keras_vit.load(path)
    pixels = ref["images_fixed"][:, :24, :24]
    assert np.array_equal(again.predict(pixels, verbose=0), model.predict(pixels, verbose=0))
    assert again.config.interpolation == "bilinear_antialias" and again.config.heads == 3
    keras_vit.to_checkpoint(again, tmp_path / "hf", layout="huggingface")
    first, second = arrays_of(folder / "model.safetensors"), arrays_of(tmp_path / "hf/model.safetensors")
    assert all(np.array_equal(second[f"vision_model.{name}"], array) for name, array in first.items())
    assert len(first) == len(second)
    metadata = json.loads((tmp_path / "hf/config.json").read_text())
    expected = json.loads((folder / "config.json").read_text())
    for key in expected.keys() - {"attention_dropout", "transformers_version"}:
        assert metadata[key] == expected[key], key


@pytest.fixture
def two_towers(golden, tmp_path):
    """The SigLIP 2 of one size as a NaFlex: the same arrays in the other shapes."""
    folder = golden("txt_hf_siglip2").folder
    path = shutil.copytree(folder, tmp_path / "naflex")
    arrays = arrays_of(folder / "model.safetensors")
    kernel = "vision_model.embeddings.patch_embedding.weight"
    arrays[kernel] = arrays[kernel].transpose(0, 2, 3, 1).reshape(48, -1)
    write_safetensors(path / "model.safetensors", sorted(arrays.items()), overwrite=True)
    config = json.loads((path / "config.json").read_text())
    config["model_type"] = "siglip2"
    config["text_config"]["model_type"] = "siglip2_text_model"
    config["vision_config"] |= {"model_type": "siglip2_vision_model", "num_patches": 16}
    del config["vision_config"]["image_size"]
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_two_towers(two_towers, golden, tmp_path):
    fixed, both = keras_vit.load_image_text(golden("txt_hf_siglip2").folder), keras_vit.load_image_text(two_towers)
    images, texts = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype("float32"), ["a cat", "a dog"]
    expected = fixed.logits(images, texts)
    assert near(np.asarray(both.logits(images, texts)), np.asarray(expected))
    keras_vit.text.save_image_text(both, tmp_path / "hf", layout="huggingface")
    first, second = arrays_of(two_towers / "model.safetensors"), arrays_of(tmp_path / "hf/model.safetensors")
    assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "siglip2"
    keras_vit.text.save_image_text(both, tmp_path / "bv.npz", layout="big_vision")
    assert arrays_of(tmp_path / "bv.npz")["img/embedding/kernel"].shape == (192, 48)
    again = keras_vit.load_image_text(tmp_path / "bv.npz")
    assert near(again.image_encoder.predict(images, verbose=0), both.image_encoder.predict(images, verbose=0))
    assert keras_vit.load_image_text(two_towers, image_size=(24, 40)).image_encoder.config.grid_size == (3, 5)


def changed(folder, **config):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def as_timm(folder, architecture, drop=()):
    model = keras_vit.load(folder)
    for file in folder.iterdir():
        file.unlink()
    keras_vit.to_checkpoint(model, folder, layout="timm", overwrite=True)
    changed(folder, architecture=architecture)
    file = folder / "model.safetensors"
    arrays = {name: array for name, array in arrays_of(file).items() if not name.startswith(drop or "-")}
    write_safetensors(file, sorted(arrays.items()), overwrite=True)


REFUSED = {
    "another table": (lambda folder: changed(folder, num_patches=16), "num_patches in .* must be 9 .*but is 16"),
    "another type": (
        lambda folder: changed(folder, model_type="siglip"),
        "one of .*siglip2.* but is siglip",
    ),
    "gap": (lambda path: as_timm(path, "naflexvit_base_patch16_gap"), "not a naflexvit"),
    "aspect ratio": (lambda path: as_timm(path, "naflexvit_base_patch16_par_gap"), "not a naflexvit"),
    "no pool": (lambda path: as_timm(path, "naflexvit_base_patch16_siglip", "attn_pool"), "not a naflexvit"),
    "a ViT's name": (lambda path: as_timm(path, "vit_base_patch16_224"), "not a naflexvit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_refused(case, golden, tmp_path):
    folder = shutil.copytree(golden(CASE).folder, tmp_path / "model")
    change, words = REFUSED[case]
    change(folder)
    with pytest.raises(ValueError, match=words):
        keras_vit.load(folder)


def test_what_is_refused(two_towers, golden, tmp_path):
    folder = golden(CASE).folder
    for load, path in ((keras_vit.load, folder), (keras_vit.load_image_text, two_towers)):
        with pytest.raises(ValueError, match=r"image_size='native'.*naflex_size"):
            load(path, image_size="native")
    wide = keras_vit.load(folder, image_size=(24, 40))
    with pytest.raises(ValueError, match="cannot store this model.*image_size"):
        keras_vit.to_checkpoint(wide, tmp_path / "no", layout="huggingface")  # whose table is that of a square
    assert list(tmp_path.iterdir()) == [two_towers]
    for layout in ("timm", "big_vision"):
        keras_vit.to_checkpoint(wide, tmp_path / LAYOUTS[layout], layout=layout, overwrite=True)
        assert keras_vit.load(tmp_path / LAYOUTS[layout]).config.grid_size == (3, 5)
