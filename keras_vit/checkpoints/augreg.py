"""AugReg's index of more than 50,000 checkpoints (arXiv 2106.10270), and the best of them."""

import csv
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.catalogue import AUGREG, plain_variant

_COLUMNS = ("name", "ds", "final_val", "filename", "adapt_ds", "adapt_resolution", "adapt_final_val", "adapt_filename")


def augreg_index(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a copy of AugReg's `index.csv`, which describes every checkpoint (one row per fine-tuned file).

    Args:
        path: The file, from `gs://vit_models/augreg/index.csv`. Its columns are described in the official
            `vit_jax/checkpoint.py`, `get_augreg_df`.

    Returns:
        The rows as dicts of texts by column; `final_val` and `adapt_final_val` are accuracies from 0 to 1, or None
        where the cell has none.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not that index: not CSV in UTF-8, a column missing or there twice, a line too short.
    """
    try:
        with pathlib.Path(path).open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark first
            reader = csv.DictReader(file)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not AugReg's index.csv: {printable(error, 200)}.") from None
    for column in _COLUMNS:
        if columns.count(column) != 1:
            found = printable(", ".join(columns), 500) or "none"
            raise ValueError(f"{path} is not AugReg's index.csv: it must have one column {column!r}, but has {found}.")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"{path} is not AugReg's index.csv: line {number} has other cells than the head.")
        row |= {column: _accuracy(row[column]) for column in ("final_val", "adapt_final_val")}
    return rows


def _accuracy(cell: str) -> float | None:
    try:
        return float(cell) if 0 <= float(cell) <= 1 else None  # NaN is neither
    except ValueError:
        return None


def best_augreg(
    index: Iterable[dict[str, Any]],
    variant: str,
    *,
    ds: str = "i21k",
    adapt_ds: str | None = None,
    resolution: int | None = None,
) -> dict[str, Any]:
    """The best checkpoint of a variant for a data set and an image size, chosen as the official notebook does.

    The pre-trained file with the highest `final_val`; of its fine-tuned files, the one with the highest
    `adapt_final_val` (by validation images: test images would flatter the result). Other conditions are a line of
    Python: `[row for row in index if row["aug"] == "medium1"]`.

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
    rows, file = list(index), "filename"
    best = _best(rows, "final_val", name=variant, ds=ds)
    if adapt_ds is not None:
        size = {} if resolution is None else {"adapt_resolution": str(resolution)}
        best = _best(rows, "adapt_final_val", filename=best[file], adapt_ds=adapt_ds, **size)
        file = "adapt_filename"
    return {**best, "weights": AUGREG + best[file]}


def _best(rows: list[dict[str, Any]], accuracy: str, **conditions: str) -> dict[str, Any]:
    """The row with the highest accuracy among those with these values in these columns."""
    for column, value in conditions.items():
        spelling = plain_variant if column == "name" else str
        fitting = [row for row in rows if spelling(row[column]) == spelling(value)]
        if not fitting:
            cells = ", ".join(sorted({row[column] for row in rows})) or "none"
            raise ValueError(f"The index has no row with {column}={value!r} (after the conditions before it: {cells}).")
        rows = fitting
    rows = [row for row in rows if row[accuracy] is not None]
    if not rows:
        raise ValueError(f"The index has no {accuracy} for {conditions}.")
    return max(rows, key=lambda row: row[accuracy])
