"""The folder of a run: whose it is, what is refused, and that nothing is lost. This knows no backend: it runs once."""

import json

import numpy as np
import pytest

from keras_vit.training.loop import RunFolder
from tests.training.test_loop import new_model

pytestmark = pytest.mark.once

SETTINGS = {"recipe": {"steps": 10}, "classes": ["a", "b"]}
LOG = [{"step": 0, "loss": 1.5}, {"step": 5, "loss": 0.5, "accuracy": 0.1}]


def test_a_folder_is_of_one_run(tmp_path):
    run, recipe = tmp_path / "run", {"name": "finetune/cifar10", "steps": 3, "augmentation": {"flip": True}}
    with RunFolder(run, {"seed": 0, "recipe": recipe}).locked():
        pass
    RunFolder(run, {"seed": 0, "recipe": recipe})
    with pytest.raises(ValueError, match="resume=False") as caught:
        RunFolder(run, {"seed": 1, "recipe": recipe | {"augmentation": {"flip": False}}})
    assert "seed was 0 and is now 1; recipe.augmentation.flip was True and is now False." in str(caught.value)
    (run / "run.json").write_text(json.dumps({"classes": "\x1b[31m" + "x" * 10_000}))  # what would control the terminal
    with pytest.raises(ValueError, match=r"other settings: classes was '\\x1b\[31mxxx") as caught:
        RunFolder(run, SETTINGS)
    assert len(str(caught.value)) < 3000
    with RunFolder(run, {"seed": 1}, resume=False).locked():
        assert json.loads((run / "run.json").read_text()) == {"seed": 1}
    (tmp_path / "notes.txt").write_text("mine")
    for folder, message in ((tmp_path, "holds other files"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(ValueError, match=message):
            RunFolder(folder, {})


def test_two_processes_do_not_share_a_folder(tmp_path):
    with RunFolder(tmp_path / "run", {}).locked(), pytest.raises(RuntimeError, match="Another process"):
        with RunFolder(tmp_path / "run", {}).locked():
            pass


# Damaged files: errors that name the file and say what to do; nothing is half restored


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run", SETTINGS)
    with run.locked():
        run.save(new_model(), 5, LOG)
    return tmp_path / "run"


def restore(folder, model=None):
    run = RunFolder(folder, SETTINGS)
    with run.locked():
        return run.restore(model or new_model())


def test_a_sound_run(folder):
    model = new_model()
    assert restore(folder, model) == (5, False, LOG)
    assert (folder / "log.csv").read_text() == "step,loss,accuracy\n0,1.5,\n5,0.5,0.1\n"
    assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "run.json", "step-00000005.npz"]


def test_damaged_settings(folder):
    for text in (b"", b"{", b"\xff", b"[" * 100_000, b"5", b"[1]"):
        (folder / "run.json").write_bytes(text)
        with pytest.raises(ValueError, match=r"run.json is damaged"):
            restore(folder)


def changed(path, change):
    with np.load(path) as file:
        arrays = change(dict(file))
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged"),
    "a flipped bit": (flip_a_bit, "is damaged"),
    "an array missing": (lambda path: changed(path, lambda m: m | {"3": None}), "is damaged"),
    "no note": (lambda path: np.savez(path, **{"0": np.zeros(3)}), "is damaged"),
    "another shape": (lambda path: changed(path, lambda m: m | {"0": m["1"]}), "belongs to another model"),
    "other types": (lambda path: changed(path, lambda m: m | {"0": m["0"].astype("f8")}), "belongs to another model"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint(folder, what):
    damage, message = DAMAGE[what]
    damage(folder / "step-00000005.npz")
    model = new_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"step-00000005.npz {message}.*resume=False"):
        restore(folder, model)
    np.testing.assert_equal(model.get_weights(), before)


def test_what_killed_runs_left_half_written_goes(tmp_path):
    """A run that goes on removes it, whose checkpoints may be large; files of others stay."""
    run, left = tmp_path / "run", ".part-0123abcd-step-00000005.npz"
    with RunFolder(run, {"seed": 1}).locked():
        pass
    for name in (left, ".part-0123abcd-other.npz", "mine.txt"):
        (run / name).write_bytes(b"half")
    with RunFolder(run, {"seed": 1}).locked():
        assert sorted(path.name for path in run.iterdir() if path.name != ".lock") == [
            *(".part-0123abcd-other.npz", "mine.txt", "run.json")
        ]
