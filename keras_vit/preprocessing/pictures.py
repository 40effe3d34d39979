"""Picture files in, pixels out; needs Pillow."""

import contextlib
import os
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from keras_vit._types import pair
from keras_vit.interpolation import METHODS
from keras_vit.preprocessing.pipeline import Pipeline
from keras_vit.preprocessing.pixels import (
    RESIZES,
    resize_as_big_vision,
    resize_as_timm,
    resize_images,
)

if TYPE_CHECKING:
    from PIL import Image


def load_image(
    file: "str | os.PathLike | BinaryIO | Image.Image",
    image_size: int | tuple[int, int] | None = None,
    *,
    resize: str = "squash",
    interpolation: str = "bilinear",
    crop_fraction: float | None = None,
    orient: bool = True,
    pipeline: Pipeline | None = None,
) -> np.ndarray:
    """Read a picture as RGB and bring it to a model's size.

    All modes become RGB as `tf.io.decode_image(channels=3)` makes them: grey is repeated, palettes are looked
    up, transparency is dropped (not blended), of 16 bits the upper 8 are kept, CMYK is converted without a
    colour profile. Of an animation the first frame is read. The pixels equal TensorFlow's, but those of JPEG
    files, where the two decoders round differently, by a few grey levels.

    Args:
        file: A path, a binary file object, or a `PIL.Image.Image` (it is not changed).
        image_size: `(height, width)` in pixels, an integer for a square, `None` for the picture's own size.
        resize: One of `RESIZES`. `"squash"` scales straight to `image_size`, as the official code does.
            `"big_vision"` and `"timm"` keep the aspect ratio: they scale the picture until it covers
            `image_size / crop_fraction` and cut out the centre; their pixels are whole numbers, as there.
        interpolation: For `"squash"`: one of `keras_vit.interpolation.METHODS`. The default is
            official: bilinear with half-pixel centres and no antialiasing, as `tf.image.resize`.
        crop_fraction: For `"big_vision"` and `"timm"`: the share of each side that the crop keeps, in (0, 1].
            `None` takes the one in `RESIZES`; timm's 384-pixel models use 1.0.
        orient: Turn the picture upright as its EXIF orientation says. The original code ignores that tag:
            `False` repeats its numbers on photographs that carry one.
        pipeline: How the family of a model brings pictures to size, as its `config.pipeline` says; then without
            `image_size`, `resize`, `interpolation` and `crop_fraction`. None for what these say.

    Returns:
        uint8 `(height, width, 3)` if `image_size` is `None`, else float32 `(*image_size, 3)` in 0..255, not
        rounded after `"squash"`. `preprocess_input` takes either.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a picture that Pillow can decode, or an argument has an unknown value.
        TypeError: if an argument has a wrong type.
        ImportError: if Pillow is not installed.

    Examples:
        >>> keras_vit.load_image("photo.jpg", 224).shape
        (224, 224, 3)
    """
    if resize not in RESIZES:
        raise ValueError(f"resize must be one of {sorted(RESIZES)}, but {resize!r} was given.")
    if interpolation not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {interpolation!r} was given.")
    if resize == "squash" and crop_fraction is not None:
        raise ValueError(f'resize="squash" does not crop: leave crop_fraction={crop_fraction!r} out.')
    if resize != "squash" and interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r}: {resize!r} brings its own. Leave it out.")
    fraction = RESIZES[resize] if crop_fraction is None else crop_fraction
    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(f"crop_fraction must lie in (0, 1], but {crop_fraction!r} was given.")
    size = None if image_size is None else pair("image_size", image_size)
    if pipeline is not None:
        if not isinstance(pipeline, Pipeline):
            kind = type(pipeline).__name__
            raise TypeError(f"pipeline must be a Pipeline, such as model.config.pipeline, but a {kind} was given.")
        if (size, resize, interpolation, crop_fraction) != (None, "squash", "bilinear", None):
            raise ValueError(
                "pipeline= says how the picture comes to which size: leave image_size, resize, interpolation and "
                "crop_fraction out, or change it with dataclasses.replace(pipeline, image_size=...)."
            )

    pixels = _read_rgb(file, orient)
    if pipeline is not None:
        return pipeline.resized(pixels)[0]
    if size is None:
        return pixels
    if resize == "squash":
        return resize_images(pixels, size, interpolation)
    return (resize_as_timm if resize == "timm" else resize_as_big_vision)(pixels, size, fraction or 1.0)


def _read_rgb(file: Any, orient: bool) -> np.ndarray:
    """Decode anything that `load_image` takes to a uint8 array `(height, width, 3)`."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError('load_image needs Pillow: pip install "keras-vit[images]".') from error

    is_path = isinstance(file, (str, os.PathLike))
    if not is_path and not isinstance(file, Image.Image) and not hasattr(file, "read"):
        hint = " To scale arrays use resize_images." if hasattr(file, "shape") else ""
        kind = type(file).__name__
        raise TypeError(f"file must be a path, a binary file object or a PIL image, not {kind}.{hint}")
    if is_path and "://" in str(file):
        hint = "Download it first: load_image(keras.utils.get_file(origin=...))."
        raise ValueError(f"file must be a local path, but the address {file!r} was given. {hint}")
    # Opened here: a missing or forbidden file keeps its own error, and all that follows is about content.
    with open(file, "rb") if is_path else contextlib.nullcontext(file) as source:
        try:
            image = source if isinstance(source, Image.Image) else Image.open(source)
            image.load()
            return _rgb(ImageOps.exif_transpose(image) if orient else image)
        except MemoryError:
            raise
        except Exception as error:  # Decoders raise errors of many kinds on damaged data.
            hint = "It may be damaged, cut short, or of a kind that Pillow does not know."
            raise ValueError(f"{str(file)!r} could not be read as a picture: {error}. {hint}") from error


def _rgb(image: "Image.Image") -> np.ndarray:
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode!r}, 32 bits, does not say what is white; scale it to 0..255 first")
    if image.mode.startswith("I;16"):  # Pillow would clip to 255; TensorFlow's decoder keeps the upper byte.
        grey = (np.asarray(image) >> 8).astype("uint8")
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Straight to RGB, Pillow warns about palettes with transparency.
    return np.array(image.convert("RGB"))
