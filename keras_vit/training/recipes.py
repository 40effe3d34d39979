"""The papers' recipes by name, and the Keras objects that they stand for."""

import dataclasses
import difflib
import functools
import math
from typing import TYPE_CHECKING, Any

from keras_vit.data import Augmentation
from keras_vit.tables import Table
from keras_vit.training.recipe_table import ROWS

# A recipe is data, which `keras-vit recipes` shows without Keras: what needs it is imported where it is used.
if TYPE_CHECKING:
    import keras

    from keras_vit.training.schedules import WarmupDecay

LOSSES = ("softmax", "sigmoid")
OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model is trained: plain data, one row of a published table or your own.

    `recipe("finetune/cifar10").replace(steps=100)` changes fields. `schedule`, `optimizer` and `loss` make Keras
    objects of it.

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
        warmup_steps: Updates of the warm-up; a float between 0 and 1 is a share of all. `schedule` shortens it for
            a training that it would take half of.
        end: Last rate of a linear decay.
        optimizer: `"sgd"` with momentum, or `"adam"` and `"adamw"`, which are the same: decay is always decoupled.
        momentum: SGD's.
        momentum_dtype: dtype of the optimizer's momentum; None for the weights'.
        beta_1: Adam's.
        beta_2: Adam's.
        weight_decay: Of kernels: `w -= learning rate * weight_decay * w`.
        clip_norm: Greatest global norm of the gradients; None for any.
        image_size: Pixels.
        dropout: Rate inside the model.
        drop_path: Rate of stochastic depth in the last block.
        loss: `"softmax"` or `"sigmoid"`.
        label_smoothing: See the losses.
        head_bias: What the head's biases start with.
        polyak: Momentum of the moving average of the weights; None for none.
        layer_decay: Factor of the learning rate from one block to the one before it; None for none.
        accumulate: Batches per update; each has `batch_size / accumulate` images.
        freeze: Patterns of layers that do not train, see `freeze`.
        augmentation: What happens to training images.

    Raises:
        ValueError: if a field is out of its range.
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
    image_size: int = 224
    dropout: float = 0.0
    drop_path: float = 0.0
    loss: str = "softmax"
    label_smoothing: float = 0.0
    head_bias: float = 0.0
    polyak: float | None = None
    layer_decay: float | None = None
    accumulate: int = 1
    freeze: tuple[str, ...] = ()
    augmentation: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {OPTIMIZERS}, but {self.optimizer!r} was given.")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {LOSSES}, but {self.loss!r} was given.")
        if self.accumulate < 1 or self.batch_size < 1 or self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size must be a multiple of accumulate, both at least 1, but batch_size={self.batch_size!r} "
                f"and accumulate={self.accumulate!r} were given."
            )
        if self.polyak is not None and not 0 < self.polyak < 1:
            raise ValueError(f"polyak must be between 0 and 1, like 0.9999, but {self.polyak!r} was given.")

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with other values in some fields; `steps` and `epochs` take each other's place."""
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if changes.get(one) is not None and changes.get(other) is None:
                changes[other] = None
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields as data that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Recipe":
        """The recipe of `to_dict`, also after a way through JSON."""
        fields = dict(fields)
        augmentation = dict(fields.pop("augmentation", {}))
        if augmentation.get("randaugment") is not None:
            augmentation["randaugment"] = tuple(augmentation["randaugment"])
        fields["freeze"] = tuple(fields.get("freeze", ()))
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

    Raises:
        TypeError: if `name` is not a string.
        ValueError: if there is none of that name; the message has those nearest to it.
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a recipe must be a string, but {name!r} was given.")
    recipes = _recipes()
    if name in recipes:
        return recipes[name]
    plain = {known.lower(): known for known in recipes}
    if name.lower() in plain:
        return recipes[plain[name.lower()]]
    inside = [known for low, known in plain.items() if name.lower() in low]
    near = [plain[low] for low in difflib.get_close_matches(name.lower(), plain, n=5, cutoff=0.5)]
    found = list(dict.fromkeys([*near, *inside]))[:5]
    suggestion = f" Did you mean {' or '.join(map(repr, found))}?" if found else ""
    raise ValueError(f"There is no recipe {name!r}.{suggestion} list_recipes() shows all {len(recipes)}.")


def list_recipes(query: str | None = None) -> Table:
    """The published recipes.

    Args:
        query: Words that must all be in a recipe's name, models, data or source; case does not matter. None for all.

    Returns:
        One row for each with all fields of `Recipe`, and `duration` as text.
    """
    words = (query or "").lower().split()
    rows = RecipeTable()
    for row in _recipes().values():
        text = " ".join((row.name, row.models, row.dataset, row.source)).lower()
        if all(word in text for word in words):
            duration = f"{row.steps} steps" if row.epochs is None else f"{row.epochs:g} epochs"
            # Text: a table of numbers would round rates to hundredths.
            shown = {"learning_rate": f"{row.learning_rate:g}", "duration": duration}
            rows.append({**dataclasses.asdict(row), **shown})
    return rows


def schedule(recipe: Recipe, steps: int | None = None) -> "WarmupDecay":
    """The learning rate of a recipe, as a function of the update.

    Args:
        recipe: The recipe.
        steps: Updates of the whole training; None for the recipe's. A warm-up that would take more than half of them
            is shortened: to its share of the recipe's own steps, or else to a tenth.

    Raises:
        ValueError: if the recipe counts epochs and `steps` is not given.
    """
    from keras_vit.training.schedules import WarmupDecay

    total = recipe.total_steps() if steps is None else steps
    warmup = recipe.warmup_steps
    if warmup > max(total / 2, 1):
        share = warmup / recipe.steps if recipe.steps and recipe.steps > 2 * warmup else 0.1
        warmup = int(total * share)
    return WarmupDecay(recipe.learning_rate, total, recipe.schedule, warmup_steps=warmup, end=recipe.end)


def optimizer(
    recipe: Recipe, model: "keras.Model | None" = None, steps: int | None = None
) -> "keras.optimizers.Optimizer":
    """The optimizer of a recipe with its schedule, for `model.compile`.

    Args:
        recipe: The recipe.
        model: The model that it will train; needed for a recipe with `layer_decay`.
        steps: Updates of the whole training; None for the recipe's.

    Returns:
        `MomentumSGD` or `AdamW`. With `accumulate`, give it batches of `batch_size / accumulate` images.

    Raises:
        ValueError: if the recipe counts epochs and `steps` is not given, or `model` is missing.
    """
    from keras_vit.training.optimizers import AdamW, MomentumSGD, layer_decay

    if recipe.layer_decay is not None and model is None:
        raise ValueError("layer_decay depends on the model: pass optimizer(recipe, model).")
    common: dict[str, Any] = {
        "learning_rate": schedule(recipe, steps),
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


def loss(recipe: Recipe) -> "keras.losses.Loss":
    """The loss of a recipe, on logits and one-hot labels."""
    from keras_vit.training.losses import SigmoidLoss, SoftmaxLoss

    return {"softmax": SoftmaxLoss, "sigmoid": SigmoidLoss}[recipe.loss](label_smoothing=recipe.label_smoothing)


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
