"""`export`: from a model on any backend to a checked file, and `ExportReport`: what it wrote and measured."""

import collections
import contextlib
import dataclasses
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console

from keras_vit._arguments import Source, require_packages
from keras_vit._files import check_folder, make_folder
from keras_vit._options import Above0, OneOf, Options, Whole, check, option
from keras_vit._terminal import PlainData, as_text, megabytes, pairs_table
from keras_vit.export import served_model as served
from keras_vit.export import towers
from keras_vit.export.float16 import LARGEST, TOLERANCE, distance
from keras_vit.export.format import Answers, Format, as_files
from keras_vit.export.formats import FORMATS, format_of
from keras_vit.export.processes import Job, run_in_fresh_process, write_anywhere
from keras_vit.models import AnomalyDetector, ViTConfig
from keras_vit.text import ImageText
from keras_vit.zoo import load

# Largest difference to the model in relation to the size of its outputs, or to 1 where they are smaller. That of
# float32 files is 1e-5 or less: the order of sums. That of int8 is twice the largest error that
# docs/exports.md lists.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "dynamic_int8": 1e-1, "int8": 2e-1}
"""Largest difference between file and model that `export` accepts, by precision, in relation to the model's outputs.

Examples:
    >>> export.TOLERANCES["float32"]
    0.0001
"""
# Share of the images that have to keep their class, and how far below its best the model itself may see the file's
# class, in relation to the size of the outputs: between such two it has not decided.
KEPT, UNDECIDED = 0.95, 0.05
_NO_COMPARISON = "The model answers with one number everywhere, as with a new head: the comparison shows nothing."
_OF_IMAGES = {"input": (served.INPUT,)}  # where options apply that a text tower has no use for
_NO_TOKENIZER = "No tokenizer lies beside the file: pair=... with a tokenizer writes it."
NAMED = 0.8  # share of the images that have to keep their class however undecided the model is
_ADVICE = {
    "float16": " The precision float32 may help.",
    "dynamic_int8": " The precision float16 may help.",
    "int8": " The precision dynamic_int8 may help, or fewer unusual calibration images.",
}


