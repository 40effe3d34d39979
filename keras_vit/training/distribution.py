"""Runs and models on several devices or processes: copies of a model or a split one (JAX); how runs share batches."""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import check_type, require_packages
from keras_vit._files import expanded_path
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
from keras_vit.data import Batches
from keras_vit.layers import BatchNormalization
from keras_vit.models import BiTConfig, ViTConfig, variant_config, weights_by_path

BATCH = "batch"
MODEL = "model"

# Weight paths (regular expressions), and how the weight lies over the devices: an entry per axis, MODEL for the one
# that is split, None for the others. The first of two matrices in a row is split along its outputs and the second along
# its inputs, so that only the second's result has to be summed over the devices (Megatron-LM, arXiv 1909.08053).
# What is not listed (normalisations, tokens, position and patch embedding: about 1 % of B/16) is whole on every device.
SPLIT: dict[str, tuple[str | None, ...]] = {
    r"attention/(query|key|value)/kernel": (None, MODEL),
    r"attention/(query|key|value)/bias": (MODEL,),
    r"attention/out/kernel": (MODEL, None),
    r"mlp/(fc1|gate|value)/kernel": (None, MODEL),
    r"mlp/(fc1|gate|value)/bias": (MODEL,),
    r"mlp/fc2/kernel": (MODEL, None),
    r"pre_logits/kernel": (None, MODEL),
    r"pre_logits/bias": (MODEL,),
    r"(head|head_dist|projection)/kernel": (MODEL, None),  # inputs: the number of classes seldom divides
    # The ResNets of hybrids and of BiT, along the output channels, each of which is standardised for itself.
    r"(conv_root|conv1|conv2|conv3|conv_proj)/kernel": (None, None, None, MODEL),
}
# What blocks and the last normalisation hand on is whole on every device of a group. Without being told, XLA splits it
# along its width, as the head's inputs are, and gathers it again before each matrix that wants all of it.
TOKENS = r"(.*/)?(block_\d+|encoder_norm)/output"
Batch = Callable[[int], tuple[Any, ...]]  # from the number of a batch to inputs, targets and perhaps weights
# DataParallel or ModelParallel of keras.distribution, a tf.distribute.Strategy (which needs TensorFlow), "alone", None.
Distribution = Any
_SEED_STEP, _SEEDS = 1_000_003, 2**31 - 1


def data_parallel(
    devices: Sequence[str] | None = None, auto_shard_dataset: bool = True
) -> keras.distribution.DataParallel:
    """Returns a distribution in which every device has the whole model and a part of each batch.

    Create or load the model, train and evaluate inside the result's `scope()`. The size of every batch, including the
    last, must be a multiple of the number of devices.

    Args:
        devices: Names such as `["gpu:0", "gpu:1"]`; None for all devices of all processes.
        auto_shard_dataset: With several processes: whether Keras gives each its part of a `tf.data.Dataset`. False:
            each process gives its own part of every batch, in any form.

    Raises:
        RuntimeError, ValueError: on a backend other than JAX; if `devices` is empty.

    Examples:
        >>> with training.data_parallel().scope():
        ...     shared = keras_vit.VisionTransformer(config)
    """
    return keras.distribution.DataParallel(devices=_devices(devices), auto_shard_dataset=auto_shard_dataset)


