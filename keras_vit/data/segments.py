"""Pictures with the masks of their segments: semantic masks, COCO's annotations, a file for each instance, arrays.

COCO's annotations are panoptic, with PNGs of ids, or of instances, as polygons or run lengths.
"""

import dataclasses
import functools
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from keras_vit._arguments import (
    ImageSize,
    Source,
    check_choice,
    check_class_names,
    listing,
    pair,
    printable,
    to_numpy,
    warn_caller,
    whole_number,
)
from keras_vit._processes import cores, share
from keras_vit.data.augmentation import IMAGE, ORDER
from keras_vit.data.examples import (
    SPLITS,
    BadImage,
    Reading,
    count_steps,
    fingerprint,
    image_files,
    pick_split,
    split_of,
)
from keras_vit.data.mask_augmentation import SegmentAugmentation, augment_masks
from keras_vit.data.masks import (
    MaskedImages,
    as_masks,
    instance_mask,
    mask_at_size,
    names_beside,
    open_masks,
    read_mask,
)
from keras_vit.data.streams import ImageStream
from keras_vit.preprocessing import label_set
from keras_vit.preprocessing.windows import read_picture

Targets = dict[str, np.ndarray]
TRIES = 100  # how often an augmentation is drawn that leaves no mask
_NUMBER = re.compile(r"[-_]?\d*$")  # after the class in the name of an instance's file


