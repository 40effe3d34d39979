"""COCO's annotations: segments of panoptic files with their PNGs of ids, and instances as polygons or run lengths."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import printable, require_packages
from keras_vit.preprocessing.windows import read_picture

Segments = tuple[str, dict[int, int], set[int]]  # the name of a PNG, the class of each id, and the crowds


def panoptic_rows(file: Path, names: Sequence[str] | None = None) -> list[Segments]:
    """For each picture of a panoptic annotation the name of its PNG, the class of each id, and the crowds.

    `names` are what a model's classes are called, to find the file's categories by; None: by their order. ValueError
    unless the file has annotations of COCO's form whose ids differ.
    """

    def rows(about: Any) -> list[Segments]:
        places, found = class_numbers(about, names), []
        for row in about["annotations"]:
            parts = row["segments_info"]
            segments = {part["id"]: places[part["category_id"]] for part in parts}
            if len(segments) < len(parts):
                raise ValueError(f"{row['file_name']} has an id twice")
            found.append((str(row["file_name"]), segments, {part["id"] for part in parts if part.get("iscrowd")}))
        return found

    return _read(file, "panoptic", rows)


def instance_rows(file: Path, names: Sequence[str] | None = None) -> list[tuple[str, list[dict[str, Any]]]]:
    """For each picture with annotations of instances its name and those: `segmentation`, `label`, `crowd`.

    Arguments and errors are as of `panoptic_rows`.
    """

    def rows(about: Any) -> list[tuple[str, list[dict[str, Any]]]]:
        places = class_numbers(about, names)
        pictures = {row["id"]: str(row["file_name"]) for row in about["images"]}
        found: dict[str, list[dict[str, Any]]] = {}
        for row in about["annotations"]:
            label, crowd = places[row["category_id"]], bool(row.get("iscrowd"))
            part = {"segmentation": row["segmentation"], "label": label, "crowd": crowd}
            found.setdefault(pictures[row["image_id"]], []).append(part)
        return list(found.items())

    return _read(file, "instance", rows)


def category_names(file: Path) -> tuple[str, ...]:
    """What the categories of an annotation are called, in the order of their ids."""
    return _read(file, "category", lambda about: tuple(name for _, name in _categories(about)))


def class_numbers(about: Any, names: Sequence[str] | None) -> dict[int, int]:
    """The class of each category of an annotation, by its id.

    It is its place among the names, where these are the names of the categories; other names are those of the
    categories in the order of their ids. ValueError if there are more or fewer.
    """
    categories = _categories(about)
    if names is not None and len(names) != len(categories):
        raise ValueError(f"it has {len(categories)} categories, but the model {len(names)} classes")
    if names is not None and {name for _, name in categories} == set(names) and len(set(names)) == len(names):
        return {key: list(names).index(name) for key, name in categories}
    return {key: place for place, (key, _) in enumerate(categories)}


def _categories(about: Any) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in about["categories"])


def _read(file: Path, kind: str, rows: Callable[[Any], Any]) -> Any:
    """What `rows` returns for the JSON in a file; ValueError if that has another form, or there are no annotations."""
    try:
        found = rows(json.loads(file.read_text(encoding="utf-8")))
        if not found:
            raise ValueError("it has no annotations")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is no {kind} annotation of COCO's form: {printable(error, 300)}.") from error
    except KeyError as error:
        raise ValueError(f"{file} is no {kind} annotation of COCO's form: it lacks {error}.") from error
    return found


def pictures_by_name(folder: Path) -> Callable[[str], Path]:
    """A function from the name of a file to the picture in a folder, at any depth, with the same stem.

    It raises FileNotFoundError if there is none, and ValueError if there are two.
    """
    pictures: dict[str, list[Path]] = {}
    for path in folder.rglob("*.jpg"):
        pictures.setdefault(path.stem, []).append(path)

    def find(name: str) -> Path:
        places = pictures.get(Path(name).stem, [])
        if not places:
            raise FileNotFoundError(f"{folder} has no picture {Path(name).stem}.jpg.")
        if len(places) > 1:
            raise ValueError(f"{folder} has two pictures of one name: {places[0]} and {places[1]}.")
        return places[0]

    return find


def read_ids(png: Path) -> np.ndarray:
    """The ids in a PNG of a panoptic annotation, int64 `(height, width)`: red + 256 green + 65,536 blue."""
    red, green, blue = np.moveaxis(read_picture(png).astype("int64"), -1, 0)
    return red + 256 * green + 65536 * blue


def instance_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """The mask of an instance, booleans `(height, width)`, from COCO's polygons or run lengths.

    Raises ImportError if pycocotools is not installed.
    """
    require_packages("COCO's masks", ("pycocotools",), "coco")
    from pycocotools import mask

    if isinstance(segmentation, Mapping):
        runs = segmentation
        if isinstance(runs["counts"], list):
            runs = mask.frPyObjects(segmentation, height, width)
    else:
        runs = mask.merge(mask.frPyObjects(segmentation, height, width))
    return mask.decode(runs).astype(bool)
