"""Keras layers, one concept per file. They know Keras and nothing else."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names

if TYPE_CHECKING:
    from keras_vit.interpolation import resize_patch_kernel, resize_table
    from keras_vit.layers.base import assign, skip_initialization
    from keras_vit.layers.dense import MaskHead, QueryRotation, UpscaleBlock
    from keras_vit.layers.dpt import DepthBins, DepthHead, FeatureFusion, Reassemble
    from keras_vit.layers.map_head import MAPHead
    from keras_vit.layers.mixer_block import MixerBlock
    from keras_vit.layers.positions import RotaryEmbedding, sincos2d
    from keras_vit.layers.resizing import resize
    from keras_vit.layers.resnet import BiTUnit, PaddedMaxPooling2D, ResNetUnit, StdConv2D, bit_conv, group_norm
    from keras_vit.layers.tokens import (
        AddPositionEmbedding,
        AddSinCosPositionEmbedding,
        ClassToken,
        PatchDropout,
        PatchEmbedding,
        RegisterTokens,
        TextPooling,
        TokenDropout,
        TokenMap,
        TokenPooling,
    )
    from keras_vit.layers.transformer_block import (
        BLOCK_ACTIVATIONS,
        MLP,
        LayerScale,
        MultiHeadAttention,
        SwiGLU,
        TransformerBlock,
    )

__getattr__ = lazy_names(__name__)

__all__ = [
    "BLOCK_ACTIVATIONS",
    "MLP",
    "MaskHead",
    "QueryRotation",
    "UpscaleBlock",
    "AddPositionEmbedding",
    "AddSinCosPositionEmbedding",
    "BiTUnit",
    "ClassToken",
    "DepthBins",
    "DepthHead",
    "FeatureFusion",
    "LayerScale",
    "MAPHead",
    "MixerBlock",
    "MultiHeadAttention",
    "PaddedMaxPooling2D",
    "PatchDropout",
    "PatchEmbedding",
    "RegisterTokens",
    "Reassemble",
    "ResNetUnit",
    "RotaryEmbedding",
    "StdConv2D",
    "SwiGLU",
    "TextPooling",
    "TokenDropout",
    "TokenMap",
    "TokenPooling",
    "TransformerBlock",
    "bit_conv",
    "group_norm",
    "resize",
    "resize_patch_kernel",
    "resize_table",
    "sincos2d",
    "assign",
    "skip_initialization",
]
