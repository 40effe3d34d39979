"""Checkpoints by name, address or path, to files on this machine.

Where a file is looked for, in this order:

1. a path that exists, or the name of a checkpoint that comes along with the package (`"glyphs"`);
2. `KERAS_VIT_MIRROR`, where it is a folder; it may be a base address as well. A mirror holds `<name>.npz` by the names
   of the catalogue (`imagenet21k/ViT-B_16.npz`), or the bare file name where no two files have the same;
3. the cache: `KERAS_VIT_HOME`, by default `keras_vit` in the user's folder for caches;
4. the address in `KERAS_VIT_MIRROR`, then the published one;
5. a repository of the Hugging Face Hub that has the same weights, where the catalogue knows one (see `hub`).

`KERAS_VIT_OFFLINE=1` leaves out step 4, and takes from step 5 what is on this machine.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import Source, check_type, printable, warn_caller, without_password
from keras_vit._files import locked, replacing, weights_folder
from keras_vit._terminal import ProgressBar
from keras_vit.checkpoints import catalogue
from keras_vit.checkpoints.catalogue import SHIPPED, Entry
from keras_vit.checkpoints.checkpoint import open_checkpoint
from keras_vit.checkpoints.files import ENDINGS, is_keras_file, names_beside, open_file, pair_in, path_of, weights_in
from keras_vit.checkpoints.hub import SCHEME, DownloadError, fetch_from_hub
from keras_vit.checkpoints.keras_files import config_in_file
from keras_vit.checkpoints.stored_array import is_web_page
from keras_vit.models import find_variant

if TYPE_CHECKING:
    from keras_vit.models import ImageModel

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (0.5, 1.0, 2.0)  # seconds before another try, where that may help
_CHUNK = 2**18  # bytes received at a time
_ROUNDING = 0.02  # of the size of a file, by which the size that is listed may be wrong
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of servers that may have another one later
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_BUCKETS = "https://storage.googleapis.com/"


def resolve_source(source: Source) -> Source:
    """Returns a path or an address unchanged, and a name as the full name in the catalogue; opens nothing."""
    # A file has priority over a name, and a variant (its recommended checkpoint) over another name of the catalogue.
    if not isinstance(source, (str, os.PathLike)):
        hint = " To change a model use model.with_config(...)." if hasattr(source, "with_config") else ""
        raise TypeError(f"source must be a name, an address or a path, but {type(source).__name__} was given.{hint}")
    text = os.fspath(source)
    if "://" in text and is_keras_file(text):
        shown = without_password(text)
        raise ValueError(f"{shown} is a Keras file, which can run code. If you trust it, download it first.")
    if "://" in text or text in SHIPPED or os.path.exists(os.path.expanduser(text)):
        return source
    return catalogue.recommended(text).name if is_variant(source) else _entry_called(source).name


def is_variant(source: Any) -> bool:
    """Whether a source is a string that names a variant, does not begin as a path, and is not a file."""
    # Names are compared without punctuation: "~/vit_b16" would be one.
    if not isinstance(source, str) or source.startswith((".", "~", "/")) or os.path.exists(source):
        return False
    try:
        find_variant(source)
    except ValueError:
        return False
    return True


def _entry_called(source: Source) -> Entry:
    """Returns the published checkpoint that a name means; FileNotFoundError for what looks like a path."""
    text, problem = os.fspath(source), ""
    try:
        if isinstance(source, str):
            return catalogue.find_entry(source)
    except ValueError as error:
        ends = pathlib.PurePath(text).suffix in (*ENDINGS, ".h5", ".keras", ".csv")
        if not ends and not text.startswith((".", "~", "/")):
            raise
        problem = f" {error}"
    raise FileNotFoundError(f"There is no file or folder {text}: check the path.{problem}")


def find_checkpoint(source: Entry | Source, beside: Sequence[str] = ()) -> pathlib.Path:
    """Returns the file of a path, a folder, a name or an address, downloaded if it is not on this machine yet."""
    if isinstance(source, Entry):
        return _fetch_published(source, beside)
    check_type("source", source, str | os.PathLike, "the name, address or path of a checkpoint")
    path, text = path_of(source), os.fspath(source)
    if path is not None:
        return weights_in(path)
    if text.lower().startswith(SCHEME):
        return fetch_from_hub(text, offline=_is_offline(), beside=beside)
    if "://" in text:
        return fetch(_published(text))
    if text in SHIPPED:
        return weights_folder() / SHIPPED[text]
    return _fetch_published(_entry_called(source), beside)


def find_recommended(variant: str) -> str:
    """Returns the name of the checkpoint that `pretrained=True` loads, or of a similar one that can be had, fetched."""
    entry = catalogue.recommended(variant)
    try:
        find_checkpoint(entry.name)
        return entry.name
    except DownloadError as refused:
        error = refused
    other = catalogue.nearest_with_repository(entry)
    if other is None:
        raise error
    find_checkpoint(other.name)
    warn_caller(f"{entry.name} is not available, so a similar checkpoint is loaded: {other.name}.")
    return other.name


def is_copy(source: Source, path: pathlib.Path) -> bool:
    """Whether `find_checkpoint` returned a copy from the Hub for a catalogue name, instead of the official `.npz`."""
    if path.suffix != ".npz" and isinstance(source, str) and "://" not in source and not os.path.exists(source):
        with contextlib.suppress(ValueError):
            return bool(catalogue.find_entry(source))
    return False


def fetch(entry: Entry) -> pathlib.Path:
    """Returns the path of a published file in a mirror or in the cache, downloading it if it is not there yet."""
    is_address = not entry.variant
    in_cache = _name_in_cache(entry.urls[0]) if is_address else f"{entry.name}.npz"
    in_mirror = [] if is_address else [in_cache]
    if sum(other.basename == entry.basename for other in catalogue.catalogue().values()) <= 1 and not is_address:
        in_mirror.append(f"{entry.basename}.npz")
    target = cache_folder().absolute() / in_cache
    folder, base = _mirror()
    places = [] if folder is None else [folder / name for name in in_mirror]
    attempts = []  # what was tried, and why it failed
    for path in [*places, target]:
        problem = _problem(path)
        if problem is None:
            return path
        if path != target or path.exists():
            attempts.append((str(path), problem))
    advice = f"If you download the file yourself, put it at\n  {target}\nor pass its path as weights."
    if in_mirror:
        advice += f" Or set KERAS_VIT_MIRROR to a folder or a base address that has {in_cache}."
    if _is_offline():
        problem = "is not on this machine, and offline mode is on (KERAS_VIT_OFFLINE=1)."
        raise DownloadError(f"{entry.name} {problem}", attempts, advice)
    note = f" (for {entry.image_size} pixels; image_size= resizes it)" if entry.image_size else ""
    # Whoever has a mirror knows what is in it; sizes from listings are about the published file.
    sources = [] if base is None else [(catalogue.published_url(base, n.removesuffix(".npz")), None) for n in in_mirror]
    sources += [(url, entry.bytes) for url in entry.urls]
    with (
        ProgressBar(f"Downloading {entry.basename}{note}", in_bytes=True, stays=True) as bar,
        contextlib.ExitStack() as stack,
    ):
        waiting = f"Waiting for another process, which downloads {entry.basename}."
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(target.with_name(f"{target.name}.lock"), lambda: bar.say(waiting)))
        except OSError as error:
            raise DownloadError(
                f"{entry.name} cannot be written to the cache: {error}. Set KERAS_VIT_HOME to a writable folder."
            ) from None
        if _problem(target) is None:  # another process has fetched it
            return target
        unreachable = False
        for url, size in sources:
            failure = _try(url, target, size, bar)
            if failure is None:
                return target
            reason, silent = failure
            unreachable = silent if not attempts else unreachable
            attempts.append((without_password(url), reason))
    raise DownloadError(f"{entry.name} could not be downloaded.", attempts, advice, unreachable)


def _mirror() -> tuple[pathlib.Path | None, str | None]:
    """Returns (folder, base address) of `KERAS_VIT_MIRROR`, of which one or both are None."""
    value = os.environ.get("KERAS_VIT_MIRROR", "").strip()
    if not value:
        return None, None
    if "://" not in value:
        return _expanded(value).absolute(), None
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"KERAS_VIT_MIRROR must be a folder or an http:// or https:// address, but is {value!r}.")
    return None, value.rstrip("/") + "/"


def cache_folder() -> pathlib.Path:
    """Returns the folder of downloads; OSError for `~` without a folder of the user."""
    # `KERAS_VIT_HOME`, or `keras_vit` in `XDG_CACHE_HOME`, `~/.cache` or `LOCALAPPDATA`.
    home = os.environ.get("KERAS_VIT_HOME")
    if home:
        return _expanded(home)
    caches = os.environ.get("XDG_CACHE_HOME") or (sys.platform == "win32" and os.environ.get("LOCALAPPDATA"))
    return _expanded(caches or "~/.cache") / "keras_vit"


def _expanded(folder: str) -> pathlib.Path:
    """Returns a path with the user's folder for `~`; FileNotFoundError, an OSError, where there is none."""
    try:
        return pathlib.Path(folder).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"{folder} is unknown: {error} Set HOME, KERAS_VIT_HOME or KERAS_VIT_MIRROR.") from None


