"""The commands that train and measure: finetune, pretrain, evaluate and recipes."""

import json
import math
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from keras_vit._arguments import printable, warn_caller
from keras_vit._options import check
from keras_vit.cli import inputs
from keras_vit.cli.program import MANY, AtLeast0, Count, CountOr0, Result, Size, command, flags_of, given, only_for
from keras_vit.data import TARGETS, Augmentation, ViewAugmentation
from keras_vit.data.targets import CLASS, kind_of
from keras_vit.training import Recipe, recipe

KINDS = {kind.command: kind for kind in reversed(TARGETS.values())}  # of a `--task`, the first
RECIPE = CLASS.recipe
VIEWS_RECIPE = "pretrain/lejepa"
SHOWN = 48  # worst mistakes on the page of a report
NEIGHBOURS = 20
# Fields of a recipe that a flag changes.
RUN = {
    "steps": "updates of the weights",
    "batch_size": "images per update",
    "learning_rate": "at the end of the warm-up",
    "warmup_steps": "updates of the warm-up, or below 1 a share of all; 0 for none",
    "image_size": "pixels",
    "keep": "best or last: which weights of the run it returns",
    "patience": "evaluations in a row without a better one, by the measure of keep, after which a run ends",
    "freeze": "layers that do not train, such as block_[0-5], or in segmentation backbone",
    "layer_decay": "factor of the learning rate from one block to the one before it; 1: none",
}
LABELS = {
    "sampling": "balanced or sqrt: draws images of small classes more often",
    "patch_drop": "share of the patches to leave out in training",
    "queries": "of an EoMT: how many queries a new one has",
    "points": "of an EoMT: at how many points a mask is compared with a prediction",
}
AUGMENTATION = {
    "crop": "inception, random or resize",
    "mixup": "p of the Beta(p, p) distribution that pairs of images are mixed by, at most 1; 0: none",
    "cutmix": "p of the Beta(p, p) distribution of the area that comes from another image; 0: none",
    "erasing": "share of the images of which a box is erased; 0: none",
    "randaugment": "layers and magnitude, such as 2 15",
}
VIEWS = {"global_views": "how many large crops", "local_views": "how many small crops"}
_CHANGED = f"the recipe, changed (defaults of {RECIPE})"
_VIEWED = f"the recipe {VIEWS_RECIPE}, changed"
_DEFAULT, _VIEWS_DEFAULT = recipe(RECIPE), recipe(VIEWS_RECIPE)
if TYPE_CHECKING:
    Changes = Augmenting = ViewChanges = Views = dict[str, Any]
else:
    Changes = flags_of(Recipe, _DEFAULT, _CHANGED, RUN | LABELS)
    Augmenting = flags_of(Augmentation, _DEFAULT.augmentation, _CHANGED, AUGMENTATION)
    ViewChanges = flags_of(Recipe, _VIEWS_DEFAULT, _VIEWED, {"epochs": "passes over the pictures", **RUN})
    Views = flags_of(ViewAugmentation, ViewAugmentation(), "the objective", VIEWS)
Lora = Annotated[Count | None, Parameter(help="train only LoRA adapters of this rank and the head", metavar="RANK")]
Flip = Annotated[bool | None, Parameter(negative="--no-flip", help="mirror half of the images: not digits, text")]
_FEATURES = Parameter(group="features in place of the head")
Restart = Annotated[bool, Parameter(help="start again instead of going on with OUTPUT")]


@Parameter(name="*", group="the run")
class TheRun(TypedDict, total=False):
    """Options of a run."""

    every: Annotated[Count, Parameter(help="updates from one evaluation to the next (default: an epoch, or a tenth)")]
    seed: Annotated[CountOr0, Parameter(help="of the random numbers: order, augmentation, dropout (default: 0)")]
    dtype: Annotated[
        Literal["float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"],
        Parameter(help="what it computes in (default: float32)"),
    ]