def mask_targets(
    labels: Any,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    segments: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the masks of a picture and their classes, in the order of the numbers in its map.

    Args:
        labels: Integers `(height, width)`: the class of each pixel, or the id of its segment.
        ignore: The class of pixels that belong to no mask.
        reduce_zero_label: Whether 0 is no class, and k stands for k - 1, as in ADE20K.
        segments: What ids mean: `{"id", "label", "crowd"}` each. Pixels of other ids belong to no mask, and crowds are
            left out, as the authors do in training. None: `labels` are classes, of which each has one mask.

    Returns:
        `masks` `(T, height, width)` of booleans and `labels` int32 `(T,)`.

    Raises:
        TypeError: if `labels` are no integers `(height, width)`.
        ValueError: if `ignore` or `reduce_zero_label` is given beside `segments`.
        KeyError: if one of these lacks its id or its label.

    Examples:
        >>> data.mask_targets(np.array([[0, 0], [2, 255]]))["labels"]
        array([0, 2], dtype=int32)
    """
    labels = to_numpy(labels)
    if labels.dtype.kind not in "iub" or labels.ndim != 2:
        raise TypeError(f"labels must be integers (height, width), but are {labels.dtype} of shape {labels.shape}.")
    if segments is None:
        names = {int(k): int(k) for k in np.unique(labels) if k != ignore}
        if reduce_zero_label:
            names = {k: k - 1 for k in names if k != 0}
    else:
        _refuse_unused({"ignore": ignore, "reduce_zero_label": reduce_zero_label}, "maps of ids")
        known = {int(part["id"]): int(part["label"]) for part in segments if not part.get("crowd")}
        names = {int(k): known[int(k)] for k in np.unique(labels) if int(k) in known}
    masks = [labels == k for k in names]
    return {
        "masks": np.stack(masks) if masks else np.zeros((0, *labels.shape), bool),
        "labels": np.array([*names.values()], "int32"),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentedImages:
    """Pictures with the masks of their segments: `open_segments` makes it, and `finetune_segmentation` takes it.

    Attributes:
        names: What the pictures are called, such as their paths.
        read: From the number of a picture to its pixels, uint8 `(height, width, 3)`, and its targets: `masks`
            `(T, height, width)`, `labels` `(T,)`, and `crowd` `(T,)` where some masks are of several things.
        classes: How many there are.
        class_names: What they are called, in their order; None where they have no names.
        task: `"semantic"`, `"panoptic"` or `"instance"`.
        stuff: Numbers of the classes of which there are no single things, as far as the data says it.
        tests: The pictures that the data has to evaluate on; None where it has none.
        digest: What tells this data from other data, for runs that go on.
        target: `"segments"`.

    Examples:
        >>> target = {"masks": np.ones((1, 24, 24), bool), "labels": [0]}
        >>> data.open_segments(([np.zeros((24, 24, 3), "uint8")], [target]), classes=1).names
        ('picture 0',)
    """

    names: tuple[str, ...]
    read: Callable[[int], tuple[np.ndarray, Targets]] = dataclasses.field(repr=False)
    classes: int
    class_names: tuple[str, ...] | None
    task: str
    stuff: tuple[int, ...] = ()
    tests: "SegmentedImages | None" = dataclasses.field(default=None, repr=False)
    digest: tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    target: str = "segments"

    def part(self, numbers: Iterable[int]) -> Self:
        """Returns some of the pictures, by their numbers, which count from the end where they are negative.

        Raises IndexError for one that there is not, TypeError for what is no whole number.
        """
        chosen = [operator.index(number) for number in numbers]
        names = tuple(self.names[i] for i in chosen)
        return dataclasses.replace(
            self, names=names, read=lambda i: self.read(chosen[i]), digest=(*self.digest, *chosen)
        )


def open_segments(
    source: Any,
    *,
    annotations: Source | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    split: str = "train",
) -> SegmentedImages:
    """Returns pictures with segments, to train an EoMT on.

    Args:
        source: One of

            - a folder with pictures, where `annotations` are COCO's, panoptic (the PNGs lie in a folder of the file's
              name beside it) or of instances (needs pycocotools, the extra `coco`);
            - a folder with `images/` and `instances/`, or with `train/` and `val/` that have these: for
              `images/photo.jpg` the folder `instances/photo` with a picture for each instance, whose pixels above 0 are
              its mask and whose name begins with its class, such as `cat_1.png`;
            - ADE20K's folder with `images/`, `annotations/` and `annotations_instance/`: stuff of the second and
              things of the third;
            - a list of pictures and one of targets `{"masks": (T, height, width), "labels": (T,)}`;
            - what `open_masks` takes or returns: each class that occurs is one segment.
        annotations: The JSON file of COCO's form.
        classes: How many there are, where the data does not say it.
        class_names: What they are called. COCO's categories are found by them. None: what a file `classes.txt` in the
            folder lists, or else the data.
        ignore: As in `open_masks`.
        reduce_zero_label: As in `open_masks`.
        split: Of folders and masks that have such, `"train"`, `"test"` or `"validation"`.

    Returns:
        The pictures that have a segment; of `"train"` with the others as `tests`.

    Raises:
        OSError: if a file or a folder is missing (FileNotFoundError) or cannot be read.
        ImportError: if Pillow is missing for files, or pycocotools for COCO's masks, when they are read.
        TypeError, ValueError: if the data has another form, other classes than are given, or a class that is unknown;
            if a text file is no UTF-8; or if it has no use for an option. Wrong pictures and masks are when read.
        KeyError: if a target in memory lacks its masks or labels.

    Examples:
        >>> target = {"masks": np.ones((1, 24, 24), bool), "labels": [0]}
        >>> data.open_segments(([np.zeros((24, 24, 3), "uint8")], [target]), classes=1).task
        'instance'
    """
    given, count = check_class_names(class_names, classes)
    names, count = None if given is None else tuple(given), None if count is None else whole_number("classes", count, 1)
    check_choice("split", split, tuple(SPLITS))
    of_masks = {"ignore": ignore, "reduce_zero_label": reduce_zero_label}
    if isinstance(source, SegmentedImages):
        _refuse_unused({"annotations": annotations, "split": split, **of_masks}, "segments that are open")
        return _with_classes(source, count, names)
    if annotations is not None:
        _refuse_unused({"split": split, **of_masks}, "COCO's annotations")
        listed = names or names_beside(source)
        return _with_classes(_coco(Path(source), Path(annotations), listed), count, names)
    if isinstance(source, tuple) and len(source) == 2 and len(source[1]) and isinstance(source[1][0], Mapping):
        _refuse_unused({"split": split, **of_masks}, "arrays of masks with labels")
        return _arrays(*source, count, names)
    if isinstance(source, (str, os.PathLike)) and (Path(source) / "annotations_instance").is_dir():
        _refuse_unused(of_masks, "ADE20K's folder")
        return _with_classes(_ade20k(Path(source), split), count, names)
    folders = _instance_folders(source)
    if folders:
        _refuse_unused(of_masks if len(folders) > 1 else {"split": split, **of_masks}, "a folder of instances")
        return _with_classes(_instances(folders, names or names_beside(source), split), count, names)
    masks = as_masks(source, classes=classes, class_names=class_names, **of_masks)
    if not isinstance(masks, MaskedImages):
        raise TypeError("An EoMT is trained on pictures with masks of their own sizes, not on a pipeline of batches.")
    return _semantic(masks, split)


_DEFAULTS = {"annotations": None, "ignore": 255, "reduce_zero_label": False, "split": "train"}


def _refuse_unused(options: Mapping[str, Any], kind: str) -> None:
    """Raises ValueError where an option is given that this kind of data has no use for."""
    for name, value in options.items():
        if value != _DEFAULTS[name]:
            raise ValueError(f"{name}={value!r} is not used by {kind}. Leave it out.")


def _with_classes(source: SegmentedImages, classes: int | None, names: tuple[str, ...] | None) -> SegmentedImages:
    """Returns the source; ValueError if `classes` or `names` are given and are not those that it has."""
    if names not in (None, source.class_names):
        found = "no names" if source.class_names is None else listing(source.class_names)
        raise ValueError(f"class_names={list(names or ())} was given, but the classes of the segments have {found}.")
    if classes not in (None, source.classes):
        raise ValueError(f"classes={classes} was given, but the segments have {source.classes} classes.")
    return source


def _semantic(masks: MaskedImages, split: str) -> SegmentedImages:
    """Returns the pictures of a split with semantic masks, of which each class that occurs is a segment.

    Those of `"train"` have others as `tests` where the masks have such. Raises OSError, TypeError or ImportError as
    `MaskedImages.open_examples`, and ValueError, also while reading.
    """
    examples = masks.open_examples(split, None, Reading())

    def read(i: int) -> tuple[np.ndarray, Targets]:
        picture, mask = examples.read(i)
        return _bytes(picture), mask_targets(mask, masks.ignore)

    return SegmentedImages(
        names=tuple(examples.name(i) for i in range(len(examples.labels))),
        read=read,
        classes=examples.classes,
        class_names=masks.class_names,
        task="semantic",
        tests=_semantic(masks, "validation") if split == "train" and masks.has_test_split else None,
        digest=(examples.fingerprint,),
    )


def _coco(folder: Path, file: Path, names: Sequence[str] | None) -> SegmentedImages:
    """Returns pictures with COCO's annotations: panoptic where a folder of PNGs lies beside the file, else instances.

    Raises OSError for a file, picture or PNG that is missing (FileNotFoundError) or not read; ValueError for a file of
    another form, two pictures of one name, or other names than categories. While reading: OSError, ImportError, and
    ValueError for what cannot be decoded and masks that do not fit their picture.
    """
    known, stuff = named_categories(file, names)
    ids = file.with_suffix("")  # a folder, of panoptic ones
    find = pictures_by_name(folder, ids)
    if ids.is_dir():
        rows = [row for row in panoptic_rows(file, names) if row.labels.keys() - row.crowds]
        missing = [row.png for row in rows if not (ids / row.png).is_file()]
        if missing:
            raise FileNotFoundError(f"{file} names {len(missing)} PNGs that are not in {ids}: {listing(missing)}.")
        paths, task = [find(row.picture) for row in rows], "panoptic"

        def read(i: int) -> tuple[np.ndarray, Targets]:
            picture, row = read_picture(paths[i]), rows[i]
            parts = [{"id": key, "label": label} for key, label in row.labels.items()]
            numbers = mask_at_size(read_ids(ids / row.png), picture, ids / row.png)
            found = [key for key in np.unique(numbers).tolist() if key in row.labels]
            if not found:
                raise ValueError(f"{ids / row.png} has none of the ids that {file.name} has of it.")
            # Augmentation drops crowds; the panoptic quality excuses what is found in them.
            crowd = np.array([key in row.crowds for key in found])
            return picture, mask_targets(numbers, segments=parts) | {"crowd": crowd}

    else:
        found = instance_rows(file, names)
        paths, task = [find(row.picture) for row in found], "instance"

        def read(i: int) -> tuple[np.ndarray, Targets]:
            picture, row = read_picture(paths[i]), found[i]
            if None not in row.size and row.size != picture.shape[:2]:
                raise ValueError(f"{file.name} has masks of {paths[i]} at {row.size}, but that is {picture.shape[:2]}.")
            try:
                masks = [mask_at_size(instance_mask(one, *picture.shape[:2]), picture, file) for one in row.masks]
            except ValueError as error:
                raise ValueError(f"{file.name}: of {paths[i]} {error}") from error
            return picture, {"masks": np.stack(masks), "labels": np.array(row.labels, "int32")}

    digest = (file.name, file.stat().st_size, len(paths))
    return SegmentedImages(tuple(map(str, paths)), read, len(known), known, task, stuff, digest=digest)


def _ade20k(root: Path, split: str) -> SegmentedImages:
    """Returns a split of ADE20K: stuff of the semantic masks, and things of the instances' files.

    Of those the first channel is the number of the thing's class among things, from 1, and the second that of the
    instance, 0 for none. Raises OSError if a folder or a file of instances is missing or not read, ValueError without
    the split or a mask. While reading: ValueError for unknown things or bad files, OSError, or ImportError of Pillow.
    """
    known = label_set("ade20k")
    things = [k for k in range(len(known.names)) if k not in known.stuff]
    semantic = _semantic(open_masks(root, class_names=known.names, reduce_zero_label=True), split)
    places = [Path(name).relative_to(root / "images").with_suffix(".png") for name in semantic.names]
    files = [root / "annotations_instance" / place for place in places]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{len(missing)} pictures have no file of instances: {listing(missing)}.")

    def read(i: int) -> tuple[np.ndarray, Targets]:
        picture, found = semantic.read(i)
        kinds, numbers, _ = np.moveaxis(mask_at_size(read_picture(files[i]), picture, files[i]).astype("int64"), -1, 0)
        ids = np.where(numbers > 0, 256 * kinds + numbers, 0)
        keys = [key for key in np.unique(ids).tolist() if key]
        if any(not 1 <= key // 256 <= len(things) for key in keys):
            raise ValueError(f"{files[i]} must have the things 1 to {len(things)} in its first channel.")
        single = mask_targets(ids, segments=[{"id": key, "label": things[key // 256 - 1]} for key in keys])
        stuff = np.isin(found["labels"], known.stuff)
        return picture, {name: np.concatenate([found[name][stuff], single[name]]) for name in found}

    tests = _ade20k(root, "validation") if semantic.tests else None
    return dataclasses.replace(semantic, read=read, task="panoptic", stuff=known.stuff, tests=tests)


def _instance_folders(source: Any) -> dict[str, Path]:
    """Returns folders with `instances/` by name, the source itself as `"train"`; OSError for unreadable ones."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_dir():
        return {}
    inside = {path.name: path for path in sorted(Path(source).iterdir()) if split_of(path.name)}
    folders = {"train": Path(source)} if (Path(source) / "instances").is_dir() else inside
    return {name: folder for name, folder in folders.items() if (folder / "instances").is_dir()}


