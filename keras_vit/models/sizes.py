"""How large a model is, without building it: its convolutions, weights and multiplications."""

import math
from typing import Any, NamedTuple

from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.models.config import BiTConfig, TextConfig, ViTConfig, reduced
from keras_vit.models.dense_config import (
    AnomalyConfig,
    DenseConfig,
    DepthConfig,
    DetectorConfig,
    EoMTConfig,
    LinearDepthConfig,
    LinearSegmenterConfig,
    MultiTaskDPTConfig,
)
from keras_vit.models.variants import variant_of


class Convolution(NamedTuple):
    """A convolution of a ResNet, without bias."""

    stage: int  # from 1; 0 for the first convolution, which stands before them
    unit: int  # of the stage, from 1; 0 for the first convolution
    layer: str  # "conv_root", "conv1", "conv2", "conv3" or "conv_proj"
    size: int  # height and width of the kernel
    inputs: int  # channels
    filters: int
    map_size: tuple[int, int]  # rows and columns of the output, for images of the config's size

    @property
    def unit_path(self) -> str:
        """The path of its unit in the model, such as `"block1_unit1/"`; empty for the first convolution."""
        return f"block{self.stage}_unit{self.unit}/" if self.stage else ""

    @property
    def weights(self) -> int:
        """Number of values of the kernel."""
        return self.size**2 * self.inputs * self.filters


def convolutions(config: ViTConfig | BiTConfig) -> list[Convolution]:
    """Returns the convolutions of a BiT, or of the ResNet of a hybrid, in their order; none without a ResNet.

    Raises TypeError for a config of another model.
    """
    is_bit = isinstance(config, BiTConfig)
    if not isinstance(config, (ViTConfig, BiTConfig)):
        advice = " Pass config.backbone." if isinstance(config, DenseConfig) else ""
        raise TypeError(f"config must be a ViTConfig or a BiTConfig, but {type(config).__name__} was given.{advice}")
    stages = config.stages if is_bit else config.stem_stages
    if stages is None:
        return []

    channels = config.width if is_bit else config.stem_width
    size = reduced(config.image_size, 2)
    found = [Convolution(0, 0, "conv_root", 7, config.channels, channels, size)]
    size, width = reduced(size, 2), channels
    for stage, units in enumerate(stages, start=1):
        inner = width * 2 ** (stage - 1)
        for unit in range(1, units + 1):
            before = size
            size = reduced(size, 2) if stage > 1 and unit == 1 else size
            found.append(Convolution(stage, unit, "conv1", 1, channels, inner, before))
            found.append(Convolution(stage, unit, "conv2", 3, inner, inner, size))
            found.append(Convolution(stage, unit, "conv3", 1, inner, 4 * inner, size))
            if unit == 1:
                found.append(Convolution(stage, unit, "conv_proj", 1, channels, 4 * inner, size))
            channels = 4 * inner
    return found


def describe(config: Any, weights: int) -> str:
    """Returns the facts of a model on one line: `ViT-B/16, 224 px, 86.6 M parameters, softmax of 1,000 classes`."""
    parameters = f"{weights / 1e6:.1f} M parameters" if weights >= 1e6 else f"{weights:,} parameters"
    if isinstance(config, TextConfig):
        features = config.projection or config.width
        return f"{config.context} tokens of {config.vocabulary:,}, {parameters}, {features} features"
    trunk = getattr(config, "backbone", config)
    height, width = config.image_size
    size = "any size" if config.dynamic else f"{height} px" if height == width else f"{height} x {width} px"
    if isinstance(config, MultiTaskDPTConfig):
        output = f"maps of {' and '.join(config.tasks)}"
    elif isinstance(config, DepthConfig) and getattr(config, "needs_focal", False):
        output = "metric depth by the focal length"
    elif isinstance(config, DepthConfig):
        output = f"depth up to {config.max_depth:g} m" if config.metric else "relative depth"
    elif isinstance(config, EoMTConfig):
        output = f"{config.queries} masks of {config.classes:,} classes"
    elif isinstance(config, LinearSegmenterConfig):
        output = f"maps of {config.classes:,} classes"
    elif isinstance(config, DetectorConfig):
        output = f"boxes of {config.classes:,} classes"
    elif isinstance(config, AnomalyConfig):
        output = f"{config.bank_size:,} patches of good pictures"
    elif config.classes:
        output = f"{config.classifier_activation or 'logits'} of {config.classes:,} classes"
    else:
        output = "features of each token" if config.pooling == "none" else "features"
    return ", ".join([variant_of(trunk) or f"width {trunk.width}", size, parameters, output])


