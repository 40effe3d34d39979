"""Files of features: `.npz` and `.parquet`, read and written row by row, and the journal of a run that is not over."""

import contextlib
import dataclasses
import itertools
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from keras_vit._files import replacing, write_text
from keras_vit._text import printable

SUFFIXES = (".npz", ".parquet")
DTYPES = ("float32", "float16")
NOTE = "keras_vit_embedding"  # where a file says what it was made of: the comment of an archive, metadata of Parquet
PIECE = 2**24  # bytes of rows that are in memory at a time; of Parquet, the length of a row group
_RECORD = struct.Struct("<QQI")  # of the journal: images, bytes, checksum
_MAX_HEADER = 10_000  # bytes of an array's header, as in NumPy
_MAX_TEXT = 2**18  # bytes of a name; the longest path of a file that Linux takes has 4,096 characters
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, TypeError, ValueError, RecursionError)


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Features of images, which are read when they are asked for.

    Attributes:
        settings: What they were made of: fingerprints of model and images, name, dtype and shape of the features, and
            the range of images that they are of.
        skipped: Names of images that could not be read.
        count: How many rows there are.
        names: The name of each row.
        rows: The features, in pieces `(rows, *shape)` of any length.
    """

    settings: dict[str, Any]
    skipped: tuple[str, ...]
    count: int
    names: Callable[[], Iterator[str]]
    rows: Callable[[], Iterator[np.ndarray]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the features of one image."""
        return tuple(self.settings["shape"])

    @property
    def dtype(self) -> np.dtype:
        """Of the features, little-endian."""
        return np.dtype(self.settings["dtype"]).newbyteorder("<")


def check_path(path: str | os.PathLike[str]) -> Path:
    """Where features can be written.

    Raises:
        ValueError: if the name ends otherwise than with one of `SUFFIXES`.
        FileNotFoundError: if there is no such folder.
        ImportError: if the format needs pyarrow, and it is not there.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"output must end with .npz or .parquet, but {printable(path)!r} was given.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {printable(path.absolute().parent)} for {path.name}: make it.")
    if path.is_dir():
        raise ValueError(f"output must be a file, but {printable(path)} is a folder.")
    if path.suffix == ".parquet":
        _parquet()
    return path


def write_embeddings(embeddings: Embeddings, path: Path) -> None:
    """Writes features to a file, which appears when it is complete. The same features give the same bytes.

    Args:
        embeddings: The features.
        path: Ends with one of `SUFFIXES`.
    """
    with replacing(path) as temporary:
        (_write_npz if path.suffix == ".npz" else _write_parquet)(embeddings, temporary)


def read_embeddings(path: str | os.PathLike[str]) -> Embeddings:
    """Opens a file of features.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it was not written by `embed`, or is damaged.
        ImportError: if it is a Parquet file, and pyarrow is not installed.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"Features are in .npz and .parquet files, but {printable(path)!r} was given.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {printable(path)}.")
    with _damage_of(path):
        return (_read_npz if path.suffix == ".npz" else _read_parquet)(path)


@contextlib.contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Whatever libraries raise for a file with wrong bytes is a `ValueError` that names it."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; those of pyarrow have no number
            raise
        raise ValueError(
            f"{printable(path)} is damaged, or not a file that embed wrote ({printable(error, 200)}). "
            "Remove it, or choose another name."
        ) from None


def _settings(note: Any) -> dict[str, Any]:
    """What a note says, as far as reading depends on it."""
    settings = json.loads(note)[NOTE]
    numbers = [*settings["shape"], *settings["range"], settings["count"]]
    first, last = settings["range"]
    if any(type(number) is not int or number < 0 for number in numbers) or not first <= last <= settings["count"]:
        raise ValueError("its note makes no sense")
    if 0 in settings["shape"] or settings["dtype"] not in DTYPES:
        raise ValueError("its note makes no sense")
    return settings


# NumPy's archives


