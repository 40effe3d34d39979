"""Kinds of arguments that several commands take."""

import argparse
import math
from collections.abc import Callable

SOURCE = "a file, an address, a name of the catalogue, or a variant"
# What Keras calls a dtype policy; without Keras, which would take seconds to be asked.
DTYPES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


def whole(least: int) -> Callable[[str], int]:
    """The type of a whole number of at least `least`."""

    def convert(text: str) -> int:
        number = _number(int, text, "a whole number")
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, but {number} was given")
        return number

    return convert


def at_least_0(text: str) -> float:
    """The type of a finite number that is not negative."""
    number = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but {text} was given")
    return number


def image_size(text: str) -> int | tuple[int, int]:
    """The type of an image size: `384`, or `384x512` for height and width."""
    height, cross, width = text.partition("x")
    return (whole(1)(height), whole(1)(width)) if cross else whole(1)(height)


def image_size_or_dynamic(text: str) -> int | tuple[int, int] | str:
    """The type of an image size, or `dynamic` for any."""
    return text if text == "dynamic" else image_size(text)


def _number(kind: Callable[[str], float], text: str, name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {name}, but {text!r} was given") from None
