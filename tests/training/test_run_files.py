"""The folder of a run: whose it is, what is refused, and that nothing is lost. This knows no backend: it runs once."""

import json
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from keras_vit.training.loop import train
from keras_vit.training.run_folder import RunFolder, draw_curve
from tests.processes import REPOSITORY, environment
from tests.training.test_loop import batch, new_model, weights_of

pytestmark = pytest.mark.once


def test_a_folder_is_of_one_run(tmp_path):
    run = tmp_path / "run"
    with RunFolder(run, {"seed": 0, "recipe": {"steps": 3}}).locked():
        pass
    RunFolder(run, {"seed": 0, "recipe": {"steps": 3}})
    with pytest.raises(ValueError, match="seed was 0 and is now 1.*resume=False"):
        RunFolder(run, {"seed": 1, "recipe": {"steps": 3}})
    with RunFolder(run, {"seed": 1}, resume=False).locked():
        pass
    assert json.loads((run / "run.json").read_text()) == {"seed": 1}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        RunFolder(tmp_path, {})
    with pytest.raises(ValueError, match="is a file"):
        RunFolder(tmp_path / "notes.txt", {})
    (run / "run.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        RunFolder(run, {"seed": 1})


def test_two_processes_do_not_share_a_folder(tmp_path):
    with RunFolder(tmp_path / "run", {}).locked(), pytest.raises(RuntimeError, match="Another process"):
        with RunFolder(tmp_path / "run", {}).locked():
            pass


def test_the_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": s, "loss": 1 / s, "val_loss": None, "accuracy": 0.5, "learning_rate": 0.1} for s in (1, 2, 3)]
    draw_curve(rows, tmp_path / "curve.png", "a run")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    train(new_model(), batch, 1, every=1, folder=RunFolder(tmp_path, {}), verbose=False)
    other = keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    other.compile("sgd", "mse")
    with pytest.raises(ValueError, match="of another model"):
        RunFolder(tmp_path, {}).restore(other)


def test_other_settings_are_named_one_by_one(tmp_path):
    recipe = {"name": "finetune/cifar10", "steps": 3, "augmentation": {"flip": True, "crop": "inception"}}
    with RunFolder(tmp_path, {"seed": 0, "recipe": recipe}).locked():
        pass
    other = {**recipe, "steps": 4, "augmentation": {"flip": False, "crop": "inception"}}
    with pytest.raises(ValueError, match="recipe.steps was 3 and is now 4") as caught:
        RunFolder(tmp_path, {"seed": 0, "recipe": other})
    assert "recipe.augmentation.flip was True and is now False" in str(caught.value)
    assert "cifar10" not in str(caught.value) and "inception" not in str(caught.value)


def test_starting_again_leaves_nothing_of_the_old_run(tmp_path):
    train(new_model(), batch, 2, every=1, folder=RunFolder(tmp_path, {"seed": 0}), verbose=False)
    for name in ("model.keras", "classes.txt", "curve.png"):
        (tmp_path / name).write_text("of the old run")
    with RunFolder(tmp_path, {"seed": 1}, resume=False).locked():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "run.json"]


FULL_DISK = """
    import resource, signal, sys
    import keras
    from keras_vit.training.loop import train
    from keras_vit.training.run_folder import RunFolder
    from tests.training.test_loop import batch, new_model

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as on a full disk, instead of the process
    class Full(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))

    try:
        train(new_model(), batch, 6, every=2, folder=RunFolder(sys.argv[1], {}), callbacks=[Full()], verbose=False)
    except OSError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_disk_that_fills_is_one_clear_error(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "step-00000004" in done.stdout and "step 2" in done.stdout and done.stdout.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "run.json", "step-00000002.npz"]
    resumed, whole = new_model(), new_model()
    train(resumed, batch, 6, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    train(whole, batch, 6, every=2, verbose=False)
    for got, wanted in zip(weights_of(resumed), weights_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_damaged_checkpoint_is_named(tmp_path):
    train(new_model(), batch, 2, every=2, folder=RunFolder(tmp_path, {}), verbose=False)
    (path,) = tmp_path.glob("step-*.npz")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:300] + bytes(8) + whole[308:], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"step-00000002\.npz.*damaged.*resume=False"):
            RunFolder(tmp_path, {}).restore(new_model())


def test_a_checkpoint_of_an_older_version_is_not_passed_over(tmp_path):
    with RunFolder(tmp_path, {}).locked():
        (tmp_path / "step-00000002.h5").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-00000002\.h5.*older version"):
        RunFolder(tmp_path, {})
    with RunFolder(tmp_path, {}, resume=False).locked():
        assert not list(tmp_path.glob("step-*"))
