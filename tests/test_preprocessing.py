"""Images in, names out: against the original evaluation code, every kind of picture, every refusal.

`golden/preprocess_small.npz` holds three pictures and what the original code made of them: every fourth pixel of
the 224-pixel references, every third of the 96-pixel ones, `vit_jax` in [-1, 1], the others in grey levels.
"""

import io
import itertools
import pathlib
import sys

import numpy as np
import pytest

from keras_vit.interpolation import METHODS
from keras_vit.preprocessing import (
    FILTERS,
    Pipeline,
    check_pixels,
    decode_predictions,
    imagenet1k_classes,
    imagenet21k_classes,
    load_image,
    preprocess_input,
    resize_images,
    sample_image,
)
from keras_vit.preprocessing.images import read_channels, read_picture

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.once

PICTURES = ("landscape", "portrait", "square")


@pytest.fixture(scope="module")
def reference():
    with np.load(pathlib.Path(__file__).parent / "golden" / "preprocess_small.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def encoded(image, kind="png", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize(("size", "stride"), [(224, 4), (96, 3)])
def test_default_is_the_official_evaluation(reference, picture, size, stride):
    image = Image.fromarray(reference[f"{picture}/uint8"])
    pixels = preprocess_input(load_image(encoded(image), size))
    assert pixels.shape == (size, size, 3) and pixels.dtype == np.float32
    # TensorFlow's sampling positions are float32: 1e-5 source pixels off, times steps of up to 2 a pixel.
    # Measured: 2.4e-5.
    np.testing.assert_allclose(pixels[::stride, ::stride], reference[f"{picture}/vit_jax_{size}"], rtol=0, atol=5e-5)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bv_224", {}),
        ("bv_256_224", {"resize": "big_vision"}),
        ("timm_bicubic_0.9", {"resize": "timm"}),
        ("timm_bicubic_1.0", {"resize": "timm", "crop_fraction": 1.0}),
    ],
)
def test_other_evaluations_within_one_grey_level(reference, picture, name, options):
    pixels = load_image(Image.fromarray(reference[f"{picture}/uint8"]), 224, **options)
    assert pixels.shape == (224, 224, 3) and pixels.dtype == np.float32
    # One level: TensorFlow's area means of equal pixels can fall just below a whole number and lose it to the
    # cast to uint8, and bv_224 is `squash` after that cast. The rest is float32's share, measured 4.2e-4.
    difference = np.abs(pixels[::4, ::4] - reference[f"{picture}/{name}"].astype("float32"))
    assert difference.max() <= 1.001
    if options:
        np.testing.assert_array_equal(pixels, np.round(pixels))
        assert np.mean(difference > 0.5) < 0.2  # Measured up to 0.14; rounding instead of cutting off gives half.


@pytest.mark.parametrize("interpolation", METHODS)
def test_resize_batch_is_resize_of_each(interpolation, rng):
    batch = rng.uniform(0, 255, (3, 10, 14, 5))
    out = resize_images(batch, (np.int64(21), np.uint8(4)), interpolation)
    assert out.shape == (3, 21, 4, 5) and out.dtype == np.float32
    for image, resized in zip(batch, out, strict=True):
        # Sums of a few float32 products of values up to 255, perhaps in another order.
        np.testing.assert_allclose(resize_images(image, (21, 4), interpolation), resized, rtol=0, atol=1e-4)
    if interpolation != "bicubic_offset":
        np.testing.assert_allclose(resize_images(batch, (10, 14), interpolation), batch, rtol=1e-6)
    pixels = rng.integers(0, 256, (20, 30, 3), dtype="uint8")
    loaded = load_image(Image.fromarray(pixels), 8, interpolation=interpolation)
    np.testing.assert_array_equal(loaded, resize_images(pixels, 8, interpolation))


