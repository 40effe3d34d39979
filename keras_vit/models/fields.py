"""The root of all configs: fields of plain data, each of which declares in its type what it must be."""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from keras_vit._arguments import check_choice, is_class_name, pair


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A frozen dataclass that JSON can hold; its fields are checked when it is made, then how they fit each other.

    A field of the type `Annotated[int, AtLeast(1)]` is checked by `AtLeast(1)`, a function from the field's name and
    value to the value; with `| None`, None is left out. NumPy's numbers and arrays become Python's, lists tuples.
    """

    # The class of the model that a config describes, by its name in `keras_vit.models`; and the fields on which no
    # weight depends: they can change even in a quantized model.
    model: ClassVar[str]
    SETTINGS: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)).items():
            object.__setattr__(self, name, check(name, _as_python(getattr(self, name))))
        self._check_together()

    def _check_together(self) -> None:
        """Raises TypeError or ValueError unless the fields, each of which is right, fit each other."""

    def _need(self, field: str, **needed: Any) -> None:
        """Raises ValueError unless other fields have the values that the value of a field needs."""
        for name, value in needed.items():
            given = getattr(self, name)
            if given != value:
                cause = f"{field}={getattr(self, field)!r}"
                raise ValueError(f"{cause} needs {name}={value!r}, but {given!r} was given.")

    def replace(self, **changes: Any) -> Self:
        """A config with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return {field.name: _for_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


Check = Callable[[str, Any], Any]


@functools.cache
def _checks(cls: type[Config]) -> dict[str, Check]:
    """The check of each field of a class of configs, by the field's name."""
    return {field.name: _check_of(field.type) for field in dataclasses.fields(cls)}


def _check_of(annotation: Any) -> Check:
    """The check that the type of a field declares; a flag has to be True or False."""
    if annotation is bool:
        return _flag
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        checks = [_check_of(part) for part in typing.get_args(annotation) if part is not type(None)]
        return lambda name, value: None if value is None else checks[0](name, value)
    if hasattr(annotation, "__metadata__"):
        return annotation.__metadata__[0]
    return lambda name, value: value


def _as_python(value: Any) -> Any:
    """A value as JSON can hold it: numbers of NumPy and other libraries as `int` or `float`, sequences as tuples."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()  # such as classes=labels.max() + 1
    if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):  # a fraction, or another library's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return tuple(map(_as_python, value)) if isinstance(value, (list, tuple, range)) else value


def _for_json(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


# Checks of one field


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but {value!r} was given.")
    return value


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The check of an integer; `advice` ends the message where it is too small."""

    least: int
    advice: str = ""

    def __call__(self, name: str, value: Any) -> int:
        """The value; TypeError unless it is an integer, ValueError if it is too small."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, but {value!r} of type {type(value).__name__} was given.")
        if value < self.least:
            raise ValueError(f"{name} must be at least {self.least}, but {value} was given. {self.advice}".rstrip())
        return value


@dataclasses.dataclass(frozen=True)
class Integers:
    """The check of several integers, each of at least `least`; of as many as `count` says."""

    least: int = 1
    count: int | None = None

    def __call__(self, name: str, values: Any) -> tuple[int, ...]:
        """The values.

        Raises TypeError unless they are a tuple of integers, ValueError for one too small or another number of them.
        """
        if not isinstance(values, tuple):
            raise TypeError(f"{name} must be several integers, such as (3, 4), but {values!r} was given.")
        for value in values:
            AtLeast(self.least)(name, value)
        if self.count not in (None, len(values)):
            raise ValueError(f"{name} must be {self.count} integers, but {values} was given.")
        return values


@dataclasses.dataclass(frozen=True)
class Number:
    """The check of a number; `expected` says what `fits` asks of it, `otherwise` what else the field takes."""

    expected: str = "a number"
    fits: Callable[[float], bool] = dataclasses.field(default=lambda value: True, repr=False)
    otherwise: str = ""

    def __call__(self, name: str, value: Any) -> float:
        """The value; TypeError unless it is a number, ValueError if it does not fit."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number{self.otherwise}, but {value!r} was given.")
        if not self.fits(value):
            raise ValueError(f"{name} must be {self.expected}, but {value!r} was given.")
        return value


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The check of a field that takes one of a few values."""

    values: tuple[object, ...]

    def __call__(self, name: str, value: Any) -> Any:
        check_choice(name, value, self.values)
        return value


def checked_class_names(names: Any, classes: int) -> tuple[str, ...] | None:
    """A name for each class, each a line, or None; TypeError or ValueError for anything else."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"class_names must be a list of strings in the order of the classes, but got {names!r}.")
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"class_names must be strings, but {name!r} was given.")
        if not is_class_name(name):
            wanted = "single lines without control characters or space at the ends"
            raise ValueError(f"class_names must be {wanted}, but {name!r} was given.")
    if len(names) != classes:
        raise ValueError(f"class_names must name each of the {classes} classes, but has {len(names)} names.")
    return names


Positive = Annotated[int, AtLeast(1)]
Count = Annotated[int, AtLeast(0)]
Length = Annotated[int, AtLeast(1, "Use None for no such layer.")]
Pair = Annotated[tuple[int, int], pair]
Rate = Annotated[float, Number("at least 0 and below 1", lambda value: 0 <= value < 1)]
Epsilon = Annotated[float, Number("above 0 and below 1", lambda value: 0 < value < 1)]
