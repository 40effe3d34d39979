"""Arrays in files, whatever the format: names, shapes and types first, values on demand."""

import dataclasses
import errno
import math
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import numpy as np

from keras_vit._arguments import aligned_zeros, printable
from keras_vit._files import contents_of

READABLE = (
    *("float16", "float32", "float64", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
PIECE = 2**22  # bytes read at a time
UNPACKED_BYTES = 2**30  # bytes that any compressed file may unpack to
UNPACKED_RATIO = 20  # times its own size that a larger one may unpack to; trained weights need 1.1
_MOST_AXES = 32  # NumPy's limit before 2.0
_LOCAL_HEADER = 30  # bytes of a zip member's local header before its name
_HEAD = 512  # bytes that tell what a file is
T = TypeVar("T")


@dataclasses.dataclass
class Extent:
    """A run of bytes in a file."""

    path: pathlib.Path
    start: int
    size: int
    name: str  # what it holds, for messages
    checksum: int | None = None  # the CRC-32 that the file says, until it is compared

    def __post_init__(self) -> None:
        self._state = contents_of(self.path)

    def check_unchanged(self) -> None:
        if contents_of(self.path) != self._state:
            raise ValueError(f"{self.path} was changed while it was read. Load it again, or download it again.")

    def read(self, first: int, size: int) -> np.ndarray:
        """Returns `size` bytes from `first` on, checked, as uint8 in memory that backends can use without copying."""
        self.check_unchanged()
        if self.checksum is not None:
            is_most = 2 * size > self.size  # all but a header: read once
            whole = aligned_zeros((self.size if is_most else min(PIECE, self.size),), np.uint8)
            self._compare(whole.data)
            if is_most:
                return whole[first : first + size]
        data = aligned_zeros((size,), np.uint8)
        for _ in self._pieces(first, size, data.data):
            pass
        return data

    def _compare(self, buffer: memoryview) -> None:
        """Reads all bytes through `buffer` and sets `self.checksum` to None."""
        checksum = 0
        for piece in self._pieces(0, self.size, buffer):
            checksum = zlib.crc32(piece, checksum)
        if checksum != self.checksum:
            name = printable(repr(self.name), 100)
            raise ValueError(f"{self.path} is damaged: the checksum of {name} is wrong. Download the file again.")
        self.checksum = None

    def _pieces(self, first: int, size: int, buffer: memoryview) -> Iterator[memoryview]:
        """Reads `size` bytes into a buffer and yields the piece of it that each read filled."""
        with self.path.open("rb") as file:
            file.seek(self.start + first)
            for done in range(0, size, PIECE):
                at = done if len(buffer) >= size else 0
                piece = buffer[at : at + min(PIECE, size - done)]
                if file.readinto(piece) != len(piece):
                    raise ValueError(f"{self.path} was shortened while it was read. Download the file again.")
                yield piece


class PackedExtent(Extent):
    """A compressed member of a zip archive."""

    def read(self, first: int, size: int) -> np.ndarray:
        """Returns as `Extent.read`; the member is unpacked each time."""
        self.check_unchanged()
        data = aligned_zeros((size,), np.uint8)
        try:
            with zipfile.ZipFile(self.path) as archive:
                data[:] = np.frombuffer(archive.read(self.name), np.uint8)[first : first + size]
        except Exception as error:  # whatever the wrong bytes lead to
            raise ValueError(
                f"{self.path} is damaged: {printable(repr(self.name), 100)} cannot be unpacked ({error}). Download the "
                "file again."
            ) from None
        return data


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a file: its name, shape and type are known, its values are read on demand."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype  # one of `READABLE` in either order of bytes
    # Reads the values' bytes, in order, the last axis fastest: takes the first byte and the number of bytes.
    load: Callable[[int, int], np.ndarray] = dataclasses.field(repr=False, compare=False)
    offset: int = 0  # its own first byte

    @property
    def stored(self) -> str:
        """The name of the type, one of `READABLE`."""
        return self.dtype.name

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The values; float16, float64 and bfloat16 as float32, in which what is too large is infinite."""
        values = self.read_stored()
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which the reader refuses by name
            return values.astype(np.float32) if self.stored in ("float16", "float64", "bfloat16") else values

    def read_stored(self) -> np.ndarray:
        """The values in the type that they are stored in, and the machine's order of bytes."""
        values = self.load(self.offset, self.bytes).view(self.dtype).reshape(self.shape)
        return values if self.dtype.isnative else values.astype(self.dtype.newbyteorder("="))

    def piece(self, start: int, shape: tuple[int, ...]) -> "StoredArray":
        """The array of `shape` that begins after the first `start` values; neither is checked or read."""
        return dataclasses.replace(self, shape=shape, offset=self.offset + start * self.dtype.itemsize)


def load_strided(
    load: Callable[[int, int], np.ndarray], offset: int, dtype: np.dtype, shape: tuple[int, ...], strides: Any
) -> Callable[[int, int], np.ndarray]:
    """Returns a `StoredArray.load` for values with `strides` (in values) that `load` has from the byte `offset` on."""
    whole = math.prod(shape) * dtype.itemsize

    def load_in_order(first: int, size: int) -> np.ndarray:
        flat = load(offset, span(shape, strides) * dtype.itemsize).view(dtype)
        ordered = aligned_zeros(shape, dtype)
        np.copyto(ordered, np.lib.stride_tricks.as_strided(flat, shape, [step * dtype.itemsize for step in strides]))
        data = ordered.reshape(-1).view(np.uint8)
        return data if size == whole else data[first : first + size].copy()

    return load_in_order


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns how many values lie from the first to the last one of an array, both included; 0 if it is empty."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0


def are_counts(numbers: Any) -> bool:
    """Whether something is a tuple of whole numbers from 0 on."""
    return isinstance(numbers, tuple) and all(type(n) is int and 0 <= n < 2**60 for n in numbers)


def is_shape(numbers: Any) -> bool:
    """Whether something is the shape of an array that NumPy can hold."""
    return are_counts(numbers) and len(numbers) <= _MOST_AXES and math.prod(n or 1 for n in numbers) < 2**60


class ArrayFile(dict[str, StoredArray]):
    """The arrays of a file by name, whatever its format, and what else it says. No values are read.

    `note` is what is noted beside the arrays, as plain data. In a training state of PyTorch, `container` is the name of
    the dict that the arrays are in, joined by dots, and `outside` names those that are not, such as an optimizer's.
    """

    def __init__(
        self,
        path: pathlib.Path,
        arrays: Mapping[str, StoredArray],
        note: dict[str, Any] | None = None,
        container: str = "",
        outside: Sequence[str] = (),
    ) -> None:
        super().__init__(arrays)
        self.path, self.note, self.container, self.outside = path, note or {}, container, list(outside)

    @property
    def grid_size(self) -> tuple[int, int] | None:
        """Rows and columns of the position embeddings in the note, or None; ValueError if one is not an int >= 1."""
        grid = self.note.get("grid_size")
        if grid is None:
            return None
        if not isinstance(grid, list) or len(grid) != 2 or not is_shape((*grid,)) or 0 in grid:
            shown = printable(grid, 60)
            raise ValueError(f"grid_size in {self.path} must be two positive integers, but is {shown}.")
        return tuple(grid)


def members_and_comment(
    path: pathlib.Path, kind: str, name_of: Callable[[str], str | None], describe: Callable[[str, Extent, IO[bytes]], T]
) -> tuple[dict[str, T], bytes]:
    """Returns by name what `describe` makes of each member of a zip archive, and the archive's comment."""
    found: dict[str, T] = {}
    unpacked = {True: 0, False: 0}  # bytes, by whether they are stored as they are
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        limits = {True: size, False: max(UNPACKED_BYTES, UNPACKED_RATIO * size)}
        try:
            archive = zipfile.ZipFile(file)
        except Exception:  # `zipfile` and NumPy raise what the wrong bytes lead them to
            raise ValueError(f"{path} is not {kind}: {guess_type(path)}.") from None
        with archive:
            try:
                for member in archive.infolist():
                    name = name_of(member.filename)
                    if name is None:
                        continue
                    if name in found:
                        raise ValueError(f"the archive has two files of the name {name!r}. Keep one")
                    stored = member.compress_type == zipfile.ZIP_STORED
                    unpacked[stored] += member.file_size
                    if unpacked[stored] > limits[stored]:
                        raise ValueError(f"it unpacks to {unpacked[stored]:,} bytes, more than {limits[stored]:,}")
                    with archive.open(member) as opened:  # compares the archive's list with the member itself
                        file.seek(member.header_offset)
                        *_, name_length, extra_length = struct.unpack("<26sHH", file.read(_LOCAL_HEADER))
                        start = member.header_offset + _LOCAL_HEADER + name_length + extra_length
                        # The checksum is zero where PyTorch was told to compute none.
                        place = (path, start, member.file_size, member.filename, member.CRC or None)
                        found[name] = describe(name, Extent(*place) if stored else PackedExtent(*place), opened)
            except Exception as error:
                # Damage may lead before the beginning of the file (EINVAL); all else is the disk's.
                if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                    raise
                raise ValueError(f"{path} cannot be read as {kind}: {printable(error, 400)}.") from None
    return found, archive.comment


_BEGINNINGS = {
    b"\x89HDF": "it is an HDF5 file. Load it with model.load_weights",
    b"version https://git-lfs": "it is a Git LFS pointer to the file. Download the file with `git lfs pull`",
    b"\x93NUMPY": "it is a single array (.npy)",
}


def kind_of(path: pathlib.Path) -> str | None:
    """Returns what the first bytes look like: `"torch"`, `"npz"` (any other zip), `"safetensors"`, or None."""
    head = _head(path)
    if head.startswith(b"PK"):
        return "torch" if _is_torch_zip(path, head) else "npz"
    if head.startswith(b"\x80\x02"):  # a pickle of protocol 2, which torch.save writes
        return "torch"
    return "safetensors" if head[8:9] == b"{" else None


def guess_type(path: pathlib.Path) -> str:
    """Returns a sentence that guesses what a file is, for messages; OSError if it cannot be read."""
    head, kind = _head(path), kind_of(path)
    cut_off = "it is incomplete, or holds something else. Download it again"
    if kind == "npz":
        if b"metadata.json" in head or b"config.json" in head:
            return "it looks like a .keras file. Load it with keras.saving.load_model"
        return cut_off
    if kind == "torch" and head.startswith(b"PK") and not _is_zip(path):
        return cut_off
    if is_web_page(head):
        return "it is a web page, probably an error message. Download the file again"
    for start, meaning in _BEGINNINGS.items():
        if head.startswith(start):
            return meaning
    if kind:
        return f"it looks like a {kind} file"
    return f"it starts with {head[:8]!r}" if head else "it is empty"


def is_web_page(head: bytes) -> bool:
    """Whether a file that begins like this is a web page, or the XML of a storage server's error."""
    return head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))


def _head(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _is_zip(path: pathlib.Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # where the end says that the archive lies on several disks
        return False


def _is_torch_zip(path: pathlib.Path, head: bytes) -> bool:
    """Whether a zip archive is PyTorch's: it has a member `data.pkl` in a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except Exception:  # incomplete, perhaps: its list of members is at its end
        return b"data.pkl" in head or b"archive/" in head
