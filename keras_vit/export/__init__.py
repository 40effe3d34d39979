"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

import sys
import types
from typing import TYPE_CHECKING, Any

from keras_vit._names import lazy_names
from keras_vit.export.format import Format
from keras_vit.export.formats import FORMATS, PRECISIONS

# What needs Keras, which the process that checks a file does without.
if TYPE_CHECKING:
    from keras_vit.export.exporting import TOLERANCES, ExportOptions, ExportReport, export

__getattr__ = lazy_names(__name__)

__all__ = ["FORMATS", "PRECISIONS", "TOLERANCES", "ExportOptions", "ExportReport", "Format", "export"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns what `export` returns, so that `keras_vit.export(model, path)` does what it says."""
        return self.export(*args, **options)


sys.modules[__name__].__class__ = _Callable