def model_parallel(
    model: Any, shards: int, devices: Sequence[str] | None = None, auto_shard_dataset: bool = True
) -> keras.distribution.ModelParallel:
    """Returns a distribution of groups of devices: each has a split copy of the model and a part of each batch.

    A group has `shards` devices. `model` is as in `layout_map`, all else and errors as in `data_parallel`.

    Examples:
        >>> scope = training.model_parallel(config, shards=1, devices=["cpu:0"]).scope()
    """
    devices = _devices(devices)
    if not isinstance(shards, int) or shards < 1 or len(devices) % shards:
        raise ValueError(f"shards must divide the number of devices, {len(devices)}, but {shards!r} was given.")
    mesh = keras.distribution.DeviceMesh((len(devices) // shards, shards), (BATCH, MODEL), devices)
    return keras.distribution.ModelParallel(
        layout_map=layout_map(model, mesh), batch_dim_name=BATCH, auto_shard_dataset=auto_shard_dataset
    )


def layout_map(model: Any, device_mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Returns how a model's weights are split over the devices of a mesh, for `keras.distribution.ModelParallel`.

    An optimizer's variables are split like the weights that they belong to.

    Args:
        model: A config, a model, or the name of a variant, which the number of devices has to suit.
        device_mesh: With an axis named `"model"`, along which weights are split, and usually one named `"batch"`.

    Raises:
        TypeError, ValueError: for another kind of `model`; if the axis is missing or does not divide a weight.

    Examples:
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
        >>> layouts = training.layout_map("ViT-L/16", mesh)
    """
    config = variant_config(model) if isinstance(model, str) else getattr(model, "config", model)
    check_type("model", config, (ViTConfig, BiTConfig), "a config, a model or a variant's name")
    if MODEL not in device_mesh.axis_names:
        raise ValueError(f"device_mesh must have an axis named {MODEL!r}, but has {device_mesh.axis_names}.")
    shards, split = device_mesh.shape[device_mesh.axis_names.index(MODEL)], ["width"]
    if isinstance(config, ViTConfig):
        split += ["mlp_width", "representation_size", *(["stem_width"] if config.stem_stages else [])]
    for name in split:
        size = getattr(config, name) or 0
        if size % shards:
            raise ValueError(f"{name}={size} is not a multiple of the {shards} devices that weights are split over.")
    result = keras.distribution.LayoutMap(device_mesh)
    for path, axes in SPLIT.items():
        result[f"(.*/)?{path}"] = axes
    if BATCH in device_mesh.axis_names:
        result[TOKENS] = (BATCH,)
    return result


def split_weights(model: keras.Model) -> dict[str, Any]:
    """Returns the weights of `model` that `layout_map` splits, by the paths of `weights_by_path`.

    Examples:
        >>> list(training.split_weights(small))[:1]
        ['block_0/attention/query/kernel']
    """
    pattern = re.compile("|".join(f"(?:(?:.*/)?{path})" for path in SPLIT))
    return {path: weight for path, weight in weights_by_path(model).items() if pattern.fullmatch(path)}


def save_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes weights, states of random generators and the optimizer's variables, which it builds, with Orbax.

    Every process writes the pieces of `model` on its own devices; nothing is gathered. All processes call it with the
    same new folder `path`, which appears when it is complete.

    Raises:
        RuntimeError, ImportError: on another backend than JAX, where no model is split, or without Orbax.
        OSError, ValueError: if `path` exists (FileExistsError), or Orbax cannot write it.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-1000")  # on JAX, with keras-vit-zoo[orbax]
    """
    checkpoint, path = _orbax(), Path(expanded_path(path)).absolute()
    if path.exists():
        raise FileExistsError(f"path must be a new folder, but {path} exists. Choose another one, or delete it.")
    checkpoint.save(path, [variable.value for variable in state_of(model)])


def load_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Restores a model and its optimizer in place from a folder of `save_sharded`, on any number of devices.

    Each device gets its own part of one array after the other. Nothing is assigned where the checkpoint does not fit.
    `model` has the same config and is compiled with the same optimizer, or without one if it was saved without.

    Raises:
        RuntimeError, ImportError: as `save_sharded`.
        OSError, ValueError: if there is no such `path` (FileNotFoundError), or it is damaged or of another model.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-2000")  # on JAX, with keras-vit-zoo[orbax]
        >>> training.load_sharded(keras_vit.VisionTransformer(config), "checkpoints/step-2000")
    """
    checkpoint, path = _orbax(), Path(expanded_path(path)).absolute()
    import jax

    if not path.is_dir():
        raise FileNotFoundError(f"There is no checkpoint of save_sharded at {path}.")
    variables = state_of(model)
    try:
        saved = [(tuple(array.shape), str(array.dtype)) for array in checkpoint.metadata(path).metadata]
    except Exception as error:  # whatever Orbax and its libraries raise for a folder that is something else
        raise ValueError(f"{path} is not a checkpoint of save_sharded, or damaged. Check the path.") from error
    if saved != [(tuple(variable.shape), str(variable.dtype)) for variable in variables]:
        raise ValueError(f"{path} does not fit this model and optimizer: build both as they were when it was saved.")
    for number, variable in enumerate(variables):
        target: list[Any] = [...] * len(variables)  # Orbax reads what is not `...`
        target[number] = jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=variable.value.sharding)
        variable.assign(checkpoint.load(path, target)[number])


def _devices(devices: Sequence[str] | None) -> list[str]:
    _need_jax()
    if devices is not None and not len(devices):
        raise ValueError("devices must have at least one device, or be None for all, but it is empty.")
    return list(keras.distribution.list_devices() if devices is None else devices)


def _need_jax() -> None:
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "keras.distribution, and with it sharding of models, works only on JAX. Set KERAS_BACKEND=jax, or see "
            f"docs/distribution.md for what {keras.backend.backend()} has instead."
        )


def _orbax() -> Any:
    """Returns Orbax's functions for checkpoints; RuntimeError on other backends than JAX, ImportError without Orbax."""
    _need_jax()
    require_packages("A checkpoint of a split model", ("orbax",), "orbax")
    from orbax.checkpoint import v1

    return v1


# Runs that several devices or processes share


@contextlib.contextmanager
def distributed(distribution: Distribution) -> Iterator[Processes]:
    """Yields the processes of the program; what is done within is done by all together, on their devices."""
    backend, by_name = keras.backend.backend(), distribution is None or distribution == ALONE_BY_NAME
    if isinstance(distribution, (keras.distribution.DataParallel, keras.distribution.ModelParallel)):
        _need_jax()
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
    with processes.explaining_lost_processes(), scope:
        yield processes


def on_devices_of(model: Any, distribution: Distribution, processes: Processes) -> Any:
    """Returns the model, or where it was made outside of the distribution's scope a copy on its devices."""
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
        if processes.count == 1:
            return cls(processes, batch_shares(model))
        if not processes.joint:
            return cls(processes, processes.count)
        if not all(weight.value.is_fully_replicated for weight in model.weights):
            raise ValueError(
                "Several processes train copies of a whole model, but this model is sharded over devices. Use "
                "keras_vit.training.data_parallel(), or train in one process. (model.fit works.)"
            )
        if any(weight.value.is_fully_addressable for weight in model.weights):
            raise ValueError(
                "The model was built on the devices of one process. Pass its name or file instead, or call first "
                "keras_vit.training.connect() and keras.distribution.set_distribution(training.data_parallel())."
            )
        return cls(processes, batch_shares(model))

    def part(self, length: int) -> int:
        """The number of rows of a process's part of a batch, which is filled up until all shares are equal."""
        return math.ceil(length / self.shares) * self.shares // self.processes.count

    def training_batches(self, batch: Batch, batch_size: int) -> Batch:
        """Returns `batch`, or where its batches cannot be divided a function whose batches are filled up."""
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
        """Returns loss and metrics of `fit` as means over the images of all processes."""
        if not self.processes.apart:
            return logs
        rows = share(batch_size, self.processes.shard)
        # The weights of the loss make its plain mean the right one; metrics are means over the images of a part.
        portion = (rows.stop - rows.start) / batch_size
        factors = [1 / self.processes.count if name == "loss" else portion for name in logs]
        return dict(zip(logs, self.processes.total(np.multiply([*logs.values()], factors)).tolist(), strict=True))

    def average(self, model: keras.Model, optimizer: Any) -> None:
        """Lets the optimizer and batch normalisation see all processes where the backend does not, on torch."""
        if not self.processes.apart:
            return
        if model.optimizer is not optimizer:
            raise ValueError('mixed_float16 does not work in several processes on torch. Pass dtype="mixed_bfloat16".')
        optimizer.average_gradients = self.processes.mean
        for layer in layers_inside(model):
            if isinstance(layer, BatchNormalization):
                layer.processes = self.processes


UNSHARED = Sharing()


def check_equal_parts(model: keras.Model, images: Any) -> None:
    """Raises ValueError unless batches of a stream divide equally among the devices and processes of a model."""
    shares = max(batch_shares(model), images.shard[1])
    if images.batch_size % shares:
        raise ValueError(f"batch_size={images.batch_size} must be a multiple of the {shares} devices or processes.")


class FilledBatches(Batches):
    """All test images, once, in full batches, which devices can share: `fill_up` adds images that count nothing."""

    def __init__(self, batch: Batch, batches: int, batch_size: int, sharing: Sharing = UNSHARED) -> None:
        super().__init__(self._filled, range(batches))
        self._part, self._batch_size, self._sharing = batch, batch_size, sharing
        self._sizes: dict[int, tuple[int, int]] = {}  # of each batch: how many images, and how many that count

    def _filled(self, index: int) -> tuple[Any, Any, np.ndarray]:
        """Returns inputs, targets and weights of a batch, filled up: weights are 1 for its images, 0 for the rest."""
        inputs, targets = self._part(index)
        count = len(targets)
        processes = self._sharing.processes
        # Batches of other libraries' pipelines may be longer than batch_size.
        longest = count if processes.count == 1 else processes.count * int(np.max(processes.gather(np.array(count))))
        size = self._sharing.part(max(longest, self._batch_size))
        inputs, targets = keras.tree.map_structure(lambda array: fill_up(array, size), (inputs, targets))
        self._sizes[index] = size, count
        return inputs, targets, (np.arange(size) < count).astype("float32")

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns loss and metrics of a compiled model, exact means over the images of all processes."""
        with self.own_errors():
            logs = model.evaluate(self, verbose=0, return_dict=True)
        processes = self._sharing.processes
        size, count = (sum(numbers) for numbers in zip(*self._sizes.values(), strict=True))
        counts = int(processes.total(count))
        if not processes.apart:
            # Keras divides the loss by the size of a batch, whatever the weights of its images are.
            return {**logs, "loss": logs["loss"] * size * processes.count / counts}
        sums = [value * (size if name == "loss" else count) for name, value in logs.items()]
        return dict(zip(logs, (processes.total(sums) / counts).tolist(), strict=True))


def state_of(model: keras.Model) -> list[Any]:
    """Returns all variables that training goes on from, random generators and a compiled model's optimizer too."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return variables
    if not optimizer.built:  # within the first update, TensorFlow would trace that update a second time
        with scope_of(model):
            optimizer.build(model.trainable_variables)
    return [*variables, *optimizer.variables]


def share_state(model: keras.Model, arrays: Sequence[np.ndarray] | None, processes: Processes) -> None:
    """Changes the state of a compiled model in place, in all processes to `arrays` of process 0."""
    variables = state_of(model)  # builds the optimizer, also for a process by itself
    if processes.count == 1 and arrays is None:
        return
    if arrays is None or not processes.first:
        arrays = [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in variables]
    for variable, value in zip(variables, processes.broadcast(arrays), strict=True):
        variable.assign(value)


def reset_randomness(model: keras.Model, seed: int) -> None:
    """Changes every random generator of a model in place to a state that a seed and its place among them decide."""
    # Otherwise the states depend on how many models the program has made before.
    for place, state in enumerate(_seed_states(model)):
        (drawn,) = np.random.SeedSequence([seed, place]).generate_state(1)
        state.assign(np.array([int(drawn) % _SEEDS, 0]))


@contextlib.contextmanager
def randomness_of_process(model: keras.Model, processes: Processes) -> Iterator[None]:
    """Within it, dropout differs from process to process, where each computes its part by itself; yields nothing."""
    # With the same random numbers everywhere, images of different processes would drop the same units. Process 0 keeps
    # its numbers, so that its checkpoint serves any number of processes.
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
    """The states of the random generators of a model, `(seed, calls)` each, in the order of its variables."""
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
