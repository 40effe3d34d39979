"""Keras's callbacks in a run: what does not go together with its recipe is refused."""

from collections.abc import Sequence
from typing import Any

import keras


def check_callbacks(callbacks: Any, averages: bool) -> None:
    """Raises TypeError if it is no sequence of callbacks, ValueError if one works against the recipe.

    `averages` is whether the run keeps averages of the weights, which evaluations take and callbacks do not see.
    """
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise TypeError(f"callbacks must be a list of Keras callbacks, but {callbacks!r} was given.")
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)):
            hint = "the recipe sets the learning rate: recipe.replace(schedule=..., warmup_steps=..., end=...)"
            raise ValueError(f"callbacks has a {name}, but {hint}.")
        stores = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore, keras.callbacks.SwapEMAWeights)
        if averages and (isinstance(callback, stores) or getattr(callback, "restore_best_weights", False)):
            hint = "would store or restore other weights than the averages that are evaluated (polyak)"
            raise ValueError(f'callbacks has a {name}, which {hint}. Give recipe.replace(keep="best") in its place.')
