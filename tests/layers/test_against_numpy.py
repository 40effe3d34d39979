"""Every layer that computes something, against an independent implementation in float64."""

import inspect

import keras
import numpy as np
import pytest
from scipy.signal import correlate2d

from keras_vit import layers
from tests.compute import assert_close, filled, forward
from tests.layers import in_numpy

TOKENS = (2, 5, 12)


def prepared(layer, *shapes):
    """The layer with random weights, these, and one random input for every shape."""
    rng, layer = np.random.default_rng(0), filled(layer, *shapes)
    return layer, in_numpy.weights_of(layer), *(rng.normal(size=shape).astype("f4") for shape in shapes)


def pooled(layer, x, w):
    mean, token = x[:, layer.prefix_tokens :].mean(1), x[:, layer.token]
    both = x[:, layer.token : layer.token + 2].mean(1)
    return {"token": token, "token_dist": both, "avg": mean, "token_avg": np.concatenate([token, mean], 1)}[layer.mode]


def patches(layer, x, w):
    rows, columns = layer.patch_size
    x = x.reshape(2, 6 // rows, rows, 6 // columns, columns, 3)
    return np.einsum("bicjdp,cdpw->bijw", x, w["kernel"]) + w.get("bias", 0)


def with_positions(layer, x, w):
    """Registers have no row in the table, nor has any token before the patches without `embed_prefix`."""
    rows = layer.prefix_tokens - layer.register_tokens if layer.embed_prefix else 0
    table = w["table"][0]
    assert len(table) == rows + 6
    return x + np.concatenate([table[:rows], np.zeros((layer.prefix_tokens - rows, 12)), table[rows:]])


# What comes of an input and the weights of a layer.
REFERENCES = {
    layers.MultiHeadAttention: lambda layer, x, w: in_numpy.attention(x, x, w, layer.heads, epsilon=layer.epsilon),
    layers.MLP: lambda layer, x, w: in_numpy.mlp(x, w, layer.gelu),
    layers.SwiGLU: lambda layer, x, w: in_numpy.mlp(x, w, None, layer.epsilon),
    layers.LayerScale: lambda layer, x, w: x * w["gamma"],
    layers.ClassToken: lambda layer, x, w: np.concatenate([np.repeat(w["token"], 2, 0), x], 1),
    layers.RegisterTokens: lambda layer, x, w: np.concatenate([np.repeat(w["tokens"], 2, 0), x], 1),
    layers.TransformerBlock: lambda layer, x, w: in_numpy.block(x, w, 3, layer.gelu, layer.epsilon),
    layers.MAPHead: lambda one, x, w: in_numpy.map_head(x[:, one.skipped_tokens :], w, 3, one.gelu, one.epsilon),
    layers.PatchEmbedding: patches,
    layers.TokenPooling: pooled,
    layers.AddPositionEmbedding: with_positions,
}
POOLINGS = [("token", 1), ("token_dist", 2), ("avg", 0), ("avg", 3), ("token_avg", 2)]
PREFIXES = [(n, embed, 0) for n in (0, 1, 2) for embed in (True, False)] + [(5, True, 3)]
CASES = [
    *((layers.MultiHeadAttention(heads), TOKENS) for heads in (1, 3, 12)),
    *(
        (layers.MultiHeadAttention(3, bias=bias, norm=norm, epsilon=1e-2), TOKENS)
        for bias in ("all", "no_key", "none")
        for norm in (False, True)
    ),
    *((layers.MLP(24, gelu), shape) for gelu in ("tanh", "exact", "quick") for shape in ((3, 12), TOKENS)),
    *((layers.SwiGLU(20, norm, epsilon=1e-2), TOKENS) for norm in (False, True)),
    *((layer, TOKENS) for layer in (layers.LayerScale(), layers.ClassToken(), layers.RegisterTokens(3))),
    (layers.TransformerBlock(3, 24), TOKENS),
    (layers.TransformerBlock(3, 24, gelu="exact", epsilon=0.1), TOKENS),
    (layers.MAPHead(3, 24), TOKENS),
    (layers.MAPHead(3, 24, "exact", 0.1, skipped_tokens=2), TOKENS),
    *((layers.PatchEmbedding(7, n, bias=bias), (2, 6, 6, 3)) for n in (2, (2, 3), (3, 1)) for bias in (True, False)),
    *((layers.TokenPooling(mode, prefix, token=1), TOKENS) for mode, prefix in POOLINGS),
    *(
        (layers.AddPositionEmbedding((2, 3), n, embed_prefix=embed, register_tokens=registers), (2, n + 6, 12))
        for n, embed, registers in PREFIXES
    ),
]


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=[type(layer).__name__ for layer, _ in CASES])
def test_layer(layer, shape):
    layer, w, x = prepared(layer, shape)
    assert_close(forward(layer, x), REFERENCES[type(layer)](layer, x.astype("f8"), w))


