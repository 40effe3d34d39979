"""The folder of one training run: what was asked for, the newest checkpoint, the log. A run that is killed goes on."""

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._files import replacing, write_text
from keras_vit.checkpoints.file_lock import file_lock
from keras_vit.tables import Table

_CHECKPOINT = re.compile(r"step-(\d+)\.h5")


class RunFolder:
    """One run's files. Each is written under another name and moved into place, so that a kill leaves none in halves.

    `run.json` holds the settings, `step-N.h5` the weights, the optimizer's state and the state of every random
    generator after N steps, `log.csv` a row per evaluation.

    Args:
        path: The folder; it is made if need be.
        settings: What decides the numbers of the run, as plain data. A run goes on only where they are the same.
        resume: Whether a run that is in the folder goes on. False starts afresh and removes the old one's files.

    Raises:
        ValueError: if the folder holds a run with other settings, or something that is no run.
        RuntimeError: if another process is training there now (from `locked`).
    """

    def __init__(self, path: str | os.PathLike[str], settings: dict[str, Any], resume: bool = True) -> None:
        self.path = Path(path)
        self._settings = json.loads(json.dumps(settings))
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output must be a folder, but {self.path} is a file.")
        record = self.path / "run.json"
        if record.exists() and resume:
            self._check_same(record)
        elif not record.exists() and self.path.is_dir() and any(self.path.iterdir()):
            raise ValueError(
                f"output must be a new or empty folder, or one with a run in it, but {self.path} holds other files."
            )
        self._afresh = not (record.exists() and resume)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out, for as long as this one trains."""
        self.path.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path / ".lock", waiting=self._refuse):
            if self._afresh:
                self._clear()
                write_text(self.path / "run.json", json.dumps(self._settings, indent=2) + "\n")
            yield

    def restore(self, model: keras.Model) -> int:
        """Puts the newest checkpoint into a compiled model.

        Returns:
            The steps that it has behind it; 0 where there is no checkpoint.
        """
        checkpoints = self._checkpoints()
        if not checkpoints:
            return 0
        step = max(checkpoints)
        model.optimizer.build(model.trainable_variables)
        _read_state(checkpoints[step], model)
        rows = [row for row in self.log() if row["step"] <= step]
        self.write_log(rows)
        return step

    def save(self, model: keras.Model, step: int) -> None:
        """Writes a checkpoint; older ones go when it is complete."""
        old = self._checkpoints()
        with replacing(self.path / f"step-{step:08d}.h5") as temporary:
            _write_state(temporary, model)
            _to_disk(temporary)
        for number, file in old.items():
            if number != step:
                file.unlink(missing_ok=True)

    def log(self) -> Table:
        """The rows of the log so far."""
        path = self.path / "log.csv"
        if not path.exists():
            return Table()
        with path.open(newline="", encoding="utf-8") as file:
            return Table({key: _number(value) for key, value in row.items()} for row in csv.DictReader(file))

    def write_log(self, rows: list[dict[str, Any]]) -> None:
        """Writes all rows of the log, which have the same keys."""
        text = io.StringIO()
        if rows:
            writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        write_text(self.path / "log.csv", text.getvalue())

    def _checkpoints(self) -> dict[int, Path]:
        matches = ((path, _CHECKPOINT.fullmatch(path.name)) for path in self.path.glob("step-*"))
        return {int(match[1]): path for path, match in matches if match}

    def _clear(self) -> None:
        unfinished = self.path.glob(".step-*.part")
        for path in [self.path / "log.csv", *self._checkpoints().values(), *unfinished]:
            path.unlink(missing_ok=True)

    def _refuse(self) -> None:
        raise RuntimeError(f"Another process is training in {self.path} now. Choose another output, or wait for it.")

    def _check_same(self, record: Path) -> None:
        try:
            found = json.loads(record.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(
                f"{record} is damaged, so the run cannot go on: pass resume=False to start again."
            ) from None
        different = [
            f"{key} was {found.get(key)!r} and is now {self._settings.get(key)!r}"
            for key in dict.fromkeys([*found, *self._settings])
            if found.get(key) != self._settings.get(key)
        ]
        if different:
            raise ValueError(
                f"{self.path} holds a run with other settings: {'; '.join(different)}. Choose another output, or pass "
                "resume=False to start again there."
            )


def _state(model: keras.Model) -> list[Any]:
    """All that a run goes on from: weights, states of random generators, what the optimizer keeps.

    Keras's own weight files leave the random generators out, so that dropout would start again, and add adapters
    (LoRA) to the kernels.
    """
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def _write_state(path: Path, model: keras.Model) -> None:
    with h5py.File(path, "w") as file:
        for number, variable in enumerate(_state(model)):
            value = np.asarray(keras.ops.convert_to_numpy(variable.value))
            # HDF5 has no bfloat16: its bits are kept.
            file[str(number)] = value.view("uint16") if value.dtype == "bfloat16" else value
            file[str(number)].attrs["path"] = variable.path


def _read_state(path: Path, model: keras.Model) -> None:
    variables = _state(model)
    with h5py.File(path) as file:
        found = [file[str(number)].shape for number in range(len(file))]
        wanted = [tuple(variable.shape) for variable in variables]
        if found != wanted:
            raise ValueError(
                f"{path} is of another model: it holds {len(found)} arrays, where {len(wanted)} of other shapes were "
                "expected. Pass resume=False to start again."
            )
        for number, variable in enumerate(variables):
            value = file[str(number)][()]
            variable.assign(value.view("bfloat16") if str(variable.dtype) == "bfloat16" else value)


def _to_disk(path: Path) -> None:
    """Waits until a file is on the disk: the old checkpoint goes only when the new one would survive a power cut."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number(text: str) -> int | float | str | None:
    if text == "":
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
