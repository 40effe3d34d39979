"""The shipped checkpoint, and the demo that stands on it."""

import importlib.util
import inspect
import json
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit._files import weights_folder
from keras_vit.data import load_digits
from keras_vit.export import FORMATS
from keras_vit.export.format import Format
from tests.processes import script

# `make demo BACKEND=...` shows it on each backend; what it does is tested on each.
pytestmark = [pytest.mark.long, pytest.mark.once]

CHECKPOINT = weights_folder() / "glyphs.npz"

needs_sklearn = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")


def test_the_checkpoint_is_small_and_official():
    info = keras_vit.inspect_checkpoint(CHECKPOINT)
    config = info.config
    assert info.layout == "vit_jax" and config.representation_size is None
    assert config.image_size == (24, 24) and config.patch_size == (4, 4)
    names = (weights_folder() / "glyphs_classes.txt").read_text(encoding="utf-8").splitlines()
    assert len(names) == config.classes == len(set(names))
    assert CHECKPOINT.stat().st_size <= 5e6
    with zipfile.ZipFile(CHECKPOINT) as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        assert "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel.npy" in archive.namelist()


def test_the_classes_of_the_script_are_those_of_the_file():
    train_glyphs = script("weights/train_glyphs.py")
    names = (weights_folder() / "glyphs_classes.txt").read_text(encoding="utf-8").splitlines()
    assert tuple(names) == train_glyphs.CLASSES
    assert len(set("".join(names))) == len("".join(names))


@needs_sklearn
def test_the_split_is_fixed_and_even():
    train, test = load_digits()
    assert train.pixels.shape == (1297, 8, 8, 3)
    assert test.pixels.shape == (500, 8, 8, 3)
    assert train.pixels.dtype == np.uint8
    assert train.pixels.max() == 255
    assert set(np.bincount(test.labels)) <= set(range(48, 53))
    assert test.labels[:8].tolist() == load_digits()[1].labels[:8].tolist()
    seen = {scan.tobytes() for scan in train.pixels}
    assert not seen & {scan.tobytes() for scan in test.pixels}


@needs_sklearn
def test_the_demo(tmp_path, monkeypatch, capsys):
    """4 steps for each of the two models, and 100 of the test images; test_readme.py has a real export."""
    pytest.importorskip("matplotlib")
    exported, real = [], keras_vit.export

    def export(model, path, **options):
        inspect.signature(real.export).bind(model, path, **options)
        exported.append(model)
        path.write_bytes(b"TFL3")

    monkeypatch.setattr(keras_vit, "export", export)
    monkeypatch.setattr(Format, "missing", lambda row: [])
    monkeypatch.setattr(type(FORMATS["litert"]), "run", lambda row, path, x: {"y": exported[0].predict(x, verbose=0)})
    demo = script("examples/demo.py")
    result = demo.run(tmp_path, seed=3, epochs=1, train_images=128, test_images=100)
    assert result["accuracy"]["transfer"] > 0.5  # nothing but the head start explains it
    assert result["accuracy"]["transfer"] > result["accuracy"]["scratch"] + 0.2
    assert result["mistakes"] == round(100 * (1 - result["accuracy"]["transfer"]))
    expected = {"digits.keras", "digits.npz", "digits.tflite"}
    assert set(result["files"]) == expected
    for name, file in result["files"].items():
        assert file["bytes"] == (tmp_path / name).stat().st_size
        assert file["max_abs_error"] < 5e-5  # logits of size 10, sums in another order
    assert json.loads((tmp_path / "demo.json").read_text()) == result
    assert {path.name for path in tmp_path.iterdir()} == expected | {"demo.json", "demo.png"}
    model = keras.saving.load_model(tmp_path / "digits.keras")
    assert not model.compiled and model.config.class_names == tuple("0123456789")
    shown = capsys.readouterr()
    assert "fine-tuning" in shown.err and "demo.png" in shown.out
