"""`keras-vit`: a thin face over the package for the terminal; one file per command.

A command's file says what it takes (`add_arguments`) and what it does (`run`). Files of this room import the rooms
that do the work inside functions: `keras-vit --help` must not wait for Keras.
"""

from keras_vit.cli.program import main

__all__ = ["main"]
