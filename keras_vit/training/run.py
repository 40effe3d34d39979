"""The doors to training, which are `train` with a task, and its run, from the arguments to the files that it leaves.

A run opens its images, prepares the model, opens the images to evaluate on, compiles, fits and writes: a function each.
"""

import contextlib
import dataclasses
import importlib.util
import math
import numbers
import os
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import keras

from keras_vit._arguments import Source, check_choice, check_type, listing, warn_caller
from keras_vit._files import replacing, write_text
from keras_vit._keras import layers_inside, set_random_seed, without_importing_tensorflow
from keras_vit._options import FROM_0, INSIDE, check
from keras_vit._processes import XLA, Processes, may_use_xla, scope_of, switched_on
from keras_vit._terminal import PlainData, Table
from keras_vit.checkpoints import find_checkpoint, open_checkpoint, pair_in, resolve_source
from keras_vit.data import ImageStream, has_test_split, open_data
from keras_vit.data.targets import NONE, kind_of, kind_of_data
from keras_vit.models import ImageModel, VisionTransformer, adapted_layers, merge_lora
from keras_vit.training.distribution import Batch, Sharing, distributed, on_devices_of, reset_randomness
from keras_vit.training.loop import Loop, RunFolder, check_callbacks, draw_curve, report
from keras_vit.training.recipes import TASKS, Recipe, as_recipe, build_optimizer, build_schedule
from keras_vit.training.tasks import Model, Request, Run, Task, split_options, summary
from keras_vit.training.trainable import adapt, save_adapters
from keras_vit.zoo import load

if TYPE_CHECKING:
    from keras_vit.models import Detector, EoMT, LinearSegmenter
    from keras_vit.text import OpenVocabularyDetector

_HELD_OUT = dataclasses.replace(INSIDE, expected="data or a share between 0 and 1, such as 0.1")
_UPDATES_WORTH_COMPILING = 50  # XLA takes some seconds longer than TensorFlow to make a program


def _measured(column: str, what: str) -> Any:
    """A property of `Trained`: a column of the row of the log that is `kept`, or else of the last one."""

    def value(trained: "Trained") -> float | None:
        kept = next((row for row in trained.log if row.get("kept")), trained.log[-1] if trained.log else {})
        return kept.get(column)

    return property(value, doc=f"{what}, of the trained model; None if it was not measured.")


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

    accuracy = _measured("val_accuracy", "Accuracy on the validation images")
    mean_iou = _measured("val_mean_iou", "The mean intersection over union")
    panoptic_quality = _measured("val_panoptic_quality", "The panoptic quality (PQ)")
    ap = _measured("val_ap", "COCO's average precision of boxes")
    ap50 = _measured("val_ap50", "The average precision of boxes at an IoU of 0.5 (AP50)")


def train(
    model: Any,
    data: Any,
    recipe: Recipe | str,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    target: str = "class",
    task: Task | None = None,
    **options: Any,
) -> Trained:
    """Trains a model by a recipe, which names the task: labels, masks, boxes, or pictures without labels.

    `finetune`, `pretrain`, `finetune_segmentation` and `finetune_detection` are this function with a task. The
    arguments are as in `finetune`, and so are the errors. If the recipe's `task` is None, its augmentation decides the
    task; `task` replaces it, for example by `distillation(teacher)`. Returns a `Trained`.

    Examples:
        >>> changes = {"steps": 1, "batch_size": 2, "image_size": 8, "verbose": False}
        >>> training.train(small, (pixels, labels), "finetune/cifar10", **changes).log[-1]["step"]
        1
    """
    changes, settings = split_options(options)
    recipe = as_recipe(recipe, changes)
    validation = float(_HELD_OUT("validation", validation)) if isinstance(validation, numbers.Real) else validation
    if task is not None:
        check_type("task", task, Task, "what training.distillation(teacher) returns (names: recipe.replace(task=name))")
    task = task or _task_of(recipe.task or kind_of(recipe.augmentation).task)
    if "task" in recipe.given and recipe.task not in (None, task.name):
        raise ValueError(f"The recipe has task={recipe.task!r}, but this call is for {task.title}: use training.train.")
    return run_task(Request(model, data, validation, settings, target), recipe, task, output)


