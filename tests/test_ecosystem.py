"""The blocks of docs/ecosystem.md that need another package: with it where it is installed, or with a stand-in."""

import contextlib
import math
import re
import sys
import types
from pathlib import Path

import keras
import pytest

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


@pytest.mark.once
def test_weights_and_biases(run, monkeypatch):
    """`wandb.init` gives a run, whose `log` takes a dict of numbers."""
    logged, ended = [], []
    tracked = types.SimpleNamespace(log=logged.append, finish=lambda: ended.append(True))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda project: tracked))
    run("needs W&B")
    assert [set(figures) for figures in logged] == [{"loss", "accuracy"}] * 2 and ended == [True]
    assert all(type(value) is float for figures in logged for value in figures.values())


class MlflowCallback(keras.callbacks.Callback):
    """What MLflow 3.17's does, with a list in place of its service."""

    logged = []

    def on_train_begin(self, logs=None):
        lines = []
        self.model.summary(print_fn=lambda line, *_, **__: lines.append(line))
        self.logged.append({f"optimizer_{name}": value for name, value in self.model.optimizer.get_config().items()})
        assert "block_0" in "".join(lines)

    def on_epoch_end(self, epoch, logs=None):
        self.logged.append(dict(logs, step=epoch))


@pytest.mark.once
def test_mlflow(run, monkeypatch):
    mlflow = types.ModuleType("mlflow")
    mlflow.start_run, mlflow.keras = contextlib.nullcontext, types.SimpleNamespace(MlflowCallback=MlflowCallback)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr(MlflowCallback, "logged", [])
    run("needs MLflow")
    optimizer, *figures = MlflowCallback.logged
    assert optimizer["optimizer_momentum"] == 0.9
    assert [row.keys() for row in figures] == [{"loss", "accuracy", "step"}] * 2


def test_visualization(run, tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("it imports TensorFlow")
    pytest.importorskip("matplotlib").use("Agg")
    run("it imports TensorFlow")
    assert (tmp_path / "gallery.png").stat().st_size > 1000


def test_gradients_without_state_as_flax_has_them(backend):
    if backend != "jax":
        pytest.skip("it is JAX's")
    (code,) = [code for reason, code in blocks("from/tfvit_flaxvit.md") if "JAX backend" in reason]
    exec(compile(code, "docs/from/tfvit_flaxvit.md", "exec"), names := {})
    head = [names["gradients"][i] for i, w in enumerate(names["model"].trainable_variables) if "head" in w.path]
    assert names["value"] == pytest.approx(math.log(3), rel=1e-6)  # a new head is zero
    assert len(head) == 2 and all(abs(gradient).max() > 0 for gradient in head)
