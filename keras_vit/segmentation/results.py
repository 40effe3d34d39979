"""What a picture was divided into, and how that is drawn: colours over the photo, edges, names, a legend."""

import dataclasses
import itertools
import numbers
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from keras_vit._files import replacing, write_npy
from keras_vit._options import SHARE
from keras_vit._pictures import Colour, plot_map, safe_colours
from keras_vit._terminal import PlainData
from keras_vit.preprocessing import LABEL_SETS, label_set
from keras_vit.preprocessing.windows import read_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE = 7.5  # units of the longer side of the picture
_LISTED = 24  # entries of the legend
_NAMED = 0.004  # the least share of the picture that has its name written on it


@dataclasses.dataclass(frozen=True)
class Segment(PlainData):
    """A part of a picture.

    Attributes:
        id: The number that its pixels have in the map.
        label_id: Its class.
        label: What that class is called.
        score: How sure the model is, in 0..1; None where each pixel was classified by itself.
        area: The number of its pixels; of an instance those of its mask, which others may cover.

    Examples:
        >>> segmentation.Segment(id=0, label_id=2, label="sky", score=0.9, area=120).label
        'sky'
    """

    id: int
    label_id: int
    label: str
    score: float | None
    area: int


@dataclasses.dataclass(frozen=True)
class Segmentation(PlainData):
    """The segments of one picture, as `segment` returns them.

    Attributes:
        map: int32 `(height, width)`: the id of each pixel's segment, -1 for pixels in no segment; with the task
            `"semantic"` ids are classes.
        segments: A `Segment` for each, with its class and score, in the order of the model's queries or classes.
        task: `"semantic"`, `"panoptic"` or `"instance"`.

    Examples:
        >>> result = segmentation.Segmentation(np.zeros((2, 3), "int32"), (), "semantic")
        >>> result.to_dict()
        {'segments': [], 'task': 'semantic'}
    """

    map: np.ndarray
    segments: tuple[Segment, ...]
    task: str

    hidden: ClassVar[tuple[str, ...]] = ("map",)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as `.npy` (int32), or as a `.png` with an id a pixel, which appears when it is complete.

        Up to the id 254 the picture has 8 bits and a colour for each id; 255 are pixels of no segment. With more ids it
        is grey with 16 bits, and 65535 stands for them. A file that exists is replaced.

        Raises:
            ImportError: if Pillow is not installed, for `.png`.
            OSError: if the file cannot be written.
            ValueError: if `path` has another ending, or for `.png` an id is above 65534.
        """
        ending = pathlib.Path(path).suffix.lower()
        if ending not in (".npy", ".png"):
            raise ValueError(f"path must end with .npy or .png, but {os.fspath(path)!r} was given.")
        if ending == ".npy":
            write_npy(path, self.map)
            return
        from PIL import Image

        most = self.map.max(initial=-1)
        if most >= 65535:
            raise ValueError(f"A .png file holds ids up to 65534, but the map has {most}. Write a .npy file instead.")
        is_small = most < 255
        image = Image.fromarray(self.map.astype("uint8" if is_small else "uint16"))  # -1 becomes the largest number
        if is_small:
            colours = itertools.chain(itertools.islice(safe_colours(), 255), [(0, 0, 0)])
            image.putpalette([*itertools.chain(*colours)])
        with replacing(path) as temporary:
            image.save(temporary)


def label_of(names: tuple[str, ...] | None, label_id: int) -> str:
    """Returns the name of a class, or its number as text where there are no names; IndexError for too few names."""
    return str(label_id) if names is None else names[label_id]


def semantic(classes: np.ndarray, names: tuple[str, ...] | None) -> Segmentation:
    """Returns the segmentation of a map of classes `(height, width)`: a segment for each class that is there."""
    found, areas = np.unique(classes, return_counts=True)
    pairs = zip(found.tolist(), areas.tolist(), strict=True)
    segments = tuple(Segment(k, k, label_of(names, k), None, area) for k, area in pairs)
    return Segmentation(classes.astype("int32"), segments, "semantic")


def check_classes(name: str, given: Any, classes: int) -> list[int]:
    """Returns numbers of classes, one or several, sorted, each once; ValueError unless integers in 0..classes - 1."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    labels = list(given) if isinstance(given, Iterable) and given != "" else [given]
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, numbers.Integral) or not 0 <= label < classes:
            raise ValueError(f"{name} must be classes from 0 to {classes - 1}, but {labels!r} was given.")
    return sorted({*map(int, labels)})


# Plots


def plot(
    result: Segmentation,
    picture: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    colours: str | Sequence[Colour] | None = None,
    opacity: float = 0.55,
) -> "Figure":
    """Returns a figure of segments over their picture, with edges, names at their places and a legend by area.

    Args:
        result: What `segment` returns.
        picture: The picture, as `segment` takes it, of three channels.
        path: The `.png`, `.svg` or `.pdf` to write; None for none.
        colours: None for colours that people with any colour vision tell apart, the largest segments first; the name of
            a data set (see `label_set`) or `(red, green, blue)` of 0..255 for each class, by which all segments of a
            class look the same.
        opacity: Of the colours over the picture, 0..1.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed, or Pillow for a picture's file.
        OSError: if the picture cannot be opened, or the file not written.
        TypeError, ValueError: if an argument is invalid, the picture cannot be decoded or has another size, a class
            has no colour, or `path` has another ending.

    Examples:
        >>> result = segmentation.segment(segmenter, "photo.jpg")
        >>> figure = segmentation.plot(result, "photo.jpg", "masks.png")
    """
    if not isinstance(result, Segmentation):
        raise TypeError(f"result must be a Segmentation, as segment returns, but {type(result).__name__} was given.")
    SHARE("opacity", opacity)
    pixels, size = read_picture(picture).clip(0, 255).astype("uint8"), result.map.shape
    if pixels.shape[:2] != size:
        given = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(
            f"picture must be the one that was segmented, {size[0]} x {size[1]} pixels, but it has {given}."
        )
    largest = sorted(result.segments, key=lambda segment: -segment.area)
    chosen = _colours(largest, colours)
    labels = []
    for segment in largest:
        mask = result.map == segment.id
        if mask.mean() >= _NAMED:
            row, column = _middle(mask)
            labels.append((column, row, segment.label))
    legend: list[tuple[Colour | None, str]] = []
    for segment in largest[:_LISTED]:
        score = "" if segment.score is None else f", {segment.score:.2f}"
        legend.append((chosen[segment.id], f"{segment.label}  {100 * segment.area / result.map.size:.1f} %{score}"))
    if len(largest) > _LISTED:
        legend.append((None, f"and {len(largest) - _LISTED} more"))
    tiles = [("", _painted(pixels, result.map, chosen, opacity))]
    return plot_map(tiles, path, side=_SIDE, legend=legend, labels=labels)


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
        raise ValueError(
            f"colours must have a colour for each class, at least {most + 1}, because the picture has class {most}, "
            f"but {len(table)} were given."
        )
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
    """Returns a copy of a picture with the ids that have a class painted in its colour."""
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