def _task_of(task: str | Task, **arguments: Any) -> Task:
    """Returns the task of a name, of whose modules only this one is imported; a task itself."""
    return pkgutil.resolve_name(TASKS[task])(**arguments) if isinstance(task, str) else task


def finetune(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    target: str = "class",
    task: Task | None = None,
    **options: Any,
) -> Trained:
    """Fine-tunes a model as the paper does (section 4.1, Table 4): new head of zeros, SGD, cosine decay, clipping.

    The length is counted in updates, and batch n is a function of the seed. With an `output` folder, the same call
    resumes a killed run from its last checkpoint and ends with the same weights. For a finished run, it returns the
    trained model again.

    Args:
        model: A model, or what `load` takes: a file, a name of the catalogue, a variant such as `"ViT-B/16"` for its
            recommended weights. A model and its Keras files keep their head if it has the classes of the data; a
            checkpoint gets a new head of zeros. Frozen layers and adapters are kept. A copy is trained: a given model
            does not change.
        data: What `open_data` takes: a folder, a table (`open_table`), arrays, a pipeline, `"tfds:NAME"`.
        recipe: A name (see `list_recipes`), or a `Recipe`. Unless you set its image size, a given model keeps its own.
        validation: Data to evaluate on, like `data`; or a share such as 0.1 of the training images, drawn by the seed
            and held out; None for the `val/` or `test/` of a folder.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        target: Kind of labels of arrays and pipelines; a table contains it. `"class"`: with the recipe's loss.
            `"multilabel"`: with a sigmoid for each label, logged as `ranking_precision`. `"number"`: with the mean
            squared error, logged as `mean_absolute_error`.
        task: The training task, such as `distillation(teacher)`; None: learn the labels. `pretrain` has further tasks.
        **options: Fields of `RunOptions`, such as `every`, `seed` and `resume`, and of the recipe, such as `steps`,
            whose values they replace.

    Returns:
        A `Trained`: the model, the log and more.

    Raises:
        TypeError, ValueError: if an argument is invalid or differs between processes, the data is damaged, or `output`
            has another run.
        FloatingPointError: if the loss is NaN or infinite.
        OSError: if `model` or `data` cannot be read or fetched (FileNotFoundError, DownloadError), a file cannot be
            written, or another process ends (ConnectionError). The last checkpoint is kept.
        RuntimeError: if another process trains in `output`, processes cannot work together, or a worker process ends.
        ImportError: if a package is missing, such as Pillow for a folder.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        >>> training.finetune(keras_vit.VisionTransformer(config), "photos", recipe, verbose=False).class_names
        ['cat', 'dog']
    """
    task = _task_of(kind_of_data(data, target).task) if task is None else task
    return train(model, data, recipe, validation=validation, output=output, target=target, task=task, **options)


