"""Features of many images with their names, in one file: in constant memory, and going on after a kill."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit._devices import batch_shares
from keras_vit._files import locked
from keras_vit._processes import ALONE_BY_NAME, connect
from keras_vit._progress import ProgressBar
from keras_vit._text import printable
from keras_vit._types import whole_number
from keras_vit.data import image_files
from keras_vit.data.streams import cores
from keras_vit.evaluation.embedding_files import (
    DTYPES,
    Embeddings,
    Journal,
    check_path,
    read_embeddings,
    write_embeddings,
)
from keras_vit.evaluation.embedding_together import embed_together
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.preprocessing import load_image

SHOWN = 5  # names in a message
# What decides the features: how messages call it.
_SETTINGS = {
    "model": "the model (its config, weights or dtype policy)",
    "images": "the images (their names or sizes)",
    "count": "the number of images",
    "range": "the share of the images",
    "features": "features",
    "dtype": "dtype",
    "shape": "the shape of the features",
    "backend": "the backend of Keras",
}


@dataclasses.dataclass(frozen=True)
class EmbeddedImages:
    """What `embed` or `join_embeddings` has written.

    Attributes:
        path: The file.
        count: How many images it has features of.
        shape: Of the features of one image.
        skipped: Names of the images that could not be read, in their order.

    Examples:
        >>> evaluation.embed(small, "photos/test", "shape.npz", progress=False).shape
        (8,)
    """

    path: Path
    count: int
    shape: tuple[int, ...]
    skipped: tuple[str, ...]


def embed(
    model: VisionTransformer | BiT,
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
    """Writes the features of many images to one file, with their names.

    Images are read, prepared as the model's family does it (`model.preprocess`) and forgotten batch by batch, so that
    memory does not grow with their number. What was computed is kept in a folder beside the output,
    `features.npz.unfinished`: whoever calls again in the same way after a kill goes on there, and ends with the bytes
    of an unbroken run. If the output is there already and is what would be written, nothing is done.

    Args:
        model: A model of this package.
        images: A folder, of which all images are taken, those in sub-folders too, and called by their paths from there;
            or files and folders, called by the paths that are given. They are sorted by name.
        output: The file to write:

            - `.npz`: `numpy.load(output)` has `names` `(n,)`, `features` `(n, ...)` and the names of `skipped` images.
            - `.parquet`: columns `name` and `features`, a list of fixed length. Needs pyarrow.
        features: A name in `keras_vit.feature_names(model)`, or from the end, such as `"block_-1"`. What has rows for
            tokens or places keeps its shape; Parquet has it flat, and the shape in its metadata.
        batch_size: Images at a time.
        dtype: Of the features in the file: `"float32"` or `"float16"`.
        shard: `(i, n)`: the i-th share of n, from 0, for several processes or machines with an output each. Shares are
            whole batches: `join_embeddings` makes the very file of them that one process would have written.
        on_bad_image: `"stop"`: a file that cannot be read is an error that names it. `"skip"`: it is left out, with a
            warning, and its name noted in the file.
        overwrite: Whether a file at `output`, or what a run with other settings left beside it, may be replaced.
        distribution: None: all processes that the program was started in (see `keras_vit.training.connect`) write a
            share each, beside the output as `features.part-0-of-4.npz`, and the first one joins them. `"alone"`, or a
            `shard`: this process works by itself.
        progress: Whether a bar is shown.

    Returns:
        What was written.

    Raises:
        TypeError: if `model` is no model of this package.
        ValueError: if an argument or an image makes no sense, features are not finite, or there is something else at
            `output` or beside it: features of other images, of another model, or with other settings.
        FileNotFoundError: if there is no such image, or no folder for the output.
        RuntimeError: if another process is writing this output now.
        ImportError: if Pillow is missing, or pyarrow where it is needed.
        OSError: if the disk is full. What was computed stays.
        ConnectionError: if another process ends before its time. What was computed stays.

    Examples:
        >>> written = evaluation.embed(small, "photos/train", "features.npz", progress=False)
        >>> np.load(written.path)["features"].shape
        (4, 8)
    """
    output = check_path(output)
    one_share = _check_shard(shard) != (0, 1)
    processes = connect(ALONE_BY_NAME if one_share and distribution is None else distribution)
    if processes.count > 1:
        options: dict[str, Any] = {"features": features, "batch_size": batch_size, "dtype": dtype}
        options |= {"on_bad_image": on_bad_image, "overwrite": overwrite, "progress": progress and processes.first}
        in_part = functools.partial(embed, model, images, distribution=ALONE_BY_NAME, **options)
        join = functools.partial(join_embeddings, overwrite=overwrite)
        embed_together(model, output, processes, in_part, join, overwrite)
        found = read_embeddings(output)
        return EmbeddedImages(output, found.count, found.shape, found.skipped)
    _check(model, batch_size, dtype, on_bad_image)
    index, shards = _check_shard(shard)
    files = _find(images)
    extractor = feature_extractor(model, [features])
    shares = batch_shares(model)
    length = -(-min(batch_size, len(files)) // shares) * shares
    batches = -(-len(files) // length)
    first, last = (min(len(files), batches * i // shards * length) for i in (index, index + 1))
    settings = {
        "model": _fingerprint(model),
        "images": _fingerprint_of_files(files),
        "count": len(files),
        "range": [first, last],
        "features": features,
        "dtype": dtype,
        "shape": _shape(extractor, model),
        "backend": keras.backend.backend(),
    }
    names = list(files)[first:last]
    journal = Journal(output)
    journal.folder.mkdir(exist_ok=True)
    try:
        with locked(journal.lock, waiting=lambda: _refuse(output)):
            finished = _finished(output, settings, overwrite)
            if finished is None:
                _run(journal, settings, extractor, model, names, files, length, on_bad_image, overwrite, progress)
                finished = journal.embeddings(names)
                if shards == 1 and not finished.count:
                    raise ValueError(f"None of the {len(names)} images can be read. The first is {names[0]!r}.")
                journal.finish(finished)
            elif finished.skipped and on_bad_image == "stop":
                raise ValueError(_skipped_before(output, finished))
            else:
                journal.remove()
    finally:
        journal.leave()
    return EmbeddedImages(output, finished.count, finished.shape, finished.skipped)


def join_embeddings(
    paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], *, overwrite: bool = False
) -> EmbeddedImages:
    """Joins the files of all shares of `embed` to the one that a single process would have written.

    Args:
        paths: The files, in any order; `.npz` and `.parquet` may be mixed.
        output: The file to write; its name ends with `.npz` or `.parquet`. The parts stay.
        overwrite: Whether a file at `output` may be replaced.

    Returns:
        What was written.

    Raises:
        FileExistsError: if there is a file at `output`.
        FileNotFoundError: if a part is not there, or no folder for the output.
        ValueError: if a part is damaged, a share is missing or there twice, or the parts are not of the same images,
            model and settings.
        ImportError: if pyarrow is needed and missing.

    Examples:
        >>> for share in (0, 1):
        ...     done = evaluation.embed(
        ...         small, "photos/train", f"{share}.npz", batch_size=2, shard=(share, 2), progress=False
        ...     )
        >>> evaluation.join_embeddings(["0.npz", "1.npz"], "joined.npz").count
        4
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ValueError(f"paths must be a list of files that embed wrote, but {paths!r} was given.")
    output = check_path(output)
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists. Choose another path or pass overwrite=True.")
    opened = ((path, read_embeddings(path)) for path in map(Path, paths))
    # A share without images lies between two others that end and begin at the same place.
    parts = sorted(opened, key=lambda part: part[1].settings["range"])
    (path, part), *others = parts
    for other_path, other in others:
        differences = _differences(
            {**part.settings, "range": None}, {**other.settings, "range": None}, f"in {other_path.name}"
        )
        if differences:
            raise ValueError(f"{path} and {other_path} are no parts of one whole: {differences}.")
    place = 0
    for path, part in parts:
        first, last = part.settings["range"]
        if first != place:
            wrong = "are missing" if first > place else "are there twice"
            low, high = sorted((first, place))
            raise ValueError(
                f"Images {low} to {high - 1} {wrong}: see {path}. Give the files of all shares, each once."
            )
        place = last
    count = parts[0][1].settings["count"]
    if place != count:
        raise ValueError(f"Images {place} to {count - 1} are missing. Give the files of all shares, each once.")
    whole = Embeddings(
        {**parts[0][1].settings, "range": [0, count]},
        tuple(name for _, part in parts for name in part.skipped),
        sum(part.count for _, part in parts),
        lambda: (name for _, part in parts for name in part.names()),
        lambda: (rows for _, part in parts for rows in part.rows()),
    )
    if not whole.count:
        raise ValueError(f"There are no features in {', '.join(str(path) for path, _ in parts[:SHOWN])}.")
    write_embeddings(whole, output)
    return EmbeddedImages(output, whole.count, whole.shape, whole.skipped)


