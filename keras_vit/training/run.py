"""A run of a recipe, from its arguments to the files that it leaves.

A run opens its images, prepares the model, opens the images to evaluate on, compiles, fits and writes: a function each.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import keras

from keras_vit._arguments import Source, listing, matches, pair, warn_caller
from keras_vit._files import replacing, write_text
from keras_vit._keras import layers_inside, set_random_seed, without_importing_tensorflow
from keras_vit._options import check
from keras_vit._processes import XLA, Processes, may_use_xla, scope_of, switched_on
from keras_vit._terminal import PlainData, Table
from keras_vit.checkpoints import find_checkpoint, open_checkpoint, pair_in, resolve_source
from keras_vit.data import ImageStream, has_test_split, open_data
from keras_vit.data.examples import split_name
from keras_vit.models import ImageModel, VisionTransformer, adapted_layers, merge_lora
from keras_vit.models.changes import arithmetic
from keras_vit.training.distribution import Batch, Sharing, distributed, on_devices_of, reset_randomness
from keras_vit.training.loop import Loop, RunFolder, check_callbacks, draw_curve, report
from keras_vit.training.optimizers import is_moved_by_muon
from keras_vit.training.recipes import Recipe, build_optimizer, build_schedule
from keras_vit.training.tasks import Given, Model, Run, Task
from keras_vit.training.trainable import add_lora, freeze, has_adapters, rate_multipliers, save_adapters
from keras_vit.zoo import load

_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


@dataclasses.dataclass(frozen=True)
class Trained(PlainData):
    """The result of a training run.

    Attributes:
        model: The trained model.
        recipe: The recipe as it was run, with all changes.
        log: A row per evaluation: `step`, `loss`, `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`,
            in segmentation `val_mean_iou` or `val_panoptic_quality`, in detection `val_ap` and `val_ap50`, and with
            `keep="best"` whether it is `kept`.
        class_names: Names of the model's outputs; None if the data has no names.
        output: The folder of the run, or None.
        bad_images: Files that were left out, and why (only with `on_bad_image="skip"`).
        owl: What a detector that was trained by words was made of, both towers trained; None otherwise.

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
    owl: Any = None

    derived: ClassVar[tuple[str, ...]] = ("accuracy", "mean_iou", "panoptic_quality", "ap", "ap50")
    hidden: ClassVar[tuple[str, ...]] = ("model", "owl")

    @property
    def _kept(self) -> dict[str, Any]:
        """The row of the log whose weights the model has: the one that is `kept`, or else the last."""
        return next((row for row in self.log if row.get("kept")), self.log[-1] if self.log else {})

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the trained model on the validation images; None without validation."""
        return self._kept.get("val_accuracy")

    @property
    def mean_iou(self) -> float | None:
        """The mean intersection over union of the trained model; None without masks to evaluate on."""
        return self._kept.get("val_mean_iou")

    @property
    def panoptic_quality(self) -> float | None:
        """The panoptic quality (PQ) of the trained model; None if there were no segments to evaluate on."""
        return self._kept.get("val_panoptic_quality")

    @property
    def ap(self) -> float | None:
        """COCO's average precision of the trained model's boxes; None without boxes to evaluate on."""
        return self._kept.get("val_ap")

    @property
    def ap50(self) -> float | None:
        """The average precision at an IoU of 0.5 (AP50); None if there were no boxes to evaluate on."""
        return self._kept.get("val_ap50")


def run_task(given: Given, task: Task, output: str | os.PathLike[str] | None = None) -> Trained:
    """Runs a task from its arguments to the files that it leaves."""
    settings, recipe = given.settings, given.recipe
    check_callbacks(settings.callbacks, averages=recipe.polyak is not None)
    refuse_to_empty(given.model, output, settings.resume)
    given = task.data(given)
    evaluated = data_to_evaluate_on(given, task)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(distributed(settings.distribution))
        set_random_seed(settings.seed)
        given = with_source(given, processes)
        if isinstance(given.model, ImageModel):
            stack.enter_context(scope_of(given.model))
        reading = reading_of(given, processes)
        images = stack.enter_context(open_images(given, task, reading))
        given = given.changed(recipe=recipe_for_images(given.recipe, images, task))
        model, tests = prepare_model(given, images, task), None
        if evaluated is not None:
            tests = stack.enter_context(open_validation(evaluated, images, model, reading))
            if evaluated is given.validation and is_same_data(images, tests):
                warn_caller(
                    "validation holds the training images themselves: its figures do not measure generalisation."
                )
        steps = given.recipe.steps
        every = settings.every or max(1, min(images.steps_per_epoch or steps, math.ceil(steps / 10)))
        run = Run(task, given, model, images, tests, Sharing.of(processes, model), every)
        processes.check_same("settings", run.settings())
        begun = run.beginning() if output is not None and processes.first else {}
        folder = None if output is None else RunFolder(output, run.settings(), settings.resume, processes, begun)
        reset_randomness(model, settings.seed)
        learning = task.loss(run)
        trained = compile_model(run, *learning[:3])
        verbose = settings.verbose and processes.first
        if verbose:
            report(summary(run, None if reading["holdout"] else evaluated))
        log = fit(run, trained, learning[3], folder, verbose)
        class_names = list(model.config.class_names or ()) or None
        owl = task.finish(run, trained, folder.path if folder and processes.first else None)
        done = Trained(model, given.recipe, log, class_names, folder and folder.path, list(images.bad), owl)
        if folder:
            _write_results(done, processes)
        processes.from_first()  # nobody returns before the files are there
    return done


def data_to_evaluate_on(given: Given, task: Task) -> Any:
    """The data with images to evaluate on: `validation`, or `data` with a test split or for a share, or None."""
    recipe, validation = given.recipe, given.validation
    if isinstance(validation, float):
        if not 0 < validation < 1:
            raise ValueError(
                f"validation must be data or a share between 0 and 1, such as 0.1, but {validation} was given."
            )
        return given.data
    if validation is not None:
        return validation
    if task.uses_test_split and has_test_split(given.data, given.settings.class_names):
        return given.data
    if recipe.keep == "best" or recipe.patience is not None:
        option = "patience" if recipe.patience is not None else "keep='best'"
        raise ValueError(f"{option} needs images to evaluate on: give validation=, or a folder with test/.")
    return None


def refuse_to_empty(source: Any, output: Any, resume: bool) -> None:
    """Raises ValueError if a run that starts again would remove the file that it starts from."""
    if output is None or resume or not isinstance(source, (str, os.PathLike)):
        return
    path = Path(source).expanduser().resolve()  # as `load` finds it
    if Path(output).expanduser().resolve() in path.parents and path.exists():
        raise ValueError(
            f"resume=False (--restart) empties {output}, where {source} lies: choose another output, or move it."
        )


def with_source(given: Given, processes: Processes) -> Given:
    """Returns what is given, with the model of a file of Keras, on the devices that train it, and its image size."""
    source, recipe, dtype, distribution = given.model, given.recipe, given.settings.dtype, given.settings.distribution
    if not isinstance(source, (str, os.PathLike, ImageModel)):
        raise TypeError(f"model must be a model of keras_vit, or name one, but {type(source).__name__} was given.")
    if isinstance(source, ImageModel):
        if dtype is not None:
            raise ValueError("dtype is for models that are loaded here; give model.with_config(dtype=...) instead.")
    elif not str(source).endswith((".keras", ".weights.h5")):
        return given
    else:
        source = load(source)
        source = source if dtype is None else source.with_config(dtype=dtype)
    source = on_devices_of(source, distribution, processes)
    if not source.config.dynamic and "image_size" not in recipe.given:  # which nobody chose
        recipe = recipe.adapted(image_size=source.config.image_size)
    return given.changed(model=source, recipe=recipe)


def reading_of(given: Given, processes: Processes) -> dict[str, Any]:
    """Returns the options of `open_data` that images to train on and to evaluate on have in common."""
    recipe, settings = given.recipe, given.settings
    return {
        "image_size": recipe.image_size,
        "batch_size": recipe.batch_size // recipe.accumulate,
        "seed": settings.seed,
        "on_bad_image": settings.on_bad_image,
        "shard": processes.shard,
        "channels": channels_of(given.model),
        "holdout": given.validation if isinstance(given.validation, float) else None,
    }


def open_images(given: Given, task: Task, reading: dict[str, Any]) -> ImageStream:
    """Returns the stream of images to train on."""
    recipe, settings = given.recipe, given.settings
    changes = {"augmentation": task.views or recipe.augmentation, "sampling": recipe.sampling}
    named = {"classes": settings.classes, "class_names": settings.class_names, "target": given.target}
    return open_data(given.data, split="train", **changes, **named, **reading)


def open_validation(data: Any, images: ImageStream, model: Model, reading: dict[str, Any]) -> ImageStream:
    """Returns the stream of images to evaluate on, as the model takes them, with the classes of those to train on."""
    if images.target == "none":  # pictures without labels are evaluated by a probe
        return open_data(data, split="validation", resize=model.config.pipeline, **reading)
    if images.target in ("segments", "boxes"):  # whole pictures, one at a time for each process
        reading = reading | {"batch_size": reading["shard"][1]}
    named = {"classes": images.classes, "class_names": images.class_names, "target": images.target}
    tests = open_data(data, split="validation", resize=model.config.pipeline, **named, **reading)
    if tests.target != images.target:
        tests.close()
        raise ValueError(f"validation has the target {tests.target!r}, data has {images.target!r}.")
    return tests


def channels_of(source: Model | Source) -> int:
    """Returns how many channels the images of a model or of a checkpoint have; 3 for names of what is published."""
    if isinstance(source, ImageModel):
        return source.config.channels
    if "://" in str(source):
        source = find_checkpoint(resolve_source(source))
    path, head = pair_in(Path(source).expanduser())
    return open_checkpoint(path, head=head).config.channels if path.exists() else 3


def recipe_for_images(recipe: Recipe, images: ImageStream, task: Task) -> Recipe:
    """Returns the recipe with the number of updates and the loss for these images, from which the task can learn."""
    if images.target not in task.targets:
        raise ValueError(
            f"{task.objective} takes data of the target {listing(task.targets)}, but the target of this data is "
            f"{images.target!r}."
        )
    check(recipe, {"target": images.target, "objective": task.objective})
    warmups = {name: getattr(recipe, name) for name in ("warmup_steps", "backbone_warmup_steps")}
    own, given = {name: steps for name, steps in warmups.items() if name in recipe.given}, recipe.given
    recipe = recipe.replace(steps=recipe.total_steps(images.examples), **own).adapted(given)
    if images.target == "multilabel":
        recipe = recipe.adapted(loss="sigmoid")
    build_schedule(recipe)  # raises where steps and warm-up do not fit
    return recipe


def prepare_model(given: Given, images: ImageStream, task: Task) -> Model:
    """Returns the model of a run, with the adapters and the frozen layers of the recipe."""
    recipe = given.recipe
    if isinstance(given.model, ImageModel):
        check(recipe, {"model": type(given.model).__name__})
    model = task.model(given, images)
    check(recipe, {"model": type(model).__name__})
    targets = None if recipe.lora_targets == Recipe.lora_targets else recipe.lora_targets
    if recipe.lora_rank is not None and not has_adapters(model, recipe.lora_rank, targets, recipe.lora_alpha):
        add_lora(model, recipe.lora_rank, recipe.lora_targets, alpha=recipe.lora_alpha)
    if recipe.freeze:
        freeze(model, recipe.freeze)
    if not model.trainable_weights:
        raise ValueError(f"All of {model.name} is frozen, so nothing would be learned: unfreeze(model, 'head') first.")
    if "layer_decay" in recipe.given:  # a published recipe's is for models of all kinds
        slower = [pattern for pattern, rate in rate_multipliers(recipe, model).items() if rate != 1]
        trains = any(matches(weight.path, pattern) for weight in model.trainable_weights for pattern in slower)
        if slower and not trains:  # a decay of 1.0 makes none slower
            raise ValueError(
                f"layer_decay={recipe.layer_decay} is for layers below the head, but none of them trains: give "
                "layer_decay=None, or let them train."
            )
    if recipe.optimizer == "muon" and not any(map(is_moved_by_muon, model.trainable_weights)):
        raise ValueError(
            f'optimizer="muon": No matrix of a block of {model.name} trains, and Muon moves nothing else. Give '
            'optimizer="adamw".'
        )
    return model


def is_same_data(one: ImageStream, other: ImageStream) -> bool:
    """Whether two streams have the same examples; False for pipelines, of which nobody knows."""
    return one.contents() is not None and one.contents() == other.contents()


def compile_model(run: Run, trained: keras.Model, loss: Any, metric: Any) -> keras.Model:
    """Returns the model that computes the loss of a run, compiled; its weights are those of the run's model."""
    optimizer = build_optimizer(run.recipe, run.model)
    if trained is not run.model and run.model.dtype_policy.name == "mixed_float16":
        trained.autocast = False  # its layers cast by themselves
        trained.dtype_policy = run.model.dtype_policy  # Keras asks the model whether the loss has to be scaled
    trained.compile(
        optimizer,
        loss,
        weighted_metrics=[metric] if metric else None,
        jit_compile=jit_compile(trained, run.recipe.steps),
    )
    run.sharing.average_gradients(optimizer, trained.optimizer)
    run.sharing.average_moments(trained)
    return trained