def _name_in_cache(address: str) -> str:
    """A relative path for an address alone, readable, `host/hash/name`; ValueError for what is not an address."""
    parts = urllib.parse.urlsplit(without_password(address))
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    mark = hashlib.sha256(address.encode()).hexdigest()[:32]
    safe = re.sub(r"[^\w.+=-]", "_", name[-100:], flags=re.ASCII).lstrip(".") or "file"
    folder = re.sub(r"[^\w.-]", "_", parts.netloc[:100], flags=re.ASCII).lstrip(".") or "host"
    return f"{folder}/{mark}/{safe}"


def _published(text: str) -> Entry:
    """Returns the entry that is published at an address; if there is none, one that knows the address alone."""
    scheme, _, rest = text.partition("://")
    text = _BUCKETS + urllib.parse.quote(rest) if scheme.lower() == "gs" else text
    host = None
    with contextlib.suppress(ValueError):
        host = text.encode() and urllib.parse.urlsplit(text).hostname
    if scheme.lower() not in ("https", "http", "gs") or not host:
        given = printable(repr(without_password(text)), 300)
        raise ValueError(f"An address must be https://, http:// or gs:// and a host, but {given} was given.")
    plain = urllib.parse.unquote(text)
    name = plain.removeprefix(_BUCKETS).removesuffix(".npz")
    for candidate in (name, name.removeprefix("vit_models/")):
        with contextlib.suppress(ValueError):
            entry = catalogue.find_entry(candidate)
            if urllib.parse.unquote(entry.urls[0]) == plain:
                return entry
    shown = without_password(text)
    return Entry(name=shown, layout=None, variant="", image_size=None, classes=None, dataset="", urls=(text,))


