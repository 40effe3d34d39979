"""The program: its commands, which cyclopts makes of typed functions, their output, errors and exit codes.

Exit codes. 0: done. 1: the job failed; the reason is on standard error. 2: wrong usage. 130: interrupted.
"""

import contextlib
import json
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

import keras_vit
from keras_vit._arguments import SKIP, printable
from keras_vit._options import FROM_0, SYNONYMS, Check, Options, Whole, check_of
from keras_vit._terminal import terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

Function = TypeVar("Function", bound=FunctionType)

TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like
EPILOG = f"""examples:
  keras-vit predict photo.jpg --weights glyphs
  keras-vit finetune ViT-B/16 photos --output runs/photos

`keras-vit COMMAND --help` has its options. With --json any command prints JSON
in place of a table. {TRACEBACK}=1 shows where an error came from."""
APP = App(
    name="keras-vit",
    help="Vision Transformers in Keras 3: name, fine-tune, measure, search, export.",
    help_epilogue=EPILOG,
    help_format="plaintext",
    version=f"keras-vit {keras_vit.__version__}",
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=lambda value: value or None),
    verbose=False,
)
APP.register_install_completion_command(help="Completes commands in bash, zsh or fish from now on.")


@dataclass(frozen=True)
class Result:
    """What a command found or did: plain data for `--json`, and text or a table for the terminal."""

    data: Any
    output: "str | RenderableType"


# What commands and their flags are declared with


def command(*examples: str) -> Callable[[Function], Function]:
    """Returns a decorator that makes a command of a function, with command lines without `keras-vit` and its name."""

    def add(function: Function) -> Function:
        name = function.__name__.strip("_")
        wrapper = textwrap.TextWrapper(74, break_long_words=False, break_on_hyphens=False)
        lines = (" \\\n      ".join(wrapper.wrap(f"keras-vit {name} {example}")) for example in examples)
        epilogue = "examples:" + "".join(f"\n  {line}" for line in lines)
        APP.command(function, name=name, sort_key=len([*APP]), help_epilogue=epilogue)
        return function

    return add


def checked(check: Check, **settings: Any) -> Parameter:
    """What a flag's type is annotated with to be checked as an option of `_options` is."""
    return Parameter(validator=lambda _, value: None if value is None else check("It", value), **settings)


def _size(kind: Any, tokens: Sequence[Any]) -> int | tuple[int, int]:
    """`384` as a number, `384x512` as (height, width)."""
    height, cross, width = tokens[0].value.partition("x")
    return (int(height), int(width)) if cross else int(height)


def _size_or_dynamic(kind: Any, tokens: Sequence[Any]) -> int | tuple[int, int] | str:
    return "dynamic" if tokens[0].value == "dynamic" else _size(kind, tokens)


Count = Annotated[int, checked(Whole(1), metavar="N")]
CountOr0 = Annotated[int, checked(Whole(0), metavar="N")]
AtLeast0 = Annotated[float, checked(FROM_0, metavar="X")]
Size = Annotated[Any, Parameter(converter=_size, n_tokens=1, metavar="N|HxW")]
SizeOrDynamic = Annotated[Any, Parameter(converter=_size_or_dynamic, n_tokens=1, metavar="N|HxW")]
MANY = Parameter(consume_multiple=True)  # several words after one flag


def flags_of(options: type[Options], shown: Options, group: str, helps: Mapping[str, str]) -> Any:
    """Returns a TypedDict of flags for the fields of `options` that `helps` names; help shows the values in `shown`."""
    kinds: dict[str, Any] = {}
    for name, text in helps.items():
        kind, value = options.__annotations__[name], getattr(shown, name)
        form = {"converter": _size, "n_tokens": 1, "metavar": "N|HxW"} if name == "image_size" else {}
        words = f"{text} (default: {value})" if value and isinstance(value, (str, int, float)) else text
        kinds[name] = Annotated[kind, checked(check_of(kind), help=words, **form)]  # ty: ignore[invalid-type-form]
    flags: Any = TypedDict("flags", kinds, total=False)  # ty: ignore[invalid-argument-type]
    return Annotated[flags, Parameter(name="*", group=group)]


