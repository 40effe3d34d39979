"""`keras-vit verify`."""

import argparse

from keras_vit.cli.command import Answer

HELP = "Compares published weights with the answers that were published with them; for a machine with network."
NEEDS_KERAS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="a repository of the Hugging Face Hub, or `all`")
    parser.add_argument("--picture", metavar="FILE", help="instead of the picture at an address, a copy of it")


def run(options: argparse.Namespace) -> Answer:
    """Fetches the weights, computes, compares."""
    from keras_vit.evaluation import verify

    table = verify(options.names, picture=options.picture)
    return Answer([*table], table, ok=table.agrees)
