"""The papers' recipes by name, as plain data that needs no Keras, and what makes Keras objects of them."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from keras_vit._arguments import did_you_mean, pair
from keras_vit._options import (
    FROM_0,
    GIVEN,
    INSIDE,
    Above0,
    Count,
    Finite,
    From0,
    Instance,
    Number,
    OneOf,
    Options,
    Part,
    Patterns,
    Positive,
    Rate,
    as_python,
    checked,
    option,
)
from keras_vit._terminal import Table
from keras_vit.data import Augmentation, PictureAugmentation, boxes  # noqa: F401 - the kind of boxes is registered
from keras_vit.data.segments import SEGMENTS
from keras_vit.data.targets import CLASS, LABELLED, MULTILABEL, augmentations
from keras_vit.training.published import ROWS

if TYPE_CHECKING:
    import keras

    from keras_vit.training.optimizers import WarmupDecay

# The tasks, each with the place of the class that has its four functions.
TASKS = {
    "finetune": "keras_vit.training.tasks:FineTuning",
    "pretrain": "keras_vit.training.pretraining:Pretraining",
    "masked_patches": "keras_vit.training.pretraining:MaskedPatches",
    "lejepa": "keras_vit.training.pretraining:LeJEPA",
    "feature_distillation": "keras_vit.training.feature_distillation:FeatureDistillation",
    "segmentation": "keras_vit.training.segmentation:LinearSegmentation",
    "eomt": "keras_vit.training.segmentation:EoMTSegmentation",
    "detection": "keras_vit.training.boxes:BoxDetection",
}
# Where fields apply: the target of the data, the objective, the model and the optimizer.
_CLASSES = {"target": (CLASS.name, MULTILABEL.name)}
_LOGITS = {**_CLASSES, "objective": ("labels", "distillation")}
_LABELS = {**_CLASSES, "objective": ("labels",)}
_QUERIES = {"target": (SEGMENTS.name,)}
_RATES = {"model": ("VisionTransformer", "LinearSegmenter")}
_PATHS = {"model": ("VisionTransformer", "LinearSegmenter", "Detector")}
_ADAM = {"optimizer": ("adam", "adamw", "muon")}
_FALLING = ("cosine", "linear", "polynomial", "cosine_whole", "linear_whole")  # to an end
_SCHEDULES = (*_FALLING, "rsqrt", "stair", "constant")
Steps = Annotated[
    int | float,
    Number("a number of steps, or a share of all below 1", lambda n: n >= 0 and (isinstance(n, int) or n < 1)),
]
# Columns of a run's log: `keep="best"` compares the first that is there, of which the larger is the better.
MEASURES = ("val_accuracy", "val_ranking_precision", "val_mean_iou", "val_panoptic_quality", "val_ap")


def _class_weight(name: str, value: Any) -> Any:
    """Returns the factors of classes: "balanced", or numbers by the names of classes."""
    if isinstance(value, dict):
        return {as_python(key): FROM_0(f"{name}[{key!r}]", weight) for key, weight in value.items()}
    if value != "balanced":
        raise (ValueError if isinstance(value, str) else TypeError)(
            f'{name} must be "balanced", a dict of weights or None, but {value!r} was given.'
        )
    return value


def _size(name: str, value: Any) -> int | tuple[int, int]:
    """Returns pixels as they were given, one integer or two."""
    size = pair(name, value)
    return size if isinstance(value, tuple) else size[0]


def _augmentation(name: str, value: Any) -> PictureAugmentation:
    return Instance(tuple(augmentations().values()))(name, value)


@dataclasses.dataclass(frozen=True)
class Recipe(Options):
    """The settings of a training run, as plain data: a row of a published table, or your own.

    `build_optimizer`, `build_schedule` and `build_loss` make the Keras objects that it names.

    Args:
        name: Its name in `list_recipes()`.
        source: The publication with these settings.
        dataset: The paper's data set.
        models: The models that it is for; empty for all.
        task: What `train` trains by it: `"finetune"`, `"pretrain"`, `"masked_patches"`, `"lejepa"`,
            `"feature_distillation"`, `"segmentation"`, `"eomt"` or `"detection"`; None for that of its augmentation.
        steps: Updates of the whole training; None if `epochs` is set.
        epochs: Passes over the data; None if `steps` is set.
        batch_size: Images per update.
        learning_rate: At the end of the warm-up.
        sweep: By field, the values that the authors tried.
        schedule: How the rate decays, see `WarmupDecay`.
        warmup_steps: Updates of the warm-up; a float between 0 and 1 is a share of all.
        end: Last rate of a cosine, linear or polynomial decay.
        optimizer: `"sgd"` with momentum, `"adam"` and `"adamw"`, which are the same: decay is always decoupled, or
            `"muon"`, with AdamW for weights that are not matrices of a block.
        momentum: Momentum of SGD.
        momentum_dtype: dtype of the optimizer's momentum; None for the weights'.
        beta_1: Decay of Adam's first moment.
        beta_2: Decay of Adam's second moment.
        weight_decay: Of kernels: `w -= learning rate * weight_decay * w`.
        clip_norm: Largest global norm of the gradients; None: no clipping.
        image_size: Pixels, an integer or (height, width).
        dropout: Rate inside the model; in segmentation, of the channels that the head reads.
        patch_drop: Share of each image's patches that is dropped in training, see `layers.PatchDropout`.
        drop_path: Rate of stochastic depth in the last block.
        loss: `"softmax"` or `"sigmoid"`.
        label_smoothing: See the losses.
        class_weight: Weights of the classes in the loss: `"balanced"` (from the number of images), a dict by name or
            number (1 for missing classes), or None. For several labels, weights of present labels.
        sampling: How often images of each class are drawn, as in `open_data`.
        head_bias: Initial value of the head's biases; regression uses the mean of the labels.
        polyak: Momentum of the moving average of the weights; None for none.
        layer_decay: Factor of the learning rate from one block to the one before it; None for none.
        accumulate: Batches per update; each has `batch_size / accumulate` images.
        freeze: Patterns of layers that do not train, see `freeze`.
        lora_rank: Rank of adapters that train instead of the rest of the model, see `add_lora`; None for none.
        lora_alpha: Scale of the adapters; None for the rank.
        lora_targets: Patterns of the layers that get adapters.
        augmentation: Augmentation of training images: a `data.Augmentation`, a `data.MaskAugmentation` (masks), a
            `data.SegmentAugmentation` (EoMT) or a `data.BoxAugmentation` (boxes).
        keep: Which weights a run returns: `"last"`, as in the papers, or `"best"`: the evaluation with the highest
            `val_accuracy` (`val_ranking_precision`, `val_mean_iou`, `val_panoptic_quality` or `val_ap`). Ties, and
            regression, are decided by the lowest `val_loss`, then by the first step. While a quality of masks or boxes
            is 0, the lowest `loss` decides.
        power: Exponent of a polynomial decay.
        backbone_warmup_steps: For an EoMT: updates of the backbone's warm-up, which begins after the head's warm-up;
            the backbone does not train before. None for one warm-up.
        decay_query_blocks: For an EoMT: whether `layer_decay` also applies to blocks with queries.
        queries: For a new EoMT: the number of queries.
        points: For an EoMT: the number of points at which masks are compared.
        first_mask_steps: For an EoMT: updates until masked attention of the first block with queries ends; None: it
            ends in the second sixth of the run (see `mask_windows`).
        patience: The run ends after this many evaluations in a row without improvement, by the metric of `keep`; None
            to run all steps.

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
    task: Annotated[str | None, OneOf((None, *TASKS))] = None
    steps: Positive | None = None
    epochs: Above0 | None = None
    batch_size: Positive = 512
    learning_rate: From0 = 0.03
    sweep: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict, hash=False)
    schedule: Annotated[str, OneOf(_SCHEDULES)] = "cosine"
    warmup_steps: Steps = 0
    end: From0 = option(0.0, when={"schedule": _FALLING})
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    momentum: Rate = option(0.9, when={"optimizer": ("sgd",)})
    momentum_dtype: str | None = None
    beta_1: Rate = option(0.9, when=_ADAM)
    beta_2: Rate = option(0.999, when=_ADAM)
    weight_decay: From0 = 0.0
    clip_norm: Above0 | None = None
    image_size: Annotated[int | tuple[int, int], _size] = 224
    dropout: Rate = option(0.0, when=_RATES)
    patch_drop: Rate = option(0.0, when={"model": ("VisionTransformer",), "objective": ("labels", "distillation")})
    drop_path: Rate = option(0.0, when=_PATHS)
    loss: Literal["softmax", "sigmoid"] = option("softmax", when=_LOGITS)
    label_smoothing: Rate = option(0.0, when=_LOGITS)
    class_weight: Annotated[str | dict[str, float], _class_weight] | None = option(None, when=_LABELS, hash=False)
    sampling: Literal["balanced", "sqrt"] | None = option(None, when=_CLASSES)
    head_bias: Finite = option(0.0, when=_LOGITS)  # in regression the mean of the labels is taken
    polyak: Annotated[float, INSIDE] | None = None
    layer_decay: Part | None = None
    accumulate: Positive = 1
    freeze: Patterns = ()
    lora_rank: Positive | None = None
    lora_alpha: Above0 | None = option(None, when={"lora_rank": GIVEN})
    lora_targets: Patterns = option(("query", "value"), when={"lora_rank": GIVEN})
    augmentation: Annotated[PictureAugmentation, _augmentation] = option(Augmentation(), when={"target": LABELLED})
    keep: Literal["last", "best"] = "last"
    patience: Positive | None = None
    power: Above0 = option(1.0, when={"schedule": ("polynomial",)})
    backbone_warmup_steps: Count | None = option(None, when={**_QUERIES, "optimizer": ("adam", "adamw")})
    decay_query_blocks: bool = option(True, when={**_QUERIES, "layer_decay": GIVEN})
    queries: Positive | None = option(None, when=_QUERIES)
    points: Positive = option(12544, when=_QUERIES)
    first_mask_steps: Positive | None = option(None, when=_QUERIES)

    def _check_together(self) -> None:
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size={self.batch_size} must be a multiple of accumulate={self.accumulate}.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"A recipe has steps or epochs, not both, but {self.steps} and {self.epochs} were given.")

    def replace(self, **changes: Any) -> "Recipe":
        """Returns a copy with other values in some fields; `steps` and `epochs` take each other's place.

        If `steps` changes and the warm-ups would take more than half of them, each becomes a tenth of the steps, unless
        it is also changed. Raises TypeError for an unknown field; TypeError or ValueError for a field out of its range,
        or fields that do not go together.
        """
        has_length = any(changes.get(name) is not None for name in ("steps", "epochs"))
        new = super(Recipe, self.adapted(steps=None, epochs=None) if has_length else self).replace(**changes)
        if new.steps is None or new.steps == self.steps or "warmup_steps" in changes:
            return new
        names, warmup, most = ["warmup_steps"], new.warmup_steps, max(new.steps / 2, 1)
        if new.backbone_warmup_steps is not None and "backbone_warmup_steps" not in changes:
            names.append("backbone_warmup_steps")
            warmup, most = warmup + new.backbone_warmup_steps, new.steps / 2
        return new.adapted(**dict.fromkeys(names, new.steps // 10)) if warmup > most else new

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, the kind of the augmentation, and the names that are `given`, as plain data for JSON."""
        how = self.augmentation
        described = {"kind": type(how).__name__, **how.to_dict(), "given": sorted(how.given)}
        return {**super().to_dict(), "augmentation": described, "given": sorted(self.given)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Recipe":
        """Returns the recipe of what `to_dict` returned, also after it was JSON.

        Missing fields have their defaults. Raises TypeError for unknown fields; TypeError or ValueError for wrong ones.
        """
        how = {"kind": "Augmentation", **fields.get("augmentation", {})}
        kinds = augmentations()
        kind = kinds[OneOf(tuple(kinds))("augmentation kind", how.pop("kind"))]
        sweep = {key: tuple(values) for key, values in fields.get("sweep", {}).items()}
        changed = {"sweep": sweep, "augmentation": kind.from_dict(how)}
        return super().from_dict({"given": tuple(fields), **fields, **changed})

    def total_steps(self, examples: int | None = None) -> int:
        """Returns the number of updates: `steps`, or `epochs` times `examples` images in batches, at least 1.

        Raises ValueError if the recipe has neither, or has epochs and `examples` is None or 0.
        """
        if self.steps is not None:
            return self.steps
        if self.epochs is None:
            raise ValueError(f"The recipe {self.name!r} has neither steps nor epochs: pass steps=...")
        if not examples:
            raise ValueError(
                f"The recipe {self.name!r} counts {self.epochs:g} epochs, but it is not known how many images an "
                "epoch has: pass steps=recipe.total_steps(examples)."
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


@checked
def recipe(name: str) -> Recipe:
    """Returns a published recipe by its name, in any case; TypeError or ValueError unless `list_recipes` has `name`."""
    recipes = {row.name.lower(): row for row in _recipes()}
    if name.lower() in recipes:
        return recipes[name.lower()]
    suggestion = did_you_mean(name, {known: row.name for known, row in recipes.items()})
    raise ValueError(f"There is no recipe {name!r}.{suggestion} list_recipes() shows all {len(recipes)}.")


def as_recipe(recipe_or_name: Recipe | str, changes: Mapping[str, Any]) -> Recipe:
    """Returns a recipe, or the published one of a name, with changes."""
    return (recipe_or_name if isinstance(recipe_or_name, Recipe) else recipe(recipe_or_name)).replace(**changes)


@checked
def list_recipes(query: str | None = None) -> Table:
    """Returns the published recipes as a table: one row for each, with all fields of `Recipe`, and `duration` as text.

    A recipe is listed if all words of `query` are in its name, models, data or source; case does not matter.

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
    return tuple(Recipe.from_dict({**row, "given": ()}) for row in ROWS)


def build_loss(recipe: Recipe, class_weight: Sequence[float] | None = None) -> "keras.losses.Loss":
    """Returns the `SoftmaxLoss` or `SigmoidLoss` of `recipe`, on logits and one-hot labels, with its `class_weight`."""
    from keras_vit.training.optimizers import SigmoidLoss, SoftmaxLoss

    return {"softmax": SoftmaxLoss, "sigmoid": SigmoidLoss}[recipe.loss](recipe.label_smoothing, class_weight)


def build_optimizer(
    recipe: Recipe, model: "keras.Model | None" = None, steps: int | None = None
) -> "keras.optimizers.Optimizer":
    """Returns the optimizer of a recipe with its schedule: `MomentumSGD`, `AdamW`, `Muon`, or `TwoStageAdamW`.

    A `TwoStageAdamW` is for an EoMT's recipes, which have `backbone_warmup_steps`. Only this one is built.

    Args:
        recipe: The recipe. With `accumulate`, its batches have `batch_size / accumulate` images.
        model: The model that it will train; a recipe with `layer_decay` or `backbone_warmup_steps` needs it.
        steps: As in `build_schedule`, and the errors as well.

    ValueError also if the recipe sets fields that its optimizer does not use.

    Examples:
        >>> type(training.build_optimizer(training.recipe("finetune/cifar10"))).__name__
        'MomentumSGD'
    """
    from keras_vit.training.optimizers import AdamW, MomentumSGD, Muon
    from keras_vit.training.trainable import eomt_optimizer, rate_multipliers

    multipliers = None
    if (recipe.layer_decay, recipe.backbone_warmup_steps) != (None, None):
        if model is None:
            raise ValueError("layer_decay depends on the model. Call build_optimizer(recipe, model).")
        multipliers = rate_multipliers(recipe, model)
    common: dict[str, Any] = {
        "learning_rate": build_schedule(recipe, steps),
        "momentum_dtype": recipe.momentum_dtype,
        "weight_decay": recipe.weight_decay or None,
        "global_clipnorm": recipe.clip_norm,
        "rate_multipliers": multipliers,
        "gradient_accumulation_steps": recipe.accumulate if recipe.accumulate > 1 else None,
    }
    if recipe.polyak is not None:
        common |= {"use_ema": True, "ema_momentum": recipe.polyak}
    if recipe.backbone_warmup_steps is not None:
        return eomt_optimizer(recipe, model, recipe.total_steps() if steps is None else steps, **common)
    if recipe.optimizer == "sgd":
        return MomentumSGD(momentum=recipe.momentum, **common)
    kind = Muon if recipe.optimizer == "muon" else AdamW
    return kind(beta_1=recipe.beta_1, beta_2=recipe.beta_2, **common)


@checked
def build_schedule(recipe: Recipe, steps: Positive | None = None) -> "WarmupDecay":
    """Returns the learning rate of `recipe`, a `WarmupDecay`: a function of the number of an update.

    `steps` are the updates of the whole training, None for the recipe's. A warm-up that would take more than half of
    them is shortened: to its share of the recipe's own steps, or else to a tenth. Raises ValueError if the number of
    steps is missing or invalid, or the recipe's schedule does not fit it.

    Examples:
        >>> float(training.build_schedule(training.recipe("finetune/cifar10"), steps=100)(0))
        0.0
    """
    from keras_vit.training.optimizers import WarmupDecay

    warmup = recipe.warmup_steps
    if steps is not None and warmup >= 1 and warmup > steps / 2:  # below 1 it is a share of them
        warmup = int(steps * (warmup / recipe.steps if recipe.steps and recipe.steps > 2 * warmup else 0.1))
    total = recipe.total_steps() if steps is None else steps
    return WarmupDecay(
        recipe.learning_rate, total, recipe.schedule, warmup_steps=warmup, end=recipe.end, power=recipe.power
    )
