"""What commands have in common: kinds of arguments, as types for argparse, and an answer.

Each command is a module with `HELP`, `NEEDS_KERAS` (whether Keras has to be there before `run`), `add_arguments` and
`run`.
"""

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

SOURCE = "a file, an address, a name of the catalogue, or a variant"
# What Keras calls a dtype policy; without Keras, which would take seconds to be asked.
DTYPES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command found or did.

    Attributes:
        data: Plain data, for `--json`.
        shown: Text or a table for the terminal; None where the command has printed everything itself.
        ok: False where the job failed though nothing was raised; the exit code is then 1.
    """

    data: Any
    shown: "str | RenderableType | None"
    ok: bool = True


class Whole:
    """Whole numbers from `least` on."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, text: str) -> int:
        number = int(_number(int, text, "a whole number"))
        if number < self.least:
            raise argparse.ArgumentTypeError(f"must be at least {self.least}, but {number} was given")
        return number


COUNT = Whole(1)
COUNT_OR_0 = Whole(0)


def at_least_0(text: str) -> float:
    """Finite numbers that are not negative."""
    number = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, but {text} was given")
    return number


def image_size(text: str) -> int | tuple[int, int]:
    """Image sizes in pixels: `384`, or `384x512` for height and width."""
    height, cross, width = text.partition("x")
    return (COUNT(height), COUNT(width)) if cross else COUNT(height)


def image_size_or_dynamic(text: str) -> int | tuple[int, int] | str:
    """Image sizes, or `dynamic` for any."""
    return text if text == "dynamic" else image_size(text)


def _number(kind: type, text: str, name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {name}, but {text!r} was given") from None
