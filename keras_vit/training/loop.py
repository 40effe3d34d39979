"""The training loop: one `fit` that is evaluated, logged and saved in a folder, and goes on where it was killed."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._arguments import printable, warn_caller
from keras_vit._files import locked, write_text
from keras_vit._pictures import FAINT, GOOD, figure_for
from keras_vit._processes import ALONE, Processes
from keras_vit._terminal import ProgressBar, Table
from keras_vit.checkpoints.files import read_npz, write_npz
from keras_vit.data import Batches
from keras_vit.training.distribution import UNSHARED, Batch, Sharing, randomness_of_process, share_state, state_of
from keras_vit.training.recipes import MEASURES, Recipe, build_schedule

_ABOUT = "about"  # the array of a checkpoint that holds JSON: the log, and whether the run was over
PAUSE = 30.0  # seconds after which a run says its step, where there is no terminal for a bar
_CHECKPOINT = re.compile(r"step-(\d+)\.npz")
# Shares that an evaluation measures, and what the progress bar and the curve call them.
_SHARES = {
    "accuracy": ("train", "training"),
    "val_accuracy": ("test", "test"),
    "val_ranking_precision": ("ranking", "ranking precision, test"),
    "val_mean_iou": ("mIoU", "mean IoU, test"),
    "val_panoptic_quality": ("PQ", "PQ, test"),
    "val_ap": ("AP", "AP, test"),
    "val_mask_ap": ("mask AP", "mask AP, test"),
}
_SHARES |= {f"val_{name}": (name, f"{name} with the teacher, test") for name in ("pooled_cosine", "cka", "knn")}
# What a run leaves in its folder, and what goes when it starts again.
_FILES = ("step-*.npz", "log.csv", "model.keras", "adapt?rs.npz", "classes.txt", "curve.png", "masks.png", "boxes.png")


def check_callbacks(callbacks: Any, recipe: Recipe) -> None:
    """Raises TypeError unless it is a sequence of callbacks, ValueError if one works against the recipe."""
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise TypeError(f"callbacks must be a list of Keras callbacks, but {callbacks!r} was given.")
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)):
            raise ValueError(f"callbacks has a {name}, but the recipe sets the learning rate (recipe.replace(...)).")
        stores = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore, keras.callbacks.SwapEMAWeights)
        if recipe.polyak is not None and (
            isinstance(callback, stores) or getattr(callback, "restore_best_weights", False)
        ):
            raise ValueError(
                f"callbacks has a {name}, which would store or restore other weights than the averages (polyak). Give "
                'recipe.replace(keep="best") in its place.'
            )


@dataclasses.dataclass(kw_only=True)
class Loop:
    """How a compiled model is trained: for how long, on what it is evaluated, and where that is kept."""

    recipe: Recipe
    every: int  # updates between two evaluations and checkpoints
    validation: Any = None  # `FilledBatches`, or what has such an `evaluate(model)`
    picture: Path | None = None  # the file in which `validation` draws at each evaluation what was found
    folder: "RunFolder | None" = None  # where checkpoints lie
    title: str = "training"  # beside the progress bar
    measures: tuple[str, ...] = MEASURES
    verbose: bool = True  # whether there is one
    sharing: Sharing = UNSHARED  # how each batch is divided
    batch_size: int = 1  # of whole batches, where several processes share them

    @property
    def steps(self) -> int:
        """Updates in all, those before a kill included."""
        return self.recipe.total_steps()

    def train(self, model: keras.Model, batch: Batch, callbacks: Sequence[keras.callbacks.Callback] = ()) -> Table:
        """Trains a compiled model, from the folder's newest checkpoint on if there is one."""
        with self.folder.locked() if self.folder else contextlib.nullcontext():
            start, finished, log = self.folder.restore(model) if self.folder else (0, False, Table())
            if self.folder and finished:
                return self._evaluate_finished_run(model, self.folder, start, log)
            if not self.folder:
                share_state(model, None, self.sharing.processes)
            recorder = _Recorder(self, start, log)
            with recorder.bar, randomness_of_process(model, self.sharing.processes):
                recorder.bar.update(start)
                if start and self.verbose:
                    report(f"{self.title}: goes on after step {start:,} of {self.steps:,}, the last one saved.")
                if start < self.steps and not _out_of_patience(log, self.recipe.patience, self.measures):
                    self._fit(model, batch, start, recorder, callbacks)
                else:  # it was killed after its last checkpoint
                    model.optimizer.finalize_variable_values(model.trainable_variables)
            if self.recipe.keep == "best" and not log[-1].get("kept"):
                self._take_best(model, log, recorder.best_state)
            if self.folder:  # with what callbacks and averages made of the weights
                self.folder.save(model, recorder.step, log, finished=True)
        return log

    def _evaluate_finished_run(self, model: keras.Model, folder: "RunFolder", step: int, log: Table) -> Table:
        """Returns the log of a run that was over, with figures if it had no images to evaluate on and has some now."""
        if self.verbose:
            words = f"was over after {step:,} steps, and is not trained again"
            report(f"{self.title}: the run in {folder.path} {words}.")
        if self.validation is not None and not any(name.startswith("val_") for name in log[-1]):
            log[-1] |= _evaluate(model, self.validation)
            folder.save(model, step, log, finished=True)
        return log

    def _fit(
        self,
        model: keras.Model,
        batch: Batch,
        start: int,
        recorder: "_Recorder",
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        """Trains from step `start` on with one `fit`, and marks in the log what callbacks of the user restored."""
        per_step = self.recipe.accumulate  # batches
        together = _StopTogether(self.sharing.processes)
        numbers = range(start * per_step, self.steps * per_step)
        batches = Batches(functools.lru_cache(2)(batch), numbers)  # Keras looks at the first two before it takes them
        with batches.own_errors():
            model.fit(
                batches,
                steps_per_epoch=self.every * per_step,
                initial_epoch=start // self.every,
                epochs=start // self.every + math.ceil((self.steps - start) / self.every),
                shuffle=False,
                verbose=0,
                callbacks=[recorder, *callbacks, together] if callbacks else [recorder],
            )
        if callbacks and self.validation is not None:
            _mark_restored(recorder.log, recorder.step, _evaluate(model, self.validation))

    def _take_best(self, model: keras.Model, log: Table, best_state: list[np.ndarray] | None) -> None:
        """Puts the weights of the row that is `kept` into the model, from the folder or else from `best_state`."""
        kept = next(row["step"] for row in log if row["kept"])
        state = self.folder.state(model, kept) if self.folder else best_state
        share_state(model, state, self.sharing.processes)
        model.optimizer.finalize_variable_values(model.trainable_variables)
        if self.verbose:
            report(f"{self.title}: the weights of step {kept:,} were the best, and are kept.")


class _Recorder(keras.callbacks.Callback):
    """Counts updates; evaluates, logs and saves at the end of what is an epoch to Keras, `every` updates.

    Callbacks of the user come after it and find all figures in `logs`.
    """

    def __init__(self, loop: Loop, step: int, log: Table) -> None:
        super().__init__()
        self.loop, self.step, self.log = loop, step, log
        self.schedule = build_schedule(loop.recipe)
        self.bar = ProgressBar(loop.title, loop.steps, shown=loop.verbose, stays=True)
        self.best_state: list[np.ndarray] | None = None  # where there is no folder with it
        self._batches = 0
        self._reported = time.perf_counter()
        self._begun = self._reported - (log[-1]["seconds"] if log else 0.0)

    def on_train_batch_end(self, number: int, logs: Any = None) -> None:
        """Counts a batch, and ends `fit` after the last update, also where `every` does not divide them."""
        self._batches += 1
        if self._batches % self.loop.recipe.accumulate == 0:
            self.step += 1
            self.bar.advance()
            if self.loop.verbose and not self.bar.is_shown and time.perf_counter() - self._reported > PAUSE:
                self._report()
        self.model.stop_training |= self.step == self.loop.steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluates, logs, saves, and may stop training; FloatingPointError for a loss that is not finite."""
        loop, log = self.loop, self.log
        logs |= loop.sharing.training_means({name: float(value) for name, value in logs.items()}, loop.batch_size)
        if not np.isfinite(logs["loss"]):
            raise FloatingPointError(self._advice(logs["loss"]))
        if loop.validation is not None:
            logs |= _evaluate(self.model, loop.validation, loop.picture)
        rate = float(self.schedule(max(self.step - 1, 0)))
        seconds = time.perf_counter() - self._begun
        log.append({"step": self.step, **logs, "learning_rate": rate, "seconds": seconds})
        if loop.recipe.keep == "best":
            _mark_kept(log, loop.measures)
            if log[-1]["kept"] and not loop.folder and loop.sharing.processes.first:
                values = (keras.ops.convert_to_numpy(variable.value) for variable in state_of(self.model))
                self.best_state = [np.copy(value) for value in values]
        if loop.folder:
            loop.folder.save(self.model, self.step, log)
        self.model.stop_training |= _out_of_patience(log, loop.recipe.patience, loop.measures)
        noted = [f"{name} {logs[share]:.1%}" for share, (name, _) in _SHARES.items() if share in logs]
        if "rank" in logs:  # of embeddings: whether they collapse
            noted += [f"rank {logs['rank']:.1f}"]
        note = ", ".join([f"loss {logs['loss']:.3f}", *noted])
        self.bar.note(note)
        if loop.verbose and not self.bar.is_shown:
            self._report(f", {note}")

    def _report(self, note: str = "") -> None:
        self._reported = time.perf_counter()
        report(f"{self.loop.title}: step {self.step:,} of {self.loop.steps:,}{note}")

    def _advice(self, loss: float) -> str:
        before, folder = self.log[-1]["step"] if self.log else 0, self.loop.folder
        kept = f" {folder.path} still holds step {before}." if folder and self.log else ""
        return (
            f"The loss is {loss} between steps {before} and {self.step}. Lower the learning rate, warm up for longer "
            f"or clip the gradients (recipe.replace(...)).{kept}"
        )


class _StopTogether(keras.callbacks.Callback):
    """Stops all processes where a callback of the user stops one, for which the others would wait."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes = processes

    def on_train_batch_end(self, number: int, logs: Any = None) -> None:
        if self._processes.count > 1:
            self.model.stop_training = self._processes.any(self.model.stop_training)

    on_epoch_end = on_train_batch_end


def _best(log: list[dict[str, Any]], measures: Sequence[str]) -> int:
    """Returns the number of the best row of a log, the first of several; ValueError for no rows."""

    def score(number: int) -> list[float]:
        row = log[number]
        measure = next((row[name] for name in measures if row.get(name) is not None), 0.0)
        loss = row.get("val_loss", math.nan if measure else row.get("loss", math.nan))  # a measure of 0 decides nothing
        return [-math.inf if math.isnan(value) else value for value in (measure, -loss)]

    return max(range(len(log)), key=score)


def _mark_kept(log: list[dict[str, Any]], measures: Sequence[str]) -> None:
    """Changes a log: `kept` becomes True in its best row (see `_best`), and False in all others."""
    best = _best(log, measures)
    for number, row in enumerate(log):
        row["kept"] = number == best


def _mark_restored(log: Table, step: int, figures: dict[str, float]) -> None:
    """Marks in a log as `kept` the row with the figures of the weights that are there at the end of `fit`."""
    same = [row for row in log if all(row.get(name) == value for name, value in figures.items())]
    if same and same[-1] is log[-1]:  # no callback has: the rows are marked already
        return
    if not same:
        same = [{**log[-1], "step": step, **figures}]
        log += same
    for row in log:
        row["kept"] = row is same[-1]


def _out_of_patience(log: list[dict[str, Any]], patience: int | None, measures: Sequence[str]) -> bool:
    """Whether the last `patience` evaluations were no better than one before. The log alone decides: runs go on."""
    return patience is not None and bool(log) and len(log) - 1 - _best(log, measures) >= patience


def _evaluate(model: keras.Model, validation: Any, picture: Path | None = None) -> dict[str, float]:
    """Returns `val_` loss and metrics of the averaged weights, if there are any; draws `picture` if it is a path."""
    # In float16 Keras wraps the optimizer in one that scales the loss and has a `use_ema` of its own, always False.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    weights = model.trainable_variables if optimizer.use_ema else []
    kept = [keras.ops.copy(weight.value) for weight in weights]
    try:
        if optimizer.use_ema:
            optimizer.finalize_variable_values(weights)
        for weight in weights:
            weight.assign(keras.ops.copy(weight.value))  # JAX would give up the buffer that the optimizer holds as well
        figures = {f"val_{name}": float(value) for name, value in validation.evaluate(model).items()}
        if picture is not None:
            validation.draw(picture)
        return figures
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.assign(value)


def report(text: str) -> None:
    """Prints a text on standard error, without its control characters."""
    for line in text.splitlines():
        print(printable(line), file=sys.stderr)


class RunFolder:
    """One run's files, each moved into place when it is complete; only the first process reads and writes them.

    `run.json` holds the settings, the plain data that decide the run's numbers, and as `begun_with` fingerprints of
    weights and data (None of a pipeline). `step-N.npz` holds the weights, the state of the optimizer and of every
    random generator and the log after N steps, `log.csv` the log for people.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: dict[str, Any],
        resume: bool = True,
        processes: Processes = ALONE,
        begun_with: Mapping[str, str | None] | None = None,
    ) -> None:
        """Checks that the folder is new or holds this run, and writes nothing."""
        self.path, self._processes, self._settings = Path(path).expanduser(), processes, settings
        self._begun_with = dict(begun_with or {})
        record = self.path / "run.json"
        self._goes_on = resume and record.exists()
        if not processes.first:
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output must be a folder, but {self.path} is a file. Choose another path.")
        if self._goes_on:
            self._check_same(record)
        elif not record.exists() and any(self.path.glob("[!.]*")):
            raise ValueError(f"output must be a new folder or that of a run, but {self.path} holds other files.")

    def _check_same(self, record: Path) -> None:
        """Raises ValueError if the folder's run has other settings or is damaged; warns of other arithmetic."""
        try:
            settings = dict(json.loads(record.read_text(encoding="utf-8")))
            begun_with = dict(settings.pop("begun_with", {}))
            saved = _flat(settings)
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"{record} is damaged. resume=False (--restart) starts the run again.") from None
        now = _flat(json.loads(json.dumps(self._settings)))
        if begun_with:  # which tell the data better
            saved["data.fingerprint"] = now.get("data.fingerprint")
        changes, other = [], []  # of settings, and of arithmetic, which older folders do not note
        for name, (old, new) in {name: (saved.get(name), now.get(name)) for name in saved | now}.items():
            if old != new and not (name.startswith("arithmetic.") and None in (old, new)):
                found = other if name.startswith("arithmetic.") else changes
                found.append(f"{name} was {old!r} and is now {new!r}")
        marks = self._begun_with.items()
        changes += [f"the {name} differ" for name, mark in marks if begun_with.get(name, mark) != mark]
        if changes:
            raise ValueError(
                f"{self.path} holds a run with other settings: {printable('; '.join(changes), 2000)}. Choose another "
                "output, or pass resume=False (--restart) to start again there."
            )
        if other:
            warn_caller(
                f"{self.path} holds a run with other arithmetic, so the last digits of the result differ: "
                f"{'; '.join(other)}. The environment variable of that name restores it."
            )
        unknown = [name for name, mark in marks if mark is None or not begun_with]
        if unknown:
            reason = "a pipeline has no fingerprint" if begun_with else "an older version began it and noted none"
            warn_caller(f"Nobody can tell whether {self.path} is of the same {' and '.join(unknown)}: {reason}.")
        self._settings, self._begun_with = settings, begun_with | self._begun_with

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other runs out within, writes `run.json`, and removes what killed or older runs have left."""
        if not self._processes.first:
            yield
            return

        def refuse() -> None:
            raise RuntimeError(f"Another process is training in {self.path}. Choose another output, or wait for it.")

        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"output must be a folder that can be written, but {self.path}: {error}.") from error
        with locked(self.path / ".lock", waiting=refuse):
            # Nobody else writes here: half-written files are those of runs that were killed.
            gone = [f".part-*-{name}" for name in _FILES] + ([] if self._goes_on else list(_FILES))
            for file in itertools.chain.from_iterable(map(self.path.glob, gone)):
                file.unlink(missing_ok=True)
            noted = {"begun_with": self._begun_with} if self._begun_with else {}
            write_text(self.path / "run.json", json.dumps(self._settings | noted, indent=2) + "\n")
            yield

    def restore(self, model: keras.Model) -> tuple[int, bool, Table]:
        """Puts the newest checkpoint into a compiled model; returns its step or 0, if the run was over, its log."""
        newest, arrays, about = max(self._checkpoints(), default=None), None, {}
        if newest is not None and self._processes.first:
            arrays, about = _read_state(self._checkpoint(newest), model)
        share_state(model, arrays, self._processes)
        step, *rest = self._processes.from_first([newest or 0, about.get("finished", False), about.get("log", [])])
        return step, rest[0], Table(rest[1])

    def state(self, model: keras.Model, step: int) -> list[np.ndarray] | None:
        """Returns the state of a compiled model in the checkpoint of a step; None in all processes but the first."""
        return _read_state(self._checkpoint(step), model)[0] if self._processes.first else None

    def save(self, model: keras.Model, step: int, log: list[dict[str, Any]], finished: bool = False) -> None:
        """Writes a checkpoint and `log.csv`; when it is complete, all older ones go but the one that is `kept`."""
        if not self._processes.first:
            return
        path, older = self._checkpoint(step), [number for number in self._checkpoints() if number != step]
        try:
            _write_state(path, model, {"finished": finished, "log": log})
        except OSError as error:
            kept = f"The one of step {max(older)} is kept." if older else "There is no older one."
            reason = f"The checkpoint {path} cannot be written ({error.strerror or error}). {kept} Make room, and call "
            raise OSError(error.errno, f"{reason}again in the same way to go on.") from error
        kept = {row["step"] for row in log if row.get("kept") and not finished}
        for number in set(older) - kept:
            self._checkpoint(number).unlink(missing_ok=True)
        write_text(self.path / "log.csv", Table(log).to_csv())

    def _checkpoint(self, step: int) -> Path:
        return self.path / f"step-{step:08d}.npz"

    def _checkpoints(self) -> list[int]:
        matches = (_CHECKPOINT.fullmatch(path.name) for path in self.path.glob("step-*"))
        return [int(match[1]) for match in matches if match]


def _flat(data: Any, name: str = "") -> dict[str, Any]:
    """Returns the leaves of nested settings, each by its full name such as `recipe.steps`."""
    if not isinstance(data, dict):
        return {name: data}
    leaves = (_flat(value, f"{name}.{key}" if name else key) for key, value in data.items())
    return dict(itertools.chain.from_iterable(map(dict.items, leaves)))


def _write_state(path: Path, model: keras.Model, about: dict[str, Any]) -> None:
    """Writes the values of all variables of a compiled model, and `about` beside them, to an `.npz`."""
    # Array by array, because HDF5 crashes where a disk is full.
    values = (np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in state_of(model))
    # The format knows no bfloat16: its bits are kept.
    arrays = (value.view("uint16") if value.dtype == "bfloat16" else value for value in values)
    numbered = ((str(number), value) for number, value in enumerate(arrays))
    text = np.frombuffer(json.dumps(about).encode(), "uint8")
    write_npz(path, itertools.chain([(_ABOUT, text)], numbered), overwrite=True)


def _read_state(path: Path, model: keras.Model) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Returns the values of all variables, and what `_write_state` noted beside them. The model stays as it is."""
    variables = [(tuple(variable.shape), str(variable.dtype)) for variable in state_of(model)]
    wanted = [(shape, "uint16" if dtype == "bfloat16" else dtype) for shape, dtype in variables]
    try:
        file = read_npz(path)
        about = json.loads(file[_ABOUT].read_stored().tobytes())
        arrays = [file[str(number)] for number in range(len(file) - 1)]
        if [(array.shape, array.stored) for array in arrays] == wanted:
            return [a.read_stored().view(dtype) for a, (_, dtype) in zip(arrays, variables, strict=True)], about
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}). resume=False (--restart) starts the run again.") from error
    raise ValueError(f"{path} belongs to another model. resume=False (--restart) starts the run again.")


