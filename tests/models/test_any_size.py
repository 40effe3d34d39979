"""Models for any image size refuse images that are no whole patches, also where a compiled graph takes them."""

import keras
import numpy as np
import pytest

import keras_vit

CONFIG = keras_vit.ViTConfig(
    image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=12, classes=3, dynamic=True
)


def images(*size):
    return np.zeros((2, *size, 3), "f4")


@pytest.fixture
def model():
    return keras_vit.VisionTransformer(CONFIG)


CALLS = {
    "eager": (lambda model, x: model(x), (8, 9)),
    "predict": (lambda model, x: model.predict(x, verbose=0), (10, 9)),
    "predict_on_batch": (lambda model, x: model.predict_on_batch(x), (10, 8)),
    "less than a patch": (lambda model, x: model.predict(x, verbose=0), (3, 3)),
}


@pytest.mark.parametrize("case", CALLS)
def test_no_whole_patches(model, case):
    """After two sizes, TensorFlow compiles one graph for all: the convolution would drop the rest of the image."""
    call, size = CALLS[case]
    for good in ((8, 8), (8, 12), (12, 8)):
        assert call(model, images(*good)).shape == (2, 3)
    with pytest.raises(Exception, match=r"multiple of the patch size .*4"):
        call(model, images(*size))


def test_no_whole_patches_when_trained_or_compiled(model, backend):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    for size in ((8, 8), (8, 12), (12, 8)):
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


def test_hybrids_round_up(model):
    """The ResNet of a hybrid takes any size; its last map must be whole patches."""
    config = CONFIG.replace(image_size=32, patch_size=2, stem_stages=(1,), stem_width=32)
    hybrid = keras_vit.VisionTransformer(config)
    for good in ((32, 32), (29, 32), (32, 64)):
        assert hybrid.predict(images(*good), verbose=0).shape == (2, 3)
    with pytest.raises(Exception, match="multiple of the patch size"):
        hybrid.predict(images(36, 32), verbose=0)