@command(
    "ViT-B/16 photos --output runs/photos",
    "ViT-B/16 labels.csv --file image --label tags --separator '|' --validation 0.1 --sampling sqrt",
    "glyphs photos --task segmentation --recipe segmentation/eomt_ade20k_base --image-size 96",
)
def finetune(
    weights: inputs.Weights,
    data: inputs.Data,
    /,
    *,
    output: str = "runs/finetune",
    restart: Restart = False,
    recipe: str | None = None,
    changes: Changes = {},
    augmentation: Augmenting = {},
    class_weight: Annotated[list[str] | None, MANY] = None,
    flip: Flip = None,
    validation: Annotated[AtLeast0 | None, Parameter(group="the data")] = None,
    kind: inputs.Kind = inputs.Kind(),
    masks: inputs.Masks = {},
    columns: inputs.Columns = {},
    lora: Lora = None,
    teacher: str | None = None,
    distill: Literal["hard", "soft", "features"] | None = None,
    run: TheRun = {},
) -> Result:
    """Fine-tunes a checkpoint on your images, as in the paper; a run that was killed goes on.

    Args:
        output: folder of the run
        recipe: see `keras-vit recipes` (default: finetune/folder, or of the task)
        class_weight: balanced, or NAME=WEIGHT: factors of classes in the loss
        validation: share of DATA to evaluate on (default: the test images of DATA)
        teacher: learn from this model as well; it must have the classes of DATA
        distill: what to learn from the teacher (default: hard)
    """
    from keras_vit import training

    kind.check(data, masks, columns, recipe or "")
    only_for("--task classification", kind.task == "classification", teacher=teacher)
    only_for("--teacher", teacher is not None, distill=distill)
    target = columns.get("target", "class")
    factors = None if class_weight is None else _class_weight(class_weight)
    changes = changes | given(lora_rank=lora, class_weight=factors)
    plan = _recipe(recipe or KINDS[kind.task].recipe, kind.task, target, changes, augmentation | given(flip=flip))
    inputs.check_source(weights)
    if teacher is not None:
        inputs.check_source(teacher)
    settings: dict[str, Any] = {**run, "output": output, "resume": not restart, "on_bad_image": kind.on_bad_image}
    settings |= given(validation=validation)
    if kind.task == "classification":
        images = inputs.labelled_data(data, columns)
        if recipe is None and "image_size" not in changes:
            settings["image_size"] = _at_most_own_size(plan, weights)
        inputs.start_keras()
        if teacher is not None:
            from keras_vit import load

            size = given(image_size=changes.get("image_size"))
            settings["task"] = training.distillation(load(teacher, **size), distill or "hard")
    else:
        inputs.check_exists(data, kind.annotations)
        inputs.start_keras()
        images = kind_of(plan.augmentation).open(data, **given(annotations=kind.annotations), **masks)
    done = training.finetune(weights, images, plan, **settings)
    folder = Path(output)
    following = ["evaluate", str(folder / "model.keras"), data, *(["--held-out"] if validation is not None else [])]
    again = {"task": kind.task, "annotations": kind.annotations, "on-bad-image": kind.on_bad_image, **columns, **masks}
    for name, value in again.items():
        if value not in (None, "classification", "stop", True):
            following += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    if masks.get("reduce_zero_label"):
        following.append("--reduce-zero-label")
    queries = getattr(done.model.config, "task", "semantic") != "semantic"
    if queries or (validation is not None and kind.task != "classification"):  # whose quality the log has
        which = {"segmentation": ["segment", "--plot"], "detection": ["detect"]}.get(kind.task)
        shows = [*(which or ()), "photo.jpg", "-o", "found.png", "--weights", str(folder / "model.keras")]
        following = shows if which else ["info", str(folder / "model.keras")]
    return Result(done.to_dict(), _report_of_run(done, folder, following))


def _report_of_run(done: Any, folder: Path, *following: list[str]) -> str:
    """Returns the text that a run ends with: its log, the images that were left out, its files, and what to do next."""
    lines = [str(done.log)]
    for image in done.bad_images:
        lines.append(f"Left out: {printable(image.path)}: {printable(image.reason)}")
    files = sorted(path.name for path in folder.glob("[!.]*") if not path.name.startswith("step-"))
    lines.append(
        inputs.summary(f"Wrote {printable(folder)}: {', '.join(files)}", *following, *_exports_that_work(folder)[:1])
    )
    return "\n".join(lines)


