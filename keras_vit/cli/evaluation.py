"""The commands that measure models and search among features: evaluate, similar and duplicates."""

import argparse
from typing import Any

from keras_vit._arguments import printable
from keras_vit.cli.command import (
    COUNT,
    DATA,
    OF_CLASSES,
    ON_BAD_IMAGE,
    WEIGHTS,
    Answer,
    Mode,
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
    start_keras,
    table_options,
)
from keras_vit.cli.masks import evaluate_masks, mask_options

SHOWN = 48  # worst mistakes on the page of a report
NEIGHBOURS = 20
FEATURES = option("features", metavar="FEATURES", help="a file of `keras-vit embed`")
FOLDER = option("--folder", help="where the images are (default: the folder that was embedded)")
SHEET = option("--output", metavar="FILE", help="a contact sheet, .html, .png, .svg or .pdf (default: none)")


def _mode(options: argparse.Namespace) -> Mode:
    way = "--few-shot" if options.few_shot is not None else "the head" if options.knn is None else "--knn"
    names = "classes of the head" if options.names_from is None else "--names-from"
    return {"task": f"--task {options.task}", "way": way, "names": names, "data": kind_of_data(options.data)}


_OF_THE_HEAD = {**OF_CLASSES, "way": ("the head",)}
_OF_THE_PROBE = {**OF_CLASSES, "way": ("--few-shot",)}


@command(
    "Measures accuracy on labelled images, or how well a few-shot probe or the nearest neighbours do.",
    WEIGHTS,
    option("data", metavar="DATA", help=f"{DATA}; or `digits`"),
    group("the data", mask_options, table_options, ON_BAD_IMAGE),
    option(
        "--views",
        choices=("flip", "crops"),
        help="average over mirror images, or ten crops (default: neither)",
        only=_OF_THE_HEAD,
    ),
    option(
        "--threshold",
        type=at_least_0,
        help="of several labels: the probability to say one (default: 0.5)",
        only=_OF_THE_HEAD,
    ),
    group(
        "features in place of the head",
        option(
            "--few-shot",
            nargs="*",
            type=COUNT,
            metavar="SHOTS",
            help="probe them (default: 1 5 10 25)",
            only=OF_CLASSES,
        ),
        option("--seeds", type=COUNT, help="with --few-shot: draws of the shots (default: 3)", only=_OF_THE_PROBE),
        option(
            "--l2",
            type=at_least_0,
            help="with --few-shot: strength of the probe's regularisation (default: 1024)",
            only=_OF_THE_PROBE,
        ),
        option(
            "--knn",
            nargs="?",
            type=COUNT,
            const=NEIGHBOURS,
            metavar="K",
            help=f"let the nearest training images vote instead (default: {NEIGHBOURS})",
            only=OF_CLASSES,
        ),
    ),
    group(
        "two towers, with words",
        option(
            "--names-from",
            metavar="FILE",
            help="of two towers: a name on each line, for classes that are words",
            only=_OF_THE_HEAD,
        ),
        option(
            "--templates",
            help="with --names-from: a sentence with {}, or a published list such as openai_80",
            only={"names": ("--names-from",)},
        ),
    ),
    option(
        "--image-size", type=image_size, help="pixels, as 384 or 384x512 (default: the checkpoint's)", only=OF_CLASSES
    ),
    option("--batch-size", type=COUNT, help="(default: 64)", only=OF_CLASSES),
    option(
        "--report",
        metavar="FILE",
        help="a page with matrix, classes and worst mistakes, .html (default: none)",
        only={**OF_CLASSES, "way": ("the head", "--knn")},
    ),
    option(
        "--output",
        metavar="FOLDER",
        help="for evaluation.json and confusion.png (default: no files)",
        only=OF_CLASSES,
    ),
    mode=_mode,
    examples=(
        "runs/finetune/model.keras photos --report report.html",
        "glyphs digits --few-shot 5 10",
    ),
)
def evaluate(options: argparse.Namespace) -> Answer:
    """Evaluates, and writes the files that were asked for."""
    from rich.console import Group

    from keras_vit._pictures import need_matplotlib

    probing, voting = options.few_shot is not None, options.knn is not None
    probe = ({"shots": options.few_shot} if options.few_shot else {}) | given(options, "seeds", "l2")
    of_outputs = given(options, "views", "threshold")
    if probing and voting:
        raise ValueError("--few-shot and --knn are two ways to use features: give one of the two.")
    check_source(options.weights)
    check_exists(options.names_from)
    if options.task == "segmentation":
        return evaluate_masks(options)
    digits = kind_of_data(options.data) == "digits"
    data: Any = None if digits else labelled_data(options)
    if options.report or (options.output and not probing):
        need_matplotlib()  # better now than after all the work
    if options.report and not options.report.endswith((".html", ".htm")):
        raise ValueError(f"--report must end with .html, but {options.report!r} was given.")
    start_keras()
    from keras_vit import evaluation
    from keras_vit._processes import connect
    from keras_vit.zoo import load

    names = None
    if digits:
        from keras_vit.demo import load_digits

        data, names = dict(zip(("train", "test"), load_digits(), strict=True)), list("0123456789")
    first = connect().first  # before anything is computed
    if options.names_from is None:
        model = load(options.weights)
    else:
        from keras_vit.text import load_image_text

        classes = lines_of(options.names_from)
        model = load_image_text(options.weights).zero_shot_classifier(classes, **given(options, "templates"))
    if options.image_size is not None:
        model = model.with_image_size(options.image_size)
    common: dict[str, Any] = {"preprocess": True, "batch_size": options.batch_size or 64}
    common |= chosen(options, "on_bad_image")
    if probing:
        result = output = evaluation.few_shot(model, data, data, **probe, **common)
    elif voting:
        result = output = evaluation.knn_accuracy(model, data, data, k=options.knn, **common)
    else:
        common |= {"class_names": names, "mistakes": SHOWN if options.report or options.output else 0, **of_outputs}
        result = output = evaluation.evaluate(model, data, **common)
        if hasattr(result, "class_table"):
            output = Group(result, result.class_table(worst=10))
    if options.output and first:
        evaluation.write_files(result, options.output)
    if options.report and first:
        evaluation.write_report(result, options.report, f"{options.weights} on {options.data}")
    return Answer(result.to_dict(), output)


