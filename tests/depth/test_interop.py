"""Depth Anything beside transformers, where that is installed: what it reads and what it writes."""

import importlib

import numpy as np
import pytest

import keras_vit
from keras_vit import depth
from keras_vit.depth import PREPARATIONS
from tests.checkpoints.test_pictures_interop import COUNT, ROUNDING, pictures

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]  # theirs
PICTURE = np.random.default_rng(1).integers(0, 256, (83, 131, 3)).astype("uint8")


@pytest.mark.parametrize("metric", [False, True])
def test_both_ways(metric, tmp_path):
    torch.manual_seed(0)
    backbone = transformers.Dinov2Config(
        **{"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3, "mlp_ratio": 2, "image_size": 70},
        **{"patch_size": 14, "out_indices": [2, 3, 4, 5], "reshape_hidden_states": False},
    )
    config = transformers.DepthAnythingConfig(
        **{"backbone_config": backbone, "reassemble_hidden_size": 48, "neck_hidden_sizes": [8, 12, 16, 24]},
        **{"fusion_hidden_size": 16, "head_hidden_size": 8, "max_depth": 20 if metric else 1},
        depth_estimation_type="metric" if metric else "relative",
    )
    theirs = transformers.DepthAnythingForDepthEstimation(config).eval()
    for weight in theirs.parameters():
        weight.data += torch.randn(weight.shape) * (0.1 if weight.ndim == 1 else 1 / weight[0].numel() ** 0.5)
    processor = transformers.DPTImageProcessor(
        **{"size": {"height": 70, "width": 70}, "keep_aspect_ratio": True, "ensure_multiple_of": 14, "resample": 3},
        **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    )
    for part in (theirs, processor):
        part.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        prepared = processor(PICTURE, return_tensors="pt")
        answer = theirs(**prepared)
    wanted = processor.post_process_depth_estimation(answer, target_sizes=[PICTURE.shape[:2]])[0]["predicted_depth"]

    model = keras_vit.load(tmp_path / "theirs")
    result = depth.estimate(model, PICTURE)
    assert result.metric == metric and model.config.blocks == (1, 2, 3, 4)
    np.testing.assert_allclose(result.depth, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))

    keras_vit.to_checkpoint(model, tmp_path / "ours")
    again, found = transformers.DepthAnythingForDepthEstimation.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(found.values())
    with torch.no_grad():
        ours = transformers.AutoImageProcessor.from_pretrained(tmp_path / "ours")(PICTURE, return_tensors="pt")
        np.testing.assert_array_equal(again.eval()(**ours).predicted_depth, answer.predicted_depth)


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
def test_pictures_of_many_sizes(backend, record_property):
    """What the model takes, beside the processors; see tests/checkpoints/test_pictures_interop.py."""
    name, end = ("image_processing_pil_dpt", "Pil") if backend == "pil" else ("image_processing_dpt", "")
    options = {"size": {"height": 70, "width": 70}, "keep_aspect_ratio": True, "ensure_multiple_of": 14, "resample": 3}
    options |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    try:
        module = importlib.import_module(f"transformers.models.dpt.{name}")
        processor = getattr(module, f"DPTImageProcessor{end}")(**options)
    except ImportError as error:
        pytest.skip(str(error))
    size = {"image_size": 70, "patch_size": 14, "width": 16, "depth": 1, "heads": 2, "mlp_width": 16}
    vit = keras_vit.ViTConfig(**size, pixel_mean=options["image_mean"], pixel_std=options["image_std"])
    prepare, found = PREPARATIONS["depth_anything_transformers"][0], 0.0
    for picture in pictures():
        theirs = np.moveaxis(np.asarray(processor(picture, return_tensors="np")["pixel_values"]), 1, -1)
        ours = prepare(picture, vit, (70, 70))
        assert ours.shape == theirs.shape, picture.shape
        found = max(found, float(np.abs((ours - theirs) * 255 * np.asarray(vit.pixel_std)).max()))
    record_property("largest difference", found)
    print(f"Depth Anything, {backend}: {found:.3g} grey levels over {COUNT} sizes")
    assert found <= ROUNDING
