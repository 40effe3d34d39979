"""The commands that train and measure: finetune, pretrain, evaluate and recipes."""

import functools
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

from keras_vit._arguments import printable
from keras_vit._files import check_folder
from keras_vit._options import check
from keras_vit.cli.inputs import (
    DATA,
    DATA_OPTIONS,
    SOURCE,
    WEIGHTS,
    check_exists,
    check_source,
    given,
    labelled_data,
    lines_of,
    start_keras,
    summary,
)
from keras_vit.cli.program import (
    CLASSES,
    COUNT,
    COUNT_OR_0,
    Result,
    at_least_0,
    beside,
    command,
    derived,
    group,
    image_size,
    kind_of_data,
    only,
    option,
    switch,
    without,
)

RECIPE = "finetune/folder"
# What the command line takes where no recipe is named.
RECIPES = {
    "classification": RECIPE,
    "segmentation": "segmentation/dinov2_linear",
    "detection": "detection/owl_finetune",
}
VIEWS_RECIPE = "pretrain/lejepa"
SHOWN = 48  # worst mistakes on the page of a report
NEIGHBOURS = 20
# What Keras calls a dtype policy; without Keras, which would take seconds to be asked.
DTYPES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
# Fields of a recipe that its `replace` changes.
CHANGES = "keep patience sampling patch_drop freeze layer_decay queries points"
AUGMENTATION = "crop mixup cutmix erasing randaugment"
VIEWS_CHANGES = "keep patience freeze layer_decay"
VIEWS = "global_views local_views"
RUN = "steps batch_size learning_rate warmup_steps image_size"  # fields of a recipe that `finetune` takes


def _of_the_recipe(name: str, shown: str = RECIPE) -> str:
    """Returns what the help says of a recipe's field: that its default is the recipe's, and the value in `shown`."""
    from keras_vit.training import recipe

    if name == "points":  # which RECIPE has no use for
        return "12,544"
    row = recipe(shown)
    value = getattr(row, name, None) or getattr(row.augmentation, name, None)
    if not value or not isinstance(value, (str, int, float)):
        return "the recipe's"
    return f"the recipe's; {shown}: {value if isinstance(value, str) else format(value, ',')}"


LORA = option(
    "--lora", "train only LoRA adapters of this rank and the head", type=COUNT, metavar="RANK", dest="lora_rank"
)
THE_RUN = group(
    "the run",
    option("--every", "updates from one evaluation to the next (default: an epoch, or a tenth)", type=COUNT),
    option("--seed", "of the random numbers: order, augmentation, dropout", type=COUNT_OR_0, default=0),
    option("--dtype", f"{', '.join(DTYPES)} (default: float32)", choices=DTYPES, metavar="POLICY"),
)
NO_FLIP = switch("--no-flip", "mirror no images (digits, text)", action="store_false", dest="flip", default=None)
RESTART = switch("--restart", "start again instead of going on with OUTPUT")
FIELD_HELPS = {
    "steps": "updates of the weights",
    "warmup_steps": "updates of the warm-up, or below 1 a share of all; 0 for none",
    "image_size": "pixels",
    "keep": "best or last: which weights of the run it returns",
}


