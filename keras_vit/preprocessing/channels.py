"""Image files whose channels are not red, green and blue."""

import contextlib
import functools
import os
from typing import Any

import numpy as np

from keras_vit._arguments import require_packages


def read_channels(file: Any, channels: int) -> np.ndarray:
    """The values of an image file as it has them, `(height, width, channels)`: uint8, uint16, float32 ...

    TIFF files may have their channels first, as satellites' do. Other files are read by Pillow: for one channel as grey
    of 8 or more bits, for four with transparency.

    Raises:
        ImportError: if tifffile is needed and missing.
        FileNotFoundError: if there is no such file.
        ValueError: if the file has other channels, or cannot be read.
    """
    name, is_path = repr(str(file)), isinstance(file, (str, os.PathLike))
    read = functools.partial(_read_picture, mode={1: "L", 4: "RGBA"}.get(channels, "RGB"))
    if is_path and str(file).lower().endswith((".tif", ".tiff")):
        require_packages(f"{name} with {channels} channels", ("tifffile",), "tiff")
        import tifffile

        read = tifffile.imread
    # Opened here: a missing file keeps its own error, and all that follows is about content.
    with open(file, "rb") if is_path else contextlib.nullcontext(file) as source:
        try:
            pixels = read(source)
        except Exception as error:  # as decoders do: of many kinds
            raise ValueError(f"{name} could not be read as a picture: {error}. Is it damaged?") from error
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim == 3 and pixels.shape[-1] != channels == pixels.shape[0]:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[-1] != channels:
        raise ValueError(f"{name} has the shape {pixels.shape}, but {channels} channels are wanted.")
    return pixels


def _read_picture(source: Any, mode: str) -> np.ndarray:
    """The values of an image that Pillow opens, converted to `mode` unless a channel has more than 8 bits."""
    from PIL import Image

    image = source if isinstance(source, Image.Image) else Image.open(source)
    wide = image.mode.startswith(("I", "F"))
    return np.asarray(image if wide else image.convert(mode))
