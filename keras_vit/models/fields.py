"""What the configs of all models have in common: fields that are plain numbers, text and tuples of these."""

import dataclasses
import numbers
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from keras_vit._arguments import is_class_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """A frozen dataclass that JSON can hold: NumPy's numbers and arrays become Python's, and lists become tuples."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise TypeError(f"{field.name} must be True or False, but {value!r} was given.")

    def replace(self, **changes: Any) -> Self:
        """A config with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return {field.name: _for_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()  # `labels.max() + 1` is one of them
    if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):  # a fraction, or another library's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple, range)) else value


def _for_json(value: Any) -> Any:
    if isinstance(value, Fields):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def require(fits: bool, message: str) -> None:
    """Raises ValueError with the message unless something fits."""
    if not fits:
        raise ValueError(message)


def check_integer(name: str, value: Any, advice: str = "", least: int = 1) -> None:
    """Raises TypeError or ValueError unless the field `name` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, but {value!r} of type {type(value).__name__} was given.")
    require(value >= least, f"{name} must be at least {least}, but {value} was given. {advice}".rstrip())


def check_integers(name: str, values: Any, least: int = 1) -> None:
    """Raises TypeError or ValueError unless the field `name` holds integers of at least `least`."""
    if not isinstance(values, tuple):
        raise TypeError(f"{name} must be several integers, such as (3, 4), but {values!r} was given.")
    for value in values:
        check_integer(name, value, least=least)


def check_real(name: str, value: Any, otherwise: str = "") -> float:
    """The value of a field that is a number; TypeError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number{otherwise}, but {value!r} was given.")
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
        words = f"class_names must be single lines without control characters or space at the ends, but {name!r}"
        require(is_class_name(name), f"{words} was given.")
    require(len(names) == classes, f"class_names must name each of the {classes} classes, but has {len(names)} names.")
    return names
