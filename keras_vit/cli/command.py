"""What commands have in common: `Command`, its result, kinds of arguments, and checks that need no Keras."""

import argparse
import dataclasses
import faulthandler
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import printable
from keras_vit._backend import choose_backend
from keras_vit._lazy import IS_PROGRAM

if TYPE_CHECKING:
    from rich.console import RenderableType

TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like
# What Keras calls a dtype policy; without Keras, which would take seconds to be asked.
DTYPES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

# What `ArgumentParser.add_argument` is called with; beside that a `group` of the help, and under `only` to which modes
# of its command it applies: for each axis of the modes the values.
Option = tuple[tuple[str, ...], dict[str, Any]]
Mode = dict[str, str]  # what a command line asks for, such as {"task": "--task segmentation"}, in the words of messages
OF_CLASSES = {"task": ("--task classification",)}
OF_MASKS = {"task": ("--task segmentation",)}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command found or did.

    Attributes:
        data: Plain data, for `--json`.
        output: Text or a table for the terminal; None where the command has printed everything itself.
        ok: False where the job failed though nothing was raised; the exit code is then 1.
    """

    data: Any
    output: "str | RenderableType | None"
    ok: bool = True


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        help: What it does, in a sentence.
        options: Gives its arguments.
        examples: Command lines, without `keras-vit` and the command's name.
        run: Does the job. It calls `start_keras` once everything is checked that can be checked without.
        mode: What a command line asks for: options that do not apply to it are refused.
    """

    help: str
    options: Callable[[], Iterable[Option]]
    examples: tuple[str, ...]
    run: Callable[[argparse.Namespace], Answer]
    mode: Callable[[argparse.Namespace], Mode] = lambda options: {}

    def check(self, options: argparse.Namespace) -> None:
        """Raises ValueError if an option was given that does not apply to what the command line asks for."""
        mode = self.mode(options)
        for names, settings in self.options():
            flag = max(names, key=len)
            value = getattr(options, settings.get("dest", flag.strip("-").replace("-", "_")))
            if value == settings.get("default", False if settings.get("action") == "store_true" else None):
                continue
            for axis, allowed in settings.get("only", {}).items():
                if mode[axis] not in allowed:
                    raise ValueError(f"{flag} is for {' and '.join(allowed)}, not for {mode[axis]}: leave it out.")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds its arguments to a parser, whose usage names those that a command line cannot lack."""
        groups: dict[str, Any] = {}
        usage = [f"{parser.prog} [options]"]
        for names, settings in self.options():
            place = settings.get("metavar", names[0])
            if not names[0].startswith("-"):
                usage.append({"?": f"[{place}]", "+": f"{place} ..."}.get(settings.get("nargs"), place))
            elif settings.get("required"):
                usage.append(f"{names[0]} {place}")
            title = settings.get("group")
            if title is not None and title not in groups:
                groups[title] = parser.add_argument_group(title)
            added = {name: value for name, value in settings.items() if name not in ("group", "only")}
            groups.get(title, parser).add_argument(*names, **added)
        parser.usage = " ".join(usage)


def command(
    help: str,
    *options: Option | Callable[[], Iterable[Option]],
    examples: tuple[str, ...],
    mode: Callable[[argparse.Namespace], Mode] = lambda options: {},
) -> Callable[[Callable[[argparse.Namespace], Answer]], Command]:
    """Makes a function from options to an answer a `Command`; a function may give options that take time."""
    return lambda run: Command(help, lambda: flat(options), examples, run, mode)


def flat(options: Iterable[Option | Callable[[], Iterable[Option]]]) -> Iterator[Option]:
    """The options, and those that functions give."""
    for one in options:
        if isinstance(one, tuple):
            yield one
        else:
            yield from one()


def option(*names: str, **settings: Any) -> Option:
    """An argument of a command, as in `ArgumentParser.add_argument`; its default is shown."""
    if settings.get("default") not in (None, []):
        settings["help"] = f"{settings.get('help', '')} (default: %(default)s)".strip()
    return names, settings


def group(title: str, *options: Option | Callable[[], Iterable[Option]]) -> Callable[[], Iterable[Option]]:
    """Arguments that `--help` lists under a title of their own."""

    def titled() -> Iterable[Option]:
        for names, settings in flat(options):
            yield names, settings | {"group": title}

    return titled


def summary(wrote: str, *commands: Sequence[str]) -> str:
    """The end of a long command: what was written, and the commands that people go on with."""
    lines = (f"  keras-vit {shlex.join(map(printable, command))}" for command in commands)
    return "\n".join([wrote, *(["Next:"] if commands else []), *lines])


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options of these names, as arguments of a function that calls them the same."""
    return {name: getattr(options, name) for name in names}


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the options that were given: the others are None."""
    return {name: value for name, value in chosen(options, *names).items() if value is not None}


def whole(least: int) -> Callable[[str], int]:
    """A kind of argument: whole numbers from `least` on."""

    def number(text: str) -> int:
        value = int(_number(int, text, "a whole number"))
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, but {value} was given")
        return value

    return number


COUNT = whole(1)
COUNT_OR_0 = whole(0)


def at_least_0(text: str) -> float:
    """Finite numbers that are not negative."""
    number = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, but {text} was given")
    return number


def image_size(text: str) -> int | tuple[int, int]:
    """Image sizes in pixels: `384`, or `384x512` for height and width."""
    height, cross, width = text.partition("x")
    return (COUNT(height), COUNT(width)) if cross else COUNT(height)


def _number(kind: type, text: str, name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {name}, but {text!r} was given") from None


SOURCE = "a file, a folder, an address, a name of the catalogue, or a variant"
WEIGHTS = option("weights", metavar="WEIGHTS", help=SOURCE)
WEIGHTS_OPTION = option("--weights", default="ViT-B/16", help=SOURCE)
OVERWRITE = option("--overwrite", action="store_true", help="replace OUT if it exists")
DATA = "a folder with train/ and test/ or one folder per class, a table such as labels.csv, or tfds:NAME"
BATCH = 32  # pictures that are in memory at a time
TABLE = ("file", "label", "separator", "target")
TABLE_ENDINGS = (".csv", ".tsv", ".parquet")
ON_BAD_IMAGE = option("--on-bad-image", choices=("stop", "skip"), default="stop")


def check_source(source: str) -> None:
    """Raises the error of `load` where no model can be of that name, without Keras."""
    from keras_vit.checkpoints import resolve_source

    resolve_source(source)


def check_exists(*paths: str | None) -> None:
    """Raises FileNotFoundError if there is no file or folder at one of the paths that are not None."""
    for path in paths:
        if path is not None and not os.path.exists(path):
            raise FileNotFoundError(f"There is no file or folder {path}.")


def table_options() -> Iterable[Option]:
    """Those that say what a table of labels holds, for `labelled_data`."""
    only = {**OF_CLASSES, "data": ("tables",)}
    text = "of a table: the column of image files (default: file)"
    yield option("--file", metavar="COLUMN", help=text, only=only)
    text = "of a table: the column of labels, or several of 0 and 1, one for each class (default: label)"
    yield option("--label", metavar="COLUMN", nargs="+", help=text, only=only)
    text = "of a table: what stands between the labels of an image"
    yield option("--separator", metavar="TEXT", help=text, only=only)
    text = "of a table: what the labels are"
    yield option("--target", choices=("class", "multilabel", "number"), help=text, only=only)


def kind_of_data(data: str) -> str:
    """What DATA is: tables, digits, or folders and data sets of tensorflow-datasets."""
    if Path(data).suffix.lower() in TABLE_ENDINGS:
        return "tables"
    return "digits" if data == "digits" and not os.path.exists(data) else "folders"


def labelled_data(options: argparse.Namespace) -> Any:
    """DATA as `open_data` takes it; ValueError or FileNotFoundError if it cannot be read, without Keras."""
    columns = given(options, *TABLE)
    if kind_of_data(options.data) == "tables":
        from keras_vit.data.tables import open_table

        if len(columns.get("label", ())) == 1:
            columns["label"] = columns["label"][0]
        return open_table(options.data, **columns)
    if not options.data.startswith("tfds:"):
        from keras_vit.data.examples import split_folders

        if not os.path.isdir(options.data):
            what = "It is a file." if os.path.exists(options.data) else "There is no such folder."
            raise FileNotFoundError(
                f"DATA must be an image folder or tfds:NAME, but {options.data!r} was given. {what}"
            )
        split_folders(Path(options.data))
    return options.data


def picture_files(paths: Sequence[str]) -> list[str]:
    """The pictures of files and folders; an error names the first that is missing or no picture, without Keras."""
    from keras_vit.data import image_files
    from keras_vit.data.examples import good_files

    check_exists(*paths)
    files = [Path(file) for path in paths for file in (image_files(path) if os.path.isdir(path) else [path])]
    if not files:
        raise ValueError(f"There are no pictures in {', '.join(map(printable, paths))}.")
    good_files(files, "stop", "headers", lambda i: str(files[i]))
    return [str(file) for file in files]


def predicted(model: Any, files: Sequence[str]) -> Any:
    """What a model says of pictures, read some at a time, so that memory does not grow with their number."""
    import numpy as np

    parts = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
    return np.concatenate([model.predict(model.preprocess(part), verbose=0) for part in parts])


def check_target(path: str, overwrite: bool) -> None:
    """Raises FileExistsError if something would be replaced that may not be."""
    if not overwrite and (os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path))):
        raise FileExistsError(f"{path} exists. Choose another path or pass --overwrite.")


def start_keras() -> None:
    """Imports Keras and its framework, without their start-up lines, if that has not been done.

    Raises:
        ImportError, ValueError: if there is no framework, or `KERAS_BACKEND` names another one.
    """
    if "keras" in sys.modules:
        return
    choose_backend()
    if IS_PROGRAM and not os.environ.get(TRACEBACK):
        _silence_libraries()
    import keras  # noqa: F401


def _silence_libraries() -> None:
    """Lets only Python write to standard error from now on.

    Frameworks report what they miss at their start, and when they first compute; Keras starts TensorFlow late on the
    other backends, too. TensorFlow 2.21 does it whatever its log level is, past `sys.stderr`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # for worker processes
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)
    faulthandler.enable(sys.stderr)  # a library that ends the process cannot say so any more


def lines_of(path: str) -> list[str]:
    """The lines of a text file, without empty ones."""
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]
