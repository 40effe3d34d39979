"""Sliding windows: crops of pictures of any size that overlap, and maps that are put together again.

Maps are computed some rows at a time, so that memory depends on the crops and not on the picture times the classes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.interpolation import neighbours, torchvision_resized
from keras_vit.preprocessing.images import Pipeline, check_pixels, is_file, read_channels

# A function `rows(start, stop)` that computes these rows of a map, float32 `(stop - start, width, values)`: whole maps
# of many values a pixel would not fit into memory.
Rows = Callable[[int, int], np.ndarray]
_STRIP = 2**22  # values of a map that are computed at a time
DETECTOR_PICTURES = ("owlvit", "owlv2", "scenic")  # rules of `detector_pixels`


class Window(NamedTuple):
    """A crop of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, picture: np.ndarray) -> np.ndarray:
        """Returns the pixels of a picture `(height, width, ...)` that lie in it, a view."""
        return picture[self.top : self.top + self.height, self.left : self.left + self.width]


def read_picture(picture: Any, channels: int = 3) -> np.ndarray:
    """One picture `(height, width, channels)`: a file or a PIL image is read, an array or a tensor is checked."""
    pixels = read_channels(picture, channels) if is_file(picture) else picture
    pixels = check_pixels(pixels, channels, name="picture")
    if pixels.ndim != 3 or not pixels.size or pixels.shape[2] != channels:
        raise ValueError(
            f"picture must be one picture (height, width, {channels}), with pixels, but the shape {pixels.shape} "
            "was given."
        )
    return pixels


def sliding(size: tuple[int, int], crop: tuple[int, int], stride: tuple[int, int]) -> list[Window]:
    """Returns windows at distances `stride`, row by row, that cover a picture (mmsegmentation)."""
    sides = tuple(map(min, crop, size))
    starts = []
    for length, side, step in zip(size, crop, stride, strict=True):
        count = max(length - side + step - 1, 0) // step + 1
        starts.append([max(min(i * step, length - side), 0) for i in range(count)])
    return [Window(top, left, *sides) for top in starts[0] for left in starts[1]]


def spread(size: tuple[int, int], side: int) -> list[Window]:
    """The least number of square windows of a side that cover a picture whose shorter side is the same (EoMT)."""
    count = math.ceil(max(size) / side)
    overlap = (count * side - max(size)) / (count - 1) if count > 1 else 0.0
    starts = [int(i * (side - overlap)) for i in range(count)]
    return [Window(*((start, 0) if size[0] > size[1] else (0, start)), side, side) for start in starts]


def rows_of(values: np.ndarray) -> Rows:
    """Returns a function `(start, stop)` that returns these rows of an array `(height, width, values)`."""
    return lambda start, stop: values[start:stop]


def stretched(rows: Rows, old: tuple[int, int], new: tuple[int, int]) -> Rows:
    """Returns a function `(start, stop)` of the rows of a map after a bilinear resize from size `old` to `new`."""
    if tuple(old) == tuple(new):
        return rows
    # The neighbours of each new place in the old map, and how far it lies from the first one to the second.
    (top, bottom, down), (left, right, across) = map(_neighbours, old, new)
    down, across = down[:, None, None], across[:, None]

    def stretched_rows(start: int, stop: int) -> np.ndarray:
        part, first = slice(start, stop), top[start]
        needed = rows(first, bottom[stop - 1] + 1)
        upper, lower = needed[top[part] - first], needed[bottom[part] - first]
        lines = _between(upper, lower, down[part])
        return _between(lines[:, left], lines[:, right], across)

    return stretched_rows


