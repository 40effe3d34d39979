"""What a file holds: the model as it is served, what that takes and returns, and what the file says about itself."""

import dataclasses
from typing import Any, Self, TypeAlias

import keras
import numpy as np

from keras_vit._arguments import Tensor, listing
from keras_vit._keras import has_graph, layers_inside
from keras_vit.models import (
    BiT,
    BiTConfig,
    DenseModel,
    LinearSegmenter,
    VisionTransformer,
    ViTConfig,
    has_adapters,
    merge_lora,
    pixel_scaling,
    weights_by_path,
)

Config: TypeAlias = ViTConfig | BiTConfig
Metadata: TypeAlias = dict[str, Any]  # what a file says about itself, as `describe` puts it

INPUT = "images"  # the name of the one input in every format
# The name of the output of dense models that have one, by `config.model`; EoMT's two have names.
DENSE_OUTPUTS = {"LinearSegmenter": "logits", "DPT": "depth", "LinearDepth": "depth"}
OUTPUTS = {"softmax": "probabilities", "sigmoid": "probabilities", "linear": "logits", None: "logits"}
# What a file does not need: it does not train.
TRAINING = {"dropout": 0.0, "attention_dropout": 0.0, "patch_drop": 0.0, "drop_path": 0.0, "remat": False}


@dataclasses.dataclass(frozen=True)
class Signature:
    """The input and the outputs of an exported file.

    The name of a single output is `"logits"`, `"probabilities"`, or `"features"` without a head; `"scores"` after any
    other activation; of a model around one of this package, `"output"`.
    """

    shape: tuple[int | None, int | None, int | None, int]  # of the images; None for what may have any length
    dtype: str  # "uint8" (pixels of 0..255) or "float32"
    value_range: tuple[float, float] | None  # None where nothing tells
    outputs: tuple[str, ...]
    softmax: bool = False  # whether the file takes the softmax of what the model outputs
    scale: tuple[float, ...] | None = None  # what pixels are multiplied with in the file, for each channel or all
    offset: tuple[float, ...] = (0.0,)  # what is added then
    steps: tuple[int, int] = (1, 1)  # what height and width have to be multiples of

    @property
    def batch(self) -> int | None:
        """How many images at a time; None for any number."""
        return self.shape[0]

    @property
    def any_size(self) -> bool:
        """Whether images of any height and width are taken."""
        return self.shape[1] is None

    def describe_input(self) -> str:
        """The input's name, dtype, shape and range of values."""
        shape = ", ".join("any" if length is None else str(length) for length in self.shape)
        values = "" if self.value_range is None else ", {:.4g}..{:.4g}".format(*self.value_range)
        return f"{INPUT}: {self.dtype} ({shape}){values}"

    @classmethod
    def of(cls, model: keras.Model, batch: int | None = None, uint8: bool = False, softmax: bool = False) -> Self:
        """The signature of the file that a model becomes; options as in `export`.

        Raises:
            ValueError: if there are no logits to take the softmax of, or nothing tells how pixels are normalised.
        """
        config, outputs = input_config(model), output_names(model)
        softmax = softmax and _activation(model) != "softmax"
        if softmax:
            _require_logits(model, outputs)
            outputs = ("probabilities",)
        value_range = None if config is None else config.pipeline.value_range
        scale, offset = None, (0.0,)
        if config is not None and config.include_preprocessing:
            value_range = (0, 255)
        elif uint8 and config is not None:
            scale, offset = map(tuple, pixel_scaling(config.pipeline))
        elif uint8 and find_model(model) is None:
            words = f"uint8_input=True needs to know how pixels are normalised, which {model.name} does not say"
            raise ValueError(f"{words}: put keras.layers.Rescaling before it.")
        return cls(
            shape=(batch, *model.inputs[0].shape[1:]),
            dtype="uint8" if uint8 else "float32",
            value_range=(0, 255) if uint8 else value_range,
            outputs=outputs,
            softmax=softmax,
            scale=scale,
            offset=offset,
            steps=config.image_size_of((1, 1)) if isinstance(config, ViTConfig) else (1, 1),
        )


