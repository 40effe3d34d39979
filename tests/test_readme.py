"""The blocks of the README's Python run one after another in one folder, each by itself."""

import re

import pytest

import keras_vit
from tests.pages import blocks
from tests.processes import environment

pytestmark = pytest.mark.long

BLOCKS = [code for reason, code in blocks("README.md") if not reason]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture
def one_folder(tmp_path, folder, monkeypatch):
    """Where a newcomer pastes the blocks: only what earlier ones wrote is there, nothing is downloaded."""
    pytest.importorskip("PIL")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", environment(KERAS_BACKEND="tensorflow")["PYTHONPATH"])  # which writes LiteRT files
    return folder


# What they call is tested on each backend; here the words of the page are tested. An export takes half a minute.
@pytest.mark.once
@pytest.mark.parametrize(
    "block",
    [pytest.param(code, marks=pytest.mark.nightly if "keras_vit.export(" in code else ()) for code in BLOCKS],
    ids=range(len(BLOCKS)),
)
def test_a_block_of_the_readme_runs(block, one_folder, capsys):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package)
    if "keras_vit.export(" in block and keras_vit.export.FORMATS["litert"].missing():
        pytest.skip("needs LiteRT")
    exec(compile(re.sub(r"\bsteps=\d+", "steps=2", block), "README.md", "exec"), {})
    printed = capsys.readouterr()
    assert "glyph" not in printed.err and ('sample_image("character.png"))' not in block or "'R'" in printed.out)
    for written in re.findall(r'"([\w/]+\.(?:npz|tflite|png))"', block.replace("sample_image(", "")):
        assert written in ("character.png", "digit.png") or (one_folder / written).exists()
