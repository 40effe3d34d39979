"""The README's Python runs as it stands, in order, in one process; and so does what the docs say of KerasCV."""

import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from tests.processes import environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]


def blocks(page, run_elsewhere=False):
    """Its blocks of Python that run on every backend, or those that say why they do not."""
    found = re.findall(r"(^<!-- not run: .+? -->\n)?^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    return [code for mark, code in found if bool(mark) == run_elsewhere]


BLOCKS = blocks("README.md")


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
    monkeypatch.setenv("PYTHONPATH", environment(KERAS_BACKEND="tensorflow")["PYTHONPATH"])  # which writes LiteRT files
    return tmp_path


def with_a_head(model):
    """A new head is zero, and loading one warns."""
    head = model.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape))
    return model


def test_there_is_something_to_run():
    assert len(BLOCKS) >= 4


# What it calls is tested on each backend, most of it with the same checkpoint; here the words of the page are tested.
@pytest.mark.once
def test_the_readme_runs(newcomer, capsys):
    pytest.importorskip("sklearn")
    names = {}
    exports = not keras_vit.export.FORMATS["litert"].missing()  # else there is one block less
    for block in BLOCKS:
        if exports or "keras_vit.export." not in block:
            exec(compile(block.replace("steps=100", "steps=2"), "README.md", "exec"), names)
    assert (newcomer / "back.npz").exists() and (newcomer / "small.tflite").exists() == exports
    assert (newcomer / "runs/digits/model.keras").exists()
    assert "glyph" not in capsys.readouterr().err


def test_layers_of_keras_cv_work_in_a_pipeline_as_the_docs_say(backend):
    if backend != "tensorflow":
        pytest.skip("KerasCV's layers are for tf.data, which is read on TensorFlow")
    pytest.importorskip("keras_cv")
    (block,) = (block for block in blocks("docs/training.md", run_elsewhere=True) if "keras_cv" in block)
    config = keras_vit.ViTConfig(
        image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=16, classes=10, class_names=None
    )
    augmentation = keras_vit.training.Augmentation(crop="resize", flip=False)
    recipe = keras_vit.training.recipe("finetune/cifar10")
    names = {
        "training": keras_vit.training,
        "train_images": np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3)).astype("uint8"),
        "train_labels": np.arange(64) % 10,
        "model": keras_vit.VisionTransformer(config),
        "recipe": recipe.replace(steps=2, augmentation=augmentation),
    }
    exec(compile(block, "docs/training.md", "exec"), names)
    assert names["done"].log[-1]["step"] == 2
    images = np.concatenate([images for images, _ in names["data"].as_numpy_iterator()])
    assert not {bytes(image) for image in images.astype("uint8")} & {bytes(image) for image in names["train_images"]}
