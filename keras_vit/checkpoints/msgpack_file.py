"""Flax's msgpack files, as Scenic publishes its models in: arrays by their names, and back."""

import math
import pathlib
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import replacing
from keras_vit.checkpoints.files import check_absent
from keras_vit.checkpoints.stored_array import READABLE, ArrayFile, Extent, StoredArray, is_shape

_MOST_LEVELS = 32  # maps within maps
# By the first byte of a value: itself, the form of `struct` of a number, or what it is and the form of its length.
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
_FIRSTS = {
    "bytes": (0xC4, "BHI"),
    "array": (0xC7, "BHI"),
    "text": (0xD9, "BHI"),
    "list": (0xDC, "HI"),
    "map": (0xDE, "HI"),
}
_LENGTHS = {first + i: (what, form) for what, (first, forms) in _FIRSTS.items() for i, form in enumerate(forms)}


def is_msgpack(path: pathlib.Path) -> bool:
    """Whether a file begins with a map of msgpack, which no other kind of checkpoint does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1)
    return bool(head) and (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF))


class _Reader:
    """Reads values of msgpack one after the other; of arrays it notes the places by their names."""

    def __init__(self, file: IO[bytes], path: pathlib.Path) -> None:
        self.file, self.path, self.size = file, path, path.stat().st_size
        self.arrays: dict[str, StoredArray] = {}

    def place(self, length: int) -> int:
        if length > self.size - self.file.tell():
            raise ValueError("the file ends too early")
        return self.file.tell()

    def number(self, form: str) -> Any:
        self.place(struct.calcsize(form))
        return struct.unpack(f">{form}", self.file.read(struct.calcsize(form)))[0]

    def value(self, name: str, levels: int = 0) -> Any:
        if levels > _MOST_LEVELS:
            raise ValueError(f"it has more than {_MOST_LEVELS} dictionaries inside each other")
        kind = self.number("B")
        if kind <= 0x7F or kind >= 0xE0:
            return kind if kind <= 0x7F else kind - 256
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        what, length = self.head(kind)
        if what == "map":
            found: dict[Any, Any] = {}
            for _ in range(length):
                key = self.value(name, levels + 1)
                if not isinstance(key, str) or key in found:
                    raise ValueError(f"the key {printable(repr(key), 60)} must be a string that is there once")
                found[key] = self.value(f"{name}/{key}" if name else key, levels + 1)
            return found
        if what == "list":
            return [self.value(name, levels + 1) for _ in range(length)]
        if what == "array":
            return self.array(name, length, levels)
        start = self.place(length)
        if what == "text":
            return self.file.read(length).decode("utf-8")
        self.file.seek(start + length)
        return Extent(self.path, start, length, name)

    def head(self, kind: int) -> tuple[str, int]:
        """Returns what a value is that begins with a byte, and its length."""
        for first, bits, what in ((0x80, 0x0F, "map"), (0x90, 0x0F, "list"), (0xA0, 0x1F, "text")):
            if first <= kind <= first + bits:
                return what, kind & bits
        if 0xD4 <= kind <= 0xD8:
            return "array", 2 ** (kind - 0xD4)
        if kind not in _LENGTHS:
            raise ValueError(f"a value begins with the byte {kind:#x}, which is not valid")
        what, form = _LENGTHS[kind]
        return what, self.number(form)

    def array(self, name: str, length: int, levels: int) -> None:
        """Adds the array of an extension of Flax to `arrays`, without reading its values; skips other extensions."""
        kind, end = self.number("b"), self.place(length) + length
        if kind not in (1, 3):
            self.file.seek(end)
            return
        shape, dtype, data = self.value(name, levels + 1)
        is_known = dtype in READABLE and isinstance(shape, list) and is_shape((*shape,)) and isinstance(data, Extent)
        has_all = is_known and math.prod(shape) * np.dtype(dtype).itemsize == data.size
        if not has_all or self.file.tell() != end or name in self.arrays:
            raise ValueError(f"the array {printable(repr(name), 100)} is not valid, or is there twice")
        self.arrays[name] = StoredArray(name, tuple(shape), np.dtype(dtype), data.read)


def read_msgpack(path: pathlib.Path) -> ArrayFile:
    """Returns the arrays of a file by their names, with `/` between the keys of its maps."""
    with path.open("rb") as file:
        reader = _Reader(file, path)
        try:
            reader.value("")
            if file.tell() != reader.size:
                raise ValueError("more bytes follow the end of the last array")
        except (ValueError, TypeError, struct.error, MemoryError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a msgpack file of Flax, or is damaged: {error}.") from error
    return ArrayFile(path, reader.arrays)


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
        return struct.pack(">BB", 0xD9, len(value.encode())) + value.encode()

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