def _exports_that_work(folder: Path) -> list[list[str]]:
    """Returns the command lines that export the model of a run in the formats whose packages are installed."""
    from keras_vit.export import FORMATS

    rows = sorted((row for row in FORMATS.values() if not row.missing()), key=lambda row: not row.suffix)  # files first
    named = [(f"model{row.suffix}", *([] if row.suffix else ["--format", row.name])) for row in rows]
    return [["export", str(folder / "model.keras"), str(folder / file), *words] for file, *words in named]


@command(
    "photos --epochs 100 --batch-size 256 --output runs/mine",
    "photos --weights dinov2_vits14 --epochs 10 --learning-rate 5e-5 --validation labelled",
)
def pretrain(
    data: str,
    /,
    *,
    weights: str = "ViT-S/16",
    output: str = "runs/pretrain",
    restart: Restart = False,
    validation: str | None = None,
    changes: ViewChanges = {},
    lora: Lora = None,
    weight: Annotated[AtLeast0 | None, Parameter(group="the objective")] = None,
    slices: Annotated[Count | None, Parameter(group="the objective")] = None,
    views: Views = {},
    flip: Flip = None,
    teacher: str | None = None,
    cache: str | None = None,
    run: TheRun = {},
) -> Result:
    """Trains on pictures without labels (LeJEPA, or a teacher's features); a killed run goes on.

    Args:
        data: a folder with pictures; names of folders do not matter
        weights: a variant, with random weights, or a file, a folder, an address or a name of the catalogue
        output: folder of the run
        validation: labelled pictures: the log shows the accuracy of their nearest neighbours
        weight: weight of the SIGReg loss, which prevents collapse, 0 to 1 (default: 0.05)
        slices: directions that are drawn in each update (default: 1024)
        teacher: learn the features of this model instead
        cache: with --teacher: a folder for its features of whole pictures, so that it computes once
    """
    from keras_vit import training
    from keras_vit.checkpoints import is_variant

    only_for("runs without --teacher", teacher is None, weight=weight, slices=slices, **views)
    only_for("--teacher", teacher is not None, cache=cache)
    plan = training.recipe(VIEWS_RECIPE if teacher is None else "pretrain/feature_distillation")
    plan = plan.replace(**changes, **given(lora_rank=lora))
    inputs.check_exists(data, validation)
    if not is_variant(weights):
        inputs.check_source(weights)
    inputs.start_keras()
    if teacher is None:
        how = ViewAugmentation(**views, **given(flip=flip))
        task = training.LeJEPA(views=how, **given(weight=weight, slices=slices))
    else:
        how = Augmentation(crop="resize", flip=bool(flip)) if cache else Augmentation(min_area=0.08, **given(flip=flip))
        task = training.FeatureDistillation(teacher, views=how, cache=cache)
    settings = {**run, **given(validation=validation)}
    done = training.pretrain(weights, data, plan, objective=task, output=output, resume=not restart, **settings)
    folder = Path(output)
    following = ["finetune", str(folder / "model.keras"), validation or "labelled"]
    return Result(done.to_dict(), _report_of_run(done, folder, following))


def _recipe(name: str, task: str, target: str, changes: dict[str, Any], augmentation: dict[str, Any]) -> Recipe:
    """Returns a recipe by name with changes, which apply to the task and to the target of its data."""
    plan = recipe(name)
    if augmentation:
        changes = {**changes, "augmentation": plan.augmentation.replace(**augmentation)}
    plan, kind = plan.replace(**changes), kind_of(plan.augmentation)
    if kind.command != task:
        raise ValueError(f"The recipe {plan.name} is for --task {kind.command}, but --task {task} was given.")
    check(plan, {"target": target} if kind.is_label else {"target": kind.name, "objective": task})
    return plan


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


