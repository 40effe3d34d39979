"""Writes docs/zoo.md: every variant and every published checkpoint of the catalogue, in two tables.

    python docs/make_zoo.py

To be run again when either changes; tests/test_docs.py says so.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras_vit
from keras_vit.evaluation import read_ledger
from keras_vit.models import count_macs, factory_name, variant_config

PAGE = pathlib.Path(__file__).parent / "zoo.md"
HEAD = """# The zoo

Every variant that `create_model` makes, and every published checkpoint that `load` knows by name, as
`keras_vit.list_models()` and `keras_vit.list_weights()` give them; `python docs/make_zoo.py` writes this page. A click
on a heading sorts a table.

"M" are millions of weights, "G" billions of multiply-accumulate operations for one image (a floating point operation
count is about twice as much), of the plain variant at that size, whatever head a file has. `~` marks what was deduced
and not seen: a license is then that of the code beside which the files were published. A top-1 is the accuracy on
ImageNet-1k that was published, in percent; its source is in `keras_vit.list_weights(name)[0]["top1_source"]`. An empty
cell means that nobody has said. ✓ leads to the [ledger](ledger.md) of the files that were compared with their
publishers' code.

"""
VARIANTS_HEAD = """## Variants

With 1,000 classes, at the variant's own size; CLIP's image towers have an embedding instead of classes.

"""
WEIGHTS_HEAD = """## Published checkpoints

First the official files, then repositories of the Hugging Face Hub (`hf://`), which compute their publisher's numbers;
`list_weights(family="DINOv2")` and `list_models(family=...)` show one family. Besides these, every name of AugReg's
50,000 files is understood, and any file or address: [one way in](loading.md).

"""


def text() -> str:
    """The page."""
    variants = [
        (
            f"{row['name']}",
            f"`{factory_name(row['name'])}`",
            row["family"],
            str(row["image_size"]),
            _millions(row["params"]),
            _billions(row["macs"]),
            _mebibytes(row["params"]),
        )
        for row in keras_vit.list_models()
    ]
    checked = {row["name"] for row in read_ledger(PAGE.with_name("ledger.jsonl"))}
    weights = [
        (
            f"{_mark(row, 'name')}`{row['name']}`" + (" [✓](ledger.md)" if row["name"] in checked else ""),
            row["variant"],
            row["family"],
            "" if row["image_size"] is None else str(row["image_size"]),
            _cell(row, "dataset"),
            _cell(row, "top1"),
            "" if row["params"] is None else _mark(row, "params") + _millions(row["params"]),
            _macs(row),
            row["size"] or "",
            _cell(row, "license"),
        )
        for row in keras_vit.list_weights()
    ]
    titles = ("variant", "function", "family", "pixels", "M", "G", "MiB in float32")
    parts = [HEAD, VARIANTS_HEAD, _table(titles, variants)]
    titles = ("name", "variant", "family", "pixels", "trained on", "top-1", "M", "G", "file", "license")
    return "".join([*parts, "\n", WEIGHTS_HEAD, _table(titles, weights)])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = {"pixels", "M", "G", "MiB in float32", "top-1", "file"}
    lines = ["| " + " | ".join(titles) + " |", "|" + "|".join("---:" if t in right else "---" for t in titles) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return '<div class="sortable" markdown>\n\n' + "\n".join(lines) + "\n\n</div>\n"


def _mark(row: dict[str, Any], key: str) -> str:
    return "~" if key in row["inferred"] else ""


def _cell(row: dict[str, Any], key: str) -> str:
    return "" if row[key] is None else f"{_mark(row, key)}{row[key]}"


def _millions(params: int) -> str:
    return f"{params / 1e6:,.1f}"


def _billions(macs: int) -> str:
    return f"{macs / 1e9:,.2f}"


def _mebibytes(params: int) -> str:
    return f"{4 * params / 2**20:,.0f}"


def _macs(row: dict[str, Any]) -> str:
    """Of the model that the file holds, at its size.

    Empty where `create_model` does not know the variant, or where the size is the publisher's and is no multiple of the
    patch: SigLIP's 384 pixels in patches of 14 are really 378.
    """
    try:
        config = variant_config(row["variant"], classes=row["classes"], image_size=row["image_size"])
    except ValueError:
        return ""
    return _billions(count_macs(config))


def main() -> None:
    """Writes the page."""
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
