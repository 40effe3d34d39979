"""Imports put off until a name is used: for the program `keras-vit`, most of whose commands need no Keras.

For everybody else `import keras_vit` imports Keras and the models at once, because that registers the classes that
`keras.saving.load_model` looks for.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import PurePath

_MODULES = {"keras_vit.cli", "keras_vit.data.worker"}


def _is_program() -> bool:
    """Whether this process is `keras-vit`, `python -m keras_vit.cli` or a worker of `keras_vit.data`.

    A wrong answer does little harm: what was not imported at once is imported when it is used.
    """
    started = sys.argv[0] if sys.argv else ""  # "-m" until the module's package has been imported
    return PurePath(started).stem == "keras-vit" or (started == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


IS_PROGRAM = _is_program()


def import_later(room: str, *modules: str) -> Callable[[str], object]:
    """The `__getattr__` (PEP 562) of a room that imports some of its modules when one of their names is used.

    Args:
        room: The room's `__name__`; its `__all__` has all names that it offers.
        modules: Names of modules in it, and full names of others. What is not one of the former is looked for in one
            after the other.
    """

    def __getattr__(name: str) -> object:
        if name in modules:
            return importlib.import_module(f"{room}.{name}")
        for module in modules if name in vars(sys.modules[room])["__all__"] else ():
            source = importlib.import_module(module if "." in module else f"{room}.{module}")
            if hasattr(source, name):
                return getattr(source, name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return __getattr__
