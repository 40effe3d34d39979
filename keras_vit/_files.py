"""Atomic writes, locks between processes, and where the package's own data lies."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL = 0.1  # seconds between two looks at a lock
# What file systems without locks answer, some network ones among them.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, getattr(errno, "EOPNOTSUPP", errno.ENOSYS)}
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
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def check_room(path: str | os.PathLike[str], size: int) -> None:
    """Raises OSError if there is no room for so many bytes at a path, at which there is no file yet.

    For libraries that break down when a disk is full. A program that fills the disk in between goes unnoticed.
    """
    path = Path(path)
    try:
        if hasattr(os, "posix_fallocate"):
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        reason = f"{error.strerror}, in {path.parent}, for a file of {size:,} bytes. Make room."
        raise OSError(error.errno, reason) from error
    finally:
        path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8; it appears when it is complete."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock that a file stands for, against other processes and threads. The file is there only meanwhile.

    The operating system holds it for as long as the process lives: a killed one leaves the file, but no lock. On a
    file system without locks this does nothing.

    Args:
        path: The lock file; its folder exists.
        waiting: Called once if another one has the lock. An error that it raises ends the waiting.

    Raises:
        OSError: if the file cannot be made.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire(poll_interval=_POLL)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        # Removed while it is held, so that nobody else's lock is; on Windows filelock does so.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.unlink(path)
        lock.release()


def weights_folder() -> Path:
    """The folder of the data files that come with the package: class names, catalogue, the small checkpoint.

    An installed wheel holds it inside the package (`keras_vit/weights`), a source checkout beside it (`weights`).

    Raises:
        FileNotFoundError: if neither folder exists.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"The data files of keras_vit are missing: {package / 'weights'}. Reinstall the package.")
