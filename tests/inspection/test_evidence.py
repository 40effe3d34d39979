"""What speaks for a class, against finite differences and NumPy; which patches are alike, against NumPy."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.compute import compiled, forward
from tests.inspection.models import images_for, make
from tests.small_models import small_bit
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.long
once = pytest.mark.once

# Central differences with steps of 1e-2 in float32: logits around 1 are rounded by 1e-7, which makes 1e-5 of it, and
# the third derivatives add some 1e-4 of values around 0.1.
DIFFERENCES = 3e-4


def score_of(model, images, classes):
    logits = inspection.class_scores(model, images).astype("f8")
    return logits[range(len(images)), classes].sum()


@pytest.mark.nightly_elsewhere  # with the function of `gradient_attention`
def test_saliency_is_the_gradient_of_the_logit():
    model = make("plain", classifier_activation="softmax")  # which is left out
    images = images_for(model)
    got = inspection.saliency(model, images, [2, 0], batch_size=1)
    assert got.shape == (2, 8, 12) and got.dtype == "float32" and (got >= 0).all()
    strongest = np.unravel_index(got.argmax(), got.shape)
    assert got[strongest] > 10 * DIFFERENCES
    for image, y, x in (strongest, (0, 0, 0), (1, 3, 11)):
        slopes = []
        for channel in range(3):
            step = np.zeros_like(images)
            step[image, y, x, channel] = 1e-2
            slopes.append((score_of(model, images + step, [2, 0]) - score_of(model, images - step, [2, 0])) / 2e-2)
        assert got[image, y, x] == pytest.approx(np.abs(slopes).max(), abs=DIFFERENCES)


@once
def test_the_class_is_the_one_that_the_model_says():
    model = make("plain")
    images = images_for(model)
    logits = forward(model, images)
    np.testing.assert_allclose(inspection.class_scores(model, images, batch_size=1), logits, rtol=0, atol=SAME_FUNCTION)
    said = logits.argmax(1)
    for function in (inspection.saliency, inspection.gradient_attention, inspection.class_evidence):
        np.testing.assert_array_equal(function(model, images), function(model, images, said))
    one = inspection.saliency(model, images, 1)
    np.testing.assert_array_equal(one, inspection.saliency(model, images, np.array([1, 1])))


@pytest.mark.parametrize("kind", ["plain", *(pytest.param(k, marks=once) for k in ("map", "class_token_gap", "remat"))])
def test_gradient_attention(kind):
    """Chefer et al.'s equations in NumPy, with gradients from finite differences of the attention weights."""
    model = make(kind, depth=1, heads=1)
    images = images_for(model, 1)
    found = [inspection.gradient_attention(model, images, number) for number in range(3)]
    said = int(np.argmax([one.max() for one in found]))  # where no product is positive, there is nothing to compare
    got = found[said]
    rows, columns = model.config.grid_size
    prefix = model.config.prefix_tokens

    def products(layer, weights):
        """Attention times its gradient; each entry is moved up and down in an image of its own."""
        entries = weights.shape[2:]
        steps = 1e-2 * np.eye(np.prod(entries), dtype="f4").reshape(-1, 1, *entries)
        offset = np.concatenate([steps, -steps])

        def call(one, *args, **kwargs):
            return one(*args, attention_offset=offset, **kwargs)

        run = compiled(lambda images: inspection.running.Probe(model).run(images, {layer: call}))
        scores = run(np.repeat(images, len(offset), 0))
        up, down = keras.ops.convert_to_numpy(scores)[:, said].astype("f8").reshape(2, *entries)
        return np.maximum(weights[0, 0] * (up - down) / 2e-2, 0)

    relevance = np.eye(prefix + rows * columns)
    relevance = relevance + products("block_0", inspection.attention_maps(model, images, 0)) @ relevance
    if kind == "map":
        row = products("pooling", inspection.attention_maps(model, images, "pooling"))[0] @ relevance
    else:
        row = relevance[prefix:].mean(0) if kind == "class_token_gap" else relevance[0]
    assert got.shape == (1, rows, columns) and got.dtype == "float32"
    np.testing.assert_allclose(got[0], row[prefix:].reshape(rows, columns), rtol=0, atol=DIFFERENCES)
    assert got.max() > 10 * DIFFERENCES


