"""Images in, names out: against the original evaluation code, every kind of picture, every refusal.

`golden/preprocess_small.npz` holds three pictures and what the original code made of them: every fourth pixel of
the 224-pixel references, every third of the 96-pixel ones, `vit_jax` in [-1, 1], the others in grey levels.
"""

import io
import pathlib
import sys

import keras
import numpy as np
import pytest

from keras_vit import _files
from keras_vit.interpolation import METHODS
from keras_vit.preprocessing import (
    RESIZES,
    Pipeline,
    decode_predictions,
    imagenet1k_classes,
    load_image,
    preprocess_input,
    resize_images,
)

Image = pytest.importorskip("PIL.Image")

# Keras hands torch tensors to NumPy through an `__array__` without the `copy` argument of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")

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


# The original code's pixels


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


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_by_the_pipeline_of_a_model(reference, picture):
    """timm's evaluation, said by a pipeline: the same file, cropped and not squashed."""
    image = Image.fromarray(reference[f"{picture}/uint8"])
    pipeline = Pipeline(224, resize="shortest", crop_ratio=0.9, filter="bicubic")
    pixels = load_image(encoded(image), pipeline=pipeline)
    assert pixels.shape == (224, 224, 3) and pixels.dtype == np.float32
    # Pillow 13 chooses which of the two directions comes first, which rounds otherwise: one grey level.
    assert np.abs(pixels - load_image(image, 224, resize="timm")).max() <= 1
    np.testing.assert_array_equal(pixels, pipeline.resized(reference[f"{picture}/uint8"])[0])
    for other in ({"image_size": 224}, {"resize": "timm"}, {"interpolation": "bicubic"}):
        with pytest.raises(ValueError, match="pipeline= says how"):
            load_image(image, pipeline=pipeline, **other)
    with pytest.raises(TypeError, match="pipeline must be a Pipeline"):
        load_image(image, pipeline="timm")


def test_the_three_resizes_differ(reference):
    image = Image.fromarray(reference["landscape/uint8"])
    squash, big_vision, timm = (load_image(image, 64, resize=resize) for resize in RESIZES)
    assert np.abs(squash - big_vision).max() > 20
    assert np.abs(big_vision - timm).max() > 20


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("size", [(32, 48), (48, 32), (7, 200), (1, 1)])
@pytest.mark.parametrize("source", [(40, 60), (60, 40), (1, 1), (3, 500)])
def test_any_size_to_any_size(resize, size, source, rng):
    pixels = rng.integers(0, 256, (*source, 3), dtype="uint8")
    out = load_image(Image.fromarray(pixels), size, resize=resize)
    assert out.shape == (*size, 3)
    # Means of pixels stay within their range, up to the fraction that big_vision cuts off; bicubic overshoots.
    if resize != "timm":
        assert int(pixels.min()) - 1 <= out.min() and out.max() <= int(pixels.max()) + 1e-3


# Resizing arrays


def test_resize_by_hand():
    image = np.array([[0, 100], [200, 60]], dtype="uint8")[:, :, None]
    wider = resize_images(image, (2, 4))[:, :, 0]
    np.testing.assert_array_equal(wider, [[0, 25, 75, 100], [200, 165, 95, 60]])
    corners = resize_images(image, (2, 3), "official")[:, :, 0]
    np.testing.assert_array_equal(corners, [[0, 50, 100], [200, 130, 60]])
    np.testing.assert_array_equal(resize_images(image, 1, "bilinear_antialias"), [[[90]]])


@pytest.mark.parametrize("interpolation", METHODS)
def test_resize_batch_is_resize_of_each(interpolation, rng):
    batch = rng.uniform(0, 255, (3, 10, 14, 5))
    out = resize_images(batch, (21, 4), interpolation)
    assert out.shape == (3, 21, 4, 5) and out.dtype == np.float32
    for image, resized in zip(batch, out, strict=True):
        # Sums of a few float32 products of values up to 255, perhaps in another order.
        np.testing.assert_allclose(resize_images(image, (21, 4), interpolation), resized, rtol=0, atol=1e-4)
    if interpolation != "bicubic_offset":
        np.testing.assert_allclose(resize_images(batch, (10, 14), interpolation), batch, rtol=1e-6)


