"""The configs of models of segmentation and depth, each of which has the config of its backbone."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from keras_vit._arguments import check_class_names
from keras_vit._options import (
    Count,
    Finite,
    From0,
    Number,
    OneOf,
    Pair,
    Positive,
    Rate,
    Several,
    Whole,
    check,
    option,
)
from keras_vit.layers.choices import DISTANCES, HEAD_ACTIVATIONS
from keras_vit.models.config import Config, Epsilon, ViTConfig
from keras_vit.preprocessing.images import DETECTOR_PICTURES, DetectorPipeline, WholePatches

Blocks = Annotated[tuple[int, ...], Several(Whole(0))]
# The fields of a backbone, none of which is set: all of its tokens go on.
WITHOUT_TOP: dict[str, Any] = {"pooling": "none", "patch_drop": 0.0}
WITHOUT_TOP |= dict.fromkeys(("class_token_only", "projection_bias", "unit_features", "distillation_head"), False)
WITHOUT_TOP |= dict.fromkeys(("classes", "class_names", "classifier_activation", "projection", "representation_size"))


def _vit_config(name: str, value: Any) -> ViTConfig:
    if isinstance(value, Mapping):
        return ViTConfig(**value)
    if not isinstance(value, ViTConfig):
        raise TypeError(f"{name} must be a ViTConfig, but {type(value).__name__} was given.")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig(Config):
    """The base of the configs of dense models; `backbone` is the Vision Transformer that the head reads.

    Raises TypeError or ValueError for an invalid field, and for a backbone with pooling, a head, tokens that
    are left out or a final norm that the model cannot read.
    """

    backbone: Annotated[ViTConfig, _vit_config]

    # What the fields of the backbone have to be, and which final norms it may have.
    BACKBONE: ClassVar[Mapping[str, Any]] = WITHOUT_TOP
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens",)

    # What is read of the config of any model of images: fields and properties of the backbone.
    image_size = property(operator.attrgetter("backbone.image_size"))
    patch_size = property(operator.attrgetter("backbone.patch_size"))
    grid_size = property(operator.attrgetter("backbone.grid_size"))
    channels = property(operator.attrgetter("backbone.channels"))
    dynamic = property(operator.attrgetter("backbone.dynamic"))
    interpolation = property(operator.attrgetter("backbone.interpolation"))
    include_preprocessing = property(operator.attrgetter("backbone.include_preprocessing"))
    pipeline = property(operator.attrgetter("backbone.pipeline"))

    def _check_together(self) -> None:
        for name, value in self.BACKBONE.items():
            given = getattr(self.backbone, name)
            if given != value:
                raise ValueError(f"backbone must have {name}={value!r}, but has {given!r}. Change it by replace().")
        OneOf(self.FINAL_NORMS)("backbone.final_norm", self.backbone.final_norm)

    def _check_blocks(self, blocks: tuple[int, ...]) -> None:
        last = self.backbone.depth - 1
        if list(blocks) != sorted({*blocks}) or blocks[-1:] != (last,):
            raise ValueError(f"blocks must increase and end with the last block, {last}, but {blocks} was given.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedClasses(DenseConfig):
    """The base of the configs of segmentation models, with the number of classes and, where known, their names."""

    classes: Positive
    class_names: tuple[str, ...] | None = None

    SETTINGS: ClassVar[tuple[str, ...]] = ("class_names",)

    def _check_together(self) -> None:
        super()._check_together()
        object.__setattr__(self, "class_names", check_class_names(self.class_names, self.classes, distinct=False)[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EoMTConfig(NamedClasses):
    """The configuration of an `EoMT` ("Your ViT is Secretly an Image Segmentation Model", 2503.19108).

    Attributes:
        backbone: The Vision Transformer, for images of one size: pooling `"none"`, no classes.
        classes: K, the number of classes, without "no object".
        class_names: Names of the classes, in order; None if they are unknown.
        queries: Q, the number of queries; each predicts a mask and its class.
        query_blocks: Number of the last blocks that process the queries.
        upscale_blocks: How often the map of patches is doubled before masks are predicted.
        activation: Activation of mask head and upscaling: `"exact"`, `"tanh"`, `"quick"` (GELUs), `"silu"`, `"relu"`.
        pictures: Pre- and postprocessing: as `"eomt_authors"` or as `"eomt_transformers"`.
        task: `"semantic"`, `"panoptic"` or `"instance"`, if the file says it; None: the user chooses.

    Examples:
        >>> eomt_config.replace(task="panoptic").task
        'panoptic'
    """

    queries: Positive
    query_blocks: Positive
    upscale_blocks: Count
    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"
    pictures: Annotated[str, OneOf(("eomt_authors", "eomt_transformers"))] = "eomt_authors"
    task: Annotated[str | None, OneOf((None, "semantic", "panoptic", "instance"))] = None

    model: ClassVar[str] = "EoMT"
    SETTINGS: ClassVar[tuple[str, ...]] = ("class_names", "pictures", "task")
    BACKBONE: ClassVar[Mapping[str, Any]] = {**WITHOUT_TOP, "dynamic": False}

    def _check_together(self) -> None:
        super()._check_together()
        if self.query_blocks > self.backbone.depth:
            raise ValueError(
                f"query_blocks must be at most {self.backbone.depth}, the blocks of the backbone, but "
                f"{self.query_blocks} was given."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearSegmenterConfig(NamedClasses):
    """The configuration of a `LinearSegmenter` (DINOv2, arXiv 2304.07193, section 7.4; DINOv3).

    Attributes:
        backbone, classes, class_names: As in `EoMTConfig`; images may have any size.
        blocks: Numbers of the blocks whose patch tokens are read, from 0, ending with the last block. The final norm is
            applied to each of them.
        dropout: Dropout rate of whole channels while the head trains (DINOv3: 0.1).
        pictures: Pre- and postprocessing: `"dinov2"` (OpenCV, no antialiasing), `"dinov3"` (Pillow), `"tips_slide"`
            (Pillow; probabilities of overlapping crops are averaged) or `"tips_whole"` (without crops).
        short_side: Pixels of the shorter side of a picture before it is cut into crops.
        crop_size: Height and width of the crops in pixels; crops are padded to whole patches.
        stride: Pixels from one crop to the next.
        zero_shot: Whether classes are text embeddings, and logits their cosines with patch features from a last block
            in which each token attends to itself only (MaskCLIP, arXiv 2112.01071; TIPS).

    Examples:
        >>> keras_vit.models.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(3,), stride=256).stride
        (256, 256)
    """

    blocks: Blocks
    dropout: Rate = 0.0
    pictures: Annotated[str, OneOf(("dinov2", "dinov3", "tips_slide", "tips_whole"))] = "dinov2"
    short_side: Positive = 512
    crop_size: Pair = (512, 512)
    stride: Pair = (341, 341)
    zero_shot: bool = False

    model: ClassVar[str] = "LinearSegmenter"
    SETTINGS: ClassVar[tuple[str, ...]] = ("class_names", "dropout", "pictures", "short_side", "crop_size", "stride")

    def _check_together(self) -> None:
        super()._check_together()
        self._check_blocks(self.blocks)
        if self.zero_shot:
            self._need("zero_shot", blocks=self.blocks[-1:], dropout=0)
            if self.backbone.tokens_mlp_width is not None:
                raise ValueError("zero_shot=True needs a backbone with attention, but an MLP-Mixer was given.")
        if any(step > side for step, side in zip(self.stride, self.crop_size, strict=True)):
            raise ValueError(
                f"stride must be at most crop_size, but stride={self.stride} and crop_size={self.crop_size} were given."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorConfig(NamedClasses):
    """The configuration of a `Detector` (OWL-ViT, arXiv 2205.06230; OWLv2, arXiv 2306.09683).

    Attributes:
        backbone, classes, class_names: As in `EoMTConfig`.
        embedding: E, the length of the embeddings of patches and classes.
        objectness: Whether there is a head for the probability that a patch shows an object (OWLv2).
        activation: Activation of the heads of boxes and objectness: `"exact"` (transformers), `"tanh"` (Scenic) or as
            in `EoMTConfig`.
        head_epsilon: Epsilon of the normalisation before the heads: 1e-5 (transformers) or 1e-6 (Scenic).
        pictures: How pictures are resized: `"owlvit"` (squashed, as transformers' OWL-ViT), `"owlv2"` (padded with
            black, as transformers' OWLv2) or `"scenic"` (padded with grey, as Scenic's notebook).

    Examples:
        >>> keras_vit.models.DetectorConfig(backbone=eomt_config.backbone, classes=3, embedding=8).objectness
        False
    """

    embedding: Positive
    objectness: bool = False
    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"
    head_epsilon: Epsilon = 1e-5
    pictures: Annotated[str, OneOf(DETECTOR_PICTURES)] = "owlv2"

    model: ClassVar[str] = "Detector"
    SETTINGS: ClassVar[tuple[str, ...]] = ("class_names", "pictures")
    BACKBONE: ClassVar[Mapping[str, Any]] = {**WITHOUT_TOP, "dynamic": False}

    @functools.cached_property
    def pipeline(self) -> DetectorPipeline:
        """The preprocessing of the model, which resizes as `pictures` says."""
        colours = self.backbone.pipeline
        return DetectorPipeline(self.image_size, colours.mean, colours.std, pictures=self.pictures)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnomalyConfig(DenseConfig):
    """The configuration of an `AnomalyDetector`; other fields are as in `keras_vit.anomaly.fit`.

    Attributes:
        backbone: The Vision Transformer whose patches are compared.
        bank_size: M, the number of patches of good pictures.
        picture_size: Height and width that pictures are resized to, before what fills no patch is cut off.
        good_scores: The score of each good picture against all other ones; none if there is one picture.
        threshold: A picture is anomalous if its score is above it; None if there is none.
        false_alarms: The share of false alarms that the threshold stands for.

    Examples:
        >>> inspector.config.bank_size  # 36 patches of each of four pictures
        144
    """

    bank_size: Positive
    picture_size: Pair
    neighbours: Positive = 1
    metric: Annotated[str, OneOf(DISTANCES)] = "cosine"
    masking: bool = False
    sigma: From0 = 4.0
    good_scores: Annotated[tuple[float, ...], Several(Number())] = ()
    threshold: Finite | None = None
    false_alarms: Rate | None = None

    model: ClassVar[str] = "AnomalyDetector"
    SETTINGS: ClassVar[tuple[str, ...]] = ("sigma", "good_scores", "threshold", "false_alarms")
    BACKBONE: ClassVar[Mapping[str, Any]] = {**WITHOUT_TOP, "dynamic": False}
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens", "none")

    def _check_together(self) -> None:
        super()._check_together()
        patch = self.backbone.image_size_of((1, 1))
        if tuple(n // p * p for n, p in zip(self.picture_size, patch, strict=True)) != self.image_size:
            size = f"image_size {self.image_size}, whole patches, or less than a patch more"
            raise ValueError(f"picture_size must be {size}, not {self.picture_size}. Call keras_vit.anomaly.fit again.")
        if self.neighbours > self.bank_size:
            raise ValueError(f"neighbours must be at most bank_size, {self.bank_size}, not {self.neighbours}.")

    @functools.cached_property
    def pipeline(self) -> WholePatches:
        """The preprocessing of the model."""
        rest = tuple(n - kept for n, kept in zip(self.picture_size, self.image_size, strict=True))
        colours = self.backbone.pipeline
        return WholePatches(self.image_size, colours.mean, colours.std, filter="bicubic", trim=rest)


# Depth

DPT_TASKS = ("depth", "normals", "segmentation")  # of a `MultiTaskDPT`
# How pictures are brought to a model, and depth back to the picture's size: by name in `keras_vit.depth`.
_PICTURES = ("depth_anything", "depth_anything_transformers", "depth_anything_3", "dinov2", "tips", "tips_transformers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DepthConfig(DenseConfig):
    """The base of the configs of depth models; `DPTConfig` says what each field is."""

    blocks: Blocks
    min_depth: Finite = 0.001
    max_depth: Finite = 10.0
    metric: bool = True
    pictures: Annotated[str, OneOf(_PICTURES)] = "dinov2"
    picture_size: Pair = (518, 518)

    SETTINGS: ClassVar[tuple[str, ...]] = ("max_depth", "pictures", "picture_size")
    FINAL_NORMS: ClassVar[tuple[str, ...]] = ("tokens", "none")

    reads_class_token: ClassVar[Any] = True  # DINOv2's heads do

    def _check_together(self) -> None:
        super()._check_together()
        self._check_blocks(self.blocks)
        if self.reads_class_token and not (self.metric and self.backbone.class_token):
            raise ValueError(f"A {self.model} of DINOv2 needs metric=True and a backbone with class_token=True.")
        if not 0 <= self.min_depth < self.max_depth:
            raise ValueError(
                f"min_depth must be at least 0 and below max_depth, but min_depth={self.min_depth!r} and "
                f"max_depth={self.max_depth!r} were given."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPTConfig(DepthConfig):
    """The configuration of a `DPT` (arXiv 2103.13413; Depth Anything, arXiv 2406.09414; DINOv2).

    Attributes:
        backbone: The Vision Transformer that the head reads: pooling `"none"`, no classes; final norm `"tokens"` if the
            tokens that are read are normalised, otherwise `"none"`.
        blocks: Numbers of the blocks whose tokens are read, from 0, ending with the last block.
        min_depth: The least depth in metres.
        max_depth: The largest depth in metres; 1 if depth has no unit.
        metric: Whether depth is in metres; otherwise it is inverse depth, up to scale and shift. Depth Anything 3:
            whether depth becomes metres with the focal length; otherwise it is depth up to scale.
        pictures: Preprocessing: as `"depth_anything"` (its authors), `"depth_anything_transformers"`,
            `"depth_anything_3"`, `"dinov2"`, `"tips"` (its authors) or `"tips_transformers"`.
        picture_size: Approximate height and width in pixels that pictures are resized to, for `"depth_anything_3"` of
            the longer side; not used by `"dinov2"`.
        design: `"depth_anything"`: the output has as many pixels as the image. `"depth_anything_3"`: the same with a
            map of the sky. `"dinov2"`: the class token is read as well, and the output has 32 pixels for two patches.
        widths: Channels of the four maps, the shallowest first.
        fusion_width: Channels of the fused maps; even.
        head_width: Channels before the last convolution.

    With `"depth_anything"`, metres are a sigmoid times `max_depth`, and inverse depth is a ReLU. With
    `"depth_anything_3"` depth is an exponential, without `min_depth` and `max_depth`.

    Examples:
        >>> keras_vit.models.DPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), max_depth=1.0, metric=False).metric
        False
    """

    design: Annotated[str, OneOf(("depth_anything", "depth_anything_3", "dinov2"))] = "depth_anything"
    min_depth: Finite = option(0.001, when={"design": ("depth_anything", "dinov2")})
    max_depth: Finite = option(10.0, when={"design": ("depth_anything", "dinov2")})
    widths: Annotated[tuple[int, ...], Several(Whole(1), 4)] = (48, 96, 192, 384)
    fusion_width: Positive = 64
    head_width: Positive = 32

    model: ClassVar[str] = "DPT"
    reads_class_token = property(lambda self: self.design == "dinov2")
    needs_focal = property(lambda self: self.design == "depth_anything_3" and self.metric)

    def _check_together(self) -> None:
        super()._check_together()
        Several(Whole(0), 4)("blocks", self.blocks)
        if self.fusion_width % 2:
            raise ValueError(f"fusion_width must be even, but {self.fusion_width} was given.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskDPTConfig(DepthConfig):
    """The configuration of a `MultiTaskDPT` (TIPS 2).

    Attributes:
        tasks: What the heads predict, each once: `"depth"`, `"normals"`, `"segmentation"`.
        classes: Number of classes of `"segmentation"`; None without that task.
        class_names: Names of the classes, in order; None if they are unknown.
        bins: Number of depths between `min_depth` and `max_depth` that are weighted.
        depth_relu: Whether a ReLU precedes the scores of depths (transformers; in the authors' code there is none).
            Other fields are as in `DPTConfig`.

    Examples:
        >>> keras_vit.models.MultiTaskDPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), tasks=("depth",)).bins
        256
    """

    tasks: Annotated[tuple[str, ...], Several(OneOf(DPT_TASKS))]
    classes: Positive | None = None
    class_names: tuple[str, ...] | None = None
    min_depth: Finite = option(0.001, when={"task": ("depth",)})
    max_depth: Finite = option(10.0, when={"task": ("depth",)})
    bins: Annotated[int, Whole(2)] = option(256, when={"task": ("depth",)})
    depth_relu: bool = option(True, when={"task": ("depth",)})
    pictures: Annotated[str, OneOf(_PICTURES)] = "tips"
    picture_size: Pair = (448, 448)
    widths: Annotated[tuple[int, ...], Several(Whole(1), 4)] = (48, 96, 192, 384)
    fusion_width: Positive = 64

    model: ClassVar[str] = "MultiTaskDPT"
    SETTINGS: ClassVar[tuple[str, ...]] = (*DepthConfig.SETTINGS, "class_names", "depth_relu")

    def _check_together(self) -> None:
        super()._check_together()
        Several(Whole(0), 4)("blocks", self.blocks)
        if not self.tasks or len({*self.tasks}) < len(self.tasks):
            raise ValueError(f"tasks must be one or several of {DPT_TASKS}, each once, but {self.tasks} was given.")
        if (self.classes is None) == ("segmentation" in self.tasks):
            raise ValueError(
                f"classes must be given for the task 'segmentation' alone, not {self.classes} for {self.tasks}."
            )
        check(self, {"task": "depth" if "depth" in self.tasks else " and ".join(self.tasks)})
        object.__setattr__(self, "class_names", check_class_names(self.class_names, self.classes, distinct=False)[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearDepthConfig(DepthConfig):
    """The configuration of a `LinearDepth` (DINOv2, arXiv 2304.07193, section 7.4).

    Attributes:
        bins: Number of depths between `min_depth` and `max_depth` that are weighted. Other fields are as in
            `DPTConfig`.

    Examples:
        >>> keras_vit.models.LinearDepthConfig(backbone=backbone, blocks=(3,)).max_depth
        10.0
    """

    bins: Annotated[int, Whole(2)] = 256

    model: ClassVar[str] = "LinearDepth"