def _run(
    journal: Journal,
    settings: dict[str, Any],
    extractor: keras.Model,
    model: VisionTransformer | BiT,
    names: list[str],
    files: dict[str, Path],
    length: int,
    on_bad_image: str,
    overwrite: bool,
    progress: bool,
) -> None:
    """Computes what is not in the journal yet."""
    saved = journal.settings()
    differences = "" if saved is None else _differences(saved, settings, "now")
    if differences and not overwrite:
        raise ValueError(
            f"{journal.folder} is what another run has left: {differences}. Choose another output, remove the folder, "
            "or replace it with overwrite=True."
        )
    if saved is None or differences:
        journal.start(settings)
    done = journal.recover()
    before = journal.embeddings(names[:done])
    if before.skipped and on_bad_image == "stop":
        if not overwrite:
            raise ValueError(_skipped_before(journal.folder, before))
        journal.start(settings)
        done = 0
    rest = names[done:]
    groups = [rest[start : start + length] for start in range(0, len(rest), length)]
    with ProgressBar("images", len(names), shown=progress) as bar, contextlib.closing(_Reader(model, files)) as reader:
        bar.advance(done)
        for group, (batch, errors) in zip(groups, reader.batches(groups, length), strict=True):
            for name, error in errors.items():
                if on_bad_image == "stop":
                    raise ValueError(
                        f"{printable(name)} cannot be read: {error} Repair or remove it, or leave such files out with "
                        'on_bad_image="skip".'
                    ) from error
                warnings.warn(f"{printable(name)} is left out: {error}", stacklevel=3)
            good = [name for name in group if name not in errors]
            rows = np.empty((0, *settings["shape"]), settings["dtype"])
            if good:
                rows = _features(extractor, batch, len(good), settings["dtype"], good)
            journal.append(np.array([name not in errors for name in group]), rows)
            bar.advance(len(group))


