"""`keras-vit inspect`."""

import json

import pytest

pytestmark = pytest.mark.once

pytest.importorskip("PIL")


def test_a_page_of_a_file_and_photos(run, tiny, photo, tmp_path):
    out = run("inspect", tiny(), "--image", photo, "--image", photo, "-o", tmp_path / "page.html").out
    assert out.startswith(f"Wrote {tmp_path / 'page.html'}") and out.rstrip().endswith(" MB)")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "tiny.npz" in page and "photo.png" in page and "vit_jax" in page and "Where it looks" in page
    data = json.loads(run("inspect", "glyphs", "-o", tmp_path / "b.html", "--json").out)
    assert data["page"] == str(tmp_path / "b.html") and data["images"] == []
    assert data["bytes"] == (tmp_path / "b.html").stat().st_size < 2e6


def test_of_a_keras_file(run, tiny, tmp_path):
    run("inspect", tiny("tiny.keras"), "-o", tmp_path / "page.html")
    assert "How it is built" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_what_fails_says_so_before_the_model_is_loaded(run, tmp_path, photo, monkeypatch):
    monkeypatch.setattr("keras_vit.zoo.load", None)
    assert "no folder" in run("inspect", "glyphs", "-o", tmp_path / "none" / "page.html", code=1).err
    assert "none.jpg" in run("inspect", "glyphs", "--image", photo, tmp_path / "none.jpg", code=1).err


def test_wrong_endings(run, tiny, tmp_path):
    assert "must end with .html" in run("inspect", tiny(), "-o", tmp_path / "page.txt", code=1).err
    assert not (tmp_path / "page.txt").exists()
