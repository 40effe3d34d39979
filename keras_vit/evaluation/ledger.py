"""A ledger of checkpoints: for each a row with its commit and hash, and how far it is from its publisher's own code."""

import datetime
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit._arguments import printable, whole_number
from keras_vit._files import at_home, write_text
from keras_vit._terminal import Table
from keras_vit.checkpoints import find_checkpoint, list_weights, resolve_source
from keras_vit.checkpoints.files import shards_of
from keras_vit.evaluation.published import figures_on, list_figures, published_answers, verify, verify_figures
from keras_vit.zoo import load

# The largest error that counts as agreement, as a share of the largest value: float32, and other orders of sums.
CLOSE = 1e-4
_PATCH = 32  # pixels: no model has larger patches
_Theirs = tuple[np.ndarray, dict[str, np.ndarray]]  # the prepared picture, and outputs by name


class LedgerTable(Table):
    """A row for each checkpoint; `agrees` says whether all rows do.

    Examples:
        >>> evaluation.LedgerTable([]).agrees
        True
    """

    columns = {"name": "name", "result": "result", "error": "error", "beside": "beside", "commit": "commit"}

    @property
    def agrees(self) -> bool:
        """Returns whether every checkpoint was loaded and differs from nothing that it was compared with."""
        return all(row["result"] in ("agrees", "read") for row in self)


def smallest_checkpoints(count: int) -> list[str]:
    """Returns the names of the catalogue's checkpoints with the fewest weights, the smallest first.

    Args:
        count: How many. Those whose number of weights is not known are left out.

    Returns:
        Names that `load` takes.

    Raises:
        ValueError: if `count` is not an integer from 1 on, or the catalogue has fewer.

    Examples:
        >>> evaluation.smallest_checkpoints(1)
        ['hf://timm/test_vit.r160_in1k']
    """
    rows = sorted((row for row in list_weights() if row["params"]), key=lambda row: row["params"])
    if whole_number("count", count, 1) > len(rows):
        raise ValueError(f"count must be from 1 to {len(rows)}, but {count} was given.")
    return [row["name"] for row in rows[:count]]


def read_ledger(path: str | os.PathLike[str]) -> LedgerTable:
    """Returns the rows of a ledger; none where there is no such file yet.

    Args:
        path: A file that `write_ledger` has written: JSON, a row on each line.

    Returns:
        The rows as dicts, in the order in which they were written.

    Raises:
        ValueError: if a line is not a row, or the file is not UTF-8.
        OSError: if it cannot be read.

    Examples:
        >>> evaluation.read_ledger("absent.jsonl").agrees
        True
    """
    path = at_home(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n") if os.path.exists(path) else []
        rows = [json.loads(line) for line in lines if line]
        if not all(isinstance(row, dict) and {"name", "result", "date"} <= row.keys() for row in rows):
            raise ValueError("a line is not a row")
    except ValueError as error:
        raise ValueError(f"{path} is not a ledger of checkpoints: {printable(error, 200)}.") from None
    return LedgerTable(rows)


def write_ledger(names: str | Sequence[str], path: str | os.PathLike[str], *, data: Any = None) -> LedgerTable:
    """Returns a row for each checkpoint, of a ledger, to which those that it lacks are added.

    Each row is written when it is complete, so that a run that was ended goes on where it was. The publisher's own code
    is timm, transformers or open_clip, where it is installed and the file is one of its own. It gets the same prepared
    picture. A checkpoint that cannot be had gets no row in the file.

    Args:
        names: What `load` takes, one or several; of repositories in the catalogue also `"owner/name"`.
        path: The ledger, JSON lines; it is made where it is missing.
        data: As in `verify_figures`: of rows that are added, published figures are measured on it, too. None for none.

    Returns:
        The rows of these names: `name`, `repository`, `commit`, `files` (SHA-256 by name), `beside` (the publisher's
        package and its version, or None), `error` (the largest one, as a share of `largest`), `pixels` (how far the
        prepared pictures are apart, in grey levels), `published` (answers and figures), `result`, `date` and versions.

    Raises:
        FileNotFoundError: if there is no folder for the ledger, or no `data`. All that goes wrong with a checkpoint is
            a row whose `result` begins with "failed", also if the ledger cannot be written.
        ValueError: if `path` is another file.
        TypeError: if a name is not a string or path.
        OSError: if the ledger is there and cannot be read.

    Examples:
        >>> evaluation.write_ledger("glyphs", "ledger.jsonl")[0]["result"]
        'read'
    """
    names = map(os.fspath, [names] if isinstance(names, (str, os.PathLike)) else names)
    listed, path = {row["name"] for row in list_weights()}, Path(at_home(path))
    names = [f"hf://{name}" if f"hf://{name}" in listed else name for name in names]
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.absolute().parent} to write a ledger in.")
    figures_on(data)  # which checks it
    known = {row["name"]: row for row in read_ledger(path)}
    rows = LedgerTable()
    for name in dict.fromkeys(names):
        if name not in known:
            try:
                known[name] = _row(name, data)
                write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in known.values()))
            except Exception as error:  # also of other packages: the other checkpoints get their rows
                nothing = dict.fromkeys(("error", "beside", "commit"))
                rows.append({"name": name, "result": f"failed: {printable(error, 300)}", **nothing})
                continue
        rows.append(known[name])
    return rows


