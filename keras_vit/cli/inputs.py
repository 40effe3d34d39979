"""What commands read: models, data and pictures, checked before Keras starts, which takes seconds; and that start."""

import faulthandler
import os
import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit._arguments import printable
from keras_vit._backend import choose_backend
from keras_vit._names import IS_PROGRAM
from keras_vit.cli.program import (
    ANNOTATED,
    CLASSES,
    MASKS,
    TABLES,
    TRACEBACK,
    kind_of_data,
    only,
    option,
    switch,
)

BATCH = 32  # pictures that are in memory at a time

SOURCE = "a file, a folder, an address, a name of the catalogue, or a variant"
WEIGHTS = option("weights", SOURCE, metavar="WEIGHTS")
WEIGHTS_OPTION = option("--weights", SOURCE, default="ViT-B/16")
PICTURES = option("images", "pictures, and folders with all that are in them", nargs="+", metavar="IMAGE|FOLDER")
OVERWRITE = switch("--overwrite", "replace OUT if it exists")
DATA = "a folder with train/ and test/ or one folder per class, a table such as labels.csv, or tfds:NAME"
DATA_OPTIONS = (
    option(
        "--task",
        "of DATA: classes; masks in a folder with images/ and masks/ (of an EoMT also instances/); or boxes",
        choices=("classification", "segmentation", "detection"),
        default="classification",
    ),
    only(
        [MASKS],
        option("--ignore", "segmentation: the number that stands for no class (default: 255)", type=int, metavar="N"),
        switch("--reduce-zero-label", "segmentation: 0 stands for no class as well, as in ADE20K", default=None),
    ),
    only(
        [ANNOTATED],
        option("--annotations", "boxes, or segments of an EoMT: COCO's annotations of DATA", metavar="JSON"),
    ),
    only(
        [CLASSES, TABLES],
        option("--file", "of a table: the column of image files (default: file)", metavar="COLUMN"),
        option(
            "--label",
            "of a table: the column of labels, or several of 0 and 1, one for each class (default: label)",
            metavar="COLUMN",
            nargs="+",
        ),
        option("--separator", "of a table: what stands between the labels of an image", metavar="TEXT"),
        option("--target", "of a table: what the labels are", choices=("class", "multilabel", "number")),
    ),
    option("--on-bad-image", "what to do about files that are not images", choices=("stop", "skip"), default="stop"),
)


def start_keras() -> None:
    """Imports Keras and its framework, if that has not been done; in the program libraries are silent from then on."""
    if "keras" in sys.modules:
        return
    choose_backend()
    if IS_PROGRAM and not os.environ.get(TRACEBACK):
        _silence_libraries()
    import keras  # noqa: F401


def _silence_libraries() -> None:
    """Changes the process so that only Python can write to standard error from now on."""
    # Frameworks report what they miss at their start, and when they first compute; Keras starts TensorFlow late on the
    # other backends, too. TensorFlow 2.21 does it whatever its log level is, past `sys.stderr`.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # for worker processes
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)
    faulthandler.enable(sys.stderr)  # a library that ends the process cannot say so any more


def check_source(source: str) -> None:
    """Raises FileNotFoundError for a path without a file, ValueError for an unknown name, both as `load` does."""
    from keras_vit.checkpoints import resolve_source

    resolve_source(source)


def check_exists(*paths: str | None) -> None:
    """Raises FileNotFoundError if there is no file or folder at one of the paths that are not None."""
    for path in paths:
        if path is not None and not os.path.exists(path):
            raise FileNotFoundError(f"There is no file or folder {path}.")


def check_target(path: str, overwrite: bool) -> None:
    """Raises FileExistsError unless `overwrite`, if there is a file or a folder that is not empty at the path."""
    if not overwrite and (os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path))):
        raise FileExistsError(f"{path} exists. Choose another path or pass --overwrite.")


