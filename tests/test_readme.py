"""The README's Python runs as it stands, in order, in one process."""

import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def newcomer(tmp_path, monkeypatch):
    """A folder with the files that the README speaks of: small ones, but of the right kind."""
    pytest.importorskip("PIL")
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "images", tmp_path / "docs" / "images")
    config = keras_vit.models.variant_config("ViT-B/16", classes=10)
    small = config.replace(width=48, heads=3, mlp_width=96, representation_size=48)
    keras_vit.to_checkpoint(with_a_head(keras_vit.VisionTransformer(small)), tmp_path / "B_16.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    return tmp_path


def with_a_head(model):
    """A new head is zero, and loading one warns."""
    head = model.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape))
    return model


def test_there_is_something_to_run():
    assert len(BLOCKS) >= 4


def test_the_readme_runs(newcomer, capsys):
    rng = np.random.default_rng(0)
    names = {
        # as many of each class as the few-shot probe draws
        "train_images": rng.integers(0, 256, (260, 8, 8, 3)).astype("uint8"),
        "train_labels": np.arange(260) % 10,
        "test_images": rng.integers(0, 256, (20, 8, 8, 3)).astype("uint8"),
        "test_labels": np.arange(20) % 10,
    }
    for block in BLOCKS:
        exec(compile(block.replace("steps=100", "steps=2"), "README.md", "exec"), names)
    assert (newcomer / "back.npz").exists() and (newcomer / "small.tflite").exists()
    assert (newcomer / "runs/digits/model.keras").exists()
    assert "glyph" not in capsys.readouterr().err
