"""What the names of timm's models tell, and nothing in their arrays does.

A name is `architecture` in a repository's config.json, such as `vit_base_patch16_clip_quickgelu_224`; its tag, such as
`openai`, stands there in `pretrained_cfg`.
"""

import re

from keras_vit.checkpoints.layouts.pictures import CLIP, HALF, IMAGENET, NONE, Fields, pictures

# Models whose arrays have the names of others, but which compute something else.
REFUSED = {
    r"_rpn_": "normalises after each branch instead of before",
    r"eva02_enormous": "normalises after each branch instead of before, and does not turn its queries and keys",
    r"_rope_(ape_|mixed_)*\d+$": "turns its queries and keys by a rotary embedding that is not known here",
    r"vit_pe_": "is a perception encoder, whose rotary embedding and pooling are not known here",
}
_QUICK_GELU = r"quickgelu"
# Of timm's SigLIPs only these compute the approximation that all of them were trained with.
_TANH_GELU = (
    r"vit_base_patch32_siglip(_gap)?_256|vit_large_patch16_siglip(_gap)?_512"
    r"|vit_so400m_patch16_siglip(_gap)?_(256|384|512)|vit_giantopt_patch16_siglip(_gap)?_(256|384)"
)
# Heads by width, where a head has not 64 channels: So400m; everything H/14 with 16 x 80; g/14 with 16 x 88; DINOv2's
# giant with 24 x 64; bigG; DINOv3's 7B with 32 x 128.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 4096: 32}
HEADS_OF_DINOV3 = {**HEADS, 1280: 20}
HEADS_OF_SIGLIP = {**HEADS, 1536: 16}


def refusal(architecture: str) -> str | None:
    """Why a model is not read although its arrays look like one that is; None for all others."""
    return next((why for pattern, why in REFUSED.items() if re.search(pattern, architecture)), None)


def gelu_of(architecture: str) -> str:
    """Which GELU timm computes for a model: exact, but for a few."""
    if re.search(_QUICK_GELU, architecture):
        return "quick"
    return "tanh" if re.fullmatch(_TANH_GELU, architecture) else "exact"


def is_clip(architecture: str) -> bool:
    """Whether a model is one of timm's Vision Transformers for CLIP, whose epsilon is 1e-5."""
    return re.match(r"vit_.*_clip_", architecture) is not None


def is_beit3(architecture: str) -> bool:
    """Whether a model is one of timm's BEiT-3, whose epsilon is 1e-5 as well."""
    return architecture.startswith("beit3_")


def heads_by_name(architecture: str, width: int) -> int | None:
    """The heads of models whose width tells something else; None for all others."""
    if architecture.startswith("test_vit"):
        return width // 32
    if architecture.startswith("vit_base_patch16_gap_") and width == 768:
        return 16
    return 16 if "giantopt" in architecture and width == 1536 else None


def pools_prefix(architecture: str) -> bool:
    """Whether attention pooling reads the tokens before the patches as well."""
    return architecture.startswith("test_vit3")


def interpolation_of(architecture: str) -> str:
    """How timm resizes the position embeddings of a model."""
    return "bilinear" if "flexi" in architecture else "bicubic"


def pictures_of(architecture: str) -> Fields:
    """How pictures are prepared, for files without a `pretrained_cfg`, as most files of that kind have it."""
    if re.search(r"clip|eva02|eva_", architecture):
        return pictures(CLIP, "shortest", 1.0)
    if re.search(r"dinov[23]|beit3", architecture):
        return pictures(IMAGENET, "shortest", 1.0)
    if "miil" in architecture:
        return pictures(NONE, "shortest", 0.875, "bilinear_pillow")
    if "tipsv2" in architecture:
        return pictures(NONE, "shortest", 1.0)
    if re.search(r"deit3_.*_384", architecture):
        return pictures(IMAGENET, "shortest", 1.0)
    if re.search(r"deit|dino|mae|ijepa", architecture):
        return pictures(IMAGENET, "shortest", 0.9)
    return pictures(HALF, "shortest", 1.0 if re.search(r"_384", architecture) else 0.9)
