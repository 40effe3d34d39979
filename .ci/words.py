"""Checks the words of pages, docstrings, comments and messages: `make lint` runs it, with the rules of CONTRIBUTING.

    python .ci/words.py [FILE ...]

proselint finds the words; what counts as text stands here. Ends with 1 where it found something.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

from proselint.registry.checks import Check, types
from proselint.registry.checks.engine import Fancy
from proselint.tools import LintFile

SKIPPED = (".ci/words.py", "docs/api/", "docs/zoo.md", "docs/fidelity.md", "docs/speed_rows.md", "CHANGELOG.md")
SKIPPED += ("CONTRIBUTING.md", "tests/")
RULES = {
    r"(?<!there )\b(?:is|are) no (?!longer|more|better|such|one\b|need|way)\w+": "is not a ..., are not ...",
    r"\bbut for\b": "except for",
    r"\banew\b": "again, reinitialised",
    r"(?<!^)\bfor good\b": "permanently",
    r"\bas ever\b": "as always, or leave it out",
    r"\bthose of the others\b": "the noun",
    r"\bif (?:it|this) is none\b": "unless it is ...",
    r"\bwith the aid of\b": "with",
}
CHECKS = [
    Check(types.Existence((pattern,), padding="{}"), Fancy(), path, f'"{{}}": write {advice}')
    for path, (pattern, advice) in ((f"rule_{i}", rule) for i, rule in enumerate(RULES.items()))
]


def python_texts(source: str) -> str:
    """Returns a Python file with its comments and its strings of several words in place, and blanks for the rest."""
    lines = [" " * len(line) for line in source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("COMMENT", "STRING", "FSTRING_MIDDLE") and " " in token.string.strip():
            for offset, text in enumerate(token.string.split("\n")):
                row = token.start[0] - 1 + offset
                start = token.start[1] if offset == 0 else 0
                lines[row] = lines[row][:start] + text + lines[row][start + len(text) :]
    return "\n".join(lines)


def markdown_texts(source: str) -> str:
    """Returns a page with blanks for its code."""
    return re.sub(r"^( *)```.*?^ *```|`[^`\n]*`", lambda code: re.sub(r"\S", " ", code[0]), source, flags=re.M | re.S)


def main() -> int:
    """Prints what was found, as ruff does, and returns the exit status."""
    names = sys.argv[1:] or subprocess.check_output(["git", "ls-files", "*.py", "*.md"], text=True).split()
    found = 0
    for name in names:
        if name.startswith(SKIPPED):
            continue
        source = Path(name).read_text(encoding="utf-8")
        file = LintFile(name, python_texts(source) if name.endswith(".py") else markdown_texts(source))
        for check in CHECKS:
            for result in check.check(file.content):
                row, column = file.line_col_of(result.span[0])
                print(f"{name}:{row}:{column}: {result.message}")
                found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
