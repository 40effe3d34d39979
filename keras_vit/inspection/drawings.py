"""How maps are drawn, which figures and the page have in common; and the pictures of the page, inside its own text.

Needs Pillow for the latter, and never matplotlib.
"""

import base64
import dataclasses
import io
from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

# matplotlib's viridis and inferno (CC0), and ColorBrewer's RdBu (Apache-2.0), at equal steps.
SCALES: dict[str, tuple[str, ...]] = {
    "viridis": tuple("440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725".split()),
    "inferno": tuple("000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4".split()),
    "RdBu": tuple("053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f".split()),
}
LEVELS = 64  # colours of a map: more cannot be told apart, and make files larger
SMALL = 64  # pixels: images up to this size are shown as squares of pixels, and stored without loss


@dataclasses.dataclass(frozen=True)
class MapStyle:
    """How a kind of map is drawn, in figures and on the page.

    Attributes:
        title: Headline of a figure.
        words: What is said below it.
        caption: What the page says below a picture; `{:.1f}` is its largest value.
        scale: A name in `SCALES`.
        signed: Whether 0 is in the middle of the scale; otherwise it is its beginning.
        quantile: Share of the values that the scale reaches.
    """

    title: str
    words: str
    caption: str
    scale: str = "inferno"
    signed: bool = False
    quantile: float = 1.0

    def largest(self, values: np.ndarray) -> float:
        """The value at the end of the scale."""
        return max(float(np.quantile(np.abs(values) if self.signed else values, self.quantile)), 1e-12)

    def colours(self, values: np.ndarray, largest: float) -> np.ndarray:
        """Values as colours of 0..1, with an axis for the channels."""
        shares = (np.asarray(values) / largest + 1) / 2 if self.signed else np.asarray(values) / largest
        return palette(self.scale)[np.round(np.clip(shares, 0, 1) * (LEVELS - 1)).astype("int64")] / 255

    def address(self, values: np.ndarray) -> str:
        """A map as a picture of the page."""
        largest = self.largest(values)
        return map_picture(values, self.scale, -largest if self.signed else 0, largest)


_BRIGHT = "bright patches count most, each map by its own largest"
STYLES = {
    "heads": MapStyle("Where each head looks", "bright patches are read most; each map by its own largest", ""),
    "rollout": MapStyle("What the answer is made of", _BRIGHT, "attention rollout: what the answer is made of"),
    "relevance": MapStyle("What speaks for the class", _BRIGHT, "gradient × attention: what speaks for the class"),
    "evidence": MapStyle(
        "What each patch says for the class",
        "logit of the class, from {:.1f} (blue) over 0 (white) to {:.1f} (red)",
        "evidence: logit of each patch alone, -{0:.1f} (blue) to {0:.1f} (red)",
        "RdBu",
        signed=True,
    ),
    "saliency": MapStyle(
        "Which pixels the class hangs on",
        "bright: a small change moves the score most",
        "saliency: pixels that move the score",
        quantile=0.99,  # a few pixels have gradients far above all others
    ),
}


def filter_pictures(filters: np.ndarray) -> np.ndarray:
    """Filters as pictures of 0..1: 0 is the middle grey, and the largest value of each is black or white.

    Raises:
        ValueError: if there are other channels than 1 or 3.
    """
    filters = np.asarray(filters)
    if filters.ndim != 4 or 0 in filters.shape or filters.shape[3] not in (1, 3):
        raise ValueError(
            "filters must have 1 or 3 channels to be seen, (components, height, width, channels), but "
            f"{filters.shape} was given."
        )
    largest = np.abs(filters).max((1, 2, 3), keepdims=True)
    pictures = filters / np.where(largest > 0, largest, 1) / 2 + 0.5
    return np.broadcast_to(pictures, (*filters.shape[:3], 3))