def _instances(folders: dict[str, Path], names: Sequence[str] | None, split: str) -> SegmentedImages:
    """Returns the pictures of a split, with the classes of the training pictures; `"train"` has others as `tests`.

    Test and validation pictures take each other's place. Raises FileNotFoundError if a folder has no `images/`;
    ValueError if there are several folders but not that split, none to train or to test on, or two of one split, and
    if two pictures have one name, a file names no class, or no picture has files.
    """
    train = _instance_folder(pick_split(folders, "train"), names)
    if split == "train" and len(folders) == 1:
        return train
    others = _instance_folder(pick_split(folders, "validation" if split == "train" else split), train.class_names)
    return dataclasses.replace(train, tests=others) if split == "train" else others


def _instance_folder(folder: Path, names: Sequence[str] | None) -> SegmentedImages:
    """Returns pictures of a folder with a file for each instance; those without files are left out.

    Warns of files without a picture. Raises FileNotFoundError without `images/`, ValueError if two pictures have one
    name, a file names no class, or no picture has files; OSError if a folder cannot be read. While reading: ValueError
    for what cannot be decoded or does not fit, OSError for a picture that cannot be opened, ImportError without Pillow.
    """
    if not (folder / "images").is_dir():
        raise FileNotFoundError(f"There is no folder {folder / 'images'} with the pictures of the instances.")
    found = image_files(folder / "images")
    pictures = {path.stem: path for path in found}
    if len(pictures) < len(found):
        raise ValueError(f"{folder / 'images'} has two pictures whose names differ by their endings only.")
    unused = sorted({path.name for path in (folder / "instances").iterdir() if path.is_dir()} - pictures.keys())
    if unused:
        warn_caller(f"{len(unused)} folders of {folder / 'instances'} have no picture: {listing(unused)}.")
    files = {path: image_files(folder / "instances" / stem) for stem, path in pictures.items() if stem not in unused}
    files = {path: parts for path, parts in files.items() if parts}
    labels = {part: _NUMBER.sub("", part.stem) for parts in files.values() for part in parts}
    known = tuple(names or sorted({*labels.values()}))
    unknown = [f"{p.parent.name}/{p.name}" for p, label in labels.items() if label not in known or not label]
    if unknown or not files:
        wanted = f"begin with {listing(known)}" if names else "begin with a class, such as cat_1.png"
        found = f"it has {listing(unknown)}" if files else "no picture of images/ has a folder with files there"
        raise ValueError(f"{folder}/instances must have files whose names {wanted}, but {found}.")
    paths = list(files)

    def read(i: int) -> tuple[np.ndarray, Targets]:
        picture, parts = read_picture(paths[i]), files[paths[i]]
        masks = [mask_at_size(read_mask(part) > 0, picture, part) for part in parts]
        return picture, {"masks": np.stack(masks), "labels": np.array([known.index(labels[p]) for p in parts], "int32")}

    digest = tuple((part.name, part.stat().st_size) for part in labels)
    return SegmentedImages(tuple(map(str, paths)), read, len(known), known, "instance", digest=digest)


