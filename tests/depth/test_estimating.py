"""From a picture to its depth: each publisher's way, and what is not a picture or no depth model."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import depth
from keras_vit.cli import main
from tests.pictures import save
from tests.small_models import small_backbone_config

pytestmark = pytest.mark.once

BACKBONE = small_backbone_config(image_size=28, patch_size=14, depth=4, dynamic=True)
PICTURE = np.random.default_rng(0).integers(0, 256, (30, 45, 3)).astype("uint8")


@pytest.fixture(scope="module")
def model():
    return keras_vit.LinearDepth(keras_vit.models.LinearDepthConfig(backbone=BACKBONE, blocks=(3,)))


# By the rules of the two originals, worked out by hand: (height, width) of a picture, and what they resize it to.
SIZES = {
    (480, 640): ((518, 686), (518, 686)),
    (1000, 600): ((868, 518), (868, 518)),
    (300, 500): ((518, 868), (308, 518)),  # covers 518; or the factor that is nearer to 1
    (518, 518): ((518, 518), (518, 518)),
    (50, 70): ((518, 728), (364, 518)),
    (4, 600): ((518, 77700), (14, 518)),  # transformers itself fails: no patch would be left
}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_depth_anything(size):
    covering, nearest = SIZES[size]
    assert depth._covering(*size, (518, 518), (14, 14)) == covering
    assert depth._nearest(*size, (518, 518), (14, 14)) == nearest
    for resized in (depth._covering, depth._nearest):  # of patches that are not squares
        assert resized(50, 70, (56, 56), (14, 8)) == (56, 80)


def test_the_authors_way_is_a_cubic_without_antialiasing():
    """Keys' cubic with a = -0.75 on pixels of 0..1, as OpenCV and torch have it; depth with aligned corners."""
    torch = pytest.importorskip("torch")
    picture = torch.tensor(PICTURE / 255).permute(2, 0, 1)[None]
    wanted = torch.nn.functional.interpolate(picture, (42, 56), mode="bicubic", align_corners=False)
    # 45 columns times 1.4 are four and a half patches: NumPy and Python round to the even number.
    images = depth._authors(PICTURE, BACKBONE, (42, 42))
    mean, std = np.asarray(BACKBONE.pixel_mean), np.asarray(BACKBONE.pixel_std)
    # Values of up to 2, each a sum of sixteen, in float32.
    np.testing.assert_allclose(images * std + mean, wanted.permute(0, 2, 3, 1).numpy(), rtol=0, atol=1e-6)


