"""Labelled images with random access: labels, class names and splits, files that can be read, worker processes."""

import collections
import contextlib
import dataclasses
import decimal
import functools
import itertools
import math
import operator
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

import numpy as np

from keras_vit._arguments import SKIP, listing, printable, require_packages, to_numpy, warn_caller
from keras_vit._files import contents_of, expanded_path, fingerprint
from keras_vit._options import Count, OneOf, Options, Positive
from keras_vit._terminal import PlainData, ProgressBar
from keras_vit.data.augmentation import COCO_PARTS
from keras_vit.data.targets import CLASS, NONE, TARGETS, TargetKind
from keras_vit.preprocessing import check_mode, check_pixels, imagenet1k_classes, load_image
from keras_vit.preprocessing.images import read_channels

LARGEST = float(np.finfo(np.float32).max)  # of numbers as labels

# What the splits are called: without case, digits and punctuation, and without SUFFIX. The first that exists counts.
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation", "heldout", "holdout"),
}
IN_PLACE_OF = {"test": "validation", "validation": "test"}  # where there is only one of the two
SUFFIX = re.compile("(set|data|images|split)$")  # training_set, test_data

IMAGE_SUFFIXES = frozenset(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split())
"""What the name of an image file ends with, in lower case; other files of a folder are passed over.

Examples:
    >>> ".jpg" in data.IMAGE_SUFFIXES
    True
"""
# What files end with; one that does not may be cut short.
ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}
PROGRESS_FROM = 2000  # files; fewer are looked at before a bar is worth drawing
# What systems and archives leave behind, beside names that begin with a dot.
NOT_DATA = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found")


@dataclasses.dataclass(frozen=True)
class BadImage(PlainData):
    """An image that was left out or converted, and why: an entry of `stream.bad` or `stream.converted`.

    Args:
        path: The file's path, or the place in the data, such as `"images[17]"`.
        reason: Why, as text.

    Examples:
        >>> data.BadImage("photos/train/cat/7.jpg", "it is cut short").path
        'photos/train/cat/7.jpg'
    """

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Examples:
    """Pictures and what each is to be answered with, by number: what every source makes, whatever the target is.

    A picture in a file, its note, `load` and `annotate` can be pickled, for worker processes.
    """

    pictures: Sequence[Any]  # what `load` reads pixels from: files (with `in_files`), arrays, bytes
    labels: np.ndarray  # int64 (examples,), or float32 rows; zeros where `annotate` makes the targets
    fingerprint: str  # differs where the images or their labels do, as far as that is cheap to tell
    kind: str = ""  # "folder", "arrays", "tfds:NAME"
    name: Callable[[int], str] | None = None  # of one of `pictures` in messages; None: the path
    classes: int = 1  # 1 for regression
    class_names: list[str] | None = None
    target: str = "class"
    load: Callable[[Any], np.ndarray] = load_image  # the pixels (height, width, channels) in 0..255, of any size
    in_files: bool = True
    notes: Sequence[Any] | None = None  # what `annotate` makes a mask or segments of: a file, rows of an annotation
    annotate: Callable[[Any, np.ndarray, str], Any] | None = None  # of a note, the pixels and the name
    ignore: int = 255  # the number in masks that stands for no class
    task: str = ""  # of segments: "semantic", "panoptic" or "instance"
    bad: list["BadImage"] = dataclasses.field(default_factory=list)
    converted: list["BadImage"] = dataclasses.field(default_factory=list)
    numbers: np.ndarray | None = None  # of the examples among `pictures` and `notes`; None: all in order
    stored_in: Sequence[Path] | None = None  # the files of all pictures, where these are not files themselves

    def __len__(self) -> int:
        return len(self.labels)

    def _number(self, i: int) -> int:
        return i if self.numbers is None else int(self.numbers[i])

    def called(self, i: int) -> str:
        i = self._number(i)
        return str(self.pictures[i]) if self.name is None else self.name(i)

    def request(self, i: int) -> tuple[Any, Any]:
        i = self._number(i)
        return self.pictures[i], None if self.notes is None else self.notes[i]

    def read(self, i: int) -> tuple[np.ndarray, Any]:
        """Returns the pixels of an example and its mask or segments, None where labels are in memory."""
        return read_example(self.load, self.annotate, *self.request(i), self.called(i))

    @functools.cached_property
    def contents(self) -> str:
        """A fingerprint of labels, pictures and notes: of files names, sizes and times, of arrays every byte."""
        if self.stored_in is not None:
            return fingerprint(self.labels, contents_of(self.stored_in))
        chunks = [range(i, min(i + 256, len(self))) for i in range(0, len(self), 256)]
        with ThreadPoolExecutor() as pool:
            marks = pool.map(lambda chunk: fingerprint(*(contents_of(self.request(i)) for i in chunk)), chunks)
            return fingerprint(self.labels, *marks)

    def part(self, keep: Any) -> Self:
        keep = np.asarray(keep, "int64")
        numbers = keep if self.numbers is None else self.numbers[keep]
        return dataclasses.replace(self, labels=self.labels[keep], numbers=numbers)

    def readable(self, reading: "Reading") -> Self:
        """Returns the examples whose files can be read, as far as `reading` looks at them, with its channels."""
        if not self.in_files:
            return self
        keep, bad, converted = good_files([self.request(i)[0] for i in range(len(self))], reading, self.called)
        good = self.part(keep) if bad else self
        marks = fingerprint(self.fingerprint, [one.path for one in bad]) if bad else self.fingerprint
        changes = {"bad": [*self.bad, *bad], "converted": converted, "fingerprint": marks}
        return dataclasses.replace(good, load=reader(reading.channels), **changes)

    def without_labels(self) -> Self:
        labels = np.zeros(len(self), "int64")
        nothing = {"notes": None, "annotate": None, "class_names": None, "task": ""}
        return dataclasses.replace(self, labels=labels, classes=1, target=NONE.name, **nothing)


