"""Options as they are declared: each field of each class refuses what it is not, and says who gave it."""

import copy
import dataclasses
import json
import math
import os
import pickle
from typing import Literal

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data, evaluation, preprocessing, training
from keras_vit._options import Instance, Number, Positive, Share, _anything, _checks, checked
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
    is_text = any(isinstance(one, Instance) for one in (check, *closure(check)))
    takes_text = is_text or name in ("freeze", "lora_targets")
    for wrong in (object(), "3")[: 1 if takes_text else 2]:
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


UNCHECKED = {
    "Recipe": "sweep",
    "RunOptions": "callbacks class_names classes distribution dtype",
    "ViTConfig": "class_names crop_ratio trim pixel_mean pixel_std",
    "BiTConfig": "class_names stages",
    **dict.fromkeys(("EoMTConfig", "LinearSegmenterConfig"), "class_names"),
}


def test_a_field_that_loses_its_check_is_seen():
    """Those without one describe, or are checked by their class or by who reads them."""
    for kind in map(type, OPTIONS):
        unchecked = {name for name, check in _checks(kind).items() if check is _anything}
        assert unchecked == set(UNCHECKED.get(kind.__name__, "").split()), kind.__name__


def closure(check):
    """What a check of `... | None` asks."""
    return [cell.cell_contents for cell in getattr(check, "__closure__", None) or ()]


@checked
def classify(
    path: str | os.PathLike[str],
    k: Positive = 5,
    *,
    kind: Literal["logits", "softmax"] | None = None,
    share: Share = 1.0,
    flag: bool = False,
    of: training.Recipe | None = None,
    **more: int,
):
    """Stands for a public function."""
    return path, k, kind, share, flag, of, more


def test_arguments_of_a_function_are_checked_by_their_types():
    """Values are converted; a wrong type is a TypeError, a wrong value a ValueError, a missing one Python's error."""
    assert classify("a", np.int64(3), share=1, more=2) == ("a", 3, None, 1, False, None, {"more": 2})
    assert type(classify("a", np.int64(3))[1]) is int
    for wrong, error, words in (
        ({"path": 3}, TypeError, "path must be a string or a path, but int was given"),
        ({"k": "3"}, TypeError, "k must be a whole number of at least 1, but '3' was given"),
        ({"k": 0}, ValueError, "k must be a whole number of at least 1, but 0 was given"),
        ({"kind": "exact"}, ValueError, r"kind must be one of \('logits', 'softmax'\), but 'exact' was given"),
        ({"share": 1.5}, ValueError, "share must be a number from 0 to 1, but 1.5 was given"),
        ({"flag": "no"}, TypeError, "flag must be True or False, but 'no' was given"),
        ({"of": {}}, TypeError, "of must be a Recipe, but dict was given"),
        ({"path": None}, TypeError, "path must be a string or a path, but NoneType was given"),
    ):
        with pytest.raises(error, match=words):
            classify(**{"path": "a"} | wrong)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        classify()


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


def test_what_is_given_is_refused_where_it_does_not_apply():
    """Also where it is the default: momentum=0.9 asks for momentum. What is put back to its default is not given."""
    for make in (
        lambda: training.Recipe(optimizer="adamw", momentum=0.9),
        lambda: training.Recipe().replace(optimizer="adamw", momentum=0.9),
        lambda: training.Recipe(momentum=0.9).replace(optimizer="adamw"),
        lambda: training.Recipe.from_dict({"optimizer": "adamw", "momentum": 0.9}),
    ):
        with pytest.raises(ValueError, match="^momentum=0.9 is for the optimizer 'sgd', .* 'adamw': leave it out"):
            make()
    assert "momentum" not in training.Recipe(momentum=0.5).replace(optimizer="adamw", momentum=0.9).given
    assert "momentum" not in dataclasses.replace(training.Recipe(steps=3), optimizer="adamw").given
    with pytest.raises(ValueError, match=r"^min_area=0.1 is for the crop .* give min_area=0.05\."):
        data.Augmentation(crop="resize", min_area=0.1)
    with pytest.raises(ValueError, match="^erasing_std=0.5 is for runs with erasing: .* or leave it out"):
        data.Augmentation(erasing_std=0.5)


def test_a_recipe_keeps_the_size_that_a_person_gave():
    """Also where it is the default; nobody chose the one of a recipe by name or of a recipe without a size."""
    model = keras_vit.VisionTransformer(VIT.replace(image_size=16))
    images = (np.zeros((4, 16, 16, 3), "uint8"), np.array([0, 1, 0, 1]))
    fields = {"steps": 1, "batch_size": 2}
    for given, wanted in (({"image_size": 224}, 224), ({"image_size": 24}, 24), ({}, (16, 16))):
        done = training.finetune(model, images, training.Recipe(**fields, **given), verbose=False)
        assert done.recipe.image_size == wanted, given


def test_the_home_of_a_user_is_one_at_every_door(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    model = keras_vit.VisionTransformer(VIT)
    for split in ("train", "test"):
        for name in ("a", "b", "c"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(folder / "0.png")
    (tmp_path / "table.csv").write_text("file,label\nphotos/test/a/0.png,a\nphotos/test/b/0.png,b\n")
    masks = tmp_path / "masks"
    for name, mode in (("images", "RGB"), ("masks", "L")):
        (masks / name).mkdir(parents=True)
        Image.new(mode, (8, 8)).save(masks / name / "0.png")
    assert data.has_test_split("~/photos") and len(data.image_files("~/photos")) == 6
    assert data.open_data("~/photos", image_size=8, batch_size=3).examples == 3
    assert len(data.open_table("~/table.csv")) == 2 and data.open_masks("~/masks", classes=1).classes == 1
    assert data.open_segments("~/masks", classes=1).classes == 1
    assert preprocessing.load_image("~/photos/test/a/0.png").shape == (8, 8, 3)
    result = evaluation.evaluate(model, "~/photos", progress=False)
    evaluation.write_files(result, "~/results")
    evaluation.write_report(result, "~/report.html", "photos")
    done = evaluation.embed(model, "~/photos", "~/features.npz", progress=False)
    assert evaluation.find_similar("~/photos/test/a/0.png", "~/features.npz", model=model)
    wanted = {"results/evaluation.json", "report.html", "features.npz"}
    assert done.count == 6 and not {name for name in wanted if not (tmp_path / name).exists()}
