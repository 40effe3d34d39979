"""Arrays in files: what is known of them before their values are read, and what every reader of files offers."""

import abc
import dataclasses
import math
import os
import pathlib
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
