"""Models to files that run without Keras, from any backend, each checked against the model before it is left there."""

import sys
import types
from typing import Any

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """What `export` returns, so that `keras_vit.export(model, path)` does what it says."""
        return self.export(*args, **options)


sys.modules[__name__].__class__ = _Callable
