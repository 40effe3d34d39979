"""What commands answer, and how it is shown."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from keras_vit.tables import WIDTH

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


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


def show(answer: Answer, as_json: bool) -> None:
    """Prints an answer on standard output."""
    if as_json:
        print(json.dumps(answer.data, indent=2))
    elif isinstance(answer.shown, str):
        print(answer.shown)
    elif answer.shown is not None:
        console().print(answer.shown)


def console() -> "Console":
    """Standard output: as wide as the terminal, or `WIDTH` where it is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH)


def megabytes(size: int) -> str:
    """A size in bytes for people."""
    return f"{size / 1e6:.1f} MB"
