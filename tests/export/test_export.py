"""Exported files run without Keras, agree with the model, and appear only when they do."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import FORMATS, export, exporting

SAME_FUNCTION = 2e-5  # the order of the sums differs between the model and the file

CONFIG = ViTConfig(image_size=(8, 12), patch_size=4, width=16, depth=2, heads=2, mlp_width=24, classes=5)
NAMES = {"litert": "model.tflite", "saved_model": "model"}

for package in ("tensorflow", "ai_edge_litert"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)


def new_model(config=CONFIG, dtype=None):
    """A model without zeros: a fresh class token and a fresh head are zero, and nothing could be wrong with them."""
    model = VisionTransformer(config, dtype=dtype)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


def images_for(model, batch, size=None, low=-1, high=1):
    shape = (batch, *(size or model.config.image_size), 3)
    return np.random.default_rng(batch).uniform(low, high, shape).astype("float32")


@pytest.fixture(scope="module", params=FORMATS)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = new_model()
    return model, request.param, export(model, folder / NAMES[request.param], request.param), folder


@pytest.mark.parametrize("batch", [1, 3])
def test_the_file_gives_the_model_s_answers(exported, batch):
    model, format, report, folder = exported
    images = images_for(model, batch)
    if format == "saved_model" and keras.backend.backend() != "tensorflow":
        # Not in this process: only TensorFlow can run it, and the export has done so.
        assert report["max_abs_error"] < SAME_FUNCTION
        return
    answers = FORMATS[format].run(folder / NAMES[format], images)
    assert np.std(answers) > 0.1
    np.testing.assert_allclose(answers, model.predict(images, verbose=0), atol=SAME_FUNCTION)


def test_the_report_is_true(exported):
    _, format, report, folder = exported
    path = folder / NAMES[format]
    files = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    assert report["format"] == format
    assert report["path"] == str(path)
    assert report["bytes"] == sum(file.stat().st_size for file in files)
    assert 0 <= report["max_abs_error"] < SAME_FUNCTION
    assert report["seconds"] > 0
    assert list(folder.iterdir()) == [path]


def test_weights_are_stored_once(exported):
    model, format, report, folder = exported
    weights = 4 * model.count_params()
    if format == "saved_model":
        stored = (folder / NAMES[format] / "variables" / "variables.data-00000-of-00001").stat().st_size
        assert weights <= stored < 1.5 * weights
    else:
        # The graph of so small a model is larger than its weights; a second copy would still be seen.
        assert weights <= report["bytes"] < weights + 60_000


def test_any_size_any_policy_and_pixels(tmp_path):
    """A model in mixed precision that takes pixels of any size: the file computes in float32."""
    config = CONFIG.replace(dynamic=True, include_preprocessing=True, classifier_activation="softmax")
    mixed = new_model(config, "mixed_bfloat16")
    plain = new_model(config)
    export(mixed, tmp_path / "any.tflite")
    for size in ((8, 12), (12, 16)):
        images = images_for(mixed, 2, size, 0, 255)
        answers = FORMATS["litert"].run(tmp_path / "any.tflite", images)
        np.testing.assert_allclose(answers, plain.predict(images, verbose=0), atol=SAME_FUNCTION)


def fake(difference):
    """A conversion that takes no time: writes something, and answers as the model but for a difference."""

    def convert(model, images, format, written):
        if format == "saved_model":
            written.mkdir()
            (written / "saved_model.pb").write_text("new")
        else:
            written.write_text("new")
        return keras.ops.convert_to_numpy(model(images)) + difference

    return convert


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("difference", [1e-2, np.nan])
def test_a_file_that_disagrees_is_not_left(monkeypatch, tmp_path, format, difference):
    monkeypatch.setattr(exporting, "_convert", fake(difference))
    path = tmp_path / NAMES[format]
    with pytest.raises(RuntimeError, match="does not give the answers"):
        export(new_model(), path, format)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises(RuntimeError, match="does not give the answers"):
        export(new_model(), path, format, overwrite=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("old", ["file", "folder"])
def test_overwriting_has_to_be_asked_for(monkeypatch, tmp_path, format, old):
    monkeypatch.setattr(exporting, "_convert", fake(0.0))
    path = tmp_path / NAMES[format]
    path.write_text("old") if old == "file" else path.mkdir()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export(new_model(), path, format)
    assert path.is_file() == (old == "file")
    export(new_model(), path, format, overwrite=True)
    assert (path if format == "litert" else path / "saved_model.pb").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(exporting, "_convert", fake(0.0))
    export(new_model(), str(tmp_path / "a" / "b" / "model.tflite"))
    assert (tmp_path / "a" / "b" / "model.tflite").is_file()


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")  # Keras asks all layers
def test_what_makes_no_sense_is_refused(tmp_path):
    model = new_model()
    functional = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(TypeError, match="VisionTransformer, but a Sequential"):
        export(functional, tmp_path / "model.tflite")
    with pytest.raises(ValueError, match="format must be one of .*litert.*'tflite'"):
        export(model, tmp_path / "model.tflite", "tflite")
    with pytest.raises(ValueError, match=r"must end in '\.tflite'"):
        export(model, tmp_path / "model.lite")
    model.quantize("int8")
    with pytest.raises(ValueError, match="quantized"):
        export(model, tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'tensorflow and ai_edge_litert.*pip install "keras-vit\[export\]"'):
        export(new_model(), tmp_path / "model.tflite")


def test_what_tensorflow_says_is_shown(tmp_path):
    """Without TensorFlow as the backend, the conversion fails in another process, and its words must come through."""
    if keras.backend.backend() == "tensorflow":
        pytest.skip("no second process on this backend")
    model = new_model()
    with pytest.raises(RuntimeError, match="(?s)could not write the nonsense file.*KeyError: 'nonsense'"):
        exporting._convert(model, images_for(model, 1), "nonsense", tmp_path / "model")
