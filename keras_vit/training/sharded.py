"""Checkpoints of models that are split over devices: pieces are written from where they lie, and read to where they go.

No device and no process ever needs a whole model. A checkpoint is a folder with one `.npz` for each process that wrote
it; its arrays are pieces, named by the number of their variable and the place where they begin. They can be read on any
number of devices and processes, also by a model that is whole on one device.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._processes import Processes
from keras_vit._text import printable
from keras_vit.checkpoints.files.npz import NpzFile, write_npz

_PART = re.compile(r"part-(\d{5})-of-(\d{5})\.npz")
_NOTE = "variables"


def save_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes weights, states of random generators and the optimizer's variables, each piece from its own device.

    All processes call it, with a path that all of them see. The folder is complete, and every process goes on, when the
    last part is in place; one that is killed before leaves a folder that `load_sharded` refuses, and that can be
    written again where no part was in place. Where one process cannot write its part, all of them raise an error, and
    the parts of the others go.

    Args:
        model: On the JAX backend; usually made in the scope of `model_parallel`.
        path: The folder; it must be new.

    Raises:
        RuntimeError: on another backend, where no model is split.
        FileExistsError: if there is such a checkpoint already.
        OSError: in all processes, if a file cannot be written, on a full disk for example. Checkpoints in other folders
            stay as they are.
        ConnectionError: if another process ends before its time.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-1000")  # on JAX
    """
    jax = _jax()
    path = Path(path)
    processes = Processes(jax.process_index(), jax.process_count())
    if processes.first:  # before the others write
        for unfinished in path.glob(".part-*-part-*.npz"):  # what processes that were killed have left
            with contextlib.suppress(OSError):
                unfinished.unlink()
    with processes.failing_together():
        exists = processes.any(any(_PART.fullmatch(file.name) for file in path.glob("part-*")))
    if exists:
        raise FileExistsError(f"{path} holds a checkpoint already. Choose another folder, or remove it.")
    variables = _variables(model)
    part = path / f"part-{processes.index:05d}-of-{processes.count:05d}.npz"
    failure = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_npz(part, _pieces(variables, processes.index), {_NOTE: _layout(variables)})
    except OSError as error:
        failure = error
    with processes.failing_together():  # each waits here until all parts are in place, or one cannot be
        failed = np.flatnonzero(processes.gather(np.array(failure is not None)))
    if len(failed):
        with contextlib.suppress(OSError):  # the folder goes with its last part
            part.unlink(missing_ok=True)
            path.rmdir()
        reason = (
            f"{part} cannot be written ({failure.strerror or failure})"
            if failure is not None
            else f"Process {failed[0]} of {processes.count} cannot write its part of {path}"
        )
        text = (
            f"{reason}. Nothing is left of this checkpoint; those in other folders are as they were. If the disk is "
            "full, make room, and save again."
        )
        raise (OSError(text) if failure is None else OSError(failure.errno, text)) from failure


def load_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Puts a checkpoint of `save_sharded` into a model, however that lies over devices and processes.

    Each device gets its own part of one array after the other. Nothing is assigned where a part is missing or does not
    fit; if a part turns out to be damaged while it is read, the arrays before it have been assigned.

    Args:
        model: Of the same config, compiled with the same optimizer, or without one if it was saved without.
        path: The folder.

    Raises:
        RuntimeError: on another backend than JAX.
        FileNotFoundError: if there is no such folder, or the checkpoint in it was not finished.
        ValueError: if it is of another model, or damaged.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-2000")  # on JAX
        >>> training.load_sharded(keras_vit.VisionTransformer(config), "checkpoints/step-2000")
    """
    jax = _jax()
    path = Path(path)
    variables = _variables(model)
    files = _parts(path)
    for file in files:
        if _NOTE not in file.note:
            raise ValueError(f"{file.path} is no part of a checkpoint of save_sharded.")
        if file.note[_NOTE] != _layout(variables):
            raise ValueError(
                f"{path} is of another model or optimizer than this one, whose {len(variables)} variables have other "
                "shapes or types. Make the model with the same config, and compile it with the same optimizer."
            )
    places = _places(path, files, variables)
    for variable, pieces in zip(variables, places, strict=True):
        old = variable.value
        reader = _Reader(tuple(variable.shape), str(variable.dtype), pieces)
        new = jax.make_array_from_callback(tuple(variable.shape), old.sharding, reader.read)
        del old
        variable.assign(new)


def _jax() -> Any:
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            f"Models are split over devices on JAX only, but this is {keras.backend.backend()}. Use model.save, or set "
            "KERAS_BACKEND=jax."
        )
    import jax

    return jax


def _variables(model: keras.Model) -> list[Any]:
    """All that training goes on from, in an order that depends on the model alone."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    return variables


def _layout(variables: list[Any]) -> str:
    """What tells models apart: a hash of all shapes and types. The list itself may be longer than a file's note."""
    layout = [[list(variable.shape), str(variable.dtype)] for variable in variables]
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()


def _stored_type(variable: Any) -> str:
    return "uint16" if str(variable.dtype) == "bfloat16" else str(variable.dtype)


