"""Images like a photo, and near-duplicates, in a file of `embed`."""

import base64
import io
import re

import numpy as np
import pytest

from keras_vit import evaluation, load_image
from tests.small_models import small_vit
from tests.tolerances import SAME_FUNCTION

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def photos(tmp_path):
    """Six images; of one there is a copy, one grey level brighter."""
    rng = np.random.default_rng(0)
    for i in range(6):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype="uint8")
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    Image.fromarray(pixels + np.uint8(1)).save(tmp_path / "copy.png")
    return tmp_path


def test_what_is_found_is_what_all_cosines_say(photos, tmp_path):
    model = small_vit(width=16)
    path = evaluation.embed(model, photos, tmp_path / "x.npz", progress=False).path
    with np.load(path) as file:
        names, features = file["names"].tolist(), file["features"].astype("float64")
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    cosines = features @ features[names.index("5.png")]
    rows = evaluation.find_similar(photos / "5.png", path, model=model)
    assert [row["image"] for row in rows] == [str(photos / names[i]) for i in np.argsort(-cosines)]
    np.testing.assert_allclose([row["similarity"] for row in rows], -np.sort(-cosines), rtol=0, atol=1e-4)  # 4 digits
    pairs = evaluation.find_duplicates(path, cosines[names.index("copy.png")] - SAME_FUNCTION)
    assert (pairs[0]["image"], pairs[0]["like"]) == (str(photos / "5.png"), str(photos / "copy.png"))
    moved = evaluation.find_similar(load_image(photos / "5.png"), path, k=1, model=model, folder="elsewhere")
    assert moved[0]["image"].startswith("elsewhere")
    query = np.eye(16, dtype="f4")[3]
    by_query = evaluation.find_similar(None, path, query=query, k=2)
    assert by_query[0]["image"] == str(photos / names[features[:, 3].argmax()])
    with pytest.raises(ValueError, match="16 numbers"):
        evaluation.find_similar(None, path, query=query[:9])
    with pytest.raises(ValueError, match="does not say where its model is"):
        evaluation.find_similar(photos / "5.png", path)
    nothing = evaluation.embed(model, photos, tmp_path / "none.npz", shard=(0, 2), progress=False)
    assert nothing.count == 0
    with pytest.raises(ValueError, match=r"features must be numbers \(rows, length\), but float32 \(0, 16\)"):
        evaluation.find_duplicates(nothing.path)
    with pytest.raises(ValueError, match="of another model"):
        evaluation.find_similar(photos / "5.png", path, model="glyphs")


@pytest.mark.once
def test_a_sheet_holds_thumbnails(tmp_path):
    Image.new("RGB", (900, 600)).save(tmp_path / "photo.png")
    rows = [{"image": str(tmp_path / "photo.png"), "similarity": 1.0}]
    evaluation.draw_similar(rows, tmp_path / "sheet.html")
    [shown] = re.findall(r'src="data:image/png;base64,([^"]+)"', (tmp_path / "sheet.html").read_text())
    assert Image.open(io.BytesIO(base64.b64decode(shown))).size == (288, 192)
