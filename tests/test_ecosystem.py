"""The blocks of docs/ecosystem.md that need another package: with it where it is installed, or with a stand-in."""

import math
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.small_models import small_vit

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page):
    """Why each block of a page does not run in tests/test_docs.py, and its code."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^(?:<!-- not run: (.*?) -->\n)?```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_block(mark):
        names = {}
        (_, first), *others = blocks("ecosystem.md")
        (block,) = [code for reason, code in others if reason.startswith(mark)]
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
    (code,) = [code for reason, code in blocks("from/tfvit_flaxvit.md") if "JAX backend" in reason]
    exec(compile(code, "docs/from/tfvit_flaxvit.md", "exec"), names := {})
    head = [names["gradients"][i] for i, w in enumerate(names["model"].trainable_variables) if "head" in w.path]
    assert names["value"] == pytest.approx(math.log(3), rel=1e-6)  # a new head is zero
    assert len(head) == 2 and all(abs(gradient).max() > 0 for gradient in head)
