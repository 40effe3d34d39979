"""A file's answers beside the model's."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.formats import Format
from keras_vit.export.writing import process_environment

# Largest difference to the model in relation to the size of its answers, or to 1 where they are smaller. That of
# float32 files is 1e-5 or less: the order of sums. The others are several times what trained models show.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "dynamic_int8": 1e-1, "int8": 2.5e-1}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far a file's answers are from the model's.

    Attributes:
        max_abs_error: Largest difference.
        mean_abs_error: Mean difference.
        size: Largest answer of the model, or 1 if it is smaller: what a tolerance refers to.
        top1_agreement: Share of the images for which both name the same class; None without classes.
    """

    max_abs_error: float
    mean_abs_error: float
    size: float
    top1_agreement: float | None

    @classmethod
    def of(cls, answers: list[np.ndarray], expected: list[np.ndarray], classes: bool) -> "Agreement":
        """Compares answers to several batches.

        Args:
            answers: The file's.
            expected: The model's, of the same shapes.
            classes: Whether the last axis is one of classes.
        """
        # NaN stays NaN here, and no tolerance holds for it.
        errors = np.concatenate([np.abs(a - e).ravel() for a, e in zip(answers, expected, strict=True)])
        same = [a.argmax(-1) == e.argmax(-1) for a, e in zip(answers, expected, strict=True)]
        return cls(
            max_abs_error=float(errors.max()),
            mean_abs_error=float(errors.mean()),
            size=max(1.0, *(float(np.max(np.abs(e))) for e in expected)),
            top1_agreement=float(np.mean(np.concatenate([s.ravel() for s in same]))) if classes else None,
        )


def run_in_fresh_process(
    row: Format, path: Path, images: list[np.ndarray], batch: int | None, latency: bool
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The answers of a file, computed by its runtime in a process that knows neither Keras nor the model.

    Args:
        row: The file's format.
        path: The file, in a folder where more can be written.
        images: Batches as the file takes them; those of one batch have one size.
        batch: How many images the file takes at a time; None for any number: then it is run with 1, 7 and more.
        latency: Whether the time of an answer is measured.

    Returns:
        The answers to each batch, and what was measured (see `runtimes/run.py`).

    Raises:
        RuntimeError: if the runtime fails; the message has its words.
    """
    folder = path.parent / "answers"
    folder.mkdir()
    names = []
    for index, some in enumerate(images):
        names.append(str(path.parent / f"images_{index}.npy"))
        np.save(names[-1], some)
    script = Path(__file__).parent / "runtimes" / "run.py"
    command = [sys.executable, str(script), row.runtime, str(path), *names, "--answers", str(folder)]
    command += ["--batch", str(batch)] if batch else []
    command += ["--latency"] if latency else []
    done = subprocess.run(command, env=process_environment(), capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(
            f"The exported {row.name} file does not run in its own runtime (exit status {done.returncode}), which "
            f"said:\n{(done.stderr or done.stdout).strip()[-4000:]}"
        )
    answers = [np.load(folder / Path(name).name, allow_pickle=False) for name in names]
    return answers, json.loads(done.stdout.strip().splitlines()[-1])
