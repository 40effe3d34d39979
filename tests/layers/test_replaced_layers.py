"""A layer inside a block that is no longer the package's own is called as Keras calls it: nothing it does is lost.

On PyTorch: on other backends every layer is called as Keras does.
"""

import keras
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from keras_vit import layers
from keras_vit.layers.base import Dense
from tests.compute import filled

WIDTH = 12  # of everything, so that any layer fits anywhere
PLACES = ["norm1", "attention", "scale1", "norm2", "mlp", "scale2"]
PLACES += ["attention/query", "attention/key", "attention/value", "attention/norm", "attention/out"]
PLACES += ["mlp/fc1", "mlp/norm", "mlp/fc2"]
every_place = pytest.mark.parametrize("place", PLACES)
pytestmark = pytest.mark.once


def make_block():
    block = layers.TransformerBlock(2, WIDTH, layer_scale=0.5, mlp="plain_norm", attention_norm=True)
    x = np.random.default_rng(1).normal(size=(3, 5, WIDTH)).astype("f4")
    return filled(block, x.shape), keras.ops.convert_to_tensor(x)


def owner_and_name(block, place):
    *outer, name = place.split("/")
    return (getattr(block, outer[0]) if outer else block), name


def replace(block, place, layer):
    """Puts a layer in the place of another one, as who changes a built model has to."""
    owner, name = owner_and_name(block, place)
    owner._tracker.unlock()
    setattr(owner, name, layer)
    owner._tracker.lock()
    if not layer.built:
        layer.build((3, 5, WIDTH))
    return layer


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor).copy()


class OwnDense(Dense):
    calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return super().__call__(*args, **kwargs)


@every_place
def test_it_is_called_as_keras_calls_it(place):
    block, x = make_block()
    replace(block, place, keras.layers.Dropout(0.5))
    first, second = (numpy(block(x, training=True)) for _ in range(2))
    np.testing.assert_array_equal(numpy(block(x, training=False)), numpy(block(x)))
    assert (first != second).any()
    layer = replace(block, place, OwnDense(WIDTH))
    for training in (False, True):
        block(x, training=training)
    assert layer.calls == 2
    replace(block, place, keras.layers.Dense(WIDTH, activity_regularizer=keras.regularizers.L2(0.1)))
    block(x)
    assert [numpy(loss) > 0 for loss in block.losses] == [True]
    layer = replace(block, place, keras.layers.Dense(WIDTH))
    layer.quantize("int8")
    quantized_call, calls = layer.quantized_call, []
    layer.quantized_call = lambda *args, **kwargs: calls.append(1) or quantized_call(*args, **kwargs)
    assert np.isfinite(numpy(block(x))).all() and calls == [1]


@every_place
def test_a_wrapped_call_may_keep_what_it_sees(place):
    block, x = make_block()
    layer = getattr(*owner_and_name(block, place))
    call, kept = layer.call, []

    def wrapped(*args, **kwargs):
        y = call(*args, **kwargs)
        kept.append((y, numpy(y)))
        return y

    layer.call = wrapped
    before = numpy(make_block()[0](x))
    with torch.no_grad():  # where nothing is kept for gradients, memory may be written over
        y = block(x)
    np.testing.assert_allclose(numpy(y), before, rtol=0, atol=1e-5)
    ((seen, then),) = kept
    np.testing.assert_array_equal(numpy(seen), then)


def test_what_a_recorder_of_operations_keeps_is_not_written_over():
    kept = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            y = function(*args, **(kwargs or {}))
            if isinstance(y, torch.Tensor):
                kept.append((str(function), y, y.detach().clone()))
            return y

    unit = layers.ResNetUnit(32)
    unit.build((None, 4, 4, 32))
    for layer, x in (make_block(), (unit, torch.randn(2, 4, 4, 32))):
        with torch.no_grad(), Recorder():
            layer(x)
    assert [name for name, y, then in kept if not torch.equal(y, then)] == []


def test_a_layer_that_keras_recomputes_is_recomputed(monkeypatch):
    block, x = make_block()
    with keras.RematScope(mode="full"):
        layer = Dense(WIDTH)
    replace(block, "mlp/fc1", layer)
    calls, method = [], Dense.rematerialized_call
    monkeypatch.setattr(Dense, "rematerialized_call", lambda *a, **k: calls.append(a[:2]) or method(*a, **k))
    block(x, training=True)
    assert [one for one, call in calls if call == one.call] == [layer]
