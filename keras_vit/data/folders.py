"""Folders of labelled images: which files are images and can be read, and what their classes are called."""

import collections
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vit._arguments import SKIP, Message, check_class_name, listing, printable, require_packages, warn_caller
from keras_vit._terminal import ProgressBar
from keras_vit.data.examples import BadImage, Examples, Reading, fingerprint, is_folder, split_folders, visible
from keras_vit.preprocessing import check_mode, load_image

IMAGE_SUFFIXES = frozenset(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split())
"""What the name of an image file ends with, in lower case; other files of a folder are passed over.

Examples:
    >>> ".jpg" in data.IMAGE_SUFFIXES
    True
"""
# What files end with; one that does not may be cut short.
ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";"}
PROGRESS_FROM = 2000  # files; fewer are looked at before a bar is worth drawing


def open_folder(root: str | os.PathLike, split: str, class_names: list[str] | None, reading: Reading) -> Examples:
    """Returns the images of a split, sorted by class and name; the arguments are those of `open_data`.

    Warns of files that are left out. Raises FileNotFoundError without the folder, ValueError without that split, two
    classes or a picture of a class that can be read, for unknown classes, and, unless `reading` skips them, for files
    that cannot be read and classes without files; OSError if a folder cannot be read, ImportError without Pillow.
    """
    root = Path(root)
    if not root.is_dir():
        what = "It is a file: data.open_table reads tables." if root.exists() else "There is no such folder."
        raise FileNotFoundError(f"data must be an image folder, but {str(root)!r} was given. {what}")
    folders = split_folders(root, class_names)
    if split not in folders:
        other = next(iter(folders.values()))
        missing = "train" if split == "train" else "test or val"
        raise ValueError(f"There is no {missing} folder in {printable(root)}, which has {other.name}.")
    folder, training = folders[split], folders.get("train", folders[split])
    files, others = _class_files(folder)
    bad: list[BadImage] = []

    def leave_out(path: Path, reason: str, advice: str) -> None:
        if not reading.skip:
            raise ValueError(Message(f"{printable(path)}: {reason}. {advice}, or go on without: ", SKIP, "."))
        bad.append(BadImage(str(path), reason))

    in_training = files if folder == training else _class_files(training)[0]
    names = class_names or _names_of_folders(training, in_training, leave_out)
    unknown = [name for name, paths in files.items() if name not in names and paths]
    if unknown:
        other = "class_names" if folder == training else "the training data"
        hint = f"{listing(unknown)}. The classes are {listing(names)}."
        raise ValueError(f"{str(folder)!r} has classes that {other} does not have: {hint}")
    for name in (name for name in names if not files.get(name)):
        leave_out(folder / name, f"no pictures of the class {name!r}", "Add some")
    if others:
        count = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        first = ", ".join(map(printable, others[:3]))
        warn_caller(f"{count} no picture of a class, by name or by place, and left out: {first}.")
    paths = [path for name in names for path in files.get(name, ())]
    labels = np.repeat(np.arange(len(names)), [len(files.get(name, ())) for name in names])
    keep, unreadable, converted = good_files(paths, reading, lambda i: str(paths[i]))
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
        bad=bad + unreadable,
        converted=converted,
    )


def _names_of_folders(
    training: Path, files: Mapping[str, Sequence[Path]], leave_out: Callable[[Path, str, str], None]
) -> list[str]:
    """Returns the names of the classes, those of the folders with pictures; `leave_out` is called for folders without.

    `training` is for messages. Warns of names that differ in capitals only. Raises ValueError if there are less than
    two, or one is no name for a class, and what `leave_out` raises.
    """
    names = []
    for name, paths in files.items():
        if paths:
            check_class_name(name, f"The folder {str(training / name)!r}")
            names.append(name)
        else:
            leave_out(training / name, "a class folder without pictures", "Fill or remove it")
    spellings = collections.Counter(map(str.casefold, names))
    alike = [name for name in names if spellings[name.casefold()] > 1]
    if alike:
        warn_caller(f"The class folders {listing(alike)} in {printable(training)} differ in capitals only.")
    if len(names) < 2:
        found = f"{str(training)!r} has {f'only {names[0]!r}' if names else 'none'}"
        wanted = "one folder of pictures for each class, directly or in train/ and test/"
        raise ValueError(f"A classifier needs two classes or more, but {found}. Expected: {wanted}.")
    return names


