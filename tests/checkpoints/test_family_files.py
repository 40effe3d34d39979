"""Which model a file of PyTorch's is: every family by its arrays' names, what is refused, what is assumed."""

import dataclasses
import json
import shutil

import pytest

from keras_vit import ViTConfig, load_image_text, models
from keras_vit.checkpoints import LAYOUTS, inspect_checkpoint, open_checkpoint
from keras_vit.checkpoints.accounting import check_arrays
from tests.checkpoints.state_dicts import (
    GAMMA,
    HIDDEN,
    LS,
    OPENAI_TEXT,
    PATCHES,
    TEXT,
    clip,
    linear,
    norm,
    timm,
    tower,
    transformers,
    write,
    write_beside,
)

pytestmark = pytest.mark.once

DINOV3 = {"rows": None, "registers": 4, "scales": GAMMA}

# Who publishes it: its arrays, and the fields of the config that differ from those of a plain ViT in its names. First
# what several of them have in common.
BICUBIC = {"interpolation": "bicubic"}
HEAD, SCALE, REGISTERS, AVG = {"classes": 11}, {"layer_scale": 1e-5}, {"register_tokens": 4}, {"pooling": "avg"}
PATCHES_ONLY, NO_CLASS = {"position_embedding": "learned_patches"}, {"class_token": False}
FC_NORM = AVG | {"final_norm": "pooled"}
ROPE3 = SCALE | REGISTERS | {"position_embedding": "none", "rotary_embedding": "dinov3", "layer_norm_epsilon": 1e-5}
NO_KEY, SWIGLU, NO_QKV = {"attention_bias": "no_key"}, {"mlp": "swiglu"}, {"attention_bias": "none"}
EVA02 = NO_KEY | {"rotary_embedding": "eva02"}
CLIP = {"pre_norm": True, "patch_bias": False, "layer_norm_epsilon": 1e-5}
GAP4, REGISTERS_ONLY = {"cls": False, "registers": 4, "last": "fc_norm"}, NO_CLASS | REGISTERS | FC_NORM
NORMED = {"qkv": "separate", "mlp": "unpacked_norm"}
TIMM = {
    "augreg": (timm(head=11), HEAD),
    "in21k without head": (timm(), {}),
    "gap": (timm(cls=False), NO_CLASS | AVG),
    "gap, fc_norm": (timm(last="fc_norm", head=11), FC_NORM | HEAD),
    "no qkv bias, gap": (timm(cls=False, qkv="none", scales=LS), NO_CLASS | AVG | NO_QKV | SCALE),
    "InternViT": (timm(scales=LS, last=None), SCALE | {"final_norm": "none"}),
    "DeiT distilled": (timm(dist=True, head=11), HEAD | {"distillation_token": True, "distillation_head": True}),
    "DeiT distilled without head": (timm(dist=True), {"distillation_token": True, "pooling": "token_dist"}),
    "DeiT-III": (timm(rows=PATCHES, scales=LS, head=11), PATCHES_ONLY | SCALE | HEAD),
    "DINOv2 giant": (timm(scales=LS, mlp="packed"), SCALE | SWIGLU),
    "DINOv2 reg4": (timm(rows=PATCHES, scales=LS, registers=4), SCALE | REGISTERS | PATCHES_ONLY),
    "reg4_gap": (timm(**GAP4, rows=PATCHES, scales=LS), REGISTERS_ONLY | SCALE | PATCHES_ONLY),
    "so150m reg4_gap": (timm(**GAP4, rows=4 + PATCHES), REGISTERS_ONLY),
    "SigLIP": (timm(cls=False, pool=True), NO_CLASS | {"pooling": "map"}),
    "CLIP": (timm(pre_norm=True, patch_bias=False, head=24), CLIP | {"classes": 24}),
    "DINOv3": (timm(**DINOV3, qkv="none"), ROPE3 | NO_QKV | AVG),
    "DINOv3 qkvb, S+": (timm(**DINOV3, qkv="q_bias", mlp="unpacked"), ROPE3 | NO_KEY | SWIGLU | AVG),
    "rope_reg1_gap": (
        timm(cls=False, rows=None, registers=1, scales=GAMMA, qkv="q_bias", last="fc_norm"),
        NO_CLASS | SCALE | EVA02 | FC_NORM | {"register_tokens": 1, "position_embedding": "none"},
    ),
    "BEiT-3": (
        timm(mlp="plain_norm", attn_norm=True, last="fc_norm", head=11),
        FC_NORM | HEAD | {"attention_norm": True, "mlp": "plain_norm", "layer_norm_epsilon": 1e-5},
    ),
    "EVA giant": (timm(qkv="q_bias", last="fc_norm", head=11), NO_KEY | FC_NORM | HEAD),
    "EVA-02 S": (timm(qkv="q_bias", mlp="packed", last="fc_norm", head=11), EVA02 | SWIGLU | FC_NORM | HEAD),
    "EVA-02 B": (timm(**NORMED, last="fc_norm", head=11), EVA02 | FC_NORM | HEAD | {"mlp": "swiglu_norm"}),
    "EVA-02-CLIP L": (
        timm(**NORMED, attn_norm=True, head=11),
        EVA02 | HEAD | {"attention_norm": True, "mlp": "swiglu_norm"},
    ),
}
MASK, OFFSET = {"mask_token": (1, 64)}, {"interpolation": "bicubic_offset"}
NO_REGISTERS = REGISTERS | {"position_embedding": "learned_without_registers"}
FACEBOOK = {
    "DINOv2": (timm(scales=LS) | MASK, SCALE | OFFSET),
    "DINOv2 parts": ({n.replace("blocks.", "blocks.0."): s for n, s in timm(scales=LS).items()} | MASK, SCALE | OFFSET),
    "DINOv2 giant": (timm(scales=LS, mlp="w12") | MASK, SCALE | SWIGLU | OFFSET),
    "DINOv2 registers": (timm(scales=LS, registers=4, register_name="register_tokens") | MASK, SCALE | NO_REGISTERS),
    "DINOv3": (
        timm(rows=None, registers=4, register_name="storage_tokens", scales=LS, qkv="masked", mlp="w123")
        | {"rope_embed.periods": (16,), "mask_token": (1, 64)}
        | norm("local_cls_norm"),
        ROPE3 | NO_KEY | SWIGLU,
    ),
    "DeiT-III": (timm(rows=PATCHES, scales=GAMMA, head=11), PATCHES_ONLY | SCALE | HEAD),
    "MAE": (
        timm()
        | linear("decoder_embed", 8, 64)
        | {"mask_token": (1, 1, 8), "decoder_pos_embed": (1, 17, 8), "decoder_blocks.0.norm1.weight": (8,)},
        {"interpolation": "bicubic_hf"},
    ),
}