def labelled_data(options: Namespace) -> Any:
    """Returns DATA as `open_data` takes it: a `LabelTable`, the path of a folder, or `tfds:NAME`."""
    data = options.data
    if kind_of_data(data) == "tables":
        from keras_vit.data.tables import open_table

        columns = given(options, "file", "label", "separator", "target")
        if len(columns.get("label", ())) == 1:
            columns["label"] = columns["label"][0]
        return open_table(data, **columns)
    if not data.startswith("tfds:"):
        from keras_vit.data.examples import split_folders

        if not os.path.isdir(data):
            what = "It is a file." if os.path.exists(data) else "There is no such folder."
            raise FileNotFoundError(f"DATA must be an image folder or tfds:NAME, but {data!r} was given. {what}")
        split_folders(Path(data))  # ValueError where splits and classes cannot be told apart
    return data


def picture_files(paths: Sequence[str]) -> list[str]:
    """The paths of pictures: the files, and all pictures in the folders; each was looked into, without Keras."""
    # TIFFs are not, which may have other channels than Pillow knows.
    from keras_vit.data import image_files
    from keras_vit.data.examples import Reading, good_files

    check_exists(*paths)
    files = [Path(file) for path in paths for file in (image_files(path) if os.path.isdir(path) else [path])]
    if not files:
        raise ValueError(f"There are no pictures in {', '.join(map(printable, paths))}.")
    for file in files:
        if not os.access(file, os.R_OK):
            raise PermissionError(f"{file} may not be read.")
    known = [file for file in files if file.suffix.lower() not in (".tif", ".tiff")]
    _, bad, _ = good_files(known, Reading("skip"), str)
    if bad:
        raise ValueError(f"{bad[0].path}: {bad[0].reason}.")
    return [str(file) for file in files]


def files_to_write(images: Sequence[str], output: str, ending: str, overwrite: bool) -> list[tuple[Path, Path]]:
    """Returns pairs of a picture and the file to write: `output` for one picture, otherwise one below `output`."""
    from keras_vit.data import image_files

    check_exists(*images)
    pairs: list[tuple[Path, Path]] = []
    for path in map(Path, images):
        root, files = (path, image_files(path)) if path.is_dir() else (path.parent, [path])
        pairs += [(file, Path(output, file.relative_to(root)).with_suffix(ending)) for file in files]
    if not pairs:
        raise ValueError(f"There are no pictures in {', '.join(images)}.")
    if len(images) == 1 and not Path(images[0]).is_dir():
        pairs = [(Path(images[0]), Path(output))]
    targets = Counter(target for _, target in pairs)
    for target, pictures in targets.items():
        if pictures > 1:
            raise ValueError(f"Two pictures would be written to {target}: give them one by one.")
        check_target(str(target), overwrite)
    return pairs


def predicted(model: Any, files: Sequence[str]) -> Any:
    """Returns the outputs of a model for picture files, an array with a row for each; `BATCH` are read at a time."""
    import numpy as np

    parts = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
    return np.concatenate([model.predict(model.preprocess(part), verbose=0) for part in parts])


def lines_of(path: str) -> list[str]:
    """Returns the lines of a UTF-8 file, without empty ones and space around them."""
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


def chosen(options: Namespace, *names: str) -> dict[str, Any]:
    """Returns the values of the options by name, as arguments of a function that calls them the same."""
    return {name: getattr(options, name) for name in names}


def given(options: Namespace, *names: str) -> dict[str, Any]:
    """Returns the values, by name, of the options that are not None."""
    return {name: value for name, value in chosen(options, *names).items() if value is not None}


def summary(wrote: str, *commands: Sequence[str]) -> str:
    """Returns the text that a long command ends with: what was written, and the commands that people go on with."""
    lines = (f"  keras-vit {shlex.join(map(printable, command))}" for command in commands)
    return "\n".join([wrote, *(["Next:"] if commands else []), *lines])
