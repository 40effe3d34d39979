"""Search among features and images: every answer beside float64 NumPy over all pairs, and DINO's formula in PyTorch."""

import base64
import io
import re

import numpy as np
import pytest

from keras_vit import evaluation, load_image
from keras_vit.evaluation import embedding as module
from tests.small_models import small_vit
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once

Image = pytest.importorskip("PIL.Image")
# A cosine in float32 is a sum of 16 products of at most 1, each rounded by 6e-8.
ROUNDING = 1e-6


@pytest.fixture(params=[(4096, 1024), (7, 3)])
def features(request, monkeypatch):
    """Vectors; and blocks of them that are larger, and smaller, than all."""
    for name, value in zip(("ROWS", "QUERIES"), request.param, strict=True):
        monkeypatch.setattr(module, name, value)
    return np.random.default_rng(0).standard_normal((500, 16)).astype("float32")


def _cosines(a, b):
    a, b = (np.asarray(x, "float64") / np.linalg.norm(np.asarray(x, "float64"), axis=1, keepdims=True) for x in (a, b))
    return a @ b.T


@pytest.mark.parametrize("k", [1, 10, 500])
def test_search_finds_what_all_pairs_say(features, k):
    asked = features[:9] + np.random.default_rng(1).standard_normal((9, 16)) / 10
    indices, similarities = evaluation.search(features, asked, k)
    wanted = _cosines(asked, features)
    np.testing.assert_array_equal(indices, np.argsort(-wanted, axis=1, kind="stable")[:, :k])
    np.testing.assert_allclose(similarities, np.take_along_axis(wanted, indices, 1), rtol=0, atol=ROUNDING)


def test_one_query_ties_and_halves_of_precision(features):
    rows, similarities = evaluation.search(np.tile(features[:5], (3, 1)), features[2] * 7, k=3)
    assert rows.tolist() == [2, 7, 12]
    assert similarities.tolist() == pytest.approx([1, 1, 1], abs=ROUNDING)
    assert evaluation.search(features.astype("float16"), features[:2].tolist(), 1)[0].tolist() == [[0], [1]]


def test_votes_are_those_of_dino(features):
    torch = pytest.importorskip("torch")
    labels, asked, k, temperature = np.arange(500) % 7, features[:40] + 0.3, 20, 0.07
    similarity = torch.from_numpy(_cosines(asked, features))
    # eval_knn.py of facebookresearch/dino: the weight of a neighbour, scattered to its class, summed over neighbours.
    values, found = similarity.topk(k, dim=1)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels)[found], 7)
    wanted = (one_hot * (values / temperature).exp()[..., None]).sum(1)
    votes = evaluation.knn(features, labels, asked, k, temperature)
    # exp multiplies the rounding of a cosine by 1 / temperature.
    np.testing.assert_allclose(votes, wanted.numpy(), rtol=ROUNDING / temperature)
    assert evaluation.knn(features, labels, asked, k, classes=9)[:, 7:].tolist() == [[0, 0]] * 40


def test_near_duplicates_are_all_pairs_above_the_threshold(features):
    features[400] = features[3] * 2
    features[7] = features[3] + 0.01
    wanted = np.triu(_cosines(features, features), 1)
    pairs, similarities = evaluation.near_duplicates(features, 0.6)
    assert sorted(pairs.tolist()) == np.argwhere(wanted >= 0.6).tolist()
    assert pairs[0].tolist() == [3, 400]
    assert (np.diff(similarities) <= 0).all()
    assert evaluation.near_duplicates(np.eye(3))[0].shape == (0, 2)


@pytest.mark.parametrize("length", [3, 64, 768])
def test_equal_rows_are_duplicates_and_the_lowest_are_found(length):
    rng = np.random.default_rng(0)
    copies = rng.integers(0, 4, 203)
    features = rng.standard_normal((4, length)).astype("float32")[copies] * rng.uniform(0.5, 2, (203, 1)).astype("f4")
    pairs, similarities = evaluation.near_duplicates(features, threshold=1.0)
    wanted = np.argwhere(np.triu(copies[:, None] == copies, 1))
    assert sorted(pairs.tolist()) == wanted.tolist() and (np.diff(similarities) <= 0).all()
    same = rng.standard_normal((4, length)).astype("float32")[copies]  # to the bit
    for block in (7, 4096):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROWS", block)
            rows, _ = evaluation.search(same, same[:5], k=9)
        for i in range(5):
            assert rows[i].tolist() == np.flatnonzero(copies == copies[i])[:9].tolist()


@pytest.fixture
def photos(tmp_path):
    """Six images; of one there is a copy, one grey level brighter."""
    rng = np.random.default_rng(0)
    for i in range(6):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype="uint8")
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    Image.fromarray(pixels + np.uint8(1)).save(tmp_path / "copy.png")
    return tmp_path


@pytest.mark.nightly_elsewhere
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
    with pytest.raises(ValueError, match="does not name its model"):
        evaluation.find_similar(photos / "5.png", path)
    nothing = evaluation.embed(model, [photos / "0.png"], tmp_path / "none.npz", shard=(0, 2), progress=False)
    assert nothing.count == 0
    with pytest.raises(ValueError, match=r"features must be numbers \(rows, length\), but float32 \(0, 16\)"):
        evaluation.find_duplicates(nothing.path)
    with pytest.raises(ValueError, match="was made with another model"):
        evaluation.find_similar(photos / "5.png", path, model="glyphs")


def test_a_sheet_holds_thumbnails(tmp_path):
    Image.new("RGB", (900, 600)).save(tmp_path / "photo.png")
    rows = [{"image": str(tmp_path / "photo.png"), "similarity": 1.0}]
    evaluation.draw_similar(rows, tmp_path / "sheet.html")
    [shown] = re.findall(r'src="data:image/png;base64,([^"]+)"', (tmp_path / "sheet.html").read_text())
    assert Image.open(io.BytesIO(base64.b64decode(shown))).size == (288, 192)
