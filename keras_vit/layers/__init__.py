"""Keras layers, one concept per file. They know Keras and nothing else."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.interpolation import resize_patch_kernel as resize_patch_kernel
    from keras_vit.interpolation import resize_table as resize_table
    from keras_vit.layers.base import assign as assign
    from keras_vit.layers.base import skip_initialization as skip_initialization
    from keras_vit.layers.blocks import BLOCK_ACTIVATIONS as BLOCK_ACTIVATIONS
    from keras_vit.layers.blocks import MLP as MLP
    from keras_vit.layers.blocks import LayerScale as LayerScale
    from keras_vit.layers.blocks import MixerBlock as MixerBlock
    from keras_vit.layers.blocks import MultiHeadAttention as MultiHeadAttention
    from keras_vit.layers.blocks import SwiGLU as SwiGLU
    from keras_vit.layers.blocks import TransformerBlock as TransformerBlock
    from keras_vit.layers.dense_prediction import BatchNormalization as BatchNormalization
    from keras_vit.layers.dense_prediction import DepthBins as DepthBins
    from keras_vit.layers.dense_prediction import DepthHead as DepthHead
    from keras_vit.layers.dense_prediction import FeatureFusion as FeatureFusion
    from keras_vit.layers.dense_prediction import MaskHead as MaskHead
    from keras_vit.layers.dense_prediction import QueryRotation as QueryRotation
    from keras_vit.layers.dense_prediction import Reassemble as Reassemble
    from keras_vit.layers.dense_prediction import UpscaleBlock as UpscaleBlock
    from keras_vit.layers.dense_prediction import resize as resize
    from keras_vit.layers.positions import RotaryEmbedding as RotaryEmbedding
    from keras_vit.layers.positions import sincos2d as sincos2d
    from keras_vit.layers.resnet import BiTUnit as BiTUnit
    from keras_vit.layers.resnet import PaddedMaxPooling2D as PaddedMaxPooling2D
    from keras_vit.layers.resnet import ResNetUnit as ResNetUnit
    from keras_vit.layers.resnet import StdConv2D as StdConv2D
    from keras_vit.layers.resnet import bit_conv as bit_conv
    from keras_vit.layers.resnet import group_norm as group_norm
    from keras_vit.layers.tokens import AddPositionEmbedding as AddPositionEmbedding
    from keras_vit.layers.tokens import AddSinCosPositionEmbedding as AddSinCosPositionEmbedding
    from keras_vit.layers.tokens import AddTextPositions as AddTextPositions
    from keras_vit.layers.tokens import ClassToken as ClassToken
    from keras_vit.layers.tokens import MAPHead as MAPHead
    from keras_vit.layers.tokens import PatchDropout as PatchDropout
    from keras_vit.layers.tokens import PatchEmbedding as PatchEmbedding
    from keras_vit.layers.tokens import RegisterTokens as RegisterTokens
    from keras_vit.layers.tokens import SelfMask as SelfMask
    from keras_vit.layers.tokens import TextMask as TextMask
    from keras_vit.layers.tokens import TextPooling as TextPooling
    from keras_vit.layers.tokens import TokenDropout as TokenDropout
    from keras_vit.layers.tokens import TokenMap as TokenMap
    from keras_vit.layers.tokens import TokenPooling as TokenPooling

__getattr__ = lazy_names(__name__)