def test_first_values():
    for layer, first in ((layers.LayerScale(1e-3), np.float32(1e-3)), (layers.ClassToken(), 0)):
        layer.build(TOKENS)
        np.testing.assert_array_equal(layer.get_weights()[0].squeeze(), np.full(12, first))


def test_attention_of_queries_to_other_tokens():
    layer, w, x, q = prepared(layers.MultiHeadAttention(3), TOKENS, (2, 4, 12))
    wanted = in_numpy.attention(x.astype("f8"), q.astype("f8"), w, 3)
    x_, q_ = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(q)
    assert_close(layer(x_, q_), wanted)
    weights = layer.attention_weights(x_, q_)
    assert_close(weights, in_numpy.attention_weights(x.astype("f8"), q.astype("f8"), w, 3))
    assert_close(keras.ops.sum(weights, -1), 1)
    assert layer.compute_output_shape(TOKENS, (2, 4, 12)) == (2, 4, 12)


ANGLES = {"dinov3": in_numpy.dinov3_angles, "eva02": in_numpy.eva02_angles}


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "grid"),
    [*((kind, *size, ()) for kind in ANGLES for size in ((2, 3), (1, 1), (3, 2))), ("eva02", 2, 3, ((5, 7),))],
)
def test_rotary_embedding(kind, rows, columns, grid):
    sin, cos = forward(layers.RotaryEmbedding(kind, 8, 2, *grid), np.zeros((5, rows, columns, 16), "f4"))
    angles = ANGLES[kind](rows, columns, 8, *grid)
    pairs = np.concatenate([angles] * 2, 1) if kind == "dinov3" else np.repeat(angles, 2, 1)
    assert sin.shape == cos.shape == (2 + rows * columns, 8)
    np.testing.assert_array_equal([sin[:2], cos[:2]], [np.zeros((2, 8)), np.ones((2, 8))])
    assert_close(sin[2:], np.sin(pairs))
    assert_close(cos[2:], np.cos(pairs))


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


@pytest.mark.parametrize("dropout", [0.0, 1e-7])  # with dropout attention takes the other path
@pytest.mark.parametrize("kind", ANGLES)
@pytest.mark.parametrize("prefix", [0, 3])
def test_attention_with_rotary_embeddings(kind, prefix, dropout):
    """Against complex numbers: patches are turned, and the tokens before them are not."""
    layer = layers.MultiHeadAttention(2, rotary_embedding=kind)
    layer, w, x = prepared(layer, (2, prefix + 6, 16))
    rotation = forward(layers.RotaryEmbedding(kind, 8, prefix), np.zeros((2, 2, 3, 16), "f4"))
    angles = np.concatenate([np.zeros((prefix, 4)), ANGLES[kind](2, 3, 8)])

    def turn(y):
        return in_numpy.turned(y, angles, kind)

    wanted = in_numpy.attention(x, x, w, 2, turn)
    layer = filled(layers.MultiHeadAttention(2, dropout, rotary_embedding=kind), x.shape)
    # Scores of up to 18, whose rounding, after three products, goes into an exponential: 1.0e-5 on some processors.
    assert_close(forward(layer, x, rotation=rotation, training=bool(dropout)), wanted, 2e-5)
    x_ = keras.ops.convert_to_tensor(x)
    weights = layer.attention_weights(x_, rotation=keras.ops.convert_to_tensor(rotation))
    assert_close(weights, in_numpy.attention_weights(x, x, w, 2, turn))
    assert np.abs(wanted - in_numpy.attention(x, x, w, 2)).max() > 1e-3


