"""How kinds of maps look, on the page as in figures; and `plot`, which makes figures of matplotlib."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import check_choice, warn_caller
from keras_vit._pictures import (
    GOOD,
    GRID,
    MUTED,
    ColourBar,
    PathLike,
    colour_numbers,
    draw_bar,
    figure_for,
    headline,
    palette,
    plot_map,
    rgb,
    tile_axes,
)
from keras_vit.inspection.attention import attention_rollout
from keras_vit.inspection.evidence import class_evidence, gradient_attention, saliency
from keras_vit.preprocessing import check_pixels, resize_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = 64  # colours of a map on a page: more cannot be told apart, and make files larger


@dataclasses.dataclass(frozen=True)
class MapKind:
    """A kind of map and how it is drawn."""

    title: str  # headline of a figure, and caption on the page
    words: str  # below it; `{:.1f}` are the ends of the scale
    compute: Callable[..., np.ndarray] | None = None  # makes the maps `(batch, rows, columns)` of a model and images
    attention: bool = False  # whether the model needs attention
    head: bool = True  # whether it needs a head that names classes
    scale: str = "inferno"  # a name in `keras_vit._pictures.SCALES`
    signed: bool = False  # whether 0 is in the middle of the scale; otherwise it is its beginning

    def ends(self, values: np.ndarray) -> tuple[float, float]:
        """Returns the values at the beginning, 0 or minus the end, and at the end of the scale.

        The end is the 99th percentile and never the largest value: one patch may outshine all others. It is at least a
        hundredth of the largest, so that rounding errors of a map of zeros stay dark, and at least 1e-12.
        """
        values = np.abs(values) if self.signed else values
        end = max(float(np.quantile(values, 0.99, method="lower")), 0.01 * float(values.max()), 1e-12)
        return (-end if self.signed else 0.0), end

    def colours(self, values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
        """Values as colours of 0..1 with an axis for the channels; `ends` are those of the scale."""
        return palette(self.scale, LEVELS)[colour_numbers(values, *ends, LEVELS)] / 255


_BRIGHT = "bright patches count most; each map has its own scale"
_EVIDENCE = "logit of the class, from {:.1f} and less (blue) over 0 (white) to {:.1f} and more (red)"
HEADS = MapKind("Where each head looks", "bright patches are read most; each map has its own scale")
FEATURES = MapKind("Which patches are alike", "principal components as red, green and blue; background is black")
# In the order of the page.
MAPS = {
    "rollout": MapKind("What the answer is made of", _BRIGHT, attention_rollout, attention=True, head=False),
    "relevance": MapKind("What speaks for the class", _BRIGHT, gradient_attention, attention=True),
    "evidence": MapKind("What each patch says for the class", _EVIDENCE, class_evidence, scale="RdBu", signed=True),
    "saliency": MapKind("Which pixels the class hangs on", "bright: a small change moves the score most", saliency),
}


def plot(
    kind: str,
    values: np.ndarray,
    images: np.ndarray | Sequence[np.ndarray] | None = None,
    path: PathLike = None,
    title: str = "",
    *,
    class_names: Sequence[str] | None = None,
    cosines: np.ndarray | None = None,
    patch: tuple[int, int, int] | None = None,
    grid_size: tuple[int, int] | None = None,
) -> "Figure":
    """Draws a result of this package's inspection functions, and returns the matplotlib figure.

    Colours of maps end at the 99th percentile of the values, for one patch may be ten times as large as all others.

    | kind | shape of the values, and the function that returns them |
    |---|---|
    | `"heads"` | `(heads, rows, columns)`, one image of `patch_attention` |
    | `"rollout"`, `"relevance"` | `(batch, rows, columns)`, `attention_rollout`, `gradient_attention` (Figures 6, 14) |
    | `"evidence"` | `(batch, rows, columns)`, `class_evidence` |
    | `"saliency"` | `(batch, height, width)`, `saliency` |
    | `"features"` | `(batch, rows, columns, 3)`, `feature_map` |
    | `"nearest"` | places `(count, 3)`, `nearest_patches` |
    | `"distance"` | `(blocks, heads)`, `mean_attention_distance` (Figure 7, right) |
    | `"filters"` | `(components, height, width, 1 or 3)`, `patch_filters` (Figure 7, left) |
    | `"positions"` | `(rows, columns, rows, columns)`, `position_similarity` (Figure 7, centre) |

    Args:
        kind: Kind of the figure, from the table.
        values: The array that the function returned.
        images: Pixels of 0..255 as the model saw them (see `shown_pixels`), `(batch, height, width, channels)`; one
            image for `"heads"`; None for the last three kinds.
        path: Path of a `.png`, `.svg` or `.pdf` file to write; None: no file is written.
        title: Title of the figure; a default if it is empty.
        class_names: Name of each image's class, for maps of images.
        cosines: For `"nearest"`: the similarities that `nearest_patches` returned, `(count,)`.
        patch: For `"nearest"`: the image, row and column of the given patch.
        grid_size: For `"nearest"`: rows and columns of patches (`model.config.grid_size`).

    Raises:
        TypeError, ValueError: if an argument is missing, does not apply to the kind, or has a wrong shape or value.
        ImportError, OSError: if matplotlib is not installed, or the file cannot be written.

    Examples:
        >>> rollout = inspection.attention_rollout(model, images)
        >>> figure = inspection.plot("rollout", rollout, pixels, "rollout.png")
    """
    check_choice("kind", kind, (*_PLOTS, *MAPS, "features"))
    of_image = kind not in _PLOTS
    draw, needed = (_draw_maps, {"images"}) if of_image else _PLOTS[kind]
    given = {"images": images, "cosines": cosines, "patch": patch, "grid_size": grid_size, "class_names": class_names}
    given = {name: value for name, value in given.items() if value is not None}
    if not needed <= given.keys() or given.keys() - needed - ({"class_names"} if of_image else set()):
        takes = ", ".join(("values", *sorted(needed)))
        raise TypeError(f"plot({kind!r}) takes {takes}, but values, {', '.join(given) or 'nothing else'} were given.")
    return draw(values, **given, path=path, title=title, **({"kind": kind} if of_image else {}))


def _draw_heads(values: np.ndarray, images: Any, path: PathLike, title: str) -> "Figure":
    attention, pixels = _array("values", values, ("heads", "rows", "columns")), _pixels(images)
    tiles = [("the image", pixels), ("mean of the heads", overlay(pixels, attention.mean(0)))]
    tiles += [(f"head {i}", overlay(pixels, one)) for i, one in enumerate(attention)]
    return plot_map(tiles, path, title=title or HEADS.title, words=HEADS.words, gap=0.12)


def _draw_maps(
    values: np.ndarray, images: Any, path: PathLike, title: str, kind: str, class_names: Any = None
) -> "Figure":
    """Draws images in rows of at most 8, each with its name above it and its map below it."""
    maps = _array("values", values, ("batch", "rows", "columns", "3")[: 4 if kind == "features" else 3])
    images = [_pixels(image) for image in images]
    for name, one, given in (("images", "an image", images), ("class_names", "a name", class_names)):
        if given is not None and len(given) != len(maps):
            raise ValueError(f"{name} must have {one} for each of {len(maps)} maps, but {len(given)} were given.")
    style, drawn, pairs = MAPS.get(kind, FEATURES), [*maps], [*zip(images, maps, strict=True)]
    words = style.words
    if kind == "saliency":
        drawn = [style.colours(one, style.ends(one)) for one in maps]
    elif kind == "evidence":
        ends = style.ends(maps)  # one scale for all maps, from blue to red, which the caption names
        words = words.format(*ends)
        shown = [style.colours(_stretched(one, image), ends) for image, one in pairs]
        drawn = [np.clip(0.72 * map_ + 0.28 * _grey(image), 0, 1) for image, map_ in zip(images, shown, strict=True)]
    elif kind != "features":
        drawn = [overlay(image, one) for image, one in pairs]
    columns, tiles = min(len(images), 8), []
    names = [""] * len(images) if class_names is None else [*class_names]
    for start in range(0, len(images), columns):
        part = slice(start, start + columns)
        gaps = [("", None)] * (columns - len(images[part]))  # after a last row of fewer images
        tiles += [*zip(names[part], images[part], strict=True), *gaps]
        tiles += [("", one) for one in drawn[part]] + gaps
    gap = 0.04 if class_names is None else 0.12
    return plot_map(tiles, path, title=title or style.title, words=words, columns=columns, gap=gap)


def _draw_distance(values: np.ndarray, path: PathLike, title: str) -> "Figure":
    distances = _array("values", values, ("blocks", "heads"))
    with figure_for(path, 7, 4.6) as figure:
        headline(figure, title or "How far each head looks", "a dot for each head; the line is their mean")
        axes = figure.add_axes((0.1, 0.13, 0.87, 0.66))
        blocks = np.arange(len(distances))
        axes.plot(blocks, distances.mean(1), color=GRID, linewidth=6, solid_capstyle="round", zorder=1)
        axes.plot(blocks, distances, "o", color=GOOD, markersize=6, alpha=0.65, markeredgewidth=0, clip_on=False)
        axes.set(xlabel="block", ylabel="mean attention distance, pixels", axisbelow=True)
        axes.set(xlim=(-0.5, len(distances) - 0.5), ylim=(0, max(float(distances.max()) * 1.08, 1e-3)))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", color=GRID)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
    return figure


def _draw_filters(values: np.ndarray, path: PathLike, title: str) -> "Figure":
    tiles = [("", one) for one in filter_pictures(values)]
    words = f"first {len(tiles)} principal components"
    return plot_map(tiles, path, title=title or "What patches are filtered for", words=words, gap=0.08, side=0.95)


def filter_pictures(filters: np.ndarray) -> np.ndarray:
    """Returns filters `(n, height, width, 1 or 3)` as pictures `(n, height, width, 3)` of 0..1, with grey for 0."""
    filters = _array("filters", filters, ("components", "height", "width", "channels"))
    if filters.shape[3] not in (1, 3):
        raise ValueError(f"filters must have 1 or 3 channels to be drawn, but {filters.shape} was given.")
    largest = np.abs(filters).max((1, 2, 3), keepdims=True)
    pictures = filters / np.where(largest > 0, largest, 1) / 2 + 0.5
    return np.broadcast_to(pictures, (*filters.shape[:3], 3))


def _draw_positions(values: np.ndarray, path: PathLike, title: str) -> "Figure":
    similarity = _array("values", values, ("rows", "columns", "rows", "columns"))
    rows, columns = similarity.shape[:2]
    width, tall = 7, 5.4 * rows / columns  # a map has the shape of the image
    height = tall + 1.7
    with figure_for(path, width, height) as figure:
        headline(figure, title or "What it knows of places", "cosine of each position's embedding with all others")
        box = (0.6 / width, 0.6 / height, 5.4 / width, tall / height)
        every = [math.ceil(count / 8) for count in (rows, columns)]  # at most 8 numbers along a side
        places = zip(np.ndindex(rows, columns), tile_axes(figure, box, rows, columns, 0.1), strict=True)
        for (row, column), axes in places:
            axes.imshow(similarity[row, column], cmap="viridis", vmin=-1, vmax=1)
            axes.spines[:].set_visible(False)
            if row == rows - 1 and column % every[1] == 0:
                axes.set_xlabel(str(column))
            if column == 0 and row % every[0] == 0:
                axes.set_ylabel(str(row), rotation=0, ha="right", va="center")
        figure.supxlabel("column of the patch", x=box[0] + box[2] / 2, y=0.12 / height, size=10, color=MUTED)
        figure.supylabel("row of the patch", x=0.12 / width, y=box[1] + box[3] / 2, size=10, color=MUTED)
        bar = ColourBar("viridis", -1, 1, ticks=(-1, 0, 1))
        draw_bar(figure.add_axes((6.2 / width, box[1], 0.14 / width, box[3])), bar)
    return figure


def _draw_nearest(
    values: np.ndarray, images: Any, cosines: Any, patch: Any, grid_size: Any, path: PathLike, title: str
) -> "Figure":
    """Draws cut-outs around a patch and its nearest ones, `values` with rows (image, row, column)."""
    near = _array("values", values, ("count", "3"))
    places, cosines = np.array([patch, *near]), _array("cosines", cosines, (str(len(near)),))
    pixels = [_pixels(image) for image in images]
    if places.dtype.kind not in "iu" or (places < 0).any() or (places >= (len(pixels), *grid_size)).any():
        raise ValueError(
            f"patch and values must be (image, row, column) of {len(pixels)} images with {grid_size[0]} x "
            f"{grid_size[1]} patches, but one lies outside."
        )
    names = ["the patch", *(f"{cosine:.2f}" for cosine in cosines)]
    tiles = [_neighbourhood(pixels[image], place, grid_size) for image, *place in places]
    title, words = title or "Patches that it takes for alike", "the patch in its frame, and the cosine"
    return plot_map([*zip(names, tiles, strict=True)], path, title=title, words=words, gap=0.22, side=1.5)


def _neighbourhood(image: np.ndarray, place: Sequence[int], grid_size: tuple[int, int]) -> np.ndarray:
    """Returns a patch in a frame, with one patch around it on every side, at least 96 pixels high; white outside."""
    height, width = (n // cells for n, cells in zip(image.shape, grid_size, strict=False))
    row, column = place
    image = np.pad(image, [(height, height), (width, width), (0, 0)], constant_values=1)
    part = image[row * height : (row + 3) * height, column * width : (column + 3) * width]
    times = math.ceil(96 / len(part))  # the frame is to be thin
    tile = part.repeat(times, 0).repeat(times, 1)
    inner = tile[times * height : 2 * times * height, times * width : 2 * times * width]
    frame = np.ones(inner.shape[:2], bool)
    frame[2:-2, 2:-2] = False
    inner[frame] = rgb(GOOD)
    return tile


def overlay(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns a map of weights in warm colours over an image in grey, `(height, width, 3)` of 0..1.

    `image` `(height, width, channels)` holds pixels of 0..255, or values of 0..1. `weights` `(rows, columns)` are at
    least 0; the largest hundredth is the brightest, as in `plot`. TypeError or ValueError for other arrays.

    Examples:
        >>> inspection.overlay(pixels[0], inspection.attention_rollout(model, images)[0]).shape
        (24, 24, 3)
    """
    image, weights = _pixels(image), _array("weights", weights, ("rows", "columns"))
    heat = _stretched(np.minimum(weights / HEADS.ends(weights)[1], 1), image)
    return np.clip(0.68 * HEADS.colours(0.04 + 0.9 * heat, (0, 1)) + 0.42 * _grey(image), 0, 1)


