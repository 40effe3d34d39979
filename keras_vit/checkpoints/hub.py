"""Files in repositories of the Hugging Face Hub, fetched by `huggingface_hub`.

An address is `hf://owner/name`, optionally with `@revision` (a branch, tag or commit; percent-encoded where it has a
slash) and `/file` or `/folder`. The library brings its cache, tokens, proxies, resumption, error messages, and its
settings: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` (a mirror), `HF_HUB_OFFLINE`. Only the files that are needed are fetched,
and what was fetched is compared with the hash that the Hub knows. Where the Hub gives no answer, what is in the cache
is taken, with a warning.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import re
import urllib.parse
import warnings
from collections.abc import Iterator, Sequence

from keras_vit._arguments import printable, warn_caller
from keras_vit.checkpoints.files import SIDECARS, WEIGHT_NAMES, choose_weights, shards_of

SCHEME = "hf://"
_ADDRESS = re.compile(
    r"hf://(?P<repository>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[\w.-]+|[^/]+))?(?:/(?P<file>.+))?",
    re.ASCII | re.IGNORECASE,
)
# Repositories whose weights are not free for commerce (CC-BY-NC-4.0); Depth Anything's Small is Apache-2.0.
_NONCOMMERCIAL = re.compile(
    r"depth-anything/Depth-Anything-V2-(Metric-\w+-)?(Base|Large|Giant)(-hf)?", re.ASCII | re.IGNORECASE
)
_NAMES_LISTED = 8  # names of files in a message


class DownloadError(OSError):
    """A file could not be had.

    Attributes:
        message: What happened.
        attempts: What was tried: each path or address, and why it failed.
        advice: What can be done.
        unreachable: Whether the first attempt was an address that did not answer, as without network.
    """

    def __init__(
        self,
        message: str,
        attempts: list[tuple[str, str]] | None = None,
        advice: str = "",
        unreachable: bool = False,
    ) -> None:
        """Makes the message of an outline, the attempts (where, and what was said there) and advice."""
        self.message, self.advice, self.unreachable = message, advice, unreachable
        self.attempts = attempts or []
        listing = [f"  {where}\n    {answer}" for where, answer in self.attempts]
        super().__init__("\n".join([message, *listing, *([advice] if advice else [])]))


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """What an address says: the repository, a revision, a file or folder in it."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{urllib.parse.quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def parse_hub_address(text: str) -> HubAddress:
    """The parts of an address of the Hub: repository, revision and file; ValueError if it is none."""
    match = _ADDRESS.fullmatch(text)
    repository, revision, file = match.groups() if match else ("..", None, None)
    revision = revision and urllib.parse.unquote(revision)
    parts = (file or "file").split("/")
    outside = ".." in f"{repository} {revision}" or f"{revision}".startswith("/") or {"", ".", ".."}.intersection(parts)
    if outside or not f"{revision}{file}".isprintable() or "\\" in f"{file}":
        given = printable(repr(text), 200)
        raise ValueError(f"{given} is no address of the Hub, expected {SCHEME}owner/name[@revision][/file].")
    return HubAddress(repository, revision, file)


def fetch_from_hub(source: str, offline: bool = False, beside: Sequence[str] = ()) -> pathlib.Path:
    """The file of a model's weights in a repository of the Hub, in the library's cache.

    What lies beside it and describes it (`SIDECARS`) is fetched as well, and the shards of a file that is split. The
    path may be a link; what lies beside the file is beside it.

    Args:
        source: An address, `hf://owner/name[@revision][/file or /folder]`. Without a file, the weights are those that
            `choose_weights` chooses in the folder or the repository.
        offline: Whether to do without the network, as with the library's `HF_HUB_OFFLINE`.
        beside: The names of more files that are fetched where the repository has them, such as a tokenizer's.

    Raises:
        ValueError: if the address is none, or the repository has several files of weights and no file is named.
        DownloadError: if the repository or the file cannot be had; the message says why and what to do.
    """
    address = parse_hub_address(source)
    if _NONCOMMERCIAL.fullmatch(address.repository):
        warn_caller(f"The weights in {address.repository} are CC-BY-NC-4.0: not free for commerce.")
    import huggingface_hub as hub

    if offline or hub.is_offline_mode():
        return _cached(address, "offline mode is on (HF_HUB_OFFLINE=1, KERAS_VIT_OFFLINE=1 or offline=True)")
    try:
        info = hub.HfApi(library_name="keras_vit").model_info(address.repository, revision=address.revision)
    except Exception as error:
        path = _cached(address, _reason(error), error)
        warnings.warn(f"{address}: {_reason(error)}. The copy in the cache is used, which may be older.", stacklevel=2)
        return path
    names = [sibling.rfilename for sibling in info.siblings or ()]
    weights = _weights(address, names)
    folder = weights[: weights.rfind("/") + 1]
    # What describes the weights comes first: after a kill, weights in the cache have beside them what they need.
    for name in [f"{folder}{name}" for name in (*SIDECARS.values(), *beside) if f"{folder}{name}" in names]:
        _fetch(address, name, info.sha)
    path = _fetch(address, weights, info.sha)
    for shard in _shards(path, address):
        if _fetch(address, f"{folder}{shard}", info.sha).parent != path.parent:
            raise _failed(address, "it changed while it was fetched. Try again")
    return path