@pytest.mark.parametrize("kind", ["gap", *(pytest.param(k, marks=once) for k in ("plain", "map", "hybrid", "tanh"))])
def test_evidence_is_what_the_head_says_of_each_patch(kind):
    model = make(kind)
    images = images_for(model)
    wanted = forward(keras_vit.feature_extractor(model, ["logits_2d"]), images)["logits_2d"]
    got = inspection.class_evidence(model, images, [0, 2], batch_size=1)
    np.testing.assert_allclose(got, np.stack([wanted[0, ..., 0], wanted[1, ..., 2]]), rtol=0, atol=SAME_FUNCTION)
    if kind == "gap":
        logits = inspection.class_scores(model, images)
        np.testing.assert_allclose(got.mean((1, 2)), logits[[0, 1], [0, 2]], rtol=0, atol=SAME_FUNCTION)


@pytest.mark.once
def test_of_a_bit():
    bit = small_bit(image_size=32, stages=(1,))
    images = images_for(bit)
    evidence = inspection.class_evidence(bit, images, 1)
    assert evidence.shape == (2, 8, 8)
    np.testing.assert_allclose(evidence.mean((1, 2)), inspection.class_scores(bit, images)[:, 1], rtol=1e-5)
    assert inspection.saliency(bit, images).shape == (2, 32, 32)
    assert inspection.nearest_patches(bit, images, (0, 1, 1), 3, layer="block1_unit1")[0].shape == (3, 3)


@once
def test_in_bfloat16():
    model, mixed = make("plain"), make("plain", dtype="mixed_bfloat16")
    for function in (inspection.saliency, inspection.gradient_attention):
        exact, got = (function(one, images_for(model), 0) for one in (model, mixed))
        assert got.dtype == "float32" and np.corrcoef(got.ravel(), exact.ravel())[0, 1] > 0.98


@pytest.mark.nightly_elsewhere
def test_nearest_patches():
    model = make("plain")
    images = images_for(model, 3)
    features = forward(keras_vit.feature_extractor(model, ["encoded", "block_0"], layout="map"), images)
    for layer, name in (("encoder_norm", "encoded"), ("block_0", "block_0")):
        places, cosines = inspection.nearest_patches(model, images, (1, 0, 2), 5, layer=layer, batch_size=2)
        vectors = features[name].astype("f8")
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        all_cosines = vectors @ vectors[1, 0, 2]
        wanted = [place for place in np.ndindex(3, 2, 3) if place != (1, 0, 2)]
        wanted.sort(key=lambda place: -all_cosines[place])
        assert [tuple(place) for place in places] == wanted[:5]
        np.testing.assert_allclose(cosines, [all_cosines[place] for place in wanted[:5]], rtol=0, atol=1e-5)
    assert inspection.nearest_patches(model, images, (0, 0, 0), layer="embedding")[0].shape == (12, 3)


def components(vectors, count):
    """Scores of the first principal components by singular values; their signs are free."""
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    return (left * sizes)[:, :count]


def scaled(values):
    return (values - values.min(0)) / np.ptp(values, 0)


def assert_same_colours(got, scores):
    """Up to the sign of each component. Vectors around 1 are rounded by 1e-6; close components make 1e-4 of it."""
    for channel, (one, score) in enumerate(zip(got.T, scores.T, strict=True)):
        distance = min(np.abs(one - scaled(sign * score)).max() for sign in (1, -1))
        assert distance < 1e-4, channel


@pytest.mark.parametrize("kind", ["plain", *(pytest.param(k, marks=pytest.mark.once) for k in ("gap", "hybrid"))])
def test_colours_are_principal_components(kind):
    model = make(kind, image_size=(64, 80) if kind == "hybrid" else (16, 20))
    images = images_for(model, 3)
    features = forward(keras_vit.feature_extractor(model, ["encoded"], layout="map"), images)["encoded"].astype("f8")
    *places, width = features.shape
    vectors = features.reshape(-1, width)
    whole = inspection.feature_map(model, images, foreground=False, batch_size=2)
    assert whole.shape == (*places, 3) and whole.dtype == "float32"
    assert_same_colours(whole.reshape(-1, 3), components(vectors, 3))
    got = inspection.feature_map(model, images, batch_size=2)
    first = components(vectors, 1)[:, 0]
    inner = np.pad(np.ones((places[0], places[1] - 2, places[2] - 2), bool), [(0, 0), (1, 1), (1, 1)]).ravel()
    chosen = (first > 0) == (first[inner].mean() > first[~inner].mean())
    np.testing.assert_array_equal(got.reshape(-1, 3)[~chosen], 0)
    assert_same_colours(got.reshape(-1, 3)[chosen], components(vectors[chosen], 3))
    np.testing.assert_array_equal(got, inspection.feature_map(model, images, batch_size=2))
