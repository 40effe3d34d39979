"""The folder of one training run: what was asked for, the newest checkpoint, the log. A run that is killed goes on."""

import contextlib
import csv
import importlib.util
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import locked, write_text
from keras_vit._pictures import FAINT, GOOD, figure_for
from keras_vit._processes import ALONE, Processes
from keras_vit._terminal import Table
from keras_vit.checkpoints import save_model
from keras_vit.checkpoints.files import read_npz, write_npz
from keras_vit.training.sharing import assign_everywhere

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What a finished run leaves beside its checkpoint.
RESULTS = ("model.keras", "adapters.npz", "classes.txt", "curve.png")
_ABOUT = "about"  # the array of a checkpoint that holds JSON: the log, and whether the run was over
_CHECKPOINT = re.compile(r"step-(\d+)\.npz")


class RunFolder:
    """One run's files. Each is written under another name and moved into place, so that a kill leaves none in halves.

    `run.json` holds the settings, `step-N.npz` the weights, the optimizer's state, the state of every random generator
    and the log after N steps, `log.csv` the log for people: a row per evaluation.

    Args:
        path: The folder; it is made if need be.
        settings: What decides the numbers of the run, as plain data. A run goes on only where they are the same.
        resume: Whether a run that is in the folder goes on. False starts afresh and removes the old one's files.
        processes: Those of the run. Only the first reads and writes the folder, and tells the others what is in it.

    Raises:
        ValueError: if the folder holds a run with other settings or of an older version, or something that is no run.
        RuntimeError: if another process is training there now (from `locked`).
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: dict[str, Any], resume: bool = True, processes: Processes = ALONE
    ) -> None:
        self.path, self._processes = Path(path), processes
        self._settings = json.loads(json.dumps(settings))
        if not processes.first:
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output must be a folder, but {self.path} is a file.")
        record = self.path / "run.json"
        if record.exists() and resume:
            self._check_same(record)
        elif not record.exists() and self.path.is_dir() and any(self.path.glob("[!.]*")):
            raise ValueError(
                f"output must be a new or empty folder, or one with a run in it, but {self.path} holds other files."
            )
        self._afresh = not (record.exists() and resume)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out, for as long as this one trains."""
        if not self._processes.first:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", waiting=self._refuse):
            if self._afresh:
                self._clear()
                write_text(self.path / "run.json", json.dumps(self._settings, indent=2) + "\n")
            yield

    def restore(self, model: keras.Model) -> tuple[int, bool, Table]:
        """Puts the newest checkpoint into a compiled model.

        Returns:
            The steps that it has behind it, 0 where there is no checkpoint; whether the run was over then; and its log.
        """
        newest, arrays, about = self.newest_step() if self._processes.first else None, None, {}
        if newest is not None:
            model.optimizer.build(model.trainable_variables)
            arrays, about = _read_state(self._checkpoint(newest), model)
        share_state(model, arrays, self._processes)
        found = [newest or 0, about.get("finished", False), about.get("log", [])]
        step, finished, log = self._processes.from_first(found)
        return step, finished, Table(log)

    def save(self, model: keras.Model, step: int, log: list[dict[str, Any]], finished: bool = False) -> None:
        """Writes a checkpoint, and the log as `log.csv` as well; older checkpoints go when it is complete.

        Args:
            model: A compiled model.
            step: The steps that it has behind it.
            log: The rows so far. A row may lack what others have: a validation set can be added to a run.
            finished: Whether the run is over: the weights are those that it gives.

        Raises:
            OSError: if the file cannot be written, on a full disk for example. Older checkpoints stay then.
        """
        if not self._processes.first:
            return
        path = self._checkpoint(step)
        try:
            _write_state(path, model, {"finished": finished, "log": log})
        except OSError as error:
            newest = self.newest_step()
            kept = "There is no older one." if newest is None else f"The one of step {newest} is kept."
            raise OSError(
                error.errno,
                f"The checkpoint {path} cannot be written ({error.strerror or error}). {kept} Make room, and call "
                "again in the same way to go on.",
            ) from error
        for older in self._checkpoints():
            if older != step:
                self._checkpoint(older).unlink(missing_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, dict.fromkeys(key for row in log for key in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
        write_text(self.path / "log.csv", text.getvalue())

    def newest_step(self) -> int | None:
        """The steps that the newest checkpoint has behind it; None where there is no checkpoint."""
        return max(self._checkpoints(), default=None)

    def write_results(
        self, model: keras.Model, class_names: Sequence[str] | None, log: list[dict[str, Any]], recipe: str
    ) -> None:
        """Writes the trained model, the names of its classes, and the learning curve where matplotlib is installed."""
        if not self._processes.first:
            return
        save_model(model, self.path / "model.keras", overwrite=True)
        if class_names is not None:
            write_text(self.path / "classes.txt", "".join(f"{name}\n" for name in class_names))
        if importlib.util.find_spec("matplotlib") is not None:
            draw_curve(log, self.path / "curve.png", f"{model.name}: {recipe}")

    def _checkpoint(self, step: int) -> Path:
        return self.path / f"step-{step:08d}.npz"

    def _checkpoints(self) -> list[int]:
        matches = (_CHECKPOINT.fullmatch(path.name) for path in self.path.glob("step-*"))
        return [int(match[1]) for match in matches if match]

    def _clear(self) -> None:
        """Removes what a run leaves, and nothing else."""
        for pattern in ("step-*.npz", "step-*.h5", ".part-*", *RESULTS, "log.csv"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def _refuse(self) -> None:
        raise RuntimeError(f"Another process is training in {self.path} now. Choose another output, or wait for it.")

    def _check_same(self, record: Path) -> None:
        try:
            saved = json.loads(record.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(
                f"{record} is damaged, so the run cannot go on: pass resume=False to start again."
            ) from None
        if saved != self._settings:
            differences = printable("; ".join(_differences(saved, self._settings)), 2000)
            raise ValueError(
                f"{self.path} holds a run with other settings: {differences}. "
                "Choose another output, or pass resume=False to start again there."
            )


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    """What differs between two settings, each by its full name such as `recipe.steps`."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        return [
            line
            for key in names
            for line in _differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if old == new else [f"{name} was {old!r} and is now {new!r}"]


def _state(model: keras.Model) -> list[Any]:
    """All that a run goes on from: weights, states of random generators, what the optimizer keeps.

    Keras's own weight files leave the random generators out, so that dropout would start again, and add adapters
    (LoRA) to the kernels.
    """
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def _write_state(path: Path, model: keras.Model, about: dict[str, Any]) -> None:
    """Writes an `.npz`, array by array. Python writes it and not HDF5, which crashes where a disk is full."""
    values = (np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in _state(model))
    # The format knows no bfloat16: its bits are kept.
    arrays = (value.view("uint16") if value.dtype == "bfloat16" else value for value in values)
    text = np.frombuffer(json.dumps(about).encode(), "uint8")
    numbered = ((str(number), value) for number, value in enumerate(arrays))
    write_npz(path, itertools.chain([(_ABOUT, text)], numbered), overwrite=True)


def share_state(model: keras.Model, arrays: list[np.ndarray] | None, processes: Processes) -> None:
    """Gives a compiled model the state that process 0 has read, or the one that its own model is in (None)."""
    if arrays is not None or processes.count > 1:
        model.optimizer.build(model.trainable_variables)
        assign_everywhere(_state(model), arrays, processes)


def _read_state(path: Path, model: keras.Model) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The values of all variables, and what `_write_state` noted beside them. The model stays as it is."""
    variables = _state(model)
    try:
        file = read_npz(path)
        about = json.loads(file[_ABOUT].read_stored().tobytes())
        numbers = [str(number) for number in range(len(file) - 1)]
        stored = [(file[number].shape, file[number].stored) for number in numbers]
        if stored == [(tuple(variable.shape), _stored_type(variable)) for variable in variables]:
            values = [file[number].read_stored() for number in numbers]
            kinds = [str(variable.dtype) for variable in variables]
            return [v.view(k) if k == "bfloat16" else v for v, k in zip(values, kinds, strict=True)], about
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or of an older version ({error}): pass resume=False to start again."
        ) from error
    raise ValueError(
        f"{path} is of another model: it holds {len(stored)} arrays, where {len(variables)} of other shapes or "
        "types were expected. Pass resume=False to start again."
    )


def _stored_type(variable: Any) -> str:
    return "uint16" if str(variable.dtype) == "bfloat16" else str(variable.dtype)


def draw_curve(log: list[dict[str, Any]], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws loss, accuracy and learning rate over the steps of a run.

    Args:
        log: Rows with `step` and any of `loss`, `val_loss`, `accuracy`, `val_accuracy`, `learning_rate`.
        path: The `.png` to write; it appears when it is complete.
        title: Above the picture.

    Raises:
        ImportError: if matplotlib is not installed (`pip install "keras-vit[plots]"`).

    Examples:
        >>> training.draw_curve([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], "curve.png")
    """
    with figure_for(path, 12, 3.8, layout="constrained") as figure:
        figure.suptitle(title, weight="bold", x=0.01, ha="left")
        loss, accuracy, rate = figure.subplots(1, 3)
        _curves(loss, log, "loss", {"loss": "training", "val_loss": "test"})
        _curves(accuracy, log, "accuracy, %", {"accuracy": "training", "val_accuracy": "test"}, factor=100)
        _curves(rate, log, "learning rate", {"learning_rate": "learning rate"})


def _curves(axes: "Axes", log: list[dict[str, Any]], title: str, names: dict[str, str], factor: float = 1) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("step")
    for (name, label), colour in zip(names.items(), (FAINT, GOOD), strict=False):
        points = [(row["step"], factor * row[name]) for row in log if row.get(name) is not None]
        if points:
            label = f"{label} {points[-1][1]:.4g}"
            axes.plot(*zip(*points, strict=True), ".-", color=colour, linewidth=1.8, label=label)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)
