"""Checkpoints by name, address or path, to files on this machine.

Where a file is looked for, in this order:

1. a path that exists, or the name of a checkpoint that comes along with the package (`"glyphs"`);
2. the folders in `KERAS_VIT_MIRROR`: a folder or base address of your own, or several separated by `;`. A mirror
   holds `<name>.npz` by the names of the catalogue (`imagenet21k/ViT-B_16.npz`), or the bare file name where no two
   files have the same;
3. the cache: `KERAS_VIT_HOME`, by default `keras_vit` in the user's folder for caches;
4. the addresses in `KERAS_VIT_MIRROR`, then the published one and its mirrors;
5. a repository of the Hugging Face Hub that has the same weights, where the catalogue knows one (see `hub`).

`KERAS_VIT_OFFLINE=1` leaves out step 4, and takes from step 5 what is on this machine.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import string
import sys
import urllib.parse
import warnings

from keras_vit._files import locked, weights_folder
from keras_vit._progress import ProgressBar
from keras_vit._text import printable
from keras_vit._types import Source
from keras_vit.checkpoints.catalogue import SHIPPED, catalogue, find_entry, repositories, with_repositories
from keras_vit.checkpoints.download_error import DownloadError
from keras_vit.checkpoints.entry import Entry, published_url
from keras_vit.checkpoints.folder import choose_weights
from keras_vit.checkpoints.hub import SCHEME, fetch_from_hub
from keras_vit.checkpoints.transfer import AddressFailed, DiskFull, can_resume, forget, transfer, what_is_wrong

_BUCKETS = "https://storage.googleapis.com/"
_FILES = (".npz", ".h5", ".keras", ".safetensors", ".pth", ".bin", ".csv")
_Attempts = list[tuple[str, str]]  # what was tried, and the answer


@dataclasses.dataclass(frozen=True)
class _File:
    """A published file: what messages call it, where the cache and a mirror keep it, where it is published."""

    title: str
    in_cache: str
    urls: tuple[str, ...]
    npz: bool = True
    in_mirror: tuple[str, ...] = ()
    size: tuple[int, int] | None = None


def find_checkpoint(source: Entry | Source) -> pathlib.Path:
    """The file that a user means: that of a name in `SHIPPED`, of an address of the Hub, or what `fetch` gives.

    Args:
        source: The name of a checkpoint that comes along, an address of the Hugging Face Hub (see `fetch_from_hub`), a
            folder with weights, or what `fetch` takes.

    Raises:
        TypeError, ValueError, FileNotFoundError, DownloadError: see `fetch` and `fetch_from_hub`.
        ImportError: if the Hub is asked for and `huggingface_hub` is not installed.
    """
    if isinstance(source, str) and _scheme(source) == "hf":
        return fetch_from_hub(source, offline=_is_offline())
    weights = _in_folder(source)
    if weights is not None:
        return weights
    if isinstance(source, str) and source in SHIPPED and not os.path.exists(source):
        return weights_folder() / SHIPPED[source]
    try:
        return fetch(source)
    except DownloadError as error:
        return _equal_weights(source, error)


def is_copy(source: Source, path: pathlib.Path) -> bool:
    """Whether the file that a source leads to is another publisher's copy of a published checkpoint.

    Args:
        source: What `find_checkpoint` was asked for.
        path: What it found.
    """
    return path.suffix != ".npz" and is_published_name(source)


def is_published_name(source: Entry | Source) -> bool:
    """Whether a source is the name of a published checkpoint, rather than a file or an address."""
    if isinstance(source, Entry):
        return True
    if not isinstance(source, str) or _scheme(source) or os.path.exists(os.path.expanduser(source)):
        return False
    try:
        find_entry(source)
    except ValueError:
        return False
    return True


def fetch(
    source: Entry | Source,
    *,
    folder: str | os.PathLike[str] | None = None,
    offline: bool | None = None,
    progress: bool = True,
) -> pathlib.Path:
    """The path of a checkpoint file, which is downloaded if it is not on this machine yet.

    A download goes to a temporary name and is moved into place when it is complete and checked: its size where the
    catalogue knows it (an unknown file may have up to `transfer.LARGEST` bytes), the MD5 that storage servers send,
    and that it is an `.npz` at all. What breaks off is resumed, now or by the next call. Of several processes that
    want the same file one fetches it and the others wait.

    Args:
        source: An entry of the catalogue, its name (see `find_entry`), an `https`, `http` or `gs` address, or a path.
        folder: The cache; None for `cache_folder()`.
        offline: Whether to do without the network; None for what `KERAS_VIT_OFFLINE` says.
        progress: Whether a terminal shows a progress bar.

    Returns:
        Path of the file: the given one, or that in a mirror or in the cache.

    Raises:
        TypeError: if `source` is none of these.
        ValueError: if the catalogue has no such name, or the address is none.
        FileNotFoundError: if there is no file at the path.
        DownloadError: if the file cannot be had, or there is no room for it.
    """
    local = _local_path(source)
    if local is not None:
        return local
    file = _file_of(source if isinstance(source, Entry) else str(source))
    home = (cache_folder() if folder is None else pathlib.Path(folder)).expanduser().absolute()
    target = home / file.in_cache
    folders, addresses = _mirrors()
    attempts: _Attempts = []
    for path in [*(mirror / name for mirror in folders for name in file.in_mirror), target]:
        problem = _problem(path, file.npz)
        if problem is None:
            return path
        if path != target or path.exists():
            attempts.append((str(path), problem))
    if _is_offline() if offline is None else offline:
        raise DownloadError(
            f"{file.title} is not on this machine, and offline mode is on (KERAS_VIT_OFFLINE=1 or offline=True).",
            attempts,
            _advice(file, target),
        )
    name = file.title.rpartition("/")[2]
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(f"Downloading {name}", in_bytes=True, shown=progress, stays=True))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(
                target.with_name(f"{target.name}.lock"),
                lambda: bar.say(f"Another process downloads {name}; waiting for it."),
            )
            stack.enter_context(lock)
        except OSError as error:
            raise DownloadError(
                f"{file.title} cannot be kept in the cache: {error}. Set KERAS_VIT_HOME to a folder that can be "
                "written to."
            ) from error
        # Another process may have fetched the file while this one waited.
        if _problem(target, file.npz) is not None:
            _download(file, target, addresses, attempts, bar)
    return target


def cache_folder() -> pathlib.Path:
    """The folder where downloads are kept.

    `KERAS_VIT_HOME` if it is set; otherwise `keras_vit` in `XDG_CACHE_HOME` or `~/.cache`, on Windows in
    `LOCALAPPDATA`.
    """
    if home := os.environ.get("KERAS_VIT_HOME"):
        return pathlib.Path(home).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or (sys.platform == "win32" and os.environ.get("LOCALAPPDATA"))
    return pathlib.Path(caches or "~/.cache").expanduser() / "keras_vit"


def _local_path(source: Entry | Source) -> pathlib.Path | None:
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


def _file_of(source: Entry | str) -> _File:
    if isinstance(source, str):
        source = _published(_address(source)) if _scheme(source) else _named(source)
    if isinstance(source, Entry):
        name, base = f"{source.name}.npz", source.basename
        unique = sum(entry.basename == base for entry in catalogue().values()) <= 1
        in_mirror = (name, f"{base}.npz") if unique else (name,)
        return _File(source.name, name, source.urls, in_mirror=in_mirror, size=source.size_range())
    parts = urllib.parse.urlsplit(source)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    # Addresses differ in more than what file names can: in case, in a replaced character, in what stands after ?.
    mark = hashlib.sha256(source.encode()).hexdigest()[:32]
    safe = re.sub(r"[^\w.+=-]", "_", name[-100:], flags=re.ASCII).lstrip(".") or "file"
    folder = re.sub(r"[^\w.-]", "_", parts.netloc[:100], flags=re.ASCII)
    return _File(source, f"{folder}/{mark}/{safe}", (source,), npz=name.endswith(".npz"))


def _address(text: str) -> str:
    """An address in the characters that servers are asked in: others are quoted, a host's name is made IDNA."""
    if _scheme(text) not in ("https", "http", "gs"):
        raise ValueError(f"{text!r} is no address to download from; it must start with https://, http:// or gs://.")
    if _scheme(text) == "gs":
        text = _BUCKETS + urllib.parse.quote(text.partition("://")[2])
    try:
        parts = urllib.parse.urlsplit(text)
        host = (parts.hostname or "").encode("idna").decode()
        if not host:
            raise ValueError("it names no host")
        host = f"[{host}]" if ":" in host else host
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        if parts.username is not None:
            raise ValueError("a name and password in an address are not supported")
        path, query = (urllib.parse.quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    except ValueError as error:
        raise ValueError(f"{text!r} is no address to download from: {printable(error, 200)}.") from None
    return urllib.parse.urlunsplit((parts.scheme, netloc, path, query, ""))


def _published(url: str) -> Entry | str:
    """The entry that is published at an address, or the address if none is."""
    plain = urllib.parse.unquote(url)
    name = plain.removeprefix(_BUCKETS).removesuffix(".npz")
    for candidate in (name, name.removeprefix("vit_models/")):
        with contextlib.suppress(ValueError):
            entry = find_entry(candidate)
            if urllib.parse.unquote(entry.url) == plain:
                return entry
    return url


def _named(name: str) -> Entry:
    try:
        return find_entry(name)
    except ValueError as error:
        if pathlib.PurePath(name).suffix in _FILES or name.startswith((".", "~", "/")):
            raise FileNotFoundError(f"There is no file {name}. As a name: {error}") from None
        raise


def _in_folder(source: Entry | Source) -> pathlib.Path | None:
    """The file with weights in a folder; None for what is no folder, or has none."""
    if not isinstance(source, str | os.PathLike) or _scheme(source):
        return None
    folder = pathlib.Path(source).expanduser()
    names = [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    name = choose_weights(names, f"The folder {folder}")
    return None if name is None else folder / name


def _equal_weights(source: Entry | Source, error: DownloadError) -> pathlib.Path:
    """The weights of a published checkpoint from a repository of the Hub that has the same.

    Raises:
        DownloadError: if there is none, or it cannot be had either; for the first reason.
    """
    if not is_published_name(source):
        raise error
    entry = source if isinstance(source, Entry) else find_entry(str(source))
    attempts = list(error.attempts)
    for repository in repositories(entry.name):
        address = f"{SCHEME}{repository}"
        try:
            path = fetch_from_hub(address, offline=_is_offline())
        except ImportError as reason:
            attempts.append((address, str(reason)))
            break
        except DownloadError as reason:
            attempts += reason.attempts
        else:
            warnings.warn(
                f"{entry.name} is not to be had from where it was published, so the same weights come from {address}.",
                stacklevel=3,
            )
            return path
    advice = error.advice
    others = [] if repositories(entry.name) else with_repositories(entry.variant, entry.classes)
    if others:
        advice = (
            f"{advice}\nThe Hugging Face Hub has the weights of other checkpoints of that kind: {', '.join(others)}."
        )
    raise DownloadError(error.message, attempts, advice) from error


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


def _problem(path: pathlib.Path, npz: bool) -> str | None:
    """Why a file on this machine cannot be used; None if it can."""
    if not path.is_file():
        return "no such file"
    problem = what_is_wrong(path, npz)
    return f"damaged: {problem}" if problem else None


def _download(file: _File, target: pathlib.Path, addresses: list[str], attempts: _Attempts, bar: ProgressBar) -> None:
    """Tries all addresses; the first file that is right is moved to `target`."""
    part = target.with_name(f"{target.name}.part")
    mirrors = [published_url(base, name.removesuffix(".npz")) for base in addresses for name in file.in_mirror]
    try:
        for url in [*mirrors, *file.urls]:
            try:
                # Whoever has a mirror knows what is in it; sizes from listings are about the published file.
                transfer(url, part, file.npz, None if url in mirrors else file.size, bar.update)
            except AddressFailed as error:
                attempts.append((url, str(error)))
                continue
            os.replace(part, target)
            return
    except DiskFull as error:
        raise DownloadError(
            f"{file.title} could not be downloaded: {error}. Make room, or set KERAS_VIT_HOME to a folder on another "
            "disk.",
            attempts,
        ) from error
    finally:
        if not can_resume(part):
            forget(part)
    advice = _advice(file, target)
    if can_resume(part):
        advice = f"What arrived is kept in {part}, and the next try goes on with it.\n{advice}"
    raise DownloadError(f"{file.title} could not be downloaded.", attempts, advice)


def _advice(file: _File, target: pathlib.Path) -> str:
    text = f"If you get the file in another way, put it at\n  {target}\nor pass its path as weights."
    if file.in_mirror:
        text += f" KERAS_VIT_MIRROR may name a folder or base address that has {file.in_mirror[0]}."
    return text
