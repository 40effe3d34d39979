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

import base64
import contextlib
import dataclasses
import errno
import hashlib
import os
import pathlib
import re
import shutil
import sys
import time
import urllib.parse
import warnings
import zipfile
from typing import Any

from keras_vit._arguments import Source, printable
from keras_vit._files import locked, replacing, weights_folder
from keras_vit._terminal import ProgressBar
from keras_vit.checkpoints.catalogue import (
    SHIPPED,
    catalogue,
    find_entry,
    nearest_with_repository,
    recommended,
    repositories,
)
from keras_vit.checkpoints.entry import Entry, published_url
from keras_vit.checkpoints.files import weights_in
from keras_vit.checkpoints.hub import SCHEME, DownloadError, fetch_from_hub
from keras_vit.checkpoints.stored_array import is_web_page

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (0.5, 1.0, 2.0)  # seconds before another try, where that may help
LARGEST = 2**34  # bytes of a file whose size nobody knows; the largest published one has a third of it
_CHUNK = 2**18  # bytes received at a time
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of servers that may have another one later
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
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
    """The file that a user means, which is downloaded if it is not on this machine yet.

    Args:
        source: A path, or a folder with weights; the name of a checkpoint that comes along or of the catalogue (see
            `find_entry`), or its entry; an `https`, `http` or `gs` address, or one of the Hub (see `fetch_from_hub`).

    Returns:
        Path of the file: the given one, or that in a mirror or in a cache.

    Raises:
        TypeError: if `source` is none of these.
        ValueError: if the catalogue has no such name, or the address is none.
        FileNotFoundError, IsADirectoryError: if there is no file at the path, or no weights are in the folder.
        DownloadError: if the file cannot be had, or there is no room for it.
    """
    if isinstance(source, Entry):
        return _fetch_published(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"A checkpoint is given by its name, address or path, but {source!r} was given.")
    text = os.fspath(source)
    if _scheme(text) == "hf":
        return fetch_from_hub(text, offline=_is_offline())
    if _scheme(text):
        address = _address(text)
        return fetch(_published(address) or address)
    path = pathlib.Path(text).expanduser()
    if path.exists():
        return weights_in(path)
    if text in SHIPPED:
        return weights_folder() / SHIPPED[text]
    try:
        if isinstance(source, str):
            return _fetch_published(find_entry(source))
    except ValueError as error:
        if path.suffix not in _FILES and not text.startswith((".", "~", "/")):
            raise
        raise FileNotFoundError(f"There is no file {text}. As a name: {error}") from None
    raise FileNotFoundError(f"There is no file {path}.")


def find_recommended(variant: str) -> str:
    """The name of the checkpoint that `pretrained=True` loads, which is on this machine afterwards.

    The recommended one of the variant; where nobody has that, the most similar one that the Hub has, with a warning.

    Raises:
        ValueError: if no ImageNet-1k checkpoint of the variant is published.
        DownloadError: if it cannot be had, nor one like it.
    """
    entry = recommended(variant)
    try:
        find_checkpoint(entry.name)
        return entry.name
    except DownloadError:
        other = None if repositories(entry.name) else nearest_with_repository(entry)
        if other is None:
            raise
        find_checkpoint(other.name)
    warnings.warn(f"{entry.name} is not to be had, so a similar checkpoint is loaded: {other.name}.", stacklevel=3)
    return other.name


def is_copy(source: Source, path: pathlib.Path) -> bool:
    """Whether the file that a source leads to is another publisher's copy of a published checkpoint.

    Args:
        source: What `find_checkpoint` was asked for.
        path: What it found.
    """
    if path.suffix == ".npz" or not isinstance(source, str) or _scheme(source) or os.path.exists(source):
        return False
    try:
        find_entry(source)
    except ValueError:
        return False
    return True