FIELDS = (
    *("class_token", "distillation_token", "distillation_head", "register_tokens", "position_embedding", "pre_norm"),
    *("rotary_embedding", "patch_bias", "attention_bias", "attention_norm", "mlp", "gelu", "layer_scale", "pooling"),
    *("layer_norm_epsilon", "final_norm", "projection", "representation_size", "classes", "interpolation"),
)


def fields(config, expected):
    """The fields of a config that differ from a plain ViT's in the same names, except for sizes and pictures."""
    plain = {field.name: field.default for field in dataclasses.fields(ViTConfig) if field.name in FIELDS}
    plain |= {"gelu": "exact", "interpolation": "bicubic"}
    assert expected.keys() <= plain.keys()
    sizes = {"image_size": (32, 32), "patch_size": (8, 8), "width": 64, "depth": 2, "mlp_width": HIDDEN, "heads": 1}
    assert {name: getattr(config, name) for name in sizes} == sizes
    return {name: getattr(config, name) for name in plain}, {**plain, **expected}


def opened(path, **options):
    contents = open_checkpoint(path, **options)
    check_arrays(contents, str(path))
    return contents


DINOV2, DIST = SCALE | {"layer_norm_epsilon": 1e-6}, {"distillation_token": True}
HUGGING_FACE = {
    "ViT": (transformers("vit", head=11), HEAD),
    "ViT in21k": (transformers("vit", module=False, pooler=True), {"representation_size": 64}),
    "ViT with pooler and head": (transformers("vit", pooler=True, head=11), HEAD),
    "DeiT": (transformers("deit", head=11), DIST | HEAD),
    "DeiT without head": (transformers("deit", module=False, pooler=True), DIST | {"representation_size": 64}),
    "DeiT with teacher": (
        {name.replace("classifier", "cls_classifier"): shape for name, shape in transformers("deit", head=11).items()}
        | linear("distillation_classifier", 11, 64),
        DIST | HEAD | {"distillation_head": True},
    ),
    "MAE": (transformers("vit_mae") | linear("decoder.decoder_embed", 8, 64) | {"decoder.mask_token": (1, 1, 8)}, {}),
    "I-JEPA": (transformers("ijepa", head=11), NO_CLASS | AVG | HEAD),
    "DINOv2": (transformers("dinov2"), DINOV2),
    "DINOv2, classes": (
        transformers("dinov2", head=11, swiglu=True) | {"dinov2.embeddings.mask_token": (1, 64)},
        DINOV2 | SWIGLU | HEAD | {"pooling": "token_avg"},
    ),
    "DINOv2 registers": (transformers("dinov2_with_registers", registers=4), DINOV2 | NO_REGISTERS | BICUBIC),
    "DINOv3": (
        transformers("dinov3_vit", registers=4, swiglu=True) | {"embeddings.mask_token": (1, 1, 64)},
        ROPE3 | NO_KEY | SWIGLU,
    ),
}
QUICK = CLIP | {"gelu": "quick"}
SIGLIP = NO_CLASS | {"gelu": "tanh", "layer_norm_epsilon": 1e-6, "pooling": "map"}
TOWERS = {
    "CLIP": (
        tower("clip", projection=24) | TEXT | {"vision_model.embeddings.position_ids": (1, 17)},
        QUICK | {"projection": 24},
    ),
    "CLIP for classes": (tower("clip", head=11), QUICK | AVG | HEAD | {"final_norm": "none"}),
    "CLIP of transformers 5": (tower("clip", prefix=""), QUICK),
    "SigLIP": (tower("siglip") | TEXT | {"logit_bias": ()}, SIGLIP),
    "SigLIP of transformers 5": (tower("siglip", prefix=""), SIGLIP),
    "SigLIP for classes": (tower("siglip", head=11), SIGLIP | AVG | HEAD),
    "SigLIP without head": (tower("siglip", pool=False), SIGLIP | AVG),
}


