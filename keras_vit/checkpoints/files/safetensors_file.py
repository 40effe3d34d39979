"""Reading and writing `.safetensors` files array by array, and reading those that are split into several.

A file is the length of its header (eight bytes, little endian), the header, and the values. The header is JSON: for
each array its `dtype`, `shape` and `data_offsets`, where it begins and ends in what follows the header; `__metadata__`
holds texts. The rules are those of the format's specification (https://github.com/huggingface/safetensors). There are
no checksums: damage to the values shows only where they become infinite or no numbers.
"""

import json
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit._arrays import aligned_zeros
from keras_vit._files import replacing
from keras_vit._text import printable
from keras_vit.checkpoints.files.stored_array import (
    INDEX,
    MOST_AXES,
    SAFETENSORS,
    ArrayFile,
    StoredArray,
    kind_of,
    numpy_dtype,
    read_pieces,
    what_it_is,
)
from keras_vit.checkpoints.json_text import parse_json

LONGEST_HEADER = 2**23  # bytes; a thousand blocks take a quarter of it. The format allows 100 MB.
MOST_PARTS = 1000
# The names that the format has for the types that can be read.
_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
}
_CODES = {name: code for code, name in _TYPES.items()}
_METADATA = "__metadata__"
_FILE_NAME = re.compile(r"[\w-][\w.+=-]*", re.ASCII)
_PAD = 8  # a header's length is a multiple of it, so that values are aligned


