"""The formats: a file each, with what writes a file, what runs it and what both need."""

from keras_vit.export.format import Format, Precision
from keras_vit.export.formats.litert import LiteRT
from keras_vit.export.formats.onnx import ONNX
from keras_vit.export.formats.openvino import OpenVINO
from keras_vit.export.formats.saved_model import SavedModel
from keras_vit.export.formats.stablehlo import StableHLO
from keras_vit.export.formats.torch import Torch

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