@command(
    "Finds the images that are most like one, or like words, among the features that `keras-vit embed` has written.",
    option("image", nargs="?", metavar="IMAGE"),
    FEATURES,
    option("--text", metavar="WORDS", help="what to search for in place of an image, with a CLIP or SigLIP"),
    option("--count", type=COUNT, default=12),
    option("--weights", help="the model that the features are of (default: the one that they were made with)"),
    FOLDER,
    SHEET,
    examples=("photo.jpg features.npz", "--text 'a red car' features.npz --weights clip/ --output similar.html"),
)
def similar(options: argparse.Namespace) -> Answer:
    """Searches, and draws the sheet."""
    if (options.image is None) == (options.text is None):
        raise ValueError("Give either an IMAGE or --text 'some words'.")
    if options.text is not None and options.weights is None:
        raise ValueError("--text needs --weights, the two towers with whose image tower the features were made.")
    check_exists(options.image, options.features, options.folder)
    start_keras()
    from keras_vit import evaluation

    model, query = options.weights, None
    if options.text is not None:
        from keras_vit.text import load_image_text

        both = load_image_text(model)
        model, query = both.image_encoder, both.embed_texts(options.text)[0]
    found = {"query": query, "k": options.count, "model": model, "folder": options.folder}
    rows = evaluation.find_similar(options.image, options.features, **found)
    if options.output:
        title = f"Most like {printable(options.image or options.text)}"
        evaluation.draw_similar(rows, options.output, title, options.image)
    return Answer([*rows], rows)


@command(
    "Finds images that are almost the same, among the features that `keras-vit embed` has written.",
    FEATURES,
    option("--threshold", type=at_least_0, default=0.95, help="cosine similarity from which on"),
    FOLDER,
    SHEET,
    examples=("features.npz --threshold 0.98", "features.npz --output duplicates.html"),
)
def duplicates(options: argparse.Namespace) -> Answer:
    """Compares all, and draws the sheet."""
    check_exists(options.features, options.folder)
    start_keras()
    from keras_vit import evaluation

    rows = evaluation.find_duplicates(options.features, options.threshold, folder=options.folder)
    if options.output and rows:
        evaluation.draw_similar(rows, options.output, "Near-duplicates")
    return Answer([*rows], rows or "No near-duplicates.")
