"""One page that shows a model: a single HTML file that needs no network and, but for its sliders, no JavaScript."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import printable, require_packages, softmax
from keras_vit._files import write_text
from keras_vit._pictures import coarse, image_address, page_style
from keras_vit.inspection.attention import (
    all_blocks,
    filter_kernel,
    patch_attention_of_blocks,
    patch_filters,
    position_similarity,
)
from keras_vit.inspection.evidence import class_scores
from keras_vit.inspection.patches import feature_map
from keras_vit.inspection.plots import FEATURES, HEADS, MAPS, SCALES, MapKind, filter_pictures, levels, palette
from keras_vit.inspection.running import ModelSource, shown_pixels
from keras_vit.models import BiT, VisionTransformer, count_macs, variant_of, weights_by_path
from keras_vit.preprocessing import decode_predictions
from keras_vit.zoo import as_model

HEAD_MAPS = 1200  # at most in a page, 500 bytes each; beyond, a block shows the mean of its heads
TILES = 24  # rows and columns of places at most whose similarities are drawn
SMALL = 64  # pixels: images up to this size are shown as squares of pixels, and stored without loss
FOLDER = Path(__file__).parent
Section = tuple[str, str, str]  # a title, what it shows, and the content


def write_page(
    model: ModelSource,
    path: str | os.PathLike[str],
    images: Mapping[str, Any] | None = None,
    *,
    title: str | None = None,
    source: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Writes a page that shows a model, and what it makes of images.

    Config, layers with their shapes, parameters by part, filters, position embeddings; for every image predictions,
    attention of every block and head, attention rollout, gradient times attention, evidence of patches, saliency. The
    page is a single file, opened without network, for light and dark, narrow and wide screens.

    Args:
        model: A `VisionTransformer` or a `BiT`, or what `keras_vit.load` takes.
        path: The `.html` file; it appears when it is complete.
        images: Pixels of 0..255, `(height, width, channels)` of any size, by the name that the page gives them.
        title: The headline; None for the model's name.
        source: What is known of the file that the model comes from, in words, for a table.
        notes: What is odd about it, a sentence each.

    Returns:
        The path.

    Raises:
        TypeError: if `model` is something else.
        ValueError: if the path does not end with `.html`, or the images are no pixels.
        ImportError: if Pillow is not installed.

    Examples:
        >>> inspection.write_page(small, "report.html").name
        'report.html'
    """
    model = as_model(model)
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path must end with .html, but {os.fspath(path)!r} was given.")
    require_packages("The page", ("PIL",), "images")
    attentive, style, sections = _has_attention(model), "", []
    if images:
        names = [printable(name, 200) for name in _shortest(list(images))]
        batch = np.concatenate([model.preprocess(image) for image in images.values()])
        pixels = shown_pixels(model, batch)
        height, width = pixels.shape[1:3]
        sharp = "; image-rendering: pixelated" if max(height, width) <= SMALL else ""
        style = f".seen {{ aspect-ratio: {width} / {height}{sharp} }}\n"
        style += "".join(f".i{i} {{ background-image: url({_photo(one)}); }}\n" for i, one in enumerate(pixels))
        sections.append(_predictions(model, names, batch, jumps={"looks": "Where it looks"} if attentive else {}))
        sections += [_attention(model, names, batch)] if attentive else []
        sections.append(_evidence(model, names, batch))
    sections += [_weights(model), _layers(model), _parameters(model), _config(model, source or {})]
    title = escape(printable(title or model.name, 200))
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    body = _facts(model, title, notes)
    links = "".join(f'<li><a href="#part{i}">{h}</a></li>' for i, (h, _, _) in enumerate(sections))
    body += f'<nav aria-label="Parts of this page"><ul>{links}</ul></nav>\n'
    for i, (h, words, content) in enumerate(sections):
        body += f"<section id='part{i}'><h2>{h}</h2><p class='muted'>{words}</p>{content}</section>\n"
    marks = {"<!-- TITLE -->": title, "/* STYLE */": page_style(), "/* IMAGES */": style, "<!-- BODY -->": body}
    for mark, text in marks.items():
        page = page.replace(mark, text, 1)
    write_text(path, page)
    return path


