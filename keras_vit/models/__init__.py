"""Models as functions of one config, and the table of variants."""

from keras_vit.models.config import ViTConfig, pair
from keras_vit.models.variants import VARIANTS, Variant, find_variant, variant_config, variant_of
from keras_vit.models.vision_transformer import VisionTransformer, vision_transformer, weights_by_path

__all__ = [
    "VARIANTS",
    "Variant",
    "ViTConfig",
    "VisionTransformer",
    "find_variant",
    "pair",
    "variant_config",
    "variant_of",
    "vision_transformer",
    "weights_by_path",
]
