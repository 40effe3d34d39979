"""Every layer that computes something, against an independent implementation in float64."""

import keras
import numpy as np
import pytest
import scipy.signal

from keras_vit import layers
from tests.compute import forward
from tests.layers import in_numpy

# float32 sums of up to 24 products of numbers around 1. Measured: 2e-6; exact and tanh GELU are 3e-4 apart or more.
TOLERANCE = 1e-5


def filled(layer, *shapes):
    """The layer, built, with random weights, and one random input for every shape."""
    with layers.skip_initialization():
        layer.build(*shapes)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(0, 0.4, w.shape) for w in layer.get_weights()])
    return layer, in_numpy.weights_of(layer), *(rng.normal(size=shape).astype("f4") for shape in shapes)


def assert_close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_attention_of_tokens_to_themselves(heads):
    layer, w, x = filled(layers.MultiHeadAttention(heads), (2, 5, 12))
    assert_close(forward(layer, x), in_numpy.attention(x, x, w, heads))
    weights = keras.ops.convert_to_numpy(layer.attention_weights(keras.ops.convert_to_tensor(x)))
    assert_close(weights, in_numpy.attention_weights(x, x, w, heads))
    assert_close(weights.sum(-1), 1)


def test_attention_of_queries_to_other_tokens():
    layer, w, x, q = filled(layers.MultiHeadAttention(3), (2, 5, 12), (2, 4, 12))
    x, q = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(q)
    x_, q_ = (keras.ops.convert_to_numpy(a).astype("f8") for a in (x, q))
    assert_close(keras.ops.convert_to_numpy(layer(x, q)), in_numpy.attention(x_, q_, w, 3))
    weights = keras.ops.convert_to_numpy(layer.attention_weights(x, q))
    assert_close(weights, in_numpy.attention_weights(x_, q_, w, 3))
    assert layer.compute_output_shape((2, 5, 12), (2, 4, 12)) == (2, 4, 12)


def test_attention_that_drops_next_to_nothing_is_attention():
    """With dropout, attention takes another path: weights, dropout, sum. At a tiny rate both must agree."""
    layer, w, x = filled(layers.MultiHeadAttention(3, dropout=0.0), (2, 5, 12))
    dropping = layers.MultiHeadAttention(3, dropout=1e-7)
    with layers.skip_initialization():
        dropping.build((2, 5, 12))
    dropping.set_weights(layer.get_weights())
    assert_close(forward(dropping, x, training=True), in_numpy.attention(x, x, w, 3))
    # And at a large rate not (at inference they do: test_every_layer).
    dropping.dropout = 0.5
    assert np.abs(forward(dropping, x, training=True) - in_numpy.attention(x, x, w, 3)).max() > 0.1


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("shape", [(3, 12), (2, 5, 12)])
def test_mlp(gelu, shape):
    layer, w, x = filled(layers.MLP(24, gelu), shape)
    assert_close(forward(layer, x), in_numpy.mlp(x, w, gelu))
    other = "exact" if gelu == "tanh" else "tanh"
    assert np.abs(in_numpy.mlp(x, w, other) - in_numpy.mlp(x, w, gelu)).max() > 10 * TOLERANCE


@pytest.mark.parametrize(("gelu", "epsilon"), [("tanh", 1e-6), ("exact", 1e-1)])
def test_transformer_block(gelu, epsilon):
    layer, w, x = filled(layers.TransformerBlock(3, 24, gelu=gelu, epsilon=epsilon), (2, 5, 12))
    assert_close(forward(layer, x), in_numpy.block(x.astype("f8"), w, 3, gelu, epsilon))


@pytest.mark.parametrize(("gelu", "epsilon"), [("tanh", 1e-6), ("exact", 1e-1)])
def test_map_head(gelu, epsilon):
    layer, w, x = filled(layers.MAPHead(3, 24, gelu, epsilon), (2, 5, 12))
    assert_close(forward(layer, x), in_numpy.map_head(x.astype("f8"), w, 3, gelu, epsilon))