def test_load_image_passes_interpolation_on(rng):
    pixels = rng.integers(0, 256, (20, 30, 3), dtype="uint8")
    for interpolation in METHODS:
        np.testing.assert_array_equal(
            load_image(Image.fromarray(pixels), 8, interpolation=interpolation),
            resize_images(pixels, 8, interpolation),
        )


@pytest.mark.parametrize(
    ("images", "size", "interpolation", "error", "message"),
    [
        (np.zeros((4, 4)), 8, "bilinear", ValueError, "images must have shape"),
        (np.zeros((0, 4, 3)), 8, "bilinear", ValueError, "images must have shape"),
        (np.zeros((4, 4, 3), "complex64"), 8, "bilinear", TypeError, "complex64"),
        ([np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], 8, "bilinear", ValueError, "equally large"),
        (np.zeros((4, 4, 3)), 0, "bilinear", ValueError, "image_size"),
        (np.zeros((4, 4, 3)), (8, -8), "bilinear", ValueError, "image_size"),
        (np.zeros((4, 4, 3)), (8, 8, 3), "bilinear", TypeError, "image_size"),
        (np.zeros((4, 4, 3)), 8.0, "bilinear", TypeError, "image_size"),
        (np.zeros((4, 4, 3)), True, "bilinear", TypeError, "image_size"),
        (np.zeros((4, 4, 3)), "8", "bilinear", TypeError, "image_size"),
        (np.zeros((4, 4, 3)), 8, "lanczos", ValueError, "interpolation must be one of .*'lanczos'"),
    ],
)
def test_resize_refusals(images, size, interpolation, error, message):
    with pytest.raises(error, match=message):
        resize_images(images, size, interpolation)


def test_numpy_integers_are_sizes():
    assert resize_images(np.zeros((4, 4, 3)), (np.int64(2), np.uint8(3))).shape == (2, 3, 3)


# Reading files


def test_every_kind_of_source_gives_the_same_pixels(tmp_path, rng):
    pixels = rng.integers(0, 256, (5, 7, 3), dtype="uint8")
    image = Image.fromarray(pixels)
    path = tmp_path / "picture.png"
    image.save(path)
    with open(path, "rb") as stream:
        for source in (str(path), path, stream, encoded(image), image):
            out = load_image(source)
            assert out.dtype == np.uint8
            np.testing.assert_array_equal(out, pixels)
    out[:] = 0  # The array is the caller's own.
    np.testing.assert_array_equal(np.asarray(image), pixels)


def grey_alpha():
    return Image.merge("LA", [Image.new("L", (4, 3), 77), Image.new("L", (4, 3), 10)])


def palette(**info):
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30] + [0] * 762)
    image.info.update(info)
    return image


def grey16():
    return Image.fromarray(np.full((3, 4), 0x4DFF, dtype="uint16"))


