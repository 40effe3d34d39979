"""How many weights a model has, without building it."""

import math

from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig


def count_weights(config: ViTConfig | BiTConfig) -> int:
    """The number of weights of the model of a config, those that do not train included."""
    if isinstance(config, BiTConfig):
        total = _resnet(config.channels, config.width, config.stages, pre_activation=True)
        return total + (config.features + 1) * (config.classes or 0)
    width, norm = config.width, 2 * config.width
    total = 0
    if config.stem_stages is not None:
        total = _resnet(config.channels, config.stem_width, config.stem_stages)
    total += math.prod(config.patch_size) * config.feature_map_channels * width
    total += width * (config.patch_bias or config.preprocessing_folded)
    total += (config.prefix_tokens + config.position_rows) * width
    total += config.head_size // 4 if config.rotary_embedding == "dinov3" else 0
    total += norm * (config.pre_norm + (config.final_norm != "none"))
    biases = {"all": 4, "no_key": 3, "none": 1}[config.attention_bias]
    block = 2 * norm + 4 * width**2 + biases * width + norm * config.attention_norm
    block += _mlp(config) + (0 if config.layer_scale is None else 2 * width)
    total += config.depth * block
    if config.pooling == "map":
        total += width + 4 * (width**2 + width) + norm + _plain_mlp(config)
    features = config.pooled_size
    if config.projection:
        total, features = total + features * config.projection, config.projection
    if config.representation_size:
        total, features = total + (features + 1) * config.representation_size, config.representation_size
    return total + (features + 1) * (config.classes or 0) * (1 + config.distillation_head)


def _mlp(config: ViTConfig) -> int:
    width, hidden = config.width, config.mlp_width
    plain = config.mlp.startswith("plain")
    dense = _plain_mlp(config) if plain else 3 * width * hidden + 2 * hidden + width
    return dense + (2 * hidden if config.mlp.endswith("norm") else 0)


def _plain_mlp(config: ViTConfig) -> int:
    return 2 * config.width * config.mlp_width + config.mlp_width + config.width


def _resnet(image_channels: int, width: int, stages: tuple[int, ...], pre_activation: bool = False) -> int:
    """The weights of the ResNet of a hybrid or of a BiT, whose normalisations are before the convolutions."""
    total = 49 * image_channels * width + (0 if pre_activation else 2 * width)
    channels = width
    for stage, units in enumerate(stages):
        inner = width * 2**stage
        for unit in range(units):
            first = not unit
            total += channels * inner + 9 * inner**2 + 4 * inner**2 + (4 * channels * inner if first else 0)
            if pre_activation:
                total += 2 * (channels + inner + inner)
            else:
                total += 2 * (inner + inner + 4 * inner) + (8 * inner if first else 0)
            channels = 4 * inner
    return total + (2 * channels if pre_activation else 0)