LIBRARIES = {"timm": TIMM, "Facebook": FACEBOOK, "transformers": HUGGING_FACE | TOWERS}


@pytest.mark.parametrize(("library", "name"), [(library, name) for library in LIBRARIES for name in LIBRARIES[library]])
def test_by_arrays_alone(tmp_path, library, name):
    shapes, expected = LIBRARIES[library][name]
    path, options = write(tmp_path, shapes), {} if library == "timm" else {"grid_size": (4, 4)}
    if library == "timm" and "rotary_embedding" in expected and "pos_embed" not in shapes:  # nothing tells the size
        assert any("is a guess" in oddity for oddity in opened(path, image_size=32).oddities)
        options = {"grid_size": (4, 4)}
    if library == "transformers":
        expected = {"layer_norm_epsilon": 1e-12, "interpolation": "bicubic_hf", **expected}
    contents = opened(path, **options)
    got, wanted = fields(contents.config, expected)
    assert got == wanted
    assert {array.name for array in contents.arrays.values()} | set(contents.unused) == shapes.keys()
    version = 5 if name.endswith("5") else 4
    words = {"timm": "timm", "Facebook": f"Facebook {name.split()[0]}", "transformers": f"transformers {version}"}
    assert words[library] in contents.dialect
    assert contents.layout.name == ("huggingface" if library == "transformers" else "timm")
    if library == "timm":
        assert not contents.unused and contents.prefix == ""
    if library != "Facebook":
        missing = "without config.json" if library == "transformers" else "1 attention heads are assumed"
        assert any(missing in oddity for oddity in contents.oddities)


