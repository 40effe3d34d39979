"""The commands about models at work: predict, embed, verify, finetune, demo, recipes and plan."""

import argparse
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vit._arguments import printable
from keras_vit._terminal import Table
from keras_vit.cli.command import (
    COUNT,
    COUNT_OR_0,
    DATA,
    DTYPES,
    OF_CLASSES,
    ON_BAD_IMAGE,
    OVERWRITE,
    WEIGHTS,
    WEIGHTS_OPTION,
    Answer,
    Option,
    at_least_0,
    check_exists,
    check_source,
    chosen,
    command,
    given,
    group,
    image_size,
    kind_of_data,
    labelled_data,
    lines_of,
    option,
    picture_files,
    predicted,
    start_keras,
    summary,
    table_options,
)
from keras_vit.cli.masks import RECIPE as MASK_RECIPE
from keras_vit.cli.masks import mask_options, open_masks

TOP = 5  # classes that `predict` shows
RECIPE = "finetune/cifar10"


@command(
    "Classifies images.",
    option("images", nargs="+", metavar="IMAGE|FOLDER"),
    WEIGHTS_OPTION,
    option("--top", type=COUNT, help=f"how many classes to show (default: {TOP}, or all if fewer)"),
    option("--threshold", type=at_least_0, metavar="P", help="of several labels: from where on (default: 0.5)"),
    examples=("photo.jpg", "photos/*.jpg --weights runs/finetune/model.keras --top 1"),
)
def predict(options: argparse.Namespace) -> Answer:
    """Looks at all images before anything that takes long."""
    from keras_vit.preprocessing import decode_predictions

    files = picture_files(options.images)
    check_source(options.weights)
    start_keras()
    import keras

    from keras_vit.zoo import load

    model = load(options.weights)
    if hasattr(model.config, "backbone"):
        words = f"{options.weights} answers for each place of a picture, and not for the whole"
        raise ValueError(f"{words}: `keras-vit segment` or `keras-vit depth`.")
    count = model.config.classes
    if count is None:
        raise ValueError(
            f"{options.weights} has no head, so it knows no classes. Fine-tune it on images of yours with `keras-vit "
            "finetune`, or measure its features with `keras-vit evaluate --few-shot`."
        )
    if len(model.output_shape) != 2:
        raise ValueError(f"{options.weights} has a head on every token or place, so that no image gets one answer.")
    if options.top is not None and options.top > count:
        raise ValueError(f"--top must be at most {count}, the classes of {options.weights}, but got {options.top}.")
    outputs = predicted(model, files)
    several = model.config.classifier_activation == "sigmoid"
    if options.threshold is not None and not several:
        raise ValueError(f"--threshold is for models of several labels, but {options.weights} has one for each image.")
    if count == 1 and not several:
        name, values = (model.config.class_names or ("number",))[0], [float(value) for value in outputs[:, 0]]
        pairs = list(zip(files, values, strict=True))
        data = [{"image": path, "number": value} for path, value in pairs]
        return Answer(data, Table({"image": path, name: f"{value:.4g}"} for path, value in pairs))
    if model.config.classifier_activation in (None, "linear"):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    limits = {"top": options.top or (count if several else min(TOP, count)), "class_names": model.config.class_names}
    limits["threshold"] = (0.5 if options.threshold is None else options.threshold) if several else None
    decoded = decode_predictions(outputs, **limits)
    data, table = [], Table()
    for path, classes in zip(files, decoded, strict=True):
        entries = [{"id": key, "name": name, "probability": float(p)} for key, name, p in classes]
        data.append({"image": path, "classes": entries})
        if not classes:
            table.append({"image": path, "class": "(none)", "probability": ""})
        for place, (_, name, p) in enumerate(classes):
            table.append({"image": "" if place else path, "class": name, "probability": f"{100 * p:.1f} %"})
    return Answer(data, table)