def rgb16_png():
    """A PNG with 16 bits in each of three channels, which Pillow reads but does not write."""
    import struct
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + struct.pack(">3H", 0x0AFF, 0x1400, 0x1E80) * 4 for _ in range(3))
    header = struct.pack(">2I5B", 4, 3, 16, 2, 0, 0, 0)
    return io.BytesIO(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("source", "colour"),
    [
        pytest.param(lambda: Image.new("1", (4, 3), 1), (255, 255, 255), id="black-and-white"),
        pytest.param(lambda: encoded(Image.new("L", (4, 3), 77)), (77, 77, 77), id="grey"),
        pytest.param(lambda: encoded(grey_alpha()), (77, 77, 77), id="grey-alpha"),
        pytest.param(lambda: encoded(grey16()), (0x4D, 0x4D, 0x4D), id="grey-16-png"),
        pytest.param(lambda: encoded(grey16(), "tiff"), (0x4D, 0x4D, 0x4D), id="grey-16-tiff"),
        pytest.param(rgb16_png, (10, 20, 30), id="rgb-16-png"),
        pytest.param(lambda: encoded(palette()), (10, 20, 30), id="palette"),
        pytest.param(lambda: encoded(palette(transparency=b"\xff\x00")), (10, 20, 30), id="palette-transparent"),
        pytest.param(lambda: encoded(palette(), "gif"), (10, 20, 30), id="gif"),
        pytest.param(lambda: encoded(Image.new("RGB", (4, 3), (10, 20, 30))), (10, 20, 30), id="rgb"),
        pytest.param(lambda: encoded(Image.new("RGBA", (4, 3), (10, 20, 30, 0))), (10, 20, 30), id="rgba"),
        pytest.param(lambda: Image.new("CMYK", (4, 3), (255, 0, 0, 0)), (0, 255, 255), id="cmyk"),
        # JPEG is lossy, but a picture of one colour comes back to within a level or two.
        pytest.param(lambda: encoded(Image.new("CMYK", (4, 3), (255, 0, 0, 0)), "jpeg"), (0, 255, 255), id="cmyk-jpeg"),
        pytest.param(
            lambda: encoded(Image.new("YCbCr", (4, 3), (100, 128, 128)), "jpeg"),
            (100, 100, 100),
            id="ycbcr-jpeg",
        ),
    ],
)
def test_every_mode_becomes_rgb(source, colour):
    out = load_image(source())
    assert out.shape == (3, 4, 3) and out.dtype == np.uint8
    assert np.abs(out.astype(int) - colour).max() <= 2
    assert load_image(source(), (8, 6)).shape == (8, 6, 3)


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    stream = encoded(frames[0], "gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(load_image(stream)[0, 0], [255, 0, 0])


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
    stream = encoded(Image.fromarray(stored), exif=exif)
    np.testing.assert_array_equal(load_image(stream), UPRIGHT[orientation](stored))
    stream.seek(0)
    np.testing.assert_array_equal(load_image(stream, orient=False), stored)
    stream.seek(0)
    image = Image.open(stream)
    np.testing.assert_array_equal(load_image(image), UPRIGHT[orientation](stored))
    assert image.size == (6, 4) and image.getexif()[0x0112] == orientation


def test_exif_orientation_of_16_bit_grey():
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = np.arange(6, dtype="uint16").reshape(2, 3) << 8
    out = load_image(encoded(Image.fromarray(stored), exif=exif))
    np.testing.assert_array_equal(out[:, :, 0], [[3, 0], [4, 1], [5, 2]])


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.png"):
        load_image(tmp_path / "nowhere.png")
    with pytest.raises((IsADirectoryError, PermissionError)):  # The second on Windows.
        load_image(tmp_path)


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "tiff"])
def test_file_cut_short(tmp_path, kind, rng):
    path = tmp_path / f"short.{kind}"
    whole = encoded(Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype="uint8")), kind).getvalue()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"short\.{kind}' could not be read as a picture"):
        load_image(path, 32)


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_file_that_is_no_picture(tmp_path, content):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.png' could not be read as a picture"):
        load_image(str(path))
    with pytest.raises(ValueError, match="could not be read as a picture"):
        load_image(io.BytesIO(content))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_do_not_say_what_is_white(tmp_path, mode):
    Image.new(mode, (4, 3), 1).save(tmp_path / "deep.tiff")
    with pytest.raises(ValueError, match=rf"deep\.tiff.*mode '{mode}', 32 bits"):
        load_image(tmp_path / "deep.tiff")


def test_picture_without_pixels():
    with pytest.raises(ValueError, match="no pixels"):
        load_image(Image.new("RGB", (0, 5)))


def test_picture_too_large_to_be_honest(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(ValueError, match="could not be read.*decompression bomb"):
        load_image(encoded(Image.new("RGB", (10, 10))))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("https://example.org/cat.png", ValueError, "local path.*get_file"),
        (np.zeros((4, 4, 3)), TypeError, "not ndarray.*resize_images"),
        (None, TypeError, "not NoneType"),
        (b"\x89PNG", TypeError, "not bytes"),
    ],
)
def test_what_is_no_file(source, error, message):
    with pytest.raises(error, match=message):
        load_image(source)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"resize": "stretch"}, ValueError, "resize must be one of .*'stretch'"),
        ({"interpolation": "cubic"}, ValueError, "interpolation must be one of .*'cubic'"),
        ({"resize": "timm", "interpolation": "official"}, ValueError, "'timm' brings its own"),
        ({"crop_fraction": 0.9}, ValueError, "does not crop"),
        ({"resize": "timm", "crop_fraction": 0.0}, ValueError, "crop_fraction must lie in"),
        ({"resize": "timm", "crop_fraction": 1.1}, ValueError, "crop_fraction must lie in"),
        ({"image_size": 0}, ValueError, "image_size"),
        ({"image_size": 1.5}, TypeError, "image_size"),
    ],
)
def test_load_image_refusals(options, error, message):
    with pytest.raises(error, match=message):
        load_image(Image.new("RGB", (4, 3)), **options)


