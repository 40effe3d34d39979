"""Reading and writing `.npz` files array by array, without ever holding a second copy of the weights."""

import json
import math
import os
import pathlib
import threading
import zipfile
from collections.abc import Iterable
from typing import IO, Any

import numpy as np

from keras_vit._arguments import aligned_zeros, printable
from keras_vit._files import replacing
from keras_vit.checkpoints.files.stored_array import (
    DAMAGE,
    PIECE,
    READABLE,
    ArrayFile,
    Extent,
    StoredArray,
    is_shape,
    start_of_member,
    what_it_is,
)

UNPACKED_BYTES = 2**30  # bytes that any compressed file may unpack to
UNPACKED_RATIO = 20  # times its own size that a larger one may unpack to; trained weights need 1.1
# NumPy reads headers with `ast`, which in CPython 3.11 fails now and then where several threads do so (gh-106905).
_ONE_HEADER_AT_A_TIME = threading.Lock()


class NpzFile(ArrayFile):
    """The arrays of an `.npz` file by name. Opening it reads names, shapes and types; values are read on demand.

    Nobody has to trust the file: nothing in it is run, and what it promises is compared with what it has before memory
    is taken. Stored arrays take no more bytes than the file has; compressed ones may unpack to `UNPACKED_RATIO` times
    the size of the file, or `UNPACKED_BYTES` if that is more.

    Args:
        path: The file. It is closed between the calls.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no file at `path`.
        ValueError: if the file is no `.npz`, is truncated, has two arrays of one name, would unpack to more than the
            above, or holds pickled objects (which are never loaded).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        try:
            archive = zipfile.ZipFile(self.path)
        except PermissionError:
            raise
        except DAMAGE:
            raise ValueError(f"{self.path} is not an .npz file: {what_it_is(self.path)}.") from None
        with archive, self.path.open("rb") as file:
            self._comment = archive.comment
            members = self._members(archive)
            self._arrays = {name: self._describe(archive, file, name, member) for name, member in members.items()}

    @property
    def note(self) -> dict[str, Any]:
        """What `write_npz` noted beside the arrays; empty for files from elsewhere."""
        try:
            note = json.loads(self._comment)
        except (ValueError, RecursionError):
            return {}
        return note if isinstance(note, dict) else {}

    def _members(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        """The archive's members that are arrays, by name, once it is clear that they fit into the file."""
        members: dict[str, zipfile.ZipInfo] = {}
        total = {zipfile.ZIP_STORED: 0, zipfile.ZIP_DEFLATED: 0}  # bytes, by compression
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise ValueError(f"{self.path} has two arrays of the name {name!r}, so nobody knows which is meant.")
            if name == member.filename:
                continue
            if member.compress_type not in total:
                raise ValueError(f"{self.path} has packed {name!r} in a way that NumPy does not (only deflate).")
            members[name] = member
            total[member.compress_type] += member.file_size
        if not members:
            raise ValueError(f"{self.path} is a zip archive without arrays (.npy): {what_it_is(self.path)}.")
        size, (stored, unpacked) = self.path.stat().st_size, total.values()
        if stored > size:
            raise ValueError(
                f"{self.path} is damaged or truncated: its arrays should have {stored:,} bytes, and it has {size:,}."
            )
        limit = max(UNPACKED_BYTES, UNPACKED_RATIO * size)
        if unpacked > limit:
            raise ValueError(
                f"{self.path} has {size:,} bytes and would unpack to {unpacked:,}, more than the {limit:,} that a file "
                "of this size may have. If you trust it, load it with NumPy and write it again with numpy.savez."
            )
        return members

    def _describe(self, archive: zipfile.ZipFile, file: IO[bytes], name: str, member: zipfile.ZipInfo) -> StoredArray:
        try:
            with archive.open(member) as opened:
                shape, fortran, dtype = _read_header(opened)
                header = opened.tell()
            start = start_of_member(file, member)
        except Exception as error:  # NumPy and `ast` raise what the wrong bytes lead them to
            raise ValueError(
                f"{self.path} is damaged: {name!r} is no array ({printable(error, 200)}). Fetch the file again."
            ) from None
        if dtype.hasobject:
            raise ValueError(
                f"{self.path} holds pickled Python objects ({name!r}). They can run code when they are loaded, so they "
                "never are. Save plain arrays with numpy.savez."
            )
        stored = "bfloat16" if dtype == np.dtype("V2") else dtype.name
        if stored not in READABLE:
            raise ValueError(
                f"{self.path} stores {name!r} as {printable(dtype, 60)}, expected one of {', '.join(READABLE)}."
            )
        if header + math.prod(shape) * dtype.itemsize > member.file_size:
            size = math.prod(shape) * dtype.itemsize
            raise ValueError(f"{self.path} is truncated: {name!r} should have {size} bytes.")
        kind = Extent if member.compress_type == zipfile.ZIP_STORED else _PackedExtent
        extent = kind(self.path, start, member.file_size, name, member.CRC)
        strides = tuple(math.prod(shape[:axis]) for axis in range(len(shape))) if fortran and len(shape) > 1 else None
        return StoredArray(name, shape, stored, extent, header, strides, big_endian=not dtype.isnative)


class _PackedExtent(Extent):
    """A compressed member of an archive: its bytes are unpacked, and kept for the next piece of them."""

    _unpacked: np.ndarray | None = None

    def read(self, first: int, size: int) -> np.ndarray:
        """See `Extent.read`."""
        data = self._unpack() if self._unpacked is None else self._unpacked
        if 2 * size > self.size:
            self._unpacked = None  # it is the reader's
            return data[first : first + size]
        last = first + size == self.size
        self._unpacked = None if last else data
        return data[first : first + size].copy()

    def _unpack(self) -> np.ndarray:
        data = aligned_zeros((self.size,), np.uint8)
        self.check_unchanged()
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as file:
                view, first = data.data, 0
                while count := file.readinto(view[first : first + PIECE]):  # compares the checksum itself
                    first += count
                if first < len(data):
                    raise EOFError(f"{first} of {len(data)} bytes")
        except (*DAMAGE, KeyError) as error:
            raise ValueError(
                f"{self.path} is damaged: {self.name!r} cannot be unpacked ({error}). Fetch the file again."
            ) from None
        return data


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether the values are in Fortran order, and type of the array whose file begins here."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its version is {version}")
    # Version 3 differs from 2 in the names of fields, which no weights have.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _ONE_HEADER_AT_A_TIME:
        shape, fortran, dtype = read(file)
    if not is_shape(shape):
        raise ValueError(f"its shape is {str(shape)[:100]}")
    return shape, fortran, dtype


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
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
        archive.comment = comment
