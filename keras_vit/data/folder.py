"""Pictures in folders, one folder for each class: splits are told by their names, files looked at, and read."""

import collections
import os
import re
import stat
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import listing, printable
from keras_vit._terminal import ProgressBar
from keras_vit.data.examples import BadImage, Examples, check_class_name, fingerprint
from keras_vit.preprocessing import load_image

# What an image file is called, without case.
IMAGE_SUFFIXES = frozenset(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split())
"""What the name of an image file ends with, in lower case; other files of a folder are passed over.

Examples:
    >>> ".jpg" in data.IMAGE_SUFFIXES
    True
"""
# What files end with; one that does not may be cut short.
ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}
PROGRESS_FROM = 2000  # files; fewer are looked at before a bar is worth drawing

# What becomes of the modes that are not RGB: as `load_image` and TensorFlow's decoder have it.
CONVERTED = {
    "1": "black and white: repeated in three channels",
    "L": "grey: repeated in three channels",
    "LA": "grey with transparency, which is dropped",
    "P": "a palette: looked up",
    "PA": "a palette with transparency, which is dropped",
    "RGBA": "transparency is dropped, not blended",
    "RGBX": "the fourth channel is dropped",
    "CMYK": "CMYK, converted without a colour profile",
    "YCbCr": "YCbCr, converted",
    "I;16": "16 bits, of which the upper 8 are kept",
    "I;16B": "16 bits, of which the upper 8 are kept",
}

# What the splits are called: without case, digits and punctuation, and without SUFFIX. The first that exists counts.
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation", "heldout", "holdout"),
}
SUFFIX = re.compile("(set|data|images|split)$")  # training_set, test_data

# What systems and archives leave behind. Names that begin with a dot are hidden and are left out, too.
NOT_DATA = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found")


def open_folder(
    root: str | os.PathLike,
    split: str,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    check: str = "headers",
) -> Examples:
    """The pictures of a split, sorted by class and name; the arguments are those of `open_data`.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is not laid out so, the classes of the splits differ, or there is something bad in it and
            `on_bad_image` is `"stop"`.
        ImportError: if Pillow is not installed.
    """
    root = Path(root)
    if not root.is_dir():
        what = "It is a file." if root.exists() else "There is no such folder."
        raise FileNotFoundError(f"data must be an image folder, but {str(root)!r} was given. {what}")
    folders = split_folders(root, class_names)
    if split not in folders:
        (other,) = folders.values()
        missing = "train" if split == "train" else "test or val"
        raise ValueError(f"There is no {missing} folder in {printable(root)}, which has {other.name}.")
    folder = folders[split]
    training = folders.get("train", folder)
    files, others = _class_files(folder)
    bad: list[BadImage] = []

    def leave_out(path: Path, reason: str, advice: str) -> None:
        if on_bad_image == "stop":
            raise ValueError(f'{printable(path)}: {reason}. {advice}, or go on without: on_bad_image="skip".')
        bad.append(BadImage(str(path), reason))

    if class_names is None:
        found = files if folder == training else _class_files(training)[0]
        for name in (name for name, paths in found.items() if not paths):
            leave_out(training / name, "a class folder without pictures", "Fill or remove it")
        names = [name for name, paths in found.items() if paths]
        _check_classes(training, names)
    else:
        names = list(class_names)
    unknown = [name for name, paths in files.items() if name not in names and paths]
    if unknown:
        raise ValueError(
            f"{str(folder)!r} has classes that {'class_names' if folder == training else 'the training data'} "
            f"does not have: {listing(unknown)}. The classes are {listing(names)}."
        )
    for name in (name for name in names if not files.get(name)):
        leave_out(folder / name, f"no pictures of the class {name!r}", "Add some")
    if others:
        what = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        text = (
            f"{what} no picture of a class, by name or by place, and left out: {', '.join(map(printable, others[:3]))}."
        )
        warnings.warn(text, stacklevel=3)
    paths = [path for name in names for path in files.get(name, ())]
    labels = np.repeat(np.arange(len(names)), [len(files.get(name, ())) for name in names])
    converted: list[BadImage] = []
    if check != "none":
        faults = _look_at(paths, check, converted)
        if faults and on_bad_image == "stop":
            _stop([BadImage(str(paths[i]), fault) for i, fault in faults.items()])
        bad += [BadImage(str(paths[i]), fault) for i, fault in faults.items()]
        keep = [i for i in range(len(paths)) if i not in faults]
        paths, labels = [paths[i] for i in keep], labels[keep]
    for label, name in enumerate(names):
        if files.get(name) and not (labels == label).any():
            raise ValueError(f"Class {name!r}: none of the {len(files[name])} pictures in {folder / name} can be read.")
    return Examples(
        labels=labels,
        classes=len(names),
        read=lambda i: load_image(paths[i]),
        name=lambda i: str(paths[i]),
        kind="folder",
        fingerprint=fingerprint(labels, [path.relative_to(folder).as_posix() for path in paths]),
        class_names=names,
        files=paths,
        bad=bad,
        converted=converted,
    )