def _arrays(
    pictures: Any, targets: Sequence[Any], classes: int | None, names: tuple[str, ...] | None
) -> SegmentedImages:
    """Returns pictures and targets in memory; pictures without a segment are left out.

    `classes` and `names` are as in `open_segments`. Raises ValueError if there are not as many of both, a label is not
    whole or none of the classes, or the shape of masks does not fit; KeyError for a target without `masks` or `labels`.
    """
    given = [to_numpy(target["labels"]) for target in targets]
    labels = [of.astype("int32") for of in given]
    count = classes or 1 + max((int(of.max()) for of in labels if len(of)), default=0)
    if len(pictures) != len(labels):
        raise ValueError(f"There must be as many pictures as targets, but {len(pictures)} and {len(labels)} are given.")
    for i, (of, target) in enumerate(zip(labels, targets, strict=True)):
        if len(of) and not ((of == given[i]).all() and 0 <= of.min() <= of.max() < count):
            found = f"those of picture {i} are {given[i].tolist()}"
            raise ValueError(f"targets must have the labels 0 to {count - 1}, but {found}.")
        shape = (len(of), *np.shape(pictures[i])[:2])
        if np.shape(target["masks"]) != shape:
            raise ValueError(f"masks of picture {i} must be {shape}, but their shape is {np.shape(target['masks'])}.")
    kept = [i for i, of in enumerate(labels) if len(of)]

    def read(i: int) -> tuple[np.ndarray, Targets]:
        i = kept[i]
        extra = {"crowd": to_numpy(targets[i]["crowd"]).astype(bool)} if "crowd" in targets[i] else {}
        target = {"masks": to_numpy(targets[i]["masks"]).astype(bool), "labels": labels[i], **extra}
        return _bytes(read_picture(pictures[i])), target

    called = tuple(f"picture {i}" for i in kept)
    digest = (fingerprint(*(to_numpy(pictures[i]) for i in kept[:16])), len(kept))
    return SegmentedImages(called, read, count, names, "instance", digest=digest)


