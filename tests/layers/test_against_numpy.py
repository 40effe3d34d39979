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


@pytest.mark.parametrize("bias", ["all", "no_key", "none"])
@pytest.mark.parametrize("norm", [False, True])
def test_attention_without_biases_and_with_a_norm_inside(bias, norm):
    layer, w, x = filled(layers.MultiHeadAttention(3, bias=bias, norm=norm, epsilon=1e-2), (2, 5, 12))
    biases = {"all": {"query", "key", "value", "out"}, "no_key": {"query", "value", "out"}, "none": {"out"}}[bias]
    assert {path.removesuffix("/bias") for path in w if path.endswith("/bias")} == biases
    assert ("norm/gamma" in w) == norm
    assert_close(forward(layer, x), in_numpy.attention(x, x, w, 3, epsilon=1e-2))


ANGLES = {"dinov3": in_numpy.dinov3_angles, "eva02": in_numpy.eva02_angles}


@pytest.mark.parametrize("kind", ANGLES)
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (1, 1), (3, 2)])
def test_rotary_embedding(kind, rows, columns):
    layer = layers.RotaryEmbedding(kind, 8, prefix_tokens=2)
    sin, cos = forward(layer, np.zeros((5, rows, columns, 16), "f4"))
    angles = ANGLES[kind](rows, columns, 8)
    pairs = np.concatenate([angles] * 2, 1) if kind == "dinov3" else np.repeat(angles, 2, 1)
    assert sin.shape == cos.shape == (2 + rows * columns, 8)
    np.testing.assert_array_equal([sin[:2], cos[:2]], [np.zeros((2, 8)), np.ones((2, 8))])
    assert_close(sin[2:], np.sin(pairs))
    assert_close(cos[2:], np.cos(pairs))


def test_rotary_embedding_with_another_reference_grid():
    sin, _ = forward(layers.RotaryEmbedding("eva02", 8, 0, (5, 7)), np.zeros((1, 2, 3, 16), "f4"))
    assert_close(sin, np.sin(np.repeat(in_numpy.eva02_angles(2, 3, 8, (5, 7)), 2, 1)))


def test_rotary_embedding_of_the_original_code(golden):
    """timm's tables, and those of periods that were rounded to bfloat16, as Facebook's files hold them."""
    ref = golden("fam_rope").ref
    for name in ref:
        family, size, grid, values = name.split("/")
        size, (rows, columns) = int(size[1:]), map(int, grid.split("x"))
        layer = layers.RotaryEmbedding({"eva": "eva02", "dinov3": "dinov3"}[family], size, 0)
        layer.build((1, rows, columns, 4))
        if values.endswith("_bf16_periods"):
            rounded = keras.ops.cast(keras.ops.cast(layer.periods, "bfloat16"), "float32")
            layer.periods.assign(rounded)
        sin, cos = forward(layer, np.zeros((1, rows, columns, 4), "f4"))
        # Angles of up to 16 in float32: 1e-6, and the sine has its own rounding.
        got = sin if values.startswith("sin") else cos
        np.testing.assert_allclose(got, ref[name], rtol=0, atol=4e-6, err_msg=name)


@pytest.mark.parametrize("kind", ANGLES)
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_attention_with_rotary_embeddings(kind, prefix):
    """Against complex numbers: patches are turned, and the tokens before them are not."""
    layer, w, x = filled(layers.MultiHeadAttention(2, rotary_embedding=kind), (2, prefix + 6, 16))
    rotation = forward(layers.RotaryEmbedding(kind, 8, prefix), np.zeros((2, 2, 3, 16), "f4"))
    angles = np.concatenate([np.zeros((prefix, 4)), ANGLES[kind](2, 3, 8)])
    wanted = in_numpy.attention(x, x, w, 2, lambda y: in_numpy.turned(y, angles, kind))
    x, rotation = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(rotation)
    assert_close(keras.ops.convert_to_numpy(layer(x, rotation=rotation)), wanted)
    weights = keras.ops.convert_to_numpy(layer.attention_weights(x, rotation=rotation))
    x = keras.ops.convert_to_numpy(x)
    assert_close(weights, in_numpy.attention_weights(x, x, w, 2, lambda y: in_numpy.turned(y, angles, kind)))
    assert np.abs(wanted - in_numpy.attention(x, x, w, 2)).max() > 100 * TOLERANCE
    # With dropout attention takes the other path.
    dropping = layers.MultiHeadAttention(2, dropout=1e-7, rotary_embedding=kind)
    with layers.skip_initialization():
        dropping.build(x.shape)
    dropping.set_weights(layer.get_weights())
    y = dropping(keras.ops.convert_to_tensor(x), rotation=rotation, training=True)
    assert_close(keras.ops.convert_to_numpy(y), wanted)


