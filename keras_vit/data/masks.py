"""Pictures whose targets are checked when they are read: what masks, segments and boxes have in common, and masks.

Masks have one number a pixel. They lie in folders, tables and arrays, or come from pipelines of other libraries.
"""

import dataclasses
import functools
import operator
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from keras_vit._arguments import (
    check_class_names,
    listing,
    printable,
    require_packages,
    to_numpy,
    warn_caller,
)
from keras_vit._files import expanded_path, fingerprint
from keras_vit._options import Whole, checked
from keras_vit._terminal import ProgressBar
from keras_vit.data import examples as base
from keras_vit.data.augmentation import MaskAugmentation, target_parts
from keras_vit.data.tables import LabelTable
from keras_vit.data.targets import TARGETS, TargetKind, register_target
from keras_vit.preprocessing import check_pixels
from keras_vit.preprocessing.images import check_pages, read_picture

Targets = dict[str, np.ndarray]
IMAGES, MASKS = "images", ("masks", "annotations", "labels")  # what the two folders of a data set are called
CLASSES = "classes.txt"  # beside them: a name on each line, in the order of the numbers
NO_CLASSES = "A pipeline does not say how many classes there are. Pass classes= or class_names=."
MODES = ("1", "L", "P", "I", "I;16")  # Pillow's, of one number a pixel


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Annotated:
    """Data whose targets are checked when they are read; subclasses have `examples_of(split)` and `checked_parts`."""

    classes: int | None
    class_names: tuple[str, ...] | None = None
    pipeline: Any = dataclasses.field(default=None, repr=False)
    numbers: tuple[int, ...] | None = None
    task: str = ""

    target: ClassVar[str]

    def in_order(self, names: Sequence[str] | None) -> Self:
        """Returns the same data with classes in the order of a model's names; itself if either has no names.

        Raises ValueError if the model lacks a class or has it twice.
        """
        if names is None or self.class_names in (None, tuple(names)):
            return self
        numbers = base.match_labels(self.class_names, names, "data").tolist()
        if self.numbers is not None:
            numbers = [numbers[number] for number in self.numbers]
        return dataclasses.replace(self, classes=len(names), class_names=tuple(names), numbers=tuple(numbers))

    @property
    def own_classes(self) -> int | None:
        """The number of classes of the data itself, by which its targets are checked."""
        return self.classes if self.numbers is None else len(self.numbers)

    def with_targets(self, examples: base.Examples) -> base.Examples:
        unread = {field.name: None for field in dataclasses.fields(self) if not field.repr}  # worker processes get it
        check = functools.partial(_checked, dataclasses.replace(self, **unread), examples.annotate)
        return dataclasses.replace(examples, annotate=check)

    def open_examples(self, split: str, class_names: Sequence[str] | None, reading: base.Reading) -> base.Examples:
        """Returns the pictures of a split with their targets; with `class_names` the classes come in that order."""
        here = self.in_order(class_names)
        names = here.class_names or class_names
        return dataclasses.replace(
            here.with_targets(here.examples_of(split)),
            classes=here.classes or 0,
            class_names=None if names is None else list(names),
            target=self.target,
        ).readable(reading)


