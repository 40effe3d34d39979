"""`finetune`: a run of a recipe, from what the user asked for to the files that it leaves."""

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit._arguments import DType, ImageSize, Source, matches, warn_caller, whole_number
from keras_vit._files import replacing, write_text
from keras_vit._keras import layers_inside, set_random_seed, without_importing_tensorflow
from keras_vit._messages import Code, Message
from keras_vit._processes import Processes, keras_leaves_xla_out, scope_of
from keras_vit._terminal import Table
from keras_vit.data import ImageStream, has_test_split, open_data
from keras_vit.data.folders import split_name
from keras_vit.models import ImageModel, adapted_layers, merge_lora
from keras_vit.training.callbacks import check_callbacks
from keras_vit.training.loop import Loop, RunFolder, draw_curve, report
from keras_vit.training.muon import is_moved_by_muon
from keras_vit.training.options import RECIPE, refuse_unused
from keras_vit.training.recipes import Recipe, build_optimizer, build_schedule, published_image_size
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.sharing import Distribution, FilledBatches, Sharing, distributed, reset_randomness
from keras_vit.training.summary import summary
from keras_vit.training.targets import check_options
from keras_vit.training.tasks import FINE_TUNING, Model, Task
from keras_vit.training.trainable import add_lora, freeze, layer_decay, save_adapters
from keras_vit.zoo import load

