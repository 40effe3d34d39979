"""Classes of places by one matrix on the patch tokens of a Vision Transformer: linear heads, and vectors of texts."""

from typing import Any

import keras
from keras import layers

from keras_vit.layers import BatchNormalization, SelfMask
from keras_vit.layers.base import Dense, at_least_float32, initializer
from keras_vit.models.dense import DenseModel, block_map, token_map
from keras_vit.models.dense_config import LinearSegmenterConfig
from keras_vit.models.vision_transformer import VisionTransformer


def linear_segmenter(config: LinearSegmenterConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Logits `(batch, rows, columns, classes)`: batch normalisation and a matrix, for each patch by itself."""
    if config.zero_shot:
        return _cosines(config, backbone, policy)
    maps = [block_map(backbone, i, policy)[0] for i in config.blocks]
    x = layers.Concatenate(dtype=policy, name="features")(maps) if len(maps) > 1 else maps[0]
    if config.dropout:  # of whole channels, before the normalisation
        x = layers.SpatialDropout2D(config.dropout, data_format="channels_last", dtype=policy, name="head_dropout")(x)
    x = BatchNormalization(dtype=policy, name="head_norm")(x)
    kernel = initializer("normal", stddev=0.01)
    return Dense(config.classes, kernel_initializer=kernel, dtype=at_least_float32(policy, "head"), name="head")(x)


def _cosines(config: LinearSegmenterConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Cosines `(batch, rows, columns, classes)` of the classes' vectors and the values of the last block."""
    last, exact = backbone.get_layer(f"block_{config.blocks[-1]}"), at_least_float32(policy, "head")
    tokens, *rotation = keras.tree.flatten(last.input)
    # Attention of a token to itself alone returns its value, projected.
    tokens = last(tokens, *rotation, allowed=SelfMask(dtype=policy, name="self_mask")(tokens))
    x = token_map(backbone, tokens, config.blocks[-1], policy)[0]
    x = layers.UnitNormalization(dtype=exact, name="unit_features")(x)
    kernel = initializer("normal", stddev=0.01)
    return Dense(config.classes, use_bias=False, kernel_initializer=kernel, dtype=exact, name="head")(x)


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearSegmenter(DenseModel):
    """A linear head on the patch tokens of a plain Vision Transformer, as DINOv2 and DINOv3 are measured with.

    It takes images and returns logits `(batch, rows, columns, classes)` on the grid of patches. Pictures of any size
    become maps of classes with `keras_vit.segmentation.segment`. Arguments and errors are those of `VisionTransformer`.

    Source: `BNHead` in DINOv2's `eval/segmentation`, `LinearHead` in DINOv3's.

    Examples:
        >>> head = keras_vit.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(2, 3))
        >>> tuple(keras_vit.LinearSegmenter(head)(small_images).shape)
        (4, 2, 2, 3)
    """

    config_type = LinearSegmenterConfig
    default_name = "linear_segmenter"
    factory = "load"
    outputs_of = staticmethod(linear_segmenter)
