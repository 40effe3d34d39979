"""`keras-vit`: a thin face over the package for the terminal.

Exit codes: 0 done, 1 the job failed (the reason is one line on standard error), 2 wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

DESCRIPTION = "Vision Transformers in Keras 3: list, inspect, download, convert and use checkpoints."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        result, text = options.run(options)
        if options.json:
            print(json.dumps(result, indent=2))
        elif text is not None:
            _console().print(text)
    except KeyboardInterrupt:
        print("keras-vit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        print(f"keras-vit: {_first_words(error)}", file=sys.stderr)
        return 1
    return 0 if not isinstance(result, dict) or result.get("ok", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keras-vit", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., Any], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--json", action="store_true", help="print JSON instead of a table")
        sub.set_defaults(run=run)
        return sub

    listing = command("list", _list, "The published checkpoints, or with --models the variants.")
    listing.add_argument("query", nargs="?", help="a variant such as B/16, or part of a name")
    listing.add_argument("--models", action="store_true", help="list the variants instead of checkpoints")

    info = command("info", _info, "What a checkpoint file, or a name of the catalogue, is.")
    info.add_argument("what", metavar="FILE|NAME")

    download = command("download", _download, "Fetches a checkpoint into the cache and prints where it is.")
    download.add_argument("name", metavar="NAME|URL")

    predict = command("predict", _predict, "Classifies images.")
    predict.add_argument("images", nargs="+", metavar="IMAGE")
    predict.add_argument(
        "--weights", default="ViT-B/16", help="a file, a name of the catalogue, or a variant (default: %(default)s)"
    )
    predict.add_argument("--top", type=int, default=5, help="how many classes to show (default: %(default)s)")

    convert = command("convert", _convert, "Converts between .npz layouts, .keras and .weights.h5, both ways.")
    convert.add_argument("source", metavar="IN")
    convert.add_argument("target", metavar="OUT")
    convert.add_argument("--layout", help="of an .npz that is written: vit_jax, big_vision, bit_tf or bit_bv")
    convert.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")

    finetune = command("finetune", _finetune, "Fine-tunes a checkpoint on images of your own, as in the paper.")
    finetune.add_argument("weights", metavar="WEIGHTS", help="a file, a name of the catalogue, or a variant")
    finetune.add_argument("data", metavar="DATA", help="a folder with train/ and test/, or tfds:NAME")
    finetune.add_argument("--recipe", default="finetune/cifar10", help="see `keras-vit recipes` (default: %(default)s)")
    finetune.add_argument("--output", default="runs/finetune", help="folder of the run (default: %(default)s)")
    finetune.add_argument("--steps", type=int, help="updates of the weights (default: the recipe's)")
    finetune.add_argument("--batch-size", type=int, help="images per update (default: the recipe's)")
    finetune.add_argument("--learning-rate", type=float, help="(default: the recipe's)")
    finetune.add_argument("--warmup-steps", type=int, help="(default: the recipe's)")
    finetune.add_argument("--image-size", type=int, help="pixels (default: the recipe's)")
    finetune.add_argument("--crop", help="inception, random or resize (default: the recipe's)")
    finetune.add_argument(
        "--no-flip",
        action="store_false",
        default=None,
        dest="flip",
        help="mirror no images (digits, text)",
    )
    finetune.add_argument("--mixup", type=float, metavar="P", help="0 for none (default: the recipe's)")
    finetune.add_argument("--randaugment", type=int, nargs=2, metavar=("LAYERS", "MAGNITUDE"), help="for example 2 15")
    finetune.add_argument("--every", type=int, help="updates between two evaluations and checkpoints")
    finetune.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    finetune.add_argument("--dtype", help="for example mixed_bfloat16")
    finetune.add_argument("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    finetune.add_argument("--restart", action="store_true", help="start again instead of going on with OUTPUT")

    evaluate = command(
        "evaluate", _evaluate, "Measures accuracy on labelled images, or how well a few-shot probe does."
    )
    evaluate.add_argument("weights", metavar="WEIGHTS", help="a file, a name of the catalogue, or a variant")
    evaluate.add_argument(
        "data", metavar="DATA", help="a folder with train/ and test/, or with one folder per class; or `digits`"
    )
    evaluate.add_argument(
        "--few-shot", nargs="*", type=int, metavar="SHOTS", help="probe the features instead (default: 1 5 10 25)"
    )
    evaluate.add_argument("--seeds", type=int, default=3, help="draws of the shots (default: %(default)s)")
    evaluate.add_argument("--l2", type=float, help="strength of the probe's regularisation (default: 1024)")
    evaluate.add_argument("--image-size", type=int, help="pixels (default: the checkpoint's)")
    evaluate.add_argument("--batch-size", type=int, default=64, help="(default: %(default)s)")
    evaluate.add_argument("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    evaluate.add_argument("--output", metavar="FOLDER", help="for evaluation.json and confusion.png")

    recipes = command("recipes", _recipes, "The papers' recipes.")
    recipes.add_argument("query", nargs="?", help="part of a name")

    from keras_vit.export import command as exporting

    exporting.add_arguments(command("export", exporting.run, "Writes a file that runs without Keras, and checks it."))

    demo = command("demo", _demo, "Fine-tunes the checkpoint that comes along on real digits, without network.")
    demo.add_argument("--output", default="demo-output", help="folder for its files (default: %(default)s)")
    return parser


def _list(options: argparse.Namespace) -> tuple[Any, Any]:
    import keras_vit

    rows = keras_vit.list_models(options.query) if options.models else keras_vit.list_weights(options.query)
    return list(rows), rows


def _info(options: argparse.Namespace) -> tuple[Any, Any]:
    import keras_vit

    if os.path.exists(options.what):
        info = keras_vit.inspect_checkpoint(options.what).to_dict()
        config = info.pop("config")
        pairs = {**info, **{key: value for key, value in config.items() if value is not None}}
        return {**info, "config": config}, _pairs(options.what, pairs)
    (row, *others) = keras_vit.list_weights(options.what)
    return (row, _pairs(row["name"], row)) if not others else ([row, *others], keras_vit.list_weights(options.what))


def _download(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit.checkpoints import find_checkpoint

    path = find_checkpoint(options.name)
    return {"path": str(path), "bytes": path.stat().st_size}, str(path)


def _predict(options: argparse.Namespace) -> tuple[Any, Any]:
    import keras
    import numpy as np
    from rich.table import Table

    import keras_vit
    from keras_vit.zoo import load_any

    # All images are read before anything that takes long.
    pictures = [keras_vit.load_image(path) for path in options.images]
    model = load_any(options.weights, classifier_activation="softmax")
    images = np.concatenate([model.preprocess(picture) for picture in pictures])
    answers = model.predict(images, verbose=0)
    if model.config.classifier_activation is None:  # a file may hold a model with logits
        answers = keras.ops.convert_to_numpy(keras.ops.softmax(answers))
    names = keras_vit.class_names(options.weights)
    decoded = keras_vit.decode_predictions(answers, top=min(options.top, answers.shape[-1]), class_names=names)
    table = Table("image", "class", "probability")
    result = []
    for path, classes in zip(options.images, decoded, strict=True):
        result.append({"image": path, "classes": [_class(*entry) for entry in classes]})
        for place, (_, name, probability) in enumerate(classes):
            table.add_row("" if place else path, name, f"{100 * probability:.1f} %")
    return result, table


def _class(identifier: str, name: str, probability: float) -> dict[str, Any]:
    return {"id": identifier, "name": name, "probability": float(probability)}


def _convert(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit.checkpoints import save_model
    from keras_vit.zoo import load_any

    model = load_any(options.source)
    save_model(model, options.target, layout=options.layout, overwrite=options.overwrite)
    size = os.path.getsize(options.target)
    return {"path": options.target, "bytes": size}, f"Wrote {options.target} ({size / 1e6:.1f} MB)"


def _finetune(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit import training

    names = ("steps", "batch_size", "learning_rate", "warmup_steps", "image_size", "every", "seed", "dtype")
    changes = {name: getattr(options, name) for name in ("crop", "flip", "mixup", "randaugment")}
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe: Any = options.recipe
    if changes:
        recipe = training.recipe(recipe)
        recipe = recipe.replace(augmentation=dataclasses.replace(recipe.augmentation, **changes))
    done = training.finetune(
        options.weights,
        options.data,
        recipe,
        output=options.output,
        on_bad_image=options.on_bad_image,
        resume=not options.restart,
        **{name: getattr(options, name) for name in names},
    )
    left_out = "".join(f"\nLeft out: {image.path}: {image.reason}" for image in done.bad_images)
    return done.to_dict(), f"{done.log}\n{left_out}\nWrote {done.output}"


def _evaluate(options: argparse.Namespace) -> tuple[Any, Any]:
    from rich.console import Group

    from keras_vit import evaluation
    from keras_vit.zoo import load_any

    probing = options.few_shot is not None
    if options.output and not probing:
        evaluation.need_matplotlib()  # better now than after all the work
    model = load_any(options.weights)
    if options.image_size:
        model = model.with_image_size(options.image_size)
    common = {"preprocess": True, "batch_size": options.batch_size}
    with contextlib.ExitStack() as stack:
        test, names = _labelled(options, model, "test", stack)
        if probing:
            shots, l2 = options.few_shot or evaluation.SHOTS, options.l2 or evaluation.L2
            train, _ = _labelled(options, model, "train", stack)
            result = evaluation.few_shot(model, train, test, shots=shots, l2=l2, seeds=options.seeds, **common)
        else:
            if names is not None and model.config.classes not in (None, len(names)):
                raise ValueError(
                    f"{options.weights} tells {model.config.classes} classes apart, but {options.data} has "
                    f"{len(names)}: fine-tune it on these first, or probe its features with --few-shot."
                )
            result = evaluation.evaluate(model, test, class_names=names, **common)
    if options.output:
        evaluation.write_files(result, options.output)
    return result.to_dict(), result if probing else Group(result, result.class_table(worst=10))


def _labelled(options: argparse.Namespace, model: Any, split: str, stack: contextlib.ExitStack) -> tuple[Any, Any]:
    """The images of a split in order, once, with the names of their classes."""
    if options.data == "digits" and not os.path.exists("digits"):
        from keras_vit.demo.digits import load_digits

        digits = load_digits()[split == "test"]
        return (digits.pixels, digits.labels), list("0123456789")
    from keras_vit.training import as_dataset, open_data

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


def _recipes(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit import training

    rows = training.list_recipes(options.query)
    return list(rows), rows


def _demo(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit import demo

    code = demo.main(["--output", options.output])
    return {"ok": code == 0, "output": options.output}, None


def _pairs(title: str, pairs: dict[str, Any]) -> Any:
    """A table of two columns."""
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left")
    for key, value in pairs.items():
        if value not in (None, [], ""):
            lines = "\n".join(map(str, value)) if isinstance(value, list) and len(str(value)) > 60 else str(value)
            table.add_row(key.replace("_", " "), lines)
    return table


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


def _first_words(error: Exception) -> str:
    """The message of an error without the arguments that Keras appends to it."""
    text = str(error).partition("\n\nArguments received by")[0].strip()
    return text or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