def test_openai_and_open_clip(tmp_path):
    shapes = clip() | OPENAI_TEXT
    alone = opened(write(tmp_path / "openai", shapes))
    got, wanted = fields(alone.config, QUICK | {"projection": 24})
    assert got == wanted and (alone.dialect, alone.prefix) == ("OpenAI", "visual.")
    assert sorted(alone.unused) == sorted(OPENAI_TEXT)

    prepared = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bilinear", "resize_mode": "squash"}
    vision = {"image_size": 32, "head_width": 16, "patch_size": 8}
    said = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": prepared}
    # The config.json of timm's repositories is about another model of the same weights.
    timms = {"architecture": "vit_base_patch32_clip_224", "num_classes": 24, "model_args": {"num_heads": 2}}
    exact = opened(write(tmp_path / "open_clip", shapes, open_clip=said, config=timms)).config
    assert (exact.gelu, exact.heads, exact.filter, exact.resize) == ("exact", 4, "bilinear_pillow", "squash")
    assert (exact.pixel_mean, exact.pixel_std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    said["model_cfg"]["quick_gelu"] = True
    assert opened(write(tmp_path / "quick", shapes, open_clip=said)).config.gelu == "quick"
    said["model_cfg"]["vision_cfg"]["pool_type"] = "attn"
    for message, wrong in {
        "pool_type in .* but is attn": said,
        "global_average_pool in .* but is True": {"model_cfg": {"vision_cfg": {"global_average_pool": True}}},
        "resize_mode in .* but is longest": {"preprocess_cfg": {"resize_mode": "longest"}},
        "mode=L .* not supported": {"preprocess_cfg": {"mode": "L"}},
    }.items():
        with pytest.raises(ValueError, match=message):
            open_checkpoint(write(tmp_path / "wrong", shapes, open_clip=wrong))


def test_of_several_models_the_one_that_is_published(tmp_path):
    shapes = timm()
    both = {f"student.module.backbone.{name}": shape for name, shape in shapes.items()}
    both |= {f"teacher.backbone.{name}": shape for name, shape in shapes.items()}
    both |= {"teacher.head.mlp.0.weight": (8, 64), "optimizer.state.0.exp_avg": (8,), "dino_loss.center": (1, 8)}
    contents = opened(write(tmp_path / "dino", both))
    assert (contents.prefix, contents.dialect) == ("teacher.backbone.", "Facebook DINO")
    assert contents.config.interpolation == "bicubic_offset" and len(contents.unused) == len(shapes) + 3

    shapes = timm(cls=False)
    both = {f"{name}.module.{key}": shape for key, shape in shapes.items() for name in ("encoder", "target_encoder")}
    contents = opened(write(tmp_path / "ijepa", both | {"predictor.module.predictor_pos_embed": (1, 16, 8)}))
    assert (contents.prefix, contents.dialect) == ("target_encoder.", "Facebook I-JEPA")

    shapes = timm(last="fc_norm", head=11)
    tuned = opened(write(tmp_path / "mae", {f"model.{name}": shape for name, shape in shapes.items()}))
    assert (tuned.dialect, tuned.config.interpolation, tuned.config.pooling) == ("Facebook MAE", "bicubic_hf", "avg")

    shapes = timm()
    averaged = {f"state_dict{ending}.{name}": shape for name, shape in shapes.items() for ending in ("", "_ema")}
    assert opened(write(tmp_path / "ema", averaged)).prefix == "state_dict_ema."
    with pytest.raises(ValueError, match=r"several models, with the prefixes \['a.', 'b.'\]"):
        open_checkpoint(write(tmp_path / "ab", {f"{p}.{name}": shape for name, shape in shapes.items() for p in "ab"}))


B = "blocks.0."
STAGES = "patch_embed.backbone.stages"
REFUSED = {
    "BEiT": (timm() | {f"{B}attn.relative_position_bias_table": (10, 1)}, "relative_position_bias_table"),
    "NaFlex": (timm() | linear("embeds.proj", 64, 64), "is not a naflexvit_.*_siglip"),
    "another network before it": (timm() | {"patch_embed.backbone.0.conv.weight": (8, 3, 7, 7)}, r"backbone.0.conv"),
    "stages without end": (timm() | {f"{STAGES}.9.blocks.0.conv1.weight": (8, 8, 1, 1)}, "go up to 10"),
    "units without end": (timm() | {f"{STAGES}.0.blocks.99999999.conv1.weight": (8, 8, 1, 1)}, "has 100,000,000"),
    "rpn": (timm(cls=False, qkv="none", last="fc_norm"), "vit_.*_rpn"),
    "Naver's rotary embedding": (timm(rows=None), r"vit_\*_rope"),
    "EVA-02-E": (timm(qkv="q_bias", width=1792, depth=1), "EVA-02-E"),
    "no norm biases": ({k: s for k, s in timm().items() if k != f"{B}norm1.bias"}, f"missing: {B}norm1.bias"),
    "norm and fc_norm": (timm() | norm("fc_norm"), "not part of a known model: norm.bias, norm.weight"),
    "half a bias": (timm(qkv="none") | {f"{B}attn.q_bias": (64,)}, "(True, False, False)"),
    "patches without pixels": (timm(**DINOV3) | {"patch_embed.proj.weight": (64, 3, 0, 8)}, "must not be empty"),
    "patches of one number": (
        {"embeds.proj.weight": (), "embeds.pos_embed": (1, 4, 4, 64), "attn_pool.latent": (1, 1, 64)},
        r"must have 2 axes, but its shape is \(\)",
    ),
    "a block twice": (timm() | {"blocks.0.0.norm1.weight": (64,)}, "differ only in the number of a chunk"),
    "a head twice": (transformers("vit", head=11) | {"vit.classifier.weight": (11, 64)}, "prefix 'vit.' and without"),
    "no square": (
        tower("siglip", prefix="") | {"embeddings.patch_embedding.weight": (64, 190)},
        "three channels, but 190 values",
    ),
    "foreign tower": (tower("clip") | {"language_model.embed.weight": (8, 8)}, "language_model.embed.weight"),
    "DINOv3 with a head": (transformers("dinov3_vit", registers=4, head=11), "classifier"),
    "layer scale of open_clip": (clip() | {"visual.transformer.resblocks.0.ls_1.gamma": (64,)}, "ls_1.gamma"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, name):
    shapes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        inspect_checkpoint(write(tmp_path, shapes), grid_size=(4, 4))


OTHERS = "vit_base_patch16_rpn_224 vit_pe_core_base_patch16_224 eva02_enormous_patch14_clip_224"
ROPES = "vit_small_patch16_rope_ape_224.naver_in1k vit_base_patch16_rope_224 vit_small_patch16_rope_mixed_ape_224"


@pytest.mark.parametrize("architecture", [*OTHERS.split(), *ROPES.split()])
def test_refused_by_name(tmp_path, architecture):
    """The arrays are those of other families: with a name that is one of theirs, the same file is read."""
    path = write(tmp_path, timm(rows=PATCHES, scales=GAMMA, head=11))
    with pytest.raises(ValueError, match=architecture.partition(".")[0]):
        open_checkpoint(path, like=architecture)
    (tmp_path / "config.json").write_text(f'{{"architecture": "{architecture.partition(".")[0]}"}}')
    with pytest.raises(ValueError, match=architecture.partition(".")[0]):
        open_checkpoint(path)
    (tmp_path / "config.json").unlink()
    assert opened(path, like="deit3_small_patch16_224.fb_in1k").config.classes == 11


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("DINOv2-S/15", "like must be a variant .* but 'DINOv2-S/15' was given. Did you mean 'DINOv2-S/14'"),
        ("resnet50.a1_in1k", "or a timm model name such as 'vit_base_patch16_224', but 'resnet50.a1_in1k'"),
        ("BiT-R50x1", "is a BiT"),
        ("DINOv2-S/14", "like='DINOv2-S/14' does not fit .* width=64, depth=2.*has width=384"),
    ],
)
def test_a_model_that_a_file_is_not_like(tmp_path, like, message):
    path = write(tmp_path, timm())
    with pytest.raises(ValueError, match=message):
        open_checkpoint(path, like=like)
    with pytest.raises(TypeError, match="like must be a variant"):
        open_checkpoint(path, like=3)


