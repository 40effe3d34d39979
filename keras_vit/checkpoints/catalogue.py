"""The published checkpoints, as data and as tables, and how to find one.

The data are in `weights/catalogue.json`, and in `weights/repositories.json` for what other people publish on the
Hugging Face Hub. AugReg's more than 50,000 files (arXiv 2106.10270) are not listed, because their names say it all:
`{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}`, and for a fine-tuned file
`--{adapt_ds}-steps_{k}k-lr_{lr}-res_{resolution}`, where k is the number of steps in whole thousands.
"""

import csv
import dataclasses
import functools
import json
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit._arguments import check_type, did_you_mean, printable
from keras_vit._files import expanded_path, weights_folder
from keras_vit._terminal import Table
from keras_vit.models import BIT_VARIANTS, VARIANTS

AUGREG = "augreg/"
# The checkpoints that come along: the file in weights/.
SHIPPED = {"glyphs": "glyphs.npz"}
_NAMES_LISTED = 5  # names in an error message
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
_COLUMNS = ("name", "ds", "final_val", "filename", "adapt_ds", "adapt_resolution", "adapt_final_val", "adapt_filename")
# By the start of the name of a checkpoint or of its variant; the others are "ViT".
_FAMILIES = {
    **{"bit_models/": "BiT", "big_vision/siglip2/": "SigLIP2", "big_vision/siglip/": "SigLIP"},
    **{"big_vision/zoo/deit3/": "DeiT-III", "tips/": "TIPS", "R": "hybrid", "Mixer": "Mixer"},
}
_BUCKET = "https://storage.googleapis.com/vit_models/"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published checkpoint, a row of the catalogue. What is not known is None."""

    name: str  # folder and name of the file, without `.npz`: what users pass as `weights`
    layout: str | None  # "vit_jax", "big_vision", "bit" or "tips"; None of a repository of somebody else
    variant: str  # the paper's name of the model, such as "ViT-B/16"
    image_size: int | None  # height and width in pixels that it was trained at
    classes: int | None  # outputs of its head; None without a head
    dataset: str  # what it was trained on
    urls: tuple[str, ...]  # where it is, in the order to try; first where it was published
    top1: float | None = None  # published accuracy on ImageNet-1k's validation images, in percent
    top1_source: str | None = None  # who published it, for which evaluation
    params: int | None = None  # number of weights of the model
    size: str | None = None  # size of the file as listed, such as "393.69 MiB"
    license: str | None = None  # SPDX name
    notes: tuple[str, ...] = ()  # what is unusual about it
    inferred: tuple[str, ...] = ()  # names of the fields that were deduced and not seen
    family: str = ""  # what `list_models` calls it
    task: str | None = None  # of models for masks and depth
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)  # what its publisher measured

    @property
    def basename(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def bytes(self) -> float | None:
        """The size as a number, as exactly as it is listed; None if none is."""
        number, _, unit = (self.size or "").partition(" ")
        return float(number) * _UNITS[unit] if self.size else None


def published_url(base: str, name: str) -> str:
    """The address of the file `name`.npz in a bucket, percent-encoded, `+` too (servers may misread it)."""
    return f"{base}{urllib.parse.quote(name)}.npz"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def plain_variant(name: str) -> str:
    """A variant's name without case, punctuation and `ViT`; `R50_L_32` and `R50+ViT-L/32` have the same."""
    return _plain(name).replace("vit", "")


