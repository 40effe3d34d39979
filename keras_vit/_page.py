"""Pages of HTML that stand alone: elements whose text is escaped, images as addresses, tables, and the file."""

import base64
import io
import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import printable, require_packages
from keras_vit._files import check_folder, ending_of, expanded_path, write_text
from keras_vit._pictures import FORMATS, need_matplotlib

_TEMPLATE = Path(__file__).parent / "_page.html"
_VOID = ("img", "input")  # elements without content
_TILE = 288  # pixels of the longer side of an image in a grid
_LONGEST = 1000  # characters of a text: what strangers have written may be of any length


class Html(str):
    """Text that is HTML already, which `tag` takes as it is."""


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Returns an element of HTML. Content and values are escaped unless they are `Html`."""
    given = ""
    for key, value in attributes.items():
        key = key.removesuffix("_").replace("_", "-")
        given += f" {key}" if value is True else f' {key}="{_escaped(value)}"'
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{''.join(map(_escaped, content))}</{name}>")


def _escaped(content: object) -> str:
    """HTML as it is, anything else as one line of at most 1,000 characters without marks of HTML."""
    return content if isinstance(content, Html) else escape(printable(content, _LONGEST))


def image_address(pixels: np.ndarray, format: str = "PNG", palette: np.ndarray | None = None, **options: int) -> Html:
    """Returns an image as an address that carries its bytes; ImportError without Pillow."""
    from PIL import Image

    image, buffer = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    if palette is not None:
        image = image.convert("P")
        image.putpalette(palette.tobytes())
    image.save(buffer, format, optimize=True, **options)
    return Html(f"data:image/{format.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}")


def small_image(pixels: np.ndarray) -> np.ndarray:
    """Returns an image, uint8 `(height, width, 3 or 4)`, with at most 288 pixels on its longer side, for a grid."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_TILE, _TILE))
    return np.asarray(image)


def thumbnail(pixels: np.ndarray) -> Html:
    """A small copy of an image, uint8 `(height, width, channels)`, as an element for a grid with captions."""
    return tag("img", src=image_address(small_image(pixels)), alt="")


def html_tiles(tiles: Iterable[tuple[Html, object]]) -> Html:
    """Elements in a grid, each with words below it."""
    return tag("div", *(tag("figure", one, tag("figcaption", words)) for one, words in tiles), class_="tiles")


def html_table(rows: Iterable[Mapping[str, Any]]) -> Html:
    """Returns a table of rows with the same keys, which are its head; None is an empty cell."""
    rows = list(rows)
    head = tag("tr", *(tag("th", key) for key in (rows[0] if rows else ())))
    body = (tag("tr", *(tag("td", "" if value is None else value) for value in row.values())) for row in rows)
    return tag("div", tag("table", head, *body), class_="scroll")


def check_page_path(path: str | os.PathLike[str]) -> Path:
    """The path of a page in a folder that is there; ValueError unless it ends with `.html` or `.htm`."""
    ending_of(path, ".html", ".htm")
    check_folder(path)
    return Path(expanded_path(path))


def check_sheet_path(path: str | os.PathLike[str]) -> None:
    """Raises ValueError for a wrong ending, OSError for a missing folder, ImportError where what draws is missing."""
    ending = ending_of(path, ".html", ".htm", *FORMATS)
    check_folder(path)
    require_packages("A contact sheet", ("PIL",), "images")
    if ending in FORMATS:
        need_matplotlib()


def write_page(path: str | os.PathLike[str], title: str, parts: Iterable[Html], style: str = "") -> Path:
    """Writes a page of HTML parts, with more CSS in `style`, when it is complete; returns its path."""
    path = check_page_path(path)
    page = _TEMPLATE.read_text(encoding="utf-8").replace("<!-- TITLE -->", _escaped(title))
    page = page.replace("<!-- STYLE -->", style).replace("<!-- BODY -->", "\n".join(parts))
    write_text(path, page)
    return path
