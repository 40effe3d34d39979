"""One page that shows a model: a single HTML file that needs no network and, except for its sliders, no JavaScript."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._arguments import as_strings, printable, require_packages, softmax
from keras_vit._page import Html, check_page_path, html_tiles, image_address, tag
from keras_vit._page import write_page as write_html
from keras_vit._pictures import SCALES, block_maxima, colour_numbers, palette
from keras_vit.inspection.attention import (
    all_blocks,
    filter_kernel,
    patch_attention_of_blocks,
    patch_filters,
    position_similarity,
)
from keras_vit.inspection.evidence import class_scores, feature_map
from keras_vit.inspection.plots import FEATURES, HEADS, LEVELS, MAPS, MapKind, filter_pictures
from keras_vit.inspection.running import ModelSource, shown_pixels
from keras_vit.models import BiT, VisionTransformer, count_macs, variant_of, weights_by_path
from keras_vit.preprocessing import decode_predictions
from keras_vit.zoo import as_model

HEAD_MAPS = 1200  # at most in a page, 500 bytes each; beyond, a block shows the mean of its heads
TILES = 24  # rows and columns of places at most whose similarities are drawn
SMALL = 64  # pixels: images up to this size are shown as squares of pixels, and stored without loss
# What a parameter is for, by the beginning of its name; the first that fits.
_PARTS = (
    ("head_dist", "head of the distillation token"),
    ("head", "head"),
    ("pre_logits", "pre-logits"),
    ("projection", "projection"),
    ("pooling", "attention pooling"),
    ("embedding", "patch embedding"),
    ("block_attention", "attention"),
    ("block_mlp", "MLPs"),
    ("block_", "normalisation and scales"),
    ("block", "ResNet"),
    ("conv_root", "ResNet"),
    ("norm_root", "ResNet"),
    ("encoder_norm", "normalisation and scales"),
    ("norm_pre_head", "normalisation and scales"),
    ("pre_norm", "normalisation and scales"),
    ("", "tokens and positions"),
)


class Section(NamedTuple):
    """A part of the page: its headline, what it shows, and the content."""

    title: str
    words: str | Html
    content: Html


def write_page(
    model: ModelSource,
    path: str | os.PathLike[str],
    images: Mapping[str, Any] | None = None,
    *,
    title: str | None = None,
    source: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Writes an HTML page about a model and its predictions for images, and returns its path.

    The page shows the config, layers with their shapes, parameters by part, filters and position embeddings. For each
    image it shows predictions, the attention of every block and head, attention rollout, gradient times attention,
    class evidence and saliency. It is a single file that needs no network.

    Args:
        model: A `VisionTransformer` or a `BiT`, or what `keras_vit.load` takes.
        path: Path of the `.html` file to write.
        images: A dict from names, shown on the page, to pixels of 0..255, `(height, width, channels)` of any size.
        title: Title of the page; None for the model's name.
        source: A dict of facts about the file of the model, shown as a table.
        notes: Sentences about unusual properties of the file.

    Raises:
        TypeError, ValueError: if an argument is wrong, or images are given for a model that was optimized for
            inference.
        OSError, ImportError: if the page cannot be written, the model's file cannot be read or fetched; without Pillow.

    Examples:
        >>> inspection.write_page(small, "report.html").name
        'report.html'
    """
    model = as_model(model)
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    if not isinstance(images, Mapping | None):
        raise TypeError(f"images must be a dict from names to pixels, but {type(images).__name__} was given.")
    path = check_page_path(path)
    require_packages("The page", ("PIL",), "images")
    style, sections = "", []
    if images:
        names = _without_shared_folders([*map(str, images)])
        batch = np.concatenate([model.preprocess(image) for image in images.values()])
        if len(batch) != len(names):
            raise ValueError(f"images must have one image for each of {len(names)} names, but there are {len(batch)}.")
        style = _style_of_images(shown_pixels(model, batch))
        sections.append(_predictions(model, names, batch))
        if _has_attention(model):
            sections.append(_attention(model, names, batch))
        sections.append(_evidence(model, names, batch))
    sections += [_weights(model), _layers(model), _parameters(model), _config(model, source or {})]
    links = [tag("li", tag("a", section.title, href=f"#part{i}")) for i, section in enumerate(sections)]
    parts = [_facts(model)]
    if notes:
        odd = tag("ul", *(tag("li", note) for note in as_strings("notes", notes)))
        parts.append(tag("aside", tag("strong", "Good to know"), odd, class_="notes"))
    parts.append(tag("nav", tag("ul", *links), aria_label="Parts of this page"))
    for i, section in enumerate(sections):
        words = tag("p", section.words, class_="muted")
        parts.append(tag("section", tag("h2", section.title), words, section.content, id=f"part{i}"))
    return write_html(path, printable(title or model.name, 200), parts, style)


