"""What all pictures of the package share: their colours, a figure that needs no display, a file that is whole."""

import base64
import contextlib
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import require_packages
from keras_vit._files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, FAINT = "#1b1f27", "#6b7280", "#9aa4b2"  # text, what explains it, what is compared with
AXES, GRID = "#c9ced6", "#e6e8ec"
GOOD, BAD = "#1f6feb", "#d1242f"
Colour = tuple[int, int, int]  # red, green and blue of 0..255
# Okabe and Ito's colours, which people with any kind of colour vision tell apart, without black; then lighter ones, and
# darker ones.
_SAFE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66))
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
    "svg.hashsalt": "keras_vit",  # the same picture gives the same file
}
_NO_DATE: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def safe_colours() -> Iterator[Colour]:
    """Colours that are told apart whatever one's colour vision: seven, seven lighter, seven darker, and again."""
    for white, share in itertools.cycle(((0, 0.0), (255, 0.5), (0, 0.45))):
        for colour in _SAFE:
            red, green, blue = (round(part * (1 - share) + white * share) for part in colour)
            yield red, green, blue


def need_matplotlib() -> None:
    """Checks that there is matplotlib, before a long computation whose result it is to draw.

    Raises:
        ImportError: if it is not installed (`pip install "keras-vit[plots]"`).

    Examples:
        >>> evaluation.need_matplotlib()  # silent where it is installed
    """
    require_packages("A picture", ("matplotlib",), "plots")


def page_style() -> str:
    """The style sheet of the pages that the package writes."""
    return (Path(__file__).parent / "_page.css").read_text(encoding="utf-8")


@contextlib.contextmanager
def figure_for(path: str | os.PathLike[str] | None, width: float, height: float, **options: Any) -> Iterator["Figure"]:
    """A figure of 110 x 110 pixels for each unit to draw on within the `with` statement, in the package's colours.

    At the end it is written to the path, a `.png`, `.svg` or `.pdf`, unless that is None. `options` are matplotlib's.
    """
    suffix = "" if path is None else Path(path).suffix.lower()
    if path is not None and suffix not in FORMATS:
        raise ValueError(f"path must end with one of {FORMATS}, but {os.fspath(path)!r} was given.")
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
                figure.savefig(temporary, format=suffix[1:], metadata=_NO_DATE.get(suffix, {}))


def image_address(pixels: np.ndarray, format: str = "PNG", colours: np.ndarray | None = None, **options: int) -> str:
    """An image that is part of a page: its bytes as an address. With `colours`, pixels are their numbers."""
    from PIL import Image

    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if colours is not None:
        image = image.convert("P")
        image.putpalette(colours.tobytes())
    image.save(buffer, format, optimize=True, **options)
    return f"data:image/{format.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def tile_axes(
    figure: "Figure", box: tuple[float, ...], rows: int, columns: int, gap: float, anchor: str = "C"
) -> list["Axes"]:
    """Axes without ticks in rows and columns that fill a box (left, bottom, width, height), row by row.

    The gap between two neighbours is a share of one; `anchor` says where an image of another shape stands in its place.
    """
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


def coarse(values: np.ndarray, most: int) -> np.ndarray:
    """A matrix with at most `most` rows and columns, each cell the largest value of those that it stands for.

    The mean would hide single values among a million cells; the largest one keeps them visible.
    """
    step = max(1, -(-max(values.shape) // most))
    padded = np.pad(values, [(0, -n % step) for n in values.shape])
    rows, columns = (n // step for n in padded.shape)
    return padded.reshape(rows, step, columns, step).max((1, 3))
