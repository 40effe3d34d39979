"""What a file holds: the model as it is served, what that takes and returns, and what the file says about itself.

Also the images of an export: those that the outputs are compared on, and those that int8 is calibrated with.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import Tensor, check_class_names, listing, softmax, to_numpy
from keras_vit._files import expanded_path
from keras_vit._keras import has_graph, layers_inside
from keras_vit.data import IMAGE_SUFFIXES, has_test_split, image_files, match_labels, open_data
from keras_vit.data.examples import has_no_end, is_pipeline, one_pass, split_folders
from keras_vit.models import (
    AnomalyDetector,
    BiT,
    BiTConfig,
    DenseModel,
    LinearSegmenter,
    TextEncoder,
    VisionTransformer,
    ViTConfig,
    has_adapters,
    merge_lora,
    pixel_scaling,
    weights_by_path,
)
from keras_vit.preprocessing.images import OVERSHOOT

Config: TypeAlias = ViTConfig | BiTConfig

INPUT, IDS = "images", "ids"  # the name of the one input in every format: of an image model, of a text tower
# The name of the output of dense models that have one, by `config.model`; EoMT's two have names. A `MultiTaskDPT` has
# its task's.
DENSE_OUTPUTS = {"LinearSegmenter": "logits", "DPT": "depth", "LinearDepth": "depth"}
OUTPUTS = {"softmax": "probabilities", "sigmoid": "probabilities", "linear": "logits", None: "logits"}
# What a file does not need: it does not train.
TRAINING = {"dropout": 0.0, "attention_dropout": 0.0, "patch_drop": 0.0, "drop_path": 0.0, "remat": False}
BUILT_IN = 8  # images: a batch of 1 and one of 7
FEWEST = 8  # calibration images: fewer say next to nothing about the range of values
CONTRAST = 0.1  # of the range of values: what reaches over less of it is an image of one colour
COMPARED = 64  # calibration images that outputs are compared on where no others are given
MOST = 300  # calibration images of a folder or a data set: more make the ranges no better


@dataclasses.dataclass(frozen=True)
class Signature:
    """The input and the outputs of an exported file.

    The name of a single output is `"logits"`, `"probabilities"`, or `"features"` without a head; `"scores"` after any
    other activation; of a model around one of this package, `"output"`.
    """

    shape: tuple[Any, ...]  # of the images, or (batch, context) of ids; None for what may have any length
    dtype: str  # "uint8" (pixels of 0..255) or "float32"; "int32" (ids)
    value_range: tuple[float, float] | None  # None where nothing tells
    outputs: tuple[str, ...]
    softmax: bool = False  # whether the file takes the softmax of what the model outputs
    scale: tuple[float, ...] | None = None  # what pixels are multiplied with in the file, for each channel or all
    offset: tuple[float, ...] = (0.0,)  # what is added then
    steps: tuple[int, int] = (1, 1)  # what height and width have to be multiples of
    float16: bool = False  # whether it is computed in float16, by a GPU
    threshold: float | None = None  # of an anomaly detector: the file decides as well
    input: str = INPUT
    table: str = "float32"  # how a text tower's table of tokens is stored: this, "int16" or "int8"

    @property
    def batch(self) -> int | None:
        return self.shape[0]

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    @property
    def any_size(self) -> bool:
        return self.shape[1] is None

    def describe_input(self) -> str:
        """The input's name, dtype, shape and range of values as a text."""
        shape = ", ".join("any" if length is None else str(length) for length in self.shape)
        ends = [f"{end:.4g}" if end % 1 else f"{end:.0f}" for end in self.value_range or ()]
        values = f", {'..'.join(ends)}" if ends else ""
        return f"{self.input}: {self.dtype} ({shape}){values}"

    @classmethod
    def of(
        cls,
        model: keras.Model,
        batch: int | None = None,
        uint8: bool = False,
        softmax: bool = False,
        float16: bool = False,
    ) -> Self:
        """Returns the signature of the file that a model becomes; `uint8` and `softmax` as in `export`."""
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
        elif uint8 and sum(isinstance(layer, (VisionTransformer, BiT)) for layer in layers_inside(model)) != 1:
            raise ValueError(
                f"uint8_input=True needs to know how pixels are normalised, but {model.name} has no config that says "
                "so. Put keras.layers.Rescaling before it."
            )
        return cls(
            shape=(batch, *model.inputs[0].shape[1:]),
            dtype="uint8" if uint8 else "float32",
            value_range=(0, 255) if uint8 else value_range,
            outputs=outputs,
            softmax=softmax,
            scale=scale,
            offset=offset,
            steps=config.image_size_of((1, 1)) if isinstance(config, ViTConfig) else (1, 1),
            float16=float16,
            threshold=model.threshold if isinstance(model, AnomalyDetector) else None,
        )