def read_example(load: Any, annotate: Any, picture: Any, note: Any, name: str = "") -> tuple[np.ndarray, Any]:
    """Returns the pixels of a picture, and what `annotate` makes of its note."""
    pixels = load(picture)
    return pixels, None if annotate is None else annotate(note, pixels, name)


def reader(channels: int) -> Callable[[Any], np.ndarray]:
    """Returns what loads files of so many channels, in worker processes as well."""
    return load_image if channels == 3 else functools.partial(read_channels, channels=channels)


# Pipelines of other libraries

IMAGES = ("image", "images", "pixel_values")  # what dicts call the pictures


def is_py_dataset(source: Any) -> bool:
    """Whether a source is a data set of Keras, which worker processes do not import."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(source, keras.utils.PyDataset)


def is_pipeline(source: Any) -> bool:
    """Whether a source is a pipeline: iterable, and no text, array, dict, tuple or set; a list only if of batches."""
    if is_py_dataset(source):
        return True
    if isinstance(source, list):
        return bool(source) and all(
            isinstance(item, Mapping) or (isinstance(item, tuple) and len(item) == 2) for item in source
        )
    return hasattr(source, "__iter__") and not isinstance(source, (str, bytes, Mapping, tuple, list, np.ndarray, set))


def has_no_end(source: Any) -> bool:
    """Whether a pipeline says itself that it never ends: of Keras, tf.data, grain or `itertools`."""
    if is_py_dataset(source):
        return source.num_batches is None
    if hasattr(source, "cardinality"):
        return int(source.cardinality()) == -1  # tf.data.INFINITE_CARDINALITY
    is_repeat = isinstance(source, itertools.repeat) and operator.length_hint(source, -1) < 0
    return is_repeat or isinstance(source, (itertools.cycle, itertools.count)) or length_of(source) == sys.maxsize


def length_of(source: Any) -> int | None:
    """Returns how many batches or elements a pipeline says that it has; None if it does not say."""
    try:
        return source.num_batches if is_py_dataset(source) else len(source)
    except TypeError:  # of unknown length, or infinite in tf.data
        return None
    except OverflowError:
        return sys.maxsize


def one_pass(source: Any) -> Iterator[Any]:
    """Yields each batch or element of one epoch of a pipeline; of a Keras `PyDataset` it ends the epoch as well."""
    if is_py_dataset(source):
        yield from map(source.__getitem__, itertools.count() if has_no_end(source) else range(source.num_batches))
        source.on_epoch_end()
    else:
        yield from source


def pair_of(element: Any, kind: TargetKind) -> tuple[np.ndarray, Any]:
    """Returns the images of what a pipeline yields, and their labels, masks or other targets: of a pair, or a dict."""
    keys = kind.keys
    if isinstance(element, Mapping):
        found = f"dict with the keys {sorted(element)}"
        images, targets = (next((element[k] for k in names if k in element), None) for names in (IMAGES, keys))
        if targets is None and kind.parts:
            targets = {key: element[key] for key in (*kind.parts, *COCO_PARTS) if key in element} or None
    else:
        found, is_pair = type(element).__name__, isinstance(element, (tuple, list)) and len(element) == 2
        images, targets = element if is_pair else (element, None)
    if images is None or (targets is None and kind is not NONE):
        wanted = f"(images, {keys[0]}s), or a dict with 'image' and {keys[0]!r}"
        raise ValueError(f"The pipeline must yield {wanted}, but it yields a {found}.")
    images = to_numpy(images)
    if kind is NONE:
        return images, np.zeros(len(images) if images.ndim == 4 else (), "int64")
    if not kind.parts:
        return images, to_numpy(targets)
    if isinstance(targets, Mapping) and images.ndim == 4:  # joined by the library
        targets = [{key: values[i] for key, values in targets.items()} for i in range(len(images))]
    return images, targets if isinstance(targets, (Mapping, list, tuple)) else list(to_numpy(targets))


def extremes(image: np.ndarray) -> np.ndarray:
    """Returns an image `(1, 2, channels)` of the least and the largest value of one."""
    return np.repeat(np.array([image.min(), image.max()])[None, :, None], image.shape[-1], -1)


def check_scale(images: Sequence[np.ndarray], channels: int = 3, name: str = "images") -> None:
    """Raises ValueError where several images together seem to be scaled already: one of them may be dark."""
    if not any(image.dtype == "uint8" or not image.size for image in images):
        finite = [part for part in map(extremes, images) if np.isfinite(part).all()]  # others are named when read
        check_pixels(np.stack(finite or [np.zeros((1, 2, channels))]), channels, name=name, scaled="raise")


def with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Returns grey images `(n, height, width)` with an axis for channels, and three of them if `channels` is 3."""
    # Images `(n, height, width, 1)` get three channels likewise; others are returned as they are.
    if images.ndim == 3 and images.shape[-1] not in (3, 4, channels):
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] == 1 and channels == 3:
        return np.broadcast_to(images, (*images.shape[:-1], 3))
    return images