def _bytes(picture: np.ndarray) -> np.ndarray:
    """Returns a picture of 0..255 as uint8; fractions are rounded."""
    return picture if picture.dtype == np.uint8 else picture.round().clip(0, 255).astype("uint8")


class SegmentStream(ImageStream):
    """Batches of pictures with segments: of training data crops, without end; of test data whole pictures, in order.

    `batch(n)` returns pictures of 0..255 and for each `{"masks", "labels"}`. Arguments are as in `open_data`; without
    an augmentation it is test data.
    """

    def __init__(
        self,
        source: SegmentedImages,
        image_size: ImageSize,
        batch_size: int,
        augmentation: SegmentAugmentation | None,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        prefetch: int = 1,
    ) -> None:
        """Starts the threads that read; ValueError without pictures, or TypeError too for sizes that make no sense."""
        self.source, self.augmentation, self._seed = source, augmentation, seed
        self.image_size, self.batch_size = pair("image_size", image_size), whole_number("batch_size", batch_size, 1)
        self.class_names = None if source.class_names is None else list(source.class_names)
        self.classes, self.target, self.examples = source.classes, source.target, len(source.names)
        self.name, self.endless, self.shard = source.names.__getitem__, augmentation is not None, shard
        if not self.examples:
            raise ValueError("data must hold pictures with segments, but none has one.")
        self.steps_per_epoch = count_steps(self.examples, batch_size, self.endless)
        self._last = None if self.endless else self.steps_per_epoch
        self.bad: list[BadImage] = []
        self.converted: list[BadImage] = []
        self._origin = {"source": f"{source.task} segments", "fingerprint": fingerprint(*source.names, *source.digest)}
        self._order = functools.lru_cache(2)(
            lambda epoch: np.random.default_rng([seed, ORDER, epoch]).permutation(self.examples)
        )
        self._readers = ThreadPoolExecutor(min(16, cores()), "keras_vit_read")
        super().__init__(1, prefetch)

    def _make(self, step: int) -> tuple[Any, Any]:
        """Returns the pictures and targets of a step: in training float32 `(pictures, *image_size, 3)`, else lists.

        The targets are a list of dicts. Raises ValueError, OSError or ImportError as `_one` for each picture.
        """
        first = step * self.batch_size
        places = [divmod(first + i, self.examples) for i in range(self.length(step))]
        read = list(self._readers.map(lambda place: self._one(*place), places[share(len(places), self.shard)]))
        pictures, targets = [picture for picture, _ in read], [target for _, target in read]
        if not self.endless:
            return pictures, targets
        shape = (0, *self.image_size, 3)
        return (np.stack(pictures) if pictures else np.zeros(shape)).astype("float32"), targets

    def _one(self, epoch: int, place: int) -> tuple[np.ndarray, Targets]:
        """Returns a picture of an epoch and its targets; in training a crop, of the next picture if one has no segment.

        Raises ValueError if no crop of any picture has a segment, or a picture or mask is wrong; OSError for a file
        that cannot be opened, ImportError for a missing package.
        """
        if self.augmentation is None:
            return self.source.read(place)
        first = int(self._order(epoch)[place])
        rng = np.random.default_rng([self._seed, IMAGE, epoch, first])
        for index in (*range(first, self.examples), *range(first)):  # the next one where a picture has no segment
            picture, targets = self.source.read(index)
            for _ in range(TRIES if targets["masks"].any() else 0):
                drawn = self.augmentation.draw(picture.shape[:2], self.image_size, rng)
                crop, found = augment_masks(picture, targets, self.image_size, **drawn)
                if len(found["labels"]):
                    return crop, found
        raise ValueError("No crop of any picture has a pixel of a segment.")


