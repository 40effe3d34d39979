"""The image towers of TIPS: the numbers of transformers, files of the authors and of Scenic, and what is refused."""

import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import write_npz, write_safetensors
from tests.checkpoints.state_dicts import arrays_of, near
from tests.small_models import model_of

pytestmark = pytest.mark.once

CASE = "next_tips_hf_small"
# Of the width 64, whose heads no file has to say.
SMALL = {
    **{"image_size": 56, "patch_size": 14, "width": 64, "depth": 2, "heads": 1, "mlp_width": 96},
    **{"register_tokens": 1, "interpolation": "bilinear_antialias"},
    **{"pixel_mean": 0, "pixel_std": 1, "filter": "bilinear_pillow"},
}
AUTHORS = {**SMALL, "gelu": "exact", "layer_scale": 1.0, "position_embedding": "learned_without_registers"}
SCENIC = {**SMALL, "position_embedding": "learned_patches", "filter": "bilinear_antialias"}
GATED = {"mlp": "swiglu", "gelu": "exact"}


def drawn(**fields):
    return model_of(keras_vit.ViTConfig(**fields))


def test_the_numbers_of_transformers(golden):
    ref, folder = golden(CASE).ref, golden(CASE).folder
    model = keras_vit.load(folder)
    encoded = keras_vit.feature_extractor(model, ["encoded"]).predict(ref["images"], verbose=0)["encoded"]
    assert near(encoded, ref["encoded"])
    assert near(encoded[:, 1], ref["cls2"])  # the second class token has no row of positions
    assert near(model.predict(ref["images"], verbose=0), ref["image_embedding"])
    other = ref["images_resized"]
    for resized in (keras_vit.load(folder, image_size=other.shape[1:3]), model.with_config(dynamic=True)):
        assert near(resized.predict(other, verbose=0), ref["pooled_resized"])


def test_pixels_are_of_0_to_1(golden):
    case = golden(CASE)
    model = keras_vit.load(case.folder)
    for i in range(2):
        pixels = model.preprocess(case.ref[f"picture_{i}"][None])[0]
        assert np.abs(pixels - case.ref[f"pixels_{i}_pil"]).max() < 1.5 / 255  # by another version of Pillow


def test_a_file_of_transformers_comes_back_bit_for_bit(golden, tmp_path):
    model = keras_vit.load(golden(CASE).folder)
    keras_vit.to_checkpoint(model, tmp_path, "huggingface")
    written, prefix = arrays_of(tmp_path), "vision_encoder."
    for name, array in arrays_of(golden(CASE).folder).items():
        if name.startswith(prefix) and not name.endswith("mask_token"):
            np.testing.assert_array_equal(written[name.removeprefix(prefix)], array)
    assert keras_vit.load(tmp_path).config == model.config
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "tipsv2_vision_model"


IN_MEMORY = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "cls_token": "embeddings.cls_token",
    "mask_token": "embeddings.mask_token",
    "register_tokens": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "blocks": "encoder.layer",
    "attn.proj": "attention.o_proj",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


@pytest.mark.parametrize("start", ["", "vision_model."])
def test_names_that_transformers_has_in_memory(golden, tmp_path, start):
    folder, found = golden(CASE).folder, {}
    for name, array in arrays_of(folder).items():
        if not name.startswith("vision_encoder."):
            continue
        name = name.removeprefix("vision_encoder.")
        name = f"layernorm{name[4:]}" if name.startswith("norm.") else name
        for old, new in IN_MEMORY.items():
            name = name.replace(old, new)
        parts = np.split(array, 3) if ".attn.qkv." in name else [array]
        letters = "qkv" if len(parts) == 3 else [""]
        names = [name.replace("attn.qkv", f"attention.{letter}_proj") for letter in letters]
        found |= {f"{start}{name}": part for name, part in zip(names, parts, strict=True)}
    write_safetensors(tmp_path / "model.safetensors", found.items())
    for file in ("config.json", "preprocessor_config.json"):
        shutil.copy(folder / file, tmp_path)
    pair = keras_vit.load(folder), keras_vit.load(tmp_path)
    assert pair[0].config == pair[1].config
    for old, new in zip(pair[0].get_weights(), pair[1].get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("more", [{}, GATED], ids=["plain", "swiglu"])
@pytest.mark.parametrize(("layout", "fields"), [("tips", AUTHORS), ("tips_scenic", SCENIC)])
def test_there_and_back(tmp_path, layout, fields, more):
    model = drawn(**fields | more)
    path = tmp_path / "small_vision.npz"
    keras_vit.to_checkpoint(model, path, layout)
    again = keras_vit.load(tmp_path)
    assert again.config == model.config
    for old, new in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    # Nothing but the arrays tells it.
    write_npz(tmp_path / "bare.npz", arrays_of(path).items())
    assert keras_vit.inspect_checkpoint(tmp_path / "bare.npz").config == model.config
    keras_vit.to_checkpoint(again, path, layout, overwrite=True)
    for name, array in arrays_of(tmp_path / "bare.npz").items():
        np.testing.assert_array_equal(array, arrays_of(path)[name])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"model_type": "tipsv2_text_model"}, "one of \\['tipsv2', 'tipsv2_vision_model'\\]"),
        ({"vision_config": {"hidden_act": "gelu_new"}}, "hidden_act in config.json must be 'gelu'"),
        ({"vision_config": {"hidden_size": 64}}, "for these arrays"),
    ],
)
def test_configs_that_are_refused(golden, tmp_path, metadata, message):
    for file in golden(CASE).folder.iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    vision = {**config["vision_config"], **metadata.pop("vision_config", {})}
    (tmp_path / "config.json").write_text(json.dumps(config | metadata | {"vision_config": vision}))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path)
