"""Reading and writing `.npz` files array by array, without ever holding a second copy of the weights."""

import dataclasses
import json
import math
import mmap
import os
import pathlib
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from keras_vit.layers import aligned_zeros

_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name
_PIECE = 2**22  # bytes copied at a time


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a file: its name, shape and dtype are known, its values are read on demand.

    `dtype` is the one that `read` gives, except that bfloat16 is read as float32; `stored` says how the file
    stores it. `start` is None, or the first value of the piece of the stored array that this is (see `piece`).
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    _file: "NpzFile" = dataclasses.field(repr=False, compare=False)
    start: int | None = None

    @property
    def bytes(self) -> int:
        """Size of the values in the file."""
        return math.prod(self.shape) * np.dtype(_NUMPY_DTYPES.get(self.stored, self.stored)).itemsize

    def read(self) -> np.ndarray:
        """The values; floating point numbers as float32.

        Raises:
            ValueError: if the values do not have the checksum that the file says.
        """
        return self._file.read(self)

    def piece(self, start: int, shape: tuple[int, ...]) -> "StoredArray":
        """An array of the values that follow the first `start` ones, of which only those are read."""
        return dataclasses.replace(self, shape=shape, start=(self.start or 0) + start)


_NUMPY_DTYPES = {"bfloat16": "V2"}
_READABLE = ("float16", "float32", "float64", "bfloat16", "int32", "int64", "uint32", "uint64", "int8", "uint8", "bool")


# What the standard library and NumPy raise for archives and arrays with wrong bytes in them.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)