def test_without_pillow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"keras-vit\[images\]"):
        load_image(tmp_path / "any.png")


# Pixels to [-1, 1]


def scaled(pixels):
    return (pixels.astype("float32") - np.float32(127.5)) / np.float32(127.5)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint16", "int64", "float16", "float32", "float64"])
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


def test_preprocess_ends_of_the_range():
    pixels = np.array([[[0, 127.5, 255]]])
    np.testing.assert_array_equal(preprocess_input(pixels), [[[-1, 0, 1]]])


def test_preprocess_pil_images(rng):
    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    images = [Image.fromarray(p) for p in pixels]
    np.testing.assert_array_equal(preprocess_input(images), scaled(pixels))
    np.testing.assert_array_equal(preprocess_input(images[0]), scaled(pixels[0]))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bfloat16", "float16"])
def test_preprocess_tensors_of_the_backend(dtype, rng):
    pixels = rng.integers(0, 256, (2, 5, 4, 3))
    tensor = keras.ops.convert_to_tensor(pixels.astype("float32"), dtype=dtype)
    out = preprocess_input(tensor)
    assert type(out) is type(tensor) and keras.backend.standardize_dtype(out.dtype) == "float32"
    # A compiler may multiply by 1 / 127.5 instead: one unit in the last place of values up to 1. bfloat16 and
    # float16 hold every whole number up to 256.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(out), scaled(pixels), rtol=0, atol=2e-7)


def test_preprocess_symbolic_tensors(rng):
    inputs = keras.Input((None, None, 3), dtype="uint8")
    outputs = preprocess_input(inputs)
    assert isinstance(outputs, keras.KerasTensor) and outputs.dtype == "float32"
    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    out = keras.Model(inputs, outputs).predict(pixels, verbose=0)
    np.testing.assert_allclose(out, scaled(pixels), rtol=0, atol=2e-7)


def test_preprocess_in_tf_data(backend, rng):
    if backend != "tensorflow":
        pytest.skip("about TensorFlow")
    import tensorflow as tf

    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    data = tf.data.Dataset.from_tensor_slices(pixels).batch(2)
    np.testing.assert_allclose(next(iter(data.map(preprocess_input))), scaled(pixels), rtol=0, atol=2e-7)

    unknown_rank = data.map(lambda x: tf.py_function(lambda y: y, [x], "uint8")).map(preprocess_input)
    np.testing.assert_allclose(next(iter(unknown_rank)), scaled(pixels), rtol=0, atol=2e-7)

    with pytest.raises(ValueError, match="images must have shape"):
        data.map(lambda x: preprocess_input(x[..., :2]))


def test_preprocess_when_compiled(backend, rng):
    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    if backend == "jax":
        import jax

        out = jax.jit(preprocess_input)(pixels)
    elif backend == "tensorflow":
        import tensorflow as tf

        out = tf.function(preprocess_input)(tf.constant(pixels))
    else:
        pytest.skip("torch.compile needs a C++ compiler")
    np.testing.assert_allclose(out, scaled(pixels), rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, 5, 4), "channels seem to come first"),
        ((2, 3, 5, 4), "channels seem to come first"),
        ((2, 5, 4, 1), "Repeat the grey channel"),
        ((5, 4, 4), "Drop alpha"),
        ((5, 4, 2), "but"),
        ((5, 3), "but"),
        ((3,), "but"),
        ((), "but"),
        ((1, 2, 5, 4, 3), "but"),
    ],
)
def test_preprocess_refuses_other_shapes(shape, hint):
    pixels = np.full(shape, 100.0, dtype="float32")
    with pytest.raises(ValueError, match=f"images must have shape .*{hint}"):
        preprocess_input(pixels)
    with pytest.raises(ValueError, match=f"images must have shape .*{hint}"):
        preprocess_input(keras.ops.convert_to_tensor(pixels))


@pytest.mark.parametrize("dtype", ["complex64", "bool", "U3", "O"])
def test_preprocess_refuses_other_dtypes(dtype):
    with pytest.raises(TypeError, match="images must hold integers or floats"):
        preprocess_input(np.zeros((2, 5, 4, 3), dtype=dtype))