def test_a_variant_stands_for_what_a_bare_file_does_not_tell(tmp_path):
    """Of one and the same file, as nothing but its user knows what it computes; JSON files beside it know it."""
    config = models.variant_config("ViT-Ti/16", classes=11)
    shapes = {row.name: row.shape for row in LAYOUTS["timm"].rows(config)}
    path = write(tmp_path, shapes)
    for like in ("ViT-Ti/16", "DeiT-Ti/16"):
        contents, known = open_checkpoint(path, like=like), models.variant_config(like)
        for field in ("heads", "gelu", "layer_norm_epsilon", "interpolation", "pixel_mean", "crop_ratio", "filter"):
            assert getattr(contents.config, field) == getattr(known, field)
        assert all(warning.kind == "note" for warning in contents.warnings)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}))
    assert open_checkpoint(path, like="DeiT-Ti/16").config.interpolation == "bicubic"
    with pytest.raises(ValueError, match="the file has gelu='exact', but ViT-Ti/16 has gelu='tanh'"):
        open_checkpoint(path, like="ViT-Ti/16")
    with pytest.raises(ValueError, match="config.json has architecture=vit_tiny_patch16_224, but like="):
        open_checkpoint(path, like="deit_tiny_patch16_224")


def test_a_projection_has_no_bias(tmp_path):
    shapes = timm(pre_norm=True, patch_bias=False, head=24)
    contents = opened(write(tmp_path, shapes, zeros=["head.bias"]))
    assert (contents.config.projection, contents.config.classes) == (24, None)
    assert any("projection" in oddity for oddity in contents.oddities)


def test_what_architectures_tell(tmp_path):
    path = write(tmp_path, timm(pre_norm=True, patch_bias=False))
    for name, gelu in (
        ("vit_base_patch32_clip_224.openai", "exact"),
        ("vit_base_patch32_clip_quickgelu_224.openai", "quick"),
        ("vit_so400m_patch16_siglip_gap_384", "tanh"),
        ("vit_so400m_patch14_siglip_378", "exact"),
    ):
        assert opened(path, like=name).config.gelu == gelu
    assert opened(path, like="test_vit.r160_in1k").config.heads == 2
    assert opened(path, like="flexivit_small.1200ep_in1k").config.interpolation == "bilinear"
    pooled = write(tmp_path / "map", timm(registers=1, rows=PATCHES, pool=True))
    assert opened(pooled, like="timm/test_vit3.r160_in1k").config.map_prefix
    assert not opened(pooled, like="vit_so150m_patch16_reg4_map_256").config.map_prefix
    with pytest.raises(ValueError, match="is a timm model name"):
        open_checkpoint(write(tmp_path / "hf", transformers("vit")), like="vit_base_patch16_224")


def test_heads(tmp_path):
    for i, (shapes, options, heads) in enumerate(
        [
            (timm(width=1280, depth=1), {}, 16),
            (timm(width=1280, depth=1, **DINOV3, qkv="none"), {}, 20),
            (timm(width=1536, depth=1, scales=LS, mlp="packed"), {}, 24),
            (timm(width=1536, depth=1, cls=False, pool=True), {}, 16),
            (timm(width=1152, depth=1), {}, 16),
            (timm(width=768, depth=1, cls=False), {"like": "vit_base_patch16_gap_224"}, 16),
        ]
    ):
        assert opened(write(tmp_path / str(i), shapes), grid_size=(4, 4), **options).config.heads == heads


