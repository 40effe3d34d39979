"""timm's architectures and transformers' classes beside ours: from the same picture to the same answers, both ways.

Each is made with two blocks and random weights and saved as its library saves it. Loaded here, it answers as there, or
`load` refuses it; written back, the library answers as before, or `to_checkpoint` refuses to write it. Pictures go
through the pipeline of each package, from the uint8 picture on. CONTRIBUTING.md says how to make an environment that
has both libraries.
"""

import json

import numpy as np
import pytest

import keras_vit

pytestmark = [pytest.mark.nightly, pytest.mark.once, pytest.mark.filterwarnings("default")]

CLOSE = 1e-5  # of the largest value: sums of float32 in another order, through two blocks


def picture():
    rows, columns = np.mgrid[0:270, 0:360] / 360
    waves = [np.sin(9 * rows + 2), np.cos(7 * columns), np.sin(11 * rows * columns + 5 * columns)]
    noise = np.random.default_rng(0).normal(size=(*rows.shape, 3))
    return np.clip(128 + 80 * np.stack(waves, -1) + 20 * noise, 0, 255).astype("uint8")


def randomize(model, seed=0):
    """Numbers under which nothing is lost: none is zero, and no activation saturates."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                weight.copy_(weight.clamp(-1, 1) + 0.1 * noise)
            elif weight.ndim == 2 or weight.ndim == 4 and "embed" not in name.split(".")[-1]:
                weight.copy_(noise / np.sqrt(weight[0].numel()))
            else:
                weight.copy_(0.3 * noise)
    return model.eval()


def close(ours, theirs, what):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} here, {theirs.shape} there"
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error <= CLOSE, f"{what}: {error:.1e} of the largest value"


def seen(model, pixels):
    """What a model sees of a picture whose right and lower edges fill no patch: 378 of 384 pixels."""
    height, width = model.config.image_size
    return pixels[:, :height, :width] if any(model.config.trim) else pixels


class Refused(Exception):
    """`load` or `to_checkpoint` says in a ValueError that it cannot do it."""


def loaded(folder, **options):
    try:
        return keras_vit.load(folder, **options)
    except ValueError as error:
        raise Refused(f"load: {error}") from error


def written(model, folder, layout):
    try:
        keras_vit.to_checkpoint(model, folder, layout=layout)
    except ValueError as error:
        raise Refused(f"to_checkpoint: {error}") from error
    return str(folder)


def agrees_or_is_refused(check, refused, *arguments):
    """One of both, and which of them does not change by accident."""
    if refused is None:
        check(*arguments)
        return
    with pytest.raises(Refused, match=refused):
        check(*arguments)


# The architectures that differ from each other in more than width, depth and the size of pictures, with their sizes.
TIMM = """
    vit_tiny_patch16_224 vit_tiny_patch16_384 vit_small_patch32_224 vit_small_patch16_384 vit_small_patch8_224
    vit_base_patch16_224 vit_base_patch16_384 vit_base_patch32_384 vit_large_patch16_224 vit_large_patch14_224
    vit_huge_patch14_224 vit_giant_patch14_224 vit_base_patch16_224_miil vit_base_patch16_plus_240
    vit_medium_patch16_gap_240 vit_medium_patch16_gap_256 vit_base_patch16_gap_224 vit_huge_patch14_gap_224
    vit_wee_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256
    vit_medium_patch16_reg1_gap_256 vit_mediumd_patch16_reg4_gap_256 vit_betwixt_patch16_reg1_gap_256
    vit_betwixt_patch16_reg4_gap_384 vit_base_patch16_reg4_gap_256 vit_so150m_patch16_reg4_gap_256
    vit_so150m_patch16_reg4_map_256 vit_so150m2_patch16_reg1_gap_256 flexivit_small flexivit_base
    deit_tiny_patch16_224 deit_base_patch16_384 deit_tiny_distilled_patch16_224 deit_base_distilled_patch16_384
    deit3_small_patch16_224 deit3_base_patch16_384 deit3_huge_patch14_224 vit_small_patch16_224.dino
    vit_small_patch14_dinov2 vit_base_patch14_dinov2 vit_giant_patch14_dinov2 vit_small_patch14_reg4_dinov2
    vit_giant_patch14_reg4_dinov2 vit_base_patch14_reg1_tipsv2 vit_so400m_patch14_reg1_tipsv2
    vit_small_patch16_dinov3 vit_small_plus_patch16_dinov3 vit_small_patch16_dinov3_qkvb vit_base_patch16_dinov3
    vit_large_patch16_dinov3 vit_huge_plus_patch16_dinov3 vit_small_patch16_lingbot
    vit_xsmall_patch16_clip_224 vit_medium_patch32_clip_224 vit_base_patch32_clip_224 vit_base_patch32_clip_448
    vit_base_patch16_clip_quickgelu_224 vit_large_patch14_clip_quickgelu_336 vit_huge_patch14_clip_378
    vit_giant_patch14_clip_224 vit_base_patch16_siglip_224 vit_base_patch16_siglip_gap_256
    vit_base_patch32_siglip_256 vit_large_patch16_siglip_gap_512 vit_so400m_patch14_siglip_224
    vit_so400m_patch14_siglip_gap_378 vit_so400m_patch14_siglip_384 vit_so400m_patch16_siglip_256
    vit_giantopt_patch16_siglip_256 vit_intern300m_patch14_448 vit_base_patch16_radio_v3 vit_giant_patch16_radio_v3
    vit_so400m_patch16_radio_v4 vit_base_patch16_rope_reg1_gap_256 vit_mediumd_patch16_rope_reg1_gap_256
    eva_large_patch14_196 eva_giant_patch14_224 eva_giant_patch14_clip_224 eva02_tiny_patch14_224
    eva02_small_patch14_336 eva02_base_patch14_448 eva02_base_patch16_clip_224 eva02_large_patch14_clip_224
    vit_pe_core_tiny_patch16_384 vit_pe_core_gigantic_patch14_448 vit_pe_lang_large_patch14_448
    vit_pe_spatial_tiny_patch16_512 vit_pe_spatial_gigantic_patch14_448
    beit3_base_patch16_224 beit3_giant_patch14_224 vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_384 vit_small_r26_s32_224
    vit_base_r50_s16_224 vit_large_r50_s32_224 test_vit test_vit2 test_vit3