def _require_logits(model: keras.Model, outputs: tuple[str, ...]) -> None:
    """Raises ValueError, with what the model returns instead, where there are no logits to take the softmax of."""
    activation = _activation(model)
    if outputs in (("logits",), ("output",)) and activation == "linear":
        return
    has = f"the activation {activation!r}"
    if isinstance(model, DenseModel):
        has = f"the answers {', '.join(outputs)}"
    elif outputs == ("features",):
        has = "no head"
    raise ValueError(f"softmax=True needs a model that returns logits, but {model.name} has {has}.")


def find_model(model: keras.Model) -> VisionTransformer | BiT | None:
    """The model of this package that a model is or has inside; None where it is none and has none or several."""
    inside = [layer for layer in layers_inside(model) if isinstance(layer, (VisionTransformer, BiT))]
    return inside[0] if len(inside) == 1 else None


def input_config(model: keras.Model) -> Config | None:
    """The config that says how the images are made that a model takes; None where layers come before, or none tells."""
    if isinstance(model, DenseModel):
        return model.config.backbone
    config = getattr(model, "config", None)  # feature extractors have that of the model that they are made of
    if isinstance(config, (ViTConfig, BiTConfig)):
        return config
    first = next((layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)), None)
    return input_config(first) if isinstance(first, keras.Model) else None


def output_names(model: keras.Model) -> tuple[str, ...]:
    """The names of a model's outputs, in the order in which Keras flattens them."""
    if isinstance(model, (VisionTransformer, BiT)):
        config = model.config
        return (OUTPUTS.get(config.classifier_activation, "scores") if config.classes else "features",)
    if isinstance(model, DenseModel) and model.config.model in DENSE_OUTPUTS:
        return (DENSE_OUTPUTS[model.config.model],)
    outputs = model.outputs[0] if isinstance(model, keras.Sequential) else model.output
    if isinstance(outputs, dict):
        return tuple(sorted(outputs))
    return ("output",) if isinstance(outputs, keras.KerasTensor) else tuple(f"output_{i}" for i in range(len(outputs)))


def _activation(model: keras.Model) -> str:
    """The name of the activation at the end of a model."""
    if isinstance(model, (VisionTransformer, BiT)):
        return model.config.classifier_activation or "linear"
    return getattr(getattr(model.layers[-1], "activation", None), "__name__", "linear")


def classes_of(model: keras.Model) -> int | None:
    """The number of classes of a classifier, which has an output for each; None for other models."""
    if isinstance(model, (VisionTransformer, BiT, LinearSegmenter)):
        return model.config.classes
    outputs = model.outputs
    named = len(outputs) == 1 and len(outputs[0].shape) == 2 and _activation(model) == "softmax"
    return outputs[0].shape[-1] if named else None


def describe(
    model: keras.Model, signature: Signature, precision: str, class_names: list[str] | None, source: str | None
) -> Metadata:
    """The metadata to write into an exported file: a dictionary of plain data without entries that are None."""
    config, outputs = input_config(model), signature.outputs
    size = signature.shape[1:3]
    if None in size:
        size = None if config is None else config.image_size
    entries = {
        "model": model.name,
        "source": source,
        "image_size": None if size is None else list(size),
        "any_image_size": signature.any_size,
        "input": INPUT,
        "input_dtype": signature.dtype,
        "input_range": None if signature.value_range is None else list(signature.value_range),
        "output": outputs[0] if len(outputs) == 1 else list(outputs),
        "precision": precision,
        "classes": classes_of(model),
        "class_names": class_names,
    }
    return {key: value for key, value in entries.items() if value is not None}


