"""Batch normalisation as PyTorch computes it."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit._arguments import Tensor
from keras_vit.layers.base import BaseLayer, registered
from keras_vit.layers.ops import float32_or_better


@registered
class BatchNormalization(keras.layers.BatchNormalization, BaseLayer):
    """`keras.layers.BatchNormalization` over the last axis, with the numbers of `torch.nn.BatchNorm2d`.

    Epsilon is 1e-5. The running variance is that of a sample (n - 1), of which a step takes a share of 0.1. Keras's
    defaults are other numbers, and its running variance divides by n.

    Args:
        momentum: What a step keeps of the running statistics: 1 minus PyTorch's momentum.
        epsilon: What is added to the variance.

    Input: `(batch, ..., D)`. Output: the same shape.

    Examples:
        >>> layer = layers.BatchNormalization()
        >>> y = layer(np.array([[0.0], [2.0]], "float32"), training=True)
        >>> [round(float(layer.moving_variance[0]), 6), float(layer.moving_mean[0]) > 0]  # 0.9 + 0.1 * 2
        [1.1, True]
    """

    processes: Any = None  # those of a run, each with a part of the batch; None where all of it is here

    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "axis": -1, "momentum": momentum, "epsilon": epsilon})

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        """Normalises each channel: in training by the moments of the whole batch, which the running ones follow."""
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        x = ops.cast(inputs, float32_or_better(inputs.dtype))
        axes, parts = [*range(len(x.shape) - 1)], 1
        mean, variance = ops.moments(x, axes=axes)
        if self.processes is not None:
            parts = self.processes.count
            mean = self.processes.mean_with_gradient(mean)
            variance = self.processes.mean_with_gradient(ops.mean(ops.square(x - mean), axis=axes))
        count = ops.cast(math.prod(ops.shape(x)[:-1]) * parts, x.dtype)
        sample = variance * count / ops.maximum(count - 1, 1)
        for running, now in ((self.moving_mean, mean), (self.moving_variance, sample)):
            old = ops.convert_to_tensor(running)  # a Variable would make the momentum a float32
            running.assign(self.momentum * old + (1 - self.momentum) * ops.cast(now, running.dtype))
        outputs = ops.batch_normalization(x, mean, variance, -1, self.beta, self.gamma, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)