def jit_compile(model: keras.Model, updates: int) -> bool | str:
    """Returns what `compile(jit_compile=...)` takes: True on TensorFlow's CPUs for long runs, unless XLA is off."""
    if updates < _UPDATES_WORTH_COMPILING or not may_use_xla(model) or not switched_on(XLA, True):
        return "auto"
    return True if all(layer.supports_jit for layer in layers_inside(model)) else "auto"


def fit(run: Run, trained: keras.Model, batch: Batch, folder: RunFolder | None, verbose: bool) -> Table:
    """Trains the compiled model of a run to the weights that the run returns, and returns the log."""
    task, recipe, images, picture = run.task, run.recipe, run.images, None
    if folder and task.picture and run.sharing.processes.first and importlib.util.find_spec("matplotlib") is not None:
        picture = folder.path / task.picture
    loop = Loop(
        steps=recipe.steps,
        every=run.every,
        batches_per_step=recipe.accumulate,
        validation=None if run.tests is None else task.measure(run),
        picture=picture,
        folder=folder,
        schedule=build_schedule(recipe),
        title=task.title,
        verbose=verbose,
        sharing=run.sharing,
        batch_size=images.batch_size,
        keep=recipe.keep,
        patience=recipe.patience,
    )
    batch = run.sharing.training_batches(batch, images.batch_size)
    return loop.train(trained, batch, run.given.settings.callbacks)