def _without_shared_folders(names: Sequence[str]) -> list[str]:
    """Returns paths without the folders at their beginning that all of them share, safe to show."""
    parts = [name.split("/") for name in names]
    while all(len(one) > 1 for one in parts) and len({one[0] for one in parts}) == 1:
        parts = [one[1:] for one in parts]
    return [printable("/".join(one), 200) for one in parts]


def _style_of_images(pixels: np.ndarray) -> str:
    """Returns the style sheet that holds each image, uint8 `(n, h, w, 3)`, once, as the background of all its maps."""
    height, width = pixels.shape[1:3]
    small = max(height, width) <= SMALL
    style = f".seen {{ aspect-ratio: {width} / {height}{'; image-rendering: pixelated' if small else ''} }}\n"
    for i, image in enumerate(pixels):
        address = image_address(image) if small else image_address(image, "JPEG", quality=88)
        style += f".i{i} {{ background-image: url({address}); }}\n"
    return style


def _facts(model: VisionTransformer | BiT) -> Html:
    """Returns the line of facts below the title: the variant, its size, its cost, and what images it takes."""
    config = model.config
    height, width = config.image_size
    facts = {
        "model": variant_of(config) or ("Vision Transformer" if isinstance(model, VisionTransformer) else "BiT"),
        "parameters": f"{model.count_params():,}",
        "multiply-adds": f"{count_macs(config) / 1e6:,.0f} million",
        "image": f"{height} × {width}" + (" or any" if config.dynamic else ""),
    }
    if isinstance(model, VisionTransformer):
        rows, columns = config.grid_size
        facts["patches"] = f"{rows} × {columns}"
    if _has_attention(model):
        facts["blocks × heads"] = f"{config.depth} × {config.heads}"
    facts["classes"] = f"{config.classes:,}" if config.classes else "no head"
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in facts.items()), class_="facts")


def _has_attention(model: VisionTransformer | BiT) -> bool:
    return isinstance(model, VisionTransformer) and model.config.tokens_mlp_width is None


def _classifies(model: VisionTransformer | BiT) -> bool:
    return bool(model.config.classes) and len(model.output_shape) == 2


def _predictions(model: VisionTransformer | BiT, names: Sequence[str], batch: np.ndarray) -> Section:
    """Returns the section with the images and their likeliest classes, or the number that a regression predicts."""
    if not _classifies(model):
        tiles = html_tiles((_tile(i), name) for i, name in enumerate(names))
        return Section("Images", "This model has no head for whole images: it predicts no classes.", tiles)
    scores = class_scores(model, batch).astype("float64")
    each = model.config.classifier_activation == "sigmoid"  # class by itself
    is_number = scores.shape[1] == 1 and not each
    probabilities = np.exp(-np.logaddexp(0, -scores)) if each else softmax(scores)
    top = min(5, scores.shape[1])
    decoded = decode_predictions(probabilities, top, model.config.class_names, threshold=0.0)  # whatever their sum
    parts = {"looks": "Where it looks"} if _has_attention(model) else {}
    parts["goes"] = "What it goes by"
    cards = []
    for i, (name, classes) in enumerate(zip(names, decoded, strict=True)):
        bars = _bars((label, probability, f"{100 * probability:.1f} %") for _, label, probability in classes)
        if is_number:
            bars = tag("p", f"{(model.config.class_names or ('number',))[0]}: {scores[i, 0]:.4g}")
        links = tag("p", *(tag("a", words, href=f"#{part}{i}") for part, words in parts.items()), class_="jumps")
        cards.append(tag("div", _tile(i), tag("div", tag("h3", name), bars, links), class_="card answer"))
    words = f"The images as the model gets them, and its {'number' if is_number else 'likeliest classes'}."
    return Section("What it says", words, tag("div", *cards, class_="answers"))