def _weights(address: HubAddress, names: list[str]) -> str:
    """The name of the file with weights among those of the repository, or of its folder that the address names.

    Raises DownloadError if there is none, ValueError if there are several.
    """
    if address.file in names:
        return address.file
    folder = f"{address.file}/" if address.file else ""
    inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    try:
        weights = choose_weights(inside, str(address))
    except ValueError as error:
        raise ValueError(f"{error} As an address: {address}/FILE.") from None
    if weights is None:
        listed = [printable(name, 80) for name in sorted(inside or names)]
        listing = ", ".join(listed[:_NAMES_LISTED]) + (" ..." if len(listed) > _NAMES_LISTED else "")
        what = f"weights that can be read, such as {', '.join(WEIGHT_NAMES)}" if inside else "such file or folder"
        raise _failed(address, f"the repository has no {what}. It has: {listing or 'nothing'}")
    return f"{folder}{weights}"


def _fetch(address: HubAddress, name: str, commit: str | None) -> pathlib.Path:
    """A file of a repository, from the cache or from the Hub. What comes from there is compared with its hash.

    Raises DownloadError if it cannot be fetched, or arrives damaged; then it is removed.
    """
    import huggingface_hub as hub

    # A mirror may name no commit.
    cached = hub.try_to_load_from_cache(address.repository, name, revision=commit) if commit else None
    if isinstance(cached, str):
        return pathlib.Path(cached)
    with errors_named(address):
        file = hub.hf_hub_download(address.repository, name, revision=address.revision, library_name="keras_vit")
    path, blob = pathlib.Path(file), pathlib.Path(file).resolve()
    # The library calls a file by its ETag: the SHA-256 of large files, and of small ones what git names them by.
    digest = {64: hashlib.sha256(), 40: hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False)}
    if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        with blob.open("rb") as opened:
            actual = hashlib.file_digest(opened, lambda: digest[len(blob.name)]).hexdigest()
        if actual != blob.name:
            path.unlink(missing_ok=True)
            blob.unlink(missing_ok=True)
            problem = f"its hash is {actual}, expected {blob.name}. It was removed; try again"
            raise _failed(address, f"{name} arrived damaged: {problem}")
    return path


def _shards(path: pathlib.Path, address: HubAddress) -> list[str]:
    """The names of the files that an index lists, each once; none for a file that is no index.

    Raises DownloadError if the index is damaged.
    """
    try:
        return sorted(set(shards_of(path).values()))
    except ValueError as error:
        raise _failed(address, str(error)) from None


def _cached(address: HubAddress, reason: str, error: Exception | None = None) -> pathlib.Path:
    """The file of weights in the library's cache; `reason` says why the Hub was of no use.

    Raises DownloadError, with that reason, if the cache has not all of it.
    """
    from huggingface_hub import constants, snapshot_download

    missing = "it"
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
            missing = f"its shard {absent[0]}"
    raise _failed(address, f"{reason}, and {missing} is not in the cache, {constants.HF_HUB_CACHE}") from error


@contextlib.contextmanager
def errors_named(address: HubAddress, verb: str = "had") -> Iterator[None]:
    """Says of every error of the library which repository could not be `"had"` or `"written"`: a DownloadError."""
    try:
        yield
    except (DownloadError, MemoryError):
        raise
    except Exception as error:
        raise _failed(address, _reason(error), verb) from error


def _reason(error: BaseException) -> str:
    """What the library says, on one line. "Not in the cache" is what follows from another error."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = printable(" ".join(lines[:4]) or type(error).__name__, 400).rstrip(".")
    return words if getattr(error, "response", None) is not None else f"{constants.ENDPOINT} gave no answer ({words})"


def _failed(address: HubAddress, reason: str, verb: str = "had") -> DownloadError:
    error = DownloadError(f"{address} could not be {verb}: {reason}.")
    error.attempts = [(str(address), reason)]
    return error
