"""Images of other channels than red, green and blue: arrays, grey pictures and TIFFs through data and preprocessing."""

import io
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit import data, training
from keras_vit.evaluation import evaluate
from keras_vit.preprocessing.images import read_picture
from tests.pictures import save
from tests.small_models import small_vit_config

pytestmark = pytest.mark.once

CONFIG = small_vit_config(depth=1, classes=2, channels=4, pixel_mean=9, pixel_std=8)


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
    both = model.preprocess(pixels[3:].astype("uint16")), model.preprocess(files)
    np.testing.assert_allclose(*both, rtol=0, atol=1e-6)
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
    pixels = np.arange(64, dtype="uint8").reshape(8, 8)
    save(folder / "grey.png", pixels)
    grey = keras_vit.VisionTransformer(CONFIG.replace(channels=1, pixel_mean=0.5, pixel_std=0.5))
    np.testing.assert_allclose(grey.preprocess(folder / "grey.png")[0, ..., 0], pixels / 127.5 - 1, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"'.*0.tif' has the shape \(8, 8, 4\), but 5 channels were expected"):
        keras_vit.VisionTransformer(CONFIG.replace(channels=5)).preprocess(folder / "corn" / "0.tif")
    (folder / "bad.tif").write_bytes(b"II*\0 nothing")
    with pytest.raises(ValueError, match="bad.tif"):
        keras_vit.VisionTransformer(CONFIG).preprocess(folder / "bad.tif")
    with pytest.raises(ValueError, match="randaugment needs RGB images.*channels=4"):
        augmentation = data.Augmentation(randaugment=(2, 10))
        data.open_data(folder, image_size=8, batch_size=2, channels=4, augmentation=augmentation)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ImportError, match="4 channels needs tifffile.*keras-vit"):
        keras_vit.VisionTransformer(CONFIG).preprocess(folder / "corn" / "0.tif")


def written(path, kind, dtype="uint8", count=3):
    """Writes a TIFF of a kind; returns its pixels `(8, 12, count)`."""
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(1).integers(0, 256, (8, 12, count)) * (257 if dtype == "uint16" else 1)
    pixels = pixels.astype(dtype)
    first = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    kinds = {
        "imagej": (first, {"imagej": True, "metadata": {"axes": "CYX"}}),
        "slices": (first, {"imagej": True, "metadata": {"axes": "ZYX"}}),
        "ome": (first, {"ome": True, "photometric": "minisblack", "metadata": {"axes": "CYX"}}),
        "tifffile": (first, {"photometric": "minisblack"}),
        "pages": (first, {"photometric": "minisblack", "metadata": None}),
        "planes": (first, {"photometric": "minisblack", "planarconfig": "separate"}),
        "planes of RGB": (first, {"photometric": "rgb", "planarconfig": "separate"}),
        "samples": (pixels, {"photometric": "minisblack", "planarconfig": "contig"}),
        "RGB": (pixels, {"photometric": "rgb"}),
    }
    tifffile.imwrite(path, kinds[kind][0], **kinds[kind][1])
    return pixels


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("kind", ["imagej", "ome", "tifffile", "planes", "planes of RGB", "samples", "RGB"])
def test_three_channels_of_a_tiff_wherever_they_lie(kind, dtype, tmp_path):
    """Pillow takes planes for pages, the first of which became red, green and blue, or did not know the file."""
    file = tmp_path / "cells.tif"
    wanted = written(file, kind, dtype) >> (8 if dtype == "uint16" else 0)
    for source in (file, io.BytesIO(file.read_bytes())):
        np.testing.assert_array_equal(keras_vit.load_image(source), wanted)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        written(tmp_path / "photos" / name / "0.tif", kind, dtype)
    with data.open_data(tmp_path / "photos", image_size=(8, 12), batch_size=2, split="test") as stream:
        np.testing.assert_array_equal(stream.batch(0)[0][1], wanted)