def summary(run: Run, evaluated: Any) -> str:
    """Returns the text that a run prints first: data, model, recipe."""
    recipe, model = run.recipe, run.model
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    losses = {
        "number": "squared errors",
        "segments": "loss of masks, Dice and classes",
        "boxes": "focal loss, L1 and GIoU",
        "none": run.task.objective,
    }
    pixels = "{} x {} pixels".format(*pair("image_size", recipe.image_size))
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        pixels += f" ({math.prod(model.config.grid_size):,} patches)"
    warmup, batch = "", run.images.batch_size * recipe.accumulate  # pipelines bring their own
    if 0 < recipe.warmup_steps < 1:  # a share of all updates
        warmup = f" after {100 * recipe.warmup_steps:g} % of warm-up"
    elif recipe.warmup_steps:
        warmup = f" after {recipe.warmup_steps:g} of warm-up"
    return f"""{run.task.title} on {keras.backend.backend()}, {_devices_of(run)}
  data    {_found_images(run.images)} to train on, {_found_tests(run.tests, evaluated)}
  model   {type(model).__name__} {model.name}, {model.count_params():,} parameters, {trained:,} of them trained
  recipe  {recipe.steps:,} updates of {batch} images, {pixels}, learning rate {recipe.learning_rate:g}, \
{recipe.name}: {recipe.optimizer}, {recipe.schedule}{warmup}, {losses.get(run.images.target, recipe.loss)}"""


