"""Files in repositories of the Hugging Face Hub, fetched by `huggingface_hub`.

An address is `hf://owner/name`, optionally with `@revision` (a branch, tag or commit; percent-encoded where it has a
slash) and `/file` or `/folder`. The library brings its cache, tokens, proxies, resumption, and its settings: `HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT` (a mirror), `HF_HUB_OFFLINE`. Only the files that are needed are fetched, and what was fetched
is compared with the hash that the Hub knows. Where the Hub gives no answer, what is in the cache is taken, with a
warning.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import re
import urllib.parse
import warnings
from collections.abc import Iterator
from typing import TypeGuard

from keras_vit._arguments import printable
from keras_vit.checkpoints.files import INDEX_ENDING, LONGEST, SIDECARS, WEIGHT_NAMES, choose_weights, parse_json

SCHEME = "hf://"
_PART = re.compile(r"[\w-][\w.-]{0,95}", re.ASCII)  # of a repository's name
_PULL_REQUEST = re.compile(r"refs/(?:pr|convert)/[\w.-]+")  # revisions with slashes that are written without encoding
_KERAS_FILES = (".keras", ".h5")
_NAMES_LISTED = 8  # names of files in a message


class DownloadError(OSError):
    """A file could not be had. The message says what was tried, what the answers were, and what can be done.

    Attributes:
        attempts: Addresses and files that were tried, each with its answer.
        message: The first line.
        advice: The last ones; empty where there is nothing to say.
    """

    def __init__(self, message: str, attempts: list[tuple[str, str]] | None = None, advice: str = "") -> None:
        self.message, self.advice = message, advice
        self.attempts = attempts or []
        listing = [f"  {where}\n    {answer}" for where, answer in self.attempts]
        super().__init__("\n".join([message, *listing, *([advice] if advice else [])]))


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """What an address says: the repository, a revision, a file or folder in it; None for what it leaves out."""

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

    What lies beside it and describes it (`SIDECARS`) is fetched as well, and the shards of a file that is split.

    Args:
        source: An address, `hf://owner/name[@revision][/file or /folder]`. Without a file, the weights are those that
            `choose_weights` chooses in the folder or the repository.
        offline: Whether to do without the network, as with the library's `HF_HUB_OFFLINE`.

    Returns:
        Path of the file in the cache. It may be a link; what lies beside it is beside this path.

    Raises:
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
    import huggingface_hub as hub

    if offline or hub.is_offline_mode():
        return _cached(address, "offline mode is on (HF_HUB_OFFLINE=1, KERAS_VIT_OFFLINE=1 or offline=True)")
    try:
        info = hub.HfApi(library_name="keras_vit").model_info(address.repository, revision=address.revision)
    except Exception as error:
        reason = _reason(address, error, "read")
        path = _cached(address, reason, error)
        warnings.warn(f"{address}: {reason}. The copy in the cache is used, which may be older.", stacklevel=2)
        return path
    names = [sibling.rfilename for sibling in info.siblings or ()]
    weights = _weights(address, names)
    folder = weights[: weights.rfind("/") + 1]
    # What describes the weights comes first: after a kill, weights in the cache have beside them what they need.
    sidecars = [f"{folder}{name}" for name in SIDECARS.values() if f"{folder}{name}" in names]
    paths = [_fetch(address, name, str(info.sha)) for name in sidecars if name != weights]
    path = _fetch(address, weights, str(info.sha))
    for shard in _shards(path, address):
        if f"{folder}{shard}" not in names:
            raise _failed(address, f"the repository has no file {folder}{shard}, which {weights} names")
        paths.append(_fetch(address, f"{folder}{shard}", str(info.sha)))
    if any(beside.parent != path.parent for beside in paths):
        raise _failed(address, "it changed while it was fetched. Try again")
    return path


def _weights(address: HubAddress, names: list[str]) -> str:
    """The name of the file with weights among those of the repository, or of its folder that the address names."""
    if address.file in names:
        return address.file
    folder = f"{address.file}/" if address.file else ""
    inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    if folder and not inside:
        raise _failed(address, f"the repository has no such file or folder. It has: {_listed(names)}")
    try:
        weights = choose_weights(inside, str(address))
    except ValueError as error:
        raise ValueError(f"{error} As an address: {address}/FILE.") from None
    if weights is None:
        keras_files = [name for name in inside if name.endswith(_KERAS_FILES)]
        advice = f". If you trust it, keras.saving.load_model({str(address)!r}) may load it" if keras_files else ""
        raise _failed(
            address,
            f"it has no weights that can be read; {', '.join(WEIGHT_NAMES)} were looked for. It has: "
            f"{_listed(inside)}{advice}",
        )
    return f"{folder}{weights}"


def _fetch(address: HubAddress, name: str, commit: str | None) -> pathlib.Path:
    """A file of a repository, from the cache or from the Hub. What comes from there is compared with its hash."""
    import huggingface_hub as hub

    cached = hub.try_to_load_from_cache(address.repository, name, revision=commit)
    if isinstance(cached, str):
        return pathlib.Path(cached)
    with errors_named(address):
        path = pathlib.Path(
            hub.hf_hub_download(address.repository, name, revision=address.revision, library_name="keras_vit")
        )
        blob = path.resolve()
        etag = blob.name
        if not path.is_symlink():  # where the cache cannot have links, the file does not say its hash
            url = hub.hf_hub_url(address.repository, name, revision=address.revision)
            etag = hub.get_hf_file_metadata(url).etag or ""
    actual = _hash(blob, etag)
    if actual is not None and actual != etag:
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise _failed(
            address, f"{name} arrived damaged: its hash is {actual}, expected {etag}. It was removed; try again"
        )
    return path


def _hash(path: pathlib.Path, etag: str) -> str | None:
    """The hash of a file in the form of its ETag; None where the ETag is no hash.

    The Hub's ETags are the SHA-256 of large files, and of small ones what git names them by.
    """
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", etag):
        return None
    digest = hashlib.sha256() if len(etag) == 64 else hashlib.sha1(usedforsecurity=False)
    if len(etag) == 40:
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def _shards(path: pathlib.Path, address: HubAddress) -> list[str]:
    """The names of the files that an index lists, each once; none for a file that is no index."""
    if not path.name.endswith(INDEX_ENDING):
        return []
    try:
        with path.open("rb") as file:
            shards = {*parse_json(file.read(LONGEST), path.name)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _failed(address, f"{path.name} is no index of shards") from None
    if not all(isinstance(shard, str) and "/" not in shard and shard not in ("", ".", "..") for shard in shards):
        raise _failed(address, f"{path.name} names shards that are no files beside it")
    return sorted(shards)


def _cached(address: HubAddress, reason: str, error: Exception | None = None) -> pathlib.Path:
    """The file of weights as far as the library's cache has it.

    Args:
        address: Where it comes from.
        reason: Why the Hub was not asked, or did not answer; for the message.
        error: What the Hub answered.

    Raises:
        DownloadError: if the cache does not have all of it.
    """
    from huggingface_hub import constants, snapshot_download

    missing = f"it is not in the cache, {constants.HF_HUB_CACHE}"
    try:
        snapshot = snapshot_download(address.repository, revision=address.revision, local_files_only=True)
    except Exception as problem:  # the cache has not all files of the repository, which is as it should be, or none
        snapshot = getattr(problem, "snapshot_path", None)
    if snapshot is not None:
        folder = pathlib.Path(snapshot)
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        with contextlib.suppress(DownloadError):
            path = folder / _weights(address, names)
            absent = [shard for shard in _shards(path, address) if not (path.parent / shard).is_file()]
            if not absent:
                return path
            missing = f"its shard {absent[0]} is not in the cache, {constants.HF_HUB_CACHE}"
    raise _failed(address, f"{reason}, and {missing}") from error


@contextlib.contextmanager
def errors_named(address: HubAddress, task: str = "read") -> Iterator[None]:
    """Says of every error of the library which repository it is about, and what to do.

    Args:
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
        raise _failed(address, _reason(address, error, task), task) from error


