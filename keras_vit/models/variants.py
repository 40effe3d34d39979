"""The variants of the papers, as data."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import did_you_mean
from keras_vit.models.config import BiTConfig, ModelConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of Table 1 (arXiv 2010.11929; Ti and S: AugReg, Table 2), or of another family's, with its patch size.

    For hybrids `patch` counts cells of the ResNet's map, and `stem_stages` the units in its stages (section 3.1 and
    appendix B.1). `dropout` is the rate of the official `configs/models.py`. Variants of big_vision's `models/vit.py`
    (arXiv 2106.04560, Table 2; SigLIP) have no class token and pool the patches. `family` names a row of `FAMILIES`,
    `fields` are the fields of the config in which the variant differs from it.
    """

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch: int
    dropout: float = 0.0
    stem_stages: tuple[int, ...] | None = None
    class_token: bool = True
    family: str = "ViT"
    image_size: int = 224
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_IMAGENET = {"pixel_mean": (0.485, 0.456, 0.406), "pixel_std": (0.229, 0.224, 0.225)}
_OPENAI = {"pixel_mean": (0.48145466, 0.4578275, 0.40821073), "pixel_std": (0.26862954, 0.26130258, 0.27577711)}
_CENTRE = {"resize": "shortest", "filter": "bicubic"}
_TIMM = {"gelu": "exact", "interpolation": "bicubic", **_CENTRE}
_DEIT = {**_TIMM, **_IMAGENET, "crop_ratio": 0.9}
_MAE = {**_TIMM, **_IMAGENET, "interpolation": "bicubic_hf", "crop_ratio": 224 / 256}
_DINO = {**_MAE, "interpolation": "bicubic_offset"}
_DINOV2 = {**_DINO, "layer_scale": 1e-5}
_SIGLIP = {"pooling": "map", "interpolation": "bicubic_hf", "filter": "bicubic"}

# What the models of a family have in common: fields of the config that are not as in the official Vision Transformer.
# Computation and preprocessing are as in the code of those who trained them.
FAMILIES: dict[str, Mapping[str, Any]] = {
    "ViT": {},
    "DeiT": _DEIT,
    "DeiT-III": {**_DEIT, "layer_scale": 1e-6, "position_embedding": "learned_patches"},
    "MAE": _MAE,
    "DINO": _DINO,
    "I-JEPA": _MAE,
    "DINOv2": _DINOV2,
    "DINOv2-reg": {
        **_DINOV2,
        "register_tokens": 4,
        "position_embedding": "learned_without_registers",
        "interpolation": "bicubic",
    },
    "DINOv3": {
        "gelu": "exact",
        **_IMAGENET,
        "filter": "bilinear_antialias",
        "layer_scale": 1e-5,
        "layer_norm_epsilon": 1e-5,
        "register_tokens": 4,
        "position_embedding": "none",
        "rotary_embedding": "dinov3",
        "attention_bias": "no_key",
    },
    "TIPS": {
        "gelu": "exact",
        "interpolation": "bilinear_antialias",
        "layer_scale": 1.0,
        "register_tokens": 1,
        "position_embedding": "learned_without_registers",
        "pixel_mean": (0.0, 0.0, 0.0),
        "pixel_std": (1.0, 1.0, 1.0),
        "filter": "bilinear_pillow",
    },
    "CLIP": {
        **_CENTRE,
        **_OPENAI,
        "gelu": "quick",
        "interpolation": "bicubic_hf",
        "layer_norm_epsilon": 1e-5,
        "patch_bias": False,
        "pre_norm": True,
    },
    "SigLIP": _SIGLIP,
    "SigLIP2": _SIGLIP,
    "Mixer": {"position_embedding": "none"},
    "PE": {
        "gelu": "exact",
        "layer_norm_epsilon": 1e-5,
        "interpolation": "bilinear",
        "filter": "bilinear_pillow",
        "patch_bias": False,
        "pre_norm": True,
        "rotary_embedding": "pe",
        "rotary_grid": None,
        "pooling": "map",
        "pooling_heads": 8,
    },
    "EVA-02": {
        **_TIMM,
        **_OPENAI,
        "mlp": "swiglu",
        "rotary_embedding": "eva02",
        "attention_bias": "no_key",
        "pooling": "avg",
        "final_norm": "pooled",
    },
}
_PE_G: dict[str, Any] = {"class_token": False, "family": "PE", "image_size": 448}
_WIDE_POOLING = {"pooling_mlp_width": 6144, "projection": 1280}  # 4 D, unlike the blocks
_ALL_TOKENS, _SCALED = {"pooling": "none", "final_norm": "none"}, {"layer_scale": 0.1}
_DISTILLED = {"distillation_token": True, "distillation_head": True}
_LAION = {"gelu": "exact"}  # OpenAI trained with QuickGELU