def _require_logits(model: keras.Model, outputs: tuple[str, ...]) -> None:
    """Raises ValueError, which says what the model returns, where there are no logits to take the softmax of."""
    activation = _activation(model)
    if outputs in (("logits",), ("output",)) and activation == "linear":
        return
    has = f"the activation {activation!r}"
    if outputs == ("features",):
        has = "no head"
    elif isinstance(model, DenseModel) or activation == "linear":
        has = f"the answers {', '.join(outputs)}"
    raise ValueError(f"softmax=True needs a model that returns logits, but {model.name} has {has}.")


def input_config(model: keras.Model) -> Config | None:
    """Returns the config that says how images become a model's input; None where no config does."""
    if isinstance(model, DenseModel):  # a detector of anomalies resizes otherwise than its backbone
        return model.config if isinstance(model, AnomalyDetector) else model.config.backbone
    config = getattr(model, "config", None)  # feature extractors have that of the model that they are made of
    if isinstance(config, (ViTConfig, BiTConfig)):
        return config
    first = next((layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)), None)
    return input_config(first) if isinstance(first, keras.Model) else None


def output_names(model: keras.Model) -> tuple[str, ...]:
    """Returns the names of a model's outputs in a file, in the order in which Keras flattens them."""
    if isinstance(model, (VisionTransformer, BiT)):
        config = model.config
        return (OUTPUTS.get(config.classifier_activation, "scores") if config.classes else "features",)
    if isinstance(model, AnomalyDetector) and model.threshold is not None:
        return ("is_anomalous", "map", "score")
    outputs = model.outputs[0] if isinstance(model, keras.Sequential) else model.output
    if isinstance(outputs, dict):
        return tuple(sorted(outputs))
    if isinstance(model, DenseModel):
        return (DENSE_OUTPUTS.get(model.config.model) or model.config.tasks[0],)
    return ("output",) if isinstance(outputs, keras.KerasTensor) else tuple(f"output_{i}" for i in range(len(outputs)))


def _activation(model: keras.Model) -> str:
    """Returns the name of the activation of a model's classifier or last layer, `"linear"` for none."""
    if isinstance(model, (VisionTransformer, BiT)):
        return model.config.classifier_activation or "linear"
    last = model.layers[-1]
    if isinstance(last, keras.Model):
        return _activation(last)
    activation = getattr(last, "activation", None)
    if isinstance(last, keras.layers.Softmax) or isinstance(activation, keras.layers.Softmax):
        return "softmax"
    return getattr(activation, "__name__", "linear")


def classes_of(model: keras.Model) -> int | None:
    """Returns the number of classes of a classifier or a linear segmenter; None for other models."""
    # A model around one of this package counts as a classifier if its one output, a vector, ends with a softmax.
    if isinstance(model, (VisionTransformer, BiT, LinearSegmenter)):
        return model.config.classes
    outputs = model.outputs
    named = len(outputs) == 1 and len(outputs[0].shape) == 2 and _activation(model) == "softmax"
    return outputs[0].shape[-1] if named else None


