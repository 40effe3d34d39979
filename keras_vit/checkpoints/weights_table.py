"""The catalogue as a table."""

from typing import Any

from keras_vit.checkpoints.catalogue import catalogue, find_entry
from keras_vit.checkpoints.entry import Entry, plain_variant
from keras_vit.tables import Table


class WeightsTable(Table):
    """Rows of the catalogue; printing it draws a table, in which `~` marks what is deduced and was not seen."""

    columns = {
        "name": "name",
        "variant": "variant",
        "params": "params",
        "image_size": "pixels",
        "classes": "classes",
        "dataset": "trained on",
        "top1": "top-1 %",
        "size": "size",
        "licence": "licence",
    }


def list_weights(query: str | None = None) -> WeightsTable:
    """The published checkpoints, as rows of a table.

    Args:
        query: A variant in any spelling (`"B/16"`), part of a name (`"siglip2"`, `"imagenet21k/"`), or the name of an
            AugReg checkpoint. None for all. AugReg's other 50,000 files are not listed; see `find_entry`.

    Returns:
        A list of dicts with `name`, `variant`, `params`, `image_size`, `classes`, `dataset`, `top1` (percent),
        `top1_source`, `licence`, `url`, `mirrors`, `size`, `layout`, `notes` and `inferred` (the names of those that
        are deduced). Printing it draws a table.

    Raises:
        TypeError: if `query` is neither a string nor None.
        ValueError: if nothing fits; the message says what might.
    """
    entries = list(catalogue().values())
    if query is None:
        return WeightsTable(map(_row, entries))
    if not isinstance(query, str):
        raise TypeError(f"query must be a variant or part of a name, but {query!r} was given.")
    name, variant = query.removesuffix(".npz"), plain_variant(query)
    matches = (
        [entry for entry in entries if entry.name == name]
        or [entry for entry in entries if plain_variant(entry.variant) == variant]
        or [entry for entry in entries if name.lower() in entry.name.lower()]
    )
    return WeightsTable(map(_row, matches or [find_entry(query)]))


def _row(entry: Entry) -> dict[str, Any]:
    fields = ("name", "variant", "params", "image_size", "classes", "dataset", "top1", "top1_source", "licence", "url")
    row = {field: getattr(entry, field) for field in (*fields, "size", "layout")}
    return {**row, "mirrors": list(entry.urls[1:]), "notes": list(entry.notes), "inferred": list(entry.inferred)}
