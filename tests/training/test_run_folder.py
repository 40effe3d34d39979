"""Run folders with damaged files: errors that name the file and say what to do; nothing is half restored."""

import json
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training.run_folder import RunFolder

SETTINGS = {"recipe": {"steps": 10}, "classes": ["a", "b"]}
CONFIG = keras_vit.ViTConfig(image_size=8, patch_size=8, width=8, depth=1, heads=2, mlp_width=8, classes=2)


def compiled(config=CONFIG):
    model = keras_vit.VisionTransformer(config)
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def folder(tmp_path):
    """A run with one checkpoint and a log."""
    run = RunFolder(tmp_path / "run", SETTINGS)
    with run.locked():
        run.write_log([{"step": 0, "loss": 1.5}, {"step": 5, "loss": 0.5}])
        run.save(compiled(), 5)
    return tmp_path / "run"


def restore(folder, model=None):
    run = RunFolder(folder, SETTINGS)
    with run.locked():
        return run.restore(model or compiled())


def test_a_sound_run(folder):
    model = compiled()
    assert restore(folder, model) == (5, False)
    assert [row["step"] for row in RunFolder(folder, SETTINGS).log()] == [0, 5]
    assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "run.json", "step-00000005.npz"]


@pytest.mark.parametrize("text", [b"\xff", b"loss\n1\n", b"step,loss\nfive,1\n", b"step\n1.5\n", b"step,loss\n1,2\n,4"])
def test_a_damaged_log(folder, text):
    (folder / "log.csv").write_bytes(text)
    with pytest.raises(ValueError, match=r"log.csv is damaged .*remove it, or pass resume=False"):
        restore(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_damaged_settings(folder, text):
    (folder / "run.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"run.json is damaged"):
        restore(folder)


def test_settings_that_control_the_terminal(folder):
    (folder / "run.json").write_text(json.dumps(SETTINGS | {"classes": "\x1b[31m" + "x" * 10_000}))
    with pytest.raises(ValueError, match=r"other settings: classes was '\\x1b\[31mxxx") as caught:
        restore(folder)
    assert len(str(caught.value)) < 3000


def changed(path, change):
    with zipfile.ZipFile(path) as file:
        members, comment = {name: file.read(name) for name in file.namelist()}, file.comment
    with zipfile.ZipFile(path, "w") as file:
        for name, data in change(members).items():
            file.writestr(name, data)
        file.comment = comment


DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged"),
    "a flipped bit": (lambda path: path.write_bytes(flipped(path.read_bytes())), "is damaged"),
    "no array": (lambda path: changed(path, lambda m: m | {"3.npy": b""}), "is damaged"),
    "an array missing": (lambda path: changed(path, lambda m: without(m, "3.npy")), "is damaged"),
    "another shape": (lambda path: changed(path, lambda m: m | {"0.npy": m["1.npy"]}), "is of another model"),
    "no note": (lambda path: np.savez(path, **{"0": np.zeros(3)}), "is damaged"),
}


def without(members, name):
    return {other: data for other, data in members.items() if other != name}


def flipped(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint(folder, what):
    damage, message = DAMAGE[what]
    damage(folder / "step-00000005.npz")
    model = compiled()
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"step-00000005.npz {message}.*resume=False"):
        restore(folder, model)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_checkpoint_of_other_types(folder):
    """bfloat16 bits are no whole numbers: a run in another precision is another run."""
    path = folder / "step-00000005.npz"
    with np.load(path) as file:
        arrays, comment = dict(file), file.zip.comment
    np.savez(path, **{name: a.astype("f8") if a.dtype == "f4" else a for name, a in arrays.items()})
    with zipfile.ZipFile(path, "a") as file:
        file.comment = comment
    with pytest.raises(ValueError, match="of another model"):
        restore(folder)
