"""The papers' recipes by name, and the Keras objects that they stand for."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import did_you_mean, pair
from keras_vit._terminal import Table
from keras_vit.data import Augmentation
from keras_vit.training.recipe_table import ROWS

# A recipe is data, which `keras-vit recipes` shows without Keras: what needs it is imported where it is used.
if TYPE_CHECKING:
    import keras

    from keras_vit.training.optimizers import WarmupDecay

LOSSES = ("softmax", "sigmoid")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("cosine", "linear", "polynomial", "rsqrt", "stair", "constant")
_OPTIONAL = ("steps", "epochs", "clip_norm", "polyak", "layer_decay", "lora_rank", "lora_alpha")  # may be None
# Fields that are numbers: what they must be, in words and as a test.
_NUMBERS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("steps batch_size accumulate lora_rank", "a whole number of at least 1", lambda n: _whole(n) and n >= 1),
    ("learning_rate end weight_decay", "a number of at least 0", lambda n: 0 <= n < math.inf),
    ("epochs clip_norm lora_alpha", "a number above 0", lambda n: 0 < n < math.inf),
    (
        "momentum beta_1 beta_2 dropout drop_path label_smoothing",
        "a number of at least 0 and less than 1",
        lambda n: 0 <= n < 1,
    ),
    ("polyak", "a number between 0 and 1", lambda n: 0 < n < 1),
    ("layer_decay", "a number above 0 and at most 1", lambda n: 0 < n <= 1),
    ("head_bias", "a finite number", math.isfinite),
    ("warmup_steps", "a number of steps, or a share of all below 1", lambda n: n >= 0 and (_whole(n) or n < 1)),
)


def _whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral)


def build_schedule(recipe: "Recipe", steps: int | None = None) -> "WarmupDecay":
    """The learning rate of a recipe, as a function of the update.

    Args:
        recipe: The recipe.
        steps: Updates of the whole training; None for the recipe's. A warm-up that would take more than half of them
            is shortened: to its share of the recipe's own steps, or else to a tenth.

    Returns:
        A `WarmupDecay`.

    Raises:
        ValueError: if the recipe counts epochs and `steps` is not given, or its warm-up takes all of its steps.

    Examples:
        >>> schedule = training.build_schedule(training.recipe("finetune/cifar10"), steps=100)
        >>> float(schedule(0))
        0.0
    """
    from keras_vit.training.optimizers import WarmupDecay

    warmup = recipe.warmup_steps
    if steps is not None and warmup > max(steps / 2, 1):
        share = warmup / recipe.steps if recipe.steps and recipe.steps > 2 * warmup else 0.1
        warmup = int(steps * share)
    total = recipe.total_steps() if steps is None else steps
    return WarmupDecay(recipe.learning_rate, total, recipe.schedule, warmup_steps=warmup, end=recipe.end)


def build_optimizer(
    recipe: "Recipe", model: "keras.Model | None" = None, steps: int | None = None
) -> "keras.optimizers.Optimizer":
    """The optimizer of a recipe with its schedule, for `model.compile`.

    Args:
        recipe: The recipe.
        model: The model that it will train; needed for a recipe with `layer_decay`.
        steps: As in `build_schedule`.

    Returns:
        `MomentumSGD` or `AdamW`. With `accumulate`, give it batches of `batch_size / accumulate` images.

    Raises:
        ValueError: if the recipe counts epochs and `steps` is not given, or `model` is missing.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10")
        >>> type(training.build_optimizer(recipe)).__name__
        'MomentumSGD'
    """
    from keras_vit.training.optimizers import AdamW, MomentumSGD, layer_decay

    if recipe.layer_decay is not None and model is None:
        raise ValueError("layer_decay depends on the model: pass build_optimizer(recipe, model).")
    common: dict[str, Any] = {
        "learning_rate": build_schedule(recipe, steps),
        "momentum_dtype": recipe.momentum_dtype,
        "weight_decay": recipe.weight_decay or None,
        "global_clipnorm": recipe.clip_norm,
        "rate_multipliers": layer_decay(model, recipe.layer_decay) if recipe.layer_decay is not None else None,
        "gradient_accumulation_steps": recipe.accumulate if recipe.accumulate > 1 else None,
    }
    if recipe.polyak is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.polyak}
    if recipe.optimizer == "sgd":
        return MomentumSGD(momentum=recipe.momentum, **common)
    return AdamW(beta_1=recipe.beta_1, beta_2=recipe.beta_2, **common)


def build_loss(recipe: "Recipe") -> "keras.losses.Loss":
    """The loss of a recipe, on logits and one-hot labels.

    Args:
        recipe: The recipe.

    Returns:
        A `SoftmaxLoss` or a `SigmoidLoss`, with the recipe's label smoothing.

    Examples:
        >>> type(training.build_loss(training.recipe("finetune/cifar10"))).__name__
        'SoftmaxLoss'
    """
    from keras_vit.training.losses import SigmoidLoss, SoftmaxLoss

    return {"softmax": SoftmaxLoss, "sigmoid": SigmoidLoss}[recipe.loss](label_smoothing=recipe.label_smoothing)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model is trained: plain data, one row of a published table or your own.

    `recipe("finetune/cifar10").replace(steps=100)` changes fields; `build_optimizer`, `build_schedule` and `build_loss`
    make the Keras objects that it names.

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
        optimizer: `"sgd"` with momentum, or `"adam"` and `"adamw"`, which are the same: decay is always decoupled.
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
        head_bias: What the head's biases start with.
        polyak: Momentum of the moving average of the weights; None for none.
        layer_decay: Factor of the learning rate from one block to the one before it; None for none.
        accumulate: Batches per update; each has `batch_size / accumulate` images.
        freeze: Patterns of layers that do not train, see `freeze`.
        lora_rank: Rank of adapters that train instead of the rest of the model, see `add_lora`; None for none.
        lora_alpha: Their scale; None for the rank.
        lora_targets: Patterns of the layers that get them.
        augmentation: What happens to training images.

    Raises:
        ValueError: if a field is out of its range.

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
    head_bias: float = 0.0
    polyak: float | None = None
    layer_decay: float | None = None
    accumulate: int = 1
    freeze: tuple[str, ...] = ()
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ("query", "value")
    augmentation: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        for name, choices in (("optimizer", OPTIMIZERS), ("loss", LOSSES), ("schedule", SCHEDULES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, but {getattr(self, name)!r} was given.")
        for names, expected, fits in _NUMBERS:
            for name in names.split():
                self._check_number(name, expected, fits)
        size = pair("image_size", self.image_size)
        object.__setattr__(self, "image_size", size if isinstance(self.image_size, (tuple, list)) else size[0])
        for name in ("freeze", "lora_targets"):
            patterns = getattr(self, name)
            patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
            if not all(isinstance(pattern, str) for pattern in patterns):
                raise TypeError(f"{name} must be names of layers, but {patterns!r} was given.")
            object.__setattr__(self, name, patterns)
        if not isinstance(self.augmentation, Augmentation):
            raise TypeError(f"augmentation must be an Augmentation, but {self.augmentation!r} was given.")
        if self.lora_rank is None and self.lora_alpha is not None:
            raise ValueError(f"lora_alpha={self.lora_alpha!r} is the scale of adapters: give lora_rank as well.")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size must be a multiple of accumulate, but batch_size={self.batch_size!r} and "
                f"accumulate={self.accumulate!r} were given."
            )
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"A recipe has steps or epochs, but steps={self.steps} and epochs={self.epochs} were given."
            )

    def _check_number(self, name: str, expected: str, fits: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not fits(value):
            raise ValueError(f"{name} must be {expected}, but {value!r} was given.")
        # NumPy's numbers become Python's, which JSON knows.
        object.__setattr__(self, name, int(value) if _whole(value) else float(value))

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with other values in some fields.

        `steps` and `epochs` take each other's place. A warm-up that would take more than half of the new `steps` is
        shortened to a tenth of them, unless `warmup_steps` is among the changes.
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
        fields = dict(fields)
        augmentation = fields.pop("augmentation", {})
        fields["sweep"] = {key: tuple(values) for key, values in fields.get("sweep", {}).items()}
        return cls(**fields, augmentation=Augmentation(**augmentation))

    def total_steps(self, examples: int | None = None) -> int:
        """Updates of the whole training.

        Args:
            examples: Images in the training data; needed where the recipe counts epochs.

        Raises:
            ValueError: if it is needed and not given.
        """
        if self.steps is not None:
            return self.steps
        if self.epochs is None:
            raise ValueError(f"The recipe {self.name!r} has neither steps nor epochs: pass steps=...")
        if not examples:
            raise ValueError(
                f"The recipe {self.name!r} counts {self.epochs:g} epochs, so the number of updates depends on the "
                "data: pass steps=recipe.total_steps(examples), or recipe.replace(steps=...)."
            )
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
        name: Like `"finetune/imagenet2012"`; `list_recipes()` shows all.

    Returns:
        The `Recipe`.

    Raises:
        TypeError: if `name` is not a string.
        ValueError: if there is none of that name; the message has those nearest to it.

    Examples:
        >>> recipe = training.recipe("finetune/imagenet2012")
        >>> recipe.steps, recipe.batch_size
        (20000, 512)
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a recipe must be a string, but {name!r} was given.")
    recipes = _recipes()
    if name in recipes:
        return recipes[name]
    known = {known.lower(): known for known in recipes}
    if name.lower() in known:
        return recipes[known[name.lower()]]
    suggestion = did_you_mean(name, known)
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
    words = (query or "").lower().split()
    rows = RecipeTable()
    for row in _recipes().values():
        text = " ".join((row.name, row.models, row.dataset, row.source)).lower()
        if all(word in text for word in words):
            duration = f"{row.steps} steps" if row.epochs is None else f"{row.epochs:g} epochs"
            # Text: a table of numbers would round rates to hundredths.
            text_fields = {"learning_rate": f"{row.learning_rate:g}", "duration": duration}
            rows.append({**dataclasses.asdict(row), **text_fields})
    return rows


@functools.cache
def _recipes() -> dict[str, Recipe]:
    """All recipes by name, the rows of the table with several models or durations taken apart."""
    recipes: dict[str, Recipe] = {}
    for row in ROWS:
        fields = dict(row)
        variants = fields.pop("variants", (fields.pop("models", ""),))
        epochs = fields.pop("epochs", None)
        durations = epochs if isinstance(epochs, tuple) else (epochs,)
        template = fields.pop("name")
        fields["augmentation"] = Augmentation(**fields.get("augmentation", {}))
        for variant in variants:
            for epochs in durations:
                name = template.format(variant=variant) + (f"-{epochs}ep" if len(durations) > 1 else "")
                if name in recipes:
                    raise ValueError(f"recipe_table.py lists {name!r} twice.")
                recipes[name] = Recipe(name=name, models=variant, epochs=epochs, **fields)
    return recipes
