"""Runs what each page of a task begins with, and keeps the picture that it draws as docs/images/PAGE_first.png.

    python docs/make_tasks.py

Prints what each block prints; the pages show it, and tests/test_docs.py compares. Needs matplotlib, Pillow and
scikit-learn. Takes a minute.
"""

import contextlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
# The picture that the first block of a page writes; None for a page that shows another, or none.
PAGES: dict[str, str | None] = {
    "training": "runs/digits/curve.png",
    "dense": "masks.png",
    "zero_shot": "confusion.png",
    "inspection": "rollout.png",
    "detection": None,
    "loading": None,
    "features": None,
    "distribution": None,
}


def first_block(page: str) -> str:
    """The first code of a page that runs."""
    found = re.search(
        r"(?<!-->\n)^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.M | re.S
    )
    if found is None:
        raise ValueError(f"docs/{page}.md has no block of Python.")
    return found[1]


def main() -> None:
    """Runs the blocks in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs").symlink_to(DOCS)
        os.chdir(folder)
        for page, picture in PAGES.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(first_block(page), page, "exec"), {"__name__": "__main__"})
            print(f"== {page}\n{printed.getvalue()}", flush=True)
            if picture is not None:
                shutil.copyfile(picture, DOCS / "images" / f"{page}_first.png")


if __name__ == "__main__":
    main()
