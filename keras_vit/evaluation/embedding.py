"""Embeddings: the features of many images in one file, in constant memory, and resumable after a kill."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import Source, printable, to_numpy, whole_number
from keras_vit._devices import batch_shares, local_model
from keras_vit._files import locked, replacing, write_text
from keras_vit._processes import ALONE_BY_NAME, connect
from keras_vit._terminal import ProgressBar
from keras_vit.data import image_files
from keras_vit.data.streams import cores
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.zoo import as_model

DTYPES = ("float32", "float16")
NAMED = 5  # names in a message
# What messages call the settings whose values say nothing; the others are shown with their values.
_HASHED = {
    "model": "the model (its config, weights or dtype policy)",
    "images": "the images (their names, sizes in bytes or times of modification)",
}


@dataclasses.dataclass(frozen=True)
class EmbeddedImages:
    """The file that `embed` has written.

    Attributes:
        path: The file.
        count: How many images it has features of.
        shape: Of the features of one image.
        skipped: Names of the images that could not be read, in their order.
        already_complete: Whether the file was there already, with these features, so that nothing was computed.

    Examples:
        >>> evaluation.embed(small, "photos/test", "shape.npz", progress=False).shape
        (8,)
    """

    path: Path
    count: int
    shape: tuple[int, ...]
    skipped: tuple[str, ...]
    already_complete: bool = False


def embed(
    model: VisionTransformer | BiT | Source,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    features: str = "pre_logits",
    batch_size: int = 32,
    dtype: str = "float32",
    shard: tuple[int, int] = (0, 1),
    on_bad_image: str = "stop",
    overwrite: bool = False,
    distribution: str | None = None,
    progress: bool = True,
) -> EmbeddedImages:
    """Writes the features of many images to one `.npz` file, with their names.

    Images are read, prepared (`model.preprocess`) and forgotten batch by batch, so that memory does not grow with their
    number. Rows that are computed are kept in a folder beside the output, `features.npz.unfinished`: the same call
    after a kill goes on there, and ends with the bytes of an unbroken run. If the output is there already and is what
    would be written, nothing is done.

    Args:
        model: A model of this package, or what `keras_vit.load` takes: a name, an address or a path.
        images: A folder, of which all images are taken, those in sub-folders too, and called by their paths from there;
            or files and folders, called by the paths that are given. They are sorted by name.
        output: The `.npz` file to write: `numpy.load(output)` has `names` `(n,)`, `features` `(n, ...)`, the names of
            `skipped` images, and `settings`, a JSON text with what the features were made of.
        features: A name in `keras_vit.feature_names(model)`, or from the end, such as `"block_-1"`.
        batch_size: Images at a time.
        dtype: Of the features in the file: `"float32"` or `"float16"`.
        shard: `(i, n)`: the i-th of n slices of the images, from 0, for jobs with an output each. Slices are whole
            batches: put together in their order, their rows are those of one file.
        on_bad_image: `"stop"`: a file that cannot be read is an error that names it. `"skip"`: it is left out, with a
            warning, and its name noted in the file.
        overwrite: Whether a file at `output`, or what a run with other settings left beside it, may be replaced.
        distribution: None: all processes that the program was started in (see `keras_vit.training.connect`) compute a
            slice each, and process 0 writes the file, on a disk that all of them see. `"alone"`, or a `shard`: this
            process works by itself.
        progress: Whether a bar is shown.

    Returns:
        What is in the file, and whether it was there already.

    Raises:
        TypeError: if `model` is no model of this package.
        ValueError: if an argument or an image makes no sense, features are not finite, or there is something else at
            `output` or beside it: features of other images, of another model, or with other settings.
        FileNotFoundError: if there is no such image, or no folder for the output.
        RuntimeError: if another job is writing this output now.
        ImportError: if Pillow is missing.
        OSError: if the disk is full. What was computed stays.
        ConnectionError: if another process ends before its time. What was computed stays.

    Examples:
        >>> written = evaluation.embed(small, "photos/train", "features.npz", progress=False)
        >>> np.load(written.path)["features"].shape
        (4, 8)
    """
    output = check_output(output)
    shard = _check_shard(shard)
    processes = connect(ALONE_BY_NAME if shard != (0, 1) and distribution is None else distribution)
    model = as_model(model)
    _check(model, batch_size, dtype, on_bad_image)
    files = _find(images)
    extractor = feature_extractor(model, [features])
    shares = batch_shares(model)
    length = -(-min(batch_size, len(files)) // shares) * shares
    names = list(files)
    settings = {
        "model": _fingerprint(model),
        "images": _fingerprint_of_files(files),
        "count": len(names),
        "range": _slice(len(names), length, shard),
        "features": features,
        "dtype": dtype,
        "shape": _shape(extractor, model),
        "backend": keras.backend.backend(),
    }
    stop = on_bad_image == "stop"
    folder = output.with_name(f"{output.name}.unfinished")
    parts = [_Part(folder / f"{index}-of-{processes.count}") for index in range(processes.count)]
    part = parts[processes.index]
    with processes.failing_together():
        # Copies of the images on other machines may have other times of modification.
        processes.check_same("arguments", [names, {**settings, "images": None}])
        found = processes.from_first(_read(output, settings, stop) if processes.first and not overwrite else None)
        if found is None:
            folder.mkdir(exist_ok=True)
            with locked(part.path.with_suffix(".lock"), waiting=lambda: _refuse(output)):
                part.start(settings, stop, overwrite)
                first, last = settings["range"] if processes.count == 1 else _slice(len(names), length, processes.shard)
                rest = names[first + part.images : last]
                with ProgressBar("images", last - first, shown=progress and processes.first) as bar:
                    bar.advance(part.images)
                    for rows, skipped in _batches(model, extractor, files, rest, length, settings, stop):
                        part.append(rows, skipped)
                        bar.advance(len(rows) + len(skipped))
                processes.from_first()  # all parts are there
                if processes.first:
                    _write(output, settings, parts, names)
        if processes.first:  # also what a run has left that was killed after its last step
            shutil.rmtree(folder, ignore_errors=True)
        count, skipped = found or processes.from_first(_read(output, settings) if processes.first else None)
    return EmbeddedImages(output, count, tuple(settings["shape"]), tuple(skipped), already_complete=found is not None)


class _Part:
    """The rows that one process has computed, and how far it is: `PATH.features` and `PATH.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.features, self.state = path.with_suffix(".features"), path.with_suffix(".json")
        self.settings: dict[str, Any] | None = None
        self.images = 0  # how many are done
        self.skipped: list[str] = []

    def read(self) -> None:
        """Reads how far the part is, as its process has written it."""
        if self.state.exists():
            with _damage(self.state):
                content = json.loads(self.state.read_text(encoding="utf-8"))
                self.settings, self.images, self.skipped = (content[name] for name in ("settings", "images", "skipped"))

    def start(self, settings: dict[str, Any], stop: bool, overwrite: bool) -> None:
        """Goes on where a run with the same settings was stopped, or begins."""
        self.read()
        if self.settings is not None and not overwrite:
            _check_same(self.path.parent, self.settings, settings, self.skipped if stop else [])
        row = int(np.prod(settings["shape"], dtype="int64")) * np.dtype(settings["dtype"]).itemsize
        if self.settings != settings or (self.skipped and stop):
            self.settings, self.images, self.skipped = settings, 0, []
            self.state.unlink(missing_ok=True)
        if self.features.exists():  # without what a kill has left of a batch
            os.truncate(self.features, (self.images - len(self.skipped)) * row)

    def append(self, rows: np.ndarray, skipped: list[str]) -> None:
        """Adds the rows of a batch, and then notes that they are there."""
        try:
            with self.features.open("ab") as file:
                file.write(rows.tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.images, self.skipped = self.images + len(rows) + len(skipped), self.skipped + skipped
            state = {"settings": self.settings, "images": self.images, "skipped": self.skipped}
            write_text(self.state, json.dumps(state))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{printable(self.path.parent)} cannot be written ({error.strerror or error}). What was computed is "
                "kept: make room, and call again in the same way to go on.",
            ) from error


def _batches(
    model: VisionTransformer | BiT,
    extractor: keras.Model,
    files: dict[str, Path],
    names: list[str],
    length: int,
    settings: dict[str, Any],
    stop: bool,
) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Of each batch the features, and the names of the images that cannot be read. Threads read one batch ahead."""

    def read(name: str) -> np.ndarray | Exception:
        try:
            return model.preprocess(files[name])[0]
        except MemoryError:
            raise
        except Exception as error:  # of a disk, or of a decoder
            return error

    groups = [names[start : start + length] for start in range(0, len(names), length)]
    threads = ThreadPoolExecutor(min(32, cores()), "keras_vit_read")
    try:
        ahead: Iterator[np.ndarray | Exception] = iter(())
        for group, following in zip([[], *groups], [*groups, []], strict=True):
            current, ahead = list(ahead), threads.map(read, following)
            good = {}
            for name, image in zip(group, current, strict=True):
                if not isinstance(image, Exception):
                    good[name] = image
                elif stop:
                    raise ValueError(
                        f"{printable(name)} cannot be read: {image} Repair or remove it, or leave such files out with "
                        'on_bad_image="skip".'
                    ) from image
                else:
                    warnings.warn(f"{printable(name)} is left out: {image}", stacklevel=2)
            rows = np.empty((0, *settings["shape"]), settings["dtype"])
            if good:
                images = np.stack([*good.values()]).astype("float32", copy=False)
                batch = np.pad(images, [(0, length - len(images)), (0, 0), (0, 0), (0, 0)])
                rows = _features(extractor, batch, settings["dtype"], [*good])
            if group:
                yield rows, [name for name in group if name not in good]
    finally:
        threads.shutdown(cancel_futures=True)


def _features(extractor: keras.Model, batch: np.ndarray, dtype: str, names: list[str]) -> np.ndarray:
    """The features of a batch, of which the first rows are images with these names."""
    with np.errstate(over="ignore"):  # the check below says more
        rows = _predict(extractor, batch)[: len(names)].astype(np.dtype(dtype).newbyteorder("<"))
    for name, row in zip(names, rows, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(f"The features of {printable(name)} are not finite in {dtype}: look at image and weights.")
    return rows


def _predict(extractor: keras.Model, batch: np.ndarray) -> np.ndarray:
    # `predict` shares a batch among devices; for one device it only takes longer to begin.
    alone = batch_shares(extractor) == 1
    answer = extractor.predict_on_batch(batch) if alone else extractor.predict(batch, len(batch), verbose=0)
    return to_numpy(next(iter(answer.values())))


def _write(output: Path, settings: dict[str, Any], parts: list[_Part], names: list[str]) -> None:
    """Writes the archive from the rows of all parts. The same features give the same bytes."""
    for part in parts:
        part.read()
    skipped = [name for part in parts for name in part.skipped]
    unreadable = set(skipped)
    kept = [name for name in names[slice(*settings["range"])] if name not in unreadable]
    if unreadable and not kept:
        raise ValueError(f"None of the {len(skipped)} images can be read. The first is {skipped[0]!r}.")
    descr = np.dtype(settings["dtype"]).newbyteorder("<").str
    texts = {"names": kept, "skipped": skipped, "settings": json.dumps(settings)}
    with replacing(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open("features.npy", "w", force_zip64=True) as file:
            header = {"descr": descr, "fortran_order": False, "shape": (len(kept), *settings["shape"])}
            np.lib.format.write_array_header_1_0(file, header)
            for path in (part.features for part in parts if part.features.exists()):
                with path.open("rb") as rows:
                    shutil.copyfileobj(rows, file)
        for name, text in texts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.array(text, dtype=str))


def _read(output: Path, settings: dict[str, Any], stop: bool = False) -> tuple[int, list[str]] | None:
    """Number of rows and skipped images of the file at `output`, which must be the one that is asked for."""
    if not output.exists():
        return None
    with output.open("rb") as file, _damage(output), np.load(file) as arrays:
        old, skipped, count = json.loads(str(arrays["settings"])), arrays["skipped"].tolist(), len(arrays["names"])
    _check_same(output, old, settings, skipped if stop else [])
    return count, skipped


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever NumPy and its kin raise for wrong bytes is a `ValueError` that names the file."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"{printable(path)} is damaged, or not a file that embed wrote ({printable(error, 200)}). Remove it, "
            "choose another output, or replace it with overwrite=True."
        ) from None


def _check_same(path: Path, old: dict[str, Any], new: dict[str, Any], skipped: Sequence[str]) -> None:
    """Refuses features at a path that are made of something else, or without images."""
    differences = [
        f"{_HASHED[name]} differ" if name in _HASHED else f"{name} was {old.get(name)!r} and is {new[name]!r} now"
        for name in new
        if old.get(name) != new[name]
    ]
    if skipped:
        names = ", ".join(printable(name) for name in skipped[:NAMED])
        differences.append(f'{len(skipped)} images could not be read ({names}), and on_bad_image is not "skip"')
    if differences:
        raise ValueError(
            f"{path} holds other features: {'; '.join(differences)}. Choose another output, remove it, or replace it "
            "with overwrite=True."
        )


def check_output(output: str | os.PathLike[str]) -> Path:
    """The path of an `.npz` file that can be written: an error if its name ends otherwise, or there is no folder."""
    path = Path(output)
    if path.suffix != ".npz" or path.is_dir():
        hint = " pandas makes Parquet of it: docs/inspection.md has the line." if path.suffix == ".parquet" else ""
        raise ValueError(f"output must be a file and end with .npz, but {printable(path)!r} was given.{hint}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {printable(path.absolute().parent)} for {path.name}: make it.")
    return path


def _check(model: Any, batch_size: Any, dtype: Any, on_bad_image: Any) -> None:
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(
            f"model must be a VisionTransformer, a BiT or what keras_vit.load takes, but {type(model).__name__} was "
            "given. Of a model that contains one, pass that: outer.get_layer(name)."
        )
    if local_model(model) is not model:
        raise ValueError(
            "The model lies on devices of several processes: load it again, outside of keras.distribution."
        )
    if model.config.channels != 3:
        raise ValueError(f"Image files are read as RGB, but {model.name} takes {model.config.channels} channels.")
    whole_number("batch_size", batch_size, 1)
    for name, value, known in (("dtype", dtype, DTYPES), ("on_bad_image", on_bad_image, ("stop", "skip"))):
        if value not in known:
            raise ValueError(f"{name} must be one of {list(known)}, but {value!r} was given.")


def _check_shard(shard: Any) -> tuple[int, int]:
    try:
        index, count = (whole_number("shard", number, 0) for number in shard)
    except (TypeError, ValueError):
        index, count = 0, 0
    if index >= count:
        raise ValueError(f"shard must be (i, n), the i-th slice of n, from 0 to n - 1, but {shard!r} was given.")
    return index, count


def _slice(images: int, length: int, shard: tuple[int, int]) -> list[int]:
    """First image of a shard, and first one behind it: whole batches of a length."""
    index, count = shard
    batches = -(-images // length)
    return [min(images, batches * i // count * length) for i in (index, index + 1)]


def _find(images: Any) -> dict[str, Path]:
    """The files of images by their names, sorted."""
    others: list[str] = []
    found: list[tuple[str, Path]] = []
    alone = isinstance(images, (str, os.PathLike))
    if not alone and not isinstance(images, Sequence):
        raise TypeError(f"images must be a folder, or a list of files, but {type(images).__name__} was given.")
    for path in map(Path, [images] if alone else images):
        if path.is_dir():
            inside = image_files(path, others)
            found += [((file.relative_to(path) if alone else file).as_posix(), file) for file in inside]
        elif path.exists():
            found.append((path.as_posix(), path))
        else:
            raise FileNotFoundError(f"There is no file or folder {printable(path)}.")
    if others:
        listed = ", ".join(map(printable, others[:NAMED]))
        warnings.warn(f"{len(others)} files are no images by their names, and left out: {listed}.", stacklevel=3)
    if not found:
        raise ValueError(f"There are no images in {printable(images) if alone else 'the list'}.")
    files: dict[str, Path] = {}
    for name, path in sorted(found):
        if name in files:
            raise ValueError(f"{printable(name)} is given twice.")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ValueError(f"{printable(name)} is not valid UTF-8, and cannot be written to a file. Rename it.")
        files[name] = path
    return files


def _fingerprint_of_files(files: dict[str, Path]) -> str:
    """A hash of names, sizes and times of modification: reading all images would take as long as embedding them."""
    digest = hashlib.sha256()
    for name, path in files.items():
        status = path.stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _fingerprint(model: VisionTransformer | BiT) -> str:
    """A hash of all that decides what a model computes."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "class_names"}
    policies = [layer.dtype_policy.name for layer in model.layers]
    digest = hashlib.sha256(json.dumps([type(model).__name__, config, policies], sort_keys=True).encode())
    for weight in model.weights:
        value = np.ascontiguousarray(to_numpy(weight.value))
        digest.update(f"{weight.dtype}{value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _shape(extractor: keras.Model, model: VisionTransformer | BiT) -> list[int]:
    """Of the features of an image."""
    (tensor,) = extractor.output.values()
    shape = tensor.shape[1:]
    if None in shape:  # images may have any size; `preprocess` brings them to the one of the config
        zeros = np.zeros((batch_shares(model), *model.config.image_size, model.config.channels), "float32")
        shape = _predict(extractor, zeros).shape[1:]
    return [int(size) for size in shape]


def _refuse(output: Path) -> None:
    raise RuntimeError(f"Another process is writing {output} now. Choose another output, or wait for it.")
