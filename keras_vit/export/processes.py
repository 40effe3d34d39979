"""The processes of an export: one writes a file where Keras runs on another backend, one runs it without Keras.

    KERAS_BACKEND=tensorflow python -c "from keras_vit.export.processes import write_job; write_job(FOLDER, FILE)"
    python -m keras_vit.export.processes FOLDER

Both read `job.json` in a folder, with arrays and a model beside it, and leave what they found there as `result.json`.
"""

import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from keras_vit.export import float16
from keras_vit.export.format import Answers, Format, Model, Signature, batches
from keras_vit.export.formats import FORMATS

SIZES = (1, 7, 32)  # of the batches that a file is run with, where it takes any; the last one repeats
WRITER = "import sys; from keras_vit.export.processes import write_job; write_job(*sys.argv[1:])"


class Job(NamedTuple):
    """A file to write, as plain data: its format and precision, its signature and its metadata."""

    format: str
    precision: str
    signature: Signature
    metadata: dict[str, Any]


def write(model: Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, Any]:
    """Writes a file; returns its `operators`, and those that need TensorFlow (`select`) or a CPU (`gpu`).

    `calibration` is images as the file takes them, for precisions that need some. Another precision than float32 leaves
    a float32 file beside `path`.
    """
    row = FORMATS[job.format]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters about their own insides
        if job.precision == "float32":
            row.write(model, job.signature, path)
        else:
            float32 = path.with_name(f"float32{path.suffix}")
            row.write(model, job.signature, float32)
            row.change_precision(float32, path, job.precision, calibration)
        row.annotate(path, job.metadata)
        operators = row.operators(path)
    return {"operators": operators.names, "select": operators.foreign, "gpu": row.off_gpu(path)}


def write_anywhere(model: Model, job: Job, calibration: np.ndarray | None, path: Path) -> dict[str, Any]:
    """Writes a file as `write` does, and returns the same; under another backend than the format's in a new process."""
    import keras

    from keras_vit._keras import without_importing_tensorflow

    row, folder = FORMATS[job.format], path.parent
    failed = f"The {row.name} file could not be written with {row.backend}"
    try:
        here = keras.backend.backend() == row.backend
        if here and row.backend == "torch":  # a program keeps the device that its weights lie on
            here = all(weight.value.device.type == "cpu" for weight in model.weights)
        if here:
            return write(model, job, calibration, path)
        with without_importing_tensorflow():  # the other process imports what it needs
            model.save(folder / "model.keras")
    except (OSError, ImportError):
        raise
    except Exception as error:  # the frameworks have a hundred kinds
        raise RuntimeError(f"{failed}. {type(error).__name__}: {error}"[:4000]) from error
    modules = _modules_of(folder / "model.keras", failed)
    if calibration is not None:
        np.save(folder / "calibration.npy", calibration)
    fields = job._asdict() | {"signature": dataclasses.asdict(job.signature), "modules": modules, "path": sys.path}
    _write(folder / "job.json", fields)
    command = [sys.executable, "-c", WRITER, str(folder), str(path)]
    _run(command, {"KERAS_BACKEND": row.backend}, failed)
    (folder / "model.keras").unlink()
    return _read(folder / "result.json")


def _modules_of(file: Path, failed: str) -> list[str]:
    """Returns the modules of the classes and functions that a model file names, except for Keras's own."""
    import keras

    found: set[str] = set()

    def look(config: Any) -> None:
        for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
            look(value)
        name = config.get("registered_name") if isinstance(config, dict) else None  # None for Keras's own
        name = config["config"] if name == "function" else name
        if isinstance(name, str):
            here = getattr(sys.modules.get(config["module"]), config["class_name"], None)
            kind = keras.saving.get_registered_object(name) or here
            if kind is None or kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
                advice = "Define it at the top of a module, not in the program itself, and register it with Keras."
                raise ValueError(f"{failed}, because another process cannot import {name}. {advice}")
            found.add(kind.__module__)

    with zipfile.ZipFile(file) as archive:
        look(json.loads(archive.read("config.json")) | {"compile_config": None})  # which the other does not read
    return sorted(found)


def _write(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values), encoding="utf-8")


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _run(command: list[str], environment: Mapping[str, str], failed: str) -> None:
    """Runs a process that finds this package and computes on the CPU, and waits for its end."""
    # It is killed when this process is interrupted. Where this one is killed itself, the pipe to the other one closes.
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    package = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",  # a GPU would bring nothing here, and its memory is in use
        "JAX_PLATFORMS": "cpu",
        "KERAS_TORCH_DEVICE": "cpu",
        "PYTHONIOENCODING": "utf-8",
        **environment,
    }
    with subprocess.Popen(command, env=environment, text=True, errors="replace", **pipes) as process:
        try:
            output = process.stdout.read()  # ty: ignore[missing-union-attribute] (a pipe)
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if code:
        ended = f"it was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"exit status {code}"
        raise RuntimeError(f"{failed} ({ended}). It said:\n{output.strip()[-4000:]}")


