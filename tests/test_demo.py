"""The shipped checkpoint, and the demo that stands on it."""

import contextlib
import importlib.util
import io
import json
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from rich.console import Console

import keras_vit
from keras_vit import demo, training
from keras_vit._files import weights_folder
from keras_vit.cli import main
from keras_vit.export import FORMATS
from tests.processes import environment

# `make demo BACKEND=...` shows it on each backend; what it does is tested on each.
pytestmark = [pytest.mark.long, pytest.mark.once]

SCRIPT = Path(__file__).resolve().parent.parent / "weights" / "train_glyphs.py"
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


@pytest.fixture(scope="module")
def train_glyphs():
    """The script that made the checkpoint; a wheel does not carry it."""
    if not SCRIPT.is_file():
        pytest.skip("the training script is part of the repository only")
    spec = importlib.util.spec_from_file_location("train_glyphs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_classes_of_the_script_are_those_of_the_file(train_glyphs):
    names = (weights_folder() / "glyphs_classes.txt").read_text(encoding="utf-8").splitlines()
    assert tuple(names) == train_glyphs.CLASSES
    assert len(set("".join(names))) == len("".join(names))


@needs_sklearn
def test_the_split_is_fixed_and_even():
    train, test = demo.load_digits()
    assert train.pixels.shape == (1297, 8, 8, 3)
    assert test.pixels.shape == (500, 8, 8, 3)
    assert train.pixels.dtype == np.uint8
    assert train.pixels.max() == 255
    assert set(np.bincount(test.labels)) <= set(range(48, 53))
    assert test.labels[:8].tolist() == demo.load_digits(20)[1].labels[:8].tolist()
    seen = {scan.tobytes() for scan in train.pixels}
    assert not seen & {scan.tobytes() for scan in test.pixels}
    for count, words in ((5, "at least 10"), (9, "whole number"), (1298, "at most 1297")):
        with pytest.raises(ValueError, match=f"train_images must be .*{words}.*{count}"):
            demo.load_digits(count)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with a tiny budget: 4 steps for each of the two models, and 100 of the test images."""
    for name in demo.NEEDS:
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("demo") / "[demo]"
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), pytest.MonkeyPatch.context() as patch:  # progress
        patch.setattr(demo, "TEST_IMAGES", 100)
        patch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
        patch.setenv("PYTHONPATH", environment(KERAS_BACKEND="tensorflow")["PYTHONPATH"])  # writes LiteRT
        result = demo.run(folder, seed=3, epochs=1, train_images=128, console=Console(file=shown, width=100))
    return result, folder, shown.getvalue()


def test_the_demo_learns_from_the_checkpoint(ran):
    result, _, _ = ran
    assert result["accuracy"]["transfer"] > 0.5  # nothing but the head start explains it
    assert result["accuracy"]["transfer"] > result["accuracy"]["scratch"] + 0.2
    assert result["backend"] == keras.backend.backend()
    for name in ("transfer", "scratch"):
        assert result["accuracy_per_epoch"][name] == [0.1, result["accuracy"][name]]
        assert result["seconds"][name] > 0
    assert result["mistakes"] == round(100 * (1 - result["accuracy"]["transfer"]))


def test_the_demo_fine_tunes_as_the_paper_does(ran):
    _, folder, shown = ran
    assert "fine-tuning" in shown and "finetune/cifar10" in shown
    table_4 = training.recipe("finetune/cifar10")
    fields = ("optimizer", "momentum", "momentum_dtype", "schedule", "clip_norm", "weight_decay", "loss", "dropout")
    assert all(getattr(demo.RECIPE, name) == getattr(table_4, name) for name in fields)
    assert demo.RECIPE.learning_rate in table_4.sweep["learning_rate"]
    model = keras.saving.load_model(folder / "digits.keras")
    assert not model.compiled and model.config.class_names == tuple("0123456789")


def test_the_demo_s_files_give_the_same_answers(ran):
    result, folder, _ = ran
    expected = {"digits.keras", "digits.npz"}
    if not FORMATS["litert"].missing():
        expected.add("digits.tflite")
    assert set(result["files"]) == expected
    for name, file in result["files"].items():
        assert file["bytes"] == (folder / name).stat().st_size
        assert file["max_abs_error"] < 5e-5  # logits of size 10, sums in another order
    assert json.loads((folder / "demo.json").read_text()) == result
    assert {path.name for path in folder.iterdir()} == expected | {"demo.json", "demo.png"}


def test_what_takes_time_is_said_where_there_is_no_terminal():
    shown = io.StringIO()
    with demo._doing("Drawing ...", Console(file=shown)):
        assert shown.getvalue() == "Drawing ...\n"


def test_the_demo_s_picture_is_one_and_progress_and_tables_are_shown(ran):
    matplotlib_image = pytest.importorskip("matplotlib.image")
    result, folder, shown = ran
    for text in ("4/4", f"{result['accuracy']['transfer']:.1%}", "digits.keras", "[demo]/demo.png"):
        assert text in "".join(shown.split())
    pixels = matplotlib_image.imread(folder / "demo.png")
    assert pixels.shape[0] > 800 and pixels.shape[1] > 1200
    quarters = [part for half in np.array_split(pixels, 2) for part in np.array_split(half, 2, axis=1)]
    assert all(quarter[..., :3].std() > 0.05 for quarter in quarters)  # none of the four panels is empty


@pytest.mark.parametrize("package", demo.NEEDS)
def test_a_missing_package_is_one_clear_sentence(monkeypatch, capsys, tmp_path, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert main(["demo", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert package.removeprefix("sk") in said
    assert 'pip install "keras-vit-zoo[demo]"' in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [{"epochs": 0}, {"seed": 2**32}, {"train_images": 3}, {"train_images": 99.0}])
def test_nonsense_is_refused_at_once(tmp_path, arguments):
    with pytest.raises((TypeError, ValueError), match="was given|between 0 and 2"):
        demo.run(tmp_path / "out", **arguments)
    assert list(tmp_path.iterdir()) == []
