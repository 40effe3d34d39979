"""Which model a config describes."""

from keras_vit.models.bit import BiT
from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ModelConfig, ViTConfig
from keras_vit.models.vision_transformer import VisionTransformer

MODELS: dict[type[ModelConfig], type[VisionTransformer] | type[BiT]] = {ViTConfig: VisionTransformer, BiTConfig: BiT}