def fetch(source: Entry | str) -> pathlib.Path:
    """The path of a published file in a mirror or in the cache, to which it is downloaded if it is not there yet.

    A download goes to a temporary name and is moved into place when it is complete and checked: its size where the
    catalogue knows it (an unknown file may have up to `LARGEST` bytes), the MD5 that storage servers send, and that it
    is an `.npz` at all. What breaks off is tried again from its start. Of several processes that want the same file one
    fetches it and the others wait.

    Args:
        source: An entry of the catalogue, or an `https` or `http` address.

    Raises:
        DownloadError: if the file cannot be had, or there is no room for it.
    """
    file = _file_of(source)
    target = cache_folder().absolute() / file.in_cache
    folders, addresses = _mirrors()
    attempts: _Attempts = []
    for path in [*(mirror / name for mirror in folders for name in file.in_mirror), target]:
        problem = _problem(path, file.npz)
        if problem is None:
            return path
        if path != target or path.exists():
            attempts.append((str(path), problem))
    if _is_offline():
        raise DownloadError(
            f"{file.title} is not on this machine, and offline mode is on (KERAS_VIT_OFFLINE=1).",
            attempts,
            _advice(file, target),
        )
    name = file.title.rpartition("/")[2]
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(f"Downloading {name}", in_bytes=True, stays=True))
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


def _file_of(source: Entry | str) -> _File:
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
    folder = re.sub(r"[^\w.-]", "_", parts.netloc[:100], flags=re.ASCII).lstrip(".") or "host"
    return _File(source, f"{folder}/{mark}/{safe}", (source,), npz=name.endswith(".npz"))


def _address(text: str) -> str:
    """An address that can be downloaded from."""
    if _scheme(text) == "gs":
        text = _BUCKETS + urllib.parse.quote(text.partition("://")[2])
    expected = f"{printable(repr(text), 300)} is no address to download from"
    if _scheme(text) not in ("https", "http"):
        raise ValueError(f"{expected}; it must start with https://, http:// or gs://.")
    try:
        parts = urllib.parse.urlsplit(text)
        text.encode()
        if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host")
        if parts.username is not None:
            raise ValueError("a name and password in an address are not supported")
    except ValueError as error:
        raise ValueError(f"{expected}: {printable(error, 200)}.") from None
    return text


def _published(url: str) -> Entry | None:
    """The entry that is published at an address; None if none is."""
    plain = urllib.parse.unquote(url)
    name = plain.removeprefix(_BUCKETS).removesuffix(".npz")
    for candidate in (name, name.removeprefix("vit_models/")):
        with contextlib.suppress(ValueError):
            entry = find_entry(candidate)
            if urllib.parse.unquote(entry.url) == plain:
                return entry
    return None


def _fetch_published(entry: Entry) -> pathlib.Path:
    """The file of a published checkpoint, or the same weights from a repository of the Hub.

    Raises:
        DownloadError: if neither can be had; for the first reason, with all that was tried.
    """
    try:
        return fetch(entry)
    except DownloadError as problem:
        error = problem
    attempts = list(error.attempts)
    for repository in repositories(entry.name):
        address = f"{SCHEME}{repository}"
        try:
            path = fetch_from_hub(address, offline=_is_offline())
        except DownloadError as reason:
            attempts += reason.attempts
            continue
        warnings.warn(
            f"{entry.name} is not to be had from where it was published, so the same weights come from {address}.",
            stacklevel=3,
        )
        return path
    other = None if repositories(entry.name) else nearest_with_repository(entry)
    advice = f"\nThe Hugging Face Hub has the weights of a similar checkpoint: {other.name}." if other else ""
    raise DownloadError(error.message, attempts, f"{error.advice}{advice}") from error


def _scheme(source: str) -> str:
    match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", source)
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
    problem = _what_is_wrong(path, npz)
    return f"damaged: {problem}" if problem else None