def _checked(about: Annotated, annotate: Callable[..., Any], note: Any, pixels: np.ndarray, name: str) -> Any:
    return about.checked(annotate(note, pixels, name), pixels.shape[:2], name)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AnnotatedPictures(Annotated):
    """Pictures with segments or boxes, whose targets are dicts with labels."""

    examples: base.Examples | None = dataclasses.field(default=None, repr=False)
    splits: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict, repr=False)
    whole: base.Examples | None = dataclasses.field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What the pictures are called, such as their paths."""
        return () if self.examples is None else tuple(map(self.examples.called, range(len(self.examples))))

    @property
    def has_test_split(self) -> bool:
        """Whether there are pictures to evaluate on."""
        return base.has_test_split(self.splits)

    @property
    def tests(self) -> Self | None:
        """The pictures of the validation split, or of the only split beside the training pictures; None without one."""
        return self.of_split("validation") if self.has_test_split else None

    def of_split(self, split: str) -> Self:
        """Returns the data of a split, the data itself if it has no splits; ValueError if it has only other splits."""
        make = base.pick_split(self.splits, split) if self.splits else None
        return self if make is None or split == "train" else make()

    def read(self, i: int) -> tuple[np.ndarray, Targets]:
        """Returns the pixels of picture `i`, uint8 `(height, width, 3)`, and its targets, a dict of arrays."""
        return self.with_targets(self.examples).read(range(len(self.examples))[i])

    def part(self, numbers: Iterable[int]) -> Self:
        """Returns the same data with the pictures of these numbers; negative numbers count from the end."""
        chosen = [range(len(self.examples))[operator.index(number)] for number in numbers]
        return dataclasses.replace(self, examples=self.examples.part(chosen), whole=None)

    def in_order(self, names: Sequence[str] | None) -> Self:
        found = super().in_order(names)
        if found is self:
            return found
        ordered = {split: lambda make=make: make().in_order(names) for split, make in self.splits.items()}
        return dataclasses.replace(found, splits=ordered)

    def with_classes(self, classes: int | None, names: tuple[str, ...] | None) -> Self:
        """Returns the data with classes that the user gave; ValueError if their number differs from the data's."""
        found = self.in_order(names)
        if classes not in (None, found.classes):
            given = f"classes={classes}" if names is None else f"class_names={list(names)}"
            raise ValueError(f"{given} was given, but the {self.target} have {found.classes} classes.")
        return found if found.class_names or names is None else dataclasses.replace(found, class_names=names)

    def examples_of(self, split: str) -> base.Examples:
        """Returns the pictures of a split; all of them if there are no splits."""
        chosen = self.of_split(split)
        return dataclasses.replace(
            chosen.examples if split == "train" or chosen.whole is None else chosen.whole,
            kind=f"{self.task} {self.target}".strip(),
            fingerprint=fingerprint(*chosen.names, chosen.examples.fingerprint),
            task=chosen.task,
        )

    def checked(self, target: Any, size: tuple[int, ...], where: str) -> Targets:
        """Returns the target of a picture as arrays, by its (height, width) and its name in error messages.

        Raises ValueError if the target has another form or size.
        """
        if isinstance(target, Mapping):
            parts = TARGETS[self.target].parts if self.target in TARGETS else ()
            target = target_parts(target, f"The target of {where}", *parts)
        parts = self.checked_parts(target, size, where)
        if self.numbers is not None:
            parts["labels"] = np.array(self.numbers, "int32")[parts["labels"]]
        return parts

    def labels_of(self, target: Mapping[str, Any], name: str) -> np.ndarray:
        """Returns the labels of a picture's target as int32; ValueError for one that is not a class."""
        given, classes = to_numpy(target["labels"]), self.own_classes
        labels = given.astype("int32")
        if len(labels) and not ((labels == given).all() and 0 <= labels.min() <= labels.max() < classes):
            raise ValueError(f"targets must have the labels 0 to {classes - 1}, but {name} has {given.tolist()}.")
        return labels


def opened(
    pictures: Sequence[Any], notes: Sequence[Any], annotate: Callable[..., Any], *digest: Any, **fields: Any
) -> base.Examples:
    """Returns pictures, in files where nothing else is said, whose targets `annotate` makes of notes."""
    return base.Examples(
        pictures=pictures,
        labels=np.zeros(len(pictures), "int64"),  # all are alike where a share is held out
        fingerprint=fingerprint(*digest),
        notes=notes,
        annotate=annotate,
        **fields,
    )