""".split()
# Architectures with other arrays or another computation, and what the error says.
REFUSED_TIMM = {
    "aimv2_large_patch14_224": "not part of the model: patch_embed.norm.weight",
    "beit_base_patch16_224": "'cls_token' without 'pos_embed'",
    "beitv2_base_patch16_224": "'cls_token' without 'pos_embed'",
    "naflexvit_base_patch16_gap": "must be a naflexvit_.*_siglip",
    "samvit_base_patch16": "must have 3 axes",
    "test_vit4": "Arrays missing",
    "vit_base_mci_224": "must be a checkpoint in one of the layouts",
    "vit_base_patch16_rope_224": "rotary embedding",
    "vit_base_patch16_rope_mixed_224": "rotary embedding",
    "vit_base_patch16_rpn_224": "after each branch",
    "vit_base_patch16_xp_224": "lacks the array 'blocks.0.mlp.fc1.weight'",
    "vit_base_resnet26d_224": "pixel_mean must be",
    "vit_dlittle_patch16_reg1_gap_256": "lambda_k1",
    "vit_pwee_patch16_reg1_gap_256": "lacks the array 'blocks.0.mlp.fc1.weight'",
    "vit_relpos_small_patch16_224": "'fc_norm' without 'cls_token'",
    "vit_small_patch16_18x2_224": "lacks the array 'blocks.0.mlp.fc1.weight'",
}
# What `create_model` is given beside a name.
ARGUMENTS = {
    "tanh": {"act_layer": "gelu_tanh"},
    "quick": {"act_layer": "quick_gelu"},
    "mean": {"global_pool": "avg"},
    "mean without norm": {"global_pool": "avg", "fc_norm": False},
    "mean with the token": {"global_pool": "avg", "pool_include_prefix": True},
    "largest": {"global_pool": "max"},
    "size": {"img_size": (64, 48), "pretrained_cfg_overlay": {"input_size": (3, 64, 48)}},
    "dynamic": {"dynamic_img_size": True},
    "no token": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "scale": {"init_values": 0.5},
    "heads": {"num_heads": 6},
    "no bias": {"qkv_bias": False},
    "norm before": {"pre_norm": True},
    "norm of queries": {"qk_norm": True},
    "norms inside": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "no last norm": {"final_norm": False},
    "RMS": {"norm_layer": "rmsnorm"},
    "nearest": {"pretrained_cfg_overlay": {"interpolation": "nearest"}},
    "lanczos": {"pretrained_cfg_overlay": {"interpolation": "lanczos", "crop_pct": 0.95}},
    "bilinear": {"pretrained_cfg_overlay": {"interpolation": "bilinear", "mean": (0.1, 0.2, 0.3)}},
    "squash": {"pretrained_cfg_overlay": {"crop_mode": "squash"}},
    "border": {"pretrained_cfg_overlay": {"crop_mode": "border"}},
}
REFUSED_ARGUMENTS = ("mean with the token", "largest", "norm of queries", "RMS", "border")


def answers_of_timm(model):
    import timm
    import torch
    from PIL import Image

    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    pixels = transform(Image.fromarray(picture()))[None]
    with torch.no_grad():
        tokens = model.forward_features(pixels)
        pooled = model.forward_head(tokens, pre_logits=True)
        answer = model(pixels)
    return [x.numpy() for x in (pixels.permute(0, 2, 3, 1), tokens, pooled, answer)]


def check_against_timm(name, folder, classes=7, options=()):
    import timm

    depth = {} if name.startswith("mixer") else {"depth": 2}  # theirs is fixed
    options = {**depth, "num_classes": classes, **dict(options)}
    theirs = randomize(timm.create_model(name, **options))
    timm.models.save_for_hf(theirs, folder / "theirs", safe_serialization=True)
    ours = loaded(folder / "theirs")
    pixels, tokens, pooled, answer = answers_of_timm(theirs)
    prepared = ours.preprocess(picture())
    close(prepared, seen(ours, pixels), "pixels")
    close(ours.predict(prepared, verbose=0), answer, "answer")
    # timm pools the class and the distillation token; the heads of a model with a head read one each.
    pooling = "token_dist" if ours.config.distillation_token else ours.config.pooling
    headless = loaded(folder / "theirs", include_top=False, pooling=pooling)
    close(headless.predict(prepared, verbose=0), pooled, "pooled")
    close(loaded(folder / "theirs", include_top=False).predict(prepared, verbose=0), tokens, "tokens")
    for model, expected, what in ((ours, answer, "written"), (headless, pooled, "written without a head")):
        back = timm.create_model(f"local-dir:{written(model, folder / what, 'timm')}", pretrained=True).eval()
        again = answers_of_timm(back)
        close(again[0], pixels, f"pixels, {what}")
        close(again[1], tokens, f"tokens, {what}")
        close(again[3], expected, f"answer, {what}")


@pytest.mark.parametrize("name", [*TIMM, *REFUSED_TIMM])
def test_architectures_of_timm(name, tmp_path):
    pytest.importorskip("timm")
    agrees_or_is_refused(check_against_timm, REFUSED_TIMM.get(name), name, tmp_path)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_of_timm(case, tmp_path):
    pytest.importorskip("timm")
    refused = "load" if case in REFUSED_ARGUMENTS else None
    agrees_or_is_refused(check_against_timm, refused, "vit_tiny_patch16_224", tmp_path, 7, ARGUMENTS[case])


def test_naflex_of_timm_at_one_size(tmp_path):
    """From noise on: timm's transform for images of one size crops, its loader for NaFlex does not."""
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    theirs = randomize(timm.create_model("naflexvit_base_patch16_siglip", depth=2, num_classes=0))
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    for size in (None, (320, 192), (64, 176)):
        ours = keras_vit.load(tmp_path / "theirs", image_size=size)
        pixels = np.random.default_rng(0).normal(size=(1, *ours.config.image_size, 3)).astype("f4")
        expected = theirs.eval()(torch.from_numpy(pixels).permute(0, 3, 1, 2)).detach().numpy()
        close(ours.predict(pixels, verbose=0), expected, str(size))
    written(keras_vit.load(tmp_path / "theirs"), tmp_path / "ours", "timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    assert all(torch.equal(array, back.state_dict()[name]) for name, array in theirs.state_dict().items())


@pytest.mark.parametrize("name", ["mixer_s32_224", "mixer_b16_224"])
def test_mixers_of_timm(name, tmp_path):
    pytest.importorskip("timm")
    size = (128, 64)
    options = {"img_size": size, "pretrained_cfg_overlay": {"input_size": (3, *size)}, "mlp_ratio": (0.3, 1.7)}
    check_against_timm(name, tmp_path, 7, options)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224"])
def test_headless_models_of_timm(name, tmp_path):
    pytest.importorskip("timm")
    check_against_timm(name, tmp_path, 0)


SMALL = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 192}
CLASSES = {"num_labels": 7}
VISION = {"image_size": 48, "patch_size": 8, **SMALL}
TEXT = {"vocab_size": 50, "max_position_embeddings": 8, **SMALL}
TOWER = {"projection_dim": 40, **VISION}
BOTH = {"projection_dim": 40, "vision_config": VISION, "text_config": TEXT}
SIGLIP = {"vision_config": VISION, "text_config": TEXT}
SQUARE = {"size": {"height": 48, "width": 48}}
CROPPED = {"size": {"shortest_edge": 56}, "crop_size": {"height": 48, "width": 48}}
UNEVEN = {"size": {"height": 50, "width": 50}}