@dataclasses.dataclass(frozen=True)
class ExportReport(PlainData):
    """Result of `export`, measured on the file in a new process. Printing it draws a table.

    Attributes:
        format: A key of `FORMATS`.
        path: The file or folder.
        precision: Its precision.
        bytes: Its size, with files beside it.
        batch: Images at a time; None for any number.
        input: Name, dtype, shape and value range of the input, in words.
        output: Name of the outputs; of several, with commas between them.
        operators: Names of the operators that it uses, where a runtime may lack some: LiteRT, ONNX, OpenVINO.
        select_operators: Those among them that the runtime does not bring (LiteRT's Flex operators, for example).
        images: How many images, or texts, were compared.
        max_abs_error: Largest difference to the model in float32; of several outputs, of the one nearest its tolerance;
            of embeddings, which have the length 1, the length of the difference.
        mean_abs_error: Mean difference.
        tolerance: Largest difference that was allowed.
        top1_agreement: Share of the images for which file and model predict the same class; None without classes.
        accuracy: The file's accuracy on the labels that were given; None without labels.
        model_accuracy: The model's accuracy on these labels.
        load_seconds: Time from opening the file to its first outputs, without importing the runtime.
        latency_ms: Median time to run `batch` images, or one; None if it was not measured.
        seconds: Duration of the export.
        cosine: The smallest cosine between an embedding of the file and the model's; None without embeddings.
        note: Limits of this check or the file, such as a new head whose outputs are all zero; None if there are none.
        gpu: A text with the number of operators that a phone's GPU runs by LiteRT's rules, and the reasons for the
            rest; `"not looked at"` for other formats.
        gpu_operators: That number; None for other formats.
        not_on_gpu: Operator, layer and reason for each operator that the GPU does not run.
        float16: Whether the file was computed in float16, operator by operator, and why not.
        float16_error: Largest difference to the model in this computation, relative to the model's largest output.
        float16_loud_error: The same with 300 added to one channel before each normalisation.
        float16_top1: Share of these images with the same predicted class; None without classes.
        float16_peak: The largest magnitude in this computation; float16 ends at 65504.

    Examples:
        >>> [name for name in export.ExportReport.__dataclass_fields__ if name.endswith("_error")]
        ['max_abs_error', 'mean_abs_error', 'float16_error', 'float16_loud_error']
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
    seconds: float
    cosine: float | None = None
    note: str | None = None
    gpu: str = "not looked at"
    gpu_operators: int | None = None
    not_on_gpu: tuple[str, ...] = ()
    float16: str = "not checked"
    float16_error: float | None = None
    float16_loud_error: float | None = None
    float16_top1: float | None = None
    float16_peak: float | None = None

    def __str__(self) -> str:
        return as_text(self, 120)

    def __rich__(self) -> Any:
        """Returns the table that rich draws, for a terminal of any width."""

        def percent(share: float | None) -> str | None:
            return None if share is None else f"{100 * share:.2f} %"

        compared = f"{self.images} images{'' if self.cosine is None else ' or texts'}"
        labelled = self.accuracy is not None
        accuracy = f"{percent(self.accuracy)} (the model: {percent(self.model_accuracy)})" if labelled else None
        return pairs_table(
            self.path,
            {
                "format": f"{self.format}, {self.precision}",
                "size": megabytes(self.bytes),
                "input": self.input,
                "output": self.output,
                "largest difference": f"{self.max_abs_error:.1e} (allowed: {self.tolerance:.1e}), {compared}",
                "mean difference": f"{self.mean_abs_error:.1e}",
                "smallest cosine": self.cosine and f"{self.cosine:.6f}",
                "same top class": percent(self.top1_agreement),
                "accuracy": accuracy,
                "load": f"{self.load_seconds:.2f} s to the first answer",
                "latency": self.latency_ms and f"{self.latency_ms:.2f} ms for a batch of {self.batch or 1}",
                "operators": ", ".join(self.operators),
                "outside the runtime": ", ".join(self.select_operators) or "none",
                "on a phone's GPU": self.gpu,
                "in float16": self.float16,
                "export took": f"{self.seconds:.1f} s",
                "note": self.note,
            },
        )


def differences(
    outputs: list[np.ndarray],
    expected: list[np.ndarray],
    classes: bool,
    format: str,
    precision: str,
    tolerance: float | None = None,
    vectors: bool = False,
) -> dict[str, Any]:
    """The fields of the report about one output of a file, for several batches; RuntimeError if it is too far off."""
    # NaN stays NaN here, and no tolerance holds for it. The numbers in unit vectors are too small to be compared alone.
    length = (lambda rows: np.linalg.norm(rows, axis=-1)) if vectors else np.abs
    errors = np.concatenate([length(a - b).ravel() for a, b in zip(outputs, expected, strict=True)])
    largest, size = float(errors.max()), max(1.0, *(float(np.max(np.abs(batch))) for batch in expected))
    limit = (TOLERANCES[precision] if tolerance is None else tolerance) * size
    if not largest <= limit:
        raise RuntimeError(
            f"The {format} file does not return the outputs of the model: they differ by up to {largest:.1e}, more "
            f"than the {limit:.1e} that {precision} may explain.{_ADVICE.get(precision, '')}"
        )
    found = {"max_abs_error": largest, "mean_abs_error": float(errors.mean()), "tolerance": limit}
    if vectors:
        found["cosine"] = float(min(np.sum(a * b, -1).min() for a, b in zip(outputs, expected, strict=True)))
    if not classes:
        return found | {"top1_agreement": None}
    below_best, ranges = [], []  # by how much the model itself sees the file's class below its best; its range
    for scores_of_file, scores in zip(outputs, expected, strict=True):
        chosen = np.take_along_axis(scores, scores_of_file.argmax(-1)[..., None], -1)[..., 0]
        below_best.append((scores.max(-1) - chosen).ravel())
        ranges.append(np.ptp(scores, axis=-1).ravel())
    below = np.concatenate(below_best)
    top1, kept = float(np.mean(below == 0)), float(np.mean(below <= UNDECIDED * np.concatenate(ranges)))
    if kept < KEPT or top1 < NAMED:
        decided = kept < KEPT
        undecided = "" if decided else f", and {1 - NAMED:.0%} where the model is undecided"
        raise RuntimeError(
            f"The {format} file names another class than the model for {1 - (kept if decided else top1):.0%} of the "
            f"images, where {1 - KEPT:.0%} may change{undecided}.{_ADVICE.get(precision, '')}"
        )
    return found | {"top1_agreement": top1}


def _batch(name: str, value: Any) -> int | str:
    return value if value == "any" else Whole(1, ', or "any"')(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Keywords of `export`, besides its images.

    Attributes:
        precision: `"float32"` or another one that the format has (see `keras_vit.export.PRECISIONS`).
        batch_size: Images at a time; `"any"` for any number; None for one in a LiteRT file, otherwise any number.
        target: `"gpu"` for the GPU of a phone: a LiteRT file in float32 or float16, or an ONNX file in float16, for a
            fixed batch size, whose values stay in the range of float16. None for any processor.
        uint8_input: Whether the file takes uint8 pixels of 0..255 and scales them itself.
        softmax: Whether the file returns probabilities if the model returns logits.
        class_names: One for each class, in order, to be stored in the file; None for those of `model.config`.
        source: The checkpoint that the weights came from, to be stored in the file.
        allow_select_ops: Whether a LiteRT file may use operators that its runtime lacks (Flex operators).
        tolerance: Largest difference to the model, relative to its largest output or to 1; None for the value in
            `TOLERANCES`. In addition, 95 % of the images must keep their class, unless the model's two best classes are
            nearly equal.
        measure: Whether the time to run images is measured (about a second).
        overwrite: Whether something at `path` may be replaced. It is replaced only when the new file is good.

    Examples:
        >>> export.ExportOptions(target="gpu").precision
        'float32'
    """

    precision: str = "float32"
    batch_size: Annotated[int | str, _batch] | None = None
    target: Annotated[str | None, OneOf((None, "gpu"))] = option(None, when=_OF_IMAGES)
    uint8_input: bool = option(False, when=_OF_IMAGES)
    softmax: bool = option(False, when=_OF_IMAGES)
    class_names: Sequence[str] | None = option(None, when=_OF_IMAGES)
    source: str | None = None
    allow_select_ops: bool = option(False, when={"format": ("litert",)})
    tolerance: Above0 | None = None
    measure: bool = True
    overwrite: bool = False


