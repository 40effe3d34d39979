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
from keras_vit import depth, segmentation
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.preprocessing import imagenet1k_classes
from keras_vit.text import imagenet_names, published_templates, templates
from tests.checkpoints.hub_server import Repository
from tests.processes import script
from tests.small_models import small_vit

pytestmark = pytest.mark.once
nightly = pytest.mark.nightly  # of a maintainer's tool

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
    at_address = {**common, "picture": f"{hub.base}/picture.png"}
    return [
        at_address | {"output": "logits", "expected": logits[:3].tolist()},
        at_address | {"output": "tokens", "expected": tokens[:3, :2].tolist()},
        at_address | {"output": "tokens", "row": 4, "expected": tokens[4:, :2].tolist()},
        common | {"picture": "test/picture.png", "output": "logits", "expected": logits.tolist()},
        common | {"tensors": "test/tensors.safetensors", "output": "logits"},
    ]


@nightly
def test_answers(answers, hub, tmp_path):
    table = verify.verify(["me/model"], answers=answers)
    assert [row["result"] for row in table] == ["agrees"] * 5
    assert all(row["difference"] <= row["allowed"] for row in table)
    wrong = answers[0] | {"expected": [answers[0]["expected"][0], answers[0]["expected"][1] + 0.01]}
    shifted = answers[2] | {"row": 3}  # two tokens are left from there on, and one is compared
    table = verify.verify(["me/model"], answers=[answers[0], wrong, shifted])
    assert [row["result"] for row in table] == ["agrees", "differs", "differs"]
    np.testing.assert_allclose(table[1]["difference"], 0.01, rtol=1e-3)  # of 0.01 in float32 numbers of order 1
    # An answer that is not a number.
    path = tmp_path / "nan.safetensors"
    nan = np.full((1, 3, 16, 16), np.nan, "float32")
    write_safetensors(path, [("input", nan), ("output", np.zeros((1, 5), "float32"))])
    hub.repositories["me/model"].files["test/tensors.safetensors"] = path.read_bytes()
    (row,) = verify.verify(["me/model"], answers=answers[-1:])
    assert row["result"] == "differs" and np.isnan(row["difference"])


@nightly
def test_what_cannot_be_had(answers, hub):
    """Each is a row with the reason, and the others are compared all the same."""
    hub.repositories["me/damaged"] = Repository(hub.repositories["me/model"].files, etags={"model.npz": "0" * 64})
    cases = (
        (answers[0] | {"repository": "me/absent"}, "Repository Not Found"),
        (answers[0] | {"picture": f"{hub.base}/absent.png"}, "answered 404"),
        (answers[4] | {"tensors": "model.npz"}, "input"),
        (answers[0] | {"expected": list(range(9))}, r"shape \(5,\), expected \(9,\)"),
        (answers[0] | {"repository": "me/damaged"}, "model.npz arrived damaged: its hash is .*, exp"),
    )
    *rows, good = verify.verify(["all"], answers=[*(answer for answer, _ in cases), answers[0]])
    assert good["agrees"] and not any(row["agrees"] for row in rows)
    for row, (_, reason) in zip(rows, cases, strict=True):
        assert row["result"].startswith("failed: ") and re.search(reason, row["error"])


def test_the_command(answers, hub, picture, tmp_path, monkeypatch, capsys):
    """With a picture of the user's, so that none is fetched from an address."""
    (tmp_path / "mine.png").write_bytes(picture[0])
    hub.pages.clear()
    monkeypatch.setattr(verify, "published_answers", lambda: answers[:2])
    mine = ["--picture", str(tmp_path / "mine.png")]
    assert call("me/model", *mine) == 0
    assert "agrees" in capsys.readouterr().out
    monkeypatch.setattr(verify, "published_answers", lambda: [answers[0], answers[0] | {"expected": [9.0]}])
    assert call("all", "--json", *mine) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["agrees"] for row in rows] == [True, False]
    assert rows[1]["expected"] == [9.0]
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


TEMPLATES = "openai_stl10"  # two, in place of 80: 1,000 names are many


