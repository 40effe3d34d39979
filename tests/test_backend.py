"""`import keras_vit` works where any framework is installed, and leaves a choice of the user's alone."""

import os
import sys

import pytest

from keras_vit import _importing

pytestmark = pytest.mark.once


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """What is chosen for a variable, what stands in keras.json and what is installed, before Keras is imported."""
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def choose(variable, file, *installed):
        monkeypatch.delenv("KERAS_BACKEND", raising=False)
        if variable is not None:
            monkeypatch.setenv("KERAS_BACKEND", variable)
        if file is not None:
            (tmp_path / "keras.json").write_text(file)
        monkeypatch.setattr(_importing.importlib.util, "find_spec", lambda name: name in installed or None)
        _importing.choose_backend()
        return os.environ.get("KERAS_BACKEND")

    yield choose
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("variable", "file", "installed", "expected"),
    [
        (None, None, ("tensorflow", "jax", "torch"), None),  # Keras's own choice works
        (None, None, ("torch",), "torch"),
        ("numpy", None, ("torch",), "numpy"),  # the user's choice stands
        ("torch", None, ("tensorflow", "torch"), "torch"),
        (None, '{"backend": "torch"}', ("tensorflow", "torch"), None),
        *((None, text, ("torch",), "torch") for text in ("{}", "[1]", '{"backend": "')),
    ],
)
def test_the_framework_that_is_taken(chosen, variable, file, installed, expected):
    assert chosen(variable, file, *installed) == expected


def test_a_file_of_the_user_s_names_what_is_not_installed(chosen):
    with pytest.warns(UserWarning, match=r"keras\.json names .* 'jax', which is not installed: .* 'torch'"):
        assert chosen(None, '{"backend": "jax"}', "torch") == "torch"


def test_another_framework_that_comes_along_is_said_once(chosen, tmp_path):
    """The extra `export` brings TensorFlow, which is what keras.json names, although nobody chose it."""
    written = '{"floatx": "float32", "epsilon": 1e-07, "backend": "tensorflow", "image_data_format": "channels_last"}'
    assert chosen(None, None, "torch") == "torch"
    assert chosen(None, written, "torch") == "torch"  # without a warning
    assert chosen(None, written, "jax", "torch") == "torch"  # stays
    assert chosen("torch", written, "tensorflow", "torch") == "torch"
    with pytest.warns(UserWarning, match=r"'tensorflow', .* ran on 'torch'.* KERAS_BACKEND=torch"):
        assert chosen(None, written, "tensorflow", "torch") is None
    assert chosen(None, written, "tensorflow", "torch") is None


@pytest.mark.parametrize("home", ["file", "{", "[]", '{"elsewhere": "torch"}'])
def test_the_choice_needs_no_file_that_can_be_read(chosen, tmp_path, home, monkeypatch):
    (tmp_path / "keras_vit.json").write_text(home)
    if home == "file":
        monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras_vit.json"))
    assert chosen(None, None, "torch") == "torch"
    assert chosen(None, None, "jax", "torch") == ("jax" if home == "file" else "torch")


@pytest.mark.parametrize(
    ("variable", "installed", "error", "words"),
    [
        (None, (), ImportError, r"keras-vit-zoo\[jax\]"),
        ("foo", ("torch",), ValueError, "one of tensorflow, jax, torch, but it is 'foo'"),
        ("jax", ("torch",), ImportError, r"'jax', which is missing: pip install .keras-vit-zoo\[jax\]"),
    ],
)
def test_a_choice_that_cannot_be_had_is_an_error(chosen, variable, installed, error, words):
    with pytest.raises(error, match=words):
        chosen(variable, None, *installed)