def export(
    model: keras.Model | Source,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    images: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    calibration: Any = None,
    pair: ImageText | None = None,
    **options: Any,
) -> ExportReport:
    """Writes a model to a file that runs without Keras, and checks that it returns the same.

    Each format is written by one framework, which has to be installed; under another backend, a second process writes
    it. The format's own runtime runs the file in a new process. The file appears at `path` only if its outputs agree.

    Args:
        model: A `VisionTransformer`, `BiT` or dense model (`EoMT`, `LinearSegmenter`, `DPT`, `LinearDepth`,
            `Detector`, `AnomalyDetector`), of any backend and precision; a result of `feature_extractor`; a functional
            or sequential model with one inside; or a name, an address or a path as in `load`. A `TextEncoder` becomes a
            file from int32 ids `(batch, context)` to embeddings of length 1, or NaN for ids outside its vocabulary.
        path: The file to write; for `"saved_model"`, the folder. OpenVINO's second file lies beside it.
        format: A key of `FORMATS`: `"saved_model"`, `"litert"`, `"onnx"`, `"openvino"`, `"torch"` or `"stablehlo"`;
            None for the one that the path's suffix belongs to. A folder has no suffix, so that it has to be named.
        images: Images to compare the outputs on, `(n, height, width, channels)`: uint8 pixels, or float32 as the
            model takes them. None for built-in ones.
        labels: `(n,)` integers, the classes of `images`: the report then has the accuracy of file and model.
        calibration: Typical images, for precisions that need the ranges of values (int8): an array like `images`,
            a folder of pictures, or another source of `keras_vit.data.open_data`. At least 8; more
            are not always better. Without `images`, outputs are compared on up to 64 of them.
        pair: The `ImageText` that `model` is a tower of. The file then returns embeddings of length 1, and has the
            scale and bias of the logits in its metadata. Beside a text tower, `tokenizer.json` is written.
        **options: Those of `ExportOptions`: `precision`, `batch_size`, `target`, `uint8_input`, `softmax`,
            `class_names`, `source`, `allow_select_ops`, `tolerance`, `measure`, `overwrite`.

    Returns:
        An `ExportReport`: the file, its differences from the model, and its speed.

    Raises:
        TypeError, ValueError: if an argument is invalid, the format cannot hold the model, or the model is quantized
            or has weights that are not finite. In mixed precision, errors of a custom layer's `get_config` too.
        ImportError: if a package is missing that the format needs, or Pillow for pictures.
        OSError: if the model or a folder of images cannot be read, or the file cannot be written or is there already
            (FileExistsError; with `overwrite=True` for a folder of another format or of other things).
        RuntimeError: if the conversion fails, the file does not run or needs operators that the runtime does not bring,
            outputs differ by more than the tolerance, or too many images change their class. No file is left.

    Examples:
        >>> print(export.export(small, "small.pt2", batch_size=1, uint8_input=True, measure=False).output)
        logits
    """
    started = time.perf_counter()
    asked, path = ExportOptions().replace(**options), Path(path).expanduser()
    row = format_of(path, format)
    check(asked, {"format": row.name})
    if isinstance(model, (str, os.PathLike)):
        asked = asked.adapted(source=os.fspath(model) if asked.source is None else asked.source)
        model = load(model)
    served.check_model(model)
    of_images = {"images": images, "labels": labels, "calibration": calibration}
    check(asked, {"input": towers.check_tower(model, pair, asked.precision, of_images)})
    batch_size = _check_options(row, model, asked, calibration is not None)
    names = served.names_of_classes(model, asked.class_names)
    reference, precision = served.plain_model(model), asked.precision
    rounded = bool(asked.target) or precision == "float16"
    signature = served.Signature.of(reference, batch_size, asked.uint8_input, asked.softmax, rounded and row.gpu != ())
    signature, lean = towers.signature_of(model, pair, signature, (row.name, precision)), served.served_model(reference)
    if signature.outputs == towers.EMBEDDINGS:
        reference, lean = map(towers.with_unit_outputs, (reference, lean))
    words = towers.tokenizer_of(model, pair)
    metadata = served.describe(model, signature, precision, names, asked.source)
    job = Job(row.name, precision, signature, metadata | towers.describe_tower(model, pair, words))
    beside = _beside(path, model, job, words)
    _check_destination(row, [*row.files(path), *beside], asked.overwrite)
    compared = towers.compared_ids(model) or served.compared_images(model, signature, images, labels, calibration)
    classes = None if len(signature.outputs) > 1 else len(names) if names else served.classes_of(model)
    served.check_labels(compared.labels, compared.images[0], classes if len(model.outputs[0].shape) == 2 else None)
    expected = [served.answers_of(reference, signature, batch) for batch in compared.taken("float32")]
    try:
        with Console(stderr=True).status(f"Exporting to {path.name} ...") as status, _workspace(path) as temporary:
            written = Path(temporary, f"exported{row.suffix}")
            operators = write_anywhere(lean, job, compared.calibration, written)
            if operators["select"] and not asked.allow_select_ops:
                lacks = f"operators that its runtime lacks: {', '.join(operators['select'])}"
                raise RuntimeError(f"The {row.name} file needs {lacks}. Pass allow_select_ops=True.")
            status.update(f"Checking {path.name} ...")
            taken = compared.taken(signature.dtype)
            answers, measured = run_in_fresh_process(row, written, taken, batch_size, asked.measure, rounded)
            answers = [_named(batch, signature) for batch in answers]
            found = _in_float16(answers.pop(), expected[0], measured, row, asked, classes) if rounded else {}
            found |= _agreement(answers, expected, row, asked, classes, compared.labels)
            new = [*zip(row.files(written), row.files(path), strict=True)]
            _place(new + _written_beside(beside, Path(temporary)), Path(temporary))
    except (OSError, RuntimeError) as error:
        raise _nothing_written(error, path) from error
    return ExportReport(
        format=row.name,
        path=str(path),
        precision=precision,
        bytes=_size_of(row.files(path)),
        batch=batch_size,
        input=signature.describe_input(),
        output=", ".join(signature.outputs),
        images=sum(map(len, compared.images)),
        load_seconds=measured["load_seconds"],
        latency_ms=measured.get("latency_ms"),
        seconds=time.perf_counter() - started,
        note=_note(row, expected, _NO_TOKENIZER if signature.input == served.IDS and words is None else None),
        **_operators(operators),
        **found,
    )


