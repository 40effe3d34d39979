"""The proof of an export: what a file answers in a fresh process, beside what the model answers."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_vit.export.formats.format import Format
from keras_vit.export.writing_process import process_environment

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


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far a file's answers are from the model's.

    Attributes:
        max_abs_error: Largest difference.
        mean_abs_error: Mean difference.
        size: Largest answer of the model, or 1 if it is smaller: what a tolerance refers to.
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
        named = [np.take_along_axis(e, a.argmax(-1)[..., None], -1) for a, e in zip(answers, expected, strict=True)]
        behind = np.concatenate([(e.max(-1) - n[..., 0]).ravel() for n, e in zip(named, expected, strict=True)])
        return cls(
            max_abs_error=float(errors.max()),
            mean_abs_error=float(errors.mean()),
            size=size,
            top1_agreement=float(np.mean(behind == 0)) if classes else None,
            kept=float(np.mean(behind <= UNDECIDED * size)) if classes else 1.0,
        )

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
    for index, batch_of_images in enumerate(images):
        names.append(str(path.parent / f"images_{index}.npy"))
        np.save(names[-1], batch_of_images)
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
