"""`keras-vit list`."""

import argparse

from keras_vit.cli.command import Answer

HELP = "The published checkpoints, or with --models the variants."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("query", nargs="?", help="a variant such as B/16, or part of a name")
    parser.add_argument("--family", help="only those of a family, such as DINOv2 or hybrid")
    parser.add_argument("--models", action="store_true", help="list the variants instead of checkpoints")


def run(options: argparse.Namespace) -> Answer:
    """Lists what fits the query."""
    if options.models:
        from keras_vit.checkpoints import list_models

        rows = list_models(options.query, options.family)
    else:
        from keras_vit.checkpoints import list_weights

        rows = list_weights(options.query, options.family)
    return Answer([*rows], rows)
