"""The processes of an export: one writes the file where Keras runs on another backend, one runs it without Keras.

    KERAS_BACKEND=tensorflow python -m keras_vit.export.processes FOLDER FILE

is the former. `FOLDER` holds `job.json`, `model.keras` and, for precisions that need images, `calibration.npy`; it
leaves what `write` returns there as `result.json`. It ends as soon as its standard input does. The latter is
`runtimes.py`.
"""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from keras_vit._keras import without_importing_tensorflow
from keras_vit.export.formats import Format
from keras_vit.export.served_model import Metadata, Signature

# Largest difference to the model in relation to the size of its answers, or to 1 where they are smaller. That of
# float32 files is 1e-5 or less: the order of sums. That of int8 is twice what docs/exports.md measures for good files.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "dynamic_int8": 1e-1, "int8": 2e-1}
"""Largest difference between file and model that `export` accepts, by precision, in relation to the model's answers.

Examples:
    >>> export.TOLERANCES["float32"]
    0.0001
"""
# Share of the images that have to keep their class, and how far below its best the model itself may see the file's
# class, in relation to the size of the answers: between such two it has not decided.
KEPT, UNDECIDED = 0.95, 0.05
RESULT = "result.json"


def format_row(name: str) -> Format:
    """The row of a format, from its file in `formats/`."""
    return importlib.import_module(f".formats.{name}", __package__).FORMAT


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be written, as plain data.

    Attributes:
        format: Name of a format.
        precision: What the file computes in.
        signature: What it takes and gives.
        metadata: What it says about itself (see `served_model.describe`).
    """

    format: str
    precision: str
    signature: Signature
    metadata: Metadata


def write(model: keras.Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
    """Writes a file under the format's backend.

    Args:
        model: The model as it is written, on that backend.
        job: What to write.
        calibration: Images as the file takes them, for precisions that need some.
        path: Where; nothing is there yet, and nothing else is in its folder that begins with `float32`.

    Returns:
        `"operators"`, the names of those in the file, and `"select"`, those that the runtime does not bring.
    """
    row = format_row(job.format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters about their own insides
        if job.precision == "float32" or row.change_precision is None:
            row.write(model, job.signature, path)
        else:
            float32 = path.with_name(f"float32{path.suffix}")
            row.write(model, job.signature, float32)
            row.change_precision(float32, path, job.precision, calibration)
        row.annotate(path, job.metadata)
        operators, select = row.operators(path) if row.operators else ([], [])
    return {"operators": operators, "select": select}


def write_anywhere(model: keras.Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, list[str]]:
    """Does what `write` does from any backend; raises RuntimeError if that fails, with the other process's words."""
    row = format_row(job.format)
    if keras.backend.backend() == row.backend:
        try:
            return write(model, job, calibration, path)
        except (OSError, ImportError):
            raise
        except Exception as error:  # the frameworks have a hundred kinds
            words = f"{type(error).__name__}: {error}".strip()[:4000]
            raise RuntimeError(f"The {row.name} file could not be written with {row.backend}. {words}") from error
    folder = path.parent
    with without_importing_tensorflow():  # the other process imports what it needs
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
    command = [sys.executable, "-m", "keras_vit.export.processes", str(folder), str(path)]
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
    if code := process.returncode:
        ended = f"it was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"exit status {code}"
        # Everything that the framework had to say, the last lines of which tell what went wrong.
        raise RuntimeError(
            f"The {row.name} file could not be written with {row.backend} ({ended}). It said:\n{output.strip()[-4000:]}"
        )
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


