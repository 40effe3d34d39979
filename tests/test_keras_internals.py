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
from keras.src.utils.module_utils import tensorflow

from keras_vit import _keras
from tests.test_architecture import is_private


class Outer(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = keras.layers.Dense(2), keras.Sequential([keras.layers.Dense(2)])

    def call(self, x):
        return self.second(self.first(x))


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
    before = tensorflow.available
    with _keras.without_importing_tensorflow():
        assert tensorflow.available == before  # the program uses it
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(KeyError), _keras.without_importing_tensorflow():
        assert tensorflow.available == (backend == "tensorflow" and before)
        with ThreadPoolExecutor(1) as others:  # who see what there is
            assert others.submit(lambda: tensorflow.available).result() == before
        raise KeyError
    assert tensorflow.available == before


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


def test_layers_inside_and_their_own_weights():
    outer = Outer()
    outer(keras.ops.zeros((1, 2)))
    dense = outer.second.layers[0]
    assert _keras.layers_inside(outer)[0] is outer
    inside = _keras.layers_inside(outer, include_self=False)
    assert {id(layer) for layer in inside} >= {id(outer.first), id(outer.second), id(dense)}
    assert outer not in inside
    assert inside.index(outer.second) < inside.index(dense)  # outer ones first
    assert len({id(layer) for layer in inside}) == len(inside)
    assert _keras.own_trainable_weights(outer) == []
    outer.first.trainable = False
    assert [weight.name for weight in _keras.own_trainable_weights(outer.first)] == ["kernel", "bias"]


def nested():
    return keras.Sequential([keras.Input((2,)), functional(name="inner"), keras.layers.ReLU()])


@pytest.mark.parametrize("make", [functional, nested])
def test_models_are_called_layer_by_layer(make):
    model = make()
    called = []

    def call(layer, *args, **kwargs):
        called.append(layer.name)
        return 2 * layer(*args, **kwargs)

    assert _keras.has_graph(model)
    x = keras.random.normal((3, 2))
    times = 2 if make is functional else 4
    wanted = keras.ops.convert_to_numpy(model(x))
    assert (keras.ops.convert_to_numpy(_keras.call_layers(model, x, call)) == times * wanted).all()
    assert called == [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    # On symbolic tensors, too, and nothing of the model changes.
    again = keras.Model(model.inputs, _keras.call_layers(model, model.inputs, call))
    assert (keras.ops.convert_to_numpy(again(x)) == times * wanted).all()
    assert (keras.ops.convert_to_numpy(model(x)) == wanted).all()


class Counted(_keras.DecayingOptimizer, keras.optimizers.SGD):
    """Notes how many gradients Keras clips at once."""

    def __init__(self, **options):
        super().__init__(**options)
        self.clipped = []

    def clip_gradients(self, grads):
        self.clipped.append(len(grads))
        return super().clip_gradients(grads)


def test_steps_of_an_optimizer():
    """Keras clips all gradients of an update at once, and leaves the decay of the weights to it."""
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    optimizer = Counted(learning_rate=0.1, global_clipnorm=1.0, weight_decay=0.1)
    optimizer.build(layer.trainable_variables)
    assert [optimizer.index_of(variable) for variable in layer.trainable_variables] == [0, 1]
    before = layer.get_weights()
    optimizer.apply([keras.ops.zeros(variable.shape) for variable in layer.trainable_variables])
    assert optimizer.clipped == [2]
    assert all(np.array_equal(now, then) for now, then in zip(layer.get_weights(), before, strict=True))
    assert _keras.layout_of(layer.kernel) is None