def _shortest(names: Sequence[str]) -> list[str]:
    """Paths without the folders at their beginning that all of them share."""
    parts = [name.split("/") for name in names]
    while all(len(one) > 1 for one in parts) and len({one[0] for one in parts}) == 1:
        parts = [one[1:] for one in parts]
    return ["/".join(one) for one in parts]


def _facts(model: VisionTransformer | BiT, title: str, notes: Sequence[str]) -> str:
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
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    odd = "".join(f"<li>{escape(printable(note, 500))}</li>" for note in notes)
    aside = f'<aside class="notes"><strong>Good to know</strong><ul>{odd}</ul></aside>' if odd else ""
    return f'<header><h1>{title}</h1><dl class="facts">{items}</dl></header>{aside}\n'


def _has_attention(model: VisionTransformer | BiT) -> bool:
    return isinstance(model, VisionTransformer) and model.config.tokens_mlp_width is None


def _classifies(model: VisionTransformer | BiT) -> bool:
    return bool(model.config.classes) and len(model.output_shape) == 2


def _predictions(
    model: VisionTransformer | BiT, names: Sequence[str], batch: np.ndarray, jumps: Mapping[str, str]
) -> Section:
    if not _classifies(model):
        tiles = [(_tile(i), escape(name)) for i, name in enumerate(names)]
        return "Images", "This model has no head: it says no classes.", _figures(tiles)
    probabilities = softmax(class_scores(model, batch).astype("float64"))
    top = min(5, probabilities.shape[1])
    decoded = decode_predictions(probabilities, top=top, class_names=model.config.class_names)
    cards = ""
    for i, (name, classes) in enumerate(zip(names, decoded, strict=True)):
        bars = _bars((printable(label, 100), p, f"{100 * p:.1f} %") for _, label, p in classes)
        links = "".join(
            f'<a href="#{part}{i}">{words}</a>' for part, words in {**jumps, "goes": "What it goes by"}.items()
        )
        words = f'<h3>{escape(name)}</h3>{bars}<p class="jumps">{links}</p>'
        cards += f'<div class="card answer">{_tile(i)}<div>{words}</div></div>'
    return (
        "What it says",
        "The images as the model gets them, and its likeliest classes.",
        f'<div class="answers">{cards}</div>',
    )


def _attention(model: VisionTransformer, names: Sequence[str], batch: np.ndarray) -> Section:
    config = model.config
    blocks = all_blocks(config)
    maps = patch_attention_of_blocks(model, batch, blocks)
    heads = config.heads if len(names) * len(blocks) * (config.heads + 1) <= HEAD_MAPS else 0
    first = "".join(f'<th scope="col">{word}</th>' for word in ("block", "mean", *(f"head {h}" for h in range(heads))))
    cards = ""
    for i, name in enumerate(names):
        rows = ""
        for place, block in enumerate(blocks):
            rows += f'<tr><th scope="row">{block}</th>'
            for head, one in enumerate([maps[block][i].mean(0), *maps[block][i][:heads]], start=-1):
                words = f"attention in block {block}, {f'head {head}' if head >= 0 else 'mean of the heads'}"
                tile = _tile(i, _map(HEADS, one), words)
                rows += f'<td data-block="{place}" data-head="{head}" title="{words}">{tile}</td>'
            rows += "</tr>"
        sliders = ""
        for label, least, most, value in (("Block", 0, len(blocks) - 1, len(blocks) - 1), ("Head", -1, heads - 1, -1)):
            range_ = f'<input type="range" min="{least}" max="{most}" value="{value}">'
            sliders += f"<label><span>{label}</span><output></output>{range_}</label>"
        cards += (
            f'<div class="card" id="looks{i}"><h3>{escape(name)}</h3><div class="viewer" data-heads="heads{i}" hidden>'
            f'{_tile(i, "data:,", "attention")}<div class="controls">{sliders}</div></div>'
            f'<details class="heads" id="heads{i}" open><summary>All blocks{" and heads" if heads else ""}</summary>'
            f"<table><thead><tr>{first}</tr></thead><tbody>{rows}</tbody></table></details></div>"
        )
    who = "the class token reads" if config.class_token and config.pooling != "avg" else "the patches read on average"
    return "Where it looks", f"What {who} in each block and head; bright is much, each map by its own largest.", cards