def _pieces(variables: list[Any], process: int) -> Iterator[tuple[str, np.ndarray]]:
    """The pieces that lie on this process's devices; of several copies the first is written, by whoever has it."""
    yield "process", np.asarray(process)  # a process may hold second copies only
    for number, variable in enumerate(variables):
        for shard in variable.value.addressable_shards:
            if shard.replica_id == 0:
                begin = [part.start or 0 for part in shard.index]
                values = np.asarray(shard.data)
                # The format knows no bfloat16: its bits are kept.
                bits = values.view("uint16") if values.dtype == "bfloat16" else values
                yield f"{number}@{','.join(map(str, begin))}", bits


def _parts(path: Path) -> list[NpzFile]:
    names = sorted(file.name for file in path.glob("part-*.npz") if _PART.fullmatch(file.name))
    if not names:
        raise FileNotFoundError(f"There is no checkpoint of save_sharded in {path}.")
    count = int(names[0][-9:-4])
    for name in names:
        if int(name[-9:-4]) != count:
            raise ValueError(f"{path} holds parts of two checkpoints, {names[0]} and {name}. Remove one of them.")
    for number in range(count):
        if f"part-{number:05d}-of-{count:05d}.npz" not in names:
            raise FileNotFoundError(
                f"{path} was not finished: part {number + 1} of {count} is missing. Go on from an older checkpoint."
            )
    return [NpzFile(path / name) for name in names]


Piece = tuple[tuple[int, ...], tuple[int, ...], NpzFile, str]  # where it begins, its shape, its file and name


def _places(path: Path, files: list[NpzFile], variables: list[Any]) -> list[list[Piece]]:
    """The pieces of each variable, which fill it."""
    places: list[list[Piece]] = [[] for _ in variables]
    for file in files:
        for name in file:
            if name == "process":
                continue
            match = re.fullmatch(r"(\d{1,9})@((?:\d{1,18}(?:,\d{1,18})*)?)", name)
            if not match or int(match[1]) >= len(variables):
                raise ValueError(f"{file.path} is damaged: it holds {printable(repr(name), 100)}.")
            begin = tuple(int(number) for number in match[2].split(",") if number)
            variable = variables[int(match[1])]
            shape, piece = tuple(variable.shape), file[name].shape
            if file[name].stored != _stored_type(variable):
                raise ValueError(
                    f"{file.path} is damaged: {name} is {file[name].stored}, not {_stored_type(variable)}."
                )
            if len(begin) != len(shape) or len(piece) != len(shape):
                raise ValueError(f"{file.path} is damaged: {name} has {len(begin)} axes, expected {len(shape)}.")
            if any(first + length > size for first, length, size in zip(begin, piece, shape, strict=True)):
                raise ValueError(f"{file.path} is damaged: {name} of shape {piece} lies outside of {shape}.")
            places[int(match[1])].append((begin, piece, file, name))
    for number, (variable, pieces) in enumerate(zip(variables, places, strict=True)):
        if not _fill(tuple(variable.shape), pieces):
            raise ValueError(f"{path} is damaged: the pieces of variable {number} ({variable.path}) do not fill it.")
    return places


def _fill(shape: tuple[int, ...], pieces: list[Piece]) -> bool:
    """Whether pieces are a grid that covers an array, each place once."""
    cells = 1
    for axis, size in enumerate(shape):
        ranges = sorted({(begin[axis], begin[axis] + piece[axis]) for begin, piece, _, _ in pieces})
        if [start for start, _ in ranges] + [size] != [0] + [stop for _, stop in ranges]:
            return False
        cells *= len(ranges)
    return len(pieces) == cells == len({begin for begin, *_ in pieces})


class _Reader:
    """Reads any part of one variable from its pieces. The piece that was read last is kept: devices ask in order."""

    def __init__(self, shape: tuple[int, ...], dtype: str, pieces: list[Piece]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.pieces = pieces
        self.last: tuple[str, np.ndarray] | None = None

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """The part that an index of slices stands for."""
        ranges = [part.indices(size)[:2] for part, size in zip(index, self.shape, strict=True)]
        result = np.empty([stop - start for start, stop in ranges], self.dtype)
        for begin, piece, file, name in self.pieces:
            first = [max(a, start) for a, (start, _) in zip(begin, ranges, strict=True)]
            last = [min(a + n, stop) for a, n, (_, stop) in zip(begin, piece, ranges, strict=True)]
            if any(a >= b for a, b in zip(first, last, strict=True)):
                continue
            there = tuple(slice(a - start, b - start) for a, b, start in zip(first, last, begin, strict=True))
            here = tuple(slice(a - start, b - start) for a, b, (start, _) in zip(first, last, ranges, strict=True))
            result[here] = self._piece(file, name)[there]
        return result

    def _piece(self, file: NpzFile, name: str) -> np.ndarray:
        if self.last is None or self.last[0] != name:
            self.last = None  # before the next one takes its memory
            values = file[name].read_stored()
            self.last = name, values.view("bfloat16") if self.dtype == "bfloat16" else values
        return self.last[1]