def _beside(path: Path, model: keras.Model, job: Job, tokenizer: str | None) -> dict[Path, str]:
    """Returns the texts that lie beside a file: a tokenizer, unless it is there, or what an anomaly detector says."""
    if isinstance(model, AnomalyDetector):
        return {path.with_name(f"{path.name}.json"): as_files(job.metadata)["keras_vit.json"]}
    place = path.with_name(towers.TOKENIZER)
    is_there = tokenizer is None or (place.is_file() and place.read_bytes() == tokenizer.encode())
    return {} if is_there else {place: tokenizer}


def _written_beside(texts: dict[Path, str], folder: Path) -> list[tuple[Path, Path]]:
    """Writes texts into a folder for now, and returns for each where it is and where it goes."""
    for place, text in texts.items():
        (folder / place.name).write_text(text, encoding="utf-8")
    return [(folder / place.name, place) for place in texts]


def _note(row: Format, expected: list[Answers], of_tower: str | None) -> str | None:
    is_one_value = all(np.ptp(values) == 0 for batch in expected for values in batch.values())
    return " ".join(filter(None, (_NO_COMPARISON if is_one_value else None, row.note, of_tower))) or None


def _named(answers: Answers, signature: served.Signature) -> Answers:
    single = len(signature.outputs) == 1 and answers
    return dict(zip(signature.outputs, answers.values(), strict=True)) if single else answers