def count_weights(config: ViTConfig | BiTConfig | DenseConfig | TextConfig) -> int:
    """The number of weights of a model, those that do not train included; TypeError for another config."""
    if isinstance(config, DenseConfig):
        return count_weights(config.backbone) + _head_weights(config)
    if isinstance(config, TextConfig):
        width, hidden = config.width, config.mlp_width
        rows = config.vocabulary + (config.context if config.position_embedding == "learned" else 0)
        total = rows * width + config.depth * _block_weights(config) + 2 * width
        if config.pooling == "map":
            total += _pooling_weights(width, hidden)
        return total + (width + config.projection_bias) * (config.projection or 0)
    resnet = convolutions(config)
    if isinstance(config, BiTConfig):
        # Normalisations come before the convolutions of a unit, and one after the last.
        norms = sum(2 * conv.inputs for conv in resnet if conv.layer in ("conv1", "conv2", "conv3"))
        total = sum(conv.weights for conv in resnet) + norms + 2 * config.features
        return total + (config.features + 1) * (config.classes or 0)
    width, norm = config.width, 2 * config.width
    total = sum(conv.weights + 2 * conv.filters for conv in resnet)  # a normalisation follows each
    total += math.prod(config.patch_size) * config.feature_map_channels * width
    if config.patch_bias or config.preprocessing_folded:
        total += width
    total += (config.prefix_tokens + config.position_rows) * width
    if config.rotary_embedding == "dinov3":
        total += config.head_size // 4
    if config.pre_norm:
        total += norm
    if config.final_norm != "none":
        total += norm
    total += config.depth * _block_weights(config)
    if config.pooling == "map":
        total += _pooling_weights(width, config.pooling_mlp_width or config.mlp_width)
    features = config.pooled_size
    if config.projection:
        bias = config.projection if config.projection_bias else 0
        total, features = total + features * config.projection + bias, config.projection
    if config.representation_size:
        total, features = total + (features + 1) * config.representation_size, config.representation_size
    heads = 2 if config.distillation_head else 1
    return total + heads * (features + 1) * (config.classes or 0)


def _pooling_weights(width: int, hidden: int) -> int:
    """The weights of pooling by attention: the query, four projections, a normalisation, an MLP."""
    return width + 4 * (width**2 + width) + 2 * width + 2 * width * hidden + hidden + width


def _block_weights(config: ViTConfig | TextConfig) -> int:
    """Returns the weights of one block: two normalisations, attention or an MLP across tokens, an MLP, scales."""
    width, norm, hidden = config.width, 2 * config.width, config.mlp_width
    total = 2 * norm
    if config.tokens_mlp_width is None:
        biases = {"all": 4, "no_key": 3, "none": 1}[config.attention_bias]
        total += 4 * width**2 + biases * width
        if config.attention_norm:
            total += norm
    else:
        tokens, mixed = math.prod(config.grid_size), config.tokens_mlp_width
        total += 2 * tokens * mixed + tokens + mixed
    if config.mlp.startswith("plain"):
        total += 2 * width * hidden + hidden + width
    else:
        total += 3 * width * hidden + 2 * hidden + width
    if config.mlp.endswith("norm"):
        total += 2 * hidden
    if config.layer_scale is not None:
        total += 2 * width
    return total


