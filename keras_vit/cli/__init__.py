"""`keras-vit`: a thin face over the package for the terminal.

A `Command` says what it takes and what it does. Files of this folder import what does the work inside functions, and a
command checks what it can before it calls `start_keras`: nobody waits seconds to hear of a misspelled name.
"""

import sys
from collections.abc import Sequence

from keras_vit.cli import files, images, training
from keras_vit.cli.program import run_program

__all__ = ["main"]

# In the order of the help.
COMMANDS = {
    "list": files.list_,
    "info": files.info,
    "download": files.download,
    "predict": images.predict,
    "classify": images.classify,
    "detect": images.detect,
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
    "export": files.export,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code of one command, which it runs.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit code.

    Raises:
        SystemExit: for wrong usage (2), `--help` and `--version` (0).
    """
    return run_program(COMMANDS, sys.argv[1:] if arguments is None else list(arguments))
