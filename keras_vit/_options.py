"""Options: each is declared once, as a field that knows its range, where it applies, and whether a person gave it."""

import dataclasses
import functools
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, ParamSpec, Self, TypeVar

import numpy as np

from keras_vit._arguments import as_strings, check_choice, check_flag, check_type, did_you_mean, listing, pair
from keras_vit._terminal import PlainData

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], Any]  # from the name and the value of a field to the value that is kept
GIVEN = object()  # in `when`: a field applies where the other one is not None or 0


@dataclasses.dataclass(frozen=True)
class Options(PlainData):
    """The base of frozen dataclasses whose fields are checked when they are made, then how they fit each other.

    A field of the type `Annotated[int, Whole(1)]` is checked by `Whole(1)`; with `| None`, None is left out. NumPy's
    numbers and arrays become Python's, lists tuples. TypeError for a value of a wrong type, ValueError for a wrong one.

    Attributes:
        given: Names of the fields that a person wrote, in the constructor or for `replace`.
    """

    given: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *values: Any, **named: Any) -> Self:
        self, fields = super().__new__(cls), dataclasses.fields(cls)
        written = dict(zip([field.name for field in fields], values, strict=False)) | named
        if len(written) == len(fields):  # as `dataclasses.replace` does: a person wrote what is not the default
            written = [field.name for field in fields if as_python(written[field.name]) != field.default]
        object.__setattr__(self, "given", frozenset(written))
        return self

    def __post_init__(self) -> None:
        for name, check_field in _checks(type(self)).items():
            object.__setattr__(self, name, check_field(name, as_python(getattr(self, name))))
        check(self, {})
        self._check_together()

    def _check_together(self) -> None:
        pass  # Options whose fields have to fit each other raise TypeError or ValueError here.

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, which count as given unless they go back to their defaults.

        TypeError or ValueError for names or values that make no sense.
        """
        refuse_unknown(changes, (field.name for field in dataclasses.fields(self)), type(self).__name__)
        taken_back = {
            name
            for name, field in _placed(type(self)).items()
            if name in changes and as_python(changes[name]) == field.default != getattr(self, name)
        }
        new = self.adapted(self.given.union(changes) - taken_back, **changes)
        check(new, {})
        return new

    def adapted(self, given: Iterable[str] | None = None, **changes: Any) -> Self:
        """A copy with values in some fields that nobody gave; `given` is what the copy says of itself."""
        new = dataclasses.replace(self, **changes)
        object.__setattr__(new, "given", self.given if given is None else frozenset(given))
        return new

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The options of a dictionary, also of JSON; without `given`, a person wrote all that are there."""
        named = {name: value for name, value in fields.items() if name != "given"}
        refuse_unknown(named, (field.name for field in dataclasses.fields(cls)), cls.__name__)
        return cls(**named).adapted(fields.get("given", named))


@functools.cache
def _checks(cls: type[Options]) -> dict[str, Check]:
    return {field.name: check_of(field.type) for field in dataclasses.fields(cls)}


def check_of(annotation: Any) -> Check:
    """Returns the check that a type declares: in a union that of a first `Annotated`, else one of all its classes."""
    if annotation is bool:
        return check_flag
    if hasattr(annotation, "__metadata__"):
        return annotation.__metadata__[0]
    if typing.get_origin(annotation) is typing.Literal:
        return OneOf(typing.get_args(annotation))
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return Instance.of(annotation)
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    takes_none = len(parts) < len(typing.get_args(annotation))
    sole = len(parts) == 1 or parts[0] is bool or hasattr(parts[0], "__metadata__")
    check = check_of(parts[0]) if sole else Instance.of(*parts)
    if check is _anything or not takes_none:
        return check
    return lambda name, value: None if value is None else check(name, value)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a public function check and convert its arguments by their types, as `Options` does with its fields."""
    signature = inspect.signature(function)
    named = {name: given for name, given in signature.parameters.items() if given.kind not in _SEVERAL}

    @functools.cache
    def checks() -> dict[str, Check]:
        found = {name: check_of(parameter.annotation) for name, parameter in named.items()}
        return {name: check for name, check in found.items() if check is not _anything}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own words for a missing or an unknown argument
        for name, value in bound.arguments.items():
            if name in checks():
                bound.arguments[name] = checks()[name](name, value)
        return function(*bound.args, **bound.kwargs)

    return call


_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _anything(name: str, value: Any) -> Any:
    return value


def as_python(value: Any) -> Any:
    """Returns a value as JSON can hold it: numbers of other libraries as `int` or `float`, sequences as tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()  # such as classes=labels.max() + 1
    if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):  # a fraction, or another library's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return tuple(map(as_python, value)) if isinstance(value, (list, tuple, range)) else value


