"""`keras-vit demo`."""

import argparse

from keras_vit.cli.command import Answer

HELP = "Fine-tunes the checkpoint that comes along on real digits, without network."
NEEDS_KERAS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("--output", default="demo-output", help="folder for its files (default: %(default)s)")


def run(options: argparse.Namespace) -> Answer:
    """Runs the demo, which prints what it does."""
    from keras_vit import demo

    code = demo.main(["--output", options.output])
    return Answer({"ok": code == 0, "output": options.output}, None, ok=code == 0)
