"""Segments drawn over their picture, with a legend and names, or beside the labels of a data set."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._options import Share, checked
from keras_vit._pictures import Colour, plot_map, safe_colours
from keras_vit.preprocessing import LABEL_SETS, label_set
from keras_vit.preprocessing.images import picture_to_draw
from keras_vit.segmentation.segmenting import Segment, Segmentation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE = 7.5  # units of the longer side of the picture
_LISTED = 24  # entries of the legend
_NAMED = 0.004  # the least share of the picture that has its name written on it


@checked
def plot(
    result: Segmentation,
    picture: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    colours: str | Sequence[Colour] | None = None,
    opacity: Share = 0.55,
) -> "Figure":
    """Returns a figure of segments over their picture, with edges, names at their places and a legend by area.

    Args:
        result: What `segment` returns.
        picture: The picture, as `segment` takes it, of three channels.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.
        colours: The name of a data set (see `label_set`), or `(red, green, blue)` of each class; None: safe ones.
        opacity: Of the colours over the picture, 0..1.

    Raises ImportError without matplotlib or Pillow, OSError for files, TypeError or ValueError if an argument is wrong.

    Examples:
        >>> figure = segmentation.plot(segmentation.segment(segmenter, "photo.jpg"), "photo.jpg", "masks.png")
    """
    pixels = picture_to_draw(picture, result.map.shape)
    largest = sorted(result.segments, key=lambda segment: -segment.area)
    chosen = _colours(largest, colours)
    labels = []
    for segment in largest:
        mask = result.map == segment.id
        if mask.mean() >= _NAMED:
            row, column = _middle(mask)
            labels.append((column, row, segment.label))
    legend: list[tuple[Colour | None, str]] = []
    for segment in largest:
        score = "" if segment.score is None else f", {segment.score:.2f}"
        legend.append((chosen[segment.id], f"{segment.label}  {100 * segment.area / result.map.size:.1f} %{score}"))
    return plot_named(_painted(pixels, result.map, chosen, opacity), legend, labels, path)


def plot_named(painted: np.ndarray, legend: Sequence[Any], labels: Sequence[Any], path: Any) -> "Figure":
    """A figure of a painted picture with names at their places and a legend, cut off where it is long."""
    more = [(None, f"and {len(legend) - _LISTED} more")] if len(legend) > _LISTED else []
    return plot_map([("", painted)], path, side=_SIDE, legend=[*legend[:_LISTED], *more], labels=labels)


def plot_beside_labels(
    shown: Sequence[tuple[np.ndarray, np.ndarray, Mapping[int, int], Segmentation]], path: str | os.PathLike[str]
) -> None:
    """Writes a figure: pictures, below each its labels, and below these the segments found."""
    # `shown` has for each picture its pixels, the ids `(height, width)` of its labels, the class of each id that is
    # one, and what `segment` returned.
    pictures = [pixels.clip(0, 255).astype("uint8") for pixels, _, _, _ in shown]
    # Of other channels than three the first is shown, in grey.
    pictures = [one if one.shape[2] == 3 else np.repeat(one[..., :1], 3, axis=2) for one in pictures]
    labelled, predicted = [], []
    for picture, (_, ids, classes, found) in zip(pictures, shown, strict=True):
        labelled.append(_painted_by_class(picture, ids, classes))
        guesses = {part.id: part.label_id for part in found.segments}
        predicted.append(_painted_by_class(picture, found.map, guesses))
    tiles = [("", tile) for tile in (*pictures, *labelled, *predicted)]
    plot_map(tiles, path, title="Pictures, their labels, and what was found", columns=len(shown), side=2.0)


def _colours(segments: Sequence[Segment], colours: str | Sequence[Colour] | None) -> dict[int, Colour]:
    """Returns the colour of each segment by its id: that of its class, or where none are given colours that differ."""
    if colours is None:
        return {segment.id: colour for segment, colour in zip(segments, safe_colours(), strict=False)}
    if isinstance(colours, str) and colours not in LABEL_SETS:
        raise ValueError(f"colours must be one of {LABEL_SETS}, or a list of colours, but {colours!r} was given.")
    table = label_set(colours).colours if isinstance(colours, str) else tuple(colours)
    most = max((segment.label_id for segment in segments), default=-1)
    if most >= len(table):
        wanted = f"a colour for each class, at least {most + 1}, because the picture has class {most}"
        raise ValueError(f"colours must have {wanted}, but {len(table)} were given.")
    return {segment.id: table[segment.label_id] for segment in segments}


def _painted(pixels: np.ndarray, ids: np.ndarray, colours: dict[int, Colour], opacity: float) -> np.ndarray:
    """Returns a copy of a picture with its segments painted over, and dark edges between them."""
    numbers_there, places = np.unique(ids, return_inverse=True)  # ids of COCO's files reach into the millions
    rows = [(*colours[number], opacity) if number in colours else (0, 0, 0, 0) for number in numbers_there.tolist()]
    shown = np.array(rows, "float32")[places.reshape(ids.shape)]
    painted = pixels * (1 - shown[..., 3:]) + shown[..., :3] * shown[..., 3:]
    edges = np.zeros(ids.shape, bool)
    for axis in (0, 1):
        edges |= np.diff(ids, axis=axis, append=np.take(ids, [-1], axis)) != 0
    for _ in range(max(ids.shape) // 700):  # thicker where a pixel would not be seen
        edges[1:, 1:] |= edges[:-1, :-1]
    painted[edges] *= 0.25
    return painted.round().astype("uint8")


def _painted_by_class(pixels: np.ndarray, ids: np.ndarray, classes: Mapping[int, int]) -> np.ndarray:
    colours = tuple(itertools.islice(safe_colours(), max(classes.values(), default=0) + 1))
    ids = np.where(np.isin(ids, [*classes]), ids, -1)
    return _painted(pixels, ids, {key: colours[label] for key, label in classes.items()}, 0.7)


def _middle(mask: np.ndarray) -> tuple[int, int]:
    """Returns the row and column of a place far inside a mask, which has a pixel or more (IndexError without one)."""
    # The edge of the mask is taken off again and again until nothing would be left, on a grid of few places.
    step = max(1, max(mask.shape) // 96)
    left = mask[::step, ::step]
    if not left.any():
        left, step = mask, 1
    while True:
        around = np.pad(left, 1)
        inner = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:] & left
        if not inner.any():
            places = np.argwhere(left)
            row, column = places[len(places) // 2].tolist()
            return row * step, column * step
        left = inner