def find_entry(name: str) -> Entry:
    """Returns the checkpoint that a name means; ValueError if there is none, or several, with what may be meant."""
    entries, stem = catalogue(), name.removesuffix(".npz")
    for full in (stem, f"{AUGREG}{stem}"):
        if full in entries:
            return entries[full]
    if stem.startswith(AUGREG) or re.match(r"\w+-i(1|21)k(_30)?-", stem):
        return _augreg_entry(stem.removeprefix(AUGREG))
    same = [entry for entry in entries.values() if entry.basename == stem]
    if len(same) == 1:
        return same[0]
    if same:
        names = ", ".join(repr(entry.name) for entry in same)
        raise ValueError(f"{name!r} is the name of several checkpoints. Pass one of these: {names}.")
    variants = [entry.name for entry in _of_variant(stem)]
    if variants:
        listed = ", ".join(map(repr, variants[:_NAMES_LISTED])) + (" ..." if len(variants) > _NAMES_LISTED else "")
        raise ValueError(f"{name!r} is a model, not a checkpoint. Pass one of {listed} (see list_weights({name!r})).")
    raise ValueError(
        f"There is no checkpoint or model {name!r}.{_suggestion(name)} See list_weights() or `keras-vit list`."
    )


def _of_variant(name: str) -> list[Entry]:
    return [entry for entry in _published().values() if plain_variant(entry.variant) == plain_variant(name)]


def _suggestion(name: str) -> str:
    """Returns a sentence with names or a repository like an unknown name; empty for none."""
    of_others = [entry.name for entry in repositories_called(name)]
    if of_others:
        return f" Did you mean {' or '.join(map(repr, of_others[:_NAMES_LISTED]))}?"
    known: dict[str, str] = {}
    for entry in _published().values():
        own = entry.name.removeprefix("hf://")
        known |= dict.fromkeys(
            (plain_variant(own), plain_variant(own if entry.layout is None else entry.basename)), entry.name
        )
    known |= {plain_variant(variant): variant for variant in (*VARIANTS, *BIT_VARIANTS, *SHIPPED)}
    similar = "" if name.startswith("hf:") else did_you_mean(plain_variant(name.removesuffix(".npz")), known)
    repository = re.fullmatch(r"(?:hf:/*)?([\w.-]+/[\w.-]+)", name, re.ASCII)
    if similar or not repository:
        return similar
    return f" Did you mean 'hf://{repository[1]}', a repository of the Hugging Face Hub?"


def repositories_called(name: str) -> list[Entry]:
    """Returns the repositories that a name of timm or Hugging Face means, the most accurate first."""
    # `vit_base_patch16_224` stands for all of that name, whatever follows a dot: timm takes one of them for it.
    wanted = _plain(name.rpartition("/")[2])
    others = [entry for entry in _published().values() if entry.layout is None and wanted]
    found = [entry for entry in others if wanted in (_plain(entry.basename), _plain(entry.basename.partition(".")[0]))]
    return sorted(found, key=lambda entry: -(entry.top1 or 0))


def _augreg_entry(stem: str) -> Entry:
    """Returns the entry of an AugReg checkpoint by its name; ValueError for other names, OSError without our data."""
    known, number = _read("catalogue.json")["augreg"], r"\d+(?:\.\d+)?"
    models, pretraining, fine_tuning = ("|".join(known[key]) for key in ("models", "pretraining", "fine_tuning"))
    match = re.fullmatch(
        rf"({models})-({pretraining})-\d+ep-lr_{number}-aug_(?:{'|'.join(_AUGMENTATIONS)})"
        rf"-wd_0\.(?:03|1)-do_0\.[01]-sd_0\.[01](?:--({fine_tuning})-steps_\d+k-lr_{number}-res_(224|384))?",
        stem,
    )
    if match is None:
        raise ValueError(
            f"{printable(repr(stem), 200)} is not the name of an AugReg checkpoint. An example is B_16-i21k-300ep-"
            "lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0, to which a fine-tuned file adds --imagenet2012-steps_20k-"
            f"lr_0.03-res_384. Models: {models}. Pre-training data: {pretraining}. Fine-tuning data: {fine_tuning}. "
            f"aug: {', '.join(_AUGMENTATIONS)}. wd: 0.03, 0.1. do, sd: 0.0, 0.1. res: 224, 384."
        )
    model, ds, adapt_ds, resolution = match.groups()
    dataset, classes = known["pretraining"][ds]
    if adapt_ds:
        target, classes = known["fine_tuning"][adapt_ds]
        dataset = f"{dataset}, then {target}"
    return Entry(
        name=AUGREG + stem,
        layout="vit_jax",
        variant=known["models"][model],
        image_size=int(resolution or 224),
        classes=classes,
        dataset=dataset,
        urls=(published_url(_BUCKET, AUGREG + stem),),
        license="Apache-2.0",
        family=_family_of(AUGREG, known["models"][model]),
        inferred=("classes", "license", *(["name"] if ds == "i21k_30" else [])),  # whose spelling was not seen
    )


