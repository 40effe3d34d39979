"""What can be asked of an export, what is refused, and what is reported; nothing is converted here."""

import itertools
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import BiTConfig
from keras_vit.export import export, exporting
from keras_vit.export.exporting import differences
from keras_vit.export.served_model import (
    Signature,
    calibration_images,
    classes_of,
    plain_model,
    serve,
    served_model,
)
from tests.checkpoints.test_tips import CASE
from tests.export.tiny import BIT, CONFIG, HYBRID, fake_export, images_for, new_model, pixels_for, shared_model
from tests.small_models import small_depth_model
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once


def normalised(pixels):
    return (pixels.astype("float32") - 127.5) / 127.5


def answers_to_pixels(model, pixels):
    return model.predict(normalised(pixels), verbose=0)


@pytest.mark.each
@pytest.mark.parametrize(
    "config", [CONFIG, pytest.param(HYBRID, marks=pytest.mark.once), BIT], ids=["vit", "hybrid", "bit"]
)
def test_the_written_model_computes_the_same(config):
    """bfloat16, things for training, a ResNet: what is written is float32, lean, and says the same."""
    if not isinstance(config, BiTConfig):
        config = config.replace(dropout=0.3, drop_path=0.1, remat=True)
    mixed, plain = new_model(config, "mixed_bfloat16"), shared_model(config)
    reference = plain_model(mixed)
    served, signature = served_model(reference), Signature.of(reference, uint8=True, softmax=True)
    assert all(layer.compute_dtype == "float32" for layer in served.layers)
    assert not [weight.path for weight in served.weights if "seed" in weight.path]
    pixels = pixels_for(config, 3)
    expected = answers_to_pixels(plain, pixels)
    expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    got = serve(served, signature, keras.ops.convert_to_tensor(pixels))["probabilities"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), expected, atol=SAME_FUNCTION)
    if not isinstance(config, BiTConfig) and config.stem_stages is None:
        return
    assert served.config.folded if isinstance(config, BiTConfig) else served.config.stem_folded


@pytest.mark.each
def test_adapters_are_merged():
    model = new_model()
    query = model.get_layer("block_0").attention.query
    query.enable_lora(2)
    query.lora_kernel_b.assign(np.full(query.lora_kernel_b.shape, 0.5))
    images = images_for(CONFIG, 2)
    expected = model.predict(images, verbose=0)
    served = served_model(plain_model(model))
    assert len(served.weights) == len(shared_model().weights)
    assert np.abs(expected - shared_model().predict(images, verbose=0)).max() > 0.01
    np.testing.assert_allclose(served.predict(images, verbose=0), expected, atol=SAME_FUNCTION)


def test_images_labels_and_accuracy(monkeypatch, tmp_path):
    model, pixels = shared_model(), pixels_for(CONFIG, 9)
    labels = answers_to_pixels(model, pixels).argmax(-1)
    labels[:3] = (labels[:3] + 1) % 5
    fake_export(monkeypatch)
    for uint8 in (False, True):
        options = {"uint8_input": uint8, "images": pixels, "labels": labels, "overwrite": True}
        report = export(model, tmp_path / "model.onnx", **options)
        np.testing.assert_allclose(fake_export.images[0], pixels if uint8 else normalised(pixels))
        assert fake_export.images[0].dtype == ("uint8" if uint8 else "float32")
        assert (report.images, report.accuracy, report.model_accuracy) == (9, 6 / 9, 6 / 9)
        assert report.top1_agreement == 1.0 and "66.67 % (the model: 66.67 %)" in str(report)
    assert "accuracy" not in str(export(model, tmp_path / "plain.onnx"))
    wrong = export(model, tmp_path / "wrong.onnx", images=pixels[:1], labels=labels[:1])
    assert "0.00 % (the model: 0.00 %)" in str(wrong)
    images = images_for(CONFIG, 3)
    export(model, tmp_path / "model.onnx", images=images, batch_size=np.int64(2), overwrite=True)
    np.testing.assert_array_equal(fake_export.images[0], images)
    assert json.dumps(fake_export.job.signature.shape) == "[2, 8, 12, 3]"
    export(model, tmp_path / "half.onnx", images=keras.ops.convert_to_tensor(images, "bfloat16"))
    np.testing.assert_allclose(fake_export.images[0], images, atol=2**-8)


