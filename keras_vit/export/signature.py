"""What an exported file takes and gives: the same for every format, and plain data that travels between processes."""

import dataclasses
from typing import Any, Self

import keras

INPUT = "images"  # the name of the one input in every format
OUTPUTS = {"softmax": "probabilities", "sigmoid": "probabilities", "linear": "logits", None: "logits"}


@dataclasses.dataclass(frozen=True)
class Signature:
    """The input and the output of an exported file.

    Attributes:
        shape: Of the images, `(batch, height, width, channels)`; None for what may have any length.
        dtype: Of the images: `"uint8"` (pixels of 0..255) or `"float32"`.
        value_range: Least and largest value of the images.
        output: Name of the answers: `"logits"`, `"probabilities"`, or `"features"` without a head; `"scores"` after
            any other activation.
        steps: What height and width have to be multiples of.
    """

    shape: tuple[int | None, int | None, int | None, int]
    dtype: str
    value_range: tuple[int, int]
    output: str
    steps: tuple[int, int]

    @property
    def batch(self) -> int | None:
        """How many images at a time; None for any number."""
        return self.shape[0]

    @property
    def any_size(self) -> bool:
        """Whether images of any height and width are taken."""
        return self.shape[1] is None

    @classmethod
    def of(cls, model: Any, batch: int | None, uint8: bool) -> Self:
        """The signature of the file that a model becomes.

        Args:
            model: The model as it is written (see `preparing.served_model`).
            batch: Images at a time; None for any number.
            uint8: Whether the file takes uint8.
        """
        config = model.config
        size = (None, None) if config.dynamic else config.image_size
        return cls(
            shape=(batch, *size, config.channels),
            dtype="uint8" if uint8 else "float32",
            value_range=(0, 255) if config.include_preprocessing else (-1, 1),
            output=OUTPUTS.get(config.classifier_activation, "scores") if config.classes else "features",
            steps=config.image_size_of((1, 1)) if hasattr(config, "image_size_of") else (1, 1),
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The signature whose `dataclasses.asdict` went through JSON."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def serve(model: Any, images: Any) -> Any:
    """What every exported file computes: the model's answers while nothing is trained.

    Args:
        model: The model as it is written.
        images: A tensor of the model's backend, as the signature says.
    """
    return model(keras.ops.cast(images, "float32"), training=False)