def test_preprocess_refuses_other_things():
    with pytest.raises(TypeError, match="integers or floats"):
        preprocess_input("cat.png")
    with pytest.raises(TypeError, match="integers or floats"):
        preprocess_input(None)
    with pytest.raises(TypeError, match="integers or floats"):
        preprocess_input(keras.ops.zeros((5, 4, 3), dtype="bool"))
    with pytest.raises(ValueError, match="equally large.*load_image"):
        preprocess_input([np.zeros((5, 4, 3)), np.zeros((4, 5, 3))])


@pytest.mark.parametrize("value", [-1, 256, 65535])
def test_preprocess_refuses_integers_that_are_no_pixels(value):
    pixels = np.full((5, 4, 3), 9, dtype="int32")
    pixels[0, 0, 0] = value
    with pytest.raises(ValueError, match=f"values in 0..255.*{value}"):
        preprocess_input(pixels)


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (4095.0, "0 to 4095"), (-129.0, "-129 to 0")],
)
def test_preprocess_refuses_floats_that_are_no_pixels(value, message):
    pixels = np.zeros((5, 4, 3))
    pixels[0, 0, 0] = value
    with pytest.raises(ValueError, match=f"values in 0..255.*{message}"):
        preprocess_input(pixels)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0.2, 0.7), (-1, -0.5)])
def test_preprocess_warns_of_floats_that_are_scaled_already(low, high):
    pixels = np.linspace(low, high, 60, dtype="float32").reshape(5, 4, 3)
    with pytest.warns(UserWarning, match=r"Multiply values in \[0, 1\] by 255") as caught:
        out = preprocess_input(pixels)
    assert caught[0].filename == __file__  # It points at the caller.
    np.testing.assert_array_equal(out, scaled(pixels))


def test_preprocess_is_silent_where_it_cannot_tell():
    preprocess_input(np.zeros((5, 4, 3)))  # A black picture; warnings are errors here.
    preprocess_input(np.ones((5, 4, 3), dtype="uint8"))
    preprocess_input(np.full((5, 4, 3), 260.0))  # Bicubic resizing overshoots.
    preprocess_input(np.full((5, 4, 3), -30.0))
    assert preprocess_input(np.zeros((0, 5, 4, 3))).shape == (0, 5, 4, 3)


# Classes to names


def test_imagenet1k_classes():
    classes = imagenet1k_classes()
    ids, names = zip(*classes, strict=True)
    assert len(classes) == 1000
    assert list(ids) == sorted(set(ids))
    assert all(len(i) == 9 and i[0] == "n" and i[1:].isdigit() for i in ids)
    assert all(name == name.strip() and name and "_" not in name and "," not in name for name in names)
    spots = {0: "tench", 207: "golden retriever", 281: "tabby", 388: "giant panda", 999: "toilet tissue"}
    assert {i: names[i] for i in spots} == spots
    assert ids[0] == "n01440764" and ids[207] == "n02099601" and ids[999] == "n15075141"
    assert sorted({name for name in names if names.count(name) > 1}) == ["crane", "maillot"]
    assert imagenet1k_classes() is classes


def test_decode_imagenet1k():
    probabilities = np.zeros((2, 1000), dtype="float32")
    probabilities[0, [207, 281, 0]] = 0.5, 0.25, 0.125
    probabilities[1, 999] = 1
    first, second = decode_predictions(probabilities, top=3)
    assert first == [
        ("n02099601", "golden retriever", 0.5),
        ("n02123045", "tabby", 0.25),
        ("n01440764", "tench", 0.125),
    ]
    assert second[0] == ("n15075141", "toilet tissue", 1.0)
    assert [entry[1] for entry in second[1:]] == ["tench", "goldfish"]  # Equal scores: by index.
    assert all(type(score) is float for *_, score in first)
    assert [len(entries) for entries in decode_predictions(probabilities)] == [5, 5]
    assert len(decode_predictions(probabilities[:1], top=np.int64(1000))[0]) == 1000
    assert decode_predictions(probabilities[:0]) == []


