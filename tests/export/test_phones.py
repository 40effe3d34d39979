"""Files for the GPUs of phones: what is in them, by rules, and what they compute in float16."""

import importlib
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, export, float16, rewrites
from tests.export.tiny import CONFIG, new_model, skip_without

if keras.backend.backend() != "tensorflow":
    pytest.skip("written by TensorFlow, and read without a backend", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
phones = importlib.import_module("phones")

# One of each reason; `make test-nightly` compiles all kinds. These have most operators.
CHOSEN = ["BiT, padded with zeros", "EoMT", "OWLv2, fixed names"]
CHOSEN += [pytest.param(kind, marks=pytest.mark.nightly) for kind in ("Perception Encoder", "linear depth", "features")]


def loud_model(channel):
    """A classifier with one channel of its tokens at a value, as DINOv2, CLIP and SAM have them."""
    model = new_model(CONFIG.replace(width=48, heads=4))
    table = model.get_layer("position_embedding").table
    values = keras.ops.convert_to_numpy(table).copy()
    values[..., 3] += channel
    table.assign(values)
    return model


@pytest.mark.parametrize("kind", CHOSEN)
def test_no_operator_is_left_to_the_cpu(kind, tmp_path):
    skip_without("litert")
    report = export(phones.model_of(phones.KINDS[kind]()), tmp_path / "m.tflite", target="gpu", measure=False)
    assert report.not_on_gpu == () and report.gpu_operators > 50 and report.batch == 1
    assert report.float16_error < 5e-3 and report.float16_loud_error < 5e-3 and report.max_abs_error < 1e-4


@pytest.mark.filterwarnings("ignore:.*rms_scaling")  # Keras says at each call that it is deprecated
@pytest.mark.parametrize(("path", "options"), [("m.tflite", {"target": "gpu"}), ("m.onnx", {})])
def test_a_normalization_of_ones_own_without_a_mean(path, options, tmp_path):
    skip_without(path.replace("m.tflite", "litert").replace("m.onnx", "onnx"))
    normalization = keras.layers.LayerNormalization(rms_scaling=True)
    outer = keras.Sequential([new_model(CONFIG.replace(classes=None)), normalization])
    assert export(outer, tmp_path / path, measure=False, **options).max_abs_error < 1e-4


def test_what_keeps_a_file_from_the_gpu_is_named(tmp_path):
    skip_without("litert")
    model = new_model()
    report = export(model, tmp_path / "m.tflite", batch_size="any", measure=False)
    assert report.batch is None and report.gpu_operators < 20 and "its size is not fixed" in report.gpu
    assert any("block_0/attention" in line for line in report.not_on_gpu)
    small = export(model, tmp_path / "s.tflite", precision="dynamic_int8", measure=False, tolerance=1.0)
    assert "int8 fails to compile on some GPUs" in small.gpu
    assert any(line.startswith("FULLY_CONNECTED in block_0/attention/") for line in small.not_on_gpu)


def test_a_replaced_call_refuses_options_that_it_does_not_know():
    dense = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((3,)), dense])
    with rewrites.replaced(model, rewrites.EVERYWHERE):
        dense.call(keras.ops.zeros((1, 3)), training=True)
        with pytest.raises(TypeError, match="offset"):
            dense.call(keras.ops.zeros((1, 3)), offset=1)


def test_images_stay_as_they_are_where_a_normalization_reads_them():
    images = np.zeros((1, 2, 3), "float32")
    start = float16.Step("", [], ["images"], "the input", lambda: [images])
    norm = float16.Step("LayerNormalization", ["images"], ["y"], "a norm", lambda x: [2 * x])
    found = float16.compute([start, norm], {}, {"answer": "y"}, 300.0)
    assert not images.any() and found.answers["answer"].max() == 600 == found.peak


@pytest.mark.parametrize(("format", "suffix"), [("litert", ".tflite"), ("onnx", ".onnx")])
def test_loud_models_hold_in_float16(format, suffix, tmp_path):
    skip_without(format)
    report = export(loud_model(1000), tmp_path / f"m{suffix}", precision="float16", measure=False)
    assert report.float16_error < float16.TOLERANCE and report.float16_peak > 500