def pretrain(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str | None = None,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    objective: str | Task | None = None,
    teacher: Model | Source | None = None,
    target: str = "class",
    **options: Any,
) -> Trained:
    """Trains a model from scratch, by a recipe of Table 3 or of AugReg, or without labels; a run like `finetune`.

    Args:
        model: The name of a variant, for a model with random weights; or a model or a file, as in `finetune`, which
            goes on with its weights and its head.
        data: As in `finetune`. `"masked_patches"` ignores labels; `"lejepa"` takes pictures without labels.
        recipe: A name (see `list_recipes`), or a `Recipe`; None for the objective's recipe (not for `"labels"`).
        validation: As in `finetune`; None: no validation. For `"lejepa"`, labelled images, whose `val_accuracy` is that
            of their nearest neighbours' votes.
        output: As in `finetune`.
        objective: `"labels"`: the recipe's softmax or sigmoid loss on the head, whose biases begin at the recipe's
            `head_bias`. `"masked_patches"`: half of the patches are corrupted, and the 3-bit mean colour of each has to
            be predicted. `"lejepa"`: views of a picture get similar, normally distributed embeddings (arXiv
            2511.08544). The last two keep a head as it is. A `LeJEPA` has other settings. None: what the recipe is
            for, `"labels"` for most.
        teacher: A model or what `load` takes: its features are learned. As objective, see `FeatureDistillation`.
        target: As in `finetune`.
        **options: As in `finetune`. `seed` also decides a variant's initial weights and the corrupted patches.

    Returns:
        A `Trained`: the model, the log and more.

    Raises:
        TypeError, ValueError: as `finetune`, like all other errors; if the objective is unknown, or needs a recipe.

    Examples:
        >>> recipe, fresh = training.Recipe(steps=1, batch_size=2, image_size=8), keras_vit.VisionTransformer(config)
        >>> done = training.pretrain(fresh, (pixels, labels), recipe, objective="masked_patches", verbose=False)
    """
    objectives = ("labels", "masked_patches", "lejepa", "feature_distillation")
    if teacher is not None:
        check_choice("objective, beside a teacher,", objective, (None,))
        objective = _task_of("feature_distillation", teacher=teacher)
    elif objective is None:
        named = None if recipe is None else as_recipe(recipe, {}).task
        objective = named if named in objectives else "labels"
    if isinstance(objective, Task):
        task = objective
    else:
        check_choice("objective", objective, objectives)
        task = _task_of("pretrain" if objective == "labels" else objective)
    if recipe is None:
        if task.objective == "labels":
            raise TypeError('recipe must be given for objective="labels": a name of list_recipes(), or a Recipe.')
        recipe = f"pretrain/{task.objective}"
    return train(model, data, recipe, validation=validation, output=output, target=target, task=task, **options)


def finetune_segmentation(
    model: "LinearSegmenter | EoMT | VisionTransformer | Source",
    data: Any,
    recipe: Recipe | str = "segmentation/dinov2_linear",
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    layers: int = 1,
    pictures: str = "dinov2",
    frozen: bool = True,
    stuff_classes: Sequence[int] = (),
    **options: Any,
) -> Trained:
    """Trains a linear head that returns a class for every pixel, or an EoMT, on a copy of a Vision Transformer.

    A linear head is batch normalisation and one matrix, on tokens after the final norm, as DINOv2 and DINOv3 measure
    their features with. Recipes `segmentation/eomt_...` train an EoMT, whose queries find segments: classes, things or
    both. The run works like `finetune`, which documents the arguments that are not listed here.

    Args:
        model: A `VisionTransformer` or what `load` takes, which get a new head; or a `LinearSegmenter` with the classes
            of the data, which is trained further.
        data: What `open_masks` takes or returns; for an EoMT, what `open_segments` takes or returns.
        recipe: With a `data.MaskAugmentation`. `lora_rank` trains adapters beside the head, and `dropout` applies to
            the head's inputs. Crops have the recipe's image size if you set it, otherwise the model's, and are padded
            to whole patches.
        validation: Pictures with masks, as `data`, or a share.
        ignore: As in `open_masks`, and `reduce_zero_label` as well.
        layers: How many of the last blocks a new head reads, 1 or 4.
        pictures: Whose rules resize pictures in evaluation, `"dinov2"` or `"dinov3"`.
        frozen: Whether to freeze the layers below a new head, except for adapters.
        stuff_classes: For an EoMT: numbers of the classes without single objects, for the panoptic quality; none
            for those of the data.

    With an EoMT's recipe, `model` may be an `EoMT`: its class head is reinitialised for other classes, and it takes the
    task of the data. A `VisionTransformer` becomes an EoMT. All weights train, unless `freeze="backbone"`. `layers`,
    `pictures` and `frozen` are refused.

    Returns:
        As `finetune`; `mean_iou` is measured like `segmentation.evaluate`, at the pictures' own sizes.

    Raises:
        TypeError, ValueError: as `finetune` and `open_masks`, like all other errors; if the recipe is for
            classification, the model has other classes than the data, or an argument is for the other kind of model.
        ImportError: if a package is missing: Pillow for files, pycocotools for COCO's masks, SciPy for an EoMT.

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> recipe = training.recipe("segmentation/dinov2_linear").replace(steps=1, batch_size=2, image_size=8)
        >>> training.finetune_segmentation(small, masks, recipe, verbose=False).model.config.classes
        2
    """
    from keras_vit.data.segments import SEGMENTS
    from keras_vit.training.segmentation import segmentation_task

    has_queries = kind_of(as_recipe(recipe, split_options(options)[0]).augmentation) is SEGMENTS
    heads = {"layers": layers, "pictures": pictures, "frozen": frozen, "stuff_classes": tuple(stuff_classes)}
    task = segmentation_task(has_queries, ignore, reduce_zero_label, heads)
    return train(model, data, recipe, validation=validation, output=output, task=task, **options)


