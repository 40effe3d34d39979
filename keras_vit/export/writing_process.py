"""The step that needs the format's backend: in this process if Keras runs on it, otherwise in one of its own.

    KERAS_BACKEND=tensorflow python -m keras_vit.export.writing_process FOLDER FILE

is that other process. `FOLDER` holds `job.json`, `model.keras` and, for precisions that need images,
`calibration.npy`; it leaves what `write` returns there as `result.json`. It ends as soon as its standard input does.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import keras
import numpy as np

from keras_vit.export.formats import FORMATS
from keras_vit.export.formats.format import Format
from keras_vit.export.served_model import Metadata, Model, Signature

FAILURE = "failure.json"
RESULT = "result.json"


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be written, as plain data.

    Attributes:
        format: A key of `FORMATS`.
        precision: What the file computes in.
        signature: What it takes and gives.
        metadata: What it says about itself (see `served_model.describe`).
    """

    format: str
    precision: str
    signature: Signature
    metadata: Metadata


def write(model: Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
    """Writes a file under the format's backend.

    Args:
        model: The model as it is written, on that backend.
        job: What to write.
        calibration: Images as the file takes them, for precisions that need some.
        path: Where; nothing is there yet, and nothing else is in its folder that begins with `float32`.

    Returns:
        `"operators"`, the names of those in the file, and `"select"`, those that the runtime does not bring.
    """
    row = FORMATS[job.format]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters about their own insides
        if job.precision == "float32" or row.change_precision is None:
            row.write(model, job.signature, path)
        else:
            float32 = path.with_name(f"float32{path.suffix}")
            row.write(model, job.signature, float32)
            row.change_precision(float32, path, job.precision, calibration)
        row.annotate(path, job.metadata)
        operators, select = row.operators(path)
    return {"operators": operators, "select": select}


def write_anywhere(model: Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
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
    command = [sys.executable, "-m", f"{__package__}.writing_process", str(folder), str(path)]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # it ends with this process, when that lets go of the pipe
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = process.stdout.read()  # ty: ignore[missing-union-attribute] (a pipe)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        _raise(row, folder, process.returncode, output)
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


def _raise(row: Format, folder: Path, code: int, output: str) -> None:
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
        f"The {row.name} file could not be written with {row.backend} ({ended}). It said:\n{output.strip()[-4000:]}"
    )


def main(folder: Path, path: Path) -> None:
    """The other process: writes the model in a folder to a path, as the job beside it says."""
    try:
        fields = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        job = Job(**fields | {"signature": Signature.from_dict(fields["signature"])})
        # Not compiled: the optimizer may be one that only exists on the backend that saved it.
        model = keras.saving.load_model(folder / "model.keras", compile=False)
        images = folder / "calibration.npy"
        calibration = np.load(images, allow_pickle=False) if images.exists() else None
        result = write(model, job, calibration, path)
        (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    except OSError as error:
        failure = {"errno": error.errno, "message": error.strerror or str(error)}
        (folder / FAILURE).write_text(json.dumps(failure), encoding="utf-8")
        raise


def _end_with_parent() -> None:
    # Not through sys.stdin: at the end of the process Python would wait for its lock.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
