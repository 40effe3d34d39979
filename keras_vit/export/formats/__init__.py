"""The formats: a file each, with what writes a file, what runs it and what both need."""

from pathlib import Path

from keras_vit._arguments import check_choice
from keras_vit.export.format import Format, Precision
from keras_vit.export.formats.frameworks import SavedModel, StableHLO, Torch
from keras_vit.export.formats.litert import LiteRT
from keras_vit.export.formats.onnx import ONNX
from keras_vit.export.formats.openvino import OpenVINO

FORMATS: dict[str, Format] = {
    row.name: row for row in (SavedModel(), LiteRT(), ONNX(), OpenVINO(), Torch(), StableHLO())
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
    """Returns the format of a name, or for None that of the path's suffix."""
    if name is None:
        by_suffix = {row.suffix: row for row in FORMATS.values() if row.suffix}
        if path.suffix not in by_suffix:
            choices = ", ".join(f"{suffix} ({row.name})" for suffix, row in by_suffix.items())
            raise ValueError(
                f'path must end in one of {choices}, but {str(path)!r} was given. format="saved_model" writes a folder.'
            )
        return by_suffix[path.suffix]
    check_choice("format", name, (*FORMATS,))
    row = FORMATS[name]
    if row.suffix and path.suffix != row.suffix:
        raise ValueError(f"path must end in {row.suffix!r} for the format {name!r}, but {str(path)!r} was given.")
    return row
