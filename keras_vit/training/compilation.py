"""When a training run is compiled with XLA."""

import keras

from keras_vit._devices import keras_leaves_xla_out
from keras_vit._keras import layers_inside

_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


def jit_compile(model: keras.Model, updates: int) -> bool | str:
    """What `compile(jit_compile=...)` gets for a training run.

    Keras 3.15 leaves XLA out where TensorFlow sees CPUs only. In float32 XLA is the quicker way to train there
    (docs/speed.md), in bfloat16 that depends on the processor; it draws other masks of dropout. Where nothing is known,
    Keras chooses.

    Args:
        model: The model that is to be trained, made already.
        updates: How many there will be. Compiling takes a few seconds longer, which a short run does not win back.
    """
    if updates < _UPDATES_WORTH_COMPILING or not keras_leaves_xla_out(model):
        return "auto"
    return True if all(_suits_xla(layer) for layer in layers_inside(model)) else "auto"


def _suits_xla(layer: keras.layers.Layer) -> bool:
    return layer.supports_jit and layer.compute_dtype == "float32"
