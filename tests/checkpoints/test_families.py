"""The numbers of timm and transformers: every reference case of the families, and the files written back."""

import contextlib
import json
import re
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import LAYOUTS, open_checkpoint, to_checkpoint
from keras_vit.checkpoints.accounting import extract
from keras_vit.checkpoints.checkpoint import note_of
from keras_vit.checkpoints.files import open_file, write_safetensors
from keras_vit.checkpoints.layouts import WRITTEN
from keras_vit.layers import resize_table
from tests.checkpoints.state_dicts import GAMMA, LS, PATCHES, clip, norm, timm, tower, transformers, write
from tests.compute import forward
from tests.tolerances import ENCODED, SAME_FUNCTION

# Files without all of what lies beside published ones.
pytestmark = pytest.mark.once
PICTURES_SAID = pytest.mark.filterwarnings("ignore:The layout .* cannot store")
ASSUMED = pytest.mark.filterwarnings("ignore:.* does not contain all settings of its model")
CASES = (
    *("fam_timm_vit", "fam_pth_zip", "fam_timm_deit_distilled", "fam_timm_dinov2_reg4", "fam_timm_clip_quickgelu"),
    *("fam_timm_siglip2", "fam_timm_eva02_base", "fam_hf_vit_cls", "fam_hf_dinov2_giant_cls", "fam_hf_dinov3"),
    *("fam_hf_clip_full", "fam_hf_siglip_full"),
)
# What the words of meta.json for filters mean here.
FILTERS = {"bicubic": "bicubic", "bilinear": "bilinear_pillow", "bilinear, on floats": "bilinear_antialias"}


def weights_of(case):
    paths = (case.folder / f"model.{ending}" for ending in ("safetensors", "pth", "pt"))
    return next(path for path in paths if path.is_file())


@ASSUMED
@pytest.mark.parametrize("name", [*CASES, "next_pe_spatial", "next_pe_timm_core"])
def test_what_is_found_and_written_back(golden, name, tmp_path):
    """How pictures are prepared, and all arrays; test_fidelity.py has what is computed."""
    case = golden(name)
    contents = open_checkpoint(weights_of(case))
    config, used = contents.config, {array.name for array in contents.arrays.values()}
    if name in CASES:
        prepared = case.meta["preprocessing"]
        assert config.pixel_mean == pytest.approx(prepared["mean"])
        assert config.pixel_std == pytest.approx(prepared["std"])
        assert config.filter == FILTERS[prepared["interpolation"]]
        assert config.resize == ("shortest" if "crop_pct" in prepared else prepared["size"].partition(" ")[0])
        assert config.crop_ratio == prepared.get("crop_pct", config.crop_ratio)
        assert used | {*contents.unused} == {*case.meta["arrays"]}
    model = keras_vit.from_checkpoint(weights_of(case))
    layout = contents.layout.name
    path = tmp_path / "new" / "model.safetensors"
    to_checkpoint(model, path, layout=layout)
    old, new = open_file(weights_of(case)), open_file(path)
    # transformers wants a mask token in a DINOv3, which is for training only, and gets zeros.
    assert set(new) - used == ({"embeddings.mask_token"} if name == "fam_hf_dinov3" else set()) and used <= set(new)
    for array in used:
        np.testing.assert_array_equal(new[array].read(), old[array].read(), err_msg=array)

    again = open_checkpoint(tmp_path / "new")
    assert again.config == model.config
    with pytest.raises(FileExistsError, match="overwrite=True"):
        to_checkpoint(model, path, layout=layout)
    to_checkpoint(model, tmp_path / "new", layout=layout, overwrite=True)


