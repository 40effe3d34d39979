"""A ledger of pixels: what each publisher's own processor makes of six awkward pictures, as hashes, and ours beside it.

`tests/golden/pixels.json` has the hashes, made by the publishers' packages and no code of this one:

    python -m tests.checkpoints.test_pixel_ledger      # in the environment of CONTRIBUTING.md, with open_clip_torch

Here ours is compared with them. Where the packages are installed, the hashes are those that they give today.
"""

import hashlib
import importlib
import importlib.metadata
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from keras_vit.preprocessing import Pipeline

Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]  # theirs
FILE = Path(__file__).resolve().parents[1] / "golden" / "pixels.json"
HASHES = json.loads(FILE.read_text(encoding="utf-8"))["hashes"] if FILE.exists() else {}
PICTURES = ("odd sizes", "grey", "CMYK", "EXIF", "alpha", "16 bit")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
SQUARE = {"size": {"height": 32, "width": 32}}
CROP = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
CROPPED = {"resize": "shortest", "crop_ratio": 32 / 36, "crop_rounding": "floor", "filter": "bicubic"}
MEANS = {f"image_{key}": IMAGENET[key] for key in IMAGENET}
# Of transformers: module, class and arguments; then how a model of this package says the same.
TRANSFORMERS = {
    "ViT": ("vit", "ViTImageProcessor", SQUARE, {**HALF, "filter": "bilinear_pillow"}),
    "CLIP": ("clip", "CLIPImageProcessor", CROP, {**CLIP, **CROPPED}),
    "DINOv2": ("bit", "BitImageProcessor", {**CROP, **MEANS, "resample": 3}, {**IMAGENET, **CROPPED}),
    "SigLIP": ("siglip", "SiglipImageProcessor", {**SQUARE, "resample": 3}, {**HALF, "filter": "bicubic"}),
}
OURS = {name: row[3] for name, row in TRANSFORMERS.items()} | {
    "timm": {**IMAGENET, "resize": "shortest", "crop_ratio": 0.9, "filter": "bicubic"},
    "open_clip": {**IMAGENET, "resize": "shortest", "filter": "bicubic"},
}
# Where ours decides otherwise: as theirs sees the picture, it gives the same pixels.
UPRIGHT, EIGHT_BITS = "ours turns the picture upright", "ours keeps the upper 8 bits; theirs cuts at 255, nearly white"
DECIDED = {("timm", "EXIF"): UPRIGHT, ("open_clip", "EXIF"): UPRIGHT}
DECIDED |= {(name, "16 bit"): EIGHT_BITS for name in OURS if name != "open_clip"}
# open_clip converts to RGB after it has resized: up to so many grey levels, and nearly white for 16 bits.
LATE = {("open_clip", "CMYK"): 2, ("open_clip", "alpha"): 7, ("open_clip", "16 bit"): 255}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_pictures(tmp_path_factory.mktemp("pictures"))


def save_pictures(folder):
    """Whole numbers alone, so that every machine has the same: waves with noise, 77 x 113 pixels."""
    rows, columns, channels = np.mgrid[:77, :113, :3]
    waves = abs((rows * (5 + channels) + columns * (7 - 2 * channels)) % 400 - 200)
    rgb = (waves + (rows * rows * 31 + columns * columns * 17 + rows * columns * (channels + 3)) % 41).astype("uint8")
    grey, alpha = rgb[..., 0], (columns[..., :1] * 2).astype("uint8")
    turned = Image.Exif()
    turned[0x112] = 6
    Image.fromarray(rgb).save(folder / "odd sizes.png")
    Image.fromarray(grey).save(folder / "grey.png")
    Image.fromarray(np.concatenate([rgb, rgb[..., :1] // 3], -1), "CMYK").save(folder / "CMYK.tif")
    Image.fromarray(rgb).save(folder / "EXIF.png", exif=turned)
    Image.fromarray(np.concatenate([rgb, alpha], -1)).save(folder / "alpha.png")
    Image.fromarray(grey.astype("uint16") * 257 - 60).save(folder / "16 bit.png")
    return folder


def file_of(folder, picture):
    return folder / f"{picture}.{'tif' if picture == 'CMYK' else 'png'}"


def processor(name):
    """The publisher's own, from a file to an array `(32, 32, 3)`; a test is skipped where it is not installed."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
        family, kind, options, _ = TRANSFORMERS[name]
        module = f"transformers.models.{family}.image_processing_pil_{family}"
        try:
            theirs = getattr(importlib.import_module(module), f"{kind}Pil")(**options)
        except ImportError as error:
            pytest.skip(str(error))
        load_image = importlib.import_module("transformers.image_utils").load_image
        return lambda path: np.moveaxis(np.asarray(theirs(load_image(str(path)))["pixel_values"][0]), 0, -1)
    package = pytest.importorskip(name, exc_type=Exception)
    if name == "timm":
        transform = package.data.create_transform((3, 32, 32), interpolation="bicubic", crop_pct=0.9, **IMAGENET)
        return lambda path: np.moveaxis(transform(Image.open(path).convert("RGB")).numpy(), 0, -1)
    transform = package.image_transform(32, is_train=False, **IMAGENET)
    return lambda path: np.moveaxis(transform(Image.open(path)).numpy(), 0, -1)


def grey_levels(name, prepared):
    """What was normalised, as whole numbers again: all of these processors resize in 8 bits."""
    values = (np.asarray(prepared, "float64") * OURS[name]["std"] + OURS[name]["mean"]) * 255
    levels = np.rint(values)
    assert np.abs(values - levels).max() < 0.01
    return levels.astype("uint8")


def digest(name, prepared):
    return hashlib.sha256(grey_levels(name, prepared).tobytes()).hexdigest()


def ours(name, picture):
    return Pipeline(32, **OURS[name])(picture).reshape(32, 32, 3)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("name", OURS)
def test_ours_beside_the_hashes(name, picture, folder):
    path, expected = file_of(folder, picture), HASHES[name][picture]
    if (name, picture) in LATE:
        pytest.skip("no hash of ours can be theirs; test_theirs compares where it is installed")
    if (name, picture) in DECIDED:
        assert digest(name, ours(name, path)) != expected
        with Image.open(path) as opened:  # neither turned nor shifted
            pixels = np.asarray(opened)
        path = pixels if pixels.ndim == 3 else np.repeat(pixels.clip(max=255)[..., None], 3, -1).astype("uint8")
    assert digest(name, ours(name, path)) == expected


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("name", OURS)
def test_theirs(name, picture, folder):
    path = file_of(folder, picture)
    theirs = processor(name)(path)
    assert digest(name, theirs) == HASHES[name][picture]
    if (name, picture) in LATE:
        apart = np.abs(grey_levels(name, theirs).astype(int) - grey_levels(name, ours(name, path)))
        assert 0 < apart.max() <= LATE[name, picture]


def main():
    packages = ("pillow", "transformers", "timm", "open_clip_torch", "torchvision")
    with tempfile.TemporaryDirectory() as folder:
        files = {picture: file_of(save_pictures(Path(folder)), picture) for picture in PICTURES}
        hashes = {name: {key: digest(name, processor(name)(path)) for key, path in files.items()} for name in OURS}
    about = "SHA-256 of 32 x 32 x 3 grey levels that the publishers' processors make of six pictures"
    made_by = {package: importlib.metadata.version(package) for package in packages}
    FILE.write_text(json.dumps({"about": about, "made_by": made_by, "hashes": hashes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
