"""Pictures with the masks of their segments: semantic masks, COCO's annotations, a file for each instance, arrays.

COCO's annotations are panoptic, with PNGs of ids, or of instances, as polygons or run lengths.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from keras_vit._arguments import Source, check_class_names, listing, printable, to_numpy, warn_caller
from keras_vit._files import expanded_path
from keras_vit._options import checked, option, refuse
from keras_vit.data import examples as base
from keras_vit.data import masks as annotated
from keras_vit.data.augmentation import SegmentAugmentation
from keras_vit.data.coco import instance_targets, panoptic_targets, pictures_by_name, read_annotation, warn_of_crowds
from keras_vit.data.targets import TargetKind, register_target
from keras_vit.preprocessing import label_set
from keras_vit.preprocessing.images import read_picture

_NUMBER = re.compile(r"[-_]?\d*$")  # after the class in the name of an instance's file


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SegmentedImages(annotated.AnnotatedPictures):
    """Pictures with the masks of their segments, for `finetune_segmentation`; `open_segments` returns them.

    Attributes:
        examples: The pictures and the sources of their segments; None for a pipeline.
        classes: Number of classes.
        class_names: Names of the classes, in order; None if they have no names.
        task: `"semantic"`, `"panoptic"` or `"instance"`.
        numbers: The new number of each class after `in_order`; None if the numbers have not changed.
        stuff: Numbers of the classes without single objects (sky, grass), if the data has them.
        splits: Functions that return the data of each split, by its name; empty if there are no splits.
        pipeline: The data set or loader of another library that was given; None for other data.
        masks: The semantic masks that segments are made from; None if the data has segments.
        whole: All pictures, with and without instances, for evaluation; None if every picture has one.
        target: `"segments"`.

    Examples:
        >>> target = {"masks": np.ones((1, 24, 24), bool), "labels": [0]}
        >>> data.open_segments(([np.zeros((24, 24, 3), "uint8")], [target]), classes=1).names
        ('picture 0',)
    """

    stuff: tuple[int, ...] = ()
    masks: annotated.MaskedImages | None = dataclasses.field(default=None, repr=False)  # semantic ones

    target: ClassVar[str] = "segments"

    def in_order(self, names: Sequence[str] | None) -> Self:
        found = super().in_order(names)
        if found is self:
            return self
        return dataclasses.replace(found, stuff=tuple(sorted(names.index(self.class_names[k]) for k in self.stuff)))

    def checked_parts(self, target: Any, size: tuple[int, ...], where: str) -> annotated.Targets:
        """Returns `masks` `(n, height, width)` and `labels` `(n,)` of a target that has these, or of a mask."""
        if not isinstance(target, Mapping):
            target = annotated.mask_targets(self.masks.checked(target, size, where), self.masks.ignore)
        labels, masks = self.labels_of(target, where), to_numpy(target["masks"])
        if masks.shape != (len(labels), *size):
            raise ValueError(f"masks of {where} must have the shape {(len(labels), *size)}, not {masks.shape}.")
        extra = {name: to_numpy(target[name]).astype(kind) for name, kind in _EXTRA.items() if name in target}
        return {"masks": masks.astype(bool), "labels": labels, **extra}


_EXTRA = {"crowd": "bool", "areas": "float64"}  # of targets, for evaluations


@checked
def open_segments(
    source: Any,
    *,
    annotations: Source | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    split: Literal["train", "test", "validation"] = "train",
) -> SegmentedImages:
    """Opens pictures with segments, to train an EoMT on.

    Args:
        source: One of

            - a folder with pictures, where `annotations` are COCO's, panoptic (the PNGs lie in a folder of the file's
              name beside it) or of instances (needs pycocotools, the extra `coco`);
            - a folder with `images/` and `instances/`, or with `train/` and `val/` that have these: `images/photo.jpg`
              has a folder `instances/photo` with a picture for each instance. Its pixels above 0 are its mask, and its
              name begins with its class, such as `cat_1.png`;
            - ADE20K's folder with `images/`, `annotations/` (for stuff) and `annotations_instance/` (for things);
            - a list of pictures and one of targets `{"masks": (T, height, width), "labels": (T,)}`;
            - what `open_masks` takes or returns: each class that occurs is one segment.
        annotations: The JSON file of COCO's form.
        classes: Number of classes, if the data does not contain it.
        class_names: Names of the classes, matched by name for COCO; None: from the folder's `classes.txt` or the data.
        ignore: As in `open_masks`, and `reduce_zero_label` as well.
        split: `"train"` (which also has the test pictures, as `tests`), `"test"` or `"validation"`.

    Returns the pictures that have a segment. Pictures of COCO and of lists without one are used for evaluation only.
    Errors are as in `open_boxes`; ImportError if pycocotools is missing for COCO's masks.
    """
    source, annotations = expanded_path(source), expanded_path(annotations)
    names, count = check_class_names(class_names, classes)
    of_masks = {"ignore": ignore, "reduce_zero_label": reduce_zero_label}
    listed, folders = names or annotated.names_beside(source), _instance_folders(source)
    if isinstance(source, SegmentedImages):
        kind, make = "segments that are open", lambda: source
    elif annotations is not None:
        kind, make = "COCO's annotations", lambda: _coco(Path(source), Path(annotations), listed)
    elif isinstance(source, tuple) and len(source) == 2 and len(source[1]) and isinstance(source[1][0], Mapping):
        kind, fields = "arrays of masks with labels", {"with_empty": False, "task": "instance"}
        make = functools.partial(annotated.in_memory, SegmentedImages, source, count, names, **fields)
    elif isinstance(source, (str, os.PathLike)) and (Path(source) / "annotations_instance").is_dir():
        kind, make = "ADE20K's folder", lambda: _ade20k(Path(source), split)
    elif folders:
        kind, make = (
            _INSTANCES[Path(source) not in folders.values()],
            lambda: _instance_splits(source, folders, listed, split),
        )
    elif _yields_targets(source):
        kind = "pipelines of masks with labels"
        make = functools.partial(annotated.from_pipeline, SegmentedImages, source, count, names, task="instance")
    else:
        masks = annotated.open_masks(source, classes=classes, class_names=class_names, **of_masks)
        kind, make = "masks" if masks.pipeline is None else "a pipeline of masks", lambda: _semantic(masks, split)
    refuse(_OF_KINDS, {"annotations": annotations, "split": split, **of_masks}, {"data": kind})
    return make().with_classes(count, names)


SEGMENTS = register_target(
    TargetKind(
        name=SegmentedImages.target,
        plain=SegmentAugmentation((1.0, 1.0), flip=False),
        task="eomt",
        evaluate="keras_vit.detection:evaluate",
        open=open_segments,
        parts=("masks", "labels", "crowd", "areas"),
        command="segmentation",
        recipe="segmentation/eomt_ade20k_base",
    )
)
_INSTANCES = ("a folder of instances", "train/ and val/ with instances")
_MASKS = ("masks", "a pipeline of masks")
# Options that are not for every kind of data.
_OF_KINDS = {
    "annotations": option(when={"data": ("COCO's annotations",)}),
    "ignore": option(255, when={"data": _MASKS}),
    "reduce_zero_label": option(False, when={"data": _MASKS}),
    "split": option("train", when={"data": ("masks", "ADE20K's folder", _INSTANCES[1])}),
}


def _yields_targets(source: Any) -> bool:
    """Whether a pipeline, which can be gone through again, yields masks with labels."""
    if not base.is_pipeline(source) or hasattr(source, "__next__"):
        return False
    _, first = base.pair_of(next(iter(base.one_pass(source)), ()), SEGMENTS)
    return isinstance(first, Mapping) or isinstance(first[0], Mapping)


def _semantic(masks: annotated.MaskedImages, split: str) -> SegmentedImages:
    """Returns the pictures of a split with semantic masks, of which each class that occurs is a segment."""
    found = SegmentedImages(
        classes=masks.classes, class_names=masks.class_names, task="semantic", masks=masks, pipeline=masks.pipeline
    )
    if masks.pipeline is not None:
        return found
    examples = masks.open_examples(split, None, base.Reading(check="none"))
    load = examples.load if examples.in_files else lambda picture: annotated.as_bytes(examples.load(picture))
    annotate = functools.partial(_of_mask, examples.annotate, masks.ignore)
    found = dataclasses.replace(found, examples=dataclasses.replace(examples, load=load, annotate=annotate))
    splits = masks.splits if split == "train" else ()
    return annotated.with_splits(
        found, {name: functools.partial(_semantic, masks, base.split_of(name)[0]) for name in splits}
    )


def _of_mask(
    annotate: Callable[..., np.ndarray], ignore: int, note: Any, pixels: np.ndarray, name: str
) -> annotated.Targets:
    return annotated.mask_targets(annotate(note, pixels, name), ignore)


def _coco(folder: Path, file: Path, names: Sequence[str] | None) -> SegmentedImages:
    """Returns pictures with annotations: panoptic, with a folder of PNGs beside the file, or of instances."""
    about, ids = read_annotation(file, names), file.with_suffix("")
    rows, task, annotate = about.rows, "instance", functools.partial(instance_targets, file)
    if about.is_panoptic:
        if not ids.is_dir():
            raise ValueError(f"The panoptic annotation {file} needs its PNG files in {ids}, which does not exist.")
        rows, task = [row for row in rows if row.labels.keys() - row.crowds], "panoptic"
        warn_of_crowds(file, sum(bool(row.crowds) for row in about.rows) - sum(bool(row.crowds) for row in rows))
        missing = [row.png for row in rows if not (ids / row.png).is_file()]
        if missing:
            raise FileNotFoundError(f"{file} names {len(missing)} PNG files that are not in {ids}: {listing(missing)}.")
        annotate = functools.partial(panoptic_targets, file)
    find = pictures_by_name(folder, ids if about.is_panoptic else None)
    notes = [(row, ids / row.png) for row in rows] if about.is_panoptic else rows
    kept = [about.is_panoptic or not all(row.crowd) for row in rows]
    paths = [find(row.picture, keep) for row, keep in zip(rows, kept, strict=True)]
    there = [i for i, path in enumerate(paths) if path is not None]
    whole = annotated.opened(paths, notes, annotate, file.name, file.stat().st_size, sum(kept)).part(there)
    examples = whole.part(np.flatnonzero(np.array(kept)[there]))
    classes = {"classes": len(about.names), "class_names": about.names, "stuff": about.stuff}
    return SegmentedImages(examples=examples, whole=whole, task=task, **classes)


def _ade20k(root: Path, split: str) -> SegmentedImages:
    """Returns a split of ADE20K: stuff of the semantic masks, and things of the instances' files."""
    known = label_set("ade20k")
    semantic = _semantic(annotated.open_masks(root, class_names=known.names, reduce_zero_label=True), split)
    places = [Path(name).relative_to(root / "images").with_suffix(".png") for name in semantic.names]
    files = [root / "annotations_instance" / place for place in places]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{len(missing)} pictures have no file of instances: {listing(missing)}.")
    pairs = list(zip(semantic.examples.notes, files, strict=True))
    annotate = functools.partial(_ade20k_targets, semantic.examples.annotate)
    examples = dataclasses.replace(semantic.examples, notes=pairs, annotate=annotate)
    found = dataclasses.replace(semantic, examples=examples, task="panoptic", stuff=known.stuff, masks=None)
    splits = {name: functools.partial(_ade20k, root, base.split_of(name)[0]) for name in semantic.splits}
    return annotated.with_splits(found, splits)