QUICK = "vit_base_patch16_clip_quickgelu_224"
# A model in the names of one, written in those of another.
TRANSLATIONS = {
    "ViT": (timm(head=5), "huggingface"),
    "BEiT-3": (timm(mlp="plain_norm", attn_norm=True, last="fc_norm", head=5), "timm"),
    "ViT from Hugging Face": (transformers("vit", head=5), "timm"),
    "DINOv2 with registers": (timm(rows=PATCHES, scales=LS, registers=2), "huggingface"),
    "Meta's DINOv2": (timm(scales=LS, registers=2, register_name="register_tokens") | {"mask_token": (1, 64)}, "timm"),
    "DINOv2 with registers from Hugging Face": (transformers("dinov2_with_registers", registers=2), "timm"),
    "DeiT-III from Facebook": (timm(rows=PATCHES, scales=GAMMA, head=5), "timm"),
    "DINOv3": (transformers("dinov3_vit", registers=2, swiglu=True), "timm"),
    "SigLIP": (tower("siglip"), "timm"),
    "SigLIP from timm": (timm(cls=False, pool=True), "huggingface"),
    "CLIP": (clip(), "huggingface"),
    "CLIP from Hugging Face": (tower("clip", projection=24), "timm"),
    "CLIP to open_clip": (tower("clip", projection=24), "clip"),
}
TOLD = "gelu layer_norm_epsilon heads image_size pooling final_norm projection classes mlp".split()


@ASSUMED
@PICTURES_SAID
@pytest.mark.parametrize("name", TRANSLATIONS)
def test_translated(name, tmp_path):
    shapes, layout = TRANSLATIONS[name]
    changes = {"layer_norm_epsilon": 1e-6} if name == "ViT from Hugging Face" else {}
    options = {"like": QUICK} if "CLIP" in name else {}
    model = keras_vit.from_checkpoint(write(tmp_path / "old", shapes), grid_size=(4, 4), **options)
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
    assert {n: getattr(other.config, n) for n in TOLD} == {n: getattr(model.config, n) for n in TOLD}
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    # The class token's position may have been added to it, which rounds once more.
    np.testing.assert_allclose(forward(other, images), forward(model, images), rtol=0, atol=SAME_FUNCTION)


@ASSUMED
def test_stored_periods_are_kept(tmp_path):
    """Facebook's DINOv3 was trained with rounded periods, which timm and transformers compute again."""
    shapes = timm(rows=None, registers=2, register_name="storage_tokens", scales=LS, qkv="masked")
    path = write(tmp_path / "old", shapes | {"rope_embed.periods": (16,)} | norm("local_cls_norm"))
    model = keras_vit.from_checkpoint(path, grid_size=(4, 4))
    stored = open_file(path)["rope_embed.periods"].read()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model.get_layer("rotary_embedding").periods), stored)
    for layout in ("timm", "huggingface"):
        with pytest.raises(ValueError, match="'rotary_embedding/periods' is computed, but this model has other values"):
            to_checkpoint(model, tmp_path / "new", layout=layout)
    # In its own names it can be said; the keys' part of the bias, which a mask makes zero, is zero.
    arrays = dict(extract(model, open_checkpoint(path, grid_size=(4, 4)).layout))
    np.testing.assert_array_equal(arrays["rope_embed.periods"], stored)
    bias = open_file(path)["blocks.0.attn.qkv.bias"].read()
    np.testing.assert_array_equal(arrays["blocks.0.attn.qkv.bias"][:64], bias[:64])
    assert not arrays["blocks.0.attn.qkv.bias"][64:128].any() and bias[64:128].any()