# Class, configuration, processor; which of the library's outputs `load` answers with.
HUGGINGFACE = {
    "ViTModel": (VISION, "ViT", SQUARE, "pooler_output"),
    "ViTForImageClassification": (VISION | CLASSES, "ViT", SQUARE, "logits"),
    "ViTForMaskedImageModeling": (VISION, "ViT", SQUARE, None),
    "DeiTModel": (VISION, "DeiT", CROPPED, "pooler_output"),
    "DeiTForImageClassification": (VISION | CLASSES, "DeiT", CROPPED, "logits"),
    "DeiTForImageClassificationWithTeacher": (VISION | CLASSES, "DeiT", CROPPED, "logits"),
    "ViTMAEModel": (VISION | {"mask_ratio": 0.0}, "ViT", SQUARE, None),
    "ViTMAEForPreTraining": (VISION | {"mask_ratio": 0.0}, "ViT", SQUARE, None),
    "ViTMSNModel": (VISION, "ViT", SQUARE, None),
    "ViTMSNForImageClassification": (VISION | CLASSES, "ViT", SQUARE, "logits"),
    "IJepaModel": (VISION, "ViT", SQUARE, None),
    "IJepaForImageClassification": (VISION | CLASSES, "ViT", SQUARE, "logits"),
    "Dinov2Model": (VISION, "Bit", CROPPED, "pooler_output"),
    "Dinov2ForImageClassification": (VISION | CLASSES, "Bit", CROPPED, "logits"),
    "Dinov2Backbone": (VISION, "Bit", CROPPED, None),
    "Dinov2WithRegistersModel": (VISION, "Bit", CROPPED, "pooler_output"),
    "Dinov2WithRegistersForImageClassification": (VISION | CLASSES, "Bit", CROPPED, "logits"),
    "DINOv3ViTModel": (VISION | {"num_register_tokens": 4}, "DINOv3ViT", SQUARE, "pooler_output"),
    "CLIPVisionModel": (VISION, "CLIP", CROPPED, "pooler_output"),
    "CLIPVisionModelWithProjection": (TOWER, "CLIP", CROPPED, "image_embeds"),
    "CLIPModel": (BOTH, "CLIP", CROPPED, "pooler_output"),
    "CLIPForImageClassification": (BOTH | CLASSES, "CLIP", CROPPED, "logits"),
    "MetaClip2VisionModel": (VISION, "CLIP", CROPPED, "pooler_output"),
    "MetaClip2VisionModelWithProjection": (TOWER, "CLIP", CROPPED, "image_embeds"),
    "MetaClip2Model": (BOTH, "CLIP", CROPPED, "pooler_output"),
    "MetaClip2ForImageClassification": (BOTH | CLASSES, "CLIP", CROPPED, "logits"),
    "SiglipVisionModel": (VISION, "Siglip", SQUARE, "pooler_output"),
    "SiglipModel": (SIGLIP, "Siglip", SQUARE, "pooler_output"),
    # As google/siglip-so400m-patch14-384: the patches do not fill the picture.
    "SiglipVisionModel, 50 pixels": (VISION | {"image_size": 50}, "Siglip", UNEVEN, "pooler_output"),
    "SiglipForImageClassification": (SIGLIP | CLASSES, "Siglip", SQUARE, "logits"),
}


