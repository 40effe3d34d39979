"""Depth as a picture."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._pictures import ColourBar, colour_numbers, palette, plot_map
from keras_vit.depth.estimating import Depth
from keras_vit.preprocessing.windows import read_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(result: Depth, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """A picture beside its depth, with a scale and its unit; what is near is bright.

    Args:
        result: What `estimate` returns.
        picture: The picture, as `estimate` takes it.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `result` is no `Depth`.
        FileNotFoundError: if there is no such picture.
        ValueError: if the picture cannot be read or is of another size, or `path` has another ending.

    Examples:
        >>> figure = keras_vit.depth.plot(keras_vit.depth.estimate(depth_model, "photo.jpg"), "photo.jpg", "depth.png")
    """
    if not isinstance(result, Depth):
        raise TypeError(f"result must be a Depth, as estimate returns, but {type(result).__name__} was given.")
    pixels = read_picture(picture, 3)
    (height, width), size = result.depth.shape, pixels.shape[:2]
    if size != (height, width):
        raise ValueError(f"The picture has {size[0]} x {size[1]} pixels, but the depth {height} x {width}.")
    known = np.isfinite(result.depth)
    least, most = (float(result.depth[known].min()), float(result.depth[known].max())) if known.any() else (0.0, 0.0)
    if result.metric:
        bar = ColourBar("inferno", most, least, "depth in metres")
    else:
        bar = ColourBar("inferno", least, most, "inverse depth, without a unit:\nlarger is nearer")
    depth = np.where(known, result.depth, least)
    colours = palette(bar.scale, 256)[colour_numbers(depth, bar.first, bar.last, 256)]
    colours[~known] = 255
    tiles = [("picture", pixels.clip(0, 255).astype("uint8")), ("depth", colours)]
    return plot_map(tiles, path, side=4.4, bar=bar)