_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run gives.

    Attributes:
        model: The trained model.
        recipe: The recipe as it was run, with all changes.
        log: A row per evaluation: `step`, `loss`, `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`,
            of masks `val_mean_iou`, and with `keep="best"` whether it is the one that is `kept`.
        class_names: What the outputs of the model stand for; None where the data does not say.
        output: The folder of the run, or None.
        bad_images: Files that were left out, and why (only with `on_bad_image="skip"`).

    Examples:
        >>> recipe = training.Recipe(steps=1, batch_size=2, image_size=8)
        >>> training.finetune(small, (pixels, labels), recipe, verbose=False).log[-1]["step"]
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
        return self._kept.get("val_accuracy")

    @property
    def _kept(self) -> dict[str, Any]:
        return next((row for row in self.log if row.get("kept")), self.log[-1] if self.log else {})

    @property
    def mean_iou(self) -> float | None:
        """The mean intersection over union of the trained model's masks; None without masks to evaluate on."""
        return self._kept.get("val_mean_iou")

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, as plain data for JSON."""
        return {
            "recipe": self.recipe.to_dict(),
            "log": list(self.log),
            "accuracy": self.accuracy,
            "mean_iou": self.mean_iou,
            "class_names": self.class_names,
            "output": None if self.output is None else str(self.output),
            "bad_images": [dataclasses.asdict(image) for image in self.bad_images],
        }


# The run


def finetune(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | float | None = None,
    image_size: ImageSize | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    target: str = "class",
    every: int | None = None,
    seed: int = 0,
    on_bad_image: str = "stop",
    resume: bool = True,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    dtype: DType = None,
    distribution: Distribution = None,
    verbose: bool = True,
    task: Task = FINE_TUNING,
) -> Trained:
    """Fine-tunes a model as the paper does (section 4.1, Table 4): new head of zeros, SGD, cosine decay, clipping.

    The run is counted in updates of the weights, and batch n is a function of the seed. With an `output` folder a run
    that was killed goes on from its last checkpoint when it is called again in the same way, and ends with the same
    weights as one that was not. A run that is over is not trained again: the call gives the same model once more.

    Args:
        model: A model, or what `load` takes: a file, a name of the catalogue, a variant such as `"ViT-B/16"` for its
            recommended weights. A model and its `.keras` or `.weights.h5` files keep their head where it has the
            classes of the data; a checkpoint gets a new head of zeros. What is frozen, adapters, and the model's name
            stay. A copy is trained: a model that is given stays as it is.
        data: What `open_data` takes: a folder, a table (`open_table`), arrays, a pipeline, `"tfds:NAME"`.
        recipe: A name (see `list_recipes`), or a `Recipe`.
        validation: What to evaluate on, like `data`; a share such as 0.1 of the training images, which the seed draws
            and which are not trained on; None for the `val/` of a folder, or else its `test/`, if there is one.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        steps: Updates of the weights; None for the recipe's. Likewise the next three.
        batch_size: Images per update.
        learning_rate: The highest of the run.
        warmup_steps: Updates until then, fewer than `steps`.
        image_size: Pixels, an integer or (height, width). None for that of the recipe; where that is as published and
            a model is given, for the model's.
        classes: Number of classes, where the data does not say it (integer labels of a pipeline).
        class_names: Their names, where the data does not say them. They become `model.config.class_names`.
        target: What the labels of arrays and pipelines are; a table says it. `"class"` is trained with the recipe's
            loss, `"multilabel"` with a sigmoid for each label and logged as `ranking_precision`, `"number"` with the
            mean squared error and logged as `mean_absolute_error`.
        every: Updates between two evaluations and checkpoints; None for an epoch, at most a tenth of the run.
        seed: Decides the order of the images, their augmentation and all that is random in the model.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        resume: Whether a run in `output` goes on. False starts again and removes all that the old one has left.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch. None
            that sets the learning rate, which the recipe does, or beside `polyak` one that stores or restores weights.
        dtype: Dtype policy of a model that is loaded, such as `"mixed_bfloat16"`.
        distribution: What shares the batches. None: all processes that the program was started in (see `connect`), and
            the `keras.distribution` or `tf.distribute` scope around the call or the model. Also such a distribution
            or strategy itself. `"alone"`: this process trains by itself.
        verbose: Whether to print what was found, and to show a progress bar.
        task: What is trained, and on what: `distillation(teacher)`; `pretrain` has others.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
        ConnectionError, OSError: if another process ends, or a file cannot be written. The last checkpoint is kept.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        >>> done = training.finetune(keras_vit.VisionTransformer(config), "photos", recipe, verbose=False)
        >>> done.class_names
        ['cat', 'dog']
    """
    _check_arguments(every, seed, validation, task)
    recipe = recipe_of_name(recipe) if isinstance(recipe, str) else recipe
    asked = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "warmup_steps": warmup_steps}
    asked = {name: value for name, value in {**asked, "image_size": image_size}.items() if value is not None}
    recipe = recipe.replace(**asked)
    check_callbacks(callbacks, averages=recipe.polyak is not None)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(distributed(distribution))
        set_random_seed(seed)
        source = _opened(model, dtype, None if resume else output)
        channels = 3
        if isinstance(source, ImageModel):
            source, channels = _moved(source, distribution, processes), source.config.channels
            stack.enter_context(scope_of(source))
            if image_size is None and not source.config.dynamic:
                recipe = _at_the_size_of(source, recipe)
        reading = {
            "image_size": recipe.image_size,
            "batch_size": recipe.batch_size // recipe.accumulate,
            "seed": seed,
            "on_bad_image": on_bad_image,
            "shard": processes.shard,
            "channels": channels,
            **({"holdout": validation} if isinstance(validation, float) else {}),
        }
        names = {"classes": classes, "class_names": class_names, "target": target}
        changing = {"augmentation": recipe.augmentation, "sampling": recipe.sampling}
        images = stack.enter_context(open_data(data, split="train", **changing, **names, **reading))
        recipe = _with_steps(recipe, images, task, asked)
        model = task.model(source, recipe, images, dtype)
        refuse_unused(recipe, Recipe(), RECIPE, kind=type(model).__name__)
        test_images, split = open_validation(data, validation, images, recipe, model, reading)
        if test_images is not None:
            stack.enter_context(test_images)
        _choose_what_trains(model, recipe)
        every = every or max(1, min(images.steps_per_epoch or recipe.steps, -(-recipe.steps // 10)))
        run = Run(task, recipe, model, images, test_images, Sharing.of(processes, model), every, seed)
        processes.check_same("settings", run.settings())
        folder = None if output is None else RunFolder(output, run.settings(), resume, processes)
        learner = compile_learner(run, folder)
        verbose = verbose and processes.first
        if verbose:
            report(summary(task.title, recipe, model, images, test_images, split, run.sharing))
        log = fit(run, learner, folder, callbacks, verbose)
        class_names = list(model.config.class_names or ()) or None
        done = Trained(model, recipe, log, class_names, folder and folder.path, list(images.bad))
        if folder:
            _write_results(done, processes)
        processes.from_first()  # nobody returns before the files are there
    return done


def _check_arguments(every: int | None, seed: int, validation: Any, task: Task) -> None:
    """Raises TypeError or ValueError for arguments of `finetune` that make no sense whatever the model and the data."""
    if every is not None:
        whole_number("every", every, 1)
    whole_number("seed", seed, 0)
    if not isinstance(task, Task):
        raise TypeError(f"task must be what training.distillation(teacher) gives, but {task!r} was given.")
    if isinstance(validation, float) and not 0 < validation < 1:
        raise ValueError(
            f"validation must be data or a share between 0 and 1, such as 0.1, but {validation} was given."
        )


def _at_the_size_of(model: Model, recipe: Recipe) -> Recipe:
    """The recipe for images of the model's size, where its own size is the published one, which nobody has chosen."""
    if recipe.image_size != published_image_size(recipe.name):
        return recipe
    return recipe.replace(image_size=model.config.image_size)