@pytest.mark.parametrize("patch_size", [2, (2, 3), (3, 1)])
def test_patch_embedding(patch_size):
    layer, w, x = filled(layers.PatchEmbedding(7, patch_size), (2, 6, 6, 3))
    rows, columns = layer.patch_size
    wanted = np.einsum("bicjdp,cdpw->bijw", x.reshape(2, 6 // rows, rows, 6 // columns, columns, 3), w["kernel"])
    got = forward(layer, x)
    assert got.shape == (2, 6 // rows, 6 // columns, 7)
    assert_close(got, wanted + w["bias"])


def test_class_token():
    layer, w, x = filled(layers.ClassToken(), (2, 5, 12))
    y = forward(layer, x)
    np.testing.assert_array_equal(y[:, 1:], x)
    np.testing.assert_array_equal(y[:, 0], np.repeat(w["token"][0].astype("f4"), 2, 0))
    fresh = layers.ClassToken()
    fresh.build((2, 5, 12))
    assert not np.any(fresh.get_weights()[0])


@pytest.mark.parametrize(("mode", "prefix"), [("token", 1), ("avg", 0), ("avg", 1), ("avg", 3)])
def test_token_pooling(mode, prefix):
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("f4")
    wanted = x[:, 0] if mode == "token" else x[:, prefix:].mean(1)
    assert_close(forward(layers.TokenPooling(mode, prefix), x), wanted)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("embed_prefix", [True, False])
def test_position_embedding(prefix, embed_prefix):
    layer = layers.AddPositionEmbedding((2, 3), prefix, embed_prefix=embed_prefix)
    layer, w, x = filled(layer, (2, prefix + 6, 12))
    table = w["table"][0]
    assert table.shape == (6 + prefix * embed_prefix, 12)
    if not embed_prefix:
        table = np.concatenate([np.zeros((prefix, 12)), table])
    assert_close(forward(layer, x), x + table)


def test_standardised_convolution_padded_by_hand():
    layer, w, x = filled(layers.StdConv2D(4, 3, padding=1), (1, 5, 6, 2))
    kernel = w["kernel"] - w["kernel"].mean((0, 1, 2))
    kernel = kernel / (np.sqrt((kernel**2).mean((0, 1, 2))) + 1e-5)
    wanted = [
        sum(scipy.signal.correlate2d(x[0, :, :, c], kernel[:, :, c, f], "same") for c in range(2)) for f in range(4)
    ]
    np.testing.assert_allclose(forward(layer, x)[0], np.stack(wanted, -1), rtol=0, atol=2 * TOLERANCE)


# What layers refuse


def test_heads_that_do_not_divide():
    for layer in (layers.MultiHeadAttention(5), layers.TransformerBlock(5, 24), layers.MAPHead(5, 24)):
        with pytest.raises(ValueError, match="heads must divide the width .* 5 heads .* width 12"):
            layer(np.zeros((2, 3, 12), "f4"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.MLP(24, gelu="quick"), "gelu must be one of .*'tanh', 'exact'.*'quick'"),
        (lambda: layers.TokenPooling("max"), "mode must be 'token' or 'avg', but 'max'"),
        (lambda: layers.AddPositionEmbedding((2, 3), interpolation="cubic"), "interpolation must be one of .*'cubic'"),
    ],
)
def test_unknown_names(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("height", "width", "axis"), [(7, 6, "height"), (6, 7, "width"), (1, 6, "height")])
def test_images_that_do_not_divide(height, width, axis):
    layer = layers.PatchEmbedding(7, 2)
    with pytest.raises(ValueError, match=f"{axis} of the input .* not a multiple of the patch size 2. Resize or pad"):
        layer(np.zeros((1, height, width, 3), "f4"))
    with pytest.raises(ValueError, match="not a multiple"):
        layer.compute_output_shape((None, height, width, 3))


def test_tokens_that_do_not_fit_the_table():
    """5 tokens and a table of 7 rows: an error, not a broadcast."""
    layer = layers.AddPositionEmbedding((2, 3), 1)
    layer.build((None, 7, 12))
    with pytest.raises(Exception, match="7"):
        layer(np.zeros((1, 5, 12), "f4"))
