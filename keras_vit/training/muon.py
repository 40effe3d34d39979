"""Muon: orthogonal updates of the matrices inside the blocks, AdamW for all other weights."""

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit._arguments import check_number, matches
from keras_vit.training.optimizers import AdamW

MATRICES = "block_[0-9]*/kernel"  # hidden layers; the embedding, a stem and the head are AdamW's
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
NORM_EPSILON = 1e-7


@keras.saving.register_keras_serializable(package="keras_vit")
class Muon(AdamW):
    """Momentum whose matrices are made nearly orthogonal, for the kernels of the blocks; `AdamW` for the rest.

        m = momentum * m + (1 - momentum) * gradient
        u = orthogonal((1 - momentum) * gradient + momentum * m)
        w = w - learning_rate * (0.2 * sqrt(max(rows, columns)) * u + weight_decay * w)

    (Keller Jordan's Muon with Nesterov's momentum and five Newton-Schulz iterations; the factor of arXiv 2502.16982,
    by which it takes the learning rate and the weight decay of AdamW. `torch.optim.Muon` with
    `adjust_lr_fn="match_rms_adamw"` computes the same, its iterations in bfloat16: here they are in float32.)
    `keras.optimizers.Muon` makes the head orthogonal as well and counts batches where this counts updates.
    The arguments that are not listed here are those of `AdamW`, and are for the rest, but for `weight_decay`,
    `momentum_dtype` and `rate_multipliers`, which are for all weights.

    Args:
        momentum: Share of m that stays.

    Examples:
        >>> optimizer = training.Muon(training.WarmupDecay(1e-3, steps=100), weight_decay=0.1)
        >>> small.compile(optimizer, training.SoftmaxLoss())
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.95,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        momentum_dtype: str | None = None,
        weight_decay: float | None = None,
        rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keeps the arguments; ValueError for a number that is out of its range."""
        rest = (momentum_dtype, weight_decay, rate_multipliers)
        super().__init__(learning_rate, beta_1, beta_2, epsilon, *rest, **kwargs)
        self.momentum = check_number("momentum", momentum)

    def has_velocity(self, variable: keras.Variable) -> bool:
        """Whether Adam moves a weight."""
        return not is_moved_by_muon(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one weight."""
        index, dtype = self.index_of(variable), variable.dtype  # a variable of TensorFlow has no path
        if self.velocities[index] is not None:
            return super().update_step(gradient, variable, learning_rate)
        m = self.momentums[index]
        gradient = (1.0 - self.momentum) * ops.cast(gradient, dtype)
        new_m = gradient + self._decayed_momentum(m, self.momentum, dtype)
        self.assign(m, ops.cast(new_m, m.dtype))
        scale = 0.2 * math.sqrt(max(variable.shape))
        self._update(variable, scale * orthogonal(gradient + self.momentum * new_m), learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


def is_moved_by_muon(variable: keras.Variable) -> bool:
    """Whether a weight is a matrix of a block; AdamW moves all others."""
    return len(variable.shape) == 2 and matches(variable.path, MATRICES)


def orthogonal(matrix: Any) -> Any:
    """About U V^T of a matrix U S V^T: its singular values become about 1 (0.7 to 1.2)."""
    a, b, c = COEFFICIENTS
    upright = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if upright else matrix
    x = x / ops.maximum(ops.sqrt(ops.sum(ops.square(x))), NORM_EPSILON)
    for _ in range(ITERATIONS):
        gram = x @ ops.transpose(x)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return ops.transpose(x) if upright else x