@pytest.mark.parametrize("filter", [name for name, (_, pillow) in FILTERS.items() if pillow])
def test_filters_are_pillows_with_and_without_it(filter, rng, monkeypatch):
    """To the byte, the width first, at sizes where Pillow 13 would begin with the height of some."""
    method = getattr(Image.Resampling, FILTERS[filter][1])
    sides = [(90, 31), (31, 90), (64, 64), (200, 7), (1, 5), (120, 119), (1, 3)]
    pairs = [*itertools.product(sides, sides), *rng.integers(1, 150, (20, 2, 2)).tolist()]
    cases = [(rng.integers(0, 256, (2, *source, 3), dtype="uint8"), tuple(size)) for source, size in pairs]
    expected = []
    for batch, size in cases:
        images = [Image.fromarray(image).resize((size[1], image.shape[0]), method) for image in batch]
        expected.append([np.asarray(image.resize(size[::-1], method)) for image in images])
    for blocked in (False, True):
        if blocked:
            monkeypatch.setitem(sys.modules, "PIL", None)
        for (batch, size), wanted in zip(cases, expected, strict=True):
            found = Pipeline(size, filter=filter).resized(batch)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, wanted, f"{batch.shape} to {size}")


def palette(**info):
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30] + [0] * 762)
    image.info.update(info)
    return image


GREY_ALPHA = Image.merge("LA", [Image.new("L", (4, 3), 77), Image.new("L", (4, 3), 10)])
GREY_16 = Image.fromarray(np.full((3, 4), 0x4DFF, dtype="uint16"))
CMYK = Image.new("CMYK", (4, 3), (255, 0, 0, 0))
MODES = {
    "black and white": (Image.new("1", (4, 3), 1), (255, 255, 255)),
    "grey and alpha": (encoded(GREY_ALPHA), (77, 77, 77)),
    "grey of 16 bits, PNG": (encoded(GREY_16), (0x4D, 0x4D, 0x4D)),
    "grey of 16 bits, TIFF": (encoded(GREY_16, "tiff"), (0x4D, 0x4D, 0x4D)),
    "palette, transparent": (encoded(palette(transparency=b"\xff\x00")), (10, 20, 30)),
    "GIF": (encoded(palette(), "gif"), (10, 20, 30)),
    "RGBA": (encoded(Image.new("RGBA", (4, 3), (10, 20, 30, 0))), (10, 20, 30)),
    "CMYK": (CMYK, (0, 255, 255)),
    # JPEG is lossy, but an image of one colour comes back to within a level or two.
    "CMYK, JPEG": (encoded(CMYK, "jpeg"), (0, 255, 255)),
    "YCbCr, JPEG": (encoded(Image.new("YCbCr", (4, 3), (100, 128, 128)), "jpeg"), (100, 100, 100)),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode):
    source, colour = MODES[mode]
    out = load_image(source)
    assert out.shape == (3, 4, 3) and out.dtype == np.uint8
    assert np.abs(out.astype(int) - colour).max() <= 2


# What turns the stored picture upright, for each EXIF orientation (EXIF 2.32, table of tag 0x0112).
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation(orientation, rng):
    stored = rng.integers(0, 256, (4, 6, 3), dtype="uint8")
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(stored), exif=exif).getvalue()
    np.testing.assert_array_equal(load_image(io.BytesIO(content)), UPRIGHT[orientation](stored))
    np.testing.assert_array_equal(load_image(io.BytesIO(content), orient=False), stored)
    grey = encoded(Image.fromarray(stored[..., 0]), exif=exif)
    np.testing.assert_array_equal(read_channels(grey, 1)[..., 0], UPRIGHT[orientation](stored)[..., 0])