def recommended(variant: str) -> Entry:
    """Returns the checkpoint of a variant (in any spelling) that `pretrained=True` loads, also one of the Hub."""
    # Of the first papers' models it is one for ImageNet-1k: what the official README recommends (AugReg, fine-tuned at
    # 384 pixels), or the original where AugReg has none. Of other families it is what their publisher gives.
    choices = _read("catalogue.json")["recommended"]
    for known, name in choices.items():
        if plain_variant(known) == plain_variant(variant):
            return _published()[name]
    others = _of_variant(variant)
    if not others:
        raise ValueError(
            f"No checkpoint of {variant!r} is published. pretrained=True loads one of: {', '.join(choices)}. See "
            "list_weights() (`keras-vit list`) for all checkpoints."
        )
    others = [entry for entry in others if entry.classes != 1000] or others
    weights = " or ".join(f"weights={entry.name!r}" for entry in others[:_NAMES_LISTED])
    raise ValueError(
        f"pretrained=True has no ImageNet-1k checkpoint of {others[0].variant}. Pass {weights}, with classes=... for "
        "fine-tuning or include_top=False for features."
    )


def recommended_size(variant: str) -> int | None:
    """The pixels of a side that `pretrained=True` loads weights for; None for an unknown variant."""
    name = _read("catalogue.json")["recommended"].get(variant)
    return None if name is None else _published()[name].image_size


def repositories(name: str) -> tuple[str, ...]:
    """The Hub's repositories (`owner/name`) with the same weights as a checkpoint, the preferred first."""
    return tuple(_read("catalogue.json")["hub"].get(name, ()))


def nearest_with_repository(entry: Entry) -> Entry | None:
    """Returns the checkpoint on the Hub of the same variant, classes and image size with the most similar name."""
    if repositories(entry.name):
        return None
    others = [find_entry(name) for name in _read("catalogue.json")["hub"]]
    kind = (entry.variant, entry.classes, entry.image_size)
    others = [other for other in others if (other.variant, other.classes, other.image_size) == kind]
    return max(others, key=lambda other: len(os.path.commonprefix([other.name, entry.name])), default=None)


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return json.loads((weights_folder() / name).read_text(encoding="utf-8"))


def _family_of(name: str, variant: str) -> str:
    starts = (start for start in _FAMILIES if name.startswith(start) or variant.startswith(start))
    return _FAMILIES.get(next(starts, ""), "ViT")


@functools.cache
def catalogue() -> dict[str, Entry]:
    """Returns all listed checkpoints by name; made once, not to be changed. OSError if the data files are missing."""
    entries = {}
    for group in _read("catalogue.json")["groups"]:
        common: dict[str, Any] = {"image_size": None, "classes": None, "mirrors": (), **group["common"]}
        for row in group["files"]:
            fields: dict[str, Any] = {**common, **row}
            for field in ("notes", "inferred"):  # which a group and its files both may fill
                fields[field] = (*common.get(field, ()), *row.get(field, ()))
            file, mirrors = fields.pop("file"), fields.pop("mirrors")
            name = group["folder"] + file
            urls = (published_url(group["base"], file), *mirrors)
            entries[name] = Entry(name=name, urls=urls, family=_family_of(name, fields["variant"]), **fields)
    return entries


