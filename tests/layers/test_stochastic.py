"""What is random while training: what is dropped, how often, how the rest is scaled, and that a seed is a seed."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.layers.base import SeedGenerator, drop_path, dropout
from tests.compute import filled, forward
from tests.layers import in_numpy


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("function", "shape"), [(dropout, (50, 20, 40)), (drop_path, (20_000, 3, 2))])
def test_units_or_examples_are_dropped_at_the_rate_and_the_rest_is_scaled(function, shape, rate):
    y = numpy(function(keras.ops.ones(shape), rate, SeedGenerator(1).next()))
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=1e-6)
    if function is drop_path:
        assert np.array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
        y = y[:, 0, 0]
    # At least 20,000 coins: five standard deviations.
    assert abs((y == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / y.size)
    # Units, not rows or columns.
    for axes in ((1, 2), (0, 2), (0, 1)) if function is dropout else ():
        assert 0 < (y == 0).mean(axes).std() < 0.1


def test_one_seed_drops_the_same_and_the_next_one_does_not():
    seeds, x = SeedGenerator(1), keras.ops.ones((1000,))
    first = seeds.next()
    np.testing.assert_array_equal(numpy(dropout(x, 0.5, first)), numpy(dropout(x, 0.5, first)))
    assert np.any(numpy(dropout(x, 0.5, first)) != numpy(dropout(x, 0.5, seeds.next())))
    assert dropout(x, 0.5, None) is x and drop_path(x, 0.5, None) is x


@pytest.mark.parametrize("remat", [False, True])
def test_a_block_drops_whole_branches_of_examples(remat):
    """Every example took one of four ways: both branches, either, or none; kept ones count double at a rate of 1/2."""
    block = filled(layers.TransformerBlock(2, 6, drop_path=0.5, remat=remat), (None, 3, 4), scale=1)
    w = in_numpy.weights_of(block)
    x = np.random.default_rng(1).normal(size=(40, 3, 4)).astype("f4")
    y = forward(block, x, training=True)

    def way(attends, thinks):
        z = in_numpy.layer_norm(x, w, "norm1", 1e-6)
        a = x + attends * in_numpy.attention(z, z, in_numpy.inner(w, "attention"), 2)
        return a + thinks * in_numpy.mlp(in_numpy.layer_norm(a, w, "norm2", 1e-6), in_numpy.inner(w, "mlp"), "tanh")

    ways = np.stack([way(attends, thinks) for attends in (0, 2) for thinks in (0, 2)])
    errors = np.abs(ways - y).max((2, 3))
    assert errors.min(0).max() < 1e-4
    # Each way is taken by a quarter of the examples; none at all would be a chance of 1e-5.
    assert len(np.unique(errors.argmin(0))) == 4


def test_every_seed_of_a_block_is_its_own():
    """Two branches that always dropped together would be one branch."""
    block = layers.TransformerBlock(2, 6, dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    block.build((None, 3, 4))
    seeds = [*block.attention.draw_seeds(True), *block.mlp.draw_seeds(True), *block.draw(True, 0.5, 0.5, 0.5)]
    assert len({tuple(numpy(seed).tolist()) for seed in seeds}) == len(seeds) == 6
    assert block.attention.draw_seeds(False) == [None] and block.mlp.draw_seeds(None) == [None, None]


@pytest.mark.parametrize("ordered", [False, True])
def test_patches_are_left_out_each_as_often_as_any_other(ordered):
    """timm's `PatchDropout`: the tokens before them stay, and of 7 patches at a rate of 0.4 int(7 * 0.6)."""
    layer = layers.PatchDropout(0.4, prefix_tokens=2, ordered=ordered)
    x = np.broadcast_to(np.arange(9, dtype="f4")[:, None], (3000, 9, 2))
    rotation = np.broadcast_to(np.arange(9, dtype="f4")[:, None] + 100, (2, 9, 4))
    y, turned = forward(layer, x, rotation=rotation, training=True)
    assert y.shape == (3000, 6, 2) and turned.shape == (2, 3000, 6, 4)
    np.testing.assert_array_equal(turned, np.broadcast_to(y[None, ..., :1] + 100, turned.shape))
    y = y[..., 0]
    np.testing.assert_array_equal(y[:, :2], np.broadcast_to([0, 1], (3000, 2)))
    patches = np.sort(y[:, 2:], axis=1)
    assert (np.diff(patches) > 0).all() and patches.min() == 2 and np.array_equal(patches, y[:, 2:]) == ordered
    # Each in 4 of 7 images, and each pair together in 2 of 7, within five standard deviations.
    stays = np.stack([(patches == place).any(1) for place in range(2, 9)], 1).astype(float)
    shares = stays.T @ stays / 3000
    wanted = np.full((7, 7), 2 / 7) + np.eye(7) * (2 / 7)
    assert (np.abs(shares - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 3000)).all()
    np.testing.assert_array_equal(forward(layers.PatchDropout(0.99, 0), x[:1], training=True).shape, (1, 1, 2))
    for same, before in zip(forward(layer, x[:2], rotation=rotation), (x[:2], rotation), strict=True):
        np.testing.assert_array_equal(same, before)