def _reason(address: HubAddress, error: Exception, task: str) -> str:
    """What an error of the library means for somebody who wants a model."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    token = f"give a token that may {task} it: `hf auth login`, or HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "not in the cache" is what follows from it
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return (
            f"it is gated: its owners want to be asked. Accept their terms at {endpoint}/{address.repository} in a "
            f"browser, and {token}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{endpoint} has no such repository, or a private one ({status}). If it is private, {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {printable(address.revision, 100)!r}"
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        return "the repository has no such file"
    if status in (401, 403):
        return f"{endpoint} refuses it ({status}). If you have access, {token}"
    if status == 429:
        return f"{endpoint} was asked too often (429). Wait some minutes, or give a token, which may ask more often"
    if status is not None and status >= 500:
        return f"{endpoint} has a fault of its own or is overloaded ({status}). Try again later"
    if isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith(("httpx", "httpcore")):
        return f"{endpoint} cannot be reached ({_first_line(error)})"
    return _first_line(error)


def _failed(address: HubAddress, reason: str, task: str = "read") -> DownloadError:
    error = DownloadError(f"{address} could not be {'had' if task == 'read' else 'written'}: {reason}.")
    error.attempts = [(str(address), reason)]
    return error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(" ".join(lines[:2]) or type(error).__name__, 300).rstrip(".")


def _listed(names: list[str]) -> str:
    listed = ", ".join(printable(name, 80) for name in sorted(names)[:_NAMES_LISTED])
    return (listed or "nothing") + (" ..." if len(names) > _NAMES_LISTED else "")
