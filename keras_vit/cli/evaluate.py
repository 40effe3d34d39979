"""`keras-vit evaluate`."""

import argparse
import contextlib
import os
from typing import Any

from keras_vit.cli.arguments import SOURCE, at_least_0, image_size, whole
from keras_vit.cli.framework import start_keras
from keras_vit.cli.output import Answer

HELP = "Measures accuracy on labelled images, or how well a few-shot probe does."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help=SOURCE)
    add("data", metavar="DATA", help="a folder with train/ and test/, or with one folder per class; or `digits`")
    add("--few-shot", nargs="*", type=whole(1), metavar="SHOTS", help="probe the features instead (default: 1 5 10 25)")
    add("--seeds", type=whole(1), help="with --few-shot: draws of the shots (default: 3)")
    add("--l2", type=at_least_0, help="with --few-shot: strength of the probe's regularisation (default: 1024)")
    add("--image-size", type=image_size, help="pixels, as 384 or 384x512 (default: the checkpoint's)")
    add("--batch-size", type=whole(1), default=64, help="(default: %(default)s)")
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    add("--output", metavar="FOLDER", help="for evaluation.json and confusion.png")


def run(options: argparse.Namespace) -> Answer:
    """Evaluates, and writes the files that were asked for."""
    probing = options.few_shot is not None
    if not probing:
        for name in ("seeds", "l2"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} is about the probe of --few-shot, which was not asked for.")
    start_keras()
    from rich.console import Group

    from keras_vit import evaluation
    from keras_vit.zoo import load

    if options.output and not probing:
        evaluation.need_matplotlib()  # better now than after all the work
    model = load(options.weights)
    if options.image_size is not None:
        model = model.with_image_size(options.image_size)
    common = {"preprocess": True, "batch_size": options.batch_size}
    with contextlib.ExitStack() as stack:
        test, names = _labelled(options, model, "test", stack)
        if probing:
            shots = options.few_shot or evaluation.SHOTS
            l2 = evaluation.L2 if options.l2 is None else options.l2
            seeds = 3 if options.seeds is None else options.seeds
            train, _ = _labelled(options, model, "train", stack)
            result = evaluation.few_shot(model, train, test, shots=shots, l2=l2, seeds=seeds, **common)
        else:
            if names is not None and model.config.classes not in (None, len(names)):
                raise ValueError(
                    f"{options.weights} tells {model.config.classes} classes apart, but {options.data} has "
                    f"{len(names)}: fine-tune it on these first, or probe its features with --few-shot."
                )
            result = evaluation.evaluate(model, test, class_names=names, **common)
    if options.output:
        evaluation.write_files(result, options.output)
    return Answer(result.to_dict(), result if probing else Group(result, result.class_table(worst=10)))


def _labelled(options: argparse.Namespace, model: Any, split: str, stack: contextlib.ExitStack) -> tuple[Any, Any]:
    """The images of a split in order, once, with the names of their classes."""
    if options.data == "digits" and not os.path.exists("digits"):
        from keras_vit.demo.digits import load_digits

        digits = load_digits()[split == "test"]
        return (digits.pixels, digits.labels), list("0123456789")
    from keras_vit.data import as_dataset, open_data

    folder = os.path.join(options.data, "train") if split == "train" else options.data
    # As test data: training data comes without end, and in another order.
    stream = open_data(
        folder,
        image_size=model.config.image_size,
        batch_size=options.batch_size,
        split="test",
        on_bad_image=options.on_bad_image,
    )
    stack.callback(stream.close)
    return as_dataset(stream, range(stream.steps_per_epoch)), stream.class_names