@pytest.fixture(scope="module")
def figures(golden, tmp_path_factory):
    """Two towers, a folder of three classes of ImageNet, and what independent arithmetic measures on it."""
    pytest.importorskip("tokenizers")
    folder, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    ids = [wnid for wnid, _ in imagenet1k_classes()]
    both = keras_vit.load_image_text(golden("txt_hf_clip").folder)
    pictures = rng.integers(0, 256, (12, 32, 32, 3), "u1")
    words = [t.replace("{}", name) for name in imagenet_names() for t in published_templates()[TEMPLATES]]
    rows = both.embed_texts(words).reshape(1000, 2, -1).mean(1)
    best = (both.embed_images(list(pictures)) @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T).argmax(1)
    for i, guess in enumerate(best):
        label = guess if i % 3 else (guess + 1) % 1000  # two of three are right
        (folder / ids[label]).mkdir(exist_ok=True)
        Image.fromarray(pictures[i]).save(folder / ids[label] / f"{i}.png")
    return golden("txt_hf_clip").folder, folder


def catalogue_row(folder, figure, family="CLIP", name="zero-shot top-1"):
    return {"name": str(folder), "family": family, "figures": {name: figure, "another": 1.0}}


@nightly
@pytest.mark.filterwarnings("ignore:.*token")
def test_figures(figures, monkeypatch, capsys):
    weights, folder = figures
    monkeypatch.setitem(templates._published(), "openai_80", templates._published()[TEMPLATES])
    monkeypatch.setattr(verify, "list_weights", lambda: [catalogue_row(weights, 60.0)])
    assert call(weights, "--data", folder, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["expected"] == [60.0] and row["result"] == "differs"
    assert row["answer"] == pytest.approx([200 / 3]) and row["difference"] == pytest.approx(20 / 3)


@nightly
def test_accuracy_of_a_classifier(figures, tmp_path):
    _, folder = figures
    model = small_vit(image_size=16, patch_size=8, classes=1000)
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    ids = [wnid for wnid, _ in imagenet1k_classes()]
    pictures = sorted(folder.glob("*/*.png"))
    guesses = model.predict(model.preprocess(pictures), verbose=0).argmax(1)
    right = folder / ids[guesses[0]]  # one picture that the model is right about
    right.mkdir(exist_ok=True)
    (right / "one_more.png").write_bytes(pictures[0].read_bytes())
    labels = [path.parent.name for path in pictures]
    expected = 100 * (1 + sum(ids[k] == label for k, label in zip(guesses, labels, strict=True))) / (len(labels) + 1)
    row = {"name": str(tmp_path / "model.npz"), "family": "ViT", "figures": {}, "top1": expected, "classes": 1000}
    (found,) = verify.verify_figures(["all"], folder, rows=[row])
    (right / "one_more.png").unlink()
    assert found["agrees"] and found["answer"] == pytest.approx([expected]) and found["figure"] == "top-1"


def test_the_figures_of_the_catalogue():
    rows = [row for row in keras_vit.list_weights() if "zero-shot top-1" in row["figures"]]
    assert len(rows) >= 16 and all(50 < row["figures"]["zero-shot top-1"] < 90 for row in rows)
    assert {row["family"] for row in rows} == {"CLIP", "PE", "SigLIP", "SigLIP2"}


def dense_row(folder, figure, published):
    return {"name": str(folder), "family": "", "dataset": "NYU", "figures": {figure: published}}


@nightly
def test_figures_of_masks_and_depth(golden, tmp_path, monkeypatch):
    """Of small models; what each figure is has tests of its own in segmentation/ and depth/."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks", "depth"):
        (tmp_path / name).mkdir()
    for stem in "ab":
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), "u1")).save(tmp_path / f"images/{stem}.png")
        Image.fromarray(rng.integers(0, 3, (40, 60), "u1")).save(tmp_path / f"masks/{stem}.png")
        Image.fromarray(rng.integers(900, 5000, (40, 60)).astype("uint16")).save(tmp_path / f"depth/{stem}.png")
    folders = [golden(name).folder for name in ("dense_depth_da2_hf", "dense_seg_dinov2_linear")]
    depth_model, mask_model = map(keras_vit.load, folders)
    pairs = list(verify.read_nyu(tmp_path))
    delta1 = np.mean([depth.depth_errors(depth.estimate(depth_model, path), truth).delta1 for path, truth in pairs])
    iou = 100 * segmentation.evaluate(mask_model, tmp_path, progress=False).mean_iou
    figures = (("delta1", float(delta1)), ("mIoU", iou), ("mIoU", iou + 1))
    rows = [dense_row(folders[name == "mIoU"], name, figure) for name, figure in figures]
    table = verify.verify_figures(["all"], tmp_path, rows=rows)
    assert [row["result"] for row in table] == ["agrees", "agrees", "differs"]
    # Labels that are the model's own answer.
    folders.append(golden("dense_eomt_hf_panoptic").folder)
    model = keras_vit.load(folders[-1])
    (tmp_path / "panoptic").mkdir()
    (tmp_path / "images/a.png").rename(tmp_path / "a.jpg")
    found = segmentation.segment(model, tmp_path / "a.jpg", task="panoptic", threshold=0.0)
    monkeypatch.setattr(segmentation, "segment", lambda *_, **options: found)
    ids = np.stack([found.map + 1, 0 * found.map, 0 * found.map], -1).astype("u1")
    Image.fromarray(ids).save(tmp_path / "panoptic/a.png")
    parts = [{"id": part.id + 1, "category_id": part.label_id} for part in found.segments]
    about = {"annotations": [{"file_name": "a.png", "segments_info": parts}]}
    about["categories"] = [{"id": k, "name": str(k)} for k in range(model.config.classes)]
    (tmp_path / "panoptic.json").write_text(json.dumps(about))
    (row,) = verify.verify_figures(["all"], tmp_path, rows=[dense_row(folders[-1], "PQ", 100.0)])
    assert row["result"] == "agrees" and row["answer"] == [100] and len(parts) > 1
    Image.fromarray(np.zeros((40, 60), "u1")).save(tmp_path / "depth/b.png")
    (row, *_) = verify.verify_figures(["all"], tmp_path, rows=rows[:1])
    assert "must have 16 bits" in row["error"]


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


@nightly
def test_errors_beside_the_publishers_code(catalogue, tmp_path, monkeypatch):
    """Of a package that answers as ours does, but for one class, and whose pictures are two grey levels off."""
    model = small_vit(image_size=16, patch_size=8, classes=5)
    off = 0.0

    def ask(folder, picture, prepared):
        assert folder == tmp_path and picture.size == (360, 270)
        answer = model.predict(prepared, verbose=0) + off * np.eye(5)[:1]
        shifted = prepared + 2 / 255 / np.asarray(model.config.pipeline.std)
        return shifted, {"of another shape": np.ones(3), "it": answer}

    monkeypatch.setattr(verify, "publisher", lambda path: ("torch", ask))
    (row,) = verify.write_ledger([str(tmp_path / "model.npz")], tmp_path / "a.jsonl")
    assert row["result"] == "agrees" and row["error"] == 0 and row["answer"] == "it" and row["commit"] is None
    assert row["pixels"] == pytest.approx(2, rel=1e-3) and row["beside"].startswith("torch 2.")
    off = 0.01
    table = verify.write_ledger([str(tmp_path / "model.npz")], tmp_path / "b.jsonl")
    assert table[0]["result"] == "differs"
    assert table[0]["error"] * table[0]["largest"] == pytest.approx(0.01, rel=1e-3)
    asked = []  # a variant, too, stands for a checkpoint
    monkeypatch.setattr(verify, "find_checkpoint", lambda name: asked.append(name) or tmp_path / "model.npz")
    monkeypatch.setattr(verify, "load", lambda name: model)
    assert verify.write_ledger(["ViT-B/16"], tmp_path / "c.jsonl")[0]["result"] == "differs" and "B_16" in asked[0]


@nightly
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(
    ("package", "case"),
    [("timm", "fam_timm_vit"), ("transformers", "fam_hf_vit_cls"), ("transformers", "dense_depth_da2_hf")],
)
def test_the_publishers_code(package, case, golden, tmp_path):
    pytest.importorskip(package, exc_type=Exception)
    (row,) = verify.write_ledger([str(golden(case).folder)], tmp_path / "ledger.jsonl")
    assert row["result"] == "agrees" and row["beside"].startswith(package) and 0 < row["error"] < verify.CLOSE


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