def names_of_classes(model: keras.Model, class_names: Sequence[str] | None) -> list[str] | None:
    """Returns the names of classes for the file: the given ones, or else the model's, or None."""
    if isinstance(model, (VisionTransformer, BiT, DenseModel)) and hasattr(model.config, "class_names"):
        config = model.config
        if class_names is not None:
            config = config.replace(class_names=class_names)  # which checks them
        return list(config.class_names) if config.class_names else None
    names, count = check_class_names(class_names, None)
    shapes = [tuple(output.shape) for output in model.outputs]
    if names is not None and shapes != [(None, count)]:
        raise ValueError(
            f"class_names must have a name for each class of {model.name}, whose outputs have the shapes {shapes}."
        )
    return None if names is None else list(names)


def describe(
    model: keras.Model, signature: Signature, precision: str, class_names: list[str] | None, source: str | None
) -> dict[str, Any]:
    """Returns the metadata to write into a file: plain data by name, without entries that are None."""
    config, outputs = input_config(model), signature.outputs
    size = signature.shape[1:3]
    if None in size:
        size = None if config is None else config.image_size
    entries = {
        "model": model.name,
        "source": None if source is None else os.fspath(source),
        "image_size": list(size) if signature.input == INPUT and size else None,
        "any_image_size": signature.any_size if signature.input == INPUT else None,
        "input": signature.input,
        "input_dtype": signature.dtype,
        "input_range": None if signature.value_range is None else list(signature.value_range),
        "output": outputs[0] if len(outputs) == 1 else list(outputs),
        "precision": precision,
        "classes": classes_of(model),
        "class_names": class_names,
        "threshold": signature.threshold,
    }
    if isinstance(model, AnomalyDetector):
        given = model.config
        pipeline = {"resize": given.picture_size, "filter": "Pillow's bicubic", "crop": "the upper left image_size"}
        pipeline |= {"mean": given.pipeline.mean, "std": given.pipeline.std}  # of pixels of 0..1
        entries |= {"false_alarms": given.false_alarms, "preprocessing": pipeline}
    return {key: value for key, value in entries.items() if value is not None}


def check_model(model: Any) -> None:
    """Raises TypeError unless a model is one of this package or has such a layer inside, with a graph."""
    known = isinstance(model, keras.Model) and has_graph(model)
    inside = layers_inside(model) if known else []
    if not any(type(layer).__module__.startswith("keras_vit.") for layer in inside):
        raise TypeError(
            "model must be a VisionTransformer or BiT, a dense model, a text tower, a functional or sequential one "
            f"with such inside, or a name, but a {type(model).__name__} was given. Of a subclassed model, export the "
            "model inside."
        )
    shapes = [tuple(images.shape) for images in model.inputs]
    if len(shapes) != 1 or (len(shapes[0]) != 4 and not isinstance(model, TextEncoder)):
        raise ValueError(f"model must have one input, images (batch, height, width, channels), but it has {shapes}.")
    if isinstance(model, AnomalyDetector) and model.config.masking:
        raise ValueError(f"{model.name} has masking=True, which no file can compute. Fit it with masking=False.")
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
    """Returns the model itself where it computes in float32 and has no adapters; otherwise a copy that does."""
    layers = layers_inside(model)
    ours = isinstance(model, (VisionTransformer, BiT, DenseModel, TextEncoder))
    if any(map(has_adapters, layers)):
        if not ours:
            raise ValueError(
                f"{model.name} has LoRA adapters in a model inside it. Merge them with "
                "keras_vit.training.merge_lora(backbone), and build the model around the result."
            )
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
    if isinstance(layer, keras.Model):
        return plain_model(layer)
    return type(layer).from_config(_config_in_float32(layer.get_config()))


def _config_in_float32(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: "float32" if key == "dtype" else _config_in_float32(value) for key, value in config.items()}
    return [*map(_config_in_float32, config)] if isinstance(config, list) else config


def served_model(model: keras.Model) -> keras.Model:
    """Returns what a file holds of a `plain_model`: without parts for training, kernels of ResNets standardised."""
    if not isinstance(model, (VisionTransformer, BiT)):
        return model
    config = model.config
    changes: dict[str, Any] = {name: value for name, value in TRAINING.items() if hasattr(config, name)}
    if changes and config.replace(**changes) != config:
        model = model.with_config(dtype="float32", **changes)
    has_resnet = isinstance(config, BiTConfig) or config.stem_stages is not None
    return model.folded() if has_resnet else model