def _what_is_wrong(path: pathlib.Path, npz: bool) -> str | None:
    """Why a file is obviously not what it should be: a web page, or an `.npz` that lacks its end; None if it may be."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        return "it is empty"
    if is_web_page(head):
        return "it is a web page, not the file"
    if npz and not head.startswith(b"PK\x03\x04"):
        return f"it is no .npz, but starts with {head[:8]!r}"
    return "it is not complete: the end of the .npz is missing" if npz and not zipfile.is_zipfile(path) else None


def _download(file: _File, target: pathlib.Path, addresses: list[str], attempts: _Attempts, bar: ProgressBar) -> None:
    """Tries all addresses; the first file that is right is moved to `target`."""
    mirrors = [published_url(base, name.removesuffix(".npz")) for base in addresses for name in file.in_mirror]
    for url in [*mirrors, *file.urls]:
        for pause in (*PAUSES, None):
            try:
                # Whoever has a mirror knows what is in it; sizes from listings are about the published file.
                return _transfer(url, target, file.npz, None if url in mirrors else file.size, bar)
            except (OSError, ValueError) as error:  # those of the library are
                if isinstance(error, OSError) and error.errno in _FULL:
                    raise DownloadError(
                        f"{file.title} could not be downloaded: {target.parent} has no room for it ({error}). Make "
                        "room, or set KERAS_VIT_HOME to a folder on another disk.",
                        attempts,
                    ) from error
                answer, final = _answer(error)
            if final or pause is None:
                attempts.append((url, answer))
                break
            time.sleep(pause)
    raise DownloadError(f"{file.title} could not be downloaded.", attempts, _advice(file, target))


class _WrongFile(ValueError):
    """An address has another file than expected."""


def _transfer(url: str, target: pathlib.Path, npz: bool, size: tuple[int, int] | None, bar: ProgressBar) -> None:
    """Fetches a file from one address, checks it and moves it to `target`."""
    from pooch import HTTPDownloader, file_hash

    with replacing(target) as temporary:
        watch = _Watch(temporary, size or (0, LARGEST), bar)
        headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
        hooks = {"response": watch.check_response}
        with contextlib.closing(watch):
            HTTPDownloader(watch, _CHUNK, timeout=TIMEOUT, headers=headers, hooks=hooks)(url, str(temporary), None)
        received = temporary.stat().st_size
        if received < watch.total:
            raise ConnectionError(f"the connection ended after {received:,} of {watch.total:,} bytes")
        problem = _what_is_wrong(temporary, npz)
        if size and received < size[0]:
            problem = f"it has {received:,} bytes, expected {size[0]:,} to {size[1]:,}"
        if watch.md5 and (actual := file_hash(str(temporary), "md5")) != watch.md5:
            problem = problem or f"its md5 is {actual}, expected {watch.md5}"
        if problem:
            raise _WrongFile(f"sent a wrong file: {problem}")


class _Watch:
    """What pooch reports the progress of a download to: it ends one that cannot be right before all of it is there."""

    def __init__(self, path: pathlib.Path, size: tuple[int, int], bar: ProgressBar) -> None:
        self.total, self.md5 = 0, None
        self._path, self._size, self._bar, self._response = path, size, bar, None

    def check_response(self, response: Any, **_: Any) -> None:
        """Checks what a server says of the file before it sends it."""
        self._response = response
        if response.status_code >= 300:
            return
        total = int(response.headers.get("Content-Length", 0))
        if total and not self._size[0] <= total <= self._size[1]:
            raise _WrongFile(f"has a file of {total:,} bytes, expected {self._size[0]:,} to {self._size[1]:,}")
        if shutil.disk_usage(self._path.parent).free < total:
            raise OSError(errno.ENOSPC, f"it needs {total:,} bytes")
        # Google's storage has its own header. An ETag is no hash in general and is not taken for one.
        hashes = f"{response.headers.get('x-goog-hash')},md5={response.headers.get('Content-MD5')}"
        md5 = re.search(r"\bmd5=([A-Za-z0-9+/]{22}==)", hashes)
        self.md5 = md5 and base64.b64decode(md5[1]).hex()

    def update(self, _: int) -> None:
        """Another piece is there; the library says how long pieces are at most, the file how much there is."""
        received = self._path.stat().st_size
        if received > self._size[1]:
            raise _WrongFile(f"sent more than {self._size[1]:,} bytes, which is more than the file may have")
        self._bar.update(received, self.total or None)

    def reset(self) -> None:
        """Nothing: the file says how much there is."""

    def close(self) -> None:
        """Ends the connection, which the library leaves open where something fails."""
        if self._response is not None:
            self._response.close()


def _answer(error: Exception) -> tuple[str, bool]:
    """What an address answered, in words, and whether it will not answer otherwise in some seconds."""
    response = getattr(error, "response", None)
    if response is not None:
        answer = printable(f"answered {response.status_code} {response.reason}", 200)
        return answer, response.status_code not in _BUSY
    if isinstance(error, _WrongFile):
        return printable(error, 400), True
    cause: BaseException = error
    while cause.__context__ is not None:  # the libraries pass an error on several times
        cause = cause.__context__
    return f"did not answer: {printable(str(cause) or type(cause).__name__, 300)}", isinstance(error, ValueError)


def _advice(file: _File, target: pathlib.Path) -> str:
    text = f"If you get the file in another way, put it at\n  {target}\nor pass its path as weights."
    if file.in_mirror:
        text += f" KERAS_VIT_MIRROR may name a folder or base address that has {file.in_mirror[0]}."
    return text