@pytest.mark.parametrize("kind", ["pages", "slices", "coloured pages", "ZYX", "16 bits"])
def test_several_pages_of_a_tiff_are_not_one_picture(kind, tmp_path):
    tifffile, file = pytest.importorskip("tifffile"), tmp_path / "stack.tif"
    pages = np.zeros((7, 8, 12), "uint16" if kind == "16 bits" else "uint8")
    if kind in ("pages", "slices"):
        written(file, kind)
    elif kind == "coloured pages":
        tifffile.imwrite(file, np.stack([pages] * 3, -1), photometric="rgb", metadata=None)
    else:
        tifffile.imwrite(file, pages, photometric="minisblack", metadata={"axes": "ZYX"} if kind == "ZYX" else None)
    with pytest.raises(ValueError, match=r"stack.tif.*(it has . pages|its axes are ZYX), but one picture was expected"):
        keras_vit.load_image(file)
    with pytest.raises(ValueError, match="stack.tif.*one picture was expected"):
        data.open_data(
            data.open_table({"file": [file], "label": ["a"]}), image_size=8, batch_size=1, split="test"
        ).batch(0)


def test_smaller_copies_in_a_tiff_are_passed_over(tmp_path):
    tifffile, pixels = pytest.importorskip("tifffile"), np.arange(96, dtype="uint8").reshape(8, 12)
    for name, second, kind in (("copy", pixels[::2, ::2], 1), ("same", pixels * 0, 1), ("small", pixels[::2, ::2], 0)):
        with tifffile.TiffWriter(tmp_path / f"{name}.tif") as tiff:
            tiff.write(pixels, photometric="minisblack", metadata=None)
            tiff.write(second, photometric="minisblack", metadata=None, subfiletype=kind)
        np.testing.assert_array_equal(keras_vit.load_image(tmp_path / f"{name}.tif")[..., 0], pixels)


@pytest.mark.parametrize("kind", ["imagej", "tifffile", "planes", "samples", "RGB"])
def test_what_is_not_red_green_and_blue_is_not_called_damaged(kind, tmp_path):
    file = tmp_path / "field.tif"
    for dtype in ("float32", "int16"):
        written(file, kind, dtype)
        with pytest.raises(ValueError, match="field.tif.*no defined white; scale") as caught:
            keras_vit.load_image(file)
        assert "damaged" not in str(caught.value)
    if kind != "RGB":  # with four it has transparency
        written(file, kind, count=4)
        with pytest.raises(ValueError, match="field.tif.*it has 4 channels, but three were expected.$"):
            keras_vit.load_image(file)


def test_places_without_data(tmp_path):
    """Training ended with advice about the learning rate, evaluation named no file."""
    tifffile = pytest.importorskip("tifffile")
    model = keras_vit.VisionTransformer(CONFIG)
    cases = (("nan", "float32", np.nan, []), ("mark", "int16", -9999, [(42113, "s", 0, "-9999", True)]))
    for name, dtype, value, tags in cases:
        for label in ("corn", "wood"):
            (tmp_path / name / label).mkdir(parents=True)
            pixels = np.ones((2, 8, 8, 4), dtype) * 50
            pixels[1, 2, 3, :] = value
            for i in range(2):
                path = tmp_path / name / label / f"{i}.tif"
                tifffile.imwrite(path, pixels[i], photometric="minisblack", planarconfig="contig", extratags=tags)
        recipe = training.recipe("finetune/cifar10").replace(steps=2, batch_size=2, image_size=8)
        words = "1.tif.* 1.56% of its values stand for no data"
        with pytest.raises(ValueError, match=words):
            training.finetune(model, tmp_path / name, recipe, verbose=False)
        with pytest.raises(ValueError, match=words):
            evaluate(model, tmp_path / name, progress=False)
        with pytest.warns(UserWarning, match="2 bad images are left out|A bad image is left out"):
            assert evaluate(model, tmp_path / name, on_bad_image="skip", progress=False).examples == 2


def test_a_tiff_is_as_upright_as_pillow_makes_it(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    from PIL import Image, ImageOps

    pixels = np.arange(12, dtype="uint8").reshape(3, 4)
    for orientation in range(1, 9):
        path = tmp_path / f"{orientation}.tif"
        tifffile.imwrite(path, pixels, extratags=[(274, "H", 1, orientation, True)])
        image = Image.fromarray(pixels)
        image.getexif()[274] = orientation
        np.testing.assert_array_equal(read_picture(path, 1)[..., 0], np.asarray(ImageOps.exif_transpose(image)))
