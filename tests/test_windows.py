"""Crops that overlap and maps put together again: against torch, plain loops, and what OpenCV made of a picture."""

import json

import numpy as np
import pytest

from keras_vit import interpolation
from keras_vit.preprocessing.images import centre_margins
from keras_vit.segmentation import segmenting
from tests.conftest import GOLDEN

pytestmark = pytest.mark.once


def sliding_by_hand(size, crop, stride):
    """mmsegmentation's `slide_inference`, as DINOv2 and DINOv3 use it."""
    grids = [max(n - c + s - 1, 0) // s + 1 for n, c, s in zip(size, crop, stride, strict=True)]
    for row in range(grids[0]):
        for column in range(grids[1]):
            ends = [min(i * s + c, n) for i, s, c, n in zip((row, column), stride, crop, size, strict=True)]
            starts = [max(end - c, 0) for end, c in zip(ends, crop, strict=True)]
            yield (*starts, *(end - start for start, end in zip(starts, ends, strict=True)))


@pytest.mark.parametrize("size", [(512, 774), (513, 2000), (640, 640), (100, 700), (1, 1), (1025, 512)])
@pytest.mark.parametrize("crop, stride", [((512, 512), (341, 341)), ((640, 640), (320, 320)), ((64, 96), (64, 50))])
def test_crops_slide_as_in_mmsegmentation(size, crop, stride):
    found = segmenting.sliding(size, crop, stride)
    assert [tuple(window) for window in found] == list(sliding_by_hand(size, crop, stride))
    covered = np.zeros(size, int)
    for window in found:
        window.of(covered)[...] += 1
    assert covered.min() >= 1


@pytest.mark.parametrize("size, tops, lefts", [((96, 177), [0, 0], [0, 81]), ((228, 96), [0, 66, 132], [0, 0, 0])])
def test_crops_are_spread_as_in_eomt(size, tops, lefts):
    found = segmenting.spread(size, 96)
    assert [window.top for window in found] == tops and [window.left for window in found] == lefts
    assert segmenting.spread((96, 96), 96) == [(0, 0, 96, 96)]


@pytest.mark.parametrize("new", [(31, 4), (9, 7), (1, 1), (2, 100)])
def test_maps_are_stretched_as_in_torch_in_any_pieces(new):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=(9, 7, 5)).astype("float32")
    moved = torch.tensor(values).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(moved, new, mode="bilinear")[0].permute(1, 2, 0).numpy()
    rows = segmenting.stretched(segmenting.rows_of(values), (9, 7), new)
    at_once, one_by_one = rows(0, new[0]), [rows(i, i + 1) for i in range(new[0])]
    np.testing.assert_allclose(at_once, expected, atol=4e-6)  # three roundings of numbers below 4
    np.testing.assert_array_equal(np.concatenate(one_by_one), at_once)


@pytest.mark.parametrize("new", [(90, 70), (9, 7), (31, 4), (5, 3), (1, 1)])
@pytest.mark.parametrize("kind", ["noise", "areas", "equal"])
def test_the_largest_value_is_that_of_the_whole_map(new, kind, monkeypatch):
    values = np.random.default_rng(3).normal(size=(9, 7, 5)).astype("float32")
    if kind == "areas":
        values = values * 0.1 + np.eye(5, dtype="float32")[np.arange(9)[:, None] // 4 + np.arange(7) // 3]
    elif kind == "equal":  # of equal values the first counts, as in `argmax`
        values = values.round()
    whole = segmenting.stretched(segmenting.rows_of(values), (9, 7), new)(0, new[0])
    for strip in (2**22, 60):
        monkeypatch.setattr(segmenting, "_STRIP", strip)
        found = segmenting.largest(segmenting.rows_of(values), (9, 7), new, 5)
        assert found.shape == new and found.dtype == "int32"
        # Two values that differ by rounding: either may be found.
        lost = whole.max(-1) - np.take_along_axis(whole, found[..., None], -1)[..., 0]
        assert lost.max() <= 1e-6 and (found == whole.argmax(-1)).mean() > (0.9 if kind == "equal" else 0.999)


def test_maps_in_crops_are_averaged():
    rng, size = np.random.default_rng(1), (20, 33)
    crops = segmenting.sliding(size, (12, 14), (7, 9))
    maps = rng.normal(size=(len(crops), 12, 14, 2)).astype("float32")
    total, count = np.zeros((*size, 2)), np.zeros((*size, 1))
    for crop, values in zip(crops, maps, strict=True):
        crop.of(total)[...] += values
        crop.of(count)[...] += 1
    rows = segmenting.merged(size[1], crops, [segmenting.rows_of(values) for values in maps])
    parts = list(segmenting.strips(size, 2**22 // 33 // 7))
    assert len(parts) > 2 and parts[-1][1] == 20
    found = np.concatenate([rows(*part) for part in parts])
    np.testing.assert_allclose(found, total / count, atol=1e-6)


def test_a_picture_is_enlarged_as_by_opencv():
    """The mean of what OpenCV made of it, normalised; a picture that is not rounded as there is off by 2e-3."""
    folder = GOLDEN / "dense_seg_dinov2_linear"
    facts = json.loads((folder / "meta.json").read_text())["picture_values"]
    picture = np.load(folder / "ref.npz")["picture"]
    pixels = interpolation.opencv_resized(picture, facts["shape"][1:3])
    values = (pixels - np.array([123.675, 116.28, 103.53])) / np.array([58.395, 57.12, 57.375])
    assert values.mean() == pytest.approx(facts["mean"], abs=1e-6)
    assert values.std() == pytest.approx(facts["std"], abs=1e-6)
    np.testing.assert_array_equal(interpolation.opencv_resized(picture, picture.shape[:2]), picture)
    halves = picture[:, :120].astype(int).reshape(40, 2, 60, 2, 3).sum((1, 3))
    np.testing.assert_array_equal(interpolation.opencv_resized(picture[:, :120], (40, 60)), (halves + 2) // 4)


@pytest.mark.parametrize("size, margins", [((89, 114), [(4, 5), (6, 6)]), ((14, 28), [(0, 0), (0, 0)])])
def test_padding_is_centred_with_the_odd_one_behind(size, margins):
    assert centre_margins(size, (14, 14)) == margins