def _fetch_published(entry: Entry, beside: Sequence[str]) -> pathlib.Path:
    """Returns the file of a published checkpoint, or the same weights from the Hub, with a warning."""
    try:
        return fetch(entry)
    except DownloadError as refused:
        error, attempts = refused, list(refused.attempts)
    for repository in catalogue.repositories(entry.name):
        address = f"{SCHEME}{repository}"
        try:
            path = fetch_from_hub(address, offline=_is_offline(), beside=beside)
        except DownloadError as refused:
            attempts += refused.attempts
            continue
        warn_caller(f"{entry.name} is not available, so the same weights come from {address}.")
        return path
    other = catalogue.nearest_with_repository(entry)
    advice = f"\nA similar checkpoint is on the Hugging Face Hub, try {other.name}." if other else ""
    raise DownloadError(error.message, attempts, f"{error.advice}{advice}", error.unreachable)


def _is_offline() -> bool:
    return os.environ.get("KERAS_VIT_OFFLINE", "").strip().lower() not in ("", "0", "false", "no", "off")


def _problem(path: pathlib.Path) -> str | None:
    """Returns why a file cannot be the wanted one (missing, empty, a web page, incomplete or damaged), or None."""
    if not path.is_file():
        return "no such file"
    with path.open("rb") as file:
        head = file.read(512)
    if not head or is_web_page(head):
        return f"damaged: the file is {'a web page' if head else 'empty'}"
    try:
        if path.suffix in ENDINGS:
            open_file(path)
    except ValueError as error:
        return f"damaged: {printable(str(error).replace(str(path), 'the file'), 200)}"
    return None


