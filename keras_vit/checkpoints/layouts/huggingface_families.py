"""What transformers' families of Vision Transformers have by default, where a config.json leaves it out."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.checkpoints.layouts.pictures import CLIP, HALF, IMAGENET, RESAMPLE_FLOATS, Fields, pictures
from keras_vit.checkpoints.layouts.timm_architectures import HEADS, HEADS_OF_DINOV3, HEADS_OF_SIGLIP

# The names of activations and what they compute; `gelu_fast` and its like differ by rounding errors only.
ACTIVATIONS = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "quick_gelu": "quick",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """One of transformers' families.

    Attributes:
        name: Its `model_type`.
        title: What it is called.
        types: The `model_type`s whose models have its arrays.
        module: What stands before the names of its arrays in a model with a head.
        patches: What the convolution of the patches is called.
        blocks: What stands before the number of a block.
        norm: What the last normalisation is called.
        activation: The default of `hidden_act`.
        epsilon: The default of `layer_norm_eps`.
        heads: The default of `num_attention_heads`.
        preparation: How pictures are prepared where no preprocessor_config.json says it.
        interpolation: How position embeddings are resized.
        heads_by_width: The heads where no config says it, for widths whose heads have not 64 channels.
        two_towers: Whether it is the image tower of a model with two.
        mask_token: The first axes of the mask token that all its models have; None where they need none.
    """

    name: str
    title: str
    types: tuple[str, ...]
    module: str
    patches: str = "embeddings.patch_embeddings.projection"
    blocks: str = "encoder.layer."
    norm: str = "layernorm"
    activation: str = "gelu"
    epsilon: float = 1e-12
    heads: int = 12
    preparation: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: pictures(HALF, "squash", 1.0, "bilinear_pillow")
    )
    interpolation: str = "bicubic_hf"
    heads_by_width: Mapping[int, int] = dataclasses.field(default_factory=lambda: HEADS)
    two_towers: bool = False
    mask_token: tuple[int, ...] | None = None


_TOWER = {
    "module": "vision_model.",
    "patches": "embeddings.patch_embedding",
    "blocks": "encoder.layers.",
    "norm": "post_layernorm",
    "two_towers": True,
}
_IMAGENET = pictures(IMAGENET, "shortest", 0.9)
_DINOV2 = {"epsilon": 1e-6, "preparation": pictures(IMAGENET, "shortest", 0.875)}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("vit", "ViT", ("vit", "vit_mae", "vit_msn"), "vit."),
        Family("deit", "DeiT", ("deit",), "deit.", preparation=pictures(IMAGENET, "squash", 0.875)),
        Family("vit_mae", "MAE", ("vit_mae",), "vit.", preparation=_IMAGENET),
        Family("vit_msn", "MSN", ("vit_msn",), "vit.", epsilon=1e-6, preparation=_IMAGENET),
        Family("ijepa", "I-JEPA", ("ijepa",), "ijepa.", preparation=_IMAGENET),
        Family("dinov2", "DINOv2", ("dinov2",), "dinov2.", **_DINOV2),
        Family(
            "dinov2_with_registers",
            "DINOv2 with registers",
            ("dinov2_with_registers",),
            "dinov2_with_registers.",
            interpolation="bicubic",
            mask_token=(1,),
            **_DINOV2,
        ),
        Family(
            "dinov3_vit",
            "DINOv3",
            ("dinov3_vit",),
            "",
            patches="embeddings.patch_embeddings",
            blocks="layer.",
            norm="norm",
            epsilon=1e-5,
            heads=6,
            preparation=pictures(IMAGENET, "squash", 1.0, "bilinear_antialias"),
            heads_by_width=HEADS_OF_DINOV3,
            mask_token=(1, 1),
        ),
        Family(
            "clip",
            "CLIP",
            ("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
            activation="quick_gelu",
            epsilon=1e-5,
            preparation=pictures(CLIP, "shortest", 1.0),
            **_TOWER,
        ),
        Family(
            "siglip",
            "SigLIP",
            ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
            activation="gelu_pytorch_tanh",
            epsilon=1e-6,
            preparation=pictures(HALF, "squash", 1.0),
            heads_by_width=HEADS_OF_SIGLIP,
            **_TOWER,
        ),
    )
}


def family_of(names: Collection[str], unused: Collection[str]) -> Family:
    """The family whose arrays a file has.

    Args:
        names: The names of its arrays, without what stands before them.
        unused: Those of arrays that are not of the image model.
    """
    if "embeddings.patch_embedding.weight" in names:
        return FAMILIES["clip" if "embeddings.class_embedding" in names else "siglip"]
    if "embeddings.patch_embeddings.weight" in names:
        return FAMILIES["dinov3_vit"]
    if any(name.endswith(".layer_scale1.lambda1") for name in names):
        return FAMILIES["dinov2_with_registers" if "embeddings.register_tokens" in names else "dinov2"]
    if "embeddings.distillation_token" in names:
        return FAMILIES["deit"]
    if "embeddings.cls_token" not in names:
        return FAMILIES["ijepa"]
    return FAMILIES["vit_mae" if any(".decoder_embed." in name for name in unused) else "vit"]


def preparation_of(family: Family, preprocessor: Mapping[str, Any] | None) -> Fields:
    """How pictures are prepared by default, which for a `preprocessor_config.json` is what its class does."""
    fields = dict(family.preparation)
    if preprocessor is not None:
        name = str(preprocessor.get("image_processor_type", preprocessor.get("feature_extractor_type", "")))
        if name:
            bilinear = name.startswith(("ViT", RESAMPLE_FLOATS))
            fields["filter"] = "bilinear_pillow" if bilinear else "bicubic"
    return fields
