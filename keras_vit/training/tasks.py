"""The keywords of a run (`RunOptions`), and what it trains: a `Task` is four functions, data, model, loss, measure."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import DType, check_type, listing, pair, warn_caller
from keras_vit._files import contents_of, fingerprint
from keras_vit._options import Count, Options, Positive, refuse_unknown
from keras_vit._processes import ALONE_BY_NAME, current
from keras_vit.data import ImageStream
from keras_vit.data.examples import names_of_splits
from keras_vit.data.targets import NONE
from keras_vit.models import BiT, ImageModel, VisionTransformer
from keras_vit.models.changes import arithmetic
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.training.distribution import Batch, Distribution, FilledBatches, Sharing
from keras_vit.training.recipes import MEASURES, Recipe, build_loss
from keras_vit.zoo import config_of, load


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Keywords of `finetune`, `pretrain` and `finetune_segmentation`: the following, and all fields of `Recipe`.

    A field replaces the value of the recipe: `steps=100`, `batch_size=64`, `image_size=384`.

    Attributes:
        classes: Number of classes, if the data does not have it (integer labels of a pipeline).
        class_names: Names of the classes, if the data does not have them. They become `model.config.class_names`.
        every: Updates between two evaluations and checkpoints; None for an epoch, at most a tenth of the run.
        seed: Decides the order of the images, their augmentation and all that is random in the model; 0 if not given.
        on_bad_image: `"stop"` (the default) or `"skip"`, see `open_data`.
        resume: Whether to resume the run in `output`; True if not given. False removes its files and starts again.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch. They
            must not set the learning rate, which the recipe does, nor, with `polyak`, store or restore weights.
        dtype: Dtype policy of a model that is loaded, such as `"mixed_bfloat16"`.
        distribution: A `keras.distribution` or `tf.distribute.Strategy` that divides the batches. None: all processes
            of the program (see `connect`), and the scope of a distribution or strategy around the call or the model.
            `"alone"`: this process trains by itself.
        verbose: Whether to print what was found, and to show a progress bar; True if not given.

    Examples:
        >>> options = {"steps": 1, "batch_size": 2, "image_size": 8, "verbose": False}
        >>> training.finetune(small, (pixels, labels), "finetune/cifar10", **options).recipe.steps
        1
    """

    classes: int | None = None
    class_names: Sequence[str] | None = None
    every: Positive | None = None
    seed: Count = 0
    on_bad_image: str = "stop"
    resume: bool = True
    callbacks: Sequence[keras.callbacks.Callback] = ()
    dtype: DType = None
    distribution: Distribution = None
    verbose: bool | int = True


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], RunOptions]:
    """Returns the changes of the recipe among keywords of a run, and the other options."""
    own, fields = ({field.name for field in dataclasses.fields(kind)} for kind in (RunOptions, Recipe))
    refuse_unknown(options, own | fields, "A run")
    changes = {name: value for name, value in options.items() if name in fields}
    # None stands for the recipe's own value.
    fixed = {"steps", "epochs"} | {name for name in changes if getattr(Recipe, name, None) is not None}
    changes = {name: value for name, value in changes.items() if value is not None or name not in fixed}
    return changes, RunOptions(**{name: value for name, value in options.items() if name in own})


MOST_PATCHES = 4096  # Three times as many as any of the papers' models has: H/14 at 518 pixels, 1,369.
SHOWN = 6  # pictures to evaluate on that are drawn
PADDED_TO = 16  # padded targets have a multiple of so many: JAX compiles a program for each number
WIDE = 5  # standard deviation of labels that steps of the recipes' size hardly reach

Model = VisionTransformer | BiT
# The model that the loss is computed with, the loss, whose mean over a batch is trained, metrics for the log, and the
# batches to train on. A model that computes its loss itself has neither of the next two.
Learning = tuple[keras.Model, Callable[[Any, Any], Any] | None, list[keras.metrics.Metric], Batch]


