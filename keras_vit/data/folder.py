"""Pictures in folders, one folder for each class: found, looked at before the first step, and read."""

import collections
import os
import stat
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vit._progress import ProgressBar
from keras_vit._text import printable
from keras_vit.data.checks import BadImage, check_class_name
from keras_vit.data.examples import Examples, fingerprint
from keras_vit.data.splits import is_folder, split_folders, visible
from keras_vit.preprocessing import load_image

# What an image file is called, without case.
IMAGE_SUFFIXES = frozenset(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split())
"""What the name of an image file ends with, in lower case; other files of a folder are passed over.

Examples:
    >>> ".jpg" in data.IMAGE_SUFFIXES
    True
"""
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


def open_folder(
    root: str | os.PathLike,
    split: str,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    check: str = "headers",
) -> Examples:
    """The pictures of a split, sorted by class and name.

    Args:
        root: A folder with `train/` and `test/` (or `val/`, `validation/`), each with one folder for each class, or
            the folder of the classes itself. Classes may have sub-folders.
        split: `"train"` or `"test"`.
        class_names: The classes in the order of the labels; `None` for the names of the training folders, sorted.
        on_bad_image: `"stop"` or `"skip"`.
        check: `"headers"` opens every file and decodes none; `"decode"` decodes every file; `"none"` looks at none.

    Returns:
        The examples; their `read` decodes a file.

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
    bad: list[BadImage] = []
    names = list(class_names) if class_names is not None else _classes(training, on_bad_image, bad)
    files = _files(folder, names, on_bad_image, bad, one_split=folder == training)
    paths = [path for name in names for path in files[name]]
    labels = np.repeat(np.arange(len(names)), [len(files[name]) for name in names])
    converted: list[BadImage] = []
    if check != "none":
        keep = _look_at(paths, check, bad, converted)
        if len(keep) < len(paths) and on_bad_image == "stop":
            _stop(bad)
        paths, labels = [paths[i] for i in keep], labels[keep]
    for label, name in enumerate(names):
        if files[name] and not (labels == label).any():
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


def _classes(folder: Path, on_bad_image: str, bad: list[BadImage]) -> list[str]:
    names = [entry.name for entry in visible(folder) if is_folder(entry)]
    empty = [name for name in names if not image_files(folder / name)]
    for name in empty:
        if on_bad_image == "stop":
            raise ValueError(
                f"The class folder {str(folder / name)!r} has no pictures. Fill or remove it, "
                'or leave the class out with on_bad_image="skip".'
            )
        bad.append(BadImage(str(folder / name), "a class folder without pictures: there is no such class"))
    names = [name for name in names if name not in empty]
    for name in names:
        check_class_name(name, f"The folder {str(folder / name)!r}")
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "none"
        raise ValueError(
            f"A classifier needs two classes or more, but {str(folder)!r} has {found}. "
            "Expected: one folder of pictures for each class, directly or in train/ and test/."
        )
    return names


def _files(
    folder: Path, names: list[str], on_bad_image: str, bad: list[BadImage], one_split: bool
) -> dict[str, list[Path]]:
    """The pictures of every class, after a look at whether the classes are the same."""
    others: list[str] = []
    files: dict[str, list[Path]] = {}
    for entry in visible(folder):
        if is_folder(entry):
            files[entry.name] = image_files(entry.path, others)
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            others.append(entry.path)  # beside the folders of the classes
    unknown = [name for name, paths in files.items() if name not in names and paths]
    if unknown:
        raise ValueError(
            f"{str(folder)!r} has classes that {'class_names' if one_split else 'the training data'} "
            f"does not have: {unknown[:10]}. The classes are {names[:10]}{' ...' if len(names) > 10 else ''}."
        )
    for name in names:
        if not files.get(name):
            reason = f"no pictures of the class {name!r}"
            if on_bad_image == "stop":
                raise ValueError(f'{str(folder)!r} has {reason}. Add some, or go on with on_bad_image="skip".')
            bad.append(BadImage(str(folder / name), reason))
    if others:
        what = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        listed = ", ".join(map(printable, others[:3]))
        text = f"{what} no picture of a class, by name or by place, and left out: {listed}."
        warnings.warn(text, stacklevel=4)
    return {name: files.get(name, []) for name in names}


def _look_at(paths: list[Path], check: str, bad: list[BadImage], converted: list[BadImage]) -> np.ndarray:
    """The indices of the files that can be read, as far as `check` sees."""
    text = "Decoding pictures" if check == "decode" else "Looking at pictures"
    shown = len(paths) >= PROGRESS_FROM
    keep = []
    with (
        ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool,
        ProgressBar(text, len(paths), shown=shown) as bar,
    ):
        looked = pool.map(_decode if check == "decode" else _header, paths)
        for i, (fault, mode) in enumerate(bar.track(looked)):
            if fault:
                bad.append(BadImage(str(paths[i]), fault))
            else:
                keep.append(i)
                if mode in CONVERTED:
                    converted.append(BadImage(str(paths[i]), CONVERTED[mode]))
    return np.array(keep, dtype="int64")


def _header(path: Path) -> tuple[str | None, str]:
    """What is wrong with a file as far as its first bytes tell, and its mode."""
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
            if 0 in image.size:
                return "it has no pixels", ""
            if image.mode in ("I", "F"):
                return f"mode {image.mode!r}, 32 bits, does not say what is white; scale it to 0..255 first", ""
            return None, image.mode
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        return f"not a picture that can be read: {error}", ""


def _decode(path: Path) -> tuple[str | None, str]:
    fault, mode = _header(path)
    if fault is None:
        try:
            load_image(path)
        except Exception as error:
            fault = str(error)
    return fault, mode


def _stop(bad: list[BadImage]) -> None:
    kinds = collections.Counter(Path(image.path).parent.name for image in bad)
    more = (
        f" There are {len(bad)} such files, in {', '.join(map(printable, sorted(kinds)[:5]))}." if len(bad) > 1 else ""
    )
    raise ValueError(
        f'{printable(bad[0].path)}: {bad[0].reason}.{more} Repair them, or go on without: on_bad_image="skip".'
    )
