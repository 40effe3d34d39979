"""What all pictures of the package share: colours, figures that need no display, `plot_map`, files that are whole."""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import printable, require_packages
from keras_vit._files import ending_of, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str] | None

INK, MUTED, FAINT = "#1b1f27", "#6b7280", "#9aa4b2"  # text, what explains it, what is compared with
AXES, GRID = "#c9ced6", "#e6e8ec"
GOOD, BAD = "#1f6feb", "#d1242f"
Colour = tuple[int, int, int]  # red, green and blue of 0..255
# Okabe and Ito's colours, which people with any kind of colour vision tell apart, without black; then lighter ones, and
# darker ones.
_SAFE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66))
# matplotlib's viridis and inferno (CC0), and ColorBrewer's RdBu (Apache-2.0), at equal steps.
SCALES: dict[str, tuple[str, ...]] = {
    "viridis": tuple("440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725".split()),
    "inferno": tuple("000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4".split()),
    "RdBu": tuple("053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()),
}
FORMATS = (".png", ".svg", ".pdf")
_STYLE: Any = {  # matplotlib types each key of it
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": AXES,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "svg.hashsalt": "keras_vit",  # the same picture becomes the same file
}
_NO_DATE: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_EDGE, _LINE, _LEGEND = 0.12, 0.22, 2.6  # units around a figure, of a line of a legend, and of its width


def safe_colours() -> Iterator[Colour]:
    """Yields colours that are told apart whatever one's colour vision, without end: seven, lighter and darker ones."""
    for white, share in itertools.cycle(((0, 0.0), (255, 0.5), (0, 0.45))):
        for colour in _SAFE:
            red, green, blue = (round(part * (1 - share) + white * share) for part in colour)
            yield red, green, blue


def rgb(colour: str) -> np.ndarray:
    """A colour such as `"#1f6feb"` or `"1f6feb"` as float64 `(3,)` of 0..1; ValueError for other text."""
    return np.array([int(colour[-6:][i : i + 2], 16) for i in (0, 2, 4)]) / 255


def shown(images: np.ndarray, pipeline: Any = None) -> np.ndarray:
    """Returns images `(..., channels)`, normalised by a pipeline unless that is None, as uint8 pixels `(..., 3)`."""
    # The first three channels; of fewer, the first in grey.
    if pipeline is not None:
        images = 255 * (images * np.asarray(pipeline.std) + np.asarray(pipeline.mean))
    pixels = np.clip(np.round(images), 0, 255).astype("uint8")
    return np.broadcast_to(pixels[..., : 3 if pixels.shape[-1] >= 3 else 1], (*pixels.shape[:-1], 3))


def palette(scale: str, count: int) -> np.ndarray:
    """Returns `count` colours at equal steps of a scale, uint8 `(count, 3)`; KeyError unless it is one of `SCALES`."""
    anchors = 255 * np.array([rgb(colour) for colour in SCALES[scale]])
    places = np.linspace(0, len(anchors) - 1, count)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.round(np.stack(channels, 1)).astype("uint8")


def colour_numbers(values: np.ndarray, first: float, last: float, count: int) -> np.ndarray:
    """The number of each value's colour, uint8, clipped: 0 for `first`, `count - 1` for `last`."""
    shares = (np.asarray(values, "float64") - first) / ((last - first) or 1)
    return np.round(np.clip(shares, 0, 1) * (count - 1)).astype("uint8")


def need_matplotlib() -> None:
    """Raises ImportError unless matplotlib is installed, before a long computation whose result is drawn.

    Examples:
        >>> evaluation.need_matplotlib()  # silent where it is installed
    """
    require_packages("A picture", ("matplotlib",), "plots")


@contextlib.contextmanager
def figure_for(path: PathLike, width: float, height: float, **options: Any) -> Iterator["Figure"]:
    """Yields a figure of 110 x 110 pixels for each unit of `width` and `height`, in the package's colours."""
    ending = "" if path is None else ending_of(path, *FORMATS)
    need_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=110, facecolor="white", **options)
        FigureCanvasAgg(figure)
        yield figure
        if path is not None:
            with replacing(path) as temporary:
                figure.savefig(temporary, format=ending[1:], metadata=_NO_DATE.get(ending, {}))


def tile_axes(
    figure: "Figure", box: tuple[float, ...], rows: int, columns: int, gap: float, anchor: str = "C"
) -> list["Axes"]:
    """Returns new axes without ticks, row by row, that fill a box (left, bottom, width, height) of a figure."""
    # The gap between two neighbours is a share of one; `anchor` says where an image of another shape stands in its
    # place.
    left, bottom, width, height = box
    side, fall = width / (columns + gap * (columns - 1)), height / (rows + gap * (rows - 1))
    result = []
    for row in range(rows):
        for column in range(columns):
            place = (left + column * side * (1 + gap), bottom + (rows - 1 - row) * fall * (1 + gap), side, fall)
            axes = figure.add_axes(place)
            axes.set(xticks=[], yticks=[])
            axes.set_anchor(anchor)
            result.append(axes)
    return result


