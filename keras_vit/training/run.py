"""A run of a recipe, whatever is trained: from what the user asked for, step by step, to the files that it leaves."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._devices import scope_of
from keras_vit._keras import set_random_seed
from keras_vit._processes import ALONE, Processes
from keras_vit._progress import ProgressBar
from keras_vit._text import printable
from keras_vit._types import DType, ImageSize, Source, pair, whole_number
from keras_vit.data import Batches, ImageStream, has_test_split, open_data
from keras_vit.models import BiT, VisionTransformer, adapted_layers, merge_lora
from keras_vit.tables import Table
from keras_vit.training.compilation import jit_compile
from keras_vit.training.freezing import freeze
from keras_vit.training.lora import add_lora, save_adapters
from keras_vit.training.recipes import Recipe
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.run_folder import RunFolder, share_state
from keras_vit.training.sharing import (
    UNSHARED,
    Batch,
    Distribution,
    FilledBatches,
    Sharing,
    distributed,
    own_randomness,
    reset_randomness,
)
from keras_vit.zoo import load

Model = VisionTransformer | BiT


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a recipe is run: the arguments that `finetune` and `pretrain` share. `finetune` says what they mean."""

    validation: Any
    output: str | os.PathLike[str] | None
    steps: int | None
    batch_size: int | None
    learning_rate: float | None
    warmup_steps: int | float | None
    image_size: ImageSize | None
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

    def __post_init__(self) -> None:
        if self.every is not None:
            whole_number("every", self.every, 1)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "RunOptions":
        """The options among the arguments of a function, which are its `locals()` as long as it has done nothing."""
        return cls(**{field.name: arguments[field.name] for field in dataclasses.fields(cls)})

    def applied(self, recipe: Recipe) -> Recipe:
        """A recipe with what these options say of it; what they leave at None stays as it is."""
        names = ("batch_size", "learning_rate", "image_size", "steps", "warmup_steps")
        return recipe.replace(**{name: getattr(self, name) for name in names if getattr(self, name) is not None})


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and on what: where fine-tuning, pre-training and masked patches differ.

    Attributes:
        title: Its name, beside the progress bar and in `run.json`.
        model: From what the user gave (a model, or what names one), the recipe, the training images and the dtype
            policy to the model that the user gets.
        learner: From that model to the one that computes the loss, with the same weights.
        batches: From that model, images and a seed to inputs and targets.
        loss: Of a recipe, for a mean over the images of a batch.
        metric: The class of the metric that is logged as `accuracy`.
    """

    title: str
    model: Callable[[Model | Source, Recipe, ImageStream, DType], Model]
    learner: Callable[[Model], keras.Model]
    batches: Callable[[Model, ImageStream, int], Batch]
    loss: Callable[[Recipe], keras.losses.Loss]
    metric: type[keras.metrics.Metric]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run gives.

    Attributes:
        model: The trained model.
        recipe: The recipe as it was run, with all changes.
        log: A row per evaluation: `step`, `loss`, `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`.
        class_names: What the outputs of the model stand for; None where the data does not say.
        output: The folder of the run, or None.
        bad_images: Files that were left out, and why (only with `on_bad_image="skip"`).

    Examples:
        >>> recipe = training.Recipe(steps=1, batch_size=2, image_size=8)
        >>> done = training.finetune(keras_vit.VisionTransformer(config), (pixels, labels), recipe, verbose=False)
        >>> done.log[-1]["step"]
        1
    """

    model: Any
    recipe: Recipe
    log: Table
    class_names: list[str] | None = None
    output: Path | None = None
    bad_images: list[Any] = dataclasses.field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Share of the validation images that the trained model names right; None without validation."""
        return self.log[-1].get("val_accuracy") if self.log else None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, as plain data for JSON."""
        return {
            "recipe": self.recipe.to_dict(),
            "log": list(self.log),
            "accuracy": self.accuracy,
            "class_names": self.class_names,
            "output": None if self.output is None else str(self.output),
            "bad_images": [dataclasses.asdict(image) for image in self.bad_images],
        }


