"""What holds the package together and no linter says: whose names are private, what is installed for which import.

Which room imports which: import-linter, by the contracts in pyproject.toml. What is banned, frameworks at import,
private members, docstrings: ruff. Types: ty.
"""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "keras_vit"
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
# What may only be imported inside functions: ruff holds the package to it.
LATE = set(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"])
# What the package needs: the dependencies of pyproject.toml.
RUNTIME = {re.match(r"\w+", line)[0] for line in PYPROJECT["project"]["dependencies"]}


@functools.cache
def trees():
    """The syntax trees of the package by their paths: two seconds, which collecting the tests has no need of."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def body_lines(function):
    """Lines of a function's body without its docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return function.end_lineno - first.lineno + 1


def test_files_and_functions_can_be_read_at_one_go():
    """Files have less than 700 lines, bodies at most 60, signatures at most 17 parameters; `Unpack` counts as one."""
    faults = []
    for path, tree in trees().items():
        if path.read_text(encoding="utf-8").count("\n") >= 700:
            faults.append(f"{path}: too long")
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                if body_lines(function) > 60 or len(parameters) > 17:
                    faults.append(f"{path}:{function.lineno}: {function.name}")
    assert not faults, "\n".join(faults)


def test_imports_are_of_public_names_and_of_what_is_installed():
    """No private name of another room, nothing private of Keras outside `_keras.py`, no undeclared dependency."""
    faults = []
    for path, tree in trees().items():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                top, *rest = module.split(".")
                names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
                if top == "keras_vit":
                    own = not rest or rest[0].startswith("_") or rest[0] == room
                    wrong = not own and any(map(is_private, [*rest, *names]))
                elif module.startswith("keras.src"):
                    wrong = path.name != "_keras.py"
                else:
                    wrong = top not in RUNTIME | LATE and top not in sys.stdlib_module_names
                faults += [f"{path}:{node.lineno}: {module}, {names}"] if wrong else []
    assert not faults, "\n".join(faults)


def test_classes_override_nothing_that_is_private_in_keras():
    import keras

    kinds = (keras.layers.Layer, keras.Model, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    private = {name for kind in kinds for name in dir(kind) if is_private(name)}
    faults = [
        f"{path}:{method.lineno}: {method.name}"
        for path, tree in trees().items()
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef) and path.name != "_keras.py"
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name in private
    ]
    assert not faults, "\n".join(faults)


def test_imports_run_one_way():
    pytest.importorskip("importlinter")
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    # A room that no contract names may import anything.
    named = {*re.findall(r"\w+", str(PYPROJECT["tool"]["importlinter"]["contracts"]))}
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and not path.name.startswith("__")}
    assert rooms <= named


def test_what_is_imported_late_comes_with_a_dependency_or_an_extra():
    lines = [line for extra in PYPROJECT["project"]["optional-dependencies"].values() for line in extra]
    brought = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines} | RUNTIME
    named_otherwise = {"PIL": "pillow", "sklearn": "scikit_learn", "orbax": "orbax_checkpoint"}
    assert {named_otherwise.get(name, name) for name in LATE} <= brought


FRAMEWORKS = {"tensorflow": {"tensorflow"}, "jax": {"jax", "jaxlib"}, "torch": {"torch"}}
EXTRAS = LATE - RUNTIME - {"scipy", *FRAMEWORKS}
# JAX is built on SciPy and brings it; with the other backends it may be missing.
MISSING = {
    backend: EXTRAS.union(*(names for b, names in FRAMEWORKS.items() if b != backend))
    | (set() if backend == "jax" else {"scipy"})
    for backend in FRAMEWORKS
}

# Makes packages invisible, as if they were not installed: `import x` raises ModuleNotFoundError and
# `importlib.util.find_spec("x")` gives None.
HIDE = """
import json, sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    hidden = set(json.loads(sys.argv[1]))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""

# What fails once the framework has computed something: until then a program can join others, or be forked.
NOT_YET = {
    "jax": "import jax; jax.config.update('jax_num_cpu_devices', 2)",
    "tensorflow": "import tensorflow as tf; tf.config.threading.set_inter_op_parallelism_threads(3)",
    "torch": "",
}

ONE_BACKEND = """
import importlib, importlib.util, pkgutil
import keras_vit

{NOT_YET}
for name in Hiding.hidden:
    assert importlib.util.find_spec(name) is None and name not in sys.modules, name
modules = [m.name for m in pkgutil.walk_packages(keras_vit.__path__, "keras_vit.")]
modules = [name for name in modules if not name.endswith(".__main__")]
for name in modules:
    importlib.import_module(name)

import keras
import numpy as np
from keras_vit import VisionTransformer, ViTConfig

config = ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=16, classes=3)
logits = VisionTransformer(config).predict(np.zeros((2, 8, 8, 3), "float32"), verbose=0)
print(json.dumps({"backend": keras.backend.backend(), "modules": modules, "shape": logits.shape}))
"""


@pytest.mark.each
def test_works_where_only_one_backend_is_installed(backend):
    """Also that nothing hidden can be imported, although it is installed, and that the import computes nothing."""
    code = HIDE + ONE_BACKEND.replace("{NOT_YET}", NOT_YET[backend])
    command = [sys.executable, "-c", code, json.dumps(sorted(MISSING[backend]))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["backend"] == backend
    assert "keras_vit.layers" in result["modules"]
    assert result["shape"] == [2, 3]