def largest(rows: Rows, old: tuple[int, int], new: tuple[int, int], values: int) -> np.ndarray:
    """Returns which of so many values of a map, after `stretched`, is the largest at each place: int32 `(*new)`."""
    (top, bottom, down), (left, right, across) = map(_neighbours, old, new)
    found = np.empty(new, "int32")
    for start, stop in strips((new[0], max(1, old[0] * old[1] // new[0])), values):
        first = top[start]
        given = rows(first, bottom[stop - 1] + 1)
        upper, lower = top[start:stop] - first, bottom[start:stop] - first
        best = given.argmax(-1)
        above = best[upper]
        agree = above == best[lower]
        agree = agree[:, left] & agree[:, right] & (above[:, left] == above[:, right])
        found[start:stop] = above[:, left]
        places = np.argwhere(~agree)
        for part in np.array_split(places, 1 + len(places) * values // _STRIP):
            y, x = part.T
            corners = ((given[upper[y], side], given[lower[y], side]) for side in (left[x], right[x]))
            near, far = (_between(*pair, down[start + y, None]) for pair in corners)
            found[start + y, x] = _between(near, far, across[x, None]).argmax(-1)
    return found


def merged(width: int, windows: Sequence[Window], maps: Sequence[Rows]) -> Rows:
    """Returns a function `(start, stop)` of the rows of the mean of maps in overlapping windows."""

    def merged_rows(start: int, stop: int) -> np.ndarray:
        total: Any = None
        count = np.zeros((stop - start, width, 1), "float32")
        for window, rows in zip(windows, maps, strict=True):
            first, last = max(start, window.top), min(stop, window.top + window.height)
            if first < last:
                values = rows(first - window.top, last - window.top)
                if total is None:  # only now it is known how many values a place has
                    total = np.zeros((stop - start, width, values.shape[2]), "float32")
                place = slice(first - start, last - start), slice(window.left, window.left + window.width)
                total[place] += values
                count[place] += 1
        return np.divide(total, count, out=total)

    return merged_rows


def strips(size: tuple[int, int], values: int) -> Iterator[tuple[int, int]]:
    """Yields first and last row (excluded) of the parts in which a map with so many values a pixel is computed."""
    step = max(1, _STRIP // (size[1] * values))
    for start in range(0, size[0], step):
        yield start, min(start + step, size[0])


def _between(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Returns the linear mean of two arrays: `first` where the share is 0, `second` where it is 1."""
    return first + (second - first) * share


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what `neighbours` does, with float32 shares: the old places before and behind each new one, shares."""
    first, second, share = neighbours(old, new)
    return first, second, share.astype("float32")


def detector_pixels(pixels: np.ndarray, size: tuple[int, int], rule: str) -> np.ndarray:
    """A picture at the size of a detector, float32 in 0..255, by a checked name of `DetectorConfig.pictures`."""
    # `OwlViTImageProcessor` and `Owlv2ImageProcessor` of transformers 5.24; Scenic's notebook pads with grey.
    if rule == "owlvit":
        if pixels.dtype == np.uint8:
            return torchvision_resized(pixels, size, "bicubic").astype("float32")
        return Pipeline(size, filter="bicubic").resized(pixels, pixels.shape[2])[0]
    side = max(pixels.shape[:2])
    square = np.full((side, side, pixels.shape[2]), 127.5 if rule == "scenic" else 0, "float32")
    square[: pixels.shape[0], : pixels.shape[1]] = pixels
    for axis, new in enumerate(size):
        square = _blurred(square, axis, max(side / new - 1, 0) / 2)
    for axis, new in enumerate(size):
        # Places in float32, step by step as torch's `interpolate`: others are off by up to a thousandth of a level.
        at = np.maximum(
            np.float32(side / new) * (np.arange(new, dtype="float32") + np.float32(0.5)) - np.float32(0.5), 0
        )
        low = at.astype("int64")
        part = np.expand_dims(at - low.astype("float32"), tuple(range(1, 3 - axis)))
        high = np.minimum(low + 1, side - 1)
        square = square.take(low, axis) * (1 - part) + square.take(high, axis) * part
    return square


def _blurred(image: np.ndarray, axis: int, sigma: float) -> np.ndarray:
    """Returns an image blurred along an axis by a Gaussian over three deviations, mirrored at its edges."""
    radius = math.ceil(3 * sigma)
    if not radius:
        return image
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights = (weights / weights.sum()).astype("float32")
    margins = [(radius, radius) if i == axis else (0, 0) for i in range(3)]
    padded, length = np.pad(image, margins, "reflect"), image.shape[axis]
    parts = (padded.take(range(i, i + length), axis) * weight for i, weight in enumerate(weights))
    return sum(parts, np.zeros((), "float32"))