def test_files_of_other_channels(tmp_path, rng, monkeypatch):
    """One picture, as for `segment`, has the channels that the model has; what is missing is named."""
    pixels = rng.integers(0, 256, (6, 5, 4), "uint8")
    for channels, shown in ((1, pixels[..., 0]), (4, pixels), (3, pixels[..., :3])):
        path = tmp_path / f"{channels}.png"
        Image.fromarray(shown).save(path)
        np.testing.assert_array_equal(read_picture(str(path), channels), shown.reshape(6, 5, channels))
    with pytest.raises(ValueError, match="must be a local path"):
        read_channels("https://example.org/grey.png", 1)
    with pytest.raises(TypeError, match="file must be a path"):
        read_channels(pixels, 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"1.png' with 1 channels needs Pillow, which is not installed: pip install"):
        read_channels(tmp_path / "1.png", 1)
    with pytest.raises(ImportError, match=r"keras-vit-zoo\[images\]"):
        load_image(tmp_path / "any.png")


def cut_short(kind):
    whole = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype="uint8")), kind)
    return whole.getvalue()[: len(whole.getvalue()) // 2]


BROKEN = {kind: cut_short(kind) for kind in ("png", "jpeg", "gif", "tiff")} | {
    "empty": b"",
    "deep": encoded(Image.new("I", (4, 3), 1), "tiff").getvalue(),
    "floats": encoded(Image.new("F", (4, 3), 1), "tiff").getvalue(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_no_images(tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    words = {"deep": ".*mode 'I' [(]fractions or", "floats": ".*mode 'F' [(]fractions or"}.get(name, "")
    with pytest.raises(ValueError, match=rf"{name}' could not be read as a picture{words}"):
        load_image(str(tmp_path / name), 32)
    with pytest.raises(ValueError, match="^The given file object could not be read as a picture"):
        load_image(io.BytesIO(BROKEN[name]))
    with pytest.raises(ValueError, match="^The given image could not be read as a picture: mode 'F'"):
        load_image(Image.new("F", (8, 8)))


def scaled(pixels):
    return (pixels.astype("float32") - np.float32(127.5)) / np.float32(127.5)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "float64"])
def test_preprocess_numpy(dtype, rng):
    pixels = rng.integers(0, 256, (2, 5, 4, 3)).astype(dtype)
    before = pixels.copy()
    out = preprocess_input(pixels)
    assert type(out) is np.ndarray and out.dtype == np.float32
    np.testing.assert_array_equal(out, scaled(pixels))  # The same float32 arithmetic, hence no tolerance.
    np.testing.assert_array_equal(pixels, before)
    np.testing.assert_array_equal(preprocess_input(pixels[0]), out[0])
    np.testing.assert_array_equal(preprocess_input(list(pixels)), out)
    np.testing.assert_array_equal(preprocess_input(pixels.tolist()), out)


GOOD = np.full((2, 4, 5, 3), 90.0, "float32")


def with_value(value, dtype="float32"):
    images = GOOD.astype(dtype)
    images[1, 2, 2, 0] = value
    return images


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (with_value(np.nan), ValueError, "image 1 of x holds NaN"),
        (with_value(-129), ValueError, "from -129 to 90. .* image 1 of x"),
        (np.moveaxis(GOOD, -1, 1), ValueError, "channels seem to come first"),
        (GOOD[..., :1], ValueError, "Repeat the grey channel"),
        (np.zeros((2, 4, 4, 4)), ValueError, r"Drop alpha: images\[..., :3\]"),
        ([GOOD[0], GOOD[0, :3]], ValueError, "equally large.*load_image"),
        (GOOD > 0, TypeError, "dtype is bool"),
        (b"\x89PNG", TypeError, "Decode encoded images first: load_image.io.BytesIO"),
        (np.array(["a.png"]), TypeError, "dtype is <U5"),
        ("cat.png", TypeError, "integers or floats"),
    ],
)
def test_what_are_no_pixels(images, error, message):
    for scaled in ("warn", "raise"):
        with pytest.raises(error, match=message):
            check_pixels(images, name="x", scaled=scaled)
    with pytest.raises(error):
        preprocess_input(images)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GOOD / 255, r"scaled already. Pass images \* 255"),
        (GOOD / 127.5 - 1, r"scaled already. Pass \(images \+ 1\) \* 127.5"),
        (np.ones((2, 4, 4, 3), "int64"), "scaled already"),
        (np.linspace(-2, 2.6, 96).reshape(2, 4, 4, 3), "standardised"),
    ],
)
def test_scaled_pixels_are_not_trained_on(images, message):
    with pytest.raises(ValueError, match=message):
        check_pixels(images, scaled="raise")


