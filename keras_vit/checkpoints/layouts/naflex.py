"""SigLIP 2 NaFlex at one size: what its files have in common, and timm's names of it.

Its patches go through a matrix, pixel by pixel, channels last. Its table of positions is that of a square, and is
resized bilinearly with antialiasing. All else is a SigLIP.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.layouts.pytorch import HEADS_OF_SIGLIP, Family
from keras_vit.checkpoints.layouts.sidecars import FILTER_NUMBERS
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

TIMM_ANCHOR = "embeds.proj.weight"
TIMM_ARCHITECTURE = "naflexvit_base_patch16_siglip"
TIMM = Family(
    title="timm",
    patches="embeds.proj",
    positions="embeds.pos_embed",
    interpolation="bilinear_antialias",
    linear_patches=True,
    grid_table=True,
    heads_by_width=HEADS_OF_SIGLIP,
)
# What big_vision computes, which resizes pictures to floats; no array tells it.
BIG_VISION = {"interpolation": "bilinear_antialias", "filter": "bilinear_antialias"}


def is_naflex(config: ViTConfig) -> bool:
    """Whether a model is a SigLIP that resizes positions as NaFlex does, and not as the SigLIPs of one size."""
    siglip = config.pooling == "map" and config.mlp == "plain" and config.gelu == "tanh" and config.patch_bias
    plain = config.prefix_tokens == 0 and config.stem_stages is None and config.rotary_embedding is None
    scaled = config.layer_scale is not None or config.pre_norm or config.layer_norm_epsilon != 1e-6
    return siglip and plain and not scaled and config.interpolation == "bilinear_antialias"


def problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reasons for which no file has a place for a NaFlex model."""
    if config.patch_size[0] != config.patch_size[1] or config.channels != 3:
        yield "patches of NaFlex models are squares of three channels"
    if config.grid_size[0] != config.grid_size[1]:
        yield "positions of NaFlex models are those of a square image (with_config(image_size=...))"


def transformers_problems(config: ViTConfig) -> Iterator[str]:
    """Yields the reasons for which transformers' files have no place for a NaFlex model."""
    yield from problems(config)
    if config.classes or config.projection:
        yield "there the head reads the mean of the patches"
    if config.resize != "squash" or config.crop_ratio != 1:
        yield "pictures are not cropped there (with_config(resize='squash', crop_ratio=1.0))"


def preprocessor(config: ViTConfig) -> dict[str, Any]:
    """The `preprocessor_config.json` of a model."""
    return {
        "image_processor_type": "Siglip2ImageProcessor",
        "do_resize": True,
        "resample": FILTER_NUMBERS[config.filter],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.pixel_mean),
        "image_std": list(config.pixel_std),
        "patch_size": config.patch_size[0],
        "max_num_patches": config.position_rows,
    }


def refuse_timms(arrays: Mapping[str, StoredArray], architecture: str) -> None:
    """Raises ValueError for what is no SigLIP 2 NaFlex but has the array of its patches."""
    if architecture and not re.search(r"^naflexvit_\w+_siglip$", architecture):
        why = "is no NaFlex, and its arrays are those of one"
        if architecture.startswith("naflexvit_"):
            why = "is a NaFlex with another table of positions, tokens or pooling than SigLIP 2's"
        raise ValueError(f"{printable(architecture, 100)} {why}. It cannot be computed here.")
    if "attn_pool.latent" not in arrays or TIMM.positions not in arrays:
        raise ValueError(
            "it is a NaFlex of timm's without attention pooling or without a learned table of positions; SigLIP 2's "
            "have both. It cannot be computed here."
        )
