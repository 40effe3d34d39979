"""`keras-vit export`: its arguments, and what it does with them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.exporting import export
from keras_vit.export.formats import FORMATS
from keras_vit.export.report import ExportReport
from keras_vit.preprocessing import load_image
from keras_vit.zoo import load_any

PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    suffixes = ", ".join(f"{row.suffix or 'none'} ({row.name})" for row in FORMATS.values())
    parser.add_argument("weights", metavar="WEIGHTS", help="a file, a name of the catalogue, or a variant")
    parser.add_argument("out", metavar="OUT", help=f"the file to write; its suffix tells the format: {suffixes}")
    parser.add_argument("--format", choices=sorted(FORMATS), help="where the suffix does not tell")
    parser.add_argument("--precision", default="float32", help="float16, dynamic_int8, int8 ... (default: %(default)s)")
    parser.add_argument("--image-size", type=_size, help="pixels, or dynamic for any size (default: the checkpoint's)")
    parser.add_argument("--batch-size", type=int, help="images at a time (default: any number)")
    parser.add_argument("--uint8", action="store_true", help="take pixels of 0..255 and scale them in the file")
    parser.add_argument("--softmax", action="store_true", help="answer with probabilities")
    parser.add_argument("--classes", metavar="FILE", help="a text file with a class name on each line")
    parser.add_argument("--calibration", metavar="FOLDER", help="pictures for int8, like those of later")
    parser.add_argument(
        "--images", metavar="FOLDER", help="pictures to compare on; in a folder per class: accuracy too"
    )
    parser.add_argument("--tolerance", type=float, help="largest difference accepted, relative to the answers")
    parser.add_argument("--allow-select-ops", action="store_true", help="allow operators that the runtime lacks")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def run(options: argparse.Namespace) -> tuple[dict[str, Any], ExportReport]:
    """Exports a checkpoint as the arguments say.

    Returns:
        The report as plain data, and as a table.
    """
    model = _model(options.weights, options.image_size)
    names = model.config.class_names
    if options.classes is not None:
        names = Path(options.classes).read_text(encoding="utf-8").splitlines()
    pictures, labels = (None, None) if options.images is None else read_folder(options.images, model, names)
    report = export(
        model,
        options.out,
        options.format,
        precision=options.precision,
        batch_size=options.batch_size,
        uint8_input=options.uint8,
        softmax=options.softmax,
        class_names=names,
        source=Path(options.weights).name if Path(options.weights).exists() else options.weights,
        images=pictures,
        labels=labels,
        calibration=None if options.calibration is None else _read(_files(options.calibration), model),
        allow_select_ops=options.allow_select_ops,
        tolerance=options.tolerance,
        overwrite=options.overwrite,
    )
    return report.to_dict(), report


def read_folder(folder: str, model: Any, names: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads all pictures under a folder, and their classes where they lie in folders.

    Args:
        folder: Pictures, or folders of them, one for each class.
        model: Says what size and which classes the pictures have.
        names: The model's class names, if they are known: each folder has to be called as one of them. Otherwise there
            has to be one folder for each class, in alphabetical order.

    Returns:
        uint8 `(n, height, width, 3)`, and integer labels `(n,)`; None for labels where pictures lie in `folder` itself.

    Raises:
        ValueError: if there are no pictures, or the folders are not classes of the model.
    """
    paths = _files(folder)
    folders = [path.relative_to(folder).parts[0] if path.parent != Path(folder) else None for path in paths]
    if None in folders:
        return _read(paths, model), None
    found = sorted(set(folders))
    unlabelled = f"To compare answers without labels, pass the pictures of one folder: --images {paths[0].parent}"
    if names is None and len(found) != model.config.classes:
        raise ValueError(
            f"{folder} has {len(found)} folders, but {model.name} has {model.config.classes} classes whose names are "
            f"not known. Name them with --classes FILE. {unlabelled}"
        )
    foreign = [name for name in found if names is not None and name not in names]
    if foreign:
        raise ValueError(
            f"{folder} has folders, such as {', '.join(map(repr, foreign[:5]))}, that are not the classes of "
            f"{model.name}: {', '.join(map(repr, names[:5]))}{' ...' if len(names) > 5 else ''}. {unlabelled}"
        )
    order = found if names is None else names
    return _read(paths, model), np.array([order.index(name) for name in folders])


def _files(folder: str) -> list[Path]:
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in PICTURES)
    if not paths:
        raise ValueError(f"There are no pictures ({', '.join(sorted(PICTURES))}) in {folder}.")
    return paths


def _read(paths: list[Path], model: Any) -> np.ndarray:
    return np.stack([np.rint(load_image(path, model.config.image_size)).astype("uint8") for path in paths])


def _model(weights: str, image_size: int | str | None) -> Any:
    model = load_any(weights)
    return model if image_size is None else model.with_image_size(image_size)


def _size(text: str) -> int | str:
    return text if text == "dynamic" else int(text)
