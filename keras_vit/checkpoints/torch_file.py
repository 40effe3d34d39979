"""PyTorch's files (`.pth`, `.pt`, `.bin`), read without PyTorch and without running anything that is in them.

Since PyTorch 1.6 a file is a zip archive: `data.pkl`, a pickle that says which arrays there are, and `data/<key>`, the
values of each storage, not compressed. The older form is five pickles in a row and the storages behind them.
TorchScript archives, such as those of OpenAI's CLIP, hold code as well, which is not looked at.

A pickle is a program that may call whatever it can name. `_Unpickler.find_class` gives it the few names that weights
need, as inert stand-ins of this file, and refuses every other, so that nothing is imported and no code of the file
runs. What the stand-ins hold is checked afterwards. A pickle that was made to harm can still take its reader's time.
"""

import functools
import io
import math
import pathlib
import pickle
import pickletools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_vit._arguments import listing, printable
from keras_vit.checkpoints import stored_array
from keras_vit.checkpoints.stored_array import ArrayFile, Extent, StoredArray, are_counts, is_shape, span

# What the dict with the weights is called inside a training state, the preferred first: averages before what they are
# averages of, the teacher of self-distillation before the student, I-JEPA's target before its context encoder.
AVERAGES = ("state_dict_ema", "model_ema_state_dict", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema")
AVERAGES += ("ema_state", "ema_weights", "ema_params", "ema_net", "averaged_model", "swa_model", "swa_state_dict")
TARGETS, FOLLOWERS = ("teacher", "target_encoder"), ("student", "encoder")
RAW = ("model", "module", "state_dict", "model_state_dict")
CONTAINERS = (*AVERAGES, *TARGETS, *RAW, *FOLLOWERS)
MOST_SHARED = 4  # times its size that the arrays in a storage may have together
LONGEST = 2**23  # bytes of a pickle; a training state with a thousand arrays has a fiftieth of it
MOST_STEPS = 2**20  # instructions of a pickle; the same training state has a twentieth of it
# Tuples of a pickle; the same training state has a fifth of it. As a key of a dict, tuples in each other take stack
# that Python does not watch: four times as many end the process.
MOST_TUPLES = 2**16
_LONGEST_NAME = 300  # characters of the names of arrays
_ORDER = "must have little-endian values, but they are big-endian. Save it again on a little-endian machine."
_NESTED = 4  # containers in each other
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of the older form


def read_torch(path: pathlib.Path, state: str | None = None) -> ArrayFile:
    """Returns the arrays of a file of `torch.save`: a state dict, or the one called `state` in a training state."""
    with path.open("rb") as file:
        older = file.read(2) == b"\x80\x02"
    root, storages = _read_older(path) if older else _read_zip(path)
    containers, tensors = _state_dict(root, path, state)
    arrays, used = {}, dict.fromkeys(storages, 0)
    for name, tensor in tensors.items():
        arrays[name], key = _located(name, tensor, storages, path), tensor.storage.key
        used[key] += arrays[name].bytes
        if used[key] > MOST_SHARED * storages[key].size:
            raise ValueError(_damage(path, f"too many arrays share the storage {printable(key, 60)}"))
    inside = {".".join([*containers, name]) for name in tensors}
    if state is not None:  # the rest was left out on purpose
        return ArrayFile(path, arrays, None, ".".join(containers))
    outside = sorted({name for name, _ in _tensors(root)} - inside)
    return ArrayFile(path, arrays, None, ".".join(containers), outside)


def _state_dict(root: Any, path: pathlib.Path, state: str | None) -> tuple[list[str], dict[str, "Tensor"]]:
    """Returns the names of the dicts around the weights, from outside to inside, and the weights by name."""
    if isinstance(root, _Object) and state is None:  # TorchScript: modules in each other
        found = list(_tensors(root))
        tensors = dict(found)
        if len(tensors) < len(found):
            raise ValueError(f"{path} has two arrays of one name. Rename the modules that have dots in their names.")
        return [], tensors
    inner: Any = root if state is None else _fields(root).get(state)
    inside = _path_to_weights(inner)
    if inside is None:
        keys = list(_fields(root)) if isinstance(root, dict) else [f"a {type(root).__name__}"]
        where = "directly or under a common key" if state is None else f"under state={state!r}"
        raise ValueError(
            f"{path} must hold tensors by name {where}, but it has: {listing(keys) or None}. Pass state=KEY."
        )
    inner = functools.reduce(dict.get, inside, inner)
    return inside if state is None else [state, *inside], _direct(inner)


def _read_zip(path: pathlib.Path) -> tuple[Any, dict[str, Extent]]:
    """Returns the object that the pickle of a zip archive describes, and where its storages are, by their keys."""

    def name_of(member: str) -> str | None:
        name = member.partition("/")[2]
        return name if name in ("data.pkl", "byteorder") or name.startswith("data/") else None

    extents, _ = stored_array.members_and_comment(path, "a file of torch.save", name_of, lambda name, extent, _: extent)
    if "data.pkl" not in extents:
        raise ValueError(f"{path} is not a file of torch.save: {stored_array.guess_type(path)}.")
    order, pickled = extents.pop("byteorder", None), extents.pop("data.pkl")
    if order is not None and order.read(0, min(order.size, 10)).tobytes() == b"big":
        raise ValueError(f"{path} {_ORDER}")
    if pickled.size > LONGEST:
        raise ValueError(f"data.pkl in {path} must have at most {LONGEST:,} bytes, but it has {pickled.size:,}.")
    value = read_pickle(io.BytesIO(pickled.read(0, pickled.size).tobytes()), path)
    return value, {name.removeprefix("data/"): extent for name, extent in extents.items()}


def _read_older(path: pathlib.Path) -> tuple[Any, dict[str, Extent]]:
    """Returns as `_read_zip`, for the older form, in which pickles and storages follow each other."""
    size, extents = path.stat().st_size, {}
    with path.open("rb") as file:
        stream = io.BytesIO(file.read(LONGEST))
        if any(read_pickle(stream, path) != expected for expected in (_MAGIC, _VERSION)):
            raise ValueError(f"{path} is a pickle, but not one of torch.save. Save a state dict with torch.save.")
        system, root, keys = (read_pickle(stream, path) for _ in range(3))
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ValueError(f"{path} {_ORDER}")
        storages = [tensor.storage for _, tensor in _tensors(root) if type(tensor.storage) is Storage]
        types = {storage.key: storage.stored for storage in storages}
        is_list = isinstance(keys, list) and all(type(key) is str and key in types for key in keys)
        if not is_list or len({*keys}) < len(keys):
            raise ValueError(_damage(path, "its list of storages is invalid"))
        at = stream.tell()
        for key in keys:
            file.seek(min(at, size))
            count = int.from_bytes(file.read(8), "little")
            length = count * np.dtype(types[key]).itemsize
            extents[key] = Extent(path, at + 8, length, key)
            at += 8 + length
    if at != size:
        raise ValueError(_damage(path, f"it has {size:,} bytes, but its storages end at {at:,}"))
    return root, extents


def _damage(path: pathlib.Path, problem: str) -> str:
    return f"{path} is damaged: {problem}. Download the file again."


def _located(name: str, tensor: "Tensor", storages: dict[str, Extent], path: pathlib.Path) -> StoredArray:
    """Returns a tensor of any strides as an array of the file; ValueError if it does not fit its storage."""
    storage, offset, shape, strides = tensor
    is_known = type(storage) is Storage and storage.key in storages
    is_valid = is_shape(shape) and is_shape((offset,)) and are_counts(strides) and len(strides) == len(shape)
    if not is_known or not is_valid or offset + span(shape, strides) > storage.count:
        raise ValueError(_damage(path, f"the array {printable(repr(name), 100)} does not fit its storage"))
    extent, dtype = storages[storage.key], np.dtype(storage.stored)
    if extent.size != storage.count * dtype.itemsize:
        problem = f"{printable(storage.key, 60)} has {extent.size:,} bytes, not {storage.count:,} values of {dtype}"
        raise ValueError(_damage(path, f"the storage {problem}"))
    rows = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if all(n <= 1 or stride == row for n, stride, row in zip(shape, strides, rows, strict=True)):
        return StoredArray(name, shape, dtype, extent.read, offset * dtype.itemsize)
    load = stored_array.load_strided(extent.read, offset * dtype.itemsize, dtype, shape, strides)
    return StoredArray(name, shape, dtype, load)


def _fields(value: Any) -> dict[Any, Any]:
    """What a dict or an object holds by its names that are strings or ints: others may take gigabytes."""
    value = value.state if type(value) is _Object else value
    return {name: value[name] for name in value if type(name) in (str, int)} if isinstance(value, dict) else {}


def _direct(value: Any) -> dict[str, "Tensor"]:
    return {name: inner for name, inner in value.items() if type(name) is str and type(inner) is Tensor}


def _path_to_weights(value: Any, levels: int = _NESTED) -> list[str] | None:
    """Returns the names of the dicts that lead to the weights, of at most `levels`; None where there are no weights."""
    if not isinstance(value, dict) or not levels:
        return None
    for name in CONTAINERS:
        path = _path_to_weights(value.get(name), levels - 1)
        if path is not None:
            return [name, *path]
    beside, inside = len(_direct(value)), []  # such as a loss beside the weights
    for name, inner in value.items():
        path = _path_to_weights(inner, levels - 1) if type(name) is str else None
        if path is not None and len(_direct(functools.reduce(dict.get, path, inner))) > beside:
            inside.append([name, *path])
    if len(inside) == 1:
        return inside[0]
    return [] if beside else None


def _tensors(root: Any) -> Iterator[tuple[str, "Tensor"]]:
    """Yields (name, tensor) for all tensors in nested dicts and objects, names joined by dots; each dict once."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        prefix, value = waiting.pop()
        if type(value) is Tensor:
            yield prefix.removesuffix("."), value
        elif id(value) not in seen:
            seen.add(id(value))
            fields = reversed(_fields(value).items())
            waiting.extend((f"{prefix}{name}."[:_LONGEST_NAME], inner) for name, inner in fields)


class Storage(NamedTuple):
    """A run of values in the file: its name, a type of `stored_array.READABLE`, and the number of values."""

    key: str
    stored: str
    count: int


class Tensor(NamedTuple):
    """A storage, the first value in it, the length of each axis and the step along it: unchecked, from the pickle."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Object:
    """What stands for an object with attributes, such as an `argparse.Namespace` or a module of TorchScript."""

    __slots__ = ("state",)

    def __new__(cls) -> "_Object":
        made = super().__new__(cls)
        made.state = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dict(dict):
    """What stands for an `OrderedDict`; the attributes that PyTorch gives it are dropped."""

    __slots__ = ()

    def __init__(self) -> None:  # without arguments
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class _Function:
    """What stands for a function, and cannot be changed by whatever state a pickle gives it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it changes a function")


def _make_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> Tensor:
    # Behind the strides stand requires_grad, hooks, and flags, such as that all values count negative.
    if len(more) > 3 or any(more[2:]):
        raise ValueError("it has a tensor with flags that are not supported, such as conjugate or negative")
    return Tensor(storage, offset, shape, strides)


_FIRST = _Function(lambda value, *_: value)
_STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool"},
}
# What a pickle may name, and what stands for it. Nothing else is found.
_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Dict,
    ("argparse", "Namespace"): _Object,
    ("torch._utils", "_rebuild_tensor"): _Function(_make_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): _Function(_make_tensor),
    ("torch._utils", "_rebuild_parameter"): _FIRST,
    **{("torch.jit._pickle", f"build_{kind}list"): _FIRST for kind in ("int", "bool", "double", "tensor")},
    ("torch.jit._pickle", "restore_type_tag"): _FIRST,
    **{("torch", name): stored for name, stored in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Object
        if (module, name) not in _NAMES:
            raise ValueError(
                f"it needs the class or function {printable(f'{module}.{name}', 200)}, which is not imported because "
                "it could run code. If you trust the file, load it with PyTorch and save its state_dict with torch.save"
            )
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        match pid:
            case ("storage", str(stored), str(key), _, int(count), *view):
                if stored in _STORAGES.values() and abs(count) < 2**60 and not any(view):
                    return Storage(key, stored, count)
        raise ValueError("it must refer only to storages, but refers to a module, a view or another object")


def read_pickle(stream: io.BytesIO, path: pathlib.Path) -> Any:
    """Returns the data of the pickle at the stream's position, with `Storage`, `Tensor` and `_Object` objects in it.

    Leaves the stream behind the pickle.
    """
    start, tuples = stream.tell(), 0
    try:
        # Python's unpickler takes memory for the largest number under which a pickle remembers a value.
        for steps, (instruction, argument, _) in enumerate(pickletools.genops(stream)):
            tuples += instruction.name.startswith("TUPLE")
            is_far = instruction.name in ("PUT", "LONG_BINPUT") and argument not in range(MOST_STEPS)
            if steps >= MOST_STEPS or tuples > MOST_TUPLES or is_far:
                limits = f"{MOST_STEPS:,} instructions, as many places in its memo or {MOST_TUPLES:,} tuples"
                raise ValueError(f"it has more than {limits}")
        stream.seek(start)
        return _Unpickler(stream).load()
    except MemoryError:
        raise
    except Exception as error:  # whatever the wrong instructions lead to
        reason = printable(str(error) or type(error).__name__, 500)
        raise ValueError(
            f"{path} is damaged or has more than weights: its pickle cannot be read, because {reason}. Save only the "
            "state dict with torch.save."
        ) from None
