"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

import sys
import warnings

from keras_vit._importing import IS_PROGRAM, choose_backend, import_all, lazy_names

_names = lazy_names(__name__)
# Until version 0.4, these configs were here.
_IN_MODELS = ("DPTConfig", "DetectorConfig", "EoMTConfig", "LinearDepthConfig", "LinearSegmenterConfig")


def __getattr__(name: str) -> object:
    if name not in _IN_MODELS:
        return _names(name)
    warnings.warn(f"keras_vit.{name} is deprecated. Use keras_vit.models.{name}.", DeprecationWarning, stacklevel=2)
    return getattr(_names("models"), name)


__version__ = "0.4.0"


if not IS_PROGRAM:
    choose_backend()  # before the first import of Keras
    import_all(sys.modules[__name__])
    from keras_vit.zoo import FAMILY_FACTORIES

    globals().update(FAMILY_FACTORIES)  # DeiT_B16, DINOv2_S14 and so on
