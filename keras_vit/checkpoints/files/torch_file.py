"""Reading the arrays of PyTorch's files (`.pth`, `.pt`, `.bin`) without PyTorch, and without running what is in them.

Since PyTorch 1.6 a file is a zip archive: `data.pkl`, a pickle that says which arrays there are, and `data/<key>`, the
values of each storage, not compressed. The older form is five pickles in a row and the storages behind them.
TorchScript archives, such as those of OpenAI's CLIP, hold code as well, which is not looked at.
"""

import io
import math
import os
import zipfile
from collections.abc import Iterator
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.files.stored_array import (
    DAMAGE,
    PICKLE_START,
    TORCH,
    ArrayFile,
    Extent,
    StoredArray,
    is_shape,
    kind_of,
    numpy_dtype,
    span,
    start_of_member,
    what_it_is,
)
from keras_vit.checkpoints.files.torch_pickle import LONGEST, Object, Storage, Tensor, read_pickle

# What the dict with the weights is called inside a training state, the preferred first: averages before what they are
# averages of, the teacher of self-distillation before the student, I-JEPA's target before its context encoder.
CONTAINERS = (
    *("state_dict_ema", "model_ema", "teacher", "target_encoder"),
    *("model", "module", "state_dict", "student", "encoder"),
)
MOST_SHARED = 4  # times its size that the arrays in a storage may have together
_LONGEST_NAME = 300  # characters of the names of arrays
_NESTED = 4  # containers in each other
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of the older form


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
        ValueError: if it is no such file, is truncated or damaged, asks for classes that weights do not need, is
            compressed, or has arrays that overlap or leave their storage.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        if kind_of(self.path) != TORCH:
            raise ValueError(f"{self.path} is not a file of torch.save: {what_it_is(self.path)}.")
        self._big_endian = False
        self._storages: dict[str, Extent] = {}
        with self.path.open("rb") as file:
            older = file.read(len(PICKLE_START)) == PICKLE_START
        root = self._read_older() if older else self._read_zip()
        every = dict(_tensors(root))
        names = _path_to_weights(root)
        if isinstance(root, Object):  # TorchScript: modules in each other
            names, tensors = [], every
        elif names is not None:
            tensors = _direct(_at(root, names))
        else:
            keys = list(_fields(root))[:8] if isinstance(root, dict) else [f"a {type(root).__name__}"]
            raise ValueError(
                f"{self.path} holds no state dict that is known here: expected tensors by name, or a dict with one of "
                f"{', '.join(CONTAINERS)}. It has: {', '.join(printable(key, 60) for key in keys) or 'nothing'}."
            )
        self.container = ".".join(names)
        self.outside = sorted(every.keys() - {".".join([*names, name]) for name in tensors})
        self._arrays = {name: self._describe(name, tensor) for name, tensor in tensors.items()}
        self._check_sharing()

    def _read_zip(self) -> Any:
        size = self.path.stat().st_size
        try:
            with zipfile.ZipFile(self.path) as archive, self.path.open("rb") as file:
                pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise ValueError(f"it has {len(pickles)} members data.pkl, expected one")
                root = pickles[0].removesuffix("data.pkl")
                extents: dict[str, Extent] = {}
                for name, member in self._members(archive, root, size).items():
                    archive.open(member).close()  # compares the archive's list with the member itself
                    start = start_of_member(file, member)
                    if start + member.file_size > size:
                        raise ValueError(f"its member {printable(repr(name), 100)} ends behind the end of the file")
                    # The checksum is zero where PyTorch was told to compute none.
                    extents[name] = Extent(self.path, start, member.file_size, name, member.CRC or None)
        except PermissionError:
            raise
        except DAMAGE as error:
            raise ValueError(f"{self.path} cannot be read as a file of torch.save: {printable(error, 300)}.") from None
        data = self._member(extents.pop("data.pkl"), LONGEST)
        if "byteorder" in extents:
            self._big_endian = self._member(extents.pop("byteorder"), 10) == b"big"
        self._storages = {name.removeprefix("data/"): extent for name, extent in extents.items()}
        stream = io.BytesIO(data)
        value = read_pickle(stream, str(self.path))
        if left := stream.read():
            raise ValueError(f"{self.path} is damaged: {len(left):,} bytes follow the end of its pickle.")
        return value

    def _member(self, extent: Extent, most: int) -> bytes:
        """The bytes of a small member."""
        if extent.size > most:
            raise ValueError(f"{self.path}: {extent.name} has {extent.size:,} bytes, the most are {most:,}.")
        return extent.read(0, extent.size).tobytes()

    def _members(self, archive: zipfile.ZipFile, root: str, size: int) -> dict[str, zipfile.ZipInfo]:
        """The members that weights are in, by name: each once, none compressed, together no larger than the file."""
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removeprefix(root)
            if name not in ("data.pkl", "byteorder") and not name.startswith("data/"):
                continue
            shown = printable(repr(member.filename), 100)
            if name in members:
                raise ValueError(f"it has two members {shown}")
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise ValueError(f"its member {shown} is compressed, which torch.save never does")
            if member.flag_bits & 1:
                raise ValueError(f"its member {shown} is encrypted")
            members[name] = member
        total = sum(member.file_size for member in members.values())
        if total > size:
            raise ValueError(f"its members should have {total:,} bytes, and it has {size:,}")
        return members

    def _read_older(self) -> Any:
        what, size = str(self.path), self.path.stat().st_size
        with self.path.open("rb") as file:
            stream = io.BytesIO(file.read(LONGEST))
        for expected in (_MAGIC, _VERSION):
            if read_pickle(stream, what) != expected:
                raise ValueError(f"{what} is a pickle, but none that torch.save wrote.")
        system, root, keys = (read_pickle(stream, what) for _ in range(3))
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ValueError(f"{what} has values that are not in the byte order of common machines (little endian).")
        if not isinstance(keys, list) or not all(type(key) is str for key in keys) or len(set(keys)) < len(keys):
            raise ValueError(f"{what} is damaged: its list of storages makes no sense.")
        storages = [tensor.storage for _, tensor in _tensors(root)]
        types = {storage.key: storage.stored for storage in storages if type(storage) is Storage}
        at = stream.tell()
        with self.path.open("rb") as file:
            for key in keys:
                if key not in types:
                    raise ValueError(f"{what} has a storage {printable(key, 60)} that no array is in.")
                file.seek(at)
                count = int.from_bytes(file.read(8), "little", signed=True)
                length = count * numpy_dtype(types[key]).itemsize
                if count < 0 or at + 8 + length > size:
                    raise ValueError(f"{what} is truncated: the storage {printable(key, 60)} has {count:,} values.")
                self._storages[key] = Extent(self.path, at + 8, length, key)
                at += 8 + length
        if at != size:
            raise ValueError(f"{what} is damaged: {size - at:,} bytes follow its storages.")
        return root

    def _describe(self, name: str, tensor: Tensor) -> StoredArray:
        where = f"{self.path} is damaged: {printable(repr(name), 100)}"
        storage, offset, shape, strides = tensor.storage, tensor.offset, tensor.shape, tensor.strides
        if type(storage) is not Storage or storage.key not in self._storages:
            raise ValueError(f"{where} is in a storage that the file does not have.")
        extent, item = self._storages[storage.key], numpy_dtype(storage.stored).itemsize
        if extent.size != storage.count * item:
            raise ValueError(
                f"{where} is in the storage {printable(storage.key, 60)}, which should have {storage.count:,} values "
                f"of {storage.stored}; it has {extent.size:,} bytes."
            )
        if not (is_shape(shape) and is_shape((offset,))) or not _is_steps(strides, len(shape)):
            raise ValueError(f"{where} has a shape, strides or an offset that no array has.")
        if offset + span(shape, strides) > storage.count:
            raise ValueError(f"{where} leaves its storage, which has {storage.count:,} values.")
        covered = 1
        for stride, n in sorted(zip(strides, shape, strict=True)) if math.prod(shape) else ():
            if n > 1 and stride < covered:
                raise ValueError(
                    f"{self.path} stores values of {printable(repr(name), 100)} on top of each other: the strides are "
                    f"{strides} and the shape is {shape}. Save it with PyTorch after .contiguous()."
                )
            covered += (n - 1) * stride
        rows = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        plain = all(n <= 1 or stride == row for n, stride, row in zip(shape, strides, rows, strict=True))
        steps = None if plain else strides
        return StoredArray(name, shape, storage.stored, extent, offset * item, steps, self._big_endian)

    def _check_sharing(self) -> None:
        """Raises ValueError if few bytes stand for many arrays, so that the model would be far larger than the file."""
        used: dict[int, int] = {}
        for array in self._arrays.values():
            used[array.extent.start] = used.get(array.extent.start, 0) + array.bytes
            if used[array.extent.start] > MOST_SHARED * array.extent.size:
                raise ValueError(
                    f"{self.path} has arrays in the storage {printable(array.extent.name, 60)} that have more than "
                    f"{MOST_SHARED} times its {array.extent.size:,} bytes: too many arrays share their values."
                )


