"""The formats, one file each, which holds all that is particular to it: the files it writes, its precisions, its needs.

`FORMATS` has a row for each. What runs a file of it, without Keras, is a module in `keras_vit/export/runtimes/`.
"""

from pathlib import Path

from keras_vit.export.formats import litert, onnx, openvino, saved_model, stablehlo, torch
from keras_vit.export.formats.format import Format, Precision

FORMATS: dict[str, Format] = {
    row.name: row
    for row in (saved_model.FORMAT, litert.FORMAT, onnx.FORMAT, openvino.FORMAT, torch.FORMAT, stablehlo.FORMAT)
}
"""The formats that `export` writes, by name.

Examples:
    >>> sorted(export.FORMATS)
    ['litert', 'onnx', 'openvino', 'saved_model', 'stablehlo', 'torch']
"""
PRECISIONS: dict[str, dict[str, Precision]] = {name: row.precisions for name, row in FORMATS.items()}
"""For each format the precisions that a file can have, what each needs, and why it cannot have the others.

Examples:
    >>> export.PRECISIONS["litert"]["int8"].calibration
    True
"""


def format_of(path: Path, name: str | None) -> Format:
    """The row of a format, by its name or else by the path's suffix.

    Args:
        path: Where the file is to be.
        name: A key of `FORMATS`; None for the one that the suffix belongs to. A path without one is a SavedModel.

    Raises:
        ValueError: if there is no such format, or the path does not end as the format wants.
    """
    if name is None:
        by_suffix = {row.suffix: row for row in FORMATS.values()}
        if path.suffix not in by_suffix:
            choices = ", ".join(f"{suffix or 'no suffix'} ({row.name})" for suffix, row in by_suffix.items())
            raise ValueError(f"path must end in one of {choices}, but {str(path)!r} was given. Or name a format.")
        return by_suffix[path.suffix]
    if name not in FORMATS:
        raise ValueError(f"format must be one of {sorted(FORMATS)}, but {name!r} was given.")
    row = FORMATS[name]
    if row.suffix and path.suffix != row.suffix:
        raise ValueError(f"path must end in {row.suffix!r} for the format {name!r}, but {str(path)!r} was given.")
    return row
