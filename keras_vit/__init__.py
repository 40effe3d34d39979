"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

import keras_vit._backend  # noqa: F401, I001  before the first import of Keras
from keras_vit import evaluation, export, layers, training
from keras_vit.checkpoints import class_names, inspect_checkpoint, list_weights, to_checkpoint
from keras_vit.factories import (
    BiT_R50x1,
    BiT_R50x3,
    BiT_R101x1,
    BiT_R101x3,
    BiT_R152x2,
    BiT_R152x4,
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
)
from keras_vit.models import (
    BIT_VARIANTS,
    VARIANTS,
    BiT,
    BiTConfig,
    VisionTransformer,
    ViTConfig,
    feature_extractor,
)
from keras_vit.preprocessing import decode_predictions, load_image, preprocess_input
from keras_vit.zoo import create_model, from_checkpoint, list_models

__version__ = "0.1.0"

__all__ = [
    "BIT_VARIANTS",
    "VARIANTS",
    "BiT",
    "BiTConfig",
    "BiT_R50x1",
    "BiT_R50x3",
    "BiT_R101x1",
    "BiT_R101x3",
    "BiT_R152x2",
    "BiT_R152x4",
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
    "class_names",
    "create_model",
    "decode_predictions",
    "evaluation",
    "export",
    "feature_extractor",
    "from_checkpoint",
    "inspect_checkpoint",
    "layers",
    "list_models",
    "list_weights",
    "load_image",
    "preprocess_input",
    "to_checkpoint",
    "training",
]
