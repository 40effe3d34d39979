"""`keras-vit inspect`."""

import argparse
import os
from typing import Any

from keras_vit.cli.command import SOURCE, Answer

HELP = "Writes a page that shows a model, and what it makes of images."
NEEDS_KERAS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    add = parser.add_argument
    add("source", metavar="FILE|NAME", help=SOURCE)
    add("--image", nargs="+", default=[], action="extend", metavar="PHOTO", help="images to show it on")
    add("-o", "--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")


def run(options: argparse.Namespace) -> Answer:
    """Reads all images before anything that takes long, and writes the page."""
    from keras_vit.inspection import write_page
    from keras_vit.preprocessing import load_image
    from keras_vit.zoo import load

    folder = os.path.dirname(os.path.abspath(options.output))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder} for the page.")
    images = {}
    for path in options.image:
        name = os.path.basename(path)
        images[name if name not in images else path] = load_image(path)
    model = load(options.source)
    source, notes = _about(options.source)
    title = os.path.basename(os.path.normpath(options.source)) if os.path.exists(options.source) else options.source
    path = write_page(model, options.output, images, title=title, source=source, notes=notes)
    size = os.path.getsize(path)
    data = {"page": str(path), "bytes": size, "images": list(images)}
    return Answer(data, f"Wrote {path} ({size / 1e3:,.0f} kB)")


def _about(source: str) -> tuple[dict[str, Any], list[str]]:
    """What a checkpoint file says about itself: facts, and what is odd."""
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint
    from keras_vit.checkpoints.download import SHIPPED

    if source.endswith((".keras", ".weights.h5")) or not (os.path.exists(source) or source in SHIPPED):
        return {}, []
    info = inspect_checkpoint(find_checkpoint(source)).to_dict()
    del info["config"]
    notes = [str(note) for note in info.pop("oddities", None) or ()]
    return {name: value for name, value in info.items() if value not in (None, [], "")}, notes
