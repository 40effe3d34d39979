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


# What Keras has on one backend, and what is PyTorch's own.
OF_ONE_BACKEND = {"_purge_model_variables": "jax", "_track_variables": "torch"}
OF_TORCH = {
    "_has_any_global_hook": "nn.modules.module",
    "_current_level": "autograd.forward_ad",
    "_linear_pointwise": "ops.mkldnn",
    "_reorder_linear_weight": "ops.mkldnn",
}


def private_names(tree):
    nodes = [*ast.walk(tree)]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {m.name for cls in nodes if isinstance(cls, ast.ClassDef) for m in cls.body if hasattr(m, "name")}
    asked = [n.args[1] for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "getattr"]
    names |= {str(one.value) for one in asked if isinstance(one, ast.Constant)}
    return {*filter(is_private, names)}


def test_every_private_name_has_its_reason_and_is_there(backend):
    """The reason stands beside its use; a new Keras, or PyTorch, still has each of them."""
    text = Path(_keras.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text)
    users = [part for part in tree.body if private_names(part)]
    unexplained = [part.name for part in users if "Without" not in ast.get_source_segment(text, part)]
    assert len(users) > 10 and not unexplained
    layer = functional().layers[-1]
    objects = (layer, layer.kernel, functional(), keras.optimizers.Optimizer(0.1))
    for name in private_names(tree) - OF_TORCH.keys():
        assert any(hasattr(one, name) for one in objects) or OF_ONE_BACKEND.get(name, backend) != backend, name
    if backend == "torch":
        import torch

        for name, place in OF_TORCH.items():
            assert hasattr(operator.attrgetter(place)(torch), name)


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
