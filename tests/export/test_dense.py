"""Dense models in files: kinds of answers and formats."""

import numpy as np
import pytest

from keras_vit import (
    DPT,
    DPTConfig,
    EoMT,
    EoMTConfig,
    LinearSegmenter,
    LinearSegmenterConfig,
    ViTConfig,
)
from keras_vit.export import FORMATS, export
from tests.export.tiny import fake_export, skip_without
from tests.models import test_dense_options
from tests.tolerances import SAME_FUNCTION

BACKBONE = ViTConfig(image_size=28, patch_size=14, width=16, depth=4, heads=2, mlp_width=24, pooling="none")
WIDTHS = {"blocks": (0, 1, 2, 3), "widths": (4, 6, 8, 8), "fusion_width": 8, "head_width": 4}
QUERIES = {"queries": 5, "query_blocks": 2, "upscale_blocks": 1}
NAMES = ("a", "b", "c")
KINDS = {
    "EoMT": (EoMT, EoMTConfig(backbone=BACKBONE, classes=3, class_names=NAMES, **QUERIES), "classes, masks"),
    "linear": (LinearSegmenter, LinearSegmenterConfig(backbone=BACKBONE, classes=3, blocks=(0, 1, 2, 3)), "logits"),
    "DPT": (DPT, DPTConfig(backbone=BACKBONE, max_depth=1.0, metric=False, **WIDTHS), "depth"),
}
# A kind and a format for each backend: what one writes of a kind, the others do.
TRIED = {"torch": ("EoMT", "torch"), "tensorflow": ("linear", "litert"), "jax": ("DPT", "stablehlo")}


def made(kind):
    cls, config, _ = KINDS[kind]
    model = cls(config)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        values = rng.normal(0, 0.3, weight.shape)
        weight.assign(np.abs(values) + 0.5 if "variance" in weight.path else values)
    return model


def test_a_file_answers_as_its_model(tmp_path, backend):
    """What `export` checks itself, in a fresh process."""
    kind, format = TRIED[backend]
    skip_without(format)
    path = tmp_path / f"model{FORMATS[format].suffix}"
    report = export(made(kind), path, format, uint8_input=True, measure=False)
    # The order of sums; the depth of random weights reaches 70.
    assert report.output == KINDS[kind][2] and report.max_abs_error < (1e-4 if kind == "DPT" else SAME_FUNCTION)
    assert (report.top1_agreement is not None) == (kind == "linear")


@pytest.mark.once
def test_names_and_adapters_and_a_softmax(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    model = made("linear")
    model.get_layer("block_0").attention.query.enable_lora(2)
    report = export(model, tmp_path / "linear.onnx", softmax=True, class_names=NAMES, measure=False)
    assert report.output == "probabilities"
    with pytest.raises(ValueError, match="answers classes, masks"):
        export(made("EoMT"), tmp_path / "eomt.onnx", softmax=True)
    with pytest.raises(ValueError, match="answers depth"):
        export(made("DPT"), tmp_path / "dpt.onnx", softmax=True)
    assert export(made("EoMT"), tmp_path / "eomt.onnx", measure=False).top1_agreement is None


@pytest.mark.parametrize(("kind", "values"), {"EoMT": 7.4, "DPT": 1.1}.items())  # the range of what they answer
def test_int8(kind, values, tmp_path, backend):
    if backend != FORMATS["onnx"].backend:
        pytest.skip("once is enough, on the backend that writes ONNX without another process")
    skip_without("onnx")
    pictures = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3)).astype("uint8")
    options = {"precision": "int8", "calibration": pictures, "uint8_input": True, "measure": False}
    report = export(test_dense_options.made(kind), tmp_path / "model.onnx", "onnx", **options)
    # The integers are 1/254 of the largest values apart, in some twenty products one after another.
    assert 1e-4 * values < report.max_abs_error < 0.12 * values
