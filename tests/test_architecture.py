"""The rules of the house, read off the source: which room may import which, and what no file may do.

`violations` finds what is wrong with a package folder. The real package must have none; copies of it with one
planted fault each must have that one, which is how we know that the rules bite.
"""

import ast
import functools
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Set
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "keras_vit"

# layers <- models <- checkpoints <- zoo <- {training, evaluation, inspection, export} <- {cli, demo};
# preprocessing <- data <- {training, evaluation, inspection, export}: these two know no model.
# A room is a folder or a file directly in the package.
_ZOO = {"layers", "preprocessing", "models", "checkpoints", "zoo"}
_WORK = _ZOO | {"data"}
_ALL = _WORK | {"factories", "training", "evaluation", "inspection", "export"}
MAY_IMPORT: dict[str, set[str]] = {
    "layers": set(),
    "preprocessing": set(),
    "data": {"preprocessing"},
    "models": {"layers", "preprocessing"},
    "checkpoints": {"layers", "preprocessing", "models"},
    "zoo": {"models", "checkpoints"},
    "factories": {"models", "zoo"},
    "training": _WORK,
    "evaluation": _WORK,
    "inspection": _WORK,
    "export": _WORK,
    "cli": _ALL | {"demo", "__init__"},
    "demo": _ALL | {"__init__"},
    "__init__": _ALL,  # the public face
}
# Files without a concept of their own, which every room may use, and those of them that the others may use.
SHARED = {"interpolation", "tables"} | set(
    "_arrays _backend _devices _files _keras _lazy _pictures _processes _progress _text _types".split()
)
SHARED_BY_ALL = {"_files", "_text", "_types"}

# What the package needs to be imported: the dependencies of pyproject.toml.
RUNTIME = {"keras", "numpy", "h5py", "rich", "ml_dtypes", "filelock", "safetensors", "huggingface_hub", "pooch"}
# What may only be imported inside functions, and the extra of pyproject.toml that brings it; None for dependencies.
LAZY = {
    **dict.fromkeys(("safetensors", "huggingface_hub", "pooch")),
    "orbax": "orbax",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "torch": "torch",
    "PIL": "images",
    "matplotlib": "plots",
    "ai_edge_litert": "export",
    "ai_edge_quantizer": "export",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "tf2onnx": "onnx",
    "openvino": "openvino",
    "tensorflow_datasets": "tfds",
    "sklearn": "demo",
}
MAX_LINES = 500  # a file is as long as its concept; this only keeps heaps from growing

# Methods that Keras or Python calls; a class says what it does, these mean the same everywhere.
PROTOCOL = set(
    "build call get_config from_config get_build_config build_from_config compute_mask compute_output_shape "
    "compute_output_spec save_own_variables load_own_variables update_state result reset_state "
    "on_train_begin on_train_end on_train_batch_begin on_train_batch_end on_epoch_begin on_epoch_end".split()
)


# The one file that may use private parts of Keras.
KERAS_FILE = "_keras.py"
# The one file that may unpickle: it gives pickles nothing but inert stand-ins.
PICKLE_FILE = "torch_pickle.py"


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


def private_modules_of_keras() -> Set[str]:
    """Those that `_keras.py` may import: it says why."""
    from keras_vit._keras import PRIVATE_MODULES

    return PRIVATE_MODULES.keys()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def violations(package: Path) -> list[str]:
    """Every breach of the rules in a package folder, as `file:line: what`."""
    breaches = [breach for path in sorted(package.rglob("*.py")) for breach in _violations_of_file(path, package)]
    return breaches + circles(package)


def circles(package: Path) -> list[str]:
    """Files that import each other, whatever the number of steps; also where the imports stand inside functions."""
    files = {_module(path, package): path for path in package.rglob("*.py")}
    graph = {name: _imported_files(path, package, files) - {name} for name, path in files.items()}
    while free := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in free:
            del graph[name]
    # What is left is on a circle or imports one. Without the latter:
    while ends := [name for name in graph if not any(name in targets for targets in graph.values())]:
        for name in ends:
            del graph[name]
    return [f"circle of imports: {' '.join(sorted(graph))}"] if graph else []


