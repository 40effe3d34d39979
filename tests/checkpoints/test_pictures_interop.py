"""Pictures of many sizes beside the processors of transformers, timm and open_clip, where these are installed.

KERAS_VIT_SIZES says of how many sizes; the largest difference of each is printed.
"""

import importlib
import os
import shutil

import numpy as np
import pytest

from keras_vit.checkpoints.checkpoint import open_checkpoint
from keras_vit.preprocessing import Pipeline

Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]  # theirs
COUNT = int(os.environ.get("KERAS_VIT_SIZES", "20"))
MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CROP = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
CROP_28 = {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}
SQUARE = {"size": {"height": 32, "width": 32}}
# Pillow 13 begins with the rows where that is less work, and torchvision's weights have 16 bits: a grey level or two. A
# crop that begins a pixel off differs by some 30.
ROUNDING = 2.001
# Of transformers: the file that it lies beside, the model's name in module and class, and what it is made with.
PROCESSORS = {
    "CLIP": ("fam_hf_clip_full", "clip", "CLIPImageProcessor", {**CROP, "resample": 3}),
    "BiT": ("fam_hf_vit_cls", "bit", "BitImageProcessor", {**CROP, **MEANS, "resample": 3}),
    "DINOv2": ("fam_hf_dinov2_giant_cls", "bit", "BitImageProcessor", {**CROP_28, **MEANS, "resample": 3}),
    "ViT": ("fam_hf_vit_cls", "vit", "ViTImageProcessor", SQUARE),
    "DeiT": ("fam_hf_vit_cls", "deit", "DeiTImageProcessor", {**CROP, "size": {"height": 36, "width": 36}}),
    "SigLIP 1 and 2": ("fam_hf_siglip_full", "siglip", "SiglipImageProcessor", {**SQUARE, "resample": 3}),
}


def pictures():
    """Smooth pictures with noise, of random sizes from 24 to 200 pixels."""
    rng = np.random.default_rng(0)
    for height, width in rng.integers(24, 200, (COUNT, 2)).tolist():
        rows, columns = np.mgrid[:height, :width] / 20
        waves = 100 + 70 * np.sin(rows[..., None] + [0, 1, 2]) * np.cos(columns[..., None])
        yield (waves + rng.normal(0, 10, (height, width, 3))).clip(0, 255).astype("uint8")


def largest_difference(pipeline, theirs):
    """In grey levels, of what the model takes, times its deviation."""
    scale = 255 * np.asarray(pipeline.std)
    return max(float(np.abs((pipeline(one)[0] - theirs(Image.fromarray(one))) * scale).max()) for one in pictures())


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_transformers(name, backend, golden, tmp_path, record_property):
    pytest.importorskip("transformers")
    case, family, kind, options = PROCESSORS[name]
    module = f"transformers.models.{family}.image_processing_{'pil_' if backend == 'pil' else ''}{family}"
    try:
        processor = getattr(importlib.import_module(module), kind + ("Pil" if backend == "pil" else ""))(**options)
    except ImportError as error:
        pytest.skip(str(error))
    shutil.copytree(golden(case).folder, tmp_path, dirs_exist_ok=True)
    processor.save_pretrained(tmp_path)
    pipeline = open_checkpoint(tmp_path).config.pipeline

    def theirs(picture):
        return np.moveaxis(np.asarray(processor(picture, return_tensors="np")["pixel_values"][0]), 0, -1)

    found = largest_difference(pipeline, theirs)
    record_property("largest difference", found)
    print(f"{name}, {backend}: {found:.3g} grey levels over {COUNT} sizes")
    assert found <= ROUNDING


@pytest.mark.parametrize("name", ["timm", "open_clip"])
def test_others(name, record_property):
    package = pytest.importorskip(name, exc_type=Exception)
    options = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    ratio = 1.0 if name == "open_clip" else 0.9
    if name == "timm":
        common = {"input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": ratio, **options}
        transform = package.data.create_transform(**common)
    else:
        transform = package.image_transform(32, is_train=False, **options)
    pipeline = Pipeline(32, resize="shortest", crop_ratio=ratio, filter="bicubic", **options)
    found = largest_difference(pipeline, lambda picture: np.moveaxis(transform(picture).numpy(), 0, -1))
    record_property("largest difference", found)
    print(f"{name}: {found:.3g} grey levels over {COUNT} sizes")
    assert found <= ROUNDING
