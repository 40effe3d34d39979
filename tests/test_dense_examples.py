"""The scripts that make masks and depth with a runtime alone answer as the package does, and import no Keras."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import depth, segmentation
from keras_vit.export import FORMATS, export
from tests.small_models import small_backbone_config
from tests.test_classify_examples import BLOCK

pytestmark = pytest.mark.nightly
Image = pytest.importorskip("PIL.Image")
SCRIPTS = Path(__file__).resolve().parents[1] / "examples/dense"
BACKBONE = small_backbone_config(image_size=32, patch_size=8, width=16, depth=4, mlp_width=24, filter="bilinear_pillow")
KINDS = {
    "LinearSegmenter": keras_vit.models.LinearSegmenterConfig(
        backbone=BACKBONE, classes=3, blocks=(3,), short_side=32, crop_size=32, stride=21, pictures="dinov3"
    ),
    "EoMT": keras_vit.models.EoMTConfig(
        backbone=BACKBONE, classes=3, queries=9, query_blocks=2, upscale_blocks=1, pictures="eomt_transformers"
    ),
}


@pytest.fixture
def run(tmp_path, backend):
    """A function that exports a model and runs a script on a picture; the path of what that wrote."""
    if backend != FORMATS["onnx"].backend:
        pytest.skip("once is enough, on the backend that writes ONNX without another process")
    pytest.importorskip("onnxruntime")

    def run(model, script, picture, answer, *arguments):
        export(model, tmp_path / "model.onnx", uint8_input=True, measure=False)
        Image.fromarray(picture).save(tmp_path / "photo.png")
        files = [str(tmp_path / name) for name in ("model.onnx", "photo.png", answer)]
        command = [sys.executable, "-c", BLOCK, str(SCRIPTS / script), *files, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return tmp_path / answer

    return run


def drawn(rng):
    return np.asarray(Image.fromarray(rng.integers(0, 256, (7, 11, 3)).astype("uint8")).resize((110, 70)))


@pytest.mark.parametrize("kind", KINDS)
def test_masks(kind, run):
    model = getattr(keras_vit, kind)(KINDS[kind])
    rng = np.random.default_rng({"LinearSegmenter": 3, "EoMT": 14}[kind])  # the EoMT finds two segments
    for weight in model.weights:  # classes that queries are sure of, and no class that is everywhere
        values = rng.normal(0, 2.0 if weight.path == "class_head/kernel" else 0.4, weight.shape)
        zero = weight.path in ("head/bias", "head_norm/beta")
        weight.assign(np.abs(values) + 0.5 if "variance" in weight.path else values * (not zero))
    picture = drawn(rng)
    if kind == "LinearSegmenter":
        norm, images = model.get_layer("head_norm"), model.backbone.preprocess(picture[None])
        norm.moving_mean.assign(keras.Model(model.input, norm.input)(images).numpy().mean((0, 1, 2)))
    written = run(model, "masks_onnx.py", picture, "map.png")
    expected = segmentation.segment(model, picture)
    assert len(expected.segments) > 1
    found = np.asarray(Image.open(written)).astype("int32") - 1
    # Where two classes or masks are nearly even, rounding decides.
    assert found.shape == expected.map.shape and (found == expected.map).mean() > 0.998


def test_depth(run):
    backbone = BACKBONE.replace(dynamic=True)
    sizes = {"picture_size": (32, 32), "widths": (4, 6, 8, 8), "fusion_width": 8, "head_width": 4}
    options = {"pictures": "depth_anything_transformers", "max_depth": 1.0, "metric": False}
    config = keras_vit.models.DPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), **options, **sizes)
    model, rng = keras_vit.DPT(config), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(np.abs(rng.normal(0, 0.3, weight.shape)))
    picture = drawn(rng)
    written = run(model, "depth_onnx.py", picture, "depth.npy", "32", "8")
    expected = depth.estimate(model, picture).depth
    scale = np.ptp(expected)
    assert scale > 0.01 * np.abs(expected).max()
    # The grey levels of torchvision's resizing and of Pillow's differ in one pixel of 300.
    np.testing.assert_allclose(np.load(written), expected, rtol=0, atol=5e-3 * scale)
