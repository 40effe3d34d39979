"""Reading and writing `.npz` files array by array, without ever holding a second copy of the weights."""

import json
import math
import os
import pathlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from keras_vit._arrays import aligned_zeros
from keras_vit._files import replacing
from keras_vit._text import printable
from keras_vit.checkpoints.files.stored_array import (
    MOST_AXES,
    PIECE,
    READABLE,
    ArrayFile,
    StoredArray,
    numpy_dtype,
    read_pieces,
    what_it_is,
)

UNPACKED_BYTES = 2**30  # bytes that any compressed file may unpack to
UNPACKED_RATIO = 20  # times its own size that a larger one may unpack to; trained weights need 1.1
_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name
_LONGEST_HEADER = 10_000  # bytes of an array's header; the same as NumPy's limit


# What the standard library and NumPy raise for archives and arrays with wrong bytes in them.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)


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
        except (*_DAMAGE, NotImplementedError):
            raise ValueError(f"{self.path} is not an .npz file: {what_it_is(self.path)}.") from None
        with archive:
            self._comment = archive.comment
            self._members = self._list_members(archive)
            self._sound: set[str] = set()  # members read in pieces whose checksum is right
            self._unpacked: tuple[str, np.ndarray] | None = None  # the last compressed array that pieces were read of
            # Length of the header, and whether the values are in Fortran order.
            self._headers: dict[str, tuple[int, bool]] = {}
            self._arrays = {name: self._describe(archive, name) for name in self._members}

    @property
    def note(self) -> dict[str, Any]:
        """What `write_npz` noted beside the arrays; empty for files from elsewhere."""
        try:
            note = json.loads(self._comment)
        except (ValueError, RecursionError):
            return {}
        return note if isinstance(note, dict) else {}

    def read_stored(self, array: StoredArray) -> np.ndarray:
        """See `StoredArray.read_stored`."""
        return self._read_whole(array) if array.start is None else self._read_piece(array)

    def _read_piece(self, array: StoredArray) -> np.ndarray:
        member, whole = self._members[array.name], self._arrays[array.name]
        header, fortran = self._headers[array.name]
        dtype = numpy_dtype(array.stored)
        if member.compress_type == zipfile.ZIP_STORED and not fortran:
            if array.name not in self._sound:
                buffer, checksum = memoryview(bytearray(PIECE)), 0
                for piece in self._pieces(member, buffer):
                    checksum = zlib.crc32(piece, checksum)
                self._check(member, checksum)
                self._sound.add(array.name)
            data = aligned_zeros((array.bytes,), np.uint8)
            for _ in self._pieces(member, memoryview(data), header + array.start * dtype.itemsize, array.bytes):
                pass
            return data.view(dtype).reshape(array.shape)
        if self._unpacked is None or self._unpacked[0] != array.name:
            self._unpacked = None  # before the next one takes its memory
            self._unpacked = array.name, self._read_whole(whole).reshape(-1)
        return self._unpacked[1][array.start : array.start + math.prod(array.shape)].reshape(array.shape).copy()

    def _read_whole(self, array: StoredArray) -> np.ndarray:
        member = self._members[array.name]
        # A copy in memory of its own: JAX keeps an array that it is given instead of copying it.
        data = aligned_zeros((member.file_size,), np.uint8)
        if member.compress_type == zipfile.ZIP_STORED:
            checksum = 0
            for piece in self._pieces(member, memoryview(data)):
                checksum = zlib.crc32(piece, checksum)
            self._check(member, checksum)
        else:
            try:
                with zipfile.ZipFile(self.path) as archive, archive.open(member) as file:
                    view, first = memoryview(data), 0
                    while count := file.readinto(view[first : first + PIECE]):  # checks the checksum itself
                        first += count
                    if first < len(data):
                        raise EOFError(f"{first} of {len(data)} bytes")
            except _DAMAGE as error:
                raise ValueError(
                    f"{self.path} is damaged: {array.name!r} cannot be unpacked ({error}). Fetch the file again."
                ) from None
        dtype = numpy_dtype(array.stored)
        header, fortran = self._headers[array.name]
        values = np.frombuffer(data, dtype, math.prod(array.shape), offset=header).reshape(array.shape)
        if fortran:
            values = np.ascontiguousarray(values.reshape(array.shape[::-1]).T)
        return values

    def _pieces(
        self, member: zipfile.ZipInfo, buffer: memoryview, start: int = 0, size: int | None = None
    ) -> Iterator[memoryview]:
        """Reads bytes of an uncompressed member from `start` on into a buffer (see `read_pieces`)."""
        size = member.file_size if size is None else size
        with self.path.open("rb") as file:
            first = start_of_member(file, member)
        yield from read_pieces(self.path, first + start, size, buffer)

    def _check(self, member: zipfile.ZipInfo, checksum: int) -> None:
        if checksum != member.CRC:
            name = member.filename.removesuffix(".npy")
            raise ValueError(f"{self.path} is damaged: the checksum of {name!r} is wrong. Fetch the file again.")

    def _list_members(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        """The archive's members that are arrays, by name, once it is clear that they fit into the file."""
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise ValueError(f"{self.path} has two arrays of the name {name!r}, so nobody knows which is meant.")
            if name == member.filename:
                continue
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{self.path} has packed {name!r} in a way that NumPy does not (only deflate).")
            members[name] = member
        if not members:
            raise ValueError(f"{self.path} is a zip archive without arrays (.npy): {what_it_is(self.path)}.")
        size = self.path.stat().st_size
        stored = sum(m.file_size for m in members.values() if m.compress_type == zipfile.ZIP_STORED)
        if stored > size:
            raise ValueError(
                f"{self.path} is damaged or truncated: its arrays should have {stored:,} bytes, and it has {size:,}."
            )
        unpacked, limit = (
            sum(m.file_size for m in members.values()) - stored,
            max(UNPACKED_BYTES, UNPACKED_RATIO * size),
        )
        if unpacked > limit:
            raise ValueError(
                f"{self.path} has {size:,} bytes and would unpack to {unpacked:,}, more than the {limit:,} that a file "
                "of this size may have. If you trust it, load it with NumPy and write it again with numpy.savez."
            )
        return members

    def _describe(self, archive: zipfile.ZipFile, name: str) -> StoredArray:
        member = self._members[name]
        try:
            with archive.open(member) as file:
                dtype, fortran, shape = _read_header(file)
                header = file.tell()
        except (*_DAMAGE, NotImplementedError) as error:
            raise ValueError(
                f"{self.path} is damaged: {name!r} is no array ({printable(error, 200)}). Fetch the file again."
            ) from None
        if _OBJECTS.fullmatch(dtype):
            raise ValueError(
                f"{self.path} holds pickled Python objects ({name!r}). They can run code when they are loaded, so they "
                "never are. Save plain arrays with numpy.savez."
            )
        stored = _stored_as(dtype)
        if stored is None:
            raise ValueError(
                f"{self.path} stores {name!r} as {printable(dtype, 60)}, expected one of {', '.join(READABLE)}."
            )
        array = StoredArray(name, shape, stored, self)
        if header + array.bytes > member.file_size:
            raise ValueError(f"{self.path} is truncated: {name!r} should have {array.bytes} bytes.")
        self._headers[name] = header, fortran
        return array


def start_of_member(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where the data of a zip archive's member start in the file."""
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return member.header_offset + _LOCAL_HEADER + name + extra


# The header of an array: a dictionary as Python writes it. NumPy evaluates it with `ast`, which takes anything that
# Python's syntax has, and which in CPython 3.11 fails now and then where several threads do so (gh-106905).
_HEADER = re.compile(
    r"""\s*\{\s*(?:(?:
    (?P<q>['"])descr(?P=q)\s*:\s*(?P<descr>'[^']*'|"[^"]*"|\[[^\]]*\])
    |(?P<r>['"])fortran_order(?P=r)\s*:\s*(?P<order>True|False)
    |(?P<s>['"])shape(?P=s)\s*:\s*\((?P<shape>\s*(?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?\s*)?)\)
    )\s*(?:,\s*|(?=\}))){3}\}\s*""",
    re.VERBOSE,
)
_OBJECTS = re.compile(r"[<>|=]?O\d{0,4}")
_SIMPLE_TYPE = re.compile(r"[<>|=]?[a-zA-Z]\d{0,4}")


def _read_header(file: IO[bytes]) -> tuple[str, bool, tuple[int, ...]]:
    """How the array whose file begins here spells its type, whether it is in Fortran order, and its shape."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"it starts with {magic!r}")
    length = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length:,} bytes, expected at most {_LONGEST_HEADER:,}")
    text = file.read(length).decode("utf-8" if magic[6] == 3 else "latin1")
    match = _HEADER.fullmatch(text)
    if match is None or len(text) < length or None in match.group("descr", "order", "shape"):
        raise ValueError(f"its header is {text[:100]!r}")
    shape = tuple(int(number) for number in re.findall(r"\d+", match["shape"]))
    if len(shape) > MOST_AXES or math.prod(n or 1 for n in shape) >= 2**60:
        raise ValueError(f"its shape is {match['shape'][:100]}")
    return match["descr"].strip("'\""), match["order"] == "True", shape


def _stored_as(descr: str) -> str | None:
    """The name of a type that is read, from how a header spells it; None for any other type."""
    try:
        dtype = np.dtype(descr if _SIMPLE_TYPE.fullmatch(descr) else object)
    except TypeError:
        return None
    name = "bfloat16" if dtype.str[1:] == "V2" else dtype.name
    return name if name in READABLE and dtype.isnative else None


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