def in_memory(kind: Any, data: Any, classes: int | None, names: Any, with_empty: bool, **fields: Any) -> Any:
    """Returns pictures and targets in memory as a `kind` of data; pictures without a target may be left out."""
    pictures, targets = data
    if len(pictures) != len(targets):
        counts = f"{len(pictures)} pictures and {len(targets)} targets"
        raise ValueError(f"Each picture needs a target, but {counts} were given.")
    for i, target in enumerate(targets):
        if not isinstance(target, Mapping):
            wanted = "With pictures in memory, each target must be a dict with 'labels', and 'masks' or 'boxes'"
            raise TypeError(f"{wanted}, but that of picture {i} is {target!r:.80}.")
    labels = [to_numpy(target["labels"]) for target in targets]
    classes = classes or 1 + max((int(of.max()) for of in labels if len(of)), default=0)
    kept = [i for i, of in enumerate(labels) if with_empty or len(of)]
    arrays = [to_numpy(picture) for picture in pictures[:16] if hasattr(picture, "shape")]
    if arrays:
        base.check_scale(arrays)
    whole = opened(
        pictures,
        targets,
        lambda target, pixels, name: target,
        fingerprint(*(to_numpy(pictures[i]) for i in kept[:16])),
        len(kept),
        name="picture {}".format,
        load=lambda picture: as_bytes(read_picture(picture)),
        in_files=False,
    )
    pictures_of = {"examples": whole} if with_empty else {"examples": whole.part(kept), "whole": whole}
    found = kind(classes=classes, class_names=names, **pictures_of, **fields)
    for i, target in enumerate(targets):
        found.checked(target, np.shape(pictures[i])[:2], f"picture {i}")
    return found


def from_pipeline(kind: Any, source: Any, classes: int | None, names: tuple[str, ...] | None, **fields: Any) -> Any:
    """Returns the `kind` of data that a pipeline yields."""
    if classes is None:
        raise ValueError(NO_CLASSES)
    return kind(classes=classes, class_names=names, pipeline=source, **fields)


def of_folders(
    read: Callable[[Path, Any], Any], root: Path, folders: Mapping[str, Path], names: Sequence[str] | None
) -> Any:
    """Returns what `read` makes of the training folder, with the other splits, which have the same classes."""
    train = read(base.pick_split(folders, "train"), names)
    if [*folders.values()] == [root]:
        return train
    return with_splits(train, {split: functools.partial(read, folders[split], train.class_names) for split in folders})


