"""Checkpoints by name, address or path, to files on this machine.

Where a file is looked for, in this order:

1. a path that exists;
2. the folders in `KERAS_VIT_MIRROR`: a folder or base address of your own, or several separated by `;`. A mirror
   holds `<name>.npz` by the names of the catalogue (`imagenet21k/ViT-B_16.npz`), or the bare file name where no two
   files have the same;
3. the cache: `KERAS_VIT_HOME`, by default `keras_vit` in the user's folder for caches;
4. the addresses in `KERAS_VIT_MIRROR`, then the published one and its mirrors.

`KERAS_VIT_OFFLINE=1` leaves out step 4.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import sys
import urllib.parse
from collections.abc import Callable, Iterator

from keras_vit.checkpoints.catalogue import catalogue, find_entry
from keras_vit.checkpoints.checksums import wrong_hash
from keras_vit.checkpoints.entry import Entry, published_url
from keras_vit.checkpoints.file_lock import file_lock
from keras_vit.checkpoints.transfer import AddressFailed, DiskFull, Wanted, can_resume, forget, transfer, what_is_wrong

_BUCKETS = "https://storage.googleapis.com/"
_FILES = (".npz", ".h5", ".keras", ".safetensors", ".pth", ".bin", ".csv")


class DownloadError(OSError):
    """A file could not be had. The message says what was tried, what the answers were, and what can be done.

    Attributes:
        attempts: Addresses and files that were tried, each with its answer.
    """

    def __init__(self, message: str, attempts: list[tuple[str, str]] | None = None) -> None:
        super().__init__(message)
        self.attempts = attempts or []


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file to be had: what to call it, where it lies in a mirror and in the cache, where it is published."""

    title: str
    in_mirror: tuple[str, ...]
    in_cache: str
    urls: tuple[str, ...]
    wanted: Wanted


def fetch(
    source: Entry | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    offline: bool | None = None,
    progress: bool = True,
) -> pathlib.Path:
    """The path of a checkpoint file, which is downloaded if it is not on this machine yet.

    A download goes to a temporary name and is moved into place when it is complete and checked: its size and hash
    where the catalogue knows them, the hashes that storage servers send, and that it is an `.npz` at all. What
    breaks off is resumed, now or by the next call. Of several processes that want the same file one fetches it and
    the others wait.

    Args:
        source: An entry of the catalogue, its name (see `find_entry`), an `https`, `http` or `gs` address, or a path.
        folder: The cache; None for `cache_folder()`.
        offline: Whether to do without the network; None for what `KERAS_VIT_OFFLINE` says.
        progress: Whether a terminal shows a progress bar.

    Returns:
        Path of the file: the given one, or that in a mirror or in the cache.

    Raises:
        TypeError: if `source` is none of these.
        ValueError: if the catalogue has no such name.
        FileNotFoundError: if there is no file at the path.
        DownloadError: if the file cannot be had, or there is no room for it.
    """
    local = _local_path(source)
    if local is not None:
        return local
    wish = _source(source)
    home = (cache_folder() if folder is None else pathlib.Path(folder)).expanduser().absolute()
    target = home / wish.in_cache
    folders, addresses = _mirrors()
    attempts: list[tuple[str, str]] = []
    for path in (mirror / name for mirror in folders for name in wish.in_mirror):
        problem = _problem(path, wish.wanted, check_hash=True)
        if problem is None:
            return path
        attempts.append((str(path), problem))
    problem = _problem(target, wish.wanted)
    if problem is None:
        return target
    if target.exists():
        attempts.append((str(target), problem))
    if _is_offline() if offline is None else offline:
        raise DownloadError(
            f"{wish.title} is not on this machine, and offline mode is on (KERAS_VIT_OFFLINE=1 or offline=True).\n"
            f"{_listed(attempts)}{_advice(wish, target)}",
            attempts,
        )
    with _ProgressBar(wish, progress) as bar, _locked(target, wish, bar.wait):
        # Another process may have fetched the file while this one waited.
        if _problem(target, wish.wanted) is not None:
            _download(wish, target, addresses, attempts, bar.show)
    return target


