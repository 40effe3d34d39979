"""Every option of `export` with every kind of model: it changes what is written or reported, or it is refused."""

import dataclasses
import functools
import inspect

import numpy as np
import pytest

import keras_vit
from keras_vit.export import ExportOptions, export
from tests.export.tiny import fake_export
from tests.small_models import small_bit, small_depth_model, small_eomt, small_linear_segmenter, small_vit

pytestmark = pytest.mark.once

MODELS = {
    "classifier": small_vit,
    "probabilities": functools.partial(small_vit, classifier_activation="softmax"),
    "features": functools.partial(small_vit, classes=None),
    "any size": functools.partial(small_vit, dynamic=True),
    "bit": functools.partial(small_bit, image_size=8),
    "extractor": lambda: keras_vit.feature_extractor(small_vit(), ["block_0", "encoded"]),
    "segmenter": small_linear_segmenter,
    "queries": small_eomt,
    "depth": small_depth_model,
}
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("uint8")
CALIBRATION = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3)).astype("uint8")
# A value of each option, with what it needs; None where it only permits.
VALUES = {
    **{"format": {"format": "torch"}, "precision": {"precision": "float16"}, "batch_size": {"batch_size": 2}},
    "target": {"target": "gpu", "precision": "float16"},
    **{"uint8_input": {"uint8_input": True}, "softmax": {"softmax": True}, "class_names": {"class_names": list("abc")}},
    **{"source": {"source": "a file"}, "images": {"images": PIXELS}, "measure": {"measure": False}, "overwrite": None},
    **{"labels": {"labels": np.array([0, 1, 2, 0]), "images": PIXELS}, "calibration": {"calibration": CALIBRATION}},
    **{"allow_select_ops": None, "tolerance": {"tolerance": 0.5}},
    "pair": None,  # it has to be the model's own: test_towers.py
}


@pytest.fixture(scope="module")
def models():
    return {kind: make() for kind, make in MODELS.items()}


@pytest.fixture(scope="module")
def plain():
    """Outcomes without an option, by the kind of model and the names of what stands beside the option."""
    return {}


def outcome(model, path, monkeypatch, options):
    fake_export(monkeypatch)
    report = export(model, path, overwrite=True, **options)
    facts = dataclasses.asdict(report)
    del facts["seconds"], facts["path"]
    return str([facts, fake_export.job])


def test_every_option_has_a_value():
    fields = {field.name for field in dataclasses.fields(ExportOptions)}
    assert set(VALUES) == {*inspect.signature(export).parameters} - {"model", "path", "options"} | fields


PAIRS = [(kind, option) for kind in MODELS for option, value in VALUES.items() if value is not None]
PAIRS.remove(("probabilities", "softmax"))  # that is so already


@pytest.mark.parametrize(("kind", "option"), PAIRS)
def test_it_changes_the_file_or_the_report_or_is_refused(kind, option, models, plain, monkeypatch, tmp_path):
    options = VALUES[option]
    beside = {name: value for name, value in options.items() if name != option}
    if (kind, *beside) not in plain:
        plain[kind, *beside] = outcome(models[kind], tmp_path / "model.onnx", monkeypatch, beside)
    try:
        found = outcome(models[kind], tmp_path / "model.onnx", monkeypatch, options)
    except (ValueError, TypeError) as error:
        words = {"format": "path must end", "precision": "precision", "calibration": "calibration"}.get(option, option)
        assert words in str(error), f"{kind}, {option}: the error does not name it: {error}"
        return
    assert found != plain[kind, *beside], f"{kind}: {option} is dropped in silence"
