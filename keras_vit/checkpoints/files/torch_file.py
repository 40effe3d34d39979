"""Reading the arrays of PyTorch's files (`.pth`, `.pt`, `.bin`) without PyTorch, and without running what is in them.

Since PyTorch 1.6 a file is a zip archive: `data.pkl`, a pickle that says which arrays there are, and `data/<key>`, the
values of each storage, not compressed. The older form is five pickles in a row and the storages behind them.
"""

import math
import os
import zipfile
import zlib
from typing import IO, Any

import numpy as np

from keras_vit._arrays import aligned_zeros
from keras_vit._text import printable
from keras_vit.checkpoints.files.npz import start_of_member
from keras_vit.checkpoints.files.stored_array import (
    MOST_AXES,
    PICKLE_START,
    PIECE,
    TORCH,
    ArrayFile,
    StoredArray,
    kind_of,
    numpy_dtype,
    read_pieces,
    what_it_is,
)
from keras_vit.checkpoints.files.torch_pickle import LONGEST, Storage, Tensor, read_pickle

# What the dict with the weights is called inside a training state, the preferred first: averages before what they are
# averages of, the teacher of self-distillation before the student, I-JEPA's target before its context encoder.
CONTAINERS = (
    *("state_dict_ema", "model_ema", "teacher", "target_encoder"),
    *("model", "module", "state_dict", "student", "encoder"),
)
MOST_SHARED = 4  # times its size that the arrays in a storage may have together
_LONGEST_NAME = 300  # characters of the names in `outside`
_NESTED = 4  # containers in each other
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of the older form
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, NotImplementedError)