def with_splits(data: Any, splits: Mapping[str, Callable[[], Any]]) -> Any:
    """Returns data with the functions that make its splits; that to evaluate on is made at once, others when needed."""
    found = dataclasses.replace(data, splits={split: functools.cache(make) for split, make in splits.items()})
    if found.has_test_split:
        found.of_split("validation")
    return found


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Returns a picture of 0..255 as uint8; fractions are rounded."""
    return picture if picture.dtype == np.uint8 else picture.round().clip(0, 255).astype("uint8")


# Masks


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedImages(Annotated):
    """Pictures with a mask each, for `finetune_segmentation` and `open_data`; `open_masks` returns them.

    Attributes:
        source: A folder, a table, `(images, masks)`, or a dict of these by split; or a pipeline.
        classes: Number of classes.
        class_names: Class names in the order of the class numbers; None if they are not known.
        ignore: The mask value of pixels without a class.
        reduce_zero_label: Whether 0 also marks pixels without a class, so that class numbers in masks begin at 1.
        pipeline: The data set, loader or other iterable of batches that was given; None for other sources.
        task: Empty, because masks have only one task.
        numbers: The new number of each class after `in_order`; None if the numbers have not changed.
        target: `"mask"`.

    Examples:
        >>> masks = data.open_masks((pixels, np.zeros((4, 24, 24), "uint8")), classes=2)
        >>> masks.classes, masks.has_test_split
        (2, False)
    """

    source: Any = dataclasses.field(repr=False)
    ignore: int
    reduce_zero_label: bool

    target: ClassVar[str] = "mask"

    def __post_init__(self) -> None:
        """Raises ValueError if the number that stands for no class is one of the classes."""
        if 0 <= self.ignore < (self.classes or 0):
            found = f"{self.ignore} is one of the {self.classes} classes"
            advice = "If 0 stands for no class, pass reduce_zero_label=True."
            raise ValueError(f"ignore must not be a class number, but {found}. {advice}")

    @property
    def has_test_split(self) -> bool:
        """Whether the source has a test or validation split; OSError if its folder is missing."""
        return base.has_test_split(dict.fromkeys(self.splits))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the source's splits, empty if it has none; OSError if its folder is missing."""
        if isinstance(self.source, LabelTable):
            return tuple(dict.fromkeys(self.source.splits or ()))
        return tuple(self.source if isinstance(self.source, Mapping) else _split_folders(self.source))

    def checked(self, mask: Any, size: tuple[int, ...], name: str) -> np.ndarray:
        """Returns a mask as int32 class numbers and `ignore`.

        Raises ValueError, which has `name`, if its shape is not `size`, or it holds values that are not classes.
        """
        labels = to_numpy(mask)
        labels = labels[..., 0] if labels.ndim == len(size) + 1 and labels.shape[-1] == 1 else labels
        if labels.shape != size or not labels.size:
            wanted = f"the size of the picture, {size}, and pixels"
            raise ValueError(f"The mask of {name} must have {wanted}, but its shape is {labels.shape}.")
        if labels.dtype.kind not in "iub" and not (labels.dtype.kind == "f" and (labels == np.floor(labels)).all()):
            raise ValueError(f"The mask of {name} must hold whole numbers, but its dtype is {labels.dtype}.")
        given = labels = labels.astype("int32")
        if self.reduce_zero_label:
            labels = np.where((given == 0) | (given == self.ignore), self.ignore, given - 1)
        count = self.own_classes
        wrong = (labels != self.ignore) & ((labels < 0) | (labels >= (count or np.inf)))
        if wrong.any():
            known = f"there are {count} classes" if count else "class numbers begin at 0"
            advice = (
                "If 0 stands for no class, pass reduce_zero_label=True; if another number does, pass ignore=NUMBER."
            )
            raise ValueError(f"The mask of {name} has the label {given[wrong][0]}, but {known}. {advice}")
        if self.numbers is not None:
            is_class = labels != self.ignore
            labels = np.where(is_class, np.array(self.numbers, "int32")[np.where(is_class, labels, 0)], self.ignore)
        return labels

    def check_classes_occur(self, on_bad_image: str = "stop", queries: bool = False) -> None:
        """Raises ValueError if a class occurs in none of the training masks, or there is only one class.

        For an EoMT (`queries=True`) classes may be missing, unless the masks hold only 0 and `ignore`. A pipeline is
        not checked.

        Also raises ValueError if there are no training pictures, or if a mask cannot be read and `on_bad_image` is not
        `"skip"`; OSError for folders, TypeError for other sources, ImportError without Pillow, as in `open_masks`.
        """
        if self.pipeline is not None:
            return
        seen, count = self.numbers_seen(on_bad_image == "skip"), self.classes or 0
        # One class is enough for queries, whose masks have all other pixels as counterexamples.
        if queries and (self.reduce_zero_label or seen - {self.ignore} != {0} or self.ignore not in seen):
            return
        missing = [number for number in range(count) if number not in seen]
        if count > 1 and not missing:
            return
        named = [f"{n} ({self.class_names[n]!r})" if self.class_names else str(n) for n in missing]
        hint = " Add masks with more classes."
        if self.ignore in seen:
            hint = f" The masks also have {self.ignore}, the ignored label. If it is a class, pass another ignore=."
        if not missing:
            raise ValueError(f"All training masks have only the class 0, but a model needs two classes or more.{hint}")
        classes = f"{', '.join(named[:5])}{' ...' if len(named) > 5 else ''}"
        raise ValueError(f"No training mask has the class {classes}, so the model could not learn it.{hint}")

    def numbers_seen(self, skip: bool = False) -> set[int]:
        """Returns the numbers that occur in training masks, and `ignore`; it stops when it has seen all classes."""
        examples, seen = self.open_examples("train", None, base.Reading(check="none")), set[int]()

        def one(i: int) -> list[int]:
            try:
                mask = _mask_of(examples.request(i)[1])
                return np.unique(self.checked(mask, np.shape(mask)[:2], examples.called(i))).tolist()
            except (OSError, ValueError):
                if skip:  # the stream warns of it
                    return []
                raise

        count = len(examples)
        chunks = [range(i, min(i + 64, count)) for i in range(0, count, 64)]
        with ThreadPoolExecutor() as pool, ProgressBar("Looking for classes", len(chunks), shown=count >= 100) as bar:
            for chunk in bar.track(chunks):
                seen.update(*pool.map(one, chunk))
                if (self.classes or 0) > 1 and seen.issuperset(range(self.classes or 0)):
                    break
        return seen

    def examples_of(self, split: str) -> base.Examples:
        """Returns the pictures of a split (see `pick_split`), with their masks."""
        source = base.pick_split(self.source, split) if isinstance(self.source, Mapping) else self.source
        in_files, kind, name = isinstance(source, (LabelTable, str, os.PathLike)), "folder of masks", None
        if isinstance(source, LabelTable):
            rows, kind = source.rows_of(split), "table of masks"
            files = [(source.files[i], source.masks[i]) for i in rows]
            name = [source.called(i) for i in rows].__getitem__
        elif in_files:
            files = _files(Path(source), split)
        else:
            kind, name, images, masks = "arrays of masks", "images[{}]".format, *_arrays(source)
            digest = [to_numpy(part[i]) for part in (images, masks) for i in (0, -1)]
        if in_files:
            images, masks = zip(*files, strict=True)
            digest = [(path.name, mask.stat().st_size if mask.exists() else 0) for path, mask in files]
        settings = [self.ignore, self.reduce_zero_label, *([self.numbers] if self.numbers else [])]
        about = {"kind": kind, "name": name, "in_files": in_files, "ignore": self.ignore}
        return opened(images, masks, _mask_of, len(images), *settings, *digest, **about)

    def open_examples(self, split: str, class_names: Sequence[str] | None, reading: base.Reading) -> base.Examples:
        examples = super().open_examples(split, class_names, reading)
        if examples.in_files:
            return examples

        def load(image: Any) -> np.ndarray:
            pixels = base.with_channels(to_numpy(image)[None], reading.channels)[0]
            return check_pixels(pixels, reading.channels, name="the picture", scaled="ignore")

        base.check_scale([load(examples.pictures[i]) for i in range(min(16, len(examples)))], reading.channels)
        return dataclasses.replace(examples, load=load)


