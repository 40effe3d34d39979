"""The rules of the house that linters hold, and those that they cannot say.

Which room may import which: `import-linter`, by the contracts in pyproject.toml. Docstrings, asserts, frameworks at
import, what is banned: ruff. Left for this file: private parts of Keras and of other rooms, dependencies, long files.
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

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "keras_vit"
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

# What may only be imported inside functions: ruff holds the package to it.
LATE = set(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"])
# What the package needs: the dependencies of pyproject.toml.
RUNTIME = {re.match(r"\w+", line)[0] for line in PYPROJECT["project"]["dependencies"]}
MAX_LINES = 500  # a file is as long as its concept; this only keeps heaps from growing
# The one file that may use private parts of Keras.
KERAS_FILE = "_keras.py"
# Methods that Keras or Python calls; a class says what it does, these mean the same everywhere.
PROTOCOL = set(
    "build call get_config from_config get_build_config build_from_config compute_mask compute_output_shape "
    "compute_output_spec save_own_variables load_own_variables update_state result reset_state "
    "on_train_begin on_train_end on_train_batch_begin on_train_batch_end on_epoch_begin on_epoch_end".split()
)


@functools.cache
def private_in_keras() -> frozenset[str]:
    """The private names of Keras's layers, models, optimizers, variables and symbolic tensors."""
    import keras

    inputs = keras.Input((2,))
    layer = keras.layers.Dense(2)
    model = keras.Model(inputs, layer(inputs))
    optimizer = keras.optimizers.SGD(use_ema=True)
    model.compile(optimizer, keras.losses.MeanSquaredError())
    optimizer.build(model.trainable_variables)
    sequential = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    objects = (layer, model, sequential, optimizer, layer.kernel, inputs, model.loss)
    names = {name for one in objects for name in (*dir(one), *vars(one))}
    return frozenset(name for name in names if _is_private(name))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _name(node: ast.AST) -> str:
    """`a.b.c` for the expression a.b.c; the empty string for anything else."""
    if isinstance(node, ast.Attribute):
        left = _name(node.value)
        return f"{left}.{node.attr}" if left else ""
    return node.id if isinstance(node, ast.Name) else ""


def names_of_attributes(node: ast.AST):
    """Names that stand for attributes: `x.name`, methods, `getattr(x, "name")`."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ClassDef):
        yield from (method.name for method in node.body if isinstance(method, ast.FunctionDef))
    elif isinstance(node, ast.Call) and _name(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
        yield from (arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def imported(tree: ast.AST):
    """(line, module, names) for every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", [alias.name for alias in node.names]