# Labels and names of classes


def check_labels(
    labels: Any, classes: int | None, where: str, name: Callable[[int], str] | None = None, target: str = "class"
) -> tuple[np.ndarray, int]:
    """Returns labels as int64 `(n,)` or float32 `(n, classes)`, and the number of classes: the one check of labels."""
    name, kind = name or (lambda i: f"image {i} of {where}"), TARGETS[target]
    labels = to_numpy(labels)
    if labels.dtype.kind not in "iufb" and "float" not in labels.dtype.name:
        raise TypeError(f"The labels of {where} must be numbers, but the dtype is {labels.dtype}. Number the classes.")
    if labels.ndim == 2 and labels.shape[1] == 1 and not kind.several:
        labels = labels[:, 0]
    if labels.ndim == 1 and not kind.has_classes:
        finite = np.abs(labels.astype("float64")) <= LARGEST
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(f"{name(i)} has the label {float(labels[i])}, but labels must be finite float32 numbers.")
        if classes not in (None, 1):
            raise ValueError(f"target={target!r} has one output, but {classes} classes were given. Leave them out.")
        return labels.astype("float32")[:, None], 1
    if labels.ndim == 1 and not kind.several:
        return _check_class_numbers(labels.astype("float64"), classes, name)
    if labels.ndim != 2 or not kind.has_classes:
        shape = "(n, classes) with 0 and 1" if kind.several else "(n,) or (n, 1)"
        if kind is CLASS:
            shape = "(n,) with class numbers, or (n, classes) with values from 0 to 1"
        raise ValueError(
            f"The labels of {where} must have the shape {shape} for target={target!r}, not {labels.shape}."
        )
    if classes is not None and labels.shape[1] != classes:
        raise ValueError(f"The labels of {where} must have {classes} columns, for classes, not {labels.shape[1]}.")
    values = labels.astype("float64")
    if kind.several:
        fits, allowed = (values == 0) | (values == 1), "0 or 1"
    else:
        fits, allowed = (values >= 0) & (values <= 1), "from 0 to 1"
    if not fits.all():
        i = int(np.argmin(fits.all(axis=1)))
        raise ValueError(f"The labels of {name(i)} must be {allowed}, but they are {labels[i].tolist()[:10]}.")
    return labels.astype("float32"), labels.shape[1]


