"""The commands about models and their files: list, info, download, inspect, convert and export."""

import json

import keras
import numpy as np
import pytest

import keras_vit

pytestmark = pytest.mark.once


def test_list(run):
    assert "imagenet21k/ViT-B_16" in run("list", "B/16").out
    rows = json.loads(run("list", "B/16", "--json").out)
    assert {row["variant"] for row in rows} == {"ViT-B/16"}
    rows = json.loads(run("list", "--models", "--json").out)
    assert {row["name"] for row in rows} >= set(keras_vit.VARIANTS)
    b16 = next(row for row in rows if row["name"] == "ViT-B/16")
    assert (b16["params"], round(b16["macs"] / 1e9, 3)) == (86_567_656, 17.564)


def test_info_of_checkpoints(run, golden):
    out = run("info", golden("alt_opt_target").path).out
    assert "opt/target/" in out and "vit_jax" in out
    assert json.loads(run("info", "--json").out)["backend"] == keras.backend.backend()
    assert "--like is for a checkpoint file" in run("info", "--like", "ViT-B/16", code=1).err
    info = json.loads(run("info", golden("alt_zero_head").path, "--json").out)
    assert info["config"]["representation_size"] == 48 and "zero" in " ".join(info["oddities"])


@pytest.mark.parametrize("file", ["tiny.npz", "tiny.keras", "tiny.weights.h5"])
def test_info_of_files(run, tiny, file):
    path = tiny(file, class_names=("[a]", "b", "c"))
    info = json.loads(run("info", path, "--json").out)
    assert info["config"]["width"] == 16 and info["config"]["class_names"] == ["[a]", "b", "c"]
    # Patches 4 * 4 * 3 * 16 + 16, tokens 16 + 5 * 16, the block 2 * 32 + 4 * (16 * 16 + 16) + 2 * (16 * 16 + 16),
    # the last normalisation 32, the head 16 * 3 + 3.
    assert info["parameters"] == 784 + 96 + 64 + 1088 + 544 + 32 + 51
    assert info["bytes"] == path.stat().st_size
    out = run("info", path).out
    assert path.name in out and "[a]" in out


def test_info_of_names(run):
    rows = json.loads(run("info", "B/16", "--json").out)
    assert len(rows) > 10 and {row["variant"] for row in rows} == {"ViT-B/16"}
    assert json.loads(run("info", "sam/ViT-B_16", "--json").out)["image_size"] == 224
    rows = [line.split() for line in run("info", "glyphs").out.splitlines() if line.strip()]
    assert [row[0] for row in rows[:5]] == ["glyphs", "model", "layout", "parameters", "size"]
    for source in ("B/16", "sam/ViT-B_16"):
        assert "--like is for checkpoint files" in run("info", source, "--like", "ViT-B/16", code=1).err
    assert rows[4][-1] == "MB" and " ".join(rows[-1]) == "class names Oo0, 1, 2, 3, 4 and 159 more"


CONVERSIONS = [("mini_token", "vit_jax", "big_vision"), ("bit_mini_tf", "bit_tf", "bit_bv")]


@pytest.mark.parametrize(("name", "layout", "other"), CONVERSIONS)
def test_convert_there_and_back(run, golden, tmp_path, name, layout, other):
    run("convert", golden(name).path, tmp_path / "between.npz", "--layout", other)
    run("convert", tmp_path / "between.npz", tmp_path / "back.npz", "--layout", layout)
    reference = keras_vit.from_checkpoint(golden(name).path)
    keras_vit.to_checkpoint(reference, tmp_path / "wanted.npz", layout=layout)
    with np.load(tmp_path / "wanted.npz") as wanted, np.load(tmp_path / "back.npz") as got:
        assert sorted(got.files) == sorted(wanted.files)
        for array in wanted.files:
            np.testing.assert_array_equal(got[array], wanted[array], strict=True)


def test_convert_between_keras_formats_keeps_the_names_of_the_classes(run, tiny, tmp_path):
    names = ("[a]", "b", "c")
    run("convert", tiny(class_names=names), tmp_path / "a.keras")
    for source, target in (("a.keras", "b.weights.h5"), ("b.weights.h5", "c.keras"), ("c.keras", "d.npz")):
        run("convert", tmp_path / source, tmp_path / target)
    first, last = (keras.saving.load_model(tmp_path / name) for name in ("a.keras", "c.keras"))
    assert last.config == first.config and first.config.class_names == names
    for wanted, got in zip(first.get_weights(), last.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert keras_vit.class_names(tmp_path / "d.npz") == [*names]


def test_convert_replaces_nothing_unasked(run, golden, tmp_path):
    target = tmp_path / "model.keras"
    target.write_text("precious")
    assert "exists" in run("convert", golden("mini_token").path, target, code=1).err
    assert target.read_text() == "precious" and list(tmp_path.iterdir()) == [target]
    run("convert", golden("mini_token").path, target, "--overwrite", "--channels", "4")
    assert keras.saving.load_model(target).config.channels == 4


def test_inspect_of_files_and_photos(run, tiny, photo, tmp_path):
    command, page = ("inspect", tiny(), "--image", photo, "--image", photo, "-o"), tmp_path / "page.html"
    page.write_text("mine")
    assert "exists. Choose another path or pass --overwrite." in run(*command, page, code=1).err
    assert page.read_text() == "mine"
    out = run(*command, page, "--overwrite").out
    assert out.startswith(f"Wrote {page}") and out.rstrip().endswith(" MB)")
    text = page.read_text(encoding="utf-8")
    assert all(words in text for words in ("tiny.npz", "photo.png", "vit_jax", "Where it looks"))
    data = json.loads(run("inspect", tiny("tiny.keras"), "-o", tmp_path / "b.html", "--json").out)
    assert data["page"] == str(tmp_path / "b.html") and data["images"] == []
    assert data["bytes"] == (tmp_path / "b.html").stat().st_size < 2e6
    assert "How it is built" in (tmp_path / "b.html").read_text(encoding="utf-8")
