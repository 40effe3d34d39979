"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

from keras_vit.export.exporting import FORMATS, PRECISIONS, ExportReport, export
from keras_vit.export.formats import Format
from keras_vit.export.processes import TOLERANCES

__all__ = ["FORMATS", "PRECISIONS", "TOLERANCES", "ExportReport", "Format", "export"]