def _check_class_numbers(values: np.ndarray, classes: int | None, name: Callable[[int], str]) -> tuple[np.ndarray, int]:
    """Returns labels `(n,)` as int64, and how many classes there are: `classes`, or one more than the largest label."""
    wrong = ~(np.isfinite(values) & (values == np.floor(values)) & (values >= 0))
    if classes is not None:
        wrong |= values >= classes
    if wrong.any():
        i = int(np.argmax(wrong))
        allowed = "0 on" if classes is None else f"0 to {classes - 1}, for {classes} classes"
        raise ValueError(f"{name(i)} has the label {values[i]:g}, but labels must be whole numbers from {allowed}.")
    return values.astype("int64"), classes or int(values.max(initial=0)) + 1


def count_steps(examples: int, batch_size: int, training: bool) -> int:
    """Returns the number of full batches in training data, at least 1, or of all batches in test data."""
    if training:
        return max(1, examples // batch_size)
    return math.ceil(examples / batch_size)


def match_labels(data_names: Sequence[str], model_names: Sequence[str], where: str = "The data") -> np.ndarray:
    """Returns the index of the model's output for each class of the data, matched by name, int64 `(classes,)`.

    The data may have fewer classes than the model, in any order. For a model with the classes of ImageNet-1k,
    `data_names` may also be WordNet ids, such as `n01440764`. ValueError, in which `where` stands for the data, if not
    exactly one of `model_names` is equal.

    Examples:
        >>> data.match_labels(["dog", "cat"], ["bird", "cat", "dog"])
        array([2, 1])
    """
    if tuple(model_names) == tuple(name for _, name in imagenet1k_classes()):
        ids = [wnid for wnid, _ in imagenet1k_classes()]
        model_names = ids if set(data_names) <= set(ids) else model_names
    counts = collections.Counter(model_names)
    foreign = [name for name in data_names if name not in counts]
    if foreign:
        raise ValueError(
            f"{where} has classes that the model does not have: {listing(foreign)}. The model's {len(model_names)} "
            f"classes are {listing(model_names)}. Fine-tune the model on this data, or use its names for the classes."
        )
    ambiguous = [name for name in data_names if counts[name] > 1]
    if ambiguous:
        raise ValueError(f"{where} has the classes {listing(ambiguous)}, but several model outputs have this name.")
    outputs = {name: output for output, name in enumerate(model_names)}
    return np.array([outputs[name] for name in data_names], "int64")


def check_order(names: Sequence[str], where: str) -> None:
    """Raises ValueError for names that are numbers, whose order as text is another than as numbers."""
    if all(name.isdecimal() for name in names):
        text, numbers = sorted(names), sorted(names, key=int)
        if text != numbers:
            raise ValueError(
                f"The classes of {where} are numbers with an ambiguous order. Pass class_names={numbers} to sort them "
                f"as numbers, or class_names={text} to sort them as text, as Keras and torchvision do."
            )


def in_order(names: Iterable[str], where: str) -> list[str]:
    """Returns names of classes sorted, as numbers where all are numbers; warns as `warn_of_spellings`."""
    are_numbers = all(map(str.isdecimal, names))
    found = sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))
    warn_of_spellings(found, where)
    return found