@command(
    "Fine-tunes a checkpoint on your images, as in the paper; a run that was killed goes on.",
    WEIGHTS,
    option("data", DATA, metavar="DATA"),
    option("--output", "folder of the run", default="runs/finetune"),
    RESTART,
    option("--recipe", f"see `keras-vit recipes` (default: {RECIPE}, or of the task)"),
    group(
        "the recipe, changed",
        derived(
            "keras_vit.training.recipes:Recipe",
            f"{RUN} {CHANGES}",
            _of_the_recipe,
            **FIELD_HELPS,
            sampling="balanced or sqrt: draws images of small classes more often",
            patch_drop="share of the patches to leave out in training",
            freeze="layers that do not train, such as block_[0-5], or in segmentation backbone",
            layer_decay="factor of the learning rate from one block to the one before it; 1: none",
        ),
        derived(
            "keras_vit.data.augmentation:Augmentation",
            AUGMENTATION,
            _of_the_recipe,
            crop="inception, random or resize",
            cutmix="p of the Beta(p, p) distribution of the area that comes from another image; 0: none",
            erasing="share of the images of which a box is erased; 0: none",
            randaugment="layers and magnitude, such as 2 15",
        ),
        option(
            "--class-weight", "balanced, or NAME=WEIGHT: factors of classes in the loss", nargs="+", metavar="WEIGHT"
        ),
        NO_FLIP,
    ),
    group(
        "the data",
        option("--validation", "to evaluate on (default: the test images of DATA)", type=at_least_0, metavar="SHARE"),
        *DATA_OPTIONS,
    ),
    group(
        "adapters and teachers",
        LORA,
        only(
            [CLASSES],
            option("--teacher", "learn from this model as well; it must have the classes of DATA", metavar="WEIGHTS"),
        ),
        only(
            [beside("teacher")],
            option("--distill", "what to learn from the teacher (default: hard)", choices=("hard", "soft", "features")),
        ),
    ),
    THE_RUN,
    examples=(
        "ViT-B/16 photos --output runs/photos",
        "ViT-B/16 labels.csv --file image --label tags --separator '|' --validation 0.1 --sampling sqrt",
        "glyphs photos --task segmentation --recipe segmentation/eomt_ade20k_base --image-size 96",
    ),
)
def finetune(options: Namespace) -> Result:
    """Returns the log, the images left out and the files of a fine-tuning in the folder `options.output`.

    Raises, before Keras is imported, ValueError or TypeError for a recipe, an option or a name that makes no sense and
    FileNotFoundError for missing data or weights; then TypeError or ValueError for data that is damaged or does not fit
    the model or a folder of another run, OSError for a file that cannot be read, fetched or written, ImportError
    without a package that is needed (Pillow, a backend of Keras), RuntimeError if another process trains in the folder,
    ConnectionError if another process ends, FloatingPointError for a loss that is not finite.
    """
    from keras_vit import training

    is_classification = options.task == "classification"
    recipe = _recipe(options)
    check_source(options.weights)
    if options.teacher is not None:
        check_source(options.teacher)
    settings = given(options, "output", "every", "seed", "dtype", "on_bad_image", "validation")
    settings["resume"] = not options.restart
    if options.task == "detection":
        check_exists(options.data, options.annotations)
        start_keras()
        from keras_vit.data import open_boxes

        data = open_boxes(options.data, annotations=options.annotations)
        done = training.finetune_detection(options.weights, data, recipe, **settings)
    elif options.task == "segmentation":
        check_exists(options.data, options.annotations)
        start_keras()
        data, reading = options.data, given(options, "ignore", "reduce_zero_label")
        if options.annotations is not None:
            from keras_vit.data import open_segments

            data = open_segments(data, annotations=options.annotations)
        done = training.finetune_segmentation(options.weights, data, recipe, **reading, **settings)
    else:
        data = labelled_data(options)
        if options.recipe is None and options.image_size is None:
            settings["image_size"] = _at_most_own_size(recipe, options.weights)
        start_keras()
        if options.teacher is not None:
            from keras_vit import load

            settings["task"] = training.distillation(load(options.teacher), options.distill or "hard")
        done = training.finetune(options.weights, data, recipe, **settings)
    folder = Path(options.output)
    following = ["evaluate", str(folder / "model.keras"), options.data]
    if not is_classification:
        following += ["--task", options.task]
    if options.task == "detection" and options.annotations is not None:
        following += ["--annotations", options.annotations]
    for name, value in given(options, "file", "label", "separator", "target", "ignore").items():
        following += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    if options.reduce_zero_label:
        following.append("--reduce-zero-label")
    if options.on_bad_image not in (None, "stop"):
        following += ["--on-bad-image", options.on_bad_image]
    if getattr(done.model.config, "task", "semantic") != "semantic":  # of an EoMT, whose quality the log has
        following = ["segment", "photo.jpg", "-o", "masks.png", "--plot", "--weights", str(folder / "model.keras")]
    return Result(done.to_dict(), _report_of_run(done, folder, following))


def _report_of_run(done: Any, folder: Path, *following: list[str]) -> str:
    """Returns the text that a run ends with: its log, the images that were left out, its files, and what to do next."""
    lines = [str(done.log)]
    for image in done.bad_images:
        lines.append(f"Left out: {printable(image.path)}: {printable(image.reason)}")
    files = sorted(path.name for path in folder.glob("[!.]*") if not path.name.startswith("step-"))
    lines.append(summary(f"Wrote {printable(folder)}: {', '.join(files)}", *following, *_exports_that_work(folder)[:1]))
    return "\n".join(lines)


