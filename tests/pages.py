"""The code on the pages of the documentation."""

import re

from tests.processes import REPOSITORY

# A block of Python runs, in the order of its page, or says right above it why it does not:
# <!-- not run: downloads ViT-B/16 -->
_MARK, _CODE = r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?", r"^```python\n(?P<code>.*?)^```"
_BLOCK = re.compile(_MARK + _CODE, re.MULTILINE | re.DOTALL)


def blocks(page):
    """The blocks of a page: why one is not run in tests/test_docs.py, None where it is, and its code."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [(block["reason"], block["code"]) for block in _BLOCK.finditer(text)]
