"""`keras-vit info`: it knows what every other command takes."""

import json

import pytest

pytestmark = pytest.mark.once


@pytest.mark.parametrize("file", ["tiny.npz", "tiny.keras", "tiny.weights.h5"])
def test_files(run, tiny, file):
    path = tiny(file, class_names=("[a]", "b", "c"))
    info = json.loads(run("info", path, "--json").out)
    assert info["config"]["width"] == 16 and info["config"]["class_names"] == ["[a]", "b", "c"]
    # Patches 4 * 4 * 3 * 16 + 16, tokens 16 + 5 * 16, the block 2 * 32 + 4 * (16 * 16 + 16) + 2 * (16 * 16 + 16),
    # the last normalisation 32, the head 16 * 3 + 3.
    assert info["parameters"] == 784 + 96 + 64 + 1088 + 544 + 32 + 51
    assert info["bytes"] == path.stat().st_size
    out = run("info", path).out
    assert path.name in out and "[a]" in out


def test_the_one_that_comes_along(run):
    assert json.loads(run("info", "glyphs", "--json").out)["config"]["classes"] == 164


def test_the_model_comes_first_and_its_classes_last(run):
    rows = [line.split() for line in run("info", "glyphs").out.splitlines() if line.strip()]
    assert [row[0] for row in rows[:5]] == ["glyphs", "model", "layout", "parameters", "size"]
    assert rows[4][-1] == "MB" and " ".join(rows[-1]) == "class names Oo0, 1, 2, 3, 4 and 159 more"


def test_names_of_the_catalogue(run):
    rows = json.loads(run("info", "B/16", "--json").out)
    assert len(rows) > 10 and {row["variant"] for row in rows} == {"ViT-B/16"}
    assert "sam/ViT-B_16" in run("info", "sam/ViT-B_16").out


@pytest.mark.parametrize("name", ["missing.npz", "missing.keras", "missing.weights.h5", "nonsense", "."])
def test_what_is_not_there_is_named(run, name):
    err = run("info", name, code=1).err
    assert name in err and err.count("\n") <= 3