def warn_of_spellings(names: Sequence[str], where: str) -> None:
    """Warns of classes that differ in capitals only, or in how a number is written: Cat and cat, 1 and 1.0."""

    def plain(name: str) -> Any:
        try:
            number = decimal.Decimal(name)  # not a float, in which long numbers become alike
            return number if number.is_finite() else name.casefold()
        except decimal.InvalidOperation:
            return name.casefold()

    counts = collections.Counter(map(plain, names))
    alike = [name for name in names if counts[plain(name)] > 1]
    if alike:
        warn_caller(f"The classes {listing(alike)} of {where} differ in spelling only. Merge them if they are equal.")


# How they are read


class ReadingOptions(TypedDict, total=False):
    """The fields of `Reading`, for signatures."""

    on_bad_image: str
    check: str
    workers: int | None
    processes: bool | None
    prefetch: int
    channels: int


@dataclasses.dataclass(frozen=True)
class Reading(Options):
    """How images are read (see `open_data`)."""

    on_bad_image: Annotated[str, OneOf(("stop", "skip"))] = "stop"
    check: Annotated[str, OneOf(("headers", "decode", "none"))] = "headers"
    workers: Positive | None = None
    processes: Annotated[bool | None, OneOf((None, True, False))] = None
    prefetch: Count = 1
    channels: Positive = 3

    @property
    def skip(self) -> bool:
        return self.on_bad_image == "skip"


# How often a stream has them


def sampled(examples: Examples, sampling: str) -> Callable[[np.random.Generator], np.ndarray]:
    """A function from a generator to the indices of an epoch, int64 `(examples,)`: some of them several times."""
    kind = TARGETS[examples.target]
    if not (kind.is_label and kind.has_classes):
        raise ValueError(f"sampling={sampling!r} needs classes, but the data has the target {examples.target!r}.")
    strata = strata_of(examples)
    counts = np.bincount(strata)
    if kind.several:
        counts = np.append(examples.labels.sum(axis=0), np.sum(strata == examples.classes))
    weights = counts[strata] ** (-1.0 if sampling == "balanced" else -0.5)

    def draw(generator: np.random.Generator) -> np.ndarray:
        order = np.lexsort((generator.random(len(strata)), strata))
        ends = np.cumsum(weights[order])
        places = (generator.random() + np.arange(len(strata))) * (ends[-1] / len(strata))
        return generator.permutation(order[np.minimum(np.searchsorted(ends, places, "right"), len(strata) - 1)])

    return draw


def strata_of(examples: Examples) -> np.ndarray:
    """The stratum of each example: its class, its rarest label (`classes` for none), or for regression its label."""
    labels, kind = examples.labels, TARGETS[examples.target]
    if labels.ndim == 1:
        return labels
    if not kind.several:
        return labels.argmax(axis=1) if kind.has_classes else labels[:, 0]
    rarest = np.where(labels > 0, labels.sum(axis=0), np.inf).argmin(axis=1)
    return np.where(labels.any(axis=1), rarest, examples.classes)


# Splits


def check_folder(path: Path, what: str) -> None:
    """Raises FileNotFoundError, which says with `what`, where there is no such folder."""
    if not path.is_dir():
        hint = " It is a file. Open a table with data.open_table." if path.exists() else ""
        raise FileNotFoundError(f"data must be a folder, but there is no folder {printable(path)} with {what}.{hint}")


