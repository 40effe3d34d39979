"""The description of a BiT (Big Transfer, arXiv 1912.11370), and its variants as data."""

import dataclasses

from keras_vit.layers.choices import POOL_PADDINGS
from keras_vit.models.config import ModelConfig, _check_activation, _check_positive, pair
from keras_vit.preprocessing import Pipeline

BIT_POOLINGS = ("avg", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ModelConfig):
    """Everything that decides what a `BiT` computes; the model is a function of it.

    Attributes:
        image_size: Height and width of the images in pixels; an integer for squares. No weight depends on it.
        stages: Units in each stage; every stage but the first halves the map.
        width: Channels of the first convolution: 64 times the width factor of the paper's names (R50x3: 192). Stage s,
            from 1, has `width * 2**(s - 1)` inside its units and four times as many after them.
        channels: Channels of the images.
        dynamic: Whether images of any size are taken; `image_size` is then what `BiT.preprocess` resizes to.
        pooling: What becomes of the last map: `"avg"` (mean over all places) or `"none"` (all of it goes on; a head is
            then applied to every place).
        classes: Outputs of the head; None for no head.
        class_names: As in `ViTConfig`.
        classifier_activation: Name of a Keras activation on top of the head; None for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them itself.
        pool_padding: What stands around the map before the max pooling of the root: `"-inf"`, as in big_vision's
            `models/bit_paper.py`, or `"zeros"`, as in the older `big_transfer` code. They differ along the edges.
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
        self._plain_numbers()
        _check_activation(self.classifier_activation)
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        if isinstance(self.stages, (str, int)) or not self.stages:
            raise ValueError(f"stages must be the units of each stage, as (3, 4, 6, 3), but {self.stages!r} was given.")
        object.__setattr__(self, "stages", tuple(self.stages))
        for units in self.stages:
            _check_positive("stages", units)
        for name in ("width", "channels"):
            _check_positive(name, getattr(self, name))
        if self.width % 32:
            raise ValueError(f"width must be a multiple of 32, the groups of the normalisation, but is {self.width}.")
        self._check_classes()
        for name, choices in (("pooling", BIT_POOLINGS), ("pool_padding", tuple(POOL_PADDINGS))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, but {getattr(self, name)!r} was given.")

    @property
    def pipeline(self) -> Pipeline:
        """How pictures become what the model takes."""
        return Pipeline(self.image_size)

    @property
    def feature_map_size(self) -> tuple[int, int]:
        """Height and width of the last map for images of `image_size`."""
        # The root halves twice and every stage but the first once, rounding up each time.
        stride = 2 ** (len(self.stages) + 1)
        return (-(-self.image_size[0] // stride), -(-self.image_size[1] // stride))

    @property
    def features(self) -> int:
        """Channels of the last map, which the head reads."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)


@dataclasses.dataclass(frozen=True)
class BiTVariant:
    """A row of the published models: the units of each stage, and the width in multiples of 64 channels."""

    stages: tuple[int, ...]
    width_factor: int


_R50, _R101, _R152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)

BIT_VARIANTS: dict[str, BiTVariant] = {
    "BiT-R50x1": BiTVariant(_R50, 1),
    "BiT-R50x3": BiTVariant(_R50, 3),
    "BiT-R101x1": BiTVariant(_R101, 1),
    "BiT-R101x3": BiTVariant(_R101, 3),
    "BiT-R152x2": BiTVariant(_R152, 2),
    "BiT-R152x4": BiTVariant(_R152, 4),
}
"""Units in each stage and factor of the width of each BiT, by its name in the papers.

Examples:
    >>> keras_vit.BIT_VARIANTS["BiT-R50x3"].width_factor
    3
"""
