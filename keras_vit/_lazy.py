"""Lazy imports (PEP 562): the names of a room are imported when they are used, because importing Keras takes seconds.

The program `keras-vit` needs Keras for some of its commands only. For everybody else `import keras_vit` imports all
names at once, because that registers the classes that `keras.saving.load_model` looks for.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType

_MODULES = {"keras_vit.cli", "keras_vit.data.augmentation", "keras_vit.export.processes"}


def _is_program() -> bool:
    """Whether this process is `keras-vit`, `python -m keras_vit.cli`, or a worker of `keras_vit.data` or `.export`.

    A wrong answer does little harm: what was not imported at once is imported when it is used.
    """
    started = sys.argv[0] if sys.argv else ""  # "-m" until the module's package has been imported
    return PurePath(started).stem == "keras-vit" or (started == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


IS_PROGRAM = _is_program()


def lazy_names(room: str) -> Callable[[str], object]:
    """The `__getattr__` of a room: what it imports under `if TYPE_CHECKING:`, for type checkers, is imported late.

    A room without an `__all__` gets one: what is imported as `from a import b as b`, by which type checkers know that
    the room offers it.
    """
    module = sys.modules[room]
    body = ast.parse(inspect.getsource(module)).body
    later = [node for branch in body if isinstance(branch, ast.If) for node in branch.body]
    sources = {alias.name: str(node.module) for node in _imports(later) for alias in node.names}
    offered = [alias.name for node in _imports([*body, *later]) for alias in node.names if alias.asname]
    vars(module).setdefault("__all__", sorted(offered))

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        source = sources[name]
        value = importlib.import_module(f"{room}.{name}" if source == room else source)
        vars(module)[name] = value if source == room else getattr(value, name)
        return vars(module)[name]

    return __getattr__


def _imports(statements: list[ast.stmt]) -> list[ast.ImportFrom]:
    return [statement for statement in statements if isinstance(statement, ast.ImportFrom)]


def import_all(module: ModuleType) -> None:
    """Imports the names that a room offers, and those of the rooms among them."""
    for name in vars(module)["__all__"]:
        value = getattr(module, name)
        if inspect.ismodule(value):
            import_all(value)
