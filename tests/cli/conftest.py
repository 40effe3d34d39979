"""The program in this process and in a fresh one, and small files for it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import save_model
from keras_vit.cli import main
from tests.pictures import save
from tests.processes import REPOSITORY
from tests.small_models import small_vit_config

HEAVY = ("keras", "tensorflow", "jax", "jaxlib", "torch", "h5py", "PIL", "scipy")

# What pip writes as bin/keras-vit, for several command lines one after another; at the end it says how they ended and
# what has been imported.
PROGRAM = f"""
import atexit, json, os, sys
codes = []
atexit.register(lambda: os.write(int(os.environ["REPORT"]), json.dumps(
    [codes, sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r}))]).encode()))
from keras_vit.cli import main
for line in json.loads(sys.argv[1]):
    try:
        codes.append(main(line))
    except SystemExit as end:
        codes.append(end.code)
"""


@pytest.fixture(autouse=True)
def no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)


@pytest.fixture
def run(capsys):
    """A function that runs a command in this process and gives back what it prints on both streams."""

    def run(*arguments, code=0):
        try:
            result = main([str(argument) for argument in arguments])
        except SystemExit as error:  # wrong usage
            result = error.code
        streams = capsys.readouterr()
        assert result == code, streams.err
        assert "Traceback" not in streams.err and (code == 0 or streams.out == "")
        return streams

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A function that makes a file of a small model whose answers are those of its bias."""

    def make(file="tiny.npz", bias=(0.0, 2.0, 1.0), **fields):
        model = keras_vit.VisionTransformer(small_vit_config(**{"width": 16, "depth": 1} | fields))
        if model.config.classes is not None:
            model.get_layer("head").bias.assign(bias)
        path = tmp_path_factory.mktemp("tiny") / file
        save_model(model, path)
        return path

    return make


@pytest.fixture
def photo(tmp_path):
    return save(tmp_path / "photo.png", np.random.default_rng(0).integers(0, 256, (90, 120, 3)).astype("uint8"))


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    """A folder of plain colours: 4 pictures of each to train on, 2 to test."""
    root = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for channel, name in enumerate(("red", "green", "blue")):
            for i in range(count):
                pixels = rng.integers(0, 40, (12, 16, 3))
                pixels[..., channel] += 200
                save(root / split / name / f"{i}.png", pixels.astype("uint8"))
    return root


@pytest.fixture
def program(tmp_path):
    """A function that runs command lines in a fresh process: its output, errors, and the heavy modules it imported."""
    script = tmp_path / "bin" / "keras-vit"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    # Without what tests/conftest.py sets to keep frameworks quiet.
    kept = ("PATH", "KERAS_BACKEND", "SYSTEMROOT", "LD_LIBRARY_PATH")
    bare = {name: os.environ[name] for name in kept if name in os.environ}
    bare |= {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "KERAS_VIT_OFFLINE": "1"}

    def run(*lines, code=0, **environment):
        reader, writer = os.pipe()
        done = subprocess.run(
            [sys.executable, str(script), json.dumps([[str(word) for word in line] for line in lines])],
            env={**bare, "REPORT": str(writer), **environment},
            pass_fds=[writer],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
        os.close(writer)
        with os.fdopen(reader) as report:
            codes, imported = json.load(report)
        assert codes == [code] * len(lines) and not done.returncode, done.stderr
        return done.stdout, done.stderr, imported

    return run