def run(task: Task, source: Any, data: Any, recipe: Recipe | str, options: RunOptions) -> Trained:
    """Trains a model by a recipe and writes the files of the run.

    Args:
        task: What is trained.
        source: A model, or what names one.
        data: What `open_data` takes.
        recipe: A recipe or its name.
        options: How it is run.
    """
    recipe = options.applied(recipe_of_name(recipe) if isinstance(recipe, str) else recipe)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(distributed(options.distribution))
        set_random_seed(options.seed)
        source = _opened(source, options)
        if isinstance(source, (VisionTransformer, BiT)):
            stack.enter_context(scope_of(source))
            if options.image_size is None and not source.config.dynamic:
                recipe = recipe.replace(image_size=source.config.image_size)
        arguments = {
            "image_size": recipe.image_size,
            "batch_size": recipe.batch_size // recipe.accumulate,
            "seed": options.seed,
            "on_bad_image": options.on_bad_image,
            "shard": processes.shard,
        }
        names = {"classes": options.classes, "class_names": options.class_names}
        images = open_data(data, split="train", augmentation=recipe.augmentation, **arguments, **names)
        stack.enter_context(images)
        warmup = {} if options.warmup_steps is None else {"warmup_steps": options.warmup_steps}
        recipe = recipe.replace(steps=recipe.total_steps(images.examples), **warmup)
        recipe.schedule()  # raises where steps and warm-up do not fit
        model = task.model(source, recipe, images, options.dtype)
        test_images = _open_test_images(data, options.validation, images, arguments, model)
        if test_images is not None:
            stack.enter_context(test_images)
        sharing = Sharing.of(processes, model)
        _choose_what_trains(model, recipe)
        every = options.every or max(1, min(images.steps_per_epoch or recipe.steps, -(-recipe.steps // 10)))
        settings = {
            "recipe": recipe.to_dict(),
            "backend": keras.backend.backend(),
            "every": every,
            "model": {key: value for key, value in model.get_config().items() if key != "name"},
            "task": task.title,
            "seed": options.seed,
            "data": images.describe(),
        }
        processes.check_same("settings", settings)
        folder = None
        if options.output is not None:
            folder = RunFolder(options.output, settings, options.resume, processes)
        reset_randomness(model, options.seed)
        learner, optimizer = task.learner(model), recipe.optimizer(model)
        compilation = jit_compile(learner, recipe.steps)
        metrics = [task.metric(name="accuracy")]
        learner.compile(optimizer, task.loss(recipe), weighted_metrics=metrics, jit_compile=compilation)
        sharing.average_gradients(optimizer, learner.optimizer)
        verbose = options.verbose and processes.first
        if verbose:
            _say(f"{task.title} {_describe(model, recipe)}")
        validation = None
        if test_images is not None:
            test_batches = task.batches(model, test_images, options.seed + 1)
            count = test_images.steps_per_epoch or sum(1 for _ in test_images)
            validation = FilledBatches(test_batches, count, arguments["batch_size"], sharing)
        log = train(
            learner,
            sharing.training_batches(task.batches(model, images, options.seed), images.batch_size),
            recipe.steps,
            every=every,
            batches_per_step=recipe.accumulate,
            validation=validation,
            folder=folder,
            schedule=recipe.schedule(),
            callbacks=options.callbacks,
            title=task.title,
            verbose=verbose,
            sharing=sharing,
            batch_size=images.batch_size,
        )
        names = list(model.config.class_names or ()) or None
        done = Trained(model, recipe, log, names, folder and folder.path, list(images.bad))
        if folder:
            # Not compiled: the file is half as large, and knows no optimizer, which other backends could not read.
            adapted = bool(adapted_layers(model))
            result = merge_lora(model) if adapted else model.with_config()  # in all processes: they share variables
            folder.write_results(result, done.class_names, log, recipe.name)
            if adapted and processes.first:
                save_adapters(model, folder.path / "adapters.npz")
        processes.from_first()  # nobody returns before the files are there
    return done


def _opened(source: Any, options: RunOptions) -> Any:
    """The model that a file of this package holds; anything else as it is."""
    if isinstance(source, (VisionTransformer, BiT)):
        if options.dtype is not None:
            raise ValueError("dtype is for models that are loaded here; give model.with_config(dtype=...) instead.")
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"model must be a model of keras_vit, or name one, but {type(source).__name__} was given.")
    if options.output is not None and not options.resume:
        path = Path(source).resolve()
        if path.exists() and Path(options.output).resolve() in path.parents:
            raise ValueError(
                f"resume=False empties {options.output}, where the model {source} lies: choose another output, or move "
                "the model."
            )
    if not str(source).endswith((".keras", ".weights.h5")):
        return source
    model = load(source)
    return model if options.dtype is None else model.with_config(dtype=options.dtype)


def _choose_what_trains(model: Model, recipe: Recipe) -> None:
    ranks = {layer.lora_rank for layer in adapted_layers(model).values()}  # adapters that it has go on
    if recipe.lora_rank is not None and ranks != {recipe.lora_rank}:
        add_lora(model, recipe.lora_rank, recipe.lora_targets, alpha=recipe.lora_alpha)
    if recipe.freeze:
        freeze(model, recipe.freeze)
    if not model.trainable_weights:
        raise ValueError(f"All of {model.name} is frozen, so nothing would be learned: unfreeze(model, 'head') first.")


def _open_test_images(
    data: Any, validation: Any, images: ImageStream, arguments: dict[str, Any], model: Model
) -> ImageStream | None:
    """The images to evaluate on, as the model is evaluated, in the classes of the training images; None without any."""
    if validation is None and not has_test_split(data):
        return None
    names = {"classes": images.classes, "class_names": images.class_names}
    return open_data(
        data if validation is None else validation, split="test", resize=model.config.pipeline, **arguments, **names
    )


def _describe(model: Model, recipe: Recipe) -> str:
    """What is going to happen, in one line: an image size or a number of steps nobody meant is seen at once."""
    pixels = "{} x {} pixels".format(*pair("image_size", recipe.image_size))
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        pixels += f" ({math.prod(model.config.grid_size):,} patches)"
    updates = f"{recipe.steps:,} updates of {recipe.batch_size} images"
    return f"{model.name}: {updates}, {pixels}, learning rate {recipe.learning_rate:g}, {recipe.name}"


def train(
    model: keras.Model,
    batch: Batch,
    steps: int,
    *,
    every: int,
    batches_per_step: int = 1,
    validation: FilledBatches | None = None,
    folder: RunFolder | None = None,
    schedule: Callable[[int], Any] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    title: str = "training",
    verbose: bool = True,
    sharing: Sharing = UNSHARED,
    batch_size: int = 1,
) -> Table:
    """Trains a compiled model, from the folder's newest checkpoint on if there is one.

    Args:
        model: A compiled model.
        batch: From the number of a batch to `(inputs, targets)`. The same number must always give the same batch:
            that is what makes a run that was killed end like one that was not.
        steps: Updates of the weights in all, those before a kill included.
        every: After how many updates to evaluate, log and save.
        batches_per_step: Batches whose gradients make one update (the optimizer's `gradient_accumulation_steps`).
        validation: What to evaluate on.
        folder: Where to log and save; None for nowhere.
        schedule: The learning rate of an update by its number from 0, for the log.
        callbacks: Keras callbacks. To them a stretch of `every` updates is an epoch.
        title: Shown beside the progress bar.
        verbose: Whether there is a progress bar.
        sharing: How batches are divided among processes; `batch` gives this one's part.
        batch_size: Images of a whole batch, where several processes share it.

    Returns:
        The log: a row per evaluation with `step`, `loss`, the metrics, those of the validation with `val_` before
        them, `learning_rate` and `seconds`.

    Raises:
        FloatingPointError: if the loss is not finite. The last checkpoint before that is kept.
        OSError: if a checkpoint cannot be written, on a full disk for example. The one before it is kept.
    """
    batch = functools.lru_cache(1)(batch)  # Keras looks at the first of a stretch before it takes it
    with folder.locked() if folder else contextlib.nullcontext():
        start, finished = folder.restore(model) if folder else (0, False)
        if not folder:
            share_state(model, None, sharing.processes)
        log = folder.log() if folder else Table()
        if finished:
            if verbose:
                _say(f"{title}: the run in {folder.path} was over after {start:,} steps, and is not trained again.")
            if validation is not None and log[-1].get("val_loss") is None:
                log[-1] |= _evaluate(model, validation)
                folder.write_log(log)
            return log
        if not model.optimizer.built:  # within the first update, TensorFlow would trace that update a second time
            with scope_of(model):
                model.optimizer.build(model.trainable_variables)
        before = log[-1]["seconds"] if log else 0.0
        begun = time.perf_counter()
        epochs = -(-steps // every)
        users = keras.callbacks.CallbackList(list(callbacks), model=model, epochs=epochs, steps=every)
        users.on_train_begin()
        bar = ProgressBar(title, steps, shown=verbose, stays=True)
        with bar, _averages_held_back(model.optimizer), own_randomness(model, sharing.processes):
            bar.update(start)
            model.stop_training = False
            while start < steps and not model.stop_training:
                stop = min(start + every, steps)
                epoch = start // every
                users.on_epoch_begin(epoch)
                stretch = Batches(batch, range(start * batches_per_step, stop * batches_per_step))
                watcher = _Watcher(users, bar, batches_per_step, sharing.processes if callbacks else ALONE)
                history = model.fit(stretch, epochs=1, shuffle=False, verbose=0, callbacks=[watcher]).history
                logs = {name: float(values[-1]) for name, values in history.items()}
                logs = sharing.training_means(logs, batch_size)
                if not np.isfinite(logs["loss"]):
                    newest = folder.newest_step() if folder else None
                    raise FloatingPointError(
                        f"The loss is {logs['loss']} between steps {start} and {stop}: the run has gone astray. Lower "
                        "the learning rate, warm up for longer or clip the gradients (recipe.replace(...))."
                        + ("" if newest is None else f" {folder.path} still holds step {newest}.")
                    )
                stopped = model.stop_training  # evaluation sets it back
                start += watcher.batches // batches_per_step  # less than a stretch where a callback has stopped it
                if validation is not None:
                    logs |= _evaluate(model, validation)
                rate = {} if schedule is None else {"learning_rate": float(schedule(max(start - 1, 0)))}
                row = {"step": start, **logs, **rate, "seconds": before + time.perf_counter() - begun}
                log.append(row)
                if folder:
                    folder.write_log(log)
                    folder.save(model, start)
                bar.note(_note(logs))
                users.on_epoch_end(epoch, logs)
                model.stop_training = sharing.processes.any(model.stop_training | stopped)
        model.optimizer.finalize_variable_values(model.trainable_variables)
        users.on_train_end(log[-1] if log else None)
        if folder:
            folder.save(model, start, finished=True)  # with what callbacks and averages have made of the weights
    return log


class _Watcher(keras.callbacks.Callback):
    """Hands the events of batches on. Those of epochs and of the whole run come from `train`, once a run."""

    def __init__(
        self, users: keras.callbacks.CallbackList, bar: ProgressBar, batches_per_step: int, processes: Processes
    ) -> None:
        super().__init__()
        self._users, self._bar, self._batches_per_step, self._processes = users, bar, batches_per_step, processes
        self.batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._users.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self._users.on_train_batch_end(batch, logs)
        if self._processes.count > 1:  # a callback may have stopped one of them, and the others would wait for it
            self.model.stop_training = self._processes.any(self.model.stop_training)
        self._bar.advance((batch + 1) % self._batches_per_step == 0)


def _evaluate(model: keras.Model, validation: FilledBatches) -> dict[str, float]:
    """Loss and metrics, with the averaged weights where the optimizer keeps averages."""
    with _averaged(model):
        logs = validation.evaluate(model)
    return {f"val_{name}": float(value) for name, value in logs.items()}


def _averaging(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer | None:
    """The optimizer that averages the weights; None where there is none.

    In float16 Keras wraps the optimizer in one that scales the loss and has a `use_ema` of its own, always False.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer if optimizer.use_ema else None


@contextlib.contextmanager
def _averages_held_back(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """`fit` ends by putting the averages in the weights' place, which has to wait for the last step of all."""
    averaging = _averaging(optimizer)
    if averaging is not None:
        averaging.finalize_variable_values = lambda variables: None
    try:
        yield
    finally:
        if averaging is not None:
            del averaging.finalize_variable_values


@contextlib.contextmanager
def _averaged(model: keras.Model) -> Iterator[None]:
    """Gives the model its averaged weights (`use_ema` of Keras's optimizers) for a while."""
    averaging = _averaging(model.optimizer)
    if averaging is None:
        yield
        return
    weights = model.trainable_variables
    kept = [keras.ops.copy(weight.value) for weight in weights]
    type(averaging).finalize_variable_values(averaging, weights)
    for weight in weights:
        weight.assign(keras.ops.copy(weight.value))  # JAX would give up the buffer that the optimizer holds as well
    try:
        yield
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.assign(value)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _note(logs: dict[str, float]) -> str:
    shown = [f"loss {logs['loss']:.3f}"]
    for name, title in (("accuracy", "train"), ("val_accuracy", "test")):
        if name in logs:
            shown.append(f"{title} {logs[name]:.1%}")
    return ", ".join(shown)