def shard(text: str) -> tuple[int, int]:
    """Slices, such as `0/4` for the first of four."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N, from 0/N to (N-1)/N, but {text!r} was given")
    return int(index), int(count)


_OF_IMAGES = {"input": ("images",)}


@command(
    "Writes the features of many images to a file; a run that is killed goes on.",
    option("images", nargs="+", metavar="FOLDER|FILE", help="a folder with all that is in it, or files and folders"),
    option("-o", "--output", required=True, metavar="OUT", help="the .npz file to write"),
    WEIGHTS_OPTION,
    option("--features", default="pre_logits", help="which, such as block_-1 or encoded", only=_OF_IMAGES),
    option("--batch-size", type=COUNT, default=32),
    option("--dtype", choices=("float32", "float16"), default="float32", help="in the file"),
    option("--texts", action="store_true", help="the files hold texts, one a line; the weights have a text tower"),
    option(
        "--skip-unreadable",
        action="store_true",
        help="leave out files that are no images, and say which",
        only=_OF_IMAGES,
    ),
    option(
        "--shard",
        type=shard,
        metavar="I/N",
        help="the I-th slice of N of the images only, from 0 (default: 0/1)",
        only=_OF_IMAGES,
    ),
    OVERWRITE,
    mode=lambda options: {"input": "--texts" if options.texts else "images"},
    examples=("photos -o features.npz", "photos --weights glyphs --features block_-1 -o features.npz"),
)
def embed(options: argparse.Namespace) -> Answer:
    """Looks for the files before anything that takes long, and embeds them."""
    check_exists(*options.images)
    check_source(options.weights)
    start_keras()
    from keras_vit.evaluation import embed
    from keras_vit.evaluation.embedding import check_output

    check_output(options.output)
    if options.texts:
        return _embed_texts(options)
    done = embed(
        options.weights,
        options.images if len(options.images) > 1 else options.images[0],
        options.output,
        shard=options.shard or (0, 1),
        on_bad_image="skip" if options.skip_unreadable else "stop",
        **chosen(options, "features", "batch_size", "dtype", "overwrite"),
    )
    shape = " x ".join(map(str, done.shape))
    start = f"{printable(done.path)} is already complete" if done.already_complete else f"Wrote {printable(done.path)}"
    text = f"{start}: {done.count:,} images, {shape} features each"
    if done.skipped:
        names = ", ".join(printable(name) for name in done.skipped[:5])
        text += f"; {len(done.skipped)} could not be read: {names}{' ...' if len(done.skipped) > 5 else ''}"
    data = {"path": str(done.path), "images": done.count, "shape": [*done.shape], "skipped": [*done.skipped]}
    following = ["similar", "photo.jpg", str(done.path)], ["duplicates", str(done.path)]
    return Answer({**data, "already_complete": done.already_complete}, summary(text, *following))


def _embed_texts(options: argparse.Namespace) -> Answer:
    """Writes the embeddings of texts, each of length 1, with the texts as names."""
    import numpy as np

    from keras_vit._files import replacing
    from keras_vit.text import load_image_text

    if os.path.exists(options.output) and not options.overwrite:
        raise FileExistsError(f"{options.output} exists. Choose another path or pass --overwrite.")
    texts = [line for path in options.images for line in lines_of(path)]
    features = load_image_text(options.weights).embed_texts(texts, options.batch_size).astype(options.dtype)
    with replacing(options.output) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, names=np.array(texts), features=features)
    shape = [*features.shape[1:]]
    text = f"Wrote {printable(options.output)}: {len(texts):,} texts, {shape[0]} features each"
    return Answer({"path": options.output, "texts": len(texts), "shape": shape}, text)


@command(
    "Compares published weights with the answers or figures published of them; for a machine with network.",
    option("names", nargs="+", metavar="NAME", help="a repository of the Hugging Face Hub, or `all`"),
    option(
        "--picture",
        metavar="FILE",
        help="a copy of the picture (default: the one at its address)",
        only={"compares": ("published answers",)},
    ),
    option("--data", metavar="FOLDER", help="measure figures on it: zero-shot accuracy, PQ, mIoU, delta1"),
    option("--batch-size", type=COUNT, help="with --data (default: 64)", only={"compares": ("--data",)}),
    mode=lambda options: {"compares": "--data" if options.data else "published answers"},
    examples=(
        "google/vit-base-patch16-224",
        "openai/clip-vit-base-patch32 --data imagenet/val",
        "tue-mps/coco_panoptic_eomt_large_640 --data coco",
    ),
)
def verify(options: argparse.Namespace) -> Answer:
    """Fetches the weights, computes, compares."""
    check_exists(options.picture, options.data)
    start_keras()
    from keras_vit.evaluation import verify, verify_figures

    if options.data:
        table = verify_figures(options.names, options.data, **given(options, "batch_size"))
    else:
        table = verify(options.names, picture=options.picture)
    return Answer([*table], table, ok=table.agrees)


def _finetune_options() -> Iterator[Option]:
    """Those that a recipe decides, with what the usual one says."""
    from keras_vit.training import recipe

    usual = recipe(RECIPE)

    def of_recipe(name: str, help: str = "", **settings: Any) -> Option:
        field = name.removeprefix("--").replace("-", "_")
        value = getattr(usual, field, None) or getattr(usual.augmentation, field, 0)
        default = f"; {RECIPE}: {value:,}" if isinstance(value, (int, float)) and value else ""
        default = f"; {RECIPE}: {value}" if isinstance(value, str) else default
        return option(name, help=f"{help} (default: the recipe's{default})".strip(), **settings)

    yield of_recipe("--steps", "updates of the weights", type=COUNT)
    yield of_recipe("--batch-size", "images per update", type=COUNT)
    yield of_recipe("--learning-rate", type=at_least_0)
    yield of_recipe("--warmup-steps", "0 for none", type=COUNT_OR_0)
    yield of_recipe("--image-size", "pixels, as 384 or 384x512", type=image_size)
    of_classes: dict[str, Any] = {"only": OF_CLASSES}
    yield of_recipe("--crop", "inception, random or resize", **of_classes)
    yield of_recipe("--mixup", "0 for none", type=at_least_0, metavar="P", **of_classes)
    yield of_recipe("--cutmix", "0 for none", type=at_least_0, metavar="P", **of_classes)
    yield of_recipe("--erasing", "share of the images, 0 for none", type=at_least_0, metavar="SHARE", **of_classes)
    yield of_recipe("--sampling", "balanced or sqrt: draws images of small classes more often", **of_classes)
    weights = "balanced, or NAME=WEIGHT: factors of classes in the loss"
    yield of_recipe("--class-weight", weights, nargs="+", metavar="WEIGHT", **of_classes)
    text = "share of the patches to leave out in training"
    yield of_recipe("--patch-drop", text, type=at_least_0, metavar="SHARE", **of_classes)
    yield of_recipe("--keep", "best or last: which weights of the run it gives")
    yield of_recipe("--patience", "evaluations without a better one until it stops", type=COUNT, metavar="N")
    yield of_recipe("--randaugment", "such as 2 15", type=int, nargs=2, metavar=("LAYERS", "MAGNITUDE"), **of_classes)


def _class_weight(words: list[str]) -> str | dict[str, float]:
    """The weights of classes that NAME=WEIGHT say; a single word as it is, for the recipe to check."""
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    pairs = [word.rpartition("=") for word in words]
    try:
        return {name: float(weight) for name, _, weight in pairs}
    except ValueError:
        raise ValueError(f"--class-weight must be balanced or NAME=WEIGHT ..., but {words} was given.") from None


@command(
    "Fine-tunes a checkpoint on images of your own, as in the paper.",
    WEIGHTS,
    option("data", metavar="DATA", help=DATA),
    option("--output", default="runs/finetune", help="folder of the run"),
    option("--restart", action="store_true", help="start again instead of going on with OUTPUT"),
    option("--recipe", help=f"see `keras-vit recipes` (default: {RECIPE}, of masks {MASK_RECIPE})"),
    group(
        "the recipe, changed",
        _finetune_options,
        option("--no-flip", action="store_const", const=False, dest="flip", help="mirror no images (digits, text)"),
    ),
    group(
        "the data",
        option(
            "--validation", type=at_least_0, metavar="SHARE", help="to evaluate on (default: the test images of DATA)"
        ),
        mask_options,
        table_options,
        ON_BAD_IMAGE,
    ),
    group(
        "adapters and teachers",
        option(
            "--lora",
            type=COUNT,
            metavar="RANK",
            dest="lora_rank",
            help="train adapters of this rank and the head alone",
        ),
        option(
            "--teacher",
            metavar="WEIGHTS",
            help="learn from this model as well; its classes are those of DATA",
            only=OF_CLASSES,
        ),
        option(
            "--distill",
            choices=("hard", "soft", "features"),
            help="what the teacher gives (default: hard)",
            only={"teacher": ("--teacher",)},
        ),
    ),
    group(
        "the run",
        option("--every", type=COUNT, help="updates from one evaluation to the next (default: an epoch, or a tenth)"),
        option("--seed", type=COUNT_OR_0, default=0),
        option("--dtype", choices=DTYPES, metavar="POLICY", help=f"{', '.join(DTYPES)} (default: float32)"),
    ),
    mode=lambda options: {
        "task": f"--task {options.task}",
        "data": kind_of_data(options.data),
        "teacher": "runs without a teacher" if options.teacher is None else "--teacher",
    },
    examples=(
        "glyphs photos --output runs/photos",
        "ViT-B/16 photos --recipe finetune/imagenet2012 --batch-size 32 --lora 8",
        "ViT-B/16 labels.csv --file image --label tags --separator '|' --validation 0.1 --sampling sqrt",
    ),
)
def finetune(options: argparse.Namespace) -> Answer:
    """Trains in the folder `options.output`, where a run that was killed goes on."""
    from keras_vit import training

    masks = options.task == "segmentation"
    recipe = training.recipe(options.recipe or (MASK_RECIPE if masks else RECIPE))
    changes = given(options, "crop", "flip", "mixup", "cutmix", "erasing", "randaugment")
    recipe = recipe.replace(augmentation=dataclasses.replace(recipe.augmentation, **changes))
    changes = given(options, "keep", "patience", "sampling", "patch_drop", "lora_rank")
    if options.class_weight is not None:
        changes["class_weight"] = _class_weight(options.class_weight)
    recipe = recipe.replace(**changes)
    check_source(options.weights)
    if options.teacher is not None:
        check_source(options.teacher)
    data = open_masks(options) if masks else labelled_data(options)
    start_keras()
    task = {}
    if options.teacher is not None:
        from keras_vit import load

        task["task"] = training.distillation(load(options.teacher), options.distill or "hard")
    done = (training.finetune_segmentation if masks else training.finetune)(
        options.weights,
        data,
        recipe,
        validation=options.validation,
        resume=not options.restart,
        **chosen(options, "output", "steps", "batch_size", "learning_rate", "warmup_steps", "image_size"),
        **chosen(options, "every", "seed", "dtype", "on_bad_image"),
        **task,
    )
    lines = [str(done.log)]
    lines += [f"Left out: {printable(image.path)}: {printable(image.reason)}" for image in done.bad_images]
    folder = Path(options.output)
    files = sorted(path.name for path in folder.glob("[!.]*") if not path.name.startswith("step-"))
    wrote = summary(
        f"Wrote {printable(folder)}: {', '.join(files)}",
        ["evaluate", model := str(folder / "model.keras"), options.data, *(["--task", options.task] * masks)],
        ["export", model, str(folder / "model.onnx")],
    )
    return Answer(done.to_dict(), "\n".join([*lines, wrote]))


@command(
    "Fine-tunes the checkpoint that comes along on real digits, without network.",
    option("--output", default="demo-output", help="folder for its files"),
    option("--seed", type=COUNT_OR_0, help="(default: 0)"),
    option("--epochs", type=COUNT, help="how often each picture is seen (default: 5)"),
    option("--train-images", type=COUNT, help="fewer images to train on (default: all 1,297)"),
    examples=("--output demo-output",),
)
def demo(options: argparse.Namespace) -> Answer:
    """Runs the demo, which prints what it does."""
    start_keras()
    from rich.console import Console

    from keras_vit.demo import run

    arguments = given(options, "output", "seed", "epochs", "train_images")
    return Answer(run(**arguments, console=Console(stderr=options.json)), None)


@command(
    "The papers' recipes.",
    option("query", nargs="?", help="words of a name, a model or a data set (default: all)"),
    examples=("cifar", "'pretrain B/16'"),
)
def recipes(options: argparse.Namespace) -> Answer:
    """What fits the query."""
    from keras_vit.training import list_recipes

    rows = list_recipes(options.query)
    if not rows:
        raise ValueError(f"No recipe has all of {options.query!r}; `keras-vit recipes` shows all.")
    return Answer([*rows], rows)


@command(
    "What fits on which devices, how to split it, and how long a training step takes; arithmetic only.",
    option("model", metavar="VARIANT|FILE", help="such as ViT-H/14, glyphs, or a file"),
    option("--devices", type=COUNT, default=1, metavar="N", help="number of devices"),
    option("--memory", default="80GB", metavar="SIZE", help="of each device, with its unit"),
    option("--batch", type=COUNT, default=4096, dest="batch_size", metavar="N", help="images of an update"),
    option("--dtype", default="mixed_bfloat16", help="mixed_bfloat16 or float32"),
    option("--optimizer", default="adam", help="adam or momentum"),
    option("--image-size", type=image_size, metavar="N|HxW", help="in pixels; the variant's if left out"),
    option("--classes", type=COUNT, metavar="N", help="outputs of the head (1000)"),
    option("--peak-tflops", type=at_least_0, metavar="X", help="of a device in that precision, for the time of a step"),
    option("--share", type=at_least_0, default=0.4, metavar="X", help="of the peak that is reached"),
    option("--fused-attention", action="store_true", help="attention weights are never written: FlashAttention"),
    examples=("ViT-H/14 --devices 8 --memory 80GB",),
)
def plan(options: argparse.Namespace) -> Answer:
    """Works the plan out."""
    from keras_vit.training import plan

    arguments = chosen(options, "devices", "memory", "batch_size", "dtype", "optimizer", "image_size", "classes")
    answer = plan(options.model, **arguments, **chosen(options, "peak_tflops", "share", "fused_attention"))
    return Answer(answer.to_dict(), answer, ok=answer.best is not None)
