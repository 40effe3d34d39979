"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

from keras_vit.export.exporting import export
from keras_vit.export.formats import FORMATS, Format

__all__ = ["FORMATS", "Format", "export"]