def _evidence(model: VisionTransformer | BiT, names: Sequence[str], batch: np.ndarray) -> Section:
    attentive, classifies = _has_attention(model), _classifies(model)
    maps: dict[str, np.ndarray] = {}
    for name, kind in MAPS.items():
        missing = (kind.attention and not attentive) or (kind.head and not classifies)
        if not missing and (name != "evidence" or model.config.pooling in ("token", "avg")):
            maps[name] = kind.compute(model, batch)
    layer = "encoder_norm" if isinstance(model, VisionTransformer) else "relu_pre_head"
    alike = np.round(255 * feature_map(model, batch, layer=layer)).astype("uint8")
    cards = ""
    for i, image in enumerate(names):
        tiles = [(_tile(i), "the image")]
        for name, values in maps.items():
            kind, one = MAPS[name], coarse(values[i], 224)
            tile = _tile(i, _map(kind, one), name, kind="bare" if name == "saliency" else "")
            tiles.append((tile, f"{name}: {kind.title}; {kind.words.format(*kind.ends(one))}"))
        tile = _tile(i, image_address(alike[i], "PNG"), "features", kind="bare")
        tiles.append((tile, f"features: {FEATURES.title}, over all images; {FEATURES.words}"))
        cards += f'<div class="card" id="goes{i}"><h3>{escape(image)}</h3>{_figures(tiles)}</div>'
    words = "For the class that the model says." if classifies else "This model has no head, so there are no classes."
    return "What it goes by", words, cards


def _weights(model: VisionTransformer | BiT) -> Section:
    parts = ""
    *shape, filters = filter_kernel(model).shape
    if shape[-1] in (1, 3):
        count = min(28, math.prod(shape), filters)
        pictures = np.round(filter_pictures(patch_filters(model, count)) * 255).astype("uint8")
        words = f"The first {count} principal components of the filters that see pixels (the paper, Figure 7 left)."
        parts += _mosaic("Filters", words, pictures, 7)
    config = model.config
    if isinstance(model, VisionTransformer) and config.position_embedding != "none":
        rows, columns = config.grid_size
        step = -(-max(rows, columns) // TILES)
        tiles = palette("viridis")[levels(position_similarity(model)[::step, ::step], -1, 1)]
        part = f", every {step}th row and column" if step > 1 else ""
        words = (
            f"For each of {rows} × {columns} places{part}: how alike its position embedding is to that of every place, "
            "as cosine (Figure 7 centre)."
        )
        colours = ", ".join(f"#{colour}" for colour in SCALES["viridis"])
        scale = f'<div class="scale">−1<i style="background: linear-gradient(90deg, {colours})"></i>1</div>'
        parts += _mosaic("Places", words, tiles.reshape(-1, *tiles.shape[2:]), tiles.shape[1], scale)
    words = "Seen in the weights alone, without images."
    return "What it has learned of pixels and places", words, f'<div class="pair">{parts}</div>'


def _layers(model: VisionTransformer | BiT) -> Section:
    """The layers in order, blocks that are alike once."""
    blocks = [layer for layer in model.layers if layer.name.startswith("block_")]
    boxes = ""
    for layer in model.layers:
        if layer not in blocks[1:]:
            name = layer.name.replace("_", " ")
            if blocks and layer is blocks[0]:
                mixed = f"attention of {layer.heads} heads" if _has_attention(model) else "MLP across tokens"
                name = f"{len(blocks)} blocks: {mixed}, MLP of {layer.mlp_width}"
            shape = ", ".join("any" if n is None else str(n) for n in tuple(layer.output.shape)[1:])
            boxes += f'<li class="box"><span>{escape(name)}</span><code>({shape})</code></li>'
    words = "From top to bottom; what each step gives for a batch, of which the number of images is left out."
    return "How it is built", words, f'<ol class="flow">{boxes}</ol>'


# What a parameter is for, by the beginning of its name.
_PARTS = {
    **{"head_dist": "head of the distillation token", "head": "head", "pre_logits": "pre-logits"},
    **{"projection": "projection", "pooling": "attention pooling", "embedding": "patch embedding"},
    **{"block_attention": "attention", "block_mlp": "MLPs", "block_": "normalisation and scales", "block": "ResNet"},
    **{"conv_root": "ResNet", "norm_root": "ResNet", "encoder_norm": "normalisation and scales"},
    **dict.fromkeys(("norm_pre_head", "pre_norm"), "normalisation and scales"),
    "": "tokens and positions",
}


def _parameters(model: VisionTransformer | BiT) -> Section:
    sizes: dict[str, int] = {}
    for path, weight in weights_by_path(model).items():
        layer, _, inner = path.partition("/")
        name = f"block_{inner}" if layer.startswith("block_") else layer
        part = next(part for start, part in _PARTS.items() if name.startswith(start))
        sizes[part] = sizes.get(part, 0) + math.prod(weight.shape)
    total = max(sum(sizes.values()), 1)
    ranked = sorted(sizes.items(), key=lambda entry: -entry[1])
    bars = _bars((part, size / total, f"{size:,}") for part, size in ranked)
    return "Where its parameters are", f"{total:,} parameters, by what they are for.", bars


def _config(model: VisionTransformer | BiT, source: Mapping[str, Any]) -> Section:
    names = model.config.class_names
    values = {name: value for name, value in model.config.to_dict().items() if name != "class_names"}
    values["class_names"] = None if names is None else ", ".join([*names[:20], *(["…"] if len(names) > 20 else [])])
    tables = _table(values)
    if source:
        tables = f"<h3>The file</h3>{_table(source)}<h3>The config</h3>{tables}"
    return "All that decides what it computes", "The config, as <code>model.config</code> has it.", tables


def _table(pairs: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(printable(name, 100))}</th>'
        f"<td><code>{escape(printable(value, 1000))}</code></td></tr>"
        for name, value in pairs.items()
    )
    return f'<table class="plain"><tbody>{rows}</tbody></table>'


