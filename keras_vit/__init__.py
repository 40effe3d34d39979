"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

import sys
from typing import TYPE_CHECKING

from keras_vit._backend import choose_backend
from keras_vit._names import IS_PROGRAM, import_all, lazy_names

if TYPE_CHECKING:
    from keras_vit import data as data
    from keras_vit import depth as depth
    from keras_vit import detection as detection
    from keras_vit import evaluation as evaluation
    from keras_vit import export as export
    from keras_vit import inspection as inspection
    from keras_vit import layers as layers
    from keras_vit import segmentation as segmentation
    from keras_vit import text as text
    from keras_vit import training as training
    from keras_vit.checkpoints import class_names as class_names
    from keras_vit.checkpoints import inspect_checkpoint as inspect_checkpoint
    from keras_vit.checkpoints import list_models as list_models
    from keras_vit.checkpoints import list_weights as list_weights
    from keras_vit.checkpoints import push_to_hub as push_to_hub
    from keras_vit.checkpoints import to_checkpoint as to_checkpoint
    from keras_vit.models import BIT_VARIANTS as BIT_VARIANTS
    from keras_vit.models import DPT as DPT
    from keras_vit.models import VARIANTS as VARIANTS
    from keras_vit.models import BiT as BiT
    from keras_vit.models import BiTConfig as BiTConfig
    from keras_vit.models import CreateOptions as CreateOptions
    from keras_vit.models import Detector as Detector
    from keras_vit.models import DetectorConfig as DetectorConfig
    from keras_vit.models import DPTConfig as DPTConfig
    from keras_vit.models import EoMT as EoMT
    from keras_vit.models import EoMTConfig as EoMTConfig
    from keras_vit.models import LinearDepth as LinearDepth
    from keras_vit.models import LinearDepthConfig as LinearDepthConfig
    from keras_vit.models import LinearSegmenter as LinearSegmenter
    from keras_vit.models import LinearSegmenterConfig as LinearSegmenterConfig
    from keras_vit.models import LoadOptions as LoadOptions
    from keras_vit.models import ModelOptions as ModelOptions
    from keras_vit.models import TextConfig as TextConfig
    from keras_vit.models import TextEncoder as TextEncoder
    from keras_vit.models import VisionTransformer as VisionTransformer
    from keras_vit.models import ViTConfig as ViTConfig
    from keras_vit.models import feature_extractor as feature_extractor
    from keras_vit.models import feature_names as feature_names
    from keras_vit.preprocessing import decode_predictions as decode_predictions
    from keras_vit.preprocessing import load_image as load_image
    from keras_vit.preprocessing import preprocess_input as preprocess_input
    from keras_vit.preprocessing import sample_image as sample_image
    from keras_vit.text import load_image_text as load_image_text
    from keras_vit.zoo import BiT_R50x1 as BiT_R50x1
    from keras_vit.zoo import BiT_R50x3 as BiT_R50x3
    from keras_vit.zoo import BiT_R101x1 as BiT_R101x1
    from keras_vit.zoo import BiT_R101x3 as BiT_R101x3
    from keras_vit.zoo import BiT_R152x2 as BiT_R152x2
    from keras_vit.zoo import BiT_R152x4 as BiT_R152x4
    from keras_vit.zoo import R26_ViT_B32 as R26_ViT_B32
    from keras_vit.zoo import R26_ViT_S32 as R26_ViT_S32
    from keras_vit.zoo import R50_ViT_B16 as R50_ViT_B16
    from keras_vit.zoo import R50_ViT_L32 as R50_ViT_L32
    from keras_vit.zoo import R_ViT_Ti16 as R_ViT_Ti16
    from keras_vit.zoo import ViT_B8 as ViT_B8
    from keras_vit.zoo import ViT_B16 as ViT_B16
    from keras_vit.zoo import ViT_B32 as ViT_B32
    from keras_vit.zoo import ViT_H14 as ViT_H14
    from keras_vit.zoo import ViT_L16 as ViT_L16
    from keras_vit.zoo import ViT_L32 as ViT_L32
    from keras_vit.zoo import ViT_S16 as ViT_S16
    from keras_vit.zoo import ViT_S32 as ViT_S32
    from keras_vit.zoo import ViT_Ti16 as ViT_Ti16
    from keras_vit.zoo import create_model as create_model
    from keras_vit.zoo import from_checkpoint as from_checkpoint
    from keras_vit.zoo import load as load

__getattr__ = lazy_names(__name__)

__version__ = "0.4.0"


if not IS_PROGRAM:
    choose_backend()  # before the first import of Keras
    import_all(sys.modules[__name__])
    from keras_vit.zoo import FAMILY_FACTORIES

    globals().update(FAMILY_FACTORIES)  # DeiT_B16, DINOv2_S14 and so on