def _row(name: str, data: Any) -> dict[str, Any]:
    """Returns the row of a checkpoint: its hashes, how far it is from its publisher's code, and published figures."""
    path = find_checkpoint(resolve_source(name))
    model: Any = load(name)
    commit = path.parts[path.parts.index("snapshots") + 1] if "snapshots" in path.parts else None
    is_hub = name.startswith("hf://")
    compared = _beside_publisher(model, name, path)
    published = _published(name, data)
    agrees = [row["agrees"] for row in published]
    if compared:
        agrees.append(compared["error"] <= CLOSE)
    result = "read"
    if agrees:
        result = "agrees" if all(agrees) else "differs"
    backend = keras.backend.backend()
    return {
        "name": name,
        "repository": name.removeprefix("hf://").partition("@")[0] if is_hub else None,
        "commit": commit,
        "files": {file.name: _sha256(file) for file in (path, *(path.parent / s for s in {*shards_of(path).values()}))},
        **(compared or dict.fromkeys(("beside", "answer", "error", "largest", "pixels"))),
        "published": published,
        "result": result,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": f"keras_vit {keras_vit.__version__}, Keras {keras.__version__}, {_version(backend)}",
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def _published(name: str, data: Any) -> list[dict[str, Any]]:
    """Returns rows of what was published of a checkpoint, answers and figures, beside what the model returns here."""
    repository = name.removeprefix("hf://")
    rows = []
    if any(answer.repository == repository for answer in published_answers()):
        rows += verify(repository)
    measured = set() if data is None else figures_on(data)
    if measured and any(row["repository"] == repository and row["figure"] in measured for row in list_figures()):
        rows += verify_figures(repository, data)
    published = []
    for row in rows:
        if row["error"]:
            raise ValueError(row["error"])
        kept = {key: row[key] for key in ("output", "source", "difference", "allowed", "agrees")}
        if data is not None:  # figures are single numbers
            kept |= {key: row[key][0] for key in ("expected", "answer") if len(row[key]) == 1}
        published.append(kept)
    return published


def _sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str:
    """Returns the name of an installed package and its version; PackageNotFoundError, an ImportError, without it."""
    return f"{package} {importlib.metadata.version(package)}"


# The publishers' own code. Each function takes the folder, the picture and how `load` prepares it, and returns the
# picture as theirs prepares it, and their answers to ours, by name.


def _beside_publisher(model: Any, name: str, path: Path) -> dict[str, Any] | None:
    """Returns how far a model's output is from that of its publisher's code, for one picture, as part of a row."""
    package, answer = _publisher(path)
    if answer is None or importlib.util.find_spec(package) is None or importlib.util.find_spec("torch") is None:
        return None
    from PIL import Image

    picture = _picture()
    prepared = np.asarray(model.preprocess(picture))
    result = answer(path.parent, Image.fromarray(picture), prepared)
    if result is None or not result[1]:
        return None
    pixels, theirs = result
    kind, found, expected = _comparable(model, name, prepared, theirs)
    largest = float(np.abs(expected).max())
    height, width = prepared.shape[1:3]  # ours leaves out what fills no patch
    apart = None
    if not hasattr(model, "backbone"):  # pictures of any size for masks and depth are prepared where they are made
        scale = 255 * np.asarray(model.config.pipeline.std)
        apart = float((np.abs(prepared - pixels[:, :height, :width]) * scale).max())
    return {
        "beside": _version(package if package != "open_clip" else "open_clip_torch"),
        "answer": kind,
        "error": float(np.abs(found - expected).max()) / largest,
        "largest": largest,
        "pixels": apart,
    }


def _comparable(
    model: Any, name: str, prepared: np.ndarray, theirs: Mapping[str, np.ndarray]
) -> tuple[str, np.ndarray, np.ndarray]:
    """Returns the first kind of output of which both have as many values, with ours and the publisher's, flat."""
    for kind, expected in theirs.items():
        if kind == "tokens":  # what every image model has, compared where the answers are not the same things
            model = load(name, include_top=False, pooling="none")
        found, expected = np.ravel(model.predict(prepared, verbose=0)), np.ravel(expected)
        if found.shape == expected.shape:
            return kind, found, expected
    raise ValueError(f"the publisher answers with {', '.join(theirs)}, of which none has the shape of the answer here")


def _picture() -> np.ndarray:
    """Returns a picture, uint8 `(270, 360, 3)`, the same each time: colours that change slowly, and noise."""
    rows, columns = np.mgrid[0:270, 0:360] / 360
    waves = [np.sin(9 * rows + 2), np.cos(7 * columns), np.sin(11 * rows * columns + 5 * columns)]
    noise = np.random.default_rng(0).normal(size=(*rows.shape, 3))
    return np.clip(128 + 80 * np.stack(waves, -1) + 20 * noise, 0, 255).astype("uint8")


def _publisher(path: Path) -> tuple[str, Callable[..., Any] | None]:
    """Returns the package that a file was made for, by the JSON beside it, and the function that runs it."""
    if (path.parent / "open_clip_config.json").is_file():
        return "open_clip", _run_open_clip
    config = path.parent / "config.json"
    config_json = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    if "architecture" in config_json:
        return "timm", _run_timm
    return "transformers", _run_transformers if "model_type" in config_json else None


def _run_timm(folder: Path, picture: Any, prepared: np.ndarray) -> _Theirs:
    """Returns the picture as timm prepares it, channels last, and its model's output `answer` for `prepared`."""
    timm, torch = importlib.import_module("timm"), importlib.import_module("torch")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    pixels = timm.data.create_transform(**timm.data.resolve_model_data_config(model))(picture)[None]
    with torch.no_grad():
        answer = model(_channels_first(prepared, pixels))
    return np.moveaxis(pixels.numpy(), 1, -1), {"answer": answer.numpy()}


def _run_open_clip(folder: Path, picture: Any, prepared: np.ndarray) -> _Theirs:
    """Returns the picture as open_clip prepares it, and the `embedding` of its image tower for `prepared`."""
    open_clip, torch = importlib.import_module("open_clip"), importlib.import_module("torch")
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    pixels = transform(picture)[None]
    with torch.no_grad():
        answer = model.eval().encode_image(_channels_first(prepared, pixels))
    return np.moveaxis(pixels.numpy(), 1, -1), {"embedding": answer.numpy()}


def _run_transformers(folder: Path, picture: Any, prepared: np.ndarray) -> _Theirs | None:
    """Returns the picture as transformers prepares it, and its model's outputs for `prepared`; None for NaFlex."""
    library, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(library, architecture).from_pretrained(folder).eval()
    # Pillow, where there is a choice: torchvision rounds its weights to 16 bits, one grey level off.
    processor = library.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(picture, return_tensors="pt")["pixel_values"]
    if pixels.ndim != 4:  # NaFlex's are patches of no one size
        return None
    options = {}
    if hasattr(model.config, "mask_ratio"):  # MAE shuffles the patches by these numbers: all of them, in their order
        model.config.mask_ratio = 0.0
        patches = (pixels.shape[-1] // model.config.patch_size) ** 2
        options = {"noise": torch.arange(patches)[None] / patches}
    images = _channels_first(prepared, pixels)
    tower = model.base_model if options else model
    with torch.no_grad():
        answer = model.get_image_features(images) if hasattr(model, "get_image_features") else tower(images, **options)
    kinds = {"logits": "logits", "image_embeds": "embedding", "pooler_output": "pooled", "predicted_depth": "depth"}
    answers = {title: answer[kind].numpy() for kind, title in kinds.items() if answer.get(kind) is not None}
    if answer.get("last_hidden_state") is not None:
        answers["tokens"] = answer["last_hidden_state"].numpy()
    return np.moveaxis(pixels.numpy(), 1, -1), answers


def _channels_first(prepared: np.ndarray, pixels: Any) -> Any:
    """Returns the prepared picture with its channels first, as a tensor of PyTorch."""
    # What it leaves out at the right and at the bottom, because it fills no patch, is filled in from `pixels`.
    ours, (height, width) = pixels.new_tensor(np.moveaxis(prepared, -1, 1)), prepared.shape[1:3]
    if not 0 <= pixels.shape[2] - height == pixels.shape[3] - width < _PATCH:
        return ours  # depth: theirs keeps the picture's own aspect ratio
    images = pixels.clone()
    images[:, :, :height, :width] = ours
    return images