# Where options apply


def option(default: Any = None, *, when: Mapping[str, Any], **settings: Any) -> Any:
    """A field that applies only where each axis of a situation, such as "target", has one of some values."""
    return dataclasses.field(default=default, metadata={"when": when}, **settings)


@functools.cache
def _placed(cls: type[Options]) -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(cls) if "when" in field.metadata}


def check(options: Options, situation: Mapping[str, Any]) -> None:
    """Raises ValueError for an option that is given, or not the default, and does not apply in a situation.

    The other fields of the options are a part of the situation.
    """
    values = vars(options)
    refuse(_placed(type(options)), values, {**values, **situation}, options.given)
    for value in values.values():
        if isinstance(value, Options):
            check(value, situation)


def refuse(
    declared: Mapping[str, Any], values: Mapping[str, Any], situation: Mapping[str, Any], given: Iterable[str] = ()
) -> None:
    """Raises ValueError as `check` for values by name, of which `declared` has the fields; unknown axes pass."""
    for name, field in declared.items():
        value = values.get(name, field.default)
        is_default = as_python(value) == as_python(field.default)
        for axis, allowed in field.metadata["when"].items():
            if axis not in situation or (is_default and name not in given):
                continue
            found, words = situation[axis], ""
            if allowed is GIVEN and not found:
                words = f"runs with {axis}: give {axis}= as well, or "
            elif allowed is not GIVEN and found not in allowed:
                words = f"the {axis} {listing(allowed)}, but the {axis} is {found!r}: "
            if words:
                words += "leave it out" if is_default else f"give {name}={field.default!r}"
                raise ValueError(f"{name}={value!r} is for {words}.")


SYNONYMS = {"lr": "learning_rate", "bs": "batch_size", "input_shape": "image_size"}  # of options elsewhere


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str], function: str) -> None:
    """Raises TypeError, with the nearest option, for one that is not among those of a function."""
    spellings = {name.lower(): name for name in known}
    for name, value in options.items():
        if name not in spellings.values():
            elsewhere = {other: own for other, own in SYNONYMS.items() if own in spellings}
            hint = did_you_mean(name, elsewhere if name in elsewhere else spellings)
            raise TypeError(f"{function} has no argument {name}={value!r}.{hint}")


def keywords(function: str, options: Mapping[str, Any], declared: Any) -> Any:
    """Returns the options of a function that are not None, checked by the `TypedDict` that declares them."""
    refuse_unknown(options, declared.__annotations__, function)
    given = {name: value for name, value in options.items() if value is not None}
    # A table of numbers is not an option's value: what refuses it says what it is.
    given = {name: value if getattr(value, "ndim", 0) > 1 else as_python(value) for name, value in given.items()}
    return {name: check_of(declared.__annotations__[name])(name, value) for name, value in given.items()}


# Checks of one field


@dataclasses.dataclass(frozen=True)
class Number:
    """The check of a number, or of a whole number: TypeError unless it is one, ValueError where `fits` is False."""

    expected: str = "a finite number"
    fits: Callable[[Any], bool] = dataclasses.field(default=lambda n: abs(n) <= sys.float_info.max, repr=False)
    whole: bool = False

    def __call__(self, name: str, value: Any) -> Any:
        value = as_python(value)
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        if not is_number or not self.fits(value):
            message = f"{name} must be {self.expected}, but {value!r} was given."
            raise ValueError(message) if is_number else TypeError(message)
        return value


def UpTo(most: float) -> Number:
    """The check of a number from 0 to `most`."""
    return Number(f"a number from 0 to {most:g}", lambda n: 0 <= n <= most)


def Whole(least: int, otherwise: str = "") -> Number:
    """The check of an integer of at least `least`; messages say what else there is."""
    return Number(f"a whole number of at least {least}{otherwise}", lambda n: n >= least, whole=True)


