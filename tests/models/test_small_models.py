"""The small models that other tests use answer, vary and come out the same each time."""

import numpy as np
import pytest

from tests import small_models
from tests.compute import forward

pytestmark = pytest.mark.once

KINDS = [f for f in vars(small_models) if f.startswith("small_") and not f.endswith("_config")]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_small_models_vary(kind):
    make = getattr(small_models, kind)
    model, config = make(), getattr(small_models, f"{kind}_config")()
    ids = np.arange(10).reshape(2, 5).astype("int32")
    x = ids if kind == "small_text_encoder" else small_models.images_for(config)
    found, again, other = (forward(m, x) for m in (model, make(), make(seed=1)))
    if isinstance(found, dict):
        key = next(name for name in ("masks", "logits") if name in found)
        found, again, other = found[key], again[key], other[key]
    np.testing.assert_array_equal(found, again)
    assert np.isfinite(found).all() and np.std(found) > 1e-2 and np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found - other).max() > 1e-2
