"""The numbers of timm and transformers: every reference case of the families, and the files written back."""

import json
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import LAYOUTS, open_checkpoint, to_checkpoint
from keras_vit.checkpoints.checkpoint import OFFICIAL
from keras_vit.checkpoints.engine import extract
from keras_vit.checkpoints.files import open_file
from keras_vit.models import weights_by_path
from tests.checkpoints.state_dicts import GAMMA, LS, PATCHES, clip, norm, timm, tower, transformers, write
from tests.compute import forward
from tests.tolerances import ENCODED, LOGITS, SAME_FUNCTION

# Each case, and what a user has to say of its weights without the JSON files beside them: all are 48 wide.
CASES = {
    "fam_timm_vit": {},
    "fam_pth_zip": {},
    "fam_timm_deit_distilled": {},
    "fam_timm_dinov2_reg4": {},
    "fam_timm_clip_quickgelu": {"architecture": "vit_base_patch16_clip_quickgelu_224.openai"},
    "fam_timm_siglip2": {"architecture": "vit_so400m_patch16_siglip_256.v2_webli"},
    "fam_timm_eva02_base": {"architecture": "eva02_base_patch14_448.mim_in22k_ft_in1k"},
    "fam_hf_vit_cls": {},
    "fam_hf_dinov2_giant_cls": {},
    "fam_hf_dinov3": {"image_size": 32},
    "fam_hf_clip_full": {},
    "fam_hf_siglip_full": {},
}
# What the reference files call a result: our name, and how near we have to come. Of CLIP in timm's names the projection
# is called logits; in Hugging Face's models an answer can be what was pooled.
RESULTS = {
    "tokens_in": ("embedded", ENCODED),
    "block0": ("block_0", ENCODED),
    "block1": ("block_1", ENCODED),
    "last_block": ("block_{last}", ENCODED),
    "encoded": ("encoded", ENCODED),
    "pooled": ("pooled", LOGITS),
    "projection": ("projection", LOGITS),
    "logits": ("logits", LOGITS),
}
# What meta.json says, in its words, of the values of a config.
WORDS = {
    "position": {"learned": "all tokens", "learned_patches": "patches", "none": "none"},
    "qkv_bias": {"all": "qkv", "no_key": "qv", "none": ""},
    "final_norm": {"tokens": "before pooling", "pooled": "after pooling"},
    "rope": {None: None, "dinov3": "dinov3", "eva02": "RotaryEmbeddingCat"},
    "pooling": {"token_avg": "token and mean of patches, concatenated"},
}


# What the words of meta.json for filters mean here.
FILTERS = {"bicubic": "bicubic", "bilinear": "bilinear_pillow", "bilinear, on floats": "bilinear_antialias"}


def weights_of(case):
    return next(case.folder / name for name in ("model.safetensors", "model.pth") if (case.folder / name).is_file())


def alone(case, tmp_path):
    """The weights without what lies beside them."""
    path = tmp_path / weights_of(case).name
    shutil.copy(weights_of(case), path)
    return path


def errors(model, reference, ending=""):
    """Largest error of each result that the reference has; in standard deviations where these are more than 1."""
    last = model.config.depth - 1
    names = {f"{name}{ending}": ours.format(last=last) for name, (ours, _) in RESULTS.items()}
    names = {name: ours for name, ours in names.items() if name in reference}
    outputs = forward(keras_vit.feature_extractor(model, list(names.values())), reference[f"images{ending}"])
    found = {}
    for name, ours in names.items():
        wanted = reference[name]
        assert outputs[ours].shape == wanted.shape, name
        found[name.removesuffix(ending)] = float(np.abs(outputs[ours] - wanted).max() / max(wanted.std(), 1.0))
    return found


def too_far(found):
    return {name: error for name, error in found.items() if not error <= RESULTS[name][1]}


@pytest.mark.parametrize("name", CASES)
def test_forward(golden, name, record_property):
    case = golden(name)
    model = keras_vit.from_checkpoint(weights_of(case))
    found = errors(model, case.ref)
    print(name, found)
    record_property("errors", found)
    assert {"tokens_in", "block0", "last_block", "encoded"} <= found.keys()
    assert found.keys() & {"pooled", "projection", "logits"}
    assert too_far(found) == {}
    # What the model answers with is the last of them.
    answer = next(name for name in ("logits", "projection", "pooled") if name in case.ref)
    assert model.output_shape[1:] == case.ref[answer].shape[1:]


