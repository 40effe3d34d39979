"""What is random while training: what is dropped, how often, how the rest is scaled, and that a seed is a seed."""

import keras
import numpy as np
import pytest

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
