"""`keras-vit`: a thin face over the package for the terminal.

A command is a typed function. It imports what does the work when it runs, and checks what it can before it calls
`start_keras`: nobody waits seconds to hear of a misspelled name.
"""

import sys
from collections.abc import Sequence

from keras_vit.cli import files, images, training  # noqa: F401 (their commands, in the order of the help)
from keras_vit.cli.program import run_program

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default the process's own arguments, and returns its exit code: 2 for wrong usage."""
    return run_program(sys.argv[1:] if arguments is None else list(arguments))