@dataclasses.dataclass(frozen=True)
class Request:
    """What a run is called with beside its recipe. `Task.data` returns it with its data opened."""

    model: Any
    data: Any
    validation: Any  # data, or a share of the images to train on
    settings: RunOptions
    target: str = "class"
    owl: Any = None  # what a detector that trains by words is made of

    @property
    def is_share(self) -> bool:
        """Whether there are no other data to evaluate on."""
        return isinstance(self.validation, (float, type(None)))

    def changed(self, **changes: Any) -> Self:
        """Returns the same with some fields changed; `classes` and `class_names` are those of the settings."""
        of_data = {name: changes.pop(name) for name in ("classes", "class_names") if name in changes}
        return dataclasses.replace(self, **{"settings": self.settings.adapted(**of_data), **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Request):
    """A run before its first update: what it is called with, its settled recipe, and what was opened."""

    task: "Task"
    recipe: Recipe
    images: ImageStream
    tests: ImageStream | None  # images to evaluate on
    sharing: Sharing
    every: int  # updates between two evaluations

    @property
    def seed(self) -> int:
        return self.settings.seed

    def record(self) -> dict[str, Any]:
        """Returns what decides the numbers of the run, by name, as plain data: a run that goes on has the same."""
        return {
            "recipe": {name: value for name, value in Options.to_dict(self.recipe).items() if name != "task"},
            "backend": keras.backend.backend(),
            "every": self.every,
            "model": {key: value for key, value in self.model.get_config().items() if key != "name"},
            "task": self.task.title,
            "seed": self.seed,
            "data": self.images.describe(),
            "arithmetic": arithmetic(),
        }

    def beginning(self) -> dict[str, str | None]:
        """Returns a fingerprint of each thing that the run begins with, by what it is called; None of a pipeline."""
        streams, teacher = {"training data": self.images, "validation data": self.tests}, self.task.teacher
        marks = {"weights": fingerprint(contents_of(self.model.get_weights()))}
        if teacher is not None:
            config = teacher.config if isinstance(teacher, ImageModel) else None
            marks["answers of the teacher"] = fingerprint(config, contents_of(teacher.get_weights()))
        return marks | {name: stream.contents() for name, stream in streams.items() if stream is not None}


class Task:
    """What a run trains, and on what: four functions, which `run` calls in the order in which they stand here.

    A new kind of training is a subclass, whose fields are its arguments. The defaults are those of labelled images.

    Examples:
        >>> training.LeJEPA.targets, isinstance(training.LeJEPA(), training.Task)
        (('none',), True)
    """

    name: str = ""  # the `Recipe.task` that it can be
    title: str  # beside the progress bar, and in `run.json`: two tasks of one title train alike
    objective: str  # what the model learns from: where fields of a recipe apply, and in messages
    targets: tuple[str, ...]  # those of the data (`stream.target`) that can be learned from
    loss_name: str = ""  # in the summary of a run, unless the recipe names it
    teacher: keras.Model | None = None  # beside the labels
    views: Any = None  # an augmentation in place of the recipe's
    measures: tuple[str, ...] = MEASURES  # columns of the log: `keep="best"` compares the first, the larger is better
    picture: str = ""  # the file to which `draw(path)` of what `measure` returns writes what the model finds, if any
    uses_test_split: bool = True  # whether the data's test split is evaluated on where no other images are given

    def data(self, request: Request, recipe: Recipe) -> Request:
        """Returns what a run is called with, with its data opened as `open_data` takes them."""
        return request

    def recipe_for(self, model: Any, recipe: Recipe) -> Recipe:
        """Returns the recipe with the image size of the model that is trained, unless a person chose one."""
        if not isinstance(model, ImageModel) or model.config.dynamic or "image_size" in recipe.given:
            return recipe
        return recipe.adapted(image_size=model.config.image_size)

    def model(self, request: Request, recipe: Recipe, images: ImageStream) -> Any:
        """Returns the model of the run, with a head for the images: a copy of what is given or loaded."""
        raise NotImplementedError

    def loss(self, run: Run) -> Learning:
        """Returns how the model learns: see `Learning`."""
        raise NotImplementedError

    def measure(self, run: Run) -> Any:
        """Returns what has a method `evaluate(trained model)` that measures on `run.tests`."""
        return measured_loss(run, batches_of(run.model, run.tests))

    def finish(self, run: Run, trained: Any, folder: Path | None) -> Any:
        """Returns what else was trained, and writes it into a folder; None for most tasks."""
        return None


def batches_of(model: Any, images: ImageStream) -> Batch:
    """Returns a function from the number of a batch to images as a model takes them, and their labels."""

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = images.batch(number)
        return as_input(model, pixels), labels

    return batch


class Measured:
    """What `Task.measure` returns where whole pictures are measured: `evaluate(model)` has figures for the log."""

    def __init__(self, model: Any, images: ImageStream, sharing: Sharing) -> None:
        self.model, self.images, self.processes = model, images, sharing.processes
        self.distribution = ALONE_BY_NAME if sharing.processes.count == 1 else None

    @property
    def pairs(self) -> Iterator[tuple[np.ndarray, Any]]:
        return (pair for batch in self.images for pair in zip(*batch, strict=True))


def measured_loss(run: Run, batch: Batch) -> FilledBatches:
    """Returns what measures the loss and the metric of a run on batches of the images to evaluate on."""
    count = run.tests.steps_per_epoch or sum(1 for _ in run.tests)
    return FilledBatches(batch, count, run.tests.batch_size, run.sharing)


class FineTuning(Task):
    """Training on labels, with a new head of zeros where the model's is not that of the data."""

    name = "finetune"
    title = "fine-tuning"
    objective = "labels"
    targets = ("class", "multilabel", "number")

    def model(self, request: Request, recipe: Recipe, images: ImageStream) -> Model:
        """Returns the model with a head of zeros; a model that is passed itself keeps a head that fits the classes."""
        if isinstance(request.model, ImageModel):
            return with_head(with_size_and_rates(request, recipe), recipe, images)
        model = with_size_and_rates(request, recipe, classes=images.classes)
        if isinstance(model, VisionTransformer) and not model.config.dynamic:
            warn_of_many_patches(recipe, model.config.grid_size)
        # A head that fits by chance goes as well: the original always starts from zeros.
        return with_head(model, recipe, images, new_head=bool(np.any(model.get_layer("head").get_weights()[0])))

    def loss(self, run: Run) -> Learning:
        images = run.images
        if not images.kind.has_classes:
            if images.labels is not None and np.std(images.labels) > WIDE:
                warn_caller(
                    f"The labels have a standard deviation of {np.std(images.labels):.3g}, and what recipes call a "
                    "learning rate is for labels that spread by about 1. Divide them."
                )
            loss, metric = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError(name="mean_absolute_error")
        else:
            loss = build_loss(run.recipe, class_weights(run.recipe.class_weight, images))
            metric = keras.metrics.CategoricalAccuracy("accuracy")
            if images.kind.several:
                metric = keras.metrics.MeanMetricWrapper(ranking_precision, "ranking_precision")
        return logits_model(run.model), loss, [metric], batches_of(run.model, images)


def warn_of_many_patches(recipe: Recipe, grid: tuple[int, int]) -> None:
    """Warns where a grid has more patches than that of any published model: images of a recipe are large then."""
    if grid[0] * grid[1] > MOST_PATCHES:
        found = f"has images of {recipe.image_size} pixels, which this model cuts into {grid[0]} x {grid[1]}"
        warn_caller(f"The recipe {recipe.name} {found} patches: slow, and much memory. Give a smaller image_size=.")


def summary(run: Run, evaluated: Any) -> str:
    """Returns the text that a run prints first: data, model, recipe."""
    recipe, model = run.recipe, run.model
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    loss = run.task.loss_name or (recipe.loss if run.images.kind.has_classes else "squared errors")
    pixels = "{} x {} pixels".format(*pair("image_size", recipe.image_size))
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        pixels += f" ({math.prod(model.config.grid_size):,} patches)"
    warmup, batch = "", run.images.batch_size * recipe.accumulate  # pipelines bring their own
    if 0 < recipe.warmup_steps < 1:  # a share of all updates
        warmup = f" after {100 * recipe.warmup_steps:g} % of warm-up"
    elif recipe.warmup_steps:
        warmup = f" after {recipe.warmup_steps:g} of warm-up"
    return f"""{run.task.title} on {keras.backend.backend()}, {_devices_of(run)}
  data    {_found(run.images, run.tests, evaluated)}
  model   {type(model).__name__} {model.name}, {model.count_params():,} parameters, {trained:,} of them trained
  recipe  {recipe.steps:,} updates of {batch} images, {pixels}, learning rate {recipe.learning_rate:g}, \
{recipe.name}: {recipe.optimizer}, {recipe.schedule}{warmup}, {loss}"""


def _devices_of(run: Run) -> str:
    """Returns as text the device of a run or the number of its devices, and of its processes if several."""
    value = run.model.weights[0].value
    devices = list(value.devices()) if hasattr(value, "devices") else [value.device]  # JAX has several
    shares, processes = max(len(devices), run.sharing.shares), run.sharing.processes.count
    where = str(devices[0]).rpartition("/device:")[2].lower() if shares == 1 else f"{shares} devices"
    is_cpu = "cpu" in str(devices[0]).lower()
    chosen = [f"{name}={value}" for name, value in arithmetic().items() if is_cpu and name in os.environ]  # by a person
    return ", ".join([where, *([f"{processes} processes"] if processes > 1 else []), *chosen])


def _found(images: ImageStream, tests: ImageStream | None, evaluated: Any) -> str:
    """Returns as text how many images there are, their first classes, and how many to evaluate on, in which split."""
    count, of_tests = (f"{s.examples:,}" if s and s.examples else "an unknown number of" for s in (images, tests))
    unnamed = "with a number each" if images.kind.is_label else f"with {images.target}"
    unnamed = "without labels" if images.kind is NONE else unnamed
    found = f"{count} images {f'of {images.classes} classes' if images.kind.has_classes else unnamed}"
    names = list(images.class_names or ())
    if names:
        found += f" ({', '.join(names if len(names) <= 5 else [*names[:5], '...'])})"
    if tests is None:
        return f"{found} to train on, no images to evaluate on (a share of these, or a folder test/)"
    split = names_of_splits(evaluated, tests.class_names).get("validation")
    return f"{found} to train on, {of_tests} to evaluate on" + (f" ({split})" if split else "")


class ComputesLoss(keras.Model):
    """A model, with its weights, whose loss needs all of its answers: `loss(targets, answers)`, a scalar.

    `answer(inputs, training)` is how they come about. Its targets are matched by SciPy.
    """

    def __init__(self, model: Any, answer: Callable[[Any, Any], Any], loss: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=model.name)
        if current().joint:
            raise ValueError(f"On JAX a {type(model).__name__} trains in one process only. Start one process.")
        self.inner, self.answer, self.loss_of_answers, self.built = model, answer, loss, True
        self.dtype_policy = model.dtype_policy
        # TensorFlow's XLA has no calls of Python, which the assignment is.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.answer(inputs, training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        return self.loss_of_answers(y, y_pred)


def names_of(images: ImageStream) -> tuple[str, ...] | None:
    """Returns the names of the classes of a stream as a config has them."""
    return None if images.class_names is None else tuple(images.class_names)


def bare_backbone(source: VisionTransformer, **changes: Any) -> VisionTransformer:
    """Returns a copy of a VisionTransformer without its head, all of whose tokens are normalised, for a new head."""
    norm = {"final_norm": "tokens"} if source.config.final_norm == "pooled" else {}
    return source.with_config(**WITHOUT_TOP, **norm, **changes)


def loaded(request: Request, size_of: Callable[[Any], Any]) -> Any:
    """Returns the model that is given, or what `load` makes of a name or a file, at the size for its config."""
    if isinstance(request.model, keras.Model):
        return request.model
    return load(request.model, image_size=size_of(config_of(request.model)), dtype=request.settings.dtype)


def logits_model(model: Model) -> keras.Model:
    """Returns the model up to its logits, before its softmax or sigmoid; itself where it has none."""
    if model.config.classifier_activation is None:
        return model
    logits = "logits" if model.config.distillation_head else "head"
    return keras.Model(model.input, model.get_layer(logits).output, name=model.name)


def as_input(model: Any, pixels: np.ndarray) -> np.ndarray:
    """Returns pixels of 0..255 as the model takes them: unchanged where it prepares them itself, else normalised."""
    return pixels if model.config.include_preprocessing else model.config.pipeline.normalized(pixels)


RATES = ("dropout", "patch_drop", "drop_path")  # of recipes and of configs


def with_size_and_rates(request: Request, recipe: Recipe, **options: Any) -> Model:
    """Returns a copy of a model, or what `load` makes of a name or file, with the size and the `RATES` of a recipe."""
    source = request.model
    changes: dict[str, Any] = {name: getattr(recipe, name) for name in RATES if getattr(recipe, name)}
    is_given, options = isinstance(source, ImageModel), {"dtype": request.settings.dtype, **changes, **options}
    model = source if is_given else load(source, image_size=recipe.image_size, **options)
    check_type("model", model, (VisionTransformer, BiT), "a VisionTransformer or a BiT for labels of whole images")
    if not is_given:
        return model
    if not source.config.dynamic:
        changes["image_size"] = recipe.image_size
    return source.with_config(**changes)


def with_head(model: Model, recipe: Recipe, images: ImageStream, new_head: bool = False) -> Model:
    """Returns the model, or a copy with a head of zeros if its classes are not those of the data (or `new_head`)."""
    names = tuple(images.class_names or ())
    kind, activation = images.kind, model.config.classifier_activation
    if not kind.has_classes:
        activation = None
    elif kind.several:
        activation = "sigmoid"
    elif recipe.loss == "softmax" and activation == "sigmoid":
        activation = "softmax"  # of a model of several labels
    known = model.config.class_names
    stays = model.config.classes == images.classes and not new_head and (not names or known in (None, names))
    if not stays:
        model = model.with_classes(images.classes, class_names=names or None)
    if model.config.classifier_activation != activation:
        model = model.with_config(classifier_activation=activation)
    if stays:
        if names:
            model.name_classes(names)
        if any(np.any(weight) for weight in model.get_layer("head").get_weights()):
            if recipe.head_bias:
                raise ValueError(
                    f"head_bias={recipe.head_bias!r} sets the biases of a new head, but the head of {model.name} is "
                    "already trained. Pass head_bias=0.0, or model.with_classes(None) to get a new head."
                )
            return model
    elif not model.get_layer("head").trainable:
        raise ValueError(f"All of {model.name} is frozen, also the new head of zeros: unfreeze(model, 'head') first.")
    of_numbers = not kind.has_classes and images.labels is not None
    bias = np.mean(images.labels) if of_numbers else recipe.head_bias
    model.get_layer("head").bias.assign(np.full(images.classes, bias, "float32"))
    return model


def class_weights(given: str | dict[str | int, float] | None, images: ImageStream) -> list[float] | None:
    """Returns the factor of each class in the loss, in their order, for a recipe's `class_weight`; None for None."""
    # `"balanced"` is scikit-learn's `examples / (classes * count)`; of several labels a positive one weighs `(examples
    # - count) / count`, as PyTorch proposes for the `pos_weight` of its BCEWithLogitsLoss.
    if given is None:
        return None
    if isinstance(given, dict):
        numbers = [str(i) for i in range(images.classes)]
        names = images.class_names or numbers
        # Keras's users write {3: 2.0}, by the numbers of classes; JSON makes strings of them.
        if all(isinstance(name, int) for name in given):
            given, names = {str(number): weight for number, weight in given.items()}, numbers
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(f"class_weight names {listing(unknown)}, but the data's classes are {listing(names)}.")
        return [float(given.get(name, 1.0)) for name in names]
    if images.labels is None:
        raise ValueError("A pipeline does not say how many images a class has: class_weight={name: weight, ...}.")
    labels, count = images.labels, len(images.labels)
    sums = np.bincount(labels, minlength=images.classes) if labels.ndim == 1 else labels.sum(axis=0)
    sums = np.maximum(sums, 1)  # a class without images has no part in the loss
    weights = (count - sums) / sums if images.kind.several else count / (images.classes * sums)
    return weights.astype("float64").tolist()


def ranking_precision(y_true: Any, y_pred: Any) -> Any:
    """Returns for each image the mean, over its labels, of the share of true ones among those ranked above."""
    # scikit-learn's `label_ranking_average_precision_score`, where no scores are equal; an image without labels has 1.
    # Its mean over images can be shared by processes and batches; the mean average precision is `evaluate`'s.
    order = ops.argsort(-y_pred, axis=-1)
    true = ops.cast(ops.take_along_axis(y_true, order, axis=-1) > 0.5, "float32")
    share = ops.cumsum(true, axis=-1) / ops.arange(1, true.shape[-1] + 1, dtype="float32")
    count = ops.sum(true, axis=-1)
    return ops.where(count > 0, ops.sum(true * share, axis=-1) / ops.maximum(count, 1.0), 1.0)