@pytest.mark.parametrize(
    ("format", "path", "words"),
    [("litert", "m.tflite", "position_embedding.*enforce_f32"), ("onnx", "m.onnx", "the weights reach 1e")],
)
def test_what_float16_cannot_hold_is_refused(format, path, words, tmp_path):
    skip_without(format)
    with pytest.raises(RuntimeError, match=f"In float16, in which GPUs compute.*{words}"):
        export(loud_model(1e5), tmp_path / path, precision="float16", measure=False)
    assert not (tmp_path / path).exists()


def test_what_is_computed_in_float32_is_what_litert_computes(tmp_path):
    skip_without("litert")
    model, path, litert = loud_model(10), tmp_path / "m.tflite", FORMATS["litert"]
    export(model, path, measure=False, uint8_input=True)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 12, 3)).astype("uint8")
    expected, found = litert.run(path, pixels), litert.compute(path, pixels, np.float32)
    assert float16.distance(found.answers, expected) < 1e-5 and found.peak > 9
    # The plain norms of a file without a target: their squares overflow.
    with np.errstate(all="ignore"):
        export(loud_model(1000), path, measure=False, overwrite=True, uint8_input=True)
        loud = litert.compute(path, pixels, np.float16)
    assert not float16.distance(loud.answers, litert.run(path, pixels)) < float16.TOLERANCE


def test_what_is_refused(tmp_path):
    model = new_model()
    for options, words in (
        ({"target": "phone"}, "target must be one of"),
        ({"target": "gpu", "precision": "dynamic_int8"}, "fail on Mali"),
        ({"target": "gpu", "batch_size": "any"}, "leave batch_size out"),
        ({"target": "gpu", "path": "m.onnx"}, "'onnx' with precision float16"),
        ({"target": "gpu", "model": new_model(CONFIG.replace(dynamic=True))}, "images of one size"),
    ):
        given = {"model": model, "path": "m.tflite"} | options
        with pytest.raises(ValueError, match=words):
            export(given.pop("model"), tmp_path / given.pop("path"), **given)


def test_names_of_layers():
    name = "StatefulPartitionedCall/vit_1/block_0_1/norm1_1/mul;vit_1/block_0_1/attention_1/query_1/MatMul"
    assert float16.layer_of(name) == " in block_0/attention/query"
    assert float16.layer_of("vit/block_0/add") == " in block_0" and float16.layer_of("serve") == ""


@pytest.mark.parametrize("kind", phones.KINDS)
def test_the_accelerator_takes_the_whole_file(kind, tmp_path):
    """LiteRT's own, over a Vulkan driver that computes on the CPU: run by `make test-nightly`."""
    skip_without("litert")
    folder = os.environ.get("SOFTWARE_VULKAN")
    if not folder:
        pytest.skip("needs SOFTWARE_VULKAN=FOLDER, a folder with a Vulkan driver that computes on the CPU")
    path = tmp_path / "m.tflite"
    export(phones.model_of(phones.KINDS[kind]()), path, target="gpu", measure=False)
    found = phones.on_gpu(path, folder)
    assert found["gpu_only"], found["reasons"]
    assert max(found["error"].values()) < 1e-5


def test_an_answer_that_is_read_as_well_is_apart(tmp_path):
    """Also of a model around one of ours, and where a user's own layer drops an axis."""
    skip_without("litert")
    images = keras.Input((8, 12, 3))
    tokens = new_model(CONFIG.replace(pooling="none", classes=None))(images)
    both = keras.Model(images, [tokens, keras.layers.Dense(3)(tokens[:, 0])])
    report = export(both, tmp_path / "m.tflite", target="gpu", measure=False)
    assert report.not_on_gpu == ()
    assert keras_vit.export.FORMATS["litert"].off_gpu(tmp_path / "m.tflite")[1] == []
