"""Interpolation matrices: what every one of them must be, in NumPy and in the graph."""

import keras
import numpy as np
import pytest
import scipy.ndimage

from keras_vit.interpolation import METHODS, interpolation_matrix

SIZES = [(1, 1), (1, 4), (4, 1), (5, 5), (2, 9), (7, 12), (28, 48), (48, 28), (37, 14), (14, 16)]
every_method = pytest.mark.parametrize("method", METHODS)


@every_method
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_rows_sum_to_one(method, old, new):
    matrix = interpolation_matrix(old, new, method)
    assert matrix.shape == (new, old) and matrix.dtype == np.float64
    np.testing.assert_allclose(matrix.sum(1), 1, rtol=0, atol=1e-12)
    if "bicubic" not in method:
        assert matrix.min() >= 0
    # What is mirrored before is mirrored after; but a single sample is read from the first corner, as scipy does.
    if (method, new) != ("official", 1):
        np.testing.assert_allclose(matrix[::-1, ::-1], matrix, rtol=0, atol=1e-12)


@every_method
@pytest.mark.parametrize("size", [1, 2, 7, 48])
def test_the_same_size_is_the_identity(method, size):
    np.testing.assert_array_equal(interpolation_matrix(size, size, method), np.eye(size))


@every_method
@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 5), (3, 1)])
def test_in_the_graph(method, old, new):
    matrix = keras.ops.convert_to_numpy(interpolation_matrix(old, keras.ops.convert_to_tensor(new), method, keras.ops))
    np.testing.assert_allclose(matrix, interpolation_matrix(old, new, method), rtol=0, atol=3e-6)


@pytest.mark.parametrize(("old", "new"), [(5, 9), (9, 4), (7, 12), (12, 7), (2, 3)])
def test_official_is_what_scipy_does(old, new):
    zoomed = np.stack([scipy.ndimage.zoom(row, new / old, order=1) for row in np.eye(old)], 1)
    np.testing.assert_allclose(interpolation_matrix(old, new, "official"), zoomed, rtol=0, atol=1e-12)


def test_methods_by_hand():
    """Two samples become four: corners aligned, or centres of halves."""
    thirds = [[1, 0], [2 / 3, 1 / 3], [1 / 3, 2 / 3], [0, 1]]
    np.testing.assert_allclose(interpolation_matrix(2, 4, "official"), thirds, atol=1e-12)
    quarters = [[1, 0], [3 / 4, 1 / 4], [1 / 4, 3 / 4], [0, 1]]
    np.testing.assert_allclose(interpolation_matrix(2, 4, "bilinear"), quarters, atol=1e-12)
    # Shrinking by two with antialiasing: a triangle over four samples, of weights 1 3 3 1.
    np.testing.assert_allclose(
        interpolation_matrix(8, 4, "bilinear_antialias")[1], np.array([0, 1, 3, 3, 1, 0, 0, 0]) / 8, atol=1e-12
    )
    # Keys' kernel with a = -1/2 between two samples: -1/16, 9/16, 9/16, -1/16.
    np.testing.assert_allclose(
        interpolation_matrix(6, 12, "bicubic")[5], interpolation_matrix(6, 12, "bicubic")[6][::-1], atol=1e-12
    )
    np.testing.assert_allclose(interpolation_matrix(5, 15, "bicubic")[7], np.eye(5)[2], atol=1e-12)


@pytest.mark.parametrize("xp", [np, keras.ops])
def test_unknown_method(xp):
    with pytest.raises(ValueError, match="interpolation must be one of .*'bicubic'.*'official'.* but 'lanczos'"):
        interpolation_matrix(3, 4, "lanczos", xp)