class SafetensorsFile(ArrayFile):
    """The arrays of a `.safetensors` file by name, or of all files that a `model.safetensors.index.json` lists.

    Nobody has to trust the file: its header is bounded, the arrays lie in the file one after the other without gaps or
    overlaps, and memory is taken for one array at a time, when it is read.

    Args:
        path: The file, or the index of a file in several parts. It is closed between the calls.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no file at `path`, or a part of it is missing.
        ValueError: if it is no such file, is truncated or damaged, has two arrays of one name, or a type that is not
            read (8-bit floats, for example).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._note: dict[str, Any] = {}
        self._places: dict[str, tuple[pathlib.Path, int]] = {}  # by name: the file, and where the values begin in it
        kind = kind_of(self.path)
        if kind == INDEX and self.path.name.endswith(".json"):
            self._read_parts()
        elif kind == SAFETENSORS:
            self._arrays = self._read_header(self.path)
        else:
            raise ValueError(f"{self.path} is not a .safetensors file: {what_it_is(self.path)}.")
        if not self._arrays:
            raise ValueError(f"{self.path} holds no arrays.")

    @property
    def note(self) -> dict[str, Any]:
        """The texts in the file's metadata by name; lists and objects that were written as JSON as such."""
        return dict(self._note)

    def read_stored(self, array: StoredArray) -> np.ndarray:
        """See `StoredArray.read_stored`."""
        path, start = self._places[array.name]
        dtype = numpy_dtype(array.stored)
        # Memory of its own: JAX keeps an array that it is given instead of copying it.
        data = aligned_zeros((array.bytes,), np.uint8)
        for _ in read_pieces(path, start + (array.start or 0) * dtype.itemsize, array.bytes, memoryview(data)):
            pass
        return data.view(dtype).reshape(array.shape)

    def _read_header(self, path: pathlib.Path) -> dict[str, StoredArray]:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST_HEADER, size - 8):
                raise ValueError(
                    f"{path} is no .safetensors file, or it is damaged: its header should have {length:,} bytes; the "
                    f"file has {size:,}, and {LONGEST_HEADER:,} are the most that are read."
                )
            header = parse_json(file.read(length), f"The header of {path}")
        self._note |= _notes(header.pop(_METADATA, {}), path)
        arrays: dict[str, StoredArray] = {}
        ranges: list[tuple[int, int, str]] = []
        for name, fields in header.items():
            arrays[name], begin, end = self._describe(path, name, fields)
            self._places[name] = path, 8 + length + begin
            ranges.append((begin, end, name))
        _check_ranges(path, sorted(ranges), size - 8 - length)
        return arrays

    def _describe(self, path: pathlib.Path, name: str, fields: Any) -> tuple[StoredArray, int, int]:
        """An array, and where its values begin and end behind the header."""
        where = f"{path} is damaged: {printable(repr(name), 100)}"
        if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{where} is {printable(fields, 100)}, expected dtype, shape and data_offsets.")
        code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not isinstance(code, str) or code not in _TYPES:
            raise ValueError(
                f"{path} stores {printable(repr(name), 100)} as {printable(code, 60)}, expected one of "
                f"{', '.join(_TYPES)}."
            )
        if not _are_counts(shape) or len(shape) > MOST_AXES or math.prod(n or 1 for n in shape) >= 2**60:
            raise ValueError(f"{where} has the shape {printable(shape, 100)}.")
        if not _are_counts(offsets) or len(offsets) != 2:
            raise ValueError(f"{where} has the data_offsets {printable(offsets, 100)}, expected two whole numbers.")
        array = StoredArray(name, tuple(shape), _TYPES[code], self)
        begin, end = offsets
        if end - begin != array.bytes:
            raise ValueError(
                f"{where} has the shape {array.shape} in {code}, which takes {array.bytes:,} bytes, but its "
                f"data_offsets are {begin:,} and {end:,}."
            )
        return array, begin, end

    def _read_parts(self) -> None:
        size = self.path.stat().st_size
        if size > LONGEST_HEADER:
            raise ValueError(f"{self.path} has {size:,} bytes, too many for an index of arrays.")
        index = parse_json(self.path.read_bytes(), str(self.path))
        names = index.get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{self.path} is no index of a .safetensors file: it has no weight_map.")
        for part in names.values():
            if not isinstance(part, str) or not _FILE_NAME.fullmatch(part):
                raise ValueError(f"{self.path} names a part {printable(part, 100)}, expected a file name beside it.")
        parts = sorted(set(names.values()))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"{self.path} names {len(parts):,} parts, expected at most {MOST_PARTS:,}.")
        for part in parts:
            path = self.path.parent / part
            if not path.is_file():
                raise FileNotFoundError(f"{self.path} names the part {printable(part, 100)}, which is not beside it.")
            if kind_of(path) != SAFETENSORS:
                raise ValueError(f"{path} is not a .safetensors file: {what_it_is(path)}.")
            arrays = self._read_header(path)
            listed = {name for name, of in names.items() if of == part}
            for name in sorted(listed ^ arrays.keys())[:1]:
                where = "is not in it" if name in listed else "the index does not expect there"
                raise ValueError(f"{self.path} does not fit {part}: {printable(repr(name), 100)} {where}.")
            self._arrays |= arrays


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes arrays one by one to a `.safetensors` file, to a temporary name first.

    The header, which comes first, is known when all arrays are: until then the values are in a file without a name.

    Args:
        path: Where the file shall be.
        arrays: Names and values; only one array at a time has to exist.
        metadata: Texts, and lists and dicts of JSON, which are kept as texts in the header; `format` is `"pt"` unless
            it says otherwise, which some readers want.
        overwrite: Whether a file at `path` may be replaced.

    Raises:
        FileExistsError: if there is a file at `path` already and `overwrite` is false.
        TypeError: if a value in `metadata` is neither text nor a list or dict.
        ValueError: if two arrays have one name, an array has a type that the format does not know, or the header is
            longer than `SafetensorsFile` reads.
    """
    path = pathlib.Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or pass overwrite=True.")
    header: dict[str, Any] = {_METADATA: _texts({"format": "pt", **(metadata or {})})}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, tempfile.TemporaryFile(dir=path.parent) as values, temporary.open("wb") as file:
        for name, array in arrays:
            array = np.asanyarray(array)
            code = _CODES.get(array.dtype.name)
            if name in header:
                raise ValueError(f"{name!r} was given twice; each array of a file has a name of its own.")
            if code is None:
                raise ValueError(f"{name!r} has the type {array.dtype}, expected one of {', '.join(_CODES)}.")
            begin = values.tell()
            little = array.dtype.newbyteorder("<") if array.dtype.name != "bfloat16" else array.dtype
            values.write(memoryview(np.ascontiguousarray(array, little).reshape(-1).view(np.uint8)))
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, values.tell()]}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _PAD)
        if len(text) > LONGEST_HEADER:
            raise ValueError(f"The header would have {len(text):,} bytes; {LONGEST_HEADER:,} are the most.")
        file.write(len(text).to_bytes(8, "little") + text)
        values.seek(0)
        shutil.copyfileobj(values, file, 2**22)


def _are_counts(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**60 for number in numbers)


def _check_ranges(path: pathlib.Path, ranges: list[tuple[int, int, str]], size: int) -> None:
    """Raises ValueError unless the arrays, sorted, fill what follows the header without gaps and overlaps."""
    last = 0
    for begin, end, name in ranges:
        if end > size:
            raise ValueError(
                f"{path} is truncated or damaged: {printable(repr(name), 100)} ends at byte {end:,} behind the header, "
                f"where the file has {size:,}. Fetch the file again."
            )
        if begin != last:
            what = "overlaps with the array before it" if begin < last else "follows a gap that belongs to no array"
            raise ValueError(f"{path} is damaged: {printable(repr(name), 100)} {what}.")
        last = end
    if last != size:
        raise ValueError(f"{path} is damaged: {size - last:,} bytes at its end belong to no array.")


def _notes(metadata: Any, path: pathlib.Path) -> dict[str, Any]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"{path} is damaged: its {_METADATA} must be texts by name.")
    return {name: _structure(text) for name, text in metadata.items()}


def _structure(text: str) -> Any:
    """A list or dict that `write_safetensors` wrote as text; any other text as it is."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    for name, value in metadata.items():
        if not isinstance(value, (str, list, dict)):
            raise TypeError(f"metadata[{name!r}] must be text, a list or a dict, but {value!r} was given.")
    return {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in metadata.items()}