@Parameter(name="*", group="two towers, with words")
class Words(TypedDict, total=False):
    """What the classes of an image-text model are called."""

    names_from: Annotated[
        inputs.NamesFrom, Parameter(help="for image-text models: a file with a class name on each line")
    ]
    templates: Annotated[str, Parameter(help="with --names-from: a sentence with {}, or a list such as openai_80")]


@command("runs/finetune/model.keras photos --report report.html", "glyphs digits --few-shot 5 10")
def evaluate(
    weights: inputs.Weights,
    data: inputs.Data,
    /,
    *,
    kind: inputs.Kind = inputs.Kind(),
    masks: inputs.Masks = {},
    columns: inputs.Columns = {},
    held_out: bool = False,
    views: Literal["flip", "crops"] | None = None,
    threshold: AtLeast0 | None = None,
    few_shot: Annotated[list[Count] | None, MANY, _FEATURES] = None,
    seeds: Annotated[Count | None, _FEATURES] = None,
    l2: Annotated[AtLeast0 | None, _FEATURES] = None,
    knn: Annotated[list[Count] | None, Parameter(consume_multiple=(0, 1)), _FEATURES] = None,
    words: Words = {},
    image_size: Size = None,
    batch_size: Count | None = None,
    output: str | None = None,
    report: str | None = None,
) -> Result:
    """Measures accuracy on labelled images, or how well a few-shot probe or the nearest neighbours do.

    Args:
        held_out: only the pictures that `finetune --validation SHARE` held out
        views: average over mirror images, or ten crops (default: neither)
        threshold: several labels: the least probability (default: 0.5)
        few_shot: fit linear probes on so many images per class (default: 1 5 10 25)
        seeds: with --few-shot: draws of the shots (default: 3)
        l2: with --few-shot: strength of the probe's regularisation (default: 1024)
        knn: let the nearest training images vote instead (default: 20)
        image_size: pixels (default: the checkpoint's)
        batch_size: images at a time (default: 64)
        output: folder for evaluation.json and confusion.png (default: no files)
        report: a page with matrix, classes and worst mistakes, .html (default: none)
    """
    probing, voting = few_shot is not None, knn is not None
    names_from, templates = words.get("names_from"), words.get("templates")
    if probing and voting:
        raise ValueError("--few-shot and --knn are two ways to use features: give one of the two.")
    of_the_head = given(held_out=held_out or None, views=views, threshold=threshold, names_from=names_from)
    features = {"few_shot": few_shot, "knn": knn, "report": report, "output": output}
    kind.check(data, masks, columns)
    sizes = {"image_size": image_size, "batch_size": batch_size}
    only_for("--task classification", kind.task == "classification", **of_the_head, **features, **sizes)
    only_for("runs without --few-shot", not probing, **of_the_head, report=report)
    only_for("runs without --knn", not voting, **of_the_head)
    only_for("--few-shot", probing, seeds=seeds, l2=l2)
    only_for("--names-from", names_from is not None, templates=templates)
    inputs.check_source(weights)
    if kind.task != "classification":
        return _evaluate_pixels(weights, data, kind, masks)
    images, names = _evaluation_data(data, columns, report, draws=bool(output and not probing))
    from keras_vit import evaluation
    from keras_vit._processes import connect

    first = connect().first  # before anything is computed
    model = _evaluated_model(weights, names_from, templates, **given(image_size=image_size))
    common: dict[str, Any] = {"preprocess": True, "batch_size": batch_size or 64, "on_bad_image": kind.on_bad_image}
    run = Path(weights).parent / "run.json"
    if held_out or (run.exists() and Path(weights).name == "model.keras" and names_from is None and not probing):
        images = _held_out(run, model, images, held_out, common)
    if probing:
        probe = given(seeds=seeds, l2=l2, shots=few_shot or None)
        result = table = evaluation.few_shot(model, images, images, **probe, **common)
    elif knn is not None:
        result = table = evaluation.knn_accuracy(model, images, images, k=[*knn, NEIGHBOURS][0], **common)
    else:
        shows = (report or output) and getattr(images, "target", "class") == "class"
        common |= {"class_names": names, "mistakes": SHOWN if shows else 0, **given(views=views, threshold=threshold)}
        result = table = evaluation.evaluate(model, images, **common)
        if hasattr(result, "class_table"):
            from rich.console import Group

            table = Group(result, result.class_table(worst=10))
    if output and first:
        evaluation.write_files(result, output)
    if report and first:
        evaluation.write_report(result, report, f"{weights} on {data}")
    return Result(result.to_dict(), table)


