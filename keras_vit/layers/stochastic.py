"""Seeds for dropout that survive rematerialisation, and stochastic depth."""

from typing import Any

import keras
from keras import ops


class SeedGenerator(keras.random.SeedGenerator):
    """A seed generator whose state is optional in weight files.

    Dropout may be switched on for a model whose weights were saved without it: the missing state is no reason to
    refuse the file.
    """

    def load_own_variables(self, store: Any) -> None:
        if "0" in store:
            super().load_own_variables(store)


class DrawnSeed(keras.random.SeedGenerator):
    """One seed that has been drawn already, in the form that `keras.random` takes.

    A rematerialised function runs twice, and both runs must drop the same units: the seed is drawn outside it.
    """

    def __init__(self, seed: Any) -> None:
        # Not calling super().__init__: it would create a variable, and this object only carries a value.
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        """The seed, however often it is asked for."""
        return self._seed


def dropout(x: Any, rate: float, seed: Any) -> Any:
    """Dropout with a seed that has been drawn already; `x` unchanged where `seed` is None."""
    return x if seed is None else x * _mask(ops.shape(x), rate, seed, x.dtype)


def drop_path(x: Any, rate: float, seed: Any) -> Any:
    """Stochastic depth (Huang et al., 2016; AugReg section 3.3): drops the whole branch of some examples.

    The kept branches are scaled by `1 / (1 - rate)`, so that the expectation stays.
    """
    if seed is None:
        return x
    shape = (ops.shape(x)[0], *(1 for _ in x.shape[1:]))
    return x * _mask(shape, rate, seed, x.dtype)


def _mask(shape: Any, rate: float, seed: Any, dtype: Any) -> Any:
    """Zeros with probability `rate`, `1 / (1 - rate)` elsewhere."""
    keep = keras.random.uniform(shape, dtype="float32", seed=DrawnSeed(seed)) >= rate
    return ops.cast(keep, dtype) * (1 / (1 - rate))
