"""`keras-vit info`."""

import argparse
import os
from typing import Any

from keras_vit.cli.command import Answer
from keras_vit.tables import pairs_table

HELP = "What a checkpoint file, a model file, or a name of the catalogue is."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument("source", metavar="FILE|NAME|URL")


def run(options: argparse.Namespace) -> Answer:
    """Describes a file from its contents, and a name from the catalogue."""
    source = options.source
    if source.endswith((".keras", ".weights.h5")):
        return _describe(source, _model_file(source))
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint, list_weights
    from keras_vit.checkpoints.download import SHIPPED

    if os.path.exists(source) or source in SHIPPED or "://" in source:
        return _describe(source, inspect_checkpoint(find_checkpoint(source)).to_dict())
    rows = list_weights(source)
    return Answer(rows[0], pairs_table(rows[0]["name"], rows[0])) if len(rows) == 1 else Answer([*rows], rows)


def _model_file(path: str) -> dict[str, Any]:
    from keras_vit.checkpoints import config_in_file
    from keras_vit.models import count_weights, variant_of

    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file {path}; the path of a model file was expected.")
    config = config_in_file(path)
    if config is None:
        raise ValueError(f"{path} does not say which model of keras_vit it is of.")
    return {
        "layout": "weights.h5" if path.endswith(".weights.h5") else "keras",
        "variant": variant_of(config),
        "parameters": count_weights(config),
        "bytes": os.path.getsize(path),
        "config": config.to_dict(),
    }


def _describe(source: str, info: dict[str, Any]) -> Answer:
    shown = {**info, **info["config"]}
    del shown["config"]
    shown.pop("unused", None)  # hundreds of names; the oddities say how many
    return Answer(info, pairs_table(source, shown))
