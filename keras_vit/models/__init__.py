"""Models as functions of one config, and the table of variants."""

from keras_vit.models.bit import BiT
from keras_vit.models.bit_config import BIT_VARIANTS, BiTConfig, BiTVariant
from keras_vit.models.changes import weights_by_path
from keras_vit.models.config import ModelConfig, ViTConfig, pair
from keras_vit.models.features import feature_extractor
from keras_vit.models.macs import count_macs
from keras_vit.models.variants import VARIANTS, Variant, find_variant, variant_config, variant_of
from keras_vit.models.vision_transformer import VisionTransformer, vision_transformer

# The model that a config describes.
MODELS = {model.config_type: model for model in (VisionTransformer, BiT)}

__all__ = [
    "BIT_VARIANTS",
    "MODELS",
    "VARIANTS",
    "BiT",
    "BiTConfig",
    "BiTVariant",
    "ModelConfig",
    "Variant",
    "ViTConfig",
    "VisionTransformer",
    "count_macs",
    "feature_extractor",
    "find_variant",
    "pair",
    "variant_config",
    "variant_of",
    "vision_transformer",
    "weights_by_path",
]
