"""Depth as a picture."""

import os
from typing import TYPE_CHECKING, Any

from keras_vit._pictures import MUTED, figure_for
from keras_vit.depth.estimating import Depth
from keras_vit.preprocessing.windows import read_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE = 4.4  # units of the longer side of each of the two pictures
_WORDS = {True: "depth in metres", False: "inverse depth, without a unit: larger is nearer"}


def plot(result: Depth, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """A picture beside its depth, with a scale and its unit; what is near is bright.

    Args:
        result: What `estimate` gives.
        picture: The picture, as `estimate` takes it.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `result` is no `Depth`.
        ValueError: if the picture is of another size, or `path` has another ending.

    Examples:
        >>> figure = keras_vit.depth.plot(keras_vit.depth.estimate(depth_model, "photo.jpg"), "photo.jpg", "depth.png")
    """
    if not isinstance(result, Depth):
        raise TypeError(f"result must be a Depth, as estimate gives, but {type(result).__name__} was given.")
    pixels = read_picture(picture, 3)
    (height, width), size = result.depth.shape, pixels.shape[:2]
    if size != (height, width):
        raise ValueError(f"The picture has {size[0]} x {size[1]} pixels, but the depth {height} x {width}.")
    scale = _SIDE / max(height, width)
    wide, tall = max(width * scale, 1.0), max(height * scale, 1.0)
    whole = (2 * wide + 1.5, tall + 0.75)
    with figure_for(path, *whole) as figure:
        for i, (values, title) in enumerate(
            ((pixels.clip(0, 255).astype("uint8"), "picture"), (result.depth, "depth"))
        ):
            box = ((0.15 + i * (wide + 0.15)) / whole[0], 0.3 / whole[1], wide / whole[0], tall / whole[1])
            axes = figure.add_axes(box, xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(title, size=10, color=MUTED)
            drawn = axes.imshow(values, cmap="inferno_r" if result.metric else "inferno", aspect="auto")
        bar = figure.add_axes(((2 * wide + 0.45) / whole[0], 0.3 / whole[1], 0.14 / whole[0], tall / whole[1]))
        figure.colorbar(drawn, cax=bar, label=_WORDS[result.metric]).outline.set_visible(False)
        if result.metric:
            bar.invert_yaxis()
    return figure
