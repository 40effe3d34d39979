"""COCO's annotations: JSON files beside pictures, panoptic with PNGs of ids, or of instances."""

import json
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit._arguments import did_you_mean, listing, printable, require_packages, warn_caller
from keras_vit.data.examples import image_files, warn_of_spellings
from keras_vit.data.masks import mask_at_size, mask_targets
from keras_vit.preprocessing.images import read_picture

_FARTHEST = 1e5  # pixels from the corner to a point of a polygon; pycocotools ends the process at 1e9 and at NaN


class Segments(NamedTuple):
    """The segments of a picture in a panoptic annotation."""

    png: str  # the name of the file of ids
    picture: str  # that of the picture
    labels: dict[int, int]  # the class of each id
    crowds: set[int]


class Shapes(NamedTuple):
    """The instances of a picture, or its boxes."""

    picture: str
    size: tuple[Any, Any]  # height and width, None where the file does not say them
    # Polygons or run lengths; those of crowds come first, so that single things lie above them. Or left, top, width and
    # height of boxes.
    shapes: list[Any]
    labels: list[int]
    crowd: list[bool]
    areas: list[float]  # what the file says; NaN of instances where it does not


class Annotation(NamedTuple):
    """What a file of COCO's form says."""

    rows: list[Any]  # `Segments` of each picture that has some, or `Shapes` of each picture
    names: tuple[str, ...]  # of the classes
    stuff: tuple[int, ...]  # classes of which there are no single things (`isthing` is 0)
    is_panoptic: bool


