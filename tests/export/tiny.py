"""Models that export in no time, and exports that take none."""

import functools
import importlib.util

import keras
import numpy as np
import pytest

from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig
from keras_vit.export import FORMATS, exporting
from keras_vit.export.served_model import serve
from keras_vit.layers import skip_initialization

CONFIG = ViTConfig(image_size=(8, 12), patch_size=4, width=16, depth=1, heads=2, mlp_width=24, classes=5)
HYBRID = CONFIG.replace(image_size=(16, 16), patch_size=2, stem_stages=(1,), stem_width=32)
BIT = BiTConfig(image_size=(16, 24), stages=(1,), width=32, classes=5)
NAMES = ["null", "eins", "zwei", "drei", "vier (größer als drei)"]


def new_model(config=CONFIG, dtype=None):
    """A model without zeros: a fresh class token and a fresh head are zero, and nothing could be wrong with them."""
    with skip_initialization():
        model = (BiT if isinstance(config, BiTConfig) else VisionTransformer)(config, dtype=dtype, name="tiny")
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


@functools.cache
def shared_model(config=CONFIG):
    """A model for tests that change nothing: it is compiled only once."""
    return new_model(config)


def images_for(config, count, low=-1, high=1):
    shape = (count, *config.image_size, 3)
    return np.random.default_rng(count).uniform(low, high, shape).astype("float32")


def pixels_for(config, count):
    return images_for(config, count, 0, 255).astype("uint8")


def skip_without(format):
    missing = FORMATS[format].missing()
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")


def fake_export(monkeypatch, difference=0.0, select=(), write=None):
    """Lets `export` write something else, and lets that answer as the model does except for a difference."""

    def write_anywhere(model, job, calibration, path):
        for target in FORMATS[job.format].files(path):
            if write is not None:
                write(target)
            elif target.suffix:
                target.write_text("new")
            else:
                target.mkdir()
                (target / FORMATS[job.format].inside).write_text("new")
        fake_export.model, fake_export.job, fake_export.calibration = model, job, calibration
        return {"operators": ["ADD", *select], "select": list(select), "gpu": None}

    def run_in_fresh_process(row, path, images, batch, latency, in_float16=False):
        # The model that would have been written answers to what the file would have been given.
        fake_export.images = images
        measured = {"load_seconds": 0.1, "latency_ms": 2.0 if latency else None}
        answers = [answers_to(batch) for batch in images]
        if in_float16:
            measured["float16"] = {"peak": 3.0, "place": "ADD", "loud": 0.001}
            answers.append(answers_to(images[0][:1]))
        return answers, measured

    def answers_to(images):
        answers = serve(fake_export.model, fake_export.job.signature, keras.ops.convert_to_tensor(images))
        return {name: keras.ops.convert_to_numpy(answer) + difference for name, answer in answers.items()}

    monkeypatch.setattr(exporting, "write_anywhere", write_anywhere)
    monkeypatch.setattr(exporting, "run_in_fresh_process", run_in_fresh_process)
    # Nothing is converted, so that no converter has to be there.
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: find("numpy") or find(name, *rest))
