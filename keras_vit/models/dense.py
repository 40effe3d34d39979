"""Models of segmentation and depth on the layers of a Vision Transformer: what they share, linear heads, DPT."""

from collections.abc import Callable
from typing import Any, Self

import keras
from keras import layers

from keras_vit.layers import BatchNormalization, DepthBins, DepthHead, FeatureFusion, Reassemble, SelfMask, TokenMap
from keras_vit.layers.base import Dense, at_least_float32, initializer
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.layers.dpt import Convolution, WithClassToken
from keras_vit.models.dense_config import DenseConfig, DepthConfig, DPTConfig, LinearDepthConfig, LinearSegmenterConfig
from keras_vit.models.image_model import ImageModel
from keras_vit.models.vision_transformer import VisionTransformer


def block_map(backbone: VisionTransformer, block: int, policy: Any) -> tuple[Any, Any]:
    """What a block returns, as a map of the patches and as all tokens; normalised if the backbone has a final norm."""
    return token_map(backbone, backbone.get_layer(f"block_{block}").output, block, policy)


def token_map(backbone: VisionTransformer, tokens: Any, block: int, policy: Any) -> tuple[Any, Any]:
    """Tokens that a block has made, as a map of the patches and as they are, both normalised if the backbone is."""
    vit = backbone.config
    if vit.final_norm == "tokens":
        tokens = backbone.get_layer("encoder_norm")(tokens)
    layer = TokenMap(vit.grid_size, vit.prefix_tokens, dtype=policy, name=f"map_{block}")
    return layer(tokens, backbone.get_layer("embedding").output) if vit.dynamic else layer(tokens), tokens


class _Untracked:
    """Holds a model without Keras taking it for a part of another one."""

    def __init__(self, model: VisionTransformer) -> None:
        self.model = model


class DenseModel(ImageModel):
    """A functional model on the layers of a `VisionTransformer`: a function of one `DenseConfig`.

    It saves, trains, freezes, quantizes and takes LoRA as models of images do. Subclasses set `config_type`,
    `default_name`, and `outputs_of`, a function from the config, the backbone and a dtype policy to the outputs.

    Args:
        config: What to build.
        input_tensor: As in `VisionTransformer`.
        name: Name of the model.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        TypeError: if `config` is none of this model.
        ValueError: if `input_tensor` is no input for the backbone.
    """

    config_type = DenseConfig
    outputs_of: Callable[..., Any]

    def __init__(
        self,
        config: Any,
        *,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        """Builds the backbone and the head on it.

        Raises TypeError if the config is of another model, and what `VisionTransformer` raises for its input.
        """
        if not isinstance(config, self.config_type):
            raise TypeError(f"config must be a {self.config_type.__name__}, but {type(config).__name__} was given.")
        policy = keras.dtype_policies.get(dtype)
        backbone = VisionTransformer(config.backbone, input_tensor=input_tensor, name="backbone", dtype=policy)
        outputs = type(self).outputs_of(config, backbone, policy)
        super(ImageModel, self).__init__(backbone.input, outputs, name=name or self.default_name)
        self.set_up(config, policy)
        self._shared = _Untracked(backbone)
        self.trainable = trainable

    @property
    def config(self) -> Any:
        """The config of this model."""
        return self._config

    @property
    def backbone(self) -> VisionTransformer:
        """The Vision Transformer of the same layers: what changes its weights changes this model, too."""
        return self._shared.model

    def optimize_for_inference(self, *, verbose: bool = True) -> Self:
        """Raises ValueError: a dense model needs all tokens for its output, and computes no more."""
        raise ValueError(f"{self.name} needs all tokens for its output: there is nothing that it need not compute.")


# A linear head


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


# Depth


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
    """The symbolic output of the patch embedding, whose size a dynamic model has to know."""
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