def _operators(found: dict[str, Any]) -> dict[str, Any]:
    """The fields of the report about operators and the GPU of a phone, from what `processes.write` returned."""
    names = {"operators": tuple(found["operators"]), "select_operators": tuple(found["select"])}
    if found["gpu"] is None:
        return names
    count, off = found["gpu"]
    reasons = collections.Counter(line.partition(": ")[2] for line in off)
    words = [f"{count - len(off)} of {count} operators", *(f"{times} x {why}" for why, times in reasons.items())]
    return names | {"gpu": "; ".join(words), "gpu_operators": count - len(off), "not_on_gpu": tuple(off)}


def _in_float16(
    answers: Answers, expected: Answers, measured: Any, row: Format, asked: ExportOptions, classes: int | None
) -> dict[str, Any]:
    """The fields of the report about float16; RuntimeError for answers that are too far from the model's there."""
    found = measured["float16"]
    if "why" in found:
        return {"float16": f"not checked: {found['why']}"}
    count = len(next(iter(answers.values())))
    expected = {name: values.take(range(count), axis=0, mode="wrap") for name, values in expected.items()}
    _check_decisions([answers], [expected], row)
    error, loud, limit = distance(answers, expected), found["loud"], max(TOLERANCE, asked.tolerance or 0)
    top1 = [float(np.mean(answers[name].argmax(-1) == expected[name].argmax(-1))) for name in expected]
    peak = f"{found['peak']:.5g} of at most {LARGEST:.0f} ({found['place']})"
    if not max(error, loud) <= limit:
        raise RuntimeError(
            f"In float16, in which GPUs compute, the {row.name} file differs from the model by {error:.1e} of the "
            f"largest output ({loud:.1e} where norms are loud), more than {limit:.1e}. It reaches {peak}. Write "
            "precision='float32' without a target, and let the app compute in float32 (enforce_f32)."
        )
    return {
        "float16": f"differs by {error:.1e} of the largest output, {loud:.1e} where norms are loud "
        f"(allowed: {limit:.1e}); it reaches {peak}",
        "float16_error": error,
        "float16_loud_error": loud,
        "float16_top1": top1[0] if classes else None,
        "float16_peak": found["peak"],
    }


