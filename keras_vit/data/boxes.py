"""Pictures with boxes: COCO's annotations, a table, arrays or a pipeline; and how they are changed in training."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from keras_vit._arguments import Source, check_class_names, listing, printable, to_numpy, warn_caller
from keras_vit._files import expanded_path
from keras_vit._options import OneOf, Part, Share, checked, option, refuse
from keras_vit.data.augmentation import IMAGE, Draw, PictureAugmentation, Transform
from keras_vit.data.coco import box_targets, pictures_by_name, read_annotation
from keras_vit.data.examples import check_folder, folders_of_splits, in_order, is_pipeline
from keras_vit.data.masks import (
    AnnotatedPictures,
    Targets,
    from_pipeline,
    in_memory,
    names_beside,
    of_folders,
    opened,
    with_splits,
)
from keras_vit.data.random_operations import inception_box
from keras_vit.data.tables import Cells, check_columns, read_columns, splits_of
from keras_vit.data.targets import TargetKind, register_target
from keras_vit.preprocessing.images import DETECTOR_PICTURES, detector_pixels

# What tables call left, top, right and bottom.
_COLUMNS = (("left", "top", "right", "bottom"), ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BoxedImages(AnnotatedPictures):
    """Pictures with boxes for `finetune_detection` and `detection.evaluate`; `open_boxes` returns them.

    Attributes:
        examples: The pictures and the sources of their boxes; None for a pipeline.
        classes: Number of classes.
        class_names: Names of the classes, in order; None if they have no names.
        splits: Functions that return the data of each split, by its name; empty if there are no splits.
        pipeline: The data set or loader of another library that was given; None for other data.
        whole: None, because `examples` includes pictures without a box.
        task: Empty, because boxes have only one task.
        numbers: The new number of each class after `in_order`; None if the numbers have not changed.
        target: `"boxes"`.

    Examples:
        >>> target = {"boxes": [[2, 2, 10, 12]], "labels": [0]}
        >>> data.open_boxes(([np.zeros((24, 24, 3), "uint8")], [target]), classes=1).read(0)[1]["boxes"]
        array([[ 2.,  2., 10., 12.]])
    """

    target: ClassVar[str] = "boxes"

    def checked_parts(self, target: Any, size: tuple[int, ...], where: str) -> Targets:
        """Returns `boxes`, `labels`, `crowd` and `areas` of a target; ValueError for wrong ones."""
        labels = self.labels_of(target, where)
        boxes = to_numpy(target["boxes"]).astype("float64")
        boxes = boxes.reshape(0, 4) if not boxes.size else boxes
        if boxes.shape != (len(labels), 4):
            wanted = f"the shape {(len(labels), 4)}, for its labels"
            raise ValueError(f"boxes of {where} must have {wanted}, but have {boxes.shape}.")
        height, width = size
        wrong = ~np.isfinite(boxes).all(1) | (boxes[:, 2:] < boxes[:, :2]).any(1)
        wrong |= (boxes[:, 2:] < 0).any(1) | (boxes[:, :2] > [width, height]).any(1)
        if wrong.any():
            wanted = f"left, top, right and bottom in pixels of its picture, which is {width} wide and {height} high"
            raise ValueError(f"boxes of {where} must be {wanted}, but one is {boxes[wrong][0].tolist()}.")
        if len(boxes) and boxes.max() <= 1 < min(height, width):
            found = f"they are fractions: {boxes[0].tolist()}. Multiply them by the width and height of the picture."
            raise ValueError(f"boxes of {where} must be in pixels, but {found}")
        boxes = boxes.clip(0, [width, height, width, height])  # what is trained on and evaluated lies in the picture
        crowd = to_numpy(target.get("crowd", np.zeros(len(labels)))).astype(bool)
        areas = to_numpy(target.get("areas", (boxes[:, 2:] - boxes[:, :2]).prod(1))).astype("float64")
        if crowd.shape != labels.shape or areas.shape != labels.shape:
            wanted = f"one value for each of its {len(labels)} boxes"
            found = f"their shapes are {crowd.shape} and {areas.shape}"
            raise ValueError(f"crowd and areas of {where} must have {wanted}, but {found}.")
        return {"boxes": boxes, "labels": labels, "crowd": crowd, "areas": areas}


@checked
def open_boxes(
    source: Any,
    *,
    annotations: Source | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    file: str = "file",
    label: str = "label",
) -> BoxedImages:
    """Returns pictures with boxes, to train a `Detector` on or to evaluate one with.

    Boxes are left, top, right and bottom in pixels. Pictures may have any size, and no box.

    Args:
        source: One of

            - a folder with pictures, where `annotations` are COCO's (`instances_*.json`); or a folder that has its one
              `.json` file of that form itself, or in its `train/` and its `val/`;
            - a table as `open_table` takes it, with a row for each box: the columns `left`, `top`, `right` and `bottom`
              (or `xmin`, `ymin`, `xmax`, `ymax`), and `split` if there is one. A row with nothing in `label` is a
              picture without boxes;
            - a list of pictures and one of targets `{"boxes": (T, 4), "labels": (T,)}`, optionally with `crowd` `(T,)`
              (boxes of several objects, not trained on) and `areas` `(T,)` in pixels, or `iscrowd` and `area` as in
              torchvision; boxes are cut at the edges of their picture;
            - a pipeline of another library that yields such pairs.
        annotations: The JSON file of COCO's form.
        classes: Number of classes, if the data does not contain it.
        class_names: Names in the order of the labels. Classes of COCO and of tables are matched by name.
        file: The column of a table with the files.
        label: The column of a table with the names of the classes.

    Returns:
        What `finetune_detection`, `detection.evaluate` and `open_data` take. Pictures are read when they are used.

    Raises:
        TypeError, ValueError, KeyError: if the data has another form, other classes or a box outside its picture.
        OSError, ImportError: if a file is missing or cannot be read; if Pillow, or pyarrow for a Parquet file, is
            missing.
    """
    source, annotations = expanded_path(source), expanded_path(annotations)
    names, count = check_class_names(class_names, classes)
    is_path, listed = isinstance(source, (str, os.PathLike)), names or names_beside(source)
    is_table = isinstance(source, Mapping) or hasattr(source, "columns")
    if isinstance(source, BoxedImages):
        kind, make = "boxes that are open", lambda: source
    elif is_table or (is_path and Path(source).suffix.lower() in (".csv", ".tsv", ".parquet")):
        kind, make = "a table", lambda: _table(source, names, file, label)
    elif is_path and annotations is not None:
        kind, make = "a folder", lambda: _coco(Path(source), Path(annotations), listed)
    elif is_path:
        kind, make = "a folder", lambda: _folders(Path(source), listed)
    elif isinstance(source, tuple) and len(source) == 2:
        kind, make = "arrays", lambda: in_memory(BoxedImages, source, count, names, with_empty=True)
    elif is_pipeline(source):
        kind, make = "a pipeline", lambda: from_pipeline(BoxedImages, source, count, names)
    else:
        expected = "a folder, a table, (pictures, targets) or a pipeline of such pairs"
        raise TypeError(f"data must be {expected}, but {type(source).__name__} was given.")
    refuse(_OF_KINDS, {"annotations": annotations, "file": file, "label": label}, {"data": kind})
    return make().with_classes(count, names)


# Options that are not for every kind of data.
_OF_KINDS = {
    "annotations": option(when={"data": ("a folder",)}),
    "file": option("file", when={"data": ("a table",)}),
    "label": option("label", when={"data": ("a table",)}),
}


def _coco(folder: Path, file: Path, names: Sequence[str] | None) -> BoxedImages:
    about = read_annotation(file, names, boxes=True)
    find = pictures_by_name(folder, None)
    paths = [find(row.picture) for row in about.rows]
    annotate = functools.partial(box_targets, file)
    examples = opened(paths, about.rows, annotate, file.name, file.stat().st_size, len(paths))
    return BoxedImages(examples=examples, classes=len(about.names), class_names=about.names)


def _folders(root: Path, names: Sequence[str] | None) -> BoxedImages:
    """Opens a folder with one COCO file, in itself or in each split; splits without a file are left out, and named."""
    check_folder(root, "pictures")
    folders = {"train": root} | folders_of_splits(root)
    files = {path: found for path in folders.values() if (found := [*path.glob("*.json")])}
    if not files or any(len(found) > 1 for found in files.values()):
        names_found = listing([path.name for of in files.values() for path in of])
        found = f"but it has {names_found or 'none'}. Pass annotations=FILE."
        raise ValueError(f"{printable(root)} must have one .json file with the boxes, itself or in each split, {found}")
    left_out = [name for name, path in folders.items() if path not in files]
    if left_out:
        warn_caller(f"{listing(left_out)} of {printable(root)} has no .json file with the boxes, and is left out.")
    folders = {name: path for name, path in folders.items() if path in files}
    return of_folders(lambda path, names: _coco(path, files[path][0], names), root, folders, names)


def _table(source: Any, names: Sequence[str] | None, file: str, label: str) -> BoxedImages:
    columns, where, first, home = read_columns(source)
    sides = next((of for of in _COLUMNS if {*of} <= {*columns}), _COLUMNS[0])
    check_columns(columns, (file, label, *sides), where)
    rows = [f"{where}, row {first + i}" for i in range(len(columns[file]))]
    cells = Cells(columns, rows)
    labels = [cells.names(label, i, "multilabel", None) for i in range(len(rows))]
    found = in_order({name for of_row in labels for name in of_row}, where)
    known = tuple(names or found)
    unknown = [name for name in found if name not in known]
    if not found:
        raise ValueError(f"No row of {where} has a label in the column {label!r}. Pass label=COLUMN.")
    if unknown:
        raise ValueError(f"{where} has the classes {listing(unknown)}, but class_names has only {listing(known)}.")
    files = cells.paths(file, home)
    notes: dict[Path, list[Any]] = {path: [] for path in files}
    for i, (path, of_row) in enumerate(zip(files, labels, strict=True)):
        notes[path] += [(known.index(name), [cells.number(side, i, False) for side in sides]) for name in of_row]
    splits = ["train"] * len(rows)
    if "split" in columns:
        splits = splits_of([cells.text("split", i) for i in range(len(rows))], rows)
    places = dict(zip(files, splits, strict=True))
    in_two = [path for path, split in zip(files, splits, strict=True) if places[path] != split]
    if in_two:
        raise ValueError(f"{where} has rows of {printable(in_two[0])} in two splits. Give them the same split.")

    def of_split(split: str) -> BoxedImages:
        paths = [path for path, place in places.items() if place == split]
        chosen = [notes[path] for path in paths]
        examples = opened(paths, chosen, _of_rows, [path.name for path in paths], chosen)
        return BoxedImages(examples=examples, classes=len(known), class_names=known)

    there = [split for split in ("train", "validation", "test") if split in places.values()]
    named = there if "split" in columns else []
    return with_splits(of_split(there[0]), {split: functools.partial(of_split, split) for split in named})


def _of_rows(rows: Sequence[tuple[int, list[float]]], pixels: np.ndarray, name: str) -> dict[str, Any]:
    return {"boxes": [box for _, box in rows], "labels": [label for label, _ in rows]}


# In training


@dataclasses.dataclass(frozen=True)
class BoxTransform(Transform):
    """Crops and mirrors a picture and its boxes, and brings both to the size of the model."""

    def __call__(self, picture: np.ndarray, target: Any, draw: Draw) -> tuple[np.ndarray, Targets]:
        augmentation, generator = self.augmentation, draw(IMAGE)
        single = ~target["crowd"]
        boxes, labels = target["boxes"][single], target["labels"][single]
        height, width = picture.shape[:2]
        whole = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        if augmentation.min_area < 1:
            top, left, height, width = inception_box(height, width, generator, augmentation.min_area)
            picture, boxes = picture[top : top + height, left : left + width], boxes - [left, top, left, top]
        boxes = boxes.clip(0, [width, height, width, height])
        left_over = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        kept = (left_over > 0) & (left_over >= augmentation.kept * whole)
        boxes, labels = boxes[kept], labels[kept]
        if augmentation.flip and generator.random() < 0.5:
            picture = picture[:, ::-1]
            boxes = [width, 0, width, 0] + boxes[:, [2, 1, 0, 3]] * [-1, 1, -1, 1]
        sides = (height, width) if augmentation.pictures == "owlvit" else (max(height, width),) * 2
        scale = np.array([new / old for new, old in zip(self.image_size, sides, strict=True)])[[1, 0, 1, 0]]
        pixels = detector_pixels(picture, self.image_size, augmentation.pictures)
        return pixels, {"boxes": (boxes * scale).astype("float32"), "labels": labels}


@dataclasses.dataclass(frozen=True)
class BoxAugmentation(PictureAugmentation):
    """Augmentation of pictures with boxes, as OWL-ViT's authors train, without their mosaics.

    In this order: a crop of aspect 3/4 to 4/3, mirroring, and resizing to the size of the model.

    Args:
        min_area: The least share of the picture that a crop keeps; 1.0: no crop.
        kept: A box stays if at least this share of its area is in the crop.
        flip: Whether to mirror half of the pictures, left to right.
        pictures: How crops are resized, as in `models.DetectorConfig`. `finetune_detection` takes the model's value.

    Raises:
        TypeError, ValueError: if a field is out of its range.

    Source: `scenic/projects/owl_vit/configs/clip_b32.py`.

    Examples:
        >>> data.BoxAugmentation(flip=False).kept
        0.6
    """

    min_area: Part = 0.3
    kept: Share = 0.6
    flip: bool = True
    pictures: Annotated[str, OneOf(DETECTOR_PICTURES)] = "owlv2"

    transform: ClassVar[type[Transform]] = BoxTransform


BOXES = register_target(
    TargetKind(
        name=BoxedImages.target,
        plain=BoxAugmentation(min_area=1.0, flip=False),
        task="detection",
        evaluate="keras_vit.detection:evaluate",
        open=open_boxes,
        parts=("boxes", "labels", "crowd", "areas"),
        command="detection",
        recipe="detection/owl_finetune",
    )
)
