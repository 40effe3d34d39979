"""What `finetune` and `evaluate` do with `--task segmentation`: pictures with a mask each."""

import argparse
from collections.abc import Iterable
from typing import Any

from keras_vit.cli.command import OF_MASKS, Answer, Option, chosen, given, option, start_keras

RECIPE = "segmentation/dinov2_linear"


def mask_options() -> Iterable[Option]:
    """Those that say what masks hold."""
    text = "of DATA: classes, or masks in a folder with images/ and masks/"
    yield option("--task", choices=("classification", "segmentation"), default="classification", help=text)
    text = "what masks say where they say nothing (default: 255)"
    yield option("--ignore", type=int, metavar="N", help=text, only=OF_MASKS)
    text = "0 in masks stands for no class as well, as in ADE20K"
    yield option("--reduce-zero-label", action="store_const", const=True, help=text, only=OF_MASKS)


def open_masks(options: argparse.Namespace) -> Any:
    """DATA as `finetune_segmentation` takes it."""
    start_keras()
    from keras_vit import data

    return data.open_masks(options.data, **given(options, "ignore", "reduce_zero_label"))


def evaluate_masks(options: argparse.Namespace) -> Answer:
    """Measures the mean intersection over union."""
    start_keras()
    from keras_vit import load, segmentation

    reading = given(options, "ignore", "reduce_zero_label") | chosen(options, "on_bad_image")
    result = segmentation.evaluate(load(options.weights), options.data, **reading)
    return Answer(result.to_dict(), f"{result}\n{result.class_table(worst=10)}")