def test_what_model_args_tell(tmp_path):
    arguments = {"act_layer": "gelu_tanh", "num_heads": 2, "img_size": [16, 64], "init_values": 0.5}
    config = {"architecture": "vit_base_patch16_224", "global_pool": "avg", "model_args": arguments}
    said = opened(write(tmp_path / "a", timm(scales=LS), config=config)).config
    assert (said.gelu, said.heads, said.image_size, said.layer_scale, said.pooling) == ("tanh", 2, (16, 64), 0.5, "avg")
    prefix = {**config, "model_args": {"pool_include_prefix": True}}
    for message, wrong in {
        "act_layer in .* is relu": {**config, "model_args": {"act_layer": "relu"}},
        "global_pool .* but is avgmax": {**config, "global_pool": "avgmax"},
        "crop_mode in .* but is border": {**config, "pretrained_cfg": {"crop_mode": "border"}},
        "crop_ratio must be .* 1.5": {**config, "pretrained_cfg": {"crop_pct": 1.5}},
        "pool_include_prefix=true": prefix,
        "use_post_norm in .* must be False": {**config, "model_args": {"use_post_norm": True}},
    }.items():
        with pytest.raises(ValueError, match=message):
            open_checkpoint(write(tmp_path / "wrong", timm(), config=wrong))
    newer = {**config, "model_args": {"use_value_norm": True}}  # an argument that no array tells, of a timm to come
    said = open_checkpoint(write(tmp_path / "newer", timm(), config=newer)).warnings
    assert ["use_value_norm" in notice.text for notice in said if notice.kind == "assumed"] == [True]
    turned = {"architecture": "vit_small_patch16_dinov3", "model_args": {"rope_temperature": 50}}
    with pytest.raises(ValueError, match="rope_temperature in .* must be 100"):
        open_checkpoint(write(tmp_path / "turned", timm(**DINOV3, qkv="none"), config=turned))
    open_checkpoint(write(tmp_path / "patches", timm(cls=False), config=prefix))  # the same: there are no others
    grid = {"architecture": "eva02_tiny_patch14_336", "model_args": {"ref_feat_shape": 5}}
    eva02 = timm(qkv="q_bias", mlp="packed", last="fc_norm")
    assert opened(write(tmp_path / "d", eva02, config=grid)).config.rotary_grid == (5, 5)
    heads = {"architecture": "vit_pe_core_base_patch16_224", "model_args": {"attn_pool_num_heads": None}}
    pe = timm(pre_norm=True, patch_bias=False, pool=True)
    assert opened(write(tmp_path / "pe", pe, config=heads)).config.pooling_heads is None  # as many as the blocks
    older = {"architecture": "vit_base_patch16_224", "mean": [0, 0, 0], "std": [1, 1, 1], "crop_pct": 0.875}
    said = opened(write(tmp_path / "e", timm(), config=older)).config
    assert (said.pixel_mean, said.pixel_std, said.crop_ratio) == ((0.0,) * 3, (1.0,) * 3, 0.875)


def test_heads_that_nothing_tells(tmp_path):
    path = write(tmp_path, timm(width=48))
    with pytest.raises(ValueError, match=r"width 48 is not a multiple of 64"):
        open_checkpoint(path)
    with pytest.raises(ValueError, match="width 48 is not a multiple of 64.*like=.*of this width"):
        open_checkpoint(path, like="DINOv2-S/14")


def test_a_config_of_another_file(tmp_path):
    shapes, config = transformers("vit", module=False, pooler=True), {"model_type": "vit", "num_attention_heads": 1}
    for message, wrong in {
        "hidden_size in config.json must be 64 for these arrays, but is 768": {"hidden_size": 768},
        "model_type in .* must be one of .* but is beit": {"model_type": "beit"},
        "hidden_act": {"hidden_act": "relu"},
        "layer_norm_epsilon must be .* '1e-6'": {"layer_norm_eps": "1e-6"},
        "heads must be .* 2.5": {"num_attention_heads": 2.5},
        "pooler_act": {"pooler_act": "relu"},
    }.items():
        with pytest.raises(ValueError, match=message):
            open_checkpoint(write(tmp_path, shapes, config=config | wrong))


@pytest.mark.nightly
@pytest.mark.parametrize("value", [None, True, 0, -1, 1e400, 10**308, 10**400, "x", [], {}, [1, 2], {"a": 1}])
def test_configs_that_make_no_sense_are_errors_of_the_file(tmp_path, value):
    """Whatever stands where something else was expected: a ValueError that says so, or it does not matter."""
    keys = {
        "hf": "model_type hidden_act layer_norm_eps num_attention_heads image_size hidden_size id2label vision_config",
        "timm": "architecture global_pool model_args pretrained_cfg label_names mean",
        "args": "num_heads img_size act_layer init_values ref_feat_shape pool_include_prefix",
        "pe": "attn_pool_num_heads ref_feat_shape",
        "open_clip": "image_size head_width norm_kwargs act_kwargs pool_type ls_init_value layers mlp_ratio",
        "preprocessor": "image_mean image_std resample size crop_size do_center_crop rescale_factor",
    }
    cases = [("vit", {"config": {"num_attention_heads": 1, key: value}}) for key in keys["hf"].split()]
    cases += [("vit", {"preprocessor": {key: value}}) for key in keys["preprocessor"].split()]
    cases += [("timm", {"config": {"architecture": "vit", key: value}}) for key in keys["timm"].split()]
    cases += [("timm", {"config": {"architecture": "vit", "model_args": {key: value}}}) for key in keys["args"].split()]
    cases += [("pe", {"config": {"architecture": "vit_pe_", "model_args": {key: value}}}) for key in keys["pe"].split()]
    cases += [("clip", {"open_clip": {key: value}}) for key in ("model_cfg", "preprocess_cfg")]
    vision = [{"model_cfg": {"vision_cfg": {key: value}}} for key in keys["open_clip"].split()]
    cases += [("clip", {"open_clip": said}) for said in vision]
    shapes = {"vit": transformers("vit", head=2), "timm": timm(scales=LS, head=2), "clip": clip()}
    shapes["pe"] = timm(pre_norm=True, patch_bias=False, pool=True)
    paths = {name: write(tmp_path / name, arrays) for name, arrays in shapes.items()}
    for name, sidecars in cases:
        for file in paths[name].parent.glob("*.json"):
            file.unlink()
        write_beside(paths[name].parent, **sidecars)
        try:
            opened(paths[name])
        except ValueError as error:
            assert str(paths[name]) in str(error), sidecars


