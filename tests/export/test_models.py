"""Other models than those of the package itself: feature extractors, models around one, and sources of one."""

import importlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import export
from keras_vit.export.served_model import Signature, plain_model
from tests.export.tiny import (
    BIT,
    CONFIG,
    NAMES,
    fake_export,
    images_for,
    new_model,
    pixels_for,
    shared_model,
    skip_without,
)
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


OWN = """
import keras
@keras.saving.register_keras_serializable("own")
class Scale(keras.layers.Layer):
    def call(self, x):
        return 2 * x
@keras.saving.register_keras_serializable("own")
def halved(x):
    return x / 2
"""


@pytest.mark.once
def test_layers_of_ones_own(monkeypatch, tmp_path):
    """The process that writes imports their modules, from the same folders."""
    skip_without("litert")
    (tmp_path / "own_layers.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("own_layers")
    outer = keras.Sequential([*sequential().layers, own.Scale(), keras.layers.Activation(own.halved)])
    assert export(outer, tmp_path / "outer.tflite").max_abs_error < SAME_FUNCTION

    class Local(own.Scale):
        pass

    monkeypatch.setattr(own.halved, "__module__", "__main__")
    for layer, name in ((Local(), "Local"), (keras.layers.Activation(own.halved), "own>halved")):
        with pytest.raises(ValueError, match=f"another process cannot import {name}. Define it at the top of a module"):
            export(keras.Sequential([*sequential().layers, layer]), tmp_path / "outer.tflite", overwrite=True)


@pytest.mark.once
def test_the_source_of_a_model(monkeypatch, tmp_path):
    """As `keras_vit.load` takes it; the file says where its weights come from."""
    fake_export(monkeypatch)
    report = export("glyphs", tmp_path / "glyphs.onnx")
    assert report.output == "logits" and fake_export.job.metadata["source"] == "glyphs"
    shared_model(CONFIG.replace(class_names=NAMES)).save(tmp_path / "model.keras")
    for given, stored in ((None, NAMES), ([*"abcde"], [*"abcde"])):
        export(tmp_path / "model.keras", tmp_path / "model.onnx", class_names=given, overwrite=True)
        assert fake_export.job.metadata["class_names"] == stored
    with pytest.raises(FileNotFoundError, match="nothing"):
        export(tmp_path / "nothing.npz", tmp_path / "nothing.onnx")


@pytest.mark.once
def test_what_a_file_says_of_other_models(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    report = export(sequential(), tmp_path / "a.onnx", class_names=["x", "y", "z"])
    metadata = fake_export.job.metadata
    assert (metadata["class_names"], metadata["classes"], metadata["output"]) == (["x", "y", "z"], 3, "output")
    assert metadata["input_range"] == [-1, 1] and report.top1_agreement == 1.0
    pixels, labels = pixels_for(CONFIG, 3), [0, 1, 2]
    assert export(sequential(), tmp_path / "b.onnx", images=pixels, labels=labels).accuracy is not None
    export(functional(), tmp_path / "c.onnx", uint8_input=True, batch_size=2)
    metadata = fake_export.job.metadata
    assert metadata["output"] == ["output_0", "output_1"] and metadata["input_range"] == [0, 255]
    logits = keras.Sequential([new_model(HEADLESS), keras.layers.Dense(2)])
    assert export(logits, tmp_path / "d.onnx", softmax=True).output == "probabilities"
    with_bit = keras.Sequential([new_model(BIT.replace(classes=None, pooling="avg")), keras.layers.Dense(2)])
    assert export(with_bit, tmp_path / "e.onnx", images=images_for(BIT, 2)).output == "output"


@pytest.mark.once
def test_what_cannot_be_of_other_models(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    labelled = {"images": np.zeros((1, 8, 12, 3), "uint8"), "labels": [0]}
    for make, options, words in (
        (sequential, {"class_names": ["x"]}, "class_names must have a name for each class"),
        (sequential, {"class_names": ["x", "y", "y"]}, "class_names must differ"),
        (sequential, {"class_names": [1, 2, 3]}, "class_names must be strings"),
        (extractor, labelled, "does not name one class"),
        (extractor, {"softmax": True}, "softmax=True needs"),
        (functional, {"softmax": True}, "has the answers output_0, output_1"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
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
    with pytest.raises(ValueError, match="must have one input, images"):
        export(keras.Model([images, others], shared_model()(images) + others), tmp_path / "model.onnx")
