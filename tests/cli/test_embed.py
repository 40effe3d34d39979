"""`keras-vit embed`."""

import json
import shutil

import numpy as np
import pytest

pytestmark = pytest.mark.once

pytest.importorskip("PIL")


@pytest.fixture
def photos(photo, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in "abc":
        shutil.copy(photo, folder / f"{name}.png")
    return folder


def test_a_folder_files_and_shards(run, tiny, photos, tmp_path):
    model, output = tiny(), tmp_path / "x.npz"
    command = ("embed", photos, "--weights", model, "-o", output)
    assert run(*command).out == f"Wrote {output}: 3 images, 16 features each\n"
    assert run(*command).out == f"{output} is already complete: 3 images, 16 features each\n"
    with np.load(output) as file:
        assert file["names"].tolist() == ["a.png", "b.png", "c.png"] and file["features"].shape == (3, 16)
    options = ("--weights", model, "--features", "block_-1", "--batch-size", 1, "--dtype", "float16", "--json")
    for i in range(2):
        part = tmp_path / f"part{i}.npz"
        data = json.loads(run("embed", photos, *options, "--shard", f"{i}/2", "-o", part).out)
        wanted = {"path": str(part), "images": 1 + i, "shape": [5, 16], "skipped": [], "already_complete": False}
        assert data == wanted


@pytest.mark.filterwarnings("default:.* is left out")
def test_files_that_are_no_images(run, tiny, photos, tmp_path):
    (photos / "b.png").write_text("no image")
    command = ("embed", photos / "a.png", photos / "b.png", "--weights", tiny(), "-o", tmp_path / "x.npz")
    assert "b.png cannot be read" in run(*command, code=1).err
    streams = run(*command, "--skip-unreadable")
    assert streams.out.endswith(f"1 images, 16 features each; 1 could not be read: {photos / 'b.png'}\n")
    assert "b.png is left out" in streams.err


def test_what_fails_says_so_before_the_model_is_loaded(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.zoo.load", None)  # not called
    assert "no folder" in run("embed", photos, "-o", tmp_path / "none" / "x.npz", code=1).err
    assert "none.png" in run("embed", photos / "none.png", "-o", tmp_path / "x.npz", code=1).err
    assert "end with .npz" in run("embed", photos, "-o", tmp_path / "x.csv", code=1).err
    assert "pandas" in run("embed", photos, "-o", tmp_path / "x.parquet", code=1).err
    for text in ("2/2", "1", "-1/2", "a/b", "0/0"):
        assert "must be I/N" in run("embed", photos, f"--shard={text}", "-o", tmp_path / "x.npz", code=2).err
