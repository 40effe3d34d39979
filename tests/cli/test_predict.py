"""`keras-vit predict`: what it answers, and what it refuses."""

import json

import pytest

pytestmark = pytest.mark.once

HOSTILE = "[red]\x1b]0;title\x07 name"
SHOWN = r"[red]\x1b]0;title\x07 name"


def test_all_classes_of_a_small_model_are_shown(run, tiny, photo):
    weights = tiny(class_names=("one", "two", "three"))
    out = run("predict", photo, photo, "--weights", weights).out
    assert [word for word in out.split() if word in ("one", "two", "three")] == ["two", "three", "one"] * 2
    best = json.loads(run("predict", photo, "--weights", weights, "--top", 1, "--json").out)[0]["classes"]
    # The softmax of 0, 2, 1.
    assert best == [{"id": "class_1", "name": "two", "probability": pytest.approx(0.665241, abs=1e-6)}]


@pytest.mark.parametrize("fields", [{"classes": None}, {"classes": None, "pooling": "none"}])
def test_a_model_without_a_head_is_refused(run, tiny, photo, fields):
    err = run("predict", photo, "--weights", tiny(**fields), code=1).err
    assert "has no head" in err and "keras-vit finetune" in err


def test_answers_for_every_token_are_refused(run, tiny, photo):
    err = run("predict", photo, "--weights", tiny("tokens.keras", pooling="none"), code=1).err
    assert "every token" in err


def test_more_classes_than_there_are_are_refused(run, tiny, photo):
    assert "--top must be at most 3" in run("predict", photo, "--weights", tiny(), "--top", 4, code=1).err


@pytest.mark.parametrize(("arguments", "word"), [(["--top", "0"], "at least 1"), (["--top", "a"], "whole number")])
def test_a_top_that_makes_no_sense_is_wrong_usage(run, photo, arguments, word):
    assert word in run("predict", photo, *arguments, code=2).err


def test_no_images_are_wrong_usage(run):
    assert "IMAGE" in run("predict", code=2).err


def test_what_is_no_image_is_named_before_anything_is_loaded(run, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    for name in (".", "text.png", "missing.png"):
        err = run("predict", tmp_path / name, "--weights", "no such weights", code=1).err
        assert str(tmp_path) in err and "no such weights" not in err


def test_names_are_shown_as_they_are_and_control_nothing(run, tiny, photo, tmp_path):
    image = photo.rename(tmp_path / f"{HOSTILE}.png")
    weights = tiny(class_names=("[red]", "b", "[/]"))
    out = run("predict", image, "--weights", weights).out
    assert SHOWN in out and "[/]" in out and out.count("[red]") == 2 and "\x1b" not in out
    err = run("predict", tmp_path / f"{HOSTILE}.jpg", "--weights", weights, code=1).err
    assert SHOWN in err and "\x1b" not in err