def _agreement(
    answers: list[Answers], expected: list[Answers], row: Format, asked: ExportOptions, classes: int | None, labels: Any
) -> dict[str, Any]:
    """The fields about accuracy and differences, these of the output that is nearest to the largest that is allowed."""
    # `answers` and `expected` have the outputs by name for each batch.
    _check_decisions(answers, expected, row)
    how = bool(classes), row.name, asked.precision, asked.tolerance, (*expected[0],) == towers.EMBEDDINGS
    found = [differences([a[name] for a in answers], [e[name] for e in expected], *how) for name in expected[0]]
    worst = max(found, key=lambda one: one["max_abs_error"] / one["tolerance"])
    accuracies = [_accuracy(next(iter(batches[0].values())), labels) for batches in (answers, expected)]
    return worst | {"accuracy": accuracies[0], "model_accuracy": accuracies[1]}


def _check_decisions(answers: list[Answers], expected: list[Answers], row: Format) -> None:
    """Raises RuntimeError, which names the first image, where a file decides otherwise than an anomaly detector."""
    for one, other in zip(answers, expected, strict=True):
        wrong = np.flatnonzero(one["is_anomalous"] != other["is_anomalous"]) if "is_anomalous" in one else ()
        if len(wrong):
            scores = f"its score is {one['score'][wrong[0]]:.6g}, that of the model {other['score'][wrong[0]]:.6g}"
            raise RuntimeError(
                f"The {row.name} file decides otherwise than the model on {len(wrong)} of {len(one['score'])} images. "
                f"The first is image {wrong[0]}: {scores}. Take a higher precision, or another threshold: "
                "model.with_config(threshold=...)."
            )


def _accuracy(scores: np.ndarray, labels: np.ndarray | None) -> float | None:
    """The share of labels whose class has the largest of its row of scores; None without labels."""
    return None if labels is None else float(np.mean(scores.argmax(-1) == labels))