@functools.cache
def _published() -> dict[str, Entry]:
    """Returns all listed checkpoints and then the repositories of other people, by name; made once."""
    found = dict(catalogue())
    for group in _read("repositories.json")["groups"]:
        for listed in group["repositories"]:
            row: dict[str, Any] = {**dict.fromkeys(("image_size", "classes")), **group["common"], **listed}
            row |= {field: tuple(row.get(field, ())) for field in ("notes", "inferred")}
            repository = row.pop("repository")
            more: dict[str, Any] = {"family": group["family"], "top1_source": None}
            if row.get("top1") is not None:
                more["top1_source"] = "the publisher's table, at its own size"
            name, url = f"hf://{repository}", f"https://huggingface.co/{repository}"
            found[name] = Entry(name=name, layout=None, urls=(url,), **row, **more)
    return found


def _row(entry: Entry) -> dict[str, Any]:
    """An entry as a row of `list_weights`: its fields, tuples as lists, with the first address as `url`."""
    row = {field: list(value) if isinstance(value, tuple) else value for field, value in vars(entry).items()}
    url, *mirrors = row.pop("urls")
    return {**row, "url": url, "mirrors": mirrors}


class WeightsTable(Table):
    """Rows of the catalogue; printing it draws a table, in which `~` marks what is deduced and was not seen."""

    columns = {
        **{"name": "name", "variant": "variant", "family": "family", "params": "params", "image_size": "pixels"},
        **{"classes": "classes", "dataset": "trained on", "top1": "top-1 %", "size": "size", "license": "license"},
    }


def list_weights(query: str | None = None, family: str | None = None) -> WeightsTable:
    """Returns a table of the published checkpoints: the official files, then repositories of the Hugging Face Hub.

    `query` is a variant (`"B/16"`), part of a name (`"siglip2"`), or one of AugReg's 50,000 checkpoints, which are not
    listed otherwise; `family` such as `"DINOv2"` or `"hybrid"`. Rows have `name` (for `load`), `variant`, `params`,
    `top1` (percent), `license`, `url` and others. TypeError or ValueError if nothing matches, with near names.

    Examples:
        >>> keras_vit.list_weights("imagenet21k/ViT-B_16")[0]["classes"]
        21843
    """
    check_type("query", query, str | None, "a string, a variant or part of a name")
    entries = [*_published().values()]
    if query is not None:
        name = query.removesuffix(".npz")
        entries = (
            [entry for entry in entries if entry.name == name]
            or _of_variant(query)
            or [entry for entry in entries if name.lower() in entry.name.lower()]
            or [find_entry(query)]
        )
    return WeightsTable(_of_family([*map(_row, entries)], family))


def list_models(query: str | None = None, family: str | None = None) -> Table:
    """Returns a table of the model variants that `create_model` takes.

    Rows have `name`, `family`, `params`, `macs` (multiply-accumulate operations per image) and `image_size`; `params`
    and `macs` are for 1,000 classes. `query` is part of a name, such as `"B/16"`; `family` and errors are as in
    `list_weights`.

    Examples:
        >>> [row["name"] for row in keras_vit.list_models("B/16")][:2]
        ['ViT-B/16', 'R50+ViT-B/16']
    """
    from keras_vit.models import count_macs, count_weights, find_variant, variant_config

    check_type("query", query, str | None, "a string, part of a variant's name")
    names = [*VARIANTS, *BIT_VARIANTS]
    if query is not None:
        names = [name for name in names if _plain(query) in _plain(name)] or [find_variant(query)]
    rows = []
    for name in names:
        config = variant_config(name)
        counts = {"params": count_weights(config), "macs": count_macs(config)}
        hybrid = name in VARIANTS and VARIANTS[name].stem_stages is not None
        kind = "BiT" if name in BIT_VARIANTS else "hybrid" if hybrid else VARIANTS[name].family
        rows.append({"name": name, "family": kind, **counts, "image_size": config.image_size[0]})
    return Table(_of_family(rows, family))


