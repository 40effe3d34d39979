"""Optimizers, learning rates and losses of the original code (optax, vit_jax, big_vision), as Keras objects."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import keras
import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np
from keras import ops

from keras_vit._arguments import matches
from keras_vit._keras import DecayingOptimizer, layout_of, raw_values
from keras_vit._options import FROM_0, Above0, Count, From0, OneOf, Options, Positive, Rate, Several, checked, option
from keras_vit.layers.ops import compute, with_faster_forms

# Only kernels decay: biases, normalisations, class token and position embeddings do not (big_vision/optax.py).
DECAYED = "*/kernel"
# Of Muon.
MATRICES = "block_[0-9]*/kernel"  # hidden layers; the embedding, a stem and the head are AdamW's
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
NORM_EPSILON = 1e-7


@with_faster_forms
def sum_of_squares(gradient: Any) -> Any:
    """The sum of the squares of a gradient, a float32 scalar."""
    return ops.sum(ops.square(ops.cast(gradient, "float32")))


@with_faster_forms
def norm_and_clipped(first: Any, gradients: list[Any], largest: float | None, epsilon: float) -> tuple[Any, list[Any]]:
    """Returns the common norm of gradients, and these, scaled to `largest` if given; `first` chooses the form."""
    norm = ops.sqrt(ops.sum(ops.stack([sum_of_squares(one) for one in gradients])))
    if largest:
        # Where the norm is not finite, neither are the gradients then: a broken step shows.
        longer = norm + epsilon
        scale = ops.where(longer < largest, 1.0, largest / longer)
        gradients = [one * ops.cast(scale, one.dtype) for one in gradients]
    return norm, gradients


def over_replicas(grads: list[Any]) -> tuple[list[Any], int]:
    """The gradients of the whole batch, and the number of replicas of `tf.distribute` that it is divided among."""
    # Keras would clip the gradients of each replica.
    if keras.backend.backend() != "tensorflow":
        return grads, 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return grads, 1
    return context.all_reduce(tf.distribute.ReduceOp.SUM, grads), context.num_replicas_in_sync


class ViTOptimizer(DecayingOptimizer):
    """What the optimizers of this package share; itself it updates nothing.

    - `global_clipnorm` is `optax.clip_by_global_norm`; the norm before clipping is kept in `gradient_norm`.
    - Weight decay is decoupled, for kernels but those that `exclude_from_weight_decay()` names. big_vision multiplies
      it by its base rate: its 0.0001 at rate 0.001 is 0.1.
    - With `gradient_accumulation_steps=k` the gradients of k batches are averaged, then clipped, then applied;
      `iterations`, the schedule and the moving average count updates, where Keras's optimizers count batches.
    """

    decayed = DECAYED  # the weights that decay, as a pattern of their names
    clip_epsilon = 0.0  # added to the norm that clipping divides by: PyTorch has 1e-6

    @checked
    def __init__(
        self,
        learning_rate: Any,
        weight_decay: From0 | None,
        rate_multipliers: Mapping[str, float] | None,
        momentum_dtype: Any,
        global_clipnorm: Above0 | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(learning_rate, numbers.Real):
            learning_rate = float(FROM_0("learning_rate", learning_rate))
        if momentum_dtype is not None:
            if not keras.backend.is_float_dtype(momentum_dtype):
                raise ValueError(f"momentum_dtype must be a float dtype, but {momentum_dtype!r} was given.")
            momentum_dtype = keras.backend.standardize_dtype(momentum_dtype)
        paths, names = kwargs.pop("never_decayed", ((), ""))  # of `get_config`: of weights, and a pattern
        super().__init__(learning_rate, weight_decay=weight_decay, global_clipnorm=global_clipnorm, **kwargs)
        self._note_schedule(learning_rate)
        self.rate_multipliers: dict[str, float] = {
            pattern: FROM_0(f"rate_multipliers[{pattern!r}]", rate)
            for pattern, rate in (rate_multipliers or {}).items()
        }
        self.momentum_dtype = momentum_dtype
        self._never_decayed: tuple[set[str], str] = (set(paths), names)
        # From the gradients of this process to the means of all; None where the backend does it, or there is one.
        self.average_gradients: Callable[[list[Any]], list[Any]] | None = None

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self.gradient_norm = self.add_variable((), name="gradient_norm", aggregation="only_first_replica")
        self.momentums = [
            self.add_variable(
                v.shape,
                dtype=self.momentum_dtype or v.dtype,
                layout=layout_of(v),
                name=f"{v.path.replace('/', '_')}_momentum",
            )
            for v in variables
        ]
        self._decays = [float(self.weight_decay or 0.0) if self._is_decayed(v) else 0.0 for v in variables]
        self._multipliers = [
            next((value for pattern, value in self.rate_multipliers.items() if matches(v.path, pattern)), 1.0)
            for v in variables
        ]

    @property
    def learning_rate(self) -> Any:
        return super().learning_rate if self._schedule is None else self._schedule(self.iterations)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._note_schedule(value)
        keras.optimizers.Optimizer.learning_rate.fset(self, value)

    def _note_schedule(self, rate: Any) -> None:
        self._schedule = rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None

    def clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Returns the gradients of an update, averaged over processes and clipped; writes `gradient_norm`."""
        # With `global_clipnorm` all are scaled by one number where their common norm is larger; with `clipnorm` or
        # `clipvalue` each is clipped as Keras does it.
        if self.average_gradients is not None:
            grads = self.average_gradients(grads)
        grads, replicas = over_replicas(grads)
        norm, grads = norm_and_clipped(grads[0], grads, self.global_clipnorm, self.clip_epsilon)
        self.gradient_norm.assign(norm)
        if not self.global_clipnorm:
            grads = super().clip_gradients(grads)
        return [grad / replicas for grad in grads] if replicas > 1 else grads

    def exclude_from_weight_decay(
        self, var_list: Iterable[keras.Variable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Keeps kernels from decaying: those of `var_list`, and those in whose names a regular expression is found."""
        if self.built:
            raise ValueError("The optimizer is built: call exclude_from_weight_decay() before its first update.")
        if isinstance(var_names, str):
            raise TypeError(f"var_names must be a list of regular expressions, but the string {var_names!r} was given.")
        names = tuple(var_names or ())
        for expression in (*names, "|".join(names)):
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(
                    f"var_names must be regular expressions, but {expression!r} is not: {error}."
                ) from error
        self._never_decayed = {variable.path for variable in var_list or ()}, "|".join(names)

    def _is_decayed(self, variable: keras.Variable) -> bool:
        paths, names = self._never_decayed
        excluded = variable.path in paths or (names and re.search(names, variable.name))
        return matches(variable.path, self.decayed) and not excluded

    @property
    def ema_momentum(self) -> Any:
        """Share of the moving average that stays: 1 in batches that only add their gradient to those of an update."""
        if not self.gradient_accumulation_steps:
            return self._ema_momentum
        batches = self.variables[0]  # Keras counts batches in its first variable
        return ops.where((batches + 1) % self.gradient_accumulation_steps == 0, self._ema_momentum, 1.0)

    @ema_momentum.setter
    def ema_momentum(self, value: float) -> None:
        self._ema_momentum = value

    def _in_place(self, form: str, grads: list[Any], weights: list[Any], states: Any, *numbers: Any) -> bool:
        """Changes weights and states by a form of the backend, and says whether there is one."""
        places = self.places_of(weights)
        states = [raw_values([state[place] for place in places]) for state in states]
        factors = [[values[place] for place in places] for values in (self._multipliers, self._decays)]
        return compute(form, grads[0], [grads, raw_values(weights), *states], *factors, *numbers) is not NotImplemented

    def _decayed_momentum(self, m: Any, share: float, dtype: Any) -> Any:
        """`share * m` in `dtype`, the share rounded to m's dtype as in JAX: bfloat16 has 0.8984 for 0.9."""
        return ops.cast(m, dtype) * _rounded(share, m.dtype)

    def _update(self, variable: Any, direction: Any, learning_rate: Any) -> None:
        """Changes a weight in place: `w -= rate * (direction + decay * w)`, with its own multiplier and decay."""
        index = self.index_of(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self._multipliers[index]
        if self._decays[index]:
            direction = direction + self._decays[index] * ops.convert_to_tensor(variable)
        self.assign_sub(variable, rate * direction)

    def get_config(self) -> dict[str, Any]:
        paths, names = self._never_decayed
        excluded = {"never_decayed": [sorted(paths), names]} if paths or names else {}
        return {
            **super().get_config(),
            "ema_momentum": self._ema_momentum,
            "rate_multipliers": dict(self.rate_multipliers),
            "momentum_dtype": self.momentum_dtype,
            **excluded,
        }


def _rounded(share: float, dtype: Any) -> float:
    return float(np.asarray(share).astype(keras.backend.standardize_dtype(dtype)))


@keras.saving.register_keras_serializable(package="keras_vit")
class MomentumSGD(ViTOptimizer):
    """Stochastic gradient descent with momentum, as the original code fine-tunes ViTs.

        m = momentum * m + gradient
        w = w - learning_rate * m

    (`optax.sgd` in vit_jax/train.py; `momentum_hp` in big_vision/optax.py). `keras.optimizers.SGD` multiplies by the
    rate before the momentum, so past gradients keep their old rates.

    Args:
        learning_rate: A number or a schedule such as `WarmupDecay`.
        momentum: Share of m that is kept.
        momentum_dtype: Dtype of m; None for the dtype of the weights. The original has `"bfloat16"`, half the memory. m
            is rounded after it has been used, and so is `momentum`: 0.8984 for 0.9.
        weight_decay: Decoupled, of kernels only: `w -= learning_rate * weight_decay * w`. Fine-tuning has none.
        rate_multipliers: Pattern of a weight's name to multiplier of its learning rate; the first that fits.
        **kwargs: Keras's other arguments of an optimizer: `global_clipnorm`, `gradient_accumulation_steps`,
            `use_ema`, `ema_momentum`, `name` ...

    Examples:
        >>> optimizer = training.MomentumSGD(0.03, momentum_dtype="bfloat16", global_clipnorm=1.0)
        >>> small.compile(optimizer, training.SoftmaxLoss())
    """

    @checked
    def __init__(
        self,
        learning_rate: Any = 0.03,
        momentum: Rate = 0.9,
        momentum_dtype: Any = None,
        weight_decay: float | None = None,
        rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, rate_multipliers, momentum_dtype, **kwargs)
        self.momentum = momentum

    def update_all(self, grads: list[Any], variables: list[Any], learning_rate: Any) -> bool:
        """Changes all weights and momentums in place, where the backend has a form for that, and says whether."""
        if not self.writes_in_place() or type(self).update_step is not MomentumSGD.update_step:
            return False
        share = _rounded(self.momentum, self.momentums[0].dtype)
        return self._in_place("momentum in place", grads, variables, (self.momentums,), learning_rate, share)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one weight and its momentum in place."""
        m = self.momentums[self.index_of(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        direction = gradient + self._decayed_momentum(m, self.momentum, variable.dtype)
        self.assign(m, ops.cast(direction, m.dtype))
        self._update(variable, direction, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(ViTOptimizer):
    """Adam with decoupled weight decay, as in the pre-training of the paper and of AugReg.

        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient ** 2
        w = w - learning_rate * (m' / (sqrt(v') + epsilon) + weight_decay * w)

    with m' and v' corrected for their start at zero (`optax.scale_by_adam`; big_vision/optax.py). Keras's Adam adds its
    epsilon before v is corrected, and its AdamW forgets, when it is saved, which weights do not decay. Further
    arguments are as in `MomentumSGD`; `weight_decay` is as in Table 3.

    Args:
        beta_1: Share of m that is kept.
        beta_2: Share of v that is kept.
        epsilon: Added to the root of v'.

    Examples:
        >>> training.AdamW(training.WarmupDecay(1e-3, steps=100, warmup_steps=10), weight_decay=0.1).name
        'adam_w'
    """

    @checked
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Rate = 0.9,
        beta_2: Rate = 0.999,
        epsilon: From0 = 1e-8,
        momentum_dtype: Any = None,
        weight_decay: float | None = None,
        rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, rate_multipliers, momentum_dtype, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        kept = [v for v in variables if self.has_velocity(v)]
        found = dict(zip(map(id, kept), self.add_optimizer_variables(kept, "velocity"), strict=True))
        self.velocities = [found.get(id(v)) for v in variables]

    def has_velocity(self, variable: keras.Variable) -> bool:
        """Whether Adam moves a weight: here True of all; `Muon` moves some by another formula."""
        return True

    def update_all(self, grads: list[Any], variables: list[Any], learning_rate: Any) -> bool:
        """Changes all weights and moments in place, where the backend has a form for that, and says whether."""
        return type(self).update_step is AdamW.update_step and self._adam_in_place(grads, variables, learning_rate)

    def _adam_in_place(self, grads: list[Any], variables: list[Any], learning_rate: Any) -> bool:
        if not self.writes_in_place():
            return False
        states, constants = (self.momentums, self.velocities), (self.beta_1, self.beta_2, self.epsilon)
        updates = int(self.iterations) + 1
        return self._in_place("adam in place", grads, variables, states, learning_rate, updates, *constants)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one weight, its momentum and its velocity in place, by a faster form where the backend has one."""
        if self._adam_in_place([gradient], [variable], learning_rate):
            return
        index, dtype = self.index_of(variable), variable.dtype
        m, v = self.momentums[index], self.velocities[index]
        gradient = ops.cast(gradient, dtype)
        updates = ops.cast(self.iterations + 1, dtype)
        new_m = (1.0 - self.beta_1) * gradient + self._decayed_momentum(m, self.beta_1, dtype)
        new_v = (1.0 - self.beta_2) * ops.square(gradient) + self.beta_2 * v
        self.assign(m, ops.cast(new_m, m.dtype))
        self.assign(v, new_v)
        corrected_m = new_m / (1.0 - ops.power(ops.cast(self.beta_1, dtype), updates))
        corrected_v = new_v / (1.0 - ops.power(ops.cast(self.beta_2, dtype), updates))
        self._update(variable, corrected_m / (ops.sqrt(corrected_v) + self.epsilon), learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_vit")
class Muon(AdamW):
    """Muon: momentum with nearly orthogonal updates for the kernels of the blocks, `AdamW` for all other weights.

        m = momentum * m + (1 - momentum) * gradient
        u = orthogonal((1 - momentum) * gradient + momentum * m)
        w = w - learning_rate * (0.2 * sqrt(max(rows, columns)) * u + weight_decay * w)

    (Keller Jordan's Muon with Nesterov's momentum and five Newton-Schulz iterations; the factor of arXiv 2502.16982,
    by which it takes the learning rate and the weight decay of AdamW. `torch.optim.Muon` with
    `adjust_lr_fn="match_rms_adamw"` computes the same, its iterations in bfloat16: here they are in float32.)
    `keras.optimizers.Muon` makes the head orthogonal as well and counts batches where this counts updates.
    `weight_decay`, `momentum_dtype` and `rate_multipliers` apply to all weights; the other arguments that are not
    listed here are as in `AdamW` and apply only to the weights that it updates.

    Args:
        momentum: Share of m that each update keeps.

    Examples:
        >>> optimizer = training.Muon(training.WarmupDecay(1e-3, steps=100), weight_decay=0.1)
        >>> small.compile(optimizer, training.SoftmaxLoss())
    """

    @checked
    def __init__(self, learning_rate: Any = 0.001, momentum: Rate = 0.95, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.momentum = momentum

    def has_velocity(self, variable: keras.Variable) -> bool:
        """Whether Adam moves a weight, because it is not a matrix of a block."""
        return not is_moved_by_muon(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one weight and its momentum in place; with a velocity as `AdamW` does, also the velocity."""
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
    """Whether a weight is a matrix of a block, by its path and shape; AdamW moves all others."""
    return len(variable.shape) == 2 and matches(variable.path, MATRICES)


def orthogonal(matrix: Any) -> Any:
    """Returns about U V^T of a matrix U S V^T: singular values become about 1 (0.7 to 1.2); zeros stay zeros."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    x = x / ops.maximum(ops.sqrt(ops.sum(ops.square(x))), NORM_EPSILON)
    for _ in range(ITERATIONS):
        gram = x @ ops.transpose(x)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return ops.transpose(x) if is_tall else x


def _stair(schedule: "WarmupDecay", progress: Any, after_warmup: Any) -> Any:
    factor = 1.0
    for boundary, value in zip(schedule.boundaries, schedule.factors, strict=True):
        factor = ops.where(after_warmup + schedule.warmup_steps >= boundary, value, factor)
    return schedule.learning_rate * factor


# The decay of each name: a function of the schedule s, the progress p after the warm-up in [0, 1], and its steps t.
DECAYS: dict[str, Callable[["WarmupDecay", Any, Any], Any]] = {
    "cosine": lambda s, p, t: s.end + (s.learning_rate - s.end) * 0.5 * (1.0 + ops.cos(math.pi * p)),
    "linear": lambda s, p, t: s.end + (s.learning_rate - s.end) * (1.0 - p),
    "polynomial": lambda s, p, t: s.end + (s.learning_rate - s.end) * (1.0 - p) ** s.power,
    "rsqrt": lambda s, p, t: s.learning_rate / ops.sqrt(1.0 + t / s.timescale),
    "stair": _stair,
    "constant": lambda s, p, t: s.learning_rate,
}
# The same beneath the warm-up, as mmcv and DINOv3 have it: the decay counts from the first step.
DECAYS |= {f"{name}_whole": DECAYS[name] for name in ("cosine", "linear")}


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclasses.dataclass(frozen=True)
class WarmupDecay(Options, keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up times a decay times a linear cool-down.

    Update k, counted from 0, has the rate of step k: 0 at the start of a warm-up, after which the decay begins
    (`create_learning_rate_schedule` in vit_jax/utils.py and big_vision/utils.py). With p the progress from there to
    `steps`, in [0, 1]:

    | decay | rate |
    |---|---|
    | `"cosine"` | `end + (learning_rate - end) * (1 + cos(pi * p)) / 2` |
    | `"linear"` | `end + (learning_rate - end) * (1 - p)` |
    | `"polynomial"` | `end + (learning_rate - end) * (1 - p) ** power` |
    | `"rsqrt"` | `learning_rate / sqrt(1 + steps since the warm-up / timescale)` |
    | `"stair"` | `learning_rate * factors[i]` from step `boundaries[i]` on |
    | `"constant"` | `learning_rate` |
    | `"cosine_whole"`, `"linear_whole"` | as `"cosine"` and `"linear"`, with p the share of all steps |

    Args:
        learning_rate: The rate at the end of the warm-up.
        steps: Updates of the whole training, warm-up and cool-down included.
        decay: A name of the table.
        warmup_steps: Updates of the warm-up; a float between 0 and 1 is a share of `steps`.
        cooldown_steps: Updates at the end during which the rate falls linearly to 0; a share of `steps` likewise.
        end: Last rate of the cosine, linear and polynomial decays: timm's `min_lr`.
        power: Exponent of the polynomial decay.
        timescale: Updates after which rsqrt has fallen to `1 / sqrt(2)`.
        boundaries: Steps at which the stair changes, ascending.
        factors: Factor of the rate from each boundary on; not cumulative.
        delay: Updates before all of this, which have the rate 0 and are not among `steps`.

    Raises:
        ValueError: if an argument is out of its range, or the decay does not use it.

    Examples:
        >>> schedule = training.WarmupDecay(1.0, steps=100, decay="linear", warmup_steps=10)
        >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    learning_rate: From0
    steps: Positive
    decay: Annotated[str, OneOf(tuple(DECAYS))] = "cosine"
    _: dataclasses.KW_ONLY
    warmup_steps: int | float = 0
    cooldown_steps: int | float = 0
    end: From0 = option(0.0, when={"decay": ("cosine", "linear", "polynomial", "cosine_whole", "linear_whole")})
    power: Above0 = option(1.0, when={"decay": ("polynomial",)})
    timescale: Above0 = option(10_000, when={"decay": ("rsqrt",)})
    boundaries: Sequence[int] = option((), when={"decay": ("stair",)})
    factors: Annotated[tuple[float, ...], Several(FROM_0)] = ()
    delay: Count = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", frozenset())  # a default may be written out for any decay
        super().__post_init__()

    def _check_together(self) -> None:
        boundaries, factors = self.boundaries, self.factors
        if len(boundaries) != len(factors) or list(boundaries) != sorted(boundaries):
            raise ValueError(f"boundaries must ascend, one factor each, but {boundaries=} and {factors=} were given.")
        for name in ("warmup_steps", "cooldown_steps"):
            object.__setattr__(self, name, _steps(name, getattr(self, name), self.steps))

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update `step`, counted from 0: a float32 scalar tensor of an integer or a tensor."""
        step = ops.cast(step, "float32") - self.delay
        begin = 0 if self.decay.endswith("_whole") else self.warmup_steps
        after_warmup = ops.maximum(step - begin, 0.0)
        progress = ops.minimum(after_warmup / (self.steps - begin), 1.0)
        rate = DECAYS[self.decay](self, progress, after_warmup)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        if self.cooldown_steps:
            rate = rate * ops.clip((self.steps - step) / self.cooldown_steps, 0.0, 1.0)
        return ops.cast(ops.where(step < 0, 0.0, rate) if self.delay else rate, "float32")

    def get_config(self) -> dict[str, Any]:
        return self.to_dict()


def _steps(name: str, value: int | float, total: int) -> int:
    """Returns a number of steps; of a share of all the nearest number, from 1 to `total - 1`, as in big_vision."""
    if isinstance(value, numbers.Real) and 0 < value < 1:
        return min(max(1, round(float(value) * total)), total - 1)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < total or value != int(value):
        raise ValueError(
            f"{name} must be a number of steps below steps={total}, or a share of them below 1, but {value!r} was "
            f"given. {name}=0 turns it off."
        )
    return int(value)


# Losses, on logits and one-hot or mixed labels


class _Loss(keras.losses.Loss):
    """A loss for each image, averaged over the batch, in at least float32."""

    @checked
    def __init__(
        self,
        label_smoothing: Rate = 0.0,
        class_weight: Annotated[Sequence[float], Several(FROM_0)] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing
        self.class_weight = None if class_weight is None else [*map(float, class_weight)]

    def _prepare(self, labels: Any, logits: Any) -> tuple[Any, Any]:
        """Returns smoothed labels, and logits, both of one dtype of at least float32."""
        given, wanted = tuple(labels.shape), tuple(logits.shape)
        if len(given) != len(wanted) or given[-1] != wanted[-1]:
            raise ValueError(f"Labels must be one-hot (keras.ops.one_hot), of shape {wanted}, but {given} was given.")
        if self.class_weight is not None and len(self.class_weight) != wanted[-1]:
            raise ValueError(f"class_weight must have {wanted[-1]} numbers, but {len(self.class_weight)} were given.")
        dtype = keras.backend.result_type(logits.dtype, "float32")
        labels = ops.cast(labels, dtype)
        if self.label_smoothing:
            labels = labels * (1.0 - self.label_smoothing) + self.label_smoothing / logits.shape[-1]
        return labels, ops.cast(logits, dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "class_weight": self.class_weight}

    def _weighted(self, terms: Any) -> Any:
        return terms if self.class_weight is None else terms * ops.convert_to_tensor(self.class_weight, terms.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class SoftmaxLoss(_Loss):
    """Cross-entropy with a softmax: `-mean over images(sum over classes(label * log_softmax(logit)))`.

    As `cross_entropy_loss` in vit_jax/train.py and `softmax_xent` in big_vision/utils.py. Labels: one-hot or mixed.

    Args:
        label_smoothing: s replaces each label by `label * (1 - s) + s / classes`.
        class_weight: A factor for the term of each class, `(classes,)`; None: all 1. In a `SigmoidLoss` it multiplies
            the terms of positive labels. The mean is over images, not over weights.
        **kwargs: `reduction`, `name` and `dtype`, as for every loss of Keras.

    Examples:
        >>> round(float(training.SoftmaxLoss()(np.eye(2), np.zeros((2, 2)))), 4)  # log(2)
        0.6931
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each image, `(batch,)`; ValueError unless the labels are one-hot or mixed."""
        labels, logits = self._prepare(y_true, y_pred)
        return -ops.sum(self._weighted(labels * ops.log_softmax(logits, axis=-1)), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidLoss(_Loss):
    """Cross-entropy with a sigmoid per class, summed over the classes and averaged over the images.

    As `sigmoid_xent` in big_vision/utils.py; ImageNet-21k and JFT models are pre-trained with it, with head biases that
    start at -10. It takes the arguments and labels of `SoftmaxLoss`; an image may have several labels.

    Examples:
        >>> float(training.SigmoidLoss()(np.eye(2), np.zeros((2, 2)))) == 2 * float(np.log(np.float32(2)))
        True
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each image, `(batch,)`; ValueError where labels have not the shape of the logits."""
        labels, logits = self._prepare(y_true, y_pred)
        present = self._weighted(labels * ops.log_sigmoid(logits))
        return -ops.sum(present + (1.0 - labels) * ops.log_sigmoid(-logits), axis=-1)


# Losses of image-text pairs, on the logits of a whole batch, `(images, texts)`: text i belongs to image i


@keras.saving.register_keras_serializable(package="keras_vit")
class ContrastiveLoss(keras.losses.Loss):
    """Softmax over the texts of each image and over the images of each text (CLIP, arXiv 2103.00020, figure 3).

    Call arguments:
        y_true: 1 where a text belongs to an image, `(batch, batch)`; `ImageText` makes it.
        y_pred: Scaled similarities, `(batch, batch)`.

    Output: the mean over the batch of both cross-entropies, halved.

    Examples:
        >>> float(training.ContrastiveLoss()(np.eye(2, dtype="float32"), 100 * np.eye(2, dtype="float32")))
        0.0
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean of both cross-entropies for each image, `(batch,)`."""
        rows, columns = (-ops.sum(y_true * ops.log_softmax(y_pred, axis=axis), axis=axis) for axis in (1, 0))
        return (rows + columns) / 2


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidContrastiveLoss(keras.losses.Loss):
    """Sigmoid loss over all pairs of an image and a text in a batch (SigLIP, arXiv 2303.15343, algorithm 1).

    Call arguments: as in `ContrastiveLoss`; the logits include the learned bias.

    Output: the sum over the pairs divided by the number of images.

    Examples:
        >>> loss = training.SigmoidContrastiveLoss()
        >>> round(float(loss(np.eye(2, dtype="float32"), np.zeros((2, 2), "float32"))), 4)
        1.3863
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -ops.sum(ops.log_sigmoid((2 * y_true - 1) * y_pred), axis=1)
