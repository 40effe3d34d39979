"""Lazy imports (PEP 562): names of a package are imported when they are used, because importing Keras takes seconds.

The program `keras-vit` needs Keras for some of its commands only. For everybody else `import keras_vit` imports all
names at once, because that registers the classes that `keras.saving.load_model` looks for.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType

from keras_vit._names import PACKAGES

_MODULES = {"keras_vit.cli", "keras_vit.data.examples", "keras_vit.export.processes"}


def _is_program() -> bool:
    """Whether this process is `keras-vit`, `python -m keras_vit.cli`, or a worker of `keras_vit.data` or `.export`.

    A wrong result does little harm: what was not imported at once is imported when it is used.
    """
    started = sys.argv[0] if sys.argv else ""  # "-m" until the module's package has been imported
    return PurePath(started).stem == "keras-vit" or (started == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


IS_PROGRAM = _is_program()


def lazy_names(package: str) -> Callable[[str], object]:
    """The `__getattr__` of a package: what `_names.py` says that it offers is imported when it is used.

    A package without an `__all__` gets one, of all these names. The function raises AttributeError for other names.
    """
    module = sys.modules[package]
    sources = {name: source for source, names in PACKAGES[package].items() for name in names.split()}
    vars(module).setdefault("__all__", sorted(sources))

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = sources[name]
        value = importlib.import_module(f"{package}.{name}" if source == package else source)
        vars(module)[name] = value if source == package else getattr(value, name)
        return vars(module)[name]

    return __getattr__


def import_all(module: ModuleType) -> None:
    """Imports every name in a package's `__all__`, and in of the packages among them; ImportError if one fails."""
    for name in vars(module)["__all__"]:
        value = getattr(module, name)  # imports it, see `lazy_names`
        if inspect.ismodule(value):
            import_all(value)