def _held_out(run: Path, model: Any, images: Any, wanted: bool, common: dict[str, Any]) -> Any:
    """Returns the images that a run held out, or if that is not `wanted` all, with a warning if it trained on them.

    Raises ValueError where it is wanted, but the run has held nothing of these images out.
    """
    from keras_vit.data import has_test_split, open_data

    record = json.loads(run.read_text()) if run.exists() else {}
    reading = {name: common[name] for name in ("batch_size", "on_bad_image")} | {"seed": record.get("seed", 0)}
    reading |= {"image_size": model.config.image_size, "channels": model.config.channels}
    count, share = record.get("data", {}).get("examples"), None
    same = bool(count) and not isinstance(images, Mapping) and not has_test_split(images)
    if same:
        with open_data(images, **reading) as everything:
            share = max(0, 1 - count / everything.examples) or None
        with open_data(images, holdout=share, **reading) as seen:  # the seed and the number decide which
            same = seen.contents() == record.get("begun_with", {}).get("training data")
    if wanted and same and share:
        common["on_bad_image"] = "stop"  # it belongs to the stream
        resize = model.config.pipeline
        return open_data(images, split="validation", shuffle=False, resize=resize, holdout=share, **reading)
    if wanted:
        raise ValueError(f"--held-out needs the model.keras and the DATA of a run with --validation SHARE, not {run}.")
    if same:
        hint = " --held-out measures the others." if share else ""
        warn_caller(f"The model was trained on {count:,} of these images, which says little of new ones.{hint}")
    return images


def _evaluate_pixels(weights: str, data: str, kind: inputs.Kind, masks: inputs.Masks) -> Result:
    """Returns what the kind's own function measures, such as COCO's average precision of a detector."""
    inputs.check_exists(data, kind.annotations)
    inputs.start_keras()
    from keras_vit import load

    of = KINDS[kind.task]
    opened = data if kind.annotations is None else of.open(data, annotations=kind.annotations)
    result = pkgutil.resolve_name(of.evaluate)(load(weights), opened, on_bad_image=kind.on_bad_image, **masks)
    return Result(result.to_dict(), f"{result}\n{result.class_table(worst=10)}" if of.has_classes else result)


def _evaluation_data(
    data: str, columns: inputs.Columns, report: str | None, draws: bool
) -> tuple[Any, list[str] | None]:
    """Returns DATA, and the names of its classes where it brings none; imports Keras when everything is checked."""
    from keras_vit._page import check_page_path
    from keras_vit._pictures import need_matplotlib

    is_digits = data == "digits" and not Path(data).exists()
    images = None if is_digits else inputs.labelled_data(data, columns)
    if report or draws:
        need_matplotlib()  # better now than after all the work
    if report:
        check_page_path(report)
    inputs.start_keras()
    if not is_digits:
        return images, None
    from keras_vit.data import load_digits

    train, test = load_digits()
    return {"train": train, "test": test}, list("0123456789")


def _evaluated_model(weights: str, names_from: str | None, templates: str | None, **size: Any) -> Any:
    """Returns the model, or of two towers a classifier of the names in a file."""
    if names_from is None:
        from keras_vit.zoo import load

        return load(weights, **size)
    from keras_vit.text.image_text import load_pair

    return load_pair(weights, **size).zero_shot_classifier(inputs.lines_of(names_from), **given(templates=templates))


@command("cifar", "'pretrain B/16'")
def recipes(query: str | None = None, /) -> Result:
    """The papers' recipes.

    Args:
        query: words of a name, a model or a data set (default: all)
    """
    from keras_vit.training import list_recipes

    rows = list_recipes(query)
    if not rows:
        raise ValueError(f"No recipe has all of {query!r}; `keras-vit recipes` shows all.")
    return Result([*rows], rows)
