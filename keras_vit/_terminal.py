"""Results as tables, JSON and CSV, and progress bars. Text is shown as it is: nothing in it controls the terminal."""

import csv
import dataclasses
import io
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from keras_vit._arguments import printable, whole_number

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

T = TypeVar("T")

_WIDTH = 200  # columns where neither a terminal nor COLUMNS says how many there are
_NARROW = 20  # columns that a text can do with
_LONG_LIST = 60  # characters of a list that is still shown on one line


class Table(list[dict[str, Any]]):
    """A list of dicts with the same keys; printing it draws a table, in a terminal with rich's colours.

    Subclasses may set `columns`: the keys that are shown, each with its title.

    A value whose key is named in the row's `"inferred"` is marked with `~`: it was deduced and not seen.
    """

    columns: dict[str, str] = {}

    def __str__(self) -> str:
        return as_text(self)

    def to_csv(self, names: Iterable[str] = ()) -> str:
        """Returns the rows as values with commas between them, below their names; a row may lack what others have."""
        text = io.StringIO()
        keys = dict.fromkeys([*names, *(key for row in self for key in row)])
        writer = csv.DictWriter(text, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self)
        return text.getvalue()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RichTable]":
        """Yields the table that rich draws; where it is too wide, without the last columns, which it then names."""
        from rich import box
        from rich.table import Table as RichTable

        columns = dict(self.columns or {key: key.replace("_", " ") for row in self for key in row})
        numbers = {"size", *(key for row in self for key in row if isinstance(row[key], (int, float)))}
        widths, whole = {}, {}
        for key, title in columns.items():
            whole[key] = width = max([len(title), *(len(_value(row, key)) for row in self)])
            most = 2 * options.max_width // 3 if not widths else _NARROW  # names stand first, to be copied
            widths[key] = width if key in numbers else min(width, most)  # text can be broken into lines
        left_out = []
        while len(columns) > 1 and sum(widths[key] + 3 for key in columns) > options.max_width:
            left_out.insert(0, columns.popitem()[1])
        for key in columns:  # text is given the room that is left
            widths[key] += max(
                0, min(whole[key] - widths[key], options.max_width - sum(widths[k] + 3 for k in columns))
            )
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
        for key, title in columns.items():
            is_number, is_first = key in numbers, not table.columns
            justify = "right" if is_number else "left"
            sizes: dict[str, Any] = {"min_width" if is_first else "max_width": None if is_number else widths[key]}
            table.add_column(_text(title), justify=justify, no_wrap=is_number, overflow="fold", **sizes)
        for row in self:
            table.add_row(*(_text(_value(row, key)) for key in columns))
        notes = []
        if any(row.get("inferred") for row in self):
            notes.append("~ deduced, not seen")
        if left_out:
            notes.append(f"too narrow for: {', '.join(left_out)}")
        table.caption = _text("; ".join(notes)) if notes else None
        yield table


class PlainData:
    """A dataclass that JSON can hold. `derived` are properties beside its fields, `hidden` fields that are left out."""

    derived: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Fields and `derived` properties, without `hidden` ones, for JSON: None for NaN and infinity."""
        fields: Any = self
        names = [field.name for field in dataclasses.fields(fields) if field.name not in self.hidden]
        return {name: _plain(getattr(self, name)) for name in (*names, *self.derived)}


def _plain(value: Any) -> Any:
    """Returns a value as JSON can hold it: arrays as lists, results as dicts, None for NaN and infinite numbers."""
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return _plain(value.tolist()) if value.dtype.kind == "f" else value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table of results.

    Attributes:
        title: What stands above it.
        value: A function from what a row is about to what stands in the cell.
        digits: Decimals that numbers are rounded to; None: they are left as they are.
        percent: Whether numbers are shares, shown in percent with two digits.
        form: As in `format`, for text in place of a number; empty for none.
    """

    title: str
    value: Callable[[Any], Any]
    digits: int | None = None
    percent: bool = False
    form: str = ""

    def cell(self, value: Any) -> Any:
        """Returns a value as it stands in a cell."""
        if value is None:
            return None
        if self.percent:
            return round(100 * float(value), 2)
        if self.form:
            return format(value, self.form)
        return value if self.digits is None else round(float(value), self.digits)


def make_table(items: Iterable[Any], columns: Iterable[Column]) -> Table:
    """A table with a row for each item."""
    columns = list(columns)
    return Table({column.title: column.cell(column.value(item)) for column in columns} for item in items)


class TableResult(PlainData):
    """A result that prints as a table of one row, whose `columns` it declares."""

    columns: ClassVar[tuple[Column, ...]] = ()

    def table(self) -> Table:
        """The table of one row that is printed."""
        return make_table([self], self.columns)

    def __str__(self) -> str:
        return str(self.table())

    def __rich__(self) -> Table:
        """The table, which rich draws."""
        return self.table()


