"""Files in repositories of the Hugging Face Hub, fetched by `huggingface_hub`.

An address is `hf://owner/name`, optionally with `@revision` (a branch, tag or commit; percent-encoded where it has a
slash) and `/file`. The library brings its cache, tokens, proxies, resumption, and its settings: `HF_HOME`, `HF_TOKEN`,
`HF_ENDPOINT` (a mirror), `HF_HUB_OFFLINE`. Only the files that are needed are fetched, and what was fetched is compared
with the hash that the Hub knows.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from types import ModuleType
from typing import IO, TypeGuard

from keras_vit._text import printable
from keras_vit.checkpoints.download_error import DownloadError
from keras_vit.checkpoints.folder import INDEX_ENDING, SIDECAR_NAMES, WEIGHT_NAMES, choose_weights

SCHEME = "hf://"
_PART = re.compile(r"[\w-][\w.-]{0,95}", re.ASCII)  # of a repository's name
_PULL_REQUEST = re.compile(r"refs/(?:pr|convert)/[\w.-]+")  # revisions with slashes that are written without encoding
_KERAS_FILES = (".keras", ".h5")
_LONGEST_INDEX = 2**23  # bytes
_SHOWN = 8  # names of files in a message


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """What an address says: the repository, a revision, a file in it; None for what it leaves out."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{urllib.parse.quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def is_hub_address(source: object) -> TypeGuard[str]:
    """Whether a source is an address of the Hub."""
    return isinstance(source, str) and source[: len(SCHEME)].lower() == SCHEME


def parse_hub_address(text: str) -> HubAddress:
    """What an address of the Hub says.

    Raises:
        ValueError: if it is none.
    """
    expected = f"{printable(repr(text), 200)} is no address of the Hub, expected {SCHEME}owner/name[@revision][/file]"
    if not is_hub_address(text):
        raise ValueError(f"{expected}.")
    owner, _, rest = text[len(SCHEME) :].partition("/")
    name = re.split("[@/]", rest, maxsplit=1)[0]
    rest = rest[len(name) :]
    for part in (owner, name):
        if not _PART.fullmatch(part) or ".." in part:
            raise ValueError(f"{expected}: {printable(repr(part), 100)} is no name of an owner or a model.")
    revision = None
    if rest.startswith("@"):
        pull_request = _PULL_REQUEST.match(rest, 1)
        revision = pull_request[0] if pull_request else rest[1:].partition("/")[0]
        rest = rest[1 + len(revision) :]
        revision = urllib.parse.unquote(revision)
        if not revision or ".." in revision or not revision.isprintable() or revision.startswith("/"):
            raise ValueError(f"{expected}: {printable(repr(revision), 100)} is no revision.")
    file = rest.removeprefix("/") or None
    if rest.startswith("/") and not file:
        raise ValueError(f"{expected}: there is no file after the last slash.")
    if file is not None and (not file.isprintable() or "\\" in file or {"", ".", ".."} & {*file.split("/")}):
        raise ValueError(f"{expected}: {printable(repr(file), 100)} is no path in a repository.")
    return HubAddress(f"{owner}/{name}", revision, file)


