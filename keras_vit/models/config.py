"""The one description of a model: `ViTConfig`, and `BiTConfig` for the paper's ResNet."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Iterable
from typing import Any, Self

from keras_vit._arguments import check_choice, pair
from keras_vit._messages import Code, Message
from keras_vit.interpolation import METHODS
from keras_vit.layers import choices
from keras_vit.models.fields import Fields, check_integer, check_integers, check_real, checked_class_names, require
from keras_vit.preprocessing import Pipeline

# The fields of a ViTConfig that take one of a few values.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "stem_epsilons": tuple(choices.STEM_EPSILONS),
    "position_embedding": choices.POSITION_EMBEDDINGS,
    "rotary_embedding": (None, *choices.ROTARY_EMBEDDINGS),
    "interpolation": tuple(METHODS),
    "attention_bias": choices.ATTENTION_BIASES,
    "mlp": choices.MLPS,
    "gelu": choices.GELUS,
    "final_norm": choices.FINAL_NORMS,
    "pooling": choices.POOLINGS,
}
# What else an MLP-Mixer has: its blocks have a perceptron in place of attention, for as many tokens as its weights.
_MIXER = {
    **{"heads": 1, "class_token": False, "register_tokens": 0, "position_embedding": "none", "rotary_embedding": None},
    **{"dynamic": False, "stem_stages": None, "mlp": "plain", "layer_scale": None, "attention_bias": "all"},
    **{"attention_norm": False, "attention_dropout": 0, "patch_drop": 0},
}
# What else a model with a second head has: it reads the distillation token just as the first reads the class token.
_WITH_TWO_HEADS: dict[str, Any] = {"pooling": "token", "final_norm": "tokens", "unit_features": False}
_WITH_TWO_HEADS |= dict.fromkeys(("projection", "representation_size"))
# The patch embedding can normalise pixels where it reads them itself.
_WITH_FOLDED_PIXELS = {"include_preprocessing": True, "stem_stages": None}


class ModelConfig(Fields):
    """What the configs of all models of images can do; each is a frozen dataclass."""

    image_size: tuple[int, int]
    channels: int
    dynamic: bool
    width: int
    classes: int | None
    class_names: tuple[str, ...] | None
    classifier_activation: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        for name in ("width", "channels"):
            check_integer(name, getattr(self, name))
        if self.classes is not None:
            check_integer("classes", self.classes, "For a model without a head use include_top=False.")
        object.__setattr__(self, "class_names", checked_class_names(self.class_names, self.classes or 0))
        if not isinstance(self.classifier_activation, (str, type(None))):
            words = f"the name of a Keras activation or None, but {self.classifier_activation!r} was given"
            raise TypeError(f"classifier_activation must be {words}.")

    def replace(self, **changes: Any) -> Self:
        """A config like this one with the given fields changed.

        Another number of `classes` drops the `class_names`, another `image_size` the `trim`, unless new ones are given.
        """
        if "classes" in changes and changes["classes"] != self.classes:
            changes = {"class_names": None, **changes}
        size = pair("image_size", changes.get("image_size", self.image_size))
        if any(getattr(self, "trim", ())) and size != self.image_size:
            changes = {"trim": (0, 0), **changes}
        return super().replace(**changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """Everything that decides what a `VisionTransformer` computes; the model is a function of it.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares.
        patch_size: Height and width of a patch in pixels; an integer for squares.
        width: D, the length of a token.
        depth: L, the number of Transformer blocks.
        heads: Attention heads per block; divides `width`.
        mlp_width: Length of the MLP's hidden layer; of gate and value each in a SwiGLU.
        channels: Channels of the images.
        dynamic: Whether images of any size are taken, the position embeddings being resized in the graph.

        stem_stages: Units of the stages of a hybrid's ResNet (section 3.1); () for its first convolution only; or None.
        stem_width: Channels of the ResNet's first convolution.
        stem_epsilons: What it adds where it divides: `"official"`, or `"timm"`, as timm computes the same weights.
        stem_folded: Whether its kernels have been standardised for good (see `VisionTransformer.folded`).

        patch_bias: Whether the projection of the patches has a bias; CLIP's has none.
        class_token: Whether a class token stands before the patches.
        distillation_token: Whether a second one follows it, which learned from a teacher (DeiT).
        register_tokens: Number of register tokens between these and the patches.
        position_embedding: `"learned"` for every token (vit_jax); `"learned_patches"` (big_vision);
            `"learned_without_registers"` (DINOv2); `"sincos2d"`: computed (see `layers.sincos2d`); `"none"`.
        rotary_embedding: `"dinov3"` or `"eva02"` turns queries and keys (see `layers.RotaryEmbedding`); None for none.
        rotary_grid: Rows and columns of the grid in whose cells `"eva02"` counts places at any image size.
        interpolation: How position embeddings change size (see `keras_vit.interpolation`).
        pre_norm: Whether a layer normalisation comes before the blocks (CLIP).

        tokens_mlp_width: Length of the hidden layer of a perceptron across tokens that each block has in place of
            attention (MLP-Mixer), for images of one size, with `heads=1`; None for attention.
        attention_bias: Which of queries, keys and values have a bias: `"all"`, `"no_key"`, `"none"`.
        attention_norm: Whether the joined heads are normalised before the output projection (EVA-02-CLIP).
        mlp: `"plain"`, `"swiglu"` (see `layers.SwiGLU`); `"plain_norm"` (BEiT-3), `"swiglu_norm"`: normalised inside.
        gelu: `"tanh"`, as the official checkpoints were trained; `"exact"`, as timm and Hugging Face compute it;
            `"quick"`, as OpenAI's CLIP. A SwiGLU has none.
        layer_scale: First value of the factors at the end of both branches (`layers.LayerScale`); None for none.
        layer_norm_epsilon: Added to the variance by every layer normalisation.
        dropout: Rate after the position embeddings, after attention and in the MLPs.
        attention_dropout: Rate on the attention weights.
        patch_drop: Share of the patches that each image goes without while training (`layers.PatchDropout`).
        drop_path: Stochastic depth of the last block; it grows linearly from 0 in the first (AugReg, section 3.3).
        remat: Whether blocks are recomputed in the backward pass to save memory.
        class_token_only: Whether the last block computes only tokens that are read (see `optimize_for_inference`).

        final_norm: The last layer normalisation: `"tokens"`: of all; `"pooled"`: after pooling (`fc_norm`); `"none"`.
        pooling: What becomes of the encoded tokens: `"token"` (the class token), `"token_dist"` (mean of class and
            distillation token, timm's DeiT without a head), `"avg"` (mean of the patches), `"token_avg"` (the one,
            then the other: 2 D numbers), `"map"` (attention pooling) or `"none"` (all of them go on).
        map_prefix: Whether attention pooling reads the tokens before the patches as well.
        projection: Length of the linear layer after pooling (CLIP's image embedding); None for none.
        projection_bias: Whether it has a bias.
        representation_size: Length of the tanh layer before the head (`pre_logits`); None for none.
        unit_features: Whether what the head reads is divided by its length (zero-shot classifiers).
        classes: Outputs of the head; None for no head.
        distillation_head: Whether the distillation token has a head of its own; the logits are the mean of both.
        class_names: What the outputs of the head stand for, in order; None where nobody has said. Files carry them.
        classifier_activation: Name of a Keras activation on top of the head; None for logits.

        include_preprocessing: Whether the model takes pixels of 0..255 and normalises them itself.
        preprocessing_folded: Whether it does so in the weights of the patch embedding.
        pixel_mean: What is subtracted from pixels of 0..1, for each channel; a number for all.
        pixel_std: What they are divided by then.
        resize: How pictures come to size, as in `keras_vit.preprocessing.Pipeline`.
        crop_ratio: Which share of each side remains, as there.
        crop_rounding: Where the crop begins, as there.
        filter: How they are resampled, as there.
        trim: Rows and columns that are left out at last, as there; (0, 0) at another image size.

    Raises:
        TypeError, ValueError: if a field makes no sense; the message says what was expected.

    Examples:
        >>> config = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=2)
        >>> config.grid_size
        (2, 2)
        >>> config.replace(classes=5).classes
        5
    """

    # What goes in, and how large everything is
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    width: int
    depth: int
    heads: int
    mlp_width: int
    channels: int = 3
    dynamic: bool = False
    # The ResNet of the hybrids
    stem_stages: tuple[int, ...] | None = None
    stem_width: int = 64
    stem_epsilons: str = "official"
    stem_folded: bool = False
    # Tokens and their places
    patch_bias: bool = True
    class_token: bool = True
    distillation_token: bool = False
    register_tokens: int = 0
    position_embedding: str = "learned"
    rotary_embedding: str | None = None
    rotary_grid: tuple[int, int] = (16, 16)
    interpolation: str = "official"
    pre_norm: bool = False
    # The blocks
    tokens_mlp_width: int | None = None
    attention_bias: str = "all"
    attention_norm: bool = False
    mlp: str = "plain"
    gelu: str = "tanh"
    layer_scale: float | None = None
    layer_norm_epsilon: float = 1e-6
    dropout: float = 0.0
    attention_dropout: float = 0.0
    patch_drop: float = 0.0
    drop_path: float = 0.0
    remat: bool = False
    class_token_only: bool = False
    # From tokens to the answer
    final_norm: str = "tokens"
    pooling: str = "token"
    map_prefix: bool = True
    projection: int | None = None
    projection_bias: bool = False
    representation_size: int | None = None
    unit_features: bool = False
    classes: int | None = None
    distillation_head: bool = False
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    # From pictures to what goes in
    include_preprocessing: bool = False
    preprocessing_folded: bool = False
    pixel_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    pixel_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resize: str = "squash"
    crop_ratio: float = 1.0
    crop_rounding: str = "even"
    filter: str = "bilinear"
    trim: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("patch_size", "rotary_grid"):
            object.__setattr__(self, name, pair(name, getattr(self, name)))
        if self.stem_stages is not None:
            check_integers("stem_stages", self.stem_stages)
        for name in ("depth", "heads", "mlp_width", "stem_width"):
            check_integer(name, getattr(self, name))
        check_integer("register_tokens", self.register_tokens, least=0)
        for name in ("representation_size", "projection", "tokens_mlp_width"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), "Use None for no such layer.")
        for name, values in CHOICES.items():
            check_choice(name, getattr(self, name), values)
        for name in ("dropout", "attention_dropout", "patch_drop", "drop_path"):
            rate = check_real(name, getattr(self, name))
            require(0 <= rate < 1, f"{name} must be at least 0 and below 1, but {rate!r} was given.")
        epsilon = check_real("layer_norm_epsilon", self.layer_norm_epsilon)
        require(0 < epsilon < 1, f"layer_norm_epsilon must be above 0 and below 1, but {epsilon!r} was given.")
        if self.layer_scale is not None:
            finite = math.isfinite(check_real("layer_scale", self.layer_scale, " or None"))
            require(finite, f"layer_scale must be finite, but {self.layer_scale!r} was given.")
        self._check_parts()
        self._check_grid()
        for name in ("pixel_mean", "pixel_std"):
            object.__setattr__(self, name, _per_channel(name, getattr(self, name), self.channels))
        _ = self.pipeline  # which checks its fields

    def replace(self, **changes: Any) -> Self:
        """As `ModelConfig.replace`; without pooling and head there is no normalisation after pooling, either.

        With other `channels`, `pixel_mean` and `pixel_std` follow: one has the mean of them, more repeat them in turn.
        """
        channels = changes.get("channels", self.channels)
        if channels != self.channels and isinstance(channels, numbers.Integral):
            for name in ("pixel_mean", "pixel_std"):
                changes = {name: _repeated(getattr(self, name), int(channels)), **changes}
        new = super().replace(**changes)
        if "final_norm" in changes or new.final_norm != "pooled" or self._gives_tokens:
            return new
        return dataclasses.replace(new, final_norm="none") if new._gives_tokens else new  # noqa: SLF001

    @property
    def _gives_tokens(self) -> bool:
        """Whether all tokens are given, and nothing is made of them."""
        return self.pooling == "none" and not (self.projection or self.representation_size or self.classes)

    def _check_parts(self) -> None:
        """Raises unless tokens, blocks and what comes after them fit each other."""
        width, heads, size, pooling = self.width, self.heads, self.head_size, f"pooling={self.pooling!r}"
        require(width % heads == 0, f"heads must divide width, but {heads} heads and width {width} were given.")
        fits = self.position_embedding != "sincos2d" or (width % 4 == 0 and width >= 8)
        require(fits, f"position_embedding='sincos2d' needs a width of 8, 12, 16, ..., but got {width}.")
        words = f"rotary_embedding={self.rotary_embedding!r} needs heads of length 4, 8, 12, ..., but"
        fits = self.rotary_embedding is None or size % 4 == 0
        require(fits, f"{words} width {width} and {heads} heads give {size}.")
        fits = self.pooling != "token_avg" or self.final_norm != "pooled"
        require(fits, f"final_norm='pooled' normalises D numbers, but {pooling} gives 2 D.")
        two_heads = self.distillation_head and bool(self.classes)
        for applies, what, needs in (
            (self.pooling in ("token", "token_avg"), pooling, {"class_token": True}),
            (self.pooling == "token_dist", pooling, {"distillation_token": True}),
            (self.distillation_token, "distillation_token=True", {"class_token": True}),
            (self.distillation_head, "distillation_head=True", {"distillation_token": True}),
            (two_heads, "distillation_head=True", _WITH_TWO_HEADS),
            (self.projection is None, "projection=None", {"projection_bias": False}),
            (self.class_token_only, "class_token_only=True", {"pooling": "token"}),
            (self.tokens_mlp_width is not None, f"tokens_mlp_width={self.tokens_mlp_width}", _MIXER),
            (self.preprocessing_folded, "preprocessing_folded=True", _WITH_FOLDED_PIXELS),
        ):
            for name, value in needs.items() if applies else ():
                given = getattr(self, name)
                require(given == value, f"{what} needs {name}={value!r}, but {given!r} was given.")

    def _check_grid(self) -> None:
        lengths = zip(("height", "width"), self.image_size, self.feature_map_size, self.patch_size, strict=True)
        for axis, size, cells, patch in lengths:
            step = patch * self.stem_stride
            below, above = size // step * step, (size // step + 1) * step
            words = f" must be a multiple of the patch size: {axis} {size} is not a multiple of {step}."
            nearest = f" The nearest that fit are {f'{below} or ' if below else ''}{above}."
            require(cells % patch == 0, Message(Code("image_size"), words, nearest))

    @property
    def stem_stride(self) -> int:
        """How many pixels of the image one cell of the map that is cut into patches stands for, in each direction."""
        # The first convolution and the pooling halve the image, and so does every stage but the first.
        return 1 if self.stem_stages is None else 4 * 2 ** max(len(self.stem_stages) - 1, 0)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of what is cut into patches: the image, or the ResNet's last map."""
        return _halved(self.image_size, self.stem_stride)

    @property
    def feature_map_channels(self) -> int:
        """Channels of what is cut into patches."""
        if self.stem_stages is None:
            return self.channels
        return self.stem_width * (4 * 2 ** (len(self.stem_stages) - 1) if self.stem_stages else 1)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.feature_map_size
        return (height // self.patch_size[0], width // self.patch_size[1])

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """How pictures become what the model takes."""
        fields = {name: getattr(self, name) for name in ("resize", "crop_ratio", "crop_rounding", "filter", "trim")}
        return Pipeline(self.image_size, mean=self.pixel_mean, std=self.pixel_std, **fields)

    def image_size_of(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """The image size, in pixels, that gives a grid of patches."""
        return tuple(n * patch * self.stem_stride for n, patch in zip(grid_size, self.patch_size, strict=True))

    @property
    def head_size(self) -> int:
        """d, the length of one head's queries, keys and values."""
        return self.width // self.heads

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return self.class_token + self.distillation_token + self.register_tokens

    @property
    def answering_tokens(self) -> int | None:
        """How many tokens the last block computes; None for all."""
        return 1 + bool(self.distillation_head and self.classes) if self.class_token_only else None

    @property
    def position_rows(self) -> int:
        """Rows of the table of position embeddings; 0 where there is no table."""
        if self.position_embedding in ("sincos2d", "none"):
            return 0
        registers = 0 if self.position_embedding == "learned" else self.register_tokens
        prefix = 0 if self.position_embedding == "learned_patches" else self.prefix_tokens - registers
        return prefix + math.prod(self.grid_size)

    @property
    def pooled_size(self) -> int:
        """Length of what pooling gives, for each image or, without pooling, for each token."""
        return 2 * self.width if self.pooling == "token_avg" else self.width


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ModelConfig):
    """Everything that decides what a `BiT` (Big Transfer, arXiv 1912.11370) computes; the model is a function of it.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares. No weight depends on it.
        stages: Units in each stage; every stage but the first halves the map.
        width: Channels of the first convolution: 64 times the factor in the paper's names (R50x3: 192).
        channels: Channels of the images.
        dynamic: Whether images of any size are taken.
        pooling: What becomes of the last map: `"avg"` (mean over all places) or `"none"` (a head reads every place).
        classes: Outputs of the head; None for no head.
        class_names: As in `ViTConfig`.
        classifier_activation: As in `ViTConfig`.
        include_preprocessing: As in `ViTConfig`.
        pool_padding: What pads the map before max pooling: `"-inf"` (big_vision), `"zeros"` (the older `big_transfer`).
        folded: Whether the kernels have been standardised for good (see `BiT.folded`).

    Raises:
        TypeError, ValueError: if a field makes no sense; the message says what was expected.

    Examples:
        >>> keras_vit.BiTConfig(image_size=32, stages=(3, 4, 6, 3), classes=10).features
        2048
    """

    image_size: tuple[int, int] = (224, 224)
    stages: tuple[int, ...]
    width: int = 64
    channels: int = 3
    dynamic: bool = False
    pooling: str = "avg"
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    include_preprocessing: bool = False
    pool_padding: str = "-inf"
    folded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        several = bool(self.stages) and not isinstance(self.stages, (str, int))
        require(several, f"stages must be the units of each stage, as (3, 4, 6, 3), but {self.stages!r} was given.")
        check_integers("stages", self.stages)
        require(self.width % 32 == 0, f"width must be a multiple of 32, the groups, but {self.width} was given.")
        check_choice("pooling", self.pooling, ("avg", "none"))
        check_choice("pool_padding", self.pool_padding, tuple(choices.POOL_PADDINGS))

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """How pictures become what the model takes."""
        return Pipeline(self.image_size)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of the last map for images of `image_size`."""
        # The root halves twice and every stage but the first once.
        return _halved(self.image_size, 2 ** (len(self.stages) + 1))

    @property
    def features(self) -> int:
        """Channels of the last map, which the head reads."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)


def _halved(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """The size of a map after halvings that round up, which is the same as dividing once and rounding up."""
    return (-(-size[0] // stride), -(-size[1] // stride))


def _repeated(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Values of other channels: the mean of them for one, the same in turn for more."""
    if channels == 1:
        return (math.fsum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))


def _per_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    """A number for each channel, from one for all of them or one for each; equal ones fit any number of channels."""
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(n, numbers.Real) and not isinstance(n, bool) for n in values):
        raise TypeError(f"{name} must be a number or one for each channel, but {value!r} was given.")
    result = tuple(map(float, values[:1] * channels if len(set(values)) == 1 else values))
    words = f"{name} must be a number or {channels}, one for each channel"
    require(len(result) == channels, f"{words}, but {value!r} was given.")
    return result
