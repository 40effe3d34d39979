"""What the outputs stand for travels with the model, through every kind of file."""

import json
import shutil
import warnings
import zipfile

import numpy as np
import pytest

import keras_vit
from keras_vit._files import weights_folder
from keras_vit.checkpoints import save_model
from keras_vit.zoo import load
from tests.small_models import model_of, small_bit_config, small_vit_config

pytestmark = pytest.mark.once

NAMES = ("Straßenbahn", "猫", "a, b")
VIT, BIT = (config(classes=3, class_names=NAMES) for config in (small_vit_config, small_bit_config))


def with_note(path, note):
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = note if isinstance(note, bytes) else json.dumps(note).encode()
    return path


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory):
    """A checkpoint of three classes without names, as from elsewhere."""
    path = tmp_path_factory.mktemp("unnamed") / "model.npz"
    keras_vit.to_checkpoint(model_of(VIT.replace(class_names=None)), path)
    return path


@pytest.mark.parametrize("config", [VIT, BIT], ids=["vit", "bit"])
@pytest.mark.parametrize("ending", [".npz", ".keras", ".weights.h5"])
def test_every_kind_of_file_carries_them(config, ending, tmp_path):
    path = tmp_path / f"model{ending}"
    save_model(model_of(config), path)
    assert load(path).config.class_names == NAMES
    assert keras_vit.class_names(path) == list(NAMES)
    if ending == ".npz":
        assert keras_vit.class_names(tmp_path) == keras_vit.class_names(model_of(VIT)) == list(NAMES)
        assert keras_vit.inspect_checkpoint(path).to_dict()["config"]["class_names"] == list(NAMES)
        with np.load(path) as one:  # arrays for the original code are what they were
            assert "class_names" not in " ".join(one.files)


def test_the_checkpoint_that_comes_along():
    names = keras_vit.class_names("glyphs")
    assert names == (weights_folder() / "glyphs_classes.txt").read_text(encoding="utf-8").splitlines()
    assert keras_vit.from_checkpoint("glyphs").config.class_names == tuple(names) and len(names) == 164
    assert keras_vit.from_checkpoint("glyphs", classes=3).config.class_names is None
    assert keras_vit.from_checkpoint("glyphs", include_top=False).config.class_names is None


def test_too_many_names_for_a_comment(tmp_path):
    """A zip archive's comment has 65,535 bytes; Python cuts longer ones off, and the grid would be lost, too."""
    names = tuple(f"class number {n}" for n in range(5000))
    model = model_of(VIT.replace(classes=5000, class_names=names))
    with pytest.raises(ValueError, match=r"65,535 bytes.*\.keras.*class_names=None"):
        keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []


STRANGE = {
    "a dictionary": {"a": 1, "b": 2, "c": 3},
    "a nested list": ["a", "b", ["c"]],
    "terminal sequences": ["a", "b", "\x1b]0;owned\x07"],
    "half a pair": ["a", "b", "\ud800"],
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_strange_note_is_a_warning(case, unnamed, tmp_path):
    """The weights can be used all the same, and no odd text reaches a terminal."""
    path = with_note(shutil.copy(unnamed, tmp_path / "model.npz"), {"class_names": STRANGE[case]})
    with pytest.warns(UserWarning, match="the class names in the file are ignored") as warned:
        model = keras_vit.from_checkpoint(path)
    assert model.config.class_names is None and len(warned) == 1
    text = str(warned[0].message).removeprefix(f"{path}: ")
    assert text.isprintable() and len(text) < 300
    assert keras_vit.inspect_checkpoint(path).oddities == [text]
    assert keras_vit.class_names(path) is None
    with warnings.catch_warnings():  # a new head has nothing to do with it
        warnings.simplefilter("error")
        keras_vit.from_checkpoint(path, classes=2)


@pytest.mark.parametrize("ending", [".npz", ".keras", ".weights.h5"])
def test_names_beside_an_old_file(ending, tmp_path):
    path = tmp_path / f"model{ending}"
    save_model(model_of(VIT.replace(class_names=None)), path)
    # They belong to another model where the number differs.
    three = ("x", "y", "z")
    for text, names in ((None, None), ("\ufeffx\ny\nz\n", three), ("x\ny\nz\n\n", three), ("x\ny\n", None)):
        if text:
            (tmp_path / "classes.txt").write_text(text, encoding="utf-8")
        assert keras_vit.class_names(path) == (names and list(names))
        assert load(path).config.class_names == names
    # A file's own names are the ones.
    save_model(model_of(VIT), path, overwrite=True)
    assert keras_vit.class_names(path) == list(NAMES)


@pytest.mark.parametrize("content", [b"x\ny\n\xff\n", b"x\ny\n\x1b[2J\n"])
def test_a_list_that_is_none(content, unnamed, tmp_path):
    path = shutil.copy(unnamed, tmp_path / "model.npz")
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"classes\.txt (is not in UTF-8|must have one class name a line)"):
        keras_vit.class_names(path)
    with pytest.warns(UserWarning, match=r"no names: .*classes\.txt (is not in UTF-8|must have one class name a line)"):
        assert keras_vit.from_checkpoint(path).config.class_names is None


def test_weights_for_a_variant_bring_their_names(tmp_path):
    model = keras_vit.ViT_Ti16(image_size=16, class_names=["a", "b"])
    assert model.config.classes == 2
    model.get_layer("head").kernel.assign(np.ones((192, 2)))
    save_model(model, tmp_path / "model.weights.h5")
    loaded = keras_vit.ViT_Ti16(weights=tmp_path / "model.weights.h5", image_size=16, classes=2)
    assert loaded.config.class_names == ("a", "b")
    renamed = keras_vit.from_checkpoint("glyphs", classes=2, class_names=["a", "b"])
    assert renamed.config.class_names == ("a", "b")


def test_what_names_no_file(tmp_path):
    assert keras_vit.class_names("ViT-B/16") is None
    assert keras_vit.class_names("imagenet21k/ViT-B_16") is keras_vit.class_names("hf://owner/name") is None
    for name in (tmp_path / "missing.npz", tmp_path / "missing", "missing.safetensors", "./missing"):
        with pytest.raises(FileNotFoundError, match="no file"):
            keras_vit.class_names(name)
    with pytest.raises(IsADirectoryError, match="has no weights"):
        keras_vit.class_names(tmp_path)
    with pytest.raises(ValueError, match="glyfs"):
        keras_vit.class_names("glyfs")
    with pytest.raises(TypeError, match="source must be a name, an address or a path"):
        keras_vit.class_names(["glyphs"])
