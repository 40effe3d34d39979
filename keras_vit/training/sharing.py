"""A run that several devices or processes share: which part of each batch is whose, and what they agree on.

The batches of a run are functions of the seed and their number (`keras_vit.data`). Each process gets its part of
each, filled up to the same length everywhere with images that count nothing. On JAX `keras.distribution` makes one
array of the parts, so that losses and metrics are those of all; on torch each process has its own, and gradients and
logs are averaged here.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._keras import layers_inside
from keras_vit._processes import (
    ALONE,
    ALONE_BY_NAME,
    Processes,
    batch_shares,
    check_strategy,
    connect,
    fill_up,
    scope_of,
    share,
)
from keras_vit.layers import BatchNormalization

Batch = Callable[[int], tuple[Any, ...]]  # from the number of a batch to inputs, targets and perhaps weights
# DataParallel or ModelParallel of keras.distribution, a tf.distribute.Strategy (which needs TensorFlow), "alone", None.
Distribution = Any
_SEED_STEP, _SEEDS = 1_000_003, 2**31 - 1


@contextlib.contextmanager
def distributed(distribution: Distribution) -> Iterator[Processes]:
    """Everything within is done by all processes of the program together; `distribution` as in `finetune`.

    Yields the processes. Raises TypeError or ValueError for another distribution than the backend has, RuntimeError
    where processes cannot work together, and ConnectionError if another process ends.
    """
    backend, by_name = keras.backend.backend(), distribution is None or distribution == ALONE_BY_NAME
    if isinstance(distribution, (keras.distribution.DataParallel, keras.distribution.ModelParallel)):
        if backend != "jax":
            raise ValueError(f"distribution is one of keras.distribution, which works on JAX only, not on {backend}.")
    elif backend == "tensorflow" and hasattr(distribution, "scope"):
        check_strategy(distribution)
    elif not by_name:
        raise TypeError(
            f"distribution must be None, {ALONE_BY_NAME!r}, a distribution of keras.distribution (on JAX) or a "
            f"tf.distribute.Strategy (on TensorFlow), but {distribution!r} was given."
        )
    processes = connect(distribution if by_name else None)
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if not by_name:
        scope = distribution.scope()
    elif processes.joint and keras.distribution.distribution() is None:
        devices = keras.distribution.list_devices()
        scope = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope()
    with processes.failing_together(), scope:
        yield processes


def on_devices_of(model: Any, distribution: Distribution, processes: Processes) -> Any:
    """The model, or a copy on the devices of the distribution where it was made outside its scope."""
    active, outside = keras.distribution.distribution(), False
    if keras.backend.backend() == "tensorflow":
        strategy = distribution if hasattr(distribution, "scope") else model.distribute_strategy
        outside = not strategy.extended.variable_created_in_scope(model.weights[0].value)
    elif active is not None and processes.count == 1:
        wanted = {str(device) for device in active.device_mesh.devices.flatten()}
        devices = (weight.value.devices() for weight in model.weights)
        outside = any({f"{device.platform}:{device.id}" for device in of_weight} != wanted for of_weight in devices)
    return model.with_config() if outside else model


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How each batch of a run is divided."""

    processes: Processes = ALONE
    shares: int = 1  # among how many devices, or groups of devices with one copy of the model, of all processes

    @classmethod
    def of(cls, processes: Processes, model: keras.Model) -> "Sharing":
        """The sharing of a model made within `distributed`; ValueError if it is split, or on one process's devices."""
        if processes.count == 1:
            return cls(processes, batch_shares(model))
        if not processes.joint:
            return cls(processes, processes.count)
        if not all(weight.value.is_fully_replicated for weight in model.weights):
            raise ValueError(
                "Several processes train copies of a whole model, but this one is split over devices: use "
                "keras_vit.training.data_parallel(), or train in one process. (model.fit works.)"
            )
        if any(weight.value.is_fully_addressable for weight in model.weights):
            raise ValueError(
                "The model was made on the devices of one process: give its name or file, or call before it is made "
                "keras_vit.training.connect() and keras.distribution.set_distribution(training.data_parallel())."
            )
        return cls(processes, batch_shares(model))

    def part(self, length: int) -> int:
        """Rows of a process's part of a batch that is filled up until all shares are equal."""
        return math.ceil(length / self.shares) * self.shares // self.processes.count

    def training_batches(self, batch: Batch, batch_size: int) -> Batch:
        """The same batches, filled up where they cannot be divided: the mean loss is that of the images that count."""
        part = self.part(batch_size)
        whole = part * self.processes.count
        if whole == batch_size:
            return batch

        def filled(number: int) -> tuple[Any, ...]:
            inputs, targets = batch(number)
            # Keras divides the sum by the length of the batch.
            weights = np.where(np.arange(part) < len(targets), whole / batch_size, 0).astype("float32")
            return *keras.tree.map_structure(lambda array: fill_up(array, part), (inputs, targets)), weights

        return filled

    def training_means(self, logs: dict[str, float], batch_size: int) -> dict[str, float]:
        """Loss and metrics of `fit` over all processes."""
        if not self.processes.apart:
            return logs
        rows = share(batch_size, self.processes.shard)
        # The weights of the loss make its plain mean the right one; metrics are means over the images of a part.
        portion = (rows.stop - rows.start) / batch_size
        factors = [1 / self.processes.count if name == "loss" else portion for name in logs]
        return dict(zip(logs, self.processes.total(np.multiply([*logs.values()], factors)).tolist(), strict=True))

    def average_gradients(self, optimizer: keras.optimizers.Optimizer, used: keras.optimizers.Optimizer) -> None:
        """Lets an optimizer of this package average the gradients of all processes, where the backend does not.

        Raises ValueError for `mixed_float16` in several processes: the model then uses another optimizer around this
        one, which leaves out updates by what one process has seen.
        """
        if self.processes.apart and used is not optimizer:
            raise ValueError('mixed_float16 does not work in several processes on torch: dtype="mixed_bfloat16" does.')
        if self.processes.apart:
            optimizer.average_gradients = self.processes.mean

    def average_moments(self, model: keras.Model) -> None:
        """Lets batch normalisation see the whole batch, where each process has its part of it by itself."""
        for layer in layers_inside(model) if self.processes.apart else ():
            if isinstance(layer, BatchNormalization):
                layer.processes = self.processes