def _exports_that_work(folder: Path) -> list[list[str]]:
    """Returns the command lines that export the model of a run in the formats whose packages are installed."""
    from keras_vit.export import FORMATS

    rows = [row for row in FORMATS.values() if not row.missing()]
    rows.sort(key=lambda row: not row.suffix)  # files before folders
    lines = (["export", str(folder / "model.keras"), str(folder / f"model{row.suffix}")] for row in rows)
    return [line if row.suffix else [*line, "--format", row.name] for line, row in zip(lines, rows, strict=True)]


@command(
    "Trains on pictures without labels (LeJEPA), from random weights or on from a checkpoint; a killed run goes on.",
    option("data", "a folder with pictures; names of folders do not matter", metavar="FOLDER"),
    option(
        "--weights", f"a variant, with random weights, or {SOURCE.removesuffix(', or a variant')}", default="ViT-S/16"
    ),
    option("--output", "folder of the run", default="runs/pretrain"),
    RESTART,
    option(
        "--validation", "labelled pictures: the log shows the accuracy of their nearest neighbours", metavar="FOLDER"
    ),
    group(
        f"the recipe {VIEWS_RECIPE}, changed",
        derived(
            "keras_vit.training.recipes:Recipe",
            f"epochs {RUN} {VIEWS_CHANGES}",
            functools.partial(_of_the_recipe, shown=VIEWS_RECIPE),
            **FIELD_HELPS,
            freeze="layers that do not train, such as block_[0-5]",
        ),
        LORA,
    ),
    group(
        "the objective",
        option(
            "--weight",
            "weight of the SIGReg loss, which prevents collapse, 0 to 1 (default: 0.05)",
            type=at_least_0,
        ),
        option("--slices", "directions that are drawn in each update (default: 1024)", type=COUNT),
        derived("keras_vit.data.views:ViewAugmentation", VIEWS),
        NO_FLIP,
    ),
    THE_RUN,
    examples=(
        "photos --epochs 100 --batch-size 256 --output runs/mine",
        "photos --weights dinov2_vits14 --epochs 10 --learning-rate 5e-5 --validation labelled",
    ),
)
def pretrain(options: Namespace) -> Result:
    """Returns the log and the files of a training without labels in the folder `options.output`.

    Raises, before Keras is imported, ValueError or TypeError for an option or a name that makes no sense and
    FileNotFoundError for missing folders or weights; then TypeError or ValueError for a model that it is not for,
    pictures that cannot be decoded or a folder of another run, OSError for a file that cannot be read, fetched or
    written, ImportError without a package that is needed (Pillow, a backend of Keras), RuntimeError if another process
    trains in the folder, ConnectionError if another process ends, FloatingPointError for a loss that is not finite.
    """
    from keras_vit import training
    from keras_vit.checkpoints import is_variant

    recipe = training.recipe(VIEWS_RECIPE).replace(**given(options, "lora_rank", *VIEWS_CHANGES.split()))
    check_exists(options.data, options.validation)
    if not is_variant(options.weights):
        check_source(options.weights)
    views = training.ViewAugmentation(**given(options, "flip", *VIEWS.split()))
    start_keras()
    task = training.LeJEPA(views=views, **given(options, "weight", "slices"))
    settings = given(options, "output", "every", "seed", "dtype", "validation", "epochs", *RUN.split())
    done = training.pretrain(
        options.weights, options.data, recipe, objective=task, resume=not options.restart, **settings
    )
    folder = Path(options.output)
    following = ["finetune", str(folder / "model.keras"), options.validation or "labelled"]
    return Result(done.to_dict(), _report_of_run(done, folder, following))


def _recipe(options: Namespace) -> Any:
    """Returns the recipe that the options name, or the task's default, with the fields that other options change."""
    from keras_vit import training
    from keras_vit.data import SegmentAugmentation

    recipe = training.recipe(options.recipe or RECIPES[options.task])
    augmentation = given(options, "flip", *AUGMENTATION.split())
    changes = given(options, "lora_rank", *RUN.split(), *CHANGES.split())
    if options.class_weight is not None:
        changes["class_weight"] = _class_weight(options.class_weight)
    if augmentation:
        changes["augmentation"] = recipe.augmentation.replace(**augmentation)
    recipe = recipe.replace(**changes)
    situation = {"target": options.target or "class"}
    if options.task == "detection":
        situation = {"target": "boxes", "task": "detection"}
    if options.task == "segmentation":
        has_queries = isinstance(recipe.augmentation, SegmentAugmentation)
        situation = {"target": "segments" if has_queries else "mask", "task": "segmentation"}
    check(recipe, situation)
    return recipe


