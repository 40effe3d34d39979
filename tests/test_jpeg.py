"""JPEG files are decoded by simplejpeg to the bytes of Pillow, or left to Pillow."""

import io
import itertools
import sys

import numpy as np
import pytest

from keras_vit import load_image
from keras_vit.preprocessing import images

Image = pytest.importorskip("PIL.Image")
simplejpeg = pytest.importorskip("simplejpeg")
pytestmark = pytest.mark.once

if images._simplejpeg() is None:
    pytest.skip("Pillow decodes with another library", allow_module_level=True)


@pytest.fixture
def decoded(monkeypatch):
    """A list that has an entry for each picture that simplejpeg decoded."""
    found, decode = [], simplejpeg.decode_jpeg

    def noting(*arguments, **options):
        pixels = decode(*arguments, **options)
        found.append(pixels.shape)
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noting)
    return found


def photo(height, width, mode="RGB"):
    """Large colours and noise, which show every rounding."""
    random = np.random.default_rng(height * width)
    colours = Image.fromarray(random.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3)).astype("uint8"))
    pixels = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels += random.integers(-12, 13, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype("uint8")).convert(mode)


def written(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(content):
    with Image.open(io.BytesIO(content)) as image:
        return np.array(image.convert("RGB"))


@pytest.mark.parametrize("size", [(33, 17), (8, 8), (1, 1), (101, 64), (75, 100)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_bytes_are_those_of_pillow(size, mode, decoded):
    kinds = list(itertools.product((0, 1, 2, "4:1:1"), (30, 95), (False, True), (0, 1)))
    for subsampling, quality, progressive, restart in kinds:
        options = {"quality": quality, "progressive": progressive, "restart_marker_rows": restart}
        content = written(photo(*size, mode), **options, subsampling=subsampling)
        np.testing.assert_array_equal(load_image(io.BytesIO(content)), by_pillow(content))
    assert len(decoded) == len(kinds)


def test_other_files_are_pillow_s(decoded, tmp_path):
    rgb = photo(24, 40)
    exif = Image.Exif()
    exif[images._ORIENTATION] = 6
    turned = written(rgb, exif=exif)
    assert load_image(io.BytesIO(turned)).shape == (40, 24, 3) and not decoded
    np.testing.assert_array_equal(load_image(io.BytesIO(turned), orient=False), by_pillow(turned))
    assert decoded.pop() and not decoded
    cmyk = written(rgb.convert("CMYK"))
    np.testing.assert_array_equal(load_image(io.BytesIO(cmyk)), by_pillow(cmyk))
    np.testing.assert_array_equal(load_image(rgb), np.asarray(rgb))  # opened by the caller
    rgb.save(tmp_path / "photo.jpg", "PNG")  # the content counts, not the name
    np.testing.assert_array_equal(load_image(tmp_path / "photo.jpg"), np.asarray(rgb))
    assert not decoded


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_file_that_is_cut_off_is_refused_in_pillow_s_words(share, tmp_path, decoded):
    content = written(photo(64, 64))
    path = tmp_path / "half.jpg"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="half.jpg' could not be read as a picture: .*truncated"):
        load_image(path)
    assert not decoded


def test_files_that_are_too_large_are_refused_before_they_are_decoded(monkeypatch, decoded):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="decompression bomb"):
        load_image(io.BytesIO(written(photo(64, 64))))
    assert not decoded


def test_file_objects_that_cannot_go_back_and_what_follows_the_picture(decoded):
    content = written(photo(16, 16))

    class Pipe(io.RawIOBase):
        def __init__(self, content=content):
            self.left = io.BytesIO(content)

        def read(self, size=-1):
            return self.left.read(size)

    np.testing.assert_array_equal(load_image(Pipe()), by_pillow(content))
    with pytest.raises(ValueError, match="not a picture"):
        load_image(Pipe(b"text" * 100))
    np.testing.assert_array_equal(load_image(io.BytesIO(content + b"more")), by_pillow(content))
    assert decoded


def test_pillow_alone(monkeypatch, decoded, tmp_path):
    """Also where simplejpeg is installed, but cannot be imported."""
    (tmp_path / "simplejpeg.py").write_text("raise ImportError('a library is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "simplejpeg")
    images._simplejpeg.cache_clear()
    content = written(photo(16, 16))
    try:
        np.testing.assert_array_equal(load_image(io.BytesIO(content)), by_pillow(content))
    finally:
        images._simplejpeg.cache_clear()
    assert not decoded
