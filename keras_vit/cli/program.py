"""The program: what a command and its options are, which options apply to what, its output, errors and exit codes.

Exit codes. 0: done. 1: the job failed; the reason is on standard error. 2: wrong usage. 130: interrupted.
"""

import argparse
import contextlib
import importlib
import inspect
import json
import math
import operator
import os
import re
import sys
import textwrap
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import keras_vit
from keras_vit._arguments import did_you_mean, printable, require_packages
from keras_vit._terminal import terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like
DESCRIPTION = "Vision Transformers in Keras 3: name, fine-tune, measure, search, export."
EPILOG = f"""examples:
  keras-vit predict photo.jpg --weights glyphs
  keras-vit finetune ViT-B/16 photos --output runs/photos

`keras-vit COMMAND --help` has its options. {TRACEBACK}=1 shows where an
error came from. Completion in bash, zsh and fish: pip install argcomplete, and
eval "$(register-python-argcomplete keras-vit)"; in fish
register-python-argcomplete --shell fish keras-vit | source"""
_WIDTH = 78


# Commands and their options


@dataclass(frozen=True)
class Result:
    """What a command found or did.

    Attributes:
        data: Plain data, for `--json`.
        output: Text or a table for the terminal; None where the command has printed everything itself.
        ok: False where the job failed though nothing was raised; the exit code is then 1.
    """

    data: Any
    output: "str | RenderableType | None"
    ok: bool = True


class Place(NamedTuple):
    """Where options apply: what a command line has to ask for, in words, and whether its values do."""

    words: str
    asked: Callable[[Mapping[str, Any]], bool]


class Option(NamedTuple):
    """What `ArgumentParser.add_argument` is called with, the title in the help that it stands under, and its places."""

    flags: tuple[str, ...]
    settings: dict[str, Any]
    group: str = ""
    places: tuple[Place, ...] = ()

    @property
    def name(self) -> str:
        """Returns the attribute of argparse's namespace that has the value: `batch_size` for `--batch-size`."""
        return self.settings.get("dest", self.flags[-1].strip("-").replace("-", "_"))


Options = Option | Callable[[], Iterable[Option]]  # a function where finding them out takes time


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        help: What it does, in a sentence.
        declared: Its options, and functions that return some.
        examples: Command lines, without `keras-vit` and the command's name.
        run: Does the job. It calls `start_keras` once everything is checked that can be checked without.
    """

    help: str
    declared: tuple[Options, ...]
    examples: tuple[str, ...]
    run: Callable[[argparse.Namespace], Result]

    def options(self) -> list[Option]:
        """Returns all options, those of the functions in `declared` among them."""
        return list(_flat(self.declared))

    def flags(self) -> list[str]:
        """Returns the long flags, such as `--top`; arguments without a flag have none."""
        return [option.flags[-1] for option in self.options() if option.flags[-1].startswith("-")]


def command(
    help: str, *options: Options, examples: tuple[str, ...]
) -> Callable[[Callable[[argparse.Namespace], Result]], Command]:
    """Returns a decorator that makes a `Command` of a function from argparse's namespace to a `Result`."""
    return lambda run: Command(help, options, examples, run)


def _flat(options: Iterable[Options]) -> Iterator[Option]:
    """Yields the options, and those that functions among them return."""
    for one in options:
        if isinstance(one, Option):
            yield one
        else:
            yield from one()


def option(flag: str, help: str = "", *, short: str = "", **settings: Any) -> Option:
    """Returns an argument, with settings as in `ArgumentParser.add_argument`; the help ends with its default."""
    if settings.get("default") not in (None, []):
        help = f"{help} (default: {settings['default']})".strip()
    reader = settings.get("type")
    if flag.startswith("-") and reader in _METAVARS:
        settings.setdefault("metavar", _METAVARS[reader])
    return Option((short, flag) if short else (flag,), {"help": help, **settings})


def switch(flag: str, help: str, **settings: Any) -> Option:
    """Returns an option without a value, which is False, or `default`, where it is not given."""
    return Option((flag,), {"help": help, "action": "store_true", **settings})