def split_folders(root: Path, class_names: Sequence[str] | None = None) -> dict[str, Path]:
    """The folder of classes of each split, by the keys of `SPLITS`; the root for each if there are no splits."""
    folders = [entry.name for entry in visible(root) if is_folder(entry)]
    is_class = class_names is not None and any(split_of(name) and name in class_names for name in folders)
    splits = {} if is_class else _splits(folders, f"{str(root)!r}")
    if not splits:
        return dict.fromkeys(SPLITS, root)
    others = [name for name in folders if split_of(name) is None]
    hint = "If {!r} is a class, pass the names of all classes as class_names=.".format
    if "train" not in splits and others:
        found = f"{printable(root)} has the folder {splits['test']!r}, which has the name of a split"
        advice = f"Move the training classes into train/. {hint(splits['test'])}"
        raise ValueError(f"{found}, beside the folders {listing(others)}. {advice}")
    for name in splits.values():
        entries = visible(root / name)
        if entries and not any(map(is_folder, entries)):
            found = f"{printable(root / name)} has the name of a split, but no class folders"
            raise ValueError(f"{found}. Add them. {hint(name)}")
    return {split: root / name for split, name in splits.items()}


def pick_split(source: Mapping[str, Any], split: str) -> Any:
    """Returns the data of a split (`"train"`, `"test"` or `"validation"`) from a dict of splits.

    If `source` has only one of the last two, it serves as both. ValueError if it has no entry for `split`, or two.

    Examples:
        >>> data.pick_split({"train": "photos/train", "val": "photos/test"}, "test")
        'photos/test'
    """
    names = _splits(source, "data")
    if split not in names:
        raise ValueError(f"data has no split {split!r}, only {list(source)}. Name one of these, or add it.")
    return source[names[split]]


def has_test_split(source: Any, class_names: Sequence[str] | None = None) -> bool:
    """Whether `source`, as in `open_data`, has a split to test or to validate on; True for `"tfds:NAME"`.

    A folder with one of the `class_names` is a class. ValueError for ambiguous splits, OSError for unreadable folders.

    Examples:
        >>> data.has_test_split("photos"), data.has_test_split((pixels, labels))
        (True, False)
    """
    if isinstance(source, str) and source.startswith("tfds:"):
        return True
    # Of a table, or of masks, it is an attribute.
    return "test" in names_of_splits(source, class_names) or getattr(source, "has_test_split", False)


def split_of(name: object) -> tuple[str, int] | None:
    """Returns the split that a name stands for, and the place of the name in `SPLITS`, 0 the best; None for others."""
    letters = SUFFIX.sub("", re.sub("[^a-z]", "", str(name).lower()))
    return next(((split, names.index(letters)) for split, names in SPLITS.items() if letters in names), None)


def folders_of_splits(root: Path) -> dict[str, Path]:
    """Returns the folders inside another one whose names are those of splits, by name."""
    return {entry.name: Path(entry.path) for entry in visible(root) if is_folder(entry) and split_of(entry.name)}


def _splits(names: Iterable[Any], where: str) -> dict[str, Any]:
    """Returns the name of each split among some names; of test and validation the one stands for both if alone."""
    places = [(name, place) for name in names if (place := split_of(name)) is not None]
    found = {}
    for split in SPLITS:
        ranks = {name: rank for name, (of, rank) in places if of == split}
        # Training images belong together, whatever they are called; of others the best name is enough.
        best = [name for name, rank in ranks.items() if split == "train" or rank == min(ranks.values())]
        if len(best) > 1:
            raise ValueError(f"{where} has more than one {split} split: {best}. Keep one, or rename the others.")
        if best:
            found[split] = best[0]
    alone = {other: found[split] for split, other in IN_PLACE_OF.items() if split in found and other not in found}
    return found | alone


