"""The formats of files with arrays, each read without its framework, and what lies beside them in a folder.

Nobody has to trust a file: nothing in it is run, and what it promises is compared with what it has before memory is
taken. `.npz` goes through `zipfile` and `numpy.lib.format`, `.safetensors` through the library of that name (which has
no checksums: damage to values shows only where they become infinite or no numbers), PyTorch's through `torch_file`.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import is_class_name, printable
from keras_vit._files import make_folder, replacing, write_text
from keras_vit.checkpoints import stored_array
from keras_vit.checkpoints.stored_array import READABLE, ArrayFile, Extent, StoredArray, guess_type, is_shape, kind_of
from keras_vit.checkpoints.torch_file import CONTAINERS, read_torch

if TYPE_CHECKING:
    from keras_vit.models import ViTConfig

# The preferred first.
WEIGHT_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
    "model.pth",
    "model.npz",
)
# What lies beside them and says what arrays do not.
CLASSES = "classes.txt"
SIDECARS = {"config": "config.json", "open_clip": "open_clip_config.json", "preprocessor": "preprocessor_config.json"}
ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".tar", ".npz")
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin")
LONGEST = 2**23  # bytes of JSON or a classes.txt; twice the names of ImageNet-21k's classes have a quarter of it
_NOTE = "keras_vit"  # where the header of a .safetensors file has the note
# The names that safetensors has for the types that can be read.
_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
}
_FILE_NAME = re.compile(r"[\w-][\w.+=-]*", re.ASCII)
# NumPy reads headers with `ast`, which in CPython 3.11 fails now and then where several threads do so (gh-106905).
_ONE_HEADER_AT_A_TIME = threading.Lock()


def open_file(path: str | os.PathLike[str], state: str | None = None) -> ArrayFile:
    """Returns the arrays of a file, whose values are not read yet. The first bytes tell its format, before its name."""
    return _unwrapped(_open(weights_in(path), state))


def _open(path: pathlib.Path, state: str | None) -> ArrayFile:
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}: pass the path of a checkpoint file.")
    part = _PART.fullmatch(path.name)
    if part and int(part[2]) > 1:
        index = f"{part[1]}{part[3]}.index.json"
        raise ValueError(
            f"{path} is one of {int(part[2])} parts of a model. Pass the folder with all parts and {index}."
        )
    if path.suffix == ".json":
        return _within(_read_shards(path), state)
    if path.suffix == ".msgpack":
        raise ValueError(f"{path} is a msgpack file of Flax, which cannot be read. Save it as .safetensors or .npz.")
    kind = kind_of(path) or path.suffix.lower()
    if kind in ("safetensors", ".safetensors"):
        return _within(read_safetensors(path), state)
    if kind in ("torch", ".pth", ".pt", ".bin", ".tar"):
        return read_torch(path, state)
    return _within(read_npz(path), state)


_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.bin|\.safetensors)")  # of a model in several files, as Hugging Face's


def _within(file: ArrayFile, state: str | None) -> ArrayFile:
    """Returns the arrays of a file whose names begin with `state`, without it; all for None."""
    if state is None:
        return file
    inside = {name.removeprefix(f"{state}."): array for name, array in file.items() if name.startswith(f"{state}.")}
    if not inside:
        raise ValueError(f"No array in {file.path} has a name that starts with state={state!r}: leave state out.")
    return ArrayFile(file.path, inside, file.note, state)


# What wrappers of PyTorch put into names, anywhere: compiled, parallel, sharded (FSDP), recomputed, private modules.
_WRAPPERS = re.compile(r"(?<![^.])((_orig_mod|_?module|_fpw_module|_forward_module|_\w+_wrapped_module)\.)+")


def _unwrapped(file: ArrayFile) -> ArrayFile:
    """Returns the arrays of a file by their names without those of wrappers; ValueError where two become the same."""
    if not any(map(_WRAPPERS.search, file)):
        return file
    firsts = {name.partition(".")[0] for name in file}
    # Beside averages or a student, `module` is the name of the raw weights.
    kept = "module." if len(firsts & {*CONTAINERS}) > 1 else ""
    arrays: dict[str, StoredArray] = {}
    for name, array in file.items():
        start = kept if name.startswith("module.") else ""
        plain = start + _WRAPPERS.sub("", name.removeprefix(start))
        if plain in arrays:
            raise ValueError(f"{file.path} has two arrays called {plain!r} without wrappers. Keep one of both.")
        arrays[plain] = dataclasses.replace(array, name=plain)
    return ArrayFile(file.path, arrays, file.note, file.container, file.outside)


def read_npz(path: str | os.PathLike[str], *names: str) -> ArrayFile:
    """Returns the arrays of an `.npz` file, or those of some names, and the note of `write_npz`. No value is read."""
    path = pathlib.Path(path)

    def name_of(member: str) -> str | None:
        name = member.removesuffix(".npy")
        return name if member.endswith(".npy") and (not names or name in names) else None

    arrays, comment = stored_array.members_and_comment(path, "an .npz file", name_of, _describe_npy)
    if not arrays:
        raise ValueError(f"{path} is a zip archive without arrays (.npy): {guess_type(path)}.")
    return ArrayFile(path, arrays, _note_in(comment))


def _note_in(text: str | bytes) -> dict[str, Any] | None:
    """Returns the dict that a text holds as JSON; None where it is something else."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def _describe_npy(name: str, extent: Extent, file: IO[bytes]) -> StoredArray:
    """Returns a member of an `.npz` as an array whose values are not read yet."""
    where = printable(repr(name), 100)
    try:
        version = np.lib.format.read_magic(file)
        # Version 3 differs from 2 in the names of fields, which no weights have.
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with _ONE_HEADER_AT_A_TIME:
            shape, fortran, dtype = headers[min(version, (2, 0))](file)
    except Exception as error:  # NumPy and `ast` raise what the wrong bytes lead them to
        raise ValueError(f"{where} is not an array ({printable(error, 200)})") from None
    if dtype.hasobject:
        raise ValueError(f"{where} has Python objects, which can run code. Save numeric arrays with numpy.savez")
    if dtype == np.dtype("V2"):  # what NumPy makes of the bfloat16 of others
        dtype = np.dtype("bfloat16")
    if dtype.name not in READABLE:
        raise ValueError(f"{where} must have one of the types {', '.join(READABLE)}, but has {printable(dtype, 60)}")
    if not is_shape(shape):
        raise ValueError(f"{where} has the shape {str(shape)[:100]}, which no array has. Download the file again")
    offset, size = file.tell(), math.prod(shape) * dtype.itemsize
    if offset + size > extent.size:
        raise ValueError(f"{where} should have {size:,} bytes, but the file ends before. Download the file again")
    if fortran and len(shape) > 1:
        strides = [math.prod(shape[:axis]) for axis in range(len(shape))]
        return StoredArray(name, shape, dtype, stored_array.load_strided(extent.read, offset, dtype, shape, strides))
    return StoredArray(name, shape, dtype, extent.read, offset)