@pytest.mark.parametrize("value", [[], {}, 3, "relu"])
def test_a_text_tower_of_unknown_activation(golden, tmp_path, value):
    folder = shutil.copytree(golden("txt_hf_clip").folder, tmp_path / "clip")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["hidden_act"] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="hidden_act in .* must be"):
        load_image_text(folder)


def test_what_a_config_of_transformers_says(tmp_path):
    config = {"model_type": "vit_msn", "num_attention_heads": 2, "image_size": [16, 64], "hidden_act": "gelu_new"}
    config["id2label"] = {"0": "cat", "1": "dog"}
    said = opened(write(tmp_path, transformers("vit", head=2), config=config)).config
    assert (said.heads, said.image_size, said.gelu) == (2, (16, 64), "tanh")
    assert (said.layer_norm_epsilon, said.class_names) == (1e-6, ("cat", "dog"))
    config["id2label"] = {"0": "LABEL_0", "1": "LABEL_1"}
    assert opened(write(tmp_path, transformers("vit", head=2), config=config)).config.class_names is None
    # Of a model with two towers, the names of classes and not of its image tower.
    vision = {"num_attention_heads": 1, "id2label": {"0": "LABEL_0"}}
    both = {"model_type": "siglip", "id2label": {"0": "cat", "1": "dog"}, "vision_config": vision}
    assert opened(write(tmp_path / "two", tower("siglip", head=2), config=both)).config.class_names == ("cat", "dog")
    turned = {"model_type": "dinov3_vit", "num_attention_heads": 1, "rope_parameters": {"rope_theta": 16.0}}
    contents = opened(write(tmp_path / "rope", transformers("dinov3_vit", registers=4), config=turned))
    periods = contents.layout.computed(contents.stored)["rotary_embedding/periods"]
    assert periods[4] == 2.0  # 16 ** (4 / 16)
    clip_config = {"model_type": "clip", "vision_config": {"num_attention_heads": 4, "hidden_act": "gelu"}}
    assert opened(write(tmp_path / "clip", tower("clip") | TEXT, config=clip_config)).config.gelu == "exact"


