"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

from keras_vit.export.checking import TOLERANCES
from keras_vit.export.exporting import export
from keras_vit.export.formats import FORMATS, Format
from keras_vit.export.precision import PRECISIONS
from keras_vit.export.report import ExportReport

__all__ = ["FORMATS", "PRECISIONS", "TOLERANCES", "ExportReport", "Format", "export"]
