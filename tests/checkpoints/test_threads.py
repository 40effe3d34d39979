"""Several threads at once: what one of them loads or writes is no business of the others."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import skip_initialization
from keras_vit.models import weights_by_path

CONFIG = keras_vit.ViTConfig(image_size=16, patch_size=8, width=64, depth=1, heads=2, mlp_width=128, classes=3)


@pytest.fixture
def often():
    """Threads take turns as often as Python lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def values(model):
    return {path: np.asarray(keras.ops.convert_to_numpy(w.value)) for path, w in weights_by_path(model).items()}


def assert_initialized(model):
    """Weights as a new model has them."""
    weights = values(model)
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


def test_a_context_is_no_other_tasks_business():
    """Coroutines take turns in one thread: state of the thread would be shared by them."""

    async def skip(entered, left):
        with skip_initialization():
            entered.set()
            await left.wait()

    async def build():
        entered, left = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(skip(entered, left))
        await entered.wait()
        model = keras_vit.VisionTransformer(CONFIG)
        left.set()
        await task
        return model

    assert_initialized(asyncio.run(build()))


def test_models_loaded_in_four_threads(golden, often):
    """Each model is right, and new ones are initialized: what leaves that out is no other thread's business."""
    path = golden("mini_token").path
    wanted = values(keras_vit.from_checkpoint(path))
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(keras_vit.from_checkpoint, path) for _ in range(8)]
        news = [pool.submit(keras_vit.VisionTransformer, CONFIG) for _ in range(2)]
    for load in loads:
        got = values(load.result())
        assert got.keys() == wanted.keys()
        for name, value in got.items():
            np.testing.assert_array_equal(value, wanted[name], name)
    for model in [*(new.result() for new in news), keras_vit.VisionTransformer(CONFIG)]:
        assert_initialized(model)


def test_files_written_in_four_threads(tmp_path, often):
    """To one path: the file is one of them, whole. And files made meanwhile keep the rights that the process gives."""
    config = keras_vit.ViTConfig(image_size=8, patch_size=8, width=8, depth=1, heads=2, mlp_width=8, classes=3)
    models = [keras_vit.VisionTransformer(config) for _ in range(2)]
    for number, model in enumerate(models):
        model.set_weights([np.full(w.shape, number + 1.0) for w in model.get_weights()])
    path, before = tmp_path / "model.npz", os.umask(0o027)
    try:
        with ThreadPoolExecutor(4) as pool:
            for task in [pool.submit(keras_vit.to_checkpoint, models[i % 2], path, overwrite=True) for i in range(16)]:
                task.result()
    finally:
        after = os.umask(before)
    assert after == 0o027
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"model.npz": 0o640}
    with np.load(path) as file:
        assert {float(value) for name in file.files for value in file[name].flat} in ({1.0}, {2.0})
