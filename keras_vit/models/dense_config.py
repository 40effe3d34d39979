"""What describes models that answer for every place of an image: each config has that of its backbone."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from keras_vit._arguments import check_choice, check_number, pair
from keras_vit.layers.choices import HEAD_ACTIVATIONS
from keras_vit.models.config import ViTConfig
from keras_vit.models.fields import Fields, check_integer, check_integers, checked_class_names

# The fields of a backbone, none of which is set: all of its tokens go on.
WITHOUT_TOP: dict[str, Any] = {"pooling": "none"}
WITHOUT_TOP |= dict.fromkeys(("class_token_only", "projection_bias", "unit_features", "distillation_head"), False)
WITHOUT_TOP |= dict.fromkeys(("classes", "class_names", "classifier_activation", "projection", "representation_size"))


def check_blocks(blocks: tuple[int, ...], backbone: ViTConfig) -> None:
    """Raises TypeError or ValueError unless the numbers of the blocks that a head reads rise and end with the last."""
    check_integers("blocks", blocks, least=0)
    last = backbone.depth - 1
    if list(blocks) != sorted({*blocks}) or blocks[-1:] != (last,):
        wanted = f"increasing numbers that end with {last}, the last block"
        raise ValueError(f"blocks must be {wanted}, but {blocks} was given.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig(Fields):
    """What the configs of dense models have in common.

    Attributes:
        backbone: The Vision Transformer that the head reads: pooling `"none"`, no classes.
    """

    backbone: ViTConfig

    # The class of the model; the module of `checkpoints.layouts` that writes it, if other code reads it; and the
    # fields that can change while the weights stay.
    model: ClassVar[str]
    layout: ClassVar[str | None] = None
    CHANGES: ClassVar[tuple[str, ...]] = ()
    # Which final norms the backbone may have.
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens",)

    image_size = property(operator.attrgetter("backbone.image_size"), doc="Height and width of images in pixels.")
    patch_size = property(operator.attrgetter("backbone.patch_size"), doc="Height and width of a patch in pixels.")
    grid_size = property(operator.attrgetter("backbone.grid_size"), doc="Rows and columns of patches.")
    channels = property(operator.attrgetter("backbone.channels"), doc="Channels of the images.")
    dynamic = property(operator.attrgetter("backbone.dynamic"), doc="Whether images of any size are taken.")
    interpolation = property(operator.attrgetter("backbone.interpolation"), doc="How position embeddings are resized.")
    include_preprocessing = property(
        operator.attrgetter("backbone.include_preprocessing"), doc="Whether the model normalises pixels itself."
    )
    pipeline = property(operator.attrgetter("backbone.pipeline"), doc="How pictures become what the backbone takes.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.backbone, Mapping):  # from a file
            object.__setattr__(self, "backbone", ViTConfig(**self.backbone))
        if not isinstance(self.backbone, ViTConfig):
            raise TypeError(f"backbone must be a ViTConfig, but {type(self.backbone).__name__} was given.")
        for name, value in WITHOUT_TOP.items():
            given = getattr(self.backbone, name)
            if given != value:
                raise ValueError(f"backbone must have {name}={value!r}, but has {given!r}: its tokens go on.")
        check_choice("backbone.final_norm", self.backbone.final_norm, self.FINAL_NORMS)

    def with_image_size(self, image_size: Any) -> Self:
        """The same for images of another size, or of any size (`"dynamic"`)."""
        chosen = {"dynamic": True} if image_size == "dynamic" else {"image_size": image_size, "dynamic": False}
        return self.replace(backbone=self.backbone.replace(**chosen))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedClasses(DenseConfig):
    """What the configs of models that name places have in common.

    Attributes:
        classes: K, the number of classes.
        class_names: What they stand for, in order; None where nobody has said.
    """

    classes: int
    class_names: tuple[str, ...] | None = None

    CHANGES: ClassVar[tuple[str, ...]] = ("class_names",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("classes", self.classes)
        object.__setattr__(self, "class_names", checked_class_names(self.class_names, self.classes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EoMTConfig(NamedClasses):
    """Everything that decides what an `EoMT` computes ("Your ViT is Secretly an Image Segmentation Model", 2503.19108).

    Attributes:
        backbone: The Vision Transformer, for images of one size: pooling `"none"`, no classes.
        classes: K, the number of classes, without "no object".
        class_names: What they stand for, in order; None where nobody has said.
        queries: Q, the number of queries, each of which gives a mask and the class of what it shows.
        query_blocks: How many of the last blocks see the queries.
        upscale_blocks: How often the map of patches is doubled before the masks are read from it.
        activation: Of mask head and upscaling: `"exact"`, `"tanh"`, `"quick"` (GELUs), `"silu"` or `"relu"`.
        pictures: Whose rules prepare pictures and read answers: `"eomt_authors"` or `"eomt_transformers"`.
        task: `"semantic"`, `"panoptic"` or `"instance"`, where the file says it; None where the user chooses.

    Raises:
        TypeError, ValueError: if a field makes no sense.

    Examples:
        >>> eomt_config.replace(task="panoptic").task
        'panoptic'
    """

    queries: int
    query_blocks: int
    upscale_blocks: int
    activation: str = "exact"
    pictures: str = "eomt_authors"
    task: str | None = None

    model: ClassVar[str] = "EoMT"
    layout: ClassVar[str | None] = "eomt"
    CHANGES: ClassVar[tuple[str, ...]] = ("class_names", "pictures", "task")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("queries", self.queries)
        check_integer("query_blocks", self.query_blocks)
        check_integer("upscale_blocks", self.upscale_blocks, least=0)
        check_choice("activation", self.activation, HEAD_ACTIVATIONS)
        check_choice("pictures", self.pictures, ("eomt_authors", "eomt_transformers"))
        check_choice("task", self.task, (None, "semantic", "panoptic", "instance"))
        if self.query_blocks > self.backbone.depth:
            raise ValueError(
                f"query_blocks must be at most the backbone's {self.backbone.depth} blocks, but {self.query_blocks} "
                "was given."
            )
        if self.backbone.dynamic:
            raise ValueError("backbone must have dynamic=False: an EoMT was trained for images of one size.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearSegmenterConfig(NamedClasses):
    """Everything that decides what a `LinearSegmenter` computes (DINOv2, arXiv 2304.07193, section 7.4; DINOv3).

    Attributes:
        backbone: The Vision Transformer that the head reads: pooling `"none"`, no classes.
        classes: K, the number of classes.
        class_names: What they stand for, in order; None where nobody has said.
        blocks: Numbers of the blocks whose patch tokens are read, from 0; the last block is the last of them. All of
            them take the final norm.
        dropout: Rate at which whole channels are left out while the head trains: 0.1 in DINOv3.
        pictures: Whose rules bring a picture to `short_side`: `"dinov2"` (OpenCV, no antialiasing) or `"dinov3"`
            (Pillow).
        short_side: Pixels of the shorter side of a picture before it is cut into crops.
        crop_size: Height and width of the crops in pixels; they are padded to whole patches.
        stride: Pixels from one crop to the next.

    Raises:
        TypeError, ValueError: if a field makes no sense.

    Examples:
        >>> keras_vit.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(3,), stride=256).stride
        (256, 256)
    """

    blocks: tuple[int, ...]
    dropout: float = 0.0
    pictures: str = "dinov2"
    short_side: int = 512
    crop_size: tuple[int, int] = (512, 512)
    stride: tuple[int, int] = (341, 341)

    model: ClassVar[str] = "LinearSegmenter"
    CHANGES: ClassVar[tuple[str, ...]] = (
        *NamedClasses.CHANGES,
        *("dropout", "pictures", "short_side", "crop_size", "stride"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dropout", self.dropout)
        check_choice("pictures", self.pictures, ("dinov2", "dinov3"))
        check_integer("short_side", self.short_side)
        check_blocks(self.blocks, self.backbone)
        for name in ("crop_size", "stride"):
            object.__setattr__(self, name, pair(name, getattr(self, name)))
        if any(step > side for step, side in zip(self.stride, self.crop_size, strict=True)):
            given = f"stride={self.stride} and crop_size={self.crop_size} were given"
            raise ValueError(f"stride must be at most crop_size, or places would be left out, but {given}.")
