"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

import sys
from typing import TYPE_CHECKING

from keras_vit._backend import choose_backend
from keras_vit._lazy import IS_PROGRAM, import_all, lazy_names

if TYPE_CHECKING:
    from keras_vit import data, evaluation, export, inspection, layers, training
    from keras_vit.checkpoints import (
        class_names,
        inspect_checkpoint,
        list_models,
        list_weights,
        push_to_hub,
        to_checkpoint,
    )
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
        feature_names,
    )
    from keras_vit.preprocessing import decode_predictions, load_image, preprocess_input
    from keras_vit.zoo import create_model, from_checkpoint, load

__getattr__ = lazy_names(__name__)

__version__ = "0.2.0"

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
    "data",
    "decode_predictions",
    "evaluation",
    "export",
    "feature_extractor",
    "feature_names",
    "from_checkpoint",
    "inspect_checkpoint",
    "inspection",
    "layers",
    "list_models",
    "list_weights",
    "load",
    "load_image",
    "preprocess_input",
    "push_to_hub",
    "to_checkpoint",
    "training",
]

if not IS_PROGRAM:
    choose_backend()  # before the first import of Keras
    import_all(sys.modules[__name__])
    from keras_vit.factories import FAMILY_FACTORIES

    globals().update(FAMILY_FACTORIES)  # DeiT_B16, DINOv2_S14 and so on
