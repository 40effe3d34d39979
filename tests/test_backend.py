"""`import keras_vit` works where any framework is installed, and leaves a choice of the user's alone."""

import os
import sys

import pytest

from keras_vit import _backend

pytestmark = pytest.mark.once


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As if Keras had not been imported yet, and nobody had chosen."""
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def installed(*names):
        monkeypatch.setattr(_backend.importlib.util, "find_spec", lambda name: name in names or None)
        _backend.choose_backend()
        return os.environ.get("KERAS_BACKEND")

    yield installed
    monkeypatch.undo()


def test_keras_s_own_choice_stands_where_it_works(fresh):
    assert fresh("tensorflow", "jax", "torch") is None


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_an_installed_framework_is_taken(fresh, name, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")  # Keras, too, takes this for no choice
    assert fresh(name) == name


def test_the_user_s_choice_stands(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    assert fresh("torch") == "numpy"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert fresh("tensorflow", "torch") == "torch"
    monkeypatch.delenv("KERAS_BACKEND")
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert fresh("tensorflow", "torch") is None


def test_a_file_of_keras_s_names_what_is_not_installed(fresh, tmp_path):
    """Keras writes the file by itself, in an environment that had TensorFlow."""
    (tmp_path / "keras.json").write_text('{"backend": "tensorflow"}')
    with pytest.warns(UserWarning, match=r"keras\.json names .* 'tensorflow', which is not installed: .* 'torch'"):
        assert fresh("torch") == "torch"


@pytest.mark.parametrize("text", ["{}", "", "[1]", '{"backend": "'])
def test_a_file_of_keras_s_says_nothing(fresh, tmp_path, text):
    (tmp_path / "keras.json").write_text(text)
    assert fresh("torch") == "torch"


def test_without_any_framework_the_error_says_what_to_install(fresh):
    with pytest.raises(ImportError, match=r"keras-vit\[jax\]"):
        fresh()


def test_a_choice_that_cannot_be_had_is_an_error(fresh, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "foo")
    with pytest.raises(ValueError, match="one of tensorflow, jax, torch, but it is 'foo'"):
        fresh("torch")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(ImportError, match=r"jax is not installed: pip install .keras-vit\[jax\]"):
        fresh("torch")