def finetune_detection(
    model: "Detector | OpenVocabularyDetector | VisionTransformer | Source",
    data: Any,
    recipe: Recipe | str = "detection/owl_finetune",
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    text_rate: float | None = None,
    **options: Any,
) -> Trained:
    """Trains a detector on pictures with boxes: a box and the scores of all classes for each patch.

    The run works like `finetune`, which documents the arguments that are not listed here. The losses are Scenic's
    (`DetectionLoss`). For an OWL-ViT or OWLv2, the class embeddings start from the class names. Another backbone, such
    as a DINOv2, gets new heads; no results of such a detector are published. The objectness head of an OWLv2 is left
    out, because the published code has no loss for it.

    Args:
        model: An OWL of `load_image_text`; a `Detector`, whose class embeddings are reinitialised for other classes; a
            `VisionTransformer`, which gets new heads; or what `load` or `load_image_text` take.
        data: What `data.open_boxes` takes or returns.
        recipe: With a `data.BoxAugmentation`. Its `pictures` follow a given detector. `freeze="backbone"` trains the
            heads alone.
        text_rate: The learning rate of the text tower relative to the recipe's: 0.04 in Scenic (2e-6 and 5e-5). The
            tower computes the class embeddings in each update, so that other words can be detected afterwards; 0.0
            keeps it as it is. None: the class embeddings train as a matrix.

    Returns:
        As `finetune`; `ap` and `ap50` are measured like `detection.evaluate`, at the pictures' own sizes. With
        `text_rate`, `owl` is an `OpenVocabularyDetector` of the trained towers, which `output` has as folder `owl`.

    Raises:
        TypeError, ValueError: as `finetune` and `open_boxes`, like all other errors; if the recipe has fields for
            classification only.
        ImportError: if a package is missing: SciPy for the matching, Pillow for files.

    Examples:
        >>> boxes = data.open_boxes(([*pixels], [{"boxes": [[2, 2, 10, 12]], "labels": [0]}] * 4), class_names=["cat"])
        >>> recipe = training.recipe("detection/owl_finetune").replace(steps=1, batch_size=2, image_size=8)
        >>> training.finetune_detection(small, boxes, recipe, verbose=False).model.config.class_names
        ('cat',)
    """
    task = _task_of("detection", text_rate=None if text_rate is None else FROM_0("text_rate", text_rate))
    return train(model, data, recipe, validation=validation, output=output, task=task, **options)


