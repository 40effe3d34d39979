"""One page that shows a model: a single HTML file that needs no network and, but for its sliders, no JavaScript."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import write_text
from keras_vit.inspection.attention import (
    all_blocks,
    attention_rollout,
    mean_attention_distance,
    patch_attention_of_blocks,
)
from keras_vit.inspection.drawings import (
    SCALES,
    SMALL,
    STYLES,
    distance_chart,
    filter_pictures,
    mosaic,
    picture,
)
from keras_vit.inspection.evidence import class_evidence, class_scores, gradient_attention, saliency
from keras_vit.inspection.running import ModelSource, shown_pixels
from keras_vit.inspection.weights import patch_filters, position_similarity
from keras_vit.models import BiT, VisionTransformer, count_macs, variant_of, weights_by_path
from keras_vit.preprocessing import decode_predictions
from keras_vit.zoo import as_model

HEAD_MAPS = 1200  # at most in a page, 500 bytes each; beyond, a block shows the mean of its heads
TILES = 24  # rows and columns of places at most whose similarities are drawn
LISTED = 5  # classes of an image
FOLDER = Path(__file__).parent


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

    Config, parameters by part, the architecture with its shapes, filters, position embeddings; for every image
    predictions, attention of every block and head, attention rollout, gradient times attention, evidence of patches,
    saliency. The page is a single file, opened without network, for light and dark, narrow and wide screens.

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
    if importlib.util.find_spec("PIL") is None:
        raise ImportError('The page needs Pillow, which is not installed: pip install "keras-vit[images]"')
    names = [printable(name, 200) for name in images or ()]
    batch = np.concatenate([model.preprocess(image) for image in images.values()]) if images else None
    write_text(path, _page(model, printable(title or model.name, 200), names, batch, source or {}, notes))
    return path


@dataclasses.dataclass(frozen=True)
class _Shown:
    """The images of a page: their names, the model's input, and their pixels, which the style sheet carries once."""

    names: list[str]
    batch: np.ndarray
    pixels: np.ndarray

    def styles(self) -> str:
        """Each image once, as the ground of all maps of it."""
        return "\n".join(
            f".i{i} {{ background-image: url({picture(pixels)}); }}" for i, pixels in enumerate(self.pixels)
        )

    def tile(self, index: int, map_address: str = "", words: str = "", *, opaque: bool = False) -> str:
        """An image, and a map on it."""
        height, width = self.pixels.shape[1:3]
        kind = f"seen i{index}{' bare' if opaque else ''}{' sharp' if max(height, width) <= SMALL else ''}"
        map_ = f'<img src="{map_address}" alt="{escape(words)}">' if map_address else ""
        label = "" if map_address else f' role="img" aria-label="{escape(words)}"'
        return f'<div class="{kind}" style="aspect-ratio: {width} / {height}"{label}>{map_}</div>'