def test_decode_given_names():
    probabilities = [[0.25, 0.75], [1.0, 0.0]]
    assert decode_predictions(probabilities, top=1, class_names=["cat", "dog"]) == [
        [("class_1", "dog", 0.75)],
        [("class_0", "cat", 1.0)],
    ]
    pairs = [("n1", "cat"), ("n2", "dog")]
    assert decode_predictions(probabilities, 2, pairs)[0] == [("n2", "dog", 0.75), ("n1", "cat", 0.25)]
    assert decode_predictions(probabilities, 1, np.array(["cat", "dog"]))[0][0][1] == "dog"
    thousand = [f"thing {i}" for i in range(1000)]
    assert decode_predictions(np.eye(1000)[:1], 1, thousand) == [[("class_0", "thing 0", 1.0)]]


def test_decode_without_names():
    assert decode_predictions(np.array([[0, 2, 1]]), top=2) == [
        [("class_1", "class_1", 2.0), ("class_2", "class_2", 1.0)]
    ]
    logits = np.zeros((1, 21843), dtype="float32")
    logits[0, 123] = 7
    with pytest.warns(UserWarning, match="ImageNet-21k.*class_names") as caught:
        assert decode_predictions(logits, top=1) == [[("class_123", "class_123", 7.0)]]
    assert caught[0].filename == __file__
    names = [str(i) for i in range(21843)]
    assert decode_predictions(logits, top=1, class_names=names) == [[("class_123", "123", 7.0)]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decode_tensors_of_the_backend(dtype):
    probabilities = keras.ops.convert_to_tensor([[0.25, 0.75]], dtype=dtype)
    assert decode_predictions(probabilities, 1) == [[("class_1", "class_1", 0.75)]]


def test_decode_the_output_of_a_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    outputs = model(np.ones((2, 4), dtype="float32"))  # In torch, a tensor that carries gradients.
    assert len(decode_predictions(outputs, top=3)) == 2


@pytest.mark.parametrize(
    ("probabilities", "options", "error", "message"),
    [
        (np.zeros(10), {}, ValueError, r"\(10,\).*probabilities\[None\]"),
        (np.zeros((1, 10, 2)), {}, ValueError, r"\(batch, classes\)"),
        (np.array([[0, np.nan]]), {"top": 1}, ValueError, "finite"),
        (np.array([[0, np.inf]]), {"top": 1}, ValueError, "finite"),
        (np.zeros((1, 10)), {"top": 0}, ValueError, "top must lie between 1 .* 10, but 0"),
        (np.zeros((1, 4)), {}, ValueError, "top must lie between 1 .* 4, but 5"),
        (np.zeros((1, 10)), {"top": 2.0}, TypeError, "top must be an integer"),
        (np.zeros((1, 10)), {"top": True}, TypeError, "top must be an integer"),
        (np.zeros((1, 10)), {"class_names": ["a"] * 9}, ValueError, "each of the 10 classes, but it names 9"),
        (np.zeros((1, 10)), {"class_names": "a"}, TypeError, "class_names must be a list"),
        (np.zeros((1, 10)), {"class_names": {}}, TypeError, "class_names must be a list"),
        (np.zeros((1, 10)), {"class_names": 10}, TypeError, "class_names must be a list"),
        (np.zeros((1, 10)), {"class_names": list(range(10))}, TypeError, "names or .* pairs, but 0"),
        (np.zeros((1, 10)), {"class_names": [("a", "b", "c")] * 10}, TypeError, "pairs, but"),
        (np.zeros((1, 10)), {"class_names": [(1, "b")] * 10}, TypeError, "pairs, but"),
    ],
)
def test_decode_refusals(probabilities, options, error, message):
    with pytest.raises(error, match=message):
        decode_predictions(probabilities, **options)


# Where the data lies


def test_weights_folder(monkeypatch, tmp_path):
    assert (_files.weights_folder() / "imagenet1k_classes.tsv").is_file()

    package = tmp_path / "keras_vit"
    package.mkdir()
    monkeypatch.setattr(_files, "__file__", str(package / "_files.py"))
    with pytest.raises(FileNotFoundError, match="Reinstall"):
        _files.weights_folder()
    (tmp_path / "weights").mkdir()
    assert _files.weights_folder() == tmp_path.resolve() / "weights"  # A source checkout.
    (package / "weights").mkdir()
    assert _files.weights_folder() == package.resolve() / "weights"  # A wheel.
