"""Reading and writing `.safetensors` files with the library of that name, and reading those that come in shards.

The library reads the header, and checks that the arrays fill the file without gaps and overlaps. Values are read from
the file array by array, and not mapped into memory. The format has no checksums: damage to values shows only where
they become infinite or no numbers. Specification: https://github.com/huggingface/safetensors.
"""

import os
import pathlib
import re
from collections.abc import Iterable

import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import replacing
from keras_vit.checkpoints.files.stored_array import (
    INDEX,
    SAFETENSORS,
    ArrayFile,
    Extent,
    StoredArray,
    is_shape,
    kind_of,
    what_it_is,
)
from keras_vit.checkpoints.folder import parse_json

LONGEST_HEADER = 2**23  # bytes; a thousand blocks take a quarter of it. The format allows 100 MB.
MOST_SHARDS = 1000
# The names that the format has for the types that can be read.
_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
}
_FILE_NAME = re.compile(r"[\w-][\w.+=-]*", re.ASCII)


class SafetensorsFile(ArrayFile):
    """The arrays of a `.safetensors` file by name, or of all shards that a `model.safetensors.index.json` lists.

    Nobody has to trust the file: its header is bounded, the arrays lie in the file one after the other, and memory is
    taken for one array at a time, when it is read.

    Args:
        path: The file, or the index of the shards. It is closed between the calls.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no file at `path`, or a shard is missing.
        ValueError: if it is no such file, is truncated or damaged, has two arrays of one name, or a type that is not
            read (8-bit floats, for example).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        if kind_of(self.path) == INDEX and self.path.name.endswith(".json"):
            self._read_shards()
        else:
            self._arrays = _read_header(self.path)
        if not self._arrays:
            raise ValueError(f"{self.path} holds no arrays.")

    def _read_shards(self) -> None:
        size = self.path.stat().st_size
        if size > LONGEST_HEADER:
            raise ValueError(f"{self.path} has {size:,} bytes, too many for an index of arrays.")
        names = parse_json(self.path.read_bytes(), str(self.path)).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{self.path} is no index of a .safetensors file: it has no weight_map.")
        for shard in names.values():
            if not isinstance(shard, str) or not _FILE_NAME.fullmatch(shard):
                raise ValueError(f"{self.path} names a shard {printable(shard, 100)}, expected a file name beside it.")
        shards = sorted(set(names.values()))
        if len(shards) > MOST_SHARDS:
            raise ValueError(f"{self.path} names {len(shards):,} shards, expected at most {MOST_SHARDS:,}.")
        for shard in shards:
            path = self.path.parent / shard
            if not path.is_file():
                raise FileNotFoundError(f"{self.path} names the shard {printable(shard, 100)}, which is not beside it.")
            arrays = _read_header(path)
            listed = {name for name, file in names.items() if file == shard}
            for name in sorted(listed ^ arrays.keys())[:1]:
                where = "is not in it" if name in listed else "the index does not expect there"
                raise ValueError(f"{self.path} does not fit {shard}: {printable(repr(name), 100)} {where}.")
            self._arrays |= arrays


def _read_header(path: pathlib.Path) -> dict[str, StoredArray]:
    """The arrays of one file by name."""
    from safetensors import SafetensorError, safe_open

    if kind_of(path) != SAFETENSORS:
        raise ValueError(f"{path} is not a .safetensors file: {what_it_is(path)}.")
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        text = file.read(min(header, LONGEST_HEADER))
    if header > LONGEST_HEADER:
        raise ValueError(
            f"{path} is no .safetensors file, or it is damaged: its header should have {header:,} bytes, and "
            f"{LONGEST_HEADER:,} are the most that are read."
        )
    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            described = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged: {printable(error, 200)}. Fetch the file again.") from None
    parse_json(text, str(path))  # of two arrays of one name the library takes either
    arrays, start = {}, 8 + header
    for name, (shape, code) in described.items():
        where = printable(repr(name), 100)
        if code not in _TYPES:
            raise ValueError(f"{path} stores {where} as {code}, expected one of {', '.join(_TYPES)}.")
        if not is_shape(shape):
            raise ValueError(f"{path} is damaged: {where} has the shape {printable(shape, 100)}.")
        extent = Extent(path, start, 0, name)
        arrays[name] = StoredArray(name, shape, _TYPES[code], extent)
        extent.size = arrays[name].bytes
        start += extent.size
    return arrays


def write_safetensors(
    path: str | os.PathLike[str], arrays: Iterable[tuple[str, np.ndarray]], overwrite: bool = False
) -> None:
    """Writes arrays to a `.safetensors` file, to a temporary name first. All of them are in memory at once.

    Its metadata is `{"format": "pt"}`, without which transformers does not take a file.

    Args:
        path: Where the file shall be.
        arrays: Names and values.
        overwrite: Whether a file at `path` may be replaced.

    Raises:
        FileExistsError: if there is a file at `path` already and `overwrite` is false.
        ValueError: if two arrays have one name, or an array has a type that is not read again.
    """
    from safetensors.numpy import save_file

    path = pathlib.Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or pass overwrite=True.")
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays:
        if name in tensors:
            raise ValueError(f"{name!r} was given twice; each array of a file has a name of its own.")
        # The library writes memory as it lies there: strides have to be those of a contiguous array.
        tensors[name] = np.asarray(array, order="C")
        if tensors[name].dtype.name not in _TYPES.values():
            raise ValueError(f"{name!r} has the type {array.dtype}, expected one of {', '.join(_TYPES.values())}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