def fetch_from_hub(source: str, offline: bool = False) -> pathlib.Path:
    """The file of a model's weights in a repository of the Hub, in the library's cache.

    What lies beside it and describes it (`SIDECAR_NAMES`) is fetched as well, and the parts of a file that is split.

    Args:
        source: An address, `hf://owner/name[@revision][/file]`. Without a file, the weights are those that
            `choose_weights` chooses.
        offline: Whether to do without the network, as with the library's `HF_HUB_OFFLINE`.

    Returns:
        Path of the file in the cache. It may be a link; what lies beside it is beside this path.

    Raises:
        ImportError: if `huggingface_hub` is not installed.
        ValueError: if the address is none, or names a file of Keras, or the repository has several files of weights
            and no file is named.
        DownloadError: if the repository or the file cannot be had; the message says why and what to do.
    """
    address = parse_hub_address(source)
    if address.file is not None and address.file.endswith(_KERAS_FILES):
        raise ValueError(
            f"{address} is a file of Keras, which is not made for files from strangers. If you trust it, load it with "
            f"keras.saving.load_model, or download it with huggingface_hub and pass the path."
        )
    hub = hub_library()
    if offline or hub.is_offline_mode():
        return _cached(hub, address, "offline mode is on (HF_HUB_OFFLINE=1, KERAS_VIT_OFFLINE=1 or offline=True)")
    unreachable = ""
    with errors_named(hub, address):
        try:
            info = hub.HfApi(library_name="keras_vit").model_info(address.repository, revision=address.revision)
        except Exception as error:
            if not _is_unreachable(hub, error):
                raise
            unreachable = f"{hub.constants.ENDPOINT} cannot be reached ({printable(_first_line(error), 300)})"
    if unreachable:
        return _cached(hub, address, unreachable)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    weights = _weights(address, names)
    folder = weights.rpartition("/")[0]
    # What describes the weights comes first: after a kill, weights in the cache have beside them what they need.
    sidecars = [f"{folder}/{name}".lstrip("/") for name in SIDECAR_NAMES]
    paths = [_fetch(hub, address, name, info.sha) for name in sidecars if name in names and name != weights]
    path = _fetch(hub, address, weights, info.sha)
    if weights.endswith(INDEX_ENDING):
        parts = [f"{folder}/{part}".lstrip("/") for part in _parts(path, address)]
        paths += [_fetch(hub, address, part, info.sha) for part in parts]
    if any(beside.parent != path.parent for beside in paths):
        raise _failed(address, "it changed while it was fetched. Try again")
    return path


def hub_library() -> ModuleType:
    """The library `huggingface_hub`.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise ImportError(
            'The Hugging Face Hub needs huggingface_hub, which is not installed: pip install "keras-vit[hub]"',
            name="huggingface_hub",
        ) from None
    return huggingface_hub


def _weights(address: HubAddress, names: list[str]) -> str:
    """The name of the file with weights."""
    if address.file is not None:
        if address.file not in names:
            raise _failed(address, f"the repository has no such file. It has: {_listed(names)}")
        return address.file
    try:
        weights = choose_weights(names, str(address))
    except ValueError as error:
        raise ValueError(f"{error} As an address: {address}/FILE.") from None
    if weights is None:
        keras_files = [name for name in names if name.endswith(_KERAS_FILES)]
        advice = f". If you trust it, keras.saving.load_model({str(address)!r}) may load it" if keras_files else ""
        raise _failed(
            address,
            f"it has no weights that can be read; {', '.join(WEIGHT_NAMES)} were looked for. It has: "
            f"{_listed(names)}{advice}",
        )
    return weights


def _fetch(hub: ModuleType, address: HubAddress, name: str, commit: str) -> pathlib.Path:
    """A file of a repository, from the cache or from the Hub. What comes from there is compared with its hash."""
    cached = hub.try_to_load_from_cache(address.repository, name, revision=commit)
    if isinstance(cached, str):
        return pathlib.Path(cached)
    with errors_named(hub, address):
        path = pathlib.Path(
            hub.hf_hub_download(address.repository, name, revision=address.revision, library_name="keras_vit")
        )
        blob = path.resolve()
        etag = blob.name
        if not path.is_symlink():  # where the cache cannot have links, the file does not say its hash
            url = hub.hf_hub_url(address.repository, name, revision=address.revision)
            etag = hub.get_hf_file_metadata(url).etag or ""
    with blob.open("rb") as file:
        actual = _hash(file, blob.stat().st_size, etag)
    if actual is not None and actual != etag:
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise _failed(
            address, f"{name} arrived damaged: its hash is {actual}, expected {etag}. It was removed; try again"
        )
    return path


def _hash(file: IO[bytes], size: int, etag: str) -> str | None:
    """The hash of a file in the form of its ETag; None where the ETag is no hash.

    The Hub's ETags are the SHA-256 of large files, and of small ones what git names them by.
    """
    if re.fullmatch("[0-9a-f]{64}", etag):
        return hashlib.file_digest(file, "sha256").hexdigest()
    if re.fullmatch("[0-9a-f]{40}", etag):
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while piece := file.read(2**20):
            digest.update(piece)
        return digest.hexdigest()
    return None


def _parts(index: pathlib.Path, address: HubAddress) -> list[str]:
    """The names of the files that an index lists, each once."""
    try:
        with index.open("rb") as file:
            parts = {*json.loads(file.read(_LONGEST_INDEX))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _failed(address, f"{index.name} is no index of parts") from None
    if not all(isinstance(part, str) and "/" not in part and part not in ("", ".", "..") for part in parts):
        raise _failed(address, f"{index.name} names parts that are no files beside it")
    return sorted(parts)


def _cached(hub: ModuleType, address: HubAddress, reason: str) -> pathlib.Path:
    """The file of weights as far as the library's cache has it."""
    try:
        snapshot = hub.snapshot_download(address.repository, revision=address.revision, local_files_only=True)
    except Exception as error:  # the cache has not all files of the repository, which is as it should be, or none
        snapshot = getattr(error, "snapshot_path", None)
    names: list[str] = []
    if snapshot is not None:
        folder = pathlib.Path(snapshot)
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    weights = address.file if address.file in names else None
    if address.file is None:
        weights = choose_weights(names, str(address))
    if weights is not None:
        path = folder / weights
        parts = _parts(path, address) if weights.endswith(INDEX_ENDING) else []
        if all((path.parent / part).is_file() for part in parts):
            return path
    raise _failed(address, f"it is not in the cache, {hub.constants.HF_HUB_CACHE}, and {reason}")