def _bars(rows: Iterable[tuple[str, float, str]]) -> str:
    """Bars: each a name, a share of 1 and what it says beside it."""
    bars = "".join(
        f'<span class="name">{escape(name)}</span>'
        f'<span class="bar"><i style="width: {100 * share:.1f}%"></i></span><span class="value">{words}</span>'
        for name, share, words in rows
    )
    return f'<div class="bars">{bars}</div>'


def _figures(tiles: Iterable[tuple[str, str]]) -> str:
    figures = "".join(f"<figure>{tile}<figcaption>{words}</figcaption></figure>" for tile, words in tiles)
    return f'<div class="tiles">{figures}</div>'


def _tile(index: int, address: str = "", words: str = "the image", kind: str = "") -> str:
    """An image, and a map on it; the style sheet carries each image once, as the ground of all its maps."""
    if address:
        return f'<div class="seen i{index} {kind}"><img src="{address}" alt="{words}"></div>'
    return f'<div class="seen i{index}" role="img" aria-label="{words}"></div>'


def _mosaic(title: str, words: str, tiles: np.ndarray, columns: int, below: str = "") -> str:
    """One image of tiles `(count, height, width, 3)`, uint8, in rows and columns on a transparent ground."""
    count, height, width = tiles.shape[:3]
    rows = -(-count // columns)
    tiles = np.concatenate([tiles, np.full((count, height, width, 1), 255, "uint8")], -1)
    tiles = np.pad(tiles, [(0, rows * columns - count), (0, 1), (0, 1), (0, 0)])
    sheet = tiles.reshape(rows, columns, height + 1, width + 1, 4).swapaxes(1, 2)
    sheet = sheet.reshape(rows * (height + 1), columns * (width + 1), 4)[:-1, :-1]
    image = f'<img class="mosaic" src="{image_address(sheet, "PNG")}" alt="{escape(words)}">'
    return f"<figure><h3>{title}</h3>{image}{below}<figcaption>{escape(words)}</figcaption></figure>"


def _photo(pixels: np.ndarray) -> str:
    return image_address(pixels, "PNG") if max(pixels.shape[:2]) <= SMALL else image_address(pixels, "JPEG", quality=88)


def _map(kind: MapKind, values: np.ndarray) -> str:
    """A map with a pixel for each value."""
    return image_address(levels(values, *kind.ends(values)), "PNG", colours=palette(kind.scale))