UNSHARED = Sharing()


class FilledBatches(keras.utils.PyDataset):
    """All test images, once, in full batches: what is missing is filled up with images that count nothing.

    Devices can share full batches only, and a batch of another size costs a compilation. `batch` gives inputs and
    targets of this process's part.
    """

    def __init__(self, batch: Batch, batches: int, batch_size: int, sharing: Sharing = UNSHARED) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self._batch, self._batches, self._batch_size, self._sharing = batch, batches, batch_size, sharing
        self._sizes: dict[int, tuple[int, int]] = {}  # of each batch: how many images, and how many that count

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> tuple[Any, Any, np.ndarray]:
        """Inputs, targets and weights of a batch, filled up: weights are 1 for its images, 0 for the rest."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        inputs, targets = self._batch(index)
        count = len(targets)
        processes = self._sharing.processes
        # Batches of other libraries' pipelines may be longer than batch_size.
        longest = count if processes.count == 1 else processes.count * int(np.max(processes.gather(np.array(count))))
        size = self._sharing.part(max(longest, self._batch_size))
        inputs, targets = keras.tree.map_structure(lambda array: fill_up(array, size), (inputs, targets))
        self._sizes[index] = size, count
        return inputs, targets, (np.arange(size) < count).astype("float32")

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Loss and metrics of a compiled model, exact means over the images of all processes."""
        logs = model.evaluate(self, verbose=0, return_dict=True)
        processes = self._sharing.processes
        size, count = (sum(numbers) for numbers in zip(*self._sizes.values(), strict=True))
        counts = int(processes.total(count))
        if not processes.apart:
            # Keras divides the loss by the size of a batch, whatever the weights of its images are.
            return {**logs, "loss": logs["loss"] * size * processes.count / counts}
        sums = [value * (size if name == "loss" else count) for name, value in logs.items()]
        return dict(zip(logs, (processes.total(sums) / counts).tolist(), strict=True))


def assign_everywhere(
    variables: Sequence[keras.Variable], arrays: Sequence[np.ndarray] | None, processes: Processes
) -> None:
    """Gives variables the values that process 0 has for them: `arrays`, or where that is None what they are now."""
    if processes.count == 1 and arrays is None:
        return
    if arrays is None or not processes.first:
        arrays = [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in variables]
    for variable, value in zip(variables, processes.broadcast(arrays), strict=True):
        variable.assign(value)


def state_of(model: keras.Model) -> list[Any]:
    """All variables that a run goes on from, random generators too; builds the optimizer if that has not been done."""
    if not model.optimizer.built:  # within the first update, TensorFlow would trace that update a second time
        with scope_of(model):
            model.optimizer.build(model.trainable_variables)
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def share_state(model: keras.Model, arrays: list[np.ndarray] | None, processes: Processes) -> None:
    """Gives a compiled model the state that process 0 has read, or that its own model has (None)."""
    assign_everywhere(state_of(model), arrays, processes)


def over_replicas(grads: list[Any]) -> tuple[list[Any], int]:
    """The gradients of the whole batch under `tf.distribute`, where Keras would clip each replica's, and how many."""
    if keras.backend.backend() != "tensorflow":
        return grads, 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return grads, 1
    return context.all_reduce(tf.distribute.ReduceOp.SUM, grads), context.num_replicas_in_sync


def reset_randomness(model: keras.Model, seed: int) -> None:
    """Gives every random generator of a model the state that a seed and its place among the others decide.

    Otherwise it depends on how many models the program has made before.
    """
    for place, state in enumerate(_seed_states(model)):
        (drawn,) = np.random.SeedSequence([seed, place]).generate_state(1)
        state.assign(np.array([int(drawn) % _SEEDS, 0]))


@contextlib.contextmanager
def randomness_of_process(model: keras.Model, processes: Processes) -> Iterator[None]:
    """Within it, dropout differs from process to process, where each computes its part by itself.

    With the same random numbers everywhere, images of different processes would drop the same units. Process 0 keeps
    its numbers, so that its checkpoint serves any number of processes.
    """
    states = [] if processes.first or processes.joint else _seed_states(model)
    seeds = [keras.ops.convert_to_numpy(state.value).copy() for state in states]
    for state, (seed, calls) in zip(states, seeds, strict=True):
        state.assign(np.array([(int(seed) + processes.index * _SEED_STEP) % _SEEDS, calls]))
    try:
        yield
    finally:
        for state, (seed, _) in zip(states, seeds, strict=True):
            state.assign(np.array([seed, keras.ops.convert_to_numpy(state.value)[1]]))


def _seed_states(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
