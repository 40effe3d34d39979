"""`keras-vit`: a thin face over the package for the terminal.

Exit codes: 0 done, 1 the job failed (the reason is one line on standard error), 2 wrong usage, 130 interrupted.
"""

import argparse
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
        _choose_backend()
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
    import numpy as np
    from rich.table import Table

    import keras_vit
    from keras_vit.zoo import load_any

    # All images are read before anything that takes long.
    pictures = [keras_vit.load_image(path) for path in options.images]
    if _is_variant(options.weights):
        model = keras_vit.create_model(options.weights, pretrained=True)
    else:
        model = load_any(options.weights, classifier_activation="softmax")
    images = np.concatenate([model.preprocess(picture) for picture in pictures])
    decoded = keras_vit.decode_predictions(
        model.predict(images, verbose=0), top=options.top, class_names=keras_vit.class_names(options.weights)
    )
    table = Table("image", "class", "probability")
    result = []
    for path, classes in zip(options.images, decoded, strict=True):
        result.append({"image": path, "classes": [_class(*entry) for entry in classes]})
        for place, (_, name, probability) in enumerate(classes):
            table.add_row("" if place else path, name, f"{100 * probability:.1f} %")
    return result, table


def _is_variant(name: str) -> bool:
    from keras_vit.models import find_variant

    try:
        find_variant(name)
    except ValueError:
        return False
    return not os.path.exists(name)


def _class(identifier: str, name: str, probability: float) -> dict[str, Any]:
    return {"id": identifier, "name": name, "probability": float(probability)}


def _convert(options: argparse.Namespace) -> tuple[Any, Any]:
    from keras_vit.checkpoints import save_model
    from keras_vit.zoo import load_any

    model = load_any(options.source)
    save_model(model, options.target, layout=options.layout, overwrite=options.overwrite)
    size = os.path.getsize(options.target)
    return {"path": options.target, "bytes": size}, f"Wrote {options.target} ({size / 1e6:.1f} MB)"


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


def _choose_backend() -> None:
    """Without a choice of the user's, takes a backend that is installed; Keras would insist on TensorFlow."""
    import importlib.util
    import pathlib

    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    if "KERAS_BACKEND" in os.environ or (pathlib.Path(home) / "keras.json").exists():
        return
    installed = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError('no backend is installed; try: pip install "keras-vit[jax]" (or tensorflow, or torch)')
    os.environ["KERAS_BACKEND"] = installed[0]


def _first_words(error: Exception) -> str:
    """The message of an error without the arguments that Keras appends to it."""
    text = str(error).partition("\n\nArguments received by")[0].strip()
    return text or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