def cache_folder() -> pathlib.Path:
    """The folder where downloads are kept.

    `KERAS_VIT_HOME` if it is set; otherwise `keras_vit` in `XDG_CACHE_HOME` or `~/.cache`, on Windows in
    `LOCALAPPDATA`.
    """
    own = os.environ.get("KERAS_VIT_HOME")
    if own:
        return pathlib.Path(own).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    return (pathlib.Path(caches) if caches else pathlib.Path.home() / ".cache") / "keras_vit"


def _local_path(source: Entry | str | os.PathLike[str]) -> pathlib.Path | None:
    """The path that `source` is; None if it is a name or an address."""
    if isinstance(source, Entry):
        return None
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"A checkpoint is given by its name, address or path, but {source!r} was given.")
    path = pathlib.Path(source).expanduser()
    if not _scheme(source) and path.is_file():
        return path
    if isinstance(source, str):
        return None
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; the path of a checkpoint file was expected.")
    raise FileNotFoundError(f"There is no file {path}.")


def _source(source: Entry | str) -> _Source:
    if isinstance(source, str):
        scheme = _scheme(source)
        if scheme and scheme not in ("https", "http", "gs"):
            raise ValueError(
                f"{source!r} is no address to download from; it must start with https://, http:// or gs://."
            )
        source = _published(source) if scheme else _named(source)
    if isinstance(source, str):
        parts = urllib.parse.urlsplit(source)
        name = urllib.parse.unquote(parts.path).rpartition("/")[2] or parts.netloc
        return _Source(name, (), _in_cache(parts), (source,), Wanted(npz=name.endswith(".npz")))
    names = [f"{source.name}.npz"]
    if sum(entry.basename == source.basename for entry in catalogue().values()) <= 1:
        names.append(f"{source.basename}.npz")
    wanted = Wanted(npz=True, size=source.size_range(), sha256=source.sha256)
    return _Source(source.name, tuple(names), f"{source.name}.npz", source.urls, wanted)


def _published(url: str) -> Entry | str:
    """The entry that is published at an address, or the address if none is."""
    if url.startswith("gs://"):
        url = _BUCKETS + urllib.parse.quote(url.removeprefix("gs://"))
    name = urllib.parse.unquote(url.removeprefix(_BUCKETS).removesuffix(".npz"))
    if url.startswith(_BUCKETS) and url.endswith(".npz"):
        for candidate in (name, name.removeprefix("vit_models/")):
            try:
                entry = find_entry(candidate)
            except ValueError:
                continue
            if urllib.parse.unquote(entry.url) == urllib.parse.unquote(url):
                return entry
    return url


def _named(name: str) -> Entry:
    try:
        return find_entry(name)
    except ValueError as error:
        if pathlib.PurePath(name).suffix in _FILES or name.startswith((".", "~", "/")):
            raise FileNotFoundError(f"There is no file {name}. As a name: {error}") from None
        raise


def _in_cache(parts: urllib.parse.SplitResult) -> str:
    """The path in the cache of a file that the catalogue does not have: its host and path, in harmless letters."""
    host = f"{parts.hostname}_{parts.port}" if parts.port else str(parts.hostname)
    names = [host, *(part for part in urllib.parse.unquote(parts.path).split("/") if part.strip("."))]
    *folders, file = (re.sub(r"[^\w.+=-]", "_", name) for name in names)
    if parts.query:
        stem, dot, suffix = file.rpartition(".")
        mark = hashlib.sha256(parts.query.encode()).hexdigest()[:8]
        file = f"{stem}.{mark}.{suffix}" if dot else f"{file}.{mark}"
    return "/".join([*folders, file])


def _scheme(source: str | os.PathLike[str]) -> str:
    match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", source) if isinstance(source, str) else None
    return match.group(1).lower() if match else ""


