"""`keras-vit inspect`."""

import argparse
import os
from typing import Any

from keras_vit._terminal import megabytes
from keras_vit.cli.command import SOURCE, Answer, Command, check_exists, check_source, start_keras


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="FILE|NAME", help=SOURCE)
    add("--image", nargs="+", default=[], action="extend", metavar="PHOTO", help="images to show it on (default: none)")
    add("-o", "--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")


def _run(options: argparse.Namespace) -> Answer:
    """Reads all images before anything that takes long, and writes the page."""
    from keras_vit.preprocessing import load_image

    folder = os.path.dirname(os.path.abspath(options.output))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder} for the page.")
    if not options.output.endswith(".html"):
        raise ValueError(f"--output must end with .html, but {options.output!r} was given.")
    check_exists(*options.image)
    check_source(options.source)
    images = {}
    for path in options.image:
        name = os.path.basename(path)
        images[name if name not in images else path] = load_image(path)
    start_keras()
    from keras_vit.inspection import write_page
    from keras_vit.zoo import load

    model = load(options.source)
    source, notes = _about(options.source)
    title = os.path.basename(os.path.normpath(options.source)) if os.path.exists(options.source) else options.source
    path = write_page(model, options.output, images, title=title, source=source, notes=notes)
    size = os.path.getsize(path)
    data = {"page": str(path), "bytes": size, "images": list(images)}
    return Answer(data, f"Wrote {path} ({megabytes(size)})")


def _about(source: str) -> tuple[dict[str, Any], list[str]]:
    """What a checkpoint file says about itself: facts, and what is odd."""
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint, is_keras_file
    from keras_vit.checkpoints.catalogue import SHIPPED

    if is_keras_file(source) or not (os.path.exists(source) or source in SHIPPED):
        return {}, []
    info = inspect_checkpoint(find_checkpoint(source)).to_dict()
    del info["config"]
    notes = [str(note) for note in info.pop("oddities", None) or ()]
    return {name: value for name, value in info.items() if value not in (None, [], "")}, notes


INSPECT = Command(
    "Writes a page that shows a model, and what it makes of images.",
    _arguments,
    _run,
    ("glyphs", "ViT-B/16 --image photo.jpg -o photo.html"),
)