def write_job(folder: str | Path, path: str | Path) -> None:
    """Writes a file in a process of its own: the model in a folder to a path, as the job beside it says."""
    import keras

    from keras_vit.export.served_model import Signature

    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(folder)
    fields = _read(folder / "job.json")
    sys.path += [place for place in fields.pop("path") if place not in sys.path]
    for module in fields.pop("modules"):  # whose classes register themselves
        importlib.import_module(module)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields["signature"].items()}
    job = Job(**fields | {"signature": Signature(**values)})
    # Not compiled: the optimizer may be one that only exists on the backend that saved it.
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    images = folder / "calibration.npy"
    calibration = np.load(images, allow_pickle=False) if images.exists() else None
    _write(folder / "result.json", write(model, job, calibration, Path(path)))


def _end_with_parent() -> None:
    """Waits until the process that started this one closes the pipe to it, then ends this process with status 1."""
    # Not through sys.stdin: at the end of the process Python would wait for its lock.
    while os.read(0, 1):
        pass
    os._exit(1)


def run_in_fresh_process(
    row: Format, path: Path, images: list[np.ndarray], batch: int | None, latency: bool, in_float16: bool = False
) -> tuple[list[Answers], dict[str, Any]]:
    """Runs a file in a process without Keras; returns its outputs for each array of images, by name, and the times.

    With `in_float16` the outputs of the first batch in float16 stand at the end, and `float16` beside the times (see
    `float16.check`).
    """
    folder = path.parent / "answers"
    folder.mkdir()
    np.savez(folder / "images.npz", *images)
    sizes = SIZES if batch is None else (int(batch),)
    float32 = path.with_name(f"float32{path.suffix}")  # what `write` left, where the file has another precision
    job = {"format": row.name, "file": str(path), "sizes": sizes, "latency": latency}
    job["float32"] = str(float32 if float32.exists() else path) if in_float16 else None
    _write(folder / "job.json", job)
    command = [sys.executable, "-P", "-m", "keras_vit.export.processes", str(folder)]
    _run(command, {}, f"The exported {row.name} file does not run in its own runtime")
    found = [dict(np.load(folder / f"{i}.npz", allow_pickle=False)) for i in range(len(images) + in_float16)]
    return found, _read(folder / "result.json")


def run_job(
    folder: Path, format: str, file: str, sizes: list[int], latency: bool, float32: str | None = None
) -> dict[str, Any]:
    """Runs a file in a process of its own, and returns the times; the outputs for array i of the images are `i.npz`.

    With `float32`, the same file in that precision, the first batch is computed in float16 as well.
    """
    row = FORMATS[format]
    images = [*np.load(folder / "images.npz", allow_pickle=False).values()]
    first = images[0].take(range(sizes[0]), axis=0, mode="wrap")
    row.import_runtime()  # before anything is measured
    started = time.perf_counter()
    run = row.load(Path(file))
    run(first)
    measured: dict[str, Any] = {"load_seconds": time.perf_counter() - started}
    if latency:
        measured["latency_ms"] = 1000 * _median_seconds(run, first)
    found = [_in_batches(run, batch, sizes) for batch in images]
    if float32 is not None:
        in_float16, measured["float16"] = float16.check(row, Path(file), Path(float32), first)
        found.append(in_float16)
    for i, answers in enumerate(found):
        np.savez(folder / f"{i}.npz", **cast("dict[str, Any]", answers))
    return measured


def _in_batches(run: Callable[[np.ndarray], Answers], images: np.ndarray, sizes: Sequence[int]) -> Answers:
    parts = [{name: np.array(answer) for name, answer in run(part).items()} for part in batches(images, *sizes)]
    found = {name: np.concatenate([part[name] for part in parts]).astype("float32") for name in parts[0]}
    return {name: answers[: len(images)] for name, answers in found.items()}


def _median_seconds(run: Callable[[np.ndarray], Answers], images: np.ndarray) -> float:
    """Returns the median time in seconds of 5 to 50 runs, for about a second."""
    times: list[float] = []
    while len(times) < 5 or (len(times) < 50 and sum(times) < 1):
        started = time.perf_counter()
        run(images)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    _write(place / "result.json", run_job(place, **_read(place / "job.json")))