class NpzFile(Mapping[str, StoredArray]):
    """The arrays of an `.npz` file by name, memory mapped where they are stored uncompressed.

    Args:
        path: The file.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no file at `path`.
        ValueError: if the file is no `.npz`, is truncated, or holds pickled objects (which are never loaded).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"The path of a checkpoint file must be a string or a path, but {path!r} was given.")
        self.path = pathlib.Path(path)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; the path of a checkpoint file was expected.")
        if not self.path.exists():
            raise FileNotFoundError(f"There is no file {self.path}; the path of a checkpoint file was expected.")
        try:
            archive = zipfile.ZipFile(self.path)
        except PermissionError:
            raise
        except _DAMAGE:
            raise ValueError(f"{self.path} is not an .npz file: {_what_it_is(self.path)}.") from None
        # The archive is closed again: only the mapping stays, which leaves nothing open behind.
        with archive:
            self._read_directory(archive)

    def _read_directory(self, archive: zipfile.ZipFile) -> None:
        self._comment = archive.comment
        with self.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        if not members:
            raise ValueError(f"{self.path} is a zip archive without arrays (.npy): {_what_it_is(self.path)}.")
        self._members = members
        self._sound: set[str] = set()  # members read in pieces whose checksum is right
        self._unpacked: tuple[str, np.ndarray] | None = None  # the last compressed array that pieces were read of
        # Length of the header, and whether the values are in Fortran order.
        self._headers: dict[str, tuple[int, bool]] = {}
        self._arrays = {name: self._describe(archive, name, member) for name, member in members.items()}

    def __getitem__(self, name: str) -> StoredArray:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def note(self) -> dict[str, Any]:
        """What `write_npz` noted beside the arrays; empty for files from elsewhere."""
        try:
            note = json.loads(self._comment)
        except (ValueError, RecursionError):
            return {}
        return note if isinstance(note, dict) else {}

    def read(self, array: StoredArray) -> np.ndarray:
        """See `StoredArray.read`."""
        if array.start is not None:
            return _as_float32(self._read_piece(array), array.stored)
        return _as_float32(self._read_whole(array), array.stored)

    def _read_piece(self, array: StoredArray) -> np.ndarray:
        member, whole = self._members[array.name], self._arrays[array.name]
        header, fortran = self._headers[array.name]
        dtype = np.dtype(_NUMPY_DTYPES.get(array.stored, array.stored))
        if member.compress_type == zipfile.ZIP_STORED and not fortran:
            if array.name not in self._sound:
                checksum = 0
                for _, piece in self._pieces(member):
                    checksum = zlib.crc32(piece, checksum)
                self._check(member, checksum)
                self._sound.add(array.name)
            data = aligned_zeros((array.bytes,), np.uint8)
            for first, piece in self._pieces(member, header + array.start * dtype.itemsize, array.bytes):
                data[first : first + len(piece)] = piece
            return data.view(dtype).reshape(array.shape)
        if self._unpacked is None or self._unpacked[0] != array.name:
            self._unpacked = None  # before the next one takes its memory
            self._unpacked = array.name, self._read_whole(whole).reshape(-1)
        return self._unpacked[1][array.start : array.start + math.prod(array.shape)].reshape(array.shape).copy()

    def _read_whole(self, array: StoredArray) -> np.ndarray:
        member = self._members[array.name]
        if member.compress_type == zipfile.ZIP_STORED:
            data = self._copy(member)
        else:
            try:
                with zipfile.ZipFile(self.path) as archive:
                    data = memoryview(bytearray(archive.read(member)))  # checks the checksum itself
            except _DAMAGE as error:
                raise ValueError(
                    f"{self.path} is damaged: {array.name!r} cannot be unpacked ({error}). Fetch the file again."
                ) from None
        dtype = _NUMPY_DTYPES.get(array.stored, array.stored)
        header, fortran = self._headers[array.name]
        if header + array.bytes > len(data):
            raise ValueError(f"{self.path} is truncated: {array.name!r} should have {array.bytes} bytes.")
        values = np.frombuffer(data, dtype, math.prod(array.shape), offset=header).reshape(array.shape)
        if fortran:
            values = np.ascontiguousarray(values.reshape(array.shape[::-1]).T)
        return values

    def _copy(self, member: zipfile.ZipInfo) -> np.ndarray:
        """The member's bytes in memory of their own, checked on the way.

        A copy, although the file is mapped: JAX keeps an array that it is given instead of copying it, and a model
        must not hang on a file. The pages of the file go back at once.
        """
        data, checksum = aligned_zeros((member.file_size,), np.uint8), 0
        for first, piece in self._pieces(member):
            checksum = zlib.crc32(piece, checksum)
            data[first : first + len(piece)] = piece
        self._check(member, checksum)
        return data

    def _pieces(
        self, member: zipfile.ZipInfo, start: int = 0, size: int | None = None
    ) -> Iterator[tuple[int, memoryview]]:
        """Bytes of an uncompressed member from `start`, a few at a time, with how many went before."""
        size = member.file_size if size is None else size
        start += self._offset(member)
        for first in range(0, size, _PIECE):
            last = min(first + _PIECE, size)
            yield first, memoryview(self._map)[start + first : start + last]
            if hasattr(mmap, "MADV_DONTNEED"):
                page = (start + first) // mmap.PAGESIZE * mmap.PAGESIZE
                self._map.madvise(mmap.MADV_DONTNEED, page, start + last - page)

    def _check(self, member: zipfile.ZipInfo, checksum: int) -> None:
        if checksum != member.CRC:
            name = member.filename.removesuffix(".npy")
            raise ValueError(f"{self.path} is damaged: the checksum of {name!r} is wrong. Fetch the file again.")

    def _offset(self, member: zipfile.ZipInfo) -> int:
        """Where the member's data start in the file."""
        header = self._map[member.header_offset : member.header_offset + _LOCAL_HEADER]
        name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        return member.header_offset + _LOCAL_HEADER + name + extra

    def _describe(self, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> StoredArray:
        try:
            with archive.open(member) as file:
                shape, fortran, dtype = _read_header(file)
                header = file.tell()
        except _DAMAGE as error:
            raise ValueError(f"{self.path} is damaged: {name!r} is no array ({error}). Fetch the file again.") from None
        if dtype.hasobject:
            raise ValueError(
                f"{self.path} holds pickled Python objects ({name!r}). They can run code when they are loaded, so they "
                "never are. Save plain arrays with numpy.savez."
            )
        stored = "bfloat16" if dtype.str[1:] == "V2" else dtype.name
        if stored not in _READABLE or not dtype.isnative:
            raise ValueError(f"{self.path} stores {name!r} as {dtype}, expected one of {', '.join(_READABLE)}.")
        array = StoredArray(name, shape, stored, self)
        stored_whole = member.compress_type != zipfile.ZIP_STORED or self._offset(member) + member.file_size <= len(
            self._map
        )
        if header + array.bytes > member.file_size or not stored_whole:
            raise ValueError(f"{self.path} is truncated: {name!r} should have {array.bytes} bytes.")
        self._headers[name] = header, fortran
        return array


def _as_float32(values: np.ndarray, stored: str) -> np.ndarray:
    if stored == "bfloat16":
        # bfloat16 is the upper half of a float32.
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which the reader refuses by name
        return values.astype(np.float32) if stored in ("float16", "float64") else values


def write_npz(
    path: str | os.PathLike[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    note: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes arrays one by one to an uncompressed `.npz`, to a temporary name first.

    Args:
        path: Where the file shall be.
        arrays: Names and values; only one array at a time has to exist.
        note: Small JSON data kept in the archive's comment, where NumPy and others pass over it.
        overwrite: Whether a file at `path` may be replaced.

    Raises:
        FileExistsError: if there is a file at `path` already and `overwrite` is false.
        ValueError: if `note` has more than 65,535 bytes, the most that an archive's comment can have.
    """
    path = pathlib.Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or pass overwrite=True.")
    comment = json.dumps(note, ensure_ascii=False).encode() if note else b""
    if len(comment) > zipfile.ZIP_MAX_COMMENT:
        longest = max(note, key=lambda name: len(json.dumps(note[name])))
        raise ValueError(
            f"The note of an .npz file has room for {zipfile.ZIP_MAX_COMMENT:,} bytes, but {longest} and the rest take "
            f"{len(comment):,}. Write a .keras file, or leave {longest} out: model.with_config({longest}=None)."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, values in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
            archive.comment = comment
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _what_it_is(path: pathlib.Path) -> str:
    """A guess at what a file that is no `.npz` is, for error messages."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        if b"data.pkl" in start or b"archive/" in start:
            return "it looks like a PyTorch file"
        if b"metadata.json" in start or b"config.json" in start:
            return "it looks like a .keras file; load it with keras.saving.load_model"
        return "its end is missing or it holds something else. It was probably not fetched completely"
    if start.startswith(b"\x89HDF"):
        return "it is an HDF5 file; load it with model.load_weights"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, probably the error message of a download"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single array (.npy)"
    return f"it starts with {start[:8]!r}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