def test_preprocess_warns_of_floats_that_are_scaled_already():
    pixels = np.linspace(-1, 1, 60, dtype="float32").reshape(5, 4, 3)
    with pytest.warns(UserWarning, match=r"Multiply values in \[0, 1\] by 255") as caught:
        out = preprocess_input(pixels)
    assert caught[0].filename == __file__  # It points at the caller.
    preprocess_input(np.ones((5, 4, 3), dtype="uint8"))  # no warning, nor of black, nor of what a filter overshoots
    for images in (GOOD * 0, with_value(260), with_value(-30)):
        check_pixels(images, scaled="raise")
    np.testing.assert_array_equal(out, scaled(pixels))


def test_imagenet1k_classes():
    classes = imagenet1k_classes()
    ids, names = zip(*classes, strict=True)
    assert len(classes) == 1000
    assert list(ids) == sorted(set(ids))
    assert all(name == name.strip() and name and "_" not in name and "," not in name for name in names)
    spots = {0: "tench", 207: "golden retriever", 281: "tabby", 388: "giant panda", 999: "toilet tissue"}
    assert {i: names[i] for i in spots} == spots
    assert ids[0] == "n01440764" and ids[207] == "n02099601" and ids[999] == "n15075141"
    assert sorted({name for name in names if names.count(name) > 1}) == ["crane", "maillot"]
    assert imagenet1k_classes() is classes


def test_imagenet21k_classes():
    """The order is that of the ids; weights/README.md has the published lists that say so."""
    ids, names = zip(*imagenet21k_classes(), strict=True)
    assert len(ids) == 21843 and list(ids) == sorted(set(ids))
    assert all(name == name.strip() and name and "_" not in name and "," not in name for name in names)
    # ImageNet's release of autumn 2011 lacks the last two.
    spots = {0: ("n00004475", "organism"), 2264: ("n02099601", "golden retriever")}
    spots |= {9205: ("n03931044", "picture"), 15027: ("n09859684", "bleacher")}
    assert {i: (ids[i], names[i]) for i in spots} == spots
    assert set(imagenet1k_classes()) - set(imagenet21k_classes()) == {("n04399382", "teddy")}
    sure = np.zeros((1, 21843), dtype="float32")
    sure[0, 2264] = 1
    assert decode_predictions(sure, top=1) == [[("n02099601", "golden retriever", 1.0)]]
    given = [str(i) for i in range(21843)]
    assert decode_predictions(sure, top=1, class_names=given) == [[("class_2264", "2264", 1.0)]]


def test_decode_imagenet1k():
    probabilities = np.zeros((2, 1000), dtype="float32")
    probabilities[0, [207, 281, 0, 1]] = 0.5, 0.25, 0.1875, 0.0625
    probabilities[1, 999] = 1
    one, second = decode_predictions(probabilities, top=3)
    assert one == [("n02099601", "golden retriever", 0.5), ("n02123045", "tabby", 0.25), ("n01440764", "tench", 0.1875)]
    assert second[0] == ("n15075141", "toilet tissue", 1.0)
    assert [entry[1] for entry in second[1:]] == ["tench", "goldfish"]  # Equal scores: by index.
    assert len(decode_predictions(probabilities[:1], top=np.int64(1000))[0]) == 1000
    assert decode_predictions(probabilities[:0]) == []


