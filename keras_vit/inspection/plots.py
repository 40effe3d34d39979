"""Pictures of the arrays of this room: every function gives a matplotlib figure, and writes a file if asked to.

All raise ImportError if matplotlib is not installed, and ValueError if shapes do not fit or `path` has another ending.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit._pictures import GOOD, GRID, MUTED, figure_for, tile_axes
from keras_vit.inspection.drawings import STYLES, MapStyle, filter_pictures
from keras_vit.preprocessing import check_pixels, resize_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str] | None


def plot_attention_heads(attention: np.ndarray, image: np.ndarray, path: PathLike = None, title: str = "") -> "Figure":
    """Each head's attention laid over an image, beside the image and the mean of the heads.

    Args:
        attention: `(heads, rows, columns)`: one image of `patch_attention`.
        image: `(height, width, channels)`, pixels of 0..255 as the model saw them (see `shown_pixels`).
        path: A `.png`, `.svg` or `.pdf` to write; it appears when it is complete. None for none.
        title: The headline; a default where it is empty.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if shapes do not fit, or the path has another ending.

    Examples:
        >>> heads = inspection.patch_attention(model, images)[0]
        >>> figure = inspection.plot_attention_heads(heads, pixels[0], "heads.png")
    """
    attention = _array("attention", attention, ("heads", "rows", "columns"))
    pixels = _pixels(image)
    tiles = [("the image", pixels), ("mean of the heads", overlay(pixels, attention.mean(0)))]
    tiles += [(f"head {i}", overlay(pixels, one)) for i, one in enumerate(attention)]
    return _figure_of_tiles(tiles, min(len(tiles), 7), STYLES["heads"], path, title, gap=0.12)


def plot_attention_rollout(
    maps: np.ndarray, images: np.ndarray | Sequence[np.ndarray], path: PathLike = None, title: str = ""
) -> "Figure":
    """Images, and below each the patches that its answer is made of (Figures 6 and 14).

    Args:
        maps: `(batch, rows, columns)`, of `attention_rollout` or `gradient_attention`.
        images: `(batch, height, width, channels)`, pixels of 0..255 as the model saw them.
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> rollout = inspection.attention_rollout(model, images)
        >>> figure = inspection.plot_attention_rollout(rollout, pixels, "rollout.png")
    """
    maps = _array("maps", maps, ("batch", "rows", "columns"))
    images = _same_length(maps, images)
    return _figure_of_maps([overlay(*pair) for pair in zip(images, maps, strict=True)], images, "rollout", path, title)


def plot_mean_attention_distance(distances: np.ndarray, path: PathLike = None, title: str = "") -> "Figure":
    """How far each head looks, by depth (Figure 7, right).

    Args:
        distances: `(blocks, heads)` in pixels, of `mean_attention_distance`.
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> distances = inspection.mean_attention_distance(model, images)
        >>> figure = inspection.plot_mean_attention_distance(distances, "distance.png")
    """
    distances = _array("distances", distances, ("blocks", "heads"))
    with figure_for(path, 7, 4.6) as figure:
        _headline(figure, title or "How far each head looks", "a dot for each head; the line is their mean")
        axes = figure.add_axes((0.1, 0.13, 0.87, 0.66))
        blocks = np.arange(len(distances))
        axes.plot(blocks, distances.mean(1), color=GRID, linewidth=6, solid_capstyle="round", zorder=1)
        for heads in distances.T:
            axes.plot(blocks, heads, "o", color=GOOD, markersize=6, alpha=0.65, markeredgewidth=0, clip_on=False)
        axes.set(xlabel="block", ylabel="mean attention distance, pixels")
        axes.set_ylim(0, max(float(distances.max()) * 1.08, 1e-3))
        axes.set_xlim(-0.5, len(distances) - 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
    return figure


def plot_patch_filters(filters: np.ndarray, path: PathLike = None, title: str = "") -> "Figure":
    """The principal components of the filters that see pixels (Figure 7, left).

    Args:
        filters: `(components, height, width, channels)` with 1 or 3 channels, of `patch_filters`.
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> figure = inspection.plot_patch_filters(inspection.patch_filters(model, 4), "filters.png")
    """
    pictures = filter_pictures(filters)
    style = MapStyle("What patches are filtered for", f"first {len(pictures)} principal components", "")
    return _figure_of_tiles([("", one) for one in pictures], min(len(pictures), 7), style, path, title, 0.08, side=0.95)


def plot_position_similarity(similarity: np.ndarray, path: PathLike = None, title: str = "") -> "Figure":
    """For each place a map: how alike its position embedding is to that of every place (Figure 7, centre).

    Args:
        similarity: `(rows, columns, rows, columns)`, cosines, of `position_similarity`.
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> figure = inspection.plot_position_similarity(inspection.position_similarity(small), "positions.png")
    """
    similarity = _array("similarity", similarity, ("rows", "columns", "rows", "columns"))
    rows, columns = similarity.shape[:2]
    across = 5.4 / columns
    down = across * rows / columns  # a map has the shape of the image
    width, height = columns * across + 1.5, rows * down + 1.7
    with figure_for(path, width, height) as figure:
        _headline(figure, title or "What it knows of places", "cosine of each position's embedding with all others")
        box = (0.55 / width, 0.6 / height, columns * across / width, rows * down / height)
        for (row, column), axes in zip(
            np.ndindex(rows, columns), tile_axes(figure, box, rows, columns, 0.1), strict=True
        ):
            drawn = axes.imshow(similarity[row, column], cmap="viridis", vmin=-1, vmax=1)
            axes.spines[:].set_visible(False)
            if row == rows - 1 and _is_labelled(column, columns):
                axes.set_xlabel(str(column))
            if column == 0 and _is_labelled(row, rows):
                axes.set_ylabel(str(row), rotation=0, ha="right", va="center")
        figure.text(box[0] + box[2] / 2, 0.12 / height, "column of the patch", ha="center", color=MUTED)
        figure.text(0.12 / width, box[1] + box[3] / 2, "row of the patch", va="center", rotation=90, color=MUTED)
        bar = figure.add_axes((box[0] + box[2] + 0.22 / width, box[1], 0.12 / width, box[3]))
        figure.colorbar(drawn, cax=bar, ticks=[-1, 0, 1]).outline.set_visible(False)
        bar.tick_params(length=0)
    return figure


def plot_saliency(maps: np.ndarray, images: np.ndarray, path: PathLike = None, title: str = "") -> "Figure":
    """Images, and below each the pixels that its class hangs on.

    Args:
        maps: `(batch, height, width)`, of `saliency`.
        images: As for `plot_attention_rollout`.
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> figure = inspection.plot_saliency(inspection.saliency(model, images), pixels, "saliency.png")
    """
    maps = _array("maps", maps, ("batch", "height", "width"))
    images, style = _same_length(maps, images), STYLES["saliency"]
    return _figure_of_maps([style.colours(one, style.largest(one)) for one in maps], images, "saliency", path, title)


def plot_class_evidence(
    maps: np.ndarray,
    images: np.ndarray,
    path: PathLike = None,
    title: str = "",
    class_names: Sequence[str] | None = None,
) -> "Figure":
    """Images, and below each what the head says of every patch by itself.

    Args:
        maps: `(batch, rows, columns)`, of `class_evidence`.
        images: As for `plot_attention_rollout`.
        path: As for `plot_attention_heads`.
        title: Likewise.
        class_names: What the class of each image is called; None for no names.

    Returns:
        The figure.

    Raises:
        ImportError, ValueError: as for `plot_attention_heads`, and if there is not a name for each image.

    Examples:
        >>> evidence = inspection.class_evidence(model, images)
        >>> figure = inspection.plot_class_evidence(evidence, pixels, "evidence.png")
    """
    maps = _array("maps", maps, ("batch", "rows", "columns"))
    images, style = _same_length(maps, images), STYLES["evidence"]
    names = [""] * len(images) if class_names is None else [_plain(name) for name in class_names]
    if len(names) != len(images):
        raise ValueError(f"class_names must name the class of each of the {len(images)} images, but got {len(names)}.")
    largest = style.largest(maps)
    drawn = [
        np.clip(0.72 * style.colours(_stretched(one, image), largest) + 0.28 * _grey(image), 0, 1)
        for image, one in zip(images, maps, strict=True)
    ]
    style = dataclasses.replace(style, words=style.words.format(-largest, largest))
    return _figure_of_maps(drawn, images, style, path, title, names)


def plot_nearest_patches(
    places: np.ndarray,
    cosines: np.ndarray,
    patch: tuple[int, int, int],
    images: np.ndarray,
    grid_size: tuple[int, int],
    path: PathLike = None,
    title: str = "",
) -> "Figure":
    """A patch and those that the model takes for most alike, each with what lies around it.

    Args:
        places: `(count, 3)`, of `nearest_patches`.
        cosines: `(count,)`, likewise.
        patch: Image, row and column of the given patch.
        images: `(batch, height, width, channels)`, pixels of 0..255 as the model saw them.
        grid_size: Rows and columns of patches (`model.config.grid_size`).
        path: As for `plot_attention_heads`.
        title: Likewise.

    Returns:
        The figure.

    Examples:
        >>> places, cosines = inspection.nearest_patches(model, images, patch=(0, 2, 3), count=5)
        >>> grid_size = model.config.grid_size
        >>> figure = inspection.plot_nearest_patches(places, cosines, (0, 2, 3), pixels, grid_size, "nearest.png")
    """
    places = _array("places", places, ("count", "3"))
    pixels = [_pixels(image) for image in images]
    shown = [("the patch", tuple(int(i) for i in patch))]
    shown += [(f"{cosine:.2f}", tuple(map(int, place))) for cosine, place in zip(cosines, places, strict=True)]
    columns = min(len(shown), 7)
    height = -(-len(shown) // columns) * 1.5 + 1.2
    with figure_for(path, max(columns * 1.4, 5), height) as figure:
        _headline(figure, title or "Patches that it takes for alike", "the patch in its frame, and the cosine")
        for (words, place), axes in zip(
            shown, _axes_below(figure, -(-len(shown) // columns), columns, 0.22), strict=False
        ):
            _neighbourhood(axes, pixels[place[0]], place[1:], grid_size)
            axes.set_title(words, size=9, pad=3, color=MUTED)
        _remove_unused(figure, len(shown))
    return figure


def overlay(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A map of weights, in warm colours, laid over an image.

    Args:
        image: `(height, width, channels)`, pixels of 0..255, or values of 0..1.
        weights: `(rows, columns)`, not negative; the largest is the brightest.

    Returns:
        `(height, width, 3)`, values of 0..1.

    Raises:
        ValueError: if the image is none.

    Examples:
        >>> inspection.overlay(pixels[0], inspection.attention_rollout(model, images)[0]).shape
        (24, 24, 3)
    """
    image, style = _pixels(image), STYLES["heads"]
    heat = _stretched(np.asarray(weights) / max(float(np.max(weights)), 1e-12), image)
    return np.clip(0.68 * style.colours(0.04 + 0.9 * heat, 1) + 0.42 * _grey(image), 0, 1)


