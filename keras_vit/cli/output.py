"""What commands answer, and how it is shown."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_vit._text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


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
    """Standard output: as wide as the terminal, or 200 columns where it is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200)


def pairs_table(title: str, pairs: Mapping[str, Any]) -> "Table":
    """A table of two columns; pairs without a value are left out, long lists have a line for each entry."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)), show_header=False, title_justify="left")
    for key, value in pairs.items():
        if value in (None, [], ""):
            continue
        entries = value if isinstance(value, list) and len(str(value)) > 60 else [value]
        table.add_row(key.replace("_", " "), Text("\n".join(map(printable, entries))))
    return table


def megabytes(size: int) -> str:
    """A size in bytes for people."""
    return f"{size / 1e6:.1f} MB"