def test_decode_given_names():
    probabilities = [[0.25, 0.75], [1.0, 0.0]]
    best = [[("class_1", "dog", 0.75)], [("class_0", "cat", 1.0)]]
    for names in (["cat", "dog"], np.array(["cat", "dog"])):
        assert decode_predictions(probabilities, top=1, class_names=names) == best
    pairs = [("n1", "cat"), ("n2", "dog")]
    assert decode_predictions(probabilities, 2, pairs)[0] == [("n2", "dog", 0.75), ("n1", "cat", 0.25)]
    assert decode_predictions(np.array([[0, 0.75, 0.25]]), top=1) == [[("class_1", "class_1", 0.75)]]


def test_several_labels_above_a_threshold():
    names = ["cat", "dog", "old"]
    for threshold, expected in ((0.5, [["old", "cat"], []]), ([0.9, 0.2, 0.5], [["old", "dog"], []])):
        decoded = decode_predictions([[0.8, 0.3, 0.9], [0.1, 0.1, 0.1]], 3, names, threshold=threshold)
        assert [[name for _, name, _ in row] for row in decoded] == expected


@pytest.mark.parametrize("scores", [[[0.5, 3.5]], [[0.25, 0.75], [0.9, 0.9]]])
def test_scores_that_are_no_probabilities(scores):
    """They come back as they are, as from keras.applications."""
    words = r"do not sum to 1, but to .*softmax\(logits\).*classifier_activation"
    with pytest.warns(UserWarning, match=words) as caught:
        assert decode_predictions(scores, top=1)[0] == [("class_1", "class_1", scores[0][1])]
    assert caught[0].filename == __file__


PICTURE, TEN = Image.new("RGB", (4, 3)), np.zeros((1, 10))
REFUSED = [
    (resize_images, (np.zeros((4, 4)), 8), {}, ValueError, "images must have shape"),
    (resize_images, (np.zeros((4, 4, 3)), 8, "lanczos"), {}, ValueError, "interpolation must be one of .*'lanczos'"),
    (load_image, ("no/where.png",), {}, FileNotFoundError, "where.png"),
    (load_image, ("https://example.org/cat.png",), {}, ValueError, "local path.*get_file"),
    (load_image, (np.zeros((4, 4, 3)),), {}, TypeError, "ndarray was given.*resize_images"),
    (load_image, (b"\x89PNG",), {}, TypeError, "bytes was given. Pass io.BytesIO"),
    (load_image, (Image.new("RGB", (0, 5)),), {}, ValueError, "no pixels"),
    (load_image, (PICTURE,), {"resize": "stretch"}, ValueError, "resize must be one of .*'stretch'"),
    (load_image, (PICTURE,), {"resize": "timm", "interpolation": "official"}, ValueError, "is for runs with"),
    (load_image, (PICTURE,), {"crop_fraction": 0.9}, ValueError, "is for the resize 'big_vision', 'timm'"),
    (load_image, (PICTURE,), {"resize": "timm"}, ValueError, "runs with image_size: give image_size="),
    (load_image, (PICTURE,), {"image_size": 8, "resize": "timm", "crop_fraction": 1.1}, ValueError, "crop_fraction"),
    (decode_predictions, (np.zeros(10),), {}, ValueError, r"\(10,\).*probabilities\[None\]"),
    (decode_predictions, (np.array([[0, np.nan]]),), {"top": 1}, ValueError, "finite"),
    (decode_predictions, (TEN,), {"top": 11}, ValueError, "top must lie between 1 .* 10, but 11"),
    (decode_predictions, (TEN,), {"class_names": ["a"] * 9}, ValueError, "each of the 10 classes, but it names 9"),
    (decode_predictions, (TEN,), {"class_names": list(range(10))}, TypeError, "names or .* pairs, but 0"),
]


@pytest.mark.parametrize(("function", "given", "options", "error", "message"), REFUSED)
def test_refusals(function, given, options, error, message):
    with pytest.raises(error, match=message):
        function(*given, **options)


def test_a_sample_picture_that_is_not_there_names_those_that_are():
    assert load_image(sample_image()).shape == (192, 192, 3)
    with pytest.raises(ValueError, match=r"'character\.png', 'digit\.png'.*'cat\.png'"):
        sample_image("cat.png")