def run_task(request: Request, recipe: Recipe, task: Task, output: str | os.PathLike[str] | None = None) -> Trained:
    """Runs a task from its arguments to the files that it leaves."""
    settings = request.settings
    check_callbacks(settings.callbacks, recipe)
    refuse_to_empty(request.model, output, settings.resume)
    request = task.data(request, recipe)
    evaluated = data_to_evaluate_on(request, recipe, task)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(distributed(settings.distribution))
        set_random_seed(settings.seed)
        request = with_source(request, processes)
        recipe = task.recipe_for(request.model, recipe)
        if isinstance(request.model, ImageModel):
            stack.enter_context(scope_of(request.model))
        reading = reading_of(request, recipe, processes)
        images = stack.enter_context(open_images(request, recipe, task, reading))
        recipe = settled(recipe, images, task)
        model, tests = prepare_model(request, recipe, images, task), None
        if evaluated is not None:
            tests = stack.enter_context(open_validation(evaluated, images, model, reading))
            same = evaluated is request.validation and images.contents() == tests.contents()
            if same and tests.contents() is not None:  # of a pipeline
                warn_caller("validation holds the training images themselves: it does not measure generalisation.")
        every = settings.every or max(1, min(images.steps_per_epoch or recipe.steps, math.ceil(recipe.steps / 10)))
        found = {"images": images, "tests": tests, "sharing": Sharing.of(processes, model), "every": every}
        run = Run(**vars(request) | {"model": model}, task=task, recipe=recipe, **found)
        processes.check_same("settings", run.record())
        begun = run.beginning() if output is not None and processes.first else {}
        folder = None if output is None else RunFolder(output, run.record(), settings.resume, processes, begun)
        reset_randomness(model, settings.seed)
        trained, loss, metrics, batch = task.loss(run)
        compile_model(run, trained, loss, metrics)
        verbose = settings.verbose and processes.first
        if verbose:
            report(summary(run, None if reading["holdout"] else evaluated))
        log = fit(run, trained, batch, folder, verbose)
        class_names = list(model.config.class_names or ()) or None
        owl = task.finish(run, trained, folder.path if folder and processes.first else None)
        done = Trained(model, recipe, log, class_names, folder and folder.path, list(images.bad), owl)
        if folder:
            _write_results(done, processes)
        processes.from_first()  # nobody returns before the files are there
    return done


def data_to_evaluate_on(request: Request, recipe: Recipe, task: Task) -> Any:
    """The data with images to evaluate on: `validation`, or `data` with a test split or for a share, or None."""
    validation = request.validation
    if isinstance(validation, float):
        return request.data
    if validation is not None:
        return validation
    if task.uses_test_split and has_test_split(request.data, request.settings.class_names):
        return request.data
    needs = "needs images to evaluate on: give validation=, or a folder with test/."
    if recipe.patience is not None:
        raise ValueError(f"patience {needs}")
    if recipe.keep == "best":
        raise ValueError(f"keep='best' {needs}")
    return None


def refuse_to_empty(source: Any, output: Any, resume: bool) -> None:
    """Raises ValueError if a run that starts again would remove the file that it starts from."""
    if output is None or resume or not isinstance(source, (str, os.PathLike)):
        return
    path = Path(source).expanduser().resolve()  # as `load` finds it
    if Path(output).expanduser().resolve() in path.parents and path.exists():
        raise ValueError(f"resume=False (--restart) empties {output}, where {source} lies: choose another output.")


def with_source(request: Request, processes: Processes) -> Request:
    """Returns what is given, with the model of a file of Keras, on the devices that train it."""
    source, dtype, distribution = request.model, request.settings.dtype, request.settings.distribution
    check_type("model", source, (str, os.PathLike, ImageModel), "a model of keras_vit, or name one,")
    if isinstance(source, ImageModel):
        if dtype is not None:
            raise ValueError("dtype is for models that are loaded here; give model.with_config(dtype=...) instead.")
    elif not str(source).endswith((".keras", ".weights.h5")):
        return request
    else:
        source = load(source)
        source = source if dtype is None else source.with_config(dtype=dtype)
    return request.changed(model=on_devices_of(source, distribution, processes))