@functools.cache
def keras_classes() -> frozenset[str]:
    """The names of the package's classes that derive from one of Keras's, in however many steps."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = set()
    while more := {cls.name for cls in classes if _is_keras_class(cls, found)} - found:
        found |= more
    return frozenset(found)


def _is_keras_class(cls: ast.ClassDef, known: set[str]) -> bool:
    bases = [_name(base) for base in cls.bases]
    return any(base.startswith(("keras.", "layers.", "initializers.")) or base in known for base in bases)


def violations(source: str, file: str) -> list[str]:
    """What is wrong with a file of the package, as `file:line: what`."""
    tree = ast.parse(source)
    found = [*_bad_imports(tree, file), *_bad_code(tree)]
    if not file.endswith(KERAS_FILE):
        found += _private_in_keras(tree)
    if source.count("\n") >= MAX_LINES:
        found.append((1, f"longer than {MAX_LINES} lines"))
    return [f"{file}:{line}: {message}" for line, message in found]


def _bad_imports(tree: ast.Module, file: str):
    room = file.partition("/")[0].removesuffix(".py")
    for line, module, names in imported(tree):
        top, *rest = module.split(".")
        if top == "keras_vit":
            if rest and not rest[0].startswith("_") and rest[0] != room:
                yield from (
                    (line, f"{name!r} is private in {rest[0]!r}") for name in [*rest, *names] if _is_private(name)
                )
        elif f"{module}.".startswith("keras.src."):
            from keras_vit._keras import PRIVATE_MODULES

            if not {f"{module}.{name}" for name in names} <= PRIVATE_MODULES.keys():
                yield line, f"{module} is private in Keras"
        elif top not in RUNTIME | LATE and top not in sys.stdlib_module_names:
            yield line, f"{top!r} is neither a dependency nor in the list of what is imported late (pyproject.toml)"


def _private_in_keras(tree: ast.Module):
    in_own_classes = {
        id(node)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef) and cls.name not in keras_classes() and not _is_keras_class(cls, set())
        for node in ast.walk(cls)
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Attribute) and _name(node.value) in ("self", "cls"))
    }
    for node in ast.walk(tree):
        for name in names_of_attributes(node) if id(node) not in in_own_classes else ():
            if name in private_in_keras():
                yield node.lineno, f"{name!r} is private in Keras: give it a public name in {KERAS_FILE}"


def _bad_code(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield node.value.lineno, "nothing is unpickled"
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not ast.get_docstring(method):
                    setter = any(_name(decorator).endswith(".setter") for decorator in method.decorator_list)
                    if not (method.name.startswith("_") or method.name in PROTOCOL or setter):
                        yield method.lineno, f"{node.name}.{method.name} has no docstring"


@pytest.mark.once
def test_the_package_keeps_the_rules():
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        breach
        for path in files
        for breach in violations(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix())
    ]
    assert len(files) > 1 and not found, "\n".join(found)


PLANTED = {
    "a dependency": ("models/planted.py", "def f():\n    import pandas", "'pandas' is neither"),
    "Keras's module": ("_keras.py", "def f():\n    from keras.src.utils import x", "private in Keras"),
    "Keras's attribute": ("evaluation/planted.py", "def f(layer):\n    return layer._layers", "private in Keras"),
    "by its name": ("evaluation/planted.py", "getattr(x, '_keras_history', None)", "private in Keras"),
    "Keras's method": (
        "layers/planted.py",
        "import keras\nclass A(keras.layers.Layer):\n    def _flatten_layers(self):\n        return []",
        "private in Keras",
    ),
    "another room's name": ("zoo.py", "from keras_vit.models.variants import _clip", "'_clip' is private in 'models'"),
    "a pickle": ("checkpoints/planted.py", "import numpy\nnumpy.load('x', allow_pickle=True)", "unpickled"),
    "a docstring": ("models/planted.py", "class A:\n    def f(self):\n        pass", "A.f has no docstring"),
    "a heap": ("models/planted.py", "#\n" * MAX_LINES, "longer"),
    "nothing: in the room": ("models/planted.py", "from keras_vit.models.variants import _clip", None),
    "nothing: of its own": ("export/planted.py", "class A:\n    def __init__(self):\n        self._layers = 1", None),
    "nothing: protocol": ("layers/planted.py", "class A:\n    def call(self, x):\n        return x", None),
}


@pytest.mark.parametrize("case", PLANTED)
@pytest.mark.once
def test_a_planted_fault_is_found(case):
    file, code, expected = PLANTED[case]
    found = violations(code, file)
    assert len(found) == (expected is not None) and all(expected in breach for breach in found)


@pytest.mark.once
def test_imports_run_one_way():
    pytest.importorskip("importlinter")
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    # A room that no contract names may import anything.
    named = {*re.findall(r"\w+", str(PYPROJECT["tool"]["importlinter"]["contracts"]))}
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and not path.name.startswith("__")}
    assert rooms <= named


RUFF = {
    "TID253": ("import torch", 1),
    "TID251": ("from keras.src.backend import x\nimport pickle\nfrom keras.layers import Lambda", 3),
    "S101": ("assert __name__", 1),
    "D103": ("def f():\n    pass", 1),
}


@pytest.mark.once
def test_ruff_holds_the_package_to_its_rules():
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "keras_vit/layers/planted.py", "-"]
    code = "\n".join(code for code, _ in RUFF.values()) + "\n"
    command += ["--output-format", "concise", "--select", ",".join(RUFF)]
    out = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, input=code).stdout
    assert {rule: out.count(f": {rule} ") for rule in RUFF} == {rule: count for rule, (_, count) in RUFF.items()}, out


@pytest.mark.once
def test_what_is_imported_late_comes_with_a_dependency_or_an_extra():
    lines = [line for extra in PYPROJECT["project"]["optional-dependencies"].values() for line in extra]
    brought = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines} | RUNTIME
    named_otherwise = {"PIL": "pillow", "sklearn": "scikit_learn", "orbax": "orbax_checkpoint"}
    assert {named_otherwise.get(name, name) for name in LATE} <= brought


# One backend at a time, in processes of their own.

FRAMEWORKS = {"tensorflow": {"tensorflow"}, "jax": {"jax", "jaxlib"}, "torch": {"torch"}}
EXTRAS = {"PIL", "matplotlib", "sklearn", "pandas", "pyarrow", "onnx", "onnxruntime", "openvino"}
EXTRAS |= {"ai_edge_litert", "ai_edge_quantizer", "tifffile"}
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

ONE_BACKEND = """
import importlib, importlib.util, pkgutil
import keras_vit

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

WHAT_IT_LOADS = """
import keras

def roots():
    return {name.partition(".")[0] for name in sys.modules}

before = roots()
import keras_vit
print(json.dumps({"keras": sorted(before), "keras_vit": sorted(roots() - before)}))
"""


def _run(script: str, hidden: set[str] | frozenset[str] = frozenset()) -> dict:
    """Runs a script in a new interpreter with some packages hidden; gives back the JSON of its last line."""
    result = subprocess.run(
        [sys.executable, "-c", HIDE + script, json.dumps(sorted(hidden))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_works_where_only_one_backend_is_installed(backend):
    """Also that nothing hidden can be imported, although it is installed."""
    result = _run(ONE_BACKEND, MISSING[backend])
    assert result["backend"] == backend
    assert "keras_vit.layers" in result["modules"]
    assert result["shape"] == [2, 3]


@pytest.mark.once
def test_imports_no_framework_and_no_extra_of_its_own(backend):
    loaded = _run(WHAT_IT_LOADS)
    assert "keras_vit" in loaded["keras_vit"]
    assert set(loaded["keras_vit"]) & (EXTRAS | LATE | {"scipy"}).union(*FRAMEWORKS.values()) == set()
    # Keras itself loads JAX on the other backends, where it is installed. Nothing else is excused.
    others = set().union(*(FRAMEWORKS[b] for b in FRAMEWORKS if b not in (backend, "jax")))
    assert set(loaded["keras"]) & others == set()
