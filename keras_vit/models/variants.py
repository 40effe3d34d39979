"""The variants of the papers, as data."""

import dataclasses
import difflib
import re

from keras_vit.models.bit_config import BIT_VARIANTS, BiTConfig
from keras_vit.models.config import ModelConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of Table 1 (arXiv 2010.11929; Ti and S: AugReg, Table 2), with its patch size.

    For hybrids `patch` counts cells of the ResNet's map, and `stem_stages` the units in its stages (section 3.1 and
    appendix B.1; AugReg, section 3). `dropout` is the rate that the official configuration (`configs/models.py`)
    trains with. `class_token` says whether the variant comes with one: those of big_vision's `models/vit.py` (Scaling
    Vision Transformers, arXiv 2106.04560, Table 2; SigLIP) pool the patches instead.
    """

    width: int
    depth: int
    heads: int
    mlp_width: int
    patch: int
    dropout: float = 0.0
    stem_stages: tuple[int, ...] | None = None
    class_token: bool = True


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
    # The names give the stride of the whole, but for the first: its patches are 32 pixels wide.
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
}


def find_variant(name: str) -> str:
    """The name in `VARIANTS` or `BIT_VARIANTS` that `name` means, whatever its case and punctuation.

    `"ViT-B/16"`, `"vit_b16"`, `"B/16"` and `"ViT-B_16"` are the same. Only where two names differ in nothing else does
    case matter: `"g/14"` is not `"G/14"`.

    Raises:
        TypeError: if `name` is not a string.
        ValueError: if there is no such variant; the nearest names are suggested.
    """
    if not isinstance(name, str):
        raise TypeError(f"variant must be a string such as 'ViT-B/16', but {name!r} was given.")
    variants = (*VARIANTS, *BIT_VARIANTS)
    exact = {_plain(variant, lower=False): variant for variant in variants}
    if _plain(name, lower=False) in exact:
        return exact[_plain(name, lower=False)]
    known = {_plain(variant): variant for variant in variants}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    near = [known[match] for match in difflib.get_close_matches(plain, known, n=3, cutoff=0.3)]
    suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ValueError(f"There is no variant {name!r}.{suggestion} Known are: {', '.join(variants)}.")


def variant_config(
    name: str, image_size: int | tuple[int, int] = 224, classes: int | None = 1000
) -> ViTConfig | BiTConfig:
    """The configuration of a variant as in the official `configs/models.py`, without pre-logits."""
    name = find_variant(name)
    if name in BIT_VARIANTS:
        row = BIT_VARIANTS[name]
        return BiTConfig(image_size=image_size, stages=row.stages, width=64 * row.width_factor, classes=classes)
    row = VARIANTS[name]
    return ViTConfig(
        image_size=image_size,
        patch_size=row.patch,
        width=row.width,
        depth=row.depth,
        heads=row.heads,
        mlp_width=row.mlp_width,
        stem_stages=row.stem_stages,
        class_token=row.class_token,
        pooling="token" if row.class_token else "avg",
        dropout=row.dropout,
        classes=classes,
    )


def variant_of(config: ModelConfig) -> str | None:
    """The name of the variant that `config` is one of; None where it is none of them."""
    if isinstance(config, BiTConfig):
        rows = ((name, (row.stages, 64 * row.width_factor)) for name, row in BIT_VARIANTS.items())
        return next((name for name, shape in rows if shape == (config.stages, config.width)), None)
    if not isinstance(config, ViTConfig):
        return None
    shape = (config.width, config.depth, config.heads, config.mlp_width, config.patch_size, config.stem_stages)
    for name, row in VARIANTS.items():
        if shape == (row.width, row.depth, row.heads, row.mlp_width, (row.patch, row.patch), row.stem_stages):
            return name
    return None


def _plain(name: str, lower: bool = True) -> str:
    letters = re.sub(r"vit|bit|[^a-z0-9]", "", name, flags=re.IGNORECASE)
    return letters.lower() if lower else letters
