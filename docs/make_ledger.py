"""Writes docs/ledger.md of the rows in docs/ledger.jsonl, which `benchmarks/verify.py --ledger` writes.

    python docs/make_ledger.py

To be run again when a row is added; tests/test_verify.py says so.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

ROWS = pathlib.Path(__file__).parent / "ledger.jsonl"
PAGE = ROWS.with_suffix(".md")
HEAD = """---
hide: [toc]
---

# Ledger of checkpoints

This page shows which files of weights (checkpoints) were loaded with this package and compared with their publisher's
own code (timm, transformers, open_clip). Each row is one file. Both codes computed the output for the same picture.

- **SHA-256**: the beginning of the file's hash.
- **beside**: the publisher's package that was compared. **answer**: the output that was compared.
- **error**: the largest difference of the outputs, as a share of the largest output. Up to 1e-4 counts as equal.
- **pixels**: the largest difference of the preprocessed pictures, in grey levels of 255.
- **published**: outputs and accuracies that the publisher reports, and the measured values.

These commands add rows for the 60 smallest checkpoints of the [zoo](zoo.md). They need network. A checkpoint that has a
row is skipped, so you can stop the commands and start them again:

    pip install 'keras-vit-zoo[torch,images]' timm transformers open_clip_torch
    python benchmarks/verify.py --smallest 60 --ledger docs/ledger.jsonl
    python docs/make_ledger.py

`--data imagenet/val` also measures published accuracies. `.github/workflows/ledger.yml` runs the commands on GitHub. To
measure a row again, remove its line from `docs/ledger.jsonl`.

## Published checkpoints

"""
NOBODY = "No published weights have been checked yet: the machine that this package is developed on has no network.\n"
OWN = """
## Files of this repository

These files are the weights that are installed with the package (`glyphs`), and golden files (`tests/golden`). Golden
files are small models with random weights that the publishers' own code has written. Both codes ran on PyTorch, and
some outputs are equal bit for bit. "-" means that no package of a publisher reads the file.

"""
TITLES = ("checkpoint", "commit", "SHA-256", "beside", "answer", "error", "pixels", "published", "date")


def text(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    published = [row for row in rows if not _is_own(row)]
    own = [row for row in rows if _is_own(row)]
    return HEAD + (_table(published) if published else NOBODY) + OWN + _table(own)


def _is_own(row: dict[str, Any]) -> bool:
    return row["name"] == "glyphs" or row["name"].startswith("tests/golden/")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Columns in which something stands, and what all rows were made with below."""
    cells = [_cells(row) for row in rows]
    shown = [k for k in range(len(TITLES)) if any(row[k] != "-" for row in cells)]
    lines = [[TITLES[k] for k in shown], ["---"] * len(shown), *([row[k] for k in shown] for row in cells)]
    made_with = sorted({f"{row['versions']}; {row['machine']}" for row in rows})
    below = "\n".join(f"- {versions}" for versions in made_with)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f'<div class="sortable" markdown>\n\n{table}\n\n</div>\n\nMade with:\n\n{below}\n'


def _cells(row: dict[str, Any]) -> list[str]:
    """Hashes are cut: the file has them whole."""
    hashes = ", ".join(value[:12] for value in row["files"].values())
    figures = "; ".join(_figure(figure) for figure in row["published"])
    numbers = ["-" if row[key] is None else f"{row[key]:.1e}" if row[key] else "0" for key in ("error", "pixels")]
    differs = " **differs**" if row["result"] == "differs" else ""
    commit = "-" if row["commit"] is None else row["commit"][:12]
    name = row["name"].removeprefix("tests/golden/").removeprefix("hf://")
    about = [f"`{name}`{differs}", commit, f"`{hashes}`", row["beside"] or "-", row["answer"] or "-"]
    return [*about, *numbers, figures or "-", row["date"]]


def _figure(figure: dict[str, Any]) -> str:
    if "answer" in figure:
        return f"{figure['output']} {figure['answer']:.4g} (published: {figure['expected']:g})"
    return f"{figure['output']} off by {figure['difference']:.1e}"


def main() -> None:
    """Writes the page."""
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
