"""Options as they are declared: each field of each class refuses what it is not, and says who gave it."""

import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest

import keras_vit
from keras_vit import data, training
from keras_vit._options import Number, Options, _anything, _checks, refuse
from tests.small_models import (
    small_depth_model_config,
    small_eomt_config,
    small_linear_depth_config,
    small_linear_segmenter_config,
)

pytestmark = pytest.mark.once

VIT = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=3)
TEXT = {"vocabulary": 9, "context": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 16}
OPTIONS = [
    *(training.Recipe(lora_rank=2), training.RunOptions(), data.Augmentation(), data.MaskAugmentation()),
    *(data.SegmentAugmentation(), training.ViewAugmentation(), keras_vit.TextConfig(**TEXT), VIT),
    *(keras_vit.BiTConfig(stages=(1, 1)), small_eomt_config(), small_linear_segmenter_config()),
    *(small_depth_model_config(), small_linear_depth_config()),
]
FIELDS = [(one, name) for one in OPTIONS for name, check in _checks(type(one)).items() if check is not _anything]
WRONG_VALUES = (-1, -0.5, 0, 1.5, 2, 1e9, math.nan, math.inf)


@pytest.mark.parametrize(("options", "name"), FIELDS, ids=lambda part: getattr(type(part), "__name__", part))
def test_a_field_refuses_what_it_is_not(options, name):
    """A wrong type is a TypeError and a wrong value a ValueError, whatever the class, and both name the field."""
    check = _checks(type(options))[name]
    value = getattr(options, name)
    assert value is None or check(name, value) == value
    for wrong in (object(), "3")[: 1 if name in ("freeze", "lora_targets") else 2]:
        with pytest.raises((TypeError, ValueError), match=f"^{name} "):
            options.replace(**{name: wrong})
    number = next((one for one in (check, *closure(check)) if isinstance(one, Number)), None)
    if isinstance(value, bool) or number is not None:
        for wrong in ("3", None, *([2.5, True] if number and number.whole else [])):
            if wrong is None and number is not check:
                continue
            with pytest.raises(TypeError, match=f"^{name} must be .*, but {wrong!r} was given"):
                options.replace(**{name: wrong})
    if number is not None:
        for wrong in WRONG_VALUES:
            if isinstance(wrong, int) >= number.whole and not number.fits(wrong):
                with pytest.raises(ValueError, match=f"^{name} must be {number.expected}, but {wrong!r} was given"):
                    options.replace(**{name: wrong})


def closure(check):
    """What a check of `... | None` asks."""
    return [cell.cell_contents for cell in getattr(check, "__closure__", None) or ()]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: type(options).__name__)
def test_options_are_plain_whoever_gives_them(options):
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    of_numpy = {name: np.array(value)[()] for name, value in fields.items() if type(value) in (int, float, tuple)}
    of_numpy = {name: value for name, value in of_numpy.items() if np.asarray(value).dtype.kind in "if"}
    again = dataclasses.replace(options, **of_numpy)
    plain = [json.dumps(one.to_dict() | {"given": None}) for one in (options, again)]
    assert again == options and plain[0] == plain[1]
    for other in (copy.copy(options), pickle.loads(pickle.dumps(options))):
        assert other == options and other.given == options.given
    with pytest.raises(TypeError, match="nonsense"):
        options.replace(nonsense=1)


def test_given_is_what_a_person_wrote():
    recipe = training.Recipe("mine", image_size=224)
    assert recipe.given == {"name", "image_size"}
    changed = recipe.replace(steps=10, momentum=0.9)
    assert changed.given == {"name", "image_size", "steps", "momentum"}
    assert changed.adapted(image_size=32).given == changed.given
    assert training.Recipe.from_dict(json.loads(json.dumps(changed.to_dict()))).given == changed.given
    assert training.Recipe.from_dict({"steps": 3}).given == {"steps"}
    assert not training.recipe("finetune/cifar10").given


def test_every_place_is_said_in_full():
    """A field that is declared for some situations is refused in others, by its name, with what would be right."""
    seen = 0
    for one in OPTIONS:
        for field in dataclasses.fields(one):
            assert isinstance(one, Options)
            for axis, allowed in field.metadata.get("when", {}).items():
                if not isinstance(allowed, tuple):
                    continue
                values = {one.name: one.default for one in dataclasses.fields(one)} | {field.name: "changed"}
                declared = {one.name: one for one in dataclasses.fields(one)}
                refuse(declared, values, {axis: allowed[0]})
                with pytest.raises(ValueError, match=f"^{field.name}='changed' is for the {axis} .*'other'"):
                    refuse(declared, values, {axis: "other"})
                seen += 1
    assert seen > 20
