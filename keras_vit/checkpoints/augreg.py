"""The more than 50,000 checkpoints of AugReg (arXiv 2106.10270): what their names say, and the best of them.

A name is `{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}`; that of a fine-tuned file goes on with
`--{adapt_ds}-steps_{k}k-lr_{lr}-res_{resolution}`, where k is the number of steps in whole thousands.
"""

import csv
import math
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.entry import Entry, plain_variant, published_url

FOLDER = "augreg/"
BUCKET = "https://storage.googleapis.com/vit_models/"
MODELS = {
    "Ti_16": "ViT-Ti/16",
    "S_32": "ViT-S/32",
    "S_16": "ViT-S/16",
    "B_32": "ViT-B/32",
    "B_16": "ViT-B/16",
    "B_8": "ViT-B/8",
    "L_16": "ViT-L/16",
    "R_Ti_16": "R+ViT-Ti/16",
    "R26_S_32": "R26+ViT-S/32",
    "R50_L_32": "R50+ViT-L/32",
}
# What was trained on, and the number of its classes. The files' names do not tell the latter: it is the data set's.
PRETRAINING = {
    "i1k": ("ImageNet-1k", 1000),
    "i21k": ("ImageNet-21k", 21843),
    "i21k_30": ("ImageNet-21k (30 epochs)", 21843),
}
FINE_TUNING = {
    "imagenet2012": ("ImageNet-1k", 1000),
    "cifar100": ("CIFAR-100", 100),
    "oxford_iiit_pet": ("Oxford-IIIT Pet", 37),
    # VTAB's task on KITTI: the distance of the nearest vehicle, in four steps.
    "kitti": ("KITTI (distance)", 4),
    "resisc45": ("RESISC45", 45),
}
_NUMBER = r"\d+(?:\.\d+)?"
_NAME = re.compile(
    rf"(?P<model>{'|'.join(MODELS)})-(?P<ds>{'|'.join(PRETRAINING)})-\d+ep-lr_{_NUMBER}"
    r"-aug_(?:none|light0|light1|medium1|medium2|strong1|strong2)-wd_0\.(?:03|1)-do_0\.[01]-sd_0\.[01]"
    rf"(?:--(?P<adapt_ds>{'|'.join(FINE_TUNING)})-steps_\d+k-lr_{_NUMBER}-res_(?P<resolution>224|384))?"
)
_LOOKS_LIKE = re.compile(rf"{FOLDER}|(\w+)-i(1|21)k(_30)?-")
_COLUMNS = ("name", "ds", "final_val", "filename", "adapt_ds", "adapt_resolution", "adapt_final_val", "adapt_filename")


def is_augreg_name(name: str) -> bool:
    """Whether a name is meant to be one of AugReg's, right or wrong."""
    return _LOOKS_LIKE.match(name) is not None


def parse_augreg_name(name: str) -> Entry:
    """The entry of any AugReg checkpoint, from its name alone; whether the file exists is not known.

    Args:
        name: Like `"augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"`, with or without the folder
            and `.npz`; the name of a fine-tuned file goes on after `--`.

    Raises:
        ValueError: if it is no such name; the message says how they are written.
    """
    stem = name.removeprefix(FOLDER).removesuffix(".npz")
    match = _NAME.fullmatch(stem)
    if match is None:
        raise ValueError(
            f"{printable(repr(name), 200)} is no name of AugReg's. One is B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-"
            "do_0.0-sd_0.0, and goes on for a fine-tuned file with --imagenet2012-steps_20k-lr_0.03-res_384. Models: "
            f"{', '.join(MODELS)}. Data: {', '.join(PRETRAINING)}; fine-tuned: {', '.join(FINE_TUNING)}. aug: none, "
            "light0, light1, medium1, medium2, strong1, strong2. wd: 0.03, 0.1. do, sd: 0.0, 0.1. res: 224, 384."
        )
    dataset, classes = PRETRAINING[match["ds"]]
    if match["adapt_ds"]:
        target, classes = FINE_TUNING[match["adapt_ds"]]
        dataset = f"{dataset}, then {target}"
    # The spelling of the names with i21k_30 was not seen.
    inferred = ("classes", "license", "name") if match["ds"] == "i21k_30" else ("classes", "license")
    return Entry(
        name=FOLDER + stem,
        layout="vit_jax",
        variant=MODELS[match["model"]],
        image_size=int(match["resolution"] or 224),
        classes=classes,
        dataset=dataset,
        urls=(published_url(BUCKET, FOLDER + stem),),
        license="Apache-2.0",
        inferred=inferred,
    )