def _array(name: str, values: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    """Values as an array; ValueError unless they are numbers with the axes that are named, none of them empty."""
    values = np.asarray(values)
    lengths = {axis: int(axis) for axis in axes if axis.isdigit()}
    fits = values.ndim == len(axes) and all(
        length > 0 and lengths.setdefault(axis, length) == length
        for axis, length in zip(axes, values.shape, strict=True)
    )
    is_number = values.dtype.kind in "fiu"
    if not fits or not is_number:
        words = f" must be numbers ({', '.join(axes)}), but {values.dtype} {values.shape} was given."
        raise (ValueError if is_number else TypeError)(f"{name}{words}")
    return values


def _pixels(image: np.ndarray) -> np.ndarray:
    """Returns an image `(height, width, 3)` as values of 0..1, which floats of at most 1 are; others are of 0..255."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] not in (1, 3):
        raise ValueError(f"image must be (height, width, 1 or 3), but the shape {image.shape} was given.")
    if image.dtype.kind == "f" and image.min() < 0:
        raise ValueError("image must be pixels of 0..255, not negative values. Pass shown_pixels(model, images).")
    colour = np.broadcast_to(image, (*image.shape[:2], 3))  # of other than three channels, values are not checked
    is_share = image.dtype.kind == "f" and image.max() <= 1
    return colour if is_share else np.minimum(check_pixels(colour, name="image", item=lambda _: "the image") / 255, 1)


def _stretched(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    return resize_images(np.asarray(values, "float32")[..., None], image.shape[:2])[..., 0]


def _grey(image: np.ndarray) -> np.ndarray:
    return image @ np.array([0.299, 0.587, 0.114])[:, None]


_PLOTS: dict[str, tuple[Callable[..., "Figure"], set[str]]] = {
    "heads": (_draw_heads, {"images"}),
    "nearest": (_draw_nearest, {"images", "cosines", "patch", "grid_size"}),
    "distance": (_draw_distance, set()),
    "filters": (_draw_filters, set()),
    "positions": (_draw_positions, set()),
}
# Functions until 0.4: the kind, and the names of their arguments, of which the first are the values.
_OLD = {
    "plot_attention_heads": ("heads", "attention image path title"),
    "plot_attention_rollout": ("rollout", "maps images path title"),
    "plot_class_evidence": ("evidence", "maps images path title class_names"),
    "plot_feature_map": ("features", "colours images path title"),
    "plot_mean_attention_distance": ("distance", "distances path title"),
    "plot_nearest_patches": ("nearest", "places cosines patch images grid_size path title"),
    "plot_patch_filters": ("filters", "filters path title"),
    "plot_position_similarity": ("positions", "similarity path title"),
    "plot_saliency": ("saliency", "maps images path title"),
}


def old_plot(name: str) -> Callable[..., "Figure"]:
    """Returns `plot` as a function of version 0.4, with a DeprecationWarning; AttributeError for another name."""
    if name not in _OLD:
        raise AttributeError(f"module 'keras_vit.inspection' has no attribute {name!r}")
    kind, names = _OLD[name][0], _OLD[name][1].split()
    warn_caller(f"inspection.{name} is deprecated. Use inspection.plot({kind!r}, ...).", DeprecationWarning)
    signature = inspect.Signature([inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in names])
    now = {names[0]: "values", "image": "images"}

    def draw(*arguments: Any, **options: Any) -> "Figure":
        given = signature.bind_partial(*arguments, **options).arguments
        return plot(kind, **{now.get(key, key): value for key, value in given.items()})

    return draw