def serve(model: keras.Model, signature: Signature, images: Tensor) -> dict[str, Tensor]:
    """Returns what every exported file computes: the model's outputs by name, for images as the signature says."""
    given = images
    if signature.input == IDS:  # runtimes differ in what they do with ids outside the vocabulary
        images = keras.ops.clip(given, 0, max(signature.value_range or ()))
    else:
        images = keras.ops.cast(images, "float32")
    if signature.scale is not None:
        scale, offset = (np.array(values, "float32") for values in (signature.scale, signature.offset))
        images = keras.ops.add(keras.ops.multiply(images, scale), offset)
    answers = keras.tree.flatten(model(images, training=False))
    if signature.threshold is not None:  # of `map` and `score`
        is_above = keras.ops.less(np.float32(signature.threshold), answers[1])
        answers = [keras.ops.cast(is_above, "float32"), *answers]
    if signature.softmax:
        answers = [keras.ops.softmax(answer) for answer in answers]
    if signature.input == IDS:
        unknown = keras.ops.any(keras.ops.not_equal(given, images), axis=1, keepdims=True)
        answers = [keras.ops.where(unknown, np.float32("nan"), answer) for answer in answers]
    return dict(zip(signature.outputs, answers, strict=True))


def answers_of(model: keras.Model, signature: Signature, images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the outputs of a model for images, float32, by their names in the file, after its softmax if any."""
    answers = keras.tree.flatten(model.predict(images, batch_size=32, verbose=0))
    answers = [np.asarray(answer, "float32") for answer in answers]
    if signature.threshold is not None:
        answers = [(answers[1] > signature.threshold).astype("float32"), *answers]
    if signature.softmax:
        answers = [softmax(answer) for answer in answers]
    return dict(zip(signature.outputs, answers, strict=True))


# Images: those that the outputs are compared on, and those that int8 is calibrated with.


def built_in_images(signature: Signature, size: Any) -> np.ndarray:
    """Returns images to compare outputs on, uint8 `(8, *size, channels)`, smooth ones and noise in turn."""
    rng = np.random.default_rng(0)
    (height, width), channels = size, signature.shape[3]
    noise = rng.uniform(0, 256, (BUILT_IN, height, width, channels))
    # Mixtures of four corners, which change slowly from one to the other.
    rows, columns = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[:, None]
    for image, (a, b, c, d) in zip(noise[0::2], rng.uniform(0, 256, (BUILT_IN // 2, 4, channels)), strict=True):
        image[:] = (1 - rows) * ((1 - columns) * a + columns * b) + rows * ((1 - columns) * c + columns * d)
    return noise.astype("uint8")  # the first one, which is run alone, is smooth


def another_size(config: Config) -> tuple[int, int]:
    """Returns a size (height, width), larger than the config's, that a model for any size takes as well."""
    if isinstance(config, BiTConfig):
        return (config.image_size[0] + 32, config.image_size[1] + 64)
    rows, columns = config.grid_size
    return config.image_size_of((rows + 1, columns + 2))


def comparison_images(name: str, images: ArrayLike, signature: Signature) -> np.ndarray:
    """Returns images as float32 if they are floats, as the model takes them, and as uint8 if they are integers."""
    images = to_numpy(images)
    size = "(n, height, width, channels)" if signature.any_size else f"(n, {', '.join(map(str, signature.shape[1:]))})"
    expected = f"{name} must be uint8 or float32 {size}"
    if images.dtype.kind not in "uif":
        raise TypeError(f"{expected}, but their dtype is {images.dtype}.")
    lengths = zip(signature.shape[1:], images.shape[1:], strict=False)
    if images.ndim != 4 or not images.size or any(known not in (None, length) for known, length in lengths):
        raise ValueError(f"{expected}, but the shape {images.shape} was given. model.preprocess(images) resizes them.")
    floats, low, high = images.dtype.kind == "f", images.min(), images.max()
    if floats and signature.dtype == "uint8":
        raise ValueError(f"{name} must be uint8 pixels, which the file takes, but {images.dtype} was given.")
    if floats and not max(abs(low), abs(high)) <= np.finfo("float32").max:
        raise ValueError(f"{name} must be finite in float32, but some of the values are NaN, infinite or beyond it.")
    if not floats and not 0 <= low <= high <= 255:
        raise ValueError(f"{name} must be in 0..255, but reach from {low} to {high}.")
    return images.astype("float32" if floats else "uint8")


def calibration_images(source: Any, config: Config | None, signature: Signature) -> np.ndarray:
    """Returns calibration images, uint8 or float32: their range decides how finely int8 tells values apart."""
    alike = isinstance(source, list) and not is_pipeline(source) and len({np.shape(image) for image in source}) == 1
    if not (alike or hasattr(source, "__array__")):
        if config is None:
            raise ValueError("calibration must be an array: the model does not say how pictures are resized.")
        source = _resized(source, config)
    images = comparison_images("calibration", source, signature)
    if len(images) < FEWEST:
        raise ValueError(f"calibration must be at least {FEWEST} images; given: {len(images)}.")
    low, high = signature.value_range or (-np.inf, np.inf)
    margin = 1e-3 * (high - low) if signature.value_range else 0  # for rounding, and for filters that overshoot
    if images.dtype.kind == "f" and not low - margin <= images.min() <= images.max() <= high + margin:
        raise ValueError(
            f"calibration must be in {low}..{high}, but reaches from {images.min():g} to {images.max():g}. Pixels "
            "of 0..255 have to be uint8, or go through model.preprocess(images)."
        )
    spread = np.ptp(images.reshape(len(images), -1).astype("float64"), axis=1)
    whole = 255 if images.dtype == "uint8" else high - low if signature.value_range else spread.max()
    varied = int(np.count_nonzero(spread > CONTRAST * whole))
    if varied < FEWEST:
        raise ValueError(
            f"calibration must be at least {FEWEST} images with contrast, but only {varied} of {len(images)} have it: "
            "images of one colour do not show int8 the ranges of values."
        )
    return images


def _resized(source: Any, config: Config) -> np.ndarray:
    """Returns up to 300 images of what `open_data` takes, as the config's pipeline resizes them, uint8."""
    split = "test" if is_pipeline(source) else "train"  # in which a pipeline ends when it has yielded all
    source = itertools.islice(one_pass(source), MOST) if split == "test" and has_no_end(source) else source
    options: dict[str, Any] = {"resize": config.pipeline, "channels": config.channels, "target": "none"}
    images: list[np.ndarray] = []
    with open_data(source, image_size=config.image_size, batch_size=1, split=split, shuffle=False, **options) as stream:
        count = MOST if stream.examples is None else min(MOST, stream.examples)
        # Evenly from all of them where their number is known: the first ones may be of one class.
        for step in np.linspace(0, (stream.examples or count) - 1, count).astype(int).tolist():
            try:
                images.append(stream.batch(step)[0])
            except IndexError:
                break
    return _as_pixels(np.concatenate(images)[:count])


def check_labels(labels: np.ndarray | None, images: np.ndarray, classes: int | None) -> None:
    """Raises ValueError unless labels are `(n,)` integers below `classes`, one for each image; also without classes."""
    if labels is None:
        return
    if not classes:
        raise ValueError("labels were given, but the model does not name one class for each image.")
    fits = labels.shape == (len(images),) and labels.dtype.kind in "iu"
    if not fits or labels.min() < 0 or labels.max() >= classes:
        reach = f"{labels.min()}..{labels.max()}" if fits else f"{labels.dtype} {labels.shape}"
        raise ValueError(f"labels must be {len(images)} integers in 0..{classes - 1}, but {reach} were given.")


def as_model_input(images: np.ndarray, dtype: str, config: Config | None) -> np.ndarray:
    """Returns images, uint8 pixels or float32, as the input of a file or model that takes `dtype`.

    Other pixels become float32, normalised as the config says unless the model does that itself; without a config they
    stay in 0..255.
    """
    if images.dtype != "uint8" or dtype == "uint8":
        return images
    pixels = images.astype("float32")
    return pixels if config is None or config.include_preprocessing else config.pipeline.normalized(pixels)


class Compared(NamedTuple):
    """The images that a file's outputs are compared on, and those that it is calibrated with."""

    images: list[np.ndarray]  # arrays of images of one size each, uint8 or float32
    labels: np.ndarray | None  # the classes of those in the first array
    calibration: np.ndarray | None  # as the file's input
    config: Config | None  # says how the model's images are normalised; None where nothing does

    def taken(self, dtype: str) -> list[np.ndarray]:
        """The arrays of images as the input of a file or model that takes `dtype`."""
        return [as_model_input(batch, dtype, self.config) for batch in self.images]


def compared_images(
    model: keras.Model, signature: Signature, images: ArrayLike | None, labels: ArrayLike | None, calibration: Any
) -> Compared:
    """Returns the images to compare file and model on, with their labels, and the images to calibrate with."""
    if labels is not None and images is None:
        raise ValueError("labels need images=..., the images that they belong to.")
    config: Any = input_config(model)
    calibrated = None
    if images is not None:
        images = comparison_images("images", images, signature)
    if calibration is not None:
        calibration = calibration_images(calibration, config, signature)
        held = np.arange(len(calibration)) % 4 == 3  # every fourth is not calibrated with, if enough remain
        if np.count_nonzero(~held) < FEWEST:
            held[:] = False
        calibrated = as_model_input(calibration[~held], signature.dtype, config)
        if images is None:  # real ones, which noise is not
            images = np.concatenate([calibration[held], calibration[~held]])[:COMPARED]
    if images is None:
        images = built_in_images(signature, config.image_size if signature.any_size else signature.shape[1:3])
    batches = [images]
    if signature.any_size:
        batches.append(built_in_images(signature, another_size(config))[:2])
    return Compared(batches, None if labels is None else to_numpy(labels), calibrated, config)


def labelled_pictures(
    folder: str | os.PathLike[str], model: VisionTransformer | BiT | DenseModel, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns pictures of a folder, uint8 `(n, height, width, channels)`, and labels `(n,)`, None if one has none."""
    folder = expanded_path(folder)
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"The folder of pictures {folder} does not exist. Check the path.")
    if has_test_split(folder):
        folder = split_folders(Path(folder), class_names)["test"]
    paths, config = image_files(folder), input_config(model)
    if not paths or config is None:
        raise ValueError(f"{folder} has no pictures ({', '.join(sorted(IMAGE_SUFFIXES))}). Check the path.")
    images = _as_pixels(np.stack([config.pipeline.resized(path, config.channels)[0] for path in paths]))
    folders = [path.relative_to(folder).parts[:-1] for path in paths]
    classes = classes_of(model) if len(model.outputs[0].shape) == 2 else None
    if () in folders or classes is None:
        return images, None
    names = sorted({parts[0] for parts in folders})
    if class_names is None and len(names) != classes:
        raise ValueError(
            f"{folder} has {len(names)} folders, but {model.name} has {classes} classes without names. Pass "
            "class_names=[...], or a folder of pictures without folders."
        )
    outputs = np.arange(len(names)) if class_names is None else match_labels(names, class_names, str(folder))
    return images, outputs[[names.index(parts[0]) for parts in folders]]


def _as_pixels(images: np.ndarray) -> np.ndarray:
    """Returns resized images as uint8, without what a filter overshoots; ValueError for values far above 255."""
    if images.max() > 255 + OVERSHOOT:  # of other channels than red, green and blue
        raise ValueError(
            f"Pictures must have values from 0 to 255, but their largest is {images.max():g}. Pass an array of "
            "normalised images instead: model.preprocess(images)."
        )
    return np.rint(images.clip(0, 255)).astype("uint8")
