"""Embeddings: the features of many images in one file, in constant memory, resumable after a kill; search in them."""

import collections
import dataclasses
import itertools
import json
import math
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import keras
import numpy as np

from keras_vit._arguments import SKIP, Source, check_type, listing, printable, to_numpy, warn_caller, whole_number
from keras_vit._files import check_folder, expanded_path, fingerprint, replacing, write_text
from keras_vit._options import Number, Positive, check_shard, checked
from keras_vit._page import check_sheet_path, html_tiles, small_image, thumbnail, write_page
from keras_vit._pictures import plot_map
from keras_vit._processes import ALONE_BY_NAME, batch_shares, connect, cores, fill_up, local_model
from keras_vit._terminal import ProgressBar, Table
from keras_vit.data import image_files
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.preprocessing import load_image
from keras_vit.zoo import as_model


@dataclasses.dataclass(frozen=True)
class EmbeddedImages:
    """The result of `embed`: which file it wrote, and what the file holds.

    Attributes:
        path: Path of the `.npz` file.
        count: Number of images with features.
        shape: Shape of the features of one image.
        skipped: Names of the images that could not be read, in their order.
        already_complete: Whether the file already had these features, so that nothing was computed.

    Examples:
        >>> evaluation.embed(small, "photos/test", "shape.npz", progress=False).shape
        (8,)
    """

    path: Path
    count: int
    shape: tuple[int, ...]
    skipped: tuple[str, ...]
    already_complete: bool = False


@checked
def embed(
    model: VisionTransformer | BiT | Source,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    features: str = "pre_logits",
    batch_size: Positive = 32,
    dtype: Literal["float32", "float16"] = "float32",
    shard: tuple[int, int] = (0, 1),
    on_bad_image: Literal["stop", "skip"] = "stop",
    overwrite: bool = False,
    distribution: str | None = None,
    progress: bool = True,
) -> EmbeddedImages:
    """Writes the features of many images, with their names, to one `.npz` file.

    Images are read and prepared (`model.preprocess`) batch by batch, so memory does not grow with their number. Rows
    are kept in `features.npz.unfinished` beside the output: after a kill, the same call resumes and writes the same
    bytes as an uninterrupted run. If the output is already complete, nothing is done.

    Args:
        model: A model of this package, or what `keras_vit.load` takes.
        images: A folder, whose images (also in sub-folders) are named by their relative paths; or a list of files and
            folders, whose images are named by the given paths. Images are sorted by name.
        output: The `.npz` file to write: `numpy.load(output)` has `names` `(n,)`, `features` `(n, ...)`, the names of
            `skipped` images, and two JSON texts: `settings` of the features, and `origin`, the places of the model and
            the images.
        features: A name in `keras_vit.feature_names(model)`, or counted from the end, such as `"block_-1"`.
        batch_size: Images per batch.
        dtype: Dtype of the features in the file: `"float32"` or `"float16"`.
        shard: `(i, n)`: the i-th of n slices of the images, from 0, for jobs with separate outputs. Slices are whole
            batches; their concatenated rows equal those of one file.
        on_bad_image: `"stop"`: a file that cannot be read is an error. `"skip"`: it is left out with a warning, and
            listed in the output.
        overwrite: Whether to replace an output, or unfinished rows, of other settings.
        distribution: None: each of several processes that the program was started in (see `keras_vit.training.connect`)
            writes the file of a slice: `features-0-of-8.npz` for `features.npz`. `"alone"`, or a `shard`: this process
            works by itself.
        progress: Whether to show a progress bar.

    Returns:
        The content of the file as `EmbeddedImages`, which also tells whether it was already complete.

    Raises:
        TypeError, ValueError: if an argument is invalid, an image cannot be read, features are not finite, or `output`
            exists with other images, another model or other settings.
        OSError: if a file or folder is missing (FileNotFoundError), cannot be read, fetched (DownloadError) or written.
            Computed rows are kept.
        ImportError, RuntimeError: if Pillow is missing, or processes cannot work together.

    Examples:
        >>> written = evaluation.embed(small, "photos/train", "features.npz", progress=False)
        >>> np.load(written.path)["features"].shape
        (4, 8)
    """
    output = check_output(output)
    shard = check_shard(shard)
    processes = connect(ALONE_BY_NAME if shard[1] > 1 and distribution is None else distribution)
    if processes.count > 1:
        shard = processes.shard
        output = output.with_name(f"{output.stem}-{processes.index}-of-{processes.count}.npz")
    images = expanded_path(images)
    whole_folder = isinstance(images, (str, os.PathLike)) and os.path.isdir(images)
    origin = {
        "model": os.fspath(model) if isinstance(model, (str, os.PathLike)) else None,
        "images": os.fspath(images) if whole_folder else None,
    }
    files, model = _find(images), model_with_features(model)
    extractor = feature_extractor(model, [features])
    shares = batch_shares(model)
    length = math.ceil(min(batch_size, len(files)) / shares) * shares
    names = list(files)
    settings = {
        "model": model_fingerprint(model),
        # Names, sizes and times of modification: reading all images would take as long as embedding them.
        "images": fingerprint([(name, *_stamp(path)) for name, path in files.items()]),
        "count": len(names),
        "range": _slice(len(names), length, shard),
        "features": features,
        "dtype": dtype,
        "shape": _shape(extractor, model),
        "backend": keras.backend.backend(),
    }
    stop = on_bad_image == "stop"
    folder = output.with_name(f"{output.name}.unfinished")
    found = None if overwrite else _read(output, settings, stop)
    if found is None:
        folder.mkdir(exist_ok=True)
        first, last = settings["range"]
        part = _Part(folder / "part", settings, stop, overwrite)
        with ProgressBar("images", last - first, shown=progress and processes.first) as bar:
            bar.advance(part.images)
            for group, good in _read_ahead(model, files, names[first + part.images : last], length, stop):
                rows = _features(extractor, good, length, settings)
                part.append(rows, [name for name in group if name not in good])
                bar.advance(len(group))
        part.write(output, origin, names[first:last])
    shutil.rmtree(folder, ignore_errors=True)  # also what a run has left that was killed after its last step
    count, skipped = found or _read(output, settings) or (0, [])
    return EmbeddedImages(output, count, tuple(settings["shape"]), tuple(skipped), already_complete=found is not None)


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat() if path.exists() else path.lstat()
    return stat.st_size, stat.st_mtime_ns


