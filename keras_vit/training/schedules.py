"""Learning rates as functions of the number of updates, as in vit_jax and big_vision."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def _stair(schedule: "WarmupDecay", progress: Any, after_warmup: Any) -> Any:
    factor = 1.0
    for boundary, value in zip(schedule.boundaries, schedule.factors, strict=True):
        factor = ops.where(after_warmup + schedule.warmup_steps >= boundary, value, factor)
    return schedule.learning_rate * factor


# The decay of each name: a function of the schedule s, the progress p after the warm-up in [0, 1], and its steps t.
DECAYS: dict[str, Callable[["WarmupDecay", Any, Any], Any]] = {
    "cosine": lambda s, p, t: s.learning_rate * 0.5 * (1.0 + ops.cos(math.pi * p)),
    "linear": lambda s, p, t: s.end + (s.learning_rate - s.end) * (1.0 - p),
    "polynomial": lambda s, p, t: s.end + (s.learning_rate - s.end) * (1.0 - p) ** s.power,
    "rsqrt": lambda s, p, t: s.learning_rate / ops.sqrt(1.0 + t / s.timescale),
    "stair": _stair,
    "constant": lambda s, p, t: s.learning_rate,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up times a decay times a linear cool-down.

    The k-th update, counted from 0, has the rate of step k, so the first one of a warm-up has rate 0. The decay
    begins where the warm-up ends and stands still during it (`create_learning_rate_schedule` in vit_jax/utils.py
    and big_vision/utils.py). With p the progress from the end of the warm-up to `steps`, in [0, 1]:

    | decay | rate |
    |---|---|
    | `"cosine"` | `learning_rate * (1 + cos(pi * p)) / 2` |
    | `"linear"` | `end + (learning_rate - end) * (1 - p)` |
    | `"polynomial"` | `end + (learning_rate - end) * (1 - p) ** power` |
    | `"rsqrt"` | `learning_rate / sqrt(1 + steps since the warm-up / timescale)` |
    | `"stair"` | `learning_rate * factors[i]` from step `boundaries[i]` on |
    | `"constant"` | `learning_rate` |

    Args:
        learning_rate: The rate at the end of the warm-up.
        steps: Updates of the whole training, warm-up and cool-down included.
        decay: A name of the table.
        warmup_steps: Updates of the warm-up; a float between 0 and 1 is a share of `steps`.
        cooldown_steps: Updates at the end during which the rate falls linearly to 0; a share of `steps` likewise.
        end: Last rate of the linear and polynomial decays. vit_jax has 1e-5, big_vision 0.
        power: Exponent of the polynomial decay.
        timescale: Updates after which rsqrt has fallen to `1 / sqrt(2)`.
        boundaries: Steps at which the stair changes, ascending.
        factors: What the rate is multiplied by from each boundary on; not cumulative.

    Raises:
        ValueError: if an argument is out of its range.

    Examples:
        >>> schedule = training.WarmupDecay(1.0, steps=100, decay="linear", warmup_steps=10)
        >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        learning_rate: float,
        steps: int,
        decay: str = "cosine",
        *,
        warmup_steps: int | float = 0,
        cooldown_steps: int | float = 0,
        end: float = 0.0,
        power: float = 1.0,
        timescale: float = 10_000,
        boundaries: tuple[int, ...] | list[int] = (),
        factors: tuple[float, ...] | list[float] = (),
    ) -> None:
        if decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(map(repr, DECAYS))}, but {decay!r} was given.")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, but {steps!r} was given.")
        for name, value in (("learning_rate", learning_rate), ("end", end)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number of at least 0, but {value!r} was given.")
        if len(boundaries) != len(factors) or list(boundaries) != sorted(boundaries):
            raise ValueError(
                f"A stair needs ascending boundaries and one factor for each, but boundaries={boundaries!r} and "
                f"factors={factors!r} were given."
            )
        self.learning_rate, self.steps, self.decay = learning_rate, steps, decay
        self.warmup_steps = _steps("warmup_steps", warmup_steps, steps)
        self.cooldown_steps = _steps("cooldown_steps", cooldown_steps, steps)
        self.end, self.power, self.timescale = end, power, timescale
        self.boundaries, self.factors = tuple(boundaries), tuple(factors)

    def __call__(self, step: Any) -> Any:
        """The learning rate, a float32 scalar tensor, after `step` updates, an integer or an integer tensor."""
        step = ops.cast(step, "float32")
        after_warmup = ops.maximum(step - self.warmup_steps, 0.0)
        progress = ops.minimum(after_warmup / (self.steps - self.warmup_steps), 1.0)
        rate = DECAYS[self.decay](self, progress, after_warmup)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        if self.cooldown_steps:
            rate = rate * ops.clip((self.steps - step) / self.cooldown_steps, 0.0, 1.0)
        return ops.cast(rate, "float32")

    def get_config(self) -> dict[str, Any]:
        return {**vars(self), "boundaries": list(self.boundaries), "factors": list(self.factors)}


def _steps(name: str, value: int | float, total: int) -> int:
    """A number of steps; a share of them becomes the nearest number of at least 1, as in big_vision."""
    if isinstance(value, float) and 0 < value < 1:
        return min(max(1, round(value * total)), total - 1)
    if value < 0 or value != int(value) or value >= max(total, 1):
        raise ValueError(
            f"{name} must be a number of steps, at least 0 and less than steps={total}, or a float between 0 and 1 as "
            f"a share of them, but {value!r} was given. {name}=0 for none."
        )
    return int(value)
