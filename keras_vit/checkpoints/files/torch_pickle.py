"""A reader for the pickles in PyTorch's files that imports nothing and runs nothing.

A pickle is a program for a small machine with a stack. This one has the instructions that `torch.save` needs for
weights beside numbers, texts and settings, and no other; classes and functions are names in a table, which the machine
turns into plain data by itself. What the instructions mean is said in CPython's `Lib/pickletools.py`.
"""

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

from keras_vit._text import printable

LONGEST = 2**23  # bytes of a pickle; a training state with a thousand arrays has a fiftieth of it
MOST_STEPS = 2**20  # instructions of a pickle; the same training state has a twentieth of it
MOST_LEVELS = 50  # of containers in each other
_LONGEST_NAME = 200  # characters of a class's name, and of its module's


@dataclasses.dataclass(frozen=True)
class Storage:
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
class Tensor:
    """An array of values in a storage: the first one, and for each axis the length and the step, in values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class OrderedDict(dict):
    """What stands for a `collections.OrderedDict`; the attributes that PyTorch gives it are dropped."""


class Namespace(dict):
    """What stands for an `argparse.Namespace`: its attributes."""


@dataclasses.dataclass(frozen=True)
class _Name:
    """A class or function that a pickle names: what the machine makes when the pickle calls it."""

    name: str
    call: Callable[[tuple], Any] | None = None
    stored: str | None = None  # of the class of a storage


class _Refused(ValueError):
    """The pickle asks for something that is not done; the message ends what the error says."""


def _ordered_dict(arguments: tuple) -> OrderedDict:
    made = OrderedDict()
    if not arguments:
        return made
    (pairs,) = arguments
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise _Refused("makes an OrderedDict of something else than pairs")
        _set(made, *pair)
    return made


def _namespace(arguments: tuple) -> Namespace:
    if arguments:
        raise _Refused("makes an argparse.Namespace with arguments")
    return Namespace()


def _tensor(arguments: tuple) -> Tensor:
    storage, offset, shape, strides, *more = arguments
    if not isinstance(storage, Storage):
        raise _Refused("has a tensor without a storage")
    for numbers in (shape, strides):
        if not isinstance(numbers, tuple) or not all(type(n) is int and 0 <= n < 2**60 for n in numbers):
            raise _Refused("has a tensor whose shape or strides are no tuple of whole numbers from 0 on")
    if type(offset) is not int or not 0 <= offset < 2**60:
        raise _Refused("has a tensor that begins at no whole number from 0 on")
    # requires_grad and hooks, which are for training; then flags, such as that all values count negative.
    if len(more) > 3 or (len(more) > 1 and more[1]) or (len(more) > 2 and more[2]):
        raise _Refused("has a tensor with hooks or flags, which are not known here")
    return Tensor(storage, offset, shape, strides)


def _parameter(arguments: tuple) -> Tensor:
    tensor, _, hooks = arguments
    if not isinstance(tensor, Tensor) or hooks:
        raise _Refused("has a parameter that is no tensor, or one with hooks")
    return tensor


NAMES = {
    name.name: name
    for name in (
        _Name("collections.OrderedDict", _ordered_dict),
        _Name("argparse.Namespace", _namespace),
        _Name("torch._utils._rebuild_tensor", _tensor),
        _Name("torch._utils._rebuild_tensor_v2", _tensor),
        _Name("torch._utils._rebuild_parameter", _parameter),
        _Name("torch.DoubleStorage", stored="float64"),
        _Name("torch.FloatStorage", stored="float32"),
        _Name("torch.HalfStorage", stored="float16"),
        _Name("torch.BFloat16Storage", stored="bfloat16"),
        _Name("torch.LongStorage", stored="int64"),
        _Name("torch.IntStorage", stored="int32"),
        _Name("torch.ShortStorage", stored="int16"),
        _Name("torch.CharStorage", stored="int8"),
        _Name("torch.ByteStorage", stored="uint8"),
        _Name("torch.BoolStorage", stored="bool"),
    )
}


def read_pickle(data: bytes, start: int, what: str) -> tuple[Any, int]:
    """The plain data that a pickle says, and where it ends.

    Args:
        data: The bytes that it is in, at most `LONGEST` of them.
        start: Where it begins.
        what: The file, for messages.

    Returns:
        Numbers, texts, tuples, lists, dicts, `OrderedDict`, `Namespace`, `Storage` and `Tensor` objects; and the
        position after its end.

    Raises:
        ValueError: if it asks for anything else, is damaged, or has more than `LONGEST` bytes, `MOST_STEPS`
            instructions or `MOST_LEVELS` levels.
    """
    machine = _Machine(data, start)
    try:
        value = machine.run()
        _check_levels(value)
    except _Refused as error:
        raise ValueError(f"{what} {error}.") from None
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise ValueError(
            f"{what} is damaged: its pickle makes no sense at byte {machine.at:,} ({type(error).__name__})."
        ) from None
    return value, machine.at


class _Machine:
    """The machine that a pickle is a program for."""

    def __init__(self, data: bytes, start: int) -> None:
        self.at = start
        self._data = data
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []  # the stacks below the marks
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, Storage] = {}

    def run(self) -> Any:
        """Runs the program; what is on the stack at its end."""
        for _ in range(MOST_STEPS):
            code = self._take(1)
            if code == b".":
                (value,) = self._stack
                if self._marked:
                    raise _Refused("is damaged: its pickle ends in the middle")
                return value
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise _Refused(
                    f"has the instruction {code!r} in its pickle, which weights need not and which is not carried out"
                )
            instruction(self)
        raise _Refused(f"has a pickle with more than {MOST_STEPS:,} instructions")

    def _take(self, count: int) -> bytes:
        piece = self._data[self.at : self.at + count]
        if len(piece) < count:
            long = len(self._data) >= LONGEST
            raise _Refused(f"has a pickle of more than {LONGEST:,} bytes" if long else "is truncated in its pickle")
        self.at += count
        return piece

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self.at, self.at + _LONGEST_NAME + 1)
        if end < 0:
            raise _Refused(f"names a class with more than {_LONGEST_NAME} characters")
        return self._take(end + 1 - self.at)[:-1].decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _above_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._marked.pop()
        return values

    # What follows are the instructions, by the names that pickletools gives them.

    def _proto(self) -> None:
        if (protocol := self._number("<B")) != 2:
            raise _Refused(f"has a pickle of protocol {protocol}, expected 2, which torch.save writes by itself")

    def _mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _long1(self) -> None:
        self._push(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def _binunicode(self) -> None:
        self._push(self._take(self._number("<I")).decode("utf-8", "surrogatepass"))

    def _tuple(self, count: int | None = None) -> None:
        if count is None:
            values = self._above_mark()
        else:
            values = [self._stack.pop() for _ in range(count)][::-1]
        self._push(tuple(values))

    def _appends(self, one: bool = False) -> None:
        values = [self._stack.pop()] if one else self._above_mark()
        if type(self._stack[-1]) is not list:
            raise _Refused("appends something to what is no list")
        self._stack[-1].extend(values)

    def _setitems(self, one: bool = False) -> None:
        values = [self._stack.pop() for _ in range(2)][::-1] if one else self._above_mark()
        if len(values) % 2:
            raise _Refused("is damaged: its pickle has a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            _set(self._stack[-1], key, value)

    def _put(self, code: str) -> None:
        index = self._number(code)
        if index >= MOST_STEPS:
            raise _Refused(f"remembers a value under the number {index:,}, expected less than {MOST_STEPS:,}")
        self._memo[index] = self._stack[-1]

    def _get(self, code: str) -> None:
        self._push(self._memo[self._number(code)])

    def _global(self) -> None:
        name = f"{self._line()}.{self._line()}"
        if name not in NAMES:
            raise _Refused(
                f"asks for the class or function {printable(name, 200)}, which is never imported: it might run code "
                "of a stranger. Plain weights need only torch tensors, OrderedDict and argparse.Namespace. If you "
                "trust the file, load it with PyTorch and save its state dict alone"
            )
        self._push(NAMES[name])

    def _reduce(self) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        if not isinstance(name, _Name) or name.call is None or type(arguments) is not tuple:
            raise _Refused("calls something that cannot be called")
        self._push(name.call(arguments))

    def _newobj(self) -> None:
        name = self._stack[-2]
        if name is not NAMES["argparse.Namespace"] and name is not NAMES["collections.OrderedDict"]:
            raise _Refused("makes an object of something that is no class of objects")
        self._reduce()

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) not in (OrderedDict, Namespace) or not isinstance(state, dict):
            raise _Refused("gives attributes to what has none")
        if type(target) is Namespace:
            for name, value in state.items():
                _set(target, name, value)

    def _binpersid(self) -> None:
        identity = self._stack.pop()
        if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
            raise _Refused("refers to something else than a storage outside its pickle, a whole module perhaps")
        _, name, key, _, count, *view = identity
        if not isinstance(name, _Name) or name.stored is None or type(key) is not str:
            raise _Refused("refers to a storage without a type or a name")
        if type(count) is not int or not 0 <= count < 2**60 or any(view):
            raise _Refused("refers to a storage without a number of values, or to a view of one")
        storage = Storage(key, name.stored, count)
        if self._storages.setdefault(key, storage) != storage:
            raise _Refused(f"refers to the storage {printable(key, 60)} in two ways")
        self._push(storage)


_Instruction = Callable[[_Machine], None]
_INSTRUCTIONS: dict[bytes, _Instruction] = {
    b"\x80": _Machine._proto,
    b"(": _Machine._mark,
    b"N": lambda machine: machine._push(None),
    b"\x88": lambda machine: machine._push(True),
    b"\x89": lambda machine: machine._push(False),
    b"J": lambda machine: machine._push(machine._number("<i")),
    b"K": lambda machine: machine._push(machine._number("<B")),
    b"M": lambda machine: machine._push(machine._number("<H")),
    b"\x8a": _Machine._long1,
    b"G": lambda machine: machine._push(machine._number(">d")),
    b"X": _Machine._binunicode,
    b")": lambda machine: machine._push(()),
    b"t": _Machine._tuple,
    b"\x85": lambda machine: machine._tuple(1),
    b"\x86": lambda machine: machine._tuple(2),
    b"\x87": lambda machine: machine._tuple(3),
    b"]": lambda machine: machine._push([]),
    b"a": lambda machine: machine._appends(one=True),
    b"e": _Machine._appends,
    b"}": lambda machine: machine._push({}),
    b"s": lambda machine: machine._setitems(one=True),
    b"u": _Machine._setitems,
    b"q": lambda machine: machine._put("<B"),
    b"r": lambda machine: machine._put("<I"),
    b"h": lambda machine: machine._get("<B"),
    b"j": lambda machine: machine._get("<I"),
    b"c": _Machine._global,
    b"R": _Machine._reduce,
    b"\x81": _Machine._newobj,
    b"b": _Machine._build,
    b"Q": _Machine._binpersid,
}


def _set(target: Any, key: Any, value: Any) -> None:
    """Sets a value in a dict. Its keys are texts and numbers: hashing a tuple may take for ever."""
    if not isinstance(target, dict):
        raise _Refused("sets a value in what is no dict")
    if type(key) not in (str, int, bool):
        raise _Refused(f"has a dict with a key of the type {type(key).__name__}")
    if key in target:
        raise _Refused(f"has {printable(str(key)[:200], 100)} twice in a dict")
    target[key] = value


def _check_levels(value: Any) -> None:
    """Raises _Refused where containers hold each other on more levels than `MOST_LEVELS`."""
    seen: set[int] = set()
    level = [value]
    for _ in range(MOST_LEVELS):
        # Each container once: ten that hold the next one ten times would be 10**50.
        containers = {id(one): one for one in level if isinstance(one, (tuple, list, dict)) and id(one) not in seen}
        seen |= containers.keys()
        level = [v for one in containers.values() for v in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return
    raise _Refused(f"has containers in each other on more than {MOST_LEVELS} levels")