def _attention(model: VisionTransformer, names: Sequence[str], batch: np.ndarray) -> Section:
    """Returns the section with a map for each block and head of each image, which sliders choose from."""
    config = model.config
    blocks = all_blocks(config)
    maps = patch_attention_of_blocks(model, batch, blocks)
    has_room = len(names) * len(blocks) * (config.heads + 1) <= HEAD_MAPS
    heads = config.heads if has_room else 0  # 0: only the mean of the heads
    columns = ["mean", *(f"head {head}" for head in range(heads))]
    head_row = tag("tr", *(tag("th", word, scope="col") for word in ("block", *columns)))
    sliders = [_slider("Block", 0, len(blocks) - 1, len(blocks) - 1), _slider("Head", -1, heads - 1, -1)]
    cards = []
    for i, name in enumerate(names):
        rows = []
        for place, block in enumerate(blocks):
            cells = []
            for head, one in enumerate([maps[block][i].mean(0), *maps[block][i][:heads]], start=-1):
                words = f"attention in block {block}, {f'head {head}' if head >= 0 else 'mean of the heads'}"
                tile = _tile(i, _map(HEADS, one), words)
                cells.append(tag("td", tile, data_block=place, data_head=head, title=words))
            rows.append(tag("tr", tag("th", block, scope="row"), *cells))
        viewer = _tile(i, Html("data:,"), "attention"), tag("div", *sliders, class_="controls")
        summary = tag("summary", f"All blocks{' and heads' if heads else ''}")
        table = tag("table", tag("thead", head_row), tag("tbody", *rows))
        cards.append(
            tag(
                "div",
                tag("h3", name),
                tag("div", *viewer, class_="viewer", data_heads=f"heads{i}", hidden=True),
                tag("details", summary, table, class_="heads", id=f"heads{i}", open=True),
                class_="card",
                id=f"looks{i}",
            )
        )
    has_reader = config.class_token and config.pooling != "avg"
    reader = "the class token reads" if has_reader else "the patches read on average"
    words = f"What {reader} in each block and head; bright is much; each map has its own scale."
    return Section("Where it looks", words, Html("".join(cards)))


def _slider(label: str, least: int, most: int, value: int) -> Html:
    slider = tag("input", type="range", min=least, max=most, value=value)
    return tag("label", tag("span", label), tag("output"), slider)


def _evidence(model: VisionTransformer | BiT, names: Sequence[str], batch: np.ndarray) -> Section:
    """Returns the section with the maps of `MAPS` that the model has, and its features, for each image."""
    attentive, classifies = _has_attention(model), _classifies(model)
    maps: dict[str, np.ndarray] = {}
    for name, kind in MAPS.items():
        if (kind.attention and not attentive) or (kind.head and not classifies):
            continue
        if name == "evidence" and model.config.pooling not in ("token", "avg"):
            continue
        maps[name] = kind.compute(model, batch)
    layer = "relu_pre_head"
    if isinstance(model, VisionTransformer):  # all tokens, normalised where that happens before pooling
        layer = "encoder_norm" if model.config.final_norm == "tokens" else f"block_{model.config.depth - 1}"
    features = np.round(255 * feature_map(model, batch, layer=layer)).astype("uint8")
    cards = []
    for i, image in enumerate(names):
        tiles = [(_tile(i), "the image")]
        for name, values in maps.items():
            kind, one = MAPS[name], block_maxima(values[i], 224)
            tile = _tile(i, _map(kind, one), name, bare=name == "saliency")
            tiles.append((tile, f"{name}: {kind.title}; {kind.words.format(*kind.ends(one))}"))
        tile = _tile(i, image_address(features[i]), "features", bare=True)
        tiles.append((tile, f"features: {FEATURES.title}, over all images; {FEATURES.words}"))
        cards.append(tag("div", tag("h3", image), html_tiles(tiles), class_="card", id=f"goes{i}"))
    words = "This model has no head for whole images, so there are no classes."
    if classifies:
        words = "For the class that the model predicts."
    return Section("What it goes by", words, Html("".join(cards)))


def _weights(model: VisionTransformer | BiT) -> Section:
    """Returns the section that needs no images: filters of 1 or 3 channels, and the similarity of positions."""
    parts = []
    *shape, filters = filter_kernel(model).shape
    if shape[-1] in (1, 3):
        count = min(28, math.prod(shape), filters)
        pictures = np.round(filter_pictures(patch_filters(model, count)) * 255).astype("uint8")
        words = f"The first {count} principal components of the filters that see pixels (the paper, Figure 7 left)."
        parts.append(_mosaic("Filters", words, pictures, 7))
    config = model.config
    if isinstance(model, VisionTransformer) and config.position_embedding != "none":
        rows, columns = config.grid_size
        step = math.ceil(max(rows, columns) / TILES)
        similarity = position_similarity(model)[::step, ::step]
        tiles = palette("viridis", LEVELS)[colour_numbers(similarity, -1, 1, LEVELS)]
        part = f", every {step}th row and column" if step > 1 else ""
        words = (
            f"For each of {rows} × {columns} places{part}: how alike its position embedding is to that of every place, "
            "as cosine (Figure 7 centre)."
        )
        colours = ", ".join(f"#{colour}" for colour in SCALES["viridis"])
        gradient = tag("i", style=f"background: linear-gradient(90deg, {colours})")
        scale = tag("div", "−1", gradient, "1", class_="scale")
        parts.append(_mosaic("Places", words, tiles.reshape(-1, *tiles.shape[2:]), tiles.shape[1], scale))
    words = "Seen in the weights alone, without images."
    return Section("What it has learned of pixels and places", words, tag("div", *parts, class_="pair"))


