"""When a training run is compiled with XLA."""

import keras

from keras_vit._devices import batch_shares
from keras_vit._keras import layers_inside

_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


def jit_compile(model: keras.Model, updates: int) -> bool | str:
    """What `compile(jit_compile=...)` gets for a training run.

    Keras 3.15 leaves XLA out where TensorFlow sees CPUs only. In float32 XLA is the quicker way to train there
    (docs/speed.md), in bfloat16 the slower one; it draws other masks of dropout. Where nothing is known, Keras chooses.

    Args:
        model: The model that is to be trained, made already.
        updates: How many there will be. Compiling takes a few seconds longer, which a short run does not win back.
    """
    if keras.backend.backend() != "tensorflow" or updates < _UPDATES_WORTH_COMPILING:
        return "auto"
    import tensorflow as tf

    only_cpus = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
    if only_cpus and batch_shares(model) == 1 and all(_suits_xla(layer) for layer in layers_inside(model)):
        return True
    return "auto"


def _suits_xla(layer: keras.layers.Layer) -> bool:
    return layer.supports_jit and layer.compute_dtype == "float32"
