"""The errors of depth, by their definition, and folders of NYU."""

import numpy as np
import pytest

from keras_vit.depth import Depth, DepthErrors, depth_errors, mean_depth_errors

pytestmark = pytest.mark.once
TRUTH = np.array([[1.0, 2.0, 4.0], [0.0, np.nan, 20.0]])  # three pixels count


def metric(*values):
    return Depth(np.array(values, "float32").reshape(2, 3), metric=True)


def test_by_hand():
    found = depth_errors(metric(1.2, 2.6, 4, 9, 9, 9), TRUTH)  # off by 1.2, 1.3 and 1
    assert found.delta1 == pytest.approx(2 / 3) and found.relative == pytest.approx((0.2 + 0.3) / 3, rel=1e-6)
    assert found.rmse == pytest.approx(np.sqrt((0.2**2 + 0.6**2) / 3), rel=1e-6)
    assert depth_errors(metric(-3, 50, 4, 0, 0, 0), TRUTH, most=10).rmse == pytest.approx(  # cut to 1 mm and 10 m
        np.sqrt((0.999**2 + 8**2) / 3), rel=1e-6
    )
    both = mean_depth_errors(iter([found, DepthErrors(3, 0.0, 0.0, 0.0)]))
    assert both.pictures == 4 and both.delta1 == pytest.approx(1 / 3) and "delta1" in str(both)


def test_relative_depth_is_fitted():
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.5, 9, (20, 30))
    noisy = (3 / truth + 0.7 + rng.normal(0, 0.01, truth.shape)).astype("float32")
    # The least squares of a line, by its normal equations.
    x, y = noisy.astype("float64").ravel(), 1 / truth.ravel()
    scale = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    fitted = 1 / np.maximum(scale * (noisy - x.mean()) + y.mean(), 0.1)
    found = depth_errors(Depth(noisy, metric=False), truth)
    assert found.rmse == pytest.approx(np.sqrt(((fitted - truth) ** 2).mean()), rel=1e-5)  # float32 depth
    assert 0 < found.relative < 0.05 and found.delta1 > 0.99
    assert depth_errors(Depth(np.float32(5 / truth - 1), metric=False), truth).rmse < 1e-4


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((TRUTH, TRUTH), {}, TypeError, "must be a Depth"),
        ((metric(*range(6)), TRUTH[:1]), {}, ValueError, r"\(2, 3\), but \(1, 3\)"),
        ((metric(*range(6)), TRUTH * 1000), {}, ValueError, "must be in metres"),
        ((metric(*range(6)), TRUTH), {"most": 0.0}, ValueError, "0 < least < most"),
        ((metric(*range(5), np.nan), TRUTH), {}, ValueError, "must be finite"),
    ],
)
def test_what_makes_no_sense(arguments, options, error, message):
    with pytest.raises(error, match=message):
        depth_errors(*arguments, **options)
    with pytest.raises(ValueError, match="at least one"):
        mean_depth_errors([])
