"""Checkpoints of split models: written by 8 devices, resumed on 4 and on 1, with nothing gathered on any device."""

import json
import os
import shutil
import subprocess
import sys

import keras
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.checkpoints.files.npz import NpzFile, write_npz
from keras_vit.training import load_sharded, save_sharded, sharded
from tests.processes import REPOSITORY, environment

TINY = ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=32, classes=3)


@pytest.fixture(autouse=True)
def only_jax(backend, request):
    if backend != "jax" and "other_backends" not in request.node.name:
        pytest.skip("models are split on JAX only")


def test_written_by_eight_devices_and_resumed_on_four_and_one(tmp_path):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    variables = environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "tests.training.sharded_jobs", "all", str(tmp_path / "saved")]
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    saved, *others = json.loads(done.stdout.splitlines()[-1])
    assert saved["devices"] == 8 and saved["losses"][0] < saved["first"]
    # Of mini widths a third is whole on every device; nothing is gathered for writing.
    assert saved["before"] < saved["whole"] / 2 and saved["most"] == saved["before"]
    for devices, loaded in zip((4, 1), others, strict=True):
        assert loaded["devices"] == devices
        assert loaded["most"] <= loaded["before"] + loaded["largest"]
        assert loaded["sum"] == pytest.approx(saved["sum"], rel=1e-12)  # the same values, summed in another order
        # The steps after it, with the momenta: sums over devices run in another order.
        assert loaded["losses"] == pytest.approx(saved["losses"], rel=5e-6)


def model(optimizer=None, **changes):
    keras.utils.set_random_seed(1)
    result = VisionTransformer(TINY.replace(**changes))
    if optimizer:
        result.compile(optimizer, "sparse_categorical_crossentropy")
        result.optimizer.build(result.trainable_variables)
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_disk_that_fills_is_one_clear_error(saved, tmp_path):
    """A limit on the size of files stands for it; Python ignores its signal, so that the write fails."""
    import resource

    new, (soft, hard) = model("adam"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match=r"part-00000-of-00001\.npz cannot be written \(File too large\).*make room"):
            save_sharded(new, tmp_path / "next")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    load_sharded(new, saved)  # the one before is whole
    save_sharded(new, tmp_path / "next")


def test_what_a_kill_leaves_is_no_checkpoint(tmp_path, monkeypatch):
    """The folder as it is in the midst of writing: a process that is killed cannot tidy up."""
    folder, killed = tmp_path / "next", tmp_path / "killed"

    def write(path, arrays, note):
        def copied():
            for number, array in enumerate(arrays):
                if number == 3:
                    shutil.copytree(folder, killed)
                yield array

        write_npz(path, copied(), note)

    with monkeypatch.context() as patched:
        patched.setattr(sharded, "write_npz", write)
        save_sharded(model("adam"), folder)
    assert len(list(killed.iterdir())) == 1
    with pytest.raises(FileNotFoundError, match="There is no checkpoint of save_sharded in .*killed"):
        load_sharded(model("adam"), killed)
    save_sharded(model("adam"), killed)
    assert [path.name for path in killed.iterdir()] == ["part-00000-of-00001.npz"]
    load_sharded(model("adam"), killed)


def test_other_backends_are_refused(backend, tmp_path):
    if backend == "jax":
        pytest.skip("this is about the other ones")
    with pytest.raises(RuntimeError, match="on JAX only"):
        save_sharded(model(), tmp_path / "saved")
