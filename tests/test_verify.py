"""The maintainer's comparison with published answers, on a local server with repositories of small models."""

import io
import json
import re
import shlex
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import write_safetensors
from tests.checkpoints.hub_server import Repository
from tests.processes import script
from tests.small_models import small_vit

pytestmark = pytest.mark.once

pytest.importorskip("huggingface_hub")
Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = (ROOT / ".github" / "workflows" / "ledger.yml").read_text()


verify = script("benchmarks/verify.py")


def call(*arguments):
    with pytest.raises(SystemExit) as end:
        verify.main([*map(str, arguments)])
    return end.value.code


@pytest.fixture(scope="module")
def model():
    return small_vit(image_size=16, patch_size=8, classes=5)


@pytest.fixture(scope="module")
def picture():
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), "u1")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue(), pixels


@pytest.fixture
def answers(hub, model, picture, tmp_path):
    """What was published of `me/model`: logits and tokens of a picture, and of tensors."""
    data, pixels = picture
    images = np.reshape(model.preprocess(pixels), (1, 16, 16, 3))
    logits = model.predict(images, verbose=0)[0]
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output).predict(images, verbose=0)[0]
    noise = np.random.default_rng(2).normal(size=(2, 16, 16, 3)).astype("float32")
    tensors = [("input", np.moveaxis(noise, -1, 1)), ("output", model.predict(noise, verbose=0))]
    write_safetensors(tmp_path / "tensors.safetensors", tensors)
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    files = {"model.npz": (tmp_path / "model.npz").read_bytes(), "test/picture.png": data}
    files["test/tensors.safetensors"] = (tmp_path / "tensors.safetensors").read_bytes()
    hub.repositories["me/model"] = Repository(files)
    hub.pages["/picture.png"] = data
    common = verify.DEFAULTS | {"repository": "me/model", "source": "here"}
    at_address = common | {"picture": f"{hub.base}/picture.png", "output": "tokens"}
    return [
        common | {"picture": "test/picture.png", "output": "logits", "expected": logits.tolist()},
        at_address | {"row": 4, "expected": tokens[4:, :2].tolist()},
        common | {"tensors": "test/tensors.safetensors", "output": "logits"},
    ]


def test_the_command(answers, hub, picture, tmp_path, monkeypatch, capsys):
    """Answers at an address, in a repository and to tensors; then a picture of the user's, so that none is fetched."""
    shifted = answers[1] | {"row": 3}  # two tokens are left from there on, and one is compared
    monkeypatch.setattr(verify, "published_answers", lambda: [*answers, answers[0] | {"expected": [9.0]}, shifted])
    assert call("all", "--json") == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["agrees"] for row in rows] == [True, True, True, False, False]
    assert rows[3]["expected"] == [9.0]
    (tmp_path / "mine.png").write_bytes(picture[0])
    hub.pages.clear()
    monkeypatch.setattr(verify, "published_answers", lambda: answers[:2])
    mine = ["--picture", str(tmp_path / "mine.png")]
    assert call("me/model", *mine) == 0
    assert "agrees" in capsys.readouterr().out
    assert "Nothing published is known of me/modal" in call("me/modal")
    for wrong in ([], ["--smallest", "3"], ["me/model", "--data", ".", *mine]):
        assert call(*wrong) == 2


def test_the_published_table():
    """Every row says where it is from, and has something to compute and something to compare with."""
    assert len(verify.published_answers()) >= 14
    for row in verify.published_answers():
        assert row["source"] and row["output"] in ("logits", "tokens")
        assert (row["picture"] is None) != (row["tensors"] is None)
        assert row["expected"] is not None or row["answers"] is not None or row["tensors"] is not None
        assert 0 < row["absolute"] <= 1e-3 and 0 < row["relative"] <= 1e-3


def test_the_figures_of_the_catalogue():
    rows = [row for row in keras_vit.list_weights() if "zero-shot top-1" in row["figures"]]
    assert len(rows) >= 16 and all(50 < row["figures"]["zero-shot top-1"] < 90 for row in rows)
    assert {row["family"] for row in rows} == {"CLIP", "PE", "SigLIP", "SigLIP2"}


@pytest.fixture
def catalogue(hub, tmp_path, monkeypatch):
    """Two repositories on a local server, which the catalogue lists, and a larger one that nobody asks for."""
    keras_vit.to_checkpoint(small_vit(image_size=16, patch_size=8, classes=5), tmp_path / "model.npz")
    files = {"model.npz": (tmp_path / "model.npz").read_bytes()}
    sizes = {"hf://me/large": 9e9, "hf://me/second": 2000, "hf://me/first": 1000, "hf://me/unknown": None}
    rows = [{"name": name, "params": size, "figures": {}} for name, size in sizes.items()]
    monkeypatch.setattr(verify, "list_weights", lambda: rows)
    hub.repositories |= {"me/first": Repository(files), "me/second": Repository(dict(files))}
    return hub


def test_the_workflow(catalogue, tmp_path, capsys):
    """Its command, with another number of checkpoints: what fails has no row, and the next run does only that."""
    (command,) = re.findall(r"python benchmarks/verify.py (.*)", WORKFLOW)
    options = shlex.split(command)
    assert options == ["--smallest", "60", "--ledger", "docs/ledger.jsonl"]
    path = tmp_path / "ledger.jsonl"
    options[1], options[3] = "2", str(path)
    catalogue.repositories["me/second"].error = (503, "")
    assert call(*options) == 1
    assert "failed: " in capsys.readouterr().out
    (row,) = verify.read_ledger(path)
    assert row["name"] == "hf://me/first" and row["repository"] == "me/first" and row["result"] == "read"
    assert row["commit"] == catalogue.repositories["me/first"].commit and row["beside"] is None
    assert row["files"] == {"model.npz": catalogue.repositories["me/first"].etag("model.npz")}
    catalogue.seen.clear()
    catalogue.repositories["me/second"].error = None
    assert call(*options, "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["hf://me/first", "hf://me/second"]
    assert not [path for path in catalogue.seen if "first" in path]
    page = script("docs/make_ledger.py").text(verify.read_ledger(path))
    assert row["commit"][:12] in page and row["files"]["model.npz"][:12] in page and "Nobody has run" not in page


def test_the_page():
    """It is made of the rows that are there, whose hashes are those of the files that are here."""
    page = script("docs/make_ledger.py")
    rows = verify.read_ledger(page.ROWS)
    assert page.PAGE.read_text() == page.text(rows), "run python docs/make_ledger.py"
    assert len({row["name"] for row in rows}) == len(rows) and all(row["result"] != "failed" for row in rows)
    for row in rows:
        folder = ROOT / ("weights" if row["name"] == "glyphs" else row["name"])
        for name, expected in row["files"].items() if folder.is_dir() else ():
            assert verify.sha256(folder / name) == expected, row["name"]
