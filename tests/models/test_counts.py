"""Parameters of every official variant, and its multiply-accumulate operations, against the original code's.

The numbers come from google-research/vision_transformer @ c6de1e5: `configs/models.py` initialised with Flax and
counted. Those with 1,000 classes at 224 pixels are also in its `models_test.py`.
"""

import math

import keras
import pytest

import keras_vit
from keras_vit.checkpoints import LAYOUTS
from keras_vit.layers import skip_initialization
from keras_vit.models import count_macs, count_weights, variant_config

pytestmark = pytest.mark.once

# Multiply-accumulate operations in units of 1e9, with 1,000 classes: at 224 pixels and at 384 (H/14: 392).
GMACS = {
    "ViT-Ti/16": (1.254, 4.682), "ViT-S/32": (1.143, 3.443), "ViT-S/16": (4.599, 15.490), "ViT-B/32": (4.409, 13.044),
    "ViT-B/16": (17.564, 55.484), "ViT-B/8": (78.148, 294.045), "ViT-L/32": (15.378, 45.276),
    "ViT-L/16": (61.555, 191.066), "ViT-H/14": (167.295, 544.952), "R+ViT-Ti/16": (0.434, 1.327),
    "R26+ViT-S/32": (3.464, 10.264), "R26+ViT-B/32": (6.711, 19.808), "R50+ViT-B/16": (21.535, 67.156),
    "R50+ViT-L/32": (19.413, 57.136),
}  # fmt: skip
# With 1,000 classes at 224 and at 384 pixels (H/14: 392), with 21,843 classes at 224, and those with pre-logits.
COUNTS = {
    "ViT-Ti/16": (5_717_416, 5_790_376, 9_740_115, 9_777_171),
    "ViT-S/32": (22_878_952, 22_915_432, 30_903_507, 31_051_347),
    "ViT-S/16": (22_050_664, 22_196_584, 30_075_219, 30_223_059),
    "ViT-B/32": (88_224_232, 88_297_192, 104_252_499, 104_843_091),
    "ViT-B/16": (86_567_656, 86_859_496, 102_595_923, 103_186_515),
    "ViT-B/8": (86_576_872, 87_744_232, 102_605_139, 103_195_731),
    "ViT-L/32": (306_535_400, 306_632_680, 327_899_475, 328_949_075),
    "ViT-L/16": (304_326_632, 304_715_752, 325_690_707, 326_740_307),
    "ViT-H/14": (632_045_800, 632_721_640, 658_745_683, 660_385_363),
    "R+ViT-Ti/16": (6_337_704, 6_355_944, 10_360_403, 10_397_459),
    "R26+ViT-S/32": (36_431_912, 36_468_392, 44_456_467, 44_604_307),
    "R26+ViT-B/32": (101_383_976, 101_456_936, 117_412_243, 118_002_835),
    "R50+ViT-B/16": (98_659_112, 98_950_952, 114_687_379, 115_277_971),
    "R50+ViT-L/32": (328_994_856, 329_092_136, 350_358_931, 351_408_531),
    # The *-gap-norep configs: no class token, mean of the patches.
    "ViT-S/32 gap": (22_878_184, 22_914_664, 30_902_739, 31_050_579),
    "ViT-S/16 gap": (22_049_896, 22_195_816, 30_074_451, 30_222_291),
    "ViT-B/32 gap": (88_222_696, 88_295_656, 104_250_963, 104_841_555),
    "ViT-B/16 gap": (86_566_120, 86_857_960, 102_594_387, 103_184_979),
}
BACKBONES = {"ViT-Ti/16": 5_524_416, "ViT-B/16": 85_798_656, "ViT-H/14": 630_764_800, "ViT-B/16 gap": 85_797_120}


def config_of(name, size=224, classes=1000, pre_logits=False):
    variant, gap = name.removesuffix(" gap"), name.endswith(" gap")
    config = variant_config(variant, size, classes)
    if gap:
        config = config.replace(class_token=False, pooling="avg")
    return config.replace(representation_size=config.width) if pre_logits else config


def listed(config, layout="vit_jax"):
    """Parameters of the model of a config, as the checkpoint layout lists its arrays."""
    return sum(math.prod(row.shape) for row in LAYOUTS[layout].rows(config))


def built(config):
    """The parameters of the model itself; its weights get no values, and so next to no memory."""
    with skip_initialization():
        count = keras_vit.VisionTransformer(config).count_params()
    keras.utils.clear_session(free_memory=False)
    return count


def test_macs_of_the_original():
    for variant, published in GMACS.items():
        configs = (variant_config(variant), variant_config(variant, 392 if variant == "ViT-H/14" else 384))
        # The published figures are rounded to three decimals.
        assert [count_macs(config) / 1e9 for config in configs] == pytest.approx(published, abs=6e-4), variant