def test_calibration_of_other_channels_and_values():
    config = CONFIG.replace(channels=4, pixel_mean=0.5, pixel_std=0.5, filter="bicubic")
    signature = Signature.of(shared_model(config))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 12, 4)).astype("uint8")
    found = calibration_images((pixels, np.arange(9) % 3), config, signature)
    assert sorted(map(bytes, found)) == sorted(map(bytes, pixels))
    assert len(calibration_images(itertools.repeat((pixels, np.arange(9) % 3)), config, signature)) == 300
    floats = [np.where(image < 128, 0.0, 255.0) for image in np.repeat(pixels, 2, axis=1)]
    resized = np.concatenate([config.pipeline.resized(image, 4) for image in floats])
    found = calibration_images([pixels[0].astype(float), *floats], config, signature)
    assert resized.max() > 256 and np.array_equal(found[1:], np.rint(resized.clip(0, 255)))
    for source, words in (
        ([pixels[0] / 255, *np.repeat(pixels, 2, axis=1)], "seem to be scaled already"),
        ([pixels[0], *np.repeat(pixels, 2, axis=1).astype("uint16") * 200], "from 0 to 255, but their largest is"),
    ):
        with pytest.raises(ValueError, match=words):
            calibration_images(source, config, signature)


def test_answers_are_compared_on_given_images_first(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    pixels = pixels_for(CONFIG, 9)
    many = np.repeat(pixels, 20, axis=0)
    report = export(shared_model(), tmp_path / "a.tflite", precision="int8", calibration=many, images=pixels)
    calibrated = np.arange(180) % 4 != 3  # every fourth is held out, to compare on
    np.testing.assert_allclose(fake_export.calibration, normalised(many[calibrated]))
    assert report.images == 9
    report = export(shared_model(), tmp_path / "b.tflite", precision="int8", calibration=many)
    assert report.images == 64
    np.testing.assert_allclose(fake_export.images[0][:45], normalised(many[~calibrated]))


def test_calibration_wants_contrast(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    black = np.zeros((16, 8, 12, 3), "uint8")
    some = np.concatenate([black, pixels_for(CONFIG, 7)])
    for images, found in ((black, "0 of 16"), (black + np.uint8(90), "0 of 16"), (some, "7 of 23")):
        with pytest.raises(ValueError, match=f"at least 8 images with contrast, but only {found} have it"):
            export(shared_model(), tmp_path / "a.tflite", precision="int8", calibration=images, uint8_input=True)
    assert not (tmp_path / "a.tflite").exists()


def test_classes_count_as_one_only_beside_the_model_s_own_spread():
    """Answers that lie near each other are no excuse: it is their own spread that 5 % are of."""
    rng = np.random.default_rng(0)
    expected = rng.normal(0, 0.01, (100, 10)).astype("float32")
    with pytest.raises(RuntimeError, match="names another class"):
        differences([np.roll(expected, 1, 1)], [expected], True, "onnx", "int8", 1.0)


def test_a_share_of_classes_is_of_classes(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    assert export(shared_model(), tmp_path / "c.tflite", precision="float16").float16_top1 == 1
    report = export(small_depth_model(), tmp_path / "d.tflite", precision="float16")
    assert report.float16_error is not None and report.float16_top1 is None


INT8 = {"precision": "int8"}
REFUSED = {
    "format": ({"format": "tflite"}, "format must be one of .*litert.*'tflite'"),
    "suffix of format": ({"path": "model.lite", "format": "litert"}, r"must end in '\.tflite'"),
    "precision": ({"precision": "int3"}, "precision must be one of .*float32.*'int3'"),
    "impossible precision": ({"precision": "bfloat16"}, "no operations for bfloat16"),
    "no calibration": ({"precision": "int8"}, "needs images: pass calibration"),
    "idle calibration": ({"calibration": np.zeros((8, 8, 12, 3))}, "leave it out"),
    "7 images": (INT8 | {"calibration": np.zeros((7, 8, 12, 3))}, "calibration must be at least 8 images.*given: 7"),
    "calibration's size": (INT8 | {"calibration": np.zeros((8, 9, 12, 3))}, r"calibration .*\(8, 9, 12, 3\)"),
    "pixels as floats": (INT8 | {"calibration": np.full((8, 8, 12, 3), 255.0)}, r"calibration .*-1\.\.1.*255.*uint8"),
    "tolerance": ({"tolerance": -1}, "tolerance must be a number above 0"),
    "no option": ({"sofmax": True}, "has no argument sofmax=True.*softmax"),
    "another format's": ({"path": "m.onnx", "allow_select_ops": True}, "allow_select_ops=True is for the format 'lite"),
    "too few names": ({"class_names": ["one"]}, "must name each of the 5 classes"),
    "image size": ({"images": np.zeros((2, 9, 12, 3))}, r"\(n, 8, 12, 3\).*\(2, 9, 12, 3\).*preprocess"),
    "floats for bytes": ({"images": np.zeros((2, 8, 12, 3), "f4"), "uint8_input": True}, "images must be uint8 pixels"),
    "image range": ({"images": np.full((2, 8, 12, 3), 256)}, "0..255"),
    "labels alone": ({"labels": [0, 1]}, "labels need images"),
    "labels' range": ({"images": np.zeros((2, 8, 12, 3)), "labels": [0, 5]}, r"integers in 0\.\.4, but 0\.\.5 w"),
}


def test_what_makes_no_sense_is_refused(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    monkeypatch.setattr(exporting, "write_anywhere", lambda *_: pytest.fail("work was begun"))
    for options, words in REFUSED.values():
        options = {"path": "model.tflite", **options}
        with pytest.raises((ValueError, TypeError), match=f"(?s){words}"):
            export(shared_model(), tmp_path / options.pop("path"), **options)
    assert list(tmp_path.iterdir()) == []


def test_models_that_do_not_fit(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    for changes, path, options, words in (
        ({"classes": None}, "model.onnx", {"softmax": True}, "softmax=True needs .* no head"),
        ({"classifier_activation": "sigmoid"}, "model.onnx", {"softmax": True}, "softmax=True needs .*'sigmoid'"),
        ({"dynamic": True}, "model.pt2", {}, r"any size.*with_image_size"),
    ):
        with pytest.raises(ValueError, match=words):
            export(shared_model(CONFIG.replace(**changes)), tmp_path / path, **options)
    monkeypatch.setattr(keras.Model, "count_params", lambda self: 2**29)
    with pytest.raises(ValueError, match="2.1 GB of weights.*'saved_model'"):
        export(shared_model(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_softmax_is_not_added_to_one():
    """Whatever the last layer is: a softmax by itself, or a model that ends in one."""
    features, whole = (
        CONFIG.replace(**changes) for changes in ({"classes": None}, {"classifier_activation": "softmax"})
    )
    head, inner = keras.layers.Dense(3), keras.layers.Dense(3, activation=keras.layers.Softmax())
    for layers in (
        (shared_model(features), head, keras.layers.Softmax()),
        (shared_model(features), inner),
        (shared_model(whole),),
    ):
        model = keras.Sequential([keras.Input((8, 12, 3)), *layers])
        assert not Signature.of(model, uint8=False, softmax=True).softmax
        assert classes_of(model) == model.output_shape[-1]


def test_a_new_head_is_no_comparison(monkeypatch, tmp_path):
    """Zeros were compared with zeros, and the file was said to agree."""
    fake_export(monkeypatch)
    model = new_model()
    assert "shows nothing" not in (export(model, tmp_path / "a.tflite").note or "")
    for classes in (3, 4):
        fresh = model.with_classes(classes)
        fresh.get_layer("head").bias.assign(np.full(classes, classes - 3.0))
        assert "a new head: the comparison shows nothing" in str(export(fresh, tmp_path / f"{classes}.tflite").note)


@pytest.mark.nightly
def test_export_of_tips(golden, tmp_path):
    """A segmenter, which has the whole tower inside."""
    both = keras_vit.load_image_text(golden(CASE).folder)
    segmenter = both.zero_shot_segmenter(["cat", "dog"], "{}", image_size=56, stride=28).with_image_size(56)
    assert export(segmenter, tmp_path / "model.pt2", measure=False).max_abs_error < 1e-4  # compares the answers