def saved_by_transformers(name, options, processor, size, folder):
    import transformers

    cls = getattr(transformers, name)
    theirs = randomize(cls(cls.config_class(**options)))
    theirs.save_pretrained(folder)
    getattr(transformers, f"{processor}ImageProcessor")(**size).save_pretrained(folder)
    return theirs


def answers_of_transformers(model, folder):
    import torch
    import transformers

    # Pillow, where there is a choice: torchvision rounds its weights to 16 bits, one grey level off.
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(picture(), return_tensors="pt")["pixel_values"]
    options = {}
    if "MAE" in type(model).__name__:  # shuffles the patches by these numbers: leave their order
        patches = (pixels.shape[-1] // model.config.patch_size) ** 2
        options = {"noise": torch.arange(patches)[None] / patches}
    is_head = "Classification" in type(model).__name__ or "PreTraining" in type(model).__name__
    tower = model.base_model if is_head or "Masked" in type(model).__name__ else model
    tower = getattr(tower, "vision_model", tower)
    with torch.no_grad():
        tokens = tower(pixels, **options)
        if hasattr(model, "get_image_features"):
            answer = model.get_image_features(pixels)
        else:
            answer = model(pixels, **options)
    return pixels.permute(0, 2, 3, 1).numpy(), tokens, answer


def check_against_transformers(name, folder, options, processor, size, kind):
    import transformers

    name = name.partition(",")[0]
    theirs = saved_by_transformers(name, options, processor, size, folder / "theirs")
    ours = loaded(folder / "theirs")
    pixels, tokens, answer = answers_of_transformers(theirs, folder / "theirs")
    prepared = ours.preprocess(picture())
    close(prepared, seen(ours, pixels), "pixels")
    headless = loaded(folder / "theirs", include_top=False)
    pooled = loaded(folder / "theirs", include_top=False, pooling=ours.config.pooling)
    # CLIP's `last_hidden_state` comes before the last normalisation.
    before_norm = "CLIP" in name.upper() and "SIGLIP" not in name.upper()
    has_pooler = ours.config.representation_size is not None  # which `include_top=False` leaves out
    encoded = keras_vit.feature_extractor(headless, ["block_-1"]) if before_norm else headless

    def compare(tokens, answer, what=""):
        if hasattr(tokens, "feature_maps"):
            patches = tokens.feature_maps[-1].flatten(2).transpose(1, 2)
            close(headless.predict(prepared, verbose=0)[:, headless.config.prefix_tokens :], patches, f"map{what}")
            return
        found = encoded.predict(prepared, verbose=0)
        close(found["block_-1"] if before_norm else found, tokens.last_hidden_state, f"tokens{what}")
        if kind:
            # A CLIP with both towers is written as its image tower with the projection.
            expected = answer[kind if kind in answer else "image_embeds"]
            close(ours.predict(prepared, verbose=0), expected, f"answer{what}")
        if kind in ("pooler_output", "image_embeds") and "pooler_output" in tokens and not has_pooler:
            close(pooled.predict(prepared, verbose=0), tokens.pooler_output, f"pooled{what}")

    compare(tokens, answer)
    written(ours, folder / "written", "huggingface")
    (architecture,) = json.loads((folder / "written" / "config.json").read_text())["architectures"]
    back, report = getattr(transformers, architecture).from_pretrained(folder / "written", output_loading_info=True)
    missing = {name for name in report["missing_keys"] if "pooler" not in name}  # which ViTModel always has
    assert not missing and not report["unexpected_keys"] and not report["mismatched_keys"], report
    again, tokens, answer = answers_of_transformers(back.eval(), folder / "written")
    close(again, pixels, "pixels, written")
    compare(tokens, answer, f", written as {architecture}")


# From timm's files to transformers: an architecture of timm's, and fields that change.
TRANSLATED = {
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {}),
    "SigLIP": ("vit_base_patch16_siglip_224", {}),
    "DeiT without head": (
        "deit_tiny_distilled_patch16_224",
        {"classes": None, "distillation_head": False, "representation_size": 192, "fresh": "pre_logits"},
    ),
}


