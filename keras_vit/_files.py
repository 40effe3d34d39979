"""Files that are there in whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_LONGEST_NAME = 60  # characters of a name that a temporary one repeats: with four bytes each, file systems take it


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write a file: a hidden name beside `path`, which takes its place when the block ends.

    If the block fails, what it wrote is removed, and what was at `path` stays. The file is on the disk before it gets
    its name, so that a power cut cannot leave half of it either. Each call has a name of its own: of several that write
    to one path at once, in this process or others, the last one to end wins, and no file is mixed. A process that is
    killed leaves its temporary file behind (`.part-*`).

    Args:
        path: The file; its folder exists. The temporary name ends as this one does.

    Raises:
        OSError: if the file cannot be put in its place.
    """
    path = Path(path)
    temporary = path.with_name(f".part-{secrets.token_hex(4)}-{path.name[-_LONGEST_NAME:]}")
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8; it appears when it is complete."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