@dataclasses.dataclass(frozen=True)
class Several:
    """The check of a tuple, of each of whose values `each` is the check; `count` of them, or any number with None."""

    each: Check
    count: int | None = None

    def __call__(self, name: str, values: Any) -> tuple[Any, ...]:
        values = as_python(values)
        if not isinstance(values, tuple):
            raise TypeError(f"{name} must be several numbers, such as (3, 4), but {values!r} was given.")
        if self.count not in (None, len(values)):
            raise ValueError(f"{name} must be {self.count} numbers, but {values} was given.")
        return tuple(self.each(name, value) for value in values)


@dataclasses.dataclass(frozen=True)
class PerChannel:
    """The check of one value for all channels, or of a tuple with one for each."""

    each: Check

    def __call__(self, name: str, value: Any) -> Any:
        value = as_python(value)
        return Several(self.each)(name, value) if isinstance(value, tuple) and value else self.each(name, value)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The check of two numbers above 0, the least and the largest, at most `most`."""

    most: float = math.inf

    def __call__(self, name: str, values: Any) -> tuple[float, float]:
        least, largest = Several(Number("numbers above 0", lambda n: 0 < n < math.inf), 2)(name, values)
        if not least <= largest <= self.most:
            words = "(least, largest), with" + ("" if self.most == math.inf else f" at most {self.most:g} and")
            raise ValueError(f"{name} must be {words} the larger one last, but {values} was given.")
        return values


@dataclasses.dataclass(frozen=True)
class Instance:
    """The check of an argument that is of one of some classes."""

    classes: tuple[Any, ...]

    @classmethod
    def of(cls, *annotations: Any) -> Check:
        """The check of these types, or none if one of them is a number, a collection or a name in quotes."""
        classes = tuple(typing.get_origin(annotation) or annotation for annotation in annotations)
        strict = (isinstance(kind, type) and (kind in _WORDS or kind.__module__ not in _LOOSE) for kind in classes)
        return cls(classes) if all(strict) else _anything

    def __call__(self, name: str, value: Any) -> Any:
        words = [_WORDS.get(kind) or f"a{'n' * (kind.__name__[0] in 'AEIO')} {kind.__name__}" for kind in self.classes]
        check_type(name, value, self.classes, " or ".join(words))
        return value


_WORDS = {str: "a string", os.PathLike: "a path", Callable: "a function", Mapping: "a dictionary"}
_LOOSE = ("builtins", "collections.abc", "inspect", "numpy", "typing")  # where NumPy's values and lists do as well


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The check of a field that takes one of a few values."""

    values: tuple[object, ...]

    def __call__(self, name: str, value: Any) -> Any:
        check_choice(name, value, self.values)
        return value


def check_shard(shard: Any) -> tuple[int, int]:
    """Returns (i, n), the i-th of n parts from 0; TypeError unless these are integers, ValueError for others."""
    index, count = shard = Several(Whole(0), 2)("shard", as_python(shard))
    if index >= count:
        raise ValueError(f"shard must be (i, n), the i-th of n parts, from 0 to n - 1, but {shard!r} was given.")
    return shard


Integer = Annotated[int, Number("an integer", whole=True)]
Positive = Annotated[int, Whole(1)]
Count = Annotated[int, Whole(0)]
Pair = Annotated[tuple[int, int], pair]
Patterns = Annotated[tuple[str, ...], as_strings]
FROM_0 = Number("a number of at least 0", lambda n: 0 <= n < math.inf)
ABOVE_0 = Number("a number above 0", lambda n: 0 < n < math.inf)
RATE = Number("a number from 0 to below 1", lambda n: 0 <= n < 1)
SHARE = UpTo(1)
INSIDE = Number("a number between 0 and 1", lambda n: 0 < n < 1)
PART = Number("a number above 0 and at most 1", lambda n: 0 < n <= 1)
From0 = Annotated[float, FROM_0]
Above0 = Annotated[float, ABOVE_0]
Rate = Annotated[float, RATE]
Share = Annotated[float, SHARE]
Hue = Annotated[float, UpTo(0.5)]  # a share of the circle of colours
Part = Annotated[float, PART]
Finite = Annotated[float, Number()]
