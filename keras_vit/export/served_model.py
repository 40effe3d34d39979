"""What a file holds: the model as it is served, what that takes and gives, and what the file says about itself."""

import dataclasses
from typing import Any, Self, TypeAlias

import keras
import numpy as np

from keras_vit._keras import layers_inside
from keras_vit._types import Tensor
from keras_vit.models import BiT, BiTConfig, VisionTransformer, has_adapters, merge_lora, weights_by_path

Model: TypeAlias = VisionTransformer | BiT
Metadata: TypeAlias = dict[str, Any]  # what a file says about itself, as `describe` puts it

INPUT = "images"  # the name of the one input in every format
OUTPUTS = {"softmax": "probabilities", "sigmoid": "probabilities", "linear": "logits", None: "logits"}
# What a file does not need: it does not train.
TRAINING = {"dropout": 0.0, "attention_dropout": 0.0, "drop_path": 0.0, "remat": False}


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
    value_range: tuple[float, float]
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
    def of(cls, model: Model, batch: int | None, uint8: bool) -> Self:
        """The signature of the file that a model becomes.

        Args:
            model: The model as it is written (see `served_model`).
            batch: Images at a time; None for any number.
            uint8: Whether the file takes uint8.
        """
        config = model.config
        height, width = (None, None) if config.dynamic else config.image_size
        return cls(
            shape=(batch, height, width, config.channels),
            dtype="uint8" if uint8 else "float32",
            value_range=(0, 255) if config.include_preprocessing else config.pipeline.value_range,
            output=OUTPUTS.get(config.classifier_activation, "scores") if config.classes else "features",
            steps=(1, 1) if isinstance(config, BiTConfig) else config.image_size_of((1, 1)),
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The signature whose `dataclasses.asdict` went through JSON."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        return cls(**values)


def describe(
    model: Model, signature: Signature, precision: str, class_names: list[str] | None, source: str | None
) -> Metadata:
    """The metadata of a file, plain data.

    Args:
        model: The model that is exported.
        signature: What the file takes and gives.
        precision: What the file computes in.
        class_names: One for each class, in order; None for none.
        source: The checkpoint that the weights came from; None for unknown.

    Returns:
        `"model"`, `"source"`, `"image_size"`, `"any_image_size"`, `"input"`, `"input_dtype"`, `"input_range"`,
        `"output"`, `"precision"`, `"classes"` and `"class_names"`; without those that are unknown.
    """
    entries = {
        "model": model.name,
        "source": source,
        "image_size": list(model.config.image_size),
        "any_image_size": signature.any_size,
        "input": INPUT,
        "input_dtype": signature.dtype,
        "input_range": list(signature.value_range),
        "output": signature.output,
        "precision": precision,
        "classes": model.config.classes,
        "class_names": class_names,
    }
    return {key: value for key, value in entries.items() if value is not None}


def check_model(model: object) -> None:
    """Refuses what cannot be exported.

    Raises:
        TypeError: if it is no model of this package.
        ValueError: if it is quantized, or weights are NaN or infinite.
    """
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(
            f"model must be a keras_vit.VisionTransformer or a keras_vit.BiT, but a {type(model).__name__} was given. "
            "Other Keras models, feature extractors among them, have an export method of their own: "
            "model.export(path, format=...)."
        )
    if any(layer.quantization_mode is not None for layer in layers_inside(model)):
        raise ValueError(
            "model is quantized, which no format can express. Export it before model.quantize(), with "
            "precision='dynamic_int8' for a file with int8 weights."
        )
    bad = [
        name
        for name, weight in weights_by_path(model).items()
        if not np.all(np.isfinite(keras.ops.convert_to_numpy(weight).astype("float32")))
    ]
    if bad:
        others = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise ValueError(
            f"model has weights that are NaN or infinite, so its answers mean nothing: {', '.join(bad[:5])}{others}. "
            "Go back to a checkpoint from before they became so; a lower learning rate may keep them finite."
        )


def plain_model(model: Model) -> Model:
    """The model itself where it computes in float32 and has no adapters; otherwise one that gives its answers so."""
    if any(map(has_adapters, layers_inside(model))):
        model = merge_lora(model)
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    return model.with_config(dtype="float32")


def served_model(model: Model, *, uint8: bool, softmax: bool) -> Model:
    """The model that a file holds: with what belongs into the graph, without what only training needs.

    Args:
        model: A model that computes in float32.
        uint8: Whether the file takes uint8; the model then scales pixels of 0..255 itself.
        softmax: Whether the file answers with probabilities.

    Raises:
        ValueError: if there are no logits to take the softmax of.
    """
    config = model.config
    changes: dict[str, Any] = {name: value for name, value in TRAINING.items() if hasattr(config, name)}
    if uint8:
        changes["include_preprocessing"] = True
    if softmax:
        if not config.classes or config.classifier_activation not in (None, "linear", "softmax"):
            has = f"the activation {config.classifier_activation!r}" if config.classes else "no head"
            raise ValueError(f"softmax=True needs a model that answers with logits, but {model.name} has {has}.")
        changes["classifier_activation"] = "softmax"
    if changes and config.replace(**changes) != config:
        model = model.with_config(dtype="float32", **changes)
    has_resnet = isinstance(config, BiTConfig) or config.stem_stages is not None
    return model.folded() if has_resnet else model


def serve(model: Model, images: Tensor) -> Tensor:
    """What every exported file computes: the model's answers while nothing is trained.

    Args:
        model: The model as it is written.
        images: A tensor of the model's backend, as the signature says.
    """
    return model(keras.ops.cast(images, "float32"), training=False)
