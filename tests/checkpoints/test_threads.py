"""Several threads at once: what one of them loads or writes is not a business of the others."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keras_vit
from tests.small_models import values_of

CONFIG = keras_vit.ViTConfig(image_size=16, patch_size=8, width=64, depth=1, heads=2, mlp_width=128, classes=3)


@pytest.fixture
def often():
    """Threads take turns as often as Python lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def assert_initialized(model):
    weights = values_of(model)
    assert all(np.isfinite(value).all() for value in weights.values())
    for path, value in weights.items():
        if path.endswith("gamma"):
            np.testing.assert_array_equal(value, 1, path)
        elif path.startswith("head/"):
            np.testing.assert_array_equal(value, 0, path)
    fan = CONFIG.width + CONFIG.mlp_width  # Glorot's uniform distribution has the variance 2 / (inputs + outputs)
    # Of 8,192 values the standard deviation has a standard error of 0.5 %, of 320 values one of 4 %.
    assert weights["block_0/mlp/fc1/kernel"].std() == pytest.approx(np.sqrt(2 / fan), rel=0.05)
    assert weights["position_embedding/table"].std() == pytest.approx(0.02, rel=0.3)


@pytest.mark.nightly_elsewhere
def test_models_loaded_in_four_threads(golden, often):
    """Each model is right, and new ones are initialized: what leaves that out is not an other thread's business."""
    path = golden("mini_token").path
    wanted = values_of(keras_vit.from_checkpoint(path))
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(keras_vit.from_checkpoint, path) for _ in range(8)]
        news = [pool.submit(keras_vit.VisionTransformer, CONFIG) for _ in range(2)]
    for load in loads:
        got = values_of(load.result())
        assert got.keys() == wanted.keys()
        for name, value in got.items():
            np.testing.assert_array_equal(value, wanted[name], name)
    for model in [*(new.result() for new in news), keras_vit.VisionTransformer(CONFIG)]:
        assert_initialized(model)
