"""Other models than those of the package itself: feature extractors, models around one, and sources of one."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, export, formats
from keras_vit.export.served_model import Signature, plain_model
from tests.export.tiny import BIT, CONFIG, NAMES, fake_export, images_for, new_model, shared_model, skip_without
from tests.processes import environment
from tests.tolerances import SAME_FUNCTION

HEADLESS = CONFIG.replace(classes=None)


def extractor(layout="tokens", dtype=None):
    model = new_model(CONFIG, dtype)
    return keras_vit.feature_extractor(model, ["stem", "block_-1", "block_0/attention_weights", "pre_logits"], layout)


def sequential(dtype=None):
    keras.utils.set_random_seed(0)
    head = keras.layers.Dense(3, activation="softmax", dtype=dtype, name="answer")
    return keras.Sequential([keras.Input((8, 12, 3)), new_model(HEADLESS, dtype), head])


def functional():
    """Two answers, and pixels scaled by a layer before the model."""
    images = keras.Input((8, 12, 3), name="pixels")
    features = new_model(HEADLESS)(keras.layers.Rescaling(1 / 127.5, -1)(images))
    return keras.Model(images, [keras.layers.Dense(2)(features), features])


def with_bit():
    return keras.Sequential([new_model(BIT.replace(classes=None, pooling="avg")), keras.layers.Dense(2)])


# The model, the options, the names of the answers, and what it makes of uint8 pixels.
KINDS = {
    "map": (
        lambda: extractor("map"),
        {"uint8_input": True},
        ("block_-1", "block_0/attention_weights", "pre_logits", "stem"),
        lambda pixels: (pixels - 127.5) / 127.5,
    ),
    "functional": (functional, {"uint8_input": True, "batch_size": 2}, ("output_0", "output_1"), lambda pixels: pixels),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_in_every_format(format, kind, tmp_path, backend):
    """In the formats that this backend writes; the others come from the same files of another process."""
    row = FORMATS[format]
    if row.backend != backend:
        pytest.skip(f"written by {row.backend}")
    skip_without(format)
    make, options, names, scaled = KINDS[kind]
    model, path = make(), tmp_path / f"model{row.suffix}"
    report = export(model, path, format, measure=False, **options)
    assert report.max_abs_error < SAME_FUNCTION and report.output == ", ".join(names)
    images = images_for(CONFIG, 2, 0, 255).astype("uint8") if scaled else images_for(CONFIG, 2)
    answers = row.run(path, images)
    expected = keras.tree.flatten(model.predict(scaled(images.astype("float32")) if scaled else images, verbose=0))
    assert len(answers) == len(expected) == len(names)
    for name, values in zip(names, expected, strict=True):
        found = answers[name] if len(names) > 1 or format != "torch" else answers["output"]
        assert values.std() > 0.01
        np.testing.assert_allclose(found, values, atol=SAME_FUNCTION * max(1, np.abs(values).max()))


@pytest.mark.parametrize("make", [extractor, sequential])
def test_mixed_precision_becomes_float32(make):
    model = make(dtype="mixed_bfloat16")
    plain, images = plain_model(model), images_for(CONFIG, 2)
    assert {layer.compute_dtype for layer in plain.layers} == {"float32"}
    assert Signature.of(plain, uint8=make is extractor).value_range == ((0, 255) if make is extractor else (-1, 1))
    answers = [keras.tree.flatten(one.predict(images, verbose=0)) for one in (plain, model, make())]
    for new, old, exact in zip(*answers, strict=True):
        np.testing.assert_allclose(new, exact, atol=SAME_FUNCTION)
        assert np.abs(old - exact).max() > SAME_FUNCTION


def test_a_model_is_as_it_was_after_a_file_was_written(monkeypatch, backend):
    """TensorFlow's functions replace the call of dense layers while they are traced."""
    if backend != "tensorflow":
        pytest.skip("for TensorFlow only")
    model = new_model()
    before = {layer.path: dict(vars(layer)) for layer in model.get_layer("block_0").mlp._flatten_layers()}
    formats.tensorflow_module(model, Signature.of(model))
    after = {layer.path: dict(vars(layer)) for layer in model.get_layer("block_0").mlp._flatten_layers()}
    assert [*before] == [*after] and all("call" not in fields for fields in after.values())


