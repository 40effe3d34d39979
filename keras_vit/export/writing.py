"""The step that needs the format's backend: here if Keras runs on it, otherwise in a process of its own."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.export.formats import FORMATS, Format
from keras_vit.export.precision import change_precision
from keras_vit.export.signature import Signature

FAILURE = "failure.json"
RESULT = "result.json"


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be written, as plain data.

    Attributes:
        format: A key of `FORMATS`.
        precision: What the file computes in.
        signature: What it takes and gives.
        metadata: What it says about itself (see `metadata.describe`).
    """

    format: str
    precision: str
    signature: Signature
    metadata: dict[str, Any]


def write(model: Any, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
    """Writes a file under the format's backend.

    Args:
        model: The model as it is written, on that backend.
        job: What to write.
        calibration: Images as the file takes them, for precisions that need some.
        path: Where; nothing is there yet, and nothing else is in its folder that begins with `float32`.

    Returns:
        `"operators"`, the names of those in the file, and `"select"`, those that the runtime does not bring.
    """
    writer = importlib.import_module(f"{__package__}.writers.{job.format}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters about their own insides
        if job.precision == "float32":
            writer.write(model, job.signature, path)
        else:
            plain = path.with_name(f"float32{path.suffix}")
            writer.write(model, job.signature, plain)
            change_precision(job.format, plain, path, job.precision, calibration)
        writer.annotate(path, job.metadata)
        operators, select = writer.operators(path)
    return {"operators": operators, "select": select}


def write_anywhere(model: Any, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
    """Does what `write` does from any backend.

    Raises:
        OSError: if the disk refused; RuntimeError: if the conversion failed. The message has the other process's words.
    """
    row = FORMATS[job.format]
    if keras.backend.backend() == row.backend:
        try:
            return write(model, job, calibration, path)
        except (OSError, ImportError):
            raise
        except Exception as error:  # the frameworks have a hundred kinds
            words = f"{type(error).__name__}: {error}".strip()[:4000]
            raise RuntimeError(f"The {row.name} file could not be written with {row.backend}. {words}") from error
    folder = path.parent
    model.save(folder / "model.keras")
    if calibration is not None:
        np.save(folder / "calibration.npy", calibration)
    (folder / "job.json").write_text(json.dumps(dataclasses.asdict(job)), encoding="utf-8")
    source = str(Path(__file__).resolve().parents[2])
    environment = {
        **process_environment(),
        "KERAS_BACKEND": row.backend,
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", f"{__package__}.worker", str(folder), str(path)]
    # The worker ends when its standard input does: it does not outlive this process.
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as worker:
        try:
            said = worker.stdout.read()
        except BaseException:
            worker.kill()
            raise
    if worker.returncode:
        _raise(row, folder, worker.returncode, said)
    (folder / "model.keras").unlink()
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def process_environment() -> dict[str, str]:
    """The environment of processes that write and run files: they compute on the CPU and say little."""
    return {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",  # a GPU would bring nothing here, and its memory is in use
        "JAX_PLATFORMS": "cpu",
        "PYTHONIOENCODING": "utf-8",
    }


def _raise(row: Format, folder: Path, code: int, said: str) -> None:
    """Raises what went wrong in the other process."""
    try:
        failure = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        failure = {}
    if failure.get("errno"):
        raise OSError(failure["errno"], failure["message"])
    ended = f"it was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"exit status {code}"
    # Everything that the framework had to say, the last lines of which tell what went wrong.
    raise RuntimeError(
        f"The {row.name} file could not be written with {row.backend} ({ended}). It said:\n{said.strip()[-4000:]}"
    )
