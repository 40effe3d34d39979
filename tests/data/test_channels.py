"""Images of other channels than red, green and blue: arrays, grey pictures and TIFFs through data and preprocessing."""

import sys

import numpy as np
import pytest

import keras_vit
from keras_vit import data, training
from keras_vit.evaluation import evaluate

pytestmark = pytest.mark.once

CONFIG = keras_vit.ViTConfig(
    image_size=8,
    patch_size=4,
    width=8,
    depth=1,
    heads=2,
    mlp_width=12,
    classes=2,
    channels=4,
    pixel_mean=9,
    pixel_std=8,
)


@pytest.fixture
def folder(tmp_path):
    """Two classes of three TIFFs with four channels: uint16 with channels last and first, and floats."""
    tifffile = pytest.importorskip("tifffile")
    rng = np.random.default_rng(0)
    for name in ("corn", "wood"):
        (tmp_path / name).mkdir()
        pixels = rng.integers(0, 10000, (3, 8, 8, 4)).astype("uint16")
        tifffile.imwrite(tmp_path / name / "0.tif", pixels[0], photometric="minisblack", planarconfig="contig")
        tifffile.imwrite(tmp_path / name / "1.tif", np.moveaxis(pixels[1], -1, 0), photometric="minisblack")
        tifffile.imwrite(tmp_path / name / "2.tiff", pixels[2].astype("float32"), photometric="minisblack")
        np.save(tmp_path / f"{name}.npy", pixels)
    return tmp_path


def test_tiffs(folder):
    """Values as they are, also beyond 255; training, evaluation and preprocessing read them alike."""
    model = keras_vit.VisionTransformer(CONFIG)
    pixels = np.concatenate([np.load(folder / f"{name}.npy") for name in ("corn", "wood")]).astype("float32")
    options = {"image_size": 8, "batch_size": 6, "channels": 4}
    with data.open_data(folder, split="train", shuffle=False, **options) as stream:
        np.testing.assert_array_equal(stream.batch(0)[0], pixels)
    files = [folder / "wood" / name for name in ("0.tif", "1.tif", "2.tiff")]
    np.testing.assert_allclose(model.preprocess(files), (pixels[3:] / 255 - 9) / 8, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        model.preprocess(pixels[3:].astype("uint16")), model.preprocess(files), rtol=0, atol=1e-6
    )
    recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
    done = training.finetune(model, folder, recipe, verbose=False)
    assert done.model.config.channels == 4 and np.isfinite(done.log[-1]["loss"])
    assert 0 <= evaluate(done.model, folder).accuracy <= 1


def test_crops_are_those_of_three_channels():
    """What happens to a channel does not depend on how many there are."""
    pixels, labels = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 13), dtype="uint8"), [0, 1, 0, 1]
    augmentation = data.Augmentation(mixup=0.2)
    options = {"image_size": 16, "batch_size": 4, "augmentation": augmentation, "seed": 7}
    with data.open_data((pixels, labels), channels=13, **options) as stream:
        images, targets = stream.batch(3)
    with data.open_data((pixels[..., :3], labels), **options) as stream:
        wanted, wanted_targets = stream.batch(3)
    assert images.shape == (4, 16, 16, 13)
    np.testing.assert_array_equal(images[..., :3], wanted)
    np.testing.assert_array_equal(targets, wanted_targets)
    with data.open_data((pixels[..., 0], labels), image_size=20, batch_size=4, channels=1, split="test") as stream:
        assert stream.batch(0)[0].shape == (4, 20, 20, 1)


def test_grey_pictures_and_errors(folder, monkeypatch):
    from PIL import Image

    pixels = np.arange(64, dtype="uint8").reshape(8, 8)
    Image.fromarray(pixels).save(folder / "grey.png")
    grey = keras_vit.VisionTransformer(CONFIG.replace(channels=1, pixel_mean=0.5, pixel_std=0.5))
    np.testing.assert_allclose(grey.preprocess(folder / "grey.png")[0, ..., 0], pixels / 127.5 - 1, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"'.*0.tif' has the shape \(8, 8, 4\), but 5 channels are wanted"):
        keras_vit.VisionTransformer(CONFIG.replace(channels=5)).preprocess(folder / "corn" / "0.tif")
    (folder / "bad.tif").write_bytes(b"II*\0 nothing")
    with pytest.raises(ValueError, match="bad.tif"):
        keras_vit.VisionTransformer(CONFIG).preprocess(folder / "bad.tif")
    with pytest.raises(ValueError, match="RandAugment is for red, green and blue, but channels=4"):
        augmentation = data.Augmentation(randaugment=(2, 10))
        data.open_data(folder, image_size=8, batch_size=2, channels=4, augmentation=augmentation)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ImportError, match="4 channels needs tifffile.*keras-vit"):
        keras_vit.VisionTransformer(CONFIG).preprocess(folder / "corn" / "0.tif")
