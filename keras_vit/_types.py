"""Types that are said again and again, and how sizes, numbers and names are read."""

import numbers
import os
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import keras

# A tensor of the running backend, or a symbolic one. No type covers those of all frameworks.
Tensor: TypeAlias = Any
# Lengths of the axes of a tensor; None where they are not known before the program runs.
Shape: TypeAlias = tuple[int | None, ...]
# Pixels: an integer for squares, or (height, width).
ImageSize: TypeAlias = int | tuple[int, int]
# What a model comes from: the name of a variant or of a published checkpoint, an address, or the path of a file.
Source: TypeAlias = str | os.PathLike[str]
# A Keras dtype policy or its name, such as "mixed_bfloat16"; None for the global one.
DType: TypeAlias = Union[str, "keras.DTypePolicy", None]


def pair(name: str, value: Any) -> tuple[int, int]:
    """A size given as an integer or as (height, width), as two positive integers.

    Args:
        name: The argument, for the message.
        value: What was given.

    Raises:
        TypeError: if it is neither.
        ValueError: if it is not positive.
    """
    values = (value, value) if isinstance(value, numbers.Integral) else value
    try:
        height, width = values
        if isinstance(height, bool) or isinstance(width, bool):
            raise TypeError
        sizes = (int(height), int(width))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be an integer or a pair (height, width) of integers, but {value!r} was given."
        ) from None
    if sizes != (height, width) or min(sizes) < 1:
        raise ValueError(f"{name} must be positive integers, but {value!r} was given.")
    return sizes


def whole_number(name: str, value: Any, least: int) -> int:
    """An integer, of Python or NumPy, that is not too small.

    Args:
        name: The argument, for the message.
        value: What was given.
        least: What it must be at least.

    Raises:
        ValueError: if it is anything else; also for True and False.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but {value!r} was given.")
    return int(value)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ValueError unless the argument `name` has one of the values that it can take."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, but {value!r} was given.")