def _mask_of(note: Any, *_: Any) -> Any:
    return read_mask(note) if isinstance(note, Path) else note


@checked
def open_masks(
    source: Any,
    *,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    ignore: typing.Annotated[int, Whole(-1)] = 255,
    reduce_zero_label: bool = False,
) -> MaskedImages:
    """Opens pictures with semantic masks, which hold the class number of each pixel.

    Args:
        source: One of

            - a folder with `images/` and `masks/` (or `annotations/`, `labels/`), whose files have the same names
              except for their suffixes. Masks are PNGs or other files with one number per pixel, palettes included. The
              two folders may lie in `train/` and `val/`, or contain these folders.
            - `(images, masks)`: arrays `(n, height, width, channels)` and `(n, height, width)`, or lists of arrays of
              different sizes.
            - a table of `open_table(..., target="mask")`, whose labels are the files of masks.
            - a `tf.data.Dataset`, a torch `DataLoader` or another iterable of such pairs, in batches or one by one:
              used as it is, in its own order and with its own crops.
            - a dict with any of the first two for `"train"` and `"test"`; or what this function has returned.
        classes: Number of classes. None: the number of `class_names` or of lines in the folder's `classes.txt`. Without
            either, all training masks are read, and it is one more than their largest number.
        class_names: Names of the classes, in the order of the class numbers.
        ignore: The mask value of unlabelled pixels, which count neither in training nor in evaluation.
        reduce_zero_label: Whether 0 also marks unlabelled pixels, so that class 0 has the mask value 1, as in ADE20K.

    Returns:
        The data, for `finetune_segmentation` and `open_data`. Files are read, and masks checked, when they are used.

    Raises:
        TypeError, ValueError: if an argument, a mask or `classes.txt` is invalid.
        OSError, ImportError: if a folder or a file is missing or cannot be read; if Pillow is missing.
    """
    source = expanded_path(source)
    names, classes = check_class_names(class_names, classes)
    if isinstance(source, MaskedImages):
        given = {"classes": (classes, None), "class_names": (names, None), "ignore": (ignore, 255)}
        for name, (value, unset) in (given | {"reduce_zero_label": (reduce_zero_label, False)}).items():
            if value not in (unset, getattr(source, name)):
                found = f"{name}={value!r} was given, but the masks were opened with {getattr(source, name)!r}"
                raise ValueError(f"{found}. Pass it to the first call of open_masks only.")
        return source
    if isinstance(source, LabelTable) and source.masks is None:
        advice = 'Open it with open_table(..., target="mask").'
        raise ValueError(f"{source.source} has labels of whole images, not masks. {advice}")
    if isinstance(source, (str, os.PathLike)):
        base.check_folder(Path(source), "images/ and masks/")
        names, classes = check_class_names(names or names_beside(source), classes)
    pipeline = source if base.is_pipeline(source) else None
    about = {"classes": classes, "class_names": names, "pipeline": pipeline}
    data = MaskedImages(source, ignore, reduce_zero_label, **about)
    if pipeline is not None and hasattr(source, "__next__"):
        raise TypeError("An iterator can be read only once. Pass its source instead: a data set, or a list.")
    if pipeline is not None and classes is None:
        raise ValueError(NO_CLASSES)
    if pipeline is None and classes is not None:  # what is missing is said here
        there = base.names_of_splits(dict.fromkeys(data.splits))
        data.examples_of("test" if there and "train" not in there else "train")
    if classes is None:
        seen = data.numbers_seen() - {ignore}
        if not seen:
            raise ValueError(f"All masks hold only the ignored label {ignore}. Pass another ignore= if it is a class.")
        data = dataclasses.replace(data, classes=max(seen) + 1)
    return data


