"""Which patches are alike, against NumPy."""

import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.compute import forward
from tests.inspection.models import images_for, make

pytestmark = pytest.mark.long


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
    """First of all patches, of which half is foreground; then of these."""
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


def test_a_foreground_is_found_where_it_is():
    """Signs do not depend on the weights' signs: what stands in the middle is the foreground of either."""
    pixels = np.random.default_rng(0).uniform(-0.55, -0.45, (2, 24, 24, 3)).astype("f4")
    pixels[0, 8:16, 8:16] += 1
    pixels[1, 4:16, 8:20] += 1
    model = make("plain", image_size=24, position_embedding="none")
    for sign in (1, -1):
        kernel = model.get_layer("embedding").weights[0]
        kernel.assign(sign * kernel)
        colours = inspection.feature_map(model, pixels, layer="embedding")
        np.testing.assert_array_equal((colours > 0).any(-1), pixels[:, ::4, ::4, 0] > 0)
    assert not inspection.feature_map(model, 0 * pixels, layer="embedding").any()  # patches that are all the same