def _module(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported_files(path: Path, package: Path, files: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and _name(branch.test).split(".")[-1] == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }
    found: set[str] = set()
    for node, module, names in _imports(tree, path, package):
        if id(node) not in for_types:
            modules = {f"{module}.{name}" for name in names} & files.keys()
            # `from package import module` needs the module only.
            found |= modules if names and len(modules) == len(names) else modules | ({module} & files.keys())
    return found


def _violations_of_file(path: Path, package: Path) -> list[str]:
    name = path.relative_to(package).as_posix()
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, name)
    found = [*_bad_imports(tree, path, package), *_bad_code(tree), *_bad_names(tree, path, package)]
    lines = source.count("\n")
    if lines >= MAX_LINES:
        found.append((lines, f"{lines} lines, the limit is {MAX_LINES}"))
    return [f"{name}:{line}: {message}" for line, message in found]


def _room(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def _imports(tree: ast.AST, path: Path, package: Path):
    """(node, module, names) for every import statement and `import_module("...")`, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                folder = path.relative_to(package.parent).parts[: -node.level]
                module = ".".join([*folder, *([module] if module else [])])
            yield node, module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and _name(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node, node.args[0].value, []
            elif package.name in ast.unparse(node):
                yield node, package.name, ["<computed name>"]


def _bad_imports(tree: ast.Module, path: Path, package: Path):
    room = _room(path, package)
    if room not in MAY_IMPORT and room not in SHARED:
        yield 1, f"room {room!r} is not in the table MAY_IMPORT (tests/test_architecture.py): add what it may import"
        return
    allowed = MAY_IMPORT.get(room, set()) | {room} | (SHARED if room not in SHARED else SHARED_BY_ALL)
    on_import = {id(node) for node in _executed_on_import(tree)}
    rooms = {*MAY_IMPORT, *SHARED}
    for node, module, names in _imports(tree, path, package):
        line = node.lineno
        top, *rest = module.split(".")
        if top == package.name:
            for target in rest[:1] or {n if n in rooms else "__init__" for n in names} or {"__init__"}:
                if target not in allowed:
                    yield line, f"room {room!r} may not import {target!r}, only {sorted(allowed)}"
        elif f"{module}.".startswith("keras.src.") or (module == "keras" and "src" in names):
            modules = {f"{module}.{name}" for name in names} or {module}
            if path.name != KERAS_FILE or not modules <= private_modules_of_keras():
                yield line, "keras.src is private"
        elif module == "tensorflow.keras" or (module == "tensorflow" and "keras" in names):
            yield line, "Keras is imported as keras"
        elif top in LAZY:
            if id(node) in on_import:
                yield line, f"{top!r} may only be imported inside functions"
        elif top in ("pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve") and path.name != PICKLE_FILE:
            yield line, f"{top!r} can run code of the file that it reads"
        elif top not in RUNTIME and top not in sys.stdlib_module_names:
            yield line, f"{top!r} is neither a runtime dependency nor in the table LAZY"


def _bad_names(tree: ast.Module, path: Path, package: Path):
    """Private names of Keras outside the file that is for them, and private names of other rooms."""
    if path.name == KERAS_FILE:
        return
    room = _room(path, package)
    for node, module, names in _imports(tree, path, package):
        top, *rest = module.split(".")
        if top == package.name and rest and rest[0] not in (room, *SHARED):
            for name in filter(_is_private, [*rest, *names]):
                yield node.lineno, f"{name!r} is private in the room {rest[0]!r}"
    own = _defined_in(tree) | _names_of_room(package / room if (package / room).is_dir() else path)
    in_own_classes = {
        id(node)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef) and cls.name not in keras_classes(package) and not _is_keras_class(cls, set())
        for node in (cls, *ast.walk(cls))
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Attribute) and _name(node.value) in ("self", "cls"))
    }
    for node in ast.walk(tree):
        if id(node) in in_own_classes:
            continue
        keras_names = [name for name in names_of_attributes(node) if name in private_in_keras()]
        for name in keras_names:
            yield node.lineno, f"{name!r} is private in Keras: give it a public name in {KERAS_FILE}"
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not keras_names and node.attr not in own:
            owner = _name(node.value)
            if owner not in ("self", "cls") and owner not in sys.stdlib_module_names:
                yield node.lineno, f"{node.attr!r} is private, and not of the room {room!r}"


@functools.cache
def keras_classes(package: Path) -> frozenset[str]:
    """The names of the package's classes that derive from one of Keras's, in however many steps."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = set()
    while more := {cls.name for cls in classes if _is_keras_class(cls, found)} - found:
        found |= more
    return frozenset(found)


def _is_keras_class(cls: ast.ClassDef, known: set[str]) -> bool:
    bases = [_name(base) for base in cls.bases]
    return any(base.startswith(("keras.", "layers.", "initializers.")) or base in known for base in bases)


def names_of_attributes(node: ast.AST):
    """Names that stand for attributes: `x.name`, methods, `getattr(x, "name")`."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ClassDef):
        yield from (method.name for method in node.body if isinstance(method, ast.FunctionDef))
    elif isinstance(node, ast.Call) and _name(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
        yield from (arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


@functools.cache
def _names_of_room(place: Path) -> frozenset[str]:
    """All names that the files of a room define."""
    files = place.rglob("*.py") if place.is_dir() else [place]
    return frozenset().union(*(_defined_in(ast.parse(path.read_text(encoding="utf-8"))) for path in files))


def _defined_in(tree: ast.Module) -> frozenset[str]:
    """Functions, classes, variables, and attributes that are assigned."""
    nodes = list(ast.walk(tree))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return frozenset(names)


def _executed_on_import(tree: ast.Module):
    """The nodes that run when the module is imported: all but function bodies and `if TYPE_CHECKING:`."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and _name(node.test).split(".")[-1] == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def _bad_code(tree: ast.Module):
    for node in ast.walk(tree):
        name = _name(node)
        if name == "keras.src":
            yield node.lineno, "keras.src is private"
        elif name in ("tf.keras", "tensorflow.keras"):
            yield node.lineno, "Keras is imported as keras"
        elif name.endswith("layers.Lambda") or (
            isinstance(node, ast.ImportFrom) and any(alias.name == "Lambda" for alias in node.names)
        ):
            yield node.lineno, "Lambda layers do not load safely: write a layer"
        elif isinstance(node, ast.Assert):
            yield node.lineno, "assert vanishes under python -O: raise ValueError or TypeError"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.value.lineno, "nothing is unpickled"
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not ast.get_docstring(method):
                    setter = any(_name(decorator).endswith(".setter") for decorator in method.decorator_list)
                    if not (method.name.startswith("_") or method.name in PROTOCOL or setter):
                        yield method.lineno, f"{node.name}.{method.name} has no docstring"


def _name(node: ast.AST) -> str:
    """`a.b.c` for the expression a.b.c; the empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = _name(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


@pytest.mark.once
def test_the_package_keeps_the_rules():
    assert len(list(PACKAGE.rglob("*.py"))) > 1
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


PLANTED = {
    "up": ("layers/planted.py", "from keras_vit.models import ViTConfig", "may not import 'models'"),
    "up_two": ("models/planted.py", "import keras_vit.checkpoints", "may not import 'checkpoints'"),
    "up_relative": ("layers/planted.py", "from ..zoo import create_model", "may not import 'zoo'"),
    "up_from_package": ("checkpoints/planted.py", "from keras_vit import zoo", "may not import 'zoo'"),
    "up_from_dots": ("layers/planted.py", "from .. import models", "may not import 'models'"),
    "up_in_function": ("layers/planted.py", "def f():\n    import keras_vit.models", "may not import 'models'"),
    "up_by_name": (
        "layers/planted.py",
        "import importlib\nimportlib.import_module('keras_vit.models')",
        "may not import 'models'",
    ),
    "public_face": ("models/planted.py", "from keras_vit import ViT_B16", "may not import '__init__'"),
    "beside_up": ("preprocessing/planted.py", "import keras_vit.models", "may not import 'models'"),
    "layers_to_beside": ("layers/planted.py", "import keras_vit.preprocessing", "may not import 'preprocessing'"),
    "zoo_wide": ("zoo.py", "from keras_vit.layers import MLP", "may not import 'layers'"),
    "data_to_models": ("data/planted.py", "import keras_vit.models", "may not import 'models'"),
    "beside_to_data": ("preprocessing/planted.py", "import keras_vit.data", "may not import 'data'"),
    "siblings": ("training/planted.py", "import keras_vit.export", "may not import 'export'"),
    "to_the_top": ("export/planted.py", "import keras_vit.cli", "may not import 'cli'"),
    "face_to_cli": ("__init__.py", "import keras_vit.cli", "may not import 'cli'"),
    "shared_up": ("_files.py", "import keras_vit.layers", "may not import 'layers'"),
    "unknown_file": ("utils.py", "import os", "room 'utils' is not in the table"),
    "unknown_folder": ("helpers/planted.py", "import os", "room 'helpers' is not in the table"),
    **{f"top_level_{name}": ("models/planted.py", f"import {name}", f"'{name}' may only be imported") for name in LAZY},
    "top_level_try": (
        "models/planted.py",
        "try:\n    from torch import nn\nexcept ImportError:\n    pass",
        "'torch' may only be imported",
    ),
    "top_level_class": ("models/planted.py", "class A:\n    import jax.numpy", "'jax' may only be imported"),
    "undeclared": ("models/planted.py", "def f():\n    import pandas", "'pandas' is neither"),
    "undeclared_top": ("models/planted.py", "import scipy.ndimage", "'scipy' is neither"),
    "private_keras": ("layers/planted.py", "from keras.src.backend import x", "keras.src is private"),
    "private_keras_from": ("layers/planted.py", "from keras import src", "keras.src is private"),
    "private_keras_attribute": ("layers/planted.py", "import keras\nx = keras.src.x", "keras.src is private"),
    "private_keras_module": ("_keras.py", "def f():\n    from keras.src.utils import x", "keras.src is private"),
    "private_keras_import": ("_keras.py", "import keras.src.utils", "keras.src is private"),
    "tf_keras": ("export/planted.py", "def f(tf):\n    return tf.keras.Model", "Keras is imported as keras"),
    "private_keras_method": (
        "layers/planted.py",
        "import keras\nclass A(keras.layers.Layer):\n    def _flatten_layers(self):\n        return []",
        "'_flatten_layers' is private in Keras",
    ),
    "private_keras_name": (
        "evaluation/planted.py",
        "def f(layer):\n    return layer._layers",
        "'_layers' is private in",
    ),
    "private_keras_string": (
        "evaluation/planted.py",
        "def f(x):\n    return getattr(x, '_keras_history', None)",
        "'_keras_history' is private in Keras",
    ),
    "private_keras_own": (
        "evaluation/planted.py",
        "import keras\nclass A(keras.optimizers.SGD):\n    def build(self):\n        self._iterations = 1",
        "'_iterations' is private in Keras",
    ),
    "private_of_another_room": (
        "zoo.py",
        "from keras_vit.checkpoints.files.npz import _read_header",
        "private in the room",
    ),
    "private_file_of_another_room": (
        "models/planted.py",
        "import keras_vit.layers._new",
        "private in the room 'layers'",
    ),
    "private_attribute": ("export/planted.py", "def f(model):\n    return model._secret", "'_secret' is private"),
    "lambda_layer": ("models/planted.py", "from keras import layers\nx = layers.Lambda(abs)", "Lambda layers"),
    "lambda_import": ("models/planted.py", "from keras.layers import Lambda", "Lambda layers"),
    "assert": ("models/planted.py", "def f(x):\n    assert x", "assert vanishes"),
    "pickle": ("checkpoints/planted.py", "import pickle", "can run code"),
    "allow_pickle": ("checkpoints/planted.py", "import numpy\nnumpy.load('', allow_pickle=True)", "unpickled"),
    "undocumented": ("models/planted.py", "class A:\n    def f(self):\n        pass", "A.f has no docstring"),
    "long_file": ("models/planted.py", "#\n" * MAX_LINES, f"the limit is {MAX_LINES}"),
}


ALLOWED = {
    "down": ("models/planted.py", "from keras_vit.layers import MLP"),
    "same_room": ("checkpoints/planted.py", "from . import vit_jax\nfrom .vit_jax import NAMES"),
    "relative_down": ("training/recipes/planted.py", "from ...zoo import create_model"),
    "shared": ("layers/planted.py", "from keras_vit._files import weights_folder"),
    "beside": ("models/planted.py", "from keras_vit import preprocessing"),
    "data": ("training/planted.py", "from keras_vit.data import open_data"),
    "zoo": ("zoo.py", "from keras_vit.models import VARIANTS\nfrom keras_vit import checkpoints"),
    "face": ("demo.py", "import keras_vit\nfrom keras_vit import ViT_B16, training"),
    "lazy": ("export/planted.py", "def f():\n    import tensorflow as tf\n    from PIL import Image"),
    "typing": ("models/planted.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    "runtime": ("checkpoints/planted.py", "import h5py\nimport keras\nimport numpy as np\nfrom rich import box"),
    "no_pickle": ("checkpoints/planted.py", "import numpy\nnumpy.load('x', allow_pickle=False)"),
    "private_in_the_room": ("checkpoints/planted.py", "from keras_vit.checkpoints.files.npz import _read_header"),
    "private_of_python": ("export/planted.py", "import os\nos._exit(1)"),
    "private_of_its_own": (
        "export/planted.py",
        "class A:\n    def __init__(self):\n        self._a = 1\n\n\ndef f(a):\n    return a._a",
    ),
    "protocol": ("layers/planted.py", "class A:\n    def call(self, x):\n        return x"),
}


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """A function that plants code in a copy of the package and gives back the breaches that it adds."""
    house = tmp_path_factory.mktemp("house") / "keras_vit"
    shutil.copytree(PACKAGE, house, ignore=shutil.ignore_patterns("__pycache__"))

    def planted(file: str, code: str) -> list[str]:
        path = house / file
        path.parent.mkdir(exist_ok=True, parents=True)
        old = path.read_text(encoding="utf-8") if path.exists() else None
        before = [] if old is None else _violations_of_file(path, house)
        path.write_text(f"{old or ''}\n{code}\n", encoding="utf-8")
        found = [breach for breach in _violations_of_file(path, house) if breach not in before]
        path.unlink() if old is None else path.write_text(old, encoding="utf-8")
        return found

    return planted


@pytest.mark.parametrize("case", PLANTED)
@pytest.mark.once
def test_a_planted_fault_is_found(case, plant):
    file, code, expected = PLANTED[case]
    found = plant(file, code)
    assert len(found) == 1
    assert found[0].startswith(f"{file}:")
    assert expected in found[0]


CIRCLES = {
    "two": {"models/one.py": "import keras_vit.models.two", "models/two.py": "from keras_vit.models import one"},
    "three": {
        "models/one.py": "import keras_vit.models.two",
        "models/two.py": "from . import three",
        "models/three.py": "from .one import x",
    },
    "in_functions": {
        "models/one.py": "def f():\n    import keras_vit.models.two",
        "models/two.py": "def f():\n    import keras_vit.models.one",
    },
    "through_the_room": {
        "models/one.py": "from keras_vit.models import two, f",
        "models/__init__.py": "import keras_vit.models.one",
    },
}


@pytest.mark.parametrize("case", CIRCLES)
@pytest.mark.once
def test_a_planted_circle_is_found(case, tmp_path):
    house = tmp_path / "keras_vit"
    (house / "models").mkdir(parents=True)
    for name in ("__init__", "models/__init__", "models/one", "models/two", "models/three"):
        (house / f"{name}.py").write_text("")
    (house / "zoo.py").write_text("import keras_vit.models.one, keras_vit.models.two")
    assert circles(house) == []
    for file, code in CIRCLES[case].items():
        (house / file).write_text(code)
    (found,) = circles(house)
    assert "keras_vit.models.one" in found and "zoo" not in found


@pytest.mark.once
def test_imports_for_types_are_no_circle(tmp_path):
    house = tmp_path / "keras_vit"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "one.py").write_text("import keras_vit.two")
    (house / "two.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras_vit.one")
    assert circles(house) == []


@pytest.mark.parametrize("case", ALLOWED)
@pytest.mark.once
def test_what_is_allowed_passes(case, plant):
    assert plant(*ALLOWED[case]) == []


@pytest.mark.once
def test_every_runtime_import_is_declared_and_every_lazy_one_has_its_extra():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {re.match(r"\w+", line)[0] for line in project["dependencies"]} == RUNTIME
    assert set(LAZY.values()) - {None} <= set(project["optional-dependencies"])
    assert {name for name, extra in LAZY.items() if extra is None} <= RUNTIME


# One backend at a time, in processes of their own.

FRAMEWORKS = {"tensorflow": {"tensorflow"}, "jax": {"jax", "jaxlib"}, "torch": {"torch"}}
EXTRAS = {"PIL", "matplotlib", "sklearn", "pandas", "onnx", "onnxruntime", "openvino"}
EXTRAS |= {"ai_edge_litert", "ai_edge_quantizer"}
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


@pytest.fixture(params=FRAMEWORKS)
def this_backend(request, backend):
    """Each backend in turn, in the run that is about it: the other two may not be installed here."""
    if request.param != backend:
        pytest.skip(f"this run is about {backend}")
    return request.param


def test_works_where_only_one_backend_is_installed(this_backend):
    result = _run(ONE_BACKEND, MISSING[this_backend])
    assert result["backend"] == this_backend
    assert "keras_vit.layers" in result["modules"]
    assert result["shape"] == [2, 3]


@pytest.mark.once
def test_imports_no_framework_and_no_extra_of_its_own(this_backend):
    loaded = _run(WHAT_IT_LOADS)
    assert "keras_vit" in loaded["keras_vit"]
    late = {name for name, extra in LAZY.items() if extra is None}
    assert set(loaded["keras_vit"]) & (EXTRAS | late | {"scipy"}).union(*FRAMEWORKS.values()) == set()
    # Keras itself loads JAX on the other backends, where it is installed. Nothing else is excused.
    others = set().union(*(FRAMEWORKS[b] for b in FRAMEWORKS if b not in (this_backend, "jax")))
    assert set(loaded["keras"]) & others == set()


@pytest.mark.once
def test_hiding_hides():
    """The two tests above rest on this: a hidden package cannot be imported, even though it is installed."""
    assert importlib.util.find_spec("numpy")
    hidden = _run(
        "import importlib.util\n"
        "try:\n    import numpy.linalg\nexcept ModuleNotFoundError as e:\n    name = e.name\n"
        "print(json.dumps([name, importlib.util.find_spec('numpy') is None]))",
        {"numpy"},
    )
    assert hidden == ["numpy", True]
