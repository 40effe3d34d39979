"""Depth from a Vision Transformer: DPT, as Depth Anything and DINOv2 have it, and DINOv2's linear head."""

from typing import Any

import keras
from keras import layers

from keras_vit.layers import DepthBins, DepthHead, FeatureFusion, Reassemble
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.layers.dpt import Convolution, WithClassToken
from keras_vit.models.dense import DenseModel, block_map
from keras_vit.models.depth_config import DepthConfig, DPTConfig, LinearDepthConfig
from keras_vit.models.vision_transformer import VisionTransformer


def dpt(config: DPTConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Depth `(batch, height, width)` from the blocks of a backbone: reassemble, fuse, three convolutions."""
    is_dinov2, width = config.design == "dinov2", config.fusion_width
    maps = []
    for i, x in enumerate(_maps(config, backbone, policy, with_class_token=is_dinov2)):
        readout = config.backbone.width if is_dinov2 else None
        factor = REASSEMBLE_FACTORS[i]
        x = Reassemble(config.widths[i], factor, readout, dtype=policy, name=f"reassemble_{i}")(x)
        maps.append(Convolution(width, 3, bias=False, dtype=policy, name=f"neck_{i}")(x))
    x = maps[-1]
    for i in range(4):  # the deepest first
        skip, shallower = maps[3 - i] if i else None, maps[2 - i] if i < 3 else None
        fusion = FeatureFusion(i > 0, bias=not is_dinov2, dtype=policy, name=f"fusion_{i}")
        # Depth Anything resizes to the shallower map, DINOv2 to twice the size, and the shallower map to that.
        x = fusion(x, skip=skip, like=None if is_dinov2 else shallower)
    if is_dinov2:
        x = Convolution(width, 3, dtype=policy, name="project")(x)
        x = layers.Activation("relu", dtype=policy, name="project_relu")(x)
    output = "clipped" if is_dinov2 else "sigmoid" if config.metric else "relu"
    patch_size = None if is_dinov2 else config.backbone.patch_size
    limits = {"min_depth": config.min_depth, "max_depth": config.max_depth}
    head = DepthHead(config.head_width, patch_size, output, **limits, dtype=policy, name="depth_head")
    return head(x, patches=None if is_dinov2 else _patches(backbone))


def linear_depth(config: LinearDepthConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Depth `(batch, 4 * rows, 4 * columns)` from `[patch, class token]` of some blocks, by a mean of bins."""
    maps = _maps(config, backbone, policy, with_class_token=True)
    x = layers.Concatenate(dtype=policy, name="features")(maps) if len(maps) > 1 else maps[0]
    bins = DepthBins(config.min_depth, config.max_depth, config.bins, dtype=policy, name="depth_bins")
    return bins(x)


def _patches(backbone: VisionTransformer) -> Any:
    return backbone.get_layer("embedding").output


def _maps(config: DepthConfig, backbone: VisionTransformer, policy: Any, with_class_token: bool) -> list[Any]:
    """What each of the blocks returns, as a map; with the final norm where the backbone has one."""
    maps = []
    for i in config.blocks:
        x, tokens = block_map(backbone, i, policy)
        maps.append(WithClassToken(dtype=policy, name=f"readout_{i}")(x, tokens) if with_class_token else x)
    return maps


@keras.saving.register_keras_serializable(package="keras_vit")
class DPT(DenseModel):
    """Depth by the head of DPT on a plain Vision Transformer, as Depth Anything V1 and V2 and DINOv2 have it.

    It takes images and returns depth `(batch, height, width)`, float32 or better: of Depth Anything as many pixels as
    the image has, of DINOv2 32 for two patches, rounded up. `keras_vit.depth.estimate` goes from a picture of any size
    to its depth. Arguments and errors are those of `VisionTransformer`.

    Source: DPT (arXiv 2103.13413), `depth_anything_v2/dpt.py` of Depth Anything V2, `dpt_head.py` of DINOv2.

    Examples:
        >>> dpt = keras_vit.DPT(keras_vit.DPTConfig(backbone=backbone, blocks=(0, 1, 2, 3)))
        >>> tuple(dpt(small_images).shape)
        (4, 8, 8)
    """

    config_type = DPTConfig
    default_name = "dpt"
    factory = "load"
    outputs_of = staticmethod(dpt)


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearDepth(DenseModel):
    """Depth by a linear head with bins on a plain Vision Transformer, as DINOv2 has it.

    It takes images and returns depth in metres `(batch, 4 * rows, 4 * columns)`, float32 or better, on the grid of
    patches. `keras_vit.depth.estimate` goes from a picture of any size to its depth. Arguments and errors are those of
    `VisionTransformer`.

    Source: DINOv2 (arXiv 2304.07193, section 7.4), `linear_head.py` of its depth heads.

    Examples:
        >>> depth_model = keras_vit.LinearDepth(keras_vit.LinearDepthConfig(backbone=backbone, blocks=(3,)))
        >>> tuple(depth_model(small_images).shape)
        (4, 8, 8)
    """

    config_type = LinearDepthConfig
    default_name = "linear_depth"
    factory = "load"
    outputs_of = staticmethod(linear_depth)