def run_in_fresh_process(
    row: Format, path: Path, images: list[np.ndarray], batch: int | None, latency: bool
) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """The answers of a file, computed by its runtime in a process that knows neither Keras nor the model.

    Args:
        row: The file's format.
        path: The file, in a folder where more can be written.
        images: Batches as the file takes them; those of one batch have one size.
        batch: How many images the file takes at a time; None for any number: then it is run with 1, 7 and more.
        latency: Whether the time of an answer is measured.

    Returns:
        The answers to each batch by name, and what was measured (see `runtimes.py`). RuntimeError if it fails.
    """
    folder = path.parent / "answers"
    folder.mkdir()
    names = [str(path.parent / f"images_{index}.npy") for index in range(len(images))]
    for name, batch_of_images in zip(names, images, strict=True):
        np.save(name, batch_of_images)
    script = Path(__file__).parent / "runtimes.py"
    command = [sys.executable, str(script), row.name, str(path), *names, "--answers", str(folder)]
    command += ["--batch", str(batch)] if batch else []
    command += ["--latency"] if latency else []
    done = subprocess.run(command, env=process_environment(), capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(
            f"The exported {row.name} file does not run in its own runtime (exit status {done.returncode}), which "
            f"said:\n{(done.stderr or done.stdout).strip()[-4000:]}"
        )
    answers = [dict(np.load(folder / f"{Path(name).stem}.npz", allow_pickle=False)) for name in names]
    return answers, json.loads(done.stdout.strip().splitlines()[-1])


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far one answer of a file is from the model's.

    Attributes:
        max_abs_error: Largest difference.
        mean_abs_error: Mean difference.
        size: Largest value of the model's answer, or 1 if it is smaller: what a tolerance refers to.
        top1_agreement: Share of the images for which both name the same class; None without classes.
        kept: The same where classes that the model is undecided about count as one; 1 without classes.
    """

    max_abs_error: float
    mean_abs_error: float
    size: float
    top1_agreement: float | None
    kept: float

    @classmethod
    def of(cls, answers: list[np.ndarray], expected: list[np.ndarray], classes: bool) -> Self:
        """Compares answers to several batches.

        Args:
            answers: The file's.
            expected: The model's, of the same shapes.
            classes: Whether the last axis is one of classes.
        """
        # NaN stays NaN here, and no tolerance holds for it.
        errors = np.concatenate([np.abs(a - e).ravel() for a, e in zip(answers, expected, strict=True)])
        size = max(1.0, *(float(np.max(np.abs(e))) for e in expected))
        top1, kept = None, 1.0
        if classes:
            named = [np.take_along_axis(e, a.argmax(-1)[..., None], -1) for a, e in zip(answers, expected, strict=True)]
            behind = np.concatenate([(e.max(-1) - n[..., 0]).ravel() for n, e in zip(named, expected, strict=True)])
            top1, kept = float(np.mean(behind == 0)), float(np.mean(behind <= UNDECIDED * size))
        return cls(float(errors.max()), float(errors.mean()), size, top1, kept)

    def require(self, format: str, precision: str, tolerance: float | None) -> float:
        """Raises unless the file does what its precision promises.

        Args:
            format: A key of `FORMATS`.
            precision: What the file computes in.
            tolerance: Largest difference in relation to `size`; None for the precision's.

        Returns:
            The largest difference that was allowed.

        Raises:
            RuntimeError: if answers differ by more, or too many images change their class.
        """
        limit = (TOLERANCES[precision] if tolerance is None else tolerance) * self.size
        if not self.max_abs_error <= limit:  # also where the error is NaN
            raise RuntimeError(
                f"The exported {format} file does not give the answers of the model: they differ by up to "
                f"{self.max_abs_error:.1e}, more than the {limit:.1e} that {precision} may explain. A higher "
                "precision, a larger tolerance, or for int8 calibration images of more kinds, may help."
            )
        if self.kept < KEPT:
            raise RuntimeError(
                f"The exported {format} file names another class than the model for {1 - self.kept:.0%} of the "
                f"images, where {1 - KEPT:.0%} may change. A higher precision, or for int8 calibration images of more "
                "kinds, may help."
            )
        return limit


def main(folder: Path, path: Path) -> None:
    """The other process: writes the model in a folder to a path, as the job beside it says."""
    fields = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    job = Job(**fields | {"signature": Signature.from_dict(fields["signature"])})
    # Not compiled: the optimizer may be one that only exists on the backend that saved it.
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    images = folder / "calibration.npy"
    calibration = np.load(images, allow_pickle=False) if images.exists() else None
    result = write(model, job, calibration, path)
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")


def _end_with_parent() -> None:
    # Not through sys.stdin: at the end of the process Python would wait for its lock.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
