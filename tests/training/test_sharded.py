"""Checkpoints of split models: written by 8 devices, resumed on 4 and on 1."""

import json
import os
import subprocess
import sys

import keras
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.training import load_sharded, save_sharded
from tests.processes import REPOSITORY, environment

TINY = ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=32, classes=3)


def model(optimizer=None, **changes):
    keras.utils.set_random_seed(1)
    result = VisionTransformer(TINY.replace(**changes))
    if optimizer:
        result.compile(optimizer, "sparse_categorical_crossentropy")
        result.optimizer.build(result.trainable_variables)
    return result


def test_written_by_eight_devices_and_resumed_on_four_and_one(backend, tmp_path):
    if backend != "jax":
        with pytest.raises(RuntimeError, match="on JAX only"):
            save_sharded(model(), tmp_path / "saved")
        return
    pytest.importorskip("orbax.checkpoint")
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    variables = environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "tests.training.sharded_jobs", str(tmp_path / "saved")]
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    saved, *others = json.loads(done.stdout.splitlines()[-1])
    assert saved["losses"][0] < saved["first"] and saved["device_bytes"] < saved["bytes"] / 2
    for loaded in others:
        assert loaded["sum"] == pytest.approx(saved["sum"], rel=1e-12)  # the same values, summed in another order
        # The steps after it, with the momenta: sums over devices run in another order.
        assert loaded["losses"] == pytest.approx(saved["losses"], rel=5e-6)
    assert others[-1]["device_bytes"] == saved["bytes"]


def test_what_does_not_fit_is_refused(backend, tmp_path):
    if backend != "jax":
        pytest.skip("models are split on JAX only")
    pytest.importorskip("orbax.checkpoint")
    saved = tmp_path / "saved"
    save_sharded(model("adam"), saved)
    with pytest.raises(FileExistsError, match="saved exists"):
        save_sharded(model("adam"), saved)
    for other in (model("sgd"), model(), model("adam", depth=2)):
        with pytest.raises(ValueError, match="of another model or optimizer"):
            load_sharded(other, saved)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        load_sharded(model("adam"), tmp_path / "nowhere")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "part-00000-of-00001.npz").touch()
    with pytest.raises(ValueError, match="is no checkpoint of save_sharded.*part-"):
        load_sharded(model("adam"), tmp_path / "old")
