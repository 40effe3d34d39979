"""What decides what a depth model computes, and how its publisher prepares pictures; without Keras."""

import dataclasses
from typing import ClassVar

from keras_vit._arguments import check_choice, pair
from keras_vit.models.dense_config import DenseConfig, check_blocks
from keras_vit.models.fields import check_integer, check_integers, check_real

# How pictures are brought to a model, and depth back to the picture's size: by name in `keras_vit.depth.estimating`.
DEPTH_PICTURES = ("depth_anything", "depth_anything_transformers", "dinov2")
DESIGNS = ("depth_anything", "dinov2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DepthConfig(DenseConfig):
    """What the configs of depth models have in common; `DPTConfig` says what each field is."""

    blocks: tuple[int, ...]
    min_depth: float = 0.001
    max_depth: float = 10.0
    metric: bool = True
    pictures: str = "dinov2"
    picture_size: tuple[int, int] = (518, 518)

    CHANGES: ClassVar[tuple[str, ...]] = ("max_depth", "pictures", "picture_size")
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens", "none")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_blocks(self.blocks, self.backbone)
        object.__setattr__(self, "picture_size", pair("picture_size", self.picture_size))
        check_choice("pictures", self.pictures, DEPTH_PICTURES)
        for name in ("min_depth", "max_depth"):
            check_real(name, getattr(self, name))
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

    design: str = "depth_anything"
    widths: tuple[int, ...] = (48, 96, 192, 384)
    fusion_width: int = 64
    head_width: int = 32

    model: ClassVar[str] = "DPT"
    layout: ClassVar[str | None] = "depth"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("design", self.design, DESIGNS)
        check_integers("widths", self.widths)
        for name in ("widths", "blocks"):
            if len(getattr(self, name)) != 4:
                raise ValueError(f"{name} must be four numbers, but {getattr(self, name)} was given.")
        for name in ("fusion_width", "head_width"):
            check_integer(name, getattr(self, name))
        if self.fusion_width % 2:
            raise ValueError(f"fusion_width must be even, but {self.fusion_width} was given.")
        if self.design == "dinov2" and not (self.metric and self.backbone.class_token):
            raise ValueError("design='dinov2' reads a class token of the backbone and gives metres: metric=True.")


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

    bins: int = 256

    model: ClassVar[str] = "LinearDepth"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("bins", self.bins, least=2)
        if not (self.metric and self.backbone.class_token):
            raise ValueError("A linear depth head reads a class token of the backbone and gives metres: metric=True.")
