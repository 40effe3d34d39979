"""Which options of a run apply to which runs, as data: what does not apply is refused, never dropped in silence."""

from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import listing

# What a run learns from, and the targets of the data that it takes.
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "labels": ("class", "multilabel", "number"),
    "distillation": ("class",),
    "masked_patches": ("class", "multilabel", "number"),  # labels are not looked at
    "segmentation": ("mask",),
}
_LABELS = {"objective": ("labels", "distillation")}
_CLASSES = {"target": ("class", "multilabel")}
_IN_THE_MODEL = {"kind": ("VisionTransformer", "LinearSegmenter")}
_EOMT = {"kind": ("EoMT",)}
# Fields of a recipe that do not apply to every run, with the runs that they apply to. All others always do.
RECIPE: dict[str, dict[str, tuple[str, ...]]] = {
    "momentum": {"optimizer": ("sgd",)},
    "beta_1": {"optimizer": ("adam", "adamw", "muon")},
    "beta_2": {"optimizer": ("adam", "adamw", "muon")},
    "dropout": _IN_THE_MODEL,
    "drop_path": _IN_THE_MODEL,
    "patch_drop": {**_LABELS, "kind": ("VisionTransformer",)},
    "loss": {**_LABELS, **_CLASSES},
    "label_smoothing": {**_LABELS, **_CLASSES},
    "class_weight": {"objective": ("labels",), **_CLASSES},
    "sampling": _CLASSES,
    "backbone_warmup_steps": _EOMT,
    "decay_query_blocks": _EOMT,
    "queries": _EOMT,
    "first_mask_steps": _EOMT,
    "head_bias": {**_LABELS, **_CLASSES},  # of numbers, their mean is taken
}
# The same for fields of an `Augmentation`.
AUGMENTATION: dict[str, dict[str, tuple[str, ...]]] = {"mixup": _CLASSES, "cutmix": _CLASSES}


def refuse_unused(given: Any, usual: Any, table: Mapping[str, Mapping[str, tuple[str, ...]]], **run: str) -> None:
    """Raises ValueError if an attribute of `given` that is not as in `usual` does not apply to the run.

    `run` says of an `objective`, a `target`, a `kind` of model or an `optimizer` which it is.
    """
    for name, applies in table.items():
        value, default = getattr(given, name), getattr(usual, name)
        for axis, allowed in applies.items():
            if value != default and axis in run and run[axis] not in allowed:
                words = f"{name}={value!r} is for the {axis} {listing(allowed)}, but the {axis} is {run[axis]!r}"
                raise ValueError(f"{words}: give {name}={default!r}.")
