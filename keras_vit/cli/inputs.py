"""What commands read: models, data and pictures, checked before Keras starts, which takes seconds; and that start."""

import faulthandler
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from keras_vit._arguments import printable, warn_caller
from keras_vit._files import check_folder
from keras_vit._importing import IS_PROGRAM, choose_backend
from keras_vit.cli.program import TRACEBACK, only_for

BATCH = 32  # pictures that are in memory at a time

Weights = Annotated[str, Parameter(help="a file, a folder, an address, a name of the catalogue, or a variant")]
Pictures = Annotated[list[str], Parameter(help="pictures, and folders with all that are in them")]
Output = Annotated[str, Parameter(alias="-o")]
Overwrite = Annotated[bool, Parameter(help="replace the output if it exists")]
Like = Annotated[str | None, Parameter(help="of a checkpoint file without a config: a name of timm, or a variant")]
Names = Annotated[str | None, Parameter(help="what the classes are called", metavar="A,B,...")]
NamesFrom = Annotated[str | None, Parameter(help="a text file with a name on each line instead")]
Tokenizer = Annotated[str | None, Parameter(help="a tokenizer.json or .model, where none lies beside the weights")]
Data = Annotated[
    str,
    Parameter(help="a folder with train/ and test/ or one folder per class, a table such as labels.csv, or tfds:NAME"),
]
_DATA = Parameter(name="*", group="the data")
_LABEL = "of a table: the column of labels, or several of 0 and 1, one for each class (default: label)"
_COCO = "boxes, or segments of an EoMT: COCO's annotations of DATA"
_BAD = "what to do about files that are not images"
_TASK = "of DATA: classes; masks in a folder with images/ and masks/ (of an EoMT also instances/); or boxes"


@_DATA
class Masks(TypedDict, total=False):
    """How masks are read."""

    ignore: Annotated[int, Parameter(help="segmentation: the number that stands for no class (default: 255)")]
    reduce_zero_label: Annotated[bool, Parameter(help="segmentation: 0 stands for no class as well, as in ADE20K")]


@_DATA
class Columns(TypedDict, total=False):
    """How a table is read."""

    file: Annotated[str, Parameter(help="of a table: the column of image files (default: file)")]
    label: Annotated[list[str], Parameter(consume_multiple=True, help=_LABEL)]
    separator: Annotated[str, Parameter(help="of a table: what stands between the labels of an image")]
    target: Annotated[Literal["class", "multilabel", "number"], Parameter(help="of a table: what the labels are")]


@_DATA
@dataclass(frozen=True)
class Kind:
    """What DATA is."""

    task: Annotated[Literal["classification", "segmentation", "detection"], Parameter(help=_TASK)] = "classification"
    annotations: Annotated[str | None, Parameter(help=_COCO)] = None
    on_bad_image: Annotated[Literal["stop", "skip"], Parameter(help=_BAD)] = "stop"

    def check(self, data: str, masks: Masks, columns: Columns, recipe: str = "") -> None:
        """Raises ValueError for what does not apply to DATA."""
        only_for("--task segmentation", self.task == "segmentation", **masks)
        boxes = self.task == "detection" or "/eomt" in recipe.lower()
        only_for("--task detection or --recipe segmentation/eomt_...", boxes, annotations=self.annotations)
        only_for("--task classification", self.task == "classification", **columns)
        only_for("tables", is_table(data), **columns)


def is_table(data: str) -> bool:
    """Whether DATA is a file of rows."""
    return Path(data).suffix.lower() in (".csv", ".tsv", ".parquet")


def start_keras() -> None:
    """Imports Keras and its framework, if that has not been done; in the program libraries are silent from then on."""
    if "keras" in sys.modules:
        return
    choose_backend()
    if IS_PROGRAM and not os.environ.get(TRACEBACK):
        _keep_stderr_for_python()
    import keras  # noqa: F401


def _keep_stderr_for_python() -> None:
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


