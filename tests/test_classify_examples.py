"""The examples that classify with a runtime alone give the model's answer, and import no Keras."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, export

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "litert": "litert",
    "onnx": "onnx_runtime",
    "openvino": "openvino_runtime",
    "saved_model": "saved_model",
    "torch": "torch_program",
    "stablehlo": "stablehlo",
}
# None in sys.modules: whoever imports it gets an ImportError, and whoever only asks whether it is there, a no.
BLOCK = """
import runpy, sys
sys.modules["keras"] = sys.modules["keras_vit"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_there_is_one_for_every_runtime():
    assert SCRIPTS.keys() == FORMATS.keys()
    assert {path.stem for path in (ROOT / "examples/classify").glob("*.py")} == set(SCRIPTS.values())


@pytest.mark.parametrize("format", FORMATS)
def test_it_names_what_the_model_names(format, tmp_path, backend):
    row = FORMATS[format]
    if row.backend != backend:
        pytest.skip(f"once is enough, on {row.backend}, which writes it without another process")
    pytest.importorskip("PIL")
    model = keras_vit.from_checkpoint("glyphs", classifier_activation="softmax")
    names = keras_vit.class_names("glyphs")
    path = tmp_path / f"glyphs{row.suffix}"
    export(model, path, format, uint8_input=True, class_names=names, measure=False)
    picture = ROOT / "docs/images/digit.png"
    script = ROOT / "examples/classify" / f"{SCRIPTS[format]}.py"
    command = [sys.executable, "-c", BLOCK, str(script), str(path), str(picture)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"^(.+)  ([\d.]+)%$", result.stdout, re.MULTILINE)
    from PIL import Image

    pixels = Image.open(picture).convert("RGB").resize(model.config.image_size[::-1], Image.Resampling.BILINEAR)
    probabilities = model.predict(keras_vit.preprocess_input(np.asarray(pixels)[None]), verbose=0)[0]
    best = np.argsort(-probabilities)[:3]
    assert [name for name, _ in found] == [names[i] for i in best]
    np.testing.assert_allclose([float(p) for _, p in found], 100 * probabilities[best], atol=0.06)  # one digit shown