class _Part:
    """The rows that are computed, in `PATH.features`, and in `PATH.json` of how many images they are."""

    def __init__(self, path: Path, settings: dict[str, Any], stop: bool, overwrite: bool) -> None:
        """Goes on where a run with these settings was stopped, or begins; rows that are not noted are cut off."""
        self._rows, self._state, self._settings = path.with_suffix(".features"), path.with_suffix(".json"), settings
        row = math.prod(settings["shape"]) * np.dtype(settings["dtype"]).itemsize
        begin: dict[str, Any] = {"settings": settings, "images": 0, "skipped": []}
        try:
            old = json.loads(self._state.read_text(encoding="utf-8")) if self._state.exists() else begin
            old = {name: type(value)(old[name]) for name, value in begin.items()}
            size = self._rows.stat().st_size if self._rows.exists() else 0
            if old["settings"] == settings and not 0 <= (old["images"] - len(old["skipped"])) * row <= size:
                raise ValueError(f"{self._rows.name} is cut short")
        except (KeyError, TypeError, ValueError) as error:
            if not overwrite:
                raise ValueError(
                    f"{printable(self._state)} is damaged. Choose another output, or pass overwrite=True."
                ) from error
            old = {"settings": None, "skipped": []}
        if not overwrite:
            _check_same(path.parent, old["settings"], settings, old["skipped"] if stop else [])
        if old["settings"] != settings or (old["skipped"] and stop):
            old = begin
            self._state.unlink(missing_ok=True)
        self.images, self._skipped = old["images"], old["skipped"]
        if self._rows.exists():  # without what a kill has left of a batch
            os.truncate(self._rows, (self.images - len(self._skipped)) * row)

    def append(self, rows: np.ndarray, skipped: list[str]) -> None:
        """Writes the rows of a batch to the file, then notes in the other that they and the skipped names are done."""
        try:
            with self._rows.open("ab") as file:
                file.write(rows.tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.images, self._skipped = self.images + len(rows) + len(skipped), self._skipped + skipped
            state = {"settings": self._settings, "images": self.images, "skipped": self._skipped}
            write_text(self._state, json.dumps(state))
        except OSError as error:
            hint = "Computed features are kept: free some space, and repeat the call to continue."
            text = f"{printable(self._rows.parent)} cannot be written ({error.strerror or error}). {hint}"
            raise OSError(error.errno, text) from error

    def write(self, output: Path, origin: dict[str, str | None], names: list[str]) -> None:
        """Writes the archive from the rows of the images with these names; the same features become the same bytes."""
        unreadable = set(self._skipped)
        kept = [name for name in names if name not in unreadable]
        if unreadable and not kept:
            raise ValueError(f"None of the {len(unreadable)} images can be read. The first is {self._skipped[0]!r}.")
        descr = np.dtype(self._settings["dtype"]).newbyteorder("<").str
        texts = {"names": kept, "skipped": self._skipped}
        texts |= {"settings": json.dumps(self._settings), "origin": json.dumps(origin)}
        with replacing(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            with archive.open("features.npy", "w", force_zip64=True) as file:
                header = {"descr": descr, "fortran_order": False, "shape": (len(kept), *self._settings["shape"])}
                np.lib.format.write_array_header_1_0(file, header)
                if self._rows.exists():  # not of a shard without images
                    with self._rows.open("rb") as rows:
                        shutil.copyfileobj(rows, file)
            for name, text in texts.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.array(text, dtype=str))


def _read_ahead(
    model: VisionTransformer | BiT, files: dict[str, Path], names: list[str], length: int, stop: bool
) -> Iterator[tuple[list[str], dict[str, np.ndarray]]]:
    """Yields batches of `length` names, and the prepared images of those that can be read, by name."""
    # Threads read one batch ahead. A file that cannot be read is a ValueError where `stop`, otherwise a warning.

    def read(name: str) -> np.ndarray | None:
        try:
            return model.preprocess(files[name])[0]
        except (MemoryError, ImportError):  # of no file in particular
            raise
        except Exception as error:  # of a disk, or of a decoder
            if stop:
                raise ValueError(
                    f"{printable(name)} cannot be read: {error} Repair or remove it, or pass {SKIP} "
                    "(--skip-unreadable) to leave such files out."
                ) from error
            warnings.warn(f"{printable(name)} is left out: {error}", stacklevel=1)  # a thread has no caller
            return None

    groups = [names[start : start + length] for start in range(0, len(names), length)]
    with ThreadPoolExecutor(min(32, cores()), "keras_vit_read") as threads:
        ahead = threads.map(read, groups[0] if groups else [])
        for group, following in itertools.pairwise([*groups, []]):
            images, ahead = list(ahead), threads.map(read, following)
            yield group, {name: image for name, image in zip(group, images, strict=True) if image is not None}


def _features(
    extractor: keras.Model, images: dict[str, np.ndarray], length: int, settings: dict[str, Any]
) -> np.ndarray:
    """Returns the features of images, a row for each, of the settings' dtype; no rows for no images."""
    # A short batch is filled up to `length`, so that no other size is compiled.
    dtype = np.dtype(settings["dtype"]).newbyteorder("<")
    if not images:
        return np.empty((0, *settings["shape"]), dtype)
    batch = fill_up(np.stack([*images.values()]).astype("float32", copy=False), length)
    # `predict` shares a batch among devices; for one device it only takes longer to begin.
    alone = batch_shares(extractor) == 1
    outputs = extractor.predict_on_batch(batch) if alone else extractor.predict(batch, length, verbose=0)
    with np.errstate(over="ignore"):  # the check below names the image
        rows = to_numpy(next(iter(outputs.values())))[: len(images)].astype(dtype)
    for name, row in zip(images, rows, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(f"The features of {printable(name)} are not finite in {dtype}. Check weights and dtype=.")
    return rows


def read_embeddings(path: str | os.PathLike[str], *names: str) -> dict[str, Any]:
    """Returns what a file of `embed` has under these names: arrays, and dicts for `settings` and `origin`."""
    path = expanded_path(os.fspath(path))
    try:
        with open(path, "rb") as stream, np.load(stream) as file:
            found = {name: file[name] for name in names}
        texts = {name: dict(json.loads(str(found[name]))) for name in ("settings", "origin") if name in names}
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever NumPy and its kin raise for wrong bytes
        raise ValueError(f"{printable(path)} is damaged, or was not written by evaluation.embed.") from error
    return found | texts


def _read(output: Path, settings: dict[str, Any], stop: bool = False) -> tuple[int, list[str]] | None:
    """Returns the number of rows and the names of skipped images of the file at `output`; None where there is none."""
    if not output.exists():
        return None
    try:
        file = read_embeddings(output, "settings", "skipped", "names")
    except ValueError as error:
        raise ValueError(f"{error} Choose another output, or pass overwrite=True.") from None
    skipped = file["skipped"].tolist()
    _check_same(output, file["settings"], settings, skipped if stop else [])
    return len(file["names"]), skipped


def _check_same(path: Path, old: dict[str, Any], new: dict[str, Any], skipped: Sequence[str]) -> None:
    """Raises ValueError if `old` settings differ from `new` ones or images were skipped; it names what differs."""
    differences = [
        f"different {name}" if name in ("model", "images") else f"{name} is {old.get(name)!r}, not {value!r}"
        for name, value in new.items()
        if old.get(name) != value
    ]
    if skipped:
        differences.append(f'{listing(skipped)} could not be read, and on_bad_image is not "skip"')
    if differences:
        found = "; ".join(differences)
        raise ValueError(f"{path} has features of other settings: {found}. Choose another output or overwrite=True.")


def check_output(output: str | os.PathLike[str]) -> Path:
    """Returns the path of an `.npz` file to write."""
    path = Path(expanded_path(output))
    if path.suffix != ".npz" or path.is_dir():
        raise ValueError(f"output must be a file and end with .npz, but {printable(path)!r} was given.")
    check_folder(path.absolute())
    return path


def model_with_features(model: Any) -> VisionTransformer | BiT:
    """Returns a model of this package, loaded if it is a name or a path."""
    model = as_model(model)
    check_type("model", model, (VisionTransformer, BiT), "a VisionTransformer, a BiT or what keras_vit.load takes")
    if local_model(model) is not model:
        raise ValueError("The model is distributed over several processes. Load it again without keras.distribution.")
    return model


def _slice(images: int, length: int, shard: tuple[int, int]) -> list[int]:
    """The number of the first image of a shard, and of the first one behind it: whole batches of `length`."""
    index, count = shard
    batches = math.ceil(images / length)
    return [min(images, batches * i // count * length) for i in (index, index + 1)]


def _find(images: Any) -> dict[str, Path]:
    """Returns the files of images by their names, sorted; below a single folder, names are paths in it."""
    alone = isinstance(images, (str, os.PathLike))
    check_type("images", images, (str, os.PathLike, Sequence), "a folder, or a list of files")
    found: list[tuple[str, Path]] = []
    others: list[str] = []
    for path in map(Path, map(expanded_path, [images] if alone else images)):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {printable(path)}.")
        inside = image_files(path, others) if path.is_dir() else [path]
        inner = alone and path.is_dir()
        found += [((file.relative_to(path) if inner else file).as_posix(), file) for file in inside]
    if others:
        names = listing([Path(other).name for other in others])
        warn_caller(f"{len(others)} files without the suffix of an image are left out: {names}.")
    files = dict(sorted(found))
    if not files:
        raise ValueError(f"images must not be empty, but {printable(images) if alone else 'the list'} has no images.")
    if len(files) < len(found):
        twice = printable(collections.Counter(name for name, _ in found).most_common(1)[0][0])
        raise ValueError(f"images must be different files, but {twice} is given twice.")
    return files


def model_fingerprint(model: VisionTransformer | BiT) -> str:
    """A hash of all that decides what a model computes: its class, config, dtype policies and weights."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "class_names"}
    policies = [layer.dtype_policy.name for layer in model.layers]
    return fingerprint(type(model).__name__, config, policies, *(to_numpy(weight.value) for weight in model.weights))


def _shape(extractor: keras.Model, model: VisionTransformer | BiT) -> list[int]:
    """The shape of the features of an image; for a dynamic model, of an image of its config's size."""
    images = keras.KerasTensor((1, *model.config.image_size, model.config.channels), "float32")
    (tensor,) = extractor.compute_output_spec(images).values()
    return list(tensor.shape[1:])


# Search in the rows, votes of the nearest neighbours, near-duplicates: exact, in NumPy

PathLike = str | os.PathLike[str]
_CONTENT = ("settings", "origin", "names", "features")  # of a file of `embed`
ROWS = 4096  # features at a time: few enough to stay in a processor's cache between their norm and their products
QUERIES = 1024  # at a time: with `ROWS`, 16 MiB of similarities
TEMPERATURE = Number("a number of at least 0.002", lambda n: 0.002 <= n < math.inf)  # with lower ones votes overflow
_COSINE = Number("a cosine similarity above -1 and at most 1", lambda n: -1 < n <= 1)


@checked
def search(features: np.ndarray, queries: np.ndarray, k: Positive = 10) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features most similar to each query by cosine, best first; of equal ones the lowest rows.

    The search is exact and runs in blocks: it takes about 50 MB beside its arguments. Two arrays `(queries, k)`, or
    `(k,)` for one query, are returned: rows of `features`, int64, and cosine similarities, float32.

    Args:
        features: `(n, length)`, such as the `features` in a file of `embed`; any float dtype, also a memory map.
        queries: `(queries, length)`, or `(length,)` for one.
        k: Number of features to find for each query, at most n.

    Raises:
        ValueError: if the lengths differ, a row has no direction (zero, infinite or NaN), or k is out of range.

    Examples:
        >>> rows, similarities = evaluation.search(np.eye(4), np.array([1.0, 0.5, 0.0, 0.0]), k=2)
        >>> rows, similarities.round(2)
        (array([0, 1]), array([0.89, 0.45], dtype=float32))
    """
    features, queries = _rows("features", features), to_numpy(queries)
    one = queries.ndim == 1
    queries = _rows("queries", queries[None] if one else queries, features.shape[1])
    if k > len(features):
        raise ValueError(f"k must be at most the number of features, {len(features)}, but {k} was given.")
    indices, similarities = np.empty((len(queries), k), "int64"), np.empty((len(queries), k), "float32")
    for start, units in _blocks("queries", queries, QUERIES):
        best, found = np.empty((len(units), 0), "float32"), np.empty((len(units), 0), "int64")
        for first, others in _blocks("features", features, ROWS):
            numbers = np.broadcast_to(np.arange(first, first + len(others)), (len(units), len(others)))
            best = np.concatenate([best, _cosines(units, others)], axis=1)
            found = np.concatenate([found, numbers], axis=1)
            if best.shape[1] > k:
                chosen = _largest(best, k)
                best, found = best[chosen].reshape(-1, k), found[chosen].reshape(-1, k)
        order = np.lexsort((found, -best), axis=1)
        part = slice(start, start + len(units))
        indices[part] = np.take_along_axis(found, order, 1)
        similarities[part] = np.clip(np.take_along_axis(best, order, 1), -1, 1)
    return (indices[0], similarities[0]) if one else (indices, similarities)


def _cosines(units: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The products of all rows of two arrays, `(units, others)`, the same for equal rows wherever they stand."""
    # Rows have length 1, so that these are cosines.
    # Libraries add up the last few columns of a product in another order: there equal rows would differ.
    padding = np.zeros((-len(others) % 64, others.shape[1]), "float32")
    return (units @ np.concatenate([others, padding]).T)[:, : len(others)]


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    """Returns which values are the k largest of their row, as booleans of the same shape; of equal ones the first."""
    least = -np.partition(-values, k - 1, axis=1)[:, k - 1 : k]
    more, equal = values > least, values == least
    missing = k - more.sum(axis=1, keepdims=True)  # places for values that are equal to the last one
    return more | (equal & (equal.cumsum(axis=1, dtype="int32") <= missing))


@checked
def knn(
    features: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    k: Positive = 20,
    temperature: Annotated[float, TEMPERATURE] = 0.07,
    classes: int | None = None,
) -> np.ndarray:
    """Returns votes of the k nearest neighbours, float64 `(queries, classes)`, as DINO's `eval_knn.py` counts them.

    The class with most votes is predicted. A neighbour of cosine similarity s has a vote of `exp(s / temperature)`.
    Raises ValueError if an argument is invalid.

    Args:
        features: Features of known classes, `(n, length)`.
        labels: Class of each feature, integers `(n,)` from 0.
        queries: Features to classify, `(queries, length)`.
        k: Number of neighbours that vote; DINO uses 10, 20, 100 and 200.
        temperature: Lower values, from 0.002, give more weight to the nearest features.
        classes: Number of classes; None: the largest label plus one.
    """
    labels, features = to_numpy(labels), to_numpy(features)
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        found = f"{labels.dtype} {labels.shape}"
        raise ValueError(f"labels must be {len(features)} integers of at least 0, but {found} was given.")
    most = int(labels.max(initial=-1)) + 1
    classes = most if classes is None else whole_number("classes", classes, most)
    indices, similarities = search(features, queries, k)
    votes = np.zeros((*indices.shape[:-1], classes))
    weights = np.exp(similarities / np.float64(temperature))
    np.add.at(votes, (*np.indices(indices.shape)[:-1], labels[indices]), weights)
    return votes


@checked
def near_duplicates(features: np.ndarray, threshold: Annotated[float, _COSINE] = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of rows whose cosine similarity reaches the threshold, such as copies of a photo, best first.

    They are int64 `(pairs, 2)`, rows of `features` `(n, length)`, the lower one first; and float32 `(pairs,)`, their
    similarities. `threshold` is lowered by a margin for rounding in float32: 4 times the square root of the length,
    times 2**-24. 1.0 finds equal rows. ValueError as in `search`, or if it is not in (-1, 1].

    Examples:
        >>> evaluation.near_duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]))[0]
        array([[0, 2]])
    """
    features = _rows("features", features)
    pairs, similarities = [np.empty((0, 2), "int64")], [np.empty(0, "float32")]
    least = np.float32(threshold - 4 * features.shape[1] ** 0.5 * 2**-24)
    for start, units in _blocks("features", features, QUERIES):
        for first, others in _blocks("features", features[start:], ROWS):
            products = units @ others.T
            rows, columns = np.nonzero(products >= least)
            later = columns + first > rows
            pairs.append(np.stack([rows, columns + first], axis=1)[later] + start)
            similarities.append(products[rows[later], columns[later]])
    found, values = np.concatenate(pairs), np.clip(np.concatenate(similarities), -1, 1)
    order = np.lexsort((found[:, 1], found[:, 0], -values))
    return found[order], values[order]


def _rows(name: str, values: Any, length: int | None = None) -> np.ndarray:
    values = to_numpy(values)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu" or length not in (None, values.shape[1]):
        expected = "length" if length is None else length
        raise ValueError(f"{name} must be numbers (rows, {expected}), but {values.dtype} {values.shape} was given.")
    return values


def _blocks(name: str, values: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of at most `size` rows: the number of the first one, and the rows as float32 of length 1."""
    for start in range(0, len(values), size):
        block = np.asarray(values[start : start + size], "float32")
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        wrong = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
        if len(wrong):
            norm = norms[wrong[0], 0]
            raise ValueError(f"Row {start + wrong[0]} of {name} has no direction: its norm is {norm}. Remove the row.")
        yield start, block / norms


@checked
def find_similar(
    image: Any,
    features: PathLike,
    *,
    query: Any = None,
    k: Positive = 12,
    model: VisionTransformer | BiT | Source | None = None,
    folder: PathLike | None = None,
) -> Table:
    """Returns the images of an `embed` file whose features are most similar to a query, by cosine, best first.

    The rows have `image` (a path) and `similarity`, and print as a table.

    Args:
        image: The image to compare with, such as a path (see `model.preprocess`); None if `query` is given.
        features: The `.npz` file.
        query: Features to compare with, `(D,)`, such as `both.embed_texts("a red car")[0]` for a file with embeddings
            of the image tower of `both` (see `keras_vit.load_image_text`).
        k: Number of images; all if there are fewer.
        model: The model that the file was made with, or what `keras_vit.load` takes; None: from the origin in the file.
        folder: Where the images are. None: the folder that was embedded.

    Raises OSError or ImportError for files that cannot be read or fetched, TypeError or ValueError for wrong arguments.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> evaluation.find_similar("photos/train/cat/1.jpg", features, k=1)[0]["image"]
        'photos/train/cat/1.jpg'
    """
    if (image is None) == (query is None):
        raise ValueError("Exactly one of image and query must be given. Pass None for the other.")
    file = read_embeddings(features, *_CONTENT)
    vectors, paths = _features_and_paths(file, folder)
    source = file["origin"]["model"] if model is None else model
    if source is not None and (model is not None or query is None):
        model = model_with_features(source)
        if model_fingerprint(model) != file["settings"]["model"]:
            raise ValueError(f"{printable(features)} was made with another model than {printable(source)}. Pass that.")
    if query is None:
        if model is None:
            raise ValueError(f"{printable(features)} does not name its model. Pass model=.")
        found = feature_extractor(model, [file["settings"]["features"]])(model.preprocess(image))
        query = next(iter(found.values()))
    query = to_numpy(query).reshape(-1)
    if len(query) != vectors.shape[1]:
        raise ValueError(f"query must have {vectors.shape[1]} numbers, as features in the file, but has {len(query)}.")
    rows, similarities = search(vectors, query, min(k, len(vectors)))
    pairs = zip(rows, similarities.tolist(), strict=True)
    return Table({"image": paths[row], "similarity": round(similarity, 4)} for row, similarity in pairs)


def find_duplicates(features: PathLike, threshold: float = 0.95, *, folder: PathLike | None = None) -> Table:
    """Returns pairs of images in an `embed` file that are almost the same: rows with `image`, `like` and `similarity`.

    The most similar pair comes first. `draw_similar` draws them. `features`, `folder` and errors are as in
    `find_similar`, `threshold` as in `near_duplicates`.
    """
    vectors, paths = _features_and_paths(read_embeddings(features, *_CONTENT), folder)
    pairs, similarities = near_duplicates(vectors, threshold)
    return Table(
        {"image": paths[first], "like": paths[second], "similarity": round(similarity, 4)}
        for (first, second), similarity in zip(pairs, similarities.tolist(), strict=True)
    )


def draw_similar(rows: Table, path: PathLike, title: str = "Similar images", image: PathLike | None = None) -> None:
    """Draws the images of `find_similar` or `find_duplicates` as a contact sheet, at most 200 of their `rows`.

    The sheet with this `title` is written to `path` (`.html`, `.png`, `.svg` or `.pdf`). The query `image` is shown
    first.

    Raises:
        ImportError, OSError: if Pillow or matplotlib is missing; if an image cannot be opened or the file not written.
        ValueError: if there are no rows, the path has another suffix, or an image cannot be decoded.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> evaluation.draw_similar(evaluation.find_duplicates(features, threshold=0.5), "similar.html")
    """
    if not rows:
        raise ValueError("rows must have images to draw, but there are none.")
    check_sheet_path(path)
    files: list[tuple[str, PathLike]] = [] if image is None else [("searched for", image)]
    for row in rows[:200]:
        files.append((f"{row['similarity']:.3f}  {Path(row['image']).name}", row["image"]))
        if "like" in row:
            files.append((f"and  {Path(row['like']).name}", row["like"]))
    # Images become small as they are read: 200 photos as they are would fill the memory.
    tiles = [(words, small_image(load_image(file))) for words, file in files]
    if Path(path).suffix.lower() in (".html", ".htm"):
        write_page(path, title, [html_tiles((thumbnail(one), words) for words, one in tiles)])
    else:
        plot_map(tiles, path, title=title, columns=6, side=2, gap=0.15)


def _features_and_paths(file: dict[str, Any], folder: PathLike | None) -> tuple[np.ndarray, list[str]]:
    home = file["origin"]["images"] if folder is None else folder
    paths = [os.fspath(Path(home or "", name)) for name in file["names"].tolist()]
    features = file["features"]
    return features.reshape(len(paths), math.prod(features.shape[1:])), paths  # -1 would not do for no images
