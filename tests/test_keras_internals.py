"""What this package knows of the inside of Keras: a new Keras in which it is otherwise fails here, and says where."""

import ast
import operator
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
from keras.src.utils import module_utils  # `tensorflow` itself among a test's names: pytest would import it

from keras_vit import _keras
from tests.test_architecture import is_private


def functional(**options):
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(2, name="dense")(inputs), **options)


def test_every_private_name_has_its_reason():
    """The table is what the file uses, no more and no less, and Keras still has each of them."""
    tree = ast.parse(Path(_keras.__file__).read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {m.name for cls in nodes if isinstance(cls, ast.ClassDef) for m in cls.body if hasattr(m, "name")}
    names |= {n.args[1].value for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "getattr"}
    theirs = {path.rpartition(".")[2] for path in _keras.PRIVATE_IN_TORCH}
    assert {*filter(is_private, names)} - theirs == {*_keras.PRIVATE, *_keras.PRIVATE_IN_JAX, *_keras.PRIVATE_ON_TORCH}
    if keras.backend.backend() == "jax":
        assert all(hasattr(functional(), name) for name in _keras.PRIVATE_IN_JAX)
    layer = functional().layers[-1]
    objects = (layer, layer.kernel, functional(), keras.optimizers.Optimizer(0.1))
    assert all(any(hasattr(one, name) for one in objects) for name in _keras.PRIVATE)
    if keras.backend.backend() == "torch":
        import torch

        assert all(hasattr(functional(), name) for name in _keras.PRIVATE_ON_TORCH)
        for path in _keras.PRIVATE_IN_TORCH:
            assert operator.attrgetter(path.removeprefix("torch."))(torch)
    reasons = _keras.PRIVATE | _keras.PRIVATE_IN_TORCH | _keras.PRIVATE_IN_JAX | _keras.PRIVATE_ON_TORCH
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "keras.src" in str(node.module)]
    modules = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert modules == _keras.PRIVATE_MODULES.keys()
    assert all("Without it" in reason for reason in [*reasons.values(), *_keras.PRIVATE_MODULES.values()])


def test_tensorflow_is_missing_where_nobody_has_imported_it(backend, monkeypatch):
    before = module_utils.tensorflow.available
    with _keras.without_importing_tensorflow():
        assert module_utils.tensorflow.available == before  # the program uses it
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(KeyError), _keras.without_importing_tensorflow():
        assert module_utils.tensorflow.available == (backend == "tensorflow" and before)
        with ThreadPoolExecutor(1) as others:  # who see what there is
            assert others.submit(lambda: module_utils.tensorflow.available).result() == before
        raise KeyError
    assert module_utils.tensorflow.available == before


def draws():
    """What has random numbers gives next."""
    arrays = [keras.random.normal((3,)), keras.initializers.GlorotUniform()((2, 2))]
    arrays.append(keras.layers.Dropout(0.5)(keras.ops.ones(20), training=True))
    if keras.backend.backend() == "torch":
        import torch

        arrays.append(torch.rand(3))
    return [random.random(), np.random.rand(), *(keras.ops.convert_to_numpy(array).tobytes() for array in arrays)]


def test_a_seed_gives_the_random_numbers_of_keras(backend, monkeypatch):
    keras.utils.set_random_seed(7)
    expected = draws()
    assert draws() != expected
    if backend != "tensorflow":
        monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    _keras.set_random_seed(7)
    assert draws() == expected
    with pytest.raises(ValueError, match="seed"):
        _keras.set_random_seed(None)
