"""What LiteRT's own GPU accelerator makes of a file of each kind, on a machine without a GPU.

    SOFTWARE_VULKAN=FOLDER python benchmarks/phones.py --output docs/exports.md

The folder has a Vulkan driver that computes on the CPU: libvulkan.so.1 and an *icd*.json (SwiftShader in float32,
Mesa's lavapipe in float16 as well).
"""

import numpy as np

import keras_vit
from keras_vit.models.variants import FAMILIES

SIZE = {"image_size": (32, 48), "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "mlp_width": 96}
TOKENS = {"pooling": "none", "classes": None}


def vit(family="ViT", **changes):
    """A small Vision Transformer of a family, as its config."""
    return keras_vit.ViTConfig(**{**SIZE, "classes": 7, **FAMILIES[family], **changes})


def bit(**changes):
    return keras_vit.BiTConfig(**{"image_size": (64, 96), "stages": (1, 1), "width": 32, "classes": 7, **changes})


def linear_segmentation():
    sizes = {"classes": 5, "blocks": (0, 1), "short_side": 32, "crop_size": 32, "stride": 32}
    return keras_vit.LinearSegmenterConfig(backbone=vit("DINOv2", **TOKENS), **sizes)


def dpt():
    sizes = {"blocks": (0, 1, 2, 3), "widths": (16, 16, 32, 32), "fusion_width": 16, "head_width": 8}
    return keras_vit.DPTConfig(backbone=vit("DINOv2", depth=4, **TOKENS), max_depth=20.0, **sizes)


def eomt():
    sizes = {"classes": 5, "queries": 6, "query_blocks": 1, "upscale_blocks": 2}
    return keras_vit.EoMTConfig(backbone=vit("DINOv2", **TOKENS), **sizes)


KINDS = {
    "glyphs": lambda: keras_vit.load("glyphs"),
    "ViT, class token": vit,
    "ViT, mean pooling": lambda: vit(class_token=False, pooling="avg"),
    "CLIP": lambda: vit("CLIP", projection=24, unit_features=True),
    "SigLIP (attention pooling)": lambda: vit("SigLIP", class_token=False),
    "DINOv2 with registers": lambda: vit("DINOv2-reg", pooling="token_avg"),
    "DINOv3": lambda: vit("DINOv3"),
    "EVA-02": lambda: vit("EVA-02", mlp="swiglu_norm"),
    "Perception Encoder": lambda: vit("PE", pooling_heads=4),
    "DeiT, distilled": lambda: vit("DeiT", distillation_token=True, distillation_head=True),
    "hybrid": lambda: vit(image_size=(64, 96), patch_size=1, stem_stages=(1, 1), stem_width=32),
    "BiT": bit,
    "BiT, padded with zeros": lambda: bit(pool_padding="zeros"),
    "MLP-Mixer": lambda: vit("Mixer", heads=1, class_token=False, pooling="avg", tokens_mlp_width=20),
    "EoMT": eomt,
    "linear segmentation": linear_segmentation,
    "DPT": dpt,
    "linear depth": lambda: keras_vit.LinearDepthConfig(backbone=vit("DINOv2", **TOKENS), blocks=(0, 1)),
    "features": lambda: keras_vit.feature_extractor(
        model_of(vit(class_token=False, pooling="avg")), ["block_-1", "pooled"]
    ),
}


def model_of(config, seed=0):
    """The model of a config, with random weights: kernels keep the size of what they multiply, nothing is zero."""
    if not hasattr(config, "model"):
        return config
    model = getattr(keras_vit, config.model)(config)
    for number, weight in enumerate(model.weights):
        rng = np.random.default_rng([seed, number])
        if weight.path.endswith("periods"):
            continue
        fan_in = int(np.prod(weight.shape[:-1])) if len(weight.shape) > 1 else 0
        middle = 1.0 if weight.path.endswith(("gamma", "moving_variance")) else 0.0
        spread = fan_in**-0.5 if weight.path.endswith("kernel") else 0.2
        weight.assign(
            np.abs(middle + rng.normal(0, spread, weight.shape)) if middle else rng.normal(0, spread, weight.shape)
        )
    return model
