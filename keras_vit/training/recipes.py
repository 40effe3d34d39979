"""The papers' recipes by name, as plain data that needs no Keras; `optimizers.py` makes Keras objects of them."""

import dataclasses
import fnmatch
import functools
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from keras_vit._arguments import check_choice, did_you_mean, pair
from keras_vit._terminal import Table
from keras_vit.data import Augmentation
from keras_vit.training.recipe_table import ROWS

_CHOICES = {
    "optimizer": ("sgd", "adam", "adamw", "muon"),
    "loss": ("softmax", "sigmoid"),
    "sampling": (None, "balanced", "sqrt"),
    "schedule": ("cosine", "linear", "polynomial", "rsqrt", "stair", "constant"),
    "keep": ("last", "best"),
}
# May be None:
_OPTIONAL = ("steps", "epochs", "clip_norm", "polyak", "layer_decay", "lora_rank", "lora_alpha", "patience")
# What the numbers of recipes and optimizers must be, and the test of it.
_NUMBERS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("steps batch_size accumulate lora_rank patience", "a whole number of at least 1", lambda n: _whole(n) and n >= 1),
    ("learning_rate end weight_decay", "a number of at least 0", lambda n: 0 <= n < math.inf),
    ("epochs clip_norm global_clipnorm lora_alpha", "a number above 0", lambda n: 0 < n < math.inf),
    ("momentum beta_1 beta_2 dropout drop_path label_smoothing", "a number from 0 to below 1", lambda n: 0 <= n < 1),
    ("polyak", "a number between 0 and 1", lambda n: 0 < n < 1),
    ("layer_decay", "a number above 0 and at most 1", lambda n: 0 < n <= 1),
    ("head_bias", "a finite number", math.isfinite),
    ("warmup_steps", "a number of steps, or a share of all below 1", lambda n: n >= 0 and (_whole(n) or n < 1)),
)
_RANGES = {name: (expected, fits) for names, expected, fits in _NUMBERS for name in names.split()}


def _whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral)


def check_number(name: str, value: Any) -> int | float:
    """A number as Python's, which JSON knows; a ValueError unless it is in the range of the field `name`."""
    expected, fits = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not fits(value):
        raise ValueError(f"{name} must be {expected}, but {value!r} was given.")
    return int(value) if _whole(value) else float(value)


