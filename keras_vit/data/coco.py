"""COCO's annotations: JSON files beside pictures, panoptic with PNGs of ids, or of instances."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._arguments import printable, require_packages
from keras_vit.data.examples import image_files
from keras_vit.data.masks import mask_at_size, mask_targets
from keras_vit.preprocessing.windows import read_picture


class Segments(NamedTuple):
    """The segments of a picture in a panoptic annotation."""

    png: str  # the name of the file of ids
    picture: str  # that of the picture
    labels: dict[int, int]  # the class of each id
    crowds: set[int]


class Instances(NamedTuple):
    """The instances of a picture."""

    picture: str
    size: tuple[Any, Any]  # height and width, None where the file does not say them
    masks: list[Any]  # polygons or run lengths
    labels: list[int]


def panoptic_rows(file: Path, names: Sequence[str] | None = None) -> list[Segments]:
    """Returns the segments of each picture of a panoptic annotation."""

    def rows(about: Any) -> list[Segments]:
        places, found = class_numbers(about, names), {}
        pictures = {row["id"]: str(row["file_name"]) for row in about.get("images", ())}
        for row in about["annotations"]:
            png, parts = str(row["file_name"]), row["segments_info"]
            labels = {part["id"]: _listed(places, "category_id", part) for part in parts}
            if len(labels) < len(parts):
                raise ValueError(f"{png} has an id twice")
            if png in found:
                raise ValueError(f"{png} has two annotations")
            picture = _listed(pictures, "image_id", row) if pictures else f"{Path(png).stem}.jpg"
            found[png] = Segments(png, picture, labels, {part["id"] for part in parts if part.get("iscrowd")})
        return list(found.values())

    return _read_annotation(file, "panoptic", rows)


def instance_rows(file: Path, names: Sequence[str] | None = None) -> list[Instances]:
    """Returns the instances of each picture that has some, without crowds."""

    def rows(about: Any) -> list[Instances]:
        places, found = class_numbers(about, names), {}
        pictures = {
            row["id"]: Instances(str(row["file_name"]), (row.get("height"), row.get("width")), [], [])
            for row in about["images"]
        }
        for row in about["annotations"]:
            if "segments_info" in row:
                raise ValueError(f"it is panoptic, and there is no folder {file.with_suffix('')} with its PNGs")
            if not row.get("iscrowd"):
                picture = found.setdefault(row["image_id"], _listed(pictures, "image_id", row))
                picture.masks.append(row["segmentation"])
                picture.labels.append(_listed(places, "category_id", row))
        return list(found.values())

    return _read_annotation(file, "instance", rows)


def named_categories(file: Path, names: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns what the classes of an annotation are called, and which of them are stuff (`isthing` is 0), sorted."""

    def read(about: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
        places = class_numbers(about, names)
        stuff = [places[row["id"]] for row in about["categories"] if row.get("isthing") == 0]
        return tuple(names or (name for _, name in _categories(about))), tuple(sorted(stuff))

    return _read_annotation(file, "category", read)


def _listed(listed: Mapping[Any, Any], key: str, row: Mapping[str, Any]) -> Any:
    """Returns what is listed under the number `row[key]`; ValueError if nothing is, KeyError if the row lacks it."""
    if row[key] not in listed:
        raise ValueError(f"an annotation has the {key} {row[key]!r}, which is not listed")
    return listed[row[key]]


def class_numbers(about: Any, names: Sequence[str] | None) -> dict[int, int]:
    """Returns the class of each category of an annotation, by its id."""
    categories = _categories(about)
    if names is not None and len(names) != len(categories):
        raise ValueError(f"it has {len(categories)} categories, but the model {len(names)} classes")
    if names is not None and {name for _, name in categories} == set(names) and len(set(names)) == len(names):
        return {key: list(names).index(name) for key, name in categories}
    return {key: place for place, (key, _) in enumerate(categories)}


def _categories(about: Any) -> list[tuple[int, str]]:
    """Returns the ids and names of an annotation's categories, in the order of the ids."""
    found = sorted((row["id"], row["name"]) for row in about["categories"])
    if len(dict(found)) < len(found):
        raise ValueError("two categories have one id")
    return found


def _read_annotation(file: Path, kind: str, rows: Callable[[Any], Any]) -> Any:
    """Returns what the function `rows` does for the JSON in a file."""
    try:
        found = rows(json.loads(file.read_text(encoding="utf-8")))
        if not found:
            raise ValueError("it has no annotations")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is no {kind} annotation of COCO's form: {printable(error, 300)}.") from error
    except KeyError as error:
        raise ValueError(f"{file} is no {kind} annotation of COCO's form: it lacks {error}.") from error
    return found


def pictures_by_name(folder: Path, ids: Path) -> Callable[[str], Path]:
    """Returns a function from a name to the picture of that name in a folder, at any depth, but not in `ids`."""
    pictures: dict[str, list[Path]] = {}
    for path in image_files(folder):
        if ids not in path.parents:
            pictures.setdefault(path.name, []).append(path)

    def find(name: str) -> Path:
        places = pictures.get(Path(name).name, [])
        if not places:
            raise FileNotFoundError(f"{folder} has no picture {Path(name).name}.")
        if len(places) > 1:
            raise ValueError(f"{folder} has two pictures of one name: {places[0]} and {places[1]}.")
        return places[0]

    return find


def read_ids(png: Path) -> np.ndarray:
    """Returns the ids in a PNG of a panoptic annotation, int64 `(height, width)`: red + 256 green + 65,536 blue."""
    red, green, blue = np.moveaxis(read_picture(png).astype("int64"), -1, 0)
    return red + 256 * green + 65536 * blue


def panoptic_targets(file: Path, row: Segments, pixels: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Returns the segments of a picture by an annotation's row and its PNG.

    Crowds are among them: augmentation drops them; the panoptic quality excuses what is found in them.
    """
    png = file.with_suffix("") / row.png
    parts = [{"id": key, "label": label} for key, label in row.labels.items()]
    numbers = mask_at_size(read_ids(png), pixels, png)
    found = [key for key in np.unique(numbers).tolist() if key in row.labels]
    if not found:
        raise ValueError(f"{png} has none of the ids that {file.name} has of it.")
    return mask_targets(numbers, segments=parts) | {"crowd": np.array([key in row.crowds for key in found])}


def instance_targets(file: Path, row: Instances, pixels: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Returns the instances of a picture by an annotation's row."""
    size = pixels.shape[:2]
    if None not in row.size and row.size != size:
        raise ValueError(f"{file.name} has masks of {name} at {row.size}, but that is {size}.")
    try:
        masks = [mask_at_size(instance_mask(one, *size), pixels, file) for one in row.masks]
    except ValueError as error:
        raise ValueError(f"{file.name}: of {name} {error}") from error
    return {"masks": np.stack(masks), "labels": np.array(row.labels, "int32")}


def instance_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Returns the mask of an instance, booleans: of COCO's polygons `(height, width)`, of run lengths at their size."""
    require_packages("COCO's masks", ("pycocotools",), "coco")
    from pycocotools import mask

    try:
        runs = segmentation
        if not isinstance(runs, Mapping):
            runs = mask.merge(mask.frPyObjects(segmentation, height, width))
        elif isinstance(runs["counts"], list):
            runs = mask.frPyObjects(segmentation, height, width)
        return mask.decode(runs).astype(bool)
    except Exception as error:  # pycocotools raises what the wrong form leads it to
        words = f"an instance has no polygons or run lengths of COCO's form: {printable(segmentation, 60)}"
        raise ValueError(words) from error
