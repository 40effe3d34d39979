"""`keras-vit list`, `info`, `download` and `recipes`: what there is. None of them needs Keras."""

import argparse
import os
from typing import Any

from keras_vit._arguments import printable
from keras_vit._terminal import megabytes, pairs_table
from keras_vit.cli.command import Answer, Command

_NAMES = 5  # names of classes that `info` shows


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="?", help="a variant such as B/16, or part of a name (default: all)")
    parser.add_argument("--family", help="only those of a family, such as DINOv2 or hybrid (default: all)")
    parser.add_argument("--models", action="store_true", help="list the variants instead of checkpoints")


def _list(options: argparse.Namespace) -> Answer:
    """What fits the query."""
    from keras_vit.checkpoints import list_models, list_weights

    rows = (list_models if options.models else list_weights)(options.query, options.family)
    return Answer([*rows], rows)


def _info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE|NAME|URL")


def _info(options: argparse.Namespace) -> Answer:
    """Describes a file from its contents, and a name from the catalogue."""
    from keras_vit import checkpoints
    from keras_vit.checkpoints.catalogue import SHIPPED

    if checkpoints.is_variant(options.source):
        rows = checkpoints.list_weights(options.source)
        return Answer([*rows], rows)
    source = os.fspath(checkpoints.resolve_source(options.source))
    if checkpoints.is_keras_file(source):
        return _description(source, _keras_file(source))
    if source in SHIPPED or "://" in source or os.path.exists(os.path.expanduser(source)):
        return _description(source, checkpoints.inspect_checkpoint(checkpoints.find_checkpoint(source)).to_dict())
    (row,) = checkpoints.list_weights(source)
    return Answer(row, pairs_table(source, row))


def _keras_file(path: str) -> dict[str, Any]:
    from keras_vit.checkpoints import config_in_file
    from keras_vit.models import count_weights, variant_of

    config: Any = config_in_file(path)
    if config is None:
        raise ValueError(f"{path} does not say which model of keras_vit it is of.")
    return {
        "layout": "weights.h5" if path.endswith(".weights.h5") else "keras",
        "variant": variant_of(config),
        "parameters": count_weights(config),
        "bytes": os.path.getsize(path),
        "config": config.to_dict(),
    }


def _description(source: str, info: dict[str, Any]) -> Answer:
    """The model and its layout first; the names of its classes last, the first of them."""
    config = dict(info["config"])
    names = config.pop("class_names") or []
    first = ", ".join(map(str, names[:_NAMES])) + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")
    left_out = ("config", "bytes", "unused")  # hundreds of unused arrays; the oddities say how many
    rows = {
        "model": info["variant"] or "none of the named variants",
        "layout": info["layout"],
        "parameters": f"{info['parameters']:,}",
        "size": megabytes(info["bytes"]),
        **{name: value for name, value in info.items() if name not in ("variant", "layout", "parameters", *left_out)},
        **config,
        "class_names": first,
    }
    return Answer(info, pairs_table(source, rows))


def _download_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|URL")


def _download(options: argparse.Namespace) -> Answer:
    """Fetches the file."""
    from keras_vit.checkpoints import find_checkpoint

    path = find_checkpoint(options.name)
    return Answer({"path": str(path), "bytes": path.stat().st_size}, printable(path))


def _recipes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="?", help="words of a name, a model or a data set (default: all)")


def _recipes(options: argparse.Namespace) -> Answer:
    """What fits the query."""
    from keras_vit.training import list_recipes

    rows = list_recipes(options.query)
    if not rows:
        raise ValueError(f"No recipe has all of {options.query!r}; `keras-vit recipes` shows all.")
    return Answer([*rows], rows)


LIST = Command(
    "The published checkpoints, or with --models the variants.",
    _list_arguments,
    _list,
    ("B/16", "--family DINOv2"),
)
INFO = Command(
    "What a checkpoint file, a model file, or a name of the catalogue is.",
    _info_arguments,
    _info,
    ("runs/finetune/model.keras", "hf://google/vit-base-patch16-224"),
)
DOWNLOAD = Command(
    "Fetches a checkpoint into the cache and prints where it is.",
    _download_arguments,
    _download,
    ("imagenet21k/ViT-B_16",),
)
RECIPES = Command("The papers' recipes.", _recipes_arguments, _recipes, ("cifar", "'pretrain B/16'"))
