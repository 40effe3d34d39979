"""Rows of data that print as a table."""

import io
from typing import Any


class Table(list[dict[str, Any]]):
    """A list of dicts with the same keys; printing it draws a table, in a terminal with rich's colours.

    Subclasses may set `columns`: the keys that are shown, each with its title.

    A value whose key is named in the row's `"inferred"` is marked with `~`: it was deduced and not seen.
    """

    columns: dict[str, str] = {}

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=200, no_color=True)
        console.print(self.__rich__())
        return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().split("\n"))

    def __rich__(self) -> Any:
        """The table that rich draws, for a terminal of any width."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        columns = self.columns or {key: key.replace("_", " ") for key in (self[0] if self else {})}
        for key, title in columns.items():
            numbers = any(isinstance(row[key], (int, float)) for row in self) or key == "size"
            table.add_column(title, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
        for row in self:
            table.add_row(*(_text(row, key) for key in columns))
        if any(row.get("inferred") for row in self):
            table.caption = "~ deduced, not seen"
            table.caption_justify = "left"
        return table


def _text(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return "-"
    if key in ("params", "macs"):
        text = f"{value / 1e9:.2f} G" if value >= 1e9 else f"{value / 1e6:.1f} M"
    else:
        small = isinstance(value, float) and 0 < abs(value) < 1  # a learning rate of 0.001 is not 0.00
        text = f"{value:.3g}" if small else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"~{text}" if key in row.get("inferred", ()) else text
