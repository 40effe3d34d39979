"""What happens at `import keras_vit`: its names are imported, some late (PEP 562), and Keras's framework is chosen.

Importing Keras takes seconds, and the program `keras-vit` needs it for some of its commands only. For everybody else
`import keras_vit` imports all names at once, because that registers the classes that `keras.saving.load_model` looks
for. The names stand in the `__init__.pyi` of each package, where type checkers read them as well.
"""

import ast
import contextlib
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import warnings
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
    """The command that installs an extra, for messages."""
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


def import_all(module: ModuleType) -> None:
    """Imports every name in the `__all__` of a package and of its packages; ImportError if one fails."""
    for name in vars(module)["__all__"]:
        value = getattr(module, name)  # imports it, see `lazy_names`
        if inspect.ismodule(value):
            import_all(value)


# The framework that Keras runs on where the user has chosen none


BACKENDS = ("tensorflow", "jax", "torch")
DEFAULT = "tensorflow"  # Keras's, which it writes into keras.json without being asked


def choose_backend() -> None:
    """Sets `KERAS_BACKEND` to an installed framework where Keras would insist on one that is not there."""
    # To be called before Keras is imported. Keras takes the framework that `keras.json` names, a file that it writes by
    # itself when it is first imported, and TensorFlow where there is none.
    # Warns if the user has named a framework in `keras.json` that is not installed, and once if Keras takes another one
    # than before because that has been installed since.
    if "keras" in sys.modules:
        return
    backend = os.environ.get("KERAS_BACKEND")
    if backend:
        if backend not in (*BACKENDS, "numpy", "openvino"):  # the last two for inference only, and not tested
            raise ValueError(f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}, but it is {backend!r}.")
        if backend in BACKENDS and not importlib.util.find_spec(backend):
            raise ImportError(f"KERAS_BACKEND is {backend!r}, which is missing: {pip_install(backend)}")
        return
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    backend = _read(home / "keras.json").get("backend") or DEFAULT
    if backend not in BACKENDS:
        return
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError(f"No backend of Keras is installed: {pip_install('jax')} (or tensorflow, or torch)")
    memory = home / "keras_vit.json"  # what stood in for Keras's choice, by environment
    before = _read(memory).get(sys.prefix)
    if backend in installed:
        if before in installed:
            warnings.warn(
                f"Keras runs on {backend!r}, which has been installed since it ran on {before!r} here. "
                f"The environment variable KERAS_BACKEND={before} brings that back.",
                stacklevel=3,
            )
            _remember(memory, None)
        return
    taken = before if before in installed else installed[0]
    if backend != DEFAULT:
        warnings.warn(
            f"{home / 'keras.json'} names the backend {backend!r}, which is not installed: Keras runs on {taken!r}. "
            "Set KERAS_BACKEND, or change that file.",
            stacklevel=3,
        )
    os.environ["KERAS_BACKEND"] = taken
    if taken != before:
        _remember(memory, taken)


def _read(file: Path) -> dict:
    """Returns what a file of JSON holds; as for Keras, there is nothing in one that cannot be read."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _remember(file: Path, backend: str | None) -> None:
    """Writes into a file, if it can, what stood in for Keras's choice in this environment; None for nothing."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_read(file) | {sys.prefix: backend}), encoding="utf-8")
