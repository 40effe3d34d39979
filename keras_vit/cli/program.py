"""The program: its commands, what it prints when one fails, and its exit codes.

0: done. 1: the job failed; the reason is on standard error. 2: wrong usage. 130: interrupted.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras_vit
from keras_vit._backend import choose_backend
from keras_vit._lazy import IS_PROGRAM
from keras_vit._text import printable
from keras_vit.cli import (
    convert,
    demo,
    download,
    embed,
    evaluate,
    export,
    finetune,
    info,
    inspect,
    launch,
    plan,
    predict,
    recipes,
    verify,
)
from keras_vit.cli import list as listing
from keras_vit.cli.command import Answer
from keras_vit.tables import WIDTH

DESCRIPTION = "Vision Transformers in Keras 3: list, inspect, download, convert and use checkpoints."
TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like
COMMANDS = {
    "list": listing,
    "info": info,
    "download": download,
    "predict": predict,
    "inspect": inspect,
    "convert": convert,
    "finetune": finetune,
    "evaluate": evaluate,
    "embed": embed,
    "launch": launch,
    "recipes": recipes,
    "plan": plan,
    "export": export,
    "verify": verify,
    "demo": demo,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit code.

    Raises:
        SystemExit: for wrong usage (2), `--help` and `--version` (0).
    """
    try:
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        options = _parser(arguments).parse_args(arguments)
        command = COMMANDS[options.command]
        with _own_warnings():
            if command.NEEDS_KERAS and "keras" not in sys.modules:
                _start_keras()
            answer = command.run(options)
            if command.NEEDS_KERAS and not _is_first():
                return 0 if answer.ok else 1
        _show(answer, options.json)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _has_interrupt(error):  # libraries turn an interrupt of their import into errors of their own
            return _interrupted()
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        _complain(_first_words(error))
        return 1
    return 0 if answer.ok else 1


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with all commands, of which only the one that is going to run has its arguments."""
    parser = argparse.ArgumentParser(
        prog="keras-vit", description=DESCRIPTION, epilog=f"{TRACEBACK}=1 shows where an error came from."
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {keras_vit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.HELP, description=command.HELP)
        if name == chosen:
            sub.add_argument("--json", action="store_true", help="print JSON instead of a table")
            command.add_arguments(sub)
    return parser


def _start_keras() -> None:
    """Imports Keras and its framework, without their start-up lines.

    Raises:
        ImportError, ValueError: if there is no framework, or `KERAS_BACKEND` names another one.
    """
    choose_backend()
    if IS_PROGRAM and not os.environ.get(TRACEBACK):
        _silence_libraries()
    import keras  # noqa: F401


def _is_first() -> bool:
    """Whether this is the process, of those that did the job together, that says what came of it."""
    from keras_vit._processes import current

    return current().first


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


def _show(answer: Answer, as_json: bool) -> None:
    """Prints an answer on standard output: as wide as the terminal, or `WIDTH` where it is none."""
    if as_json:
        print(json.dumps(answer.data, indent=2))
    elif isinstance(answer.shown, str):
        print(answer.shown)
    elif answer.shown is not None:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else WIDTH).print(answer.shown)


@contextlib.contextmanager
def _own_warnings() -> Iterator[None]:
    """Warnings of this package are a line each; those of others, which a user of the program cannot act on, go."""
    package = str(Path(__file__).parents[1])

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if filename.startswith(package) and issubclass(category, UserWarning):
            _complain(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # ty: ignore[invalid-assignment]
        yield


def _complain(text: str) -> None:
    """Prints a message on standard error, safe for a terminal whatever names are in it."""
    lines = [printable(line) for line in text.split("\n")]
    print("keras-vit: " + "\n".join(lines), file=sys.stderr)


def _interrupted() -> int:
    _complain("interrupted")
    return 130


def _has_interrupt(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_words(error: Exception) -> str:
    """The message of an error without the arguments that Keras appends to it."""
    text = str(error).partition("\n\nArguments received by")[0].strip()
    if not text:
        return type(error).__name__
    return text if type(error).__module__.startswith("keras_vit") or _is_expected(error) else _with_type(error, text)


def _is_expected(error: Exception) -> bool:
    return isinstance(error, (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError))


def _with_type(error: Exception, text: str) -> str:
    """`KeyError: 'x'`: the text alone would say nothing."""
    return f"{type(error).__name__}: {text}"