def test_standardised_convolution_padded_by_hand():
    layer, w, x = prepared(layers.StdConv2D(4, 3, padding=1), (1, 5, 6, 2))
    kernel = w["kernel"] - w["kernel"].mean((0, 1, 2))
    kernel = kernel / (np.sqrt((kernel**2).mean((0, 1, 2))) + 1e-5)
    wanted = [sum(correlate2d(x[0, :, :, c], kernel[:, :, c, f], "same") for c in range(2)) for f in range(4)]
    assert_close(forward(layer, x)[0], np.stack(wanted, -1), 2e-5)


ZEROS = np.zeros((2, 3, 12), "f4")


@pytest.mark.once
@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda layer=layer: layer(ZEROS), "heads must divide the width .* 5 .* width 12")
            for layer in (layers.MultiHeadAttention(5), layers.TransformerBlock(5, 24), layers.MAPHead(5, 24))
        ),
        (lambda: layers.TokenDropout(1.0), "dropout must be a number from 0 to below 1, but 1.0 was given"),
        (lambda: layers.PatchDropout(-0.1), "rate must be a number from 0 to below 1, but -0.1"),
        (lambda: layers.PatchEmbedding(7, (2, 0)), r"patch_size must be positive integers, but \(2, 0\)"),
        (lambda: layers.BatchNormalization(axis=1), "axis must be one of .*-1.*, but 1"),
        (lambda: layers.UpscaleBlock("gelu"), "activation must be one of .*'exact'.* but 'gelu'"),
        (lambda: layers.DepthHead(4, patch_size=(2, 2))(ZEROS[None]), r"=\(2, 2\), so patches must be passed"),
        (lambda: layers.TextPooling("largest_id", end_id=3), "end_id needs kind='end_id' and the reverse, but 3, 'l"),
        (lambda: layers.FeatureFusion()(ZEROS[None]), "has skip=True, so a shallower map must be passed"),
        (lambda: layers.resize(ZEROS[None], (3, 3), "linear"), "how must be one of .*'half_pixel'.*'linear'"),
        (lambda: layers.MLP(24, gelu="silu"), "gelu must be one of .*'tanh', 'exact', 'quick'.*'silu'"),
        (lambda: layers.TokenPooling("max"), "mode must be one of .*'token', 'avg', 'token_avg'.* but 'max'"),
        (lambda: layers.MultiHeadAttention(2, rotary_embedding="eva02")(ZEROS), "so rotation.* must be passed"),
        (lambda: layers.RotaryEmbedding("eva02", 6), "size must be a positive multiple of 4, but 6"),
        (lambda: layers.AddPositionEmbedding((2, 3), interpolation="cubic"), "interpolation must be one of .*'cubic'"),
        *(
            (call, f"{axis} of the input .* not a multiple of the patch size 2. Resize or pad")
            for height, width, axis in ((7, 6, "height"), (6, 7, "width"), (1, 6, "height"))
            for call in (
                lambda shape=(1, height, width, 3): layers.PatchEmbedding(7, 2)(np.zeros(shape, "f4")),
                lambda shape=(None, height, width, 3): layers.PatchEmbedding(7, 2).compute_output_shape(shape),
            )
        ),
    ],
)
def test_what_layers_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tokens_that_do_not_fit_the_table():
    """5 tokens and a table of 7 rows: an error, not a broadcast."""
    layer = layers.AddPositionEmbedding((2, 3), 1)
    layer.build((None, 7, 12))
    with pytest.raises(Exception, match="7"):
        layer(np.zeros((1, 5, 12), "f4"))


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has float64 only where the process asks for it")
def test_batches_are_normalised_in_the_precision_that_is_asked_for():
    """In float64 the statistics and the output are float64's, and not float32's in its place."""
    x = np.random.default_rng(0).normal(size=(4, 6, 3)) + 100
    layer = layers.BatchNormalization(dtype="float64")
    found = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x, "float64"), training=True))
    np.testing.assert_allclose(found, (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-5), rtol=1e-12)
    variance = 0.9 + 0.1 * x.var((0, 1), ddof=1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer.moving_variance), variance, rtol=1e-12)


def test_a_layer_of_ones_own_has_its_own_arguments():
    class Own(layers.TransformerBlock):
        history: list

        def __init__(self, note, **options):
            super().__init__(3, 24, **options)
            self.note = note

    assert [*inspect.signature(Own).parameters] == ["note", "options"]
    assert "heads" not in inspect.signature(Own("a")).parameters  # those of a call
