"""Vision Transformers in Keras 3, with the official numbers, on TensorFlow, JAX and PyTorch."""

import sys

from keras_vit._importing import IS_PROGRAM, choose_backend, import_all, lazy_names

__getattr__ = lazy_names(__name__)

__version__ = "0.4.0"


if not IS_PROGRAM:
    choose_backend()  # before the first import of Keras
    import_all(sys.modules[__name__])
    from keras_vit.zoo import FAMILY_FACTORIES

    globals().update(FAMILY_FACTORIES)  # DeiT_B16, DINOv2_S14 and so on