def _write_npz(embeddings: Embeddings, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _write_texts(archive, "names", embeddings.names, embeddings.count)
        shape = (embeddings.count, *embeddings.shape)
        with _array(archive, "features", embeddings.dtype.str, shape) as file:
            for rows in embeddings.rows():
                file.write(np.ascontiguousarray(rows, embeddings.dtype).data.cast("B") if rows.size else b"")
        _write_texts(archive, "skipped", lambda: iter(embeddings.skipped), len(embeddings.skipped))
        archive.comment = json.dumps({NOTE: embeddings.settings}).encode()


def _write_texts(archive: zipfile.ZipFile, name: str, texts: Callable[[], Iterator[str]], count: int) -> None:
    """Texts as NumPy keeps them: all as long as the longest."""
    longest = max(map(len, texts()), default=0) or 1
    with _array(archive, name, f"<U{longest}", (count,)) as file:
        for text in texts():
            file.write(_utf32(text).ljust(4 * longest, b"\0"))


def _utf32(text: str) -> bytes:
    return text.encode("utf-32-le")


@contextlib.contextmanager
def _array(archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """A member of an archive that the values of an array are to be written to."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        yield file


def _read_npz(path: Path) -> Embeddings:
    with zipfile.ZipFile(path) as archive:
        settings = _settings(archive.comment)
        dtype = np.dtype(settings["dtype"]).newbyteorder("<")
        shape, stored = _header(archive, "features")
        (count,), names = _header(archive, "names")
        if shape != (count, *settings["shape"]) or stored != dtype or names.kind != "U":
            raise ValueError("its arrays do not fit its note")
        skipped = tuple(_texts(archive, "skipped"))

    def all_names() -> Iterator[str]:
        with _damage_of(path), zipfile.ZipFile(path) as archive:
            yield from _texts(archive, "names")

    def all_rows() -> Iterator[np.ndarray]:
        with _damage_of(path), zipfile.ZipFile(path) as archive:
            for piece in _pieces(archive, "features"):
                yield piece.view(dtype).reshape(-1, *settings["shape"])

    return Embeddings(settings, skipped, count, all_names, all_rows)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    with archive.open(f"{name}.npy") as file:
        return _read_header(file)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("its arrays are of another version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_MAX_HEADER)
    if fortran or dtype.hasobject or (dtype.kind == "U" and not 0 < dtype.itemsize <= _MAX_TEXT):
        raise ValueError("its arrays are of another kind")
    return shape, dtype


def _pieces(archive: zipfile.ZipFile, name: str) -> Iterator[np.ndarray]:
    """An array's bytes, some rows at a time. The archive's checksum is compared at the end."""
    with archive.open(f"{name}.npy") as file:
        shape, dtype = _read_header(file)
        row = dtype.itemsize * int(np.prod(shape[1:], dtype="int64"))
        missing = shape[0]
        while missing:
            count = min(missing, max(1, PIECE // row))
            data = file.read(count * row)
            if len(data) != count * row:
                raise EOFError(f"{name} is too short")
            missing -= count
            yield np.frombuffer(data, np.uint8)
        if file.read(1):
            raise ValueError(f"{name} is too long")


def _texts(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    _, dtype = _header(archive, name)
    for piece in _pieces(archive, name):
        yield from piece.view(dtype).tolist()


# Parquet


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "keras-vit[parquet]".') from error
    return pyarrow.parquet


def _write_parquet(embeddings: Embeddings, path: Path) -> None:
    """Columns `name` and `features`; features with several axes are flat, and the metadata has their shape."""
    parquet = _parquet()
    import pyarrow

    length = int(np.prod(embeddings.shape, dtype="int64"))
    values = pyarrow.from_numpy_dtype(np.dtype(embeddings.settings["dtype"]))
    note = {NOTE: embeddings.settings, "skipped": embeddings.skipped, "shape": embeddings.shape}
    schema = pyarrow.schema(
        [
            pyarrow.field("name", pyarrow.string(), nullable=False),
            pyarrow.field("features", pyarrow.list_(pyarrow.field("item", values, nullable=False), length)),
        ],
        metadata={NOTE: json.dumps(note)},
    )
    names = embeddings.names()
    group = max(1, PIECE // (length * embeddings.dtype.itemsize))
    with parquet.ParquetWriter(path, schema, use_dictionary=False, write_statistics=["name"]) as writer:
        for rows in _in_groups(embeddings.rows(), group):
            features = pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(rows.reshape(-1)), type=schema.field("features").type
            )
            texts = pyarrow.array(itertools.islice(names, len(rows)), pyarrow.string())
            writer.write_table(pyarrow.table([texts, features], schema=schema), row_group_size=group)


def _in_groups(pieces: Iterable[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """The same rows, so many at a time: what the groups of a file are must not depend on who brings the rows."""
    rest: list[np.ndarray] = []
    for piece in pieces:
        rest.append(piece)
        if sum(map(len, rest)) >= length:
            rows = np.concatenate(rest)
            for start in range(0, len(rows) - length + 1, length):
                yield rows[start : start + length]
            rest = [rows[len(rows) // length * length :]]
    rows = np.concatenate(rest) if rest else np.empty(0)
    if len(rows):
        yield rows


def _read_parquet(path: Path) -> Embeddings:
    file = _parquet().ParquetFile(path)
    note = (file.schema_arrow.metadata or {})[NOTE.encode()]
    settings, skipped = _settings(note), tuple(json.loads(note)["skipped"])
    count = file.metadata.num_rows
    file.close()

    def column(name: str) -> Iterator[Any]:
        with _damage_of(path), _parquet().ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=[name]).column(0).combine_chunks()

    def all_names() -> Iterator[str]:
        for texts in column("name"):
            yield from texts.to_pylist()

    def all_rows() -> Iterator[np.ndarray]:
        for features in column("features"):
            yield features.flatten().to_numpy().reshape(-1, *settings["shape"])

    return Embeddings(settings, skipped, count, all_names, all_rows)


# Runs that are not over


class Journal:
    """What a run has computed so far: a folder beside its output, `features.npz.unfinished`.

    Features are appended to one file, batch by batch, each with a checksum: of a process that was killed while it
    wrote, the last batch may be incomplete, and is computed again.

    Args:
        output: The file that the run is going to write.
    """

    def __init__(self, output: Path) -> None:
        self.folder = output.with_name(f"{output.name}.unfinished")
        self.lock = self.folder / ".lock"
        self._output = output
        self._file = self.folder / "rows"
        self._settings_file = self.folder / "settings.json"

    def settings(self) -> dict[str, Any] | None:
        """Of the run that is in the folder; None where there is none.

        Raises:
            ValueError: if they are damaged.
        """
        if not self._settings_file.exists():
            return None
        with _damage_of(self._settings_file):
            return _settings(self._settings_file.read_bytes())

    def start(self, settings: dict[str, Any]) -> None:
        """Makes the journal that of a new run; what an old one has left is removed."""
        self._settings_file.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)
        write_text(self._settings_file, json.dumps({NOTE: settings}))

    def recover(self) -> int:
        """Cuts off what is incomplete; how many images the rest is of."""
        for path in self.folder.glob(".part-*"):  # of a process that was killed while it wrote the output
            path.unlink(missing_ok=True)
        records = [(len(readable), end) for readable, end in self._records(checked=True)]
        if self._file.exists():
            os.truncate(self._file, records[-1][1] if records else 0)
        return sum(images for images, _ in records)

    def append(self, readable: np.ndarray, rows: np.ndarray) -> None:
        """Adds a batch.

        Args:
            readable: bool `(images,)`.
            rows: `(readable images, *shape)`.

        Raises:
            OSError: if there is no room on the disk.
        """
        data = readable.tobytes() + rows.tobytes()
        try:
            with self._file.open("ab") as file:
                file.write(_RECORD.pack(len(readable), len(data), zlib.crc32(data)) + data)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{printable(self._file)} cannot be written ({error.strerror or error}). What was computed is kept: "
                "make room, and call again in the same way to go on.",
            ) from error

    def embeddings(self, names: list[str]) -> Embeddings:
        """All that is in the journal.

        Args:
            names: Of the images.
        """
        settings = self.settings()
        size = np.dtype(settings["dtype"]).itemsize * int(np.prod(settings["shape"], dtype="int64"))
        readable = [mask for mask, _ in self._records()]
        mask = np.concatenate([*readable, np.zeros(0, bool)])
        skipped = tuple(itertools.compress(names, ~mask))

        def rows() -> Iterator[np.ndarray]:
            with self._file.open("rb") if len(mask) else contextlib.nullcontext() as file:
                for batch in readable:
                    file.seek(_RECORD.size + len(batch), os.SEEK_CUR)
                    data = file.read(int(batch.sum()) * size)
                    yield np.frombuffer(data, settings["dtype"]).reshape(-1, *settings["shape"])

        return Embeddings(settings, skipped, int(mask.sum()), lambda: itertools.compress(names, mask), rows)

    def finish(self, embeddings: Embeddings) -> None:
        """Writes the output, moves it into place, and removes the journal."""
        complete = self.folder / f"complete{self._output.suffix}"
        write_embeddings(embeddings, complete)
        os.replace(complete, self._output)
        self.remove()

    def remove(self) -> None:
        """Removes the folder, but for its lock, which whoever holds it removes."""
        self._settings_file.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)
        for path in self.folder.glob(".part-*"):
            path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Removes the folder if nothing is in it."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _records(self, checked: bool = False) -> Iterator[tuple[np.ndarray, int]]:
        """Of each complete batch which of its images could be read, and where it ends.

        Args:
            checked: Whether checksums are compared; the first that is wrong is the end.
        """
        if not self._file.exists():
            return
        length = self._file.stat().st_size
        with self._file.open("rb") as file:
            while len(head := file.read(_RECORD.size)) == _RECORD.size:
                images, size, checksum = _RECORD.unpack(head)
                end = file.tell() + size
                if not 0 < images <= size or end > length:
                    return
                data = file.read(size if checked else images)
                if checked and zlib.crc32(data) != checksum:
                    return
                yield np.frombuffer(data, bool, images), end
                file.seek(end)
