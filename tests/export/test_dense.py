"""Models of several answers and dense ones in files: kinds of answers and formats."""

import functools

import keras
import numpy as np
import pytest

from keras_vit import feature_extractor
from keras_vit.export import FORMATS, export
from tests.export.tiny import fake_export, skip_without
from tests.models import test_dense_options
from tests.small_models import (
    model_of,
    small_bit,
    small_depth_model,
    small_detector,
    small_eomt,
    small_linear_segmenter,
    small_vit,
)
from tests.tolerances import SAME_FUNCTION

NAMES = ("a", "b", "c")
KINDS = {
    "EoMT": (functools.partial(small_eomt, class_names=NAMES), "classes, masks"),
    "linear": (small_linear_segmenter, "logits"),
    "detector": (small_detector, "boxes, logits, objectness"),
    "DPT": (functools.partial(small_depth_model, max_depth=1.0, metric=False), "depth"),
    "sky": (lambda: model_of(test_dense_options.KINDS["Depth Anything 3"]), "depth, sky"),
    "tips": (lambda: model_of(test_dense_options.KINDS["MultiTaskDPT"]), "depth, normals, segmentation"),
    "BiT": (functools.partial(small_bit, dynamic=True), "logits"),
    "extractor": (lambda: feature_extractor(small_vit(), ["block_-1", "stem"], "map"), "block_-1, stem"),
}
# Kinds and formats for each backend: what one writes of a kind, the others do.
TRIED = [
    ("torch", "EoMT", "torch"), ("tensorflow", "linear", "litert"), ("jax", "DPT", "stablehlo"),
    ("tensorflow", "detector", "onnx"), ("tensorflow", "detector", "openvino"), ("tensorflow", "detector", "litert"),
    ("tensorflow", "sky", "onnx"), ("tensorflow", "sky", "openvino"), ("jax", "extractor", "stablehlo"),
    *(pytest.param(*of, marks=pytest.mark.nightly) for of in (
        ("tensorflow", "tips", "litert"), ("tensorflow", "extractor", "saved_model"), ("jax", "tips", "stablehlo"),
        ("torch", "sky", "torch"), ("torch", "BiT", "torch"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("of", "kind", "format"), TRIED)
def test_a_file_answers_as_its_model(tmp_path, backend, of, kind, format):
    """What `export` checks itself, in a fresh process."""
    if backend != of:
        pytest.skip("once is enough")
    skip_without(format)
    path = tmp_path / f"model{FORMATS[format].suffix}"
    batch_size = "any" if kind == "extractor" else None
    report = export(KINDS[kind][0](), path, format, batch_size=batch_size, uint8_input=True, measure=False)
    # The order of sums; the depth of random weights reaches 70.
    assert report.output == KINDS[kind][1] and report.max_abs_error < (
        1e-4 if kind in ("DPT", "sky") else SAME_FUNCTION
    )
    assert (report.top1_agreement is not None) == (kind in ("linear", "BiT"))


@pytest.mark.once
def test_names_and_adapters_and_a_softmax(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    model = small_linear_segmenter()
    model.get_layer("block_0").attention.query.enable_lora(2)
    report = export(model, tmp_path / "linear.onnx", softmax=True, class_names=NAMES, measure=False)
    assert report.output == "probabilities"
    with pytest.raises(ValueError, match="answers classes, masks"):
        export(small_eomt(class_names=NAMES), tmp_path / "eomt.onnx", softmax=True)
    with pytest.raises(ValueError, match="answers depth"):
        export(small_depth_model(), tmp_path / "dpt.onnx", softmax=True)
    assert export(small_eomt(class_names=NAMES), tmp_path / "eomt.onnx", measure=False).top1_agreement is None


@pytest.mark.parametrize("kind", [pytest.param("EoMT", marks=pytest.mark.nightly), "DPT"])
def test_int8(kind, tmp_path, backend):
    if backend != FORMATS["onnx"].backend:
        pytest.skip("once is enough, on the backend that writes ONNX without another process")
    skip_without("onnx")
    model = test_dense_options.made(kind)
    pictures = np.random.default_rng(0).integers(0, 256, (8, *model.config.image_size, 3)).astype("uint8")
    options = {"precision": "int8", "calibration": pictures, "uint8_input": True, "measure": False}
    report = export(model, tmp_path / "model.onnx", "onnx", **options)
    answers = keras.tree.flatten(model.predict(model.preprocess(pictures), verbose=0))
    values = max(np.abs(answer).max() for answer in answers)
    # The integers are 1/254 of the largest values apart, in some twenty products one after another.
    assert 1e-4 * values < report.max_abs_error < 0.12 * values