def _layers(model: VisionTransformer | BiT) -> Section:
    """Returns the section with the layers in order; blocks, which are alike, stand there once."""
    blocks = [layer for layer in model.layers if layer.name.startswith("block_")]
    boxes = []
    for layer in model.layers:
        if layer in blocks[1:]:
            continue
        name = layer.name.replace("_", " ")
        if layer in blocks:
            mixed = f"attention of {layer.heads} heads" if _has_attention(model) else "MLP across tokens"
            name = f"{len(blocks)} blocks: {mixed}, MLP of {layer.mlp_width}"
        shape = ", ".join("any" if n is None else str(n) for n in tuple(layer.output.shape)[1:])
        boxes.append(tag("li", tag("span", name), tag("code", f"({shape})"), class_="box"))
    words = "From top to bottom; what each step returns for a batch, of which the number of images is left out."
    return Section("How it is built", words, tag("ol", *boxes, class_="flow"))


def _parameters(model: VisionTransformer | BiT) -> Section:
    """Returns the section with the number of parameters of each part of `_PARTS`, the largest first."""
    sizes: dict[str, int] = {}
    for path, weight in weights_by_path(model).items():
        layer, _, inner = path.partition("/")
        name = f"block_{inner}" if layer.startswith("block_") else layer
        part = next(part for start, part in _PARTS if name.startswith(start))
        sizes[part] = sizes.get(part, 0) + math.prod(weight.shape)
    total = max(sum(sizes.values()), 1)
    ranked = sorted(sizes.items(), key=lambda entry: -entry[1])
    bars = _bars((part, size / total, f"{size:,}") for part, size in ranked)
    return Section("Where its parameters are", f"{total:,} parameters, by what they are for.", bars)


def _config(model: VisionTransformer | BiT, source: Mapping[str, Any]) -> Section:
    """Returns the section with the config, at most 20 class names last, below `source`, what is known of the file."""
    values = model.config.to_dict()
    names = values.pop("class_names", None)
    if names is not None:
        names = ", ".join(names if len(names) <= 20 else [*names[:20], "…"])
    values["class_names"] = names
    tables = _pairs(values)
    if source:
        tables = Html("".join([tag("h3", "The file"), _pairs(source), tag("h3", "The config"), tables]))
    words = Html(f"The config, as {tag('code', 'model.config')} has it.")
    return Section("All that decides what it computes", words, tables)


def _pairs(pairs: Mapping[str, Any]) -> Html:
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", tag("code", value))) for name, value in pairs.items())
    return tag("table", tag("tbody", *rows), class_="plain")


def _bars(rows: Iterable[tuple[str, float, str]]) -> Html:
    """Returns an element with a row for each name: a bar for a share of 1, and words beside it."""
    parts = []
    for name, share, words in rows:
        bar = tag("span", tag("i", style=f"width: {100 * share:.1f}%"), class_="bar")
        parts += [tag("span", printable(name, 100), class_="name"), bar, tag("span", words, class_="value")]
    return tag("div", *parts, class_="bars")


def _tile(index: int, address: Html | None = None, words: str = "the image", bare: bool = False) -> Html:
    """The image of a number; with the address of a map, that map over the image, or `bare` in place of it."""
    if address is None:
        return tag("div", class_=f"seen i{index}", role="img", aria_label=words)
    return tag("div", tag("img", src=address, alt=words), class_=f"seen i{index}{' bare' if bare else ''}")


def _mosaic(title: str, words: str, tiles: np.ndarray, columns: int, scale: Html | str = "") -> Html:
    """Returns a figure of one image, in which uint8 tiles `(count, height, width, 3)` stand in rows and columns."""
    count, height, width = tiles.shape[:3]
    rows = math.ceil(count / columns)
    tiles = np.concatenate([tiles, np.full((count, height, width, 1), 255, "uint8")], -1)
    tiles = np.pad(tiles, [(0, rows * columns - count), (0, 1), (0, 1), (0, 0)])
    sheet = tiles.reshape(rows, columns, height + 1, width + 1, 4).swapaxes(1, 2)
    sheet = sheet.reshape(rows * (height + 1), columns * (width + 1), 4)[:-1, :-1]
    image = tag("img", class_="mosaic", src=image_address(sheet), alt=words)
    return tag("figure", tag("h3", title), image, scale, tag("figcaption", words))


def _map(kind: MapKind, values: np.ndarray) -> Html:
    """The address of an image with a pixel for each value, in the colours of its kind."""
    numbers = colour_numbers(values, *kind.ends(values), LEVELS)
    return image_address(numbers, palette=palette(kind.scale, LEVELS))