def _nothing_written(error: OSError | RuntimeError, path: Path) -> Exception:
    """An OSError or a RuntimeError, as given, whose message ends with "Nothing was written to PATH."."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text += f"{'' if text.endswith('.') else '.'} Nothing was written to {path}."
    kind, number = (OSError, error.errno) if isinstance(error, OSError) else (RuntimeError, None)
    return kind(text) if number is None else kind(number, text)


def _check_options(row: Format, model: keras.Model, asked: ExportOptions, calibrated: bool) -> int | None:
    """Returns the images at a time, None for any number; ValueError for what does not fit the format or the model."""
    require_packages(f"The format {row.name!r}", row.needs, row.extra)
    precision = asked.precision
    if row.precision(precision).calibration != calibrated:
        words = "does not use calibration: leave it out" if calibrated else "needs images: pass calibration=..."
        raise ValueError(f"precision={precision!r} of {row.name!r} {words}.")
    if asked.target and precision not in row.gpu:
        able = [f"{other.name!r} with precision {' or '.join(other.gpu)}" for other in FORMATS.values() if other.gpu]
        why = f"target='gpu' is for {', '.join(able)}, but {row.name!r} with precision={precision!r} was given."
        if "int8" in precision:
            why += " In int8, products of rank 3 compile on WebGPU and fail on Mali, those of rank 2 the other way."
            why += " Take float16, which all GPUs compile."
        raise ValueError(why)
    free = [side is None for side in model.inputs[0].shape[1:3]]
    if any(free) and not all(free):
        raise ValueError(
            f"{model.name} takes images of any height or any width, but not both. Build it with both fixed, or neither."
        )
    config = served.input_config(model)
    if all(free) and (config is None or asked.target or (row.any_size and isinstance(config, ViTConfig))):
        why = row.any_size or "nothing says which sizes fit"
        why = "target='gpu' needs images of one size, those in the file" if asked.target else why
        raise ValueError(
            f"{model.name} takes images of any size, which the format {row.name!r} cannot express here: {why}. Fix "
            "the size first: model.with_image_size(224)."
        )
    weights = 4 * model.count_params()
    if row.largest and weights >= row.largest:
        raise ValueError(
            f"{model.name} has {weights / 1000000000.0:.1f} GB of weights, but a {row.name} file holds at most "
            f"{row.largest / 1000000000.0:.1f} GB. Export to 'saved_model', 'openvino' or 'torch'."
        )
    if asked.batch_size is None:
        return 1 if asked.target else row.batch
    if asked.target and asked.batch_size == "any":
        raise ValueError("target='gpu' needs a fixed batch size: leave batch_size out for one image, or pass a number.")
    return None if asked.batch_size == "any" else int(asked.batch_size)


def _check_destination(row: Format, files: list[Path], overwrite: bool) -> None:
    """Raises an OSError, before any work is done, where the files could not be left."""
    path = files[0]
    for target in files:
        if not target.exists() and not target.is_symlink():
            continue
        if not overwrite:
            raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
        is_folder = target.is_dir() and not target.is_symlink()
        if is_folder and any(target.iterdir()) and not (row.inside and (target / row.inside).exists()):
            raise FileExistsError(
                f"{target} is a folder, but not one of the format {row.name!r}, so overwrite=True does not replace it. "
                "Delete it yourself, or choose another path."
            )
    check_folder(path.parent)
    folder = _existing(path)
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: the folder {folder} is read-only.")


def _workspace(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Makes a hidden folder on the disk of `path`; removes those of exports that began a day ago or earlier."""
    for old in _existing(path).glob(f".{glob.escape(path.name)}.*.exporting"):
        if time.time() - old.stat().st_mtime > 24 * 3600:
            shutil.rmtree(old, ignore_errors=True)
    names = {"prefix": f".{path.name}.", "suffix": ".exporting", "dir": _existing(path)}
    return tempfile.TemporaryDirectory(**names, ignore_cleanup_errors=True)


def _existing(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def _place(pairs: list[tuple[Path, Path]], folder: Path) -> None:
    """Moves the files of an export to their places, whose folder is made if it is missing."""
    (written, path), *others = pairs
    make_folder(path.parent)
    in_one_step = not others and written.is_file() and not path.is_dir()
    there = [] if in_one_step else [target for _, target in pairs if target.exists() or target.is_symlink()]
    old = [(target, folder / f"old{target.suffix}") for target in there]
    with contextlib.ExitStack() as undo:
        for target, aside in old:
            os.replace(target, aside)
            undo.callback(os.replace, aside, target)
        for new, target in pairs:
            os.replace(new, target)
            undo.callback(os.replace, target, new)
        undo.pop_all()  # all is in place


def _size_of(files: list[Path]) -> int:
    return sum(part.stat().st_size for file in files for part in (file, *file.rglob("*")) if part.is_file())
