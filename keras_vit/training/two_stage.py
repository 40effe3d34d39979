"""The optimizer of EoMT: AdamW with a warm-up of the new head and then one of the backbone, decay of all weights."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_vit._arguments import matches, whole_number
from keras_vit.models import EoMT
from keras_vit.training.optimizers import AdamW, WarmupDecay
from keras_vit.training.trainable import layer_decay


@keras.saving.register_keras_serializable(package="keras_vit")
class Delayed(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that begins later: the rate is 0 for some updates.

    Args:
        schedule: The rates from then on.
        delay: How many updates have the rate 0.

    Examples:
        >>> from keras_vit.training.two_stage import Delayed
        >>> [float(Delayed(training.WarmupDecay(1.0, 4, "constant"), delay=2)(k)) for k in (1, 2)]
        [0.0, 1.0]
    """

    def __init__(self, schedule: Any, delay: int) -> None:
        self.schedule, self.delay = schedule, whole_number("delay", delay, 0)

    def __call__(self, step: Any) -> Any:
        """The rate of update `step`, counted from 0."""
        step = ops.cast(step, "float32")
        return ops.where(step < self.delay, 0.0, self.schedule(ops.maximum(step - self.delay, 0.0)))

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "delay": self.delay}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Delayed":
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["delay"])


@keras.saving.register_keras_serializable(package="keras_vit")
class TwoStageAdamW(AdamW):
    """AdamW whose weights decay all of them, biases and normalisations too, and some of which have another schedule.

    While a schedule is at 0, gradients still count in the norm and move the moments. The norm is clipped as PyTorch
    does (`torch.nn.utils.clip_grad_norm_`). Other arguments are those of `AdamW`.

    Args:
        backbone_rate: The schedule of the weights in `backbone`; None for `learning_rate`.
        backbone: Patterns of their names.

    Source: EoMT's `training/lightning_module.py` and `training/two_stage_warmup_poly_schedule.py`.

    Examples:
        >>> recipe = training.recipe("segmentation/eomt_ade20k_base")
        >>> optimizer = training.build_optimizer(recipe, keras_vit.EoMT(eomt_config))
        >>> max(optimizer.rates(0).values())
        0.0
    """

    clip_epsilon = 1e-6

    def __init__(
        self, learning_rate: Any = 1e-4, backbone_rate: Any = None, backbone: Iterable[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.backbone_rate, self.backbone = backbone_rate, tuple(backbone)

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        # Not the weights: Keras would take them for variables of the optimizer.
        self._paths = [variable.path for variable in variables]
        self._is_backbone = [any(matches(v.path, pattern) for pattern in self.backbone) for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one weight."""
        if self.backbone_rate is not None and self._is_backbone[self.index_of(variable)]:
            learning_rate = self.backbone_rate(self.iterations)
        super().update_step(gradient, variable, learning_rate)

    def rates(self, step: int) -> dict[str, float]:
        """The learning rate of each weight, by its path, in update `step`, counted from 0."""
        rate = self._schedule or (lambda step: self.learning_rate)
        found = {}
        for path, multiplier, of_backbone in zip(self._paths, self._multipliers, self._is_backbone, strict=True):
            schedule = self.backbone_rate if self.backbone_rate is not None and of_backbone else rate
            found[path] = float(schedule(step)) * multiplier
        return found

    def decays(self) -> dict[str, float]:
        """The decay of each weight, by its path, before it is multiplied by the rate."""
        return dict(zip(self._paths, self._decays, strict=True))

    def _is_decayed(self, variable: Any) -> bool:
        return True

    def get_config(self) -> dict[str, Any]:
        rate = None if self.backbone_rate is None else keras.saving.serialize_keras_object(self.backbone_rate)
        return {**super().get_config(), "backbone_rate": rate, "backbone": list(self.backbone)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "TwoStageAdamW":
        config = dict(config)
        if config["backbone_rate"] is not None:
            config["backbone_rate"] = keras.saving.deserialize_keras_object(config["backbone_rate"])
        return super().from_config(config, custom_objects)


HEAD = ("queries", "query_rotation", "map", "mask_head", "class_head", "upscale_*")  # layers of an EoMT


def rate_multipliers(recipe: Any, model: Any) -> dict[str, float]:
    """Pattern of a weight's name to what a recipe multiplies its rate by; of an EoMT that of each layer below its head.

    Queries, both heads, upscaling and the final norm of an EoMT have the recipe's rate, block i of L
    `layer_decay ** (L - 1 - i)` of it, and what comes before the blocks that of block 0. `decay_query_blocks=False`
    gives blocks with queries the whole rate. Other models have what `layer_decay` returns.
    """
    if not isinstance(model, EoMT):
        return {} if recipe.layer_decay is None else layer_decay(model, recipe.layer_decay)
    names = [layer.name for layer in model.layers if not any(matches(layer.name, pattern) for pattern in HEAD)]
    config, decay = model.config, 1.0 if recipe.layer_decay is None else recipe.layer_decay
    last, first_with_queries = config.backbone.depth - 1, config.backbone.depth - config.query_blocks
    multipliers = {}
    for name in names:
        number = int(name.removeprefix("block_")) if name.startswith("block_") else 0
        whole = name == "encoder_norm" or (number >= first_with_queries and not recipe.decay_query_blocks)
        multipliers[f"{name}/*"] = 1.0 if whole else decay ** (last - number)
    return multipliers


def eomt_optimizer(recipe: Any, model: Any, steps: int, **common: Any) -> TwoStageAdamW:
    """The optimizer of a recipe with two warm-ups for an EoMT, built; ValueError for another model.

    The first `warmup_steps` updates leave the backbone alone. Rates of layers are `rate_multipliers`.
    """
    if not isinstance(model, EoMT):
        raise ValueError(
            f"backbone_warmup_steps={recipe.backbone_warmup_steps} is for an EoMT, but the model is a "
            f"{type(model).__name__}: give backbone_warmup_steps=None."
        )
    recipe = recipe.replace(steps=steps)  # which may shorten the warm-ups
    decay = {"decay": recipe.schedule, "end": recipe.end, "power": recipe.power}
    head = WarmupDecay(recipe.learning_rate, steps, warmup_steps=recipe.warmup_steps, **decay)
    later, warmup = steps - head.warmup_steps, recipe.backbone_warmup_steps
    optimizer = TwoStageAdamW(
        **common | {"learning_rate": head},
        backbone_rate=Delayed(
            WarmupDecay(recipe.learning_rate, later, warmup_steps=warmup, **decay), head.warmup_steps
        ),
        backbone=common["rate_multipliers"],
        beta_1=recipe.beta_1,
        beta_2=recipe.beta_2,
    )
    optimizer.build(model.trainable_variables)
    return optimizer
