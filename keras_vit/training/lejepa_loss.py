"""The loss of LeJEPA (arXiv 2511.08544): views of a picture agree, and the embeddings are normally distributed."""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import whole_number
from keras_vit.layers.base import DrawnSeed
from keras_vit.layers.ops import float32_or_better


class LeJEPALoss:
    """`weight * sigreg + (1 - weight) * invariance` of embeddings of several views of each picture.

    - `invariance`: the mean squared distance of the embeddings of all views from the mean of those of the picture's
      global views.
    - `sigreg` (sketched isotropic Gaussian regularisation): embeddings are projected on random directions (slices); for
      each view and slice, the test statistic of Epps and Pulley says how far the pictures' values are from a standard
      normal distribution. It is about 1.05 for normally distributed ones, whatever their number, and grows with the
      number of pictures for others: embeddings that have collapsed to a point have a large one.

    There is no teacher, no stopped gradient and no temperature.

    Args:
        weight: Share of `sigreg` in the loss, 0 to 1.
        slices: How many directions are drawn.
        knots: At how many places, from 0 to `t_max`, characteristic functions are compared.
        t_max: The last of them.
        global_views: How many of the views are global; they come first.
        seed: For directions that are drawn; None for another one each time.

    Raises:
        ValueError: if a number is out of its range; at call time, if the arrays do not fit.

    Source: `LeJEPALoss` of lightly, with one process's pictures (`gather_distributed=False`).

    Examples:
        >>> loss = training.LeJEPALoss(slices=8)
        >>> round(float(loss.terms(np.zeros((4, 16, 3), "float32"))["invariance"]), 4)  # all the same: collapsed
        0.0
    """

    def __init__(
        self,
        weight: float = 0.05,
        slices: int = 1024,
        knots: int = 17,
        t_max: float = 3.0,
        global_views: int = 2,
        *,
        seed: int | None = None,
    ) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must be a number in 0..1, but {weight!r} was given.")
        if not 0 < t_max < math.inf:
            raise ValueError(f"t_max must be a number above 0, but {t_max!r} was given.")
        self.weight, self.t_max = weight, t_max
        self.slices, self.knots = whole_number("slices", slices, 1), whole_number("knots", knots, 2)
        self.global_views = whole_number("global_views", global_views, 1)
        self._seed = seed

    @functools.cached_property
    def _seeds(self) -> keras.random.SeedGenerator:
        """Made when it is used: a loss stands in a table of objectives, and importing it must not start a framework."""
        return keras.random.SeedGenerator(self._seed)

    def __call__(self, embeddings: Any, slices: Any = None) -> Any:
        """The loss, a scalar.

        Args:
            embeddings: `(V, N, D)`, of V views of N pictures.
            slices: Directions `(D, S)` of any length, in place of those that are drawn.
        """
        return self.weighted(self.terms(embeddings, slices))

    def weighted(self, terms: dict[str, Any]) -> Any:
        """The terms, times their shares and added up."""
        return self.weight * terms["sigreg"] + (1 - self.weight) * terms["invariance"]

    def terms(self, embeddings: Any, slices: Any = None, seed: Any = None) -> dict[str, Any]:
        """`{"sigreg", "invariance"}`, scalars without their shares; arguments as of the call.

        `seed` is an integer tensor `(2,)` from which slices are drawn; None for the loss's own seeds. Programs that are
        compiled give it, or the slices.
        """
        embeddings = ops.convert_to_tensor(embeddings)
        if len(embeddings.shape) != 3 or not self.global_views <= embeddings.shape[0]:
            wanted = f"embeddings must be (views, pictures, width), with {self.global_views} global views or more"
            raise ValueError(f"{wanted}, but {tuple(embeddings.shape)} was given.")
        embeddings = ops.cast(embeddings, float32_or_better(embeddings.dtype))
        width = embeddings.shape[-1]
        if slices is None:
            generator = self._seeds if seed is None else DrawnSeed(seed)
            slices = keras.random.normal((width, self.slices), dtype="float32", seed=generator)
        slices = ops.convert_to_tensor(slices)
        if len(slices.shape) != 2 or slices.shape[0] != width:
            raise ValueError(f"slices must be ({width}, number of slices), but {tuple(slices.shape)} was given.")
        slices = ops.cast(slices, embeddings.dtype)
        centre = ops.mean(embeddings[: self.global_views], axis=0, keepdims=True)
        return {
            "sigreg": self._sigreg(embeddings, slices / ops.norm(slices, axis=0, keepdims=True)),
            "invariance": ops.mean(ops.square(embeddings - centre)),
        }

    def _sigreg(self, embeddings: Any, slices: Any) -> Any:
        """The statistic of Epps and Pulley, the mean over views and slices of length 1.

        The characteristic function of the values y of N pictures, the mean of exp(i t y), is compared with that of the
        normal distribution, exp(-t^2 / 2). The squared distance is even in t: its integral over -t_max..t_max is
        twice that from 0 on, by the trapezoid rule.
        """
        knots = np.linspace(0, self.t_max, self.knots)
        normal = np.exp(-(knots**2) / 2)
        weights = np.full(self.knots, 2 * self.t_max / (self.knots - 1))
        weights[[0, -1]] /= 2
        dtype = embeddings.dtype
        angles = ops.matmul(embeddings, slices)[..., None] * ops.convert_to_tensor(knots, dtype)
        real = ops.mean(ops.cos(angles), axis=1) - ops.convert_to_tensor(normal, dtype)
        imaginary = ops.mean(ops.sin(angles), axis=1)
        distances = ops.square(real) + ops.square(imaginary)
        statistics = ops.sum(distances * ops.convert_to_tensor(weights * normal, dtype), axis=-1)
        return ops.mean(statistics) * ops.cast(ops.shape(embeddings)[1], dtype)
