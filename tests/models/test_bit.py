"""BiT: the ResNet of the paper's comparison, against its definition in float64, and as a Keras model."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import PaddedMaxPooling2D
from keras_vit.models import count_macs, find_variant, variant_config, variant_of, weights_by_path
from tests.compute import forward, gradients
from tests.tolerances import SAME_FUNCTION

SMALL = keras_vit.BiTConfig(image_size=(48, 40), stages=(1, 2), width=32, classes=5)


def small(**changes):
    """A small BiT with weights that are nowhere trivial."""
    model = keras_vit.BiT(SMALL.replace(**changes))
    random = np.random.default_rng(7)
    for path, weight in weights_by_path(model).items():
        values = random.normal(size=weight.shape).astype("float32")
        if path.endswith("gamma"):
            values = 1 + 0.2 * values
        elif path.endswith("kernel"):
            # So small that it matters what is added to the variance before the root.
            values *= 0.05 if path.startswith("head") else 2e-5
        weight.assign(values)
    return model


def images(size=(48, 40), scale=1.0, seed=1):
    return np.random.default_rng(seed).uniform(-scale, scale, (2, *size, 3)).astype("float32")


def standardize(x, axes, epsilon):
    x = x - x.mean(axes, keepdims=True)
    return x / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon)


def windows(x, size, stride, padding, value=0.0):
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=value)
    x = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return np.moveaxis(x[:, ::stride, ::stride], 3, -1)


def definition(model, x, pool=-np.inf):
    """The logits of a BiT of stages (1, 2), in float64 (big_vision's models/bit_paper.py)."""
    p = {path: np.float64(keras.ops.convert_to_numpy(w)) for path, w in weights_by_path(model).items()}

    def conv(x, name, stride=1, padding=0):
        kernel = standardize(p[f"{name}/kernel"], (0, 1, 2), 1e-10)
        return np.einsum("bhwijc,ijcd->bhwd", windows(x, len(kernel), stride, padding), kernel)

    def activated(x, name):
        groups = x.reshape(*x.shape[:3], 32, -1)
        y = standardize(groups, (1, 2, 4), 1e-5).reshape(x.shape)
        return np.maximum(y * p[f"{name}/gamma"] + p[f"{name}/beta"], 0)

    x = conv(np.float64(x), "conv_root", 2, 3)
    x = windows(x, 3, 2, 1, pool).max((3, 4))
    for name, stride, projected in (("block1_unit1", 1, 1), ("block2_unit1", 2, 1), ("block2_unit2", 1, 0)):
        y = activated(x, f"{name}/gn1")
        x = conv(y, f"{name}/conv_proj", stride) if projected else x
        y = conv(y, f"{name}/conv1")
        y = conv(activated(y, f"{name}/gn2"), f"{name}/conv2", stride, 1)
        x = x + conv(activated(y, f"{name}/gn3"), f"{name}/conv3")
    x = activated(x, "norm_pre_head").mean((1, 2))
    return x @ p["head/kernel"] + p["head/bias"]


# The small images make the variances small that the first normalisation sees.
@pytest.mark.parametrize(
    ("size", "scale"), [((37, 51), 1.0), *(pytest.param((48, 40), s, marks=pytest.mark.once) for s in (1.0, 1e-3))]
)
def test_is_what_it_is_defined_as(size, scale, backend):
    x = images(size, scale)
    model = small(image_size=size)
    got = forward(model, x)
    np.testing.assert_allclose(got, definition(model, x), rtol=0, atol=SAME_FUNCTION)
    if backend == "torch":
        zeros = small(image_size=size, pool_padding="zeros")
        np.testing.assert_allclose(forward(zeros, x), definition(model, x, 0), rtol=0, atol=SAME_FUNCTION)


# Published counts with 1,000 classes: timm's models of the same files.
PARAMETERS = {
    **{"BiT-R50x1": 25_549_352, "BiT-R50x3": 217_319_080, "BiT-R101x1": 44_541_480},
    **{"BiT-R101x3": 387_934_888, "BiT-R152x2": 236_335_208, "BiT-R152x4": 936_533_224},
}


@pytest.mark.once
def test_variants():
    assert list(PARAMETERS) == list(keras_vit.BIT_VARIANTS)
    listed = {row["name"]: row["params"] for row in keras_vit.list_models("BiT")}
    assert listed == PARAMETERS
    for name in PARAMETERS:
        assert variant_of(variant_config(name)) == name
        factory = getattr(keras_vit, name.replace("-", "_"))
        assert factory.__name__ == name.replace("-", "_") and name in factory.__doc__
    for spelling in ("BiT-R50x3", "bit_r50x3", "R50x3", "BiT R50X3"):
        assert find_variant(spelling) == "BiT-R50x3"


@pytest.mark.once
def test_the_smallest_variant():
    model = keras_vit.BiT_R50x1()
    assert model.name == "bit_r50x1" and model.count_params() == PARAMETERS["BiT-R50x1"]
    assert len(model.trainable_weights) == len(model.weights)
    # A ResNet-50 has 4.1 billion; its first unit of a stage has the stride in the 3x3 convolution.
    assert count_macs(model.config) == pytest.approx(4.09e9, rel=2e-3)
    # Any size, without asking. New heads are zero: every class is as probable as the others.
    np.testing.assert_allclose(forward(model, images((33, 70))), np.full((2, 1000), 1e-3), rtol=1e-5)


REFUSED = [
    (lambda: SMALL.replace(stages=()), ValueError, "stages must be a tuple of units"),
    (lambda: SMALL.replace(width=48), ValueError, "width must be a multiple of 32"),
    (lambda: PaddedMaxPooling2D("same"), ValueError, "padding must be one of .*'-inf', 'zeros'.*'same'"),
    (lambda: keras_vit.BiT(variant_config("ViT-Ti/16")), TypeError, "config must be a BiTConfig, but ViTConfig"),
    (lambda: keras_vit.BiT(SMALL, input_tensor=keras.Input((32, 32, 3))), ValueError, r"\(batch, 48 x 40 x 3\)"),
    (lambda: small()(images((32, 40))), ValueError, r"images of 48 x 40 pixels.*with_image_size\(\(32, 40\)\)"),
    (lambda: keras_vit.create_model("BiT-R101x2"), ValueError, "Did you mean .*'BiT-R101x1'"),
]


@pytest.mark.once
def test_what_is_refused():
    for make, error, words in REFUSED:
        with pytest.raises(error, match=words):
            make()


@pytest.mark.once
def test_image_sizes():
    fixed, x = small(), images()
    wanted = forward(fixed, x)
    dynamic = fixed.with_image_size("dynamic")
    assert dynamic.input_shape == (None, None, None, 3) and dynamic.config.dynamic
    np.testing.assert_allclose(forward(dynamic, x), wanted, rtol=0, atol=SAME_FUNCTION)
    # Sizes that nothing divides; one size after the other on the same model.
    for size in ((37, 51), (7, 90)):
        other = fixed.with_image_size(size)
        assert other.input_shape == (None, *size, 3)
        y = forward(other, images(size))
        np.testing.assert_allclose(y, definition(fixed, images(size)), rtol=0, atol=SAME_FUNCTION)
        np.testing.assert_allclose(dynamic.predict(images(size), verbose=0), y, rtol=0, atol=SAME_FUNCTION)
    assert dynamic.with_image_size((48, 40)).config == fixed.config


def test_features():
    model, x = small(), images()
    names = ["stem", "stage_1", "block1_unit1", "block2_unit1", "stage_2", "encoded", "pooled", "pre_logits", "logits"]
    y = forward(keras_vit.feature_extractor(model, names), x)
    maps = [(2, 12, 10, 32), *2 * [(2, 12, 10, 128)], *3 * [(2, 6, 5, 256)]]
    assert [y[name].shape for name in names] == [*maps, (2, 256), (2, 256), (2, 5)]
    assert model.config.feature_map_size == (6, 5) and model.config.features == 256
    np.testing.assert_array_equal(y["stage_1"], y["block1_unit1"])
    np.testing.assert_allclose(y["encoded"].mean((1, 2)), y["pre_logits"], rtol=0, atol=SAME_FUNCTION)
    np.testing.assert_allclose(y["logits"], forward(model, x), rtol=0, atol=SAME_FUNCTION)
    with pytest.raises(ValueError, match="features must be a list of names from .*'stage_2'.*'block_0'"):
        keras_vit.feature_extractor(model, ["block_0"])
    # Without pooling, the head stands on every place; the mean of its logits is the logits of the mean.
    places = small(pooling="none")
    np.testing.assert_allclose(forward(places, x).mean((1, 2)), y["logits"], rtol=0, atol=SAME_FUNCTION)


def test_every_weight_learns():
    model = small()
    labels = keras.ops.one_hot([0, 3], 5)

    def loss(logits):
        return -keras.ops.mean(keras.ops.sum(labels * keras.ops.log_softmax(logits), axis=-1))

    value, grads = gradients(model, images(), loss, training=True)
    assert np.isfinite(value) and len(grads) == len(model.weights)
    assert [path for path, grad in grads.items() if not np.isfinite(grad).all() or not grad.any()] == []
