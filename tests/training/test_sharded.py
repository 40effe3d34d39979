"""Checkpoints of split models: written by 8 devices, resumed on 4 and on 1, with nothing gathered on any device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.checkpoints.files.npz import NpzFile, write_npz
from keras_vit.training import load_sharded, save_sharded

REPOSITORY = Path(__file__).resolve().parents[2]
# Without optimisation, compiling takes half as long; the figures are the same.
XLA_FLAGS = "--xla_force_host_platform_device_count={} --xla_backend_optimization_level=0"
TINY = ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=32, classes=3)


@pytest.fixture(autouse=True)
def only_jax(backend, request):
    if backend != "jax" and "other_backends" not in request.node.name:
        pytest.skip("models are split on JAX only")


def job(what, devices, path):
    environment = {**os.environ, "XLA_FLAGS": XLA_FLAGS.format(devices), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.sharded_jobs", what, str(devices), str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_written_by_eight_devices_and_resumed_on_four_and_one(tmp_path):
    saved = job("save", 8, tmp_path / "saved")
    assert saved["devices"] == 8 and saved["loss"] < saved["first"]
    # Of mini widths a quarter is whole on every device; nothing is gathered for writing.
    assert saved["before"] < saved["whole"] / 2 and saved["most"] == saved["before"]
    for devices in (4, 1):
        loaded = job("load", devices, tmp_path / "saved")
        assert loaded["devices"] == devices
        assert loaded["most"] <= loaded["before"] + loaded["largest"]
        assert loaded["sum"] == pytest.approx(saved["sum"], rel=1e-12)  # the same values, summed in another order
        # The step after it, with the momenta: sums over devices run in another order.
        assert loaded["loss"] == pytest.approx(saved["loss"], rel=5e-6)


def model(optimizer=None, **changes):
    keras.utils.set_random_seed(1)
    result = VisionTransformer(TINY.replace(**changes))
    if optimizer:
        result.compile(optimizer, "sparse_categorical_crossentropy")
    return result


@pytest.fixture
def saved(tmp_path):
    save_sharded(model("adam"), tmp_path / "saved")
    return tmp_path / "saved"


def rewritten(folder, change):
    """The only part, with other arrays."""
    (path,) = folder.glob("part-*.npz")
    file = NpzFile(path)
    arrays = {name: file[name].read_stored() for name in file}
    change(arrays)
    write_npz(path, arrays.items(), file.note, overwrite=True)


def test_nothing_is_overwritten(saved):
    with pytest.raises(FileExistsError, match="holds a checkpoint already"):
        save_sharded(model("adam"), saved)


def test_what_does_not_fit_is_refused(saved, tmp_path):
    for other in (model("sgd"), model(), model("adam", depth=2)):
        with pytest.raises(ValueError, match="of another model or optimizer"):
            load_sharded(other, saved)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        load_sharded(model("adam"), tmp_path / "nowhere")


def test_a_checkpoint_that_was_not_finished_is_refused(saved):
    (part,) = saved.glob("part-*.npz")
    part.rename(saved / "part-00000-of-00002.npz")
    with pytest.raises(FileNotFoundError, match="not finished: part 2 of 2 is missing"):
        load_sharded(model("adam"), saved)
    (saved / "part-00000-of-00001.npz").touch()
    with pytest.raises(ValueError, match="parts of two checkpoints"):
        load_sharded(model("adam"), saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("1@0"), "do not fill it"),
        (lambda arrays: arrays.update({"1@0": arrays["1@0"].astype("float64")}), "is float64, not float32"),
        (lambda arrays: arrays.update({"1@5": arrays.pop("1@0")}), "lies outside"),
        (lambda arrays: arrays.update({"99999@0": arrays.pop("1@0")}), "it holds '99999@0'"),
        (lambda arrays: arrays.update({"1@0,0": arrays.pop("1@0")}), "has 2 axes, expected 1"),
    ],
)
def test_damage_is_refused_before_anything_is_assigned(saved, change, message):
    rewritten(saved, change)
    other = model("adam")
    other.get_layer("head").bias.assign([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        load_sharded(other, saved)
    assert other.get_layer("head").bias.numpy().tolist() == [1, 2, 3]


def test_other_backends_are_refused(backend, tmp_path):
    if backend == "jax":
        pytest.skip("this is about the other ones")
    with pytest.raises(RuntimeError, match="on JAX only"):
        save_sharded(model(), tmp_path / "saved")