@pytest.mark.parametrize("name", CASES)
def test_forward_at_another_size(golden, name, record_property):
    case = golden(name)
    if "images_resized" not in case.ref:
        pytest.skip("the reference has one size")
    size = case.ref["images_resized"].shape[1:3]
    model = keras_vit.from_checkpoint(weights_of(case), image_size=size)
    found = errors(model, case.ref, "_resized")
    record_property("errors", found)
    assert {"tokens_in", "encoded"} <= found.keys() and too_far(found) == {}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.once
def test_what_a_reader_should_find(golden, name, tmp_path):
    case = golden(name)
    expected = case.meta["expect"]
    contents = open_checkpoint(weights_of(case))
    config = contents.config
    got = {
        "image_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "registers": config.register_tokens,
        "layer_norm_eps": config.layer_norm_epsilon,
        "mlp": "gelu" if config.mlp == "plain" else "swiglu",
        "mlp_norm": config.mlp == "swiglu_norm",
        "gelu": config.gelu if config.mlp == "plain" else None,
        "layer_scale": config.layer_scale is not None,
        "qkv_bias": config.attention_bias,
        "position": config.position_embedding,
        "rope": config.rotary_embedding,
        "map_gelu": config.gelu if config.pooling == "map" else None,
    }
    for key, value in expected.items():
        ours = got.get(key, getattr(config, key, None))
        # Without a token before the patches both words mean the same.
        if key != "position" or config.prefix_tokens:
            assert (WORDS[key].get(ours, ours) if key in WORDS else ours) == value, key
    assert {array.name for array in contents.arrays.values()} | set(contents.unused) == set(case.meta["arrays"])
    assert not {array.name for array in contents.arrays.values()} & set(contents.unused)

    prepared = case.meta["preprocessing"]
    assert config.pixel_mean == pytest.approx(prepared["mean"]) and config.pixel_std == pytest.approx(prepared["std"])
    assert config.filter == FILTERS[prepared["interpolation"]]
    if "crop_pct" in prepared:
        assert (config.resize, config.crop_ratio) == ("shortest", prepared["crop_pct"])
    else:
        assert config.resize == prepared["size"].partition(" ")[0]

    # Without what lies beside it the same, once the user has said what nothing tells; but for the pictures.
    path = alone(case, tmp_path)
    if expected["heads"] * 64 != expected["width"]:
        with pytest.raises(ValueError, match="Pass heads="):
            open_checkpoint(path)
    options = {key: value for key, value in CASES[name].items() if key != "image_size"}
    by_itself = open_checkpoint(path, heads=expected["heads"], **options)
    ours = by_itself.config.replace(image_size=config.image_size)
    assert by_itself.config.image_size == config.image_size or any("is a guess" in o for o in by_itself.oddities)
    pictures = ("pixel_mean", "pixel_std", "resize", "crop_ratio", "filter", "rotary_grid")
    untold = (*pictures, "layer_scale")  # what the factors started from matters no more
    assert ours.replace(**{field: getattr(config, field) for field in untold}) == config
    assert (ours.layer_scale is None) == (config.layer_scale is None)
    assert len(by_itself.oddities) > len(contents.oddities)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.once
def test_written_back(golden, name, tmp_path):
    case = golden(name)
    contents = open_checkpoint(weights_of(case))
    model = keras_vit.from_checkpoint(weights_of(case))
    layout = contents.layout.name
    path = tmp_path / "new" / "model.safetensors"
    to_checkpoint(model, path, layout=layout)
    old, new = open_file(weights_of(case)), open_file(path)
    used = {array.name for array in contents.arrays.values()}
    # transformers wants a mask token in a DINOv3, which is for training only, and gets zeros.
    assert set(new) - used == ({"embeddings.mask_token"} if name == "fam_hf_dinov3" else set()) and used <= set(new)
    for array in used:
        np.testing.assert_array_equal(new[array].read(), old[array].read(), err_msg=array)

    again = open_checkpoint(tmp_path / "new")
    assert again.config == model.config
    with pytest.raises(FileExistsError, match="overwrite=True"):
        to_checkpoint(model, path, layout=layout)
    to_checkpoint(model, tmp_path / "new", layout=layout, overwrite=True)