SQUARE, MEANS = {"height": 224, "width": 224}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
CUT = {"do_center_crop": True, "crop_size": 224, "resample": 3}
FILTERS = ("nearest", "lanczos", "bilinear_pillow", "bicubic")
# What a preprocessor_config.json says, and fields of the config.
CROP = {"do_center_crop": True, "crop_size": 32}
PREPARED = {
    "a number": ({"size": 224, "resample": 2}, {"resize": "squash", "crop_ratio": 1.0, "filter": "bilinear_pillow"}),
    "ViT": ({"size": SQUARE, "image_processor_type": "ViTImageProcessor"}, {"resize": "squash", "filter": FILTERS[2]}),
    "DINOv3": (
        {"size": SQUARE, "image_processor_type": "DINOv3ViTImageProcessorFast", "resample": 2},
        {"resize": "squash", "crop_ratio": 1.0, "filter": "bilinear_antialias"},
    ),
    "crop": ({"size": 256, **CUT}, {"resize": "shortest", "crop_ratio": 224 / 256, "filter": "bicubic"}),
    "where a crop begins": ({"size": 256, **CUT}, {"crop_rounding": "floor"}),
    "DeiT": (
        {**CUT, "size": {"height": 256, "width": 256}, "feature_extractor_type": "DeiTFeatureExtractor"},
        {"resize": "squash", "crop_ratio": 224 / 256, "filter": "bicubic"},
    ),
    "shortest edge": ({"size": {"shortest_edge": 224}, **CUT}, {"resize": "shortest", "crop_ratio": 1.0}),
    "numbers": (MEANS, {"pixel_mean": (0.1, 0.2, 0.3), "pixel_std": (0.4, 0.5, 0.6)}),
    **{f"filter {n}": ({"resample": n}, {"filter": filter}) for n, filter in enumerate(FILTERS)},
    # Normalised as whole numbers of 0..255, which can be said for pixels of 0..1.
    "not scaled": (
        {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [51.0] * 3},
        {"pixel_mean": pytest.approx((0.5,) * 3), "pixel_std": pytest.approx((0.2,) * 3)},
    ),
    "scaled to -1..1": (
        {"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]},
        {"pixel_mean": pytest.approx((0.5,) * 3), "pixel_std": pytest.approx((0.5,) * 3)},
    ),
    "not normalised": ({"do_normalize": False}, {"pixel_mean": (0.0,) * 3, "pixel_std": (1.0,) * 3}),
    # 384 / (384 / 438) is just below 438, where timm's rule rounds down.
    "a number, squashed": ({"size": 40, "default_to_square": True, **CROP}, {"resize": "squash", "crop_ratio": 0.8}),
    "a number, shorter": ({"size": 40, "default_to_square": False, **CROP}, {"resize": "shortest", "crop_ratio": 0.8}),
    "height and width": ({"size": [32, 16]}, {"image_size": (32, 16)}),
    "of the fast classes": (
        {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 32, "width": 32}, "resample": 2}
        | {"data_format": "channels_first", "default_to_square": True, "disable_grouping": True, "return_tensors": "pt"}
        | dict.fromkeys(("crop_size", "device", "do_center_crop", "do_convert_rgb", "do_pad", "input_data_format"))
        | {"pad_size": None, "processor_class": "ViTProcessor", "_valid_processor_keys": ["images", "do_resize"]}
        | {"image_seq_length": 4, "do_convert_rgb": True, "use_square_size": False, "auto_map": {}},
        {"filter": "bilinear_antialias"},
    ),
    "438 pixels": ({"size": 438, "crop_size": 384, "do_center_crop": True}, {"crop_ratio": pytest.approx(384 / 438)}),
}


@pytest.mark.parametrize("name", PREPARED)
def test_preprocessor_config(tmp_path, name):
    metadata, expected = PREPARED[name]
    config = opened(write(tmp_path, transformers("vit"), preprocessor=metadata)).config
    assert {field: getattr(config, field) for field in expected} == expected
    assert name != "438 pixels" or int(384 / config.crop_ratio) == 438


CANNOT_PREPARE = {
    "box filter": {"resample": 4},
    "no resizing": {"do_resize": False},
    "both edges": {"size": {"shortest_edge": 32, "longest_edge": 64}},
    "crop without size": CROP,
    "no crop": {"size": {"shortest_edge": 32}},
    "crop larger than the picture": {"size": 24, **CROP},
    "crop of another shape": {"size": 36, "do_center_crop": True, "crop_size": {"height": 32, "width": 16}},
    "means": {"image_mean": "0.5"},
    "shorter side, no crop": {"size": 32, "default_to_square": False},
    "shorter side of SigLIP": {"size": 32, "image_processor_type": "SiglipImageProcessor"},
    "of DPT": {"keep_aspect_ratio": True, "size": 32},
    "a square of CLIP": {"use_square_size": True},
    "of ConvNext": {"crop_pct": 0.9},
    "around zero": {"rescale_offset": True},
    "padding": {"do_pad": True, "pad_size": 32},
    "of the future": {"sharpen": 2.0},
    "floats and another filter": {"image_processor_type": "DINOv3ViTImageProcessor", "resample": 3},
}


@pytest.mark.parametrize("name", CANNOT_PREPARE)
def test_pictures_that_cannot_be_prepared_so(tmp_path, name):
    metadata = CANNOT_PREPARE[name]
    with pytest.raises(ValueError, match=f"({'|'.join(metadata).replace('image_', '')})(=|.* must be)"):
        inspect_checkpoint(write(tmp_path, transformers("vit"), preprocessor=metadata))


def test_official_numbers(tmp_path):
    for i, shapes in enumerate((transformers("vit", head=11), timm(head=11), timm(cls=False, pool=True))):
        path = write(tmp_path / str(i), shapes)
        config = opened(path, numerics="official").config
        assert (config.gelu, config.layer_norm_epsilon, config.interpolation) == ("tanh", 1e-6, "official")
        assert (config.pixel_mean, config.resize, config.crop_ratio) == ((0.5,) * 3, "squash", 1.0)
        assert opened(path, numerics="publisher").config == opened(path).config != config
    for i, shapes in enumerate((timm(scales=LS), timm(pre_norm=True), timm(dist=True, head=11), tower("clip"))):
        with pytest.raises(ValueError, match="numerics='official' does not fit"):
            open_checkpoint(write(tmp_path / f"not{i}", shapes), numerics="official")
    with pytest.raises(ValueError, match="numerics must be one of"):
        open_checkpoint(path, numerics="exact")
