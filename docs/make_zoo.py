"""Writes docs/zoo.md: every variant and every published checkpoint of the catalogue, in two tables.

    python docs/make_zoo.py

To be run again when either changes; tests/test_docs.py says so.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import keras_vit
from keras_vit.models import count_macs, factory_name, variant_config

PAGE = pathlib.Path(__file__).parent / "zoo.md"
# The tables are wide: the list of its two headings leaves its place to them.
HEAD = """---
hide: [toc]
---

# Model zoo

This page lists all models. The first table has the variants that `create_model` makes with random weights
([`list_models()`](api/models/names.md)). The second has the published checkpoints that `load` knows by name
([`list_weights()`](api/models/names.md)). Click on a heading to sort.

- `M`: millions of weights. `G`: billions of multiply-accumulate operations for one image (FLOPs are about twice as
  many) of the size in `pixels`. In the second table both include the head of the file. `MiB`: the size of the weights
  in float32.
- `top-1`: the published accuracy on ImageNet-1k, in percent; its source is in
  `keras_vit.list_weights(name)[0]["top1_source"]`.
- `~`: we deduced the value, because the publisher does not state it. A license with this mark is the license of the
  publisher's code.
- ✓: the outputs of the file were compared with its publisher's code; the link leads to the [ledger](ledger.md).
- An empty cell: the publisher does not state the value, or it cannot be computed.

"""
VARIANTS_HEAD = """## Variants

These models have 1,000 classes and the variant's default image size. CLIP's image towers return an embedding instead of
classes. `function` makes the model, as in `keras_vit.ViT_B16(classes=10)`.

"""
WEIGHTS_HEAD = """## Published checkpoints

The official files come first, then repositories of the Hugging Face Hub (`hf://`). Models of these repositories compute
the same numbers as their publisher's library.
`list_weights(family="DINOv2")` and `list_models(family=...)` show one family. `load` also takes the name of each of
AugReg's 50,000 files, and any file or address: [load weights](loading.md).

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
    checked = {json.loads(line)["name"] for line in PAGE.with_name("ledger.jsonl").read_text().splitlines()}
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
    titles = ("variant", "function", "family", "pixels", "M", "G", "MiB")
    parts = [HEAD, VARIANTS_HEAD, _table(titles, variants)]
    titles = ("name", "variant", "family", "pixels", "trained on", "top-1", "M", "G", "file", "license")
    return "".join([*parts, "\n", WEIGHTS_HEAD, _table(titles, weights)])


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = {"pixels", "M", "G", "MiB", "top-1", "file"}
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

    Empty where `create_model` does not know the variant, or where the size is the publisher's and is not a multiple of
    the patch: SigLIP's 384 pixels in patches of 14 are really 378.
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