def _with_steps(recipe: Recipe, images: ImageStream, task: Task, asked: dict[str, Any]) -> Recipe:
    """The recipe with the number of updates and the loss for these images; ValueError where it is not for them."""
    check_options(recipe, task.objective, images.target)
    loss = "sigmoid" if images.target == "multilabel" else recipe.loss
    warmup = {name: value for name, value in asked.items() if name == "warmup_steps"}
    recipe = recipe.replace(steps=recipe.total_steps(images.examples), loss=loss, **warmup)
    build_schedule(recipe)  # raises where steps and warm-up do not fit
    return recipe


def open_validation(
    data: Any, validation: Any, images: ImageStream, recipe: Recipe, model: Model, reading: dict[str, Any]
) -> tuple[ImageStream | None, str | None]:
    """The images to evaluate on and what they are called; None and None where there are none.

    Args:
        data: What is trained on, whose own split is taken where `validation` is None or a share.
        validation: As in `finetune`.
        images: The stream that is trained on.
        recipe: That of the run, which may need images to evaluate on.
        model: That of the run, which says how pictures are prepared.
        reading: Options of `open_data` that both streams have.

    Raises:
        ValueError: if the recipe needs such images and there are none, or they have another target.
    """
    if validation is None and not has_test_split(data):
        if recipe.keep == "best" or recipe.patience is not None:
            option = "patience" if recipe.patience is not None else "keep='best'"
            raise ValueError(f"{option} needs images to evaluate on: give validation=, or a folder with test/.")
        return None, None
    test_data = data if validation is None or "holdout" in reading else validation
    target = "class" if images.target == "mask" else images.target  # `open_masks` says it by itself
    names = {"classes": images.classes, "class_names": images.class_names, "target": target}
    test_images = open_data(test_data, split="validation", resize=model.config.pipeline, **names, **reading)
    if validation is not None and _is_same_data(images, test_images):
        warn_caller("validation holds the very images that are trained on: its figures say nothing of others.")
    if test_images.target != images.target:
        test_images.close()
        raise ValueError(f"validation has the target {test_images.target!r}, data has {images.target!r}.")
    return test_images, split_name(test_data, "validation")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run before its first update."""

    task: Task
    recipe: Recipe
    model: Model
    images: ImageStream
    test_images: ImageStream | None
    sharing: Sharing
    every: int  # updates between two evaluations
    seed: int

    def settings(self) -> dict[str, Any]:
        """What decides the numbers of the run, as plain data: a run that goes on has the same."""
        return {
            "recipe": self.recipe.to_dict(),
            "backend": keras.backend.backend(),
            "every": self.every,
            "model": {key: value for key, value in self.model.get_config().items() if key != "name"},
            "task": self.task.title,
            "seed": self.seed,
            "data": self.images.describe(),
        }


def compile_learner(run: Run, folder: RunFolder | None) -> keras.Model:
    """The model that computes the loss of a run, compiled; its weights are those of the run's model."""
    reset_randomness(run.model, run.seed)
    learner, optimizer = run.task.learner(run.model), build_optimizer(run.recipe, run.model)
    loss, metric = run.task.loss_and_metric(run.recipe, run.images)
    choose_jit = functools.partial(jit_compile, learner, run.recipe.steps, run.images.batch_size)
    learner.compile(
        optimizer,
        loss,
        weighted_metrics=[metric] if metric else None,
        jit_compile=choose_jit() if folder is None else folder.measured("jit_compile", choose_jit),
    )
    run.sharing.average_gradients(optimizer, learner.optimizer)
    run.sharing.average_moments(learner)
    return learner


def fit(
    run: Run,
    learner: keras.Model,
    folder: RunFolder | None,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: bool,
) -> Table:
    """The log of a run, after which the learner has the weights that the run gives."""
    task, recipe, images, test_images = run.task, run.recipe, run.images, run.test_images
    validation = None
    if test_images is not None and task.validation is not None:
        validation = task.validation(run.model, test_images, run.sharing.processes)
    elif test_images is not None:
        count = test_images.steps_per_epoch or sum(1 for _ in test_images)
        batches = task.batches(run.model, test_images, run.seed + 1)
        validation = FilledBatches(batches, count, test_images.batch_size, run.sharing)
    loop = Loop(
        steps=recipe.steps,
        every=run.every,
        batches_per_step=recipe.accumulate,
        validation=validation,
        folder=folder,
        schedule=build_schedule(recipe),
        title=task.title,
        verbose=verbose,
        sharing=run.sharing,
        batch_size=images.batch_size,
        keep=recipe.keep,
        patience=recipe.patience,
    )
    batch = run.sharing.training_batches(task.batches(run.model, images, run.seed), images.batch_size)
    return loop.train(learner, batch, callbacks)


