"""The one description of a model."""

import dataclasses
import numbers
from collections.abc import Iterable
from typing import Any, Self

from keras_vit._text import printable
from keras_vit._types import pair
from keras_vit.interpolation import METHODS
from keras_vit.layers.choices import GELUS, POOLINGS

POSITION_EMBEDDINGS = ("learned", "learned_patches", "sincos2d")


class ModelConfig:
    """What the configs of all models can do; each is a frozen dataclass."""

    classes: int | None
    class_names: tuple[str, ...] | None

    def _plain_numbers(self) -> None:
        """NumPy's numbers become Python's: `labels.max() + 1` is one of them, and JSON knows none."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, numbers.Integral) and not isinstance(value, int):
                object.__setattr__(self, field.name, int(value))
            elif isinstance(value, numbers.Real) and not isinstance(value, (int, float)):
                object.__setattr__(self, field.name, float(value))
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise TypeError(f"{field.name} must be True or False, but {value!r} was given.")

    def replace(self, **changes: Any) -> Self:
        """A config like this one with the given fields changed.

        Another number of `classes` drops the `class_names`, unless the new ones are given as well.
        """
        if "classes" in changes and changes["classes"] != self.classes:
            changes = {"class_names": None, **changes}
        return dataclasses.replace(self, **changes)

    def _check_classes(self) -> None:
        """Raises unless `classes` is a number of classes or None, and `class_names` has a name for each."""
        if self.classes is not None:
            _check_positive("classes", self.classes, "For a model without a head use include_top=False.")
        if self.class_names is None:
            return
        names = self.class_names
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise TypeError(f"class_names must be a list of strings in the order of the classes, but got {names!r}.")
        names = tuple(names)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"class_names must be strings, but {name!r} of type {type(name).__name__} is among them."
                )
            if not name or name != name.strip() or name != printable(name):
                raise ValueError(
                    "class_names must be single lines without control characters and without space around them, but "
                    f"{name!r} is among them."
                )
        if len(names) != (self.classes or 0):
            raise ValueError(
                f"class_names must name each of the {self.classes or 0} classes, but has {len(names)} names."
            )
        object.__setattr__(self, "class_names", names)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """Everything that decides what a `VisionTransformer` computes; the model is a function of it.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares. Position embeddings are
            made for it.
        patch_size: Height and width of a patch in pixels; an integer for squares.
        width: D, the length of a token.
        depth: L, the number of Transformer blocks.
        heads: Attention heads per block; divides `width`.
        mlp_width: Length of the MLP's hidden layer.
        channels: Channels of the images.
        stem_stages: Units in each stage of the ResNet before the patches (the hybrids, section 3.1); an empty tuple
            for its first convolution only; None for no ResNet.
        stem_width: Channels of the ResNet's first convolution.
        stem_folded: Whether the ResNet's kernels have been standardised for good (see `VisionTransformer.folded`).
        dynamic: Whether images of any size are taken, the position embeddings being resized in the graph.
        class_token: Whether a class token stands before the patches.
        position_embedding: `"learned"`: a learned row for every token, the class token included (vit_jax);
            `"learned_patches"`: for patches only, so that the class token has no position (big_vision; the same
            without a class token); `"sincos2d"`: computed for patches, nothing to learn (see `layers.sincos2d`).
        pooling: What becomes of the encoded tokens: `"token"` (the class token), `"avg"` (mean of the patches),
            `"map"` (attention pooling) or `"none"` (all of them go on).
        representation_size: Length of the tanh layer before the head (`pre_logits`); None for none.
        classes: Outputs of the head; None for no head.
        class_names: What the outputs of the head stand for, in order; None where nobody has said. Files carry them.
        classifier_activation: Name of a Keras activation on top of the head; None for logits.
        gelu: `"tanh"`, as the official checkpoints were trained, or `"exact"`.
        layer_norm_epsilon: Added to the variance by every layer normalisation.
        dropout: Rate after the position embeddings, after attention and in the MLPs.
        attention_dropout: Rate on the attention weights.
        drop_path: Stochastic depth of the last block; it grows linearly from 0 in the first (AugReg, section 3.3).
        remat: Whether blocks are recomputed in the backward pass to save memory.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them itself.
        interpolation: How position embeddings change size (see `keras_vit.interpolation`).

    Raises:
        TypeError, ValueError: if a field makes no sense; the message says what was expected.
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    width: int
    depth: int
    heads: int
    mlp_width: int
    channels: int = 3
    stem_stages: tuple[int, ...] | None = None
    stem_width: int = 64
    stem_folded: bool = False
    dynamic: bool = False
    class_token: bool = True
    position_embedding: str = "learned"
    pooling: str = "token"
    representation_size: int | None = None
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    gelu: str = "tanh"
    layer_norm_epsilon: float = 1e-6
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    remat: bool = False
    include_preprocessing: bool = False
    interpolation: str = "official"

    def __post_init__(self) -> None:
        self._plain_numbers()
        for name in ("image_size", "patch_size"):
            object.__setattr__(self, name, pair(name, getattr(self, name)))
        if self.stem_stages is not None:
            object.__setattr__(self, "stem_stages", tuple(self.stem_stages))
            for units in self.stem_stages:
                _check_positive("stem_stages", units)
        for name in ("width", "depth", "heads", "mlp_width", "channels", "stem_width"):
            _check_positive(name, getattr(self, name))
        self._check_classes()
        if self.representation_size is not None:
            _check_positive("representation_size", self.representation_size, "Use None for no such layer.")
        for name, choices in (
            ("position_embedding", POSITION_EMBEDDINGS),
            ("pooling", POOLINGS),
            ("gelu", GELUS),
            ("interpolation", tuple(METHODS)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, but {getattr(self, name)!r} was given.")
        _check_activation(self.classifier_activation)
        epsilon = self.layer_norm_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
            raise ValueError(f"layer_norm_epsilon must be a number above 0 and below 1, but {epsilon!r} was given.")
        for name in ("dropout", "attention_dropout", "drop_path"):
            if not isinstance(getattr(self, name), (int, float)):
                raise TypeError(f"{name} must be a number, but {getattr(self, name)!r} was given.")
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, but {getattr(self, name)!r} was given.")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, but {self.heads} heads and width {self.width} were given.")
        if self.position_embedding == "sincos2d" and (self.width % 4 or self.width < 8):
            raise ValueError(f"position_embedding='sincos2d' needs a width of 8, 12, 16, ..., but got {self.width}.")
        if self.pooling == "token" and not self.class_token:
            raise ValueError("pooling='token' needs class_token=True; without a class token use 'avg' or 'map'.")
        self._check_grid()

    def _check_grid(self) -> None:
        for axis, size, cells, patch in zip(
            ("height", "width"), self.image_size, self.feature_map_size, self.patch_size, strict=True
        ):
            if cells % patch:
                step = patch * self.stem_stride
                below, above = size // step * step, (size // step + 1) * step
                nearest = f"{below} or {above}" if below else f"{above}"
                raise ValueError(
                    f"image_size must be a multiple of the patch size: {axis} {size} is not a multiple of {step}. "
                    f"The nearest that fit are {nearest}."
                )

    @property
    def stem_stride(self) -> int:
        """How many pixels of the image one cell of the map that is cut into patches stands for, in each direction."""
        if self.stem_stages is None:
            return 1
        # The first convolution and the pooling halve the image, and so does every stage but the first.
        return 4 * 2 ** max(len(self.stem_stages) - 1, 0)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of what is cut into patches: the image, or the ResNet's last map."""
        # Halving rounds up each time, which is the same as dividing once and rounding up.
        return (-(-self.image_size[0] // self.stem_stride), -(-self.image_size[1] // self.stem_stride))

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

    def image_size_of(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """The image size, in pixels, that gives a grid of patches."""
        return tuple(n * patch * self.stem_stride for n, patch in zip(grid_size, self.patch_size, strict=True))

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return int(self.class_token)

    @property
    def position_rows(self) -> int:
        """Rows of the table of position embeddings; 0 where they are computed."""
        rows, columns = self.grid_size
        prefix = self.prefix_tokens if self.position_embedding == "learned" else 0
        return 0 if self.position_embedding == "sincos2d" else prefix + rows * columns


def _check_positive(name: str, value: Any, advice: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, but {value!r} of type {type(value).__name__} was given.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, but {value} was given. {advice}".rstrip())


def _check_activation(value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(
            "classifier_activation must be the name of a Keras activation, such as 'softmax', or None for logits, but "
            f"{value!r} was given."
        )
