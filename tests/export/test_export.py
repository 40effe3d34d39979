"""Real exports: every format from this run's backend, each with other options, read back the way a user would."""

import json
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.export import FORMATS, export
from keras_vit.export.format import Format
from keras_vit.export.processes import run_in_fresh_process
from tests.export.tiny import BIT, CONFIG, HYBRID, NAMES, images_for, new_model, pixels_for, skip_without
from tests.processes import environment
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.long

# One row per format: the model, and what is asked of the file. Together they ask for everything of everybody.
CASES = {
    "saved_model": (CONFIG.replace(dynamic=True, dropout=0.1), {}),
    "litert": (CONFIG, {"batch_size": "any", "uint8_input": True, "softmax": True}),
    "onnx": (
        CONFIG.replace(dynamic=True, gelu="exact", interpolation="bicubic", class_token_only=True),
        {"softmax": True},
    ),
    "openvino": (HYBRID, {"batch_size": 2, "uint8_input": True}),
    "torch": (BIT, {"uint8_input": True, "softmax": True}),
    "stablehlo": (CONFIG.replace(dynamic=True, classes=None), {}),
}
OUTPUTS = {**dict.fromkeys(("litert", "onnx", "torch"), "probabilities"), "stablehlo": "features"}
# Formats that another framework writes, in a process of its own: one on each backend, so that each framework is asked
# by another. `make demo` has LiteRT from all of them, and benchmarks/exports.py goes through all formats.
HERE = keras.backend.backend()
FROM_ELSEWHERE = {"tensorflow": "stablehlo", "jax": "torch", "torch": "onnx"}[HERE]
NIGHTLY = () if HERE == "torch" else pytest.mark.nightly


WRITTEN = [*(n for n in CASES if FORMATS[n].backend == HERE), pytest.param(FROM_ELSEWHERE, marks=NIGHTLY)]


@pytest.fixture(scope="module", params=WRITTEN)
def exported(request, tmp_path_factory):
    skip_without(request.param)
    config, options = CASES[request.param]
    row = FORMATS[request.param]
    path = tmp_path_factory.mktemp(request.param) / f"model{row.suffix}"
    model = new_model(config)
    names = NAMES if config.classes else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment(KERAS_BACKEND=row.backend)["PYTHONPATH"])
        report = export(model, path, row.name, class_names=names, source="a_checkpoint", **options)
    return model, row, path, options, report


def test_the_file_gives_the_model_s_answers(exported):
    model, row, path, options, report = exported
    # Two sizes where any is taken, so the number of images says that both were compared.
    assert report.images == (10 if model.config.dynamic else 8)
    assert 0 <= report.mean_abs_error <= report.max_abs_error < SAME_FUNCTION
    assert report.batch == (None if options.get("batch_size") == "any" else options.get("batch_size"))
    if row.backend != keras.backend.backend() and row.backend in ("tensorflow", "torch"):
        return  # not in this process: two frameworks in one are asking for trouble
    given = pixels_for(model.config, 2) if options.get("uint8_input") else images_for(model.config, 2)
    (answers,) = row.run(path, given).values()
    taken = (given.astype("float32") - 127.5) / 127.5 if options.get("uint8_input") else given
    expected = model.predict(taken, verbose=0)
    if options.get("softmax"):
        expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    assert np.std(expected) > 0.01
    np.testing.assert_allclose(answers, expected, atol=SAME_FUNCTION)


def test_the_report_is_true(exported):
    model, row, path, options, report = exported
    files = [part for target in row.files(path) for part in (target, *target.rglob("*")) if part.is_file()]
    assert (report.format, report.path, report.precision) == (row.name, str(path), "float32")
    assert report.bytes == sum(file.stat().st_size for file in files)
    assert set(path.parent.iterdir()) == set(row.files(path))  # and nothing else is left
    assert report.top1_agreement == (1.0 if model.config.classes else None)
    assert bool(report.operators) == (type(row).operators is not Format.operators) and report.select_operators == ()
    assert report.load_seconds > 0 and report.latency_ms > 0
    assert report.input.startswith("images: uint8" if options.get("uint8_input") else "images: float32")
    assert report.output == OUTPUTS.get(row.name, "logits")
    assert ("computes in it unless" in str(report)) == (row.name == "openvino")  # bfloat16
    json.dumps(report.to_dict())


