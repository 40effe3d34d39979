"""A lock between processes, so that two of them do not fetch the same file.

The operating system holds it for as long as the process lives: a process that dies gives it back, and a lock file
that it leaves behind is no lock. That is what the `filelock` package does as well, in as many lines as are needed
here, without another dependency.
"""

import contextlib
import errno
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

_EVERY = 0.1  # seconds between two tries
# What file systems without locks answer, some network ones among them.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, getattr(errno, "EOPNOTSUPP", errno.ENOSYS), errno.EINVAL}


@contextlib.contextmanager
def file_lock(path: pathlib.Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock that a file stands for; the file is there only meanwhile.

    On a file system without locks it does nothing.

    Args:
        path: The lock file; its folder must exist.
        waiting: Called once if another process has the lock.

    Raises:
        OSError: if the file cannot be made.
    """
    handle = _acquire(path, waiting)
    try:
        yield
    finally:
        # Removed while it is still held, so that nobody loses a lock; Windows refuses that and needs it closed first.
        if sys.platform != "win32":
            _remove(path)
        os.close(handle)
        if sys.platform == "win32":
            _remove(path)


def _acquire(path: pathlib.Path, waiting: Callable[[], None]) -> int:
    told = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked = _try_lock(handle)
            # The process that had the lock has removed the file by now, perhaps: then this one is nobody's any more.
            if locked and _is_at(handle, path):
                return handle
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return handle
            os.close(handle)
            raise
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if locked:
            continue
        if not told:
            told = True
            waiting()
        time.sleep(_EVERY)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _is_at(handle: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