def _figure_of_maps(
    maps: Sequence[np.ndarray],
    images: Sequence[np.ndarray],
    style: str | MapStyle,
    path: PathLike,
    title: str,
    names: Sequence[str] = (),
) -> "Figure":
    """Images in rows of at most 8, below each its map."""
    columns = min(len(images), 8)
    tiles: list[tuple[str, np.ndarray]] = []
    for start in range(0, len(images), columns):
        part = slice(start, start + columns)
        gap = [("", np.ones((1, 1, 3)))] * (columns - len(images[part]))
        tiles += [*zip(names[part] or [""] * columns, images[part], strict=False), *gap]
        tiles += [("", one) for one in maps[part]] + gap
    style = STYLES[style] if isinstance(style, str) else style
    return _figure_of_tiles(tiles, columns, style, path, title, 0.12 if any(names) else 0.04)


def _figure_of_tiles(
    tiles: Sequence[tuple[str, np.ndarray]],
    columns: int,
    style: MapStyle,
    path: PathLike,
    title: str,
    gap: float,
    side: float = 1.7,
) -> "Figure":
    """Pictures in rows below a headline, each with words above it."""
    rows = -(-len(tiles) // columns)
    height = rows * side * _tallness(tiles[0][1]) + 1.3
    with figure_for(path, max(columns * side, 5), height) as figure:
        _headline(figure, title or style.title, style.words)
        for (words, picture), axes in zip(tiles, _axes_below(figure, rows, columns, gap), strict=False):
            axes.imshow(picture, interpolation="nearest", vmin=0, vmax=1)
            axes.spines[:].set_visible(False)
            if words:
                axes.set_title(words, size=9, pad=3, color=MUTED)
        _remove_unused(figure, len(tiles))
    return figure


def _axes_below(figure: "Figure", rows: int, columns: int, gap: float) -> list["Axes"]:
    """Axes in rows and columns below the headline."""
    side, below, top = 0.12 / figure.get_figwidth(), 0.12 / figure.get_figheight(), 0.95 / figure.get_figheight()
    return tile_axes(figure, (side, below, 1 - 2 * side, 1 - top - below), rows, columns, gap)


def _headline(figure: "Figure", title: str, words: str) -> None:
    height, left = figure.get_figheight(), 0.12 / figure.get_figwidth()
    figure.text(left, 1 - 0.36 / height, _plain(title), size=14, weight="bold")
    figure.text(left, 1 - 0.62 / height, words, color=MUTED)


def _remove_unused(figure: "Figure", used: int) -> None:
    for axes in figure.axes[used:]:
        axes.remove()


def _neighbourhood(axes: "Axes", image: np.ndarray, place: tuple[int, ...], grid_size: tuple[int, int]) -> None:
    """A patch in its frame, with one patch around it on every side."""
    from matplotlib.patches import Rectangle

    height, width = (n / cells for n, cells in zip(image.shape, grid_size, strict=False))
    row, column = place
    axes.imshow(image, extent=(0, image.shape[1], image.shape[0], 0), interpolation="nearest", vmin=0, vmax=1)
    frame = Rectangle((column * width, row * height), width, height, fill=False, edgecolor=GOOD, linewidth=1.6)
    axes.add_patch(frame)
    axes.set(xlim=((column - 1) * width, (column + 2) * width), ylim=((row + 2) * height, (row - 1) * height))
    axes.spines[:].set_color(GRID)


def _array(name: str, values: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != len(axes) or 0 in values.shape or values.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be numbers ({', '.join(axes)}), but {values.dtype} {values.shape} was given.")
    return values


def _same_length(maps: np.ndarray, images: np.ndarray | Sequence[np.ndarray]) -> list[np.ndarray]:
    pixels = [_pixels(image) for image in images]
    if len(pixels) != len(maps):
        raise ValueError(f"There must be an image for each of the {len(maps)} maps, but there are {len(pixels)}.")
    return pixels


def _pixels(image: np.ndarray) -> np.ndarray:
    """`(height, width, 3)`, values of 0..1."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] not in (1, 3):
        raise ValueError(f"image must be (height, width, 1 or 3), but the shape {image.shape} was given.")
    if image.dtype.kind == "f" and image.min() < 0:
        raise ValueError("image must be pixels of 0..255; of preprocessed ones shown_pixels(model, images) makes such.")
    if image.dtype.kind == "f" and 0 <= image.min() and image.max() <= 1:
        values = image
    else:
        values = check_pixels(image, image.shape[2]) / 255
    return np.broadcast_to(values, (*image.shape[:2], 3))


def _stretched(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """A map of patches as large as the image."""
    return resize_images(np.asarray(values, "float32")[..., None], image.shape[:2])[..., 0]


def _grey(image: np.ndarray) -> np.ndarray:
    return image @ np.array([0.299, 0.587, 0.114])[:, None]


def _tallness(image: np.ndarray) -> float:
    return image.shape[0] / image.shape[1]


def _is_labelled(place: int, places: int) -> bool:
    """At most 8 labels along an axis."""
    return place % -(-places // 8) == 0


def _plain(text: str) -> str:
    return str(text).replace("$", r"\$")  # matplotlib would read formulas
