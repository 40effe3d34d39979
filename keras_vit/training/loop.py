"""The training loop: one `fit` that is evaluated, logged and saved in a folder, and goes on where it was killed."""

import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import locked, write_text
from keras_vit._pictures import FAINT, GOOD, figure_for
from keras_vit._processes import ALONE, Processes, scope_of
from keras_vit._terminal import ProgressBar, Table
from keras_vit.checkpoints.files import read_npz, write_npz
from keras_vit.data import Batches
from keras_vit.training.sharing import UNSHARED, Batch, FilledBatches, Sharing, assign_everywhere, own_randomness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ABOUT = "about"  # the array of a checkpoint that holds JSON: the log, and whether the run was over
_CHECKPOINT = re.compile(r"step-(\d+)\.npz")
# What a run leaves in its folder, and what goes when it starts again.
_FILES = ("step-*.npz", ".part-*", "log.csv", "model.keras", "adapters.npz", "classes.txt", "curve.png")


def train(
    model: keras.Model,
    batch: Batch,
    steps: int,
    *,
    every: int,
    batches_per_step: int = 1,
    validation: FilledBatches | None = None,
    folder: "RunFolder | None" = None,
    schedule: Callable[[int], Any] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    title: str = "training",
    verbose: bool = True,
    sharing: Sharing = UNSHARED,
    batch_size: int = 1,
) -> Table:
    """Trains a compiled model, from the folder's newest checkpoint on if there is one.

    Args:
        model: A compiled model.
        batch: From the number of a batch to `(inputs, targets)`. The same number must always give the same batch:
            that is what makes a run that was killed end like one that was not.
        steps: Updates of the weights in all, those before a kill included.
        every: After how many updates to evaluate, log and save.
        batches_per_step: Batches whose gradients make one update (the optimizer's `gradient_accumulation_steps`).
        validation: What to evaluate on.
        folder: Where to log and save; None for nowhere.
        schedule: The learning rate of an update by its number from 0, for the log.
        callbacks: Keras callbacks. To them `every` updates are an epoch.
        title: Beside the progress bar.
        verbose: Whether there is a progress bar.
        sharing: How batches are divided among processes; `batch` gives this one's part.
        batch_size: Images of a whole batch, where several processes share it.

    Returns:
        The log: a row per evaluation with `step`, `loss`, the metrics, those of the validation with `val_` before
        them, `learning_rate` and `seconds`.

    Raises:
        FloatingPointError: if the loss is not finite. The last checkpoint before that is kept.
        OSError: if a checkpoint cannot be written, on a full disk for example. The one before it is kept.
    """
    with folder.locked() if folder else contextlib.nullcontext():
        start, finished, log = folder.restore(model) if folder else (0, False, Table())
        if not folder:
            share_state(model, None, sharing.processes)
        if folder and finished:
            if verbose:
                report(f"{title}: the run in {folder.path} was over after {start:,} steps, and is not trained again.")
            if validation is not None and log[-1].get("val_loss") is None:
                log[-1] |= _evaluate(model, validation)
                folder.save(model, start, log, finished=True)
            return log
        bar = ProgressBar(title, steps, shown=verbose, stays=True)
        progress = _Progress(start, steps, batches_per_step, bar)
        begun = time.perf_counter() - (log[-1]["seconds"] if log else 0.0)

        def record(epoch: int, logs: dict[str, float]) -> None:
            """Evaluates, logs and saves. The callbacks of the user come after this one and find it all in `logs`."""
            logs |= sharing.training_means({name: float(value) for name, value in logs.items()}, batch_size)
            if not np.isfinite(logs["loss"]):
                kept = f" {folder.path} still holds step {log[-1]['step']}." if folder and log else ""
                raise FloatingPointError(
                    f"The loss is {logs['loss']} between steps {log[-1]['step'] if log else 0} and {progress.step}. "
                    f"Lower the learning rate, warm up for longer or clip the gradients (recipe.replace(...)).{kept}"
                )
            if validation is not None:
                logs |= _evaluate(model, validation)
            rate = {} if schedule is None else {"learning_rate": float(schedule(max(progress.step - 1, 0)))}
            log.append({"step": progress.step, **logs, **rate, "seconds": time.perf_counter() - begun})
            if folder:
                folder.save(model, progress.step, log)
            shares = {"train": logs.get("accuracy"), "test": logs.get("val_accuracy")}
            noted = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
            bar.note(", ".join([f"loss {logs['loss']:.3f}", *noted]))

        ours = [progress, keras.callbacks.LambdaCallback(on_epoch_end=record)]
        with bar, own_randomness(model, sharing.processes):
            bar.update(start)
            if start < steps:
                model.fit(
                    # Keras looks at the first two batches before it takes them.
                    Batches(functools.lru_cache(2)(batch), range(start * batches_per_step, steps * batches_per_step)),
                    steps_per_epoch=every * batches_per_step,
                    initial_epoch=start // every,
                    epochs=start // every + math.ceil((steps - start) / every),
                    shuffle=False,
                    verbose=0,
                    callbacks=[*ours, *callbacks, *([_StopTogether(sharing.processes)] if callbacks else [])],
                )
            else:  # it was killed after its last checkpoint
                model.optimizer.finalize_variable_values(model.trainable_variables)
        if folder:  # with what callbacks and averages made of the weights
            folder.save(model, progress.step, log, finished=True)
    return log


