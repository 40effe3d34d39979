"""Models for any image size refuse images that are no whole patches, also where a compiled graph takes them."""

import keras
import numpy as np
import pytest

from tests.small_models import small_hybrid, small_vit

GOOD = ((8, 8), (8, 12), (12, 8))  # after two sizes, TensorFlow compiles one graph for all
CALLS = {
    (8, 9): lambda model, x: model(x),
    (10, 9): lambda model, x: model.predict(x, verbose=0),
}


def images(*size):
    return np.zeros((2, *size, 3), "f4")


def test_no_whole_patches():
    for size, call in CALLS.items():
        model = small_vit(dynamic=True)
        for good in GOOD:
            assert call(model, images(*good)).shape == (2, 3)
        with pytest.raises(Exception, match=r"multiple of the patch size .*4"):
            call(model, images(*size))


def test_no_whole_patches_when_trained_or_compiled(backend):
    model = small_vit(dynamic=True)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for size in GOOD:
        model.train_on_batch(images(*size), np.array([0, 1]))
    before = model.get_weights()
    with pytest.raises(Exception, match="multiple of the patch size"):
        model.train_on_batch(images(10, 9), np.array([0, 1]))
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    if backend == "tensorflow":  # XLA drops assertions
        import tensorflow as tf

        shape = tf.TensorSpec((None, None, None, 3))
        compiled = tf.function(model, input_signature=[shape], jit_compile=True)
        assert compiled(tf.zeros((2, 8, 12, 3))).shape == (2, 3)
        with pytest.raises(tf.errors.InvalidArgumentError):
            compiled(tf.zeros((2, 10, 9, 3)))


def test_hybrids_round_up():
    """The ResNet of a hybrid takes any size; its last map must be whole patches."""
    hybrid = small_hybrid(image_size=32, dynamic=True)
    for good in ((32, 32), (29, 32)):
        assert hybrid.predict(images(*good), verbose=0).shape == (2, 3)
    with pytest.raises(Exception, match="multiple of the patch size"):
        hybrid.predict(images(36, 32), verbose=0)