def check_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Patterns of names as a tuple, from one or several strings; a TypeError if they are anything else."""
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{argument} must be a string or several, but {patterns!r} was given.")
    return patterns


def matches(name: str, pattern: str) -> bool:
    """Whether the path of a layer or a weight fits a pattern with file names' wildcards, all of it or from a `/` on."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model is trained: plain data, one row of a published table or your own.

    `build_optimizer`, `build_schedule` and `build_loss` make the Keras objects that it names.

    Args:
        name: Its name in `list_recipes()`.
        source: Where the numbers stand.
        dataset: What the paper trained on with it.
        models: Which models it is for; empty for all.
        steps: Updates of the whole training; None where `epochs` says it.
        epochs: Passes over the data; None where `steps` says it.
        batch_size: Images per update.
        learning_rate: At the end of the warm-up.
        sweep: Field to the values among which the authors chose.
        schedule: How the rate decays, see `WarmupDecay`.
        warmup_steps: Updates of the warm-up; a float between 0 and 1 is a share of all.
        end: Last rate of a linear decay.
        optimizer: `"sgd"` with momentum, `"adam"` and `"adamw"`, which are the same: decay is always decoupled, or
            `"muon"` with AdamW for what is no matrix of a block.
        momentum: SGD's.
        momentum_dtype: dtype of the optimizer's momentum; None for the weights'.
        beta_1: Adam's.
        beta_2: Adam's.
        weight_decay: Of kernels: `w -= learning rate * weight_decay * w`.
        clip_norm: Greatest global norm of the gradients; None for any.
        image_size: Pixels, an integer or (height, width).
        dropout: Rate inside the model.
        drop_path: Rate of stochastic depth in the last block.
        loss: `"softmax"` or `"sigmoid"`.
        label_smoothing: See the losses.
        class_weight: What the terms of each class in the loss are multiplied by: `"balanced"` (by its number of
            images), weights by the names of classes (others have 1), or None. Of several labels, those that are there.
        sampling: How often images of each class are drawn, as in `open_data`.
        head_bias: What the head's biases start with; of numbers, their mean is taken.
        polyak: Momentum of the moving average of the weights; None for none.
        layer_decay: Factor of the learning rate from one block to the one before it; None for none.
        accumulate: Batches per update; each has `batch_size / accumulate` images.
        freeze: Patterns of layers that do not train, see `freeze`.
        lora_rank: Rank of adapters that train instead of the rest of the model, see `add_lora`; None for none.
        lora_alpha: Their scale; None for the rank.
        lora_targets: Patterns of the layers that get them.
        augmentation: What happens to training images.
        keep: Whose weights a run gives: `"last"`, as the papers' runs, or `"best"`, those of the evaluation with the
            highest `val_accuracy`; among equals, or without it, of the lowest `val_loss`, and then of the first.
        patience: Evaluations in a row without a better one, by the measure of `keep`, after which a run ends; None to
            make all steps.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Examples:
        >>> recipe = training.Recipe(steps=100, warmup_steps=10, learning_rate=0.01)
        >>> recipe.replace(batch_size=64).batch_size
        64
    """

    name: str = "custom"
    source: str = ""
    dataset: str = ""
    models: str = ""
    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 512
    learning_rate: float = 0.03
    sweep: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict, hash=False)
    schedule: str = "cosine"
    warmup_steps: int | float = 0
    end: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.9
    momentum_dtype: str | None = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float | None = None
    image_size: int | tuple[int, int] = 224
    dropout: float = 0.0
    drop_path: float = 0.0
    loss: str = "softmax"
    label_smoothing: float = 0.0
    class_weight: str | dict[str, float] | None = dataclasses.field(default=None, hash=False)
    sampling: str | None = None
    head_bias: float = 0.0
    polyak: float | None = None
    layer_decay: float | None = None
    accumulate: int = 1
    freeze: tuple[str, ...] = ()
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ("query", "value")
    augmentation: Augmentation = Augmentation()
    keep: str = "last"
    patience: int | None = None

    def __post_init__(self) -> None:
        fields = vars(self)  # a frozen dataclass is changed here only
        for name, choices in _CHOICES.items():
            check_choice(name, fields[name], choices)
        for name, value in fields.items():
            if name in _RANGES and (value is not None or name not in _OPTIONAL):
                fields[name] = check_number(name, value)
        size = pair("image_size", self.image_size)
        fields["image_size"] = size if isinstance(self.image_size, (tuple, list)) else size[0]
        for name in ("freeze", "lora_targets"):
            fields[name] = check_patterns(name, fields[name])
        if not isinstance(self.augmentation, Augmentation):
            raise TypeError(f"augmentation must be an Augmentation, but {self.augmentation!r} was given.")
        weights = self.class_weight
        if isinstance(weights, dict):
            for name, weight in weights.items():
                if not isinstance(weight, numbers.Real) or not 0 <= weight < math.inf:
                    raise ValueError(f"class_weight must have numbers of at least 0, but {name!r} has {weight!r}.")
        elif weights not in (None, "balanced"):
            raise ValueError(f'class_weight must be "balanced", a dict of weights or None, but {weights!r} was given.')
        if self.lora_rank is None and self.lora_alpha is not None:
            raise ValueError(f"lora_alpha={self.lora_alpha!r} is the scale of adapters: give lora_rank as well.")
        if self.batch_size % self.accumulate:
            found = f"{self.batch_size} is none of {self.accumulate}"
            raise ValueError(f"batch_size must be a multiple of accumulate, but {found}.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"A recipe has steps or epochs, but {self.steps} and {self.epochs} were given.")

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with other values in some fields; `steps` and `epochs` take each other's place.

        A warm-up of more than half of the new `steps` becomes a tenth of them, unless it is among the changes.
        """
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if changes.get(one) is not None and changes.get(other) is None:
                changes[other] = None
        new = dataclasses.replace(self, **changes)
        if new.steps in (None, self.steps) or "warmup_steps" in changes or new.warmup_steps <= max(new.steps / 2, 1):
            return new
        return dataclasses.replace(new, warmup_steps=new.steps // 10)

    def to_dict(self) -> dict[str, Any]:
        """All fields as data that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Recipe":
        """The recipe of `to_dict`, also after a way through JSON."""
        sweep = {key: tuple(values) for key, values in fields.get("sweep", {}).items()}
        return cls(**{**fields, "sweep": sweep, "augmentation": Augmentation(**fields.get("augmentation", {}))})

    def total_steps(self, examples: int | None = None) -> int:
        """Updates of the whole training, on as many images where the recipe counts epochs."""
        if self.steps is not None:
            return self.steps
        if self.epochs is None:
            raise ValueError(f"The recipe {self.name!r} has neither steps nor epochs: pass steps=...")
        if not examples:
            unknown = f"counts {self.epochs:g} epochs, and nothing says how many images an epoch has"
            raise ValueError(f"The recipe {self.name!r} {unknown}: pass steps=recipe.total_steps(examples).")
        return max(1, math.floor(self.epochs * examples / self.batch_size + 0.5))


class RecipeTable(Table):
    """Rows of `list_recipes`; printing it draws a table. The sources are in the rows."""

    columns = {
        "name": "name",
        "models": "models",
        "dataset": "data",
        "duration": "duration",
        "batch_size": "batch",
        "learning_rate": "rate",
        "schedule": "decay",
        "optimizer": "optimizer",
        "weight_decay": "weight decay",
        "image_size": "pixels",
    }


def recipe(name: str) -> Recipe:
    """A published recipe.

    Args:
        name: Like `"finetune/imagenet2012"`; `list_recipes()` shows all. Case does not matter.

    Raises:
        ValueError: if there is none of that name; the message has those nearest to it.

    Examples:
        >>> recipe = training.recipe("finetune/imagenet2012")
        >>> recipe.steps, recipe.batch_size
        (20000, 512)
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a recipe must be a string, but {name!r} was given.")
    recipes = {row.name.lower(): row for row in _recipes()}
    if name.lower() in recipes:
        return recipes[name.lower()]
    suggestion = did_you_mean(name, {known: row.name for known, row in recipes.items()})
    raise ValueError(f"There is no recipe {name!r}.{suggestion} list_recipes() shows all {len(recipes)}.")


def list_recipes(query: str | None = None) -> Table:
    """The published recipes.

    Args:
        query: Words that must all be in a recipe's name, models, data or source; case does not matter. None for all.

    Returns:
        One row for each with all fields of `Recipe`, and `duration` as text.

    Examples:
        >>> training.list_recipes("finetune cifar100")[0]["steps"]
        10000
    """
    rows = RecipeTable()
    for row in _recipes():
        text = " ".join((row.name, row.models, row.dataset, row.source)).lower()
        if all(word in text for word in (query or "").lower().split()):
            duration = f"{row.steps} steps" if row.epochs is None else f"{row.epochs:g} epochs"
            # Text: a table of numbers would round rates to hundredths.
            rows.append({**dataclasses.asdict(row), "learning_rate": f"{row.learning_rate:g}", "duration": duration})
    return rows


@functools.cache
def _recipes() -> tuple[Recipe, ...]:
    return tuple(map(Recipe.from_dict, ROWS))
