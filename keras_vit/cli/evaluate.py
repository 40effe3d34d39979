"""`keras-vit evaluate` and `verify`: how good a model is, and whether it computes what its publisher says."""

import argparse
import os
from typing import Any

from keras_vit.cli.command import (
    COUNT,
    SOURCE,
    Answer,
    Command,
    at_least_0,
    check_data,
    check_exists,
    check_source,
    image_size,
    start_keras,
)


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help=SOURCE)
    add(
        "data",
        metavar="DATA",
        help="a folder with train/ and test/ or one folder per class, tfds:NAME, or `digits`",
    )
    add("--few-shot", nargs="*", type=COUNT, metavar="SHOTS", help="probe the features instead (default: 1 5 10 25)")
    add("--seeds", type=COUNT, help="with --few-shot: draws of the shots (default: 3)")
    add("--l2", type=at_least_0, help="with --few-shot: strength of the probe's regularisation (default: 1024)")
    add("--image-size", type=image_size, help="pixels, as 384 or 384x512 (default: the checkpoint's)")
    add("--batch-size", type=COUNT, default=64, help="(default: %(default)s)")
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    add("--output", metavar="FOLDER", help="for evaluation.json and confusion.png (default: no files)")


def _evaluate(options: argparse.Namespace) -> Answer:
    """Evaluates, and writes the files that were asked for."""
    from rich.console import Group

    from keras_vit._pictures import need_matplotlib

    probing = options.few_shot is not None
    probe = {"shots": options.few_shot or None, "seeds": options.seeds, "l2": options.l2}
    probe = {name: value for name, value in probe.items() if value is not None}
    if probe and not probing:
        raise ValueError(f"--{next(iter(probe))} is about the probe of --few-shot, which was not asked for.")
    check_source(options.weights)
    digits = options.data == "digits" and not os.path.exists(options.data)
    if not digits:
        check_data(options.data)
    if options.output and not probing:
        need_matplotlib()  # better now than after all the work
    start_keras()
    from keras_vit import evaluation
    from keras_vit._processes import connect
    from keras_vit.zoo import load

    data, names = _digits() if digits else (options.data, None)
    common: dict[str, Any] = {
        "preprocess": True,
        "batch_size": options.batch_size,
        "on_bad_image": options.on_bad_image,
    }
    first = connect().first  # before anything is computed
    model = load(options.weights)
    if options.image_size is not None:
        model = model.with_image_size(options.image_size)
    if probing:
        result = shown = evaluation.few_shot(model, data, data, **probe, **common)
    else:
        result = evaluation.evaluate(model, data, class_names=names, **common)
        shown = Group(result, result.class_table(worst=10))
    if options.output and first:
        evaluation.write_files(result, options.output)
    return Answer(result.to_dict(), shown)


def _digits() -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """The demo's data, for `open_data`, and the names of its labels."""
    from keras_vit.demo.digits import load_digits

    splits = zip(("train", "test"), load_digits(), strict=True)
    return {split: (digits.pixels, digits.labels) for split, digits in splits}, list("0123456789")


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a repository of the Hugging Face Hub, or `all`")
    parser.add_argument("--picture", metavar="FILE", help="a copy of the picture (default: the one at its address)")


def _verify(options: argparse.Namespace) -> Answer:
    """Fetches the weights, computes, compares."""
    check_exists(options.picture)
    start_keras()
    from keras_vit.evaluation import verify

    table = verify(options.names, picture=options.picture)
    return Answer([*table], table, ok=table.agrees)


EVALUATE = Command(
    "Measures accuracy on labelled images, or how well a few-shot probe does.",
    _evaluate_arguments,
    _evaluate,
    ("runs/finetune/model.keras photos --output report", "glyphs digits --few-shot 5 10"),
)
VERIFY = Command(
    "Compares published weights with the answers that were published with them; for a machine with network.",
    _verify_arguments,
    _verify,
    ("google/vit-base-patch16-224",),
)