def write_npz(
    path: str | os.PathLike[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    note: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes (name, array) pairs, which may be computed one by one, to an uncompressed `.npz`."""
    # The note is small JSON data in the archive's comment, where NumPy and others pass over it.
    path = pathlib.Path(path)
    check_absent(path, overwrite=overwrite)
    make_folder(path.parent)
    comment = json.dumps(note, ensure_ascii=False).encode() if note else b""
    if note and len(comment) > zipfile.ZIP_MAX_COMMENT:
        longest = max(note, key=lambda name: len(json.dumps(note[name])))
        raise ValueError(
            f"An .npz file has room for {zipfile.ZIP_MAX_COMMENT:,} bytes of settings, but this model has "
            f"{len(comment):,}, most in {longest}. Save it as .keras, or use model.with_config({longest}=None)."
        )
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)
        archive.comment = comment


def check_absent(*paths: pathlib.Path, overwrite: bool) -> None:
    """Raises FileExistsError for the first of these paths at which there is something, unless `overwrite`."""
    for path in paths:
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists. Choose another path or pass overwrite=True.")


def read_safetensors(path: pathlib.Path) -> ArrayFile:
    """Opens a `.safetensors` file: its arrays, whose values are not read yet, with its note. It has no gaps then."""
    from safetensors import SafetensorError, safe_open

    if kind_of(path) != "safetensors":
        raise ValueError(f"{path} is not a .safetensors file: {guess_type(path)}.")
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        text = file.read(min(header, LONGEST))
    if header > LONGEST:
        raise ValueError(f"{path} must have a header of at most {LONGEST:,} bytes, but it should have {header:,}.")
    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            described = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged: {printable(error, 200)}. Download it again.") from None
    metadata = parse_json(text, str(path)).get("__metadata__")  # of two arrays of one name the library takes either
    if not described:
        raise ValueError(f"{path} has no arrays: pass a file with weights.")
    arrays, extent = {}, Extent(path, 8 + header, path.stat().st_size, "its arrays")
    offset = 0
    for name, (shape, code) in described.items():
        where = printable(repr(name), 100)
        if code not in _TYPES:
            raise ValueError(f"{where} in {path} must have one of the types {', '.join(_TYPES)}, but has {code}.")
        if not is_shape(shape):
            raise ValueError(f"{where} in {path} has the shape {printable(shape, 100)}. Download the file again.")
        arrays[name] = StoredArray(name, shape, np.dtype(_TYPES[code]), extent.read, offset)
        offset += arrays[name].bytes
    return ArrayFile(path, arrays, _note_in(metadata.get(_NOTE, "") if isinstance(metadata, dict) else ""))


def _read_shards(path: pathlib.Path) -> ArrayFile:
    """Returns the arrays of all shards that a `model.safetensors.index.json` lists."""
    arrays: dict[str, StoredArray] = {}
    files = shards_of(path)
    for shard in sorted(set(files.values())):
        if not (path.parent / shard).is_file():
            raise FileNotFoundError(f"{path} needs the file {printable(shard, 100)}: put it in the same folder.")
        inside = (read_torch if shard.endswith(".bin") else read_safetensors)(path.parent / shard)
        listed = {name for name, file in files.items() if file == shard}
        odd = sorted(listed ^ inside.keys())
        if odd:
            where = f"only in {path.name if odd[0] in listed else shard}"
            raise ValueError(f"{path} does not fit {shard}: the array {printable(repr(odd[0]), 100)} is {where}.")
        arrays.update(inside)
    return ArrayFile(path, arrays)


def shards_of(path: pathlib.Path) -> dict[str, str]:
    """Returns by array name the file name of its shard, from an index (`.json`); an empty dict for other files."""
    if not path.name.endswith(".json"):
        return {}
    files = parse_json(_read(path), str(path)).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{path} must be an index such as model.safetensors.index.json, but it has no weight_map.")
    for file in files.values():
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            raise ValueError(f"The weight_map of {path} must have file names, but it has {printable(file, 100)}.")
    return files


def weight_files(path: pathlib.Path) -> list[pathlib.Path]:
    """The files that hold a model's weights: `path`, and where it is an index also its shards, sorted by name."""
    return [path, *(path.with_name(shard) for shard in sorted(set(shards_of(path).values())))]


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    note: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes arrays, all of them in memory at once, to a `.safetensors` file; the note is JSON data in its header."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = pathlib.Path(path)
    check_absent(path, overwrite=overwrite)
    make_folder(path.parent)
    # The library writes memory as it lies there: strides have to be those of a contiguous array.
    tensors = {name: np.asarray(array, order="C") for name, array in arrays}
    metadata = {"format": "pt"}  # without which transformers does not take a file
    if note:
        metadata[_NOTE] = json.dumps(note)
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:  # which is not an OSError, though the disk is full
            raise OSError(str(error)) from error
        with temporary.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > LONGEST:  # which nothing here would read
            raise ValueError(f"{path} would need a header of {header:,} bytes, more than {LONGEST:,}. Save as .keras.")


def write_with_sidecars(
    path: pathlib.Path,
    arrays: Iterable[tuple[str, np.ndarray]],
    sidecars: dict[str, Any],
    copies: Sequence[pathlib.Path] = (),
    overwrite: bool = False,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Writes a `.safetensors` file and beside it JSON files, by their names, and copies of other files."""
    copies = from_elsewhere(copies, path.parent)
    beside = [*sidecars, *(file.name for file in copies)]
    check_absent(path, *(path.with_name(name) for name in beside), overwrite=overwrite)
    write_safetensors(path, arrays, note, overwrite)
    for name, content in sidecars.items():
        write_text(path.with_name(name), f"{json.dumps(content, indent=2, ensure_ascii=False)}\n")
    copy_files(copies, path.parent)


def from_elsewhere(files: Iterable[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that are not in the folder already."""
    return [file for file in files if file.resolve() != (folder / file.name).resolve()]


def copy_files(files: Iterable[pathlib.Path], folder: pathlib.Path) -> None:
    """Copies files into a folder, each complete or not at all."""
    for file in files:
        with replacing(folder / file.name) as temporary:
            shutil.copyfile(file, temporary)


def choose_weights(names: Iterable[str], where: str) -> str | None:
    """The name of the file with a model's weights: the first of `WEIGHT_NAMES`, or the only one of `ENDINGS`."""
    candidates = {name for name in names if "/" not in name}
    known = [name for name in WEIGHT_NAMES if name in candidates]
    if known:
        return known[0]
    others = sorted(name for name in candidates - {*NOT_WEIGHTS} if pathlib.PurePath(name).suffix in ENDINGS)
    if len(others) == 2 and text_of_pair(others[1]) == others[0]:
        return others[1]
    if len(others) > 1 and not all(map(_PART.fullmatch, others)):
        more, shown = " ..." if len(others) > 5 else "", ", ".join(printable(name, 80) for name in others[:5])
        raise ValueError(f"{where} has several files of weights ({shown}{more}): pass the path of one of them.")
    return others[0] if others else None


def text_of_pair(name: str) -> str | None:
    """`NAMEtext.npz` for `NAMEvision.npz`, as TIPS's authors call their two towers; None for other names."""
    start = name.removesuffix("vision.npz")
    return None if start == name else f"{start}text.npz"


def path_of(source: Any) -> pathlib.Path | None:
    """Returns the path of a file or a folder that is there; None for a name, an address, and what is not a path."""
    if not isinstance(source, (str, os.PathLike)) or "://" in os.fspath(source):
        return None
    path = os.path.expanduser(source)
    return pathlib.Path(path) if os.path.exists(path) else None


def is_keras_file(source: str | os.PathLike[str]) -> bool:
    """Whether the name of a source ends with `.keras` or `.weights.h5`; TypeError for no path. Opens nothing."""
    return os.fspath(source).endswith((".keras", ".weights.h5"))


def weights_in(path: str | os.PathLike[str]) -> pathlib.Path:
    """The file with weights in a folder (see `choose_weights`); any other path, also a missing one, as it is."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"The path of a checkpoint must be a string or a path, but {path!r} was given.")
    if path == "":  # pathlib would take the folder that the program runs in
        raise FileNotFoundError("The path of the checkpoint is empty: pass the path of a file or a folder.")
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return folder
    name = choose_weights((file.name for file in folder.iterdir() if file.is_file()), f"The folder {folder}")
    if name is None:
        raise IsADirectoryError(
            f"The folder {folder} must have one of {', '.join(WEIGHT_NAMES)}, or one file that ends in "
            f"{', '.join(ENDINGS)}, but it has no weights."
        )
    return folder / name


def pair_in(source: Any) -> tuple[Any, pathlib.Path | None]:
    """Returns the file of the backbone and that of the head (`*_head`) in a folder; for another source it and None."""
    folder = pathlib.Path(os.path.expanduser(source)) if isinstance(source, (str, os.PathLike)) else None
    if folder is None or not folder.is_dir():
        return source, None
    files = sorted(file for file in folder.iterdir() if file.suffix in ENDINGS and file.name not in NOT_WEIGHTS)
    heads = [file for file in files if file.stem.endswith("_head")]
    files = [file for file in files if heads and file.suffix == heads[0].suffix]
    if len(files) != 2 or len(heads) != 1:
        return source, None
    return next(file for file in files if file != heads[0]), heads[0]


@dataclasses.dataclass(frozen=True)
class Like:
    """The known model of `like=`, with settings that a file lacks."""

    name: str  # what the user has called it
    config: "ViTConfig | None" = None  # where it is a variant of this package; None where it is a name of timm's


@dataclasses.dataclass(frozen=True)
class Sidecars:
    """What is known of a file beside its arrays: JSON files, its note, and what the user says in their place."""

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # config.json of timm or transformers
    open_clip: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # open_clip_config.json
    preprocessor: Mapping[str, Any] | None = None  # preprocessor_config.json
    name: str = ""  # the path of the file
    note: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # beside the arrays in the file itself
    container: str = ""  # in a training state of PyTorch, the dict that the arrays were in
    like: Like | None = None  # this and the next three: what the user says of a model whose file does not tell it
    grid_size: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    max_depth: float | str | None = None
    backbone: Any = None  # how the backbone of a head is read (a `Plan`), which is in another file

    def grid_at_size(self, patch: Sequence[int]) -> tuple[int, int] | None:
        """The rows and columns of patches of images of `image_size`; None where the user does not say it."""
        return self.image_size and (self.image_size[0] // patch[0], self.image_size[1] // patch[1])

    @property
    def architecture(self) -> str:
        """The name of timm's that `like` is; empty where it is None or a variant."""
        return "" if self.like is None or self.like.config is not None else self.like.name


def read_sidecars(path: str | os.PathLike[str], **known: Any) -> Sidecars:
    """Returns the JSON files beside a file of weights, or in a folder; `known` are other fields of `Sidecars`."""
    folder = _folder(path)
    files = {name: folder / file for name, file in SIDECARS.items() if (folder / file).is_file()}
    known |= {name: parse_json(_read(file), str(file)) for name, file in files.items()}
    return Sidecars(**known)


def names_beside(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """Returns the lines of the `classes.txt` beside a file, or in a folder; None where there is none."""
    file = _folder(path) / CLASSES
    if not file.is_file():
        return None
    try:
        names = tuple(_read(file).decode("utf-8-sig").rstrip().splitlines())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not in UTF-8: {error}. Save the class names in UTF-8, one a line.") from None
    for number, name in enumerate(names, 1):
        if not is_class_name(name):
            raise ValueError(f"{file} must have one class name a line; line {number} is {printable(repr(name), 80)}.")
    return names


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Returns the object in untrusted JSON, as a dict; parsed, it may take forty times as many bytes."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        reason = "its JSON is nested too deeply" if isinstance(error, RecursionError) else printable(error, 200)
        raise ValueError(f"{what} is damaged: {reason}. Download it again.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, but it is a {type(value).__name__}. Download it again.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"its JSON has the name {name[:100]!r} twice")
        values[name] = value
    return values


def _folder(path: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(path)
    return path if path.is_dir() else path.parent


def _read(file: pathlib.Path) -> bytes:
    """Returns the bytes of a small file; ValueError for more than `LONGEST`, OSError if it cannot be read."""
    with file.open("rb") as opened:
        data = opened.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError(f"{file} must have at most {LONGEST:,} bytes, but it has {file.stat().st_size:,}.")
    return data