def augreg_index(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a copy of AugReg's `index.csv`, which describes every checkpoint (one row per fine-tuned file).

    Args:
        path: The file, from `gs://vit_models/augreg/index.csv`. Its columns are described in the official
            `vit_jax/checkpoint.py`, `get_augreg_df`.

    Returns:
        The rows as dicts of texts by column; `final_val` and `adapt_final_val` are accuracies from 0 to 1, or None
        where the cell is empty or `nan`. Rows that nobody can use are left out with a warning.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not that index: not CSV in UTF-8, or a column missing or there twice.
    """
    path = pathlib.Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a byte-order mark first
            reader = csv.DictReader(file)
            head = reader.fieldnames or []
            rows: list[dict[str, Any]] = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not AugReg's index.csv: {printable(error, 200)}.") from None
    for column in _COLUMNS:
        if head.count(column) != 1:
            columns = printable(", ".join(head), 500) or "none"
            raise ValueError(
                f"{path} is not AugReg's index.csv: it must have one column {column!r}, but has {columns}."
            )
    usable = [row for row in map(_usable, rows) if row is not None]
    if len(usable) < len(rows):
        left = len(rows) - len(usable)
        warnings.warn(
            f"{path}: {left} of {len(rows)} rows are left out: they have other cells than the head, name no file, or "
            "have no accuracy from 0 to 1 where one belongs.",
            stacklevel=2,
        )
    return usable


def _usable(row: dict[str, Any]) -> dict[str, Any] | None:
    """A row with its accuracies as numbers, None where they are not a number; None if nobody can use it."""
    if None in row or None in row.values() or not row["filename"] or not row["adapt_filename"]:
        return None
    try:
        values = {column: float(row[column] or "nan") for column in ("final_val", "adapt_final_val")}
    except ValueError:
        return None
    if any(value < 0 or value > 1 for value in values.values()):
        return None
    return row | {column: None if math.isnan(value) else value for column, value in values.items()}


def best_augreg(
    index: Iterable[dict[str, Any]],
    variant: str,
    *,
    ds: str = "i21k",
    adapt_ds: str | None = None,
    resolution: int | None = None,
) -> dict[str, Any]:
    """The best checkpoint of a variant for a data set and an image size, chosen as the official notebook does.

    The pre-trained file is the one with the highest `final_val`; of its fine-tuned files, the one with the highest
    `adapt_final_val`. (Validation images, not test images: a choice by the latter would flatter the result.) Other
    conditions are a line of Python: `[row for row in index if row["aug"] == "medium1"]`.

    Args:
        index: What `augreg_index` returned, or those of its rows that are to be chosen from.
        variant: Like `"B/16"` or `"R26+ViT-S/32"`.
        ds: What was pre-trained on: `"i1k"`, `"i21k"` or `"i21k_30"`.
        adapt_ds: What was fine-tuned on, such as `"imagenet2012"`; None for the pre-trained file.
        resolution: Only fine-tuned files of that image size.

    Returns:
        The row of the index, and under `"weights"` the name to load the file by.

    Raises:
        ValueError: if no row fits; the message says at which condition the last ones were lost.
    """
    if resolution is not None and adapt_ds is None:
        raise ValueError(f"resolution={resolution} is about fine-tuned files: pass adapt_ds=... as well.")
    rows = [row for row in index if row["final_val"] is not None]
    rows = _keep(_keep(rows, "name", variant, plain_variant), "ds", ds)
    best = max(rows, key=lambda row: row["final_val"])
    if adapt_ds is None:
        return {**best, "weights": FOLDER + best["filename"]}
    rows = _keep([row for row in rows if row["filename"] == best["filename"]], "adapt_ds", adapt_ds)
    rows = rows if resolution is None else _keep(rows, "adapt_resolution", str(resolution))
    rows = [row for row in rows if row["adapt_final_val"] is not None]
    if not rows:
        raise ValueError(f"The index has no adapt_final_val for {best['filename']} on {adapt_ds}.")
    best = max(rows, key=lambda row: row["adapt_final_val"])
    return {**best, "weights": FOLDER + best["adapt_filename"]}


def _keep(
    rows: list[dict[str, Any]], column: str, value: str, spelling: Callable[[str], str] = str
) -> list[dict[str, Any]]:
    """The rows with a value in a column, both brought to one spelling."""
    fitting = [row for row in rows if spelling(row[column]) == spelling(value)]
    if not fitting:
        cells = ", ".join(sorted({row[column] for row in rows})) or "none"
        raise ValueError(f"The index has no row with {column}={value!r} (after the conditions before it: {cells}).")
    return fitting