def group(title: str, *options: Options) -> Callable[[], Iterable[Option]]:
    """Returns a function that returns the options, for the help to list under a title."""
    return lambda: (one._replace(group=title) for one in _flat(options))


def only(places: Sequence[Place], *options: Options) -> Callable[[], Iterable[Option]]:
    """Returns a function that returns the options, which are refused unless a command line asks for all the places."""
    return lambda: (one._replace(places=(*one.places, *places)) for one in _flat(options))


TABLE_ENDINGS = (".csv", ".tsv", ".parquet")


def kind_of_data(data: str) -> str:
    """Returns what DATA is: `"tables"`, `"digits"`, or `"folders"`, also for data sets of tensorflow-datasets."""
    if Path(data).suffix.lower() in TABLE_ENDINGS:
        return "tables"
    return "digits" if data == "digits" and not os.path.exists(data) else "folders"


def beside(name: str) -> Place:
    """Returns the place where another option is given."""
    return Place(f"--{name.replace('_', '-')}", lambda values: _is_given(values[name]))


def without(name: str) -> Place:
    """Returns the place where another option is not given."""
    return Place(f"runs without --{name.replace('_', '-')}", lambda values: not _is_given(values[name]))


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


CLASSES = Place("--task classification", lambda values: values["task"] == "classification")
MASKS = Place("--task segmentation", lambda values: values["task"] == "segmentation")
ANNOTATED = Place(
    "--task detection or --recipe segmentation/eomt_...",
    lambda values: values["task"] == "detection" or "/eomt" in (values.get("recipe") or "").lower(),
)
TABLES = Place("tables", lambda values: kind_of_data(values["data"]) == "tables")


def derived(
    source: str, names: str = "", default: Callable[[str], str] | None = None, **helps: str
) -> Callable[[], Iterable[Option]]:
    """Returns a function that yields options for parameters of a function, fields of a dataclass or of a TypedDict.

    Types, defaults and help come from the signature and the `Args:` or `Attributes:` of the docstring. A parameter
    without a default becomes an argument without a flag; an option that is not given is None. `source` is imported
    when the function is called.

    Args:
        source: Where it is, as "module:name".
        names: Which of the parameters, with spaces between them; empty for all.
        default: Returns what the help says of a parameter's default; None for the function's own.
        helps: Texts in place of the docstring's.
    """

    def options() -> Iterator[Option]:
        module, _, name = source.partition(":")
        for parameter, kind, documented in _parameters(getattr(importlib.import_module(module), name)):
            if names and parameter.name not in names.split():
                continue
            text, _, shown = helps.get(parameter.name, documented).partition("; None for ")
            text = text.partition("; None ")[0].replace("%", "%%")
            if default is not None:
                shown = default(parameter.name)
            elif parameter.default not in (None, inspect.Parameter.empty, False):
                shown = str(parameter.default)
            settings = {"help": f"{text} (default: {shown})" if shown else text, **_READERS.get(kind, {})}
            if parameter.default is inspect.Parameter.empty:
                yield Option((parameter.name,), {**settings, "metavar": parameter.name.upper()})
            else:
                yield Option((f"--{parameter.name.replace('_', '-')}",), settings)

    return options


def _parameters(source: Any) -> Iterator[tuple[inspect.Parameter, Any, str]]:
    """Yields each parameter of a function or dataclass, or key of a TypedDict, with its type and its help."""
    # Types of Keras stand there as text, for type checkers; Keras is not imported for them.
    hints = typing.get_type_hints(source, localns={"keras": types.SimpleNamespace(DTypePolicy=str)})
    kinds = {name: _without_none(kind) for name, kind in hints.items()}
    texts = _documented(source)
    if typing.is_typeddict(source):
        for name, kind in kinds.items():
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None), kind, texts.get(name, "")
        return
    for name, parameter in inspect.signature(source).parameters.items():
        if typing.get_origin(kinds[name]) is typing.Unpack:
            yield from _parameters(typing.get_args(kinds[name])[0])
        else:
            yield parameter, kinds[name], texts.get(name, "")


