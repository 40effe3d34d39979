"""The more than 50,000 checkpoints of AugReg (arXiv 2106.10270), found by what their names say.

A name is `{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}`; that of a fine-tuned file goes on with
`--{adapt_ds}-steps_{k}k-lr_{lr}-res_{resolution}`, where k is the number of steps in whole thousands.
"""

import csv
import math
import os
import pathlib
import re
import warnings
from collections.abc import Iterable
from typing import Any

from keras_vit._text import printable
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
AUGMENTATION = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")

_NUMBER = r"\d+(\.\d+)?"
# The parts of a name in order: what it is, how it is written, what is wrong with others.
_PRETRAINED = (
    ("model", "|".join(MODELS), f"one of {', '.join(MODELS)}"),
    ("ds", "|".join(PRETRAINING), f"one of {', '.join(PRETRAINING)}"),
    ("epochs", r"\d+ep", "like 300ep"),
    ("lr", f"lr_{_NUMBER}", "like lr_0.001"),
    ("aug", f"aug_({'|'.join(AUGMENTATION)})", f"aug_ and one of {', '.join(AUGMENTATION)}"),
    ("wd", "wd_(0.03|0.1)", "wd_0.03 or wd_0.1"),
    ("do", "do_(0.0|0.1)", "do_0.0 or do_0.1"),
    ("sd", "sd_(0.0|0.1)", "sd_0.0 or sd_0.1"),
)
_FINE_TUNED = (
    ("adapt_ds", "|".join(FINE_TUNING), f"one of {', '.join(FINE_TUNING)}"),
    ("adapt_steps", r"steps_\d+k", "like steps_20k"),
    ("adapt_lr", f"lr_{_NUMBER}", "like lr_0.03"),
    ("adapt_resolution", "res_(224|384)", "res_224 or res_384"),
)
_LOOKS_LIKE = re.compile(rf"{FOLDER}|(\w+)-i(1|21)k(_30)?-")

_TEXT_COLUMNS = ("name", "ds", "aug", "adapt_ds", "filename", "adapt_filename")
_SHOWN = 3  # lines of an index that a message names
_NEEDED = (*_TEXT_COLUMNS, "wd", "do", "sd", "final_val", "adapt_resolution", "adapt_final_val")


def is_augreg_name(name: str) -> bool:
    """Whether a name is meant to be one of AugReg's, right or wrong."""
    return _LOOKS_LIKE.match(name) is not None


def parse_augreg_name(name: str) -> Entry:
    """The entry of any AugReg checkpoint, from its name alone; whether the file exists is not known.

    Args:
        name: Like `"augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"`, with or without the folder
            and `.npz`; the name of a fine-tuned file goes on after `--`.

    Raises:
        ValueError: if a part of the name is none that AugReg used; the message says which.
    """
    stem = name.removeprefix(FOLDER).removesuffix(".npz")
    before, fine_tuned, after = stem.partition("--")
    parts = _parse(before, _PRETRAINED, name)
    dataset, classes = PRETRAINING[parts["ds"]]
    image_size = 224
    inferred = ["classes", "licence"]
    if parts["ds"] == "i21k_30":
        inferred.append("name")  # the spelling of these files' names was not seen
    if fine_tuned:
        parts |= _parse(after, _FINE_TUNED, name)
        image_size = int(parts["adapt_resolution"].removeprefix("res_"))
        target, classes = FINE_TUNING[parts["adapt_ds"]]
        dataset = f"{dataset}, then {target}"
    return Entry(
        name=FOLDER + stem,
        layout="vit_jax",
        variant=MODELS[parts["model"]],
        image_size=image_size,
        classes=classes,
        dataset=dataset,
        urls=(published_url(BUCKET, FOLDER + stem),),
        licence="Apache-2.0",
        inferred=tuple(inferred),
    )


def _parse(text: str, grammar: tuple[tuple[str, str, str], ...], name: str) -> dict[str, str]:
    words = text.split("-")
    expected = "-".join(part for part, *_ in grammar)
    parts = {}
    shown = printable(repr(name), 200)
    for (part, pattern, hint), word in zip(grammar, words, strict=False):
        if not re.fullmatch(pattern, word):
            shown_word = printable(repr(word), 80)
            raise ValueError(f"In the AugReg name {shown} the part {part} is {shown_word}; it must be {hint}.")
        parts[part] = word
    if len(words) != len(grammar):
        problem = f"{grammar[len(words)][0]} is missing" if len(words) < len(grammar) else "it is too long"
        half = printable(repr(text), 200)
        raise ValueError(f"The AugReg name {shown} is wrong at {half}: {problem}. It must be {expected}.")
    return parts


