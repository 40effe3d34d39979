"""What commands have in common: `Command`, its result, and options, written out or derived from a function."""

import argparse
import importlib
import inspect
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_vit.cli.modes import refuse_unused

if TYPE_CHECKING:
    from rich.console import RenderableType


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


class Option(NamedTuple):
    """What `ArgumentParser.add_argument` is called with, and the title in the help that the argument stands under."""

    flags: tuple[str, ...]
    settings: dict[str, Any]
    group: str = ""

    @property
    def name(self) -> str:
        """What the values of a command line call it."""
        return self.settings.get("dest", self.flags[-1].strip("-").replace("-", "_"))

    @property
    def default(self) -> Any:
        """Its value where it is not given."""
        return self.settings.get("default", False if self.settings.get("action") == "store_true" else None)


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
        """All its options."""
        return list(_flat(self.declared))

    def check(self, name: str, values: Mapping[str, Any]) -> None:
        """Raises ValueError if an option was given that does not apply to what the command line asks for."""
        defaults = {option.name: option.default for option in self.options()}
        refuse_unused(name, {key for key in defaults if values[key] != defaults[key]}, values)


def command(
    help: str, *options: Options, examples: tuple[str, ...]
) -> Callable[[Callable[[argparse.Namespace], Result]], Command]:
    """Makes a `Command` of a function from the values of options to a result."""
    return lambda run: Command(help, options, examples, run)


def _flat(options: Iterable[Options]) -> Iterator[Option]:
    """Yields the options, and those that functions among them return."""
    for one in options:
        if isinstance(one, Option):
            yield one
        else:
            yield from one()


def option(flag: str, help: str = "", *, short: str = "", **settings: Any) -> Option:
    """An argument, with settings as in `ArgumentParser.add_argument`; its default is shown."""
    if settings.get("default") not in (None, []):
        help = f"{help} (default: {settings['default']})".strip()
    reader = settings.get("type")
    if flag.startswith("-") and reader in _METAVARS and "metavar" not in settings:
        settings["metavar"] = _METAVARS[reader]
    return Option((short, flag) if short else (flag,), {"help": help, **settings})


def switch(flag: str, help: str, **settings: Any) -> Option:
    """An option without a value."""
    return Option((flag,), {"help": help, "action": "store_true", **settings})


def group(title: str, *options: Options) -> Callable[[], Iterable[Option]]:
    """Options that the help lists under a title."""
    return lambda: (one._replace(group=title) for one in _flat(options))


def derived(
    source: str, names: str = "", default: Callable[[str], str] | None = None, **helps: str
) -> Callable[[], Iterable[Option]]:
    """A function that returns the options for parameters of a function, fields of a dataclass or keys of a TypedDict.

    `source` is `module:name`, `names` chooses some. Types, defaults and help come from its signature and the `Args:` of
    its docstring; `helps` says some in other words. An option that is not given is None.

    Args:
        source: Where it is, as "module:name".
        names: Of the parameters; empty for all.
        default: Returns what the help says of a parameter's default; None for the function's own.
        helps: Texts in place of the docstring's.
    """

    def options() -> Iterator[Option]:
        module, _, name = source.partition(":")
        found = getattr(importlib.import_module(module), name)
        for parameter, kind, documented in _parameters(found):
            if names and parameter.name not in names.split():
                continue
            text, _, shown = helps.get(parameter.name, documented).partition("; None for ")
            text = text.partition("; None ")[0].replace("%", "%%")
            if default is not None:
                shown = default(parameter.name)
            elif parameter.default not in (None, inspect.Parameter.empty, False):
                shown = str(parameter.default)
            settings = {
                "help": f"{text} (default: {shown})" if shown else text,
                **_READERS.get(_without_none(kind), {}),
            }
            if parameter.default is inspect.Parameter.empty:
                yield Option((parameter.name,), {**settings, "metavar": parameter.name.upper()})
            else:
                yield Option((f"--{parameter.name.replace('_', '-')}",), settings)

    return options


def _parameters(source: Any) -> Iterator[tuple[inspect.Parameter, Any, str]]:
    """The parameters of a function or dataclass, or the keys of a TypedDict, each with its type and its description.

    Those of an `Unpack`ed TypedDict stand among them like any others.
    """
    # Types of Keras stand there as text, for type checkers; Keras is not imported for them.
    hints = typing.get_type_hints(source, localns={"keras": types.SimpleNamespace(DTypePolicy=str)})
    texts = _documented(source)
    if typing.is_typeddict(source):
        for name, kind in hints.items():
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None), kind, texts.get(name, "")
        return
    for name, parameter in inspect.signature(source).parameters.items():
        if typing.get_origin(hints[name]) is typing.Unpack:
            yield from _parameters(typing.get_args(hints[name])[0])
        else:
            yield parameter, hints[name], texts.get(name, "")


def _documented(source: Any) -> dict[str, str]:
    """What a docstring says of each parameter under `Args:` or `Attributes:`: the first sentence, as a help says it."""
    found = re.findall(r"^    (\w+): ((?:.|\n {5,})*)", inspect.getdoc(source) or "", re.MULTILINE)
    return {name: _as_help(" ".join(text.split())) for name, text in found}


def _as_help(text: str) -> str:
    """The first sentence of a description as a help says it: without quotes, beginning with a small letter."""
    text = text.replace("`", "").replace('"', "").replace(". None for ", "; None for ")
    text = re.split(r"\.(?: (?=[A-Z0-9])|$)", text)[0].removeprefix("Whether ")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def whole(least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` on, as argparse wants it: its errors become messages about the option."""

    def number(text: str) -> int:
        value = int(_number(int, text, "a whole number"))
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, but {value} was given")
        return value

    return number


COUNT = whole(1)
COUNT_OR_0 = whole(0)


def at_least_0(text: str) -> float:
    """The finite number of at least 0 that a text says; argparse's error otherwise."""
    number = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, but {text} was given")
    return number


def image_size(text: str) -> int | tuple[int, int]:
    """The image size that a text says, `384`, or `384x512` for height and width; argparse's error otherwise."""
    height, cross, width = text.partition("x")
    return (COUNT(height), COUNT(width)) if cross else COUNT(height)


def _number(kind: type, text: str, name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {name}, but {text!r} was given") from None


def _count_or_share(text: str) -> float:
    return COUNT_OR_0(text) if text.isdecimal() else at_least_0(text)


def _without_none(kind: Any) -> Any:
    """A type without None, where that is a part of it."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return reduce(operator.or_, [one for one in typing.get_args(kind) if one is not type(None)])


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
