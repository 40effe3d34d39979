"""How much work a model does for one image."""

import math

from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig


def count_macs(config: ViTConfig | BiTConfig) -> int:
    """Multiply-accumulate operations of all convolutions and matrix products, for one image.

    The two products inside attention are counted; normalisations, activations and sums are not. A floating point
    operation count is about twice as much.
    """
    if isinstance(config, BiTConfig):
        total = _resnet(config.image_size, config.channels, config.width, config.stages)
        places = math.prod(config.feature_map_size) if config.pooling == "none" else 1
        return total + places * config.features * (config.classes or 0)
    patches = math.prod(config.grid_size)
    tokens = patches + config.prefix_tokens
    width, hidden = config.width, config.mlp_width
    total = 0
    if config.stem_stages is not None:
        total = _resnet(config.image_size, config.channels, config.stem_width, config.stem_stages)
    total += patches * math.prod(config.patch_size) * config.feature_map_channels * width
    projections, attention = 4 * tokens * width**2, 2 * tokens**2 * width
    mlp = (2 if config.mlp.startswith("plain") else 3) * tokens * width * hidden
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


def _resnet(image_size: tuple[int, int], image_channels: int, width: int, stages: tuple[int, ...]) -> int:
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
