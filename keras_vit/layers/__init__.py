"""Keras layers, one concept per file. They know Keras and nothing else."""

from typing import TYPE_CHECKING

from keras_vit._lazy import IS_PROGRAM, import_later

if TYPE_CHECKING or not IS_PROGRAM:
    from keras_vit.layers.attention import MultiHeadAttention
    from keras_vit.layers.bit_unit import BiTUnit, PaddedMaxPooling2D, bit_conv
    from keras_vit.layers.class_token import ClassToken
    from keras_vit.layers.initialization import assign, skip_initialization
    from keras_vit.layers.layer_scale import LayerScale
    from keras_vit.layers.mlp import MLP
    from keras_vit.layers.patch_embedding import PatchEmbedding
    from keras_vit.layers.patch_resize import resize_patch_kernel
    from keras_vit.layers.pooling import MAPHead, TokenPooling
    from keras_vit.layers.position_embedding import AddPositionEmbedding, resize_table
    from keras_vit.layers.register_tokens import RegisterTokens
    from keras_vit.layers.resnet_unit import ResNetUnit, group_norm
    from keras_vit.layers.rotary_embedding import RotaryEmbedding
    from keras_vit.layers.sincos_position_embedding import AddSinCosPositionEmbedding, sincos2d
    from keras_vit.layers.std_conv import StdConv2D
    from keras_vit.layers.swiglu import SwiGLU
    from keras_vit.layers.token_dropout import TokenDropout
    from keras_vit.layers.token_map import TokenMap
    from keras_vit.layers.transformer_block import BLOCK_ACTIVATIONS, TransformerBlock
else:
    __getattr__ = import_later(
        __name__,
        "attention",
        "bit_unit",
        "class_token",
        "initialization",
        "layer_scale",
        "mlp",
        "patch_embedding",
        "patch_resize",
        "pooling",
        "position_embedding",
        "register_tokens",
        "resnet_unit",
        "rotary_embedding",
        "sincos_position_embedding",
        "std_conv",
        "swiglu",
        "token_dropout",
        "token_map",
        "transformer_block",
    )

__all__ = [
    "BLOCK_ACTIVATIONS",
    "MLP",
    "AddPositionEmbedding",
    "AddSinCosPositionEmbedding",
    "BiTUnit",
    "ClassToken",
    "LayerScale",
    "MAPHead",
    "MultiHeadAttention",
    "PaddedMaxPooling2D",
    "PatchEmbedding",
    "RegisterTokens",
    "ResNetUnit",
    "RotaryEmbedding",
    "StdConv2D",
    "SwiGLU",
    "TokenDropout",
    "TokenMap",
    "TokenPooling",
    "TransformerBlock",
    "bit_conv",
    "group_norm",
    "resize_patch_kernel",
    "resize_table",
    "sincos2d",
    "assign",
    "skip_initialization",
]
