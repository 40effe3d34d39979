"""Models as functions of one config, and the table of variants."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names
from keras_vit.models.config import BiTConfig, ModelConfig, ViTConfig, pair
from keras_vit.models.dense_config import DenseConfig, EoMTConfig, LinearSegmenterConfig
from keras_vit.models.depth_config import DPTConfig, LinearDepthConfig
from keras_vit.models.sizes import convolutions, count_macs, count_weights
from keras_vit.models.text_config import TextConfig
from keras_vit.models.variants import (
    BIT_VARIANTS,
    FAMILIES,
    VARIANTS,
    BiTVariant,
    Variant,
    factory_name,
    find_variant,
    has_layers_of,
    variant_config,
    variant_of,
)

# What needs Keras.
if TYPE_CHECKING:
    from keras_vit.layers.base import has_adapters, layers_by_path, weights_by_path
    from keras_vit.models.bit import BiT
    from keras_vit.models.changes import adapted_layers, check_tokens, merge_lora, require_adapters
    from keras_vit.models.dense import DenseModel
    from keras_vit.models.depth_models import DPT, LinearDepth
    from keras_vit.models.eomt import EoMT
    from keras_vit.models.features import MODELS, feature_extractor, feature_names
    from keras_vit.models.image_model import ImageModel, pixel_scaling
    from keras_vit.models.linear_segmenter import LinearSegmenter
    from keras_vit.models.text_encoder import TextEncoder
    from keras_vit.models.vision_transformer import BEFORE_BLOCKS, VisionTransformer

__getattr__ = lazy_names(__name__)

__all__ = [
    "BEFORE_BLOCKS",
    "BIT_VARIANTS",
    "FAMILIES",
    "MODELS",
    "VARIANTS",
    "TextConfig",
    "TextEncoder",
    "DenseConfig",
    "DenseModel",
    "DPT",
    "DPTConfig",
    "EoMT",
    "EoMTConfig",
    "BiT",
    "BiTConfig",
    "BiTVariant",
    "ImageModel",
    "LinearDepth",
    "LinearDepthConfig",
    "LinearSegmenter",
    "LinearSegmenterConfig",
    "ModelConfig",
    "Variant",
    "ViTConfig",
    "VisionTransformer",
    "adapted_layers",
    "check_tokens",
    "convolutions",
    "count_macs",
    "count_weights",
    "factory_name",
    "feature_extractor",
    "feature_names",
    "find_variant",
    "has_adapters",
    "has_layers_of",
    "layers_by_path",
    "merge_lora",
    "pair",
    "pixel_scaling",
    "require_adapters",
    "variant_config",
    "variant_of",
    "weights_by_path",
]