@pytest.mark.once
def test_the_source_of_a_model(monkeypatch, tmp_path):
    """As `keras_vit.load` takes it; the file says where its weights come from."""
    fake_export(monkeypatch)
    report = export("glyphs", tmp_path / "glyphs.onnx")
    assert report.output == "logits" and fake_export.job.metadata["source"] == "glyphs"
    shared_model(CONFIG.replace(class_names=NAMES)).save(tmp_path / "model.keras")
    export(tmp_path / "model.keras", tmp_path / "model.onnx")
    assert fake_export.job.metadata["class_names"] == NAMES
    with pytest.raises(FileNotFoundError, match="nothing"):
        export(tmp_path / "nothing.npz", tmp_path / "nothing.onnx")


@pytest.mark.once
def test_what_a_file_says_of_other_models(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    report = export(sequential(), tmp_path / "a.onnx", class_names=["x", "y", "z"])
    metadata = fake_export.job.metadata
    assert (metadata["class_names"], metadata["classes"], metadata["output"]) == (["x", "y", "z"], 3, "output")
    assert metadata["input_range"] == [-1, 1] and report.top1_agreement == 1.0
    pixels, labels = images_for(CONFIG, 3, 0, 255).astype("uint8"), [0, 1, 2]
    assert export(sequential(), tmp_path / "b.onnx", images=pixels, labels=labels).accuracy is not None
    export(functional(), tmp_path / "c.onnx")
    metadata = fake_export.job.metadata
    assert metadata["output"] == ["output_0", "output_1"] and "input_range" not in metadata
    logits = keras.Sequential([new_model(HEADLESS), keras.layers.Dense(2)])
    assert export(logits, tmp_path / "d.onnx", softmax=True).output == "probabilities"
    assert export(with_bit(), tmp_path / "e.onnx", images=images_for(BIT, 2)).output == "output"


REFUSED = {
    "names": (sequential, {"class_names": ["x"]}, "class_names must name each of the classes"),
    "labels": (extractor, {"images": np.zeros((1, 8, 12, 3), "uint8"), "labels": [0]}, "does not name one class"),
    "softmax of features": (extractor, {"softmax": True}, "softmax=True needs"),
}


@pytest.mark.once
def test_what_cannot_be_of_other_models(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    for make, options, words in REFUSED.values():
        with pytest.raises(ValueError, match=words):
            export(make(), tmp_path / "model.onnx", **options)
    model = new_model()
    inner = keras.Model(model.input, model.get_layer("block_0").output)  # nothing says how its pixels are normalised
    assert export(inner, tmp_path / "inner.onnx").output == "output"
    with pytest.raises(ValueError, match="uint8_input=True needs to know"):
        export(inner, tmp_path / "model.onnx", uint8_input=True)
    with pytest.raises(ValueError, match="calibration must be an array"):
        export(inner, tmp_path / "m.tflite", precision="int8", calibration=str(tmp_path))
    adapted = new_model()
    adapted.get_layer("block_0").attention.query.enable_lora(2)
    with pytest.raises(ValueError, match="merge_lora"):
        export(keras_vit.feature_extractor(adapted, ["block_0"]), tmp_path / "model.onnx")
    images, others = keras.Input((8, 12, 3)), keras.Input((5,))
    with pytest.raises(ValueError, match="must take images .* alone"):
        export(keras.Model([images, others], shared_model()(images) + others), tmp_path / "model.onnx")


THROUGH_ANOTHER = """
import sys
from keras_vit.export import export
from tests.export.test_models import extractor
print(export(extractor("map"), sys.argv[1], uint8_input=True, measure=False).output)
if "tensorflow" in sys.modules:
    sys.exit("imported TensorFlow")  # as Keras does when it saves a model, which is how the other process gets it
"""


def test_through_another_process(tmp_path, backend):
    """As a file that holds the model, without what only this process knows of it; without TensorFlow, too."""
    format = "torch" if backend == "jax" else "stablehlo"
    if backend == "tensorflow":
        pytest.skip("tests/export/test_export.py has TensorFlow and another process")
    skip_without(format)
    variables = environment("tensorflow", "jax", KERAS_BACKEND=backend)
    command = [sys.executable, "-c", THROUGH_ANOTHER, str(tmp_path / f"model{FORMATS[format].suffix}")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[-2] == "block_-1, block_0/attention_weights, pre_logits, stem"
