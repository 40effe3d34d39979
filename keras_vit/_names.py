"""What each package offers, and lazy imports of it (PEP 562): importing Keras takes seconds.

The program `keras-vit` needs Keras for some of its commands only. For everybody else `import keras_vit` imports all
names at once, because that registers the classes that `keras.saving.load_model` looks for. The names stand in the
`__init__.pyi` of each package, where type checkers read them as well.
"""

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from types import ModuleType

DISTRIBUTION = "keras-vit-zoo"  # as pip and pyproject.toml know what is imported as `keras_vit`

for _other in Path(__file__).parents[1].glob("keras_vit-*.dist-info"):
    raise ImportError(
        f"{_other} is installed beside {DISTRIBUTION}. The keras-vit of the package index is another project, whose "
        f"files are in the same folder: pip uninstall keras-vit {DISTRIBUTION}, then install {DISTRIBUTION} again."
    )

_MODULES = {"keras_vit.cli", "keras_vit.data.workers", "keras_vit.export.processes"}


_started = sys.argv[0] if sys.argv else ""  # "-m" until the module's package has been imported
# Whether this process is `keras-vit`, `python -m keras_vit.cli`, or a worker of `keras_vit.data` or `.export`.
IS_PROGRAM = PurePath(_started).stem == "keras-vit" or (_started == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


def pip_install(extra: str) -> str:
    """Returns the command that installs an extra, for messages."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def lazy_names(package: str) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package: what its `__init__.pyi` offers is imported when it is used."""
    module = sys.modules[package]
    stub = pkgutil.get_data(package, "__init__.pyi") or b""
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    sources = {alias.name: node.module or "" for node in imports for alias in node.names}
    vars(module).setdefault("__all__", sorted(sources))

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = sources[name]
        value = importlib.import_module(f"{package}.{name}" if source == package else source)
        vars(module)[name] = value if source == package else getattr(value, name)
        return vars(module)[name]

    return __getattr__


def imported_names(package: str) -> list[str]:
    """Returns the `__all__` of a package that imports all that it offers at once."""
    names = vars(sys.modules[package]).items()
    return sorted(name for name, value in names if not name.startswith("_") and not inspect.ismodule(value))


def import_all(module: ModuleType) -> None:
    """Imports every name in the `__all__` of a package and of its packages; ImportError if one fails."""
    for name in vars(module)["__all__"]:
        value = getattr(module, name)  # imports it, see `lazy_names`
        if inspect.ismodule(value):
            import_all(value)