def test_weights_are_stored_once(exported):
    model, row, path, options, report = exported
    weights = 4 * model.count_params()
    if row.name == "torch":
        with zipfile.ZipFile(path) as archive:
            parts = ("/data/weights/weight", "/data/constants/tensor")
            stored = sum(i.file_size for i in archive.infolist() if any(part in i.filename for part in parts))
    else:
        files = {"saved_model": path / "variables/variables.data-00000-of-00001", "openvino": path.with_suffix(".bin")}
        stored = files.get(row.name, path).stat().st_size
    # The graph of so small a model is larger than its weights; a copy of those would hardly be seen.
    assert weights <= stored < (1.5 * weights if row.name in ("torch", "saved_model", "openvino") else weights + 80_000)


def test_the_file_says_what_it_is(exported):
    model, row, path, options, report = exported
    details, labels = READERS[row.name](path)
    assert (details["model"], details["source"], details["output"]) == ("tiny", "a_checkpoint", report.output)
    assert details["image_size"] == list(model.config.image_size)
    assert details["any_image_size"] == model.config.dynamic
    assert details["input_range"] == ([0, 255] if options.get("uint8_input") else [-1, 1])
    assert labels == (NAMES if model.config.classes else None)
    if model.config.classes:
        assert details["class_names"] == NAMES


def _from_folder(path):
    folder = path / "assets.extra"
    labels = folder / "labels.txt"
    return json.loads((folder / "keras_vit.json").read_text("utf-8")), labels.read_text("utf-8").splitlines()


def _from_archive(path, folder=""):
    with zipfile.ZipFile(path) as archive:
        named = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if folder in name}
    labels = named.get("labels.txt")
    return json.loads(named["keras_vit.json"]), labels and labels.splitlines()


def _from_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    assert [i.shape for i in session.get_inputs()] == [["batch", "height", "width", 3]]
    details = _from_strings(session.get_modelmeta().custom_metadata_map)
    assert [o.name for o in session.get_outputs()] == [details["output"]]
    return details, details["class_names"]


def _from_openvino(path):
    sys.modules.setdefault("openvino_telemetry", None)  # it would fork this process
    import openvino

    model = openvino.Core().read_model(path)
    assert model.input("images").shape == (2, 16, 16, 3)
    keys = ("model", "source", "output", "image_size", "any_image_size", "input_range", "class_names")
    details = _from_strings({key: model.get_rt_info(["model_info", key]).astype(str) for key in keys})
    assert model.output(details["output"]).shape == (2, 5)
    return details, details["class_names"]


def _from_strings(strings):
    def value(text):
        try:
            return json.loads(text)
        except ValueError:
            return text

    return {key: value(text) for key, text in strings.items()}


READERS = {
    "saved_model": _from_folder,
    "litert": _from_archive,
    "onnx": _from_onnx,
    "openvino": _from_openvino,
    "torch": lambda path: _from_archive(path, "/extra/"),
    "stablehlo": _from_archive,
}


@pytest.mark.skipif(HERE != "tensorflow", reason="where the file is written in this process")
@pytest.mark.parametrize("exported", ["litert"], indirect=True)
def test_litert_runs_without_tensorflow_and_keras(exported, tmp_path, monkeypatch):
    from ai_edge_litert.interpreter import Interpreter

    model, row, path, options, report = exported
    signatures = Interpreter(model_path=str(path)).get_signature_list()
    assert signatures == {"serving_default": {"inputs": ["images"], "outputs": ["probabilities"]}}
    for name in ("tensorflow", "keras", "jax", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / path.name
    file.write_bytes(path.read_bytes())
    images = pixels_for(model.config, 9)
    (answers,), measured = run_in_fresh_process(row, file, [images], None, False)
    assert measured["load_seconds"] > 0
    np.testing.assert_allclose(answers["probabilities"], row.run(path, images)["probabilities"], atol=1e-6)