class TorchFile(ArrayFile):
    """The arrays of a file of `torch.save` by name: those of a state dict, or of the one inside a training state.

    Nobody has to trust the file: its pickle is read by `torch_pickle`, which runs nothing; every array lies in its
    storage, and every storage in the file. Arrays are read one at a time.

    Attributes:
        container: The name of the dict that the arrays are in (one of `CONTAINERS`, or names joined by dots); empty
            where the file is a plain state dict.
        outside: The names of the arrays that are not in it, such as an optimizer's.

    Args:
        path: The file. It is closed between the calls.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no file at `path`.
        ValueError: if it is no such file, is truncated or damaged, asks for classes that weights do not need, holds
            code (TorchScript), is compressed, or has arrays that overlap or leave their storage.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        if kind_of(self.path) != TORCH:
            raise ValueError(f"{self.path} is not a file of torch.save: {what_it_is(self.path)}.")
        self._size = self.path.stat().st_size
        self._places: dict[str, tuple[int, int]] = {}  # by key: where a storage begins in the file, and its bytes
        self._checksums: dict[str, int] = {}  # by key; only the zip form has them
        self._sound: set[str] = set()  # keys whose checksum is right
        with self.path.open("rb") as file:
            older = file.read(len(PICKLE_START)) == PICKLE_START
        root = self._read_older() if older else self._read_zip()
        names, self._tensors = self._weights(root)
        self.container = ".".join(names)
        inside = {".".join([*names, name]) for name in self._tensors}
        self.outside = [name for name in _names(root) if name not in inside]
        self._arrays = {name: self._describe(name, tensor) for name, tensor in self._tensors.items()}
        self._check_sharing()

    def read_stored(self, array: StoredArray) -> np.ndarray:
        """See `StoredArray.read_stored`."""
        tensor = self._tensors[array.name]
        if not _is_plain(tensor):
            span = _span(tensor.shape, tensor.strides)
            flat = self._read(tensor.storage, tensor.offset, span if math.prod(tensor.shape) else 0)
            steps = [stride * flat.itemsize for stride in tensor.strides]
            values = np.lib.stride_tricks.as_strided(flat, tensor.shape, steps)
            whole = aligned_zeros(tensor.shape, flat.dtype)
            np.copyto(whole, values)
            first = array.start or 0
            return whole.reshape(-1)[first : first + array.size].reshape(array.shape)
        return self._read(tensor.storage, tensor.offset + (array.start or 0), array.size).reshape(array.shape)

    def _read(self, storage: Storage, first: int, count: int) -> np.ndarray:
        """Values of a storage, whose checksum is compared once."""
        start, size = self._places[storage.key]
        dtype = numpy_dtype(storage.stored)
        # Memory of its own: JAX keeps an array that it is given instead of copying it.
        data = aligned_zeros((count * dtype.itemsize,), np.uint8)
        unchecked = storage.key in self._checksums and storage.key not in self._sound
        if unchecked and len(data) < size:
            self._compare(storage, memoryview(bytearray(min(PIECE, size))))
            unchecked = False
        if unchecked:
            self._compare(storage, memoryview(data))
        else:
            for _ in read_pieces(self.path, start + first * dtype.itemsize, len(data), memoryview(data)):
                pass
        return data.view(dtype)

    def _compare(self, storage: Storage, buffer: memoryview) -> None:
        start, size = self._places[storage.key]
        checksum = 0
        for piece in read_pieces(self.path, start, size, buffer):
            checksum = zlib.crc32(piece, checksum)
        if checksum != self._checksums[storage.key]:
            raise ValueError(
                f"{self.path} is damaged: the checksum of the storage {printable(storage.key, 60)} is wrong. Fetch the "
                "file again."
            )
        self._sound.add(storage.key)

    def _read_zip(self) -> Any:
        try:
            with zipfile.ZipFile(self.path) as archive, self.path.open("rb") as file:
                members = self._members(archive)
                pickles = [name for name in members if name.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise ValueError(f"it has {len(pickles)} members data.pkl, expected one")
                root = pickles[0].removesuffix("data.pkl")
                size = members[pickles[0]].file_size
                if size > LONGEST:
                    raise ValueError(f"its pickle has {size:,} bytes, the most are {LONGEST:,}")
                if f"{root}constants.pkl" in members or any(name.startswith(f"{root}code/") for name in members):
                    raise ValueError(
                        "it is a TorchScript archive, which holds code. Its code is never run; take the weights as "
                        "safetensors, or save the state dict alone with PyTorch if you trust the file"
                    )
                order = members.get(f"{root}byteorder")
                if order is not None and (order.file_size > 10 or _member(archive, file, order) != b"little"):
                    raise ValueError("its values are not in the byte order of common machines (little endian)")
                for name, member in members.items():
                    archive.open(member).close()  # compares the archive's list with the member itself
                    start = start_of_member(file, member)
                    if start + member.file_size > self._size:
                        raise ValueError(f"its member {printable(repr(name), 100)} ends behind the end of the file")
                    if name.startswith(f"{root}data/"):
                        key = name.removeprefix(f"{root}data/")
                        self._places[key] = start, member.file_size
                        if member.CRC:
                            self._checksums[key] = member.CRC
                data = _member(archive, file, members[pickles[0]])
        except PermissionError:
            raise
        except _DAMAGE as error:
            raise ValueError(f"{self.path} cannot be read as a file of torch.save: {printable(error, 300)}.") from None
        value, end = read_pickle(data, 0, str(self.path))
        if end != len(data):
            raise ValueError(f"{self.path} is damaged: {len(data) - end:,} bytes follow the end of its pickle.")
        return value

    def _members(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        """The archive's members by name: each once, none compressed or encrypted, all together no larger than it."""
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = printable(repr(member.filename), 100)
            if member.filename in members:
                raise ValueError(f"it has two members {name}")
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise ValueError(f"its member {name} is compressed, which torch.save never does")
            if member.flag_bits & 1:
                raise ValueError(f"its member {name} is encrypted")
            members[member.filename] = member
        total = sum(member.file_size for member in members.values())
        if total > self._size:
            raise ValueError(f"its members should have {total:,} bytes, and it has {self._size:,}")
        return members

    def _read_older(self) -> Any:
        what = str(self.path)
        with self.path.open("rb") as file:
            data = file.read(LONGEST)
        at, values = 0, []
        for expected in (_MAGIC, _VERSION, None, None, None):
            value, at = read_pickle(data, at, what)
            if expected is not None and value != expected:
                raise ValueError(f"{what} is a pickle, but none that torch.save wrote.")
            values.append(value)
        _, _, system, root, keys = values
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ValueError(f"{what} has values that are not in the byte order of common machines (little endian).")
        storages = {tensor.storage.key: tensor.storage for tensor in _all_tensors(root)}
        if not isinstance(keys, list) or not all(type(key) is str for key in keys) or len(set(keys)) < len(keys):
            raise ValueError(f"{what} is damaged: its list of storages makes no sense.")
        with self.path.open("rb") as file:
            for key in keys:
                if key not in storages:
                    raise ValueError(f"{what} has a storage {printable(key, 60)} that no array is in.")
                file.seek(at)
                count = int.from_bytes(file.read(8), "little", signed=True)
                size = count * numpy_dtype(storages[key].stored).itemsize
                if count < 0 or at + 8 + size > self._size:
                    raise ValueError(f"{what} is truncated: the storage {printable(key, 60)} has {count:,} values.")
                self._places[key] = at + 8, size
                at += 8 + size
        if at != self._size:
            raise ValueError(f"{what} is damaged: {self._size - at:,} bytes follow its storages.")
        return root

    def _weights(self, root: Any) -> tuple[list[str], dict[str, Tensor]]:
        """The names of the containers that the weights are in, and the weights by name."""
        names: list[str] = []
        current = root
        holds = _WeightHolders()
        while isinstance(current, dict) and len(names) < _NESTED:
            inner = [name for name in CONTAINERS if holds(current.get(name), _NESTED)]
            direct = _direct(current)
            if not inner and direct:
                return names, direct
            inner = inner or [name for name, value in current.items() if type(name) is str and holds(value, 1)]
            if not inner or (inner[0] not in CONTAINERS and len(inner) > 1):
                break
            names.append(inner[0])
            current = current[inner[0]]
        keys = list(root)[:8] if isinstance(root, dict) else [f"a {type(root).__name__}"]
        raise ValueError(
            f"{self.path} holds no state dict that is known here: expected tensors by name, or a dict with one of "
            f"{', '.join(CONTAINERS)}. It has: {', '.join(printable(key, 60) for key in keys) or 'nothing'}."
        )

    def _describe(self, name: str, tensor: Tensor) -> StoredArray:
        where = f"{self.path} is damaged: {printable(repr(name), 100)}"
        storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
        _, size = self._places.get(storage.key, (0, -1))
        if size != storage.count * numpy_dtype(storage.stored).itemsize:
            raise ValueError(
                f"{where} is in the storage {printable(storage.key, 60)}, which should have {storage.count:,} values "
                f"of {storage.stored}; " + (f"it has {size:,} bytes." if size >= 0 else "there is none.")
            )
        if len(shape) != len(strides) or len(shape) > MOST_AXES or math.prod(n or 1 for n in shape) >= 2**60:
            raise ValueError(f"{where} has the shape {printable(shape, 100)} and strides {printable(strides, 100)}.")
        if math.prod(shape) and tensor.offset + _span(shape, strides) > storage.count:
            raise ValueError(f"{where} leaves its storage, which has {storage.count:,} values.")
        steps = sorted((stride, n) for stride, n in zip(strides, shape, strict=True) if n > 1)
        covered = 1
        for stride, n in steps if math.prod(shape) else ():
            if stride < covered:
                raise ValueError(
                    f"{self.path} stores values of {printable(repr(name), 100)} on top of each other: the strides are "
                    f"{strides} and the shape is {shape}. Save it with PyTorch after .contiguous()."
                )
            covered += (n - 1) * stride
        return StoredArray(name, shape, storage.stored, self)

    def _check_sharing(self) -> None:
        """Raises ValueError if few bytes stand for many arrays, so that the model would be far larger than the file."""
        used: dict[str, int] = {}
        for name, tensor in self._tensors.items():
            used[tensor.storage.key] = used.get(tensor.storage.key, 0) + self._arrays[name].bytes
        for key, size in used.items():
            if size > MOST_SHARED * self._places[key][1]:
                raise ValueError(
                    f"{self.path} has arrays of {size:,} bytes in the storage {printable(key, 60)}, which has "
                    f"{self._places[key][1]:,}: more than {MOST_SHARED} arrays share their values."
                )


