"""`finetune`: a run of a recipe, from what the user asked for, update by update, to the files that it leaves."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit._arguments import DType, ImageSize, Source, pair, whole_number
from keras_vit._keras import set_random_seed
from keras_vit._processes import Processes, scope_of
from keras_vit._terminal import Table
from keras_vit.data import ImageStream, has_test_split, open_data
from keras_vit.models import BiT, VisionTransformer, adapted_layers, merge_lora
from keras_vit.training.finetuning import FINE_TUNING, Model, Task
from keras_vit.training.loop import jit_compile, report, train
from keras_vit.training.recipes import Recipe, build_optimizer, build_schedule
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.run_folder import RunFolder
from keras_vit.training.sharing import (
    Distribution,
    FilledBatches,
    Sharing,
    distributed,
    reset_randomness,
)
from keras_vit.training.trainable import add_lora, freeze, save_adapters
from keras_vit.zoo import load


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

    The run is counted in updates of the weights, and batch n is the same images with the same augmentation whatever
    happened before. With an `output` folder a run that was killed goes on from its last checkpoint when it is called
    again in the same way, and ends with the same weights as one that was not. A run that is over, also one that a
    callback has stopped, is not trained again: the call gives the same model once more.

    Args:
        model: A model, a `.keras` or `.weights.h5` file of one, what `from_checkpoint` takes (a file, a name of the
            catalogue), or a variant such as `"ViT-B/16"` for its recommended weights. A model and its files keep
            their head where it has the classes of the data; a checkpoint always gets a new head of zeros. What is
            frozen, adapters, and the model's name stay. A model is trained in place; where its head, its image size,
            the rates of the recipe's dropout or the devices differ, a copy is.
        data: A folder with `train/` and `test/` in it or with one folder per class, `(images, labels)` arrays, a
            tf.data, grain or torch pipeline, or `"tfds:NAME"` (see `open_data`).
        recipe: A name (see `list_recipes`), or a `Recipe`.
        validation: What to evaluate on, like `data`; None for the `test/` of a folder, if there is one.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        steps: Updates of the weights; None for the recipe's. Likewise the next four.
        batch_size: Images per update.
        learning_rate: The highest of the run.
        warmup_steps: Updates until then, fewer than `steps`.
        image_size: Pixels, an integer or (height, width). None for the size of the model where one is given, and for
            the recipe's otherwise.
        classes: Number of classes, where the data does not tell (integer labels of a pipeline).
        class_names: Their names, where the data does not tell. They become `model.config.class_names`.
        every: Updates between two evaluations and checkpoints; None for an epoch, or a tenth of the run where that
            is shorter.
        seed: Decides the order of the images, their augmentation and all that is random in the model.
        on_bad_image: `"stop"` or `"skip"` (see `open_data`).
        resume: Whether a run in `output` goes on. False starts again and removes all that the old one has left.
        callbacks: Keras callbacks such as TensorBoard or EarlyStopping; to them, `every` updates are an epoch.
        dtype: Dtype policy of a model that is loaded here, such as `"mixed_bfloat16"`.
        distribution: What shares the batches. None: all processes that the program was started in (by torchrun or
            Slurm: see `connect`), and the `keras.distribution` or `tf.distribute` scope around the call or the model.
            Also such a distribution or strategy itself. `"alone"`: this process trains by itself.
        verbose: Whether to say what was found and is going to be done, and to show a progress bar.
        task: What is trained, and on what; `pretrain` has others.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
        ConnectionError: if another process ends before its time.
        OSError: if a file of the run cannot be written. The newest checkpoint is kept.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        >>> done = training.finetune(keras_vit.VisionTransformer(config), "photos", recipe, verbose=False)
        >>> done.class_names
        ['cat', 'dog']
    """
    if every is not None:
        whole_number("every", every, 1)
    recipe = recipe_of_name(recipe) if isinstance(recipe, str) else recipe
    changes = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "image_size": image_size}
    changes |= {"warmup_steps": warmup_steps}
    recipe = recipe.replace(**{name: value for name, value in changes.items() if value is not None})
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(distributed(distribution))
        set_random_seed(seed)
        source = _opened(model, dtype, None if resume else output)
        if isinstance(source, (VisionTransformer, BiT)):
            source = _moved(source, distribution, processes)
            stack.enter_context(scope_of(source))
            if image_size is None and not source.config.dynamic:
                recipe = recipe.replace(image_size=source.config.image_size)
        reading = {
            "image_size": recipe.image_size,
            "batch_size": recipe.batch_size // recipe.accumulate,
            "seed": seed,
            "on_bad_image": on_bad_image,
            "shard": processes.shard,
        }
        augmentation = recipe.augmentation
        images = open_data(
            data, split="train", augmentation=augmentation, classes=classes, class_names=class_names, **reading
        )
        stack.enter_context(images)
        total = {"steps": recipe.total_steps(images.examples)}
        recipe = recipe.replace(**total, **({} if warmup_steps is None else {"warmup_steps": warmup_steps}))
        schedule = build_schedule(recipe)  # raises where steps and warm-up do not fit
        model = task.model(source, recipe, images, dtype)
        test_images = _open_test_images(data, validation, images, reading, model)
        if test_images is not None:
            stack.enter_context(test_images)
        sharing = Sharing.of(processes, model)
        _choose_what_trains(model, recipe)
        every = every or max(1, min(images.steps_per_epoch or recipe.steps, -(-recipe.steps // 10)))
        settings = {
            "recipe": recipe.to_dict(),
            "backend": keras.backend.backend(),
            "every": every,
            "model": {key: value for key, value in model.get_config().items() if key != "name"},
            "task": task.title,
            "seed": seed,
            "data": images.describe(),
        }
        processes.check_same("settings", settings)
        folder = None if output is None else RunFolder(output, settings, resume, processes)
        reset_randomness(model, seed)
        learner, optimizer = task.learner(model), build_optimizer(recipe, model)
        metrics = [task.metric(name="accuracy")]
        compilation = jit_compile(learner, recipe.steps)
        learner.compile(optimizer, task.loss(recipe), weighted_metrics=metrics, jit_compile=compilation)
        sharing.average_gradients(optimizer, learner.optimizer)
        verbose = verbose and processes.first
        if verbose:
            report(_summary(task, recipe, model, images, test_images, sharing))
        filled = None
        if test_images is not None:
            count = test_images.steps_per_epoch or sum(1 for _ in test_images)
            filled = FilledBatches(task.batches(model, test_images, seed + 1), count, reading["batch_size"], sharing)
        log = train(
            learner,
            sharing.training_batches(task.batches(model, images, seed), images.batch_size),
            recipe.steps,
            every=every,
            batches_per_step=recipe.accumulate,
            validation=filled,
            folder=folder,
            schedule=schedule,
            callbacks=callbacks,
            title=task.title,
            verbose=verbose,
            sharing=sharing,
            batch_size=images.batch_size,
        )
        names = list(model.config.class_names or ()) or None
        if folder:
            # Not compiled: the file is half as large, and knows no optimizer, which other backends could not read.
            adapted = bool(adapted_layers(model))
            result = merge_lora(model) if adapted else model.with_config()  # in all processes: they share variables
            folder.write_results(result, names, log, recipe.name)
            if adapted and processes.first:
                save_adapters(model, folder.path / "adapters.npz")
        processes.from_first()  # nobody returns before the files are there
    return Trained(model, recipe, log, names, folder and folder.path, list(images.bad))


def _opened(source: Any, dtype: DType, emptied: str | os.PathLike[str] | None) -> Any:
    """The model that a file of this package holds; anything else as it is. `emptied` is a folder that will be."""
    if isinstance(source, (VisionTransformer, BiT)):
        if dtype is not None:
            raise ValueError("dtype is for models that are loaded here; give model.with_config(dtype=...) instead.")
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"model must be a model of keras_vit, or name one, but {type(source).__name__} was given.")
    path = Path(source).resolve()
    if emptied is not None and path.exists() and Path(emptied).resolve() in path.parents:
        raise ValueError(
            f"resume=False empties {emptied}, where the model {source} lies: choose another output, or move the model."
        )
    if not str(source).endswith((".keras", ".weights.h5")):
        return source
    model = load(source)
    return model if dtype is None else model.with_config(dtype=dtype)


def _moved(model: Model, distribution: Distribution, processes: Processes) -> Model:
    """The model, or a copy on the devices of the distribution where it was made outside its scope."""
    active = keras.distribution.distribution()
    if keras.backend.backend() == "tensorflow":
        strategy = distribution if hasattr(distribution, "scope") else model.distribute_strategy
        outside = not strategy.extended.variable_created_in_scope(model.weights[0].value)
    elif active is not None and processes.count == 1:
        wanted = {str(device) for device in active.device_mesh.devices.flatten()}
        devices = (weight.value.devices() for weight in model.weights)
        outside = any({f"{device.platform}:{device.id}" for device in of_weight} != wanted for of_weight in devices)
    else:
        outside = False
    return model.with_config() if outside else model


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


def _summary(
    task: Task, recipe: Recipe, model: Model, images: ImageStream, test_images: ImageStream | None, sharing: Sharing
) -> str:
    """What was found, and what is going to happen: a size, a number or a folder that nobody meant is seen at once."""
    names = list(images.class_names or ())
    listed = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
    tests = "no images to evaluate on: give validation=, or a folder with test/"
    if test_images is not None:
        tests = f"{_count(test_images.examples)} to evaluate on"
    parameters, trained = (sum(math.prod(w.shape) for w in ws) for ws in (model.weights, model.trainable_weights))
    pixels = "{} x {} pixels".format(*pair("image_size", recipe.image_size))
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        pixels += f" ({math.prod(model.config.grid_size):,} patches)"
    warmup = f" after {recipe.warmup_steps:g} of warm-up" if recipe.warmup_steps else ""
    return "\n".join(
        (
            f"{task.title} on {keras.backend.backend()}, {_devices(model, sharing)}",
            f"  data    {_count(images.examples)} images of {images.classes} classes{listed} to train on, {tests}",
            f"  model   {type(model).__name__} {model.name}, {parameters:,} parameters, {trained:,} of them trained",
            f"  recipe  {recipe.steps:,} updates of {recipe.batch_size} images, {pixels}, learning rate "
            f"{recipe.learning_rate:g}, {recipe.name}: {recipe.optimizer}, {recipe.schedule}{warmup}, {recipe.loss}",
        )
    )


def _count(examples: int | None) -> str:
    return "an unknown number of" if examples is None else f"{examples:,}"


def _devices(model: Model, sharing: Sharing) -> str:
    """Where a model is trained, in words."""
    value = model.weights[0].value
    if hasattr(value, "devices"):  # JAX
        names = [f"{device.platform}:{device.id}" for device in value.devices()]
    else:
        names = [str(value.device).rpartition("/device:")[2].lower()]
    count = max(len(names), sharing.shares)
    processes = f", {sharing.processes.count} processes" if sharing.processes.count > 1 else ""
    return (names[0] if count == 1 else f"{count} devices") + processes