# A model in the names of one, written in those of another: as a state dict with a projection and what else they share.
TRANSLATIONS = {
    "ViT": (timm(head=5), {}, "huggingface", {"layer_norm_epsilon": 1e-6}),
    "BEiT-3": (timm(mlp="plain_norm", attn_norm=True, last="fc_norm", head=5), {}, "timm", {}),
    "ViT from Hugging Face": (transformers("vit", head=5), {"layer_norm_epsilon": 1e-6}, "timm", {}),
    "DINOv2 with registers": (timm(rows=PATCHES, scales=LS, registers=2), {}, "huggingface", {}),
    "DINOv2 with registers from Facebook": (
        timm(scales=LS, registers=2, register_name="register_tokens") | {"mask_token": (1, 64)},
        {},
        "timm",
        {},
    ),
    "DINOv2 with registers from Hugging Face": (transformers("dinov2_with_registers", registers=2), {}, "timm", {}),
    "DeiT-III from Facebook": (timm(rows=PATCHES, scales=GAMMA, head=5), {}, "timm", {}),
    "DINOv3": (transformers("dinov3_vit", registers=2, swiglu=True), {}, "timm", {}),
    "SigLIP": (tower("siglip"), {}, "timm", {}),
    "SigLIP from timm": (timm(cls=False, pool=True), {}, "huggingface", {}),
    "CLIP": (clip(), {}, "huggingface", {}),
    "CLIP from Hugging Face": (tower("clip", projection=24), {}, "timm", {}),
    "CLIP to open_clip": (tower("clip", projection=24), {}, "clip", {}),
}


@pytest.mark.parametrize("name", TRANSLATIONS)
@pytest.mark.once
def test_translated(name, tmp_path):
    shapes, changes, layout, _ = TRANSLATIONS[name]
    model = keras_vit.from_checkpoint(write(tmp_path / "old", shapes), grid_size=(4, 4))
    model = model.with_config(**changes) if changes else model
    to_checkpoint(model, tmp_path / "new", layout=layout)
    other = keras_vit.from_checkpoint(tmp_path / "new" / "model.safetensors")
    assert open_checkpoint(tmp_path / "new").layout.name == layout
    if layout == "timm":  # without these, timm makes a model that the arrays do not fit into
        arguments = json.loads((tmp_path / "new" / "config.json").read_text())["model_args"]
        assert arguments.get("no_embed_class", False) == ("DeiT-III" in name or "DINOv2" in name)
        assert ("swiglu_align_to" in arguments) == (name == "DINOv3")
    if layout == "huggingface":  # without these, KerasHub cannot read it
        said = json.loads((tmp_path / "new" / "config.json").read_text())
        rates = {key: value for key, value in said.items() if "drop" in key}
        needed = {"dinov2": 3, "dinov2_with_registers": 3, "dinov3_vit": 2, "vit": 2, "deit": 2}
        assert list(rates.values()) == [0.0] * needed.get(said["model_type"], len(rates))
    told = (
        "gelu",
        "layer_norm_epsilon",
        "heads",
        "image_size",
        "pooling",
        "final_norm",
        "projection",
        "classes",
        "mlp",
    )
    assert {n: getattr(other.config, n) for n in told} == {n: getattr(model.config, n) for n in told}
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    # The class token's position may have been added to it, which rounds once more.
    np.testing.assert_allclose(forward(other, images), forward(model, images), rtol=0, atol=SAME_FUNCTION)


