"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

from keras_vit.export.exporting import ExportReport, export
from keras_vit.export.formats import FORMATS, PRECISIONS
from keras_vit.export.formats.format import Format
from keras_vit.export.verification import TOLERANCES

__all__ = ["FORMATS", "PRECISIONS", "TOLERANCES", "ExportReport", "Format", "export"]
