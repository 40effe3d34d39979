"""`keras-vit download`."""

import argparse

from keras_vit._text import printable
from keras_vit.cli.command import Answer

HELP = "Fetches a checkpoint into the cache and prints where it is."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("name", metavar="NAME|URL")


def run(options: argparse.Namespace) -> Answer:
    """Fetches the file."""
    from keras_vit.checkpoints import find_checkpoint

    path = find_checkpoint(options.name)
    return Answer({"path": str(path), "bytes": path.stat().st_size}, printable(path))