def picture(pixels: np.ndarray) -> str:
    """The address of an image that is part of the page.

    Args:
        pixels: `(height, width, 3)`, uint8.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    if max(image.size) <= SMALL:
        return _address(image, "PNG")
    return _address(image, "JPEG", quality=88)


def map_picture(values: np.ndarray, scale: str, least: float, largest: float) -> str:
    """The address of a map with a pixel for each value.

    Args:
        values: `(rows, columns)`.
        scale: A name in `SCALES`.
        least: The value that has the scale's first colour.
        largest: The value that has its last colour.
    """
    from PIL import Image

    places = np.clip((np.asarray(values, "float64") - least) / max(largest - least, 1e-12), 0, 1)
    image = Image.fromarray(np.round(places * (LEVELS - 1)).astype("uint8"), "L")
    image = image.convert("P")
    image.putpalette(palette(scale).tobytes())
    return _address(image, "PNG")


def mosaic(tiles: np.ndarray, columns: int, scale: str = "", gap: int = 1) -> str:
    """The address of one image with tiles in rows and columns, on a transparent ground.

    Args:
        tiles: `(count, height, width)` with values of -1..1 for `scale`, or without it `(count, height, width, 3)` with
            values of 0..1.
        columns: Tiles in a row.
        scale: A name in `SCALES`.
        gap: Pixels between tiles.
    """
    from PIL import Image

    if scale:
        places = np.round(np.clip(tiles / 2 + 0.5, 0, 1) * (LEVELS - 1)).astype("uint8")
        tiles = palette(scale)[places]
    else:
        tiles = np.round(np.clip(tiles, 0, 1) * 255).astype("uint8")
    count, height, width = tiles.shape[:3]
    rows = -(-count // columns)
    ground = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), "uint8")
    for place, tile in enumerate(tiles):
        y, x = place // columns * (height + gap), place % columns * (width + gap)
        ground[y : y + height, x : x + width, :3] = tile
        ground[y : y + height, x : x + width, 3] = 255
    return _address(Image.fromarray(ground, "RGBA"), "PNG")


def distance_chart(distances: np.ndarray) -> str:
    """How far each head looks, by depth, as SVG in the colours of the page.

    Args:
        distances: `(blocks, heads)` in pixels.
    """
    width, height, left, below, above = 640, 300, 52, 44, 12
    blocks, most = len(distances), max(float(distances.max()) * 1.06, 1e-6)
    step = _step(most)
    across = (width - left - 16) / max(blocks, 1)

    def x(block: float) -> float:
        return left + (block + 0.5) * across

    def y(value: float) -> float:
        return above + (height - above - below) * (1 - value / most)

    parts = []
    for tick in np.arange(0, most, step):
        parts.append(f'<line class="rule" x1="{left}" x2="{width - 16}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    every = -(-blocks // 16)
    for block in range(0, blocks, every):
        parts.append(f'<text x="{x(block):.1f}" y="{height - below + 20}" text-anchor="middle">{block}</text>')
    line = " ".join(f"{x(block):.1f},{y(float(heads.mean())):.1f}" for block, heads in enumerate(distances))
    parts.append(f'<polyline class="mean" points="{line}"/>')
    for block, heads in enumerate(distances):
        for head, value in enumerate(heads):
            title = f"<title>block {block}, head {head}: {value:.1f} pixels</title>"
            parts.append(f'<circle cx="{x(block):.1f}" cy="{y(float(value)):.1f}" r="4">{title}</circle>')
    middle = above + (height - above - below) / 2
    parts.append(f'<text x="{left + (width - left - 16) / 2:.0f}" y="{height - 6}" text-anchor="middle">block</text>')
    parts.append(
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        "mean attention distance, pixels</text>"
    )
    words = escape(f"Mean attention distance of {distances.shape[1]} heads in each of {blocks} blocks, in pixels")
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">{"".join(parts)}</svg>'


def _step(most: float) -> float:
    """A round distance between the lines of a chart that goes up to `most`: four to ten of them."""
    power = 10.0 ** np.floor(np.log10(most))
    return next(float(power * factor) for factor in (0.1, 0.2, 0.25, 0.5, 1, 2) if most / (power * factor) <= 7)


def palette(scale: str) -> np.ndarray:
    """`(LEVELS, 3)`, uint8."""
    anchors = np.array([[int(colour[i : i + 2], 16) for i in (0, 2, 4)] for colour in SCALES[scale]], "float64")
    places = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.round(np.stack(channels, 1)).astype("uint8")


def _address(image: "Image.Image", kind: str, **options: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
