"""Atomic writes, locks between processes, fingerprints, and where the package's own data lies."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import to_numpy

_POLL = 0.1  # seconds between two looks at a lock
# What file systems without locks answer, some network ones among them.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, getattr(errno, "EOPNOTSUPP", errno.ENOSYS)}
_LONGEST_NAME = 60  # characters of a name that a temporary one repeats: with four bytes each, file systems take it


def expanded_path(path: Any) -> Any:
    """A path with its `~` expanded, at every door, and anything else as it is."""
    return os.path.expanduser(path) if isinstance(path, (str, os.PathLike)) else path


def ending_of(path: str | os.PathLike[str], *endings: str) -> str:
    """Returns the ending of a file to write, in lower case; ValueError for one that is not among `endings`."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        wanted = f"{', '.join(endings[:-1])} or {endings[-1]}"
        raise ValueError(f"path must end with {wanted}, but {os.fspath(path)!r} was given.")
    return ending


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the path to write a file to: a hidden name beside `path`, whose place it takes at the block's end."""
    # If the block fails, what it wrote is removed, what was at `path` stays, and the error is raised. The file is on
    # the disk before it gets its name, so that a power cut cannot leave half of it either. A process that is killed
    # leaves its temporary file behind (`.part-*`).
    given = Path(expanded_path(path))
    path = Path(os.path.realpath(given)) if given.is_symlink() else given  # a link stays; what it leads to is replaced
    # The ending, by which writers choose the format, is that of the link.
    temporary = path.with_name(f".part-{secrets.token_hex(4)}-{given.name[-_LONGEST_NAME:]}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)  # who may read what is replaced
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # Writing to an open file fails without a name, and opening the hidden file with its name.
        if not isinstance(error, OSError) or error.filename not in (None, str(temporary)):
            raise
        if type(error).__module__ != "builtins":  # of downloads and the like, with words of their own
            raise
        if error.errno is None:  # of libraries
            raise type(error)(f"{path} cannot be written: {error}") from error
        raise type(error)(error.errno, error.strerror, str(path)) from error


def write_npy(path: str | os.PathLike[str], values: np.ndarray) -> None:
    """Writes an array as `.npy`, to a path that keeps its ending as it is; OSError if it cannot be written."""
    with replacing(path) as temporary, temporary.open("wb") as file:  # of a name, NumPy would add .npy to .NPY
        np.save(file, values)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raises FileNotFoundError where neither a folder nor the one that it would lie in is there."""
    folder = Path(expanded_path(folder))
    if not os.path.exists(folder) and not os.path.exists(folder.parent):
        raise FileNotFoundError(f"There is no folder {folder.parent}: check the path, or make that folder first.")


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a folder where it is missing; FileNotFoundError if the one that it would lie in is missing as well."""
    check_folder(folder)
    Path(expanded_path(folder)).mkdir(exist_ok=True)


def check_room(path: str | os.PathLike[str], size: int) -> None:
    """Raises OSError if there is no room for a file of `size` bytes at `path`, which is tried with a file there."""
    # For libraries that crash on a full disk.
    path = Path(path)
    try:
        if hasattr(os, "posix_fallocate"):
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        reason = f"{error.strerror} for a file of {size:,} bytes. Make room"
        raise OSError(error.errno, reason, str(path.parent)) from error
    finally:
        path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8, which replaces one that is there when it is complete."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def locked(lock_file: str | os.PathLike[str], waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds a lock by a file that is made for it and removed, against other processes and threads."""
    # A killed process leaves the file, but no lock. On a file system without locks filelock may warn.
    from filelock import FileLock, Timeout

    lock = FileLock(lock_file)
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
            os.unlink(lock_file)
        lock.release()


def fingerprint(*parts: Any) -> str:
    """Returns a hash of arrays, numbers and texts in 16 hexadecimal digits; dtypes and shapes do not count."""
    digest = hashlib.sha256()
    for part in parts:
        is_array = isinstance(part, np.ndarray)
        digest.update(np.ascontiguousarray(part).reshape(-1).view("uint8").data if is_array else repr(part).encode())
    return digest.hexdigest()[:16]


def contents_of(part: Any) -> Any:
    """Returns what `fingerprint` tells apart of files (name, size and time), of arrays, and of both in lists."""
    if isinstance(part, Path):
        status = part.stat() if part.exists() else None
        return part.name, status and (status.st_size, status.st_mtime_ns)
    if isinstance(part, Mapping):
        return {key: contents_of(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [contents_of(value) for value in part]
    is_array = hasattr(part, "shape") or hasattr(part, "__array_interface__")
    return fingerprint(to_numpy(part)) if is_array else part


def weights_folder() -> Path:
    """Returns the folder of the package's data files; FileNotFoundError if it is missing."""
    # In a wheel it lies inside the package (`keras_vit/weights`), in a source checkout beside it.
    package = Path(__file__).resolve().parent
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"The data files of keras_vit are missing: {package / 'weights'}. Reinstall the package.")