@pytest.mark.parametrize("case", TRANSLATED)
def test_files_of_timm_written_for_transformers(case, tmp_path):
    timm, transformers = pytest.importorskip("timm"), pytest.importorskip("transformers")
    name, changes = TRANSLATED[case]
    theirs = randomize(timm.create_model(name, depth=2, num_classes=0))
    timm.models.save_for_hf(theirs, tmp_path / "timm", safe_serialization=True)
    ours = keras_vit.load(tmp_path / "timm", **({"pooling": "token"} if changes.get("representation_size") else {}))
    ours = ours.with_config(**changes)
    written(ours, tmp_path / "written", "huggingface")
    (architecture,) = json.loads((tmp_path / "written" / "config.json").read_text())["architectures"]
    back = getattr(transformers, architecture).from_pretrained(tmp_path / "written").eval()
    pixels, _, answer = answers_of_transformers(back, tmp_path / "written")
    close(ours.predict(pixels, verbose=0), answer["pooler_output"], case)


# Classes with other arrays or another computation.
REFUSED_HUGGINGFACE = {
    "BeitForImageClassification": VISION | CLASSES,
    "Data2VecVisionModel": VISION,
    "Aimv2VisionModel": VISION,
    "BlipVisionModel": VISION,
    "YolosModel": VISION | {"image_size": [48, 48]},
}
# Of these only reading is possible: the class that would compute them has other arrays.
NOT_WRITTEN = ("CLIPForImageClassification", "MetaClip2ForImageClassification")


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_classes_of_transformers(name, tmp_path):
    pytest.importorskip("transformers")
    refused = "to_checkpoint: .*final_norm" if name in NOT_WRITTEN else None
    agrees_or_is_refused(check_against_transformers, refused, name, tmp_path, *HUGGINGFACE[name])