def augreg_index(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a copy of AugReg's `index.csv`, which describes every checkpoint (one row per fine-tuned file).

    Args:
        path: The file, from `gs://vit_models/augreg/index.csv`. Its columns are described in the official
            `vit_jax/checkpoint.py`, `get_augreg_df`.

    Returns:
        The rows as dicts by column: text, numbers, or None where a cell is empty or not a number (`nan`). Rows that
        nobody can use are left out with a warning: those without a file name, with more or fewer cells than the head,
        or with an accuracy that is not between 0 and 1.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not that index: not CSV in UTF-8, a column missing or there twice, text for a number.
    """
    path = pathlib.Path(path)
    rows: list[dict[str, Any]] = []
    unusable: list[str] = []
    line = 0
    try:
        # Spreadsheets put a byte-order mark first.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            _check_head(head)
            for cells in filter(None, reader):  # the csv module gives an empty row for an empty line
                line = reader.line_num
                if len(cells) != len(head):
                    unusable.append(f"line {line} has {len(cells)} cells, expected {len(head)}")
                    continue
                row = {column: _cell(column, text) for column, text in zip(head, cells, strict=True)}
                problem = _why_unusable(row)
                if problem is None:
                    rows.append(row)
                else:
                    unusable.append(f"line {line}: {problem}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not AugReg's index.csv: it is not UTF-8 ({error.reason}).") from None
    except (ValueError, csv.Error) as error:
        where = f", line {line}, is not a row of AugReg's index.csv: " if line else " is not AugReg's index.csv: "
        raise ValueError(f"{path}{where}{printable(error, 500)}") from None
    if unusable:
        reasons, total = "; ".join(unusable[:_SHOWN]), len(unusable) + len(rows)
        warnings.warn(f"{path}: {len(unusable)} of {total} rows are left out. {reasons}.", stacklevel=2)
    return rows


def _check_head(head: list[str]) -> None:
    missing = [column for column in _NEEDED if column not in head]
    if missing:
        raise ValueError(f"the column {missing[0]!r} is missing. Its columns are: {', '.join(head) or 'none'}.")
    twice = [column for column in _NEEDED if head.count(column) > 1]
    if twice:
        raise ValueError(f"the column {twice[0]!r} is there twice.")


def _cell(column: str, text: str) -> str | float | int | None:
    if column in _TEXT_COLUMNS:
        return text or None
    if not text or text.strip().lower().lstrip("+-") == "nan":
        return None
    value = float(text)
    return int(value) if value.is_integer() and "." not in text else value


def _why_unusable(row: dict[str, Any]) -> str | None:
    """Why no checkpoint can be chosen by a row, in words; None if one can."""
    for column in ("filename", "adapt_filename"):
        if row[column] is None:
            return f"{column} is empty"
    for column in ("final_val", "adapt_final_val"):
        if row[column] is not None and not 0 <= row[column] <= 1:
            return f"{column} is {row[column]}, expected an accuracy from 0 to 1"
    return None


def best_augreg(
    index: Iterable[dict[str, Any]],
    variant: str,
    *,
    ds: str = "i21k",
    adapt_ds: str | None = None,
    aug: str | None = None,
    wd: float | None = None,
    do: float | None = None,
    sd: float | None = None,
    resolution: int | None = None,
) -> dict[str, Any]:
    """The best checkpoint of a variant, chosen as the official code does.

    The pre-trained file is the one with the highest `final_val`; of its fine-tuned files, the one with the highest
    `adapt_final_val`. (Validation images, not test images: a choice by the latter would flatter the result.)

    Args:
        index: What `augreg_index` returned.
        variant: Like `"B/16"` or `"R26+ViT-S/32"`.
        ds: What was pre-trained on: `"i1k"`, `"i21k"` or `"i21k_30"`.
        adapt_ds: What was fine-tuned on, such as `"imagenet2012"`; None for the pre-trained file.
        aug: Only that augmentation, such as `"medium1"`.
        wd: Only that weight decay.
        do: Only that dropout.
        sd: Only that stochastic depth.
        resolution: Only fine-tuned files of that image size.

    Returns:
        The row of the index, and under `"weights"` the name to load the file by.

    Raises:
        ValueError: if no row fits; the message says at which condition the last ones were lost.
    """
    if resolution is not None and adapt_ds is None:
        raise ValueError(f"resolution={resolution} is about fine-tuned files: pass adapt_ds=... as well.")
    rows = [row for row in index if row["final_val"] is not None]
    rows = _keep(rows, "name", variant, plain=True)
    for column, value in (("ds", ds), ("aug", aug), ("wd", wd), ("do", do), ("sd", sd)):
        rows = _keep(rows, column, value)
    best = max(rows, key=lambda row: row["final_val"])
    if adapt_ds is None:
        return {**best, "weights": FOLDER + best["filename"]}
    rows = _keep([row for row in rows if row["filename"] == best["filename"]], "adapt_ds", adapt_ds)
    rows = _keep(rows, "adapt_resolution", resolution)
    rows = [row for row in rows if row["adapt_final_val"] is not None]
    if not rows:
        raise ValueError(f"The index has no adapt_final_val for {best['filename']} on {adapt_ds}.")
    best = max(rows, key=lambda row: row["adapt_final_val"])
    return {**best, "weights": FOLDER + best["adapt_filename"]}


def _keep(rows: list[dict[str, Any]], column: str, value: Any, plain: bool = False) -> list[dict[str, Any]]:
    """The rows with a value in a column; all of them if it is None."""
    if value is None:
        return rows

    def fits(cell: Any) -> bool:
        if plain:
            return plain_variant(str(cell)) == plain_variant(str(value))
        numbers = isinstance(cell, int | float) and isinstance(value, int | float)
        return math.isclose(cell, value) if numbers else cell == value

    fitting = [row for row in rows if fits(row[column])]
    if not fitting:
        cells = ", ".join(sorted({str(row[column]) for row in rows})) or "none"
        raise ValueError(f"The index has no row with {column}={value!r} (after the conditions before it: {cells}).")
    return fitting
