"""`keras-vit recipes`."""

import argparse

from keras_vit.cli.command import Answer

HELP = "The papers' recipes."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("query", nargs="?", help="words of a name, a model or a data set")


def run(options: argparse.Namespace) -> Answer:
    """Lists what fits the query."""
    from keras_vit.training import list_recipes

    rows = list_recipes(options.query)
    if not rows:
        raise ValueError(f"No recipe has all of {options.query!r}; `keras-vit recipes` shows all.")
    return Answer([*rows], rows)
