"""The examples that classify with a runtime alone give the model's answer, and import no Keras."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, export, exporting
from tests.export.tiny import CONFIG, new_model

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples/classify").glob("*.py"))  # the name of each begins with that of its format
NAMES = ["one", "two", "three", "four", "five"]
# None in sys.modules: whoever imports it gets an ImportError, and whoever only asks whether it is there, a no.
BLOCK = """
import runpy, sys
sys.modules["keras"] = sys.modules["keras_vit"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.once
def test_there_is_one_for_every_runtime():
    assert [next(name for name in FORMATS if path.stem.startswith(name)) for path in SCRIPTS] == sorted(FORMATS)


def pixels_answered(model, pixels):
    return model.predict(keras_vit.preprocess_input(pixels), verbose=0)


@pytest.mark.nightly
@pytest.mark.parametrize("format", FORMATS)
def test_it_names_what_the_model_names(format, tmp_path, backend, monkeypatch):
    row = FORMATS[format]
    if row.backend != backend:
        pytest.skip(f"once is enough, on {row.backend}, which writes it without another process")
    Image = pytest.importorskip("PIL.Image")
    model = new_model(CONFIG.replace(classifier_activation="softmax"))

    def answers(row, path, images, *options):  # `export` believes them: what the file answers is tested here
        return [{"probabilities": pixels_answered(model, pixels)} for pixels in images], {"load_seconds": 0.1}

    monkeypatch.setattr(exporting, "run_in_fresh_process", answers)
    path = tmp_path / f"model{row.suffix}"
    export(model, path, format, uint8_input=True, class_names=NAMES, measure=False)
    picture = ROOT / "docs/images/digit.png"
    script = next(path for path in SCRIPTS if path.stem.startswith(format))
    command = [sys.executable, "-c", BLOCK, str(script), str(path), str(picture)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"^(.+)  ([\d.]+)%$", result.stdout, re.MULTILINE)
    pixels = Image.open(picture).convert("RGB").resize(model.config.image_size[::-1], Image.Resampling.BILINEAR)
    probabilities = pixels_answered(model, np.asarray(pixels)[None])[0]
    best = np.argsort(-probabilities)[:3]
    assert [name for name, _ in found] == [NAMES[i] for i in best]
    np.testing.assert_allclose([float(p) for _, p in found], 100 * probabilities[best], atol=0.06)  # one digit shown
    assert 2 < 100 * probabilities[best[1]] < 98  # so that the figures say something