def count_macs(config: ViTConfig | BiTConfig) -> int:
    """Returns the multiply-adds of all convolutions and matrix products, those of attention too, for one image.

    Raises TypeError for another config, such as that of a dense model.
    """
    total = sum(conv.weights * math.prod(conv.map_size) for conv in convolutions(config))
    if isinstance(config, BiTConfig):
        places = math.prod(config.feature_map_size) if config.pooling == "none" else 1
        return total + places * config.features * (config.classes or 0)
    patches = math.prod(config.grid_size)
    tokens = patches + config.prefix_tokens
    width, hidden = config.width, config.mlp_width
    total += patches * math.prod(config.patch_size) * config.feature_map_channels * width
    projections, attention = 4 * tokens * width**2, 2 * tokens**2 * width
    mlp = (2 if config.mlp.startswith("plain") else 3) * tokens * width * hidden
    if config.tokens_mlp_width is not None:
        projections, attention = 0, 2 * tokens * config.tokens_mlp_width * width
    total += config.depth * (projections + attention + mlp)
    if config.computed_tokens is not None:
        # The last block has keys and values of all tokens; everything else of those that go on.
        share = 1 - config.computed_tokens / tokens
        total -= round(share * (projections / 2 + attention + mlp))
    if config.pooling == "map":
        # Keys and values of all tokens, one query, one output, one token through the MLP.
        read_tokens = tokens if config.map_prefix else patches
        pooled_hidden = config.pooling_mlp_width or hidden
        total += 2 * (read_tokens + 1) * width**2 + 2 * read_tokens * width + 2 * width * pooled_hidden
    ends = tokens if config.pooling == "none" else 1
    features = config.pooled_size
    for units in (config.projection, config.representation_size, config.classes):
        if units:
            total += ends * features * units
            features = units
    return total + (width * config.classes if config.classes and config.distillation_head else 0)


def _head_weights(config: Any) -> int:
    """Returns the number of weights that a dense model has beside its backbone."""
    width = config.backbone.width
    if isinstance(config, LinearSegmenterConfig):  # a matrix; unless its columns are texts, biases and normalisation
        read = len(config.blocks) * width
        return read * config.classes if config.zero_shot else 4 * read + (read + 1) * config.classes
    if isinstance(config, EoMTConfig):
        upscaling = 4 * width**2 + 12 * width  # a transposed convolution, a depthwise one, a normalisation
        heads = (width + 1) * (config.classes + 1) + 3 * (width + 1) * width
        return config.queries * width + heads + config.upscale_blocks * upscaling
    if isinstance(config, LinearDepthConfig):  # a matrix from patch and class token of each block, and biases
        return (2 * len(config.blocks) * width + 1) * config.bins
    if isinstance(config, AnomalyConfig):
        return config.bank_size * width
    if isinstance(config, DetectorConfig):  # a normalisation, vectors of patches and classes, two numbers
        logits = 2 * width + (width + 1) * (config.embedding + 2) + config.embedding * config.classes
        outputs = (4, 1) if config.objectness else (4,)
        return logits + sum((width + 1) * (2 * width + count) for count in outputs)
    if isinstance(config, MultiTaskDPTConfig):
        outputs = {"depth": config.bins, "normals": 3, "segmentation": config.classes}
        ends = sum((config.fusion_width + 1) * outputs[task] for task in config.tasks)
        return len(config.tasks) * _fusion_weights(config, has_token=True) + ends
    half, heads = config.fusion_width // 2, 2 if config.design == "depth_anything_3" else 1
    ends = (9 * half + 1) * config.head_width + config.head_width + 1
    first = (9 * config.fusion_width + 1) * half
    return _fusion_weights(config, config.design == "dinov2") + first + heads * ends


def _fusion_weights(config: Any, has_token: bool) -> int:
    """Returns the number of weights of a DPT from the tokens of four blocks to one map."""
    width, fused, total = config.backbone.width, config.fusion_width, 0
    if has_token:  # readouts, and the projection after the fusion
        total = 4 * (2 * width + 1) * width + (9 * fused + 1) * fused
    for channels, factor in zip(config.widths, REASSEMBLE_FACTORS, strict=True):
        total += (width + 1) * channels + 9 * channels * fused
        if factor != 1:
            size = 3 if factor < 1 else int(factor)
            total += (size**2 * channels + 1) * channels
    convolution = 9 * fused**2 + (0 if has_token else fused)
    return total + 14 * convolution + 4 * (fused + 1) * fused  # the deepest map has one unit of two, others two units