TINY = keras_vit.ViTConfig(image_size=16, patch_size=4, width=8, depth=1, heads=2, mlp_width=4)
PATCHES_ONLY, STEM = {"class_token": False, "pooling": "avg"}, {"stem_stages": (), "image_size": 16}
HEAD, EXACT, FINE = {"classes": 5}, {"gelu": "exact"}, {"layer_norm_epsilon": 1e-12}
TIMMS = STEM | {"gelu": "exact", "stem_epsilons": "timm"}
CLIPS_OWN = {"pre_norm": True, "patch_bias": False}
ROTARY = {"position_embedding": "none", "attention_bias": "no_key", "rotary_embedding": "dinov3"}
TIPS = {"width": 64, "heads": 1, "register_tokens": 1, "interpolation": "bilinear_antialias", "pixel_mean": 0}
TIPS |= {"pixel_std": 1, "filter": "bilinear_pillow"}
AUTHORS = TIPS | {"gelu": "exact", "layer_scale": 1.0, "position_embedding": "learned_without_registers"}
SCENIC = TIPS | {"position_embedding": "learned_patches", "filter": "bilinear_antialias"}
NAFLEX = {"width": 64, "heads": 1, "class_token": False, "pooling": "map", "interpolation": "bilinear_antialias"}
NAFLEX |= {"filter": "bilinear_pillow"}
# A layout, what becomes of a tiny config, and the field that the error names; None for none.
CONFIGS = [
    *(("clip", CLIPS_OWN | change, [*change][0]) for change in ({"crop_ratio": 0.9, "filter": "bicubic"}, HEAD)),
    *(("clip", CLIPS_OWN | {field: True}, field) for field in ("distillation_token", "attention_norm", "patch_bias")),
    ("timm", EXACT | FINE, "layer_norm_epsilon"),
    ("timm", EXACT | {"representation_size": 8}, "representation_size"),
    ("timm", EXACT | HEAD | {"pooling": "token_avg"}, "token_avg"),
    ("timm", EXACT | {"pre_norm": True, "final_norm": "pooled", "pooling": "avg"}, "patch_bias"),
    ("timm", EXACT | HEAD | {"distillation_token": True}, "distillation_head"),
    ("huggingface", HEAD | {"layer_scale": 1e-5, "mlp_width": 8}, "classifier"),
    ("huggingface", {"layer_scale": 1e-5}, "mlp_width"),
    ("huggingface", {"pooling": "avg", "final_norm": "pooled"}, "final_norm"),
    ("huggingface", CLIPS_OWN | {"gelu": "quick", "distillation_token": True}, "distillation_token"),
    ("huggingface", {"layer_scale": 1.0, "register_tokens": 3}, "learned_without_registers"),
    *(("huggingface", one, "layer_scale must be 1.0") for one in (ROTARY, {"mlp": "swiglu"})),
    ("vit_jax", {"layer_scale": 1e-5}, "layer_scale"),
    *(("big_vision", one, [*one][-1]) for one in ({"register_tokens": 2}, PATCHES_ONLY | EXACT, {"stem_stages": ()})),
    ("big_vision", PATCHES_ONLY | {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon"),
    *(("big_vision", {"pooling": pooling}, "class_token|pooling") for pooling in ("map", "avg")),
    *(("vit_jax", change, "pooling") for change in (PATCHES_ONLY | {"pooling": "map"}, {"pooling": "avg"})),
    ("vit_jax", PATCHES_ONLY | {"position_embedding": "sincos2d"}, "position_embedding"),
    ("timm", TIMMS, None),
    *(("timm", TIMMS | {field: value}, field) for field, value in (("stem_epsilons", "official"), ("stem_width", 32))),
    *(("timm", TIMMS | {field: value}, field) for field, value in (("mlp", "swiglu"), ("layer_norm_epsilon", 1e-5))),
    ("timm", TIMMS | {"stem_stages": (1, 1), "image_size": 32}, "stem_stages"),
    ("timm", TIMMS | {"stem_folded": True}, "folded\\(\\) has standardised"),
    *(("tips", AUTHORS | change, words) for change, words in (({"heads": 2}, "heads=1"), ({}, None))),
    ("tips", AUTHORS | {"register_tokens": 4}, "must have one row"),
    ("tips_scenic", AUTHORS, "layer_scale=None"),
    *(("tips_scenic", SCENIC | change, words) for change, words in (({"gelu": "exact"}, "gelu='tanh'"), ({}, None))),
    ("tips", SCENIC, "Arrays missing: .*ls1.gamma"),
    ("huggingface", NAFLEX, None),
    *(("huggingface", NAFLEX | change, [*change][0]) for change in ({"resize": "shortest"}, {"crop_ratio": 0.5})),
]


@pytest.mark.parametrize(("layout", "changes", "field"), CONFIGS)
def test_configs_that_a_layout_cannot_say(layout, changes, field):
    message = f"{layout}.* (cannot store|would be read with) .*({field})"
    with pytest.raises(ValueError, match=message) if field else contextlib.nullcontext():
        note_of(TINY.replace(**changes), LAYOUTS[layout])


# A backbone of an EoMT, the activation of its head, and what transformers would make of it.
EOMTS = {
    "DINOv2": ({}, "exact", None),
    "two activations": ({"gelu": "tanh"}, "exact", "activation must be 'tanh', .*activation='exact'"),
    "no square": ({"image_size": (16, 32)}, "exact", r"must be \(16, 16\), but the model has .*\(16, 32\)"),
    "another rotation": (ROTARY | {"rotary_embedding": "eva02"}, "exact", "embedding='dinov3' instead of 'eva02'"),
    "gated, DINOv2": ({"mlp": "swiglu"}, "relu", None),
    "gated, DINOv3": (ROTARY | {"mlp": "swiglu"}, "exact", "activation must be 'silu', .*activation='exact'"),
    "a ratio that is not an integer": ({"mlp_width": 12}, "exact", "mlp_width must be 8 or 16 .*mlp_width=12"),
}


@pytest.mark.parametrize("name", EOMTS)
def test_an_eomt_that_transformers_cannot_compute(name):
    changes, activation, message = EOMTS[name]
    backbone = TINY.replace(pooling="none", layer_scale=1.0, position_embedding="learned_patches", mlp_width=16)
    backbone = backbone.replace(**{"gelu": "exact", **changes})
    sizes = {"classes": 2, "queries": 3, "query_blocks": 1, "upscale_blocks": 1}
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        config = keras_vit.models.EoMTConfig(backbone=backbone, activation=activation, **sizes)
        note_of(config, WRITTEN[keras_vit.models.EoMTConfig])


def test_the_hybrid_of_timm_that_is_written():
    said = LAYOUTS["timm"].sidecars(TINY.replace(**TIMMS))["config.json"]
    assert said["architecture"] == "vit_tiny_r_s16_p8_224"


def test_what_open_clip_leaves_out_of_its_pictures(tmp_path):
    """Pictures of 34 pixels in patches of 8: the last two rows and columns have no effect."""
    vision = {"image_size": 34, "head_width": 64}
    config = open_checkpoint(write(tmp_path, clip(), open_clip={"model_cfg": {"vision_cfg": vision}})).config
    assert (config.image_size, config.trim) == ((32, 32), (2, 2))
    metadata = LAYOUTS["clip"].sidecars(config)["open_clip_config.json"]["model_cfg"]["vision_cfg"]
    assert metadata["image_size"] == [34, 34]


@ASSUMED
def test_a_new_head(tmp_path):
    path = write(tmp_path, timm(dist=True, head=5))
    model = keras_vit.from_checkpoint(path, classes=3)
    assert model.config.distillation_head and model.output_shape == (None, 3)
    for name in ("head", "head_dist"):
        assert not keras.ops.convert_to_numpy(model.get_layer(name).kernel).any()
    features = keras_vit.from_checkpoint(write(tmp_path / "clip", clip()), include_top=False, like=QUICK)
    assert features.output_shape == (None, 17, 64) and features.config.projection is None


HEADLESS_DEIT = {"classes": None, "distillation_head": False}


@PICTURES_SAID
def test_a_distilled_deit_without_head_answers_as_timms(golden, tmp_path):
    """timm's `forward_head` gives the mean of class and distillation token."""
    case = golden("fam_timm_deit_distilled")
    with_head = keras_vit.from_checkpoint(case.folder)
    arrays = {name: array.read() for name, array in open_file(weights_of(case)).items() if "head" not in name}
    config = json.loads((case.folder / "config.json").read_text())
    config["num_classes"] = config["model_args"]["num_classes"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", sorted(arrays.items()))
    model = keras_vit.from_checkpoint(tmp_path)
    images = case.ref["images"]
    wanted = case.ref["encoded"][:, :2].mean(axis=1)
    for headless in (model, with_head.with_config(pooling="token_dist", **HEADLESS_DEIT)):
        np.testing.assert_allclose(forward(headless, images), wanted, rtol=0, atol=ENCODED)
    to_checkpoint(model, tmp_path / "back", layout="timm")
    back = {name: array.read().tobytes() for name, array in open_file(tmp_path / "back").items()}
    assert back == {name: array.tobytes() for name, array in arrays.items()}
    assert open_checkpoint(tmp_path / "back").config == model.config
    # With another answer timm would compute something else from the file.
    with pytest.raises(ValueError, match="pooling='token_dist' instead of 'token'"):
        to_checkpoint(model.with_config(pooling="token"), tmp_path / "no", layout="timm")
    for pooling in ("avg", "none"):  # which its `VisionTransformerDistilled` refuses
        with pytest.raises(ValueError, match=f"pooling='{pooling}'"):
            to_checkpoint(model.with_config(pooling=pooling), tmp_path / "no", layout="timm")
    # transformers' DeiTModel gives the class token, and its pooler the tanh layer of it.
    with pytest.raises(ValueError, match="pooling='token' instead of 'token_dist'"):
        to_checkpoint(model, tmp_path / "no", layout="huggingface")
    to_checkpoint(model.with_config(pooling="token"), tmp_path / "hf", layout="huggingface")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == ["DeiTModel"]


CENTRE = {"do_center_crop": True, "crop_size": {"height": 16, "width": 16}, "size": {"shortest_edge": 20}}


def test_the_publishers_pictures_decide_the_size(tmp_path):
    """As facebook/dinov2-*: 518 pixels in the config, and pictures of 224."""
    config = {"model_type": "dinov2", "image_size": 32, "num_attention_heads": 1}
    prepared = {"image_processor_type": "BitImageProcessor", "resample": 3, **CENTRE}
    path = write(tmp_path, transformers("dinov2"), config=config, preprocessor=prepared)
    model = keras_vit.from_checkpoint(path)
    assert model.config.image_size == (16, 16) and (model.config.resize, model.config.crop_ratio) == ("shortest", 0.8)
    assert model.preprocess(np.zeros((50, 70, 3), "uint8")).shape == (1, 16, 16, 3)
    assert any("image size is 16 x 16" in oddity for oddity in keras_vit.inspect_checkpoint(path).oddities)
    stored = open_file(path)["dinov2.embeddings.position_embeddings"].read()
    resized = resize_table(stored, (4, 4), (2, 2), "bicubic_hf")
    for loaded, wanted in ((model, resized), (keras_vit.load(path, image_size=32), stored)):
        np.testing.assert_array_equal(loaded.get_layer("position_embedding").get_weights()[0], wanted)
    # A ViT whose two sizes differ; the official numbers are those of the file's own size.
    config = {"model_type": "vit", "image_size": 32, "num_attention_heads": 1}
    prepared = {"image_processor_type": "ViTImageProcessor", "size": {"height": 48, "width": 16}}
    path = write(tmp_path / "vit", transformers("vit", head=3), config=config, preprocessor=prepared)
    assert keras_vit.load(path).config.image_size == (48, 16)
    assert keras_vit.load(path, numerics="official").config.image_size == (32, 32)


def test_the_size_at_which_timm_tests_a_model(tmp_path):
    published = {"input_size": [3, 32, 32], "test_input_size": [3, 48, 48], "crop_pct": 0.9, "test_crop_pct": 1.0}
    published |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    config = {"architecture": "vit_base_patch16_224", "pretrained_cfg": published}
    path = write(tmp_path, timm(head=3), config=config)
    assert keras_vit.load(path).config.image_size == (48, 48) and keras_vit.load(path).config.crop_ratio == 1.0
    assert keras_vit.load(path, image_size=32).config.image_size == (32, 32)
    published["test_crop_pct"] = None
    assert open_checkpoint(write(tmp_path, timm(head=3), config=config)).config.crop_ratio == 0.9
    # What a model was made with counts more.
    config["model_args"] = {"img_size": 32}
    config = open_checkpoint(write(tmp_path, timm(head=3), config=config)).config
    assert (config.image_size, config.crop_ratio) == ((32, 32), 0.9)


PREPARED = {"mean": [0.5] * 3, "std": [0.5] * 3}
NAMED = {"architecture": "vit_base_patch16_224", "global_pool": "token", "pretrained_cfg": PREPARED}
VIT = {"model_type": "vit", "num_attention_heads": 1}
SIGLIP = {"model_type": "siglip_vision_model", "num_attention_heads": 1}
SAYS_NOTHING = {
    "timm": (timm(head=3), {}, {}, "1 attention heads are assumed.*exact GELU is assumed.*crop.*like="),
    "timm without head": (timm(), {}, {}, "the class token is assumed"),
    "timm, named": (timm(), {}, {"like": "vit_base_patch16_224"}, None),
    "timm's folder": (timm(head=3), {"config": NAMED}, {}, None),
    "official": (timm(head=3), {}, {"numerics": "official"}, "1 attention heads are assumed"),
    "transformers": (transformers("vit"), {}, {}, "without config.json.*preprocessor_config.json"),
    "pictures": (transformers("vit"), {"config": VIT}, {}, "preprocessing of .* is assumed"),
    "transformers' folder": (transformers("vit"), {"config": VIT, "preprocessor": {"size": 32}}, {}, None),
    "OpenAI": (clip() | {"input_resolution": (), "vocab_size": ()}, {}, {}, "1 attention heads are assumed"),
    "CLIP": (clip(), {}, {"like": QUICK}, None),
    "CLIP of LAION": (clip(), {}, {"like": "vit_base_patch16_clip_224"}, None),
    "siglip, 378 of 384": (tower("siglip"), {"config": SIGLIP, "preprocessor": {"size": 35}}, {}, None),
    "siglip, 51": (tower("siglip"), {"config": SIGLIP, "preprocessor": {"size": 51}}, {}, "whole number of patches"),
}


@pytest.mark.parametrize("name", SAYS_NOTHING)
def test_loading_warns_once_of_what_it_assumes(tmp_path, name):
    shapes, beside, options, message = SAYS_NOTHING[name]
    path = write(tmp_path, shapes, **beside)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keras_vit.from_checkpoint(path, **options)
    assert len(caught) == (message is not None)
    assert all(re.search(f"{path}.*{message}", str(warning.message)) for warning in caught)


CLIPS = {"timm": timm(pre_norm=True, patch_bias=False, head=24), "hf": tower("clip", projection=24), "clip": clip()}


@ASSUMED
@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_of_unknown_activation_is_not_loaded(tmp_path, name):
    path = write(tmp_path, CLIPS[name])
    with pytest.raises(ValueError, match=f"GELU of this CLIP.*like='{QUICK}'"):
        keras_vit.load(path)
    assert any("GELU of this CLIP" in oddity for oddity in keras_vit.inspect_checkpoint(path).oddities)
    for architecture, gelu in ((QUICK, "quick"), ("vit_base_patch16_clip_224", "exact")):
        assert keras_vit.load(path, like=architecture).config.gelu == gelu
    if name == "clip":
        with pytest.raises(ValueError, match="like must be a CLIP"):
            keras_vit.load(path, like="vit_base_patch16_224")


def test_timms_weights_with_the_official_numbers(golden, tmp_path):
    """As catalogue names mean them: what the official code computes from them, whose file they can be."""
    case = golden("fam_timm_hybrid")
    publisher = keras_vit.from_checkpoint(case.folder)
    with pytest.raises(ValueError, match="stem_epsilons='official' instead of"):
        keras_vit.to_checkpoint(publisher, tmp_path / "official.npz")
    official = keras_vit.from_checkpoint(case.folder, numerics="official")
    keras_vit.to_checkpoint(official, tmp_path / "official.npz")
    again = keras_vit.from_checkpoint(tmp_path / "official.npz")
    assert again.config == official.config != publisher.config
    np.testing.assert_array_equal(forward(again, case.ref["images"]), forward(official, case.ref["images"]))
