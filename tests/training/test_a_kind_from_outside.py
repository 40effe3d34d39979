"""A kind of target that the package does not know: docs/adding_a_target.md makes it, and everything takes it."""

import dataclasses
import types

import numpy as np
import pytest

from keras_vit import data, evaluation, training
from tests.pages import blocks

pytestmark = pytest.mark.nightly_elsewhere


@pytest.fixture(scope="module")
def page():
    """The names that the page defines; the kind is taken back afterwards."""
    exec(compile("".join(code for _, code in blocks("docs/adding_a_target.md")), "the page", "exec"), names := {})
    yield names
    del data.TARGETS["points"]


def test_points_are_learned_and_measured(page):
    done, pairs = page["done"], (page["pictures"], page["points"])
    assert done.recipe.steps == 30 and done.log[-1]["val_loss"] < done.log[0]["val_loss"]
    measured = evaluation.evaluate(done.model, pairs, target="points")
    assert measured == page["evaluate"](done.model, pairs) > 0
    named = training.train(page["model"], pairs, page["recipe"].replace(steps=2), target="points", verbose=False)
    assert named.model.config.classes == 4


def test_the_task_says_which_figure_is_best(page):
    class ByHits(page["PointTask"]):
        measures = ("val_hits",)

        def measure(self, run):
            figures = iter(({"loss": 2.0, "hits": 0.9}, {"loss": 1.0, "hits": 0.1}))
            return types.SimpleNamespace(evaluate=lambda trained: next(figures))

    recipe, how = page["recipe"].replace(steps=2, keep="best"), {"every": 1, "validation": 0.25, "verbose": False}
    pairs = (page["pictures"], page["points"])
    done = training.finetune(page["model"], pairs, recipe, task=ByHits(), target="points", **how)
    assert [row["kept"] for row in done.log] == [True, False]


def test_pictures_and_points_change_together(page):
    """The bright square stays between its two points, whatever part of the picture is left; pipelines are checked."""
    pairs = (page["pictures"], page["points"])
    options = {"image_size": 32, "batch_size": 6, "target": "points", "augmentation": page["PointAugmentation"]()}
    with data.open_data(pairs, **options) as stream, data.open_data(pairs, **options, shard=(1, 3)) as part:
        assert stream.kind is data.TARGETS["points"] and stream.examples == 24
        pictures, points = stream.batch(3)
        assert points.dtype == "float32" and points.shape == (6, 2, 2)
        np.testing.assert_array_equal(part.batch(3)[1], points[2:4])
    for picture, corners in zip(pictures, points, strict=True):
        bright = np.argwhere(picture.mean(-1) > 150)[:, ::-1]
        # Resizing blurs the border by less than two pixels of the enlarged picture.
        np.testing.assert_allclose([bright.min(0), bright.max(0) + 1], [corners.min(0), corners.max(0)], atol=2)
    pipeline = [(picture, corners) for picture, corners in zip(*pairs, strict=True)]
    with data.open_data(pipeline, image_size=20, batch_size=6, target="points") as stream:
        np.testing.assert_array_equal(stream.batch(0)[1], page["points"][:6])
    for source in ((pairs[0], pairs[1] + 30), [(one, other + 30) for one, other in pipeline]):
        with pytest.raises(ValueError, match="points of .* must be"):
            with data.open_data(source, image_size=20, batch_size=6, target="points") as stream:
                stream.batch(0)


def test_its_augmentation_is_called_by_its_name(page):
    pairs, options = (page["pictures"], page["points"]), {"image_size": 32, "batch_size": 6, "target": "points"}
    with pytest.raises(TypeError, match="augmentation must be a PointAugmentation for data of the target 'points'"):
        data.open_data(pairs, **options, augmentation=data.Augmentation())


def test_a_recipe_for_it_is_plain_data(page):
    recipe = page["recipe"]
    assert training.Recipe.from_dict(recipe.to_dict()) == recipe
    for wrong in (recipe.replace(label_smoothing=0.1), training.Recipe(steps=1, batch_size=8, image_size=16)):
        with pytest.raises((TypeError, ValueError), match="for .*target .*points"):
            training.finetune(page["model"], (page["pictures"], page["points"]), wrong, target="points", verbose=False)


def test_another_kind_of_the_same_name_is_an_error(page):
    kind = data.TARGETS["points"]
    assert data.register_target(kind) is kind
    with pytest.raises(ValueError, match="'class' is taken"):
        data.register_target(dataclasses.replace(kind, name="class"))
    with pytest.raises(ValueError, match="is_label=True of 'corner' is for kinds without check"):
        data.register_target(dataclasses.replace(kind, name="corner", is_label=True))
