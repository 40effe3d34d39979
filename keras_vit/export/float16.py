"""What a file computes in float16, as GPUs do: the check that a runtime on a CPU cannot make.

The file's own runtime runs each operator alone, in float32, on values of float16, and what it returns is rounded:
elementwise operators are those of float16 then, and products and sums add up in float32, as on a good GPU.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LARGEST = 65504.0  # of float16
TOLERANCE = 2e-2  # largest difference to the model, in relation to its largest answer
LOUD = 300.0  # added to one channel of what each normalisation reads: as loud as DINOv2's, CLIP's and SAM's


class Computed(NamedTuple):
    """Answers by name, and the largest magnitude on the way, infinity for NaN as well, with where it came up first."""

    answers: dict[str, np.ndarray]
    peak: float
    place: str


def layer_of(name: str) -> str:
    """The layer of a value that TensorFlow named, such as " in block_0/attention"; "" where there is none."""
    *_, name = [part for part in name.split(";") if part] or [""]
    model, *parts = name.removeprefix("StatefulPartitionedCall/").split("/")[:-1] or [""]
    if parts and re.search(r"_\d+$", model) and re.search(r"_\d+$", parts[0]):  # Keras counts the calls of a layer
        parts = [re.sub(r"_\d+$", "", part) for part in parts]
    return f" in {'/'.join(parts)}" if parts else ""


class Step(NamedTuple):
    """An operator of a file: what it reads and writes, words for where it comes from, and what it computes alone."""

    kind: str
    reads: list[Any]
    writes: list[Any]
    place: str
    run: Callable[..., list[np.ndarray]]


def compute(steps: list[Step], values: dict[Any, np.ndarray], outputs: dict[str, Any], loud: float) -> Computed:
    """What operators in their order compute from constants; results of float16 stay float16."""
    peak, place = 0.0, ""
    louder = _normalized(steps) if loud else set()
    last = {name: step for step in steps for name in step.reads}
    for step in steps:
        inputs = [values[name] for name in step.reads]
        is_half = step.kind.upper() != "CAST" and any(x.dtype == np.float16 for x in inputs)
        for name, y in zip(step.writes, step.run(*inputs), strict=True):
            y = y.astype("float16") if is_half and y.dtype == np.float32 else y
            if name in louder:
                y = y.copy()  # it may be the caller's images
                y[..., 0] += y.dtype.type(loud)
            values[name] = y
            largest = float(np.abs(y).max(initial=0)) if y.dtype.kind == "f" else 0.0
            if not largest <= peak and np.isfinite(peak):
                peak, place = (largest if np.isfinite(largest) else np.inf), step.place
        for name in step.reads:
            if last[name] is step and name not in outputs.values():
                values.pop(name, None)
    return Computed({name: values[output].astype("float32") for name, output in outputs.items()}, peak, place)


def _normalized(steps: list[Step]) -> set[Any]:
    """The values that normalisations read."""

    def read_by(*kinds: str) -> set[Any]:
        return {step.reads[0] for step in steps if step.kind in kinds}

    divided = {step.writes[0]: step.reads[0] for step in steps if step.kind in ("DIV", "Div")}
    centred = read_by("MEAN", "ReduceMean") & read_by("SUB", "Sub")
    return read_by("LayerNormalization") | {divided.get(name, name) for name in centred}  # some divide by a peak first


def distance(answers: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference in relation to the largest value of an output: of the output that is farthest off."""
    found = []
    for name, values in expected.items():
        off = np.abs(answers[name].reshape(values.shape) - values).max()
        found.append(off / max(np.abs(values).max(), 1e-6))
    return float(np.max(found))


def check(row: Any, path: Path, float32: Path, images: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The answers of a file in float16, and as plain data `peak`, its `place`, and `loud`, the error of loud norms.

    `float32` is the same file in float32, which says what is right there. Without a way to compute the file there are
    no answers, and the reason stands under `why`.
    """
    with np.errstate(all="ignore"):
        try:
            found = row.compute(path, images, np.float16)
            loud, truth = row.compute(path, images, np.float16, LOUD), row.compute(float32, images, np.float32, LOUD)
        except (NotImplementedError, ImportError) as error:
            return {}, {"why": str(error)}
        error = distance(loud.answers, truth.answers)
    return found.answers, {"peak": found.peak, "place": found.place, "loud": error}
