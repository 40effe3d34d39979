"""Text in messages: names from files and servers, made safe to show; the names that somebody may have meant."""

import difflib
import unicodedata
from collections.abc import Mapping, Sequence

# Spaces of all widths, and the two joiners that Persian, Indic scripts and emoji are written with.
_SHOWN_CATEGORY = "Zs"
_SHOWN = "\u200c\u200d"


def printable(text: object, limit: int | None = None) -> str:
    r"""Text on one line in which nothing controls a terminal: control characters are replaced by their escapes.

    For names and messages that a file or a server brought along: ANSI and OSC sequences, line breaks, marks that turn
    the direction of writing, and halves of surrogate pairs (which no terminal can encode) show as `\x1b` and the like.
    Letters of any script stay as they are.

    Args:
        text: A string, or anything that `str` turns into one.
        limit: The most characters shown; longer text ends with ` ...`. None for all.

    Returns:
        The text; the same for text that is harmless.
    """
    text = str(text)
    more = " ..." if limit is not None and len(text) > limit else ""
    return "".join(map(_escaped, text[:limit])) + more


def is_class_name(name: str) -> bool:
    """Whether text can be the name of a class: one line without control characters and without space around it."""
    return bool(name) and name == name.strip() == printable(name)


def _escaped(character: str) -> str:
    if character.isprintable() or character in _SHOWN or unicodedata.category(character) == _SHOWN_CATEGORY:
        return character
    return character.encode("unicode_escape").decode("ascii")


_SUGGESTIONS = 5


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """What a message about an unknown name adds: ` Did you mean 'a' or 'b'?`, with at most five names.

    Args:
        name: The unknown name.
        known: The names that there are, each by a spelling in lower case to compare with.

    Returns:
        The question, with a space before it; empty where no name is near.
    """
    name = name.lower()
    near = difflib.get_close_matches(name, known, n=_SUGGESTIONS, cutoff=0.65)
    longer = [spelling for spelling in known if name and name in spelling]
    names = list(dict.fromkeys(known[spelling] for spelling in (*near, *longer)))[:_SUGGESTIONS]
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


def listing(names: Sequence[object], most: int = 5) -> str:
    """The first names of many, quoted and safe to show: `'a', 'b' and 3 more`."""
    first = ", ".join(repr(printable(name, 40)) for name in names[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first
