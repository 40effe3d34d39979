"""The keywords of a run: the options that all runs have in common, and the fields of a recipe."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import keras

from keras_vit._arguments import DType, ImageSize, did_you_mean
from keras_vit.data import Augmentation, MaskAugmentation, SegmentAugmentation
from keras_vit.training.sharing import Distribution

_NONE_IS_UNSET = ("steps", "epochs", "batch_size", "learning_rate", "warmup_steps", "image_size")


class RecipeChanges(TypedDict, total=False):
    """Fields of a `Recipe` as keywords of a run, where they take the place of the recipe's."""

    name: str
    source: str
    dataset: str
    models: str
    steps: int | None
    epochs: float | None
    batch_size: int | None
    learning_rate: float | None
    sweep: dict[str, tuple[Any, ...]]
    schedule: str
    warmup_steps: int | float | None
    end: float
    optimizer: str
    momentum: float
    momentum_dtype: str | None
    beta_1: float
    beta_2: float
    weight_decay: float
    clip_norm: float | None
    image_size: ImageSize | None
    dropout: float
    patch_drop: float
    drop_path: float
    loss: str
    label_smoothing: float
    class_weight: str | dict[str, float] | None
    sampling: str | None
    head_bias: float
    polyak: float | None
    layer_decay: float | None
    accumulate: int
    freeze: str | Iterable[str]
    lora_rank: int | None
    lora_alpha: float | None
    lora_targets: str | Iterable[str]
    augmentation: Augmentation | MaskAugmentation | SegmentAugmentation
    keep: str
    patience: int | None
    power: float
    backbone_warmup_steps: int | None
    decay_query_blocks: bool
    queries: int | None
    points: int
    first_mask_steps: int | None


class RunOptions(RecipeChanges, total=False):
    """Keywords of `finetune`, `pretrain` and `finetune_segmentation`: these, and all fields as in `Recipe`.

    A field takes the place of the recipe's, by `recipe.replace`: `steps=100`, `batch_size=64`, `image_size=384`.

    Attributes:
        classes: Number of classes, where the data does not say it (integer labels of a pipeline).
        class_names: Their names, where the data does not say them. They become `model.config.class_names`.
        every: Updates between two evaluations and checkpoints; None for an epoch, at most a tenth of the run.
        seed: Decides the order of the images, their augmentation and all that is random in the model; 0 if not given.
        on_bad_image: `"stop"` (the default) or `"skip"`, see `open_data`.
        resume: Whether a run in `output` goes on, True if not given. False starts again and removes all that the old
            one has left.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch. None
            that sets the learning rate, which the recipe does, or beside `polyak` one that stores or restores weights.
        dtype: Dtype policy of a model that is loaded, such as `"mixed_bfloat16"`.
        distribution: What shares the batches. None: all processes that the program was started in (see `connect`), and
            the `keras.distribution` or `tf.distribute` scope around the call or the model. Also such a distribution
            or strategy itself. `"alone"`: this process trains by itself.
        verbose: Whether to print what was found, and to show a progress bar; True if not given.

    Examples:
        >>> options: training.RunOptions = {"steps": 1, "batch_size": 2, "image_size": 8, "verbose": False}
        >>> training.finetune(small, (pixels, labels), "finetune/cifar10", **options).recipe.steps
        1
    """

    classes: int | None
    class_names: Sequence[str] | None
    every: int | None
    seed: int
    on_bad_image: str
    resume: bool
    callbacks: Sequence[keras.callbacks.Callback]
    dtype: DType
    distribution: Distribution
    verbose: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a run that are no fields of its recipe, with their defaults; `RunOptions` says what they mean."""

    classes: int | None = None
    class_names: Sequence[str] | None = None
    every: int | None = None
    seed: int = 0
    on_bad_image: str = "stop"
    resume: bool = True
    callbacks: Sequence[keras.callbacks.Callback] = ()
    dtype: DType = None
    distribution: Distribution = None
    verbose: bool = True


def split_options(options: RunOptions) -> tuple[dict[str, Any], Settings]:
    """The changes of the recipe among the keywords of a run, and the other options; TypeError for unknown keywords."""
    known = RunOptions.__annotations__
    for name in options:
        if name not in known:
            near = did_you_mean(name, {one.lower(): one for one in known})
            raise TypeError(f"A run got an unexpected keyword argument {name!r}.{near}")
    fields = {field.name for field in dataclasses.fields(Settings)}
    changes = {name: value for name, value in options.items() if name not in fields}
    # As keywords these have always been None where nobody wants a change.
    changes = {name: value for name, value in changes.items() if value is not None or name not in _NONE_IS_UNSET}
    return changes, Settings(**{name: value for name, value in options.items() if name in fields})
