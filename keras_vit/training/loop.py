"""The steps of a run, in stretches: train, evaluate, log, save, and so on. `model.fit` does each stretch."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from keras_vit.data import Batches
from keras_vit.tables import Table
from keras_vit.training.run_folder import RunFolder


def train(
    model: keras.Model,
    batch: Callable[[int], tuple[Any, Any]],
    steps: int,
    *,
    every: int,
    batches_per_step: int = 1,
    validation: Batches | None = None,
    folder: RunFolder | None = None,
    schedule: Callable[[int], Any] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    title: str = "training",
    verbose: bool = True,
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
        callbacks: Keras callbacks. To them a stretch of `every` updates is an epoch.
        title: Shown beside the progress bar.
        verbose: Whether there is a progress bar.

    Returns:
        The log: a row per evaluation with `step`, `loss`, the metrics, those of the validation with `val_` before
        them, `learning_rate` and `seconds`.

    Raises:
        FloatingPointError: if the loss is not finite. The last checkpoint before that is kept.
        OSError: if a checkpoint cannot be written, on a full disk for example. The one before it is kept.
    """
    batch = functools.lru_cache(1)(batch)  # Keras looks at the first of a stretch before it takes it
    with folder.locked() if folder else contextlib.nullcontext():
        start, finished = folder.restore(model) if folder else (0, False)
        log = folder.log() if folder else Table()
        if finished:
            if validation is not None and log[-1].get("val_loss") is None:
                log[-1] |= _evaluate(model, validation)
                folder.write_log(log)
            return log
        before = log[-1]["seconds"] if log else 0.0
        begun = time.perf_counter()
        epochs = -(-steps // every)
        users = keras.callbacks.CallbackList(list(callbacks), model=model, epochs=epochs, steps=every)
        users.on_train_begin()
        with _bar(title, steps, start, verbose) as progress, _averages_held_back(model.optimizer):
            model.stop_training = False
            while start < steps and not model.stop_training:
                stop = min(start + every, steps)
                epoch = start // every
                users.on_epoch_begin(epoch)
                stretch = Batches(batch, range(start * batches_per_step, stop * batches_per_step))
                watcher = _Watcher(users, progress, batches_per_step)
                history = model.fit(stretch, epochs=1, shuffle=False, verbose=0, callbacks=[watcher]).history
                logs = {name: float(values[-1]) for name, values in history.items()}
                if not np.isfinite(logs["loss"]):
                    newest = folder.newest_step() if folder else None
                    raise FloatingPointError(
                        f"The loss is {logs['loss']} between steps {start} and {stop}: the run has gone astray. Lower "
                        "the learning rate, warm up for longer or clip the gradients (recipe.replace(...))."
                        + ("" if newest is None else f" {folder.path} still holds step {newest}.")
                    )
                stopped = model.stop_training  # evaluation sets it back
                start += watcher.batches // batches_per_step  # less than a stretch where a callback has stopped it
                if validation is not None:
                    logs |= _evaluate(model, validation)
                rate = {} if schedule is None else {"learning_rate": float(schedule(start - 1))}
                row = {"step": start, **logs, **rate, "seconds": before + time.perf_counter() - begun}
                log.append(row)
                if folder:
                    folder.write_log(log)
                    folder.save(model, start)
                progress(note=_note(logs))
                users.on_epoch_end(epoch, logs)
                model.stop_training |= stopped
        model.optimizer.finalize_variable_values(model.trainable_variables)
        users.on_train_end(log[-1] if log else None)
        if folder:
            folder.save(model, start, finished=True)  # with what callbacks and averages have made of the weights
    return log


class _Watcher(keras.callbacks.Callback):
    """Hands the events of batches on. Those of epochs and of the whole run come from `train`, once a run."""

    def __init__(self, users: Any, progress: Callable[..., None], batches_per_step: int) -> None:
        super().__init__()
        self._users, self._progress, self._batches_per_step = users, progress, batches_per_step
        self.batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._users.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self._users.on_train_batch_end(batch, logs)
        self._progress(advance=(batch + 1) % self._batches_per_step == 0)


def _evaluate(model: keras.Model, validation: Batches) -> dict[str, float]:
    """Loss and metrics, with the averaged weights where the optimizer keeps averages."""
    with _averaged(model):
        logs = model.evaluate(validation, verbose=0, return_dict=True)
    return {f"val_{name}": float(value) for name, value in logs.items()}


def _averaging(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer | None:
    """The optimizer that averages the weights; None where there is none.

    In float16 Keras wraps the optimizer in one that scales the loss and has a `use_ema` of its own, always False.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer if optimizer.use_ema else None


@contextlib.contextmanager
def _averages_held_back(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """`fit` ends by putting the averages in the weights' place, which has to wait for the last step of all."""
    averaging = _averaging(optimizer)
    if averaging is None:
        yield
        return
    averaging.finalize_variable_values = lambda variables: None
    try:
        yield
    finally:
        del averaging.finalize_variable_values


@contextlib.contextmanager
def _averaged(model: keras.Model) -> Iterator[None]:
    """Gives the model its averaged weights (`use_ema` of Keras's optimizers) for a while."""
    averaging = _averaging(model.optimizer)
    if averaging is None:
        yield
        return
    weights = model.trainable_variables
    kept = [keras.ops.copy(weight.value) for weight in weights]
    type(averaging).finalize_variable_values(averaging, weights)
    for weight in weights:
        weight.assign(keras.ops.copy(weight.value))  # JAX would give up the buffer that the optimizer holds as well
    try:
        yield
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.assign(value)


@contextlib.contextmanager
def _bar(title: str, steps: int, start: int, verbose: bool) -> Iterator[Callable[..., None]]:
    """A progress bar, as a function that moves it on or changes the note beside it."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TimeRemainingColumn(), TextColumn("{task.fields[note]}")]
    with Progress(*columns, console=Console(stderr=True), disable=not verbose) as progress:
        task = progress.add_task(title, total=steps, completed=start, note="")

        def move(advance: int = 0, note: str | None = None) -> None:
            progress.update(task, advance=int(advance), **({} if note is None else {"note": note}))

        yield move


def _note(logs: dict[str, float]) -> str:
    shown = [f"loss {logs['loss']:.3f}"]
    for name, title in (("accuracy", "train"), ("val_accuracy", "test")):
        if name in logs:
            shown.append(f"{title} {logs[name]:.1%}")
    return ", ".join(shown)