def image_files(folder: str | os.PathLike[str], others: list[str] | None = None) -> list[Path]:
    """All image files below a folder, sorted. Hidden files, and what systems leave behind, are none.

    Args:
        folder: Where to look.
        others: Is told of the files that are no images by their names.

    Returns:
        Their paths, each once.

    Raises:
        ValueError: if a link leads back to a folder that it lies in.

    Examples:
        >>> len(data.image_files("photos/train"))
        4
    """
    return _image_files(Path(folder), [] if others is None else others, (os.path.realpath(Path(folder).parent),))


def _image_files(folder: Path, others: list[str], above: tuple[str, ...]) -> list[Path]:
    real = os.path.realpath(folder)
    if real in above:
        raise ValueError(f"{printable(folder)} is a link to a folder that it lies in: remove it.")
    images = []
    for entry in visible(folder):
        if is_folder(entry):
            images += _image_files(Path(entry.path), others, (*above, real))
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            images.append(Path(entry.path))
        else:
            others.append(entry.path)
    return images


def _class_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The pictures in the folder of each class, and what is none of a class, by name or by place."""
    others: list[str] = []
    files = {}
    for entry in visible(folder):
        if is_folder(entry):
            files[entry.name] = image_files(entry.path, others)
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            others.append(entry.path)
    return files, others


def _check_classes(folder: Path, names: list[str]) -> None:
    for name in names:
        check_class_name(name, f"The folder {str(folder / name)!r}")
    spellings = collections.Counter(name.casefold() for name in names)
    alike = [name for name in names if spellings[name.casefold()] > 1]
    if alike:
        warnings.warn(
            f"The class folders {listing(alike)} in {printable(folder)} differ in capitals only, and are classes of "
            "their own. Join them if that is a mistake.",
            stacklevel=4,
        )
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "none"
        raise ValueError(
            f"A classifier needs two classes or more, but {str(folder)!r} has {found}. "
            "Expected: one folder of pictures for each class, directly or in train/ and test/."
        )


def _look_at(paths: list[Path], check: str, converted: list[BadImage]) -> dict[int, str]:
    """What is wrong with files, by their numbers, as far as `check` sees."""
    text = "Decoding pictures" if check == "decode" else "Looking at pictures"
    faults = {}
    with (
        ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool,
        ProgressBar(text, len(paths), shown=len(paths) >= PROGRESS_FROM) as bar,
    ):
        looked = pool.map(lambda path: _look(path, check == "decode"), paths)
        for i, (fault, mode) in enumerate(bar.track(looked)):
            if fault:
                faults[i] = fault
            elif mode in CONVERTED:
                converted.append(BadImage(str(paths[i]), CONVERTED[mode]))
    return faults


def _look(path: Path, decode: bool) -> tuple[str | None, str]:
    """What is wrong with a file, and its mode; it is decoded where asked for, or where its end does not show."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('Image folders need Pillow: pip install "keras-vit[images]".') from error

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "neither a file nor a folder", ""
        if not status.st_size:
            return "an empty file", ""
        with Image.open(path) as image:
            mode, kind = image.mode, image.format
            if 0 in image.size:
                return "it has no pixels", mode
            if mode in ("I", "F"):
                return f"mode {mode!r}, 32 bits, does not say what is white; scale it to 0..255 first", mode
        if decode or not _has_its_end(path, kind, status.st_size):
            load_image(path)
        return None, mode
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        cause = error.__cause__ or error  # load_image names the file, and so does who asks
        return f"not a picture that can be read: {cause}", ""


def _has_its_end(path: Path, kind: str | None, size: int) -> bool:
    """Whether the last bytes of a file are those that end its format; False where that is not known."""
    with open(path, "rb") as file:
        if kind == "WEBP":  # says its length, without the first eight bytes
            return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
        file.seek(max(0, size - 64))
        return file.read().rstrip(b"\0").endswith(ENDS[kind]) if kind in ENDS else False


