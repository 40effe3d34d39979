"""Arrays in files, whatever the format: names, shapes and types first, values on demand."""

import abc
import dataclasses
import math
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from keras_vit._arguments import aligned_zeros, printable

READABLE = (
    *("float16", "float32", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
PIECE = 2**22  # bytes read at a time
# What the standard library and NumPy raise for archives and arrays with wrong bytes in them.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    NotImplementedError,
)
_MOST_AXES = 32  # NumPy's limit before 2.0
_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name
_HEAD = 512  # bytes that tell what a file is


@dataclasses.dataclass
class Extent:
    """A run of bytes in a file.

    Attributes:
        path: The file.
        start: Where the run begins.
        size: Its length in bytes.
        name: What it holds, for messages.
        checksum: The CRC-32 that the file says it has; None where it says none. It is compared once.
    """

    path: pathlib.Path
    start: int
    size: int
    name: str
    checksum: int | None = None

    def __post_init__(self) -> None:
        """Notes the file's length and the time of its last change."""
        self._length, self._changed = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raises ValueError if the file is not the one any more that was opened: other values may be at the place."""
        length, changed = self._stamp()
        if (length, changed) != (self._length, self._changed):
            how = "shortened" if length < self._length else "changed"
            raise ValueError(f"{self.path} was {how} while it was read. Fetch the file again, or open it again.")

    def read(self, first: int, size: int) -> np.ndarray:
        """Bytes from `first` on, in memory of their own that backends can use without copying.

        Raises:
            ValueError: if the checksum is wrong, or the file was changed since it was opened.
        """
        self.check_unchanged()
        if self.checksum is not None and 2 * size > self.size:  # all of it, read once
            whole = aligned_zeros((self.size,), np.uint8)
            self._check(whole.data)
            return whole[first : first + size]
        if self.checksum is not None:
            self._check(memoryview(bytearray(min(PIECE, self.size))))
        data = aligned_zeros((size,), np.uint8)
        for _ in _pieces(self.path, self.start + first, size, data.data):
            pass
        return data

    def _check(self, buffer: memoryview) -> None:
        checksum = 0
        for piece in _pieces(self.path, self.start, self.size, buffer):
            checksum = zlib.crc32(piece, checksum)
        if checksum != self.checksum:
            raise ValueError(
                f"{self.path} is damaged: the checksum of {printable(repr(self.name), 100)} is wrong. Fetch the file "
                "again."
            )
        self.checksum = None


def _pieces(path: pathlib.Path, start: int, size: int, buffer: memoryview) -> Iterator[memoryview]:
    """Reads bytes of a file into a buffer, piece by piece. A shorter buffer is used again for each piece.

    Read, not mapped: a mapped file that somebody shortens meanwhile ends the process.
    """
    with path.open("rb") as file:
        file.seek(start)
        for first in range(0, size, PIECE):
            at = first if len(buffer) >= size else 0
            piece = buffer[at : at + min(PIECE, size - first)]
            if file.readinto(piece) != len(piece):
                raise ValueError(f"{path} was shortened while it was read. Fetch the file again.")
            yield piece


def start_of_member(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where the data of a zip archive's member start in the file."""
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return member.header_offset + _LOCAL_HEADER + name + extra


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a file: its name, shape and type are known, its values are read on demand.

    Attributes:
        name: Its name in the file.
        shape: Its shape.
        stored: How the file stores its values: one of `READABLE`.
        extent: The bytes that its values lie in.
        offset: The first of those bytes that is its own.
        strides: The step along each axis, in values; None where the values follow each other, the last axis fastest.
        big_endian: Whether the bytes of each value are in the other order.
        whole: The array that this is a piece of, where its values do not follow each other; None otherwise.
        first: The first value of `whole` that is in the piece.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    extent: Extent = dataclasses.field(repr=False, compare=False)
    offset: int = 0
    strides: tuple[int, ...] | None = None
    big_endian: bool = False
    whole: "StoredArray | None" = dataclasses.field(default=None, repr=False, compare=False)
    first: int = 0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of the values in the file."""
        return self.size * numpy_dtype(self.stored).itemsize

    def read(self) -> np.ndarray:
        """The values; floating point numbers as float32.

        Raises:
            ValueError: if the values do not have the checksum that the file says, or the file was changed.
        """
        values = self.read_stored()
        if self.stored == "bfloat16":  # the upper half of a float32
            return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which the reader refuses by name
            return values.astype(np.float32) if self.stored in ("float16", "float64") else values

    def read_stored(self) -> np.ndarray:
        """The values in the type that they are stored in; bfloat16 as `V2`. Raises as `read` does."""
        if self.whole is not None:
            values = self.whole.read_stored().reshape(-1)
            return values[self.first : self.first + self.size].reshape(self.shape).copy()
        dtype = numpy_dtype(self.stored)
        values = self.size if self.strides is None else span(self.shape, self.strides)
        data = self.extent.read(self.offset, values * dtype.itemsize)
        if self.big_endian:
            data.view(f"u{dtype.itemsize}").byteswap(inplace=True)
        flat = data.view(dtype)
        if self.strides is None:
            return flat.reshape(self.shape)
        contiguous = aligned_zeros(self.shape, dtype)
        steps = [stride * dtype.itemsize for stride in self.strides]
        np.copyto(contiguous, np.lib.stride_tricks.as_strided(flat, self.shape, steps))
        return contiguous

    def piece(self, start: int, shape: tuple[int, ...]) -> "StoredArray":
        """An array of the values that follow the first `start` ones, of which only those are read where possible."""
        if self.strides is None:
            return dataclasses.replace(
                self, shape=shape, offset=self.offset + start * numpy_dtype(self.stored).itemsize
            )
        return dataclasses.replace(self, shape=shape, whole=self.whole or self, first=self.first + start)


def numpy_dtype(stored: str) -> np.dtype:
    """The NumPy type of a name in `READABLE`; bfloat16, which NumPy has not, is two bytes of anything."""
    return np.dtype("V2" if stored == "bfloat16" else stored)


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Values from the first to the last one of an array, both included; 0 if it is empty."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0


def is_shape(numbers: Any) -> bool:
    """Whether a tuple is the shape of an array that NumPy can hold: lengths from 0 on, and not too many values."""
    counts = isinstance(numbers, tuple) and all(type(n) is int and 0 <= n < 2**60 for n in numbers)
    return counts and len(numbers) <= _MOST_AXES and math.prod(n or 1 for n in numbers) < 2**60


class ArrayFile(Mapping[str, StoredArray], abc.ABC):
    """The arrays of a file by name, whatever its format. Opening it reads names, shapes and types, no values.

    A reader fills `_arrays`.

    Args:
        path: The file. It is closed between the calls.

    Raises:
        TypeError: if `path` is no path.
        FileNotFoundError, IsADirectoryError: if there is no file at `path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"The path of a checkpoint file must be a string or a path, but {path!r} was given.")
        self.path = pathlib.Path(path)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; the path of a checkpoint file was expected.")
        if not self.path.exists():
            raise FileNotFoundError(f"There is no file {self.path}; the path of a checkpoint file was expected.")
        self._arrays: dict[str, StoredArray] = {}

    def __getitem__(self, name: str) -> StoredArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def note(self) -> dict[str, Any]:
        """What is noted beside the arrays, as plain data; empty where the format has no place for notes."""
        return {}

    @property
    def grid_size(self) -> tuple[int, int] | None:
        """Rows and columns of the position embeddings, if the file notes them.

        Raises:
            ValueError: if what is noted is no pair of positive integers.
        """
        grid = self.note.get("grid_size")
        if grid is None:
            return None
        numbers = isinstance(grid, list) and all(type(number) is int and 0 < number < 2**31 for number in grid)
        if not numbers or len(grid) != 2:
            raise ValueError(
                f"{self.path} notes grid_size as {printable(grid, 60)}, expected two positive integers: its comment is "
                "damaged."
            )
        return tuple(grid)


NPZ, SAFETENSORS, TORCH, INDEX = "npz", "safetensors", "torch", "index"  # what `kind_of` tells apart
PICKLE_START = b"\x80\x02"  # protocol 2, which torch.save writes


def kind_of(path: pathlib.Path) -> str | None:
    """Which kind of file with arrays a file looks like; None for anything else.

    Returns:
        `NPZ` for any zip archive that PyTorch did not write, `SAFETENSORS`, `TORCH` (both of its forms), `INDEX` for
        the list of the shards of a safetensors file.
    """
    head = _head(path)
    if head.startswith(b"PK"):
        return TORCH if _is_torch_zip(path, head) else NPZ
    if head.startswith(PICKLE_START):
        return TORCH
    # A length of 123 is a brace as well, but one of 2**40 is text.
    if head.lstrip().startswith(b"{") and (head[8:9] != b"{" or int.from_bytes(head[:8], "little") >= 2**40):
        return INDEX
    return SAFETENSORS if head[8:9] == b"{" else None


def what_it_is(path: pathlib.Path) -> str:
    """A guess at what a file is, for messages about files of another kind than expected."""
    head = _head(path)
    if not head:
        return "it is empty"
    if head.startswith(b"PK"):
        if _is_torch_zip(path, head):
            return "it looks like a PyTorch file"
        if b"metadata.json" in head or b"config.json" in head:
            return "it looks like a .keras file; load it with keras.saving.load_model"
        return "its end is missing or it holds something else. It was probably not fetched completely"
    if is_web_page(head):
        return "it is a web page, probably the error message of a download"
    for start, meaning in (
        (b"\x89HDF", "it is an HDF5 file; load it with model.load_weights"),
        (
            b"version https://git-lfs",
            "it is a pointer of Git LFS, not the file itself; fetch that with `git lfs pull`",
        ),
        (b"\x93NUMPY", "it is a single array (.npy)"),
    ):
        if head.startswith(start):
            return meaning
    return "it looks like a safetensors file" if head[8:9] == b"{" else f"it starts with {head[:8]!r}"


def is_web_page(head: bytes) -> bool:
    """Whether a file that begins like this is a web page, or the XML of a storage server's error."""
    return head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))


def _head(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _is_torch_zip(path: pathlib.Path, head: bytes) -> bool:
    """Whether a zip archive is one that PyTorch wrote: it has a member `data.pkl` in a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except DAMAGE:
        return b"data.pkl" in head or b"archive/" in head  # incomplete: its list of members is at its end