def _is_same_data(one: ImageStream, other: ImageStream) -> bool:
    """Whether two streams have the same examples; False for pipelines, of which nobody knows."""
    prints = [stream.describe().get("fingerprint") for stream in (one, other)]
    return prints[0] is not None and prints[0] == prints[1] and one.name(0) == other.name(0)


def _opened(source: Any, dtype: DType, emptied: str | os.PathLike[str] | None) -> Any:
    """The model that a file of this package holds; anything else as it is. `emptied` is a folder that will be."""
    if isinstance(source, ImageModel):
        if dtype is not None:
            raise ValueError("dtype is for models that are loaded here; give model.with_config(dtype=...) instead.")
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"model must be a model of keras_vit, or name one, but {type(source).__name__} was given.")
    path = Path(source).resolve()
    if emptied is not None and path.exists() and Path(emptied).resolve() in path.parents:
        words = f" empties {emptied}, where {source} lies: choose another output, or move it."
        raise ValueError(Message(Code("resume=False"), words))
    if not str(source).endswith((".keras", ".weights.h5")):
        return source
    model = load(source)
    return model if dtype is None else model.with_config(dtype=dtype)


def _moved(model: Model, distribution: Distribution, processes: Processes) -> Model:
    """The model, or a copy on the devices of the distribution where it was made outside its scope."""
    active, outside = keras.distribution.distribution(), False
    if keras.backend.backend() == "tensorflow":
        strategy = distribution if hasattr(distribution, "scope") else model.distribute_strategy
        outside = not strategy.extended.variable_created_in_scope(model.weights[0].value)
    elif active is not None and processes.count == 1:
        wanted = {str(device) for device in active.device_mesh.devices.flatten()}
        devices = (weight.value.devices() for weight in model.weights)
        outside = any({f"{device.platform}:{device.id}" for device in of_weight} != wanted for of_weight in devices)
    return model.with_config() if outside else model


def _choose_what_trains(model: Model, recipe: Recipe) -> None:
    ranks = {layer.lora_rank for layer in adapted_layers(model).values()}  # adapters that it has go on
    if recipe.lora_rank is not None and ranks != {recipe.lora_rank}:
        add_lora(model, recipe.lora_rank, recipe.lora_targets, alpha=recipe.lora_alpha)
    if recipe.freeze:
        freeze(model, recipe.freeze)
    if not model.trainable_weights:
        raise ValueError(f"All of {model.name} is frozen, so nothing would be learned: unfreeze(model, 'head') first.")
    if recipe.layer_decay is not None:
        slower = [pattern for pattern, rate in layer_decay(model, recipe.layer_decay).items() if rate != 1]
        if not any(matches(weight.path, pattern) for weight in model.trainable_weights for pattern in slower):
            words = f"layer_decay={recipe.layer_decay} is for layers below the head, but none of them trains"
            raise ValueError(f"{words}: give layer_decay=None, or let them train.")
    if recipe.optimizer == "muon" and not any(map(is_moved_by_muon, model.trainable_weights)):
        words = f"No matrix of a block of {model.name} trains, and Muon moves nothing else"
        raise ValueError(f'optimizer="muon": {words}. Give optimizer="adamw".')


def _write_results(done: Trained, processes: Processes) -> None:
    """Writes the model without its adapters, its class names, and the curve where matplotlib is installed."""
    adapted = bool(adapted_layers(done.model))
    # Not compiled: the file is half as large, and knows no optimizer, which other backends could not read.
    model = merge_lora(done.model) if adapted else done.model.with_config()  # in all processes: they share variables
    if not processes.first:
        return
    with replacing(done.output / "model.keras") as temporary, without_importing_tensorflow():
        model.save(temporary)
    if adapted:
        save_adapters(done.model, done.output / "adapters.npz")
    if done.class_names is not None:
        write_text(done.output / "classes.txt", "".join(f"{name}\n" for name in done.class_names))
    if importlib.util.find_spec("matplotlib") is not None:
        draw_curve(done.log, done.output / "curve.png", f"{model.name}: {done.recipe.name}")


def jit_compile(model: keras.Model, updates: int, batch_size: int) -> bool | str:
    """What `compile(jit_compile=...)` gets: XLA on TensorFlow's CPUs, where Keras leaves it out, if it is quicker."""
    if updates < _UPDATES_WORTH_COMPILING or not keras_leaves_xla_out(model):
        return "auto"
    if not all(layer.supports_jit for layer in layers_inside(model)):
        return "auto"
    from keras_vit.models.xla import xla_is_quicker

    return True if xla_is_quicker(model, batch_size, training=True) else "auto"