VARIANTS: dict[str, Variant] = {
    "ViT-Ti/16": Variant(192, 12, 3, 768, 16),
    "ViT-S/16": Variant(384, 12, 6, 1536, 16),
    "ViT-S/32": Variant(384, 12, 6, 1536, 32),
    "ViT-B/8": Variant(768, 12, 12, 3072, 8),
    "ViT-B/16": Variant(768, 12, 12, 3072, 16),
    "ViT-B/32": Variant(768, 12, 12, 3072, 32),
    "ViT-L/16": Variant(1024, 24, 16, 4096, 16, dropout=0.1),
    "ViT-L/32": Variant(1024, 24, 16, 4096, 32),
    "ViT-H/14": Variant(1280, 32, 16, 5120, 14, dropout=0.1),
    # The names tell the stride of the whole, except for the first: its patches are 32 pixels wide.
    "R+ViT-Ti/16": Variant(192, 12, 3, 768, 8, stem_stages=()),
    "R26+ViT-S/32": Variant(384, 12, 6, 1536, 1, stem_stages=(2, 2, 2, 2)),
    "R26+ViT-B/32": Variant(768, 12, 12, 3072, 1, stem_stages=(2, 2, 2, 2)),
    "R50+ViT-B/16": Variant(768, 12, 12, 3072, 1, dropout=0.1, stem_stages=(3, 4, 9)),
    "R50+ViT-L/32": Variant(1024, 24, 16, 4096, 1, dropout=0.1, stem_stages=(3, 4, 6, 3)),
    "ViT-mu/16": Variant(32, 1, 2, 128, 16, class_token=False),
    "ViT-M/16": Variant(512, 12, 8, 2048, 16, class_token=False),
    "ViT-So400m/14": Variant(1152, 27, 16, 4304, 14, class_token=False),
    "ViT-So400m/16": Variant(1152, 27, 16, 4304, 16, class_token=False),
    "ViT-g/14": Variant(1408, 40, 16, 6144, 14, class_token=False),
    "ViT-g-opt/16": Variant(1536, 40, 16, 6144, 16, class_token=False),
    "ViT-G/14": Variant(1664, 48, 16, 8192, 14, class_token=False),
    # MLP-Mixer (arXiv 2105.01601, Table 1)
    "Mixer-S/32": Variant(512, 8, 1, 2048, 32, class_token=False, family="Mixer", fields={"tokens_mlp_width": 256}),
    "Mixer-S/16": Variant(512, 8, 1, 2048, 16, class_token=False, family="Mixer", fields={"tokens_mlp_width": 256}),
    "Mixer-S/8": Variant(512, 8, 1, 2048, 8, class_token=False, family="Mixer", fields={"tokens_mlp_width": 256}),
    "Mixer-B/32": Variant(768, 12, 1, 3072, 32, class_token=False, family="Mixer", fields={"tokens_mlp_width": 384}),
    "Mixer-B/16": Variant(768, 12, 1, 3072, 16, class_token=False, family="Mixer", fields={"tokens_mlp_width": 384}),
    "Mixer-L/32": Variant(1024, 24, 1, 4096, 32, class_token=False, family="Mixer", fields={"tokens_mlp_width": 512}),
    "Mixer-L/16": Variant(1024, 24, 1, 4096, 16, class_token=False, family="Mixer", fields={"tokens_mlp_width": 512}),
    "Mixer-H/14": Variant(1280, 32, 1, 5120, 14, class_token=False, family="Mixer", fields={"tokens_mlp_width": 640}),
    # DeiT (arXiv 2012.12877) and DeiT-III (arXiv 2204.07118)
    "DeiT-Ti/16": Variant(192, 12, 3, 768, 16, family="DeiT"),
    "DeiT-S/16": Variant(384, 12, 6, 1536, 16, family="DeiT"),
    "DeiT-B/16": Variant(768, 12, 12, 3072, 16, family="DeiT"),
    "DeiT-Ti/16-distilled": Variant(192, 12, 3, 768, 16, family="DeiT", fields=_DISTILLED),
    "DeiT-S/16-distilled": Variant(384, 12, 6, 1536, 16, family="DeiT", fields=_DISTILLED),
    "DeiT-B/16-distilled": Variant(768, 12, 12, 3072, 16, family="DeiT", fields=_DISTILLED),
    "DeiT-III-S/16": Variant(384, 12, 6, 1536, 16, family="DeiT-III"),
    "DeiT-III-M/16": Variant(512, 12, 8, 2048, 16, family="DeiT-III"),
    "DeiT-III-B/16": Variant(768, 12, 12, 3072, 16, family="DeiT-III"),
    "DeiT-III-L/16": Variant(1024, 24, 16, 4096, 16, family="DeiT-III"),
    "DeiT-III-H/14": Variant(1280, 32, 16, 5120, 14, family="DeiT-III"),
    # MAE (arXiv 2111.06377), DINO (arXiv 2104.14294) and I-JEPA (arXiv 2301.08243)
    "MAE-B/16": Variant(768, 12, 12, 3072, 16, family="MAE"),
    "MAE-L/16": Variant(1024, 24, 16, 4096, 16, family="MAE"),
    "MAE-H/14": Variant(1280, 32, 16, 5120, 14, family="MAE"),
    "DINO-S/16": Variant(384, 12, 6, 1536, 16, family="DINO"),
    "DINO-S/8": Variant(384, 12, 6, 1536, 8, family="DINO"),
    "DINO-B/16": Variant(768, 12, 12, 3072, 16, family="DINO"),
    "DINO-B/8": Variant(768, 12, 12, 3072, 8, family="DINO"),
    "I-JEPA-H/14": Variant(1280, 32, 16, 5120, 14, class_token=False, family="I-JEPA"),
    "I-JEPA-H/16": Variant(1280, 32, 16, 5120, 16, class_token=False, family="I-JEPA", image_size=448),
    "I-JEPA-g/16": Variant(1408, 40, 16, 6144, 16, class_token=False, family="I-JEPA"),
    # DINOv2 (arXiv 2304.07193), with registers (arXiv 2309.16588), and DINOv3 (arXiv 2508.10104)
    "DINOv2-S/14": Variant(384, 12, 6, 1536, 14, family="DINOv2", image_size=518),
    "DINOv2-B/14": Variant(768, 12, 12, 3072, 14, family="DINOv2", image_size=518),
    "DINOv2-L/14": Variant(1024, 24, 16, 4096, 14, family="DINOv2", image_size=518),
    "DINOv2-g/14": Variant(1536, 40, 24, 4096, 14, family="DINOv2", image_size=518, fields={"mlp": "swiglu"}),
    "DINOv2-S/14-reg4": Variant(384, 12, 6, 1536, 14, family="DINOv2-reg", image_size=518),
    "DINOv2-B/14-reg4": Variant(768, 12, 12, 3072, 14, family="DINOv2-reg", image_size=518),
    "DINOv2-L/14-reg4": Variant(1024, 24, 16, 4096, 14, family="DINOv2-reg", image_size=518),
    "DINOv2-g/14-reg4": Variant(1536, 40, 24, 4096, 14, family="DINOv2-reg", image_size=518, fields={"mlp": "swiglu"}),
    "DINOv3-S/16": Variant(384, 12, 6, 1536, 16, family="DINOv3"),
    "DINOv3-Splus/16": Variant(384, 12, 6, 1536, 16, family="DINOv3", fields={"mlp": "swiglu"}),
    "DINOv3-B/16": Variant(768, 12, 12, 3072, 16, family="DINOv3"),
    "DINOv3-L/16": Variant(1024, 24, 16, 4096, 16, family="DINOv3"),
    "DINOv3-Hplus/16": Variant(1280, 32, 20, 5120, 16, family="DINOv3", fields={"mlp": "swiglu"}),
    "DINOv3-7B/16": Variant(4096, 40, 32, 8192, 16, family="DINOv3", fields={"mlp": "swiglu"}),
    # TIPS 1 (arXiv 2410.16512) and 2
    "TIPS-S/14": Variant(384, 12, 6, 1536, 14, family="TIPS", image_size=448),
    "TIPS-B/14": Variant(768, 12, 12, 3072, 14, family="TIPS", image_size=448),
    "TIPS-L/14": Variant(1024, 24, 16, 4096, 14, family="TIPS", image_size=448),
    "TIPS-So400m/14": Variant(1152, 27, 16, 4304, 14, family="TIPS", image_size=448),
    "TIPS-g/14": Variant(1536, 40, 24, 4096, 14, family="TIPS", image_size=448, fields={"mlp": "swiglu"}),
    # Image towers: CLIP (arXiv 2103.00020; from H on 2212.07143), SigLIP (arXiv 2303.15343, 2502.14786)
    "CLIP-B/32": Variant(768, 12, 12, 3072, 32, family="CLIP", fields={"projection": 512}),
    "CLIP-B/16": Variant(768, 12, 12, 3072, 16, family="CLIP", fields={"projection": 512}),
    "CLIP-L/14": Variant(1024, 24, 16, 4096, 14, family="CLIP", fields={"projection": 768}),
    "CLIP-H/14": Variant(1280, 32, 16, 5120, 14, family="CLIP", fields={**_LAION, "projection": 1024}),
    "CLIP-g/14": Variant(1408, 40, 16, 6144, 14, family="CLIP", fields={**_LAION, "projection": 1024}),
    "CLIP-bigG/14": Variant(1664, 48, 16, 8192, 14, family="CLIP", fields={**_LAION, "projection": 1280}),
    "SigLIP-B/16": Variant(768, 12, 12, 3072, 16, class_token=False, family="SigLIP"),
    "SigLIP-L/16": Variant(1024, 24, 16, 4096, 16, class_token=False, family="SigLIP", image_size=256),
    "SigLIP-So400m/14": Variant(1152, 27, 16, 4304, 14, class_token=False, family="SigLIP"),
    "SigLIP2-B/32": Variant(768, 12, 12, 3072, 32, class_token=False, family="SigLIP2", image_size=256),
    "SigLIP2-B/16": Variant(768, 12, 12, 3072, 16, class_token=False, family="SigLIP2"),
    "SigLIP2-L/16": Variant(1024, 24, 16, 4096, 16, class_token=False, family="SigLIP2", image_size=256),
    "SigLIP2-So400m/14": Variant(1152, 27, 16, 4304, 14, class_token=False, family="SigLIP2"),
    "SigLIP2-So400m/16": Variant(1152, 27, 16, 4304, 16, class_token=False, family="SigLIP2", image_size=256),
    "SigLIP2-g-opt/16": Variant(1536, 40, 16, 6144, 16, class_token=False, family="SigLIP2", image_size=256),
    # Perception Encoder (arXiv 2504.13181)
    "PE-Core-T/16": Variant(192, 12, 3, 768, 16, family="PE", image_size=384, fields={"projection": 512}),
    "PE-Core-S/16": Variant(384, 12, 6, 1536, 16, family="PE", image_size=384, fields={"projection": 512}),
    "PE-Core-B/16": Variant(768, 12, 12, 3072, 16, family="PE", fields={"projection": 1024}),
    "PE-Core-L/14": Variant(1024, 24, 16, 4096, 14, family="PE", image_size=336, fields={"projection": 1024}),
    "PE-Core-G/14": Variant(1536, 50, 16, 8960, 14, **_PE_G, fields=_WIDE_POOLING),
    "PE-Lang-L/14": Variant(1024, 23, 16, 4096, 14, family="PE", image_size=448, fields={**_ALL_TOKENS, **_SCALED}),
    "PE-Lang-G/14": Variant(1536, 47, 16, 8960, 14, **_PE_G, fields={**_ALL_TOKENS, **_SCALED}),
    "PE-Spatial-T/16": Variant(192, 12, 3, 768, 16, family="PE", image_size=512, fields=_ALL_TOKENS),
    "PE-Spatial-S/16": Variant(384, 12, 6, 1536, 16, family="PE", image_size=512, fields=_ALL_TOKENS),
    "PE-Spatial-B/16": Variant(768, 12, 12, 3072, 16, family="PE", image_size=512, fields=_ALL_TOKENS),
    "PE-Spatial-L/14": Variant(1024, 24, 16, 4096, 14, family="PE", image_size=448, fields=_ALL_TOKENS),
    "PE-Spatial-G/14": Variant(1536, 50, 16, 8960, 14, **_PE_G, fields={**_ALL_TOKENS, **_SCALED}),
    # EVA-02 (arXiv 2303.11331)
    "EVA-02-Ti/14": Variant(192, 12, 3, 512, 14, family="EVA-02", image_size=336),
    "EVA-02-S/14": Variant(384, 12, 6, 1024, 14, family="EVA-02", image_size=336),
    "EVA-02-B/14": Variant(768, 12, 12, 2048, 14, family="EVA-02", image_size=448, fields={"mlp": "swiglu_norm"}),
    "EVA-02-L/14": Variant(1024, 24, 16, 2730, 14, family="EVA-02", image_size=448, fields={"mlp": "swiglu_norm"}),
}
"""The variants of Vision Transformers by their names in the papers: sizes, family, and further fields of the config.

Examples:
    >>> keras_vit.VARIANTS["ViT-B/16"].depth
    12
"""