def labelled_data(data: str, columns: Columns) -> Any:
    """Returns DATA as `open_data` takes it: a `LabelTable`, the path of a folder, or `tfds:NAME`."""
    if is_table(data):
        from keras_vit.data.tables import open_table

        label = columns.get("label", ["label"])
        named: dict[str, Any] = {**columns, "label": label if len(label) > 1 else label[0]}
        return open_table(data, **named)
    if not data.startswith("tfds:"):
        from keras_vit.data.examples import split_folders

        if not os.path.isdir(data):
            what = "It is a file." if os.path.exists(data) else "There is no such folder."
            raise FileNotFoundError(f"DATA must be an image folder or tfds:NAME, but {data!r} was given. {what}")
        split_folders(Path(data))  # ValueError where splits and classes cannot be told apart
    return data


def _pictures_in(paths: Sequence[str]) -> list[tuple[Path, Path]]:
    """Returns the files, and all pictures in the folders, each behind the folder that it was found in."""
    from keras_vit.data import image_files

    check_exists(*paths)
    found: list[tuple[Path, Path]] = []
    for path in map(Path, paths):
        found += [(path, file) for file in image_files(path)] if path.is_dir() else [(path.parent, path)]
    if not found:
        raise ValueError(f"There are no pictures in {', '.join(paths)}.")
    return found


def picture_files(paths: Sequence[str], skip: bool | None = None) -> list[str]:
    """The paths of pictures: the files, and all pictures in the folders; each was looked into, without Keras."""
    # Those that cannot be read are left out with `skip`; None: the command has no such flag.
    # TIFFs are not, which may have other channels than Pillow knows.
    from keras_vit.data.examples import Reading, good_files

    files = [file for _, file in _pictures_in(paths)]
    for file in files:
        if not os.access(file, os.R_OK):
            raise PermissionError(f"{file} may not be read.")
    known = [file for file in files if file.suffix.lower() not in (".tif", ".tiff")]
    _, bad, _ = good_files(known, Reading("skip"), str)
    if bad and (not skip or len(bad) == len(files)):
        more = f" There are {len(bad)} such files." if len(bad) > 1 else ""
        more += "" if skip is None else " --skip-unreadable leaves such files out."
        raise ValueError(f"{bad[0].path}: {bad[0].reason}.{more}")
    for image in bad:
        warn_caller(f"{image.path} is left out: {image.reason}.")
    left_out = {image.path for image in bad}
    return [str(file) for file in files if str(file) not in left_out]


def files_to_write(images: Sequence[str], output: str, format: str | None, overwrite: bool) -> list[tuple[Path, Path]]:
    """Returns pairs of a picture and the file to write: `output` if one file is given, otherwise one below `output`."""
    found, ending = _pictures_in(images), f".{format or 'png'}"
    pairs = [(file, Path(output, file.relative_to(root)).with_suffix(ending)) for root, file in found]
    is_file = len(images) == 1 and not os.path.isdir(images[0])
    if is_file:
        pairs = [(pairs[0][0], Path(output))]
        if format is not None and Path(output).suffix != ending:
            raise ValueError(f"--format {format} is for files in a folder, but the output is {output}.")
    check_folder(Path(output).parent if is_file else output)
    for target, pictures in Counter(target for _, target in pairs).items():
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
    """The lines of a UTF-8 file, without empty ones and space around them."""
    check_exists(path)
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


def names_in(names: str | None, names_from: str | None) -> list[str] | None:
    """Returns the names between commas, or the lines of a file that are not empty; None where neither is given."""
    if names is not None and names_from is not None:
        raise ValueError("Give either --names A,B,... or --names-from FILE.")
    if names is not None:
        return [name.strip() for name in names.split(",")]
    return None if names_from is None else lines_of(names_from)


def summary(wrote: str, *commands: Sequence[str]) -> str:
    """The text that a long command ends with: what was written, and the commands that people go on with."""
    lines = (f"  keras-vit {shlex.join(map(printable, command))}" for command in commands)
    return "\n".join([wrote, *(["Next:"] if commands else []), *lines])