def _try(url: str, target: pathlib.Path, size: float | None, bar: ProgressBar) -> tuple[str, bool] | None:
    """Downloads `url`, trying again after pauses; where it failed, returns why, and whether nobody answered."""
    for pause in (*PAUSES, None):
        try:
            _transfer(url, target, size, bar)
            return None
        except (OSError, ValueError) as error:  # those of the library are
            if isinstance(error, OSError) and error.errno in _FULL:
                raise DownloadError(
                    f"{without_password(url)} could not be downloaded: {target.parent} has no room ({error}). Make "
                    "room, or set KERAS_VIT_HOME to a folder on another disk."
                ) from None
            response, final = getattr(error, "response", None), isinstance(error, ValueError)
            cause: BaseException = error
            # The libraries pass an error on several times; before them is what failed before this address.
            while cause.__context__ is not None and not isinstance(cause.__context__, DownloadError):
                cause = cause.__context__
            reason = str(error) if final else f"the server did not answer: {str(cause) or type(cause).__name__}"
            unreachable = response is None and not final
            if response is not None:
                reason = f"the server answered {response.status_code} {response.reason}"
                final = response.status_code not in _BUSY
            final |= isinstance(cause, socket.gaierror)  # no network, or no such host: asking again says the same
        if final or pause is None:
            return printable(reason.replace(url, without_password(url)), 400), unreachable
        time.sleep(pause)


def _transfer(url: str, target: pathlib.Path, size: float | None, bar: ProgressBar) -> None:
    """Fetches a file from one address, checks it and moves it to `target`, which is replaced."""
    import requests

    headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
    with replacing(target) as temporary:
        with (
            requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response,
            temporary.open("wb") as file,
        ):
            response.raise_for_status()
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.lower() != "identity":  # a kilobyte may become a gigabyte
                raise ValueError(
                    f"the server sent a file compressed as {printable(packed, 20)}, which was not requested. Download "
                    "the file with a browser and pass its path"
                )
            received, total = 0, int(response.headers.get("Content-Length", 0)) or None
            for chunk in response.iter_content(_CHUNK):
                received += file.write(chunk)
                bar.update(received, total)
        problem = _problem(temporary)
        if problem is None and size is not None and abs(received - size) > _ROUNDING * size:
            problem = f"the file has {received:,} bytes, not about {size:,.0f}"
        if problem:
            raise ValueError(f"the server sent a wrong file: {problem}")


def class_names(source: "ImageModel | str | os.PathLike[str]") -> list[str] | None:
    """Returns the names of a model's outputs in order, without downloading files or reading weights.

    They come from the model, the file or a `classes.txt` beside it. `source` is a model, `"glyphs"`, or the path of a
    file or folder for `load`. None for sources without names, and for variants, published checkpoints and addresses.
    Raises TypeError, ValueError or OSError for a source of another kind, damaged or missing.

    Examples:
        >>> keras_vit.class_names("glyphs")[:3]
        ['Oo0', '1', '2']
    """
    from keras_vit.models import ImageModel

    if isinstance(source, ImageModel):
        return None if source.config.class_names is None else list(source.config.class_names)
    text = os.fspath(resolve_source(source))
    path = find_checkpoint(text) if text in SHIPPED else pathlib.Path(os.path.expanduser(text))
    if not path.exists():
        return None
    file, head = pair_in(path)
    config: Any = config_in_file(path) if is_keras_file(path) else open_checkpoint(file, head=head).config
    if config is not None and config.class_names is not None:
        return list(config.class_names)
    names = names_beside(path)
    return None if names is None or (config and getattr(config, "classes", None) != len(names)) else list(names)
