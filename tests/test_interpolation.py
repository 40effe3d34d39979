"""Interpolation matrices: what every one of them must be, in NumPy and in the graph."""

import keras
import numpy as np
import pytest
import scipy.ndimage

from keras_vit.interpolation import METHODS, interpolation_matrices, interpolation_matrix
from keras_vit.layers import resize_table
from tests.compute import assert_close

pytestmark = pytest.mark.once

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
    # What is mirrored before is mirrored after; but a single sample is read from the first corner, as scipy does, and
    # samples with an offset are read nearer to it than to the last.
    if (method, new) != ("official", 1) and method != "bicubic_offset":
        np.testing.assert_allclose(matrix[::-1, ::-1], matrix, rtol=0, atol=1e-12)


@pytest.mark.each
@pytest.mark.nightly_elsewhere
@every_method
@pytest.mark.parametrize("size", [1, 2, 7, 48])
@pytest.mark.parametrize("xp", [np, keras.ops])
def test_the_same_size_is_the_identity(method, size, xp):
    new = size if xp is np else keras.ops.convert_to_tensor(size)
    pair = interpolation_matrices((size, size), (new, new), method, xp)
    # In the graph positions are float32: up to 47 with a relative error of 1.2e-7.
    tolerance = 0 if xp is np else 6e-6
    for matrix in (*pair, *(() if method == "bicubic_offset" else (interpolation_matrix(size, new, method, xp),))):
        assert_close(matrix, np.eye(size), tolerance)


@pytest.mark.each
@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("xp", [np, keras.ops])
def test_an_offset_counts_where_either_side_changes(xp):
    """As in Facebook's code, which leaves a table alone only if both sides are right."""
    rows, columns = interpolation_matrices((7, 7), (7, 12), "bicubic_offset", xp)
    assert_close(rows, interpolation_matrix(7, 7, "bicubic_offset"), 3e-6)
    assert_close(columns, interpolation_matrix(7, 12, "bicubic_offset"), 3e-6)
    assert np.abs(interpolation_matrix(7, 7, "bicubic_offset") - np.eye(7)).max() > 0.05


# Which method of ours each rule of the reference is.
RULES = {"timm": "bicubic", "hf": "bicubic_hf", "hf_dinov2_registers": "bicubic", "fb_dinov2_offset": "bicubic_offset"}


@pytest.mark.parametrize("rule", RULES)
def test_tables_of_position_embeddings_as_torch_resizes_them(golden, rule):
    """timm's, Hugging Face's and Facebook's own functions. The nearest wrong rule is off by 0.15 or more."""
    ref = golden("fam_posemb_resize").ref
    cases = [name.removesuffix(f"/{rule}") for name in ref if name.endswith(f"/{rule}")]
    assert len(cases) >= 7
    for case in cases:
        old, new = case.split("to")
        rows, columns = map(int, new.split("x"))
        table = resize_table(ref[f"{case}/table"], (int(old), int(old)), (rows, columns), RULES[rule])
        # torch's positions are float32: up to 37 with a relative error of 1.2e-7, times the slopes of kernel and table.
        assert_close(table, ref[f"{case}/{rule}"], 2e-5)


@pytest.mark.each
@every_method
@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 5), (3, 1)])
def test_in_the_graph(method, old, new):
    matrix = interpolation_matrix(old, keras.ops.convert_to_tensor(new), method, keras.ops)
    assert_close(matrix, interpolation_matrix(old, new, method), 3e-6)


@pytest.mark.parametrize(("old", "new"), [(5, 9), (9, 4), (7, 12), (12, 7), (2, 3)])
def test_official_is_what_scipy_does(old, new):
    zoomed = np.stack([scipy.ndimage.zoom(row, new / old, order=1) for row in np.eye(old)], 1)
    assert_close(interpolation_matrix(old, new, "official"), zoomed, 1e-12)


def test_methods_by_hand():
    """Two samples become four: corners aligned, or centres of halves."""
    thirds = [[1, 0], [2 / 3, 1 / 3], [1 / 3, 2 / 3], [0, 1]]
    assert_close(interpolation_matrix(2, 4, "official"), thirds, 1e-12)
    quarters = [[1, 0], [3 / 4, 1 / 4], [1 / 4, 3 / 4], [0, 1]]
    assert_close(interpolation_matrix(2, 4, "bilinear"), quarters, 1e-12)
    # Shrinking by two with antialiasing: a triangle over four samples, of weights 1 3 3 1.
    assert_close(interpolation_matrix(8, 4, "bilinear_antialias")[1], np.array([0, 1, 3, 3, 1, 0, 0, 0]) / 8, 1e-12)
    # Keys' kernel with a = -1/2 between two samples: -1/16, 9/16, 9/16, -1/16.
    assert_close(interpolation_matrix(6, 12, "bicubic")[5], interpolation_matrix(6, 12, "bicubic")[6][::-1], 1e-12)
    assert_close(interpolation_matrix(5, 15, "bicubic")[7], np.eye(5)[2], 1e-12)