def _of_family(rows: list[dict[str, Any]], family: str | None) -> list[dict[str, Any]]:
    if family is None:
        return rows
    check_type("family", family, str, "a name such as 'DINOv2'")
    chosen = [row for row in rows if _plain(row["family"]) == _plain(family)]
    if not chosen:
        known = ", ".join(dict.fromkeys(row["family"] for row in rows))
        raise ValueError(f"family must be one of {known}, but {family!r} was given.")
    return chosen


# AugReg's index


def augreg_index(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads AugReg's `index.csv`, a table with one row per fine-tuned file, for `best_augreg`.

    Args:
        path: A copy of `gs://vit_models/augreg/index.csv`; the docstring of vit_jax's `get_augreg_df` explains the
            columns.

    Returns:
        A list of dicts of strings by column, except the accuracies `final_val` and `adapt_final_val` (0 to 1, or None).

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if the file is not UTF-8 CSV, lacks a column or has an incomplete line.
    """
    try:
        with open(expanded_path(path), newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark first
            reader = csv.DictReader(file)
            columns, rows = list(reader.fieldnames or ()), list(reader)
        for column in _COLUMNS:
            if columns.count(column) != 1:
                raise ValueError(f"the column {column!r} must be there once; columns are: {', '.join(columns) or None}")
        for number, row in enumerate(rows, 2):
            if None in row or None in row.values():
                raise ValueError(f"line {number} must have {len(columns)} cells, as the header does")
            row |= {column: _accuracy(row[column]) for column in ("final_val", "adapt_final_val")}
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path} is not AugReg's index.csv: {printable(error, 600)}. Download it again.") from None
    return rows


def _accuracy(cell: str) -> float | None:
    try:
        return float(cell) if 0 <= float(cell) <= 1 else None  # NaN is neither
    except ValueError:
        return None


def best_augreg(
    index: Iterable[dict[str, Any]],
    variant: str,
    *,
    ds: str = "i21k",
    adapt_ds: str | None = None,
    resolution: int | None = None,
) -> dict[str, Any]:
    """Returns the most accurate AugReg checkpoint of a variant such as `"B/16"`, as a row of `index` (`augreg_index`).

    It is the pre-trained file with the highest `final_val`, or its fine-tuned file with the highest `adapt_final_val`,
    as in the official notebook. `ds` is the data set of the pre-training (`"i1k"`, `"i21k"` or `"i21k_30"`), `adapt_ds`
    that of the fine-tuning, in `resolution` pixels. `"weights"` is the name for `load`. ValueError if no row matches.
    """
    if resolution is not None and adapt_ds is None:
        raise ValueError(f"resolution={resolution} selects a fine-tuned file: pass adapt_ds=... as well.")
    rows, file = list(index), "filename"
    best = _best(rows, "final_val", name=variant, ds=ds)
    if adapt_ds is not None:
        size = {} if resolution is None else {"adapt_resolution": str(resolution)}
        best = _best(rows, "adapt_final_val", filename=best[file], adapt_ds=adapt_ds, **size)
        file = "adapt_filename"
    return {**best, "weights": AUGREG + best[file]}


def _best(rows: list[dict[str, Any]], accuracy: str, **conditions: str) -> dict[str, Any]:
    """Returns the row with the highest accuracy among those with these values in these columns."""
    for column, value in conditions.items():
        spelling = plain_variant if column == "name" else str
        fitting = [row for row in rows if spelling(row[column]) == spelling(value)]
        if not fitting:
            cells = ", ".join(sorted({row[column] for row in rows})) or "none"
            raise ValueError(f"No row has {column}={value!r}. Rows that fit the earlier conditions have: {cells}.")
        rows = fitting
    rows = [row for row in rows if row[accuracy] is not None]
    if not rows:
        raise ValueError(f"All rows with {conditions} lack {accuracy}, so none is the best. Pass other conditions.")
    return max(rows, key=lambda row: row[accuracy])
