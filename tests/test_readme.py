"""Each block of the README's Python runs by itself in an empty folder; and so does what the docs say of KerasCV."""

import re
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from tests.processes import environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]


def blocks(page, run_elsewhere=False):
    found = re.findall(r"(^<!-- not run: .+? -->\n)?^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    return [code for mark, code in found if bool(mark) == run_elsewhere]


BLOCKS = blocks("README.md")


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Where a newcomer pastes a block: nothing is there, nothing is downloaded."""
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", environment(KERAS_BACKEND="tensorflow")["PYTHONPATH"])  # which writes LiteRT files
    return tmp_path


# What they call is tested on each backend; here the words of the page are tested. An export takes half a minute.
@pytest.mark.once
@pytest.mark.parametrize(
    "block",
    [pytest.param(code, marks=pytest.mark.nightly if "keras_vit.export(" in code else ()) for code in BLOCKS],
    ids=range(len(BLOCKS)),
)
def test_a_block_of_the_readme_runs_alone(block, empty_folder, capsys):
    for package in ("sklearn", "matplotlib"):
        pytest.importorskip(package)
    if "keras_vit.export(" in block and keras_vit.export.FORMATS["litert"].missing():
        pytest.skip("needs LiteRT")
    exec(compile(re.sub(r"\bsteps=\d+", "steps=2", block), "README.md", "exec"), {})
    printed = capsys.readouterr()
    assert "glyph" not in printed.err and ('sample_image("character.png"))' not in block or "'R'" in printed.out)
    for written in re.findall(r'"([\w/]+\.(?:npz|tflite|png))"', block.replace("sample_image(", "")):
        assert written in ("character.png", "digit.png") or (empty_folder / written).exists()


@pytest.mark.nightly
def test_layers_of_keras_cv_work_in_a_pipeline_as_the_docs_say(backend):
    if backend != "tensorflow":
        pytest.skip("KerasCV's layers are for tf.data, which is read on TensorFlow")
    pytest.importorskip("keras_cv")
    (block,) = (block for block in blocks("docs/training_augmentation.md", run_elsewhere=True) if "keras_cv" in block)
    names = {}
    exec(compile(block, "docs/training_augmentation.md", "exec"), names)
    assert names["done"].log[-1]["step"] == 2
    images = np.concatenate([images for images, _ in names["data"].as_numpy_iterator()])
    assert not {bytes(image) for image in images.astype("uint8")} & {bytes(image) for image in names["train_images"]}
