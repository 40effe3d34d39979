"""Keras layers, one concept per file. They know Keras and nothing else."""

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.bit_unit import BiTUnit, PaddedMaxPooling2D, bit_conv
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.initialization import aligned_zeros, skip_initialization
from keras_vit.layers.mlp import MLP
from keras_vit.layers.patch_embedding import PatchEmbedding
from keras_vit.layers.patch_resize import resize_patch_kernel
from keras_vit.layers.pooling import MAPHead, TokenPooling
from keras_vit.layers.position_embedding import AddPositionEmbedding, resize_table
from keras_vit.layers.resnet_unit import ResNetUnit, group_norm
from keras_vit.layers.sincos_position_embedding import AddSinCosPositionEmbedding, sincos2d
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "MLP",
    "AddPositionEmbedding",
    "AddSinCosPositionEmbedding",
    "BiTUnit",
    "ClassToken",
    "MAPHead",
    "MultiHeadAttention",
    "PaddedMaxPooling2D",
    "PatchEmbedding",
    "ResNetUnit",
    "StdConv2D",
    "TokenPooling",
    "TransformerBlock",
    "aligned_zeros",
    "bit_conv",
    "group_norm",
    "resize_patch_kernel",
    "resize_table",
    "sincos2d",
    "skip_initialization",
]
