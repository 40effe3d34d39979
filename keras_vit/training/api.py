"""The doors to training: `train`, and by kind of task `finetune`, `pretrain`, and those for masks and boxes."""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import Source, check_choice
from keras_vit._options import FROM_0
from keras_vit.training.recipes import TASKS, Recipe
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.run import Trained, run_task
from keras_vit.training.tasks import Given, Model, Task, split_options

if TYPE_CHECKING:
    from keras_vit.models import Detector, EoMT, LinearSegmenter, VisionTransformer
    from keras_vit.text import OpenVocabularyDetector

_BY_TARGET = {"mask": "segmentation", "segments": "eomt", "boxes": "detection"}  # of a recipe that names no task


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

    `finetune`, `pretrain`, `finetune_segmentation` and `finetune_detection` are this function with a task. They say
    what the arguments are, which all of them share.

    Args:
        model: As in the function of the task.
        data: Likewise.
        recipe: A name (see `list_recipes`), or a `Recipe`. Where its `task` is None, its augmentation says the task.
        validation: As in `finetune`, like the next three.
        output: Likewise.
        target: Likewise.
        task: In place of the recipe's, such as `distillation(teacher)` or `LeJEPA(slices=256)`.
        **options: Those of `RunOptions`, and fields of the recipe.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError, FloatingPointError, OSError, RuntimeError, ImportError: as the function of the task.

    Examples:
        >>> changes = {"steps": 1, "batch_size": 2, "image_size": 8, "verbose": False}
        >>> training.train(small, (pixels, labels), "finetune/cifar10", **changes).log[-1]["step"]
        1
    """
    changes, settings = split_options(options)
    recipe = _as_recipe(recipe, changes)
    task = _task_of(recipe.task or _BY_TARGET.get(recipe.augmentation.targets[0], "finetune")) if task is None else task
    if not isinstance(task, Task):
        raise TypeError(f"task must be what training.distillation(teacher) returns, but {task!r} was given.")
    if "task" in recipe.given and recipe.task is not None and not isinstance(task, type(_task_of(recipe.task))):
        raise ValueError(f"The recipe has task={recipe.task!r}, but this call is for {task.title}: use training.train.")
    return run_task(Given(model, data, validation, recipe, settings, target), task, output)


def _as_recipe(recipe: Recipe | str, changes: Mapping[str, Any]) -> Recipe:
    return (recipe if isinstance(recipe, Recipe) else recipe_of_name(recipe)).replace(**changes)


def _task_of(name: str, **arguments: Any) -> Task:
    """Returns the task of a name, of whose modules only this one is imported."""
    module, kind = TASKS[name]
    return getattr(importlib.import_module(f"keras_vit.training.{module}"), kind)(**arguments)


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
            recommended weights. A model and its `.keras` or `.weights.h5` files keep their head where it has the
            classes of the data; a checkpoint gets a new head of zeros. Frozen layers, adapters and the model's name are
            kept. A copy is trained: a given model does not change.
        data: What `open_data` takes: a folder, a table (`open_table`), arrays, a pipeline, `"tfds:NAME"`.
        recipe: A name (see `list_recipes`), or a `Recipe`. If you do not set its image size and give a model, the
            model's size is used.
        validation: Data to evaluate on, like `data`; or a share such as 0.1 of the training images, drawn by the seed
            and held out; None for the `val/` or `test/` of a folder.
        output: Folder for checkpoints, log, learning curve and the trained model; None for no files.
        target: Kind of labels of arrays and pipelines; a table contains it. `"class"` is trained with the recipe's
            loss, `"multilabel"` with a sigmoid for each label and logged as `ranking_precision`, `"number"` with the
            mean squared error and logged as `mean_absolute_error`.
        task: The training task, such as `distillation(teacher)`; None: learn the labels. `pretrain` has further tasks.
        **options: Fields of `RunOptions`, such as `every`, `seed`, `resume`, `verbose`; and fields of the recipe, which
            replace its values, such as `steps`, `batch_size`, `learning_rate`, `image_size`.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument is invalid or differs between processes, the data is damaged, or `output`
            has another run.
        FloatingPointError: if the loss is NaN or infinite.
        OSError: if `model` or `data` cannot be read or fetched (FileNotFoundError, DownloadError), a file cannot be
            written, or another process ends (ConnectionError). The last checkpoint is kept.
        RuntimeError: if another process trains in `output`, processes cannot work together, or a worker process ends.
        ImportError: if a package is missing, such as Pillow for a folder.

    Errors of a pipeline, tensorflow-datasets or a callback are raised unchanged.

    Examples:
        >>> recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        >>> done = training.finetune(keras_vit.VisionTransformer(config), "photos", recipe, verbose=False)
        >>> done.class_names
        ['cat', 'dog']
    """
    task = _task_of("finetune") if task is None else task
    return train(model, data, recipe, validation=validation, output=output, target=target, task=task, **options)


