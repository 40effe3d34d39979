"""The published checkpoints and the variants, as data and as tables, and how to find one.

The data are in `weights/catalogue.json`, and in `weights/repositories.json` for what other people publish on the
Hugging Face Hub. AugReg's more than 50,000 files are not listed: their names say it all.
"""

import functools
import json
import os
import re
import warnings
from typing import Any

from keras_vit._arguments import did_you_mean
from keras_vit._files import weights_folder
from keras_vit._terminal import Table
from keras_vit.checkpoints.augreg import is_augreg_name, parse_augreg_name
from keras_vit.checkpoints.entry import Entry, plain_variant, published_url
from keras_vit.models import BIT_VARIANTS, VARIANTS

_SHOWN = 5  # names suggested in an error message
# The checkpoints that come along: the file in weights/.
SHIPPED = {"glyphs": "glyphs.npz"}
_LISTS = ("notes", "inferred")  # fields that a group and its files both may fill


def catalogue() -> dict[str, Entry]:
    """All listed checkpoints by name."""
    return dict(_load()[0])


def find_entry(name: str) -> Entry:
    """The checkpoint that a name means.

    Args:
        name: A name of the catalogue such as `"imagenet21k/ViT-B_16"`, the same without its folder where only one
            folder has it, or the name of any AugReg checkpoint. `.npz` at the end does not matter.

    Raises:
        TypeError: if `name` is not a string.
        ValueError: if there is no such checkpoint, or several; the message lists what may be meant.
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a checkpoint must be a string, but {name!r} was given.")
    entries, _ = _load()
    stem = name.removesuffix(".npz")
    if stem in entries:
        return entries[stem]
    if f"augreg/{stem}" in entries:
        return entries[f"augreg/{stem}"]
    if is_augreg_name(stem):
        return parse_augreg_name(stem)
    same = [entry for entry in entries.values() if entry.basename == stem]
    if len(same) == 1:
        return same[0]
    if same:
        names = ", ".join(repr(entry.name) for entry in same)
        raise ValueError(f"{name!r} may be any of {names}. Pass one of these.")
    variants = [entry.name for entry in entries.values() if plain_variant(entry.variant) == plain_variant(stem)]
    if variants:
        more = f" and {len(variants) - _SHOWN} more (see list_weights({name!r}))" if len(variants) > _SHOWN else ""
        raise ValueError(
            f"{name!r} is a model, not a checkpoint of it. There are: {', '.join(map(repr, variants[:_SHOWN]))}{more}."
        )
    known = {plain_variant(key): entry.name for entry in entries.values() for key in (entry.name, entry.basename)}
    known |= {plain_variant(row["name"].removeprefix("hf://")): row["name"] for row in _repository_rows()}
    known |= {plain_variant(variant): variant for variant in (*VARIANTS, *BIT_VARIANTS)} | {key: key for key in SHIPPED}
    hub = re.fullmatch(r"(?:hf:/*)?([\w.-]+/[\w.-]+)", name, re.ASCII)
    suggestion = "" if name.startswith("hf:") else did_you_mean(plain_variant(stem), known)
    if hub and not suggestion:
        suggestion = f" Did you mean 'hf://{hub[1]}', a repository of the Hugging Face Hub?"
    raise ValueError(
        f"There is no checkpoint or model {name!r}.{suggestion} list_weights() and list_models() show all."
    )


def recommended(variant: str) -> Entry:
    """The ImageNet-1k checkpoint of a variant that `pretrained=True` loads.

    The one that the official README recommends (AugReg, fine-tuned at 384 pixels); for variants that AugReg does
    not have, the original one.

    Args:
        variant: The paper's name, case and punctuation forgiven.

    Raises:
        ValueError: if no ImageNet-1k checkpoint of it is published; the message names what there is.
    """
    entries, choices = _load()
    plain = plain_variant(variant)
    for known, name in choices.items():
        if plain_variant(known) == plain:
            return entries[name]
    others = [entry for entry in entries.values() if plain_variant(entry.variant) == plain]
    if not others:
        raise ValueError(
            f"No checkpoint of {variant!r} is published. pretrained=True knows: {', '.join(choices)}. list_weights() "
            "shows all checkpoints."
        )
    pretrained = [entry for entry in others if entry.classes != 1000]
    choices_text = " or ".join(f"weights={entry.name!r}" for entry in (pretrained or others)[:_SHOWN])
    raise ValueError(
        f"No recommended ImageNet-1k checkpoint of {others[0].variant} is published, so there is none for "
        f"pretrained=True. For fine-tuning pass {choices_text} with classes=..., for features with include_top=False."
    )


def repositories(name: str) -> tuple[str, ...]:
    """The repositories of the Hugging Face Hub that have the same weights as a checkpoint, in other names.

    Args:
        name: The checkpoint's full name. It need not be listed: AugReg's others have repositories, too.

    Returns:
        Names such as `"timm/vit_base_patch16_224.augreg_in21k"`, the preferred first; none for most checkpoints.
    """
    return _repositories().get(name, ())


def nearest_with_repository(entry: Entry) -> Entry | None:
    """The checkpoint of the same variant, classes and image size that `repositories` knows, with the most similar name.

    Args:
        entry: The checkpoint that cannot be had.

    Returns:
        Its neighbour: AugReg published several fine-tuned files of one pre-trained one, for example. None if there is
        none.
    """
    others = [find_entry(name) for name in _repositories()]
    kind = (entry.variant, entry.classes, entry.image_size)
    others = [other for other in others if (other.variant, other.classes, other.image_size) == kind]
    return max(others, key=lambda other: len(os.path.commonprefix([other.name, entry.name])), default=None)


@functools.cache
def _repositories() -> dict[str, tuple[str, ...]]:
    return {name: tuple(names) for name, names in _read()["hub"].items()}


@functools.cache
def _load() -> tuple[dict[str, Entry], dict[str, str]]:
    """The entries by name, and the names of the recommended ones by variant."""
    data = _read()
    entries: dict[str, Entry] = {}
    for group in data["groups"]:
        for row in group["files"]:
            entry = _entry(group["folder"], group["base"], group["common"], row)
            if entry.name in entries:
                raise ValueError(f"weights/catalogue.json lists {entry.name!r} twice.")
            entries[entry.name] = entry
    return entries, data["recommended"]


@functools.cache
def _repository_rows() -> tuple[dict[str, Any], ...]:
    """The repositories of other people, as rows of `list_weights`."""
    empty = dict.fromkeys(("params", "image_size", "classes", "top1", "license", "size"))
    rows = []
    for group in _read("repositories.json")["groups"]:
        for listed in group["repositories"]:
            row = {**empty, "notes": [], "inferred": [], **group["common"], **listed}
            repository = row.pop("repository")
            row |= {"name": f"hf://{repository}", "family": group["family"], "layout": None, "mirrors": []}
            row |= {"url": f"https://huggingface.co/{repository}"}
            row["top1_source"] = None if row["top1"] is None else "the publisher's table, at its own size"
            rows.append(row)
    return tuple(rows)


def _read(name: str = "catalogue.json") -> dict[str, Any]:
    return json.loads((weights_folder() / name).read_text(encoding="utf-8"))


def _entry(folder: str, base: str, common: dict[str, Any], row: dict[str, Any]) -> Entry:
    fields: dict[str, Any] = {"image_size": None, "classes": None, **common, **row}
    fields |= {field: (*common.get(field, ()), *row.get(field, ())) for field in _LISTS}
    file, mirrors = fields.pop("file"), fields.pop("mirrors", ())
    return Entry(name=folder + file, urls=(published_url(base, file), *mirrors), **fields)


class _Row(dict[str, Any]):
    """A row of `list_weights`; the old spelling of one column is known for one more version."""

    def __missing__(self, column: str) -> Any:
        if column != "licence":
            raise KeyError(column)
        warnings.warn("The column 'licence' is called 'license' now.", DeprecationWarning, stacklevel=2)
        return self["license"]


class WeightsTable(Table):
    """Rows of the catalogue; printing it draws a table, in which `~` marks what is deduced and was not seen."""

    columns = {
        "name": "name",
        "variant": "variant",
        "family": "family",
        "params": "params",
        "image_size": "pixels",
        "classes": "classes",
        "dataset": "trained on",
        "top1": "top-1 %",
        "size": "size",
        "license": "license",
    }


def list_weights(query: str | None = None, family: str | None = None) -> WeightsTable:
    """The published checkpoints, as rows of a table: the official files, then repositories of the Hugging Face Hub.

    Args:
        query: A variant in any spelling (`"B/16"`), part of a name (`"siglip2"`, `"imagenet21k/"`), or the name of an
            AugReg checkpoint. None for all. AugReg's other 50,000 files are not listed; see `find_entry`.
        family: Only those of a family, such as `"DINOv2"` or `"hybrid"`, in any spelling. None for all.

    Returns:
        A list of dicts with `name` (what `load` takes), `variant`, `family`, `params`, `image_size`, `classes`,
        `dataset`, `top1` (percent), `top1_source`, `license`, `url`, `mirrors`, `size`, `layout` (None for
        repositories, whose files tell), `notes` and `inferred` (the names of those that are deduced). Printing it
        draws a table.

    Raises:
        TypeError: if `query` or `family` is neither a string nor None.
        ValueError: if nothing fits; the message says what might.

    Examples:
        >>> keras_vit.list_weights("imagenet21k/ViT-B_16")[0]["classes"]
        21843
    """
    if not isinstance(query, str | None):
        raise TypeError(f"query must be a variant or part of a name, but {query!r} was given.")
    rows = [*map(_row, catalogue().values()), *_repository_rows()]
    if query is not None:
        name, variant = query.removesuffix(".npz"), plain_variant(query)
        rows = (
            [row for row in rows if row["name"] == name]
            or [row for row in rows if plain_variant(row["variant"]) == variant]
            or [row for row in rows if name.lower() in row["name"].lower()]
            or [_row(find_entry(query))]
        )
    return WeightsTable(map(_Row, _of_family(rows, family)))


def list_models(query: str | None = None, family: str | None = None) -> Table:
    """The variants, for `create_model`, as rows of a table.

    Args:
        query: Part of a name in any spelling, such as `"B/16"` or `"R50"`; None for all.
        family: Only those of a family, such as `"DINOv2"` or `"hybrid"`, in any spelling; None for all.

    Returns:
        A list of dicts with `name`, `family`, `params` and `macs` (multiply-accumulate operations for one image),
        both with 1,000 classes at `image_size` pixels. Printing it draws a table.

    Raises:
        TypeError: if `family` is neither a string nor None.
        ValueError: if no variant fits.

    Examples:
        >>> [row["name"] for row in keras_vit.list_models("B/16")][:2]
        ['ViT-B/16', 'R50+ViT-B/16']
    """
    from keras_vit.models import BIT_VARIANTS, VARIANTS, count_macs, count_weights, find_variant, variant_config

    names = [*VARIANTS, *BIT_VARIANTS]
    if query is not None:
        names = [name for name in names if _plain_family(query) in _plain_family(name)] or [find_variant(query)]
    rows = []
    for name in names:
        config = variant_config(name)
        counts = {"params": count_weights(config), "macs": count_macs(config)}
        hybrid = name in VARIANTS and VARIANTS[name].stem_stages is not None
        kind = "BiT" if name in BIT_VARIANTS else "hybrid" if hybrid else VARIANTS[name].family
        rows.append({"name": name, "family": kind, **counts, "image_size": config.image_size[0]})
    return Table(_of_family(rows, family))


def _of_family(rows: list[dict[str, Any]], family: str | None) -> list[dict[str, Any]]:
    """The rows whose `"family"` is the one that is named, in any spelling; all of them for None.

    Raises:
        TypeError: if `family` is neither a string nor None.
        ValueError: if there are none of that family; the message names those that there are.
    """
    if family is None:
        return rows
    if not isinstance(family, str):
        raise TypeError(f"family must be a name such as 'DINOv2', but {family!r} was given.")
    plain = _plain_family(family)
    chosen = [row for row in rows if _plain_family(row["family"]) == plain]
    if not chosen:
        known = ", ".join(dict.fromkeys(row["family"] for row in rows))
        raise ValueError(f"None of them is of the family {family!r}. There are: {known}.")
    return chosen


def _plain_family(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _row(entry: Entry) -> dict[str, Any]:
    fields = ("name", "variant", "params", "image_size", "classes", "dataset", "top1", "top1_source", "license", "url")
    row = {field: getattr(entry, field) for field in (*fields, "size", "layout")}
    row |= {"mirrors": list(entry.urls[1:]), "notes": list(entry.notes), "inferred": list(entry.inferred)}
    return {**row, "family": entry.family}