def test_every_variant_is_listed():
    rows = keras_vit.list_models()
    assert {row["name"] for row in rows} == {*keras_vit.VARIANTS, *keras_vit.BIT_VARIANTS}
    assert all(row["macs"] == count_macs(variant_config(row["name"])) > row["params"] / 100 > 0 for row in rows)
    assert "ViT-B/16" in str(rows) and "17.56 G" in str(rows)


def test_counts_of_the_original():
    for name, published in COUNTS.items():
        with_pre_logits = config_of(name, classes=21_843, pre_logits=True)
        larger = config_of(name, 392 if "H/14" in name else 384)
        configs = [config_of(name), larger, config_of(name, classes=21_843), with_pre_logits]
        assert tuple(map(count_weights, configs)) == tuple(map(listed, configs)) == published
        if name in BACKBONES:
            assert count_weights(config_of(name, classes=None)) == BACKBONES[name]
    for name in ("BiT-R50x1", "BiT-R101x3"):
        assert count_weights(variant_config(name)) == listed(variant_config(name), "bit_tf")


# Millions of parameters of other families' models, and classes: timm 1.0.31's own count of its architectures. DINOv3's
# files by others hold biases of queries and values beside those.
PUBLISHED = {
    "DeiT-Ti/16": (5.72, 1000), "DeiT-S/16": (22.05, 1000), "DeiT-B/16": (86.57, 1000),
    "DeiT-Ti/16-distilled": (5.91, 1000), "DeiT-S/16-distilled": (22.44, 1000), "DeiT-B/16-distilled": (87.34, 1000),
    "DeiT-III-S/16": (22.06, 1000), "DeiT-III-M/16": (38.85, 1000), "DeiT-III-B/16": (86.59, 1000),
    "DeiT-III-L/16": (304.37, 1000), "DeiT-III-H/14": (632.13, 1000),
    "MAE-B/16": (85.80, None), "MAE-L/16": (303.30, None), "MAE-H/14": (630.76, None),
    "DINO-S/16": (21.67, None), "DINO-B/16": (85.80, None),
    "I-JEPA-H/14": (630.76, None), "I-JEPA-H/16": (631.67, None), "I-JEPA-g/16": (1011.37, None),
    "DINOv2-S/14": (22.06, None), "DINOv2-B/14": (86.58, None), "DINOv2-L/14": (304.37, None),
    "DINOv2-g/14": (1136.48, None), "DINOv2-B/14-reg4": (86.58, None),
    "DINOv3-S/16": (21.59, None), "DINOv3-Splus/16": (28.68, None), "DINOv3-B/16": (85.64, None),
    "DINOv3-L/16": (303.08, None), "DINOv3-Hplus/16": (840.51, None), "DINOv3-7B/16": (6716.03, None),
    "CLIP-B/32": (87.85, None), "CLIP-B/16": (86.19, None), "CLIP-L/14": (303.97, None), "CLIP-H/14": (632.08, None),
    "CLIP-g/14": (1012.65, None), "CLIP-bigG/14": (1844.91, None),
    "SigLIP-B/16": (92.88, None), "SigLIP-L/16": (315.96, None), "SigLIP-So400m/14": (427.68, None),
    "SigLIP2-g-opt/16": (1163.17, None),
    "EVA-02-Ti/14": (5.76, 1000), "EVA-02-S/14": (22.13, 1000), "EVA-02-B/14": (87.12, 1000),
    "EVA-02-L/14": (305.08, 1000),
}  # fmt: skip


def test_counts_of_other_families():
    for name, (millions, classes) in PUBLISHED.items():
        config = variant_config(name, classes=classes)
        if config.rotary_embedding == "dinov3":
            config = config.replace(attention_bias="none")
        assert count_weights(config) / 1e6 == pytest.approx(millions, abs=5.1e-3), name


# All blocks of a variant are alike, so that a model with one shows all kinds of weights.
BUILT = [config_of(name, classes=21_843, pre_logits=True) for name in ("ViT-S/16", "ViT-B/32 gap", "R26+ViT-S/32")]
OTHERS = ("DeiT-B/16-distilled", "DINOv2-g/14-reg4", "DINOv3-Splus/16", "CLIP-B/32", "SigLIP-B/16", "EVA-02-B/14")


def test_what_is_counted_is_built():
    for config in (*BUILT, *(variant_config(name, image_size=None) for name in OTHERS)):
        assert built(config.replace(depth=1)) == count_weights(config.replace(depth=1))
    assert built(config_of("ViT-B/16")) == 86_567_656