def _page(
    model: VisionTransformer | BiT,
    title: str,
    names: list[str],
    batch: np.ndarray | None,
    source: Mapping[str, Any],
    notes: Sequence[str],
) -> str:
    shown = None if batch is None else _Shown(names, batch, shown_pixels(model, batch))
    attentive = isinstance(model, VisionTransformer)
    sections = [_head(model, title), _notes(notes)]
    if shown is not None:
        sections.append(_answers(model, shown))
        if attentive:
            sections.append(_attention(model, shown))
        sections.append(_evidence(model, shown))
        if attentive:
            sections.append(_distance(model, shown))
    sections += [_weights(model), _architecture(model), _parameters(model), _config(model, source)]
    style = (FOLDER / "page.css").read_text(encoding="utf-8") + (shown.styles() if shown is not None else "")
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    body = "\n".join(section for section in sections if section)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="keras_vit">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<footer>Made by keras_vit. One file, no network needed.</footer>
<script>
{script}</script>
</body>
</html>
"""


def _head(model: VisionTransformer | BiT, title: str) -> str:
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
        facts |= {"patches": f"{rows} × {columns}", "blocks × heads": f"{config.depth} × {config.heads}"}
    facts["classes"] = f"{config.classes:,}" if config.classes else "no head"
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<header><h1>{escape(title)}</h1><dl class="facts">{items}</dl></header>'


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(printable(note, 500))}</li>" for note in notes)
    return f'<aside class="notes"><strong>Good to know</strong><ul>{items}</ul></aside>' if items else ""


def _section(title: str, words: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p class='muted'>{words}</p>{content}</section>"


def _answers(model: VisionTransformer | BiT, shown: _Shown) -> str:
    if not _classifies(model):
        tiles = "".join(
            f"<figure>{shown.tile(i, words=name)}<figcaption>{escape(name)}</figcaption></figure>"
            for i, name in enumerate(shown.names)
        )
        return _section("Images", "This model has no head: it says no classes.", f'<div class="tiles">{tiles}</div>')
    scores = class_scores(model, shown.batch).astype("float64")
    probabilities = np.exp(scores - scores.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    top = min(LISTED, probabilities.shape[1])
    decoded = decode_predictions(probabilities, top=top, class_names=model.config.class_names)
    cards = []
    for i, (name, classes) in enumerate(zip(shown.names, decoded, strict=True)):
        bars = "".join(
            f'<span class="name">{escape(printable(label, 100))}</span>'
            f'<span class="bar"><i style="width: {100 * p:.1f}%"></i></span><span class="value">{100 * p:.1f} %</span>'
            for _, label, p in classes
        )
        cards.append(
            f'<div class="card answer">{shown.tile(i, words=name)}'
            f'<div><h3>{escape(name)}</h3><div class="bars">{bars}</div></div></div>'
        )
    return _section("What it says", "The images as the model gets them, and its likeliest classes.", "".join(cards))


def _attention(model: VisionTransformer, shown: _Shown) -> str:
    config = model.config
    blocks = all_blocks(config)
    maps = patch_attention_of_blocks(model, shown.batch, blocks)
    all_heads = len(shown.names) * len(blocks) * (config.heads + 1) <= HEAD_MAPS
    listed = "All blocks and heads" if all_heads else "All blocks"
    cards = []
    for i, name in enumerate(shown.names):
        rows = []
        for place, block in enumerate(blocks):
            heads = maps[block][i]
            cells = [_head_cell(shown, i, place, -1, heads.mean(0), block)]
            cells += [_head_cell(shown, i, place, h, one, block) for h, one in enumerate(heads)] if all_heads else []
            rows.append(f'<tr><th scope="row">{block}</th>{"".join(cells)}</tr>')
        titles = ["block", "mean", *([f"head {h}" for h in range(config.heads)] if all_heads else [])]
        first = "".join(f'<th scope="col">{words}</th>' for words in titles)
        table = f"<table><thead><tr>{first}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        cards.append(
            f'<div class="card"><h3>{escape(name)}</h3>{_viewer(shown, i, len(blocks), config.heads, all_heads)}'
            f'<details class="heads" id="heads{i}" open><summary>{listed}</summary>{table}</details></div>'
        )
    who = "the class token reads" if config.class_token and config.pooling != "avg" else "the patches read on average"
    words = f"What {who} in each block and head; bright is much, each map by its own largest."
    return _section("Where it looks", words, "".join(cards))


def _head_cell(shown: _Shown, image: int, place: int, head: int, values: np.ndarray, block: int | str) -> str:
    who = "mean of the heads" if head < 0 else f"head {head}"
    words = f"attention in block {block}, {who}"
    address = STYLES["heads"].address(values)
    return f'<td data-block="{place}" data-head="{head}" title="{words}">{shown.tile(image, address, words)}</td>'


def _viewer(shown: _Shown, image: int, blocks: int, heads: int, all_heads: bool) -> str:
    sliders = (
        f'<label><span>Block</span><output></output><input type="range" min="0" max="{blocks - 1}" '
        f'value="{blocks - 1}"></label>'
        f'<label><span>Head</span><output></output><input type="range" min="-1" max="{heads - 1 if all_heads else -1}" '
        f'value="-1"></label>'
    )
    tile = shown.tile(image, "data:,", "attention")
    return f'<div class="viewer" data-heads="heads{image}" hidden>{tile}<div class="controls">{sliders}</div></div>'


def _evidence(model: VisionTransformer | BiT, shown: _Shown) -> str:
    attentive, classifies = isinstance(model, VisionTransformer), _classifies(model)
    maps: dict[str, np.ndarray] = {}
    if attentive:
        maps["rollout"] = attention_rollout(model, shown.batch)
    if attentive and classifies:
        maps["relevance"] = gradient_attention(model, shown.batch)
    if classifies and model.config.pooling in ("token", "avg"):
        maps["evidence"] = class_evidence(model, shown.batch)
    if classifies:
        maps["saliency"] = np.stack([_smaller(one) for one in saliency(model, shown.batch)])
    if not maps:
        return ""
    cards = []
    for i, name in enumerate(shown.names):
        tiles = [(shown.tile(i, words=name), "the image")]
        for kind, values in maps.items():
            style = STYLES[kind]
            address, caption = style.address(values[i]), style.caption.format(style.largest(values[i]))
            tiles.append((shown.tile(i, address, kind, opaque=kind == "saliency"), caption))
        figures = "".join(f"<figure>{tile}<figcaption>{words}</figcaption></figure>" for tile, words in tiles)
        cards.append(f'<div class="card"><h3>{escape(name)}</h3><div class="tiles">{figures}</div></div>')
    words = "For the class that the model says." if classifies else "This model has no head, so there are no classes."
    return _section("What it goes by", words, "".join(cards))


def _smaller(values: np.ndarray, most: int = 224) -> np.ndarray:
    """A map of pixels with at most `most` rows and columns, each the largest of those that it stands for."""
    step = -(-max(values.shape) // most)
    padded = np.pad(values, [(0, -n % step) for n in values.shape])
    rows, columns = (n // step for n in padded.shape)
    return padded.reshape(rows, step, columns, step).max((1, 3))


def _distance(model: VisionTransformer, shown: _Shown) -> str:
    count = len(shown.names)
    words = (
        f"Each dot is a head: the distance between a patch and those that it reads, weighted by attention, over "
        f"{count} image{'s' * (count != 1)} (the paper, Figure 7 right, takes 128). The line is the mean of the heads."
    )
    return _section("How far it looks", words, distance_chart(mean_attention_distance(model, shown.batch)))


def _weights(model: VisionTransformer | BiT) -> str:
    parts = []
    most = min(28, _filters_of(model))
    filters = patch_filters(model, most)
    if filters.shape[-1] in (1, 3):
        address = mosaic(filter_pictures(filters), 7)
        words = f"The first {most} principal components of the filters that see pixels (the paper, Figure 7 left)."
        parts.append(_mosaic("Filters", words, address))
    config = model.config
    if isinstance(model, VisionTransformer) and config.position_embedding != "none":
        similarity = position_similarity(model)
        rows, columns = similarity.shape[:2]
        step = -(-max(rows, columns) // TILES)
        tiles = similarity[::step, ::step]
        address = mosaic(tiles.reshape(-1, rows, columns), tiles.shape[1], "viridis")
        some = f", every {step}th row and column" if step > 1 else ""
        words = (
            f"For each of {rows} × {columns} places{some}: how alike its position embedding is to that of every place, "
            "as cosine (Figure 7 centre)."
        )
        colours = ", ".join(f"#{colour}" for colour in SCALES["viridis"])
        scale = f'<div class="scale">−1<i style="background: linear-gradient(90deg, {colours})"></i>1</div>'
        parts.append(_mosaic("Places", words, address, scale))
    words = "Seen in the weights alone, without images."
    return _section("What it has learned of pixels and places", words, f'<div class="pair">{"".join(parts)}</div>')


def _filters_of(model: VisionTransformer | BiT) -> int:
    names = [layer.name for layer in model.layers]
    kernel = model.get_layer("conv_root" if "conv_root" in names else "embedding").kernel
    return min(math.prod(kernel.shape[:-1]), kernel.shape[-1])


def _mosaic(title: str, words: str, address: str, below: str = "") -> str:
    image = f'<img class="mosaic" src="{address}" alt="{escape(words)}">'
    return f"<figure><h3>{title}</h3>{image}{below}<figcaption>{escape(words)}</figcaption></figure>"


def _architecture(model: VisionTransformer | BiT) -> str:
    """The layers in order, blocks that are alike drawn once."""
    blocks = [layer for layer in model.layers if layer.name.startswith("block_")]
    boxes: list[str] = []
    for layer in model.layers:
        if layer in blocks:
            if layer is blocks[0]:
                boxes.append(_block(layer, len(blocks)))
        else:
            boxes.append(_box(_LAYERS.get(layer.name, layer.name.replace("_", " ")), layer.output.shape))
    items = "".join(f"<li>{box}</li>" for box in boxes)
    words = "From top to bottom; what each step gives for a batch, of which the number of images is left out."
    return _section("How it is built", words, f'<ol class="flow">{items}</ol>')


# What the layers of a model are called in words.
_LAYERS = {
    "images": "images",
    "preprocessing": "scaling of pixels",
    "embedding": "patch embedding",
    "tokens": "one sequence of tokens",
    "class_token": "class token in front",
    "position_embedding": "position embeddings added",
    "encoder_norm": "layer normalisation",
    "pre_logits": "pre-logits, tanh",
    "head": "head: logits",
    "predictions": "activation: predictions",
    "conv_root": "first convolution",
    "pool_root": "max pooling",
}


def _block(block: Any, count: int) -> str:
    shape = block.output.shape
    tokens = shape[1]
    attention = f"{block.heads} heads, each ({_spell(tokens)}, {_spell(tokens)})"
    boxes = [
        _box("layer normalisation", shape),
        _box("self-attention", None, attention),
        _box("added to the tokens", shape),
        _box("layer normalisation", shape),
        _box("MLP", None, f"hidden layer of {block.mlp_width}"),
        _box("added to the tokens", shape),
    ]
    items = "".join(f"<li>{box}</li>" for box in boxes)
    times = f"{count} block{'s' * (count != 1)}, one after the other"
    return f'<div class="group"><p class="times">{times}</p><ol class="flow">{items}</ol></div>'


def _box(name: str, shape: Any, words: str = "") -> str:
    text = words or "(" + ", ".join(_spell(n) for n in tuple(shape)[1:]) + ")"
    return f'<div class="box"><span>{escape(name)}</span><code>{escape(text)}</code></div>'


def _spell(n: int | None) -> str:
    return "any" if n is None else f"{n}"


def _parameters(model: VisionTransformer | BiT) -> str:
    sizes: dict[str, int] = {}
    for path, weight in weights_by_path(model).items():
        part = _part(path)
        sizes[part] = sizes.get(part, 0) + math.prod(weight.shape)
    total = max(sum(sizes.values()), 1)
    bars = "".join(
        f'<span class="name">{escape(part)}</span>'
        f'<span class="bar"><i style="width: {100 * size / total:.1f}%"></i></span><span class="value">{size:,}</span>'
        for part, size in sorted(sizes.items(), key=lambda entry: -entry[1])
    )
    words = f"{total:,} parameters, by what they are for."
    return _section("Where its parameters are", words, f'<div class="bars">{bars}</div>')


def _part(path: str) -> str:
    layer, _, inner = path.partition("/")
    if layer.startswith("block_"):
        name = inner.partition("/")[0]
        return {"attention": "attention", "mlp": "MLPs"}.get(name, "normalisation and scales")
    if layer.startswith("block") or layer.endswith("_root"):
        return "ResNet"
    if layer in ("head", "head_dist", "pre_logits", "projection"):
        return {"head_dist": "head of the distillation token"}.get(layer, layer.replace("_", "-"))
    return {
        "embedding": "patch embedding",
        "encoder_norm": "normalisation and scales",
        "norm_pre_head": "normalisation and scales",
        "pre_norm": "normalisation and scales",
        "pooling": "attention pooling",
    }.get(layer, "tokens and positions")


def _config(model: VisionTransformer | BiT, source: Mapping[str, Any]) -> str:
    values = {name: value for name, value in model.config.to_dict().items() if name != "class_names"}
    names = model.config.class_names
    values["class_names"] = None if names is None else ", ".join([*names[:20], *(["…"] if len(names) > 20 else [])])
    tables = _table(values.items())
    if source:
        tables = f"<h3>The file</h3>{_table(source.items())}<h3>The config</h3>{tables}"
    return _section("All that decides what it computes", "The config, as <code>model.config</code> has it.", tables)


def _table(pairs: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(printable(name, 100))}</th>'
        f"<td><code>{escape(printable(value, 1000))}</code></td></tr>"
        for name, value in pairs
    )
    return f'<table class="plain"><tbody>{rows}</tbody></table>'


def _classifies(model: VisionTransformer | BiT) -> bool:
    return bool(model.config.classes) and len(model.output_shape) == 2