def _features(extractor: keras.Model, batch: np.ndarray, count: int, dtype: str, names: list[str]) -> np.ndarray:
    """The features of a batch, of which the first rows are images."""
    values = _answer(extractor, batch)
    with np.errstate(over="ignore"):  # the check below says more
        rows = values[:count].astype(dtype)
    finite = np.isfinite(rows).reshape(count, -1).all(1)
    if not finite.all():
        name = names[int(np.argmin(finite))]
        raise ValueError(f"The features of {printable(name)} are not finite in {dtype}: look at the image and weights.")
    return rows


def _answer(extractor: keras.Model, batch: np.ndarray) -> np.ndarray:
    # `predict` shares a batch among devices; for one device it only takes longer to begin.
    alone = batch_shares(extractor) == 1
    answer = extractor.predict_on_batch(batch) if alone else extractor.predict(batch, len(batch), verbose=0)
    (values,) = answer.values()
    return to_numpy(values)


class _Reader:
    """Reads images in threads, one batch ahead."""

    def __init__(self, model: VisionTransformer | BiT, files: dict[str, Path]) -> None:
        self._model, self._files = model, files
        self._threads = ThreadPoolExecutor(min(32, cores()), "keras_vit_read")

    def batches(self, groups: list[list[str]], length: int) -> Iterator[tuple[np.ndarray, dict[str, Exception]]]:
        """Batches of a length, images first and then zeros, with what went wrong by name."""
        ahead: list[list[Future[np.ndarray]]] = []
        for number, group in enumerate(groups):
            ahead += [
                [self._threads.submit(self._read, name) for name in later]
                for later in groups[number + len(ahead) : number + 2]
            ]
            batch, errors, place = None, {}, 0
            for name, future in zip(group, ahead.pop(0), strict=True):
                try:
                    image = future.result()
                except MemoryError:
                    raise
                except Exception as error:  # a disk that fails and a decoder that does are the same here
                    errors[name] = error
                    continue
                if batch is None:
                    batch = np.zeros((length, *image.shape), "float32")
                batch[place] = image
                place += 1
            yield batch, errors

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _read(self, name: str) -> np.ndarray:
        return self._model.preprocess(load_image(self._files[name]))[0]