def _without_none(kind: Any) -> Any:
    """Returns a type without None, where that is a part of it."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return reduce(operator.or_, [one for one in typing.get_args(kind) if one is not type(None)])


def _documented(source: Any) -> dict[str, str]:
    """Returns, by name, what a docstring says under `Args:` or `Attributes:`, as a help says it.

    That is the first sentence, without quotes and "Whether", beginning with a small letter unless an abbreviation does.
    A sentence `None for ...` stays, behind a semicolon.
    """
    texts = {}
    for name, text in re.findall(r"^    (\w+): ((?:.|\n {5,})*)", inspect.getdoc(source) or "", re.MULTILINE):
        text = " ".join(text.split()).replace("`", "").replace('"', "").replace(". None for ", "; None for ")
        text = re.split(r"\.(?: (?=[A-Z0-9])|$)", text)[0].removeprefix("Whether ")
        texts[name] = text if text[1:2].isupper() else text[:1].lower() + text[1:]
    return texts


# Readers of values: what argparse calls with the text. Their errors become messages about the option.


def whole(least: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers from `least` on, which raises argparse's ArgumentTypeError for other text."""

    def number(text: str) -> int:
        value = int(_number(int, text, "a whole number"))
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, but {value} was given")
        return value

    return number


COUNT = whole(1)
COUNT_OR_0 = whole(0)


def at_least_0(text: str) -> float:
    """Returns the finite number of at least 0 that a text says; raises argparse's ArgumentTypeError otherwise."""
    number = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, but {text} was given")
    return number


def image_size(text: str) -> int | tuple[int, int]:
    """Returns the size that a text says: `384` as a number, `384x512` as (height, width)."""
    height, cross, width = text.partition("x")
    return (COUNT(height), COUNT(width)) if cross else COUNT(height)


