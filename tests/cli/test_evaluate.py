"""`keras-vit evaluate`: what it measures, writes and refuses."""

import json

import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig, to_checkpoint
from keras_vit.cli import main

pytestmark = pytest.mark.once

NAMES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Plain colours: 4 pictures of each to train on, 2 to test."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in NAMES:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 40, (12, 16, 3))
                pixels[..., ("red", "green", "blue").index(name)] += 200
                image.fromarray(pixels.astype("uint8")).save(root / split / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model that says the first class to everything."""
    config = ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=16, classes=3)
    model = VisionTransformer(config)
    model.get_layer("head").bias.assign([1.0, 0.0, 0.0])
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    to_checkpoint(model, path)
    return path


def evaluate(capsys, *arguments, code=0):
    assert main(["evaluate", *map(str, arguments)]) == code
    return capsys.readouterr()


def test_accuracy(capsys, folder, weights, tmp_path):
    pytest.importorskip("matplotlib")
    out = evaluate(capsys, weights, folder, "--output", tmp_path, "--batch-size", 4).out
    assert "33.33" in out and "blue (2)" in out
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["accuracy"] == pytest.approx(1 / 3) and written["class_names"] == list(NAMES)
    assert written["confusion"] == [[2, 0, 0]] * 3
    # Two classes are short of the largest logit by 1.
    assert written["loss"] == pytest.approx(np.log(np.e + 2) - 1 / 3, rel=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["confusion.png", "evaluation.json"]


def test_few_shot(capsys, folder, weights):
    found = json.loads(evaluate(capsys, weights, folder, "--few-shot", 1, 2, "--seeds", 2, "--json").out)
    assert found["shots"] == [1, 2] and np.shape(found["accuracy"]) == (2, 1, 2)
    assert found["mean"] == [[1.0], [1.0]]  # a random Transformer tells plain colours apart
    assert (found["train_examples"], found["test_examples"], found["l2"]) == (12, 6, [1024.0])


def test_refusals(capsys, folder, weights, tmp_path):
    message = evaluate(capsys, weights, folder / "train", "--few-shot", 1, code=1).err
    assert "train" in message and message.startswith("keras-vit: ")
    assert "5 training images of each class" in evaluate(capsys, weights, folder, "--few-shot", 5, code=1).err
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "b").mkdir()
    for name in "ab":
        (tmp_path / "two" / name / "0.png").write_bytes((folder / "test" / "red" / "0.png").read_bytes())
    assert "2 names, but the model has 3 outputs" in evaluate(capsys, weights, tmp_path / "two", code=1).err
    assert "nowhere" in evaluate(capsys, weights, tmp_path / "nowhere", code=1).err


@pytest.mark.parametrize(("train", "test"), [("train", "val"), ("Training", "Testing"), ("TRAIN", "validation")])
def test_few_shot_takes_the_layouts_that_fine_tuning_takes(capsys, folder, weights, tmp_path, train, test):
    for split, name in (("train", train), ("test", test)):
        (tmp_path / name).symlink_to(folder / split, target_is_directory=True)
    found = json.loads(evaluate(capsys, weights, tmp_path, "--few-shot", 1, "--seeds", 1, "--json").out)
    assert (found["train_examples"], found["test_examples"]) == (12, 6)


@pytest.mark.parametrize("option", ["--seeds", "--l2"])
def test_options_of_the_probe_are_refused_without_it(capsys, folder, weights, option):
    message = evaluate(capsys, weights, folder, option, 2, code=1).err
    assert message == f"keras-vit: {option} is about the probe of --few-shot, which was not asked for.\n"


def test_the_strength_and_the_draws_of_the_probe_are_those_that_were_given(capsys, folder, weights):
    found = json.loads(evaluate(capsys, weights, folder, "--few-shot", 1, "--seeds", 1, "--l2", 2, "--json").out)
    assert (found["l2"], found["seeds"]) == ([2.0], [0])
