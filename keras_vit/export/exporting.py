"""`export`: from a model on any backend to a checked file, and `ExportReport`: what it wrote and measured."""

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console

from keras_vit.export.destination import check_destination, place, size_of, workspace
from keras_vit.export.formats import format_of
from keras_vit.export.formats.format import Format, require
from keras_vit.export.images import (
    another_size,
    as_taken,
    built_in_images,
    calibration_images,
    check_images,
    check_labels,
)
from keras_vit.export.served_model import INPUT, Model, Signature, check_model, describe, plain_model, served_model
from keras_vit.export.verification import Agreement, run_in_fresh_process
from keras_vit.export.writing_process import Job, write_anywhere
from keras_vit.models import ModelConfig, VisionTransformer
from keras_vit.tables import as_text, megabytes, pairs_table

COMPARED = 64  # calibration images that answers are compared on where no others are given


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What was written, and what was measured on it in a fresh process. Printing it draws a table.

    Attributes:
        format: A key of `FORMATS`.
        path: The file or folder.
        precision: What it computes in.
        bytes: Its size, with files beside it.
        batch: Images at a time; None for any number.
        input: Name, dtype, shape and value range of the input, in words.
        output: Name of the answers.
        operators: Names of the operators that it uses.
        select_operators: Those among them that the runtime does not bring (LiteRT's Flex operators, for example).
        images: How many images were compared.
        max_abs_error: Largest difference between the answers of the file and of the model in float32.
        mean_abs_error: Mean difference.
        tolerance: What the largest difference was allowed to be.
        top1_agreement: Share of the images for which both name the same class; None without classes.
        accuracy: The file's accuracy on the labels that were given; None without labels.
        model_accuracy: The model's accuracy on them.
        load_seconds: From opening the file to its first answer, without importing the runtime.
        latency_ms: Median time of an answer to `batch` images, or to one; None if it was not measured.
        peak_memory_bytes: Most memory while loading and answering `batch` images, or one, above what the runtime
            takes without a file; None where the system does not tell.
        seconds: What the export took.

    Examples:
        >>> [name for name in export.ExportReport.__dataclass_fields__ if name.endswith("_error")]
        ['max_abs_error', 'mean_abs_error']
    """

    format: str
    path: str
    precision: str
    bytes: int
    batch: int | None
    input: str
    output: str
    operators: tuple[str, ...]
    select_operators: tuple[str, ...]
    images: int
    max_abs_error: float
    mean_abs_error: float
    tolerance: float
    top1_agreement: float | None
    accuracy: float | None
    model_accuracy: float | None
    load_seconds: float
    latency_ms: float | None
    peak_memory_bytes: int | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        return as_text(self, 120)

    def __rich__(self) -> Any:
        """The table that rich draws, for a terminal of any width."""
        return pairs_table(self.path, dict(self._rows()))

    def _rows(self) -> list[tuple[str, str | None]]:
        def share(value: float | None) -> str | None:
            return None if value is None else f"{100 * value:.2f} %"

        accuracy = None
        if self.accuracy is not None:
            accuracy = f"{share(self.accuracy)} (the model: {share(self.model_accuracy)})"
        latency = None
        if self.latency_ms is not None:
            latency = f"{self.latency_ms:.2f} ms for a batch of {self.batch or 1}"
        outside = ", ".join(self.select_operators)
        return [
            ("format", f"{self.format}, {self.precision}"),
            ("size", megabytes(self.bytes)),
            ("input", self.input),
            ("output", self.output),
            ("largest difference", f"{self.max_abs_error:.1e} (allowed: {self.tolerance:.1e}), {self.images} images"),
            ("mean difference", f"{self.mean_abs_error:.1e}"),
            ("same top class", share(self.top1_agreement)),
            ("accuracy", accuracy),
            ("load", f"{self.load_seconds:.2f} s to the first answer"),
            ("latency", latency),
            ("memory", None if self.peak_memory_bytes is None else f"{megabytes(self.peak_memory_bytes)} at most"),
            ("operators", ", ".join(self.operators)),
            ("outside the runtime", outside or "none"),
            ("export took", f"{self.seconds:.1f} s"),
        ]


def export(
    model: Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    precision: str = "float32",
    batch_size: int | None = None,
    uint8_input: bool = False,
    softmax: bool = False,
    class_names: Sequence[str] | None = None,
    source: str | None = None,
    images: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    calibration: Any = None,
    allow_select_ops: bool = False,
    tolerance: float | None = None,
    measure: bool = True,
    overwrite: bool = False,
) -> ExportReport:
    """Writes a model to a file that runs without Keras, and checks that it gives the same answers.

    Each format is written by one framework; under another backend that happens in a second process, so the framework
    has to be installed as well. The file is loaded by its own runtime in a fresh process, run with a batch of 1 and,
    where it takes any, of 7, and compared with the model. Only then does it appear at `path`.

    Args:
        model: A `VisionTransformer` or `BiT`, trained on any backend in any precision.
        path: The file to write; for `"saved_model"`, the folder. OpenVINO's second file lies beside it.
        format: A key of `FORMATS`: `"saved_model"`, `"litert"`, `"onnx"`, `"openvino"`, `"torch"` or `"stablehlo"`;
            None for the one that the path's suffix belongs to.
        precision: `"float32"` or another one that the format has (see `keras_vit.export.PRECISIONS`).
        batch_size: Images at a time; None for any number.
        uint8_input: Whether the file takes uint8 pixels of 0..255 and scales them itself.
        softmax: Whether the file answers with probabilities where the model has logits.
        class_names: One for each class, in order, to be stored in the file; None for those of `model.config`.
        source: The checkpoint that the weights came from, to be stored in the file.
        images: Images to compare the answers on, `(n, height, width, channels)`: uint8 pixels, or float32 as the
            model takes them. None for built-in ones.
        labels: `(n,)` integers, the classes of `images`: the report then has the accuracy of file and model.
        calibration: Images like those of later, for precisions that need some to see the ranges of values: an array
            like `images`, a folder of pictures, or labelled images as `keras_vit.data.open_data` takes them, whose
            labels do not matter. At least 8; 100 to 300 are a good number. Without `images`, answers are compared on
            up to 64 of them.
        allow_select_ops: Whether the file may use operators that the runtime does not bring, such as LiteRT's Flex
            operators; they need further libraries where the file is used.
        tolerance: Largest difference between file and model that is accepted, in relation to the largest answer of
            the model or to 1; None for the precision's in `keras_vit.export.TOLERANCES`. Whatever it is, 95 % of the
            images have to keep their class, but for those that the model itself is undecided about.
        measure: Whether the time of an answer is measured (about a second).
        overwrite: Whether something at `path` may be replaced. It is replaced only when the new file is good.

    Returns:
        An `ExportReport`: what was written, how it agrees with the model, and what it costs to run.

    Raises:
        TypeError: if `model` is no model of this package, or an argument has a wrong type.
        ValueError: if an argument makes no sense, the format cannot hold the model, or weights are not finite.
        FileExistsError: if there is something at `path` and `overwrite` is False.
        ImportError: if a package is missing that the format needs.
        OSError: if the file cannot be written.
        RuntimeError: if the conversion fails, the file needs operators that the runtime does not bring, or the
            answers differ by more than the tolerance. No file is left.

    Examples:
        >>> print(export.export(small, "small.pt2", batch_size=1, uint8_input=True, measure=False).output)
        logits
    """
    started = time.perf_counter()
    path = Path(path)
    row = format_of(path, format)
    check_model(model)
    _check_options(row, model, precision, batch_size, calibration, tolerance)
    names = _class_names(model.config, class_names)
    check_destination(path, row, overwrite)
    require(f"The format {row.name!r}", row.needs, row.extra)
    reference = plain_model(model)
    served = served_model(reference, uint8=uint8_input, softmax=softmax)
    signature = Signature.of(served, batch_size, uint8_input)
    if calibration is not None:
        calibration = calibration_images(calibration, model, signature)
    batches, labels = _batches(model, signature, images, labels, calibration)
    expected = [_answers(reference, batch, softmax) for batch in batches]
    inputs = [as_taken(batch, signature.dtype, served.config) for batch in batches]
    if calibration is not None:
        calibration = as_taken(calibration, signature.dtype, served.config)
    job = Job(row.name, precision, signature, describe(model, signature, precision, names, source))
    status = Console(stderr=True).status(f"Exporting {model.name} to {path.name} ...")
    try:
        with status, workspace(path) as folder:
            written = folder / f"exported{row.suffix}"
            operators = write_anywhere(served, job, calibration, written)
            if operators["select"] and not allow_select_ops:
                raise RuntimeError(
                    f"The {row.name} file would need operators that its runtime does not bring: "
                    f"{', '.join(operators['select'])}. Pass allow_select_ops=True if they are there where it will be "
                    "used."
                )
            status.update(f"Checking {path.name} ...")
            answers, measured = run_in_fresh_process(row, written, inputs, batch_size, measure)
            agreement = Agreement.of(answers, expected, bool(model.config.classes))
            limit = agreement.require(row.name, precision, tolerance)
            size = size_of(written, row)
            place(written, path, row, folder)
    except (OSError, RuntimeError) as error:
        # Its own kind again, with what it means for the user.
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = f"{text}{'' if text.endswith('.') else '.'} Nothing was written to {path}."
        raise (OSError(error.errno, text) if isinstance(error, OSError) else RuntimeError(text)) from error
    accuracy = [None, None]
    if labels is not None:
        accuracy = [float(np.mean(each[0].argmax(-1) == labels)) for each in (answers, expected)]
    return ExportReport(
        format=row.name,
        path=str(path),
        precision=precision,
        bytes=size,
        batch=batch_size,
        input=_spell(signature),
        output=signature.output,
        operators=tuple(operators["operators"]),
        select_operators=tuple(operators["select"]),
        images=sum(map(len, batches)),
        max_abs_error=agreement.max_abs_error,
        mean_abs_error=agreement.mean_abs_error,
        tolerance=limit,
        top1_agreement=agreement.top1_agreement,
        accuracy=accuracy[0],
        model_accuracy=accuracy[1],
        load_seconds=measured["load_seconds"],
        latency_ms=measured.get("latency_ms"),
        peak_memory_bytes=measured["peak_memory_bytes"],
        seconds=time.perf_counter() - started,
    )


def _check_options(
    row: Format, model: Model, precision: str, batch_size: int | None, calibration: Any, tolerance: float | None
) -> None:
    needs_images = row.precision(precision).calibration
    if needs_images != (calibration is not None):
        raise ValueError(
            f"The precision {precision!r} of {row.name!r} needs calibration images: calibration=images."
            if needs_images
            else f"calibration was given, but the precision {precision!r} needs no images: leave it out."
        )
    if batch_size is not None and (isinstance(batch_size, bool) or not hasattr(batch_size, "__index__")):
        raise TypeError(f"batch_size must be an integer, or None for any number, but {batch_size!r} was given.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but {batch_size} was given.")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be above 0, but {tolerance!r} was given.")
    if row.any_size and model.config.dynamic and isinstance(model, VisionTransformer):
        raise ValueError(
            f"{model.name} takes images of any size, which the format {row.name!r} cannot express: {row.any_size}. "
            "Fix the size first: model.with_image_size(224)."
        )
    weights = 4 * model.count_params()
    if row.largest and weights >= row.largest:
        raise ValueError(
            f"{model.name} has {weights / 1e9:.1f} GB of weights; a {row.name} file can hold {row.largest / 1e9:.1f} "
            "GB. The formats 'saved_model', 'openvino' and 'torch' can hold more."
        )


def _class_names(config: ModelConfig, class_names: Sequence[str] | None) -> list[str] | None:
    """The names that the file shall have: the given ones, or else the model's."""
    if class_names is not None:
        config = config.replace(class_names=class_names)  # which checks them
    return list(config.class_names) if config.class_names else None


def _batches(
    model: Model,
    signature: Signature,
    images: ArrayLike | None,
    labels: ArrayLike | None,
    calibration: np.ndarray | None,
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The images to compare answers on, in arrays of one size each, and the labels of the first."""
    if images is not None:
        images = check_images("images", images, signature)
    elif labels is not None:
        raise ValueError("labels were given without the images that they belong to.")
    elif calibration is not None:  # real ones, which noise is not
        images = calibration[:: -(-len(calibration) // COMPARED)]
    else:
        images = built_in_images(signature, model.config.image_size)
    if labels is not None:
        labels = check_labels(labels, images, signature, model.config)
    if signature.any_size:
        return [images, built_in_images(signature, another_size(model))[:2]], labels
    return [images], labels


def _answers(model: Model, images: np.ndarray, softmax: bool) -> np.ndarray:
    """What a model answers to uint8 pixels or to images as it takes them."""
    inputs = as_taken(images, "float32", model.config)
    answers = np.asarray(model.predict(inputs, batch_size=32, verbose=0), "float32")
    if softmax and model.config.classifier_activation != "softmax":
        powers = np.exp(answers - answers.max(-1, keepdims=True))
        answers = powers / powers.sum(-1, keepdims=True)
    return answers


def _spell(signature: Signature) -> str:
    shape = ", ".join("any" if n is None else str(n) for n in signature.shape)
    low, high = signature.value_range
    return f"{INPUT}: {signature.dtype} ({shape}), {low:.4g}..{high:.4g}"
