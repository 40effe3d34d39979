"""Models as functions of one config, and the table of variants."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names
from keras_vit.models.config import BiTConfig as BiTConfig
from keras_vit.models.config import ModelConfig as ModelConfig
from keras_vit.models.config import TextConfig as TextConfig
from keras_vit.models.config import ViTConfig as ViTConfig
from keras_vit.models.dense_config import DenseConfig as DenseConfig
from keras_vit.models.dense_config import DetectorConfig as DetectorConfig
from keras_vit.models.dense_config import DPTConfig as DPTConfig
from keras_vit.models.dense_config import EoMTConfig as EoMTConfig
from keras_vit.models.dense_config import LinearDepthConfig as LinearDepthConfig
from keras_vit.models.dense_config import LinearSegmenterConfig as LinearSegmenterConfig
from keras_vit.models.sizes import convolutions as convolutions
from keras_vit.models.sizes import count_macs as count_macs
from keras_vit.models.sizes import count_weights as count_weights
from keras_vit.models.variants import BIT_VARIANTS as BIT_VARIANTS
from keras_vit.models.variants import FAMILIES as FAMILIES
from keras_vit.models.variants import VARIANTS as VARIANTS
from keras_vit.models.variants import factory_name as factory_name
from keras_vit.models.variants import find_variant as find_variant
from keras_vit.models.variants import has_layers_of as has_layers_of
from keras_vit.models.variants import variant_config as variant_config
from keras_vit.models.variants import variant_of as variant_of

# What needs Keras.
if TYPE_CHECKING:
    from keras_vit.layers.base import has_adapters as has_adapters
    from keras_vit.layers.base import layers_by_path as layers_by_path
    from keras_vit.layers.base import weights_by_path as weights_by_path
    from keras_vit.models.changes import CreateOptions as CreateOptions
    from keras_vit.models.changes import LoadOptions as LoadOptions
    from keras_vit.models.changes import ModelOptions as ModelOptions
    from keras_vit.models.changes import adapted_layers as adapted_layers
    from keras_vit.models.changes import check_tokens as check_tokens
    from keras_vit.models.changes import merge_lora as merge_lora
    from keras_vit.models.changes import require_adapters as require_adapters
    from keras_vit.models.dense import DPT as DPT
    from keras_vit.models.dense import DenseModel as DenseModel
    from keras_vit.models.dense import Detector as Detector
    from keras_vit.models.dense import EoMT as EoMT
    from keras_vit.models.dense import LinearDepth as LinearDepth
    from keras_vit.models.dense import LinearSegmenter as LinearSegmenter
    from keras_vit.models.features import feature_extractor as feature_extractor
    from keras_vit.models.features import feature_names as feature_names
    from keras_vit.models.image_model import ImageModel as ImageModel
    from keras_vit.models.image_model import pixel_scaling as pixel_scaling
    from keras_vit.models.text_encoder import TextEncoder as TextEncoder
    from keras_vit.models.vision_transformer import BiT as BiT
    from keras_vit.models.vision_transformer import VisionTransformer as VisionTransformer

__getattr__ = lazy_names(__name__)
