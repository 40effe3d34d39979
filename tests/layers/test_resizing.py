"""Resizing of maps against its formula, for known sizes and for sizes that only a running program knows."""

import keras
import numpy as np
import pytest

from keras_vit import layers

# Steps of float32 between values of up to 3, twice: once for each axis.
EXACT = 1e-6


def in_numpy(x, size, how):
    """One value after the other, in float64."""
    y = np.zeros((len(x), *size, x.shape[-1]))
    for row, column in np.ndindex(*size):
        at = []
        for i, old, new in zip((row, column), x.shape[1:3], size, strict=True):
            place = i * (old - 1) / max(new - 1, 1) if how == "corners" else max((i + 0.5) * old / new - 0.5, 0)
            at.append((int(place), min(int(place) + 1, old - 1), place - int(place)))
        (top, bottom, down), (left, right, across) = at
        upper = x[:, top, left] * (1 - across) + x[:, top, right] * across
        lower = x[:, bottom, left] * (1 - across) + x[:, bottom, right] * across
        y[:, row, column] = upper * (1 - down) + lower * down
    return y


@pytest.mark.parametrize("how", ["corners", "half_pixel"])
@pytest.mark.parametrize("size", [(5, 4), (7, 9), (3, 4), (2, 1), (1, 8), (10, 2)])
def test_the_formula(how, size):
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype("f4")
    y = keras.ops.convert_to_numpy(layers.resize(keras.ops.convert_to_tensor(x), size, how))
    np.testing.assert_allclose(y, in_numpy(x, size, how), rtol=0, atol=EXACT)


@pytest.mark.parametrize("how", ["corners", "half_pixel"])
def test_sizes_that_only_a_running_program_knows(how, backend):
    if backend != "tensorflow":
        pytest.skip("only graphs of TensorFlow do not know sizes")
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype("f4")
    run = tf.function(lambda x: layers.resize(x, tf.unstack(3 * tf.shape(x)[1:3]), how))
    y = run.get_concrete_function(tf.TensorSpec((None, None, None, 3), "float32"))(tf.constant(x)).numpy()
    # Places are computed in float32 there: 4 of them, times the steepest slope.
    np.testing.assert_allclose(y, in_numpy(x, (15, 12), how), rtol=0, atol=1e-5)
