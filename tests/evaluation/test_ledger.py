"""The ledger of checkpoints: rows, what they leave out, and a dry run of the workflow's command on a local server."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import main
from keras_vit.evaluation import ledger
from keras_vit.evaluation.ledger import read_ledger, smallest_checkpoints, write_ledger
from tests.checkpoints.hub_server import Repository, local_hub
from tests.small_models import small_vit

pytestmark = pytest.mark.once
pytest.importorskip("huggingface_hub")
pytest.importorskip("PIL.Image")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "ledger.yml").read_text()


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    """Two repositories on a local server, which the catalogue lists, and a larger one that nobody asks for."""
    keras_vit.to_checkpoint(small_vit(image_size=16, patch_size=8, classes=5), tmp_path / "model.npz")
    files = {"model.npz": (tmp_path / "model.npz").read_bytes()}
    sizes = {"hf://me/large": 9e9, "hf://me/second": 2000, "hf://me/first": 1000, "hf://me/unknown": None}
    rows = [{"name": name, "params": size, "figures": {}} for name, size in sizes.items()]
    monkeypatch.setattr(ledger, "list_weights", lambda: rows)
    with local_hub(tmp_path, monkeypatch) as server:
        server.repositories |= {"me/first": Repository(files), "me/second": Repository(dict(files))}
        yield server


def test_the_workflow(catalogue, tmp_path, monkeypatch, capsys):
    """Its command, with another number of checkpoints: what fails has no row, and the next run does only that."""
    (command,) = re.findall(r"keras-vit (verify .*)", WORKFLOW)
    options = shlex.split(command)
    assert options == ["verify", "--smallest", "60", "--ledger", "docs/ledger.jsonl"]
    path = tmp_path / "ledger.jsonl"
    options[2], options[4] = "2", str(path)
    assert smallest_checkpoints(2) == ["hf://me/first", "hf://me/second"]
    catalogue.repositories["me/second"].error = (503, "")
    assert main(options) == 1
    assert "failed: " in capsys.readouterr().out
    (row,) = read_ledger(path)
    assert row["name"] == "hf://me/first" and row["repository"] == "me/first" and row["result"] == "read"
    assert row["commit"] == catalogue.repositories["me/first"].commit and row["beside"] is None
    assert row["files"] == {"model.npz": catalogue.repositories["me/first"].etag("model.npz")}
    catalogue.seen.clear()
    catalogue.repositories["me/second"].error = None
    assert main([*options, "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["hf://me/first", "hf://me/second"]
    assert not [path for path in catalogue.seen if "first" in path]
    assert [row["name"] for row in read_ledger(path)] == ["hf://me/first", "hf://me/second"]
    page = make_ledger(monkeypatch).text(read_ledger(path))
    assert row["commit"][:12] in page and row["files"]["model.npz"][:12] in page and "Nobody has run" not in page


def test_errors_beside_the_publishers_code(catalogue, tmp_path, monkeypatch):
    """Of a package that answers as ours does, except for one class, and whose pictures are two grey levels off."""
    model = small_vit(image_size=16, patch_size=8, classes=5)
    off = 0.0

    def ask(folder, picture, prepared):
        assert folder == tmp_path and picture.size == (360, 270)
        answer = model.predict(prepared, verbose=0) + off * np.eye(5)[:1]
        return prepared + 2 / 255 / np.asarray(model.config.pipeline.std), {
            "of another shape": np.ones(3),
            "it": answer,
        }

    monkeypatch.setattr(ledger, "_publisher", lambda path: ("torch", ask))
    (row,) = write_ledger(tmp_path / "model.npz", tmp_path / "a.jsonl")
    assert row["result"] == "agrees" and row["error"] == 0 and row["answer"] == "it" and row["commit"] is None
    assert row["pixels"] == pytest.approx(2, rel=1e-3) and row["beside"].startswith("torch 2.")
    off = 0.01
    table = write_ledger(str(tmp_path / "model.npz"), tmp_path / "b.jsonl")
    assert table[0]["result"] == "differs" and not table.agrees
    assert table[0]["error"] * table[0]["largest"] == pytest.approx(0.01, rel=1e-3)
    asked = []  # a variant, too, stands for a checkpoint
    monkeypatch.setattr(ledger, "find_checkpoint", lambda name: asked.append(name) or tmp_path / "model.npz")
    monkeypatch.setattr(ledger, "load", lambda name: model)
    assert write_ledger("ViT-B/16", tmp_path / "c.jsonl")[0]["result"] == "differs" and "B_16" in asked[0]


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(
    ("package", "case"),
    [("timm", "fam_timm_vit"), ("transformers", "fam_hf_vit_cls"), ("transformers", "dense_depth_da2_hf")],
)
def test_the_publishers_code(package, case, golden, tmp_path):
    pytest.importorskip(package, exc_type=Exception)
    (row,) = write_ledger(str(golden(case).folder), tmp_path / "ledger.jsonl")
    assert row["result"] == "agrees" and row["beside"].startswith(package) and 0 < row["error"] < ledger.CLOSE


def test_what_makes_no_sense(tmp_path, capsys):
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff")
    for name in ("notes", "bytes"):
        with pytest.raises(ValueError, match="is not a ledger of checkpoints"):
            write_ledger("glyphs", tmp_path / f"{name}.jsonl")
    with pytest.raises(FileNotFoundError, match="no folder"):
        write_ledger("glyphs", tmp_path / "absent" / "ledger.jsonl")
    with pytest.raises(FileNotFoundError, match="to measure on"):
        write_ledger("glyphs", tmp_path / "ledger.jsonl", data=str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="count must be from 1 to "):
        smallest_checkpoints(10**6)
    with pytest.raises(TypeError, match="count must be a whole number"):
        smallest_checkpoints(2.5)
    assert main(["verify"]) == 1 and "one of both" in capsys.readouterr().err
    assert main(["verify", "--smallest", "3"]) == 1 and "--smallest is for --ledger" in capsys.readouterr().err


def make_ledger(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    sys.modules.pop("make_ledger", None)
    import make_ledger

    return make_ledger


def test_the_page(monkeypatch):
    """It is made of the rows that are there, whose hashes are those of the files that are here."""
    script = make_ledger(monkeypatch)
    rows = read_ledger(script.ROWS)
    assert script.PAGE.read_text() == script.text(rows), "run python docs/make_ledger.py"
    assert len({row["name"] for row in rows}) == len(rows) and all(row["result"] != "failed" for row in rows)
    for row in rows:
        folder = ROOT / ("weights" if row["name"] == "glyphs" else row["name"])
        for name, expected in row["files"].items() if folder.is_dir() else ():
            assert ledger._sha256(folder / name) == expected, row["name"]
