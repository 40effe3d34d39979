"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names
from keras_vit.export.format import Format
from keras_vit.export.formats import FORMATS, PRECISIONS

# What needs Keras, which the process that checks a file does without.
if TYPE_CHECKING:
    from keras_vit.export.exporting import TOLERANCES, ExportReport, export

__getattr__ = lazy_names(__name__)

__all__ = ["FORMATS", "PRECISIONS", "TOLERANCES", "ExportReport", "Format", "export"]