@pytest.mark.parametrize(
    ("rotary", "remat"),
    [("eva02", True), *(pytest.param(r, m, marks=pytest.mark.once) for r, m in ((None, False), ("dinov3", False)))],
)
def test_a_model_computes_what_its_patches_that_stay_give(rotary, remat):
    fields = {"image_size": 12, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 12, "classes": 3}
    config = keras_vit.ViTConfig(**fields, rotary_embedding=rotary, patch_drop=0.5, remat=remat, pooling="avg")
    model = filled(keras_vit.VisionTransformer(config), (2, 12, 12, 3))
    x = np.random.default_rng(1).normal(size=(2, 12, 12, 3)).astype("f4")
    if rotary == "dinov3":  # periods that its formula gives
        model.get_layer("rotary_embedding").set_weights([100.0 ** (np.arange(2) / 2)])
    layer = model.get_layer("patch_dropout")
    places = np.array([[0, 3, 9, 1, 4], [0, 8, 2, 5, 7]])
    layer._kept = lambda tokens, seed: keras.ops.convert_to_tensor(places, "int32")
    w = {f"{one.name}/{path}": v for one in model.layers for path, v in in_numpy.weights_of(one).items()}
    tokens = x.astype("f8").reshape(2, 3, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 9, 48)
    tokens = tokens @ w["embedding/kernel"].reshape(48, 16) + w["embedding/bias"]
    tokens = np.concatenate([np.repeat(w["class_token/token"], 2, 0), tokens], 1) + w["position_embedding/table"]
    z = []
    for image, kept in zip(tokens, places, strict=True):
        turn = lambda y: y  # noqa: E731
        if rotary:
            angles = {"eva02": in_numpy.eva02_angles, "dinov3": in_numpy.dinov3_angles}[rotary](3, 3, 8)
            turn = functools.partial(
                in_numpy.turned, angles=np.concatenate([np.zeros((1, 4)), angles])[kept], kind=rotary
            )
        z.append(image[kept][None])
        for i in range(2):
            z[-1] = in_numpy.block(z[-1], in_numpy.inner(w, f"block_{i}"), 2, "tanh", 1e-6, turn)
    z = in_numpy.layer_norm(np.concatenate(z), w, "encoder_norm", 1e-6)[:, 1:].mean(1)
    # float32 through two blocks.
    np.testing.assert_allclose(forward(model, x, training=True), in_numpy.dense(z, w, "head"), rtol=0, atol=5e-5)
    plain = model.with_config(patch_drop=0.0)
    np.testing.assert_allclose(forward(model, x), forward(plain, x), rtol=0, atol=1e-6)
