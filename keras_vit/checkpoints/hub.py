"""Models in repositories of the Hugging Face Hub: fetched and published, by `huggingface_hub`.

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
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit import models
from keras_vit._arguments import check_type, listing, printable, warn_caller
from keras_vit._files import write_text
from keras_vit.checkpoints.checkpoint import LAYOUTS, PUBLISHED, note_of
from keras_vit.checkpoints.files import CLASSES, ENDINGS, NOT_WEIGHTS, SIDECARS, WEIGHT_NAMES, choose_weights, shards_of
from keras_vit.checkpoints.writing import to_checkpoint
from keras_vit.models import ModelConfig, variant_of

if TYPE_CHECKING:  # their files import Keras
    from keras_vit.models import BiT, VisionTransformer

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
CARD = "README.md"
_CLASSES_LISTED = 20  # class names in a card


class DownloadError(OSError):
    """Raised when a file could not be downloaded.

    Attributes:
        message: A sentence that says what failed.
        attempts: List of pairs of a path or address, and why it failed.
        advice: What to do next.
        unreachable: Whether the first address did not answer, for example without a network.
    """

    def __init__(
        self, message: str, attempts: Sequence[tuple[str, str]] = (), advice: str = "", unreachable: bool = False
    ) -> None:
        self.message, self.attempts, self.advice, self.unreachable = message, [*attempts], advice, unreachable
        paragraphs = [message, *(f"  {where}\n    {answer}" for where, answer in self.attempts)]
        super().__init__("\n".join([*paragraphs, advice] if advice else paragraphs))


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """An address of the Hub: the repository, a revision, a file or folder in it. `str` writes it as `hf://...`."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{urllib.parse.quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def parse_hub_address(text: str) -> HubAddress:
    """Returns the repository, the revision (decoded) and the file of an address of the Hub."""
    match = _ADDRESS.fullmatch(text)
    if match:
        repository, revision, file = match["repository"], urllib.parse.unquote(match["revision"] or ""), match["file"]
        folders = (file or "file").split("/")
        is_inside = ".." not in f"{repository} {revision}" and not {"", ".", ".."}.intersection(folders)
        if is_inside and f"{revision}{file}".isprintable() and revision[:1] != "/" and "\\" not in folders[-1]:
            return HubAddress(repository, revision or None, file)
    given = printable(repr(text), 200)
    raise ValueError(f"An address of the Hub must be {SCHEME}owner/name[@revision][/file], but {given} was given.")


def fetch_from_hub(source: str, offline: bool = False, beside: Sequence[str] = ()) -> pathlib.Path:
    """Returns the path of a model's weights in the library's cache, fetched from a repository of the Hub."""
    address = parse_hub_address(source)
    if _NONCOMMERCIAL.fullmatch(address.repository):
        warn_caller(f"The license of {address.repository} is CC-BY-NC-4.0, which forbids commercial use.")
    import huggingface_hub as hub

    if offline or hub.is_offline_mode():
        return _cached(address, "offline mode is on (HF_HUB_OFFLINE=1, KERAS_VIT_OFFLINE=1 or offline=True)")
    try:
        info = hub.HfApi(library_name="keras_vit").model_info(address.repository, revision=address.revision)
    except Exception as error:
        path = _cached(address, _reason(error))
        warn_caller(f"{address}: {_reason(error)}. The cached copy is used, which may be older.")
        return path
    names = [sibling.rfilename for sibling in info.siblings or ()]
    weights = _weights(address, names)
    folder = weights[: weights.rfind("/") + 1]
    # What describes the weights comes first: after a kill, weights in the cache have beside them what they need.
    for name in [f"{folder}{name}" for name in (*SIDECARS.values(), CLASSES, *beside) if f"{folder}{name}" in names]:
        _fetch(address, name, info.sha)
    path = _fetch(address, weights, info.sha)
    for shard in _shards(path, address):
        if _fetch(address, f"{folder}{shard}", info.sha).parent != path.parent:
            raise _failed(address, "the repository changed during the download. Try again")
    return path


