"""The destination of an export: checked before any work, a folder beside it to work in, the step into place."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from keras_vit._files import locked
from keras_vit.export.formats.format import Format

SUFFIX = ".exporting"
REPLACED = "replaced"  # the folder, in the temporary one, of what a new file takes the place of


class _Busy(Exception):
    """Another process has the lock."""


def check_destination(path: Path, row: Format, overwrite: bool) -> None:
    """Refuses a path where the file could not be left, before any work is done.

    Raises:
        FileExistsError: if something is there and may not be replaced.
        NotADirectoryError, PermissionError: if the folder cannot be written to.
    """
    for target in row.files(path):
        if not target.exists() and not target.is_symlink():
            continue
        if not overwrite:
            raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
        if target.is_dir() and not target.is_symlink() and not _replaceable(target):
            raise FileExistsError(
                f"{target} is a folder with other things than a SavedModel in it, which overwrite=True does not "
                "delete. Choose another path, or remove it yourself."
            )
    folder = _existing(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: the folder {folder} is read-only.")


@contextlib.contextmanager
def workspace(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path` to make it in; it is gone afterwards, whatever happens.

    Where an earlier process was killed while it exported to the same path, its folder is removed first. Folders that
    are made for `path` to lie in are removed again if nothing was left in them.

    Args:
        path: Where the file will be.
    """
    new_folders = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        clean(path)
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX, ignore_cleanup_errors=True
        ) as name:
            with locked(Path(name) / "lock"):
                yield Path(name)
    finally:
        for folder in new_folders:  # the innermost first
            with contextlib.suppress(OSError):
                folder.rmdir()


def clean(path: Path) -> None:
    """Removes what killed exports to a path have left, and puts back what they were about to replace."""
    for folder in path.parent.glob(f".{_escaped(path.name)}.*{SUFFIX}"):
        lock = folder / "lock"
        with contextlib.suppress(OSError, _Busy):
            if not lock.exists() and time.time() - folder.stat().st_mtime < 60:
                continue  # perhaps made a moment ago, and not locked yet
            with locked(lock, waiting=_give_up):
                if not path.exists():
                    for old in (folder / REPLACED).glob("*"):
                        os.replace(old, path.with_name(old.name))
                shutil.rmtree(folder)


def place(written: Path, path: Path, row: Format, folder: Path) -> None:
    """Puts a new file where it belongs, in one step where both are single files.

    Otherwise the old one is moved away first; a process killed in between leaves it where `clean` finds it.

    Args:
        written: The new file, with what belongs beside it.
        path: Where it goes.
        row: Its format.
        folder: The temporary folder.
    """
    pairs = list(zip(row.files(written), row.files(path), strict=True))
    simple = written.is_file() and not path.is_dir()
    if len(pairs) == 1 and simple:
        os.replace(written, path)
        return
    replaced = folder / REPLACED
    replaced.mkdir()
    undo = []
    try:
        for _, target in reversed(pairs):
            if target.exists() or target.is_symlink():
                os.replace(target, replaced / target.name)
                undo.append((replaced / target.name, target))
        for new, target in pairs:
            os.replace(new, target)
            undo.append((target, new))
    except OSError:
        for moved, origin in reversed(undo):
            os.replace(moved, origin)
        raise


def size_of(path: Path, row: Format) -> int:
    """Bytes of everything that belongs to a written file."""
    parts = [part for target in row.files(path) for part in (target, *target.rglob("*"))]
    return sum(part.stat().st_size for part in parts if part.is_file())


def _replaceable(folder: Path) -> bool:
    return (folder / "saved_model.pb").exists() or not any(folder.iterdir())


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _give_up() -> None:
    raise _Busy
