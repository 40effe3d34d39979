"""What a block and an attention head give beside their outputs."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.compute import assert_close, filled
from tests.layers import in_numpy

SHAPE = (2, 5, 12)


@pytest.fixture
def block():
    return filled(layers.TransformerBlock(3, 20, name="block"), SHAPE)


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=SHAPE).astype("f4")


def test_the_activations_of_a_block_are_those_of_its_equations(block, x):
    w = in_numpy.weights_of(block)
    y = in_numpy.layer_norm(x.astype("f8"), w, "norm1", 1e-6)
    weights = in_numpy.attention_weights(y, y, in_numpy.inner(w, "attention"), 3)
    attention = in_numpy.attention(y, y, in_numpy.inner(w, "attention"), 3)
    after = x + attention
    mlp = in_numpy.mlp(in_numpy.layer_norm(after, w, "norm2", 1e-6), in_numpy.inner(w, "mlp"), "tanh")
    wanted = {"attention_weights": weights, "attention": attention, "+attention": after, "mlp": mlp}
    assert wanted.keys() == layers.BLOCK_ACTIVATIONS.keys()
    for names in (list(wanted), list(wanted)[::-1], ["mlp"]):
        *got, output = block(x, activations=names)
        assert len(got) == len(names)
        for name, values in zip(names, got, strict=True):
            assert_close(values, wanted[name])
        assert_close(output, after + mlp)
    assert_close(block(x), after + mlp)
    assert_close(block(x, activations=[]), after + mlp)


def test_symbolic_activations_have_true_shapes(block, x):
    names = list(layers.BLOCK_ACTIVATIONS)
    tokens = keras.Input((None, 12))
    outputs = block(tokens, activations=names)
    assert [output.shape for output in outputs] == [(None, 3, None, None)] + 4 * [(None, None, 12)]
    model = keras.Model(tokens, outputs)
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    for got, wanted, symbolic in zip(again(x), block(x, activations=names), outputs, strict=True):
        assert_close(got, keras.ops.convert_to_numpy(wanted))
        assert keras.backend.standardize_dtype(got.dtype) == symbolic.dtype


def test_an_offset_is_added_to_the_attention_weights(block, x):
    w = in_numpy.inner(in_numpy.weights_of(block), "attention")
    offset = np.random.default_rng(2).normal(0, 0.1, (2, 3, 5, 5))
    y = in_numpy.layer_norm(x.astype("f8"), in_numpy.weights_of(block), "norm1", 1e-6)
    weights = in_numpy.attention_weights(y, y, w, 3) + offset
    values = in_numpy.dense(y, w, "value").reshape(2, 5, 3, 4)
    wanted = in_numpy.dense(np.einsum("bhqk,bkhd->bqhd", weights, values).reshape(2, 5, 12), w, "out")
    got, _ = block(x, activations=["attention"], attention_offset=offset.astype("f4"))
    assert_close(got, wanted)
    assert np.abs(wanted - in_numpy.attention(y, y, w, 3)).max() > 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_allowed_shows_in_attention_weights_and_joins_a_causal_mask(causal, x):
    block = filled(layers.TransformerBlock(3, 20, causal=causal), SHAPE)
    allowed = np.array([[[True, True, False, True, True]], [[True, False, False, True, False]]])
    seen = np.broadcast_to(allowed & np.tri(5, dtype=bool) if causal else allowed, (2, 5, 5))
    w, mask = in_numpy.weights_of(block), keras.ops.convert_to_tensor(allowed)
    y = in_numpy.layer_norm(x.astype("f8"), w, "norm1", 1e-6)
    w = in_numpy.inner(w, "attention")
    wanted = in_numpy.attention_weights(y, y, w, 3) * seen[:, None]
    wanted /= wanted.sum(-1, keepdims=True)
    weights, attention, _ = block(x, allowed=mask, activations=["attention_weights", "attention"])
    assert_close(weights, wanted)
    values = in_numpy.dense(y, w, "value").reshape(2, 5, 3, 4)
    wanted = in_numpy.dense(np.einsum("bhqk,bkhd->bqhd", wanted, values).reshape(2, 5, 12), w, "out")
    assert_close(attention, wanted)
    offset = keras.ops.zeros((2, 3, 5, 5))
    assert_close(block(x, allowed=mask, attention_offset=offset, activations=["attention"])[0], wanted)


@pytest.mark.parametrize("names", ["attention", ["attentions"], ["mlp", "output"]])
def test_activations_that_are_none(block, x, names):
    for tokens in (x, keras.Input((5, 12))):
        with pytest.raises(ValueError, match=r"activations must be a list of names from \['attention_weights', 'at"):
            block(tokens, activations=names)


def test_attention_weights_are_float32_in_mixed_precision(x, dtype="mixed_bfloat16"):
    block = filled(layers.TransformerBlock(3, 20, dtype=dtype), SHAPE)
    weights, output = block(x, activations=["attention_weights"])
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert keras.backend.standardize_dtype(output.dtype) == dtype.removeprefix("mixed_")
    assert_close(keras.ops.sum(weights, -1), 1)  # rows of bfloat16 numbers would miss it by up to 4e-3


def test_attention_pooling_says_what_it_reads(x):
    head = filled(layers.MAPHead(3, 20), SHAPE)
    w = in_numpy.weights_of(head)
    probe = np.repeat(w["probe"], 2, 0)
    wanted = in_numpy.attention_weights(x.astype("f8"), probe, in_numpy.inner(w, "attention"), 3)
    assert_close(head.attention_weights(keras.ops.convert_to_tensor(x)), wanted)
    assert wanted.shape == (2, 3, 1, 5)
    # Nothing but token 2, by an offset:
    offset = np.eye(5)[2] - wanted
    alone = np.repeat(x[:, 2:3], 5, 1)
    got = head(x, attention_offset=keras.ops.convert_to_tensor(offset.astype("f4")))
    assert_close(got, keras.ops.convert_to_numpy(head(alone)))