def reading_of(request: Request, recipe: Recipe, processes: Processes) -> dict[str, Any]:
    """Returns the options of `open_data` that images to train on and to evaluate on have in common."""
    settings = request.settings
    return {
        "image_size": recipe.image_size,
        "batch_size": recipe.batch_size // recipe.accumulate,
        "seed": settings.seed,
        "on_bad_image": settings.on_bad_image,
        "shard": processes.shard,
        "channels": channels_of(request.model),
        "holdout": request.validation if isinstance(request.validation, float) else None,
    }


def open_images(request: Request, recipe: Recipe, task: Task, reading: dict[str, Any]) -> ImageStream:
    """Returns the stream of images to train on."""
    settings = request.settings
    changes = {"augmentation": task.views or recipe.augmentation, "sampling": recipe.sampling}
    named = {"classes": settings.classes, "class_names": settings.class_names, "target": request.target}
    return open_data(request.data, split="train", **changes, **named, **reading)


def open_validation(data: Any, images: ImageStream, model: Model, reading: dict[str, Any]) -> ImageStream:
    """Returns the stream of images to evaluate on, as the model takes them, with the classes of those to train on."""
    if images.kind is NONE:  # pictures without labels are evaluated by a probe
        target = NONE.name if isinstance(data, list) or hasattr(data, "shape") else "class"  # which pictures alone lack
        return open_data(data, split="validation", resize=model.config.pipeline, target=target, **reading)
    if images.kind.parts:  # whole pictures, one at a time for each process
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


def settled(recipe: Recipe, images: ImageStream, task: Task) -> Recipe:
    """Returns the recipe with the number of updates and the loss for these images, from which the task can learn."""
    if images.target not in task.targets:
        wanted, found = listing(task.targets), images.target
        raise ValueError(f"{task.objective} takes data of the target {wanted}, but this data has the target {found!r}.")
    check(recipe, {"target": images.target, "objective": task.objective})
    warmups = {
        name: getattr(recipe, name) for name in recipe.given.intersection(("warmup_steps", "backbone_warmup_steps"))
    }
    recipe = recipe.replace(steps=recipe.total_steps(images.examples), **warmups).adapted(recipe.given)
    if images.kind.several:
        recipe = recipe.adapted(loss="sigmoid")
    build_schedule(recipe)  # raises where steps and warm-up do not fit
    return recipe


def prepare_model(request: Request, recipe: Recipe, images: ImageStream, task: Task) -> Model:
    """Returns the model of a run, with the adapters and the frozen layers of the recipe."""
    if isinstance(request.model, ImageModel):
        check(recipe, {"model": type(request.model).__name__})
    model = task.model(request, recipe, images)
    check(recipe, {"model": type(model).__name__})
    adapt(model, recipe)
    return model


def compile_model(run: Run, trained: keras.Model, loss: Any, metrics: list[keras.metrics.Metric]) -> None:
    """Compiles the model that computes the loss of a run."""
    optimizer = build_optimizer(run.recipe, run.model)
    if trained is not run.model and run.model.dtype_policy.name == "mixed_float16":
        trained.autocast = False  # its layers cast by themselves
        trained.dtype_policy = run.model.dtype_policy  # Keras asks the model whether the loss has to be scaled
    jit = jit_compile(trained, run.recipe.steps)
    trained.compile(optimizer, loss, weighted_metrics=metrics or None, jit_compile=jit)
    run.sharing.average(trained, optimizer)


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
        recipe=recipe,
        every=run.every,
        validation=None if run.tests is None else task.measure(run),
        picture=picture,
        folder=folder,
        title=task.title,
        measures=task.measures,
        verbose=verbose,
        sharing=run.sharing,
        batch_size=images.batch_size,
    )
    batch = run.sharing.training_batches(batch, images.batch_size)
    return loop.train(trained, batch, run.settings.callbacks)


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
