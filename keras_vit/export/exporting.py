"""`export`: from a model on any backend to a checked file."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console

from keras_vit.export.formats import FORMATS, Format
from keras_vit.models import VisionTransformer, weights_by_path

# Largest difference that is left to rounding, for answers of size 1: those of a float32 file are 1e-5 apart or less.
TOLERANCE = 1e-4


def export(
    model: VisionTransformer, path: str | os.PathLike[str], format: str = "litert", overwrite: bool = False
) -> dict[str, Any]:
    """Writes a model to a file that runs without Keras, and checks that it gives the same answers.

    The conversion is TensorFlow's. On JAX and torch it happens in a second process, so TensorFlow has to be
    installed there too. The file computes in float32, whatever the model's dtype policy; it takes any batch size.

    Args:
        model: A `VisionTransformer`, trained on any backend.
        path: The file to write; for `"saved_model"`, the folder.
        format: `"litert"` (a `.tflite` file of builtin operations) or `"saved_model"`.
        overwrite: Whether something at `path` may be replaced. It is replaced only when the new file is good.

    Returns:
        What was written: `"format"`, `"path"`, `"bytes"`, `"max_abs_error"` (largest difference between the answers
        of the file and of the model to random images) and `"seconds"`.

    Raises:
        TypeError: if `model` is no `VisionTransformer`.
        ValueError: if the format is unknown, the path does not end as the format wants, or the model is quantized.
        FileExistsError: if there is something at `path` and `overwrite` is False.
        ImportError: if a package is missing that the format needs.
        RuntimeError: if the conversion fails, or the answers differ by more than rounding. No file is left.
    """
    path = Path(path)
    row = _check(model, path, format, overwrite)
    started = time.perf_counter()
    model = _in_float32(model)
    images = _random_images(model)
    expected = keras.ops.convert_to_numpy(model(images, training=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
        Console(stderr=True).status(f"Exporting {model.name} to {path.name} ..."),
    ):
        written = Path(folder) / f"exported{row.suffix}"
        answers = _convert(model, images, format, written)
        error = float(np.max(np.abs(answers - expected)))
        limit = TOLERANCE * max(1.0, float(np.max(np.abs(expected))))
        if not error <= limit:  # also where the error is NaN
            raise RuntimeError(
                f"The exported {format} file does not give the answers of the model: they differ by up to {error:.1e}, "
                f"more than the {limit:.1e} that rounding may explain. Nothing was written to {path}."
            )
        size = sum(part.stat().st_size for part in [written, *written.rglob("*")] if part.is_file())
        _move(written, path, Path(folder))
    return {
        "format": format,
        "path": str(path),
        "bytes": size,
        "max_abs_error": error,
        "seconds": time.perf_counter() - started,
    }


def _check(model: Any, path: Path, format: str, overwrite: bool) -> Format:
    if not isinstance(model, VisionTransformer):
        raise TypeError(
            f"model must be a keras_vit.VisionTransformer, but a {type(model).__name__} was given. Other Keras models "
            "have an export method of their own."
        )
    if format not in FORMATS:
        raise ValueError(f"format must be one of {sorted(FORMATS)}, but {format!r} was given.")
    row = FORMATS[format]
    if path.suffix != row.suffix and row.suffix:
        raise ValueError(f"path must end in {row.suffix!r} for the format {format!r}, but {str(path)!r} was given.")
    if any(layer.quantization_mode is not None for layer in model._flatten_layers()):
        raise ValueError("model is quantized, which no format can express. Export it before model.quantize().")
    if (path.exists() or path.is_symlink()) and not overwrite:
        raise FileExistsError(f"{path} exists already. Pass overwrite=True to replace it.")
    missing = [name for name in row.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"The format {format!r} needs {' and '.join(missing)}, which is not installed: "
            'pip install "keras-vit[export]"',
            name=missing[0],
        )
    return row


def _in_float32(model: VisionTransformer) -> VisionTransformer:
    """The model itself, or one that computes in float32 with its weights: converters know no mixed precision."""
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    plain = VisionTransformer(model.config, name=model.name, dtype="float32")
    values = weights_by_path(model)
    for name, weight in weights_by_path(plain).items():
        weight.assign(values[name])
    return plain


def _random_images(model: VisionTransformer) -> np.ndarray:
    config = model.config
    shape = (2, *config.image_size, config.channels)
    low, high = (0, 255) if config.include_preprocessing else (-1, 1)
    return np.random.default_rng(0).uniform(low, high, shape).astype("float32")


def _convert(model: VisionTransformer, images: np.ndarray, format: str, written: Path) -> np.ndarray:
    """Writes the file, here or in a process whose Keras runs on TensorFlow; gives back the file's answers."""
    if keras.backend.backend() == "tensorflow":
        FORMATS[format].write(model, written)
        return FORMATS[format].run(written, images)
    folder = written.parent
    model.save(folder / "model.keras")
    np.save(folder / "images.npy", images)
    source = Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",  # a GPU would bring nothing here, and its memory is in use
        "PYTHONPATH": os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "keras_vit.export.worker", format, str(folder), str(written)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if result.returncode:
        # Everything that TensorFlow had to say, the last lines of which tell what went wrong.
        raise RuntimeError(
            f"TensorFlow could not write the {format} file (exit status {result.returncode}). It said:\n"
            f"{(result.stderr or result.stdout).strip()[-4000:]}"
        )
    return np.load(folder / "answers.npy", allow_pickle=False)


def _move(written: Path, path: Path, folder: Path) -> None:
    """Puts the new file in its place, in one step where the old one is a file or nothing."""
    if path.is_dir() and not path.is_symlink():
        old = folder / "replaced"
        os.replace(path, old)
        try:
            os.replace(written, path)
        except OSError:
            os.replace(old, path)
            raise
        shutil.rmtree(old)
    else:
        if written.is_dir() and (path.exists() or path.is_symlink()):
            path.unlink()
        os.replace(written, path)