def good_files(
    paths: Sequence[Path], reading: Reading, name: Callable[[int], str]
) -> tuple[list[int], list[BadImage], list[BadImage]]:
    """Returns the positions of the image files that can be read, those that cannot, and those that become RGB.

    All count as good where `reading` does not look at them first. Raises ValueError, with the `name` of the first, if
    one cannot be read, unless `reading` skips them; ImportError without Pillow.
    """
    faults: dict[int, str] = {}
    converted: list[BadImage] = []
    if reading.looks:
        faults, converted = _look_at_all(paths, reading.check == "decode")
    if faults and not reading.skip:
        i, fault = next(iter(faults.items()))
        folders = sorted({paths[i].parent.name for i in faults})
        more = f" There are {len(faults)} such files, in {listing(folders)}." if len(faults) > 1 else ""
        words = f"{printable(name(i))}: {fault}.{more} Repair them, or go on without: "
        raise ValueError(Message(words, SKIP, "."))
    bad = [BadImage(str(paths[i]), fault) for i, fault in faults.items()]
    return [i for i in range(len(paths)) if i not in faults], bad, converted


def image_files(folder: str | os.PathLike[str], others: list[str] | None = None) -> list[Path]:
    """Returns all image files below a folder, sorted. Hidden files, and what systems leave behind, are none.

    Args:
        folder: Where to look.
        others: A list that the files which are no images by their names are added to.

    Returns:
        The paths, each beginning with `folder`.

    Raises:
        ValueError: if a link leads back to a folder that it lies in.
        OSError: if a folder does not exist or cannot be read.

    Examples:
        >>> len(data.image_files("photos/train"))
        4
    """
    return _image_files(Path(folder), [] if others is None else others, (os.path.realpath(Path(folder).parent),))


def _image_files(folder: Path, others: list[str], above: tuple[str, ...]) -> list[Path]:
    """Returns all image files below a folder, sorted; the paths of other files are appended to `others`.

    `above` are the real paths of the folders above it: ValueError if a link leads back to one of them. OSError if a
    folder cannot be read.
    """
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
    """Returns the images in the folder of each class, and the paths of files that are none, by name or by place.

    Raises ValueError if a link leads back to a folder that it lies in, OSError if a folder cannot be read.
    """
    others: list[str] = []
    files = {}
    for entry in visible(folder):
        if is_folder(entry):
            files[entry.name] = image_files(entry.path, others)
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            others.append(entry.path)
    return files, others


def _look_at_all(paths: Sequence[Path], decode: bool) -> tuple[dict[int, str], list[BadImage]]:
    """Returns why image files cannot be read, by the positions of those that cannot; and the images that are not RGB.

    `decode` says whether all are decoded. Raises ImportError without Pillow.
    """
    text = "Decoding pictures" if decode else "Looking at pictures"
    faults: dict[int, str] = {}
    converted: list[BadImage] = []
    with (
        ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool,
        ProgressBar(text, len(paths), shown=len(paths) >= PROGRESS_FROM) as bar,
    ):
        for i, (fault, mode) in enumerate(bar.track(pool.map(lambda path: _look_at(path, decode), paths))):
            if fault:
                faults[i] = fault
            elif mode != "RGB":
                converted.append(BadImage(str(paths[i]), f"of mode {mode}, converted to RGB as by load_image"))
    return faults, converted


def _look_at(path: Path, decode: bool) -> tuple[str | None, str]:
    """Returns why an image file cannot be read, None if it can, and its mode, `""` if it cannot.

    It is decoded for `decode`, or if it may be cut off. Raises ImportError without Pillow, and nothing for the file.
    """
    require_packages("An image folder", ("PIL",), "images")
    from PIL import Image

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "neither a file nor a folder", ""
        if not status.st_size:
            return "an empty file", ""
        with Image.open(path) as image:
            check_mode(image)
            mode, kind = image.mode, image.format
        if decode or not _has_its_end(path, kind, status.st_size):
            load_image(path)
        return None, mode
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        cause = error.__cause__ or error  # load_image names the file, and so does the caller
        return f"not a picture that can be read: {cause}", ""


def _has_its_end(path: Path, kind: str | None, size: int) -> bool:
    """Whether the last bytes of a file are those that end its format; False where these are not known.

    Raises OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        if kind == "WEBP":  # says its length, without the first eight bytes
            return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
        file.seek(max(0, size - 64))
        return file.read().rstrip(b"\0").endswith(ENDS[kind]) if kind in ENDS else False