def _ade20k_targets(
    semantic: Callable[..., annotated.Targets], files: tuple[Path, Path], pixels: Any, name: str
) -> annotated.Targets:
    """Returns the segments of a semantic mask and of a file of instances."""
    known, file = label_set("ade20k"), files[1]
    things = [k for k in range(len(known.names)) if k not in known.stuff]
    found = semantic(files[0], pixels, name)
    kinds, numbers, _ = np.moveaxis(annotated.mask_at_size(read_picture(file), pixels, file).astype("int64"), -1, 0)
    ids = np.where(numbers > 0, 256 * kinds + numbers, 0)
    keys = [key for key in np.unique(ids).tolist() if key]
    if any(not 1 <= key // 256 <= len(things) for key in keys):
        found = sorted({key // 256 for key in keys})
        raise ValueError(f"The first channel of {file} must have class numbers 1 to {len(things)}, but has {found}.")
    single = annotated.mask_targets(ids, segments=[{"id": key, "label": things[key // 256 - 1]} for key in keys])
    stuff = np.isin(found["labels"], known.stuff)
    return {name: np.concatenate([found[name][stuff], single[name]]) for name in found}


def _instance_folders(source: Any) -> dict[str, Path]:
    """Returns folders with `instances/` by name, the source itself as `"train"`; OSError for unreadable ones."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_dir():
        return {}
    root = Path(source)
    folders = {"train": root} if (root / "instances").is_dir() else base.folders_of_splits(root)
    return {name: folder for name, folder in folders.items() if (folder / "instances").is_dir()}


def _instance_splits(root: Any, folders: Mapping[str, Path], names: Any, split: str) -> SegmentedImages:
    found = annotated.of_folders(_instances, Path(root), folders, names)
    return found if split == "train" else found.of_split(split)


def _instances(folder: Path, names: Sequence[str] | None) -> SegmentedImages:
    """Returns pictures of a folder with a file for each instance; those without files are left out."""
    base.check_folder(folder / "images", "the pictures of the instances")
    found = base.image_files(folder / "images")
    pictures = {path.stem: path for path in found}
    if len(pictures) < len(found):
        raise ValueError(f"{folder / 'images'} has two pictures whose names differ in their suffix only. Keep one.")
    unused = sorted({path.name for path in (folder / "instances").iterdir() if path.is_dir()} - pictures.keys())
    if unused:
        warn_caller(
            f"{len(unused)} folders of {folder / 'instances'} are left out, without picture: {listing(unused)}."
        )
    files = {
        path: base.image_files(folder / "instances" / stem) for stem, path in pictures.items() if stem not in unused
    }
    files = {path: parts for path, parts in files.items() if parts}
    labels = {part: _NUMBER.sub("", part.stem) for parts in files.values() for part in parts}
    known = tuple(names or base.in_order({*labels.values()}, printable(folder)))
    unknown = [f"{p.parent.name}/{p.name}" for p, label in labels.items() if label not in known or not label]
    if unknown or not files:
        wanted = f"begin with {listing(known)}" if names else "begin with a class, such as cat_1.png"
        found = f"it has {listing(unknown)}" if files else "no picture of images/ has a folder with files there"
        raise ValueError(f"{folder}/instances must have files whose names {wanted}, but {found}.")
    notes = [[(part, known.index(labels[part])) for part in parts] for parts in files.values()]
    digest = tuple((part.name, part.stat().st_size) for part in labels)
    examples = annotated.opened(list(files), notes, _of_files, *digest)
    return SegmentedImages(examples=examples, classes=len(known), class_names=known, task="instance")


def _of_files(parts: Sequence[tuple[Path, int]], pixels: np.ndarray, name: str) -> annotated.Targets:
    """Returns the segments of files with a mask each, and their classes."""
    masks = [annotated.mask_at_size(annotated.read_mask(part) > 0, pixels, part) for part, _ in parts]
    return {"masks": np.stack(masks), "labels": np.array([label for _, label in parts], "int32")}