def only_for(words: str, applies: bool, **flags: Any) -> None:
    """Raises ValueError for a flag that is given, unless it applies; `words` say where it does."""
    for name, value in flags.items():
        if not applies and value is not None and value is not False:
            raise ValueError(f"--{name.replace('_', '-')} is for {words}: leave it out.")


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None, by name."""
    return {name: value for name, value in values.items() if value is not None}


# The run of a command


def run_program(arguments: Sequence[str]) -> int:
    """Returns the exit code of the command that the arguments name; its result or its error is printed."""
    words = [argument for argument in arguments if argument != "--json"]
    known = next((word for word in words[:1] if word in APP), "")
    try:
        function, bound, _ = APP.parse_args(words, exit_on_error=False, print_error=False)
        with _own_warnings(known):
            result = function(*bound.args, **bound.kwargs)
            if not isinstance(result, Result):  # help, or the version
                return 0 if arguments else 2
            processes = sys.modules.get("keras_vit._processes")
            if processes is None or processes.current().first:
                _print(result, "--json" in arguments)
                sys.stdout.flush()
    except CycloptsError as error:
        _complain(f"{_wrong_usage(error, known, words)}\nSee `{' '.join(['keras-vit', known]).strip()} --help`.")
        return 2
    except BrokenPipeError:
        # The program that reads the output has closed it, as `head` does: no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if _has_interrupt(error):
            goes_on = known in ("finetune", "pretrain", "embed")  # which keep what is done
            _complain("interrupted" + ". The same command goes on with what it has saved." * goes_on)
            return 130
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        _complain(_message(error), known)
        return 1
    return 0


def _wrong_usage(error: CycloptsError, command: str, words: Sequence[str]) -> str:
    """Returns the message of an error of usage: what is missing with an example, or what a flag is called here."""
    if isinstance(error, MissingArgumentError) and error.argument and error.argument.name not in words:
        example = str(APP[command].help_epilogue).split("\n  keras-vit ")[1]
        return f"{error.argument.name} is missing. For example:\n  keras-vit {example}"
    named = error.token.keyword if isinstance(error, UnknownOptionError) and error.token else ""
    flag = "--" + SYNONYMS.get((named or "").lstrip("-"), "").replace("_", "-")
    return f"Unknown option: {named}. Did you mean {flag}?" if flag in _flags(command) else str(error)


def _flags(command: str) -> set[str]:
    """Returns the flags of a command; none without one."""
    arguments = APP[command].assemble_argument_collection() if command else ()
    return {name for argument in arguments for name in argument.names}


def _with_flags(text: str, command: str) -> str:
    """Returns a message with flags of a command in place of arguments of functions, `--seed 3` for `seed=3`."""
    flags = _flags(command)
    text = text.replace(" stream.bad lists all bad images.", "").replace("resume=False (--restart)", "--restart")
    if "--skip-unreadable" in flags:
        text = text.replace(f"{SKIP} (--skip-unreadable)", "--skip-unreadable").replace(SKIP, "--skip-unreadable")

    def flag(match: re.Match[str]) -> str:
        name, value = "--" + match[1].replace("_", "-"), match[2].strip("\"'")
        return match[0] if name not in flags else name if value in ("", "True") else f"{name} {value}"

    return re.sub(r"""(?<![\w/.-])(\w+)=("[^"]*"|'[^']*'|[\w.]*\w|)""", flag, text)


def _print(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.data, indent=2))
    elif isinstance(result.output, str):
        print(result.output)
    else:
        from rich.console import Console

        class Raising(Console):
            """A console that leaves a closed output to its caller; rich's ends the program with 1."""

            def on_broken_pipe(self) -> None:
                raise

        Raising(width=terminal_width()).print(result.output)


@contextlib.contextmanager
def _own_warnings(command: str) -> Iterator[None]:
    """Within it, warnings of this package are printed as a line each, and those of other packages left out."""
    package = str(Path(__file__).parents[1])

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if filename.startswith(package) and issubclass(category, UserWarning):
            _complain(str(message), command)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # ty: ignore[invalid-assignment]
        yield


def _complain(text: str, command: str = "") -> None:
    """Prints a message on standard error, safe for a terminal whatever names are in it."""
    print("keras-vit: " + "\n".join(map(printable, _with_flags(text, command).split("\n"))), file=sys.stderr)


def _has_interrupt(error: BaseException | None) -> bool:
    """Whether a job was interrupted: libraries turn an interrupt of their import into errors of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _message(error: BaseException) -> str:
    """Returns the text to print for an error: its message without the arguments that Keras appends to it."""
    # A field of `DownloadError`, whose class takes long to import.
    if getattr(error, "unreachable", False) and not os.environ.get(TRACEBACK):
        where, reason = error.attempts[0]  # ty: ignore[missing-attribute]
        return (
            f"{where} {reason}. Is there a network? Without one there is the small model `glyphs`, which comes along."
        )
    text = str(error).partition("\n\nArguments received by")[0].strip()
    expected = isinstance(error, (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError))
    if text and (expected or type(error).__module__.startswith("keras_vit")):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
