"""`keras-vit finetune`: what it writes and refuses, and how its folder is taken."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.once

NAMES = ("[red] one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "test"):
        for label, name in enumerate(NAMES):
            (root / split / name).mkdir(parents=True)
            for i in range(2):
                pixels = np.full((8, 8, 3), 100 * label + 100 + i, "uint8")
                image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


@pytest.fixture
def arguments(folder, tiny):
    return ("finetune", tiny(), folder, "--batch-size", 2, "--image-size", 8, "--crop", "resize", "--no-flip")


def test_a_run(run, arguments, tmp_path):
    """Folders that other processes and systems have touched are empty ones."""
    output = tmp_path / "run"
    output.mkdir()
    (output / ".lock").touch()
    (output / ".DS_Store").write_bytes(b"\0")
    options = ("--steps", 2, "--warmup-steps", 1, "--learning-rate", 1e-3, "--output", output)
    result = json.loads(run(*arguments, *options, "--json").out)
    assert result["class_names"] == [*NAMES] and result["output"] == str(output)
    recipe = result["recipe"]
    assert (recipe["steps"], recipe["warmup_steps"], recipe["learning_rate"], recipe["batch_size"]) == (2, 1, 1e-3, 2)
    assert (recipe["augmentation"]["crop"], recipe["augmentation"]["flip"]) == ("resize", False)
    assert (output / "model.keras").exists() and (output / ".DS_Store").exists()
    streams = run("predict", arguments[2] / "test" / NAMES[0] / "0.png", "--weights", output / "model.keras")
    assert "[red] one" in streams.out
    # The same again is the same run, which is over.
    assert str(output) in run(*arguments, *options).out


def test_adapters(run, arguments, tmp_path):
    output = tmp_path / "run"
    result = json.loads(run(*arguments, "--steps", 1, "--lora", 3, "--output", output, "--json").out)
    assert result["recipe"]["lora_rank"] == 3
    with np.load(output / "adapters.npz") as file:
        ranks = {file[name].shape[-1] for name in file if name.endswith("lora_kernel_a")}
        assert ranks == {3} and {"head/kernel", "head/bias"} < set(file)
    assert "--lora" in run(*arguments, "--lora", 0, code=2).err


def test_a_loss_that_is_not_finite_is_one_message(run, arguments, tmp_path):
    output = tmp_path / "run"
    err = run(*arguments, "--steps", 3, "--every", 3, "--learning-rate", 1e38, "--output", output, code=1).err
    assert "keras-vit: The loss is" in err and "step" in err


def test_a_folder_with_something_else_in_it_is_refused(run, arguments, tmp_path):
    (tmp_path / "precious.txt").write_text("precious")
    err = run(*arguments, "--steps", 1, "--output", tmp_path, code=1).err
    assert str(tmp_path) in err and (tmp_path / "precious.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--recipe", "nonsense"], "nonsense"),
        (["--crop", "nonsense"], "nonsense"),
        (["--randaugment", 0, 10], "randaugment"),
        (["--randaugment", 2, 31], "randaugment"),
        (["--image-size", 10], "multiple of"),
    ],
)
def test_refusals(run, arguments, tmp_path, options, word):
    assert word in run(*arguments, "--output", tmp_path / "run", *options, code=1).err
    assert not (tmp_path / "run").exists()
