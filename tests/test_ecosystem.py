"""Blocks of pages that need another package, or a backend: where that is installed."""

import math

import keras
import numpy as np
import pytest

from tests.pages import blocks
from tests.small_models import small_vit


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_block(mark):
        names = {}
        (_, first), *others = blocks("docs/ecosystem.md")
        (block,) = [code for reason, code in others if reason and reason.startswith(mark)]
        exec(compile(first + block, "docs/ecosystem.md", "exec"), names)
        return names

    return run_block


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library's own imports
def test_keras_tuner(run):
    pytest.importorskip("keras_tuner")
    tuner = run("needs KerasTuner")["tuner"]
    assert tuner.get_best_hyperparameters()[0].values.keys() == {"drop_path", "learning_rate"}


def test_visualization(run, tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("it imports TensorFlow")
    pytest.importorskip("matplotlib").use("Agg")
    run("it imports TensorFlow")
    assert (tmp_path / "gallery.png").stat().st_size > 1000


@pytest.mark.nightly
def test_layers_of_keras_cv_work_in_a_pipeline(backend):
    if backend != "tensorflow":
        pytest.skip("KerasCV's layers are for tf.data, which is read on TensorFlow")
    pytest.importorskip("keras_cv")
    page = "docs/training_augmentation.md"
    (code,) = [code for reason, code in blocks(page) if reason and "keras_cv" in code]
    exec(compile(code, page, "exec"), names := {})
    assert names["done"].log[-1]["step"] == 2
    images = np.concatenate([images for images, _ in names["data"].as_numpy_iterator()])
    assert not {bytes(image) for image in images.astype("uint8")} & {bytes(image) for image in names["train_images"]}


def test_tensorboard_as_the_page_on_training_shows_it(tmp_path, backend):
    """With a package that TensorFlow no longer brings."""
    if backend != "tensorflow":
        pytest.skip("the same on all backends")
    model = small_vit()
    model.compile("sgd", "mse")
    model.fit(np.zeros((2, 8, 8, 3)), np.zeros((2, 3)), verbose=0, callbacks=[keras.callbacks.TensorBoard(tmp_path)])
    assert list(tmp_path.rglob("events.out.*"))


def test_gradients_without_state_as_flax_has_them(backend):
    if backend != "jax":
        pytest.skip("it is JAX's")
    (code,) = [code for reason, code in blocks("docs/from/tfvit_flaxvit.md") if reason and "JAX backend" in reason]
    exec(compile(code, "docs/from/tfvit_flaxvit.md", "exec"), names := {})
    head = [names["gradients"][i] for i, w in enumerate(names["model"].trainable_variables) if "head" in w.path]
    assert names["value"] == pytest.approx(math.log(3), rel=1e-6)  # a new head is zero
    assert len(head) == 2 and all(abs(gradient).max() > 0 for gradient in head)
