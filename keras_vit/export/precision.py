"""From an exported float32 file to one of another precision: `PRECISIONS` says which there are.

The file is all that is needed: no model, no Keras and no TensorFlow.
"""

import dataclasses
import importlib
import shutil
from pathlib import Path

import numpy as np

from keras_vit.export.formats import require

FEWEST_IMAGES = 8


@dataclasses.dataclass(frozen=True)
class Precision:
    """One precision of one format: how it is made, or why it is not.

    Attributes:
        packages: What has to be installed.
        extra: The extra of keras-vit that brings it.
        calibration: Whether images are needed.
        reason: Why there is no such file, and what to do instead; empty where there is one.
    """

    packages: tuple[str, ...] = ()
    extra: str = ""
    calibration: bool = False
    reason: str = ""


_LITERT = (("ai_edge_litert",), "export")
_ONNX = (("onnx", "onnxruntime"), "onnx")
_OPENVINO = (("openvino",), "openvino")


def _typed(what: str, instead: str) -> dict[str, Precision]:
    """For formats whose programs name the dtype of every step: only float32."""
    reason = f"{what} names the dtype of each of its operations, so the weights cannot change without them: {instead}"
    return {"float32": Precision()} | {
        name: Precision(reason=reason) for name in ("float16", "bfloat16", "dynamic_int8", "int8")
    }


PRECISIONS: dict[str, dict[str, Precision]] = {
    "litert": {
        "float32": Precision(*_LITERT),
        "float16": Precision(*_LITERT),
        "bfloat16": Precision(reason="LiteRT has no operations for bfloat16: float16 is as small and more accurate."),
        "dynamic_int8": Precision(*_LITERT),
        "int8": Precision(*_LITERT, calibration=True),
    },
    "onnx": {
        "float32": Precision(),
        "float16": Precision(*_ONNX),
        "bfloat16": Precision(
            reason="ONNX Runtime has no bfloat16 convolution on CPUs: float16 is as small and more accurate."
        ),
        "dynamic_int8": Precision(*_ONNX),
        "int8": Precision(*_ONNX, calibration=True),
    },
    "openvino": {
        "float32": Precision(),
        "float16": Precision(*_OPENVINO),
        "bfloat16": Precision(
            reason="OpenVINO decides when it loads a file: it computes in bfloat16 where the processor can, unless "
            'INFERENCE_PRECISION_HINT is "f32". Export in float16 for a file of half the size.'
        ),
        "dynamic_int8": Precision(*_OPENVINO),
        "int8": Precision(
            reason="OpenVINO calibrates with NNCF, a package of its own, which takes the exported float32 file. "
            "dynamic_int8 makes a file of the same size without it."
        ),
    },
    "saved_model": _typed("a SavedModel", "export to litert, which is TensorFlow's way to smaller files."),
    "torch": _typed("an exported program", "cast or quantize the model in PyTorch, or export to onnx or openvino."),
    "stablehlo": _typed("a StableHLO program", "export to litert, onnx or openvino."),
}


def change_precision(
    format: str, source: Path, target: Path, precision: str, calibration: np.ndarray | None = None
) -> None:
    """Writes an exported float32 file in another precision.

    In `"float32"`, a LiteRT file loses the operations that do nothing but slow it down; files of other formats are
    copied. Metadata beside the model (an archive at the end of a `.tflite` file) does not travel: add it afterwards.

    Args:
        format: A key of `PRECISIONS`.
        source: The float32 file, or folder. For `"openvino"` the `.xml` file, with its `.bin` beside it.
        target: Where to write. Nothing may be there.
        precision: A key of `PRECISIONS[format]`.
        calibration: For `"int8"`: images `(count, height, width, channels)` of the kind that the model will see,
            in the shape, dtype and range that the file takes. 100 to 300 are a good number.

    Raises:
        ValueError: if there is no such format or precision, or if the calibration images are missing, too few, or
            not what the file takes.
        FileNotFoundError: if there is no `source`.
        ImportError: if a package is missing that the precision needs.
    """
    source, target = Path(source), Path(target)
    row = precision_of(format, precision)
    if row.calibration and calibration is None:
        raise ValueError(
            f"calibration is missing: the precision {precision!r} needs images like those that the model will see."
        )
    if calibration is not None and not row.calibration:
        raise ValueError(f"calibration was given, but the precision {precision!r} has no use for images: leave it out.")
    if not source.exists():
        raise FileNotFoundError(f"There is no file {source}.")
    if precision == "float32" and format != "litert":
        _copy(format, source, target)
        return
    module = importlib.import_module(f"{__package__}.precisions.{format}")
    write = getattr(module, f"to_{precision}")
    if row.calibration:
        write(source, target, _images(calibration, *module.input_of(source)))
    else:
        write(source, target)


def precision_of(format: str, precision: str) -> Precision:
    """The row of `PRECISIONS` for a format and a precision.

    Raises:
        ValueError: if there is none, or no such file can be made. The message says what can, and why this cannot.
        ImportError: if a package is missing that it needs.
    """
    if format not in PRECISIONS:
        raise ValueError(f"format must be one of {sorted(PRECISIONS)}, but {format!r} was given.")
    rows = PRECISIONS[format]
    offered = [name for name, row in rows.items() if not row.reason]
    if precision not in rows:
        raise ValueError(f"precision must be one of {offered} for the format {format!r}, but {precision!r} was given.")
    row = rows[precision]
    if row.reason:
        raise ValueError(
            f"precision must be one of {offered} for the format {format!r}, but {precision!r} was given: {row.reason}"
        )
    require(f"The precision {precision!r} of {format!r}", row.packages, row.extra)
    return row


def _images(calibration: np.ndarray, shape: tuple[int | None, ...], dtype: np.dtype) -> np.ndarray:
    """The calibration images as the file takes them."""
    images = np.asarray(calibration)
    fits = images.ndim == len(shape) and all(
        given == wanted for given, wanted in zip(images.shape[1:], shape[1:], strict=True) if wanted is not None
    )
    if not fits:
        wanted = ("count", *("any" if length is None else length for length in shape[1:]))
        raise ValueError(
            f"calibration must have the shape ({', '.join(map(str, wanted))}) that the file takes, "
            f"but its shape is {images.shape}."
        )
    if len(images) < FEWEST_IMAGES:
        raise ValueError(f"calibration must be at least {FEWEST_IMAGES} images, better 100, but it is {len(images)}.")
    if images.dtype != dtype and not (images.dtype.kind == "f" and dtype.kind == "f"):
        raise ValueError(f"calibration must be {dtype}, as the file takes it, but it is {images.dtype}.")
    if not np.isfinite(images).all():
        raise ValueError("calibration must be finite, but some of its numbers are NaN or infinite.")
    return images.astype(dtype, copy=False)


def _copy(format: str, source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    shutil.copyfile(source, target)
    if format == "openvino":
        shutil.copyfile(source.with_suffix(".bin"), target.with_suffix(".bin"))