@dataclasses.dataclass(frozen=True)
class BiTVariant:
    """A row of the published models: the units of each stage, and the width in multiples of 64 channels."""

    stages: tuple[int, ...]
    width_factor: int


BIT_VARIANTS: dict[str, BiTVariant] = {
    "BiT-R50x1": BiTVariant((3, 4, 6, 3), 1),
    "BiT-R50x3": BiTVariant((3, 4, 6, 3), 3),
    "BiT-R101x1": BiTVariant((3, 4, 23, 3), 1),
    "BiT-R101x3": BiTVariant((3, 4, 23, 3), 3),
    "BiT-R152x2": BiTVariant((3, 8, 36, 3), 2),
    "BiT-R152x4": BiTVariant((3, 8, 36, 3), 4),
}
"""The variants of BiT by their names in the papers: units of each stage, and width in multiples of 64 channels.

Examples:
    >>> keras_vit.BIT_VARIANTS["BiT-R50x3"].width_factor
    3
"""


def find_variant(name: str) -> str:
    """Returns the name in `VARIANTS` or `BIT_VARIANTS` that `name` means: of `"vit_b16"` and `"B/16"` `"ViT-B/16"`.

    Case and punctuation matter only where two names differ in nothing else: `"g/14"` is not `"G/14"`. Raises TypeError
    unless it is a string, ValueError, with the nearest names, if there is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"variant must be a string such as 'ViT-B/16', but {name!r} was given.")
    variants = (*VARIANTS, *BIT_VARIANTS)
    exact = {_simplified(variant, lower=False): variant for variant in variants}
    if _simplified(name, lower=False) in exact:
        return exact[_simplified(name, lower=False)]
    known = {_simplified(variant): variant for variant in variants}
    for variant, row in VARIANTS.items():
        known[f"{_simplified(variant)}{row.image_size}"] = variant  # as timm names them
    plain = _simplified(name)
    if plain in known:
        return known[plain]
    raise ValueError(f"There is no variant {name!r}.{did_you_mean(plain, known)} list_models() shows all.")


def variant_config(
    name: str, image_size: int | tuple[int, int] | None = None, classes: int | None = 1000
) -> ViTConfig | BiTConfig:
    """Returns the config of a variant as in the official `configs/models.py`, without pre-logits, or as in its family.

    An `image_size` of None is the variant's, 224 for a BiT; `classes` of None are not a head. Raises TypeError or
    ValueError for an unknown name, and for a size or classes that make no sense.
    """
    name = find_variant(name)
    if name in BIT_VARIANTS:
        row = BIT_VARIANTS[name]
        size = 224 if image_size is None else image_size
        return BiTConfig(image_size=size, stages=row.stages, width=64 * row.width_factor, classes=classes)
    row = VARIANTS[name]
    same = ("width", "depth", "heads", "mlp_width", "stem_stages", "class_token", "dropout")
    fields: dict[str, Any] = {field: getattr(row, field) for field in same}
    fields["image_size"] = row.image_size if image_size is None else image_size
    fields |= {"patch_size": row.patch, "pooling": "token" if row.class_token else "avg", "classes": classes}
    return ViTConfig(**{**fields, **FAMILIES[row.family], **row.fields})


def variant_of(config: ModelConfig) -> str | None:
    """Returns the first variant with the layers of a config: ViT-B/16, too, for a DeiT-B/16, which has the same.

    None where there is none, and for the config of a dense model, whose backbone is a part of it.
    """
    if isinstance(config, BiTConfig):
        for name, row in BIT_VARIANTS.items():
            if config.stages == row.stages and config.width == 64 * row.width_factor:
                return name
        return None
    if not isinstance(config, ViTConfig):
        return None
    return next((name for name in VARIANTS if has_layers_of(config, name)), None)


def has_layers_of(config: ModelConfig, name: str) -> bool:
    """Whether a config has the blocks and tokens of the variant `name`, whatever is after the last block."""
    if isinstance(config, ViTConfig):
        return name in VARIANTS and _layers(config) == _layers_of_variant(name)
    return variant_of(config) == name


def _layers(config: ViTConfig) -> tuple[Any, ...]:
    """Returns what has to be the same in two configs of one variant."""
    sizes = (config.width, config.depth, config.heads, config.mlp_width, config.patch_size, config.stem_stages)
    tokens = (config.distillation_token, config.register_tokens, config.patch_bias, config.pre_norm)
    block = (config.mlp, config.rotary_embedding, config.layer_scale is None, config.attention_norm)
    return (sizes, tokens, block, config.tokens_mlp_width)


@functools.cache
def _layers_of_variant(name: str) -> tuple[Any, ...]:
    return _layers(variant_config(name))  # ty: ignore[invalid-argument-type]


def factory_name(variant: str) -> str:
    """Returns the name of the function that makes a variant: `"ViT_B16"` for `"ViT-B/16"`."""
    return variant.replace("-", "_").replace("/", "").replace("+", "_")


def _simplified(name: str, lower: bool = True) -> str:
    """The letters and digits of a name without `ViT` and `BiT`, in lower case or as they are."""
    letters = re.sub(r"vit|bit|[^a-z0-9]", "", name, flags=re.IGNORECASE)
    return letters.lower() if lower else letters
