"""JSON from strangers."""

import json
from typing import Any

from keras_vit._text import printable


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """The object that JSON text says.

    Args:
        data: The text, in UTF-8. The caller bounds its length: parsed, it may take forty times as many bytes.
        what: What it is, for messages.

    Raises:
        ValueError: if it is not UTF-8 or no JSON, is nested too deeply, is no object, or has one name twice in an
            object.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{what} is damaged: it is nested too deeply.") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are, too
        raise ValueError(f"{what} is damaged: {printable(error, 200)}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} is damaged: it is a {type(value).__name__}, expected an object of JSON.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the name {name[:100]!r} stands in it twice")
        values[name] = value
    return values