def _stacked(masks: Sequence[np.ndarray], image_size: tuple[int, int]) -> np.ndarray:
    return np.array(masks, "int32").reshape(-1, *image_size)


MASK = register_target(
    TargetKind(
        name=MaskedImages.target,
        # A picture at size, and a crop if it is longer.
        plain=MaskAugmentation((1.0, 1.0), 1.0, False, 0.0, 0.0, 0.0, 0.0),
        task="segmentation",
        evaluate="keras_vit.segmentation:evaluate",
        open=open_masks,
        stack=_stacked,
        keys=("mask", "masks", "segmentation_mask", "labels", "label"),
        command="segmentation",
        recipe="segmentation/dinov2_linear",
    )
)


def mask_targets(
    labels: Any, ignore: int = 255, reduce_zero_label: bool = False, segments: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, np.ndarray]:
    """Returns the mask and the class of each segment of a segmentation map, as a target of an EoMT.

    It is a dict of `masks`, booleans `(T, height, width)`, and `labels`, int32 `(T,)`, ordered by the map's numbers.

    Args:
        labels: Integers `(height, width)`: the class of each pixel, or the id of its segment.
        ignore: The class number of pixels that belong to no mask.
        reduce_zero_label: Whether 0 is not a class, and k stands for class k - 1, as in ADE20K.
        segments: `{"id", "label", "crowd"}` for each id; other ids and crowds get no mask. None: each class has one
            mask.

    TypeError, ValueError or KeyError if `labels` are not such integers, or an argument does not fit `segments`.

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
        if ignore != 255 or reduce_zero_label:
            raise ValueError(f"ignore={ignore} and reduce_zero_label={reduce_zero_label} are not used with segments=.")
        known = {int(part["id"]): int(part["label"]) for part in segments if not part.get("crowd")}
        names = {int(k): known[int(k)] for k in np.unique(labels) if int(k) in known}
    masks = [labels == k for k in names]
    return {
        "masks": np.stack(masks) if masks else np.zeros((0, *labels.shape), bool),
        "labels": np.array([*names.values()], "int32"),
    }


def read_mask(path: Path) -> np.ndarray:
    """Returns the numbers in a file of one number a pixel, `(height, width)` of booleans or integers."""
    require_packages("A mask", ("PIL",), "images")
    from PIL import Image

    try:
        with Image.open(path) as image:
            mode, kind = image.mode, image.format
            check_pages(image)
            numbers = np.asarray(image) if mode in MODES else None
    except MemoryError:
        raise
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        raise ValueError(f"{printable(path)} cannot be read as a mask: {error}") from error
    if kind in ("JPEG", "MPO"):
        found = f"{printable(path)} is a JPEG, whose compression changes class numbers"
        raise ValueError(f"{found}. Save the original mask as a PNG.")
    if numbers is None:
        found = f"has fractions (mode {mode})" if mode == "F" else f"has colours (mode {mode})"
        found = f"{printable(path)} {found}, but a mask has one whole number for each pixel"
        raise ValueError(f"{found}. Save class numbers instead.")
    return numbers


def mask_at_size(mask: np.ndarray, picture: np.ndarray, file: Path) -> np.ndarray:
    """Returns a mask `(height, width, ...)` at the size of its picture, of the nearest pixels, as EoMT's authors do."""
    old, new = mask.shape[:2], picture.shape[:2]
    if abs(new[0] * old[1] - new[1] * old[0]) > max(*old, *new):  # more than rounding
        wanted = f"the aspect ratio of its picture, {new[0]} x {new[1]} pixels"
        raise ValueError(f"{printable(file)} must have {wanted}, but it has {old[0]} x {old[1]}.")
    rows, columns = (np.arange(side) * before // side for before, side in zip(old, new, strict=True))
    return mask[rows[:, None], columns]


def names_beside(source: Any) -> tuple[str, ...] | None:
    """Returns the names of classes, one a line in `classes.txt` of a folder; None where there is none, or no folder."""
    file = Path(expanded_path(source), CLASSES) if isinstance(source, (str, os.PathLike)) else None
    if file is None or not file.exists():
        return None
    names = file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    if not names:
        raise ValueError(f"{printable(file)} is empty, but it must have a class name on each line.")
    return check_class_names(names, None)[0]


def _arrays(source: Any) -> tuple[Any, Any]:
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        wanted = "a folder of images/ and masks/, (images, masks), or a dict of these"
        raise TypeError(f"data must be {wanted}, but {type(source).__name__} was given.")
    images, masks = source
    if not len(images) or len(images) != len(masks):
        raise ValueError(f"Each image needs a mask, but there are {len(images)} images and {len(masks)} masks.")
    return images, masks


# Folders


def _split_folders(root: Any) -> dict[str, tuple[Path, Path]]:
    """Returns the folders of pictures and masks of each split by its name; none if there are none, or no folder."""
    if not isinstance(root, (str, os.PathLike)):
        return {}
    root, found = Path(root), {}
    inside = root / IMAGES if (root / IMAGES).is_dir() else root
    for folder in sorted(inside.iterdir()):
        if folder.is_dir() and base.split_of(folder.name):
            above = inside == root  # train/images, and not images/train
            below = (folder, _mask_folder(root) / folder.name)
            found[folder.name] = (folder / IMAGES, _mask_folder(folder)) if above else below
    return found


def _mask_folder(root: Path) -> Path:
    """Returns the folder of masks beside the pictures, of whichever of its names; that of the first name if missing."""
    return next((root / name for name in MASKS if (root / name).is_dir()), root / MASKS[0])


def files_by_name(folder: Path) -> dict[Path, Path]:
    """Returns the images below a folder, by their paths in it without the ending; ValueError if two have one."""
    files: dict[Path, Path] = {}
    for path in base.image_files(folder):
        other = files.setdefault(path.relative_to(folder).with_suffix(""), path)
        if other != path:
            raise ValueError(f"{printable(other)} and {printable(path.name)} differ in their suffix only. Keep one.")
    return files


def _files(root: Path, split: str) -> list[tuple[Path, Path]]:
    """Returns each picture of a split with its mask, sorted; masks without a picture are left out with a warning."""
    folders = _split_folders(root)
    pictures, masks = base.pick_split(folders, split) if folders else (root / IMAGES, _mask_folder(root))
    for folder, kind in ((pictures, "pictures"), (masks, "masks")):
        base.check_folder(folder, f"the {kind}")
    by_name, files = files_by_name(masks), files_by_name(pictures)
    if not files:
        raise ValueError(f"{printable(pictures)} must contain image files, but has none.")
    without = [str(name) for name in files if name not in by_name]
    if without:
        found = f"{len(without)} pictures in {printable(pictures)} have no mask in {printable(masks)}"
        raise ValueError(f"{found}: {listing(without)}. Add the masks, or remove the pictures.")
    unused = [str(name) for name in by_name if name not in files]
    if unused:
        warn_caller(f"{len(unused)} masks in {printable(masks)} have no picture, and are left out: {listing(unused)}.")
    return [(path, by_name[name]) for name, path in files.items()]