def read_annotation(file: Path, names: Sequence[str] | None = None, boxes: bool = False) -> Annotation:
    """Returns what a file says; `names` are what the classes are called, with `boxes` these alone are read."""
    kind = ""
    try:
        about = json.loads(file.read_text(encoding="utf-8-sig"))
        is_panoptic = any("segments_info" in row for row in about["annotations"])
        kind = "" if boxes else "panoptic " if is_panoptic else "instance "
        places = class_numbers(about, names)
        rows = (_box_rows if boxes else _panoptic_rows if is_panoptic else _instance_rows)(file, about, places)
        if not rows:
            raise ValueError("the list 'annotations' is empty")
        stuff = sorted(places[row["id"]] for row in about["categories"] if row.get("isthing") == 0)
        warn_of_spellings([name for _, name in _categories(about)], printable(file))
        return Annotation(rows, tuple(names or (name for _, name in _categories(about))), tuple(stuff), is_panoptic)
    except (ValueError, TypeError, AttributeError, RecursionError, KeyError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else printable(error, 300)
        raise ValueError(f"{file} does not have COCO's {kind}annotation format: {reason}.") from error


def _panoptic_rows(file: Path, about: Any, places: Mapping[int, int]) -> list[Segments]:
    found: dict[str, Segments] = {}
    pictures = {key: row.picture for key, row in _pictures(about).items()} if "images" in about else {}
    for row in about["annotations"]:
        png, parts = str(row["file_name"]), row["segments_info"]
        labels = {part["id"]: _listed(places, "category_id", part) for part in parts}
        if len(labels) < len(parts):
            raise ValueError(f"{png} has two segments with the same id")
        if png in found:
            raise ValueError(f"{png} has two annotations")
        picture = _listed(pictures, "image_id", row) if pictures else f"{Path(png).stem}.jpg"
        found[png] = Segments(png, picture, labels, {part["id"] for part in parts if part.get("iscrowd")})
    return list(found.values())


def _instance_rows(file: Path, about: Any, places: Mapping[int, int]) -> list[Shapes]:
    """Returns the instances of pictures, crowds among them, without boxes alone; pictures without instances last."""
    rows, pictures = about["annotations"], _pictures(about)
    single = [row for row in rows if not row.get("iscrowd")]
    shown = [row for row in single if _has_mask(row)]
    if rows and not single:
        raise ValueError(f"all {len(rows)} annotations are crowds, which are not trained on")
    if rows and not shown:
        raise ValueError(f"none of the {len(rows)} annotations has polygons or run lengths")
    if len(shown) < len(single):
        less = f"{len(single) - len(shown)} of {len(rows)} annotations in {printable(file)}"
        warn_caller(f"{less} have no polygons or run lengths, and are left out.")
    crowds = [row for row in rows if row.get("iscrowd")]
    warn_of_crowds(file, len({row["image_id"] for row in crowds} - {row["image_id"] for row in single}))
    ordered = {row["image_id"]: _listed(pictures, "image_id", row) for row in shown} | pictures
    for row in [*filter(_has_mask, crowds), *shown]:
        _add(ordered, row, row["segmentation"], np.nan, places)
    return list(ordered.values())


def _has_mask(row: Mapping[str, Any]) -> bool:
    """Whether an annotation has run lengths, or a polygon that is not empty."""
    return any(row.get("segmentation") or ())


def _box_rows(file: Path, about: Any, places: Mapping[int, int]) -> list[Shapes]:
    pictures = _pictures(about)
    for row in about["annotations"]:
        _, _, width, height = row["bbox"]
        _add(pictures, row, row["bbox"], width * height, places)
    return list(pictures.values())


def _pictures(about: Any) -> dict[Any, Shapes]:
    rows = _by_id(about["images"], "pictures")
    for name, count in Counter(posixpath.normpath(str(row["file_name"])) for row in rows.values()).items():
        if count > 1:
            raise ValueError(f"two pictures are called {name!r}")
    sizes = {key: (row.get("height"), row.get("width")) for key, row in rows.items()}
    return {key: Shapes(str(row["file_name"]), sizes[key], [], [], [], []) for key, row in rows.items()}


def _by_id(rows: Sequence[Any], what: str) -> dict[Any, Any]:
    found = {row["id"]: row for row in rows}
    if len(found) < len(rows):
        (key, _), *_ = Counter(row["id"] for row in rows).most_common()
        raise ValueError(f"two {what} have the same id {key!r}")
    return found


def _add(pictures: Mapping[Any, Shapes], row: Any, shape: Any, area: float, places: Mapping[int, int]) -> None:
    picture = _listed(pictures, "image_id", row)
    picture.shapes.append(shape)
    picture.labels.append(_listed(places, "category_id", row))
    picture.crowd.append(bool(row.get("iscrowd")))
    picture.areas.append(area if row.get("area") is None else row["area"])


def warn_of_crowds(file: Path, pictures: int) -> None:
    """Warns of pictures that are left out because they have crowds alone."""
    if pictures:
        warn_caller(f"{pictures} pictures in {printable(file)} have only crowds, and are left out.")


def _listed(listed: Mapping[Any, Any], key: str, row: Mapping[str, Any]) -> Any:
    if row[key] not in listed:
        raise ValueError(f"an annotation has the {key} {row[key]!r}, which the file does not list")
    return listed[row[key]]


def class_numbers(about: Any, names: Sequence[str] | None) -> dict[int, int]:
    """Returns the class of each category of an annotation, by its id."""
    categories = _categories(about)
    known = [name for _, name in categories]
    if names is not None and len(names) != len(categories):
        raise ValueError(f"the file has {len(categories)} categories, but there are {len(names)} class names")
    if names is not None and not {*known}.isdisjoint(names):
        foreign = [name for name in names if name not in known]
        if foreign:
            hint = did_you_mean(foreign[0], {name.lower(): name for name in known})
            raise ValueError(f"the file has no category {listing(foreign)}, only {listing(known, 20)}.{hint}")
        return {key: list(names).index(name) for key, name in categories}
    return {key: place for place, (key, _) in enumerate(categories)}


def _categories(about: Any) -> list[tuple[int, str]]:
    found = sorted((key, row["name"]) for key, row in _by_id(about["categories"], "categories").items())
    wrong = [name for _, name in found if not name or not isinstance(name, str)]
    if wrong:
        raise ValueError(f"a category has the name {wrong[0]!r}, but it must be a text that is not empty")
    for name, count in Counter(name for _, name in found).items():
        if count > 1:
            raise ValueError(f"two categories are called {name!r}")
    return found


def pictures_by_name(folder: Path, ids: Path | None) -> Callable[..., Any]:
    """Returns a function from a `file_name` to the picture in a folder whose path ends with it, but not in `ids`."""
    root, pictures = folder.resolve(), dict[str, list[Path]]()
    for path in image_files(folder):
        if ids not in path.parents:
            pictures.setdefault(path.name, []).append(path)

    def find(name: str, needed: bool = True) -> Path | None:
        parts = Path(name.replace("\\", "/")).parts
        alike = pictures.get(parts[-1] if parts else "", [])
        places = [path for path in alike if (root / path.relative_to(folder)).parts[-len(parts) :] == parts]
        places = [path for path in places if path.relative_to(folder).parts == parts] or places
        if not places and not needed:
            return None
        if not places:
            others = f", only {printable(alike[0])}" if alike else ""
            raise FileNotFoundError(f"{folder} has no picture {name}{others}. Pass the folder of annotated pictures.")
        if len(places) > 1:
            raise ValueError(f"{folder} has two pictures called {name}: {places[0]} and {places[1]}. Keep one of them.")
        return places[0]

    return find


def read_ids(png: Path) -> np.ndarray:
    """Returns the ids in a PNG of a panoptic annotation, int64 `(height, width)`: red + 256 green + 65,536 blue."""
    red, green, blue = np.moveaxis(read_picture(png).astype("int64"), -1, 0)
    return red + 256 * green + 65536 * blue


def panoptic_targets(file: Path, note: tuple[Segments, Path], pixels: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Returns the segments of a picture by an annotation's row and its PNG."""
    row, png = note
    parts = [{"id": key, "label": label} for key, label in row.labels.items()]
    numbers = mask_at_size(read_ids(png), pixels, png)
    found = [key for key in np.unique(numbers).tolist() if key in row.labels]
    if not found:
        raise ValueError(f"{png} has none of the segment ids that {file.name} lists. Check that both belong together.")
    return mask_targets(numbers, segments=parts) | {"crowd": np.array([key in row.crowds for key in found])}


def _size_of(pixels: np.ndarray, file: Path, row: Shapes, name: str) -> tuple[int, int]:
    size = pixels.shape[:2]
    if None not in row.size and row.size != size:
        found = f"{file.name} has the height and width {row.size} for {name}, but the picture has {size}"
        raise ValueError(f"{found}. Use the pictures that were annotated.")
    return size


def box_targets(file: Path, row: Shapes, pixels: np.ndarray, name: str) -> dict[str, Any]:
    """Returns the target of a picture by an annotation's row: `boxes` as corners, `labels`, `crowd` and `areas`."""
    _size_of(pixels, file, row, name)
    boxes = np.array(row.shapes, "float64").reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return {"boxes": boxes, "labels": row.labels, "crowd": row.crowd, "areas": row.areas}


def instance_targets(file: Path, row: Shapes, pixels: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Returns the instances of a picture by an annotation's row."""
    size = _size_of(pixels, file, row, name)
    try:
        masks = [mask_at_size(instance_mask(one, *size), pixels, file) for one in row.shapes]
    except ValueError as error:
        raise ValueError(f"{file.name}, {name}: {error}") from error
    areas = np.where(np.isnan(row.areas), [mask.sum() for mask in masks], row.areas)
    masks, crowd = np.stack(masks) if masks else np.zeros((0, *size), bool), np.array(row.crowd, bool)
    return {"masks": masks, "labels": np.array(row.labels, "int32"), "crowd": crowd, "areas": areas}


def instance_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Returns the mask of an instance in a picture of a size, by COCO's polygons or run lengths."""
    try:
        if isinstance(segmentation, Mapping):
            counts, size = segmentation["counts"], tuple(segmentation["size"])
            counts = np.asarray(counts if isinstance(counts, list) else _counts(counts))
            if size != (height, width) or counts.dtype.kind not in "iu" or counts.min() < 0:
                raise ValueError("run lengths have another size")
            if counts.sum() != height * width:
                raise ValueError("run lengths have another sum")
            values = np.arange(len(counts)) % 2 == 1
            return np.repeat(values, counts).reshape(width, height).T
        segmentation = [polygon for polygon in segmentation if len(polygon)]
        if not all(len(polygon) % 2 == 0 and np.abs(polygon).max() < _FARTHEST for polygon in segmentation):
            raise ValueError("polygons without pairs of numbers, or far outside")
        require_packages("A mask of COCO", ("pycocotools",), "coco")
        from pycocotools import mask

        return mask.decode(mask.merge(mask.frPyObjects(segmentation, height, width))).astype(bool)
    except ImportError:
        raise
    except Exception as error:  # pycocotools raises what the wrong form leads it to
        form = f"polygons or run lengths in COCO's format for {height} x {width} pixels"
        raise ValueError(f"an instance must have {form}, but it has {printable(segmentation, 60)}.") from error


def _counts(text: str | bytes) -> list[int]:
    """Returns the run lengths of a text: five bits a character, from the fourth on differences to two before."""
    counts: list[int] = []
    value = shift = 0
    for code in text.encode() if isinstance(text, str) else bytes(text):
        bits = code - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= 1 << shift if bits & 16 else 0
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("run lengths end early")
    return counts