def hold_out_segments(source: SegmentedImages, share_held: float, seed: int) -> tuple[SegmentedImages, SegmentedImages]:
    """Returns the pictures to train on, and those of a share to evaluate on, one at least, which the seed draws.

    `share_held` is above 0 and below 1. Raises ValueError if none is left to train on.
    """
    order = np.random.default_rng([seed, ORDER]).permutation(len(source.names))
    held = max(1, round(share_held * len(order)))
    if held >= len(order):
        raise ValueError(f"validation={share_held} of {len(order)} pictures leaves none to train on.")
    return source.part(sorted(order[held:])), source.part(sorted(order[:held]))


# COCO's annotations


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
    """Returns the segments of each picture of a panoptic annotation.

    `names` are what a model's classes are called, to find the file's categories by; None: by their order. Raises
    OSError if the file is missing (FileNotFoundError) or cannot be read, and ValueError unless it is UTF-8 and has
    annotations of COCO's form whose ids differ, one for each picture, and as many categories as names.
    """

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
    """Returns the instances of each picture that has some, without crowds.

    `names`, OSError and ValueError are as of `panoptic_rows`; ValueError also for an annotation that is panoptic.
    """

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
    """Returns what the classes of an annotation are called, and which of them are stuff (`isthing` is 0), sorted.

    `names`, OSError and ValueError are as of `panoptic_rows`; without names the categories' own, in their ids' order.
    """

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
    """Returns the class of each category of an annotation, by its id.

    It is its place among the names, where these are the names of the categories; other names are those of the
    categories in the order of their ids. Raises ValueError if there are more or fewer, or two categories have one id;
    KeyError, TypeError or AttributeError for another form.
    """
    categories = _categories(about)
    if names is not None and len(names) != len(categories):
        raise ValueError(f"it has {len(categories)} categories, but the model {len(names)} classes")
    if names is not None and {name for _, name in categories} == set(names) and len(set(names)) == len(names):
        return {key: list(names).index(name) for key, name in categories}
    return {key: place for place, (key, _) in enumerate(categories)}


