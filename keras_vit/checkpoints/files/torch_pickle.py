"""Reading the pickles in PyTorch's files without running anything: every class they name is an inert stand-in.

A pickle is a program that may call whatever it can name. `_Unpickler.find_class` gives it the few names that weights
need, as stand-ins of this file, and refuses every other, so that nothing is imported and no code of the file runs. What
the stand-ins hold is checked afterwards. A pickle that was made to harm can still take its reader's time.
"""

import dataclasses
import io
import pickle
import pickletools
from typing import Any

from keras_vit._arguments import printable

LONGEST = 2**23  # bytes of a pickle; a training state with a thousand arrays has a fiftieth of it
MOST_STEPS = 2**20  # instructions of a pickle; the same training state has a twentieth of it
# Tuples of a pickle; the same training state has a fifth of it. As a key of a dict, tuples in each other take stack
# that Python does not watch: four times as many end the process.
MOST_TUPLES = 2**16


class _Inert:
    """What a pickle cannot change, whatever state it gives it."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it changes what stands for a tensor or a function")


@dataclasses.dataclass(frozen=True)
class Storage(_Inert):
    """A run of values in the file.

    Attributes:
        key: Its name in the file.
        stored: The type of its values, one of `stored_array.READABLE`.
        count: Number of values.
    """

    key: str
    stored: str
    count: int


@dataclasses.dataclass(frozen=True)
class Tensor(_Inert):
    """What stands for a tensor: a storage, the first value in it, and for each axis the length and the step.

    The fields are as the pickle gives them: whoever uses them checks them.
    """

    storage: Any
    offset: Any
    shape: Any
    strides: Any


class Object:
    """What stands for an object with attributes, such as an `argparse.Namespace` or a module of TorchScript.

    Attributes:
        state: Its attributes by name; whatever else the pickle gives.
    """

    __slots__ = ("state",)

    def __new__(cls) -> "Object":
        """An object without attributes; a pickle may give none to the call."""
        made = super().__new__(cls)
        made.state = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dict(dict):
    """What stands for an `OrderedDict`; the attributes that PyTorch gives it are dropped."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class _RebuildTensor(_Inert):
    """What stands for the functions that make a tensor of a storage."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> Tensor:
        # What follows: requires_grad, hooks, and flags, such as that all values count negative.
        if len(more) > 3 or (len(more) == 3 and more[2]):
            raise ValueError("it has a tensor with flags, which are not known here")
        return Tensor(storage, offset, shape, strides)


class _First(_Inert):
    """What stands for functions that give back what they are given first."""

    __slots__ = ()

    def __call__(self, value: Any, *_: Any) -> Any:
        return value


_STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool"},
}
# What a pickle may name, and what stands for it. Nothing else is found.
_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Dict,
    ("argparse", "Namespace"): Object,
    ("torch._utils", "_rebuild_tensor"): _RebuildTensor(),
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
    ("torch._utils", "_rebuild_parameter"): _First(),
    **{("torch.jit._pickle", f"build_{kind}list"): _First() for kind in ("int", "bool", "double", "tensor")},
    ("torch.jit._pickle", "restore_type_tag"): _First(),
    **{("torch", name): stored for name, stored in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a class or function that the pickle names; classes of TorchScript are `Object`s."""
        if module == "__torch__" or module.startswith("__torch__."):
            return Object
        if (module, name) not in _NAMES:
            raise ValueError(
                f"it asks for the class or function {printable(f'{module}.{name}', 200)}, which is never imported: it "
                "might run code of a stranger. Plain weights need only torch tensors, OrderedDict and "
                "argparse.Namespace. If you trust the file, load it with PyTorch and save its state dict alone"
            )
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        """The storage that the pickle refers to, which lies beside it."""
        match pid:
            case ("storage", str(stored), str(key), _, int(count), *view) if (
                stored in _STORAGES.values() and abs(count) < 2**60
            ):
                if not any(view):
                    return Storage(key, stored, count)
        raise ValueError("it refers to something else than a storage, to a whole module or a view perhaps")


def read_pickle(stream: io.BytesIO, what: str) -> Any:
    """The plain data that a pickle says.

    Args:
        stream: The bytes that begin with it, at most `LONGEST` of them; afterwards it is at the pickle's end.
        what: The file, for messages.

    Returns:
        Numbers, texts, tuples, lists, dicts, `Storage`, `Tensor` and `Object` objects.

    Raises:
        ValueError: if it asks for anything else, is damaged, or has more than `MOST_STEPS` instructions
            or `MOST_TUPLES` tuples.
    """
    start = stream.tell()
    try:
        tuples = 0
        # Python's unpickler takes memory for the largest number under which a pickle remembers a value.
        for steps, (instruction, argument, _) in enumerate(pickletools.genops(stream)):
            if steps >= MOST_STEPS:
                raise ValueError(f"it has more than {MOST_STEPS:,} instructions")
            if instruction.name in ("PUT", "LONG_BINPUT") and argument not in range(MOST_STEPS):
                raise ValueError(f"it remembers a value under the number {argument:,}")
            tuples += instruction.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
            if tuples > MOST_TUPLES:
                raise ValueError(f"it has more than {MOST_TUPLES:,} tuples")
        stream.seek(start)
        return _Unpickler(stream).load()
    except MemoryError:
        raise
    except Exception as error:  # whatever the wrong instructions lead to
        words = printable(str(error) or type(error).__name__, 500)
        raise ValueError(f"{what} is damaged, or holds more than weights: of its pickle, {words}.") from None