def _member(archive: zipfile.ZipFile, file: IO[bytes], member: zipfile.ZipInfo) -> bytes:
    """The bytes of a member, compared with its checksum; that is zero where PyTorch was told to compute none."""
    if member.CRC:
        return archive.read(member)
    file.seek(start_of_member(file, member))
    return file.read(member.file_size)


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Values from the first to the last of an array that is not empty, both included."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _is_plain(tensor: Tensor) -> bool:
    """Whether the values follow each other in the order of the axes, the last one fastest."""
    step = 1
    for n, stride in zip(tensor.shape[::-1], tensor.strides[::-1], strict=True):
        if n > 1 and stride != step:
            return False
        step *= n
    return True


def _direct(value: Any) -> dict[str, Tensor]:
    """The tensors in a dict by name; none in anything else."""
    if not isinstance(value, dict):
        return {}
    return {name: inner for name, inner in value.items() if type(name) is str and type(inner) is Tensor}


class _WeightHolders:
    """Tells whether a value holds tensors by name, or does so in one of `CONTAINERS`; looks at each dict once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, value: Any, levels: int) -> bool:
        if not isinstance(value, dict) or not levels:
            return False
        key = id(value), levels
        if key not in self._known:
            self._known[key] = bool(_direct(value)) or any(self(value.get(name), levels - 1) for name in CONTAINERS)
        return self._known[key]


def _all_tensors(root: Any) -> list[Tensor]:
    """Every tensor anywhere in a pickle's data."""
    seen: set[int] = set()
    tensors, waiting = [], [root]
    while waiting:
        value = waiting.pop()
        if type(value) is Tensor:
            tensors.append(value)
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return tensors


def _names(root: Any) -> list[str]:
    """The names of all tensors in dicts in each other, joined by dots; each dict once."""
    seen: set[int] = set()
    names, waiting = [], [("", root)]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend((f"{prefix}{name}."[:_LONGEST_NAME], inner) for name, inner in value.items())
        elif type(value) is Tensor:
            names.append(prefix.removesuffix("."))
    return sorted(names)