def _is_steps(strides: Any, axes: int) -> bool:
    whole = isinstance(strides, tuple) and all(type(stride) is int and 0 <= stride < 2**60 for stride in strides)
    return whole and len(strides) == axes


def _fields(value: Any) -> dict[Any, Any]:
    """What a dict or an object holds by name; nothing of anything else."""
    value = value.state if type(value) is Object else value
    # Other names than these may take gigabytes as text.
    return {name: value[name] for name in value if type(name) in (str, int)} if isinstance(value, dict) else {}


def _direct(value: Any) -> dict[str, Tensor]:
    """The tensors in a dict by name; none in anything else."""
    if not isinstance(value, dict):
        return {}
    return {name: inner for name, inner in value.items() if type(name) is str and type(inner) is Tensor}


def _at(value: Any, names: list[str]) -> Any:
    for name in names:
        value = value[name]
    return value


def _path_to_weights(value: Any, levels: int = _NESTED) -> list[str] | None:
    """The names of the containers that the weights are in; None where there are none."""
    if not isinstance(value, dict) or not levels:
        return None
    for name in CONTAINERS:
        path = _path_to_weights(value.get(name), levels - 1)
        if path is not None:
            return [name, *path]
    if _direct(value):
        return []
    only = [name for name, inner in value.items() if type(name) is str and _direct(inner)]
    return only if len(only) == 1 else None


def _tensors(root: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors in dicts and objects in each other, with their names joined by dots; each dict once."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        prefix, value = waiting.pop()
        if type(value) is Tensor:
            yield prefix.removesuffix("."), value
        elif id(value) not in seen:
            seen.add(id(value))
            fields = reversed(_fields(value).items())
            waiting.extend((f"{prefix}{name}."[:_LONGEST_NAME], inner) for name, inner in fields)