class ClassesResult(TableResult):
    """A result with figures for each class, which `class_columns` take from it as arrays `(classes,)`.

    `class_table` has the classes whose figure `ranked_by` is defined, the lowest first.
    """

    class_columns: ClassVar[tuple[Column, ...]] = ()
    ranked_by: ClassVar[str] = "per_class"

    def class_table(self, worst: int | None = None) -> Table:
        """Returns a table with the name of each class and its figures, the worst first."""
        if worst is not None:
            whole_number("worst", worst, 0)
        ranks = getattr(self, self.ranked_by).tolist()
        classes = sorted((i for i, rank in enumerate(ranks) if not math.isnan(rank)), key=ranks.__getitem__)
        names = vars(self)["class_names"] or range(len(ranks))
        figures = {column: column.value(self).tolist() for column in self.class_columns}
        return Table(
            {"class": str(names[i])} | {column.title: column.cell(values[i]) for column, values in figures.items()}
            for i in classes[:worst]
        )


def pairs_table(title: str, pairs: Mapping[str, Any]) -> "RenderableType":
    """Returns a table of names and values for rich, without values that are None or empty."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable

    table = RichTable(box=box.SIMPLE, show_header=False, pad_edge=False)
    for key, value in pairs.items():
        if value is not None and value != "" and value != []:
            entries = value if isinstance(value, list) and len(str(value)) > _LONG_LIST else [value]
            table.add_row(_text(key.replace("_", " ")), _text(*entries))
    return Group(_text(title), table)  # rich would break a table's own title where the table ends


def megabytes(size: int) -> str:
    """A number of bytes in megabytes with two decimals: `1.50 MB`."""
    return f"{size / 1e6:.2f} MB"


def terminal_width() -> int:
    """How many columns a table may take: `COLUMNS`, else the terminal's, else 200."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def as_text(renderable: "RenderableType", width: int | None = None) -> str:
    """Returns what rich draws in `width` columns, as text without colours and spaces at the ends of lines."""
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=width or terminal_width(), color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().split("\n"))


class ProgressBar:
    """A bar with rate and time left, once there is progress to show; where standard error is not a terminal, nothing.

        with ProgressBar("Loading", total=size, in_bytes=True) as bar:
            bar.advance(piece)

    `total` is None if nobody knows it. Bytes are shown as MB, with their speed. `stays` leaves the bar on the terminal.
    """

    def __init__(
        self, title: str, total: int | None = None, *, in_bytes: bool = False, shown: bool = True, stays: bool = False
    ) -> None:
        """Prepares the bar; without a terminal, or if it is not shown, all methods do nothing."""
        self._bar = None
        if not shown:
            return  # rich need not be imported
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            return

        class Rate(progress.ProgressColumn):
            def render(self, task: progress.Task) -> "Text":
                return _text("" if task.speed is None else f"{task.speed:.3g}/s")

        amounts: list[progress.ProgressColumn]
        if in_bytes:
            amounts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            amounts = [progress.MofNCompleteColumn(), Rate(), progress.TimeElapsedColumn()]
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            *amounts,
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
        )
        self._bar = progress.Progress(*columns, console=console, transient=not stays)
        self._task = self._bar.add_task(printable(title), total=total, note="")

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar: not where standard error is not a terminal."""
        return self._bar is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int = 1) -> None:
        """Moves the bar on by `amount`, and shows it from now on."""
        if self._bar is not None:
            self._bar.start()
            self._bar.advance(self._task, amount)

    def update(self, done: int, total: int | None = None) -> None:
        """Moves the bar to `done`, and shows it from now on; `total`, unless None, replaces the one so far."""
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Shows a few words beside the bar, instead of those before."""
        if self._bar is not None:
            self._bar.update(self._task, note=printable(text))

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, highlight=False)

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items and moves the bar on by one after each."""
        for item in items:
            yield item
            self.advance()


def _text(*lines: object) -> "Text":
    from rich.text import Text

    return Text("\n".join(map(printable, lines)))


def _value(row: Mapping[str, Any], key: str) -> str:
    """Returns the text of a cell: numbers rounded, `-` for None, with `~` before what was deduced."""
    value = row.get(key)
    if value is None:
        return "-"
    if key in ("params", "macs"):
        text = f"{value / 1e9:.2f} G" if value >= 1e9 else f"{value / 1e6:.1f} M"
    elif isinstance(value, float):
        text = f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:.2f}"  # a learning rate of 0.001 is not 0.00
    else:
        text = str(value)
    return f"~{text}" if key in row.get("inferred", ()) else text