def pretrain(
    model: Model | Source,
    data: Any,
    recipe: Recipe | str | None = None,
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    objective: str | Task = "labels",
    target: str = "class",
    **options: Any,
) -> Trained:
    """Trains a model from scratch, by a recipe of Table 3 or of AugReg, or without labels; a run like `finetune`.

    Args:
        model: The name of a variant, for a model with random weights; or a model or a file, as in `finetune`, which
            goes on with its weights and its head.
        data: As in `finetune`. `"masked_patches"` ignores labels. `"lejepa"` takes pictures without labels: a folder of
            them, an array, a list.
        recipe: A name (see `list_recipes`), or a `Recipe`; None for the objective's recipe (not for `"labels"`).
        validation: As in `finetune`. For `"lejepa"`, labelled images: `val_accuracy` is the accuracy of their nearest
            neighbours' votes. None: no validation.
        output: As in `finetune`.
        objective: `"labels"`: the recipe's softmax or sigmoid loss on the head, whose biases begin at the recipe's
            `head_bias`. `"masked_patches"`: half of the patches are corrupted, and the 3-bit mean colour of each has to
            be predicted; the head stays as it is. `"lejepa"`: views of a picture get similar embeddings, which are
            normally distributed (arXiv 2511.08544; see docs/pretraining.md); the head stays as it is, and a variant has
            none. A `LeJEPA` is the same with other settings.
        target: As in `finetune`.
        **options: Fields of `RunOptions` and of the recipe. `seed` also decides a variant's initial weights and the
            corrupted patches.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: as `finetune`; if the objective is unknown, or needs a recipe and none is given.
        FloatingPointError, OSError, RuntimeError, ImportError: as `finetune`.

    Examples:
        >>> recipe = training.Recipe(steps=1, batch_size=2, image_size=8)
        >>> fresh = keras_vit.VisionTransformer(config)
        >>> done = training.pretrain(fresh, (pixels, labels), recipe, objective="masked_patches", verbose=False)
    """
    if isinstance(objective, Task):
        task = objective
    else:
        check_choice("objective", objective, ("labels", "masked_patches", "lejepa"))
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
    both. The run works like `finetune`: batch n is a function of the seed, and a killed run resumes.

    Args:
        model: A `VisionTransformer` or what `load` takes, which get a new head; or a `LinearSegmenter` with the classes
            of the data, which is trained further. Frozen layers and adapters are kept.
        data: What `open_masks` takes or returns: a folder with `images/` and `masks/`, pairs of arrays, a pipeline.
        recipe: As in `finetune`, with a `data.MaskAugmentation`. `lora_rank` trains adapters beside the head, and
            `dropout` applies to the head's inputs. Crops have the recipe's image size if you set it, otherwise the
            model's, and are padded to whole patches.
        validation: Pictures with masks, as `data`, or a share, as in `finetune`.
        output: As in `finetune`.
        ignore: As in `open_masks`, like the next.
        reduce_zero_label: Likewise.
        layers: How many of the last blocks a new head reads, 1 or 4.
        pictures: Whose rules resize pictures in evaluation, `"dinov2"` or `"dinov3"`.
        frozen: Whether to freeze the layers below a new head, except for adapters.
        stuff_classes: For an EoMT: numbers of the classes without single objects, for the panoptic quality; None for
            the data's.
        **options: Fields of `RunOptions` and of the recipe.

    With an EoMT's recipe, `model` may be an `EoMT`: its class head is reinitialised for other classes, and it takes the
    task of the data (panoptic with stuff classes). A `VisionTransformer` becomes an EoMT. All weights train, unless
    `freeze="backbone"`. `data` and `validation` are what `data.open_segments` takes or returns; `layers`, `pictures`
    and `frozen` are not used.

    Returns:
        As `finetune`; `mean_iou` is measured like `segmentation.evaluate`, at the pictures' own sizes.

    Raises:
        TypeError, ValueError: as `finetune` and `open_masks`; if the recipe has fields for classification only, the
            model has other classes than the data, or an argument is for the other kind of model.
        FloatingPointError, RuntimeError: as `finetune`.
        OSError: as `finetune`; if a folder or a file of `data` is missing (FileNotFoundError) or cannot be read.
        ImportError: if a package is missing: Pillow for files, pycocotools for COCO's masks, SciPy for an EoMT.

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> recipe = training.recipe("segmentation/dinov2_linear").replace(steps=1, batch_size=2, image_size=8)
        >>> done = training.finetune_segmentation(small, masks, recipe, verbose=False)
        >>> done.model.config.classes
        2
    """
    from keras_vit.training.segmentation import segmentation_task

    has_queries = "segments" in _as_recipe(recipe, split_options(options)[0]).augmentation.targets
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

    The run works like `finetune`: batch n is a function of the seed, and a killed run resumes. The losses are Scenic's
    (`DetectionLoss`). For an OWL-ViT or OWLv2, the class embeddings start from the class names. With `text_rate` the
    text tower computes them in each update, so that both towers train and other words can be detected afterwards;
    without it they train as a matrix. Another backbone, such as a DINOv2, gets new heads; no results of such a detector
    are published. The objectness head of an OWLv2 is left out, because the published code has no loss for it.

    Args:
        model: An OWL of `load_image_text`; a `Detector`, whose class embeddings are reinitialised for other classes; a
            `VisionTransformer`, which gets new heads; or what `load` or `load_image_text` take.
        data: What `data.open_boxes` takes or returns.
        recipe: As in `finetune`, with a `data.BoxAugmentation`. Its `pictures` follow a given detector.
        validation: Pictures with boxes, as `data`, or a share, as in `finetune`.
        output: As in `finetune`. With `text_rate`, its folder `owl` has both towers for `load_image_text`.
        text_rate: The learning rate of the text tower relative to the recipe's: 0.04 in Scenic (2e-6 and 5e-5); 0.0
            keeps the tower as it is. None: an OWL's class embeddings train as a matrix.
        **options: Fields of `RunOptions` and of the recipe. `freeze="backbone"` trains the heads alone.

    Returns:
        As `finetune`; `ap` and `ap50` are measured like `detection.evaluate`, at the pictures' own sizes. With
        `text_rate`, `owl` is an `OpenVocabularyDetector` of the trained towers.

    Raises:
        TypeError, ValueError: as `finetune` and `open_boxes`; if the recipe has fields for classification only.
        FloatingPointError, RuntimeError: as `finetune`.
        OSError: as `finetune`; if a folder or a file of `data` is missing (FileNotFoundError) or cannot be read.
        ImportError: if a package is missing: SciPy for the matching, Pillow for files.

    Examples:
        >>> boxes = data.open_boxes(([*pixels], [{"boxes": [[2, 2, 10, 12]], "labels": [0]}] * 4), class_names=["cat"])
        >>> recipe = training.recipe("detection/owl_finetune").replace(steps=1, batch_size=2, image_size=8)
        >>> training.finetune_detection(small, boxes, recipe, verbose=False).model.config.class_names
        ('cat',)
    """
    task = _task_of("detection", text_rate=None if text_rate is None else FROM_0("text_rate", text_rate))
    return train(model, data, recipe, validation=validation, output=output, task=task, **options)