@pytest.mark.once
def test_stored_periods_are_kept(tmp_path):
    """Facebook's DINOv3 was trained with rounded periods, which timm and transformers compute anew."""
    shapes = timm(rows=None, registers=2, register_name="storage_tokens", scales=LS, qkv="masked")
    path = write(tmp_path / "old", shapes | {"rope_embed.periods": (16,)} | norm("local_cls_norm"))
    model = keras_vit.from_checkpoint(path, grid_size=(4, 4))
    stored = open_file(path)["rope_embed.periods"].read()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model.get_layer("rotary_embedding").periods), stored)
    for layout in ("timm", "huggingface"):
        with pytest.raises(ValueError, match="'rotary_embedding/periods', which is computed"):
            to_checkpoint(model, tmp_path / "new", layout=layout)
    # In its own names it can be said; the keys' part of the bias, which a mask makes zero, is zero.
    arrays = dict(extract(model, open_checkpoint(path, grid_size=(4, 4)).layout))
    np.testing.assert_array_equal(arrays["rope_embed.periods"], stored)
    bias = open_file(path)["blocks.0.attn.qkv.bias"].read()
    np.testing.assert_array_equal(arrays["blocks.0.attn.qkv.bias"][:64], bias[:64])
    assert not arrays["blocks.0.attn.qkv.bias"][64:128].any() and bias[64:128].any()


CANNOT = {
    "no such head": (timm(dist=True, head=5), {}, "clip", "distillation_token in"),
    "epsilon": (transformers("vit", head=5), {}, "timm", "layer_norm_epsilon in .*with_config"),
    "tanh layer": (
        transformers("vit", module=False, pooler=True),
        {"layer_norm_epsilon": 1e-6},
        "timm",
        "representation",
    ),
    "head on two": (transformers("dinov2", head=5), {}, "timm", "pooling in .* 'token_avg'"),
    "DeiT-III with a head": (timm(rows=PATCHES, scales=LS, head=5), {}, "huggingface", "DINOv2, but with a head"),
    "mean after norm": (timm(last="fc_norm", head=5), {}, "huggingface", "final_norm in"),
    "official": (timm(scales=LS), {"gelu": "tanh"}, "vit_jax", "layer_scale=None"),
    "official without registers": (
        timm(registers=2, rows=PATCHES),
        {"gelu": "tanh"},
        "big_vision",
        "register_tokens=0",
    ),
}


@pytest.mark.parametrize("name", CANNOT)
@pytest.mark.once
def test_what_a_layout_cannot_say(name, tmp_path):
    shapes, changes, layout, message = CANNOT[name]
    model = keras_vit.from_checkpoint(write(tmp_path / "old", shapes), grid_size=(4, 4))
    model = model.with_config(**changes) if changes else model
    with pytest.raises(ValueError, match=message):
        to_checkpoint(model, tmp_path / "new", layout=layout)
    assert not (tmp_path / "new").exists()
    assert layout in LAYOUTS


@pytest.mark.once
def test_a_new_head(tmp_path):
    path = write(tmp_path, timm(dist=True, head=5))
    model = keras_vit.from_checkpoint(path, classes=3)
    assert model.config.distillation_head and model.output_shape == (None, 3)
    for name in ("head", "head_dist"):
        assert not keras.ops.convert_to_numpy(model.get_layer(name).kernel).any()
    features = keras_vit.from_checkpoint(write(tmp_path / "clip", clip()), include_top=False)
    assert features.output_shape == (None, 17, 64) and features.config.projection is None


SMALL = keras_vit.ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=1, mlp_width=32, classes=3)


def test_official_numbers_of_a_file_from_elsewhere(tmp_path):
    """The same weights as an official file, with what others compute from them and with the official numbers."""
    official = keras_vit.VisionTransformer(SMALL)
    rng = np.random.default_rng(0)
    for path, weight in sorted(weights_by_path(official).items()):
        weight.assign(rng.normal(0, 0.3, weight.shape) + path.endswith("gamma"))
    exact = official.with_config(gelu="exact")
    to_checkpoint(exact, tmp_path, layout="timm")
    images = rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
    publishers = keras_vit.load(tmp_path / "model.safetensors")
    officials = keras_vit.load(tmp_path / "model.safetensors", numerics="official")
    answers = [forward(model, images) for model in (publishers, exact, officials, official)]
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=SAME_FUNCTION)
    np.testing.assert_allclose(answers[2], answers[3], rtol=0, atol=SAME_FUNCTION)
    assert np.abs(answers[0] - answers[2]).max() > 5 * SAME_FUNCTION
    assert {name: getattr(officials.config, name) for name in OFFICIAL} == {
        name: getattr(official.config, name) for name in OFFICIAL
    }
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "vit_base_patch16_224"
