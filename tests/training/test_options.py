"""Every field of a recipe in every kind of run: it changes what comes out, or it is refused. None is left out."""

import dataclasses
import pkgutil

import keras
import numpy as np
import pytest

from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig, data, training
from keras_vit.training.pretraining import LeJEPA
from keras_vit.training.recipes import TASKS
from tests.training.test_loop import weights_of

pytestmark = [pytest.mark.once, pytest.mark.long]

SIZE = 8
VIT = ViTConfig(image_size=SIZE, patch_size=4, width=8, depth=2, heads=2, mlp_width=8, classes=None)
BIT = BiTConfig(image_size=SIZE, stages=(1,), width=32, classes=None)
PLAIN = data.Augmentation(crop="resize", flip=False)
BASE = training.Recipe(steps=4, batch_size=4, image_size=SIZE, learning_rate=0.2, augmentation=PLAIN)
MASKS = data.MaskAugmentation((1, 1), 1, False, 0, 0, 0, 0)
HALVES = [{"masks": np.arange(SIZE)[:, None] * np.ones((2, SIZE, SIZE)) // 4 == [[[0]], [[1]]], "labels": [0, 1]}] * 10


def images(count=10, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.array([0, 0, 0, 1, 0, 2, 1, 0, 0, 2])[:count]
    pixels = rng.integers(0, 120, (count, SIZE, SIZE, 3))
    pixels[np.arange(count), :, :, labels] += 100
    return pixels.astype("uint8"), labels


PIXELS, LABELS = images()
TARGETS = {"class": LABELS, "multilabel": np.eye(3)[LABELS], "number": LABELS / 2.0 + 3, "none": LABELS}
TARGETS |= {"mask": (np.arange(SIZE)[:, None] * np.ones((10, SIZE, SIZE)) > 3).astype("uint8"), "segments": HALVES}


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of run: what `options.py` is asked, and what makes it."""

    objective: str
    target: str = "class"
    kind: str = "VisionTransformer"
    optimizer: str = "sgd"

    def run(self, recipe):
        keras.utils.set_random_seed(0)
        model = BiT(BIT) if self.kind == "BiT" else VisionTransformer(VIT)
        task, made = LeJEPA(slices=8, projector=(8, 4)) if self.objective == "lejepa" else None, TARGETS[self.target]
        if self.objective == "feature_distillation":
            task = training.FeatureDistillation(VisionTransformer(VIT, name="teacher"))
        if self.objective == "masked_patches":
            recipe = recipe.replace(task="masked_patches")
        if self.objective == "distillation":
            teacher = VisionTransformer(VIT.replace(classes=3), name="teacher")
            teacher.get_layer("head").kernel.assign(np.random.default_rng(1).normal(size=(8, 3)))
            task = training.distillation(teacher, "soft")
        of_images = list if self.target == "segments" else np.asarray
        labelled = PIXELS if self.target == "none" else (of_images(PIXELS), made)
        common = {"every": 2, "verbose": False, "validation": (of_images(images(2, 1)[0]), made[:2]), "task": task}
        target = self.target if self.target in ("multilabel", "number") else "class"
        done = training.train(model, labelled, recipe, target=target, **common)
        log = [
            {key: value for key, value in row.items() if key not in ("seconds", "learning_rate")} for row in done.log
        ]
        return weights_of(done.model), log


CASES = {
    "classes": Case("labels"),
    "several labels": Case("labels", "multilabel"),
    "numbers": Case("labels", "number"),
    "distillation": Case("distillation"),
    "masked patches": Case("masked_patches"),
    "masks": Case("segmentation", "mask"),
    "no labels": Case("lejepa", "none"),
    "a teacher": Case("feature_distillation", "none"),
    "segments": Case("segmentation", "segments", optimizer="adamw"),
    "a BiT": Case("labels", kind="BiT"),
    "AdamW": Case("labels", optimizer="adamw"),
}
# What describes a recipe, and decides nothing beside a task.
NOTES = ("name", "source", "dataset", "models", "sweep", "task")
VALUES = {
    **{"steps": 2, "epochs": 1.0, "batch_size": 2, "learning_rate": 0.1, "schedule": "linear", "warmup_steps": 2},
    **{"end": 0.1, "optimizer": "adam", "momentum": 0.5, "momentum_dtype": "bfloat16", "beta_1": 0.5, "beta_2": 0.5},
    **{"weight_decay": 0.2, "clip_norm": 0.01, "image_size": 16, "dropout": 0.5, "patch_drop": 0.5, "drop_path": 0.5},
    **{"loss": "sigmoid", "label_smoothing": 0.2, "class_weight": "balanced", "sampling": "balanced"},
    **{"head_bias": -2.0, "polyak": 0.5, "layer_decay": 0.5, "accumulate": 2, "freeze": ("embedding",)},
    **{"lora_rank": 2, "lora_alpha": 9.0, "lora_targets": ("*/mlp/fc1",), "keep": "best", "patience": 1},
    **{
        "power": 0.5,
        "backbone_warmup_steps": 1,
        "decay_query_blocks": False,
        "queries": 3,
        "points": 8,
        "first_mask_steps": 2,
    },
    "augmentation": data.Augmentation(crop="inception", flip=False),
}
AUGMENTATIONS = {
    **{"crop": "random", "min_area": 0.9, "flip": True, "mixup": 0.5, "randaugment": (2, 15), "cutmix": 1.0},
    **{"erasing": 1.0, "erasing_fill": "const", "erasing_mean": 0.1, "erasing_std": 0.9},
}
# What a field is only heard beside.
BESIDE = {
    **{"lora_alpha": {"lora_rank": 2}, "lora_targets": {"lora_rank": 2}},
    "min_area": {"crop": "inception"},
    "power": {"schedule": "polynomial"},
    **dict.fromkeys(("erasing_fill", "erasing_mean", "erasing_std"), {"erasing": 1.0}),
    "erasing_mean": {"erasing": 1.0, "erasing_fill": "const"},
    "decay_query_blocks": {"layer_decay": 0.5},
}
# Cases that differ from `classes` in one axis: only fields are tried that have it.
ONLY = {"a BiT": "model", "AdamW": "optimizer"}
# Pairs of which neither can be seen here, and why.
UNSEEN = {
    ("loss", "several labels"): "a sigmoid is what they have without it",
    ("patience", None): "whether a run ends depends on its figures: tests/training/test_loop.py",
    ("optimizer", "segments"): "adam is adamw, and others are refused: tests/training/test_eomt.py",
    ("augmentation", "segments"): "theirs is a SegmentAugmentation: TypeError",
    ("augmentation", "masks"): "theirs is a MaskAugmentation: TypeError",
    ("layer_decay", "masks"): "refused where the backbone is frozen: the next test",
    ("freeze", "masks"): "the backbone is frozen anyway",
    ("image_size", "distillation"): "a teacher of one size refuses another, and names image_size",
}
# Where each field applies, as it is declared.
WHEN = {
    field.name: field.metadata.get("when", {})
    for kind in (training.Recipe, data.Augmentation)
    for field in dataclasses.fields(kind)
}
FIELDS = [*VALUES, *(f"augmentation.{name}" for name in AUGMENTATIONS)]


def applies(field, case):
    made = CASES[case]
    situation = {"target": made.target, "objective": made.objective, "model": made.kind, "optimizer": made.optimizer}
    situation["model"] = {"mask": "LinearSegmenter", "segments": "EoMT"}.get(made.target, made.kind)
    when = WHEN[field.rpartition(".")[2]].items()
    return all(axis not in situation or situation[axis] in allowed for axis, allowed in when)


PAIRS = [
    (field, case)
    for field in FIELDS
    for case in CASES
    if ONLY.get(case) in (None, *WHEN.get(field, ())) and not {(field, case), (field, None)} & UNSEEN.keys()
    if case not in ("masks", "no labels", "a teacher", "segments")
    or not field.startswith("augmentation.")  # theirs is another class
]
# `make test` trains once for each field of classes, and tries all that are refused.
MARKS = {pair: pytest.mark.nightly for pair in PAIRS if applies(*pair) and pair[1] != "classes"}
_FOUND = {}


def recipe_of(case, field=None):
    optimizer = {} if CASES[case].optimizer == "sgd" else {"optimizer": CASES[case].optimizer, "learning_rate": 0.01}
    base = BASE.replace(**optimizer)
    if CASES[case].target == "mask":
        base = base.replace(augmentation=MASKS)
    if CASES[case].target == "segments":
        augmentation = data.SegmentAugmentation((1, 1), jitter=False)
        base = base.replace(augmentation=augmentation, backbone_warmup_steps=0, queries=2, points=4)
    if CASES[case].target == "none":
        base = base.replace(augmentation=data.Augmentation())
    if field is None:
        return base
    name = field.removeprefix("augmentation.")
    if name == field:
        base = base.replace(**BESIDE.get(name, {}))
        return base, lambda: base.replace(**{name: VALUES[name]})
    base = base.replace(augmentation=dataclasses.replace(PLAIN, **BESIDE.get(name, {})))
    changed = dataclasses.replace(base.augmentation, **{name: AUGMENTATIONS[name]})
    return base, lambda: base.replace(augmentation=changed)


def result(case, recipe):
    key = (case, repr(recipe))
    if key not in _FOUND:
        _FOUND[key] = CASES[case].run(recipe)
    return _FOUND[key]


def differ(one, other):
    weights = [
        len(one[0]) != len(other[0]),
        *(a.shape != b.shape or np.any(a != b) for a, b in zip(one[0], other[0], strict=False)),
    ]
    return any(weights) or repr(one[1]) != repr(other[1])


@pytest.mark.parametrize(("field", "case"), [pytest.param(*pair, marks=MARKS.get(pair, ())) for pair in PAIRS])
def test_a_field_changes_what_comes_out_or_is_refused(field, case):
    base, changed = recipe_of(case, field)
    if applies(field, case):
        assert differ(result(case, changed()), result(case, base)), f"{field} is dropped in silence"
    else:
        with pytest.raises(ValueError, match=f"^{field.rpartition('.')[2]}=.* (is for|needs) "):
            CASES[case].run(changed())


@pytest.mark.parametrize("case", ["masks", "segments"])
def test_rates_of_layers_that_do_not_train_are_refused(case):
    with pytest.raises(ValueError, match="layer_decay=0.5 is for layers below the head, but none of them trains"):
        CASES[case].run(recipe_of(case).replace(layer_decay=0.5, freeze="backbone" if case == "segments" else ()))


def test_no_field_is_forgotten():
    fields = {field.name for field in dataclasses.fields(training.Recipe)}
    assert fields == VALUES.keys() | set(NOTES)
    assert {field.name for field in dataclasses.fields(data.Augmentation)} == AUGMENTATIONS.keys()
    tasks = {pkgutil.resolve_name(place) for place in TASKS.values()}
    tried = {case.objective for case in CASES.values()} | {"detection"}  # tests/training/test_detection.py
    assert tried == {task.objective for task in tasks} | {"distillation"}