@contextlib.contextmanager
def errors_named(hub: ModuleType, address: HubAddress, task: str = "read") -> Iterator[None]:
    """Says of every error of the library which repository it is about, and what to do.

    Args:
        hub: The library.
        address: The repository.
        task: What is done to it, `"read"` or `"write"`.

    Raises:
        DownloadError: instead of the library's errors; an OSError.
    """
    try:
        yield
    except (DownloadError, MemoryError):
        raise
    except Exception as error:
        raise _failed(address, _reason(hub, address, error, task), task) from error


def _reason(hub: ModuleType, address: HubAddress, error: Exception, task: str) -> str:
    """What an error of the library means for somebody who wants a model."""
    errors = hub.errors
    endpoint = hub.constants.ENDPOINT
    token = f"give a token that may {task} it: `hf auth login`, or HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return (
            f"it is gated: its owners want to be asked. Accept their terms at {endpoint}/{address.repository} in a "
            f"browser, and {token}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{endpoint} has no such repository, or a private one. If it is private, {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {printable(address.revision, 100)!r}"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return "the repository has no such file"
    if status in (401, 403):
        return f"{endpoint} refuses it ({status}). If you have access, {token}"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if _is_unreachable(hub, cause):
        return f"{endpoint} cannot be reached ({_first_line(cause)})"
    return _first_line(cause)


def _is_unreachable(hub: ModuleType, error: BaseException) -> bool:
    """Whether an error says that the Hub is down, busy or not to be reached, rather than that it has no such thing."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 429) or status >= 500
    return type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore")) or isinstance(
        error, (ConnectionError, TimeoutError)
    )


def _failed(address: HubAddress, reason: str, task: str = "read") -> DownloadError:
    verb = {"read": "had", "write": "written"}[task]
    error = DownloadError(f"{address} could not be {verb}: {reason}.")
    error.attempts = [(str(address), reason)]
    return error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(" ".join(lines[:2]) or type(error).__name__, 300).rstrip(".")


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name, 80) for name in sorted(names)[:_SHOWN])
    return (shown or "nothing") + (" ..." if len(names) > _SHOWN else "")
