"""`keras-vit convert`."""

import argparse
import os

from keras_vit._text import printable
from keras_vit.cli.command import Answer
from keras_vit.tables import megabytes

HELP = "Converts between .npz layouts, .keras and .weights.h5, both ways."
NEEDS_KERAS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")
    parser.add_argument("--layout", help="of an .npz that is written: vit_jax, big_vision, bit_tf or bit_bv")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def run(options: argparse.Namespace) -> Answer:
    """Loads the model and writes it in the format that the target's name ends with."""
    from keras_vit.checkpoints import save_model
    from keras_vit.zoo import load

    model = load(options.source)
    save_model(model, options.target, layout=options.layout, overwrite=options.overwrite)
    size = os.path.getsize(options.target)
    data = {"path": options.target, "bytes": size}
    return Answer(data, f"Wrote {printable(options.target)} ({megabytes(size)})")
