"""Devices and processes that do one job: how many there are, which one this is, and what they exchange.

torchrun and Slurm start the same program several times and say so in environment variables. `connect` reads them and
joins the processes by torch.distributed or jax.distributed; no other file knows either of them.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

ALONE_BY_NAME = "alone"  # the `distribution` of a process that does its job by itself
_FIRST_PORT, _PORTS = 20000, 20000  # where jobs of Slurm meet, by the number of the job
# What engines say when a process at the other end is gone.
_LOSS = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out waiting|timeout|gloo|nccl|heartbeat|coordination service",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a job, seen from one of them. `Processes()` is a single process.

    All processes must call methods that exchange data, in the same order.

    Attributes:
        index: Number of this process, from 0.
        count: Number of processes.

    Examples:
        >>> processes = training.connect()
        >>> if processes.first:
        ...     print(processes.total([1, 2]))
        [1 2]
    """

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.index == 0

    @property
    def joint(self) -> bool:
        """Whether arrays are sharded over all processes (JAX), so that losses and metrics cover all of them."""
        return self.count > 1 and keras.backend.backend() == "jax"

    @property
    def apart(self) -> bool:
        """Whether there are several processes with separate arrays (torch)."""
        return self.count > 1 and not self.joint

    @property
    def shard(self) -> tuple[int, int]:
        """The number of this process, from 0, and of all processes, for arguments named `shard`."""
        return self.index, self.count

    def total(self, values: Any) -> np.ndarray:
        """The sum of an array over the processes, in their order: the same everywhere, bit by bit."""
        return functools.reduce(np.add, self.gather(np.asarray(values)))

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Returns a list with the array of each process, in their order; axis 0 may differ in length.

        If a process has ended, the backend's error is raised, as in all exchanges (see `explaining_lost_processes`).
        """
        array = np.asarray(array, order="C")  # ascontiguousarray adds an axis to scalars
        if self.count == 1:
            return [array]
        parts = [np.frombuffer(part, array.dtype) for part in self._exchange(array.tobytes())]
        return [part.reshape(-1, *array.shape[1:]) if array.ndim else part[0] for part in parts]

    def in_order(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the rows of all processes in the order of the data; `pieces` are this one's, one for each batch."""
        lengths = self.gather(np.array([len(piece) for piece in pieces], "int64"))
        parts = self.gather(np.concatenate(pieces))
        rows = [np.split(part, np.cumsum(sizes)[:-1]) for part, sizes in zip(parts, lengths, strict=True)]
        return np.concatenate([rows[k][batch] for batch in range(len(pieces)) for k in range(self.count)])

    def from_first(self, value: Any = None) -> Any:
        """The `value` of process 0, plain data for JSON, in every process; other values are ignored."""
        if self.count == 1:
            return value
        return json.loads(self._exchange(json.dumps(value).encode() if self.first else b"")[0])

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in at least one of the processes."""
        return bool(self.total(int(flag)))

    def check_same(self, what: str, value: Any) -> None:
        """Raises a `ValueError` in every process if one has another value (plain data for JSON) than process 0."""
        if self.count == 1:
            return
        digests = self._exchange(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest())
        for index, digest in enumerate(digests):
            if digest != digests[0]:
                raise ValueError(
                    f"The {what} of processes 0 and {index} differ. Call all processes with the same arguments."
                )

    def broadcast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the arrays of process 0 in every process; all must give the same shapes and types."""
        if self.count == 1:
            return list(arrays)
        flat = [np.array(array).reshape(-1).view("uint8") for array in arrays]
        if keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            flat = [np.asarray(part) for part in multihost_utils.broadcast_one_to_all(flat)]
        else:
            import torch

            for part in filter(len, flat):
                torch.distributed.broadcast(torch.from_numpy(part), 0, group=_torch_group())  # in place
        return [part.view(array.dtype).reshape(array.shape) for part, array in zip(flat, arrays, strict=True)]

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the means of torch tensors over the processes, as new tensors on their devices."""
        import torch

        means = [tensor.clone() for tensor in tensors]
        for work in [torch.distributed.all_reduce(tensor, async_op=True) for tensor in means]:
            work.wait()
        return [tensor.div_(self.count) for tensor in means]

    def mean_with_gradient(self, tensor: Any) -> Any:
        """The mean of a torch tensor over the processes, with gradients to all of them."""
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(tensor) / self.count

    @contextlib.contextmanager
    def explaining_lost_processes(self) -> Iterator[None]:
        """Raises a `ConnectionError` in plain words in place of an engine's error about a process that has ended."""
        atexit.unregister(_exit_with_failure)
        try:
            yield
        except BaseException as error:
            if self.count == 1:
                raise
            if self.joint:  # at the exit JAX waits for the others, for five minutes, unless something exits before
                atexit.register(_exit_with_failure)
            # JAX 0.10 on CPUs: "ValueError: UNKNOWN: Gloo AllGather failed: ... Connection closed by peer".
            if not isinstance(error, (RuntimeError, ValueError)) or not _LOSS.search(str(error)):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            raise ConnectionError(
                f"Another of the processes of this run has ended (seen by process {self.index} of {self.count}: "
                f"{reason}). Its own message says why. Start all of them again in the same way: with an output folder "
                "the run goes on from its last checkpoint."
            ) from error

    def _exchange(self, data: bytes) -> list[bytes]:
        """Returns the bytes of every process, which may differ in length, in the order of their numbers."""
        length = np.array([len(data)], "int64")
        lengths = [int(part.view("int64")[0]) for part in self._all_gather(length.view("uint8"))]
        # All are padded to the next power of two, at least 64: JAX compiles for every length.
        padded = np.zeros(max(64, 1 << (max(lengths) - 1).bit_length()), "uint8")
        padded[: len(data)] = np.frombuffer(data, "uint8")
        return [part[:n].tobytes() for part, n in zip(self._all_gather(padded), lengths, strict=True)]

    def _all_gather(self, data: np.ndarray) -> list[np.ndarray]:
        """Returns the uint8 arrays of all processes of PyTorch or JAX, in their order; all have one length."""
        if keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            return list(np.asarray(multihost_utils.process_allgather(data)))
        import torch

        tensors = [torch.empty(len(data), dtype=torch.uint8) for _ in range(self.count)]
        torch.distributed.all_gather(tensors, torch.from_numpy(data), group=_torch_group())
        return [tensor.numpy() for tensor in tensors]


