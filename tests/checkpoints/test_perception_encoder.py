"""Perception Encoder: Meta's, timm's and open_clip's files, what they compute, and what tells them from CLIP's."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import to_checkpoint
from keras_vit.checkpoints.files import open_file, write_safetensors
from tests.checkpoints.state_dicts import WIDTH, clip, linear, near, norm
from tests.compute import forward
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once

CASES = {"next_pe_spatial": ("model.pt", "pe"), "next_pe_timm_core": ("model.safetensors", "timm")}


def features(model, images):
    return forward(keras_vit.feature_extractor(model, ["encoded"]), images)["encoded"]


@pytest.mark.each
@pytest.mark.parametrize("name", [pytest.param([*CASES][0], marks=pytest.mark.nightly_elsewhere), [*CASES][1]])
def test_golden(golden, name):
    case = golden(name)
    model = keras_vit.load(case.folder / CASES[name][0])
    ref = np.load(case.folder / "ref.npz")
    for i in range(sum(key.startswith("picture_") for key in ref)):
        prepared = keras.ops.convert_to_numpy(model.preprocess(ref[f"picture_{i}"]))
        pixels = (prepared.reshape(ref[f"pixels_{i}"].shape) - ref[f"pixels_{i}"]) * 127.5
        assert np.abs(pixels).max() < 1.01 and (np.abs(pixels) > 0.5).mean() < 0.25  # Pillow 13 has another order
    for end in ("", "_resized"):
        images = ref[f"images{end}"]
        at = model if not end else model.with_config(image_size=images.shape[1:3])
        got = features(at, images)
        assert near(got, ref[f"encoded{end}"])
        if "pooled" in ref:
            assert near(forward(at, images), ref[f"pooled{end}"])
        # Any size at run time, by the same rule.
        dynamic = model.with_config(image_size="dynamic")
        assert near(features(dynamic, images), ref[f"encoded{end}"])


def meta_arrays(core=True, token=True, scale=False, text=False):
    """Random arrays in Meta's names, of 4 x 4 patches of 8 pixels, wide enough for one head."""
    shapes = clip(prefix="") | {"positional_embedding": (16 + token, WIDTH)}
    blocks = {name: shape for name, shape in shapes.items() if name.startswith("transformer.")}
    if not token:
        del shapes["class_embedding"]
    if scale:
        shapes |= {f"transformer.resblocks.{i}.ls_{j}.gamma": (WIDTH,) for i in range(2) for j in (1, 2)}
    if core:
        first = {name.removeprefix("transformer.resblocks.0."): shape for name, shape in blocks.items()}
        pool = {name: shape for name, shape in first.items() if name.startswith("attn.")} | {"probe": (1, 1, WIDTH)}
        pool |= norm("layernorm") | linear("mlp.c_fc", 256, WIDTH) | linear("mlp.c_proj", WIDTH, 256)
        shapes |= {f"attn_pool.{name}": shape for name, shape in pool.items()}
    else:
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(("ln_post", "proj"))}
    if text:
        shapes = {f"visual.{name}": shape for name, shape in shapes.items()}
        shapes |= blocks | norm("ln_final") | {"token_embedding.weight": (49408, WIDTH)}
        shapes |= {"positional_embedding": (32, WIDTH), "text_projection": (WIDTH, 24), "logit_scale": ()}
    rng = np.random.default_rng(0)
    return {name: np.float32(rng.normal(size=shape) * 0.2 + (len(shape) == 1) * 0.5) for name, shape in shapes.items()}


def written(folder, arrays):
    folder.mkdir(exist_ok=True, parents=True)
    write_safetensors(folder / "model.safetensors", arrays.items())
    return folder / "model.safetensors"


PARTS = {"core": {}, "core G": {"token": False}, "lang": {"core": False, "scale": True}}
PARTS["spatial G"] = PARTS["lang"] | {"token": False}


@pytest.mark.parametrize("name", PARTS)
def test_kinds(name, tmp_path):
    arrays = meta_arrays(**PARTS[name])
    path = written(tmp_path / "a", {f"module.visual.{name}": values for name, values in arrays.items()})
    model = keras_vit.load(path)
    config = model.config
    assert (config.pooling_heads, config.rotary_grid, config.class_token) == (8, None, "class_embedding" in arrays)
    assert (config.layer_scale is None) == ("transformer.resblocks.0.ls_1.gamma" not in arrays)
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype("float32")
    wanted = forward(model, images)
    for layout in ("pe", "timm"):  # at the size of the file both compute the same
        to_checkpoint(model, tmp_path / layout, layout=layout)
        again = keras_vit.load(tmp_path / layout)
        if name in ("core", "core G"):
            np.testing.assert_allclose(forward(again, images), wanted, rtol=0, atol=SAME_FUNCTION)
    for array, values in arrays.items():
        np.testing.assert_array_equal(open_file(tmp_path / "pe")[array].read(), values)
    official = keras_vit.load(tmp_path / "timm", numerics="official").config
    assert (official.rotary_grid, official.interpolation, official.resize) == (None, "bilinear", "squash")


REFUSED = {
    "no positions": (lambda a: a.pop("positional_embedding"), "lacks the array 'positional_embedding'"),
    "two probes": (lambda a: a.update({"attn_pool.probe": np.zeros((1, 2, 64), "f4")}), "probe has the shape"),
    "no probe": (lambda a: a.pop("attn_pool.probe"), "attn_pool"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    change, message = REFUSED[name]
    arrays = meta_arrays()
    change(arrays)
    with pytest.raises(ValueError, match=message):
        keras_vit.load(written(tmp_path, arrays))


def test_both_towers(tmp_path):
    arrays = meta_arrays(text=True)
    both = keras_vit.load_image_text(written(tmp_path / "meta", {f"module.{n}": v for n, v in arrays.items()}))
    config = both.text_encoder.config
    assert (config.context, config.gelu, config.layer_norm_epsilon, config.heads) == (32, "exact", 1e-5, 1)
    ids = both.tokenizer(["Caf\u00e9 &amp; a dog"])
    assert ids.shape == (1, 32) and ids[0, 0] == 49406 and ids.max() == 49407 and ids[0, -1] == 0
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype("float32")
    wanted = both.logits(images, ["a cat", "a dog"])
    for layout, file in {"pe": "model.safetensors", "clip": "open_clip_model.safetensors"}.items():
        keras_vit.text.save_image_text(both, tmp_path / layout, layout)
        again = keras_vit.load_image_text(tmp_path / layout)
        np.testing.assert_allclose(again.logits(images, ["a cat", "a dog"]), wanted, rtol=1e-4, atol=1e-4)
        assert (tmp_path / layout / file).is_file()
    for name, values in arrays.items():
        np.testing.assert_array_equal(open_file(tmp_path / "pe")[name].read(), values)
    metadata = json.loads((tmp_path / "clip" / "open_clip_config.json").read_text())["model_cfg"]["vision_cfg"]
    assert metadata["timm_model_name"] == "vit_pe_core_base_patch16_224"
    official = keras_vit.load_image_text(tmp_path / "clip", numerics="official").image_encoder.config
    assert official.interpolation == "bilinear" and official.rotary_grid is None
