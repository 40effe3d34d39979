"""Splits: which folder, or which entry of a dict, holds the images to train on, and which those to test on."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit._text import printable

# What the splits are called: without case, digits and punctuation, and without SUFFIX. The first that exists counts.
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation", "heldout", "holdout"),
}
SUFFIX = re.compile("(set|data|images|split)$")  # training_set, test_data

# What systems and archives leave behind. Names that begin with a dot are hidden and are left out, too.
NOT_DATA = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found")


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
    """The folders of classes in a data set.

    Args:
        root: A folder of splits, or a folder of classes, which is then that of both splits.
        class_names: The classes, if they are known: a folder that is called like one of them is no split.

    Returns:
        From `"train"` and `"test"`, as far as they exist, to a folder.

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
    matches: dict[str, dict[int, list[Any]]] = {}
    for name in names:
        match = _split_of(name)
        if match is not None:
            matches.setdefault(match[0], {}).setdefault(match[1], []).append(name)
    # Training images belong together; of test and validation images, one of both is enough.
    best = {s: sum(m.values(), []) if s == "train" else m[min(m)] for s, m in matches.items()}
    for split, candidates in best.items():
        if len(candidates) > 1:
            raise ValueError(f"{where} has more than one {split} split: {candidates}. Leave one, or rename the others.")
    return {split: best[split][0] for split in SPLITS if split in best}