ALONE = Processes()


def _exit_with_failure() -> None:
    """Ends the process at once with status 1; handlers of the exit that come later do not run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


@functools.cache
def _torch_group() -> Any:
    """Torch's group for arrays on the CPU, made once; None where the default group has gloo."""
    from torch import distributed

    return None if "gloo" in str(distributed.get_backend_config()) else distributed.new_group(backend="gloo")


def cores() -> int:
    """How many cores this process may use: its share of the machine's, or those it is bound to if fewer."""
    place, whole = placement(os.environ), os.cpu_count() or 1
    fair = max(1, whole // place.local_count) if place else whole
    return min(fair, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else fair


def share(length: int, shard: tuple[int, int]) -> slice:
    """Returns the rows of a batch of `length` that are the part of process `shard` = (index, count)."""
    index, count = shard
    return slice(index * length // count, (index + 1) * length // count)


def connect(distribution: str | None = None) -> Processes:
    """Returns the `Processes` of this launch, after this process was connected with the others.

    The first call has to come before the backend computes anything; later calls return the same. Without a launcher,
    and in one process, nothing happens. On torch, and on JAX with several processes on a machine with GPUs, each
    process takes one GPU. Otherwise a JAX process takes all devices of its machine. With `"alone"`, this process works
    independently.

    It uses the first that exists of: torch.distributed or jax.distributed, started by your program; torchrun's
    variables; a Slurm step of several tasks; `TPU_WORKER_HOSTNAMES`.

    Raises:
        ValueError: if the variables or `distribution` are invalid.
        RuntimeError: if the backend has no engine for it, or has computed before, or the processes cannot connect.

    Examples:
        >>> training.connect().count
        1
    """
    if distribution == ALONE_BY_NAME:
        return ALONE
    if distribution is not None:
        raise ValueError(
            "distribution must be None (the processes that a launcher has started share the work) or "
            f"{ALONE_BY_NAME!r} (this process works by itself), but {distribution!r} was given."
        )
    started, backend, place = current(), keras.backend.backend(), placement(os.environ)
    tpu_pod = backend == "jax" and "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if started.count > 1 or (place is None and not tpu_pod):
        return started
    if backend not in ("jax", "torch"):
        raise RuntimeError(
            f"Several processes need the backend jax or torch, but KERAS_BACKEND is {backend}. For all GPUs of a "
            "machine, use tf.distribute.MirroredStrategy (docs/distribution.md)."
        )
    if backend == "torch" and place is not None:
        _connect_torch(place)
    else:
        _connect_jax(place)
    return current()


def current() -> Processes:
    """Returns this process's number and their count, if they are connected; otherwise `ALONE`."""
    backend = keras.backend.backend()
    if backend == "torch":
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return Processes(distributed.get_rank(), distributed.get_world_size())
    if backend == "jax":
        import jax

        if jax.distributed.is_initialized():
            return Processes(jax.process_index(), jax.process_count())
    return ALONE


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a launcher has put this process: its number among all and on its machine, and the address of process 0."""

    index: int
    count: int
    local_index: int
    local_count: int
    address: str  # "host:port" of process 0


def placement(environment: Mapping[str, str]) -> Place | None:
    """Returns where torchrun's or Slurm's variables put this process; None without them or for one process."""

    def number(name: str, default: int | None = None, least: int = 0) -> int:
        text = environment.get(name) or ("" if default is None else str(default))
        if not text.isdecimal() or int(text) < least:
            raise ValueError(
                f"The environment variable {name} must be a whole number of at least {least}, but it is {text!r}."
            )
        return int(text)

    if all(environment.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        index, count = number("RANK"), number("WORLD_SIZE")
        host, port = environment["MASTER_ADDR"], number("MASTER_PORT")
        local_index, local_count = number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1, 1)
    elif number("SLURM_STEP_NUM_TASKS", 1) > 1:
        index, count, local_index = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS"), number("SLURM_LOCALID", 0)
        # Such as "4(x2),1": two nodes of four tasks, and one of one.
        tasks = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        local_counts = [int(count) for count, nodes in tasks for _ in range(int(nodes or 1))]
        local_count = dict(enumerate(local_counts)).get(number("SLURM_NODEID", 0)) or 1
        # The first host, such as gpu07 of "gpu[07-09,12],cpu1".
        nodes = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", environment.get("SLURM_STEP_NODELIST", "localhost"))
        first = "".join(part or "" for part in nodes.groups()) if nodes else "localhost"
        host = environment.get("MASTER_ADDR") or first
        port = number("MASTER_PORT", _FIRST_PORT + number("SLURM_JOB_ID", 0) % _PORTS)
    else:
        return None
    if not 0 <= index < count:
        raise ValueError(
            f"The environment gives this process the number {index}, but it must be from 0 to {count - 1}."
        )
    return Place(index, count, local_index, local_count, f"{host}:{port}") if count > 1 else None


def _connect_torch(place: Place) -> None:
    """Joins this process with the others by torch.distributed, on the GPU of its number where there are GPUs."""
    import torch

    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_index % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    # torchrun holds the port itself, and "env://" knows that.
    method = "env://" if "TORCHELASTIC_RUN_ID" in os.environ else f"tcp://{place.address}"
    torch.distributed.init_process_group(backend, init_method=method, rank=place.index, world_size=place.count)


def _connect_jax(place: Place | None) -> None:
    """Joins this process with the others by jax.distributed, and makes the first exchange with them."""
    # Without a place JAX finds the others itself.
    import jax

    options: dict[str, Any] = {"heartbeat_timeout_seconds": 30}  # a machine that is lost is noticed within a minute
    if place is not None:
        host, _, port = place.address.rpartition(":")
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun listens there itself
            port = str(int(port) + 1)
        options |= {"coordinator_address": f"{host}:{port}", "num_processes": place.count, "process_id": place.index}
        if place.local_count > 1:
            options["local_device_ids"] = [place.local_index]
        options["cluster_detection_method"] = "deactivate"
    try:
        jax.distributed.initialize(**options)
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise RuntimeError(
            "JAX has computed something already, so this process can no longer join the other ones. Call "
            "keras_vit.training.connect() at the beginning of the program, before a model is built."
        ) from error
    # On CPUs gloo says on standard output that it is connected, at the first exchange: that is made now, with standard
    # error in its place, so that what the program prints, JSON for example, stays alone.
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        current().any(False)
    finally:
        os.dup2(output, 1)
        os.close(output)


def batch_shares(model: keras.Model | None = None) -> int:
    """Returns into how many parts Keras's distribution, or a model's `tf.distribute` strategy, divides batches."""
    # JAX has one distribution for all models; on TensorFlow it is the strategy of the model.
    distribution = keras.distribution.distribution()
    if distribution is not None:
        mesh = distribution.device_mesh
        return dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(distribution.batch_dim_name, 1)
    strategy = getattr(model, "distribute_strategy", None)
    check_strategy(strategy)
    return getattr(strategy, "num_replicas_in_sync", 1)


def check_strategy(strategy: Any) -> None:
    """Raises a `RuntimeError` for a `tf.distribute` strategy that joins several processes."""
    resolver = getattr(strategy, "cluster_resolver", None)
    cluster = None if resolver is None else resolver.cluster_spec()
    count = sum(cluster.num_tasks(job) for job in cluster.jobs) if cluster else 1  # no cluster: this machine alone
    if count > 1:
        raise RuntimeError(
            f"A tf.distribute strategy over {count} processes was given, but only JAX and PyTorch can use several "
            "processes, by torchrun or Slurm. On one machine, use tf.distribute.MirroredStrategy."
        )


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Returns the context to copy, compile and train a model in: TensorFlow's strategy that it was made in."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    check_strategy(model.distribute_strategy)
    return model.distribute_strategy.scope()


def tensorflow_has_only_cpus() -> bool:
    """Whether TensorFlow, the backend in use, sees neither GPUs nor TPUs; False on other backends."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return all(device.device_type == "CPU" for device in tf.config.list_physical_devices())


def may_use_xla(model: keras.Model) -> bool:
    """Whether XLA would suit a model that Keras 3.15 compiles without it: on TensorFlow's CPUs, with batches whole."""
    return tensorflow_has_only_cpus() and batch_shares(model) == 1


ONEDNN, XLA = "KERAS_VIT_ONEDNN", "KERAS_VIT_XLA"  # environment variables, 0 or 1, which come before the rules


def switched_on(variable: str, rule: bool) -> bool:
    """Whether an environment variable is 1; what the rule says where it is not set."""
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, but it is {value!r}. Unset it, and the rule decides.")
    return value == "1" or (rule and not value)


def fill_up(batch: np.ndarray, length: int) -> np.ndarray:
    """Returns the batch with its last row repeated to at least `length` rows; of zeros if it is empty."""
    if not len(batch):
        return np.zeros((length, *batch.shape[1:]), batch.dtype)
    missing = length - len(batch)
    return np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)]) if missing > 0 else batch


def local_model(model: keras.Model) -> keras.Model | Callable[[Any], Any]:
    """Returns the model, or a function of its inputs where JAX has copies of it on devices of several processes."""
    if keras.backend.backend() != "jax" or all(weight.value.is_fully_addressable for weight in model.weights):
        return model
    if not all(variable.value.is_fully_replicated for variable in model.variables):
        raise ValueError("The model is sharded over several processes. Evaluate a copy that fits into one process.")
    import jax

    groups = (model.trainable_variables, model.non_trainable_variables)
    state = [[variable.value.addressable_data(0) for variable in variables] for variables in groups]
    call = jax.jit(lambda state, inputs: model.stateless_call(*state, inputs, training=False)[0])
    return lambda inputs: call(state, inputs)
