"""Files with arrays: what kind a file is, what is known of its arrays, and what every reader offers."""

import abc
import dataclasses
import math
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit._text import printable

READABLE = (
    *("float16", "float32", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
MOST_AXES = 32  # NumPy's limit before 2.0
_NUMPY_DTYPES = {"bfloat16": "V2"}
PIECE = 2**22  # bytes read at a time


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a file: its name, shape and dtype are known, its values are read on demand.

    `dtype` is the one that `read` gives, except that bfloat16 is read as float32; `stored` says how the file
    stores it. `start` is None, or the first value of the piece of the stored array that this is (see `piece`).
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    _file: "ArrayFile" = dataclasses.field(repr=False, compare=False)
    start: int | None = None

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
            ValueError: if the values do not have the checksum that the file says, or the file has become shorter.
        """
        return as_float32(self.read_stored(), self.stored)

    def read_stored(self) -> np.ndarray:
        """The values in the type that they are stored in; bfloat16 as `V2`. Raises as `read` does."""
        return self._file.read_stored(self)

    def piece(self, start: int, shape: tuple[int, ...]) -> "StoredArray":
        """An array of the values that follow the first `start` ones, of which only those are read."""
        return dataclasses.replace(self, shape=shape, start=(self.start or 0) + start)


class ArrayFile(Mapping[str, StoredArray], abc.ABC):
    """The arrays of a file by name, whatever its format. Opening it reads names, shapes and types, no values.

    A reader fills `_arrays`, and says how values are read.

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

    @abc.abstractmethod
    def read_stored(self, array: StoredArray) -> np.ndarray:
        """See `StoredArray.read_stored`."""


def numpy_dtype(stored: str) -> np.dtype:
    """The NumPy type of a name in `READABLE`; bfloat16, which NumPy has not, is two bytes of anything."""
    return np.dtype(_NUMPY_DTYPES.get(stored, stored))


def read_pieces(path: pathlib.Path, start: int, size: int, buffer: memoryview) -> Iterator[memoryview]:
    """Reads `size` bytes of a file into a buffer, piece by piece. A shorter buffer is used again for each piece.

    Read, not mapped: a mapped file that somebody shortens meanwhile ends the process.

    Raises:
        ValueError: if the file ends before.
    """
    with path.open("rb") as file:
        file.seek(start)
        for first in range(0, size, PIECE):
            at = first if len(buffer) >= size else 0
            piece = buffer[at : at + min(PIECE, size - first)]
            if file.readinto(piece) != len(piece):
                raise ValueError(f"{path} was shortened while it was read. Fetch the file again.")
            yield piece


def as_float32(values: np.ndarray, stored: str) -> np.ndarray:
    """Values of the type `stored`, which for bfloat16 come as `V2`: floating point numbers as float32."""
    if stored == "bfloat16":
        # bfloat16 is the upper half of a float32.
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which the reader refuses by name
        return values.astype(np.float32) if stored in ("float16", "float64") else values


NPZ, SAFETENSORS, TORCH, INDEX = "npz", "safetensors", "torch", "index"  # what `kind_of` tells apart
PICKLE_START = b"\x80\x02"  # protocol 2, which torch.save writes
_HEAD = 512  # bytes that are looked at


def kind_of(path: pathlib.Path) -> str | None:
    """Which kind of file with arrays a file looks like; None for anything else.

    Returns:
        `NPZ` for any zip archive that PyTorch did not write, `SAFETENSORS`, `TORCH` (both of its forms), `INDEX` for
        the list of the parts of a safetensors file in several pieces.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
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
    with path.open("rb") as file:
        start = file.read(_HEAD)
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        if _is_torch_zip(path, start):
            return "it looks like a PyTorch file"
        if b"metadata.json" in start or b"config.json" in start:
            return "it looks like a .keras file; load it with keras.saving.load_model"
        return "its end is missing or it holds something else. It was probably not fetched completely"
    if start.startswith(b"\x89HDF"):
        return "it is an HDF5 file; load it with model.load_weights"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, probably the error message of a download"
    if start.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS and not the file itself; fetch that with `git lfs pull`"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single array (.npy)"
    if start[8:9] == b"{":
        return "it looks like a safetensors file"
    return f"it starts with {start[:8]!r}"


def _is_torch_zip(path: pathlib.Path, head: bytes) -> bool:
    """Whether a zip archive is one that PyTorch wrote: it has a member `data.pkl` in a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, NotImplementedError):
        return b"data.pkl" in head or b"archive/" in head  # incomplete: its list of members is at its end