@pytest.mark.parametrize(("made_for", "passed"), [(None, True), ("dinov3", False)])
def test_a_rotation_that_nobody_expects_or_that_is_missing(made_for, passed):
    layer = layers.MultiHeadAttention(2, rotary_embedding=made_for)
    rotation = np.zeros((2, 3, 4), "f4") if passed else None
    with pytest.raises(
        ValueError, match=f"made with rotary_embedding={made_for!r} and needs {'no' if passed else 'a'}"
    ):
        layer(np.zeros((1, 3, 8), "f4"), rotation=rotation)


@pytest.mark.parametrize("gelu", ["tanh", "exact", "quick"])
@pytest.mark.parametrize("shape", [(3, 12), (2, 5, 12)])
def test_mlp(gelu, shape):
    layer, w, x = filled(layers.MLP(24, gelu), shape)
    assert_close(forward(layer, x), in_numpy.mlp(x, w, gelu))
    for other in {"tanh", "exact", "quick"} - {gelu}:
        assert np.abs(in_numpy.mlp(x, w, other) - in_numpy.mlp(x, w, gelu)).max() > 10 * TOLERANCE


@pytest.mark.parametrize("norm", [False, True])
def test_swiglu(norm):
    layer, w, x = filled(layers.SwiGLU(20, norm, epsilon=1e-2), (2, 5, 12))
    assert ("norm/gamma" in w) == norm and w["gate/kernel"].shape == (12, 20)
    wanted = in_numpy.mlp(x, w, None, epsilon=1e-2)
    assert_close(forward(layer, x), wanted)
    swapped = {**w, "gate/kernel": w["value/kernel"], "value/kernel": w["gate/kernel"]}
    assert np.abs(in_numpy.mlp(x, swapped, None, epsilon=1e-2) - wanted).max() > 0.1


def test_layer_scale():
    layer, w, x = filled(layers.LayerScale(), (2, 5, 12))
    assert_close(forward(layer, x), x * w["gamma"])
    fresh = layers.LayerScale(1e-3)
    fresh.build((2, 5, 12))
    np.testing.assert_allclose(fresh.get_weights()[0], np.full(12, 1e-3, "f4"))


def test_register_tokens():
    layer, w, x = filled(layers.RegisterTokens(3), (2, 5, 12))
    y = forward(layer, x)
    np.testing.assert_array_equal(y[:, 3:], x)
    np.testing.assert_array_equal(y[:, :3], np.repeat(w["tokens"].astype("f4"), 2, 0))


@pytest.mark.parametrize(("gelu", "epsilon"), [("tanh", 1e-6), ("exact", 1e-1)])
def test_transformer_block(gelu, epsilon):
    layer, w, x = filled(layers.TransformerBlock(3, 24, gelu=gelu, epsilon=epsilon), (2, 5, 12))
    assert_close(forward(layer, x), in_numpy.block(x.astype("f8"), w, 3, gelu, epsilon))


@pytest.mark.parametrize("mlp", ["plain", "plain_norm", "swiglu", "swiglu_norm"])
def test_transformer_block_with_everything(mlp):
    options = {"mlp": mlp, "layer_scale": 0.1, "attention_bias": "no_key", "attention_norm": True, "epsilon": 1e-2}
    layer = layers.TransformerBlock(2, 24, **options, rotary_embedding="eva02")
    layer, w, x = filled(layer, (2, 7, 16))
    angles = np.concatenate([np.zeros((1, 4)), in_numpy.eva02_angles(2, 3, 8)])
    wanted = in_numpy.block(x.astype("f8"), w, 2, "tanh", 1e-2, lambda y: in_numpy.turned(y, angles, "eva02"))
    rotation = forward(layers.RotaryEmbedding("eva02", 8, 1), np.zeros((2, 2, 3, 16), "f4"))
    y = layer(keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(rotation))
    assert_close(keras.ops.convert_to_numpy(y), wanted)


