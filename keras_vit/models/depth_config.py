"""What decides what a depth model computes, and how its publisher prepares pictures; without Keras."""

import dataclasses
from typing import Annotated, ClassVar

from keras_vit.models.dense_config import DenseConfig
from keras_vit.models.fields import AtLeast, Integers, Number, OneOf, Pair, Positive

# How pictures are brought to a model, and depth back to the picture's size: by name in `keras_vit.depth.estimating`.
DEPTH_PICTURES = ("depth_anything", "depth_anything_transformers", "dinov2")
DESIGNS = ("depth_anything", "dinov2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DepthConfig(DenseConfig):
    """What the configs of depth models have in common; `DPTConfig` says what each field is."""

    blocks: Annotated[tuple[int, ...], Integers(least=0)]
    min_depth: Annotated[float, Number()] = 0.001
    max_depth: Annotated[float, Number()] = 10.0
    metric: bool = True
    pictures: Annotated[str, OneOf(DEPTH_PICTURES)] = "dinov2"
    picture_size: Pair = (518, 518)

    SETTINGS: ClassVar[tuple[str, ...]] = ("max_depth", "pictures", "picture_size")
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens", "none")

    def _check_together(self) -> None:
        super()._check_together()
        self._check_blocks(self.blocks)
        if not 0 <= self.min_depth < self.max_depth < float("inf"):
            given = f"min_depth={self.min_depth!r} and max_depth={self.max_depth!r} were given"
            raise ValueError(f"0 <= min_depth < max_depth is needed, but {given}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPTConfig(DepthConfig):
    """Everything that decides what a `DPT` computes (arXiv 2103.13413; Depth Anything, arXiv 2406.09414; DINOv2).

    Attributes:
        backbone: The Vision Transformer that the head reads: pooling `"none"`, no classes; final norm `"tokens"` where
            what is read is normalised, else `"none"`.
        blocks: Numbers of the blocks whose tokens are read, from 0; the last block is the last of them.
        min_depth: The least depth in metres.
        max_depth: The largest depth in metres; 1 where depth has no unit.
        metric: Whether depth is in metres; otherwise it is inverse depth, up to scale and shift.
        pictures: Whose rules prepare pictures: `"depth_anything"` (its authors'), `"depth_anything_transformers"` or
            `"dinov2"`.
        picture_size: Height and width in pixels that pictures are brought near to; no effect for `"dinov2"`.
        design: `"depth_anything"`: the output has as many pixels as the image; or `"dinov2"`: the class token is read
            as well, the output has 32 pixels for two patches.
        widths: Channels of the four maps, the shallowest first.
        fusion_width: Channels where they are fused; even.
        head_width: Channels before the last convolution.

    In the design of Depth Anything, metres are a sigmoid times `max_depth`, and inverse depth is a ReLU times
    `max_depth`, which is 1.

    Raises:
        TypeError, ValueError: if a field makes no sense.

    Examples:
        >>> keras_vit.DPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), max_depth=1.0, metric=False).metric
        False
    """

    design: Annotated[str, OneOf(DESIGNS)] = "depth_anything"
    widths: Annotated[tuple[int, ...], Integers(count=4)] = (48, 96, 192, 384)
    fusion_width: Positive = 64
    head_width: Positive = 32

    model: ClassVar[str] = "DPT"

    def _check_together(self) -> None:
        super()._check_together()
        Integers(least=0, count=4)("blocks", self.blocks)
        if self.fusion_width % 2:
            raise ValueError(f"fusion_width must be even, but {self.fusion_width} was given.")
        if self.design == "dinov2" and not (self.metric and self.backbone.class_token):
            raise ValueError("design='dinov2' reads a class token of the backbone and predicts metres: metric=True.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearDepthConfig(DepthConfig):
    """Everything that decides what a `LinearDepth` computes (DINOv2, arXiv 2304.07193, section 7.4).

    Attributes:
        bins: Number of depths between `min_depth` and `max_depth` that are weighted. All others are those of
            `DPTConfig`.

    Examples:
        >>> keras_vit.LinearDepthConfig(backbone=backbone, blocks=(3,)).max_depth
        10.0
    """

    bins: Annotated[int, AtLeast(2)] = 256

    model: ClassVar[str] = "LinearDepth"

    def _check_together(self) -> None:
        super()._check_together()
        if not (self.metric and self.backbone.class_token):
            raise ValueError("A linear depth head reads the backbone's class token and predicts metres: metric=True.")
