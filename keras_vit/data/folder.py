"""Pictures in folders, one folder for each class: found, looked at before the first step, and read."""

import collections
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from keras_vit.data.checks import BadImage
from keras_vit.data.examples import Examples, fingerprint
from keras_vit.preprocessing import load_image

SUFFIXES = set(".bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split())
SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
NO_PICTURES = ("thumbs.db", "desktop.ini")  # left behind by Windows, as hidden files by others
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
    folder, training = _split_folder(root, split), _split_folder(root, "train")
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
        bad=bad,
        converted=converted,
    )


def _split_folder(root: Path, split: str) -> Path:
    """`root/train` for a root with splits, `root` for a folder of classes."""
    found = {s: next((root / n for n in names if (root / n).is_dir()), None) for s, names in SPLITS.items()}
    if found["train"] is None:
        return root
    if found[split] is None:
        raise ValueError(f"There is no {' or '.join(SPLITS[split])} folder in {root}, which has {found['train'].name}.")
    return found[split]


def _visible(folder: Path) -> list[os.DirEntry]:
    with os.scandir(folder) as entries:
        shown = [e for e in entries if not e.name.startswith(".") and e.name.lower() not in NO_PICTURES]
    return sorted(shown, key=lambda entry: entry.name)


def _pictures(folder: Path, others: list[str]) -> list[Path]:
    """All pictures below a folder, sorted; `others` is told of files that are none by their names."""
    found = []
    for entry in _visible(folder):
        if entry.is_dir():
            found += _pictures(Path(entry.path), others)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            found.append(Path(entry.path))
        else:
            others.append(entry.path)
    return found


def _classes(folder: Path, on_bad_image: str, bad: list[BadImage]) -> list[str]:
    names = [entry.name for entry in _visible(folder) if entry.is_dir()]
    empty = [name for name in names if not _pictures(folder / name, [])]
    for name in empty:
        if on_bad_image == "stop":
            raise ValueError(
                f"The class folder {str(folder / name)!r} has no pictures. Fill or remove it, "
                'or leave the class out with on_bad_image="skip".'
            )
        bad.append(BadImage(str(folder / name), "a class folder without pictures: there is no such class"))
    names = [name for name in names if name not in empty]
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
    there = {e.name: _pictures(Path(e.path), others) for e in _visible(folder) if e.is_dir()}
    unknown = [name for name, paths in there.items() if name not in names and paths]
    if unknown:
        raise ValueError(
            f"{str(folder)!r} has classes that {'class_names' if one_split else 'the training data'} "
            f"does not have: {unknown[:10]}. The classes are {names[:10]}{' ...' if len(names) > 10 else ''}."
        )
    for name in names:
        if not there.get(name):
            reason = f"no pictures of the class {name!r}"
            if on_bad_image == "stop":
                raise ValueError(f'{str(folder)!r} has {reason}. Add some, or go on with on_bad_image="skip".')
            bad.append(BadImage(str(folder / name), reason))
    if others:
        what = f"{len(others)} file{'s are' if len(others) > 1 else ' is'} no picture by name"
        warnings.warn(f"{what} and left out: {', '.join(others[:3])}.", stacklevel=4)
    return {name: there.get(name, []) for name in names}


def _look_at(paths: list[Path], check: str, bad: list[BadImage], converted: list[BadImage]) -> np.ndarray:
    """The indices of the files that can be read, as far as `check` sees."""
    from rich.progress import track

    with ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool:
        looked = pool.map(_decode if check == "decode" else _header, paths)
        text = "Decoding pictures" if check == "decode" else "Looking at pictures"
        looked = track(looked, text, total=len(paths), disable=len(paths) < PROGRESS_FROM)
        keep = []
        for i, (fault, mode) in enumerate(looked):
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
        if not path.stat().st_size:
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
    more = f" There are {len(bad)} such files, in {', '.join(sorted(kinds)[:5])}." if len(bad) > 1 else ""
    raise ValueError(f'{bad[0].path}: {bad[0].reason}.{more} Repair them, or go on without: on_bad_image="skip".')
