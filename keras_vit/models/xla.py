"""XLA on TensorFlow's CPUs: whether it is quicker than TensorFlow's own kernels on this processor, found by a trial.

Keras 3.15 leaves XLA out where TensorFlow sees CPUs only. Which of the two is quicker depends on the processor: XLA
takes 0.82 of the time on one without AVX-512, and up to 1.16 on one that has it (docs/speed.md).
"""

import statistics
import time
from collections import Counter
from typing import Any

import keras
from keras import tree

from keras_vit._keras import layers_inside

_IMAGES = 8  # a larger batch takes longer and has the same ratio
_ROUNDS = 5
_ANY_SIZE = {3: 197, 4: 14}  # tokens; height and width of a map: where the model takes images of any size
# The share of the time from which compiling is worth its seconds. In training, what lies between the blocks gains less
# than they do: 0.94 of the time for ViT-Ti/16 where a block takes 0.78, 1.05 for ViT-B/16 where it takes 0.88.
_WORTH_COMPILING = {False: 0.95, True: 0.85}

_shares: dict[tuple[Any, ...], float] = {}


def xla_is_quicker(model: keras.Model, batch_size: int = _IMAGES, *, training: bool = False) -> bool:
    """Whether the model's largest repeated layer, a block, gains enough by XLA; it is timed once for each shape.

    The layer is called as in inference, so that no random state and no moving average changes; with `training` its
    gradients are computed as well.
    """
    layer = _block(model)
    batch_size = min(batch_size, _IMAGES)
    shapes = tuple(_shape(tensor, batch_size) for tensor in tree.flatten(layer.input))  # tokens, and their rotation
    weights = [weight.shape for weight in layer.weights]
    key = (type(layer), layer.compute_dtype, str(weights), shapes, training)
    if key not in _shares:
        _shares[key] = _time_share(layer, shapes, training)
    return _shares[key] < _WORTH_COMPILING[training]


def _block(model: keras.Model) -> keras.layers.Layer:
    """The layer with the most parameters among those whose kind occurs more than once in a model's graph."""
    graphs = [layer for layer in layers_inside(model) if isinstance(layer, keras.Model)]
    layers = [layer for graph in graphs for layer in graph.layers if layer.weights and hasattr(layer, "input")]
    kinds = Counter(map(type, layers))
    repeated = [layer for layer in layers if kinds[type(layer)] > 1]
    return max(repeated or layers, key=lambda layer: layer.count_params())


def _shape(tensor: keras.KerasTensor, batch_size: int) -> tuple[int, ...]:
    first, *others = tensor.shape
    return (first or batch_size, *(size or _ANY_SIZE[tensor.ndim] for size in others))


def _time_share(layer: keras.layers.Layer, shapes: tuple[tuple[int, ...], ...], training: bool) -> float:
    """The time with XLA over that without, the median of rounds in turn."""
    import tensorflow as tf

    inputs = [tf.random.stateless_normal(shape, (0, 0), dtype=layer.compute_dtype) for shape in shapes]
    weights = [weight.value for weight in layer.trainable_weights]

    def compute() -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([inputs[0], *weights])
            outputs = layer(*inputs, training=False)
        return tape.gradient(outputs, [inputs[0], *weights]) if training else outputs

    functions = [tf.function(compute), tf.function(compute, jit_compile=True)]
    times = [[_seconds(function) for function in functions] for _ in range(_ROUNDS + 1)]
    return statistics.median(compiled / plain for plain, compiled in times[1:])  # the first round makes the programs


def _seconds(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
