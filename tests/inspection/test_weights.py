"""Filters and position embeddings."""

import numpy as np
import pytest

from keras_vit import inspection
from keras_vit._arguments import to_numpy
from keras_vit.layers import sincos2d
from tests.inspection.models import around, make
from tests.small_models import small_bit

pytestmark = pytest.mark.once


def up_to_sign(got, wanted):
    signs = np.sign(np.einsum("ij,ij->i", got, wanted))
    np.testing.assert_allclose(got * signs[:, None], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_filters_are_those_of_scikit_learn(kind):
    decomposition = pytest.importorskip("sklearn.decomposition")
    model = make(kind)
    if kind == "hybrid":
        kernel = to_numpy(model.get_layer("conv_root").standardized_kernel()).astype("f8")
    else:
        kernel = np.asarray(model.get_layer("embedding").kernel, "f8")
    got = inspection.patch_filters(model, 10)
    assert got.shape == (10, *kernel.shape[:3]) and got.dtype == "float32"
    reference = decomposition.PCA(10, svd_solver="full").fit(kernel.reshape(-1, kernel.shape[-1]).T)
    up_to_sign(got.reshape(10, -1), reference.components_)
    np.testing.assert_allclose(np.linalg.norm(got.reshape(10, -1), axis=1), 1, rtol=1e-5)
    assert (np.abs(got).reshape(10, -1).max(1) == got.reshape(10, -1).max(1)).all()


def test_filters_of_other_models():
    bit = small_bit(image_size=32, stages=(1,))
    assert inspection.patch_filters(bit).shape == (28, 7, 7, 3)
    model = make("plain")
    np.testing.assert_array_equal(inspection.patch_filters(around(model), 3), inspection.patch_filters(model, 3))


@pytest.mark.parametrize("kind", ["plain", "gap", "hybrid", "dynamic"])
def test_similarities_are_cosines(kind):
    model = make(kind)
    rows, columns = model.config.grid_size
    got = inspection.position_similarity(model)
    assert got.shape == (rows, columns, rows, columns) and got.dtype == "float32"
    table = np.asarray(model.get_layer("position_embedding").table, "f8")[0]
    table = table[model.config.prefix_tokens :]
    for (i, j, k, m), cosine in np.ndenumerate(got):
        a, b = table[i * columns + j], table[k * columns + m]
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)


def test_similarities_of_embeddings_that_are_computed():
    model = make("gap", position_embedding="sincos2d")
    table = sincos2d(2, 3, 16)[0].astype("f8")
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    got = inspection.position_similarity(model)
    np.testing.assert_allclose(got.reshape(6, 6), table @ table.T, rtol=0, atol=1e-6)
    patches = make("plain", position_embedding="learned_patches")
    assert inspection.position_similarity(patches).shape == (2, 3, 2, 3)
    table = patches.get_layer("position_embedding").table
    table.assign(np.zeros(table.shape))
    assert (inspection.position_similarity(patches) == 0).all()  # zeros are like nothing