def names_of_splits(source: Any, class_names: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns a dict from each split of a folder or a dict of data to its name there: `{"validation": "val"}`."""
    source = expanded_path(source)
    if isinstance(source, Mapping):
        return _splits(source, "data")
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        folders = split_folders(Path(source), class_names)
        return {split: folder.name for split, folder in folders.items() if folder != Path(source)}
    return {}


def visible(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder without hidden files and what systems leave behind, sorted by name."""
    with os.scandir(folder) as entries:
        kept = [e for e in entries if not e.name.startswith(".") and e.name.lower() not in NOT_DATA]
    return sorted(kept, key=lambda entry: entry.name)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one; False for a link that leads nowhere, or to itself."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


# Image files


def good_files(
    paths: Sequence[Path], reading: Reading, name: Callable[[int], str]
) -> tuple[list[int], list[BadImage], list[BadImage]]:
    """Sorts image files: positions of readable ones, bad ones (ValueError unless `reading.skip`), and those not RGB."""
    faults: dict[int, str] = {}
    converted: list[BadImage] = []
    if reading.check == "none" or reading.channels != 3:  # files of other channels than three are not looked at
        return list(range(len(paths))), [], []
    decode, shown = reading.check == "decode", len(paths) >= PROGRESS_FROM
    with (
        ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool,
        ProgressBar("Decoding pictures" if decode else "Checking pictures", len(paths), shown=shown) as bar,
    ):
        for i, (fault, mode) in enumerate(bar.track(pool.map(lambda path: _check_file(path, decode), paths))):
            if fault:
                faults[i] = fault
            elif mode != "RGB":
                converted.append(BadImage(str(paths[i]), f"it has the mode {mode}; load_image converts it to RGB"))
    if faults and not reading.skip:
        i, fault = next(iter(faults.items()))
        folders = sorted({paths[i].parent.name for i in faults})
        more = f" There are {len(faults)} such files, in {listing(folders)}." if len(faults) > 1 else ""
        raise ValueError(f"{printable(name(i))}: {fault}.{more} Repair such files, or pass {SKIP} to leave them out.")
    bad = [BadImage(str(paths[i]), fault) for i, fault in faults.items()]
    return [i for i in range(len(paths)) if i not in faults], bad, converted


def image_files(folder: str | os.PathLike[str], others: list[str] | None = None) -> list[Path]:
    """Returns the paths of all image files below `folder`, sorted, without hidden files and leftovers of systems.

    Files without an image extension are added to the list `others`, as strings. Raises OSError if the folder cannot be
    read, ValueError if a link leads back to a folder that it lies in.

    Examples:
        >>> len(data.image_files("photos/train"))
        4
    """
    folder = expanded_path(folder)
    above = Path(os.path.realpath(folder)).parents[:1]
    return _image_files(Path(folder), [] if others is None else others, tuple(map(str, above)))


def _image_files(folder: Path, others: list[str], above: tuple[str, ...]) -> list[Path]:
    real = os.path.realpath(folder)
    if real in above:
        raise ValueError(f"{printable(folder)} links back to a folder above it. Remove the link.")
    images = []
    for entry in visible(folder):
        if is_folder(entry):
            images += _image_files(Path(entry.path), others, (*above, real))
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            images.append(Path(entry.path))
        else:
            others.append(entry.path)
    return images


def _check_file(path: Path, decode: bool) -> tuple[str | None, str]:
    """Returns why an image file cannot be read, None if it can, and its mode, `""` if it cannot."""
    require_packages("An image folder", ("PIL",), "images")
    from PIL import Image

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "it is neither a file nor a folder", ""
        if not status.st_size:
            return "it is an empty file", ""
        mode, kind = "RGB", None  # of a TIFF that Pillow does not know
        with contextlib.suppress(Image.UnidentifiedImageError), Image.open(path) as image:
            check_mode(image)
            mode, kind = image.mode, image.format
        if decode or not _has_its_end(path, kind, status.st_size):
            load_image(path)
        return None, mode
    except MemoryError:
        raise
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        cause = error.__cause__ or error  # load_image names the file, and so does the caller
        return f"it cannot be read as an image: {cause}", ""


def _has_its_end(path: Path, kind: str | None, size: int) -> bool:
    """Whether the last bytes of a file are those that end its format; False where these are not known."""
    with open(path, "rb") as file:
        if kind == "WEBP":  # says its length, without the first eight bytes
            return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
        file.seek(max(0, size - 64))
        return file.read().rstrip(b"\0").endswith(ENDS[kind]) if kind in ENDS else False
