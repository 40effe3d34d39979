"""Where a package is missing, one line says what to install, whatever was asked for."""

import os
import sys

import pytest

from tests.processes import REPOSITORY

pytestmark = pytest.mark.once

# Read by Python at its start: packages are invisible, as if they were not installed.
HIDE = """
import os
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = os.environ["HIDDEN"].split(",")
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.partition(".")[0] in hidden else find(name, path, target)
)
"""
BACKENDS = "tensorflow,jax,torch"
IMAGES = 'needs Pillow, which is not installed: pip install "keras-vit-zoo[images]"'
NAMES = "classify {photo} --names a,b --weights"
EMBED = "embed {photo} --weights {tiny} --output x.npz"


@pytest.fixture
def without(program, tmp_path):
    """A function that runs `keras-vit` where packages are missing: its error, of one line."""
    folder = tmp_path / "hiding"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE)

    def run(hidden, *arguments, **variables):
        found = {"PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]), "HIDDEN": hidden}
        _, errors, _ = program(arguments, code=1, **found, **variables)
        return one_line(errors)

    return run


def one_line(errors):
    assert errors.startswith("keras-vit: ") and errors.count("\n") == 1 and "Traceback" not in errors
    return errors


@pytest.mark.parametrize(("hidden", "backend"), [(BACKENDS, ""), ("jax", "jax")])
def test_one_line_says_which_backend_to_install(without, tiny, photo, hidden, backend):
    error = without(hidden, "predict", photo, "--weights", tiny(), KERAS_BACKEND=backend)
    assert 'pip install "keras-vit-zoo[jax]"' in error and "Repair" not in error


@pytest.mark.parametrize(
    ("hidden", "command", "words"),
    [
        ("PIL", EMBED, IMAGES),
        ("PIL", f"{EMBED} --skip-unreadable", IMAGES),
        ("PIL", "evaluate {tiny} {colours} --on-bad-image skip", IMAGES),
        ("sklearn", "evaluate {tiny} digits", 'scikit-learn, which is not installed: pip install "keras-vit-zoo['),
        ("tokenizers sentencepiece", f"{NAMES} hf://openai/clip-vit-base-patch32", "tokenizers and sentencepiece, wh"),
        ("tokenizers sentencepiece", f"{NAMES} big_vision/siglip/webli_en_b16_224_63724782", "and sentencepiece, wh"),
    ],
)
def test_one_line_says_what_to_install(run, tiny, photo, colours, tmp_path, monkeypatch, hidden, command, words):
    places = {"tiny": tiny(), "photo": photo, "colours": colours}
    for name in hidden.split():
        monkeypatch.setitem(sys.modules, name, None)  # imports fail as if it were not installed
    monkeypatch.chdir(tmp_path)
    error = one_line(run(*(word.format(**places) for word in command.split()), code=1).err)
    assert words in error and "Repair" not in error