def _devices_of(run: Run) -> str:
    """Returns as text the device of a run or the number of its devices, and of its processes if several."""
    value = run.model.weights[0].value
    devices = list(value.devices()) if hasattr(value, "devices") else [value.device]  # JAX has several
    shares, processes = max(len(devices), run.sharing.shares), run.sharing.processes.count
    where = str(devices[0]).rpartition("/device:")[2].lower() if shares == 1 else f"{shares} devices"
    chosen = [f"{name}={value}" for name, value in arithmetic().items() if "cpu" in str(devices[0]).lower()]
    return ", ".join([where, *([f"{processes} processes"] if processes > 1 else []), *chosen])


def _count(images: ImageStream) -> str:
    """Returns as text how many images a stream has."""
    return f"{images.examples:,}" if images.examples else "an unknown number of"


def _found_images(images: ImageStream) -> str:
    """Returns as text how many images a stream has, what they are labelled with, and the first five classes."""
    labels = {"number": "with a number each", "none": "without labels"}
    found = f"{_count(images)} images {labels.get(images.target, f'of {images.classes} classes')}"
    names = list(images.class_names or ())
    if len(names) > 5:
        names[5:] = ["..."]
    return f"{found} ({', '.join(names)})" if names else found


def _found_tests(tests: ImageStream | None, evaluated: Any) -> str:
    """As text how many images there are to evaluate on, and in which split of the data `evaluated`, if in one."""
    if tests is None:
        return "no images to evaluate on (validation=, or test/)"
    split = split_name(evaluated, "validation", tests.class_names)
    found = f"{_count(tests)} to evaluate on"
    return f"{found} ({split})" if split else found


def _write_results(done: Trained, processes: Processes) -> None:
    """Writes the files of a run that is over into its folder."""
    # `model.keras`, the model with its adapters merged; `adapters.npz` where it has some; `classes.txt` where they have
    # names; `curve.png` where matplotlib is installed.
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
