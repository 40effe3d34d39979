"""How many weights a model has and how much work it does for one image, without building it."""

import math

from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig


def count_weights(config: ViTConfig | BiTConfig) -> int:
    """The number of weights of the model of a config, those that do not train included."""
    if isinstance(config, BiTConfig):
        total = _resnet_weights(config.channels, config.width, config.stages, pre_activation=True)
        return total + (config.features + 1) * (config.classes or 0)
    width, norm = config.width, 2 * config.width
    total = 0
    if config.stem_stages is not None:
        total = _resnet_weights(config.channels, config.stem_width, config.stem_stages)
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
    if config.mlp == "plain":
        return _plain_mlp(config)
    width, hidden = config.width, config.mlp_width
    return 3 * width * hidden + 2 * hidden + width + (2 * hidden if config.mlp == "swiglu_norm" else 0)


def _plain_mlp(config: ViTConfig) -> int:
    return 2 * config.width * config.mlp_width + config.mlp_width + config.width


def _resnet_weights(image_channels: int, width: int, stages: tuple[int, ...], pre_activation: bool = False) -> int:
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


def count_macs(config: ViTConfig | BiTConfig) -> int:
    """Multiply-accumulate operations of all convolutions and matrix products, for one image.

    The two products inside attention are counted; normalisations, activations and sums are not. A floating point
    operation count is about twice as much.
    """
    if isinstance(config, BiTConfig):
        total = _resnet_macs(config.image_size, config.channels, config.width, config.stages)
        places = math.prod(config.feature_map_size) if config.pooling == "none" else 1
        return total + places * config.features * (config.classes or 0)
    patches = math.prod(config.grid_size)
    tokens = patches + config.prefix_tokens
    width, hidden = config.width, config.mlp_width
    total = 0
    if config.stem_stages is not None:
        total = _resnet_macs(config.image_size, config.channels, config.stem_width, config.stem_stages)
    total += patches * math.prod(config.patch_size) * config.feature_map_channels * width
    projections, attention = 4 * tokens * width**2, 2 * tokens**2 * width
    mlp = (2 if config.mlp == "plain" else 3) * tokens * width * hidden
    total += config.depth * (projections + attention + mlp)
    if config.answering_tokens is not None:
        # The last block has keys and values of all tokens; everything else of those that go on.
        share = 1 - config.answering_tokens / tokens
        total -= round(share * (projections / 2 + attention + mlp))
    if config.pooling == "map":
        # Keys and values of all tokens, one query, one output, one token through the MLP.
        asked = tokens if config.map_prefix else patches
        total += 2 * (asked + 1) * width**2 + 2 * asked * width + 2 * width * hidden
    ends = tokens if config.pooling == "none" else 1
    features = config.pooled_size
    for units in (config.projection, config.representation_size, config.classes):
        if units:
            total += ends * features * units
            features = units
    return total + (width * config.classes if config.classes and config.distillation_head else 0)


def _resnet_macs(image_size: tuple[int, int], image_channels: int, width: int, stages: tuple[int, ...]) -> int:
    """The ResNet of a hybrid or of a BiT, which have the same convolutions."""

    def halve(size: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-n // 2) for n in size)

    size = halve(image_size)
    total = math.prod(size) * 49 * image_channels * width
    size, channels = halve(size), width
    for stage, units in enumerate(stages):
        inner = width * 2**stage
        for unit in range(units):
            before = math.prod(size)
            size = halve(size) if stage and not unit else size
            after = math.prod(size)
            total += before * channels * inner + after * (9 * inner * inner + inner * 4 * inner)
            total += after * channels * 4 * inner if not unit else 0
            channels = 4 * inner
    return total