@pytest.mark.parametrize("name", REFUSED_HUGGINGFACE)
def test_classes_of_transformers_that_are_refused(name, tmp_path):
    pytest.importorskip("transformers")
    case = (REFUSED_HUGGINGFACE[name], "ViT", SQUARE, None)
    agrees_or_is_refused(check_against_transformers, "load", name, tmp_path, *case)


# Processors: class, arguments, and whether what they say cannot be done here.
PROCESSORS = {
    **{f"resample {n}": ("ViT", SQUARE | {"resample": n}, None) for n in (0, 1, 2, 3)},
    **{f"resample {n}": ("ViT", SQUARE | {"resample": n}, "load: .*resample") for n in (4, 5)},
    "no rescaling": ("ViT", SQUARE | {"do_rescale": False}, None),
    "rescaled to -1..1": ("ViT", SQUARE | {"rescale_factor": 1 / 127.5, "do_normalize": False}, None),
    "no resizing": ("ViT", SQUARE | {"do_resize": False}, "load: .*do_resize"),
    "not normalised": ("ViT", SQUARE | {"do_normalize": False}, None),
    "means of its own": ("ViT", SQUARE | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, None),
    "longest edge": ("Bit", CROPPED | {"size": {"longest_edge": 48}}, "load: .*size"),
    "no crop": ("Bit", CROPPED | {"do_center_crop": False}, "load: .*size"),
    "squashed, then cut": ("DeiT", CROPPED | {"size": {"height": 60, "width": 60}}, None),
    "larger crop": ("Bit", CROPPED | {"size": {"shortest_edge": 40}}, "load: .*crop_size"),
    "no square": ("Bit", CROPPED | {"crop_size": {"height": 48, "width": 40}}, "load: .*crop_size"),
    "at another size": ("Bit", {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}, None),
    "floats": ("DINOv3ViT", SQUARE | {"resample": 3}, "load: .*resample"),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_processors_of_transformers(case, tmp_path):
    """Of a model whose pictures may have any size, as those of facebook/dinov2-*."""
    pytest.importorskip("transformers")
    processor, options, refused = PROCESSORS[case]
    model = (VISION | {"image_size": 64}, processor, options, "pooler_output")
    agrees_or_is_refused(check_against_transformers, refused, "Dinov2Model", tmp_path, *model)