def _check(model: Any, batch_size: Any, dtype: Any, on_bad_image: Any) -> None:
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(
            f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given. Load a file or a name "
            "with keras_vit.load; of a model that contains one, pass that: outer.get_layer(name)."
        )
    if model.config.channels != 3:
        raise ValueError(f"Image files are read as RGB, but {model.name} takes {model.config.channels} channels.")
    whole_number("batch_size", batch_size, 1)
    for name, value, known in (("dtype", dtype, DTYPES), ("on_bad_image", on_bad_image, ("stop", "skip"))):
        if value not in known:
            raise ValueError(f"{name} must be one of {list(known)}, but {value!r} was given.")


def _check_shard(shard: Any) -> tuple[int, int]:
    wrong = f"shard must be (i, n), the i-th share of n, from 0 to n - 1, but {shard!r} was given."
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise ValueError(wrong)
    try:
        index, shards = whole_number("shard", shard[0], 0), whole_number("shard", shard[1], 1)
    except ValueError:
        raise ValueError(wrong) from None
    if index >= shards:
        raise ValueError(wrong)
    return index, shards


def _find(images: Any) -> dict[str, Path]:
    """The files of images by their names, sorted."""
    others: list[str] = []
    files: list[tuple[str, Path]] = []
    alone = isinstance(images, (str, os.PathLike))
    if not alone and not isinstance(images, Sequence):
        raise TypeError(f"images must be a folder, or a list of files, but {type(images).__name__} was given.")
    for path in map(Path, [images] if alone else images):
        if path.is_dir():
            found = image_files(path, others)
            files += [((file.relative_to(path) if alone else file).as_posix(), file) for file in found]
        elif path.exists():
            files.append((path.as_posix(), path))
        else:
            raise FileNotFoundError(f"There is no file or folder {printable(path)}.")
    if others:
        what = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        listed = ", ".join(map(printable, others[:SHOWN]))
        warnings.warn(f"{what} no image by name, and left out: {listed}.", stacklevel=3)
    if not files:
        raise ValueError(f"There are no images in {printable(images) if alone else 'the list'}.")
    files.sort()
    for (name, _), (following, _) in zip(files, files[1:], strict=False):
        if name == following:
            raise ValueError(f"{printable(name)} is given twice.")
    for name, _ in files:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ValueError(f"{printable(name)} is not valid UTF-8, and cannot be written to a file. Rename it.")
    return dict(files)


def _fingerprint_of_files(files: dict[str, Path]) -> str:
    """Names and sizes: reading all images would take as long as embedding them."""
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
    return digest.hexdigest()


def _fingerprint(model: VisionTransformer | BiT) -> str:
    """Of all that decides what a model computes."""
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
        shape = _answer(extractor, zeros).shape[1:]
    return [int(size) for size in shape]


def _finished(output: Path, settings: dict[str, Any], overwrite: bool) -> Embeddings | None:
    """What is at `output`, if it is what is going to be written."""
    if overwrite or not output.exists():
        return None
    finished = read_embeddings(output)
    differences = _differences(finished.settings, settings, "now")
    if differences:
        raise ValueError(
            f"{output} holds other features: {differences}. Choose another output, or replace it with overwrite=True."
        )
    return finished


def _differences(old: dict[str, Any], new: dict[str, Any], where: str) -> str:
    """What differs between two settings, in words; an empty text where nothing does."""
    short = {"features", "dtype", "backend", "count", "shape", "range"}
    return "; ".join(
        f"{text} was {old.get(name)!r} and is {new.get(name)!r} {where}" if name in short else f"{text} differs"
        for name, text in _SETTINGS.items()
        if old.get(name) != new.get(name)
    )


def _skipped_before(where: Path, embeddings: Embeddings) -> str:
    names = ", ".join(printable(name) for name in embeddings.skipped[:SHOWN])
    return (
        f"{where} was made without {len(embeddings.skipped)} images that could not be read ({names}). Go on without "
        'them, with on_bad_image="skip"; or repair them, and start again with overwrite=True.'
    )


def _refuse(output: Path) -> None:
    raise RuntimeError(f"Another process is writing {output} now. Choose another output, or wait for it.")