class _Progress(keras.callbacks.Callback):
    """Counts updates, and ends `fit` after the last one, where `every` does not divide them."""

    def __init__(self, start: int, steps: int, batches_per_step: int, bar: ProgressBar) -> None:
        super().__init__()
        self.step, self._steps, self._bar = start, steps, bar
        self._batches, self._batches_per_step = 0, batches_per_step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._batches % self._batches_per_step == 0:
            self.step += 1
            self._bar.advance()
        self.model.stop_training |= self.step == self._steps


class _StopTogether(keras.callbacks.Callback):
    """Stops all processes where a callback has stopped one of them: the others would wait for it."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes = processes

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._processes.count > 1:
            self.model.stop_training = self._processes.any(self.model.stop_training)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.on_train_batch_end(epoch)


def _evaluate(model: keras.Model, validation: FilledBatches) -> dict[str, float]:
    """Loss and metrics, with the averaged weights where the optimizer keeps averages (`use_ema`)."""
    # In float16 Keras wraps the optimizer in one that scales the loss and has a `use_ema` of its own, always False.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    weights = model.trainable_variables if optimizer.use_ema else []
    kept = [keras.ops.copy(weight.value) for weight in weights]
    try:
        if optimizer.use_ema:
            optimizer.finalize_variable_values(weights)
        for weight in weights:
            weight.assign(keras.ops.copy(weight.value))  # JAX would give up the buffer that the optimizer holds as well
        return {f"val_{name}": float(value) for name, value in validation.evaluate(model).items()}
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.assign(value)


def report(text: str) -> None:
    """Prints on standard error."""
    for line in text.splitlines():
        print(printable(line), file=sys.stderr)


class RunFolder:
    """One run's files. Each is written under another name and moved into place, so that a kill leaves none in halves.

    `run.json` holds the settings, `step-N.npz` the weights, the optimizer's state, the state of every random generator
    and the log after N steps, `log.csv` the log for people: a row per evaluation.

    Args:
        path: The folder; it is made if need be.
        settings: What decides the numbers of the run, as plain data. A run goes on only where they are the same.
        resume: Whether a run that is in the folder goes on. False starts afresh and removes the old one's files.
        processes: Those of the run. Only the first reads and writes the folder, and sends the others what is in it.

    Raises:
        ValueError: if the folder holds a run with other settings or of an older version, or something that is no run.
        RuntimeError: if another process is training there now (from `locked`).
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: dict[str, Any], resume: bool = True, processes: Processes = ALONE
    ) -> None:
        self.path, self._processes, self._settings = Path(path), processes, settings
        record = self.path / "run.json"
        self._goes_on = resume and record.exists()
        if not processes.first:
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output must be a folder, but {self.path} is a file.")
        if self._goes_on:
            self._check_same(record)
        elif not record.exists() and any(self.path.glob("[!.]*")):
            raise ValueError(f"output must be a new folder or that of a run, but {self.path} holds other files.")

    def _check_same(self, record: Path) -> None:
        try:
            saved = _flat(json.loads(record.read_text(encoding="utf-8")))
        except (ValueError, RecursionError):
            raise ValueError(f"{record} is damaged, so the run cannot go on. resume=False starts again.") from None
        now = _flat(json.loads(json.dumps(self._settings)))
        differences = [
            f"{name} was {saved.get(name)!r} and is now {now.get(name)!r}"
            for name in saved | now
            if saved.get(name) != now.get(name)
        ]
        if differences:
            raise ValueError(
                f"{self.path} holds a run with other settings: {printable('; '.join(differences), 2000)}. "
                "Choose another output, or pass resume=False to start again there."
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out, for as long as this one trains."""
        if not self._processes.first:
            yield
            return

        def refuse() -> None:
            raise RuntimeError(f"Another process is training in {self.path}. Choose another output, or wait for it.")

        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", waiting=refuse):
            if not self._goes_on:
                for file in itertools.chain.from_iterable(map(self.path.glob, _FILES)):
                    file.unlink(missing_ok=True)
                write_text(self.path / "run.json", json.dumps(self._settings, indent=2) + "\n")
            yield

    def restore(self, model: keras.Model) -> tuple[int, bool, Table]:
        """Puts the newest checkpoint into a compiled model.

        Returns:
            The steps that it has behind it, 0 where there is no checkpoint; whether the run was over then; and its log.
        """
        newest, arrays, about = max(self._checkpoints(), default=None), None, {}
        if newest is not None and self._processes.first:
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
        path, older = self._checkpoint(step), [number for number in self._checkpoints() if number != step]
        try:
            _write_state(path, model, {"finished": finished, "log": log})
        except OSError as error:
            kept = f"The one of step {max(older)} is kept." if older else "There is no older one."
            reason = f"The checkpoint {path} cannot be written ({error.strerror or error}). {kept} Make room, and call "
            raise OSError(error.errno, f"{reason}again in the same way to go on.") from error
        for number in older:
            self._checkpoint(number).unlink(missing_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, dict.fromkeys(key for row in log for key in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
        write_text(self.path / "log.csv", text.getvalue())

    def _checkpoint(self, step: int) -> Path:
        return self.path / f"step-{step:08d}.npz"

    def _checkpoints(self) -> list[int]:
        matches = (_CHECKPOINT.fullmatch(path.name) for path in self.path.glob("step-*"))
        return [int(match[1]) for match in matches if match]


def _flat(data: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested settings, each by its full name such as `recipe.steps`."""
    if not isinstance(data, dict):
        return {name: data}
    leaves = (_flat(value, f"{name}.{key}" if name else key) for key, value in data.items())
    return dict(itertools.chain.from_iterable(map(dict.items, leaves)))


def _state(model: keras.Model) -> list[Any]:
    """All that a run goes on from: weights, states of random generators, what the optimizer keeps.

    Keras's own weight files leave the random generators out, so that dropout would start again, and add adapters
    (LoRA) to the kernels.
    """
    if not model.optimizer.built:  # within the first update, TensorFlow would trace that update a second time
        with scope_of(model):
            model.optimizer.build(model.trainable_variables)
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def share_state(model: keras.Model, arrays: list[np.ndarray] | None, processes: Processes) -> None:
    """Gives a compiled model the state that process 0 has read, or the one that its own model is in (None)."""
    assign_everywhere(_state(model), arrays, processes)


def _write_state(path: Path, model: keras.Model, about: dict[str, Any]) -> None:
    """Writes an `.npz`, array by array. Python writes it and not HDF5, which crashes where a disk is full."""
    values = (np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in _state(model))
    # The format knows no bfloat16: its bits are kept.
    arrays = (value.view("uint16") if value.dtype == "bfloat16" else value for value in values)
    numbered = ((str(number), value) for number, value in enumerate(arrays))
    text = np.frombuffer(json.dumps(about).encode(), "uint8")
    write_npz(path, itertools.chain([(_ABOUT, text)], numbered), overwrite=True)


def _read_state(path: Path, model: keras.Model) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The values of all variables, and what `_write_state` noted beside them. The model stays as it is."""
    variables = [(tuple(variable.shape), str(variable.dtype)) for variable in _state(model)]
    wanted = [(shape, "uint16" if dtype == "bfloat16" else dtype) for shape, dtype in variables]
    try:
        file = read_npz(path)
        about = json.loads(file[_ABOUT].read_stored().tobytes())
        arrays = [file[str(number)] for number in range(len(file) - 1)]
        if [(array.shape, array.stored) for array in arrays] == wanted:
            return [a.read_stored().view(dtype) for a, (_, dtype) in zip(arrays, variables, strict=True)], about
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged, or of an older version ({error}). resume=False starts again.") from error
    raise ValueError(
        f"{path} is of another model: its {len(arrays)} arrays are not the {len(wanted)} that were expected, or of "
        "other shapes or types. resume=False starts again."
    )


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
        _draw_lines(loss, log, "loss", {"loss": "training", "val_loss": "test"})
        _draw_lines(accuracy, log, "accuracy, %", {"accuracy": "training", "val_accuracy": "test"}, factor=100)
        _draw_lines(rate, log, "learning rate", {"learning_rate": "learning rate"})


def _draw_lines(axes: "Axes", log: list[dict[str, Any]], title: str, names: dict[str, str], factor: float = 1) -> None:
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
