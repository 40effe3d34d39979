"""The training loop: one `fit` that is evaluated, logged and saved, and that goes on where it was killed."""

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import printable
from keras_vit._keras import layers_inside
from keras_vit._processes import Processes, keras_leaves_xla_out, scope_of
from keras_vit._terminal import ProgressBar, Table
from keras_vit.data import Batches
from keras_vit.training.run_folder import RunFolder, share_state
from keras_vit.training.sharing import UNSHARED, Batch, FilledBatches, Sharing, own_randomness

_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


def train(
    model: keras.Model,
    batch: Batch,
    steps: int,
    *,
    every: int,
    batches_per_step: int = 1,
    validation: FilledBatches | None = None,
    folder: RunFolder | None = None,
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
        title: Shown beside the progress bar.
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
        if finished:
            if verbose:
                report(f"{title}: the run in {folder.path} was over after {start:,} steps, and is not trained again.")
            if validation is not None and log[-1].get("val_loss") is None:
                log[-1] |= _evaluate(model, validation)
                folder.save(model, start, log, finished=True)
            return log
        if not model.optimizer.built:  # within the first update, TensorFlow would trace that update a second time
            with scope_of(model):
                model.optimizer.build(model.trainable_variables)
        bar = ProgressBar(title, steps, shown=verbose, stays=True)
        progress = _Progress(start, steps, batches_per_step, bar)
        begun = time.perf_counter() - (log[-1]["seconds"] if log else 0.0)

        def record(epoch: int, logs: dict[str, float]) -> None:
            """Evaluates, logs and saves. The callbacks of the user come after this one and find it all in `logs`."""
            first = start + (epoch - start // every) * every
            logs |= sharing.training_means({name: float(value) for name, value in logs.items()}, batch_size)
            if not np.isfinite(logs["loss"]):
                newest = folder.newest_step() if folder else None
                kept = "" if newest is None else f" {folder.path} still holds step {newest}."
                raise FloatingPointError(
                    f"The loss is {logs['loss']} between steps {first} and {progress.step}: the run has gone astray. "
                    f"Lower the learning rate, warm up for longer or clip the gradients (recipe.replace(...)).{kept}"
                )
            if validation is not None:
                logs |= _evaluate(model, validation)
            rate = {} if schedule is None else {"learning_rate": float(schedule(max(progress.step - 1, 0)))}
            log.append({"step": progress.step, **logs, **rate, "seconds": time.perf_counter() - begun})
            if folder:
                folder.save(model, progress.step, log)
            bar.note(_note(logs))

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
        if folder:
            folder.save(
                model, progress.step, log, finished=True
            )  # with what callbacks and averages made of the weights
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
    """Loss and metrics, with the averaged weights where the optimizer keeps averages."""
    with _averaged(model):
        logs = validation.evaluate(model)
    return {f"val_{name}": float(value) for name, value in logs.items()}


@contextlib.contextmanager
def _averaged(model: keras.Model) -> Iterator[None]:
    """Gives the model its averaged weights (`use_ema` of Keras's optimizers) for a while."""
    # In float16 Keras wraps the optimizer in one that scales the loss and has a `use_ema` of its own, always False.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not optimizer.use_ema:
        yield
        return
    weights = model.trainable_variables
    kept = [keras.ops.copy(weight.value) for weight in weights]
    optimizer.finalize_variable_values(weights)
    for weight in weights:
        weight.assign(keras.ops.copy(weight.value))  # JAX would give up the buffer that the optimizer holds as well
    try:
        yield
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.assign(value)


def _note(logs: dict[str, float]) -> str:
    figures = [f"loss {logs['loss']:.3f}"]
    for name, title in (("accuracy", "train"), ("val_accuracy", "test")):
        if name in logs:
            figures.append(f"{title} {logs[name]:.1%}")
    return ", ".join(figures)


def report(text: str) -> None:
    """Prints on standard error."""
    for line in text.splitlines():
        print(printable(line), file=sys.stderr)


def jit_compile(model: keras.Model, updates: int) -> bool | str:
    """What `compile(jit_compile=...)` gets for a training run.

    Keras 3.15 leaves XLA out where TensorFlow sees CPUs only. In float32 XLA is the quicker way to train there
    (docs/speed.md), in bfloat16 that depends on the processor; it draws other masks of dropout. Where nothing is known,
    Keras chooses.

    Args:
        model: The model that is to be trained, made already.
        updates: How many there will be. Compiling takes a few seconds longer, which a short run does not win back.
    """
    if updates < _UPDATES_WORTH_COMPILING or not keras_leaves_xla_out(model):
        return "auto"
    suitable = all(layer.supports_jit and layer.compute_dtype == "float32" for layer in layers_inside(model))
    return True if suitable else "auto"