@pytest.mark.parametrize(("gelu", "epsilon"), [("tanh", 1e-6), ("exact", 1e-1)])
def test_map_head(gelu, epsilon):
    layer, w, x = filled(layers.MAPHead(3, 24, gelu, epsilon), (2, 5, 12))
    assert_close(forward(layer, x), in_numpy.map_head(x.astype("f8"), w, 3, gelu, epsilon))
    layer.skipped_tokens = 2
    assert_close(forward(layer, x), in_numpy.map_head(x[:, 2:].astype("f8"), w, 3, gelu, epsilon))


@pytest.mark.parametrize("patch_size", [2, (2, 3), (3, 1)])
def test_patch_embedding(patch_size):
    layer, w, x = filled(layers.PatchEmbedding(7, patch_size), (2, 6, 6, 3))
    rows, columns = layer.patch_size
    wanted = np.einsum("bicjdp,cdpw->bijw", x.reshape(2, 6 // rows, rows, 6 // columns, columns, 3), w["kernel"])
    got = forward(layer, x)
    assert got.shape == (2, 6 // rows, 6 // columns, 7)
    assert_close(got, wanted + w["bias"])
    plain = layers.PatchEmbedding(7, patch_size, bias=False)
    plain.build((2, 6, 6, 3))
    plain.set_weights([w["kernel"]])
    assert_close(forward(plain, x), wanted)


def test_class_token():
    layer, w, x = filled(layers.ClassToken(), (2, 5, 12))
    y = forward(layer, x)
    np.testing.assert_array_equal(y[:, 1:], x)
    np.testing.assert_array_equal(y[:, 0], np.repeat(w["token"][0].astype("f4"), 2, 0))
    fresh = layers.ClassToken()
    fresh.build((2, 5, 12))
    assert not np.any(fresh.get_weights()[0])


POOLINGS = [("token", 1), ("token_dist", 2), ("avg", 0), ("avg", 1), ("avg", 3), ("token_avg", 2)]


@pytest.mark.parametrize(("mode", "prefix"), POOLINGS)
@pytest.mark.parametrize("token", [0, 1])
def test_token_pooling(mode, prefix, token):
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("f4")
    mean = x[:, prefix:].mean(1)
    wanted = {
        "token": x[:, token],
        "token_dist": x[:, token : token + 2].mean(1),
        "avg": mean,
        "token_avg": np.concatenate([x[:, token], mean], 1),
    }[mode]
    assert_close(forward(layers.TokenPooling(mode, prefix, token), x), wanted)


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


def test_position_embedding_with_registers_that_have_none():
    """Two tokens with rows, three without, six patches."""
    layer, w, x = filled(layers.AddPositionEmbedding((2, 3), 5, register_tokens=3), (2, 5 + 6, 12))
    assert w["table"].shape == (1, 8, 12)
    table = np.concatenate([w["table"][0, :2], np.zeros((3, 12)), w["table"][0, 2:]])
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
        (lambda: layers.MLP(24, gelu="relu"), "gelu must be one of .*'tanh', 'exact', 'quick'.*'relu'"),
        (lambda: layers.TokenPooling("max"), "mode must be one of .*'token', 'avg', 'token_avg'.* but 'max'"),
        (lambda: layers.MultiHeadAttention(2, bias="some"), "bias must be one of .*'no_key'.* but 'some'"),
        (lambda: layers.MultiHeadAttention(2, rotary_embedding="eva"), "rotary_embedding must be one of .*'eva'"),
        (lambda: layers.TransformerBlock(2, 24, mlp="glu"), "mlp must be one of .*'swiglu'.* but 'glu'"),
        (lambda: layers.RotaryEmbedding("eva", 8), "kind must be one of .*'dinov3', 'eva02'.* but 'eva'"),
        (lambda: layers.RotaryEmbedding("eva02", 6), "size must be a multiple of 4, but 6"),
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
