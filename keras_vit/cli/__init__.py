"""`keras-vit`: a thin face over the package for the terminal.

A `Command` says what it takes and what it does. Files of this folder import what does the work inside functions, and a
command checks what it can before it calls `start_keras`: nobody waits seconds to hear of a misspelled name.
"""

from keras_vit.cli.program import main

__all__ = ["main"]
