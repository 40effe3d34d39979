"""What pictures with masks, segments or boxes have in common: how their classes are numbered, and how they are read."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit._files import fingerprint
from keras_vit.data.examples import Examples, Reading, check_scale, match_labels, pick_split
from keras_vit.preprocessing.images import read_picture

Targets = dict[str, np.ndarray]


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
        numbers = match_labels(self.class_names, names, "data").tolist()
        if self.numbers is not None:
            numbers = [numbers[number] for number in self.numbers]
        return dataclasses.replace(self, classes=len(names), class_names=tuple(names), numbers=tuple(numbers))

    @property
    def own_classes(self) -> int | None:
        """The number of classes of the data itself, by which its targets are checked."""
        return self.classes if self.numbers is None else len(self.numbers)

    def with_targets(self, examples: Examples) -> Examples:
        """Returns examples whose annotations are checked."""
        unread = {field.name: None for field in dataclasses.fields(self) if not field.repr}  # worker processes get it
        check = functools.partial(_checked, dataclasses.replace(self, **unread), examples.annotate)
        return dataclasses.replace(examples, annotate=check)

    def open_examples(self, split: str, class_names: Sequence[str] | None, reading: Reading) -> Examples:
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

    examples: Examples | None = dataclasses.field(default=None, repr=False)
    tests: Any = dataclasses.field(default=None, repr=False)
    whole: Examples | None = dataclasses.field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What the pictures are called, such as their paths."""
        return () if self.examples is None else tuple(map(self.examples.called, range(len(self.examples))))

    @property
    def has_test_split(self) -> bool:
        """Whether there are pictures to evaluate on."""
        return self.tests is not None

    def read(self, i: int) -> tuple[np.ndarray, Targets]:
        """Returns the pixels of picture `i`, uint8 `(height, width, 3)`, and its targets, a dict of arrays."""
        return self.with_targets(self.examples).read(range(len(self.examples))[i])

    def part(self, numbers: Iterable[int]) -> Self:
        """Returns the same data with the pictures of these numbers; negative numbers count from the end."""
        chosen = [range(len(self.examples))[operator.index(number)] for number in numbers]
        return dataclasses.replace(self, examples=self.examples.part(chosen), whole=None)

    def in_order(self, names: Sequence[str] | None) -> Self:
        found = super().in_order(names)
        if found is self or self.tests is None:
            return found
        return dataclasses.replace(found, tests=self.tests.in_order(names))

    def with_classes(self, classes: int | None, names: tuple[str, ...] | None) -> Self:
        """Returns the data with classes that the user gave; ValueError if their number differs from the data's."""
        found = self.in_order(names)
        if classes not in (None, found.classes):
            given = f"classes={classes}" if names is None else f"class_names={list(names)}"
            raise ValueError(f"{given} was given, but the {self.target} have {found.classes} classes.")
        return found if found.class_names or names is None else dataclasses.replace(found, class_names=names)

    def examples_of(self, split: str) -> Examples:
        """Returns the training pictures, or for another split the test pictures if there are any."""
        chosen = self if split == "train" or self.tests is None else self.tests
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
) -> Examples:
    """Returns pictures, in files where nothing else is said, whose targets `annotate` makes of notes."""
    return Examples(
        pictures=pictures,
        labels=np.zeros(len(pictures), "int64"),  # all are alike where a share is held out
        fingerprint=fingerprint(*digest),
        notes=notes,
        annotate=annotate,
        **{"kind": "", "name": lambda i: str(pictures[i])} | fields,
    )


def in_memory(kind: Any, data: Any, classes: int | None, names: Any, with_empty: bool, **fields: Any) -> Any:
    """Returns pictures and targets in memory as a `kind` of data; pictures without a target may be left out."""
    pictures, targets = data
    if len(pictures) != len(targets):
        counts = f"{len(pictures)} pictures and {len(targets)} targets"
        raise ValueError(f"Each picture needs a target, but {counts} were given.")
    for i, target in enumerate(targets):
        if not isinstance(target, Mapping):
            raise TypeError(
                "With pictures in memory, each target must be a dict with 'labels', and 'masks' or 'boxes', but that "
                f"of picture {i} is {target!r:.80}."
            )
    labels = [to_numpy(target["labels"]) for target in targets]
    classes = classes or 1 + max((int(of.max()) for of in labels if len(of)), default=0)
    kept = [i for i, of in enumerate(labels) if with_empty or len(of)]
    arrays = [to_numpy(picture) for picture in pictures[:16] if hasattr(picture, "shape")]
    if arrays:
        check_scale(arrays)
    whole = opened(
        pictures,
        targets,
        lambda target, pixels, name: target,
        fingerprint(*(to_numpy(pictures[i]) for i in kept[:16])),
        len(kept),
        name=lambda i: f"picture {i}",
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
        raise ValueError("A pipeline does not say how many classes there are. Pass classes= or class_names=.")
    return kind(classes=classes, class_names=names, pipeline=source, **fields)


def with_tests(
    read: Callable[[Any, Any], Any], splits: Mapping[str, Any], names: Sequence[str] | None, split: str = "train"
) -> Any:
    """Returns what `read` makes of a split, with the classes of the training pictures; of these with `tests`."""
    train = read(pick_split(splits, "train"), names)
    if len(splits) == 1:
        return train
    tests = read(pick_split(splits, "validation" if split == "train" else split), train.class_names)
    return dataclasses.replace(train, tests=tests) if split == "train" else tests


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Returns a picture of 0..255 as uint8; fractions are rounded."""
    return picture if picture.dtype == np.uint8 else picture.round().clip(0, 255).astype("uint8")
