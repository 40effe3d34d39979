"""Which devices there are, how many share a batch, and where models are made for them."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def batch_shares(model: keras.Model | None = None) -> int:
    """Among how many devices, or groups of devices that hold a model together, a batch is divided.

    Args:
        model: Asked for its `tf.distribute` strategy, on TensorFlow. JAX has one distribution for all.

    Returns:
        1 where batches stay whole. The length of a batch has to be a multiple of it.

    Raises:
        RuntimeError: if the strategy joins several processes (see `check_strategy`).
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        mesh = distribution.device_mesh
        return dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(distribution.batch_dim_name, 1)
    strategy = getattr(model, "distribute_strategy", None)
    check_strategy(strategy)
    return getattr(strategy, "num_replicas_in_sync", 1)


def check_strategy(strategy: Any) -> None:
    """Refuses strategies of TensorFlow that join several processes: who reads and writes what is not settled there.

    Args:
        strategy: A `tf.distribute.Strategy`, or None.

    Raises:
        RuntimeError: for a `MultiWorkerMirroredStrategy` of several workers, for example.
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    cluster = None if resolver is None else resolver.cluster_spec()
    count = sum(cluster.num_tasks(job) for job in cluster.jobs) if cluster else 1  # no cluster: this machine alone
    if count > 1:
        raise RuntimeError(
            f"A tf.distribute strategy over {count} processes (MultiWorkerMirroredStrategy) was given, but keras_vit "
            "shares its work among processes of JAX and torch only: set KERAS_BACKEND to one of them, and start the "
            "program with torchrun or Slurm. For all GPUs of one machine there is "
            "tf.distribute.MirroredStrategy (docs/distribution.md)."
        )


def tensorflow_has_only_cpus() -> bool:
    """Whether TensorFlow, the backend in use, sees neither GPUs nor TPUs; False on other backends."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return all(device.device_type == "CPU" for device in tf.config.list_physical_devices())


def keras_leaves_xla_out(model: keras.Model) -> bool:
    """Whether XLA would suit a model that Keras 3.15 compiles without it: on TensorFlow's CPUs, with batches whole.

    Args:
        model: Asked for its `tf.distribute` strategy, which may divide batches among virtual CPUs.
    """
    return tensorflow_has_only_cpus() and batch_shares(model) == 1


def fill_up(batch: np.ndarray, length: int) -> np.ndarray:
    """A batch with its last row repeated until it has a length; the rows that were there come first. No rows: zeros."""
    if not len(batch):
        return np.zeros((length, *batch.shape[1:]), batch.dtype)
    missing = length - len(batch)
    return np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing > 0 else batch


def local_model(model: keras.Model) -> keras.Model | Callable[[Any], Any]:
    """A model with which this process can compute without the others.

    Args:
        model: A model whose weights may lie on the devices of several processes of JAX, a copy on each.

    Returns:
        The model, or a function from inputs to its outputs for inference where it is spread over processes.

    Raises:
        ValueError: if a weight is divided among processes.
    """
    if keras.backend.backend() != "jax" or all(weight.value.is_fully_addressable for weight in model.weights):
        return model
    if not all(variable.value.is_fully_replicated for variable in model.variables):
        raise ValueError("The model is divided among processes: evaluate a copy of it that fits into one.")
    import jax

    def local(variables: list[keras.Variable]) -> list[Any]:
        return [variable.value.addressable_data(0) for variable in variables]

    trainable, others = local(model.trainable_variables), local(model.non_trainable_variables)

    @jax.jit
    def call(trainable: Any, others: Any, inputs: Any) -> Any:
        return model.stateless_call(trainable, others, inputs, training=False)[0]

    return lambda inputs: call(trainable, others, inputs)


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Where a model has to be copied, compiled and trained: within TensorFlow's strategy that it was made in."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    check_strategy(model.distribute_strategy)
    return model.distribute_strategy.scope()
