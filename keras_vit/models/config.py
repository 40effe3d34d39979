"""The descriptions of models, without Keras: fields and their checks, then the configs of ViT, BiT and text towers."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from keras_vit._arguments import check_class_names, pair
from keras_vit._options import Count, Finite, Number, OneOf, Options, Pair, Positive, Rate, Several, Whole
from keras_vit.interpolation import METHODS
from keras_vit.layers import choices
from keras_vit.preprocessing import Pipeline


class Config(Options):
    """The base of the descriptions of models. It has no fields, so that those of each kind keep their order."""

    # The class of the model that a config describes, by its name in `keras_vit.models`; and the fields on which no
    # weight depends: they can change even in a quantized model.
    model: ClassVar[str]
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    # What configs without such a field answer. Fields without a default must not stand here: they would get this one.
    class_names: ClassVar[Any] = None
    class_token_only: ClassVar[Any] = False
    distillation_head: ClassVar[Any] = False
    representation_size: ClassVar[Any] = None
    tokens_mlp_width: ClassVar[Any] = None

    def _need(self, field: str, **needed: Any) -> None:
        """Raises ValueError unless the fields in `needed` have these values, which the value of `field` needs."""
        for name, value in needed.items():
            given = getattr(self, name)
            if given != value:
                raise ValueError(f"{field}={getattr(self, field)!r} needs {name}={value!r}, but {given!r} was given.")


MOST_CHANNELS = 2**16  # of images; a file may name any number, and each has a mean and a deviation
Channels = Annotated[int, Number("a whole number from 1 to 65,536", lambda n: 1 <= n <= MOST_CHANNELS, whole=True)]
Length = Annotated[int, Whole(1, ", or None for no such layer")]
Classes = Annotated[int, Whole(1, "; include_top=False makes a model without a head")]
Epsilon = Annotated[float, Number("a number above 0 and below 1", lambda value: 0 < value < 1)]


class ModelConfig(Config):
    """What the configs of models that classify images can do; each is a frozen dataclass."""

    image_size: tuple[int, int]
    channels: int
    dynamic: bool
    width: int
    classes: int | None
    class_names: tuple[str, ...] | None
    classifier_activation: str | None

    SETTINGS: ClassVar[tuple[str, ...]] = ("class_names",)

    def _check_together(self) -> None:
        names, count = check_class_names(self.class_names, self.classes, distinct=False)
        if count != self.classes:
            raise ValueError(f"class_names must be None without classes, but {count} names were given. Pass classes=.")
        object.__setattr__(self, "class_names", names)

    def replace(self, **changes: Any) -> Self:
        """Returns a config like this one with the given fields changed; TypeError or ValueError as for a new one.

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
    """The configuration of a `VisionTransformer`: everything that determines what the model computes.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares.
        patch_size: Height and width of a patch in pixels; an integer for squares.
        width: D, the length of a token.
        depth: L, the number of Transformer blocks.
        heads: Attention heads per block; divides `width`.
        mlp_width: Length of the MLP's hidden layer; in a SwiGLU, of the gate and the value each.
        channels: Channels of the images.
        dynamic: Whether the model takes images of any size, with position embeddings resized at run time.

        stem_stages: Units of the stages of a hybrid's ResNet (section 3.1); () for its first convolution only; None for
            no ResNet.
        stem_width: Channels of the ResNet's first convolution.
        stem_epsilons: Epsilons of the ResNet's normalisations: `"official"`, or `"timm"`.
        stem_folded: Whether the ResNet's kernels were standardised permanently (see `VisionTransformer.folded`).

        patch_bias: Whether the projection of the patches has a bias (CLIP: no).
        class_token: Whether a class token stands before the patches.
        distillation_token: Whether a distillation token follows the class token (DeiT).
        register_tokens: Number of register tokens before the patches, after class and distillation token.
        position_embedding: `"learned"` for every token (vit_jax); `"learned_patches"` (big_vision);
            `"learned_without_registers"` (DINOv2); `"sincos2d"`: computed (see `layers.sincos2d`); `"none"`.
        rotary_embedding: Kind of rotary embedding: `"dinov3"`, `"eva02"` or `"pe"` (see `layers.RotaryEmbedding`); or
            None.
        rotary_grid: Rows and columns of the reference grid of `"eva02"` and `"pe"`; None: positions count patches.
        interpolation: How position embeddings change size (see `keras_vit.interpolation`).
        pre_norm: Whether a layer normalisation comes before the blocks (CLIP).

        tokens_mlp_width: Hidden width of the MLP across tokens that replaces attention (MLP-Mixer), for a fixed image
            size and `heads=1`; None for attention.
        attention_bias: Which of queries, keys and values have a bias: `"all"`, `"no_key"`, `"none"`.
        attention_norm: Whether the concatenated heads are normalised before the output projection (EVA-02-CLIP).
        mlp: `"plain"`, `"swiglu"` (see `layers.SwiGLU`); `"plain_norm"` (BEiT-3), `"swiglu_norm"`: normalised inside.
        gelu: `"tanh"`, as the official checkpoints were trained; `"exact"`, as in timm and Hugging Face; `"quick"`, as
            in OpenAI's CLIP. Not used by a SwiGLU.
        layer_scale: Initial value of LayerScale at the end of both branches (`layers.LayerScale`); None: no LayerScale.
        layer_norm_epsilon: Added to the variance by every layer normalisation.
        final_norm_epsilon: The same of the last layer normalisation (Depth Anything 3); None: `layer_norm_epsilon`.
        dropout: Dropout rate after the position embeddings, after attention and in the MLPs.
        attention_dropout: Dropout rate of the attention weights.
        patch_drop: Share of each image's patches that is dropped in training (`layers.PatchDropout`).
        drop_path: Stochastic depth rate of the last block; it grows linearly from 0 in the first (AugReg, section 3.3).
        remat: Whether blocks are recomputed in the backward pass to save memory.
        class_token_only: Whether the last block computes only the tokens that the head reads (see
            `optimize_for_inference`).

        final_norm: The last layer normalisation: `"tokens"` (of all tokens), `"pooled"` (after pooling, timm's
            `fc_norm`) or `"none"`.
        pooling: How tokens are pooled: `"token"` (the class token), `"token_dist"` (mean of class and distillation
            token, timm's DeiT without a head), `"avg"` (mean of the patches), `"token_avg"` (class token and mean of
            the patches, concatenated), `"map"` (attention pooling) or `"none"` (all tokens).
        map_prefix: Whether attention pooling also reads the tokens before the patches.
        pooling_heads: Heads of the attention pooling; divides `width`. None: as many as `heads`.
        pooling_mlp_width: Length of the hidden layer of the attention pooling's MLP; None: `mlp_width`.
        projection: Length of the linear layer after pooling (CLIP's image embedding); None: no projection.
        projection_bias: Whether the projection has a bias.
        representation_size: Length of the tanh layer before the head (`pre_logits`); None: no such layer.
        unit_features: Whether the head's input is normalised to length 1 (zero-shot classifiers).
        classes: Outputs of the head; None for no head.
        distillation_head: Whether the distillation token has a second head; the logits are the mean of both.
        class_names: Names of the head's outputs, in order; None if they are unknown. Files store them.
        classifier_activation: Name of a Keras activation on top of the head; None for logits.

        include_preprocessing: Whether the model takes pixels of 0..255 and normalises them itself.
        preprocessing_folded: Whether this normalisation is merged into the patch embedding.
        pixel_mean: Mean to subtract from pixels of 0..1: a number, or one for each channel.
        pixel_std: Standard deviation to divide by: a number, or one for each channel.
        resize: As in `keras_vit.preprocessing.Pipeline`, like the next four.
        crop_ratio: Share of each side that the crop keeps.
        crop_rounding: How half an odd margin is rounded.
        filter: The resampling filter.
        trim: Rows and columns that are cut off at the end; (0, 0) at another image size.

    Raises:
        TypeError, ValueError: if a field is invalid, or fields do not fit each other.

    Examples:
        >>> config = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=2)
        >>> config.grid_size
        (2, 2)
        >>> config.replace(classes=5).classes
        5
    """

    # What goes in, and how large everything is
    image_size: Pair
    patch_size: Pair
    width: Positive
    depth: Positive
    heads: Positive
    mlp_width: Positive
    channels: Channels = 3
    dynamic: bool = False
    # The ResNet of the hybrids
    stem_stages: Annotated[tuple[int, ...], Several(Whole(1))] | None = None
    stem_width: Positive = 64
    stem_epsilons: Annotated[str, OneOf(tuple(choices.STEM_EPSILONS))] = "official"
    stem_folded: bool = False
    # Tokens and their places
    patch_bias: bool = True
    class_token: bool = True
    distillation_token: bool = False
    register_tokens: Count = 0
    position_embedding: Annotated[str, OneOf(choices.POSITION_EMBEDDINGS)] = "learned"
    rotary_embedding: Annotated[str | None, OneOf((None, *choices.ROTARY_EMBEDDINGS))] = None
    rotary_grid: Pair | None = (16, 16)
    interpolation: Annotated[str, OneOf(tuple(METHODS))] = "official"
    pre_norm: bool = False
    # The blocks
    tokens_mlp_width: Length | None = None
    attention_bias: Annotated[str, OneOf(choices.ATTENTION_BIASES)] = "all"
    attention_norm: bool = False
    mlp: Annotated[str, OneOf(choices.MLPS)] = "plain"
    gelu: Annotated[str, OneOf(choices.GELUS)] = "tanh"
    layer_scale: Finite | None = None
    layer_norm_epsilon: Epsilon = 1e-6
    final_norm_epsilon: Epsilon | None = None
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    patch_drop: Rate = 0.0
    drop_path: Rate = 0.0
    remat: bool = False
    class_token_only: bool = False
    # From tokens to the output
    final_norm: Annotated[str, OneOf(choices.FINAL_NORMS)] = "tokens"
    pooling: Annotated[str, OneOf(choices.POOLINGS)] = "token"
    map_prefix: bool = True
    pooling_heads: Length | None = None
    pooling_mlp_width: Length | None = None
    projection: Length | None = None
    projection_bias: bool = False
    representation_size: Length | None = None
    unit_features: bool = False
    classes: Classes | None = None
    distillation_head: bool = False
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    # From image files to the model's input
    include_preprocessing: bool = False
    preprocessing_folded: bool = False
    pixel_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    pixel_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resize: str = "squash"
    crop_ratio: float = 1.0
    crop_rounding: str = "even"
    filter: str = "bilinear"
    trim: tuple[int, int] = (0, 0)

    model: ClassVar[str] = "VisionTransformer"

    def _check_together(self) -> None:
        super()._check_together()
        self._check_tokens()
        self._check_head()
        self._check_grid()
        for name in ("pixel_mean", "pixel_std"):
            object.__setattr__(self, name, _per_channel(name, getattr(self, name), self.channels))
        _ = self.pipeline  # which checks its fields

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other fields; TypeError or ValueError for invalid ones.

        Without pooling and head, a `final_norm` of `"pooled"` becomes `"none"`. Other `channels` change `pixel_mean`
        and `pixel_std`: one channel has their mean, more channels repeat them in turn.
        """
        channels = changes.get("channels", self.channels)
        if isinstance(channels, numbers.Integral) and channels != self.channels and channels <= MOST_CHANNELS:
            for name in ("pixel_mean", "pixel_std"):
                changes = {name: _repeated(getattr(self, name), int(channels)), **changes}
        new = super().replace(**changes)
        loses_end = new._returns_tokens and not self._returns_tokens  # noqa: SLF001
        if loses_end and new.final_norm == "pooled" and "final_norm" not in changes:
            return dataclasses.replace(new, final_norm="none")
        return new

    @property
    def _returns_tokens(self) -> bool:
        return self.pooling == "none" and not (self.projection or self.representation_size or self.classes)

    def _check_tokens(self) -> None:
        """Raises ValueError unless width, heads, tokens and blocks fit each other, and a Mixer has no attention."""
        width, heads = self.width, self.heads
        if width % heads:
            raise ValueError(f"heads must divide width, but {heads} heads and width {width} were given.")
        if self.position_embedding == "sincos2d" and (width % 4 or width < 8):
            raise ValueError(f"position_embedding='sincos2d' needs a width of 8, 12, 16, ..., but {width} was given.")
        if self.rotary_embedding is not None and self.head_size % 4:
            raise ValueError(
                f"rotary_embedding={self.rotary_embedding!r} needs a head size of 4, 8, 12, ..., but width={width} and "
                f"heads={heads} give {self.head_size}."
            )
        if self.distillation_token:
            self._need("distillation_token", class_token=True)
        if self.class_token_only:
            self._need("class_token_only", pooling="token")
        if self.preprocessing_folded:  # the patch embedding can normalise pixels where it reads them itself
            self._need("preprocessing_folded", include_preprocessing=True, stem_stages=None)
        if self.tokens_mlp_width is not None:  # a perceptron in place of attention, for as many tokens as its weights
            self._need("tokens_mlp_width", heads=1, class_token=False, register_tokens=0, position_embedding="none")
            self._need("tokens_mlp_width", rotary_embedding=None, dynamic=False, stem_stages=None, mlp="plain")
            self._need("tokens_mlp_width", layer_scale=None, attention_bias="all", attention_norm=False)
            self._need("tokens_mlp_width", attention_dropout=0, patch_drop=0)

    def _check_head(self) -> None:
        """Raises ValueError unless pooling, normalisation and heads fit each other and the tokens that there are."""
        if self.pooling == "token_avg" and self.final_norm == "pooled":
            raise ValueError("final_norm='pooled' cannot be used with pooling='token_avg'. Use final_norm='tokens'.")
        if self.pooling_heads is not None and self.width % self.pooling_heads:
            raise ValueError(f"pooling_heads must divide width={self.width}, but {self.pooling_heads} was given.")
        if self.pooling in ("token", "token_avg"):
            self._need("pooling", class_token=True)
        if self.pooling == "token_dist":
            self._need("pooling", distillation_token=True)
        if self.projection is None:
            self._need("projection", projection_bias=False)
        if self.distillation_head:
            self._need("distillation_head", distillation_token=True)
        if self.distillation_head and self.classes:  # it reads its token just as the first head reads the class token
            self._need("distillation_head", pooling="token", final_norm="tokens", unit_features=False)
            self._need("distillation_head", projection=None, representation_size=None)

    def _check_grid(self) -> None:
        """Raises ValueError, with the nearest sizes that fit, unless image or ResNet's map are whole patches."""
        lengths = zip(("height", "width"), self.image_size, self.feature_map_size, self.patch_size, strict=True)
        for axis, size, cells, patch in lengths:
            step = patch * self.stem_stride
            if cells % patch:
                below, above = size // step * step, (size // step + 1) * step
                nearest = f"{below} or {above}" if below else f"{above}"
                raise ValueError(
                    f"image_size must be a multiple of the patch size: {axis} {size} is not a multiple of {step}. "
                    f"The nearest that fit are {nearest}."
                )

    @property
    def stem_stride(self) -> int:
        """Stride of the ResNet in pixels: image pixels along a side for one cell of its map; 1 without a ResNet."""
        # The first convolution and the pooling halve the image, and so does every stage but the first.
        return 1 if self.stem_stages is None else 4 * 2 ** max(len(self.stem_stages) - 1, 0)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of the map that is cut into patches: the image, or the ResNet's last map."""
        return reduced(self.image_size, self.stem_stride)

    @property
    def feature_map_channels(self) -> int:
        """Channels of the map that is cut into patches: the image, or the ResNet's last map."""
        if self.stem_stages is None:
            return self.channels
        if not self.stem_stages:  # the first convolution alone
            return self.stem_width
        return self.stem_width * 4 * 2 ** (len(self.stem_stages) - 1)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.feature_map_size
        return (height // self.patch_size[0], width // self.patch_size[1])

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """The preprocessing of the model: a `keras_vit.preprocessing.Pipeline`."""
        fields = {name: getattr(self, name) for name in ("resize", "crop_ratio", "crop_rounding", "filter", "trim")}
        return Pipeline(self.image_size, mean=self.pixel_mean, std=self.pixel_std, **fields)

    def image_size_of(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """The image size in pixels, (height, width), for a grid of patches, (rows, columns)."""
        return tuple(n * patch * self.stem_stride for n, patch in zip(grid_size, self.patch_size, strict=True))

    @property
    def head_size(self) -> int:
        """d, the length of one head's queries, keys and values."""
        return self.width // self.heads

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return int(self.class_token) + int(self.distillation_token) + self.register_tokens

    @property
    def computed_tokens(self) -> int | None:
        """Number of tokens that the last block computes: 1, or 2 with a distillation head; None for all tokens."""
        if not self.class_token_only:
            return None
        return 2 if self.distillation_head and self.classes else 1

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
        """Length of the pooled vector or, without pooling, of each token."""
        return 2 * self.width if self.pooling == "token_avg" else self.width


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ModelConfig):
    """The configuration of a `BiT` (Big Transfer, arXiv 1912.11370): everything that determines what it computes.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares. No weight depends on it.
        stages: Units in each stage; every stage except the first halves the map.
        width: Channels of the first convolution: 64 times the factor in the paper's names (R50x3: 192).
        pooling: `"avg"` (mean over all positions of the last map) or `"none"` (the head reads every position).
        pool_padding: Padding before max pooling: `"-inf"` (big_vision) or `"zeros"` (the older `big_transfer`).
        folded: Whether the kernels are stored standardised (see `BiT.folded`). Further fields are as in `ViTConfig`.

    Examples:
        >>> keras_vit.BiTConfig(image_size=32, stages=(3, 4, 6, 3), classes=10).features
        2048
    """

    image_size: Pair = (224, 224)
    stages: tuple[int, ...]
    width: Positive = 64
    channels: Channels = 3
    dynamic: bool = False
    pooling: Annotated[str, OneOf(("avg", "none"))] = "avg"
    classes: Classes | None = None
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    include_preprocessing: bool = False
    pool_padding: Annotated[str, OneOf(tuple(choices.POOL_PADDINGS))] = "-inf"
    folded: bool = False

    model: ClassVar[str] = "BiT"

    def _check_together(self) -> None:
        super()._check_together()
        if not self.stages or not isinstance(self.stages, tuple):
            raise ValueError(f"stages must be a tuple of units, such as (3, 4, 6, 3), but {self.stages!r} was given.")
        Several(Whole(1))("stages", self.stages)
        if self.width % 32:
            raise ValueError(f"width must be a multiple of 32, but {self.width} was given.")

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """The preprocessing of the model: a `keras_vit.preprocessing.Pipeline`."""
        return Pipeline(self.image_size)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of the last map for images of `image_size`."""
        # The root halves twice and every stage but the first once.
        return reduced(self.image_size, 2 ** (len(self.stages) + 1))

    @property
    def features(self) -> int:
        """Channels of the last map, which the head reads."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)


def reduced(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Rows and columns of a map divided by a stride, rounded up: the same as halvings that round up."""
    return (math.ceil(size[0] / stride), math.ceil(size[1] / stride))


def _repeated(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A value for each of `channels`: the mean of the given ones for one, these in turn for more."""
    if channels == 1:
        return (math.fsum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))


def _per_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    """A float for each channel, from a number for all or one for each; equal ones fit any number of channels."""
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(n, numbers.Real) and not isinstance(n, bool) for n in values):
        raise TypeError(f"{name} must be one number, or one for each channel, but {value!r} was given.")
    result = tuple(map(float, values[:1] * channels if len(set(values)) == 1 else values))
    if len(result) != channels:
        raise ValueError(f"{name} must be one number, or one for each of {channels} channels, but {value!r} was given.")
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(Config):
    """The configuration of a `TextEncoder`.

    Attributes:
        vocabulary: Number of token ids.
        context: Number of tokens of a text, with padding.
        width, depth, heads, mlp_width, layer_norm_epsilon: As in `ViTConfig`.
        causal: Whether a token attends to itself and earlier ones only (CLIP).
        gelu: `"tanh"`, `"exact"` or `"quick"`, as in `ViTConfig`, or `"relu"` (TIPS).
        pooling: How tokens are pooled: `"last"` (SigLIP, LiT) or `"first"` token; `"largest_id"`: the first token with
            the largest id (CLIP); `"end_id"`: the first token with `end_id`; `"mean"`: the mean of all tokens except
            padding (TIPS); `"map"`: attention pooling.
        position_embedding: `"learned"`, or `"sincos"`: computed, added to `sqrt(width)` times the token (TIPS).
        pad_id: The id of padding, which attention and the mean ignore (TIPS); None: padding is read like other tokens.
        end_id: The id of the token that ends a text; only with pooling `"end_id"`.
        projection: Length of the text's embedding; None: no projection of the pooled token.
        projection_bias: Whether the projection has a bias (SigLIP).

    Examples:
        >>> keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16).pooling
        'last'
    """

    vocabulary: Positive
    context: Positive
    width: Positive
    depth: Positive
    heads: Positive
    mlp_width: Positive
    causal: bool = False
    gelu: Annotated[str, OneOf(choices.MLP_ACTIVATIONS)] = "tanh"
    layer_norm_epsilon: Epsilon = 1e-6
    pooling: Annotated[str, OneOf((*choices.TEXT_POOLINGS, "map"))] = "last"
    position_embedding: Annotated[str, OneOf(choices.TEXT_POSITIONS)] = "learned"
    pad_id: Count | None = None
    end_id: Count | None = None
    projection: Positive | None = None
    projection_bias: bool = False

    model: ClassVar[str] = "TextEncoder"
    # What the blocks of image towers may have in another way: layouts list the arrays of both towers.
    attention_bias: ClassVar[str] = "all"
    attention_norm: ClassVar[bool] = False
    mlp: ClassVar[str] = "plain"
    layer_scale: ClassVar[None] = None

    def _check_together(self) -> None:
        if self.pad_id is not None and (self.causal or self.pooling == "map"):
            raise ValueError(
                f"pad_id={self.pad_id} needs causal=False and a pooling other than 'map', but causal={self.causal} and "
                f"pooling={self.pooling!r} were given. Use pad_id=None."
            )
        for name, value in (("pad_id", self.pad_id), ("end_id", self.end_id)):
            if (value or 0) >= self.vocabulary:
                raise ValueError(f"{name} must be below vocabulary={self.vocabulary}, but {value} was given.")
        if self.projection is None:
            self._need("projection", projection_bias=False)
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, but {self.heads} heads and width {self.width} were given.")
        if (self.pooling == "end_id") != (self.end_id is not None):
            raise ValueError(
                f"end_id and pooling='end_id' need each other, but end_id={self.end_id!r} and "
                f"pooling={self.pooling!r} were given."
            )

    head_size = property(lambda self: self.width // self.heads)  # length of a head's queries and keys