def check_model(model: Any) -> None:
    """Refuses what cannot be exported, with a TypeError or ValueError."""
    known = isinstance(model, keras.Model) and has_graph(model)
    inside = layers_inside(model) if known else []
    if not any(type(layer).__module__.startswith("keras_vit.") for layer in inside):
        kinds = "a VisionTransformer or BiT, a dense model, a functional or sequential one with such inside, or a name"
        words = f"model must be {kinds}, but a {type(model).__name__} was given"
        raise TypeError(f"{words}. Of a subclassed model, export the model inside.")
    shapes = [tuple(images.shape) for images in model.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(f"model must take images (batch, height, width, channels) alone, but it takes {shapes}.")
    if any(layer.quantization_mode is not None for layer in inside):
        raise ValueError("model is quantized. Export it before model.quantize(), with precision='dynamic_int8'.")
    bad = [
        name
        for name, weight in weights_by_path(model).items()
        if not np.all(np.isfinite(keras.ops.convert_to_numpy(weight).astype("float32")))
    ]
    if bad:
        raise ValueError(f"model has weights that are NaN or infinite: {listing(bad)}. Take an earlier checkpoint.")


def plain_model(model: keras.Model) -> keras.Model:
    """The model itself where it computes in float32 and has no adapters; otherwise one that computes the same so.

    Raises ValueError for adapters in layers that are not of this package's models.
    """
    layers = layers_inside(model)
    ours = isinstance(model, (VisionTransformer, BiT, DenseModel))
    if any(map(has_adapters, layers)):
        if not ours:
            words = f"{model.name} has LoRA's adapters in layers of another model"
            raise ValueError(f"{words}. Merge them, and make it anew: keras_vit.training.merge_lora(backbone).")
        model = merge_lora(model)
    if all(layer.compute_dtype == "float32" for layer in (model.layers if ours else layers)):
        return model
    if ours:
        return model.with_config(dtype="float32")
    plain = keras.models.clone_model(model, clone_function=_in_float32)
    for new, old in zip(plain.weights, model.weights, strict=True):
        new.assign(keras.ops.copy(old))  # on JAX, predict donates the memory of a model
    if hasattr(model, "config"):
        plain.config = model.config
    return plain


def _in_float32(layer: keras.layers.Layer) -> keras.layers.Layer:
    """A copy of a layer, or a model, that computes in float32."""
    if isinstance(layer, keras.Model):
        return plain_model(layer)
    return type(layer).from_config(_config_in_float32(layer.get_config()))


def _config_in_float32(config: Any) -> Any:
    """The config of a layer, and of layers inside it, with another dtype policy."""
    if isinstance(config, dict):
        return {key: "float32" if key == "dtype" else _config_in_float32(value) for key, value in config.items()}
    return [*map(_config_in_float32, config)] if isinstance(config, list) else config


def served_model(model: keras.Model) -> keras.Model:
    """What a file holds of a `plain_model`: no parts for training only, and standardised kernels of ResNets."""
    if not isinstance(model, (VisionTransformer, BiT)):
        return model
    config = model.config
    changes: dict[str, Any] = {name: value for name, value in TRAINING.items() if hasattr(config, name)}
    if changes and config.replace(**changes) != config:
        model = model.with_config(dtype="float32", **changes)
    has_resnet = isinstance(config, BiTConfig) or config.stem_stages is not None
    return model.folded() if has_resnet else model


def serve(model: keras.Model, signature: Signature, images: Tensor) -> dict[str, Tensor]:
    """What every exported file computes: the model's outputs by name, for images as the signature describes them."""
    images = keras.ops.cast(images, "float32")
    if signature.scale is not None:
        scale, offset = (np.array(values, "float32") for values in (signature.scale, signature.offset))
        images = keras.ops.add(keras.ops.multiply(images, scale), offset)
    answers = keras.tree.flatten(model(images, training=False))
    if signature.softmax:
        answers = [keras.ops.softmax(answer) for answer in answers]
    return dict(zip(signature.outputs, answers, strict=True))
