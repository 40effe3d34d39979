"""One progress bar for all that takes time: on a terminal's standard error, and nowhere else."""

from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from keras_vit._text import printable

T = TypeVar("T")


class ProgressBar:
    """A bar that appears when there is progress to show; where standard error is no terminal, nothing.

        with ProgressBar("Loading", total=size, in_bytes=True) as bar:
            bar.advance(piece)

    Args:
        title: What takes time. It is shown as it is, whatever brackets are in it.
        total: How much there is to do; None if nobody knows.
        in_bytes: Whether amounts are bytes (shown as MB, with their speed) or things that are counted.
        shown: Whether there is to be a bar at all.
        stays: Whether the bar is left on the terminal at the end.
    """

    def __init__(
        self, title: str, total: int | None = None, *, in_bytes: bool = False, shown: bool = True, stays: bool = False
    ) -> None:
        self._bar = None
        if not shown:
            return  # rich need not be imported
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            return
        amounts = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            *(amounts if in_bytes else (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
        )
        self._bar = progress.Progress(*columns, console=console, transient=not stays)
        self._task = self._bar.add_task(printable(title), total=total, note="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int = 1) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._bar.start()
            self._bar.advance(self._task, amount)

    def update(self, done: int, total: int | None = None) -> None:
        """So much is done altogether; of `total`, where that is known by now."""
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """A few words beside the bar, instead of those before."""
        if self._bar is not None:
            self._bar.update(self._task, note=printable(text))

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, highlight=False)

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, each of which is one step."""
        for item in items:
            yield item
            self.advance()
