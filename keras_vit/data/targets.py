"""What a picture is to be answered with: one record for each kind of target, which all other code asks.

The kinds of labels are here; masks, segments and boxes have theirs in their own files.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.data.augmentation import Augmentation, PictureAugmentation, ViewAugmentation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TargetKind:
    """A kind of target, such as classes or boxes; `register_target` makes a new one known.

    Args:
        name: What `target=` and `stream.target` call it.
        plain: The augmentation of training pictures if none is given. Recipes whose augmentation has its class are for
            this kind.
        others: Further classes of augmentations.
        task: What `training.train` trains on it: a `training.Task`, or a name of `Recipe.task`.
        evaluate: Function `evaluate(model, data, **options)` that measures a model, or its place, `"module:name"`.
        open: Function that opens such data for the command line; None: `open_data` itself does, or the command line
            has no such task.
        check: For `open_data((pictures, targets), target=name)` and pipelines: `check(target, size, where)` returns the
            target of a picture of size (height, width), or raises a ValueError that has the text `where`.
        stack: `stack(targets, image_size)` returns the targets of a training batch; None: they stay a list.
        keys: What dicts of a pipeline call the target.
        parts: Keys of a target that is a dict itself, of any number of things.
        command: What the command line calls the task, `--task`, and recipes the objective.
        recipe: The recipe that the command line takes if none is given.
        is_label: Only for the package's own labels of whole pictures, which are in one array and need no `check`.
        has_classes: Whether a target names classes.
        several: Whether a label may be several classes.

    Examples:
        >>> {"boxes", "class", "mask"} <= {*data.TARGETS}, data.TARGETS["multilabel"].several
        (True, True)
    """

    name: str
    plain: PictureAugmentation
    task: Any
    others: tuple[type[PictureAugmentation], ...] = ()
    evaluate: Any = None
    open: Any = None
    check: Callable[[Any, tuple[int, ...], str], Any] | None = None
    stack: Callable[[Sequence[Any], tuple[int, int]], Any] | None = None
    keys: tuple[str, ...] = ("target", "targets")
    parts: tuple[str, ...] = ()
    command: str = ""
    recipe: str = ""
    is_label: bool = False
    has_classes: bool = True
    several: bool = False


TARGETS: dict[str, TargetKind] = {}
"""The kinds of targets, by name.

Examples:
    >>> data.TARGETS["number"].has_classes
    False
"""
LABELLED: list[str] = []  # all kinds but NONE, for options that need a target


def register_target(kind: TargetKind) -> TargetKind:
    """Makes a kind of target known by its name, and returns it.

    ValueError if another kind has the name of `kind`, or it `is_label` and has functions, which labels do not use.

    Examples:
        >>> data.register_target(data.TARGETS["mask"]).command
        'segmentation'
    """
    known = TARGETS.get(kind.name)
    if known is not None and type(known.plain).__qualname__ != type(kind.plain).__qualname__:
        raise ValueError(f"name={kind.name!r} is taken by a kind of target with {type(known.plain).__name__}.")
    if kind.is_label and (kind.check or kind.stack or callable(kind.evaluate)):
        raise ValueError(f"is_label=True of {kind.name!r} is for kinds without check, stack, evaluate. Leave it out.")
    TARGETS[kind.name] = kind
    if kind.name not in LABELLED:
        LABELLED.append(kind.name)
    return kind


def augmentations() -> dict[str, type[PictureAugmentation]]:
    """Returns the classes of augmentations that recipes may have, by name."""
    return {type(kind.plain).__name__: type(kind.plain) for kind in TARGETS.values()}


def kind_of(augmentation: PictureAugmentation) -> TargetKind:
    """Returns the kind of target that a recipe with this augmentation is for."""
    kinds = {type(kind.plain): kind for kind in reversed(TARGETS.values())}  # CLASS comes before other labels
    return next(kinds[base] for base in type(augmentation).__mro__ if base in kinds)


def kind_of_data(data: Any, target: str) -> TargetKind:
    """Returns the kind of opened data, or else of other data's labels, which are called `target`."""
    known = getattr(data, "target", None)
    return TARGETS.get(known if isinstance(known, str) else target, CLASS)


CLASS = register_target(
    TargetKind(
        name="class",
        plain=Augmentation(crop="resize", flip=False),
        task="finetune",
        evaluate="keras_vit.evaluation:evaluate",
        keys=("label", "labels"),
        command="classification",
        recipe="finetune/folder",
        is_label=True,
    )
)
MULTILABEL = register_target(dataclasses.replace(CLASS, name="multilabel", several=True))
NUMBER = register_target(dataclasses.replace(CLASS, name="number", has_classes=False))
# Labels are not read and may be missing.
NONE = dataclasses.replace(NUMBER, name="none", others=(ViewAugmentation,), task="lejepa", evaluate=None)
TARGETS[NONE.name] = NONE
