"""The program: its commands, what it prints when one fails, and its exit codes.

0: done. 1: the job failed; the reason is on standard error. 2: wrong usage. 130: interrupted.
"""

import argparse
import contextlib
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras_vit
from keras_vit._arguments import Code, Message, did_you_mean, printable, require_packages
from keras_vit._terminal import terminal_width
from keras_vit.cli import files, images, training
from keras_vit.cli.command import Command, Option, Result
from keras_vit.cli.inputs import TRACEBACK

DESCRIPTION = "Vision Transformers in Keras 3: name, fine-tune, measure, search, export."
EPILOG = f"""examples:
  keras-vit demo
  keras-vit predict photo.jpg --weights glyphs
  keras-vit finetune ViT-B/16 photos --output runs/photos

`keras-vit COMMAND --help` has its options. {TRACEBACK}=1 shows where an
error came from. Completion in bash, zsh and fish: pip install argcomplete, and
eval "$(register-python-argcomplete keras-vit)"; in fish
register-python-argcomplete --shell fish keras-vit | source"""
COMMANDS = {
    "list": files.list_,
    "info": files.info,
    "download": files.download,
    "predict": images.predict,
    "classify": images.classify,
    "segment": images.segment,
    "depth": images.depth,
    "inspect": files.inspect,
    "convert": files.convert,
    "finetune": training.finetune,
    "pretrain": training.pretrain,
    "evaluate": training.evaluate,
    "embed": images.embed,
    "similar": images.similar,
    "duplicates": images.duplicates,
    "recipes": training.recipes,
    "plan": training.plan,
    "export": files.export,
    "verify": training.verify,
    "demo": training.demo,
}
_WIDTH = 78
# How the program does what messages say in Python; all other arguments are options of the same name.
_IN_THE_PROGRAM = {
    "resume=False": "--restart",
    "list_weights": "`keras-vit list`",
    "list_models": "`keras-vit list --models`",
    "list_recipes": "`keras-vit recipes`",
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
    command = None
    try:
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what could come next
            _complete(os.environ["COMP_LINE"].split()[1:])
        options, unknown = _parser(arguments).parse_known_args(arguments)
        command = COMMANDS[options.command]
        if unknown:
            flags = {flag: flag for flag in _flags_of(command)}
            hint = did_you_mean(unknown[0], flags) if unknown[0].startswith("-") else ""
            options.parser.error(f"there is no argument {' '.join(unknown)!r}.{hint}")
        command.check(options.command, vars(options))
        with _own_warnings(command):
            result = command.run(options)
            if _is_first():
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


def _complete(words: Sequence[str]) -> None:
    """Prints completions of a command line for the shell, as argcomplete prescribes, and ends the program."""
    require_packages("Completion", ("argcomplete",), "completion")
    import argcomplete

    argcomplete.autocomplete(_parser([word for word in words if word in COMMANDS][:1]))


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with all commands, of which only the one that is going to run has its arguments.

    Ends the program with a message if there is no command of that name (SystemExit).
    """
    parser = argparse.ArgumentParser(
        prog="keras-vit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {keras_vit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        hint = did_you_mean(chosen, {name: name for name in COMMANDS})
        parser.error(f"there is no command {chosen!r}.{hint} `keras-vit --help` shows all")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
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


def _flags_of(command: Command | None) -> list[str]:
    """The long options of a command."""
    return [] if command is None else [option.flags[-1] for option in command.options() if option.flags[-1][0] == "-"]


def _is_first() -> bool:
    """Whether this process prints the result: the first one, where several did the job together."""
    processes = sys.modules.get("keras_vit._processes")
    return processes is None or processes.current().first


def _print(result: Result, as_json: bool) -> None:
    """Prints a result on standard output, as wide as the terminal or `COLUMNS` says."""
    if as_json:
        print(json.dumps(result.data, indent=2))
    elif isinstance(result.output, str):
        print(result.output)
    elif result.output is not None:
        from rich.console import Console

        Console(width=terminal_width()).print(result.output)


@contextlib.contextmanager
def _own_warnings(command: Command) -> Iterator[None]:
    """Within it, warnings of this package are printed as a line each, and those of other packages left out."""
    package = str(Path(__file__).parents[1])

    def show_warning(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        if filename.startswith(package) and issubclass(category, UserWarning):
            _complain(_in_options(message, command))

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # ty: ignore[invalid-assignment]
        yield


def _complain(text: str) -> None:
    """Prints a message on standard error, safe for a terminal whatever names are in it."""
    print("keras-vit: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def _in_options(error: BaseException | str, command: Command | None) -> str:
    """The text of an error or a warning; in a `Message`, arguments become the options of the command."""
    message = error.args[0] if isinstance(error, BaseException) and error.args else error
    if not isinstance(message, Message):
        return str(error)
    flags = _flags_of(command)

    def option(code: str) -> str:
        name, _, value = code.partition("=")
        flag = f"--{name.replace('_', '-')}"
        if flag in flags:
            return flag if value in ("", "True", "...") else f"{flag} {value.strip(chr(34))}"
        return _IN_THE_PROGRAM.get(code.partition("(")[0], code)

    return "".join(option(part) if isinstance(part, Code) else part for part in message.parts)


def _has_interrupt(error: BaseException | None) -> bool:
    """Whether a job was interrupted: libraries turn an interrupt of their import into errors of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _message(error: BaseException, command: Command | None) -> str:
    """The text to print for an error: its message without the arguments that Keras appends to it.

    It begins with the error's type if that is not one that this package raises. If an address could not be reached, it
    is one line, with the weights that need no network.
    """
    # A field of `DownloadError`, whose class takes long to import.
    if getattr(error, "unreachable", False) and not os.environ.get(TRACEBACK):
        where, reason = error.attempts[0]  # ty: ignore[missing-attribute]
        hint = " Is there a network? Without one there is `--weights glyphs`, which comes along."
        return f"{where} {reason}.{hint if '--weights' in _flags_of(command) else ''}"
    text = _in_options(error, command).partition("\n\nArguments received by")[0].strip()
    expected = isinstance(error, (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError))
    if text and (expected or type(error).__module__.startswith("keras_vit")):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