def word_or(word: str, reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a reader that leaves one word as it is, and calls another reader with all other text."""
    return lambda text: word if text == word else reader(text)


ANY_SIZE, METRES = word_or("dynamic", image_size), word_or("relative", at_least_0)
ANY_NUMBER = word_or("any", COUNT)


def _count_or_share(text: str) -> float:
    """Returns a whole number for digits alone, otherwise what `at_least_0` returns or raises."""
    return COUNT_OR_0(text) if text.isdecimal() else at_least_0(text)


def _number(kind: type, text: str, name: str) -> float:
    """Returns `kind(text)`; raises argparse's ArgumentTypeError, which says that it must be `name`, if that fails."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {name}, but {text!r} was given") from None


_METAVARS: dict[Any, str] = {COUNT: "N", COUNT_OR_0: "N", at_least_0: "X", image_size: "N|HxW"}
# How argparse reads values of a type; text in all other cases.
_READERS: dict[Any, dict[str, Any]] = {
    bool: {"action": "store_const", "const": True},
    int: {"type": COUNT, "metavar": "N"},
    float: {"type": at_least_0, "metavar": "X"},
    int | float: {"type": _count_or_share, "metavar": "N"},
    int | tuple[int, int]: {"type": image_size, "metavar": "N|HxW"},
    tuple[int, int]: {"type": int, "nargs": 2, "metavar": ("N", "M")},
}


# The run of a command


def run_program(commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Returns the exit code of the command that the arguments name; its result or its error is printed."""
    command = None
    try:
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what could come next
            _complete(commands, os.environ["COMP_LINE"].split()[1:])
        options, unknown = make_parser(commands, arguments).parse_known_args(arguments)
        command = commands[options.command]
        if unknown:
            hint = did_you_mean(unknown[0], {flag: flag for flag in command.flags()})
            words = f"there is no argument {' '.join(unknown)!r}."
            options.parser.error(f"{words}{hint}" if unknown[0].startswith("-") else words)
        for option in command.options():
            for place in option.places if _is_given(getattr(options, option.name)) else ():
                if not place.asked(vars(options)):
                    raise ValueError(f"{option.flags[-1]} is for {place.words}: leave it out.")
        with _own_warnings():
            result = command.run(options)
            processes = sys.modules.get("keras_vit._processes")
            if processes is None or processes.current().first:
                _print(result, options.json)
                sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads the output has closed it, as `head` does: no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if _has_interrupt(error):
            _complain("interrupted")
            return 130
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        _complain(_message(error, command))
        return 1
    return 0 if result.ok else 1


def _complete(commands: Mapping[str, Command], words: Sequence[str]) -> None:
    """Prints completions of a command line for the shell, as argcomplete prescribes, and ends the program."""
    require_packages("Completion", ("argcomplete",), "completion")
    import argcomplete

    argcomplete.autocomplete(make_parser(commands, [word for word in words if word in commands][:1]))


def make_parser(commands: Mapping[str, Command], arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the parser with all commands, of which only the one that is going to run has its arguments."""
    parser = argparse.ArgumentParser(
        prog="keras-vit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {keras_vit.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    if chosen is not None and chosen not in commands:
        hint = did_you_mean(chosen, {name: name for name in commands})
        parser.error(f"there is no command {chosen!r}.{hint} `keras-vit --help` shows all")
    for name, command in commands.items():
        sub = subparsers.add_parser(
            name,
            help=command.help,
            description=textwrap.fill(command.help, _WIDTH),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            sub.add_argument("--json", action="store_true", help="print JSON instead of a table")
            sub.usage = _add_options(sub, command.options())
            sub.set_defaults(parser=sub)
            wrapper = textwrap.TextWrapper(_WIDTH - 4, break_long_words=False, break_on_hyphens=False)
            lines = (wrapper.wrap(f"keras-vit {name} {example}") for example in command.examples)
            sub.epilog = "examples:" + "".join("\n  " + " \\\n      ".join(line) for line in lines)
    return parser


def _add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> str:
    """Adds the options of a command to a parser; returns its usage, which names those that have to be given."""
    groups: dict[str, Any] = {}
    usage = f"{parser.prog} [options]"
    for option in options:
        if option.group and option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        added = groups.get(option.group, parser).add_argument(*option.flags, **option.settings)
        if added.required and added.option_strings:
            usage += f" {option.flags[0]} {added.metavar}"
        elif not added.option_strings:
            usage += {"?": f" [{added.metavar}]", "+": f" {added.metavar} ..."}.get(added.nargs, f" {added.metavar}")
    return usage


def _print(result: Result, as_json: bool) -> None:
    """Prints a result on standard output, as wide as the terminal or `COLUMNS` says."""
    if as_json:
        print(json.dumps(result.data, indent=2))
    elif isinstance(result.output, str):
        print(result.output)
    elif result.output is not None:
        from rich.console import Console

        class Raising(Console):
            """A console that leaves a closed output to its caller; rich's ends the program with 1."""

            def on_broken_pipe(self) -> None:
                raise

        Raising(width=terminal_width()).print(result.output)


# Warnings and errors


@contextlib.contextmanager
def _own_warnings() -> Iterator[None]:
    """Within it, warnings of this package are printed as a line each, and those of other packages left out."""
    package = str(Path(__file__).parents[1])

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if filename.startswith(package) and issubclass(category, UserWarning):
            _complain(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # ty: ignore[invalid-assignment]
        yield


def _complain(text: str) -> None:
    """Prints a message on standard error, safe for a terminal whatever names are in it."""
    print("keras-vit: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def _has_interrupt(error: BaseException | None) -> bool:
    """Returns whether a job was interrupted: libraries turn an interrupt of their import into errors of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _message(error: BaseException, command: Command | None) -> str:
    """Returns the text to print for an error: its message without the arguments that Keras appends to it."""
    # A field of `DownloadError`, whose class takes long to import.
    if getattr(error, "unreachable", False) and not os.environ.get(TRACEBACK):
        where, reason = error.attempts[0]  # ty: ignore[missing-attribute]
        hint = " Is there a network? Without one there is `--weights glyphs`, which comes along."
        has_weights = command is not None and "--weights" in command.flags()
        return f"{where} {reason}.{hint if has_weights else ''}"
    text = str(error).partition("\n\nArguments received by")[0].strip()
    expected = isinstance(error, (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError))
    if text and (expected or type(error).__module__.startswith("keras_vit")):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