@dataclasses.dataclass(frozen=True)
class ColourBar:
    """A scale beside maps: the first colour stands for the value `first`, the last for `last`, in words `label`."""

    scale: str
    first: float
    last: float
    label: str = ""
    ticks: Sequence[float] | None = None


def plot_map(
    tiles: Sequence[tuple[str, np.ndarray | None]],
    path: PathLike = None,
    *,
    title: str = "",
    words: str = "",
    columns: int = 7,
    side: float = 1.7,
    gap: float = 0.04,
    bar: ColourBar | None = None,
    legend: Sequence[tuple[Colour | None, str]] = (),
    labels: Sequence[tuple[int, int, str]] = (),
) -> "Figure":
    """Draws maps and the images that they belong to, in rows from left to right, and returns the figure."""
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    shapes = np.array([picture.shape[:2] for _, picture in tiles if picture is not None])
    tall, wide = np.maximum(side * shapes / shapes.max(1, keepdims=True), 1).max(0)  # of a tile
    width, height = columns * wide, rows * tall
    head = (0.88 if title else _EDGE) + (0.2 if any(text for text, _ in tiles) else 0)
    right = _LEGEND if legend else _EDGE
    if bar:
        right = 1.3
    whole = max(_EDGE + width + right, 5 if title else 0), max(head + height, _LINE * len(legend) + _EDGE) + _EDGE
    with figure_for(path, *whole) as figure:
        if title:
            headline(figure, title, words)
        bottom = 1 - (head + height) / whole[1]
        box = _EDGE / whole[0], bottom, width / whole[0], height / whole[1]
        gaps = [("", None)] * (rows * columns - len(tiles))
        for (text, picture), axes in zip([*tiles, *gaps], tile_axes(figure, box, rows, columns, gap), strict=True):
            if picture is None:
                axes.remove()
            else:
                axes.imshow(picture, interpolation="nearest")
                axes.spines[:].set_visible(False)
                axes.set_title(_plain(text), size=9, pad=3, color=MUTED)
        for column, row, text in labels:
            backdrop = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
            down, across = row / shapes[0][0], column / shapes[0][1]  # names at an edge are moved inside
            place = {"ha": "left" if across < 0.15 else "right" if across > 0.85 else "center"}
            place["va"] = "top" if down < 0.05 else "bottom" if down > 0.95 else "center"
            style: dict[str, Any] = {"size": 8, "color": INK, "bbox": backdrop, **place}
            figure.axes[0].text(column, row, _plain(text), **style, clip_on=True)
        left = _EDGE + width + 0.15
        if bar is not None:
            draw_bar(figure.add_axes((left / whole[0], bottom, 0.14 / whole[0], box[3])), bar)
        _draw_legend(figure, legend, left, head)
    return figure


def _draw_legend(figure: "Figure", legend: Sequence[tuple[Colour | None, str]], left: float, top: float) -> None:
    """Writes what colours stand for, a line each, from a place on, in units of 110 pixels from the upper left."""
    width, height = figure.get_figwidth(), figure.get_figheight()
    for i, (colour, text) in enumerate(legend):
        y = 1 - (top + _LINE * (i + 0.5)) / height
        if colour is None:
            figure.text(left / width, y, _plain(text), size=8, va="center", color=MUTED)
            continue
        shown = [part / 255 for part in colour]
        figure.text(left / width, y, "\u25a0", color=shown, size=11, va="center")
        figure.text((left + 0.2) / width, y, _plain(text), size=8, va="center", color=INK)


def headline(figure: "Figure", title: str, words: str) -> None:
    """Writes a title and, below it, what explains it at the top of a figure."""
    height, left = figure.get_figheight(), _EDGE / figure.get_figwidth()
    figure.text(left, 1 - 0.36 / height, _plain(title, 200), size=14, weight="bold")
    figure.text(left, 1 - 0.62 / height, _plain(words, 200), color=MUTED)


def draw_bar(axes: "Axes", bar: ColourBar) -> None:
    """Draws a scale of colours on axes, from the bottom to the top; its values are named at the right."""
    ends = (0, 1, bar.first, bar.last)  # where the first value is the larger one, the axis runs down
    axes.imshow(palette(bar.scale, 256)[:, None], extent=ends, origin="lower", aspect="auto")
    axes.set(xticks=[], ylabel=bar.label)
    if bar.ticks is not None:
        axes.set_yticks(bar.ticks)
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.spines[:].set_visible(False)


def _plain(text: str, limit: int = 40) -> str:
    """Text of at most `limit` characters on one line, in which matplotlib finds no formulas."""
    return printable(text, limit).replace("$", r"\$")


def block_maxima(values: np.ndarray, most: int) -> np.ndarray:
    """Returns a matrix in at most `most` rows and columns: cells are the largest of the values that they stand for."""
    # The mean would hide single values among a million cells.
    step = max(1, math.ceil(max(values.shape) / most))
    padded = np.pad(values, [(0, -n % step) for n in values.shape])
    rows, columns = (n // step for n in padded.shape)
    return padded.reshape(rows, step, columns, step).max((1, 3))
