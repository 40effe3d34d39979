"""Files that are there in whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write a file: a hidden name beside `path`, which takes its place when the block ends.

    If the block fails, what it wrote is removed, and what was at `path` stays. The name is always the same, so a
    process that is killed leaves one such file at most, which the next one overwrites.

    Args:
        path: The file; its folder exists.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8; it appears when it is complete."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