def _categories(about: Any) -> list[tuple[int, str]]:
    """Returns the ids and names of an annotation's categories, in the order of the ids.

    Raises ValueError if two have one id, KeyError if one lacks either, TypeError for another form.
    """
    found = sorted((row["id"], row["name"]) for row in about["categories"])
    if len(dict(found)) < len(found):
        raise ValueError("two categories have one id")
    return found


def _read_annotation(file: Path, kind: str, rows: Callable[[Any], Any]) -> Any:
    """Returns what the function `rows` does for the JSON in a file.

    Raises OSError if it is missing (FileNotFoundError) or cannot be read, and ValueError, with the `kind` it had to be
    of, if it is no JSON, or `rows` raises ValueError, TypeError, AttributeError or KeyError, or returns nothing.
    """
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
    """Returns a function from a name to the picture of that name in a folder, at any depth, but not in `ids`.

    The function raises FileNotFoundError if there is none, ValueError if there are two. Raises OSError here if the
    folder is missing (FileNotFoundError) or cannot be read, ValueError if a link leads back to a folder above it.
    """
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
    """Returns the ids in a PNG of a panoptic annotation, int64 `(height, width)`: red + 256 green + 65,536 blue.

    Raises OSError if it cannot be opened, ValueError if it cannot be decoded, ImportError without Pillow.
    """
    red, green, blue = np.moveaxis(read_picture(png).astype("int64"), -1, 0)
    return red + 256 * green + 65536 * blue