def _weights(address: HubAddress, names: list[str]) -> str:
    """Returns the file that an address means among `names`, all files of the repository."""
    if address.file in names:
        return address.file
    folder = f"{address.file}/" if address.file else ""
    inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    try:
        weights = choose_weights(inside, str(address))
    except ValueError as error:
        raise ValueError(f"{error} Its address is {address}/FILE.") from None
    if weights is None:
        missing = f"no weights such as {', '.join(WEIGHT_NAMES)}" if inside or not folder else f"no {address.file}"
        listed = listing(sorted(inside or names), _NAMES_LISTED) or "none"
        raise _failed(address, f"the repository has {missing}. Its files are: {listed}")
    return f"{folder}{weights}"


def _fetch(address: HubAddress, name: str, commit: str | None) -> pathlib.Path:
    import huggingface_hub as hub

    # A mirror may name no commit.
    cached = hub.try_to_load_from_cache(address.repository, name, revision=commit) if commit else None
    if isinstance(cached, str):
        return pathlib.Path(cached)
    with _errors_named(address):
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
            problem = f"its hash is {actual}, not {blob.name}. The file was removed: try again"
            raise _failed(address, f"{printable(name, 80)} is damaged: {problem}")
    return path


def _shards(path: pathlib.Path, address: HubAddress) -> list[str]:
    """Returns the names of the files that an index lists, sorted; none for a file that is not an index."""
    try:
        return sorted(set(shards_of(path).values()))
    except ValueError as error:
        raise _failed(address, str(error)) from None


def _cached(address: HubAddress, reason: str) -> pathlib.Path:
    """Returns the path of the weights that an address means in the library's cache, without network."""
    from huggingface_hub import constants, snapshot_download

    missing = "the repository"
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
    raise _failed(address, f"{reason}, and {missing} is not in the cache, {constants.HF_HUB_CACHE}") from None


@contextlib.contextmanager
def _errors_named(address: HubAddress, verb: str = "fetched") -> Iterator[None]:
    try:
        yield
    except (DownloadError, MemoryError):
        raise
    except Exception as error:
        raise _failed(address, _reason(error), verb) from None