def _stop(bad: list[BadImage]) -> None:
    classes = sorted({Path(image.path).parent.name for image in bad})
    more = f" There are {len(bad)} such files, in {listing(classes)}." if len(bad) > 1 else ""
    raise ValueError(
        f'{printable(bad[0].path)}: {bad[0].reason}.{more} Repair them, or go on without: on_bad_image="skip".'
    )


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that somebody has put there, sorted by name."""
    with os.scandir(folder) as entries:
        shown = [e for e in entries if not e.name.startswith(".") and e.name.lower() not in NOT_DATA]
    return sorted(shown, key=lambda entry: entry.name)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link that leads nowhere is none."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def split_folders(root: Path, class_names: Sequence[str] | None = None) -> dict[str, Path]:
    """The folders of classes in a data set, by `"train"` and `"test"`; one for both where there are no splits.

    A folder that is called like one of `class_names` is no split.

    Raises:
        ValueError: if it cannot be told what is a split and what is a class.
    """
    folders = [entry.name for entry in visible(root) if is_folder(entry)]
    if class_names is not None and any(_split_of(name) and name in class_names for name in folders):
        return {"train": root, "test": root}
    splits = _matched(folders, f"{str(root)!r}")
    if not splits:
        return {"train": root, "test": root}
    others = [name for name in folders if _split_of(name) is None]
    if "train" not in splits and others:
        raise ValueError(
            f"{printable(root)} has the folder {splits['test']!r}, which is called like a split, beside other folders: "
            f"{', '.join(repr(printable(name)) for name in others[:3])}. Move the training classes into train/. If "
            f"{splits['test']!r} is a class of its own, say so: class_names=[...] with all classes."
        )
    for name in splits.values():
        entries = visible(root / name)
        if entries and not any(is_folder(entry) for entry in entries):
            raise ValueError(
                f"{printable(root / name)} is called like a split, but has no folders of classes in it. Expected: one "
                f"folder of pictures for each class. If {name!r} is a class itself, say so: class_names=[...] with all."
            )
    return {split: root / name for split, name in splits.items()}


def pick_split(source: Mapping[str, Any], split: str) -> Any:
    """The entry of a dict of splits.

    Args:
        source: From names of splits, as `open_data` understands them, to data.
        split: `"train"` or `"test"`.

    Returns:
        The data of that split.

    Raises:
        ValueError: if there is none, or several could be meant.

    Examples:
        >>> data.pick_split({"train": "photos/train", "val": "photos/test"}, "test")
        'photos/test'
    """
    names = _matched(source, "data")
    if split not in names:
        raise ValueError(f"data has no {split!r}, only {list(source)}: give a dict with 'train' and 'test'.")
    return source[names[split]]


def has_test_split(source: Any) -> bool:
    """Whether data says which of its images are there to test on.

    Args:
        source: As in `open_data`.

    Returns:
        True for a folder or a dict with a test split, and for data sets of tensorflow-datasets.

    Examples:
        >>> data.has_test_split("photos"), data.has_test_split((pixels, labels))
        (True, False)
    """
    if isinstance(source, Mapping):
        return "test" in _matched(source, "data")
    if isinstance(source, str) and source.startswith("tfds:"):
        return True
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        folders = split_folders(Path(source))
        return "test" in folders and folders["test"] != folders.get("train")
    return False


def _split_of(name: object) -> tuple[str, int] | None:
    """Which split a name stands for, and how well: 0 is best."""
    letters = SUFFIX.sub("", re.sub("[^a-z]", "", str(name).lower()))
    return next(((split, names.index(letters)) for split, names in SPLITS.items() if letters in names), None)


def _matched(names: Iterable[Any], where: str) -> dict[str, Any]:
    """From split to the best name of it."""
    matches = [(found, name) for name in names if (found := _split_of(name))]
    result = {}
    for split in SPLITS:
        ranks = [rank for (kind, rank), _ in matches if kind == split]
        # Training images belong together; of test and validation images, one of both is enough.
        best = [name for (kind, rank), name in matches if kind == split and (split == "train" or rank == min(ranks))]
        if len(best) > 1:
            raise ValueError(f"{where} has more than one {split} split: {best}. Leave one, or rename the others.")
        if best:
            result[split] = best[0]
    return result