def draw_curve(log: list[dict[str, Any]], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws loss, accuracy and learning rate over the steps of a run, into the `.png` at `path`.

    Args:
        log: Rows with `step` and any of `loss`, `val_loss`, `accuracy`, `val_accuracy`, `val_ranking_precision`,
            `val_mean_iou`, `val_panoptic_quality`, `learning_rate`.
        path: It appears when it is complete.
        title: Title of the picture.

    Raises:
        ImportError, OSError: if matplotlib is not installed, or the file cannot be written.
        KeyError, ValueError: if a row has no `step`; if `path` has another ending.

    Examples:
        >>> training.draw_curve([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], "curve.png")
    """
    shares = {share: label for share, (_, label) in _SHARES.items()}
    panels = (
        ("loss", 1, {"loss": "training", "val_loss": "test"}),
        ("accuracy, %", 100, shares),
        ("learning rate", 1, {"learning_rate": "last"}),
    )
    with figure_for(path, 8, 3.2, layout="constrained") as figure:  # readable in a column of text
        figure.suptitle(title, weight="bold", x=0.01, ha="left")
        for axes, (name, factor, lines) in zip(figure.subplots(1, 3), panels, strict=True):
            axes.set_title(name, loc="left", fontsize=12)
            axes.set_xlabel("step")
            for column, label in lines.items():
                points = [(row["step"], factor * row[column]) for row in log if row.get(column) is not None]
                if points:
                    label, colour = f"{label} {points[-1][1]:.4g}", GOOD if column.startswith("val_") else FAINT
                    axes.plot(*zip(*points, strict=True), ".-", color=colour, linewidth=1.8, label=label)
            axes.tick_params(labelsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.lines:
                axes.legend(frameon=False, fontsize=10)