def _at_most_own_size(recipe: Any, weights: str) -> tuple[int, int] | None:
    """Returns the recipe's size of images, or a smaller one that the weights are for; None where the model decides."""
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint, is_keras_file, resolve_source

    source = resolve_source(weights)
    if is_keras_file(source):
        return None
    config = inspect_checkpoint(find_checkpoint(source)).config
    return None if config.dynamic else min(config.image_size, (recipe.image_size,) * 2, key=math.prod)


def _class_weight(words: list[str]) -> str | dict[str, float]:
    """Returns the weights of classes by name that NAME=WEIGHT say; a single word without `=` as it is."""
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    pairs = [word.rpartition("=") for word in words]
    try:
        weights = {name: float(weight) for name, _, weight in pairs}
    except ValueError:
        raise ValueError(f"--class-weight must be balanced or NAME=WEIGHT ..., but {words} was given.") from None
    if len(weights) < len(words):
        raise ValueError(f"--class-weight names a class twice: {' '.join(words)}.")
    return weights


@command(
    "Measures accuracy on labelled images, or how well a few-shot probe or the nearest neighbours do.",
    WEIGHTS,
    option("data", f"{DATA}; or `digits`", metavar="DATA"),
    group("the data", *DATA_OPTIONS),
    only(
        [CLASSES, without("few_shot"), without("knn")],
        option("--views", "average over mirror images, or ten crops (default: neither)", choices=("flip", "crops")),
        option("--threshold", "several labels: the least probability (default: 0.5)", type=at_least_0, metavar="P"),
    ),
    group(
        "features in place of the head",
        only(
            [CLASSES],
            option(
                "--few-shot",
                "fit linear probes on so many images per class (default: 1 5 10 25)",
                nargs="*",
                type=COUNT,
                metavar="SHOTS",
            ),
        ),
        only(
            [beside("few_shot")],
            option("--seeds", "with --few-shot: draws of the shots (default: 3)", type=COUNT),
            option("--l2", "with --few-shot: strength of the probe's regularisation (default: 1024)", type=at_least_0),
        ),
        only(
            [CLASSES],
            option(
                "--knn",
                f"let the nearest training images vote instead (default: {NEIGHBOURS})",
                nargs="?",
                type=COUNT,
                const=NEIGHBOURS,
                metavar="K",
            ),
        ),
    ),
    group(
        "two towers, with words",
        only(
            [CLASSES, without("few_shot"), without("knn")],
            option("--names-from", "for image-text models: a file with a class name on each line", metavar="FILE"),
        ),
        only(
            [beside("names_from")],
            option("--templates", "with --names-from: a sentence with {}, or a published list such as openai_80"),
        ),
    ),
    only(
        [CLASSES],
        option("--image-size", "pixels (default: the checkpoint's)", type=image_size),
        option("--batch-size", "images at a time (default: 64)", type=COUNT),
        option("--output", "for evaluation.json and confusion.png (default: no files)", metavar="FOLDER"),
    ),
    only(
        [CLASSES, without("few_shot")],
        option("--report", "a page with matrix, classes and worst mistakes, .html (default: none)", metavar="FILE"),
    ),
    examples=("runs/finetune/model.keras photos --report report.html", "glyphs digits --few-shot 5 10"),
)
def evaluate(options: Namespace) -> Result:
    """Returns what a model, a few-shot probe or nearest neighbours reach on DATA; writes report and files.

    Raises, before Keras is imported, ValueError for options that contradict each other, unknown names and a report of
    another ending, TypeError, ValueError or OSError for what is missing or cannot be read as asked, ImportError without
    matplotlib for a picture, pyarrow for a Parquet file or a backend of Keras; then ImportError without scikit-learn
    for `digits`, Pillow, tensorflow-datasets or a tokenizer's library, TypeError or ValueError for a model of another
    kind, data that does not fit it, images that cannot be decoded or names that are not UTF-8, OSError for a file that
    cannot be read, fetched or written, RuntimeError or ConnectionError where processes cannot work together.
    """
    probing, voting = options.few_shot is not None, options.knn is not None
    if probing and voting:
        raise ValueError("--few-shot and --knn are two ways to use features: give one of the two.")
    check_source(options.weights)
    check_exists(options.names_from)
    if options.task == "detection":
        return _evaluate_detection(options)
    if options.task == "segmentation":
        return _evaluate_segmentation(options)
    data, names = _evaluation_data(options)
    from keras_vit import evaluation
    from keras_vit._processes import connect

    first = connect().first  # before anything is computed
    model = _evaluated_model(options)
    common: dict[str, Any] = {"preprocess": True, "batch_size": options.batch_size or 64}
    common["on_bad_image"] = options.on_bad_image
    if probing:
        probe = given(options, "seeds", "l2")
        if options.few_shot:
            probe["shots"] = options.few_shot
        result = table = evaluation.few_shot(model, data, data, **probe, **common)
    elif voting:
        result = table = evaluation.knn_accuracy(model, data, data, k=options.knn, **common)
    else:
        shows = (options.report or options.output) and getattr(data, "target", "class") == "class"
        mistakes = SHOWN if shows else 0
        common |= {"class_names": names, "mistakes": mistakes, **given(options, "views", "threshold")}
        result = table = evaluation.evaluate(model, data, **common)
        if hasattr(result, "class_table"):
            from rich.console import Group

            table = Group(result, result.class_table(worst=10))
    if options.output and first:
        evaluation.write_files(result, options.output)
    if options.report and first:
        evaluation.write_report(result, options.report, f"{options.weights} on {options.data}")
    return Result(result.to_dict(), table)


