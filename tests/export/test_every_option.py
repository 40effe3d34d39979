"""Every option of `export` with every kind of model: it changes what is written or reported, or it is refused."""

import dataclasses
import inspect

import numpy as np
import pytest

import keras_vit
from keras_vit import BiTConfig, DPTConfig, EoMTConfig, LinearSegmenterConfig, ViTConfig
from keras_vit.export import export
from tests.export.tiny import fake_export

pytestmark = pytest.mark.once

VIT = ViTConfig(image_size=8, patch_size=4, width=8, depth=4, heads=2, mlp_width=8, classes=3)
BACKBONE = VIT.replace(classes=None, pooling="none")
HEAD = {"widths": (8, 8, 8, 8), "fusion_width": 8, "head_width": 4}
MODELS = {
    "classifier": lambda: keras_vit.VisionTransformer(VIT),
    "probabilities": lambda: keras_vit.VisionTransformer(VIT.replace(classifier_activation="softmax")),
    "features": lambda: keras_vit.VisionTransformer(VIT.replace(classes=None)),
    "any size": lambda: keras_vit.VisionTransformer(VIT.replace(dynamic=True)),
    "bit": lambda: keras_vit.BiT(BiTConfig(image_size=8, stages=(1,), width=32, classes=3)),
    "extractor": lambda: keras_vit.feature_extractor(keras_vit.VisionTransformer(VIT), ["block_0", "encoded"]),
    "segmenter": lambda: keras_vit.LinearSegmenter(
        LinearSegmenterConfig(backbone=BACKBONE, classes=3, blocks=(3,), crop_size=8, stride=8)
    ),
    "queries": lambda: keras_vit.EoMT(
        EoMTConfig(backbone=BACKBONE, classes=3, queries=2, query_blocks=1, upscale_blocks=1)
    ),
    "depth": lambda: keras_vit.DPT(
        DPTConfig(backbone=BACKBONE, blocks=(0, 1, 2, 3), max_depth=1.0, metric=False, **HEAD)
    ),
}
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("uint8")
CALIBRATION = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3)).astype("uint8")
# A value of each option, with what it needs; None where it only permits.
VALUES = {
    **{"format": {"format": "torch"}, "precision": {"precision": "float16"}, "batch_size": {"batch_size": 2}},
    **{"uint8_input": {"uint8_input": True}, "softmax": {"softmax": True}, "class_names": {"class_names": list("abc")}},
    **{"source": {"source": "a file"}, "images": {"images": PIXELS}, "measure": {"measure": False}, "overwrite": None},
    **{"labels": {"labels": np.array([0, 1, 2, 0]), "images": PIXELS}, "calibration": {"calibration": CALIBRATION}},
    **{"allow_select_ops": None, "tolerance": {"tolerance": 0.5}},
}


@pytest.fixture(scope="module")
def models():
    found = {kind: make() for kind, make in MODELS.items()}
    for model in found.values():
        for number, weight in enumerate(model.weights):
            values = np.random.default_rng(number).normal(0, 0.3, weight.shape)
            weight.assign(abs(values) if "variance" in weight.path else values)
    return found


def outcome(model, path, monkeypatch, options):
    """What is reported, and what the file would hold."""
    fake_export(monkeypatch)
    report = export(model, path, overwrite=True, **options)
    facts = dataclasses.asdict(report)
    return str([facts.pop("seconds") and facts, fake_export.job])


def test_every_option_has_a_value():
    assert set(VALUES) == {*inspect.signature(export).parameters} - {"model", "path"}


PAIRS = [(kind, option) for kind in MODELS for option, value in VALUES.items() if value is not None]
PAIRS.remove(("probabilities", "softmax"))  # that is so already


@pytest.mark.parametrize(("kind", "option"), PAIRS)
def test_it_changes_the_file_or_the_report_or_is_refused(kind, option, models, monkeypatch, tmp_path):
    options = VALUES[option]
    beside = {name: value for name, value in options.items() if name != option}
    plain = outcome(models[kind], tmp_path / "model.onnx", monkeypatch, beside)
    try:
        found = outcome(models[kind], tmp_path / "model.onnx", monkeypatch, options)
    except (ValueError, TypeError) as error:
        words = {"format": "path must end", "precision": "precision", "calibration": "calibration"}.get(option, option)
        assert words in str(error), f"{kind}, {option}: the error does not name it: {error}"
        return
    assert found != plain, f"{kind}: {option} is dropped in silence"