def _reason(error: BaseException) -> str:
    """Returns the message of an error of the library on one line; without a response, that the Hub gave no answer."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # what the library met before it looked into its cache
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = printable(" ".join(lines[:4]) or type(error).__name__, 400).rstrip(".")
    return words if getattr(error, "response", None) is not None else f"{constants.ENDPOINT} did not answer ({words})"


def _failed(address: HubAddress, reason: str, verb: str = "fetched") -> DownloadError:
    """The error that a repository could not be `"fetched"` or `"written"`, with its address as the attempt."""
    error = DownloadError(f"{address} could not be {verb}: {reason}.")
    error.attempts = [(str(address), reason)]
    return error


# Publishing

# By layout: the library that the Hub names, and how it loads the model.
_OTHERS = {
    "timm": ("timm", "timm.create_model('hf-hub:{repository}', pretrained=True)"),
    "huggingface": ("transformers", "transformers.AutoModel.from_pretrained('{repository}')"),
}


def push_to_hub(
    model: "VisionTransformer | BiT",
    repository: str,
    *,
    layout: str | None = None,
    license: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "A model of keras_vit",
) -> str:
    """Uploads a model to a repository of the Hugging Face Hub, and returns the URL of the commit.

    The repository is created if necessary. One commit adds the weights with their config, and a model card
    (`README.md`) unless there is one. Load the model with `keras_vit.load("hf://owner/name")`. For a `.keras` file use
    `model.save("hf://owner/name")` of Keras instead.

    Args:
        model: A `VisionTransformer` or `BiT`.
        repository: `"owner/name"`.
        layout: As in `to_checkpoint`; None: the first that fits of `"timm"`, `"huggingface"` and the original layout.
        license: A license identifier of the Hub, such as `"apache-2.0"`. Mind the license of the initial weights.
        private: Whether a new repository is private; None for the default of the owner's account.
        revision: The branch to write to; None for the main branch.
        commit_message: Message of the commit.

    Raises:
        TypeError, ValueError: if an argument is wrong, the layout cannot store the model, or the repository has other
            weights.
        OSError: if the Hub refuses the upload or does not answer (DownloadError), or files cannot be written.

    Examples:
        >>> keras_vit.push_to_hub(small, "no owner")
        Traceback (most recent call last):
        ValueError: ...
    """
    check_type("model", model, (models.VisionTransformer, models.BiT), "a VisionTransformer or a BiT")
    check_type("repository", repository, str, "a string such as 'owner/name'")
    address = parse_hub_address(f"{SCHEME}{repository.removeprefix(SCHEME)}")
    if address.file is not None or address.revision is not None:
        raise ValueError(f"repository must be 'owner/name', but {repository!r} was given. Pass a branch as revision=.")
    if license is not None and not re.fullmatch(r"[\w.-]{1,100}", license, re.ASCII):
        raise ValueError(f"license must be an identifier such as 'apache-2.0', but {license!r} was given.")
    if layout is None:
        layout = _layout_of(model.config)
    is_npz = layout not in LAYOUTS or LAYOUTS[layout].sidecars is None
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / ("model.npz" if is_npz else "model.safetensors")
        to_checkpoint(model, weights, layout)
        api = HfApi(library_name="keras_vit")
        with _errors_named(address, "written"):
            api.create_repo(address.repository, private=private, exist_ok=True)
            info = api.model_info(address.repository, revision=revision)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        others = {name for name in names if name.endswith(ENDINGS) and "/" not in name} - {weights.name, *NOT_WEIGHTS}
        if others:
            raise ValueError(
                f"{address} has other weights already, {printable(min(others), 80)}, so users could load those instead "
                f"of {weights.name}. Delete them, or choose another repository or layout."
            )
        if CARD not in names:
            write_text(weights.parent / CARD, _card(model.config, address.repository, layout, license))
        with _errors_named(address, "written"):
            commit = api.upload_folder(
                repo_id=address.repository, folder_path=folder, revision=revision, commit_message=commit_message
            )
    return str(commit.commit_url)


def _layout_of(config: ModelConfig) -> str:
    for name in _OTHERS:
        if isinstance(config, LAYOUTS[name].config_type):
            with contextlib.suppress(ValueError):
                note_of(config, LAYOUTS[name])
                return name
    return PUBLISHED[type(config)]


def _card(config: ModelConfig, repository: str, layout: str, license: str | None) -> str:
    """Returns the card of a model: Markdown, below the YAML that the Hub indexes."""
    library, loading = _OTHERS.get(layout, ("", ""))
    output, answer = "It has no head: it returns features.", "features"
    if config.classes:
        names = f": {listing(config.class_names, _CLASSES_LISTED)}" if config.class_names else ""
        output = f"It has {config.classes:,} classes{names}."
        answer = "logits" if config.classifier_activation is None else "probabilities"
    pipeline = config.pipeline
    height, width = pipeline.prepared_size
    rows, columns = pipeline.uncropped_size
    how = {"squash": "straight", "shortest": "with their own aspect ratio"}[pipeline.resize]
    size = f"{rows} x {columns} pixels ({pipeline.filter})"
    crop = "" if pipeline.crop_ratio == 1 else f", of which the central {height} x {width} are cut out"
    mean, std = (", ".join(map(str, np.ravel(values))) for values in (pipeline.mean, pipeline.std))
    return f"""---
{f"license: {license}" if license else ""}
{f"library_name: {library}" if library else ""}
pipeline_tag: {"image-classification" if config.classes else "image-feature-extraction"}
tags: [keras, keras-vit, vision-transformer]
---

# {repository.rpartition("/")[2]}

{variant_of(config) or "A Vision Transformer or BiT"}, {models.count_weights(config):,} weights, for images of \
{height} x {width} pixels. {output}

## Use

```python
import keras_vit

model = keras_vit.load('{SCHEME}{repository}')
{answer} = model.predict(model.preprocess("picture.jpg"))
{f"# {library}: {loading.format(repository=repository)}" if library else ""}
```

## Preprocessing

Pictures are resized {how} to {size}{crop}. Values of 0..1 are normalised with mean {mean} \
and standard deviation {std}. `model.preprocess` does all of it.

## License

{license or "Unknown. Ask the owner before you use the weights."}
"""