def _evaluate_segmentation(options: Namespace) -> Result:
    """Returns the mean intersection over union of a segmentation model on DATA."""
    check_exists(options.data)
    start_keras()
    from keras_vit import load, segmentation

    reading = given(options, "ignore", "reduce_zero_label", "on_bad_image")
    result = segmentation.evaluate(load(options.weights), options.data, **reading)
    return Result(result.to_dict(), f"{result}\n{result.class_table(worst=10)}")


def _evaluate_detection(options: Namespace) -> Result:
    """Returns COCO's average precision of a detector on DATA."""
    check_exists(options.data, options.annotations)
    start_keras()
    from keras_vit import data, detection, load

    boxes = data.open_boxes(options.data, annotations=options.annotations)
    result = detection.evaluate(load(options.weights), boxes, on_bad_image=options.on_bad_image)
    return Result(result.to_dict(), f"{result}\n{result.class_table(worst=10)}")


def _evaluation_data(options: Namespace) -> tuple[Any, list[str] | None]:
    """Returns DATA, and the names of its classes where it brings none; imports Keras when everything is checked."""
    from keras_vit._page import check_page_path
    from keras_vit._pictures import need_matplotlib

    is_digits = kind_of_data(options.data) == "digits"
    data = None if is_digits else labelled_data(options)
    if options.report or (options.output and options.few_shot is None):
        need_matplotlib()  # better now than after all the work
    if options.report:
        check_page_path(options.report)
        check_folder(options.report)  # that it lies in
    start_keras()
    if not is_digits:
        return data, None
    from keras_vit.data import load_digits

    train, test = load_digits()
    return {"train": train, "test": test}, list("0123456789")


def _evaluated_model(options: Namespace) -> Any:
    """Returns the model at the size of `--image-size`; of two towers a classifier of the names in a file."""
    if options.names_from is None:
        from keras_vit.zoo import load

        model = load(options.weights)
    else:
        from keras_vit.text.image_text import load_pair

        names = lines_of(options.names_from)
        model = load_pair(options.weights).zero_shot_classifier(names, **given(options, "templates"))
    return model if options.image_size is None else model.with_image_size(options.image_size)


@command(
    "The papers' recipes.",
    option("query", "words of a name, a model or a data set (default: all)", nargs="?", metavar="QUERY"),
    examples=("cifar", "'pretrain B/16'"),
)
def recipes(options: Namespace) -> Result:
    """Returns the recipes that match the query; ValueError if there are none."""
    from keras_vit.training import list_recipes

    rows = list_recipes(options.query)
    if not rows:
        raise ValueError(f"No recipe has all of {options.query!r}; `keras-vit recipes` shows all.")
    return Result([*rows], rows)