def _mirrors() -> tuple[list[pathlib.Path], list[str]]:
    """The folders and the base addresses in `KERAS_VIT_MIRROR`."""
    values = [value.strip() for value in os.environ.get("KERAS_VIT_MIRROR", "").split(";")]
    folders = [pathlib.Path(value).expanduser().absolute() for value in values if value and not _scheme(value)]
    addresses = [value.rstrip("/") + "/" for value in values if _scheme(value)]
    for address in addresses:
        if _scheme(address) not in ("http", "https"):
            raise ValueError(f"KERAS_VIT_MIRROR must name folders, http:// or https:// addresses, but has {address!r}.")
    return folders, addresses


def _is_offline() -> bool:
    return os.environ.get("KERAS_VIT_OFFLINE", "").strip().lower() not in ("", "0", "false", "no", "off")


def _problem(path: pathlib.Path, wanted: Wanted, check_hash: bool = False) -> str | None:
    """Why a file on this machine cannot be used; None if it can."""
    if not path.is_file():
        return "no such file"
    hashes = {"sha256": wanted.sha256} if wanted.sha256 and check_hash else {}
    problem = what_is_wrong(path, wanted.npz) or wrong_hash(path, hashes)
    return f"damaged: {problem}" if problem else None


@contextlib.contextmanager
def _locked(target: pathlib.Path, wish: _Source, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock on a file of the cache, whose folder is made."""
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(target.with_name(f"{target.name}.lock"), waiting))
        except OSError as error:
            raise DownloadError(
                f"{wish.title} cannot be kept in the cache: {error}. Set KERAS_VIT_HOME to a folder that can be "
                "written to."
            ) from error
        yield


def _download(
    wish: _Source,
    target: pathlib.Path,
    addresses: list[str],
    attempts: list[tuple[str, str]],
    report: Callable[[int, int | None], None],
) -> None:
    """Tries all addresses; the first file that is right is moved to `target`."""
    part = target.with_name(f"{target.name}.part")
    own = [(published_url(base, name.removesuffix(".npz")), True) for base in addresses for name in wish.in_mirror]
    try:
        for url, is_own in [*own, *((url, False) for url in wish.urls)]:
            # Whoever has a mirror knows what is in it; sizes from listings are about the published file.
            wanted = dataclasses.replace(wish.wanted, size=None) if is_own else wish.wanted
            try:
                transfer(url, part, wanted, report)
            except AddressFailed as error:
                attempts.append((url, str(error)))
                continue
            os.replace(part, target)
            return
    except DiskFull as error:
        raise DownloadError(
            f"{wish.title} could not be downloaded: {error}. Make room, or set KERAS_VIT_HOME to a folder on another "
            "disk.",
            attempts,
        ) from error
    finally:
        if not can_resume(part):
            forget(part)
    kept = f"What arrived is kept in {part}, and the next try goes on with it.\n" if can_resume(part) else ""
    raise DownloadError(
        f"{wish.title} could not be downloaded.\n{_listed(attempts)}{kept}{_advice(wish, target)}", attempts
    )


def _listed(attempts: list[tuple[str, str]]) -> str:
    return "".join(f"  {where}\n    {answer}\n" for where, answer in attempts)


def _advice(wish: _Source, target: pathlib.Path) -> str:
    text = f"If you get the file in another way, put it at\n  {target}\nor pass its path as weights."
    if wish.in_mirror:
        text += f" KERAS_VIT_MIRROR may name a folder or base address that has {wish.in_mirror[0]}."
    return text


class _ProgressBar:
    """A progress bar in bytes on the terminal, or nothing."""

    def __init__(self, wish: _Source, wanted: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self._console = Console(stderr=True)
        self._shown = wanted and self._console.is_terminal
        self._title = wish.title.rpartition("/")[2]
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=self._console, disable=not self._shown)
        self._task = None

    def __enter__(self) -> "_ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, received: int, total: int | None) -> None:
        if self._task is None:
            self._task = self._bar.add_task(f"Downloading {self._title}", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=received, total=total)

    def wait(self) -> None:
        if self._shown:
            self._console.print(f"Another process downloads {self._title}; waiting for it.")