@pytest.mark.nightly_elsewhere
def test_any_kind_of_picture_and_its_mirror_image(model, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    Image.fromarray(PICTURE).save(tmp_path / "picture.png")
    result = depth.estimate(model, PICTURE)
    assert result.depth.shape == (30, 45) and result.depth.dtype == np.float32 and np.isfinite(result.depth).all()
    assert result.metric and result.unit == "m" and "without a unit" in depth.Depth(result.depth, False).unit
    for same in (tmp_path / "picture.png", Image.fromarray(PICTURE), PICTURE.astype("float64")):
        np.testing.assert_array_equal(depth.estimate(model, same).depth, result.depth)
    flipped = depth.estimate(model, PICTURE, flip=True).depth
    mirror = depth.estimate(model, np.ascontiguousarray(PICTURE[:, ::-1])).depth[:, ::-1]
    # Padding of 11 columns lies 5 on the left and 6 on the right: not the same places in the mirror image.
    assert 0 < np.abs(flipped - result.depth).max() and np.abs(flipped - (result.depth + mirror) / 2).max() < 1


def test_what_is_no_picture(model):
    for picture, error, message in (
        (np.zeros((2, 8, 8, 3), "uint8"), ValueError, r"one picture \(height, width, 3\).* \(2, 8, 8, 3\)"),
        (np.zeros((0, 8, 3), "uint8"), ValueError, r"one picture .* with pixels, .*\(0, 8, 3\)"),
        (None, TypeError, "picture"),
        ("missing.png", FileNotFoundError, "missing.png"),
    ):
        with pytest.raises(error, match=message):
            depth.estimate(model, picture)


@pytest.mark.nightly_elsewhere
def test_what_is_no_depth_model(model):
    for wrong in (None, "model.keras", keras_vit.VisionTransformer(BACKBONE)):
        with pytest.raises(TypeError, match="model must be a DPT or a LinearDepth or a MultiTaskDPT"):
            depth.estimate(wrong, PICTURE)
    fixed = model.with_config(image_size=28)
    with pytest.raises(ValueError, match="needs images of 28 x 28 pixels"):
        depth.estimate(fixed, PICTURE)
    with pytest.raises(TypeError, match="flip must be True or False"):
        depth.estimate(fixed, PICTURE, flip="no")
    assert depth.estimate(fixed, PICTURE[:28, :28]).depth.shape == (28, 28)


def test_a_plot_has_the_picture_and_a_scale(model, tmp_path):
    pytest.importorskip("matplotlib")
    result = depth.estimate(model, PICTURE)
    for metric, words in ((True, "depth in metres"), (False, "inverse depth")):
        figure = depth.plot(depth.Depth(result.depth, metric), PICTURE, tmp_path / "depth.png")
        assert len(figure.axes) == 3 and words in figure.axes[2].get_ylabel()
    assert (tmp_path / "depth.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="30 x 45 pixels, but it has 29 x 45"):
        depth.plot(result, PICTURE[1:])
    with pytest.raises(TypeError, match="result must be a Depth or a Normals, but ndarray"):
        depth.plot(result.depth, PICTURE)


def test_depth_is_written(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    values = np.random.default_rng(0).uniform(0.5, 79, (7, 9)).astype("f4")
    for metric, step in ((True, 1 / 256), (False, 79 / 65535)):
        scale, offset = depth.Depth(values, metric).save(tmp_path / "depth.png")
        with Image.open(tmp_path / "depth.png") as picture:
            levels, text = np.asarray(picture).astype("float64"), picture.text
        assert float(text["scale"]) == scale <= step and float(text["offset"]) == offset
        assert (text["unit"] == "m") == metric
        np.testing.assert_allclose(offset + scale * levels, values, rtol=0, atol=0.51 * scale)
    for name in ("depth.npy", "large.NPY"):  # to which NumPy adds an ending
        assert depth.Depth(values, False).save(tmp_path / name) == (1.0, 0.0)
        assert (tmp_path / name).is_file()
    np.testing.assert_array_equal(np.load(tmp_path / "depth.npy"), values)
    with pytest.raises(ValueError, match="0 to 255.99 m, but the depth is 5 to 790 m"):
        depth.Depth(np.array([[5, 790]], "f4"), True).save(tmp_path / "far.png")
    for value, metric in ((255.999, True), (np.nan, True), (np.nan, False), (np.inf, False)):
        with pytest.raises(ValueError, match="Write a .npy"):
            depth.Depth(np.array([[1, value]], "f4"), metric).save(tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    with pytest.raises(ValueError, match="path must end with .npy or .png"):
        depth.Depth(np.ones((2, 2), "f4"), True).save(tmp_path / "depth.jpg")


def test_the_command(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "photos/1.png", PICTURE)
    model.save("model.keras")
    given = ["--weights", "model.keras"]
    assert main(["depth", "photos/1.png", "-o", "depth.npy", *given, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["output"] == "depth.npy" and row["unit"] == "m" and row["scale"] == 1
    np.testing.assert_array_equal(np.load("depth.npy"), depth.estimate(model, PICTURE).depth)
    for arguments, message in (
        (["photos/1.png", "-o", "depth.jpg"], "must end with .npy or .png"),
        (["photos/1.png", "photos/1.png", "-o", "both"], "Two pictures"),
    ):
        assert main(["depth", *arguments, *given]) == 1
        assert message in capsys.readouterr().err


def test_a_model_of_depth_is_no_classifier_and_normalises_no_pixels_twice():
    backbone = BACKBONE.replace(include_preprocessing=True)
    model = keras_vit.LinearDepth(keras_vit.models.LinearDepthConfig(backbone=backbone, blocks=(3,)))
    with pytest.raises(TypeError, match="must be a classifier .*, but LinearDepth"):
        keras_vit.evaluation.evaluate(model, ([PICTURE], [0]), preprocess=True, progress=False)
    with pytest.raises(ValueError, match="include_preprocessing=False"):
        depth.estimate(model, PICTURE)
