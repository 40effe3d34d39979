"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

from keras_vit import layers
from keras_vit.checkpoints import inspect_checkpoint, to_checkpoint
from keras_vit.models import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.models.features import feature_extractor
from keras_vit.preprocessing import decode_predictions, load_image, preprocess_input
from keras_vit.zoo import (
    R26_ViT_B32,
    R26_ViT_S32,
    R50_ViT_B16,
    R50_ViT_L32,
    R_ViT_Ti16,
    ViT_B8,
    ViT_B16,
    ViT_B32,
    ViT_H14,
    ViT_L16,
    ViT_L32,
    ViT_S16,
    ViT_S32,
    ViT_Ti16,
    create_model,
    from_checkpoint,
    list_models,
)

__version__ = "0.1.0"

__all__ = [
    "VARIANTS",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ViTConfig",
    "ViT_B8",
    "ViT_B16",
    "ViT_B32",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_S16",
    "ViT_S32",
    "ViT_Ti16",
    "VisionTransformer",
    "create_model",
    "decode_predictions",
    "feature_extractor",
    "from_checkpoint",
    "inspect_checkpoint",
    "layers",
    "list_models",
    "load_image",
    "preprocess_input",
    "to_checkpoint",
]
