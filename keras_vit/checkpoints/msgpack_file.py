"""Flax's msgpack files, as Scenic publishes its models in: arrays by their names, and back."""

import dataclasses
import math
import pathlib
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import replacing
from keras_vit.checkpoints.files import check_absent
from keras_vit.checkpoints.stored_array import READABLE, ArrayFile, Extent, StoredArray

_MOST_LEVELS = 32  # maps within maps
_NUMBERS = dict(zip(range(0xCA, 0xD4), (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xC7: ">B", 0xC8: ">H", 0xC9: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LENGTHS |= {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def is_msgpack(path: pathlib.Path) -> bool:
    """Whether a file begins with a map of msgpack, which no other kind of checkpoint does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1)
    return bool(head) and (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF))


@dataclasses.dataclass
class _Reader:
    """Reads values of msgpack one after the other; arrays are described, not read."""

    file: IO[bytes]
    path: pathlib.Path
    size: int

    def take(self, count: int) -> bytes:
        """Returns the next bytes."""
        if count > self.size - self.file.tell():
            raise ValueError("it ends too early")
        return self.file.read(count)

    def skip_to(self, place: int) -> None:
        """Leaves out what comes before a place."""
        if place > self.size:
            raise ValueError("it ends too early")
        self.file.seek(place)

    def number(self, form: str) -> Any:
        """Returns the next number of a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, name: str, levels: int = 0) -> Any:
        """Returns the next value; `name` is that of an array."""
        if levels > _MOST_LEVELS:
            raise ValueError("its maps are nested too deeply")
        kind = self.number(">B")
        if kind <= 0x7F or kind >= 0xE0:
            return kind if kind <= 0x7F else kind - 256
        if kind in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[kind]
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if 0xD4 <= kind <= 0xD8:
            return self.extension(name, 2 ** (kind - 0xD4), levels)
        if kind <= 0xBF:
            length = kind & (0x1F if kind >= 0xA0 else 0x0F)
        elif kind in _LENGTHS:
            length = self.number(_LENGTHS[kind])
        else:
            raise ValueError(f"it has the byte {kind:#x}, which no value begins with")
        if 0xC7 <= kind <= 0xC9:
            return self.extension(name, length, levels)
        if 0x80 <= kind <= 0x8F or kind >= 0xDE:
            found: dict[Any, Any] = {}
            for _ in range(length):
                key = self.value(name, levels + 1)
                if not isinstance(key, str) or key in found:
                    raise ValueError(f"it has the key {printable(repr(key), 60)} twice, or as something else than text")
                found[key] = self.value(f"{name}/{key}" if name else key, levels + 1)
            return found
        if 0x90 <= kind <= 0x9F or kind >= 0xDC:
            return [self.value(name, levels + 1) for _ in range(length)]
        if 0xC4 <= kind <= 0xC6:
            start = self.file.tell()
            self.skip_to(start + length)
            return Extent(self.path, start, length, name)
        return self.take(length).decode("utf-8")

    def extension(self, name: str, length: int, levels: int) -> Any:
        """Returns the array of an extension of Flax: its shape, the name of its dtype, its bytes."""
        kind, end = self.number(">b"), self.file.tell() + length
        if kind not in (1, 3):
            self.skip_to(end)
            return None
        shape, dtype, data = self.value(name, levels + 1)
        dtype = dtype.decode() if isinstance(dtype, bytes) else dtype
        is_shape = isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape)
        if dtype not in READABLE or not is_shape or not isinstance(data, Extent) or self.file.tell() != end:
            raise ValueError(f"its array {printable(repr(name), 100)} is not one of Flax's")
        import ml_dtypes

        known = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if math.prod(shape) * known.itemsize != data.size:
            raise ValueError(f"its array {printable(repr(name), 100)} has another size than its shape says")
        return StoredArray(name, tuple(shape), known, data.read)


def read_msgpack(path: pathlib.Path) -> ArrayFile:
    """Returns the arrays of a file by their names, with `/` between the keys of its maps."""
    with path.open("rb") as file:
        reader = _Reader(file, path, path.stat().st_size)
        try:
            tree = reader.value("")
            if file.tell() != reader.size:
                raise ValueError("more bytes follow its end")
        except (ValueError, TypeError, struct.error, MemoryError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a msgpack file of Flax that can be read: {error}.") from error
    arrays: dict[str, StoredArray] = {}

    def collect(node: Any) -> None:
        if isinstance(node, StoredArray):
            if node.name in arrays:
                raise ValueError(f"{path} has two arrays of the name {printable(repr(node.name), 100)}.")
            arrays[node.name] = node
        elif isinstance(node, Mapping):
            for child in node.values():
                collect(child)

    collect(tree)
    return ArrayFile(path, arrays)


def write_msgpack(path: pathlib.Path, arrays: Mapping[str, np.ndarray], overwrite: bool = False) -> None:
    """Writes arrays by names with `/` as nested maps; FileExistsError unless the file may be replaced."""
    check_absent(path, overwrite=overwrite)
    tree: dict[str, Any] = {}
    for name, values in arrays.items():
        *parents, last = name.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = values

    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack(">BB", 0xD9, len(data)) + data

    with replacing(path) as temporary, temporary.open("wb") as file:

        def write(node: Any) -> None:
            if isinstance(node, dict):
                file.write(struct.pack(">BI", 0xDF, len(node)))
                for key, child in node.items():
                    file.write(text(key))
                    write(child)
                return
            shape = b"".join(struct.pack(">BI", 0xCE, side) for side in node.shape)
            head = struct.pack(">BB", 0x93, 0x90 | node.ndim) + shape + text(str(node.dtype))
            head += struct.pack(">BI", 0xC6, node.nbytes)
            file.write(struct.pack(">BIb", 0xC9, len(head) + node.nbytes, 1) + head)
            file.write(np.ascontiguousarray(node).data)

        write(tree)
